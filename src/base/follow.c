// SPDX-License-Identifier: Apache-2.0
// follow.c - digests of files that are being written, by threads that read what has reached the file.
//
// So the writer can leave copying to the kernel and need not have the bytes in hand. The writer is held
// back when it is far ahead: what is digested is then still in memory. Threads know nothing of the
// session; what they find wrong is said when they are joined.
#include "base/internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define FOLLOW_BLOCK   ((size_t)1 << 20)
#define FOLLOW_AHEAD   ((uint64_t)256 << 20) // bytes that the writer may be ahead with one file
#define FOLLOW_THREADS 8

struct followed {
    int fd;
    atomic_uint_fast64_t ready; // bytes in the file
    atomic_uint_fast64_t at;    // bytes digested
    struct sha256 digest;
    int error; // errno; -1: the file is shorter than was said
};
struct follower {
    struct follow *all;
    size_t first; // of the files; every n_threads-th is this thread's
    char *buffer;
    pthread_t thread;
};
struct follow {
    tsr_session *session;
    struct followed *files;
    size_t n, n_threads, n_buffers;
    atomic_bool complete; // nothing more will be written
    struct follower threads[FOLLOW_THREADS];
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

// One block of a file, if there is one; true: there was.
static bool digest_block(struct followed *f, char *buffer)
{
    uint64_t at = atomic_load(&f->at), ready = atomic_load(&f->ready);
    if (at >= ready || f->error)
        return false;
    size_t want = ready - at < FOLLOW_BLOCK ? (size_t)(ready - at) : FOLLOW_BLOCK;
    ssize_t n;
    do
        n = pread(f->fd, buffer, want, (off_t)at);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        f->error = n < 0 ? errno : -1;
        atomic_store(&f->at, UINT64_MAX); // the writer need not wait
        return false;
    }
    tsr__sha256_add(&f->digest, buffer, (size_t)n);
    atomic_store(&f->at, at + (uint64_t)n);
    return true;
}

static bool pass(struct follow *w, size_t first, size_t step, char *buffer)
{
    bool any = false;
    for (size_t i = first; i < w->n; i += step)
        any |= digest_block(&w->files[i], buffer);
    return any;
}

static void *follow_main(void *data)
{
    struct follower *f = data;
    for (;;) {
        bool complete = atomic_load(&f->all->complete); // before looking, so that nothing is missed
        if (pass(f->all, f->first, f->all->n_threads, f->buffer))
            continue;
        if (complete)
            return NULL;
        nap();
    }
}

static size_t threads_for(size_t files)
{
    cpu_set_t set;
    size_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        cores = (size_t)CPU_COUNT(&set);
    size_t n = files < cores ? files : cores;
    return n < FOLLOW_THREADS ? n : FOLLOW_THREADS;
}

static void start_threads(struct follow *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals go to the caller's threads
    size_t started = 0;
    size_t want = w->n_threads;
    while (started < want && !tsr__fault(w->session, FAULT_SPAWN) &&
           pthread_create(&w->threads[started].thread, NULL, follow_main, &w->threads[started]) ==
               0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (size_t i = started; i < want; i++) // their files are left to the end
        w->threads[i].all = NULL;
}

tsr_status tsr__follow_start(tsr_session *s, const int *fds, size_t n, struct follow **out)
{
    struct follow *w = tsr__alloc(s, sizeof *w);
    if (!w)
        return TSR_NOMEM;
    *w = (struct follow){.session = s, .n = n};
    w->files = tsr__alloc(s, (n + 1) * sizeof *w->files);
    size_t want = threads_for(n);
    for (size_t i = 0; w->files && i < (want ? want : 1); i++) {
        w->threads[i] = (struct follower){.all = w, .first = i};
        w->threads[i].buffer = tsr__alloc(s, FOLLOW_BLOCK);
        if (!w->threads[i].buffer)
            break;
        w->n_buffers++;
    }
    if (!w->files || w->n_buffers < (want ? want : 1)) {
        tsr__follow_free(w);
        return TSR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        struct followed *f = &w->files[i];
        f->fd = fds[i];
        f->error = 0;
        atomic_init(&f->ready, 0);
        atomic_init(&f->at, 0);
        tsr__sha256_init(&f->digest);
    }
    w->n_threads = want;
    start_threads(w);
    *out = w;
    return TSR_OK;
}

void tsr__follow_ready(struct follow *w, size_t i, uint64_t bytes)
{
    struct followed *f = &w->files[i];
    bool alone = w->n_threads == 0 || !w->threads[i % w->n_threads].all;
    atomic_store(&f->ready, bytes);
    while (!alone && bytes > FOLLOW_AHEAD && atomic_load(&f->at) < bytes - FOLLOW_AHEAD)
        nap();
}

static void join_threads(struct follow *w)
{
    atomic_store(&w->complete, true);
    for (size_t i = 0; i < w->n_threads; i++)
        if (w->threads[i].all)
            pthread_join(w->threads[i].thread, NULL);
    for (size_t i = 0; i < w->n_threads; i++)
        if (!w->threads[i].all)
            while (pass(w, i, w->n_threads, w->threads[0].buffer))
                continue;
    w->n_threads = 0;
}

tsr_status tsr__follow_finish(struct follow *w)
{
    join_threads(w);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < w->n; i++) {
        int error = tsr__fault(w->session, FAULT_READ) ? EIO : w->files[i].error;
        if (!error)
            continue;
        tsr__diag(w->session, DIAG_io_read, NULL, NULL, "cannot read back what was written: %s",
                  error > 0 ? strerror(error) : "it became shorter");
        st = TSR_IO;
    }
    return st;
}

void tsr__follow_digest(struct follow *w, size_t i, char out[65])
{
    tsr__sha256_hex(&w->files[i].digest, out);
}

void tsr__follow_free(struct follow *w)
{
    if (!w)
        return;
    if (w->n_threads)
        join_threads(w);
    for (size_t i = 0; i < w->n_buffers; i++)
        tsr__free(w->session, w->threads[i].buffer, FOLLOW_BLOCK);
    if (w->files)
        tsr__free(w->session, w->files, (w->n + 1) * sizeof *w->files);
    tsr__free(w->session, w, sizeof *w);
}
