// SPDX-License-Identifier: Apache-2.0
// job_run.c - the runs of a job: inputs bound, ranks told to begin, outputs brought to whoever waits.
//
// Outputs that are not rank 0's come from the ranks that the manifest names. Between threads they are taken where they
// lie; between processes they are on their way to rank 0 as soon as they are made, so that no rank waits for another's
// results before it begins its next run.
#include "runtime/job.h"

// Inputs that the model does not have are most likely misspelt.
static void note_unknown(tsr_job *j, const tsr_tensors *inputs)
{
    const struct manifest *m = &j->bundle.manifest;
    for (size_t i = 0; i < inputs->n; i++) {
        bool known = false;
        for (size_t k = 0; k < m->n_inputs && !known; k++)
            known = strcmp(m->inputs[k].name, inputs->at[i]->name) == 0;
        struct place at = PLACE_NONE;
        at.value = str_of(inputs->at[i]->name);
        if (!known)
            tsr__diag(j->session, DIAG_input_unknown, &at, NULL,
                      "the model has no input of this name");
    }
}

static tsr_status too_many(tsr_job *j, const char *text)
{
    return tsr__run_refuse(j->session, DIAG_run_order, NULL, "take results with tsr_job_wait",
                           text);
}

static int64_t rank_of(const tsr_job *j, int seat)
{
    return j->mpi ? j->mpi->rank : seat;
}

// The rank's pieces of whole inputs, if it has any.
static tsr_status cut_for(tsr_job *j, int seat, size_t flight, const tsr_tensors *inputs)
{
    const struct manifest *m = &j->bundle.manifest;
    tsr_tensors **pieces = &j->seats[seat].pieces[flight];
    tsr_tensors_free(*pieces);
    *pieces = NULL;
    if (!j->has_bundle || !tsr__cut_any(m->inputs, m->n_inputs))
        return TSR_OK;
    tsr_status st = tsr_tensors_new(j->session, pieces);
    return st == TSR_OK ? tsr__cut_inputs(m, rank_of(j, seat), inputs, *pieces) : st;
}

// Binds the inputs of a flight to all ranks that run here, or to none.
static tsr_status bind(tsr_job *j, size_t flight, const tsr_tensors *const *inputs, bool each)
{
    for (int i = 0; i < j->n; i++) {
        struct seat *t = &j->seats[i];
        tsr_status st = each ? TSR_OK : cut_for(j, i, flight, inputs[0]);
        if (st == TSR_OK)
            st = tsr__rank_bind(&t->rank, flight, inputs[each ? i : 0],
                                each ? NULL : t->pieces[flight], j->session, j->asked > 0);
        if (st == TSR_OK)
            continue;
        for (int k = 0; k < i; k++)
            tsr__rank_drop(&j->seats[k].rank, flight);
        return st;
    }
    return TSR_OK;
}

// inputs: one set for all ranks, or (each) one for each rank that runs here.
static tsr_status start(tsr_job *j, const tsr_tensors *const *inputs, bool each)
{
    if (j->asked - j->taken == RUN_FLIGHTS)
        return too_many(j, "too many runs are under way");
    if (j->remote) {
        tsr_status told = tsr__remote_start(j->remote, inputs, each);
        j->asked += told == TSR_OK;
        return told;
    }
    tsr_status st = tsr__job_verdict(j); // a job whose rank has failed runs no more
    if (st == TSR_OK && !each && j->has_bundle)
        st = tsr__named_check(&j->bundle.manifest, j->session, inputs[0]);
    size_t flight = j->asked % RUN_FLIGHTS;
    if (st == TSR_OK)
        st = bind(j, flight, inputs, each);
    if (st != TSR_OK) {
        if (j->mpi)
            tsr__job_tell(j->mpi, j->session, st);
        return st;
    }
    pthread_mutex_lock(&j->lock);
    j->asked++;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
    if (j->threaded)
        return TSR_OK;
    tsr__rank_run(&j->seats[0].rank, flight);
    j->seats[0].failed = j->seats[0].rank.status != TSR_OK;
    return TSR_OK;
}

static void meet_at(tsr_job *j, uint64_t run)
{
    pthread_mutex_lock(&j->lock);
    j->meet = run;
    pthread_cond_broadcast(&j->change);
    pthread_mutex_unlock(&j->lock);
}

static struct handover handover_of(const tsr_job *j)
{
    return (struct handover){.session = j->session,
                             .manifest = &j->bundle.manifest,
                             .states = j->states,
                             .n_states = j->n_states,
                             .place = j->mpi,
                             .plan = j->n ? j->seats[0].rank.plan : 0};
}

