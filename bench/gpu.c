// SPDX-License-Identifier: Apache-2.0
// gpu.c - benchmark of collectives between two ranks that share a GPU: our kernels compared with
// NCCL, and transfers through the host compared with pinned copies.
//
// Needs a GPU. NCCL supports two ranks on one GPU from 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1.
// Prints one line per figure: name, ours, peer, ratio, goal, ok or short; then the parts of the
// transfer through the host, and four ranks. Libraries: TESSERA_CUDA, TESSERA_NCCL.
#include "gpu/gpu.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS      2
#define MOST_RANKS 4
#define ROUNDS     5

static struct gpu *gpu;
static const int64_t group[MOST_RANKS] = {0, 1, 2, 3};

struct work {
    struct endpoint *base;
    int ranks;
    enum gpu_method method;
    size_t bytes;
    int calls;
    double best_s; // seconds of a call
};

// The fastest of several rounds of calls; each round ends with a synchronization.
static double time_calls(struct endpoint *e, const struct work *w)
{
    struct gpu_seat *seat = tsr__device_seat(e);
    void *in = NULL, *out = NULL, *stream = tsr__seat_stream(seat);
    struct comm_trouble why;
    double best = 1e9;
    if (tsr__seat_alloc(seat, w->bytes, &in) != 0 || tsr__seat_alloc(seat, w->bytes, &out) != 0)
        return -1;
    struct comm_call c = {.plan = 1, .kind = COMM_ALL_REDUCE, .reduce = COMM_SUM};
    c.type = TSR_FLOAT;
    c.count = (int64_t)(w->bytes / sizeof(float));
    c.group = group;
    c.n_group = w->ranks;
    c.op = "AllReduce";
    c.node = "bench";
    c.place = COMM_DEVICE;
    c.stream = stream;
    for (int round = 0; round < ROUNDS; round++) {
        double began = tsr__now_s();
        for (int i = 0; i < w->calls; i++, c.run++)
            if (tsr__comm_all_reduce(e, &c, in, out, &why) != TSR_OK)
                return -1;
        tsr__seat_wait(seat, stream);
        double each = (tsr__now_s() - began) / w->calls;
        best = each < best ? each : best;
    }
    tsr__seat_free(seat, in);
    tsr__seat_free(seat, out);
    return best;
}

static void *rank_thread(void *data)
{
    struct work *w = data;
    tsr_session *s = tsr_session_new(NULL);
    struct device_options o = {.gpu = gpu, .method = w->method};
    struct endpoint *e = NULL;
    struct comm_trouble why = {0};
    w->best_s = -1;
    tsr_status st = tsr__device_open(s, w->base, &o, &e, &why);
    if (st == TSR_OK) {
        tsr__device_expect(e, group, w->ranks);
        st = tsr__device_meet(e, 1, &why);
    }
    if (st == TSR_OK)
        w->best_s = time_calls(e, w);
    if (w->best_s < 0) {
        fprintf(stderr, "bench: %s\n", why.text);
        tsr__comm_fail(w->base, TSR_PEER, "the other rank failed");
    }
    tsr__comm_barrier(w->base, 1, "end", &why);
    tsr__device_close(e);
    tsr__comm_close(w->base);
    tsr_session_free(s);
    return NULL;
}

