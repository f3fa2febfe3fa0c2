// SPDX-License-Identifier: Apache-2.0
// test_collectives.c - collectives on all transports: right numbers, equal bits, and reports of
// disagreements and lost ranks.
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const int64_t everybody[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};

static struct comm_call call_of(struct actor *a, enum comm_kind kind, int64_t id)
{
    return (struct comm_call){.plan = 42,
                              .id = id,
                              .kind = kind,
                              .type = TSR_FLOAT,
                              .group = everybody,
                              .n_group = a->w->n,
                              .op = kind == COMM_ALL_REDUCE ? "AllReduce" : "Reshard",
                              .node = "node"};
}

// ---- all-reduce --------------------------------------------------------------------------------

// The sums are those in group order, rounded after each step.
static void reduce_once(struct actor *a, uint64_t run, int64_t count, bool in_place)
{
    float *in = inputs_of(a->rank, count), *want = sums_of(a->w->n, count);
    float *out = in_place ? in : malloc((size_t)(count + 1) * sizeof *out);
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, 3);
    c.reduce = COMM_SUM;
    c.count = count;
    c.run = run;
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, in, out, &a->why);
    if (a->status == TSR_OK && memcmp(out, want, (size_t)count * sizeof *out) != 0)
        a->status = TSR_BUG;
    if (!in_place)
        free(in);
    free(out);
    free(want);
}

// Ranks of one job sum arrays of many sizes: opening a job takes longer than that.
static void act_reduce(struct actor *a)
{
    static const int64_t counts[] = {0, 1, 63, 64, 65, 2048, 2049, 16385, 100003};
    const size_t n = TSR_COUNT(counts);
    for (size_t i = 0; i < n && a->status == TSR_OK; i++) {
        size_t at = a->w->n % 2 ? i : n - 1 - i; // large sums are also the first
        reduce_once(a, i, counts[at], at % 2);
    }
}

// Sums `data` elements.
static void act_large(struct actor *a)
{
    reduce_once(a, 0, *(const int64_t *)a->data, true);
}

static void check_reduce(const char *net, int n, void (*act)(struct actor *), int64_t count)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, n, net, PATIENT);
    world_run(&w, actors, act, &count);
    for (int k = 0; k < n; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
}

static void test_all_reduce(void **state)
{
    const char *net = *state;
    for (int n = 1; n <= MAX_WORLD; n = n < 4 ? n + 1 : n * 2)
        check_reduce(net, n, act_reduce, 0);
    check_reduce(net, 2, act_large, 300007); // several pieces
    if (net && strcmp(net, "crowded") != 0)  // more than one round
        check_reduce(net, 3, act_large, (int64_t)(NET_ROUND / sizeof(float)) + 777);
}

// ---- exchange ----------------------------------------------------------------------------------

static size_t part_bytes(int from, int to, size_t scale)
{
    return (size_t)((from * 5 + to * 3) % 7) * scale;
}

// Bytes that differ between ranks: element i + 251 is equal to element i.
static unsigned char *part_of(int from, int to, size_t bytes)
{
    unsigned char *p = malloc(bytes + 1);
    for (size_t i = 0; i < bytes && i < 251; i++)
        p[i] = (unsigned char)(from * 31 + to * 7 + (int)i);
    repeat_bytes(p, bytes, 251);
    return p;
}

static tsr_status learn_sizes(void *data, const int64_t (*notes)[COMM_NOTES],
                              struct comm_trouble *why)
{
    (void)why;
    struct comm_buffer *recv = data;
    for (int i = 0; recv[i].bytes != SIZE_MAX; i++) { // SIZE_MAX ends the list in this test
        recv[i].bytes = (size_t)notes[i][1];
        recv[i].p = malloc(recv[i].bytes + 1);
    }
    return TSR_OK;
}

