// SPDX-License-Identifier: Apache-2.0
// job.c - a model or a partition that is loaded once and run many times: all ranks as threads that wait for work, or the
// one rank of this process on the caller's thread.
//
// Runs are numbered. A rank works on one at a time, in order, and may be ahead of another rank as far as their
// communication lets it: that is how several runs go through the stages of a pipeline. A rank that fails ends the job.
// When the last run that was asked for is waited for, all ranks meet at its end: one that left out a communication is
// found there, and nobody waits for it for ever.
#include "runtime/job.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static void rank_for(tsr_job *job, struct rank *r, int rank, int cores, int ranks)
{
    int threads = tsr__rank_threads(cores, ranks, job->options.threads);
    *r = (struct rank){
        .engine = job->engine,
        .ort_ops = job->options.ort_ops,
        .optimize = job->options.optimize,
        .float_products = job->options.float_products,
        .threads = threads,
        .spin = (int64_t)threads * ranks <= cores,
        .options = &job->options,
        .device = job->options.device,
        .gpu = job->gpu,
    };
    if (job->profiles)
        r->profile = tsr__arena_printf(&job->arena, "%s/rank%d", job->profiles->path, rank).p;
}

static void rank_of_partition(tsr_job *job, struct rank *r, int rank, struct endpoint *endpoint)
{
    rank_for(job, r, rank, endpoint->host_cores, endpoint->host_ranks);
    r->endpoint = endpoint;
    r->path =
        tsr__bundle_file_path(&job->bundle, &job->arena, job->bundle.manifest.devices[rank].file).p;
    r->plan = strtoull(job->bundle.manifest.plan, NULL, 16);
    r->device = job->bundle.manifest.devices[rank].device;
    r->shared = job->threaded ? &job->shared : NULL;
    r->unpacked = tsr__weights_are_large(&job->bundle.manifest, job->threaded ? -1 : rank);
}

// The driver, if any rank of the partition is on a GPU. All ranks find the same: it is in the manifest and the options.
static void find_gpus(tsr_job *job)
{
    if (tsr__run_on_gpus(job->session, &job->bundle.manifest, &job->options))
        job->gpu = tsr__gpu_driver(job->session, job->engine, &job->options);
}

// The first rank that failed by itself tells why; else whoever was told. A rank that has failed works no more, so
// what it says can be read.
tsr_status tsr__job_verdict(tsr_job *job)
{
    const struct rank *worst = NULL;
    pthread_mutex_lock(&job->lock);
    for (int i = 0; i < job->n; i++) {
        const struct rank *rank = &job->rank_threads[i].rank;
        if (job->rank_threads[i].failed && (!worst || (worst->told && !rank->told)))
            worst = rank;
    }
    pthread_mutex_unlock(&job->lock);
    if (!worst)
        return TSR_OK;
    tsr__rank_findings(worst, job->session);
    return worst->status;
}

// ---- threads -----------------------------------------------------------------------------------

static void *seat_thread(void *data)
{
    struct rank_thread *rank_thread = data;
    tsr_job *job = rank_thread->job;
    if (!job->options.no_pin) // before the session, whose threads then stay there too
        tsr__cores_keep((int)(rank_thread - job->rank_threads), job->n);
    tsr__rank_open(&rank_thread->rank);
    pthread_mutex_lock(&job->lock);
    rank_thread->opened = true;
    while (rank_thread->rank.status == TSR_OK) {
        pthread_cond_broadcast(&job->change);
        while (!job->closing && rank_thread->done == job->asked && rank_thread->met >= job->meet)
            pthread_cond_wait(&job->change, &job->lock);
        bool meet = rank_thread->done == job->meet && rank_thread->met < job->meet;
        if (!meet && rank_thread->done == job->asked)
            break;
        pthread_mutex_unlock(&job->lock);
        if (meet)
            tsr__rank_meet(&rank_thread->rank, "end");
        else
            tsr__rank_run(&rank_thread->rank, rank_thread->done % RUN_SLOTS);
        pthread_mutex_lock(&job->lock);
        rank_thread->met = meet ? rank_thread->done : rank_thread->met;
        rank_thread->done += !meet;
    }
    rank_thread->failed = rank_thread->rank.status != TSR_OK;
    pthread_cond_broadcast(&job->change);
    pthread_mutex_unlock(&job->lock);
    tsr__comm_close(rank_thread->rank.endpoint);
    return NULL;
}

