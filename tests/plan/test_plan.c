// SPDX-License-Identifier: Apache-2.0
// test_plan.c - plans of small models: what is written into the model, limits, rejected requests.
#include "nets.h"
#include "topology/topology.h"

#include <math.h>
#include <unistd.h>

// y = x W1 W2 on 4 devices.
static struct net *two_layers(const char *devices)
{
    struct net *t = net_new(devices, 1e15, 1e15, 1e-9, 1e9);
    tsr_value *h =
        node(t, "MatMul", input(t, "x", DIMS(8, 64)), weight(t, "w1", DIMS(64, 128)), "h");
    tsr_value *y = node(t, "MatMul", h, weight(t, "w2", DIMS(128, 64)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    return t;
}

// Sharding inference must reproduce the complete plan from the model.
static void written_plan_is_followed(void **state)
{
    (void)state;
    struct net *t = two_layers("4");
    t->o.memory = 40000; // replicated weights do not fit
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.optimal);
    assert_string_equal(t->p.facts.config, "plan4");
    for (size_t i = 0; i < t->p.facts.devices; i++)
        assert_in_range(t->p.facts.memory[i], 65536 / 4, 40000);
    tsr_config *c = tsr_model_find_config(t->m, t->p.facts.config);
    size_t findings = tsr_finding_count(t->session);
    struct flow *f = tsr__flow_new(&t->arena, t->m, c);
    assert_non_null(f);
    assert_int_equal(f->n_nodes, 2);
    for (size_t i = 0; i < f->n_nodes; i++)
        assert_null(f->nodes[i].replicated);
    assert_int_equal(tsr_finding_count(t->session), findings); // no resharding
    assert_int_equal(t->p.facts.cut_nodes, 2);
    net_free(t);
}

// Predicted time in picoseconds of one node with 1024 x 1024 elements in and out (8 MiB), on a
// device with 1e9 bytes per second.
static int64_t price_of(const char *op, const tsr_topology_device *device)
{
    struct net *t = net_new("2", 1e15, 1e9, 1e-9, 1e9);
    tsr_value *y = node(t, op, input(t, "x", DIMS(1024, 1024)), NULL, "y");
    struct shapes *shapes = tsr__shapes_new(&t->arena, t->m);
    assert_non_null(shapes);
    int64_t price =
        tsr__node_cost(t->arena.session, tsr_value_producer(y), shapes, NULL, device).ps;
    net_free(t);
    return price;
}

// Devices may have a speed for each kind of memory traffic. A node that only changes the shape
// moves no bytes. The names are from the beginning, the middle and the end of the table.
static void kinds_have_speeds(void **state)
{
    (void)state;
    static const struct {
        const char *op;
        int move;
    } cases[] = {{"Acos", TSR_MOVE_CURVE},         {"Erf", TSR_MOVE_ERROR},
                 {"LogSoftmax", TSR_MOVE_SOFTMAX}, {"Sigmoid", TSR_MOVE_CURVE},
                 {"Softmax", TSR_MOVE_SOFTMAX},    {"Transpose", TSR_MOVE_TURN},
                 {"Neg", TSR_MOVE_STREAM}};
    const tsr_topology_device plain = {.flops = 1e15, .bandwidth = 1e9};
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        tsr_topology_device own = plain;
        for (int move = 0; move < TSR_MOVE_COUNT; move++)
            own.moves[move] = 2e9 + 1e8 * move;
        double ratio = (double)price_of(cases[i].op, &plain) / (double)price_of(cases[i].op, &own);
        assert_true(fabs(ratio - (2 + 0.1 * cases[i].move)) < 0.01);
    }
    assert_int_equal(price_of("Identity", &plain), 0);
}

