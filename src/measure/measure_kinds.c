// SPDX-License-Identifier: Apache-2.0
// measure_kinds.c - the samples: each has a few nodes of one kind, with sizes that are typical of
// models.
//
//     Example (AS_RATE, TSR_RATE_CONVOLUTION): two bottlenecks of 256 channels on 28 x 28 need
//     2 x 2 x 28 x 28 x (2 x 64 x 256 + 64 x 64 x 9) = 218e6 FLOP. A run of 2 ms means 109e9
//     FLOP/s.
#include "measure/measure_rank.h"

#define MICROSOFT "com.microsoft"
#define MIB       (1024.0 * 1024.0)
#define FAR_ROWS  16384 // of 1024 float32: 64 MiB
#define NEAR_ROWS 256   // 1 MiB
#define HALF_ROWS 4096  // 16 MiB, between the two: fits in a shared cache
#define WIDTH     1024
#define INNER     4096

// ---- creating nodes -----------------------------------------------------------------------------

static const char *fresh_name(struct sample_graph *made, char *out, size_t cap)
{
    snprintf(out, cap, "v%d", made->names++);
    return out;
}

// Adds a node with one output.
static tsr_node *add_node(struct sample_graph *made, const char *domain, const char *op,
                          tsr_value *const *inputs, size_t n)
{
    char name[32];
    const char *out = fresh_name(made, name, sizeof name);
    return tsr_graph_add_node(made->graph, domain, op, out, inputs, n, &out, 1);
}

static tsr_value *step(struct sample_graph *made, const char *op, tsr_value *a, tsr_value *b)
{
    tsr_value *in[2] = {a, b};
    if (!a)
        return NULL;
    tsr_node *node = add_node(made, "", op, in, b ? 2 : 1);
    return node ? tsr_node_output(node, 0) : NULL;
}

// Fills a buffer with random numbers between -1/8 and 1/8; for types other than float32, float16
// and bfloat16 with random bytes. Engines are faster with constant data than with real weights: it
// needs less power, and zero pages that were never written share one physical page.
void tsr__measure_fill(tsr_dtype type, uint64_t seed, void *out, size_t bytes)
{
    uint64_t state = 88172645463325252u + seed;
    float *floats = out;
    uint16_t *halves = out;
    unsigned char *others = out;
    size_t width = (size_t)tsr_dtype_bits(type) / 8;
    for (size_t i = 0; i < bytes / width; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint16_t sign = (uint16_t)(state & 0x8000);
        if (type == TSR_FLOAT)
            floats[i] = (float)(int16_t)state / (8 * 32768.0F);
        else if (type == TSR_FLOAT16) // exponent 2^-4, any fraction
            halves[i] = (uint16_t)(sign | 0x2c00 | (state >> 20 & 0x3ff));
        else if (type == TSR_BFLOAT16)
            halves[i] = (uint16_t)(sign | 0x3d80 | (state >> 20 & 0x7f));
        else
            others[i] = (unsigned char)state;
    }
}

static tsr_value *constant(struct sample_graph *made, tsr_dtype type, int rank, const int64_t *dims)
{
    char name[32];
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8;
    for (int i = 0; i < rank; i++)
        bytes *= (size_t)dims[i];
    void *data = tsr__alloc(made->session, bytes);
    if (!data)
        return NULL;
    tsr__measure_fill(type, (uint64_t)made->names, data, bytes);
    tsr_value *value = tsr_graph_add_initializer(made->graph, fresh_name(made, name, sizeof name),
                                                 type, rank, dims, data, bytes);
    tsr__free(made->session, data, bytes);
    return value;
}

static tsr_value *matrix(struct sample_graph *made, tsr_dtype type, int64_t rows, int64_t columns)
{
    const int64_t dims[2] = {rows, columns};
    return constant(made, type, 2, dims);
}

// Makes the value an output of the model.
static bool add_output(struct sample_graph *made, tsr_value *y)
{
    if (!y || tsr_value_set_type(y, made->sample->gives, -1, NULL) != TSR_OK)
        return false;
    return tsr_graph_add_output(made->graph, y) == TSR_OK;
}

static bool add_output_of(struct sample_graph *made, tsr_node *node)
{
    return node && add_output(made, tsr_node_output(node, 0));
}

// ---- chains: nodes in sequence that an engine does not fuse into one; the table has their number

static bool chain_of(struct sample_graph *made, tsr_value *x, const char *first, const char *second,
                     int nodes)
{
    for (int i = 0; i < nodes; i++)
        x = step(made, i % 2 ? second : first, x, NULL); // returns NULL for NULL
    return add_output(made, x);
}

