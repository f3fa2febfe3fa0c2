// SPDX-License-Identifier: Apache-2.0
// run.c - options of a run, which way ranks talk, and a single run: a job that is opened, run once and closed.
#include "runtime/spawn.h"

// A rank by option must be one of its number of ranks, and the one that a launcher says, where there is one too.
static tsr_status check_place(tsr_session *session, const tsr_run_options *options)
{
    int rank = 0, ranks = 0;
    const char *family = "";
    if (options->ranks == 0 && options->rank == 0)
        return TSR_OK;
    if (options->rank < 0 || options->rank >= options->ranks || options->ranks > COMM_MAX_RANKS) {
        tsr__diag(session, DIAG_run_options, NULL,
                  "ranks are numbered from 0; each process has one, and knows how many there are",
                  "there is no rank %d of %d", options->rank, options->ranks);
        return TSR_USAGE;
    }
    if (!tsr_launcher(&rank, &ranks, &family) || (rank == options->rank && ranks == options->ranks))
        return TSR_OK;
    tsr__diag(session, DIAG_run_options, NULL,
              "leave the option out, or start it without the launcher",
              "this process is to be rank %d of %d, but its launcher (%s) says rank %d of %d",
              options->rank, options->ranks, family, rank, ranks);
    return TSR_USAGE;
}

bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks)
{
    bool told = options && options->size >= offsetof(tsr_run_options, meet) && options->ranks > 0;
    if (!told)
        return tsr_launcher(rank, ranks, NULL);
    if (rank)
        *rank = options->rank;
    if (ranks)
        *ranks = options->ranks;
    return true;
}

// Callers may have been built with an older, shorter struct.
tsr_status tsr__run_options(tsr_session *session, const tsr_run_options *given,
                            tsr_run_options *out)
{
    memset(out, 0, sizeof *out);
    if (given)
        memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
    if (out->in_flight < 0 || out->in_flight > RUN_SLOTS) {
        tsr__diag(session, DIAG_run_options, NULL, "1 to 16 runs may be under way at a time",
                  "options of the run are out of range");
        return TSR_USAGE;
    }
    if (out->optimize < 0 || out->optimize > 4 || out->threads < 0 || out->timeout_s < 0) {
        tsr__diag(session, DIAG_run_options, NULL,
                  "levels are 0 to 3; threads and seconds are not negative",
                  "options of the run are out of range");
        return TSR_USAGE;
    }
    tsr_status place = check_place(session, out);
    if (place != TSR_OK)
        return place;
    enum comm_way way;
    if (out->gpu_way && !tsr__way_of(out->gpu_way, &way)) {
        tsr__diag(session, DIAG_run_options, NULL, "auto, own, nccl or host",
                  "GPUs do not communicate by '%s'", out->gpu_way);
        return TSR_USAGE;
    }
    return TSR_OK;
}

int tsr_run_cores(int rank, int ranks, int *cores, int n, int *threads)
{
    if (threads)
        *threads = tsr__rank_threads(tsr__cores(), ranks, 0);
    return tsr__cores_share(rank, ranks, cores, n);
}

// ---- which way ---------------------------------------------------------------------------------

enum way { AS_THREADS, UNDER_MPI };
#define BY_HAND "hand" // the family of ranks that were told their places by option

tsr_status tsr__run_refuse(tsr_session *session, enum diag_code code, const char *file,
                           const char *hint, const char *text)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    tsr__diag(session, code, &at, hint, "%s", text);
    return TSR_USAGE;
}

// Which transport: what was asked for, else the launcher's.
static tsr_status choose(tsr_session *session, const tsr_run_options *options, const char **family,
                         enum way *out)
{
    const char *asked = options->transport;
    bool launched = tsr_launcher(NULL, NULL, family);
    if (!launched && options->ranks > 0) {
        launched = true;
        *family = BY_HAND;
    }
    *out = launched && !asked ? UNDER_MPI : AS_THREADS;
    if (!asked || strcmp(asked, "threads") == 0)
        return TSR_OK;
    bool shm = strcmp(asked, "shm") == 0;
    if (shm && !launched)
        return tsr__run_refuse(session, DIAG_transport_absent, NULL,
                               "tsr_run, tsr_bench and tsr_job_open start processes",
                               "the transport shm starts processes, which this call does not");
    if (!shm && strcmp(asked, "mpi") != 0)
        return tsr__run_refuse(session, DIAG_transport_absent, NULL,
                               "transports are: threads, shm, mpi",
                               "this transport does not exist here");
    bool speaks_mpi = launched && strcmp(*family, BY_HAND) != 0 && tsr__launcher_is_mpi(*family);
    if (!shm && !speaks_mpi)
        return tsr__run_refuse(session, DIAG_transport_absent, NULL,
                               "mpirun -n N tessera run FOLDER",
                               "the transport mpi needs an MPI launcher");
    *out = UNDER_MPI;
    return TSR_OK;
}

