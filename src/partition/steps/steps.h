// SPDX-License-Identifier: Apache-2.0
// steps.h - planning: a flow becomes steps between forms.
#ifndef TSR_PARTITION_STEPS_H
#define TSR_PARTITION_STEPS_H

#include "partition/facts/facts.h"

// ports.c, first: inputs and outputs that stay sharded, and states.
tsr_status tsr__draft_ports(struct draft *draft, const tsr_partition_options *options) TSR_MUST_USE;
// steps.c: the steps, what each rank needs of them, and the numbers of communications.
tsr_status tsr__draft_build(struct draft *draft) TSR_MUST_USE;

#endif
