// SPDX-License-Identifier: Apache-2.0
// session.c - the session: allocator, findings, fault points and listener of one thread's work.
#include "base/internal.h"

tsr_session *tsr_session_new(const tsr_session_options *options)
{
    tsr_session_options given = {0};
    if (options) // a caller built with an older header has a shorter struct
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    tsr_alloc_fn alloc = given.alloc ? given.alloc : tsr__default_alloc;
    tsr_session *s = alloc(given.alloc_data, NULL, 0, sizeof *s);
    if (!s)
        return NULL;
    memset(s, 0, sizeof *s);
    s->alloc_fn = alloc;
    s->alloc_data = given.alloc_data;
    s->memory_limit = given.memory_limit;
    s->memory_used = s->memory_peak = sizeof *s;
    s->progress_fn = given.progress;
    s->progress_data = given.progress_data;
    tsr__arena_init(&s->diag_arena, s);
    for (int i = 0; i < RESULT_COUNT; i++)
        tsr__arena_init(&s->results[i], s);
    tsr_finding_clear(s);
    return s;
}

void tsr_session_free(tsr_session *s)
{
    if (!s)
        return;
    if (s->engine_free)
        s->engine_free(s, s->engine);
    for (int i = 0; i < RESULT_COUNT; i++)
        tsr__arena_free(&s->results[i]);
    for (size_t i = 0; i < TSR_COUNT(s->temporaries); i++)
        tsr__temporary_remove(&s->temporaries[i]);
    tsr__arena_free(&s->diag_arena);
    s->alloc_fn(s->alloc_data, s, sizeof *s, 0);
}

void tsr__progress(tsr_session *s, const char *what, uint64_t done, uint64_t total)
{
    if (s->progress_fn)
        s->progress_fn(s->progress_data, what, done, total);
}

void tsr_session_cancel(tsr_session *s, bool on)
{
    atomic_store_explicit(&s->cancelled, on, memory_order_relaxed);
}

bool tsr__cancelled(const tsr_session *s)
{
    return atomic_load_explicit(&s->cancelled, memory_order_relaxed);
}

tsr_status tsr__cancel_check(tsr_session *s)
{
    if (!tsr__cancelled(s))
        return TSR_OK;
    tsr__diag(s, DIAG_cancelled, NULL, NULL, "the work was cancelled before it was done");
    return TSR_CANCELLED;
}

const char *tsr_status_text(tsr_status status)
{
    switch (status) {
    case TSR_OK:
        return "done";
    case TSR_NOMEM:
        return "out of memory";
    case TSR_IO:
        return "a file cannot be read";
    case TSR_WRITE:
        return "a file cannot be written";
    case TSR_MALFORMED:
        return "damaged or malformed data";
    case TSR_INVALID:
        return "not valid";
    case TSR_UNSUPPORTED:
        return "not supported";
    case TSR_INFEASIBLE:
        return "nothing fits the limits";
    case TSR_ENGINE:
        return "the engine is absent or refused the model";
    case TSR_PEER:
        return "a rank or the network failed";
    case TSR_DIFFERENT:
        return "the results differ";
    case TSR_USAGE:
        return "wrong use";
    case TSR_BUG:
        return "a mistake in the library";
    case TSR_CANCELLED:
        return "cancelled";
    }
    return "unknown status";
}
