// SPDX-License-Identifier: Apache-2.0
// derive_quant.c - rules of quantised operators. Scales and zero points are one for the tensor, one
// for each index of an axis, or one for each block along it; they follow the factors they belong
// to, and blocks are never cut.
//
// MatMulNBits with K = 256, blocks of 32 elements, 4 bits, and zero points of which two share a
// byte: a cut of k must keep two blocks together, so k is (w p z) with w = 4, p = 2, z = 32, and w
// alone is cut. On 2 devices each has 128 rows of k, 4 blocks, 4 scales and 2 bytes of zero points
// a column.
#include "rules/derive/derive.h"

// ---- QuantizeLinear, DequantizeLinear -----------------------------------------------------------

static void add_around(struct derivation *derivation, int axis, int rank, const char *there,
                       const char *end)
{
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, axis);
    tsr__derive_add(derivation, "%s ", there);
    tsr__derive_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "]%s", end);
}

// [64 256] with blocks of 32 along 1 has scales [64 8]: "[d0 (u z)],[d0 u],[d0 u]? -> [d0 (u z)];
// rep z", with u 8 and z 32. A cut of u takes whole blocks and their scales.
static void per_block(struct derivation *derivation, int axis, int rank)
{
    struct shape x = tsr__derive_in(derivation, 0), scale = tsr__derive_in(derivation, 1);
    int64_t block = tsr__derive_int(derivation, "block_size", 0);
    int64_t size = x.dims[axis].value, blocks = scale.dims[axis].value, whole;
    // Blocks that do not fill the dimension, or whose number is not known: it stays whole.
    // So does a vector: ONNX Runtime refuses one scale for one block of it.
    bool full = rank > 1 && block > 0 && size > 0 && blocks > 0 && mul_ok(block, blocks, &whole) &&
                whole == size;
    if (full)
        tsr__derive_size(derivation, STR("z"), (tsr_dim){block, ""});
    const char *elements = "c", *clause = "; rep c u";
    if (full) {
        elements = "(u z)";
        clause = "; rep z";
    }
    add_around(derivation, axis, rank, elements, ",");
    add_around(derivation, axis, rank, "u", ",");
    add_around(derivation, axis, rank, "u", "? -> ");
    add_around(derivation, axis, rank, elements, clause);
}

// Three forms of scale: one number for the tensor; one for each element c of an axis; one for each
// block of an axis, as many dimensions as the tensor has.
void tsr__derive_quantize(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    struct shape scale = tsr__derive_in(derivation, 1);
    if (many == 0) {
        tsr__derive_add(derivation, "[A*],[],[]? -> [A*]");
        return;
    }
    if (many == 1 && scale.dims[0].value == 1) {
        tsr__derive_add(derivation, "[A*],[1],[_]? -> [A*]");
        return;
    }
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0)
        return;
    if (many == rank && (many > 1 || tsr__derive_int(derivation, "block_size", 0) > 0)) {
        per_block(derivation, axis, rank);
    } else if (many == 1) {
        // A scale whose size has a name may turn out to be one for the tensor.
        add_around(derivation, axis, rank, "c", ",[c~],[c~]? -> ");
        add_around(derivation, axis, rank, "c", "");
    } else {
        tsr__derive_none(derivation, "the scale has another number of dimensions than expected");
    }
}

void tsr__derive_dynamic_quantize(struct derivation *derivation)
{
    tsr__derive_add(derivation, "[A*] -> [A*],[],[]");
    if (tsr__derive_in(derivation, 0).rank != 0)
        tsr__derive_add(derivation, "; %s A", tsr__derive_stat(derivation, 11, EXPAND_FLOATS));
}

// ---- products of integers -----------------------------------------------------------------------

enum point_of { POINT_OF_ROW, POINT_OF_COLUMN };

