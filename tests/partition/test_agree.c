// SPDX-License-Identifier: Apache-2.0
// test_agree.c - before a partition is published, a check compares the graphs of its ranks. It must
// find every disagreement; the graphs here have deliberate errors.
#include "common.h"

struct pair {
    struct draft draft;
    struct part parts[2];
};

// Adds a communication to the graph of rank r; returns its node.
static tsr_node *add_comm(struct pair *p, int r, const char *op, int64_t id, const int64_t *group,
                          size_t n)
{
    struct part *t = &p->parts[r];
    static const float zero = 0;
    struct str x = tsr__part_new_name(t), y = tsr__part_new_name(t), token = tsr__part_new_name(t);
    tsr_value *inputs[2] = {
        tsr_graph_add_initializer(t->graph, x.p, TSR_FLOAT, 0, NULL, &zero, sizeof(zero)),
        t->token};
    const char *outputs[2] = {y.p, token.p};
    tsr_node *node = tsr_graph_add_node(t->graph, COMM_DOMAIN, op, "c", inputs, 2, outputs, 2);
    assert_non_null(node);
    t->token = tsr_node_output(node, 1);
    assert_int_equal(tsr_node_set_string(node, "plan", "0123456789abcdef"), TSR_OK);
    assert_int_equal(tsr_node_set_int(node, "id", id), TSR_OK);
    assert_int_equal(tsr_node_set_ints(node, "group", group, n), TSR_OK);
    assert_int_equal(tsr_node_set_int(node, "elem_type", TSR_FLOAT), TSR_OK);
    return node;
}

static const int64_t both[2] = {0, 1};

static void begin(struct bench *b, struct pair *p)
{
    static const int64_t one = 1, zero = 0;
    memset(p, 0, sizeof(*p));
    p->draft = (struct draft){.session = b->s, .arena = &b->arena, .n_ranks = 2, .n_comms = 3};
    tsr__map_init(&p->draft.names, &b->arena, 0);
    for (int r = 0; r < 2; r++) {
        struct part *t = &p->parts[r];
        t->draft = &p->draft;
        t->rank = r;
        assert_int_equal(tsr_model_new(b->s, "part", 8, &t->model), TSR_OK);
        t->graph = tsr_model_graph(t->model);
        t->token = tsr_graph_add_initializer(t->graph, TOKEN_NAME, TSR_INT64, 1, &one, &zero,
                                             sizeof(zero));
    }
}

static void end(struct bench *b, struct pair *p, tsr_status want)
{
    tsr_finding_clear(b->s);
    tsr_status st = tsr__parts_agree(&p->draft, p->parts);
    assert_int_equal(st, want);
    assert_int_equal(tsr_finding_count(b->s), want != TSR_OK);
    if (want != TSR_OK)
        assert_true(found(b, "partition-disagrees"));
    tsr_model_free(p->parts[0].model);
    tsr_model_free(p->parts[1].model);
}

// One communication of a value [rows, 4], sharded along its first dimension, between two ranks.
static tsr_status sizes_of(struct bench *b, int kind, int64_t rows, int axis, tsr_dtype type)
{
    static int64_t devices[2] = {0, 1};
    tsr_dim dims[2] = {{rows, ""}, {4, ""}};
    struct tile_factor cut = {0, 2, 0};
    struct tile_dim cuts[2] = {{&cut, 1}, {NULL, 0}};
    struct tile_owner owners[2] = {{0, 0}, {1, 1}};
    struct tile_layout *l = tsr__layout_cut(&b->arena, 2, cuts);
    assert_non_null(l);
    assert_true(tsr__layout_own(&b->arena, l, owners, 2));
    struct item it = {.name = STR("x"), .dtype = type, .rank = 2, .dims = dims};
    struct form f = {.item = &it, .layout = l}, *in = &f;
    struct device_group group = {devices, 2};
    unsigned char live = 1;
    struct step st = {.kind = kind,
                      .inputs = &in,
                      .n_inputs = 1,
                      .outputs = &in,
                      .n_outputs = 1,
                      .groups = &group,
                      .group_live = &live,
                      .n_groups = 1,
                      .axis = axis};
    struct step *list[1] = {&st};
    struct draft p = {.session = b->s, .arena = &b->arena, .n_ranks = 2};
    p.steps.at = list;
    p.steps.n = 1;
    tsr_finding_clear(b->s);
    tsr_status status = tsr__sizes_agree(&p);
    assert_int_equal(tsr_finding_count(b->s), status != TSR_OK);
    return status;
}

static tsr_status sizes(struct bench *b, int kind, int64_t rows, int axis)
{
    return sizes_of(b, kind, rows, axis, TSR_FLOAT);
}

// Communication of a value of unknown type must be rejected.
static void type_unknown(void **state)
{
    struct bench *b = *state;
    assert_int_equal(sizes_of(b, COMM_ALL_GATHER, 4, 0, TSR_INT64), TSR_OK);
    assert_int_equal(sizes_of(b, COMM_ALL_GATHER, 4, 0, TSR_UNDEFINED), TSR_BUG);
    assert_true(found(b, "partition-disagrees"));
}

