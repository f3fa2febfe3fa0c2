// SPDX-License-Identifier: Apache-2.0
// test_answers.c - planning problems whose optimum is known in closed form: grids of devices, slow
// and fast links, order of gathers, sums of two partial results, experts, grouped queries, shared
// masks.
#include "nets.h"
#include "topology/topology.h"

#include <math.h>
#include <unistd.h>

#define MANY  16
#define WORDS 48

static char names[MANY * WORDS][WORDS]; // texts must exist until the test ends
static int n_names;

static const char *word(const char *base, int i)
{
    char *out = names[n_names++ % (MANY * WORDS)];
    snprintf(out, WORDS, "%s%d", base, i);
    return out;
}

static size_t reductions(const struct net *t)
{
    return collectives(t, "AllReduce") + collectives(t, "ReduceScatter") + collectives(t, "Reduce");
}

// Computation and memory traffic take almost no time: communication decides.
static struct net *talking(const char *devices)
{
    return net_new(devices, 1e17, 1e16, 1e-9, 1e9);
}

// ---- times of collectives ----------------------------------------------------------------------

static int64_t price_of(struct net *t, enum tsr_collective what, int count, int size,
                        const int *devices, int64_t bytes)
{
    struct topology_groups groups = {count, size, devices};
    return tsr__topology_cost(t->topology, what, &groups, bytes);
}

static int64_t price(struct net *t, enum tsr_collective what, int64_t bytes)
{
    int devices[64], n = tsr_topology_devices(t->topology);
    for (int i = 0; i < n; i++)
        devices[i] = i;
    return price_of(t, what, 1, n, devices, bytes);
}

// Time of a collective along one axis of a grid a x b, in all lines of the grid at the same time.
static int64_t price_axis(struct net *t, enum tsr_collective what, int a, int b, int axis,
                          int64_t bytes)
{
    int devices[64];
    for (int i = 0; i < a * b; i++)
        devices[i] = axis ? i : i % a * b + i / a;
    return price_of(t, what, axis ? a : b, axis ? b : a, devices, bytes);
}

// Sets the bandwidth of links along axis 1 of a grid (inside hosts) and along axis 0 (between
// hosts), in bytes per second.
static void wire(struct net *t, int b, double inside, double between)
{
    for (size_t i = 0; i < t->topology->links.n; i++) {
        struct topology_link *l = &t->topology->links.at[i];
        l->bandwidth = l->from / b == l->to / b ? inside : between;
        l->out_port = l->in_port = -1;
    }
}

// Exports the program of the next plan.
static void keep_program(struct net *t)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/tessera-answers-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    t->o.export_lp = path;
}

// CBC, another solver, must find the same optimum.
static void agree_with_cbc(struct net *t)
{
    char out[80], command[256], line[256] = "";
    snprintf(out, sizeof out, "%s.txt", t->o.export_lp);
    snprintf(command, sizeof command, "mv %s %s.lp && cbc %s.lp solve solu %s >%s.log 2>&1",
             t->o.export_lp, t->o.export_lp, t->o.export_lp, out, t->o.export_lp);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(out, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    assert_non_null(strstr(line, "Optimal"));
    double found = strtod(strstr(line, "value") + strlen("value"), NULL),
           cost = (double)t->p.facts.cost;
    assert_true(fabs(found - cost) <= 1e-6 * cost + 1);
    snprintf(command, sizeof command, "rm %s.*", t->o.export_lp);
    assert_int_equal(system(command), 0);
}

// Plans with `more` bytes above the minimum of memory.
static void plan_tight(struct net *t, tsr_value *out, int64_t more)
{
    assert_int_equal(tsr_graph_add_output(t->g, out), TSR_OK);
    t->o.memory = 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    t->o.memory = t->p.facts.needs_bytes + more;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.optimal);
    size_t errors = tsr_finding_total(t->session, TSR_ERROR);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
    assert_int_equal(tsr_finding_total(t->session, TSR_ERROR), errors);
}

// ---- batch and heads on a grid -------------------------------------------------------------

#define SEQ   32
#define SIZE  8
#define WIDTH ((int64_t)64)

struct shape_of_heads {
    int64_t batch, heads, keys; // `keys` key heads, each shared by heads / keys query heads
};

