// SPDX-License-Identifier: Apache-2.0
// test_player.c - steps of devices, played in time: waiting, consecutive runs, shared links.
#include "topology/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const int64_t BOTH[] = {0, 1};

struct world {
    tsr_session *session;
    tsr_topology *topology;
    struct arena arena;
    struct player player;
};

static void open_world(struct world *world, const char *topology, bool contention)
{
    *world = (struct world){.session = tsr_session_new(NULL)};
    assert_int_equal(tsr_topology_parse(world->session, topology, &world->topology), TSR_OK);
    tsr__arena_init(&world->arena, world->session);
    assert_true(tsr__player_init(&world->player, &world->arena, world->topology,
                                 tsr_topology_devices(world->topology), contention));
}

static void close_world(struct world *world)
{
    tsr__arena_free(&world->arena);
    tsr_topology_free(world->topology);
    tsr_session_free(world->session);
}

static size_t meet(struct player *player, const int64_t *devices, size_t n, int64_t ps,
                   struct player_uses uses)
{
    struct player_meeting meeting = {
        .devices = devices, .n = n, .ps = ps, .id = player->meetings.n, .uses = uses};
    size_t number = tsr__player_meeting(player, &meeting);
    for (size_t i = 0; i < n; i++)
        assert_true(tsr__player_join(player, devices[i], number));
    return number;
}

// What a device did, in the order in which it was played.
struct seen {
    struct player_span spans[16];
    size_t n;
};

static void note(void *data, const struct player_span *span)
{
    struct seen *seen = data;
    assert_true(seen->n < TSR_COUNT(seen->spans));
    if (span->device == 0)
        seen->spans[seen->n++] = *span;
}

// The example of player.c: device 0 waits for the slower device 1, which is faster afterwards.
static void devices_wait_where_they_meet(void **state)
{
    struct world world;
    struct seen seen = {.n = 0};
    struct player *player = &world.player;
    (void)state;
    open_world(&world, "cpu:2", false);
    player->observe = note;
    player->data = &seen;
    tsr__player_work(player, 0, 3);
    tsr__player_work(player, 1, 5);
    meet(player, BOTH, 2, 2, (struct player_uses){0});
    tsr__player_work(player, 0, 4);
    tsr__player_work(player, 1, 1);
    assert_true(tsr__player_play(player, 1));
    assert_true(tsr__player_end(player) == 11);
    assert_true(tsr__player_period(player) == 11);
    assert_int_equal(seen.n, 3);
    assert_true(seen.spans[1].arrived == 3 && seen.spans[1].begin == 5 && seen.spans[1].end == 7);
    seen.n = 0;
    assert_true(tsr__player_play(player, 2));
    assert_true(tsr__player_is_done(player));
    assert_true(tsr__player_end(player) == 20);
    assert_true(tsr__player_period(player) == 9);
    assert_true(seen.spans[3].run == 1 && seen.spans[3].step == 0);
    close_world(&world);
}

// Work after work is one step, unless somebody observes the steps.
static void work_is_joined(void **state)
{
    struct world world;
    (void)state;
    open_world(&world, "cpu:2", false);
    tsr__player_work(&world.player, 0, 3);
    tsr__player_work(&world.player, 0, 4);
    assert_int_equal(world.player.devices[0].steps.n, 1);
    assert_true(tsr__player_play(&world.player, 1));
    assert_true(tsr__player_end(&world.player) == 7);
    close_world(&world);
}

// Device 0 meets 1 first, and device 1 meets 0 in the other order: nobody can begin.
static void different_orders_are_not_done(void **state)
{
    struct world world;
    (void)state;
    open_world(&world, "cpu:2", false);
    struct player_meeting meeting = {.devices = BOTH, .n = 2, .ps = 1};
    size_t a = tsr__player_meeting(&world.player, &meeting);
    size_t b = tsr__player_meeting(&world.player, &meeting);
    tsr__player_join(&world.player, 0, a);
    tsr__player_join(&world.player, 0, b);
    tsr__player_join(&world.player, 1, b);
    tsr__player_join(&world.player, 1, a);
    assert_true(tsr__player_play(&world.player, 1));
    assert_false(tsr__player_is_done(&world.player));
    close_world(&world);
}

// Two pairs use one link for 4 each and take 5 alone. In consecutive runs the link serves one after
// the other, so a period is 8; in a single run they do not delay each other.
static void links_are_shared(void **state)
{
    static const int64_t even[] = {0, 2}, odd[] = {1, 3};
    struct world world;
    struct player *player = &world.player;
    (void)state;
    open_world(&world, "ring:4", true);
    assert_non_null(tsr__player_load(player));
    struct player_use use[] = {{0, 4}};
    struct player_uses uses = {use, 1};
    meet(player, even, 2, 5, uses);
    meet(player, odd, 2, 5, uses);
    assert_true(tsr__player_play(player, 1));
    assert_true(tsr__player_end(player) == 5);
    assert_true(tsr__player_play(player, 9));
    assert_true(tsr__player_period(player) == 8);
    close_world(&world);
}

// A link and the ports at its ends are occupied by the same bytes.
static void uses_have_ports(void **state)
{
    static const int pair[] = {0, 2};
    struct world world;
    (void)state;
    open_world(&world, "hosts:3x2", true);
    const tsr_topology *topology = world.topology;
    double *load = tsr__player_load(&world.player);
    tsr__topology_load(world.topology, TSR_SEND, &(struct topology_groups){1, 2, pair}, 1 << 20,
                       load);
    struct player_uses uses = tsr__player_uses(&world.player);
    size_t links = 0, ports = 0;
    for (size_t i = 0; i < uses.n; i++) {
        bool link = uses.at[i].link < topology->links.n;
        links += link;
        ports += !link;
        if (link)
            assert_true(uses.at[i].ps == load[uses.at[i].link] /
                                             topology->links.at[uses.at[i].link].bandwidth * 1e12);
    }
    assert_true(links > 0 && ports > 0);
    close_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_wait_where_they_meet),
        cmocka_unit_test(work_is_joined),
        cmocka_unit_test(different_orders_are_not_done),
        cmocka_unit_test(links_are_shared),
        cmocka_unit_test(uses_have_ports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
