// SPDX-License-Identifier: Apache-2.0
// stage_summary.c - cost and bound of a plan in stages, and costs of a node's candidates.
//
// Example: three stages on four devices, in the order 3 2 1 0. Times are in ms; a transfer is what
// a stage receives:
//
//     stage       0             1            2
//     devices     3             2            0 1
//     time        4             5            3
//     transfer    0             1            1        (outputs are on device 0 already)
//
// The cost for latency is 4 + (1 + 5) + (1 + 3) = 14. For throughput it is the time of the busiest
// stage, with receiving and sending: stage 1 with 1 + 5 + 1 = 7. If stage 2 read a value of stage 0
// directly, stage 0 would also wait until stage 1 is done: 4 + 1 + 5 = 10. These costs apply if
// each stage was solved by itself (two models, or no time left); otherwise the cost is that of all
// stages together (pipeline_program.c, throughput.c). Reported latency, period and stage times come
// from played_time.c, where shards are sent instead of full values.
//
// Transfers are charged to both sides: a rank computes nothing while it sends or receives
// (ARCHITECTURE.md, rules of the code; tests/e2e/overlap.py checks it in traces). Stages overlap,
// each with another run.
#include "plan/stages/stages.h"

// ---- times --------------------------------------------------------------------------------------

// Sums time and transfers of the stages from `from` to `to`, both included.
static int64_t sum_of(const tsr_plan_stage *at, size_t from, size_t to)
{
    int64_t sum = 0;
    for (size_t k = from; k <= to; k++)
        sum += at[k].time + at[k].transfer;
    return sum;
}

// Returns the stage of a node.
static size_t stage_of(const struct staging *staging, const struct pipeline *pipeline, size_t node)
{
    size_t k = 0;
    while (k + 1 < pipeline->n && staging->cut[pipeline->at[k].end] <= node)
        k++;
    return k;
}

// Returns the time that stage k is busy with one run, including receiving and sending. The time is
// longer if the stage reads a value of a stage before the previous one.
static int64_t busy_time(struct staging *staging, const struct pipeline *pipeline,
                         const tsr_plan_stage *at, size_t k)
{
    const struct range *range =
        tsr__stages_range(staging, pipeline->at[k].begin, pipeline->at[k].end);
    int64_t own = sum_of(at, k, k);
    if (k + 1 < pipeline->n)
        own += at[k + 1].transfer;
    int64_t waiting = own;
    // The stage reads from a stage before its predecessor: the producer waits until all stages
    // before this one are done.
    if (range && range->n_in) {
        size_t from = stage_of(staging, pipeline, range->earliest);
        if (from + 1 < k)
            waiting = sum_of(at, from, k - 1);
    }
    return int64_max(own, waiting);
}

// Returns the period of runs: the time of the busiest stage.
static int64_t period_of(struct staging *staging, const struct pipeline *pipeline,
                         const tsr_plan_stage *at)
{
    int64_t most = 0;
    for (size_t k = 0; k < pipeline->n; k++)
        most = int64_max(most, busy_time(staging, pipeline, at, k));
    return most;
}

// Computes time and transfers of each stage, of all runs of all models.
static void add_runs(const struct staging *staging, const struct pipeline *pipeline,
                     tsr_plan_stage *at)
{
    for (size_t k = 0; k < pipeline->n; k++) {
        const struct stage *stage = &pipeline->at[k];
        at[k] = (tsr_plan_stage){.time = stage->point.time};
        at[k].transfer = tsr__models_time(staging->models, stage->transfer);
    }
}

// Returns the time of the nodes in no stage, of all runs.
static int64_t common_time(const struct staging *staging)
{
    int64_t run[PLAN_MAX_MODELS] = {staging->common, staging->other ? staging->other->common : 0};
    return tsr__models_time(staging->models, run);
}

// Returns the cost by the objective. The period of two models is that of the stage that is busiest
// with both.
static int64_t cost_of(struct staging *staging, const struct pipeline *pipeline,
                       const tsr_plan_stage *at, tsr_objective objective)
{
    int64_t common = common_time(staging);
    if (objective != TSR_THROUGHPUT)
        return common + sum_of(at, 0, pipeline->n - 1);
    int64_t period = period_of(staging, pipeline, at);
    if (staging->other)
        period = int64_max(period, period_of(staging->other, pipeline, at));
    return common + period;
}

