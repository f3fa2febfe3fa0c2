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

static void rank_for(tsr_job *j, struct rank *r, int rank, int cores, int ranks)
{
    int threads = tsr__rank_threads(cores, ranks, j->options.threads);
    *r = (struct rank){
        .engine = j->engine,
        .ort_ops = j->options.ort_ops,
        .optimize = j->options.optimize,
        .float_products = j->options.float_products,
        .threads = threads,
        .spin = (int64_t)threads * ranks <= cores,
        .options = &j->options,
        .device = j->options.device,
        .gpu = j->gpu,
    };
    if (j->profiles)
        r->profile = tsr__arena_printf(&j->arena, "%s/rank%d", j->profiles->path, rank).p;
}

static void rank_of_partition(tsr_job *j, struct rank *r, int rank, struct endpoint *e)
{
    rank_for(j, r, rank, e->host_cores, e->host_ranks);
    r->endpoint = e;
    r->path = tsr__bundle_file_path(&j->bundle, &j->arena, j->bundle.manifest.devices[rank].file).p;
    r->plan = strtoull(j->bundle.manifest.plan, NULL, 16);
    r->device = j->bundle.manifest.devices[rank].device;
    r->shared = j->threaded ? &j->shared : NULL;
    r->unpacked = tsr__weights_are_large(&j->bundle.manifest, j->threaded ? -1 : rank);
}

// The driver, if any rank of the partition is on a GPU. All ranks find the same: it is in the manifest and the options.
static void find_gpus(tsr_job *j)
{
    const struct manifest *m = &j->bundle.manifest;
    bool any = false;
    for (int64_t i = 0; i < m->n_ranks; i++)
        any = any || tsr__gpu_named(m->devices[i].device, &j->options);
    if (any)
        j->gpu = tsr__gpu_driver(j->session, j->engine, &j->options);
}

// The first rank that failed by itself tells why; else whoever was told. A rank that has failed works no more, so
// what it says can be read.
tsr_status tsr__job_verdict(tsr_job *j)
{
    const struct rank *worst = NULL;
    pthread_mutex_lock(&j->lock);
    for (int i = 0; i < j->n; i++) {
        const struct rank *r = &j->seats[i].rank;
        if (j->seats[i].failed && (!worst || (worst->told && !r->told)))
            worst = r;
    }
    pthread_mutex_unlock(&j->lock);
    if (!worst)
        return TSR_OK;
    tsr__rank_findings(worst, j->session);
    return worst->status;
}

// ---- threads -----------------------------------------------------------------------------------

static void *seat_thread(void *data)
{
    struct seat *t = data;
    tsr_job *j = t->job;
    if (!j->options.no_pin) // before the session, whose threads then stay there too
        tsr__cores_keep((int)(t - j->seats), j->n);
    tsr__rank_open(&t->rank);
    pthread_mutex_lock(&j->lock);
    t->opened = true;
    while (t->rank.status == TSR_OK) {
        pthread_cond_broadcast(&j->change);
        while (!j->closing && t->done == j->asked && t->met >= j->meet)
            pthread_cond_wait(&j->change, &j->lock);
        bool meet = t->done == j->meet && t->met < j->meet;
        if (!meet && t->done == j->asked)
            break;
        pthread_mutex_unlock(&j->lock);
        if (meet)
            tsr__rank_meet(&t->rank, "end");
        else
            tsr__rank_run(&t->rank, t->done % RUN_FLIGHTS);
        pthread_mutex_lock(&j->lock);
        t->met = meet ? t->done : t->met;
        t->done += !meet;
    }
    t->failed = t->rank.status != TSR_OK;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    tsr__comm_close(t->rank.endpoint);
    return NULL;
}

// Waits until every rank is there, or has made `runs` runs; each that got so far is told as progress.
void tsr__job_wait_for(tsr_job *j, uint64_t runs)
{
    int last = -1;
    pthread_mutex_lock(&j->lock);
    for (;;) {
        int there = 0;
        for (int i = 0; i < j->n_threads; i++) {
            const struct seat *t = &j->seats[i];
            there += t->opened && (t->failed || (t->done >= runs && t->met >= j->meet));
        }
        if (runs == 0 && there != last)
            tsr__progress(j->session, "loading ranks", (uint64_t)there, (uint64_t)j->n_threads);
        last = there;
        if (there == j->n_threads)
            break;
        pthread_cond_wait(&j->change, &j->lock);
    }
    pthread_mutex_unlock(&j->lock);
}

