// SPDX-License-Identifier: Apache-2.0
// job_ranks.c - operations of jobs on the ranks in this process: describing and opening them,
// binding inputs, status, traces and freeing. The kind of the job decides when and on which thread
// they run.
//
// The same code serves 1 rank (an unsharded model, a launched process) and n (threads). In the
// parent of child processes job->n is 0, and each child has a launched job with one rank.
#include "runtime/job.h"
#include "gpu/gpu.h"

#include <stdlib.h>

// Allocates the ranks of a job. The arena returns zeroed memory, so a rank that is never opened can
// be freed: its session is NULL.
tsr_status tsr__ranks_new(tsr_job *job, int n)
{
    job->rank_threads = ARENA_ARRAY(&job->arena, struct rank_thread, (size_t)n);
    if (!job->rank_threads)
        return TSR_NOMEM;
    job->n = n;
    for (int i = 0; i < n; i++)
        job->rank_threads[i].job = job;
    return TSR_OK;
}

// Sets the fields of a rank that follow from the job and its options; the others are 0. Example: 8
// cores for 3 ranks are 2 threads each, and since 6 threads fit on 8 cores they may spin while
// waiting.
void tsr__ranks_describe(tsr_job *job, struct rank *rank, int number, int cores, int ranks)
{
    int threads = tsr__rank_threads(cores, ranks, job->options.threads);
    *rank = (struct rank){
        .engine = job->engine,
        .ort_ops = job->options.ort_ops,
        .optimize = job->options.optimize,
        .float_products = job->options.float_products,
        .threads = threads,
        .spin = (int64_t)threads * ranks <= cores, // spinning threads do not slow down other ranks
        .options = &job->options,
        .device = job->options.device,
        .gpu = job->gpu,
    };
    if (job->profiles)
        rank->profile = tsr__arena_printf(&job->arena, "%s/rank%d", job->profiles->path, number).p;
}

// Describes a rank of the partition: as tsr__ranks_describe, and its endpoint and the fields from
// the manifest. Cores and ranks are those of this host, as counted by the transport: under a
// launcher, ranks may be on several hosts.
void tsr__ranks_describe_part(tsr_job *job, struct rank *rank, int number,
                              struct endpoint *endpoint)
{
    const struct manifest *manifest = &job->bundle.manifest;
    tsr__ranks_describe(job, rank, number, endpoint->host_cores, endpoint->host_ranks);
    rank->endpoint = endpoint;
    rank->path = tsr__bundle_file_path(&job->bundle, &job->arena, manifest->devices[number].file).p;
    // 16 hexadecimal digits, checked by the reader of manifests. Ranks compare this fingerprint
    // before they use received data.
    rank->plan = strtoull(manifest->plan, NULL, 16);
    rank->static_sizes = manifest->static_sizes;
    rank->device = manifest->devices[number].device;
    rank->weight_bytes = manifest->devices[number].weight_bytes;
    for (size_t i = 0; i < manifest->n_inputs; i++)
        rank->has_caches =
            rank->has_caches || manifest->inputs[i].updated_by || manifest->inputs[i].present;
}

// Opens the folder and the engine, and the GPU driver if a rank of the partition is on a GPU; then
// allocates the ranks of this process. All ranks come to the same decision about the driver,
// because they have the same manifest and options.
tsr_status tsr__ranks_prepare(tsr_job *job, const char *folder)
{
    TRY(tsr__job_open_folder(job, folder));
    TRY(tsr__engine(job->session, &job->engine));
    if (tsr__run_on_gpus(job->session, &job->bundle.manifest, &job->options))
        job->gpu = tsr__gpu_driver(job->session, job->engine, &job->options);
    // A launched process has one rank, whose number is that of the endpoint.
    return tsr__ranks_new(job, job->endpoint ? 1 : (int)job->bundle.manifest.n_ranks);
}

