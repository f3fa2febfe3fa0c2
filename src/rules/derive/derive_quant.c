// SPDX-License-Identifier: Apache-2.0
// derive_quant.c - rules of quantized operators. There is one scale and zero point for the tensor,
// for each index of an axis, or for each block along it. They are sharded with the factor that they
// belong to, and blocks are not split.
//
// MatMulNBits with K = 256, blocks of 32 elements, 4 bits, and zero points of which two share a
// byte: shards of k must have pairs of blocks. So k is (w p z) with w = 4, p = 2, z = 32, and only
// w is sharded. Each of 2 devices has 128 rows of k: per column 4 blocks, 4 scales and 2 bytes of
// zero points.
#include "rules/derive/derive.h"

// ---- QuantizeLinear, DequantizeLinear -----------------------------------------------------------

// Builds the rule for one scale per block. Example: [64 256] with blocks of 32 along axis 1 has
// scales [64 8]: "[d0 (u z)],[d0 u],[d0 u]? -> [d0 (u z)]; rep z", with u 8 and z 32. A shard of u
// has complete blocks and their scales. The axis is not sharded if blocks do not fill it, or if
// their number is unknown. Nor is a vector: ONNX Runtime rejects one scale for one block of it.
static void per_block(struct derivation *derivation, int axis, int rank)
{
    struct shape x = tsr__derive_in(derivation, 0), scale = tsr__derive_in(derivation, 1);
    int64_t block = tsr__derive_int(derivation, "block_size", 0);
    int64_t size = x.dims[axis].value, blocks = scale.dims[axis].value, covered;
    bool full = rank > 1 && block > 0 && size > 0 && blocks > 0 &&
                mul_ok(block, blocks, &covered) && covered == size;
    if (full)
        tsr__derive_size(derivation, "z", block);
    tsr__rule_text(&derivation->rule, full ? "[< (u z) >],[< u >],[< u >]? -> [< (u z) >]; rep z"
                                           : "[< c >],[< u >],[< u >]? -> [< c >]; rep c u");
}

// Derives the rule of QuantizeLinear and DequantizeLinear. The scale is one number for the tensor,
// for each element c of an axis, or for each block of an axis. Scales of blocks have as many
// dimensions as the tensor.
void tsr__derive_quantize(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    struct shape scale = tsr__derive_in(derivation, 1);
    if (many == 0) {
        derivation->text = "[A*],[],[]? -> [A*]";
        return;
    }
    if (many == 1 && scale.dims[0].value == 1) {
        derivation->text = "[A*],[1],[_]? -> [A*]";
        return;
    }
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0)
        return;
    tsr__rule_axes(&derivation->rule, rank, axis);
    // A scale of symbolic size may have one element at run time, so it is broadcast.
    if (many == rank && (many > 1 || tsr__derive_int(derivation, "block_size", 0) > 0))
        per_block(derivation, axis, rank);
    else if (many == 1)
        tsr__rule_text(&derivation->rule, "[< c >],[c~],[c~]? -> [< c >]");
    else
        tsr__derive_none(derivation, "the scale has another number of dimensions than expected");
}

// ---- products of integers -----------------------------------------------------------------------

enum point_of { POINT_OF_ROW, POINT_OF_COLUMN };

// Adds input i, a scale or zero point of rows ([], [1], [m] or [.. m 1]) or of columns ([], [1],
// [n] or [.. 1 n]). If the operand is a vector, there is only one.
static void add_point(struct derivation *derivation, size_t i, enum point_of of, bool vector)
{
    int rank = tsr__derive_in(derivation, i).rank;
    bool row = of == POINT_OF_ROW;
    const char *text = row ? "[B~ m~ 1]?" : "[B~ 1 n~]?";
    if (rank <= 0)
        text = "[]?";
    else if (rank == 1 && vector)
        text = "[1]?";
    else if (rank == 1)
        text = row ? "[m~]?" : "[n~]?";
    tsr__rule_inputs(&derivation->rule, text);
}

// Adds the left operand. As in numpy's matmul, an operand of one dimension has no m or no n.
static void add_left(struct rule_builder *rule, bool vector)
{
    tsr__rule_inputs(rule, vector ? "[k]" : "[B~ m k]");
}

static void add_right(struct rule_builder *rule, bool vector)
{
    tsr__rule_inputs(rule, vector ? "[k]" : "[B~ k n]");
}

void tsr__derive_product(struct rule_builder *rule, bool left_vector, bool right_vector)
{
    tsr__rule_output(rule);
    tsr__rule_dims(rule, left_vector && right_vector ? "" : "B*");
    tsr__rule_dims(rule, left_vector ? "" : "m");
    tsr__rule_dims(rule, right_vector ? "" : "n");
}

