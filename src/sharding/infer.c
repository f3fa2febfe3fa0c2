// SPDX-License-Identifier: Apache-2.0
// infer.c - completes annotations: what the flow found is written down as specs of every input and output
// that had none. Explicit specs stay as they are, so inferring twice changes nothing.
#include "sharding/flow.h"

bool tsr__has_spec(const tsr_node *n, const tsr_config *c, const tsr_value *v)
{
    for (size_t i = 0; i < tsr_node_config_count(n); i++) {
        const tsr_node_config *nc = tsr_node_config_at(n, i);
        if (tsr_node_config_config(nc) != c)
            continue;
        for (size_t k = 0; k < tsr_node_config_spec_count(nc); k++)
            if (tsr_spec_value(tsr_node_config_spec(nc, k)) == v)
                return true;
    }
    return false;
}

// A node has one spec for a value that it reads twice: if the two readings differ there is none to write.
static bool readings_agree(const struct node_flow *nf, const tsr_value *v,
                           const struct tile_layout *l)
{
    for (size_t i = 0; i < tsr_node_input_count(nf->node); i++)
        if (tsr_node_input(nf->node, i) == v && !tsr__layout_equal(nf->inputs[i], l))
            return false;
    return true;
}

static bool has_any_spec(const tsr_node *n, const tsr_config *c)
{
    const tsr_node_config *nc = tsr_node_find_config(n, c);
    return nc && tsr_node_config_spec_count(nc) > 0;
}

static tsr_status write_nodes(tsr_graph *g, tsr_config *c, const struct node_flow *nodes,
                              size_t count);

static tsr_status write_node(tsr_node *n, tsr_config *c, const struct node_flow *nf)
{
    for (int k = 0; nf->bodies && k < nf->control->n_bodies; k++) {
        const struct body_flow *b = &nf->bodies[k];
        tsr_status status = write_nodes(b->graph, c, b->nodes, b->n_nodes);
        if (status != TSR_OK)
            return status;
    }
    // Specs beside those that the node cannot follow would contradict them, or, where no rule is known, complete them:
    // an operator whose tensors all have specs is cut as told.
    if ((nf->unheeded || nf->replicated) && has_any_spec(n, c))
        return TSR_OK;
    size_t n_in = tsr_node_input_count(n), n_out = tsr_node_output_count(n);
    for (size_t i = 0; i < n_in + n_out; i++) {
        bool out = i >= n_in;
        tsr_value *v = out ? tsr_node_output(n, i - n_in) : tsr_node_input(n, i);
        const struct tile_layout *l = out ? nf->outputs[i - n_in] : nf->inputs[i];
        if (!v || tsr__has_spec(n, c, v) || (!out && !readings_agree(nf, v, l)))
            continue;
        tsr_status status = tsr__spec_write(n, c, v, l);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static tsr_status write_nodes(tsr_graph *g, tsr_config *c, const struct node_flow *nodes,
                              size_t count)
{
    size_t i = 0;
    tsr_status status = TSR_OK;
    for (tsr_node *n = tsr_graph_first(g); n && i < count && status == TSR_OK;
         n = tsr_node_next(n), i++)
        status = write_node(n, c, &nodes[i]);
    return status;
}

static tsr_status infer(struct arena *a, tsr_model *m, tsr_config *c, bool propagate)
{
    const struct flow *f = propagate ? tsr__flow_propagated(a, m, c) : tsr__flow_new(a, m, c);
    if (!f)
        return a->failed ? TSR_NOMEM : TSR_INVALID;
    return write_nodes(tsr_model_graph(m), c, f->nodes, f->n_nodes);
}

static tsr_config *choose(tsr_model *m, const char *name)
{
    struct place at = PLACE_NONE;
    size_t n = tsr_model_config_count(m);
    tsr_config *c = name ? tsr_model_find_config(m, name) : n == 1 ? tsr_model_config(m, 0) : NULL;
    if (c)
        return c;
    if (name) {
        at.configuration = str_of(name);
        tsr__diag(tsr_model_session(m), DIAG_config_unknown, &at,
                  "name one that the model declares",
                  "the model declares no device configuration '%s'", name);
    } else {
        tsr__diag(tsr_model_session(m), DIAG_config_choice, &at,
                  n ? "name one of them" : "declare one, and say how some value is cut",
                  "the model declares %zu device configurations", n);
    }
    return NULL;
}

tsr_status tsr_infer(tsr_model *m, const char *config)
{
    return tsr_infer_opts(m, config, false);
}

tsr_status tsr_infer_opts(tsr_model *m, const char *config, bool propagate)
{
    tsr_session *s = tsr_model_session(m);
    tsr_config *c = choose(m, config);
    if (!c)
        return TSR_INVALID;
    size_t errors = tsr__diag_errors(s);
    tsr_status status = tsr__check(m, tsr_config_name(c), false);
    if (status != TSR_OK)
        return status;
    if (tsr__diag_errors(s) > errors)
        return TSR_INVALID;
    status = tsr__inline_calls(m);
    if (status != TSR_OK)
        return status;
    struct arena a;
    tsr__arena_init(&a, s);
    status = infer(&a, m, c, propagate);
    tsr__arena_free(&a);
    return status;
}
