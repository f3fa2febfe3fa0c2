// SPDX-License-Identifier: Apache-2.0
// derive_index.c - rules of operators that are addressed by values: lookups, scatters, selections.
// Dimensions beside the addressed one pass through. A table can also be sharded along that
// dimension, if its size is known: each device returns the rows that it has; other addressed
// dimensions are not sharded.
//
// Gather of a table [100 8] with indices [3] along axis 0: "[v d1],[i0] -> [i0 d1]; red v:sum; look
// 1 v 1". Sharded in 2 along v, device 0 holds rows 0..49 and device 1 rows 50..99. For the indices
// {3, 70, 5} device 0 returns row 3, zeros, row 5, and device 1 returns zeros, row 70, zeros: their
// sum is the result.
#include "rules/derive/derive.h"

// Types that the nodes take that would be put in place.
static bool is_one_of(tsr_dtype type, const tsr_dtype *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (types[i] == type)
            return true;
    return false;
}

// "[d0 _ d2]": the axis is whole, what lies around it passes.
// The same text on both sides: what is beside the axis passes, the axis itself stays whole.
static void add_around(struct derivation *derivation, int rank, int axis)
{
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, axis);
    tsr__derive_add(derivation, "_ ");
    tsr__derive_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "]");
}

// The indices stand in the place of the axis: table [4 100 8], indices [2 3], axis 1: "[d0 v
// d2],[i0 i1] -> [d0 i0 i1 d2]".
void tsr__derive_gather(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, axis);
    tsr__derive_add(derivation, "v ");
    tsr__derive_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "],[");
    tsr__derive_letters(derivation, 'i', 0, many);
    tsr__derive_add(derivation, "] -> [");
    tsr__derive_letters(derivation, 'd', 0, axis);
    tsr__derive_letters(derivation, 'i', 0, many);
    tsr__derive_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "]");
    tsr__derive_lookup(derivation, 0, rank - axis - 1);
}

// Parts of results of the type of that input can be put to 0 and added up.
// A device that lacks a row gives zeros: where sums and zeros do not exist for the type, v stays
// whole.
static bool can_be_added(const struct derivation *derivation, size_t like)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT8,
                                      TSR_UINT8, TSR_INT32,  TSR_UINT32,  TSR_INT64};
    return is_one_of(tsr__derive_in(derivation, like).dtype, types, TSR_COUNT(types)) &&
           tsr__onnx_opset(derivation->node) >= 9;
}

// `behind`: dimensions of the result that stand behind those of the indices.
void tsr__derive_lookup(struct derivation *derivation, size_t like, int behind)
{
    bool known = tsr__derive_in(derivation, 0).rank > 0 && can_be_added(derivation, like);
    if (known)
        tsr__derive_add(derivation, "; red v:sum; look 1 v %d", behind);
    else
        tsr__derive_add(derivation, "; rep v");
}

// Along which dimensions data and indices run side by side: those whose sizes are the same.
// False: ranks differ or are not known.
static bool beside(const struct derivation *derivation, int axis, int rank, bool *same)
{
    struct shape data = tsr__derive_in(derivation, 0), at = tsr__derive_in(derivation, 1);
    if (at.rank != rank)
        return false;
    for (int i = 0; i < rank; i++)
        same[i] = i != axis && tsr__dim_equal(derivation->shapes->exprs, data.dims[i], at.dims[i]);
    return true;
}

// "[d0 v d2]": dimensions that run side by side by their letter, the axis by the letter given, any
// other whole.
static void add_beside(struct derivation *derivation, int rank, const bool *same, int axis,
                       char letter)
{
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++) {
        if (same[i])
            tsr__derive_add(derivation, "d%d ", i);
        else if (i == axis && letter)
            tsr__derive_add(derivation, "%c ", letter);
        else
            tsr__derive_add(derivation, "_ ");
    }
    tsr__derive_add(derivation, "]");
}

// Each index is looked up by itself, so the indices may be cut along the axis too.
void tsr__derive_gather_elements(struct derivation *derivation)
{
    bool same[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    if (!beside(derivation, axis, rank, same)) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return;
    }
    add_beside(derivation, rank, same, axis, 'v');
    tsr__derive_add(derivation, ",");
    add_beside(derivation, rank, same, axis, 'w');
    tsr__derive_add(derivation, " -> ");
    add_beside(derivation, rank, same, axis, 'w');
    tsr__derive_lookup(derivation, 0, 0);
}

