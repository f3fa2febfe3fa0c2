// SPDX-License-Identifier: Apache-2.0
// derive_window.c - rules of operators that join, divide, crop or pad dimensions.
//
// Where all sizes are numbers, the dimension that is worked on may be cut too: its parts need
// windows of the input (struct rule_window), which neighbours exchange, and the local node is told
// other bounds. Else it stays whole: "_". Letters d0, d1, ... are dimensions that pass through.
#include "rules/derive.h"

#define MAX_RANK RULE_MAX_FACTORS
#define BIG      INT64_MAX

// One dimension that is worked on, as a window of step, shift and size `to` sees it.
struct worked {
    bool marked, window;
    int64_t from, to, step, shift;
};

// "[d0 _ t2^": dimensions of a tensor. The bracket stays open.
static void add_dims(struct derivation *d, int rank, const struct worked *w, const char *mark)
{
    for (int i = 0; i < rank; i++) {
        if (!w[i].marked)
            tsr__derive_add(d, "d%d ", i);
        else if (!w[i].window)
            tsr__derive_add(d, "_ ");
        else
            tsr__derive_add(d, "t%d%s ", i, mark);
    }
}

static void add_numbers(struct derivation *d, const char *name, const int64_t *v, int64_t n)
{
    tsr__derive_add(d, "; list %s", name);
    for (int64_t i = 0; i < n; i++)
        tsr__derive_add(d, " %lld", (long long)v[i]);
}

// Windows of input 0, in the order of the dimensions.
static void add_windows(struct derivation *d, int rank, struct worked *w)
{
    for (int i = 0; i < rank; i++)
        if (w[i].marked && w[i].window)
            tsr__derive_add(d, "; win 0 %d t%d %lld %lld %lld %lld 1", i, i, (long long)w[i].from,
                            (long long)w[i].to, (long long)w[i].step, (long long)w[i].shift);
}

// Number of the window of that dimension.
static int window_at(const struct worked *w, int dim)
{
    int n = 0;
    for (int i = 0; i < dim; i++)
        n += w[i].marked && w[i].window;
    return n;
}

// ---- joining and dividing ----------------------------------------------------------------------

// Sizes of the axis in all tensors of one side: their sum; -1: not all are numbers above 0.
static int64_t sizes_along(const struct derivation *d, bool out, int rank, int axis, int64_t *sizes,
                           size_t cap)
{
    size_t n = out ? tsr_node_output_count(d->node) : tsr_node_input_count(d->node);
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_value *v = out ? tsr_node_output(d->node, i) : tsr_node_input(d->node, i);
        struct shape s = v ? tsr__shapes_of(d->shapes, v) : (struct shape){.rank = -1};
        if (i >= cap || s.rank != rank || s.dims[axis].value < 1 ||
            !add_ok(sum, s.dims[axis].value, &sum))
            return -1;
        sizes[i] = s.dims[axis].value;
    }
    return sum;
}

#define MAX_JOINED 48 // tensors whose parts are exchanged

void tsr__derive_concat(struct derivation *d)
{
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(d, 0);
    int axis = rank >= 0 ? tsr__derive_axis(d, "axis", 1, rank) : -1;
    if (axis < 0)
        return;
    int64_t total = d->arena ? sizes_along(d, false, rank, axis, sizes, MAX_JOINED) : -1;
    w[axis] = (struct worked){.marked = true, .window = total > 0};
    tsr__derive_add(d, "[");
    add_dims(d, rank, w, "^");
    tsr__derive_add(d, "]… -> [");
    add_dims(d, rank, w, "");
    tsr__derive_add(d, "]");
    for (size_t i = 0; i < tsr_node_input_count(d->node) && total > 0; i++) {
        tsr__derive_add(d, "; win %d %d t%d %lld %lld 1 %lld 1", (int)i, axis, axis,
                        (long long)sizes[i], (long long)total, (long long)-before);
        before += sizes[i];
    }
}

