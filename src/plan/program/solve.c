// SPDX-License-Identifier: Apache-2.0
// solve.c - solves the 0-1 program, sets the choices of the nodes, and sums up the figures of the
// plan.
//
// The program is first solved without memory limits, which is far easier. If the solution takes 12
// ms with 9 GiB, it is the result on devices of 16 GiB. On devices of 8 GiB it is only a lower
// bound, and the program is solved again with its limits.
#include "plan/program/program.h"

#include <math.h>

// Sets the choices of the nodes. `choice` is indexed by variable of the planner's program.
void tsr__planner_choose(struct planner *planner, struct plan_node *node, uint32_t choice)
{
    node->choice = choice;
    node->stored = NULL;
    tsr__candidate_each(planner, node->strategy, &node->strategy->at.at[choice]);
}

void tsr__planner_take(struct planner *planner, const uint32_t *choice)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            tsr__planner_choose(planner, &planner->nodes[i], choice[planner->nodes[i].var]);
    tsr__planner_take_stored(planner, choice);
}

static bool fits(const struct program *program, const uint32_t *choice)
{
    for (uint32_t i = 0; i < program->limits.n; i++)
        if (tsr__program_peak(program, i, choice, NULL) > program->limits.at[i].bound)
            return false;
    return true;
}

// Returns the relative gap between cost and bound; costs below 1 are treated as 1.
static double gap_of(int64_t cost, int64_t bound)
{
    double size = fmax(fabs((double)cost), 1);
    return ((double)cost - (double)bound) / size;
}

// Tries the plan with the least memory. Called if there is neither a solution nor a proof that none
// exists.
static tsr_status take_least(struct planner *planner, const struct program *program,
                             struct program_result *result)
{
    struct program_least least = {0};
    struct program_options options = tsr__budget_share(planner->budget, 0.5);
    tsr_status st = tsr__program_least(program, &options, &planner->arena, &least);
    tsr__budget_spend(planner->budget, least.work);
    if (st != TSR_OK || !least.found || !fits(program, least.choice))
        return st;
    result->feasible = true;
    result->choice = least.choice;
    result->cost = tsr__program_cost(program, least.choice);
    result->gap = gap_of(result->cost, result->bound);
    result->optimal = result->cost == result->bound;
    return TSR_OK;
}

// Finds a plan without limits quickly. Called if the search was cancelled before it had a solution.
static tsr_status solve_hastily(struct planner *planner, const struct program *program,
                                struct program_result *result)
{
    struct program_options options = {.work = UINT64_C(200000000)};
    // The solver stops at once if the session is cancelled, so this is reset first.
    tsr_session_cancel(planner->session, false);
    tsr_status st = tsr__program_solve(program, &options, &planner->arena, result);
    tsr_session_cancel(planner->session, true);
    return st;
}

// Shares of the remaining budget for each solve. Programs of unlike devices have many solutions of
// nearly equal cost, so a solve uses up its share for the proof. Their shares are smaller, because
// device sets must be planned as well.
struct solve_shares {
    // alone: for programs without memory limits; unlimited: for the first solve of other programs,
    // without limits; limited: for their second solve
    double alone, unlimited, limited;
};

static struct solve_shares shares_of(const struct planner *planner)
{
    if (planner->machine.unlike)
        return (struct solve_shares){.alone = 0.5, .unlimited = 0.15, .limited = 0.35};
    return (struct solve_shares){.alone = 0.9, .unlimited = 0.3, .limited = 0.8};
}

// Solves the program without memory limits.
static tsr_status solve_unlimited(struct planner *planner, const struct program *program,
                                  double share, struct program_result *result)
{
    struct program free = *program;
    free.limits.n = 0;
    struct program_options options = tsr__budget_share(planner->budget, share);
    TRY(tsr__program_solve(&free, &options, &planner->arena, result));
    tsr__budget_spend(planner->budget, result->work);
    if (!result->feasible && tsr__cancelled(planner->session))
        return solve_hastily(planner, &free, result);
    return TSR_OK;
}

// Solves the program with its memory limits. If no plan was found, but it is not proved that none
// exists, tries the plan with the least memory.
static tsr_status solve_limited(struct planner *planner, const struct program *program,
                                struct program_result *result)
{
    struct program_options options = tsr__budget_share(planner->budget, shares_of(planner).limited);
    TRY(tsr__program_solve(program, &options, &planner->arena, result));
    tsr__budget_spend(planner->budget, result->work);
    if (!result->feasible && !result->infeasible)
        return take_least(planner, program, result);
    return TSR_OK;
}

#define PROVED  1e-9 // a smaller gap is a rounding error
#define NEAR_BY 1e-4 // for unlike devices: a smaller gap is not worth ten seconds

// True if the plan without limits is optimal or nearly so. It becomes the result if it fits in
// memory.
static bool is_good(const struct planner *planner, const struct program_result *unlimited)
{
    double gap = planner->machine.unlike ? NEAR_BY : PROVED;
    return unlimited->optimal || (unlimited->feasible && unlimited->gap < gap);
}

