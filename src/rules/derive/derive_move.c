// SPDX-License-Identifier: Apache-2.0
// derive_move.c - rules of operators that move data or look it up: which dimensions pass through
// untouched is decided by attributes and by small constant inputs.
//
// Letters d0, d1, ... are dimensions that pass through; "_" is one that the operator works on and
// that stays whole. What steers an operator and is not known leaves the node whole.
//
//   Flatten [2 3 4 5], axis 2        [d0 d1 d2 d3] -> [(d0 d1) (d2 d3)]
//   Tile [4 6], repeats 1 3          [d0 d1],· -> [d0 (t1 d1)]; gen t1; list 1 1 3; put 1 share t1
//   Squeeze [2 1 5], axes 1          [d0 1 d2],·? -> [d0 d2]
//   Expand [1 6] to [4 5 6]          [1 d2],· -> [g0 g1 d2]; shape 1; gen g0; gen g1
//   DepthToSpace [1 8 2 3], size 2   [n (p q c) h w] -> [n c (h p) (w q)]; rep p q
#include "rules/derive/derive.h"

#define NOT_KNOWN "the shape of an input is not known"

// ---- what all of them ask ----------------------------------------------------------------------

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
// The number is that of the dimension, so that letters of several tensors meet.
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

// Both known, and equal as expressions.
static bool same_dim(const struct derivation *derivation, tsr_dim a, tsr_dim b)
{
    return tsr__dim_equal(derivation->shapes->exprs, a, b);
}

#define MAX_RANK RULE_MAX_FACTORS

// ---- one axis or several are worked on ---------------------------------------------------------

// [..],hosts -> [..] with the marked dimensions whole.
// `hosts`: small inputs behind the first, ",·".
static void marked_rule(struct derivation *derivation, int rank, const bool *marked,
                        const char *hosts)
{
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, marked);
    tsr__derive_add(derivation, "]%s -> [", hosts);
    add_dims(derivation, 0, rank, marked);
    tsr__derive_add(derivation, "]");
}

// Marks axes of a tensor of that rank; false: one of them is invalid, and the derivation has ended.
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

// Axes 2 3 of [n c h w]: "[d0 d1 _ _],· -> [d0 d1 _ _]". What is cropped or padded lies around the
// middle of the whole.
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
    // Only the first opsets have the attribute.
    if (n > 0)
        return n;
    int scales = 2;
    if (tsr__node_opset(derivation->node) < 11) // no input for a region yet
        scales = 1;
    const tsr_tensor *tensor = tsr__job_tensor(&job, scales);
    const void *bytes;
    size_t size;
    if (!tensor)
        return -1;
    n = tsr_tensor_elements(tensor);
    if (n < 0 || n > MAX_RANK || tsr_tensor_dtype(tensor) != TSR_FLOAT ||
        !tsr__tensor_peek(tensor, &bytes, &size) || size != (size_t)n * sizeof(float))
        return -1;
    memcpy(out, bytes, size);
    return n;
}

// Dimensions that are resampled, perhaps to the same size: by a scale that may not be 1, to keep
// proportions, from a region, or because their size is in a list of some axes.
static bool mark_resampled(struct derivation *derivation, int rank, bool *marked)
{
    float scales[MAX_RANK];
    const int64_t *axes;
    int64_t n_axes =
        (int64_t)tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "axes"), &axes);
    bool sizes = tsr__derive_has(derivation, 3),
         all = tsr__derive_text_is(derivation, "coordinate_transformation_mode",
                                   "tf_crop_and_resize");
    int64_t n = 0;
    if (!sizes)
        n = scales_of(derivation, scales);
    else
        all = all || n_axes ||
              tsr__derive_text_is(derivation, "keep_aspect_ratio_policy", "not_smaller") ||
              tsr__derive_text_is(derivation, "keep_aspect_ratio_policy", "not_larger");
    int64_t count = rank;
    if (n_axes)
        count = n_axes;
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = i;
        if (n_axes)
            axis = axes[i];
        // A scale of exactly 1 copies. Of sizes the caller has compared old and new already.
        bool one = sizes || (i < n && scales[i] == 1.0f);
        if ((all || !one) && !mark_axes(derivation, rank, &axis, 1, marked))
            return false;
    }
    return true;
}

