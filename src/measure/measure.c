// SPDX-License-Identifier: Apache-2.0
// measure.c - measures the speed of ranks on this machine. All ranks work at the same time, as in a
// run, and their results are combined. Ranks are threads, child processes, or this process under a
// launcher.
//
// Other load on the machine can only make times longer, so each sample is timed in several passes
// and keeps its best time. Ranks of one host on devices of the same name all get the numbers of the
// fastest rank.
#include "gpu/gpu.h"
#include "measure/measure_rank.h"
#include "runtime/spawn.h"

#include <math.h>
#include <stdlib.h>

#define USUAL_SECONDS MEASURE_SECONDS
#define MOST_SECONDS  600.0
#define MOST_RUNS     2000
#define LEAST_RUNS    5
#define MOST_BATCHES  256

// ---- one rank ----------------------------------------------------------------------------------

// Sets up a rank without an endpoint: it runs an unsharded sample, and time_sample synchronizes the
// ranks.
static void rank_for(const struct measure_rank *rank, size_t sample, char *path, struct rank *out)
{
    *out = (struct rank){.engine = rank->engine,
                         .path = tsr__measure_path(rank->folder, sample, path),
                         .threads = rank->threads,
                         .options = rank->options,
                         .device = rank->device,
                         .gpu = rank->gpu,
                         .spin = rank->threads * rank->endpoint->host_ranks <=
                                 rank->endpoint->host_cores};
}

static tsr_status one_run(struct rank *rank, const tsr_tensors *in, double *seconds)
{
    TRY(tsr__rank_bind(rank, 0, in, NULL, rank->session, false));
    double began = tsr__now_s();
    tsr__rank_run(rank, 0);
    *seconds = tsr__now_s() - began;
    tsr__rank_drop(rank, 0);
    return rank->status;
}

#define BATCH 8 // runs that a GPU gets without a wait between them

// Makes several runs and waits for the last one. The GPU does not wait for the CPU between them,
// just as between the nodes of a model. So ranks that share the GPU slow each other down as in a
// model.
static tsr_status one_batch(struct rank *rank, const OrtRunOptions *queued, const tsr_tensors *in,
                            double *seconds)
{
    double began = tsr__now_s(), ignored;
    tsr_status st = TSR_OK;
    for (int i = 0; i < BATCH && st == TSR_OK; i++) {
        rank->run_options = i < BATCH - 1 ? queued : NULL;
        st = one_run(rank, in, &ignored);
    }
    *seconds = (tsr__now_s() - began) / BATCH;
    return st;
}

// Sets *out to the median time of a run in batches. The median is used because the shortest batches
// are those during which another rank on the GPU paused.
static tsr_status batches_for(struct rank *rank, const tsr_tensors *in, double seconds, double *out)
{
    const OrtApi *api = rank->engine->api;
    OrtRunOptions *queued = NULL;
    double times[MOST_BATCHES], began = tsr__now_s();
    size_t n = 0;
    tsr_status st = TSR_OK;
    OrtStatus *failed = api->CreateRunOptions(&queued);
    if (!failed)
        failed = api->AddRunConfigEntry(queued, "disable_synchronize_execution_providers", "1");
    if (failed)
        st = TSR_ENGINE;
    api->ReleaseStatus(failed);
    while (st == TSR_OK && n < MOST_BATCHES && (n < LEAST_RUNS || tsr__now_s() - began < seconds))
        st = one_batch(rank, queued, in, &times[n++]);
    if (queued)
        api->ReleaseRunOptions(queued);
    if (st != TSR_OK)
        return st;
    qsort(times, n, sizeof *times, by_double);
    *out = times[n / 2];
    return TSR_OK;
}

static tsr_status run_for(struct rank *rank, const tsr_tensors *in, double seconds, double *out)
{
    static const size_t bytes = MOST_RUNS * sizeof(double);
    double *times = tsr__alloc(rank->session, bytes), began = tsr__now_s();
    if (!times)
        return TSR_NOMEM;
    tsr_status st = TSR_OK;
    size_t n = 0;
    while (n < MOST_RUNS) {
        if (n >= LEAST_RUNS && tsr__now_s() - began >= seconds)
            break;
        st = one_run(rank, in, &times[n++]);
        if (st != TSR_OK)
            goto free_times;
    }
    *out = tsr__measure_typical(times, n);
free_times:
    tsr__free(rank->session, times, bytes);
    return st;
}

