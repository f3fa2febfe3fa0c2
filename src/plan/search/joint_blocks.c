// SPDX-License-Identifier: Apache-2.0
// joint_blocks.c - two models of the same weights on a large machine: both are planned together for one block of devices, and all
// other blocks do the same with their shares of the requests (blocks.c).
//
// Weights must lie the same in both models, so both have the same block, the same number of times: as many copies as divide the
// batches of both.
//
//     prefill with batch 64 and decode with batch 96 on hosts:128x8: 32 divides both. Blocks of 32 devices 32 times, 64 devices
//     16 times; blocks of 1 device work 32 times, and 992 devices are idle. The fastest of them is the answer.
#include "plan/search/device_sets.h"
#include "plan/search/models.h"

// Two models, and the blocks that are tried: block i of the one goes with block i of the other.
struct pair {
    struct blocks *of[2];
    tsr_plan_options options[2];
    int64_t runs[2], memory;
    size_t best;         // SIZE_MAX: none yet
    struct twins twins;  // of the best
    int64_t cost, bound; // of both, with all their runs; bound: of the blocks that were looked at
    bool back;           // the first model could be told the best again, if that was needed
};

// States are the second model's, and so are the sizes that were given for it.
static void split_options(struct pair *pair, const tsr_plan_options *options)
{
    pair->options[0] = pair->options[1] = *options;
    pair->options[0].n_state = 0;
    pair->options[1].sizes = options->with_sizes;
    pair->options[1].n_sizes = options->n_with_sizes;
}

// Lists the same blocks for both. False: out of memory.
static bool list_pairs(struct pair *pair)
{
    struct blocks *first = pair->of[0], *second = pair->of[1];
    tsr__blocks_find_batch(first);
    tsr__blocks_find_batch(second);
    first->shared = second->shared = common_divisor(first->batch_size, second->batch_size);
    if (!first->batch || !second->batch)
        first->batch = second->batch = NULL;
    if (!tsr__blocks_list_alike(first))
        return false;
    second->n = first->n;
    for (size_t i = 0; i < first->n; i++)
        second->at[i] = (struct block_plan){
            .devices = first->at[i].devices, .n = first->at[i].n, .copies = first->at[i].copies};
    return true;
}

static void end_block(struct pair *pair, size_t i)
{
    for (int m = 0; m < 2; m++) {
        struct block_plan *plan = &pair->of[m]->at[i];
        if (plan->made)
            tsr__planner_end(&plan->planner);
        plan->made = false;
    }
}

// ---- one block ---------------------------------------------------------------------------------

// Both planners of a block, which draw on the first one's budget.
static tsr_status open_pair(struct pair *pair, size_t i)
{
    struct block_plan *first = &pair->of[0]->at[i], *second = &pair->of[1]->at[i];
    tsr_status st = tsr__block_open(pair->of[0], first);
    if (st != TSR_OK)
        return st;
    st = tsr__block_open(pair->of[1], second);
    second->planner.budget = &first->budget;
    if (st != TSR_OK)
        return st;
    if (!tsr__planner_hands_over(&first->planner, &second->planner))
        return TSR_NOMEM;
    return TSR_OK;
}

// What each model takes by itself, with what copies of the block take besides.
static void take_choices(struct pair *pair, const struct joint *joint, size_t i,
                         const uint32_t *choice)
{
    for (int m = 0; m < 2; m++) {
        struct block_plan *plan = &pair->of[m]->at[i];
        const uint32_t *own = choice + joint->first[m];
        tsr__planner_take(&plan->planner, own);
        plan->cost =
            tsr__program_cost(&plan->planner.program, own) + tsr__block_price(pair->of[m], plan);
    }
}

// Solves the program of both for the block; the first plan's result is that of both.
static tsr_status solve_pair(struct pair *pair, size_t i, struct joint *joint, struct twins *twins)
{
    struct block_plan *first = &pair->of[0]->at[i];
    struct map links;
    tsr_status st = open_pair(pair, i);
    if (st != TSR_OK)
        return st;
    joint->planners[0] = &first->planner;
    joint->planners[1] = &pair->of[1]->at[i].planner;
    joint->links = &links;
    joint->link_arena = &first->planner.arena;
    tsr__map_init(&links, &first->planner.arena, 256);
    if (!tsr__joint_build(joint, twins, pair->memory))
        return TSR_NOMEM;
    st = tsr__planner_solve(&first->planner, &joint->program, &first->result);
    if (st == TSR_OK && first->result.feasible)
        take_choices(pair, joint, i, first->result.choice);
    return st;
}

