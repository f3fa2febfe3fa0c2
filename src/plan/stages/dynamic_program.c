// SPDX-License-Identifier: Apache-2.0
// dynamic_program.c - finds the best pipeline for a given order of devices by dynamic programming.
// A cell is the best pipeline with k stages that has the nodes before split point i and the first d
// devices. It extends a cell of k - 1 stages by one stage.
//
// Example: two ranges A and B on devices 1 and 0, in that order. On one device A takes 6 ms and B
// 4, on both 4 and 3; the transfer between them takes 1. The first cells (stages, split point,
// devices used):
//
//     0 stages, before A, 0 used:  0
//     1 stage,  after A,  1 used:  6        1 stage, after B, 1 used: 10 (A and B on device 1)
//     1 stage,  after A,  2 used:  4        1 stage, after B, 2 used:  7 (A and B on both: 4 + 3)
//     2 stages, after B,  2 used:  6 + 1 + 4 = 11
//
// For latency one stage on both devices is best (7). For throughput two stages also finish a run
// every 6 + 1 = 7 ms, so the smaller sum decides for one stage.
#include "plan/stages/stage_search.h"

// Solves the range on the block. Returns what search->measure asks for: the time with transfers,
// the memory, or the result of tsr__search_open. Returns NEVER_FITS if the range does not fit, if
// no time is left, or after an error.
static int64_t measure(struct stage_search *search, size_t i, size_t j, struct block *block)
{
    struct point point = {0};
    int64_t bytes = 0;
    if (!block->kind && tsr__stages_over(search->staging)) {
        search->staging->hasty = true;
        return NEVER_FITS;
    }
    if (!tsr__search_kind(search, block)) {
        search->status = TSR_NOMEM;
        return NEVER_FITS;
    }
    struct stage stage = stage_on(i, j, block);
    if (search->measure == MEASURE_MEMORY) {
        search->status = tsr__range_memory(search->staging, &stage, &bytes);
        return int64_min(bytes, NEVER_FITS);
    }
    if (search->measure == MEASURE_OPEN)
        return tsr__search_open(search, i, j, block);
    search->status = tsr__range_time(search->staging, &stage, false, &point);
    if (search->status != TSR_OK || !point.feasible)
        return NEVER_FITS;
    return int64_min(point.time + tsr__search_transfers(search, i, j, block), NEVER_FITS);
}

// Returns the measure of a range on a block, cached. Returns UNKNOWN after an error; callers check
// search->status.
int64_t tsr__search_value(struct stage_search *search, size_t i, size_t j, size_t block)
{
    size_t n_blocks = tsr__search_devices(search) * search->n_sizes;
    int64_t *at = &search->value[(i * (search->staging->n_ranges + 1) + j) * n_blocks + block];
    if (*at == UNKNOWN && search->status == TSR_OK)
        *at = measure(search, i, j, &search->blocks[block]);
    return *at;
}

// Returns the cell of a partial pipeline. `begin` is the split point where the last stage begins;
// it matters only if it restricts the next stage (`flows`).
struct cell *tsr__search_cell(struct stage_search *search, size_t stages, size_t begin, size_t cut,
                              size_t devices)
{
    size_t cuts = search->staging->n_ranges + 1, at = stages;
    if (search->flows)
        at = stages * cuts + begin;
    return &search->cells[(at * cuts + cut) * (tsr__search_devices(search) + 1) + devices];
}

// True if pipeline a is better. With search->bottleneck, the one with the faster slowest stage is
// better. Otherwise, and if these are equal, the smaller sum decides, then the faster slowest
// stage.
static bool better(const struct stage_search *search, const struct cell *a, const struct cell *b)
{
    if (search->bottleneck && a->most != b->most)
        return a->most < b->most;
    return a->sum < b->sum || (a->sum == b->sum && a->most < b->most);
}

// True if the stage from i to j reads only values of the previous stage, which starts at `begin`.
// Runs of a pipeline overlap only if this holds for all stages.
static bool follows(struct staging *model, size_t begin, size_t i, size_t j)
{
    const struct range *range = tsr__stages_range(model, i, j);
    return range && range->earliest >= model->cut[begin];
}

bool tsr__stages_follow(struct staging *staging, size_t begin, size_t i, size_t j)
{
    return follows(staging, begin, i, j) &&
           (!staging->other || follows(staging->other, begin, i, j));
}

// One more stage of a pipeline: the partial pipeline before it, and its block.
struct step {
    size_t stages, begin, cut,
        used;    // the last stage is from `begin` to `cut`; the first `used` devices are taken
    size_t size; // size of its block, as an index of search->sizes
};

// Tries to extend the pipeline `from` by a stage from split point step->cut to j. Stores the result
// in its cell if it is the best so far.
static void try_stage(struct stage_search *search, const struct cell *from, const struct step *step,
                      size_t j)
{
    size_t n = search->sizes[step->size], block = step->used * search->n_sizes + step->size;
    if (!tsr__stages_may_end(search->staging, step->stages, search->staging->cut[j]))
        return;
    if (search->flows && step->stages > 0 &&
        !tsr__stages_follow(search->staging, step->begin, step->cut, j))
        return;
    if (tsr__search_hopeless(search, step->cut, j, block, from->sum))
        return;
    // `own` is the time that counts for latency. For throughput, and to compare pipelines of the
    // same latency, the stage is also busy while it sends.
    int64_t own = tsr__search_value(search, step->cut, j, block), busy = own;
    bool latency = !search->bottleneck && search->cap == INT64_MAX;
    if (search->flows || (latency && own < NEVER_FITS))
        busy += tsr__search_hands_over(search, step->cut, j, &search->blocks[block]);
    if (own >= NEVER_FITS || busy > search->cap)
        return;
    struct cell *to = tsr__search_cell(search, step->stages + 1, step->cut, j, step->used + n);
    struct cell next = {from->sum + own, int64_max(busy, from->most), step->cut, from->begin,
                        block};
    if (better(search, &next, to))
        *to = next;
}

