// SPDX-License-Identifier: Apache-2.0
// planned.c - tsr_plan_for_inputs: plans a model for the sizes of given inputs.
//
// Example: the model's input is [batch, seq] and the given input [4, 128]: batch=4 and seq=128 are
// added to the sizes, unless the caller has given others. This file is not in src/plan, because
// that module does not use tensors with values. Random inputs have sizes that nobody gave; they are
// not added, so that the plan is that of `tessera plan` (src/verify/run_inputs.c).
#include "api/api.h"
#include "plan/plan.h"
#include "tensors/tensors.h"

struct sizes {
    struct arena *arena;
    VEC(tsr_dim_size) at;
};

// Adds the size of a dimension unless it already has one. The caller's sizes are added before those
// of the inputs, so they win.
static void add_size(struct sizes *sizes, const char *name, int64_t size)
{
    for (size_t i = 0; i < sizes->at.n; i++)
        if (strcmp(sizes->at.at[i].name, name) == 0)
            return;
    vec_add(sizes->arena, &sizes->at, (tsr_dim_size){name, size});
}

// Adds the sizes of the named dimensions of the inputs. Inputs that are missing, or have another
// rank than in the model, are skipped: running refuses them later. A dimension of size 0 stays
// unknown and is not sharded.
static void add_sizes(struct sizes *sizes, const tsr_model *model, const tsr_tensors *inputs)
{
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        int64_t k = tsr_tensors_find(inputs, tsr_value_name(value));
        if (k < 0 || tsr_tensors_rank(inputs, (size_t)k) != tsr_value_rank(value))
            continue;
        for (int axis = 0; axis < tsr_value_rank(value); axis++) {
            const char *name = tsr_value_dim_name(value, axis);
            int64_t size = tsr_tensors_dims(inputs, (size_t)k)[axis];
            if (name && size > 0)
                add_size(sizes, name, size);
        }
    }
}

bool tsr__input_sizes(struct arena *arena, const tsr_model *model, const tsr_tensors *inputs,
                      tsr_dim_size **out, size_t *n)
{
    struct sizes sizes = {.arena = arena};
    add_sizes(&sizes, model, inputs);
    *out = sizes.at.at;
    *n = sizes.at.n;
    return !arena->failed;
}

tsr_status tsr_plan_for_sizes(tsr_model *model, const tsr_plan_options *options,
                              const tsr_dim_size *more, size_t n, tsr_plan_result **out)
{
    TRY(tsr__given(tsr_model_session(model), "options", options));
    tsr_plan_options plan_options;
    TRY(OPTIONS_READ(tsr_model_session(model), &plan_options, options, seconds));
    struct arena arena = {.session = tsr_model_session(model)};
    struct sizes sizes = {.arena = &arena};
    for (size_t i = 0; i < plan_options.n_sizes; i++)
        add_size(&sizes, plan_options.sizes[i].name, plan_options.sizes[i].size);
    for (size_t i = 0; i < n; i++)
        add_size(&sizes, more[i].name, more[i].size);
    plan_options.sizes = sizes.at.at;
    plan_options.n_sizes = sizes.at.n;
    tsr_status st = arena.failed ? TSR_NOMEM : tsr_plan(model, &plan_options, out);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr_plan_for_inputs(tsr_model *model, const tsr_plan_options *options,
                               const tsr_tensors *inputs, tsr_plan_result **out)
{
    struct arena arena = {.session = tsr_model_session(model)};
    tsr_dim_size *sizes = NULL;
    size_t n = 0;
    TRY(tsr__tensors_owned(tsr_model_session(model), inputs));
    tsr_status st = TSR_NOMEM;
    if (tsr__input_sizes(&arena, model, inputs, &sizes, &n))
        st = tsr_plan_for_sizes(model, options, sizes, n, out);
    tsr__arena_free(&arena);
    return st;
}
