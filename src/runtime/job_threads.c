// SPDX-License-Identifier: Apache-2.0
// job_threads.c - the job of a partition whose ranks are threads of this process that wait for
// work.
//
// A rank works on one run at a time, in order. It may be ahead of another rank as far as their
// communication allows, so that several runs go through the stages of a pipeline. A rank that fails
// ends the job. When the caller waits for the last started run, all ranks synchronize at its end: a
// rank that skipped a communication is detected there, and no wait is endless.
//
// The caller's thread can take over rank 0 (tsr__job_take_rank_0), whose thread then ends. It makes
// the runs of rank 0 while it waits for them, so a job needs no more threads than ranks.
//
// Locking: the caller's thread writes runs_started, sync_after and closing; a rank's thread writes
// its own opened, runs_done, runs_synced and failed. All of them are protected by job->lock. The
// caller's thread broadcasts job->posted after a change, a rank's thread job->change. Inside a run
// a rank holds no lock of the job: it waits for other ranks only in the transport. So a rank that
// hangs in a communication does not block the lock, and the transport's time-out ends its wait.
//
// If a rank fails, tsr__rank_run reports it to the transport (tsr__comm_fail). The communication of
// every other rank then fails, too, and each thread sets `failed` and ends. The function wait_for
// counts failed ranks as arrived, so the caller returns. tsr__ranks_verdict prefers a rank that
// failed by itself.
#include "runtime/job.h"

#include <sched.h>

#define SPIN_S        0.001 // longest time that a rank spins before it sleeps
#define CALLER_SPIN_S 0.005 // the same for the caller's thread, if it has a core of its own
#define SPIN_POLLS    64    // polls between two looks at the clock

// ---- both threads ------------------------------------------------------------------------------

// True if the rank is loaded, has made `runs` runs and has synchronized where required; or if it
// has failed.
static bool is_there(const struct rank_thread *rank_thread, uint64_t runs)
{
    if (!rank_thread->opened)
        return false;
    return rank_thread->failed || (rank_thread->runs_done >= runs &&
                                   rank_thread->runs_synced >= rank_thread->job->sync_after);
}

static int count_there(const tsr_job *job, uint64_t runs)
{
    int there = 0;
    for (int i = 0; i < job->n_threads; i++)
        there += is_there(&job->rank_threads[i], runs);
    return there;
}

// Waits a short time without sleeping until the other side raises its counter. A sleeping thread
// needs up to 50 microseconds to wake up, and a program that generates text starts its next run
// within one millisecond. Called with the lock, which is released meanwhile.
static void spin(tsr_job *job, atomic_uint_fast64_t *counter, double seconds)
{
    uint64_t seen = atomic_load(counter);
    double until = tsr__now_s() + seconds;
    pthread_mutex_unlock(&job->lock);
    for (unsigned polls = 1; atomic_load_explicit(counter, memory_order_acquire) == seen; polls++) {
        if (job->spare_core)
            tsr__relax();
        else
            sched_yield(); // the other thread may need this core
        if (polls % SPIN_POLLS == 0 && tsr__now_s() > until)
            break;
    }
    pthread_mutex_lock(&job->lock);
}

// ---- a rank's thread ---------------------------------------------------------------------------

// What a rank does next. NONE: it waits. STOP: its thread ends.
enum task { NONE, RUN, MEET, STOP };

// True if this rank must synchronize now: the caller wants a barrier after sync_after runs, and
// this rank has made exactly that number but not synchronized yet. A rank that is behind runs
// first. No rank can be ahead: the thread that starts runs sets sync_after to runs_started and then
// waits.
static bool must_meet(const struct rank_thread *rank_thread)
{
    const tsr_job *job = rank_thread->job;
    return rank_thread->runs_done == job->sync_after && rank_thread->runs_synced < job->sync_after;
}

// True if the caller's thread makes the runs of this rank.
static bool is_callers(const struct rank_thread *rank_thread)
{
    return rank_thread->job->caller_runs_0 && rank_thread == rank_thread->job->rank_threads;
}