// ONNX Runtime fuses additions and activations into convolutions; a value with other readers must
// be written first.
static void convolutions_swallow_what_follows(void **state)
{
    (void)state;
    const tsr_topology_device device = {.flops = 1e15, .bandwidth = 1e9};
    for (int read_twice = 0; read_twice < 2; read_twice++) {
        struct net *t = net_new("2", 1e15, 1e9, 1e-9, 1e9);
        tsr_value *x = input(t, "x", DIMS(1, 4, 8, 8));
        tsr_value *made = node(t, "Conv", x, weight(t, "w", DIMS(4, 4, 1, 1)), "made");
        tsr_value *sum = node(t, "Add", made, x, "sum");
        tsr_value *end = node(t, "Relu", sum, NULL, "end");
        if (read_twice)
            node(t, "Neg", made, NULL, "other");
        struct shapes *shapes = tsr__shapes_new(&t->arena, t->m);
        assert_non_null(shapes);
        int64_t add =
            tsr__node_cost(t->arena.session, tsr_value_producer(sum), shapes, NULL, &device).ps;
        int64_t cut =
            tsr__node_cost(t->arena.session, tsr_value_producer(end), shapes, NULL, &device).ps;
        assert_true(read_twice ? add > 0 && cut > 0 : add == 0 && cut == 0);
        net_free(t);
    }
}

// A node of 2 MiB has the near speed (cache), one of 128 MiB the far speed, and one of 16 MiB the
// geometric mean.
static void near_and_far(void **state)
{
    (void)state;
    tsr_topology_device device = {.flops = 1e15, .bandwidth = 1e9};
    device.cached[TSR_MOVE_STREAM] = 16e9;
    double far = 8.0 * (1 << 20) / 1e9 * 1e12, seen = (double)price_of("Neg", &device);
    assert_true(seen < far && seen > far / 16); // 8 MiB: a third of the way
    assert_true(fabs(far / seen / pow(16, 2.0 / 3) - 1) < 0.01);
    device.queued = true;
    device.overhead = 1;
    assert_true(price_of("Neg", &device) == (int64_t)1e12); // hidden by memory traffic
}

// A Neg measured at twice its predicted time costs twice as much; other operators are unchanged.
static void sightings_count(void **state)
{
    (void)state;
    const tsr_topology_device device = {.flops = 1e15, .bandwidth = 1e9};
    struct net *t = net_new("2", 1e15, 1e9, 1e-9, 1e9);
    const tsr_value *x = input(t, "x", DIMS(1024, 1024));
    const tsr_node *neg = tsr_value_producer(node(t, "Neg", (tsr_value *)x, NULL, "y"));
    const tsr_node *abs = tsr_value_producer(node(t, "Abs", (tsr_value *)x, NULL, "z"));
    struct shapes *shapes = tsr__shapes_new(&t->arena, t->m);
    struct node_cost_result plain =
        tsr__node_cost(t->arena.session, neg, shapes, t->o.topology, &device);
    struct profile_point twice = {plain.work, plain.bytes, 2};
    assert_true(plain.work == 1 << 20 && plain.bytes == 8 << 20);
    assert_string_equal(plain.type, "float32");
    assert_true(tsr__topology_add_profile(t->o.topology, "Neg", plain.type, &twice));
    int64_t seen = tsr__node_cost(t->arena.session, neg, shapes, t->o.topology, &device).ps;
    assert_true(llabs(seen - 2 * plain.ps) < 4);
    int64_t other = tsr__node_cost(t->arena.session, abs, shapes, t->o.topology, &device).ps;
    assert_int_equal(other, plain.ps);
    net_free(t);
}

// A weight that is transposed first: engines do that at load time, so only the product is charged.
static void folded_nodes_take_no_time(void **state)
{
    (void)state;
    int64_t cost[2];
    for (int transposed = 0; transposed < 2; transposed++) {
        struct net *t = net_new("full:2", 1e12, 1e12, 1e-6, 1e9);
        tsr_value *x = input(t, "x", DIMS(4, 256)), *w = weight(t, "w", DIMS(256, 256));
        if (transposed)
            w = node(t, "Transpose", w, NULL, "wt");
        plan(t, node(t, "MatMul", x, w, "y"));
        cost[transposed] = t->p.facts.cost;
        net_free(t);
    }
    assert_int_equal(cost[0], cost[1]);
}

