// SPDX-License-Identifier: Apache-2.0
// remote.c - a job whose ranks are child processes that stay: each has the job of a rank under a launcher, and does what
// this process tells it.
//
// A note is a word and a status, with a file without a name where there is more to say (tensors, texts). Every child
// answers every note; a note that starts a run with the results of its rank, as soon as they are there, while this
// process may have told it more. A child that fails ends, which ends the others; what they say then
// is what this process says from then on.
#include "runtime/handover.h"
#include "runtime/spawn.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_MS 20 // between two looks at the children while an answer is waited for

enum word { READY, START, START_CUT, KEEP, BARRIER, TRACE, CLOSE };

struct note {
    int32_t word, status;
};

// Results of runs, in order; files.
struct results {
    int fds[RUN_FLIGHTS];
    uint64_t came, taken;
};

struct remote {
    tsr_session *session;
    struct spawn work;
    tsr_run_options options;
    const char *folder;
    bool states;
    struct nursery *nursery;
    int (*sockets)[2];       // of each child: this process's end, the child's
    struct results *results; // of each child: those that came before they were asked for
    tsr_status failed;
};

// ---- notes -------------------------------------------------------------------------------------

static bool send_note(int to, struct note note, int fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {&note, sizeof note};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = space;
        m.msg_controllen = sizeof space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(to, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof note;
}

// False: the other side is gone. *fd is -1 where nothing came along.
static bool receive_note(int from, struct note *note, int *fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof *fd)];
    struct iovec io = {note, sizeof *note};
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t n;
    *fd = -1;
    do
        n = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n == (ssize_t)sizeof *note;
}

static bool parcel_sent(struct parcel *p, int to, struct note note)
{
    bool ok = tsr__parcel_flush(p) && send_note(to, note, p->fd);
    if (p->fd >= 0)
        close(p->fd);
    tsr__parcel_drop(p);
    return ok;
}

// ---- the child ---------------------------------------------------------------------------------

struct servant {
    tsr_session *session;
    tsr_job *job;
    int socket, rank;
};

// Hands the results of this rank to the parent.
static tsr_status send_results(struct servant *v, enum word word)
{
    tsr_tensors *out = NULL;
    tsr_status st = tsr_tensors_new(v->session, &out);
    if (st == TSR_OK)
        st = tsr_job_wait_cut(v->job, &out);
    if (st == TSR_OK) {
        struct parcel p = tsr__parcel_new();
        if (p.fd >= 0)
            tsr__parcel_put_tensors(&p, out);
        if (!parcel_sent(&p, v->socket, (struct note){(int32_t)word, TSR_OK}))
            st = TSR_NOMEM;
    }
    tsr_tensors_free(out);
    return st;
}

// One run of this rank, from the note that starts it to its results.
static tsr_status serve_run(struct servant *v, enum word word, int fd)
{
    struct parcel p;
    tsr_tensors *in = NULL;
    if (!tsr__parcel_open(fd, &p))
        return TSR_NOMEM;
    tsr_status st = tsr_tensors_new(v->session, &in);
    if (st == TSR_OK)
        st = tsr__parcel_tensors(&p, in);
    tsr__parcel_close(&p);
    if (st == TSR_OK && word == START)
        st = tsr__job_start_own(v->job, in);
    else if (st == TSR_OK)
        st = tsr_job_start_cut(v->job, (const tsr_tensors *const *)&in);
    if (st == TSR_OK) {
        tsr_finding_clear(v->session); // the parent has said it
        st = send_results(v, word);
    }
    tsr_tensors_free(in);
    return st;
}

static tsr_status serve_keep(struct servant *v, int fd)
{
    struct parcel p;
    if (!tsr__parcel_open(fd, &p))
        return TSR_NOMEM;
    struct str past = tsr__parcel_text(&p), present = tsr__parcel_text(&p);
    struct arena a;
    tsr__arena_init(&a, v->session);
    const char *from = tsr__arena_str(&a, past).p, *to = tsr__arena_str(&a, present).p;
    tsr_status st = !from || !to                      ? TSR_NOMEM
                    : tsr__job_keep(v->job, from, to) ? TSR_OK
                                                      : TSR_INVALID;
    tsr__arena_free(&a);
    tsr__parcel_close(&p);
    return st;
}

// One note. Whatever fails ends the child, but for a state that nobody has.
static tsr_status serve(struct servant *v, struct note note, int fd)
{
    enum word word = (enum word)note.word;
    if (word == START || word == START_CUT)
        return serve_run(v, word, fd);
    tsr_status st = word == KEEP      ? serve_keep(v, fd)
                    : word == BARRIER ? tsr_job_barrier(v->job)
                    : word == TRACE   ? tsr_job_trace(v->job)
                                      : TSR_BUG;
    if (st == TSR_OK || (word == KEEP && st == TSR_INVALID)) {
        send_note(v->socket, (struct note){note.word, (int32_t)st}, -1);
        return TSR_OK;
    }
    return st;
}

