// SPDX-License-Identifier: Apache-2.0
// emit_slice.c - writes slices: from one form to another, of windows, and to trim results that are
// larger than the shard. Bounds are constants if sizes are known, else nodes compute them.
//
// Examples:
//     [8,6] unsharded -> {2,1} on rank 1: Slice rows 4..7. [n,6]: rows from n / 2 on.
//     [8,6] unsharded -> strided, rank 1 has rows 2 3 6 7: Gather of these rows.
#include "internal.h"

// Bounds of a Slice, one entry per sliced axis. Axes of known size use `starts` and `stops`. Axes
// of unknown size use the other arrays (see slice_dynamic). `spare` is unit - 1. The shard is
// `part` to `next` of `parts` equal shares of the units; the tensor begins with share `first` of
// `of`.
struct bounds {
    int64_t axes[TILE_MAX_RANK], starts[TILE_MAX_RANK], stops[TILE_MAX_RANK];
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], part[TILE_MAX_RANK], next[TILE_MAX_RANK],
        parts[TILE_MAX_RANK], first[TILE_MAX_RANK], of[TILE_MAX_RANK];
    int64_t n;
    bool inner; // the tensor is a shard along some of the axes
};

// Adds a Slice of an opset before 10, whose bounds are attributes.
static tsr_value *slice_old(struct part *part, tsr_value *x, const struct bounds *bounds,
                            struct str out)
{
    tsr_value *y = NAMED_NODE(part, "Slice", out, x);
    y = tsr__with_ints(y, "starts", bounds->starts, bounds->n);
    y = tsr__with_ints(y, "ends", bounds->stops, bounds->n);
    return tsr__with_ints(y, "axes", bounds->axes, bounds->n);
}

// Adds a Slice with constant bounds, which are inputs from opset 10 on.
static tsr_value *slice_static(struct part *part, tsr_value *x, const struct bounds *bounds,
                               struct str out)
{
    if (part->draft->opset < 10)
        return slice_old(part, x, bounds, out);
    return NAMED_NODE(part, "Slice", out, x, tsr__part_ints(part, bounds->starts, bounds->n),
                      tsr__part_ints(part, bounds->stops, bounds->n),
                      tsr__part_ints(part, bounds->axes, bounds->n));
}

tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop, struct str out)
{
    struct bounds bounds = {.axes = {axis}, .starts = {start}, .stops = {stop}, .n = 1};
    return slice_static(part, x, &bounds, out);
}

// Adds nodes that compute where shares start: share j of n at floor(j units / n) * unit.
static tsr_value *start_of(struct part *part, tsr_value *units, const struct bounds *bounds,
                           const int64_t *shares, const int64_t *of)
{
    tsr_value *start = NODE(part, "Mul", units, tsr__part_ints(part, shares, bounds->n));
    start = NODE(part, "Div", start, tsr__part_ints(part, of, bounds->n));
    return NODE(part, "Mul", start, tsr__part_ints(part, bounds->unit, bounds->n));
}

// Returns the full sizes of the axes.
static tsr_value *full_sizes(struct part *part, const struct item *it, tsr_value *x,
                             const struct bounds *bounds, tsr_value *axes)
{
    tsr_value *sizes[TILE_MAX_RANK];
    if (!bounds->inner)
        return NODE(part, "Gather", NODE(part, "Shape", x), axes);
    for (int64_t i = 0; i < bounds->n; i++)
        sizes[i] = tsr__part_size(part, it, (int)bounds->axes[i]);
    return tsr__part_concat(part, sizes, (size_t)bounds->n, 0, NEW_NAME);
}

// Adds a Slice with bounds that nodes compute. A dimension of size D has F = ceil(D / unit) units.
// Shard j of n starts at floor(j F / n) * unit and stops where shard j + 1 starts; Slice clamps the
// stop to D. If the tensor is a shard itself, its start is subtracted.
//     Example: D = 10 rows in units of 4, shard 1 of 2: F = (10 + 3) / 4 = 3;
//     from 1 * 3 / 2 * 4 = 4 to 2 * 3 / 2 * 4 = 12, so rows 4..9
static tsr_value *slice_dynamic(struct part *part, const struct item *it, tsr_value *x,
                                const struct bounds *bounds, struct str out)
{
    tsr_value *axes = tsr__part_ints(part, bounds->axes, bounds->n);
    tsr_value *units = full_sizes(part, it, x, bounds, axes);
    units = NODE(part, "Add", units, tsr__part_ints(part, bounds->spare, bounds->n));
    units = NODE(part, "Div", units, tsr__part_ints(part, bounds->unit, bounds->n));
    tsr_value *start = start_of(part, units, bounds, bounds->part, bounds->parts);
    tsr_value *stop = start_of(part, units, bounds, bounds->next, bounds->parts);
    if (bounds->inner) {
        tsr_value *origin = start_of(part, units, bounds, bounds->first, bounds->of);
        start = NODE(part, "Sub", start, origin);
        stop = NODE(part, "Sub", stop, origin);
    }
    return NAMED_NODE(part, "Slice", out, x, start, stop, axes);
}

