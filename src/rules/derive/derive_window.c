// SPDX-License-Identifier: Apache-2.0
// derive_window.c - rules of Concat, Split, Slice and Pad.
//
// If all sizes are known, the dimension that the operator changes can be sharded too: shards need
// windows of the input (struct rule_window), which neighbours exchange, and the local node has
// other bounds. Otherwise it is "_". Letters d0, d1, ... are dimensions that pass through.
//
//   Slice 2:8:2 of [2 10] takes elements 2, 4 and 6:
//     [d0 t1^],·,·,·?,·? -> [d0 t1]     window: step 2, shift 2: position j needs element 2 * j + 2
//     Of 3 shards, shard 1 gets element 4 alone; its node slices 0:BIG:2, all that it has.
//
//   Concat of [2 4] and [2 8] along 1:
//     [d0 t1^]… -> [d0 t1]              windows: of input 0 shift 0, of input 1 shift -4
//     Of 2 shards, shard 0 makes 0..5: it needs 0..3 of the first input and 0..1 of the second;
//     shard 1 makes 6..11: it needs nothing of the first input and 2..7 of the second.
//
//   The same Concat with strided shards, r = gcd(4, 8) = 4, which exchange nothing:
//     [d0 (p0 r)],[d0 (p1 r)] -> [d0 (p r)]; rep p p0 p1         p0 = 1, p1 = 2, p = 3
//     Of 2 shards, shard 0 has elements 0..1, 4..5 and 8..9 of the result.
#include "rules/derive/derive.h"

#define MAX_RANK RULE_MAX_FACTORS
#define BIG      INT64_MAX

// One dimension. marked: the operator changes it. window: its window is known; the other fields are
// those of struct rule_window.
struct worked {
    bool marked, window;
    int64_t from, to, step, shift;
};

// Adds the dimensions of a tensor, such as "d0 _ t2": d passes through, t is changed and has a
// window, "_" is changed and has no window.
static void add_dims(struct rule_builder *rule, int rank, const struct worked *worked,
                     enum dim_mark mark)
{
    for (int i = 0; i < rank; i++) {
        if (!worked[i].marked)
            tsr__rule_dim(rule, 'd', i);
        else if (!worked[i].window)
            tsr__rule_any(rule, 1);
        else
            tsr__rule_marked_dim(rule, 't', i, mark);
    }
}

// Adds the windows of input 0, in the order of the dimensions.
static void add_windows(struct rule_builder *rule, int rank, const struct worked *worked)
{
    for (int i = 0; i < rank; i++)
        if (worked[i].marked && worked[i].window)
            tsr__rule_window(rule, (struct rule_window){.dim = i,
                                                        .factor = tsr__rule_numbered(rule, 't', i),
                                                        .from = worked[i].from,
                                                        .to = worked[i].to,
                                                        .step = worked[i].step,
                                                        .shift = worked[i].shift,
                                                        .reach = 1});
}

// Returns the index of the window of dimension `dim`.
static int window_at(const struct worked *worked, int dim)
{
    int n = 0;
    for (int i = 0; i < dim; i++)
        n += worked[i].marked && worked[i].window;
    return n;
}

// ---- Concat and Split --------------------------------------------------------------------------

// Reads the sizes of the axis in all tensors of one side. Returns their sum; -1: a size is unknown
// or 0, or there are more than `cap` tensors.
static int64_t sizes_along(const struct derivation *derivation, enum side side, int rank, int axis,
                           int64_t *sizes, size_t cap)
{
    int64_t sum = 0;
    for (size_t i = 0; i < side_count(derivation->node, side); i++) {
        struct shape shape =
            tsr__shapes_of(derivation->shapes, value_at(derivation->node, side, i));
        if (i >= cap || shape.rank != rank || shape.dims[axis].value < 1 ||
            !add_ok(sum, shape.dims[axis].value, &sum))
            return -1;
        sizes[i] = shape.dims[axis].value;
    }
    return sum;
}

