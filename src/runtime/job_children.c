// SPDX-License-Identifier: Apache-2.0
// job_children.c - the job of a partition whose ranks are persistent child processes: each child
// has the job of a launched rank (child_loop.c) and follows the notes of this process (children.h).
//
// This process computes nothing. For each child it has a socket and the results that arrived early.
// The memory, engine and communication of a rank are in its child.
//
// If a child dies, the other children detect it through the shared memory of the transport, or this
// process reads the end of the stream on its socket. In both cases give_up ends all children and
// collects their diagnostics. From then on every call of the job returns that status without
// waiting.
#include "runtime/children.h"
#include "runtime/job.h"
#include "runtime/remote.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define RELAY_GRACE_S 6.0 // relays wait for the diagnostics of their workers

#define LOOK_MS 20 // between two checks of the children while waiting for an answer

// ---- answers -----------------------------------------------------------------------------------

// Ends all children and reports their diagnostics. Later calls return the same status.
static tsr_status give_up(struct children *children)
{
    for (int i = 0; i < children->ranks; i++)
        shutdown(children->sockets[i][0], SHUT_RDWR); // children that wait for a note exit
    // Waits for the children, kills those that do not exit, and adds their diagnostics to the
    // session. Frees the set, so it is called once.
    tsr_status st = tsr__child_set_close(children->child_set);
    children->child_set = NULL;
    // No child has reported an error, but one of them did not answer.
    if (st == TSR_OK) {
        tsr__diag(children->session, DIAG_rank_failed, NULL, NULL,
                  "the ranks exited without an error message");
        st = TSR_PEER;
    }
    return children->failed = st;
}

// Waits for the next note of a child, which may come with a file. Gives up if a child has ended,
// has sent no heartbeat for too long (for example after SIGSTOP), or the job has failed.
static tsr_status next_note(struct children *children, int rank, struct note *note, int *fd)
{
    struct pollfd wait = {.fd = children->sockets[rank][0], .events = POLLIN};
    while (poll(&wait, 1, LOOK_MS) <= 0) {
        if (tsr__child_set_over(children->child_set))
            return give_up(children);
        tsr__job_hosts_progress(children);
    }
    if (tsr__note_receive(wait.fd, note, fd))
        return TSR_OK;
    return give_up(children);
}

// True if a note is the answer to a run: it has the word that started the run. The results come
// with it, as a file.
static bool is_result(struct note note)
{
    return note.word == START || note.word == START_CUT;
}

// Waits for the answer of one child to a note that starts no run, and for the file that comes with
// it. Results that arrive first are kept.
static tsr_status answer_with_file(struct children *children, int rank, struct note *note, int *fd)
{
    struct results *kept = &children->results[rank];
    for (;;) {
        *fd = -1;
        tsr_status st = next_note(children, rank, note, fd);
        if (st != TSR_OK || !is_result(*note))
            return st;
        // At most RUN_SLOTS runs are pending, so a child that sends more results breaks the
        // protocol.
        if (*fd < 0 || kept->came - kept->taken == RUN_SLOTS)
            return give_up(children);
        kept->fds[kept->came++ % RUN_SLOTS] = *fd;
    }
}

static tsr_status answer_of(struct children *children, int rank, struct note *note)
{
    int fd;
    tsr_status st = answer_with_file(children, rank, note, &fd);
    if (fd >= 0)
        close(fd);
    return st;
}

// Moves the results of the next run of one child into a set (NULL: drops them). Results that
// arrived early come first, in the order of the runs; then the socket is read. No other note of
// this process is unanswered then, so only results can arrive and the word is not checked.
static tsr_status take_result(struct children *children, int rank, tsr_tensors *to)
{
    struct results *kept = &children->results[rank];
    struct note note = {0};
    struct message message;
    int fd = -1;
    if (kept->taken < kept->came) {
        fd = kept->fds[kept->taken++ % RUN_SLOTS];
    } else {
        TRY(next_note(children, rank, &note, &fd));
    }
    if (tsr__message_open(fd, &message) != TSR_OK)
        return give_up(children);
    tsr_status st = TSR_OK;
    if (to)
        st = tsr__message_tensors(&message, to);
    tsr__message_close(&message);
    // The file was complete before it was sent, so a failure here means that this process lacks
    // memory.
    if (st != TSR_OK)
        return TSR_NOMEM;
    return TSR_OK;
}

