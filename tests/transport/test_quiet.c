// SPDX-License-Identifier: Apache-2.0
// test_quiet.c - after a failed call the network must neither read nor write the caller's memory,
// although other ranks still make progress.
#include "world.h"

#include <sys/mman.h>
#include <time.h>

#define RANKS 3
#define PART  ((size_t)24 << 20) // so large that the transfer takes some time, even inside a host

// UCX leaks a few small blocks for each send that is never received. The sanitizer calls this
// function for its suppressions.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libucs.so\n";
}

// Buffers of a rank; they are unmapped after the call, so that an access crashes the program.
struct parts {
    char *out, *in;
};

static char *map_part(void)
{
    void *p = mmap(NULL, RANKS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    memset(p, 7, RANKS * PART);
    return p;
}

static tsr_status exchange(struct actor *actor, const struct parts *parts)
{
    int64_t group[RANKS] = {0, 1, 2};
    struct comm_buffer send[RANKS], recv[RANKS];
    for (int i = 0; i < RANKS; i++) {
        send[i] = (struct comm_buffer){parts->out + (size_t)i * PART, PART};
        recv[i] = (struct comm_buffer){parts->in + (size_t)i * PART, PART};
    }
    struct comm_call call = {.id = 1,
                             .kind = COMM_ALL_TO_ALL,
                             .type = TSR_UINT8,
                             .group = group,
                             .n_group = RANKS,
                             .op = "AllToAll",
                             .node = "node"};
    struct comm_exchange all = {.send = send, .recv = recv};
    return tsr__comm_exchange(actor_endpoint(actor), &call, &all, &actor->why);
}

static struct net *net_of(struct actor *actor)
{
    return (struct net *)actor_endpoint(actor);
}

// With mailboxes: no transfer from or to the buffers may be pending, or this rank must not call the
// network again. Other ranks read messages directly from the buffers, so these stay mapped.
static bool is_quiet_by_mail(struct actor *actor, const struct parts *parts)
{
    struct timespec nap = {0, 100000000};
    if (net_of(actor)->frozen) {
        int calls = world_calls(actor->w, actor->rank);
        nanosleep(&nap, NULL);
        return world_calls(actor->w, actor->rank) == calls;
    }
    return !world_reaches(actor->w, actor->rank, parts->out, RANKS * PART) &&
           !world_reaches(actor->w, actor->rank, parts->in, RANKS * PART);
}

// The network of rank 2 fails while parts are transferred between the others. With UCX the memory
// is unmapped as soon as the call returns, and the heartbeat threads have time to access it before
// the endpoint is closed.
static void act_fail(struct actor *actor)
{
    struct timespec nap = {0, 100000000};
    struct parts parts = {map_part(), map_part()};
    if (actor->rank == 2) {
        tsr_session *session = actor->w->own[2];
        session->fault_after[FAULT_RECEIVE] = session->fault_seen[FAULT_RECEIVE] + 3;
    }
    actor->status = exchange(actor, &parts);
    if (actor->w->boxes) {
        if (!is_quiet_by_mail(actor, &parts))
            actor->status = TSR_BUG;
    } else {
        munmap(parts.out, RANKS * PART);
        munmap(parts.in, RANKS * PART);
        nanosleep(&nap, NULL);
    }
    if (exchange(actor, &parts) == TSR_OK) // must be rejected before it accesses its memory
        actor->status = TSR_BUG;
}

static void fails_quietly(const char *kind)
{
    struct world world;
    struct actor actors[RANKS];
    world_open(&world, RANKS, kind, PATIENT);
    world_run(&world, actors, act_fail, NULL);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(actors[i].status, TSR_PEER);
        assert_string_equal(actors[i].why.text, actors[2].why.text);
    }
    world_close(&world);
}

static void test_mail(void **state)
{
    (void)state;
    fails_quietly("net");
}

static void test_ucx(void **state)
{
    (void)state;
    fails_quietly("ucx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mail),
        cmocka_unit_test(test_ucx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
