// SPDX-License-Identifier: Apache-2.0
// write.c - the chosen plan as shardings in the model: one at every input and output of every node that could have been
// cut. Nodes that run whole in any case say nothing, unless a value arrives that is not everywhere.
#include "plan/internal.h"

static bool steers(const struct rule *r, bool out, size_t i)
{
    return (int)i < (out ? r->n_outputs : r->n_inputs) && (out ? r->outputs : r->inputs)[i].host;
}

// The value is made on some of the devices only.
static bool is_elsewhere(const struct planner *p, const tsr_value *v)
{
    const tsr_node *from = tsr_value_producer(v);
    int64_t at = from ? p->node_at[tsr__node_id(from)] : -1;
    if (at < 0)
        return false;
    const struct plan_node *n = &p->nodes[at];
    for (size_t o = 0; o < tsr_node_output_count(from); o++)
        if (tsr_node_output(from, o) == v) {
            const struct tile_layout *l = p->layouts.at[n->strategy->at.at[n->choice].out[o]];
            for (int64_t d = 0; d < p->n; d++)
                if (!tsr__layout_has_device(l, d))
                    return true;
        }
    return false;
}

static tsr_status write_slot(struct planner *p, const struct plan_node *n, tsr_config *c, bool out,
                             size_t i)
{
    const struct candidate *x = &n->strategy->at.at[n->choice];
    tsr_value *v = out ? tsr_node_output(n->node, i) : tsr_node_input(n->node, i);
    uint32_t layout = (out ? x->out : x->in)[i];
    if (!v || layout == PLAN_NO_LAYOUT || steers(n->strategy->rule, out, i))
        return TSR_OK;
    for (size_t k = 0; n->strategy->given && tsr_node_sharding_of(n->node, v, k); k++)
        if (tsr__spec_config(tsr_node_sharding_of(n->node, v, k)) == c)
            return TSR_OK; // kept
    if (p->staged && tsr__shapes_of(p->shapes, v).rank < 0)
        return TSR_OK; // no tensor, or nobody knows: its stage says enough
    if (!p->staged && n->strategy->whole && (out || !is_elsewhere(p, v)))
        return TSR_OK;
    return tsr__spec_write(n->node, c, v, p->layouts.at[layout]);
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

static tsr_status write_delays(struct planner *p, const tsr_config *c)
{
    struct text t;
    struct str config = str_of(tsr_config_name(c));
    const char *before = tsr_model_metadata(p->model, META_DELAY);
    tsr__text_init(&t, p->session);
    keep_lines(&t, before, config);
    for (size_t i = 0; i < p->n_nodes; i++) {
        const struct plan_node *n = &p->nodes[i];
        const struct candidate *x = n->strategy ? &n->strategy->at.at[n->choice] : NULL;
        if (x && tsr_node_output_count(n->node) && x->out[0] != PLAN_NO_LAYOUT &&
            p->parts.at[x->out[0]])
            tsr__text_printf(&t, "%s" STR_FMT ":" STR_FMT, t.n ? "\n" : "", STR_ARG(config),
                             STR_ARG(tsr__value_str(tsr_node_output(n->node, 0))));
    }
    tsr_status st = t.failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && (t.n || before))
        st = tsr_model_set_metadata(p->model, META_DELAY, t.n ? t.p : NULL);
    tsr__text_free(&t);
    return st;
}

tsr_status tsr__planner_write(struct planner *p, tsr_config *c)
{
    for (size_t i = 0; i < p->n_nodes; i++) {
        const struct plan_node *n = &p->nodes[i];
        size_t n_in = n->strategy ? tsr_node_input_count(n->node) : 0;
        size_t n_out = n->strategy ? tsr_node_output_count(n->node) : 0;
        for (size_t k = 0; k < n_in + n_out; k++) {
            tsr_status st = write_slot(p, n, c, k >= n_in, k >= n_in ? k - n_in : k);
            if (st != TSR_OK)
                return st;
        }
    }
    return write_delays(p, c);
}