static void exchange_once(struct actor *a, uint64_t run, size_t scale)
{
    int n = a->w->n;
    struct comm_buffer send[MAX_WORLD] = {{0}}, recv[MAX_WORLD + 1] = {{0}};
    for (int k = 0; k < n; k++) {
        send[k].bytes = part_bytes(a->rank, k, scale);
        send[k].p = part_of(a->rank, k, send[k].bytes);
        recv[k].bytes = part_bytes(k, a->rank, scale);
        recv[k].p = malloc(recv[k].bytes + 1);
    }
    struct comm_exchange x = {.send = send, .recv = recv};
    struct comm_call c = call_of(a, COMM_RESHARD, 9);
    c.run = run;
    a->status = tsr__comm_exchange(actor_endpoint(a), &c, &x, &a->why);
    for (int k = 0; k < n && a->status == TSR_OK; k++) {
        unsigned char *want = part_of(k, a->rank, recv[k].bytes);
        if (memcmp(recv[k].p, want, recv[k].bytes) != 0)
            a->status = TSR_BUG;
        free(want);
    }
    for (int k = 0; k < n; k++) {
        free(send[k].p);
        free(recv[k].p);
    }
}

// Each rank sends its rank times 2000 bytes to all; sizes are known only when all have arrived.
static void act_gather(struct actor *a)
{
    int n = a->w->n;
    struct comm_buffer send[MAX_WORLD], recv[MAX_WORLD + 1] = {{0}};
    char mine[16384];
    memset(mine, 'a' + a->rank, sizeof mine);
    for (int k = 0; k < n; k++)
        send[k] = (struct comm_buffer){mine, (size_t)a->rank * 2000};
    recv[n].bytes = SIZE_MAX;
    struct comm_exchange x = {.send = send, .recv = recv, .arrived = learn_sizes, .data = recv};
    x.notes[1] = (int64_t)a->rank * 2000;
    struct comm_call c = call_of(a, COMM_ALL_GATHER, 10);
    a->status = tsr__comm_exchange(actor_endpoint(a), &c, &x, &a->why);
    for (int k = 0; k < n && a->status == TSR_OK; k++)
        if (recv[k].bytes != (size_t)k * 2000 ||
            (k && ((char *)recv[k].p)[k * 2000 - 1] != 'a' + k))
            a->status = TSR_BUG;
    for (int k = 0; k < n; k++)
        free(recv[k].p);
}

static void act_exchange(struct actor *a)
{
    static const size_t scales[] = {0, 1, 1000, 5000, 300000};
    const size_t n = TSR_COUNT(scales);
    for (size_t i = 0; i < n && a->status == TSR_OK; i++)
        exchange_once(a, i, scales[a->w->n % 2 ? i : n - 1 - i]);
    if (a->status == TSR_OK)
        act_gather(a);
}

static void test_exchange(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    for (int n = 1; n <= MAX_WORLD; n = n < 4 ? n + 1 : n * 2) {
        world_open(&w, n, *state, PATIENT);
        world_run(&w, actors, act_exchange, NULL);
        for (int k = 0; k < n; k++)
            assert_int_equal(actors[k].status, TSR_OK);
        world_close(&w);
    }
}

// ---- groups and many calls ---------------------------------------------------------------------

static void act_groups(struct actor *a)
{
    static const int64_t even[] = {0, 2}, odd[] = {1, 3};
    for (int round = 0; round < 300 && a->status == TSR_OK; round++) {
        float x[200], want;
        for (int i = 0; i < 200; i++)
            x[i] = (float)(a->rank + round + i);
        struct comm_call c = call_of(a, COMM_ALL_REDUCE, 0);
        c.reduce = COMM_SUM;
        c.count = round % 2 ? 200 : 3;
        c.run = (uint64_t)round;
        c.group = a->rank % 2 ? odd : even;
        c.n_group = 2;
        a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, x, x, &a->why);
        want = (float)(2 * (a->rank % 2) + 2 + 2 * round + 2 * 1);
        if (a->status == TSR_OK && x[1] != want)
            a->status = TSR_BUG;
        c.id = 1;
        c.group = everybody;
        c.n_group = 4;
        c.reduce = COMM_MAX;
        if (a->status == TSR_OK)
            a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, x, x, &a->why);
        if (a->status == TSR_OK && x[1] != (float)(4 + 2 * round + 2))
            a->status = TSR_BUG;
    }
}

