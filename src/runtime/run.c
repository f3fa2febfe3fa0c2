// SPDX-License-Identifier: Apache-2.0
// run.c - options of a run, which way ranks talk, and a single run: a job that is opened, run once and closed.
#include "runtime/spawn.h"

// A rank by option must be one of its number of ranks, and the one that a launcher says, where there is one too.
static tsr_status check_place(tsr_session *s, const tsr_run_options *o)
{
    int rank = 0, ranks = 0;
    const char *family = "";
    if (o->ranks == 0 && o->rank == 0)
        return TSR_OK;
    if (o->rank < 0 || o->rank >= o->ranks || o->ranks > COMM_MAX_RANKS) {
        tsr__diag(s, DIAG_run_options, NULL,
                  "ranks are numbered from 0; each process has one, and knows how many there are",
                  "there is no rank %d of %d", o->rank, o->ranks);
        return TSR_USAGE;
    }
    if (!tsr_launcher(&rank, &ranks, &family) || (rank == o->rank && ranks == o->ranks))
        return TSR_OK;
    tsr__diag(s, DIAG_run_options, NULL, "leave the option out, or start it without the launcher",
              "this process is to be rank %d of %d, but its launcher (%s) says rank %d of %d",
              o->rank, o->ranks, family, rank, ranks);
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
tsr_status tsr__run_options(tsr_session *s, const tsr_run_options *given, tsr_run_options *out)
{
    memset(out, 0, sizeof *out);
    if (given)
        memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
    if (out->in_flight < 0 || out->in_flight > RUN_FLIGHTS) {
        tsr__diag(s, DIAG_run_options, NULL, "1 to 16 runs may be under way at a time",
                  "options of the run are out of range");
        return TSR_USAGE;
    }
    if (out->optimize < 0 || out->optimize > 4 || out->threads < 0 || out->timeout_s < 0) {
        tsr__diag(s, DIAG_run_options, NULL,
                  "levels are 0 to 3; threads and seconds are not negative",
                  "options of the run are out of range");
        return TSR_USAGE;
    }
    tsr_status place = check_place(s, out);
    if (place != TSR_OK)
        return place;
    enum comm_way way;
    if (out->gpu_way && !tsr__way_of(out->gpu_way, &way)) {
        tsr__diag(s, DIAG_run_options, NULL, "auto, own, nccl or host",
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

tsr_status tsr__run_refuse(tsr_session *s, enum diag_code code, const char *file, const char *hint,
                           const char *text)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    tsr__diag(s, code, &at, hint, "%s", text);
    return TSR_USAGE;
}

// Which transport: what was asked for, else the launcher's.
static tsr_status choose(tsr_session *s, const tsr_run_options *o, const char **family,
                         enum way *out)
{
    const char *asked = o->transport;
    bool launched = tsr_launcher(NULL, NULL, family);
    if (!launched && o->ranks > 0) {
        launched = true;
        *family = BY_HAND;
    }
    *out = launched && !asked ? UNDER_MPI : AS_THREADS;
    if (!asked || strcmp(asked, "threads") == 0)
        return TSR_OK;
    bool shm = strcmp(asked, "shm") == 0;
    if (shm && !launched)
        return tsr__run_refuse(s, DIAG_transport_absent, NULL,
                               "tsr_run, tsr_bench and tsr_job_open start processes",
                               "the transport shm starts processes, which this call does not");
    if (!shm && strcmp(asked, "mpi") != 0)
        return tsr__run_refuse(s, DIAG_transport_absent, NULL, "transports are: threads, shm, mpi",
                               "this transport does not exist here");
    bool speaks_mpi = launched && strcmp(*family, BY_HAND) != 0 && tsr__launcher_is_mpi(*family);
    if (!shm && !speaks_mpi)
        return tsr__run_refuse(s, DIAG_transport_absent, NULL, "mpirun -n N tessera run FOLDER",
                               "the transport mpi needs an MPI launcher");
    *out = UNDER_MPI;
    return TSR_OK;
}

tsr_status tsr__run_join(tsr_session *s, const tsr_run_options *o, struct endpoint **out)
{
    const char *family = "";
    enum way way;
    struct engine *e = s->engine;
    *out = e ? e->mpi : NULL;
    if (*out && (!o->transport || strcmp(o->transport, "threads") != 0))
        return TSR_OK; // joined before
    *out = NULL;
    tsr_status st = choose(s, o, &family, &way);
    if (st != TSR_OK || way == AS_THREADS)
        return st;
    if (!(e = tsr__engine_state(s)))
        return TSR_NOMEM;
    struct comm_options co = {.timeout_s = o->timeout_s, .plugins = o->plugins};
    co.messages_only = o->transport && strcmp(o->transport, "mpi") == 0;
    if (strcmp(family, BY_HAND) == 0) {
        co.rank = o->rank;
        co.ranks = o->ranks;
        co.meet = o->meet;
        st = tsr__env_open(s, &co, &e->mpi);
    } else if (tsr__launcher_is_mpi(family)) {
        st = tsr__mpi_open(s, family, &co, &e->mpi);
    } else {
        st = tsr__env_open(s, &co, &e->mpi);
    }
    *out = e->mpi;
    return st;
}

tsr_status tsr_join(tsr_session *s, const tsr_run_options *options)
{
    tsr_run_options o;
    struct endpoint *e;
    tsr_status st = tsr__run_options(s, options, &o);
    if (st == TSR_OK && tsr__run_spawns(s, &o))
        return TSR_OK; // the ranks are not started yet
    return st == TSR_OK ? tsr__run_join(s, &o, &e) : st;
}

// ---- what rank 0 has for all ----------------------------------------------------------------------

bool tsr__run_launched(tsr_session *s, const tsr_run_options *given, int *rank)
{
    tsr_run_options o;
    struct endpoint *e = NULL;
    *rank = 0;
    if (tsr__run_options(s, given, &o) != TSR_OK || tsr__run_spawns(s, &o) ||
        tsr__run_join(s, &o, &e) != TSR_OK || !e)
        return false;
    *rank = e->rank;
    return true;
}

tsr_status tsr__run_tell(tsr_session *s, char *text, size_t bytes)
{
    const struct engine *engine = s->engine;
    struct endpoint *e = engine->mpi;
    struct comm_trouble why = {0};
    struct arena a;
    tsr__arena_init(&a, s);
    int64_t *group = ARENA_ARRAY(&a, int64_t, (size_t)e->size);
    if (!group)
        return TSR_NOMEM;
    for (int i = 0; i < e->size; i++)
        group[i] = i;
    struct comm_call c = {.kind = COMM_BROADCAST,
                          .type = TSR_UINT8,
                          .group = group,
                          .n_group = e->size,
                          .op = "partition",
                          .node = "rank 0 cuts the model"};
    tsr_status st = tsr__comm_broadcast(e, &c, 0, text, bytes, &why);
    tsr__arena_free(&a);
    if (st == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(s, DIAG_rank_failed, &at, "see what that rank says", "%s", why.text);
    return why.status == TSR_OK ? TSR_PEER : why.status;
}

// ---- a single run ------------------------------------------------------------------------------

// Runs a job on copies of the inputs: kernels of the engine write over what they are given (a BatchNormalization that trains,
// over its statistics). Partitions hold copies where that can be (partition/emit.c), other models do not.
static tsr_status run_on_copies(tsr_session *s, tsr_job *j, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    tsr_tensors *copies = NULL;
    if (!inputs)
        return tsr_job_run(j, inputs, outputs);
    tsr_status status = tsr_tensors_new(s, &copies);
    if (status != TSR_OK)
        return status;
    status = tsr__tensors_copy(inputs, copies);
    if (status == TSR_OK)
        status = tsr_job_run(j, copies, outputs);
    tsr_tensors_free(copies);
    return status;
}

tsr_status tsr_run_model(tsr_session *s, const char *path, const tsr_run_options *options,
                         const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options o;
    tsr_job *j = NULL;
    tsr_status st = tsr__run_options(s, options, &o);
    if (st == TSR_OK && tsr__run_spawns(s, &o) && tsr__gpu_named(o.device, &o))
        return tsr__run_model_apart(s, path, &o, inputs, outputs);
    if (st == TSR_OK)
        st = tsr_job_open_model(s, path, options, &j);
    if (st == TSR_OK)
        st = run_on_copies(s, j, inputs, outputs);
    if (st == TSR_OK && options && options->trace)
        st = tsr_job_trace(j);
    tsr_job_close(j);
    return st;
}

tsr_status tsr_run(tsr_session *s, const char *folder, const tsr_run_options *options,
                   const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options o;
    tsr_job *j = NULL;
    tsr_status st = tsr__run_options(s, options, &o);
    if (st == TSR_OK && tsr__run_spawns(s, &o))
        return tsr__run_processes(s, folder, &o, inputs, outputs);
    if (st == TSR_OK)
        st = tsr__job_open(s, folder, &o, false, &j);
    if (st == TSR_OK)
        st = tsr_job_run(j, inputs, outputs);
    if (st == TSR_OK && options && options->trace)
        st = tsr_job_trace(j);
    tsr_job_close(j);
    return st;
}
