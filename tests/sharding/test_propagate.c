// SPDX-License-Identifier: Apache-2.0
// test_propagate.c - sharding inference backwards (to producers) and sideways (to other readers):
// which demands are met, which are dropped and why, and that a second inference changes nothing.
#include "common.h"
#include "sharding/layouts/examine.h"

#include <stdio.h>

static tsr_value *input(struct net *t, const char *name, int64_t rows, int64_t columns)
{
    tsr_value *v = tsr_graph_add_input(t->g, name);
    set_shape(v, 2, I(rows, columns));
    return v;
}

static tsr_value *weight(struct net *t, const char *name, int64_t rows, int64_t columns)
{
    static const float zeros[64 * 64];
    tsr_value *v = tsr_graph_add_initializer(t->g, name, TSR_FLOAT, 2, I(rows, columns), zeros,
                                             (size_t)(rows * columns) * sizeof(float));
    assert_non_null(v);
    return v;
}

static tsr_value *node(struct net *t, const char *op, tsr_value *x, tsr_value *y, const char *out)
{
    tsr_value *in[] = {x, y};
    tsr_node *n = tsr_graph_add_node(t->g, "", op, out, in, y ? 2 : 1, &out, 1);
    assert_non_null(n);
    return tsr_node_output(n, 0);
}

static void shard(struct net *t, const tsr_value *at, tsr_value *v, const char *text)
{
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(at), v, t->c, text), TSR_OK);
}

static size_t findings(const struct net *t, const char *code)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(t->b->session); i++)
        n += strcmp(tsr_finding_value(t->b->session, i).code, code) == 0;
    return n;
}

// Asserts the sharding of v at the producer of `at`.
static void lies(struct net *t, const tsr_value *at, const tsr_value *v, const char *text)
{
    const tsr_node_config *nc = tsr_node_find_config(tsr_value_producer(at), t->c);
    assert_non_null(nc);
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++) {
        const tsr_spec *p = tsr_node_config_spec(nc, i);
        struct shape shape = tsr__declared_shape(&t->b->arena, v);
        struct tile_layout *l = NULL;
        if (tsr_spec_value(p) != v)
            continue;
        assert_int_equal(tsr__spec_layout(&t->b->arena, p, &shape, false, &l), TSR_OK);
        assert_non_null(l);
        struct str s = tsr__notation_print(&t->b->arena, l);
        assert_string_equal(tsr__arena_printf(&t->b->arena, STR_FMT, STR_ARG(s)).p, text);
        return;
    }
    fail_msg("no sharding of %s", tsr_value_name(v));
}

// Infers; the result must pass the checker, and inferring again must change nothing.
static void infer(struct net *t)
{
    void *first, *second;
    size_t n1, n2;
    assert_int_equal(
        tsr_infer(t->m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .propagate = true}),
        TSR_OK);
    assert_int_equal(tsr_model_save_bytes(t->m, &first, &n1), TSR_OK);
    size_t before = tsr_finding_count(t->b->session);
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    for (size_t i = before; i < tsr_finding_count(t->b->session); i++)
        assert_int_equal(tsr_finding_value(t->b->session, i).severity, TSR_NOTE);
    assert_int_equal(
        tsr_infer(t->m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .propagate = true}),
        TSR_OK);
    assert_int_equal(tsr_model_save_bytes(t->m, &second, &n2), TSR_OK);
    assert_true(n1 == n2 && memcmp(first, second, n1) == 0);
    tsr_bytes_free(t->b->session, first, n1);
    tsr_bytes_free(t->b->session, second, n2);
}

static void done(struct net *t)
{
    tsr_finding_clear(t->b->session);
    tsr_model_free(t->m);
}

// ---- demands that are met ----------------------------------------------------------------------

static void test_backwards_through_a_chain(void **state)
{
    for (int propagate = 0; propagate < 2; propagate++) {
        struct net *t = net_new(state, "c", 2);
        tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
        tsr_value *b = node(t, "Transpose", a, NULL, "b"), *c = node(t, "Tanh", b, NULL, "c");
        tsr_value *d = node(t, "Relu", c, NULL, "d");
        assert_int_equal(tsr_node_set_ints(tsr_value_producer(b), "perm", I(1, 0), 2), TSR_OK);
        assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
        shard(t, d, c, "{1,2:0,1}");
        if (propagate)
            infer(t);
        else
            assert_int_equal(tsr_infer(t->m, NULL), TSR_OK);
        lies(t, c, c, propagate ? "{1,2:0,1}" : "{1,1:0,1}");
        lies(t, b, b, propagate ? "{1,2:0,1}" : "{1,1:0,1}");
        lies(t, b, a, propagate ? "{2,1:0,1}" : "{1,1:0,1}");
        lies(t, a, a, propagate ? "{2,1:0,1}" : "{1,1:0,1}");
        lies(t, a, x, propagate ? "{2,1:0,1}" : "{1,1:0,1}");
        assert_int_equal(findings(t, "demand-dropped"), 0);
        assert_int_equal(findings(t, "reshard-implied"), 0);
        done(t);
    }
}