// Derives the rule of MatMulInteger. Zero points are subtracted before the product, so partial sums
// over k are exact.
void tsr__derive_matmul_integer(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 1).rank == 1;
    add_left(&derivation->rule, a);
    add_right(&derivation->rule, b);
    add_point(derivation, 2, POINT_OF_ROW, a);
    add_point(derivation, 3, POINT_OF_COLUMN, b);
    tsr__derive_product(&derivation->rule, a, b);
    tsr__rule_clauses(&derivation->rule, "red k:sum");
}

bool tsr__derive_single(struct shape shape)
{
    return shape.rank == 0 || (shape.rank == 1 && shape.dims[0].value == 1);
}

// Only constants of type int8 or uint8 are supported. Compares each byte with the next one, by one
// comparison of overlapping ranges.
bool tsr__derive_alike(const tsr_value *value, tsr_dtype type, int *out)
{
    const void *bytes;
    size_t n;
    if (!value)
        return false;
    const tsr_tensor *tensor = tsr__value_constant_tensor(value);
    if (!tensor || (type != TSR_INT8 && type != TSR_UINT8) || tsr_tensor_dtype(tensor) != type ||
        !tsr__tensor_peek(tensor, &bytes, &n) || !n)
        return false;
    const unsigned char *p = bytes;
    *out = type == TSR_INT8 ? (signed char)p[0] : p[0];
    return memcmp(p, p + 1, n - 1) == 0;
}

// Derives the rule of QLinearMatMul. Rounding follows the complete sum over k, so partial results
// cannot be added. If k is sharded, the node is expanded (expand_quant.c); if it cannot be
// expanded, k is not sharded.
void tsr__derive_qlinear_matmul(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 3).rank == 1;
    bool simple = !a && !b && tsr__onnx_opset(derivation->node) >= 13;
    tsr_dtype type = tsr__derive_in(derivation, 0).dtype;
    add_left(&derivation->rule, a);
    add_point(derivation, 1, POINT_OF_ROW, a);
    add_point(derivation, 2, POINT_OF_ROW, a);
    add_right(&derivation->rule, b);
    add_point(derivation, 4, POINT_OF_COLUMN, b);
    add_point(derivation, 5, POINT_OF_COLUMN, b);
    add_point(derivation, 6, POINT_OF_ROW, a);
    add_point(derivation, 7, POINT_OF_ROW, a);
    tsr__derive_product(&derivation->rule, a, b);
    // These inputs must be scalars: ONNX Runtime does not support one number per row.
    static const size_t single[] = {1, 2, 6, 7};
    for (size_t i = 0; i < TSR_COUNT(single); i++)
        simple = simple && tsr__derive_single(tsr__derive_in(derivation, single[i]));
    simple = simple && tsr__derive_in(derivation, 4).rank <= 1 &&
             tsr__derive_in(derivation, 5).rank <= 1 &&
             tsr__derive_in(derivation, 1).dtype == TSR_FLOAT &&
             (type == TSR_INT8 || type == TSR_UINT8);
    tsr__rule_kind(&derivation->rule, simple ? FACTOR_STAT : FACTOR_REP, "k");
}

// Derives the rule of com.microsoft QGemm: a Gemm of quantized matrices, rounded after the sum over
// k.
void tsr__derive_quantized_gemm(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    tsr__rule_inputs(rule, tsr__derive_int(derivation, "transA", 0) ? "[k m]" : "[m k]");
    tsr__rule_inputs(rule, "[],[]");
    tsr__rule_inputs(rule, tsr__derive_int(derivation, "transB", 0) ? "[n k]" : "[k n]");
    add_point(derivation, 4, POINT_OF_COLUMN, false);
    add_point(derivation, 5, POINT_OF_COLUMN, false);
    tsr__rule_inputs(rule, tsr__derive_in(derivation, 6).rank == 1 ? "[n~]?" : "[m~ n~]?");
    tsr__rule_inputs(rule, "[]?,[]?");
    tsr__rule_outputs(rule, "[m n]");
    tsr__rule_kind(rule, FACTOR_REP, "k");
}

// ---- weights of few bits ------------------------------------------------------------------------

struct packed {
    int64_t k, block, blocks, bits;
};

// Returns the number of blocks whose zero points share a byte; 1 if zero points are not packed.
static int64_t point_group(const struct derivation *derivation, const struct packed *packed)
{
    struct shape z = tsr__derive_in(derivation, 3);
    bool bytes = z.dtype == TSR_UINT8 || z.dtype == TSR_INT8;
    return tsr__derive_has(derivation, 3) && bytes && packed->bits < 8 ? 8 / packed->bits : 1;
}