static void test_groups(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 4, *state, PATIENT);
    world_run(&w, actors, act_groups, NULL);
    for (int k = 0; k < 4; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
}

// The sums of ranks `first` and `first` + 1.
static float *pair_sums(int first, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    for (int64_t i = 0; i < count && i < INPUT_PERIOD; i++)
        x[i] = input_of(first, i) + input_of(first + 1, i);
    repeat_bytes(x, (size_t)count * sizeof *x, INPUT_PERIOD * sizeof *x);
    return x;
}

// Two ranks repeatedly, with messages that fit into their shared mailbox and larger ones; sometimes
// one rank is late.
static void act_pair(struct actor *a)
{
    static const int64_t counts[] = {1,  256,  1024, 7,     1025,  16,
                                     17, 3000, 1000, 17000, 50000, 40000}; // 2, 4, 3 pieces
    struct timespec nap = {0, 200000};
    float *y = malloc(50000 * sizeof *y);
    for (int round = 0; round < 1500 && a->status == TSR_OK; round++) {
        struct comm_call c = call_of(a, COMM_ALL_REDUCE, 0);
        c.reduce = COMM_SUM;
        c.count = counts[(round * 5 + round / 17) % 12];
        c.run = (uint64_t)round;
        float *x = inputs_of(a->rank + round, c.count), *want = pair_sums(round, c.count);
        if (round % 97 == 13 + a->rank)
            nanosleep(&nap, NULL);
        float *out = round % 3 ? y : x;
        a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, x, out, &a->why);
        if (a->status == TSR_OK && memcmp(out, want, (size_t)c.count * sizeof *out) != 0)
            a->status = TSR_BUG;
        free(want);
        free(x);
    }
    free(y);
}

static void test_pair(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 2, *state, PATIENT);
    world_run(&w, actors, act_pair, NULL);
    for (int k = 0; k < 2; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
}

static void act_barrier(struct actor *a)
{
    for (int i = 0; i < 20 && a->status == TSR_OK; i++)
        a->status = tsr__comm_barrier(actor_endpoint(a), 7, "start", &a->why);
}

static void test_barrier(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 5, *state, PATIENT);
    world_run(&w, actors, act_barrier, NULL);
    for (int k = 0; k < 5; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
}

// ---- disagreement ------------------------------------------------------------------------------

enum wrong { PLAN, KIND, ID, RUN, GROUP, TYPE, REDUCE, COUNT, DETAIL, WRONG_COUNT };
static const char *const wrong_words[] = {"different plans",      "different operators",
                                          "different ids",        "different runs",
                                          "different groups",     "different element types",
                                          "different reductions", "different numbers of elements",
                                          "different attributes"};

static void act_wrong(struct actor *a)
{
    static const int64_t two[] = {0, 1};
    enum wrong wrong = *(enum wrong *)a->data;
    float x[64] = {0};
    struct comm_buffer none[MAX_WORLD] = {{0}}, got[MAX_WORLD] = {{0}};
    struct comm_exchange e = {.send = none, .recv = got};
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, 5);
    c.node = a->rank == 1 ? "bad_one" : "good_one";
    c.reduce = COMM_SUM;
    c.count = 16;
    if (a->rank == 1) {
        c.plan += wrong == PLAN;
        c.id += wrong == ID;
        c.run += wrong == RUN;
        c.type = wrong == TYPE ? TSR_INT32 : c.type;
        c.reduce = wrong == REDUCE ? COMM_MAX : c.reduce;
        c.count += wrong == COUNT;
        c.detail += wrong == DETAIL;
        c.kind = wrong == KIND ? COMM_RESHARD : c.kind;
        if (wrong == GROUP) {
            c.group = two;
            c.n_group = 2;
        }
    }
    a->status = c.kind == COMM_RESHARD ? tsr__comm_exchange(actor_endpoint(a), &c, &e, &a->why)
                                       : tsr__comm_all_reduce(actor_endpoint(a), &c, x, x, &a->why);
}