// The sizes of the parts are an attribute, an input, or equal.
void tsr__derive_split(struct derivation *d)
{
    struct worked w[MAX_RANK] = {{0}};
    int64_t sizes[MAX_JOINED], before = 0;
    int rank = tsr__derive_rank(d, 0);
    int axis = rank >= 0 ? tsr__derive_axis(d, "axis", 0, rank) : -1;
    if (axis < 0)
        return;
    size_t n = tsr_node_output_count(d->node);
    struct shape s = tsr__derive_in(d, 0);
    int64_t total = d->arena ? sizes_along(d, true, rank, axis, sizes, MAX_JOINED) : -1;
    w[axis] = (struct worked){.marked = true, .window = total > 0 && s.dims[axis].value == total};
    tsr__derive_add(d, "[");
    add_dims(d, rank, w, "^");
    tsr__derive_add(d, "],·? -> [");
    add_dims(d, rank, w, "^");
    tsr__derive_add(d, "]…");
    if (!w[axis].window)
        return;
    tsr__derive_size(d, tsr__arena_printf(d->arena, "t%d", axis), (tsr_dim){total, ""});
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(d, "; win 0 %d t%d %lld %lld 1 %lld 1", axis, axis, (long long)total,
                        (long long)sizes[i], (long long)before);
        before += sizes[i];
    }
    add_numbers(d, tsr__node_opset(d->node) < 13 ? "split" : "1", sizes, (int64_t)n);
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(d, "; put %d size %d", (int)i, (int)i);
    tsr__derive_add(d, "; unset num_outputs");
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

static void add_strided(struct derivation *d, int rank, int axis, int part, int64_t units)
{
    struct str letter = part < 0 ? STR("p") : tsr__arena_printf(d->arena, "p%d", part);
    tsr__derive_size(d, letter, (tsr_dim){units, ""});
    tsr__derive_add(d, "[");
    for (int i = 0; i < rank; i++) {
        if (i == axis)
            tsr__derive_add(d, "(%s r) ", letter.p ? letter.p : "");
        else
            tsr__derive_add(d, "d%d ", i);
    }
    tsr__derive_add(d, "]");
}

// False: sizes are not known, or have nothing in common.
static bool strided(struct derivation *d, bool out, int *rank, int *axis, int64_t *sizes,
                    int64_t *r)
{
    size_t n = out ? tsr_node_output_count(d->node) : tsr_node_input_count(d->node);
    *rank = tsr__derive_rank(d, 0);
    *axis = *rank >= 0 ? tsr__derive_axis(d, "axis", out ? 0 : 1, *rank) : -1;
    int64_t total = *axis >= 0 ? sizes_along(d, out, *rank, *axis, sizes, MAX_JOINED) : -1;
    *r = total > 0 ? common_unit(sizes, n) : 0;
    if (*r < 2 || n < 2 || (out && tsr__derive_in(d, 0).dims[*axis].value != total)) {
        tsr__derive_none(d, "the segments have no common unit");
        return false;
    }
    tsr__derive_size(d, STR("r"), (tsr_dim){*r, ""});
    return true;
}

static void keep_segments(struct derivation *d, size_t n)
{
    tsr__derive_add(d, "; rep p");
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(d, " p%d", (int)i);
}

void tsr__derive_concat_strided(struct derivation *d)
{
    int64_t sizes[MAX_JOINED], r, units = 0;
    int rank, axis;
    size_t n = tsr_node_input_count(d->node);
    if (!strided(d, false, &rank, &axis, sizes, &r))
        return;
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(d, i ? "," : "");
        add_strided(d, rank, axis, (int)i, sizes[i] / r);
        units += sizes[i] / r;
    }
    tsr__derive_add(d, " -> ");
    add_strided(d, rank, axis, -1, units);
    keep_segments(d, n);
}