// Starts a thread for each rank and waits until all have loaded; signals go to the caller's thread.
static tsr_status start_threads(tsr_job *j)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool failed = false;
    for (int i = 0; i < j->n && !failed; i++) {
        failed = tsr__fault(j->session, FAULT_SPAWN) ||
                 pthread_create(&j->seats[i].thread, NULL, seat_thread, &j->seats[i]) != 0;
        j->n_threads += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        struct endpoint *e = tsr__threads_endpoint(j->ways, j->n_threads);
        tsr__comm_fail(e, TSR_PEER, "a rank's thread could not be started");
        tsr__comm_close(e);
    }
    tsr__job_wait_for(j, 0);
    tsr__shared_settle(&j->shared);
    if (!failed)
        return tsr__job_verdict(j);
    struct place at = PLACE_NONE;
    at.rank = j->n_threads;
    tsr__diag(j->session, DIAG_rank_start, &at, "fewer ranks, or a higher limit of threads",
              "the thread of rank %d could not be started", j->n_threads);
    return TSR_PEER;
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

static tsr_status open_threads(tsr_job *j)
{
    struct comm_options co = {.timeout_s = j->options.timeout_s};
    j->threaded = true;
    j->ways = tsr__threads_new(j->session, j->n, &co);
    if (!j->ways)
        return TSR_NOMEM;
    tsr_status st = tsr__shared_open(j->session, j->engine, &j->bundle, &j->arena, &j->shared);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < j->n; i++)
        rank_of_partition(j, &j->seats[i].rank, i, tsr__threads_endpoint(j->ways, i));
    if (j->arena.failed)
        return TSR_NOMEM;
    prime(j->engine, tsr__threads_endpoint(j->ways, 0));
    return start_threads(j);
}

// ---- opening -----------------------------------------------------------------------------------

// Communication of another domain is for engines that have it, and for those to be started otherwise.
tsr_status tsr__run_dialect(tsr_session *s, const char *folder, const struct manifest *m)
{
    if (!m->dialect)
        return TSR_OK;
    (void)tsr__run_refuse(
        s, DIAG_engine_refused, folder,
        "run its files with a build of ONNX Runtime that has NCCL, one process for "
        "each; or partition again without --dialect",
        "this partition communicates through operators that only builds of ONNX "
        "Runtime with NCCL have");
    return TSR_ENGINE;
}

// The folder, checked for the ranks that run here.
static tsr_status open_folder(tsr_job *j, const char *folder)
{
    const struct endpoint *e = j->mpi;
    tsr_status st = tsr__bundle_open(j->session, &j->arena, folder, &j->bundle);
    if (st != TSR_OK)
        return st;
    j->has_bundle = true;
    st = tsr__run_dialect(j->session, folder, &j->bundle.manifest);
    if (st != TSR_OK)
        return st;
    const struct manifest *m = &j->bundle.manifest;
    if (e && e->size != m->n_ranks) {
        char text[128];
        snprintf(text, sizeof text, "a partition for %lld ranks started with %d",
                 (long long)m->n_ranks, e->size);
        st = tsr__run_refuse(j->session, DIAG_ranks_differ, folder,
                             "start as many ranks as the partition has", text);
    }
    int64_t mine = e ? e->rank : 0;
    if (st == TSR_OK)
        st = tsr__bundle_verify(&j->bundle, e ? &mine : NULL, e ? 1 : 0, j->options.check_files);
    return st;
}

// Tells the other processes what has gone wrong here before the ranks met.
void tsr__job_tell(struct endpoint *e, tsr_session *s, tsr_status status)
{
    char text[400];
    size_t n = tsr_finding_count(s);
    snprintf(text, sizeof text, "rank %d failed: %s %s", e->rank,
             n ? tsr_finding_at(s, n - 1).file : "",
             n ? tsr_finding_at(s, n - 1).message : tsr_status_text(status));
    tsr__comm_fail(e, status, text);
}

static tsr_status job_new(tsr_session *s, const tsr_run_options *options, tsr_job **out)
{
    tsr_job *j = tsr__alloc(s, sizeof *j);
    if (!j)
        return TSR_NOMEM;
    memset(j, 0, sizeof *j);
    j->session = s;
    tsr__arena_init(&j->arena, s);
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->change, NULL);
    *out = j;
    tsr_status st = tsr__run_options(s, options, &j->options);
    if (st != TSR_OK || !j->options.trace)
        return st;
    return tsr__temporary_folder(s, j->options.work, "trace", &j->profiles);
}

// The one rank of this process, opened on the caller's thread.
static tsr_status open_here(tsr_job *j)
{
    tsr__rank_open(&j->seats[0].rank);
    j->seats[0].failed = j->seats[0].rank.status != TSR_OK;
    return tsr__job_verdict(j);
}

static tsr_status make_seats(tsr_job *j, int n)
{
    j->seats = ARENA_ARRAY(&j->arena, struct seat, (size_t)n);
    if (!j->seats)
        return TSR_NOMEM;
    j->n = n;
    for (int i = 0; i < n; i++)
        j->seats[i].job = j;
    return TSR_OK;
}

