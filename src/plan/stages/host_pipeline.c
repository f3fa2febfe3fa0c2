// SPDX-License-Identifier: Apache-2.0
// host_pipeline.c - the pipeline that an expert would make by hand: one stage on each host, with
// equal work for equal hosts, and tensor parallel inside each host.
//
//     Example: 16 devices on two hosts, 32 equal layers. Layers 0 to 15 run on devices 8 to 15,
//     layers 16 to 31 on devices 0 to 7. The last stage is on the host of device 0, which returns
//     the outputs.
#include "plan/stages/stages.h"

// The devices by host.
struct hosts {
    int *of;  // by device
    size_t n; // 1: hosts are unknown
};

// Finds the host of each device. False: out of memory.
static bool find_hosts(const struct staging *staging, struct hosts *out)
{
    const struct planner *planner = staging->planner;
    int64_t devices = planner->machine.n, host = planner->machine.topology->host;
    *out = (struct hosts){ARENA_ARRAY(&staging->planner->arena, int, (size_t)devices + 1), 1};
    if (!out->of)
        return false;
    for (int64_t device = 0; host > 0 && device < devices; device++)
        out->of[device] = (int)(device / host);
    if (host > 0)
        out->n = (size_t)((devices + host - 1) / host);
    else if (!tsr__planner_alike(planner))
        out->n = (size_t)tsr__clusters_find(planner, out->of);
    return true;
}

// Returns the sum of the speeds of the devices on hosts from `host` on.
static double speed_from(const struct staging *staging, const struct hosts *hosts, size_t host)
{
    double speed = 0;
    for (int64_t device = 0; device < staging->planner->machine.n; device++)
        if ((size_t)hosts->of[device] >= host)
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

// Gives the stage the devices of the host. False: out of memory.
static bool place_on(struct staging *staging, const struct hosts *hosts, size_t host,
                     struct stage *out)
{
    int64_t devices = staging->planner->machine.n;
    out->devices = ARENA_ARRAY(&staging->planner->arena, int64_t, (size_t)devices);
    if (!out->devices)
        return false;
    for (int64_t device = 0; device < devices; device++)
        if ((size_t)hosts->of[device] == host)
            out->devices[out->n++] = device;
    out->kind = tsr__stages_kind(staging, out->devices, out->n);
    out->memory = tsr__stages_memory(staging, out->devices, out->n);
    return out->kind != NULL;
}

// Adds stage k of hosts->n, on host n - 1 - k, from the end of the stage before it. *fits false: it
// needs too much memory, or there was no time to find out.
static tsr_status add_stage(struct staging *staging, const struct hosts *hosts,
                            struct pipeline *pipeline, bool *fits)
{
    size_t k = pipeline->n, behind = hosts->n - 1 - k;
    double share = speed_from(staging, hosts, behind) / speed_from(staging, hosts, 0);
    struct stage *stage = &pipeline->at[pipeline->n++];
    *stage = (struct stage){.begin = k ? stage[-1].end : 0, .end = staging->n_ranges};
    if (behind > 0)
        stage->end = split_at(staging, stage->begin, behind, share);
    if (!place_on(staging, hosts, behind, stage))
        return TSR_NOMEM;
    struct point point;
    TRY(tsr__range_time(staging, stage, false, &point));
    *fits = point.feasible;
    return TSR_OK;
}

tsr_status tsr__host_pipeline(struct staging *staging, struct pipeline *pipeline)
{
    struct hosts hosts;
    bool fits = true;
    *pipeline = (struct pipeline){0};
    if (!find_hosts(staging, &hosts))
        return TSR_NOMEM;
    if (hosts.n < 2 || hosts.n > size_min(STAGES_MOST, staging->n_ranges))
        return TSR_OK;
    while (pipeline->n < hosts.n && fits)
        TRY(add_stage(staging, &hosts, pipeline, &fits));
    if (!fits)
        pipeline->n = 0;
    return TSR_OK;
}