// Returns what the rank has to do, under the job's lock. A rank stops only after all started runs,
// because other ranks wait for its part of them.
static enum task pending_task(const struct rank_thread *rank_thread)
{
    const tsr_job *job = rank_thread->job;
    if (must_meet(rank_thread))
        return MEET;
    if (rank_thread->runs_done < job->runs_started)
        return RUN;
    return job->closing || is_callers(rank_thread) ? STOP : NONE;
}

// Waits, under the job's lock, until there is something to do, and returns it.
static enum task next_task(const struct rank_thread *rank_thread)
{
    tsr_job *job = rank_thread->job;
    enum task task = pending_task(rank_thread);
    if (task == NONE && rank_thread->rank.spin && rank_thread->runs_done)
        spin(job, &job->n_posted, SPIN_S);
    while ((task = pending_task(rank_thread)) == NONE)
        pthread_cond_wait(&job->posted, &job->lock);
    return task;
}

// Wakes the caller's thread if it can continue. While ranks load, every rank wakes the caller's
// thread, because that thread reports progress.
static void report_progress(tsr_job *job)
{
    if (job->awaited != 0 && count_there(job, job->awaited) < job->n_threads)
        return;
    atomic_fetch_add(&job->n_changed, 1);
    pthread_cond_broadcast(&job->change);
}

// Runs or synchronizes, without the job's lock.
static void perform(struct rank_thread *rank_thread, enum task task)
{
    tsr_job *job = rank_thread->job;
    pthread_mutex_unlock(&job->lock);
    if (task == MEET)
        tsr__rank_meet(&rank_thread->rank, "end");
    else
        tsr__rank_run(&rank_thread->rank, rank_thread->runs_done % RUN_SLOTS);
    pthread_mutex_lock(&job->lock);
    if (task == MEET)
        rank_thread->runs_synced = rank_thread->runs_done;
    else
        rank_thread->runs_done++;
}

// Runs and synchronizes until the thread must end or the rank fails. The lock is held except during
// work. Each iteration first reports what the previous one changed (the first time: that the rank
// is open).
static void work(struct rank_thread *rank_thread)
{
    while (rank_thread->rank.status == TSR_OK) {
        report_progress(rank_thread->job);
        enum task task = next_task(rank_thread);
        if (task == STOP)
            return;
        perform(rank_thread, task);
    }
}

// Runs the thread of a rank from start to end. The rank is opened without the lock, so that all
// ranks load in parallel; its diagnostics go to its own session.
static void *rank_main(void *data)
{
    struct rank_thread *rank_thread = data;
    tsr_job *job = rank_thread->job;
    if (!job->options.no_pin) // before the engine's session, whose threads then stay there too
        tsr__cores_keep((int)(rank_thread - job->rank_threads), job->n);
    tsr__rank_open(&rank_thread->rank);
    pthread_mutex_lock(&job->lock);
    rank_thread->opened = true;
    work(rank_thread);
    rank_thread->failed = rank_thread->rank.status != TSR_OK;
    report_progress(job);
    bool taken_over = is_callers(rank_thread) && !rank_thread->failed;
    pthread_mutex_unlock(&job->lock);
    if (taken_over)
        return NULL;
    // Ranks that still wait for this one get an error now. The endpoint is closed last, so that a
    // failure of this rank, which is more informative, is reported first.
    tsr__comm_close(rank_thread->rank.endpoint);
    return NULL;
}

// ---- the caller's thread -----------------------------------------------------------------------

// Makes the started runs of rank 0 if the caller has taken it over.
static void work_as_rank_0(tsr_job *job)
{
    struct rank_thread *rank_thread = &job->rank_threads[0];
    enum task task;
    if (!job->caller_runs_0)
        return;
    pthread_mutex_lock(&job->lock);
    while (rank_thread->rank.status == TSR_OK && (task = pending_task(rank_thread)) != STOP)
        perform(rank_thread, task);
    rank_thread->failed = rank_thread->rank.status != TSR_OK;
    pthread_mutex_unlock(&job->lock);
    if (rank_thread->failed) // as at the end of rank_main
        tsr__comm_close(rank_thread->rank.endpoint);
}