// Times the runs of a sample. On a GPU they run in batches, except for tiny samples, which measure
// the launch of a node.
static tsr_status time_runs(const struct measure_rank *rank, const struct sample *sample,
                            struct rank *model, const tsr_tensors *in, double *out)
{
    double seconds = sample->share * SHARE_SAMPLES * rank->seconds / rank->passes;
    bool tiny =
        sample->as == AS_OVERHEAD_FEW || sample->as == AS_OVERHEAD_MANY || sample->as == AS_NEAR;
    if (rank->large && !tiny)
        return batches_for(model, in, seconds, out);
    return run_for(model, in, seconds, out);
}

// Opens the model of a sample and runs it once as a warm-up.
static tsr_status open_sample(struct measure_rank *rank, struct rank *model, size_t sample,
                              tsr_tensors **in)
{
    double first;
    tsr__rank_open(model);
    if (model->status != TSR_OK)
        return model->status;
    TRY(tsr__measure_input(rank, model->session, sample, in));
    return one_run(model, *in, &first);
}

// Formats the failure of this rank for the other ranks. The text says "out of memory" for
// TSR_NOMEM, because a diagnostic such as "could not get 32 bytes" does not.
static void explain(const struct measure_rank *rank, const struct rank *model, tsr_status st,
                    struct comm_trouble *why)
{
    int number = rank->endpoint->rank;
    *why = (struct comm_trouble){.status = st, .rank = number};
    if (st == TSR_NOMEM)
        snprintf(why->text, sizeof why->text, "rank %d is out of memory", number);
    else if (!model->session || tsr_finding_count(model->session) == 0)
        snprintf(why->text, sizeof why->text, "rank %d: %s", number, tsr_status_text(st));
    else
        snprintf(why->text, sizeof why->text, "rank %d: %s", number,
                 tsr_finding_value(model->session, 0).message);
}

// True if the sample may be skipped after this failure. This is so if the engine failed on a sample
// for one kind of work: it may lack the operator or a kernel.
static bool is_dispensable(const struct sample *sample, tsr_status st)
{
    return st == TSR_ENGINE &&
           (sample->as == AS_RATE || sample->as == AS_MOVE || sample->as == AS_NEAR);
}

// Sets *out to the seconds per run of a sample while the other ranks run it, too. Does not change
// *out if the engine does not support the sample. All ranks synchronize before the timed runs, even
// those that could not open the sample.
static tsr_status time_sample(struct measure_rank *rank, size_t number, double *out,
                              struct comm_trouble *why)
{
    const struct sample *sample = &tsr__samples[number];
    char path[MEASURE_PATH];
    struct rank model;
    tsr_tensors *in = NULL;
    tsr_run_options options = *rank->options;
    options.tf32 = sample->as == AS_RATE && sample->index == TSR_RATE_TF32;
    rank_for(rank, number, path, &model);
    model.options = &options;
    tsr_status opened = open_sample(rank, &model, number, &in), st = opened;
    if (opened != TSR_OK && !is_dispensable(sample, opened))
        goto free_model;
    st = tsr__comm_barrier(rank->endpoint, MEASURE_PLAN, "measured model", why);
    if (st == TSR_OK && opened == TSR_OK)
        st = time_runs(rank, sample, &model, in, out);
free_model:
    if (st != TSR_OK && !why->text[0])
        explain(rank, &model, st, why);
    tsr_tensors_free(in);
    tsr__rank_free(&model);
    return st;
}

#define MOST_PASSES 3

// The best time of each sample so far (0: none), and how many times as long a sample took in
// another pass, for each time after the first.
struct sample_times {
    double best[MEASURE_SAMPLES], differ[MOST_PASSES * MEASURE_SAMPLES];
    size_t n;
};

// True if a sample is for the kind of device of these ranks (CPUs or GPUs), and is timed in this
// pass. Samples with half a gigabyte of weights take a second to load, so they are timed only in
// the first and last pass.
static bool is_timed(const struct measure_rank *rank, const struct sample *sample, int pass)
{
    if (sample->node.many && pass > 0 && pass < rank->passes - 1)
        return false;
    return sample->on == ON_ALL || (sample->on == ON_GPUS) == rank->gpus;
}

