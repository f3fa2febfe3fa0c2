// SPDX-License-Identifier: Apache-2.0
// derive_move.c - rules of operators that move data or look it up: which dimensions pass through
// untouched is decided by attributes and by small constant inputs.
//
// Letters d0, d1, ... are dimensions that pass through; "_" is one that the operator works on and
// that stays whole. What steers an operator and is not known leaves the node whole.
//
//   Flatten [2 3 4 5], axis 2        [d0 d1 d2 d3] -> [(d0 d1) (d2 d3)]
//   Tile [4 6], repeats 1 3          [d0 d1],· -> [d0 (t1 d1)]; rep t1
//   Squeeze [2 1 5], axes 1          [d0 1 d2],·? -> [d0 d2]
//   Expand [1 6] to [4 5 6]          [1 d2],· -> [g0 g1 d2]; shape 1; gen g0; gen g1
//   DepthToSpace [1 8 2 3], size 2   [n (p q c) h w] -> [n c (h p) (w q)]; rep p q
#include "rules/derive.h"

#define NOT_KNOWN "the shape of an input is not known"

// ---- what all of them ask ----------------------------------------------------------------------

static int64_t int_of(const struct derivation *derivation, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__attr_of(derivation->shapes, derivation->node, name), otherwise);
}

// Rank of an input that letters can be given to; -1 after tsr__derive_none.
static int rank_of(struct derivation *derivation, size_t i)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank < 0 || rank > RULE_MAX_FACTORS / 2) {
        tsr__derive_none(derivation, NOT_KNOWN);
        return -1;
    }
    return rank;
}

// One letter with its number, or a mark without one.
static void add_letter(struct derivation *derivation, const char *letter, int i)
{
    tsr__derive_add(derivation, "%s%d ", letter, i);
}

// "[d0 _ d2": dimensions of a tensor, marked ones as "_". The bracket stays open.
static void add_dims(struct derivation *derivation, int from, int to, const bool *marked)
{
    for (int i = from; i < to; i++) {
        if (marked && marked[i])
            tsr__derive_add(derivation, "_ ");
        else
            add_letter(derivation, "d", i);
    }
}

static bool same_dim(const struct derivation *derivation, tsr_dim a, tsr_dim b)
{
    return tsr__dim_equal(derivation->shapes->exprs, a, b);
}

#define MAX_RANK RULE_MAX_FACTORS

// ---- one axis or several are worked on ---------------------------------------------------------

// [..],hosts -> [..] with the marked dimensions whole.
static void marked_rule(struct derivation *derivation, int rank, const bool *marked,
                        const char *hosts)
{
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, marked);
    tsr__derive_add(derivation, "]%s -> [", hosts);
    add_dims(derivation, 0, rank, marked);
    tsr__derive_add(derivation, "]");
}

static bool mark_axes(struct derivation *derivation, int rank, const int64_t *axes, int64_t n,
                      bool *marked)
{
    for (int64_t i = 0; i < n; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(derivation, "the axis is not one of the input's");
            return false;
        }
        marked[axis] = true;
    }
    return true;
}

void tsr__derive_center_crop_pad(struct derivation *derivation)
{
    const int64_t *axes;
    bool marked[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    size_t n = tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "axes"), &axes);
    if (rank < 0)
        return;
    if (!n) {
        tsr__derive_none(derivation, "all dimensions are cropped or padded");
        return;
    }
    if (mark_axes(derivation, rank, axes, (int64_t)n, marked))
        marked_rule(derivation, rank, marked, ",·");
}

