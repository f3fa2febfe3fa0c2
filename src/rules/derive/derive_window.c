// SPDX-License-Identifier: Apache-2.0
// derive_window.c - rules of operators that join, divide, crop or pad dimensions.
//
// Where all sizes are numbers, the dimension that is worked on may be cut too: its parts need
// windows of the input (struct rule_window), which neighbours exchange, and the local node has
// other bounds. Else it stays whole: "_". Letters d0, d1, ... are dimensions that pass through.
//
//   Slice 2:8:2 of [2 10] takes elements 2, 4 and 6:
//     [d0 t1^],·,·,·?,·? -> [d0 t1]; win 0 1 t1 10 3 2 2 1     place j needs element 2 * j + 2
//     Of 3 parts, part 1 gets element 4 alone; its node slices 0:BIG:2, all that it got.
//
//   Concat of [2 4] and [2 8] along 1:
//     [d0 t1^]… -> [d0 t1]; win 0 1 t1 4 12 1 0 1; win 1 1 t1 8 12 1 -4 1
//     Of 2 parts, part 0 makes 0..5: it needs 0..3 of the first input and 0..1 of the second;
//     part 1 makes 6..11: it needs nothing of the first input and 2..7 of the second.
//
//   The same Concat with strided parts, r = gcd(4, 8) = 4, which exchange nothing:
//     [d0 (p0 r)],[d0 (p1 r)] -> [d0 (p r)]; rep p p0 p1         p0 = 1, p1 = 2, p = 3
//     Of 2 parts, part 0 has elements 0..1, 4..5 and 8..9 of the result.
#include "rules/derive/derive.h"

#define MAX_RANK RULE_MAX_FACTORS
#define BIG      INT64_MAX

// One dimension that is worked on, as a window of step, shift and size `to` sees it.
struct worked {
    bool marked, window;
    int64_t from, to, step, shift;
};

// "[d0 _ t2^": dimensions of a tensor. The bracket stays open.
static void add_dims(struct derivation *derivation, int rank, const struct worked *worked,
                     const char *mark)
{
    for (int i = 0; i < rank; i++) {
        if (!worked[i].marked)
            tsr__derive_add(derivation, "d%d ", i);
        else if (!worked[i].window)
            tsr__derive_add(derivation, "_ ");
        else
            tsr__derive_add(derivation, "t%d%s ", i, mark);
    }
}

static void add_numbers(struct derivation *derivation, const char *name, const int64_t *v,
                        int64_t n)
{
    tsr__derive_add(derivation, "; list %s", name);
    for (int64_t i = 0; i < n; i++)
        tsr__derive_add(derivation, " %lld", (long long)v[i]);
}

// Windows of input 0, in the order of the dimensions.
static void add_windows(struct derivation *derivation, int rank, struct worked *worked)
{
    for (int i = 0; i < rank; i++)
        if (worked[i].marked && worked[i].window)
            tsr__derive_add(derivation, "; win 0 %d t%d %lld %lld %lld %lld 1", i, i,
                            (long long)worked[i].from, (long long)worked[i].to,
                            (long long)worked[i].step, (long long)worked[i].shift);
}

// Number of the window of that dimension.
static int window_at(const struct worked *worked, int dim)
{
    int n = 0;
    for (int i = 0; i < dim; i++)
        n += worked[i].marked && worked[i].window;
    return n;
}

// ---- joining and dividing ----------------------------------------------------------------------

// Sizes of the axis in all tensors of one side: their sum; -1: not all are numbers above 0.
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

#define MAX_JOINED 48 // tensors whose parts are exchanged

// Input i is a window of the result that begins where the inputs before it end.
void tsr__derive_concat(struct derivation *derivation)
{
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 1, rank);
    if (axis < 0)
        return;
    int64_t total = -1;
    if (derivation->arena)
        total = sizes_along(derivation, SIDE_IN, rank, axis, sizes, MAX_JOINED);
    w[axis] = (struct worked){.marked = true, .window = total > 0};
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]… -> [");
    add_dims(derivation, rank, w, "");
    tsr__derive_add(derivation, "]");
    if (total <= 0)
        return;
    for (size_t i = 0; i < tsr_node_input_count(derivation->node); i++) {
        tsr__derive_add(derivation, "; win %d %d t%d %lld %lld 1 %lld 1", (int)i, axis, axis,
                        (long long)sizes[i], (long long)total, (long long)-before);
        before += sizes[i];
    }
}

