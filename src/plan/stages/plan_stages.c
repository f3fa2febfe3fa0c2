// SPDX-License-Identifier: Apache-2.0
// plan_stages.c - plans pipeline stages: finds split points and stages, and plans each stage on its
// devices. Then converts the result to the device numbers of the topology, so that the code that
// writes and counts shardings need not know about stages.
#include "plan/stages/stages.h"

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
                            tsr_plan_result *out)
{
    struct pipeline other = *pipeline;
    struct stage_totals totals[2] = {{out->stages, out->facts.latency, out->facts.period}};
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
                            struct pipeline *pipeline, tsr_plan_part *parts, tsr_plan_result *out)
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
    out->facts.memory = all.memory;
    out->facts.peak = all.peak;
    if (!tsr__stages_summarize(staging, pipeline, memory[0].memory, &totals))
        return TSR_NOMEM;
    out->facts.feasible = true;
    out->stages = totals.at;
    out->facts.n_stages = pipeline->n;
    out->facts.latency = totals.latency;
    out->facts.period = totals.period;
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
                            tsr_plan_result *out)
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

// Starts the staging of each model.
static tsr_status begin(struct models *models, const tsr_plan_options *options,
                        struct found_stages *found)
{
    struct staging *staging = &found->staging;
    if (!staging_init(models, 0, options, staging))
        return TSR_NOMEM;
    staging->rival = found->beat < PLAN_NEVER ? found->beat : INT64_MAX;
    staging->by_hosts = found->by_hosts;
    if (found->by_hosts)
        staging->planner->machine.expert = EXPERT_TENSOR;
    if (models->n == 1)
        return TSR_OK;
    if (!staging_init(models, 1, options, &found->other))
        return TSR_NOMEM;
    staging->other = &found->other;
    return tsr__second_model_init(staging) ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__plan_stages_find(struct models *models, const tsr_plan_options *options,
                                 struct found_stages *out)
{
    struct staging *staging = &out->staging;
    struct planner *planner = models->planners[0];
    out->options = *options;
    TRY(begin(models, options, out));
    TRY(tsr__manual_stages(staging, options->stages));
    if (staging->n_hand)
        out->options.stages = (int64_t)staging->n_hand;
    // The rest of the time is for solving the chosen stages.
    staging->end = tsr__budget_next(planner->budget, false).end;
    tsr_status st = find_stages(staging, &out->options, &out->pipeline);
    staging->end = planner->budget->end;
    out->summary = (tsr_plan_result){.facts.devices = (size_t)planner->machine.n};
    out->parts =
        ARENA_ARRAY(&planner->session->results[RESULT_PLAN], tsr_plan_part, PLAN_MAX_MODELS);
    if (st == TSR_OK && !out->parts)
        st = TSR_NOMEM;
    if (st == TSR_OK && out->pipeline.n) {
        st = take_plan(staging, &out->options, &out->pipeline, out->parts, &out->summary);
        out->compute = tsr__compared_compute(planner);
    }
    if (out->by_hosts) // no other pipeline was compared, so the simulated time counts
        out->summary.facts.cost = out->summary.facts.latency;
    out->summary.facts.solve_ms = 1e3 * (tsr__now_s() - planner->budget->begin);
    return st;
}

tsr_status tsr__plan_stages_take(struct found_stages *found, bool write, tsr_plan_result *out)
{
    const tsr_plan_options *options = &found->options;
    *out = found->summary;
    if (options->export_lp)
        TRY(export_stages(&found->staging, &found->pipeline, options->export_lp));
    TRY(write_all(&found->staging, options->config, &found->pipeline, write, found->parts, out));
    if (!options->explain)
        return TSR_OK;
    return tsr__stages_explain(&found->staging, &found->pipeline, options->explain, out);
}

// The search with memory as measure finds what the fullest device needs.
tsr_status tsr__plan_stages_refuse(struct found_stages *found, tsr_plan_result *out)
{
    struct staging *staging = &found->staging;
    struct planner *planner = staging->planner;
    struct pipeline pipeline;
    *out = found->summary;
    TRY(tsr__stages_search(staging, &found->options, MEASURE_MEMORY, &pipeline));
    if (pipeline.n)
        out->facts.needs_bytes = pipeline.most;
    bool proved = !staging->hasty && !tsr__budget_over(planner->budget);
    out->facts.undecided = !proved;
    return tsr__plan_report_none(planner, "plan in stages", proved, out->facts.needs_bytes,
                                 staging->n_ranges > 1);
}

void tsr__plan_stages_end(struct found_stages *found)
{
    tsr__stages_free(&found->staging);
    tsr__stages_free(&found->other);
}

struct plan_standing tsr__plan_stages_standing(const struct found_stages *found)
{
    struct plan_standing standing = {
        .any = found->pipeline.n > 0, .fits = true, .time = found->summary.facts.cost};
    for (size_t k = 0; k < found->pipeline.n; k++)
        standing.devices += (int64_t)found->pipeline.at[k].n;
    standing.hosts = tsr__planner_hosts(found->staging.planner, standing.devices);
    return standing;
}

int64_t tsr__plan_stages_least(const struct found_stages *found)
{
    if (found->pipeline.n)
        return found->summary.facts.bound;
    return found->staging.hasty ? 0 : PLAN_NEVER;
}
