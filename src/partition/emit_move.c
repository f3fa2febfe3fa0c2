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

static tsr_value *slice_old(struct part *t, tsr_value *x, const struct bounds *b, struct str out)
{
    tsr_value *y = tsr__part_node(t, "Slice", out, 1, x);
    tsr_node *n = y ? tsr_value_producer(y) : NULL;
    if (!n || tsr_node_set_ints(n, "starts", b->starts, (size_t)b->n) != TSR_OK ||
        tsr_node_set_ints(n, "ends", b->stops, (size_t)b->n) != TSR_OK ||
        tsr_node_set_ints(n, "axes", b->axes, (size_t)b->n) != TSR_OK)
        return NULL;
    return y;
}

static tsr_value *slice_static(struct part *t, tsr_value *x, const struct bounds *b, struct str out)
{
    if (t->plan->opset < 10)
        return slice_old(t, x, b, out);
    return tsr__part_node(t, "Slice", out, 4, x, tsr__part_ints(t, b->starts, b->n),
                          tsr__part_ints(t, b->stops, b->n), tsr__part_ints(t, b->axes, b->n));
}

tsr_value *tsr__part_slice(struct part *t, tsr_value *x, int64_t axis, int64_t start, int64_t stop,
                           struct str out)
{
    struct bounds b = {.axes = {axis}, .starts = {start}, .stops = {stop}, .n = 1};
    return slice_static(t, x, &b, out);
}

// Part j of n of F = ceil(D / unit) units: from floor(j F / n) * unit on. Slice itself stops at the
// end.
static tsr_value *slice_dynamic(struct part *t, tsr_value *x, const struct bounds *b,
                                struct str out)
{
    const struct str any = {0};
    tsr_value *axes = tsr__part_ints(t, b->axes, b->n), *unit = tsr__part_ints(t, b->unit, b->n);
    tsr_value *parts = tsr__part_ints(t, b->parts, b->n);
    tsr_value *f = tsr__part_node(t, "Shape", any, 1, x);
    f = tsr__part_node(t, "Gather", any, 2, f, axes);
    f = tsr__part_node(t, "Add", any, 2, f, tsr__part_ints(t, b->spare, b->n));
    f = tsr__part_node(t, "Div", any, 2, f, unit);
    tsr_value *start = tsr__part_node(t, "Mul", any, 2, f, tsr__part_ints(t, b->part, b->n));
    tsr_value *stop = tsr__part_node(t, "Mul", any, 2, f, tsr__part_ints(t, b->next, b->n));
    start = tsr__part_node(t, "Div", any, 2, start, parts);
    stop = tsr__part_node(t, "Div", any, 2, stop, parts);
    start = tsr__part_node(t, "Mul", any, 2, start, unit);
    stop = tsr__part_node(t, "Mul", any, 2, stop, unit);
    return tsr__part_node(t, "Slice", out, 4, x, start, stop, axes);
}

static int64_t elements_of(const struct dim_cut *cut)
{
    int64_t count = 0;
    for (int64_t i = 0; i < cut->n; i++)
        count += cut->at[i].stop - cut->at[i].start;
    return count;
}

// Several runs of one dimension: their indices.
static tsr_value *pick_numbers(struct part *t, tsr_value *x, int axis, const struct dim_cut *cut,
                               struct str out)
{
    int64_t count = elements_of(cut), at = 0;
    int64_t *indices = ARENA_ARRAY(t->plan->arena, int64_t, (size_t)count + 1);
    if (!indices)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        for (int64_t k = cut->at[i].start; k < cut->at[i].stop; k++)
            indices[at++] = k;
    tsr_value *y = tsr__part_node(t, "Gather", out, 2, x, tsr__part_ints(t, indices, count));
    return y && tsr_node_set_int(tsr_value_producer(y), "axis", axis) == TSR_OK ? y : NULL;
}

