// SPDX-License-Identifier: Apache-2.0
// help.h - shared by the tests of the public API: a small model, hand-written protobuf messages,
// assertions on diagnostics.
#ifndef TSR_TESTS_API_HELP_H
#define TSR_TESTS_API_HELP_H

#include "tessera_cli.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define IDS(...)                                                                                   \
    ((const int64_t[]){__VA_ARGS__}), sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)

// y = MatMul(W, x): W [1024, 4096], x [4096, 8], y [1024, 8]; z = Relu(y). IR 11, opset 18.
struct bench {
    tsr_session *s;
    tsr_model *m;
    tsr_graph *g;
    tsr_node *mm, *act;
    tsr_value *w, *x, *y, *z;
    tsr_model *others[64]; // freed at the end
    void *bytes[64];
    size_t sizes[64];
    size_t n_others, n_bytes;
};

static inline void shape(tsr_value *v, int64_t a, int64_t b)
{
    tsr_dim dims[2] = {{a, ""}, {b, ""}};
    assert_int_equal(tsr_value_set_type(v, TSR_FLOAT, 2, dims), TSR_OK);
}

static inline void fill(struct bench *b, int64_t ir_version)
{
    assert_int_equal(tsr_model_new(b->s, "g", ir_version, &b->m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(b->m, "", 18), TSR_OK);
    b->g = tsr_model_graph(b->m);
    b->w = tsr_graph_add_input(b->g, "W");
    b->x = tsr_graph_add_input(b->g, "x");
    assert_non_null(b->w);
    assert_non_null(b->x);
    b->mm = tsr_graph_add_node(b->g, "", "MatMul", "mm", (tsr_value *[]){b->w, b->x}, 2,
                               (const char *[]){"y"}, 1);
    assert_non_null(b->mm);
    b->y = tsr_node_output(b->mm, 0);
    b->act = tsr_graph_add_node(b->g, "", "Relu", "act", &b->y, 1, (const char *[]){"z"}, 1);
    assert_non_null(b->act);
    b->z = tsr_node_output(b->act, 0);
    shape(b->w, 1024, 4096);
    shape(b->x, 4096, 8);
    shape(b->y, 1024, 8);
    shape(b->z, 1024, 8);
    assert_int_equal(tsr_graph_add_output(b->g, b->z), TSR_OK);
}

static inline int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    b->s = tsr_session_new(NULL);
    fill(b, 11);
    *state = b;
    return 0;
}

static inline int teardown(void **state)
{
    struct bench *b = *state;
    tsr_model_free(b->m);
    for (size_t i = 0; i < b->n_others; i++)
        tsr_model_free(b->others[i]);
    for (size_t i = 0; i < b->n_bytes; i++)
        tsr_bytes_free(b->s, b->bytes[i], b->sizes[i]);
    tsr_session_free(b->s);
    free(b);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

// Allocator that overwrites freed memory, so that a read after free gives a wrong value.
static inline void *overwriting(void *data, void *old, size_t old_bytes, size_t bytes)
{
    (void)data;
    if (bytes)
        return realloc(old, bytes);
    volatile unsigned char *seen = old; // volatile: compilers drop a memset before a free
    for (size_t i = 0; i < old_bytes; i++)
        seen[i] = 0xdd;
    free(old);
    return NULL;
}

// ---- findings ----------------------------------------------------------------------------------

static inline size_t findings(const struct bench *b, const char *code)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(b->s); i++)
        n += !code || strcmp(tsr_finding_value(b->s, i).code, code) == 0;
    return n;
}

// Asserts that the call failed with this error alone, and clears the diagnostics.
static inline void refused(struct bench *b, tsr_status st, const char *code)
{
    assert_int_equal(st, TSR_INVALID);
    assert_int_equal(findings(b, NULL), 1);
    assert_string_equal(tsr_finding_value(b->s, 0).code, code);
    assert_true(tsr_finding_value(b->s, 0).message[0] != 0);
    tsr_finding_clear(b->s);
}

// Runs the checker; returns the number of errors.
static inline size_t check_errors(struct bench *b, tsr_model *m)
{
    tsr_finding_clear(b->s);
    assert_int_equal(tsr_check(m, NULL), TSR_OK);
    return tsr_finding_total(b->s, TSR_ERROR);
}

#define CONTENT(b, m) assert_int_equal(check_errors(b, m), 0)
#define REPORTS(b, m, code)                                                                        \
    do {                                                                                           \
        assert_true(check_errors(b, m) > 0);                                                       \
        assert_true(findings(b, code) > 0);                                                        \
    } while (0)

// ---- saving and loading again ------------------------------------------------------------------

static inline void *save(struct bench *b, tsr_model *m, size_t *n)
{
    void *bytes = NULL;
    assert_int_equal(tsr_model_save_bytes(m, &bytes, n), TSR_OK);
    b->bytes[b->n_bytes] = bytes;
    b->sizes[b->n_bytes++] = *n;
    return bytes;
}

static inline tsr_model *load(struct bench *b, const void *bytes, size_t n)
{
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_load_bytes(b->s, bytes, n, &m), TSR_OK);
    b->others[b->n_others++] = m;
    return m;
}

static inline tsr_model *again(struct bench *b, tsr_model *m)
{
    size_t n = 0;
    void *bytes = save(b, m, &n);
    return load(b, bytes, n);
}

static inline tsr_node *node_at(tsr_model *m, size_t i)
{
    tsr_node *n = tsr_graph_first(tsr_model_graph(m));
    while (n && i--)
        n = tsr_node_next(n);
    return n;
}

