// SPDX-License-Identifier: Apache-2.0
// verdict.c - the summary: whether the plan fits, its speedup over one device, and the bottleneck;
// then the same in numbers. If a run was measured, the comparison with the prediction comes first.
//
//     Example: 4 devices of 16 GiB, 11 GiB on the fullest, one run 5 ms, one device alone 14 ms, 45
//     % of the time in communication: "Fits in memory, 2.8 times as fast as one device."
//     "Communication-bound (45 %), mostly 48 x AllReduce."
#include "report/internal.h"
#include "tessera_json.h"

#define AGREE 1.25 // largest ratio of predicted and measured time that counts as accurate
#define EQUAL 1.05 // smaller speedups count as none

// Returns the memory limit of a device. The requested limit takes precedence over the topology.
int64_t tsr__device_limit(const struct page *page, size_t device)
{
    if (page->memory > 0)
        return page->memory;
    if (!page->topology)
        return 0;
    const tsr_topology_device *known = tsr_topology_device_at(page->topology, (int)device);
    return known ? known->memory : 0;
}

// Sets the memory figures of the summary and whether the plan fits. The fullest device is the one
// closest to its limit; without limits, the one that uses the most memory.
static void check_memory(const struct page *page, struct verdict *verdict)
{
    const tsr_simulation_summary *simulation = page->simulation;
    double worst = -1;
    bool narrow = false;
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        int64_t limit = tsr__device_limit(page, i);
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
    if (verdict->limit <= 0)
        verdict->fit = FIT_UNKNOWN;
    else if (verdict->memory > verdict->limit)
        verdict->fit = FIT_NO;
    else if (narrow)
        verdict->fit = FIT_NARROW;
    else
        verdict->fit = FIT_YES;
}