#define MAX_JOINED 48 // most tensors of a Concat or Split whose axis can be sharded

// Derives the rule of Concat. Each input has a window, which is shifted by the sizes of the inputs
// before it. The axis is sharded only if these sizes are known and there are at most MAX_JOINED
// inputs.
void tsr__derive_concat(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0)
        return;
    int64_t total = -1;
    if (!derivation->shapes_only)
        total = sizes_along(derivation, SIDE_IN, rank, axis, sizes, MAX_JOINED);
    w[axis] = (struct worked){.marked = true, .window = total > 0};
    tsr__rule_input(rule);
    add_dims(rule, rank, w, DIM_WINDOW);
    tsr__rule_variadic(rule);
    tsr__rule_output(rule);
    add_dims(rule, rank, w, DIM_PLAIN);
    if (total <= 0)
        return;
    for (size_t i = 0; i < tsr_node_input_count(derivation->node); i++) {
        tsr__rule_window(rule, (struct rule_window){.input = (int)i,
                                                    .dim = axis,
                                                    .factor = tsr__rule_numbered(rule, 't', axis),
                                                    .from = sizes[i],
                                                    .to = total,
                                                    .step = 1,
                                                    .shift = -before,
                                                    .reach = 1});
        before += sizes[i];
    }
}

// Adds the sizes of a Split's outputs: an attribute before opset 13, input 1 since.
static void add_split_sizes(struct derivation *derivation, const int64_t *sizes, size_t n)
{
    if (tsr__node_opset(derivation->node) < 13)
        tsr__rule_list(&derivation->rule, NO_INPUT, "split", sizes, (int64_t)n);
    else
        tsr__rule_list(&derivation->rule, 1, NULL, sizes, (int64_t)n);
}

// Derives the rule of Split. The sizes of the outputs come from an attribute or an input; by
// default they are equal. The axis is sharded only if they are known and there are at most
// MAX_JOINED outputs.
void tsr__derive_split(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    size_t n = tsr_node_output_count(derivation->node);
    struct shape shape = tsr__derive_in(derivation, 0);
    int64_t total = -1;
    if (!derivation->shapes_only)
        total = sizes_along(derivation, SIDE_OUT, rank, axis, sizes, MAX_JOINED);
    w[axis] =
        (struct worked){.marked = true, .window = total > 0 && shape.dims[axis].value == total};
    tsr__rule_input(rule);
    add_dims(rule, rank, w, DIM_WINDOW);
    tsr__rule_inputs(rule, "·?");
    tsr__rule_output(rule);
    add_dims(rule, rank, w, DIM_WINDOW);
    tsr__rule_variadic(rule);
    if (!w[axis].window)
        return;
    tsr__derive_numbered_size(derivation, 't', axis, dim_of(total));
    for (size_t i = 0; i < n; i++) {
        tsr__rule_window(rule, (struct rule_window){.dim = axis,
                                                    .factor = tsr__rule_numbered(rule, 't', axis),
                                                    .from = total,
                                                    .to = sizes[i],
                                                    .step = 1,
                                                    .shift = before,
                                                    .reach = 1});
        before += sizes[i];
    }
    add_split_sizes(derivation, sizes, n);
    for (size_t i = 0; i < n; i++)
        tsr__rule_patch(rule, (int)i, PATCH_SIZE, (int)i, 0);
    tsr__rule_unset(rule, "num_outputs");
}

// Returns the greatest common divisor of the sizes.
static int64_t common_unit(const int64_t *sizes, size_t n)
{
    int64_t unit = 0;
    for (size_t i = 0; i < n; i++)
        for (int64_t a = sizes[i]; a;) {
            int64_t rest = unit % a;
            unit = a;
            a = rest;
        }
    return unit;
}

#define ALL_SEGMENTS (-1) // stands for the tensor that has all segments

