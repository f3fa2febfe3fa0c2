// SPDX-License-Identifier: Apache-2.0
// derive_reduce.c - rules of reductions, and functions that all derive functions share.
//
// A reduced dimension can be sharded if partial results combine by a sum, product, minimum or
// maximum. Means, roots and logarithms are computed after that combination: their dimension is
// `stat`, and sharding it expands the node (expand_reduce.c).
//
//   ReduceSum of [2 3 4] along 1     [d0 d1 d2],· -> [d0 d2]; red d1:sum
//   ReduceMean of the same           [d0 d1 d2] -> [d0 d2]; stat d1
#include "rules/derive/derive.h"

// ---- shared -------------------------------------------------------------------------------------

const tsr_attr *tsr__derive_attr(const struct derivation *derivation, const char *name)
{
    return tsr__attr_of(derivation->shapes, derivation->node, name);
}

size_t tsr__derive_list(const struct derivation *derivation, const char *name, const int64_t **out)
{
    return tsr_attr_ints(tsr__derive_attr(derivation, name), out);
}

int64_t tsr__derive_int(const struct derivation *derivation, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__derive_attr(derivation, name), otherwise);
}

bool tsr__derive_text_is(const struct derivation *derivation, const char *name, const char *text)
{
    size_t n;
    const char *found = tsr_attr_string(tsr__derive_attr(derivation, name), &n);
    return found && str_is((struct str){found, n}, text);
}

bool tsr__derive_has(const struct derivation *derivation, size_t i)
{
    return tsr_node_input(derivation->node, i) != NULL;
}

struct shape tsr__derive_result(const struct derivation *derivation)
{
    return tsr__shapes_of(derivation->shapes, tsr_node_output(derivation->node, 0));
}

int64_t tsr__derive_ints(const struct derivation *derivation, const char *name, size_t i,
                         int64_t *out, int64_t cap)
{
    const int64_t *list;
    const tsr_attr *attr = tsr__derive_attr(derivation, name);
    if (tsr__derive_has(derivation, i))
        return tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, i), out, cap);
    if (!attr)
        return -2;
    int64_t n = (int64_t)tsr_attr_ints(attr, &list);
    for (int64_t k = 0; k < int64_min(n, cap); k++)
        out[k] = list[k];
    return n > cap ? -1 : n;
}

bool tsr__derive_number(const struct derivation *derivation, size_t i, int64_t *out)
{
    const tsr_value *value = tsr_node_input(derivation->node, i);
    return tsr__shapes_ints(derivation->shapes, value, out, 1) == 1;
}

int tsr__derive_rank(struct derivation *derivation, size_t i)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank < 0 || rank > DERIVE_MAX_RANK) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return -1;
    }
    return rank;
}

int tsr__derive_axis(struct derivation *derivation, const char *name, int64_t otherwise, int rank)
{
    if (rank < 0) // the derivation has already ended
        return -1;
    int axis = tsr__axis(tsr__derive_int(derivation, name, otherwise), rank);
    if (axis < 0)
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
    return axis;
}

bool tsr__derive_mark(struct derivation *derivation, int rank, const int64_t *axes, int64_t n,
                      bool *marked)
{
    for (int64_t i = 0; i < n; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0)
            return tsr__derive_none(derivation, DERIVE_NO_AXIS);
        marked[axis] = true;
    }
    return true;
}

int64_t tsr__onnx_opset(const tsr_node *node)
{
    return tsr__graph_opset(tsr_model_graph(tsr_graph_model(tsr_node_graph(node))), STR(""));
}

// ---- axes ---------------------------------------------------------------------------------------

// Reads the axes of a reduction: an attribute, or an input in later opsets. Returns their number, 0
// if none are given; -1: unknown.
static int64_t read_axes(const struct derivation *derivation, int64_t *out, int64_t cap)
{
    struct shape given = tsr__derive_in(derivation, 1);
    // An empty list is known by its shape, even if the input is not a constant.
    if (given.rank == 1 && given.dims[0].value == 0)
        return 0;
    int64_t n = tsr__derive_ints(derivation, "axes", 1, out, cap);
    return n == -2 ? 0 : n;
}

