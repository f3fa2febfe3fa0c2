// SPDX-License-Identifier: Apache-2.0
// read_trace.c - reads the trace of a run (tsr_job_trace) for the timeline. The file is not
// trusted.
//
//     Example: {"ph":"X", "cat":"Node", "name":"fc1", "pid":1, "ts":1200, "dur":300,
//     "args":{"op_name":"MatMul"}} is a span of rank 1 from 1.2 to 1.5 ms, MatMul;
//     "cat":"communication" is a collective; "name":"model_run" is a complete run of the rank.
#include "report/internal.h"

#include <jansson.h>
#include <stdlib.h>

#define MAX_TRACE ((size_t)256 << 20)
#define MAX_SPANS 2000000
#define MAX_RANKS 65536 // most ranks of a partition

typedef VEC(struct lane_span) span_list;

// The time of one complete run on one rank.
struct run_time {
    int device;
    double begin, seconds;
};
typedef VEC(struct run_time) run_list;

struct trace_reader {
    struct report *report;
    span_list spans;
    run_list runs;
    size_t devices;
};

// True for a complete event ("X") of a rank with valid times.
static bool is_work(const json_t *entry)
{
    const char *phase = json_string_value(json_object_get(entry, "ph"));
    double begin = json_number_value(json_object_get(entry, "ts")) / 1e6,
           length = json_number_value(json_object_get(entry, "dur")) / 1e6;
    if (!phase || strcmp(phase, "X") != 0 || !json_string_value(json_object_get(entry, "name")))
        return false;
    return json_integer_value(json_object_get(entry, "pid")) >= 0 && length > 0 && length <= 1e9 &&
           begin >= 0;
}

// Adds an event of the trace to the spans or runs. Ignores events that are not work of a rank.
// Counts events beyond the limits.
static void read_event(struct trace_reader *reader, const json_t *entry)
{
    struct report *report = reader->report;
    span_list *list = &reader->spans;
    if (!is_work(entry))
        return;
    const char *name = json_string_value(json_object_get(entry, "name")),
               *category = json_string_value(json_object_get(entry, "cat"));
    int64_t pid = json_integer_value(json_object_get(entry, "pid"));
    double begin = json_number_value(json_object_get(entry, "ts")) / 1e6,
           length = json_number_value(json_object_get(entry, "dur")) / 1e6;
    if (pid >= MAX_RANKS || list->n >= MAX_SPANS) {
        report->measured.left_out++;
        return;
    }
    // The event is a node of ONNX Runtime, our communication, or an event of a simulation.
    const json_t *args = json_object_get(entry, "args");
    const char *op = json_string_value(json_object_get(args, "op_name")),
               *node = json_string_value(json_object_get(args, "node"));
    tsr_span_kind kind = TSR_SPAN_COMPUTE;
    if (category && strcmp(category, "communication") == 0)
        kind = TSR_SPAN_COMMUNICATION;
    else if (category && strcmp(category, "waiting") == 0)
        kind = TSR_SPAN_WAITING;
    else if (strcmp(name, "model_run") == 0)
        vec_add(report->arena, &reader->runs, (struct run_time){(int)pid, begin, length});
    if (kind == TSR_SPAN_COMPUTE && !op && !(category && strcmp(category, "compute") == 0))
        return; // a complete run, or not a node
    struct lane_span *span = vec_push(report->arena, list);
    if (!span)
        return;
    if (!node && op) // the engine names the event after the node
        node = name;
    *span = (struct lane_span){.kind = kind,
                               .device = (int)pid,
                               .op = tsr__arena_str(report->arena, str_of(op ? op : name)).p,
                               .node = tsr__arena_str(report->arena, str_of(node ? node : "")).p,
                               .begin = begin,
                               .end = begin + length};
    if ((size_t)pid + 1 > reader->devices)
        reader->devices = (size_t)pid + 1;
}