// Indices and updates are replicated along the axis: of data [100 8] along 0 a device with rows
// 0..49 gets all updates and drops those for other rows. Other dimensions are sharded equally, if
// their sizes are the same.
void tsr__derive_scatter_elements(struct derivation *derivation)
{
    bool same[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    if (!beside(derivation, axis, rank, same)) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return;
    }
    static const struct {
        const char *before;
        char along_axis;                                          // 0: whole there
    } tensors[] = {{"", 'v'}, {",", 0}, {",", 0}, {" -> ", 'v'}}; // data, indices, updates, result
    for (size_t i = 0; i < TSR_COUNT(tensors); i++) {
        tsr__derive_add(derivation, "%s", tensors[i].before);
        add_beside(derivation, rank, same, axis, tensors[i].along_axis);
    }
    tsr__derive_add(derivation, "; scat 1 v %d", axis);
}

// [b* v* s*],[b* i* _]: how many dimensions one index tuple addresses; -1: not known.
// -1 after saying why.
static int tuple_length(struct derivation *derivation, int rank, int many, int batch)
{
    struct shape at = tsr__derive_in(derivation, 1);
    int64_t k = -1;
    if (many > 0)
        k = at.dims[many - 1].value;
    if (k >= 0 && batch >= 0 && batch < many && batch + k <= rank)
        return (int)k;
    tsr__derive_none(derivation, "how many dimensions an index addresses is not known");
    return -1;
}

// Data [4 5 6 7], indices [4 9 2], batch_dims 1: an index tuple addresses 2 dimensions, so the rule
// is "[b0 v0 v1 s3],[b0 i1 _] -> [b0 i1 s3]", and v0 and v1 can be sharded: a device without the
// row returns 0, and the parts are summed. For types that cannot be summed they are not sharded
// ("_").
void tsr__derive_gather_nd(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    int64_t batch = tsr__derive_int(derivation, "batch_dims", 0);
    if (rank < 0 || many < 0)
        return;
    if (batch < 0 || batch > DERIVE_MAX_RANK) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return;
    }
    int b = (int)batch, k = tuple_length(derivation, rank, many, b);
    if (k < 0)
        return;
    bool parts = can_be_added(derivation, 0);
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'b', 0, b);
    for (int i = 0; i < k; i++)
        if (parts)
            tsr__derive_add(derivation, "v%d ", i);
        else
            tsr__derive_add(derivation, "_ ");
    tsr__derive_letters(derivation, 's', b + k, rank);
    tsr__derive_add(derivation, "],[");
    tsr__derive_letters(derivation, 'b', 0, b);
    tsr__derive_letters(derivation, 'i', b, many - 1);
    tsr__derive_add(derivation, "_] -> [");
    tsr__derive_letters(derivation, 'b', 0, b);
    tsr__derive_letters(derivation, 'i', b, many - 1);
    tsr__derive_letters(derivation, 's', b + k, rank);
    tsr__derive_add(derivation, "]");
    if (!parts)
        return;
    for (int i = 0; i < k; i++)
        tsr__derive_add(derivation, "; red v%d:sum; look 1 v%d %d %d", i, i, rank - b - k, i);
}

// "[v0 v1 s2]": what tuples of k indices address, and what lies behind.
static void add_addressed(struct derivation *derivation, int k, int rank)
{
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'v', 0, k);
    tsr__derive_letters(derivation, 's', k, rank);
    tsr__derive_add(derivation, "]");
}

// Updates may hit one place twice, in order: they stay whole. Data [4 5 6] with indices [9 2]:
// "[v0 v1 s2],[_ _],[_ s2] -> [v0 v1 s2]; scat 1 v0 0 0; scat 1 v1 1 1".
void tsr__derive_scatter_nd(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    int k = tuple_length(derivation, rank, many, 0);
    if (k < 0)
        return;
    add_addressed(derivation, k, rank);
    tsr__derive_add(derivation, ",[");
    for (int i = 0; i < many; i++)
        tsr__derive_add(derivation, "_ ");
    tsr__derive_add(derivation, "],[");
    for (int i = 0; i < many - 1; i++)
        tsr__derive_add(derivation, "_ ");
    tsr__derive_letters(derivation, 's', k, rank);
    tsr__derive_add(derivation, "] -> ");
    add_addressed(derivation, k, rank);
    for (int i = 0; i < k; i++)
        tsr__derive_add(derivation, "; scat 1 v%d %d %d", i, i, i);
}

// A cache that is written at a place of its axis, one for each element of the batch: [b h s d]
// along 2: "[d0 d1 _ d3],[d0 d1 _ d3],[d0]? -> [d0 d1 _ d3]". The axis stays whole: the place is
// known when the model runs.
void tsr__derive_tensor_scatter(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -2, rank);
    if (axis < 0)
        return;
    if (axis == 0) {
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
        return;
    }
    add_around(derivation, rank, axis);
    tsr__derive_add(derivation, ",");
    add_around(derivation, rank, axis);
    tsr__derive_add(derivation, ",[d0]? -> ");
    add_around(derivation, rank, axis);
}

