// SPDX-License-Identifier: Apache-2.0
// candidates.h - shared by the files that make candidates.
#ifndef TSR_PLAN_CANDIDATES_H
#define TSR_PLAN_CANDIDATES_H

#include "plan/candidates/strategies.h"

// A candidate while it is being made.
struct candidate_builder {
    struct planner *planner;
    struct strategy *strategy;
    const struct rule *rule; // the strategy's rule or its alternative rule
    const tsr_node *node;
    struct arena *arena; // temporary data
    struct placement place;
    struct tile_layout **in, **out; // layouts by slot; NULL: absent
    size_t n_in, n_out;
    struct device_group *groups;
    size_t n_groups;
    enum combine combine;
    bool stat;   // a factor over which the node computes statistics (a mean) is sharded, so simpler
                 // nodes replace the node
    bool spread; // fewer shards than devices: the layouts are offered to adjacent nodes (build.c)
    // by input: number of the layout if the input is a partial sum; NULL: no input is
    const uint32_t *pending;
};

static inline const struct plan_value *value_at(const struct candidate_builder *builder,
                                                enum slot_side side, size_t i)
{
    return &builder->planner->values[tsr__value_id(node_value(builder->node, side, i))];
}

// candidates.c
struct candidate_builder tsr__builder_init(struct planner *planner, struct strategy *strategy,
                                           const tsr_node *node, struct arena *arena);
// Adds the candidates of builder->place, if it is valid: one for each possible reduction
// (candidates.c). Returns true if at least one was added.
bool tsr__builder_take(struct candidate_builder *builder);
// Adds the candidates of a node whose inputs (builder->pending) are partial sums in the groups of
// `parts`. The node passes the sums on or reduces them; it must have one output and must not make
// sums itself. Returns true if at least one candidate was added.
bool tsr__builder_take_parts(struct candidate_builder *builder, const struct parts *parts);
bool tsr__builder_number(struct candidate_builder *builder, struct tile_layout *const *out,
                         struct candidate *candidate);
void tsr__builder_cost(struct candidate_builder *builder, struct candidate *candidate);
// Multiplies the times of a candidate for one execution by the number of executions in a run.
void tsr__candidate_repeat(struct candidate *candidate, int64_t times);
// Returns the bytes of the largest shard of the value in this layout.
int64_t tsr__builder_bytes(struct candidate_builder *builder, struct tile_layout *layout,
                           const struct plan_value *value);
bool tsr__unit_fits(const struct rule_factor *factor, int64_t size, int64_t cuts);

// windows.c
#define LARGEST_PART (-1) // instead of a device's index in the placement: the largest shard
// True if the window needs no halo exchange, because the input is computed from constants.
bool tsr__window_is_free(const struct planner *planner, struct arena *arena, const tsr_node *node,
                         const struct rule_window *window);
// Returns the number of elements that a device reads at an input, as a multiple of those of its
// shard; LARGEST_PART: the largest such number, as a multiple of the largest shard. Example: the
// first of 2 shards of 8 elements, of which a convolution reads 5, gives 5/4.
double tsr__window_reach(struct candidate_builder *builder, size_t input, int64_t place);
// Adds the time in which the devices get the windows of an input: they exchange halos with
// neighbours, or slice the windows out of their shards.
void tsr__builder_add_windows(struct candidate_builder *builder, int input,
                              struct candidate *candidate);

// expansions.c: true if the node can be replaced by simpler ones with this placement.
bool tsr__builder_expands(struct candidate_builder *builder);
// Time of the simpler nodes on the slowest device (`compute`), time of the reductions between them
// (`comm`), and number of these reductions (`sums`).
struct expanded_cost {
    int64_t compute, comm; // picoseconds
    int sums;
};
struct expanded_cost tsr__builder_expanded(struct candidate_builder *builder);

// grids.c: adds every candidate that a rule allows on lines and grids of devices.
void tsr__builder_grids(struct candidate_builder *builder);

#endif