// Measured sizes of a kind apply to all its operators, together with measurements of one of them.
static void sizes_count(void **state)
{
    (void)state;
    const tsr_topology_device device = {.flops = 1e15, .bandwidth = 1e9};
    struct net *t = net_new("2", 1e15, 1e9, 1e-9, 1e9);
    const tsr_value *x = input(t, "x", DIMS(1024, 1024));
    const tsr_node *neg = tsr_value_producer(node(t, "Neg", (tsr_value *)x, NULL, "y"));
    const tsr_node *tanh = tsr_value_producer(node(t, "Tanh", (tsr_value *)x, NULL, "z"));
    struct shapes *shapes = tsr__shapes_new(&t->arena, t->m);
    struct node_cost_result plain = tsr__node_cost(t->arena.session, neg, shapes, NULL, &device);
    int64_t curve = tsr__node_cost(t->arena.session, tanh, shapes, NULL, &device).ps;
    struct profile_point twice = {plain.work, plain.bytes, 2},
                         half = {plain.work, plain.bytes, 0.5};
    assert_true(tsr__topology_add_kind_profile(t->o.topology, "stream", plain.type, &twice));
    int64_t sized = tsr__node_cost(t->arena.session, neg, shapes, t->o.topology, &device).ps;
    assert_true(llabs(sized - 2 * plain.ps) < 4);
    assert_int_equal(tsr__node_cost(t->arena.session, tanh, shapes, t->o.topology, &device).ps,
                     curve);
    assert_true(tsr__topology_add_profile(t->o.topology, "Neg", plain.type, &half));
    int64_t both = tsr__node_cost(t->arena.session, neg, shapes, t->o.topology, &device).ps;
    assert_true(llabs(both - plain.ps) < 4);
    net_free(t);
}

// A float16 weight counts twice on measured CPUs, whose kernels convert it to float32. On other
// devices it counts once.
static void widened_weights_count(void **state)
{
    (void)state;
    static const uint16_t zeros[256 * 256];
    const int64_t square[2] = {256, 256};
    const tsr_topology_device measured = {.cached = {[TSR_MOVE_STREAM] = 1e12}};
    int64_t memory[2];
    for (int i = 0; i < 2; i++) {
        struct net *t = net_new("full:1", 1e12, 1e12, 1e-6, 1e9);
        if (i)
            tsr_topology_set_device(t->o.topology, 0, &measured);
        tsr_value *x = input_of(t, "x", TSR_FLOAT16, DIMS(4, 256));
        tsr_value *w =
            tsr_graph_add_initializer(t->g, "w", TSR_FLOAT16, 2, square, zeros, sizeof zeros);
        plan(t, node(t, "MatMul", x, w, "y"));
        memory[i] = t->p.facts.memory[0];
        net_free(t);
    }
    assert_int_equal(memory[1] - memory[0], sizeof zeros);
}

// The reported memory need must be exact: a plan exists with it, and not with one byte less.
static void needed_memory_is_exact(void **state)
{
    (void)state;
    struct net *t = two_layers("4");
    t->o.memory = 100;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_false(t->p.facts.feasible);
    assert_int_equal(tsr_model_config_count(t->m), 0);
    assert_string_equal(tsr_finding_value(t->session, 0).code, "plan-infeasible");
    int64_t needs = t->p.facts.needs_bytes;
    assert_true(needs > 65536 / 4);
    assert_in_range(t->p.facts.n_bindings, 2, 5);
    for (size_t i = 1; i < t->p.facts.n_bindings; i++)
        assert_true(t->p.bindings[i].bytes <= t->p.bindings[i - 1].bytes);
    assert_int_equal(t->p.bindings[0].bytes, 65536 / 8); // half of the weights, on 4 devices
    assert_non_null(strstr(tsr_finding_value(t->session, 0).message, t->p.bindings[0].value));
    t->o.memory = needs - 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    t->o.memory = needs;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    for (size_t i = 0; i < t->p.facts.devices; i++)
        assert_true(t->p.facts.memory[i] <= needs);
    net_free(t);
}

// A value whose reader needs it in the same layout is stored once.
static void values_are_counted_once(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e15, 1e15, 1e-9, 1e9);
    tsr_value *big =
        node(t, "MatMul", input(t, "x", DIMS(1024, 8)), weight(t, "w", DIMS(8, 1024)), "big");
    tsr_value *y = node(t, "ReduceSum", big, NULL, "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    t->o.memory = 1000;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    // x replicated, half of w, half of the product, and a shard of the sum
    assert_int_equal(t->p.facts.needs_bytes, 1024 * 8 * 4 + 512 * 8 * 4 + 1024 * 512 * 4 + 4);
    assert_string_equal(t->p.bindings[0].value, "big");
    t->o.memory = t->p.facts.needs_bytes;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    for (size_t i = 0; i < t->p.facts.devices; i++)
        assert_int_equal(t->p.facts.memory[i], t->o.memory);
    net_free(t);
}

