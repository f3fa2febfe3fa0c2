// SPDX-License-Identifier: Apache-2.0
// derive_index.c - rules of operators that are addressed by values: lookups, scatters, selections.
// What lies beside the addressed dimension passes through. A table may be cut along that dimension
// too, if its size is known: each device gives the rows that it has; other addressed dimensions stay whole.
//
// Gather of a table [100 8] with indices [3] along axis 0: "[v d1],[i0] -> [i0 d1]; red v:sum;
// look 1 v 1". Cut in 2 along v, device 0 holds rows 0..49 and device 1 rows 50..99. For the indices
// {3, 70, 5} device 0 gives row 3, zeros, row 5, and device 1 gives zeros, row 70, zeros: their sum
// is the result.
#include "rules/derive.h"

#define NOT_KNOWN "the shape of an input is not known"
#define MAX_RANK  (RULE_MAX_FACTORS / 4)

static int64_t int_of(const struct derivation *derivation, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__attr_of(derivation->shapes, derivation->node, name), otherwise);
}

static int rank_of(struct derivation *derivation, size_t i)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank < 0 || rank > MAX_RANK) {
        tsr__derive_none(derivation, NOT_KNOWN);
        return -1;
    }
    return rank;
}

static int axis_of(struct derivation *derivation, const char *name, int64_t otherwise, int rank)
{
    int axis = tsr__axis(int_of(derivation, name, otherwise), rank);
    if (axis < 0)
        tsr__derive_none(derivation, "the axis is not one of the input's");
    return axis;
}

static bool is_one_of(tsr_dtype type, const tsr_dtype *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (types[i] == type)
            return true;
    return false;
}

static void add_letters(struct derivation *derivation, char letter, int from, int to)
{
    for (int i = from; i < to; i++)
        tsr__derive_add(derivation, "%c%d ", letter, i);
}

void tsr__derive_gather(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0), many = rank >= 0 ? rank_of(derivation, 1) : -1;
    int axis = many >= 0 ? axis_of(derivation, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    tsr__derive_add(derivation, "[");
    add_letters(derivation, 'd', 0, axis);
    tsr__derive_add(derivation, "v ");
    add_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "],[");
    add_letters(derivation, 'i', 0, many);
    tsr__derive_add(derivation, "] -> [");
    add_letters(derivation, 'd', 0, axis);
    add_letters(derivation, 'i', 0, many);
    add_letters(derivation, 'd', axis + 1, rank);
    tsr__derive_add(derivation, "]");
    tsr__derive_lookup(derivation, 0, rank - axis - 1);
}

// Parts of results of the type of that input can be put to 0 and added up.
static bool can_be_added(const struct derivation *derivation, size_t like)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT8,
                                      TSR_UINT8, TSR_INT32,  TSR_UINT32,  TSR_INT64};
    return is_one_of(tsr__derive_in(derivation, like).dtype, types, TSR_COUNT(types)) &&
           tsr__onnx_opset(derivation->node) >= 9;
}

void tsr__derive_lookup(struct derivation *derivation, size_t like, int behind)
{
    bool known = tsr__derive_in(derivation, 0).rank > 0 && can_be_added(derivation, like);
    tsr__derive_add(derivation, known ? "; red v:sum; look 1 v %d" : "; rep v", behind);
}

