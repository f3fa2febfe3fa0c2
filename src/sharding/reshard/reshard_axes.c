// SPDX-License-Identifier: Apache-2.0
// reshard_axes.c - splits an all-gather along several axes into one per axis, because the operator
// concatenates along one axis.
//
//     Example: [8,6] {2,2:0,1,2,3}, shards of 12 elements, becomes replicated on all four devices.
//     reshard.c makes this one step, in which each device receives 36 elements. Here it becomes
//     two. First 0 and 2 (and 1 and 3) gather rows, which gives {1,2:(0,2),(1,3)}; then 0 and 1
//     (and 2 and 3) gather columns. Each device receives 12 elements, then 24: the same bytes.
//
// Groups whose device numbers are far apart go first, while shards are small. On hosts of eight
// devices these are the groups that use the network.
#include "sharding/reshard/reshard.h"

// An all-gather to the layout `to` that is being split.
struct splitting {
    struct arena *arena;
    const int64_t *shape;
    size_t unit;
    const struct tile_layout *to;
};

// Returns the largest difference of device numbers in a group.
static int64_t reach_of(const struct reshard_step *step)
{
    int64_t farthest = 0;
    for (size_t g = 0; g < step->n_groups; g++) {
        const struct device_group *group = &step->groups[g];
        farthest = int64_max(farthest, group->devices[group->n - 1] - group->devices[0]);
    }
    return farthest;
}

// Computes the step between two layouts. Returns false if there is none or if out of memory.
static bool step_between(const struct splitting *splitting, const struct tile_layout *from,
                         const struct tile_layout *to, struct reshard_step *step)
{
    struct pairing pairing;
    return tsr__pairing_new(splitting->arena, from, NULL, to, splitting->shape, splitting->unit,
                            &pairing) == TSR_OK &&
           tsr__reshard_step(&pairing, step) == TSR_OK;
}

// Finds a gather along a single axis after which another gather reaches the target. Of several,
// chooses the one whose devices are farthest apart. Returns false if there is none.
static bool first_gather(const struct splitting *splitting, const struct tile_layout *from,
                         struct reshard_step *out)
{
    struct pairing pairing;
    int64_t farthest = -1;
    if (tsr__pairing_new(splitting->arena, from, NULL, splitting->to, splitting->shape,
                         splitting->unit, &pairing) != TSR_OK)
        return false;
    for (int axis = 0; axis < from->rank; axis++) {
        struct reshard_step step, rest;
        const struct tile_layout *between = tsr__reshard_mixed(&pairing, (uint64_t)1 << axis);
        if (!between || !step_between(splitting, from, between, &step) ||
            !step_between(splitting, between, splitting->to, &rest))
            continue;
        bool leads = step.op == COMM_ALL_GATHER && step.axis >= 0 && rest.op == COMM_ALL_GATHER;
        if (!leads || reach_of(&step) <= farthest)
            continue;
        farthest = reach_of(&step);
        *out = step;
    }
    return farthest >= 0;
}

// Splits the gather from `from` to splitting->to into gathers along one axis each. Returns their
// number, at most `most`; 0: not possible.
static int split(const struct splitting *splitting, const struct tile_layout *from, int most,
                 struct reshard_step *out)
{
    int n = 0;
    struct reshard_step last;
    while (n < most && step_between(splitting, from, splitting->to, &last)) {
        if (last.axis >= 0) {
            out[n++] = last;
            return n;
        }
        if (!first_gather(splitting, from, &out[n]))
            return 0;
        from = out[n++].layout;
    }
    return 0;
}

static bool along_several(const struct reshard_step *step)
{
    return step->op == COMM_ALL_GATHER && step->axis < 0;
}

void tsr__reshard_split(struct arena *arena, const struct tile_layout *from, const int64_t *shape,
                        size_t elem_bytes, struct reshard *reshard)
{
    struct reshard_step steps[RESHARD_MAX_STEPS];
    for (int i = 0; i < reshard->n_steps; i++) {
        struct reshard_step *step = &reshard->steps[i];
        struct splitting splitting = {arena, shape, elem_bytes, step->layout};
        int n = 0, after = reshard->n_steps - i - 1;
        if (along_several(step))
            n = split(&splitting, from, RESHARD_MAX_STEPS - i - after, steps);
        from = step->layout;
        if (n == 0)
            continue;
        memmove(step + n, step + 1, (size_t)after * sizeof *step);
        memcpy(step, steps, (size_t)n * sizeof *step);
        reshard->n_steps += n - 1;
        i += n - 1;
    }
}
