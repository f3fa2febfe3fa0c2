// SPDX-License-Identifier: Apache-2.0
// emit_slice.c - what a rank takes out of what it holds: a slice from one form to another, the elements of windows, what
// a local node gave beyond its part. Bounds are constants where sizes are known, and are computed from the size at run
// time where not.
//
//     [8,6] whole -> {2,1} on rank 1: Slice rows 4..7. [n,6] the same: rows from n / 2 on.
//     [8,6] whole -> a strided cut, of which rank 1 has rows 2 3 6 7: Gather of these rows.
#include "internal.h"

struct bounds {
    int64_t axes[TILE_MAX_RANK], starts[TILE_MAX_RANK], stops[TILE_MAX_RANK];
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], part[TILE_MAX_RANK], next[TILE_MAX_RANK],
        parts[TILE_MAX_RANK];
    int64_t n;
};

static tsr_value *slice_old(struct part *part, tsr_value *x, const struct bounds *bounds,
                            struct str out)
{
    tsr_value *y = tsr__part_node(part, "Slice", out, 1, x);
    tsr_node *node = y ? tsr_value_producer(y) : NULL;
    if (!node || tsr_node_set_ints(node, "starts", bounds->starts, (size_t)bounds->n) != TSR_OK ||
        tsr_node_set_ints(node, "ends", bounds->stops, (size_t)bounds->n) != TSR_OK ||
        tsr_node_set_ints(node, "axes", bounds->axes, (size_t)bounds->n) != TSR_OK)
        return NULL;
    return y;
}

static tsr_value *slice_static(struct part *part, tsr_value *x, const struct bounds *bounds,
                               struct str out)
{
    if (part->plan->opset < 10)
        return slice_old(part, x, bounds, out);
    return tsr__part_node(part, "Slice", out, 4, x, tsr__part_ints(part, bounds->starts, bounds->n),
                          tsr__part_ints(part, bounds->stops, bounds->n),
                          tsr__part_ints(part, bounds->axes, bounds->n));
}

tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop, struct str out)
{
    struct bounds bounds = {.axes = {axis}, .starts = {start}, .stops = {stop}, .n = 1};
    return slice_static(part, x, &bounds, out);
}

// Part j of n of F = ceil(D / unit) units: from floor(j F / n) * unit on. Slice itself stops at the
// end.
static tsr_value *slice_dynamic(struct part *part, tsr_value *x, const struct bounds *bounds,
                                struct str out)
{
    const struct str any = {0};
    tsr_value *axes = tsr__part_ints(part, bounds->axes, bounds->n),
              *unit = tsr__part_ints(part, bounds->unit, bounds->n);
    tsr_value *parts = tsr__part_ints(part, bounds->parts, bounds->n);
    tsr_value *value = tsr__part_node(part, "Shape", any, 1, x);
    value = tsr__part_node(part, "Gather", any, 2, value, axes);
    value =
        tsr__part_node(part, "Add", any, 2, value, tsr__part_ints(part, bounds->spare, bounds->n));
    value = tsr__part_node(part, "Div", any, 2, value, unit);
    tsr_value *start =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, bounds->part, bounds->n));
    tsr_value *stop =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, bounds->next, bounds->n));
    start = tsr__part_node(part, "Div", any, 2, start, parts);
    stop = tsr__part_node(part, "Div", any, 2, stop, parts);
    start = tsr__part_node(part, "Mul", any, 2, start, unit);
    stop = tsr__part_node(part, "Mul", any, 2, stop, unit);
    return tsr__part_node(part, "Slice", out, 4, x, start, stop, axes);
}

static int64_t elements_of(const struct dim_cut *cut)
{
    int64_t count = 0;
    for (int64_t i = 0; i < cut->n; i++)
        count += cut->at[i].stop - cut->at[i].start;
    return count;
}

