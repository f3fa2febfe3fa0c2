// SPDX-License-Identifier: Apache-2.0
// test_edit.c - editing graphs: uses, producers, names and specs stay consistent, rejected edits
// change nothing, and a rename changes every occurrence of a name.
#include "../api/help.h"
#include "ir/ir.h"

static struct bench *of(void **state)
{
    return *state;
}

static bool count_use(void *data, tsr_node *n, size_t input)
{
    (void)n;
    (void)input;
    ++*(size_t *)data;
    return true;
}

static size_t uses(const tsr_value *v)
{
    size_t n = 0;
    tsr_value_uses(v, count_use, &n);
    assert_int_equal(n, tsr_value_use_count(v));
    return n;
}

static void test_uses(void **state)
{
    struct bench *b = of(state);
    assert_int_equal(uses(b->x), 1);
    tsr_value *in[] = {b->x, NULL, b->x};
    tsr_node *n = tsr_graph_add_node(b->g, "my.domain", "Op", "op", in, 3,
                                     (const char *[]){"p", "", NULL}, 3);
    assert_non_null(n);
    assert_int_equal(uses(b->x), 3);
    assert_null(tsr_node_input(n, 1));
    assert_null(tsr_node_output(n, 1));
    assert_string_equal(tsr_node_domain(n), "my.domain");
    assert_int_equal(tsr_node_index(n), 2);
    assert_int_equal(tsr_node_replace_input(n, 0, b->w), TSR_OK);
    assert_int_equal(uses(b->x), 2);
    assert_int_equal(uses(b->w), 2);
    assert_int_equal(tsr_node_replace_input(n, 2, NULL), TSR_OK);
    assert_int_equal(uses(b->x), 1);
    tsr_model *m = again(b, b->m);
    n = node_at(m, 2);
    assert_int_equal(tsr_node_input_count(n), 3);
    assert_string_equal(tsr_value_name(tsr_node_input(n, 0)), "W");
    assert_null(tsr_node_input(n, 2));
    assert_int_equal(tsr_node_output_count(n), 3);
    assert_string_equal(tsr_node_domain(n), "my.domain");
}

// Strings passed to calls are copied.
static void test_texts_are_copied(void **state)
{
    struct bench *b = of(state);
    for (int i = 0; i < 3; i++) {
        char op[8] = "OpA", domain[8] = "dom", name[8] = "nodeA", out[8] = "outA", key[8] = "kA";
        op[2] = name[4] = out[3] = key[1] = (char)('A' + i);
        tsr_node *n =
            tsr_graph_add_node(b->g, domain, op, name, &b->x, 1, (const char *[]){out}, 1);
        assert_non_null(n);
        assert_int_equal(tsr_node_set_string(n, key, out), TSR_OK);
        assert_int_equal(tsr_model_set_metadata(b->m, key, out), TSR_OK);
        assert_int_equal(tsr_model_set_opset(b->m, out, 1), TSR_OK);
        assert_int_equal(tsr_model_add_config(b->m, out, 2, (const char *[]){op, out}, 2, NULL),
                         TSR_OK);
        assert_int_equal(
            tsr_value_set_type(tsr_node_output(n, 0), TSR_FLOAT, 1, &(tsr_dim){-1, name}), TSR_OK);
        memset(op, 'z', 7);
        memset(domain, 'z', 7);
        memset(name, 'z', 7);
        memset(out, 'z', 7);
        memset(key, 'z', 7);
    }
    tsr_model *m = again(b, b->m);
    for (size_t i = 0; i < 3; i++) {
        char want[8] = "OpA", out[8] = "outA", key[8] = "kA";
        want[2] = out[3] = key[1] = (char)('A' + i);
        tsr_node *n = node_at(m, 2 + i);
        assert_string_equal(tsr_node_op(n), want);
        assert_string_equal(tsr_node_domain(n), "dom");
        assert_string_equal(tsr_value_name(tsr_node_output(n, 0)), out);
        assert_string_equal(tsr_attr_string(tsr_node_find_attr(n, key), NULL), out);
        assert_string_equal(tsr_model_metadata(m, key), out);
        assert_string_equal(tsr_config_device_name(tsr_model_find_config(m, out), 0), want);
    }
}

static void test_move(void **state)
{
    struct bench *b = of(state);
    tsr_node *n = tsr_graph_add_node(b->g, "", "Neg", "first", &b->x, 1, (const char *[]){"n"}, 1);
    assert_int_equal(tsr_node_move_before(n, b->mm), TSR_OK);
    assert_ptr_equal(tsr_graph_first(b->g), n);
    assert_int_equal(tsr_node_index(n), 0);
    assert_int_equal(tsr_node_index(b->act), 2);
    assert_int_equal(tsr_node_move_before(b->mm, NULL), TSR_OK);
    assert_int_equal(tsr_node_index(b->mm), 2);
    tsr_model *m = again(b, b->m);
    assert_string_equal(tsr_node_name(node_at(m, 0)), "first");
    assert_string_equal(tsr_node_name(node_at(m, 1)), "act");
    assert_string_equal(tsr_node_name(node_at(m, 2)), "mm");
    // In a loaded model, unchanged nodes are byte ranges of the file, which must be reordered.
    assert_int_equal(tsr_node_move_before(node_at(m, 2), node_at(m, 1)), TSR_OK);
    assert_int_equal(tsr_node_move_before(node_at(m, 0), NULL), TSR_OK);
    m = again(b, m);
    assert_string_equal(tsr_node_name(node_at(m, 0)), "mm");
    assert_string_equal(tsr_node_name(node_at(m, 1)), "act");
    assert_string_equal(tsr_node_name(node_at(m, 2)), "first");
    assert_int_equal(tsr_node_move_before(node_at(m, 0), b->act), TSR_INVALID);
    assert_int_equal(findings(b, "argument-invalid"), 1);
}

