// SPDX-License-Identifier: Apache-2.0
// follow.c - digests of files that are being written, by threads that read what has reached the file.
//
// So the writer can leave copying to the kernel and need not have the bytes in hand. The writer is held
// back when it is far ahead: what is digested is then still in memory. Threads know nothing of the
// session; what they find wrong is said when they are joined.
//
// File i belongs to thread i % n_threads, so no two threads touch one digest. `ready` is written by
// the writer and read by the thread, `at` the other way round; both only grow. The writer says with
// tsr__follow_ready what has reached the file, and waits there while a digest is more than 256 MiB
// behind. A thread that could not be started leaves its files to tsr__follow_finish, which reads
// them then.
#include "base/internal.h"

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

// 0.2 ms: short beside a block of 1 MiB, long beside the cost of waking.
static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

// One block of a file, if there is one; true: there was.
// `followed->error` is the thread's alone until it is joined.
static bool digest_block(struct followed *followed, char *buffer)
{
    uint64_t at = atomic_load(&followed->at), ready = atomic_load(&followed->ready);
    if (at >= ready || followed->error)
        return false;
    size_t want = (size_t)int64_min((int64_t)(ready - at), FOLLOW_BLOCK);
    ssize_t n;
    do
        n = pread(followed->fd, buffer, want, (off_t)at);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        followed->error = -1;
        if (n < 0)
            followed->error = errno;
        atomic_store(&followed->at, UINT64_MAX); // the writer need not wait
        return false;
    }
    tsr__sha256_add(&followed->digest, buffer, (size_t)n);
    atomic_store(&followed->at, at + (uint64_t)n);
    return true;
}

// A block of each of the thread's files, in turn; false: none had one.
static bool pass(struct follow *follow, size_t first, size_t step, char *buffer)
{
    bool any = false;
    for (size_t i = first; i < follow->n; i += step)
        any |= digest_block(&follow->files[i], buffer);
    return any;
}

static void *follow_main(void *data)
{
    struct follower *follower = data;
    for (;;) {
        bool complete =
            atomic_load(&follower->all->complete); // before looking, so that nothing is missed
        if (pass(follower->all, follower->first, follower->all->n_threads, follower->buffer))
            continue;
        if (complete)
            return NULL;
        nap();
    }
}

// As many as files, as cores this process may use, and FOLLOW_THREADS, whichever is least.
static size_t threads_for(size_t files)
{
    cpu_set_t set;
    size_t cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        cores = (size_t)CPU_COUNT(&set);
    return size_min(size_min(files, cores), FOLLOW_THREADS);
}

// n_threads stays what was wanted, since it says which file belongs to whom; those that were not
// started have `all` NULL.
static void start_threads(struct follow *follow)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals go to the caller's threads
    size_t started = 0;
    size_t want = follow->n_threads;
    while (started < want && !tsr__fault(follow->session, FAULT_SPAWN) &&
           pthread_create(&follow->threads[started].thread, NULL, follow_main,
                          &follow->threads[started]) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (size_t i = started; i < want; i++) // their files are left to the end
        follow->threads[i].all = NULL;
}

// A buffer for each thread, and one in any case: joining digests what a thread that never started has left.
static bool get_buffers(struct follow *follow, size_t threads)
{
    size_t n = threads;
    if (n == 0)
        n = 1;
    for (size_t i = 0; i < n; i++) {
        follow->threads[i] = (struct follower){.all = follow, .first = i};
        follow->threads[i].buffer = tsr__alloc(follow->session, FOLLOW_BLOCK);
        if (!follow->threads[i].buffer)
            return false;
        follow->n_buffers++;
    }
    return true;
}

tsr_status tsr__follow_start(tsr_session *session, const int *fds, size_t n, struct follow **out)
{
    struct follow *follow = tsr__alloc(session, sizeof *follow);
    if (!follow)
        return TSR_NOMEM;
    *follow = (struct follow){.session = session, .n = n};
    follow->files = tsr__alloc(session, (n + 1) * sizeof *follow->files);
    size_t want = threads_for(n);
    // n_threads is still 0, so that freeing joins nobody.
    if (!follow->files || !get_buffers(follow, want)) {
        tsr__follow_free(follow); // what there is of it
        return TSR_NOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        struct followed *followed = &follow->files[i];
        followed->fd = fds[i];
        followed->error = 0;
        atomic_init(&followed->ready, 0);
        atomic_init(&followed->at, 0);
        tsr__sha256_init(&followed->digest);
    }
    follow->n_threads = want;
    start_threads(follow);
    *out = follow;
    return TSR_OK;
}

// A file whose thread does not run is not waited for: nobody would catch up.
void tsr__follow_ready(struct follow *follow, size_t i, uint64_t bytes)
{
    struct followed *followed = &follow->files[i];
    bool alone = follow->n_threads == 0 || !follow->threads[i % follow->n_threads].all;
    atomic_store(&followed->ready, bytes);
    while (!alone && bytes > FOLLOW_AHEAD && atomic_load(&followed->at) < bytes - FOLLOW_AHEAD)
        nap();
}

static void join_threads(struct follow *follow)
{
    atomic_store(&follow->complete, true);
    for (size_t i = 0; i < follow->n_threads; i++)
        if (follow->threads[i].all)
            pthread_join(follow->threads[i].thread, NULL);
    for (size_t i = 0; i < follow->n_threads; i++)
        if (!follow->threads[i].all)
            // The files of threads that never ran, with the first thread's buffer.
            while (pass(follow, i, follow->n_threads, follow->threads[0].buffer))
                continue;
    follow->n_threads = 0;
}

// One finding for each file that could not be read back; digests of the others are good.
tsr_status tsr__follow_finish(struct follow *follow)
{
    join_threads(follow);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < follow->n; i++) {
        int error = EIO;
        if (!tsr__fault(follow->session, FAULT_READ))
            error = follow->files[i].error;
        if (!error)
            continue;
        const char *why = "it became shorter";
        if (error > 0)
            why = strerror(error);
        tsr__diag(follow->session, DIAG_io_read, NULL, NULL,
                  "cannot read back what was written: %s", why);
        st = TSR_IO;
    }
    return st;
}

void tsr__follow_digest(struct follow *follow, size_t i, char out[65])
{
    tsr__sha256_hex(&follow->files[i].digest, out);
}

void tsr__follow_free(struct follow *follow)
{
    if (!follow)
        return;
    if (follow->n_threads)
        join_threads(follow);
    for (size_t i = 0; i < follow->n_buffers; i++)
        tsr__free(follow->session, follow->threads[i].buffer, FOLLOW_BLOCK);
    if (follow->files)
        tsr__free(follow->session, follow->files, (follow->n + 1) * sizeof *follow->files);
    tsr__free(follow->session, follow, sizeof *follow);
}
