// SPDX-License-Identifier: Apache-2.0
// write_shardings.c - writes the chosen plan as shardings: at every input and output of every node
// that could be sharded. Nodes that must be replicated get none, unless an input is not on all
// devices. Sharding inference reproduces the same placements: candidates.c has checked this for
// each candidate.
#include "plan/write/write.h"

static bool is_everywhere(const struct planner *planner, const struct tile_layout *layout)
{
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (!tsr__layout_has_device(layout, device))
            return false;
    return true;
}

// True if only some of the devices produce the value.
static bool is_elsewhere(const struct planner *planner, const tsr_value *value)
{
    uint32_t layout = tsr__plan_layout(planner, value);
    return layout != PLAN_NO_LAYOUT && !is_everywhere(planner, planner->layouts.at[layout].tiles);
}

// The state of writing. given_at[value] is the index, plus 1, of the last node that already had a
// sharding for the value. All nodes share this array, so each node is read only once.
struct writing {
    struct planner *planner;
    tsr_config *config;
    size_t *given_at;
};

static void mark_given(const struct writing *writing, size_t node)
{
    const struct plan_node *at = &writing->planner->nodes[node];
    for (size_t i = 0; at->strategy->given && i < tsr_node_config_count(at->node); i++) {
        const tsr_node_config *entry = tsr_node_config_at(at->node, i);
        if (tsr_node_config_target(entry) != writing->config)
            continue;
        for (size_t k = 0; k < tsr_node_config_spec_count(entry); k++) {
            const tsr_value *value = tsr_spec_value(tsr_node_config_spec(entry, k));
            if (value)
                writing->given_at[tsr__value_id(value)] = node + 1;
        }
    }
}

// Writes the sharding of one tensor. Skips absent tensors, small control inputs, tensors whose
// sharding the model gives already, and tensors of unknown rank in stages. Without stages, also
// skips the outputs of replicated nodes, and those of their inputs that are on all devices. Of a
// border, only the outer value gets a sharding, at the node with the bodies.
static tsr_status write_slot(const struct writing *writing, size_t at, enum slot_side side,
                             size_t i)
{
    struct planner *planner = writing->planner;
    const struct plan_node *node = &planner->nodes[at];
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    tsr_value *value = plan_value_at(node, side, i);
    uint32_t layout = candidate_layouts(candidate, side)[i];
    if (!value || (node->border && node->border->leaves != (side == SIDE_OUTPUT)) ||
        layout == PLAN_NO_LAYOUT || rule_steers(node->strategy->rule, side, i) ||
        writing->given_at[tsr__value_id(value)] == at + 1)
        return TSR_OK;
    if (planner->scope.staged && tsr__shapes_of(planner->shapes.model, value).rank < 0)
        return TSR_OK; // no tensor, or unknown rank: the stage of the node determines its devices
    if (!planner->scope.staged && node->strategy->whole &&
        (side == SIDE_OUTPUT || !is_elsewhere(planner, value)))
        return TSR_OK;
    return tsr__spec_write(node->node, writing->config, value, planner->layouts.at[layout].tiles);
}

// Returns the stage of a node; -1: it needs none. Without stages, the first device returns the
// outputs. A single stage on other devices returns them itself; otherwise large caches would be
// sent to a CPU that runs no node.
static int64_t stage_of(const struct planner *planner, size_t at)
{
    const struct planner_scope *scope = &planner->scope;
    size_t k = 0;
    bool only = scope->n_ranges == 1 && !scope->numbers && scope->ranges[0].devices[0] == 0;
    if (!scope->n_ranges || only || !in_main_graph(&planner->nodes[at]))
        return -1; // nodes of bodies run where their node runs
    while (k + 1 < scope->n_ranges && scope->ranges[k].end <= at)
        k++;
    return scope->numbers ? scope->numbers[k] : (int64_t)k;
}

// Writes the stage and the shardings of a node: inputs, then outputs.
static tsr_status write_node(const struct writing *writing, size_t at)
{
    const struct plan_node *node = &writing->planner->nodes[at];
    int64_t stage = stage_of(writing->planner, at);
    if (stage >= 0)
        TRY(tsr_node_set_stage(node->node, writing->config, stage));
    mark_given(writing, at);
    for (size_t i = 0; i < tsr__plan_reads(node); i++)
        TRY(write_slot(writing, at, SIDE_INPUT, i));
    for (size_t i = 0; i < tsr__plan_makes(node); i++)
        TRY(write_slot(writing, at, SIDE_OUTPUT, i));
    return TSR_OK;
}

// ---- sums that stay partial --------------------------------------------------------------------

