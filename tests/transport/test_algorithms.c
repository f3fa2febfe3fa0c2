// SPDX-License-Identifier: Apache-2.0
// test_algorithms.c - the table of algorithms: for many groups and sizes, each transport must run
// the algorithm whose time topology predicts. Every row must be run by some transport and have a
// schedule. tests/gpu/test_device.c does the same for GPUs.
#include "world.h"
#include "topology/internal.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t everybody[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};

#define MOST_BYTES ((size_t)1 << 20)
#define ROWS       64

static bool has_run[ROWS]; // rows that a transport has run

// ---- what the transports run --------------------------------------------------------------------

// Memory of one rank, for tensors of up to MOST_BYTES.
struct tensors {
    char *in, *out;
    struct comm_buffer send[MAX_WORLD], recv[MAX_WORLD];
    int64_t counts[MAX_WORLD];
};

// The calls of one job, and what they ran on rank 0.
struct calls {
    bool shared; // tensors are in memory that other ranks can access
    size_t sizes[16];
    int n_sizes;
    const struct comm_algorithm *ran[TSR_COLLECTIVE_COUNT][16];
};

static tsr_status exchange_all(struct actor *a, const struct comm_call *call,
                               const struct tensors *t, size_t bytes)
{
    struct comm_buffer send[MAX_WORLD], recv[MAX_WORLD];
    size_t n = (size_t)a->w->n, piece = bytes / n / n;
    for (size_t i = 0; i < n; i++) {
        send[i] = (struct comm_buffer){t->in + i * piece, piece};
        recv[i] = (struct comm_buffer){t->out + i * piece, piece};
    }
    return tsr__comm_all_to_all(actor_endpoint(a), call, send, recv, &a->why);
}

static tsr_status send_one(struct actor *a, const struct comm_call *call, const struct tensors *t,
                           size_t bytes)
{
    struct comm_incoming in = {.into = {t->out, bytes}};
    if (a->rank > 1)
        return TSR_OK;
    if (a->rank == 0)
        return tsr__comm_send(actor_endpoint(a), call, 1, t->in, bytes, NULL, &a->why);
    return tsr__comm_recv(actor_endpoint(a), call, 0, &in, &a->why);
}

// Runs a collective of a tensor of `bytes` bytes; `shard` is the part of a member.
static tsr_status run_one(struct actor *a, struct tensors *t, enum comm_kind kind, size_t bytes,
                          size_t shard)
{
    struct endpoint *e = actor_endpoint(a);
    struct comm_call call = {.plan = 42,
                             .id = 3,
                             .run = bytes,
                             .kind = kind,
                             .reduce = COMM_SUM,
                             .type = TSR_UINT8,
                             .group = everybody,
                             .n_group = a->w->n,
                             .op = "op",
                             .node = "node"};
    for (int i = 0; i < a->w->n; i++)
        t->counts[i] = (int64_t)shard;
    call.count = kind == COMM_ALL_REDUCE || kind == COMM_REDUCE ? (int64_t)bytes : 0;
    switch ((int)kind) {
    case COMM_ALL_REDUCE:
        return tsr__comm_all_reduce(e, &call, t->in, t->out, &a->why);
    case COMM_REDUCE_SCATTER:
        return tsr__comm_reduce_scatter(e, &call, t->in, t->counts, t->out, &a->why);
    case COMM_ALL_GATHER:
        return tsr__comm_all_gather(e, &call, t->in, shard, t->out, &a->why);
    case COMM_ALL_TO_ALL:
        return exchange_all(a, &call, t, bytes);
    case COMM_BROADCAST:
        return tsr__comm_broadcast(e, &call, 0, t->in, bytes, &a->why);
    case COMM_REDUCE:
        return tsr__comm_reduce(e, &call, 0, t->in, t->out, &a->why);
    default:
        return send_one(a, &call, t, bytes);
    }
}

static char *get_memory(struct actor *a, bool shared)
{
    struct endpoint *e = actor_endpoint(a);
    if (shared && e->transport->alloc)
        return e->transport->alloc(e, MOST_BYTES);
    return calloc(1, MOST_BYTES);
}

static void put_memory(struct actor *a, void *p)
{
    struct endpoint *e = actor_endpoint(a);
    if (!e->transport->release || !e->transport->release(e, p))
        free(p);
}

static void act(struct actor *a)
{
    struct calls *calls = a->data;
    struct tensors t = {.in = get_memory(a, calls->shared), .out = get_memory(a, calls->shared)};
    memset(t.in, 1, MOST_BYTES);
    for (int kind = 0; kind < TSR_COLLECTIVE_COUNT; kind++)
        for (int k = 0; k < calls->n_sizes && a->status == TSR_OK; k++) {
            size_t bytes = calls->sizes[k];
            a->status = run_one(a, &t, (enum comm_kind)kind, bytes, bytes / (size_t)a->w->n);
            if (a->rank == 0)
                calls->ran[kind][k] = actor_endpoint(a)->algorithm;
        }
    if (a->status != TSR_OK)
        print_error("rank %d: %s\n", a->rank, a->why.text);
    put_memory(a, t.in);
    put_memory(a, t.out);
}

