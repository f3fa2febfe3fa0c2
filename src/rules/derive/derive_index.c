// SPDX-License-Identifier: Apache-2.0
// derive_index.c - rules of operators with index inputs: lookups, scatters, selections. Dimensions
// that no index addresses pass through. A table can also be sharded along the addressed dimension
// if its size is known: each device returns the rows that it has.
//
// Gather of a table [100 8] with indices [3] along axis 0: "[v d1],[i0] -> [i0 d1]; red v:sum; look
// 1 v 1". Sharded in 2 along v, device 0 holds rows 0..49 and device 1 rows 50..99. For the indices
// {3, 70, 5} device 0 returns row 3, zeros, row 5, and device 1 returns zeros, row 70, zeros: their
// sum is the result.
#include "rules/derive/derive.h"

static bool is_one_of(tsr_dtype type, const tsr_dtype *types, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (types[i] == type)
            return true;
    return false;
}

// Derives the rule of Gather. In the result, the dimensions of the indices replace the axis.
// Example: a table [4 100 8] with indices [2 3] along axis 1 has the rule
// "[d0 v d2],[i0 i1] -> [d0 i0 i1 d2]".
void tsr__derive_gather(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    tsr__rule_axes(rule, rank, axis);
    tsr__rule_inputs(rule, "[< v >],[]");
    tsr__rule_range(rule, 'i', 0, many);
    tsr__rule_outputs(rule, "[<]");
    tsr__rule_range(rule, 'i', 0, many);
    tsr__rule_dims(rule, ">");
    tsr__derive_lookup(derivation, 0, rank - axis - 1);
}

// True if the engine can add results of the type of input `like`. This is needed to shard a table:
// a device returns zeros for rows that it lacks, and the results are added.
static bool can_be_added(const struct derivation *derivation, size_t like)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT8,
                                      TSR_UINT8, TSR_INT32,  TSR_UINT32,  TSR_INT64};
    return is_one_of(tsr__derive_in(derivation, like).dtype, types, TSR_COUNT(types)) &&
           tsr__onnx_opset(derivation->node) >= 9;
}

// Adds a lookup: v is reduced by a sum, and elements of input 1 are indices into it. If indices are
// tuples, `element` is the element that is an index into v; -1: no tuples.
static void add_lookup(struct rule_builder *rule, int v, int after, int element)
{
    tsr__rule_reduce(rule, v, COMBINE_SUM);
    tsr__rule_rewrite(
        rule, (struct rule_rewrite){
                  .kind = REWRITE_LOOKUP, .input = 1, .factor = v, .lookup = {element, after}});
}

void tsr__derive_lookup(struct derivation *derivation, size_t like, int after)
{
    if (tsr__derive_in(derivation, 0).rank > 0 && can_be_added(derivation, like))
        add_lookup(&derivation->rule, tsr__rule_find(&derivation->rule, STR("v")), after, -1);
    else
        tsr__rule_kind(&derivation->rule, FACTOR_REP, "v");
}

// Finds the dimensions other than the axis in which data and indices have the same size. False: the
// ranks differ or are unknown, and the derivation has ended.
static bool find_shared(struct derivation *derivation, int axis, int rank, bool *same)
{
    struct shape data = tsr__derive_in(derivation, 0), at = tsr__derive_in(derivation, 1);
    if (at.rank != rank)
        return tsr__derive_none(derivation, DERIVE_NO_SHAPE);
    for (int i = 0; i < rank; i++)
        same[i] = i != axis && same_size(derivation, data.dims[i], at.dims[i]);
    return true;
}

// Adds the dimensions of a tensor: a letter where data and indices have the same size, `at_axis` at
// the axis, "_" elsewhere.
static void add_shared(struct rule_builder *rule, int rank, const bool *same, int axis,
                       const char *at_axis)
{
    for (int i = 0; i < rank; i++) {
        if (same[i])
            tsr__rule_dim(rule, 'd', i);
        else
            tsr__rule_dims(rule, i == axis ? at_axis : "_");
    }
}

// Derives the rule of GatherElements. Lookups are independent, so the indices can be sharded along
// the axis too.
void tsr__derive_gather_elements(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    bool same[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0 || !find_shared(derivation, axis, rank, same))
        return;
    tsr__rule_input(rule);
    add_shared(rule, rank, same, axis, "v");
    tsr__rule_input(rule);
    add_shared(rule, rank, same, axis, "w");
    tsr__rule_output(rule);
    add_shared(rule, rank, same, axis, "w");
    tsr__derive_lookup(derivation, 0, 0);
}

// Adds a scatter: devices change only elements of their shard of v, which is dimension `dim` of the
// data. element: as in add_lookup.
static void add_scatter(struct rule_builder *rule, int v, int dim, int element)
{
    tsr__rule_rewrite(
        rule, (struct rule_rewrite){
                  .kind = REWRITE_SCATTER, .input = 1, .factor = v, .scatter = {element, dim}});
}

