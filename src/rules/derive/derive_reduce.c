// SPDX-License-Identifier: Apache-2.0
// derive_reduce.c - rules of operators that reduce dimensions away, and what derive functions
// share.
//
// A reduced dimension may be cut where the pieces of the result combine by a plain sum, product,
// least or greatest. Means, roots and logarithms come after the combination: there the dimension is
// `stat`, and a node that cuts it is replaced (expand_reduce.c).
//
//   ReduceSum of [2 3 4] along 1     [d0 d1 d2],· -> [d0 d2]; red d1:sum
//   ReduceMean of the same           [d0 d1 d2] -> [d0 d2]; stat d1
#include "rules/derive/derive.h"

// ---- shared -------------------------------------------------------------------------------------

// As tsr__job_int, for those who have a derivation: attributes of a function's body may be the
// call's.
int64_t tsr__derive_int(const struct derivation *derivation, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__attr_of(derivation->shapes, derivation->node, name), otherwise);
}

bool tsr__derive_text_is(const struct derivation *derivation, const char *name, const char *text)
{
    size_t n;
    const char *found =
        tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, name), &n);
    return found && str_is((struct str){found, n}, text);
}

bool tsr__derive_has(const struct derivation *derivation, size_t i)
{
    return input_at(derivation->node, i) != NULL;
}

struct shape tsr__derive_result(const struct derivation *derivation)
{
    return tsr__shapes_of(derivation->shapes, output_at(derivation->node, 0));
}

// Later opsets moved many attributes to inputs: the input wins where it is given.
// -2: neither given as input nor as attribute; -1: given and not known, or too many.
int64_t tsr__derive_ints(const struct derivation *derivation, const char *name, size_t i,
                         int64_t *out, int64_t cap)
{
    const int64_t *list;
    const tsr_attr *attr = tsr__attr_of(derivation->shapes, derivation->node, name);
    if (tsr__derive_has(derivation, i))
        return tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, i), out, cap);
    if (!attr)
        return -2;
    int64_t n = (int64_t)tsr_attr_ints(attr, &list);
    for (int64_t k = 0; k < int64_min(n, cap); k++)
        out[k] = list[k];
    if (n > cap)
        return -1;
    return n;
}

// -1 after saying why there is no rule.
int tsr__derive_rank(struct derivation *derivation, size_t i)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank < 0 || rank > DERIVE_MAX_RANK) {
        tsr__derive_none(derivation, DERIVE_NO_SHAPE);
        return -1;
    }
    return rank;
}

// From the front, whatever the sign; -1 after saying why.
int tsr__derive_axis(struct derivation *derivation, const char *name, int64_t otherwise, int rank)
{
    if (rank < 0) // the caller has reported it
        return -1;
    int axis = tsr__axis(tsr__derive_int(derivation, name, otherwise), rank);
    if (axis < 0)
        tsr__derive_none(derivation, DERIVE_NO_AXIS);
    return axis;
}

// "d0 d1 d2 " for 'd', 0, 3: dimensions of a tensor whose rank the node decides.
void tsr__derive_letters(struct derivation *derivation, char letter, int from, int to)
{
    for (int i = from; i < to; i++)
        tsr__derive_add(derivation, "%c%d ", letter, i);
}

// The standard's own domain has two spellings.
int64_t tsr__onnx_opset(const tsr_node *node)
{
    const tsr_model *model = tsr_graph_model(tsr_node_graph(node));
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        if (!tsr_model_opset_domain(model, i)[0] ||
            strcmp(tsr_model_opset_domain(model, i), "ai.onnx") == 0)
            return tsr_model_opset_version(model, i);
    return 0;
}

// "stat" only where the expansion can be written: the model's opset has its operators, and they
// take the type. Else the factor is "rep", whole.
const char *tsr__derive_stat(const struct derivation *derivation, int64_t opset,
                             enum expand_types types)
{
    tsr_dtype t = tsr__derive_in(derivation, 0).dtype;
    bool is_float = t == TSR_FLOAT || t == TSR_DOUBLE || t == TSR_FLOAT16 || t == TSR_BFLOAT16;
    bool is_number = t == TSR_INT32 || t == TSR_INT64;
    bool fits = is_float || (is_number && types == EXPAND_NUMBERS);
    if (fits && tsr__onnx_opset(derivation->node) >= opset)
        return "stat";
    return "rep";
}

const char *tsr__derive_stat_if(bool holds, const struct derivation *derivation, int64_t opset,
                                enum expand_types types)
{
    if (!holds)
        return "rep";
    return tsr__derive_stat(derivation, opset, types);
}

