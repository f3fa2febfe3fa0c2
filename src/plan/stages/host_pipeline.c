// SPDX-License-Identifier: Apache-2.0
// host_pipeline.c - the pipeline that an expert would make by hand: one stage on each host, with
// equal work for equal hosts, and tensor parallel inside each host.
//
//     Example: 16 devices on two hosts, 32 equal layers. Layers 0 to 15 run on devices 8 to 15,
//     layers 16 to 31 on devices 0 to 7. The last stage is on the host of device 0, which returns
//     the outputs.
#include "plan/stages/stages.h"

// Finds the host of each device, and the number of hosts; 1: hosts are unknown.
static bool find_hosts(struct staging *staging)
{
    const struct planner *planner = staging->planner;
    int64_t devices = planner->machine.n, host = planner->machine.topology->host;
    staging->n_hosts = 1;
    staging->host_of = ARENA_ARRAY(&staging->planner->arena, int, (size_t)devices + 1);
    if (!staging->host_of)
        return false;
    for (int64_t device = 0; host > 0 && device < devices; device++)
        staging->host_of[device] = (int)(device / host);
    if (host > 0)
        staging->n_hosts = (size_t)((devices + host - 1) / host);
    else if (!tsr__planner_alike(planner))
        staging->n_hosts = (size_t)tsr__clusters_find(planner, staging->host_of);
    return true;
}

// Returns the sum of the speeds of the devices on hosts from `host` on.
static double speed_from(const struct staging *staging, size_t host)
{
    double speed = 0;
    for (int64_t device = 0; device < staging->planner->machine.n; device++)
        if ((size_t)staging->host_of[device] >= host)
            speed += tsr__planner_speed(staging->planner, device);
    return speed;
}

// Returns the split point at which about `share` of the work is done. Leaves at least one range
// between `first` and the result, and `behind` ranges after the result.
static size_t split_at(const struct staging *staging, size_t first, size_t behind, double share)
{
    double all = 0, done = 0;
    size_t cut = 1, node = 0;
    for (size_t i = 0; i < staging->planner->n_nodes; i++)
        all += (double)staging->times[i];
    for (cut = 1; cut < staging->n_ranges; cut++) {
        double before = done;
        for (; node < staging->cut[cut]; node++)
            done += (double)staging->times[node];
        if (done >= share * all) {
            bool nearer = share * all - before < done - share * all;
            cut -= nearer;
            break;
        }
    }
    if (cut + behind > staging->n_ranges)
        cut = staging->n_ranges - behind;
    return cut > first ? cut : first + 1;
}

// Sets where the stages end. Stage k of n is on host n - 1 - k.
static bool split(struct staging *staging)
{
    size_t n = staging->n_hosts, cut = 0;
    double all = speed_from(staging, 0);
    struct stage_window *ends = ARENA_ARRAY(&staging->planner->arena, struct stage_window, n);
    for (size_t k = 0; ends && k + 1 < n; k++) {
        cut = split_at(staging, cut, n - 1 - k, speed_from(staging, n - 1 - k) / all);
        ends[k] = (struct stage_window){staging->cut[cut], staging->cut[cut]};
    }
    staging->windows = ends;
    staging->n_hand = n;
    return ends != NULL;
}

tsr_status tsr__host_pipeline(struct staging *staging, struct pipeline *pipeline)
{
    tsr_plan_options options = {.objective = TSR_LATENCY};
    *pipeline = (struct pipeline){0};
    if (!find_hosts(staging))
        return TSR_NOMEM;
    if (staging->n_hosts < 2 || staging->n_hosts > size_min(STAGES_MOST, staging->n_ranges))
        return TSR_OK;
    options.stages = (int64_t)staging->n_hosts;
    return split(staging) ? tsr__stages_search(staging, &options, MEASURE_TIME, pipeline)
                          : TSR_NOMEM;
}