// Waits for the answers of all children to a note. *best is TSR_OK if one child succeeded, else
// TSR_INVALID: with stages, a state may be known to one child only.
static tsr_status all_answers(struct children *children, tsr_status *best)
{
    *best = TSR_INVALID;
    for (int i = 0; i < children->ranks; i++) {
        struct note note = {0};
        TRY(answer_of(children, i, &note));
        if (note.status == TSR_OK)
            *best = TSR_OK;
    }
    return TSR_OK;
}

// ---- notes -------------------------------------------------------------------------------------

// Sends a note to all children. Sending fails if a child has died; so a death between two calls is
// found.
static tsr_status send_all(struct children *children, enum word word)
{
    struct note note = {(int32_t)word, TSR_OK};
    if (children->failed != TSR_OK)
        return children->failed;
    for (int i = 0; i < children->ranks; i++)
        if (!tsr__note_send(children->sockets[i][0], note))
            return give_up(children);
    return TSR_OK;
}

// Checks full inputs, because a child that refuses its inputs ends the job. States that the caller
// named are not in the manifest, so only the children know which inputs a later run needs.
static tsr_status check_inputs(tsr_job *job, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    enum inputs_needed needed = NEED_ALL;
    if (tsr__tensors_get(inputs, RUN_CACHE_SET))
        needed = NEED_ALL_BUT_STATES;
    else if (job->runs_started > 0)
        needed = job->n_states > manifest->n_states ? NEED_NONE : NEED_ALL_BUT_STATES;
    return tsr__inputs_check(manifest, job->session, inputs, needed);
}

// Sends inputs to the children [from, to). They share the file. Ranks on other hosts come first,
// because their notes travel longer.
static bool send_inputs(const struct children *children, int from, int to, enum word word,
                        const tsr_tensors *inputs)
{
    struct note note = {(int32_t)word, TSR_OK};
    struct message message = tsr__message_new();
    tsr__message_put_tensors(&message, inputs);
    bool sent = tsr__message_flush(&message);
    for (int i = to; sent && i-- > from;)
        sent = tsr__packet_send(children->sockets[i][0], &note, sizeof note, message.fd);
    if (message.fd >= 0)
        close(message.fd);
    tsr__message_drop(&message);
    return sent;
}

// Starts a run. With full inputs, every child gets all of them and takes its shards itself; with a
// set per rank, it gets its own set. This waits only while the socket is full: a child reads the
// note after its earlier runs.
static tsr_status children_start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    struct children *children = job->children;
    TRY(tsr__job_sets_owned(job, inputs, form));
    if (children->failed != TSR_OK)
        return children->failed;
    int sets = form == SET_PER_RANK ? children->ranks : 1;
    for (int i = 0; i < sets; i++) // other processes cannot read this process's GPU memory
        TRY(tsr__tensors_on_host(inputs[i]));
    if (form == FULL_SET)
        TRY(check_inputs(job, inputs[0]));
    bool sent = form == SET_PER_RANK || send_inputs(children, 0, children->ranks, START, inputs[0]);
    for (int i = children->ranks; form == SET_PER_RANK && sent && i-- > 0;)
        sent = send_inputs(children, i, i + 1, START_CUT, inputs[i]);
    if (!sent)
        return give_up(children);
    job->runs_started++;
    return TSR_OK;
}

// Sends the two names as texts, the input first; child_loop.c reads them in that order.
static tsr_status send_state(struct children *children, const char *past, const char *present)
{
    if (children->failed != TSR_OK)
        return children->failed;
    for (int i = 0; i < children->ranks; i++) {
        struct message message = tsr__message_new();
        tsr__message_put_text(&message, str_of(past));
        tsr__message_put_text(&message, str_of(present));
        if (!tsr__note_send_message(children->sockets[i][0], (struct note){KEEP, TSR_OK}, &message))
            return give_up(children);
    }
    return TSR_OK;
}

static tsr_status children_add_state(tsr_job *job, const char *past, const char *present)
{
    tsr_status best;
    TRY(send_state(job->children, past, present));
    TRY(all_answers(job->children, &best));
    // This process has no ranks: the call only records that the output is not a result.
    (void)tsr__ranks_keep(job, past, present, false);
    return job->arena.failed ? TSR_NOMEM : best;
}

// Sends a note that is answered with a status only. Results of runs that arrive meanwhile are kept.
static tsr_status send_and_wait(struct children *children, enum word word)
{
    tsr_status best;
    TRY(send_all(children, word));
    return all_answers(children, &best);
}

static tsr_status children_barrier(tsr_job *job)
{
    return send_and_wait(job->children, BARRIER);
}

static tsr_status children_trace(tsr_job *job)
{
    return send_and_wait(job->children, TRACE);
}

