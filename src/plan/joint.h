// SPDX-License-Identifier: Apache-2.0
// joint.h - between the files that plan two models of the same weights at once: which weights both have, and the one program
// that two planners make.
#ifndef TSR_PLAN_JOINT_H
#define TSR_PLAN_JOINT_H

#include "plan/edges.h"

// Which value of the other model is the same: a weight that both have.
struct twins {
    const tsr_value **of[2]; // by model and value id; NULL: the other has none
    size_t n;
};
struct joint {
    struct planner *planners[2];
    const struct twins *twins;
    int64_t runs[2];

    struct arena *arena; // of the program and its tables
    struct program program;
    uint32_t first[2]; // variables of each
    uint32_t first_limit[2];
    int shift;         // costs are halved so often, for sums to stay small enough
    struct map scaled; // tables of costs, made once
    struct map
        *links; // tables of what goes together, by strategies; they may serve several programs
    struct arena *link_arena; // of those
    unsigned char *linked[2]; // by model and value id: it lies where the other model has it too
};

// Readers of a weight that one model has more of go with the last of the other.
static inline const struct reader *tsr__reader_or_last(const struct readers *readers, size_t i)
{
    return &readers->at[i < readers->n ? i : readers->n - 1];
}

// By name and form; what is left, by its bytes. False: out of memory.
bool tsr__joint_twins(struct planner *const planners[2], struct twins *out);
// The program of both, in the first planner's `work`. Planners, twins, runs and links are given; the planners have their programs.
// False: out of memory.
bool tsr__joint_program(struct joint *joint);
// The first model's output that becomes the other's cache: it has the name of that one's present value. NULL: it has none.
const tsr_value *tsr__joint_handed(const struct planner *first, const struct state_pair *pair);
// By model and value id, what the other model has too: weights, and caches that the first hands over to the second. False: out of
// memory.
bool tsr__joint_shared(struct planner *const planners[2], const struct twins *twins,
                       unsigned char *out[2]);
// One run of the first model and `runs` of the other; what cannot be counted is PLAN_NEVER.
int64_t tsr__joint_time(int64_t first, int64_t runs, int64_t other);
// The explained choices' costs, which are the program's, as picoseconds.
void tsr__joint_unscale(const struct joint *joint, tsr_plan_summary *out);

#endif
