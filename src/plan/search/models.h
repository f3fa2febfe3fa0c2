// SPDX-License-Identifier: Apache-2.0
// joint.h - between the files that plan two models of the same weights at once: which weights both have, and the one program
// that two planners make.
#ifndef TSR_PLAN_JOINT_H
#define TSR_PLAN_JOINT_H

#include "plan/program/edges.h"

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
// joint_answer.c
// Lists and builds both programs, and the one of both with its pace; where there was no time for them there is none. False: out of
// memory.
bool tsr__joint_build(struct joint *joint, struct twins *twins, int64_t memory);
// Memory counts where the caller gave a number or a topology.
int64_t tsr__joint_limit(const tsr_plan_options *options);
// What both hold on each device at the worst time, of what each holds; peak has room for both, one after the other, and the
// first half gets the answer. False: out of memory.
bool tsr__joint_memory(struct joint *joint, const tsr_plan_part *parts, int64_t *memory,
                       int64_t *peak);
// Numbers of the first model become the summary's own; cost and bound are of both.
void tsr__joint_sum_up(const struct joint *joint, const struct program_result *result,
                       const tsr_plan_part *parts, tsr_plan_summary *out);
// joint_blocks.c: both planned for a block of devices, which all others repeat. *found: there is a plan, and it is written.
tsr_status tsr__plan_joint_blocks(struct planner *planner, struct planner *with,
                                  const tsr_plan_options *options, tsr_plan_summary *out,
                                  bool *found) TSR_MUST_USE;

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
