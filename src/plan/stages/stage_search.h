// SPDX-License-Identifier: Apache-2.0
// stage_search.h - between the files that look for the best line of stages. Each knows those before it: blocks (stage_blocks.c), what nodes take
// at least (stage_floor.c), cells (stage_cells.c), orders of devices (stages.c), lines that are solved whole (stage_lines.c).
#ifndef TSR_PLAN_STAGE_SEARCH_H
#define TSR_PLAN_STAGE_SEARCH_H

#include "plan/stages/stages.h"

#define MAX_SIZES  64 // of blocks
#define ALL_SIZES  8  // so many devices: blocks of every size; else powers of two and divisors
#define UNKNOWN    (-1)
#define NEVER_FITS PLAN_NEVER

// Devices that may hold a stage: `n` of the line from place `start` on. A block that may not start
// there has no devices and no kind.
struct block {
    size_t start, n;
    int64_t *devices; // ascending; the first has what others are to get
    struct kind *kind;
    int64_t memory;
};
// Devices of the line: `n` from place `first` on.
struct stretch {
    size_t first, n;
};
// Where what a stage reads may come from, and where what it makes may go to.
struct neighbours {
    struct stretch before, behind;
};
// The best way to a state, and what it came from.
struct cell {
    int64_t sum, most;
    size_t begin, before; // cuts: where its last stage begins, and the one before that
    size_t block;
};
// One search: for one measure and one order of the devices at a time. `value` and `transfers`
// depend on the order and are forgotten with it; fronts, by kind of block, are kept in the staging.
struct search {
    struct staging *staging;
    int64_t *order; // devices in line
    size_t sizes[MAX_SIZES], n_sizes;
    struct block *blocks; // by start and size
    int64_t *value;       // by range and block; UNKNOWN
    struct cell *cells;   // by number of stages, begin of the last, cut and devices
    size_t n_cells;
    bool flows;               // each stage hands over to the next alone
    size_t grain;             // every so many-th cut may end a stage
    size_t smallest, largest; // devices of a stage: at least, at most
    size_t least, most;       // stages
    enum measure measure;
    int64_t cap; // no stage may take more
    int64_t
        known; // a line takes so much by the objective: worse ones are not looked for; INT64_MAX: none is known
    bool paced;    // by the objective the slowest stage counts
    int64_t *rest; // by cut: what the nodes behind it take at least
    bool knows_rest;
    bool bottleneck;
    struct map transfers;
    // Of MEASURE_OPEN: what is done with each order of devices, once the blocks are listed.
    void (*each)(struct search *search);
    struct line_trial *trial;
    tsr_status status;
};

// stage_blocks.c
size_t tsr__search_devices(const struct search *search);
// Numbers of devices that blocks may have.
void tsr__search_sizes(struct search *search);
// A block of that many devices may begin at that place of the line.
bool tsr__search_may_start(const struct search *search, size_t start, size_t n);
// Every block that may hold a stage, in the order of devices at hand. False: out of memory.
bool tsr__search_blocks(struct search *search);
// The kind of the block, found when something is first asked of it: a kind has all candidates of the nodes. False: out of memory.
bool tsr__search_kind(struct search *search, struct block *block);
// What the stage from cut `from` to cut `to` gets from the one before: of one run of the model, and of all runs of both.
int64_t tsr__search_transfer(struct search *search, struct staging *model, size_t from, size_t to,
                             const struct block *block);
int64_t tsr__search_transfers(struct search *search, size_t from, size_t to,
                              const struct block *block);
// What it is held up by giving to the next, of which one device is known to be there.
int64_t tsr__search_hands_over(struct search *search, size_t from, size_t to,
                               const struct block *block);
// All devices in front of the block, and all behind it.
struct neighbours tsr__search_neighbours(const struct search *search, const struct block *block);
// What a device of the block is busy with at least in each of many runs, if the range from cut i to j is there and has those
// neighbours. NEVER_FITS: it cannot be there.
int64_t tsr__search_busy(struct search *search, size_t i, size_t j, const struct block *block,
                         const struct neighbours *near);
// No line with that range on the block takes less for it.
int64_t tsr__search_open(struct search *search, size_t i, size_t j, const struct block *block);

// stage_floor.c
// What lines have to take at most to be looked for, where one takes that much (INT64_MAX: none is known).
int64_t tsr__search_known(const struct search *search, int64_t takes);
// No line with the range from cut i to j on the block is as good as the known one; others: what the stages before it take.
bool tsr__search_hopeless(struct search *search, size_t i, size_t j, size_t block, int64_t others);

// stage_cells.c
// The measure of the range from cut i to cut j on the block; NEVER_FITS: it cannot be there. After an error the status tells.
int64_t tsr__search_value(struct search *search, size_t i, size_t j, size_t block);
// The stage from cut i to j reads nothing that was made before cut `begin`, where the one before it begins.
bool tsr__stages_follow(struct staging *staging, size_t begin, size_t i, size_t j);
struct cell *tsr__search_cell(struct search *search, size_t stages, size_t begin, size_t cut,
                              size_t devices);
// Fills the cells. The best final state; NULL: there is none.
const struct cell *tsr__search_run(struct search *search, size_t *stages);
// Nothing is known of the values and transfers of the next order of devices.
void tsr__search_forget(struct search *search, enum measure what);
// The best line of this order. False: there is none.
bool tsr__search_line(struct search *search, tsr_objective objective, struct line *out);

// stages.c: `each` is called for every order of the devices that there is time for.
tsr_status tsr__search_orders(struct staging *staging, const tsr_plan_options *options,
                              void (*each)(struct search *search),
                              struct line_trial *trial) TSR_MUST_USE;

#endif
