// SPDX-License-Identifier: Apache-2.0
// test_device.c - ranks on GPUs: every method of communication must give the same bits as the host,
// for any placement, as threads and as processes. All ranks must report a failure. The GPUs are
// stand-ins; GPU=1 in the environment uses real ones.
#include "gpu/internal.h"
#include "transport/transport.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define MAX_RANKS 4
#define PLAN      77

static struct gpu_libraries libraries;
static int cards = 2;
static double join_s, watch_s; // timeouts of ranks with NCCL; 0: defaults
static bool old_nccl;          // NCCL has no collective but all-reduce

// ---- ranks -------------------------------------------------------------------------------------

// The place of each rank: a GPU, or -1 for the host.
struct layout {
    int n;
    int card[MAX_RANKS];
    enum gpu_method method;
    bool deterministic;
};
struct rank {
    const struct layout *layout;
    struct endpoint *base, *e;
    const struct gpu *gpu;
    tsr_session *session;
    void *stream;
    struct gpu_seat *seat;
    void (*act)(struct rank *r);
    tsr_status status;
    struct comm_trouble why;
    enum gpu_method seen;
    void *kept; // freed after all ranks have ended, or NULL
};

static const int64_t everybody[MAX_RANKS] = {0, 1, 2, 3}, first_and_last[] = {0, 2};

static struct comm_call call_of(const struct rank *r, enum comm_kind kind, tsr_dtype type)
{
    return (struct comm_call){.plan = PLAN,
                              .id = 5,
                              .kind = kind,
                              .reduce = COMM_SUM,
                              .type = type,
                              .group = everybody,
                              .n_group = r->layout->n,
                              .op = "Op",
                              .node = "node",
                              .place = r->seat ? COMM_DEVICE : COMM_HOST,
                              .stream = r->stream};
}

// Allocates memory of the rank with those bytes, on its GPU or on the host.
static void *put(struct rank *r, const void *p, size_t bytes)
{
    void *at = NULL;
    if (!r->seat) {
        at = malloc(bytes + 1);
        memcpy(at, p, bytes);
        return at;
    }
    if (tsr__seat_alloc(r->seat, bytes, &at) != 0 ||
        tsr__seat_up(r->seat, at, p, bytes, r->stream) != 0)
        r->status = TSR_NOMEM;
    tsr__seat_wait(r->seat, r->stream); // the caller may free p
    return at;
}

static void get(struct rank *r, void *p, void *at, size_t bytes)
{
    if (!r->seat) {
        memcpy(p, at, bytes);
        return;
    }
    tsr__seat_down(r->seat, p, at, bytes, r->stream);
    tsr__seat_wait(r->seat, r->stream);
}

// After the stream is done, no other rank reads the memory either.
static void drop(struct rank *r, void *at)
{
    if (!r->seat) {
        free(at);
        return;
    }
    tsr__seat_wait(r->seat, r->stream);
    tsr__seat_free(r->seat, at);
}

static void judge(struct rank *r, bool right)
{
    if (r->status == TSR_OK && !right) {
        r->status = TSR_BUG;
        snprintf(r->why.text, sizeof r->why.text, "wrong numbers on rank %d", r->e->rank);
    }
}

static void life_of(struct rank *r)
{
    const struct layout *l = r->layout;
    int card = l->card[r->base->rank];
    struct device_options o = {.gpu = card < 0 ? NULL : r->gpu,
                               .card = card < 0 ? 0 : card % cards,
                               .method = l->method,
                               .deterministic = l->deterministic,
                               .join_s = join_s,
                               .watch_s = watch_s};
    r->status = tsr__device_open(r->session, r->base, &o, &r->e, &r->why);
    if (r->status == TSR_OK) {
        tsr__device_expect(r->e, everybody, l->n);
        if (l->n == 3 && r->base->rank != 1)
            tsr__device_expect(r->e, first_and_last, 2);
        r->status = tsr__device_meet(r->e, PLAN, &r->why);
    }
    if (r->status == TSR_OK) {
        struct device_group_info info;
        r->seat = tsr__device_seat(r->e);
        r->stream = r->seat ? tsr__seat_stream(r->seat) : NULL;
        r->seen = tsr__device_group_at(r->e, 0, &info) ? info.method : METHOD_AUTO;
        r->act(r);
    } else {
        tsr__comm_fail(r->base, r->status, r->why.text);
    }
}

// ---- what ranks do -----------------------------------------------------------------------------

