// SPDX-License-Identifier: Apache-2.0
// test_gifts.c - data that ranks send to rank 0 outside of collectives ("gifts") must arrive
// complete and in order. If a send, a receive or an allocation fails, both sides must report it and
// not hang.
#include "world.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RUNS  3
#define BYTES ((size_t)3 << 20) // several messages

static const int64_t everybody[] = {0, 1, 2, 3, 4, 5, 6, 7};

// Which call of a kind fails on which rank; number 0: none.
struct fault {
    enum fault_kind kind;
    int rank;
    uint64_t number;
};

static struct comm_call call_of(const struct actor *a, uint64_t run)
{
    return (struct comm_call){.plan = 42,
                              .id = -2,
                              .run = run,
                              .kind = COMM_SEND,
                              .type = TSR_UINT8,
                              .group = everybody,
                              .n_group = a->w->n,
                              .op = "output",
                              .node = "gift"};
}

// Run 0 sends nothing; the other runs send bytes that identify the run and the rank.
static size_t bytes_of(uint64_t run)
{
    return run == 0 ? 0 : BYTES + (size_t)run;
}

static unsigned char byte_of(uint64_t run, int rank, size_t i)
{
    return (unsigned char)(run * 31 + (uint64_t)rank * 7 + i);
}

static int make_gift(uint64_t run, int rank)
{
    size_t bytes = bytes_of(run);
    int fd = memfd_create("gift", MFD_CLOEXEC);
    unsigned char *p = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        p[i] = byte_of(run, rank, i);
    assert_true(write(fd, p, bytes) == (ssize_t)bytes);
    free(p);
    return fd;
}

static bool is_gift(int fd, size_t bytes, uint64_t run, int rank)
{
    unsigned char *p = malloc(bytes + 1);
    bool same = bytes == bytes_of(run) && pread(fd, p, bytes, 0) == (ssize_t)bytes;
    for (size_t i = 0; same && i < bytes; i++)
        same = p[i] == byte_of(run, rank, i);
    free(p);
    return same;
}

static void give_all(struct actor *a)
{
    for (uint64_t run = 0; run < RUNS; run++) {
        struct comm_call call = call_of(a, run);
        a->status = tsr__comm_give(actor_endpoint(a), &call, make_gift(run, a->rank), bytes_of(run),
                                   &a->why);
        if (a->status != TSR_OK)
            return;
    }
    for (uint64_t run = 0; run < RUNS; run++) {
        struct comm_call call = call_of(a, run);
        a->status = tsr__comm_settle(actor_endpoint(a), &call, &a->why);
        if (a->status != TSR_OK)
            return;
    }
}

static void take_all(struct actor *a)
{
    for (uint64_t run = 0; run < RUNS; run++)
        for (int from = 1; from < a->w->n; from++) {
            struct comm_call call = call_of(a, run);
            int fd = -1;
            size_t bytes = 0;
            a->status = tsr__comm_take(actor_endpoint(a), &call, from, &fd, &bytes, &a->why);
            if (a->status != TSR_OK)
                return;
            if (!is_gift(fd, bytes, run, from))
                a->status = TSR_DIFFERENT;
            close(fd);
        }
}

static void act(struct actor *a)
{
    const struct fault *f = a->data;
    tsr_session *own = a->w->own[a->rank] ? a->w->own[a->rank] : a->w->session;
    if (f->number && f->rank == a->rank)
        tsr__session_fault(own, (int)f->kind, f->number, false);
    if (a->rank == 0)
        take_all(a);
    else
        give_all(a);
}

static void test_arrives(void **state)
{
    static const char *const kinds[] = {"net", "shm", "ucx"};
    (void)state;
    for (int k = 0; k < 3; k++)
        for (int n = 2; n <= 4; n++) {
            struct world w;
            struct actor actors[MAX_WORLD];
            struct fault none = {0};
            world_open(&w, n, kinds[k], PATIENT);
            world_run(&w, actors, act, &none);
            for (int i = 0; i < n; i++)
                assert_int_equal(actors[i].status, TSR_OK);
            world_close(&w);
        }
}

// Lets each call of this kind fail in turn, until a job has no more of them. Returns their number.
static int fail_each(const char *kind, enum fault_kind what, int rank)
{
    for (uint64_t number = 1; number < 1000; number++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        struct fault f = {what, rank, number};
        double before = tsr__now_s();
        world_open(&w, 2, kind, 5);
        world_run(&w, actors, act, &f);
        bool good = actors[0].status == TSR_OK && actors[1].status == TSR_OK;
        // the failing rank has an error with a reason; the other may have finished before
        if (!good) {
            assert_int_not_equal(actors[rank].status, TSR_OK);
            assert_true(actors[rank].why.text[0] != 0);
            assert_int_not_equal(actors[0].status, TSR_DIFFERENT);
        }
        assert_true(tsr__now_s() - before < 10);
        world_close(&w);
        if (good)
            return (int)number - 1;
    }
    return 1000;
}

static void test_faults(void **state)
{
    (void)state;
    assert_true(fail_each("net", FAULT_SEND, 1) >= 1 + 2 * 2);
    assert_true(fail_each("net", FAULT_RECEIVE, 0) >= 1 + 2 * 2);
    assert_true(fail_each("net", FAULT_ALLOC, 1) >= 1);
    assert_true(fail_each("shm", FAULT_RECEIVE, 0) == RUNS);
}

// Rank 1 sends more than rank 0 accepts at a time. Rank 0 waits for it and must get its error.
static void act_many(struct actor *a)
{
    if (a->rank == 0) {
        a->status = tsr__comm_barrier(actor_endpoint(a), 1, "after the gifts", &a->why);
        return;
    }
    for (uint64_t run = 0; run <= COMM_GIFTS && a->status == TSR_OK; run++) {
        struct comm_call call = call_of(a, run);
        a->status =
            tsr__comm_give(actor_endpoint(a), &call, memfd_create("gift", MFD_CLOEXEC), 0, &a->why);
    }
}

static void test_too_many(void **state)
{
    static const char *const kinds[] = {"net", "shm"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct world w;
        struct actor actors[MAX_WORLD];
        world_open(&w, 2, kinds[k], 5);
        world_run(&w, actors, act_many, NULL);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(actors[rank].status, TSR_BUG);
            assert_non_null(strstr(actors[rank].why.text, "rank 1 returns more data than rank 0"));
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrives),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