// Waits until every rank has made `runs` runs or has failed. runs 0: waits until every rank is
// loaded, and reports the number of loaded ranks as progress.
static void wait_for(tsr_job *job, uint64_t runs)
{
    int last = -1;
    pthread_mutex_lock(&job->lock);
    job->awaited = runs;
    if (job->spare_core && runs > 0 && count_there(job, runs) < job->n_threads)
        spin(job, &job->n_changed, CALLER_SPIN_S);
    for (;;) {
        int there = count_there(job, runs);
        // Loading is the one phase that takes long enough to be shown.
        if (runs == 0 && there != last)
            tsr__progress(job->session, "loading ranks", (uint64_t)there, (uint64_t)job->n_threads);
        last = there;
        if (there == job->n_threads)
            break;
        pthread_cond_wait(&job->change, &job->lock);
    }
    pthread_mutex_unlock(&job->lock);
}

// Notifies the ranks, under the lock, that there may be something to do.
static void post(tsr_job *job)
{
    atomic_fetch_add(&job->n_posted, 1);
    pthread_cond_broadcast(&job->posted);
}

// Sets the number of runs after which all ranks synchronize. Callers pass runs_started, so no rank
// is past it.
static void sync_after(tsr_job *job, uint64_t runs)
{
    pthread_mutex_lock(&job->lock);
    job->sync_after = runs;
    post(job);
    pthread_mutex_unlock(&job->lock);
}

// Starts a thread for each rank. False: the thread of rank n_threads could not be started.
static bool create_threads(tsr_job *job)
{
    for (; job->n_threads < job->n; job->n_threads++) {
        struct rank_thread *next = &job->rank_threads[job->n_threads];
        if (!tsr__thread_start(job->session, &next->thread, rank_main, next))
            return false;
    }
    return true;
}

// Starts the ranks and waits until all have loaded. If one cannot be started, the others are
// notified; otherwise they would wait for it.
static tsr_status start_threads(tsr_job *job)
{
    bool created = create_threads(job);
    // The endpoint of the first rank without a thread reports the failure and is closed. Those of
    // later ranks need nothing, because the job has failed for all.
    if (!created) {
        struct endpoint *endpoint = tsr__threads_endpoint(job->thread_transport, job->n_threads);
        tsr__comm_fail(endpoint, TSR_PEER, "the thread of a rank could not be started");
        tsr__comm_close(endpoint);
    }
    wait_for(job, 0);
    tsr__memory_settle();
    if (created)
        return tsr__ranks_verdict(job);
    struct place at = PLACE_NONE;
    at.rank = job->n_threads;
    return tsr__fail(job->session, TSR_PEER, DIAG_rank_start, &at,
                     "use fewer ranks, or raise the limit of threads (ulimit -u)",
                     "cannot start the thread of rank %d", job->n_threads);
}

// ---- opening -----------------------------------------------------------------------------------

// Registers our operator domain and those of the user's library before the ranks create their
// engine sessions in parallel. ONNX Runtime has one list of operator domains per process. Creating
// an engine session with a new domain adds to this list, but not thread-safely
// (QUIRK_domain_race). Creating one without a model fails, but only after its domains are in the
// list.
static void prime(struct engine *engine, const struct rank *any)
{
    const OrtApi *api = engine->api;
    OrtSessionOptions *options = NULL;
    OrtSession *none = NULL;
    struct ops *ops = NULL;
    OrtStatus *failed = api->CreateSessionOptions(&options);
    if (!failed)
        failed = api->SetIntraOpNumThreads(options, 1);
    if (!failed)
        failed = tsr__ops_add(api, engine->minor, options, any->endpoint, NULL, &ops);
    if (!failed && any->ort_ops)
        failed = api->RegisterCustomOpsLibrary_V2(options, any->ort_ops);
    if (!failed)
        failed = api->CreateSessionFromArray(engine->env, "", 0, options, &none);
    if (failed)
        api->ReleaseStatus(failed);
    if (none)
        api->ReleaseSession(none);
    if (options)
        api->ReleaseSessionOptions(options);
    tsr__ops_free(ops);
}