// The attribute has one of these texts, or is left out, which means the first.
static bool is_usual_or(const struct derivation *derivation, const char *name,
                        const char *const *texts, size_t n)
{
    if (!tsr__attr_of(derivation->shapes, derivation->node, name))
        return true;
    for (size_t i = 0; i < n; i++)
        if (tsr__derive_text_is(derivation, name, texts[i]))
            return true;
    return false;
}

// The integer factor between the old and the new size, by sizes or scale, which must agree; 0: not
// an integer, or sizes are given in a form that is not supported.
static int64_t whole_scale(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const policies[] = {"stretch"};
    float scales[MAX_RANK];
    if (!is_usual_or(derivation, "keep_aspect_ratio_policy", policies, TSR_COUNT(policies)) ||
        tsr__node_opset(derivation->node) < 11 ||
        tsr__attr_of(derivation->shapes, derivation->node, "axes") || from.value < 1 ||
        to.value < from.value || to.value % from.value)
        return 0;
    // With sizes the ratio is theirs; a scale must be that number, since 2.9 would round to other
    // places.
    int64_t times = to.value / from.value;
    bool agrees = tsr__derive_has(derivation, 3) ||
                  (dim < scales_of(derivation, scales) && scales[dim] == (float)times);
    if (!agrees)
        return 0;
    return times;
}

// The number of times that every element is repeated, so that elements are independent; 0:
// otherwise. Nearest with these roundings takes element i for positions i*times .. i*times + times
// - 1 only.
static int64_t repeats(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const modes[] = {"nearest"}, *const centres[] = {"half_pixel"};
    static const char *const rounds[] = {"round_prefer_floor", "round_prefer_ceil"};
    bool halves =
        is_usual_or(derivation, "coordinate_transformation_mode", centres, TSR_COUNT(centres)) &&
        is_usual_or(derivation, "nearest_mode", rounds, TSR_COUNT(rounds));
    bool floors = tsr__derive_text_is(derivation, "coordinate_transformation_mode", "asymmetric") &&
                  tsr__derive_text_is(derivation, "nearest_mode", "floor");
    if (!is_usual_or(derivation, "mode", modes, TSR_COUNT(modes)) || (!halves && !floors))
        return 0;
    return whole_scale(derivation, dim, from, to);
}

// Elements of each side that a place is mixed of, where the size grows by a whole number; 0: it is
// not so. Linear mixing reads the neighbour on one side or the other, so one on each side is lent;
// cubic mixing reads two.
static int64_t mixes(const struct derivation *derivation, int dim, tsr_dim from, tsr_dim to)
{
    static const char *const centres[] = {"half_pixel", "pytorch_half_pixel", "asymmetric"};
    if (!is_usual_or(derivation, "coordinate_transformation_mode", centres, TSR_COUNT(centres)) ||
        tsr__derive_int(derivation, "antialias", 0) || from.value > INT32_MAX ||
        whole_scale(derivation, dim, from, to) < 2)
        return 0;
    if (tsr__derive_text_is(derivation, "mode", "linear"))
        return 1;
    if (tsr__derive_text_is(derivation, "mode", "cubic"))
        return 2;
    return 0;
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
    // With scales the local node finds its sizes itself; sizes are numbers of the whole and are
    // replaced.
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

// Windows need numbers in every dimension.
static bool all_numbers(struct shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i].value < 0)
            return false;
    return shape.rank >= 0;
}

// Dimensions, marked ones as "_" or, where elements are repeated, as "d1" and "(d1 u1)".
static void add_resized(struct derivation *derivation, int rank, const bool *marked,
                        const int64_t *times, const int64_t *sides, enum side side)
{
    for (int i = 0; i < rank; i++) {
        if (marked[i] && !times[i])
            tsr__derive_add(derivation, "_ ");
        else if (marked[i] && side == SIDE_OUT)
            tsr__derive_add(derivation, "(d%d u%d) ", i, i);
        else if (marked[i] && sides[i])
            tsr__derive_add(derivation, "d%d^ ", i);
        else
            add_letter(derivation, "d", i);
    }
}

