// SPDX-License-Identifier: Apache-2.0
// pipeline_search.c - solves many pipelines, each with all its stages as one program
// (pipeline_program.c), and keeps the best.
//
// The cells of dynamic_program.c are filled with ranges that are not charged for crossing values,
// which gives a lower bound of every pipeline. Pipelines are then enumerated from their last stage,
// as long as they may still beat the best so far:
//
//     Example: the best pipeline so far takes 20 ms. Pipelines that end with range C on device 0
//     take at least 9 ms before C (the cell) and 6 ms for C, together 15 ms: they are enumerated.
//     With C on devices 0 and 1, the bound is 14 + 7 = 21 ms: they are skipped.
//
// For throughput the slowest stage replaces the sum, and each pipeline is simulated (throughput.c).
// Pipelines that are skipped for lack of time lower the reported bound.
#include "plan/stages/stage_search.h"

#include <stdlib.h>

#define PIPELINE_NODES 4000  // maximum number of nodes in all solved pipelines together
#define MOST_PIPELINES 50000 // maximum number of enumerated pipelines

// The enumeration of pipelines: the best so far, and lower bounds.
struct pipeline_trial {
    struct pipeline best;
    int64_t least; // lower bound of the solved pipelines
    int64_t left;  // lower bound of the others; INT64_MAX: all were solved, or cannot be the best
    size_t tried, most; // number of solved pipelines, and its limit
    size_t looked;      // number of enumerated pipelines, solved or not
    bool flows;         // each stage sends to the next one only
};
// A possible last stage of the pipelines that end at a state. Lower bounds: `total` for the
// complete pipeline in terms of the objective, `sum` for the sum of all its stages, `own` for this
// stage.
struct ending {
    int64_t total, sum, own;
    size_t begin, block;
};
// The stages that were chosen so far, from the last stage of the pipeline backwards.
struct trail {
    struct ending at[STAGES_MOST];
    size_t n;
};

static int by_total(const void *a, const void *b)
{
    const struct ending *x = a, *y = b;
    if (x->total != y->total)
        return x->total < y->total ? -1 : 1;
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->block > y->block) - (x->block < y->block);
}

// ---- one pipeline ------------------------------------------------------------------------------

// Converts the trail, which lists the stages from last to first, to a pipeline.
static void read_trail(const struct stage_search *search, const struct trail *trail,
                       struct pipeline *out)
{
    *out = (struct pipeline){.n = trail->n};
    for (size_t k = 0; k < trail->n; k++) {
        const struct ending *ending = &trail->at[trail->n - 1 - k];
        const struct block *block = &search->blocks[ending->block];
        size_t end = search->staging->n_ranges;
        if (k + 1 < trail->n)
            end = trail->at[trail->n - 2 - k].begin;
        out->at[k] = (struct stage){.begin = ending->begin,
                                    .end = end,
                                    .n = block->n,
                                    .devices = block->devices,
                                    .kind = block->kind,
                                    .memory = block->memory};
    }
}

// Returns a lower bound of the time of the busiest stage, at least `least`. It is raised only if
// each stage sends to the next one only (trial->flows), because then the neighbours of a stage are
// known.
static int64_t least_pace(struct stage_search *search, const struct trail *trail, int64_t least)
{
    const struct block *blocks = search->blocks;
    for (size_t k = 0; k < trail->n && search->trial->flows; k++) {
        const struct ending *stage = &trail->at[k];
        const struct block *block = &blocks[stage->block];
        struct neighbours near = {.before = {block->start, 0}, .behind = {block->start, 0}};
        size_t end = k ? trail->at[k - 1].begin : search->staging->n_ranges;
        if (k)
            near.behind = (struct device_span){blocks[trail->at[k - 1].block].start,
                                               blocks[trail->at[k - 1].block].n};
        if (k + 1 < trail->n)
            near.before = (struct device_span){blocks[trail->at[k + 1].block].start,
                                               blocks[trail->at[k + 1].block].n};
        least = int64_max(least, tsr__search_busy(search, stage->begin, end, block, &near));
    }
    return least;
}

