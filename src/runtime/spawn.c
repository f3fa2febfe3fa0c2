// SPDX-License-Identifier: Apache-2.0
// spawn.c - ranks as child processes that share memory: started, watched, heard, and none left behind.
//
// Children are forks: they have the session, the engine and the inputs as they are, and need no
// program of their own. The kernel kills them if this process goes. This process watches theirs: one
// that dies, or gives no sign of life, ends the job for all, and those who do not end by themselves
// then are killed.
#include "runtime/spawn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS  2000000 // between two looks
#define MISSED_S 0.25    // for the others to come to where they miss a rank that died
#define GRACE_S  1.5     // for the others to end by themselves

struct child {
    pid_t pid; // 0: not started, or ended and taken
    int fd;    // of its parcel
    bool died;
    char how[64];
    double died_s;
    uint64_t beat;
    double silent_s;
};

struct nursery {
    tsr_session *session;
    struct spawn *work;
    struct shm_job *job;
    struct child *children;
    int n;
    double looked_s, failed_s; // failed_s 0: not
    bool started;
    tsr_status status; // of starting
};

// ---- the child ---------------------------------------------------------------------------------

static void back_to_normal(pid_t parent)
{
    enum { ENDS = 4 }; // the first ones are sent to end a whole group of processes
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGABRT};
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); // it went before it could be noticed
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

// Ends what the child hands over: findings, and the trailer that says where they begin and that all is there.
#define TRAILER 3
#define WHOLE   0x4C4C41454D4F5354

static void seal(struct parcel *out, tsr_session *session, tsr_status st)
{
    tsr__parcel_put(out, NULL, 0); // what is buffered goes out
    off_t at = lseek(out->fd, 0, SEEK_CUR);
    tsr__parcel_put_findings(out, session);
    tsr__parcel_put_int(out, (int64_t)at);
    tsr__parcel_put_int(out, (int64_t)st);
    tsr__parcel_put_int(out, WHOLE);
    tsr__parcel_put(out, NULL, 0);
}

// Does not return, and runs nothing of what the parent has for its own end.
static void be_child(struct nursery *nursery, int rank, pid_t parent)
{
    tsr_session *session = nursery->session;
    struct parcel out = {.fd = nursery->children[rank].fd};
    struct endpoint *endpoint = NULL;
    back_to_normal(parent);
    if (!nursery->work->options->no_pin)
        tsr__cores_keep(rank, nursery->n);
    tsr_finding_clear(session);
    struct engine *engine = tsr__engine_state(session);
    tsr_status st = engine ? tsr__shm_endpoint(session, nursery->job, rank, &endpoint) : TSR_NOMEM;
    if (st == TSR_OK) {
        engine->mpi = endpoint;
        st = nursery->work->work(nursery->work, session, rank, &out);
    }
    if (st != TSR_OK && endpoint) {
        char text[64];
        snprintf(text, sizeof text, "rank %d failed: %s", rank, tsr_status_text(st));
        tsr__comm_fail(endpoint, st, text); // counts if nothing better was told
    }
    seal(&out, session, st);
    tsr__comm_close(endpoint);
    _exit(out.failed ? 2 : 0);
}

// ---- starting ----------------------------------------------------------------------------------

static tsr_status cannot_start(struct nursery *nursery, int rank)
{
    struct place at = PLACE_NONE;
    at.rank = rank;
    tsr__diag(nursery->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of processes",
              "the process of rank %d could not be started: %s", rank, strerror(errno));
    tsr__shm_lost(nursery->job, rank, "could not be started", true);
    return TSR_PEER;
}

static tsr_status start(struct nursery *nursery)
{
    pid_t parent = getpid();
    for (int i = 0; i < nursery->n; i++) {
        struct child *child = &nursery->children[i];
        bool fault = tsr__fault(nursery->session, FAULT_SPAWN);
        errno = EAGAIN;
        child->fd = fault ? -1 : memfd_create("tessera-result", MFD_CLOEXEC);
        pid_t pid = child->fd < 0 ? -1 : fork();
        if (pid < 0)
            return cannot_start(nursery, i);
        if (pid == 0)
            be_child(nursery, i, parent);
        child->pid = pid;
    }
    return TSR_OK;
}

// ---- watching ----------------------------------------------------------------------------------