// The first pass times all samples, however long it takes. The others end when half of the time is
// over, by the clock of rank 0.
static tsr_status is_over(struct measure_rank *rank, int pass, bool *out, struct comm_trouble *why)
{
    *out = pass > 0 && tsr__now_s() - rank->began > rank->seconds / 2;
    if (pass == 0)
        return TSR_OK;
    struct comm_call call = {.plan = MEASURE_PLAN,
                             .id = -9,
                             .kind = COMM_BROADCAST,
                             .type = TSR_UINT8,
                             .op = "measure",
                             .node = "time"};
    return tsr__comm_tell_all(rank->endpoint, &call, 0, out, sizeof *out, why);
}

// Times all samples once. Keeps the best time of each, and by how much its passes differ.
static tsr_status one_pass(struct measure_rank *rank, int pass, struct sample_times *times,
                           struct comm_trouble *why)
{
    for (size_t i = 0; i < rank->samples; i++) {
        double seconds = 0;
        bool over;
        if (!is_timed(rank, &tsr__samples[i], pass))
            continue;
        TRY(is_over(rank, pass, &over, why));
        if (over)
            return TSR_OK;
        TRY(time_sample(rank, i, &seconds, why));
        if (seconds <= 0)
            continue;
        double best = times->best[i];
        if (best > 0)
            times->differ[times->n++] = fmax(best, seconds) / fmin(best, seconds);
        if (best == 0 || seconds < best)
            times->best[i] = seconds;
        if (rank->endpoint->rank == 0)
            tsr__progress(rank->session, "engine", (uint64_t)pass * rank->samples + i + 1,
                          (uint64_t)rank->passes * rank->samples);
    }
    return TSR_OK;
}

// Times all samples in several passes. A core may run at half speed for a second or two while
// another uses the same physical core. So samples are timed again later, by threads on other cores.
static tsr_status compute(struct measure_rank *rank, struct comm_trouble *why)
{
    struct sample_times times = {0};
    rank->began = tsr__now_s();
    for (int pass = 0; pass < rank->passes; pass++)
        TRY(one_pass(rank, pass, &times, why));
    tsr_topology_device *self = &rank->out->self;
    tsr__measure_summarize(rank, times.best);
    qsort(times.differ, times.n, sizeof *times.differ, by_double);
    rank->out->differ = times.n ? times.differ[times.n / 2] : 1;
    if (rank->seat)
        return TSR_OK; // its memory is known (measure_gpu.c)
    self->memory = tsr__memory_available();
    if (rank->endpoint->host_ranks > 1) // the ranks share it
        self->memory /= rank->endpoint->host_ranks;
    return TSR_OK;
}

// Lists the group sizes to measure, which divide the number of ranks: 2, 4, 8 and all ranks.
static void find_groups(struct measure_rank *rank)
{
    int n = rank->endpoint->size;
    // Example: for 12 ranks, groups of 2, 4 and 12; 8 does not divide 12.
    for (int size = 2; size < n; size *= 2) {
        if (rank->n_groups == MEASURE_GROUPS - 1)
            break;
        if (n % size == 0)
            rank->group[rank->n_groups++] = size;
    }
    if (n > 1)
        rank->group[rank->n_groups++] = n;
}

// Measures the devices, the links and the collectives. The barriers make all ranks compute at the
// same time, as in a run, and keep links from being timed while a rank computes. Collectives are
// measured on one host only.
static tsr_status all_parts(struct measure_rank *rank, struct comm_trouble *why)
{
    if (rank->gpu) {
        tsr_status opened = tsr__measure_gpu_open(rank, why);
        if (opened != TSR_OK)
            return opened;
    }
    struct endpoint *endpoint = rank->endpoint;
    TRY(tsr__comm_barrier(endpoint, MEASURE_PLAN, "start of measuring", why));
    TRY(compute(rank, why));
    TRY(tsr__comm_barrier(endpoint, MEASURE_PLAN, "links", why));
    TRY(tsr__measure_gpu_meet(rank, why));
    tsr_status st = tsr__measure_links(rank, why);
    if (st != TSR_OK || !rank->one_host)
        return st;
    return tsr__measure_collectives(rank, why);
}

