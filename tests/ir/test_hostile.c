// SPDX-License-Identifier: Apache-2.0
// test_hostile.c - valid files unlike any real model: thousands of nodes, values, attributes and so
// on. Time and memory must be proportional to the file.
#include "../api/help.h"

#define MANY           60000
#define MANY_FUNCTIONS 20000 // with more, the memory limit is exceeded

// A growing message; those of help.h have a fixed size.
struct big {
    unsigned char *at;
    size_t n, cap;
};

static void big_bytes(struct big *b, int number, const void *p, size_t n)
{
    struct msg head = {.n = 0};
    if (b->n + n + 16 > b->cap) {
        b->cap = 2 * (b->n + n + 16);
        b->at = realloc(b->at, b->cap);
        assert_non_null(b->at);
    }
    msg_varint(&head, (uint64_t)number << 3 | 2);
    msg_varint(&head, n);
    memcpy(b->at + b->n, head.at, head.n);
    memcpy(b->at + b->n + head.n, p, n);
    b->n += head.n + n;
}

// Adds the message `times` times, at least once: the first one is copied.
static void big_times(struct big *b, int number, const struct msg *m, size_t times)
{
    size_t start = b->n;
    big_bytes(b, number, m->at, m->n);
    size_t one = b->n - start, all = one * times;
    b->cap = start + all + 16;
    b->at = realloc(b->at, b->cap);
    assert_non_null(b->at);
    for (size_t done = one; done < all; done *= 2)
        memcpy(b->at + start + done, b->at + start, done < all - done ? done : all - done);
    b->n = start + all;
}

// Loads a model with graph `g`, reads everything, edits, copies and saves with a memory limit.
static void survives(struct big *graph, size_t nodes)
{
    struct big model = {0};
    big_bytes(&model, 7, graph->at, graph->n);
    memcpy(model.at + model.n, "\10\13", 2); // ir_version 11: annotations need it
    model.n += 2;
    tsr_session_options o = {.size = sizeof(o), .memory_limit = 200 * model.n + (64 << 20)};
    tsr_session *s = tsr_session_new(&o);
    tsr_model *m = NULL, *copy = NULL;
    assert_int_equal(tsr_model_load_bytes(s, model.at, model.n, &m), TSR_OK);
    size_t seen = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        seen += 1 + 0 * tsr_node_attr_count(n);
    assert_int_equal(seen, nodes);
    tsr_config *c = NULL;
    assert_int_equal(tsr_model_add_config(m, "extra", 2, NULL, 0, &c), TSR_OK);
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        assert_int_equal(tsr_node_set_stage(n, c, 1), TSR_OK);
    assert_int_equal(tsr_model_clone(m, &copy), TSR_OK);
    assert_int_equal(tsr_model_remove_config(m, c, true), TSR_OK);
    void *bytes = NULL, *again = NULL;
    size_t k = 0, j = 0;
    assert_int_equal(tsr_model_save_bytes(m, &bytes, &k), TSR_OK);
    assert_int_equal(k, model.n);
    assert_memory_equal(bytes, model.at, k);
    assert_int_equal(tsr_model_save_bytes(copy, &again, &j), TSR_OK);
    tsr_bytes_free(s, bytes, k);
    tsr_bytes_free(s, again, j);
    tsr_model_free(m);
    tsr_model_free(copy);
    assert_int_equal(tsr_finding_count(s), 0);
    tsr_session_free(s);
    free(model.at);
    free(graph->at);
}

static void one_node(struct big *node, size_t nodes)
{
    struct big graph = {0};
    big_bytes(&graph, 1, node->at, node->n);
    free(node->at);
    survives(&graph, nodes);
}

// Thousands of annotation entries of one node.
static void test_entries(void **state)
{
    (void)state;
    struct big node = {0};
    struct msg entry = msg_entry("c", "x");
    big_times(&node, 10, &entry, MANY);
    one_node(&node, 1);
}

static void test_specs(void **state)
{
    (void)state;
    struct big node = {0}, entry = {0};
    struct msg spec = {.n = 0};
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof(name), "v%d", i);
        spec.n = 0;
        msg_text(&spec, 1, name);
        big_bytes(&node, 1, name, strlen(name));
        big_bytes(&entry, 2, spec.at, spec.n);
    }
    big_bytes(&node, 10, entry.at, entry.n);
    free(entry.at);
    one_node(&node, 1);
}

static void test_groups_and_dims(void **state)
{
    (void)state;
    struct big node = {0}, entry = {0}, spec = {0};
    struct msg group = {.n = 0}, dim = {.n = 0}, simple = {.n = 0};
    msg_int(&group, 1, -1);
    big_times(&spec, 3, &group, MANY);
    msg_int(&simple, 3, 2);
    msg_msg(&dim, 2, &simple);
    big_times(&spec, 4, &dim, MANY);
    big_bytes(&entry, 2, spec.at, spec.n);
    big_bytes(&node, 10, entry.at, entry.n);
    free(spec.at);
    free(entry.at);
    one_node(&node, 1);
}