static tsr_status remote_work(struct spawn *w, tsr_session *s, int rank, struct parcel *out)
{
    struct remote *r = w->data;
    struct servant v = {.session = s, .socket = r->sockets[rank][1], .rank = rank};
    tsr_run_options o = r->options;
    struct note note = {READY, TSR_OK};
    int fd;
    (void)out;
    for (int i = 0; i < w->n; i++) {
        close(r->sockets[i][0]);
        if (i != rank)
            close(r->sockets[i][1]);
    }
    o.check_files = false; // done before
    tsr_status st = tsr__job_open(s, r->folder, &o, r->states, &v.job);
    if (st == TSR_OK)
        send_note(v.socket, note, -1);
    while (st == TSR_OK && receive_note(v.socket, &note, &fd) && note.word != CLOSE)
        st = serve(&v, note, fd);
    tsr_job_close(v.job);
    return st;
}

static tsr_status remote_take(struct spawn *w, tsr_session *s, int rank, struct parcel *in)
{
    (void)w, (void)s, (void)rank, (void)in;
    return TSR_OK; // everything was answered
}

// ---- this process ------------------------------------------------------------------------------

// Ends all children and says what they said; later calls get the same status.
static tsr_status give_up(struct remote *r)
{
    for (int i = 0; i < r->work.n; i++)
        shutdown(r->sockets[i][0], SHUT_RDWR); // those who wait for a note end
    tsr_status st = tsr__nursery_close(r->nursery);
    r->nursery = NULL;
    if (st == TSR_OK) {
        tsr__diag(r->session, DIAG_rank_failed, NULL, NULL, "the ranks ended by themselves");
        st = TSR_PEER;
    }
    return r->failed = st;
}

// The next note of one child; *fd is to be closed.
static tsr_status next_note(struct remote *r, int rank, struct note *note, int *fd)
{
    struct pollfd wait = {.fd = r->sockets[rank][0], .events = POLLIN};
    while (poll(&wait, 1, LOOK_MS) <= 0)
        if (tsr__nursery_over(r->nursery))
            return give_up(r);
    return receive_note(wait.fd, note, fd) ? TSR_OK : give_up(r);
}

static bool is_result(struct note note)
{
    return note.word == START || note.word == START_CUT;
}

// The answer of one child to a note that starts no run; results that come before it are kept.
static tsr_status answer_of(struct remote *r, int rank, struct note *note)
{
    struct results *kept = &r->results[rank];
    for (;;) {
        int fd = -1;
        tsr_status st = next_note(r, rank, note, &fd);
        if (st != TSR_OK || !is_result(*note)) {
            if (fd >= 0)
                close(fd);
            return st;
        }
        if (fd < 0 || kept->came - kept->taken == RUN_FLIGHTS)
            return give_up(r);
        kept->fds[kept->came++ % RUN_FLIGHTS] = fd;
    }
}

// What one child has of the next run, into a set (NULL: nowhere).
static tsr_status take_result(struct remote *r, int rank, tsr_tensors *to)
{
    struct results *kept = &r->results[rank];
    struct note note = {0};
    struct parcel p;
    int fd = -1;
    tsr_status st = TSR_OK;
    if (kept->taken < kept->came)
        fd = kept->fds[kept->taken++ % RUN_FLIGHTS];
    else
        st = next_note(r, rank, &note, &fd);
    if (st != TSR_OK)
        return st;
    if (!tsr__parcel_open(fd, &p))
        return give_up(r);
    st = to ? tsr__parcel_tensors(&p, to) : TSR_OK;
    tsr__parcel_close(&p);
    return st == TSR_OK ? TSR_OK : TSR_NOMEM;
}

static tsr_status tell_all(struct remote *r, enum word word)
{
    for (int i = 0; i < r->work.n && r->failed == TSR_OK; i++)
        if (!send_note(r->sockets[i][0], (struct note){(int32_t)word, TSR_OK}, -1))
            give_up(r);
    return r->failed;
}

// All answers to a note without more; *best: TSR_OK if one child says so.
static tsr_status all_answers(struct remote *r, tsr_status *best)
{
    tsr_status st = TSR_OK;
    *best = TSR_INVALID;
    for (int i = 0; i < r->work.n && st == TSR_OK; i++) {
        struct note note = {0};
        st = answer_of(r, i, &note);
        if (st == TSR_OK && note.status == TSR_OK)
            *best = TSR_OK;
    }
    return st;
}

tsr_status tsr__remote_start(struct remote *r, const tsr_tensors *const *inputs, bool each)
{
    enum word word = each ? START_CUT : START;
    for (int i = 0; i < r->work.n && r->failed == TSR_OK; i++) {
        struct parcel p = tsr__parcel_new();
        if (p.fd >= 0)
            tsr__parcel_put_tensors(&p, inputs[each ? i : 0]);
        if (!parcel_sent(&p, r->sockets[i][0], (struct note){(int32_t)word, TSR_OK}))
            give_up(r);
    }
    return r->failed;
}

