// SPDX-License-Identifier: Apache-2.0
// job_children.c - the job of a partition whose ranks are children of this process that stay: each
// has the job of a launched rank (servant.c), and does what the notes of this process say
// (children.h).
//
// This process computes nothing. It keeps, for each child, a socket and the results that came
// early; the ranks' memory, their engine and their communication are the children's alone.
//
// What happens when a child dies: the others find out through the shared memory that they all
// communicate through (they look after each other there, and spawn.c tells it who is lost), or this
// process reads the end of the stream on its socket. Either way give_up ends all of them and
// gathers what they said. From then on every call of the job returns that status, and no call
// waits.
#include "runtime/children.h"
#include "runtime/job.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_MS 20 // between two looks at the children while an answer is waited for

// ---- answers -----------------------------------------------------------------------------------

// Ends all children and says what they said; later calls get the same status.
static tsr_status give_up(struct children *children)
{
    for (int i = 0; i < children->work.n; i++)
        shutdown(children->sockets[i][0], SHUT_RDWR); // those who wait for a note end
    // Waits for the children, kills those that do not end, and adds their findings to the session.
    // It frees the set, so it is done once.
    tsr_status st = tsr__child_set_close(children->child_set);
    children->child_set = NULL;
    // No child has an error to tell, but one of them did not answer.
    if (st == TSR_OK) {
        tsr__diag(children->session, DIAG_rank_failed, NULL, NULL,
                  "the ranks exited without an error message");
        st = TSR_PEER;
    }
    return children->failed = st;
}

// The next note of one child; *fd must be closed. Waits without a time limit: the children watch
// each other, and tsr__child_set_over is true as soon as one has ended or the job has failed. A
// signal only causes one more check.
static tsr_status next_note(struct children *children, int rank, struct note *note, int *fd)
{
    struct pollfd wait = {.fd = children->sockets[rank][0], .events = POLLIN};
    while (poll(&wait, 1, LOOK_MS) <= 0)
        if (tsr__child_set_over(children->child_set))
            return give_up(children);
    if (tsr__note_receive(wait.fd, note, fd))
        return TSR_OK;
    return give_up(children);
}

// A run is answered by the word that started it, with the results as a file.
static bool is_result(struct note note)
{
    return note.word == START || note.word == START_CUT;
}

// The answer of one child to a note that starts no run; results that come before it are kept.
static tsr_status answer_of(struct children *children, int rank, struct note *note)
{
    struct results *kept = &children->results[rank];
    for (;;) {
        int fd = -1;
        tsr_status st = next_note(children, rank, note, &fd);
        if (st != TSR_OK || !is_result(*note)) {
            if (fd >= 0)
                close(fd);
            return st;
        }
        // A child cannot have more results than runs were started, and those are at most RUN_SLOTS:
        // this one does not keep to the words.
        if (fd < 0 || kept->came - kept->taken == RUN_SLOTS)
            return give_up(children);
        kept->fds[kept->came++ % RUN_SLOTS] = fd;
    }
}

// What one child has of the next run, into a set (NULL: nowhere).
// Results that came early are first, in the order of the runs; only then is the socket read.
// Between two answers nothing but results can come, so the note's word need not be looked at.
static tsr_status take_result(struct children *children, int rank, tsr_tensors *to)
{
    struct results *kept = &children->results[rank];
    struct note note = {0};
    struct message message;
    int fd = -1;
    if (kept->taken < kept->came) {
        fd = kept->fds[kept->taken++ % RUN_SLOTS];
    } else {
        tsr_status st = next_note(children, rank, &note, &fd);
        if (st != TSR_OK)
            return st;
    }
    if (!tsr__message_open(fd, &message))
        return give_up(children);
    tsr_status st = TSR_OK;
    if (to)
        st = tsr__message_tensors(&message, to);
    tsr__message_close(&message);
    // The file was written whole before it was sent: what fails here is this process's memory.
    if (st != TSR_OK)
        return TSR_NOMEM;
    return TSR_OK;
}

// All answers to a note without more; *best: TSR_OK if one child says so.
// A state may be known to one child and unknown to the others (stages): one that has it is enough.
static tsr_status all_answers(struct children *children, tsr_status *best)
{
    *best = TSR_INVALID;
    for (int i = 0; i < children->work.n; i++) {
        struct note note = {0};
        tsr_status st = answer_of(children, i, &note);
        if (st != TSR_OK)
            return st;
        if (note.status == TSR_OK)
            *best = TSR_OK;
    }
    return TSR_OK;
}

// ---- notes -------------------------------------------------------------------------------------

// A note to a child that is gone cannot be sent: that is how a death is found between two calls.
static tsr_status tell_all(struct children *children, enum word word)
{
    struct note note = {(int32_t)word, TSR_OK};
    if (children->failed != TSR_OK)
        return children->failed;
    for (int i = 0; i < children->work.n; i++)
        if (!tsr__note_send(children->sockets[i][0], note, -1))
            return give_up(children);
    return TSR_OK;
}

