// SPDX-License-Identifier: Apache-2.0
// common.h - fixture for the tests of partition: a session, a folder, and small models.
#ifndef TSR_TESTS_PARTITION_COMMON_H
#define TSR_TESTS_PARTITION_COMMON_H

#include "partition/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct bench {
    tsr_session *s;
    tsr_model *m;
    tsr_graph *g;
    tsr_config *c;
    struct arena arena;
    char base[64], folder[96];
    tsr_partition_result *result; // NULL: none
};

static inline int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    b->s = tsr_session_new(NULL);
    tsr__arena_init(&b->arena, b->s);
    memcpy(b->base, "/tmp/tessera-partition-XXXXXX", 30);
    assert_non_null(mkdtemp(b->base));
    snprintf(b->folder, sizeof(b->folder), "%s/parts", b->base);
    assert_int_equal(tsr_model_new(b->s, "made", 10, &b->m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(b->m, "", 18), TSR_OK);
    b->g = tsr_model_graph(b->m);
    *state = b;
    return 0;
}

static inline int teardown(void **state)
{
    struct bench *b = *state;
    tsr_partition_result_free(b->result);
    tsr_model_free(b->m);
    tsr__folder_remove(b->folder);
    tsr__folder_remove(b->base);
    tsr__arena_free(&b->arena);
    tsr_session_free(b->s);
    free(b);
    return 0;
}

static inline tsr_value *add_input(struct bench *b, const char *name, tsr_dtype type, int rank,
                                   const tsr_dim *dims)
{
    tsr_value *v = tsr_graph_add_input(b->g, name);
    assert_non_null(v);
    assert_int_equal(tsr_value_set_type(v, type, rank, dims), TSR_OK);
    return v;
}

static inline tsr_node *add_node(struct bench *b, const char *op, const char *name, tsr_value *x,
                                 tsr_value *y, const char *out)
{
    tsr_value *inputs[2] = {x, y};
    tsr_node *n = tsr_graph_add_node(b->g, "", op, name, inputs, y ? 2 : 1, &out, 1);
    assert_non_null(n);
    return n;
}

static inline void add_output(struct bench *b, tsr_value *v, tsr_dtype type, int rank,
                              const tsr_dim *dims)
{
    assert_int_equal(tsr_value_set_type(v, type, rank, dims), TSR_OK);
    assert_int_equal(tsr_graph_add_output(b->g, v), TSR_OK);
}

static inline tsr_value *add_weight(struct bench *b, const char *name, int64_t rows,
                                    int64_t columns)
{
    int64_t dims[2] = {rows, columns};
    size_t n = (size_t)(rows * columns);
    float *data = calloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        data[i] = (float)i;
    tsr_value *v =
        tsr_graph_add_initializer(b->g, name, TSR_FLOAT, 2, dims, data, n * sizeof(float));
    free(data);
    assert_non_null(v);
    return v;
}

static inline void configure(struct bench *b, int64_t devices)
{
    assert_int_equal(tsr_model_add_config(b->m, "c", devices, NULL, 0, &b->c), TSR_OK);
}

static inline void shard(struct bench *b, tsr_node *n, tsr_value *v, const char *text)
{
    if (tsr_node_shard_text(n, v, b->c, text) != TSR_OK)
        fail_msg("%s: %s", text, tsr_finding_text(b->s, 0));
}

static inline bool found(const struct bench *b, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(b->s); i++)
        if (strcmp(tsr_finding_value(b->s, i).code, code) == 0)
            return true;
    return false;
}

static inline void show(struct bench *b)
{
    for (size_t i = 0; i < tsr_finding_count(b->s); i++)
        print_message("%s", tsr_finding_text(b->s, i));
}

#endif
