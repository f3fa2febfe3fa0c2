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
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGABRT};
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); // it went before it could be noticed
    for (size_t i = 0; i < TSR_COUNT(signals); i++)
        signal(signals[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// Ends what the child hands over: findings, and the trailer that says where they begin and that all is there.
#define TRAILER 3
#define WHOLE   0x4C4C41454D4F5354

static void seal(struct parcel *out, tsr_session *s, tsr_status st)
{
    tsr__parcel_put(out, NULL, 0); // what is buffered goes out
    off_t at = lseek(out->fd, 0, SEEK_CUR);
    tsr__parcel_put_findings(out, s);
    tsr__parcel_put_int(out, (int64_t)at);
    tsr__parcel_put_int(out, (int64_t)st);
    tsr__parcel_put_int(out, WHOLE);
    tsr__parcel_put(out, NULL, 0);
}

// Does not return, and runs nothing of what the parent has for its own end.
static void be_child(struct nursery *n, int rank, pid_t parent)
{
    tsr_session *s = n->session;
    struct parcel out = {.fd = n->children[rank].fd};
    struct endpoint *e = NULL;
    back_to_normal(parent);
    if (!n->work->options->no_pin)
        tsr__cores_keep(rank, n->n);
    tsr_finding_clear(s);
    struct engine *engine = tsr__engine_state(s);
    tsr_status st = engine ? tsr__shm_endpoint(s, n->job, rank, &e) : TSR_NOMEM;
    if (st == TSR_OK) {
        engine->mpi = e;
        st = n->work->work(n->work, s, rank, &out);
    }
    if (st != TSR_OK && e) {
        char text[64];
        snprintf(text, sizeof text, "rank %d failed: %s", rank, tsr_status_text(st));
        tsr__comm_fail(e, st, text); // counts if nothing better was told
    }
    seal(&out, s, st);
    tsr__comm_close(e);
    _exit(out.failed ? 2 : 0);
}

// ---- starting ----------------------------------------------------------------------------------

static tsr_status cannot_start(struct nursery *n, int rank)
{
    struct place at = PLACE_NONE;
    at.rank = rank;
    tsr__diag(n->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of processes",
              "the process of rank %d could not be started: %s", rank, strerror(errno));
    tsr__shm_lost(n->job, rank, "could not be started", true);
    return TSR_PEER;
}

static tsr_status start(struct nursery *n)
{
    pid_t parent = getpid();
    for (int i = 0; i < n->n; i++) {
        struct child *c = &n->children[i];
        bool fault = tsr__fault(n->session, FAULT_SPAWN);
        errno = EAGAIN;
        c->fd = fault ? -1 : memfd_create("tessera-result", MFD_CLOEXEC);
        pid_t pid = c->fd < 0 ? -1 : fork();
        if (pid < 0)
            return cannot_start(n, i);
        if (pid == 0)
            be_child(n, i, parent);
        c->pid = pid;
    }
    return TSR_OK;
}

// ---- watching ----------------------------------------------------------------------------------

static void take_end(struct child *c, int status, double now)
{
    c->pid = 0;
    c->died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    c->died_s = now;
    if (WIFSIGNALED(status))
        snprintf(c->how, sizeof c->how, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 2)
        snprintf(c->how, sizeof c->how, "could not hand over its results");
    else
        snprintf(c->how, sizeof c->how, "ended by itself");
}

// How long a child has given no sign, in this process's own time.
static void hear(struct nursery *n, int rank, double step)
{
    struct child *c = &n->children[rank];
    uint64_t beat = tsr__shm_beat(n->job, rank);
    double limit = n->work->options->timeout_s > 0 ? n->work->options->timeout_s : COMM_STOPPED_S;
    char how[64];
    c->silent_s = beat != c->beat ? 0 : c->silent_s + (step < 0.5 ? step : 0.5);
    c->beat = beat;
    if (c->silent_s <= limit + 1 || n->failed_s > 0) // those who wait for it tell it better
        return;
    snprintf(how, sizeof how, "gives no sign of life for %.0f s (stopped?)", c->silent_s);
    tsr__shm_lost(n->job, rank, how, true);
}

// One look at all children; false when none is left.
static bool look(struct nursery *n)
{
    struct comm_trouble why;
    double now = tsr__now_s(), step = now - n->looked_s;
    bool open = false;
    n->looked_s = now;
    for (int i = 0; i < n->n; i++) {
        struct child *c = &n->children[i];
        int status = 0;
        pid_t got = c->pid ? waitpid(c->pid, &status, WNOHANG) : 0;
        if (got == c->pid && got > 0)
            take_end(c, status, now);
        else if (got < 0 && errno == ECHILD) // somebody else takes this process's children
            c->pid = 0;
        if (c->died && n->failed_s == 0)
            tsr__shm_lost(n->job, i, c->how, now - c->died_s > MISSED_S);
        if (c->pid)
            hear(n, i, step);
        open |= c->pid || (c->died && n->failed_s == 0);
    }
    if (n->failed_s == 0 && tsr__shm_trouble(n->job, &why))
        n->failed_s = now;
    for (int i = 0; i < n->n; i++)
        if (n->failed_s > 0 && now - n->failed_s > GRACE_S && n->children[i].pid)
            kill(n->children[i].pid, SIGKILL);
    return open;
}

static void watch(struct nursery *n)
{
    struct timespec nap = {0, LOOK_NS};
    n->looked_s = tsr__now_s();
    while (look(n))
        nanosleep(&nap, NULL);
}

// ---- what they say -----------------------------------------------------------------------------

// The parcel of a child, and the status that it ended with; false: it is not whole.
static bool open_parcel(const struct child *c, struct parcel *p, size_t *findings, tsr_status *out)
{
    struct stat st;
    int64_t trailer[TRAILER];
    *p = (struct parcel){.fd = -1};
    if (c->fd < 0 || fstat(c->fd, &st) != 0 || (size_t)st.st_size < sizeof trailer)
        return false;
    size_t size = (size_t)st.st_size;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, c->fd, 0);
    if (map == MAP_FAILED)
        return false;
    p->bytes = map;
    p->end = size - sizeof trailer;
    memcpy(trailer, p->bytes + p->end, sizeof trailer);
    *findings = trailer[0] >= 0 && (size_t)trailer[0] <= p->end ? (size_t)trailer[0] : p->end;
    *out = trailer[1] >= 0 && trailer[1] <= TSR_BUG ? (tsr_status)trailer[1] : TSR_BUG;
    return trailer[2] == WHOLE;
}

static void close_parcel(struct parcel *p)
{
    if (p->bytes)
        munmap((void *)p->bytes, p->end + TRAILER * sizeof(int64_t));
    p->bytes = NULL;
}

// A rank that failed by itself says why; else who waited for it, or was told. A rank without memory
// is a rank that failed.
static tsr_status verdict(struct nursery *n)
{
    struct comm_trouble why;
    struct parcel p;
    for (int i = 0; i < n->n; i++) {
        size_t findings;
        tsr_status st = TSR_OK;
        bool own = open_parcel(&n->children[i], &p, &findings, &st) && st != TSR_OK;
        p.at = findings;
        own = own && tsr__parcel_findings(&p, n->session, false);
        p.at = findings;
        p.failed = false;
        if (own)
            tsr__parcel_findings(&p, n->session, true);
        close_parcel(&p);
        if (own)
            return st == TSR_NOMEM ? TSR_PEER : st;
    }
    if (!tsr__shm_trouble(n->job, &why))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(n->session, DIAG_rank_failed, &at,
              "see what that rank says; a partition runs with all of its ranks or not at all", "%s",
              why.text);
    return why.status == TSR_NOMEM ? TSR_PEER : why.status;
}

static tsr_status take(struct nursery *n)
{
    tsr_status st = TSR_OK;
    for (int i = 0; i < n->n && st == TSR_OK; i++) {
        struct parcel p;
        size_t findings = 0;
        tsr_status ended = TSR_BUG;
        bool whole = open_parcel(&n->children[i], &p, &findings, &ended) && ended == TSR_OK;
        if (whole) {
            p.at = findings;
            tsr__parcel_findings(&p, n->session, i == 0); // warnings: the same on all ranks
            p.at = 0;
            p.failed = false;
            st = n->work->take(n->work, n->session, i, &p);
        }
        close_parcel(&p);
        if (whole && st != TSR_MALFORMED)
            continue;
        struct place at = PLACE_NONE;
        at.rank = i;
        tsr__diag(n->session, DIAG_rank_failed, &at, NULL, "rank %d handed over no results", i);
        st = TSR_PEER;
    }
    return st;
}

tsr_status tsr__nursery_open(tsr_session *s, struct spawn *w, struct nursery **out)
{
    struct comm_options co = {.timeout_s = w->options->timeout_s};
    size_t bytes = (size_t)w->n * sizeof(struct child);
    struct nursery *n = tsr__alloc(s, sizeof *n);
    struct child *children = n ? tsr__alloc(s, bytes) : NULL;
    if (!children) {
        tsr__free(s, n, n ? sizeof *n : 0);
        return TSR_NOMEM;
    }
    memset(children, 0, bytes);
    *n = (struct nursery){.session = s, .work = w, .n = w->n, .children = children};
    for (int i = 0; i < n->n; i++)
        n->children[i].fd = -1;
    *out = n;
    n->status = tsr__shm_new(s, w->n, &co, &n->job);
    if (n->status != TSR_OK)
        return n->status;
    if (!w->stays)
        tsr__shm_watched(n->job);
    n->looked_s = tsr__now_s();
    n->started = true;
    return n->status = start(n);
}

bool tsr__nursery_over(struct nursery *n)
{
    struct comm_trouble why;
    bool open = look(n), over = !open || tsr__shm_trouble(n->job, &why);
    for (int i = 0; i < n->n; i++)
        over |= n->children[i].pid == 0;
    return over;
}

tsr_status tsr__nursery_close(struct nursery *n)
{
    tsr_status st = n->status;
    tsr_session *s = n->session;
    if (n->started)
        watch(n);
    if (st == TSR_OK)
        st = verdict(n);
    if (st == TSR_OK)
        st = take(n);
    for (int i = 0; i < n->n; i++)
        if (n->children[i].fd >= 0)
            close(n->children[i].fd);
    tsr__shm_free(s, n->job);
    tsr__free(s, n->children, (size_t)n->n * sizeof *n->children);
    tsr__free(s, n, sizeof *n);
    return st;
}

// Children that trace make folders of their own. These lie in one of this process, which goes with it however it ends:
// the children are killed then and remove nothing.
static tsr_status work_folder(tsr_session *s, struct spawn *w, tsr_run_options *own,
                              struct temporary **around)
{
    *own = *w->options;
    w->options = own;
    if (!own->trace)
        return TSR_OK;
    tsr_status status = tsr__temporary_folder(s, own->work, "trace", around);
    if (status == TSR_OK)
        own->work = (*around)->path;
    return status;
}

tsr_status tsr__spawn(tsr_session *s, struct spawn *w)
{
    struct nursery *n = NULL;
    struct temporary *around = NULL;
    tsr_run_options own;
    tsr_status st = work_folder(s, w, &own, &around);
    if (st == TSR_OK)
        st = tsr__nursery_open(s, w, &n);
    if (n)
        st = tsr__nursery_close(n);
    tsr__temporary_remove(around);
    return st;
}
