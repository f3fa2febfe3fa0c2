// SPDX-License-Identifier: Apache-2.0
// job_launched.c - the job of a process that is one rank of a partition, under a launcher or as a
// child process. The rank runs on the caller's thread; the other ranks are processes too and make
// the same calls.
//
// The manifest says which ranks compute the outputs. These ranks send their outputs to rank 0 as
// soon as they are computed, before the caller waits for the run. So no rank waits for another's
// results before its next run.
//
// A run of 3 ranks where rank 2 computes the output `logits` (the last stage of a pipeline):
//     start     every rank computes its part; rank 2 then offers its logits to rank 0 and continues
//     finish    rank 0 takes the file of rank 2 and has all outputs; rank 2 waits until it has been
//               taken; rank 1 has nothing to send and returns at once
//
// A failure of this rank is reported to the others (tsr__run_end) before the public call returns;
// otherwise they would wait for this rank.
#include "runtime/job.h"

// Warns if this process may use fewer cores than its rank has threads. A launcher or a user has
// bound it (tsr__cores_unbind undoes what Open MPI does by default).
static void warn_bound(const tsr_job *job, const struct rank *rank)
{
    int cores = tsr__cores();
    struct place at = PLACE_NONE;
    at.rank = job->endpoint->rank;
    if (rank->threads <= cores || !tsr_launcher(NULL, NULL, NULL))
        return;
    tsr__diag(job->session, DIAG_rank_bound, &at,
              "let the launcher bind less (mpirun --bind-to none, srun --cpus-per-task N), or use "
              "fewer --threads",
              "this rank has %d threads but may use only %d core%s", rank->threads, cores,
              cores == 1 ? "" : "s");
}

// Does everything before the ranks synchronize.
static tsr_status prepare(tsr_job *job, const char *folder)
{
    TRY(tsr__ranks_prepare(job, folder));
    struct rank *rank = &job->rank_threads[0].rank;
    tsr__ranks_describe_part(job, rank, job->endpoint->rank, job->endpoint);
    warn_bound(job, rank);
    rank->unpacked = tsr__weights_are_large(&job->bundle.manifest, job->endpoint->rank);
    return job->arena.failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status launched_open(tsr_job *job, const char *folder, bool states)
{
    TRY(prepare(job, folder));
    TRY(tsr__ranks_open_here(job));
    return states ? tsr__ranks_keep_named(job) : TSR_OK;
}

// ---- outputs on their way to rank 0 ------------------------------------------------------------

// True if the rank of this process has outputs for rank 0.
static bool has_outputs_to_send(const tsr_job *job)
{
    return job->endpoint->rank > 0 && tsr__job_handed(job) &&
           tsr__hand_gives(job, job->endpoint->rank);
}

// Sends this rank's outputs of a run to rank 0, if it has any.
static tsr_status send_outputs(tsr_job *job, uint64_t run)
{
    size_t run_slot = run % RUN_SLOTS;
    tsr_tensors *mine = NULL;
    // Set even if this rank has no outputs to send. launched_finish then knows that outputs of this
    // run go to rank 0, and every rank calls finish_transfers.
    job->given[run_slot] = true;
    if (!has_outputs_to_send(job))
        return TSR_OK;
    TRY(tsr_tensors_new(job->session, &mine));
    tsr_status st = tsr__rank_copy(&job->rank_threads[0].rank, run_slot, job->session, mine);
    if (st == TSR_OK)
        st = tsr__hand_give(job, run, mine);
    tsr_tensors_free(mine);
    return st;
}

// Completes the transfers of a run: rank 0 receives into sets, and each sending rank waits until
// rank 0 has received its outputs. Rank 0's own outputs are already in sets[0]. The sender's memory
// is free afterwards.
static tsr_status finish_transfers(tsr_job *job, uint64_t run, tsr_tensors *const *sets)
{
    job->given[run % RUN_SLOTS] = false;
    if (job->endpoint->rank == 0)
        return tsr__hand_take(job, run, sets);
    if (has_outputs_to_send(job))
        return tsr__hand_settle(job, run);
    return TSR_OK;
}

// ---- runs --------------------------------------------------------------------------------------

static tsr_status start_rank(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    TRY(tsr__ranks_bind(job, inputs, form));
    tsr__ranks_run_here(job);
    return TSR_OK;
}

// Starts a run of a child whose parent collects results itself (child_loop.c): nothing is sent to
// rank 0.
tsr_status tsr__launched_start_own(tsr_job *job, const tsr_tensors *inputs)
{
    tsr__job_note_unknown(job, inputs);
    return start_rank(job, &inputs, FULL_SET);
}

// Runs this rank and sends its outputs. After a failed run nothing is sent; finish reports the
// reason.
static tsr_status launched_start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    uint64_t run = job->runs_started;
    TRY(start_rank(job, inputs, form));
    if (form == SET_PER_RANK || job->rank_threads[0].failed || !tsr__job_handed(job))
        return TSR_OK;
    return send_outputs(job, run);
}