// Copies the lines that belong to other configurations.
static void keep_lines(struct text *t, const char *text, struct str config)
{
    while (text && *text) {
        struct str line = next_line(&text);
        bool own =
            line.n > config.n && line.p[config.n] == ':' && memcmp(line.p, config.p, config.n) == 0;
        if (line.n && !own)
            tsr__text_printf(t, "%s" STR_FMT, t->n ? "\n" : "", STR_ARG(line));
    }
}

// True if the first output of the node stays partial; nodes with partial sums have only one output.
static bool gives_parts(const struct planner *planner, const struct plan_node *node)
{
    if (!node->strategy || !in_main_graph(node) || !tsr__plan_makes(node))
        return false;
    uint32_t layout = node->strategy->at.at[node->choice].out[0];
    return layout != PLAN_NO_LAYOUT && planner->layouts.at[layout].parts;
}

// Sets an entry of the metadata to the lines, or removes it if there are none. Frees the lines.
static tsr_status set_lines(struct planner *planner, const char *key, struct text *lines)
{
    tsr_status st = text_status(lines);
    if (st == TSR_OK && (lines->n || tsr_model_metadata(planner->model, key)))
        st = tsr_model_set_metadata(planner->model, key, lines->n ? lines->p : NULL);
    tsr__text_free(lines);
    return st;
}

// Writes a line "configuration:value" into the metadata for each sum that stays partial. Lines of
// other configurations stay.
static tsr_status write_delays(struct planner *planner, const tsr_config *config)
{
    struct str name = str_of(tsr_config_name(config));
    const char *before = tsr_model_metadata(planner->model, META_DELAY);
    struct text text = {.session = planner->session};
    keep_lines(&text, before, name);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (gives_parts(planner, node))
            tsr__text_printf(&text, "%s" STR_FMT ":" STR_FMT, text.n ? "\n" : "", STR_ARG(name),
                             STR_ARG(tsr__value_str(tsr_node_output(node->node, 0))));
    }
    return set_lines(planner, META_DELAY, &text);
}

// ---- weights that runs convert -----------------------------------------------------------------

// True if an earlier input reads the same weight, of this node or an earlier one.
static bool is_written(unsigned char *written, const tsr_value *value)
{
    bool before = written[tsr__value_id(value)];
    written[tsr__value_id(value)] = 1;
    return before;
}

// Adds a line "configuration:weight=sharding" for each weight of the node that is stored in another
// layout than the node reads it in.
static void add_stored(struct planner *planner, const struct plan_node *node, struct str config,
                       unsigned char *written, struct text *text)
{
    for (size_t i = 0; node->stored && i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        if (!value || node->stored[i] == PLAN_NO_LAYOUT || is_written(written, value))
            continue;
        struct str sharding =
            tsr__notation_print(&planner->arena, planner->layouts.at[node->stored[i]].tiles);
        tsr__text_printf(text, "%s" STR_FMT ":" STR_FMT "=" STR_FMT, text->n ? "\n" : "",
                         STR_ARG(config), STR_ARG(tsr__value_str(value)), STR_ARG(sharding));
    }
}

// Writes into the metadata in which layouts weights are stored that runs convert. Lines of other
// configurations stay.
static tsr_status write_stored(struct planner *planner, const tsr_config *config)
{
    struct str name = str_of(tsr_config_name(config));
    const char *before = tsr_model_metadata(planner->model, META_STORED);
    unsigned char *written =
        ARENA_ARRAY(&planner->arena, unsigned char, tsr__model_value_ids(planner->model) + 1);
    struct text text = {.session = planner->session, .max = SIZE_MAX / 2};
    keep_lines(&text, before, name);
    for (size_t i = 0; written && i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            add_stored(planner, &planner->nodes[i], name, written, &text);
    return written ? set_lines(planner, META_STORED, &text) : TSR_NOMEM;
}

static tsr_status write_nodes(struct planner *planner, tsr_config *config)
{
    struct writing writing = {.planner = planner, .config = config};
    writing.given_at =
        ARENA_ARRAY(&planner->arena, size_t, tsr__model_value_ids(planner->model) + 1);
    if (!writing.given_at)
        return TSR_NOMEM;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!planner->nodes[i].strategy)
            continue;
        TRY(write_node(&writing, i));
    }
    TRY(write_delays(planner, config));
    return write_stored(planner, config);
}

// Writes the plan into the model: the configuration first, because everything else belongs to it.
tsr_status tsr__planner_write(struct planner *planner, const char *config)
{
    TRY(tsr__planner_config(planner, config));
    TRY(write_nodes(planner, planner->config));
    TRY(tsr__planner_keep_topology(planner));
    return tsr__planner_keep_states(planner);
}
