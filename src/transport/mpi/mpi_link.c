// SPDX-License-Identifier: Apache-2.0
// mpi_link.c - MPI as a link: one source file, compiled once for each MPI family into a separate
// library.
//
// This file uses nothing of Tessera but link.h. The program may use MPI already: MPI is initialized
// here only if it is not yet, and finalized here only if it was initialized here. All traffic uses
// separate communicators. The state is global (one link), because a process has one MPI.
//
// A request of the link (64 bits) holds the request of MPI. Each channel is a communicator, so
// messages of calls, heartbeats and files never match each other and need no tags.
#include "transport/common/link.h"

#include <limits.h>
#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define START_S 60 // seconds until all ranks must have started; they may start at different times
#ifndef END_S
#define END_S 30 // seconds between two checks whether the remaining ranks are stopped
#endif
#define PEER_EXIT 6 // exit code if a rank never ends; the command tessera uses the same

struct link *tsr_link_open(char *error, size_t n) __attribute__((visibility("default")));

// State of MPI in this process. ours: MPI was initialized here, so it is finalized here. failed: a
// job has failed, and MPI is not finalized. joined: join_job succeeded.
static struct state {
    struct link link;
    MPI_Comm comm[LINK_CHANNELS];
    bool open, ours, failed, joined;
    atomic_bool all_came; // all ranks have finished their work
    // process ids of the link.host_ranks ranks; 0: in another pid namespace. NULL: unknown
    pid_t *host_pids;
    char error[256]; // why joining failed
} state;

// ---- with a deadline ----------------------------------------------------------------------------

// MPI waits for all ranks when it starts and ends, forever if one is stopped. So a thread makes
// these calls, and the caller continues after the deadline; the thread stays until the process
// ends.
static struct task {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*work)(void);
    bool done;
} task = {.lock = PTHREAD_MUTEX_INITIALIZER};

// The deadline must not move if somebody sets the clock.
static void init_task(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&task.changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void *run_task(void *data)
{
    (void)data;
    task.work();
    pthread_mutex_lock(&task.lock);
    task.done = true;
    pthread_cond_signal(&task.changed);
    pthread_mutex_unlock(&task.lock);
    return NULL;
}

static bool never(void)
{
    return false;
}

// Runs `work` in a thread. Returns false if it takes longer than `seconds`; the work then
// continues, and no other work may be started. While longer() returns true, the deadline is
// extended. Used at most twice in a process: to start and to end.
static bool in_time(void (*work)(void), int seconds, bool (*longer)(void))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_t thread;
    struct timespec until;
    pthread_once(&once, init_task);
    task.work = work;
    task.done = false;
    if (pthread_create(&thread, NULL, run_task, NULL) != 0) {
        work(); // without a thread there is no deadline
        return true;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&task.lock);
    int late = 0;
    while (!task.done && late != ETIMEDOUT) {
        late = pthread_cond_timedwait(&task.changed, &task.lock, &until);
        if (late == ETIMEDOUT && longer()) {
            until.tv_sec += seconds;
            late = 0;
        }
    }
    bool done = task.done;
    pthread_mutex_unlock(&task.lock);
    if (done)
        pthread_join(thread, NULL);
    return done;
}

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits");

static bool keep(MPI_Request r, uint64_t *out)
{
    *out = 0;
    memcpy(out, &r, sizeof r);
    return true;
}

// Starts to send a message. MPI counts bytes in an int; the caller's chunks are smaller.
static bool link_send(struct link *link, int peer, int channel, const void *p, size_t bytes,
                      uint64_t *request)
{
    (void)link;
    MPI_Request r;
    return bytes <= INT_MAX && !state.failed &&
           MPI_Isend(p, (int)bytes, MPI_BYTE, peer, 0, state.comm[channel], &r) == MPI_SUCCESS &&
           keep(r, request);
}

static bool link_receive(struct link *link, int peer, int channel, void *p, size_t bytes,
                         uint64_t *request)
{
    (void)link;
    MPI_Request r;
    return bytes <= INT_MAX && !state.failed &&
           MPI_Irecv(p, (int)bytes, MPI_BYTE, peer, 0, state.comm[channel], &r) == MPI_SUCCESS &&
           keep(r, request);
}

static int link_test(struct link *link, uint64_t *request, size_t *bytes)
{
    (void)link;
    MPI_Request r;
    MPI_Status status;
    int done = 0, count = 0;
    memcpy(&r, request, sizeof r);
    if (MPI_Test(&r, &done, &status) != MPI_SUCCESS)
        return -1;
    // MPI replaces a completed request by its null request; testing that again also reports
    // completion.
    keep(r, request);
    if (!done)
        return 0;
    if (bytes && MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS)
        *bytes = count >= 0 ? (size_t)count : 0;
    return 1;
}

