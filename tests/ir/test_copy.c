// SPDX-License-Identifier: Apache-2.0
// test_copy.c - independent copies: models, nodes (with and without subgraphs) copied into another
// model, and inlined function calls.
#include "../api/help.h"
#include "ir/ir.h"

#include <sys/mman.h>

static struct bench *of(void **state)
{
    return *state;
}

static void test_clone_is_independent(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    float one = 1;
    assert_non_null(tsr_graph_add_initializer(b->g, "k", TSR_FLOAT, 0, NULL, &one, 4));
    assert_int_equal(tsr_node_set_ints(b->act, "v", IDS(1, 2)), TSR_OK);
    assert_int_equal(tsr_node_set_string(b->act, "s", "text"), TSR_OK);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(0, 1), 1), TSR_OK);
    assert_int_equal(tsr_model_set_metadata(b->m, "key", "value"), TSR_OK);
    size_t before = 0, after = 0;
    void *bytes = save(b, b->m, &before);
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_clone(b->m, &m), TSR_OK);
    b->others[b->n_others++] = m;
    assert_int_equal(tsr_value_rename(b->w, "changed"), TSR_OK);
    assert_int_equal(tsr_config_rename(c, "changed"), TSR_OK);
    assert_int_equal(tsr_node_set_int(b->act, "v", 1), TSR_OK);
    tsr_model_free(b->m); // the copy does not depend on it
    b->m = NULL;
    void *same = save(b, m, &after);
    assert_int_equal(before, after);
    assert_memory_equal(bytes, same, before);
    tsr_graph *g = tsr_model_graph(m);
    assert_ptr_equal(tsr_graph_value(g, "W"), tsr_node_input(node_at(m, 0), 0));
    assert_int_equal(tsr_value_use_count(tsr_graph_value(g, "y")), 1);
    assert_true(tsr_value_is_output(tsr_graph_value(g, "z")));
    assert_int_equal(tsr_value_rename(tsr_graph_value(g, "W"), "other"), TSR_OK);
    assert_string_equal(tsr_value_name(tsr_node_input(node_at(again(b, m), 0), 0)), "other");
}

// A clone keeps references to undeclared configurations and values.
static void test_clone_keeps_dangling_entries(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("nobody", "nothing"), file = msg_model(&entry, NULL);
    tsr_model *m = load(b, file.at, file.n), *copy = NULL;
    assert_int_equal(tsr_model_clone(m, &copy), TSR_OK);
    b->others[b->n_others++] = copy;
    tsr_node_config *nc = tsr_node_config_at(node_at(copy, 0), 0);
    assert_string_equal(tsr_config_name(tsr_node_config_target(nc)), "nobody");
    assert_ptr_not_equal(tsr_node_config_target(nc),
                         tsr_node_config_target(tsr_node_config_at(node_at(m, 0), 0)));
    assert_string_equal(tsr_value_name(tsr_spec_value(tsr_node_config_spec(nc, 0))), "nothing");
    assert_null(tsr_value_graph(tsr_spec_value(tsr_node_config_spec(nc, 0))));
    size_t n = 0;
    void *bytes = save(b, copy, &n);
    assert_int_equal(n, file.n);
    assert_memory_equal(bytes, file.at, n);
}

// Allocator that makes freed memory unreadable, so that a read after free ends the process.
static void *locking(void *data, void *old, size_t old_bytes, size_t bytes)
{
    void *p = NULL;
    (void)data;
    if (bytes)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    if (old && bytes)
        memcpy(p, old, old_bytes < bytes ? old_bytes : bytes);
    if (old)
        assert_int_equal(mprotect(old, old_bytes, PROT_NONE), 0);
    return p;
}

