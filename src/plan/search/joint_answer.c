// SPDX-License-Identifier: Apache-2.0
// joint_answer.c - two models planned at once: their program is solved, and what was chosen becomes
// shardings of both.
//
// The order: each model's own program (build), the weights that both have and the joint program
// (joint.c), one solve, then each model takes its stretch of the choices: with 40 variables of the
// first, choice[40] is the first of the second.
#include "plan/search/models.h"

// Each model's own program.
static bool build(struct joint *joint, int64_t memory)
{
    for (int m = 0; m < 2; m++)
        if (!tsr__planner_list(joint->planners[m]) ||
            !tsr__planner_build(joint->planners[m], memory))
            return false;
    return true;
}

// One model's share of the answer: the choices of its nodes, written into it, and what they come to.
static tsr_status write_part(struct joint *joint, int m, const uint32_t *choice, const char *config,
                             int64_t *peak, tsr_plan_part *out)
{
    struct planner *planner = joint->planners[m];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    tsr_plan_summary told = {0};
    const uint32_t *own = choice + joint->first[m];
    int64_t *memory = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
    tsr__planner_take(planner, own);
    if (!memory || !tsr__planner_memory(planner, memory, peak))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_write(planner, config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_tell(planner, NULL, &told);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_part){.config = told.config,
                           .cost = tsr__program_cost(&planner->program, own),
                           .memory = memory,
                           .collectives = told.collectives,
                           .n_collectives = told.n_collectives,
                           .nodes = told.nodes,
                           .cut_nodes = told.cut_nodes};
    return TSR_OK;
}

void tsr__joint_sum_up(const struct joint *joint, const struct program_result *result,
                       const tsr_plan_part *parts, tsr_plan_summary *out)
{
    out->parts = parts;
    out->n_parts = 2;
    out->shared = joint->twins->n;
    out->config = parts[0].config;
    out->collectives = parts[0].collectives;
    out->n_collectives = parts[0].n_collectives;
    out->nodes = parts[0].nodes;
    out->cut_nodes = parts[0].cut_nodes;
    out->cost = tsr__joint_time(parts[0].cost, joint->runs[1], parts[1].cost);
    // The program's costs were halved `shift` times, rounded down: its bound is never too high.
    out->bound = int64_min(result->bound << joint->shift, out->cost);
    out->optimal = result->optimal;
    out->stopped = !result->optimal && (joint->planners[0]->pace.ways > 0 ||
                                        tsr__budget_over(joint->planners[0]->budget));
    if (!result->optimal)
        out->gap = (double)(out->cost - out->bound) / (double)out->cost;
}

// What both hold on a device at the worst time: one of them runs, and of the other the constants and caches lie there that the
// first has not. Prefill takes 3 GiB and decode 2; decode has a table of its own of 2 GiB: the worst is prefill's 3 + 2.
bool tsr__joint_memory(struct joint *joint, const tsr_plan_part *parts, int64_t *memory,
                       int64_t *peak)
{
    size_t n = (size_t)joint->planners[0]->machine.n;
    unsigned char *shared[2];
    int64_t *own[2];
    if (!tsr__joint_shared(joint->planners, joint->twins, shared))
        return false;
    for (int m = 0; m < 2; m++) {
        own[m] = ARENA_ARRAY(&joint->planners[0]->arena, int64_t, n);
        if (!own[m] || !tsr__planner_add_own(joint->planners[m], shared[m], own[m]))
            return false;
    }
    for (size_t device = 0; device < n; device++) {
        memory[device] = int64_max(parts[0].memory[device] + own[1][device],
                                   parts[1].memory[device] + own[0][device]);
        peak[device] = int64_max(peak[device] + own[1][device], peak[n + device] + own[0][device]);
    }
    return true;
}

