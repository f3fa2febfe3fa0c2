// SPDX-License-Identifier: Apache-2.0
// timeline.c - timelines: a lane for each device, grouped by pipeline stage.
//
// Numbers keep the document small: a span is four of them, and devices with equal spans share them.
// If there are too many spans, each lane has LANE_CELLS intervals with the main activity of each.
//
//     Example: of 10 ms in 4,000,000 ticks (2.5 ns each), a MatMul (operator 0) of node 7 from 0 to
//     3 ms and an AllReduce (operator 1) of node 8 from 5 to 7 ms, which is communication (kind 1):
//     0,7,0,1200000, 4,8,800000,800000
#include "report/internal.h"

#define LANE_CELLS 500
#define LANES      64
#define MAX_SPANS  32000   // spans of one timeline; with more, only cells are written
#define TICKS      4000000 // time units of spans: the total time has this number of them

struct lane {
    size_t device;
    const struct lane_span *spans;
    size_t n;
};

// Adds to share[cell][kind] the seconds of each kind of activity in each cell, for spans `from` to
// to - 1. Example: with cells of 2 s, work from 3 to 7 s adds 1, 2 and 1 s to cells 1, 2 and 3.
static void fill_cells(const struct lanes *lanes, size_t from, size_t to, double (*share)[3])
{
    double cell = lanes->seconds / LANE_CELLS;
    for (size_t i = from; i < to; i++) {
        const struct lane_span *span = &lanes->spans[i];
        int first = (int)(span->begin / cell), last = (int)(span->end / cell);
        if (first < 0)
            first = 0;
        if (last >= LANE_CELLS)
            last = LANE_CELLS - 1;
        for (int k = first; k <= last; k++) {
            double begin = double_max(span->begin, k * cell), end = (k + 1) * cell;
            if (span->end < end)
                end = span->end;
            share[k][span->kind] += double_max(end - begin, 0);
        }
    }
}

// Returns the kind of activity that takes the most time of a cell; 3: idle.
static int kind_of_cell(const double share[3], double cell)
{
    int best = 3;
    // Idle time is the time outside of all spans.
    double most = cell - share[0] - share[1] - share[2];
    for (int i = 0; i < 3; i++)
        if (share[i] > most * 1.000001) {
            most = share[i];
            best = i;
        }
    return best;
}

// Converts cells to spans; adjacent cells of one kind become one span. Returns the number of spans.
static size_t spans_of_cells(const double (*share)[3], const struct lanes *lanes, int device,
                             struct lane_span *out)
{
    double cell = lanes->seconds / LANE_CELLS;
    size_t n = 0;
    int before = 3;
    for (int k = 0; k < LANE_CELLS; k++) {
        int kind = kind_of_cell(share[k], cell);
        if (kind != 3 && kind != before)
            out[n++] = (struct lane_span){.kind = (tsr_span_kind)kind,
                                          .device = device,
                                          .op = "",
                                          .node = "",
                                          .begin = k * cell};
        if (kind != 3)
            out[n - 1].end = (k + 1) * cell;
        before = kind;
    }
    return n;
}

// ---- lanes -------------------------------------------------------------------------------------

// Makes the lane of a device from spans `from` to to - 1: these spans or, if `merged`, cells.
// Returns false if out of memory.
static bool make_lane(struct report *report, const struct lanes *lanes, size_t from, size_t to,
                      bool merged, struct lane *lane)
{
    if (!merged) {
        lane->spans = lanes->spans + from;
        lane->n = to - from;
        return true;
    }
    struct lane_span *cells = ARENA_ARRAY(report->arena, struct lane_span, LANE_CELLS);
    double(*share)[3] = arena_get(report->arena, LANE_CELLS * sizeof *share, sizeof(double));
    if (!share || !cells)
        return false;
    memset(share, 0, LANE_CELLS * sizeof *share);
    fill_cells(lanes, from, to, share);
    lane->n = spans_of_cells((const double(*)[3])share, lanes, (int)lane->device, cells);
    lane->spans = cells;
    return true;
}

// Splits the spans, which are sorted by device, into lanes. Returns false if out of memory.
static bool find_lanes(struct report *report, const struct lanes *lanes, struct lane *list,
                       size_t n)
{
    size_t from = 0;
    for (size_t device = 0; device < n; device++) {
        size_t to = from;
        while (to < lanes->n && (size_t)lanes->spans[to].device == device)
            to++;
        list[device] = (struct lane){.device = device};
        if (!make_lane(report, lanes, from, to, lanes->n > MAX_SPANS, &list[device]))
            return false;
        from = to;
    }
    return true;
}