static bool few_nodes(struct sample_graph *made, tsr_value *x)
{
    return chain_of(made, x, "Relu", "Neg", MEASURE_FEW_NODES);
}
static bool many_nodes(struct sample_graph *made, tsr_value *x)
{
    return chain_of(made, x, "Relu", "Neg", MEASURE_MANY_NODES);
}
static bool stream(struct sample_graph *made, tsr_value *x)
{
    return chain_of(made, x, "Relu", "Neg", made->sample->node.nodes);
}
static bool softmax(struct sample_graph *made, tsr_value *x)
{
    return chain_of(made, x, "Softmax", "Softmax", made->sample->node.nodes);
}
static bool curve(struct sample_graph *made, tsr_value *x)
{
    return chain_of(made, x, "Sigmoid", "Tanh", made->sample->node.nodes);
}

static bool gelu(struct sample_graph *made, tsr_value *x)
{
    for (int i = 0; i < made->sample->node.nodes; i++) {
        tsr_node *node = add_node(made, MICROSOFT, "Gelu", &x, 1);
        if (!node)
            return false;
        x = tsr_node_output(node, 0);
    }
    return add_output(made, x);
}

// Adds a chain of nodes. Each reads the same weights and the result of the node before.
static bool chain_with(struct sample_graph *made, tsr_value *x, const char *op, tsr_value *weights)
{
    if (!weights)
        return false;
    for (int i = 0; i < made->sample->node.nodes; i++)
        x = step(made, op, x, weights);
    return add_output(made, x);
}

// Adds a chain of Add nodes. Each adds the same tensor, which has the shape of the input.
static bool additions(struct sample_graph *made, tsr_value *x)
{
    tsr_value *other = constant(made, made->sample->type, made->sample->rank, made->sample->dims);
    return chain_with(made, x, "Add", other);
}

static bool norms(struct sample_graph *made, tsr_value *x)
{
    const int64_t dims[1] = {WIDTH};
    tsr_value *scale = constant(made, made->sample->type, 1, dims);
    return chain_with(made, x, "LayerNormalization", scale);
}

// ---- single nodes

// Adds a node with one attribute.
static bool add_single(struct sample_graph *made, tsr_value *x, const char *op, const char *name,
                       const int64_t *numbers, size_t n)
{
    tsr_node *node = add_node(made, "", op, &x, 1);
    return node && tsr_node_set_ints(node, name, numbers, n) == TSR_OK && add_output_of(made, node);
}

static bool turn(struct sample_graph *made, tsr_value *x)
{
    return add_single(made, x, "Transpose", "perm", (const int64_t[]){1, 0, 2}, 3);
}

// Adds a Transpose that exchanges rows and columns.
static bool scatter(struct sample_graph *made, tsr_value *x)
{
    return add_single(made, x, "Transpose", "perm", (const int64_t[]){0, 2, 1}, 3);
}

static bool reduce(struct sample_graph *made, tsr_value *x)
{
    return add_single(made, x, "ReduceMean", "axes", (const int64_t[]){1}, 1);
}

// Adds a Slice that copies the first half of each row.
static bool copy_part(struct sample_graph *made, tsr_value *x)
{
    static const int64_t bounds[3] = {0, WIDTH / 2, 1}, one[1] = {1};
    tsr_value *in[4] = {x};
    for (int i = 0; i < 3; i++) {
        char name[32];
        in[i + 1] = tsr_graph_add_initializer(made->graph, fresh_name(made, name, sizeof name),
                                              TSR_INT64, 1, one, &bounds[i], sizeof bounds[i]);
        if (!in[i + 1])
            return false;
    }
    return add_output_of(made, add_node(made, "", "Slice", in, 4));
}

// Adds a MaxPool over 2 x 2 squares. Each element is read once, so it is bandwidth-bound.
static bool pool_squares(struct sample_graph *made, tsr_value *x)
{
    static const int64_t sides[2] = {2, 2};
    tsr_node *node = add_node(made, "", "MaxPool", &x, 1);
    return node && tsr_node_set_ints(node, "kernel_shape", sides, 2) == TSR_OK &&
           tsr_node_set_ints(node, "strides", sides, 2) == TSR_OK && add_output_of(made, node);
}

static bool pool(struct sample_graph *made, tsr_value *x)
{
    static const int64_t sides[2] = {3, 3}, strides[2] = {2, 2}, pads[4] = {1, 1, 1, 1};
    tsr_node *node = add_node(made, "", "MaxPool", &x, 1);
    return node && tsr_node_set_ints(node, "kernel_shape", sides, 2) == TSR_OK &&
           tsr_node_set_ints(node, "strides", strides, 2) == TSR_OK &&
           tsr_node_set_ints(node, "pads", pads, 4) == TSR_OK && add_output_of(made, node);
}

// ---- products