// ---- axes ---------------------------------------------------------------------------------------

// The axes of a reduction: an attribute, or (later) an input. Count, or -1: not known.
static int64_t read_axes(const struct derivation *derivation, int64_t *out, int64_t cap)
{
    const int64_t *list;
    struct shape given = tsr__derive_in(derivation, 1);
    // An empty list is known by its shape, even where the input is no constant.
    if (given.rank == 1 && given.dims[0].value == 0)
        return 0;
    if (tsr__derive_has(derivation, 1))
        return tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, 1), out, cap);
    size_t n = tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "axes"), &list);
    if ((int64_t)n > cap)
        return -1;
    for (size_t i = 0; i < n; i++)
        out[i] = list[i];
    return (int64_t)n;
}

// Dimensions stay: those that became 1 were reduced, the others must be as they were.
// A size that was 1 before counts as reduced; that changes nothing.
static bool kept_tell(const struct derivation *derivation, struct shape x, struct shape y,
                      bool *reduced)
{
    if (y.rank != x.rank)
        return false;
    for (int i = 0; i < x.rank; i++) {
        reduced[i] = y.dims[i].value == 1;
        if (!reduced[i] && !tsr__dim_equal(derivation->shapes->exprs, x.dims[i], y.dims[i]))
            return false;
    }
    return true;
}

// Dimensions are removed: those of the result are matched with the input's, in order; known if
// matching from both ends gives the same. [2 3 4] to [2 4]: 3 was removed. [2 3 3] to [2 3]: from
// the front the first 3 stays, from the end the second; ambiguous.
static bool left_tell(const struct derivation *derivation, struct shape x, struct shape y,
                      bool *reduced)
{
    int first[DERIVE_MAX_RANK], k = 0;
    for (int i = 0; i < x.rank; i++) {
        reduced[i] = true;
        if (k < y.rank && tsr__dim_equal(derivation->shapes->exprs, x.dims[i], y.dims[k]))
            first[k++] = i;
    }
    if (k != y.rank)
        return false;
    for (int i = x.rank - 1; i >= 0 && k > 0; i--)
        if (tsr__dim_equal(derivation->shapes->exprs, x.dims[i], y.dims[k - 1])) {
            if (first[--k] != i)
                return false;
            reduced[i] = false;
        }
    return k == 0;
}

// Axes that are not known, but input and result say which they are.
static bool shapes_tell(const struct derivation *derivation, bool *reduced)
{
    struct shape x = tsr__derive_in(derivation, 0), y = tsr__derive_result(derivation);
    if (x.rank < 0 || y.rank < 0 || y.rank > x.rank)
        return false;
    if (tsr__derive_int(derivation, "keepdims", 1))
        return kept_tell(derivation, x, y, reduced);
    return left_tell(derivation, x, y, reduced);
}

// Axes that only the run will tell: the rank is known if dimensions are kept.
static void axes_open(struct derivation *derivation, int rank)
{
    const char *why = "the axes are not known before the run";
    if (!tsr__derive_int(derivation, "keepdims", 1)) {
        tsr__derive_none(derivation, why);
        return;
    }
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "_ ");
    tsr__derive_add(derivation, "],·? -> [");
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "_ ");
    tsr__derive_add(derivation, "]");
    derivation->whole = why;
}

// No axes means all of them, unless noop_with_empty_axes. Axes that are not known may follow from
// the shapes of input and result.
bool tsr__reduce_axes(struct derivation *derivation, int rank, bool *reduced)
{
    int64_t axes[DERIVE_MAX_RANK];
    int64_t n = read_axes(derivation, axes, DERIVE_MAX_RANK);
    if (n < 0 && shapes_tell(derivation, reduced))
        return true;
    if (n < 0) {
        axes_open(derivation, rank);
        return false;
    }
    for (int i = 0; i < rank; i++)
        reduced[i] = n == 0 && !tsr__derive_int(derivation, "noop_with_empty_axes", 0);
    for (int64_t i = 0; i < n; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(derivation, DERIVE_NO_AXIS);
            return false;
        }
        reduced[axis] = true;
    }
    return true;
}

// ---- reductions ---------------------------------------------------------------------------------