// Along which dimensions data and indices run side by side: those whose sizes are the same.
static bool beside(const struct derivation *derivation, int axis, int rank, bool *same)
{
    struct shape data = tsr__derive_in(derivation, 0), at = tsr__derive_in(derivation, 1);
    if (at.rank != rank)
        return false;
    for (int i = 0; i < rank; i++)
        same[i] = i != axis && tsr__dim_equal(derivation->shapes->exprs, data.dims[i], at.dims[i]);
    return true;
}

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
    bool same[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    int axis = rank >= 0 ? axis_of(derivation, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    if (!beside(derivation, axis, rank, same)) {
        tsr__derive_none(derivation, NOT_KNOWN);
        return;
    }
    add_beside(derivation, rank, same, axis, 'v');
    tsr__derive_add(derivation, ",");
    add_beside(derivation, rank, same, axis, 'w');
    tsr__derive_add(derivation, " -> ");
    add_beside(derivation, rank, same, axis, 'w');
    tsr__derive_lookup(derivation, 0, 0);
}

void tsr__derive_scatter_elements(struct derivation *derivation)
{
    bool same[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    int axis = rank >= 0 ? axis_of(derivation, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    if (!beside(derivation, axis, rank, same)) {
        tsr__derive_none(derivation, NOT_KNOWN);
        return;
    }
    static const char *const before[] = {"", ",", ",", " -> "};
    for (int i = 0; i < 4; i++) {
        tsr__derive_add(derivation, "%s", before[i]);
        add_beside(derivation, rank, same, axis, i == 0 || i == 3 ? 'v' : 0);
    }
    tsr__derive_add(derivation, "; scat 1 v %d", axis);
}

// [b* v* s*],[b* i* _]: how many dimensions one index tuple addresses; -1: not known.
static int tuple_length(struct derivation *derivation, int rank, int many, int batch)
{
    struct shape at = tsr__derive_in(derivation, 1);
    int64_t k = many > 0 ? at.dims[many - 1].value : -1;
    if (k >= 0 && batch >= 0 && batch < many && batch + k <= rank)
        return (int)k;
    tsr__derive_none(derivation, "how many dimensions an index addresses is not known");
    return -1;
}

// Data [4 5 6 7], indices [4 9 2], batch_dims 1: an index tuple addresses 2 dimensions, so the rule
// is "[b0 v0 v1 s3],[b0 i1 _] -> [b0 i1 s3]", and v0 and v1 may be cut: whoever does not hold the
// row gives 0, and the parts are summed. Types that cannot be summed keep them whole ("_").
void tsr__derive_gather_nd(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0), many = rank >= 0 ? rank_of(derivation, 1) : -1;
    int64_t batch = int_of(derivation, "batch_dims", 0);
    int k = many >= 0 && batch >= 0 && batch <= MAX_RANK
                ? tuple_length(derivation, rank, many, (int)batch)
                : -1;
    if (k < 0) {
        tsr__derive_none(derivation, derivation->whole ? derivation->whole : NOT_KNOWN);
        return;
    }
    int b = (int)batch;
    bool parts = can_be_added(derivation, 0);
    tsr__derive_add(derivation, "[");
    add_letters(derivation, 'b', 0, b);
    for (int i = 0; i < k; i++)
        tsr__derive_add(derivation, parts ? "v%d " : "_ ", i);
    add_letters(derivation, 's', b + k, rank);
    tsr__derive_add(derivation, "],[");
    add_letters(derivation, 'b', 0, b);
    add_letters(derivation, 'i', b, many - 1);
    tsr__derive_add(derivation, "_] -> [");
    add_letters(derivation, 'b', 0, b);
    add_letters(derivation, 'i', b, many - 1);
    add_letters(derivation, 's', b + k, rank);
    tsr__derive_add(derivation, "]");
    if (!parts)
        return;
    for (int i = 0; i < k; i++)
        tsr__derive_add(derivation, "; red v%d:sum; look 1 v%d %d %d", i, i, rank - b - k, i);
}

// Updates may hit one place twice, in order: they stay whole.
void tsr__derive_scatter_nd(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0), many = rank >= 0 ? rank_of(derivation, 1) : -1;
    int k = many >= 0 ? tuple_length(derivation, rank, many, 0) : -1;
    if (k < 0)
        return;
    for (int side = 0; side < 2; side++) { // data and result are alike
        tsr__derive_add(derivation, side ? " -> [" : "[");
        add_letters(derivation, 'v', 0, k);
        add_letters(derivation, 's', k, rank);
        tsr__derive_add(derivation, "]");
        if (side)
            continue;
        tsr__derive_add(derivation, ",[");
        for (int i = 0; i < many; i++)
            tsr__derive_add(derivation, "_ ");
        tsr__derive_add(derivation, "],[");
        for (int i = 0; i < many - 1; i++)
            tsr__derive_add(derivation, "_ ");
        add_letters(derivation, 's', k, rank);
        tsr__derive_add(derivation, "]");
    }
    for (int i = 0; i < k; i++)
        tsr__derive_add(derivation, "; scat 1 v%d %d %d", i, i, i);
}

void tsr__derive_tensor_scatter(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    int axis = rank >= 0 ? axis_of(derivation, "axis", -2, rank) : -1;
    if (axis < 0)
        return;
    if (axis == 0) {
        tsr__derive_none(derivation, "the axis is not one of the input's");
        return;
    }
    static const char *const before[] = {"[", ",[", ",[d0]? -> ["};
    for (int i = 0; i < 3; i++) {
        tsr__derive_add(derivation, "%s", before[i]);
        add_letters(derivation, 'd', 0, axis);
        tsr__derive_add(derivation, "_ ");
        add_letters(derivation, 'd', axis + 1, rank);
        tsr__derive_add(derivation, "]");
    }
}

// Fractions as indices are left alone: engines do not agree about them. Before opset 11 nothing counted from the end.
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

// ---- places: what is found by comparing (expand_place.c) -----------------------------------------

void tsr__derive_trilu(struct derivation *derivation)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_BFLOAT16,
                                      TSR_INT32, TSR_INT64,  TSR_UINT8,   TSR_BOOL};
    struct shape in = tsr__derive_in(derivation, 0);
    bool known = in.rank >= 2 && in.rank <= MAX_RANK;
    if (!known || !is_one_of(in.dtype, types, TSR_COUNT(types)))
        derivation->text = "[A* n m],·? -> [A* n m]; rep n m";
}

