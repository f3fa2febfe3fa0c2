// SPDX-License-Identifier: Apache-2.0
// stage_search.h - shared by the files that search for the best pipeline. Each uses those before
// it: stage_devices.c, lower_bounds.c, dynamic_program.c, stage_search.c, pipeline_search.c.
#ifndef TSR_PLAN_STAGE_SEARCH_H
#define TSR_PLAN_STAGE_SEARCH_H

#include "plan/stages/stages.h"

#define MAX_SIZES 64 // largest number of block sizes
// devices up to which blocks have every size; else powers of two and divisors
#define ALL_SIZES  8
#define UNKNOWN    (-1)
#define NEVER_FITS PLAN_NEVER

// Devices that may run a stage: `n` devices from index `start` on, in the current order. If no
// block of this size may start there, `devices` is NULL.
struct block {
    size_t start, n;
    int64_t *devices; // ascending; the first one sends to other stages
    struct kind *kind;
    int64_t memory;
};
// Returns the stage from split point i to j on the block.
static inline struct stage stage_on(size_t i, size_t j, const struct block *block)
{
    return (struct stage){.begin = i, .end = j, .kind = block->kind, .memory = block->memory};
}
// `n` devices from index `first` of the order on.
struct device_span {
    size_t first, n;
};
// Devices that may send to a stage, and devices that it may send to.
struct neighbours {
    struct device_span before, behind;
};
// The best pipeline that leads to a state of the dynamic program. `sum` adds up the measures of its
// stages; `most` is the longest time that one of them is busy.
struct cell {
    int64_t sum, most;
    size_t begin, before; // split points: begin of the last stage, and of the one before
    size_t block;         // block of the last stage
};
// A search for one measure and one order of devices at a time. `value` and `transfers` are reset
// for each order; the plans of ranges (struct point) are cached in the staging.
struct stage_search {
    struct staging *staging;
    int64_t *order; // the devices in the current order
    size_t sizes[MAX_SIZES], n_sizes;
    struct block *blocks; // by start and size
    int64_t *value;       // by range and block: its measure; UNKNOWN: not computed
    struct cell *cells;   // by number of stages, begin of the last, split point and devices used
    size_t n_cells;
    bool flows;               // each stage sends to the next one only
    size_t grain;             // every grain-th split point may end a stage
    size_t smallest, largest; // number of devices of a stage
    size_t least, most;       // smallest and largest number of stages
    enum measure measure;
    int64_t cap;     // no stage may be busy longer than this
    int64_t known;   // time of the best pipeline so far, by the objective; INT64_MAX: none
    bool paced;      // for throughput: the slowest stage counts, not the sum
    int64_t *rest;   // by split point: lower bound of the time of the nodes behind it
    bool knows_rest; // `rest` is filled
    bool bottleneck; // compare pipelines by their slowest stage first, then by the sum
    struct map transfers;
    // For MEASURE_OPEN: called for each order of devices, once the blocks are listed.
    void (*each)(struct stage_search *search);
    struct pipeline_trial *trial;
    tsr_status status;
};

// stage_devices.c
size_t tsr__search_devices(const struct stage_search *search);
// Fills in the sizes that blocks may have.
void tsr__search_sizes(struct stage_search *search);
// True if a block of n devices may start at that index.
bool tsr__search_may_start(const struct stage_search *search, size_t start, size_t n);
// Lists every block of the current order. False: out of memory.
bool tsr__search_blocks(struct stage_search *search);
// Finds the kind of the block, on first use. False: out of memory.
bool tsr__search_kind(struct stage_search *search, struct block *block);
// Returns the time of the transfers into the stage from split point `from` to `to`, for all runs.
int64_t tsr__search_transfers(struct stage_search *search, size_t from, size_t to,
                              const struct block *block);
// Returns the time that the stage needs to send to the next stage, of which only one device is
// known.
int64_t tsr__search_hands_over(struct stage_search *search, size_t from, size_t to,
                               const struct block *block);
// Returns a lower bound of the time per run that a device of the block is busy, with the range from
// split point i to j and these neighbours. near NULL: only values that the range reads are counted,
// from any earlier device. NEVER_FITS: impossible.
int64_t tsr__search_busy(struct stage_search *search, size_t i, size_t j, const struct block *block,
                         const struct neighbours *near);
// Returns a lower bound of the time that the range on the block adds to a pipeline.
int64_t tsr__search_open(struct stage_search *search, size_t i, size_t j,
                         const struct block *block);

// lower_bounds.c: returns the time that a pipeline must beat. `takes` is the time of the best so
// far (INT64_MAX: none).
int64_t tsr__search_known(const struct stage_search *search, int64_t takes);
// True if no pipeline with this range on the block beats the best so far. others: time of the
// stages before.
bool tsr__search_hopeless(struct stage_search *search, size_t i, size_t j, size_t block,
                          int64_t others);

// dynamic_program.c: returns the measure of the range on the block; NEVER_FITS: impossible. After
// an error, search->status is set.
int64_t tsr__search_value(struct stage_search *search, size_t i, size_t j, size_t block);
// True if the stage from split point i to j reads nothing from before `begin`, where the previous
// stage begins.
bool tsr__stages_follow(struct staging *staging, size_t begin, size_t i, size_t j);
struct cell *tsr__search_cell(struct stage_search *search, size_t stages, size_t begin, size_t cut,
                              size_t devices);
// Fills the cells. Returns the best final state; NULL: none.
const struct cell *tsr__search_run(struct stage_search *search, size_t *stages);
// Resets the values and transfers for the next order of devices.
void tsr__search_forget(struct stage_search *search, enum measure what);
// Finds the best pipeline of this order. Returns false if there is none.
bool tsr__search_line(struct stage_search *search, tsr_objective objective, struct pipeline *out);

// stage_search.c: calls `each` for every order of devices, within the time limit.
tsr_status tsr__search_orders(struct staging *staging, const tsr_plan_options *options,
                              void (*each)(struct stage_search *search),
                              struct pipeline_trial *trial) TSR_MUST_USE;

#endif
