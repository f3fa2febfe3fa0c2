// SPDX-License-Identifier: Apache-2.0
// plan_stages.c - plans pipeline stages: finds split points and stages, and plans each stage on its
// devices. Then converts the result to the device numbers of the topology, so that the code that
// writes and counts shardings need not know about stages.
#include "plan/stages/stages.h"

// fraction of the time limit for the search; the rest is for solving the chosen stages
#define SEARCH_SHARE 0.7

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

// Stores the memory of the stage's devices, indexed by device number of the topology.
static bool memory_of_stage(struct staging *staging, const struct stage *stage, size_t m,
                            const struct model_memory *out)
{
    struct planner *planners[PLAN_MAX_MODELS] = {&stage->kind->planner};
    struct model_memory own;
    struct models models;
    if (stage->kind->other)
        planners[1] = &stage->kind->other->planner;
    tsr__models_with(staging->models, planners, &models);
    if (!tsr__model_memory_init(&own, &staging->planner->arena, stage->n) ||
        !tsr__models_memory(&models, m, &own))
        return false;
    for (size_t i = 0; i < stage->n; i++) {
        out->memory[stage->devices[i]] = own.memory[i];
        out->peak[stage->devices[i]] = own.peak[i];
        out->own[stage->devices[i]] = own.own[i];
    }
    return true;
}

// Returns the same stage of the second model: same devices, nodes of that model.
static struct stage second_stage(const struct stage *stage)
{
    struct stage other = *stage;
    other.kind = stage->kind->other;
    other.point.run[0] = stage->point.run[1];
    other.transfer[0] = stage->transfer[1];
    return other;
}