// Seconds of one all-reduce; -1: not available here.
static double all_reduce(int ranks, enum gpu_method method, size_t bytes, int calls)
{
    tsr_session *s = tsr_session_new(NULL);
    struct thread_job *job = tsr__threads_new(s, ranks);
    struct work work[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    for (int i = 0; i < ranks; i++) {
        work[i] = (struct work){tsr__threads_endpoint(job, i), ranks, method, bytes, calls, -1};
        pthread_create(&threads[i], NULL, rank_thread, &work[i]);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    tsr__threads_free(job);
    tsr_session_free(s);
    return work[0].best_s < 0 ? work[1].best_s : work[0].best_s;
}

// Copies of one rank: device to pinned memory, back, one after the other, or both at once. Both
// ranks run at the same time, because they share the bus.
enum what { DOWN = 1, UP = 2, IN_TURN = 3, AT_ONCE = 4 };
struct copies {
    size_t bytes;
    enum what what;
    pthread_barrier_t *start;
    double best_s; // of this rank
    double took[ROUNDS];
};

static void copy_once(struct gpu_seat *seat, const struct copies *c, void *device, char *host)
{
    void *down = tsr__seat_stream(seat), *up = tsr__seat_upwards(seat);
    bool both = c->what == AT_ONCE;
    if (both || c->what & DOWN)
        tsr__seat_down(seat, host, device, c->bytes, down);
    if (!both)
        tsr__seat_wait(seat, down);
    if (both || c->what & UP)
        tsr__seat_up(seat, (char *)device + c->bytes, host + c->bytes, c->bytes, up);
    tsr__seat_wait(seat, down);
    tsr__seat_wait(seat, up);
}

static void *copy_thread(void *data)
{
    struct copies *c = data;
    tsr_session *s = tsr_session_new(NULL);
    struct gpu_seat *seat = NULL;
    void *device = NULL, *host = NULL;
    bool ok = tsr__seat_open(s, gpu, 0, false, &seat) == 0 &&
              tsr__seat_alloc(seat, 2 * c->bytes, &device) == 0 &&
              tsr__seat_pinned(seat, 2 * c->bytes, tsr__seat_stream(seat), &host) == 0;
    c->best_s = -1;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(c->start);
        double began = tsr__now_s();
        if (ok)
            copy_once(seat, c, device, host);
        double took = tsr__now_s() - began;
        c->took[i] = took;
        if (ok && (c->best_s < 0 || took < c->best_s))
            c->best_s = took;
    }
    if (seat)
        tsr__seat_free(seat, device);
    tsr__seat_close(seat);
    tsr_session_free(s);
    return NULL;
}

// Returns the larger of the ranks' best times; *together: the best time until both are done.
static double pinned_copies(size_t bytes, enum what what, double *together)
{
    pthread_barrier_t start;
    struct copies work[RANKS];
    pthread_t threads[RANKS];
    pthread_barrier_init(&start, NULL, RANKS);
    for (int i = 0; i < RANKS; i++) {
        work[i] = (struct copies){bytes, what, &start, -1, {0}};
        pthread_create(&threads[i], NULL, copy_thread, &work[i]);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
    *together = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        double both = work[0].took[i] > work[1].took[i] ? work[0].took[i] : work[1].took[i];
        *together = both < *together ? both : *together;
    }
    return work[0].best_s > work[1].best_s ? work[0].best_s : work[1].best_s;
}

static void report(const char *name, double ours, double peer, double goal)
{
    char a[32], b[32], c[32];
    if (ours < 0 || peer < 0) {
        printf("%-52s left out: one of both does not work here\n", name);
        return;
    }
    snprintf(a, sizeof a, "%.2f us", 1e6 * ours);
    snprintf(b, sizeof b, "%.2f us", 1e6 * peer);
    snprintf(c, sizeof c, ">=%.2gx", goal);
    printf("%-52s %14s %14s %8.2f  %-8s %s\n", name, a, b, peer / ours, c,
           peer / ours >= goal ? "ok" : "short");
    fflush(stdout);
}

// The parts of a transfer through the host, and its lower bound: both ranks' copies down and up at
// once.
static void report_copies(size_t bytes)
{
    static const struct {
        enum what what;
        const char *name;
    } kinds[] = {
        {DOWN, "down"}, {UP, "up"}, {IN_TURN, "down, then up"}, {AT_ONCE, "down and up at once"}};
    for (size_t i = 0; i < TSR_COUNT(kinds); i++) {
        double together, each = pinned_copies(bytes, kinds[i].what, &together);
        printf("gpu: 64 MiB of both ranks, %-20s      %10.2f us until both are done, %10.2f us the "
               "faster one\n",
               kinds[i].name, 1e6 * together, 1e6 * each);
    }
}

static void report_four(void)
{
    static const struct {
        size_t bytes;
        const char *name;
    } sizes[] = {
        {16 << 10, "16 KiB"}, {4 << 20, "4 MiB"}, {16 << 20, "16 MiB"}, {64 << 20, "64 MiB"}};
    for (size_t i = 0; i < TSR_COUNT(sizes); i++)
        printf("gpu: all-reduce %s, own: 2 ranks %.2f us, 4 ranks %.2f us\n", sizes[i].name,
               1e6 * all_reduce(2, METHOD_OWN, sizes[i].bytes, 50),
               1e6 * all_reduce(4, METHOD_OWN, sizes[i].bytes, 50));
}

int main(void)
{
    struct gpu_libraries libraries = {getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL")};
    char why[200];
    tsr_session *s = tsr_session_new(NULL);
    gpu = tsr__gpu_open(s, &libraries, why, sizeof why);
    if (!gpu || tsr__gpu_count(gpu) == 0) {
        printf("gpu: left out: %s\n", gpu ? "no GPU" : why);
    } else {
        double together, copies = pinned_copies(64 << 20, IN_TURN, &together);
        report("gpu: all-reduce 64 MiB, host against pinned copies",
               all_reduce(RANKS, METHOD_HOST, 64 << 20, 4), copies, 0.7);
        report_copies(64 << 20);
        report_four();
        report("gpu: all-reduce 16 KiB, own against NCCL",
               all_reduce(RANKS, METHOD_OWN, 16 << 10, 200),
               all_reduce(RANKS, METHOD_NCCL, 16 << 10, 200), 1.0);
        report("gpu: all-reduce 64 MiB, own against NCCL",
               all_reduce(RANKS, METHOD_OWN, 64 << 20, 20),
               all_reduce(RANKS, METHOD_NCCL, 64 << 20, 20), 0.9);
    }
    tsr__gpu_close(s, gpu);
    tsr_session_free(s);
    return 0;
}