// Several runs of one dimension: their indices.
static tsr_value *pick_numbers(struct part *part, tsr_value *x, int axis, const struct dim_cut *cut,
                               struct str out)
{
    int64_t count = elements_of(cut), at = 0;
    int64_t *indices = ARENA_ARRAY(part->plan->arena, int64_t, (size_t)count + 1);
    if (!indices)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        for (int64_t k = cut->at[i].start; k < cut->at[i].stop; k++)
            indices[at++] = k;
    tsr_value *y = tsr__part_node(part, "Gather", out, 2, x, tsr__part_ints(part, indices, count));
    if (y && tsr_node_set_int(tsr_value_producer(y), "axis", axis) == TSR_OK)
        return y;
    return NULL;
}

// Before opset 9 nothing but slices can pick texts: each run by itself, joined to those before it.
static tsr_value *join_runs(struct part *part, tsr_value *x, int axis, const struct dim_cut *cut,
                            struct str out)
{
    const struct str any = {0};
    tsr_value *joined = NULL;
    for (int64_t i = 0; i < cut->n; i++) {
        tsr_value *run = tsr__part_slice(part, x, axis, cut->at[i].start, cut->at[i].stop, any);
        if (!joined) {
            joined = run;
            continue;
        }
        joined = tsr__part_node(part, "Concat", i + 1 < cut->n ? any : out, 2, joined, run);
        if (!joined || tsr_node_set_int(tsr_value_producer(joined), "axis", axis) != TSR_OK)
            return NULL;
    }
    return joined;
}

// The same of texts, of which ONNX Runtime's Gather takes only the first of each row (seen with 1.31.1). Compress takes
// all: of 5 rows, the runs [0, 1) and [2, 4) are {1, 0, 1, 1}; what lies behind the last run needs no mark.
static tsr_value *pick_texts(struct part *part, tsr_value *x, int axis, const struct dim_cut *cut,
                             struct str out)
{
    if (part->plan->opset < 9)
        return join_runs(part, x, axis, cut, out);
    int64_t length = cut->n ? cut->at[cut->n - 1].stop : 0;
    char *marks = arena_get(part->plan->arena, (size_t)length + 1, 1);
    struct str name = tsr__part_fresh(part);
    if (!marks || !name.p)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        memset(marks + cut->at[i].start, 1, (size_t)(cut->at[i].stop - cut->at[i].start));
    tsr_value *taken = tsr_graph_add_initializer(tsr_model_graph(part->model), name.p, TSR_BOOL, 1,
                                                 &length, marks, (size_t)length);
    tsr_value *y = tsr__part_node(part, "Compress", out, 2, x, taken);
    if (y && tsr_node_set_int(tsr_value_producer(y), "axis", axis) == TSR_OK)
        return y;
    return NULL;
}

static tsr_value *pick(struct part *part, tsr_value *x, int axis, const struct dim_cut *cut,
                       tsr_dtype type, struct str out)
{
    if (type == TSR_STRING)
        return pick_texts(part, x, axis, cut, out);
    return pick_numbers(part, x, axis, cut, out);
}

static void add_static(struct bounds *bounds, int axis, const struct tile_interval *at)
{
    bounds->axes[bounds->n] = axis;
    bounds->starts[bounds->n] = at->start;
    bounds->stops[bounds->n++] = at->stop;
}

static void add_dynamic(struct bounds *bounds, int axis, const struct dim_cut *cut)
{
    bounds->axes[bounds->n] = axis;
    bounds->unit[bounds->n] = cut->unit;
    bounds->spare[bounds->n] = cut->unit - 1;
    bounds->part[bounds->n] = cut->part;
    bounds->next[bounds->n] = cut->part + 1;
    bounds->parts[bounds->n++] = cut->parts;
}