// Before opset 9 nothing but slices can pick texts: each run by itself, joined to those before it.
static tsr_value *join_runs(struct part *t, tsr_value *x, int axis, const struct dim_cut *cut,
                            struct str out)
{
    const struct str any = {0};
    tsr_value *joined = NULL;
    for (int64_t i = 0; i < cut->n; i++) {
        tsr_value *run = tsr__part_slice(t, x, axis, cut->at[i].start, cut->at[i].stop, any);
        if (!joined) {
            joined = run;
            continue;
        }
        joined = tsr__part_node(t, "Concat", i + 1 < cut->n ? any : out, 2, joined, run);
        if (!joined || tsr_node_set_int(tsr_value_producer(joined), "axis", axis) != TSR_OK)
            return NULL;
    }
    return joined;
}

// The same of texts, of which ONNX Runtime's Gather takes only the first of each row (seen with 1.31.1). Compress takes
// all: of 5 rows, the runs [0, 1) and [2, 4) are {1, 0, 1, 1}; what lies behind the last run needs no mark.
static tsr_value *pick_texts(struct part *t, tsr_value *x, int axis, const struct dim_cut *cut,
                             struct str out)
{
    if (t->plan->opset < 9)
        return join_runs(t, x, axis, cut, out);
    int64_t length = cut->n ? cut->at[cut->n - 1].stop : 0;
    char *marks = arena_get(t->plan->arena, (size_t)length + 1, 1);
    struct str name = tsr__part_fresh(t);
    if (!marks || !name.p)
        return NULL;
    for (int64_t i = 0; i < cut->n; i++)
        memset(marks + cut->at[i].start, 1, (size_t)(cut->at[i].stop - cut->at[i].start));
    tsr_value *taken = tsr_graph_add_initializer(tsr_model_graph(t->model), name.p, TSR_BOOL, 1,
                                                 &length, marks, (size_t)length);
    tsr_value *y = tsr__part_node(t, "Compress", out, 2, x, taken);
    return y && tsr_node_set_int(tsr_value_producer(y), "axis", axis) == TSR_OK ? y : NULL;
}

static tsr_value *pick(struct part *t, tsr_value *x, int axis, const struct dim_cut *cut,
                       tsr_dtype type, struct str out)
{
    if (type == TSR_STRING)
        return pick_texts(t, x, axis, cut, out);
    return pick_numbers(t, x, axis, cut, out);
}

static void add_static(struct bounds *b, int axis, const struct tile_interval *at)
{
    b->axes[b->n] = axis;
    b->starts[b->n] = at->start;
    b->stops[b->n++] = at->stop;
}

static void add_dynamic(struct bounds *b, int axis, const struct dim_cut *cut)
{
    b->axes[b->n] = axis;
    b->unit[b->n] = cut->unit;
    b->spare[b->n] = cut->unit - 1;
    b->part[b->n] = cut->part;
    b->next[b->n] = cut->part + 1;
    b->parts[b->n++] = cut->parts;
}

