// SPDX-License-Identifier: Apache-2.0
// run.c - runs a whole model, or a partition: all ranks as threads, or this process's rank of an
// MPI job.
#include "runtime/internal.h"
#include "bundle/bundle.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static int cores_here(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    return 1;
}

// Callers may have been built with an older, shorter struct.
static tsr_status read_options(tsr_session *s, const tsr_run_options *given, tsr_run_options *out)
{
    memset(out, 0, sizeof *out);
    if (given)
        memcpy(out, given, given->size < sizeof *out ? given->size : sizeof *out);
    if (out->optimize < 0 || out->optimize > 4 || out->threads < 0 || out->timeout_s < 0) {
        tsr__diag(s, DIAG_run_options, NULL,
                  "levels are 0 to 3; threads and seconds are not negative",
                  "options of the run are out of range");
        return TSR_USAGE;
    }
    return TSR_OK;
}

static struct rank rank_for(struct engine *e, const tsr_run_options *o, const tsr_tensors *inputs,
                            int cores, int ranks)
{
    int threads = tsr__rank_threads(cores, ranks, o->threads);
    return (struct rank){
        .engine = e,
        .ort_ops = o->ort_ops,
        .optimize = o->optimize,
        .threads = threads,
        .spin = (int64_t)threads * ranks <= cores,
        .inputs = inputs,
    };
}

tsr_status tsr_run_model(tsr_session *s, const char *path, const tsr_run_options *options,
                         const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options o;
    struct engine *e;
    tsr_status st = read_options(s, options, &o);
    if (st == TSR_OK)
        st = tsr__engine(s, &e);
    if (st != TSR_OK)
        return st;
    struct whole w;
    st = tsr__whole_open(s, e->minor, path, &w);
    if (st == TSR_OK) {
        struct rank r = rank_for(e, &o, inputs, cores_here(), 1);
        r.path = w.path;
        tsr__rank_work(&r);
        tsr__rank_findings(&r, s);
        st = r.status;
        if (st == TSR_OK)
            st = tsr__rank_outputs(&r, s, outputs);
        tsr__rank_free(&r);
    }
    tsr__whole_close(&w);
    return st;
}

// ---- a partition -------------------------------------------------------------------------------

struct job {
    tsr_session *session;
    const tsr_run_options *options;
    struct engine *engine;
    struct arena arena;
    struct bundle bundle;
    const tsr_tensors *inputs;
    tsr_tensors *outputs;
};

static void rank_of_partition(struct job *j, struct rank *r, int rank, struct endpoint *e)
{
    *r = rank_for(j->engine, j->options, j->inputs, e->host_cores, e->host_ranks);
    r->endpoint = e;
    r->path = tsr__bundle_file_path(&j->bundle, &j->arena, j->bundle.manifest.devices[rank].file).p;
    r->plan = strtoull(j->bundle.manifest.plan, NULL, 16);
}

static void *rank_thread(void *data)
{
    struct rank *r = data;
    tsr__rank_work(r);
    tsr__comm_close(r->endpoint);
    return NULL;
}

// Starts a thread for each rank and waits for all; signals go to the caller's thread.
static tsr_status run_threads(struct job *j, struct rank *ranks, int n)
{
    pthread_t *threads = ARENA_ARRAY(&j->arena, pthread_t, (size_t)n);
    if (!threads)
        return TSR_NOMEM;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int started = 0, failed = 0;
    while (started < n && !failed) {
        failed = tsr__fault(j->session, FAULT_SPAWN) ||
                 pthread_create(&threads[started], NULL, rank_thread, &ranks[started]) != 0;
        started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        tsr__comm_fail(ranks[started].endpoint, TSR_PEER, "a rank's thread could not be started");
        tsr__comm_close(ranks[started].endpoint);
    }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (!failed)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = started;
    tsr__diag(j->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of threads",
              "the thread of rank %d could not be started", started);
    return TSR_PEER;
}

