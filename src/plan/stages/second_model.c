// SPDX-License-Identifier: Apache-2.0
// second_model.c - stages of a second model with the same weights: prefill and decode.
//
// A weight is stored on the devices of one stage, so the nodes of both models that read it must be
// in that stage. A cache must be produced in the stage in which the other model reads it. The first
// model may be split anywhere (split_points.c), the second one only where such nodes stay together:
//
//     first    a(W) b c(V) | d e(U)    nodes that read the weights W, V, U; split before d, index 3
//     second   a(W) c(V) x y e(U)      W and V are before the split, U is after it: the split is
//                                      before x, y or e, where the fewest bytes cross
//
// A split point of the first model without a counterpart is dropped. Ranges of both models are then
// solved as one program (search/models.c).
#include "plan/stages/stages.h"

#include <stdlib.h>

// ---- nodes that belong together ----------------------------------------------------------------

// Records that two nodes must be in one stage: a of the first model, b of the second.
static void add_shared(struct staging *staging, const struct reader *a, const struct reader *b)
{
    if (a->node == SIZE_MAX || b->node == SIZE_MAX)
        return; // the caller is in no stage
    vec_add(&staging->planner->arena, &staging->shared,
            (struct common_nodes){{a->node, b->node}, {a->slot, b->slot}});
}

// Pairs the readers of a weight in both models in their order, as models.c links them.
static void add_readers(struct staging *staging, const tsr_value *value, const tsr_value *twin)
{
    struct arena *arena = &staging->planner->arena;
    struct readers x = tsr__planner_readers(staging->planner, arena, value);
    struct readers y = tsr__planner_readers(staging->other->planner, arena, twin);
    size_t n = size_max(x.n, y.n);
    if (!x.n || !y.n)
        return;
    for (size_t i = 0; i < n; i++)
        add_shared(staging, tsr__reader_or_last(&x, i), tsr__reader_or_last(&y, i));
}

// Pairs the producer of the cache in the first model with its first reader in the second.
static void add_state(struct staging *staging, const struct state_pair *pair)
{
    struct planner *first = staging->planner;
    struct readers readers =
        tsr__planner_readers(staging->other->planner, &first->arena, pair->past);
    const tsr_value *handed = tsr__models_cache(first, pair);
    int64_t at = tsr__planned_producer(first, handed);
    if (at >= 0 && readers.n)
        add_shared(staging, &(struct reader){.node = (size_t)at}, &readers.at[0]);
}

static int by_first(const void *a, const void *b)
{
    const struct common_nodes *x = a, *y = b;
    return (x->node[0] > y->node[0]) - (x->node[0] < y->node[0]);
}

// Lists the pairs of nodes that share a weight or cache, sorted by the nodes of the first model.
bool tsr__second_model_init(struct staging *staging)
{
    const tsr_graph *graph = tsr_model_graph(staging->planner->model);
    const struct planner_ends *ends = &staging->other->planner->ends;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_value *twin = staging->models->shared.twin[0][tsr__value_id(value)];
        if (twin)
            add_readers(staging, value, twin);
    }
    for (size_t i = 0; i < ends->states.n; i++)
        add_state(staging, &ends->states.at[i]);
    if (staging->shared.n)
        qsort(staging->shared.at, staging->shared.n, sizeof *staging->shared.at, by_first);
    return !staging->planner->arena.failed;
}

// ---- split points ------------------------------------------------------------------------------

// Returns the window in which the second model may be split if the first is split before node
// `cut`.
static struct stage_window window_of(const struct staging *staging, size_t cut)
{
    struct stage_window window = {.low = 0, .high = staging->other->planner->n_nodes};
    for (size_t i = 0; i < staging->shared.n; i++) {
        const struct common_nodes *both = &staging->shared.at[i];
        if (both->node[0] >= cut && both->node[1] < window.high)
            window.high = both->node[1];
        if (both->node[0] < cut && both->node[1] + 1 > window.low)
            window.low = both->node[1] + 1;
    }
    return window;
}

// Keeps the split points of the first model that have a counterpart.
static void drop_cuts(struct staging *staging)
{
    size_t kept = 0;
    for (size_t c = 0; c < staging->other->n_followed; c++)
        if (staging->other->followed[c].before)
            staging->cut[++kept] = staging->cut[c + 1];
    staging->cut[kept + 1] = staging->planner->n_nodes;
    staging->n_ranges = kept + 1;
}

bool tsr__second_model_cuts(struct staging *staging)
{
    struct staging *other = staging->other;
    size_t n = staging->n_ranges - 1;
    other->followed = ARENA_ARRAY(&staging->planner->arena, struct followed_cut, n + 1);
    if (!other->followed)
        return false;
    other->n_followed = n;
    for (size_t c = 0; c < n; c++)
        other->followed[c].window = window_of(staging, staging->cut[c + 1]);
    if (!tsr__split_points(other))
        return false;
    drop_cuts(staging);
    return true;
}

// ---- equal ranges ------------------------------------------------------------------------------

// Builds the key: the structures of both ranges, and the pairs of nodes that share weights.
static void describe(struct staging *staging, size_t i, size_t j, struct text *key)
{
    const struct range *first = tsr__stages_range(staging, i, j);
    const struct range *other = tsr__stages_range(staging->other, i, j);
    size_t begin = staging->cut[i], end = staging->cut[j];
    if (!first || !other) {
        key->failed = true;
        return;
    }
    tsr__text_printf(key, "both %u %u", first->structure, other->structure);
    for (size_t k = 0; k < staging->shared.n; k++) {
        const struct common_nodes *both = &staging->shared.at[k];
        if (both->node[0] >= begin && both->node[0] < end)
            tsr__text_printf(key, " %zu.%zu=%zu.%zu", both->node[0] - begin, both->slot[0],
                             both->node[1] - staging->other->cut[i], both->slot[1]);
    }
}

uint32_t tsr__second_model_structure(struct staging *staging, size_t i, size_t j)
{
    struct range *range = &staging->ranges[i * (staging->n_ranges + 1) + j];
    if (range->paired)
        return range->pair;
    struct text key = {.session = staging->planner->session};
    key.max = (size_t)1 << 30;
    describe(staging, i, j, &key);
    range->pair = UINT32_MAX;
    if (!key.failed)
        range->pair = tsr__stages_structure(staging, (struct str){key.p, key.n});
    range->paired = range->pair != UINT32_MAX;
    tsr__text_free(&key);
    return range->pair;
}
