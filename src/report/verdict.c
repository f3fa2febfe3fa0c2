// SPDX-License-Identifier: Apache-2.0
// verdict.c - what it comes to: whether it fits, how much faster than one device it is, and what
// bounds it; then the same in numbers. Where a run was measured and differs from the prediction,
// that stands first.
//
//     4 devices of 16 GiB, 11 GiB on the fullest, one run 5 ms, one device alone 14 ms, 45 % of the
//     time communicating: "Fits, 2.8 times as fast as one device." "Communication bounds it: 45 %
//     of the time, most of it in 48 x AllReduce."
#include "report/internal.h"

#define AGREE 1.25 // predicted and measured part where one is so many times the other
#define EQUAL 1.05 // as fast as one device

// The limit that was asked for comes before what the topology says.
int64_t tsr__device_limit(const struct page *page, size_t device)
{
    if (page->memory > 0)
        return page->memory;
    if (!page->topology)
        return 0;
    const tsr_topology_device *known = tsr_topology_device_at(page->topology, (int)device);
    if (!known)
        return 0;
    return known->memory;
}

// The device that is fullest in proportion to its limit decides; where no limit is known, the one
// that has the most.
static void judge_memory(const struct page *page, struct verdict *verdict)
{
    const tsr_simulation *simulation = page->simulation;
    double worst = -1;
    bool narrow = false;
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        int64_t limit = tsr__device_limit(page, i);
        double share = (double)device->memory;
        if (limit > 0)
            share /= (double)limit;
        // The plan counts tensors alone; the process has the engine's own besides, on any device.
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

// Means over all devices; what takes the largest share bounds the run.
static void judge_shares(const tsr_simulation *simulation, struct verdict *verdict)
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
        // For who owns the devices, waiting for others and having nothing to do are the same.
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

// Faster than one device: of one run, or (when requests follow one another) of the time between
// two.
struct verdict tsr__verdict_of(const struct page *page)
{
    const tsr_simulation *simulation = page->simulation;
    struct verdict verdict = {.bound = ""};
    if (!simulation || !simulation->devices)
        return verdict;
    judge_memory(page, &verdict);
    judge_shares(simulation, &verdict);
    verdict.seconds = simulation->first;
    verdict.period = simulation->period;
    verdict.one_fits = verdict.limit <= 0 || simulation->one_device_memory <= verdict.limit;
    // With several requests devices work on different ones at a time: what counts then is how often
    // one comes out.
    double each = simulation->first;
    if (simulation->requests > 1)
        each = simulation->period;
    if (simulation->one_device_s > 0 && each > 0)
        verdict.faster = simulation->one_device_s / each;
    return verdict;
}

// ---- words -------------------------------------------------------------------------------------

// The first words of the verdict; write_speed goes on in the same sentence.
static void write_fit(struct page *page, const struct verdict *verdict)
{
    switch (verdict->fit) {
    case FIT_UNKNOWN:
        PUT(page, "No limit of memory is known");
        return;
    case FIT_YES:
        PUT(page, "Fits");
        return;
    case FIT_NARROW:
        PUT(page, "Fits narrowly");
        return;
    case FIT_NO:
        tsr__text_printf(page->out, "Does not fit: device %zu needs ", verdict->fullest);
        tsr__html_bytes(page->out, verdict->memory);
        PUT(page, " and has ");
        tsr__html_bytes(page->out, verdict->limit);
        return;
    }
}

// Within 5 % of one device is called no faster.
static void write_speed(struct page *page, const struct verdict *verdict)
{
    if (page->simulation->devices < 2 || verdict->faster <= 0)
        return;
    if (verdict->faster >= EQUAL)
        tsr__text_printf(page->out, ", %.3g times as fast as one device", verdict->faster);
    else if (verdict->faster > 1 / EQUAL)
        PUT(page, ", no faster than one device");
    else
        tsr__text_printf(page->out, ", %.3g times as slow as one device", 1 / verdict->faster);
    if (!verdict->one_fits)
        PUT(page, ", which could not hold it");
    if (page->simulation->assumed)
        tsr__text_printf(page->out, ", on %zu assumed devices", page->simulation->devices);
    if (page->simulation->requests > 1)
        PUT(page, ", when runs follow one another");
}

// The operator that takes the most time of that kind, in the first request.
static const char *largest_operator(const struct page *page, tsr_span_kind kind, size_t *count)
{
    const tsr_simulation *simulation = page->simulation;
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
    // How many communications there are of that operator; of a computing one that is 0, and not
    // shown.
    *count = 0;
    if (!best)
        return NULL;
    for (size_t i = 0; i < simulation->n_comms; i++)
        *count += strcmp(simulation->comms[i].op, best) == 0;
    return best;
}

// What bounds the run, in words, and the operator that has the most of it where that helps.
static void write_bound(struct page *page, const struct verdict *verdict)
{
    size_t count = 0;
    bool talks = strcmp(verdict->bound, "communication") == 0;
    tsr_span_kind kind = TSR_SPAN_COMPUTE;
    if (talks)
        kind = TSR_SPAN_COMMUNICATION;
    const char *op = largest_operator(page, kind, &count);
    if (talks) {
        tsr__text_printf(page->out, "Communication bounds it: %.0f %% of the time",
                         100 * verdict->communication);
        if (op) {
            tsr__text_printf(page->out, ", most of it in %zu &times; ", count);
            tsr__html_text(page->out, op);
        }
    } else if (strcmp(verdict->bound, "waiting") == 0) {
        tsr__text_printf(page->out,
                         "Waiting bounds it: devices stand still for %.0f %% of the time%s",
                         100 * verdict->waiting,
                         text_if(page->stage_of && page->simulation->requests == 1,
                                 ", since one request is in one stage at a time"));
    } else if (strcmp(verdict->bound, "overhead") == 0) {
        tsr__text_printf(page->out,
                         "What the engine takes for each node bounds it: %.0f %% of the time; "
                         "larger batches or fewer nodes would use the devices better",
                         100 * verdict->overhead);
    } else if (strcmp(verdict->bound, "memory bandwidth") == 0) {
        tsr__text_printf(page->out, "The bandwidth of memory bounds it: %.0f %% of the time",
                         100 * verdict->moving);
    } else {
        tsr__text_printf(page->out, "Arithmetic bounds it: %.0f %% of the time",
                         100 * verdict->arithmetic);
    }
    bool named = strcmp(verdict->bound, "arithmetic") == 0 ||
                 strcmp(verdict->bound, "memory bandwidth") == 0;
    if (op && named) {
        PUT(page, ", ");
        tsr__html_text(page->out, op);
        PUT(page, " before all others");
    }
    PUT(page, ".");
}

// Predicted against measured; true: they part.
static bool write_measured(struct page *page, const struct verdict *verdict)
{
    double measured = page->measured.run;
    if (measured <= 0 || verdict->seconds <= 0)
        return false;
    double ratio = measured / verdict->seconds;
    static const char *const classes[] = {"agrees", "parts"};
    bool parts = ratio > AGREE || ratio < 1 / AGREE;
    tsr__text_printf(page->out, "<p class=\"headline %s\">Measured ", classes[parts]);
    tsr__html_time(page->out, measured);
    PUT(page, ", predicted ");
    tsr__html_time(page->out, verdict->seconds);
    if (!parts)
        PUT(page, ": the prediction holds");
    else if (ratio > 1)
        tsr__text_printf(page->out, ": the run took %.3g times as long", ratio);
    else
        tsr__text_printf(page->out, ": the run was %.3g times as fast", 1 / ratio);
    tsr__text_printf(page->out, ".<span> One run, the median of %zu.</span></p>\n",
                     page->measured.runs);
    return parts;
}

// ---- tiles -------------------------------------------------------------------------------------

// Ends the number of a tile with the words for it, and begins the next.
static void tile(struct page *page, const char *what)
{
    tsr__text_printf(page->out, "</b><span>%s</span></div>\n<div class=\"tile\"><b>", what);
}

// One run, the time between runs, what was measured, and one device alone, as far as they are
// known.
static void speed_tiles(struct page *page, const struct verdict *verdict)
{
    tsr__html_time(page->out, verdict->seconds);
    tile(page, "for one run, predicted");
    if (page->simulation->requests > 1) {
        tsr__html_time(page->out, verdict->period);
        tile(page, "between runs that follow one another");
    }
    if (page->measured.run > 0) {
        tsr__html_time(page->out, page->measured.run);
        tile(page, "for one run, measured");
    }
    if (page->simulation->one_device_s > 0 && page->simulation->devices > 1) {
        tsr__html_time(page->out, page->simulation->one_device_s);
        if (verdict->one_fits)
            tile(page, "on one device");
        else
            tile(page, "on one device, if it had the memory");
    }
}

// A tile is a number and what it is. Each call of tile() ends one and begins the next.
static void tiles(struct page *page, const struct verdict *verdict)
{
    PUT(page, "<div class=\"tiles\">\n<div class=\"tile\"><b>");
    if (page->simulation) {
        speed_tiles(page, verdict);
        tsr__html_bytes(page->out, verdict->memory);
        if (verdict->limit > 0) {
            PUT(page, "</b><span>of ");
            tsr__html_bytes(page->out, verdict->limit);
            PUT(page, " on the fullest device</span></div>\n<div class=\"tile\"><b>");
        } else {
            tile(page, "on the fullest device");
        }
        tsr__text_printf(page->out, "%.1f %%", 100 * verdict->communication);
        tile(page, "of the time communicating");
    }
    if (page->plan && page->plan->nodes) {
        tsr__text_printf(page->out, "%zu of %zu", page->plan->cut_nodes, page->plan->nodes);
        PUT(page, "</b><span>nodes are cut</span></div>\n</div>\n");
    } else {
        tsr__text_printf(page->out, "%zu</b><span>nodes in the model</span></div>\n</div>\n",
                         tsr_graph_node_count(tsr_model_graph(page->model)));
    }
}

// What was measured, whether it fits and how fast it is, why, and the tiles. Without a simulation
// there are tiles only.
void tsr__verdict_write(struct page *page, const struct verdict *verdict)
{
    static const char *const classes[] = {"open", "good", "near", "bad"};
    if (page->simulation && page->simulation->devices) {
        write_measured(page, verdict);
        tsr__text_printf(page->out, "<p class=\"verdict %s\">", classes[verdict->fit]);
        write_fit(page, verdict);
        write_speed(page, verdict);
        PUT(page, ".</p>\n<p class=\"why\">");
        if (page->simulation->assumed)
            tsr__text_printf(
                page->out,
                "On %zu assumed device%s of %.3g GFLOP/s, not on yours; measure yours: "
                "<code>tessera topology measure</code>. ",
                page->simulation->devices, text_if(page->simulation->devices != 1, "s"),
                page->simulation->device_flops / 1e9);
        write_bound(page, verdict);
        PUT(page, "</p>\n");
    }
    tiles(page, verdict);
}

// The same for programs; a fit that is not known is null.
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
    tsr_json_begin(json, "shares", '{');
    tsr_json_number(json, "arithmetic", verdict->arithmetic);
    tsr_json_number(json, "memory_bandwidth", verdict->moving);
    tsr_json_number(json, "overhead", verdict->overhead);
    tsr_json_number(json, "communication", verdict->communication);
    tsr_json_number(json, "waiting", verdict->waiting);
    tsr_json_end(json);
    if (page->measured.run > 0)
        tsr_json_number(json, "measured_s", page->measured.run);
    tsr_json_end(json);
}
