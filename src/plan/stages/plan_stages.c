// SPDX-License-Identifier: Apache-2.0
// plan_stages.c - plans pipeline stages: finds split points and stages, and plans each stage on its
// devices. Then converts the result to the device numbers of the topology, so that the code that
// writes and counts shardings need not know about stages.
#include "plan/stages/stages.h"

#define PIPELINE "pipeline of hosts, tensor parallel inside" // name of an expert's plan

// ---- from the devices of a block to those of the topology --------------------------------------

// Makes the chosen candidate of each node of the stage the only one in the planner of all devices.
static bool take_stage(struct planner *planner, const struct stage *stage)
{
    const struct planner *own = &stage->kind->planner;
    for (size_t i = 0; i < own->n_nodes; i++) {
        const struct plan_node *node = &own->nodes[i];
        if (!node->strategy)
            continue;
        struct candidate *only = tsr__candidate_only(planner, stage->kind->begin + i, node);
        if (!only || !tsr__stages_candidate(planner, stage, node, node->choice, only))
            return false;
    }
    return true;
}

// Adds the memory of the stage's devices.
static bool add_memory(struct stages_plan *found, const struct stage *stage)
{
    struct planner *planners[PLAN_MAX_MODELS] = {&stage->kind->planner};
    struct device_set set = {.devices = stage->devices, .n = (int64_t)stage->n, .copies = 1};
    struct models block;
    if (stage->kind->other)
        planners[1] = &stage->kind->other->planner;
    tsr__models_with(found->plan->models, planners, &block);
    return tsr__plan_add_memory(found->plan, &set, &block);
}

// Makes the chosen candidates of every stage the only ones in the planners of all devices, and
// computes the memory.
static bool take_pipeline(struct stages_plan *found)
{
    const struct pipeline *pipeline = &found->pipeline;
    for (size_t k = 0; k < pipeline->n; k++) {
        for (size_t m = 0; m < found->plan->models->n; m++) {
            struct staging *staging = tsr__staging_of(&found->staging, m);
            struct stage stage = pipeline->at[k];
            stage.kind = m ? stage.kind->other : stage.kind;
            tsr__range_choose(staging, &stage, pipeline->answer.choice[m]);
            if (!take_stage(staging->planner, &stage))
                return false;
        }
        if (!add_memory(found, &pipeline->at[k]))
            return false;
    }
    return true;
}

void tsr__pipeline_ranges(const struct staging *staging, const struct pipeline *pipeline,
                          struct plan_range *out)
{
    for (size_t k = 0; k < pipeline->n; k++) {
        const struct stage *stage = &pipeline->at[k];
        out[k] = (struct plan_range){staging->cut[stage->end], stage->devices, stage->n};
    }
}

// Sets the ranges of model m, and their predicted times.
static bool play_model(struct stages_plan *found, size_t m)
{
    struct staging *staging = tsr__staging_of(&found->staging, m);
    struct planner *planner = staging->planner;
    struct played_plan *played = &found->plan->played[m];
    size_t n = found->pipeline.n;
    struct plan_range *ranges = ARENA_ARRAY(&planner->arena, struct plan_range, n);
    played->time = ARENA_ARRAY(&planner->arena, int64_t, n);
    played->transfer = ARENA_ARRAY(&planner->arena, int64_t, n);
    if (planner->arena.failed)
        return false;
    tsr__pipeline_ranges(staging, &found->pipeline, ranges);
    found->plan->placed[m].scope = (struct planner_scope){
        .staged = true, .ranges = ranges, .n_ranges = n, .numbers = found->staging.numbers};
    if (!tsr__plan_play(planner, ranges, n, staging->times, played))
        return false;
    found->plan->run[m] = played->latency;
    return true;
}

// ---- the search --------------------------------------------------------------------------------

// Checks the number of stages. Refuses more stages than devices, ranges or STAGES_MOST. Accepts
// "auto" (0 or less).
static tsr_status check_number(const struct staging *staging, int64_t stages)
{
    int64_t most = int64_min(staging->planner->machine.n, (int64_t)staging->n_ranges);
    most = int64_min(most, STAGES_MOST);
    if (stages <= most)
        return TSR_OK;
    return tsr__fail(staging->planner->session, TSR_INVALID, DIAG_plan_stages, NULL,
                     "use fewer stages, or --stages auto",
                     "%lld stages are not possible; on %lld devices this model can have up to %lld",
                     (long long)stages, (long long)staging->planner->machine.n, (long long)most);
}

// Makes the pipeline a plan.
static tsr_status take_plan(struct stages_plan *found)
{
    struct staging *staging = &found->staging;
    struct plan *plan = found->plan;
    if (!take_pipeline(found))
        return TSR_NOMEM;
    for (size_t m = 0; m < plan->models->n; m++)
        if (!play_model(found, m))
            return TSR_NOMEM;
    plan->result.feasible = true;
    if (found->by_hosts) { // no other pipeline was compared, so the simulated time counts
        plan->result.cost = plan->run[0];
        tsr__plan_settle(&plan->result, tsr__stages_floor(staging) + staging->common);
    } else
        tsr__stages_bound(staging, &found->pipeline, &plan->result);
    plan->time = plan->result.cost;
    if (found->options.objective == TSR_LATENCY) // a period is not a sum
        plan->compute = tsr__compared_compute_all(plan->models);
    struct compared_plan expert = {
        .name = PIPELINE, .fits = true, .time = plan->time, .compute = plan->compute};
    if (found->by_hosts && !tsr__compared_add(&staging->planner->arena, &plan->compared, expert))
        return TSR_NOMEM;
    return TSR_OK;
}

