// SPDX-License-Identifier: Apache-2.0
// test_by_hosts.c - collectives of groups that span hosts: on hosts with equal and unequal numbers
// of ranks, of every type and size, all ranks must have the bits of a reduction in rank order. Few
// messages may pass between hosts.
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

// A letter per rank: its host. The last two are not in the order of the hosts.
static const char *const layouts[] = {"ab",       "aab",      "abb",     "aabb",
                                      "aaab",     "aaaabbbb", "aaaaabb", "aabbccdd",
                                      "abbcccdd", "aaabbbcc", "abab",    "aabbaabb"};

struct shape {
    tsr_dtype type;
    enum comm_reduce reduce;
    int64_t count;
    bool in_place;
};

static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_BFLOAT16, TSR_INT8,
                                  TSR_UINT8, TSR_INT16,  TSR_UINT16,  TSR_INT32,    TSR_UINT32,
                                  TSR_INT64, TSR_UINT64, TSR_BOOL};

static struct comm_call call_of(const struct actor *a, enum comm_kind kind,
                                const struct shape *shape, const int64_t *group)
{
    return (struct comm_call){.plan = 42,
                              .id = 7,
                              .kind = kind,
                              .reduce = shape->reduce,
                              .type = shape->type,
                              .group = group,
                              .n_group = a->w->n,
                              .op = "op",
                              .node = "node"};
}

// Elements of a rank whose sum depends on the order of the additions.
static void fill(const struct shape *shape, int rank, int64_t count, void *out)
{
    uint64_t seed = 88172645463325252U + (uint64_t)rank * 977;
    size_t unit = tsr__elem_bytes(shape->type);
    for (int64_t i = 0; i < count; i++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        float real = (float)((int64_t)(seed >> 40) - (1 << 23)) / (float)(1 << (seed & 15));
        double wide = (double)real * 1.0000001;
        uint16_t half = float_to_half(real / 4096), brain = float_to_bfloat(real);
        char *at = (char *)out + (size_t)i * unit;
        bool truth = seed & 1;
        if (shape->type == TSR_FLOAT)
            memcpy(at, &real, unit);
        else if (shape->type == TSR_DOUBLE)
            memcpy(at, &wide, unit);
        else if (shape->type == TSR_FLOAT16)
            memcpy(at, &half, unit);
        else if (shape->type == TSR_BFLOAT16)
            memcpy(at, &brain, unit);
        else if (shape->type == TSR_BOOL)
            memcpy(at, &truth, unit);
        else
            memcpy(at, &seed, unit);
    }
}

// The reduction of all ranks in rank order. Free it.
static char *expected(const struct actor *a, const struct shape *shape, int64_t count)
{
    size_t bytes = (size_t)count * tsr__elem_bytes(shape->type);
    char *inputs = malloc((size_t)a->w->n * bytes + 1), *out = malloc(bytes + 1);
    const void *ins[MAX_WORLD];
    for (int i = 0; i < a->w->n; i++) {
        ins[i] = inputs + (size_t)i * bytes;
        fill(shape, i, count, (void *)ins[i]);
    }
    tsr__reduce(shape->type, shape->reduce, ins, a->w->n, (void *const *)&out, 1, 0, count);
    free(inputs);
    return out;
}

static void judge(struct actor *a, const void *got, const void *want, size_t bytes)
{
    if (a->status == TSR_OK && memcmp(got, want, bytes) != 0)
        a->status = TSR_BUG;
}

static const int64_t everybody[MAX_WORLD] = {0, 1, 2, 3, 4, 5, 6, 7};

static void act_all_reduce(struct actor *a)
{
    const struct shape *shape = a->data;
    size_t bytes = (size_t)shape->count * tsr__elem_bytes(shape->type);
    char *in = malloc(bytes + 1), *want = expected(a, shape, shape->count);
    char *out = shape->in_place ? in : malloc(bytes + 1);
    struct comm_call call = call_of(a, COMM_ALL_REDUCE, shape, everybody);
    call.count = shape->count;
    fill(shape, a->rank, shape->count, in);
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &call, in, out, &a->why);
    judge(a, out, want, bytes);
    if (!shape->in_place)
        free(out);
    free(in);
    free(want);
}