static void link_cancel(struct link *link, uint64_t *request)
{
    (void)link;
    MPI_Request r;
    MPI_Status status;
    memcpy(&r, request, sizeof r);
    if (MPI_Cancel(&r) == MPI_SUCCESS)
        MPI_Wait(&r, &status); // a cancelled receive ends at once
}

// Cancels a request without waiting: a message that has begun to arrive continues, and its sender
// may be gone.
static void link_withdraw(struct link *link, uint64_t *request)
{
    (void)link;
    MPI_Request r;
    memcpy(&r, request, sizeof r);
    if (r != MPI_REQUEST_NULL)
        MPI_Cancel(&r);
    keep(r, request);
}

static void link_failed(struct link *link)
{
    (void)link;
    state.failed = true;
}

// Receives the last heartbeats: some MPIs warn of unreceived messages. The barrier waits for all
// ranks, as MPI_Finalize does.
static void drain(void)
{
    char beat[4096];
    int there = 1, idle = 0;
    MPI_Status status;
    MPI_Barrier(state.comm[LINK_BEAT]);
    atomic_store(&state.all_came, true);
    while (idle < 100) {
        if (MPI_Iprobe(MPI_ANY_SOURCE, 0, state.comm[LINK_BEAT], &there, &status) != MPI_SUCCESS)
            return;
        if (there)
            MPI_Recv(beat, (int)sizeof beat, MPI_BYTE, status.MPI_SOURCE, 0, state.comm[LINK_BEAT],
                     &status);
        idle = there ? 0 : idle + 1;
    }
}

// Ends the link, once: in MPI_Finalize of the program, or at the end of the process.
static void end_link(void)
{
    void (*on_end)(void *) = state.link.on_end;
    bool open = state.open;
    state.open = false;
    state.link.on_end = NULL;
    if (on_end)
        on_end(state.link.on_end_data);
    if (open && !state.failed)
        drain();
}

// Ends the link. MPI calls this first in MPI_Finalize.
static int before_finalize(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm;
    (void)key;
    (void)value;
    (void)extra;
    end_link();
    return MPI_SUCCESS;
}

static void end_mpi(void)
{
    end_link();
    if (!state.failed) // after a failure others may be gone, and MPI_Finalize would wait for them
        MPI_Finalize();
}

// Returns the state of a process, the letter after the last parenthesis in /proc/PID/stat; 0: not
// found. Example: T in "4711 (my (odd) name) T 1 ...".
static char process_state(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

// True if all ranks of this host still run, or if that is unknown. A rank may compute for long
// after its last call, so the others wait for it, as MPI programs do. They do not wait if a rank of
// their host is stopped or gone.
static bool others_run(void)
{
    if (!state.host_pids)
        return true;
    for (int i = 0; i < state.link.host_ranks; i++) {
        if (!state.host_pids[i])
            continue;
        char found = process_state(state.host_pids[i]);
        if (!found || strchr("TtZX", found))
            return false;
    }
    return true;
}

// Ends MPI at the end of the process. If the program has finalized MPI itself, before_finalize has
// ended the link. Without MPI_Finalize, launchers kill the remaining ranks, and the launcher of
// MPICH reports this rank's exit code 0 as the job's. So a rank that cannot finalize MPI aborts the
// job with PEER_EXIT, unless all ranks have finished their work (`all_came`).
static void at_exit(void)
{
    int gone = 0;
    if (MPI_Finalized(&gone) != MPI_SUCCESS || gone || in_time(end_mpi, END_S, others_run))
        return;
    if (atomic_load(&state.all_came))
        return;
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, PEER_EXIT);
}

static bool start_mpi(char *error, size_t n)
{
    int running = 0, level = MPI_THREAD_SINGLE, gone = 0;
    MPI_Initialized(&running);
    MPI_Finalized(&gone);
    if (gone) {
        snprintf(error, n, "MPI was already finalized in this process");
        return false;
    }
    if (running) {
        MPI_Query_thread(&level);
    } else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
        snprintf(error, n, "MPI_Init_thread failed");
        return false;
    }
    // Several threads may use the link at a time only if MPI allows it; a program that started MPI
    // itself may have asked for less.
    state.ours = !running;
    state.link.threads = level == MPI_THREAD_MULTIPLE;
    return true;
}

