// SPDX-License-Identifier: Apache-2.0
// shapes.c - benchmark of type and shape inference, compared with libonnx's InferShapes
// (shapes_peer, next to this program): 100,000 nodes as an exporter writes them, without stored
// shapes. Both have the model in memory and write the results into it. CPU time, best of several
// rounds, alternating with the peer. Prints one line: name, ours, peer, ratio, goal, ok or short.
#include "tessera_cli.h"
#include "help.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES  100000
#define ROUNDS 5
#define GOAL   3.0

// A linear layer among element-wise operators, repeated.
static tsr_value *add_node(tsr_graph *g, int i, tsr_value *last, tsr_value *before)
{
    static const char *const ops[] = {"MatMul", "Add", "Relu", "Mul", "Sigmoid",
                                      "Add",    "Sub", "Tanh", "Div", "Softmax"};
    static const float weights[64 * 64];
    static const int64_t dims[] = {64, 64};
    char name[64], output[64];
    snprintf(name, sizeof name, "/model/layers.%06d/block/op", i);
    snprintf(output, sizeof output, "/model/layers.%06d/block/op_output_0", i);
    tsr_value *inputs[] = {last, i % 2 ? before : NULL};
    if (i % 1000 == 0) { // few weights, since their bytes are not measured
        snprintf(name, sizeof name, "model.layers.%06d.weight", i);
        inputs[1] = tsr_graph_add_initializer(g, name, TSR_FLOAT, 2, dims, weights, sizeof weights);
    }
    const char *op = i % 10 == 0 && i % 1000 ? "Neg" : ops[i % 10], *outputs[] = {output};
    tsr_node *n = tsr_graph_add_node(g, "", op, name, inputs, inputs[1] ? 2 : 1, outputs, 1);
    if (n && i % 10 == 9)
        tsr_node_set_int(n, "axis", -1);
    return n ? tsr_node_output(n, 0) : NULL;
}

static void make_chain(tsr_session *s, const char *path)
{
    static const tsr_dim dims[] = {{-1, "batch"}, {64, ""}, {64, ""}};
    tsr_model *m;
    if (tsr_model_new(s, "chain", 8, &m) != TSR_OK || tsr_model_set_opset(m, "", 15) != TSR_OK)
        die("making the model");
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *last = tsr_graph_add_input(g, "input"), *before = last;
    if (!last || tsr_value_set_type(last, TSR_FLOAT, 3, dims) != TSR_OK)
        die("making the model");
    for (int i = 0; i < NODES; i++) {
        tsr_value *next = add_node(g, i, last, before);
        if (!next)
            die("making the model");
        before = last;
        last = next;
    }
    if (tsr_value_set_type(last, TSR_FLOAT, -1, NULL) != TSR_OK ||
        tsr_graph_add_output(g, last) != TSR_OK || tsr_model_save(m, path) != TSR_OK)
        die("writing the model");
    tsr_model_free(m);
}

static double ours(tsr_session *s, const char *path)
{
    tsr_model *m;
    tsr_shapes_summary sum = {.size = sizeof sum};
    if (tsr_model_load(s, path, &m) != TSR_OK)
        die("loading");
    double start = cpu_ms();
    if (tsr_shapes(m, NULL, 0, &sum) != TSR_OK || sum.fixed != NODES)
        die("finding shapes");
    double ms = cpu_ms() - start;
    tsr_model_free(m);
    return ms;
}

static double theirs(const char *peer, const char *path)
{
    char command[1024];
    double ms = 0;
    snprintf(command, sizeof command, "'%s' '%s'", peer, path);
    FILE *f = popen(command, "r");
    if (!f || fscanf(f, "%lf", &ms) != 1 || pclose(f) != 0)
        die(command);
    return ms;
}

int main(int argc, char **argv)
{
    char path[] = "/tmp/tessera-bench-XXXXXX", peer[512], own[512];
    double best = 1e300, rival = 1e300;
    (void)argc;
    snprintf(own, sizeof own, "%s", argv[0]);
    snprintf(peer, sizeof peer, "%s/shapes_peer", dirname(own));
    if (access(peer, X_OK) != 0) {
        printf("shapes: left out: shapes_peer was not built (it needs libonnx)\n");
        return 0;
    }
    int fd = mkstemp(path);
    tsr_session *s = tsr_session_new(NULL);
    if (fd < 0 || !s)
        die("starting");
    close(fd);
    make_chain(s, path);
    for (int i = 0; i < ROUNDS; i++) {
        double a = ours(s, path), b = theirs(peer, path);
        best = a < best ? a : best;
        rival = b < rival ? b : rival;
    }
    printf("%-44s %11.2f ms %11.2f ms %8.2f  >=%.2gx    %s\n", "shapes of 100,000 nodes (libonnx)",
           best, rival, rival / best, GOAL, rival / best >= GOAL ? "ok" : "short");
    unlink(path);
    tsr_session_free(s);
    return 0;
}