// Member k gets `count` / n elements and k more.
static void act_reduce_scatter(struct actor *a)
{
    const struct shape *shape = a->data;
    int64_t counts[MAX_WORLD], count = 0, first = 0;
    size_t unit = tsr__elem_bytes(shape->type);
    for (int k = 0; k < a->w->n; k++) {
        counts[k] = shape->count / a->w->n + (shape->count ? k : 0);
        first = k == a->rank ? count : first;
        count += counts[k];
    }
    char *in = malloc((size_t)count * unit + 1), *want = expected(a, shape, count);
    char *out =
        shape->in_place ? in + (size_t)first * unit : malloc((size_t)counts[a->rank] * unit + 1);
    struct comm_call call = call_of(a, COMM_REDUCE_SCATTER, shape, everybody);
    fill(shape, a->rank, count, in);
    a->status = tsr__comm_reduce_scatter(actor_endpoint(a), &call, in, counts, out, &a->why);
    judge(a, out, want + (size_t)first * unit, (size_t)counts[a->rank] * unit);
    if (!shape->in_place)
        free(out);
    free(in);
    free(want);
}

// Rank k sends `count` bytes and k * 1000 more; rank 1 sends only k.
static size_t gathered_bytes(const struct shape *shape, int rank)
{
    return rank == 1 ? 1 : (size_t)shape->count + (size_t)rank * 1000;
}

static void act_all_gather(struct actor *a)
{
    const struct shape *shape = a->data;
    struct shape bytes_of = {.type = TSR_UINT8};
    struct comm_buffer send[MAX_WORLD], recv[MAX_WORLD];
    size_t own = gathered_bytes(shape, a->rank);
    char *mine = malloc(own + 1);
    fill(&bytes_of, a->rank, (int64_t)own, mine);
    for (int k = 0; k < a->w->n; k++) {
        send[k] = (struct comm_buffer){mine, own};
        recv[k].bytes = gathered_bytes(shape, k);
        recv[k].p = malloc(recv[k].bytes);
    }
    const struct comm_collective collective = {.in = mine};
    struct comm_exchange exchange = {.collective = &collective, .send = send, .recv = recv};
    struct comm_call call = call_of(a, COMM_ALL_GATHER, &bytes_of, everybody);
    a->status = tsr__comm_exchange(actor_endpoint(a), &call, &exchange, &a->why);
    for (int k = 0; k < a->w->n; k++) {
        char *want = malloc(recv[k].bytes);
        fill(&bytes_of, k, (int64_t)recv[k].bytes, want);
        judge(a, recv[k].p, want, recv[k].bytes);
        free(recv[k].p);
        free(want);
    }
    free(mine);
}

// A collective and its argument.
struct task {
    void (*act)(struct actor *);
    struct shape shape;
};
struct tasks {
    const struct task *at;
    size_t n;
};

// Runs tasks one after the other: joining takes longer than a task.
static void act_tasks(struct actor *a)
{
    const struct tasks *tasks = a->data;
    for (size_t i = 0; i < tasks->n && a->status == TSR_OK; i++) {
        a->data = (void *)&tasks->at[i].shape;
        tasks->at[i].act(a);
        if (a->status != TSR_OK)
            print_error("rank %d, task %zu: status %d %s\n", a->rank, i, (int)a->status,
                        a->why.text);
    }
}

static void run_tasks(const char *layout, const struct task *at, size_t n)
{
    struct world w;
    struct actor actors[MAX_WORLD];
    struct tasks tasks = {at, n};
    char kind[32];
    snprintf(kind, sizeof kind, "hosts %s", layout);
    world_open(&w, (int)strlen(layout), kind, PATIENT);
    world_run(&w, actors, act_tasks, &tasks);
    for (int k = 0; k < w.n; k++)
        assert_int_equal(actors[k].status, TSR_OK);
    world_close(&w);
}

// Sizes around the limits: nothing, one element, all in the frames, several pieces, several rounds.
static void test_sizes(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 4096, 4097, 16385, 70001, 200003};
    struct task tasks[3 * TSR_COUNT(counts)];
    size_t n = 0;
    for (size_t i = 0; i < TSR_COUNT(counts); i++) {
        struct shape shape = {TSR_FLOAT, COMM_SUM, counts[i], i % 2};
        tasks[n++] = (struct task){act_all_reduce, shape};
        tasks[n++] = (struct task){act_reduce_scatter, shape};
        tasks[n++] = (struct task){act_all_gather, shape};
    }
    for (size_t i = 0; i < TSR_COUNT(layouts); i++)
        run_tasks(layouts[i], tasks, n);
}

