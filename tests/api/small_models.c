// SPDX-License-Identifier: Apache-2.0
// small_models.c - random small models and topologies; a seed gives the same ones on every machine.
#include "small_models.h"

#include <stdio.h>
#include <stdlib.h>

int64_t pick(struct dice *dice, int64_t below)
{
    dice->state = dice->state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((dice->state >> 33) % (uint64_t)below);
}

static int64_t one_of(struct dice *dice, const int64_t *list, int64_t n)
{
    return list[pick(dice, n)];
}

struct made {
    tsr_graph *graph;
    struct dice dice;
    tsr_value *value; // input of the next node
    int64_t rows, columns;
    tsr_value *before; // an earlier value of the same shape, for an Add; NULL: none
    int names;
};

static tsr_value *add_node(struct made *made, const char *op, tsr_value *a, tsr_value *b)
{
    char name[32];
    const char *output = name;
    tsr_value *inputs[2] = {a, b};
    snprintf(name, sizeof name, "v%d", made->names++);
    tsr_node *node = tsr_graph_add_node(made->graph, "", op, name, inputs, b ? 2 : 1, &output, 1);
    return node ? tsr_node_output(node, 0) : NULL;
}

static tsr_value *add_weight(struct made *made, int rank, int64_t rows, int64_t columns)
{
    char name[32];
    int64_t dims[2] = {rows, columns};
    const int64_t *shape = rank == 2 ? dims : dims + 1;
    size_t bytes = (size_t)(rank == 2 ? rows * columns : columns) * sizeof(float);
    float *zeros = calloc(1, bytes);
    snprintf(name, sizeof name, "w%d", made->names++);
    tsr_value *value =
        tsr_graph_add_initializer(made->graph, name, TSR_FLOAT, rank, shape, zeros, bytes);
    free(zeros);
    return value;
}

static void add_product(struct made *made)
{
    static const int64_t widths[] = {6, 16, 64, 256, 1024};
    int64_t columns = one_of(&made->dice, widths, 5);
    tsr_value *weight = add_weight(made, 2, made->columns, columns);
    made->before = columns == made->columns ? made->value : NULL;
    made->value = add_node(made, "MatMul", made->value, weight);
    made->columns = columns;
}

static void add_step(struct made *made)
{
    static const char *const plain[] = {"Relu", "Sigmoid", "Softmax", "Tanh", "Identity"};
    switch (pick(&made->dice, 8)) {
    case 0:
    case 1:
    case 2:
        add_product(made);
        return;
    case 3:
        made->value = add_node(made, "Transpose", made->value, NULL);
        int64_t rows = made->rows;
        made->rows = made->columns;
        made->columns = rows;
        made->before = NULL;
        return;
    case 4:
        made->value = add_node(made, "Add", made->value, add_weight(made, 1, 0, made->columns));
        return;
    case 5:
        if (made->before)
            made->value = add_node(made, "Add", made->value, made->before);
        return;
    default:
        made->value = add_node(made, plain[pick(&made->dice, 5)], made->value, NULL);
    }
}

// Builds a chain of 2 to 7 nodes; some add an earlier value of the chain.
tsr_model *make_model(tsr_session *session, uint64_t seed)
{
    static const int64_t sizes[] = {1, 3, 8, 32, 128, 512, 2048};
    tsr_model *model = NULL;
    if (tsr_model_new(session, "g", 11, &model) != TSR_OK ||
        tsr_model_set_opset(model, "", 18) != TSR_OK)
        return NULL;
    struct made made = {.graph = tsr_model_graph(model), .dice = {seed * 2 + 1}};
    made.rows = one_of(&made.dice, sizes, 7);
    made.columns = one_of(&made.dice, sizes, 6);
    tsr_dim dims[2] = {{made.rows, ""}, {made.columns, ""}};
    made.value = tsr_graph_add_input(made.graph, "x");
    if (!made.value || tsr_value_set_type(made.value, TSR_FLOAT, 2, dims) != TSR_OK)
        return NULL;
    add_product(&made);
    for (int64_t steps = 1 + pick(&made.dice, 6); steps > 0 && made.value; steps--)
        add_step(&made);
    if (!made.value || tsr_graph_add_output(made.graph, made.value) != TSR_OK)
        return NULL;
    return model;
}

tsr_topology *make_topology(tsr_session *session, uint64_t seed)
{
    static const char *const texts[] = {"2", "3", "4", "ring:4", "grid:2x2", "hosts:2x2"};
    static const double speeds[] = {1e10, 1e11, 1e12, 1e13}, links[] = {1e8, 1e9, 1e10, 1e11};
    static const double factors[] = {1, 1, 0.5, 0.3, 0.25};
    struct dice dice = {seed * 2 + 1};
    tsr_topology *topology = NULL;
    if (tsr_topology_parse(session, texts[pick(&dice, 6)], &topology) != TSR_OK)
        return NULL;
    double flops = speeds[pick(&dice, 4)], bandwidth = speeds[pick(&dice, 3)];
    bool uneven = pick(&dice, 4) == 0;
    for (int i = 0; i < tsr_topology_devices(topology); i++) {
        double factor = uneven ? factors[pick(&dice, 5)] : 1;
        tsr_topology_device device = {.flops = flops * factor, .bandwidth = bandwidth * factor};
        tsr_topology_set_device(topology, i, &device);
    }
    tsr_topology_set_links(topology, pick(&dice, 2) ? 1e-6 : 1e-8, links[pick(&dice, 4)]);
    return topology;
}
