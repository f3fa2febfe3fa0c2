// SPDX-License-Identifier: Apache-2.0
// test_stages.c - pipeline stages compared with exhaustive search: every split of a chain, every
// number of devices per stage, every order of different devices. The time of a stage comes from
// planning its nodes as a separate model.
#include "nets.h"
#include "topology/topology.h"

enum { MOST = 12, CHANNELS = 16, SPACE = 8 };
// Speeds at which each operation, byte and message takes a whole number of picoseconds.
static const double SLOW = 0.0625; // so slow that sharding pays off
static const double FLOPS = 1e12, BANDWIDTH = 1e12, LATENCY = 1e-6, LINK = 1e11;

// A chain of convolutions; the kernel size determines weight and work.
struct chain {
    int n;
    int64_t kernel[MOST];
};

static int64_t weight_of(const struct chain *c, int i)
{
    return CHANNELS * CHANNELS * c->kernel[i] * c->kernel[i] * 4;
}

static int64_t weights_of(const struct chain *c, int from, int to)
{
    int64_t bytes = 0;
    for (int i = from; i < to; i++)
        bytes += weight_of(c, i);
    return bytes;
}

static tsr_value *add_chain(struct net *t, const struct chain *c, int from, int to)
{
    tsr_value *x = input(t, "x", DIMS(1, CHANNELS, SPACE, SPACE));
    for (int i = from; i < to; i++) {
        char w[16], y[16];
        int64_t k = c->kernel[i], pads[4] = {k / 2, k / 2, k / 2, k / 2};
        snprintf(w, sizeof w, "w%d", i);
        snprintf(y, sizeof y, "y%d", i);
        tsr_node *n = add_node(t, "Conv", x, weight(t, w, DIMS(CHANNELS, CHANNELS, k, k)), y);
        assert_int_equal(tsr_node_set_ints(n, "pads", pads, 4), TSR_OK);
        x = tsr_node_output(n, 0);
    }
    return x;
}

// Time of a part of the chain as a separate model.
static int64_t time_alone(const struct chain *c, int from, int to, int devices, double speed)
{
    char topology[16];
    snprintf(topology, sizeof topology, "full:%d", devices);
    struct net *t = net_new(topology, FLOPS * speed, BANDWIDTH * speed, LATENCY, LINK);
    plan(t, add_chain(t, c, from, to));
    int64_t ps = t->p.facts.cost;
    net_free(t);
    return ps;
}

// From the first device of the group to the n others, through the slowest memory.
static int64_t send_along(struct net *t, const int *group, int n, double speed)
{
    tsr_topology_price price;
    int64_t bytes = CHANNELS * SPACE * SPACE * 4;
    assert_int_equal(tsr_topology_cost(t->topology, n == 1 ? TSR_SEND : TSR_BROADCAST, group, n + 1,
                                       bytes, &price),
                     TSR_OK);
    return price.picoseconds + (int64_t)(2 * (double)bytes / speed);
}

// From one device to n others like it.
static int64_t send_time(int n, double speed)
{
    struct net *t = net_new("full:8", FLOPS * speed, BANDWIDTH * speed, LATENCY, LINK);
    int64_t ps = send_along(t, (const int[]){0, 1, 2, 3, 4, 5, 6, 7}, n, speed);
    net_free(t);
    return ps;
}

struct best {
    int64_t latency, period;
};

// `gets`: the incoming transfer of each stage, which occupies the previous stage too.
static void take(struct best *b, const int64_t *time, const int64_t *gets, int stages)
{
    int64_t sum = 0, most = 0;
    for (int k = 0; k < stages; k++) {
        sum += time[k] + gets[k];
        most = int64_max(most, time[k] + gets[k] + (k + 1 < stages ? gets[k + 1] : 0));
    }
    b->latency = sum < b->latency ? sum : b->latency;
    b->period = most < b->period ? most : b->period;
}

static void plan_stages(struct net *t, const struct chain *c, int64_t stages, tsr_objective what)
{
    t->o.stages = stages;
    t->o.objective = what;
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, c, 0, c->n)), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.bound <= t->p.facts.cost);
    // For throughput, the minimal transfer between stages of several devices is not known exactly.
    assert_true(t->p.facts.optimal || what == TSR_THROUGHPUT);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
}