// "; list split 4 8": the sizes of a Split's outputs, which are an attribute before opset 13, input
// 1 since.
static void add_split_sizes(struct derivation *derivation, const int64_t *sizes, size_t n)
{
    const char *name = "1";
    if (tsr__node_opset(derivation->node) < 13)
        name = "split";
    add_numbers(derivation, name, sizes, (int64_t)n);
}

// The sizes of the parts are an attribute, an input, or equal.
void tsr__derive_split(struct derivation *derivation)
{
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    size_t n = tsr_node_output_count(derivation->node);
    struct shape shape = tsr__derive_in(derivation, 0);
    int64_t total = -1;
    if (derivation->arena)
        total = sizes_along(derivation, SIDE_OUT, rank, axis, sizes, MAX_JOINED);
    w[axis] =
        (struct worked){.marked = true, .window = total > 0 && shape.dims[axis].value == total};
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "],·? -> [");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]…");
    if (!w[axis].window)
        return;
    tsr__derive_size(derivation, tsr__arena_printf(derivation->arena, "t%d", axis),
                     (tsr_dim){total, ""});
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(derivation, "; win 0 %d t%d %lld %lld 1 %lld 1", axis, axis,
                        (long long)total, (long long)sizes[i], (long long)before);
        before += sizes[i];
    }
    add_split_sizes(derivation, sizes, n);
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(derivation, "; put %d size %d", (int)i, (int)i);
    tsr__derive_add(derivation, "; unset num_outputs");
}

// The same with equal shares of every segment: all sizes are multiples of r, which alone is cut.
// "(p0 r)" is one of several such tensors, "(p r)" the one that has them all.
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

#define ALL_PARTS (-1) // of the tensor that has them all

// "[d0 (p1 r)]": one of several tensors, which has that many units along the axis.
static void add_strided(struct derivation *derivation, int rank, int axis, int part, int64_t units)
{
    struct str letter = STR("p");
    if (part != ALL_PARTS)
        letter = tsr__arena_printf(derivation->arena, "p%d", part);
    tsr__derive_size(derivation, letter, (tsr_dim){units, ""});
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++) {
        if (i == axis)
            tsr__derive_add(derivation, "(%s r) ", text_or_none(letter.p));
        else
            tsr__derive_add(derivation, "d%d ", i);
    }
    tsr__derive_add(derivation, "]");
}

// What Concat joins, or Split divides, in equal shares.
struct strided {
    int rank, axis;
    size_t n;                  // tensors
    int64_t sizes[MAX_JOINED]; // along the axis
    int64_t unit;              // that all sizes are multiples of: r
    int64_t units;             // of them all: p
};

// False: sizes are not known, or have nothing in common. side: where there are several tensors.
static bool read_strided(struct derivation *derivation, enum side side, struct strided *strided)
{
    static const int64_t usual_axis[] = {[SIDE_IN] = 1, [SIDE_OUT] = 0}; // of Concat, of Split
    int64_t total = -1;
    *strided = (struct strided){.n = side_count(derivation->node, side)};
    strided->rank = tsr__derive_rank(derivation, 0);
    strided->axis = tsr__derive_axis(derivation, "axis", usual_axis[side], strided->rank);
    if (strided->axis >= 0)
        total =
            sizes_along(derivation, side, strided->rank, strided->axis, strided->sizes, MAX_JOINED);
    if (total > 0)
        strided->unit = common_unit(strided->sizes, strided->n);
    bool divides =
        side == SIDE_IN ||
        (strided->axis >= 0 && tsr__derive_in(derivation, 0).dims[strided->axis].value == total);
    if (strided->unit < 2 || strided->n < 2 || !divides) {
        tsr__derive_none(derivation, "the segments have no common unit");
        return false;
    }
    strided->units = total / strided->unit;
    tsr__derive_size(derivation, STR("r"), (tsr_dim){strided->unit, ""});
    return true;
}

// The several tensors, one after the other.
static void add_segments(struct derivation *derivation, const struct strided *strided)
{
    for (size_t i = 0; i < strided->n; i++) {
        tsr__derive_add(derivation, "%s", text_if(i > 0, ","));
        add_strided(derivation, strided->rank, strided->axis, (int)i,
                    strided->sizes[i] / strided->unit);
    }
}