// Extends the partial pipeline `step` by one stage, on blocks of every size and up to every split
// point. If no further stage may follow, the stage ends at the end of the graph.
static void extend(struct stage_search *search, struct step step)
{
    const struct cell from =
        *tsr__search_cell(search, step.stages, step.begin, step.cut, step.used);
    size_t last = search->staging->n_ranges, first = step.cut + 1;
    if (step.stages + 1 == search->most)
        first = last;
    if (step.used >= tsr__search_devices(search))
        return;
    for (step.size = 0; step.size < search->n_sizes; step.size++) {
        if (search->status != TSR_OK)
            return;
        if (!tsr__search_may_start(search, step.used, search->sizes[step.size]))
            continue;
        for (size_t j = first; j <= last; j++)
            if (j % search->grain == 0 || j == last)
                try_stage(search, &from, &step, j);
    }
}

// Returns the cell of the best complete pipeline; NULL: none. Tries larger device counts first, so
// that among equal pipelines the one with fewer idle devices wins.
static const struct cell *best_end(struct stage_search *search, size_t *stages)
{
    const struct cell *best = NULL;
    size_t cuts = search->staging->n_ranges, begins = search->flows ? cuts : 1;
    for (size_t k = search->least; k <= search->most; k++)
        for (size_t used = tsr__search_devices(search); used > 0; used--)
            for (size_t begin = 0; begin < begins; begin++) {
                const struct cell *cell = tsr__search_cell(search, k, begin, cuts, used);
                if (cell->sum < INT64_MAX && (!best || better(search, cell, best))) {
                    best = cell;
                    *stages = k;
                }
            }
    return best;
}

// Extends the partial pipelines that have step.stages stages and end at step.cut, for every number
// of used devices.
static void extend_all(struct stage_search *search, struct step step)
{
    for (step.used = step.stages; step.used < tsr__search_devices(search); step.used++) {
        if (search->status != TSR_OK)
            return;
        if (tsr__search_cell(search, step.stages, step.begin, step.cut, step.used)->sum < INT64_MAX)
            extend(search, step);
    }
}

// Fills the cells, those of fewer stages first. Devices at either end of the order may stay idle.
const struct cell *tsr__search_run(struct stage_search *search, size_t *stages)
{
    size_t cuts = search->staging->n_ranges;
    for (size_t i = 0; i < search->n_cells; i++)
        search->cells[i] = (struct cell){INT64_MAX, INT64_MAX, 0, 0, 0};
    // A pipeline may begin at any device; the devices before it are idle.
    for (size_t used = 0; used < tsr__search_devices(search); used++)
        *tsr__search_cell(search, 0, 0, 0, used) = (struct cell){0};
    size_t begins = search->flows ? cuts : 1, all = search->most * begins * cuts;
    for (size_t k = 0; k < search->most; k++)
        for (size_t begin = 0; begin < begins; begin++)
            for (size_t i = k; i < cuts; i++) {
                tsr__progress(search->staging->planner->session, "stages: step",
                              (k * begins + begin) * cuts + i, all);
                extend_all(search, (struct step){.stages = k, .begin = begin, .cut = i});
            }
    tsr__progress(search->staging->planner->session, "stages: step", all, all);
    if (search->status != TSR_OK)
        return NULL;
    return best_end(search, stages);
}

void tsr__search_forget(struct stage_search *search, enum measure what)
{
    size_t n = (search->staging->n_ranges + 1) * (search->staging->n_ranges + 1) *
               tsr__search_devices(search) * search->n_sizes;
    for (size_t i = 0; i < n; i++)
        search->value[i] = UNKNOWN;
    search->measure = what;
    search->cap = INT64_MAX;
    search->knows_rest = false;
    tsr__map_init(&search->transfers, &search->staging->planner->arena, 256);
}

// Reads the stages of the best pipeline, from its final cell back to the first stage.
static void read_line(struct stage_search *search, size_t stages, const struct cell *cell,
                      struct pipeline *out)
{
    size_t cut = search->staging->n_ranges;
    *out = (struct pipeline){.n = stages, .sum = cell->sum, .most = cell->most};
    for (size_t k = stages; k > 0; k--) {
        const struct block *block = &search->blocks[cell->block];
        struct stage *stage = &out->at[k - 1];
        *stage =
            (struct stage){.begin = cell->begin, .end = cut, .n = block->n, .kind = block->kind};
        stage->memory = block->memory;
        stage->devices = ARENA_ARRAY(&search->staging->planner->arena, int64_t, block->n);
        if (stage->devices)
            memcpy(stage->devices, block->devices, block->n * sizeof *stage->devices);
        cut = cell->begin;
        cell = tsr__search_cell(search, k - 1, cell->before, cut, block->start);
    }
}

// Finds the best pipeline. For throughput it searches twice: first for the shortest period, then
// for the smallest total time with that period.
bool tsr__search_line(struct stage_search *search, tsr_objective objective, struct pipeline *out)
{
    size_t stages = 0;
    search->bottleneck = objective == TSR_THROUGHPUT || search->measure == MEASURE_MEMORY;
    const struct cell *end = tsr__search_run(search, &stages);
    // The slowest stage (`most`) of the best pipeline is the period. The second run must not
    // exceed it and minimizes the sum.
    if (end && search->bottleneck && search->measure == MEASURE_TIME) {
        search->cap = end->most;
        search->bottleneck = false;
        end = tsr__search_run(search, &stages);
    }
    if (end)
        read_line(search, stages, end, out);
    return end != NULL;
}