static void test_remove(void **state)
{
    struct bench *b = of(state);
    refused(b, tsr_node_remove(b->mm), "node-still-used");  // read by act
    refused(b, tsr_node_remove(b->act), "node-still-used"); // the graph's output
    tsr_model *m = again(b, b->m);
    tsr_graph *g = tsr_model_graph(m);
    tsr_node *mm = node_at(m, 0), *act = node_at(m, 1);
    assert_int_equal(tsr_value_replace_uses(tsr_node_output(act, 0), tsr_node_output(mm, 0), true),
                     TSR_OK);
    assert_int_equal(tsr_node_remove(act), TSR_OK);
    assert_int_equal(tsr_graph_node_count(g), 1);
    assert_null(tsr_graph_value(g, "z"));
    assert_string_equal(tsr_node_name(act), "act"); // a removed node stays readable
    assert_int_equal(tsr_node_index(act), -1);
    assert_ptr_equal(tsr_node_input(act, 0), tsr_node_output(mm, 0));
    assert_int_equal(uses(tsr_node_output(mm, 0)), 0);
    refused(b, tsr_node_remove(act), "node-removed");
    refused(b, tsr_node_set_int(act, "a", 1), "node-removed");
    m = again(b, m);
    assert_int_equal(tsr_graph_node_count(tsr_model_graph(m)), 1);
    assert_string_equal(tsr_value_name(tsr_graph_output(tsr_model_graph(m), 0)), "y");
    assert_false(holds(b, m, "0a017a")); // z must not occur anywhere, not even in value_info
}

// Nodes may be removed while the graph is iterated.
static void test_walk_survives_removal(void **state)
{
    struct bench *b = of(state);
    for (int i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof(name), "n%d", i);
        assert_non_null(
            tsr_graph_add_node(b->g, "", "Neg", name, &b->x, 1, (const char *[]){name}, 1));
    }
    size_t seen = 0;
    for (tsr_node *n = tsr_graph_first(b->g); n; n = tsr_node_next(n), seen++)
        if (tsr_node_name(n)[0] == 'n')
            assert_int_equal(tsr_node_remove(n), TSR_OK);
    assert_int_equal(seen, 7);
    assert_int_equal(tsr_graph_node_count(b->g), 2);
    assert_int_equal(uses(b->x), 1);
    assert_non_null(
        // the names are free again
        tsr_graph_add_node(b->g, "", "Neg", "", &b->x, 1, (const char *[]){"n0"}, 1));
}

static void test_replace_uses_moves_specs(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(b->act, b->y, c, 0, 2, IDS(0, 1), -1), TSR_OK);
    assert_int_equal(tsr_node_shard(b->mm, b->y, c, 0, 2, IDS(0, 1), -1), TSR_OK);
    assert_int_equal(tsr_value_replace_uses(b->y, b->x, false), TSR_OK);
    assert_ptr_equal(tsr_node_input(b->act, 0), b->x);
    assert_non_null(tsr_node_sharding_of(b->act, b->x, 0));
    assert_null(tsr_node_sharding_of(b->act, b->y, 0));
    assert_non_null(tsr_node_sharding_of(b->mm, b->y, 0)); // y is still the output of mm
    refused(b, tsr_value_replace_uses(b->x, NULL, false), "argument-invalid");
}

// A spec of the new value has priority over that of the old one.
static void test_replace_where_both_have_specs(void **state)
{
    struct bench *b = of(state);
    tsr_value *in[] = {b->x, b->w};
    tsr_node *n = tsr_graph_add_node(b->g, "", "Add", "", in, 2, (const char *[]){"s"}, 1);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(n, b->x, c, 0, 2, IDS(0, 1), -1), TSR_OK);
    assert_int_equal(tsr_node_shard(n, b->w, c, 1, 2, IDS(0, 1), -1), TSR_OK);
    assert_int_equal(tsr_node_replace_input(n, 0, b->w), TSR_OK);
    assert_null(tsr_node_sharding_of(n, b->x, 0));
    assert_int_equal(tsr_spec_dim_axis(tsr_node_sharding_of(n, b->w, 0), 0), 1);
    assert_null(tsr_node_sharding_of(n, b->w, 1));
}