// Scales from the attribute or a constant input; -1: not known.
static int64_t scales_of(const struct derivation *derivation, float *out)
{
    struct shape_job job = {.shapes = (struct shapes *)derivation->shapes,
                            .node = derivation->node,
                            .n_in = (int)tsr_node_input_count(derivation->node)};
    int64_t n = tsr__attr_floats(tsr__attr_of(derivation->shapes, derivation->node, "scales"), out,
                                 MAX_RANK);
    if (n > 0)
        return n;
    const tsr_tensor *tensor =
        tsr__job_tensor(&job, tsr__node_opset(derivation->node) < 11 ? 1 : 2);
    const void *bytes;
    size_t size;
    n = tensor ? tsr_tensor_elements(tensor) : -1;
    if (n < 0 || n > MAX_RANK || tsr_tensor_dtype(tensor) != TSR_FLOAT ||
        tsr_tensor_data(tensor, &bytes, &size) != TSR_OK || size != (size_t)n * sizeof(float))
        return -1;
    memcpy(out, bytes, size);
    return n;
}

static bool text_is(const struct derivation *derivation, const char *name, const char *text)
{
    size_t n;
    const char *s = tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, name), &n);
    return s && str_is((struct str){s, n}, text);
}

// Dimensions that are resampled, perhaps to the same size: by a scale that is not known to be 1, to keep
// proportions, from a region, or because their size stands in a list of some axes.
static bool mark_resampled(struct derivation *derivation, int rank, bool *marked)
{
    float scales[MAX_RANK];
    const int64_t *axes;
    int64_t n_axes =
        (int64_t)tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "axes"), &axes);
    bool sizes = tsr__derive_has(derivation, 3),
         all = text_is(derivation, "coordinate_transformation_mode", "tf_crop_and_resize");
    int64_t n = sizes ? 0 : scales_of(derivation, scales);
    if (sizes)
        all = all || n_axes || text_is(derivation, "keep_aspect_ratio_policy", "not_smaller") ||
              text_is(derivation, "keep_aspect_ratio_policy", "not_larger");
    for (int64_t i = 0; i < (n_axes ? n_axes : rank); i++) {
        int64_t axis = n_axes ? axes[i] : i;
        bool one = sizes || (i < n && scales[i] == 1.0f);
        if ((all || !one) && !mark_axes(derivation, rank, &axis, 1, marked))
            return false;
    }
    return true;
}

// Every element is repeated so many times: each stands for itself. 0: it is not so.
static int64_t repeats(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    float scales[MAX_RANK];
    bool nearest = text_is(derivation, "mode", "nearest") ||
                   !tsr__attr_of(derivation->shapes, derivation->node, "mode");
    bool halves =
        text_is(derivation, "coordinate_transformation_mode", "half_pixel") ||
        !tsr__attr_of(derivation->shapes, derivation->node, "coordinate_transformation_mode");
    bool round = text_is(derivation, "nearest_mode", "round_prefer_floor") ||
                 text_is(derivation, "nearest_mode", "round_prefer_ceil") ||
                 !tsr__attr_of(derivation->shapes, derivation->node, "nearest_mode");
    bool floors = text_is(derivation, "coordinate_transformation_mode", "asymmetric") &&
                  text_is(derivation, "nearest_mode", "floor");
    bool plain = text_is(derivation, "keep_aspect_ratio_policy", "stretch") ||
                 !tsr__attr_of(derivation->shapes, derivation->node, "keep_aspect_ratio_policy");
    if (!nearest || !((halves && round) || floors) || !plain ||
        tsr__node_opset(derivation->node) < 11 ||
        tsr__attr_of(derivation->shapes, derivation->node, "axes") || from.value < 1 ||
        to.value < from.value || to.value % from.value)
        return 0;
    int64_t times = to.value / from.value;
    if (tsr__derive_has(derivation, 3))
        return times;
    if (dim < scales_of(derivation, scales) && scales[dim] == (float)times)
        return times;
    return 0;
}

