// SPDX-License-Identifier: Apache-2.0
// throughput.c - the best candidates of a pipeline for throughput: the busiest stage sets the pace.
//
// The program of a pipeline (pipeline_program.c) minimizes the sum of all stages. Its solution is
// simulated with a clock for each device (played_time.c), which gives the period of consecutive
// runs. For the first pipeline, the solutions of single stages are simulated too, and the better
// period wins.
//
//     Example: two stages of 6 and 3 ms with a transfer of 1 ms have a period of 6 + 1 = 7 ms.
//
// No period is below the least sum divided by the number of stages, nor below what each stage needs
// at least (pipeline_search.c).
#include "plan/stages/stages.h"

// ---- answers -----------------------------------------------------------------------------------

// Simulates the current choices, and keeps them if their period is the best so far. False: out of
// memory.
static bool play_choices(struct pipeline_program *setup, struct pipeline_answer *best)
{
    struct staging *staging = setup->staging;
    struct planner *planner = staging->planner;
    const struct pipeline *pipeline = setup->pipeline;
    struct plan_range ranges[STAGES_MOST];
    int64_t time[STAGES_MOST] = {0}, transfer[STAGES_MOST] = {0};
    struct played_plan clock = {.time = time, .transfer = transfer};
    tsr__pipeline_ranges(staging, pipeline, ranges);
    if (!tsr__plan_play(planner, ranges, pipeline->n, staging->times, &clock))
        return false;
    struct pipeline_answer played = {.feasible = true,
                                     .cost = int64_max(clock.period - staging->common, 0),
                                     .latency = clock.latency};
    struct plan_standing now = answer_standing(&played), before = answer_standing(best);
    if (!tsr__plan_is_better(&now, &before, 0))
        return true;
    if (!best->choice)
        best->choice = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    if (!best->choice)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        best->choice[i] = planner->nodes[i].choice;
    best->feasible = true;
    best->cost = played.cost;
    best->latency = played.latency;
    return true;
}

// Solves the program and simulates the solution. *bound: lower bound of the program; 0 if no
// solution was found.
static tsr_status solve_and_play(struct pipeline_program *setup, const struct program *program,
                                 struct pipeline_answer *best, int64_t *bound)
{
    struct planner *planner = setup->staging->planner;
    struct program_options options = tsr__pipeline_program_options(setup);
    struct program_result result = {0};
    *bound = 0;
    tsr_status st = tsr__program_solve(program, &options, &setup->scratch, &result);
    if (st != TSR_OK || !result.feasible)
        return st;
    *bound = result.bound;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            planner->nodes[i].choice = result.choice[planner->nodes[i].var];
    return play_choices(setup, best) ? TSR_OK : TSR_NOMEM;
}

// Solves and simulates the program, and sets the lower bound of the period. No period is below the
// least sum of times divided by the number of stages.
static tsr_status solve_line(struct pipeline_program *setup, struct pipeline_answer *best)
{
    int64_t bound = 0;
    const struct program *program = &setup->staging->planner->program;
    tsr_status st = solve_and_play(setup, program, best, &bound);
    best->bound = int64_max(best->bound, bound / (int64_t)setup->pipeline->n);
    best->bound = int64_min(best->bound, best->cost);
    return st;
}

// Builds the program of a pipeline. The caller must call tsr__pipeline_program_end in every case.
// setup.late: there was no time for the program.
static tsr_status begin_throughput(struct pipeline_program *setup, struct staging *staging,
                                   const struct pipeline *pipeline)
{
    if (!tsr__pipeline_program_begin(setup, staging, pipeline))
        return TSR_NOMEM;
    if (setup->late)
        return TSR_OK;
    tsr__pipeline_program_show(setup);
    return TSR_OK;
}

