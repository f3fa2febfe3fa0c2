// SPDX-License-Identifier: Apache-2.0
// write_shardings.c - the chosen plan as shardings in the model: one at every input and output of every node that could have been
// cut. Nodes that run whole in any case say nothing, unless a value arrives that is not everywhere.
#include "plan/internal.h"

static bool steers(const struct rule *rule, bool out, size_t i)
{
    return (int)i < (out ? rule->n_outputs : rule->n_inputs) &&
           (out ? rule->outputs : rule->inputs)[i].host;
}

// The value is made on some of the devices only.
static bool is_elsewhere(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = tsr_value_producer(value);
    int64_t at = from ? planner->node_at[tsr__node_id(from)] : -1;
    if (at < 0)
        return false;
    const struct plan_node *node = &planner->nodes[at];
    for (size_t o = 0; o < tsr_node_output_count(from); o++)
        if (tsr_node_output(from, o) == value) {
            const struct tile_layout *layout =
                planner->layouts.at[node->strategy->at.at[node->choice].out[o]].tiles;
            for (int64_t device = 0; device < planner->machine.n; device++)
                if (!tsr__layout_has_device(layout, device))
                    return true;
        }
    return false;
}

static tsr_status write_slot(struct planner *planner, const struct plan_node *node,
                             tsr_config *config, bool out, size_t i)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    tsr_value *value = out ? tsr_node_output(node->node, i) : tsr_node_input(node->node, i);
    uint32_t layout = (out ? candidate->out : candidate->in)[i];
    if (!value || layout == PLAN_NO_LAYOUT || steers(node->strategy->rule, out, i))
        return TSR_OK;
    for (size_t k = 0; node->strategy->given && tsr_node_sharding_of(node->node, value, k); k++)
        if (tsr__spec_config(tsr_node_sharding_of(node->node, value, k)) == config)
            return TSR_OK; // kept
    if (planner->scope.staged && tsr__shapes_of(planner->shapes.model, value).rank < 0)
        return TSR_OK; // no tensor, or nobody knows: its stage says enough
    if (!planner->scope.staged && node->strategy->whole && (out || !is_elsewhere(planner, value)))
        return TSR_OK;
    return tsr__spec_write(node->node, config, value, planner->layouts.at[layout].tiles);
}

// ---- sums that stay in parts --------------------------------------------------------------------

// The lines of other configurations, as they are.
static void keep_lines(struct text *t, const char *text, struct str config)
{
    for (; text && *text; text += strcspn(text, "\n"), text += *text == '\n') {
        struct str line = {text, strcspn(text, "\n")};
        bool own =
            line.n > config.n && line.p[config.n] == ':' && memcmp(line.p, config.p, config.n) == 0;
        if (line.n && !own)
            tsr__text_printf(t, "%s" STR_FMT, t->n ? "\n" : "", STR_ARG(line));
    }
}

static tsr_status write_delays(struct planner *planner, const tsr_config *c)
{
    struct text text;
    struct str config = str_of(tsr_config_name(c));
    const char *before = tsr_model_metadata(planner->model, META_DELAY);
    tsr__text_init(&text, planner->session);
    keep_lines(&text, before, config);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        const struct candidate *candidate =
            node->strategy ? &node->strategy->at.at[node->choice] : NULL;
        if (candidate && tsr_node_output_count(node->node) && candidate->out[0] != PLAN_NO_LAYOUT &&
            planner->layouts.at[candidate->out[0]].parts)
            tsr__text_printf(&text, "%s" STR_FMT ":" STR_FMT, text.n ? "\n" : "", STR_ARG(config),
                             STR_ARG(tsr__value_str(tsr_node_output(node->node, 0))));
    }
    tsr_status st = text.failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && (text.n || before))
        st = tsr_model_set_metadata(planner->model, META_DELAY, text.n ? text.p : NULL);
    tsr__text_free(&text);
    return st;
}

tsr_status tsr__planner_write(struct planner *planner, tsr_config *config)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        size_t n_in = node->strategy ? tsr_node_input_count(node->node) : 0;
        size_t n_out = node->strategy ? tsr_node_output_count(node->node) : 0;
        for (size_t k = 0; k < n_in + n_out; k++) {
            tsr_status st = write_slot(planner, node, config, k >= n_in, k >= n_in ? k - n_in : k);
            if (st != TSR_OK)
                return st;
        }
    }
    return write_delays(planner, config);
}