// Elements of each side that a place is mixed of, where the size grows by a whole number; 0: it is not so.
static int64_t mixes(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const modes[] = {"half_pixel", "pytorch_half_pixel", "asymmetric"};
    float scales[MAX_RANK];
    int64_t sides = text_is(derivation, "mode", "cubic") ? 2 : 0;
    if (text_is(derivation, "mode", "linear"))
        sides = 1;
    bool known =
        !tsr__attr_of(derivation->shapes, derivation->node, "coordinate_transformation_mode");
    for (size_t i = 0; i < TSR_COUNT(modes); i++)
        known = known || text_is(derivation, "coordinate_transformation_mode", modes[i]);
    bool plain = text_is(derivation, "keep_aspect_ratio_policy", "stretch") ||
                 !tsr__attr_of(derivation->shapes, derivation->node, "keep_aspect_ratio_policy");
    if (!sides || !known || !plain || tsr__derive_int(derivation, "antialias", 0) ||
        tsr__node_opset(derivation->node) < 11 ||
        tsr__attr_of(derivation->shapes, derivation->node, "axes") || from.value < 1 ||
        from.value > INT32_MAX || to.value <= from.value || to.value % from.value)
        return 0;
    float times = (float)(to.value / from.value);
    bool scale = tsr__derive_has(derivation, 3) ||
                 (dim < scales_of(derivation, scales) && scales[dim] == times);
    return scale ? sides : 0;
}

// Windows of the mixed dimensions; the local node mixes at their ends too, which is trimmed off.
static void add_mixed(struct derivation *derivation, int rank, const int64_t *sides,
                      const int64_t *times, struct shape from, struct shape to)
{
    int window = 0;
    for (int i = 0; i < rank; i++)
        if (sides[i])
            tsr__derive_add(derivation, "; win 0 %d d%d %lld %lld 1 %lld %lld", i, i,
                            (long long)from.dims[i].value, (long long)from.dims[i].value,
                            (long long)-sides[i], (long long)(2 * sides[i] + 1));
    for (int i = 0; i < rank; i++)
        if (sides[i])
            tsr__derive_add(derivation, "; trim 0 %d %d %lld", i, window++, (long long)times[i]);
    if (!tsr__derive_has(derivation, 3))
        return;
    window = 0;
    tsr__derive_add(derivation, "; list 3");
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, " %lld", (long long)to.dims[i].value);
    for (int i = 0; i < rank; i++)
        if (sides[i])
            tsr__derive_add(derivation, "; put %d span %d %lld", i, window++, (long long)times[i]);
}

// Sizes of the dimensions that pass count the local part of them.
static void add_shares(struct derivation *derivation, int rank, const bool *marked,
                       const int64_t *sides)
{
    for (int i = 0; i < rank; i++)
        if (!marked[i] && !sides[i])
            tsr__derive_add(derivation, "; put %d share d%d", i, i);
}

static bool all_numbers(struct shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i].value < 0)
            return false;
    return shape.rank >= 0;
}

// Dimensions, marked ones as "_" or, where elements are repeated, as "d1" and "(d1 u1)".
static void add_resized(struct derivation *derivation, int rank, const bool *marked,
                        const int64_t *times, const int64_t *sides, bool out)
{
    for (int i = 0; i < rank; i++) {
        if (marked[i] && !times[i])
            tsr__derive_add(derivation, "_ ");
        else if (marked[i] && out)
            tsr__derive_add(derivation, "(d%d u%d) ", i, i);
        else if (marked[i] && sides[i])
            tsr__derive_add(derivation, "d%d^ ", i);
        else
            add_letter(derivation, "d", i);
    }
}

