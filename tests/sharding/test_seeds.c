// SPDX-License-Identifier: Apache-2.0
// test_seeds.c - the worked examples of the published texts on multi-device ONNX (the proposal, the
// guide of its reference implementation, the formalism), with their known errors corrected: pieces,
// validity and inferred shardings.
#include "common.h"

#include <stdio.h>

static void done(struct net *t)
{
    tsr_finding_clear(t->b->session);
    tsr_model_free(t->m);
}

static tsr_value *input(struct net *t, const char *name, int rank, const int64_t *dims)
{
    tsr_value *v = tsr_graph_add_input(t->g, name);
    set_shape(v, rank, dims);
    return v;
}

static tsr_value *node(struct net *t, const char *op, tsr_value *const *in, size_t n,
                       const char *out)
{
    tsr_node *made = tsr_graph_add_node(t->g, "", op, out, in, n, &out, 1);
    assert_non_null(made);
    return tsr_node_output(made, 0);
}
#define NODE(t, op, out, ...)                                                                      \
    node(t, op, (tsr_value *[]){__VA_ARGS__},                                                      \
         sizeof((tsr_value *[]){__VA_ARGS__}) / sizeof(tsr_value *), out)

static void shard(struct net *t, const tsr_value *at, tsr_value *v, const char *text)
{
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(at), v, t->c, text), TSR_OK);
}

static size_t errors(const struct net *t)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(t->b->session); i++) {
        n += tsr_finding_value(t->b->session, i).severity == TSR_ERROR;
        if (tsr_finding_value(t->b->session, i).severity == TSR_ERROR)
            print_message("%s", tsr_finding_text(t->b->session, i));
    }
    return n;
}

static void same(const tsr_spec *p, const char *text)
{
    const char *is;
    assert_non_null(p);
    assert_int_equal(tsr_spec_text(p, &is), TSR_OK);
    assert_string_equal(is, text);
}

// Asserts the sharding of v at the producer of `at`.
static void lies(const tsr_value *at, const tsr_value *v, const char *text)
{
    same(tsr_node_sharding_of(tsr_value_producer(at), v, 0), text);
}

// The checker must accept the model without a replicated node, and inference must complete it.
static void infer(struct net *t)
{
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_int_equal(errors(t), 0);
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    assert_int_equal(tsr_infer(t->m, NULL), TSR_OK);
    assert_false(found(t->b->session, "not-cut-here"));
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_int_equal(errors(t), 0);
}

static void refused(struct net *t)
{
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_true(found(t->b->session, "spec-disagree"));
    assert_int_equal(tsr_infer(t->m, NULL), TSR_INVALID);
}

// ---- the proposal ------------------------------------------------------------------------------

struct holds {
    int64_t device;
    int rows, columns;
    float data[4];
};

// Asserts the shards of [[1, 2], [3, 4]] on each device.
static void hold(struct net *t, const tsr_spec *p, const struct holds *want, size_t n)
{
    static const float data[] = {1, 2, 3, 4};
    const char *text;
    tsr_pieces *d;
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    assert_int_equal(tsr_pieces_new(t->b->session, text, TSR_FLOAT, 2, I(2, 2), data, &d), TSR_OK);
    assert_int_equal(tsr_pieces_count(d), n);
    for (size_t i = 0; i < n; i++) {
        tsr_piece got = tsr_pieces_value(d, i);
        assert_int_equal(got.device, want[i].device);
        assert_int_equal(got.dims[0], want[i].rows);
        assert_int_equal(got.dims[1], want[i].columns);
        assert_memory_equal(got.data, want[i].data, got.bytes);
    }
    tsr_pieces_free(d);
}
#define HOLD(t, p, ...)                                                                            \
    hold(t, p, (const struct holds[]){__VA_ARGS__},                                                \
         sizeof((const struct holds[]){__VA_ARGS__}) / sizeof(struct holds))

struct square {
    struct net *t;
    tsr_value *x, *y;
    tsr_spec *p;
};

static struct square square_new(void **state, int64_t devices)
{
    struct square q = {.t = net_new(state, "conf", devices)};
    q.x = input(q.t, "x", 2, I(2, 2));
    q.y = NODE(q.t, "Relu", "y", q.x);
    q.p = tsr_node_add_spec(tsr_value_producer(q.y), q.t->c, q.x);
    assert_non_null(q.p);
    return q;
}