// A clone that was freed leaves nothing in its original: not for a declared, an undeclared and a
// removed configuration.
static void test_clone_after_a_freed_clone(void **state)
{
    (void)state;
    tsr_session_options options = {.size = sizeof options, .alloc = locking};
    tsr_session *s = tsr_session_new(&options);
    struct msg entry = msg_entry("nobody", "nothing"), file = msg_model(&entry, NULL);
    tsr_model *m = NULL, *copy = NULL;
    tsr_config *declared, *removed;
    static const char *const names[] = {"nobody", "here", "removed"};
    assert_int_equal(tsr_model_load_bytes(s, file.at, file.n, &m), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "here", 2, NULL, 0, &declared), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "removed", 2, NULL, 0, &removed), TSR_OK);
    assert_int_equal(tsr_node_set_stage(node_at(m, 0), declared, 1), TSR_OK);
    assert_int_equal(tsr_node_set_stage(node_at(m, 0), removed, 1), TSR_OK);
    assert_int_equal(tsr_model_remove_config(m, removed, false), TSR_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tsr_model_clone(m, &copy), TSR_OK);
        assert_int_equal(tsr_node_config_count(node_at(copy, 0)), 3);
        for (size_t k = 0; k < 3; k++) {
            const tsr_node_config *nc = tsr_node_config_at(node_at(copy, 0), k);
            assert_string_equal(tsr_config_name(tsr_node_config_target(nc)), names[k]);
        }
        tsr_model_free(copy);
    }
    tsr_model_free(m);
    tsr_session_free(s);
}

// ---- nodes copied into another model -----------------------------------------------------------

static void attr_graph(struct msg *node, const char *name, const struct msg *graph)
{
    struct msg a = {.n = 0};
    msg_text(&a, 1, name);
    msg_msg(&a, 6, graph);
    msg_int(&a, 20, TSR_ATTR_GRAPH);
    msg_msg(node, 5, &a);
}

static void info(struct msg *graph, int field, const char *name)
{
    struct msg i = {.n = 0};
    msg_text(&i, 1, name);
    msg_msg(graph, field, &i);
}

// If(cond) with one branch: t = Neg(x) [annotated], outputs t and the outer x.
static struct msg branch_model(void)
{
    struct msg model = {.n = 0}, graph = {.n = 0}, inner = {.n = 0}, entry = msg_entry("c", "x");
    struct msg neg = msg_node("x", "t", "Neg", &entry), iff = msg_node("cond", "z", "If", NULL);
    msg_msg(&inner, 1, &neg);
    info(&inner, 12, "t");
    info(&inner, 12, "x");
    attr_graph(&iff, "then_branch", &inner);
    msg_text(&iff, 6, "a doc string");
    msg_msg(&graph, 1, &iff);
    info(&graph, 11, "x");
    info(&graph, 11, "cond");
    info(&graph, 12, "z");
    msg_int(&model, 1, 11);
    msg_msg(&model, 7, &graph);
    return model;
}

static tsr_value *to_local(void *data, tsr_value *outer)
{
    assert_string_equal(tsr_value_name(outer), "x");
    return data;
}

// `data`: the replacements of cond and x.
static tsr_value *nested_local(void *data, tsr_value *outer)
{
    tsr_value **two = data;
    return two[strcmp(tsr_value_name(outer), "x") == 0];
}

static void test_copy_with_subgraph(void **state)
{
    struct bench *b = of(state);
    struct msg file = branch_model();
    tsr_model *m = load(b, file.at, file.n), *to = NULL;
    assert_int_equal(tsr_model_new(b->s, "to", 10, &to), TSR_OK);
    tsr_graph *g = tsr_model_graph(to);
    tsr_value *in[] = {tsr_graph_add_input(g, "cond")}, *local = tsr_graph_add_input(g, "x.local");
    tsr_graph *branch = tsr_attr_graph(tsr_node_attr(node_at(m, 0), 0), 0);
    assert_int_equal(tsr_value_rename(tsr_graph_output(branch, 0), "t.new"), TSR_OK);
    tsr_node *n = tsr__node_copy_deep(g, node_at(m, 0), in, 1, (struct str[]){STR("out")}, 1,
                                      to_local, local);
    assert_non_null(n);
    assert_int_equal(tsr_value_use_count(local), 1);
    assert_int_equal(tsr_graph_add_output(g, tsr_node_output(n, 0)), TSR_OK);
    tsr_model_free(m); // the copy keeps its bytes alive
    b->others[b->n_others - 1] = to;
    tsr_model *m2 = again(b, to);
    n = node_at(m2, 0);
    assert_string_equal(tsr_node_op(n), "If");
    assert_string_equal(tsr_value_name(tsr_node_output(n, 0)), "out");
    tsr_graph *inner = tsr_attr_graph(tsr_node_attr(n, 0), 0);
    tsr_node *neg = tsr_graph_first(inner);
    assert_ptr_equal(tsr_node_input(neg, 0), tsr_graph_value(tsr_model_graph(m2), "x.local"));
    assert_string_equal(tsr_value_name(tsr_node_output(neg, 0)), "t.new");
    assert_ptr_equal(tsr_graph_output(inner, 0), tsr_node_output(neg, 0));
    assert_ptr_equal(tsr_graph_output(inner, 1), tsr_graph_value(tsr_model_graph(m2), "x.local"));
    assert_int_equal(tsr_node_config_count(neg), 0); // annotations are not copied
    assert_int_equal(tsr_model_ir_version(m2), 10);
    // the other fields of the node are copied
    assert_true(holds(b, m2, "320c 6120646f6320737472696e67"));
}