tsr_status tsr__emit_slice(struct part *t, struct step *st)
{
    struct form *from = st->inputs[0], *to = st->outputs[0];
    tsr_value *x = form_root(from)->local[t->rank];
    struct bounds fixed = {.n = 0}, dynamic = {.n = 0};
    struct dim_cut cuts[TILE_MAX_RANK];
    int n_picks = 0;
    for (int d = 0; d < to->layout->rank && d < TILE_MAX_RANK; d++) {
        cuts[d] = tsr__dim_way(t->plan, to->item, from->layout, to->layout, t->rank, d);
        n_picks += cuts[d].way == DIM_STATIC && cuts[d].n != 1;
        if (cuts[d].way == DIM_STATIC && cuts[d].n == 1)
            add_static(&fixed, d, &cuts[d].at[0]);
        if (cuts[d].way == DIM_DYNAMIC)
            add_dynamic(&dynamic, d, &cuts[d]);
    }
    // The last node gives the form its name.
    struct str last = tsr__form_name(t, to), any = {0};
    tsr_dtype type = to->item->dtype;
    bool wide = type >= TSR_FLOAT8E4M3FN && type <= TSR_FLOAT8E5M2FNUZ;
    struct str name = wide ? any : last;
    int left = n_picks + (fixed.n > 0) + (dynamic.n > 0);
    if (wide)
        x = tsr__part_cast(t, x, TSR_FLOAT16, any);
    for (int d = 0; d < to->layout->rank && n_picks; d++)
        if (cuts[d].way == DIM_STATIC && cuts[d].n != 1)
            x = pick(t, x, d, &cuts[d], type, --left ? any : name);
    if (fixed.n)
        x = slice_static(t, x, &fixed, --left ? any : name);
    if (dynamic.n)
        x = slice_dynamic(t, x, &dynamic, name);
    if (wide)
        x = tsr__part_cast(t, x, type, last);
    to->local[t->rank] = x;
    return x ? TSR_OK : TSR_NOMEM;
}

// The elements of its windows, of a value that is whole along their axes.
tsr_status tsr__emit_crop(struct part *t, struct step *st)
{
    struct form *to = st->outputs[0];
    const struct windows *w = to->windows;
    tsr_value *x = form_root(st->inputs[0])->local[t->rank];
    struct bounds fixed = {.n = 0};
    struct str name = tsr__form_name(t, to), any = {0};
    int left = 0;
    for (int k = 0; k < w->n_axes; k++) {
        const struct dim_cut *part = &w->parts[t->rank * w->n_axes + k];
        static const struct tile_interval none = {0, 0};
        if (part->n < 2)
            add_static(&fixed, w->axes[k], part->n ? &part->at[0] : &none);
        left += part->n >= 2;
    }
    left += fixed.n > 0;
    for (int k = 0; k < w->n_axes; k++) {
        const struct dim_cut *part = &w->parts[t->rank * w->n_axes + k];
        if (part->n >= 2)
            x = pick(t, x, w->axes[k], part, to->item->dtype, --left ? any : name);
    }
    if (fixed.n)
        x = slice_static(t, x, &fixed, name);
    to->local[t->rank] = x;
    return x ? TSR_OK : TSR_NOMEM;
}

// What the local node gives beyond its part, at the ends of its windows (all rules with trims have one result).
bool tsr__trims(const struct node_flow *nf)
{
    const struct rule *r = nf->place.rule;
    for (int i = 0; r && i < r->n_trims; i++)
        if (nf->place.cuts[r->windows[r->trims[i].window].factor] > 1)
            return true;
    return false;
}

tsr_status tsr__emit_trim(struct part *t, struct step *st, tsr_value *x, struct str name)
{
    const struct rule *r = st->flow->place.rule;
    struct bounds fixed = {.n = 0};
    int64_t place = 0;
    while (st->flow->place.devices[place] != t->rank)
        place++;
    for (int i = 0; i < r->n_trims; i++) {
        const struct rule_trim *trim = &r->trims[i];
        if (st->flow->place.cuts[r->windows[trim->window].factor] < 2)
            continue;
        struct window_part w = tsr__window_at(st->flow, place, trim->window);
        add_static(
            &fixed, trim->dim,
            &(struct tile_interval){(w.a - w.start) * trim->unit, (w.b - w.start) * trim->unit});
    }
    st->outputs[0]->local[t->rank] = slice_static(t, x, &fixed, name);
    return st->outputs[0]->local[t->rank] ? TSR_OK : TSR_NOMEM;
}

// ---- communication -----------------------------------------------------------------------------

