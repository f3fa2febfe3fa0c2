// SPDX-License-Identifier: Apache-2.0
// test_models.c - planning problems with known optima: perceptrons, attention, decoder blocks,
// tokens versus features, embedding tables, mixed plans under a memory limit.
#include "nets.h"

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

// One host: gathers cost copies, and sums cost reads of memory.
static struct net *one_host(const char *devices)
{
    return net_new(devices, 50e9, 10e9, 5e-6, 5e9);
}

// ---- perceptrons: alternate columns and rows ---------------------------------------------------

// Narrow and wide layers alternate: sharding rows avoids gathering the wide values.
static tsr_value *perceptron(struct net *t, int layers, int64_t batch, int64_t d, int64_t wide)
{
    tsr_value *x = input(t, "x", DIMS(batch, d));
    for (int i = 0; i < layers; i++) {
        int64_t from = i % 2 ? wide : d, to = i % 2 ? d : wide;
        x = node(t, "MatMul", x, weight(t, word("w", i), DIMS(from, to)), word("h", i));
        if (i + 1 < layers)
            x = node(t, "Relu", x, NULL, word("r", i));
    }
    return x;
}

// The optimum of a perceptron: columns and rows alternate, with one reduction per pair of layers.
static void weights_alternate_in_columns_and_rows(void **state)
{
    (void)state;
    static const int depths[] = {2, 6, 12};
    for (size_t k = 0; k < TSR_COUNT(depths); k++) {
        struct net *t = talking("4");
        int n = depths[k];
        tsr_value *y = perceptron(t, n, 16, 64, 256);
        t->o.memory = n * 64 * 256 * 4 / 4 + 40000;
        plan(t, y);
        assert_int_equal(reductions(t), n / 2);
        for (int i = 0; i < n; i++) {
            const tsr_node *m = tsr_value_producer(tsr_graph_value(t->g, word("h", i)));
            assert_string_equal(sharding_at(t, m, tsr_node_input(m, 1)),
                                i % 2 ? "{4,1:0,1,2,3}" : "{1,4:0,1,2,3}");
        }
        net_free(t);
    }
}

// ---- attention and decoder blocks --------------------------------------------------------------

#define SEQ   64
#define HEADS 8
#define SIZE  16
#define WIDTH ((int64_t)HEADS * SIZE)

static tsr_value *heads(struct net *t, tsr_value *x, const char *name, int i)
{
    tsr_value *p = node(t, "MatMul", x, weight(t, word(name, 10 * i), DIMS(WIDTH, WIDTH)),
                        word(name, 10 * i + 1));
    p = reshape(t, p, DIMS(1, SEQ, HEADS, SIZE), word(name, 10 * i + 2));
    return transpose(t, p, DIMS(0, 2, 1, 3), word(name, 10 * i + 3));
}

static tsr_value *attention(struct net *t, tsr_value *x, int i)
{
    tsr_value *q = heads(t, x, "q", i), *k = heads(t, x, "k", i), *v = heads(t, x, "v", i);
    k = transpose(t, k, DIMS(0, 1, 3, 2), word("kt", i));
    tsr_value *s = node(t, "Softmax", node(t, "MatMul", q, k, word("s", i)), NULL, word("p", i));
    tsr_value *o =
        transpose(t, node(t, "MatMul", s, v, word("a", i)), DIMS(0, 2, 1, 3), word("at", i));
    o = reshape(t, o, DIMS(1, SEQ, WIDTH), word("ar", i));
    return node(t, "MatMul", o, weight(t, word("wo", i), DIMS(WIDTH, WIDTH)), word("o", i));
}

static tsr_value *norm(struct net *t, tsr_value *x, const char *name, int i)
{
    return node(t, "LayerNormalization", x, weight(t, word(name, 10 * i), DIMS(WIDTH)),
                word(name, 10 * i + 1));
}

