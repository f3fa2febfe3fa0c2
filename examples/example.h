// SPDX-License-Identifier: Apache-2.0
// example.h - helpers for the examples: must() prints diagnostics and exits if a call fails;
// make_matmul() builds the small MatMul that the examples shard.
#ifndef TESSERA_EXAMPLE_H
#define TESSERA_EXAMPLE_H

#include <tessera_graph.h>

#include <stdio.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline void must(tsr_session *s, tsr_status st)
{
    if (st == TSR_OK)
        return;
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        fputs(tsr_finding_text(s, i), stderr);
    exit(1);
}

static inline tsr_value *input(tsr_session *s, tsr_graph *g, const char *name, tsr_dtype type,
                               int rank, const tsr_dim *dims)
{
    tsr_value *v = tsr_graph_add_input(g, name);
    must(s, v ? tsr_value_set_type(v, type, rank, dims) : TSR_INVALID);
    return v;
}

static inline tsr_node *node(tsr_session *s, tsr_graph *g, const char *domain, const char *op,
                             const char *name, tsr_value *const *inputs, size_t n,
                             const char *output)
{
    tsr_node *made = tsr_graph_add_node(g, domain, op, name, inputs, n, &output, 1);
    must(s, made ? TSR_OK : TSR_INVALID);
    return made;
}

// y = W @ x with W [1024, 4096] and x [4096, 8].
struct matmul {
    tsr_session *session;
    tsr_model *model;
    tsr_value *w, *x;
    tsr_node *node;
};

static inline struct matmul make_matmul(void)
{
    struct matmul m = {.session = tsr_session_new(NULL)};
    must(m.session, tsr_model_new(m.session, "example", 11, &m.model));
    must(m.session, tsr_model_set_opset(m.model, "", 18));
    tsr_graph *g = tsr_model_graph(m.model);
    m.w = input(m.session, g, "W", TSR_FLOAT, 2, (tsr_dim[]){{1024, ""}, {4096, ""}});
    m.x = input(m.session, g, "x", TSR_FLOAT, 2, (tsr_dim[]){{4096, ""}, {8, ""}});
    m.node = node(m.session, g, "", "MatMul", "mm", (tsr_value *[]){m.w, m.x}, 2, "y");
    must(m.session, tsr_graph_add_output(g, tsr_node_output(m.node, 0)));
    return m;
}

static inline void free_matmul(struct matmul *m)
{
    tsr_model_free(m->model);
    tsr_session_free(m->session);
}

#endif