// Fractions as indices are left alone: engines do not agree about them. Before opset 11 nothing
// counted from the end.
static bool one_hot_compares(const struct derivation *derivation)
{
    static const tsr_dtype at[] = {TSR_INT32, TSR_INT64, TSR_UINT8};
    static const tsr_dtype depth[] = {TSR_INT32, TSR_INT64, TSR_FLOAT};
    static const tsr_dtype values[] = {TSR_FLOAT, TSR_DOUBLE, TSR_INT32, TSR_INT64, TSR_UINT8};
    return is_one_of(tsr__derive_in(derivation, 0).dtype, at, TSR_COUNT(at)) &&
           is_one_of(tsr__derive_in(derivation, 1).dtype, depth, TSR_COUNT(depth)) &&
           is_one_of(tsr__derive_in(derivation, 2).dtype, values, TSR_COUNT(values)) &&
           tsr__derive_in(derivation, 1).rank >= 0 && tsr__onnx_opset(derivation->node) >= 11;
}

// ---- places: what is found by comparing (expand_place.c) ----------------------------------------

// The row's own text allows cuts; here it is only taken back where comparing places cannot replace
// the node.
void tsr__derive_trilu(struct derivation *derivation)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_BFLOAT16,
                                      TSR_INT32, TSR_INT64,  TSR_UINT8,   TSR_BOOL};
    struct shape in = tsr__derive_in(derivation, 0);
    bool known = in.rank >= 2 && in.rank <= DERIVE_MAX_RANK;
    if (!known || !is_one_of(in.dtype, types, TSR_COUNT(types)))
        derivation->text = "[A* n m],·? -> [A* n m]; rep n m";
}

// Fractions would be rounded otherwise; other steps are rare.
// As before: the row's rule stands unless something here is not as it must be.
void tsr__derive_range(struct derivation *derivation)
{
    const tsr_node *node = derivation->node;
    int64_t step = 0;
    struct shape out = tsr__derive_result(derivation);
    bool sized = tsr__derive_has(derivation, 2) && out.rank == 1 &&
                 (out.dims[0].value >= 0 || out.dims[0].symbol[0]);
    if (!sized || tsr_node_input_count(node) != 3 || out.dtype != TSR_INT64 ||
        tsr__onnx_opset(node) < 12 ||
        tsr__shapes_ints(derivation->shapes, tsr_node_input(node, 2), &step, 1) != 1 || step != 1)
        derivation->text = "·,·,· -> [r]; rep r";
}

// A diagonal is found by comparing places (expand_place.c), for types that comparing and casting
// give.
void tsr__derive_eye_like(struct derivation *derivation)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT32,
                                      TSR_INT64, TSR_UINT8,  TSR_INT8,    TSR_BOOL};
    struct shape in = tsr__derive_in(derivation, 0);
    tsr_dtype type = (tsr_dtype)tsr__derive_int(derivation, "dtype", in.dtype);
    int64_t k = tsr__derive_int(derivation, "k", 0);
    if (in.rank != 2 || k < INT32_MIN || k > INT32_MAX ||
        !is_one_of(type, types, TSR_COUNT(types)) || tsr__onnx_opset(derivation->node) < 11)
        derivation->text = "[n m] -> [n m]; rep n m";
}

// [4 5] with depth 10 along 1: "[d0 d1],·,· -> [d0 t d1]". Classes t can be cut where the node can
// be replaced by a comparison.
void tsr__derive_one_hot(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    int at = tsr__derive_axis(derivation, "axis", -1, rank + 1); // of the result
    if (at < 0)
        return;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],·,· -> [");
    tsr__derive_letters(derivation, 'd', 0, at);
    tsr__derive_add(derivation, "t ");
    tsr__derive_letters(derivation, 'd', at, rank);
    const char *clause = "rep";
    if (one_hot_compares(derivation))
        clause = "stat";
    tsr__derive_add(derivation, "]; %s t", clause);
}

// How many elements of the axis stay, the run decides: it is whole. Without an axis the input is
// one long list, and nothing can be cut.
void tsr__derive_compress(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    if (!tsr__attr_of(derivation->shapes, derivation->node, "axis")) {
        tsr__derive_none(derivation, "the elements are taken from the flat input");
        return;
    }
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    add_around(derivation, rank, axis);
    tsr__derive_add(derivation, ",[_] -> ");
    add_around(derivation, rank, axis);
}

// Each sequence of the batch is reversed up to its own length: time is whole, lengths go with the
// batch.
void tsr__derive_reverse_sequence(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int64_t time = tsr__derive_int(derivation, "time_axis", 0),
            batch = tsr__derive_int(derivation, "batch_axis", 1);
    if (rank < 0)
        return;
    if (rank < 2 || time < 0 || batch < 0 || time >= rank || batch >= rank || time == batch) {
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
        return;
    }
    add_around(derivation, rank, (int)time);
    tsr__derive_add(derivation, ",[d%d] -> ", (int)batch);
    add_around(derivation, rank, (int)time);
}
