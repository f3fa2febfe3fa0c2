// SPDX-License-Identifier: Apache-2.0
// kernels.c - how ONNX Runtime's kernels use memory: which results are stored in the memory of an
// input, and what a kernel allocates besides its inputs and outputs while it runs.
//
// The columns `reuse`, `workspace` and `widens` of the table come from the source of ONNX Runtime
// 1.31: MayInplace and Alias in the definitions of kernels, and calls of their allocator. According
// to them, a sum of two tensors is not stored over one of them.
#include "rules/internal.h"

enum kernel_place tsr__node_place(const tsr_node *node, const struct shapes *shapes,
                                  enum kernels kernels)
{
    const struct op_row *row = tsr__row_of_node(node);
    enum input_reuse reuse = row ? row->reuse : REUSE_NONE;
    if (reuse == REUSE_VIEW)
        return PLACE_OF_INPUT;
    if (reuse == REUSE_ON_ALL || reuse == (kernels == KERNELS_CUDA ? REUSE_ON_CUDA : REUSE_ON_CPU))
        return PLACE_OVER_INPUT;
    // ONNX Runtime fuses the node into the one before it, whose kernel stores the result (kinds.c).
    if (tsr__node_kind(node, shapes).move == NODE_MOVES_NOTHING)
        return PLACE_OVER_INPUT;
    return PLACE_OWN;
}

// ---- workspaces ---------------------------------------------------------------------------------

// Returns the bytes of the column buffer of one image: each of the h * w positions has m * kh * kw
// floats. X is [n, c, h, w], W is [c, m, kh, kw].
double tsr__workspace_conv_transpose(const struct sized_node *sized)
{
    return 4 * tsr__shape_product(tsr__sized_input(sized, 0), 2) *
           tsr__shape_product(tsr__sized_input(sized, 1), 1);
}

// Returns the workspace of a quantized convolution for one image: 32-bit sums, and a copy of the
// window of each element of the result. A window of a single element needs no copy. With int8
// weights, the kernel allocates only a pointer for each position of each window.
static double sums_and_columns(const struct sized_node *sized, size_t weights)
{
    struct shape w = tsr__sized_input(sized, weights);
    struct shape y = tsr__shapes_of(sized->shapes, tsr_node_output(sized->node, 0));
    double image = tsr__shape_product(y, 2), window = tsr__shape_product(w, 1);
    if (tsr_value_dtype(tsr_node_input(sized->node, weights)) == TSR_INT8)
        return 8 * image * tsr__shape_product(w, 2);
    double columns = tsr__shape_product(w, 2) > 1 ? image * window : 0;
    return 4 * tsr__shape_product(y, 1) + columns;
}
double tsr__workspace_qlinear_conv(const struct sized_node *sized)
{
    return sums_and_columns(sized, 3);
}
double tsr__workspace_conv_integer(const struct sized_node *sized)
{
    return sums_and_columns(sized, 1);
}

// Returns the bytes of the gates of all steps and directions: X [steps, batch, inputs], R
// [directions, gates x hidden, hidden].
double tsr__workspace_recurrence(const struct sized_node *sized)
{
    struct shape x = tsr__sized_input(sized, 0), r = tsr__sized_input(sized, 2);
    if (x.rank != 3 || r.rank != 3 || x.dims[2].value <= 0)
        return 0;
    double steps = tsr__shape_product(x, 0) / (double)x.dims[2].value;
    return 4 * steps * (double)r.dims[0].value * (double)r.dims[1].value;
}

int64_t tsr__node_scratch(const tsr_node *node, const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (!row || !row->workspace)
        return 0;
    double bytes = row->workspace(&(struct sized_node){node, shapes});
    return bytes > 0 && bytes < 0x1p62 ? (int64_t)bytes : 0;
}

// ---- constants of 16 bits on CPUs ---------------------------------------------------------------

// Returns the extra bytes for each byte of a constant input. Without a float16 kernel, constants
// are converted to float32 and the originals are freed. MatMulNBits keeps its scales in both types.
int tsr__node_widens(const tsr_node *node, size_t input)
{
    const tsr_value *value = tsr_node_input(node, input);
    if (!value || tsr_value_dtype(value) != TSR_FLOAT16 || input >= sizeof(unsigned) * 8)
        return 0;
    const struct op_row *row = tsr__row_of_node(node);
    return row && (row->widens.inputs >> input & 1) ? row->widens.more : 0;
}

// True for the result of a Constant, or an initializer. Ranks have defaults of inputs as constants.
static bool is_constant(const tsr_value *value)
{
    const tsr_node *producer = tsr_value_producer(value);
    return producer ? tsr__node_is_constant(producer) : tsr_value_initializer(value) != NULL;
}

bool tsr__node_reads_constants(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !is_constant(tsr_node_input(node, i)))
            return false;
    return true;
}

// True if ONNX Runtime computes the node when it loads the model. It does not compute
// DequantizeLinear: 8-bit constants stay, because products read them directly.
bool tsr__node_folds(const tsr_node *node)
{
    return strcmp(tsr_node_op(node), "DequantizeLinear") != 0;
}
