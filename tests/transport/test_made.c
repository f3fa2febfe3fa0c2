// SPDX-License-Identifier: Apache-2.0
// test_made.c - collectives that are built from exchanges: right numbers on every transport, and
// disagreements between ranks must be detected.
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t everybody[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};

static struct comm_call call_of(struct actor *a, enum comm_kind kind, const char *op)
{
    return (struct comm_call){.plan = 42,
                              .id = 9,
                              .kind = kind,
                              .reduce = COMM_SUM,
                              .type = TSR_FLOAT,
                              .group = everybody,
                              .n_group = a->w->n,
                              .op = op,
                              .node = "node"};
}

// Compares `count` elements of a rank that has not failed.
static void judge(struct actor *a, const float *got, const float *want, int64_t count)
{
    if (a->status == TSR_OK && memcmp(got, want, (size_t)count * sizeof *got) != 0)
        a->status = TSR_BUG;
}

// Member k gets k * unit + 3 elements.
static void act_reduce_scatter(struct actor *a)
{
    int64_t unit = *(int64_t *)a->data, counts[MAX_WORLD], count = 0, first = 0;
    for (int k = 0; k < a->w->n; k++) {
        counts[k] = k * unit + 3;
        first = k == a->rank ? count : first;
        count += counts[k];
    }
    float *in = inputs_of(a->rank, count), *want = sums_of(a->w->n, count);
    float *out = unit % 2 ? in + first : malloc((size_t)counts[a->rank] * sizeof *out);
    struct comm_call c = call_of(a, COMM_REDUCE_SCATTER, "ReduceScatter");
    c.count = count;
    a->status = tsr__comm_reduce_scatter(actor_endpoint(a), &c, in, counts, out, &a->why);
    judge(a, out, want + first, counts[a->rank]);
    if (unit % 2 == 0)
        free(out);
    free(in);
    free(want);
}

static void act_reduce(struct actor *a)
{
    int64_t count = *(int64_t *)a->data;
    int root = a->w->n - 1;
    float *x = inputs_of(a->rank, count);
    float *want = a->rank == root ? sums_of(a->w->n, count) : inputs_of(a->rank, count);
    struct comm_call c = call_of(a, COMM_REDUCE, "Reduce");
    c.count = count;
    a->status =
        tsr__comm_reduce(actor_endpoint(a), &c, root, x, a->rank == root ? x : NULL, &a->why);
    judge(a, x, want, count);
    free(x);
    free(want);
}

static void act_broadcast(struct actor *a)
{
    int64_t count = *(int64_t *)a->data;
    int root = a->w->n / 2;
    float *x = inputs_of(a->rank, count), *want = inputs_of(root, count);
    struct comm_call c = call_of(a, COMM_BROADCAST, "Broadcast");
    a->status =
        tsr__comm_broadcast(actor_endpoint(a), &c, root, x, (size_t)count * sizeof *x, &a->why);
    judge(a, x, want, count);
    free(x);
    free(want);
}

static void act_all_to_all(struct actor *a)
{
    int64_t count = *(int64_t *)a->data;
    int n = a->w->n;
    float *x = inputs_of(a->rank, count * n), *y = malloc((size_t)(count * n + 1) * sizeof *y);
    struct comm_buffer send[MAX_WORLD], recv[MAX_WORLD];
    for (int k = 0; k < n; k++) {
        send[k] = (struct comm_buffer){x + k * count, (size_t)count * sizeof *x};
        recv[k] = (struct comm_buffer){y + k * count, (size_t)count * sizeof *x};
    }
    struct comm_call c = call_of(a, COMM_ALL_TO_ALL, "AllToAll");
    a->status = tsr__comm_all_to_all(actor_endpoint(a), &c, send, recv, &a->why);
    for (int k = 0; k < n; k++) {
        float *want = inputs_of(k, count * n);
        judge(a, y + k * count, want + a->rank * count, count);
        free(want);
    }
    free(x);
    free(y);
}

static tsr_status take_shape(void *data, const int64_t *notes, struct comm_buffer *into,
                             struct comm_trouble *why)
{
    (void)why;
    int64_t *shape = data;
    memcpy(shape, notes, COMM_NOTES * sizeof *shape);
    into->bytes = (size_t)(shape[1] * shape[2]) * sizeof(float);
    into->p = malloc(into->bytes + 1);
    return TSR_OK;
}

// Each rank sends its tensor to the next one, with its shape; only the first knows the size.
static void act_chain(struct actor *a)
{
    int64_t count = *(int64_t *)a->data, shape[COMM_NOTES] = {2, count, 3};
    shape[COMM_NOTES - 1] = 77;
    struct comm_call c = call_of(a, COMM_SEND, a->rank ? "Recv" : "Send");
    float *x = a->rank ? NULL : inputs_of(0, count * 3);
    if (a->rank) {
        struct comm_incoming in = {.arrived = take_shape, .data = shape};
        memset(shape, 0, sizeof shape);
        a->status = tsr__comm_recv(actor_endpoint(a), &c, a->rank - 1, &in, &a->why);
        x = in.into.p;
        if (a->status == TSR_OK && (shape[COMM_NOTES - 1] != 77 || shape[1] != count))
            a->status = TSR_BUG;
    }
    if (a->status == TSR_OK && a->rank + 1 < a->w->n)
        a->status = tsr__comm_send(actor_endpoint(a), &c, a->rank + 1, x,
                                   (size_t)count * 3 * sizeof *x, shape, &a->why);
    float *want = inputs_of(0, count * 3);
    if (x)
        judge(a, x, want, count * 3);
    free(x);
    free(want);
}