// A dimension that is not resampled passes. The sizes of the local node are its own.
void tsr__derive_resize(struct derivation *derivation)
{
    bool marked[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    const tsr_value *made =
        tsr_node_output_count(derivation->node) ? tsr_node_output(derivation->node, 0) : NULL;
    struct shape from = tsr__derive_in(derivation, 0);
    struct shape to = made ? tsr__shapes_of(derivation->shapes, made) : (struct shape){.rank = -1};
    if (rank < 0)
        return;
    if (to.rank != rank) {
        tsr__derive_none(derivation, "the new shape is not known");
        return;
    }
    for (int i = 0; i < rank; i++)
        marked[i] = !same_dim(derivation, from.dims[i], to.dims[i]);
    if (!mark_resampled(derivation, rank, marked))
        return;
    bool sizes = tsr__derive_has(derivation, 3),
         axes = tsr__attr_of(derivation->shapes, derivation->node, "axes") != NULL;
    int64_t times[MAX_RANK] = {0}, sides[MAX_RANK] = {0};
    bool mixed = false, numbers = !sizes || (all_numbers(from) && all_numbers(to));
    int n_known = derivation->arena ? rank : 0;
    for (int i = 0; i < n_known; i++) {
        times[i] = marked[i] ? repeats(derivation, i, from.dims[i], to.dims[i]) : 0;
        sides[i] =
            marked[i] && !times[i] && numbers ? mixes(derivation, i, from.dims[i], to.dims[i]) : 0;
        if (sides[i])
            times[i] = to.dims[i].value / from.dims[i].value;
        mixed = mixed || sides[i];
        if (times[i])
            tsr__derive_size(derivation, tsr__arena_printf(derivation->arena, "u%d", i),
                             (tsr_dim){times[i], ""});
    }
    tsr__derive_add(derivation, "[");
    add_resized(derivation, rank, marked, times, sides, false);
    tsr__derive_add(derivation, "],·?,·?,·? -> [");
    add_resized(derivation, rank, marked, times, sides, true);
    tsr__derive_add(derivation, "]");
    for (int i = 0; i < rank; i++)
        if (times[i])
            tsr__derive_add(derivation, "; rep u%d", i);
    if (mixed)
        add_mixed(derivation, rank, sides, times, from, to);
    if (mixed && sizes)
        add_shares(derivation, rank, marked, sides);
    else if (sizes && !axes)
        tsr__derive_add(derivation, "; shape 3");
}

// ---- shapes of shapes --------------------------------------------------------------------------

// ---- sizes
// ----------------------------------------------------------------------------------------------

// A value of a loop's body, where a symbol may stand for another size in each turn.
static bool made_in_loop(const tsr_value *value)
{
    const tsr_graph *graph = value ? tsr_value_graph(value) : NULL;
    struct control control;
    while (graph && tsr_graph_owner(graph)) {
        if (tsr__control_of(tsr_graph_owner(graph), &control) && control.loops)
            return true;
        graph = tsr_node_graph(tsr_graph_owner(graph));
    }
    return false;
}

// Sizes of the whole tensor are known without it: they are numbers, or follow from the sizes of the
// model's inputs.
static bool sizes_follow(struct derivation *derivation, int rank)
{
    struct shape shape = tsr__derive_in(derivation, 0);
    bool turns = made_in_loop(tsr_node_input(derivation->node, 0));
    for (int i = 0; i < rank; i++) {
        if (shape.dims[i].value >= 0)
            continue;
        struct expr size = tsr__expr_of(derivation->shapes->exprs, shape.dims[i]);
        if (turns || !tsr__expr_rooted(derivation->shapes->exprs, size)) {
            tsr__derive_none(derivation,
                             "sizes are those of the whole tensor, and not known without it");
            return false;
        }
    }
    return true;
}

void tsr__derive_shape(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    if (rank < 0 || !sizes_follow(derivation, rank))
        return;
    int64_t start = int_of(derivation, "start", 0), end = int_of(derivation, "end", rank);
    start = clamped(start < 0 ? start + rank : start, 0, rank);
    end = clamped(end < 0 ? end + rank : end, start, rank);
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "] -> ·; sizes 0 %d %d", (int)start, (int)end);
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "; drop d%d", i);
}

void tsr__derive_size_of(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    if (rank < 0 || !sizes_follow(derivation, rank))
        return;
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "] -> ·; size 0 0 %d", rank);
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "; drop d%d", i);
}

// Axes 1 of [2 1 5]: "[d0 1 d2],·? -> [d0 d2]". Without axes no rule is written: a device whose part
// of another dimension happens to have size 1 would drop that dimension too.
void tsr__derive_squeeze(struct derivation *derivation)
{
    int64_t axes[MAX_RANK];
    bool gone[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "axes", 1, axes, MAX_RANK);
    if (rank < 0)
        return;
    if (n < 0) {
        tsr__derive_none(derivation,
                         n == -2 ? "a part of size 1 would lose its dimension: give the axes"
                                 : "the axes that go are not known");
        return;
    }
    if (!mark_axes(derivation, rank, axes, n, gone))
        return;
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++) {
        if (gone[i])
            tsr__derive_add(derivation, "1 ");
        else
            add_letter(derivation, "d", i);
    }
    tsr__derive_add(derivation, "],·? -> [");
    for (int i = 0; i < rank; i++)
        if (!gone[i])
            add_letter(derivation, "d", i);
    tsr__derive_add(derivation, "]");
}

