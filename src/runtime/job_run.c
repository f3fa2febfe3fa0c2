// SPDX-License-Identifier: Apache-2.0
// job_run.c - the runs of a job: inputs bound, ranks told to begin, outputs brought to whoever waits.
//
// Outputs that are not rank 0's come from the ranks that the manifest names. Between threads they are taken where they
// lie; between processes they are on their way to rank 0 as soon as they are made, so that no rank waits for another's
// results before it begins its next run.
#include "runtime/job.h"

// Inputs that the model does not have are most likely misspelt.
static void note_unknown(tsr_job *job, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    for (size_t i = 0; i < inputs->n; i++) {
        bool known = false;
        for (size_t k = 0; k < manifest->n_inputs && !known; k++)
            known = strcmp(manifest->inputs[k].name, inputs->at[i]->name) == 0;
        struct place at = PLACE_NONE;
        at.value = str_of(inputs->at[i]->name);
        if (!known)
            tsr__diag(job->session, DIAG_input_unknown, &at, NULL,
                      "the model has no input of this name");
    }
}

static tsr_status too_many(tsr_job *job, const char *text)
{
    return tsr__run_refuse(job->session, DIAG_run_order, NULL, "take results with tsr_job_wait",
                           text);
}

static int64_t rank_of(const tsr_job *job, int rank_thread)
{
    return job->mpi ? job->mpi->rank : rank_thread;
}

// The rank's pieces of whole inputs, if it has any.
static tsr_status cut_for(tsr_job *job, int rank_thread, size_t run_slot, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    tsr_tensors **pieces = &job->rank_threads[rank_thread].pieces[run_slot];
    tsr_tensors_free(*pieces);
    *pieces = NULL;
    if (!job->has_bundle || !tsr__cut_any(manifest->inputs, manifest->n_inputs))
        return TSR_OK;
    tsr_status st = tsr_tensors_new(job->session, pieces);
    if (st != TSR_OK)
        return st;
    return tsr__cut_inputs(manifest, rank_of(job, rank_thread), inputs, *pieces);
}

// Binds the inputs of a run slot to all ranks that run here, or to none.
static tsr_status bind(tsr_job *job, size_t run_slot, const tsr_tensors *const *inputs, bool each)
{
    for (int i = 0; i < job->n; i++) {
        struct rank_thread *rank_thread = &job->rank_threads[i];
        const tsr_tensors *own = inputs[each ? i : 0], *pieces = NULL;
        tsr_status st = each ? TSR_OK : cut_for(job, i, run_slot, inputs[0]);
        if (!each)
            pieces = rank_thread->pieces[run_slot];
        if (st == TSR_OK)
            st = tsr__rank_bind(&rank_thread->rank, run_slot, own, pieces, job->session,
                                job->asked > 0);
        if (st == TSR_OK)
            continue;
        for (int k = 0; k < i; k++)
            tsr__rank_drop(&job->rank_threads[k].rank, run_slot);
        return st;
    }
    return TSR_OK;
}

