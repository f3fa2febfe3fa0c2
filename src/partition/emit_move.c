// SPDX-License-Identifier: Apache-2.0
// emit_move.c - slices and communication nodes. A slice takes what a rank needs from what it holds,
// with constant bounds where sizes are known, with bounds computed from the size at run time where
// not. A communication node is made on every rank of its group at once, with the same number and
// attributes, and chained through the rank's token.
#include "internal.h"

// ---- slices ------------------------------------------------------------------------------------

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

// ---- communication -----------------------------------------------------------------------------

static tsr_status set_layout(struct plan *plan, tsr_node *node, const char *name,
                             const struct tile_layout *layout)
{
    size_t count = tsr__layout_encode(layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(plan->arena, int64_t, count + 1);
    if (!code)
        return TSR_NOMEM;
    tsr__layout_encode(layout, code, count);
    return tsr_node_set_ints(node, name, code, count);
}

static tsr_status set_axes(tsr_node *node, const struct windows *windows)
{
    int64_t axes[TILE_MAX_RANK];
    for (int k = 0; k < windows->n_axes; k++)
        axes[k] = windows->axes[k];
    return tsr_node_set_ints(node, tsr__attribute_name(ATTRIBUTE_AXES), axes,
                             (size_t)windows->n_axes);
}

// For each member, for each axis: a number of intervals, and their bounds.
static tsr_status set_windows(struct plan *plan, tsr_node *node, const struct step *st)
{
    const struct windows *windows = st->outputs[0]->windows;
    const struct device_group *group = &st->groups[0];
    VEC(int64_t) list = {0};
    for (size_t i = 0; i < group->n * (size_t)windows->n_axes; i++) {
        size_t axis = i % (size_t)windows->n_axes;
        const struct dim_cut *part =
            &windows->parts[group->devices[i / (size_t)windows->n_axes] * windows->n_axes +
                            (int64_t)axis];
        int64_t *count = vec_push(plan->arena, &list);
        if (!count)
            return TSR_NOMEM;
        *count = part->n;
        for (int64_t k = 0; k < 2 * part->n; k++) {
            int64_t *bound = vec_push(plan->arena, &list);
            if (!bound)
                return TSR_NOMEM;
            *bound = k % 2 ? part->at[k / 2].stop : part->at[k / 2].start;
        }
    }
    return tsr_node_set_ints(node, tsr__attribute_name(ATTRIBUTE_WINDOWS), list.at, list.n);
}

static tsr_status set_reduce(tsr_node *node, const struct step *st)
{
    static const char *const reduce[] = {[COMBINE_SUM] = "sum",
                                         [COMBINE_MAX] = "max",
                                         [COMBINE_MIN] = "min",
                                         [COMBINE_PROD] = "prod"};
    return tsr_node_set_string(node, tsr__attribute_name(ATTRIBUTE_REDUCE),
                               reduce[st->flow->combine]);
}

// The pair of a message is ascending and its root is the sender: of {3,5} with root 5, both[0] == 5 is 0, and both[0] = 3 is
// the receiver.
static int64_t receiver(const struct step *st, size_t group)
{
    const int64_t *both = st->groups[group].devices;
    return both[both[0] == st->roots[group]];
}

// One attribute that only some collectives have.
static tsr_status set_one(struct plan *plan, tsr_node *node, const struct step *st, size_t group,
                          enum comm_attribute attribute)
{
    const char *name = tsr__attribute_name(attribute);
    switch (attribute) {
    case ATTRIBUTE_REDUCE:
        return set_reduce(node, st);
    case ATTRIBUTE_AXIS:
        return tsr_node_set_int(node, name, st->axis);
    case ATTRIBUTE_SPLIT_AXIS:
        return tsr_node_set_int(node, name, st->split_axis);
    case ATTRIBUTE_UNIT:
        return tsr_node_set_int(node, name, st->unit);
    case ATTRIBUTE_ROOT:
    case ATTRIBUTE_FROM:
        return tsr_node_set_int(node, name, st->roots[group]);
    case ATTRIBUTE_TO:
        return tsr_node_set_int(node, name, receiver(st, group));
    case ATTRIBUTE_SOURCE:
        return set_layout(plan, node, name, st->inputs[0]->layout);
    case ATTRIBUTE_TARGET:
        return set_layout(plan, node, name, st->outputs[0]->layout);
    case ATTRIBUTE_AXES:
        return set_axes(node, st->outputs[0]->windows);
    case ATTRIBUTE_WINDOWS:
        return set_windows(plan, node, st);
    case ATTRIBUTE_COUNT:
        break;
    }
    return TSR_OK;
}

// Attributes that only some collectives have: the row says which.
static tsr_status own_attributes(struct plan *plan, tsr_node *node, const struct step *st,
                                 size_t group)
{
    for (int k = 0; k < ATTRIBUTE_COUNT; k++) {
        enum comm_attribute attribute = (enum comm_attribute)k;
        if (!comm_carries((int)tsr__step_collective(st), attribute))
            continue;
        tsr_status status = set_one(plan, node, st, group, attribute);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static tsr_status set_attributes(struct plan *plan, tsr_node *node, const struct step *st,
                                 size_t group)
{
    const struct device_group *device_group = &st->groups[group];
    tsr_status status = tsr_node_set_string(node, "plan", plan->fingerprint);
    if (status == TSR_OK)
        status = tsr_node_set_int(node, "id", st->id);
    if (status == TSR_OK)
        status = tsr_node_set_ints(node, "group", device_group->devices, device_group->n);
    if (status == TSR_OK)
        status = tsr_node_set_int(node, "elem_type", tsr__carried(tsr__step_type(st)));
    if (status != TSR_OK)
        return status;
    return own_attributes(plan, node, st, group);
}

static tsr_value *comm_shape(struct part *part, const struct step *st)
{
    struct form *shape = st->inputs[1];
    if (shape)
        return form_root(shape)->local[part->rank];
    return tsr__part_shape(part, st->inputs[0]->item);
}

// What stands on this rank: a message has two ends.
static const char *op_here(const struct part *part, const struct step *st, size_t group)
{
    const struct collective *row = tsr__collective((int)tsr__step_collective(st));
    if (row->other_end && st->roots[group] != part->rank)
        return row->other_end;
    return row->op;
}

// A rank that gives nothing gives an empty tensor of the type.
static tsr_value *comm_input(struct part *part, const struct step *st)
{
    bool has = tsr__layout_has_device(st->inputs[0]->layout, part->rank);
    tsr_value *x = has ? form_root(st->inputs[0])->local[part->rank] : NULL;
    tsr_dtype own = st->outputs[0]->item->dtype, carried = tsr__carried(own);
    if (!x)
        return comm_has(st->kind, TRAIT_MAY_LACK_INPUT) ? tsr__part_empty(part, carried) : NULL;
    return carried == own ? x : tsr__part_cast(part, x, carried, (struct str){0});
}

// Says what comes out, as far as sizes are known: no engine can infer it.
static tsr_status declare(const struct part *t, tsr_value *value, const struct form *form)
{
    const struct item *it = form->item;
    tsr_dim dims[TILE_MAX_RANK];
    int64_t coords[TILE_MAX_FACTORS];
    if (it->rank < 0 || it->rank > TILE_MAX_RANK || it->rank != form->layout->rank || it->list ||
        !tsr__layout_has_device(form->layout, t->rank) || !tsr__owns_once(form->layout))
        return TSR_OK;
    for (int axis = 0; axis < it->rank; axis++) {
        int64_t size = it->dims[axis].value;
        if (size >= 0 && tsr__dim_cut(&form->layout->dims[axis])) {
            if (!tsr__device_coords(form->layout, t->rank, axis, coords))
                return TSR_OK;
            struct local_size local = tsr__local_size(&form->layout->dims[axis], coords);
            size = tsr__local_size_of(&local, size);
        }
        dims[axis] = (tsr_dim){size >= 0 ? size : -1, ""};
    }
    const int n_windowed = form->windows ? form->windows->n_axes : 0;
    for (int k = 0; k < n_windowed; k++) {
        const struct dim_cut *part = &form->windows->parts[t->rank * form->windows->n_axes + k];
        int64_t size = 0;
        for (int64_t i = 0; i < part->n; i++)
            size += part->at[i].stop - part->at[i].start;
        dims[form->windows->axes[k]].value = size;
    }
    return tsr_value_set_type(value, tsr__carried(it->dtype), it->rank, dims);
}

tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2])
{
    struct plan *plan = part->plan;
    const char *type = tsr__step_type(st) == TSR_FLOAT16 ? "F16" : "";
    struct str op = tsr__arena_printf(plan->arena, "%s%s", op_here(part, st, group), type);
    struct str label =
        tsr__arena_printf(plan->arena, "%s_%lld", op_here(part, st, group), (long long)st->id);
    if (plan->arena->failed)
        return NULL;
    tsr_node *node =
        tsr_graph_add_node(part->graph, COMM_DOMAIN, op.p, label.p, inputs, n_inputs, outputs, 2);
    if (!node || set_attributes(plan, node, st, group) != TSR_OK)
        return NULL;
    part->token = tsr_node_output(node, 1);
    return node;
}

static tsr_status emit_on(struct part *part, struct step *st, size_t group)
{
    struct plan *plan = part->plan;
    struct form *to = st->outputs[0];
    struct item *it = to->item;
    tsr_value *inputs[3];
    size_t n = 0;
    inputs[n++] = comm_input(part, st);
    if (comm_has(st->kind, TRAIT_TAKES_SHAPE))
        inputs[n++] = comm_shape(part, st);
    inputs[n++] = part->token;
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return TSR_NOMEM;
    // A rank may serve in two groups: it keeps the first result. One that gets nothing keeps none.
    bool first = !to->local[part->rank] && (comm_has(st->kind, TRAIT_ALL_KEEP) ||
                                            tsr__layout_has_device(to->layout, part->rank));
    bool twice = to->local[part->rank];
    struct str own_name = first ? tsr__form_name(part, to) : tsr__part_fresh(part);
    bool narrow = first && tsr__carried(it->dtype) != it->dtype;
    struct str name = narrow ? tsr__part_fresh(part) : own_name;
    struct str token = tsr__arena_printf(plan->arena, TOKEN_NAME ".%lld", (long long)st->id);
    if (twice)
        token = tsr__part_fresh(part);
    if (plan->arena->failed)
        return TSR_NOMEM;
    const char *outputs[2] = {name.p, token.p};
    tsr_node *node = tsr__comm_node(part, st, group, inputs, n, outputs);
    if (!node)
        return TSR_NOMEM;
    if (first)
        to->local[part->rank] = tsr_node_output(node, 0);
    tsr_status status = first ? declare(part, to->local[part->rank], to) : TSR_OK;
    if (status != TSR_OK || !narrow)
        return status;
    to->local[part->rank] = tsr__part_cast(part, to->local[part->rank], it->dtype, own_name);
    return to->local[part->rank] ? TSR_OK : TSR_NOMEM;
}

static tsr_status emit_member(struct part *part, struct step *st, size_t group)
{
    if (st->kind == STEP_LIST)
        return tsr__emit_list(part, st, group);
    if (part->plan->microsoft)
        return tsr__dialect_emit(part, st);
    return emit_on(part, st, group);
}

tsr_status tsr__emit_comm(struct part *parts, struct step *st)
{
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        if (tsr__group_alone(st, g)) {
            int64_t rank = group->devices[0];
            st->outputs[0]->local[rank] = form_root(st->inputs[0])->local[rank];
            continue;
        }
        for (size_t i = 0; i < group->n; i++) {
            tsr_status status = emit_member(&parts[group->devices[i]], st, g);
            if (status != TSR_OK)
                return status;
        }
    }
    return TSR_OK;
}
