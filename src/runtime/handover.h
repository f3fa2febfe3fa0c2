// SPDX-License-Identifier: Apache-2.0
// handover.h - moves outputs from the ranks that have them to the caller of the run.
#ifndef TSR_HANDOVER_H
#define TSR_HANDOVER_H

#include "runtime/internal.h"

// What is known about the outputs of a partition; it may be made anew for each run.
struct handover {
    tsr_session *session;
    const struct manifest *manifest;
    const char *const *states; // outputs that are no results
    size_t n_states;
    struct endpoint *place; // of a rank that is a process; else NULL
    uint64_t plan;
};

bool tsr__hand_any(const struct handover *handover); // some output is not rank 0's alone
bool tsr__hand_gives(const struct handover *handover, int64_t rank);
// Moves what the ranks gave (sets: by rank) into outputs, in the model's order; pieces are put
// together.
tsr_status tsr__hand_join(const struct handover *handover, tsr_tensors *const *sets,
                          tsr_tensors *outputs);

// A rank that is a process gives what it has of that run to rank 0 and goes on; later it waits
// until that has been taken. Rank 0 takes from every rank that gives, into sets, by rank.
tsr_status tsr__hand_give(const struct handover *handover, uint64_t run, const tsr_tensors *mine);
tsr_status tsr__hand_settle(const struct handover *handover, uint64_t run);
tsr_status tsr__hand_take(const struct handover *handover, uint64_t run, tsr_tensors *const *sets);

#endif
