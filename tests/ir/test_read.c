// SPDX-License-Identifier: Apache-2.0
// test_read.c - reads unusual and invalid models: scopes, undefined names, duplicate definitions,
// merged messages. After an unrelated edit, everything else must be written back unchanged.
#include "../api/help.h"
#include "ir/ir.h"

static struct bench *of(void **state)
{
    return *state;
}

static struct msg node2(const char *a, const char *b, const char *out, const char *op)
{
    struct msg n = {.n = 0};
    msg_text(&n, 1, a);
    msg_text(&n, 1, b);
    msg_text(&n, 2, out);
    msg_text(&n, 4, op);
    return n;
}

static void info(struct msg *graph, int field, const char *name)
{
    struct msg i = {.n = 0};
    msg_text(&i, 1, name);
    msg_msg(graph, field, &i);
}

static struct msg model_of(const struct msg *graph)
{
    struct msg m = {.n = 0};
    msg_int(&m, 1, 8);
    msg_msg(&m, 7, graph);
    return m;
}

// An attribute that holds a graph.
static void attr_graph(struct msg *node, const char *name, const struct msg *graph)
{
    struct msg a = {.n = 0};
    msg_text(&a, 1, name);
    msg_msg(&a, 6, graph);
    msg_int(&a, 20, TSR_ATTR_GRAPH);
    msg_msg(node, 5, &a);
}

// Annotates another node and removes the annotation, so that the file is written again: the bytes
// must not change.
static void unchanged_by_an_edit(struct bench *b, tsr_model *m, const struct msg *file)
{
    tsr_config *c = NULL;
    size_t n = 0;
    assert_int_equal(tsr_model_add_config(m, "scratch", 2, NULL, 0, &c), TSR_OK);
    for (tsr_node *k = tsr_model_next_node(m, NULL); k; k = tsr_model_next_node(m, k))
        assert_int_equal(tsr_node_set_stage(k, c, 1), TSR_OK);
    for (tsr_node *k = tsr_model_next_node(m, NULL); k; k = tsr_model_next_node(m, k))
        assert_int_equal(tsr_node_unset_stage(k, c), TSR_OK);
    assert_int_equal(tsr_model_remove_config(m, c, false), TSR_OK);
    void *bytes = save(b, m, &n);
    assert_int_equal(n, file->n);
    assert_memory_equal(bytes, file->at, n);
}

// x -> If(cond){ then: y = Add(x, w) [w own initializer]; else: x2 = Neg(x), y2 = Abs(x2) } -> z
static struct msg if_model(void)
{
    struct msg then_graph = {.n = 0}, else_graph = {.n = 0}, graph = {.n = 0}, tensor = {.n = 0};
    struct msg add = node2("x", "w", "y", "Add"), neg = msg_node("x", "x2", "Neg", NULL);
    struct msg abs_ = msg_node("x2", "y2", "Abs", NULL), iff = msg_node("cond", "z", "If", NULL);
    msg_msg(&then_graph, 1, &add);
    msg_text(&then_graph, 2, "then");
    msg_int(&tensor, 1, 1);
    msg_int(&tensor, 2, 1);
    msg_text(&tensor, 8, "w");
    msg_bytes(&tensor, 9, "\0\0\200\77", 4);
    msg_msg(&then_graph, 5, &tensor);
    info(&then_graph, 12, "y");
    msg_msg(&else_graph, 1, &neg);
    msg_msg(&else_graph, 1, &abs_);
    info(&else_graph, 12, "y2");
    attr_graph(&iff, "then_branch", &then_graph);
    attr_graph(&iff, "else_branch", &else_graph);
    msg_msg(&graph, 1, &iff);
    info(&graph, 11, "x");
    info(&graph, 11, "cond");
    info(&graph, 12, "z");
    return model_of(&graph);
}