static void test_attributes(void **state)
{
    (void)state;
    struct big node = {0};
    struct msg a = {.n = 0};
    msg_text(&a, 1, "a");
    big_times(&node, 5, &a, MANY);
    one_node(&node, 1);
}

static void test_empty_subgraphs(void **state)
{
    (void)state;
    struct big node = {0};
    struct msg a = {.n = 0}, g = {.n = 0}, inner = msg_node("x", "y", "Neg", NULL), full = {.n = 0};
    msg_text(&a, 1, "a");
    msg_msg(&a, 6, &g);
    big_times(&node, 5, &a, MANY);
    msg_msg(&full, 1, &inner);
    a.n = 0;
    msg_msg(&a, 6, &full);
    big_bytes(&node, 5, a.at, a.n);
    one_node(&node, 2);
}

// One name as all inputs of a node, and as input and output of thousands of nodes.
static void test_one_value_everywhere(void **state)
{
    (void)state;
    struct big graph = {0}, node = {0};
    for (int i = 0; i < MANY; i++)
        big_bytes(&node, 1, "x", 1);
    big_bytes(&graph, 1, node.at, node.n);
    struct msg same = msg_node("x", "x", "Neg", NULL);
    big_times(&graph, 1, &same, MANY);
    free(node.at);
    survives(&graph, MANY + 1);
}

// Thousands of declarations of one name as input, constant, output and value.
static void test_declarations(void **state)
{
    (void)state;
    struct big graph = {0};
    struct msg i = {.n = 0}, t = {.n = 0};
    msg_text(&i, 1, "x");
    msg_text(&t, 8, "x");
    big_times(&graph, 11, &i, MANY);
    big_times(&graph, 5, &t, MANY);
    big_times(&graph, 12, &i, MANY);
    big_times(&graph, 13, &i, MANY);
    survives(&graph, 0);
}

static void test_functions(void **state)
{
    (void)state;
    struct big model = {0};
    struct msg f = {.n = 0}, inner = msg_node("x", "y", "Neg", NULL);
    msg_text(&f, 1, "f");
    msg_msg(&f, 7, &inner);
    big_times(&model, 25, &f, MANY_FUNCTIONS);
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_load_bytes(s, model.at, model.n, &m), TSR_OK);
    size_t seen = 0;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        seen++;
    assert_int_equal(seen, MANY_FUNCTIONS);
    tsr_model_free(m);
    tsr_session_free(s);
    free(model.at);
}

// Small messages that would need much memory must be rejected while reading.
static void test_amplified(void **state)
{
    (void)state;
    static const int fields[] = {14, 25}; // metadata, functions
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        struct big model = {0};
        struct msg nothing = {.n = 0};
        big_times(&model, fields[i], &nothing, 1500000);
        tsr_session *s = tsr_session_new(NULL);
        tsr_model *m = NULL;
        assert_int_equal(tsr_model_load_bytes(s, model.at, model.n, &m), TSR_NOMEM);
        assert_string_equal(tsr_finding_value(s, 0).code, "out-of-memory");
        tsr_session_free(s);
        free(model.at);
    }
}

// Alternates edits that need node positions with adding and removing nodes.
static void test_edits_in_turn(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_new(s, "g", 10, &m), TSR_OK);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *x = tsr_graph_add_input(g, "x"), *y = tsr_graph_add_input(g, "y");
    tsr_node *keep = tsr_graph_add_node(g, "", "Add", "", (tsr_value *[]){x, y}, 2, NULL, 0);
    for (int i = 0; i < MANY; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        assert_non_null(tsr_graph_add_node(g, "", "Neg", name, &x, 1, (const char *[]){name}, 1));
    }
    for (tsr_node *n = tsr_node_next(keep); n; n = tsr_node_next(n)) {
        assert_int_equal(tsr_node_replace_input(keep, 0, tsr_node_input(keep, 1)), TSR_OK);
        assert_int_equal(tsr_node_set_int(keep, "a", 1), TSR_OK);
        assert_int_equal(tsr_node_remove(n), TSR_OK);
        assert_int_equal(tsr_node_replace_input(keep, 0, x), TSR_OK);
    }
    assert_int_equal(tsr_graph_node_count(g), 1);
    tsr_model_free(m);
    tsr_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries),         cmocka_unit_test(test_specs),
        cmocka_unit_test(test_groups_and_dims), cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_empty_subgraphs), cmocka_unit_test(test_one_value_everywhere),
        cmocka_unit_test(test_declarations),    cmocka_unit_test(test_functions),
        cmocka_unit_test(test_edits_in_turn),   cmocka_unit_test(test_amplified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