static bool layer(struct sample_graph *made, tsr_value *x)
{
    tsr_value *up = matrix(made, made->sample->type, WIDTH, INNER);
    tsr_value *down = matrix(made, made->sample->type, INNER, WIDTH);
    if (!up || !down)
        return false;
    return add_output(made, step(made, "MatMul", step(made, "MatMul", x, up), down));
}

// Adds a chain of matrix products with square weights as wide as the input.
static bool squares(struct sample_graph *made, tsr_value *x)
{
    for (int i = 0; i < made->sample->node.nodes; i++) {
        tsr_value *weights =
            matrix(made, made->sample->type, made->sample->dims[1], made->sample->dims[1]);
        if (!weights)
            return false;
        x = step(made, "MatMul", x, weights);
    }
    return add_output(made, x);
}

// Adds products with square weights, each followed by a Relu.
static bool square_layers(struct sample_graph *made, tsr_value *x)
{
    int64_t width = made->sample->dims[1];
    for (int i = 0; i < made->sample->node.nodes; i++) {
        tsr_value *weights = matrix(made, made->sample->type, width, width);
        if (!weights)
            return false;
        x = step(made, "Relu", step(made, "MatMul", x, weights), NULL);
    }
    return add_output(made, x);
}

// 0.13 Gflop per product, and 512 KiB per result that the ranks sum up.
const struct sample tsr__waits_sample = {.type = TSR_FLOAT,
                                         .rank = 2,
                                         .dims = {256, 512},
                                         .gives = TSR_FLOAT,
                                         .body = square_layers,
                                         .node = {.nodes = 8}};

static bool layer_of_bytes(struct sample_graph *made, tsr_value *x)
{
    tsr_value *up = matrix(made, TSR_INT8, WIDTH, INNER);
    return up && add_output(made, step(made, "MatMulInteger", x, up));
}

// Adds products of one row with square matrices: of 64 MiB each, or four times as many of 16 MiB.
// No cache holds them between two runs, as with a model's weights. The file has one matrix; the
// engine computes the others as multiples of it at load time.
static bool one_row(struct sample_graph *made, tsr_value *x)
{
    tsr_dtype type = made->sample->type;
    int64_t side = made->sample->dims[1];
    tsr_value *weights = matrix(made, type, side, side);
    for (int i = 0; i < made->matrices * made->sample->node.nodes; i++) {
        const float factor = 1 / (float)(i + 2);
        const uint16_t half = (uint16_t)(0x3800 + i); // 0.5 and the next numbers of float16
        bool is_half = type == TSR_FLOAT16;
        char name[32];
        tsr_value *by = tsr_graph_add_initializer(
            made->graph, fresh_name(made, name, sizeof name), type, 0, NULL,
            is_half ? (const void *)&half : &factor, is_half ? sizeof half : sizeof factor);
        if (!weights || !by)
            return false;
        x = step(made, "MatMul", x, step(made, "Mul", weights, by));
    }
    return add_output(made, x);
}

// Adds a product with 4-bit weights, K x N in blocks of 32; NULL: out of memory.
static tsr_node *packed_node(struct sample_graph *made, tsr_value *x)
{
    int64_t inside = made->sample->dims[1], out = INNER;
    const int64_t words[3] = {out, inside / 32, 16}, scales[1] = {out * inside / 32};
    tsr_value *in[3] = {x, constant(made, TSR_UINT8, 3, words),
                        constant(made, made->sample->type, 1, scales)};
    if (!in[1] || !in[2])
        return NULL;
    tsr_node *node = add_node(made, MICROSOFT, "MatMulNBits", in, 3);
    if (!node || tsr_node_set_int(node, "K", inside) != TSR_OK ||
        tsr_node_set_int(node, "N", out) != TSR_OK || tsr_node_set_int(node, "bits", 4) != TSR_OK ||
        tsr_node_set_int(node, "block_size", 32) != TSR_OK)
        return NULL;
    return node;
}
static bool packed_product(struct sample_graph *made, tsr_value *x)
{
    return add_output_of(made, packed_node(made, x));
}

// Number of products in sequence, for float32 and float16: their weights exceed the private cache
// of a core, or the cache of a GPU.
#define PACKED_ROWS   4
#define PACKED_HALVES 8

static bool packed_row(struct sample_graph *made, tsr_value *x)
{
    int rows = made->sample->type == TSR_FLOAT16 ? PACKED_HALVES : PACKED_ROWS;
    for (int i = 0; i < rows; i++) {
        tsr_node *node = packed_node(made, x);
        if (!node)
            return false;
        x = tsr_node_output(node, 0);
    }
    return add_output(made, x);
}

// ---- convolutions, attention, recurrences

