// SPDX-License-Identifier: Apache-2.0
// fork.c - creates a planner for some of the devices. It shares shapes, values and states with the
// original planner. It has its own devices, layouts and candidates. Example: 4 devices in two
// stages have one planner for {0, 1} and one for {2, 3}.
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

bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out)
{
    *out = (struct planner){.machine.topology = root->machine.topology, .machine.n = (int64_t)n};
    tsr__planner_start(out, root->model);
    out->budget = root->budget;
    out->shapes = root->shapes;
    out->values = root->values;
    out->scope.sums_done = true;
    out->ends.stays = root->ends.stays;
    for (size_t i = 0; i < root->ends.states.n; i++)
        vec_add(&out->arena, &out->ends.states, root->ends.states.at[i]);
    int64_t *list = ARENA_ARRAY(&out->arena, int64_t, n);
    if (!list)
        return false;
    // The caller's list may change, so it is copied.
    memcpy(list, devices, n * sizeof *list);
    out->machine.numbers = list;
    out->machine.expert = root->machine.expert;
    if (!tsr__planner_devices(out) || !tsr__planner_list(out))
        return false;
    if (staged)
        leave_out(out, staged);
    return tsr__planner_candidates(out);
}