static int64_t elements_of(const struct dim_slice *cut)
{
    int64_t count = 0;
    for (int64_t i = 0; i < cut->n; i++)
        count += cut->at[i].stop - cut->at[i].start;
    return count;
}

// Adds a Gather that picks several intervals of one dimension.
static tsr_value *pick_numbers(struct part *part, tsr_value *x, int axis,
                               const struct dim_slice *cut, struct str out)
{
    int64_t count = elements_of(cut), at = 0;
    int64_t *indices = ARENA_ARRAY(part->draft->arena, int64_t, (size_t)count + 1);
    if (!indices)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        for (int64_t k = cut->at[i].start; k < cut->at[i].stop; k++)
            indices[at++] = k;
    tsr_value *y = NAMED_NODE(part, "Gather", out, x, tsr__part_ints(part, indices, count));
    return tsr__with_int(y, "axis", axis);
}

// Adds a Slice for each interval and Concats of the slices. Used for strings before opset 9, which
// has no Compress.
static tsr_value *join_runs(struct part *part, tsr_value *x, int axis, const struct dim_slice *cut,
                            struct str out)
{
    struct row_names names = {.last = out, .left = (int)cut->n - 1};
    tsr_value *joined = NULL;
    for (int64_t i = 0; i < cut->n; i++) {
        tsr_value *run =
            tsr__part_slice(part, x, axis, cut->at[i].start, cut->at[i].stop, NEW_NAME);
        if (!joined) {
            joined = run;
            continue;
        }
        joined = NAMED_NODE(part, "Concat", next_name(&names), joined, run);
        joined = tsr__with_int(joined, "axis", axis);
        if (!joined)
            return NULL;
    }
    return joined;
}

// Adds a Compress that picks intervals of strings, because ONNX Runtime's Gather copies only the
// first string of each row (quirk string_gather_rows). Example: of 5 rows, intervals [0, 1) and [2,
// 4) are the mask {1, 0, 1, 1}; rows after the last interval need no entry.
static tsr_value *pick_texts(struct part *part, tsr_value *x, int axis, const struct dim_slice *cut,
                             struct str out)
{
    if (part->draft->opset < 9)
        return join_runs(part, x, axis, cut, out);
    int64_t length = cut->n ? cut->at[cut->n - 1].stop : 0;
    char *marks = arena_get(part->draft->arena, (size_t)length + 1, 1);
    if (!marks)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        memset(marks + cut->at[i].start, 1, (size_t)(cut->at[i].stop - cut->at[i].start));
    tsr_value *taken =
        tsr__part_constant(part, tsr_model_graph(part->model), TSR_BOOL, 1, &length, marks);
    return tsr__with_int(NAMED_NODE(part, "Compress", out, x, taken), "axis", axis);
}