tsr_status tsr_job_open_model(tsr_session *s, const char *path, const tsr_run_options *options,
                              tsr_job **out)
{
    tsr_job *j = NULL;
    tsr_status st = job_new(s, options, &j);
    if (st == TSR_OK)
        st = tsr__engine(s, &j->engine);
    if (st == TSR_OK)
        st = make_seats(j, 1);
    if (st == TSR_OK) {
        j->is_whole = true;
        st = tsr__whole_open(s, j->engine->minor, path, j->options.work, &j->whole);
    }
    if (st == TSR_OK && tsr__gpu_named(j->options.device, &j->options))
        j->gpu = tsr__gpu_driver(s, j->engine, &j->options);
    if (st == TSR_OK) {
        rank_for(j, &j->seats[0].rank, 0, tsr__cores(), 1);
        j->seats[0].rank.path = j->whole.path;
        st = open_here(j);
    }
    if (st == TSR_OK)
        *out = j;
    else
        tsr_job_close(j);
    return st;
}

// Makes an output of the ranks that have it the input of the next run; false: none of those here does.
bool tsr__job_keep(tsr_job *j, const char *past, const char *present)
{
    bool found = false;
    for (int i = 0; i < j->n; i++)
        found |= tsr__rank_keep(&j->seats[i].rank, past, present);
    const char **list = ARENA_ARRAY(&j->arena, const char *, j->n_states + 1);
    if (!list)
        return false;
    if (j->n_states)
        memcpy(list, j->states, j->n_states * sizeof *list);
    list[j->n_states++] = tsr__arena_str(&j->arena, str_of(present)).p;
    j->states = list;
    return found;
}

// What the manifest calls a state.
static tsr_status keep_states(tsr_job *j)
{
    const struct manifest *m = &j->bundle.manifest;
    for (size_t k = 0; k < m->n_states; k++)
        tsr__job_keep(j, m->states[k].input, m->states[k].output);
    return j->arena.failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_job_open(tsr_session *s, const char *folder, const tsr_run_options *options,
                        tsr_job **out)
{
    return tsr__job_open(s, folder, options, true, out);
}

// Ranks that are children of this process.
static tsr_status open_remote(tsr_job *j, const char *folder, bool states)
{
    tsr_status st = open_folder(j, folder);
    if (st == TSR_OK)
        st = tsr__engine(j->session, &j->engine); // the children have it then
    if (j->profiles)
        j->options.work = j->profiles->path; // theirs go with this one
    const char *name = tsr__arena_str(&j->arena, str_of(folder)).p;
    if (st == TSR_OK && !name)
        st = TSR_NOMEM;
    return st == TSR_OK ? tsr__remote_open(j->session, name, (int)j->bundle.manifest.n_ranks,
                                           &j->options, states, &j->remote)
                        : st;
}

tsr_status tsr__job_open(tsr_session *s, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out)
{
    tsr_job *j = NULL;
    tsr_status st = job_new(s, options, &j);
    if (st == TSR_OK && tsr__run_spawns(s, &j->options)) {
        st = open_remote(j, folder, states);
        if (st == TSR_OK)
            *out = j;
        else
            tsr_job_close(j);
        return st;
    }
    if (st == TSR_OK)
        st = tsr__run_join(s, &j->options, &j->mpi);
    bool joined = st == TSR_OK && j->mpi;
    if (st == TSR_OK)
        st = open_folder(j, folder);
    if (st == TSR_OK)
        st = tsr__engine(s, &j->engine);
    if (st == TSR_OK)
        find_gpus(j);
    if (st == TSR_OK)
        st = make_seats(j, j->mpi ? 1 : (int)j->bundle.manifest.n_ranks);
    if (st == TSR_OK && j->mpi)
        rank_of_partition(j, &j->seats[0].rank, j->mpi->rank, j->mpi);
    if (st == TSR_OK && j->arena.failed)
        st = TSR_NOMEM;
    if (st != TSR_OK && joined)
        tsr__job_tell(j->mpi, s, st);
    if (st == TSR_OK)
        st = j->mpi ? open_here(j) : open_threads(j);
    if (st == TSR_OK && states)
        st = keep_states(j);
    if (st == TSR_OK)
        *out = j;
    else
        tsr_job_close(j);
    return st;
}

void tsr_job_close(tsr_job *j)
{
    if (!j)
        return;
    tsr__job_finish_rest(j);
    tsr__remote_close(j->remote);
    pthread_mutex_lock(&j->lock);
    j->closing = true;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    for (int i = 0; i < j->n_threads; i++)
        pthread_join(j->seats[i].thread, NULL);
    for (int i = 0; i < j->n; i++) {
        tsr__rank_free(&j->seats[i].rank);
        for (size_t k = 0; k < RUN_FLIGHTS; k++)
            tsr_tensors_free(j->seats[i].pieces[k]);
    }
    if (j->engine)
        tsr__shared_close(j->engine, &j->shared);
    if (j->ways)
        tsr__threads_free(j->ways);
    if (j->is_whole)
        tsr__whole_close(&j->whole);
    if (j->has_bundle)
        tsr__bundle_close(&j->bundle);
    tsr__temporary_remove(j->profiles);
    pthread_cond_destroy(&j->change);
    pthread_mutex_destroy(&j->lock);
    tsr__arena_free(&j->arena);
    tsr__free(j->session, j, sizeof *j);
}