static void sizes_differ(void **state)
{
    struct bench *b = *state;
    assert_int_equal(sizes(b, COMM_ALL_REDUCE, 4, 0), TSR_OK);
    assert_int_equal(sizes(b, COMM_ALL_REDUCE, 3, 0), TSR_BUG); // rank 0 has 1 row, rank 1 has 2
    assert_true(found(b, "partition-disagrees"));
    assert_int_equal(sizes(b, COMM_ALL_REDUCE, -1, 0), TSR_BUG); // unknown sizes
    assert_int_equal(sizes(b, COMM_ALL_GATHER, 3, 0), TSR_OK);
    assert_int_equal(sizes(b, COMM_ALL_GATHER, 3, 1), TSR_BUG);
    assert_int_equal(sizes(b, COMM_ALL_TO_ALL, 3, 0), TSR_OK);
    assert_int_equal(sizes(b, COMM_REDUCE_SCATTER, 3, 1), TSR_BUG);
}

static void agreement(void **state)
{
    struct pair p;
    begin(*state, &p);
    for (int r = 0; r < 2; r++) {
        add_comm(&p, r, "AllReduce", 0, both, 2);
        add_comm(&p, r, "AllGather", 2, both, 2);
    }
    // a group of one rank that the plan does not contain
    add_comm(&p, 1, "AllReduce", 3, both + 1, 1);
    p.draft.n_comms = 4;
    end(*state, &p, TSR_OK);
}

static void another_operator(void **state)
{
    struct pair p;
    begin(*state, &p);
    add_comm(&p, 0, "AllReduce", 0, both, 2);
    add_comm(&p, 1, "AllReduceF16", 0, both, 2);
    end(*state, &p, TSR_BUG);
}

static void another_attribute(void **state)
{
    static const char *const names[] = {"elem_type", "axis", "id"};
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        struct pair p;
        begin(*state, &p);
        add_comm(&p, 0, "AllGather", 0, both, 2);
        tsr_node *n = add_comm(&p, 1, "AllGather", 0, both, 2);
        assert_int_equal(tsr_node_set_int(n, names[i], 2), TSR_OK);
        end(*state, &p, TSR_BUG);
    }
    struct pair p;
    begin(*state, &p);
    add_comm(&p, 0, "AllReduce", 0, both, 2);
    tsr_node *n = add_comm(&p, 1, "AllReduce", 0, both, 2);
    assert_int_equal(tsr_node_set_string(n, "plan", "ffffffffffffffff"), TSR_OK);
    end(*state, &p, TSR_BUG);
}

static void a_member_is_missing(void **state)
{
    struct pair p;
    begin(*state, &p);
    add_comm(&p, 0, "AllReduce", 0, both, 2);
    end(*state, &p, TSR_BUG);
    begin(*state, &p);
    add_comm(&p, 1, "AllReduce", 0, both, 2);
    end(*state, &p, TSR_BUG);
}

// The ranks communicate in different orders, which would deadlock.
static void another_order(void **state)
{
    struct pair p;
    begin(*state, &p);
    add_comm(&p, 0, "AllReduce", 0, both, 2);
    add_comm(&p, 0, "AllReduce", 1, both, 2);
    add_comm(&p, 1, "AllReduce", 1, both, 2);
    add_comm(&p, 1, "AllReduce", 0, both, 2);
    end(*state, &p, TSR_BUG);
}

// A rank takes part in a communication of a group to which it does not belong.
static void not_of_the_group(void **state)
{
    struct pair p;
    begin(*state, &p);
    add_comm(&p, 0, "AllReduce", 0, both + 1, 1);
    end(*state, &p, TSR_BUG);
}

// Communications of a rank must be chained by tokens.
static void off_the_chain(void **state)
{
    struct pair p;
    begin(*state, &p);
    for (int r = 0; r < 2; r++) {
        tsr_value *first = p.parts[r].token;
        add_comm(&p, r, "AllReduce", 0, both, 2);
        if (r == 1)
            p.parts[r].token = first; // no token: an engine could run the second one first
        add_comm(&p, r, "AllReduce", 1, both, 2);
    }
    end(*state, &p, TSR_BUG);
}

// ---- subgraphs ---------------------------------------------------------------------------------