// Stages must cover the chain in order, on disjoint devices, and be written into the model.
static void check_stages(const struct net *t, const struct chain *c)
{
    int64_t next = 0, stage;
    bool used[8] = {false};
    for (size_t k = 0; k < t->p.facts.n_stages; k++) {
        const tsr_plan_stage *s = &t->p.stages[k];
        assert_int_equal(s->first, next);
        assert_int_equal((int64_t)s->nodes, s->last - s->first + 1);
        next = s->last + 1;
        for (size_t d = 0; d < s->n_devices; d++) {
            assert_false(used[s->devices[d]]);
            used[s->devices[d]] = true;
        }
    }
    assert_int_equal(next, c->n);
    const tsr_config *config = tsr_model_find_config(t->m, t->p.facts.config);
    int64_t index = 0;
    for (tsr_node *n = tsr_graph_first(t->g); n; n = tsr_node_next(n), index++) {
        assert_true(tsr_node_config_stage(tsr_node_find_config(n, config), &stage));
        assert_true(t->p.stages[stage].first <= index && index <= t->p.stages[stage].last);
    }
}

// ---- eight equal layers and one heavy one, four devices ----------------------------------------

// Tries all splits into four, each part on one device; `memory` in bytes of weights.
static struct best try_cuts(const struct chain *c, int64_t memory)
{
    struct best b = {INT64_MAX, INT64_MAX};
    int64_t alone[MOST + 1][MOST + 1], send = send_time(1, 1);
    for (int i = 0; i < c->n; i++)
        for (int j = i + 1; j <= c->n; j++)
            alone[i][j] = time_alone(c, i, j, 1, 1);
    for (int x = 1; x < c->n; x++)
        for (int y = x + 1; y < c->n; y++)
            for (int z = y + 1; z < c->n; z++) {
                int cut[5] = {0, x, y, z, c->n};
                int64_t time[4], gets[4] = {0, send, send, send};
                bool fits = true;
                for (int k = 0; k < 4; k++) {
                    time[k] = alone[cut[k]][cut[k + 1]];
                    fits = fits && weights_of(c, cut[k], cut[k + 1]) <= memory;
                }
                if (fits)
                    take(&b, time, gets, 4);
            }
    return b;
}

static void a_chain_is_cut_best(void **state)
{
    (void)state;
    static const int64_t slack = 64 << 10; // for activations
    for (int heavy = 0; heavy < 9; heavy += 2)
        for (int limited = 0; limited < 2; limited++) {
            struct chain c = {.n = 9, .kernel = {3, 3, 3, 3, 3, 3, 3, 3, 3}};
            c.kernel[heavy] = 9;
            // the heavy layer and one more, or as many others as fill the same memory
            int64_t room = limited ? weight_of(&c, heavy) + CHANNELS * CHANNELS * 9 * 4 : 1 << 28;
            struct best want = try_cuts(&c, room);
            for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
                struct net *t = net_new("full:4", FLOPS, BANDWIDTH, LATENCY, LINK);
                t->o.memory = room + slack / 16;
                plan_stages(t, &c, 4, (tsr_objective)what);
                check_stages(t, &c);
                assert_true(t->p.facts.optimal);
                assert_int_equal(t->p.facts.n_stages, 4);
                assert_int_equal(t->p.facts.cost, what == TSR_LATENCY ? want.latency : want.period);
                assert_int_equal(t->p.facts.latency >= want.latency, 1);
                assert_int_equal(t->p.facts.period >= want.period, 1);
                net_free(t);
            }
        }
}

// Every split of eight equal layers has the same latency: the one with the best period is chosen.
static void equal_latency_has_the_best_period(void **state)
{
    (void)state;
    struct chain c = {.n = 8, .kernel = {3, 3, 3, 3, 3, 3, 3, 3}};
    int64_t period[2], latency[2];
    for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
        struct net *t = net_new("full:2", FLOPS, BANDWIDTH, LATENCY, LINK);
        plan_stages(t, &c, 2, (tsr_objective)what);
        period[what] = t->p.facts.period;
        latency[what] = t->p.facts.latency;
        net_free(t);
    }
    assert_int_equal(latency[TSR_LATENCY], latency[TSR_THROUGHPUT]);
    assert_int_equal(period[TSR_LATENCY], period[TSR_THROUGHPUT]);
}