// Builds the rule if k is not sharded. Scales and zero points may be flat lists for all rows.
static void nbits_unsharded(struct derivation *derivation, const struct packed *packed,
                            bool flat_scales, bool flat_points)
{
    struct rule_builder *rule = &derivation->rule;
    tsr__rule_inputs(rule, "[B* k],[n _ _]");
    tsr__rule_inputs(rule, flat_scales ? "[(n u)]" : "[n _]");
    tsr__rule_inputs(rule, flat_points ? "[(n v)]?" : "[n _]?");
    tsr__rule_inputs(rule, "[_]?,[n]?");
    tsr__rule_outputs(rule, "[B* n]");
    tsr__rule_clauses(rule, "attr N=n; once 5; rep k");
    tsr__rule_kind_if(rule, flat_scales, FACTOR_REP, "u");
    tsr__rule_kind_if(rule, flat_points, FACTOR_REP, "v");
    if (flat_scales)
        tsr__derive_size(derivation, "u", packed->blocks);
    if (flat_points)
        tsr__derive_size(derivation, "v", (packed->blocks * packed->bits + 7) / 8);
}

// Builds the rule if k can be sharded as (w p z). z elements share a scale, p blocks share a byte
// of zero points, and w, the number of such groups, is sharded. Example: with K = 256, blocks of 32
// and 4 bits, z is 32, p is 2, and w is 4; attribute K is w * 64.
static void nbits_sharded(struct derivation *derivation, const struct packed *packed, int64_t group,
                          bool flat_scales, bool flat_points)
{
    struct rule_builder *rule = &derivation->rule;
    tsr__rule_inputs(rule, "[B* (w p z)],[n (w p) _]");
    tsr__rule_inputs(rule, flat_scales ? "[(n w p)]" : "[n (w p)]");
    tsr__rule_inputs(rule, flat_points ? "[(n w)]?" : "[n w]?");
    tsr__rule_inputs(rule, "[_]?,[n]?");
    tsr__rule_outputs(rule, "[B* n]");
    tsr__rule_clauses(rule, "attr N=n; once 5; red w:sum; rep p z");
    tsr__rule_rewrite(rule, (struct rule_rewrite){.kind = REWRITE_ATTR,
                                                  .input = -1,
                                                  .attribute = "K",
                                                  .factor = tsr__rule_find(rule, STR("w")),
                                                  .attr.unit = group * packed->block});
    tsr__derive_size(derivation, "p", group);
    tsr__derive_size(derivation, "z", packed->block);
}

// Derives the rule of MatMulNBits. Blocks are not split, and one device adds the bias. k is not
// sharded if its last block or the last byte of zero points is incomplete, if a byte does not hold
// a whole number of elements, or if input 4 assigns the elements to blocks. Prepacked weights are
// not sharded at all.
void tsr__derive_matmul_nbits(struct derivation *derivation)
{
    struct packed packed = {.k = tsr__derive_int(derivation, "K", 0),
                            .block = tsr__derive_int(derivation, "block_size", 0),
                            .bits = tsr__derive_int(derivation, "bits", 4)};
    if (packed.k < 1 || packed.k > INT32_MAX || packed.block < 1 ||
        packed.block > packed.k * 2 + 256 || packed.bits < 1 || packed.bits > 8) {
        tsr__derive_none(derivation, DERIVE_NO_MEMBER);
        return;
    }
    if (tsr__derive_int(derivation, "weight_prepacked", 0)) {
        tsr__derive_none(derivation, "the weights are stored for one kind of engine");
        return;
    }
    packed.blocks = packed.k / packed.block + (packed.k % packed.block != 0);
    int64_t group = point_group(derivation, &packed);
    bool full = packed.k % packed.block == 0 && packed.blocks % group == 0 && 8 % packed.bits == 0;
    bool flat_scales = tsr__derive_in(derivation, 2).rank == 1,
         flat_points = tsr__derive_in(derivation, 3).rank == 1;
    if (full && !tsr__derive_has(derivation, 4))
        nbits_sharded(derivation, &packed, group, flat_scales, flat_points);
    else
        nbits_unsharded(derivation, &packed, flat_scales, flat_points);
}

// Derives the rule of MatMulBnb4, whose weight is a flat list of rows. Rows can be sharded if each
// row ends at the end of a block.
void tsr__derive_matmul_bnb4(struct derivation *derivation)
{
    int64_t k = tsr__derive_int(derivation, "K", 0),
            block = tsr__derive_int(derivation, "block_size", 0);
    if (tsr__derive_none_if(derivation, k < 1 || block < 1, DERIVE_NO_MEMBER))
        return;
    int64_t columns = tsr__derive_int(derivation, "N", -1);
    if (columns >= 0)
        tsr__derive_size(derivation, "n", columns);
    if (k % block || k % 2 || !tsr__derive_int(derivation, "transB", 1)) {
        derivation->whole = "the rows of the packed weight do not end on blocks";
        derivation->text = "[B* k],[_],[_] -> [B* n]; rep k n";
        return;
    }
    tsr__derive_size(derivation, "w", k / 2);
    tsr__derive_size(derivation, "a", k / block);
}

