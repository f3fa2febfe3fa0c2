// SPDX-License-Identifier: Apache-2.0
// servant.c - a child of a process that has its ranks as children: it opens the job of a launched
// rank, and does what the notes of its parent say (children.h).
//
// It is a child's main loop: one note at a time, in order, on one thread. Runs that the parent has
// sent meanwhile wait in the socket. Any failure leaves the loop; spawn.c then seals the child's
// findings and the parent reads them there, so nothing is answered after a failure.
//
// The parent dies: the read gives the end of the stream, and the loop ends (the kernel kills the
// child in any case).
#include "runtime/children.h"
#include "runtime/job.h"

#include <unistd.h>

// One child. job is NULL until it is open; socket is the child's end of its pair.
struct servant {
    tsr_session *session;
    tsr_job *job;
    int socket;
};

// Hands the results of this rank to the parent.
// A set for this rank alone: the parent puts the pieces of all children together.
static tsr_status send_results(struct servant *servant, enum word word)
{
    tsr_tensors *results = NULL;
    tsr_status st = tsr_tensors_new(servant->session, &results);
    if (st != TSR_OK)
        return st;
    st = servant->job->kind->finish(servant->job, &results, SET_PER_RANK);
    if (st != TSR_OK)
        goto free_results;
    struct message message = tsr__message_new();
    if (message.fd >= 0)
        tsr__message_put_tensors(&message, results);
    if (!tsr__note_send_message(servant->socket, word, &message))
        st = TSR_NOMEM;
free_results:
    tsr_tensors_free(results);
    return st;
}

// The inputs that came with a note; *out is to be freed even after a failure.
static tsr_status read_inputs(struct servant *servant, int fd, tsr_tensors **out)
{
    struct message message;
    if (!tsr__message_open(fd, &message))
        return TSR_NOMEM;
    tsr_status st = tsr_tensors_new(servant->session, out);
    if (st == TSR_OK)
        st = tsr__message_tensors(&message, *out);
    tsr__message_close(&message);
    return st;
}

// One run of this rank, from the note that starts it to its results.
// START brings the whole model's inputs, START_CUT this rank's own. The run is made and collected
// here, so the child never has more than one under way.
static tsr_status serve_run(struct servant *servant, enum word word, int fd)
{
    tsr_job *job = servant->job;
    tsr_tensors *inputs = NULL;
    tsr_status st = read_inputs(servant, fd, &inputs);
    if (st != TSR_OK)
        goto free_inputs;
    if (word == START)
        st = tsr__launched_start_own(job, inputs);
    else
        st = job->kind->start(job, (const tsr_tensors *const *)&inputs, SET_PER_RANK);
    if (st != TSR_OK)
        goto free_inputs;
    tsr_finding_clear(servant->session); // the parent has said it
    st = send_results(servant, word);
free_inputs:
    tsr_tensors_free(inputs);
    return st;
}

// The two texts are views of a file; the names are copied, with their terminators, for the one
// call.
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
        st = tsr__ranks_keep(servant->job, from, to) ? TSR_OK : TSR_INVALID;
    tsr__arena_free(&arena);
    tsr__message_close(&message);
    return st;
}

// A note that starts no run; it is answered unless the child has to end. An unknown note can only
// come from a parent of another build: TSR_BUG ends the child.
static tsr_status serve_other(struct servant *servant, enum word word, int fd)
{
    tsr_job *job = servant->job;
    if (word == KEEP)
        return serve_keep(servant, fd);
    if (word == BARRIER)
        return job->kind->barrier(job);
    if (word == TRACE)
        return job->kind->trace(job);
    return TSR_BUG;
}

// Handles one note. Any failure ends the child, except for an unknown state.
static tsr_status serve(struct servant *servant, struct note note, int fd)
{
    enum word word = (enum word)note.word;
    if (word == START || word == START_CUT)
        return serve_run(servant, word, fd);
    tsr_status st = serve_other(servant, word, fd);
    if (st != TSR_OK && !(word == KEEP && st == TSR_INVALID))
        return st;
    tsr__note_send(servant->socket, (struct note){note.word, (int32_t)st}, -1);
    return TSR_OK;
}

// The child has joined the others (spawn.c): its job is a launched one.
static tsr_status open_job(struct servant *servant, const struct children *children)
{
    tsr_run_options options = children->options;
    options.check_files = false; // the parent has done it
    tsr_status st = tsr__job_new(servant->session, &options, &servant->job);
    if (st != TSR_OK)
        return st;
    tsr_job *job = servant->job;
    st = tsr__run_join(servant->session, &job->options, &job->endpoint);
    if (st != TSR_OK)
        return st;
    job->kind = &tsr__job_launched;
    return job->kind->open(job, children->folder, children->states);
}

// Of all the sockets, a child has the end that is its own alone: so it reads the end of the stream
// when the parent is gone.
static void keep_own_socket(const struct children *children, int rank)
{
    for (int i = 0; i < children->work.n; i++) {
        close(children->sockets[i][0]);
        if (i != rank)
            close(children->sockets[i][1]);
    }
}

// Joining, loading and meeting the other ranks happens in open_job; READY tells the parent that all
// of it is done. Whatever ends the loop, the job is closed here, because the process leaves without
// running exit handlers.
tsr_status tsr__servant_work(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *out)
{
    struct children *children = spawn->data;
    struct servant servant = {.session = session, .socket = children->sockets[rank][1]};
    struct note note = {READY, TSR_OK};
    int fd;
    (void)out; // all is said in notes
    keep_own_socket(children, rank);
    tsr_status st = open_job(&servant, children);
    if (st == TSR_OK)
        tsr__note_send(servant.socket, note, -1);
    while (st == TSR_OK) {
        if (!tsr__note_receive(servant.socket, &note, &fd) || note.word == CLOSE)
            break;
        st = serve(&servant, note, fd);
    }
    tsr_job_close(servant.job);
    return st;
}