// Adds the dimensions of a segment: "d0 (p1 r)" for segment 1, which has `units` times r elements
// along the axis.
static void add_strided(struct derivation *derivation, int rank, int axis, int segment,
                        int64_t units)
{
    struct rule_builder *rule = &derivation->rule;
    bool all = segment == ALL_SEGMENTS;
    if (all)
        tsr__derive_size(derivation, "p", units);
    else
        tsr__derive_numbered_size(derivation, 'p', segment, dim_of(units));
    for (int i = 0; i < rank; i++) {
        if (i != axis) {
            tsr__rule_dim(rule, 'd', i);
            continue;
        }
        int p = all ? tsr__rule_letter(rule, STR("p")) : tsr__rule_numbered(rule, 'p', segment);
        tsr__rule_product(rule, (int[]){p, tsr__rule_letter(rule, STR("r"))}, 2);
    }
}

// A Concat or Split in which each shard has an equal share of every segment. All sizes along the
// axis are multiples of r, and only r is sharded. One segment is (p0 r), the tensor of all segments
// (p r).
struct strided {
    int rank, axis;
    size_t n;                  // segments
    int64_t sizes[MAX_JOINED]; // sizes along the axis
    int64_t unit;              // r, which divides all sizes
    int64_t units;             // p of the tensor that has all segments
};

// Reads the segments. `side` is the one with several tensors. False: sizes are unknown, have no
// common divisor above 1, or do not sum to the size of the axis. Then the derivation has ended.
static bool read_strided(struct derivation *derivation, enum side side, struct strided *strided)
{
    // defaults of Concat and Split
    static const int64_t default_axis[] = {[SIDE_IN] = 1, [SIDE_OUT] = 0};
    int64_t total = -1;
    *strided = (struct strided){.n = side_count(derivation->node, side)};
    strided->rank = tsr__derive_rank(derivation, 0);
    strided->axis = tsr__derive_axis(derivation, "axis", default_axis[side], strided->rank);
    if (strided->axis >= 0)
        total =
            sizes_along(derivation, side, strided->rank, strided->axis, strided->sizes, MAX_JOINED);
    if (total > 0)
        strided->unit = common_unit(strided->sizes, strided->n);
    bool divides =
        side == SIDE_IN ||
        (strided->axis >= 0 && tsr__derive_in(derivation, 0).dims[strided->axis].value == total);
    if (strided->unit < 2 || strided->n < 2 || !divides)
        return tsr__derive_none(derivation, "the segments have no common unit");
    strided->units = total / strided->unit;
    tsr__derive_size(derivation, "r", strided->unit);
    return true;
}

// Adds one tensor for each segment.
static void add_segments(struct derivation *derivation, const struct strided *strided,
                         enum side side)
{
    for (size_t i = 0; i < strided->n; i++) {
        tsr__rule_tensor(&derivation->rule, side);
        add_strided(derivation, strided->rank, strided->axis, (int)i,
                    strided->sizes[i] / strided->unit);
    }
}

// Marks the factors p as not sharded: only r is sharded.
static void keep_segments(struct rule_builder *rule, size_t n)
{
    tsr__rule_kind(rule, FACTOR_REP, "p");
    tsr__rule_kind_range(rule, FACTOR_REP, 'p', 0, (int)n);
}

// Derives the strided rule of Concat, as in the example at the start of this file.
void tsr__derive_concat_strided(struct derivation *derivation)
{
    struct strided strided;
    if (!read_strided(derivation, SIDE_IN, &strided))
        return;
    add_segments(derivation, &strided, SIDE_IN);
    tsr__rule_output(&derivation->rule);
    add_strided(derivation, strided.rank, strided.axis, ALL_SEGMENTS, strided.units);
    keep_segments(&derivation->rule, strided.n);
}

