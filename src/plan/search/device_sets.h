// SPDX-License-Identifier: Apache-2.0
// blocks.h - between the files that plan blocks of devices.
#ifndef TSR_PLAN_BLOCKS_H
#define TSR_PLAN_BLOCKS_H

#include "plan/costs/planner.h"

#define BLOCK_TRIES 20 // blocks that are looked at

struct block_plan {
    const int64_t *devices; // of the first copy, in numbers of the topology
    int64_t n, copies;      // devices of a block; blocks
    bool one_way;           // as in struct planner_machine
    tile_shares only;
    struct planner planner; // with the choices
    struct budget budget;   // of its own, while it is planned
    bool made;
    struct program_result result;
    int64_t cost; // of the whole: with what it takes to bring outputs together
    int64_t time; // the same, less what devices that differ do not wait for
};

struct blocks {
    struct planner *planner;
    const tsr_plan_options *options;
    const char *batch; // the symbol that copies share; NULL: none
    int64_t batch_size;
    int64_t
        shared; // what the copies must divide: the batch, or what two models have of theirs in common
    int64_t all_time; // of the plan of all devices at once, less what they do not wait for
    bool whole; // the node at hand cannot be cut: every copy has all of what it takes and gives
    struct block_plan at[BLOCK_TRIES];
    size_t n;
    struct map lifted; // layouts of the block at hand, by number and shared dimension
};

// blocks.c
// Finds the symbol of the batch, which must have been given a size, in the inputs of the model.
void tsr__blocks_find_batch(struct blocks *blocks);
// Lists blocks of 1, 2, 4 ... 64 devices from the first on, each as often as the batch allows. False: out of memory.
bool tsr__blocks_list_alike(struct blocks *blocks);
// A planner of its own for the block, with its values and states; plan->budget has been set. It must be ended once `made` is
// set, whatever this returns.
tsr_status tsr__block_open(struct blocks *blocks, struct block_plan *plan) TSR_MUST_USE;
// Tells the nodes of the whole machine's planner what was chosen for the block. False: some value cannot be told so, and the
// nodes are as they were; or out of memory.
bool tsr__block_lift(struct blocks *blocks, const struct block_plan *plan);
// Memory and communication of all copies. False: out of memory.
bool tsr__block_tell(struct blocks *blocks, struct block_plan *plan, struct block_choice *out);

// same_sets.c
// The devices of two lists of n are the same one by one, and so are the links between them.
bool tsr__same_sets(const tsr_topology *topology, const int64_t *a, const int64_t *b, int64_t n);

// block_price.c
// The dimension in which a value has the batch: BATCH_NOWHERE, or BATCH_UNCLEAR where it cannot be told.
enum { BATCH_NOWHERE = -1, BATCH_UNCLEAR = -2 };
int tsr__block_batch_dim(const struct blocks *blocks, const struct block_plan *plan,
                         const tsr_value *value);
// What the copies of a block take besides what each does alone: sums over the batch, outputs, shares of the inputs.
int64_t tsr__block_price(const struct blocks *blocks, const struct block_plan *plan);
// How many of those sums there are.
size_t tsr__block_sums(const struct blocks *blocks, const struct block_plan *plan);
// Bytes that every device is given besides its share of the inputs: they are given whole.
int64_t tsr__block_inputs(const struct blocks *blocks, const struct block_plan *plan);

#endif