// Invalid edits must fail with the right error.
static void test_refusals(void **state)
{
    struct bench *b = of(state);
    tsr_model *other = again(b, b->m);
    tsr_value *foreign = tsr_graph_input(tsr_model_graph(other), 0);
    refused(b, tsr_node_replace_input(b->mm, 0, foreign), "value-foreign");
    refused(b, tsr_node_replace_input(b->mm, 5, b->x), "index-range");
    refused(b, tsr_value_rename(b->x, "W"), "name-taken");
    refused(b, tsr_value_rename(b->x, ""), "name-empty");
    refused(b, tsr_graph_add_output(b->g, NULL), "argument-invalid");
    refused(b, tsr_graph_add_output(b->g, foreign), "value-foreign");
    refused(b, tsr_node_remove_attr(b->mm, "none"), "attribute-absent");
    refused(b, tsr_node_set_int(b->mm, "", 1), "name-empty");
    refused(b, tsr_value_set_type(b->x, TSR_FLOAT, -2, NULL), "argument-invalid");
    refused(b, tsr_node_resize_outputs(b->mm, 0), "node-still-used");
    assert_null(tsr_graph_add_input(b->g, "W"));
    refused(b, TSR_INVALID, "name-taken");
    assert_null(tsr_graph_add_input(b->g, ""));
    refused(b, TSR_INVALID, "name-empty");
    assert_null(tsr_graph_add_node(b->g, "", "Neg", "", &b->x, 1, (const char *[]){"y"}, 1));
    refused(b, TSR_INVALID, "name-taken");
    assert_null(tsr_graph_add_node(b->g, "", "Neg", "", &b->x, 1, (const char *[]){"q", "q"}, 2));
    refused(b, TSR_INVALID, "name-taken");
    assert_null(tsr_graph_add_node(b->g, "", "", "", &b->x, 1, (const char *[]){"q"}, 1));
    refused(b, TSR_INVALID, "name-empty");
    assert_null(tsr_graph_add_node(b->g, "", "Neg", "", &foreign, 1, (const char *[]){"q"}, 1));
    refused(b, TSR_INVALID, "value-foreign");
    assert_int_equal(tsr_graph_node_count(b->g), 2);
    assert_int_equal(uses(b->x), 1);
}

// tsr_node_shard checks its arguments immediately.
static void test_shard_is_checked_at_once(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2), *gone = config(b, "gone", 2);
    assert_int_equal(tsr_model_remove_config(b->m, gone, false), TSR_OK);
    refused(b, tsr_node_shard(b->mm, b->w, gone, 0, 2, NULL, 0, -1), "config-unknown");
    refused(b, tsr_node_shard(b->mm, b->w, NULL, 0, 2, NULL, 0, -1), "config-unknown");
    refused(b, tsr_node_set_stage(b->mm, gone, 0), "config-unknown");
    refused(b, tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(0, 2), -1), "shard-device");
    refused(b, tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(-1, 0), -1), "shard-device");
    assert_int_equal(tsr_node_config_count(b->mm), 0);
    // more shards than elements: some are empty
    assert_int_equal(tsr_node_shard(b->mm, b->x, c, 1, 9, NULL, 0, -1), TSR_OK);
    assert_int_equal(tsr_node_unshard(b->mm, b->x, c), TSR_OK);
    // Each invalid argument of one call has its own error.
    assert_int_equal(tsr_node_shard(b->mm, b->z, c, 5, 0, IDS(7), -2), TSR_INVALID);
    assert_int_equal(findings(b, "shard-value") + findings(b, "shard-axis") +
                         findings(b, "shard-count") + findings(b, "shard-device") +
                         findings(b, "stage-range"),
                     5);
    assert_int_equal(findings(b, NULL), 5);
}

// Removing shardings and stages.
static void test_unset(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2), *d = config(b, "d", 2);
    size_t before = 0, after = 0;
    void *bare = save(b, b->m, &before);
    refused(b, tsr_node_unshard(b->mm, b->w, c), "annotation-absent");
    refused(b, tsr_node_unset_stage(b->mm, c), "annotation-absent");
    shard(b, b->w, c, 0, 2);
    shard(b, b->w, d, 0, 2);
    shard(b, b->x, c, 0, 2);
    assert_int_equal(tsr_node_set_stage(b->mm, c, 1), TSR_OK);
    assert_int_equal(tsr_node_unshard(b->mm, b->w, c), TSR_OK);
    assert_non_null(tsr_node_sharding_of(b->mm, b->w, 0)); // the spec of configuration d remains
    assert_int_equal(tsr_node_unshard(b->mm, b->w, NULL), TSR_OK);
    assert_null(tsr_node_find_config(b->mm, d)); // an entry without content is removed
    assert_int_equal(tsr_node_unshard(b->mm, b->x, NULL), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1); // the entry with the stage
    assert_int_equal(tsr_node_unset_stage(b->mm, c), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 0);
    tsr_spec *p = tsr_node_add_spec(b->act, c, b->y);
    assert_int_equal(tsr_spec_remove(p), TSR_OK);
    refused(b, tsr_spec_remove(p), "annotation-absent");
    tsr_node_config *nc = NULL;
    assert_int_equal(tsr_node_set_stage(b->act, c, 1), TSR_OK);
    nc = tsr_node_config_at(b->act, 0);
    refused(b, tsr_node_remove_config(b->mm, nc), "annotation-absent");
    assert_int_equal(tsr_node_remove_config(b->act, nc), TSR_OK);
    void *bytes = save(b, b->m, &after);
    assert_int_equal(before, after);
    assert_memory_equal(bare, bytes, before);
}