// Reads the answer of one child to USE.
static tsr_status take_use(struct children *children, int rank, struct rank_use *use)
{
    struct note note = {0};
    struct message message;
    int fd;
    TRY(answer_with_file(children, rank, &note, &fd));
    if (tsr__message_open(fd, &message) != TSR_OK)
        return give_up(children);
    const void *bytes = tsr__message_get(&message, sizeof *use);
    if (bytes && use)
        memcpy(use, bytes, sizeof *use);
    tsr__message_close(&message);
    return bytes ? TSR_OK : give_up(children);
}

tsr_status tsr__children_use(tsr_job *job, struct rank_use *uses)
{
    struct children *children = job->children;
    TRY(send_all(children, USE));
    for (int i = 0; i < children->ranks; i++)
        TRY(take_use(children, i, uses ? &uses[i] : NULL));
    return TSR_OK;
}

// ---- results -----------------------------------------------------------------------------------

// Moves the results of the next run of every child into its set (sets NULL: drops them).
static tsr_status take_results(tsr_job *job, void *data, tsr_tensors *const *sets)
{
    (void)data;
    for (int i = 0; i < job->children->ranks; i++)
        TRY(take_result(job->children, i, sets ? sets[i] : NULL));
    return TSR_OK;
}

// Collects a run. The run is counted first: a run that is lost counts as collected, too.
static tsr_status children_finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    job->runs_collected++;
    if (job->children->failed != TSR_OK)
        return job->children->failed;
    if (form == SET_PER_RANK)
        return take_results(job, NULL, outputs);
    if (!outputs[0])
        return take_results(job, NULL, NULL);
    return tsr__hand_collect(job, take_results, NULL, outputs[0]);
}

// ---- opening and closing -----------------------------------------------------------------------

// Creates the sockets. SOCK_SEQPACKET keeps notes separate: one send is one receive. All
// descriptors are -1 first, so that close_sockets knows which were created.
static bool make_sockets(const struct children *children)
{
    for (int i = 0; i < children->ranks; i++)
        children->sockets[i][0] = children->sockets[i][1] = -1;
    for (int i = 0; i < children->ranks; i++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, children->sockets[i]) != 0)
            return false;
    return true;
}

static tsr_status take_nothing(struct spawn *spawn, tsr_session *session, int rank,
                               struct message *in)
{
    (void)spawn, (void)session, (void)rank, (void)in;
    return TSR_OK; // all answers were sent as notes
}

// Creates the state that parent and children share. The sockets are created before the fork, so
// that both sides have them.
static tsr_status children_new(tsr_job *job, const char *folder, bool states)
{
    tsr_session *session = job->session;
    int ranks = (int)job->bundle.manifest.n_ranks;
    struct children *children = ARENA_NEW(&job->arena, struct children);
    struct results *results = ARENA_ARRAY(&job->arena, struct results, (size_t)ranks);
    if (job->arena.failed)
        return TSR_NOMEM;
    *children = (struct children){.session = session,
                                  .options = job->options,
                                  .folder = folder,
                                  .states = states,
                                  .ranks = ranks,
                                  .here = ranks,
                                  .results = results};
    if (tsr__run_in_workers(&job->options))
        TRY(tsr__job_hosts_open(job, children));
    TRY(tsr__children_sockets(children, &job->arena));
    job->children = children;
    return TSR_OK;
}

tsr_status tsr__children_sockets(struct children *children, struct arena *arena)
{
    children->sockets = (int(*)[2])ARENA_ARRAY(arena, int, 2 * (size_t)children->ranks);
    if (!children->sockets)
        return TSR_NOMEM;
    if (make_sockets(children))
        return TSR_OK;
    tsr__diag(children->session, DIAG_rank_start, NULL, "raise the limit of open files (ulimit -n)",
              "cannot open a channel to the processes of the ranks: %s", strerror(errno));
    tsr__children_close_sockets(children);
    return TSR_PEER;
}

// Writes a hint for failed ranks: "see the messages of that rank; ranks 1 to 3 are in the worker on
// b". Lists that are too long end early.
static void describe_hosts(const struct job_hosts *hosts, char *out, size_t n)
{
    size_t used = (size_t)snprintf(out, n, "see the messages of that rank");
    for (int i = 1; i < hosts->n && used < n; i++) {
        const struct job_host *host = &hosts->at[i];
        int last = host->first + host->ranks - 1;
        char text[400];
        if (host->ranks == 1)
            snprintf(text, sizeof text, "; rank %d is in the worker on %s", last, host->name);
        else
            snprintf(text, sizeof text, "; ranks %d to %d are in the worker on %s", host->first,
                     last, host->name);
        if (used + strlen(text) >= n)
            return;
        used += (size_t)snprintf(out + used, n - used, "%s", text);
    }
}

