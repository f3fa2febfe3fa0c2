// SPDX-License-Identifier: Apache-2.0
// transports.c - the transports, a row each, and the choice between them for a run.
//
//   --transport  no launcher        under mpirun           under torchrun, or with --rank
//   (none)       threads            MPI and shared memory  shared memory; UCX on several hosts
//   threads      threads            threads                threads
//   shm          child processes    MPI and shared memory  shared memory
//   mpi          refused            MPI alone              refused
//   ucx          refused            UCX and shared memory  UCX and shared memory
#include "runtime/remote.h"
#include "runtime/spawn.h"

#include <stdio.h>

// How this process got its rank.
enum starter { STARTED_ALONE, BY_OPTION, BY_LAUNCHER, BY_MPI_LAUNCHER };

// What a transport needs in order to join the other ranks.
enum need { NOTHING, A_STARTER, AN_MPI_LAUNCHER };

static const struct transport_row {
    const char *name;
    bool threads;                // ranks are threads of this process, with or without a launcher
    bool starts_ranks;           // without a launcher: ranks are child processes
    bool messages_only;          // no shared memory between ranks of one host
    bool ucx;                    // use UCX with any launcher
    enum need need;              // to join the other ranks
    const char *absent, *remedy; // message if that is missing
} transports[] = {
    // in the order of tsr_transport, from 1 on
    {.name = "threads", .threads = true},
    {.name = "shm",
     .starts_ranks = true,
     .need = A_STARTER,
     .absent = "the transport shm starts processes, but this call does not support that",
     .remedy = "use tsr_run, tsr_bench or tsr_job_open"},
    {.name = "mpi",
     .messages_only = true,
     .need = AN_MPI_LAUNCHER,
     .absent = "the transport mpi needs an MPI launcher",
     .remedy = "start it with mpirun -n N tessera run FOLDER"},
    {.name = "ucx",
     .ucx = true,
     .need = A_STARTER,
     .absent = "the transport ucx needs the rank of this process",
     .remedy = "start it with torchrun, srun or tessera launch, or give --hosts a,b --rank K"},
};
static const struct transport_row default_row = {.name = NULL};

// Returns the row of a transport; NULL: unknown. The default has a row without requirements,
// because the launcher decides what it means.
static const struct transport_row *row_of(tsr_transport transport)
{
    if (transport == TSR_TRANSPORT_DEFAULT)
        return &default_row;
    size_t i = (size_t)transport - 1;
    return i < TSR_COUNT(transports) ? &transports[i] : NULL;
}

// Returns who started the ranks. *family: the launcher's MPI family, if there is one. A launcher
// takes precedence over the option; run_options.c has refused options that contradict it.
static enum starter starter_of(const tsr_run_options *options, const char **family)
{
    if (!tsr_launcher(NULL, NULL, family))
        return options->ranks > 0 ? BY_OPTION : STARTED_ALONE;
    if (tsr__launcher_is_mpi(*family))
        return BY_MPI_LAUNCHER;
    return BY_LAUNCHER;
}

static bool has_need(enum need need, enum starter starter)
{
    if (need == AN_MPI_LAUNCHER)
        return starter == BY_MPI_LAUNCHER;
    return need == NOTHING || starter != STARTED_ALONE;
}

bool tsr__run_spawns(tsr_session *session, const tsr_run_options *options)
{
    const struct engine *engine = session->engine;
    const struct transport_row *row = row_of(options->transport);
    if (!row || (engine && engine->joined))
        return false;
    if (tsr__run_in_workers(options))
        return true;
    if (!row->starts_ranks)
        return false;
    return !tsr_run_place(options, NULL, NULL);
}

// Joins the other ranks, which are processes. The caller has checked that a launcher or the options
// give this process a rank. Failures add diagnostics.
static tsr_status join(tsr_session *session, const tsr_run_options *options, enum starter starter,
                       const char *family, struct endpoint **out)
{
    const struct transport_row *row = row_of(options->transport);
    struct comm_options comm = {
        .timeout_s = options->timeout_s,
        .plugins = options->plugins,
        .messages_only = row->messages_only,
        .port = options->port,
        .secret = options->secret,
        .interface = options->network_interface,
    };
    // Under a launcher these stay 0, and the transport reads the launcher's variables itself.
    if (starter == BY_OPTION) {
        comm.rank = options->rank;
        comm.ranks = options->ranks;
        comm.meet = options->meet;
        comm.hosts = options->hosts;
    }
    if (!options->no_pin)
        tsr__cores_unbind(options->threads); // before ranks count the cores of their host
    if (row->ucx)
        return tsr__ucx_open(session, &comm, out);
    if (starter == BY_MPI_LAUNCHER)
        return tsr__mpi_open(session, family, &comm, out);
    // No transport was requested, and the launcher's ranks are on several hosts: shared memory
    // cannot serve them.
    if (!row->name && !tsr__env_one_host(&comm)) {
        TRY(tsr__plugin_need(session, comm.plugins));
        return tsr__ucx_open(session, &comm, out);
    }
    return tsr__env_open(session, &comm, out);
}