// Computes the shares of arithmetic, memory traffic, overhead, communication and waiting in the
// time, as means over all devices. The largest share is the bottleneck.
static void sum_shares(const tsr_simulation_summary *simulation, struct verdict *verdict)
{
    double all = simulation->seconds * (double)simulation->devices;
    for (size_t i = 0; i < simulation->devices; i++) {
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
struct verdict tsr__verdict_of(const struct page *page)
{
    const tsr_simulation_summary *simulation = page->simulation;
    struct verdict verdict = {.bound = ""};
    if (!simulation || !simulation->devices)
        return verdict;
    check_memory(page, &verdict);
    sum_shares(simulation, &verdict);
    verdict.seconds = simulation->first;
    verdict.period = simulation->period;
    verdict.one_fits = verdict.limit <= 0 || simulation->one_device_memory <= verdict.limit;
    double each = simulation->requests > 1 ? simulation->period : simulation->first;
    if (simulation->one_device_s > 0 && each > 0)
        verdict.faster = simulation->one_device_s / each;
    return verdict;
}

// ---- words -------------------------------------------------------------------------------------

// Writes whether the plan fits: the beginning of a sentence that write_speed continues.
static void write_fit(struct page *page, const struct verdict *verdict)
{
    static const char *const words[] = {[FIT_UNKNOWN] = "Memory limit unknown",
                                        [FIT_YES] = "Fits in memory",
                                        [FIT_NARROW] = "Barely fits in memory"};
    if (verdict->fit == FIT_NO)
        PUTF(page, "Does not fit: device %zu needs %s but has %s", verdict->fullest,
             tsr__bytes(page, verdict->memory), tsr__bytes(page, verdict->limit));
    else
        PUTF(page, "%s", words[verdict->fit]);
}

static void write_speed(struct page *page, const struct verdict *verdict)
{
    if (page->simulation->devices < 2 || verdict->faster <= 0)
        return;
    if (verdict->faster >= EQUAL)
        PUTF(page, ", %.3g times as fast as one device", verdict->faster);
    else if (verdict->faster > 1 / EQUAL)
        PUT(page, ", no faster than one device");
    else
        PUTF(page, "; %.3g times slower than one device", 1 / verdict->faster);
    if (!verdict->one_fits)
        PUT(page, ", which does not have enough memory");
    if (page->simulation->assumed)
        PUTF(page, ", on %zu assumed devices", page->simulation->devices);
    if (page->simulation->requests > 1)
        PUT(page, ", for back-to-back runs");
}

// Returns the operator that takes the most time in the first request, among spans of this kind;
// NULL: none, or out of memory. *count is the number of communications with that operator.
static const char *largest_operator(const struct page *page, tsr_span_kind kind, size_t *count)
{
    const tsr_simulation_summary *simulation = page->simulation;
    struct map sums;
    const char *best = NULL;
    double most = 0;
    tsr__map_init(&sums, page->arena, 64);
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind != kind || span->request > 0)
            continue;
        void **at = tsr__map_at(&sums, str_of(span->op));
        if (at && !*at)
            *at = ARENA_NEW(page->arena, double);
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

// Writes what limits the speed and, unless that is waiting or overhead, the operator that takes
// most of that time.
static void write_bound(struct page *page, const struct verdict *verdict)
{
    size_t count = 0;
    bool communicates = strcmp(verdict->bound, "communication") == 0;
    const char *op =
        largest_operator(page, communicates ? TSR_SPAN_COMMUNICATION : TSR_SPAN_COMPUTE, &count);
    if (strcmp(verdict->bound, "waiting") == 0) {
        PUTF(page, "Devices wait %.0f %% of the time%s.", 100 * verdict->waiting,
             page->stage_of && page->simulation->requests == 1
                 ? ": a single request is in one stage at a time"
                 : "");
        return;
    }
    if (strcmp(verdict->bound, "overhead") == 0) {
        PUTF(page,
             "Overhead-bound (%.0f %%): the engine needs a fixed time per node; larger "
             "batches or fewer nodes would use the devices better.",
             100 * verdict->overhead);
        return;
    }
    if (communicates)
        PUTF(page, "Communication-bound (%.0f %%)", 100 * verdict->communication);
    else if (strcmp(verdict->bound, "memory bandwidth") == 0)
        PUTF(page, "Memory-bandwidth-bound (%.0f %%)", 100 * verdict->moving);
    else
        PUTF(page, "Compute-bound (%.0f %%)", 100 * verdict->arithmetic);
    if (op) {
        PUT(page, ", mostly ");
        if (communicates)
            PUTF(page, "%zu &times; ", count);
        PUTF(page, "%s", tsr__escaped(page, op));
    }
    PUT(page, ".");
}

// Writes the measured time and how it compares with the predicted one.
static void write_measured(struct page *page, const struct verdict *verdict)
{
    double measured = page->measured.run;
    if (measured <= 0 || verdict->seconds <= 0)
        return;
    double ratio = measured / verdict->seconds;
    bool differs = ratio > AGREE || ratio < 1 / AGREE;
    PUTF(page, "<p class=\"headline %s\">Measured %s, predicted %s", differs ? "parts" : "agrees",
         tsr__time(page, measured), tsr__time(page, verdict->seconds));
    if (!differs)
        PUT(page, ": the prediction is accurate");
    else if (ratio > 1)
        PUTF(page, ": the run took %.3g times as long as predicted", ratio);
    else
        PUTF(page, ": the run was %.3g times as fast as predicted", 1 / ratio);
    if (page->measured.runs > 1)
        PUTF(page, ".<span> Median of %zu runs.</span></p>\n", page->measured.runs);
    else
        PUT(page, ".<span> One run.</span></p>\n");
}

// ---- tiles -------------------------------------------------------------------------------------

static void write_tile(struct page *page, const char *number, const char *label)
{
    PUTF(page, "<div class=\"tile\"><b>%s</b><span>%s</span></div>\n", number, label);
}

// Writes tiles with the predicted and measured times that are known.
static void speed_tiles(struct page *page, const struct verdict *verdict)
{
    const tsr_simulation_summary *simulation = page->simulation;
    write_tile(page, tsr__time(page, verdict->seconds), "predicted time of one run");
    if (simulation->requests > 1)
        write_tile(page, tsr__time(page, verdict->period), "predicted time between runs");
    if (page->measured.run > 0)
        write_tile(page, tsr__time(page, page->measured.run), "measured time of one run");
    if (simulation->one_device_s > 0 && simulation->devices > 1)
        write_tile(page, tsr__time(page, simulation->one_device_s),
                   verdict->one_fits ? "predicted on one device"
                                     : "predicted on one device with enough memory");
}

// Writes the tiles, each a number and a label.
static void write_tiles(struct page *page, const struct verdict *verdict)
{
    struct arena *arena = page->arena;
    PUT(page, "<div class=\"tiles\">\n");
    if (page->simulation) {
        const char *used = "used on the fullest device";
        speed_tiles(page, verdict);
        if (verdict->limit > 0)
            used = str_text(
                tsr__arena_printf(arena, "of %s %s", tsr__bytes(page, verdict->limit), used));
        write_tile(page, tsr__bytes(page, verdict->memory), used);
        write_tile(page,
                   str_text(tsr__arena_printf(arena, "%.1f %%", 100 * verdict->communication)),
                   "of the time communicating");
    }
    if (page->plan && page->plan->nodes)
        write_tile(page,
                   str_text(tsr__arena_printf(arena, "%zu of %zu", page->plan->cut_nodes,
                                              page->plan->nodes)),
                   "nodes are sharded");
    else
        write_tile(page,
                   str_text(tsr__arena_printf(arena, "%zu",
                                              tsr_graph_node_count(tsr_model_graph(page->model)))),
                   "nodes in the model");
    PUT(page, "</div>\n");
}

// Writes the summary. Without a simulation there are tiles only.
void tsr__verdict_write(struct page *page, const struct verdict *verdict)
{
    static const char *const classes[] = {"open", "good", "near", "bad"};
    if (page->simulation && page->simulation->devices) {
        write_measured(page, verdict);
        PUTF(page, "<p class=\"verdict %s\">", classes[verdict->fit]);
        write_fit(page, verdict);
        write_speed(page, verdict);
        PUT(page, ".</p>\n<p class=\"why\">");
        if (page->simulation->assumed)
            PUTF(page,
                 "Predicted for %zu assumed device%s of %.3g GFLOP/s; "
                 "<code>tessera topology measure</code> measures your own. ",
                 page->simulation->devices, page->simulation->devices == 1 ? "" : "s",
                 page->simulation->device_flops / 1e9);
        write_bound(page, verdict);
        PUT(page, "</p>\n");
    }
    write_tiles(page, verdict);
}

static const tsr_json_field share_fields[] = {
    {JSON_FIELD(struct verdict, "arithmetic", arithmetic)},
    {JSON_FIELD(struct verdict, "memory_bandwidth", moving)},
    {JSON_FIELD(struct verdict, "overhead", overhead)},
    {JSON_FIELD(struct verdict, "communication", communication)},
    {JSON_FIELD(struct verdict, "waiting", waiting)},
    {JSON_END},
};

// Writes the summary for programs; "fits" is null if unknown.
void tsr__verdict_json(tsr_json *json, const struct page *page, const struct verdict *verdict)
{
    tsr_json_begin(json, "verdict", '{');
    tsr_json_bool(json, "assumed", page->simulation->assumed);
    if (verdict->fit == FIT_UNKNOWN)
        tsr_json_null(json, "fits");
    else
        tsr_json_bool(json, "fits", verdict->fit != FIT_NO);
    tsr_json_int(json, "fullest", (int64_t)verdict->fullest);
    tsr_json_int(json, "memory", verdict->memory);
    tsr_json_int(json, "limit", verdict->limit);
    tsr_json_number(json, "one_device_s", page->simulation->one_device_s);
    tsr_json_number(json, "faster", verdict->faster);
    tsr_json_string(json, "bound", verdict->bound);
    tsr_json_record(json, "shares", share_fields, verdict);
    if (page->measured.run > 0)
        tsr_json_number(json, "measured_s", page->measured.run);
    tsr_json_end(json);
}