static tsr_value *project(struct net *t, tsr_value *x, const char *name, int64_t batch, int64_t n)
{
    tsr_value *w = weight(t, word(name, 0), DIMS(WIDTH, n * SIZE));
    tsr_value *p = node(t, "MatMul", x, w, word(name, 1));
    p = reshape(t, p, DIMS(batch, SEQ, n, SIZE), word(name, 2));
    return transpose(t, p, DIMS(0, 2, 1, 3), word(name, 3));
}

// Repeats each key head for all query heads that share it.
static tsr_value *repeat(struct net *t, tsr_value *k, const char *name,
                         const struct shape_of_heads *h)
{
    int64_t times = h->heads / h->keys, rank = 5;
    const int64_t *wide = DIMS(h->batch, h->keys, times, SEQ, SIZE);
    if (times == 1)
        return k;
    k = reshape(t, k, DIMS(h->batch, h->keys, 1, SEQ, SIZE), word(name, 4));
    tsr_value *shape =
        tsr_graph_add_initializer(t->g, word(name, 5), TSR_INT64, 1, &rank, wide, 5 * sizeof *wide);
    k = node(t, "Expand", k, shape, word(name, 6));
    return reshape(t, k, DIMS(h->batch, h->heads, SEQ, SIZE), word(name, 7));
}

static tsr_value *attend(struct net *t, tsr_value *x, const char *name, struct shape_of_heads h,
                         tsr_value *mask)
{
    char q[16], k[16], v[16], s[16];
    snprintf(q, sizeof q, "%sq", name);
    snprintf(k, sizeof k, "%sk", name);
    snprintf(v, sizeof v, "%sv", name);
    snprintf(s, sizeof s, "%ss", name);
    tsr_value *queries = project(t, x, q, h.batch, h.heads);
    tsr_value *keys = repeat(t, project(t, x, k, h.batch, h.keys), k, &h);
    tsr_value *values = repeat(t, project(t, x, v, h.batch, h.keys), v, &h);
    keys = transpose(t, keys, DIMS(0, 1, 3, 2), word(k, 9));
    tsr_value *y = node(t, "MatMul", queries, keys, word(s, 1));
    if (mask)
        y = node(t, "Add", y, mask, word(s, 2));
    y = node(t, "MatMul", node(t, "Softmax", y, NULL, word(s, 3)), values, word(s, 4));
    y = reshape(t, transpose(t, y, DIMS(0, 2, 1, 3), word(s, 5)),
                DIMS(h.batch, SEQ, h.heads * SIZE), word(s, 6));
    return node(t, "MatMul", y, weight(t, word(s, 7), DIMS(h.heads * SIZE, WIDTH)), word(s, 8));
}

// With slow links between hosts, the batch must be sharded over hosts and the heads inside a host.
static void batch_and_heads_take_an_axis_each(void **state)
{
    (void)state;
    struct net *t = net_new("hosts:4x4", 1e17, 1e16, 1e-12, 1e9);
    wire(t, 4, 1e9, 1e7); // slow links between hosts, fast ones inside
    tsr_value *x = input(t, "x", DIMS(4, SEQ, WIDTH));
    tsr_value *y = attend(t, x, "a", (struct shape_of_heads){4, 8, 8}, NULL);
    plan_tight(t, node(t, "ReduceSum", y, NULL, "sum"), 14000);
    int64_t bytes = 4 * SEQ * WIDTH * 4 / 4; // of one shard of the batch
    // The reader needs only shards of the sum, so a reduce-scatter (half of an all-reduce) is
    // enough.
    int64_t least = price_axis(t, TSR_REDUCE_SCATTER, 4, 4, 1, bytes);
    assert_in_range(t->p.facts.cost, least,
                    price_axis(t, TSR_ALL_REDUCE, 4, 4, 1, bytes) + least / 4);
    assert_string_equal(made_as(t, tsr_graph_value(t->g, "as1")),
                        "{4,4,1,1:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}");
    net_free(t);
}

// ---- weights that are gathered when they are used ------------------------------------------------

#define LAYERS   4
#define GATHERED 128 // rows and columns of a weight
#define ROWS     4096

