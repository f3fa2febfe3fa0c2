// SPDX-License-Identifier: Apache-2.0
// plan_once.h - the steps of tsr_plan. Options and summaries are complete here.
#ifndef TSR_PLAN_ONCE_H
#define TSR_PLAN_ONCE_H

#include "plan/plan.h"

// plan_once.c: plans the models on one topology. write false: nothing is written into them.
tsr_status tsr__plan_once(tsr_model *model, const tsr_plan_options *options, bool write,
                          tsr_plan_summary *summary) TSR_MUST_USE;

// choices.c: plans on the best of the topology's choices, if it has some, and writes the plan.
tsr_status tsr__plan_choices(tsr_model *model, const tsr_plan_options *options,
                             tsr_plan_summary *summary) TSR_MUST_USE;
// Returns the topology of the plan: the caller's, or the choice of it that was used.
const tsr_topology *tsr__plan_chosen(const tsr_topology *topology, const tsr_plan_summary *summary);

#endif