// True if the saved model holds these bytes, written as "0a 0163".
static inline bool holds(struct bench *b, tsr_model *m, const char *hex)
{
    unsigned char want[256];
    size_t k = 0, n = 0;
    for (const char *p = hex; *p; p++) {
        unsigned v = 0;
        if (*p == ' ')
            continue;
        assert_int_equal(sscanf(p++, "%2x", &v), 1);
        want[k++] = (unsigned char)v;
    }
    const char *bytes = save(b, m, &n);
    for (size_t i = 0; i + k <= n; i++)
        if (memcmp(bytes + i, want, k) == 0)
            return true;
    return false;
}

static inline tsr_config *config(struct bench *b, const char *name, int64_t devices)
{
    tsr_config *c = NULL;
    assert_int_equal(tsr_model_add_config(b->m, name, devices, NULL, 0, &c), TSR_OK);
    return c;
}

static inline void shard(struct bench *b, tsr_value *v, tsr_config *c, int64_t axis, int64_t count)
{
    assert_int_equal(tsr_node_shard(b->mm, v, c, axis, count, NULL, 0, -1), TSR_OK);
}

// ---- messages written by hand ------------------------------------------------------------------

struct msg {
    unsigned char at[4096];
    size_t n;
};

static inline void msg_varint(struct msg *m, uint64_t v)
{
    for (; v > 127; v >>= 7)
        m->at[m->n++] = (unsigned char)(v | 128);
    m->at[m->n++] = (unsigned char)v;
}

static inline void msg_int(struct msg *m, int number, int64_t v)
{
    msg_varint(m, (uint64_t)number << 3);
    msg_varint(m, (uint64_t)v);
}

static inline void msg_bytes(struct msg *m, int number, const void *p, size_t n)
{
    msg_varint(m, (uint64_t)number << 3 | 2);
    msg_varint(m, n);
    memcpy(m->at + m->n, p, n);
    m->n += n;
}

static inline void msg_text(struct msg *m, int number, const char *text)
{
    msg_bytes(m, number, text, strlen(text));
}

static inline void msg_msg(struct msg *m, int number, const struct msg *inner)
{
    msg_bytes(m, number, inner->at, inner->n);
}

// NodeProto with one input, one output ("": none), an operator, and an entry unless NULL.
static inline struct msg msg_node(const char *in, const char *out, const char *op,
                                  const struct msg *entry)
{
    struct msg n = {.n = 0};
    msg_text(&n, 1, in);
    msg_text(&n, 2, out);
    msg_text(&n, 4, op);
    if (entry)
        msg_msg(&n, 10, entry);
    return n;
}

// ModelProto of IR version 11 with one graph (input x, one Relu node with `entry`, output y) and a
// configuration.
static inline struct msg msg_model(const struct msg *entry, const struct msg *configuration)
{
    struct msg model = {.n = 0}, graph = {.n = 0}, info = {.n = 0}, opset = {.n = 0};
    struct msg node = msg_node("x", "y", "Relu", entry);
    msg_int(&model, 1, 11);
    msg_msg(&graph, 1, &node);
    msg_text(&graph, 2, "g");
    msg_text(&info, 1, "x");
    msg_msg(&graph, 11, &info);
    info.n = 0;
    msg_text(&info, 1, "y");
    msg_msg(&graph, 12, &info);
    msg_msg(&model, 7, &graph);
    msg_int(&opset, 2, 18);
    msg_msg(&model, 8, &opset);
    if (configuration)
        msg_msg(&model, 26, configuration);
    return model;
}

static inline struct msg msg_config(const char *name, int64_t devices)
{
    struct msg c = {.n = 0};
    msg_text(&c, 1, name);
    msg_int(&c, 2, devices);
    return c;
}

// NodeDeviceConfigurationProto with one spec: axis 0 of `tensor` split in two. NULL omits a name.
static inline struct msg msg_entry(const char *id, const char *tensor)
{
    struct msg e = {.n = 0}, spec = {.n = 0}, dim = {.n = 0}, simple = {.n = 0};
    if (id)
        msg_text(&e, 1, id);
    if (tensor)
        msg_text(&spec, 1, tensor);
    msg_int(&spec, 2, 0);
    msg_int(&spec, 2, 1);
    msg_int(&dim, 1, 0);
    msg_int(&simple, 3, 2);
    msg_msg(&dim, 2, &simple);
    msg_msg(&spec, 4, &dim);
    msg_msg(&e, 2, &spec);
    return e;
}

// A model with one call of function "f" (domain "d"), which has one Relu node with `entry`.
static inline struct msg msg_function_model(const struct msg *entry,
                                            const struct msg *configuration)
{
    struct msg model = {.n = 0}, graph = {.n = 0}, info = {.n = 0}, opset = {.n = 0}, f = {.n = 0};
    struct msg call = msg_node("x", "y", "f", NULL), inner = msg_node("a", "b", "Relu", entry);
    msg_text(&call, 7, "d");
    msg_int(&model, 1, 11);
    msg_msg(&graph, 1, &call);
    msg_text(&graph, 2, "g");
    msg_text(&info, 1, "x");
    msg_msg(&graph, 11, &info);
    info.n = 0;
    msg_text(&info, 1, "y");
    msg_msg(&graph, 12, &info);
    msg_msg(&model, 7, &graph);
    msg_int(&opset, 2, 18);
    msg_msg(&model, 8, &opset);
    msg_text(&f, 1, "f");
    msg_text(&f, 4, "a");
    msg_text(&f, 5, "b");
    msg_msg(&f, 7, &inner);
    msg_msg(&f, 9, &opset);
    msg_text(&f, 10, "d");
    struct msg own = {.n = 0};
    msg_text(&own, 1, "d");
    msg_int(&own, 2, 1);
    msg_msg(&model, 8, &own);
    msg_msg(&model, 25, &f);
    if (configuration)
        msg_msg(&model, 26, configuration);
    return model;
}

#endif