// What all ranks have of a run, brought together as the manifest says.
static tsr_status take_joined(struct remote *r, const struct handover *h, tsr_tensors *outputs)
{
    struct arena a;
    tsr__arena_init(&a, r->session);
    tsr_tensors **sets = ARENA_ARRAY(&a, tsr_tensors *, (size_t)r->work.n);
    tsr_status st = sets ? TSR_OK : TSR_NOMEM;
    for (int i = 0; i < r->work.n && st == TSR_OK; i++) {
        st = tsr_tensors_new(r->session, &sets[i]);
        if (st == TSR_OK)
            st = take_result(r, i, outputs ? sets[i] : NULL);
    }
    if (st == TSR_OK && outputs)
        st = tsr__hand_join(h, sets, outputs);
    for (int i = 0; sets && i < r->work.n; i++)
        tsr_tensors_free(sets[i]);
    tsr__arena_free(&a);
    return st;
}

tsr_status tsr__remote_wait(struct remote *r, const struct handover *h, tsr_tensors *const *outputs)
{
    if (r->failed != TSR_OK)
        return r->failed;
    if (h)
        return take_joined(r, h, outputs[0]);
    for (int i = 0; i < r->work.n; i++) {
        tsr_status st = take_result(r, i, outputs[i]);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__remote_keep(struct remote *r, const char *past, const char *present)
{
    for (int i = 0; i < r->work.n && r->failed == TSR_OK; i++) {
        struct parcel p = tsr__parcel_new();
        if (p.fd >= 0) {
            tsr__parcel_put_text(&p, str_of(past));
            tsr__parcel_put_text(&p, str_of(present));
        }
        if (!parcel_sent(&p, r->sockets[i][0], (struct note){KEEP, TSR_OK}))
            give_up(r);
    }
    tsr_status best, st = r->failed == TSR_OK ? all_answers(r, &best) : r->failed;
    return st == TSR_OK ? best : st;
}

tsr_status tsr__remote_barrier(struct remote *r)
{
    tsr_status best, st = tell_all(r, BARRIER);
    return st == TSR_OK ? all_answers(r, &best) : st;
}

tsr_status tsr__remote_trace(struct remote *r)
{
    tsr_status best, st = tell_all(r, TRACE);
    return st == TSR_OK ? all_answers(r, &best) : st;
}

static bool make_sockets(struct remote *r)
{
    for (int i = 0; i < r->work.n; i++)
        r->sockets[i][0] = r->sockets[i][1] = -1;
    for (int i = 0; i < r->work.n; i++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, r->sockets[i]) != 0)
            return false;
    return true;
}

tsr_status tsr__remote_open(tsr_session *s, const char *folder, int ranks, const tsr_run_options *o,
                            bool states, struct remote **out)
{
    struct remote *r = tsr__alloc(s, sizeof *r);
    if (!r)
        return TSR_NOMEM;
    *r = (struct remote){.session = s, .options = *o, .folder = folder, .states = states};
    r->work = (struct spawn){.n = ranks,
                             .stays = true,
                             .options = &r->options,
                             .work = remote_work,
                             .take = remote_take,
                             .data = r};
    r->sockets = tsr__alloc(s, (size_t)ranks * sizeof *r->sockets);
    r->results = tsr__alloc(s, (size_t)ranks * sizeof *r->results);
    *out = r;
    if (!r->sockets || !r->results)
        return TSR_NOMEM;
    memset(r->results, 0, (size_t)ranks * sizeof *r->results);
    if (!make_sockets(r)) {
        tsr__diag(s, DIAG_rank_start, NULL, "a higher limit of open files",
                  "the ranks' processes cannot be talked to: %s", strerror(errno));
        return r->failed = TSR_PEER;
    }
    tsr_status best, st = tsr__nursery_open(s, &r->work, &r->nursery);
    for (int i = 0; i < ranks; i++) {
        close(r->sockets[i][1]);
        r->sockets[i][1] = -1;
    }
    return st == TSR_OK ? all_answers(r, &best) : give_up(r);
}

void tsr__remote_close(struct remote *r)
{
    if (!r)
        return;
    if (r->nursery && r->failed == TSR_OK)
        tell_all(r, CLOSE);
    if (r->nursery)
        tsr__nursery_close(r->nursery);
    for (int i = 0; r->sockets && r->results && i < r->work.n; i++)
        for (int k = 0; k < 2; k++)
            if (r->sockets[i][k] >= 0)
                close(r->sockets[i][k]);
    for (int i = 0; r->results && i < r->work.n; i++)
        for (struct results *kept = &r->results[i]; kept->taken < kept->came; kept->taken++)
            close(kept->fds[kept->taken % RUN_FLIGHTS]);
    tsr__free(r->session, r->results, (size_t)r->work.n * sizeof *r->results);
    tsr__free(r->session, r->sockets, (size_t)r->work.n * sizeof *r->sockets);
    tsr__free(r->session, r, sizeof *r);
}
