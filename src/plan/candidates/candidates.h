// SPDX-License-Identifier: Apache-2.0
// candidates.h - between the files that make candidates.
#ifndef TSR_PLAN_CANDIDATES_H
#define TSR_PLAN_CANDIDATES_H

#include "plan/costs/planner.h"

// One candidate in the making.
struct making {
    struct planner *planner;
    struct strategy *strategy;
    const struct rule *rule; // of the strategy's two
    const tsr_node *node;
    struct arena *arena; // gone afterwards
    struct placement place;
    struct tile_layout **in, **out; // by slot; NULL: absent
    size_t n_in, n_out;
    struct device_group *groups;
    size_t n_groups;
    enum combine combine;
    bool stat; // a factor is cut that statistics are taken of: the node is replaced by simpler ones
    bool spread; // there are fewer pieces than devices: neighbours are told of its layouts
    const uint32_t *pending; // by input: number of the layout if it comes in parts; NULL: none does
};

static inline const struct plan_value *value_at(const struct making *making, enum slot_side side,
                                                size_t i)
{
    return &making->planner->values[tsr__value_id(node_value(making->node, side, i))];
}

// candidates.c
struct making tsr__making(struct planner *planner, struct strategy *strategy, const tsr_node *node,
                          struct arena *arena);
// Takes the placement of the making as candidates if it holds: reduced on all, in shares, or not at all.
bool tsr__making_take(struct making *making);
// The same for a node that is given parts of sums (making->pending).
bool tsr__making_take_parts(struct making *making, const struct parts *parts);
bool tsr__making_number(struct making *making, struct tile_layout *const *out,
                        struct candidate *candidate);
void tsr__making_cost(struct making *making, struct candidate *candidate);
bool tsr__unit_fits(const struct rule_factor *factor, int64_t size, int64_t cuts);

// expansions.c
// The node can be replaced by simpler ones if its factors are cut so.
bool tsr__making_expands(struct making *making);
// What the simpler nodes take on the slowest device, and the sums that devices add up among them, all for the largest part.
struct expanded_price {
    int64_t compute, comm; // picoseconds
    int sums;
};
struct expanded_price tsr__making_expanded(struct making *making);

// grids.c
// Every candidate that a rule gives on lines and grids of devices.
void tsr__making_grids(struct making *making);

#endif