static void take_end(struct child *child, int status, double now)
{
    child->pid = 0;
    child->died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    child->died_s = now;
    if (WIFSIGNALED(status))
        snprintf(child->how, sizeof child->how, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        snprintf(child->how, sizeof child->how, "could not hand over its results");
    else
        snprintf(child->how, sizeof child->how, "ended by itself");
}

// How long a child has given no sign, in this process's own time.
static void hear(struct nursery *nursery, int rank, double step)
{
    struct child *child = &nursery->children[rank];
    uint64_t beat = tsr__shm_beat(nursery->job, rank);
    double limit =
        nursery->work->options->timeout_s > 0 ? nursery->work->options->timeout_s : COMM_STOPPED_S;
    char how[64];
    child->silent_s = beat != child->beat ? 0 : child->silent_s + (step < 0.5 ? step : 0.5);
    child->beat = beat;
    if (child->silent_s <= limit + 1 ||
        nursery->failed_s > 0) // those who wait for it tell it better
        return;
    snprintf(how, sizeof how, "gives no sign of life for %.0f s (stopped?)", child->silent_s);
    tsr__shm_lost(nursery->job, rank, how, true);
}

// One look at all children; false when none is left.
static bool look(struct nursery *nursery)
{
    struct comm_trouble why;
    double now = tsr__now_s(), step = now - nursery->looked_s;
    bool open = false;
    nursery->looked_s = now;
    for (int i = 0; i < nursery->n; i++) {
        struct child *child = &nursery->children[i];
        int status = 0;
        pid_t got = child->pid ? waitpid(child->pid, &status, WNOHANG) : 0;
        if (got == child->pid && got > 0)
            take_end(child, status, now);
        else if (got < 0 && errno == ECHILD) // somebody else takes this process's children
            child->pid = 0;
        if (child->died && nursery->failed_s == 0)
            tsr__shm_lost(nursery->job, i, child->how, now - child->died_s > MISSED_S);
        if (child->pid)
            hear(nursery, i, step);
        open |= child->pid || (child->died && nursery->failed_s == 0);
    }
    if (nursery->failed_s == 0 && tsr__shm_trouble(nursery->job, &why))
        nursery->failed_s = now;
    for (int i = 0; i < nursery->n; i++)
        if (nursery->failed_s > 0 && now - nursery->failed_s > GRACE_S && nursery->children[i].pid)
            kill(nursery->children[i].pid, SIGKILL);
    return open;
}

static void watch(struct nursery *nursery)
{
    struct timespec nap = {0, LOOK_NS};
    nursery->looked_s = tsr__now_s();
    while (look(nursery))
        nanosleep(&nap, NULL);
}

// ---- what they say -----------------------------------------------------------------------------

// The parcel of a child, and the status that it ended with; false: it is not whole.
static bool open_parcel(const struct child *child, struct parcel *parcel, size_t *findings,
                        tsr_status *out)
{
    struct stat st;
    int64_t trailer[TRAILER];
    *parcel = (struct parcel){.fd = -1};
    if (child->fd < 0 || fstat(child->fd, &st) != 0 || (size_t)st.st_size < sizeof trailer)
        return false;
    size_t size = (size_t)st.st_size;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, child->fd, 0);
    if (map == MAP_FAILED)
        return false;
    parcel->bytes = map;
    parcel->end = size - sizeof trailer;
    memcpy(trailer, parcel->bytes + parcel->end, sizeof trailer);
    *findings =
        trailer[0] >= 0 && (size_t)trailer[0] <= parcel->end ? (size_t)trailer[0] : parcel->end;
    *out = trailer[1] >= 0 && trailer[1] <= TSR_BUG ? (tsr_status)trailer[1] : TSR_BUG;
    return trailer[2] == WHOLE;
}

static void close_parcel(struct parcel *parcel)
{
    if (parcel->bytes)
        munmap((void *)parcel->bytes, parcel->end + TRAILER * sizeof(int64_t));
    parcel->bytes = NULL;
}

