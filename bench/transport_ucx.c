// SPDX-License-Identifier: Apache-2.0
// transport_ucx.c - benchmark of float32 all-reduce between processes that exchange messages, as
// ranks of several hosts do: UCX compared with MPI_Allreduce of Open MPI (transport_peer)
// restricted to TCP, in the same run. Best of several rounds. (Ranks of one host would use shared
// memory: transport.c.)
#include "transport/transport.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 3

static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
static const int times[] = {400, 200, 40, 6};
#define SIZES TSR_COUNT(sizes)

struct common {
    double us[64][SIZES];
};

static void die(const char *what)
{
    fprintf(stderr, "transport_ucx: %s\n", what);
    _exit(1);
}

// Microseconds of one operation on this rank.
static double time_of(struct endpoint *endpoint, const int64_t *group, size_t k, float *in,
                      float *out)
{
    struct comm_trouble why = {0};
    struct comm_call call = {.id = (int64_t)k,
                             .kind = COMM_ALL_REDUCE,
                             .reduce = COMM_SUM,
                             .type = TSR_FLOAT,
                             .count = (int64_t)(sizes[k] / sizeof *in),
                             .group = group,
                             .n_group = endpoint->size,
                             .op = "AllReduce",
                             .node = "bench"};
    if (tsr__comm_barrier(endpoint, 1, "bench", &why) != TSR_OK)
        die(why.text);
    double began = tsr__now_s();
    for (int i = 0; i < times[k]; i++) {
        call.run = (uint64_t)i;
        if (tsr__comm_all_reduce(endpoint, &call, in, out, &why) != TSR_OK)
            die(why.text);
    }
    return (tsr__now_s() - began) / times[k] * 1e6;
}

// Page-aligned and written, as in the peer: pages that were never written are one shared page of
// zeros, which is always in the cache.
static float *numbers(size_t bytes)
{
    float *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        die("no memory");
    for (size_t i = 0; i < bytes / sizeof *p; i++)
        p[i] = (float)(i % 7);
    return p;
}

static void be_rank(int rank, int ranks, const char *plugins, const char *meet, double *us)
{
    int64_t group[64];
    struct endpoint *endpoint;
    tsr_session *session = tsr_session_new(NULL);
    struct comm_options options = {
        .messages_only = true, .plugins = plugins, .rank = rank, .ranks = ranks, .meet = meet};
    for (int i = 0; i < ranks; i++)
        group[i] = i;
    if (tsr__ucx_open(session, &options, &endpoint) != TSR_OK)
        die(tsr_finding_value(session, 0).message);
    for (size_t k = 0; k < SIZES; k++) {
        float *in = numbers(sizes[k]), *out = numbers(sizes[k]);
        us[k] = 1e30;
        for (int round = 0; round < 8; round++) { // as in the peer
            double taken = time_of(endpoint, group, k, in, out);
            us[k] = taken < us[k] ? taken : us[k];
        }
        free(in);
        free(out);
    }
    tsr__comm_close(endpoint);
    tsr_session_free(session);
}

// One round; best: best time so far of the slowest rank.
static bool measure(int ranks, const char *plugins, int round, double *best)
{
    char meet[64];
    bool good = true;
    struct common *common =
        mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED)
        die("mmap");
    snprintf(meet, sizeof meet, "bench %d %d %d", (int)getpid(), ranks, round);
    for (int i = 0; i < ranks; i++)
        if (fork() == 0) {
            be_rank(i, ranks, plugins, meet, common->us[i]);
            _exit(0);
        }
    for (int i = 0; i < ranks; i++) {
        int status;
        wait(&status);
        good &= status == 0;
    }
    for (size_t k = 0; k < SIZES; k++) {
        double worst = 0;
        for (int i = 0; i < ranks; i++)
            worst = common->us[i][k] > worst ? common->us[i][k] : worst;
        best[k] = worst < best[k] ? worst : best[k];
    }
    munmap(common, sizeof *common);
    return good;
}

static void measure_peer(const char *folder, int ranks, double *best)
{
    char command[2048];
    int n = snprintf(command, sizeof command,
                     "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca pml "
                     "ob1 --mca btl tcp,self -n %d %s/transport_peer",
                     ranks, folder);
    for (size_t k = 0; k < SIZES; k++)
        n += snprintf(command + n, sizeof command - (size_t)n, " %zu %d", sizes[k], times[k]);
    snprintf(command + n, sizeof command - (size_t)n, " 2>/dev/null");
    FILE *p = popen(command, "r");
    size_t bytes;
    double us;
    while (p && fscanf(p, "%zu %lf", &bytes, &us) == 2)
        for (size_t k = 0; k < SIZES; k++)
            if (sizes[k] == bytes && us < best[k])
                best[k] = us;
    if (p)
        pclose(p);
}

int main(int argc, char **argv)
{
    char self[400], plugins[500];
    snprintf(self, sizeof self, "%s", argv[0]);
    char *folder = dirname(self);
    snprintf(plugins, sizeof plugins, "%s/..", folder);
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : ROUNDS;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    setenv("UCX_TLS", "tcp", 1);
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        double best[SIZES], peer[SIZES];
        for (size_t k = 0; k < SIZES; k++)
            best[k] = peer[k] = 1e30;
        for (int round = 0; round < rounds; round++) {
            if (!measure(ranks, plugins, round, best))
                return 1;
            measure_peer(folder, ranks, peer);
        }
        for (size_t k = 0; k < SIZES; k++) {
            char name[128], ours[32], theirs[32];
            snprintf(name, sizeof name,
                     "transport: %d ranks by messages (UCX), %zu KiB against Open MPI", ranks,
                     sizes[k] >> 10);
            snprintf(ours, sizeof ours, "%.1f us", best[k]);
            snprintf(theirs, sizeof theirs, "%.1f us", peer[k]);
            if (peer[k] > 1e29)
                continue;
            printf("%-62s %14s %14s %8.2f  ", name, ours, theirs, peer[k] / best[k]);
            if (ranks > cores)
                printf("no goal: only %d cores\n", cores);
            else
                printf("%-8s %s\n", ">=1x", peer[k] >= best[k] ? "ok" : "short");
        }
    }
    return 0;
}