// Creates the transport between the threads, opens the shared weights, and describes the ranks.
static tsr_status describe_ranks(tsr_job *job)
{
    bool unpacked = tsr__weights_are_large(&job->bundle.manifest, -1);
    job->thread_transport = tsr__threads_new(job->session, job->n);
    if (!job->thread_transport)
        return TSR_NOMEM;
    TRY(tsr__shared_open(job->session, job->engine, &job->bundle, &job->arena, &job->shared));
    for (int i = 0; i < job->n; i++) {
        struct rank *rank = &job->rank_threads[i].rank;
        tsr__ranks_describe_part(job, rank, i, tsr__threads_endpoint(job->thread_transport, i));
        rank->shared = &job->shared;
        rank->unpacked = unpacked;
        // the threads of ranks on GPUs rarely compute
        int64_t threads = job->gpu ? 1 : rank->threads;
        job->spare_core = threads * job->n < rank->endpoint->host_cores;
    }
    return job->arena.failed ? TSR_NOMEM : TSR_OK;
}

// Reports that each rank packs weights for itself, because the engine refused to share packed
// weights. Adds one diagnostic for all ranks, because they have the same kernels.
static void note_unshared_packing(const tsr_job *job)
{
    for (int i = 0; i < job->n; i++) {
        const struct rank *rank = &job->rank_threads[i].rank;
        if (!rank->container_refused)
            continue;
        struct place at = tsr__rank_place(rank);
        tsr__diag(job->session, DIAG_packed_unshared, &at, NULL,
                  "a kernel of this model cannot share packed weights between ranks, so each rank "
                  "has its own copy");
        return;
    }
}

// Opens the job: folder and engine, descriptions of the ranks, the domain of our operators,
// threads. States are set last, on the caller's thread, when the ranks know the names of their
// inputs and wait for work.
static tsr_status threads_open(tsr_job *job, const char *folder, bool states)
{
    TRY(tsr__ranks_prepare(job, folder));
    TRY(describe_ranks(job));
    prime(job->engine, &job->rank_threads[0].rank);
    TRY(start_threads(job));
    note_unshared_packing(job);
    return states ? tsr__ranks_keep_named(job) : TSR_OK;
}

// ---- runs --------------------------------------------------------------------------------------

// Starts a run: binds inputs on the caller's thread. No rank uses slot runs_started % RUN_SLOTS:
// its last run was collected (job.c counts), and the ranks learn of the new run under the lock
// below.
static tsr_status threads_start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    TRY(tsr__ranks_bind(job, inputs, form));
    pthread_mutex_lock(&job->lock);
    job->runs_started++;
    if (!job->caller_runs_0) // else the ranks would wait for rank 0: threads_finish posts
        post(job);
    pthread_mutex_unlock(&job->lock);
    return TSR_OK;
}

// Takes the results of all ranks, each into its set. If `sets` or a set is NULL, drops them. All
// are taken even after a failure, because that frees their slot.
static tsr_status take_all(tsr_job *job, void *slot, tsr_tensors *const *sets)
{
    size_t run_slot = *(const size_t *)slot;
    tsr_status first = TSR_OK;
    for (int i = 0; i < job->n; i++) {
        tsr_tensors *to = NULL;
        if (sets && first == TSR_OK)
            to = sets[i];
        tsr_status st = tsr__rank_take(&job->rank_threads[i].rank, run_slot, job->session, to);
        if (first == TSR_OK)
            first = st;
    }
    return first;
}