// Subgraphs read outer values and define their own.
static void test_scopes(void **state)
{
    struct bench *b = of(state);
    struct msg file = if_model();
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *iff = node_at(m, 0);
    tsr_value *x = tsr_graph_value(tsr_model_graph(m), "x");
    tsr_graph *then_graph = tsr_attr_graph(tsr_node_find_attr(iff, "then_branch"), 0);
    tsr_node *add = tsr_graph_first(then_graph);
    assert_ptr_equal(tsr_graph_owner(then_graph), iff);
    assert_ptr_equal(tsr_node_input(add, 0), x); // captured from the outer graph
    assert_ptr_equal(tsr_value_graph(tsr_node_input(add, 1)), then_graph);
    assert_non_null(tsr_value_initializer(tsr_node_input(add, 1)));
    assert_int_equal(tsr_value_use_count(x), 2);
    assert_null(tsr_graph_value(tsr_model_graph(m), "w"));
    assert_null(tsr_graph_value(then_graph, "x"));
    size_t count = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        count++;
    assert_int_equal(count, 4);
    struct place at = tsr__place_node(add);
    assert_true(str_is(at.graph, "main > #0 If then_branch"));
    unchanged_by_an_edit(b, m, &file);
}

// The outer values that the subgraphs of a node read.
static void test_captures(void **state)
{
    struct bench *b = of(state);
    struct msg file = if_model();
    tsr_model *m = load(b, file.at, file.n);
    tsr_value **list = NULL;
    assert_int_equal(tsr__node_captures(node_at(m, 0), &list), 1);
    assert_ptr_equal(list[0], tsr_graph_input(tsr_model_graph(m), 0));
}

// Undefined names: all readers of a name share one placeholder, and the file is kept unchanged.
static void test_dangling(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, one = node2("nowhere", "x", "y", "Add"),
               two = node2("nowhere", "", "z", "Add");
    msg_msg(&graph, 1, &one);
    msg_msg(&graph, 1, &two);
    info(&graph, 11, "x");
    info(&graph, 12, "lost");
    struct msg file = model_of(&graph);
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *n = node_at(m, 0), *k = node_at(m, 1);
    tsr_value *v = tsr_node_input(n, 0);
    assert_string_equal(tsr_value_name(v), "nowhere");
    assert_null(tsr_value_graph(v));
    assert_null(tsr_value_producer(v));
    assert_ptr_equal(v, tsr_node_input(k, 0)); // one placeholder per undefined name
    assert_null(tsr_node_input(k, 1));
    assert_int_equal(tsr_node_input_count(k), 2);
    assert_null(tsr_graph_value(tsr_model_graph(m), "nowhere"));
    assert_null(tsr_value_graph(tsr_graph_output(tsr_model_graph(m), 0)));
    unchanged_by_an_edit(b, m, &file);
    // Defining the name must connect its readers to the definition.
    tsr_node *made = tsr_graph_add_node(tsr_model_graph(m), "", "Neg", "", NULL, 0,
                                        (const char *[]){"nowhere"}, 1);
    assert_ptr_equal(tsr_node_output(made, 0), v);
    assert_ptr_equal(tsr_value_producer(v), made);
    assert_ptr_equal(tsr_value_graph(v), tsr_model_graph(m));
}

// A node may read a value that a later node defines.
static void test_order_does_not_matter(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, late = msg_node("x", "y", "Neg", NULL),
               early = msg_node("y", "z", "Abs", NULL);
    msg_msg(&graph, 1, &early);
    msg_msg(&graph, 1, &late);
    info(&graph, 11, "x");
    info(&graph, 12, "z");
    struct msg file = model_of(&graph);
    tsr_model *m = load(b, file.at, file.n);
    assert_ptr_equal(tsr_node_input(node_at(m, 0), 0), tsr_node_output(node_at(m, 1), 0));
    assert_non_null(tsr_value_graph(tsr_node_input(node_at(m, 0), 0)));
    unchanged_by_an_edit(b, m, &file);
}