// Products of many rows: moving rows takes 2 ms, moving a weight 33 us. Layer i has weight `weights[i]`.
static tsr_value *products(struct net *t, const int *weights)
{
    tsr_value *x = input(t, "x", DIMS(ROWS, GATHERED)), *w[LAYERS] = {0};
    for (int i = 0; i < LAYERS; i++) {
        tsr_value **at = &w[weights[i]];
        if (!*at)
            *at = weight(t, word("w", weights[i]), DIMS(GATHERED, GATHERED));
        x = node(t, "MatMul", x, *at, word("m", i));
        x = node(t, "Relu", x, NULL, word("r", i));
    }
    return node(t, "ReduceSum", x, NULL, "y");
}

// Plans these products for `limit` bytes per device; 0: as many as there are. Returns the time.
static int64_t plan_products(const int *weights, int64_t limit, size_t gathers, int64_t *memory)
{
    struct net *t = net_new("2", 1e12, 1e16, 1e-9, 1e9);
    keep_program(t);
    if (limit)
        t->o.memory = limit;
    plan(t, products(t, weights));
    assert_int_equal(collectives(t, "AllGather"), gathers);
    const char *stored = tsr_model_metadata(t->m, META_STORED);
    assert_true(gathers ? stored && strstr(stored, ":w") && strstr(stored, "{2,1:0,1}") : !stored);
    *memory = t->p.facts.memory[0];
    assert_true(!limit || *memory <= limit);
    int64_t cost = t->p.facts.cost;
    agree_with_cbc(t);
    net_free(t);
    return cost;
}

// All weights fit: none is gathered. With less memory by half a weight, three of four are: each
// saves a half, and one is complete where it is used. With less by a weight, all are.
static void weights_are_gathered_if_memory_is_short(void **state)
{
    (void)state;
    const int64_t bytes = GATHERED * GATHERED * 4;
    const int all_differ[LAYERS] = {0, 1, 2, 3}, one_twice[LAYERS] = {0, 1, 1, 2};
    int64_t memory, free = plan_products(all_differ, 0, 0, &memory), enough = memory;
    struct net *t = talking("2");
    t->o.topology = t->topology;
    int64_t gather = price(t, TSR_ALL_GATHER, bytes);
    net_free(t);
    int64_t three = plan_products(all_differ, enough - bytes / 2, 3, &memory);
    assert_int_equal(memory, enough - bytes / 2);
    assert_in_range(three - free, 3 * gather - 100, 3 * gather + 100);
    int64_t four = plan_products(all_differ, enough - bytes, 4, &memory);
    assert_int_equal(memory, enough - bytes);
    assert_in_range(four - free, 4 * gather - 100, 4 * gather + 100);
    // two readers of a weight share its gather
    free = plan_products(one_twice, 0, 0, &enough);
    three = plan_products(one_twice, enough - bytes / 2, 3, &memory);
    assert_int_equal(memory, enough - bytes / 2);
    assert_in_range(three - free, 3 * gather - 100, 3 * gather + 100);
}

// ---- a sum of two partial results is combined once ----------------------------------------

static tsr_value *branch(struct net *t, tsr_value *x, const char *name)
{
    tsr_value *h = node(t, "MatMul", x, weight(t, word(name, 1), DIMS(64, 256)), word(name, 2));
    h = node(t, "Relu", h, NULL, word(name, 3));
    return node(t, "MatMul", h, weight(t, word(name, 4), DIMS(256, 64)), word(name, 5));
}

static void sums_of_parts_take_one_reduction(void **state)
{
    (void)state;
    struct net *t = talking("4");
    keep_program(t);
    tsr_value *x = input(t, "x", DIMS(16, 64));
    tsr_value *y = node(t, "Add", branch(t, x, "a"), branch(t, x, "b"), "s");
    y = node(t, "Relu", node(t, "Add", y, x, "r"), NULL, "y"); // x must be added once
    t->o.memory = 4 * 64 * 256 + 40000;
    plan(t, y);
    assert_int_equal(reductions(t), 1);
    // half of the time of two reductions
    assert_in_range(t->p.facts.cost - price(t, TSR_ALL_REDUCE, 16 * 64 * 4), 0, 100);
    agree_with_cbc(t);
    net_free(t);
}

// ---- logits ------------------------------------------------------------------------------------