// A row's or column's scale or zero point: [] [1] [m] [.. m 1], or [] [1] [n] [.. 1 n]. Of an
// operand that is a vector there is one.
static void add_point(struct derivation *derivation, size_t i, enum point_of of, bool vector)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank <= 0)
        tsr__derive_add(derivation, ",[]?");
    else if (rank == 1 && vector)
        tsr__derive_add(derivation, ",[1]?");
    else if (rank == 1 && of == POINT_OF_ROW)
        tsr__derive_add(derivation, ",[m~]?");
    else if (rank == 1)
        tsr__derive_add(derivation, ",[n~]?");
    else if (of == POINT_OF_ROW)
        tsr__derive_add(derivation, ",[B~ m~ 1]?");
    else
        tsr__derive_add(derivation, ",[B~ 1 n~]?");
}

// numpy's matmul: an operand of one dimension has no m or no n.
static void add_left(struct derivation *derivation, bool vector)
{
    static const char *const forms[] = {"[B~ m k]", "[k]"};
    tsr__derive_add(derivation, "%s", forms[vector]);
}

static void add_right(struct derivation *derivation, bool vector)
{
    static const char *const forms[] = {",[B~ k n]", ",[k]"};
    tsr__derive_add(derivation, "%s", forms[vector]);
}

static void add_product(struct derivation *derivation, bool left, bool right)
{
    tsr__derive_add(derivation, " -> [%s%s%s]", text_if(!left || !right, "B* "),
                    text_if(!left, "m "), text_if(!right, "n"));
}

// Points subtract one number from rows or columns before the product; sums of integers over parts
// of k are exact.
void tsr__derive_matmul_integer(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 1).rank == 1;
    add_left(derivation, a);
    add_right(derivation, b);
    add_point(derivation, 2, POINT_OF_ROW, a);
    add_point(derivation, 3, POINT_OF_COLUMN, b);
    add_product(derivation, a, b);
    tsr__derive_add(derivation, "; red k:sum");
}

bool tsr__derive_single(struct shape shape)
{
    return shape.rank == 0 || (shape.rank == 1 && shape.dims[0].value == 1);
}

// Overlapping comparison: all bytes are equal if each equals the next.
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
    *out = p[0];
    if (type == TSR_INT8)
        *out = (signed char)p[0];
    return memcmp(p, p + 1, n - 1) == 0;
}

// Rounding comes after the sum: a cut of k needs the parts (expand_quant.c).
void tsr__derive_qlinear_matmul(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 3).rank == 1;
    bool simple = !a && !b && tsr__onnx_opset(derivation->node) >= 13;
    tsr_dtype type = tsr__derive_in(derivation, 0).dtype;
    add_left(derivation, a);
    add_point(derivation, 1, POINT_OF_ROW, a);
    add_point(derivation, 2, POINT_OF_ROW, a);
    add_right(derivation, b);
    add_point(derivation, 4, POINT_OF_COLUMN, b);
    add_point(derivation, 5, POINT_OF_COLUMN, b);
    add_point(derivation, 6, POINT_OF_ROW, a);
    add_point(derivation, 7, POINT_OF_ROW, a);
    add_product(derivation, a, b);
    static const size_t single[] = {1, 2, 6, 7}; // the engine has no points per row
    for (size_t i = 0; i < TSR_COUNT(single); i++)
        simple = simple && tsr__derive_single(tsr__derive_in(derivation, single[i]));
    simple = simple && tsr__derive_in(derivation, 4).rank <= 1 &&
             tsr__derive_in(derivation, 5).rank <= 1 &&
             tsr__derive_in(derivation, 1).dtype == TSR_FLOAT &&
             (type == TSR_INT8 || type == TSR_UINT8);
    if (simple)
        tsr__derive_add(derivation, "; stat k");
    else
        tsr__derive_add(derivation, "; rep k");
}

// com.microsoft QGemm: a Gemm of quantised matrices, rounded after the sum over k.
void tsr__derive_quantized_gemm(struct derivation *derivation)
{
    static const char *const left[] = {"m k", "k m"}, *const right[] = {"k n", "n k"};
    bool turned_left = tsr__derive_int(derivation, "transA", 0) != 0;
    bool turned_right = tsr__derive_int(derivation, "transB", 0) != 0;
    tsr__derive_add(derivation, "[%s],[],[],[%s]", left[turned_left], right[turned_right]);
    add_point(derivation, 4, POINT_OF_COLUMN, false);
    add_point(derivation, 5, POINT_OF_COLUMN, false);
    if (tsr__derive_in(derivation, 6).rank == 1)
        tsr__derive_add(derivation, ",[n~]?");
    else
        tsr__derive_add(derivation, ",[m~ n~]?");
    tsr__derive_add(derivation, ",[]?,[]? -> [m n]; rep k");
}

