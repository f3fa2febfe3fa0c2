// SPDX-License-Identifier: Apache-2.0
// served_ranks.c - the program tessera-ranks, the other side of served.c. It opens a job whose
// ranks are child processes, and makes the runs that the notes on its socket request, one at a
// time.
#include "runtime/job.h"
#include "runtime/runtime.h"
#include "runtime/served.h"

#include <unistd.h>

// Sends `results` if the status is TSR_OK, else the diagnostics. False: the other side is gone.
static bool answer(tsr_session *session, enum word word, tsr_status status,
                   const tsr_tensors *results)
{
    struct note note = {(int32_t)word, (int32_t)status};
    if (status == TSR_OK && !results)
        return tsr__note_send(SERVED_SOCKET, note, -1);
    struct message message = tsr__message_new();
    if (message.fd < 0)
        return false;
    if (status == TSR_OK)
        tsr__message_put_tensors(&message, results);
    else
        tsr__message_put_findings(&message, session);
    bool sent = tsr__message_flush(&message) && tsr__note_send(SERVED_SOCKET, note, message.fd);
    close(message.fd);
    tsr__message_drop(&message);
    return sent;
}

// Runs the model once with the inputs of a request and sends the reply. Returns false if the
// program must end.
static bool serve_run(tsr_session *session, tsr_job *job, int fd)
{
    tsr_tensors *inputs = NULL, *results = NULL;
    struct message message;
    bool goes_on = false;
    if (!tsr__message_open(fd, &message))
        return false;
    tsr_status st = tsr_tensors_new(session, &inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &results);
    if (st == TSR_OK)
        st = tsr__message_tensors(&message, inputs);
    tsr__message_close(&message);
    if (st == TSR_OK)
        st = tsr_job_run(job, inputs, results);
    goes_on = answer(session, START, st, results) && st == TSR_OK;
    tsr_finding_clear(session);
    tsr_tensors_free(results);
    tsr_tensors_free(inputs);
    return goes_on;
}

static tsr_status open_ranks(tsr_session *session, const char *folder, const char *engine,
                             int threads, tsr_job **out)
{
    tsr_run_options options = {
        .size = sizeof options, .transport = TSR_TRANSPORT_SHM, .threads = threads};
    const char *library = NULL;
    if (engine[0])
        library = engine;
    tsr_status st = tsr_engine_open(session, library, NULL, NULL);
    if (st != TSR_OK)
        return st;
    return tsr__job_open_children(session, folder, &options, out);
}

int tsr__served_work(const char *folder, const char *engine, int threads)
{
    tsr_job *job = NULL;
    tsr_session *session = tsr_session_new(NULL);
    struct note note;
    int fd;
    if (!session)
        return 1;
    tsr_status st = open_ranks(session, folder, engine, threads, &job);
    bool goes_on = answer(session, READY, st, NULL) && st == TSR_OK;
    while (goes_on && tsr__note_receive(SERVED_SOCKET, &note, &fd))
        goes_on = serve_run(session, job, fd);
    tsr_job_close(job);
    tsr_session_free(session);
    return st != TSR_OK;
}