// Adds a convolution that keeps height and width. dims: shape of the weights.
static tsr_value *convolve(struct sample_graph *made, tsr_value *x, const int64_t *dims,
                           int64_t group)
{
    int64_t pads[4] = {dims[2] / 2, dims[3] / 2, dims[2] / 2, dims[3] / 2};
    tsr_value *in[2] = {x, constant(made, TSR_FLOAT, 4, dims)};
    if (!x || !in[1])
        return NULL;
    tsr_node *node = add_node(made, "", "Conv", in, 2);
    if (!node || tsr_node_set_ints(node, "pads", pads, 4) != TSR_OK ||
        tsr_node_set_int(node, "group", group) != TSR_OK)
        return NULL;
    return tsr_node_output(node, 0);
}

// Adds the convolutions of two bottlenecks: 256 channels to 64, 3 x 3, and back to 256.
static bool bottlenecks(struct sample_graph *made, tsr_value *x)
{
    static const int64_t shapes[3][4] = {{64, 256, 1, 1}, {64, 64, 3, 3}, {256, 64, 1, 1}};
    for (int i = 0; i < 6; i++)
        x = convolve(made, x, shapes[i % 3], 1);
    return add_output(made, x);
}

// Adds four convolutions that keep the number of channels, 1 x 1 or 3 x 3.
static bool convolutions(struct sample_graph *made, tsr_value *x, int64_t side)
{
    int64_t channels = made->sample->dims[1];
    const int64_t dims[4] = {channels, channels, side, side};
    for (int i = 0; i < 4; i++)
        x = convolve(made, x, dims, 1);
    return add_output(made, x);
}
static bool points(struct sample_graph *made, tsr_value *x)
{
    return convolutions(made, x, 1);
}
static bool windows(struct sample_graph *made, tsr_value *x)
{
    return convolutions(made, x, 3);
}

static bool depthwise_convolutions(struct sample_graph *made, tsr_value *x)
{
    int64_t channels = made->sample->dims[1];
    const int64_t dims[4] = {channels, 1, 3, 3};
    for (int i = 0; i < 2; i++)
        x = convolve(made, x, dims, channels);
    return add_output(made, x);
}

static bool attention(struct sample_graph *made, tsr_value *x)
{
    tsr_value *in[3] = {x, x, x};
    tsr_node *node = add_node(made, MICROSOFT, "MultiHeadAttention", in, 3);
    return node && tsr_node_set_int(node, "num_heads", 16) == TSR_OK && add_output_of(made, node);
}

#define CACHE_HEADS 8
#define CACHE_SIZE  64
#define CACHE_KEYS  4096

// Adds attention of one token: 32 query heads read 8 key and value heads. x is used as both caches.
static bool cached_attention(struct sample_graph *made, tsr_value *x)
{
    static const int64_t query[3] = {1, 1, (32 + 2 * CACHE_HEADS) * CACHE_SIZE}, one[1] = {1};
    static const char *const out[3] = {"y", "keys", "values"};
    const int32_t before = CACHE_KEYS, all = CACHE_KEYS + 1;
    tsr_value *in[7] = {constant(made, made->sample->type, 3, query), NULL, NULL, x, x};
    in[5] = tsr_graph_add_initializer(made->graph, "before", TSR_INT32, 1, one, &before, 4);
    in[6] = tsr_graph_add_initializer(made->graph, "all", TSR_INT32, 0, NULL, &all, 4);
    if (!in[0] || !in[5] || !in[6])
        return false;
    tsr_node *node =
        tsr_graph_add_node(made->graph, MICROSOFT, "GroupQueryAttention", "a", in, 7, out, 3);
    if (!node || tsr_node_set_int(node, "num_heads", 32) != TSR_OK ||
        tsr_node_set_int(node, "kv_num_heads", CACHE_HEADS) != TSR_OK)
        return false;
    for (size_t i = 0; i < 3; i++)
        if (!add_output(made, tsr_node_output(node, i)))
            return false;
    return true;
}

static bool recurrence(struct sample_graph *made, tsr_value *x)
{
    static const int64_t w[3] = {1, 1024, 128}, r[3] = {1, 1024, 256};
    tsr_value *in[3] = {x, constant(made, TSR_FLOAT, 3, w), constant(made, TSR_FLOAT, 3, r)};
    if (!in[1] || !in[2])
        return false;
    tsr_node *node = add_node(made, "", "LSTM", in, 3);
    return node && tsr_node_set_int(node, "hidden_size", 256) == TSR_OK &&
           add_output_of(made, node);
}

// ---- the table

const struct sample tsr__samples[] = {
#include "measure/samples.def"
};
const size_t tsr__n_samples = TSR_COUNT(tsr__samples);
_Static_assert(TSR_COUNT(tsr__samples) <= MEASURE_SAMPLES, "there is room for all samples");
