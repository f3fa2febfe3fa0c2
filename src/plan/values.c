// SPDX-License-Identifier: Apache-2.0
// values.c - sizes in numbers for every value: prices need them, shardings do not.
//
// Symbols that the caller gives no size count PLAN_USUAL_SIZE; what can only be known at run time counts 1.
#include "plan/internal.h"

static bool fill(struct planner *p, const tsr_value *v)
{
    struct plan_value *out = &p->values[tsr__value_id(v)];
    struct shape s = tsr__shapes_of(p->sized, v);
    const tsr_tensor *t = tsr_value_initializer(v);
    int rank = s.rank < 0 || s.rank > TILE_MAX_RANK ? 0 : s.rank;
    int64_t *shape = ARENA_ARRAY(&p->arena, int64_t, (size_t)rank + 1);
    if (!shape)
        return false;
    struct shape own = tsr__shapes_of(p->shapes, v);
    out->sized = s.rank >= 0;
    out->fixed = own.rank >= 0;
    for (int d = 0; d < own.rank; d++)
        out->fixed = out->fixed && own.dims[d].value >= 0;
    for (int d = 0; d < rank; d++) {
        out->sized = out->sized && s.dims[d].value >= 0;
        shape[d] = s.dims[d].value >= 0 ? s.dims[d].value : 1;
    }
    out->rank = rank;
    out->shape = shape;
    out->bits = tsr_dtype_bits(s.dtype) ? tsr_dtype_bits(s.dtype) : 8;
    out->constant = t && !tsr_value_is_input(v);
    out->given = tsr_value_is_input(v);
    return true;
}

// Symbols of the inputs that have no size yet get the usual one.
static size_t complete(struct planner *p, const tsr_size *sizes, size_t n, tsr_size **out)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    VEC(tsr_size) all = {0};
    for (size_t i = 0; i < n; i++) {
        tsr_size *at = vec_push(&p->arena, &all);
        if (at)
            *at = sizes[i];
    }
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        for (int d = 0; d < tsr_value_rank(v); d++) {
            tsr_dim dim = tsr_value_dim(v, d);
            bool known = dim.value >= 0 || !dim.symbol || !dim.symbol[0];
            for (size_t k = 0; k < all.n && !known; k++)
                known = strcmp(all.at[k].name, dim.symbol) == 0;
            tsr_size *at = known ? NULL : vec_push(&p->arena, &all);
            if (at)
                *at = (tsr_size){dim.symbol, PLAN_USUAL_SIZE};
        }
    }
    *out = all.at;
    return all.n;
}

// One factor of a dimension whose other factors are known.
static void size_of_dim(const struct rule_dim *d, int64_t whole, int64_t *sizes)
{
    int open = -1, n_open = 0;
    int64_t known = 1;
    for (int k = 0; k < d->n; k++) {
        int64_t size = sizes[d->factors[k]];
        if (size < 0) {
            open = d->factors[k];
            n_open++;
        } else if (!mul_ok(known, size, &known)) {
            return;
        }
    }
    if (n_open == 1 && known > 0 && whole >= 0 && whole % known == 0)
        sizes[open] = whole / known;
}

static void sizes_of_side(const struct shapes *s, const tsr_node *n, const struct rule *r, bool out,
                          int64_t *sizes)
{
    for (int i = 0; i < (out ? r->n_outputs : r->n_inputs); i++) {
        const struct rule_tensor *t = &(out ? r->outputs : r->inputs)[i];
        const tsr_value *v = out ? tsr_node_output(n, (size_t)i) : tsr_node_input(n, (size_t)i);
        if (!v || t->host || t->absent)
            continue;
        struct shape shape = tsr__shapes_of(s, v);
        for (int d = 0; d < t->rank && shape.rank == t->rank; d++)
            if (!t->dims[d].window)
                size_of_dim(&t->dims[d], shape.dims[d].value, sizes);
    }
}

void tsr__planner_sizes(const struct shapes *s, const tsr_node *n, const struct rule *r,
                        int64_t *sizes)
{
    for (int f = 0; f < r->n_factors; f++)
        sizes[f] = r->factors[f].size.value;
    for (int round = 0; round < 2; round++) {
        sizes_of_side(s, n, r, false, sizes);
        sizes_of_side(s, n, r, true, sizes);
    }
}

bool tsr__planner_values(struct planner *p, const tsr_size *sizes, size_t n)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    tsr_size *all = NULL;
    size_t n_all = complete(p, sizes, n, &all);
    p->shapes = tsr__shapes_new(&p->arena, p->model);
    p->told = n && p->shapes ? tsr__shapes_bound(&p->arena, p->model, sizes, n, false) : p->shapes;
    if (n_all == n)
        p->sized = p->told;
    else
        p->sized = p->told ? tsr__shapes_bound(&p->arena, p->model, all, n_all, false) : NULL;
    p->values = ARENA_ARRAY(&p->arena, struct plan_value, tsr__model_value_ids(p->model) + 1);
    bool ok = p->sized && p->values;
    for (size_t i = 0; ok && i < tsr_graph_input_count(g); i++)
        ok = fill(p, tsr_graph_input(g, i));
    for (size_t i = 0; ok && i < tsr_graph_initializer_count(g); i++)
        ok = fill(p, tsr_graph_initializer(g, i));
    for (const tsr_node *node = tsr_graph_first(g); ok && node; node = tsr_node_next(node))
        for (size_t i = 0; ok && i < tsr_node_output_count(node); i++)
            ok = !tsr_node_output(node, i) || fill(p, tsr_node_output(node, i));
    return ok;
}