// A constant with several readers is stored once for each layout.
static void constants_are_counted_once(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e15, 1e15, 1e-9, 1e9);
    tsr_value *w = weight(t, "w", DIMS(256, 256)), *y = input(t, "x", DIMS(1, 256));
    static const char *const names[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++)
        y = node(t, "MatMul", y, w, names[i]);
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    t->o.memory = 1000;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    int64_t half = INT64_C(256) * 256 * 4 / 2;
    assert_in_range(t->p.facts.needs_bytes, half, half + 5 * 256 * 4);
    t->o.memory = 3 * half / 2;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    net_free(t);
}

// Four columns on three devices: the last device has two columns, and must have the memory for
// them.
static void devices_may_have_unlike_memories(void **state)
{
    (void)state;
    const int64_t column = INT64_C(65536) * 4, more = 5000;
    for (int larger = 0; larger < 3; larger++) {
        struct net *t = net_new("3", 1e15, 1e15, 1e-9, 1e9);
        tsr_value *y =
            node(t, "MatMul", input(t, "x", DIMS(1, 65536)), weight(t, "w", DIMS(65536, 4)), "y");
        assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
        t->o.memory = 0;
        for (int i = 0; i < 3; i++) {
            tsr_topology_device d = {.flops = 1e15, .bandwidth = 1e15};
            d.memory = (i == larger ? 3 : 2) * column + more;
            tsr_topology_set_device(t->topology, i, &d);
        }
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        assert_int_equal(st, larger == 2 ? TSR_OK : TSR_INFEASIBLE);
        if (st == TSR_OK)
            assert_true(t->p.facts.memory[0] < 2 * column + more &&
                        t->p.facts.memory[2] > 3 * column);
        else
            assert_in_range(t->p.facts.needs_bytes, 2 * column + more, 3 * column);
        net_free(t);
    }
}

// A third of the weights is too much for two of three devices: the larger device runs alone.
static void larger_devices_take_more(void **state)
{
    (void)state;
    struct net *t = two_layers("3");
    for (int i = 0; i < 3; i++) {
        tsr_topology_device d = {.flops = 1e15, .bandwidth = 1e15};
        d.memory = i == 1 ? 100000 : 20000; // the weights have 65536 bytes
        tsr_topology_set_device(t->topology, i, &d);
    }
    t->o.memory = 0;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.optimal);
    assert_true(t->p.facts.memory[0] <= 20000 && t->p.facts.memory[2] <= 20000 &&
                t->p.facts.memory[1] > 32768);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
    assert_int_equal(tsr_finding_total(t->session, TSR_ERROR), 0);
    net_free(t);
}

