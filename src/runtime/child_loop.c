// SPDX-License-Identifier: Apache-2.0
// child_loop.c - the main loop of a child process that is a rank of its parent's job: it opens the
// job of a launched rank and follows the notes of its parent (children.h).
//
// It handles one note at a time, in order, on one thread. Runs that the parent has sent meanwhile
// wait in the socket. Any failure leaves the loop; then spawn.c writes the child's diagnostics for
// the parent, so a failure is not answered with a note.
//
// If the parent dies, the child reads the end of the stream and leaves the loop (the kernel kills
// it in any case).
#include "runtime/children.h"
#include "runtime/job.h"
#include "runtime/remote.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

// One child. job is NULL until it is open; socket is the child's end of the pair.
struct child_loop {
    tsr_session *session;
    tsr_job *job;
    int socket;
    int number;      // of the child
    char place[280]; // where rank 0 is, if the ranks are on several hosts
    const char *folder;
    struct memory_mark before; // memory of this process before it loaded anything
};

// Sends the results of this rank to the parent, which joins the shards of all children. The parent
// does not receive them if it has closed its end because another rank failed. This is no failure of
// this rank.
static tsr_status send_results(struct child_loop *child_loop, enum word word)
{
    tsr_tensors *results = NULL;
    TRY(tsr_tensors_new(child_loop->session, &results));
    tsr_status st = child_loop->job->kind->finish(child_loop->job, &results, SET_PER_RANK);
    if (st == TSR_OK) {
        struct message message = tsr__message_new();
        tsr__message_put_tensors(&message, results);
        if (!tsr__note_send_message(child_loop->socket, (struct note){(int32_t)word, TSR_OK},
                                    &message))
            st = errno == EPIPE ? TSR_OK : TSR_NOMEM;
    }
    tsr_tensors_free(results);
    return st;
}

// Reads the inputs that were sent with a note; *out must be freed even after a failure.
static tsr_status read_inputs(struct child_loop *child_loop, int fd, tsr_tensors **out)
{
    struct message message;
    TRY(tsr__message_open(fd, &message));
    tsr_status st = tsr_tensors_new(child_loop->session, out);
    if (st == TSR_OK)
        st = tsr__message_tensors(&message, *out);
    tsr__message_close(&message);
    return st;
}

// Makes one run of this rank and sends its results. START comes with full inputs, START_CUT with
// the shards of this rank. The run is collected here, so a child has at most one pending run.
static tsr_status serve_run(struct child_loop *child_loop, enum word word, int fd)
{
    tsr_job *job = child_loop->job;
    tsr_tensors *inputs = NULL;
    tsr_status st = read_inputs(child_loop, fd, &inputs);
    if (st != TSR_OK)
        goto free_inputs;
    if (word == START)
        st = tsr__launched_start_own(job, inputs);
    else
        st = job->kind->start(job, (const tsr_tensors *const *)&inputs, SET_PER_RANK);
    if (st != TSR_OK)
        goto free_inputs;
    tsr_finding_clear(child_loop->session); // the parent has reported the same diagnostics
    st = send_results(child_loop, word);
free_inputs:
    tsr_tensors_free(inputs);
    return st;
}

// Makes an output a state, as the parent requests. The two texts are views of a file, so the names
// are copied and terminated.
static tsr_status serve_keep(struct child_loop *child_loop, int fd)
{
    struct message message;
    TRY(tsr__message_open(fd, &message));
    struct str past = tsr__message_text(&message), present = tsr__message_text(&message);
    struct arena arena = {.session = child_loop->session};
    const char *from = tsr__arena_str(&arena, past).p, *to = tsr__arena_str(&arena, present).p;
    tsr_status st = TSR_NOMEM;
    if (from && to)
        st = tsr__ranks_keep(child_loop->job, from, to, false) ? TSR_OK : TSR_INVALID;
    tsr__arena_free(&arena);
    tsr__message_close(&message);
    return st;
}

// Sends what this rank has used since the last note of this kind, and begins to count again.
static tsr_status serve_use(struct child_loop *child_loop)
{
    tsr_job *job = child_loop->job;
    struct endpoint *endpoint = job->endpoint;
    struct rank_use use = {endpoint->comm_s, tsr__job_gpu_memory(job, 0)};
    struct message message = tsr__message_new();
    if (use.memory == 0)
        use.memory = tsr__memory_since(&child_loop->before, child_loop->folder, endpoint);
    endpoint->timed = true;
    endpoint->comm_s = 0;
    tsr__message_put(&message, &use, sizeof use);
    (void)tsr__note_send_message(child_loop->socket, (struct note){USE, TSR_OK}, &message);
    return TSR_OK; // the parent may have closed its end because another rank failed
}

