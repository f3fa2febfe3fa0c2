// SPDX-License-Identifier: Apache-2.0
// follow.c - computes digests of files while they are written, in threads that read them back.
//
// So the writer can copy inside the kernel, without the bytes passing through its memory. The
// writer waits if a digest is more than 256 MiB behind, so that the data is still cached when the
// threads read it.
//
// File i belongs to thread i % n_threads, so no two threads use one digest. The writer sets `ready`
// and the thread reads it; the thread sets `at` and the writer reads it. Both only grow. Threads do
// not use the session; their errors are reported when they are joined. If a thread could not be
// started, tsr__follow_finish computes the digests of its files.
#include "base/internal.h"

#include <time.h>
#include <unistd.h>

#define FOLLOW_BLOCK   ((size_t)1 << 20)
#define FOLLOW_AHEAD   ((uint64_t)256 << 20) // bytes of a file that may wait for their digest
#define FOLLOW_THREADS 8

// One file that is being written, and its digest so far.
struct followed {
    int fd;
    atomic_uint_fast64_t ready; // bytes in the file
    atomic_uint_fast64_t at;    // bytes digested
    struct sha256 digest;
    int error; // errno; -1: the file is shorter than `ready`
};
// A thread that computes digests.
struct follower {
    struct follow *all;
    size_t first; // the thread has the files first, first + n_threads, ...
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

// Sleeps 0.2 ms: much less than the digest of 1 MiB takes, much more than a wake-up costs.
static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

// Adds the next block of a file to its digest. Returns false if no block is ready or if reading
// failed.
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
        atomic_store(&followed->at, UINT64_MAX); // do not make the writer wait
        return false;
    }
    tsr__sha256_add(&followed->digest, buffer, (size_t)n);
    atomic_store(&followed->at, at + (uint64_t)n);
    return true;
}

// Digests one block of each of the files first, first + step, ... Returns false if no file had a
// block ready.
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
        bool complete = atomic_load(&follower->all->complete); // read before the pass
        if (pass(follower->all, follower->first, follower->all->n_threads, follower->buffer))
            continue;
        if (complete)
            return NULL;
        nap();
    }
}

// Returns the least of: number of files, cores of this process, FOLLOW_THREADS.
static size_t threads_for(size_t files)
{
    return size_min(size_min(files, tsr__kernel_cores()), FOLLOW_THREADS);
}

// Starts the threads that compute digests. n_threads is not changed, because it assigns files to
// threads. Threads that could not be started have `all` NULL.
static void start_threads(struct follow *follow)
{
    size_t started = 0, want = follow->n_threads;
    while (started < want && tsr__thread_start(follow->session, &follow->threads[started].thread,
                                               follow_main, &follow->threads[started]))
        started++;
    for (size_t i = started; i < want; i++)
        follow->threads[i].all = NULL;
}

// Allocates a buffer for each thread, and at least one, because join_threads digests the files of
// threads that were never started.
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
    // n_threads is still 0, so tsr__follow_free joins no thread.
    if (!follow->files || !get_buffers(follow, want)) {
        tsr__follow_free(follow);
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

// Does not wait for a file whose thread could not be started.
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
            while (pass(follow, i, follow->n_threads, follow->threads[0].buffer))
                continue;
    follow->n_threads = 0;
}

// Waits for all digests. Reports one error per file that could not be read; the other digests are
// valid.
tsr_status tsr__follow_finish(struct follow *follow)
{
    join_threads(follow);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < follow->n; i++) {
        int error = tsr__fault(follow->session, FAULT_READ) ? EIO : follow->files[i].error;
        if (!error)
            continue;
        const char *why = error > 0 ? strerror(error) : "the file became shorter while it was read";
        tsr__diag(follow->session, DIAG_io_read, NULL,
                  "check the disk of the output folder, then write it again",
                  "cannot read a written data file to compute its digest: %s", why);
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
