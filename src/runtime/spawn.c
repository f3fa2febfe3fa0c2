// SPDX-License-Identifier: Apache-2.0
// spawn.c - ranks as child processes that share memory: starts and watches them, reads their
// results, and leaves none behind.
//
// Children are forks: they inherit the session, the engine and the inputs. The kernel kills them if
// this process ends. If a child dies or sends no heartbeat, the job ends for all; children that do
// not exit then are killed.
//
// The life of a set of children, times from this process's clock:
//
//     start     for each rank: an unnamed file for its results, then fork
//     watch     every 2 ms: ended children, missing heartbeats, failure of the job
//     a rank dies at t     published in shared memory as soon as a rank waits for it there, at the
//                          latest at t + 0.25 s, so that the diagnostic can name the waiting rank
//     failed_s, + 1.5 s    children that have not exited are killed
//     verdict   the diagnostics of a child that failed by itself; else those in shared memory
//     take      only if nothing failed: what each child returned, in rank order
//
// A child's file is read only after the child has ended. One that died while writing has no trailer
// and is ignored.
#include "runtime/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS  2000000 // between two checks
#define MISSED_S 0.25    // time until another rank waits for a rank that died
#define GRACE_S  1.5     // time for the other children to exit

// One child, as seen by its parent. `died` and `how` are set when it ended with an error. `beat` is
// its last heartbeat count, `silent_s` the time since the count changed.
struct child {
    pid_t pid; // 0: not started, or ended and reaped
    int fd;    // file of its message; -1: none, or it was read
    bool died;
    char how[64];
    double died_s;
    uint64_t beat;
    double silent_s;
    // read when it has ended: its message, the position of its diagnostics in it, its status
    struct message message;
    size_t findings;
    tsr_status status;
    bool complete; // false: the child died while it wrote the message
};

// failed_s: when the job was first seen to have failed. started: children may be running, so
// closing must watch them.
struct child_set {
    tsr_session *session;
    struct spawn *work;
    struct shm_job *job;
    struct child *children;
    int n;
    double looked_s, failed_s; // failed_s 0: not failed
    bool started;
    bool stopped;      // by tsr__child_set_stop
    tsr_status status; // result of starting
};

// ---- the child ---------------------------------------------------------------------------------