// Solves the pipeline of `trail` and keeps it if it is better than the best so far. `least` is a
// lower bound of its cost; if `least` is not below the best cost, nothing is solved.
static void try_line(struct stage_search *search, const struct trail *trail, int64_t least)
{
    struct pipeline_trial *trial = search->trial;
    trial->looked++;
    if (search->bottleneck)
        least = least_pace(search, trail, least);
    if (search->status != TSR_OK || least >= trial->best.answer.cost)
        return;
    struct pipeline *pipeline = ARENA_NEW(&search->staging->planner->arena, struct pipeline);
    if (!pipeline) {
        search->status = TSR_NOMEM;
        return;
    }
    read_trail(search, trail, pipeline);
    trial->tried++;
    if (search->bottleneck)
        search->status =
            tsr__throughput_solve(search->staging, pipeline, least, false, &pipeline->answer);
    else
        search->status = tsr__pipeline_solve(search->staging, pipeline, false, &pipeline->answer);
    if (search->status != TSR_OK || !pipeline->answer.feasible)
        return;
    struct plan_standing now = answer_standing(&pipeline->answer);
    struct plan_standing best = answer_standing(&trial->best.answer);
    trial->least = int64_min(trial->least, pipeline->answer.bound);
    if (tsr__plan_is_better(&now, &best, 0))
        trial->best = *pipeline;
}

static bool is_over(const struct stage_search *search)
{
    const struct pipeline_trial *trial = search->trial;
    return trial->tried >= trial->most || trial->looked >= MOST_PIPELINES ||
           search->staging->hasty || tsr__stages_over(search->staging);
}

// ---- all pipelines -----------------------------------------------------------------------------

// A position of the enumeration, which goes from the last stage to the first: `stages` stages are
// still to be chosen. They have the nodes before split point `cut` and the first `used` devices of
// the order.
struct state {
    size_t stages, cut, used;
    int64_t behind, sum; // lower bounds of the stages after it: by the objective, and their sum
    size_t next;         // split point where the stage after it ends; 0: none
};

// Combines the times of two parts of a pipeline: the sum, or for throughput the maximum.
static int64_t together(const struct stage_search *search, int64_t a, int64_t b)
{
    return search->bottleneck ? int64_max(a, b) : a + b;
}

static int64_t least_of(const struct stage_search *search, const struct cell *cell)
{
    return search->bottleneck ? cell->most : cell->sum;
}

// True if the stage after state->cut may follow a stage that starts at `begin`. With trial->flows,
// it must read only values of that stage.
static bool hands_on(const struct stage_search *search, const struct state *state, size_t begin)
{
    return !search->trial->flows || !state->next ||
           tsr__stages_follow(search->staging, begin, state->cut, state->next);
}

// Adds to `list` the stage from split point `begin` to state->cut, on the block. Adds nothing if no
// pipeline with this stage can be the best.
static void add_ending(struct stage_search *search, const struct state *state, size_t begin,
                       size_t block, struct ending *list, size_t *n)
{
    size_t start = search->blocks[block].start;
    const struct cell *before = tsr__search_cell(search, state->stages - 1, 0, begin, start);
    if (before->sum == INT64_MAX || !hands_on(search, state, begin))
        return;
    search->known = tsr__search_known(search, search->trial->best.answer.cost);
    if (tsr__search_hopeless(search, begin, state->cut, block, before->sum))
        return;
    int64_t own = tsr__search_value(search, begin, state->cut, block);
    if (search->status != TSR_OK || own >= NEVER_FITS)
        return;
    int64_t total =
        together(search, together(search, least_of(search, before), own), state->behind);
    if (total < search->trial->best.answer.cost)
        list[(*n)++] = (struct ending){total, before->sum + own + state->sum, own, begin, block};
}