// Compares two spans by device, then by time.
static int by_time(const void *a, const void *b)
{
    const struct lane_span *x = a, *y = b;
    if (x->device != y->device)
        return x->device - y->device;
    if (x->begin != y->begin)
        return ascending(x->begin, y->begin);
    return x->end != y->end ? ascending(x->end, y->end) : strcmp(x->node, y->node);
}

static int by_begin(const void *a, const void *b)
{
    const struct run_time *x = a, *y = b;
    if (x->device != y->device)
        return x->device - y->device;
    if (x->begin != y->begin)
        return ascending(x->begin, y->begin);
    return ascending(x->seconds, y->seconds);
}

// Sets the measured time of a run: the median over all runs, each with the time of its slowest
// rank. With three or more runs the first one is left out, because it is a warm-up.
static void find_run(struct trace_reader *reader)
{
    run_list *runs = &reader->runs;
    struct measured *measured = &reader->report->measured;
    size_t n = 0;
    double *longest = ARENA_ARRAY(reader->report->arena, double, runs->n + 1);
    if (!longest || !runs->n)
        return;
    qsort(runs->at, runs->n, sizeof *runs->at, by_begin);
    // Runs are sorted by rank and time: k is the index within a rank.
    for (size_t i = 0, k = 0; i < runs->n; i++, k++) {
        if (i > 0 && runs->at[i].device != runs->at[i - 1].device)
            k = 0;
        longest[k] = double_max(runs->at[i].seconds, longest[k]);
        if (k >= n)
            n = k + 1;
    }
    size_t skipped = n > 2;
    qsort(longest + skipped, n - skipped, sizeof *longest, by_double);
    measured->runs = n;
    measured->run = longest[skipped + (n - skipped) / 2];
}

// Reads all spans, with times relative to the first one, and finds the time of a run.
static void read_events(struct report *report, const json_t *root)
{
    const json_t *events = root; // or an object that contains them
    if (!json_is_array(root))
        events = json_object_get(root, "traceEvents");
    struct trace_reader reader = {.report = report};
    for (size_t i = 0; i < json_array_size(events); i++)
        read_event(&reader, json_array_get(events, i));
    span_list list = reader.spans;
    if (!list.n || report->arena->failed)
        return;
    // Make times relative to the first span.
    double first = list.at[0].begin, last = 0;
    for (size_t i = 0; i < list.n; i++) {
        if (list.at[i].begin < first)
            first = list.at[i].begin;
        last = double_max(list.at[i].end, last);
    }
    for (size_t i = 0; i < list.n; i++) {
        list.at[i].begin -= first;
        list.at[i].end -= first;
    }
    qsort(list.at, list.n, sizeof *list.at, by_time);
    report->measured.lanes = (struct lanes){list.at, list.n, reader.devices, last - first};
    find_run(&reader);
}

// Reads a trace into report->measured. Reports an error if the trace cannot be read or has no work
// of a rank.
tsr_status tsr__report_trace(struct report *report, const char *path)
{
    struct str text;
    json_error_t error;
    TRY(tsr__file_read(report->session, report->arena, path, MAX_TRACE, &text));
    json_t *root = NULL;
    tsr_status st = tsr__json_load(report->session, text, 0, &error, &root);
    if (st == TSR_NOMEM)
        return st;
    bool readable = root != NULL;
    if (readable)
        read_events(report, root);
    json_decref(root);
    if (report->arena->failed)
        return TSR_NOMEM;
    if (report->measured.lanes.devices)
        return TSR_OK;
    struct place at = PLACE(.file = str_of(path));
    static const char remedy[] = "give a file that run --trace has written";
    if (readable)
        tsr__diag(report->session, DIAG_report_trace, &at, remedy,
                  "no work of a rank is in this trace");
    else
        tsr__diag(report->session, DIAG_report_trace, &at, remedy, "line %d: %s", error.line,
                  error.text);
    return TSR_MALFORMED;
}
