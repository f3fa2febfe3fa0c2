// SPDX-License-Identifier: Apache-2.0
// trace.c - what all ranks did and when, as one file for Perfetto or chrome://tracing.
//
// A rank is a process of the trace. Its kernels come from ONNX Runtime's own profile; communication from our operators,
// which know more. The pieces of one communication are tied together by a flow: it leaves the first rank of the group when
// that one arrives, and reaches each other rank before that one is done, which is never earlier. Times are of the host's clock,
// without its highest bits: viewers hold them as doubles of microseconds.
#include "runtime/internal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_TRACE ((size_t)1 << 30)

static double clock_us(uint64_t ns)
{
    return (double)(ns & ((1ull << 52) - 1)) / 1e3;
}

static bool rank_comm_has(const struct ops_event *list, size_t n, const char *name)
{
    size_t length = strlen(name), tail = strlen("_kernel_time");
    if (length <= tail || strcmp(name + length - tail, "_kernel_time") != 0)
        return false;
    for (size_t i = 0; i < n && list[i].run == list[0].run; i++) // nodes repeat with every run
        if (strlen(list[i].node) == length - tail && memcmp(list[i].node, name, length - tail) == 0)
            return true;
    return false;
}

// Older releases write two empty events around every kernel.
static bool is_fence(const char *name)
{
    return strstr(name, "_fence_before") || strstr(name, "_fence_after");
}

static void begin(struct text *t)
{
    tsr__text_add(t, t->n ? STR(",\n") : STR(""));
}

static void put_name(struct text *t, int rank, const char *device)
{
    begin(t);
    tsr__text_printf(t,
                     "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"rank "
                     "%d%s%s\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
                     "\"args\":{\"sort_index\":%d}}",
                     rank, rank, *device ? " on " : "", *device ? device : "", rank, rank);
}

// One event of ONNX Runtime's profile, with our process and clock.
static void put_kernel(struct text *t, int rank, json_t *event, double start_us)
{
    json_t *ts = json_object_get(event, "ts");
    if (!json_is_number(ts))
        return;
    json_object_set_new(event, "ts", json_real(start_us + json_number_value(ts)));
    json_object_set_new(event, "pid", json_integer(rank));
    json_object_set_new(event, "tid", json_integer(0));
    char *line = json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!line)
        return;
    begin(t);
    tsr__text_add(t, str_of(line));
    free(line);
}

static void put_profile(struct text *t, struct rank *r, int rank, const char *file,
                        const struct ops_event *events, size_t n)
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
            put_kernel(t, rank, event, clock_us(start_ns));
    }
    json_decref(doc);
}

// A communication: its slice, and its end of the flow.
static void put_event(struct text *t, int rank, const struct ops_event *e)
{
    double start = clock_us(e->start_ns), end = clock_us(e->end_ns);
    int64_t key[3] = {e->id, (int64_t)e->run, e->first};
    unsigned long long flow = tsr__hash64(key, sizeof key, 0) >> 11; // exact in a double
    begin(t);
    tsr__text_printf(t,
                     "{\"ph\":\"X\",\"cat\":\"communication\",\"name\":\"%s\",\"pid\":%d,\"tid\":0,"
                     "\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"id\":%lld,\"run\":%llu,\"ranks\":%d,"
                     "\"type\":\"%s\"}},\n",
                     e->op, rank, start, end - start, (long long)e->id, (unsigned long long)e->run,
                     e->n_group, tsr_dtype_name(e->type));
    bool leaves = e->first == rank;
    tsr__text_printf(t,
                     "{\"ph\":\"%s\",\"cat\":\"communication\",\"name\":\"%s\",\"id\":%llu,"
                     "\"pid\":%d,\"tid\":0,\"ts\":%.3f%s}",
                     leaves ? "s" : "f", e->op, flow, rank, leaves ? start : end - 0.001,
                     leaves ? "" : ",\"bp\":\"e\"");
}

void tsr__trace_rank(struct rank *r, struct text *t)
{
    int rank = r->endpoint ? r->endpoint->rank : 0;
    size_t n = 0;
    char *file = NULL;
    const struct ops_event *events = r->ops ? tsr__ops_events(r->ops, &n) : NULL;
    t->max = MAX_TRACE;
    put_name(t, rank, r->device ? r->device : "");
    OrtStatus *st = r->engine->api->SessionEndProfiling(r->ort, r->engine->allocator, &file);
    if (!st && file) {
        put_profile(t, r, rank, file, events, n);
        unlink(file);
        st = r->engine->api->AllocatorFree(r->engine->allocator, file);
    }
    if (st)
        r->engine->api->ReleaseStatus(st);
    for (size_t i = 0; i < n; i++)
        put_event(t, rank, &events[i]);
}