// ---- weights of few bits ------------------------------------------------------------------------

struct packed {
    int64_t k, block, blocks, bits;
    bool full; // blocks fill k
};

// Zero points of a row: none, floating point, or packed into bytes; blocks then come in groups.
static int64_t point_group(const struct derivation *derivation, const struct packed *packed)
{
    struct shape z = tsr__derive_in(derivation, 3);
    bool bytes = z.dtype == TSR_UINT8 || z.dtype == TSR_INT8;
    if (tsr__derive_has(derivation, 3) && bytes && packed->bits < 8)
        return 8 / packed->bits;
    return 1;
}

// With `cut`, k is (w p z): z elements share a scale, p blocks share a byte of zero points, and w,
// which counts such groups, may be cut. K = 256, blocks of 32, 4 bits: z 32, p 2, w 4. The
// attribute K then is w * 64. Without `cut`, k and all that belongs to it stay whole.
static void nbits_text(struct derivation *derivation, const struct packed *packed, int64_t group,
                       bool cut)
{
    // Columns: whole, cut. Scales and points also as one list for all rows ("flat").
    static const char *const weights[] = {"[B* k],[n _ _]", "[B* (w p z)],[n (w p) _]"};
    static const char *const scales[][2] = {{",[n _]", ",[n (w p)]"}, {",[(n u)]", ",[(n w p)]"}};
    static const char *const points[][2] = {{",[n _]?", ",[n w]?"}, {",[(n v)]?", ",[(n w)]?"}};
    bool flat = tsr__derive_in(derivation, 2).rank == 1,
         flat_points = tsr__derive_in(derivation, 3).rank == 1;
    tsr__derive_add(derivation, "%s%s%s", weights[cut], scales[flat][cut],
                    points[flat_points][cut]);
    tsr__derive_add(derivation, ",[_]?,[n]? -> [B* n]; attr N=n; once 5");
    if (cut) {
        tsr__derive_size(derivation, STR("p"), (tsr_dim){group, ""});
        tsr__derive_size(derivation, STR("z"), (tsr_dim){packed->block, ""});
        tsr__derive_add(derivation, "; attr K=w*%lld; red w:sum; rep p z",
                        (long long)(group * packed->block));
        return;
    }
    tsr__derive_add(derivation, "; rep k");
    if (flat) {
        tsr__derive_size(derivation, STR("u"), (tsr_dim){packed->blocks, ""});
        tsr__derive_add(derivation, "; rep u");
    }
    if (flat_points) {
        tsr__derive_size(derivation, STR("v"),
                         (tsr_dim){(packed->blocks * packed->bits + 7) / 8, ""});
        tsr__derive_add(derivation, "; rep v");
    }
}

// Blocks of k are cut, never their insides; a bias is added once.
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
    packed.full =
        packed.k % packed.block == 0 && packed.blocks % group == 0 && 8 % packed.bits == 0;
    nbits_text(derivation, &packed, group, packed.full && !tsr__derive_has(derivation, 4));
}

// Rows of the weight follow each other in one list; they can be cut where they end on blocks.
void tsr__derive_matmul_bnb4(struct derivation *derivation)
{
    int64_t k = tsr__derive_int(derivation, "K", 0),
            block = tsr__derive_int(derivation, "block_size", 0);
    if (k < 1 || block < 1) {
        tsr__derive_none(derivation, DERIVE_NO_MEMBER);
        return;
    }
    if (k % block || k % 2 || !tsr__derive_int(derivation, "transB", 1)) {
        tsr__derive_none(derivation, "the rows of the packed weight do not end on blocks");
        return;
    }
    tsr__derive_size(derivation, STR("w"), (tsr_dim){k / 2, ""});
    tsr__derive_size(derivation, STR("a"), (tsr_dim){k / block, ""});
    tsr__derive_add(derivation, "[B* k],[(n w)],[(n a)] -> [B* n]; rep k w a; attr N=n");
}