// Axes 1 of [2 5]: "[d0 d1],·? -> [d0 1 d1]". Axes count the dimensions of the result.
void tsr__derive_unsqueeze(struct derivation *derivation)
{
    int64_t axes[MAX_RANK];
    bool made[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0), at = 0;
    int64_t n = tsr__derive_ints(derivation, "axes", 1, axes, MAX_RANK);
    if (rank < 0)
        return;
    if (n < 0 || rank + n > MAX_RANK) {
        tsr__derive_none(derivation, "the axes that are made are not known");
        return;
    }
    if (!mark_axes(derivation, rank + (int)n, axes, n, made))
        return;
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "],·? -> [");
    for (int i = 0; i < rank + (int)n; i++) {
        if (made[i])
            tsr__derive_add(derivation, "1 ");
        else if (at < rank)
            add_letter(derivation, "d", at++);
    }
    tsr__derive_add(derivation, "]");
}

static void add_product(struct derivation *derivation, int from, int to)
{
    if (from == to)
        tsr__derive_add(derivation, "1 ");
    else
        tsr__derive_add(derivation, "(");
    add_dims(derivation, from, to, NULL);
    if (from != to)
        tsr__derive_add(derivation, ") ");
}

// A size that is 0 makes a product 0 whose other sizes nobody can tell from it: [0 8 n] is [0 1], and a part of the 8 is
// no part of the product.
static bool has_nothing(const struct derivation *derivation)
{
    struct shape in = tsr__derive_in(derivation, 0);
    for (int i = 0; i < in.rank; i++)
        if (in.dims[i].value == 0)
            return true;
    return false;
}

void tsr__derive_flatten(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    int64_t axis = int_of(derivation, "axis", 1);
    if (rank < 0)
        return;
    axis = axis < 0 ? axis + rank : axis;
    if (axis < 0 || axis > rank) {
        tsr__derive_none(derivation, "the axis is not one of the input's");
        return;
    }
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "] -> [");
    add_product(derivation, 0, (int)axis);
    add_product(derivation, (int)axis, rank);
    tsr__derive_add(derivation, "]");
    if (!has_nothing(derivation))
        return;
    tsr__derive_add(derivation, "; rep ");
    add_dims(derivation, 0, rank, NULL);
}

// A block of p x q places becomes channels, or the other way.
static bool block_sizes(struct derivation *derivation)
{
    int64_t size = int_of(derivation, "blocksize", 0);
    if (tsr__derive_in(derivation, 0).rank != 4 || size < 1) {
        tsr__derive_none(derivation, size < 1 ? "the block size is not known" : NOT_KNOWN);
        return false;
    }
    tsr__derive_size(derivation, STR("p"), (tsr_dim){size, ""});
    tsr__derive_size(derivation, STR("q"), (tsr_dim){size, ""});
    return true;
}

void tsr__derive_depth_to_space(struct derivation *derivation)
{
    size_t n;
    const char *mode =
        tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, "mode"), &n);
    if (!block_sizes(derivation))
        return;
    bool crd = mode && str_is((struct str){mode, n}, "CRD");
    if (crd)
        derivation->text = "[n (c p q) h w] -> [n c (h p) (w q)]; rep p q";
    else
        derivation->text = "[n (p q c) h w] -> [n c (h p) (w q)]; rep p q";
}

void tsr__derive_space_to_depth(struct derivation *derivation)
{
    if (block_sizes(derivation))
        derivation->text = "[n c (h p) (w q)] -> [n (p q c) h w]; rep p q";
}

