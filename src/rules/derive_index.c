// SPDX-License-Identifier: Apache-2.0
// derive_index.c - rules of operators that are addressed by values: lookups, scatters, selections.
// What lies beside the addressed dimension passes through. A table may be cut along that dimension
// too, if its size is known: each device gives the rows that it has; other addressed dimensions stay whole.
#include "rules/derive.h"

#define NOT_KNOWN "the shape of an input is not known"
#define MAX_RANK  (RULE_MAX_FACTORS / 4)

static int64_t int_of(const struct derivation *d, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__attr_of(d->shapes, d->node, name), otherwise);
}

static int rank_of(struct derivation *d, size_t i)
{
    int rank = tsr__derive_in(d, i).rank;
    if (rank < 0 || rank > MAX_RANK) {
        tsr__derive_none(d, NOT_KNOWN);
        return -1;
    }
    return rank;
}

static int axis_of(struct derivation *d, const char *name, int64_t otherwise, int rank)
{
    int axis = tsr__axis(int_of(d, name, otherwise), rank);
    if (axis < 0)
        tsr__derive_none(d, "the axis is not one of the input's");
    return axis;
}

static bool is_one_of(tsr_dtype type, const tsr_dtype *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (types[i] == type)
            return true;
    return false;
}

static void add_letters(struct derivation *d, char letter, int from, int to)
{
    for (int i = from; i < to; i++)
        tsr__derive_add(d, "%c%d ", letter, i);
}

void tsr__derive_gather(struct derivation *d)
{
    int rank = rank_of(d, 0), many = rank >= 0 ? rank_of(d, 1) : -1;
    int axis = many >= 0 ? axis_of(d, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    tsr__derive_add(d, "[");
    add_letters(d, 'd', 0, axis);
    tsr__derive_add(d, "v ");
    add_letters(d, 'd', axis + 1, rank);
    tsr__derive_add(d, "],[");
    add_letters(d, 'i', 0, many);
    tsr__derive_add(d, "] -> [");
    add_letters(d, 'd', 0, axis);
    add_letters(d, 'i', 0, many);
    add_letters(d, 'd', axis + 1, rank);
    tsr__derive_add(d, "]");
    tsr__derive_lookup(d, 0, rank - axis - 1);
}

// Parts of results of the type of that input can be put to 0 and added up.
static bool can_be_added(const struct derivation *d, size_t like)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT8,
                                      TSR_UINT8, TSR_INT32,  TSR_UINT32,  TSR_INT64};
    return is_one_of(tsr__derive_in(d, like).dtype, types, TSR_COUNT(types)) &&
           tsr__onnx_opset(d->node) >= 9;
}

void tsr__derive_lookup(struct derivation *d, size_t like, int behind)
{
    bool known = tsr__derive_in(d, 0).rank > 0 && can_be_added(d, like);
    tsr__derive_add(d, known ? "; red v:sum; look 1 v %d" : "; rep v", behind);
}

// Along which dimensions data and indices run side by side: those whose sizes are the same.
static bool beside(const struct derivation *d, int axis, int rank, bool *same)
{
    struct shape data = tsr__derive_in(d, 0), at = tsr__derive_in(d, 1);
    if (at.rank != rank)
        return false;
    for (int i = 0; i < rank; i++)
        same[i] = i != axis && tsr__dim_equal(d->shapes->exprs, data.dims[i], at.dims[i]);
    return true;
}

static void add_beside(struct derivation *d, int rank, const bool *same, int axis, char letter)
{
    tsr__derive_add(d, "[");
    for (int i = 0; i < rank; i++) {
        if (same[i])
            tsr__derive_add(d, "d%d ", i);
        else if (i == axis && letter)
            tsr__derive_add(d, "%c ", letter);
        else
            tsr__derive_add(d, "_ ");
    }
    tsr__derive_add(d, "]");
}