// ---- stages of several devices -----------------------------------------------------------------

// Two stages on four devices: tries all splits and all block sizes. A stage costs what its nodes
// cost as a separate model.
static void stages_share_devices_best(void **state)
{
    (void)state;
    struct chain c = {.n = 5, .kernel = {9, 11, 7, 11, 9}};
    struct best want = {INT64_MAX, INT64_MAX};
    for (int cut = 1; cut < c.n; cut++)
        for (int a = 1; a < 4; a++)
            for (int b = 1; a + b <= 4; b++) {
                int64_t time[2] = {time_alone(&c, 0, cut, a, SLOW),
                                   time_alone(&c, cut, c.n, b, SLOW)};
                take(&want, time, (int64_t[]){0, send_time(b, SLOW)}, 2);
            }
    for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
        struct net *t = net_new("full:4", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
        plan_stages(t, &c, 2, (tsr_objective)what);
        check_stages(t, &c);
        // All stages are planned together, and values that cross stages may be sharded.
        if (what == TSR_LATENCY)
            assert_true(t->p.facts.cost <= want.latency && t->p.facts.optimal);
        else
            assert_true(t->p.facts.cost <= want.period && t->p.facts.cost == t->p.facts.period);
        assert_true(t->p.stages[0].n_devices + t->p.stages[1].n_devices > 2);
        net_free(t);
    }
}

// A limit that the plan without a limit keeps does not change it: each stage has a limit of its own.
static void enough_memory_changes_nothing(void **state)
{
    (void)state;
    struct chain c = {.n = 5, .kernel = {9, 11, 7, 11, 9}};
    int64_t cost = 0, most = 0;
    for (int limited = 0; limited < 2; limited++) {
        struct net *t = net_new("full:4", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
        t->o.memory = limited ? most + most / 16 : 1 << 30;
        plan_stages(t, &c, 2, TSR_LATENCY);
        if (limited)
            assert_int_equal(t->p.facts.cost, cost);
        cost = t->p.facts.cost;
        for (int device = 0; device < 4; device++)
            most = int64_max(most, t->p.facts.memory[device]);
        net_free(t);
    }
}

// Returns what plans are compared by: the period of a pipeline, or the played time of one run.
static int64_t compared_time(const struct net *t, int what)
{
    bool period = what == TSR_THROUGHPUT && t->p.facts.n_stages > 0;
    return period ? t->p.facts.cost : (int64_t)(t->p.facts.milliseconds * 1e9 + 0.5);
}

// The planner chooses the number of stages; one stage on all devices is a plan without stages.
static void the_number_of_stages_is_chosen(void **state)
{
    (void)state;
    struct chain c = {.n = 4, .kernel = {9, 11, 11, 9}};
    int64_t whole = time_alone(&c, 0, c.n, 4, SLOW), least = INT64_MAX, period = INT64_MAX;
    for (int64_t k = 1; k <= 4; k++)
        for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
            struct net *t = net_new("full:4", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
            plan_stages(t, &c, k, (tsr_objective)what);
            int64_t *best = what == TSR_LATENCY ? &least : &period;
            *best = compared_time(t, what) < *best ? compared_time(t, what) : *best;
            net_free(t);
        }
    assert_true(least <= whole);
    for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
        struct net *t = net_new("full:4", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
        plan_stages(t, &c, TSR_STAGES_AUTO, (tsr_objective)what);
        assert_int_equal(compared_time(t, what), what == TSR_LATENCY ? least : period);
        net_free(t);
    }
}

// Stages are compared with a plan without stages, which has further candidates: partial sums that
// are added before they are reduced. Two products are added, and only their sum is reduced.
static void no_stages_may_be_best(void **state)
{
    (void)state;
    int64_t cost[2];
    for (int i = 0; i < 2; i++) {
        struct net *t = net_new("full:2", 1e9, 1e12, 1e-7, 1e9);
        tsr_value *x = input(t, "x", DIMS(8, 512));
        tsr_value *a = node(t, "MatMul", x, weight(t, "a", DIMS(512, 64)), "xa");
        tsr_value *b = node(t, "MatMul", x, weight(t, "b", DIMS(512, 64)), "xb");
        assert_int_equal(tsr_graph_add_output(t->g, node(t, "Add", a, b, "y")), TSR_OK);
        t->o.stages = i ? TSR_STAGES_AUTO : 0;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        cost[i] = t->p.facts.cost;
        assert_true(t->p.facts.optimal && t->p.facts.bound == t->p.facts.cost);
        net_free(t);
    }
    assert_int_equal(cost[0], cost[1]);
}

// ---- unlike devices ----------------------------------------------------------------------------

static struct net *unlike(const int64_t *memory, const double *speed)
{
    struct net *t = net_new("full:3", FLOPS, BANDWIDTH, LATENCY, LINK);
    t->o.memory = 0; // use the memory of the devices
    for (int d = 0; d < 3; d++) {
        tsr_topology_device x = {.flops = FLOPS * speed[d], .bandwidth = BANDWIDTH * speed[d]};
        x.memory = memory[d] + (20 << 10);
        tsr_topology_set_device(t->topology, d, &x);
    }
    return t;
}

// Outputs stay on the device of the last stage, so that no order pays for returning them.
static const int ORDERS[6][3] = {{1, 2, 0}, {2, 1, 0}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 0, 1}};