// Measures as one rank. After a failure it notifies the other ranks, which would otherwise wait.
void tsr__measure_rank(struct measure_rank *rank)
{
    struct comm_trouble why = {0};
    struct endpoint *endpoint = rank->endpoint;
    rank->one_host = endpoint->host_ranks == endpoint->size;
    find_groups(rank);
    memset(rank->out, 0, sizeof *rank->out);
    rank->status = all_parts(rank, &why);
    if (rank->status == TSR_OK)
        return;
    bool said = why.text[0];
    struct place at = PLACE_NONE;
    at.rank = why.rank;
    enum diag_code code = rank->status == TSR_ENGINE ? DIAG_engine_failed : DIAG_rank_failed;
    tsr__comm_fail(rank->endpoint, rank->status, said ? why.text : "measuring failed");
    tsr__diag(rank->session, code, &at, NULL, "%s",
              said ? why.text : tsr_status_text(rank->status));
}

// ---- all ranks ----------------------------------------------------------------------------------

struct measuring {
    tsr_session *session;
    tsr_run_options run;
    double seconds;
    struct engine *engine;
    struct temporary *folder; // for the models
    int n;
    const char *const *devices; // by rank; NULL: all on the CPU
    const struct gpu *gpu;      // set if some device is a GPU
    struct rank_results *found; // by rank
    struct measure_rank *ranks; // if ranks are threads
    struct measured *out;
};

static bool all_on_gpus(const struct measuring *measuring)
{
    for (int i = 0; i < measuring->n; i++)
        if (!measuring->gpu ||
            tsr__gpu_card(measuring->engine, measuring->devices[i], &measuring->run) < 0)
            return false;
    return true;
}

static bool names_gpu(const struct measuring *measuring)
{
    if (!measuring->devices)
        return false;
    for (int i = 0; i < measuring->n; i++)
        if (tsr__gpu_card(measuring->engine, measuring->devices[i], &measuring->run) >= 0)
            return true;
    return false;
}

// Opens the GPU driver if a device is a GPU. Called in the process that uses the driver, not in the
// parent of forked ranks.
static tsr_status find_gpus(struct measuring *measuring, tsr_session *session)
{
    if (!names_gpu(measuring))
        return TSR_OK;
    measuring->gpu = tsr__gpu_driver(session, measuring->engine, &measuring->run);
    if (measuring->gpu)
        return TSR_OK;
    return tsr__run_refuse(session, DIAG_provider_absent, NULL,
                           "`tessera doctor` lists the GPUs of this machine",
                           measuring->engine->gpu_why);
}

// Returns the number of samples to time: all, or only the first MEASURE_BRIEFLY if there is less
// than half a second.
static size_t samples_for(const struct measuring *measuring)
{
    return measuring->seconds < 0.5 ? MEASURE_BRIEFLY : tsr__n_samples;
}

// Returns the number of passes that fit in the time limit.
static int passes_for(const struct measuring *measuring)
{
    if (measuring->seconds < 1)
        return 1;
    return measuring->seconds < 2 ? 2 : MOST_PASSES;
}

#define MATRICES 8 // for all ranks together: 512 MiB, more than a shared cache holds

// Returns the number of 64 MiB matrices per rank by which one row is multiplied: 8 for one rank, 4
// each for two. One if time is short, although a shared cache may hold it.
static int matrices_for(const struct measuring *measuring)
{
    return measuring->seconds < 1 || measuring->n >= MATRICES ? 1 : MATRICES / measuring->n;
}

static void begin_rank(const struct measuring *measuring, tsr_session *session,
                       struct endpoint *endpoint, struct rank_results *out,
                       struct measure_rank *rank)
{
    *rank = (struct measure_rank){.session = session,
                                  .engine = measuring->engine,
                                  .endpoint = endpoint,
                                  .folder = measuring->folder->path,
                                  .options = &measuring->run,
                                  .gpu = measuring->gpu,
                                  .gpus = all_on_gpus(measuring),
                                  .samples = samples_for(measuring),
                                  .passes = passes_for(measuring),
                                  .matrices = matrices_for(measuring),
                                  .seconds = measuring->seconds,
                                  .no_pin = measuring->run.no_pin,
                                  .out = out};
    if (measuring->devices)
        rank->device = measuring->devices[endpoint->rank];
    rank->threads =
        tsr__rank_threads(endpoint->host_cores, endpoint->host_ranks, measuring->run.threads);
}