// One token: its logits stay sharded by vocabulary, and the softmax exchanges a maximum and a sum.
static void statistics_of_logits_travel(void **state)
{
    (void)state;
    enum { WORDS_OF_ALL = 32000 };
    struct net *t = net_new("4", 1e15, 1e12, 1e-6, 1e9);
    tsr_value *x = input(t, "x", DIMS(1, 64));
    tsr_value *l = node(t, "MatMul", x, weight(t, "w", DIMS(64, WORDS_OF_ALL)), "l");
    tsr_value *p = node(t, "Softmax", l, NULL, "p");
    plan_tight(t, node(t, "ReduceMax", p, NULL, "y"), 300000); // replicated logits would fit
    assert_string_equal(made_as(t, l), "{1,4:0,1,2,3}");
    assert_string_equal(made_as(t, p), "{1,4:0,1,2,3}");
    assert_int_equal(collectives(t, "AllGather") + collectives(t, "AllToAll"), 0);
    assert_int_equal(collectives(t, "AllReduce"), 2);
    assert_int_equal(collectives(t, "Reduce"), 1); // only the caller reads the last value
    int64_t three = 2 * price(t, TSR_ALL_REDUCE, 4) + price(t, TSR_REDUCE, 4);
    assert_in_range(t->p.facts.cost, three, price(t, TSR_ALL_GATHER, WORDS_OF_ALL * 4));
    net_free(t);
}

// ---- experts ---------------------------------------------------------------------------------

// Tokens grouped by source are sent to their experts and back: two all-to-alls.
static void experts_take_two_exchanges(void **state)
{
    (void)state;
    enum { EXPERTS = 4, PLACES = 8, WIDE = 32, INNER = 64 };
    struct net *t = talking("4");
    keep_program(t);
    tsr_config *c;
    // dimensions: source, expert, position
    tsr_value *x = input(t, "x", DIMS(EXPERTS, EXPERTS, PLACES, WIDE));
    tsr_value *h = node(t, "Relu", x, NULL, "h");
    tsr_value *e = transpose(t, h, DIMS(1, 0, 2, 3), "e");
    e = reshape(t, e, DIMS(EXPERTS, EXPERTS * PLACES, WIDE), "es");
    e = node(t, "MatMul", e, weight(t, "up", DIMS(EXPERTS, WIDE, INNER)), "u");
    e = node(t, "Relu", e, NULL, "r");
    e = node(t, "MatMul", e, weight(t, "down", DIMS(EXPERTS, INNER, WIDE)), "d");
    e = reshape(t, e, DIMS(EXPERTS, EXPERTS, PLACES, WIDE), "ds");
    tsr_value *y = node(t, "Relu", transpose(t, e, DIMS(1, 0, 2, 3), "b"), NULL, "y");
    assert_int_equal(tsr_model_add_config(t->m, "mine", 4, NULL, 0, &c), TSR_OK);
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(h), h, c, "{4,1,1,1:0,1,2,3}"), TSR_OK);
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(y), y, c, "{4,1,1,1:0,1,2,3}"), TSR_OK);
    int64_t bytes = EXPERTS * EXPERTS * PLACES * WIDE * 4, weights = EXPERTS * WIDE * INNER * 4 * 2;
    plan_tight(t, node(t, "ReduceSum", y, NULL, "sum"), weights / 8);
    assert_int_equal(collectives(t, "AllToAll"), 2);
    assert_string_equal(made_as(t, tsr_graph_value(t->g, "u")), "{4,1,1:0,1,2,3}");
    int64_t two = 2 * price(t, TSR_ALL_TO_ALL, bytes);
    assert_in_range(t->p.facts.cost, two, two + price(t, TSR_ALL_REDUCE, 4) + 5000);
    agree_with_cbc(t);
    net_free(t);
}

// ---- fewer key heads than devices ---------------------------------------------------------

// Attention with two key heads on eight devices. by_heads: each device has one of the eight heads.
static struct net *plan_key_heads(bool by_heads)
{
    struct net *t = talking("8");
    tsr_config *c;
    keep_program(t);
    tsr_value *x = input(t, "x", DIMS(1, SEQ, WIDTH));
    tsr_value *y = attend(t, x, "g", (struct shape_of_heads){1, 8, 2}, NULL);
    if (by_heads) {
        tsr_value *scores = tsr_graph_value(t->g, "gs1");
        assert_int_equal(tsr_model_add_config(t->m, "mine", 8, NULL, 0, &c), TSR_OK);
        assert_int_equal(
            tsr_node_shard_text(tsr_value_producer(scores), scores, c, "{1,8,1,1:0,1,2,3,4,5,6,7}"),
            TSR_OK);
    }
    plan_tight(t, y, 4500);
    return t;
}