// The sets of a call: one, or (each) one for each rank that runs here.
static tsr_status sets_owned(const tsr_job *job, const tsr_tensors *const *sets, bool each)
{
    int here = 1;
    if (each)
        tsr_job_ranks(job, &here);
    for (int i = 0; i < here; i++) {
        tsr_status status = tsr__tensors_owned(job->session, sets[i]);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

// inputs: one set for all ranks, or (each) one for each rank that runs here.
static tsr_status start(tsr_job *job, const tsr_tensors *const *inputs, bool each)
{
    if (job->asked - job->taken == RUN_SLOTS)
        return too_many(job, "too many runs are under way");
    tsr_status st = sets_owned(job, inputs, each);
    if (job->remote) {
        if (st != TSR_OK)
            return st;
        tsr_status told = tsr__remote_start(job->remote, inputs, each);
        job->asked += told == TSR_OK;
        return told;
    }
    if (st == TSR_OK)
        st = tsr__job_verdict(job); // a job whose rank has failed runs no more
    if (st == TSR_OK && !each && job->has_bundle)
        st = tsr__named_check(&job->bundle.manifest, job->session, inputs[0]);
    size_t run_slot = job->asked % RUN_SLOTS;
    if (st == TSR_OK)
        st = bind(job, run_slot, inputs, each);
    if (st != TSR_OK) {
        if (job->mpi)
            tsr__job_tell(job->mpi, job->session, st);
        return st;
    }
    pthread_mutex_lock(&job->lock);
    job->asked++;
    pthread_cond_broadcast(&job->change);
    pthread_mutex_unlock(&job->lock);
    if (job->threaded)
        return TSR_OK;
    tsr__rank_run(&job->rank_threads[0].rank, run_slot);
    job->rank_threads[0].failed = job->rank_threads[0].rank.status != TSR_OK;
    return TSR_OK;
}

static void meet_at(tsr_job *job, uint64_t run)
{
    pthread_mutex_lock(&job->lock);
    job->meet = run;
    pthread_cond_broadcast(&job->change);
    pthread_mutex_unlock(&job->lock);
}

static struct handover handover_of(const tsr_job *job)
{
    return (struct handover){.session = job->session,
                             .manifest = &job->bundle.manifest,
                             .states = job->states,
                             .n_states = job->n_states,
                             .place = job->mpi,
                             .plan = job->n ? job->rank_threads[0].rank.plan : 0};
}

// Whole outputs are asked for, and not all of them are rank 0's.
static bool is_handed(const tsr_job *job)
{
    struct handover handover = handover_of(job);
    return job->has_bundle && tsr__hand_any(&handover);
}

// The rank of this process has outputs for rank 0.
static bool gives_here(const tsr_job *job)
{
    struct handover handover = handover_of(job);
    return job->mpi && job->mpi->rank > 0 && is_handed(job) &&
           tsr__hand_gives(&handover, job->mpi->rank);
}

// The rank of this process gives rank 0 its outputs of a run slot, if it has any for it.
static tsr_status give(tsr_job *job, size_t run_slot, uint64_t run)
{
    struct handover handover = handover_of(job);
    tsr_tensors *mine = NULL;
    job->given[run_slot] = true;
    if (!gives_here(job))
        return TSR_OK;
    tsr_status st = tsr_tensors_new(job->session, &mine);
    if (st == TSR_OK)
        st = tsr__rank_copy(&job->rank_threads[0].rank, run_slot, job->session, mine);
    if (st == TSR_OK)
        st = tsr__hand_give(&handover, run, mine);
    tsr_tensors_free(mine);
    return st;
}

static tsr_tensors **sets_new(tsr_job *job, struct arena *arena)
{
    int64_t n = job->bundle.manifest.n_ranks;
    tsr_tensors **sets = ARENA_ARRAY(arena, tsr_tensors *, (size_t)n);
    for (int64_t r = 0; sets && r < n; r++)
        if (tsr_tensors_new(job->session, &sets[r]) != TSR_OK) {
            arena->failed = true;
            break;
        }
    return sets;
}

static void sets_free(const tsr_job *job, tsr_tensors **sets)
{
    for (int64_t r = 0; sets && r < job->bundle.manifest.n_ranks; r++)
        tsr_tensors_free(sets[r]);
}

// The end of a run for what went from rank to rank: rank 0 takes it into sets, the others wait until it has.
static tsr_status meet_gifts(tsr_job *job, uint64_t run, tsr_tensors *const *sets)
{
    struct handover handover = handover_of(job);
    job->given[run % RUN_SLOTS] = false;
    if (!job->mpi)
        return TSR_OK;
    if (job->mpi->rank == 0)
        return tsr__hand_take(&handover, run, sets);
    if (gives_here(job))
        return tsr__hand_settle(&handover, run);
    return TSR_OK;
}

// The end of a run where some outputs are other ranks': they are brought together. each: nobody wants them so, but they
// may be under way since the run began.
static tsr_status finish_handed(tsr_job *job, uint64_t run, tsr_tensors *const *outputs, bool each)
{
    struct arena arena;
    struct handover handover = handover_of(job);
    size_t run_slot = run % RUN_SLOTS;
    tsr__arena_init(&arena, job->session);
    tsr_tensors **sets = sets_new(job, &arena);
    tsr_status st = arena.failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && !each && !job->given[run_slot])
        st = give(job, run_slot, run);
    for (int i = 0; i < job->n; i++) {
        tsr_tensors *to = each ? outputs[i] : NULL;
        if (st == TSR_OK && !each && outputs[0])
            to = sets[rank_of(job, i)];
        tsr_status one = tsr__rank_take(&job->rank_threads[i].rank, run_slot, job->session, to);
        st = st == TSR_OK ? one : st;
    }
    if (st == TSR_OK && job->given[run_slot])
        st = meet_gifts(job, run, sets);
    bool mine = !job->mpi || job->mpi->rank == 0;
    if (st == TSR_OK && !each && outputs[0] && mine)
        st = tsr__hand_join(&handover, sets, outputs[0]);
    sets_free(job, sets);
    tsr__arena_free(&arena);
    return st;
}

// Run `taken` is the one that is waited for. When it is also the last that was asked for, the
// ranks meet at its end. Every rank's results are taken even after a failure: that frees its
// slot.
static tsr_status finish(tsr_job *job, tsr_tensors *const *outputs, bool each)
{
    if (job->asked == job->taken)
        return too_many(job, "no run is under way");
    tsr_status owned = sets_owned(job, (const tsr_tensors *const *)outputs, each);
    if (owned != TSR_OK)
        return owned; // the run can be waited for again
    if (job->remote) {
        struct handover handover = handover_of(job);
        job->taken++;
        return tsr__remote_wait(job->remote, each ? NULL : &handover, outputs);
    }
    if (job->threaded && job->asked == job->taken + 1)
        meet_at(job, job->asked);
    if (job->threaded)
        tsr__job_wait_for(job, job->taken + 1);
    uint64_t run = job->taken++;
    size_t run_slot = run % RUN_SLOTS;
    tsr_status st = tsr__job_verdict(job);
    if (st == TSR_OK && is_handed(job))
        return finish_handed(job, run, outputs, each);
    bool takes = !job->mpi || job->mpi->rank == 0 || each;
    for (int i = 0; i < job->n; i++) {
        tsr_tensors *to = NULL;
        if (st == TSR_OK && takes && (each || i == 0))
            to = outputs[each ? i : 0];
        tsr_status one = tsr__rank_take(&job->rank_threads[i].rank, run_slot, job->session, to);
        st = st == TSR_OK ? one : st;
    }
    return st;
}

void tsr__job_finish_rest(tsr_job *job)
{
    tsr_tensors *none = NULL;
    if (!job->mpi || !job->has_bundle || !is_handed(job))
        return;
    while (job->asked > job->taken)
        if (finish(job, &none, false) != TSR_OK)
            return;
}

tsr_status tsr__job_start_own(tsr_job *job, const tsr_tensors *inputs)
{
    if (!job->is_whole)
        note_unknown(job, inputs);
    return start(job, &inputs, false);
}

// Where ranks are processes, outputs are on their way to rank 0 before the run is waited for, so that this rank can
// begin the next one.
tsr_status tsr_job_start(tsr_job *job, const tsr_tensors *inputs)
{
    uint64_t run = job->asked;
    tsr_status st = tsr__job_start_own(job, inputs);
    if (st != TSR_OK || job->remote || !job->mpi || job->rank_threads[0].failed || !is_handed(job))
        return st;
    return give(job, run % RUN_SLOTS, run);
}

tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs)
{
    return start(job, inputs, true);
}