// A Loop on rank r that carries the token. The next communications are added to its body.
static tsr_node *loop_begin(struct pair *p, int r)
{
    struct part *t = &p->parts[r];
    static const int64_t turns = 2;
    static const unsigned char yes = 1;
    struct str name[4];
    for (int i = 0; i < 4; i++)
        name[i] = tsr__part_new_name(t);
    tsr_value *in[3] = {
        tsr_graph_add_initializer(t->graph, name[0].p, TSR_INT64, 0, NULL, &turns, sizeof(turns)),
        tsr_graph_add_initializer(t->graph, name[1].p, TSR_BOOL, 0, NULL, &yes, 1), t->token};
    const char *out[1] = {name[2].p};
    tsr_node *n = tsr_graph_add_node(t->graph, "", "Loop", "loop", in, 3, out, 1);
    assert_non_null(n);
    t->graph = tsr__node_add_graph(n, "body", "body");
    assert_non_null(t->graph);
    assert_non_null(tsr_graph_add_input(t->graph, "i"));
    assert_non_null(tsr_graph_add_input(t->graph, "go"));
    t->token = tsr_graph_add_input(t->graph, name[3].p);
    assert_non_null(t->token);
    return n;
}

static void loop_end(struct pair *p, int r, tsr_node *n)
{
    struct part *t = &p->parts[r];
    assert_int_equal(tsr_graph_add_output(t->graph, tsr_graph_value(t->graph, "go")), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t->graph, t->token), TSR_OK);
    t->graph = tsr_node_graph(n);
    t->token = tsr_node_output(n, 0);
}

static void in_loops(void **state)
{
    struct pair p;
    begin(*state, &p);
    for (int r = 0; r < 2; r++) {
        tsr_node *n = loop_begin(&p, r);
        add_comm(&p, r, "AllReduce", 0, both, 2);
        loop_end(&p, r, n);
        add_comm(&p, r, "AllReduce", 1, both, 2);
    }
    end(*state, &p, TSR_OK);
}

// One rank communicates in a loop, the other outside of it.
static void inside_and_outside(void **state)
{
    struct pair p;
    begin(*state, &p);
    tsr_node *n = loop_begin(&p, 0);
    add_comm(&p, 0, "AllReduce", 0, both, 2); // in every iteration
    loop_end(&p, 0, n);
    add_comm(&p, 1, "AllReduce", 0, both, 2); // once
    end(*state, &p, TSR_BUG);
}

// An iteration must return the token of its last communication.
static void a_turn_forgets_the_token(void **state)
{
    struct pair p;
    begin(*state, &p);
    for (int r = 0; r < 2; r++) {
        tsr_node *n = loop_begin(&p, r);
        tsr_value *first = p.parts[r].token;
        add_comm(&p, r, "AllReduce", 0, both, 2);
        if (r == 1)
            p.parts[r].token = first; // no token: the next iteration need not wait for this one
        loop_end(&p, r, n);
    }
    end(*state, &p, TSR_BUG);
}

// Adds an If on rank r that communicates in branch number `branch`.
static void add_if(struct pair *p, int r, int branch)
{
    struct part *t = &p->parts[r];
    static const char *const names[] = {"then_branch", "else_branch"};
    static const unsigned char yes = 1;
    struct str c = tsr__part_new_name(t), y = tsr__part_new_name(t);
    tsr_value *in[1] = {tsr_graph_add_initializer(t->graph, c.p, TSR_BOOL, 0, NULL, &yes, 1)};
    const char *out[1] = {y.p};
    tsr_graph *outer = t->graph;
    tsr_value *token = t->token;
    tsr_node *n = tsr_graph_add_node(outer, "", "If", "if", in, 1, out, 1);
    for (int k = 0; k < 2; k++) {
        t->graph = tsr__node_add_graph(n, names[k], names[k]);
        t->token = token;
        if (k == branch)
            add_comm(p, r, "AllReduce", 0, both, 2);
        else
            t->token = tsr__part_node(t, "Identity", NEW_NAME, &token, 1);
        assert_int_equal(tsr_graph_add_output(t->graph, t->token), TSR_OK);
    }
    t->graph = outer;
    t->token = tsr_node_output(n, 0);
}

static void branches(void **state)
{
    for (int other = 0; other < 2; other++) {
        struct pair p;
        begin(*state, &p);
        add_if(&p, 0, 0);
        add_if(&p, 1, other);
        for (int r = 0; r < 2; r++)
            add_comm(&p, r, "AllReduce", 1, both, 2);
        end(*state, &p, other ? TSR_BUG : TSR_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(agreement, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_differ, setup, teardown),
        cmocka_unit_test_setup_teardown(type_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(another_operator, setup, teardown),
        cmocka_unit_test_setup_teardown(another_attribute, setup, teardown),
        cmocka_unit_test_setup_teardown(a_member_is_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(another_order, setup, teardown),
        cmocka_unit_test_setup_teardown(not_of_the_group, setup, teardown),
        cmocka_unit_test_setup_teardown(off_the_chain, setup, teardown),
        cmocka_unit_test_setup_teardown(in_loops, setup, teardown),
        cmocka_unit_test_setup_teardown(inside_and_outside, setup, teardown),
        cmocka_unit_test_setup_teardown(a_turn_forgets_the_token, setup, teardown),
        cmocka_unit_test_setup_teardown(branches, setup, teardown),
    };
    return cmocka_run_group_tests_name("partition agree", tests, NULL, NULL);
}
