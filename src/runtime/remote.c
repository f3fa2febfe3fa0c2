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
    int fds[RUN_SLOTS];
    uint64_t came, taken;
};

struct remote {
    tsr_session *session;
    struct spawn work;
    tsr_run_options options;
    const char *folder;
    bool states;
    struct child_set *child_set;
    int (*sockets)[2];       // of each child: this process's end, the child's
    struct results *results; // of each child: those that came before they were asked for
    tsr_status failed;
};

// ---- notes -------------------------------------------------------------------------------------

static bool send_note(int to, struct note note, int fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec io = {&note, sizeof note};
    struct msghdr msghdr = {.msg_iov = &io, .msg_iovlen = 1};
    if (fd >= 0) {
        msghdr.msg_control = space;
        msghdr.msg_controllen = sizeof space;
        struct cmsghdr *cmsghdr = CMSG_FIRSTHDR(&msghdr);
        cmsghdr->cmsg_level = SOL_SOCKET;
        cmsghdr->cmsg_type = SCM_RIGHTS;
        cmsghdr->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsghdr), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(to, &msghdr, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof note;
}

// False: the other side is gone. *fd is -1 where nothing came along.
static bool receive_note(int from, struct note *note, int *fd)
{
    _Alignas(struct cmsghdr) char space[CMSG_SPACE(sizeof *fd)];
    struct iovec io = {note, sizeof *note};
    struct msghdr msghdr = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t n;
    *fd = -1;
    do
        n = recvmsg(from, &msghdr, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *cmsghdr = n > 0 ? CMSG_FIRSTHDR(&msghdr) : NULL;
    if (cmsghdr && cmsghdr->cmsg_type == SCM_RIGHTS && cmsghdr->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(cmsghdr), sizeof *fd);
    return n == (ssize_t)sizeof *note;
}

static bool parcel_sent(struct message *message, int to, struct note note)
{
    bool ok = tsr__message_flush(message) && send_note(to, note, message->fd);
    if (message->fd >= 0)
        close(message->fd);
    tsr__message_drop(message);
    return ok;
}

// ---- the child ---------------------------------------------------------------------------------

struct servant {
    tsr_session *session;
    tsr_job *job;
    int socket, rank;
};

// Hands the results of this rank to the parent.
static tsr_status send_results(struct servant *servant, enum word word)
{
    tsr_tensors *out = NULL;
    tsr_status st = tsr_tensors_new(servant->session, &out);
    if (st == TSR_OK)
        st = tsr_job_wait_cut(servant->job, &out);
    if (st == TSR_OK) {
        struct message message = tsr__message_new();
        if (message.fd >= 0)
            tsr__message_put_tensors(&message, out);
        if (!parcel_sent(&message, servant->socket, (struct note){(int32_t)word, TSR_OK}))
            st = TSR_NOMEM;
    }
    tsr_tensors_free(out);
    return st;
}

// One run of this rank, from the note that starts it to its results.
static tsr_status serve_run(struct servant *servant, enum word word, int fd)
{
    struct message message;
    tsr_tensors *in = NULL;
    if (!tsr__message_open(fd, &message))
        return TSR_NOMEM;
    tsr_status st = tsr_tensors_new(servant->session, &in);
    if (st == TSR_OK)
        st = tsr__message_tensors(&message, in);
    tsr__message_close(&message);
    if (st == TSR_OK && word == START)
        st = tsr__job_start_own(servant->job, in);
    else if (st == TSR_OK)
        st = tsr_job_start_cut(servant->job, (const tsr_tensors *const *)&in);
    if (st == TSR_OK) {
        tsr_finding_clear(servant->session); // the parent has said it
        st = send_results(servant, word);
    }
    tsr_tensors_free(in);
    return st;
}

static tsr_status serve_keep(struct servant *servant, int fd)
{
    struct message message;
    if (!tsr__message_open(fd, &message))
        return TSR_NOMEM;
    struct str past = tsr__message_text(&message), present = tsr__message_text(&message);
    struct arena arena;
    tsr__arena_init(&arena, servant->session);
    const char *from = tsr__arena_str(&arena, past).p, *to = tsr__arena_str(&arena, present).p;
    tsr_status st = TSR_NOMEM;
    if (from && to)
        st = tsr__job_keep(servant->job, from, to) ? TSR_OK : TSR_INVALID;
    tsr__arena_free(&arena);
    tsr__message_close(&message);
    return st;
}

// One note. Whatever fails ends the child, but for a state that nobody has.
static tsr_status serve(struct servant *servant, struct note note, int fd)
{
    enum word word = (enum word)note.word;
    if (word == START || word == START_CUT)
        return serve_run(servant, word, fd);
    tsr_status st = TSR_BUG;
    if (word == KEEP)
        st = serve_keep(servant, fd);
    else if (word == BARRIER)
        st = tsr_job_barrier(servant->job);
    else if (word == TRACE)
        st = tsr_job_trace(servant->job);
    if (st == TSR_OK || (word == KEEP && st == TSR_INVALID)) {
        send_note(servant->socket, (struct note){note.word, (int32_t)st}, -1);
        return TSR_OK;
    }
    return st;
}

static tsr_status remote_work(struct spawn *spawn, tsr_session *session, int rank,
                              struct message *out)
{
    struct remote *remote = spawn->data;
    struct servant v = {.session = session, .socket = remote->sockets[rank][1], .rank = rank};
    tsr_run_options options = remote->options;
    struct note note = {READY, TSR_OK};
    int fd;
    (void)out;
    for (int i = 0; i < spawn->n; i++) {
        close(remote->sockets[i][0]);
        if (i != rank)
            close(remote->sockets[i][1]);
    }
    options.check_files = false; // done before
    tsr_status st = tsr__job_open(session, remote->folder, &options, remote->states, &v.job);
    if (st == TSR_OK)
        send_note(v.socket, note, -1);
    while (st == TSR_OK && receive_note(v.socket, &note, &fd) && note.word != CLOSE)
        st = serve(&v, note, fd);
    tsr_job_close(v.job);
    return st;
}

static tsr_status remote_take(struct spawn *spawn, tsr_session *session, int rank,
                              struct message *in)
{
    (void)spawn, (void)session, (void)rank, (void)in;
    return TSR_OK; // everything was answered
}

// ---- this process ------------------------------------------------------------------------------

// Ends all children and says what they said; later calls get the same status.
static tsr_status give_up(struct remote *remote)
{
    for (int i = 0; i < remote->work.n; i++)
        shutdown(remote->sockets[i][0], SHUT_RDWR); // those who wait for a note end
    tsr_status st = tsr__child_set_close(remote->child_set);
    remote->child_set = NULL;
    if (st == TSR_OK) {
        tsr__diag(remote->session, DIAG_rank_failed, NULL, NULL, "the ranks ended by themselves");
        st = TSR_PEER;
    }
    return remote->failed = st;
}

// The next note of one child; *fd is to be closed.
static tsr_status next_note(struct remote *remote, int rank, struct note *note, int *fd)
{
    struct pollfd wait = {.fd = remote->sockets[rank][0], .events = POLLIN};
    while (poll(&wait, 1, LOOK_MS) <= 0)
        if (tsr__child_set_over(remote->child_set))
            return give_up(remote);
    if (receive_note(wait.fd, note, fd))
        return TSR_OK;
    return give_up(remote);
}

static bool is_result(struct note note)
{
    return note.word == START || note.word == START_CUT;
}

// The answer of one child to a note that starts no run; results that come before it are kept.
static tsr_status answer_of(struct remote *remote, int rank, struct note *note)
{
    struct results *kept = &remote->results[rank];
    for (;;) {
        int fd = -1;
        tsr_status st = next_note(remote, rank, note, &fd);
        if (st != TSR_OK || !is_result(*note)) {
            if (fd >= 0)
                close(fd);
            return st;
        }
        if (fd < 0 || kept->came - kept->taken == RUN_SLOTS)
            return give_up(remote);
        kept->fds[kept->came++ % RUN_SLOTS] = fd;
    }
}

// What one child has of the next run, into a set (NULL: nowhere).
static tsr_status take_result(struct remote *remote, int rank, tsr_tensors *to)
{
    struct results *kept = &remote->results[rank];
    struct note note = {0};
    struct message message;
    int fd = -1;
    tsr_status st = TSR_OK;
    if (kept->taken < kept->came)
        fd = kept->fds[kept->taken++ % RUN_SLOTS];
    else
        st = next_note(remote, rank, &note, &fd);
    if (st != TSR_OK)
        return st;
    if (!tsr__message_open(fd, &message))
        return give_up(remote);
    st = to ? tsr__message_tensors(&message, to) : TSR_OK;
    tsr__message_close(&message);
    if (st != TSR_OK)
        return TSR_NOMEM;
    return TSR_OK;
}

static tsr_status tell_all(struct remote *remote, enum word word)
{
    for (int i = 0; i < remote->work.n && remote->failed == TSR_OK; i++)
        if (!send_note(remote->sockets[i][0], (struct note){(int32_t)word, TSR_OK}, -1))
            give_up(remote);
    return remote->failed;
}

// All answers to a note without more; *best: TSR_OK if one child says so.
static tsr_status all_answers(struct remote *remote, tsr_status *best)
{
    *best = TSR_INVALID;
    for (int i = 0; i < remote->work.n; i++) {
        struct note note = {0};
        tsr_status st = answer_of(remote, i, &note);
        if (st != TSR_OK)
            return st;
        if (note.status == TSR_OK)
            *best = TSR_OK;
    }
    return TSR_OK;
}

tsr_status tsr__remote_start(struct remote *remote, const tsr_tensors *const *inputs, bool each)
{
    enum word word = each ? START_CUT : START;
    for (int i = 0; i < remote->work.n && remote->failed == TSR_OK; i++) {
        struct message message = tsr__message_new();
        if (message.fd >= 0)
            tsr__message_put_tensors(&message, inputs[each ? i : 0]);
        if (!parcel_sent(&message, remote->sockets[i][0], (struct note){(int32_t)word, TSR_OK}))
            give_up(remote);
    }
    return remote->failed;
}

// What all ranks have of a run, brought together as the manifest says.
static tsr_status take_joined(struct remote *remote, const struct handover *handover,
                              tsr_tensors *outputs)
{
    struct arena arena;
    tsr__arena_init(&arena, remote->session);
    tsr_tensors **sets = ARENA_ARRAY(&arena, tsr_tensors *, (size_t)remote->work.n);
    tsr_status st = sets ? TSR_OK : TSR_NOMEM;
    for (int i = 0; i < remote->work.n && st == TSR_OK; i++) {
        st = tsr_tensors_new(remote->session, &sets[i]);
        if (st == TSR_OK)
            st = take_result(remote, i, outputs ? sets[i] : NULL);
    }
    if (st == TSR_OK && outputs)
        st = tsr__hand_join(handover, sets, outputs);
    for (int i = 0; sets && i < remote->work.n; i++)
        tsr_tensors_free(sets[i]);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__remote_wait(struct remote *remote, const struct handover *handover,
                            tsr_tensors *const *outputs)
{
    if (remote->failed != TSR_OK)
        return remote->failed;
    if (handover)
        return take_joined(remote, handover, outputs[0]);
    for (int i = 0; i < remote->work.n; i++) {
        tsr_status st = take_result(remote, i, outputs[i]);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__remote_keep(struct remote *remote, const char *past, const char *present)
{
    for (int i = 0; i < remote->work.n && remote->failed == TSR_OK; i++) {
        struct message message = tsr__message_new();
        if (message.fd >= 0) {
            tsr__message_put_text(&message, str_of(past));
            tsr__message_put_text(&message, str_of(present));
        }
        if (!parcel_sent(&message, remote->sockets[i][0], (struct note){KEEP, TSR_OK}))
            give_up(remote);
    }
    tsr_status best, st = remote->failed == TSR_OK ? all_answers(remote, &best) : remote->failed;
    if (st != TSR_OK)
        return st;
    return best;
}

tsr_status tsr__remote_barrier(struct remote *remote)
{
    tsr_status best, st = tell_all(remote, BARRIER);
    if (st != TSR_OK)
        return st;
    return all_answers(remote, &best);
}

tsr_status tsr__remote_trace(struct remote *remote)
{
    tsr_status best, st = tell_all(remote, TRACE);
    if (st != TSR_OK)
        return st;
    return all_answers(remote, &best);
}

static bool make_sockets(struct remote *remote)
{
    for (int i = 0; i < remote->work.n; i++)
        remote->sockets[i][0] = remote->sockets[i][1] = -1;
    for (int i = 0; i < remote->work.n; i++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, remote->sockets[i]) != 0)
            return false;
    return true;
}

// Sockets are made before the fork, so that both sides have them; then this process closes the
// children's ends, so that it reads the end of the stream when a child is gone.
tsr_status tsr__remote_open(tsr_session *session, const char *folder, int ranks,
                            const tsr_run_options *options, bool states, struct remote **out)
{
    struct remote *remote = tsr__alloc(session, sizeof *remote);
    if (!remote)
        return TSR_NOMEM;
    *remote = (struct remote){
        .session = session, .options = *options, .folder = folder, .states = states};
    remote->work = (struct spawn){.n = ranks,
                                  .stays = true,
                                  .options = &remote->options,
                                  .work = remote_work,
                                  .take = remote_take,
                                  .data = remote};
    remote->sockets = tsr__alloc(session, (size_t)ranks * sizeof *remote->sockets);
    remote->results = tsr__alloc(session, (size_t)ranks * sizeof *remote->results);
    *out = remote;
    if (!remote->sockets || !remote->results)
        return TSR_NOMEM;
    memset(remote->results, 0, (size_t)ranks * sizeof *remote->results);
    if (!make_sockets(remote)) {
        tsr__diag(session, DIAG_rank_start, NULL, "a higher limit of open files",
                  "the ranks' processes cannot be talked to: %s", strerror(errno));
        return remote->failed = TSR_PEER;
    }
    tsr_status best, st = tsr__child_set_open(session, &remote->work, &remote->child_set);
    for (int i = 0; i < ranks; i++) {
        close(remote->sockets[i][1]);
        remote->sockets[i][1] = -1;
    }
    if (st != TSR_OK)
        return give_up(remote);
    return all_answers(remote, &best);
}

void tsr__remote_close(struct remote *remote)
{
    if (!remote)
        return;
    if (remote->child_set && remote->failed == TSR_OK)
        tell_all(remote, CLOSE);
    if (remote->child_set)
        tsr__child_set_close(remote->child_set);
    for (int i = 0; remote->sockets && remote->results && i < remote->work.n; i++)
        for (int k = 0; k < 2; k++)
            if (remote->sockets[i][k] >= 0)
                close(remote->sockets[i][k]);
    for (int i = 0; remote->results && i < remote->work.n; i++)
        for (struct results *kept = &remote->results[i]; kept->taken < kept->came; kept->taken++)
            close(kept->fds[kept->taken % RUN_SLOTS]);
    tsr__free(remote->session, remote->results, (size_t)remote->work.n * sizeof *remote->results);
    tsr__free(remote->session, remote->sockets, (size_t)remote->work.n * sizeof *remote->sockets);
    tsr__free(remote->session, remote, sizeof *remote);
}