// The first rank that failed by itself tells why; else whoever was told.
static tsr_status verdict(struct job *j, const struct rank *ranks, int n)
{
    const struct rank *worst = NULL;
    for (int i = 0; i < n; i++)
        if (ranks[i].status != TSR_OK && (!worst || (worst->told && !ranks[i].told)))
            worst = &ranks[i];
    if (!worst)
        return TSR_OK;
    tsr__rank_findings(worst, j->session);
    return worst->status;
}

// ONNX Runtime keeps one list of operator domains per process and adds to it when a session with a new one is made,
// not safely so from several threads. A session from nothing fails, but only after its domains are in the list.
static void prime(struct engine *e, struct endpoint *any)
{
    OrtSessionOptions *o = NULL;
    OrtSession *none = NULL;
    struct ops *ops = NULL;
    OrtStatus *st = e->primed ? NULL : e->api->CreateSessionOptions(&o);
    if (!st && o)
        st = e->api->SetIntraOpNumThreads(o, 1);
    if (!st && o)
        st = tsr__ops_add(e->api, e->minor, o, any, NULL, &ops);
    if (!st && o)
        st = e->api->CreateSessionFromArray(e->env, "", 0, o, &none);
    if (st)
        e->api->ReleaseStatus(st);
    if (none)
        e->api->ReleaseSession(none);
    if (o)
        e->api->ReleaseSessionOptions(o);
    tsr__ops_free(ops);
    e->primed = true;
}

static tsr_status run_as_threads(struct job *j)
{
    int n = (int)j->bundle.manifest.n_ranks;
    struct comm_options co = {.timeout_s = j->options->timeout_s};
    struct rank *ranks = ARENA_ARRAY(&j->arena, struct rank, (size_t)n);
    struct thread_job *t = ranks ? tsr__threads_new(j->session, n, &co) : NULL;
    if (!t)
        return TSR_NOMEM;
    for (int i = 0; i < n; i++)
        rank_of_partition(j, &ranks[i], i, tsr__threads_endpoint(t, i));
    prime(j->engine, ranks[0].endpoint);
    tsr_status st = j->arena.failed ? TSR_NOMEM : run_threads(j, ranks, n);
    if (st == TSR_OK)
        st = verdict(j, ranks, n);
    if (st == TSR_OK)
        st = tsr__rank_outputs(&ranks[0], j->session, j->outputs);
    for (int i = 0; i < n; i++)
        tsr__rank_free(&ranks[i]);
    tsr__threads_free(t);
    return st;
}

// This process's rank, on the caller's thread.
static tsr_status run_under_mpi(struct job *j, struct endpoint *e)
{
    struct rank r;
    rank_of_partition(j, &r, e->rank, e);
    if (j->arena.failed)
        return TSR_NOMEM;
    tsr__rank_work(&r);
    tsr_status st = verdict(j, &r, 1);
    if (st == TSR_OK && e->rank == 0)
        st = tsr__rank_outputs(&r, j->session, j->outputs);
    tsr__rank_free(&r);
    return st;
}

// ---- which way ---------------------------------------------------------------------------------

enum way { AS_THREADS, UNDER_MPI };

static tsr_status refuse(tsr_session *s, enum diag_code code, const char *file, const char *hint,
                         const char *text)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    tsr__diag(s, code, &at, hint, "%s", text);
    return TSR_USAGE;
}

// Which transport: what was asked for, else the launcher's.
static tsr_status choose(tsr_session *s, const char *asked, const char **family, enum way *out)
{
    bool launched = tsr_launcher(NULL, NULL, family);
    *out = launched && !asked ? UNDER_MPI : AS_THREADS;
    if (launched && !asked && !tsr__launcher_is_mpi(*family))
        return refuse(s, DIAG_transport_absent, NULL,
                      "start it with mpirun, or srun with an MPI plug-in",
                      "this launcher gives ranks but no way to talk: it is not an MPI launcher");
    if (!asked || strcmp(asked, "threads") == 0)
        return TSR_OK;
    if (strcmp(asked, "mpi") != 0)
        return refuse(s, DIAG_transport_absent, NULL, "transports are: threads, mpi",
                      "this transport does not exist here");
    if (!launched)
        return refuse(s, DIAG_transport_absent, NULL, "mpirun -n N tessera run FOLDER",
                      "the transport mpi needs an MPI launcher");
    *out = UNDER_MPI;
    return TSR_OK;
}