// Joins the ranks of this process's job. A process joins once; the session keeps the endpoint for
// all later runs except those with threads. *out NULL with TSR_OK: the ranks are threads of this
// process. After a failed join engine->joined is NULL, and a later call may try again.
tsr_status tsr__run_join(tsr_session *session, const tsr_run_options *options,
                         struct endpoint **out)
{
    const char *family = "";
    struct engine *engine = session->engine;
    const struct transport_row *row = row_of(options->transport);
    *out = NULL;
    if (engine && engine->joined && !(row && row->threads)) {
        *out = engine->joined;
        return TSR_OK;
    }
    if (!row)
        return tsr__run_refuse(session, DIAG_transport_absent, NULL, "use threads, shm, mpi or ucx",
                               "unknown transport");
    enum starter starter = starter_of(options, &family);
    if (!has_need(row->need, starter))
        return tsr__run_refuse(session, DIAG_transport_absent, NULL, row->remedy, row->absent);
    if (row->threads || starter == STARTED_ALONE)
        return TSR_OK;
    engine = tsr__engine_state(session);
    if (!engine)
        return TSR_NOMEM;
    tsr_status st = join(session, options, starter, family, &engine->joined);
    *out = engine->joined;
    return st;
}

// Joins the other ranks. Lets callers check that the ranks find each other before a model is
// loaded.
tsr_status tsr_join(tsr_session *session, const tsr_run_options *options)
{
    tsr_run_options run_options;
    struct endpoint *endpoint;
    TRY(tsr__run_options(session, options, &run_options));
    if (tsr__run_spawns(session, &run_options))
        return TSR_OK; // the ranks are not started yet
    return tsr__run_join(session, &run_options, &endpoint);
}

tsr_status tsr__run_peer_failed(tsr_session *session, const struct comm_trouble *why)
{
    struct place at = PLACE_NONE;
    at.rank = why->rank;
    return tsr__fail(session, why->status == TSR_OK ? TSR_PEER : why->status, DIAG_rank_failed, &at,
                     "see the messages of that rank", "%s", why->text);
}

// ---- broadcast of rank 0 ------------------------------------------------------------------------

// True if the ranks are processes that a launcher or the user started. A failure to join adds a
// diagnostic and returns false; the run that follows fails in the same way.
bool tsr__run_launched(tsr_session *session, const tsr_run_options *given, int *rank)
{
    tsr_run_options options;
    struct endpoint *endpoint = NULL;
    *rank = 0;
    if (tsr__run_options(session, given, &options) != TSR_OK ||
        tsr__run_spawns(session, &options) ||
        tsr__run_join(session, &options, &endpoint) != TSR_OK || !endpoint)
        return false;
    *rank = endpoint->rank;
    return true;
}

// Reports a failure of this rank to the other processes of its job. The text is the last
// diagnostic, the cause of the failure. Earlier ones may be warnings, or of earlier calls.
static void report_to_others(tsr_session *session, struct endpoint *endpoint, tsr_status status)
{
    char text[400];
    size_t n = tsr_finding_count(session);
    const char *file = "", *message = tsr_status_text(status);
    if (n) {
        file = tsr_finding_value(session, n - 1).file;
        message = tsr_finding_value(session, n - 1).message;
    }
    snprintf(text, sizeof text, "rank %d failed: %s %s", endpoint->rank, file, message);
    tsr__comm_leave(endpoint, status, text);
}

// True if the session has a diagnostic of that failure: one that the transport added, or the same
// error of this rank ("rank 0 failed: a.npz cannot open", if no rank can open a.npz).
static bool is_reported(tsr_session *session, const char *text)
{
    for (size_t i = 0; i < tsr_finding_count(session); i++) {
        const char *message = tsr_finding_value(session, i).message;
        if (strstr(message, text) || strstr(text, message))
            return true;
    }
    return false;
}

// Example: rank 0 fails after it has sent its folder, and removes the folder. Rank 1 then cannot
// open it. Its own error misleads, so the failure of rank 0 is added.
tsr_status tsr__run_end(tsr_session *session, const tsr_run_options *options, tsr_status status)
{
    const struct engine *engine = session->engine;
    const struct transport_row *row = row_of(options ? options->transport : TSR_TRANSPORT_DEFAULT);
    struct comm_trouble why = {0};
    if (status == TSR_OK || !engine || !engine->joined || (row && row->threads))
        return status;
    if (!tsr__comm_failure(engine->joined, &why)) {
        report_to_others(session, engine->joined, status);
        return status;
    }
    if (why.rank == engine->joined->rank || is_reported(session, why.text))
        return status;
    return tsr__run_peer_failed(session, &why);
}

// Broadcasts rank 0's text to all ranks. If a rank failed meanwhile, its failure is reported. All
// ranks call it after tsr__run_launched returned true, so the endpoint exists. The buffers of all
// ranks have the same length.
tsr_status tsr__run_broadcast(tsr_session *session, char *text, size_t bytes)
{
    const struct engine *engine = session->engine;
    struct endpoint *endpoint = engine->joined;
    struct comm_trouble why = {0};
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .type = TSR_UINT8,
                             .op = "partition",
                             .node = "rank 0 partitions the model"};
    if (tsr__comm_tell_all(endpoint, &call, 0, text, bytes, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(session, &why);
}