// Waits until every rank is there, or has made `runs` runs; each that got so far is told as progress.
void tsr__job_wait_for(tsr_job *job, uint64_t runs)
{
    int last = -1;
    pthread_mutex_lock(&job->lock);
    for (;;) {
        int there = 0;
        for (int i = 0; i < job->n_threads; i++) {
            const struct rank_thread *rank_thread = &job->rank_threads[i];
            there += rank_thread->opened &&
                     (rank_thread->failed ||
                      (rank_thread->done >= runs && rank_thread->met >= job->meet));
        }
        if (runs == 0 && there != last)
            tsr__progress(job->session, "loading ranks", (uint64_t)there, (uint64_t)job->n_threads);
        last = there;
        if (there == job->n_threads)
            break;
        pthread_cond_wait(&job->change, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
}

// Starts a thread for each rank and waits until all have loaded; signals go to the caller's thread.
static tsr_status start_threads(tsr_job *job)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool failed = false;
    for (int i = 0; i < job->n && !failed; i++) {
        failed = tsr__fault(job->session, FAULT_SPAWN) ||
                 pthread_create(&job->rank_threads[i].thread, NULL, seat_thread,
                                &job->rank_threads[i]) != 0;
        job->n_threads += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        struct endpoint *endpoint = tsr__threads_endpoint(job->thread_transport, job->n_threads);
        tsr__comm_fail(endpoint, TSR_PEER, "a rank's thread could not be started");
        tsr__comm_close(endpoint);
    }
    tsr__job_wait_for(job, 0);
    tsr__shared_settle(&job->shared);
    if (!failed)
        return tsr__job_verdict(job);
    struct place at = PLACE_NONE;
    at.rank = job->n_threads;
    tsr__diag(job->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of threads",
              "the thread of rank %d could not be started", job->n_threads);
    return TSR_PEER;
}

// ONNX Runtime keeps one list of operator domains per process and adds to it when a session with a new one is made,
// not safely so from several threads. A session from nothing fails, but only after its domains are in the list.
static void prime(struct engine *engine, struct endpoint *any)
{
    OrtSessionOptions *options = NULL;
    OrtSession *none = NULL;
    struct ops *ops = NULL;
    OrtStatus *st = engine->primed ? NULL : engine->api->CreateSessionOptions(&options);
    if (!st && options)
        st = engine->api->SetIntraOpNumThreads(options, 1);
    if (!st && options)
        st = tsr__ops_add(engine->api, engine->minor, options, any, NULL, &ops);
    if (!st && options)
        st = engine->api->CreateSessionFromArray(engine->env, "", 0, options, &none);
    if (st)
        engine->api->ReleaseStatus(st);
    if (none)
        engine->api->ReleaseSession(none);
    if (options)
        engine->api->ReleaseSessionOptions(options);
    tsr__ops_free(ops);
    engine->primed = true;
}

static tsr_status open_threads(tsr_job *job)
{
    struct comm_options co = {.timeout_s = job->options.timeout_s};
    job->threaded = true;
    job->thread_transport = tsr__threads_new(job->session, job->n, &co);
    if (!job->thread_transport)
        return TSR_NOMEM;
    tsr_status st =
        tsr__shared_open(job->session, job->engine, &job->bundle, &job->arena, &job->shared);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < job->n; i++)
        rank_of_partition(job, &job->rank_threads[i].rank, i,
                          tsr__threads_endpoint(job->thread_transport, i));
    if (job->arena.failed)
        return TSR_NOMEM;
    prime(job->engine, tsr__threads_endpoint(job->thread_transport, 0));
    return start_threads(job);
}

// ---- opening -----------------------------------------------------------------------------------