static void check_disagreement(const char *kind, int n, enum wrong which)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, n, kind, 5);
    world_run(&w, actors, act_wrong, &which);
    for (int k = 0; k < n; k++) {
        assert_int_equal(actors[k].status, TSR_PEER);
        assert_non_null(strstr(actors[k].why.text, "rank 1"));
        assert_non_null(strstr(actors[k].why.text, "good_one"));
        assert_non_null(strstr(actors[k].why.text, "bad_one"));
        // On several hosts, another operator may wait on another path: a deadlock.
        if (which != KIND || !strstr(actors[k].why.text, "deadlock"))
            assert_non_null(strstr(actors[k].why.text, wrong_words[which]));
    }
    world_close(&w);
}

// Two ranks use their mailbox; with another group there are three ranks again.
static void test_disagreement(void **state)
{
    for (int wrong = 0; wrong < WRONG_COUNT; wrong++) {
        check_disagreement(*state, 3, (enum wrong)wrong);
        if (wrong != GROUP)
            check_disagreement(*state, 2, (enum wrong)wrong);
    }
}

// Sizes that do not match must be detected too.
static void act_sizes(struct actor *a)
{
    char out[64] = {0}, in[64];
    struct comm_buffer send[2] = {{out, 8}, {out, 8}}, recv[2] = {{in, 8}, {in + 32, 8}};
    recv[1 - a->rank].bytes = a->rank == 0 ? 4 : 8;
    struct comm_exchange x = {.send = send, .recv = recv};
    struct comm_call c = call_of(a, COMM_RESHARD, 1);
    a->status = tsr__comm_exchange(actor_endpoint(a), &c, &x, &a->why);
}

static void test_sizes(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 2, *state, 5);
    world_run(&w, actors, act_sizes, NULL);
    assert_int_equal(actors[0].status, TSR_PEER);
    assert_non_null(strstr(actors[0].why.text, "rank 1 sends 8 bytes, rank 0 expects 4"));
    world_close(&w);
}

static void act_bad_group(struct actor *a)
{
    static const int64_t without[] = {1, 2};
    float x = 0;
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, 1);
    c.reduce = COMM_SUM;
    c.count = 1;
    if (a->rank == 0) {
        c.group = without;
        c.n_group = 2;
    }
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, &x, &x, &a->why);
}

// A rank calls a collective of a group that does not contain it.
static void test_bad_group(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 3, *state, 5);
    world_run(&w, actors, act_bad_group, NULL);
    for (int k = 0; k < 3; k++) // the others report the mistake of rank 0
        assert_true(actors[k].status == TSR_INVALID &&
                    strstr(actors[k].why.text, "rank 0 is not in"));
    world_close(&w);
}

// ---- loss --------------------------------------------------------------------------------------

static void act_leave(struct actor *a)
{
    float x[4] = {0};
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, 8);
    c.node = "lonely";
    c.reduce = COMM_SUM;
    c.count = 4;
    if (a->rank == 2) // ends without a message
        return;
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, x, x, &a->why);
}

// A rank ends without communicating: the others must report it, with the call that waited.
static void test_ended(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 3, *state, 30);
    world_run(&w, actors, act_leave, NULL);
    for (int k = 0; k < 2; k++) {
        assert_int_equal(actors[k].status, TSR_PEER);
        assert_int_equal(actors[k].why.rank, 2);
        assert_non_null(strstr(actors[k].why.text, "rank 2 has ended"));
        assert_non_null(strstr(actors[k].why.text, "AllReduce 'lonely' (id 8)"));
    }
    world_close(&w);
}

static void act_fail(struct actor *a)
{
    if (a->rank == 1) {
        tsr__comm_fail(actor_endpoint(a), TSR_IO, "rank 1 failed: the file is gone");
        a->status = TSR_IO;
        return;
    }
    act_leave(a);
}

// Rank 1 reports a failure: rank 0 must return it at once.
static void test_failed(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    double before = tsr__now_s();
    world_open(&w, 2, *state, 30);
    world_run(&w, actors, act_fail, NULL);
    assert_int_equal(actors[0].status, TSR_IO);
    assert_non_null(strstr(actors[0].why.text, "the file is gone"));
    assert_true(tsr__now_s() - before < 3); // at once, not after the timeout
    world_close(&w);
}