static void test_rounds(void **state)
{
    (void)state;
    struct shape shape = {TSR_FLOAT, COMM_SUM, (4 << 20) + 333, true};
    struct task task = {act_all_reduce, shape};
    run_tasks("abb", &task, 1);
}

static void test_types(void **state)
{
    (void)state;
    struct task tasks[2 * TSR_COUNT(types) * (COMM_REDUCE_COUNT - 1)];
    size_t n = 0;
    for (size_t i = 0; i < TSR_COUNT(types); i++)
        for (int reduce = COMM_SUM; reduce < COMM_REDUCE_COUNT; reduce++) {
            struct shape shape = {types[i], (enum comm_reduce)reduce, 40003, false};
            tasks[n++] = (struct task){act_all_reduce, shape};
            tasks[n++] = (struct task){act_reduce_scatter, shape};
        }
    run_tasks("aabb", tasks, n);
    run_tasks("aaabbc", tasks, n);
}

// Every element must pass between two hosts once in each direction, not once per pair of ranks.
// Example: 1 MiB and lanes of 512 KiB: a header and 2 pieces per lane.
static void test_messages(void **state)
{
    (void)state;
    struct world w;
    struct actor actors[MAX_WORLD];
    struct shape shape = {TSR_FLOAT, COMM_SUM, 1 << 18, false};
    int between = 0;
    world_open(&w, 4, "hosts aabb", PATIENT);
    int joined = 0;
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            joined += from / 2 != to / 2 ? world_sent(&w, from, to) : 0;
    world_run(&w, actors, act_all_reduce, &shape);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            between += from / 2 != to / 2 ? world_sent(&w, from, to) : 0;
    assert_int_equal(between - joined, 2 * 2 * (1 + 2));
    assert_int_equal(actors[0].status, TSR_OK);
    world_close(&w);
}

// ---- disagreement and failures ------------------------------------------------------------------

// The last rank reduces another number of elements.
static void act_another_count(struct actor *a)
{
    struct shape shape = *(const struct shape *)a->data;
    size_t bytes = ((size_t)shape.count + 1) * sizeof(float);
    float *x = calloc(1, bytes);
    struct comm_call call = call_of(a, COMM_ALL_REDUCE, &shape, everybody);
    call.count = shape.count + (a->rank == a->w->n - 1);
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &call, x, x, &a->why);
    free(x);
}

static void test_disagreement(void **state)
{
    (void)state;
    static const int64_t counts[] = {100, 100000};
    static const char *const kinds[] = {"hosts aab", "hosts abb", "hosts aabb"};
    for (size_t i = 0; i < TSR_COUNT(counts) * TSR_COUNT(kinds); i++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        struct shape shape = {TSR_FLOAT, COMM_SUM, counts[i % 2], false};
        const char *kind = kinds[i / 2];
        world_open(&w, (int)strlen(kind) - 6, kind, 5);
        world_run(&w, actors, act_another_count, &shape);
        for (int k = 0; k < w.n; k++) {
            assert_int_equal(actors[k].status, TSR_PEER);
            assert_non_null(strstr(actors[k].why.text, "different numbers of elements"));
        }
        world_close(&w);
    }
}

// A rank of the second host leaves; all others must report it.
static void act_leave(struct actor *a)
{
    if (a->rank == a->w->n - 1)
        return;
    act_all_reduce(a);
}

static void test_ended(void **state)
{
    (void)state;
    static const int64_t counts[] = {100, 100000};
    for (size_t i = 0; i < TSR_COUNT(counts); i++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        struct shape shape = {TSR_FLOAT, COMM_SUM, counts[i], false};
        world_open(&w, 4, "hosts aabb", 30);
        world_run(&w, actors, act_leave, &shape);
        for (int k = 0; k < w.n - 1; k++) {
            assert_int_equal(actors[k].status, TSR_PEER);
            assert_non_null(strstr(actors[k].why.text, "rank 3 has ended"));
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_types),        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_disagreement), cmocka_unit_test(test_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