static void keep_larger(double *to, const double *from, int n)
{
    for (int i = 0; i < n; i++)
        if (from[i] > to[i])
            to[i] = from[i];
}

// Gives all ranks of one host the figures of the fastest: they have equal cores, and a slower rank
// was slowed by other load. The memory is the share of rank 0.
static void use_fastest(struct measured *measured)
{
    tsr_topology_device best = measured->rank[0];
    for (int i = 1; i < measured->ranks; i++) {
        const tsr_topology_device *other = &measured->rank[i];
        keep_larger(&best.flops, &other->flops, 1);
        keep_larger(&best.bandwidth, &other->bandwidth, 1);
        keep_larger(best.rates, other->rates, TSR_RATE_COUNT);
        keep_larger(best.moves, other->moves, TSR_MOVE_COUNT);
        keep_larger(best.cached, other->cached, TSR_MOVE_COUNT);
        if (other->overhead < best.overhead)
            best.overhead = other->overhead;
    }
    for (int i = 0; i < measured->ranks; i++)
        measured->rank[i] = best;
}

// True if all ranks are on devices of one name. "CUDA:0" and "CUDA:1" may differ in speed.
static bool alike(const struct measuring *measuring)
{
    for (int i = 1; i < measuring->n; i++)
        if (measuring->devices && strcmp(measuring->devices[i], measuring->devices[0]) != 0)
            return false;
    return true;
}

// Records for each sample model the time of its node on the fastest rank, with the node's kind and
// amount of work. `large`: the inputs were enlarged by sample->grows.
static void collect_sizes(const struct measuring *measuring, bool large)
{
    struct measured *measured = measuring->out;
    for (size_t i = 0; i < tsr__n_samples; i++) {
        const struct sample *sample = &tsr__samples[i];
        const struct sample_node *node = &sample->node;
        double grows = large ? (double)sample->grows : 1, seconds = 0;
        for (int rank = 0; rank < measuring->n; rank++) {
            double took = measuring->found[rank].node[i];
            if (took > 0 && (seconds == 0 || took < seconds))
                seconds = took;
        }
        if (seconds > 0)
            measured->size[measured->n_sizes++] =
                (struct measured_size){.rate = node->rate,
                                       .move = node->move,
                                       .word = node->word,
                                       .type = sample->type,
                                       .work = grows * node->work,
                                       .bytes = grows * node->bytes + node->fixed,
                                       .seconds = seconds};
    }
}

static void collect(struct measuring *measuring, const struct measure_rank *rank)
{
    struct measured *measured = measuring->out;
    measured->ranks = measuring->n;
    measured->one_host = rank->one_host;
    measured->n_groups = rank->n_groups;
    memcpy(measured->group, rank->group, sizeof measured->group);
    memcpy(measured->bytes, tsr__measure_bytes, sizeof measured->bytes);
    for (int i = 0; i < measuring->n; i++) {
        const struct rank_results *rank_results = &measuring->found[i];
        measured->rank[i] = rank_results->self;
        measured->unsteady = measured->unsteady || rank_results->unsteady;
        // the fastest rank counts, as in use_fastest
        measured->differ = i ? fmin(measured->differ, rank_results->differ) : rank_results->differ;
        for (int k = i + 1; k < measuring->n; k++) {
            measured->latency[i][k] = measured->latency[k][i] = rank_results->latency[k];
            measured->bandwidth[i][k] = measured->bandwidth[k][i] = rank_results->bandwidth[k];
        }
        for (int a = 0; a < MEASURE_KINDS; a++)
            for (int b = 0; b < MEASURE_GROUPS; b++)
                for (int c = 0; c < MEASURE_POINTS; c++) // from the slowest rank
                    if (rank_results->seconds[a][b][c] > measured->seconds[a][b][c])
                        measured->seconds[a][b][c] = rank_results->seconds[a][b][c];
    }
    if (!measured->one_host || !alike(measuring))
        return;
    use_fastest(measured);
    collect_sizes(measuring, measured->rank[0].queued);
}

// ---- as threads --------------------------------------------------------------------------------