// Derives the rule of ScatterElements. Indices and updates are replicated along the axis: for data
// [100 8] along 0, a device with rows 0..49 gets all updates and drops those for other rows. Other
// dimensions are sharded equally if their sizes are the same.
void tsr__derive_scatter_elements(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    bool same[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0 || !find_shared(derivation, axis, rank, same))
        return;
    static const char *const inputs[] = {"v", "_", "_"}; // data, indices, updates
    for (size_t i = 0; i < TSR_COUNT(inputs); i++) {
        tsr__rule_input(rule);
        add_shared(rule, rank, same, axis, inputs[i]);
    }
    tsr__rule_output(rule);
    add_shared(rule, rank, same, axis, "v");
    add_scatter(rule, tsr__rule_find(rule, STR("v")), axis, -1);
}

// Returns the number of dimensions that an index tuple addresses; -1: not known, and the derivation
// has ended.
static int tuple_length(struct derivation *derivation, int rank, int many, int batch)
{
    struct shape at = tsr__derive_in(derivation, 1);
    int64_t k = many > 0 ? at.dims[many - 1].value : -1;
    if (k >= 0 && batch >= 0 && batch < many && batch + k <= rank)
        return (int)k;
    tsr__derive_none(derivation, "the number of dimensions that an index addresses is not known");
    return -1;
}

// Derives the rule of GatherND. Example: data [4 5 6 7], indices [4 9 2], batch_dims 1. An index
// tuple addresses 2 dimensions, so the rule is "[b0 v0 v1 s3],[b0 i1 _] -> [b0 i1 s3]". v0 and v1
// can be sharded: a device without the row returns 0, and the partial results are summed. For types
// that cannot be summed they are "_".
void tsr__derive_gather_nd(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    int64_t batch = tsr__derive_int(derivation, "batch_dims", 0);
    if (rank < 0 || many < 0)
        return;
    if (tsr__derive_none_if(derivation, batch < 0 || batch > DERIVE_MAX_RANK, DERIVE_NO_SHAPE))
        return;
    int b = (int)batch, k = tuple_length(derivation, rank, many, b);
    if (k < 0)
        return;
    bool sums = can_be_added(derivation, 0);
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'b', 0, b);
    if (sums)
        tsr__rule_range(rule, 'v', 0, k);
    else
        tsr__rule_any(rule, k);
    tsr__rule_range(rule, 's', b + k, rank);
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'b', 0, b);
    tsr__rule_range(rule, 'i', b, many - 1);
    tsr__rule_any(rule, 1);
    tsr__rule_output(rule);
    tsr__rule_range(rule, 'b', 0, b);
    tsr__rule_range(rule, 'i', b, many - 1);
    tsr__rule_range(rule, 's', b + k, rank);
    for (int i = 0; sums && i < k; i++)
        add_lookup(rule, tsr__rule_numbered(rule, 'v', i), rank - b - k, i);
}

// Derives the rule of ScatterND. Updates are not sharded, because two updates may change the same
// element, and the last one counts. Example: data [4 5 6] with indices [9 2] has the rule "[v0 v1
// s2],[_ _],[_ s2] -> [v0 v1 s2]; scat 1 v0 0 0; scat 1 v1 1 1".
void tsr__derive_scatter_nd(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    if (rank < 0 || many < 0)
        return;
    int k = tuple_length(derivation, rank, many, 0);
    if (k < 0)
        return;
    tsr__rule_input(rule);
    tsr__rule_range(rule, 'v', 0, k);
    tsr__rule_range(rule, 's', k, rank);
    tsr__rule_input(rule);
    tsr__rule_any(rule, many);
    tsr__rule_input(rule);
    tsr__rule_any(rule, many - 1);
    tsr__rule_range(rule, 's', k, rank);
    tsr__rule_output(rule);
    tsr__rule_range(rule, 'v', 0, k);
    tsr__rule_range(rule, 's', k, rank);
    for (int i = 0; i < k; i++)
        add_scatter(rule, tsr__rule_numbered(rule, 'v', i), i, i);
}

// Derives the rule of TensorScatter, which writes a cache at one position of its axis for each
// sequence. Example: [b h s d] along axis 2 has the rule
// "[d0 d1 _ d3],[d0 d1 _ d3],[d0]? -> [d0 d1 _ d3]". The axis is not sharded: the position is known
// at run time only.
void tsr__derive_tensor_scatter(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -2, rank);
    if (axis < 0 || tsr__derive_none_if(derivation, axis == 0, DERIVE_NO_AXIS))
        return;
    tsr__rule_axes(&derivation->rule, rank, axis);
    tsr__rule_text(&derivation->rule, "[< _ >],[< _ >],[d0]? -> [< _ >]");
}