// A subgraph may read outer values that later nodes define.
static void test_subgraph_reads_what_comes_later(void **state)
{
    struct bench *b = of(state);
    struct msg inner = {.n = 0}, graph = {.n = 0}, neg = msg_node("later", "t", "Neg", NULL);
    struct msg iff = msg_node("c", "z", "If", NULL), late = msg_node("c", "later", "Abs", NULL);
    msg_msg(&inner, 1, &neg);
    info(&inner, 12, "also-later");
    attr_graph(&iff, "then_branch", &inner);
    msg_msg(&graph, 1, &iff);
    msg_msg(&graph, 1, &late);
    struct msg more = msg_node("c", "also-later", "Abs", NULL);
    msg_msg(&graph, 1, &more);
    info(&graph, 11, "c");
    struct msg file = model_of(&graph);
    tsr_model *m = load(b, file.at, file.n);
    tsr_graph *g = tsr_attr_graph(tsr_node_attr(node_at(m, 0), 0), 0);
    assert_ptr_equal(tsr_node_input(tsr_graph_first(g), 0), tsr_node_output(node_at(m, 1), 0));
    assert_ptr_equal(tsr_graph_output(g, 0), tsr_node_output(node_at(m, 2), 0));
    unchanged_by_an_edit(b, m, &file);
    assert_int_equal(tsr_value_rename(tsr_node_output(node_at(m, 1), 0), "new"), TSR_OK);
    tsr_model *m2 = again(b, m);
    g = tsr_attr_graph(tsr_node_attr(node_at(m2, 0), 0), 0);
    assert_string_equal(tsr_value_name(tsr_node_input(tsr_graph_first(g), 0)), "new");
}

// A name with two definitions: later readers use the last one.
static void test_two_definitions(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, one = msg_node("x", "y", "Neg", NULL),
               two = msg_node("x", "y", "Abs", NULL);
    struct msg three = msg_node("y", "z", "Relu", NULL);
    msg_msg(&graph, 1, &one);
    msg_msg(&graph, 1, &two);
    msg_msg(&graph, 1, &three);
    info(&graph, 11, "x");
    struct msg file = model_of(&graph);
    tsr_model *m = load(b, file.at, file.n);
    tsr_value *first = tsr_node_output(node_at(m, 0), 0),
              *second = tsr_node_output(node_at(m, 1), 0);
    assert_ptr_not_equal(first, second);
    assert_ptr_equal(tsr_value_producer(first), node_at(m, 0));
    assert_ptr_equal(tsr_node_input(node_at(m, 2), 0), second);
    unchanged_by_an_edit(b, m, &file);
}

// A graph field that occurs twice is merged, as protobuf does.
static void test_graph_given_twice(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, one = {.n = 0}, two = {.n = 0};
    struct msg neg = msg_node("x", "y", "Neg", NULL), abs_ = msg_node("y", "z", "Abs", NULL);
    msg_int(&model, 1, 8);
    msg_msg(&one, 1, &neg);
    info(&one, 11, "x");
    msg_msg(&model, 7, &one);
    msg_text(&model, 2, "somebody");
    msg_msg(&two, 1, &abs_);
    info(&two, 12, "z");
    msg_msg(&model, 7, &two);
    tsr_model *m = load(b, model.at, model.n);
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m)), 2);
    assert_ptr_equal(tsr_node_input(node_at(m, 1), 0), tsr_node_output(node_at(m, 0), 0));
    assert_int_equal(tsr_graph_output_count(tsr_model_graph(m)), 1);
    size_t n = 0;
    void *bytes = save(b, m, &n);
    assert_int_equal(n, model.n); // unchanged bytes
    assert_memory_equal(bytes, model.at, n);
    assert_int_equal(tsr_value_rename(tsr_node_output(node_at(m, 0), 0), "q"), TSR_OK);
    tsr_model *m2 = again(b, m), *m3 = NULL;
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m2)), 2);
    assert_string_equal(tsr_value_name(tsr_node_input(node_at(m2, 1), 0)), "q");
    assert_string_equal(tsr_model_producer(m2), "somebody");
    assert_int_equal(tsr_model_clone(m, &m3), TSR_OK); // the clone shares the merged bytes
    b->others[b->n_others++] = m3;
    assert_string_equal(tsr_value_name(tsr_node_input(node_at(again(b, m3), 1), 0)), "q");
}