// ---- the answer ---------------------------------------------------------------------------------

// Returns a lower bound that holds even if ranges were skipped. It is the time of the nodes in
// stages on the slowest device, divided by the speeds of all devices relative to that device.
static int64_t shared_out(const struct staging *staging)
{
    const struct planner *planner = staging->planner;
    double work = 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (staging->staged[tsr__node_id(planner->nodes[i].node)])
            work += (double)staging->times[i];
    return (int64_t)(work / tsr__planner_speeds(planner));
}

// Finds a lower bound of all pipelines by a search with MEASURE_BOUND. If ranges were skipped for
// lack of time, uses shared_out instead.
static tsr_status find_bound(struct staging *staging, const tsr_plan_options *options,
                             int64_t *bound)
{
    struct pipeline proved = {0};
    tsr_status st = TSR_OK;
    if (!staging->hasty)
        st = tsr__stages_search(staging, options, MEASURE_BOUND, &proved);
    *bound = options->objective == TSR_THROUGHPUT ? proved.most : proved.sum;
    if (!staging->hasty)
        return st;
    int64_t run[PLAN_MAX_MODELS] = {shared_out(staging)};
    if (staging->other)
        run[1] = shared_out(staging->other);
    *bound = tsr__models_time(staging->models, run);
    return st;
}

// Fills in cost and bound. If all stages were solved together (pipeline->answer), the cost is that
// of this solution, and the bound is staging->least if there is one.
tsr_status tsr__stages_bound(struct staging *staging, const struct pipeline *pipeline,
                             const tsr_plan_options *options, struct program_result *out)
{
    tsr_plan_stage at[STAGES_MOST];
    int64_t least = 0;
    if (!pipeline->answer.feasible)
        TRY(find_bound(staging, options, &least));
    add_runs(staging, pipeline, at);
    out->cost = cost_of(staging, pipeline, at, options->objective);
    if (pipeline->answer.feasible) {
        out->cost = pipeline->answer.cost + staging->common;
        least = staging->least;
        if (!least)
            least = shared_out(staging);
    }
    tsr__plan_settle(out, least + common_time(staging));
    return TSR_OK;
}

// Rewrites the shardings of the summary's choices: device numbers of the stage become those of the
// topology.
static tsr_status name_devices(struct planner *planner, const struct stage *stage, const char *name,
                               tsr_plan_result *out)
{
    const struct plan_node *node = tsr__planner_find(&stage->kind->planner, name);
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->facts.n_choices; i++) {
        struct candidate candidate;
        if (!tsr__stages_candidate(planner, stage, node, i, &candidate) ||
            !tsr__choice_tensors(planner, node, &candidate, &list[i]))
            return TSR_NOMEM;
    }
    return TSR_OK;
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

// Explains a node with unchanged stages: only the node's candidate varies.
tsr_status tsr__stages_explain(const struct plan *plan, const char *name, tsr_plan_result *out)
{
    struct staging *staging = &plan->stages->staging;
    const struct pipeline *pipeline = &plan->stages->pipeline;
    const struct plan_node *node = tsr__planner_find(staging->planner, name);
    size_t k = 0;
    if (node) {
        k = stage_of(staging, pipeline, (size_t)(node - staging->planner->nodes));
    } else {
        const struct plan_node *common =
            tsr__planner_find_common(staging->planner, staging->staged, name);
        if (common)
            return explain_common(staging, common, out);
    }
    const struct stage *stage = &pipeline->at[k];
    if (pipeline->answer.feasible) {
        tsr_status st = tsr__pipeline_explain(staging, pipeline, name, out);
        if (st != TSR_OK || out->facts.objective != TSR_THROUGHPUT)
            return st;
        return tsr__throughput_explain(staging, pipeline, name, out);
    }
    TRY(tsr__range_explain(staging, stage, name, out));
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    tsr_plan_stage at[STAGES_MOST];
    add_runs(staging, pipeline, at);
    for (size_t i = 0; i < out->facts.n_choices; i++) {
        at[k].time = list[i].cost;
        list[i].cost = list[i].feasible ? cost_of(staging, pipeline, at, out->facts.objective) : 0;
    }
    return name_devices(staging->planner, stage, name, out);
}