// The subgraph of the subgraph reads x too.
static void test_copy_with_nested_subgraph(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, graph = {.n = 0}, outer = {.n = 0}, inner = {.n = 0};
    struct msg neg = msg_node("x", "t", "Neg", NULL), nested = msg_node("cond", "u", "If", NULL);
    struct msg iff = msg_node("cond", "z", "If", NULL);
    msg_msg(&inner, 1, &neg);
    info(&inner, 12, "t");
    attr_graph(&nested, "then_branch", &inner);
    msg_msg(&outer, 1, &nested);
    info(&outer, 12, "u");
    attr_graph(&iff, "then_branch", &outer);
    msg_msg(&graph, 1, &iff);
    info(&graph, 11, "x");
    info(&graph, 11, "cond");
    info(&graph, 12, "z");
    msg_int(&model, 1, 11);
    msg_msg(&model, 7, &graph);
    tsr_model *m = load(b, model.at, model.n), *to = NULL;
    assert_int_equal(tsr_model_new(b->s, "to", 10, &to), TSR_OK);
    b->others[b->n_others++] = to;
    tsr_graph *g = tsr_model_graph(to);
    tsr_value *two[] = {tsr_graph_add_input(g, "cond"), tsr_graph_add_input(g, "x.local")};
    tsr_node *n = tsr__node_copy_deep(g, node_at(m, 0), two, 1, (struct str[]){STR("out")}, 1,
                                      nested_local, two);
    assert_non_null(n);
    assert_int_equal(tsr_graph_add_output(g, tsr_node_output(n, 0)), TSR_OK);
    tsr_model *m2 = again(b, to);
    tsr_graph *body = tsr_attr_graph(tsr_node_attr(node_at(m2, 0), 0), 0);
    body = tsr_attr_graph(tsr_node_attr(tsr_graph_first(body), 0), 0);
    assert_ptr_equal(tsr_node_input(tsr_graph_first(body), 0),
                     tsr_graph_value(tsr_model_graph(m2), "x.local"));
}

static void test_copy_a_node(void **state)
{
    struct bench *b = of(state);
    assert_int_equal(tsr_node_set_int(b->mm, "axis", 3), TSR_OK);
    shard(b, b->w, config(b, "c", 2), 0, 2);
    tsr_model *from = again(b, b->m), *to = NULL;
    assert_int_equal(tsr_model_new(b->s, "to", 10, &to), TSR_OK);
    b->others[b->n_others++] = to;
    tsr_graph *g = tsr_model_graph(to);
    tsr_value *in[] = {tsr_graph_add_input(g, "a"), NULL};
    struct str out = STR("o");
    tsr_node *n = tsr__node_copy(g, node_at(from, 0), in, 2, &out, 1);
    assert_non_null(n);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "axis"), 0), 3);
    assert_int_equal(tsr_node_set_int(n, "axis", 4), TSR_OK);
    assert_null(tsr__node_copy(g, node_at(from, 0), in, 2, &out, 1));
    refused(b, TSR_INVALID, "name-taken");
    assert_non_null(
        // a node that was not loaded from a file
        tsr__node_copy(g, b->mm, in, 2, (struct str[]){STR("p")}, 1));
    tsr_model *m = again(b, to);
    n = node_at(m, 0);
    assert_string_equal(tsr_node_name(n), "mm");
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "axis"), 0), 4);
    assert_int_equal(tsr_node_input_count(n), 2);
    assert_null(tsr_node_input(n, 1));
    assert_int_equal(tsr_node_config_count(n), 0);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(node_at(m, 1), "axis"), 0), 3);
}