// With a head on each device, both key heads are stored four times and never sent. The plan that
// may choose shards tokens too, on a logical grid, and is faster.
static void key_heads_are_repeated(void **state)
{
    (void)state;
    struct net *t = plan_key_heads(true);
    assert_int_equal(collectives(t, "AllToAll"), 0);
    assert_int_equal(reductions(t), 1);
    assert_string_equal(made_as(t, tsr_graph_value(t->g, "gk3")), "{1,2,1,1:(0,1,2,3),(4,5,6,7)}");
    agree_with_cbc(t);
    int64_t by_heads = t->p.facts.cost;
    net_free(t);
    t = plan_key_heads(false);
    assert_true(t->p.facts.cost < by_heads);
    assert_true(reductions(t) <= 1);
    agree_with_cbc(t);
    net_free(t);
}

// ---- slow and fast axes -------------------------------------------------------------------

static int64_t cost_on_grid(double inside, double between, const char *given)
{
    struct net *t = net_new("hosts:4x4", 1e17, 1e16, 1e-12, 1e9);
    wire(t, 4, inside, between);
    tsr_value *x = input(t, "x", DIMS(64, 64));
    tsr_value *h = node(t, "MatMul", x, weight(t, "w", DIMS(64, 256)), "h");
    tsr_value *y =
        node(t, "MatMul", node(t, "Relu", h, NULL, "r"), weight(t, "u", DIMS(256, 64)), "y");
    tsr_config *c;
    assert_int_equal(tsr_model_add_config(t->m, "mine", 16, NULL, 0, &c), TSR_OK);
    if (given)
        assert_int_equal(
            tsr_node_shard_text(tsr_value_producer(h), tsr_graph_value(t->g, "w"), c, given),
            TSR_OK);
    plan_tight(t, node(t, "ReduceSum", y, NULL, "sum"), 30000);
    int64_t cost = t->p.facts.cost, part = 64 / 4 * 64 * 4;
    int64_t fast = price_axis(t, TSR_REDUCE_SCATTER, 4, 4, inside > between, part);
    // the sum runs on the fast axis, in shards; then the first device of each host adds up 4 bytes
    assert_true(given || (cost >= fast && cost < fast + fast / 2));
    net_free(t);
    return cost;
}

// Sums must use the axis with fast links.
static void reductions_take_the_fast_axis(void **state)
{
    (void)state;
    int64_t inside = cost_on_grid(1e9, 2e7, NULL), between = cost_on_grid(2e7, 1e9, NULL);
    // Nearly equal if the link speeds and the axes are both swapped. Inside a host a device has a
    // link to each other one; between hosts its messages share one port. The final sum of 4 bytes
    // passes twice inside the hosts, and once between them.
    assert_true(between >= inside && (between - inside) * 4 < inside);
    // Weights sharded along the slow axis: the sum uses slow links.
    int64_t slow = cost_on_grid(1e9, 2e7, "{1,4:(0,1,2,3),(4,5,6,7),(8,9,10,11),(12,13,14,15)}");
    assert_true(slow > 5 * inside);
}

// ---- order of gathers -----------------------------------------------------------------------

