// SPDX-License-Identifier: Apache-2.0
// verdict.c - the summary: whether the plan fits, its speedup over one device, and the bottleneck.
//
//     Example: 4 devices of 16 GiB, 11 GiB on the fullest, one run 5 ms, one device alone 14 ms, 45
//     % of the time in communication: fits, 2.8 times as fast, bound by communication, mostly 48
//     calls of AllReduce.
#include "report/internal.h"

// Returns the memory limit of a device. The requested limit takes precedence over the topology.
int64_t tsr__device_limit(const struct report *report, size_t device)
{
    if (report->memory > 0)
        return report->memory;
    if (!report->topology)
        return 0;
    const tsr_topology_device *known = tsr_topology_device_at(report->topology, (int)device);
    return known ? known->memory : 0;
}

// Sets the memory figures of the summary and whether the plan fits. The fullest device is the one
// closest to its limit; without limits, the one that uses the most memory.
static void check_memory(const struct report *report, struct verdict *verdict)
{
    const tsr_simulation_view *simulation = report->simulation;
    double worst = -1;
    bool narrow = false;
    for (size_t i = 0; i < simulation->facts.devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        int64_t limit = tsr__device_limit(report, i);
        double share = (double)device->memory;
        if (limit > 0)
            share /= (double)limit;
        // The peak includes the engine's own memory.
        narrow |= limit > 0 && device->peak > limit;
        if (share <= worst)
            continue;
        worst = share;
        verdict->fullest = i;
        verdict->memory = device->memory;
        verdict->limit = limit;
    }
    verdict->fits = verdict->memory <= verdict->limit;
    verdict->narrow = verdict->fits && narrow;
}

// Computes the shares of arithmetic, memory traffic, overhead, communication and waiting in the
// time, as means over all devices. The largest share is the bottleneck.
static void sum_shares(const tsr_simulation_view *simulation, struct verdict *verdict)
{
    double all = simulation->facts.seconds * (double)simulation->facts.devices;
    for (size_t i = 0; i < simulation->facts.devices; i++) {
        if (all <= 0)
            break;
        const tsr_simulated_device *device = &simulation->device[i];
        verdict->arithmetic += device->arithmetic / all;
        verdict->moving += device->moving / all;
        verdict->overhead += device->overhead / all;
        verdict->communication += device->communication / all;
        // Idle time counts as waiting.
        verdict->waiting += (device->waiting + device->idle) / all;
    }
    const struct {
        double share;
        const char *name;
    } bounds[] = {{verdict->arithmetic, "arithmetic"},
                  {verdict->moving, "memory bandwidth"},
                  {verdict->overhead, "overhead"},
                  {verdict->communication, "communication"},
                  {verdict->waiting, "waiting"}};
    size_t best = 0;
    for (size_t i = 1; i < TSR_COUNT(bounds); i++)
        if (bounds[i].share > bounds[best].share)
            best = i;
    verdict->bound = bounds[best].name;
}

// Computes the summary. The speedup compares one device with the time of one run or, with several
// requests, with the time between runs.
struct verdict tsr__verdict_of(const struct report *report)
{
    const tsr_simulation_view *simulation = report->simulation;
    struct verdict verdict = {.bound = ""};
    if (!simulation || !simulation->facts.devices)
        return verdict;
    check_memory(report, &verdict);
    sum_shares(simulation, &verdict);
    verdict.seconds = simulation->facts.first;
    verdict.period = simulation->facts.period;
    verdict.one_fits = verdict.limit <= 0 || simulation->facts.one_device_memory <= verdict.limit;
    double each =
        simulation->facts.requests > 1 ? simulation->facts.period : simulation->facts.first;
    if (simulation->facts.one_device_s > 0 && each > 0)
        verdict.faster = simulation->facts.one_device_s / each;
    return verdict;
}

// Returns the operator that takes the most time in the first request, among spans of this kind;
// NULL: none, or out of memory. *count is the number of communications with that operator.
static const char *largest_operator(const struct report *report, tsr_span_kind kind, size_t *count)
{
    const tsr_simulation_view *simulation = report->simulation;
    struct map sums;
    const char *best = NULL;
    double most = 0;
    tsr__map_init(&sums, report->arena, 64);
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind != kind || span->request > 0)
            continue;
        void **at = tsr__map_at(&sums, str_of(span->op));
        if (at && !*at)
            *at = ARENA_NEW(report->arena, double);
        if (!at || !*at)
            return NULL;
        double *sum = *at;
        *sum += span->end - span->begin;
        if (*sum > most) {
            most = *sum;
            best = span->op;
        }
    }
    *count = 0;
    if (!best)
        return NULL;
    for (size_t i = 0; i < simulation->n_comms; i++)
        *count += strcmp(simulation->comms[i].op, best) == 0;
    return best;
}

static const tsr_json_field share_fields[] = {
    {JSON_FIELD(struct verdict, "arithmetic", arithmetic)},
    {JSON_FIELD(struct verdict, "memory_bandwidth", moving)},
    {JSON_FIELD(struct verdict, "overhead", overhead)},
    {JSON_FIELD(struct verdict, "communication", communication)},
    {JSON_FIELD(struct verdict, "waiting", waiting)},
    {JSON_END},
};

// Writes the operator that takes most of the time that limits the speed.
static void write_operator(const struct report *report, const struct verdict *verdict)
{
    size_t count = 0;
    bool communicates = strcmp(verdict->bound, "communication") == 0;
    const char *op =
        largest_operator(report, communicates ? TSR_SPAN_COMMUNICATION : TSR_SPAN_COMPUTE, &count);
    tsr_json_string(report->json, "operator", op);
    tsr_json_int(report->json, "operator_calls", (int64_t)count);
}

// Writes the summary; "fits" is null if unknown.
void tsr__verdict_write(const struct report *report, const struct verdict *verdict)
{
    tsr_json *json = report->json;
    const tsr_simulation_view *simulation = report->simulation;
    tsr_json_begin(json, "verdict", '{');
    tsr_json_bool(json, "assumed", simulation->facts.assumed);
    if (verdict->limit <= 0)
        tsr_json_null(json, "fits");
    else
        tsr_json_bool(json, "fits", verdict->fits);
    tsr_json_bool(json, "narrow", verdict->narrow);
    tsr_json_int(json, "fullest", (int64_t)verdict->fullest);
    tsr_json_int(json, "memory", verdict->memory);
    tsr_json_int(json, "limit", verdict->limit);
    tsr_json_number(json, "one_device_s", simulation->facts.one_device_s);
    tsr_json_bool(json, "one_device_fits", verdict->one_fits);
    tsr_json_number(json, "faster", verdict->faster);
    tsr_json_string(json, "bound", verdict->bound);
    write_operator(report, verdict);
    tsr_json_record(json, "shares", share_fields, verdict);
    if (report->measured.run > 0) {
        tsr_json_number(json, "measured_s", report->measured.run);
        tsr_json_int(json, "measured_runs", (int64_t)report->measured.runs);
    }
    tsr_json_end(json);
}