// The number of units of a tensor is never sharded: only r, which all have in common, is.
static void keep_segments(struct derivation *derivation, size_t n)
{
    tsr__derive_add(derivation, "; rep p");
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(derivation, " p%d", (int)i);
}

// The strided Concat of the head of this file.
void tsr__derive_concat_strided(struct derivation *derivation)
{
    struct strided strided;
    if (!read_strided(derivation, SIDE_IN, &strided))
        return;
    add_segments(derivation, &strided);
    tsr__derive_add(derivation, " -> ");
    add_strided(derivation, strided.rank, strided.axis, ALL_PARTS, strided.units);
    keep_segments(derivation, strided.n);
}

// [2 12] into 4 and 8, r = 4: "[d0 (p r)],·? -> [d0 (p0 r)],[d0 (p1 r)]" with p 3, p0 1, p1 2; in 2
// parts the sizes are 2 and 4.
void tsr__derive_split_strided(struct derivation *derivation)
{
    struct strided strided;
    if (!read_strided(derivation, SIDE_OUT, &strided))
        return;
    add_strided(derivation, strided.rank, strided.axis, ALL_PARTS, strided.units);
    tsr__derive_add(derivation, ",·? -> ");
    add_segments(derivation, &strided);
    keep_segments(derivation, strided.n);
    add_split_sizes(derivation, strided.sizes, strided.n);
    for (size_t i = 0; i < strided.n; i++)
        tsr__derive_add(derivation, "; put %d share r", (int)i);
    tsr__derive_add(derivation, "; unset num_outputs");
}

// ---- cropping ----------------------------------------------------------------------------------

struct ranges {
    int64_t axes[MAX_RANK], start[MAX_RANK], end[MAX_RANK], step[MAX_RANK];
    int64_t n;
    bool known; // all but axes
};

// A range that takes all of a dimension, whatever its size, leaves it untouched.
static bool takes_all(const struct ranges *ranges, int64_t i, tsr_dim dim)
{
    return ranges->known && ranges->start[i] == 0 && ranges->step[i] == 1 &&
           (ranges->end[i] >= INT32_MAX || (dim.value >= 0 && ranges->end[i] >= dim.value));
}

// The elements that a range takes of a dimension of that size. 8:2:-2 of 10 takes 8, 6 and 4: shift
// 8, step -2, to 3.
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

#define NOT_GIVEN (-2) // of tsr__derive_ints

// Without axes the first dimensions are meant, one for each start: n_start, or (-1) the size of
// that input.
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

// Starts and ends are attributes in old opsets, inputs later; without axes the first dimensions are
// meant, without steps they are 1. False: the sliced axes are unknown.
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
        tsr__derive_none(derivation, "the axes that are sliced are not known");
    return ranges->n >= 0;
}

// Where a dimension has a window, its entry becomes the bound of all that the window has: bounds[1]
// for ranges backwards.
static void add_all_of_window(struct derivation *derivation, const struct ranges *ranges,
                              const struct worked *worked, const int64_t bounds[2])
{
    for (int64_t i = 0; i < ranges->n; i++) {
        int axis = (int)ranges->axes[i];
        if (worked[axis].marked && worked[axis].window)
            tsr__derive_add(derivation, "; put %lld value %d %lld", (long long)i,
                            window_at(worked, axis), (long long)bounds[ranges->step[i] < 0]);
    }
}

// Bounds of the local node: all that the window has, in the same steps.
static void add_bounds(struct derivation *derivation, const struct ranges *ranges,
                       const struct worked *worked)
{
    static const int64_t starts[] = {0, -1}, ends[] = {BIG, -BIG}; // of all, forwards and backwards
    static const char *const inputs[] = {"1", "2", "3", "4"};
    static const char *const attributes[] = {"starts", "ends", "axes", NULL}; // of old opsets
    const char *const *names = inputs;
    if (!tsr__derive_has(derivation, 1))
        names = attributes;
    add_numbers(derivation, names[0], ranges->start, ranges->n);
    add_all_of_window(derivation, ranges, worked, starts);
    add_numbers(derivation, names[1], ranges->end, ranges->n);
    add_all_of_window(derivation, ranges, worked, ends);
    add_numbers(derivation, names[2], ranges->axes, ranges->n);
    if (names[3])
        add_numbers(derivation, names[3], ranges->step, ranges->n);
}

