// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of this room share: one form for layouts that are the same.
#ifndef TSR_SHARDING_INTERNAL_H
#define TSR_SHARDING_INTERNAL_H

#include "sharding/sharding.h"

// Inputs and outputs of a node or a rule by one index and a side.
static inline tsr_value *slot_value(const tsr_node *node, bool out, size_t i)
{
    if (out)
        return tsr_node_output(node, i);
    return tsr_node_input(node, i);
}
static inline const struct rule_tensor *rule_slot(const struct rule *rule, bool out, size_t i)
{
    if (out)
        return &rule->outputs[i];
    return &rule->inputs[i];
}
// How output i lies for its readers: as it was asked for, where the node gives it otherwise.
static inline struct tile_layout *tsr__flow_result(const struct node_flow *nf, size_t i)
{
    if (nf->wanted[i])
        return nf->wanted[i];
    return nf->outputs[i];
}

// ---- canonical.c -------------------------------------------------------------------------------

// A part of a dimension: its number of elements (0: not known) and of shards.
struct cut_part {
    int64_t size, cuts;
    tile_shares shares;
};
// Where the coordinate of a part went: factor `to` (-1: nowhere, it is whole), in steps of stride.
struct cut_move {
    int to;
    int64_t stride;
};
// The canonical factors of a dimension made of those parts (room for 2n) and where each part went.
int tsr__cut_canonical(const struct cut_part *parts, int n, struct tile_factor *out,
                       struct cut_move *moves);
// The same pieces and owners in the canonical form. NULL: out of memory.
struct tile_layout *tsr__layout_canonical(struct arena *arena, const struct tile_layout *layout,
                                          const struct shape *shape);

// ---- spec_layout.c -----------------------------------------------------------------------------

// tsr__spec_layout in the canonical form. The arena gets the layout alone: what it takes to find it
// is many times as much, and is given back at once.
tsr_status tsr__spec_canonical(struct arena *arena, const tsr_spec *spec, const struct shape *shape,
                               bool quiet, struct tile_layout **out) TSR_MUST_USE;

// ---- inline.c ----------------------------------------------------------------------------------

bool tsr__in_function(const tsr_model *model, const tsr_node *node);

// ---- spec_layout.c -----------------------------------------------------------------------------

// True if the node has a spec of the value under the config, even one that says nothing.
bool tsr__has_spec(const tsr_node *node, const tsr_config *config, const tsr_value *value);

// ---- flow.c ------------------------------------------------------------------------------------

// As tsr__flow_new. keep: by place in the main graph, nodes that are not to be replaced (replace.c)
// and so are not cut where that would be needed. quiet: nothing is said, except what moves because
// of keep.
struct flow *tsr__flow_run(struct arena *arena, tsr_model *model, const tsr_config *config,
                           bool quiet, const bool *keep);

// ---- replace.c ----------------------------------------------------------------------------------

// The flow ready for partition, from one that is done: nodes that cut statistics are replaced in
// copies of the model until none is left; *made is the last copy, or NULL. Says (not-cut-here)
// which nodes of the flow, beyond those it runs whole itself, stay whole in the end or have a part
// that does. NULL: failed.
struct flow *tsr__flow_expand(struct arena *arena, struct flow *flow, tsr_model **made);

#endif