// Lists all stages that can end at state->cut, best first. NULL: out of memory.
static struct ending *list_endings(struct stage_search *search, const struct state *state,
                                   size_t *n)
{
    size_t most = state->cut * search->n_sizes;
    struct ending *list = ARENA_ARRAY(&search->staging->planner->arena, struct ending, most + 1);
    *n = 0;
    if (!list)
        return NULL;
    if (!tsr__stages_may_end(search->staging, state->stages - 1, search->staging->cut[state->cut]))
        return list;
    for (size_t z = 0; z < search->n_sizes; z++) {
        size_t size = search->sizes[z];
        if (size > state->used || !tsr__search_may_start(search, state->used - size, size))
            continue;
        for (size_t begin = 0; begin < state->cut; begin++)
            add_ending(search, state, begin, (state->used - size) * search->n_sizes + z, list, n);
    }
    qsort(list, *n, sizeof *list, by_total);
    return list;
}

// Enumerates the pipelines that end with the stages of `trail`, which begin at state->cut. Solves
// those that may be the best.
static void walk(struct stage_search *search, const struct state *state, struct trail *trail)
{
    size_t n = 0;
    if (state->stages == 0) {
        try_line(search, trail, state->behind);
        return;
    }
    struct ending *list = list_endings(search, state, &n);
    if (!list)
        search->status = TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (search->status != TSR_OK || list[i].total >= search->trial->best.answer.cost)
            return;
        if (is_over(search)) {
            search->trial->left = int64_min(search->trial->left, list[i].total);
            return;
        }
        struct state before = {.stages = state->stages - 1,
                               .cut = list[i].begin,
                               .used = search->blocks[list[i].block].start,
                               .behind = together(search, state->behind, list[i].own),
                               .sum = state->sum + list[i].own,
                               .next = state->cut};
        trail->at[trail->n++] = list[i];
        walk(search, &before, trail);
        trail->n--;
    }
}

static void look_at_order(struct stage_search *search)
{
    size_t stages = 0;
    struct trail trail = {.n = 0};
    search->known = tsr__search_known(search, search->trial->best.answer.cost);
    if (!tsr__search_run(search, &stages) || search->status != TSR_OK)
        return;
    for (size_t k = search->least; k <= search->most; k++)
        for (size_t used = tsr__search_devices(search); used > 0; used--) {
            struct state end = {.stages = k, .cut = search->staging->n_ranges, .used = used};
            const struct cell *cell = tsr__search_cell(search, k, 0, end.cut, used);
            if (least_of(search, cell) < search->trial->best.answer.cost)
                walk(search, &end, &trail);
        }
}

// ---- entry -------------------------------------------------------------------------------------

// True if every stage sends only to the next one. If that does not hold for the first pipeline, it
// holds for none (tsr__stages_search).
static bool flows(struct staging *staging, const struct pipeline *pipeline)
{
    for (size_t k = 1; k < pipeline->n; k++)
        if (!tsr__stages_follow(staging, pipeline->at[k - 1].begin, pipeline->at[k].begin,
                                pipeline->at[k].end))
            return false;
    return true;
}

tsr_status tsr__pipeline_search(struct staging *staging, const tsr_plan_options *options,
                                struct pipeline *pipeline, int64_t *least)
{
    size_t nodes = staging->planner->n_nodes;
    *least = 0;
    // A model without nodes has one pipeline.
    if (nodes == 0 || staging->hasty || tsr__stages_over(staging))
        return TSR_OK;
    tsr_status st = TSR_OK;
    if (options->objective == TSR_THROUGHPUT)
        st = tsr__throughput_solve(staging, pipeline, 0, false, &pipeline->answer);
    else
        st = tsr__pipeline_solve(staging, pipeline, false, &pipeline->answer);
    if (st != TSR_OK)
        return st;
    if (!pipeline->answer.feasible)
        pipeline->answer.cost = pipeline->answer.bound = INT64_MAX;
    struct pipeline_trial trial = {.best = *pipeline,
                                   .least = pipeline->answer.bound,
                                   .left = INT64_MAX,
                                   .most = PIPELINE_NODES / nodes};
    // For throughput, the search solves the first pipeline again with its lower bound.
    if (options->objective == TSR_THROUGHPUT) {
        trial.least = INT64_MAX;
        trial.flows = flows(staging, pipeline);
    }
    TRY(tsr__search_orders(staging, options, look_at_order, &trial));
    *pipeline = trial.best;
    if (!staging->hasty)
        *least = int64_min(int64_min(trial.least, trial.left), pipeline->answer.cost);
    return TSR_OK;
}