// Derives the rule of GatherBlockQuantized: indices address the first dimension of a table, and its
// last dimension is packed.
void tsr__derive_gather_quantized(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct shape x = tsr__derive_in(derivation, 0);
    int many = tsr__derive_rank(derivation, 1), rank = tsr__derive_rank(derivation, 0);
    int64_t block = tsr__derive_int(derivation, "block_size", 128),
            bits = tsr__derive_int(derivation, "bits", 4);
    if (rank < 0 || many < 0)
        return;
    // Elements that share a byte.
    int64_t group = x.dtype == TSR_UINT8 && bits > 0 && bits < 8 && 8 % bits == 0 ? 8 / bits : 1;
    if (tsr__axis(tsr__derive_int(derivation, "gather_axis", 0), rank) != 0 || rank < 2 ||
        block < 1 || tsr__axis(tsr__derive_int(derivation, "quantize_axis", 1), rank) != rank - 1 ||
        block % group) {
        tsr__derive_none(derivation,
                         "gather_axis is not the first axis, or quantize_axis not the last");
        return;
    }
    tsr__derive_size(derivation, "z", block);
    tsr__derive_size(derivation, "y", block / group);
    tsr__derive_size(derivation, "p", group);
    tsr__rule_inputs(rule, "[v D* (w p y)]");
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'i', 0, many);
    tsr__rule_inputs(rule, "[v D* (w p)],[v D* w]?");
    tsr__rule_output(rule);
    tsr__rule_range(rule, 'i', 0, many);
    tsr__rule_dims(rule, "D* (w p z)");
    tsr__rule_kind(rule, FACTOR_REP, "p y z");
    tsr__derive_lookup(derivation, 2, rank - 1);
}

// ---- activations, sums and pools of quantized tensors -------------------------------------------

// Derives the rule of QLinearSoftmax. The axis is not sharded. Scales and zero points are single
// numbers.
void tsr__derive_qlinear_softmax(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    // Before opset 13, all dimensions from the axis on are one row.
    int end = tsr__derive_int(derivation, "opset", 13) < 13 ? rank : axis + 1;
    tsr__rule_axes(rule, rank, axis);
    tsr__rule_text(rule, "[@],[],[]?,[],[]? -> [@]");
    tsr__rule_kind_range(rule, FACTOR_REP, 'd', axis, end);
}

// Derives the rule of QLinearConcat. The inputs are scale and zero point of the result, then each
// tensor with its scale and zero point.
void tsr__derive_qlinear_concat(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    size_t n = tsr_node_input_count(derivation->node);
    int rank = tsr__derive_rank(derivation, 2);
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0 || tsr__derive_none_if(derivation, n % 3 != 2, DERIVE_NO_SHAPE))
        return;
    tsr__rule_axes(rule, rank, axis);
    tsr__rule_inputs(rule, "[],[]");
    for (size_t i = 2; i < n; i += 3)
        tsr__rule_inputs(rule, "[< _ >],[],[]");
    tsr__rule_outputs(rule, "[< _ >]");
}

// Adds "n c _ _", or "n _ _ c" if channels are last.
static void add_pooled(struct rule_builder *rule, int rank, bool last, const char *space)
{
    tsr__rule_dims(rule, last ? "n" : "n c");
    for (int i = 2; i < rank; i++)
        tsr__rule_dims(rule, space);
    tsr__rule_dims(rule, last ? "c" : "");
}

// Builds the rule of a quantized pool. Batch and channels pass through, spatial dimensions are not
// sharded.
static void qlinear_pool(struct derivation *derivation, const char *space)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    bool last = tsr__derive_int(derivation, "channels_last", 0) != 0;
    if (rank < 0 || tsr__derive_none_if(derivation, rank < 2,
                                        "a tensor has fewer dimensions than the rule expects"))
        return;
    tsr__rule_input(rule);
    add_pooled(rule, rank, last, "_");
    tsr__rule_inputs(rule, "[],[]?,[],[]?");
    tsr__rule_output(rule);
    add_pooled(rule, rank, last, space);
}

void tsr__derive_qlinear_pool(struct derivation *derivation)
{
    qlinear_pool(derivation, "_");
}

void tsr__derive_qlinear_global_pool(struct derivation *derivation)
{
    qlinear_pool(derivation, "1");
}
