// SPDX-License-Identifier: Apache-2.0
// check.c - benchmark of `tessera check` on 100,000 annotated nodes: a chain of linear layers and
// element-wise operators. Each has shardings of its inputs and its output. One model is valid, one
// has an error at every hundredth node. Measures the check alone: CPU time on one core, best of
// several rounds, model in memory. The reference is a copy of the same model on the same core, so
// that the goal does not depend on the machine. Prints one line per figure: name, ours, reference,
// ratio, goal, ok or short.
#include "tessera_cli.h"
#include "help.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODES  100000
#define ROUNDS 5
#define GOAL   4.0 // maximum time of a check, in times of a copy

// Columns of all values are sharded over 4 devices, and the rows of every second weight.
static void annotate(tsr_node *n, tsr_config *c, int i, int wrong)
{
    static const int64_t four[] = {0, 1, 2, 3};
    tsr_value *x = tsr_node_input(n, 0), *w = tsr_node_input(n, 1), *y = tsr_node_output(n, 0);
    tsr_status st;
    if (w && i % 10 == 0)
        st = tsr_node_shard(n, w, c, 1, 4, four, 4, -1);
    else
        st = tsr_node_shard(n, x, c, 2, 4, four, 4, -1);
    if (st == TSR_OK)
        st = tsr_node_shard(n, y, c, 2, 4, four, 4, -1);
    if (st == TSR_OK && wrong && i % 100 == 1) { // contradicts the sharding of the first input
        tsr_spec *p = tsr_node_add_spec(n, c, w);
        static const int64_t other[] = {3, 2, 1, 0}, shards[] = {4};
        static const tsr_dim open[] = {{-1, ""}};
        st = p && tsr_spec_set_devices(p, other, 4) == TSR_OK
                 ? tsr_spec_add_dim(p, 2, open, shards, 1)
                 : TSR_NOMEM;
    }
    if (st != TSR_OK)
        die("annotating");
}

static tsr_value *add_node(tsr_graph *g, tsr_config *c, int i, tsr_value *last, tsr_value *before,
                           tsr_value *weight, int wrong)
{
    static const char *const ops[] = {"MatMul", "Add", "Relu", "Mul", "Sigmoid",
                                      "Add",    "Sub", "Tanh", "Div", "Neg"};
    char name[64], output[64];
    snprintf(name, sizeof name, "/model/layers.%06d/block/op", i);
    snprintf(output, sizeof output, "/model/layers.%06d/block/op_output_0", i);
    tsr_value *inputs[] = {last, i % 10 == 0 ? weight : i % 2 ? before : NULL};
    const char *outputs[] = {output};
    if (i % 10 == 9)
        inputs[1] = NULL;
    tsr_node *n =
        tsr_graph_add_node(g, "", ops[i % 10], name, inputs, inputs[1] ? 2 : 1, outputs, 1);
    if (!n)
        die("making the model");
    annotate(n, c, i, wrong && inputs[1]);
    return tsr_node_output(n, 0);
}

static tsr_model *make_chain(tsr_session *s, int wrong)
{
    static const tsr_dim dims[] = {{-1, "batch"}, {64, ""}, {64, ""}};
    static const int64_t square[] = {64, 64};
    static const float weights[64 * 64];
    tsr_model *m;
    tsr_config *c;
    if (tsr_model_new(s, "chain", 11, &m) != TSR_OK || tsr_model_set_opset(m, "", 18) != TSR_OK ||
        tsr_model_add_config(m, "tp4", 4, NULL, 0, &c) != TSR_OK)
        die("making the model");
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *last = tsr_graph_add_input(g, "input"), *before = last;
    tsr_value *w = tsr_graph_add_initializer(g, "w", TSR_FLOAT, 2, square, weights, sizeof weights);
    if (!last || !w || tsr_value_set_type(last, TSR_FLOAT, 3, dims) != TSR_OK)
        die("making the model");
    for (int i = 0; i < NODES; i++) {
        tsr_value *next = add_node(g, c, i, last, before, w, wrong);
        if (tsr_value_set_type(next, TSR_FLOAT, 3, dims) != TSR_OK)
            die("making the model");
        before = last;
        last = next;
    }
    return m;
}

// Milliseconds of one check; *errors: number of errors found.
static double check_once(tsr_session *s, tsr_model *m, size_t *errors)
{
    tsr_finding_clear(s);
    double start = cpu_ms();
    if (tsr_check(m, NULL) != TSR_OK)
        die("checking");
    double ms = cpu_ms() - start;
    *errors = tsr_finding_total(s, TSR_ERROR);
    return ms;
}

// Milliseconds of a copy: every node, value and sharding is visited and written once.
static double copy_once(tsr_model *m)
{
    tsr_model *copy = NULL;
    double start = cpu_ms();
    if (tsr_model_clone(m, &copy) != TSR_OK)
        die("copying");
    double ms = cpu_ms() - start;
    tsr_model_free(copy);
    return ms;
}

static void measure(tsr_session *s, const char *name, int wrong)
{
    tsr_model *m = make_chain(s, wrong);
    double best = 1e30, copy = 1e30;
    size_t errors = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double ms = check_once(s, m, &errors);
        double other = copy_once(m);
        best = ms < best ? ms : best;
        copy = other < copy ? other : copy;
    }
    if ((errors == 0) != !wrong) { // the check must find the errors, and only those
        for (size_t i = 0; i < 3 && i < tsr_finding_count(s); i++)
            fprintf(stderr, "%s", tsr_finding_text(s, i));
        die("finding what is wrong");
    }
    printf("%-44s %11.2f ms %11.2f ms %8.2f  <=%-6.1f %s\n", name, best, copy, best / copy, GOAL,
           best <= GOAL * copy ? "ok" : "short");
    tsr_model_free(m);
}

int main(void)
{
    tsr_session *s = tsr_session_new(NULL);
    if (!s)
        die("a session");
    measure(s, "check 100000 annotated nodes", 0);
    measure(s, "check 1000 mistakes in 100000", 1);
    tsr_session_free(s);
    return 0;
}