tsr_status tsr__emit_slice(struct part *part, struct step *st)
{
    struct form *from = st->inputs[0], *to = st->outputs[0];
    tsr_value *x = form_root(from)->local[part->rank];
    struct bounds fixed = {.n = 0}, dynamic = {.n = 0};
    struct dim_cut cuts[TILE_MAX_RANK];
    int n_picks = 0;
    for (int axis = 0; axis < to->layout->rank && axis < TILE_MAX_RANK; axis++) {
        cuts[axis] = tsr__dim_way(part->plan, to->item, from->layout, to->layout, part->rank, axis);
        n_picks += cuts[axis].way == DIM_STATIC && cuts[axis].n != 1;
        if (cuts[axis].way == DIM_STATIC && cuts[axis].n == 1)
            add_static(&fixed, axis, &cuts[axis].at[0]);
        if (cuts[axis].way == DIM_DYNAMIC)
            add_dynamic(&dynamic, axis, &cuts[axis]);
    }
    // The last node gives the form its name.
    struct str last = tsr__form_name(part, to), any = {0};
    tsr_dtype type = to->item->dtype;
    bool wide = type >= TSR_FLOAT8E4M3FN && type <= TSR_FLOAT8E5M2FNUZ;
    struct str name = wide ? any : last;
    int left = n_picks + (fixed.n > 0) + (dynamic.n > 0);
    if (wide)
        x = tsr__part_cast(part, x, TSR_FLOAT16, any);
    for (int axis = 0; axis < to->layout->rank && n_picks; axis++)
        if (cuts[axis].way == DIM_STATIC && cuts[axis].n != 1)
            x = pick(part, x, axis, &cuts[axis], type, --left ? any : name);
    if (fixed.n)
        x = slice_static(part, x, &fixed, --left ? any : name);
    if (dynamic.n)
        x = slice_dynamic(part, x, &dynamic, name);
    if (wide)
        x = tsr__part_cast(part, x, type, last);
    to->local[part->rank] = x;
    return x ? TSR_OK : TSR_NOMEM;
}

// The elements of its windows, of a value that is whole along their axes.
tsr_status tsr__emit_crop(struct part *t, struct step *st)
{
    struct form *to = st->outputs[0];
    const struct windows *windows = to->windows;
    tsr_value *x = form_root(st->inputs[0])->local[t->rank];
    struct bounds fixed = {.n = 0};
    struct str name = tsr__form_name(t, to), any = {0};
    int left = 0;
    for (int k = 0; k < windows->n_axes; k++) {
        const struct dim_cut *part = &windows->parts[t->rank * windows->n_axes + k];
        static const struct tile_interval none = {0, 0};
        if (part->n < 2)
            add_static(&fixed, windows->axes[k], part->n ? &part->at[0] : &none);
        left += part->n >= 2;
    }
    left += fixed.n > 0;
    for (int k = 0; k < windows->n_axes; k++) {
        const struct dim_cut *part = &windows->parts[t->rank * windows->n_axes + k];
        if (part->n >= 2)
            x = pick(t, x, windows->axes[k], part, to->item->dtype, --left ? any : name);
    }
    if (fixed.n)
        x = slice_static(t, x, &fixed, name);
    to->local[t->rank] = x;
    return x ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x, struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    struct bounds fixed = {.n = 0};
    int64_t place = 0;
    while (st->flow->place.devices[place] != part->rank)
        place++;
    for (int i = 0; i < rule->n_trims; i++) {
        const struct rule_trim *trim = &rule->trims[i];
        if (st->flow->place.cuts[rule->windows[trim->window].factor] < 2)
            continue;
        struct window_part window_part = tsr__window_at(st->flow, place, trim->window);
        add_static(&fixed, trim->dim,
                   &(struct tile_interval){(window_part.a - window_part.start) * trim->unit,
                                           (window_part.b - window_part.start) * trim->unit});
    }
    st->outputs[0]->local[part->rank] = slice_static(part, x, &fixed, name);
    return st->outputs[0]->local[part->rank] ? TSR_OK : TSR_NOMEM;
}
