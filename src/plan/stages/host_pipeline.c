// SPDX-License-Identifier: Apache-2.0
// host_pipeline.c - the pipeline that an expert would make by hand: one stage on each host, with
// equal work for equal hosts, and tensor parallel inside each host.
//
//     Example: 16 devices on two hosts, 32 equal layers. Layers 0 to 15 run on devices 8 to 15,
//     layers 16 to 31 on devices 0 to 7. The last stage is on the host of device 0, which returns
//     the outputs.
#include "plan/stages/stages.h"

// Number of hosts, and the host of each device. n 0: hosts are unknown.
struct hosts {
    int64_t n;
    int *of;       // by device
    double *speed; // by host: sum of its devices
};

static bool find_hosts(const struct planner *planner, struct arena *arena, struct hosts *out)
{
    int64_t devices = planner->machine.n, host = planner->machine.topology->host;
    *out = (struct hosts){.of = ARENA_ARRAY(arena, int, (size_t)devices + 1)};
    if (!out->of)
        return false;
    if (host > 0) {
        for (int64_t device = 0; device < devices; device++)
            out->of[device] = (int)(device / host);
        out->n = (devices + host - 1) / host;
    } else if (!tsr__planner_alike(planner)) {
        out->n = tsr__clusters_find(planner, out->of);
    }
    out->speed = ARENA_ARRAY(arena, double, (size_t)out->n + 1);
    for (int64_t device = 0; out->speed && out->n > 1 && device < devices; device++)
        out->speed[out->of[device]] += tsr__planner_speed(planner, device);
    return out->speed != NULL;
}

// Returns the host of a stage: stage k of n runs on host n - 1 - k.
static int host_of_stage(const struct hosts *hosts, int64_t k)
{
    return (int)(hosts->n - 1 - k);
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

// Lists the devices of the stage, and finds its kind and memory limit.
static bool place_stage(struct staging *staging, const struct hosts *hosts, int host,
                        struct stage *stage)
{
    struct planner *planner = staging->planner;
    stage->devices = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    if (!stage->devices)
        return false;
    for (int64_t device = 0; device < planner->machine.n; device++)
        if (hosts->of[device] == host)
            stage->devices[stage->n++] = device;
    stage->memory = tsr__stages_memory(staging, stage->devices, stage->n);
    stage->kind = tsr__stages_kind(staging, stage->devices, stage->n);
    return stage->kind != NULL;
}

// Returns the time of sending the values that the stage reads, from the first device of the stage
// before it. PLAN_NEVER: out of memory, or impossible.
static int64_t transfer_time(struct staging *staging, const struct stage *before,
                             const struct stage *stage)
{
    struct planner *planner = staging->planner;
    const struct range *range = tsr__stages_range(staging, stage->begin, stage->end);
    int64_t ps = 0;
    for (size_t i = 0; range && i < range->n_in; i++) {
        const struct plan_value *value = &planner->values[tsr__value_id(range->in[i])];
        uint32_t has = tsr__planner_replicated_on(planner, value->rank, before->devices, 1);
        uint32_t wants = tsr__planner_replicated_on(planner, value->rank, stage->devices, stage->n);
        if (has == PLAN_NO_LAYOUT || wants == PLAN_NO_LAYOUT)
            return PLAN_NEVER;
        int64_t more = tsr__resharding_time(planner, has, wants, value);
        if (more >= PLAN_NEVER)
            return PLAN_NEVER;
        ps += more;
    }
    return range ? ps : PLAN_NEVER;
}

// Fills in the stages and checks that each fits in memory; line->n stays 0 if one does not, or if a
// stage cannot be reached from the one before it.
static tsr_status make_line(struct staging *staging, const struct hosts *hosts,
                            struct pipeline *line)
{
    double done = 0, all = 0;
    size_t n = (size_t)hosts->n;
    for (size_t k = 0; k < n; k++)
        all += hosts->speed[k];
    for (size_t k = 0; k < n; k++) {
        struct stage *stage = &line->at[k];
        int host = host_of_stage(hosts, (int64_t)k);
        done += hosts->speed[host];
        stage->begin = k ? line->at[k - 1].end : 0;
        stage->end = staging->n_ranges;
        if (k + 1 < n)
            stage->end = split_at(staging, stage->begin, n - 1 - k, done / all);
        if (!place_stage(staging, hosts, host, stage))
            return TSR_NOMEM;
        tsr_status st = tsr__range_time(staging, stage, false, &stage->point);
        if (st != TSR_OK || !stage->point.feasible)
            return st;
        if (k)
            stage->transfer[0] = transfer_time(staging, &line->at[k - 1], stage);
        if (stage->transfer[0] >= PLAN_NEVER)
            return arena_status(&staging->planner->arena);
    }
    line->n = n;
    return TSR_OK;
}

tsr_status tsr__host_pipeline(struct staging *staging, struct pipeline *line)
{
    struct hosts hosts;
    *line = (struct pipeline){0};
    if (!find_hosts(staging->planner, &staging->planner->arena, &hosts))
        return TSR_NOMEM;
    if (hosts.n < 2 || hosts.n > STAGES_MOST || (size_t)hosts.n > staging->n_ranges)
        return TSR_OK;
    return make_line(staging, &hosts, line);
}
