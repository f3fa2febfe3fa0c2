// SPDX-License-Identifier: Apache-2.0
// simulate_trace.c - a simulation as a file for Perfetto or chrome://tracing, in the form of the traces of real runs.
#include "base/base.h"

#define MAX_TRACE ((size_t)1 << 30)

// A JSON text: names come from models, which are not trusted.
static void put_text(struct text *t, const char *s)
{
    tsr__text_add(t, STR("\""));
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            tsr__text_printf(t, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            tsr__text_printf(t, "\\u%04x", c);
        else
            tsr__text_add(t, (struct str){s, 1});
    }
    tsr__text_add(t, STR("\""));
}

static const char *const kinds[] = {"compute", "communication", "waiting"};

static void put_span(struct text *t, const tsr_span *s)
{
    double start = s->begin * 1e6;
    tsr__text_printf(t, ",\n{\"ph\":\"X\",\"cat\":\"%s\",\"name\":", kinds[s->kind]);
    put_text(t, s->kind == TSR_SPAN_WAITING ? "waiting" : s->op);
    tsr__text_printf(t, ",\"pid\":%d,\"tid\":0,\"ts\":%.6f,\"dur\":%.6f,\"args\":{\"node\":",
                     s->device, start, s->end * 1e6 - start);
    put_text(t, s->node);
    tsr__text_printf(t, ",\"request\":%d", s->request);
    if (s->id >= 0)
        tsr__text_printf(t, ",\"id\":%lld", (long long)s->id);
    tsr__text_add(t, STR("}}"));
}

// Ties the pieces of a communication together: from the device where it is first listed to the others.
static void put_flow(struct text *t, const tsr_span *s, bool first)
{
    int64_t key[3] = {s->id, s->request, (int64_t)(s->begin * 1e12)};
    unsigned long long flow = tsr__hash64(key, sizeof key, 0) >> 11; // exact in a double
    tsr__text_printf(t,
                     ",\n{\"ph\":\"%s\",\"cat\":\"communication\",\"name\":\"group\",\"id\":%llu,"
                     "\"pid\":%d,\"tid\":0,\"ts\":%.6f%s}",
                     first ? "s" : "f", flow, s->device, s->begin * 1e6,
                     first ? "" : ",\"bp\":\"e\"");
}

static void put_all(struct text *t, const tsr_simulation *x, struct map *seen, struct arena *a)
{
    for (size_t i = 0; i < x->devices; i++)
        tsr__text_printf(t,
                         "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%zu,\"args\":{\"name\":"
                         "\"device %zu\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\","
                         "\"pid\":%zu,\"args\":{\"sort_index\":%zu}}",
                         i ? ",\n" : "", i, i, i, i);
    for (size_t i = 0; i < x->n_spans && !t->failed; i++) {
        const tsr_span *s = &x->spans[i];
        put_span(t, s);
        if (s->kind != TSR_SPAN_COMMUNICATION)
            continue;
        struct str key =
            tsr__arena_printf(a, "%lld %d %.12e", (long long)s->id, s->request, s->begin);
        void **at = key.p ? tsr__map_at(seen, key) : NULL;
        if (!at)
            return;
        put_flow(t, s, !*at);
        *at = (void *)x;
    }
}

tsr_status tsr_simulation_trace(tsr_session *s, const tsr_simulation *x, const char *path)
{
    struct text t;
    struct arena a;
    struct map seen;
    struct outfile o = {0};
    tsr__arena_init(&a, s);
    tsr__map_init(&seen, &a, 256);
    tsr__text_init(&t, s);
    t.max = MAX_TRACE;
    tsr__text_add(&t, STR("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"));
    put_all(&t, x, &seen, &a);
    tsr__text_add(&t, STR("\n]}\n"));
    tsr_status st = t.failed || a.failed ? TSR_NOMEM : tsr__out_open(s, path, &o);
    if (st == TSR_OK) {
        tsr__out_write(&o, t.p, t.n);
        st = tsr__out_commit(&o);
    }
    tsr__out_abort(&o);
    tsr__text_free(&t);
    tsr__arena_free(&a);
    return st;
}
