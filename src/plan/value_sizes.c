// SPDX-License-Identifier: Apache-2.0
// value_sizes.c - sizes in numbers for every value: prices need them, shardings do not.
//
// Symbols that the caller gives no size count PLAN_USUAL_SIZE; what can only be known at run time counts 1.
#include "plan/internal.h"

static bool fill(struct planner *planner, const tsr_value *value)
{
    struct plan_value *out = &planner->values[tsr__value_id(value)];
    struct shape s = tsr__shapes_of(planner->shapes.full, value);
    const tsr_tensor *tensor = tsr_value_initializer(value);
    int rank = s.rank < 0 || s.rank > TILE_MAX_RANK ? 0 : s.rank;
    int64_t *shape = ARENA_ARRAY(&planner->arena, int64_t, (size_t)rank + 1);
    if (!shape)
        return false;
    struct shape own = tsr__shapes_of(planner->shapes.model, value);
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
    out->constant = tensor && !tsr_value_is_input(value);
    out->given = tsr_value_is_input(value);
    return true;
}

// Symbols of the inputs that have no size yet get the usual one.
static size_t complete(struct planner *planner, const tsr_dim_size *sizes, size_t n,
                       tsr_dim_size **out)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    VEC(tsr_dim_size) all = {0};
    for (size_t i = 0; i < n; i++) {
        tsr_dim_size *at = vec_push(&planner->arena, &all);
        if (at)
            *at = sizes[i];
    }
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int d = 0; d < tsr_value_rank(value); d++) {
            tsr_dim dim = tsr_value_dim(value, d);
            bool known = dim.value >= 0 || !dim.symbol || !dim.symbol[0];
            for (size_t k = 0; k < all.n && !known; k++)
                known = strcmp(all.at[k].name, dim.symbol) == 0;
            tsr_dim_size *at = known ? NULL : vec_push(&planner->arena, &all);
            if (at)
                *at = (tsr_dim_size){dim.symbol, PLAN_USUAL_SIZE};
        }
    }
    *out = all.at;
    return all.n;
}

// One factor of a dimension whose other factors are known.
static void size_of_dim(const struct rule_dim *dim, int64_t whole, int64_t *sizes)
{
    int open = -1, n_open = 0;
    int64_t known = 1;
    for (int k = 0; k < dim->n; k++) {
        int64_t size = sizes[dim->factors[k]];
        if (size < 0) {
            open = dim->factors[k];
            n_open++;
        } else if (!mul_ok(known, size, &known)) {
            return;
        }
    }
    if (n_open == 1 && known > 0 && whole >= 0 && whole % known == 0)
        sizes[open] = whole / known;
}

static void sizes_of_side(const struct shapes *shapes, const tsr_node *node,
                          const struct rule *rule, bool out, int64_t *sizes)
{
    for (int i = 0; i < (out ? rule->n_outputs : rule->n_inputs); i++) {
        const struct rule_tensor *tensor = &(out ? rule->outputs : rule->inputs)[i];
        const tsr_value *value =
            out ? tsr_node_output(node, (size_t)i) : tsr_node_input(node, (size_t)i);
        if (!value || tensor->host || tensor->absent)
            continue;
        struct shape shape = tsr__shapes_of(shapes, value);
        for (int d = 0; d < tensor->rank && shape.rank == tensor->rank; d++)
            if (!tensor->dims[d].window)
                size_of_dim(&tensor->dims[d], shape.dims[d].value, sizes);
    }
}

void tsr__planner_sizes(const struct shapes *shapes, const tsr_node *node, const struct rule *rule,
                        int64_t *sizes)
{
    for (int factor = 0; factor < rule->n_factors; factor++)
        sizes[factor] = rule->factors[factor].size.value;
    for (int round = 0; round < 2; round++) {
        sizes_of_side(shapes, node, rule, false, sizes);
        sizes_of_side(shapes, node, rule, true, sizes);
    }
}

bool tsr__planner_values(struct planner *planner, const tsr_dim_size *sizes, size_t n)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    tsr_dim_size *all = NULL;
    size_t n_all = complete(planner, sizes, n, &all);
    planner->shapes.model = tsr__shapes_new(&planner->arena, planner->model);
    if (n && planner->shapes.model)
        planner->shapes.told = tsr__shapes_bound(&planner->arena, planner->model, sizes, n, false);
    else
        planner->shapes.told = planner->shapes.model;
    if (n_all == n)
        planner->shapes.full = planner->shapes.told;
    else
        planner->shapes.full =
            planner->shapes.told
                ? tsr__shapes_bound(&planner->arena, planner->model, all, n_all, false)
                : NULL;
    planner->values =
        ARENA_ARRAY(&planner->arena, struct plan_value, tsr__model_value_ids(planner->model) + 1);
    bool ok = planner->shapes.full && planner->values;
    for (size_t i = 0; ok && i < tsr_graph_input_count(graph); i++)
        ok = fill(planner, tsr_graph_input(graph, i));
    for (size_t i = 0; ok && i < tsr_graph_initializer_count(graph); i++)
        ok = fill(planner, tsr_graph_initializer(graph, i));
    for (const tsr_node *node = tsr_graph_first(graph); ok && node; node = tsr_node_next(node))
        for (size_t i = 0; ok && i < tsr_node_output_count(node); i++)
            ok = !tsr_node_output(node, i) || fill(planner, tsr_node_output(node, i));
    return ok;
}