// An empty file is an empty model.
static void test_nothing_there(void **state)
{
    struct bench *b = of(state);
    tsr_model *m = load(b, "", 0);
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m)), 0);
    assert_null(tsr_model_next_node(m, NULL));
    assert_int_equal(tsr_model_ir_version(m), 0);
    size_t n = 1;
    save(b, m, &n);
    assert_int_equal(n, 0);
}

static void test_initializers(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, t = {.n = 0}, sparse = {.n = 0},
               node = node2("w", "s", "y", "Add");
    msg_msg(&graph, 1, &node);
    msg_int(&t, 1, 2);
    msg_int(&t, 2, TSR_FLOAT);
    msg_text(&t, 8, "w");
    msg_bytes(&t, 9, "12345678", 8);
    msg_msg(&graph, 5, &t);
    info(&graph, 11, "w"); // an input with a default value
    t.n = 0;
    msg_text(&t, 8, "s");
    msg_msg(&sparse, 1, &t);
    msg_msg(&graph, 15, &sparse);
    struct msg file = model_of(&graph);
    tsr_model *m = load(b, file.at, file.n);
    tsr_value *w = tsr_node_input(node_at(m, 0), 0), *s = tsr_node_input(node_at(m, 0), 1);
    assert_true(tsr_value_is_input(w));
    assert_non_null(tsr_value_initializer(w));
    assert_int_equal(tsr_value_rank(w), 1); // no declared type: taken from the constant
    assert_int_equal(tsr_value_dim(w, 0).value, 2);
    assert_int_equal(tsr_value_dtype(w), TSR_FLOAT);
    assert_non_null(tsr_value_graph(s));
    assert_non_null(tsr_value_initializer(s)); // sparse initializers follow the dense ones
    assert_int_equal(tsr_graph_initializer_count(tsr_model_graph(m)), 2);
    unchanged_by_an_edit(b, m, &file);
    assert_int_equal(tsr_value_rename(s, "sparse"), TSR_OK);
    assert_int_equal(tsr_value_rename(w, "dense"), TSR_OK);
    tsr_model *m2 = again(b, m);
    assert_non_null(tsr_value_graph(tsr_node_input(node_at(m2, 0), 1)));
    assert_string_equal(tsr_value_name(tsr_graph_initializer(tsr_model_graph(m2), 0)), "dense");
    assert_string_equal(tsr_value_name(tsr_graph_initializer(tsr_model_graph(m2), 1)), "sparse");
    assert_true(tsr_value_is_input(tsr_node_input(node_at(m2, 0), 0)));
}

// Unknown fields must be kept when a message is written again.
static void test_unknown_fields_stay(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("c", "x"), conf = msg_config("c", 2);
    msg_text(&entry, 99, "later");
    msg_int(&conf, 77, 5);
    struct msg file = msg_model(&entry, &conf);
    msg_text(&file, 1000, "end");
    tsr_model *m = load(b, file.at, file.n);
    unchanged_by_an_edit(b, m, &file);
    assert_int_equal(tsr_value_rename(tsr_node_input(node_at(m, 0), 0), "xx"), TSR_OK);
    assert_int_equal(tsr_config_rename(tsr_model_config(m, 0), "cc"), TSR_OK);
    assert_true(holds(b, m, "9a06 05 6c61746572"));
    assert_true(holds(b, m, "c23e 03 656e64"));
    tsr_model *m2 = again(b, m);
    assert_string_equal(
        tsr_config_name(tsr_node_config_target(tsr_node_config_at(node_at(m2, 0), 0))), "cc");
}