// Returns the failure of the ranks, with its diagnostics. A failed rank has stopped, so its
// diagnostics can be read. A rank that failed because of another only repeats the message of the
// transport, so the first rank that failed by itself is preferred. Every call adds the diagnostics
// to the job's session, so that later calls report the same.
tsr_status tsr__ranks_verdict(tsr_job *job)
{
    const struct rank *worst = NULL;
    pthread_mutex_lock(&job->lock);
    for (int i = 0; i < job->n; i++) {
        const struct rank *rank = &job->rank_threads[i].rank;
        if (!job->rank_threads[i].failed)
            continue;
        if (!worst || (worst->failed_by_peer && !rank->failed_by_peer))
            worst = rank;
    }
    pthread_mutex_unlock(&job->lock);
    if (!worst)
        return TSR_OK;
    tsr__rank_findings(worst, job->session);
    return worst->status;
}

// ---- inputs ------------------------------------------------------------------------------------

// Returns the seat (GPU context) of any rank in this process; NULL: none is on a GPU.
static struct gpu_seat *any_seat(const tsr_job *job)
{
    // Any seat is suitable: all GPUs share one address space, so its stream can copy from each of
    // them.
    for (int i = 0; i < job->n; i++)
        if (job->rank_threads[i].rank.seat)
            return job->rank_threads[i].rank.seat;
    return NULL;
}

// Takes the rank's shards of full inputs. The shards of the previous run in this slot are freed
// first; the OrtValues that refer to them were released when that run was collected. The slot keeps
// the new shards, because the engine reads inputs without a copy.
static tsr_status shards_for(tsr_job *job, int i, size_t run_slot, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    tsr_tensors **pieces = &job->rank_threads[i].pieces[run_slot];
    tsr_tensors_free(*pieces);
    *pieces = NULL;
    if (!job->has_bundle || !tsr__shards_any(manifest->inputs, manifest->n_inputs))
        return TSR_OK;
    TRY(tsr_tensors_new(job->session, pieces));
    int64_t rank = i;
    if (job->endpoint)
        rank = job->endpoint->rank;
    struct gpu_inputs gpu = {.rank = &job->rank_threads[i].rank,
                             .any = any_seat(job),
                             .buffers = &job->rank_threads[i].buffers,
                             .arena = &job->arena,
                             .used = job->used,
                             .n_used = job->n_used};
    if (job->runs_started == job->runs_collected)
        tsr__gpu_buffers_reuse(job->rank_threads[i].buffers);
    return tsr__shards_of_inputs(manifest, rank, inputs, &gpu, *pieces);
}

void tsr__ranks_free_pieces(tsr_job *job, size_t run_slot)
{
    for (int i = 0; i < job->n; i++) {
        tsr_tensors_free(job->rank_threads[i].pieces[run_slot]);
        job->rank_threads[i].pieces[run_slot] = NULL;
    }
}

// True if ranks get shards of the input (shards_for) instead of the full tensor.
static bool is_sharded(const tsr_job *job, const char *name)
{
    const struct manifest *manifest = &job->bundle.manifest;
    for (size_t i = 0; job->has_bundle && i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        if (strcmp(port->name, name) == 0)
            return port->kept && !tsr__layout_is_whole(port->kept);
    }
    return false;
}

int64_t tsr__job_input_bytes(const tsr_job *job, const tsr_tensors *inputs)
{
    int64_t sum = 0;
    if (job->n != 1 || !inputs)
        return 0;
    const struct rank *rank = &job->rank_threads[0].rank;
    for (size_t i = 0; i < rank->n_inputs; i++) {
        int64_t at = tsr_tensors_find(inputs, rank->input_names[i]);
        if (at >= 0 && !is_sharded(job, rank->input_names[i]))
            sum += (int64_t)inputs->at[at]->bytes;
    }
    return sum;
}

// True if the rank can read the tensor: in host memory (device 0), or on the rank's own GPU (device
// is 1 + its number).
static bool is_in_reach(const struct rank *rank, const struct tensor *x)
{
    return !x->device || tsr__rank_has_on_gpu(rank, x);
}

// Reports the driver's error for an input that could not be copied from its GPU.
static tsr_status fetch_failed(tsr_job *job, const struct tensor *x, int code)
{
    char words[160];
    return tsr__fail(job->session, TSR_ENGINE, DIAG_engine_failed, &PLACE(.value = str_of(x->name)),
                     "run `tessera doctor` to check the GPUs",
                     "the input could not be copied from GPU %d: %s", x->device - 1,
                     tsr__gpu_words(job->gpu, code, words, sizeof words));
}