tsr_status tsr__run_join(tsr_session *session, const tsr_run_options *options,
                         struct endpoint **out)
{
    const char *family = "";
    enum way way;
    struct engine *engine = session->engine;
    *out = engine ? engine->mpi : NULL;
    if (*out && (!options->transport || strcmp(options->transport, "threads") != 0))
        return TSR_OK; // joined before
    *out = NULL;
    tsr_status st = choose(session, options, &family, &way);
    if (st != TSR_OK || way == AS_THREADS)
        return st;
    if (!(engine = tsr__engine_state(session)))
        return TSR_NOMEM;
    struct comm_options co = {.timeout_s = options->timeout_s, .plugins = options->plugins};
    co.messages_only = options->transport && strcmp(options->transport, "mpi") == 0;
    if (strcmp(family, BY_HAND) == 0) {
        co.rank = options->rank;
        co.ranks = options->ranks;
        co.meet = options->meet;
        st = tsr__env_open(session, &co, &engine->mpi);
    } else if (tsr__launcher_is_mpi(family)) {
        st = tsr__mpi_open(session, family, &co, &engine->mpi);
    } else {
        st = tsr__env_open(session, &co, &engine->mpi);
    }
    *out = engine->mpi;
    return st;
}

tsr_status tsr_join(tsr_session *session, const tsr_run_options *options)
{
    tsr_run_options run_options;
    struct endpoint *endpoint;
    tsr_status st = tsr__run_options(session, options, &run_options);
    if (st == TSR_OK && tsr__run_spawns(session, &run_options))
        return TSR_OK; // the ranks are not started yet
    if (st != TSR_OK)
        return st;
    return tsr__run_join(session, &run_options, &endpoint);
}

// ---- what rank 0 has for all ----------------------------------------------------------------------

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

// Rank 0's text goes to all ranks. That a rank failed meanwhile is reported as that rank's
// failure.
tsr_status tsr__run_tell(tsr_session *session, char *text, size_t bytes)
{
    const struct engine *engine = session->engine;
    struct endpoint *endpoint = engine->mpi;
    struct comm_trouble why = {0};
    struct arena arena;
    tsr__arena_init(&arena, session);
    int64_t *group = ARENA_ARRAY(&arena, int64_t, (size_t)endpoint->size);
    if (!group)
        return TSR_NOMEM;
    for (int i = 0; i < endpoint->size; i++)
        group[i] = i;
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .type = TSR_UINT8,
                             .group = group,
                             .n_group = endpoint->size,
                             .op = "partition",
                             .node = "rank 0 cuts the model"};
    tsr_status st = tsr__comm_broadcast(endpoint, &call, 0, text, bytes, &why);
    tsr__arena_free(&arena);
    if (st == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(session, DIAG_rank_failed, &at, "see what that rank says", "%s", why.text);
    if (why.status == TSR_OK)
        return TSR_PEER;
    return why.status;
}

// ---- a single run ------------------------------------------------------------------------------

// Runs a job on copies of the inputs: kernels of the engine write over what they are given (a BatchNormalization that trains,
// over its statistics). Partitions hold copies where that can be (partition/emit.c), other models do not.
static tsr_status both_owned(tsr_session *session, const tsr_tensors *inputs,
                             const tsr_tensors *outputs)
{
    tsr_status status = tsr__tensors_owned(session, inputs);
    return status == TSR_OK ? tsr__tensors_owned(session, outputs) : status;
}

static tsr_status run_on_copies(tsr_session *session, tsr_job *job, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    tsr_tensors *copies = NULL;
    if (!inputs)
        return tsr_job_run(job, inputs, outputs);
    tsr_status status = tsr_tensors_new(session, &copies);
    if (status != TSR_OK)
        return status;
    status = tsr__tensors_copy(inputs, copies);
    if (status == TSR_OK)
        status = tsr_job_run(job, copies, outputs);
    tsr_tensors_free(copies);
    return status;
}

tsr_status tsr_run_model(tsr_session *session, const char *path, const tsr_run_options *options,
                         const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options run_options;
    tsr_job *job = NULL;
    tsr_status st = both_owned(session, inputs, outputs);
    if (st == TSR_OK)
        st = tsr__run_options(session, options, &run_options);
    if (st == TSR_OK && tsr__run_spawns(session, &run_options) &&
        tsr__gpu_named(session, run_options.device, &run_options))
        return tsr__run_model_apart(session, path, &run_options, inputs, outputs);
    if (st == TSR_OK)
        st = tsr_job_open_model(session, path, options, &job);
    if (st == TSR_OK)
        st = run_on_copies(session, job, inputs, outputs);
    if (st == TSR_OK && options && options->trace)
        st = tsr_job_trace(job);
    tsr_job_close(job);
    return st;
}

tsr_status tsr_run(tsr_session *session, const char *folder, const tsr_run_options *options,
                   const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options run_options;
    tsr_job *job = NULL;
    tsr_status st = both_owned(session, inputs, outputs);
    if (st == TSR_OK)
        st = tsr__run_options(session, options, &run_options);
    if (st == TSR_OK && tsr__run_spawns(session, &run_options))
        return tsr__run_processes(session, folder, &run_options, inputs, outputs);
    if (st == TSR_OK)
        st = tsr__job_open(session, folder, &run_options, false, &job);
    if (st == TSR_OK)
        st = tsr_job_run(job, inputs, outputs);
    if (st == TSR_OK && options && options->trace)
        st = tsr_job_trace(job);
    tsr_job_close(job);
    return st;
}
