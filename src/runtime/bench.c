// SPDX-License-Identifier: Apache-2.0
// bench.c - measures a model or partition: runs it repeatedly and reports the time of a run and the
// share of communication.
//
// Ranks that are processes must make the same number of runs. Rank 0 checks its clock and
// broadcasts the number of runs in the next batch; batches keep broadcasts rare. The time of a run
// is measured by rank 0, or by the calling thread, from its start to its results. With overlapping
// runs a broadcast synchronizes all ranks, so it is even rarer.
#include "runtime/job.h"
#include "runtime/remote.h"
#include "runtime/spawn.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#define WARM_RUNS  3
#define WARM_SHARE 0.1 // share of the measuring time, at most WARM_S
#define WARM_S     2.0
#define BATCH_S    0.02 // duration of the runs between two checks of the clock
#define FLIGHT_S   1.0  // the same if runs overlap and ranks are processes
#define MAX_BATCH  1024
#define MAX_RUNS   (100u << 20)

struct bench {
    tsr_session *session;
    tsr_job *job;
    const tsr_tensors *inputs;
    double seconds;
    int in_flight;             // number of concurrent runs
    double started[RUN_SLOTS]; // start times of pending runs
    uint64_t asked, taken;     // numbers of runs that were started and collected
    double wall_s;             // from the first start to the last result
    double *times;
    size_t n, cap;
    uint64_t broadcasts; // number of broadcasts by rank 0
    struct memory_mark before;
    const char *folder; // folder of the model
};
static struct comm_call call_of(const struct bench *bench, int64_t id, enum comm_kind kind)
{
    return (struct comm_call){.plan = tsr__job_plan(bench->job),
                              .id = id,
                              .run = bench->broadcasts,
                              .kind = kind,
                              .type = TSR_UINT8,
                              .op = "bench",
                              .node = "between runs"};
}

// Broadcasts rank 0's *number to all ranks if they are processes; otherwise leaves it unchanged.
static tsr_status broadcast_number(struct bench *bench, int64_t *number)
{
    struct endpoint *endpoint = tsr__job_place(bench->job);
    struct comm_trouble why;
    if (!endpoint)
        return TSR_OK;
    struct comm_call call = call_of(bench, -1, COMM_BROADCAST);
    bool timed = endpoint->timed;
    bench->broadcasts++;
    endpoint->timed = false; // this is not part of a run
    tsr_status st = tsr__comm_tell_all(endpoint, &call, 0, number, sizeof *number, &why);
    endpoint->timed = timed;
    return st == TSR_OK ? TSR_OK : tsr__run_peer_failed(bench->session, &why);
}

static bool keep_time(struct bench *bench, double t)
{
    if (bench->n == bench->cap) {
        size_t cap = bench->cap ? 2 * bench->cap : 4096;
        double *p =
            tsr__realloc(bench->session, bench->times, bench->cap * sizeof *p, cap * sizeof *p);
        if (!p)
            return false;
        bench->times = p;
        bench->cap = cap;
    }
    bench->times[bench->n++] = t;
    return true;
}

// Starts a run and records when. At most RUN_SLOTS runs are pending, so the slot of `started` is
// free.
static tsr_status start_run(struct bench *bench)
{
    bench->started[bench->asked++ % RUN_SLOTS] = tsr__now_s();
    return tsr_job_start(bench->job, bench->inputs);
}

static tsr_status take_run(struct bench *bench)
{
    tsr_status st = tsr_job_wait(bench->job, NULL);
    double began = bench->started[bench->taken++ % RUN_SLOTS];
    if (st != TSR_OK)
        return st;
    if (keep_time(bench, tsr__now_s() - began))
        return TSR_OK;
    return TSR_NOMEM;
}

// Collects results until `left` runs are pending.
static tsr_status collect_down_to(struct bench *bench, uint64_t left)
{
    while (bench->asked - bench->taken > left)
        TRY(take_run(bench));
    return TSR_OK;
}

static tsr_status some_runs(struct bench *bench, int64_t runs)
{
    for (int64_t i = 0; i < runs; i++) {
        TRY(collect_down_to(bench, (uint64_t)bench->in_flight - 1));
        TRY(start_run(bench));
    }
    // Processes collect all runs before rank 0 broadcasts the next number of runs.
    bool meets = tsr__job_place(bench->job) != NULL;
    if (bench->in_flight == 1 || meets)
        return collect_down_to(bench, 0);
    return TSR_OK;
}