static void test_attributes(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, node = msg_node("x", "y", "Op", NULL), a = {.n = 0};
    msg_text(&a, 1, "i");
    msg_int(&a, 3, -7); // no type: derived from the field
    msg_msg(&node, 5, &a);
    a.n = 0;
    msg_text(&a, 1, "empty");
    msg_int(&a, 20, TSR_ATTR_INTS);
    msg_msg(&node, 5, &a);
    a.n = 0;
    msg_text(&a, 1, "packed");
    msg_bytes(&a, 8, "\1\2\3", 3);
    msg_int(&a, 8, 4);
    msg_int(&a, 20, TSR_ATTR_INTS);
    msg_msg(&node, 5, &a);
    a.n = 0;
    msg_text(&a, 1, "s");
    msg_text(&a, 4, "text");
    msg_int(&a, 20, TSR_ATTR_STRING);
    msg_msg(&node, 5, &a);
    a.n = 0;
    msg_text(&a, 1, "zero");
    msg_int(&a, 20, TSR_ATTR_INT);
    msg_msg(&node, 5, &a);
    msg_msg(&graph, 1, &node);
    struct msg file = model_of(&graph);
    tsr_node *n = node_at(load(b, file.at, file.n), 0);
    const int64_t *v = NULL;
    size_t k = 0;
    assert_int_equal(tsr_node_attr_count(n), 5);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "i"), 0), -7);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "none"), 3), 3);
    assert_int_equal(tsr_attr_ints(tsr_node_find_attr(n, "empty"), &v), 0);
    assert_int_equal(tsr_attr_ints(tsr_node_find_attr(n, "packed"), &v), 4);
    assert_int_equal(v[3], 4);
    assert_string_equal(tsr_attr_string(tsr_node_find_attr(n, "s"), &k), "text");
    assert_int_equal(k, 4);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "zero"), 9), 0);
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "s"), 9), 9);
    assert_null(tsr_attr_string(tsr_node_find_attr(n, "i"), NULL));
}

static void test_types(void **state)
{
    struct bench *b = of(state);
    struct msg graph = {.n = 0}, v = {.n = 0}, type = {.n = 0}, tensor = {.n = 0}, shp = {.n = 0},
               d = {.n = 0};
    msg_int(&d, 1, 3);
    msg_msg(&shp, 1, &d);
    d.n = 0;
    msg_text(&d, 2, "past + 1");
    msg_msg(&shp, 1, &d);
    d.n = 0;
    msg_msg(&shp, 1, &d);
    msg_int(&tensor, 1, TSR_FLOAT16);
    msg_msg(&tensor, 2, &shp);
    msg_msg(&type, 1, &tensor);
    msg_text(&v, 1, "x");
    msg_msg(&v, 2, &type);
    msg_msg(&graph, 11, &v);
    v.n = type.n = 0;
    msg_text(&v, 1, "seq");
    msg_bytes(&type, 4, "", 0);
    msg_msg(&v, 2, &type);
    msg_msg(&graph, 11, &v);
    struct msg file = model_of(&graph);
    tsr_graph *g = tsr_model_graph(load(b, file.at, file.n));
    tsr_value *x = tsr_graph_input(g, 0);
    assert_int_equal(tsr_value_dtype(x), TSR_FLOAT16);
    assert_int_equal(tsr_value_rank(x), 3);
    assert_int_equal(tsr_value_dim(x, 0).value, 3);
    assert_string_equal(tsr_value_dim(x, 1).symbol, "past + 1");
    assert_int_equal(tsr_value_dim(x, 2).value, -1);
    assert_string_equal(tsr_value_dim(x, 2).symbol, "");
    assert_int_equal(tsr_value_dim(x, 3).value, -1);
    assert_int_equal(tsr_value_dim(x, -1).value, -1);
    assert_int_equal(tsr_value_rank(tsr_graph_input(g, 1)), -1);
    assert_true(tsr__value_is_other(tsr_graph_input(g, 1)));
}

// If a domain is imported twice, the last import counts, as in ONNX Runtime.
static void test_two_imports_of_one_domain(void **state)
{
    struct bench *b = of(state);
    struct msg file = msg_model(NULL, NULL), opset = {.n = 0};
    msg_text(&opset, 1, "ai.onnx");
    msg_int(&opset, 2, 11);
    msg_msg(&file, 8, &opset);
    tsr_model *m = load(b, file.at, file.n);
    assert_int_equal(tsr_model_opset_count(m), 2);
    assert_int_equal(tsr__node_opset(node_at(m, 0)), 11);
    unchanged_by_an_edit(b, m, &file);
    assert_int_equal(tsr_model_set_opset(m, "", 13), TSR_OK);
    assert_int_equal(tsr__node_opset(node_at(m, 0)), 13);
    assert_int_equal(tsr__node_opset(node_at(again(b, m), 0)), 13);
}

