// SPDX-License-Identifier: Apache-2.0
// trace.c - reads a trace that a run has written (tsr_job_trace): what each rank did, for a timeline. The file is not trusted.
#include "report/internal.h"

#include <jansson.h>
#include <stdlib.h>

#define MAX_TRACE   ((size_t)256 << 20)
#define MAX_SPANS   2000000
#define MAX_DEVICES 4096

typedef VEC(struct lane_span) span_list;

static void take(struct page *page, const json_t *entry, span_list *list, size_t *devices)
{
    const char *phase = json_string_value(json_object_get(entry, "ph")),
               *name = json_string_value(json_object_get(entry, "name")),
               *category = json_string_value(json_object_get(entry, "cat"));
    int64_t pid = json_integer_value(json_object_get(entry, "pid"));
    double begin = json_number_value(json_object_get(entry, "ts")) / 1e6,
           length = json_number_value(json_object_get(entry, "dur")) / 1e6;
    if (!phase || strcmp(phase, "X") != 0 || !name || pid < 0 || pid >= MAX_DEVICES ||
        !(length > 0) || !(begin >= 0) || length > 1e9 || list->n >= MAX_SPANS)
        return;
    // ONNX Runtime's nodes, our communication, and what a simulation writes.
    const json_t *args = json_object_get(entry, "args");
    const char *op = json_string_value(json_object_get(args, "op_name")),
               *node = json_string_value(json_object_get(args, "node"));
    tsr_span_kind kind = TSR_SPAN_COMPUTE;
    if (category && strcmp(category, "communication") == 0)
        kind = TSR_SPAN_COMMUNICATION;
    else if (category && strcmp(category, "waiting") == 0)
        kind = TSR_SPAN_WAITING;
    else if (!op && !(category && strcmp(category, "compute") == 0))
        return; // a whole run, or what is not a node's
    struct lane_span *span = vec_push(page->arena, list);
    if (!span)
        return;
    *span = (struct lane_span){.kind = kind,
                               .device = (int)pid,
                               .op = tsr__arena_str(page->arena, str_of(op ? op : name)).p,
                               .node = tsr__arena_str(page->arena, str_of(node ? node
                                                                          : op ? name
                                                                               : ""))
                                           .p,
                               .begin = begin,
                               .end = begin + length};
    *devices = (size_t)pid + 1 > *devices ? (size_t)pid + 1 : *devices;
}

static int by_time(const void *a, const void *b)
{
    const struct lane_span *x = a, *y = b;
    if (x->device != y->device)
        return x->device - y->device;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void fill(struct page *page, const json_t *root)
{
    const json_t *events = json_is_array(root) ? root : json_object_get(root, "traceEvents");
    span_list list = {0};
    size_t devices = 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        take(page, json_array_get(events, i), &list, &devices);
    if (!list.n || page->arena->failed)
        return;
    double first = list.at[0].begin, last = 0;
    for (size_t i = 0; i < list.n; i++) {
        first = list.at[i].begin < first ? list.at[i].begin : first;
        last = list.at[i].end > last ? list.at[i].end : last;
    }
    for (size_t i = 0; i < list.n; i++) {
        list.at[i].begin -= first;
        list.at[i].end -= first;
    }
    qsort(list.at, list.n, sizeof *list.at, by_time);
    page->measured = (struct lanes){list.at, list.n, devices, last - first};
}

tsr_status tsr__report_trace(struct page *page, const char *path)
{
    struct str text;
    json_error_t error;
    tsr_status st = tsr__file_read(page->session, page->arena, path, MAX_TRACE, &text);
    if (st != TSR_OK)
        return st;
    if (!tsr__json_fits(page->session, text))
        return TSR_NOMEM;
    json_t *root = json_loadb(text.p, text.n, 0, &error);
    if (root)
        fill(page, root);
    json_decref(root);
    if (page->arena->failed)
        return TSR_NOMEM;
    if (page->measured.devices)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr__diag(page->session, DIAG_report_trace, &at, "give a file that run --trace has written",
              root ? "no work of a rank is in this trace" : "line %d: %s", error.line, error.text);
    return TSR_MALFORMED;
}