static void test_attributes(void **state)
{
    struct bench *b = of(state);
    assert_int_equal(tsr_node_set_int(b->act, "i", -3), TSR_OK);
    assert_int_equal(tsr_node_set_float(b->act, "f", 0.5f), TSR_OK);
    assert_int_equal(tsr_node_set_string(b->act, "s", "text"), TSR_OK);
    assert_int_equal(tsr_node_set_ints(b->act, "v", IDS(1, -1)), TSR_OK);
    assert_int_equal(tsr_node_set_ints(b->act, "none", NULL, 0), TSR_OK);
    tsr_model *m = again(b, b->m);
    tsr_node *n = node_at(m, 1);
    const int64_t *v = NULL;
    assert_int_equal(tsr_attr_int(tsr_node_find_attr(n, "i"), 0), -3);
    assert_true(tsr_attr_float(tsr_node_find_attr(n, "f"), 0) == 0.5f);
    assert_string_equal(tsr_attr_string(tsr_node_find_attr(n, "s"), NULL), "text");
    assert_int_equal(tsr_attr_ints(tsr_node_find_attr(n, "v"), &v), 2);
    assert_int_equal(v[1], -1);
    assert_int_equal(tsr_attr_kind_of(tsr_node_find_attr(n, "none")), TSR_ATTR_INTS);
    assert_int_equal(tsr_node_set_string(n, "s", tsr_attr_string(tsr_node_find_attr(n, "s"), NULL)),
                     TSR_OK);
    assert_int_equal(tsr_node_set_int(n, "f", 4), TSR_OK); // another type, same position
    assert_int_equal(tsr_node_remove_attr(n, "i"), TSR_OK);
    n = node_at(again(b, m), 1);
    assert_int_equal(tsr_node_attr_count(n), 4);
    assert_string_equal(tsr_attr_name(tsr_node_attr(n, 0)), "f");
    assert_int_equal(tsr_attr_int(tsr_node_attr(n, 0), 0), 4);
    assert_string_equal(tsr_attr_string(tsr_node_find_attr(n, "s"), NULL), "text");
}

static void test_types(void **state)
{
    struct bench *b = of(state);
    tsr_model *m = again(b, b->m);
    tsr_graph *g = tsr_model_graph(m);
    size_t before = 0, after = 0;
    void *bytes = save(b, m, &before);
    shape(tsr_graph_value(g, "y"), 1024, 8); // same shape: no change
    void *same = save(b, m, &after);
    assert_int_equal(before, after);
    assert_memory_equal(bytes, same, before);
    tsr_dim dims[] = {{-1, "rows"}, {-1, ""}, {3, "ignored"}};
    assert_int_equal(tsr_value_set_type(tsr_graph_value(g, "y"), TSR_FLOAT16, 3, dims), TSR_OK);
    assert_int_equal(tsr_value_set_type(tsr_graph_value(g, "x"), TSR_INT64, -1, NULL), TSR_OK);
    assert_int_equal(tsr_value_set_type(tsr_graph_value(g, "z"), TSR_INT8, 0, NULL), TSR_OK);
    g = tsr_model_graph(again(b, m));
    tsr_value *y = tsr_graph_value(g, "y");
    assert_int_equal(tsr_value_dtype(y), TSR_FLOAT16);
    assert_int_equal(tsr_value_rank(y), 3);
    assert_string_equal(tsr_value_dim(y, 0).symbol, "rows");
    assert_int_equal(tsr_value_dim(y, 1).value, -1);
    assert_int_equal(tsr_value_dim(y, 2).value, 3);
    assert_int_equal(tsr_value_dtype(tsr_graph_value(g, "x")), TSR_INT64);
    assert_int_equal(tsr_value_rank(tsr_graph_value(g, "x")), -1);
    assert_int_equal(tsr_value_rank(tsr_graph_value(g, "z")), 0);
}

// A model with the names of v, w and the constant k in every place that can contain names.
static struct msg everywhere(void)
{
    struct msg model = {.n = 0}, graph = {.n = 0}, inner = {.n = 0}, t = {.n = 0}, i = {.n = 0},
               a = {.n = 0};
    struct msg entry = msg_entry("c", "v"), conf = msg_config("c", 2), pair = {.n = 0};
    struct msg make = msg_node("in", "v", "Neg", &entry), neg = msg_node("v", "t", "Neg", &entry);
    struct msg iff = msg_node("k", "z", "If", NULL), q = {.n = 0};
    msg_msg(&inner, 1, &neg);
    msg_text(&i, 1, "v");
    msg_msg(&inner, 12, &i); // the branch returns the outer value
    msg_text(&a, 1, "then_branch");
    msg_msg(&a, 6, &inner);
    msg_int(&a, 20, TSR_ATTR_GRAPH);
    msg_msg(&iff, 5, &a);
    msg_int(&model, 1, 11);
    msg_msg(&graph, 1, &make);
    msg_msg(&graph, 1, &iff);
    msg_text(&t, 8, "k");
    msg_msg(&graph, 5, &t);
    i.n = 0;
    msg_text(&i, 1, "in");
    msg_msg(&graph, 11, &i);
    i.n = 0;
    msg_text(&i, 1, "v");
    msg_text(&i, 3, "documented");
    msg_msg(&graph, 12, &i);
    msg_msg(&graph, 13, &i);
    msg_text(&q, 1, "v");
    msg_text(&pair, 1, "SCALE_TENSOR");
    msg_text(&pair, 2, "k");
    msg_msg(&q, 2, &pair);
    msg_msg(&graph, 14, &q);
    msg_msg(&model, 7, &graph);
    msg_msg(&model, 26, &conf);
    return model;
}

