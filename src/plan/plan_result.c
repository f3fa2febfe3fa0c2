// SPDX-License-Identifier: Apache-2.0
// plan_result.c - creates the handle of a plan's result, and returns its data to callers.
#include "plan/plan.h"

// Copies the names in the plan. They may belong to the model, which can be freed before the result.
static tsr_status own_names(tsr_plan_result *plan)
{
    struct arena *memory = plan->head.memory;
    size_t n = plan->facts.n_bindings;
    tsr_plan_binding *bindings = ARENA_ARRAY(memory, tsr_plan_binding, n);
    for (size_t i = 0; bindings && i < n; i++) {
        bindings[i] = plan->bindings[i];
        bindings[i].value = tsr__arena_str(memory, str_of(bindings[i].value)).p;
    }
    plan->bindings = bindings;
    if (plan->facts.config)
        plan->facts.config = tsr__arena_str(memory, str_of(plan->facts.config)).p;
    return arena_status(memory);
}

tsr_status tsr__plan_result(tsr_session *session, tsr_status st, const tsr_plan_result *plan,
                            tsr_plan_result **out)
{
    if (!out || (st != TSR_OK && st != TSR_INFEASIBLE))
        return st;
    tsr_plan_result *result = tsr__result_take(session, RESULT_PLAN, sizeof *result);
    if (!result)
        return TSR_NOMEM;
    struct result_head head = result->head;
    *result = *plan;
    result->head = head;
    tsr_status owned = own_names(result);
    if (owned != TSR_OK) {
        tsr_plan_result_free(result);
        return owned;
    }
    *out = result;
    return st;
}

tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options, tsr_plan_result **out)
{
    tsr_plan_result plan = {0};
    tsr_status st = tsr__plan(model, options, &plan);
    return tsr__plan_result(tsr_model_session(model), st, &plan, out);
}

void tsr_plan_result_free(tsr_plan_result *result)
{
    tsr__result_free(result);
}

tsr_status tsr_plan_result_about(const tsr_plan_result *result, tsr_plan_facts *out)
{
    TRY(RESULT_CHECK(result->head.session, out, n_counts));
    tsr__result_write(out, &result->facts, sizeof result->facts);
    return TSR_OK;
}

// Defines tsr_plan_result_WHAT: reads element i of a list. `last` is the last field of the first
// version of its struct.
#define DEFINE_READER(what, type, list, last)                                                      \
    tsr_status tsr_plan_result_##what(const tsr_plan_result *result, size_t i, type *out)          \
    {                                                                                              \
        return tsr__element_read(result->head.session,                                             \
                                 SIZED_LIST(result->list, result->facts.n_##list, last), i, out);  \
    }
DEFINE_READER(collective, tsr_collective_count, collectives, count)
DEFINE_READER(stage, tsr_plan_stage, stages, memory)
DEFINE_READER(binding, tsr_plan_binding, bindings, bytes)
DEFINE_READER(count, tsr_plan_count, counts, cost)
DEFINE_READER(compared, tsr_plan_expert, compared, reason)
DEFINE_READER(choice, tsr_plan_choice, choices, n_outputs)

const tsr_plan_part *tsr_plan_result_parts(const tsr_plan_result *result, size_t *n, size_t *shared)
{
    *n = result->n_parts;
    *shared = result->shared;
    return result->parts;
}