#define PERIOD 1009 // input_of(rank, i + PERIOD) == input_of(rank, i)

static float input_of(int rank, int64_t i)
{
    return (float)((rank + 1) * 1000003 % 977) / 7.0F + (float)(i * 31 % PERIOD) / 3.0F;
}

// Fills x with copies of its first PERIOD elements.
static float *repeated(float *x, int64_t count)
{
    for (int64_t at = PERIOD; at < count; at += PERIOD)
        memcpy(x + at, x, (size_t)(count - at < PERIOD ? count - at : PERIOD) * sizeof *x);
    return x;
}

static float *inputs_of(int rank, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count && i < PERIOD; i++)
        x[i] = input_of(rank, i);
    return repeated(x, count);
}

static float sum_of(int n, int64_t i)
{
    float sum = input_of(0, i);
    for (int k = 1; k < n; k++)
        sum += input_of(k, i);
    return sum;
}

static float *sums_of(int n, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count && i < PERIOD; i++)
        x[i] = sum_of(n, i);
    return repeated(x, count);
}

// Compares sums. NCCL does not specify the order of additions; `nccl`: it has added.
static void judge_sum(struct rank *r, const float *got, const float *want, int64_t count, bool nccl)
{
    for (int64_t i = 0; i < count; i++) {
        float off = got[i] < want[i] ? want[i] - got[i] : got[i] - want[i];
        judge(r, nccl ? off <= 1e-5F * want[i] : off == 0);
    }
}

// Sums `count` elements repeatedly in the same memory: a call must not overtake the previous one.
static void all_reduce(struct rank *r, int64_t count)
{
    float *x = inputs_of(r->e->rank, count), *got = malloc((size_t)(count + 1) * sizeof *got);
    float *want = sums_of(r->layout->n, count);
    size_t bytes = (size_t)count * sizeof *x;
    void *in = put(r, x, bytes), *out = put(r, x, bytes);
    for (unsigned run = 0; run < 6; run++) {
        struct comm_call c = call_of(r, COMM_ALL_REDUCE, TSR_FLOAT);
        c.count = count;
        c.run = run;
        if (r->status == TSR_OK)
            r->status = tsr__comm_all_reduce(r->e, &c, in, run % 2 ? in : out, &r->why);
        if (r->status != TSR_OK)
            break;
        get(r, got, run % 2 ? in : out, bytes);
        judge_sum(r, got, want, count, r->seen == METHOD_NCCL && !r->layout->deterministic);
        if (r->seat)
            tsr__seat_up(r->seat, in, x, bytes, r->stream);
        else if (bytes)
            memcpy(in, x, bytes);
    }
    drop(r, in);
    drop(r, out);
    free(x);
    free(got);
    free(want);
}

static void act_sums(struct rank *r)
{
    static const int64_t counts[] = {1, 3, 1000, 65537, 1400000, 0};
    for (size_t i = 0; i < TSR_COUNT(counts); i++)
        all_reduce(r, counts[i]);
}

// Rank i sends (i + 1) * (k + 1) * 100 elements to member k, but nothing to itself if i is odd.
static size_t message_bytes(int from, int to)
{
    if (from == to && from % 2)
        return 0;
    return (size_t)(from + 1) * (size_t)(to + 1) * 100 * sizeof(float);
}

static void act_messages(struct rank *r)
{
    int n = r->layout->n, me = r->e->rank;
    struct comm_buffer send[MAX_RANKS], recv[MAX_RANKS];
    float *x = inputs_of(me, 100000),
          *got = malloc(100 * (MAX_RANKS + 1) * (MAX_RANKS + 1) * sizeof *got);
    for (int k = 0; k < n; k++) {
        send[k] =
            (struct comm_buffer){put(r, x + 7 * k, message_bytes(me, k)), message_bytes(me, k)};
        recv[k] = (struct comm_buffer){put(r, x, message_bytes(k, me)), message_bytes(k, me)};
    }
    for (unsigned run = 0; run < 4; run++) {
        struct comm_call c = call_of(r, COMM_ALL_TO_ALL, TSR_FLOAT);
        struct comm_exchange e = {.send = send, .recv = recv};
        c.run = run;
        if (r->status == TSR_OK)
            r->status = tsr__comm_exchange(r->e, &c, &e, &r->why);
    }
    for (int k = 0; k < n && r->status == TSR_OK; k++) {
        get(r, got, recv[k].p, recv[k].bytes);
        for (size_t i = 0; i < recv[k].bytes / sizeof *got; i++)
            judge(r, got[i] == input_of(k, (int64_t)i + 7 * me));
    }
    for (int k = 0; k < n; k++) {
        drop(r, send[k].p);
        drop(r, recv[k].p);
    }
    free(x);
    free(got);
}

