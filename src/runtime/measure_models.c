// SPDX-License-Identifier: Apache-2.0
// measure_models.c - small models that show what the engine reaches: arithmetic, with numbers of 32 bits and of 8, a way through
// memory, nothing but nodes.
#include "runtime/measure_rank.h"

#define WIDTH 1024
#define INNER                                                                                      \
    (4 * WIDTH) // two matrices of 16 MiB: as in real layers, they do not stay in a core's own cache

static tsr_dtype type_of(enum measure_model which)
{
    if (which == MEASURE_BYTES)
        return TSR_UINT8;
    if (which == MEASURE_HALVES)
        return TSR_FLOAT16;
    if (which == MEASURE_BFLOATS)
        return TSR_BFLOAT16;
    return TSR_FLOAT;
}

// Memory: tensors of 64 MiB, which no cache of a core holds, as it holds no weights; a GPU's holds 50 MiB.
static int64_t rows_of(enum measure_model which, bool on_gpu)
{
    switch (which) {
    case MEASURE_ARITHMETIC:
    case MEASURE_TF32:
    case MEASURE_HALVES:
    case MEASURE_BFLOATS:
        return on_gpu ? 8192 : 256;
    case MEASURE_BYTES:
        return 256;
    case MEASURE_MEMORY:
        return on_gpu ? 131072 : 16384;
    default:
        return 1;
    }
}

static tsr_value *matrix(tsr_graph *graph, const char *name, enum measure_model which)
{
    tsr_dim dims[2] = {{.value = -1, .symbol = "rows"}, {.value = WIDTH, .symbol = ""}};
    tsr_value *value = tsr_graph_add_input(graph, name);
    if (value && tsr_value_set_type(value, type_of(which), 2, dims) == TSR_OK)
        return value;
    return NULL;
}

static tsr_value *step(tsr_graph *graph, const char *op, const char *out, tsr_value *a,
                       tsr_value *b)
{
    tsr_value *in[2] = {a, b};
    if (!a)
        return NULL;
    tsr_node *node = tsr_graph_add_node(graph, "", op, out, in, b ? 2 : 1, &out, 1);
    if (!node)
        return NULL;
    return tsr_node_output(node, 0);
}

// Nodes one after the other that an engine does not fuse into one.
static tsr_value *chain(tsr_graph *graph, tsr_value *x, int nodes)
{
    char name[32];
    for (int i = 0; i + 1 < nodes; i++) {
        snprintf(name, sizeof name, "v%d", i);
        x = step(graph, i % 2 ? "Neg" : "Relu", name, x, NULL); // of NULL it makes NULL
    }
    return step(graph, nodes % 2 ? "Relu" : "Neg", "y", x, NULL);
}

static tsr_value *weights(tsr_session *session, tsr_graph *graph, const char *name, tsr_dtype type,
                          const int64_t *dims)
{
    size_t bytes = (size_t)(dims[0] * dims[1]) * (size_t)tsr_dtype_bits(type) / 8;
    void *zeros = tsr__alloc(session, bytes);
    tsr_value *w = NULL;
    if (zeros)
        w = tsr_graph_add_initializer(graph, name, type, 2, dims, memset(zeros, 0, bytes), bytes);
    tsr__free(session, zeros, bytes);
    return w;
}

static tsr_value *layer(tsr_session *session, tsr_graph *graph, tsr_value *x, tsr_dtype type)
{
    static const int64_t wide[2] = {WIDTH, INNER}, high[2] = {INNER, WIDTH};
    tsr_value *up = weights(session, graph, "up", type, wide),
              *down = weights(session, graph, "down", type, high);
    if (!up || !down)
        return NULL;
    return step(graph, "MatMul", "y", step(graph, "MatMul", "h", x, up), down);
}

static tsr_value *bytes_layer(tsr_session *session, tsr_graph *graph, tsr_value *x)
{
    static const int64_t wide[2] = {WIDTH, INNER};
    tsr_value *up = weights(session, graph, "up", TSR_INT8, wide);
    if (!up)
        return NULL;
    return step(graph, "MatMulInteger", "y", x, up);
}

static tsr_value *body(tsr_session *session, tsr_graph *graph, enum measure_model which)
{
    tsr_value *x = matrix(graph, "x", which);
    switch (which) {
    case MEASURE_ARITHMETIC:
    case MEASURE_TF32:
    case MEASURE_HALVES:
    case MEASURE_BFLOATS:
        return layer(session, graph, x, type_of(which));
    case MEASURE_BYTES:
        return bytes_layer(session, graph, x);
    case MEASURE_MEMORY:
        return chain(graph, x, MEASURE_MEMORY_NODES);
    case MEASURE_FEW:
        return chain(graph, x, MEASURE_FEW_NODES);
    default:
        return chain(graph, x, MEASURE_MANY_NODES);
    }
}

double tsr__measure_work(enum measure_model which, bool on_gpu)
{
    double rows = (double)rows_of(which, on_gpu);
    if (which == MEASURE_BYTES)
        return 2 * rows * WIDTH * INNER;
    if (which == MEASURE_MEMORY) // bytes read and written
        return 2 * rows * WIDTH * sizeof(float) * MEASURE_MEMORY_NODES;
    return 2 * 2 * rows * WIDTH * INNER;
}

static tsr_status fill_model(tsr_session *session, enum measure_model which, tsr_model *model)
{
    tsr_graph *graph = tsr_model_graph(model);
    tsr_dim dims[2] = {{.value = -1, .symbol = "rows"},
                       {.value = which == MEASURE_BYTES ? INNER : WIDTH, .symbol = ""}};
    tsr_dtype type = which == MEASURE_BYTES ? TSR_INT32 : type_of(which);
    tsr_status st = tsr_model_set_opset(model, "", 17);
    if (st != TSR_OK)
        return st;
    tsr_value *y = body(session, graph, which);
    if (!y)
        return TSR_NOMEM;
    st = tsr_value_set_type(y, type, 2, dims);
    if (st != TSR_OK)
        return st;
    return tsr_graph_add_output(graph, y);
}

static tsr_status write_model(tsr_session *session, enum measure_model which, const char *path)
{
    tsr_model *model = NULL;
    tsr_status st = tsr_model_new(session, "measure", 8, &model);
    if (st != TSR_OK)
        return st;
    st = fill_model(session, which, model);
    if (st == TSR_OK)
        st = tsr_model_save(model, path);
    tsr_model_free(model);
    return st;
}

tsr_status tsr__measure_write(tsr_session *session, const char *folder)
{
    char path[MEASURE_PATH];
    for (int i = 0; i < MEASURE_MODELS; i++) {
        enum measure_model which = (enum measure_model)i;
        tsr_status st = write_model(session, which, tsr__measure_path(folder, which, path));
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

const char *tsr__measure_path(const char *folder, enum measure_model which, char *out)
{
    snprintf(out, MEASURE_PATH, "%s/model%d.onnx", folder, (int)which);
    return out;
}

tsr_status tsr__measure_input(struct measure_rank *rank, tsr_session *session,
                              enum measure_model which, tsr_tensors **out)
{
    const int64_t dims[2] = {rows_of(which, rank->large), WIDTH};
    tsr_status st = tsr_tensors_new(session, out);
    if (st != TSR_OK)
        return st;
    if (rank->seat)
        return tsr__measure_gpu_input(rank, *out, type_of(which), dims);
    return tsr_tensors_put(*out, "x", type_of(which), 2, dims, NULL);
}
