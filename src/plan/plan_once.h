// SPDX-License-Identifier: Apache-2.0
// plan_once.h - the steps of tsr_plan. Options and summaries have their full size here: tsr__plan
// has converted those of callers with an older header.
#ifndef TSR_PLAN_ONCE_H
#define TSR_PLAN_ONCE_H

#include "plan/plan.h"

// plan_once.c: plans the models on one topology. write false: nothing is written into them.
tsr_status tsr__plan_once(tsr_model *model, const tsr_plan_options *options, bool write,
                          tsr_plan_result *plan) TSR_MUST_USE;

// choices.c: plans on the best choice of the topology (`choices` in topology.h), or on the topology
// itself if it has none. Writes the plan.
tsr_status tsr__plan_choices(tsr_model *model, const tsr_plan_options *options,
                             tsr_plan_result *plan) TSR_MUST_USE;
// Returns the topology of the plan: the caller's topology, or its choice that was used.
const tsr_topology *tsr__plan_chosen(const tsr_topology *topology, const tsr_plan_result *plan);

#endif