// Each index is looked up by itself, so the indices may be cut along the axis too.
void tsr__derive_gather_elements(struct derivation *d)
{
    bool same[MAX_RANK] = {false};
    int rank = rank_of(d, 0);
    int axis = rank >= 0 ? axis_of(d, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    if (!beside(d, axis, rank, same)) {
        tsr__derive_none(d, NOT_KNOWN);
        return;
    }
    add_beside(d, rank, same, axis, 'v');
    tsr__derive_add(d, ",");
    add_beside(d, rank, same, axis, 'w');
    tsr__derive_add(d, " -> ");
    add_beside(d, rank, same, axis, 'w');
    tsr__derive_lookup(d, 0, 0);
}

void tsr__derive_scatter_elements(struct derivation *d)
{
    bool same[MAX_RANK] = {false};
    int rank = rank_of(d, 0);
    int axis = rank >= 0 ? axis_of(d, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    if (!beside(d, axis, rank, same)) {
        tsr__derive_none(d, NOT_KNOWN);
        return;
    }
    for (int i = 0; i < 4; i++) {
        tsr__derive_add(d, "%s", i == 3 ? " -> " : i ? "," : "");
        add_beside(d, rank, same, axis, i == 0 || i == 3 ? 'v' : 0);
    }
    tsr__derive_add(d, "; scat 1 v %d", axis);
}

// [b* v* s*],[b* i* _]: how many dimensions one index tuple addresses; -1: not known.
static int tuple_length(struct derivation *d, int rank, int many, int batch)
{
    struct shape at = tsr__derive_in(d, 1);
    int64_t k = many > 0 ? at.dims[many - 1].value : -1;
    if (k >= 0 && batch >= 0 && batch < many && batch + k <= rank)
        return (int)k;
    tsr__derive_none(d, "how many dimensions an index addresses is not known");
    return -1;
}

void tsr__derive_gather_nd(struct derivation *d)
{
    int rank = rank_of(d, 0), many = rank >= 0 ? rank_of(d, 1) : -1;
    int64_t batch = int_of(d, "batch_dims", 0);
    int k =
        many >= 0 && batch >= 0 && batch <= MAX_RANK ? tuple_length(d, rank, many, (int)batch) : -1;
    if (k < 0) {
        tsr__derive_none(d, d->whole ? d->whole : NOT_KNOWN);
        return;
    }
    int b = (int)batch;
    bool parts = can_be_added(d, 0);
    tsr__derive_add(d, "[");
    add_letters(d, 'b', 0, b);
    for (int i = 0; i < k; i++)
        tsr__derive_add(d, parts ? "v%d " : "_ ", i);
    add_letters(d, 's', b + k, rank);
    tsr__derive_add(d, "],[");
    add_letters(d, 'b', 0, b);
    add_letters(d, 'i', b, many - 1);
    tsr__derive_add(d, "_] -> [");
    add_letters(d, 'b', 0, b);
    add_letters(d, 'i', b, many - 1);
    add_letters(d, 's', b + k, rank);
    tsr__derive_add(d, "]");
    for (int i = 0; i < k && parts; i++)
        tsr__derive_add(d, "; red v%d:sum; look 1 v%d %d %d", i, i, rank - b - k, i);
}

// Updates may hit one place twice, in order: they stay whole.
void tsr__derive_scatter_nd(struct derivation *d)
{
    int rank = rank_of(d, 0), many = rank >= 0 ? rank_of(d, 1) : -1;
    int k = many >= 0 ? tuple_length(d, rank, many, 0) : -1;
    if (k < 0)
        return;
    for (int side = 0; side < 2; side++) { // data and result are alike
        tsr__derive_add(d, side ? " -> [" : "[");
        add_letters(d, 'v', 0, k);
        add_letters(d, 's', k, rank);
        tsr__derive_add(d, "]");
        if (side)
            continue;
        tsr__derive_add(d, ",[");
        for (int i = 0; i < many; i++)
            tsr__derive_add(d, "_ ");
        tsr__derive_add(d, "],[");
        for (int i = 0; i < many - 1; i++)
            tsr__derive_add(d, "_ ");
        add_letters(d, 's', k, rank);
        tsr__derive_add(d, "]");
    }
    for (int i = 0; i < k; i++)
        tsr__derive_add(d, "; scat 1 v%d %d %d", i, i, i);
}

void tsr__derive_tensor_scatter(struct derivation *d)
{
    int rank = rank_of(d, 0);
    int axis = rank >= 0 ? axis_of(d, "axis", -2, rank) : -1;
    if (axis < 0)
        return;
    if (axis == 0) {
        tsr__derive_none(d, "the axis is not one of the input's");
        return;
    }
    for (int i = 0; i < 3; i++) {
        tsr__derive_add(d, "%s[", i == 2 ? ",[d0]? -> " : i ? "," : "");
        add_letters(d, 'd', 0, axis);
        tsr__derive_add(d, "_ ");
        add_letters(d, 'd', axis + 1, rank);
        tsr__derive_add(d, "]");
    }
}

// Fractions as indices are left alone: engines do not agree about them. Before opset 11 nothing counted from the end.
static bool one_hot_compares(const struct derivation *d)
{
    static const tsr_dtype at[] = {TSR_INT32, TSR_INT64, TSR_UINT8};
    static const tsr_dtype depth[] = {TSR_INT32, TSR_INT64, TSR_FLOAT};
    static const tsr_dtype values[] = {TSR_FLOAT, TSR_DOUBLE, TSR_INT32, TSR_INT64, TSR_UINT8};
    return is_one_of(tsr__derive_in(d, 0).dtype, at, TSR_COUNT(at)) &&
           is_one_of(tsr__derive_in(d, 1).dtype, depth, TSR_COUNT(depth)) &&
           is_one_of(tsr__derive_in(d, 2).dtype, values, TSR_COUNT(values)) &&
           tsr__derive_in(d, 1).rank >= 0 && tsr__onnx_opset(d->node) >= 11;
}

// ---- places: what is found by comparing (expand_place.c) -----------------------------------------

void tsr__derive_trilu(struct derivation *d)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_BFLOAT16,
                                      TSR_INT32, TSR_INT64,  TSR_UINT8,   TSR_BOOL};
    struct shape in = tsr__derive_in(d, 0);
    bool known = in.rank >= 2 && in.rank <= MAX_RANK;
    if (!known || !is_one_of(in.dtype, types, TSR_COUNT(types)))
        d->text = "[A* n m],·? -> [A* n m]; rep n m";
}