// The rule of a reduction of those dimensions; clause "red" takes the combination with it.
// [d0 d1 d2] without d1, kept: "[d0 d1 d2 ],·? -> [d0 1 d2 ]; red d1:sum".
static void reduce_text(struct derivation *derivation, int rank, const bool *reduced, bool keep,
                        const char *clause, const char *combine)
{
    bool any = false;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],·? -> [");
    for (int i = 0; i < rank; i++) {
        if (!reduced[i])
            tsr__derive_add(derivation, "d%d ", i);
        else if (keep)
            tsr__derive_add(derivation, "1 ");
        any = any || reduced[i];
    }
    tsr__derive_add(derivation, "]");
    if (any)
        tsr__derive_add(derivation, "; %s", clause);
    for (int i = 0; i < rank; i++)
        if (reduced[i])
            tsr__derive_add(derivation, " d%d%s", i, combine);
}

// For all reductions that take axes; where they cannot be known the rule is that of axes_open.
static void reduce(struct derivation *derivation, const char *clause, const char *combine)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0 || !tsr__reduce_axes(derivation, rank, reduced))
        return;
    reduce_text(derivation, rank, reduced, tsr__derive_int(derivation, "keepdims", 1) != 0, clause,
                combine);
}

void tsr__derive_reduce_sum(struct derivation *derivation)
{
    reduce(derivation, "red", ":sum");
}

void tsr__derive_reduce_max(struct derivation *derivation)
{
    reduce(derivation, "red", ":max");
}

void tsr__derive_reduce_min(struct derivation *derivation)
{
    reduce(derivation, "red", ":min");
}

void tsr__derive_reduce_prod(struct derivation *derivation)
{
    reduce(derivation, "red", ":prod");
}

// Something comes after the sum.
void tsr__derive_reduce_stat(struct derivation *derivation)
{
    reduce(derivation, tsr__derive_stat(derivation, 11, EXPAND_FLOATS), "");
}

void tsr__derive_reduce_mean(struct derivation *derivation)
{
    reduce(derivation, tsr__derive_stat(derivation, 11, EXPAND_NUMBERS), "");
}

// Places of the greatest: in parts they need the part's greatest too, so the node is taken apart.
void tsr__derive_arg(struct derivation *derivation)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    reduced[axis] = true;
    reduce_text(derivation, rank, reduced, tsr__derive_int(derivation, "keepdims", 1) != 0,
                tsr__derive_stat(derivation, 11, EXPAND_NUMBERS), "");
}

// Rows whose axes are a list; ArgMax and ArgMin have one axis as an attribute.
static bool is_reduction(derive_fn derive)
{
    return derive == tsr__derive_reduce_sum || derive == tsr__derive_reduce_max ||
           derive == tsr__derive_reduce_min || derive == tsr__derive_reduce_prod ||
           derive == tsr__derive_reduce_stat || derive == tsr__derive_reduce_mean;
}

// ArgMax along -2 of rank 3: "axis", [1]. ReduceSum with [-1 0] as input 1: NULL, [2 0]. How many
// there are if one of them is negative, else 0 (rules.h says who needs them).
int tsr__rule_front_axes(const tsr_node *node, const struct shapes *shapes, const char **name,
                         int64_t *axes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    struct derivation derivation = {.node = node, .shapes = shapes};
    int rank = tsr__derive_in(&derivation, 0).rank;
    int64_t n = 0;
    if (!row || rank < 0)
        return 0;
    if (row->derive == tsr__derive_arg) {
        *name = "axis";
        axes[n++] = tsr__derive_int(&derivation, "axis", 0);
    } else if (is_reduction(row->derive)) {
        *name = "axes";
        if (tsr__derive_has(&derivation, 1))
            *name = NULL;
        n = read_axes(&derivation, axes, RULE_MAX_RANK);
    }
    bool negative = false;
    for (int64_t i = 0; i < n; i++) {
        negative |= axes[i] < 0;
        axes[i] = tsr__axis(axes[i], rank);
        if (axes[i] < 0)
            return 0;
    }
    if (!negative)
        return 0;
    return (int)n;
}

// ---- pools over all of space --------------------------------------------------------------------

// Space becomes 1 in every dimension; batch and channels pass.
static void global_pool(struct derivation *derivation, const char *clause, const char *combine)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    for (int i = 2; i < rank; i++)
        reduced[i] = true;
    reduce_text(derivation, rank, reduced, true, clause, combine);
}

void tsr__derive_global_pool(struct derivation *derivation)
{
    global_pool(derivation, tsr__derive_stat(derivation, 11, EXPAND_FLOATS), "");
}

void tsr__derive_global_max_pool(struct derivation *derivation)
{
    global_pool(derivation, "red", ":max");
}
