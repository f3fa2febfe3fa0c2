// SPDX-License-Identifier: Apache-2.0
// internal.h - functions about layouts and flows that the files of this module share.
#ifndef TSR_SHARDING_INTERNAL_H
#define TSR_SHARDING_INTERNAL_H

#include "sharding/sharding.h"

// Returns an input or output of a node by its index and side.
static inline tsr_value *slot_value(const tsr_node *node, bool out, size_t i)
{
    return out ? tsr_node_output(node, i) : tsr_node_input(node, i);
}
static inline const struct rule_tensor *rule_slot(const struct rule *rule, bool out, size_t i)
{
    return out ? &rule->outputs[i] : &rule->inputs[i];
}
// Returns the layout in which readers get output i: the layout that the output's spec asks for, or
// the one that the node computes.
static inline struct tile_layout *tsr__flow_result(const struct node_flow *nf, size_t i)
{
    return nf->wanted[i] ? nf->wanted[i] : nf->outputs[i];
}

// ---- canonical.c -------------------------------------------------------------------------------

// A factor of a dimension before it is made canonical: number of elements (0: unknown) and shards.
struct cut_part {
    int64_t size, cuts;
    tile_shares shares;
};
// Where the coordinate of a part goes: multiplied by `stride`, it is added to the coordinate of the
// canonical factor `to` (-1: none, the part is not split).
struct cut_move {
    int to;
    int64_t stride;
};
// Computes the canonical factors of a dimension that consists of these parts, and the new position
// of each part. `out` has space for 2n factors.
int tsr__cut_canonical(const struct cut_part *parts, int n, struct tile_factor *out,
                       struct cut_move *moves);
// Replaces part *part of `cuts` parts by its number among the parts with elements. Returns false if
// it is empty. Example: 2 elements in 3 parts are [0,0), [0,1), [1,2): part 1 becomes 0, part 2
// becomes 1. Without elements, all parts become part 0.
static inline bool tsr__part_filled(int64_t size, int64_t cuts, int64_t *part)
{
    if (size >= cuts)
        return true;
    int64_t start = tsr__tile_start(size, cuts, *part);
    bool filled = size == 0 || start < tsr__tile_start(size, cuts, *part + 1);
    *part = start;
    return filled;
}
// Returns the layout with canonical factors. It has the same shards; tsr__layout_canonical also
// merges adjacent shards with the same owners. Returns NULL if out of memory.
struct tile_layout *tsr__layout_canonical_dims(struct arena *arena,
                                               const struct tile_layout *layout,
                                               const struct shape *shape);
// Returns the canonical layout, in which each device has the same elements, or NULL if out of
// memory.
struct tile_layout *tsr__layout_canonical(struct arena *arena, const struct tile_layout *layout,
                                          const struct shape *shape);
// Leaves out the shards without elements, where sizes are known, so that they are neither planned
// nor run: their devices have nothing to do. Example: a canonical {3,1:0,1,2} of [2,4] becomes
// {2,1:1,2}, and of [0,4] {1,1:0,1,2}. Returns `layout` if no shard is empty, NULL if out of
// memory.
struct tile_layout *tsr__layout_filled(struct arena *arena, struct tile_layout *layout,
                                       const struct shape *shape);

// ---- spec_layout.c -----------------------------------------------------------------------------

// As tsr__spec_layout, but in canonical form. Only the layout is allocated in `arena`. Temporary
// memory, which is many times as large, is freed at once.
tsr_status tsr__spec_canonical(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                               bool quiet, struct tile_layout **out) TSR_MUST_USE;

// ---- inline.c ----------------------------------------------------------------------------------

bool tsr__in_function(const tsr_model *model, const tsr_node *node);

// ---- spec_layout.c -----------------------------------------------------------------------------

// True if the node has a spec for the value in the configuration, even an empty spec.
bool tsr__has_spec(const tsr_node *node, const tsr_config *config, const tsr_value *value);

// ---- flow.c ------------------------------------------------------------------------------------

// As tsr__flow_new, without shards that are known to have no elements. `keep` marks nodes of the
// main graph, by index, that must not be replaced by simpler nodes (replace.c); they are replicated
// where a replacement would be necessary. With `quiet`, only reshards that `keep` causes are
// reported.
struct flow *tsr__flow_run(struct arena *arena, tsr_model *model, const tsr_config *config,
                           bool quiet, const bool *keep);

// ---- replace.c ----------------------------------------------------------------------------------

// Returns a flow that partition can use, from a finished flow. Nodes that shard statistics are
// replaced by simpler ones in copies of the model, until no such node is left. *made is the last
// copy, or NULL. Reports nodes that are finally replicated, or have a replicated part, although the
// given flow shards them (not-cut-here). Returns NULL after a failure.
struct flow *tsr__flow_expand(struct arena *arena, struct flow *flow, tsr_model **made);

#endif