static void test_copy_constants(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, graph = {.n = 0}, t = {.n = 0};
    msg_int(&t, 1, 2);
    msg_int(&t, 2, TSR_STRING);
    msg_text(&t, 6, "one");
    msg_text(&t, 6, "two");
    msg_text(&t, 8, "texts");
    msg_msg(&graph, 5, &t);
    msg_msg(&model, 7, &graph);
    tsr_model *from = load(b, model.at, model.n), *to = NULL;
    assert_int_equal(tsr_model_new(b->s, "to", 10, &to), TSR_OK);
    b->others[b->n_others++] = to;
    tsr_value *v = tsr_graph_initializer(tsr_model_graph(from), 0), *copied = NULL;
    tsr_graph *graph_to = tsr_model_graph(to);
    assert_int_equal(tsr__graph_copy_initializer(graph_to, v, "copied", &copied), TSR_OK);
    assert_non_null(copied);
    assert_int_equal(tsr__graph_copy_initializer(graph_to, v, "copied", &copied), TSR_INVALID);
    refused(b, TSR_INVALID, "name-taken");
    assert_true(holds(b, to, "0802 1008 3203 6f6e65 3203 74776f 4206 636f70696564"));
    tsr_value *w = tsr_graph_add_input(tsr_model_graph(to), "w");
    assert_int_equal(tsr__value_copy_type(w, b->x), TSR_OK);
    assert_int_equal(tsr_value_dim(w, 0).value, 4096);
}

// A Constant node whose tensor has n floats, in the file "w.bin" if `external` is set.
static struct msg constant_node(const char *output, int64_t n, bool external)
{
    struct msg node = {.n = 0}, a = {.n = 0}, t = {.n = 0}, pair = {.n = 0};
    float data[64] = {1};
    msg_int(&t, 1, n);
    msg_int(&t, 2, TSR_FLOAT);
    if (external) {
        msg_text(&pair, 1, "location");
        msg_text(&pair, 2, "w.bin");
        msg_msg(&t, 13, &pair);
        msg_int(&t, 14, 1);
    } else {
        msg_bytes(&t, 9, data, (size_t)n * sizeof(float));
    }
    msg_text(&a, 1, "value");
    msg_msg(&a, 5, &t);
    msg_int(&a, 20, TSR_ATTR_TENSOR);
    msg_text(&node, 2, output);
    msg_text(&node, 4, "Constant");
    msg_msg(&node, 5, &a);
    return node;
}

// The output of a node becomes an initializer; its readers and graph outputs stay.
static void test_constant_to_initializer(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, graph = {.n = 0}, relu = msg_node("large", "y", "Relu", NULL);
    struct msg nodes[] = {constant_node("large", 64, false), constant_node("small", 63, false),
                          constant_node("outside", 2, true), relu};
    for (size_t i = 0; i < TSR_COUNT(nodes); i++)
        msg_msg(&graph, 1, &nodes[i]);
    info(&graph, 12, "y");
    info(&graph, 12, "outside");
    msg_int(&model, 1, 10);
    msg_msg(&model, 7, &graph);
    tsr_model *m = load(b, model.at, model.n);
    tsr_node *lifted[] = {node_at(m, 0), node_at(m, 2)};
    for (size_t i = 0; i < TSR_COUNT(lifted); i++) {
        const tsr_tensor *tensor = tsr_attr_tensor(tsr_node_find_attr(lifted[i], "value"));
        assert_int_equal(tsr__node_to_initializer(lifted[i], tensor), TSR_OK);
    }
    m = again(b, m);
    tsr_graph *g = tsr_model_graph(m);
    assert_int_equal(tsr_graph_node_count(g), 2);
    assert_string_equal(tsr_node_op(node_at(m, 0)), "Constant");
    assert_int_equal(tsr_graph_initializer_count(g), 2);
    tsr_value *large = tsr_graph_initializer(g, 0);
    assert_ptr_equal(large, tsr_node_input(node_at(m, 1), 0));
    const void *data = NULL;
    size_t n = 0;
    assert_int_equal(tsr_tensor_data(tsr_value_initializer(large), &data, &n), TSR_OK);
    assert_int_equal(n, 64 * sizeof(float));
    assert_memory_equal(data, &(float){1}, sizeof(float)); // the data is not aligned
    assert_ptr_equal(tsr_graph_output(g, 1), tsr_graph_initializer(g, 1));
    assert_true(tsr_tensor_is_external(tsr_value_initializer(tsr_graph_initializer(g, 1))));
}