const char *tsr__step_op(const struct step *st)
{
    static const char *const names[] = {
        [STEP_REDUCE] = TSR_OP_ALLREDUCE, [STEP_REDUCE_SCATTER] = TSR_OP_SCATTER,
        [STEP_REDUCE_TO] = TSR_OP_REDUCE, [STEP_GATHER] = TSR_OP_ALLGATHER,
        [STEP_ALL_TO_ALL] = TSR_OP_TURN,  [STEP_BROADCAST] = TSR_OP_BROADCAST,
        [STEP_SEND] = TSR_OP_SEND,        [STEP_RESHARD] = TSR_OP_RESHARD,
        [STEP_HALO] = TSR_OP_HALO,        [STEP_LIST] = TSR_OP_BROADCAST};
    return names[st->kind];
}

tsr_dtype tsr__step_type(const struct step *st)
{
    const struct item *it = st->outputs[0]->item;
    return it->list ? it->element : it->dtype;
}

static tsr_status set_layout(struct plan *p, tsr_node *n, const char *name,
                             const struct tile_layout *l)
{
    size_t count = tsr__layout_encode(l, NULL, 0);
    int64_t *code = ARENA_ARRAY(p->arena, int64_t, count + 1);
    if (!code)
        return TSR_NOMEM;
    tsr__layout_encode(l, code, count);
    return tsr_node_set_ints(n, name, code, count);
}

// For each member, for each axis: a number of intervals, and their bounds.
static tsr_status set_windows(struct plan *p, tsr_node *n, const struct step *st)
{
    const struct windows *w = st->outputs[0]->windows;
    const struct device_group *g = &st->groups[0];
    int64_t axes[TILE_MAX_RANK];
    VEC(int64_t) list = {0};
    for (int k = 0; k < w->n_axes; k++)
        axes[k] = w->axes[k];
    for (size_t i = 0; i < g->n * (size_t)w->n_axes; i++) {
        size_t axis = i % (size_t)w->n_axes;
        const struct dim_cut *part =
            &w->parts[g->devices[i / (size_t)w->n_axes] * w->n_axes + (int64_t)axis];
        int64_t *count = vec_push(p->arena, &list);
        if (!count)
            return TSR_NOMEM;
        *count = part->n;
        for (int64_t k = 0; k < 2 * part->n; k++) {
            int64_t *bound = vec_push(p->arena, &list);
            if (!bound)
                return TSR_NOMEM;
            *bound = k % 2 ? part->at[k / 2].stop : part->at[k / 2].start;
        }
    }
    tsr_status status = set_layout(p, n, "source", st->inputs[0]->layout);
    if (status == TSR_OK)
        status = tsr_node_set_ints(n, "axes", axes, (size_t)w->n_axes);
    return status == TSR_OK ? tsr_node_set_ints(n, "windows", list.at, list.n) : status;
}

static tsr_status set_reduce(tsr_node *n, const struct step *st)
{
    static const char *const reduce[] = {[COMBINE_SUM] = "sum",
                                         [COMBINE_MAX] = "max",
                                         [COMBINE_MIN] = "min",
                                         [COMBINE_PROD] = "prod"};
    return tsr_node_set_string(n, "reduce", reduce[st->flow->combine]);
}