// Tells both planners of the whole machine. False: one of the models has a value that cannot be told so; then both are as the
// best block before has it.
static bool lift_pair(struct pair *pair, size_t i)
{
    if (!tsr__block_lift(pair->of[0], &pair->of[0]->at[i]))
        return false;
    if (tsr__block_lift(pair->of[1], &pair->of[1]->at[i]))
        return true;
    // The first model goes back to the best block, which could be told before: only memory may be lacking, which callers see.
    if (pair->best != SIZE_MAX)
        pair->back = tsr__block_lift(pair->of[0], &pair->of[0]->at[pair->best]);
    return false;
}

static bool is_out_of_memory(const struct pair *pair)
{
    return pair->of[0]->planner->arena.failed || pair->of[1]->planner->arena.failed || !pair->back;
}

// Keeps the block if it beats the best so far; one of the two is ended.
static tsr_status keep_better(struct pair *pair, size_t i, const struct joint *joint,
                              const struct twins *twins)
{
    const struct program_result *result = &pair->of[0]->at[i].result;
    int64_t cost = tsr__joint_time(pair->of[0]->at[i].cost, pair->runs[1], pair->of[1]->at[i].cost);
    if (!result->infeasible)
        pair->bound = int64_min(pair->bound, result->bound << joint->shift);
    bool beats = result->feasible && (pair->best == SIZE_MAX || cost < pair->cost);
    if (!beats || !lift_pair(pair, i)) {
        end_block(pair, i);
        if (is_out_of_memory(pair))
            return TSR_NOMEM;
        return TSR_OK;
    }
    if (pair->best != SIZE_MAX)
        end_block(pair, pair->best);
    pair->best = i;
    pair->cost = cost;
    pair->twins = *twins;
    return TSR_OK;
}

// left: blocks that are still to be planned, with this one; each has an equal share of what is left of the budget.
static tsr_status plan_pair(struct pair *pair, size_t i, size_t left)
{
    struct budget *all = pair->of[0]->planner->budget;
    struct block_plan *first = &pair->of[0]->at[i], *second = &pair->of[1]->at[i];
    struct twins twins;
    struct joint joint = {.twins = &twins, .runs = {pair->runs[0], pair->runs[1]}};
    first->budget = tsr__budget_part(all, 1.0 / (double)left);
    second->budget = first->budget;
    uint64_t work = first->budget.work;
    tsr_status st = solve_pair(pair, i, &joint, &twins);
    tsr__budget_spend(all, work - first->budget.work);
    first->planner.budget = second->planner.budget = all;
    if (st != TSR_OK) {
        end_block(pair, i);
        return st;
    }
    return keep_better(pair, i, &joint, &twins);
}

// Blocks that nobody had the time to plan share out the work of one device at best.
static void bound_unplanned(struct pair *pair)
{
    if (pair->best == SIZE_MAX)
        return;
    double work = 0;
    for (int m = 0; m < 2; m++) {
        const struct block_plan *plan = &pair->of[m]->at[pair->best];
        work += (double)tsr__planner_whole_time(&plan->planner) * (double)plan->copies *
                (double)pair->runs[m];
    }
    pair->bound =
        int64_min(pair->bound, (int64_t)(work / tsr__planner_speeds(pair->of[0]->planner)));
}