// The folder, checked for the ranks that run here.
static tsr_status open_folder(tsr_job *job, const char *folder)
{
    const struct endpoint *endpoint = job->mpi;
    tsr_status st = tsr__bundle_open(job->session, &job->arena, folder, &job->bundle);
    if (st != TSR_OK)
        return st;
    job->has_bundle = true;
    st = tsr__run_dialect(job->session, folder, &job->bundle.manifest);
    if (st != TSR_OK)
        return st;
    const struct manifest *manifest = &job->bundle.manifest;
    if (endpoint && endpoint->size != manifest->n_ranks) {
        char text[128];
        snprintf(text, sizeof text, "a partition for %lld ranks started with %d",
                 (long long)manifest->n_ranks, endpoint->size);
        st = tsr__run_refuse(job->session, DIAG_ranks_differ, folder,
                             "start as many ranks as the partition has", text);
    }
    if (st != TSR_OK)
        return st;
    if (!endpoint)
        return tsr__bundle_verify(&job->bundle, NULL, 0, job->options.check_files);
    int64_t mine = endpoint->rank;
    return tsr__bundle_verify(&job->bundle, &mine, 1, job->options.check_files);
}

// Tells the other processes what has gone wrong here before the ranks met.
void tsr__job_tell(struct endpoint *endpoint, tsr_session *session, tsr_status status)
{
    char text[400];
    size_t n = tsr_finding_count(session);
    const char *file = "", *message = tsr_status_text(status);
    if (n) {
        file = tsr_finding_at(session, n - 1).file;
        message = tsr_finding_at(session, n - 1).message;
    }
    snprintf(text, sizeof text, "rank %d failed: %s %s", endpoint->rank, file, message);
    tsr__comm_fail(endpoint, status, text);
}

static tsr_status job_new(tsr_session *session, const tsr_run_options *options, tsr_job **out)
{
    tsr_job *job = tsr__alloc(session, sizeof *job);
    if (!job)
        return TSR_NOMEM;
    memset(job, 0, sizeof *job);
    job->session = session;
    tsr__arena_init(&job->arena, session);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->change, NULL);
    *out = job;
    tsr_status st = tsr__run_options(session, options, &job->options);
    if (st != TSR_OK || !job->options.trace)
        return st;
    return tsr__temporary_folder(session, job->options.work, "trace", &job->profiles);
}

// The one rank of this process, opened on the caller's thread.
static tsr_status open_here(tsr_job *job)
{
    tsr__rank_open(&job->rank_threads[0].rank);
    job->rank_threads[0].failed = job->rank_threads[0].rank.status != TSR_OK;
    return tsr__job_verdict(job);
}

static tsr_status make_seats(tsr_job *job, int n)
{
    job->rank_threads = ARENA_ARRAY(&job->arena, struct rank_thread, (size_t)n);
    if (!job->rank_threads)
        return TSR_NOMEM;
    job->n = n;
    for (int i = 0; i < n; i++)
        job->rank_threads[i].job = job;
    return TSR_OK;
}

// A whole model is a job of one rank that talks to nobody.
tsr_status tsr_job_open_model(tsr_session *session, const char *path,
                              const tsr_run_options *options, tsr_job **out)
{
    tsr_job *job = NULL;
    tsr_status st = job_new(session, options, &job);
    if (st == TSR_OK)
        st = tsr__engine(session, &job->engine);
    if (st == TSR_OK)
        st = make_seats(job, 1);
    if (st == TSR_OK) {
        job->is_whole = true;
        st = tsr__whole_open(session, job->engine->minor, path, job->options.work, &job->whole);
    }
    if (st == TSR_OK && tsr__gpu_named(session, job->options.device, &job->options))
        job->gpu = tsr__gpu_driver(session, job->engine, &job->options);
    if (st == TSR_OK) {
        rank_for(job, &job->rank_threads[0].rank, 0, tsr__cores(), 1);
        job->rank_threads[0].rank.path = job->whole.path;
        st = open_here(job);
    }
    if (st == TSR_OK)
        *out = job;
    else
        tsr_job_close(job);
    return st;
}

// Makes an output of the ranks that have it the input of the next run; false: none of those here does.
bool tsr__job_keep(tsr_job *job, const char *past, const char *present)
{
    bool found = false;
    for (int i = 0; i < job->n; i++)
        found |= tsr__rank_keep(&job->rank_threads[i].rank, past, present);
    const char **list = ARENA_ARRAY(&job->arena, const char *, job->n_states + 1);
    if (!list)
        return false;
    if (job->n_states)
        memcpy(list, job->states, job->n_states * sizeof *list);
    list[job->n_states++] = tsr__arena_str(&job->arena, str_of(present)).p;
    job->states = list;
    return found;
}