// Derives the strided rule of Split, in which only factor r is sharded. Example: [2 12] is split
// into sizes 4 and 8. Their greatest common divisor is r = 4, so the axis has p = 3 times r
// elements, and the outputs have p0 = 1 and p1 = 2 times r. The rule is "[d0 (p r)],·? -> [d0 (p0
// r)], [d0 (p1 r)]". With 2 shards, each device has outputs of sizes 2 and 4.
void tsr__derive_split_strided(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct strided strided;
    if (!read_strided(derivation, SIDE_OUT, &strided))
        return;
    tsr__rule_input(rule);
    add_strided(derivation, strided.rank, strided.axis, ALL_SEGMENTS, strided.units);
    tsr__rule_inputs(rule, "·?");
    add_segments(derivation, &strided, SIDE_OUT);
    keep_segments(rule, strided.n);
    add_split_sizes(derivation, strided.sizes, strided.n);
    for (size_t i = 0; i < strided.n; i++)
        tsr__rule_patch_count(rule, (int)i, tsr__rule_find(rule, STR("r")));
    tsr__rule_unset(rule, "num_outputs");
}

// ---- Slice -------------------------------------------------------------------------------------

struct ranges {
    int64_t axes[MAX_RANK], start[MAX_RANK], end[MAX_RANK], step[MAX_RANK];
    int64_t n;
    bool known; // all lists except axes are known
};

// True if the range takes all of a dimension, which then passes through.
static bool takes_all(const struct ranges *ranges, int64_t i, tsr_dim dim)
{
    return ranges->known && ranges->start[i] == 0 && ranges->step[i] == 1 &&
           (ranges->end[i] >= INT32_MAX || (dim.value >= 0 && ranges->end[i] >= dim.value));
}

// Returns the window of the elements that a range takes from a dimension. Example: 8:2:-2 of 10
// takes elements 8, 6 and 4; the window has shift 8, step -2, to 3.
static struct worked range_of(const struct ranges *ranges, int64_t i, int64_t size)
{
    struct worked worked = {.marked = true, .from = size, .step = ranges->step[i]};
    if (!ranges->known || size < 1 || !worked.step || worked.step < -size || worked.step > size)
        return worked;
    bool back = ranges->step[i] < 0;
    int64_t start = clamped(from_front(ranges->start[i], size), 0, size - back);
    int64_t end = clamped(from_front(ranges->end[i], size), -(int64_t)back, size);
    int64_t span = end - start, each = worked.step;
    if (back) {
        span = start - end;
        each = -worked.step;
    }
    if (span > 0)
        worked.to = (span + each - 1) / each;
    worked.shift = start;
    worked.window = worked.to > 0;
    return worked;
}

#define NOT_GIVEN (-2) // result of tsr__derive_ints

// Lists the axes of a Slice that gives none: one for each of the first dimensions. Their number is
// n_start, or the size of input 1 if the starts are unknown.
static void first_axes(const struct derivation *derivation, int rank, int64_t n_start,
                       struct ranges *ranges)
{
    struct shape of = tsr__derive_in(derivation, 1);
    ranges->n = -1;
    if (n_start >= 0)
        ranges->n = n_start;
    else if (of.rank == 1)
        ranges->n = of.dims[0].value;
    if (ranges->n > rank)
        ranges->n = -1;
    for (int64_t i = 0; i < ranges->n; i++)
        ranges->axes[i] = i;
}

// Reads starts and ends, which are attributes in old opsets and inputs later. The default step is
// 1. False: the sliced axes are unknown, and the derivation has ended.
static bool read_ranges(struct derivation *derivation, int rank, struct ranges *ranges)
{
    int64_t n_start = tsr__derive_ints(derivation, "starts", 1, ranges->start, MAX_RANK);
    int64_t n_end = tsr__derive_ints(derivation, "ends", 2, ranges->end, MAX_RANK);
    int64_t n_step = NOT_GIVEN;
    if (tsr__derive_has(derivation, 4))
        n_step = tsr__derive_ints(derivation, "", 4, ranges->step, MAX_RANK);
    ranges->n = tsr__derive_ints(derivation, "axes", 3, ranges->axes, MAX_RANK);
    if (ranges->n == NOT_GIVEN)
        first_axes(derivation, rank, n_start, ranges);
    ranges->known =
        n_start == ranges->n && n_end == ranges->n && (n_step == NOT_GIVEN || n_step == ranges->n);
    if (n_step == NOT_GIVEN)
        for (int64_t i = 0; i < ranges->n; i++)
            ranges->step[i] = 1;
    if (ranges->n < 0)
        tsr__derive_none(derivation,
                         "the sliced axes are known only at run time: make them an initializer");
    return ranges->n >= 0;
}