// A sum of which each member gets one part, and a sum that the last member gets.
static void act_scattered_sums(struct rank *r)
{
    int n = r->layout->n, me = r->e->rank;
    int64_t counts[MAX_RANKS], count = 0, first = 0;
    for (int k = 0; k < n; k++) {
        counts[k] = 700000 * k + 3;
        first = k == me ? count : first;
        count += counts[k];
    }
    float *x = inputs_of(me, count), *got = malloc((size_t)count * sizeof *got);
    float *want = sums_of(n, count);
    size_t bytes = (size_t)count * sizeof *x;
    void *in = put(r, x, bytes), *out = put(r, x, bytes);
    struct comm_call c = call_of(r, COMM_REDUCE_SCATTER, TSR_FLOAT);
    c.count = count;
    if (r->status == TSR_OK)
        r->status = tsr__comm_reduce_scatter(r->e, &c, in, counts, out, &r->why);
    if (r->status == TSR_OK) {
        get(r, got, out, (size_t)counts[me] * sizeof *got);
        judge(r, memcmp(got, want + first, (size_t)counts[me] * sizeof *got) == 0);
    }
    c = call_of(r, COMM_REDUCE, TSR_FLOAT);
    c.count = count;
    if (r->status == TSR_OK)
        r->status = tsr__comm_reduce(r->e, &c, n - 1, in, me == n - 1 ? out : NULL, &r->why);
    if (r->status == TSR_OK && me == n - 1) {
        get(r, got, out, bytes);
        judge(r, memcmp(got, want, bytes) == 0);
    }
    drop(r, in);
    drop(r, out);
    free(x);
    free(got);
    free(want);
}

// ---- collectives of equal shards: which algorithm runs them, and their results

// Compares the name of the algorithm of the last call: `name` if NCCL runs it, else "direct".
static void judge_name(struct rank *r, bool nccl)
{
    judge(r, r->e->algorithm && strcmp(r->e->algorithm->name, nccl ? "NCCL" : "direct") == 0);
}

// Compares sums of elements from `first` on.
static void judge_sums(struct rank *r, void *at, int64_t first, int64_t count, bool nccl)
{
    float *got = malloc((size_t)count * sizeof *got);
    float *want = sums_of(r->layout->n, first + count);
    get(r, got, at, (size_t)count * sizeof *got);
    judge_sum(r, got, want + first, count, nccl);
    free(got);
    free(want);
}

static void judge_inputs(struct rank *r, void *at, int rank, int64_t count)
{
    float *got = malloc((size_t)count * sizeof *got);
    get(r, got, at, (size_t)count * sizeof *got);
    for (int64_t i = 0; i < count; i++)
        judge(r, got[i] == input_of(rank, i));
    free(got);
}

// Memory of one rank: its input, and a result as large as those of all members.
struct tensors {
    int64_t count; // elements of a shard
    char *in, *out;
    bool nccl, sums; // NCCL runs collectives, and those that add
};

static void scatter_equal(struct rank *r, const struct tensors *t, unsigned run)
{
    int64_t counts[MAX_RANKS], mine = r->e->rank * t->count;
    void *out = run % 2 ? t->in + (size_t)mine * sizeof(float) : t->out; // in place, or not
    struct comm_call c = call_of(r, COMM_REDUCE_SCATTER, TSR_FLOAT);
    c.run = run;
    for (int k = 0; k < r->layout->n; k++)
        counts[k] = t->count;
    if (r->status == TSR_OK)
        r->status = tsr__comm_reduce_scatter(r->e, &c, t->in, counts, out, &r->why);
    judge_name(r, t->sums);
    judge_sums(r, out, mine, t->count, t->sums);
}

static void reduce_equal(struct rank *r, const struct tensors *t, int root)
{
    struct comm_call c = call_of(r, COMM_REDUCE, TSR_FLOAT);
    c.run = (uint64_t)root;
    c.count = t->count;
    if (r->status == TSR_OK)
        r->status =
            tsr__comm_reduce(r->e, &c, root, t->in, r->e->rank == root ? t->out : NULL, &r->why);
    judge_name(r, t->sums);
    if (r->e->rank == root)
        judge_sums(r, t->out, 0, t->count, t->sums);
}