// Solves the pipeline even if time is up, unless it is solved. It is dropped if it does not fit.
static tsr_status answer(struct staging *staging, const tsr_plan_options *options,
                         struct pipeline *pipeline)
{
    tsr_status st = TSR_OK;
    if (!pipeline->n || pipeline->answer.feasible)
        return TSR_OK;
    if (options->objective == TSR_THROUGHPUT)
        st = tsr__throughput_solve(staging, pipeline, 0, true, &pipeline->answer);
    else
        st = tsr__pipeline_solve(staging, pipeline, true, &pipeline->answer);
    if (!pipeline->answer.feasible)
        pipeline->n = 0;
    return st;
}

// Finds the split points and the best pipeline; pipeline->n 0: none fits.
static tsr_status find_stages(struct staging *staging, const tsr_plan_options *options,
                              bool by_hosts, struct pipeline *pipeline)
{
    if (!tsr__split_points(staging))
        return TSR_NOMEM;
    if (staging->other && !tsr__second_model_cuts(staging))
        return TSR_NOMEM;
    TRY(check_number(staging, options->stages));
    if (by_hosts)
        return tsr__host_pipeline(staging, pipeline);
    TRY(tsr__stages_search(staging, options, MEASURE_TIME, pipeline));
    return pipeline->n ? tsr__pipeline_search(staging, options, pipeline, &staging->least) : TSR_OK;
}

// Returns the caller's memory limit of each device; 0: that of the caller's topology; -1: none.
static int64_t memory_limit(const tsr_plan_options *options)
{
    return options->memory > 0 || options->topology ? options->memory : -1;
}

// Initializes a staging before its split points are known. False: out of memory.
static bool staging_init(struct models *models, size_t m, const tsr_plan_options *options,
                         struct staging *out)
{
    struct planner *planner = models->planners[m];
    *out = (struct staging){
        .planner = planner, .models = models, .memory = memory_limit(options), .rival = PLAN_NEVER};
    for (int64_t device = 0; device < planner->machine.n; device++)
        out->limited = out->limited || out->memory > 0 ||
                       (out->memory == 0 && planner->machine.topology->device[device].memory > 0);
    tsr__map_init(&out->strategies, &planner->arena, 64);
    tsr__map_init(&out->structures, &planner->arena, 256);
    tsr__map_init(&out->kinds, &planner->arena, 64);
    return !planner->arena.failed;
}

// Starts the staging of each model.
static tsr_status begin(struct stages_plan *found, int64_t beat)
{
    struct staging *staging = &found->staging;
    struct models *models = found->plan->models;
    const tsr_plan_options *options = &found->options;
    if (!staging_init(models, 0, options, staging))
        return TSR_NOMEM;
    staging->rival = beat;
    if (models->n == 1)
        return TSR_OK;
    if (!staging_init(models, 1, options, &found->other))
        return TSR_NOMEM;
    staging->other = &found->other;
    return tsr__second_model_init(staging) ? TSR_OK : TSR_NOMEM;
}

// Finds the pipeline and makes it the plan.
static tsr_status find(struct stages_plan *found, const tsr_plan_options *options)
{
    struct staging *staging = &found->staging;
    struct planner *planner = staging->planner;
    TRY(tsr__manual_stages(staging, options->stages));
    if (staging->n_hand)
        found->options.stages = (int64_t)staging->n_hand;
    // The rest of the time is for solving the chosen stages.
    staging->end = tsr__budget_next(planner->budget, false).end;
    tsr_status st = find_stages(staging, &found->options, found->by_hosts, &found->pipeline);
    staging->end = planner->budget->end;
    if (st == TSR_OK)
        st = answer(staging, &found->options, &found->pipeline);
    if (st == TSR_OK && found->pipeline.n)
        st = take_plan(found);
    if (st == TSR_OK && found->pipeline.n && options->export_lp)
        st = tsr__pipeline_export(staging, &found->pipeline, options->export_lp);
    return st;
}

tsr_status tsr__plan_stages_find(struct models *models, const tsr_plan_options *options,
                                 int64_t beat, bool by_hosts, struct plan *out)
{
    struct planner *planner = models->planners[0];
    struct stages_plan *found = ARENA_NEW(&planner->arena, struct stages_plan);
    if (!found || !tsr__plan_start(out, models))
        return TSR_NOMEM;
    *found = (struct stages_plan){.plan = out, .by_hosts = by_hosts, .options = *options};
    out->stages = found;
    out->tried_one = by_hosts;
    TRY(begin(found, beat));
    enum expert expert = planner->machine.expert;
    if (by_hosts)
        planner->machine.expert = EXPERT_TENSOR;
    tsr_status st = find(found, options);
    planner->machine.expert = expert;
    out->hasty = found->staging.hasty;
    out->result.infeasible = !found->pipeline.n && !found->staging.hasty;
    out->ms = 1e3 * (tsr__now_s() - planner->budget->begin);
    return st;
}

void tsr__plan_stages_end(const struct plan *plan)
{
    if (!plan->stages)
        return;
    tsr__stages_free(&plan->stages->staging);
    tsr__stages_free(&plan->stages->other);
}