// Renaming does not change training_info.
static void test_rename_keeps_training_info(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, graph = {.n = 0}, t = {.n = 0}, training = {.n = 0};
    struct msg step = {.n = 0}, make = msg_node("k", "x", "Neg", NULL), pair = {.n = 0};
    struct msg update = msg_node("k", "next", "Neg", NULL);
    msg_int(&model, 1, 8);
    msg_text(&t, 8, "k");
    msg_msg(&graph, 5, &t);
    msg_msg(&graph, 1, &make);
    msg_msg(&model, 7, &graph);
    msg_msg(&step, 1, &update);
    msg_msg(&training, 2, &step);
    msg_text(&pair, 1, "k");
    msg_text(&pair, 2, "next");
    msg_msg(&training, 4, &pair);
    msg_msg(&model, 20, &training);
    tsr_model *m = load(b, model.at, model.n);
    assert_int_equal(tsr_value_rename(tsr_graph_value(tsr_model_graph(m), "k"), "constant"),
                     TSR_OK);
    size_t n = 0;
    const char *bytes = save(b, m, &n);
    assert_true(n > training.n);
    assert_memory_equal(bytes + n - training.n, training.at, training.n);
}

static void test_rename_is_followed(void **state)
{
    struct bench *b = of(state);
    struct msg file = everywhere();
    tsr_model *m = load(b, file.at, file.n);
    tsr_graph *g = tsr_model_graph(m);
    assert_int_equal(tsr_value_rename(tsr_graph_value(g, "v"), "fresh"), TSR_OK);
    assert_int_equal(tsr_value_rename(tsr_graph_value(g, "k"), "constant"), TSR_OK);
    assert_int_equal(tsr_value_rename(tsr_graph_value(g, "in"), "entry"), TSR_OK);
    assert_null(tsr_graph_value(g, "v"));
    assert_false(holds(b, m, "0176")); // the one-letter name "v" must not occur
    assert_false(holds(b, m, "016b"));
    assert_false(holds(b, m, "02696e"));
    assert_true(holds(b, m, "1a0a 646f63756d656e746564"));
    tsr_model *m2 = again(b, m);
    g = tsr_model_graph(m2);
    tsr_node *make = node_at(m2, 0), *iff = node_at(m2, 1);
    tsr_value *v = tsr_graph_value(g, "fresh");
    assert_ptr_equal(tsr_node_output(make, 0), v);
    assert_ptr_equal(tsr_spec_value(tsr_node_config_spec(tsr_node_config_at(make, 0), 0)), v);
    tsr_graph *inner = tsr_attr_graph(tsr_node_find_attr(iff, "then_branch"), 0);
    tsr_node *neg = tsr_graph_first(inner);
    assert_ptr_equal(tsr_node_input(neg, 0), v);
    assert_ptr_equal(tsr_graph_output(inner, 0), v);
    assert_ptr_equal(tsr_spec_value(tsr_node_config_spec(tsr_node_config_at(neg, 0), 0)), v);
    assert_ptr_equal(tsr_graph_output(g, 0), v);
    assert_string_equal(tsr_value_name(tsr_graph_initializer(g, 0)), "constant");
    // Renaming back must restore the original bytes.
    assert_int_equal(tsr_value_rename(tsr_graph_value(tsr_model_graph(m), "fresh"), "v"), TSR_OK);
    assert_int_equal(tsr_value_rename(tsr_graph_value(tsr_model_graph(m), "constant"), "k"),
                     TSR_OK);
    assert_int_equal(tsr_value_rename(tsr_graph_value(tsr_model_graph(m), "entry"), "in"), TSR_OK);
    size_t n = 0;
    void *bytes = save(b, m, &n);
    assert_int_equal(n, file.n);
    assert_memory_equal(bytes, file.at, n);
}