// Finds the axes of a reduction with keepdims: dimensions that became 1 were reduced, and the
// others must have kept their size; otherwise returns false. A size that was already 1 is treated
// as reduced, which makes no difference.
static bool find_kept(const struct derivation *derivation, struct shape x, struct shape y,
                      bool *reduced)
{
    if (y.rank != x.rank)
        return false;
    for (int i = 0; i < x.rank; i++) {
        reduced[i] = y.dims[i].value == 1;
        if (!reduced[i] && !same_size(derivation, x.dims[i], y.dims[i]))
            return false;
    }
    return true;
}

// Finds the axes of a reduction without keepdims. Matches the dimensions of the result with those
// of the input in order. The axes are known if matching from the front and from the end agree;
// otherwise returns false. Examples: from [2 3 4] to [2 4], the 3 was removed. From [2 3 3] to [2
// 3] it is ambiguous: matched from the front the first 3 remains; matched from the end, the second
// 3 remains.
static bool find_removed(const struct derivation *derivation, struct shape x, struct shape y,
                         bool *reduced)
{
    int first[DERIVE_MAX_RANK], k = 0;
    for (int i = 0; i < x.rank; i++) {
        reduced[i] = true;
        if (k < y.rank && same_size(derivation, x.dims[i], y.dims[k]))
            first[k++] = i;
    }
    if (k != y.rank)
        return false;
    for (int i = x.rank - 1; i >= 0 && k > 0; i--)
        if (same_size(derivation, x.dims[i], y.dims[k - 1])) {
            if (first[--k] != i)
                return false;
            reduced[i] = false;
        }
    return k == 0;
}

// Finds unknown axes from the shapes of input and result. False: the shapes are unknown or
// ambiguous.
static bool find_by_shapes(const struct derivation *derivation, bool *reduced)
{
    struct shape x = tsr__derive_in(derivation, 0), y = tsr__derive_result(derivation);
    if (x.rank < 0 || y.rank < 0 || y.rank > x.rank)
        return false;
    if (tsr__derive_int(derivation, "keepdims", 1))
        return find_kept(derivation, x, y, reduced);
    return find_removed(derivation, x, y, reduced);
}

// Builds the rule for axes that are unknown before the run. With keepdims the rule still gives the
// rank of the result.
static void unknown_axes(struct derivation *derivation, int rank)
{
    static const char why[] = "the axes are known only at run time: make them an initializer";
    if (tsr__derive_none_if(derivation, !tsr__derive_int(derivation, "keepdims", 1), why))
        return;
    tsr__rule_input(&derivation->rule);
    tsr__rule_any(&derivation->rule, rank);
    tsr__rule_inputs(&derivation->rule, "·?");
    tsr__rule_output(&derivation->rule);
    tsr__rule_any(&derivation->rule, rank);
    derivation->whole = why;
}

// Finds the reduced dimensions. Without axes all are reduced, unless noop_with_empty_axes is set.
bool tsr__reduce_axes(struct derivation *derivation, int rank, bool *reduced)
{
    int64_t axes[DERIVE_MAX_RANK];
    int64_t n = read_axes(derivation, axes, DERIVE_MAX_RANK);
    if (n < 0 && find_by_shapes(derivation, reduced))
        return true;
    if (n < 0) {
        unknown_axes(derivation, rank);
        return false;
    }
    for (int i = 0; i < rank; i++)
        reduced[i] = n == 0 && !tsr__derive_int(derivation, "noop_with_empty_axes", 0);
    return tsr__derive_mark(derivation, rank, axes, n, reduced);
}

// ---- reductions ---------------------------------------------------------------------------------