// Patches the bounds of the local node: a dimension with a window uses the entire window. bounds[1]
// is for negative steps.
static void patch_bounds(struct rule_builder *rule, const struct ranges *ranges,
                         const struct worked *worked, const int64_t bounds[2])
{
    for (int64_t i = 0; i < ranges->n; i++) {
        int axis = (int)ranges->axes[i];
        if (worked[axis].marked && worked[axis].window)
            tsr__rule_patch(rule, (int)i, PATCH_VALUE, window_at(worked, axis),
                            bounds[ranges->step[i] < 0]);
    }
}

// Adds the bounds: inputs 1 to 4, or attributes in old opsets, which have no steps.
static void add_bounds(struct derivation *derivation, const struct ranges *ranges,
                       const struct worked *worked)
{
    static const int64_t starts[] = {0, -1}, ends[] = {BIG, -BIG};
    struct rule_builder *rule = &derivation->rule;
    bool inputs = tsr__derive_has(derivation, 1);
    tsr__rule_list(rule, inputs ? 1 : NO_INPUT, "starts", ranges->start, ranges->n);
    patch_bounds(rule, ranges, worked, starts);
    tsr__rule_list(rule, inputs ? 2 : NO_INPUT, "ends", ranges->end, ranges->n);
    patch_bounds(rule, ranges, worked, ends);
    tsr__rule_list(rule, inputs ? 3 : NO_INPUT, "axes", ranges->axes, ranges->n);
    if (inputs)
        tsr__rule_list(rule, 4, NULL, ranges->step, ranges->n);
}

// Derives the rule of Slice. A sliced dimension has a window if its size and range are known, and
// the local node uses all elements of its window. Without a window it is not sharded.
void tsr__derive_slice(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct ranges ranges;
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(derivation, 0), windows = 0;
    if (rank < 0 || !read_ranges(derivation, rank, &ranges))
        return;
    struct shape shape = tsr__derive_in(derivation, 0);
    for (int64_t i = 0; i < ranges.n; i++) {
        int axis = tsr__axis(ranges.axes[i], rank);
        if (tsr__derive_none_if(derivation, axis < 0, DERIVE_NO_AXIS))
            return;
        ranges.axes[i] = axis;
        int64_t size = derivation->shapes_only ? -1 : shape.dims[axis].value;
        if (!takes_all(&ranges, i, shape.dims[axis]))
            w[axis] = range_of(&ranges, i, size);
        windows += w[axis].window;
    }
    tsr__rule_input(rule);
    add_dims(rule, rank, w, DIM_WINDOW);
    if (tsr__derive_has(derivation, 1))
        tsr__rule_inputs(rule, "·,·,·?,·?");
    tsr__rule_output(rule);
    add_dims(rule, rank, w, DIM_PLAIN);
    add_windows(rule, rank, w);
    if (windows)
        add_bounds(derivation, &ranges, w);
}

// ---- Pad ---------------------------------------------------------------------------------------

static bool pads_with_constant(const struct derivation *derivation)
{
    size_t n;
    const tsr_attr *mode = tsr__derive_attr(derivation, "mode");
    return !tsr_attr_string(mode, &n) || tsr__derive_text_is(derivation, "mode", "constant");
}

// Pads of a node: axis axes[i] has pads[i] before it and pads[n_axes + i] after it. n: number of
// pads, -1: unknown.
struct padding {
    const char *name; // name of the attribute in old opsets
    int64_t axes[MAX_RANK], n_axes;
    int64_t pads[2 * MAX_RANK], n;
};