static tsr_status plan_pairs(struct pair *pair)
{
    size_t n = pair->of[0]->n;
    pair->bound = PLAN_NEVER;
    for (size_t i = 0; i < n; i++) {
        struct planner *planner = pair->of[0]->planner;
        bool wanted = pair->best != SIZE_MAX || !tsr__cancelled(planner->session);
        if (tsr__budget_over(planner->budget) && wanted) {
            bound_unplanned(pair);
            return TSR_OK;
        }
        tsr_status st = plan_pair(pair, i, n - i);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// ---- the answer --------------------------------------------------------------------------------

// Writes one model, and says what it comes to on all devices.
static tsr_status write_part(struct pair *pair, int m, struct block_choice *choice,
                             tsr_plan_part *out)
{
    struct blocks *blocks = pair->of[m];
    struct planner *planner = blocks->planner;
    tsr_plan_summary told = {0};
    // Nodes of a block have devices of their own, like those of a stage.
    planner->scope.staged = true;
    tsr_status st = tsr__planner_write(planner, pair->options[m].config);
    if (st != TSR_OK)
        return st;
    if (!tsr__block_tell(blocks, &blocks->at[pair->best], choice))
        return TSR_NOMEM;
    st = tsr__planner_tell(planner, choice, &told);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_part){.config = told.config,
                           .cost = blocks->at[pair->best].cost,
                           .memory = choice->memory,
                           .collectives = told.collectives,
                           .n_collectives = told.n_collectives,
                           .nodes = told.nodes,
                           .cut_nodes = told.cut_nodes};
    return TSR_OK;
}

// What both hold on the devices of a block, and then in all copies of it. False: out of memory.
static bool tell_memory(struct pair *pair, struct joint *joint, int64_t *memory, int64_t *peak)
{
    struct arena *arena = &pair->of[0]->planner->arena;
    size_t n = (size_t)pair->of[0]->at[pair->best].n;
    tsr_plan_part parts[2] = {0};
    int64_t inputs = 0, *held = ARENA_ARRAY(arena, int64_t, n);
    int64_t *peaks = ARENA_ARRAY(arena, int64_t, 2 * n);
    if (!held || !peaks)
        return false;
    for (int m = 0; m < 2; m++) {
        int64_t *own = ARENA_ARRAY(arena, int64_t, n);
        if (!own || !tsr__planner_memory(joint->planners[m], own, peaks + (size_t)m * n))
            return false;
        parts[m].memory = own;
        inputs = int64_max(inputs, tsr__block_inputs(pair->of[m], &pair->of[m]->at[pair->best]));
    }
    if (!tsr__joint_memory(joint, parts, held, peaks))
        return false;
    const struct block_plan *block = &pair->of[0]->at[pair->best];
    for (int64_t copy = 0; copy < block->copies; copy++)
        for (size_t device = 0; device < n; device++) {
            memory[copy * block->n + block->devices[device]] = held[device] + inputs;
            peak[copy * block->n + block->devices[device]] = peaks[device] + inputs;
        }
    return true;
}

// Both models are written, and the summary is that of both.
static tsr_status tell(struct pair *pair, tsr_plan_summary *out)
{
    struct planner *planner = pair->of[0]->planner;
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    size_t n = (size_t)planner->machine.n;
    struct block_choice choice[2];
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, 2);
    int64_t *memory = ARENA_ARRAY(arena, int64_t, n), *peak = ARENA_ARRAY(arena, int64_t, n);
    struct joint joint = {.twins = &pair->twins, .runs = {pair->runs[0], pair->runs[1]}};
    if (!parts || !memory || !peak)
        return TSR_NOMEM;
    for (int m = 0; m < 2; m++) {
        tsr_status st = write_part(pair, m, &choice[m], &parts[m]);
        if (st != TSR_OK)
            return st;
        joint.planners[m] = &pair->of[m]->at[pair->best].planner;
    }
    if (!tell_memory(pair, &joint, memory, peak))
        return TSR_NOMEM;
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = n, .feasible = true};
    out->memory = memory;
    out->peak = peak;
    out->used_devices = choice[0].devices;
    out->copies = choice[0].copies;
    struct program_result result = {.bound = int64_min(pair->bound, pair->cost)};
    result.optimal = result.bound == pair->cost;
    tsr__joint_sum_up(&joint, &result, parts, out);
    return TSR_OK;
}

// The blocks of one of the models. False: out of memory.
static bool start_blocks(struct pair *pair, int m, struct planner *planner)
{
    pair->of[m] = ARENA_NEW(&planner->arena, struct blocks);
    if (!pair->of[m] || !tsr__planner_list(planner))
        return false;
    pair->of[m]->planner = planner;
    pair->of[m]->options = &pair->options[m];
    return true;
}

tsr_status tsr__plan_joint_blocks(struct planner *planner, struct planner *with,
                                  const tsr_plan_options *options, tsr_plan_summary *out,
                                  bool *found)
{
    struct pair *pair = ARENA_NEW(&planner->arena, struct pair);
    if (!pair)
        return TSR_NOMEM;
    pair->best = SIZE_MAX;
    pair->back = true;
    pair->runs[0] = 1;
    pair->runs[1] = int64_max(options->steps, 1);
    pair->memory = tsr__joint_limit(options);
    split_options(pair, options);
    if (!start_blocks(pair, 0, planner) || !start_blocks(pair, 1, with) || !list_pairs(pair))
        return TSR_NOMEM;
    tsr_status st = plan_pairs(pair);
    *found = st == TSR_OK && pair->best != SIZE_MAX;
    if (*found)
        st = tell(pair, out);
    // The nodes have names and rules of the block, which ends with its planner.
    for (int m = 0; m < 2; m++)
        if (pair->best != SIZE_MAX)
            pair->of[m]->planner->block = &pair->of[m]->at[pair->best].planner;
    tsr__budget_told(planner->budget);
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    return st;
}