// Copies inputs that are on another GPU than this rank's to host memory, as separate pieces. If no
// rank of this process is on a GPU they stay there, and binding refuses them. After a failure the
// pieces stay unused in their slot until its next run, because the GPU may still write to them.
static tsr_status fetch_for(tsr_job *job, int i, size_t run_slot, const tsr_tensors *inputs)
{
    struct rank_thread *rank_thread = &job->rank_threads[i];
    tsr_tensors **pieces = &rank_thread->pieces[run_slot];
    struct gpu_seat *seat = any_seat(job);
    if (!inputs || !seat)
        return TSR_OK;
    for (size_t k = 0; k < inputs->n; k++) {
        const struct tensor *x = inputs->at[k];
        struct tensor *copy = NULL;
        if (is_in_reach(&rank_thread->rank, x) || is_sharded(job, x->name))
            continue;
        if (!*pieces)
            TRY(tsr_tensors_new(job->session, pieces));
        TRY(tsr__tensors_add(*pieces, str_of(x->name), x->type, x->rank, x->dims, &copy));
        int code = tsr__gpu_fetch(seat, copy->data, x->device_data, copy->bytes);
        if (code != 0)
            return fetch_failed(job, x, code);
    }
    return TSR_OK;
}

// Binds the rank's shard of one output to the caller's memory, if this rank returns the output.
static tsr_status bind_place(tsr_job *job, int i, size_t run_slot, struct arena *arena,
                             const struct tensor *full)
{
    struct rank *rank = &job->rank_threads[i].rank;
    const struct manifest *manifest = &job->bundle.manifest;
    struct shard_view view;
    if (tsr__rank_bind_kept_output(rank, run_slot, full))
        return TSR_OK;
    for (size_t k = 0; k < manifest->n_outputs; k++) {
        const struct manifest_port *port = &manifest->outputs[k];
        if (strcmp(port->name, full->name) != 0 || !port->kept)
            continue;
        int64_t shard = tsr__layout_shard_of(port->kept, i, 0);
        if (shard < 0 || tsr__shards_giver(port->kept, shard) != i ||
            !tsr__shards_view(arena, port, shard, full, &view))
            return TSR_OK;
        return tsr__rank_bind_output(rank, run_slot, full, &view, job->session);
    }
    return TSR_OK;
}

static tsr_status bind_places(tsr_job *job, int i, size_t run_slot)
{
    const tsr_tensors *places = job->rank_threads[i].rank.places;
    tsr_status st = TSR_OK;
    if (!places)
        return TSR_OK;
    struct arena arena = {.session = job->session};
    for (size_t k = 0; k < places->n && st == TSR_OK; k++)
        st = bind_place(job, i, run_slot, &arena, places->at[k]);
    tsr__arena_free(&arena);
    return st;
}

// Binds the inputs of one rank. Takes its shards from a set of full inputs; uses a set per rank as
// it is. `ran` is true if states have a value: runs are made in order, so earlier runs are complete
// by then.
static tsr_status bind_rank(tsr_job *job, int i, size_t run_slot, const tsr_tensors *const *inputs,
                            enum run_sets form)
{
    struct rank_thread *rank_thread = &job->rank_threads[i];
    bool ran = job->runs_started > 0;
    rank_thread->rank.keeps_views =
        form == FULL_SET && job->n_states == 0 && job->runs_started == job->runs_collected;
    if (form == SET_PER_RANK)
        return tsr__rank_bind(&rank_thread->rank, run_slot, inputs[i], NULL, job->session, ran);
    if (job->has_bundle)
        TRY(tsr__cache_set_select(&rank_thread->rank, job->endpoint ? job->endpoint->rank : i,
                                  &job->bundle.manifest, job->session, inputs[0]));
    TRY(shards_for(job, i, run_slot, inputs[0]));
    TRY(fetch_for(job, i, run_slot, inputs[0]));
    TRY(tsr__rank_bind(&rank_thread->rank, run_slot, inputs[0], rank_thread->pieces[run_slot],
                       job->session, ran));
    return bind_places(job, i, run_slot);
}

