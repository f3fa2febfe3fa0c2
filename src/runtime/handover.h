// SPDX-License-Identifier: Apache-2.0
// handover.h - moves outputs from the ranks that have them to the caller of the run.
#ifndef TSR_HANDOVER_H
#define TSR_HANDOVER_H

#include "runtime/internal.h"

// Facts about a partition's outputs that these functions need; may be rebuilt for each run.
struct handover {
    tsr_session *session;
    const struct manifest *manifest;
    const char *const *states; // outputs that are states, not results
    size_t n_states;
    const tsr_tensors *places; // the caller's tensors that the ranks have filled; NULL: none
    struct endpoint *place;    // endpoint of a rank that is a process; else NULL
    uint64_t plan;
    const bool *placed; // per output of the manifest: need not be moved; NULL: none
};

bool tsr__hand_any(const struct handover *handover); // true if the manifest lists an output's ranks
bool tsr__hand_is_result(const struct handover *handover, const char *name); // not a state
// True if the caller gets an output, or a shard of one, from this rank.
bool tsr__hand_gives(const struct handover *handover, int64_t rank);
// Moves the outputs of the ranks (sets: by rank) into `outputs`, in the order of the model. Shards
// are joined.
tsr_status tsr__hand_join(const struct handover *handover, tsr_tensors *const *sets,
                          tsr_tensors *outputs);

// A rank that is a process sends its outputs of a run to rank 0 and continues (tsr__hand_give).
// Later it waits until rank 0 has read them (tsr__hand_settle). Rank 0 receives from every sending
// rank into sets, by rank (tsr__hand_take).
tsr_status tsr__hand_give(const struct handover *handover, uint64_t run, const tsr_tensors *mine);
tsr_status tsr__hand_settle(const struct handover *handover, uint64_t run);
tsr_status tsr__hand_take(const struct handover *handover, uint64_t run, tsr_tensors *const *sets);

#endif