// Returns the seconds that the runs between two broadcasts should take.
static double batch_seconds(const struct bench *bench, double seconds)
{
    bool overlaps = bench->in_flight > 1 && tsr__job_place(bench->job);
    double batch_s = BATCH_S;
    if (overlaps)
        batch_s = FLIGHT_S;
    return batch_s < seconds / 4 ? batch_s : seconds / 4;
}

// The seconds of runs as progress, which rank 0 reports.
struct clock_text {
    const char *what;
    uint64_t next, total; // in whole seconds
};

static bool reports(const struct bench *bench)
{
    const struct endpoint *place = tsr__job_place(bench->job);
    return !place || place->rank == 0;
}

// Reports the elapsed seconds, once per second. Runs may take longer than planned.
static void report_seconds(const struct bench *bench, double elapsed, struct clock_text *text)
{
    uint64_t now = (uint64_t)elapsed;
    if (!reports(bench) || now < text->next || now >= text->total)
        return;
    tsr__progress(bench->session, text->what, now, text->total);
    text->next = now + 1;
}

// Runs for `seconds`, and at least `at_least` times; no run is pending at the end. Rank 0 sets the
// number of runs of each batch, so that all ranks make the same number. The number doubles (1, 2,
// 4, ...) while batches are too short, because each broadcast costs time, and halves if they are
// too long.
static tsr_status run_for(struct bench *bench, const char *what, double seconds, int64_t at_least)
{
    double began = tsr__now_s(), last = began, batch_s = batch_seconds(bench, seconds);
    int64_t batch = 1, runs = 0;
    struct clock_text text = {what, 0, (uint64_t)ceil(seconds)};
    for (;;) {
        double now = tsr__now_s();
        report_seconds(bench, now - began, &text);
        if (now - last < batch_s && runs && batch < MAX_BATCH)
            batch *= 2;
        else if (now - last > 2 * batch_s && batch > 1)
            batch /= 2;
        last = now;
        bool more = runs < at_least || (now - began < seconds && bench->n < MAX_RUNS);
        int64_t next = more ? batch : 0;
        TRY(broadcast_number(bench, &next));
        if (next <= 0)
            break;
        TRY(some_runs(bench, next));
        runs += next;
    }
    tsr_status st = collect_down_to(bench, 0);
    bench->wall_s = tsr__now_s() - began;
    if (reports(bench))
        tsr__progress(bench->session, what, 1, 1); // clears the line
    return st;
}

// ---- results -----------------------------------------------------------------------------------

// Returns a percentile of n > 0 times, which are sorted. Example: share 0.5 of 4 times is the third
// (index 2).
static double percentile(const double *times, size_t n, double share)
{
    size_t i = (size_t)(share * (double)(n - 1) + 0.5);
    return times[i < n ? i : n - 1];
}

static tsr_status time_communication(tsr_job *job)
{
    if (job->children)
        return tsr__children_use(job, NULL);
    for (int i = 0;; i++) {
        struct endpoint *endpoint = tsr__job_endpoint(job, i);
        if (!endpoint)
            return TSR_OK;
        endpoint->timed = true;
        endpoint->comm_s = 0;
    }
}

// Fills the reports of ranks in this process. GPU memory is known per rank. Host memory is known
// only for the process, so it is reported only if there is one rank.
static void report_here(const struct bench *bench, struct rank_use *all, int ranks, int64_t memory)
{
    for (int i = 0; i < ranks; i++) {
        const struct endpoint *endpoint = tsr__job_endpoint(bench->job, i);
        all[i].memory = tsr__job_gpu_memory(bench->job, i);
        if (all[i].memory == 0 && ranks == 1)
            all[i].memory = memory;
        all[i].comm_s = endpoint ? endpoint->comm_s : 0;
    }
}