void tsr__derive_split_strided(struct derivation *d)
{
    int64_t sizes[MAX_JOINED], r, units = 0;
    int rank, axis;
    size_t n = tsr_node_output_count(d->node);
    if (!strided(d, true, &rank, &axis, sizes, &r))
        return;
    for (size_t i = 0; i < n; i++)
        units += sizes[i] / r;
    add_strided(d, rank, axis, -1, units);
    tsr__derive_add(d, ",·? -> ");
    for (size_t i = 0; i < n; i++) {
        tsr__derive_add(d, i ? "," : "");
        add_strided(d, rank, axis, (int)i, sizes[i] / r);
    }
    keep_segments(d, n);
    add_numbers(d, tsr__node_opset(d->node) < 13 ? "split" : "1", sizes, (int64_t)n);
    for (size_t i = 0; i < n; i++)
        tsr__derive_add(d, "; put %d share r", (int)i);
    tsr__derive_add(d, "; unset num_outputs");
}

// ---- cropping ----------------------------------------------------------------------------------

struct ranges {
    int64_t axes[MAX_RANK], start[MAX_RANK], end[MAX_RANK], step[MAX_RANK];
    int64_t n;
    bool known; // all but axes
};

// A range that takes all of a dimension, whatever its size, leaves it untouched.
static bool takes_all(const struct ranges *r, int64_t i, tsr_dim dim)
{
    return r->known && r->start[i] == 0 && r->step[i] == 1 &&
           (r->end[i] >= INT32_MAX || (dim.value >= 0 && r->end[i] >= dim.value));
}

// The elements that a range takes of a dimension of that size.
static struct worked range_of(const struct ranges *r, int64_t i, int64_t size)
{
    struct worked w = {.marked = true, .from = size, .step = r->step[i]};
    int64_t start = r->start[i], end = r->end[i], back = r->step[i] < 0;
    if (!r->known || size < 1 || !w.step || w.step < -size || w.step > size)
        return w;
    start += start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    start = start < 0 ? 0 : start > size - back ? size - back : start;
    end = end < -back ? -back : end > size ? size : end;
    int64_t span = back ? start - end : end - start, each = back ? -w.step : w.step;
    w.to = span > 0 ? (span + each - 1) / each : 0;
    w.shift = start;
    w.window = w.to > 0;
    return w;
}

static bool read_ranges(struct derivation *d, int rank, struct ranges *r)
{
    int64_t n_start = tsr__derive_ints(d, "starts", 1, r->start, MAX_RANK);
    int64_t n_end = tsr__derive_ints(d, "ends", 2, r->end, MAX_RANK);
    int64_t n_step = tsr__derive_has(d, 4) ? tsr__derive_ints(d, "", 4, r->step, MAX_RANK) : -2;
    r->n = tsr__derive_ints(d, "axes", 3, r->axes, MAX_RANK);
    if (r->n == -2) { // all from the front
        struct shape of = tsr__derive_in(d, 1);
        r->n = n_start >= 0 ? n_start : of.rank == 1 ? of.dims[0].value : -1;
        r->n = r->n > rank ? -1 : r->n;
        for (int64_t i = 0; i < r->n; i++)
            r->axes[i] = i;
    }
    r->known = n_start == r->n && n_end == r->n && (n_step == -2 || n_step == r->n);
    for (int64_t i = 0; i < r->n && n_step == -2; i++)
        r->step[i] = 1;
    if (r->n < 0)
        tsr__derive_none(d, "the axes that are sliced are not known");
    return r->n >= 0;
}

// Bounds of the local node: all that the window has, in the same steps.
static void add_bounds(struct derivation *d, const struct ranges *r, const struct worked *w)
{
    static const char *const inputs[] = {"1", "2", "3", "4"}, *const attributes[] = {
                                                                  "starts", "ends", "axes"};
    bool old = !tsr__derive_has(d, 1);
    const char *const *names = old ? attributes : inputs;
    for (int end = 0; end < 2; end++) {
        add_numbers(d, names[end], end ? r->end : r->start, r->n);
        for (int64_t i = 0; i < r->n; i++) {
            bool back = r->step[i] < 0;
            int64_t bound = end ? (back ? -BIG : BIG) : (back ? -1 : 0);
            if (w[r->axes[i]].marked && w[r->axes[i]].window)
                tsr__derive_add(d, "; put %lld value %d %lld", (long long)i,
                                window_at(w, (int)r->axes[i]), (long long)bound);
        }
    }
    add_numbers(d, names[2], r->axes, r->n);
    if (!old)
        add_numbers(d, names[3], r->step, r->n);
}