// A new name must not change which value a subgraph reads.
static void test_rename_never_captures(void **state)
{
    struct bench *b = of(state);
    struct msg file = everywhere();
    tsr_model *m = load(b, file.at, file.n);
    tsr_graph *inner = tsr_attr_graph(tsr_node_find_attr(node_at(m, 1), "then_branch"), 0);
    tsr_node *neg = tsr_graph_first(inner);
    // The branch reads v and defines another value t: v must not become t, and t must not hide v.
    refused(b, tsr_value_rename(tsr_graph_value(tsr_model_graph(m), "v"), "t"), "name-taken");
    refused(b, tsr_value_rename(tsr_node_output(neg, 0), "v"), "name-taken");
    // k is not read in the branch
    assert_int_equal(tsr_value_rename(tsr_node_output(neg, 0), "k"), TSR_OK);
    assert_null(tsr_graph_add_node(inner, "", "Neg", "", NULL, 0, (const char *[]){"v"}, 1));
    refused(b, TSR_INVALID, "name-taken");
    tsr_value *local = tsr_node_output(neg, 0);
    refused(b, tsr_node_replace_input(node_at(m, 0), 0, local), "value-out-of-scope");
    // Removing the node also removes the uses in its subgraph.
    tsr_value *v = tsr_graph_value(tsr_model_graph(m), "v");
    assert_int_equal(uses(v), 1);
    assert_int_equal(tsr_node_remove(node_at(m, 1)), TSR_OK);
    assert_int_equal(uses(v), 0);
    assert_true(tsr_value_is_output(v)); // still an output of the main graph
    tsr_value *in = tsr_graph_input(tsr_model_graph(m), 0);
    assert_int_equal(tsr_value_replace_uses(v, in, true), TSR_OK);
    assert_ptr_equal(tsr_graph_output(tsr_model_graph(m), 0), in);
    assert_false(tsr_value_is_output(v));
    assert_int_equal(tsr_node_remove(node_at(m, 0)), TSR_OK);
}

static void test_edit_in_a_subgraph_is_saved(void **state)
{
    struct bench *b = of(state);
    struct msg file = everywhere();
    tsr_model *m = load(b, file.at, file.n);
    tsr_graph *inner = tsr_attr_graph(tsr_node_find_attr(node_at(m, 1), "then_branch"), 0);
    tsr_value *v = tsr_graph_value(tsr_model_graph(m), "v");
    tsr_node *n = tsr_graph_add_node(inner, "", "Abs", "new", &v, 1, (const char *[]){"more"}, 1);
    assert_non_null(n);
    assert_int_equal(tsr_graph_add_output(inner, tsr_node_output(n, 0)), TSR_OK);
    tsr_model *m2 = again(b, m);
    inner = tsr_attr_graph(tsr_node_find_attr(node_at(m2, 1), "then_branch"), 0);
    assert_int_equal(tsr_graph_node_count(inner), 2);
    assert_int_equal(tsr_graph_output_count(inner), 2);
    assert_ptr_equal(tsr_value_graph(tsr_graph_output(inner, 1)), inner);
}

static void test_cascade_in_subgraphs(void **state)
{
    struct bench *b = of(state);
    struct msg file = everywhere();
    tsr_model *m = load(b, file.at, file.n);
    assert_int_equal(tsr_model_remove_config_named(m, "c", true), TSR_OK);
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        assert_int_equal(tsr_node_config_count(n), 0);
    m = again(b, m);
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        assert_int_equal(tsr_node_config_count(n), 0);
    assert_int_equal(tsr_model_config_count(m), 0);
}

// A configuration that entries refer to may be declared later.
static void test_standin_is_declared_later(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("later", "x"), file = msg_model(&entry, NULL);
    tsr_model *m = load(b, file.at, file.n);
    tsr_config *standin = tsr_node_config_target(tsr_node_config_at(node_at(m, 0), 0)), *c = NULL;
    assert_int_equal(tsr_model_add_config(m, "later", 2, NULL, 0, &c), TSR_OK);
    assert_ptr_equal(c, standin); // references to the undeclared name now refer to it
    assert_int_equal(tsr_config_devices(c), 2);
}

static void test_fresh_names(void **state)
{
    struct bench *b = of(state);
    assert_true(str_is(tsr__graph_fresh_name(b->g, STR("free")), "free"));
    assert_true(str_is(tsr__graph_fresh_name(b->g, STR("free")), "free_1"));
    assert_true(str_is(tsr__graph_fresh_name(b->g, STR("y")), "y_1"));
    struct msg file = everywhere();
    tsr_model *m = load(b, file.at, file.n);
    assert_true(
        // a subgraph already has t
        str_is(tsr__graph_fresh_name(tsr_model_graph(m), STR("t")), "t_1"));
}

// A model cannot be saved over the file from which it was loaded.
static void test_output_is_input(void **state)
{
    struct bench *b = of(state);
    char path[] = "/tmp/tessera-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(tsr_model_save(b->m, path), TSR_OK); // not loaded from a file
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_load(b->s, path, &m), TSR_OK);
    b->others[b->n_others++] = m;
    assert_string_equal(tsr_model_path(m), path);
    assert_int_equal(tsr_model_save(m, path), TSR_WRITE);
    assert_int_equal(findings(b, "output-is-input"), 1);
    remove(path);
}

