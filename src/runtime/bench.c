// SPDX-License-Identifier: Apache-2.0
// bench.c - runs the same again and again and measures: how long a run takes, how much of it is communication.
//
// Ranks that are processes must agree how often to run: rank 0 looks at its clock and tells the others how many runs
// come next, a few at a time, so that telling is rare. A run's time is what rank 0, or the thread that asked, sees from
// its start to its results. With several runs under way, telling makes all ranks meet, so it is rarer still.
#include "runtime/spawn.h"

#include <stdlib.h>
#include <sys/stat.h>

#define WARM_RUNS  3
#define WARM_SHARE 0.1 // of the time, at most WARM_S
#define WARM_S     2.0
#define BATCH_S    0.02 // runs between two looks at the clock take about that long
#define FLIGHT_S   1.0  // the same where runs overlap and ranks are processes
#define MAX_BATCH  1024
#define MAX_RUNS   (100u << 20)

struct bench {
    tsr_session *session;
    tsr_job *job;
    const tsr_tensors *inputs;
    double seconds;
    int in_flight;               // runs under way at a time
    double started[RUN_FLIGHTS]; // when those under way began
    uint64_t asked, taken;       // runs
    double wall_s;               // from the first start to the last result
    double *times;
    size_t n, cap;
    uint64_t told; // messages of rank 0 so far
    struct memory_mark before;
    const char *folder; // of the model
};
// What each rank tells of itself.
struct told {
    double comm_s;
    int64_t memory; // 0: it shares a process
};

static struct comm_call call_of(const struct bench *b, const int64_t *group, int n, int64_t id,
                                enum comm_kind kind)
{
    return (struct comm_call){.plan = tsr__job_plan(b->job),
                              .id = id,
                              .run = b->told,
                              .kind = kind,
                              .type = TSR_UINT8,
                              .group = group,
                              .n_group = n,
                              .op = "bench",
                              .node = "between runs"};
}

static tsr_status failed(const struct bench *b, const struct comm_trouble *why)
{
    struct place at = PLACE_NONE;
    at.rank = why->rank;
    tsr__diag(b->session, DIAG_rank_failed, &at, "see what that rank says", "%s", why->text);
    return why->status == TSR_OK ? TSR_PEER : why->status;
}

static int64_t *all_ranks(tsr_session *s, struct arena *a, int n)
{
    tsr__arena_init(a, s);
    int64_t *group = ARENA_ARRAY(a, int64_t, (size_t)n);
    for (int i = 0; group && i < n; i++)
        group[i] = i;
    return group;
}

// Rank 0's number, on all ranks.
static tsr_status agree(struct bench *b, int64_t *number)
{
    struct endpoint *e = tsr__job_place(b->job);
    struct comm_trouble why;
    struct arena a;
    if (!e)
        return TSR_OK;
    int64_t *group = all_ranks(b->session, &a, e->size);
    tsr_status st = TSR_NOMEM;
    if (group) {
        struct comm_call c = call_of(b, group, e->size, -1, COMM_BROADCAST);
        bool timed = e->timed;
        b->told++;
        e->timed = false; // this is not part of a run
        st = tsr__comm_broadcast(e, &c, 0, number, sizeof *number, &why);
        e->timed = timed;
        st = st == TSR_OK ? st : failed(b, &why);
    }
    tsr__arena_free(&a);
    return st;
}

static bool keep_time(struct bench *b, double t)
{
    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 4096;
        double *p = tsr__realloc(b->session, b->times, b->cap * sizeof *p, cap * sizeof *p);
        if (!p)
            return false;
        b->times = p;
        b->cap = cap;
    }
    b->times[b->n++] = t;
    return true;
}

static tsr_status start_run(struct bench *b)
{
    b->started[b->asked++ % RUN_FLIGHTS] = tsr__now_s();
    return tsr_job_start(b->job, b->inputs);
}

static tsr_status take_run(struct bench *b)
{
    tsr_status st = tsr_job_wait(b->job, NULL);
    double began = b->started[b->taken++ % RUN_FLIGHTS];
    if (st != TSR_OK)
        return st;
    return keep_time(b, tsr__now_s() - began) ? TSR_OK : TSR_NOMEM;
}

