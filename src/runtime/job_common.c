// SPDX-License-Identifier: Apache-2.0
// job_common.c - functions for jobs of every kind: creating and closing, the folder of a partition.
#include "runtime/job.h"

#include <stdio.h>
#include <unistd.h>

// Initializes the job's lock. The ranks hold it for less than a microsecond and often request it at
// the same time, so a thread spins before it sleeps, where the C library supports that.
static void init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
#ifdef __GLIBC__
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

// Creates a job with the fields that tsr_job_close needs; all others are zero. *out is set before
// the options are checked, because the caller closes the job in both cases.
tsr_status tsr__job_new(tsr_session *session, const tsr_run_options *options, tsr_job **out)
{
    tsr_job *job = tsr__alloc(session, sizeof *job);
    if (!job)
        return TSR_NOMEM;
    memset(job, 0, sizeof *job);
    job->session = session;
    job->process = getpid();
    tsr__arena_init(&job->arena, session);
    init_lock(&job->lock);
    pthread_cond_init(&job->change, NULL);
    pthread_cond_init(&job->posted, NULL);
    *out = job;
    tsr_status st = tsr__run_options(session, options, &job->options);
    if (st != TSR_OK || !job->options.trace)
        return st;
    return tsr__temporary_folder(session, job->options.work, "trace", &job->profiles);
}

// Closes a job. The kind is closed first: it joins threads and waits for children that still use
// the bundle, the profiles and the arena. The rest is freed in reverse order of its creation.
void tsr_job_close(tsr_job *job)
{
    if (!job ||
        job->process != getpid()) // ranks and files belong to the process that opened the job
        return;
    if (job->kind)
        job->kind->close(job);
    if (job->has_bundle)
        tsr__bundle_close(&job->bundle);
    tsr__temporary_remove(job->profiles);
    pthread_cond_destroy(&job->posted);
    pthread_cond_destroy(&job->change);
    pthread_mutex_destroy(&job->lock);
    tsr__arena_free(&job->arena);
    tsr__free(job->session, job, sizeof *job);
}

// Opens the partition of a job and checks its files. A launched rank checks only its own file; a
// process that runs or starts all ranks checks all files.
tsr_status tsr__job_open_folder(tsr_job *job, const char *folder)
{
    const struct endpoint *endpoint = job->endpoint;
    const struct manifest *manifest = &job->bundle.manifest;
    TRY(tsr__bundle_open(job->session, &job->arena, folder, &job->bundle));
    // Set as soon as the bundle is open, so that tsr_job_close closes it if a later step fails.
    job->has_bundle = true;
    if (!endpoint) {
        TRY(tsr__run_may_start(job->session, folder, manifest, &job->options));
        return tsr__bundle_verify(&job->bundle, NULL, 0, job->options.check_files);
    }
    if (endpoint->size != manifest->n_ranks) {
        char text[128];
        snprintf(text, sizeof text, "the partition has %lld ranks, but %d were started",
                 (long long)manifest->n_ranks, endpoint->size);
        return tsr__run_refuse(job->session, DIAG_ranks_differ, folder,
                               "start as many ranks as the partition has", text);
    }
    int64_t mine = endpoint->rank;
    return tsr__bundle_verify(&job->bundle, &mine, 1, job->options.check_files);
}

// Returns a suggestion, "did you mean 'x'?", or NULL. Only the first 256 inputs are searched.
static const char *near_input(const struct manifest *manifest, const char *name, char *text,
                              size_t cap)
{
    const char *names[256];
    size_t n = size_min(manifest->n_inputs, TSR_COUNT(names));
    for (size_t i = 0; i < n; i++)
        names[i] = manifest->inputs[i].name;
    const char *near = tsr_nearest(name, names, n);
    if (!near)
        return NULL;
    snprintf(text, cap, "did you mean '%s'?", near);
    return text;
}