// ---- inlining ----------------------------------------------------------------------------------

// The second node of the body: Op(m, a) with three references to attributes of the call.
static struct msg op_node(bool stage_inside)
{
    struct msg op = {.n = 0}, a = {.n = 0};
    msg_text(&op, 1, "m");
    msg_text(&op, 1, "a");
    msg_text(&op, 2, "r");
    msg_text(&op, 3, "op");
    msg_text(&op, 4, "Op");
    const char *refs[] = {"alpha", "beta", "gamma"};
    for (int i = 0; i < 3; i++) {
        char inside[16];
        snprintf(inside, sizeof(inside), "my_%s", refs[i]);
        a.n = 0;
        msg_text(&a, 1, inside);
        msg_int(&a, 20, TSR_ATTR_INT);
        msg_text(&a, 21, refs[i]);
        msg_msg(&op, 5, &a);
    }
    if (stage_inside) {
        struct msg entry = msg_entry("c", "m");
        msg_int(&entry, 3, 7);
        msg_msg(&op, 10, &entry);
    }
    return op;
}

// A model with one function and one call:
//    f(a, b) = (r, a)
//    r = Op(m, a; alpha = ref, beta = ref with a default, gamma = ref that is absent)
//    m = If(b){ t = Neg(a); x = Abs(t) -> x }
//    call: [node] (y, z) = f(x, c; alpha 5)
static struct msg call_model(bool stage_inside)
{
    struct msg model = {.n = 0}, graph = {.n = 0}, f = {.n = 0}, inner = {.n = 0}, a = {.n = 0},
               o = {.n = 0};
    struct msg call = {.n = 0}, op = op_node(stage_inside), iff = msg_node("b", "m", "If", NULL),
               conf = msg_config("c", 2);
    struct msg neg = msg_node("a", "t", "Neg", NULL), abs_ = msg_node("t", "x", "Abs", NULL);
    msg_msg(&inner, 1, &neg);
    msg_msg(&inner, 1, &abs_);
    info(&inner, 12, "x");
    attr_graph(&iff, "then_branch", &inner);
    msg_text(&call, 1, "x");
    msg_text(&call, 1, "c");
    msg_text(&call, 2, "y");
    msg_text(&call, 2, "z");
    msg_text(&call, 3, "call");
    msg_text(&call, 4, "f");
    a.n = 0;
    msg_text(&a, 1, "alpha");
    msg_int(&a, 3, 5);
    msg_int(&a, 20, TSR_ATTR_INT);
    msg_msg(&call, 5, &a);
    msg_text(&call, 7, "d");
    struct msg entry = msg_entry("c", "y");
    msg_int(&entry, 3, 1);
    msg_msg(&call, 10, &entry);
    msg_int(&model, 1, 11);
    msg_msg(&graph, 1, &call);
    info(&graph, 11, "x");
    info(&graph, 11, "c");
    info(&graph, 12, "y");
    info(&graph, 12, "z");
    msg_msg(&model, 7, &graph);
    msg_int(&o, 2, 18);
    msg_msg(&model, 8, &o);
    msg_text(&f, 1, "f");
    msg_text(&f, 4, "a");
    msg_text(&f, 4, "b");
    msg_text(&f, 5, "r");
    msg_text(&f, 5, "a");
    msg_msg(&f, 7, &iff);
    msg_msg(&f, 7, &op);
    msg_msg(&f, 9, &o);
    msg_text(&f, 10, "d");
    a.n = 0;
    msg_text(&a, 1, "beta");
    msg_int(&a, 3, 9);
    msg_int(&a, 20, TSR_ATTR_INT);
    msg_msg(&f, 11, &a);
    msg_msg(&model, 25, &f);
    msg_msg(&model, 26, &conf);
    return model;
}

