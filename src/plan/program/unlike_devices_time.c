// SPDX-License-Identifier: Apache-2.0
// waiting.c - what the chosen plan takes on devices that differ. The program adds up the longest part of every node; but who is
// last at one node may be first at the next, and nobody waits before devices have something to tell one another.
//
//     two nodes between two communications; device 0 takes 4 and 3 ms for its parts, device 1 takes 3 and 4 ms. The program counts
//     4 + 4, and both devices are done after 7: one ms less.
#include "plan/costs/planner.h"

// Since all devices met last: what each has done, and what the program counts for it.
struct stretch {
    int64_t *done; // by device
    size_t n;
    int64_t counted;
    int64_t saved; // of all stretches before
};

// All meet: what was counted too much is noted, and the next stretch begins.
static void meet(struct stretch *stretch)
{
    int64_t longest = 0;
    for (size_t device = 0; device < stretch->n; device++)
        longest = int64_max(longest, stretch->done[device]);
    stretch->saved += stretch->counted - longest;
    stretch->counted = 0;
    memset(stretch->done, 0, stretch->n * sizeof *stretch->done);
}

// How the producer of the value leaves it; PLAN_NO_LAYOUT: no node of the plan makes it.
static uint32_t made_in(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *node = tsr_value_producer(value);
    int64_t at = node ? planner->node_at[tsr__node_id(node)] : -1;
    if (at < 0 || !planner->nodes[at].strategy)
        return PLAN_NO_LAYOUT;
    const struct plan_node *maker = &planner->nodes[at];
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) == value)
            return maker->strategy->at.at[maker->choice].out[i];
    return PLAN_NO_LAYOUT;
}

// All devices that want some of the value have all of it.
static bool is_there(const struct tile_layout *from, const struct tile_layout *want)
{
    for (int64_t i = 0; i < want->first[want->n_shards]; i++)
        if (!tsr__layout_has_device(from, want->owners[i]))
            return false;
    return tsr__layout_is_whole(from);
}

// Some input must be moved between devices first.
static bool is_brought(struct planner *planner, const struct plan_node *node)
{
    const struct candidate *way = &node->strategy->at.at[node->choice];
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *value = tsr_node_input(node->node, i);
        if (!value || way->in[i] == PLAN_NO_LAYOUT)
            continue;
        uint32_t from = made_in(planner, value);
        if (from == PLAN_NO_LAYOUT || from == way->in[i] ||
            is_there(planner->layouts.at[from].tiles, planner->layouts.at[way->in[i]].tiles))
            continue;
        if (tsr__planner_price(planner, from, way->in[i], &planner->values[tsr__value_id(value)]) >
            0)
            return true;
    }
    return false;
}

static void run_node(struct stretch *stretch, const struct candidate *way)
{
    stretch->counted += way->compute;
    for (size_t device = 0; device < stretch->n; device++) {
        if (!way->each)
            stretch->done[device] += way->compute;
        else if (device < way->n_each)
            stretch->done[device] += way->each[device];
    }
}

int64_t tsr__planner_not_waited(struct planner *planner)
{
    struct arena arena;
    tsr__arena_init(&arena, planner->session);
    struct stretch stretch = {.n = (size_t)planner->machine.n};
    stretch.done = ARENA_ARRAY(&arena, int64_t, stretch.n);
    if (!stretch.done)
        goto free_arena;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        const struct candidate *way = &node->strategy->at.at[node->choice];
        if (is_brought(planner, node))
            meet(&stretch);
        run_node(&stretch, way);
        if (way->comm > 0)
            meet(&stretch);
    }
    meet(&stretch);
free_arena:
    tsr__arena_free(&arena);
    return stretch.saved;
}
