// SPDX-License-Identifier: Apache-2.0
// node_placement.h - private to the flow: the solver of one node's placement (node_placement.c).
#ifndef TSR_SHARDING_SOLVE_H
#define TSR_SHARDING_SOLVE_H

#include "sharding/layouts/internal.h"

#define SOLVE_MAX_DEVICES 4096
#define SOLVE_MAX_ROWS    16384
#define SOLVE_SPARE       32 // factors that refinement may add to a rule

// What is asked of a device that owns several shards of a tensor.
enum solve_mode {
    SOLVE_ONE_PART, // it drops out: every device works on one part
    SOLVE_PARTS,    // it works on each of them, where the node is not a sum of parts
    SOLVE_VALID,    // the same, whether or not it can be executed: for the checker
};

// The state is a relation: one row for each device and each part of the node that it works on.
struct solve {
    struct arena *arena;     // of the node: snapshots
    struct arena *keep;      // of the flow: refined rules
    const struct rule *rule; // refined where a layout cuts inside a factor
    int64_t n_all;           // devices of the configuration
    enum solve_mode mode;
    int64_t n_rows;  // at first n_all, row d of device d; in the order of the devices
    int64_t *device; // per row
    int cap;         // row length of coords
    int64_t cuts[RULE_MAX_FACTORS];
    tile_shares shares[RULE_MAX_FACTORS]; // of parts that are not equal
    bool pinned[RULE_MAX_FACTORS]; // cut as it is and no finer, because an explicit spec says so
    bool shared[RULE_MAX_FACTORS]; // pinned, not cut, and another explicit input may cut it
    bool seen[RULE_MAX_FACTORS];   // cut by the layout that is being taken in
    bool *on;                      // per row: takes part
    int64_t *coords;               // per row: cap entries
    bool intact;                   // the node is not to be replaced by simpler ones
    bool arriving;                 // the layout being added is not a request
    bool pinning;                  // it is the explicit one of an input
    bool strict;                   // it must not be sharded less than those of other inputs
    const char *wrong;             // why the last step failed
    const struct rule *written;    // rule and cuts that layouts can be written of; NULL: not asked
    int64_t written_cuts[RULE_MAX_FACTORS];
};
// The rule with that factor made of an outer part (of the same number) and an inner one of that
// size (the last). NULL: out of memory.
const struct rule *tsr__rule_refine(struct arena *arena, const struct rule *rule, int factor,
                                    int64_t inner);
// An attribute of the node holds the factor's size: it is not refined.
bool tsr__rule_rewrites(const struct rule *rule, int factor);
bool tsr__solve_init(struct solve *solve, struct arena *scratch, struct arena *keep,
                     const struct rule *rule, int64_t n_all);
struct solve tsr__solve_copy(const struct solve *solve); // its own rows; check its arena->failed
// Takes what the layout (canonical) of tensor i says about the factors: all of it or, with
// each_loop, whatever of it fits. pin: uncut factors of the tensor are whole from now on. Devices
// that own no shard drop out; the mode decides about those that own several. False: it does not
// fit, and solve->wrong says why; the state is then spoilt (work on a copy).
bool tsr__solve_add(struct solve *solve, bool out, int i, const struct tile_layout *layout,
                    const struct shape *shape, bool each_loop, bool pin);
// Every cell has a device, reductions have equally many for each part, layouts can be written down.
bool tsr__solve_covers(struct solve *solve);
int64_t tsr__solve_devices(const struct solve *solve); // number of devices that take part
// Drops devices until each part of a sum is on equally many. For SOLVE_PARTS, where
// tsr__solve_covers does not demand it. False: out of memory.
bool tsr__solve_even(struct solve *solve);
// The node can run once for each shard of a device: it needs no windows of its inputs, and each run
// makes one shard of every result. True if every device has one shard.
bool tsr__solve_turns_fit(struct solve *solve, const tsr_node *node, const struct shapes *shapes);
bool tsr__solve_result(const struct solve *solve, struct arena *arena, struct placement *out);

#endif