static void copy_equal(struct rank *r, const struct tensors *t, int root)
{
    size_t bytes = (size_t)t->count * sizeof(float);
    struct comm_call c = call_of(r, COMM_BROADCAST, TSR_FLOAT);
    void *p = r->e->rank == root ? t->in : t->out;
    c.run = (uint64_t)root;
    if (r->status == TSR_OK)
        r->status = tsr__comm_broadcast(r->e, &c, root, p, bytes, &r->why);
    judge_name(r, t->nccl);
    judge_inputs(r, p, root, t->count);
    c.kind = COMM_ALL_GATHER;
    if (r->status == TSR_OK)
        r->status = tsr__comm_all_gather(r->e, &c, t->in, bytes, t->out, &r->why);
    judge_name(r, t->nccl);
    for (int k = 0; k < r->layout->n; k++)
        judge_inputs(r, t->out + (size_t)k * bytes, k, t->count);
}

static void collectives_of(struct rank *r, int64_t count)
{
    int64_t all = count * r->layout->n;
    float *x = inputs_of(r->e->rank, all);
    size_t bytes = (size_t)all * sizeof *x;
    struct tensors t = {.count = count, .in = put(r, x, bytes), .out = put(r, x, bytes)};
    t.nccl = r->seen == METHOD_NCCL && !old_nccl;
    t.sums = t.nccl && !r->layout->deterministic;
    for (int k = 0; k < r->layout->n; k++) {
        copy_equal(r, &t, k);
        reduce_equal(r, &t, k);
    }
    scatter_equal(r, &t, 0);
    scatter_equal(r, &t, 1); // overwrites the input
    drop(r, t.in);
    drop(r, t.out);
    free(x);
}

static void act_collectives(struct rank *r)
{
    static const int64_t counts[] = {1, 1000, 300007};
    for (size_t i = 0; i < TSR_COUNT(counts); i++)
        collectives_of(r, counts[i]);
}

static void act_everything(struct rank *r)
{
    act_sums(r);
    act_messages(r);
    act_scattered_sums(r);
}

// ---- as threads --------------------------------------------------------------------------------

static void *thread_of(void *data)
{
    struct rank *r = data;
    life_of(r);
    tsr__comm_close(r->base);
    return NULL;
}

// Runs all ranks as threads of one process; the results are in `ranks`.
static void run_threads(const struct layout *l, void (*act)(struct rank *), struct rank *ranks)
{
    char why[200] = "";
    tsr_session *s = tsr_session_new(NULL);
    struct gpu *g = tsr__gpu_open(s, &libraries, why, sizeof why);
    assert_string_equal(why, "");
    g->nccl_collectives &= !old_nccl;
    struct thread_job *job = tsr__threads_new(s, l->n);
    pthread_t threads[MAX_RANKS];
    for (int i = 0; i < l->n; i++) {
        ranks[i] = (struct rank){.layout = l, .gpu = g, .act = act};
        ranks[i].base = tsr__threads_endpoint(job, i);
        ranks[i].session = tsr_session_new(NULL);
        pthread_create(&threads[i], NULL, thread_of, &ranks[i]);
    }
    for (int i = 0; i < l->n; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < l->n; i++)
        if (ranks[i].kept)
            drop(&ranks[i], ranks[i].kept);
    for (int i = 0; i < l->n; i++) {
        tsr__device_close(ranks[i].e);
        tsr_session_free(ranks[i].session);
    }
    tsr__threads_free(job);
    tsr__gpu_close(s, g);
    tsr_session_free(s);
}

static void check_threads(struct layout l, enum gpu_method seen)
{
    struct rank ranks[MAX_RANKS];
    run_threads(&l, act_everything, ranks);
    for (int i = 0; i < l.n; i++) {
        if (ranks[i].status != TSR_OK)
            fail_msg("rank %d: %s", i, ranks[i].why.text);
        assert_string_equal(tsr__gpu_method_name(ranks[i].seen), tsr__gpu_method_name(seen));
    }
}

static void test_one_gpu(void **state)
{
    (void)state;
    check_threads((struct layout){2, {0, 0}, METHOD_AUTO, false}, METHOD_OWN);
    check_threads((struct layout){4, {0, 0, 0, 0}, METHOD_AUTO, false}, METHOD_OWN);
}

