// SPDX-License-Identifier: Apache-2.0
// agree.h - private to the checker: do the shardings of a node's inputs agree, by the operator's
// rule?
#ifndef TSR_SHARDING_AGREE_H
#define TSR_SHARDING_AGREE_H

#include "sharding/layouts/node_placement.h"

// Adds an error where two shardings of the entry's inputs contradict each other (spec-disagree),
// and a warning where one asks for a cut that is not done here (not-cut-here; only with remarks),
// and then sets *uncut. The specs must have been found right one by one. False: out of memory.
bool tsr__check_agreement(struct arena *scratch, const struct shapes *shapes, const tsr_node *node,
                          const tsr_node_config *nc, bool remarks, bool *uncut);
// The same as the published formalism has it: an input without a spec has the layout that its
// producer left in the flow. A value without any spec is unsharded. No input is brought to what the
// others demand.
bool tsr__check_formal(struct arena *scratch, const struct flow *flow, const tsr_node *node);

#endif
