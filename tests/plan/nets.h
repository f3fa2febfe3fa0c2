// SPDX-License-Identifier: Apache-2.0
// nets.h - builds and plans small models, for the tests of the planner.
#ifndef TSR_TEST_NETS_H
#define TSR_TEST_NETS_H

#include "../valgrind.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "sharding/sharding.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct net {
    tsr_session *session;
    struct arena arena;
    tsr_model *m;
    tsr_graph *g;
    tsr_topology *topology;
    tsr_plan_options o;
    tsr_plan_result p;
};
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -1})

// Creates a topology in which all pairs of devices are linked, and an empty model. flops and
// bandwidth per second; latency in seconds; link in bytes per second.
static inline struct net *net_new(const char *topology, double flops, double bandwidth,
                                  double latency, double link)
{
    struct net *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->session = tsr_session_new(NULL);
    tsr__arena_init(&t->arena, t->session);
    assert_int_equal(tsr_model_new(t->session, "g", 11, &t->m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t->m, "", 18), TSR_OK);
    t->g = tsr_model_graph(t->m);
    assert_int_equal(tsr_topology_parse(t->session, topology, &t->topology), TSR_OK);
    for (int i = 0; i < tsr_topology_devices(t->topology); i++) {
        tsr_topology_device d = {.flops = flops, .bandwidth = bandwidth};
        tsr_topology_set_device(t->topology, i, &d);
    }
    tsr_topology_set_links(t->topology, latency, link);
    t->o = (tsr_plan_options){.size = sizeof t->o, .topology = t->topology, .memory = 1 << 30};
    return t;
}

static inline void net_free(struct net *t)
{
    tsr_model_free(t->m);
    tsr_topology_free(t->topology);
    tsr__arena_free(&t->arena);
    tsr_session_free(t->session);
    free(t);
}

static inline int rank_of(const int64_t *dims)
{
    int n = 0;
    while (dims[n] >= 0)
        n++;
    return n;
}

static inline tsr_value *input_of(struct net *t, const char *name, tsr_dtype type,
                                  const int64_t *dims)
{
    tsr_dim d[8];
    for (int i = 0; i < rank_of(dims); i++)
        d[i] = (tsr_dim){dims[i], ""};
    tsr_value *v = tsr_graph_add_input(t->g, name);
    assert_int_equal(tsr_value_set_type(v, type, rank_of(dims), d), TSR_OK);
    return v;
}
static inline tsr_value *input(struct net *t, const char *name, const int64_t *dims)
{
    return input_of(t, name, TSR_FLOAT, dims);
}

static inline const char *name_of(struct net *t, const char *what, int layer)
{
    return tsr__arena_printf(&t->arena, "%s%d", what, layer).p;
}

static inline tsr_value *weight(struct net *t, const char *name, const int64_t *dims)
{
    size_t n = 1;
    for (int i = 0; i < rank_of(dims); i++)
        n *= (size_t)dims[i];
    float *zeros = calloc(n, sizeof *zeros);
    tsr_value *v = tsr_graph_add_initializer(t->g, name, TSR_FLOAT, rank_of(dims), dims, zeros,
                                             n * sizeof *zeros);
    free(zeros);
    assert_non_null(v);
    return v;
}

static inline tsr_node *add_node(struct net *t, const char *op, tsr_value *x, tsr_value *y,
                                 const char *out)
{
    tsr_value *in[] = {x, y};
    tsr_node *n = tsr_graph_add_node(t->g, "", op, out, in, y ? 2 : 1, &out, 1);
    assert_non_null(n);
    return n;
}
static inline tsr_value *node(struct net *t, const char *op, tsr_value *x, tsr_value *y,
                              const char *out)
{
    return tsr_node_output(add_node(t, op, x, y, out), 0);
}

static inline tsr_value *reshape(struct net *t, tsr_value *x, const int64_t *dims, const char *out)
{
    int64_t rank = rank_of(dims);
    char name[64];
    snprintf(name, sizeof name, "%s_shape", out);
    return node(t, "Reshape", x,
                tsr_graph_add_initializer(t->g, name, TSR_INT64, 1, &rank, dims, (size_t)rank * 8),
                out);
}

static inline tsr_value *transpose(struct net *t, tsr_value *x, const int64_t *perm,
                                   const char *out)
{
    tsr_node *n = add_node(t, "Transpose", x, NULL, out);
    assert_int_equal(tsr_node_set_ints(n, "perm", perm, (size_t)rank_of(perm)), TSR_OK);
    return tsr_node_output(n, 0);
}

static inline void plan(struct net *t, tsr_value *out)
{
    assert_int_equal(tsr_graph_add_output(t->g, out), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.optimal);
    size_t errors = tsr_finding_total(t->session, TSR_ERROR);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
    assert_int_equal(tsr_finding_total(t->session, TSR_ERROR), errors);
}

static inline size_t collectives(const struct net *t, const char *op)
{
    for (size_t i = 0; i < t->p.facts.n_collectives; i++)
        if (strcmp(t->p.collectives[i].op, op) == 0)
            return t->p.collectives[i].count;
    return 0;
}

// The sharding of a value at a node: its producer or a reader.
static inline const char *sharding_at(const struct net *t, const tsr_node *n, const tsr_value *v)
{
    const char *text = "";
    (void)t;
    const tsr_spec *p = tsr_node_sharding_of(n, v, 0);
    assert_non_null(p);
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    return text;
}
static inline const char *made_as(const struct net *t, const tsr_value *v)
{
    return sharding_at(t, tsr_value_producer(v), v);
}

#endif