// A value sharded along both axes is needed replicated: slow links must carry the small shards.
static void slow_links_carry_small_pieces(void **state)
{
    (void)state;
    const double fast = 1e9, slow = 2e7;
    struct net *t = net_new("hosts:2x4", 1e17, 1e16, 1e-12, 1e9);
    keep_program(t);
    wire(t, 4, fast, slow);
    tsr_config *c;
    tsr_value *y = node(t, "Relu", weight(t, "w", DIMS(64, 128)), NULL, "y");
    const char *name = "z";
    // an operator without a rule, which cannot be sharded
    tsr_node *n = tsr_graph_add_node(t->g, "custom", "Unknown", "z", &y, 1, &name, 1);
    assert_int_equal(tsr_model_add_config(t->m, "mine", 8, NULL, 0, &c), TSR_OK);
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(y), y, c, "S0,S1@2x4"), TSR_OK);
    tsr_dim dims[] = {{1, ""}};
    assert_int_equal(tsr_value_set_type(tsr_node_output(n, 0), TSR_FLOAT, 1, dims), TSR_OK);
    plan(t, tsr_node_output(n, 0));
    double bytes = 64 * 128 * 4;
    double slow_first = (0.5 * bytes / 4 / slow + 0.75 * bytes / fast) * 1e12;
    double fast_first = (0.75 * bytes / 2 / fast + 0.5 * bytes / slow) * 1e12;
    // Links of one host work in parallel, so the second part takes a third of the time of one link.
    double side_by_side = (0.5 * bytes / 4 / slow + 0.25 * bytes / fast) * 1e12;
    assert_true((double)t->p.facts.cost >= side_by_side * 0.99 &&
                (double)t->p.facts.cost <= slow_first * 1.01);
    assert_true((double)t->p.facts.cost < fast_first / 2);
    agree_with_cbc(t);
    net_free(t);
}

// ---- a mask that all layers read ---------------------------------------------------------------

static int64_t cost_with_mask(bool pinned)
{
    struct net *t = talking("4");
    tsr_config *c;
    tsr_value *x = input(t, "x", DIMS(1, SEQ, WIDTH));
    tsr_value *mask = node(t, "Relu", input(t, "m", DIMS(1, 1, SEQ, SEQ)), NULL, "mask");
    assert_int_equal(tsr_model_add_config(t->m, "mine", 4, NULL, 0, &c), TSR_OK);
    if (pinned)
        assert_int_equal(
            tsr_node_shard_text(tsr_value_producer(mask), mask, c, "{1,1,1,1:0,1,2,3}"), TSR_OK);
    for (int i = 0; i < 6; i++)
        x = node(t, "Add", x, attend(t, x, word("l", i), (struct shape_of_heads){1, 8, 8}, mask),
                 word("x", i));
    plan_tight(t, x, 8000);
    int64_t cost = t->p.facts.cost;
    net_free(t);
    return cost;
}

// Six layers read one mask: free or pinned to replicated, the best plan is the same.
static void masks_are_whole_in_any_case(void **state)
{
    (void)state;
    assert_int_equal(cost_with_mask(false), cost_with_mask(true));
}

// ---- one host of many ---------------------------------------------------------------------

// Devices 2 and 4 are the fastest, but on different hosts. Two slower ones on host 3 (6 and 7) are
// faster together, because their link is fast.
static void the_best_of_many_hosts_is_taken(void **state)
{
    (void)state;
    static const double flops[] = {[2] = 4e9, [4] = 4e9, [6] = 3e9, [7] = 3e9, [15] = 1e9};
    struct net *t = net_new("hosts:8x2", 1e9, 1e16, 1e-9, 1e9);
    wire(t, 2, 1e12, 1e5);
    for (int i = 0; i < 16; i++) {
        tsr_topology_device device = {.flops = flops[i] > 0 ? flops[i] : 1e9, .bandwidth = 1e16};
        tsr_topology_set_device(t->topology, i, &device);
    }
    tsr_value *h =
        node(t, "MatMul", input(t, "x", DIMS(1, 1024)), weight(t, "w", DIMS(1024, 4096)), "h");
    h = node(t, "MatMul", h, weight(t, "v", DIMS(4096, 1024)), "r");
    tsr_value *y = node(t, "MatMul", h, weight(t, "u", DIMS(1024, 1)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.used_devices, 2);
    assert_string_equal(made_as(t, tsr_graph_value(t->g, "h")), "{1,2:6,7}");
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_and_heads_take_an_axis_each),
        cmocka_unit_test(statistics_of_logits_travel),
        cmocka_unit_test(experts_take_two_exchanges),
        cmocka_unit_test(key_heads_are_repeated),
        cmocka_unit_test(reductions_take_the_fast_axis),
        cmocka_unit_test(slow_links_carry_small_pieces),
        cmocka_unit_test(weights_are_gathered_if_memory_is_short),
        cmocka_unit_test(sums_of_parts_take_one_reduction),
        cmocka_unit_test(masks_are_whole_in_any_case),
        cmocka_unit_test(the_best_of_many_hosts_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