// What the manifest calls a state.
static tsr_status keep_states(tsr_job *job)
{
    const struct manifest *manifest = &job->bundle.manifest;
    for (size_t k = 0; k < manifest->n_states; k++)
        tsr__job_keep(job, manifest->states[k].input, manifest->states[k].output);
    return job->arena.failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                        tsr_job **out)
{
    return tsr__job_open(session, folder, options, true, out);
}

// Ranks that are children of this process.
static tsr_status open_remote(tsr_job *job, const char *folder, bool states)
{
    tsr_status st = open_folder(job, folder);
    if (st == TSR_OK)
        st = tsr__engine(job->session, &job->engine); // the children have it then
    if (job->profiles)
        job->options.work = job->profiles->path; // theirs go with this one
    const char *name = tsr__arena_str(&job->arena, str_of(folder)).p;
    if (st == TSR_OK && !name)
        st = TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    return tsr__remote_open(job->session, name, (int)job->bundle.manifest.n_ranks, &job->options,
                            states, &job->remote);
}

// Three kinds of job: children that stay (remote), the one rank of this process under a launcher
// (mpi), threads. A rank that joined and then fails tells the others, who would wait for it else.
tsr_status tsr__job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out)
{
    tsr_job *job = NULL;
    tsr_status st = job_new(session, options, &job);
    if (st == TSR_OK && tsr__run_spawns(session, &job->options)) {
        st = open_remote(job, folder, states);
        if (st == TSR_OK)
            *out = job;
        else
            tsr_job_close(job);
        return st;
    }
    if (st == TSR_OK)
        st = tsr__run_join(session, &job->options, &job->mpi);
    bool joined = st == TSR_OK && job->mpi;
    if (st == TSR_OK)
        st = open_folder(job, folder);
    if (st == TSR_OK)
        st = tsr__engine(session, &job->engine);
    if (st == TSR_OK)
        find_gpus(job);
    if (st == TSR_OK)
        st = make_seats(job, job->mpi ? 1 : (int)job->bundle.manifest.n_ranks);
    if (st == TSR_OK && job->mpi)
        rank_of_partition(job, &job->rank_threads[0].rank, job->mpi->rank, job->mpi);
    if (st == TSR_OK && job->arena.failed)
        st = TSR_NOMEM;
    if (st != TSR_OK && joined)
        tsr__job_tell(job->mpi, session, st);
    if (st == TSR_OK)
        st = job->mpi ? open_here(job) : open_threads(job);
    if (st == TSR_OK && states)
        st = keep_states(job);
    if (st == TSR_OK)
        *out = job;
    else
        tsr_job_close(job);
    return st;
}

// Threads are joined before anything that they use goes. Works on a job that was opened half.
void tsr_job_close(tsr_job *job)
{
    if (!job)
        return;
    tsr__job_finish_rest(job);
    tsr__remote_close(job->remote);
    pthread_mutex_lock(&job->lock);
    job->closing = true;
    pthread_cond_broadcast(&job->change);
    pthread_mutex_unlock(&job->lock);
    for (int i = 0; i < job->n_threads; i++)
        pthread_join(job->rank_threads[i].thread, NULL);
    for (int i = 0; i < job->n; i++) {
        tsr__rank_free(&job->rank_threads[i].rank);
        for (size_t k = 0; k < RUN_SLOTS; k++)
            tsr_tensors_free(job->rank_threads[i].pieces[k]);
    }
    if (job->engine)
        tsr__shared_close(job->engine, &job->shared);
    if (job->thread_transport)
        tsr__threads_free(job->thread_transport);
    if (job->is_whole)
        tsr__whole_close(&job->whole);
    if (job->has_bundle)
        tsr__bundle_close(&job->bundle);
    tsr__temporary_remove(job->profiles);
    pthread_cond_destroy(&job->change);
    pthread_mutex_destroy(&job->lock);
    tsr__arena_free(&job->arena);
    tsr__free(job->session, job, sizeof *job);
}
