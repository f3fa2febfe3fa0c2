// SPDX-License-Identifier: Apache-2.0
// simulate_branches.c - keeps the tasks of only one branch of each If: the most expensive one, as
// the planner does.
//
// All devices that run an If together take the same branch, so its copies in their parts are one
// choice. Copies belong together if they take part in the same communication. Copies without
// communication are decided one by one.
//
//     Example: rank 0 and rank 1 have an If. Its then branch takes 3 and 5 ms and has AllReduce 7
//     on both ranks; its else branch takes 4 ms on both. AllReduce 7 joins both copies to one
//     choice, whose times are 5 and 4 ms: both ranks keep the then branch.
#include "simulate/simulate.h"

// The copy of an If in the part of a device.
struct sim_choice {
    struct sim_choice *same; // another copy of the same If, which has the results; NULL: this one
    int64_t time[2];         // by branch: time of the tasks in this copy
    int64_t longest[2];      // by branch: of all copies
};

static struct sim_choice *root_of(struct sim_choice *choice)
{
    while (choice->same)
        choice = choice->same;
    return choice;
}

struct sim_branch *tsr__sim_branches(struct arena *arena, struct sim_branch *outer)
{
    struct sim_choice *choice = ARENA_NEW(arena, struct sim_choice);
    struct sim_branch *branches = ARENA_ARRAY(arena, struct sim_branch, 2);
    for (int k = 0; choice && branches && k < 2; k++)
        branches[k] = (struct sim_branch){outer, choice, k, outer ? outer->depth + 1 : 1};
    return choice ? branches : NULL;
}

void tsr__sim_join(struct sim_comm *comm, struct sim_branch *branch)
{
    struct sim_branch *other = comm->branch;
    if (!other)
        comm->branch = branch;
    for (; other && branch; other = other->outer, branch = branch->outer) {
        struct sim_choice *a = root_of(other->choice), *b = root_of(branch->choice);
        if (a != b)
            b->same = a;
    }
}

static int64_t task_time(const struct sim_task *task)
{
    return task->comm ? task->comm->ps : task->ps;
}

// Returns the branch at this depth that contains the task; NULL: none.
static struct sim_branch *branch_at(const struct sim_task *task, int depth)
{
    struct sim_branch *branch = task->branch;
    while (branch && branch->depth > depth)
        branch = branch->outer;
    return branch && branch->depth == depth ? branch : NULL;
}

static int deepest(const struct sim *sim)
{
    int depth = 0;
    for (int64_t i = 0; i < sim->n; i++)
        for (size_t k = 0; k < sim->devices[i].tasks.n; k++) {
            const struct sim_branch *branch = sim->devices[i].tasks.at[k].branch;
            if (branch && branch->depth > depth)
                depth = branch->depth;
        }
    return depth;
}

// Adds up the tasks of the branches at this depth. A copy has its time when all its tasks are
// added.
static void add_times(struct sim *sim, int depth)
{
    for (int64_t i = 0; i < sim->n; i++)
        for (size_t k = 0; k < sim->devices[i].tasks.n; k++) {
            const struct sim_task *task = &sim->devices[i].tasks.at[k];
            struct sim_branch *branch = branch_at(task, depth);
            if (!branch)
                continue;
            int64_t *time = &branch->choice->time[branch->k];
            *time = sum_of(*time, task_time(task));
            raise_to(&root_of(branch->choice)->longest[branch->k], *time);
        }
}

// Removes the tasks in the shorter branches at this depth. If both are equal, the first one stays.
static void drop_shorter(struct sim *sim, int depth)
{
    for (int64_t i = 0; i < sim->n; i++) {
        struct sim_device *device = &sim->devices[i];
        size_t kept = 0;
        for (size_t k = 0; k < device->tasks.n; k++) {
            const struct sim_branch *branch = branch_at(&device->tasks.at[k], depth);
            const int64_t *time = branch ? root_of(branch->choice)->longest : NULL;
            if (!branch || branch->k == (time[1] > time[0]))
                device->tasks.at[kept++] = device->tasks.at[k];
        }
        device->tasks.n = kept;
    }
}

// Removes communications that no device plays.
static void drop_comms(struct sim *sim)
{
    size_t kept = 0;
    for (size_t i = 0; i < sim->comms.n; i++)
        sim->comms.at[i]->played = false;
    for (int64_t i = 0; i < sim->n; i++)
        for (size_t k = 0; k < sim->devices[i].tasks.n; k++)
            if (sim->devices[i].tasks.at[k].comm)
                sim->devices[i].tasks.at[k].comm->played = true;
    for (size_t i = 0; i < sim->comms.n; i++)
        if (sim->comms.at[i]->played)
            sim->comms.at[kept++] = sim->comms.at[i];
    sim->comms.n = kept;
}

// Inner choices come first, because the time of an outer branch depends on them.
bool tsr__sim_choose(struct sim *sim)
{
    int depth = deepest(sim);
    if (!depth)
        return false;
    for (; depth > 0; depth--) {
        add_times(sim, depth);
        drop_shorter(sim, depth);
    }
    drop_comms(sim);
    return true;
}