// What becomes of one dimension of an Expand: it stays 1, is made, passes through, or (where none of
// that can be proved) stays whole.
static char expand_kind(const struct derivation *derivation, struct shape from, struct shape to,
                        int i)
{
    int k = i - (to.rank - from.rank);
    tsr_dim here = k < 0 ? (tsr_dim){1, ""} : from.dims[k];
    if (here.value == 1)
        return to.dims[i].value == 1 ? '1' : 'g';
    return same_dim(derivation, here, to.dims[i]) ? 'd' : '_';
}

static void add_expanded(struct derivation *derivation, char kind, int i)
{
    const char text[] = {kind, 0};
    if (kind == 'd' || kind == 'g')
        add_letter(derivation, text, i);
    else
        tsr__derive_add(derivation, "%s ", text);
}

// [1 6] to [4 5 6]: dimensions are aligned from the right, so `fresh` is 1. What the operator makes
// has a letter g that no input has; devices make their own part of it.
void tsr__derive_expand(struct derivation *derivation)
{
    const tsr_value *made =
        tsr_node_output_count(derivation->node) ? tsr_node_output(derivation->node, 0) : NULL;
    struct shape from = tsr__derive_in(derivation, 0);
    struct shape to = made ? tsr__shapes_of(derivation->shapes, made) : (struct shape){.rank = -1};
    int rank = rank_of(derivation, 0), fresh = to.rank - rank;
    if (rank < 0)
        return;
    if (fresh < 0 || to.rank > MAX_RANK) {
        tsr__derive_none(derivation, "the new shape is not known");
        return;
    }
    tsr__derive_add(derivation, "[");
    for (int i = fresh; i < to.rank; i++) {
        char kind = expand_kind(derivation, from, to, i);
        add_expanded(derivation, kind == 'g' ? '1' : kind, i);
    }
    tsr__derive_add(derivation, "],· -> [");
    for (int i = 0; i < to.rank; i++)
        add_expanded(derivation, expand_kind(derivation, from, to, i), i);
    tsr__derive_add(derivation, "]; shape 1");
    for (int i = 0; i < to.rank; i++)
        if (expand_kind(derivation, from, to, i) == 'g')
            tsr__derive_add(derivation, "; gen g%d", i);
}

#define MAX_REPEATED 8 // dimensions

// Repeats are made: a device makes those of its part. Of 2 x 6 repeats, each device of 3 makes 2 x 2.
static void add_repeats(struct derivation *derivation, int rank, const int64_t *times)
{
    static const char *const names[MAX_REPEATED] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"};
    for (int i = 0; i < rank; i++)
        if (times[i] > 1) {
            tsr__derive_add(derivation, "; gen t%d", i);
            tsr__derive_size(derivation, str_of(names[i]), (tsr_dim){times[i], ""});
        }
    if (!derivation->n_sizes)
        return;
    tsr__derive_add(derivation, "; list 1");
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, " %lld", (long long)times[i]);
    for (int i = 0; i < rank; i++)
        if (times[i] > 1)
            tsr__derive_add(derivation, "; put %d share t%d", i, i);
}

// [4 6] with repeats 1 3: "[d0 d1],· -> [d0 (t1 d1)]; gen t1; list 1 1 3; put 1 share t1". The copies t stand outermost: a part of
// d1 in the result is 3 separate stretches, each of them a local copy; a part of t1 is fewer copies.
void tsr__derive_tile(struct derivation *derivation)
{
    int64_t times[MAX_REPEATED];
    int rank = rank_of(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "", 1, times, MAX_REPEATED);
    if (rank < 0)
        return;
    if (n != rank) {
        tsr__derive_none(derivation, "the numbers of repeats are not known");
        return;
    }
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "],· -> [");
    for (int i = 0; i < rank; i++) {
        if (times[i] < 1) {
            tsr__derive_none(derivation, "a dimension has no elements");
            return;
        }
        if (times[i] == 1)
            add_letter(derivation, "d", i);
        else
            tsr__derive_add(derivation, "(t%d d%d) ", i, i);
    }
    tsr__derive_add(derivation, "]");
    add_repeats(derivation, rank, times);
}
