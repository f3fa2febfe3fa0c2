// SPDX-License-Identifier: Apache-2.0
// lower_bounds.c - computes lower bounds without solving a program: it assumes the cheapest
// candidate of each node. Ranges that no good pipeline can contain are then not solved.
//
//     Example: the best pipeline takes 10 ms. The nodes of a range take at least 8 ms on a slow
//     device, and the nodes behind it at least 3 ms on any device. No pipeline with that range
//     takes less than 11 ms.
#include "plan/stages/stage_search.h"

int64_t tsr__stages_floor(const struct staging *staging)
{
    int64_t sum = 0;
    for (size_t i = 0; i < staging->planner->n_nodes; i++) {
        int64_t least = PLAN_NEVER;
        for (size_t k = 0; k < staging->all_kinds.n; k++)
            least = int64_min(least, tsr__plan_node_least(&staging->all_kinds.at[k]->nodes[i]));
        sum = int64_min(sum + least, PLAN_NEVER);
    }
    return sum;
}

// Returns the sum of the cheapest times of the nodes between two adjacent split points, of all runs
// of all models.
static int64_t range_least(const struct staging *staging, const struct kind *kind, size_t range)
{
    int64_t run[PLAN_MAX_MODELS] = {0};
    for (size_t m = 0; m < staging->models->n; m++) {
        const size_t *cut = tsr__staging_of(staging, m)->cut;
        const struct plan_node *nodes = m ? kind->other->nodes : kind->nodes;
        for (size_t i = cut[range]; i < cut[range + 1]; i++)
            run[m] = int64_min(run[m] + tsr__plan_node_least(&nodes[i]), PLAN_NEVER);
    }
    return tsr__models_time(staging->models, run);
}

// Fills in kind->floor, unless it is filled. False: out of memory.
static bool fill_floor(const struct staging *staging, struct kind *kind)
{
    if (kind->floor)
        return true;
    kind->floor = ARENA_ARRAY(&kind->planner.arena, int64_t, staging->n_ranges + 1);
    for (size_t i = 0; kind->floor && i < staging->n_ranges; i++)
        kind->floor[i + 1] = int64_min(kind->floor[i] + range_least(staging, kind, i), PLAN_NEVER);
    return kind->floor != NULL;
}

// Fills in search->rest: for each split point a lower bound for the nodes behind it, on any block.
// Entries stay 0 if time is up. False: out of memory.
static bool fill_rest(struct stage_search *search)
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
            least = int64_min(least, block->kind->floor[i + 1] - block->kind->floor[i]);
        }
        search->rest[i] = int64_min(search->rest[i + 1] + least, PLAN_NEVER);
    }
    return true;
}

// Returns the time that a pipeline must beat: the lower of `takes` and the time of the plan without
// stages. Subtracts the nodes outside of stages from the latter, because times of pipelines exclude
// them.
int64_t tsr__search_known(const struct stage_search *search, int64_t takes)
{
    const struct staging *staging = search->staging;
    if (staging->rival == PLAN_NEVER)
        return takes;
    return int64_min(takes, int64_max(staging->rival - staging->common, 0));
}

// True if no pipeline with this range can beat the best so far. Returns false if that is unknown:
// there is no pipeline to beat, or time is up. It is also unknown for MEASURE_MEMORY.
bool tsr__search_hopeless(struct stage_search *search, size_t i, size_t j, size_t at,
                          int64_t others)
{
    struct block *block = &search->blocks[at];
    if (search->known == INT64_MAX || search->measure == MEASURE_MEMORY || search->status != TSR_OK)
        return false;
    if (!block->kind && tsr__stages_over(search->staging))
        return false;
    if ((!search->knows_rest && !fill_rest(search)) || !tsr__search_kind(search, block) ||
        !fill_floor(search->staging, block->kind)) {
        search->status = TSR_NOMEM;
        return false;
    }
    int64_t own = block->kind->floor[j] - block->kind->floor[i];
    if (search->paced)
        return own > search->known;
    return others + own + search->rest[j] > search->known;
}
