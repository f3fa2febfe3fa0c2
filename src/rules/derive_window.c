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
#include "rules/derive.h"

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
static int64_t sizes_along(const struct derivation *derivation, bool out, int rank, int axis,
                           int64_t *sizes, size_t cap)
{
    size_t n =
        out ? tsr_node_output_count(derivation->node) : tsr_node_input_count(derivation->node);
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_value *value =
            out ? tsr_node_output(derivation->node, i) : tsr_node_input(derivation->node, i);
        struct shape shape =
            value ? tsr__shapes_of(derivation->shapes, value) : (struct shape){.rank = -1};
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
    int64_t total =
        derivation->arena ? sizes_along(derivation, false, rank, axis, sizes, MAX_JOINED) : -1;
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
    int64_t total =
        derivation->arena ? sizes_along(derivation, true, rank, axis, sizes, MAX_JOINED) : -1;
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
    add_numbers(derivation, tsr__node_opset(derivation->node) < 13 ? "split" : "1", sizes,
                (int64_t)n);
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(derivation, "; put %d size %d", (int)i, (int)i);
    tsr__derive_add(derivation, "; unset num_outputs");
}

// The same with equal shares of every segment: all sizes are multiples of r, which alone is cut. "(p0
// r)" is one of several such tensors, "(p r)" the one that has them all.
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

static void add_strided(struct derivation *derivation, int rank, int axis, int part, int64_t units)
{
    struct str letter = part < 0 ? STR("p") : tsr__arena_printf(derivation->arena, "p%d", part);
    tsr__derive_size(derivation, letter, (tsr_dim){units, ""});
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++) {
        if (i == axis)
            tsr__derive_add(derivation, "(%s r) ", letter.p ? letter.p : "");
        else
            tsr__derive_add(derivation, "d%d ", i);
    }
    tsr__derive_add(derivation, "]");
}

// False: sizes are not known, or have nothing in common.
static bool strided(struct derivation *derivation, bool out, int *rank, int *axis, int64_t *sizes,
                    int64_t *r)
{
    size_t n =
        out ? tsr_node_output_count(derivation->node) : tsr_node_input_count(derivation->node);
    *rank = tsr__derive_rank(derivation, 0);
    int64_t otherwise = out ? 0 : 1;
    *axis = *rank >= 0 ? tsr__derive_axis(derivation, "axis", otherwise, *rank) : -1;
    int64_t total = *axis >= 0 ? sizes_along(derivation, out, *rank, *axis, sizes, MAX_JOINED) : -1;
    *r = total > 0 ? common_unit(sizes, n) : 0;
    if (*r < 2 || n < 2 || (out && tsr__derive_in(derivation, 0).dims[*axis].value != total)) {
        tsr__derive_none(derivation, "the segments have no common unit");
        return false;
    }
    tsr__derive_size(derivation, STR("r"), (tsr_dim){*r, ""});
    return true;
}

static void keep_segments(struct derivation *derivation, size_t n)
{
    tsr__derive_add(derivation, "; rep p");
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(derivation, " p%d", (int)i);
}

void tsr__derive_concat_strided(struct derivation *derivation)
{
    int64_t sizes[MAX_JOINED], r, units = 0;
    int rank, axis;
    size_t n = tsr_node_input_count(derivation->node);
    if (!strided(derivation, false, &rank, &axis, sizes, &r))
        return;
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(derivation, i ? "," : "");
        add_strided(derivation, rank, axis, (int)i, sizes[i] / r);
        units += sizes[i] / r;
    }
    tsr__derive_add(derivation, " -> ");
    add_strided(derivation, rank, axis, -1, units);
    keep_segments(derivation, n);
}

void tsr__derive_split_strided(struct derivation *derivation)
{
    int64_t sizes[MAX_JOINED], r, units = 0;
    int rank, axis;
    size_t n = tsr_node_output_count(derivation->node);
    if (!strided(derivation, true, &rank, &axis, sizes, &r))
        return;
    for (size_t i = 0; i < n; i++)
        units += sizes[i] / r;
    add_strided(derivation, rank, axis, -1, units);
    tsr__derive_add(derivation, ",·? -> ");
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(derivation, i ? "," : "");
        add_strided(derivation, rank, axis, (int)i, sizes[i] / r);
    }
    keep_segments(derivation, n);
    add_numbers(derivation, tsr__node_opset(derivation->node) < 13 ? "split" : "1", sizes,
                (int64_t)n);
    for (size_t i = 0; i < n; i++)
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

// The elements that a range takes of a dimension of that size.
static struct worked range_of(const struct ranges *ranges, int64_t i, int64_t size)
{
    struct worked worked = {.marked = true, .from = size, .step = ranges->step[i]};
    int64_t start = ranges->start[i], end = ranges->end[i], back = ranges->step[i] < 0;
    if (!ranges->known || size < 1 || !worked.step || worked.step < -size || worked.step > size)
        return worked;
    start += start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    start = clamped(start, 0, size - back);
    end = clamped(end, -back, size);
    int64_t span = back ? start - end : end - start;
    int64_t each = back ? -worked.step : worked.step;
    worked.to = span > 0 ? (span + each - 1) / each : 0;
    worked.shift = start;
    worked.window = worked.to > 0;
    return worked;
}

