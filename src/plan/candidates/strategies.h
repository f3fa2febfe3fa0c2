// SPDX-License-Identifier: Apache-2.0
// strategies.h - the functions of this folder that other folders call.
#ifndef TSR_PLAN_STRATEGIES_H
#define TSR_PLAN_STRATEGIES_H

#include "plan/costs/planner.h"

// strategies.c: returns the candidates of a node, made once for equal nodes. NULL: out of memory.
struct strategy *tsr__planner_strategy(struct planner *planner, const struct plan_node *node);
// Adds a candidate in which the tensor at `side` and `slot` has the layout. False: impossible, or
// tried before.
bool tsr__planner_try_layout(struct planner *planner, struct strategy *strategy,
                             const tsr_node *node, enum slot_side side, size_t slot,
                             uint32_t layout);
// Adds candidates that read input `slot` as a partial sum.
void tsr__planner_try_parts(struct planner *planner, struct strategy *strategy,
                            const tsr_node *node, size_t slot, uint32_t layout);

// What the candidates of equal nodes depend on, apart from the devices.
struct equal_node {
    uint32_t id;
    const char *whole;            // not NULL: why the nodes must be replicated
    double count;                 // operations of the unsharded node
    struct work_kind kind, apart; // as in their strategy
    struct node_load load;        // of the unsharded node
    bool gives;                   // the result is an output of the model
};
// equal_nodes.c: returns the entry that all nodes share which are equal to this one, and which all
// planners with these values share. NULL: out of memory.
const struct equal_node *tsr__planner_equal(const struct planner *planner,
                                            const struct plan_node *node);

// candidates.c: finds the time of each device for a candidate with parts of different size, unless
// it is known.
void tsr__candidate_each(struct planner *planner, struct strategy *strategy,
                         struct candidate *candidate);
// Returns, by device of the planner, whether the partition writes an If around the node, because
// the shard of the device may be empty (partition/emit/emit_guard.c). An engine does not fuse such
// a node with others. NULL: around none, or out of memory.
const bool *tsr__candidate_guards(struct planner *planner, struct strategy *strategy,
                                  struct candidate *candidate);

// partial_sums.c: marks the nodes whose sums may stay partial, and those that may read partial
// sums.
bool tsr__partial_sums_mark(struct planner *planner);

// grids.c: returns the factor that numbers the experts of a mixture; -1: none.
int tsr__rule_experts(const struct rule *rule);
// Finds the sides of the grid that n devices form, if they are the first ones of the topology.
// Returns the number of sides; 0: they form no grid. Example: in a grid of 1250 x 8, the first 32
// devices form 4 x 8, and the first 4 form a line.
int tsr__wired_sides(const tsr_topology *topology, const int64_t *devices, int64_t n,
                     int64_t *sides);

// unequal_shares.c: fills machine.shares and machine.speed, after the rules are known. Returns
// false if out of memory.
bool tsr__planner_shares(struct planner *planner);

#endif