// Runs all collectives with sizes around the limits. Multiples of 64 n have shards of equal size.
static void run_calls(const char *kind, int n, bool shared, struct calls *calls)
{
    static const size_t limits[] = {64, 4096, 8192, 16384, 65536, 131072, 1 << 19};
    struct world w;
    struct actor actors[MAX_WORLD];
    *calls = (struct calls){.shared = shared};
    for (size_t i = 0; i < TSR_COUNT(limits); i++) {
        size_t unit = 64 * (size_t)(n * n), below = limits[i] / unit * unit;
        calls->sizes[calls->n_sizes++] = below ? below : unit;
        calls->sizes[calls->n_sizes++] = below + unit;
    }
    world_open(&w, n, kind, PATIENT);
    world_run(&w, actors, act, calls);
    for (int k = 0; k < n; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++)
        for (int k = 0; k < calls->n_sizes; k++) {
            assert_non_null(calls->ran[what][k]);
            has_run[calls->ran[what][k] - tsr__algorithm_at(0)] = true;
        }
}

// ---- what topology predicts ---------------------------------------------------------------------

static void compare(const char *text, const int *devices, int n, const struct calls *calls,
                    const char *kind)
{
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *topology = NULL;
    assert_int_equal(tsr_topology_parse(session, text, &topology), TSR_OK);
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++)
        for (int k = 0; k < calls->n_sizes; k++) {
            struct topology_groups groups = {1, what == TSR_SEND ? 2 : n, devices};
            struct timed_algorithm timed;
            const struct comm_algorithm *ran = calls->ran[what][k];
            tsr__topology_fastest(topology, (tsr_collective)what, &groups, (int64_t)calls->sizes[k],
                                  &timed);
            if (timed.algorithm != ran)
                fail_msg("%s of %d ranks, collective %d, %zu bytes: runs %s, predicted %s",
                         kind ? kind : "threads", n, what, calls->sizes[k], ran->name, timed.name);
        }
    tsr_topology_free(topology);
    tsr_session_free(session);
}

static const int in_order[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};

static void one_host(void **state)
{
    struct calls calls;
    (void)state;
    for (int n = 2; n <= MAX_WORLD; n = n < 4 ? n + 1 : n * 2) {
        run_calls(NULL, n, false, &calls);
        compare("8", in_order, n, &calls, NULL);
        run_calls("shm", n, true, &calls);
        compare("hosts:2x8", in_order, n, &calls, "shm");
        run_calls("net", n, false, &calls);
        compare("hosts:8x1", in_order, n, &calls, "net");
    }
    // Topology does not know these: tensors that are not in shared memory, and busy cores.
    run_calls("shm", 2, false, &calls);
    run_calls("shm", 3, false, &calls);
    run_calls("crowded", 3, false, &calls);
}

// Groups that span hosts, with equal and unequal numbers of ranks; the last two are not in the
// order of the hosts.
static void hosts(void **state)
{
    static const char *const layouts[] = {"ab",       "aab",     "abb",      "aabb",
                                          "aaaabbbb", "aaaaabb", "aabbccdd", "abbcccdd",
                                          "aaabbbcc", "abab",    "aabbaabb"};
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(layouts); i++) {
        char kind[32];
        int n = (int)strlen(layouts[i]), devices[MAX_WORLD], members[4] = {0};
        struct calls calls;
        for (int k = 0; k < n; k++) {
            int host = layouts[i][k] - 'a';
            devices[k] = host * 8 + members[host]++;
        }
        snprintf(kind, sizeof kind, "hosts %s", layouts[i]);
        run_calls(kind, n, true, &calls);
        compare("hosts:4x8", devices, n, &calls, kind);
    }
}

// ---- the rows -----------------------------------------------------------------------------------

static bool runs_on_gpus(const struct comm_algorithm *row)
{
    return row->path == PATH_OWN || row->path == PATH_NCCL || row->path == PATH_COPIES;
}

// Every row has a schedule, and runs here or on GPUs.
static void rows(void **state)
{
    const struct comm_algorithm *row;
    (void)state;
    for (size_t i = 0; (row = tsr__algorithm_at(i)); i++) {
        size_t place = (size_t)tsr__algorithm_place(row);
        assert_true(i < ROWS);
        if (!has_run[i] && !runs_on_gpus(row))
            fail_msg("no transport runs '%s' of path %d", row->name, (int)row->path);
        assert_non_null(tsr__schedules(row)->at[0]);
        assert_true(place <= i && tsr__algorithm_at(i - place)->path == row->path);
        assert_true(place == i || tsr__algorithm_at(i - place - 1)->path != row->path);
    }
    assert_null(tsr__algorithm(COMM_RESHARD, &(struct comm_shape){.path = PATH_THREADS}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host), cmocka_unit_test(hosts),
        cmocka_unit_test(rows), // after the others
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