// One sharded matrix determines the shardings of the products before it, and of their weights.
static void test_backwards_through_products(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *w = weight(t, "w", 4, 8), *u = weight(t, "u", 8, 5);
    tsr_value *h = node(t, "MatMul", x, w, "h"), *r = node(t, "Relu", h, NULL, "r");
    tsr_value *y = node(t, "MatMul", r, u, "y");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, y, u, "{2,1:0,1}"); // the reduced dimension
    infer(t);
    lies(t, y, r, "{1,2:0,1}");
    lies(t, r, r, "{1,2:0,1}");
    lies(t, h, h, "{1,2:0,1}");
    lies(t, h, w, "{1,2:0,1}");
    lies(t, h, x, "{1,1:0,1}");
    lies(t, y, y, "{1,1:0,1}");
    assert_int_equal(findings(t, "reshard-implied"), 0);
    done(t);
}

// b demands a sharded a; its other reader c follows, and then demands the same of d, which e
// follows.
static void test_sideways(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
    tsr_value *d = node(t, "Tanh", x, NULL, "d"), *e = node(t, "Exp", d, NULL, "e");
    tsr_value *c = node(t, "Add", a, d, "c"), *b = node(t, "Abs", a, NULL, "b");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, b, a, "{2,1:0,1}");
    infer(t);
    tsr_value *all[] = {a, b, c, d, e};
    for (size_t i = 0; i < 5; i++)
        lies(t, all[i], all[i], "{2,1:0,1}");
    assert_int_equal(findings(t, "demand-dropped"), 0);
    done(t);
}

static void test_two_axes(void **state)
{
    struct net *t = net_new(state, "c", 4);
    tsr_value *x = input(t, "x", 6, 4), *w = weight(t, "w", 4, 8);
    tsr_value *a = node(t, "Relu", x, NULL, "a"), *y = node(t, "MatMul", a, w, "y");
    tsr_value *z = node(t, "Relu", y, NULL, "z");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, z, y, "{2,2:0,1,2,3}");
    infer(t);
    lies(t, y, w, "{1,2:(0,2),(1,3)}");
    lies(t, y, a, "{2,1:(0,1),(2,3)}");
    lies(t, a, a, "{2,1:(0,1),(2,3)}");
    done(t);
}

// ---- demands that are dropped ------------------------------------------------------------------

// Inference must not change explicit shardings.
static void test_explicit_is_never_overridden(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
    tsr_value *b = node(t, "Tanh", a, NULL, "b"), *c = node(t, "Relu", b, NULL, "c");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, a, a, "{1,2:0,1}");
    shard(t, c, b, "{2,1:0,1}");
    infer(t);
    lies(t, a, a, "{1,2:0,1}");
    lies(t, c, b, "{2,1:0,1}");
    lies(t, b, b, "{1,2:0,1}"); // the layout of the input has priority over the demand
    assert_int_equal(findings(t, "demand-dropped"), 1);
    done(t);
}

// A reader demands shards, another needs the full tensor: the value stays replicated.
static void test_reader_that_has_it_in_place(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
    tsr_value *b = node(t, "Tanh", a, NULL, "b"), *c = node(t, "Abs", a, NULL, "c");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, b, a, "{1,1:0,1}"); // replicated, so the demand of c would add communication
    shard(t, c, a, "{2,1:0,1}");
    infer(t);
    lies(t, a, a, "{1,1:0,1}");
    // only once: inferred again, the output is explicit
    assert_int_equal(findings(t, "demand-dropped"), 1);
    done(t);
}

// The coarser demand is met in either order: the other reader takes a slice without communication.
static void test_coarse_and_fine_wishes(void **state)
{
    for (int swap = 0; swap < 2; swap++) {
        struct net *t = net_new(state, "c", 4);
        tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
        tsr_value *b = node(t, "Tanh", a, NULL, "b"), *c = node(t, "Abs", a, NULL, "c");
        assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
        shard(t, swap ? c : b, a, "{2,1:(0,1),(2,3)}");
        shard(t, swap ? b : c, a, "{2,2:0,1,2,3}");
        infer(t);
        lies(t, a, a, "{2,1:(0,1),(2,3)}");
        assert_int_equal(findings(t, "demand-dropped"), swap);
        assert_int_equal(findings(t, "reshard-implied"), 0);
        done(t);
    }
}