static void check_inlined(tsr_model *m, int64_t stage_of_op)
{
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *x = tsr_graph_value(g, "x"), *y = tsr_graph_value(g, "y"),
              *z = tsr_graph_value(g, "z");
    assert_int_equal(tsr_graph_node_count(g), 3);
    tsr_node *iff = node_at(m, 0), *op = node_at(m, 1), *pass = node_at(m, 2);
    assert_string_equal(tsr_node_op(iff), "If");
    assert_ptr_equal(tsr_node_input(iff, 0), tsr_graph_value(g, "c"));
    assert_ptr_equal(tsr_node_output(op, 0), y);
    assert_ptr_equal(tsr_node_input(op, 0), tsr_node_output(iff, 0));
    assert_ptr_equal(tsr_node_input(op, 1), x);
    assert_ptr_equal(tsr_node_input(pass, 0), x); // an input that is returned unchanged
    assert_ptr_equal(tsr_node_output(pass, 0), z);
    assert_ptr_equal(tsr_value_producer(y), op);
    assert_int_equal(tsr_node_attr_count(op), 2);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(op, "my_alpha"), 0), 5);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(op, "my_beta"), 0), 9);
    assert_null(tsr_node_find_attr(op, "my_gamma"));
    tsr_graph *inner = tsr_attr_graph(tsr_node_find_attr(iff, "then_branch"), 0);
    assert_ptr_equal(tsr_node_input(tsr_graph_first(inner), 0), x); // not hidden by its own "x"
    assert_string_not_equal(tsr_value_name(tsr_graph_output(inner, 0)), "x");
    tsr_config *c = tsr_model_config(m, 0);
    int64_t stage = -1;
    tsr_node *all[] = {iff, op, pass};
    for (size_t i = 0; i < 3; i++) {
        assert_non_null(tsr_node_find_config(all[i], c));
        assert_true(tsr_node_config_stage(tsr_node_find_config(all[i], c), &stage));
        assert_int_equal(stage, all[i] == op ? stage_of_op : 1);
    }
    assert_non_null(tsr_node_sharding_of(op, y, 0)); // the spec of the call moves to the producer
    assert_null(tsr_node_sharding_of(iff, y, 0));
}

static void inlined(struct bench *b, bool stage_inside)
{
    struct msg file = call_model(stage_inside);
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *call = node_at(m, 0);
    assert_non_null(tsr__model_derive(m));
    assert_int_equal(tsr_node_inline(call), TSR_OK);
    assert_null(tsr__model_derived(m));
    check_inlined(m, stage_inside ? 7 : 1);
    tsr_model *m2 = again(b, m);
    check_inlined(m2, stage_inside ? 7 : 1);
    if (stage_inside) {
        tsr_node *op = node_at(m2, 1);
        assert_non_null(
            tsr_node_sharding_of(op, tsr_node_input(op, 0), 0)); // rebound to the new name
    }
    refused(b, tsr_node_inline(call), "inline-unknown"); // the call does not exist any more
    refused(b, tsr_node_inline(node_at(m, 1)), "inline-unknown");
}

static void test_inline(void **state)
{
    inlined(of(state), false);
}
// A stage inside the function has priority over that of the call.
static void test_inline_keeps_what_the_body_says(void **state)
{
    inlined(of(state), true);
}

// Names that inlining generated belong to the model, so a clone needs its own copies.
static void test_clone_after_inline(void **state)
{
    struct bench *b = of(state);
    struct msg file = call_model(true);
    tsr_model *m = NULL, *copy = NULL;
    assert_int_equal(tsr_model_load_bytes(b->s, file.at, file.n, &m), TSR_OK);
    assert_int_equal(tsr_node_inline(node_at(m, 0)), TSR_OK);
    assert_int_equal(tsr_model_clone(m, &copy), TSR_OK);
    tsr_model_free(m);
    b->others[b->n_others++] = copy;
    check_inlined(copy, 7);
    check_inlined(again(b, copy), 7);
    assert_string_equal(tsr_node_name(node_at(copy, 1)), "call/op");
}