// Fractions would be rounded otherwise; other steps are rare.
void tsr__derive_range(struct derivation *d)
{
    const tsr_node *n = d->node;
    int64_t step = 0;
    bool named = tsr_node_input_count(n) == 3 && tsr_node_input(n, 2) && tsr_node_output(n, 0);
    struct shape out =
        named ? tsr__shapes_of(d->shapes, tsr_node_output(n, 0)) : (struct shape){.rank = -1};
    bool sized = out.rank == 1 && (out.dims[0].value >= 0 || out.dims[0].symbol[0]);
    if (!sized || out.dtype != TSR_INT64 || tsr__onnx_opset(n) < 12 ||
        tsr__shapes_ints(d->shapes, tsr_node_input(n, 2), &step, 1) != 1 || step != 1)
        d->text = "·,·,· -> [r]; rep r";
}

void tsr__derive_eye_like(struct derivation *d)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT32,
                                      TSR_INT64, TSR_UINT8,  TSR_INT8,    TSR_BOOL};
    struct shape in = tsr__derive_in(d, 0);
    tsr_dtype type = (tsr_dtype)int_of(d, "dtype", in.dtype);
    int64_t k = int_of(d, "k", 0);
    if (in.rank != 2 || k < INT32_MIN || k > INT32_MAX ||
        !is_one_of(type, types, TSR_COUNT(types)) || tsr__onnx_opset(d->node) < 11)
        d->text = "[n m] -> [n m]; rep n m";
}

void tsr__derive_one_hot(struct derivation *d)
{
    int rank = rank_of(d, 0);
    int64_t axis = int_of(d, "axis", -1);
    if (rank < 0)
        return;
    int at = tsr__axis(axis, rank + 1);
    if (at < 0) {
        tsr__derive_none(d, "the axis is not one of the input's");
        return;
    }
    tsr__derive_add(d, "[");
    add_letters(d, 'd', 0, rank);
    tsr__derive_add(d, "],·,· -> [");
    add_letters(d, 'd', 0, at);
    tsr__derive_add(d, "t ");
    add_letters(d, 'd', at, rank);
    tsr__derive_add(d, one_hot_compares(d) ? "]; stat t" : "]; rep t");
}

void tsr__derive_compress(struct derivation *d)
{
    int rank = rank_of(d, 0);
    if (rank < 0)
        return;
    if (!tsr__attr_of(d->shapes, d->node, "axis")) {
        tsr__derive_none(d, "the elements are taken from the flat input");
        return;
    }
    int axis = axis_of(d, "axis", 0, rank);
    if (axis < 0)
        return;
    for (int i = 0; i < 2; i++) {
        tsr__derive_add(d, i ? ",[_] -> [" : "[");
        add_letters(d, 'd', 0, axis);
        tsr__derive_add(d, "_ ");
        add_letters(d, 'd', axis + 1, rank);
        tsr__derive_add(d, "]");
    }
}

void tsr__derive_reverse_sequence(struct derivation *d)
{
    int rank = rank_of(d, 0);
    int64_t time = int_of(d, "time_axis", 0), batch = int_of(d, "batch_axis", 1);
    if (rank < 0)
        return;
    if (rank < 2 || time < 0 || batch < 0 || time >= rank || batch >= rank || time == batch) {
        tsr__derive_none(d, "the axis is not one of the input's");
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (i)
            tsr__derive_add(d, ",[d%d] -> ", (int)batch);
        tsr__derive_add(d, "[");
        add_letters(d, 'd', 0, (int)time);
        tsr__derive_add(d, "_ ");
        add_letters(d, 'd', (int)time + 1, rank);
        tsr__derive_add(d, "]");
    }
}