// A range of entries can be kept from lists of strings, floats (packed or not) and integers.
static void test_lists_keep_entries(void **state)
{
    struct bench *b = of(state);
    struct msg texts = {.n = 0}, floats = {.n = 0}, model = {.n = 0}, graph = {.n = 0};
    const float packed[] = {1, 2, 3}, last = 4;
    float kept[4];
    msg_text(&texts, 1, "activations");
    msg_text(&texts, 9, "Tanh");
    msg_text(&texts, 9, "Relu");
    msg_text(&texts, 9, "Elu");
    msg_int(&texts, 20, TSR_ATTR_STRINGS);
    msg_text(&floats, 1, "alpha");
    msg_bytes(&floats, 7, packed, sizeof(packed));
    msg_varint(&floats, 7 << 3 | 5);
    memcpy(floats.at + floats.n, &last, sizeof(last));
    floats.n += sizeof(last);
    msg_int(&floats, 20, TSR_ATTR_FLOATS);
    struct msg n = msg_node("x", "y", "RNN", NULL);
    msg_msg(&n, 5, &texts);
    msg_msg(&n, 5, &floats);
    msg_msg(&graph, 1, &n);
    msg_int(&model, 1, 8);
    msg_msg(&model, 7, &graph);
    tsr_model *m = load(b, model.at, model.n);
    tsr_node *rnn = node_at(m, 0);
    assert_int_equal(tsr_node_set_ints(rnn, "v", IDS(5, 6, 7)), TSR_OK);
    assert_int_equal(tsr__attr_keep(tsr_node_find_attr(rnn, "activations"), 1, 2), TSR_OK);
    assert_int_equal(tsr__attr_keep(tsr_node_find_attr(rnn, "alpha"), 2, 4), TSR_OK);
    assert_int_equal(tsr__attr_keep(tsr_node_find_attr(rnn, "v"), 1, 3), TSR_OK);
    const int64_t *v;
    rnn = node_at(again(b, m), 0);
    assert_int_equal(tsr__attr_length(tsr_node_find_attr(rnn, "activations")), 1);
    assert_int_equal(tsr__attr_floats(tsr_node_find_attr(rnn, "alpha"), kept, 4), 2);
    assert_true(kept[0] == 3 && kept[1] == 4);
    assert_int_equal(tsr_attr_ints(tsr_node_find_attr(rnn, "v"), &v), 2);
    assert_int_equal(v[0], 6);
}

// A shortened list has new bytes, which a clone must share after the model is freed.
static void test_kept_entries_outlive_their_model(void **state)
{
    (void)state;
    tsr_session_options options = {.size = sizeof options, .alloc = overwriting};
    struct bench b = {.s = tsr_session_new(&options)};
    struct msg floats = {.n = 0}, model = {.n = 0}, graph = {.n = 0};
    const float packed[] = {1, 2, 3};
    float kept[3] = {0};
    msg_text(&floats, 1, "alpha");
    msg_bytes(&floats, 7, packed, sizeof(packed));
    msg_int(&floats, 20, TSR_ATTR_FLOATS);
    struct msg n = msg_node("x", "y", "RNN", NULL);
    msg_msg(&n, 5, &floats);
    msg_msg(&graph, 1, &n);
    msg_int(&model, 1, 8);
    msg_msg(&model, 7, &graph);
    tsr_model *m = load(&b, model.at, model.n), *copy = NULL;
    assert_int_equal(tsr__attr_keep(tsr_node_find_attr(node_at(m, 0), "alpha"), 1, 3), TSR_OK);
    assert_int_equal(tsr_model_clone(m, &copy), TSR_OK);
    tsr_model_free(m);
    assert_int_equal(tsr__attr_floats(tsr_node_find_attr(node_at(copy, 0), "alpha"), kept, 3), 2);
    assert_true(kept[0] == 2 && kept[1] == 3);
    tsr_model_free(copy);
    tsr_session_free(b.s);
}

// Results derived from the model are kept until the call, and no longer (DROPS) or also after it
// (KEEPS).
#define DROPS(m, call)                                                                             \
    do {                                                                                           \
        assert_non_null(tsr__model_derive(m));                                                     \
        assert_true(call);                                                                         \
        assert_null(tsr__model_derived(m));                                                        \
    } while (0)
#define KEEPS(m, call)                                                                             \
    do {                                                                                           \
        struct derived *kept = tsr__model_derive(m);                                               \
        assert_non_null(kept);                                                                     \
        assert_true(call);                                                                         \
        assert_ptr_equal(tsr__model_derived(m), kept);                                             \
    } while (0)