// A range that takes a whole dimension leaves it a plain letter; any other becomes a window, and
// the local node then takes all that its window holds (add_bounds). Old opsets have
// attributes instead of inputs: then the first tensor stands alone in the text.
void tsr__derive_slice(struct derivation *derivation)
{
    struct ranges ranges;
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(derivation, 0), windows = 0;
    if (rank < 0 || !read_ranges(derivation, rank, &ranges))
        return;
    struct shape shape = tsr__derive_in(derivation, 0);
    for (int64_t i = 0; i < ranges.n; i++) {
        int axis = tsr__axis(ranges.axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(derivation, DERIVE_NO_AXIS);
            return;
        }
        ranges.axes[i] = axis;
        int64_t size = -1;
        if (derivation->arena)
            size = shape.dims[axis].value;
        if (!takes_all(&ranges, i, shape.dims[axis]))
            w[axis] = range_of(&ranges, i, size);
        windows += w[axis].window;
    }
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]%s -> [", text_if(tsr__derive_has(derivation, 1), ",·,·,·?,·?"));
    add_dims(derivation, rank, w, "");
    tsr__derive_add(derivation, "]");
    add_windows(derivation, rank, w);
    if (windows)
        add_bounds(derivation, &ranges, w);
}

// ---- padding -----------------------------------------------------------------------------------

static bool pads_with_constant(const struct derivation *derivation)
{
    size_t n;
    const tsr_attr *mode = tsr__attr_of(derivation->shapes, derivation->node, "mode");
    return !tsr_attr_string(mode, &n) || tsr__derive_text_is(derivation, "mode", "constant");
}

// What is padded: axes[i] by pads[i] in front and pads[n_axes + i] behind; n of them, -1: they are
// not known.
struct padding {
    const char *name; // of the attribute, in old opsets
    int64_t axes[MAX_RANK], n_axes;
    int64_t pads[2 * MAX_RANK], n;
};

// Without axes all dimensions are meant. False: unknown, and the derivation has ended.
static bool read_padding(struct derivation *derivation, int rank, struct padding *padding)
{
    padding->name = "pads";
    if (tsr__attr_of(derivation->shapes, derivation->node, "paddings"))
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
    if (padding->n_axes < 0 || (padding->n >= 0 && padding->n != 2 * padding->n_axes)) {
        tsr__derive_none(derivation, "the axes that are padded are not known");
        return false;
    }
    for (int64_t i = 0; i < padding->n_axes; i++) {
        padding->axes[i] = tsr__axis(padding->axes[i], rank);
        if (padding->axes[i] < 0) {
            tsr__derive_none(derivation, DERIVE_NO_AXIS);
            return false;
        }
    }
    return true;
}

// How the dimension that entry i pads is worked on.
static struct worked padded(const struct derivation *derivation, const struct padding *padding,
                            int64_t i)
{
    struct worked at = {.marked = true, .from = -1, .step = 1};
    if (derivation->arena && padding->n >= 0)
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

// [2 10] with pads 0 1 0 3 is [2 14]: "[d0 t1^],· -> [d0 t1]; win 0 1 t1 10 14 1 -1 1". Only the
// first part has a pad in front and only the last ones have pads behind: "put 1 before 0; put 3
// after 0". Reflected or repeated edges need elements from elsewhere, so those axes stay whole.
void tsr__derive_pad(struct derivation *derivation)
{
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
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]%s -> [", text_if(inputs, ",·,·?,·?"));
    add_dims(derivation, rank, w, "");
    tsr__derive_add(derivation, "]");
    add_windows(derivation, rank, w);
    if (!windows)
        return;
    if (inputs)
        padding.name = "1";
    add_numbers(derivation, padding.name, padding.pads, padding.n);
    for (int64_t i = 0; i < padding.n_axes; i++) {
        int axis = (int)padding.axes[i];
        if (w[axis].marked && w[axis].window)
            tsr__derive_add(derivation, "; put %lld before %d; put %lld after %d", (long long)i,
                            window_at(w, axis), (long long)(padding.n_axes + i),
                            window_at(w, axis));
    }
}