static int64_t send_pair(struct net *t, int from, int to, const double *speed)
{
    return send_along(t, (const int[]){from, to}, 1,
                      speed[from] < speed[to] ? speed[from] : speed[to]);
}

// Tries all splits into three, on the devices in every order in which equal devices are descending.
static struct best try_orders(const struct chain *c, const int64_t *memory, const double *speed)
{
    bool alike = memory[1] == memory[2] && speed[1] == speed[2];
    struct best b = {INT64_MAX, INT64_MAX};
    struct net *t = unlike(memory, speed);
    for (int o = 0; o < 6; o++)
        for (int x = 1; x < c->n && !(alike && o % 2 == 0); x++)
            for (int y = x + 1; y < c->n; y++) {
                int cut[4] = {0, x, y, c->n};
                int64_t time[3], gets[3] = {0, send_pair(t, ORDERS[o][0], ORDERS[o][1], speed),
                                            send_pair(t, ORDERS[o][1], ORDERS[o][2], speed)};
                bool fits = true;
                for (int k = 0; k < 3 && fits; k++)
                    fits = weights_of(c, cut[k], cut[k + 1]) <= memory[ORDERS[o][k]];
                for (int k = 0; k < 3 && fits; k++)
                    time[k] = time_alone(c, cut[k], cut[k + 1], 1, speed[ORDERS[o][k]]);
                if (fits)
                    take(&b, time, gets, 3);
            }
    net_free(t);
    return b;
}

// Memories of 80, 24 and 24: the stages are unequal, and the large layer decides the position of
// the large device.
static void unlike_memories_give_unlike_stages(void **state)
{
    (void)state;
    static const double speed[3] = {1, 1, 1};
    int64_t unit = CHANNELS * CHANNELS * 25 * 4; // of a layer of kernel 5
    int64_t memory[3] = {10 * unit, 3 * unit, 3 * unit};
    for (int large = 0; large < 10; large += 3) {
        struct chain c = {.n = 10, .kernel = {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}};
        c.kernel[large] = 11; // weighs 4.84 units
        struct best want = try_orders(&c, memory, speed);
        for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
            struct net *t = unlike(memory, speed);
            plan_stages(t, &c, 3, (tsr_objective)what);
            check_stages(t, &c);
            for (size_t k = 0; k < 3; k++) {
                const tsr_plan_stage *s = &t->p.stages[k];
                int64_t d = s->devices[0];
                assert_true(weights_of(&c, (int)s->first, (int)s->last + 1) <= memory[d]);
                assert_true(s->memory <= memory[d] + (20 << 10));
                assert_int_equal(s->memory, t->p.facts.memory[d]);
                if (s->first <= large && large <= s->last)
                    assert_int_equal(d, 0);
            }
            assert_true(t->p.facts.optimal);
            assert_int_equal(t->p.facts.cost, what == TSR_LATENCY ? want.latency : want.period);
            net_free(t);
        }
    }
}