void tsr__derive_slice(struct derivation *d)
{
    struct ranges r;
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(d, 0), windows = 0;
    if (rank < 0 || !read_ranges(d, rank, &r))
        return;
    struct shape s = tsr__derive_in(d, 0);
    for (int64_t i = 0; i < r.n; i++) {
        int axis = tsr__axis(r.axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(d, DERIVE_NO_AXIS);
            return;
        }
        r.axes[i] = axis;
        if (!takes_all(&r, i, s.dims[axis]))
            w[axis] = range_of(&r, i, d->arena ? s.dims[axis].value : -1);
        windows += w[axis].window;
    }
    tsr__derive_add(d, "[");
    add_dims(d, rank, w, "^");
    tsr__derive_add(d, "]%s -> [", tsr__derive_has(d, 1) ? ",·,·,·?,·?" : "");
    add_dims(d, rank, w, "");
    tsr__derive_add(d, "]");
    add_windows(d, rank, w);
    if (windows)
        add_bounds(d, &r, w);
}

// ---- padding -----------------------------------------------------------------------------------

static bool pads_with_constant(const struct derivation *d)
{
    size_t n;
    const char *mode = tsr_attr_string(tsr__attr_of(d->shapes, d->node, "mode"), &n);
    return !mode || str_is((struct str){mode, n}, "constant");
}

void tsr__derive_pad(struct derivation *d)
{
    int64_t pads[2 * MAX_RANK], axes[MAX_RANK];
    struct worked w[MAX_RANK] = {{0}};
    int rank = tsr__derive_rank(d, 0), windows = 0;
    if (rank < 0)
        return;
    const char *name = tsr__attr_of(d->shapes, d->node, "paddings") ? "paddings" : "pads";
    int64_t n_axes = tsr__derive_has(d, 3) ? tsr__derive_ints(d, "", 3, axes, MAX_RANK) : -2;
    int64_t n = tsr__derive_ints(d, name, 1, pads, 2 * MAX_RANK);
    for (int i = 0; i < rank && n_axes == -2; i++)
        axes[i] = i;
    n_axes = n_axes == -2 ? rank : n_axes;
    if (n_axes < 0 || (n >= 0 && n != 2 * n_axes)) {
        tsr__derive_none(d, "the axes that are padded are not known");
        return;
    }
    struct shape s = tsr__derive_in(d, 0);
    for (int64_t i = 0; i < n_axes; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0) {
            tsr__derive_none(d, DERIVE_NO_AXIS);
            return;
        }
        axes[i] = axis;
        if (n >= 0 && !pads[i] && !pads[n_axes + i])
            continue;
        int64_t size = d->arena && n >= 0 ? s.dims[axis].value : -1;
        struct worked at = {.marked = true, .from = size, .step = 1};
        if (size > 0 && pads_with_constant(d) && add_ok(size, pads[i], &at.to) &&
            add_ok(at.to, pads[n_axes + i], &at.to) && pads[i] > -size) {
            at.shift = -pads[i];
            at.window = at.to > 0;
        }
        w[axis] = at;
        windows += at.window;
    }
    tsr__derive_add(d, "[");
    add_dims(d, rank, w, "^");
    tsr__derive_add(d, "]%s -> [", tsr__derive_has(d, 1) ? ",·,·?,·?" : "");
    add_dims(d, rank, w, "");
    tsr__derive_add(d, "]");
    add_windows(d, rank, w);
    if (!windows)
        return;
    add_numbers(d, tsr__derive_has(d, 1) ? "1" : name, pads, n);
    for (int64_t i = 0; i < n_axes; i++)
        if (w[axes[i]].marked && w[axes[i]].window)
            tsr__derive_add(d, "; put %lld before %d; put %lld after %d", (long long)i,
                            window_at(w, (int)axes[i]), (long long)(n_axes + i),
                            window_at(w, (int)axes[i]));
}