// A child that refuses its inputs ends the job: mistakes in whole inputs are found here. States
// that the caller named are not in the manifest; then only the children know what a later run
// needs.
static tsr_status check_inputs(tsr_job *job, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    enum inputs_needed needed = NEED_ALL;
    if (job->runs_started > 0)
        needed = job->n_states > manifest->n_states ? NEED_NONE : NEED_ALL_BUT_STATES;
    return tsr__inputs_check(manifest, job->session, inputs, needed);
}

// Every child gets all inputs of the run in a separate file and takes its shards itself. This waits
// only for room in its socket: a child reads the note after its earlier runs.
static tsr_status children_start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    struct children *children = job->children;
    tsr_status st = tsr__job_sets_owned(job, inputs, form);
    if (st != TSR_OK)
        return st;
    if (children->failed != TSR_OK)
        return children->failed;
    int sets = form == SET_PER_RANK ? children->work.n : 1;
    for (int i = 0; i < sets; i++) {
        st = tsr__tensors_on_host(inputs[i]); // another process does not see this one's GPU memory
        if (st != TSR_OK)
            return st;
    }
    if (form == WHOLE_SET)
        st = check_inputs(job, inputs[0]);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < children->work.n; i++) {
        struct message message = tsr__message_new();
        bool cut = form == SET_PER_RANK;
        if (message.fd >= 0)
            tsr__message_put_tensors(&message, inputs[cut ? i : 0]);
        enum word word = cut ? START_CUT : START;
        if (!tsr__note_send_message(children->sockets[i][0], word, &message))
            return give_up(children);
    }
    job->runs_started++;
    return TSR_OK;
}

// The two names travel as texts, the input's first; servant.c reads them in that order.
static tsr_status tell_state(struct children *children, const char *past, const char *present)
{
    if (children->failed != TSR_OK)
        return children->failed;
    for (int i = 0; i < children->work.n; i++) {
        struct message message = tsr__message_new();
        if (message.fd >= 0) {
            tsr__message_put_text(&message, str_of(past));
            tsr__message_put_text(&message, str_of(present));
        }
        if (!tsr__note_send_message(children->sockets[i][0], KEEP, &message))
            return give_up(children);
    }
    return TSR_OK;
}

static tsr_status children_add_state(tsr_job *job, const char *past, const char *present)
{
    tsr_status best, st = tell_state(job->children, past, present);
    if (st != TSR_OK)
        return st;
    st = all_answers(job->children, &best);
    if (st != TSR_OK)
        return st;
    (void)tsr__ranks_keep(job, past, present); // no rank is here: only that it is no result
    return job->arena.failed ? TSR_NOMEM : best;
}

// For words whose answer is only that it was done. Results of runs that arrive meanwhile are kept.
static tsr_status tell_and_wait(struct children *children, enum word word)
{
    tsr_status best, st = tell_all(children, word);
    if (st != TSR_OK)
        return st;
    return all_answers(children, &best);
}

static tsr_status children_barrier(tsr_job *job)
{
    return tell_and_wait(job->children, BARRIER);
}

static tsr_status children_trace(tsr_job *job)
{
    return tell_and_wait(job->children, TRACE);
}

// ---- results -----------------------------------------------------------------------------------

// Takes what every child has of the next run into its set (sets NULL: nowhere).
static tsr_status take_results(struct children *children, tsr_tensors *const *sets)
{
    for (int i = 0; i < children->work.n; i++) {
        tsr_tensors *to = NULL;
        if (sets)
            to = sets[i];
        tsr_status st = take_result(children, i, to);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// What all ranks have of a run, brought together as the manifest says.
// Each child sends all that its rank has, also pieces that several have; the join takes each from
// the rank that the manifest names.
static tsr_status take_joined(tsr_job *job, tsr_tensors *outputs)
{
    struct arena arena;
    struct handover handover = tsr__job_handover(job);
    tsr_tensors **sets = NULL;
    tsr__arena_init(&arena, job->session);
    tsr_status st = tsr__job_sets_new(job, &arena, &sets);
    if (st == TSR_OK)
        st = take_results(job->children, sets);
    if (st == TSR_OK)
        st = tsr__hand_join(&handover, sets, outputs);
    tsr__job_sets_free(job, sets);
    tsr__arena_free(&arena);
    return st;
}

// Counted before anything can fail: a run that was lost is collected too.
static tsr_status children_finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    job->runs_collected++;
    if (job->children->failed != TSR_OK)
        return job->children->failed;
    if (form == SET_PER_RANK)
        return take_results(job->children, outputs);
    if (!outputs[0])
        return take_results(job->children, NULL);
    return take_joined(job, outputs[0]);
}

// ---- opening and closing -----------------------------------------------------------------------

// Packets keep notes apart: one send is one receive. All ends are -1 first, so that close_sockets
// can tell which were made.
static bool make_sockets(struct children *children)
{
    for (int i = 0; i < children->work.n; i++)
        children->sockets[i][0] = children->sockets[i][1] = -1;
    for (int i = 0; i < children->work.n; i++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, children->sockets[i]) != 0)
            return false;
    return true;
}