// Starts and ends are attributes in old opsets, inputs later; without axes the first dimensions are
// meant, without steps they are 1. False: nobody knows which axes are sliced.
static bool read_ranges(struct derivation *derivation, int rank, struct ranges *ranges)
{
    int64_t n_start = tsr__derive_ints(derivation, "starts", 1, ranges->start, MAX_RANK);
    int64_t n_end = tsr__derive_ints(derivation, "ends", 2, ranges->end, MAX_RANK);
    int64_t n_step = tsr__derive_has(derivation, 4)
                         ? tsr__derive_ints(derivation, "", 4, ranges->step, MAX_RANK)
                         : -2;
    ranges->n = tsr__derive_ints(derivation, "axes", 3, ranges->axes, MAX_RANK);
    if (ranges->n == -2) { // all from the front
        struct shape of = tsr__derive_in(derivation, 1);
        ranges->n = of.rank == 1 ? of.dims[0].value : -1;
        if (n_start >= 0)
            ranges->n = n_start;
        ranges->n = ranges->n > rank ? -1 : ranges->n;
        for (int64_t i = 0; i < ranges->n; i++)
            ranges->axes[i] = i;
    }
    ranges->known =
        n_start == ranges->n && n_end == ranges->n && (n_step == -2 || n_step == ranges->n);
    if (n_step == -2)
        for (int64_t i = 0; i < ranges->n; i++)
            ranges->step[i] = 1;
    if (ranges->n < 0)
        tsr__derive_none(derivation, "the axes that are sliced are not known");
    return ranges->n >= 0;
}

// Bounds of the local node: all that the window has, in the same steps.
static void add_bounds(struct derivation *derivation, const struct ranges *ranges,
                       const struct worked *worked)
{
    static const char *const inputs[] = {"1", "2", "3", "4"}, *const attributes[] = {
                                                                  "starts", "ends", "axes"};
    bool old = !tsr__derive_has(derivation, 1);
    const char *const *names = old ? attributes : inputs;
    static const int64_t forwards[] = {0, BIG}, backwards[] = {-1, -BIG}; // start and end of all
    for (int end = 0; end < 2; end++) {
        add_numbers(derivation, names[end], end ? ranges->end : ranges->start, ranges->n);
        for (int64_t i = 0; i < ranges->n; i++) {
            int64_t bound = ranges->step[i] < 0 ? backwards[end] : forwards[end];
            if (worked[ranges->axes[i]].marked && worked[ranges->axes[i]].window)
                tsr__derive_add(derivation, "; put %lld value %d %lld", (long long)i,
                                window_at(worked, (int)ranges->axes[i]), (long long)bound);
        }
    }
    add_numbers(derivation, names[2], ranges->axes, ranges->n);
    if (!old)
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
        if (!takes_all(&ranges, i, shape.dims[axis]))
            w[axis] = range_of(&ranges, i, derivation->arena ? shape.dims[axis].value : -1);
        windows += w[axis].window;
    }
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]%s -> [", tsr__derive_has(derivation, 1) ? ",·,·,·?,·?" : "");
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
    const char *mode =
        tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, "mode"), &n);
    return !mode || str_is((struct str){mode, n}, "constant");
}

// [2 10] with pads 0 1 0 3 is [2 14]: "[d0 t1^],· -> [d0 t1]; win 0 1 t1 10 14 1 -1 1". Only the
// first part has a pad in front and only the last ones have pads behind: "put 1 before 0; put 3
// after 0". Reflected or repeated edges need elements from elsewhere, so those axes stay whole.
void tsr__derive_pad(struct derivation *derivation)
{
    int64_t pads[2 * MAX_RANK], axes[MAX_RANK];
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(derivation, 0), windows = 0;
    if (rank < 0)
        return;
    const char *name =
        tsr__attr_of(derivation->shapes, derivation->node, "paddings") ? "paddings" : "pads";
    int64_t n_axes =
        tsr__derive_has(derivation, 3) ? tsr__derive_ints(derivation, "", 3, axes, MAX_RANK) : -2;
    int64_t n = tsr__derive_ints(derivation, name, 1, pads, 2 * MAX_RANK);
    if (n_axes == -2) {
        n_axes = rank;
        for (int i = 0; i < rank; i++)
            axes[i] = i;
    }
    if (n_axes < 0 || (n >= 0 && n != 2 * n_axes)) {
        tsr__derive_none(derivation, "the axes that are padded are not known");
        return;
    }
    struct shape shape = tsr__derive_in(derivation, 0);
    for (int64_t i = 0; i < n_axes; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(derivation, DERIVE_NO_AXIS);
            return;
        }
        axes[i] = axis;
        if (n >= 0 && !pads[i] && !pads[n_axes + i])
            continue;
        int64_t size = derivation->arena && n >= 0 ? shape.dims[axis].value : -1;
        struct worked at = {.marked = true, .from = size, .step = 1};
        if (size > 0 && pads_with_constant(derivation) && add_ok(size, pads[i], &at.to) &&
            add_ok(at.to, pads[n_axes + i], &at.to) && pads[i] > -size) {
            at.shift = -pads[i];
            at.window = at.to > 0;
        }
        w[axis] = at;
        windows += at.window;
    }
    tsr__derive_add(derivation, "[");
    add_dims(derivation, rank, w, "^");
    tsr__derive_add(derivation, "]%s -> [", tsr__derive_has(derivation, 1) ? ",·,·?,·?" : "");
    add_dims(derivation, rank, w, "");
    tsr__derive_add(derivation, "]");
    add_windows(derivation, rank, w);
    if (!windows)
        return;
    add_numbers(derivation, tsr__derive_has(derivation, 1) ? "1" : name, pads, n);
    for (int64_t i = 0; i < n_axes; i++)
        if (w[axes[i]].marked && w[axes[i]].window)
            tsr__derive_add(derivation, "; put %lld before %d; put %lld after %d", (long long)i,
                            window_at(w, (int)axes[i]), (long long)(n_axes + i),
                            window_at(w, (int)axes[i]));
}