// Takes full outputs that are all on rank 0, and drops the values of the other ranks.
static tsr_status take_first(tsr_job *job, size_t run_slot, tsr_tensors *outputs)
{
    tsr_status st = tsr__rank_take(&job->rank_threads[0].rank, run_slot, job->session, outputs);
    for (int i = 1; i < job->n; i++)
        tsr__rank_drop(&job->rank_threads[i].rank, run_slot);
    return st;
}

// Takes the outputs of a run that all ranks have made, and releases its inputs.
static tsr_status collect(tsr_job *job, size_t run_slot, tsr_tensors *const *outputs,
                          enum run_sets form)
{
    tsr_status st = tsr__ranks_verdict(job);
    if (st != TSR_OK) {
        take_all(job, &run_slot, NULL);
        return st;
    }
    if (form == SET_PER_RANK)
        return take_all(job, &run_slot, outputs);
    if (job->places && outputs[0]) {
        st = tsr__job_place_outputs(job, run_slot);
        if (st != TSR_OK) {
            take_all(job, &run_slot, NULL);
            return st;
        }
    }
    if (outputs[0] && tsr__job_handed(job))
        return tsr__hand_collect(job, take_all, &run_slot, outputs[0]);
    return take_first(job, run_slot, outputs[0]);
}

// Collects run runs_collected. The ranks synchronize only after the last pending run, so that they
// do not hold each other back in a pipeline.
static tsr_status threads_finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    bool last = job->runs_started == job->runs_collected + 1;
    if (last || job->caller_runs_0)
        sync_after(job, last ? job->runs_started : job->sync_after);
    work_as_rank_0(job);
    wait_for(job, job->runs_collected + 1);
    size_t run_slot = job->runs_collected++ % RUN_SLOTS;
    tsr_status st = collect(job, run_slot, outputs, form);
    if (st == TSR_OK) // after a failure a GPU may still read them
        tsr__ranks_free_pieces(job, run_slot);
    return st;
}

// ---- the rest ----------------------------------------------------------------------------------

static tsr_status threads_add_state(tsr_job *job, const char *past, const char *present)
{
    return tsr__ranks_keep(job, past, present, false) ? TSR_OK : TSR_INVALID;
}

// Waits until every rank has made all started runs and synchronized after them: no message is
// pending. The results stay in their slots for threads_finish.
static tsr_status threads_barrier(tsr_job *job)
{
    sync_after(job, job->runs_started);
    work_as_rank_0(job);
    wait_for(job, job->runs_started);
    return tsr__ranks_verdict(job);
}

// Ends the rank threads. Threads are joined before anything that they use is freed.
static void threads_close(tsr_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->closing = true;
    post(job);
    pthread_mutex_unlock(&job->lock);
    work_as_rank_0(job);
    if (job->caller_runs_0)
        tsr__comm_close(job->rank_threads[0].rank.endpoint);
    for (int i = job->caller_runs_0 ? 1 : 0; i < job->n_threads; i++)
        pthread_join(job->rank_threads[i].thread, NULL);
    // The engine's sessions have views of the shared weights, and the operators of the ranks use
    // the transport, hence the order: ranks, weights, transport.
    tsr__ranks_free(job);
    if (job->engine)
        tsr__shared_close(job->engine, &job->shared);
    if (job->thread_transport)
        tsr__threads_free(job->thread_transport);
}

void tsr__job_take_rank_0(tsr_job *job)
{
    if (job->kind != &tsr__job_threads || job->gpu || job->caller_runs_0)
        return;
    pthread_mutex_lock(&job->lock);
    job->caller_runs_0 = true;
    job->spare_core = job->rank_threads[0].rank.spin; // no thread beside the ranks needs a core
    post(job);
    pthread_mutex_unlock(&job->lock);
    pthread_join(job->rank_threads[0].thread, NULL);
}

const struct job_kind tsr__job_threads = {
    .open = threads_open,
    .start = threads_start,
    .finish = threads_finish,
    .add_state = threads_add_state,
    .barrier = threads_barrier,
    .trace = tsr__ranks_trace,
    .verdict = tsr__ranks_verdict,
    .close = threads_close,
};