// Calls that cannot be inlined: another opset, or more outputs than the function.
static void test_inline_refusals(void **state)
{
    struct bench *b = of(state);
    struct msg file = call_model(false);
    tsr_model *m = load(b, file.at, file.n);
    assert_int_equal(tsr_model_set_opset(m, "", 21), TSR_OK);
    assert_int_equal(tsr_node_inline(node_at(m, 0)), TSR_UNSUPPORTED);
    assert_int_equal(findings(b, "inline-opset"), 1);
    tsr_finding_clear(b->s);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    assert_int_equal(tsr_node_resize_outputs(node_at(m, 0), 3), TSR_OK);
    refused(b, tsr_node_inline(node_at(m, 0)), "inline-arity");
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m)), 1);
}

// Functions are copied after those of the target: all nodes are visited once.
static void test_functions_are_added(void **state)
{
    struct bench *b = of(state);
    struct msg file = msg_function_model(NULL, NULL);
    tsr_model *m = load(b, file.at, file.n), *from = load(b, file.at, file.n);
    size_t main = tsr_graph_node_count(tsr_model_graph(m)), before = 0, after = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        before++;
    assert_true(before > main);
    assert_int_equal(tsr__model_copy_functions(m, from), TSR_OK);
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        assert_true(++after < 100);
    assert_int_equal(after, main + 2 * (before - main));
}

// A caller may ask for the key or the value alone.
static void test_metadata_of_a_node(void **state)
{
    struct bench *b = of(state);
    const char *key = NULL, *value = NULL;
    assert_int_equal(tsr_node_set_metadata(b->mm, "key", "value"), TSR_OK);
    tsr_node *read = node_at(again(b, b->m), 0); // not decoded yet
    tsr_node *const nodes[] = {b->mm, read};
    for (size_t i = 0; i < TSR_COUNT(nodes); i++, key = value = NULL) {
        assert_true(tsr_node_metadata_at(nodes[i], 0, &key, NULL));
        assert_string_equal(key, "key");
        assert_true(tsr_node_metadata_at(nodes[i], 0, NULL, &value));
        assert_string_equal(value, "value");
        assert_true(tsr_node_metadata_at(nodes[i], 0, NULL, NULL));
        assert_false(tsr_node_metadata_at(nodes[i], 1, NULL, NULL));
    }
}

static void test_inline_twice(void **state)
{
    struct bench *b = of(state);
    struct msg file = msg_function_model(NULL, NULL);
    tsr_model *m = load(b, file.at, file.n);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *y = tsr_node_output(node_at(m, 0), 0);
    tsr_node *second = tsr_graph_add_node(g, "d", "f", "again", &y, 1, (const char *[]){"w"}, 1);
    assert_int_equal(tsr_node_inline(node_at(m, 0)), TSR_OK);
    assert_int_equal(tsr_node_inline(second), TSR_OK);
    m = again(b, m);
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m)), 2);
    assert_string_equal(tsr_node_op(node_at(m, 1)), "Relu");
    assert_ptr_equal(tsr_node_input(node_at(m, 1), 0), tsr_node_output(node_at(m, 0), 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_clone_is_independent),
        TEST(test_clone_keeps_dangling_entries),
        cmocka_unit_test(test_clone_after_a_freed_clone),
        TEST(test_clone_after_a_freed_clone),
        TEST(test_copy_with_subgraph),
        TEST(test_copy_with_nested_subgraph),
        TEST(test_copy_a_node),
        TEST(test_copy_constants),
        TEST(test_constant_to_initializer),
        TEST(test_inline),
        TEST(test_inline_keeps_what_the_body_says),
        TEST(test_clone_after_inline),
        TEST(test_functions_are_added),
        TEST(test_metadata_of_a_node),
        TEST(test_inline_refusals),
        TEST(test_inline_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