// Makes the chosen candidates of every stage the only ones in the planners of all devices, and
// computes the memory. Stages that were not solved together (pipeline->answer) are solved again
// first.
static tsr_status take_pipeline(struct staging *staging, struct pipeline *pipeline,
                                const struct model_memory memory[PLAN_MAX_MODELS])
{
    for (size_t k = 0; k < pipeline->n; k++) {
        struct stage *stage = &pipeline->at[k];
        if (pipeline->answer.feasible)
            tsr__range_choose(staging, stage, pipeline->answer.choice);
        else
            TRY(tsr__range_take(staging, stage));
        if (!take_stage(staging->planner, stage) || !memory_of_stage(staging, stage, 0, &memory[0]))
            return TSR_NOMEM;
        if (!staging->other)
            continue;
        struct stage other = second_stage(stage);
        if (!take_stage(staging->other->planner, &other) ||
            !memory_of_stage(staging, stage, 1, &memory[1]))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// ---- stage numbers -----------------------------------------------------------------------------

// Returns the number of stage k in the model.
static int64_t number_of(const struct staging *staging, size_t k)
{
    return staging->n_hand ? staging->numbers[k] : (int64_t)k;
}

// Writes the stages into the model. Manual stages keep their numbers. A single stage needs no
// number if it has device 0, which returns the outputs anyway.
static tsr_status set_stages(struct staging *staging, const struct pipeline *pipeline)
{
    if (pipeline->n == 1 && !staging->n_hand && pipeline->at[0].devices[0] == 0)
        return TSR_OK;
    for (size_t k = 0; k < pipeline->n; k++)
        for (size_t i = staging->cut[pipeline->at[k].begin]; i < staging->cut[pipeline->at[k].end];
             i++) {
            struct plan_node *node = &staging->planner->nodes[i];
            if (!node->strategy || !in_main_graph(node))
                continue; // nodes of bodies run where their node runs
            TRY(tsr_node_set_stage(node->node, staging->planner->config, number_of(staging, k)));
        }
    return TSR_OK;
}

// ---- why there is no plan -----------------------------------------------------------------------

// Reports that no pipeline fits. The same search, with memory as measure, finds what the fullest
// device needs.
static tsr_status refuse(struct staging *staging, const tsr_plan_options *options,
                         tsr_plan_summary *out)
{
    struct pipeline pipeline;
    TRY(tsr__stages_search(staging, options, MEASURE_MEMORY, &pipeline));
    if (pipeline.n)
        out->needs_bytes = pipeline.most;
    struct planner *planner = staging->planner;
    bool proved = !staging->hasty && !tsr__budget_over(planner->budget);
    out->undecided = !proved;
    return tsr__plan_report_none(planner, "plan in stages", proved, out->needs_bytes,
                                 staging->n_ranges > 1);
}

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

// Adds to the summary one part for each of the two models.
static bool summarize_parts(struct staging *staging, const struct pipeline *pipeline,
                            const struct model_memory *memory, tsr_plan_part *parts,
                            tsr_plan_summary *out)
{
    struct pipeline other = *pipeline;
    struct stage_totals totals[2] = {{out->stages, out->latency, out->period}};
    for (size_t k = 0; k < pipeline->n; k++)
        other.at[k] = second_stage(&pipeline->at[k]);
    other.clock[0] = pipeline->clock[1];
    if (!tsr__stages_summarize(staging->other, &other, memory[1].memory, &totals[1]))
        return false;
    for (int m = 0; m < 2; m++)
        parts[m] = (tsr_plan_part){.cost = totals[m].latency, .memory = memory[m].memory};
    out->parts = parts;
    out->n_parts = 2;
    out->shared = staging->models->shared.n;
    return true;
}

// Stores the chosen candidates of all nodes in the planners, and fills in the summary. parts: one
// for each model.
static tsr_status take_plan(struct staging *staging, const tsr_plan_options *options,
                            struct pipeline *pipeline, tsr_plan_part *parts, tsr_plan_summary *out)
{
    struct planner *planner = staging->planner;
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    struct model_memory memory[PLAN_MAX_MODELS], all;
    size_t n = (size_t)planner->machine.n;
    struct stage_totals totals;
    for (size_t m = 0; m < PLAN_MAX_MODELS; m++)
        if (!tsr__model_memory_init(&memory[m], arena, n))
            return TSR_NOMEM;
    if (!tsr__model_memory_init(&all, arena, n))
        return TSR_NOMEM;
    TRY(take_pipeline(staging, pipeline, memory));
    if (!tsr__pipeline_timing(staging, pipeline, &pipeline->clock[0]))
        return TSR_NOMEM;
    if (staging->other && !tsr__pipeline_timing(staging->other, pipeline, &pipeline->clock[1]))
        return TSR_NOMEM;
    tsr__models_join_memory(staging->models, memory, n, &all);
    out->memory = all.memory;
    out->peak = all.peak;
    if (!tsr__stages_summarize(staging, pipeline, memory[0].memory, &totals))
        return TSR_NOMEM;
    out->feasible = true;
    out->stages = totals.at;
    out->n_stages = pipeline->n;
    out->latency = totals.latency;
    out->period = totals.period;
    if (staging->other && !summarize_parts(staging, pipeline, memory, parts, out))
        return TSR_NOMEM;
    return tsr__stages_bound(staging, pipeline, options, out);
}

// Returns the path of a stage's file. Example: "plan.lp" becomes "plan.2.lp" for stage 2. Without
// an extension the number is appended.
static struct str numbered_path(struct arena *arena, const char *path, size_t stage)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (!dot || (slash && dot < slash))
        return tsr__arena_printf(arena, "%s.%zu", path, stage);
    return tsr__arena_printf(arena, "%.*s.%zu%s", (int)(dot - path), path, stage, dot);
}

// Exports the programs: each stage has its own program and file.
static tsr_status export_stages(struct staging *staging, const struct pipeline *pipeline,
                                const char *path)
{
    for (size_t k = 0; k < pipeline->n; k++) {
        struct str name = numbered_path(&staging->planner->arena, path, k);
        if (!name.p)
            return TSR_NOMEM;
        TRY(tsr__range_export(staging, &pipeline->at[k], name.p));
    }
    return TSR_OK;
}

// Writes the shardings and stages of one model, and adds its figures to `out`. If `write` is false,
// only adds the figures.
static tsr_status write_model(struct staging *staging, const char *config,
                              const struct pipeline *pipeline, bool write, tsr_plan_part *out)
{
    struct planner *planner = staging->planner;
    struct collective_count counts[PLAN_MAX_OPS];
    if (write) {
        TRY(tsr__planner_write(planner, config));
        TRY(set_stages(staging, pipeline));
    }
    size_t n = tsr__planner_collectives(planner, counts);
    return tsr__planner_add_counts(planner, counts, n, out) ? TSR_OK : TSR_NOMEM;
}

// Calls write_model for all models. Stages have the same numbers in both models.
static tsr_status write_all(struct staging *staging, const char *config,
                            const struct pipeline *pipeline, bool write, tsr_plan_part *parts,
                            tsr_plan_summary *out)
{
    tsr_status st = write_model(staging, config, pipeline, write, &parts[0]);
    tsr__planner_copy_counts(&parts[0], out);
    if (st != TSR_OK || !staging->other)
        return st;
    return write_model(staging->other, config, pipeline, write, &parts[1]);
}

// Finds the split points and the best pipeline; pipeline->n 0: none fits.
static tsr_status find_stages(struct staging *staging, const tsr_plan_options *options,
                              struct pipeline *pipeline)
{
    if (!tsr__split_points(staging))
        return TSR_NOMEM;
    if (staging->other && !tsr__second_model_cuts(staging))
        return TSR_NOMEM;
    TRY(check_number(staging, options->stages));
    if (staging->by_hosts)
        return tsr__host_pipeline(staging, pipeline);
    tsr_status st = tsr__stages_search(staging, options, MEASURE_TIME, pipeline);
    if (st != TSR_OK || !pipeline->n || staging->other)
        return st;
    return tsr__pipeline_search(staging, options, pipeline, &staging->least);
}

// Handles that no pipeline fits: the plan without stages (the rival) wins, if there is one.
static tsr_status none_found(struct staging *staging, const tsr_plan_options *options,
                             struct stage_rival *rival, tsr_plan_summary *out)
{
    if (!rival || (rival->cost >= PLAN_NEVER && !rival->by_hosts))
        return refuse(staging, options, out);
    rival->wins = true;
    rival->hasty = staging->hasty;
    if (!staging->hasty)
        rival->bound = PLAN_NEVER; // there is no plan with stages
    return TSR_OK;
}

// Records the figures of the plan with stages in `rival`. Returns true if the plan without stages
// is faster.
static bool rival_wins(const struct staging *staging, tsr_plan_summary *out,
                       struct stage_rival *rival)
{
    if (staging->by_hosts) // no other pipeline was compared, so the simulated time counts
        out->cost = out->latency;
    rival->bound = out->bound;
    rival->time = out->cost;
    rival->compute = tsr__compared_compute(staging->planner);
    rival->wins = out->cost > rival->cost;
    return rival->wins;
}

// Finds the stages, plans their nodes, and sums up the plan. Writes it into the model if `write` is
// set, unless the plan without stages wins.
static tsr_status staged(struct staging *staging, const tsr_plan_options *given, bool write,
                         struct stage_rival *rival, tsr_plan_summary *out)
{
    struct pipeline pipeline;
    struct planner *planner = staging->planner;
    tsr_plan_options options = *given;
    TRY(tsr__manual_stages(staging, given->stages));
    if (staging->n_hand)
        options.stages = (int64_t)staging->n_hand;
    staging->end = tsr__budget_part(planner->budget, SEARCH_SHARE).end;
    tsr_status st = find_stages(staging, &options, &pipeline);
    staging->end = planner->budget->end;
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->machine.n};
    out->solve_ms = 1e3 * (tsr__now_s() - planner->budget->begin);
    if (!pipeline.n)
        return none_found(staging, &options, rival, out);
    tsr_plan_part *parts =
        ARENA_ARRAY(&planner->session->results[RESULT_PLAN], tsr_plan_part, PLAN_MAX_MODELS);
    if (!parts)
        return TSR_NOMEM;
    st = take_plan(staging, &options, &pipeline, parts, out);
    out->solve_ms = 1e3 * (tsr__now_s() - planner->budget->begin);
    if (st != TSR_OK)
        return st;
    if (rival && rival_wins(staging, out, rival))
        return TSR_OK;
    if (options.export_lp)
        TRY(export_stages(staging, &pipeline, options.export_lp));
    st = write_all(staging, options.config, &pipeline, write, parts, out);
    if (st != TSR_OK || !options.explain)
        return st;
    return tsr__stages_explain(staging, &pipeline, options.explain, out);
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
        .planner = planner, .models = models, .memory = memory_limit(options), .rival = INT64_MAX};
    for (int64_t device = 0; device < planner->machine.n; device++)
        out->limited = out->limited || out->memory > 0 ||
                       (out->memory == 0 && planner->machine.topology->device[device].memory > 0);
    tsr__map_init(&out->strategies, &planner->arena, 64);
    tsr__map_init(&out->structures, &planner->arena, 256);
    tsr__map_init(&out->kinds, &planner->arena, 64);
    planner->scope.staged = true;
    return tsr__planner_list(planner);
}

tsr_status tsr__plan_stages(struct models *models, const tsr_plan_options *options, bool write,
                            struct stage_rival *rival, tsr_plan_summary *out)
{
    struct staging staging, other = {0};
    if (!staging_init(models, 0, options, &staging))
        return TSR_NOMEM;
    if (rival && rival->cost < PLAN_NEVER)
        staging.rival = rival->cost;
    staging.by_hosts = rival && rival->by_hosts;
    if (staging.by_hosts)
        staging.planner->machine.expert = EXPERT_TENSOR;
    if (models->n > 1) {
        if (!staging_init(models, 1, options, &other))
            return TSR_NOMEM;
        staging.other = &other;
        if (!tsr__second_model_init(&staging))
            return TSR_NOMEM;
    }
    tsr_status st = staged(&staging, options, write, rival, out);
    tsr__stages_free(&staging);
    tsr__stages_free(&other);
    return st;
}
