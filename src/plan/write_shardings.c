// SPDX-License-Identifier: Apache-2.0
// write_shardings.c - the chosen plan as shardings in the model: one at every input and output of
// every node that could have been cut. Nodes that run whole in any case say nothing, unless a value
// arrives that is not everywhere. Read again, the flow finds the same placements: candidates.c has
// tried that for each candidate.
#include "plan/internal.h"

static bool is_everywhere(const struct planner *planner, const struct tile_layout *layout)
{
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (!tsr__layout_has_device(layout, device))
            return false;
    return true;
}

// The value is made on some of the devices only.
static bool is_elsewhere(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = tsr_value_producer(value);
    int64_t at = from ? planner->node_at[tsr__node_id(from)] : -1;
    if (at < 0)
        return false;
    const struct plan_node *node = &planner->nodes[at];
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    for (size_t o = 0; o < tsr_node_output_count(from); o++)
        if (tsr_node_output(from, o) == value &&
            !is_everywhere(planner, planner->layouts.at[candidate->out[o]].tiles))
            return true;
    return false;
}

// The model came with a sharding for this value at this node.
static bool was_given(const struct plan_node *node, const tsr_value *value,
                      const tsr_config *config)
{
    if (!node->strategy->given)
        return false;
    for (size_t k = 0; tsr_node_sharding_of(node->node, value, k); k++)
        if (tsr__spec_config(tsr_node_sharding_of(node->node, value, k)) == config)
            return true;
    return false;
}

// Left out: absent tensors, what the host reads, what the caller's sharding says already, tensors
// without a known rank in stages, and whole nodes whose inputs are everywhere.
static tsr_status write_slot(struct planner *planner, const struct plan_node *node,
                             tsr_config *config, enum slot_side side, size_t i)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    tsr_value *value = node_value(node->node, side, i);
    uint32_t layout = candidate_layouts(candidate, side)[i];
    if (!value || layout == PLAN_NO_LAYOUT || rule_steers(node->strategy->rule, side, i) ||
        was_given(node, value, config))
        return TSR_OK;
    if (planner->scope.staged && tsr__shapes_of(planner->shapes.model, value).rank < 0)
        return TSR_OK; // no tensor, or nobody knows: its stage says enough
    if (!planner->scope.staged && node->strategy->whole &&
        (side == SIDE_OUTPUT || !is_elsewhere(planner, value)))
        return TSR_OK;
    return tsr__spec_write(node->node, config, value, planner->layouts.at[layout].tiles);
}

// Shardings of all inputs, then of all outputs. Without stages the first device gives the outputs; one stage of other devices
// gives them itself: caches of 500 MB need not cross to a CPU that does nothing else.
static tsr_status write_node(struct planner *planner, const struct plan_node *node,
                             tsr_config *config)
{
    if (planner->scope.one_stage) {
        tsr_status st = tsr_node_set_stage(node->node, config, 0);
        if (st != TSR_OK)
            return st;
    }
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        tsr_status st = write_slot(planner, node, config, SIDE_INPUT, i);
        if (st != TSR_OK)
            return st;
    }
    for (size_t i = 0; i < tsr_node_output_count(node->node); i++) {
        tsr_status st = write_slot(planner, node, config, SIDE_OUTPUT, i);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// ---- sums that stay in parts --------------------------------------------------------------------

// The lines of other configurations, as they are.
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

// The only output of the node stays in parts.
static bool gives_parts(const struct planner *planner, const struct plan_node *node)
{
    if (!node->strategy || !tsr_node_output_count(node->node))
        return false;
    uint32_t layout = node->strategy->at.at[node->choice].out[0];
    return layout != PLAN_NO_LAYOUT && planner->layouts.at[layout].parts;
}

// A line "configuration:value" of the metadata for each sum that stays in parts.
static tsr_status write_delays(struct planner *planner, const tsr_config *config)
{
    struct text text;
    struct str name = str_of(tsr_config_name(config));
    const char *before = tsr_model_metadata(planner->model, META_DELAY);
    tsr_status st = TSR_OK;
    tsr__text_init(&text, planner->session);
    keep_lines(&text, before, name);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (gives_parts(planner, node))
            tsr__text_printf(&text, "%s" STR_FMT ":" STR_FMT, text.n ? "\n" : "", STR_ARG(name),
                             STR_ARG(tsr__value_str(tsr_node_output(node->node, 0))));
    }
    if (text.failed)
        st = TSR_NOMEM;
    else if (text.n)
        st = tsr_model_set_metadata(planner->model, META_DELAY, text.p);
    else if (before)
        st = tsr_model_set_metadata(planner->model, META_DELAY, NULL);
    tsr__text_free(&text);
    return st;
}

static tsr_status write_nodes(struct planner *planner, tsr_config *config)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!planner->nodes[i].strategy)
            continue;
        tsr_status st = write_node(planner, &planner->nodes[i], config);
        if (st != TSR_OK)
            return st;
    }
    return write_delays(planner, config);
}

// The configuration first, which all else is written under.
tsr_status tsr__planner_write(struct planner *planner, const char *config)
{
    tsr_status st = tsr__planner_config(planner, config);
    if (st != TSR_OK)
        return st;
    st = write_nodes(planner, planner->config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_keep_topology(planner);
    if (st != TSR_OK)
        return st;
    return tsr__planner_keep_states(planner);
}