// Fractions would be rounded otherwise; other steps are rare.
void tsr__derive_range(struct derivation *derivation)
{
    const tsr_node *node = derivation->node;
    int64_t step = 0;
    bool named =
        tsr_node_input_count(node) == 3 && tsr_node_input(node, 2) && tsr_node_output(node, 0);
    struct shape out = named ? tsr__shapes_of(derivation->shapes, tsr_node_output(node, 0))
                             : (struct shape){.rank = -1};
    bool sized = out.rank == 1 && (out.dims[0].value >= 0 || out.dims[0].symbol[0]);
    if (!sized || out.dtype != TSR_INT64 || tsr__onnx_opset(node) < 12 ||
        tsr__shapes_ints(derivation->shapes, tsr_node_input(node, 2), &step, 1) != 1 || step != 1)
        derivation->text = "·,·,· -> [r]; rep r";
}

void tsr__derive_eye_like(struct derivation *derivation)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT32,
                                      TSR_INT64, TSR_UINT8,  TSR_INT8,    TSR_BOOL};
    struct shape in = tsr__derive_in(derivation, 0);
    tsr_dtype type = (tsr_dtype)int_of(derivation, "dtype", in.dtype);
    int64_t k = int_of(derivation, "k", 0);
    if (in.rank != 2 || k < INT32_MIN || k > INT32_MAX ||
        !is_one_of(type, types, TSR_COUNT(types)) || tsr__onnx_opset(derivation->node) < 11)
        derivation->text = "[n m] -> [n m]; rep n m";
}

void tsr__derive_one_hot(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    int64_t axis = int_of(derivation, "axis", -1);
    if (rank < 0)
        return;
    int at = tsr__axis(axis, rank + 1);
    if (at < 0) {
        tsr__derive_none(derivation, "the axis is not one of the input's");
        return;
    }
    tsr__derive_add(derivation, "[");
    add_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],·,· -> [");
    add_letters(derivation, 'd', 0, at);
    tsr__derive_add(derivation, "t ");
    add_letters(derivation, 'd', at, rank);
    tsr__derive_add(derivation, one_hot_compares(derivation) ? "]; stat t" : "]; rep t");
}

void tsr__derive_compress(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    if (rank < 0)
        return;
    if (!tsr__attr_of(derivation->shapes, derivation->node, "axis")) {
        tsr__derive_none(derivation, "the elements are taken from the flat input");
        return;
    }
    int axis = axis_of(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    for (int i = 0; i < 2; i++) {
        tsr__derive_add(derivation, i ? ",[_] -> [" : "[");
        add_letters(derivation, 'd', 0, axis);
        tsr__derive_add(derivation, "_ ");
        add_letters(derivation, 'd', axis + 1, rank);
        tsr__derive_add(derivation, "]");
    }
}

void tsr__derive_reverse_sequence(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    int64_t time = int_of(derivation, "time_axis", 0), batch = int_of(derivation, "batch_axis", 1);
    if (rank < 0)
        return;
    if (rank < 2 || time < 0 || batch < 0 || time >= rank || batch >= rank || time == batch) {
        tsr__derive_none(derivation, "the axis is not one of the input's");
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (i)
            tsr__derive_add(derivation, ",[d%d] -> ", (int)batch);
        tsr__derive_add(derivation, "[");
        add_letters(derivation, 'd', 0, (int)time);
        tsr__derive_add(derivation, "_ ");
        add_letters(derivation, 'd', (int)time + 1, rank);
        tsr__derive_add(derivation, "]");
    }
}