// A device four times as fast gets the most work.
static void unlike_speeds_give_unlike_stages(void **state)
{
    (void)state;
    static const double speed[3] = {1 / 64.0, 4 / 64.0, 2 / 64.0};
    static const int64_t memory[3] = {1 << 30, 1 << 30, 1 << 30};
    struct chain c = {.n = 7, .kernel = {9, 9, 9, 9, 9, 9, 9}};
    struct best want = try_orders(&c, memory, speed);
    struct net *t = unlike(memory, speed);
    plan_stages(t, &c, 3, TSR_THROUGHPUT);
    check_stages(t, &c);
    assert_int_equal(t->p.facts.cost, want.period);
    size_t by_device[3];
    for (size_t k = 0; k < 3; k++)
        by_device[t->p.stages[k].devices[0]] = t->p.stages[k].nodes;
    assert_true(by_device[1] > by_device[2] && by_device[2] >= by_device[0]);
    net_free(t);
}

// The chosen candidate costs what the plan costs, and no other is cheaper.
static size_t explain(const struct chain *c, const char *node, tsr_objective what)
{
    struct net *t = net_new("full:4", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
    size_t chosen = 0;
    t->o.explain = node;
    plan_stages(t, c, 2, what);
    for (size_t i = 0; i < t->p.facts.n_choices; i++) {
        const tsr_plan_choice *x = &t->p.choices[i];
        chosen += x->chosen;
        assert_true(!x->chosen || x->cost == t->p.facts.cost);
        assert_true(!x->feasible || x->cost >= t->p.facts.cost);
    }
    assert_int_equal(chosen, 1);
    size_t n = t->p.facts.n_choices;
    t->o.explain = "nobody";
    t->o.config = "again";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    net_free(t);
    return n;
}

static void choices_are_explained(void **state)
{
    (void)state;
    struct chain c = {.n = 5, .kernel = {9, 11, 7, 11, 9}};
    size_t several = 0;
    for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++)
        for (int i = 0; i < c.n; i++)
            several += explain(&c, (const char *[]){"y0", "y1", "y2", "y3", "y4"}[i],
                               (tsr_objective)what) > 1;
    assert_true(several > 0);
}

// Hosts without a link between them: no pipeline of hosts, but a plan on one of them.
static void hosts_may_be_apart(void **state)
{
    (void)state;
    struct chain c = {.n = 4, .kernel = {9, 9, 9, 9}};
    struct net *t = net_new("{\"devices\": [{}, {}, {}, {}], \"host\": 2, \"links\": ["
                            "{\"from\": 0, \"to\": 1, \"both\": true},"
                            "{\"from\": 2, \"to\": 3, \"both\": true}]}",
                            FLOPS, BANDWIDTH, LATENCY, LINK);
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.n_stages == 0);
    net_free(t);
}

// ---- rejected requests -------------------------------------------------------------------------

// If the stages do not fit, the reported memory need must be exact: it fits with it, and not with
// one byte less.
static void no_room_is_told(void **state)
{
    (void)state;
    struct chain c = {.n = 4, .kernel = {9, 9, 9, 9}};
    struct net *t = net_new("full:2", FLOPS, BANDWIDTH, LATENCY, LINK);
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
    t->o.stages = 2;
    t->o.memory = weight_of(&c, 0);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_int_equal(tsr_model_config_count(t->m), 0);
    int64_t needs = t->p.facts.needs_bytes;
    assert_true(needs > t->o.memory);
    t->o.memory = needs - 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    t->o.memory = needs;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    net_free(t);
}

