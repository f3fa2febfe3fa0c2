// SPDX-License-Identifier: Apache-2.0
// trace.c - writes what all ranks did and when as one file for Perfetto or chrome://tracing.
//
// A rank is a process of the trace. Kernels come from ONNX Runtime's own profile, communication
// from our operators, which have more details. The events of one communication are connected by
// arrows (a "flow" of the trace format). A flow starts at the first rank of the group when that
// rank arrives, and ends at each other rank before that rank is done. Times are of the host's clock
// without its highest bits, because viewers store them as doubles of microseconds.
#include "runtime/internal.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_TRACE  ((size_t)1 << 30)
#define KEPT_BYTES ((size_t)16 << 20) // limit for all ranks: what viewers can open
// The text before the number of dropped events in the trace. Names cannot contain it, because their
// quotes are escaped.
#define LEFT_OUT "\"name\":\"left_out\",\"args\":{\"events\":"

// Limits the events of a rank: the first ones are kept, later ones are only counted.
struct share {
    size_t full;     // maximum length of the text
    double until_us; // events that begin later are dropped; INFINITY: none so far
    size_t left_out;
};

// Converts a time to microseconds. 52 bits of nanoseconds are 52 days; thousandths of a microsecond
// stay exact in a double.
static double clock_us(uint64_t ns)
{
    return (double)(ns & ((1ull << 52) - 1)) / 1e3;
}

// True if the kernel "NAME_kernel_time" is one of our operators, whose own event has more details.
// Only the first run of the list is searched.
static bool rank_comm_has(const struct ops_event *list, size_t n, const char *name)
{
    size_t length = strlen(name), tail = strlen("_kernel_time");
    if (length <= tail || strcmp(name + length - tail, "_kernel_time") != 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (list[i].run != list[0].run)
            return false; // nodes repeat in every run
        if (strlen(list[i].node) == length - tail && memcmp(list[i].node, name, length - tail) == 0)
            return true;
    }
    return false;
}

// True for an empty event. Older releases of ONNX Runtime write two of them for every kernel.
static bool is_fence(const char *name)
{
    return strstr(name, "_fence_before") || strstr(name, "_fence_after");
}

static void begin(struct text *text)
{
    tsr__text_add(text, text->n ? STR(",\n") : STR(""));
}

// Writes the name of a rank. device NULL: without a device.
static void put_name(struct text *text, int rank, const char *device)
{
    const char *on = " on ";
    if (!device || !*device)
        on = device = "";
    begin(text);
    tsr__text_printf(text,
                     "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank "
                     "%d%s%s\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
                     "\"args\":{\"sort_index\":%d}}",
                     rank, rank, on, device, rank, rank);
}

// Removes details of memory and scheduling, which are most of the bytes.
static void trim(json_t *event)
{
    static const char *const kept[] = {"op_name", "provider", "node_index", "input_type_shape",
                                       "output_type_shape"};
    json_t *args = json_object_get(event, "args"), *less = json_object();
    for (size_t i = 0; i < TSR_COUNT(kept); i++) {
        json_t *value = json_object_get(args, kept[i]);
        if (value)
            json_object_set(less, kept[i], value);
    }
    json_object_set_new(event, "args", less);
}

// True if the event fits. Once the text is full, until_us is the start of the earliest event that
// did not fit. Later events are dropped, so that the trace ends at about one time.
static bool fits(struct share *share, const struct text *text, double ts_us)
{
    if (text->n > share->full && ts_us < share->until_us)
        share->until_us = ts_us;
    if (ts_us < share->until_us)
        return true;
    share->left_out++;
    return false;
}

static void put_left_out(struct text *text, int rank, const struct share *share)
{
    if (!share->left_out)
        return;
    begin(text);
    tsr__text_printf(text, "{\"ph\":\"M\",\"pid\":%d," LEFT_OUT "%zu}},\n", rank, share->left_out);
    tsr__text_printf(text,
                     "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":%d,\"args\":{\"labels\":"
                     "\"%zu later events left out\"}}",
                     rank, share->left_out);
}

// Writes one event of ONNX Runtime's profile with our process number and clock.
static void put_kernel(struct text *text, int rank, json_t *event, double start_us,
                       struct share *share)
{
    json_t *ts = json_object_get(event, "ts");
    if (!json_is_number(ts) || !fits(share, text, start_us + json_number_value(ts)))
        return;
    trim(event);
    json_object_set_new(event, "ts", json_real(start_us + json_number_value(ts)));
    json_object_set_new(event, "pid", json_integer(rank));
    json_object_set_new(event, "tid", json_integer(0));
    char *line = json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!line) {
        text->failed = true;
        return;
    }
    begin(text);
    tsr__text_add(text, str_of(line));
    free(line);
}

static void put_profile(struct text *text, struct rank *r, int rank, const char *file,
                        const struct ops_event *events, size_t n, struct share *share)
{
    uint64_t start_ns = 0;
    OrtStatus *st = r->engine->api->SessionGetProfilingStartTimeNs(r->ort, &start_ns);
    if (st)
        r->engine->api->ReleaseStatus(st);
    json_t *doc = json_load_file(file, 0, NULL), *event;
    size_t i;
    json_array_foreach(doc, i, event)
    {
        const char *name = json_string_value(json_object_get(event, "name"));
        const char *kind = json_string_value(json_object_get(event, "ph"));
        if (name && kind && strcmp(kind, "X") == 0 && !is_fence(name) &&
            !rank_comm_has(events, n, name))
            put_kernel(text, rank, event, clock_us(start_ns), share);
    }
    json_decref(doc);
}

