// SPDX-License-Identifier: Apache-2.0
// plan.h - chooses a sharding for every node of a model: candidates from the rules, prices from resharding and
// topology, the least cost under the memory of each device.
//
// Other rooms use tsr_plan of tessera.h; this header holds what is said there of its numbers.
#ifndef TSR_PLAN_H
#define TSR_PLAN_H

#include "base/base.h"

#define PLAN_USUAL_SIZE                                                                            \
    128 // of a symbolic dimension that no size is given for: for prices only, it is not cut
#define PLAN_MAX_DEVICES 1024

#endif