// Whole outputs are asked for, and not all of them are rank 0's.
static bool is_handed(const tsr_job *j)
{
    struct handover h = handover_of(j);
    return j->has_bundle && tsr__hand_any(&h);
}

// The rank of this process has outputs for rank 0.
static bool gives_here(const tsr_job *j)
{
    struct handover h = handover_of(j);
    return j->mpi && j->mpi->rank > 0 && is_handed(j) && tsr__hand_gives(&h, j->mpi->rank);
}

// The rank of this process gives rank 0 its outputs of a flight, if it has any for it.
static tsr_status give(tsr_job *j, size_t flight, uint64_t run)
{
    struct handover h = handover_of(j);
    tsr_tensors *mine = NULL;
    j->given[flight] = true;
    if (!gives_here(j))
        return TSR_OK;
    tsr_status st = tsr_tensors_new(j->session, &mine);
    if (st == TSR_OK)
        st = tsr__rank_copy(&j->seats[0].rank, flight, j->session, mine);
    if (st == TSR_OK)
        st = tsr__hand_give(&h, run, mine);
    tsr_tensors_free(mine);
    return st;
}

static tsr_tensors **sets_new(tsr_job *j, struct arena *a)
{
    int64_t n = j->bundle.manifest.n_ranks;
    tsr_tensors **sets = ARENA_ARRAY(a, tsr_tensors *, (size_t)n);
    for (int64_t r = 0; sets && r < n; r++)
        if (tsr_tensors_new(j->session, &sets[r]) != TSR_OK) {
            a->failed = true;
            break;
        }
    return sets;
}

static void sets_free(const tsr_job *j, tsr_tensors **sets)
{
    for (int64_t r = 0; sets && r < j->bundle.manifest.n_ranks; r++)
        tsr_tensors_free(sets[r]);
}

// The end of a run for what went from rank to rank: rank 0 takes it into sets, the others wait until it has.
static tsr_status meet_gifts(tsr_job *j, uint64_t run, tsr_tensors *const *sets)
{
    struct handover h = handover_of(j);
    j->given[run % RUN_FLIGHTS] = false;
    if (!j->mpi)
        return TSR_OK;
    if (j->mpi->rank == 0)
        return tsr__hand_take(&h, run, sets);
    return gives_here(j) ? tsr__hand_settle(&h, run) : TSR_OK;
}

// The end of a run where some outputs are other ranks': they are brought together. each: nobody wants them so, but they
// may be under way since the run began.
static tsr_status finish_handed(tsr_job *j, uint64_t run, tsr_tensors *const *outputs, bool each)
{
    struct arena a;
    struct handover h = handover_of(j);
    size_t flight = run % RUN_FLIGHTS;
    tsr__arena_init(&a, j->session);
    tsr_tensors **sets = sets_new(j, &a);
    tsr_status st = a.failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK && !each && !j->given[flight])
        st = give(j, flight, run);
    for (int i = 0; i < j->n; i++) {
        tsr_tensors *to = each ? outputs[i] : NULL;
        if (st == TSR_OK && !each && outputs[0])
            to = sets[rank_of(j, i)];
        tsr_status one = tsr__rank_take(&j->seats[i].rank, flight, j->session, to);
        st = st == TSR_OK ? one : st;
    }
    if (st == TSR_OK && j->given[flight])
        st = meet_gifts(j, run, sets);
    bool mine = !j->mpi || j->mpi->rank == 0;
    if (st == TSR_OK && !each && outputs[0] && mine)
        st = tsr__hand_join(&h, sets, outputs[0]);
    sets_free(j, sets);
    tsr__arena_free(&a);
    return st;
}

static tsr_status finish(tsr_job *j, tsr_tensors *const *outputs, bool each)
{
    if (j->asked == j->taken)
        return too_many(j, "no run is under way");
    if (j->remote) {
        struct handover h = handover_of(j);
        j->taken++;
        return tsr__remote_wait(j->remote, each ? NULL : &h, outputs);
    }
    if (j->threaded && j->asked == j->taken + 1)
        meet_at(j, j->asked);
    if (j->threaded)
        tsr__job_wait_for(j, j->taken + 1);
    uint64_t run = j->taken++;
    size_t flight = run % RUN_FLIGHTS;
    tsr_status st = tsr__job_verdict(j);
    if (st == TSR_OK && is_handed(j))
        return finish_handed(j, run, outputs, each);
    bool takes = !j->mpi || j->mpi->rank == 0 || each;
    for (int i = 0; i < j->n; i++) {
        tsr_tensors *to = NULL;
        if (st == TSR_OK && takes && (each || i == 0))
            to = outputs[each ? i : 0];
        tsr_status one = tsr__rank_take(&j->seats[i].rank, flight, j->session, to);
        st = st == TSR_OK ? one : st;
    }
    return st;
}

