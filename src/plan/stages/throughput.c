// SPDX-License-Identifier: Apache-2.0
// throughput.c - the best candidates of a pipeline for throughput: the busiest stage sets the pace.
//
// The program of a pipeline (pipeline_program.c) minimizes the sum of all stages. Its solution is
// simulated with a clock for each device (played_time.c), which gives the period of consecutive
// runs.
//
//     Example: two stages of 6 and 3 ms with a transfer of 1 ms have a period of 6 + 1 = 7 ms.
//
// No period is below the least sum divided by the number of stages, nor below what each stage needs
// at least (pipeline_search.c).
#include "plan/stages/stages.h"

// Simulates the current choices, and sets latency and period. The period of several models is that
// of the stage that is busiest with all their runs. False: out of memory.
static bool play_choices(struct pipeline_program *setup, struct pipeline_answer *out)
{
    const struct models *models = &setup->models;
    struct plan_range ranges[STAGES_MOST];
    int64_t latency[PLAN_MAX_MODELS] = {0}, busy[STAGES_MOST] = {0};
    out->cost = 0;
    for (size_t m = 0; m < models->n; m++) {
        struct staging *staging = tsr__staging_of(setup->staging, m);
        int64_t time[STAGES_MOST] = {0}, transfer[STAGES_MOST + 1] = {0};
        struct played_plan clock = {.time = time, .transfer = transfer};
        tsr__pipeline_ranges(staging, setup->pipeline, ranges);
        if (!tsr__plan_play(models->planners[m], ranges, setup->pipeline->n, staging->times,
                            &clock))
            return false;
        int64_t period = int64_max(clock.period - staging->common, 0);
        out->cost = int64_max(out->cost, times_ps(period, models->runs[m]));
        latency[m] = clock.latency;
        for (size_t k = 0; k < setup->pipeline->n && models->n > 1; k++) {
            busy[k] += times_ps(time[k] + transfer[k] + transfer[k + 1], models->runs[m]);
            out->cost = int64_max(out->cost, busy[k]);
        }
    }
    out->latency = tsr__models_time(models, latency);
    return true;
}

// Solves the program and simulates the solution. No period is below the least sum of times divided
// by the number of stages.
static tsr_status solve_and_play(struct pipeline_program *setup, struct pipeline_answer *out)
{
    TRY(tsr__pipeline_program_solve(setup, out));
    if (!out->feasible)
        return TSR_OK;
    out->bound /= (int64_t)setup->pipeline->n;
    return play_choices(setup, out) ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__throughput_solve(struct staging *staging, const struct pipeline *pipeline,
                                 int64_t least, bool needed, struct pipeline_answer *out)
{
    struct pipeline_program setup;
    tsr_status st = TSR_NOMEM;
    *out = (struct pipeline_answer){0};
    if (tsr__pipeline_program_begin(&setup, staging, pipeline, needed)) {
        tsr__pipeline_program_show(&setup);
        st = solve_and_play(&setup, out);
    }
    out->bound = int64_min(int64_max(out->bound, least), out->cost);
    if (st == TSR_OK && out->feasible && !tsr__pipeline_program_keep(&setup, out))
        st = TSR_NOMEM;
    tsr__pipeline_program_end(&setup);
    return st;
}

// Finds the period of the pipeline if the node has that candidate.
static tsr_status pace_with(struct pipeline_program *setup, const struct plan_node *node,
                            size_t candidate, struct pipeline_answer *out)
{
    struct program_node *variable = &setup->models.program->nodes.at[node->var];
    const int64_t *kept = variable->cost;
    int64_t *cost = ARENA_ARRAY(&setup->scratch, int64_t, variable->k + 1);
    if (!cost)
        return TSR_NOMEM;
    for (size_t i = 0; i < variable->k; i++)
        cost[i] = i == candidate ? kept[i] : COST_FORBIDDEN;
    variable->cost = cost;
    tsr_status st = solve_and_play(setup, out);
    variable->cost = kept;
    return st;
}

tsr_status tsr__throughput_explain(struct pipeline_program *setup, const char *name,
                                   tsr_plan_result *out)
{
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    const struct plan_node *node = tsr__planner_find(setup->models.planners[0], name);
    int64_t common = tsr__stages_common(setup->staging);
    tsr__pipeline_program_show(setup);
    for (size_t i = 0; i < out->facts.n_choices && node; i++) {
        struct pipeline_answer answer = {.feasible = list[i].chosen};
        if (!list[i].feasible)
            continue;
        if (!list[i].chosen)
            TRY(pace_with(setup, node, i, &answer));
        list[i].feasible = answer.feasible;
        list[i].undecided = !answer.feasible;
        list[i].cost = 0;
        if (answer.feasible)
            list[i].cost = int64_max(answer.cost + common, out->facts.cost);
    }
    return TSR_OK;
}