// Writes both models, and tells what they come to together.
static tsr_status tell(struct joint *joint, const struct program_result *result,
                       const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct arena *arena = &joint->planners[0]->session->results[RESULT_PLAN];
    size_t n = (size_t)joint->planners[0]->machine.n;
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, 2);
    int64_t *memory = ARENA_ARRAY(arena, int64_t, n);
    int64_t *peak = ARENA_ARRAY(arena, int64_t, 2 * n);
    if (!parts || !memory || !peak)
        return TSR_NOMEM;
    for (int m = 0; m < 2; m++) {
        tsr_status st =
            write_part(joint, m, result->choice, options->config, peak + (size_t)m * n, &parts[m]);
        if (st != TSR_OK)
            return st;
    }
    if (!tsr__joint_memory(joint, parts, memory, peak))
        return TSR_NOMEM;
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = n, .feasible = true};
    out->memory = memory;
    out->peak = peak;
    tsr__joint_sum_up(joint, result, parts, out);
    return TSR_OK;
}

// Says what each device would have to have: the least memory of a plan of both.
static tsr_status refuse(struct joint *joint, bool proved, tsr_plan_summary *out)
{
    struct planner *planner = joint->planners[0];
    struct program_least least = {0};
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->machine.n};
    struct program_options share = tsr__advice_effort(planner->budget);
    tsr_status st = TSR_OK;
    if (!planner->pace.late)
        st = tsr__program_least(&joint->program, &share, &planner->arena, &least);
    if (st != TSR_OK)
        return st;
    if (least.found)
        out->needs_bytes = least.least;
    out->undecided = !proved;
    return tsr__planner_say_none(planner, "plan of both models", proved, out->needs_bytes);
}

int64_t tsr__joint_limit(const tsr_plan_options *options)
{
    if (options->memory > 0 || options->topology)
        return options->memory;
    return PLAN_NO_LIMIT;
}

static tsr_status solve(struct joint *joint, const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct planner *planner = joint->planners[0];
    struct program_result result = {0};
    tsr_status st = TSR_OK;
    if (options->export_lp && !planner->pace.late)
        st = tsr__planner_export(planner->session, &joint->program, options->export_lp);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_solve(planner, &joint->program, &result);
    if (st != TSR_OK)
        return st;
    if (planner->pace.ways)
        tsr__pace_say(planner);
    if (!result.feasible)
        return refuse(joint, result.infeasible, out);
    return tell(joint, &result, options, out);
}

// The first planner's pace is that of both from here on: ways that one of them lacks are missing in both, and no plan takes less
// than both do at least.
static void join_paces(struct joint *joint)
{
    struct planner_pace *first = &joint->planners[0]->pace, *second = &joint->planners[1]->pace;
    first->late = first->late || second->late;
    if (first->ways == 0)
        first->ways = second->ways;
    first->least = tsr__joint_time(first->least, joint->runs[1], second->least) >> joint->shift;
}

bool tsr__joint_build(struct joint *joint, struct twins *twins, int64_t memory)
{
    if (!build(joint, memory) || !tsr__joint_twins(joint->planners, twins))
        return false;
    bool late = joint->planners[0]->pace.late || joint->planners[1]->pace.late;
    if (!late && !tsr__joint_program(joint))
        return false;
    join_paces(joint);
    return true;
}

// steps: how often the second model runs for each run of the first; 0 counts as once.
tsr_status tsr__plan_joint(struct planner *planner, struct planner *with,
                           const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct twins twins;
    struct map links;
    struct joint joint = {.planners = {planner, with},
                          .twins = &twins,
                          .links = &links,
                          .link_arena = &planner->arena,
                          .runs = {1, int64_max(options->steps, 1)}};
    tsr__map_init(&links, &planner->arena, 256);
    if (!tsr__joint_build(&joint, &twins, tsr__joint_limit(options)))
        return TSR_NOMEM;
    tsr_status st = solve(&joint, options, out);
    tsr__budget_told(planner->budget);
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    if (st != TSR_OK || !options->explain)
        return st;
    st = tsr__planner_explain(planner, &joint.program, options->explain, out);
    if (st == TSR_OK)
        tsr__joint_unscale(&joint, out);
    return st;
}
