// SPDX-License-Identifier: Apache-2.0
// steps.h - planning: a flow becomes steps between forms, and what each rank must have of them.
#ifndef TSR_PARTITION_STEPS_H
#define TSR_PARTITION_STEPS_H

#include "partition/facts/facts.h"

// Inputs and outputs that are kept cut, and states; first (ports.c).
tsr_status tsr__draft_ports(struct draft *draft, const tsr_partition_options *options) TSR_MUST_USE;
// The steps, what is live of them, and the numbers of communications (steps.c).
tsr_status tsr__draft_build(struct draft *draft) TSR_MUST_USE;

#endif