tsr_status tsr__throughput_solve(struct staging *staging, const struct pipeline *pipeline,
                                 int64_t least, struct pipeline_answer *out)
{
    struct pipeline_program setup;
    out->bound = least;
    tsr_status st = begin_throughput(&setup, staging, pipeline);
    if (st == TSR_OK && !setup.late)
        st = solve_line(&setup, out);
    tsr__pipeline_program_end(&setup);
    return st;
}

// Solves each stage by itself, and stores the choices by node index. *fits false: a stage has no
// solution.
static tsr_status take_fronts(struct staging *staging, struct pipeline *pipeline, uint32_t *choice,
                              bool *fits)
{
    *fits = true;
    for (size_t k = 0; k < pipeline->n && *fits; k++) {
        struct stage *stage = &pipeline->at[k];
        TRY(tsr__range_take(staging, stage));
        *fits = stage->point.feasible;
        for (size_t i = staging->cut[stage->begin]; i < staging->cut[stage->end]; i++)
            choice[i] = (uint32_t)stage->kind->nodes[i].choice;
    }
    return TSR_OK;
}

tsr_status tsr__throughput_first(struct staging *staging, struct pipeline *pipeline,
                                 struct pipeline_answer *out)
{
    struct pipeline_program setup;
    struct planner *planner = staging->planner;
    bool fits = false;
    uint32_t *choice = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    *out = (struct pipeline_answer){0};
    if (!choice)
        return TSR_NOMEM;
    tsr_status st = take_fronts(staging, pipeline, choice, &fits);
    if (st != TSR_OK || !fits)
        return st;
    st = begin_throughput(&setup, staging, pipeline);
    if (st != TSR_OK || setup.late)
        goto end;
    for (size_t i = 0; i < planner->n_nodes; i++)
        planner->nodes[i].choice = choice[i];
    st = TSR_NOMEM;
    if (play_choices(&setup, out))
        st = solve_line(&setup, out);
end:
    tsr__pipeline_program_end(&setup);
    return st;
}

// ---- why ---------------------------------------------------------------------------------------

// Finds the period of the pipeline if the node has that candidate.
static tsr_status pace_with(struct pipeline_program *setup, const struct plan_node *node,
                            size_t candidate, struct pipeline_answer *out)
{
    int64_t bound;
    struct program *program = &setup->staging->planner->program;
    struct program_node *variable = &program->nodes.at[node->var];
    const int64_t *kept = variable->cost;
    int64_t *cost = ARENA_ARRAY(&setup->scratch, int64_t, variable->k + 1);
    *out = (struct pipeline_answer){0};
    if (!cost)
        return TSR_NOMEM;
    for (size_t i = 0; i < variable->k; i++)
        cost[i] = i == candidate ? kept[i] : COST_FORBIDDEN;
    variable->cost = cost;
    tsr_status st = solve_and_play(setup, program, out, &bound);
    variable->cost = kept;
    return st;
}

tsr_status tsr__throughput_explain(struct staging *staging, const struct pipeline *pipeline,
                                   const char *name, tsr_plan_result *out)
{
    struct pipeline_program setup = {0};
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    tsr_status st = TSR_NOMEM;
    if (!tsr__pipeline_program_complete(&setup, staging, pipeline))
        goto end;
    tsr__pipeline_program_show(&setup);
    st = TSR_OK;
    const struct plan_node *node = tsr__planner_find(staging->planner, name);
    for (size_t i = 0; i < out->facts.n_choices && st == TSR_OK && node; i++) {
        struct pipeline_answer answer = {.feasible = list[i].chosen};
        if (!list[i].feasible)
            continue;
        if (!list[i].chosen)
            st = pace_with(&setup, node, i, &answer);
        list[i].feasible = answer.feasible;
        list[i].undecided = !answer.feasible;
        list[i].cost = 0;
        if (answer.feasible)
            list[i].cost = int64_max(answer.cost + staging->common, out->facts.cost);
    }
end:
    tsr__pipeline_program_end(&setup);
    return st;
}