static void *rank_thread(void *data)
{
    struct measure_rank *rank = data;
    if (!rank->no_pin) // before the engine's session, whose threads inherit the affinity
        tsr__cores_keep(rank->endpoint->rank, rank->endpoint->size);
    tsr__measure_rank(rank);
    tsr__comm_close(rank->endpoint);
    return NULL;
}

// Prepares the ranks. Rank 0 uses the caller's session, so that its progress is reported; the
// caller's thread only waits. Every other rank gets its own session. Returns TSR_NOMEM if one of
// them could not be created.
static tsr_status begin_threads(struct measuring *measuring, struct thread_job *job)
{
    tsr_status st = TSR_OK;
    for (int i = 0; i < measuring->n; i++) {
        tsr_session *session = i ? tsr_session_new(NULL) : measuring->session;
        begin_rank(measuring, session, tsr__threads_endpoint(job, i), &measuring->found[i],
                   &measuring->ranks[i]);
        if (!session)
            st = TSR_NOMEM;
    }
    return st;
}

// Starts a thread for each rank and waits for all of them. Returns the first failure.
static tsr_status run_threads(struct measuring *measuring)
{
    pthread_t threads[MEASURE_RANKS];
    int started = 0;
    tsr_status first = TSR_OK;
    for (; started < measuring->n; started++)
        if (pthread_create(&threads[started], NULL, rank_thread, &measuring->ranks[started])) {
            first = TSR_PEER;
            tsr__comm_fail(measuring->ranks[0].endpoint, first,
                           "the thread of a rank could not be started");
            break;
        }
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < started; i++)
        if (first == TSR_OK)
            first = measuring->ranks[i].status;
    return first;
}

static tsr_status with_threads(struct measuring *measuring)
{
    TRY(find_gpus(measuring, measuring->session));
    struct thread_job *job = tsr__threads_new(measuring->session, measuring->n);
    if (!job)
        return TSR_NOMEM;
    tsr_status st = begin_threads(measuring, job);
    if (st == TSR_OK)
        st = run_threads(measuring);
    // only after all ranks have ended, because they use each other's GPU memory
    for (int i = 0; i < measuring->n; i++)
        tsr__measure_gpu_close(&measuring->ranks[i]);
    for (int i = 1; i < measuring->n; i++)
        tsr_session_free(measuring->ranks[i].session);
    tsr__threads_free(job);
    return st;
}

// ---- as processes ------------------------------------------------------------------------------

// Measures in a child process. measure_rank has pointers of the child process; the parent reads
// only its numbers (collect).
static tsr_status child_work(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *out)
{
    struct measuring *measuring = spawn->data;
    struct measure_rank measure_rank;
    struct engine *engine = tsr__engine_state(session);
    TRY(find_gpus(measuring, session));
    begin_rank(measuring, session, engine->joined, &measuring->found[rank], &measure_rank);
    tsr__measure_rank(&measure_rank);
    tsr__measure_gpu_close(&measure_rank);
    tsr__message_put(out, &measure_rank, sizeof measure_rank);
    tsr__message_put(out, &measuring->found[rank], sizeof measuring->found[rank]);
    return measure_rank.status;
}

static tsr_status child_take(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *in)
{
    (void)session;
    struct measuring *measuring = spawn->data;
    const void *measured = tsr__message_get(in, sizeof *measuring->ranks);
    const void *found = tsr__message_get(in, sizeof *measuring->found);
    if (!measured || !found)
        return TSR_MALFORMED;
    memcpy(&measuring->ranks[rank], measured, sizeof *measuring->ranks);
    memcpy(&measuring->found[rank], found, sizeof *measuring->found);
    return TSR_OK;
}

static tsr_status with_children(struct measuring *measuring)
{
    struct spawn w = {.n = measuring->n,
                      .options = &measuring->run,
                      .work = child_work,
                      .take = child_take,
                      .data = measuring};
    if (names_gpu(measuring))
        TRY(tsr__gpu_refuse_fork(measuring->session, &measuring->run));
    return tsr__spawn(measuring->session, &w);
}

// ---- under a launcher --------------------------------------------------------------------------