// How the marked dimensions of a Resize are made, each of `times` elements for one: repeated, or
// (sides) mixed. 0: in a way that cannot be cut. False: none is mixed.
static bool read_resized(struct derivation *derivation, int rank, const bool *marked,
                         int64_t *times, int64_t *sides)
{
    struct shape from = tsr__derive_in(derivation, 0), to = tsr__derive_result(derivation);
    bool numbers = !tsr__derive_has(derivation, 3) || (all_numbers(from) && all_numbers(to));
    bool mixed = false;
    for (int i = 0; i < rank; i++) {
        if (!marked[i])
            continue;
        times[i] = repeats(derivation, i, from.dims[i], to.dims[i]);
        if (!times[i] && numbers)
            sides[i] = mixes(derivation, i, from.dims[i], to.dims[i]);
        if (sides[i])
            times[i] = to.dims[i].value / from.dims[i].value;
        mixed = mixed || sides[i];
        if (times[i])
            tsr__derive_size(derivation, tsr__arena_printf(derivation->arena, "u%d", i),
                             (tsr_dim){times[i], ""});
    }
    return mixed;
}

// A dimension that is not resampled passes. The sizes of the local node are its own.
//
//   [4 6] to [4 18], nearest   [d0 d1],·?,·?,·? -> [d0 (d1 u1)]; rep u1          u1 3
//   the same, linear           [d0 d1^],·?,·?,·? -> [d0 (d1 u1)]; rep u1; win 0 1 d1 6 6 1 -1 3;
//                              trim 0 1 0 3
//
// Linear, in 2 parts: part 1 makes places 9..17 of elements 3..5, and is lent element 2 for the
// mixing; of the 12 places that its node makes of 4 elements, the first 3 are trimmed off.
void tsr__derive_resize(struct derivation *derivation)
{
    bool marked[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    struct shape from = tsr__derive_in(derivation, 0), to = tsr__derive_result(derivation);
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
    bool mixed = derivation->arena && read_resized(derivation, rank, marked, times, sides);
    tsr__derive_add(derivation, "[");
    add_resized(derivation, rank, marked, times, sides, SIDE_IN);
    tsr__derive_add(derivation, "],·?,·?,·? -> [");
    add_resized(derivation, rank, marked, times, sides, SIDE_OUT);
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

// ---- sizes -------------------------------------------------------------------------------------

// A value of a loop's body, where a symbol may stand for another size in each turn.
// Also of bodies inside a loop's body, at any depth.
static bool made_in_loop(const tsr_value *value)
{
    struct control control;
    if (!value)
        return false;
    const tsr_graph *graph = tsr_value_graph(value);
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

// [n 3 8 8], start 1: "[d0 d1 d2 d3] -> ·; sizes 0 1 4; drop d0; ...": the result is the same on
// all devices, whatever part each has.
void tsr__derive_shape(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    if (rank < 0 || !sizes_follow(derivation, rank))
        return;
    int64_t start = tsr__derive_int(derivation, "start", 0),
            end = tsr__derive_int(derivation, "end", rank);
    start = clamped(from_front(start, rank), 0, rank);
    end = clamped(from_front(end, rank), start, rank);
    tsr__derive_add(derivation, "[");
    add_dims(derivation, 0, rank, NULL);
    tsr__derive_add(derivation, "] -> ·; sizes 0 %d %d", (int)start, (int)end);
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "; drop d%d", i);
}

// The same with the product of all sizes as one number.
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

// Axes 1 of [2 1 5]: "[d0 1 d2],·? -> [d0 d2]". Without axes no rule is written: a device whose
// part of another dimension happens to have size 1 would drop that dimension too.
void tsr__derive_squeeze(struct derivation *derivation)
{
    int64_t axes[MAX_RANK];
    bool gone[MAX_RANK] = {false};
    int rank = rank_of(derivation, 0);
    int64_t n = tsr__derive_ints(derivation, "axes", 1, axes, MAX_RANK);
    if (rank < 0)
        return;
    if (n == -2) {
        tsr__derive_none(derivation, "a part of size 1 would lose its dimension: give the axes");
        return;
    }
    if (n < 0) {
        tsr__derive_none(derivation, "the axes that go are not known");
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
// The axis counts in the result, so negative ones depend on how many there are.
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

// "(d0 d1) "; no dimensions at all are one of size 1.
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

// A size of 0 makes the product 0, from which the other sizes cannot be inferred: [0 8 n] is [0 1],
// and a part of the 8 is not a part of the product.
static bool has_nothing(const struct derivation *derivation)
{
    struct shape in = tsr__derive_in(derivation, 0);
    for (int i = 0; i < in.rank; i++)
        if (in.dims[i].value == 0)
            return true;
    return false;
}

// [2 3 4 5] along 2: "[d0 d1 d2 d3] -> [(d0 d1) (d2 d3)]"; along 0: "-> [1 (d0 d1 d2 d3)]".
void tsr__derive_flatten(struct derivation *derivation)
{
    int rank = rank_of(derivation, 0);
    int64_t axis = tsr__derive_int(derivation, "axis", 1);
    if (rank < 0)
        return;
    axis = from_front(axis, rank);
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
// Sizes of p and q, which no dimension has alone. False after saying why.
static bool block_sizes(struct derivation *derivation)
{
    int64_t size = tsr__derive_int(derivation, "blocksize", 0);
    if (size < 1) {
        tsr__derive_none(derivation, "the block size is not known");
        return false;
    }
    if (tsr__derive_in(derivation, 0).rank != 4) {
        tsr__derive_none(derivation, NOT_KNOWN);
        return false;
    }
    tsr__derive_size(derivation, STR("p"), (tsr_dim){size, ""});
    tsr__derive_size(derivation, STR("q"), (tsr_dim){size, ""});
    return true;
}

// Which factors of the channels are outermost decides the mode: DCR (the default) or CRD.
void tsr__derive_depth_to_space(struct derivation *derivation)
{
    if (!block_sizes(derivation))
        return;
    if (tsr__derive_text_is(derivation, "mode", "CRD"))
        derivation->text = "[n (c p q) h w] -> [n c (h p) (w q)]; rep p q";
    else
        derivation->text = "[n (p q c) h w] -> [n c (h p) (w q)]; rep p q";
}

void tsr__derive_space_to_depth(struct derivation *derivation)
{
    if (block_sizes(derivation))
        derivation->text = "[n c (h p) (w q)] -> [n (p q c) h w]; rep p q";
}

// What becomes of one dimension of an Expand: it stays 1, is made, passes through, or (where none
// of that can be proved) stays whole.
static char expand_kind(const struct derivation *derivation, struct shape from, struct shape to,
                        int i)
{
    int k = i - (to.rank - from.rank);
    bool one = k < 0 || from.dims[k].value == 1;
    if (one && to.dims[i].value == 1)
        return '1';
    if (one)
        return 'g';
    if (same_dim(derivation, from.dims[k], to.dims[i]))
        return 'd';
    return '_';
}

// '1' and '_' have no number.
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
    struct shape from = tsr__derive_in(derivation, 0), to = tsr__derive_result(derivation);
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
        if (kind == 'g') // the input has one element of what is made here
            kind = '1';
        add_expanded(derivation, kind, i);
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

// Repeats are made: a device makes those of its part. Of 2 x 6 repeats, each device of 3 makes 2 x
// 2.
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

// [4 6] with repeats 1 3: "[d0 d1],· -> [d0 (t1 d1)]; gen t1; list 1 1 3; put 1 share t1". The
// copies t stand outermost: a part of d1 in the result is 3 separate stretches, each of them a
// local copy; a part of t1 is fewer copies.
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
        // Repeated 0 times nothing is left, and no part of it.
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