// Shares of devices that are no power of two, or that blocks never have.
static void any_share_of_devices_is_planned(void **state)
{
    (void)state;
    static const struct {
        const char *devices;
        int64_t stages;
    } cases[] = {{"full:6", 2}, {"full:10", 3}, {"ring:9", 3}, {"full:7", 2}};
    struct chain c = {.n = MOST, .kernel = {3, 5, 7, 9, 3, 5, 7, 9, 3, 5, 7, 9}};
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct net *t = net_new(cases[i].devices, FLOPS, BANDWIDTH, LATENCY, LINK);
        t->o.stages = cases[i].stages;
        assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_int_equal(t->p.facts.n_stages, cases[i].stages);
        net_free(t);
    }
}

static void too_many_stages_are_refused(void **state)
{
    (void)state;
    struct chain c = {.n = 3, .kernel = {3, 3, 3}};
    struct net *t = net_new("full:8", FLOPS, BANDWIDTH, LATENCY, LINK);
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
    t->o.stages = 4;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-stages");
    net_free(t);
}

// The same model and options give the same plan, and every failing allocation is reported.
static void memory_may_fail(void **state)
{
    (void)state;
    struct chain c = {.n = 3, .kernel = {3, 5, 3}};
    bool done = false;
    for (uint64_t n = 1; !done && n < 1000000; n += 1 + n / 6) {
        struct net *t = net_new("full:2", FLOPS, BANDWIDTH, LATENCY, LINK);
        assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
        t->o.stages = 2;
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        tsr__session_fault(t->session, 0, 0, false);
        // a route that could not be allocated counts as missing
        assert_true(st == TSR_OK || st == TSR_NOMEM || st == TSR_INFEASIBLE);
        assert_true(st == TSR_OK || tsr_finding_count(t->session) > 0);
        if (st != TSR_OK)
            assert_string_equal(tsr_finding_value(t->session, 0).code, "out-of-memory");
        done = st == TSR_OK;
        net_free(t);
    }
    assert_true(done);
}

// A model that returns its input has no nodes, so there is nothing to divide into stages.
static void nothing_is_divided(void **state)
{
    (void)state;
    struct net *t = net_new("full:2", FLOPS, BANDWIDTH, LATENCY, LINK);
    assert_int_equal(tsr_graph_add_output(t->g, input(t, "x", DIMS(4, 8))), TSR_OK);
    t->o.stages = TSR_STAGES_AUTO;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.cost, 0);
    net_free(t);
}

// Six stages send through one port of the network. In each run the port carries five transfers,
// which limit the period, although no stage takes part in more than two.
static void stages_share_a_port(void **state)
{
    (void)state;
    const double network = 1e8; // bytes per second
    const struct chain c = {6, {1, 1, 1, 1, 1, 1}};
    struct net *t = net_new("hosts:6x1", 1e15, 1e15, 1e-9, network);
    for (size_t i = 0; i < t->topology->links.n; i++)
        t->topology->links.at[i].out_port = t->topology->links.at[i].in_port = 0;
    t->topology->ports.at[0].bandwidth = network;
    t->o.stages = c.n;
    t->o.objective = TSR_THROUGHPUT;
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.n_stages, c.n);
    double transfer = CHANNELS * SPACE * SPACE * 4 / network * 1e12;
    double period = (double)t->p.facts.period;
    assert_true(period > 4.99 * transfer && period < 5.2 * transfer);
    net_free(t);
}