// Two readers demand shards along different axes: the value stays replicated.
static void test_readers_with_different_wishes(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *w = weight(t, "w", 4, 8);
    tsr_value *a = node(t, "MatMul", x, w, "a"), *c = node(t, "Abs", a, NULL, "c");
    tsr_value *b = node(t, "Tanh", a, NULL, "b");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, c, a, "{1,2:0,1}");
    shard(t, b, a, "{2,1:0,1}");
    infer(t);
    lies(t, a, a, "{1,1:0,1}"); // replicated: each reader takes a slice without communication
    done(t);
}

// A reader or producer without a rule needs the full tensor, so it stays replicated.
static void test_whole_operator_keeps_its_input(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
    tsr_value *b = node(t, "Frob", a, NULL, "b"), *c = node(t, "Abs", a, NULL, "c");
    tsr_value *d = node(t, "Frob", x, NULL, "d"), *e = node(t, "Abs", d, NULL, "e");
    set_shape(a, 2, I(6, 4));
    set_shape(d, 2, I(6, 4));
    (void)b;
    shard(t, c, a, "{2,1:0,1}");
    shard(t, e, d, "{2,1:0,1}");
    infer(t);
    lies(t, a, a, "{1,1:0,1}");
    lies(t, d, d, "{1,1:0,1}"); // cannot be sharded: no conflict, the reader takes a slice
    assert_true(findings(t, "demand-dropped") >= 1);
    assert_int_equal(findings(t, "reshard-implied"), 0);
    done(t);
}

// Model outputs are not sharded because of a reader.
static void test_model_outputs_stay(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Relu", x, NULL, "a");
    tsr_value *b = node(t, "Abs", a, NULL, "b");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t->g, a), TSR_OK);
    shard(t, b, a, "{2,1:0,1}");
    infer(t);
    lies(t, a, a, "{1,1:0,1}");
    assert_true(findings(t, "demand-dropped") >= 1);
    done(t);
}

// Softmax needs its full axis; a demand alone must not cause an expansion.
static void test_statistics_are_not_cut(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *a = node(t, "Softmax", x, NULL, "a");
    tsr_value *b = node(t, "Abs", a, NULL, "b");
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, b, a, "{1,2:0,1}");
    infer(t);
    lies(t, a, a, "{1,1:0,1}");
    lies(t, a, x, "{1,1:0,1}");
    done(t);
}

static void test_lack_of_memory(void **state)
{
    struct net *t = net_new(state, "c", 2);
    tsr_value *x = input(t, "x", 6, 4), *w = weight(t, "w", 4, 8), *u = weight(t, "u", 8, 5);
    tsr_value *h = node(t, "MatMul", x, w, "h"), *r = node(t, "Relu", h, NULL, "r");
    tsr_value *y = node(t, "MatMul", r, u, "y"), *z = node(t, "Frob", r, NULL, "z");
    (void)z;
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    shard(t, y, u, "{2,1:0,1}");
    tsr_status status = TSR_NOMEM;
    for (uint64_t n = 1; n < 20000 && status != TSR_OK; n++) {
        tsr_model *copy;
        assert_int_equal(tsr_model_clone(t->m, &copy), TSR_OK);
        tsr__session_fault(t->b->session, 0, n, false);
        status = tsr_infer(
            copy, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .propagate = true});
        tsr__session_fault(t->b->session, 0, 0, false);
        for (size_t i = 0;
             status != TSR_OK && status != TSR_NOMEM && i < tsr_finding_count(t->b->session); i++)
            print_message("%d %s\n", (int)n, tsr_finding_text(t->b->session, i));
        assert_true(status == TSR_OK || status == TSR_NOMEM);
        tsr_model_free(copy);
        tsr_finding_clear(t->b->session);
    }
    assert_int_equal(status, TSR_OK);
    done(t);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        T(test_backwards_through_a_chain),
        T(test_backwards_through_products),
        T(test_sideways),
        T(test_two_axes),
        T(test_explicit_is_never_overridden),
        T(test_reader_that_has_it_in_place),
        T(test_coarse_and_fine_wishes),
        T(test_readers_with_different_wishes),
        T(test_whole_operator_keeps_its_input),
        T(test_model_outputs_stay),
        T(test_statistics_are_not_cut),
        T(test_lack_of_memory),
    };
    return cmocka_run_group_tests_name("propagate", tests, NULL, NULL);
}