static void plans_are_the_same_every_time(void **state)
{
    (void)state;
    void *bytes[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        struct net *t = two_layers("8");
        void *saved;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_int_equal(tsr_model_save_bytes(t->m, &saved, &n[i]), TSR_OK);
        bytes[i] = malloc(n[i]);
        memcpy(bytes[i], saved, n[i]);
        tsr_bytes_free(t->session, saved, n[i]);
        net_free(t);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
}

// The reported time on one device is the cost of the plan for one device; 0 if it does not fit.
static void one_device_is_told(void **state)
{
    (void)state;
    struct net *one = two_layers("1"), *four = two_layers("4");
    assert_int_equal(tsr__plan(one->m, &one->o, &one->p), TSR_OK);
    assert_int_equal(tsr__plan(four->m, &four->o, &four->p), TSR_OK);
    assert_int_equal(four->p.facts.one_device, one->p.facts.cost);
    net_free(four);
    four = two_layers("4");
    four->o.memory = 40000; // replicated weights do not fit
    assert_int_equal(tsr__plan(four->m, &four->o, &four->p), TSR_OK);
    assert_int_equal(four->p.facts.one_device, 0);
    net_free(four);
    net_free(one);
}

// Plans of well-known strategies are read by index: first those that fit, the fastest first, then
// the others. A caller with a smaller struct gets the fields that fit into it.
static void experts_are_read_by_index(void **state)
{
    (void)state;
    struct net *t = two_layers("4");
    tsr_plan_result *result = NULL;
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    t->o.memory = 40000; // replicated weights do not fit
    assert_int_equal(tsr_plan(t->m, &t->o, &result), TSR_OK);
    assert_int_equal(tsr_plan_result_about(result, &facts), TSR_OK);
    assert_true(facts.n_compared > 1);
    double before = facts.milliseconds;
    bool fits = true;
    for (size_t i = 0; i < facts.n_compared; i++) {
        tsr_plan_expert expert = TSR_PLAN_EXPERT_INIT;
        assert_int_equal(tsr_plan_result_compared(result, i, &expert), TSR_OK);
        assert_true(expert.name[0] && expert.reason[0] && (fits || !expert.fits));
        assert_true(!expert.fits || expert.milliseconds >= before * (1 - 1e-9));
        fits = expert.fits;
        before = expert.milliseconds;
    }
    assert_false(fits); // one device, which does not fit, is last
    tsr_plan_expert expert = {.size = 0};
    assert_int_equal(tsr_plan_result_compared(result, 0, &expert), TSR_INVALID);
    expert.size = sizeof expert;
    assert_int_equal(tsr_plan_result_compared(result, facts.n_compared, &expert), TSR_INVALID);
    tsr_plan_result_free(result);
    net_free(t);
}

// Stages are read by index, and so are the best plans for each number of devices.
static void stages_and_counts_are_read_by_index(void **state)
{
    (void)state;
    tsr_plan_result *result = NULL;
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    struct net *staged = two_layers("2"), *counted = two_layers("3");
    staged->o.stages = 2;
    assert_int_equal(tsr_plan(staged->m, &staged->o, &result), TSR_OK);
    assert_int_equal(tsr_plan_result_about(result, &facts), TSR_OK);
    assert_int_equal(facts.n_stages, 2);
    for (size_t i = 0; i < 2; i++) {
        tsr_plan_stage stage = TSR_PLAN_STAGE_INIT;
        assert_int_equal(tsr_plan_result_stage(result, i, &stage), TSR_OK);
        assert_int_equal(stage.nodes, 1);
        assert_int_equal(stage.first, i);
        assert_int_equal(stage.n_devices, 1);
    }
    tsr_plan_result_free(result);
    assert_int_equal(tsr__topology_choose(counted->topology), TSR_OK);
    assert_int_equal(tsr_plan(counted->m, &counted->o, &result), TSR_OK);
    assert_int_equal(tsr_plan_result_about(result, &facts), TSR_OK);
    assert_int_equal(facts.n_counts, 3);
    for (size_t i = 0; i < 3; i++) {
        tsr_plan_count count = TSR_PLAN_COUNT_INIT;
        assert_int_equal(tsr_plan_result_count(result, i, &count), TSR_OK);
        assert_int_equal(count.devices, i + 1);
        assert_int_equal(count.chosen, facts.devices == i + 1);
    }
    tsr_plan_result_free(result);
    net_free(staged);
    net_free(counted);
}

// Two hosts with slow links are slower than one: the second stays idle, and the plan for both is
// listed with the reason.
static void slow_hosts_stay_idle(void **state)
{
    (void)state;
    int64_t cost[2];
    struct net *t = NULL;
    for (int hosts = 1; hosts <= 2; hosts++) {
        if (t)
            net_free(t);
        t = net_new(hosts == 1 ? "4" : "hosts:2x4", 1e9, 1e12, 20e-6, 1e9);
        for (size_t i = 0; i < t->topology->links.n; i++) {
            struct topology_link *l = &t->topology->links.at[i];
            l->latency = l->from / 4 == l->to / 4 ? l->latency : 1e-3;
        }
        tsr_value *h =
            node(t, "MatMul", input(t, "x", DIMS(8, 64)), weight(t, "w1", DIMS(64, 128)), "h");
        tsr_value *y = node(t, "MatMul", h, weight(t, "w2", DIMS(128, 64)), "y");
        assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        cost[hosts - 1] = t->p.facts.cost;
    }
    assert_int_equal(cost[0], cost[1]);
    assert_int_equal(t->p.facts.used_devices, 4);
    assert_int_equal(t->p.facts.better_devices, 0);
    for (size_t i = 4; i < 8; i++)
        assert_int_equal(t->p.facts.memory[i], 0);
    const tsr_plan_expert *both = NULL;
    for (size_t i = 0; i < t->p.facts.n_compared; i++)
        if (strcmp(t->p.compared[i].name, "tensor parallel on 8 devices") == 0)
            both = &t->p.compared[i];
    assert_non_null(both);
    assert_true(both->milliseconds > (double)cost[0] / 1e9);
    // A message to the other host takes longer than computing everything on each device.
    assert_true(both->communication_ms < 1e-9);
    assert_non_null(strstr(both->reason, " more computation"));
    net_free(t);
    t = net_new("4", 1e9, 1e12, 1e-9, 1e12); // here all devices help
    tsr_value *y =
        node(t, "MatMul", input(t, "x", DIMS(512, 64)), weight(t, "w", DIMS(64, 128)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.better_devices, 0);
    net_free(t);
}

// A model that does not fit on two devices fits on three, which must be reported.
static void fitting_numbers_are_named(void **state)
{
    (void)state;
    struct net *t = two_layers("2");
    tsr_topology *kept = t->o.topology;
    t->o.topology = NULL;
    t->o.devices = 2;
    t->o.memory = 30000; // the weights have 65536 bytes
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_int_equal(t->p.facts.fits_devices, 3);
    assert_non_null(strstr(tsr_finding_value(t->session, 0).hint, "or use 3 devices"));
    assert_true(t->p.facts.needs_bytes > 30000 && t->p.facts.needs_bytes < 60000);
    t->o.devices = 3;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    t->o.devices = 2;
    t->o.memory = 100; // no number of devices helps: the input is on every device
    t->o.config = "none";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_int_equal(t->p.facts.fits_devices, 0);
    t->o.topology = kept;
    net_free(t);
}

// Predicts the time of a resharding of float32[64,64] on the topology; -1: the status is not TSR_OK.
static int64_t time_of_shape(struct net *t, int rank, const int64_t *shape, const char *from,
                             const char *to, const char *pending, tsr_status status)
{
    tsr_reshard_options options = {
        .size = sizeof options, .pending = pending, .topology = t->topology};
    tsr_resharding *found = NULL;
    assert_int_equal(tsr_resharding_new(t->session, from, to, rank, shape, &options, &found),
                     status);
    int64_t time = found ? tsr_resharding_time(found) : -1;
    tsr_resharding_free(found);
    return time;
}

static int64_t time_between(struct net *t, const char *from, const char *to, const char *pending,
                            tsr_status status)
{
    return time_of_shape(t, 2, (int64_t[]){64, 64}, from, to, pending, status);
}

// The time of a resharding must be that of its collective on the links.
static void conversions_have_a_time(void **state)
{
    (void)state;
    struct net *t = net_new("4", 1e15, 1e15, 1e-6, 1e9);
    int devices[] = {0, 1, 2, 3};
    struct topology_groups all = {1, 4, devices};
    int64_t want = tsr__topology_cost(t->topology, TSR_ALL_GATHER, &all, 64 * 64 * 4);
    assert_in_range(time_between(t, "{4,1}", "{1:0,1,2,3}", NULL, TSR_OK), want,
                    want + 100); // plus a copy
    want = tsr__topology_cost(t->topology, TSR_REDUCE_SCATTER, &all, 64 * 64 * 4);
    assert_in_range(time_between(t, "{1:0,1,2,3}", "{1,4}", "sum", TSR_OK), want, want + 100);
    // over the mesh of the topology, which has four devices in a line
    assert_int_equal(time_between(t, "({0},{})", "{4,1}", NULL, TSR_OK), 0);
    assert_int_equal(time_between(t, "{4,1}", "{4,1}", NULL, TSR_OK), 0);
    // A scalar has no sizes, so NULL is copied with length 0: an error for sanitizers.
    assert_true(time_of_shape(t, 0, NULL, "{1:0}", "{1:0,1}", NULL, TSR_OK) > 0);
    assert_int_equal(time_between(t, "{8,1}", "{1:0}", NULL, TSR_INVALID), -1);
    assert_string_equal(tsr_finding_value(t->session, 0).code, "sharding-misfit");
    net_free(t);
}

// A plan for one device has no shardings and no communication.
static void one_device_is_left_whole(void **state)
{
    (void)state;
    struct net *t = two_layers("1");
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.cut_nodes, 0);
    assert_int_equal(t->p.facts.n_collectives, 0);
    assert_int_equal(t->p.facts.one_device, t->p.facts.cost);
    net_free(t);
}

static void too_many_devices_are_refused(void **state)
{
    (void)state;
    struct net *t = two_layers("2");
    t->o.topology = NULL;
    t->o.devices = 5000;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_UNSUPPORTED);
    assert_string_equal(tsr_finding_value(t->session, 0).code, "plan-devices");
    t->o.devices = 0;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_UNSUPPORTED);
    net_free(t);
}