static void test_model_fields(void **state)
{
    struct bench *b = of(state);
    struct msg file = msg_model(NULL, NULL), pair = {.n = 0};
    msg_text(&pair, 1, "key");
    msg_text(&pair, 2, "value");
    msg_msg(&file, 14, &pair);
    tsr_model *m = load(b, file.at, file.n);
    assert_string_equal(tsr_model_metadata(m, "key"), "value");
    assert_null(tsr_model_metadata(m, "other"));
    assert_int_equal(tsr_model_opset_count(m), 1);
    assert_string_equal(tsr_model_opset_domain(m, 0), "");
    assert_int_equal(tsr_model_opset_version(m, 0), 18);
    assert_int_equal(tsr__node_opset(node_at(m, 0)), 18);
    assert_int_equal(tsr_model_set_metadata(m, "key", "other"), TSR_OK);
    assert_int_equal(tsr_model_set_metadata(m, "more", "text"), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "ai.onnx", 21), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "mine", 1), TSR_OK);
    tsr_model *m2 = again(b, m);
    assert_string_equal(tsr_model_metadata(m2, "key"), "other");
    assert_string_equal(tsr_model_metadata(m2, "more"), "text");
    assert_int_equal(tsr_model_opset_count(m2), 2);
    assert_int_equal(tsr_model_opset_version(m2, 0), 21);
    assert_int_equal(tsr_model_set_metadata(m, "more", NULL), TSR_OK);
    assert_int_equal(tsr_model_set_metadata(m, "key", "value"), TSR_OK);
    assert_null(tsr_model_metadata(again(b, m), "more"));
}

static void test_functions(void **state)
{
    struct bench *b = of(state);
    struct msg file = msg_function_model(NULL, NULL);
    tsr_model *m = load(b, file.at, file.n);
    assert_int_equal(tsr_model_function_count(m), 1);
    tsr_function *f = tsr_model_function(m, 0);
    assert_string_equal(tsr_function_name(f), "f");
    assert_string_equal(tsr_function_domain(f), "d");
    tsr_graph *g = tsr_function_graph(f);
    assert_int_equal(tsr_graph_input_count(g), 1);
    assert_ptr_equal(tsr_node_input(tsr_graph_first(g), 0), tsr_graph_input(g, 0));
    assert_ptr_equal(tsr_graph_output(g, 0), tsr_node_output(tsr_graph_first(g), 0));
    assert_ptr_equal(tsr_model_next_node(m, node_at(m, 0)), tsr_graph_first(g));
    assert_int_equal(tsr__node_opset(tsr_graph_first(g)), 18);
    unchanged_by_an_edit(b, m, &file);
    assert_int_equal(tsr_value_rename(tsr_graph_input(g, 0), "in"), TSR_OK);
    assert_int_equal(tsr_value_rename(tsr_graph_output(g, 0), "out"), TSR_OK);
    g = tsr_function_graph(tsr_model_function(again(b, m), 0));
    assert_string_equal(tsr_value_name(tsr_graph_input(g, 0)), "in");
    assert_string_equal(tsr_value_name(tsr_node_input(tsr_graph_first(g), 0)), "in");
    assert_string_equal(tsr_value_name(tsr_graph_output(g, 0)), "out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_scopes),
        TEST(test_captures),
        TEST(test_dangling),
        TEST(test_order_does_not_matter),
        TEST(test_subgraph_reads_what_comes_later),
        TEST(test_two_definitions),
        TEST(test_graph_given_twice),
        TEST(test_nothing_there),
        TEST(test_initializers),
        TEST(test_unknown_fields_stay),
        TEST(test_attributes),
        TEST(test_types),
        TEST(test_model_fields),
        TEST(test_two_imports_of_one_domain),
        TEST(test_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