static void test_several_gpus(void **state)
{
    (void)state;
    if (cards < 2)
        skip();
    check_threads((struct layout){2, {0, 1}, METHOD_OWN, false}, METHOD_OWN);
    check_threads((struct layout){2, {0, 1}, METHOD_AUTO, false}, METHOD_NCCL);
    check_threads((struct layout){4, {0, 1, 1, 0}, METHOD_AUTO, false}, METHOD_OWN);
}

// Sums of this size pass through pinned memory and are reduced on the GPUs. 20 million floats need
// more than one round through that memory.
static void act_large_sum(struct rank *r)
{
    const int64_t count = 20 << 20;
    float *x = inputs_of(r->e->rank, count);
    void *p = put(r, x, (size_t)count * sizeof *x);
    struct comm_call c = call_of(r, COMM_ALL_REDUCE, TSR_FLOAT);
    c.count = count;
    if (r->status == TSR_OK)
        r->status = tsr__comm_all_reduce(r->e, &c, p, p, &r->why);
    if (r->status == TSR_OK)
        get(r, x, p, (size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i += 997)
        judge(r, x[i] == sum_of(r->layout->n, i));
    drop(r, p);
    free(x);
}

// Sums that need several rounds through pinned memory.
static void test_several_rounds(void **state)
{
    (void)state;
    struct layout l = {2, {0, 1}, METHOD_HOST, false};
    struct rank ranks[MAX_RANKS];
    run_threads(&l, act_large_sum, ranks);
    for (int i = 0; i < l.n; i++)
        if (ranks[i].status != TSR_OK)
            fail_msg("rank %d: %s", i, ranks[i].why.text);
}

static void test_through_the_host(void **state)
{
    (void)state;
    check_threads((struct layout){3, {0, 0, 0}, METHOD_HOST, false}, METHOD_HOST);
}

// Ranks on GPUs and on the host in one group.
static void test_mixed(void **state)
{
    (void)state;
    check_threads((struct layout){2, {0, -1}, METHOD_AUTO, false}, METHOD_HOST);
    check_threads((struct layout){4, {-1, 0, -1, 0}, METHOD_AUTO, false}, METHOD_HOST);
    check_threads((struct layout){2, {-1, -1}, METHOD_AUTO, false}, METHOD_HOST);
}

static void test_nccl(void **state)
{
    (void)state;
    struct gpu_survey survey = {0};
    if (getenv("GPU"))
        tsr__gpu_survey(&libraries, &survey);
    // Without the variable, and before NCCL 2.30, a GPU can have only one rank.
    if (getenv("GPU") && (survey.nccl_version < 23000 || !getenv("NCCL_MULTI_RANK_GPU_ENABLE")))
        skip();
    check_threads((struct layout){2, {0, 0}, METHOD_NCCL, true}, METHOD_NCCL);
    check_threads((struct layout){2, {0, 0}, METHOD_NCCL, false}, METHOD_NCCL);
    if (!getenv("GPU")) // NCCL 2.30 does not support three ranks on one GPU
        check_threads((struct layout){3, {0, 0, 0}, METHOD_NCCL, true}, METHOD_NCCL);
}

static void check_collectives(struct layout l, enum gpu_method seen)
{
    struct rank ranks[MAX_RANKS];
    run_threads(&l, act_collectives, ranks);
    for (int i = 0; i < l.n; i++) {
        if (ranks[i].status != TSR_OK)
            fail_msg("rank %d: %s", i, ranks[i].why.text);
        assert_string_equal(tsr__gpu_method_name(ranks[i].seen), tsr__gpu_method_name(seen));
    }
}

// NCCL's collectives run where shards are equal, and add only if no order is asked for. An NCCL
// without them sends messages.
static void test_nccl_collectives(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    check_collectives((struct layout){2, {0, 1}, METHOD_AUTO, false}, METHOD_NCCL);
    for (int k = 0; k < 4; k++) {
        old_nccl = k / 2;
        check_collectives((struct layout){3, {0, 1, 0}, METHOD_NCCL, k % 2}, METHOD_NCCL);
    }
    old_nccl = false;
    check_collectives((struct layout){3, {0, 1, 0}, METHOD_OWN, false}, METHOD_OWN);
    check_collectives((struct layout){3, {0, 1, 0}, METHOD_HOST, false}, METHOD_HOST);
    check_collectives((struct layout){3, {0, -1, 0}, METHOD_AUTO, false}, METHOD_HOST);
}

// ---- as processes ------------------------------------------------------------------------------

// Runs each rank as a child process with shared memory; exit code 0: all results are right.
static void check_processes(struct layout l, enum gpu_method seen)
{
    tsr_session *s = tsr_session_new(NULL);
    struct shm_job *job = NULL;
    struct comm_options co = {.timeout_s = 10};
    assert_int_equal(tsr__shm_new(s, l.n, &co, &job), TSR_OK);
    pid_t children[MAX_RANKS];
    for (int i = 0; i < l.n; i++) {
        children[i] = fork();
        if (children[i] != 0)
            continue;
        char why[200] = "";
        struct rank r = {.layout = &l, .session = tsr_session_new(NULL), .act = act_everything};
        r.gpu = tsr__gpu_open(r.session, &libraries, why, sizeof why);
        bool ok = r.gpu && tsr__shm_endpoint(r.session, job, i, &r.base) == TSR_OK;
        if (ok)
            life_of(&r);
        if (r.status != TSR_OK)
            fprintf(stderr, "# rank %d: %s\n", i, r.why.text);
        ok = ok && r.status == TSR_OK && r.seen == seen;
        if (r.base)
            tsr__comm_close(r.base);
        _exit(ok ? 0 : 1);
    }
    for (int i = 0; i < l.n; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        assert_int_equal(status, 0);
    }
    tsr__shm_free(s, job);
    tsr_session_free(s);
}

static void test_processes(void **state)
{
    (void)state;
    check_processes((struct layout){2, {0, 0}, METHOD_AUTO, false}, METHOD_OWN);
    check_processes((struct layout){3, {0, 1, 0}, METHOD_OWN, false}, METHOD_OWN);
    check_processes((struct layout){2, {0, -1}, METHOD_AUTO, false}, METHOD_HOST);
    check_processes((struct layout){2, {0, 0}, METHOD_HOST, false}, METHOD_HOST);
}

// ---- failures ----------------------------------------------------------------------------------

// Rank 1 expects another size than rank 0 sends: no rank may hang, and both must report it, at the
// latest in the next call.
static void act_other_sizes(struct rank *r)
{
    char text[64] = {0};
    void *p = put(r, text, sizeof text);
    struct comm_buffer send[2] = {{p, 16}, {p, 16}}, recv[2] = {{p, 16}, {p, 16}};
    recv[1 - r->e->rank].bytes = r->e->rank == 1 ? 8 : 16;
    struct comm_call c = call_of(r, COMM_ALL_TO_ALL, TSR_FLOAT);
    struct comm_exchange x = {.send = send, .recv = recv};
    r->status = tsr__comm_exchange(r->e, &c, &x, &r->why);
    if (r->status == TSR_OK) {
        c.run = 1;
        r->status = tsr__comm_exchange(r->e, &c, &x, &r->why);
    }
    if (r->layout->method == METHOD_NCCL)
        r->kept = p; // an aborted NCCL kernel may still read here
    else
        drop(r, p);
}

static void check_other_sizes(struct layout l)
{
    struct rank ranks[MAX_RANKS];
    run_threads(&l, act_other_sizes, ranks);
    for (int i = 0; i < l.n; i++) {
        assert_int_equal(ranks[i].status, TSR_PEER);
        assert_non_null(strstr(ranks[i].why.text, "rank 0 sends 16 bytes, rank 1 expects 8"));
    }
}

static void test_sizes_are_compared(void **state)
{
    (void)state;
    check_other_sizes((struct layout){2, {0, 0}, METHOD_AUTO, false});
    check_other_sizes((struct layout){2, {0, -1}, METHOD_AUTO, false});
    if (!getenv("GPU")) // NCCL has other messages after an abort
        check_other_sizes((struct layout){2, {0, 0}, METHOD_NCCL, false});
}

// Rank 1 detects another size and frees its send buffer while rank 0 is about to copy it. The
// memory must stay until then: the stand-in unmaps freed memory, so the copy would crash the test.
static void test_leaving(void **state)
{
    (void)state;
    setenv("STANDIN_SLOW", "20000", 1);
    check_other_sizes((struct layout){2, {0, 0}, METHOD_OWN, false});
    check_other_sizes((struct layout){2, {0, 1}, METHOD_OWN, false});
    unsetenv("STANDIN_SLOW");
}

// Rank 1 fails instead of communicating.
static void act_leave(struct rank *r)
{
    if (r->e->rank == 1) {
        tsr__comm_fail(r->e, TSR_PEER, "rank 1 failed: it was told to");
        r->status = TSR_PEER;
        return;
    }
    all_reduce(r, 1000);
}

static void test_a_rank_that_fails(void **state)
{
    (void)state;
    static const enum gpu_method ways[] = {METHOD_OWN, METHOD_HOST, METHOD_NCCL};
    size_t n = getenv("GPU") ? 2 : TSR_COUNT(ways);
    for (size_t i = 0; i < n; i++) {
        struct layout l = {3, {0, 0, 0}, ways[i], false};
        struct rank ranks[MAX_RANKS];
        run_threads(&l, act_leave, ranks);
        for (int k = 0; k < l.n; k++)
            assert_int_equal(ranks[k].status, TSR_PEER);
        assert_non_null(strstr(ranks[0].why.text, "rank 1"));
    }
}

// One rank fails while the others are inside NCCL or about to enter it. All must end, and none may
// use a freed communicator: the stand-in frees it, so that a sanitizer reports a use.
static void act_race(struct rank *r)
{
    all_reduce(r, 16); // all ranks have joined, as in a job before it runs
    if (r->status != TSR_OK)
        return;
    if (r->e->rank == 1) {
        static atomic_uint turns;
        usleep(atomic_fetch_add(&turns, 37) % 1500);
        tsr__comm_fail(r->e, TSR_PEER, "rank 1 failed: it was told to");
        r->status = TSR_PEER;
        return;
    }
    float x[64] = {0};
    void *in = put(r, x, sizeof x), *out = put(r, x, sizeof x);
    struct comm_call c = call_of(r, COMM_ALL_REDUCE, TSR_FLOAT);
    c.group = first_and_last;
    c.n_group = 2;
    c.count = TSR_COUNT(x);
    for (c.run = 0; r->status == TSR_OK; c.run++)
        r->status = tsr__comm_all_reduce(r->e, &c, in, out, &r->why);
    drop(r, in);
    drop(r, out);
}

static void test_nccl_is_aborted(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    for (int turn = 0; turn < 60; turn++) {
        struct layout l = {3, {0, 1, 0}, METHOD_NCCL, turn % 2 != 0};
        struct rank ranks[MAX_RANKS];
        run_threads(&l, act_race, ranks);
        for (int k = 0; k < l.n; k += 2) {
            assert_int_equal(ranks[k].status, TSR_PEER);
            assert_non_null(strstr(ranks[k].why.text, "rank 1"));
        }
    }
}

// A rank that waits inside NCCL for a failed rank must be aborted there after a timeout.
static void test_nccl_waits_inside(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    struct layout l = {3, {0, 1, 0}, METHOD_NCCL, false};
    struct rank ranks[MAX_RANKS];
    setenv("STANDIN_HOST_WAITS", "1", 1);
    setenv("STANDIN_FAIL", "ncclAllReduce:3", 1);
    run_threads(&l, act_sums, ranks);
    unsetenv("STANDIN_FAIL");
    unsetenv("STANDIN_HOST_WAITS");
    for (int k = 0; k < l.n; k++)
        assert_int_not_equal(ranks[k].status, TSR_OK);
}

// A rank fails after it received the ID of a communicator: the ranks that wait for it inside NCCL
// must end at once.
static void test_nccl_joins_fail(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    struct layout l = {3, {0, 1, 0}, METHOD_NCCL, false};
    struct rank ranks[MAX_RANKS];
    double began = tsr__now_s();
    setenv("STANDIN_FAIL", "ncclCommInitRank:2", 1);
    run_threads(&l, act_sums, ranks);
    unsetenv("STANDIN_FAIL");
    for (int k = 0; k < l.n; k++)
        assert_int_equal(ranks[k].status, TSR_PEER);
    assert_true(tsr__now_s() - began < 5);
}

// If a rank never joins and reports no failure, the others must give up after a timeout.
static void test_nccl_joins_late(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    struct layout l = {2, {0, 1}, METHOD_NCCL, false};
    struct rank ranks[MAX_RANKS];
    setenv("STANDIN_JOINS", "3", 1); // one more rank than there are
    join_s = 0.3;
    run_threads(&l, act_sums, ranks);
    join_s = 0;
    unsetenv("STANDIN_JOINS");
    for (int k = 0; k < l.n; k++)
        assert_int_equal(ranks[k].status, TSR_PEER);
    // one of them reports it to the other
    bool first = strstr(ranks[0].why.text, "connected within") != NULL;
    assert_true(first || strstr(ranks[1].why.text, "connected within"));
}

// An NCCL kernel that never ends is aborted. The run must fail, even if there is no later
// communication.
static void act_rest(struct rank *r)
{
    float x[64] = {0};
    void *in = put(r, x, sizeof x), *out = put(r, x, sizeof x);
    struct comm_call c = call_of(r, COMM_ALL_REDUCE, TSR_FLOAT);
    c.count = TSR_COUNT(x);
    r->status = tsr__comm_all_reduce(r->e, &c, in, out, &r->why);
    get(r, x, out, sizeof x); // synchronizes the stream
    if (r->status == TSR_OK)
        r->status = tsr__device_rest(r->e, &r->why);
    drop(r, in);
    drop(r, out);
}

// A lost NCCL kernel must be reported by a timeout.
static void test_nccl_is_watched(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    struct layout l = {2, {0, 1}, METHOD_NCCL, false};
    struct rank ranks[MAX_RANKS];
    run_threads(&l, act_rest, ranks);
    assert_int_equal(ranks[0].status, TSR_OK);
    assert_int_equal(ranks[1].status, TSR_OK);
    setenv("STANDIN_FAIL", "lost ncclAllReduce:1", 1);
    watch_s = 0.5;
    run_threads(&l, act_rest, ranks);
    watch_s = 0;
    unsetenv("STANDIN_FAIL");
    int told = 0;
    for (int k = 0; k < l.n; k++)
        told += ranks[k].status == TSR_PEER && strstr(ranks[k].why.text, "did not end within");
    assert_true(told >= 1); // the other rank may have ended before
}

// A driver call fails on one rank: its message must contain rank, GPU and reason, and no rank may
// accept its results. (After NCCL has failed, another rank may read wrong numbers before it
// communicates again.)
static void check_driver_fails(const char *wish, enum gpu_method method, const char *said)
{
    struct layout l = {2, {0, 0}, method, false};
    struct rank ranks[MAX_RANKS];
    int told = 0;
    setenv("STANDIN_FAIL", wish, 1);
    run_threads(&l, act_everything, ranks);
    unsetenv("STANDIN_FAIL");
    for (int k = 0; k < l.n; k++) {
        assert_int_not_equal(ranks[k].status, TSR_OK);
        told += strstr(ranks[k].why.text, said) != NULL;
    }
    if (told == 0)
        fail_msg("%s: the ranks say '%s' and '%s'", wish, ranks[0].why.text, ranks[1].why.text);
}

static void test_driver_fails(void **state)
{
    (void)state;
    if (getenv("GPU"))
        skip();
    check_driver_fails("cuLaunchKernel:1", METHOD_OWN, "invalid argument");
    check_driver_fails("cuLaunchKernel:3", METHOD_OWN, "reducing: invalid argument");
    check_driver_fails("cuMemHostAlloc:1", METHOD_HOST, "is out of memory for host memory");
    check_driver_fails("ncclAllReduce:2", METHOD_NCCL, "NCCL on rank");
    check_driver_fails("ncclReduce:1", METHOD_NCCL, "NCCL on rank");
    check_driver_fails("cuModuleLoadData:2", METHOD_OWN, "cannot be opened: invalid argument");
}

// An optional argument selects tests by pattern: test_nccl*
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    bool real = getenv("GPU") != NULL;
    if (!real)
        libraries = (struct gpu_libraries){.driver = STANDIN, .nccl = STANDIN};
    else
        cards = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_processes), // first, while no test has started the driver
        cmocka_unit_test(test_one_gpu),
        cmocka_unit_test(test_several_gpus),
        cmocka_unit_test(test_through_the_host),
        cmocka_unit_test(test_several_rounds),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_a_rank_that_fails),
        cmocka_unit_test(test_nccl_is_aborted),
        cmocka_unit_test(test_nccl_waits_inside),
        cmocka_unit_test(test_nccl_joins_fail),
        cmocka_unit_test(test_nccl_joins_late),
        cmocka_unit_test(test_nccl_is_watched),
        cmocka_unit_test(test_driver_fails),
        cmocka_unit_test(test_nccl),
        cmocka_unit_test(test_nccl_collectives),
        cmocka_unit_test(test_sizes_are_compared),
        cmocka_unit_test(test_leaving),
    };
    setenv("STANDIN_LAG", "200", 0);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
