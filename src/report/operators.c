// SPDX-License-Identifier: Apache-2.0
// operators.c - the time of each operator, predicted and measured, summed over all devices.
#include "report/internal.h"

#include <stdlib.h>

#define MAX_ROWS 5000

// One operator: the number of its calls in one run, and their total time over all devices.
struct sum {
    const char *op;
    tsr_span_kind kind;
    size_t count;
    double seconds, measured; // predicted and measured time of one run
};
// The sums of all operators. `seen` has, by operator, its index in the list plus 1.
struct sums {
    struct map seen;
    VEC(struct sum) list;
};

static int by_time(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    if (x->seconds != y->seconds)
        return descending(x->seconds, y->seconds);
    return strcmp(x->op, y->op);
}

// Returns the sum of the operator, creating it on first use; NULL: out of memory. The pointer is
// valid until the next call, which may move the list.
static struct sum *sum_of(struct report *report, struct sums *sums, const char *op,
                          tsr_span_kind kind)
{
    void **at = tsr__map_at(&sums->seen, str_of(op));
    if (!at)
        return NULL;
    if (!*at) {
        if (!vec_add(report->arena, &sums->list, (struct sum){.op = op, .kind = kind}))
            return NULL;
        *at = (void *)(uintptr_t)sums->list.n;
    }
    return &sums->list.at[(uintptr_t)*at - 1];
}

// Sums the time of each operator over all devices, for the first request of the simulation and for
// the runs of the trace. Sorts by predicted time.
static void sum_operators(struct report *report, struct sums *sums)
{
    const tsr_simulation_view *simulation = report->simulation;
    const struct measured *measured = &report->measured;
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind == TSR_SPAN_WAITING || span->request > 0)
            continue;
        struct sum *sum = sum_of(report, sums, span->op, span->kind);
        if (!sum)
            return;
        sum->count++;
        sum->seconds += span->end - span->begin;
    }
    // Mean over the runs of the trace. Operators that only the trace has get a row too.
    for (size_t i = 0; i < measured->lanes.n; i++) {
        const struct lane_span *span = &measured->lanes.spans[i];
        struct sum *sum = sum_of(report, sums, span->op, span->kind);
        if (!sum)
            return;
        sum->measured += (span->end - span->begin) / double_max((double)measured->runs, 1);
    }
    if (sums->list.n)
        qsort(sums->list.at, sums->list.n, sizeof *sums->list.at, by_time);
}

// Writes at most MAX_ROWS operators, the one with the longest predicted time first.
void tsr__operators_write(struct report *report)
{
    tsr_json *json = report->json;
    struct sums sums = {0};
    tsr__map_init(&sums.seen, report->arena, 64);
    sum_operators(report, &sums);
    tsr_json_begin(json, "operators", '[');
    for (size_t i = 0; i < size_min(sums.list.n, MAX_ROWS); i++) {
        const struct sum *sum = &sums.list.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "op", sum->op);
        tsr_json_string(json, "kind", span_kind_name(sum->kind));
        tsr_json_int(json, "calls", (int64_t)sum->count);
        tsr_json_number(json, "seconds", sum->seconds);
        if (report->measured.lanes.devices)
            tsr_json_number(json, "measured_s", sum->measured);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}