static tsr_status own_attributes(struct plan *p, tsr_node *n, const struct step *st, size_t group)
{
    tsr_status status = TSR_OK;
    bool send = st->kind == STEP_SEND;
    if (st->kind == STEP_REDUCE || st->kind == STEP_REDUCE_SCATTER || st->kind == STEP_REDUCE_TO)
        status = set_reduce(n, st);
    if (status == TSR_OK &&
        (st->kind == STEP_GATHER || st->kind == STEP_REDUCE_SCATTER || st->kind == STEP_ALL_TO_ALL))
        status = tsr_node_set_int(n, "axis", st->axis);
    if (status == TSR_OK && st->kind == STEP_ALL_TO_ALL)
        status = tsr_node_set_int(n, "split_axis", st->split_axis);
    if (status == TSR_OK && (st->kind == STEP_REDUCE_SCATTER || st->kind == STEP_ALL_TO_ALL))
        status = tsr_node_set_int(n, "unit", st->unit);
    if (status == TSR_OK &&
        (st->kind == STEP_REDUCE_TO || st->kind == STEP_BROADCAST || st->kind == STEP_LIST))
        status = tsr_node_set_int(n, "root", st->roots[group]);
    if (status == TSR_OK && send)
        status = tsr_node_set_int(n, "from", st->roots[group]);
    if (status == TSR_OK && send) {
        const int64_t *both = st->groups[group].devices;
        status = tsr_node_set_int(n, "to", both[both[0] == st->roots[group]]);
    }
    if (st->kind == STEP_HALO && status == TSR_OK)
        return set_windows(p, n, st);
    if (st->kind != STEP_RESHARD || status != TSR_OK)
        return status;
    status = set_layout(p, n, "source", st->inputs[0]->layout);
    return status == TSR_OK ? set_layout(p, n, "target", st->outputs[0]->layout) : status;
}

static tsr_status set_attributes(struct plan *p, tsr_node *n, const struct step *st, size_t group)
{
    const struct device_group *g = &st->groups[group];
    tsr_status status = tsr_node_set_string(n, "plan", p->fingerprint);
    if (status == TSR_OK)
        status = tsr_node_set_int(n, "id", st->id);
    if (status == TSR_OK)
        status = tsr_node_set_ints(n, "group", g->devices, g->n);
    if (status == TSR_OK)
        status = tsr_node_set_int(n, "elem_type", tsr__carried(tsr__step_type(st)));
    return status == TSR_OK ? own_attributes(p, n, st, group) : status;
}

static tsr_value *comm_shape(struct part *t, const struct step *st)
{
    struct form *shape = st->inputs[1];
    return shape ? form_root(shape)->local[t->rank] : tsr__part_shape(t, st->inputs[0]->item);
}

// What stands on this rank: a message has two ends.
static const char *op_here(const struct part *t, const struct step *st, size_t group)
{
    return st->kind == STEP_SEND && st->roots[group] != t->rank ? TSR_OP_RECV : tsr__step_op(st);
}

// A rank that gives nothing gives an empty tensor of the type.
static tsr_value *comm_input(struct part *t, const struct step *st)
{
    bool has = tsr__layout_has_device(st->inputs[0]->layout, t->rank);
    tsr_value *x = has ? form_root(st->inputs[0])->local[t->rank] : NULL;
    tsr_dtype own = st->outputs[0]->item->dtype, carried = tsr__carried(own);
    bool may_lack = st->kind == STEP_RESHARD || st->kind == STEP_BROADCAST || st->kind == STEP_SEND;
    if (!x)
        return may_lack ? tsr__part_empty(t, carried) : NULL;
    return carried == own ? x : tsr__part_cast(t, x, carried, (struct str){0});
}

// Says what comes out, as far as sizes are known: no engine can infer it.
static tsr_status declare(const struct part *t, tsr_value *v, const struct form *f)
{
    const struct item *it = f->item;
    tsr_dim dims[TILE_MAX_RANK];
    int64_t coords[TILE_MAX_FACTORS];
    if (it->rank < 0 || it->rank > TILE_MAX_RANK || it->rank != f->layout->rank || it->list ||
        !tsr__layout_has_device(f->layout, t->rank) || !tsr__owns_once(f->layout))
        return TSR_OK;
    for (int d = 0; d < it->rank; d++) {
        int64_t size = it->dims[d].value;
        if (size >= 0 && tsr__dim_cut(&f->layout->dims[d])) {
            if (!tsr__device_coords(f->layout, t->rank, d, coords))
                return TSR_OK;
            struct local_size local = tsr__local_size(&f->layout->dims[d], coords);
            size = tsr__local_size_of(&local, size);
        }
        dims[d] = (tsr_dim){size >= 0 ? size : -1, ""};
    }
    for (int k = 0; f->windows && k < f->windows->n_axes; k++) {
        const struct dim_cut *part = &f->windows->parts[t->rank * f->windows->n_axes + k];
        int64_t size = 0;
        for (int64_t i = 0; i < part->n; i++)
            size += part->at[i].stop - part->at[i].start;
        dims[f->windows->axes[k]].value = size;
    }
    return tsr_value_set_type(v, tsr__carried(it->dtype), it->rank, dims);
}

