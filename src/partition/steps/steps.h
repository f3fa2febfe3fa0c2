// SPDX-License-Identifier: Apache-2.0
// steps.h - planning: turns the flow of a model into steps between forms.
#ifndef TSR_PARTITION_STEPS_H
#define TSR_PARTITION_STEPS_H

#include "partition/facts/facts.h"

// ports.c: decides which inputs and outputs stay sharded and which are states. Called first.
tsr_status tsr__draft_ports(struct draft *draft, const tsr_partition_options *options) TSR_MUST_USE;
// steps.c: plans the steps, marks what each rank needs, and numbers the communications.
tsr_status tsr__draft_build(struct draft *draft) TSR_MUST_USE;

#endif