// True if OneHot can be expanded to a comparison. Indices that are fractions cannot: engines
// disagree about them. Before opset 11, negative indices did not count from the end.
static bool one_hot_expands(const struct derivation *derivation)
{
    static const tsr_dtype at[] = {TSR_INT32, TSR_INT64, TSR_UINT8};
    static const tsr_dtype depth[] = {TSR_INT32, TSR_INT64, TSR_FLOAT};
    static const tsr_dtype values[] = {TSR_FLOAT, TSR_DOUBLE, TSR_INT32, TSR_INT64, TSR_UINT8};
    return is_one_of(tsr__derive_in(derivation, 0).dtype, at, TSR_COUNT(at)) &&
           is_one_of(tsr__derive_in(derivation, 1).dtype, depth, TSR_COUNT(depth)) &&
           is_one_of(tsr__derive_in(derivation, 2).dtype, values, TSR_COUNT(values)) &&
           tsr__derive_in(derivation, 1).rank >= 0 && tsr__onnx_opset(derivation->node) >= 11;
}

// ---- operators that compare positions (expand_place.c) ------------------------------------------

// Derives the rule of Trilu: the rule text of the operator table, unless the node cannot be
// expanded.
void tsr__derive_trilu(struct derivation *derivation)
{
    static const tsr_dtype types[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_BFLOAT16,
                                      TSR_INT32, TSR_INT64,  TSR_UINT8,   TSR_BOOL};
    struct shape in = tsr__derive_in(derivation, 0);
    bool known = in.rank >= 2 && in.rank <= DERIVE_MAX_RANK;
    if (!known || !is_one_of(in.dtype, types, TSR_COUNT(types)))
        derivation->text = "[A* n m],·? -> [A* n m]; rep n m";
}

// Derives the rule of Range: the rule text of the operator table for int64 with step 1. Other
// ranges are not sharded: fractions would be rounded differently, and other steps are rare.
void tsr__derive_range(struct derivation *derivation)
{
    const tsr_node *node = derivation->node;
    int64_t step = 0;
    struct shape out = tsr__derive_result(derivation);
    bool sized = tsr__derive_has(derivation, 2) && out.rank == 1 &&
                 (out.dims[0].value >= 0 || out.dims[0].symbol[0]);
    if (!sized || out.dtype != TSR_INT64 || tsr__onnx_opset(node) < 12 ||
        !tsr__derive_number(derivation, 2, &step) || step != 1)
        derivation->text = "·,·,· -> [r]; rep r";
}

// Derives the rule of EyeLike: the rule text of the operator table, for types that comparisons and
// casts support. Other types, opsets before 11, an unknown rank and a k outside of int32 are not
// sharded.
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

// Derives the rule of OneHot. Example: [4 5] with depth 10 along axis 1 has the rule "[d0 d1],·,·
// -> [d0 t d1]". Sharding the classes t expands the node; if it cannot be expanded, t is not
// sharded.
void tsr__derive_one_hot(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    int at = tsr__derive_axis(derivation, "axis", -1, rank + 1); // axis of the result
    if (at < 0)
        return;
    tsr__rule_axes(rule, rank, at);
    tsr__rule_inputs(rule, "[@],·,·");
    tsr__rule_outputs(rule, "[< t]");
    tsr__rule_range(rule, 'd', at, rank);
    tsr__rule_kind(rule, one_hot_expands(derivation) ? FACTOR_STAT : FACTOR_REP, "t");
    tsr__derive_element_size(derivation, "t", 1);
}

// Derives the rule of Compress. The axis is not sharded, because the number of selected elements is
// known at run time only. Without an axis the input is flattened, and nothing is sharded.
void tsr__derive_compress(struct derivation *derivation)
{
    if (!tsr__derive_attr(derivation, "axis")) {
        derivation->whole = "the elements are taken from the flat input";
        derivation->text = "·,· -> [_]";
        return;
    }
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    tsr__rule_axes(&derivation->rule, rank, axis);
    tsr__rule_text(&derivation->rule, "[< _ >],[_] -> [< _ >]");
}

// Derives the rule of ReverseSequence. Each sequence of the batch is reversed up to its own length:
// time is not sharded, lengths are sharded with the batch.
void tsr__derive_reverse_sequence(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int64_t time = tsr__derive_int(derivation, "time_axis", 0),
            batch = tsr__derive_int(derivation, "batch_axis", 1);
    if (rank < 0)
        return;
    if (rank < 2 || time < 0 || batch < 0 || time >= rank || batch >= rank || time == batch) {
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
        return;
    }
    tsr__rule_axes(rule, rank, (int)time);
    tsr__rule_inputs(rule, "[< _ >],[]");
    tsr__rule_dim(rule, 'd', (int)batch);
    tsr__rule_outputs(rule, "[< _ >]");
}