tsr_node *tsr__comm_node(struct part *t, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2])
{
    struct plan *p = t->plan;
    const char *type = tsr__step_type(st) == TSR_FLOAT16 ? "F16" : "";
    struct str op = tsr__arena_printf(p->arena, "%s%s", op_here(t, st, group), type);
    struct str label =
        tsr__arena_printf(p->arena, "%s_%lld", op_here(t, st, group), (long long)st->id);
    if (p->arena->failed)
        return NULL;
    tsr_node *node =
        tsr_graph_add_node(t->graph, COMM_DOMAIN, op.p, label.p, inputs, n_inputs, outputs, 2);
    if (!node || set_attributes(p, node, st, group) != TSR_OK)
        return NULL;
    t->token = tsr_node_output(node, 1);
    return node;
}

static tsr_status emit_on(struct part *t, struct step *st, size_t group)
{
    struct plan *p = t->plan;
    struct form *to = st->outputs[0];
    struct item *it = to->item;
    tsr_value *inputs[3];
    size_t n = 0;
    inputs[n++] = comm_input(t, st);
    if (st->kind == STEP_RESHARD || st->kind == STEP_HALO)
        inputs[n++] = comm_shape(t, st);
    inputs[n++] = t->token;
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return TSR_NOMEM;
    // A rank may serve in two groups: it keeps the first result. One that gets nothing keeps none.
    bool first = !to->local[t->rank] &&
                 (st->kind == STEP_RESHARD || tsr__layout_has_device(to->layout, t->rank));
    bool twice = to->local[t->rank];
    struct str own_name = first ? tsr__form_name(t, to) : tsr__part_fresh(t);
    bool narrow = first && tsr__carried(it->dtype) != it->dtype;
    struct str name = narrow ? tsr__part_fresh(t) : own_name;
    struct str token = tsr__arena_printf(p->arena, TOKEN_NAME ".%lld", (long long)st->id);
    if (twice)
        token = tsr__part_fresh(t);
    if (p->arena->failed)
        return TSR_NOMEM;
    const char *outputs[2] = {name.p, token.p};
    tsr_node *node = tsr__comm_node(t, st, group, inputs, n, outputs);
    if (!node)
        return TSR_NOMEM;
    if (first)
        to->local[t->rank] = tsr_node_output(node, 0);
    tsr_status status = first ? declare(t, to->local[t->rank], to) : TSR_OK;
    if (status != TSR_OK || !narrow)
        return status;
    to->local[t->rank] = tsr__part_cast(t, to->local[t->rank], it->dtype, own_name);
    return to->local[t->rank] ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__emit_comm(struct part *parts, struct step *st)
{
    tsr_status status = TSR_OK;
    for (size_t g = 0; g < st->n_groups && status == TSR_OK; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        if (group->n == 1 && st->kind != STEP_RESHARD &&
            st->kind != STEP_HALO) { // alone: nothing to combine with
            int64_t r = group->devices[0];
            st->outputs[0]->local[r] = form_root(st->inputs[0])->local[r];
            continue;
        }
        for (size_t i = 0; i < group->n && status == TSR_OK; i++) {
            struct part *t = &parts[group->devices[i]];
            if (st->kind == STEP_LIST)
                status = tsr__emit_list(t, st, g);
            else
                status = t->plan->microsoft ? tsr__dialect_emit(t, st) : emit_on(t, st, g);
        }
    }
    return status;
}
