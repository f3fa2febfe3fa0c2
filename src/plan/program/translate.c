// SPDX-License-Identifier: Apache-2.0
// translate.c - translates candidates from the planner of some devices to the planner of all
// devices.
//
//     Example: a stage on devices 4 and 5 shards X as {2, 1} on its devices 0 1. In the planner of
//     all devices the same candidate has {2, 1} on 4 5.
#include "plan/program/program.h"

// Returns the groups of the block's partial sums, repeated for every copy. NULL: out of memory.
static struct device_group *repeat_groups(struct arena *arena, const struct parts *parts,
                                          const struct tile_repeat *repeat)
{
    size_t copies = (size_t)repeat->copies;
    struct device_group *groups = ARENA_ARRAY(arena, struct device_group, parts->n * copies + 1);
    for (size_t copy = 0; groups && copy < copies; copy++)
        for (size_t g = 0; g < parts->n; g++) {
            const struct device_group *from = &parts->groups[g];
            int64_t *devices = ARENA_ARRAY(arena, int64_t, from->n + 1);
            if (!devices)
                return NULL;
            for (size_t i = 0; i < from->n; i++)
                devices[i] = (int64_t)copy * repeat->devices + repeat->device[from->devices[i]];
            groups[copy * parts->n + g] = (struct device_group){devices, from->n};
        }
    return groups;
}

uint32_t tsr__layout_translate(struct planner *to, const struct planner *from, uint32_t layout,
                               const struct tile_repeat *repeat, int dim)
{
    const struct numbered_layout *block = &from->layouts.at[layout];
    struct arena scratch = {.session = to->session};
    uint32_t number = PLAN_NO_LAYOUT;
    struct tile_layout *all = tsr__layout_repeat(&scratch, block->tiles, repeat, dim);
    struct tile_layout *kept = all ? tsr__layout_copy(&to->arena, all) : NULL;
    if (kept)
        number = tsr__planner_layout(to, kept);
    if (number != PLAN_NO_LAYOUT && block->parts) {
        struct device_group *groups = repeat_groups(&scratch, block->parts, repeat);
        number = groups ? tsr__planner_parts(to, number, groups,
                                             block->parts->n * (size_t)repeat->copies)
                        : PLAN_NO_LAYOUT;
    }
    to->arena.failed = to->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
    return number;
}

bool tsr__candidate_translate(struct planner *to, const struct plan_node *node,
                              const struct candidate *from, layout_map_fn *map, void *context,
                              struct candidate *out)
{
    struct arena *arena = &to->arena;
    size_t n_in = tsr__plan_reads(node), n_out = tsr__plan_makes(node);
    *out = *from;
    out->guards_known = false; // other devices
    out->guards = NULL;
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

bool tsr__stored_translate(struct planner *to, size_t index, const struct plan_node *from,
                           layout_map_fn *map, void *context)
{
    size_t n = tsr__plan_reads(from);
    to->nodes[index].stored = NULL;
    if (!from->stored)
        return true;
    uint32_t *stored = to->nodes[index].stored = ARENA_ARRAY(&to->arena, uint32_t, n + 1);
    for (size_t i = 0; stored && i < n; i++)
        stored[i] = from->stored[i] == PLAN_NO_LAYOUT
                        ? PLAN_NO_LAYOUT
                        : map(context, tsr__plan_read(from, i), from->stored[i]);
    return stored != NULL;
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
    strategy->given = from->strategy->given;
    strategy->border = from->strategy->border;
    to->nodes[index].strategy = strategy;
    to->nodes[index].choice = 0;
    to->nodes[index].stored = NULL;
    return candidate;
}