static tsr_status sum_over(struct actor *a, int64_t id, const int64_t *group, int n)
{
    float x = 1;
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, id);
    c.reduce = COMM_SUM;
    c.count = 1;
    c.group = group;
    c.n_group = n;
    tsr_status st = tsr__comm_all_reduce(actor_endpoint(a), &c, &x, &x, &a->why);
    return st == TSR_OK && x != (float)n ? TSR_BUG : st;
}

// Rank 1 finishes its calls and fails before the next one. The others are still busy: they must
// finish theirs, and fail at the next call with rank 1.
static void act_left(struct actor *a)
{
    static const int64_t all[] = {0, 1, 2}, others[] = {0, 2};
    struct timespec nap = {0, 300000000};
    if (a->rank == 2)
        nanosleep(&nap, NULL); // rank 1 has sent its part long before it is folded
    a->status = sum_over(a, 1, all, 3);
    if (a->status == TSR_OK && a->rank == 1) {
        tsr__comm_leave(actor_endpoint(a), TSR_IO, "rank 1 failed: the file is gone");
        a->status = tsr__comm_barrier(actor_endpoint(a), 7, "start", &a->why);
    }
    if (a->status != TSR_OK)
        return;
    nanosleep(&nap, NULL);
    a->status = TSR_BUG;
    if (sum_over(a, 2, others, 2) == TSR_OK)
        a->status = tsr__comm_barrier(actor_endpoint(a), 7, "start", &a->why);
}

static void test_left(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    double before = tsr__now_s();
    world_open(&w, 3, *state, 30);
    world_run(&w, actors, act_left, NULL);
    for (int k = 0; k < 3; k++) {
        assert_string_equal(actors[k].why.text, "rank 1 failed: the file is gone");
        assert_int_equal(actors[k].status, TSR_IO);
        assert_int_equal(actors[k].why.rank, 1);
    }
    assert_true(tsr__now_s() - before < 10); // not after the timeout
    world_close(&w);
}

static void act_ring(struct actor *a)
{
    static const int64_t groups[3][2] = {{0, 1}, {1, 2}, {0, 2}};
    float x = 0;
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, a->rank);
    c.reduce = COMM_SUM;
    c.count = 1;
    c.group = groups[a->rank]; // 0 waits for 1, 1 for 2, 2 for 0
    c.n_group = 2;
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, &x, &x, &a->why);
}

// Three ranks wait for each other in a cycle: all must report the deadlock.
static void test_ring(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 3, *state, 30);
    world_run(&w, actors, act_ring, NULL);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(actors[k].status, TSR_PEER);
        assert_non_null(strstr(actors[k].why.text, "deadlock"));
    }
    world_close(&w);
}

// A slow rank is waited for, longer than the timeout.
static void act_slow(struct actor *a)
{
    struct timespec nap = *(const struct timespec *)a->data;
    float x = 1;
    if (a->rank == 1)
        nanosleep(&nap, NULL);
    struct comm_call c = call_of(a, COMM_ALL_REDUCE, 1);
    c.reduce = COMM_SUM;
    c.count = 1;
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, &x, &x, &a->why);
    if (a->status == TSR_OK && x != 2)
        a->status = TSR_BUG;
}

static void check_slow(const char *kind, struct timespec nap)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 2, kind, 1.5);
    world_run(&w, actors, act_slow, &nap);
    assert_int_equal(actors[0].status, TSR_OK);
    assert_int_equal(actors[1].status, TSR_OK);
    world_close(&w);
}

static void test_slow(void **state)
{
    check_slow(*state, (struct timespec){2, 500000000});
}

// The last rank finds the other one waiting and ends at once. The other must not take this for a
// rank that ended without arriving.
static void test_last(void **state)
{
    for (int i = 0; i < 40; i++)
        check_slow(*state, (struct timespec){0, 5000000 + i * 100000});
}