static tsr_value *pick(struct part *part, tsr_value *x, int axis, const struct dim_slice *cut,
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

static void add_dynamic(struct bounds *bounds, int axis, const struct dim_slice *cut)
{
    bounds->axes[bounds->n] = axis;
    bounds->unit[bounds->n] = cut->unit;
    bounds->spare[bounds->n] = cut->unit - 1;
    bounds->part[bounds->n] = cut->part.first;
    bounds->next[bounds->n] = cut->part.stop;
    bounds->first[bounds->n] = cut->stored.first;
    bounds->of[bounds->n] = cut->stored.of;
    bounds->inner = bounds->inner || cut->stored.of > 1;
    bounds->parts[bounds->n++] = cut->part.of;
}

// How the rank gets its shard along each axis. Several intervals are gathered, one interval is
// sliced, and unknown sizes are sliced at computed bounds.
struct slice_plan {
    struct dim_slice cuts[TILE_MAX_RANK];
    struct bounds fixed, dynamic;
    int n_picks;
};

static bool is_picked(const struct dim_slice *cut)
{
    return cut->source == DIM_STATIC && cut->n != 1;
}

// Returns the windows of the rank along an axis, window number k, as positions in its tensor of the
// form `from`. Windows without elements are one empty interval.
static struct dim_slice cropped(struct part *part, const struct form *from,
                                const struct windows *windows, int k)
{
    const struct dim_slice *all = &windows->parts[part->rank * windows->n_axes + k];
    struct dim_slice cut = {.source = DIM_STATIC, .n = int64_max(all->n, 1)};
    struct tile_interval own = {0, 0};
    int axis = windows->axes[k];
    cut.at = ARENA_ARRAY(part->draft->arena, struct tile_interval, (size_t)cut.n);
    if (tsr__dim_is_sharded(&from->layout->dims[axis]))
        (void)tsr__own_interval(from->item, from->layout, part->rank, axis, &own);
    for (int64_t i = 0; cut.at && i < all->n; i++)
        cut.at[i] =
            (struct tile_interval){all->at[i].start - own.start, all->at[i].stop - own.start};
    return cut;
}

// Returns how the rank slices its part along the axis: its window, if the result has windows along
// it, else its shard.
static struct dim_slice cut_along(struct part *part, const struct step *st, int axis)
{
    const struct form *from = st->inputs[0], *to = st->outputs[0];
    int64_t sizes[TILE_MAX_RANK];
    struct reshard_tensor tensor = tsr__item_tensor(part->draft, to->item, sizes);
    for (int k = 0; to->windows && k < to->windows->n_axes; k++)
        if (to->windows->axes[k] == axis)
            return cropped(part, from, to->windows, k);
    return tsr__dim_source(part->draft->arena, &tensor, from->layout, to->layout, part->rank, axis);
}

static tsr_status sort_axes(struct part *part, const struct step *st, struct slice_plan *out)
{
    const struct form *to = st->outputs[0];
    *out = (struct slice_plan){0};
    for (int axis = 0; axis < to->layout->rank && axis < TILE_MAX_RANK; axis++) {
        struct dim_slice *cut = &out->cuts[axis];
        *cut = cut_along(part, st, axis);
        if (part->draft->arena->failed)
            return TSR_NOMEM;
        if (is_picked(cut))
            out->n_picks++;
        else if (cut->source == DIM_STATIC)
            add_static(&out->fixed, axis, &cut->at[0]);
        else if (cut->source == DIM_DYNAMIC)
            add_dynamic(&out->dynamic, axis, cut);
    }
    return TSR_OK;
}

// Adds the nodes of the plan. The output of the last one gets the name `last`.
static tsr_value *add_slices(struct part *part, const struct form *to,
                             const struct slice_plan *plan, tsr_value *x, struct str last)
{
    struct row_names names = {.last = last, .left = plan->n_picks};
    // count the nodes that will be added
    names.left += (plan->fixed.n > 0) + (plan->dynamic.n > 0);
    for (int axis = 0; axis < to->layout->rank && plan->n_picks; axis++) {
        const struct dim_slice *cut = &plan->cuts[axis];
        if (is_picked(cut))
            x = pick(part, x, axis, cut, to->item->dtype, next_name(&names));
    }
    if (plan->fixed.n)
        x = slice_static(part, x, &plan->fixed, next_name(&names));
    if (plan->dynamic.n)
        x = slice_dynamic(part, to->item, x, &plan->dynamic, next_name(&names));
    return x;
}

// Writes a slice of the rank's tensor: its shard, or its windows. Types without a Slice kernel are
// cast before and after it (quirks slice_of_float8, identity_of_4_bits).
tsr_status tsr__emit_slice(struct part *part, struct step *st)
{
    struct form *to = st->outputs[0];
    tsr_value **local = &to->local[part->rank], *x = local_of(part, st->inputs[0]);
    struct slice_plan plan;
    TRY(sort_axes(part, st, &plan));
    struct str name = tsr__form_name(part, to);
    tsr_dtype type = to->item->dtype;
    if (tsr__sliced_as(type) != type) {
        x = tsr__part_cast(part, x, tsr__sliced_as(type), NEW_NAME);
        x = add_slices(part, to, &plan, x, NEW_NAME);
        *local = tsr__part_cast(part, x, type, name);
    } else {
        *local = add_slices(part, to, &plan, x, name);
    }
    if (!*local)
        return TSR_NOMEM;
    // If nothing was sliced, the producer has declared the type. Windows have own sizes.
    if (*local == x || to->windows)
        return TSR_OK;
    return tsr__part_sizes_known(part, *local, to);
}

// Adds a Slice that removes elements of x, the result of the local node, that do not belong to the
// shard. Example: 8 channels sharded in 2. On rank 1, an LRN over 3 neighbours reads and returns
// channels 3..7, but its shard is 4..7.
tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x, struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    struct bounds fixed = {.n = 0};
    int64_t place = tsr__place_index(&st->flow->place, part->rank);
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
    return status_of_alloc(st->outputs[0]->local[part->rank]);
}
