// SPDX-License-Identifier: Apache-2.0
// transport.c - benchmark of float32 all-reduce between ranks of this machine: threads, processes
// with tensors in shared memory, processes with private tensors. Peers: memcpy of the same bytes by
// every rank at once, which is the limit, and Open MPI (transport_peer, next to this program). Best
// of several rounds, ranks pinned, alternating with the peers. Prints one line per figure: name,
// ours, peer, ratio, goal, ok or short; without a goal if there are more ranks than cores.
// Arguments: rounds, most ranks, number of sizes.
#include "transport/transport.h"

#include <libgen.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS  5
#define BATCHES 8  // per size and round, as in transport_peer
#define MANY    16 // maximum number of ranks

enum way { COPY, THREADS, SHARED, PRIVATE, WAYS };
static const char *const method_names[] = {"memcpy", "threads", "processes", "processes, private"};

static const size_t sizes[] = {1 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
static const int times[] = {500, 30, 8, 3, 2};
#define SIZES (sizeof sizes / sizeof *sizes)
static size_t n_sizes = SIZES; // sizes that are measured

// Shared memory of ranks that are processes, besides the transport's own.
struct common {
    atomic_int arrived;
    double us[MANY][SIZES]; // of one round
};

struct job {
    enum way way;
    int ranks, cores;
    struct common *common;
    struct thread_job *threads;
    struct shm_job *shm;
    tsr_session *session;
};
struct rank {
    struct job *job;
    int rank;
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void all_here(struct job *j, int *met)
{
    *met += j->ranks;
    atomic_fetch_add(&j->common->arrived, 1);
    while (atomic_load(&j->common->arrived) < *met)
        sched_yield();
}

static float *buffer(struct endpoint *e, size_t bytes)
{
    bool reach = e && e->transport->alloc;
    float *p =
        reach ? e->transport->alloc(e, bytes) : aligned_alloc(4096, (bytes + 4095) & ~4095ul);
    if (!p)
        die("memory");
    for (size_t i = 0; i < bytes / sizeof *p; i++)
        p[i] = (float)(i % 7);
    return p;
}

// Short, so that most batches are not interrupted by other processes.
static double one_batch(struct job *j, struct endpoint *e, struct comm_call *c, const float *in,
                        float *out, int runs, int *met)
{
    struct comm_trouble why;
    double began = 0;
    for (int i = -1; i < runs; i++) {
        if (i == 0) {
            all_here(j, met);
            began = tsr__now_s();
        }
        c->run++;
        if (j->way == COPY)
            memcpy(out, in, (size_t)c->count * sizeof *in);
        else if (tsr__comm_all_reduce(e, c, in, out, &why) != TSR_OK)
            die(why.text);
        __asm__ volatile("" ::"r"(out) : "memory");
    }
    return (tsr__now_s() - began) / runs * 1e6;
}

static double one_size(struct job *j, struct endpoint *e, size_t k, int *met)
{
    static const int64_t group[MANY] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct endpoint *from = j->way == SHARED ? e : NULL;
    float *in = buffer(from, sizes[k]), *out = buffer(from, sizes[k]);
    struct comm_call c = {.plan = 1,
                          .kind = COMM_ALL_REDUCE,
                          .reduce = COMM_SUM,
                          .type = TSR_FLOAT,
                          .count = (int64_t)(sizes[k] / sizeof *in),
                          .group = group,
                          .n_group = j->ranks,
                          .op = "AllReduce",
                          .node = "bench"};
    int runs = j->ranks > j->cores ? times[k] / 4 + 1 : times[k];
    double best = 1e30;
    for (int i = 0; i < BATCHES; i++) {
        double us = one_batch(j, e, &c, in, out, runs, met);
        best = us < best ? us : best;
    }
    all_here(j, met);
    if (from) {
        e->transport->release(e, in);
        e->transport->release(e, out);
    } else {
        free(in);
        free(out);
    }
    return best;
}

static void *be_rank(void *data)
{
    struct rank *r = data;
    struct job *j = r->job;
    struct endpoint *e = NULL;
    int met = 0;
    pin(r->rank % j->cores);
    if (j->way == THREADS)
        e = tsr__threads_endpoint(j->threads, r->rank);
    else if (j->way != COPY && tsr__shm_endpoint(j->session, j->shm, r->rank, &e) != TSR_OK)
        die("joining");
    for (size_t k = 0; k < n_sizes; k++)
        j->common->us[r->rank][k] = one_size(j, e, k, &met);
    tsr__comm_close(e);
    return NULL;
}

static void run_threads(struct job *j, struct rank *ranks)
{
    pthread_t threads[MANY];
    j->threads = tsr__threads_new(j->session, j->ranks);
    for (int i = 0; i < j->ranks; i++)
        pthread_create(&threads[i], NULL, be_rank, &ranks[i]);
    for (int i = 0; i < j->ranks; i++)
        pthread_join(threads[i], NULL);
    tsr__threads_free(j->threads);
}

static void run_processes(struct job *j, struct rank *ranks)
{
    if (j->way != COPY && tsr__shm_new(j->session, j->ranks, NULL, &j->shm) != TSR_OK)
        die("shared memory");
    for (int i = 0; i < j->ranks; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            be_rank(&ranks[i]);
            _exit(0);
        }
    }
    for (int i = 0, status; i < j->ranks; i++)
        if (wait(&status) < 0 || status != 0)
            die("a rank");
    tsr__shm_free(j->session, j->shm);
    j->shm = NULL;
}

// One round of one transport; best: best time so far of the slowest rank.
static void measure(enum way way, int ranks, int cores, double *best)
{
    struct rank list[MANY];
    struct job j = {.way = way, .ranks = ranks, .cores = cores, .session = tsr_session_new(NULL)};
    j.common =
        mmap(NULL, sizeof *j.common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j.common == MAP_FAILED)
        die("mmap");
    for (int i = 0; i < ranks; i++)
        list[i] = (struct rank){&j, i};
    if (way == THREADS)
        run_threads(&j, list);
    else
        run_processes(&j, list);
    for (size_t k = 0; k < n_sizes; k++) {
        double worst = 0;
        for (int i = 0; i < ranks; i++)
            worst = j.common->us[i][k] > worst ? j.common->us[i][k] : worst;
        best[k] = worst < best[k] ? worst : best[k];
    }
    munmap(j.common, sizeof *j.common);
    tsr_session_free(j.session);
}

// Open MPI on the same sizes; leaves best unchanged if it is not installed.
static void measure_peer(const char *folder, int ranks, int cores, double *best)
{
    char command[2048];
    int n = snprintf(
        command, sizeof command,
        "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to %s -n %d %s/transport_peer",
        ranks > cores ? "none" : "core", ranks, folder);
    for (size_t k = 0; k < n_sizes; k++)
        n += snprintf(command + n, sizeof command - (size_t)n, " %zu %d", sizes[k],
                      ranks > cores ? times[k] / 4 + 1 : times[k]);
    snprintf(command + n, sizeof command - (size_t)n, " 2>/dev/null");
    FILE *p = popen(command, "r");
    size_t bytes;
    double us;
    while (p && fscanf(p, "%zu %lf", &bytes, &us) == 2)
        for (size_t k = 0; k < n_sizes; k++)
            if (sizes[k] == bytes && us < best[k])
                best[k] = us;
    if (p)
        pclose(p);
}

// More ranks than cores share them, so such a figure has no goal.
static void line(const char *name, double ours, double peer, double goal, bool crowded, int cores)
{
    char a[32], b[32], c[32];
    snprintf(a, sizeof a, "%.2f us", ours);
    snprintf(b, sizeof b, "%.2f us", peer);
    snprintf(c, sizeof c, ">=%.2gx", goal);
    printf("%-52s %14s %14s %8.2f  ", name, a, b, peer / ours);
    if (crowded)
        printf("no goal: only %d cores\n", cores);
    else
        printf("%-8s %s\n", c, peer / ours >= goal ? "ok" : "short");
}

static const char *size_name(size_t bytes)
{
    static char text[32];
    snprintf(text, sizeof text, bytes >= 1 << 20 ? "%zu MiB" : "%zu KiB",
             bytes >= 1 << 20 ? bytes >> 20 : bytes >> 10);
    return text;
}

static void report(int ranks, int cores, double best[WAYS][SIZES], const double *mpi)
{
    char name[128];
    bool crowded = ranks > cores, has_mpi = mpi[0] < 1e29;
    for (int way = THREADS; way < WAYS; way++)
        for (size_t k = 0; k < n_sizes; k++) {
            const char *size = size_name(sizes[k]);
            snprintf(name, sizeof name, "transport: %d %s, %s against memcpy", ranks,
                     method_names[way], size);
            if (sizes[k] >= 1 << 20)
                line(name, best[way][k], best[COPY][k], way == PRIVATE ? 0.5 : 0.8, crowded, cores);
            snprintf(name, sizeof name, "transport: %d %s, %s against Open MPI", ranks,
                     method_names[way], size);
            if (has_mpi)
                line(name, best[way][k], mpi[k], sizes[k] >= 1 << 20 ? 4 : 2, crowded, cores);
        }
}

int main(int argc, char **argv)
{
    char self[400];
    snprintf(self, sizeof self, "%s", argv[0]);
    char *folder = dirname(self);
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : ROUNDS;
    int most = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 4;
    if (argc > 3)
        n_sizes =
            (size_t)strtoul(argv[3], NULL, 10) < SIZES ? (size_t)strtoul(argv[3], NULL, 10) : SIZES;
    for (int ranks = 2; ranks <= most; ranks += 2) {
        double best[WAYS][SIZES], mpi[SIZES];
        for (size_t k = 0; k < n_sizes; k++)
            best[0][k] = best[1][k] = best[2][k] = best[3][k] = mpi[k] = 1e30;
        for (int round = 0; round < rounds; round++) {
            for (int way = COPY; way < WAYS; way++)
                measure((enum way)way, ranks, cores, best[way]);
            measure_peer(folder, ranks, cores, mpi);
        }
        report(ranks, cores, best, mpi);
    }
    return 0;
}
