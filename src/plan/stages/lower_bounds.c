// SPDX-License-Identifier: Apache-2.0
// stage_floor.c - what nodes take at least, however they are cut and whatever crosses: each its cheapest way. It is known without
// solving anything, so ranges that no good line can have are not solved.
//
//     A line of 10 ms is known. A range whose nodes take 8 ms at least on a slow device, when the nodes behind it take 3 at least on
//     any devices: no line with it takes less than 11, and what it takes exactly does not matter.
#include "plan/stages/stage_search.h"

// The cheapest way of a node on a kind of block.
static int64_t cheapest(const struct plan_node *node)
{
    int64_t least = PLAN_NEVER;
    if (!node->strategy)
        return 0;
    for (size_t i = 0; i < node->strategy->at.n; i++) {
        const struct candidate *way = &node->strategy->at.at[i];
        least = int64_min(least, way->compute + way->comm);
    }
    return least;
}

// Sums over the nodes before each place of the graph, made once. False: out of memory.
static bool fill_floor(const struct staging *staging, struct kind *kind)
{
    size_t n = staging->cut[staging->n_ranges];
    if (kind->floor)
        return true;
    kind->floor = ARENA_ARRAY(&kind->planner.arena, int64_t, n + 1);
    if (!kind->floor)
        return false;
    for (size_t i = 0; i < n; i++)
        kind->floor[i + 1] = int64_min(kind->floor[i] + cheapest(&kind->nodes[i]), PLAN_NEVER);
    return true;
}

// For each cut, what the nodes behind it take at least on any block of this order. Where there is no time for that, nothing.
static bool fill_rest(struct search *search)
{
    const struct staging *staging = search->staging;
    size_t n = staging->n_ranges, blocks = tsr__search_devices(search) * search->n_sizes;
    for (size_t i = 0; i <= n; i++)
        search->rest[i] = 0;
    search->knows_rest = true;
    for (size_t i = n; i-- > 0;) {
        int64_t least = PLAN_NEVER;
        for (size_t b = 0; b < blocks; b++) {
            struct block *block = &search->blocks[b];
            if (!block->devices)
                continue;
            if (!block->kind && tsr__stages_over(staging))
                return true;
            if (!tsr__search_kind(search, block) || !fill_floor(staging, block->kind))
                return false;
            least = int64_min(least, block->kind->floor[staging->cut[i + 1]] -
                                         block->kind->floor[staging->cut[i]]);
        }
        search->rest[i] = int64_min(search->rest[i + 1] + least, PLAN_NEVER);
    }
    return true;
}

// Lines are counted without the nodes that are in no stage; the plan without stages has them, too.
int64_t tsr__search_known(const struct search *search, int64_t takes)
{
    const struct staging *staging = search->staging;
    if (staging->rival == INT64_MAX)
        return takes;
    return int64_min(takes, int64_max(staging->rival - staging->common, 0));
}

// Two models are solved as one program with nodes of both; nothing is said of that.
bool tsr__search_hopeless(struct search *search, size_t i, size_t j, size_t at, int64_t others)
{
    struct block *block = &search->blocks[at];
    if (search->known == INT64_MAX || search->staging->other || search->measure == MEASURE_MEMORY ||
        search->status != TSR_OK)
        return false;
    if (!block->kind && tsr__stages_over(search->staging))
        return false;
    if ((!search->knows_rest && !fill_rest(search)) || !tsr__search_kind(search, block) ||
        !fill_floor(search->staging, block->kind)) {
        search->status = TSR_NOMEM;
        return false;
    }
    const size_t *cut = search->staging->cut;
    int64_t own = block->kind->floor[cut[j]] - block->kind->floor[cut[i]];
    if (search->paced)
        return own > search->known;
    return others + own + search->rest[j] > search->known;
}