// How a reduced dimension behaves: FACTOR_RED with a combination, or FACTOR_STAT or FACTOR_REP.
struct reduced_kind {
    enum factor_kind kind;
    enum combine combine;
};

// Builds the rule of a reduction. Example: [d0 d1 d2] reduced along d1 with keepdims has the rule
// "[d0 d1 d2],·? -> [d0 1 d2]; red d1:sum".
static void build_reduction(struct rule_builder *rule, int rank, const bool *reduced, bool keep,
                            struct reduced_kind how)
{
    tsr__rule_marks(rule, rank, reduced);
    tsr__rule_text(rule, keep ? "[@],·? -> [@1]" : "[@],·? -> [@-]");
    for (int i = 0; i < rank; i++) {
        if (reduced[i] && how.kind == FACTOR_RED)
            tsr__rule_reduce(rule, tsr__rule_numbered(rule, 'd', i), how.combine);
        else if (reduced[i])
            tsr__rule_kind_range(rule, how.kind, 'd', i, i + 1);
    }
}

// Returns how the text of the row treats reduced dimensions: "red r:max" or "stat r".
static struct reduced_kind kind_in_row(const struct derivation *derivation)
{
    const struct pattern *row = tsr__pattern_of(derivation->shapes, derivation->text);
    for (int i = 0; row && i < row->n_letters; i++)
        if (row->letters[i].kind == FACTOR_RED)
            return (struct reduced_kind){FACTOR_RED, row->letters[i].combine};
    return (struct reduced_kind){.kind = stat_if(row != NULL)};
}

// Derives the rule of any reduction with a list of axes.
void tsr__derive_reduce(struct derivation *derivation)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0 || !tsr__reduce_axes(derivation, rank, reduced))
        return;
    bool keep = tsr__derive_int(derivation, "keepdims", 1) != 0;
    build_reduction(&derivation->rule, rank, reduced, keep, kind_in_row(derivation));
}

// Derives the rule of ArgMax and ArgMin. The largest (or smallest) elements of the shards must also
// be compared, so the node is expanded.
void tsr__derive_arg(struct derivation *derivation)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    reduced[axis] = true;
    bool keep = tsr__derive_int(derivation, "keepdims", 1) != 0;
    build_reduction(&derivation->rule, rank, reduced, keep,
                    (struct reduced_kind){.kind = FACTOR_STAT});
}

// Lists the axes of a reduction, counted from the front. Example: ArgMax along -2 of rank 3 gives
// *name "axis" and axes [1]; ReduceSum with [-1 0] as input 1 gives *name NULL and axes [2 0].
int tsr__rule_front_axes(const tsr_node *node, const struct shapes *shapes, const char **name,
                         int64_t *axes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    struct derivation derivation; // large: not cleared
    tsr__derivation_start(&derivation, NULL, node, shapes, NULL);
    int rank = tsr__derive_in(&derivation, 0).rank;
    int64_t n = 0;
    if (!row || rank < 0)
        return 0;
    if (row->derive == tsr__derive_arg) {
        *name = "axis";
        axes[n++] = tsr__derive_int(&derivation, "axis", 0);
    } else if (row->derive == tsr__derive_reduce) {
        *name = tsr__derive_has(&derivation, 1) ? NULL : "axes";
        n = read_axes(&derivation, axes, RULE_MAX_RANK);
    }
    bool negative = false;
    for (int64_t i = 0; i < n; i++) {
        negative |= axes[i] < 0;
        axes[i] = tsr__axis(axes[i], rank);
        if (axes[i] < 0)
            return 0;
    }
    return negative ? (int)n : 0;
}

// ---- global pools --------------------------------------------------------------------

// Derives the rule of global pools. All spatial dimensions become 1; batch and channels pass
// through.
void tsr__derive_global_pool(struct derivation *derivation)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    for (int i = 2; i < rank; i++)
        reduced[i] = true;
    build_reduction(&derivation->rule, rank, reduced, true, kind_in_row(derivation));
}
