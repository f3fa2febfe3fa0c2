// SPDX-License-Identifier: Apache-2.0
// stage_lines.c - the best of many lines of stages, each with all its stages as one program (stage_line.c).
//
// The cells of stages.c are filled once more, with ranges whose ends are open: what crosses costs next to nothing, so no line takes
// less than its ranges do. Lines are then walked from their ends, as far as they may still beat the best that is known:
//
//     known: 20 ms. Lines that end with range C on device 0: the cell before it has 9, C takes 6: 15, so they are looked at. With C
//     on devices 0 and 1: 14 + 7 = 21: none of them is.
//
// What is left out for want of time lowers what is proved, not what is found.
#include "plan/stage_search.h"

#include <stdlib.h>

#define FEW_NODES                                                                                  \
    100000 // ranges by ranges by nodes: of more, open ranges are not solved by themselves
#define LINE_NODES 4000 // nodes of all lines that are solved

struct line_trial {
    struct line best;
    int64_t least; // no line of those that were solved takes less
    int64_t left;  // of those that were not; INT64_MAX: all were, or cannot be the best
    size_t tried, most;
};
// A last stage of the lines that end at a state, and what they take at least.
struct ending {
    int64_t total, own;
    size_t begin, block;
};
// The stages behind the state at hand, the last first.
struct trail {
    struct ending at[STAGES_MOST];
    size_t n;
};

static int by_total(const void *a, const void *b)
{
    const struct ending *x = a, *y = b;
    if (x->total != y->total)
        return x->total < y->total ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->block > y->block) - (x->block < y->block);
}

// ---- one line ----------------------------------------------------------------------------------

// The stages of the trail, in line.
static void read_trail(const struct search *search, const struct trail *trail, struct line *out)
{
    *out = (struct line){.n = trail->n};
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

// Solves the line; if it is better it is the best from now on.
static void try_line(struct search *search, const struct trail *trail)
{
    struct line_trial *trial = search->trial;
    struct line *line = ARENA_NEW(&search->staging->planner->arena, struct line);
    if (!line) {
        search->status = TSR_NOMEM;
        return;
    }
    read_trail(search, trail, line);
    trial->tried++;
    search->status = tsr__line_solve(search->staging, line, &line->answer);
    if (search->status != TSR_OK || !line->answer.feasible)
        return;
    trial->least = smaller(trial->least, line->answer.bound);
    if (line->answer.cost < trial->best.answer.cost)
        trial->best = *line;
}

static bool is_over(const struct search *search)
{
    const struct line_trial *trial = search->trial;
    return trial->tried >= trial->most || search->staging->hasty ||
           tsr__stages_over(search->staging);
}

// ---- all lines ---------------------------------------------------------------------------------

// A state: so many stages, nodes up to that cut, the first devices of the line.
struct state {
    size_t stages, cut, used;
    int64_t behind; // what the stages behind it take at least
};

// The last stage from cut `begin` on the block, if lines with it may be the best.
static void add_ending(struct search *search, const struct state *state, size_t begin, size_t block,
                       struct ending *list, size_t *n)
{
    size_t start = search->blocks[block].start;
    const struct cell *before = tsr__search_cell(search, state->stages - 1, 0, begin, start);
    if (before->sum == INT64_MAX)
        return;
    int64_t own = tsr__search_value(search, begin, state->cut, block);
    if (search->status != TSR_OK || own >= NEVER_FITS)
        return;
    int64_t total = before->sum + own + state->behind;
    if (total < search->trial->best.answer.cost)
        list[(*n)++] = (struct ending){total, own, begin, block};
}

// All last stages of the lines that end at the state, the nearest first. NULL: out of memory.
static struct ending *list_endings(struct search *search, const struct state *state, size_t *n)
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

// Walks from a state to the begin of the lines. `trail` has the stages behind it.
static void walk(struct search *search, const struct state *state, struct trail *trail)
{
    size_t n = 0;
    if (state->stages == 0) {
        try_line(search, trail);
        return;
    }
    struct ending *list = list_endings(search, state, &n);
    if (!list)
        search->status = TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (search->status != TSR_OK || list[i].total >= search->trial->best.answer.cost)
            return;
        if (is_over(search)) {
            search->trial->left = smaller(search->trial->left, list[i].total);
            return;
        }
        struct state before = {state->stages - 1, list[i].begin,
                               search->blocks[list[i].block].start, state->behind + list[i].own};
        trail->at[trail->n++] = list[i];
        walk(search, &before, trail);
        trail->n--;
    }
}

void tsr__lines_of_order(struct search *search)
{
    size_t stages = 0;
    struct trail trail = {.n = 0};
    if (!tsr__search_run(search, &stages) || search->status != TSR_OK)
        return;
    for (size_t k = search->least; k <= search->most; k++)
        for (size_t used = tsr__search_devices(search); used > 0; used--) {
            struct state end = {k, search->staging->n_ranges, used, 0};
            int64_t sum = tsr__search_cell(search, k, 0, end.cut, used)->sum;
            if (sum < search->trial->best.answer.cost)
                walk(search, &end, &trail);
        }
}

// ---- entry -------------------------------------------------------------------------------------

tsr_status tsr__stages_improve(struct staging *staging, const tsr_plan_options *options,
                               struct line *line, int64_t *least)
{
    size_t nodes = staging->planner->n_nodes;
    *least = 0;
    // Of a model without nodes (its outputs are inputs) no line is better than another.
    if (nodes == 0 || staging->hasty || tsr__stages_over(staging))
        return TSR_OK;
    tsr_status st = tsr__line_solve(staging, line, &line->answer);
    if (st != TSR_OK || !line->answer.feasible)
        return st;
    staging->large = staging->n_ranges * staging->n_ranges * nodes > FEW_NODES;
    struct line_trial trial = {
        .best = *line, .least = line->answer.bound, .left = INT64_MAX, .most = LINE_NODES / nodes};
    st = tsr__search_orders(staging, options, &trial);
    if (st != TSR_OK)
        return st;
    *line = trial.best;
    if (!staging->hasty)
        *least = smaller(smaller(trial.least, trial.left), line->answer.cost);
    return TSR_OK;
}