// Reads the pads. Without axes all dimensions are padded. False: unknown, and the derivation has
// ended.
static bool read_padding(struct derivation *derivation, int rank, struct padding *padding)
{
    padding->name = "pads";
    if (tsr__derive_attr(derivation, "paddings"))
        padding->name = "paddings";
    padding->n = tsr__derive_ints(derivation, padding->name, 1, padding->pads, 2 * MAX_RANK);
    padding->n_axes = NOT_GIVEN;
    if (tsr__derive_has(derivation, 3))
        padding->n_axes = tsr__derive_ints(derivation, "", 3, padding->axes, MAX_RANK);
    if (padding->n_axes == NOT_GIVEN) {
        padding->n_axes = rank;
        for (int i = 0; i < rank; i++)
            padding->axes[i] = i;
    }
    if (padding->n_axes < 0 || (padding->n >= 0 && padding->n != 2 * padding->n_axes))
        return tsr__derive_none(
            derivation, "the padded axes are known only at run time: make them an initializer");
    for (int64_t i = 0; i < padding->n_axes; i++) {
        padding->axes[i] = tsr__axis(padding->axes[i], rank);
        if (padding->axes[i] < 0)
            return tsr__derive_none(derivation, DERIVE_NO_AXIS);
    }
    return true;
}

// Returns the window of the dimension that entry i pads.
static struct worked padded(const struct derivation *derivation, const struct padding *padding,
                            int64_t i)
{
    struct worked at = {.marked = true, .from = -1, .step = 1};
    if (!derivation->shapes_only && padding->n >= 0)
        at.from = tsr__derive_in(derivation, 0).dims[padding->axes[i]].value;
    if (at.from < 1 || !pads_with_constant(derivation))
        return at;
    int64_t before = padding->pads[i], behind = padding->pads[padding->n_axes + i];
    if (!add_ok(at.from, before, &at.to) || !add_ok(at.to, behind, &at.to) || before <= -at.from)
        return at;
    at.shift = -before;
    at.window = at.to > 0;
    return at;
}

// Derives the rule of Pad. Example: [2 10] with pads 0 1 0 3 becomes [2 14]. The rule is "[d0
// t1^],· -> [d0 t1]"; the window has from 10, to 14, shift -1. Only the first shard has a pad at
// its start, and only the last shards have pads at their end. Reflected or repeated edges need
// elements from other shards, so such axes are not sharded.
void tsr__derive_pad(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct padding padding;
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(derivation, 0), windows = 0;
    if (rank < 0 || !read_padding(derivation, rank, &padding))
        return;
    for (int64_t i = 0; i < padding.n_axes; i++) {
        if (padding.n >= 0 && !padding.pads[i] && !padding.pads[padding.n_axes + i])
            continue;
        w[padding.axes[i]] = padded(derivation, &padding, i);
        windows += w[padding.axes[i]].window;
    }
    bool inputs = tsr__derive_has(derivation, 1);
    tsr__rule_input(rule);
    add_dims(rule, rank, w, DIM_WINDOW);
    if (inputs)
        tsr__rule_inputs(rule, "·,·?,·?");
    tsr__rule_output(rule);
    add_dims(rule, rank, w, DIM_PLAIN);
    add_windows(rule, rank, w);
    if (!windows)
        return;
    tsr__rule_list(rule, inputs ? 1 : NO_INPUT, padding.name, padding.pads, padding.n);
    for (int64_t i = 0; i < padding.n_axes; i++) {
        int axis = (int)padding.axes[i];
        if (!w[axis].marked || !w[axis].window)
            continue;
        tsr__rule_patch(rule, (int)i, PATCH_BEFORE, window_at(w, axis), 0);
        tsr__rule_patch(rule, (int)(padding.n_axes + i), PATCH_AFTER, window_at(w, axis), 0);
    }
}