// Exchanges results: every rank sends its results to all others. All ranks then have all results in
// the same order.
static tsr_status exchange_results(struct measuring *measuring, struct endpoint *endpoint)
{
    struct comm_trouble why;
    struct rank_results mine = measuring->found[endpoint->rank];
    struct comm_call call = {.plan = MEASURE_PLAN,
                             .id = -11,
                             .kind = COMM_ALL_GATHER,
                             .type = TSR_UINT8,
                             .op = "measure",
                             .node = "results"};
    if (tsr__comm_share_all(endpoint, &call, &mine, sizeof mine, measuring->found, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(measuring->session, &why);
}

static tsr_status as_launched(struct measuring *measuring, struct endpoint *endpoint)
{
    struct measure_rank *rank = &measuring->ranks[endpoint->rank];
    TRY(find_gpus(measuring, measuring->session));
    begin_rank(measuring, measuring->session, endpoint, &measuring->found[endpoint->rank], rank);
    tsr__measure_rank(rank);
    if (rank->status == TSR_OK)
        rank->status = exchange_results(measuring, endpoint);
    tsr__measure_gpu_close(rank);
    return rank->status;
}

// ---- start and end -----------------------------------------------------------------------------

static tsr_status make_models(struct measuring *measuring)
{
    TRY(tsr__temporary_folder(measuring->session, measuring->run.work, "measure",
                              &measuring->folder));
    return tsr__measure_write(measuring->session, measuring->folder->path, samples_for(measuring),
                              matrices_for(measuring));
}

// Reads the options. Under a launcher, *place is the endpoint of this process.
static tsr_status read_options(struct measuring *measuring, const tsr_measure_options *given,
                               struct endpoint **place)
{
    tsr_measure_options options = {.size = sizeof options};
    if (given)
        options = *given;
    TRY(tsr__run_options(measuring->session, options.run, &measuring->run));
    if (!tsr__run_spawns(measuring->session, &measuring->run))
        TRY(tsr__run_join(measuring->session, &measuring->run, place));
    if (*place)
        measuring->n = (*place)->size;
    else
        measuring->n = options.devices > 0 ? options.devices : tsr__cores();
    measuring->seconds = USUAL_SECONDS;
    if (options.seconds > 0 && options.seconds < MOST_SECONDS)
        measuring->seconds = options.seconds;
    if (measuring->n > MEASURE_RANKS ||
        (*place && options.devices > 0 && options.devices != measuring->n))
        return tsr__run_refuse(measuring->session, DIAG_run_options, NULL,
                               "use at most 64 ranks; with a launcher, the number that it started",
                               "the number of ranks to measure is out of range");
    return TSR_OK;
}

static tsr_status all_ranks(struct measuring *measuring, struct endpoint *place)
{
    if (place)
        return as_launched(measuring, place);
    if (tsr__run_spawns(measuring->session, &measuring->run))
        return with_children(measuring);
    return with_threads(measuring);
}

static tsr_status measure(struct measuring *measuring, struct endpoint *place)
{
    size_t n = (size_t)measuring->n;
    tsr_status st = TSR_NOMEM;
    measuring->found = tsr__alloc(measuring->session, n * sizeof *measuring->found);
    measuring->ranks = tsr__alloc(measuring->session, n * sizeof *measuring->ranks);
    if (!measuring->found || !measuring->ranks)
        goto free_lists;
    st = make_models(measuring);
    if (st != TSR_OK)
        goto remove_models;
    struct cores_use before = tsr__cores_use();
    st = all_ranks(measuring, place);
    struct cores_use after = tsr__cores_use();
    if (!place) // else ranks of this host are not children of this process
        measuring->out->others = tsr__cores_others(&before, &after);
    if (st == TSR_OK && (!place || place->rank == 0))
        collect(measuring, &measuring->ranks[0]);
remove_models:
    tsr__temporary_remove(measuring->folder);
free_lists:
    tsr__free(measuring->session, measuring->found, n * sizeof *measuring->found);
    tsr__free(measuring->session, measuring->ranks, n * sizeof *measuring->ranks);
    return st;
}

tsr_status tsr__measure(tsr_session *session, const tsr_measure_options *options,
                        const char *const *devices, struct measured *out)
{
    struct measuring measuring = {.session = session, .devices = devices, .out = out};
    struct endpoint *place = NULL;
    memset(out, 0, sizeof *out);
    TRY(read_options(&measuring, options, &place));
    TRY(tsr__engine(session, &measuring.engine));
    return measure(&measuring, place);
}