// Two hosts of two devices with a slow network, and memory for half of the weights on each host.
static struct net *two_hosts(double network_latency, int64_t stages)
{
    const struct chain c = {8, {3, 3, 3, 3, 3, 3, 3, 3}};
    struct net *t = net_new("hosts:2x2", FLOPS * SLOW, BANDWIDTH * SLOW, LATENCY, LINK);
    for (size_t i = 0; i < t->topology->links.n; i++) {
        struct topology_link *link = &t->topology->links.at[i];
        if (link->from / 2 != link->to / 2)
            link->latency = network_latency;
    }
    t->o.memory = weights_of(&c, 0, c.n) / 4 + 4 * CHANNELS * SPACE * SPACE * 4;
    t->o.stages = stages;
    assert_int_equal(tsr_graph_add_output(t->g, add_chain(t, &c, 0, c.n)), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    return t;
}

static const tsr_plan_expert *find_expert(const struct net *t, const char *begin)
{
    for (size_t i = 0; i < t->p.facts.n_compared; i++)
        if (strncmp(t->p.compared[i].name, begin, strlen(begin)) == 0)
            return &t->p.compared[i];
    return NULL;
}

// With a slow network, sharding each node over both hosts communicates in every layer. A stage on
// each host communicates once, so the pipeline is the plan, although no stages were requested.
static void a_pipeline_of_hosts_may_win(void **state)
{
    (void)state;
    struct net *t = two_hosts(1e-3, 0);
    const tsr_plan_expert *pipeline = find_expert(t, "pipeline of hosts");
    assert_non_null(pipeline);
    assert_true(pipeline->fits);
    assert_int_equal(t->p.facts.n_stages, 2);
    assert_int_equal(t->p.stages[0].devices[0], 2); // the host of device 0 returns the outputs
    assert_int_equal(t->p.stages[1].devices[0], 0);
    assert_in_range(t->p.facts.latency, 1000000000, 1999999999); // one transfer of 1 ms
    assert_true(pipeline->milliseconds * 1e9 - (double)t->p.facts.latency < 1);
    assert_string_equal(pipeline->reason, "as fast as the plan");
    for (size_t i = 0; i < t->p.facts.n_compared; i++)
        assert_true(!t->p.compared[i].fits ||
                    t->p.compared[i].milliseconds * 1e9 + 1 >= (double)t->p.facts.latency);
    net_free(t);
}

// stages = 1 must give no pipeline, although it would be faster.
static void one_stage_forbids_pipelines(void **state)
{
    (void)state;
    struct net *any = two_hosts(1e-3, 0), *one = two_hosts(1e-3, 1);
    assert_int_equal(any->p.facts.n_stages, 2);
    assert_int_equal(one->p.facts.n_stages, 0);
    assert_null(find_expert(one, "pipeline of hosts"));
    assert_true(one->p.facts.milliseconds * 1e9 > (double)any->p.facts.latency);
    net_free(any);
    net_free(one);
}

// With a fast network the pipeline is listed with the reason why it lost.
static void a_pipeline_of_hosts_may_lose(void **state)
{
    (void)state;
    struct net *t = two_hosts(LATENCY, 0);
    const tsr_plan_expert *pipeline = find_expert(t, "pipeline of hosts");
    const tsr_plan_expert *alone = find_expert(t, "data parallel on");
    if (!alone)
        alone = find_expert(t, "one device");
    assert_non_null(pipeline);
    assert_int_equal(t->p.facts.n_stages, 0);
    assert_true(pipeline->milliseconds > t->p.facts.milliseconds);
    assert_non_null(strstr(pipeline->reason, "slower by "));
    assert_non_null(strstr(pipeline->reason, "more computation"));
    assert_true(pipeline->communication_ms < pipeline->milliseconds);
    assert_non_null(alone); // all weights exceed the memory of one device
    assert_false(alone->fits);
    assert_true(alone->needs_bytes > t->o.memory);
    assert_non_null(strstr(alone->reason, "per device, the limit is "));
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_share_a_port),
        cmocka_unit_test(a_pipeline_of_hosts_may_win),
        cmocka_unit_test(one_stage_forbids_pipelines),
        cmocka_unit_test(a_pipeline_of_hosts_may_lose),
        cmocka_unit_test(a_chain_is_cut_best),
        cmocka_unit_test(equal_latency_has_the_best_period),
        cmocka_unit_test(nothing_is_divided),
        cmocka_unit_test(stages_share_devices_best),
        cmocka_unit_test(enough_memory_changes_nothing),
        cmocka_unit_test(the_number_of_stages_is_chosen),
        cmocka_unit_test(no_stages_may_be_best),
        cmocka_unit_test(unlike_memories_give_unlike_stages),
        cmocka_unit_test(unlike_speeds_give_unlike_stages),
        cmocka_unit_test(choices_are_explained),
        cmocka_unit_test(hosts_may_be_apart),
        cmocka_unit_test(no_room_is_told),
        cmocka_unit_test(any_share_of_devices_is_planned),
        cmocka_unit_test(too_many_stages_are_refused),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
