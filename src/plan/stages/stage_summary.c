// SPDX-License-Identifier: Apache-2.0
// stage_summary.c - reads from the program of a pipeline (pipeline_program.c): the cost and bound
// of the plan, the reason if no plan fits, and the costs of a node's candidates.
//
// Transfers are charged to both sides: a rank computes nothing while it sends or receives
// (ARCHITECTURE.md, rules of the code; tests/e2e/overlap.py checks it in traces). Stages overlap,
// each with another run.
#include "plan/stages/stages.h"

int64_t tsr__stages_common(const struct staging *staging)
{
    int64_t run[PLAN_MAX_MODELS] = {staging->common, staging->other ? staging->other->common : 0};
    return tsr__models_time(staging->models, run);
}

// Returns a lower bound that holds even if ranges were skipped. It is the time of the nodes in
// stages on the slowest device, divided by the speeds of all devices relative to that device.
static int64_t shared_out(const struct staging *staging)
{
    int64_t run[PLAN_MAX_MODELS] = {0};
    for (size_t m = 0; m < staging->models->n; m++) {
        const struct staging *model = tsr__staging_of(staging, m);
        double work = 0;
        for (size_t i = 0; i < model->planner->n_nodes; i++)
            if (model->staged[tsr__node_id(model->planner->nodes[i].node)])
                work += (double)model->times[i];
        run[m] = (int64_t)(work / tsr__planner_speeds(model->planner));
    }
    return tsr__models_time(staging->models, run);
}

void tsr__stages_bound(const struct staging *staging, const struct pipeline *pipeline,
                       struct program_result *out)
{
    int64_t common = tsr__stages_common(staging);
    int64_t least = staging->least ? staging->least : shared_out(staging);
    out->cost = pipeline->answer.cost + common;
    tsr__plan_settle(out, least + common);
}

// The search with memory as measure finds the pipeline whose fullest device needs the least.
tsr_status tsr__stages_refuse(const struct plan *plan, tsr_plan_result *out)
{
    struct stages_plan *found = plan->stages;
    struct pipeline_program setup;
    struct pipeline pipeline;
    TRY(tsr__stages_search(&found->staging, &found->options, MEASURE_MEMORY, &pipeline));
    if (!pipeline.n)
        return tsr__plan_refuse(plan, plan->models, &found->options, out);
    tsr_status st = TSR_NOMEM;
    if (tsr__pipeline_program_begin(&setup, &found->staging, &pipeline, true))
        st = tsr__plan_refuse(plan, &setup.models, &found->options, out);
    tsr__pipeline_program_end(&setup);
    return st;
}

// Explains a node outside of stages: every device runs it, and there is no other candidate.
static tsr_status explain_common(const struct staging *staging, const struct plan_node *node,
                                 tsr_plan_result *out)
{
    struct arena *arena = &staging->planner->session->results[RESULT_PLAN];
    tsr_plan_choice *only = ARENA_NEW(arena, tsr_plan_choice);
    if (!only)
        return TSR_NOMEM;
    *only = (tsr_plan_choice){.name = "replicated in every stage",
                              .chosen = true,
                              .feasible = true,
                              .cost = out->facts.cost,
                              .compute = staging->times[node - staging->planner->nodes]};
    out->choices = only;
    out->facts.n_choices = 1;
    return TSR_OK;
}

// Explains a node in the program of the pipeline.
static tsr_status explain_staged(struct staging *staging, const struct pipeline *pipeline,
                                 const char *name, tsr_plan_result *out)
{
    struct pipeline_program setup;
    struct planner *planner = staging->planner;
    tsr_status st = TSR_NOMEM;
    if (tsr__pipeline_program_begin(&setup, staging, pipeline, true)) {
        for (size_t i = 0; i < planner->n_nodes; i++)
            planner->nodes[i].choice = pipeline->answer.choice[0][i];
        st = tsr__plan_explain(&setup.models, tsr__stages_common(staging), name, out);
    }
    if (st == TSR_OK && out->facts.objective == TSR_THROUGHPUT)
        st = tsr__throughput_explain(&setup, name, out);
    tsr__pipeline_program_end(&setup);
    return st;
}

// Explains a node with unchanged stages: only the node's candidate varies.
tsr_status tsr__stages_explain(const struct plan *plan, const char *name, tsr_plan_result *out)
{
    struct staging *staging = &plan->stages->staging;
    const struct plan_node *common = NULL;
    if (!tsr__planner_find(staging->planner, name))
        common = tsr__planner_find_common(staging->planner, staging->staged, name);
    if (common)
        return explain_common(staging, common, out);
    return explain_staged(staging, &plan->stages->pipeline, name, out);
}
