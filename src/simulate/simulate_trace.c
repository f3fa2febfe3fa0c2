// SPDX-License-Identifier: Apache-2.0
// simulate_trace.c - writes a simulation as a file for Perfetto or chrome://tracing, in the format
// of the traces of real runs.
//
//     {"ph":"X","cat":"compute","name":"MatMul","pid":0,"tid":0,"ts":0.000000,"dur":3000.000000,
//      "args":{"node":"fc1","request":0}}
//
// Each device is a process, and times are in microseconds. Flow events ("s" and "f" with one id)
// connect the spans of one communication.
#include "simulate/simulate.h"

#define MAX_TRACE ((size_t)1 << 30)

// Writes a JSON string. Names come from models, which are not trusted. Invalid UTF-8 becomes \xNN.
static void put_text(struct text *text, const char *s)
{
    tsr__text_add(text, STR("\""));
    for (size_t n; *s; s += n) {
        uint32_t c;
        n = tsr__utf8(s, strnlen(s, 4), &c); // no character is longer
        if (n == 0)
            tsr__text_printf(text, "\\\\x%02X", (unsigned char)*s);
        else if (c == '"' || c == '\\')
            tsr__text_printf(text, "\\%c", (char)c);
        else if (c < 0x20 || c == 0x7f)
            tsr__text_printf(text, "\\u%04x", (unsigned)c);
        else
            tsr__text_add(text, (struct str){s, n});
        n += n == 0;
    }
    tsr__text_add(text, STR("\""));
}

static const char *const kinds[] = {"compute", "communication", "waiting"};

// Writes a span as a complete event ("X") with begin and duration. All waiting has the same name,
// for any cause.
static void put_span(struct text *text, const tsr_span *span)
{
    double start = span->begin * 1e6;
    tsr__text_printf(text, ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":", kinds[span->kind]);
    put_text(text, span->kind == TSR_SPAN_WAITING ? "waiting" : span->op);
    tsr__text_printf(text, ",\"pid\":%d,\"tid\":0,\"ts\":%.6f,\"dur\":%.6f,\"args\":{\"node\":",
                     span->device, start, span->end * 1e6 - start);
    put_text(text, span->node);
    tsr__text_printf(text, ",\"request\":%d", span->request);
    if (span->id >= 0)
        tsr__text_printf(text, ",\"id\":%lld", (long long)span->id);
    tsr__text_add(text, STR("}}"));
}

// Connects the spans of a communication: from the device where it is listed first to the others.
static void put_flow(struct text *text, const tsr_span *span, bool first)
{
    int64_t key[3] = {span->id, span->request, (int64_t)(span->begin * 1e12)};
    unsigned long long flow = tsr__hash64(key, sizeof key, 0) >> 11; // exact in a double
    const char *kind = "f", *bound = ",\"bp\":\"e\"";
    if (first) {
        kind = "s";
        bound = "";
    }
    tsr__text_printf(text,
                     ",\n{\"ph\":\"%s\",\"cat\":\"communication\",\"name\":\"group\",\"id\":%llu,"
                     "\"pid\":%d,\"tid\":0,\"ts\":%.6f%s}",
                     kind, flow, span->device, span->begin * 1e6, bound);
}

// Writes one process per device, its spans, and arrows between the spans of one communication.
// `seen` has the communications whose first span was written.
static void put_all(struct text *text, const tsr_simulation_view *simulation, struct map *seen,
                    struct arena *arena)
{
    for (size_t i = 0; i < simulation->facts.devices; i++)
        tsr__text_printf(text,
                         "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%zu,\"args\":{\"name\":"
                         "\"device %zu\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\","
                         "\"pid\":%zu,\"args\":{\"sort_index\":%zu}}",
                         i ? ",\n" : "", i, i, i, i);
    for (size_t i = 0; i < simulation->n_spans && !text->failed; i++) {
        const tsr_span *span = &simulation->spans[i];
        put_span(text, span);
        if (span->kind != TSR_SPAN_COMMUNICATION)
            continue;
        struct str key = tsr__arena_printf(arena, "%lld %d %.12e", (long long)span->id,
                                           span->request, span->begin);
        void **at = key.p ? tsr__map_at(seen, key) : NULL;
        if (!at)
            return;
        put_flow(text, span, !*at);
        *at = (void *)simulation;
    }
}

// Writes the trace. The text is complete in memory before the file is opened. An incomplete file is
// removed.
tsr_status tsr_simulation_trace(const tsr_simulation *handle, const char *path)
{
    tsr_session *session = handle->head.session;
    const tsr_simulation_view *simulation = &handle->view;
    TRY(tsr__given(session, "path", path));
    struct map seen;
    struct outfile file = {0};
    struct arena arena = {.session = session};
    tsr__map_init(&seen, &arena, 256);
    struct text text = {.session = session};
    text.max = MAX_TRACE;
    tsr__text_add(&text, STR("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"));
    put_all(&text, simulation, &seen, &arena);
    tsr__text_add(&text, STR("\n]}\n"));
    tsr_status st = arena.failed ? TSR_NOMEM : text_status(&text);
    if (st == TSR_OK)
        st = tsr__out_open(session, path, &file);
    if (st == TSR_OK) {
        tsr__out_write(&file, text.p, text.n);
        st = tsr__out_commit(&file);
    }
    tsr__out_abort(&file);
    tsr__text_free(&text);
    tsr__arena_free(&arena);
    return st;
}
