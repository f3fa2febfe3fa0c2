// SPDX-License-Identifier: Apache-2.0
// common.h - fixture for the tests of sharding: a session, an arena, assertions on layouts.
#ifndef TSR_TEST_SHARDING_H
#define TSR_TEST_SHARDING_H

#include "../bench.h"
#include "sharding/sharding.h"

#define I(...)                                                                                     \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define N(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

// A model with one node, y = Add(x, w), all values of the given shape, and configuration "c" of 4
// devices.
struct small {
    tsr_model *model;
    tsr_graph *graph;
    tsr_node *node;
    tsr_value *x, *w, *y;
    tsr_config *config;
};

static inline void set_shape(tsr_value *v, int rank, const int64_t *sizes)
{
    tsr_dim dims[8];
    for (int d = 0; d < rank; d++)
        dims[d] = (tsr_dim){sizes[d], ""};
    assert_int_equal(tsr_value_set_type(v, TSR_FLOAT, rank, dims), TSR_OK);
}

static inline struct small small_new(struct bench *b, int rank, const int64_t *sizes)
{
    struct small s = {0};
    assert_int_equal(tsr_model_new(b->session, "g", 11, &s.model), TSR_OK);
    assert_int_equal(tsr_model_set_opset(s.model, "", 18), TSR_OK);
    s.graph = tsr_model_graph(s.model);
    s.x = tsr_graph_add_input(s.graph, "x");
    s.w = tsr_graph_add_input(s.graph, "w");
    tsr_value *in[2] = {s.x, s.w};
    const char *out[1] = {"y"};
    s.node = tsr_graph_add_node(s.graph, "", "Add", "add", in, 2, out, 1);
    assert_non_null(s.node);
    s.y = tsr_node_output(s.node, 0);
    if (rank >= 0) {
        set_shape(s.x, rank, sizes);
        set_shape(s.w, rank, sizes);
        set_shape(s.y, rank, sizes);
    }
    assert_int_equal(tsr_model_add_config(s.model, "c", 4, NULL, 0, &s.config), TSR_OK);
    return s;
}

// An empty model with a configuration; f: its flow, if the test computes one.
struct net {
    struct bench *b;
    tsr_model *m;
    tsr_graph *g;
    tsr_config *c;
    struct flow *f;
};

static inline struct net *net_new(void **state, const char *config, int64_t devices)
{
    struct bench *b = *state;
    struct net *t = ARENA_NEW(&b->arena, struct net);
    t->b = b;
    assert_int_equal(tsr_model_new(b->session, "g", 11, &t->m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t->m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(t->m, config, devices, NULL, 0, &t->c), TSR_OK);
    t->g = tsr_model_graph(t->m);
    return t;
}

// True if the session has a diagnostic with that code.
static inline bool found(const tsr_session *s, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        if (strcmp(tsr_finding_value(s, i).code, code) == 0)
            return true;
    return false;
}

#endif