static tsr_value *block(struct net *t, tsr_value *x, int i)
{
    x = node(t, "Add", x, attention(t, norm(t, x, "n", i), i), word("x", i));
    tsr_value *u = node(t, "MatMul", norm(t, x, "m", i),
                        weight(t, word("wu", i), DIMS(WIDTH, 4 * WIDTH)), word("u", i));
    tsr_value *d = node(t, "MatMul", node(t, "Relu", u, NULL, word("r", i)),
                        weight(t, word("wd", i), DIMS(4 * WIDTH, WIDTH)), word("d", i));
    return node(t, "Add", x, d, word("y", i));
}

static void attention_is_cut_by_heads(void **state)
{
    (void)state;
    struct net *t = one_host("4");
    tsr_value *y = attention(t, input(t, "x", DIMS(1, SEQ, WIDTH)), 0);
    t->o.memory = 4 * WIDTH * WIDTH + 150000;
    plan(t, y);
    assert_int_equal(reductions(t), 1);
    assert_string_equal(made_as(t, tsr_graph_value(t->g, "s0")), "{1,4,1,1:0,1,2,3}");
    const tsr_node *o = tsr_value_producer(y);
    assert_string_equal(sharding_at(t, o, tsr_node_input(o, 1)), "{4,1:0,1,2,3}");
    net_free(t);
}

static void shard(struct net *t, tsr_config *c, const char *w, const char *out, const char *how)
{
    tsr_node *n = tsr_value_producer(tsr_graph_value(t->g, out));
    assert_int_equal(tsr_node_shard_text(n, tsr_graph_value(t->g, w), c, how), TSR_OK);
}

// Cost of a manual plan: queries, keys, values and the first matrix by columns, the others by rows,
// and the planner's choice for the rest.
static int64_t by_hand(struct net *t, int layers, int devices)
{
    char columns[32], rows[32];
    tsr_config *c;
    snprintf(columns, sizeof columns, "{1,%d}", devices);
    snprintf(rows, sizeof rows, "{%d,1}", devices);
    assert_int_equal(tsr_model_add_config(t->m, "hand", devices, NULL, 0, &c), TSR_OK);
    for (int i = 0; i < layers; i++) {
        shard(t, c, word("q", 10 * i), word("q", 10 * i + 1), columns);
        shard(t, c, word("k", 10 * i), word("k", 10 * i + 1), columns);
        shard(t, c, word("v", 10 * i), word("v", 10 * i + 1), columns);
        shard(t, c, word("wo", i), word("o", i), rows);
        shard(t, c, word("wu", i), word("u", i), columns);
        shard(t, c, word("wd", i), word("d", i), rows);
    }
    t->o.config = "hand";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    t->o.config = "free";
    return t->p.facts.cost;
}

// The manual plan has exactly two reductions per layer, and gathers the input of queries, keys and
// values once. The planner's result has no more, and is faster if it has fewer.
static void decoders_take_two_reductions_a_layer(void **state)
{
    (void)state;
    for (int devices = much_slower() ? 8 : 2; devices <= 8; devices *= 2) {
        const int layers = 3;
        struct net *t = one_host(word("", devices));
        tsr_value *x = input(t, "x", DIMS(1, SEQ, WIDTH));
        for (int i = 0; i < layers; i++)
            x = block(t, x, i);
        assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
        int64_t hand = by_hand(t, layers, devices);
        assert_int_equal(reductions(t), 2 * layers);
        assert_true(collectives(t, "AllGather") <= 2 * (size_t)layers);
        assert_int_equal(collectives(t, "AllToAll"), 0);
        t->o.memory = 1;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
        t->o.memory = t->p.facts.needs_bytes + 24000; // less than any unsharded matrix
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_true(t->p.facts.optimal);
        assert_true(reductions(t) <= 2 * (size_t)layers);
        assert_true(collectives(t, "AllGather") <= 2 * (size_t)layers);
        if (reductions(t) < 2 * (size_t)layers || collectives(t, "AllToAll"))
            assert_true(t->p.facts.cost < hand);
        else
            assert_true(t->p.facts.cost <= hand);
        net_free(t);
    }
}