// Calls the collective `data` with every size.
static void act_sizes(struct actor *a)
{
    static const int64_t sizes[] = {0, 1, 5, 1000, 4000, 100003};
    const size_t n = TSR_COUNT(sizes);
    void (*act)(struct actor *) = *(void (**)(struct actor *))a->data;
    for (size_t i = 0; i < n && a->status == TSR_OK; i++) {
        int64_t size = sizes[a->w->n % 2 ? i : n - 1 - i]; // large messages are also the first
        a->data = &size;
        act(a);
        if (a->status != TSR_OK)
            print_error("rank %d of %d, size %lld: %s\n", a->rank, a->w->n, (long long)size,
                        a->why.text);
    }
}

// Ranks of one job run the collective with all sizes: opening a job takes longer than that.
static void check(void **state, void (*act)(struct actor *))
{
    struct world w;
    struct actor actors[MAX_WORLD];
    for (int n = 1; n <= MAX_WORLD; n = n < 4 ? n + 1 : n * 2) {
        world_open(&w, n, *state, PATIENT);
        world_run(&w, actors, act_sizes, &act);
        for (int k = 0; k < n; k++)
            assert_int_equal(actors[k].status, TSR_OK);
        world_close(&w);
    }
}

static void test_reduce_scatter(void **state)
{
    check(state, act_reduce_scatter);
}

static void test_reduce(void **state)
{
    check(state, act_reduce);
}

static void test_broadcast(void **state)
{
    check(state, act_broadcast);
}

static void test_all_to_all(void **state)
{
    check(state, act_all_to_all);
}

static void test_chain(void **state)
{
    check(state, act_chain);
}

// ---- disagreements
// ---------------------------------------------------------------------------------

enum wrong { ROOT, COUNTS, WAY, FOLDED_SIZE, FOLDED_TYPE, WRONG_COUNT };

static void act_wrong(struct actor *a)
{
    enum wrong wrong = *(enum wrong *)a->data;
    bool odd = a->rank == 1;
    float x[8] = {0}, y[8];
    int64_t counts[2] = {odd && wrong == COUNTS ? 3 : 4, odd && wrong == COUNTS ? 5 : 4};
    struct comm_call c = call_of(a, COMM_REDUCE, "Reduce");
    c.count = 8;
    if (wrong == ROOT) {
        a->status = tsr__comm_broadcast(actor_endpoint(a), &c, odd, x, 4, &a->why);
    } else if (wrong == COUNTS) {
        a->status = tsr__comm_reduce_scatter(actor_endpoint(a), &c, x, counts, y, &a->why);
    } else if (wrong == WAY) { // both ranks send
        a->status = tsr__comm_send(actor_endpoint(a), &c, !odd, x, 4, NULL, &a->why);
    } else {
        struct comm_buffer send[2] = {{x, 8}, {x, 8}}, recv[2] = {{NULL, odd ? 4 : 8}};
        struct comm_exchange e = {.send = send, .recv = recv, .folded = y};
        recv[0].bytes = wrong == FOLDED_TYPE ? 8 : recv[0].bytes;
        c.type = wrong == FOLDED_TYPE ? TSR_STRING : c.type;
        a->status = tsr__comm_exchange(actor_endpoint(a), &c, &e, &a->why);
    }
}

static void test_wrong(void **state)
{
    static const char *const words[] = {"different attributes", "different attributes",
                                        "different attributes", "sends 8 bytes, rank 1 expects 4",
                                        "cannot be reduced"};
    for (int wrong = 0; wrong < WRONG_COUNT; wrong++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        enum wrong which = (enum wrong)wrong;
        world_open(&w, 2, *state, 5);
        world_run(&w, actors, act_wrong, &which);
        assert_int_not_equal(actors[1].status, TSR_OK);
        assert_non_null(strstr(actors[1].why.text, words[wrong]));
        world_close(&w);
    }
}

static void act_stranger(struct actor *a)
{
    float x = 0;
    struct comm_call c = call_of(a, COMM_BROADCAST, "Broadcast");
    a->status = a->rank ? tsr__comm_send(actor_endpoint(a), &c, a->rank, &x, 4, NULL, &a->why)
                        : tsr__comm_broadcast(actor_endpoint(a), &c, 7, &x, 4, &a->why);
}

// A root outside the group and a message to the rank itself are errors of this rank alone.
static void test_stranger(void **state)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    world_open(&w, 2, *state, 5);
    world_run(&w, actors, act_stranger, NULL);
    assert_int_equal(actors[0].status, TSR_INVALID);
    assert_int_equal(actors[1].status, TSR_INVALID);
    world_close(&w);
}

static char net[] = "net", shm[] = "shm", hosts[] = "hosts",
            ucx[] = "ucx"; // cmocka takes non-const pointers

// clang-format off
#define ALL(name)                                                                                 \
    {#name " (threads)", name, NULL, NULL, NULL},                                                  \
    {#name " (net)", name, NULL, NULL, net},                                                       \
    {#name " (shm)", name, NULL, NULL, shm},                                                       \
    {#name " (hosts)", name, NULL, NULL, hosts},                                                   \
    {#name " (ucx)", name, NULL, NULL, ucx}
// clang-format on

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(test_reduce_scatter), ALL(test_reduce), ALL(test_broadcast), ALL(test_all_to_all),
        ALL(test_chain),          ALL(test_wrong),  ALL(test_stranger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
