// SPDX-License-Identifier: Apache-2.0
// fork.c - creates a planner for some of the devices. It has its own devices, layouts and
// candidates. It shares shapes, values and states with the original planner, unless it is for one
// of several copies. Example: 4 devices in two stages have one planner for {0, 1} and one for
// {2, 3}.
#include "plan/program/program.h"

// Marks nodes outside of all stages as not planned.
static void leave_out(struct planner *planner, const unsigned char *staged)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        uint32_t id = tsr__node_id(planner->nodes[i].node);
        if (!staged[id])
            planner->node_at[id] = -1;
    }
}

bool tsr__planner_open(const struct planner *root, const int64_t *devices, size_t n,
                       struct planner *out)
{
    *out = (struct planner){.machine.topology = root->machine.topology, .machine.n = (int64_t)n};
    tsr__planner_start(out, root->model);
    out->budget = root->budget;
    int64_t *list = ARENA_ARRAY(&out->arena, int64_t, n);
    if (!list)
        return false;
    // The caller's list may change, so it is copied.
    memcpy(list, devices, n * sizeof *list);
    out->machine.numbers = list;
    out->machine.expert = root->machine.expert;
    return tsr__planner_devices(out);
}

bool tsr__planner_share(const struct planner *root, struct planner *out)
{
    out->shapes = root->shapes;
    out->values = root->values;
    out->ends.stays = root->ends.stays;
    for (size_t i = 0; i < root->ends.states.n; i++)
        vec_add(&out->arena, &out->ends.states, root->ends.states.at[i]);
    return !out->arena.failed;
}

bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out)
{
    if (!tsr__planner_open(root, devices, n, out) || !tsr__planner_share(root, out) ||
        !tsr__planner_list(out))
        return false;
    out->scope.sums_done = true;
    if (staged)
        leave_out(out, staged);
    return tsr__planner_candidates(out);
}