// Binds the inputs of all ranks before any rank starts, so that invalid inputs are refused while no
// rank waits for another. Then waits until the inputs are complete. After a refusal, the values
// that were already bound are released. Also refuses if a rank has failed.
tsr_status tsr__ranks_bind(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    size_t run_slot = job->runs_started % RUN_SLOTS;
    TRY(tsr__job_sets_owned(job, inputs, form));
    TRY(tsr__ranks_verdict(job));
    if (form == FULL_SET && job->has_bundle)
        TRY(tsr__named_check(&job->bundle.manifest, job->session, inputs[0],
                             &job->differ[run_slot]));
    tsr_status st = TSR_OK;
    int bound = 0;
    while (bound < job->n && st == TSR_OK) {
        st = bind_rank(job, bound, run_slot, inputs, form);
        bound += st == TSR_OK;
    }
    if (st == TSR_OK && job->inputs_wait)
        st = job->inputs_wait(job->inputs_wait_data);
    for (int i = 0; i < bound && st != TSR_OK; i++)
        tsr__rank_drop(&job->rank_threads[i].rank, run_slot);
    return st;
}

// ---- the one rank on the caller's thread -------------------------------------------------------

// Opens the one rank of this process. Under a launcher this waits for the other ranks, which open
// at the same time.
tsr_status tsr__ranks_open_here(tsr_job *job)
{
    struct rank_thread *only = &job->rank_threads[0];
    tsr__rank_open(&only->rank);
    tsr__memory_settle();
    only->failed = only->rank.status != TSR_OK;
    return tsr__ranks_verdict(job);
}

// Runs the one rank of this process. A failure is reported when the run is collected.
void tsr__ranks_run_here(tsr_job *job)
{
    struct rank_thread *only = &job->rank_threads[0];
    tsr__rank_run(&only->rank, job->runs_started++ % RUN_SLOTS);
    only->failed = only->rank.status != TSR_OK;
}

// ---- states, traces, the end -------------------------------------------------------------------

// Makes an output a state. Each rank that has both names keeps the value. The job's list tells the
// handover which outputs are not results. The list is copied, because an arena cannot grow in
// place; there are few states. Returns true if a rank of this process has both names.
bool tsr__ranks_keep(tsr_job *job, const char *past, const char *present, bool in_place)
{
    bool found = false;
    in_place = in_place || job->options.states_in_place;
    for (int i = 0; i < job->n; i++)
        found |= tsr__rank_keep(&job->rank_threads[i].rank, past, present, in_place);
    const char **list = ARENA_ARRAY(&job->arena, const char *, job->n_states + 1);
    if (!list)
        return false;
    if (job->n_states)
        memcpy(list, job->states, job->n_states * sizeof *list);
    list[job->n_states++] = tsr__arena_str(&job->arena, str_of(present)).p;
    job->states = list;
    return found;
}

// Turns the outputs that the manifest lists as states into states of the job. A rank need not have
// every state: states of other stages belong to other ranks. The manifest was checked, so each
// state has a rank.
tsr_status tsr__ranks_keep_named(tsr_job *job)
{
    const struct manifest *manifest = &job->bundle.manifest;
    for (size_t k = 0; k < manifest->n_states; k++)
        tsr__ranks_keep(job, manifest->states[k].input, manifest->states[k].output,
                        manifest->states[k].in_place);
    return job->arena.failed ? TSR_NOMEM : TSR_OK;
}

// Writes the trace of the ranks. All ranks complete the last started run before any of them is
// traced.
tsr_status tsr__ranks_trace(tsr_job *job)
{
    if (job->runs_started)
        TRY(job->kind->barrier(job));
    struct text text = {.session = job->session};
    for (int i = 0; i < job->n; i++)
        tsr__trace_rank(&job->rank_threads[i].rank, &text);
    tsr_status st = tsr__trace_write(job->session, job->endpoint, tsr__job_plan(job), &text,
                                     job->options.trace);
    tsr__text_free(&text);
    return st;
}

// Frees the ranks. Values are released before the pieces that they point to.
void tsr__ranks_free(tsr_job *job)
{
    for (int i = 0; i < job->n; i++) {
        tsr__gpu_buffers_free(job->rank_threads[i].buffers, job->rank_threads[i].rank.seat);
        tsr__cache_sets_free(&job->rank_threads[i].rank, job->session);
        tsr__rank_free(&job->rank_threads[i].rank);
        for (size_t k = 0; k < RUN_SLOTS; k++)
            tsr_tensors_free(job->rank_threads[i].pieces[k]);
    }
}