static void test_edits_drop_derived_results(void **state)
{
    struct bench *b = of(state);
    const tsr_dim dim = {4, ""};
    const float one = 1;
    tsr_value *in = NULL, *k = NULL;
    tsr_node *n = NULL;
    DROPS(b->m, tsr_model_set_opset(b->m, "my", 3) == TSR_OK);
    DROPS(b->m, (in = tsr_graph_add_input(b->g, "in")) != NULL);
    DROPS(b->m, tsr_value_set_type(in, TSR_FLOAT, 1, &dim) == TSR_OK);
    DROPS(b->m, (k = tsr_graph_add_initializer(b->g, "k", TSR_FLOAT, 0, NULL, &one, 4)) != NULL);
    DROPS(b->m, (n = tsr_graph_add_node(b->g, "", "Op", "n", &in, 1, (const char *[]){"p", "q"},
                                        2)) != NULL);
    DROPS(b->m, tsr_node_move_before(n, b->mm) == TSR_OK);
    DROPS(b->m, tsr_graph_add_output(b->g, tsr_node_output(n, 0)) == TSR_OK);
    DROPS(b->m, tsr_node_set_int(n, "i", 1) == TSR_OK);
    DROPS(b->m, tsr_node_set_int(n, "i", 2) == TSR_OK);
    DROPS(b->m, tsr_node_set_ints(n, "l", IDS(1, 2)) == TSR_OK);
    DROPS(b->m, tsr_node_set_float(n, "f", 1) == TSR_OK);
    DROPS(b->m, tsr_node_set_string(n, "s", "text") == TSR_OK);
    DROPS(b->m, tsr_node_remove_attr(n, "s") == TSR_OK);
    DROPS(b->m, tsr_node_replace_input(n, 0, k) == TSR_OK);
    DROPS(b->m, tsr_node_resize_outputs(n, 1) == TSR_OK);
    DROPS(b->m, tsr_value_replace_uses(tsr_node_output(n, 0), b->x, true) == TSR_OK);
    DROPS(b->m, tsr_value_replace_uses(b->x, in, false) == TSR_OK);
    DROPS(b->m, tsr_value_rename(in, "renamed") == TSR_OK);
    DROPS(b->m, tsr_node_remove(n) == TSR_OK);
}

// An edit inside a subgraph also drops the results of the model.
static void test_edits_of_subgraphs_drop_derived_results(void **state)
{
    struct bench *b = of(state);
    tsr_node *branch = tsr_graph_add_node(b->g, "", "If", "if", &b->x, 1, (const char *[]){"r"}, 1);
    tsr_graph *body = NULL;
    DROPS(b->m, (body = tsr__node_add_graph(branch, "then_branch", "then")) != NULL);
    tsr_node *n = NULL;
    DROPS(b->m, (n = tsr_graph_add_node(body, "", "Neg", "n", &b->x, 1, (const char *[]){"s"},
                                        1)) != NULL);
    DROPS(b->m, tsr_node_set_int(n, "i", 1) == TSR_OK);
    DROPS(b->m, tsr_node_set_int(n, "i", 2) == TSR_OK);
    DROPS(b->m, tsr_graph_add_output(body, tsr_node_output(n, 0)) == TSR_OK);
}

static void test_annotations_keep_derived_results(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = NULL;
    tsr_spec *spec = NULL;
    KEEPS(b->m, tsr_model_add_config(b->m, "c", 2, NULL, 0, &c) == TSR_OK);
    KEEPS(b->m, tsr_config_rename(c, "d") == TSR_OK);
    KEEPS(b->m, tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(0, 1), -1) == TSR_OK);
    KEEPS(b->m, tsr_node_set_stage(b->mm, c, 1) == TSR_OK);
    KEEPS(b->m, tsr_node_unset_stage(b->mm, c) == TSR_OK);
    KEEPS(b->m, tsr_node_unshard(b->mm, b->w, c) == TSR_OK);
    KEEPS(b->m, (spec = tsr_node_add_spec(b->mm, c, b->w)) != NULL);
    KEEPS(b->m, tsr_spec_set_devices(spec, IDS(0, 1)) == TSR_OK);
    KEEPS(b->m, tsr_spec_add_group(spec, 0, IDS(0, 1)) == TSR_OK);
    KEEPS(b->m, tsr_spec_add_dim(spec, 0, NULL, (const int64_t[]){2}, 1) == TSR_OK);
    KEEPS(b->m, tsr_spec_remove(spec) == TSR_OK);
    assert_int_equal(tsr_node_set_stage(b->mm, c, 1), TSR_OK);
    KEEPS(b->m, tsr_node_remove_config(b->mm, tsr_node_find_config(b->mm, c)) == TSR_OK);
    KEEPS(b->m, tsr_model_remove_config(b->m, c, true) == TSR_OK);
    KEEPS(b->m, tsr_model_set_metadata(b->m, "key", "value") == TSR_OK);
    KEEPS(b->m, tsr_node_set_metadata(b->mm, "key", "value") == TSR_OK);
    KEEPS(b->m, tsr_node_replace_input(b->mm, 99, b->x) != TSR_OK); // refused
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_uses),
        TEST(test_texts_are_copied),
        TEST(test_move),
        TEST(test_remove),
        TEST(test_walk_survives_removal),
        TEST(test_replace_uses_moves_specs),
        TEST(test_replace_where_both_have_specs),
        TEST(test_refusals),
        TEST(test_shard_is_checked_at_once),
        TEST(test_unset),
        TEST(test_attributes),
        TEST(test_lists_keep_entries),
        cmocka_unit_test(test_kept_entries_outlive_their_model),
        TEST(test_types),
        TEST(test_rename_is_followed),
        TEST(test_rename_keeps_training_info),
        TEST(test_rename_never_captures),
        TEST(test_edit_in_a_subgraph_is_saved),
        TEST(test_cascade_in_subgraphs),
        TEST(test_standin_is_declared_later),
        TEST(test_fresh_names),
        TEST(test_output_is_input),
        TEST(test_edits_drop_derived_results),
        TEST(test_edits_of_subgraphs_drop_derived_results),
        TEST(test_annotations_keep_derived_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