// Exchanges the process ids of the ranks on this host. Ids from another pid namespace are not valid
// here and are stored as 0.
static void gather_pids(MPI_Comm host)
{
    int own = (int)getpid();
    int *pids = malloc((size_t)state.link.host_ranks * sizeof *pids);
    state.host_pids = malloc((size_t)state.link.host_ranks * sizeof *state.host_pids);
    // All ranks take part, even without memory for the result.
    int lacks = !pids || !state.host_pids, one_lacks = 1;
    MPI_Allreduce(&lacks, &one_lacks, 1, MPI_INT, MPI_MAX, host);
    if (!one_lacks && MPI_Allgather(&own, 1, MPI_INT, pids, 1, MPI_INT, host) == MPI_SUCCESS) {
        for (int i = 0; i < state.link.host_ranks; i++)
            state.host_pids[i] = process_state((pid_t)pids[i]) ? (pid_t)pids[i] : 0;
    } else {
        free(state.host_pids);
        state.host_pids = NULL;
    }
    free(pids);
}

// Counts the ranks of this host, and the cores that they may use together.
static void count_host(void)
{
    cpu_set_t mine, all;
    MPI_Comm host;
    CPU_ZERO(&mine);
    sched_getaffinity(0, sizeof mine, &mine);
    all = mine;
    state.link.host_ranks = 1;
    if (MPI_Comm_split_type(state.comm[LINK_DATA], MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) ==
        MPI_SUCCESS) {
        MPI_Comm_size(host, &state.link.host_ranks);
        MPI_Allreduce(&mine, &all, (int)sizeof mine, MPI_BYTE, MPI_BOR, host);
        gather_pids(host);
        MPI_Comm_free(&host);
    }
    state.link.host_cores = CPU_COUNT(&all) > 0 ? CPU_COUNT(&all) : 1;
}

// Creates a communicator for each channel. Errors are returned, not fatal. The attribute of
// MPI_COMM_SELF is deleted first in MPI_Finalize, which calls before_finalize.
static bool make_channels(char *error, size_t n)
{
    for (int i = 0; i < LINK_CHANNELS; i++) {
        if (MPI_Comm_dup(MPI_COMM_WORLD, &state.comm[i]) != MPI_SUCCESS) {
            snprintf(error, n, "MPI_Comm_dup failed");
            return false;
        }
        MPI_Comm_set_errhandler(state.comm[i], MPI_ERRORS_RETURN);
    }
    int key;
    if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, before_finalize, &key, NULL) == MPI_SUCCESS)
        MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    return true;
}

// Stores the name of the MPI library. Example: "Open MPI v4.1.4, package: ..." becomes "Open MPI
// v4.1.4".
static void read_library(void)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n = 0;
    if (MPI_Get_library_version(text, &n) != MPI_SUCCESS)
        n = 0;
    text[n < (int)sizeof text ? n : (int)sizeof text - 1] = 0;
    text[strcspn(text, ",\n")] = 0;
    for (char *p = text; *p; p++)
        *p = *p == '\t' ? ' ' : *p;
    snprintf(state.link.library, sizeof state.link.library, "%.100s", text);
}

// Joins the job: does everything that waits for the other ranks.
static void join_job(void)
{
    state.joined = start_mpi(state.error, sizeof state.error) &&
                   make_channels(state.error, sizeof state.error);
    if (!state.joined)
        return;
    MPI_Comm_rank(MPI_COMM_WORLD, &state.link.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &state.link.size);
    count_host();
}

// Opens the link over MPI. MPI is initialized once per process; later jobs share the link. A start
// that hangs (a rank never came) cannot be undone, so the process does not try again.
struct link *tsr_link_open(char *error, size_t n)
{
    if (state.open)
        return &state.link;
    if (state.failed) {
        snprintf(error, n, "an earlier job of this process failed");
        return NULL;
    }
    if (!in_time(join_job, START_S, never)) {
        state.failed = true;
        snprintf(error, n, "it has waited %d s for a rank that is missing or stopped", START_S);
        return NULL;
    }
    if (!state.joined) {
        snprintf(error, n, "%s", state.error);
        return NULL;
    }
    struct link *link = &state.link;
    link->abi = LINK_ABI;
    read_library();
    link->send = link_send;
    link->receive = link_receive;
    link->test = link_test;
    link->cancel = link_cancel;
    link->withdraw = link_withdraw;
    link->failed = link_failed;
    if (state.ours)
        atexit(at_exit);
    state.open = true;
    return link;
}
