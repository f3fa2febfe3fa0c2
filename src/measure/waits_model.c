// SPDX-License-Identifier: Apache-2.0
// waits_model.c - a small model whose sharding synchronizes often, for measuring the time that
// ranks lose at synchronization points.
//
//     x [256, 512], then eight times a product with [512, 512] and a Relu: 0.13 Gflop per product,
//     512 KiB per result that the ranks sum up
#include "measure/internal.h"

#include <stdio.h>

#define ROWS   256
#define WIDTH  512
#define LAYERS 8

// Adds a matrix product with x and a Relu; NULL: out of memory.
static tsr_value *add_layer(tsr_graph *graph, tsr_value *x, const float *weights, int number)
{
    static const int64_t dims[2] = {WIDTH, WIDTH};
    char name[32];
    const char *out = name;
    snprintf(name, sizeof name, "w%d", number);
    tsr_value *in[2] = {x, tsr_graph_add_initializer(graph, name, TSR_FLOAT, 2, dims, weights,
                                                     WIDTH * WIDTH * sizeof *weights)};
    if (!in[1])
        return NULL;
    snprintf(name, sizeof name, "product%d", number);
    tsr_node *product = tsr_graph_add_node(graph, "", "MatMul", name, in, 2, &out, 1);
    if (!product)
        return NULL;
    tsr_value *made = tsr_node_output(product, 0);
    snprintf(name, sizeof name, "y%d", number);
    tsr_node *relu = tsr_graph_add_node(graph, "", "Relu", name, &made, 1, &out, 1);
    return relu ? tsr_node_output(relu, 0) : NULL;
}

static tsr_status fill_graph(tsr_session *session, tsr_graph *graph)
{
    const tsr_dim dims[2] = {{.value = ROWS, .symbol = ""}, {.value = WIDTH, .symbol = ""}};
    size_t bytes = WIDTH * WIDTH * sizeof(float);
    float *weights = tsr__alloc(session, bytes);
    if (!weights)
        return TSR_NOMEM;
    tsr__measure_fill(TSR_FLOAT, 0, weights, bytes);
    tsr_value *x = tsr_graph_add_input(graph, "x");
    if (x && tsr_value_set_type(x, TSR_FLOAT, 2, dims) != TSR_OK)
        x = NULL;
    for (int i = 0; i < LAYERS; i++)
        if (x)
            x = add_layer(graph, x, weights, i);
    tsr__free(session, weights, bytes);
    if (!x || tsr_value_set_type(x, TSR_FLOAT, 2, dims) != TSR_OK)
        return TSR_NOMEM;
    return tsr_graph_add_output(graph, x);
}

tsr_status tsr__waits_model(tsr_session *session, tsr_model **out)
{
    tsr_model *model = NULL;
    TRY(tsr_model_new(session, "waits", 11, &model));
    tsr_status st = tsr_model_set_opset(model, "", 17);
    if (st == TSR_OK)
        st = fill_graph(session, tsr_model_graph(model));
    if (st == TSR_OK)
        *out = model;
    else
        tsr_model_free(model);
    return st;
}
