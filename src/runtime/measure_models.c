// SPDX-License-Identifier: Apache-2.0
// measure_models.c - three small models that show what the engine reaches: one is arithmetic, one goes through memory,
// one is nothing but nodes.
#include "runtime/measure_rank.h"

#define WIDTH 1024
#define INNER                                                                                      \
    (4 * WIDTH) // two matrices of 16 MiB: as in real layers, they do not stay in a core's own cache

static tsr_value *matrix(tsr_graph *g, const char *name, int64_t rows)
{
    tsr_dim dims[2] = {{.value = rows, .symbol = ""}, {.value = WIDTH, .symbol = ""}};
    tsr_value *v = tsr_graph_add_input(g, name);
    return v && tsr_value_set_type(v, TSR_FLOAT, 2, dims) == TSR_OK ? v : NULL;
}

static tsr_value *step(tsr_graph *g, const char *op, const char *out, tsr_value *a, tsr_value *b)
{
    tsr_value *in[2] = {a, b};
    tsr_node *n = a ? tsr_graph_add_node(g, "", op, out, in, b ? 2 : 1, &out, 1) : NULL;
    return n ? tsr_node_output(n, 0) : NULL;
}

// Nodes one after the other that an engine does not fuse into one.
static tsr_value *chain(tsr_graph *g, tsr_value *x, int nodes)
{
    char name[32];
    for (int i = 0; i < nodes && x; i++) {
        snprintf(name, sizeof name, i + 1 < nodes ? "v%d" : "y", i);
        x = step(g, i % 2 ? "Neg" : "Relu", name, x, NULL);
    }
    return x;
}

static tsr_value *weights(tsr_session *s, tsr_graph *g, const char *name, int64_t rows,
                          int64_t cols)
{
    const int64_t dims[2] = {rows, cols};
    size_t bytes = (size_t)(rows * cols) * sizeof(float);
    void *zeros = tsr__alloc(s, bytes);
    tsr_value *w = NULL;
    if (zeros)
        w = tsr_graph_add_initializer(g, name, TSR_FLOAT, 2, dims, memset(zeros, 0, bytes), bytes);
    tsr__free(s, zeros, bytes);
    return w;
}

static tsr_value *layer(tsr_session *s, tsr_graph *g, tsr_value *x)
{
    tsr_value *up = weights(s, g, "up", WIDTH, INNER), *down = weights(s, g, "down", INNER, WIDTH);
    x = up && down ? step(g, "MatMul", "h", x, up) : NULL;
    return x ? step(g, "MatMul", "y", x, down) : NULL;
}

static tsr_value *body(tsr_session *s, tsr_graph *g, enum measure_model which)
{
    tsr_value *x = matrix(g, "x", tsr__measure_rows(which));
    switch (which) {
    case MEASURE_ARITHMETIC:
        return layer(s, g, x);
    case MEASURE_MEMORY:
        return chain(g, x, MEASURE_MEMORY_NODES);
    case MEASURE_FEW:
        return chain(g, x, MEASURE_FEW_NODES);
    default:
        return chain(g, x, MEASURE_MANY_NODES);
    }
}

// Memory: tensors of 64 MiB, which no cache holds, as it holds no weights.
int64_t tsr__measure_rows(enum measure_model which)
{
    return which == MEASURE_ARITHMETIC ? 256 : which == MEASURE_MEMORY ? 16384 : 1;
}

double tsr__measure_work(enum measure_model which)
{
    double rows = (double)tsr__measure_rows(which);
    if (which == MEASURE_ARITHMETIC)
        return 2 * 2 * rows * WIDTH * INNER;
    return 2 * rows * WIDTH * sizeof(float) * MEASURE_MEMORY_NODES; // bytes read and written
}

static tsr_status write_model(tsr_session *s, enum measure_model which, const char *path)
{
    tsr_model *m = NULL;
    tsr_status st = tsr_model_new(s, "measure", 8, &m);
    if (st != TSR_OK)
        return st;
    tsr_graph *g = tsr_model_graph(m);
    st = tsr_model_set_opset(m, "", 17);
    tsr_value *y = st == TSR_OK ? body(s, g, which) : NULL;
    tsr_dim dims[2] = {{.value = tsr__measure_rows(which), .symbol = ""},
                       {.value = WIDTH, .symbol = ""}};
    if (st == TSR_OK)
        st = y ? tsr_value_set_type(y, TSR_FLOAT, 2, dims) : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr_graph_add_output(g, y);
    if (st == TSR_OK)
        st = tsr_model_save(m, path);
    tsr_model_free(m);
    return st;
}

tsr_status tsr__measure_write(tsr_session *s, const char *folder)
{
    char path[MEASURE_PATH];
    tsr_status st = TSR_OK;
    for (int i = 0; i < MEASURE_MODELS && st == TSR_OK; i++)
        st = write_model(s, (enum measure_model)i,
                         tsr__measure_path(folder, (enum measure_model)i, path));
    return st;
}

const char *tsr__measure_path(const char *folder, enum measure_model which, char *out)
{
    snprintf(out, MEASURE_PATH, "%s/model%d.onnx", folder, (int)which);
    return out;
}

tsr_status tsr__measure_input(tsr_session *s, enum measure_model which, tsr_tensors **out)
{
    const int64_t dims[2] = {tsr__measure_rows(which), WIDTH};
    tsr_status st = tsr_tensors_new(s, out);
    return st == TSR_OK ? tsr_tensors_put(*out, "x", TSR_FLOAT, 2, dims, NULL) : st;
}
