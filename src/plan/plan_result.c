// SPDX-License-Identifier: Apache-2.0
// plan_result.c - creates the handle of a plan's result, and returns its data to callers.
#include "plan/plan.h"

// Copies the names in the summary. They may belong to the model, which can be freed before the
// result.
static tsr_status own_names(struct arena *memory, tsr_plan_summary *summary)
{
    tsr_plan_binding *binding = ARENA_ARRAY(memory, tsr_plan_binding, summary->n_binding);
    for (size_t i = 0; binding && i < summary->n_binding; i++) {
        binding[i] = summary->binding[i];
        binding[i].value = tsr__arena_str(memory, str_of(binding[i].value)).p;
    }
    summary->binding = binding;
    if (summary->config)
        summary->config = tsr__arena_str(memory, str_of(summary->config)).p;
    return arena_status(memory);
}

tsr_status tsr__plan_result(tsr_session *session, tsr_status st, const tsr_plan_summary *summary,
                            tsr_plan_result **out)
{
    if (!out || (st != TSR_OK && st != TSR_INFEASIBLE))
        return st;
    tsr_plan_result *result = tsr__result_take(session, RESULT_PLAN, sizeof *result);
    if (!result)
        return TSR_NOMEM;
    result->summary = *summary;
    tsr_status owned = own_names(result->head.memory, &result->summary);
    if (owned != TSR_OK) {
        tsr_plan_result_free(result);
        return owned;
    }
    *out = result;
    return st;
}

tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options, tsr_plan_result **out)
{
    tsr_plan_summary summary = {.size = sizeof summary};
    tsr_status st = tsr__plan(model, options, &summary);
    return tsr__plan_result(tsr_model_session(model), st, &summary, out);
}

void tsr_plan_result_free(tsr_plan_result *result)
{
    tsr__result_free(result);
}

tsr_status tsr_plan_result_about(const tsr_plan_result *result, tsr_plan_facts *out)
{
    const tsr_plan_summary *from = &result->summary;
    TRY(RESULT_CHECK(result->head.session, out, n_counts));
    tsr_plan_facts facts = {
        .devices = from->devices,
        .feasible = from->feasible,
        .optimal = from->optimal,
        .undecided = from->undecided,
        .stopped = from->stopped,
        .assumed = from->assumed,
        .config = from->config,
        .cost = from->cost,
        .bound = from->bound,
        .gap = from->gap,
        .solve_ms = from->solve_ms,
        .milliseconds = from->milliseconds,
        .one_device = from->one_device,
        .memory = from->memory,
        .peak = from->peak,
        .nodes = from->nodes,
        .cut_nodes = from->cut_nodes,
        .used_devices = from->used_devices,
        .copies = from->copies,
        .objective = from->objective,
        .latency = from->latency,
        .period = from->period,
        .needs_bytes = from->needs_bytes,
        .fits_devices = from->fits_devices,
        .better_devices = from->better_devices,
        .better_cost = from->better_cost,
        .n_collectives = from->n_collectives,
        .n_stages = from->n_stages,
        .n_bindings = from->n_binding,
        .n_counts = from->n_tried,
        .n_compared = from->n_compared + from->n_rejected,
        .n_choices = from->n_choices,
        .device_flops = from->device_flops,
    };
    tsr__result_write(out, &facts, sizeof facts);
    return TSR_OK;
}

tsr_status tsr_plan_result_collective(const tsr_plan_result *result, size_t i,
                                      tsr_collective_count *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(result->head.session,
                             SIZED_LIST(from->collectives, from->n_collectives, count), i, out);
}

tsr_status tsr_plan_result_stage(const tsr_plan_result *result, size_t i, tsr_plan_stage *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(result->head.session, SIZED_LIST(from->stages, from->n_stages, memory),
                             i, out);
}

tsr_status tsr_plan_result_binding(const tsr_plan_result *result, size_t i, tsr_plan_binding *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(result->head.session,
                             SIZED_LIST(from->binding, from->n_binding, bytes), i, out);
}

tsr_status tsr_plan_result_count(const tsr_plan_result *result, size_t i, tsr_plan_count *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(result->head.session, SIZED_LIST(from->tried, from->n_tried, cost), i,
                             out);
}

tsr_status tsr_plan_result_compared(const tsr_plan_result *result, size_t i, tsr_plan_expert *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(
        result->head.session,
        SIZED_LIST(from->compared, from->n_compared + from->n_rejected, reason), i, out);
}

tsr_status tsr_plan_result_choice(const tsr_plan_result *result, size_t i, tsr_plan_choice *out)
{
    const tsr_plan_summary *from = &result->summary;
    return tsr__element_read(result->head.session,
                             SIZED_LIST(from->choices, from->n_choices, n_outputs), i, out);
}

const tsr_plan_part *tsr_plan_result_parts(const tsr_plan_result *result, size_t *n, size_t *shared)
{
    *n = result->summary.n_parts;
    *shared = result->summary.shared;
    return result->summary.parts;
}
