// SPDX-License-Identifier: Apache-2.0
// session.c - the session: allocator, diagnostics, fault injection and progress callback.
//
// One thread uses a session at a time. Only tsr_session_cancel and tsr_session_sweep may be called
// concurrently, from other threads and from signal handlers. Results that are "owned by the
// session" are stored in one of its result arenas; the next call of the same kind frees that arena.
#include "base/internal.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

// Draws what the hashes of maps contain. If the system has no random bytes, constants are used;
// names can then be constructed to collide, which makes look-ups slow.
static void draw_secret(uint64_t secret[2])
{
    secret[0] = 0x9E3779B97F4A7C15u;
    secret[1] = 0xC2B2AE3D27D4EB4Fu;
    (void)tsr__kernel_secret(secret);
}

// Creates a session. The session itself is allocated by its allocator and included in memory_used.
tsr_session *tsr_session_new(const tsr_session_options *options)
{
    tsr_session_options given = {0};
    if (options && options->size < SIZE_UP_TO(tsr_session_options, progress_data))
        return NULL;
    if (options)
        memcpy(&given, options, size_min(options->size, sizeof given));
    tsr_alloc_fn alloc = given.alloc ? given.alloc : tsr__default_alloc;
    tsr_session *session = alloc(given.alloc_data, NULL, 0, sizeof *session);
    if (!session)
        return NULL;
    memset(session, 0, sizeof *session);
    session->alloc_fn = alloc;
    session->alloc_data = given.alloc_data;
    session->memory_limit = given.memory_limit;
    session->memory_used = session->memory_peak = sizeof *session;
    session->progress_fn = given.progress;
    session->progress_data = given.progress_data;
    draw_secret(session->secret);
    tsr__arena_init(&session->diag_arena, session);
    for (int i = 0; i < RESULT_COUNT; i++)
        tsr__arena_init(&session->results[i], session);
    tsr_finding_clear(session);
    return session;
}

// Frees a session and all that it owns. The engine may use the rest of the session, so the engine
// is freed first.
void tsr_session_free(tsr_session *session)
{
    if (!session)
        return;
    if (session->engine_free)
        session->engine_free(session, session->engine);
    for (int i = 0; i < RESULT_COUNT; i++)
        tsr__arena_free(&session->results[i]);
    for (size_t i = 0; i < TSR_COUNT(session->temporaries); i++)
        tsr__temporary_remove(&session->temporaries[i]);
    tsr__arena_free(&session->diag_arena);
    session->alloc_fn(session->alloc_data, session, sizeof *session, 0);
}

tsr_status tsr__same_session(tsr_session *session, const tsr_session *owner, const char *what)
{
    if (owner == session)
        return TSR_OK;
    return tsr__fail(session, TSR_INVALID, DIAG_argument_invalid, NULL,
                     "create it with the session that this call uses",
                     "the %s belongs to another session", what);
}

// Starts a thread. It inherits the signal mask of its creator: all signals are blocked meanwhile.
bool tsr__thread_start(tsr_session *session, pthread_t *thread, void *(*run)(void *data),
                       void *data)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started =
        !tsr__fault(session, FAULT_SPAWN) && pthread_create(thread, NULL, run, data) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void report(const tsr_session *session, const char *what, uint64_t done, uint64_t total)
{
    if (session->progress_fn)
        session->progress_fn(session->progress_data, what, done, total);
}

void tsr__progress(tsr_session *session, const char *what, uint64_t done, uint64_t total)
{
    const struct progress_step *step = &session->step;
    char text[256];
    if (!step->what) {
        report(session, what, done, total);
        return;
    }
    snprintf(text, sizeof text, "%s %llu/%llu, %s", step->what, (unsigned long long)step->done,
             (unsigned long long)step->total, what);
    report(session, text, done, total);
    if (done >= total) // listeners clear the line: the step goes on
        report(session, step->what, step->done, step->total);
}

void tsr__progress_step(tsr_session *session, const char *what, uint64_t done, uint64_t total)
{
    session->step = (struct progress_step){done < total ? what : NULL, done, total};
    report(session, what, done, total);
}

// Sets the flag that long operations check between their steps.
void tsr_session_cancel(tsr_session *session, bool on)
{
    if (!session)
        return;
    atomic_store_explicit(&session->cancelled, on, memory_order_relaxed);
}

bool tsr__cancelled(const tsr_session *session)
{
    return atomic_load_explicit(&session->cancelled, memory_order_relaxed);
}

tsr_status tsr__cancel_check(tsr_session *session)
{
    if (!tsr__cancelled(session))
        return TSR_OK;
    return tsr__fail(session, TSR_CANCELLED, DIAG_cancelled, NULL, NULL,
                     "the work was cancelled before it was done");
}

const char *tsr_status_text(tsr_status status)
{
    static const char *const texts[] = {
        [TSR_OK] = "done",
        [TSR_NOMEM] = "out of memory",
        [TSR_IO] = "a file cannot be read",
        [TSR_WRITE] = "a file cannot be written",
        [TSR_MALFORMED] = "damaged or malformed data",
        [TSR_INVALID] = "not valid",
        [TSR_UNSUPPORTED] = "not supported",
        [TSR_INFEASIBLE] = "no plan fits the limits",
        [TSR_ENGINE] = "ONNX Runtime, a provider or a plug-in is missing or failed",
        [TSR_PEER] = "a rank or the network failed",
        [TSR_DIFFERENT] = "the results differ",
        [TSR_USAGE] = "invalid use of a call or option",
        [TSR_BUG] = "internal error: please report it",
        [TSR_CANCELLED] = "cancelled",
    };
    return (size_t)status < TSR_COUNT(texts) ? texts[status] : "unknown status";
}

double tsr__now_s(void)
{
    struct timespec timespec;
    clock_gettime(CLOCK_MONOTONIC, &timespec);
    return (double)timespec.tv_sec + 1e-9 * (double)timespec.tv_nsec;
}