// No plan may be slower than the manual plan.
static void plans_beat_those_by_hand(void **state)
{
    (void)state;
    static const struct {
        double flops, bandwidth, latency, link;
    } hosts[] = {{50e9, 10e9, 5e-6, 5e9}, {1e15, 1e15, 1e-9, 1e9}, {1e13, 1e12, 1e-6, 1e11}};
    for (size_t h = 0; h < TSR_COUNT(hosts); h++)
        for (int devices = 2; devices <= 8; devices *= 2) {
            if (much_slower() && devices != 2 << h)
                continue;
            struct net *t = net_new(word("", devices), hosts[h].flops, hosts[h].bandwidth,
                                    hosts[h].latency, hosts[h].link);
            tsr_value *x = input(t, "x", DIMS(1, SEQ, WIDTH));
            for (int i = 0; i < 2; i++)
                x = block(t, x, i);
            assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
            int64_t hand = by_hand(t, 2, devices), most = 0;
            for (size_t i = 0; i < t->p.facts.devices; i++)
                most = t->p.facts.memory[i] > most ? t->p.facts.memory[i] : most;
            assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
            assert_true(t->p.facts.optimal && t->p.facts.cost <= hand);
            // values that are not tracked are charged more than they hold
            t->o.memory = most + most / 50;
            t->o.config = "same";
            assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
            assert_true(t->p.facts.optimal && t->p.facts.cost <= hand);
            net_free(t);
        }
}

// ---- tokens versus features: the larger side is sharded ----------------------------------------

// Plans a product of [m, 64] and [64, n] that only reads and writes memory.
static struct net *product(const char *devices, int64_t m, int64_t n, tsr_value **y)
{
    struct net *t = net_new(devices, 1e18, 1e9, 1e-12, 1e18);
    // The engine computes it from a weight at load time, in the layout in which it is read.
    tsr_value *x = node(t, "Relu", weight(t, "x", DIMS(m, 64)), NULL, "relu");
    *y = node(t, "MatMul", x, weight(t, "w", DIMS(64, n)), "y");
    plan(t, node(t, "ReduceSum", *y, NULL, "sum"));
    return t;
}

static void the_longer_side_of_a_product_is_cut(void **state)
{
    (void)state;
    static const int64_t m[] = {512, 256, 520, 504}, n[] = {256, 512, 512, 512};
    for (size_t i = 0; i < TSR_COUNT(m); i++) {
        tsr_value *y;
        struct net *t = product("2", m[i], n[i], &y);
        assert_string_equal(made_as(t, y), m[i] > n[i] ? "{2,1:0,1}" : "{1,2:0,1}");
        net_free(t);
    }
}

// 512 x 256 results on 8 devices in parts of 128 x 128 read 256 rows and columns for each part, in
// parts of 64 x 256 they would read 320.
static void a_grid_reads_less_of_a_product(void **state)
{
    (void)state;
    for (int turned = 0; turned < 2; turned++) {
        tsr_value *y;
        struct net *t = product("8", turned ? 256 : 512, turned ? 512 : 256, &y);
        assert_int_equal(strncmp(made_as(t, y), turned ? "{2,4:" : "{4,2:", 5), 0);
        net_free(t);
    }
}

// ---- tables ------------------------------------------------------------------------------------

