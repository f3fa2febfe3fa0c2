// SPDX-License-Identifier: Apache-2.0
// locate.c - where cut and whole part. Both are run once more with every value of the main graph given out, and the
// values compared in the order of the nodes. Whose part of the first one is wrong, the flow's layout of it tells.
#include "verify/internal.h"
#include "sharding/sharding.h"

// ---- giving everything out ---------------------------------------------------------------------

static tsr_status give_out(tsr_model *m)
{
    tsr_graph *g = tsr_model_graph(m);
    tsr_status st = tsr_shapes(m, NULL, 0, NULL); // outputs need a type
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n))
        for (size_t i = 0; i < tsr_node_output_count(n) && st == TSR_OK; i++) {
            tsr_value *v = tsr_node_output(n, i);
            if (v && tsr_value_dtype(v) != TSR_UNDEFINED && !tsr_value_is_output(v))
                st = tsr_graph_add_output(g, v);
        }
    return st;
}

// A copy of the model that gives everything out, in the scratch folder; its data goes along.
static tsr_status whole_values(struct work *w, tsr_tensors *out)
{
    tsr_model *m = NULL;
    struct str path = tsr__arena_printf(&w->arena, "%s/whole.onnx", w->scratch.folder);
    tsr_run_options run = w->run;
    run.trace = NULL;
    tsr_status st = path.p ? tsr_model_clone(w->model, &m) : TSR_NOMEM;
    if (st == TSR_OK)
        st = give_out(m);
    if (st == TSR_OK)
        st = tsr_model_copy_data(m, path.p);
    if (st == TSR_OK)
        st = tsr_model_save(m, path.p);
    if (st == TSR_OK)
        st = tsr_run_model(w->session, path.p, &run, w->inputs, out);
    tsr_model_free(m);
    return st;
}

static tsr_status cut_values(struct work *w, tsr_model *m, const char *config, tsr_tensors *out)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    tsr_run_options run = w->run;
    run.trace = NULL;
    tsr_status st = give_out(m);
    if (st == TSR_OK)
        st = tsr_partition(m, w->scratch.parts, &cut, NULL);
    if (st == TSR_OK)
        st = tsr_run(w->session, w->scratch.parts, &run, w->inputs, out);
    tsr__folder_remove(w->scratch.parts);
    return st;
}

// ---- whose part it is --------------------------------------------------------------------------

static bool has_element(const struct tile_piece *p, const int64_t *shape, int64_t element)
{
    for (int d = p->rank - 1; d >= 0; d--) {
        int64_t at = element % shape[d];
        bool in = false;
        for (int64_t k = 0; k < p->dims[d].n; k++)
            in = in || (at >= p->dims[d].at[k].start && at < p->dims[d].at[k].stop);
        if (!in)
            return false;
        element /= shape[d];
    }
    return true;
}

static int64_t owner_of(struct arena *a, const struct tile_layout *l, const tsr_tensors *t,
                        size_t i, int64_t element)
{
    const int64_t *shape = tsr_tensors_dims(t, i), *owners;
    if (!l || element < 0 || l->rank != tsr_tensors_rank(t, i))
        return -1;
    for (int64_t k = 0; k < l->n_shards; k++) {
        struct tile_piece *p = tsr__layout_piece(a, l, shape, k);
        if (p && has_element(p, shape, element) && tsr__layout_owners(l, k, &owners))
            return owners[0];
    }
    return -1;
}

static const struct tile_layout *layout_of(struct arena *a, tsr_model *m, const char *config,
                                           const tsr_value *v)
{
    const tsr_config *c = config ? tsr_model_find_config(m, config) : tsr_model_config(m, 0);
    const struct flow *f = c ? tsr__flow_new(a, m, c) : NULL;
    return f ? f->values[tsr__value_id(v)] : NULL;
}

// ---- the first difference ----------------------------------------------------------------------

struct found {
    tsr_node *node;
    tsr_value *value;
    size_t whole;
    int64_t cut;
    tsr_difference difference;
};

static bool find_first(const struct work *w, const tsr_model *m, const tsr_tensors *whole,
                       const tsr_tensors *cut, struct found *f)
{
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n; n = tsr_node_next(n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++) {
            tsr_value *v = tsr_node_output(n, i);
            int64_t at = v ? tsr_tensors_find(whole, tsr_value_name(v)) : -1;
            if (at < 0)
                continue;
            *f = (struct found){n, v, (size_t)at, tsr_tensors_find(cut, tsr_value_name(v)), {0}};
            f->difference = tsr__compare(whole, (size_t)at, cut, f->cut,
                                         tsr__precision_of(w, tsr_value_name(v)));
            if (!f->difference.ok)
                return true;
        }
    return false;
}

static void tell(struct work *w, const struct found *f, int64_t rank, tsr_first *out)
{
    struct arena *a = w->results;
    struct place at = tsr__place_node(f->node);
    at.value = tsr__value_str(f->value);
    at.rank = rank;
    *out = (tsr_first){.value = tsr__arena_str(a, at.value).p,
                       .node = tsr__arena_str(a, at.node).p,
                       .op = tsr__arena_str(a, at.op).p,
                       .node_index = at.node_index,
                       .rank = rank,
                       .max_rel = f->difference.max_rel};
    tsr__diag(w->session, DIAG_verify_first, &at,
              "look at the shardings of this node, and of the nodes that made its inputs",
              "this is the first value that differs, by %.3g (%.3g of the largest magnitude)",
              f->difference.max_abs, f->difference.max_rel);
}

void tsr__verify_locate(struct work *w, tsr_model *m, const char *config, tsr_first *out)
{
    tsr_tensors *whole = NULL, *cut = NULL;
    tsr_model *copy = NULL;
    struct found f;
    struct diag_mark mark = tsr__diag_mark(w->session);
    tsr_status st = tsr_tensors_new(w->session, &whole);
    if (st == TSR_OK)
        st = tsr_tensors_new(w->session, &cut);
    if (st == TSR_OK)
        st = tsr_model_clone(m, &copy);
    if (st == TSR_OK)
        st = whole_values(w, whole);
    if (st == TSR_OK)
        st = cut_values(w, copy, config, cut);
    if (st == TSR_OK && find_first(w, copy, whole, cut, &f)) {
        const struct tile_layout *l = layout_of(&w->arena, copy, config, f.value);
        int64_t worst = tsr__compare_worst(whole, f.whole, cut, f.cut);
        int64_t rank = owner_of(&w->arena, l, whole, f.whole, worst);
        tsr__diag_back(w->session, &mark, false);
        tell(w, &f, rank, out);
    } else {
        tsr__diag_back(w->session, &mark, false); // the difference itself has been told
    }
    tsr_model_free(copy);
    tsr_tensors_free(cut);
    tsr_tensors_free(whole);
}