static tsr_status nothing_left_to_take(struct spawn *spawn, tsr_session *session, int rank,
                                       struct message *in)
{
    (void)spawn, (void)session, (void)rank, (void)in;
    return TSR_OK; // everything was answered in notes
}

// What both sides have; freed by children_close. Sockets are made before the fork, so that both
// have them.
static tsr_status children_new(tsr_job *job, const char *folder, bool states)
{
    tsr_session *session = job->session;
    int ranks = (int)job->bundle.manifest.n_ranks;
    struct children *children = tsr__alloc(session, sizeof *children);
    if (!children)
        return TSR_NOMEM;
    *children = (struct children){
        .session = session, .options = job->options, .folder = folder, .states = states};
    children->work = (struct spawn){.n = ranks,
                                    .stays = true,
                                    .options = &children->options,
                                    .work = tsr__servant_work,
                                    .take = nothing_left_to_take,
                                    .data = children};
    children->sockets = tsr__alloc(session, (size_t)ranks * sizeof *children->sockets);
    children->results = tsr__alloc(session, (size_t)ranks * sizeof *children->results);
    job->children = children;
    if (!children->sockets || !children->results)
        return TSR_NOMEM;
    memset(children->results, 0, (size_t)ranks * sizeof *children->results);
    if (make_sockets(children))
        return TSR_OK;
    tsr__diag(session, DIAG_rank_start, NULL, "raise the limit of open files (ulimit -n)",
              "cannot open a channel to the processes of the ranks: %s", strerror(errno));
    return children->failed = TSR_PEER;
}

// Once the children are there, this process closes their ends of the sockets, so that it reads the
// end of the stream when one is gone.
static tsr_status fork_children(struct children *children)
{
    tsr_status best,
        st = tsr__child_set_open(children->session, &children->work, &children->child_set);
    for (int i = 0; i < children->work.n; i++) {
        close(children->sockets[i][1]);
        children->sockets[i][1] = -1;
    }
    // Some may have been started: give_up ends them, and says why it could not be done.
    if (st != TSR_OK)
        return give_up(children);
    // Each child says READY when it has loaded and met the others.
    return all_answers(children, &best);
}

static tsr_status children_open(tsr_job *job, const char *folder, bool states)
{
    tsr_status st = tsr__job_open_folder(job, folder);
    if (st != TSR_OK)
        return st;
    st = tsr__engine(job->session, &job->engine); // the children have it then
    if (st != TSR_OK)
        return st;
    st = tsr__run_may_fork(job->session, &job->bundle.manifest, &job->options);
    if (st != TSR_OK)
        return st;
    if (job->profiles)
        job->options.work = job->profiles->path; // theirs go with this one
    // struct children outlives this call, the caller's text need not.
    const char *name = tsr__arena_str(&job->arena, str_of(folder)).p;
    if (!name)
        return TSR_NOMEM;
    st = children_new(job, name, states);
    if (st != TSR_OK)
        return st;
    st = fork_children(job->children);
    if (st != TSR_OK || !states)
        return st;
    return tsr__ranks_keep_named(
        job); // the children keep them, this process expects no such results
}

static void close_sockets(const struct children *children)
{
    for (int i = 0; i < children->work.n; i++)
        for (int k = 0; k < 2; k++)
            if (children->sockets[i][k] >= 0)
                close(children->sockets[i][k]);
}

static void drop_results(const struct children *children)
{
    for (int i = 0; i < children->work.n; i++)
        for (struct results *kept = &children->results[i]; kept->taken < kept->came; kept->taken++)
            close(kept->fds[kept->taken % RUN_SLOTS]);
}

static void children_close(tsr_job *job)
{
    struct children *children = job->children;
    if (!children)
        return;
    if (children->child_set) {
        // A child ends by itself after this word, or when it reads the end of the stream; closing
        // the set waits for that.
        tell_all(children, CLOSE);
        if (children->child_set) // unless that gave up
            tsr__child_set_close(children->child_set);
    }
    if (children->sockets && children->results) { // else neither is set
        close_sockets(children);
        drop_results(children);
    }
    size_t ranks = (size_t)children->work.n;
    tsr__free(children->session, children->results, ranks * sizeof *children->results);
    tsr__free(children->session, children->sockets, ranks * sizeof *children->sockets);
    tsr__free(children->session, children, sizeof *children);
}

// give_up has told why, when it was found.
static tsr_status children_verdict(tsr_job *job)
{
    return job->children->failed;
}

const struct job_kind tsr__job_children = {
    .open = children_open,
    .start = children_start,
    .finish = children_finish,
    .add_state = children_add_state,
    .barrier = children_barrier,
    .trace = children_trace,
    .verdict = children_verdict,
    .close = children_close,
};