// The place in the MPI job, kept by the session; NULL where ranks are threads.
static tsr_status join(tsr_session *s, const tsr_run_options *o, struct endpoint **out)
{
    const char *family = "";
    enum way way;
    *out = NULL;
    tsr_status st = choose(s, o->transport, &family, &way);
    if (st != TSR_OK || way == AS_THREADS)
        return st;
    struct engine *e = tsr__engine_state(s);
    if (!e)
        return TSR_NOMEM;
    struct comm_options co = {.timeout_s = o->timeout_s, .plugins = o->plugins};
    if (!e->mpi)
        st = tsr__mpi_open(s, family, &co, &e->mpi);
    *out = e->mpi;
    return st;
}

tsr_status tsr_join(tsr_session *s, const tsr_run_options *options)
{
    tsr_run_options o;
    struct endpoint *e;
    tsr_status st = read_options(s, options, &o);
    return st == TSR_OK ? join(s, &o, &e) : st;
}

// Inputs that the model does not have are most likely misspelt.
static void note_unknown(struct job *j)
{
    const struct manifest *m = &j->bundle.manifest;
    for (size_t i = 0; i < j->inputs->n; i++) {
        bool known = false;
        for (size_t k = 0; k < m->n_inputs && !known; k++)
            known = strcmp(m->inputs[k].name, j->inputs->at[i]->name) == 0;
        struct place at = PLACE_NONE;
        at.value = str_of(j->inputs->at[i]->name);
        if (!known)
            tsr__diag(j->session, DIAG_input_unknown, &at, NULL,
                      "the model has no input of this name");
    }
}

// The folder, checked for the ranks that run here.
static tsr_status open_folder(struct job *j, const char *folder, const struct endpoint *e)
{
    tsr_status st = tsr__bundle_open(j->session, &j->arena, folder, &j->bundle);
    if (st != TSR_OK)
        return st;
    const struct manifest *m = &j->bundle.manifest;
    if (e && e->size != m->n_ranks) {
        char text[128];
        snprintf(text, sizeof text, "a partition for %lld ranks started with %d",
                 (long long)m->n_ranks, e->size);
        st = refuse(j->session, DIAG_ranks_differ, folder,
                    "start as many ranks as the partition has", text);
    }
    int64_t mine = e ? e->rank : 0;
    if (st == TSR_OK)
        st = tsr__bundle_verify(&j->bundle, e ? &mine : NULL, e ? 1 : 0, j->options->check_files);
    if (st != TSR_OK)
        tsr__bundle_close(&j->bundle);
    return st;
}

// Tells the other processes what has gone wrong here before the ranks met.
static void tell(struct endpoint *e, tsr_session *s, tsr_status status)
{
    char text[400];
    size_t n = tsr_finding_count(s);
    snprintf(text, sizeof text, "rank %d failed: %s %s", e->rank,
             n ? tsr_finding_at(s, n - 1).file : "",
             n ? tsr_finding_at(s, n - 1).message : tsr_status_text(status));
    tsr__comm_fail(e, status, text);
}

tsr_status tsr_run(tsr_session *s, const char *folder, const tsr_run_options *options,
                   const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_run_options o;
    struct job j = {.session = s, .options = &o, .inputs = inputs, .outputs = outputs};
    struct endpoint *e;
    tsr_status st = read_options(s, options, &o);
    if (st == TSR_OK)
        st = join(s, &o, &e);
    if (st != TSR_OK)
        return st;
    tsr__arena_init(&j.arena, s);
    st = open_folder(&j, folder, e);
    bool opened = st == TSR_OK;
    if (st == TSR_OK)
        st = tsr__engine(s, &j.engine);
    if (st != TSR_OK && e)
        tell(e, s, st);
    if (st == TSR_OK) {
        note_unknown(&j);
        st = e ? run_under_mpi(&j, e) : run_as_threads(&j);
    }
    if (opened)
        tsr__bundle_close(&j.bundle);
    tsr__arena_free(&j.arena);
    return st;
}
