// SPDX-License-Identifier: Apache-2.0
// test_net.c - ranks as processes: number of messages of an all-reduce, cleanup if an endpoint
// cannot be opened, and barriers of very many ranks.
#include "world.h"

#include <stdlib.h>

// ---- messages of an all-reduce -----------------------------------------------------------------

// Sums *data ones over all ranks.
static void act_reduce(struct actor *a)
{
    int64_t group[MAX_WORLD], count = *(int64_t *)a->data;
    float *numbers = malloc((size_t)count * sizeof *numbers);
    for (int i = 0; i < a->w->n; i++)
        group[i] = i;
    for (int64_t i = 0; i < count; i++)
        numbers[i] = 1;
    struct comm_call call = {.id = 1,
                             .kind = COMM_ALL_REDUCE,
                             .reduce = COMM_SUM,
                             .type = TSR_FLOAT,
                             .count = count,
                             .group = group,
                             .n_group = a->w->n,
                             .op = "AllReduce",
                             .node = "node"};
    a->status = tsr__comm_all_reduce(actor_endpoint(a), &call, numbers, numbers, &a->why);
    for (int64_t i = 0; i < count; i++)
        if (a->status == TSR_OK && numbers[i] != (float)a->w->n)
            a->status = TSR_BUG;
    free(numbers);
}

// Number of messages that a rank sends to the next one in an all-reduce. Each additional message
// costs time in every run.
static void test_reduce_messages(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        int n;
        int64_t bytes;
        int messages;
    } cases[] = {
        {"net", 2, 4 << 10, 1},   // all in one frame
        {"net", 2, 64 << 10, 1},  // the largest size that fits
        {"net", 2, 128 << 10, 2}, // half of it in the frame, then the reduced half
        {"net", 2, 1 << 20, 6},   // 64 + 256 + 192 KiB of the other's slice, and of this one's
        {"net", 4, 4 << 10, 1},
        {"net", 4, 64 << 10, 2},  // a quarter in the frame, then a reduced quarter
        {"net", 4, 256 << 10, 4}, // 21 + 43 KiB
        {"net", 8, 8 << 10, 1},
        {"crowded", 2, 64 << 10, 1},
        {"crowded", 4, 64 << 10, 0}, // except to and from the first rank
        {"crowded", 4, 128 << 10, 4},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        int64_t count = cases[i].bytes / (int64_t)sizeof(float);
        world_open(&w, cases[i].n, cases[i].kind, PATIENT);
        world_run(&w, actors, act_reduce, &count);
        for (int k = 0; k < w.n; k++) {
            int next = (k + 1) % w.n;
            bool head = k == 0 || next == 0;
            assert_int_equal(actors[k].status, TSR_OK);
            assert_int_equal(world_sent(&w, k, next),
                             head && cases[i].messages == 0 ? 1 : cases[i].messages);
        }
        world_close(&w);
    }
}

// ---- opening -----------------------------------------------------------------------------------

static int closed_links;

static void close_link(struct link *link)
{
    (void)link;
    closed_links++;
}

static bool flush_link(struct link *link)
{
    (void)link;
    return true;
}

// If creating an endpoint fails anywhere, the link that it owns must be closed.
static void test_open_fails(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        uint64_t after;
    } faults[] = {{FAULT_ALLOC, 1}, {FAULT_ALLOC, 2}, {FAULT_SPAWN, 1}};
    for (size_t i = 0; i < TSR_COUNT(faults); i++) {
        struct link link = {
            .abi = LINK_ABI, .size = 1, .threads = true, .close = close_link, .flush = flush_link};
        struct endpoint *endpoint;
        tsr_session *session = tsr_session_new(NULL);
        session->fault_after[faults[i].kind] =
            session->fault_seen[faults[i].kind] + faults[i].after;
        closed_links = 0;
        assert_int_not_equal(tsr__net_open(session, &link, NULL, 1, NULL, &endpoint), TSR_OK);
        assert_int_equal(closed_links, 1);
        tsr_session_free(session);
    }
}

// ---- barriers ----------------------------------------------------------------------------------

#define STEPS 5 // steps of a barrier of COMM_MAX_RANKS
// Number of ranks that arrived in a group: met[step of the barrier][first rank of the group].
static int met[STEPS][COMM_MAX_RANKS];
static int group_of[STEPS][COMM_MAX_RANKS]; // 1 + first rank of the group of a rank; 0: no group
static int last_step;

static tsr_status note_meeting(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_exchange *exchange, struct comm_trouble *why)
{
    (void)exchange;
    (void)why;
    assert_in_range(call->id, 0, STEPS - 1);
    group_of[call->id][endpoint->rank] = 1 + (int)call->group[0];
    if (call->id > last_step)
        last_step = (int)call->id;
    int *ranks = &met[call->id][call->group[0]];
    assert_true(*ranks < call->n_group);
    if (++*ranks == call->n_group)
        *ranks = 0; // all have arrived
    return TSR_OK;
}

// A rank sends all its data and ends; the other sees the end before the data arrive.
static void test_last_words(void **state)
{
    (void)state;
    struct world w;
    struct actor actors[MAX_WORLD];
    int64_t count = 16;
    world_open(&w, 2, "net", PATIENT);
    world_delay(&w, 1, 0.3);
    world_run(&w, actors, act_reduce, &count);
    for (int i = 0; i < 2; i++)
        assert_int_equal(actors[i].status, TSR_OK);
    world_close(&w);
}

// Computes, step by step, for how many ranks a rank knows that they have arrived. In the first half
// of the steps the members of a group know different ranks, so the numbers are added. Then the
// first member knows all, and the others learn it. Every rank must know all ranks in the end.
static void assert_all_have_met(int size)
{
    static int known[COMM_MAX_RANKS], sum[COMM_MAX_RANKS];
    for (int rank = 0; rank < size; rank++)
        known[rank] = 1;
    for (int step = 0; step <= last_step; step++) {
        memset(sum, 0, sizeof sum);
        for (int rank = 0; rank < size; rank++) {
            int first = group_of[step][rank] - 1;
            if (first >= 0 && step <= last_step / 2)
                sum[first] += known[rank];
            else if (first >= 0 && known[rank] > sum[first])
                sum[first] = known[rank];
        }
        for (int rank = 0; rank < size; rank++)
            if (group_of[step][rank])
                known[rank] = sum[group_of[step][rank] - 1];
    }
    for (int rank = 0; rank < size; rank++)
        assert_int_equal(known[rank], size);
}

// Runs the steps of each rank one after the other: every member of a group must take part in its
// step, and the steps together must connect all ranks.
static void test_large_barrier(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 64, 65, 100, 4096, 4097, 5000, COMM_MAX_RANKS};
    static const struct transport noting = {.name = "noting", .exchange = note_meeting};
    for (size_t i = 0; i < TSR_COUNT(sizes); i++) {
        struct comm_trouble why = {0};
        memset(group_of, 0, sizeof group_of);
        last_step = 0;
        for (int rank = 0; rank < sizes[i]; rank++) {
            struct endpoint endpoint = {.transport = &noting, .rank = rank, .size = sizes[i]};
            assert_int_equal(tsr__comm_barrier(&endpoint, 1, "many", &why), TSR_OK);
        }
        for (int step = 0; step < STEPS; step++)
            for (int first = 0; first < sizes[i]; first++)
                assert_int_equal(met[step][first], 0);
        assert_all_have_met(sizes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_messages),
        cmocka_unit_test(test_open_fails),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_large_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