// Takes results until so many runs are left under way.
static tsr_status take_down_to(struct bench *b, uint64_t left)
{
    while (b->asked - b->taken > left) {
        tsr_status st = take_run(b);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

static tsr_status some_runs(struct bench *b, int64_t runs)
{
    for (int64_t i = 0; i < runs; i++) {
        tsr_status st = take_down_to(b, (uint64_t)b->in_flight - 1);
        if (st == TSR_OK)
            st = start_run(b);
        if (st != TSR_OK)
            return st;
    }
    bool meets = tsr__job_place(b->job) != NULL; // before rank 0 tells how many come next
    return b->in_flight == 1 || meets ? take_down_to(b, 0) : TSR_OK;
}

// Runs for that long, and at least so often; ends with no run under way.
static tsr_status run_for(struct bench *b, double seconds, int64_t at_least)
{
    bool overlaps = b->in_flight > 1 && tsr__job_place(b->job);
    double began = tsr__now_s(), last = began, batch_s = overlaps ? FLIGHT_S : BATCH_S;
    int64_t batch = 1, next = 1, runs = 0;
    batch_s = batch_s < seconds / 4 ? batch_s : seconds / 4;
    for (;;) {
        double now = tsr__now_s();
        if (now - last < batch_s && runs && batch < MAX_BATCH)
            batch *= 2;
        else if (now - last > 2 * batch_s && batch > 1)
            batch /= 2;
        last = now;
        bool more = runs < at_least || (now - began < seconds && b->n < MAX_RUNS);
        next = more ? batch : 0;
        tsr_status st = agree(b, &next);
        if (st == TSR_OK && next > 0)
            st = some_runs(b, next);
        if (st != TSR_OK)
            return st;
        if (next == 0)
            break;
        runs += next;
    }
    tsr_status st = take_down_to(b, 0);
    b->wall_s = tsr__now_s() - began;
    return st;
}

// ---- results -----------------------------------------------------------------------------------

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct bench *b, double share)
{
    size_t i = (size_t)(share * (double)(b->n - 1) + 0.5);
    return b->times[i < b->n ? i : b->n - 1];
}

static void time_communication(const tsr_job *j)
{
    struct endpoint *e;
    for (int i = 0; (e = tsr__job_endpoint(j, i)); i++) {
        e->timed = true;
        e->comm_s = 0;
    }
}

// What every rank tells, on all ranks.
static tsr_status gather(struct bench *b, struct told *all, int ranks)
{
    struct endpoint *place = tsr__job_place(b->job), *e;
    int64_t memory = tsr__memory_since(&b->before, b->folder, tsr__job_place(b->job));
    for (int i = 0; !place && i < ranks; i++)
        all[i] = (struct told){(e = tsr__job_endpoint(b->job, i)) ? e->comm_s : 0,
                               ranks == 1 ? memory : 0};
    if (!place)
        return TSR_OK;
    struct arena a;
    struct comm_trouble why;
    struct told mine = {place->comm_s, memory};
    int64_t *group = all_ranks(b->session, &a, ranks);
    struct comm_buffer *send = ARENA_ARRAY(&a, struct comm_buffer, (size_t)ranks);
    struct comm_buffer *recv = ARENA_ARRAY(&a, struct comm_buffer, (size_t)ranks);
    tsr_status st = a.failed ? TSR_NOMEM : TSR_OK;
    for (int i = 0; i < ranks && st == TSR_OK; i++) {
        send[i] = (struct comm_buffer){.p = &mine, .bytes = sizeof mine};
        recv[i] = (struct comm_buffer){.p = &all[i], .bytes = sizeof mine};
    }
    if (st == TSR_OK) {
        struct comm_call c = call_of(b, group, ranks, -2, COMM_ALL_GATHER);
        st = tsr__comm_all_to_all(place, &c, send, recv, &why);
        st = st == TSR_OK ? st : failed(b, &why);
    }
    tsr__arena_free(&a);
    return st;
}

static tsr_status sum_up(struct bench *b, tsr_bench_result *r)
{
    struct arena *kept = &b->session->results[RESULT_RUN];
    tsr__arena_free(kept);
    r->ranks = tsr_job_ranks(b->job, NULL);
    double *share = ARENA_ARRAY(kept, double, (size_t)r->ranks), sum = 0;
    int64_t *memory = ARENA_ARRAY(kept, int64_t, (size_t)r->ranks);
    struct told *told = ARENA_ARRAY(kept, struct told, (size_t)r->ranks);
    if (!share || !memory || !told)
        return TSR_NOMEM;
    for (size_t i = 0; i < b->n; i++)
        sum += b->times[i];
    tsr_status st = gather(b, told, r->ranks);
    r->seconds =
        b->in_flight > 1 ? b->wall_s : sum; // one at a time: without what is told between runs
    for (int i = 0; i < r->ranks; i++) {
        share[i] = r->seconds > 0 ? told[i].comm_s / r->seconds : 0;
        memory[i] = told[i].memory;
    }
    r->communication = share;
    r->memory = memory;
    r->process_memory = tsr__memory_since(&b->before, b->folder, tsr__job_place(b->job));
    r->runs = b->n;
    r->mean_s = b->n ? sum / (double)b->n : 0;
    qsort(b->times, b->n, sizeof *b->times, by_size);
    double *const at[] = {&r->min_s, &r->p50_s, &r->p90_s, &r->p95_s, &r->p99_s, &r->max_s};
    static const double shares[] = {0, 0.5, 0.9, 0.95, 0.99, 1};
    for (size_t i = 0; i < TSR_COUNT(at); i++)
        *at[i] = b->n ? percentile(b, shares[i]) : 0;
    return st;
}

// ---- here --------------------------------------------------------------------------------------

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// The folder that a model's weights are mapped from.
static struct str folder_of(struct arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (is_folder(path))
        return tsr__arena_str(a, str_of(path));
    return slash ? tsr__arena_str(a, (struct str){path, (size_t)(slash - path)}) : STR(".");
}

static tsr_status bench_here(tsr_session *s, const char *path, const tsr_run_options *o,
                             const tsr_tensors *inputs, double seconds, tsr_bench_result *r)
{
    struct bench b = {.session = s, .inputs = inputs, .seconds = seconds};
    b.in_flight = o->in_flight > 1 ? o->in_flight : 1;
    struct arena a;
    tsr__arena_init(&a, s);
    b.folder = folder_of(&a, path).p;
    b.before = tsr__memory_mark(b.folder);
    double began = tsr__now_s();
    double warm = seconds * WARM_SHARE < WARM_S ? seconds * WARM_SHARE : WARM_S;
    tsr_status st =
        is_folder(path) ? tsr_job_open(s, path, o, &b.job) : tsr_job_open_model(s, path, o, &b.job);
    r->load_s = tsr__now_s() - began;
    if (st == TSR_OK)
        st = run_for(&b, warm, WARM_RUNS);
    r->warmups = b.n;
    b.n = 0;
    if (st == TSR_OK) {
        time_communication(b.job);
        st = run_for(&b, seconds, 1);
    }
    if (st == TSR_OK)
        st = sum_up(&b, r);
    if (st == TSR_OK && o->trace)
        st = tsr_job_trace(b.job);
    tsr__free(s, b.times, b.cap * sizeof *b.times);
    tsr_job_close(b.job);
    tsr__arena_free(&a);
    return st;
}

// ---- ranks as children -------------------------------------------------------------------------

struct bench_work {
    const char *path;
    const tsr_tensors *inputs;
    double seconds;
    tsr_bench_result *result;
};

static tsr_status bench_work(struct spawn *w, tsr_session *s, int rank, struct parcel *out)
{
    struct bench_work *b = w->data;
    tsr_run_options o = *w->options;
    tsr_bench_result r = {.size = sizeof r};
    o.check_files = false; // done before
    tsr_status st = bench_here(s, b->path, &o, b->inputs, b->seconds, &r);
    if (st != TSR_OK || rank != 0)
        return st;
    tsr__parcel_put(out, &r, sizeof r);
    tsr__parcel_put(out, r.communication, (size_t)r.ranks * sizeof *r.communication);
    tsr__parcel_put(out, r.memory, (size_t)r.ranks * sizeof *r.memory);
    return TSR_OK;
}

static tsr_status bench_take(struct spawn *w, tsr_session *s, int rank, struct parcel *in)
{
    struct bench_work *b = w->data;
    if (rank != 0)
        return TSR_OK;
    const void *r = tsr__parcel_get(in, sizeof *b->result);
    if (r)
        memcpy(b->result, r, sizeof *b->result);
    size_t bytes = (size_t)w->n * sizeof(double), more = (size_t)w->n * sizeof(int64_t);
    const void *share = tsr__parcel_get(in, bytes);
    const void *memory = share ? tsr__parcel_get(in, more) : NULL;
    if (!memory || b->result->ranks != w->n)
        return TSR_MALFORMED;
    struct arena *kept = &s->results[RESULT_RUN];
    tsr__arena_free(kept);
    double *copy = ARENA_ARRAY(kept, double, (size_t)w->n);
    int64_t *held = ARENA_ARRAY(kept, int64_t, (size_t)w->n);
    if (!copy || !held)
        return TSR_NOMEM;
    b->result->communication = memcpy(copy, share, bytes);
    b->result->memory = memcpy(held, memory, more);
    b->result->process_memory = 0;
    return TSR_OK;
}

tsr_status tsr_bench(tsr_session *s, const char *path, const tsr_run_options *options,
                     const tsr_tensors *inputs, double seconds, tsr_bench_result *result)
{
    tsr_run_options o;
    tsr_bench_result r = {.size = sizeof r};
    tsr_status st = tsr__run_options(s, options, &o);
    if (st == TSR_OK && tsr__run_spawns(s, &o) && is_folder(path)) {
        struct bench_work b = {path, inputs, seconds, &r};
        struct spawn w = {.options = &o, .work = bench_work, .take = bench_take, .data = &b};
        st = tsr__run_prepare(s, path, &o, &w.n);
        if (st == TSR_OK)
            st = tsr__spawn(s, &w);
    } else if (st == TSR_OK) {
        st = bench_here(s, path, &o, inputs, seconds, &r);
    }
    size_t size = result->size < sizeof r ? result->size : sizeof r;
    r.size = result->size;
    memcpy(result, &r, size);
    return st;
}