// Resets signal handlers in a child, because inherited handlers use the parent's state. SIGINT,
// SIGTERM, SIGHUP and SIGQUIT stay ignored if the parent ignores them. SIGKILL on the parent's
// death is requested first; a parent that died before is detected by its process id.
static void reset_signals(pid_t parent)
{
    enum { ENDS = 4 }; // the first ones are sent to end a whole process group
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGABRT};
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); // the parent ended before the request took effect
    for (size_t i = 0; i < TSR_COUNT(signals); i++) {
        struct sigaction before;
        bool asked = i < ENDS && sigaction(signals[i], NULL, &before) == 0 &&
                     before.sa_handler == SIG_IGN; // nohup, or a shell's background
        if (!asked)
            signal(signals[i], SIG_DFL);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// The trailer of a child's message: the position of its diagnostics, its status, and WHOLE, which
// shows that the message is complete.
#define TRAILER 3
#define WHOLE   0x4C4C41454D4F5354

// Ends the message of a child with its diagnostics and the trailer. The trailer is last in the
// file, so everything before it was written. WHOLE is the text "TSOMEALL" as a number; any unlikely
// number would do.
static void seal(struct message *out, tsr_session *session, tsr_status st)
{
    tsr__message_put(out, NULL, 0); // flushes the buffer
    off_t at = lseek(out->fd, 0, SEEK_CUR);
    tsr__message_put_findings(out, session);
    tsr__message_put_int(out, (int64_t)at);
    tsr__message_put_int(out, (int64_t)st);
    tsr__message_put_int(out, WHOLE);
    tsr__message_put(out, NULL, 0);
}

// Reports a failure of a child to the parent and its other children: without it they would not
// learn of it if the children are not connected by this endpoint.
static void report_failure(tsr_session *session, struct endpoint *endpoint, tsr_status status)
{
    size_t n = tsr_finding_count(session);
    tsr__comm_fail(endpoint, status,
                   n ? tsr_finding_value(session, n - 1).message : tsr_status_text(status));
}

// Runs a child. Does not return, and runs none of the parent's exit handlers.
static void run_child(struct child_set *child_set, int rank, pid_t parent)
{
    tsr_session *session = child_set->session;
    struct message out = {.fd = child_set->children[rank].fd};
    struct endpoint *endpoint = NULL;
    reset_signals(parent);
    bool pinned = !child_set->work->pinned || rank < child_set->work->pinned;
    if (pinned && !child_set->work->options->no_pin)
        tsr__cores_keep(rank, child_set->work->pinned ? child_set->work->pinned : child_set->n);
    // The copied session also has diagnostics of the parent; only those of this child are sent.
    tsr_finding_clear(session);
    struct engine *engine = tsr__engine_state(session);
    tsr_status st =
        engine ? tsr__shm_endpoint(session, child_set->job, rank, &endpoint) : TSR_NOMEM;
    if (st == TSR_OK) {
        // From here on tsr__run_join returns this endpoint, so the child acts like a rank under a
        // launcher.
        if (!child_set->work->apart)
            engine->joined = endpoint;
        st = child_set->work->work(child_set->work, session, rank, &out);
    }
    st = tsr__run_end(session, child_set->work->options, st);
    if (st != TSR_OK && child_set->work->apart && endpoint)
        report_failure(session, endpoint, st);
    // The file is complete before the other ranks learn that this rank has left.
    seal(&out, session, st);
    tsr__comm_close(endpoint);
    _exit(out.failed ? 2 : 0);
}

// ---- starting ----------------------------------------------------------------------------------

// Reports that a child cannot be started, also to the started ranks, which would otherwise wait for
// this one.
static tsr_status cannot_start(struct child_set *child_set, int rank)
{
    struct place at = PLACE_NONE;
    at.rank = rank;
    tsr__diag(child_set->session, DIAG_rank_start, &at,
              "use fewer ranks, or raise the limit of processes (ulimit -u)",
              "the process of rank %d could not be started: %s", rank, strerror(errno));
    tsr__shm_lost(child_set->job, rank, "could not be started", true);
    return TSR_PEER;
}

// Starts the children. The file is created before the fork, so that both sides have it. errno is
// set for injected faults; real calls overwrite it.
static tsr_status start(struct child_set *child_set)
{
    pid_t parent = getpid();
    for (int i = 0; i < child_set->n; i++) {
        struct child *child = &child_set->children[i];
        bool fault = tsr__fault(child_set->session, FAULT_SPAWN);
        errno = EAGAIN;
        child->fd = fault ? -1 : memfd_create("tessera-result", MFD_CLOEXEC);
        pid_t pid = child->fd < 0 ? -1 : fork();
        if (pid < 0)
            return cannot_start(child_set, i);
        if (pid == 0)
            run_child(child_set, i, parent);
        child->pid = pid;
    }
    return TSR_OK;
}

// ---- watching ----------------------------------------------------------------------------------

// Records that a child ended, and how. `how` follows "rank 2" in messages: "was killed by signal 9
// (Killed)", "exited", or "could not return its results" for exit code 2 (run_child).
static void take_end(struct child *child, int status, double now)
{
    child->pid = 0;
    child->died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    child->died_s = now;
    if (WIFSIGNALED(status))
        snprintf(child->how, sizeof child->how, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        snprintf(child->how, sizeof child->how, "could not return its results");
    else
        snprintf(child->how, sizeof child->how, "exited");
}

// Describes the first child that died while the job had not failed. The transport that would name
// the rank does not connect children that are apart.
static void note_end(const struct child_set *child_set, int i)
{
    const struct child *child = &child_set->children[i];
    struct spawn *work = child_set->work;
    if (!work->apart || !child->died || work->ended[0] || child_set->failed_s > 0)
        return;
    if (i < work->pinned)
        snprintf(work->ended, sizeof work->ended, "rank %d %s", work->first + i, child->how);
    else
        snprintf(work->ended, sizeof work->ended, "the process that reaches a worker %s",
                 child->how);
}

// Measures how long a child has sent no heartbeat, in this process's own time, and reports it as
// lost after a limit. A step counts at most 0.5 s: if this process itself was stopped for a minute,
// the children were not silent for that long. The limit is one second longer than that of the
// ranks, because ranks that wait for the silent one report it with the operation.
static void check_heartbeat(struct child_set *child_set, int rank, double step)
{
    struct child *child = &child_set->children[rank];
    uint64_t beat = tsr__shm_beat(child_set->job, rank);
    double limit = child_set->work->options->timeout_s > 0 ? child_set->work->options->timeout_s
                                                           : COMM_STOPPED_S;
    char how[64];
    child->silent_s += step < 0.5 ? step : 0.5;
    if (beat != child->beat)
        child->silent_s = 0;
    child->beat = beat;
    if (child->silent_s <= limit + 1 ||
        child_set->failed_s > 0) // the waiting ranks report it with more details
        return;
    snprintf(how, sizeof how, "has sent no heartbeat for %.0f s (stopped?)", child->silent_s);
    tsr__shm_lost(child_set->job, rank, how, true);
}

// A rank that waits for hosts which are gone does not exit by itself.
static double grace_of(const struct spawn *work, int i)
{
    bool is_rank = !work->pinned || i < work->pinned;
    return is_rank || work->grace_s <= 0 ? GRACE_S : work->grace_s;
}

// Checks all children once; false when none is left.
static bool check_children(struct child_set *child_set)
{
    struct comm_trouble why;
    double now = tsr__now_s(), step = now - child_set->looked_s;
    bool open = false;
    child_set->looked_s = now;
    for (int i = 0; i < child_set->n; i++) {
        struct child *child = &child_set->children[i];
        int status = 0;
        // ECHILD: the application ignores SIGCHLD or reaps all children itself. How the child ended
        // is unknown then; the other ranks notice that it is missing.
        pid_t got = child->pid ? waitpid(child->pid, &status, WNOHANG) : 0;
        if (got == child->pid && got > 0) {
            take_end(child, status, now);
            note_end(child_set, i);
        }
        if (got < 0 && errno == ECHILD)
            child->pid = 0;
        // Repeated at each check until a rank waits for the dead one, or MISSED_S is over.
        if (child->died && child_set->failed_s == 0)
            tsr__shm_lost(child_set->job, i, child->how, now - child->died_s > MISSED_S);
        if (child->pid)
            check_heartbeat(child_set, i, step);
        // A dead child is watched until its death has become the failure of the job.
        open |= child->pid || (child->died && child_set->failed_s == 0);
    }
    if (child_set->failed_s == 0 && tsr__shm_trouble(child_set->job, &why))
        child_set->failed_s = now;
    for (int i = 0; i < child_set->n; i++)
        if (child_set->failed_s > 0 && now - child_set->failed_s > grace_of(child_set->work, i) &&
            child_set->children[i].pid)
            kill(child_set->children[i].pid, SIGKILL);
    return open;
}

// Watches the children until none is left.
static void watch(struct child_set *child_set)
{
    struct timespec nap = {0, LOOK_NS};
    child_set->looked_s = tsr__now_s();
    while (check_children(child_set))
        nanosleep(&nap, NULL);
}

// ---- results ------------------------------------------------------------------------------------

// Opens the message of a child and reads its trailer. The trailer is from another process: a
// position out of range is replaced by a harmless one, a status out of range by TSR_BUG.
static void open_message(struct child *child)
{
    struct message *message = &child->message;
    int64_t trailer[TRAILER];
    bool opened = tsr__message_open(child->fd, message) == TSR_OK;
    child->fd = -1;
    if (!opened || message->end < sizeof trailer)
        return;
    message->end -= sizeof trailer;
    memcpy(trailer, message->bytes + message->end, sizeof trailer);
    bool valid = trailer[0] >= 0 && (size_t)trailer[0] <= message->end;
    child->findings = valid ? (size_t)trailer[0] : message->end;
    child->status = trailer[1] >= 0 && trailer[1] <= TSR_BUG ? (tsr_status)trailer[1] : TSR_BUG;
    child->complete = trailer[2] == WHOLE;
}

// Reads the diagnostics of a child, and adds them to the session if `add` is set. Returns true if
// one of them shows that the child failed by itself.
static bool read_findings(struct child_set *child_set, struct child *child, bool add)
{
    child->message.at = child->findings;
    child->message.failed = false;
    return tsr__message_findings(&child->message, child_set->session, add);
}

// Reports the diagnostics of the first child that failed by itself, else the failure in shared
// memory. Returns TSR_PEER if a child ran out of memory: TSR_NOMEM would mean that this process
// did. Children are checked in rank order. A child whose only error is that another rank failed is
// skipped.
static tsr_status verdict(struct child_set *child_set)
{
    struct comm_trouble why;
    for (int i = 0; i < child_set->n; i++) {
        struct child *child = &child_set->children[i];
        if (!child->complete || child->status == TSR_OK || !read_findings(child_set, child, false))
            continue;
        read_findings(child_set, child, true);
        return child->status == TSR_NOMEM ? TSR_PEER : child->status;
    }
    if (child_set->work->ended[0])
        return tsr__fail(child_set->session, TSR_PEER, DIAG_rank_failed, NULL,
                         "see its messages; a partition runs with all of its ranks or not at all",
                         "%s", child_set->work->ended);
    if (!tsr__shm_trouble(child_set->job, &why))
        return child_set->stopped ? TSR_PEER : TSR_OK; // the one that stopped it knows why
    struct place at = PLACE_NONE;
    const char *where = child_set->work->where;
    at.rank = why.rank;
    tsr__diag(child_set->session, DIAG_rank_failed, &at,
              *where ? where
                     : "see the messages of that rank; a partition runs with all of its ranks or "
                       "not at all",
              "%s", why.text);
    return why.status == TSR_NOMEM ? TSR_PEER : why.status;
}

// Reads the results of one child; TSR_MALFORMED: they are incomplete.
static tsr_status take_one(struct child_set *child_set, int rank)
{
    struct child *child = &child_set->children[rank];
    if (!child->complete || child->status != TSR_OK)
        return TSR_MALFORMED;
    // Warnings are the same on all ranks, but relays have their own.
    bool other = child_set->work->pinned && rank >= child_set->work->pinned;
    read_findings(child_set, child, rank == 0 || other);
    child->message.at = 0;
    child->message.failed = false;
    return child_set->work->take(child_set->work, child_set->session, rank, &child->message);
}

static tsr_status take(struct child_set *child_set)
{
    for (int i = 0; i < child_set->n; i++) {
        tsr_status st = take_one(child_set, i);
        if (st == TSR_OK)
            continue;
        if (st != TSR_MALFORMED)
            return st;
        struct place at = PLACE_NONE;
        at.rank = i;
        return tsr__fail(child_set->session, TSR_PEER, DIAG_rank_failed, &at, NULL,
                         "rank %d returned no results", i);
    }
    return TSR_OK;
}

// Starts a set of children. *out is set first, so that the caller can close a set of which only
// some children started. Without spawn->stays, the parent watches all the time and reports dead
// ranks. Persistent children watch each other, because the parent watches only while its caller
// waits.
tsr_status tsr__child_set_open(tsr_session *session, struct spawn *spawn, struct child_set **out)
{
    struct comm_options comm = {.timeout_s = spawn->options->timeout_s};
    size_t bytes = (size_t)spawn->n * sizeof(struct child);
    struct child_set *child_set = tsr__alloc(session, sizeof *child_set);
    if (!child_set)
        return TSR_NOMEM;
    struct child *children = tsr__alloc(session, bytes);
    if (!children) {
        tsr__free(session, child_set, sizeof *child_set);
        return TSR_NOMEM;
    }
    memset(children, 0, bytes);
    *child_set =
        (struct child_set){.session = session, .work = spawn, .n = spawn->n, .children = children};
    for (int i = 0; i < child_set->n; i++)
        child_set->children[i].fd = -1;
    *out = child_set;
    child_set->status = tsr__shm_new(session, spawn->n, &comm, &child_set->job);
    if (child_set->status != TSR_OK)
        return child_set->status;
    if (!spawn->stays)
        tsr__shm_watched(child_set->job);
    child_set->looked_s = tsr__now_s();
    child_set->started = true;
    return child_set->status = start(child_set);
}

// True if the job has failed or a child has ended, even successfully: persistent children end only
// on request.
bool tsr__child_set_over(struct child_set *child_set)
{
    struct comm_trouble why;
    bool open = check_children(child_set), over = !open || tsr__shm_trouble(child_set->job, &why);
    for (int i = 0; i < child_set->n; i++)
        over |= child_set->children[i].pid == 0;
    return over;
}

void tsr__child_set_stop(struct child_set *child_set)
{
    child_set->stopped = true;
    if (child_set->failed_s == 0)
        child_set->failed_s = tsr__now_s();
}

// Waits for the children and reads their results. A partly started set is watched too: the job has
// failed, so its children exit or are killed.
tsr_status tsr__child_set_close(struct child_set *child_set)
{
    tsr_status st = child_set->status;
    tsr_session *session = child_set->session;
    if (child_set->started)
        watch(child_set);
    for (int i = 0; i < child_set->n; i++)
        open_message(&child_set->children[i]);
    if (st == TSR_OK)
        st = verdict(child_set);
    if (st == TSR_OK)
        st = take(child_set);
    for (int i = 0; i < child_set->n; i++)
        tsr__message_close(&child_set->children[i].message);
    tsr__shm_free(session, child_set->job);
    tsr__free(session, child_set->children, (size_t)child_set->n * sizeof *child_set->children);
    tsr__free(session, child_set, sizeof *child_set);
    return st;
}

// Creates the temporary folder of children that trace. Their own temporary folders are inside of
// it, and this process removes it even if the children were killed.
static tsr_status work_folder(tsr_session *session, struct spawn *spawn, tsr_run_options *own,
                              struct temporary **around)
{
    *own = *spawn->options;
    spawn->options = own;
    if (!own->trace)
        return TSR_OK;
    tsr_status status = tsr__temporary_folder(session, own->work, "trace", around);
    if (status == TSR_OK)
        own->work = (*around)->path;
    return status;
}

// Runs children and waits for them. spawn->options points to a copy on this stack afterwards; the
// caller's struct spawn is used once.
tsr_status tsr__spawn(tsr_session *session, struct spawn *spawn)
{
    struct child_set *child_set = NULL;
    struct temporary *around = NULL;
    tsr_run_options own;
    tsr_status st = work_folder(session, spawn, &own, &around);
    if (st == TSR_OK)
        st = tsr__child_set_open(session, spawn, &child_set);
    if (child_set)
        st = tsr__child_set_close(child_set);
    tsr__temporary_remove(around);
    return st;
}

tsr_status tsr__spawn_runs(tsr_session *session, const char *path, bool unsharded,
                           const tsr_tensors *inputs, struct spawn *spawn)
{
    struct engine *engine;
    TRY(tsr__tensors_on_host(inputs));
    if (!unsharded) {
        TRY(tsr__run_prepare(session, path, spawn->options, &spawn->n));
        return tsr__spawn(session, spawn);
    }
    TRY(tsr__gpu_refuse_fork(session, spawn->options));
    TRY(tsr__engine(session, &engine)); // the child inherits it
    spawn->n = 1;
    return tsr__spawn(session, spawn);
}