// True if even without limits no plan is faster than `beat`, the caller's plan.
static bool is_beaten(int64_t beat, const struct program_result *unlimited)
{
    return beat > 0 && unlimited->feasible && unlimited->bound >= beat;
}

// The memory size was only assumed, and no plan fits: the plan without limits is the result, and
// memory.exceeds is set. Weights that are gathered would not help. What is left of the budget
// serves its proof.
static tsr_status exceed_limits(struct planner *planner, const struct program *program,
                                const struct program_result *unlimited,
                                struct program_result *result)
{
    planner->memory.exceeds = true;
    if (planner->memory.gathers && !tsr__planner_rebuild(planner, false))
        return TSR_NOMEM;
    *result = *unlimited;
    if (is_good(planner, unlimited))
        return TSR_OK;
    TRY(solve_unlimited(planner, program, shares_of(planner).alone, result));
    if (!result->feasible || result->cost > unlimited->cost)
        *result = *unlimited;
    return TSR_OK;
}

// True if weights may be gathered in each run. Not in a program of several models, which store the
// weights that they share once, nor in the plans of experts, who do not do it.
static bool may_gather(const struct planner *planner, const struct program *program)
{
    return program == &planner->program && planner->machine.expert == EXPERT_NONE &&
           planner->machine.n > 1;
}

// Solves first without memory limits, then with them if the plan exceeds them or is not good enough
// (is_good). Gathering a weight only takes time, so it pays only in the second program.
static tsr_status solve_built(struct planner *planner, const struct program *program, int64_t beat,
                              struct program_result *result)
{
    struct solve_shares shares = shares_of(planner);
    double share = program->limits.n ? shares.unlimited : shares.alone;
    TRY(solve_unlimited(planner, program, share, result));
    if (program->limits.n == 0 || (is_good(planner, result) && fits(program, result->choice)))
        return TSR_OK;
    if (is_beaten(beat, result)) {
        result->feasible = false;
        return TSR_OK;
    }
    struct program_result unlimited = *result;
    planner->memory.binds = true;
    if (may_gather(planner, program) && !tsr__planner_rebuild(planner, true))
        return TSR_NOMEM;
    TRY(solve_limited(planner, program, result));
    if (!result->feasible && planner->memory.may_exceed && unlimited.feasible)
        return exceed_limits(planner, program, &unlimited, result);
    return TSR_OK;
}

tsr_status tsr__planner_solve(struct planner *planner, const struct program *program, int64_t beat,
                              struct program_result *result)
{
    if (planner->pace.late) { // there is no program
        *result = (struct program_result){.bound = planner->pace.least};
        return TSR_OK;
    }
    tsr_status st = solve_built(planner, program, beat, result);
    tsr__build_settle(planner, result);
    return st;
}

// ---- figures -----------------------------------------------------------------------------------

// Writes the program as an LP file. The file appears only when it is complete: tsr__out_abort does
// nothing after a commit.
tsr_status tsr__planner_export(tsr_session *session, const struct program *program,
                               const char *path)
{
    struct outfile outfile = {0};
    struct text text = {.session = session};
    text.max = UINT32_MAX;
    tsr_status st = tsr__program_lp(program, &text);
    if (st != TSR_OK)
        goto free_text;
    st = tsr__out_open(session, path, &outfile);
    if (st != TSR_OK)
        goto abort_file;
    tsr__out_write(&outfile, text.p, text.n);
    st = tsr__out_commit(&outfile);
abort_file:
    tsr__out_abort(&outfile);
free_text:
    tsr__text_free(&text);
    return st;
}

// True if the node at that index is sharded, or a node in its bodies.
static bool is_cut(const struct planner *planner, size_t i)
{
    const struct plan_bodies *bodies = planner->nodes[i].bodies;
    for (size_t k = bodies ? bodies_begin(bodies, i) : i; k <= i; k++) {
        const struct plan_node *node = &planner->nodes[k];
        if (node->strategy && !node->border && node->strategy->at.at[node->choice].cut)
            return true;
    }
    return false;
}

bool tsr__planner_add_counts(const struct planner *planner, const struct collective_count *counts,
                             size_t n, tsr_plan_part *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    tsr_collective_count *list = ARENA_ARRAY(arena, tsr_collective_count, n + 1);
    if (!list)
        return false;
    for (size_t i = 0; i < n; i++)
        list[i] = (tsr_collective_count){.op = counts[i].op, .count = counts[i].count};
    out->collectives = list;
    out->n_collectives = n;
    if (planner->config)
        out->config = tsr__arena_str(arena, str_of(tsr_config_name(planner->config))).p;
    out->nodes = tsr__control_node_count(tsr_model_graph(planner->model));
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy && !planner->nodes[i].border)
            out->cut_nodes += is_cut(planner, i);
    return !arena->failed;
}

void tsr__planner_copy_counts(const tsr_plan_part *part, tsr_plan_result *out)
{
    out->facts.config = part->config;
    out->collectives = part->collectives;
    out->facts.n_collectives = part->n_collectives;
    out->facts.nodes = part->nodes;
    out->facts.cut_nodes = part->cut_nodes;
}