// Rank 1 sends nothing any more.
static void act_mute(struct actor *a)
{
    if (a->rank == 1) {
        struct timespec nap = {3, 0};
        nanosleep(&nap, NULL);
        return;
    }
    act_leave(a);
}

static void test_stopped(void **state)
{
    (void)state;
    struct world w;
    struct actor actors[MAX_WORLD];
    double before = tsr__now_s();
    world_open(&w, 2, "net", 1.5);
    world_mute(&w, 1);
    world_run(&w, actors, act_mute, NULL);
    assert_int_equal(actors[0].status, TSR_PEER);
    assert_int_equal(actors[0].why.rank, 1);
    assert_non_null(strstr(actors[0].why.text, "rank 1 has sent no heartbeat"));
    assert_non_null(strstr(actors[0].why.text, "AllReduce 'lonely'"));
    assert_true(tsr__now_s() - before < 6);
    world_close(&w);
}

// Each send and receive may fail; the other ranks must report it.
static void act_fault(struct actor *a)
{
    static float x[MAX_WORLD][20000];
    if (a->rank == 0)
        tsr__session_fault(a->w->own[0], *(int *)a->data, 4, false);
    for (int i = 0; i < 3 && a->status == TSR_OK; i++) {
        struct comm_call c = call_of(a, COMM_ALL_REDUCE, i);
        c.reduce = COMM_SUM;
        c.count = 20000;
        a->status = tsr__comm_all_reduce(actor_endpoint(a), &c, x[a->rank], x[a->rank], &a->why);
    }
}

// Failing sends and receives of the network must be reported by both ranks.
static void test_faults(void **state)
{
    (void)state;
    for (int kind = FAULT_SEND; kind <= FAULT_RECEIVE; kind++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        world_open(&w, 2, "net", 5);
        world_run(&w, actors, act_fault, &kind);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(actors[k].status, TSR_PEER);
            assert_non_null(
                strstr(actors[k].why.text, "the network between rank 0 and rank 1 failed"));
        }
        world_close(&w);
    }
}