// Writes a communication: its slice, and the arrow that connects it with the other ranks (a
// "flow").
static void put_event(struct text *text, int rank, const struct ops_event *event)
{
    double start = clock_us(event->start_ns), end = clock_us(event->end_ns);
    int64_t key[3] = {event->id, (int64_t)event->run, event->first};
    unsigned long long flow = tsr__hash64(key, sizeof key, 0) >> 11; // exact in a double
    begin(text);
    tsr__text_printf(text,
                     "{\"ph\":\"X\",\"cat\":\"communication\",\"name\":\"%s\",\"pid\":%d,\"tid\":0,"
                     "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"id\":%lld,\"run\":%llu,\"ranks\":%d,"
                     "\"type\":\"%s\"}},\n",
                     event->op, rank, start, end - start, (long long)event->id,
                     (unsigned long long)event->run, event->n_group, tsr_dtype_name(event->type));
    // The key is the same on all ranks of the communication, so viewers connect their slices.
    const char *phase = "f", *binding = ",\"bp\":\"e\""; // the flow ends in this slice
    double at = end - 0.001;
    if (event->first == rank) { // the flow starts here
        phase = "s";
        binding = "";
        at = start;
    }
    tsr__text_printf(text,
                     "{\"ph\":\"%s\",\"cat\":\"communication\",\"name\":\"%s\",\"id\":%llu,"
                     "\"pid\":%d,\"tid\":0,\"ts\":%.3f%s}",
                     phase, event->op, flow, rank, at, binding);
}

// Writes the events of a rank. Kernels fill at most three quarters of the rank's share of the file;
// the last quarter is for communication.
void tsr__trace_rank(struct rank *r, struct text *text)
{
    int rank = 0;
    size_t n = 0, ranks = 1;
    char *file = NULL;
    const struct ops_event *events = NULL;
    if (r->ops)
        events = tsr__ops_events(r->ops, &n);
    if (r->endpoint) {
        rank = r->endpoint->rank;
        ranks = (size_t)r->endpoint->size;
    }
    struct share share = {text->n + KEPT_BYTES / 4 * 3 / ranks, INFINITY, 0};
    text->max = MAX_TRACE;
    put_name(text, rank, r->device);
    OrtStatus *st = r->engine->api->SessionEndProfiling(r->ort, r->engine->allocator, &file);
    if (!st && file) {
        put_profile(text, r, rank, file, events, n, &share);
        unlink(file);
        st = r->engine->api->AllocatorFree(r->engine->allocator, file);
    }
    if (st)
        r->engine->api->ReleaseStatus(st);
    share.full += KEPT_BYTES / 4 / ranks;
    for (size_t i = 0; i < n; i++)
        if (fits(&share, text, clock_us(events[i].start_ns)))
            put_event(text, rank, &events[i]);
    put_left_out(text, rank, &share);
}

// ---- one file of all ranks ---------------------------------------------------------------------

// Gathers the texts of all processes on rank 0, in rank order, separated by commas.
static tsr_status gather(tsr_session *session, struct endpoint *endpoint, uint64_t plan,
                         struct text *text)
{
    struct str *texts = NULL, mine = {text->p, text->n};
    struct gather_call about = {.plan = plan, .what = "trace"};
    TRY(text_status(text));
    struct arena arena = {.session = session};
    tsr_status st = tsr__gather(session, endpoint, &about, mine, &arena, &texts);
    if (st != TSR_OK || endpoint->rank > 0)
        goto free_arena;
    tsr__text_free(text);
    tsr__text_init(text, session);
    text->max = MAX_TRACE;
    for (int i = 0; i < endpoint->size; i++) {
        if (i)
            tsr__text_add(text, STR(",\n"));
        tsr__text_add(text, texts[i]);
    }
free_arena:
    tsr__arena_free(&arena);
    return st;
}

// Reports the number of dropped events. Each rank writes its number into its own text, because only
// texts come from other processes.
static void report_left_out(tsr_session *session, const struct text *text)
{
    unsigned long long sum = 0;
    if (!text->p)
        return;
    for (const char *at = strstr(text->p, LEFT_OUT); at; at = strstr(at, LEFT_OUT)) {
        at += strlen(LEFT_OUT);
        sum += strtoull(at, NULL, 10);
    }
    if (sum)
        tsr__diag(session, DIAG_trace_bounded, NULL, "trace fewer runs",
                  "the trace reached its limit of 16 MiB; the last %llu events are missing", sum);
}

tsr_status tsr__trace_write(tsr_session *session, struct endpoint *endpoint, uint64_t plan,
                            struct text *text, const char *path)
{
    if (endpoint) {
        tsr_status st = gather(session, endpoint, plan, text);
        if (st != TSR_OK || endpoint->rank > 0)
            return st;
    }
    TRY(text_status(text));
    struct outfile outfile;
    TRY(tsr__out_open(session, path, &outfile));
    report_left_out(session, text);
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", tail[] = "\n]}\n";
    tsr__out_write(&outfile, head, sizeof head - 1);
    tsr__out_write(&outfile, text->p, text->n);
    tsr__out_write(&outfile, tail, sizeof tail - 1);
    return tsr__out_commit(&outfile);
}