// Handles a note that starts no run; `serve` sends the answer. An unknown word is a bug of the
// parent: TSR_BUG ends the child.
static tsr_status serve_other(struct child_loop *child_loop, enum word word, int fd)
{
    tsr_job *job = child_loop->job;
    if (word == KEEP)
        return serve_keep(child_loop, fd);
    if (fd >= 0)
        close(fd); // these notes need no file
    if (word == BARRIER)
        return job->kind->barrier(job);
    if (word == TRACE)
        return job->kind->trace(job);
    return TSR_BUG;
}

// Handles one note. Any failure ends the child, except that KEEP with a state which this rank does
// not have is answered with TSR_INVALID.
static tsr_status serve(struct child_loop *child_loop, struct note note, int fd)
{
    enum word word = (enum word)note.word;
    if (word == START || word == START_CUT)
        return serve_run(child_loop, word, fd);
    if (word == USE)
        return serve_use(child_loop);
    tsr_status st = serve_other(child_loop, word, fd);
    if (st != TSR_OK && !(word == KEEP && st == TSR_INVALID))
        return st;
    tsr__note_send(child_loop->socket, (struct note){note.word, (int32_t)st});
    return TSR_OK;
}

// Limits what a rank of a worker can use. Mapped files do not count.
static void limit_child(const struct children *children)
{
    struct rlimit data = {(rlim_t)children->memory, (rlim_t)children->memory}, none = {0, 0};
    if (children->memory > 0) {
        setrlimit(RLIMIT_DATA, &data);
        setrlimit(RLIMIT_CORE, &none);
    }
}

// Waits until the parent says where rank 0 is. The text is kept in the memory of the child.
static tsr_status wait_for_open(struct child_loop *child_loop, const struct children *children,
                                tsr_run_options *options)
{
    struct note note = {0};
    struct message message;
    int fd = -1;
    if (!tsr__note_receive(child_loop->socket, &note, &fd) || note.word != OPEN)
        return TSR_CANCELLED; // the parent has given up
    TRY(tsr__message_open(fd, &message));
    struct str place = tsr__message_text(&message);
    options->port = (int)tsr__message_int(&message);
    size_t n = size_min(place.n, sizeof child_loop->place - 1);
    memcpy(child_loop->place, place.p, n);
    options->hosts = child_loop->place;
    options->rank = children->first + child_loop->number;
    tsr__message_close(&message);
    return TSR_OK;
}

// Opens the job of a child. The child has already joined the others (spawn.c), so its job is a
// launched one.
static tsr_status open_job(struct child_loop *child_loop, const struct children *children)
{
    tsr_run_options options = children->options;
    options.check_files = false; // already checked by the parent
    if (children->apart)
        TRY(wait_for_open(child_loop, children, &options));
    TRY(tsr__job_new(child_loop->session, &options, &child_loop->job));
    tsr_job *job = child_loop->job;
    TRY(tsr__run_join(child_loop->session, &job->options, &job->endpoint));
    job->kind = &tsr__job_launched;
    return job->kind->open(job, children->folder, children->states);
}

// Closes all sockets but those of n ranks, so that the child reads the end of the stream when the
// parent is gone.
static void keep_own_sockets(const struct children *children, int from, int n)
{
    for (int i = 0; i < children->ranks; i++) {
        close(children->sockets[i][0]);
        if (i < from || i >= from + n)
            close(children->sockets[i][1]);
    }
    if (children->line)
        tsr__line_close(children->line);
}

// Runs a child until the parent closes it. open_job joins, loads and synchronizes with the other
// ranks; READY tells the parent that this is done. The job is closed here in every case, because
// the process exits without running exit handlers.
tsr_status tsr__child_loop_work(struct spawn *spawn, tsr_session *session, int rank,
                                struct message *out)
{
    struct children *children = spawn->data;
    struct note note = {READY, TSR_OK};
    int fd;
    (void)out; // all results are sent as notes
    if (rank >= children->here) {
        const struct job_host *host = &children->hosts->at[rank - children->here + 1];
        keep_own_sockets(children, host->first, host->ranks);
        return tsr__relay_work(children, session, rank - children->here + 1);
    }
    struct child_loop child_loop = {.session = session,
                                    .socket = children->sockets[rank][1],
                                    .number = rank,
                                    .folder = children->folder,
                                    .before = tsr__memory_mark(NULL)};
    keep_own_sockets(children, rank, 1);
    limit_child(children);
    tsr_status st = open_job(&child_loop, children);
    if (st == TSR_OK)
        tsr__note_send(child_loop.socket, note);
    while (st == TSR_OK) {
        if (!tsr__note_receive(child_loop.socket, &note, &fd) || note.word == CLOSE)
            break;
        st = serve(&child_loop, note, fd);
    }
    st = tsr__run_end(session, spawn->options, st); // closing the job may wait for the other ranks
    tsr_job_close(child_loop.job);
    if (children->apart && session->engine) {
        struct engine *engine = session->engine;
        tsr__comm_close(engine->joined);
        engine->joined = NULL;
    }
    return st;
}
