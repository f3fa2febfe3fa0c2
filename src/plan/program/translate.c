// SPDX-License-Identifier: Apache-2.0
// translate.c - translates candidates from the planner of some devices to the planner of all
// devices.
//
//     Example: a stage on devices 4 and 5 shards X as {2, 1} on its devices 0 1. In the planner of
//     all devices the same candidate has {2, 1} on 4 5.
#include "plan/program/program.h"

bool tsr__candidate_translate(struct planner *to, const struct plan_node *node,
                              const struct candidate *from, layout_map_fn *map, void *context,
                              struct candidate *out)
{
    struct arena *arena = &to->arena;
    size_t n_in = tsr__plan_reads(node), n_out = tsr__plan_makes(node);
    *out = *from;
    out->in = ARENA_ARRAY(arena, uint32_t, n_in + 1);
    out->out = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    out->before = ARENA_ARRAY(arena, uint32_t, n_out + 1);
    if (!out->in || !out->out || !out->before)
        return false;
    for (size_t i = 0; i < n_in; i++) {
        out->in[i] = from->in[i];
        if (from->in[i] != PLAN_NO_LAYOUT)
            out->in[i] = map(context, tsr__plan_read(node, i), from->in[i]);
    }
    for (size_t i = 0; i < n_out; i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        out->out[i] = from->out[i];
        out->before[i] = from->before[i];
        if (from->out[i] != PLAN_NO_LAYOUT)
            out->out[i] = map(context, value, from->out[i]);
        if (from->before[i] != PLAN_NO_LAYOUT)
            out->before[i] = map(context, value, from->before[i]);
    }
    return !arena->failed;
}

struct candidate *tsr__candidate_only(struct planner *to, size_t index,
                                      const struct plan_node *from)
{
    struct strategy *strategy = ARENA_NEW(&to->arena, struct strategy);
    struct candidate *candidate = strategy ? vec_push(&to->arena, &strategy->at) : NULL;
    if (!candidate)
        return NULL;
    strategy->node = from->node;
    strategy->rule = from->strategy->rule;
    strategy->whole = from->strategy->whole;
    strategy->border = from->strategy->border;
    to->nodes[index].strategy = strategy;
    to->nodes[index].choice = 0;
    return candidate;
}