// Forks the children and closes their ends of the sockets, so that this process reads the end of
// the stream when a child exits.
tsr_status tsr__children_fork(struct children *children)
{
    int relays = children->hosts ? children->hosts->n - 1 : 0;
    children->work = (struct spawn){.n = children->here + relays,
                                    .stays = true,
                                    .apart = children->apart,
                                    .pinned = children->here,
                                    .first = children->first,
                                    .grace_s = relays ? RELAY_GRACE_S : 0,
                                    .options = &children->options,
                                    .work = tsr__child_loop_work,
                                    .take = take_nothing,
                                    .data = children};
    if (relays)
        describe_hosts(children->hosts, children->work.where, sizeof children->work.where);
    tsr_status st = tsr__child_set_open(children->session, &children->work, &children->child_set);
    for (int i = 0; i < children->ranks; i++) {
        close(children->sockets[i][1]);
        children->sockets[i][1] = -1;
    }
    return st;
}

// Sends OPEN to all ranks once the workers have their files.
static tsr_status open_apart(struct children *children)
{
    struct note note = {OPEN, TSR_OK};
    for (int i = 1; i < children->hosts->n; i++)
        TRY(answer_of(children, children->hosts->at[i].first, &note));
    tsr__job_hosts_progress(children);
    children->options.port = tsr_free_port();
    for (int i = 0; i < children->ranks; i++) {
        struct message message = tsr__message_new();
        tsr__job_hosts_put_place(children, &message);
        if (!tsr__note_send_message(children->sockets[i][0], (struct note){OPEN, TSR_OK}, &message))
            return give_up(children);
    }
    return TSR_OK;
}

// Waits until each child has sent READY: it has loaded its model and synchronized with the others.
static tsr_status wait_until_ready(struct children *children, double began_s)
{
    struct job_host *host = children->hosts ? children->hosts->at : NULL;
    for (int i = 0; i < children->ranks; i++) {
        struct note note = {0};
        TRY(answer_of(children, i, &note));
        if (!host || i < host->first + host->ranks - 1)
            continue;
        host->ready_s = tsr__now_s() - began_s;
        host++;
    }
    return TSR_OK;
}

static tsr_status start_children(struct children *children)
{
    double began_s = tsr__now_s();
    // Some children may have been started: give_up ends them and reports the cause.
    if (tsr__children_fork(children) != TSR_OK)
        return children->child_set ? give_up(children) : (children->failed = TSR_NOMEM);
    if (children->apart)
        TRY(open_apart(children));
    return wait_until_ready(children, began_s);
}

static tsr_status children_open(tsr_job *job, const char *folder, bool states)
{
    TRY(tsr__job_open_folder(job, folder));
    TRY(tsr__engine(job->session, &job->engine)); // the children inherit it
    TRY(tsr__run_may_fork(job->session, &job->bundle.manifest, &job->options));
    if (job->profiles)
        // the children's temporary folders are inside this one
        job->options.work = job->profiles->path;
    // struct children outlives this call; the caller's string may not.
    const char *name = tsr__arena_str(&job->arena, str_of(folder)).p;
    if (!name)
        return TSR_NOMEM;
    TRY(children_new(job, name, states));
    tsr_status st = start_children(job->children);
    if (st != TSR_OK || !states)
        return st;
    return tsr__ranks_keep_named(
        job); // children keep them; this process does not expect them as results
}

void tsr__children_close_sockets(const struct children *children)
{
    for (int i = 0; i < children->ranks; i++)
        for (int k = 0; k < 2; k++)
            if (children->sockets[i][k] >= 0)
                close(children->sockets[i][k]);
}

static void drop_results(const struct children *children)
{
    for (int i = 0; i < children->ranks; i++)
        for (struct results *kept = &children->results[i]; kept->taken < kept->came; kept->taken++)
            close(kept->fds[kept->taken % RUN_SLOTS]);
}

static void children_close(tsr_job *job)
{
    struct children *children = job->children;
    if (!children)
        return;
    if (children->child_set) {
        // A child exits after this note, or at the end of the stream. Closing the set waits for
        // that.
        send_all(children, CLOSE);
        if (children->child_set) // unless give_up has freed it
            tsr__child_set_close(children->child_set);
    }
    tsr__children_close_sockets(children);
    drop_results(children);
    tsr__job_hosts_close(children->hosts);
}

// Returns the failure of the children. give_up has already reported the cause.
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