// An embedding table that does not fit is sharded and never gathered: the rows that are read are
// much smaller.
static void tables_stay_where_they_are(void **state)
{
    (void)state;
    struct net *t = talking("4");
    tsr_value *table = weight(t, "table", DIMS(1000, 32));
    tsr_value *e = node(t, "Gather", table, input_of(t, "ids", TSR_INT64, DIMS(1, 8)), "e");
    tsr_value *y = node(t, "MatMul", e, transpose(t, table, DIMS(1, 0), "head"), "y");
    t->o.memory = 110000; // a quarter of the table, the same transposed, and logits
    plan(t, y);
    for (size_t i = 0; i < t->p.facts.devices; i++)
        assert_in_range(t->p.facts.memory[i], 1000 * 32, 110000);
    assert_true(t->p.facts.cost < INT64_C(20000000)); // moving a table takes at least 128 us
    net_free(t);
}

// ---- mixed plans -------------------------------------------------------------------------------

// With each increase of the limit, one more layer replicates its weights.
static void limits_between_give_mixed_plans(void **state)
{
    (void)state;
    const int layers = 4;
    int64_t last = INT64_MAX, costs = 0, weights = INT64_C(128) * 128 * 4;
    for (int whole = 0; whole <= layers; whole++) {
        struct net *t = net_new("2", 1e17, 1e16, 1e-3, 1e9);
        tsr_value *x = perceptron(t, 2 * layers, 1, 128, 128);
        t->o.memory = 2 * layers * weights / 2 + whole * 2 * weights / 2 + 8000;
        plan(t, x);
        assert_true(t->p.facts.cost < last);
        last = t->p.facts.cost;
        costs++;
        assert_int_equal(reductions(t), layers - whole);
        net_free(t);
    }
    assert_int_equal(costs, layers + 1);
}

// ---- given shardings and explanations ----------------------------------------------------------

// The planner must keep explicit shardings and use their configuration.
static void given_shardings_are_kept(void **state)
{
    (void)state;
    struct net *t = talking("2");
    tsr_config *c;
    tsr_value *y = perceptron(t, 2, 16, 32, 32);
    tsr_value *h = tsr_graph_value(t->g, "h0"), *w = tsr_graph_value(t->g, "w0");
    assert_int_equal(tsr_model_add_config(t->m, "mine", 2, NULL, 0, &c), TSR_OK);
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(h), w, c, "{2,1:1,0}"), TSR_OK);
    plan(t, y);
    assert_string_equal(t->p.facts.config, "mine");
    assert_int_equal(tsr_model_config_count(t->m), 1);
    assert_string_equal(sharding_at(t, tsr_value_producer(h), w), "{2,1:1,0}");
    assert_true(reductions(t) >= 1);
    t->o.config = "mine";
    t->o.topology = NULL;
    t->o.devices = 3;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-config");
    net_free(t);
}

// The chosen candidate is the cheapest, and costs what the plan costs.
static void choices_are_explained(void **state)
{
    (void)state;
    struct net *t = talking("4");
    tsr_value *y = perceptron(t, 2, 16, 64, 256);
    t->o.explain = "h1";
    plan(t, y);
    assert_true(t->p.facts.n_choices > 3);
    size_t chosen = 0;
    for (size_t i = 0; i < t->p.facts.n_choices; i++) {
        const tsr_plan_choice *c = &t->p.choices[i];
        chosen += c->chosen;
        assert_true(!c->chosen || c->cost == t->p.facts.cost);
        assert_true(!c->feasible || c->cost >= t->p.facts.cost);
    }
    assert_int_equal(chosen, 1);
    t->o.explain = "nobody";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-node");
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_alternate_in_columns_and_rows),
        cmocka_unit_test(attention_is_cut_by_heads),
        cmocka_unit_test(decoders_take_two_reductions_a_layer),
        cmocka_unit_test(plans_beat_those_by_hand),
        cmocka_unit_test(the_longer_side_of_a_product_is_cut),
        cmocka_unit_test(a_grid_reads_less_of_a_product),
        cmocka_unit_test(tables_stay_where_they_are),
        cmocka_unit_test(limits_between_give_mixed_plans),
        cmocka_unit_test(given_shardings_are_kept),
        cmocka_unit_test(choices_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