// Memory that other ranks can read: aligned to cache lines, reused, and limited if sizes change.
static void test_heap(void **state)
{
    struct world w;
    char own[64];
    (void)state;
    world_open(&w, 2, "shm", 5);
    struct endpoint *e = w.e[1];
    const struct transport *t = e->transport;
    char *a = t->alloc(e, 1000), *b = t->alloc(e, 1000);
    assert_true(a && b && b >= a + 1000 && (uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    memset(a, 1, 1000);
    assert_true(t->release(e, a));
    assert_ptr_equal(t->alloc(e, 990), a);
    assert_false(t->release(e, own));
    assert_false(t->release(w.e[0], a)); // belongs to another rank
    assert_null(t->alloc(e, (size_t)1 << 50));
    for (size_t mib = 4; mib < 60; mib++) {
        a = t->alloc(e, mib << 20);
        assert_non_null(a);
        memset(a, (int)mib, mib << 20);
        assert_true(t->release(e, a));
        assert_in_range(t->held(e), 0, (2 * 66 + 64 + 66) << 20);
    }
    a = t->alloc(e, 20 << 20); // its pages were returned to the system meanwhile
    assert_non_null(a);
    memset(a, 7, 20 << 20);
    assert_true(t->release(e, a));
    tsr__comm_close(w.e[0]);
    tsr__comm_close(e);
    world_close(&w);
}

// Adjacent free blocks must be merged, and a larger block may be split again.
static void test_heap_joins(void **state)
{
    struct world w;
    (void)state;
    world_open(&w, 1, "shm", 5);
    struct endpoint *e = w.e[0];
    const struct transport *t = e->transport;
    char *blocks[3];
    for (size_t i = 0; i < 3; i++)
        blocks[i] = t->alloc(e, (8 - 2 * i) << 20); // 8, 6, 4 MiB
    size_t held = t->held(e);
    assert_true(t->release(e, blocks[1]) && t->release(e, blocks[0]));
    assert_ptr_equal(t->alloc(e, 13 << 20), blocks[0]);
    assert_int_equal(t->held(e), held);
    assert_true(t->release(e, blocks[2]));
    blocks[1] = t->alloc(e, 1 << 20); // split from the last block, whose remainder grows
    assert_non_null(blocks[1]);
    assert_ptr_equal(t->alloc(e, 9 << 20), blocks[1] + (1 << 20) + 64);
    assert_in_range(t->held(e), held, held + (6 << 20) + 128);
    tsr__comm_close(e);
    world_close(&w);
}

// Allocates and frees random sizes: blocks must not overlap, and free memory must be reused.
static void test_heap_random(void **state)
{
    struct world w;
    char *at[64] = {0};
    size_t bytes[64] = {0}, in_use = 0, most = 0;
    uint32_t seed = 1;
    (void)state;
    world_open(&w, 1, "shm", 5);
    struct endpoint *e = w.e[0];
    const struct transport *t = e->transport;
    for (int turn = 0; turn < 20000; turn++) {
        seed = seed * 1664525u + 1013904223u;
        size_t i = seed >> 26;
        if (at[i]) {
            assert_int_equal(at[i][0], (char)i);
            assert_int_equal(at[i][bytes[i] - 1], (char)i);
            assert_true(t->release(e, at[i]));
            in_use -= bytes[i];
            at[i] = NULL;
            continue;
        }
        bytes[i] = ((size_t)1 << (seed >> 4) % 21) + (seed >> 8) % 4096;
        at[i] = t->alloc(e, bytes[i]);
        assert_true(at[i] && (uintptr_t)at[i] % 64 == 0);
        at[i][0] = at[i][bytes[i] - 1] = (char)i;
        in_use += bytes[i];
        most = in_use > most ? in_use : most;
    }
    assert_in_range(t->held(e), in_use, most + most / 2 + (4 << 20));
    tsr__comm_close(e);
    world_close(&w);
}

// Closing must not wait for the next heartbeat, a tenth of a second later. Other programs may delay
// some of the turns, but not all.
static void test_closed_at_once(void **state)
{
    (void)state;
    double least_s = 1;
    for (int turn = 0; turn < 30; turn++) {
        struct world w;
        world_open(&w, 1, "shm", 5);
        double before = tsr__now_s();
        tsr__comm_close(w.e[0]);
        double took_s = tsr__now_s() - before;
        least_s = took_s < least_s ? took_s : least_s;
        world_close(&w);
    }
    assert_true(least_s < 0.02);
}

static char net[] = "net", crowded[] = "crowded", shm[] = "shm", hosts[] = "hosts",
            ucx[] = "ucx"; // cmocka takes non-const pointers

// clang-format off
#define ALL(name)                                                                                 \
    {#name " (threads)", name, NULL, NULL, NULL},                                                  \
    PROCESSES(name)
#define PROCESSES(name)                                                                           \
    {#name " (net)", name, NULL, NULL, net},                                                       \
    {#name " (shm)", name, NULL, NULL, shm},                                                       \
    {#name " (hosts)", name, NULL, NULL, hosts},                                                   \
    {#name " (ucx)", name, NULL, NULL, ucx}
// Ranks that share cores add up with another algorithm; everything else is the same.
#define SUMS(name)                                                                                \
    ALL(name),                                                                                     \
    {#name " (crowded)", name, NULL, NULL, crowded}
// clang-format on

int main(void)
{
    const struct CMUnitTest tests[] = {
        SUMS(test_all_reduce),
        ALL(test_exchange),
        SUMS(test_groups),
        ALL(test_pair),
        ALL(test_barrier),
        SUMS(test_disagreement),
        SUMS(test_sizes),
        ALL(test_bad_group),
        SUMS(test_ended),
        SUMS(test_failed),
        PROCESSES(test_left),
        ALL(test_ring),
        ALL(test_slow),
        ALL(test_last),
        cmocka_unit_test(test_heap),
        cmocka_unit_test(test_heap_joins),
        cmocka_unit_test(test_heap_random),
        cmocka_unit_test(test_closed_at_once),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