// Every failing allocation must be reported and must not leak.
static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 4000; n += 1 + n / 8) {
        struct net *t = two_layers("4");
        t->o.memory = 40000;
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        tsr__session_fault(t->session, 0, 0, false);
        assert_true(st == TSR_OK || st == TSR_NOMEM);
        net_free(t);
    }
}

// A document must be complete or rejected, whichever allocation fails.
static void documents_are_whole_or_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/tessera-plan-XXXXXX";
    struct net *t = two_layers("4");
    t->o.memory = 40000;
    tsr_plan_result *kept = NULL;
    assert_int_equal(tsr_plan(t->m, &t->o, &kept), TSR_OK);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(tsr_plan_save(t->m, &t->o, kept, path), TSR_OK);
    for (uint64_t n = 1; n < 60; n++) {
        const char *edits = NULL;
        tsr_plan_comparison c = {.size = sizeof c};
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr_plan_save(t->m, &t->o, kept, path);
        assert_true(st == TSR_OK || st == TSR_NOMEM);
        tsr__session_fault(t->session, 0, n, false);
        st = tsr_plan_edits(t->session, path, &edits);
        assert_true(st == TSR_NOMEM || (st == TSR_OK && strstr(edits, "--shard \"#1\":")));
        tsr__session_fault(t->session, 0, n, false);
        st = tsr_plan_compare(t->session, path, path, &c);
        assert_true(st == TSR_NOMEM || (st == TSR_OK && c.n_differences == 0));
        assert_true(st == TSR_NOMEM || c.side[1].cost == kept->facts.cost);
    }
    tsr__session_fault(t->session, 0, 0, false);
    tsr_plan_comparison c = {.size = sizeof c};
    assert_int_equal(tsr_plan_compare(t->session, NULL, path, &c), TSR_INVALID);
    assert_int_equal(tsr_plan_compare(t->session, path, NULL, &c), TSR_INVALID);
    assert_int_equal(tsr_plan_compare(t->session, path, path, NULL), TSR_INVALID);
    unlink(path);
    tsr_plan_result_free(kept);
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_plan_is_followed),
        cmocka_unit_test(kinds_have_speeds),
        cmocka_unit_test(near_and_far),
        cmocka_unit_test(sightings_count),
        cmocka_unit_test(sizes_count),
        cmocka_unit_test(convolutions_swallow_what_follows),
        cmocka_unit_test(folded_nodes_take_no_time),
        cmocka_unit_test(widened_weights_count),
        cmocka_unit_test(needed_memory_is_exact),
        cmocka_unit_test(values_are_counted_once),
        cmocka_unit_test(constants_are_counted_once),
        cmocka_unit_test(devices_may_have_unlike_memories),
        cmocka_unit_test(larger_devices_take_more),
        cmocka_unit_test(plans_are_the_same_every_time),
        cmocka_unit_test(one_device_is_left_whole),
        cmocka_unit_test(one_device_is_told),
        cmocka_unit_test(experts_are_read_by_index),
        cmocka_unit_test(stages_and_counts_are_read_by_index),
        cmocka_unit_test(slow_hosts_stay_idle),
        cmocka_unit_test(fitting_numbers_are_named),
        cmocka_unit_test(conversions_have_a_time),
        cmocka_unit_test(too_many_devices_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(documents_are_whole_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