// ---- one file of all ranks ---------------------------------------------------------------------

struct gathered {
    struct comm_buffer *recv;
    char *bytes;
    size_t total;
    int ranks, self;
    tsr_session *session;
};

static tsr_status texts_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                struct comm_trouble *why)
{
    struct gathered *g = data;
    if (g->self != 0)
        return TSR_OK;
    for (int i = 0; i < g->ranks; i++)
        g->total += g->recv[i].bytes = (size_t)notes[i][0];
    g->bytes = tsr__alloc(g->session, g->total + 1);
    if (!g->bytes) {
        *why = (struct comm_trouble){.status = TSR_NOMEM, .rank = 0};
        snprintf(why->text, sizeof why->text, "rank 0 has no memory for the trace of all ranks");
        return TSR_NOMEM;
    }
    char *at = g->bytes;
    for (int i = 0; i < g->ranks; i++) {
        g->recv[i].p = at;
        at += g->recv[i].bytes;
    }
    return TSR_OK;
}

// Brings the texts of all processes to rank 0, in the order of ranks, with commas between them.
static tsr_status gather(tsr_session *s, struct endpoint *e, uint64_t plan, struct text *t)
{
    struct arena a;
    tsr__arena_init(&a, s);
    size_t n = (size_t)e->size;
    struct comm_buffer *send = ARENA_ARRAY(&a, struct comm_buffer, n);
    int64_t *group = ARENA_ARRAY(&a, int64_t, n);
    struct gathered g = {.ranks = e->size, .self = e->rank, .session = s};
    g.recv = ARENA_ARRAY(&a, struct comm_buffer, n);
    if (e->rank > 0)
        tsr__text_add(t, STR(""));
    struct comm_trouble why = {.status = TSR_NOMEM, .rank = e->rank};
    tsr_status st = a.failed || t->failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK) {
        for (int i = 0; i < e->size; i++)
            group[i] = i;
        send[0] = (struct comm_buffer){.p = t->p, .bytes = t->n};
        struct comm_call call = {.plan = plan,
                                 .id = -1,
                                 .kind = COMM_HANDSHAKE,
                                 .type = TSR_UINT8,
                                 .group = group,
                                 .n_group = e->size,
                                 .op = "trace",
                                 .node = ""};
        struct comm_exchange x = {
            .send = send, .recv = g.recv, .arrived = texts_arrived, .data = &g};
        x.notes[0] = (int64_t)t->n;
        st = tsr__comm_exchange(e, &call, &x, &why);
    }
    if (st == TSR_OK && e->rank == 0) {
        tsr__text_free(t);
        tsr__text_init(t, s);
        t->max = MAX_TRACE;
        for (int i = 0; i < e->size; i++) {
            tsr__text_add(t, i ? STR(",\n") : STR(""));
            tsr__text_add(t, (struct str){g.recv[i].p, g.recv[i].bytes});
        }
    } else if (st != TSR_OK) {
        struct place at = PLACE_NONE;
        at.rank = why.rank;
        tsr__diag(s, DIAG_rank_failed, &at, NULL, "the trace could not be brought together: %s",
                  why.text);
    }
    tsr__free(s, g.bytes, g.bytes ? g.total + 1 : 0);
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr__trace_write(tsr_session *s, struct endpoint *e, uint64_t plan, struct text *t,
                            const char *path)
{
    tsr_status st = e ? gather(s, e, plan, t) : TSR_OK;
    if (st != TSR_OK || (e && e->rank > 0))
        return st;
    if (t->failed)
        return TSR_NOMEM;
    struct outfile o;
    st = tsr__out_open(s, path, &o);
    if (st != TSR_OK)
        return st;
    static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", tail[] = "\n]}\n";
    tsr__out_write(&o, head, sizeof head - 1);
    tsr__out_write(&o, t->p, t->n);
    tsr__out_write(&o, tail, sizeof tail - 1);
    return tsr__out_commit(&o);
}