// A lookup in a table of blocks: only the first dimension is looked up, only the last is packed.
void tsr__derive_gather_quantized(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    int many = tsr__derive_rank(derivation, 1), rank = tsr__derive_rank(derivation, 0);
    int64_t block = tsr__derive_int(derivation, "block_size", 128),
            bits = tsr__derive_int(derivation, "bits", 4);
    if (rank < 0 || many < 0)
        return;
    int64_t group = 1; // elements that share a byte
    if (x.dtype == TSR_UINT8 && bits > 0 && bits < 8 && 8 % bits == 0)
        group = 8 / bits;
    if (tsr__axis(tsr__derive_int(derivation, "gather_axis", 0), rank) != 0 || rank < 2 ||
        block < 1 || tsr__axis(tsr__derive_int(derivation, "quantize_axis", 1), rank) != rank - 1 ||
        block % group) {
        tsr__derive_none(derivation,
                         "the axes of lookup and blocks are not the first and the last");
        return;
    }
    tsr__derive_size(derivation, STR("z"), (tsr_dim){block, ""});
    tsr__derive_size(derivation, STR("y"), (tsr_dim){block / group, ""});
    tsr__derive_size(derivation, STR("p"), (tsr_dim){group, ""});
    tsr__derive_add(derivation, "[v D* (w p y)],[");
    tsr__derive_letters(derivation, 'i', 0, many);
    tsr__derive_add(derivation, "],[v D* (w p)],[v D* w]? -> [");
    tsr__derive_letters(derivation, 'i', 0, many);
    tsr__derive_add(derivation, "D* (w p z)]; rep p y z");
    tsr__derive_lookup(derivation, 2, rank - 1);
}

// ---- activations, sums and pools of quantised tensors -------------------------------------------

// What the softmax runs over is whole; all else passes. Scales and zero points are single numbers.
void tsr__derive_qlinear_softmax(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    int end = axis + 1;
    if (tsr__derive_int(derivation, "opset", 13) < 13) // everything from the axis on is one row
        end = rank;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],[],[]?,[],[]? -> [");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "]; rep ");
    tsr__derive_letters(derivation, 'd', axis, end);
}

// Result's scale and zero point, then each tensor with its own.
void tsr__derive_qlinear_concat(struct derivation *derivation)
{
    size_t n = tsr_node_input_count(derivation->node);
    int rank = tsr__derive_rank(derivation, 2);
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0)
        return;
    if (n % 3 != 2) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return;
    }
    tsr__derive_add(derivation, "[],[]");
    for (size_t i = 2; i < n; i += 3) {
        tsr__derive_add(derivation, ",");
        add_around(derivation, axis, rank, "_", ",[],[]");
    }
    tsr__derive_add(derivation, " -> ");
    add_around(derivation, axis, rank, "_", "");
}

// "[n c _ _]", or with channels last "[n _ _ c]".
static void add_pooled(struct derivation *derivation, int rank, bool last, const char *space)
{
    tsr__derive_add(derivation, "[n %s", text_if(!last, "c "));
    for (int i = 2; i < rank; i++)
        tsr__derive_add(derivation, "%s ", space);
    tsr__derive_add(derivation, "%s]", text_if(last, "c"));
}

// Batch and channels pass, space stays whole.
static void qlinear_pool(struct derivation *derivation, const char *space)
{
    int rank = tsr__derive_rank(derivation, 0);
    bool last = tsr__derive_int(derivation, "channels_last", 0) != 0;
    if (rank < 0)
        return;
    if (rank < 2) {
        tsr__derive_none(derivation, "a tensor has fewer dimensions than the rule expects");
        return;
    }
    add_pooled(derivation, rank, last, "_");
    tsr__derive_add(derivation, ",[],[]?,[],[]? -> ");
    add_pooled(derivation, rank, last, space);
}

void tsr__derive_qlinear_pool(struct derivation *derivation)
{
    qlinear_pool(derivation, "_");
}

void tsr__derive_qlinear_global_pool(struct derivation *derivation)
{
    qlinear_pool(derivation, "1");
}