// Gathers the reports of all ranks; every rank gets all of them.
static tsr_status gather(struct bench *bench, struct rank_use *all, int ranks)
{
    struct endpoint *place = tsr__job_place(bench->job);
    int64_t memory = tsr__memory_since(&bench->before, bench->folder, place);
    if (bench->job->children)
        return tsr__children_use(bench->job, all);
    if (!place) {
        report_here(bench, all, ranks, memory);
        return TSR_OK;
    }
    struct comm_trouble why;
    struct rank_use mine = {place->comm_s, tsr__job_gpu_memory(bench->job, 0)};
    if (mine.memory == 0)
        mine.memory = memory;
    struct comm_call call = call_of(bench, -2, COMM_ALL_GATHER);
    if (tsr__comm_share_all(place, &call, &mine, sizeof mine, all, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(bench->session, &why);
}

void tsr__bench_times(double *times, size_t n, tsr_bench_result *result)
{
    static const double shares[] = {0, 0.5, 0.9, 0.95, 0.99, 1};
    double *const at[] = {&result->min_s, &result->p50_s, &result->p90_s,
                          &result->p95_s, &result->p99_s, &result->max_s};
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += times[i];
    result->runs = n;
    result->seconds = sum; // if runs do not overlap: without the time between them
    if (n == 0)
        return;
    result->mean_s = sum / (double)n;
    qsort(times, n, sizeof *times, by_double);
    for (size_t i = 0; i < TSR_COUNT(at); i++)
        *at[i] = percentile(times, n, shares[i]);
}

// Computes the result. Called by all ranks, because it contains a collective.
static tsr_status summarize(struct bench *bench, tsr_bench_result *result)
{
    struct arena *kept = &bench->session->results[RESULT_RUN];
    tsr__arena_free(kept);
    result->ranks = tsr_job_ranks(bench->job, NULL);
    double *share = ARENA_ARRAY(kept, double, (size_t)result->ranks);
    int64_t *memory = ARENA_ARRAY(kept, int64_t, (size_t)result->ranks);
    struct rank_use *reports = ARENA_ARRAY(kept, struct rank_use, (size_t)result->ranks);
    double *times = ARENA_ARRAY(kept, double, bench->n + 1);
    if (!share || !memory || !reports || !times)
        return TSR_NOMEM;
    tsr__bench_times(bench->times, bench->n, result);
    if (bench->in_flight > 1)
        result->seconds = bench->wall_s;
    if (bench->n)
        memcpy(times, bench->times, bench->n * sizeof *times);
    result->times = times;
    tsr_status st = gather(bench, reports, result->ranks);
    for (int i = 0; i < result->ranks; i++) {
        // A rank may also wait while rank 0 is between two runs, which `seconds` does not contain.
        share[i] = result->seconds > 0 ? fmin(reports[i].comm_s / result->seconds, 1) : 0;
        memory[i] = reports[i].memory;
    }
    result->communication = share;
    result->memory = memory;
    if (!bench->job->children) // else each rank has its own process
        result->process_memory =
            tsr__memory_since(&bench->before, bench->folder, tsr__job_place(bench->job));
    return st;
}

// ---- here --------------------------------------------------------------------------------------

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

struct str tsr__folder_of(struct arena *arena, const char *path)
{
    return tsr__arena_str(arena, is_folder(path) ? str_of(path) : tsr__path_folder(path));
}

static tsr_status open_job(struct bench *bench, const char *path, const tsr_run_options *options)
{
    if (is_folder(path))
        return tsr_job_open(bench->session, path, options, &bench->job);
    return tsr_job_open_model(bench->session, path, options, &bench->job);
}

// Warms up, measures, and computes the result. Warm-up runs do not count, because the first runs
// allocate memory and fill caches.
static tsr_status measure_runs(struct bench *bench, tsr_bench_result *result)
{
    double warm = bench->seconds * WARM_SHARE < WARM_S ? bench->seconds * WARM_SHARE : WARM_S;
    tsr_status st = run_for(bench, "warm-up runs: second", warm, WARM_RUNS);
    result->warmups = bench->n;
    bench->n = 0;
    if (st != TSR_OK)
        return st;
    TRY(time_communication(bench->job));
    TRY(run_for(bench, "runs: second", bench->seconds, 1));
    return summarize(bench, result);
}

// Measures, and writes the trace if it is requested.
static tsr_status run_job(struct bench *bench, const tsr_run_options *options,
                          tsr_bench_result *result)
{
    tsr_status st = measure_runs(bench, result);
    if (st != TSR_OK || !options->trace)
        return st;
    return tsr_job_trace(bench->job);
}

static tsr_status bench_here(tsr_session *session, const char *path, const tsr_run_options *options,
                             const tsr_tensors *inputs, double seconds, tsr_bench_result *result)
{
    struct bench bench = {.session = session, .inputs = inputs, .seconds = seconds};
    bench.in_flight = options->in_flight > 1 ? options->in_flight : 1;
    struct arena arena = {.session = session};
    bench.folder = tsr__folder_of(&arena, path).p;
    bench.before = tsr__memory_mark(bench.folder);
    double began = tsr__now_s();
    tsr_status st = open_job(&bench, path, options);
    result->load_s = tsr__now_s() - began;
    if (st == TSR_OK) {
        // Inputs that the rank reads without a copy count as its memory, although they existed
        // before.
        bench.before.own -= tsr__job_input_bytes(bench.job, inputs);
        st = run_job(&bench, options, result);
    }
    if (bench.job && tsr__job_place(bench.job))
        st = tsr__run_end(session, options, st);
    tsr__free(session, bench.times, bench.cap * sizeof *bench.times);
    tsr_job_close(bench.job);
    tsr__arena_free(&arena);
    return st;
}

// ---- ranks as children -------------------------------------------------------------------------

struct bench_work {
    const char *path;
    const tsr_tensors *inputs;
    double seconds;
    tsr_bench_result *result;
};

static tsr_status bench_work(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *out)
{
    struct bench_work *work = spawn->data;
    tsr_run_options options = *spawn->options;
    tsr_bench_result result = {.size = sizeof result};
    options.check_files = false; // already checked by the parent
    tsr_status st = bench_here(session, work->path, &options, work->inputs, work->seconds, &result);
    if (st != TSR_OK || rank != 0)
        return st;
    tsr__message_put(out, &result, sizeof result);
    tsr__message_put(out, result.communication,
                     (size_t)result.ranks * sizeof *result.communication);
    tsr__message_put(out, result.memory, (size_t)result.ranks * sizeof *result.memory);
    tsr__message_put(out, result.times, result.runs * sizeof *result.times);
    return TSR_OK;
}

// Reads the result in the parent. Only the message of rank 0 contains it, with the shares and
// memory of all ranks. process_memory is 0, because each rank has its own process.
static tsr_status bench_take(struct spawn *spawn, tsr_session *session, int rank,
                             struct message *in)
{
    struct bench_work *work = spawn->data;
    if (rank != 0)
        return TSR_OK;
    const void *result = tsr__message_get(in, sizeof *work->result);
    if (result)
        memcpy(work->result, result, sizeof *work->result);
    size_t bytes = (size_t)spawn->n * sizeof(double), more = (size_t)spawn->n * sizeof(int64_t);
    const void *share = tsr__message_get(in, bytes);
    const void *memory = tsr__message_get(in, more);
    size_t n = work->result->runs;
    const void *times = n < MAX_RUNS + MAX_BATCH ? tsr__message_get(in, n * sizeof(double)) : NULL;
    if (!share || !memory || !times || work->result->ranks != spawn->n)
        return TSR_MALFORMED;
    struct arena *kept = &session->results[RESULT_RUN];
    tsr__arena_free(kept);
    double *copy = ARENA_ARRAY(kept, double, (size_t)spawn->n);
    int64_t *held = ARENA_ARRAY(kept, int64_t, (size_t)spawn->n);
    double *runs = ARENA_ARRAY(kept, double, n + 1);
    if (!copy || !held || !runs)
        return TSR_NOMEM;
    work->result->times = memcpy(runs, times, n * sizeof *runs);
    work->result->communication = memcpy(copy, share, bytes);
    work->result->memory = memcpy(held, memory, more);
    work->result->process_memory = 0;
    return TSR_OK;
}

// Measures in child processes. A child that runs an unsharded model leaves its GPU to the ranks
// that this process starts afterwards.
static tsr_status bench_in_children(tsr_session *session, const tsr_run_options *options,
                                    bool unsharded, struct bench_work *work)
{
    struct spawn spawn = {.options = options, .work = bench_work, .take = bench_take, .data = work};
    return tsr__spawn_runs(session, work->path, unsharded, work->inputs, &spawn);
}

static tsr_status bench(tsr_session *session, const tsr_run_options *given, struct bench_work *work)
{
    tsr_run_options options;
    TRY(tsr__tensors_owned(session, work->inputs));
    TRY(tsr__run_options(session, given, &options));
    bool spawns = tsr__run_spawns(session, &options);
    if (spawns && is_folder(work->path) && !tsr__run_in_workers(&options))
        return bench_in_children(session, &options, false, work);
    if (spawns && tsr__gpu_named(session, options.device, &options))
        return bench_in_children(session, &options, true, work);
    return bench_here(session, work->path, &options, work->inputs, work->seconds, work->result);
}

// Measures runs of the model or partition at `path` for `seconds`. *result is set only on success.
tsr_status tsr_bench(tsr_session *session, const char *path, const tsr_run_options *options,
                     const tsr_tensors *inputs, double seconds, tsr_bench_result *result)
{
    if (!path)
        return tsr__missing(session, "path");
    if (!result)
        return tsr__missing(session, "result");
    tsr_bench_result bench_result = {.size = sizeof bench_result};
    struct bench_work work = {path, inputs, seconds, &bench_result};
    tsr_status st = bench(session, options, &work);
    if (st == TSR_OK)
        *result = bench_result;
    return st;
}