tsr_status tsr_job_wait(tsr_job *job, tsr_tensors *outputs)
{
    return finish(job, &outputs, false);
}

tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs)
{
    return finish(job, outputs, true);
}

tsr_status tsr_job_run(tsr_job *job, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_status st = tsr__tensors_owned(job->session, outputs); // before anything has run
    if (st == TSR_OK)
        st = tsr_job_start(job, inputs);
    if (st != TSR_OK)
        return st;
    return tsr_job_wait(job, outputs);
}

tsr_status tsr_job_add_state(tsr_job *job, const char *past, const char *present)
{
    if (job->asked)
        return too_many(job, "states are named before the first run");
    tsr_status told = job->remote ? tsr__remote_keep(job->remote, past, present) : TSR_INVALID;
    if (job->remote && told != TSR_INVALID)
        return told;
    if (!job->remote && (tsr__job_keep(job, past, present) || (job->mpi && job->mpi->rank > 0)))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.value = str_of(past);
    tsr__diag(job->session, DIAG_input_unknown, &at, "an input, then the output that follows it",
              "no rank has this input together with the output '%s'", present);
    return TSR_INVALID;
}

tsr_status tsr_job_barrier(tsr_job *job)
{
    struct comm_trouble why;
    if (job->remote)
        return tsr__remote_barrier(job->remote);
    if (job->threaded) {
        meet_at(job, job->asked);
        tsr__job_wait_for(job, job->asked);
    }
    if (!job->mpi)
        return tsr__job_verdict(job);
    if (tsr__comm_barrier(job->mpi, job->rank_threads[0].rank.plan, "barrier", &why) == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(job->session, DIAG_rank_failed, &at, NULL, "%s", why.text);
    if (why.status == TSR_OK)
        return TSR_PEER;
    return why.status;
}

int tsr_job_ranks(const tsr_job *job, int *here)
{
    if (here)
        *here = job->remote ? (int)job->bundle.manifest.n_ranks : job->n;
    return job->has_bundle ? (int)job->bundle.manifest.n_ranks : 1;
}

tsr_status tsr_job_trace(tsr_job *job)
{
    if (!job->profiles)
        return tsr__run_refuse(job->session, DIAG_run_order, NULL,
                               "open the job with the option trace", "this job is not traced");
    if (job->remote)
        return tsr__remote_trace(job->remote);
    tsr_status st = job->asked ? tsr_job_barrier(job) : TSR_OK;
    struct text text;
    tsr__text_init(&text, job->session);
    for (int i = 0; i < job->n && st == TSR_OK; i++)
        tsr__trace_rank(&job->rank_threads[i].rank, &text);
    if (st == TSR_OK)
        st = tsr__trace_write(job->session, job->mpi, job->rank_threads[0].rank.plan, &text,
                              job->options.trace);
    tsr__text_free(&text);
    return st;
}

struct endpoint *tsr__job_place(const tsr_job *job)
{
    return job->mpi;
}

struct endpoint *tsr__job_endpoint(const tsr_job *job, int i)
{
    return i < job->n ? job->rank_threads[i].rank.endpoint : NULL;
}

uint64_t tsr__job_plan(const tsr_job *job)
{
    return job->n ? job->rank_threads[0].rank.plan : 0;
}
