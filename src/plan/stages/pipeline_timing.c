// SPDX-License-Identifier: Apache-2.0
// pipeline_timing.c - predicts the times of a chosen pipeline, by playing it.
#include "plan/stages/stages.h"

void tsr__pipeline_ranges(const struct staging *staging, const struct pipeline *pipeline,
                          struct plan_range *out)
{
    for (size_t k = 0; k < pipeline->n; k++) {
        const struct stage *stage = &pipeline->at[k];
        out[k] = (struct plan_range){staging->cut[stage->end], stage->devices, stage->n};
    }
}

bool tsr__pipeline_timing(struct staging *staging, const struct pipeline *pipeline,
                          struct stage_clock *out)
{
    struct plan_range ranges[STAGES_MOST];
    tsr__pipeline_ranges(staging, pipeline, ranges);
    *out = (struct stage_clock){0};
    struct played_plan played = {.time = out->time, .transfer = out->transfer};
    if (!tsr__plan_play(staging->planner, ranges, pipeline->n, staging->times, &played))
        return false;
    out->latency = played.latency;
    out->period = played.period;
    return true;
}