// Adds a warning for each tensor that is no input. It is not an error: input files made for one
// model are often used for another, and ranks ignore inputs that they do not have.
void tsr__job_note_unknown(tsr_job *job, const tsr_tensors *inputs)
{
    const struct manifest *manifest = &job->bundle.manifest;
    char hint[256];
    for (size_t i = 0; i < inputs->n; i++) {
        const char *name = inputs->at[i]->name;
        struct place at = PLACE_NONE;
        at.value = str_of(name);
        if (strcmp(name, RUN_CACHE_SET) != 0 &&
            !tsr__manifest_port(manifest->inputs, manifest->n_inputs, name))
            tsr__diag(job->session, DIAG_input_unknown, &at,
                      near_input(manifest, name, hint, sizeof hint),
                      "the partition has no input of this name: the tensor is for another model, "
                      "or is a weight whose value was fixed when the model was partitioned");
    }
}

// Returns the number of ranks for which the caller passes sets. With children these are all ranks,
// although none is in this process (job->n is 0).
static int ranks_here(const tsr_job *job)
{
    if (job->children)
        return (int)job->bundle.manifest.n_ranks;
    return job->n;
}

int tsr_job_ranks(const tsr_job *job, int *here)
{
    if (here)
        *here = ranks_here(job);
    if (!job->has_bundle)
        return 1;
    return (int)job->bundle.manifest.n_ranks;
}

// Refuses a set of another session, because its memory is freed by that session's allocator,
// possibly on another thread. sets[i] NULL is allowed.
tsr_status tsr__job_sets_owned(const tsr_job *job, const tsr_tensors *const *sets,
                               enum run_sets form)
{
    int n = form == SET_PER_RANK ? ranks_here(job) : 1;
    for (int i = 0; i < n; i++)
        TRY(tsr__tensors_owned(job->session, sets[i]));
    return TSR_OK;
}

// ---- queries of other files ---------------------------------------------------------------------

struct endpoint *tsr__job_place(const tsr_job *job)
{
    return job->endpoint;
}

struct endpoint *tsr__job_endpoint(const tsr_job *job, int i)
{
    if (i >= job->n)
        return NULL;
    return job->rank_threads[i].rank.endpoint;
}

// Returns the fingerprint of the partition, which all ranks have. 0 if no rank is in this process
// (children) and for an unsharded model.
uint64_t tsr__job_plan(const tsr_job *job)
{
    if (job->n == 0)
        return 0;
    return job->rank_threads[0].rank.plan;
}

// Sets the options of the following runs. The ranks are waiting: tsr_job_start publishes the
// options with the run, under the lock.
void tsr__job_set_run_options(tsr_job *job, const OrtRunOptions *options)
{
    for (int i = 0; i < job->n; i++)
        job->rank_threads[i].rank.run_options = options;
}

void tsr__job_set_places(tsr_job *job, const tsr_tensors *places)
{
    for (int i = 0; i < job->n; i++)
        job->rank_threads[i].rank.places = places;
}

void tsr__job_set_used(tsr_job *job, const struct used_length *list, size_t n)
{
    job->used = list;
    job->n_used = n;
}

void tsr__job_set_inputs_wait(tsr_job *job, tsr_status (*wait)(void *data), void *data)
{
    job->inputs_wait = wait;
    job->inputs_wait_data = data;
}

static bool is_reached(const struct rank *rank, const struct tensor *tensor)
{
    return tensor->device ? tsr__rank_has_on_gpu(rank, tensor) : !rank->seat;
}

// True if the ranks can write an output to the caller's memory. The manifest must name the ranks of
// the output. Each of them must be able to access the memory, each shard must be contiguous there,
// and the job must have no states.
bool tsr__job_can_place(const tsr_job *job, const struct tensor *full)
{
    const struct manifest *manifest = &job->bundle.manifest;
    const struct manifest_port *port =
        tsr__manifest_port(manifest->outputs, manifest->n_outputs, full->name);
    struct shard_view view;
    bool fits = port && port->kept && !job->n_states;
    struct arena arena = {.session = job->session};
    for (int64_t k = 0; fits && k < port->kept->n_shards; k++) {
        int64_t giver = tsr__shards_giver(port->kept, k);
        fits = giver >= 0 && giver < job->n && is_reached(&job->rank_threads[giver].rank, full) &&
               tsr__shards_view(&arena, port, k, full, &view);
    }
    tsr__arena_free(&arena);
    return fits;
}