// A run to be collected, whose outputs are partly on other ranks.
struct collected_run {
    uint64_t run;
    tsr_tensors *outputs;
    enum run_sets form;
};

// Takes the results of this rank and completes the transfers. They may have started with the run,
// so they are completed even if the caller needs only the outputs of this rank. The slot of the run
// is free afterwards in every case.
static tsr_status take_handed(tsr_job *job, void *data, tsr_tensors *const *sets)
{
    const struct collected_run *collected = data;
    struct rank *rank = &job->rank_threads[0].rank;
    size_t run_slot = collected->run % RUN_SLOTS;
    tsr_tensors *own = collected->outputs;
    tsr_status st = TSR_OK;
    // The run was started with a set per rank, but is collected with full outputs: they are sent
    // only now, before rank 0 waits for them.
    if (sets && collected->form == FULL_SET && !job->given[run_slot])
        st = send_outputs(job, collected->run);
    if (!sets || st != TSR_OK) {
        tsr__rank_drop(rank, run_slot);
        return st;
    }
    if (collected->form == FULL_SET && own)
        own = sets[job->endpoint->rank];
    TRY(tsr__rank_take(rank, run_slot, job->session, own));
    return job->given[run_slot] ? finish_transfers(job, collected->run, sets) : TSR_OK;
}

// Collects a run. After a failure its results are dropped, which frees their slot. If rank 0 has
// all outputs and full ones are requested, the other ranks only free their slots.
static tsr_status launched_finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    uint64_t run = job->runs_collected++;
    struct rank *rank = &job->rank_threads[0].rank;
    tsr_status st = tsr__ranks_verdict(job);
    if (st != TSR_OK) {
        tsr__rank_drop(rank, run % RUN_SLOTS);
        return st;
    }
    bool wanted = job->endpoint->rank == 0 || form == SET_PER_RANK;
    struct collected_run collected = {run, outputs[0], form};
    tsr_tensors *joined = form == FULL_SET && job->endpoint->rank == 0 ? outputs[0] : NULL;
    if (tsr__job_handed(job))
        return tsr__hand_collect(job, take_handed, &collected, joined);
    return tsr__rank_take(rank, run % RUN_SLOTS, job->session, wanted ? outputs[0] : NULL);
}

// ---- the rest ----------------------------------------------------------------------------------

static bool lists(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

// True if a rank has both names, or if the manifest does not list the names of ranks.
static bool some_rank_has(const struct manifest *manifest, const char *past, const char *present)
{
    for (int64_t r = 0; r < manifest->n_ranks; r++) {
        const struct manifest_device *device = &manifest->devices[r];
        if (!device->has_ports || (lists(device->inputs, device->n_inputs, past) &&
                                   lists(device->outputs, device->n_outputs, present)))
            return true;
    }
    return false;
}

// Makes an output a state of this rank. With stages, only one rank may have the state; so all ranks
// accept it if one of them has it.
static tsr_status launched_add_state(tsr_job *job, const char *past, const char *present)
{
    bool kept = tsr__ranks_keep(job, past, present, false);
    return kept || some_rank_has(&job->bundle.manifest, past, present) ? TSR_OK : TSR_INVALID;
}

// Synchronizes with the ranks in other processes. Runs are made inside start, so a rank that gets
// here has made all its runs.
static tsr_status launched_barrier(tsr_job *job)
{
    struct comm_trouble why;
    if (tsr__comm_barrier(job->endpoint, tsr__job_plan(job), "barrier", &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(job->session, &why);
}

// Closes the job. First finishes runs for which the caller did not wait, because another rank may
// be waiting for their outputs.
static void launched_close(tsr_job *job)
{
    tsr_tensors *none = NULL;
    while (tsr__job_handed(job) && job->runs_started > job->runs_collected)
        // A failure ends the job for all ranks: the remaining runs are not waited for.
        if (launched_finish(job, &none, FULL_SET) != TSR_OK)
            break;
    tsr__ranks_free(job);
}

const struct job_kind tsr__job_launched = {
    .open = launched_open,
    .start = launched_start,
    .finish = launched_finish,
    .add_state = launched_add_state,
    .barrier = launched_barrier,
    .trace = tsr__ranks_trace,
    .verdict = tsr__ranks_verdict,
    .close = launched_close,
};
