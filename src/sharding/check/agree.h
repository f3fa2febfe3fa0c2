// SPDX-License-Identifier: Apache-2.0
// agree.h - checks whether the shardings of a node's inputs are consistent. Only the checker uses
// it.
#ifndef TSR_SHARDING_AGREE_H
#define TSR_SHARDING_AGREE_H

#include "sharding/layouts/node_placement.h"

// Reports an error if two shardings of the entry's inputs contradict each other (spec-disagree).
// Each spec must already be valid by itself. Returns false if out of memory.
bool tsr__check_agreement(struct arena *scratch, const struct shapes *shapes, const tsr_node *node,
                          const tsr_node_config *nc);
// As tsr__check_agreement, but by the published formalism: an input without a spec has the layout
// in which its producer leaves it in the flow. A value without any spec is unsharded. No input is
// resharded to fit the others.
bool tsr__check_formal(struct arena *scratch, const struct flow *flow, const tsr_node *node);

#endif