// A rank that failed by itself says why; else who waited for it, or was told. A rank without memory
// is a rank that failed.
static tsr_status verdict(struct nursery *nursery)
{
    struct comm_trouble why;
    struct parcel parcel;
    for (int i = 0; i < nursery->n; i++) {
        size_t findings;
        tsr_status st = TSR_OK;
        bool own = open_parcel(&nursery->children[i], &parcel, &findings, &st) && st != TSR_OK;
        parcel.at = findings;
        own = own && tsr__parcel_findings(&parcel, nursery->session, false);
        parcel.at = findings;
        parcel.failed = false;
        if (own)
            tsr__parcel_findings(&parcel, nursery->session, true);
        close_parcel(&parcel);
        if (own)
            return st == TSR_NOMEM ? TSR_PEER : st;
    }
    if (!tsr__shm_trouble(nursery->job, &why))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(nursery->session, DIAG_rank_failed, &at,
              "see what that rank says; a partition runs with all of its ranks or not at all", "%s",
              why.text);
    return why.status == TSR_NOMEM ? TSR_PEER : why.status;
}

static tsr_status take(struct nursery *nursery)
{
    tsr_status st = TSR_OK;
    for (int i = 0; i < nursery->n && st == TSR_OK; i++) {
        struct parcel parcel;
        size_t findings = 0;
        tsr_status ended = TSR_BUG;
        bool whole =
            open_parcel(&nursery->children[i], &parcel, &findings, &ended) && ended == TSR_OK;
        if (whole) {
            parcel.at = findings;
            tsr__parcel_findings(&parcel, nursery->session,
                                 i == 0); // warnings: the same on all ranks
            parcel.at = 0;
            parcel.failed = false;
            st = nursery->work->take(nursery->work, nursery->session, i, &parcel);
        }
        close_parcel(&parcel);
        if (whole && st != TSR_MALFORMED)
            continue;
        struct place at = PLACE_NONE;
        at.rank = i;
        tsr__diag(nursery->session, DIAG_rank_failed, &at, NULL, "rank %d handed over no results",
                  i);
        st = TSR_PEER;
    }
    return st;
}

tsr_status tsr__nursery_open(tsr_session *session, struct spawn *spawn, struct nursery **out)
{
    struct comm_options co = {.timeout_s = spawn->options->timeout_s};
    size_t bytes = (size_t)spawn->n * sizeof(struct child);
    struct nursery *nursery = tsr__alloc(session, sizeof *nursery);
    struct child *children = nursery ? tsr__alloc(session, bytes) : NULL;
    if (!children) {
        tsr__free(session, nursery, nursery ? sizeof *nursery : 0);
        return TSR_NOMEM;
    }
    memset(children, 0, bytes);
    *nursery =
        (struct nursery){.session = session, .work = spawn, .n = spawn->n, .children = children};
    for (int i = 0; i < nursery->n; i++)
        nursery->children[i].fd = -1;
    *out = nursery;
    nursery->status = tsr__shm_new(session, spawn->n, &co, &nursery->job);
    if (nursery->status != TSR_OK)
        return nursery->status;
    if (!spawn->stays)
        tsr__shm_watched(nursery->job);
    nursery->looked_s = tsr__now_s();
    nursery->started = true;
    return nursery->status = start(nursery);
}

bool tsr__nursery_over(struct nursery *nursery)
{
    struct comm_trouble why;
    bool open = look(nursery), over = !open || tsr__shm_trouble(nursery->job, &why);
    for (int i = 0; i < nursery->n; i++)
        over |= nursery->children[i].pid == 0;
    return over;
}

tsr_status tsr__nursery_close(struct nursery *nursery)
{
    tsr_status st = nursery->status;
    tsr_session *session = nursery->session;
    if (nursery->started)
        watch(nursery);
    if (st == TSR_OK)
        st = verdict(nursery);
    if (st == TSR_OK)
        st = take(nursery);
    for (int i = 0; i < nursery->n; i++)
        if (nursery->children[i].fd >= 0)
            close(nursery->children[i].fd);
    tsr__shm_free(session, nursery->job);
    tsr__free(session, nursery->children, (size_t)nursery->n * sizeof *nursery->children);
    tsr__free(session, nursery, sizeof *nursery);
    return st;
}

// Children that trace make folders of their own. These lie in one of this process, which goes with it however it ends:
// the children are killed then and remove nothing.
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

tsr_status tsr__spawn(tsr_session *session, struct spawn *spawn)
{
    struct nursery *nursery = NULL;
    struct temporary *around = NULL;
    tsr_run_options own;
    tsr_status st = work_folder(session, spawn, &own, &around);
    if (st == TSR_OK)
        st = tsr__nursery_open(session, spawn, &nursery);
    if (nursery)
        st = tsr__nursery_close(nursery);
    tsr__temporary_remove(around);
    return st;
}