// Sorts lanes by stage. Without stages they stay in the order of devices.
static void order_lanes(const int64_t *stage_of, struct lane *lane, size_t n)
{
    if (!stage_of)
        return;
    for (size_t i = 1; i < n; i++) {
        struct lane moved = lane[i];
        size_t at = i;
        for (; at > 0 && stage_of[lane[at - 1].device] > stage_of[moved.device]; at--)
            lane[at] = lane[at - 1];
        lane[at] = moved;
    }
}

// ---- writing -----------------------------------------------------------------------------------

// Texts that spans refer to by number.
struct words {
    struct map seen;
    VEC(const char *) list;
};

// Returns the number of a text in the list, to which it is added on first use. Returns 0 if out of
// memory.
static size_t number_of(struct report *report, struct words *words, const char *text)
{
    void **at = tsr__map_at(&words->seen, str_of(text));
    if (!at)
        return 0;
    if (!*at) {
        if (!vec_add(report->arena, &words->list, text))
            return 0;
        *at = (void *)(uintptr_t)words->list.n;
    }
    return (uintptr_t)*at - 1;
}

static void write_words(tsr_json *json, const char *key, const struct words *words)
{
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; i < words->list.n; i++)
        tsr_json_string(json, NULL, words->list.at[i]);
    tsr_json_end(json);
}

static bool same_spans(const struct lane_span *a, const struct lane_span *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].kind != b[i].kind || a[i].begin != b[i].begin || a[i].end != b[i].end ||
            strcmp(a[i].op, b[i].op) != 0 || strcmp(a[i].node, b[i].node) != 0)
            return false;
    return true;
}

// Writes the spans of one lane as four numbers each: kind + 3 * (number of the operator), number of
// the node, ticks since the end of the previous span, ticks of the span.
static void write_spans(struct report *report, const struct lane *lane, double seconds,
                        struct words *ops, struct words *nodes)
{
    tsr_json *json = report->json;
    int64_t at = 0;
    tsr_json_begin(json, NULL, '[');
    for (size_t i = 0; i < lane->n; i++) {
        const struct lane_span *span = &lane->spans[i];
        int64_t begin = (int64_t)(span->begin / seconds * TICKS + 0.5);
        int64_t end = (int64_t)(span->end / seconds * TICKS + 0.5);
        size_t op = number_of(report, ops, span->op);
        tsr_json_int(json, NULL, (int64_t)(3 * op + (size_t)span->kind));
        tsr_json_int(json, NULL, (int64_t)number_of(report, nodes, span->node));
        tsr_json_int(json, NULL, begin - at);
        tsr_json_int(json, NULL, end - begin);
        at = end;
    }
    tsr_json_end(json);
}

// Writes the lanes. A lane that equals an earlier one is written as the number of that lane.
static void write_lanes(struct report *report, const struct lane *lane, size_t n, double seconds)
{
    tsr_json *json = report->json;
    struct words ops = {0}, nodes = {0};
    tsr__map_init(&ops.seen, report->arena, 64);
    tsr__map_init(&nodes.seen, report->arena, 1024);
    tsr_json_begin(json, "devices", '[');
    for (size_t i = 0; i < n; i++)
        tsr_json_int(json, NULL, (int64_t)lane[i].device);
    tsr_json_end(json);
    tsr_json_begin(json, "lanes", '[');
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        while (same < i && (lane[same].n != lane[i].n ||
                            !same_spans(lane[same].spans, lane[i].spans, lane[i].n)))
            same++;
        if (same < i)
            tsr_json_int(json, NULL, (int64_t)same);
        else
            write_spans(report, &lane[i], seconds, &ops, &nodes);
    }
    tsr_json_end(json);
    write_words(json, "ops", &ops);
    write_words(json, "nodes", &nodes);
}

// Writes the timelines of the first LANES devices. The stages are those of the simulated devices.
void tsr__timeline_write(struct report *report, const char *key, const struct lanes *lanes)
{
    tsr_json *json = report->json;
    size_t n = size_min(lanes->devices, LANES);
    struct lane *list = ARENA_ARRAY(report->arena, struct lane, n + 1);
    if (!list || lanes->seconds <= 0 || !find_lanes(report, lanes, list, n))
        return;
    bool staged = report->simulation && lanes->devices == report->simulation->facts.devices;
    order_lanes(staged ? report->stage_of : NULL, list, n);
    tsr_json_begin(json, key, '{');
    tsr_json_number(json, "seconds", lanes->seconds);
    tsr_json_int(json, "ticks", TICKS);
    tsr_json_bool(json, "merged", lanes->n > MAX_SPANS);
    tsr_json_int(json, "device_count", (int64_t)lanes->devices);
    write_lanes(report, list, n, lanes->seconds);
    tsr_json_end(json);
}