// The output must have the sharding of the input.
static void square_done(struct square *q, const char *text)
{
    same(q->p, text);
    infer(q->t);
    lies(q->y, q->y, text);
    done(q->t);
}

static void test_split(void **state)
{
    struct square q = square_new(state, 2);
    assert_int_equal(tsr_spec_set_devices(q.p, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(q.p, 0, NULL, I(2), 1), TSR_OK);
    HOLD(q.t, q.p, {0, 1, 2, {1, 2}}, {1, 1, 2, {3, 4}});
    square_done(&q, "{2,1:0,1}");
    q = square_new(state, 2);
    assert_int_equal(tsr_spec_set_devices(q.p, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(q.p, 1, NULL, I(2), 1), TSR_OK);
    HOLD(q.t, q.p, {0, 2, 1, {1, 3}}, {1, 2, 1, {2, 4}});
    square_done(&q, "{1,2:0,1}");
    q = square_new(state, 4);
    assert_int_equal(tsr_spec_set_devices(q.p, I(0, 1, 2, 3), 4), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(q.p, 0, NULL, I(2), 1), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(q.p, 1, NULL, I(2), 1), TSR_OK);
    HOLD(q.t, q.p, {0, 1, 1, {1}}, {1, 1, 1, {2}}, {2, 1, 1, {3}}, {3, 1, 1, {4}});
    square_done(&q, "{2,2:0,1,2,3}");
}

static void test_broadcast(void **state)
{
    struct square q = square_new(state, 2);
    assert_int_equal(tsr_spec_set_devices(q.p, I(-1), 1), TSR_OK);
    assert_int_equal(tsr_spec_add_group(q.p, -1, I(0, 1), 2), TSR_OK);
    HOLD(q.t, q.p, {0, 2, 2, {1, 2, 3, 4}}, {1, 2, 2, {1, 2, 3, 4}});
    square_done(&q, "{1,1:0,1}");
}

static void test_split_and_broadcast(void **state)
{
    struct square q = square_new(state, 4);
    assert_int_equal(tsr_spec_set_devices(q.p, I(-1, -2), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(q.p, -1, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(q.p, -2, I(2, 3), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(q.p, 0, NULL, I(2), 1), TSR_OK);
    // the text has [[2, 3]] for devices 2 and 3, which is not a row of the tensor
    HOLD(q.t, q.p, {0, 1, 2, {1, 2}}, {1, 1, 2, {1, 2}}, {2, 1, 2, {3, 4}}, {3, 1, 2, {3, 4}});
    square_done(&q, "{2,1:(0,1),(2,3)}");
}

// Nodes A to E are in stage 1, F to K in stage 2.
static void test_pipeline_picture(void **state)
{
    struct net *t = net_new(state, "conf", 2);
    tsr_value *v = input(t, "x", 2, I(2, 2));
    for (int i = 0; i < 11; i++) {
        char name[2] = {(char)('A' + i), 0};
        v = NODE(t, "Relu", name, v);
        assert_int_equal(tsr_node_set_stage(tsr_value_producer(v), t->c, i < 5 ? 1 : 2), TSR_OK);
    }
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_int_equal(errors(t), 0);
    // a stage that decreases along the data flow is an error
    assert_int_equal(tsr_node_set_stage(tsr_graph_first(t->g), t->c, 3), TSR_OK);
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_true(found(t->b->session, "stage-order"));
    done(t);
}

// ---- the guide ---------------------------------------------------------------------------------

static void test_quick_example(void **state)
{
    struct net *t = net_new(state, "conf", 2);
    tsr_value *x = input(t, "x", 2, I(8, 16)), *y = NODE(t, "Relu", "y", x);
    tsr_node *relu = tsr_value_producer(y);
    assert_int_equal(tsr_node_shard(relu, x, t->c, 0, 2, I(0, 1), 2, -1), TSR_OK);
    assert_int_equal(tsr_value_rename(x, "input"), TSR_OK);
    const tsr_spec *p = tsr_node_sharding_of(relu, x, 0);
    assert_ptr_equal(tsr_spec_value(p), x);
    assert_string_equal(tsr_value_name(tsr_spec_value(p)), "input");
    infer(t);
    lies(y, y, "{2,1:0,1}");
    assert_int_equal(tsr_model_remove_config(t->m, t->c, true), TSR_OK);
    assert_int_equal(tsr_model_config_count(t->m), 0);
    assert_int_equal(tsr_node_config_count(relu), 0);
    done(t);
}

struct product {
    struct net *t;
    tsr_value *w, *x, *y;
    tsr_node *mm;
};

static struct product product_new(void **state, int64_t devices)
{
    struct product p = {.t = net_new(state, "conf", devices)};
    p.w = input(p.t, "W", 2, I(1024, 4096));
    p.x = input(p.t, "x", 2, I(4096, 8));
    p.y = NODE(p.t, "MatMul", "y", p.w, p.x);
    p.mm = tsr_value_producer(p.y);
    return p;
}

static void product_done(struct product *p, const char *w, const char *x, const char *y)
{
    infer(p->t);
    lies(p->y, p->w, w);
    lies(p->y, p->x, x);
    lies(p->y, p->y, y);
    done(p->t);
}

static void box(struct net *t, const char *text, size_t i, int64_t device, const int64_t *shape)
{
    const tsr_box *boxes;
    size_t n;
    assert_int_equal(tsr_tiles(t->b->session, text, 2, I(1024, 4096), 0, &boxes, &n), TSR_OK);
    assert_true(i < n);
    assert_int_equal(boxes[i].device, device);
    for (int d = 0; d < 2; d++)
        assert_int_equal(boxes[i].stop[d] - boxes[i].start[d], shape[d]);
}

static void test_one_mesh_axis(void **state)
{
    // the output dimension of W @ x ("row-parallel" there)
    struct product p = product_new(state, 4);
    assert_int_equal(tsr_node_shard(p.mm, p.w, p.t->c, 0, 4, I(0, 1, 2, 3), 4, -1), TSR_OK);
    for (size_t i = 0; i < 4; i++)
        box(p.t, "{4,1:0,1,2,3}", i, (int64_t)i, I(256, 4096));
    product_done(&p, "{4,1:0,1,2,3}", "{1,1:0,1,2,3}", "{4,1:0,1,2,3}");
    // the reduction dimension
    p = product_new(state, 4);
    assert_int_equal(tsr_node_shard(p.mm, p.w, p.t->c, 1, 4, I(0, 1, 2, 3), 4, -1), TSR_OK);
    product_done(&p, "{1,4:0,1,2,3}", "{4,1:0,1,2,3}", "{1,1:0,1,2,3}");
}

static void test_two_mesh_axes(void **state)
{
    struct product p = product_new(state, 4);
    assert_int_equal(tsr_node_shard(p.mm, p.w, p.t->c, 0, 2, I(0, 1, 2, 3), 4, -1), TSR_OK);
    assert_int_equal(tsr_node_shard(p.mm, p.w, p.t->c, 1, 2, I(0, 1, 2, 3), 4, -1), TSR_OK);
    const tsr_spec *s = tsr_node_sharding_of(p.mm, p.w, 0);
    assert_null(tsr_node_sharding_of(p.mm, p.w, 1));
    assert_int_equal(tsr_spec_dim_count(s), 2);
    assert_int_equal(tsr_spec_dim_axis(s, 0), 0);
    assert_int_equal(tsr_spec_dim_axis(s, 1), 1);
    box(p.t, "{2,2:0,1,2,3}", 3, 3, I(512, 2048));
    product_done(&p, "{2,2:0,1,2,3}", "{2,1:(0,2),(1,3)}", "{2,1:(0,1),(2,3)}");
}

static void test_groups(void **state)
{
    struct product p = product_new(state, 2);
    tsr_spec *s = tsr_node_add_spec(p.mm, p.t->c, p.w);
    assert_int_equal(tsr_spec_set_devices(s, I(-1), 1), TSR_OK);
    assert_int_equal(tsr_spec_add_group(s, -1, I(0, 1), 2), TSR_OK);
    product_done(&p, "{1,1:0,1}", "{1,1:0,1}", "{1,1:0,1}");
    p = product_new(state, 4);
    s = tsr_node_add_spec(p.mm, p.t->c, p.w);
    tsr_dim size = {.value = 1024, .symbol = ""};
    assert_int_equal(tsr_spec_set_devices(s, I(-1, -2), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(s, -1, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(s, -2, I(2, 3), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(s, 0, &size, I(2), 1), TSR_OK);
    product_done(&p, "{2,1:(0,1),(2,3)}", "{1,1:0,1,2,3}", "{2,1:(0,1),(2,3)}");
}

static tsr_value *decoder(struct net *t, tsr_value *v, int layers, int *count)
{
    for (int i = 0; i < layers; i++) {
        char name[16];
        const char *out = name;
        snprintf(name, sizeof(name), "h%d", ++*count);
        v = tsr_node_output(
            tsr_graph_add_node(t->g, "custom", "DecoderLayer", name, &v, 1, &out, 1), 0);
        tsr_dim dims[] = {{-1, "B"}, {-1, "T"}, {4096, ""}};
        assert_int_equal(tsr_value_set_type(v, TSR_FLOAT, 3, dims), TSR_OK);
    }
    return v;
}

static void test_decoder_on_three_devices(void **state)
{
    static const char *const names[] = {"CPU", "NPU", "GPU"};
    struct net *t = net_new(state, "conf", 2);
    tsr_config *plan;
    int count = 0, placed = 0;
    assert_int_equal(tsr_model_add_config(t->m, "plan", 3, names, 3, &plan), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t->m, "custom", 1), TSR_OK);
    tsr_dim dims[] = {{-1, "B"}, {-1, "T"}};
    tsr_value *tokens = tsr_graph_add_input(t->g, "tokens");
    assert_int_equal(tsr_value_set_type(tokens, TSR_INT64, 2, dims), TSR_OK);
    tsr_value *embed = input(t, "embed.weight", 2, I(32000, 4096));
    tsr_value *lm =
        // the text has [32000, 4096], which does not fit the product
        input(t, "lm_head.weight", 2, I(4096, 32000));
    tsr_value *h = NODE(t, "Gather", "h0", embed, tokens);
    h = decoder(t, h, 10, &count);
    tsr_value *logits = NODE(t, "MatMul", "logits", h, lm);
    for (tsr_node *n = tsr_graph_first(t->g); n; n = tsr_node_next(n), placed++) {
        int64_t stage = placed == 0 ? 0 : placed <= 10 ? 1 : 2, is;
        assert_int_equal(tsr_node_set_stage(n, plan, stage), TSR_OK);
        assert_true(tsr_node_config_stage(tsr_node_config_at(n, 0), &is));
        assert_string_equal(tsr_config_device_name(plan, (size_t)is), names[stage]);
    }
    assert_int_equal(placed, 12);
    assert_int_equal(tsr_shapes(t->m, NULL, 0, NULL), TSR_OK);
    assert_int_equal(tsr_value_rank(logits), 3);
    assert_int_equal(tsr_check(t->m, NULL), TSR_OK);
    assert_int_equal(errors(t), 0);
    done(t);
}

// ---- the formalism -----------------------------------------------------------------------------

static void test_add_of_two_matrices(void **state)
{
    struct net *t = net_new(state, "conf", 2);
    tsr_value *a = input(t, "A", 2, I(32, 1024)), *b = input(t, "B", 2, I(32, 1024));
    tsr_value *c = NODE(t, "Add", "C", a, b);
    shard(t, c, a, "{2,1:0,1}");
    shard(t, c, b, "{1,2:0,1}");
    refused(t);
    tsr_finding_clear(t->b->session);
    shard(t, c, b, "{2,1:0,1}");
    infer(t);
    lies(c, c, "{2,1:0,1}");
    done(t);
}

// An input without a sharding has that of its producer; a model input is unsharded; an output may
// have another explicit sharding.
static void test_missing_and_other_shardings(void **state)
{
    struct net *t = net_new(state, "conf", 2);
    tsr_value *x = input(t, "X", 2, I(6, 4)), *a = NODE(t, "Abs", "a", x);
    tsr_value *b = NODE(t, "Neg", "b", a), *c = NODE(t, "Exp", "c", x);
    shard(t, a, x, "{2,1:0,1}");
    shard(t, a, a, "{1,2:0,1}");
    infer(t);
    lies(a, a, "{1,2:0,1}");
    lies(b, a, "{1,2:0,1}");
    lies(b, b, "{1,2:0,1}");
    lies(c, x, "{1,1:0,1}");
    lies(c, c, "{1,1:0,1}");
    done(t);
}

// The list of the text, without Max and Min (several inputs) and ConstantOfShape (not
// element-wise), but with operators that it omits.
static void test_unary(void **state)
{
    static const char *const ops[] = {
        "Abs",   "Acos", "Acosh",     "Asin",     "Asinh",      "Atan",       "Atanh",    "Ceil",
        "Cos",   "Cosh", "Dropout",   "Erf",      "Exp",        "Floor",      "Identity", "IsInf",
        "IsNaN", "Log",  "Neg",       "Not",      "Reciprocal", "Round",      "Sigmoid",  "Sign",
        "Sin",   "Sinh", "Tan",       "Tanh",     "Cast",       "BitwiseNot", "Relu",     "Sqrt",
        "Clip",  "Elu",  "LeakyRelu", "Softplus", "HardSigmoid"};
    static const char *const cuts[] = {"{2,1:0,1}", "{1,2:0,1}", "{2,2:0,1,2,3}",
                                       "{2,1:(0,1),(2,3)}", "{1,1:0,1}"};
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        for (size_t k = 0; k < sizeof(cuts) / sizeof(*cuts); k++) {
            struct net *t = net_new(state, "conf", 4);
            tsr_value *x = input(t, "x", 2, I(6, 4)), *y = NODE(t, ops[i], "y", x);
            if (!strcmp(ops[i], "Cast"))
                assert_int_equal(tsr_node_set_int(tsr_value_producer(y), "to", TSR_FLOAT), TSR_OK);
            shard(t, y, x, cuts[k]);
            infer(t);
            lies(y, y, cuts[k]);
            done(t);
        }
}

static void test_broadcasting(void **state)
{
    static const char *const ops[] = {"Add",
                                      "And",
                                      "BitwiseAnd",
                                      "BitwiseOr",
                                      "BitwiseXor",
                                      "Equal",
                                      "Greater",
                                      "Less",
                                      "Mod",
                                      "Mul",
                                      "Or",
                                      "Pow",
                                      "Sub",
                                      "Sum",
                                      "Xor",
                                      "Div",
                                      "GreaterOrEqual",
                                      "LessOrEqual",
                                      "Mean",
                                      "Max",
                                      "Min",
                                      "PRelu"};
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++) {
        struct net *t = net_new(state, "conf", 2);
        tsr_value *a = input(t, "a", 2, I(6, 4)), *b = input(t, "b", 2, I(6, 4));
        tsr_value *row = input(t, "row", 2, I(1, 4)), *one = input(t, "one", 2, I(1, 4));
        tsr_value *y = NODE(t, ops[i], "y", a, b), *z = NODE(t, ops[i], "z", a, row);
        tsr_value *u = NODE(t, ops[i], "u", row, one);
        shard(t, y, a, "{2,1:0,1}"); // the same axes
        shard(t, y, b, "{2,1:0,1}");
        shard(t, z, a, "{2,1:0,1}"); // both readers need `row`
        shard(t, u, row, "{1,2:0,1}");
        infer(t);
        lies(y, y, "{2,1:0,1}");
        lies(z, row, "{1,1:0,1}");
        lies(z, z, "{2,1:0,1}");
        lies(u, u, "{1,2:0,1}"); // size 1 in all inputs: not sharded
        done(t);
    }
}

// The figure: Input1 [M, 1] and Input2 [1, N], each shard on two devices. Each output shard is on
// the device that has both input shards.
static void test_composing_two_axes(void **state)
{
    struct net *t = net_new(state, "conf", 4);
    tsr_value *a = input(t, "Input1", 2, I(6, 1)), *b = input(t, "Input2", 2, I(1, 4));
    tsr_value *y = NODE(t, "Add", "y", a, b);
    tsr_spec *p = tsr_node_add_spec(tsr_value_producer(y), t->c, a);
    assert_int_equal(tsr_spec_set_devices(p, I(-1, -2), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(p, -1, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(p, -2, I(2, 3), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(p, 0, NULL, I(2), 1), TSR_OK);
    shard(t, y, b, "{1,2:(0,2),(1,3)}");
    infer(t);
    lies(y, y, "{2,2:0,1,2,3}");
    done(t);
    // no device has the first shard of one input and the second of the other
    t = net_new(state, "conf", 4);
    a = input(t, "Input1", 2, I(6, 1));
    b = input(t, "Input2", 2, I(1, 4));
    y = NODE(t, "Add", "y", a, b);
    shard(t, y, a, "{2,1:(0,1),(2,3)}");
    shard(t, y, b, "{1,2:(0,1),(2,3)}");
    refused(t);
    done(t);
}

static void test_composing_three_axes(void **state)
{
    struct net *t = net_new(state, "conf", 8);
    tsr_value *a = input(t, "a", 3, I(6, 1, 1)), *b = input(t, "b", 3, I(1, 4, 1));
    tsr_value *c = input(t, "c", 3, I(1, 1, 2)), *y = NODE(t, "Sum", "y", a, b, c);
    shard(t, y, a, "{2,1,1:(0,1,2,3),(4,5,6,7)}");
    shard(t, y, b, "{1,2,1:(0,1,4,5),(2,3,6,7)}");
    shard(t, y, c, "{1,1,2:(0,2,4,6),(1,3,5,7)}");
    infer(t);
    lies(y, y, "{2,2,2:0,1,2,3,4,5,6,7}");
    done(t);
}

static void test_reductions(void **state)
{
    static const char *const ops[] = {"ReduceSum",    "ReduceMax", "ReduceMin",
                                      "ReduceProd",   "ReduceL1",  "ReduceSumSquare",
                                      "ReduceLogSum", "ReduceL2",  "ReduceMean"};
    static const struct {
        const char *in, *kept, *dropped;
    } cases[] = {
        {"{2,1:0,1}", "{2,1:0,1}", "{2:0,1}"},
        {"{1,2:0,1}", "{1,1:0,1}", "{1:0,1}"}, // all participating devices get the result
        {"{2,2:0,1,2,3}", "{2,1:(0,1),(2,3)}", "{2:(0,1),(2,3)}"},
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        for (size_t k = 0; k < 6; k++) {
            struct net *t = net_new(state, "conf", 4);
            int64_t axis = 1;
            tsr_value *x = input(t, "x", 2, I(6, 4));
            tsr_value *axes =
                tsr_graph_add_initializer(t->g, "axes", TSR_INT64, 1, I(1), &axis, sizeof(axis));
            tsr_value *y = NODE(t, ops[i], "y", x, axes);
            assert_int_equal(tsr_node_set_int(tsr_value_producer(y), "keepdims", k < 3), TSR_OK);
            shard(t, y, x, cases[k % 3].in);
            infer(t);
            lies(y, y, k < 3 ? cases[k % 3].kept : cases[k % 3].dropped);
            done(t);
        }
}

static void test_products(void **state)
{
    static const struct {
        const char *a, *b, *y; // b NULL: none; y NULL: rejected
    } cases[] = {
        {"{2,1:0,1}", NULL, "{2,1:0,1}"},
        {"{1,1:0,1}", "{1,2:0,1}", "{1,2:0,1}"},
        {"{1,2:0,1}", "{2,1:0,1}", "{1,1:0,1}"},
        {"{2,1:(0,1),(2,3)}", "{1,2:(0,2),(1,3)}", "{2,2:0,1,2,3}"},
        {"{2,2:0,1,2,3}", "{2,1:(0,2),(1,3)}", "{2,1:(0,1),(2,3)}"},
        {"{1,2:0,1}", "{1,1:0,1}", NULL}, // both reduction axes must have the same sharding
        {"{2,1:0,1}", "{1,2:0,1}", NULL}, // no device for two of the four output shards
    };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
        struct net *t = net_new(state, "conf", 4);
        size_t k = i / 2;
        tsr_value *a = input(t, "a", 2, I(6, 4)), *b = input(t, "b", 2, I(4, 8));
        tsr_value *y = NODE(t, i % 2 ? "Gemm" : "MatMul", "y", a, b);
        shard(t, y, a, cases[k].a);
        if (cases[k].b)
            shard(t, y, b, cases[k].b);
        if (cases[k].y) {
            infer(t);
            lies(y, y, cases[k].y);
        } else {
            refused(t);
        }
        done(t);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        T(test_split),
        T(test_broadcast),
        T(test_split_and_broadcast),
        T(test_pipeline_picture),
        T(test_quick_example),
        T(test_one_mesh_axis),
        T(test_two_mesh_axes),
        T(test_groups),
        T(test_decoder_on_three_devices),
        T(test_add_of_two_matrices),
        T(test_missing_and_other_shardings),
        T(test_unary),
        T(test_broadcasting),
        T(test_composing_two_axes),
        T(test_composing_three_axes),
        T(test_reductions),
        T(test_products),
    };
    return cmocka_run_group_tests_name("seeds", tests, NULL, NULL);
}