void tsr__job_finish_rest(tsr_job *j)
{
    tsr_tensors *none = NULL;
    if (!j->mpi || !j->has_bundle || !is_handed(j))
        return;
    while (j->asked > j->taken)
        if (finish(j, &none, false) != TSR_OK)
            return;
}

tsr_status tsr__job_start_own(tsr_job *j, const tsr_tensors *inputs)
{
    if (!j->is_whole)
        note_unknown(j, inputs);
    return start(j, &inputs, false);
}

// Where ranks are processes, outputs are on their way to rank 0 before the run is waited for, so that this rank can
// begin the next one.
tsr_status tsr_job_start(tsr_job *j, const tsr_tensors *inputs)
{
    uint64_t run = j->asked;
    tsr_status st = tsr__job_start_own(j, inputs);
    if (st != TSR_OK || j->remote || !j->mpi || j->seats[0].failed || !is_handed(j))
        return st;
    return give(j, run % RUN_FLIGHTS, run);
}

tsr_status tsr_job_start_cut(tsr_job *j, const tsr_tensors *const *inputs)
{
    return start(j, inputs, true);
}

tsr_status tsr_job_wait(tsr_job *j, tsr_tensors *outputs)
{
    return finish(j, &outputs, false);
}

tsr_status tsr_job_wait_cut(tsr_job *j, tsr_tensors *const *outputs)
{
    return finish(j, outputs, true);
}

tsr_status tsr_job_run(tsr_job *j, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_status st = tsr_job_start(j, inputs);
    return st == TSR_OK ? tsr_job_wait(j, outputs) : st;
}

tsr_status tsr_job_keep(tsr_job *j, const char *past, const char *present)
{
    if (j->asked)
        return too_many(j, "states are named before the first run");
    tsr_status told = j->remote ? tsr__remote_keep(j->remote, past, present) : TSR_INVALID;
    if (j->remote && told != TSR_INVALID)
        return told;
    if (!j->remote && (tsr__job_keep(j, past, present) || (j->mpi && j->mpi->rank > 0)))
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.value = str_of(past);
    tsr__diag(j->session, DIAG_input_unknown, &at, "an input, then the output that follows it",
              "no rank has this input together with the output '%s'", present);
    return TSR_INVALID;
}

tsr_status tsr_job_barrier(tsr_job *j)
{
    struct comm_trouble why;
    if (j->remote)
        return tsr__remote_barrier(j->remote);
    if (j->threaded) {
        meet_at(j, j->asked);
        tsr__job_wait_for(j, j->asked);
    }
    if (!j->mpi)
        return tsr__job_verdict(j);
    if (tsr__comm_barrier(j->mpi, j->seats[0].rank.plan, "barrier", &why) == TSR_OK)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    tsr__diag(j->session, DIAG_rank_failed, &at, NULL, "%s", why.text);
    return why.status == TSR_OK ? TSR_PEER : why.status;
}

int tsr_job_ranks(const tsr_job *j, int *here)
{
    if (here)
        *here = j->remote ? (int)j->bundle.manifest.n_ranks : j->n;
    return j->has_bundle ? (int)j->bundle.manifest.n_ranks : 1;
}

tsr_status tsr_job_trace(tsr_job *j)
{
    if (!j->profiles)
        return tsr__run_refuse(j->session, DIAG_run_order, NULL,
                               "open the job with the option trace", "this job is not traced");
    if (j->remote)
        return tsr__remote_trace(j->remote);
    tsr_status st = j->asked ? tsr_job_barrier(j) : TSR_OK;
    struct text t;
    tsr__text_init(&t, j->session);
    for (int i = 0; i < j->n && st == TSR_OK; i++)
        tsr__trace_rank(&j->seats[i].rank, &t);
    if (st == TSR_OK)
        st = tsr__trace_write(j->session, j->mpi, j->seats[0].rank.plan, &t, j->options.trace);
    tsr__text_free(&t);
    return st;
}

struct endpoint *tsr__job_place(const tsr_job *j)
{
    return j->mpi;
}

struct endpoint *tsr__job_endpoint(const tsr_job *j, int i)
{
    return i < j->n ? j->seats[i].rank.endpoint : NULL;
}

uint64_t tsr__job_plan(const tsr_job *j)
{
    return j->n ? j->seats[0].rank.plan : 0;
}
