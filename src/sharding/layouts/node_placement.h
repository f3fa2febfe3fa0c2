// SPDX-License-Identifier: Apache-2.0
// node_placement.h - finds the placement of one node (node_placement.c). Only the flow uses it.
#ifndef TSR_SHARDING_SOLVE_H
#define TSR_SHARDING_SOLVE_H

#include "sharding/layouts/internal.h"

#define SOLVE_MAX_DEVICES 4096
#define SOLVE_MAX_ROWS    16384
#define SOLVE_SPARE       32 // number of factors that refinement may add to a rule

// How to treat a device that owns several shards of a tensor.
enum solve_mode {
    SOLVE_ONE_PART, // it is dropped: every device computes one part
    SOLVE_PARTS,    // it computes each of them
    SOLVE_VALID,    // as SOLVE_PARTS, even if it cannot be executed; for the checker
};

// The state of the search for a placement: a table with one row for each device and each part of
// the node that the device computes.
struct solve {
    struct arena *arena;     // for copies of the state; lives as long as the node is processed
    struct arena *keep;      // for refined rules; lives as long as the flow
    const struct rule *rule; // a factor becomes two if a layout splits inside it
    int64_t n_all;           // number of devices of the configuration
    enum solve_mode mode;
    int64_t n_rows;  // at first one row per device; always sorted by device
    int64_t *device; // by row
    int cap;         // entries per row of coords
    int64_t cuts[RULE_MAX_FACTORS];
    tile_shares shares[RULE_MAX_FACTORS]; // of factors with unequal parts
    bool pinned[RULE_MAX_FACTORS];        // an explicit spec fixes the parts of the factor
    bool shared[RULE_MAX_FACTORS]; // pinned and unsharded, but another explicit input may shard it
    bool seen[RULE_MAX_FACTORS];   // sharded by the layout that is being added
    bool *on;                      // by row: false if the row was dropped
    int64_t *coords;               // by row: `cap` entries
    bool intact;                   // the node must not be replaced by simpler ones
    bool arriving;                 // the layout being added is propagated, not requested
    bool pinning;                  // the layout being added is the explicit one of an input
    bool strict;                   // that layout must shard each axis that earlier layouts shard
    bool strict_sums;              // the same, of reduced axes
    bool filled;                   // every part of a factor must have elements, if sizes are known
    bool drop_empty;               // parts without elements are not placed, if sizes are known
    const char *wrong;             // reason of the last failure
    bool broadcast;                // that reason is a sharded dimension of size 1 that broadcasts
    const struct rule *written;    // rule and cuts for which all_writable was true; NULL: none yet
    int64_t written_cuts[RULE_MAX_FACTORS];
};
// Returns a copy of the rule in which the factor is split. The outer part keeps the number of the
// factor; the inner part, of size `inner`, becomes the last factor. Returns NULL if out of memory.
const struct rule *tsr__rule_refine(struct arena *arena, const struct rule *rule, int factor,
                                    int64_t inner);
// True if a rewrite or a window of the rule depends on the part of the factor that a device has.
// Such a factor is not refined.
bool tsr__rule_rewrites(const struct rule *rule, int factor);
bool tsr__solve_init(struct solve *solve, struct arena *scratch, struct arena *keep,
                     const struct rule *rule, int64_t n_all);
struct solve tsr__solve_copy(const struct solve *solve); // with its own rows; check arena->failed
// Adds the canonical layout of tensor i: all of its splits or, with each_loop, those that fit. With
// `pin`, factors of the tensor that the layout does not shard stay unsharded. Devices that own no
// shard are dropped; the mode decides about devices that own several. Returns false if the layout
// does not fit, with the reason in solve->wrong. The state is then unusable, so work on a copy.
bool tsr__solve_add(struct solve *solve, bool out, int i, const struct tile_layout *layout,
                    const struct shape *shape, bool each_loop, bool pin);
// True if every cell (combination of parts of all factors) has a device and the layouts can be
// written as specs. If the node is to be executed and its inputs are placed, all parts of a
// reduction must also be on the same number of devices.
bool tsr__solve_covers(struct solve *solve);
int64_t tsr__solve_devices(const struct solve *solve); // number of devices that are left
// True if a sharded factor is reduced or has statistics, so that partial results must be combined.
bool tsr__solve_reduces(const struct solve *solve);
// True if every device has parts of one sum at most; otherwise sets solve->wrong. Always true for
// SOLVE_VALID, which is not executed.
bool tsr__solve_one_sum(struct solve *solve);
// Counts the rows of each of the `cells` cells. NULL: out of memory.
int64_t *tsr__solve_count(struct solve *solve, int64_t cells);
// True if all parts of each sum are on the same number of devices. `count` has the number of rows
// for each cell.
bool tsr__solve_sums_are_even(const struct solve *solve, const int64_t *count);
// Sets the entries of `outputs` that are NULL to the layouts that the current placement gives.
// Returns false if out of memory.
bool tsr__solve_outputs(struct solve *solve, struct tile_layout **outputs, size_t n);
// Drops rows until each part of a sum is on the same number of devices, after layouts of inputs
// were added. If rows are dropped, entries of `outputs` that are NULL get the layouts
// that the outputs had before: all devices that have a part of a sum get the result. Returns false
// if a device is left with parts of several sums, or if out of memory. (node_sums.c)
bool tsr__solve_even(struct solve *solve, struct tile_layout **outputs, size_t n_outputs);
// True if the node can run once for each shard of a device: it needs no windows of its inputs, does
// not round sizes up (ceil_mode), and each run computes one shard of every result that can be
// concatenated with the others. Also true if every device has one shard.
bool tsr__solve_turns_fit(struct solve *solve, const tsr_node *node, const struct shapes *shapes);
bool tsr__solve_result(const struct solve *solve, struct arena *arena, struct placement *out);

#endif
