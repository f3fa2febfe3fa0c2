// SPDX-License-Identifier: Apache-2.0
// dialect.c - communication as ONNX Runtime's own builds with NCCL know it: AllReduce, AllGather and
// AllToAll of com.microsoft, among all ranks, with parts of one size. They have no token. So each of
// them is made to depend on the one before it, by the data where it does so already, else by nothing
// of that one's result put in front of what is given; and a result that nobody reads is an output of
// the file, so that no engine drops it. What they cannot say is found before anything is built, all at
// once.
#include "internal.h"

#define DOMAIN "com.microsoft"

// ---- what they can say -------------------------------------------------------------------------

static void refuse(struct plan *p, const struct step *st, const char *why)
{
    const struct item *it = st->outputs[0]->item;
    const tsr_node *n = st->flow    ? st->flow->node
                        : it->value ? tsr_value_producer(it->value)
                                    : NULL;
    struct place at = n ? tsr__place_node(n) : PLACE_NONE;
    at.value = it->name;
    at.configuration = str_of(tsr_config_name(p->flow->config));
    tsr__diag(p->session, DIAG_partition_dialect, &at,
              "another sharding, or leave --dialect away: Tessera's own operators can do it",
              "%s of '" STR_FMT "': %s", tsr__step_op(st), STR_ARG(it->name), why);
    p->status = TSR_UNSUPPORTED;
}

// Elements of that axis on a rank; -1: not known, or it has none.
static int64_t size_on(const struct form *f, int axis, int64_t rank)
{
    int64_t coords[TILE_MAX_FACTORS];
    const struct item *it = f->item;
    if (axis >= it->rank || it->dims[axis].value < 0 ||
        !tsr__device_coords(f->layout, rank, axis, coords))
        return -1;
    struct local_size l = tsr__local_size(&f->layout->dims[axis], coords);
    return tsr__local_size_of(&l, it->dims[axis].value);
}

static bool even(const struct plan *p, const struct form *f, int axis)
{
    for (int64_t r = 0; r < p->n_ranks; r++)
        if (size_on(f, axis, r) < 0 || size_on(f, axis, r) != size_on(f, axis, 0))
            return false;
    return true;
}

static bool everybody(const struct plan *p, const struct step *st)
{
    const struct device_group *g = &st->groups[0];
    for (size_t i = 0; i < g->n; i++)
        if (g->devices[i] != (int64_t)i)
            return false;
    return st->n_groups == 1 && (int64_t)g->n == p->n_ranks;
}

static bool type_fits(const struct step *st, tsr_dtype type)
{
    if (type == TSR_FLOAT || type == TSR_FLOAT16 || type == TSR_DOUBLE)
        return true;
    bool moves = st->kind == STEP_GATHER || st->kind == STEP_ALL_TO_ALL;
    return moves && (type == TSR_INT64 || type == TSR_BOOL);
}

static const char *why_not(const struct plan *p, const struct step *st)
{
    bool reduces =
        st->kind == STEP_REDUCE || st->kind == STEP_REDUCE_SCATTER || st->kind == STEP_REDUCE_TO;
    if (!reduces && st->kind != STEP_GATHER && st->kind != STEP_ALL_TO_ALL)
        return DOMAIN " has AllReduce, AllGather and AllToAll only";
    if (!everybody(p, st))
        return "not all ranks take part, and " DOMAIN " knows no groups";
    if (reduces && st->flow->combine != COMBINE_SUM)
        return DOMAIN "'s AllReduce can only add";
    if (st->outputs[0]->item->rank < 0 || st->outputs[0]->item->rank > TILE_MAX_RANK)
        return "its number of dimensions is not known, or too large";
    if (!type_fits(st, st->outputs[0]->item->dtype))
        return "the operator of " DOMAIN " does not take this element type";
    if ((st->kind == STEP_GATHER || st->kind == STEP_ALL_TO_ALL) &&
        !even(p, st->inputs[0], st->axis))
        return "the parts have different sizes, or unknown ones";
    if (st->kind == STEP_ALL_TO_ALL && !even(p, st->outputs[0], st->split_axis))
        return "the parts have different sizes, or unknown ones";
    if (st->kind == STEP_REDUCE_SCATTER && size_on(st->outputs[0], st->axis, 0) < 0)
        return "the size of the axis that is cut is not known";
    return NULL;
}

static void check_body(void *data, const struct step *st)
{
    if (st->id >= 0)
        refuse(data, st, "inside a body, where its order cannot be kept without tokens");
}

static bool waits(const struct step *st)
{
    size_t most = 0;
    for (size_t g = 0; g < st->n_groups; g++)
        most = st->group_live[g] && st->groups[g].n > most ? st->groups[g].n : most;
    return st->id >= 0 && (most > 1 || st->kind == STEP_RESHARD || st->kind == STEP_HALO);
}

tsr_status tsr__dialect_check(struct plan *p)
{
    for (size_t i = 0; i < p->steps.n; i++) {
        const struct step *st = p->steps.at[i];
        for (int k = 0; k < st->n_bodies; k++)
            tsr__steps_visit(&st->bodies[k].steps, check_body, p);
        const char *why = waits(st) ? why_not(p, st) : NULL;
        if (why)
            refuse(p, st, why);
    }
    return p->status;
}

// ---- one after the other -----------------------------------------------------------------------

static bool reads_marked(const tsr_node *n, const unsigned char *marked)
{
    tsr_value **captures;
    size_t n_in = tsr_node_input_count(n), n_captures = tsr__node_captures(n, &captures);
    for (size_t i = 0; i < n_in + n_captures; i++) {
        const tsr_value *v = i < n_in ? tsr_node_input(n, i) : captures[i - n_in];
        const tsr_node *maker = v ? tsr_value_producer(v) : NULL;
        if (maker && marked[tsr__node_id(maker)])
            return true;
    }
    return false;
}

// x is made of what the last communication gave. Nodes are made in order: only later ones can be.
static bool follows(struct part *t, const tsr_value *x, bool *out)
{
    const tsr_node *end = tsr_value_producer(x), *last = t->comms.at[t->comms.n - 1];
    size_t n = tsr__model_node_ids(t->model);
    unsigned char *marked = ARENA_ARRAY(t->plan->arena, unsigned char, n + 1);
    *out = false;
    if (!marked)
        return false;
    marked[tsr__node_id(last)] = 1;
    for (const tsr_node *k = tsr_node_next(last); k && end; k = tsr_node_next(k))
        marked[tsr__node_id(k)] = reads_marked(k, marked);
    *out = end && marked[tsr__node_id(end)];
    return true;
}

// x with nothing in front of it: no element of `before`, in the shape of x.
static tsr_value *behind(struct part *t, tsr_value *x, tsr_value *before, tsr_dtype from,
                         tsr_dtype to)
{
    static const int64_t all[1] = {-1}, zero[1] = {0}, one[1] = {1}, end[1] = {INT64_MAX};
    const struct str any = {0};
    tsr_value *none = tsr__part_node(t, "Reshape", any, 2, before, tsr__part_ints(t, all, 1));
    tsr_value *at = tsr__part_ints(t, zero, 1);
    none = tsr__part_node(t, "Slice", any, 4, none, at, at, at);
    if (from != to) {
        none = none ? tsr__part_node(t, "Cast", any, 1, none) : NULL;
        if (!none || tsr_node_set_int(tsr_value_producer(none), "to", to) != TSR_OK)
            return NULL;
    }
    tsr_value *shape = tsr__part_node(t, "Shape", any, 1, x);
    shape = tsr__part_node(t, "Slice", any, 4, shape, tsr__part_ints(t, one, 1),
                           tsr__part_ints(t, end, 1), at);
    shape = tsr__part_node(t, "Concat", any, 2, at, shape);
    if (!shape || tsr_node_set_int(tsr_value_producer(shape), "axis", 0) != TSR_OK)
        return NULL;
    none = tsr__part_node(t, "Reshape", any, 2, none, shape);
    if (!none || tsr_node_set_int(tsr_value_producer(none), "allowzero", 1) != TSR_OK)
        return NULL;
    tsr_value *y = tsr__part_node(t, "Concat", any, 2, none, x);
    return y && tsr_node_set_int(tsr_value_producer(y), "axis", 0) == TSR_OK ? y : NULL;
}

static tsr_status chain(struct part *t, const struct step *st, tsr_value **x)
{
    bool follows_already = true;
    const struct item *it = st->outputs[0]->item;
    if (t->comms.n && !follows(t, *x, &follows_already))
        return TSR_NOMEM;
    if (follows_already)
        return TSR_OK;
    if (it->rank < 1 || t->plan->opset < 14) {
        refuse(t->plan, st,
               it->rank < 1 ? "a single number, which cannot be put behind the communication before"
                            : "it cannot be put behind the communication before it in this opset");
        return TSR_UNSUPPORTED;
    }
    size_t last = t->comms.n - 1;
    *x = behind(t, *x, tsr_node_output(t->comms.at[last], 0), t->items.at[last]->dtype, it->dtype);
    return *x ? TSR_OK : TSR_NOMEM;
}

// ---- nodes -------------------------------------------------------------------------------------

// Parts of x along one axis, one after the other along another.
static tsr_value *turned(struct part *t, tsr_value *x, int from, int to, struct str out)
{
    struct plan *p = t->plan;
    size_t n = (size_t)p->n_ranks;
    const char **names = ARENA_ARRAY(p->arena, const char *, n);
    tsr_value **parts = ARENA_ARRAY(p->arena, tsr_value *, n);
    for (size_t i = 0; i < n && names; i++)
        names[i] = tsr__part_fresh(t).p;
    struct str name = out.p ? out : tsr__part_fresh(t);
    if (p->arena->failed)
        return NULL;
    tsr_node *split = tsr_graph_add_node(t->graph, "", "Split", names[0], &x, 1, names, n);
    if (!split || tsr_node_set_int(split, "axis", from) != TSR_OK ||
        (p->opset >= 18 && tsr_node_set_int(split, "num_outputs", (int64_t)n) != TSR_OK))
        return NULL;
    for (size_t i = 0; i < n; i++)
        parts[i] = tsr_node_output(split, i);
    tsr_node *join = tsr_graph_add_node(t->graph, "", "Concat", name.p, parts, n, &name.p, 1);
    return join && tsr_node_set_int(join, "axis", to) == TSR_OK ? tsr_node_output(join, 0) : NULL;
}

static tsr_value *comm_node(struct part *t, const struct step *st, const char *op, tsr_value *x,
                            struct str out)
{
    struct plan *p = t->plan;
    struct str label = tsr__arena_printf(p->arena, "%s_%lld", op, (long long)st->id);
    struct str name = out.p ? out : tsr__part_fresh(t);
    tsr_node *n = p->arena->failed
                      ? NULL
                      : tsr_graph_add_node(t->graph, DOMAIN, op, label.p, &x, 1, &name.p, 1);
    bool sized = st->kind == STEP_GATHER || st->kind == STEP_ALL_TO_ALL;
    if (!n || (sized && tsr_node_set_int(n, "group_size", p->n_ranks) != TSR_OK) ||
        (st->kind == STEP_GATHER && tsr_node_set_int(n, "axis", st->axis) != TSR_OK))
        return NULL;
    tsr_node **slot = vec_push(p->arena, &t->comms);
    const struct item **item = vec_push(p->arena, &t->items);
    if (!slot || !item)
        return NULL;
    *slot = n;
    *item = st->outputs[0]->item;
    return tsr_node_output(n, 0);
}

// Of a sum that all have, the part that this rank wants.
static tsr_value *own_part(struct part *t, const struct step *st, tsr_value *x, struct str out)
{
    int64_t start = 0, stop = size_on(st->outputs[0], st->axis, t->rank), axis = st->axis;
    for (int64_t r = 0; r < t->rank; r++)
        start += size_on(st->outputs[0], st->axis, r);
    stop += start;
    return tsr__part_node(t, "Slice", out, 4, x, tsr__part_ints(t, &start, 1),
                          tsr__part_ints(t, &stop, 1), tsr__part_ints(t, &axis, 1));
}

static tsr_value *emit_one(struct part *t, const struct step *st, tsr_value *x, struct str out)
{
    const struct str any = {0};
    switch (st->kind) {
    case STEP_GATHER:
        return comm_node(t, st, "AllGather", x, out);
    case STEP_ALL_TO_ALL:
        if (st->split_axis != 0)
            x = turned(t, x, st->split_axis, 0, any);
        x = x ? comm_node(t, st, "AllToAll", x, st->axis ? any : out) : NULL;
        return x && st->axis ? turned(t, x, 0, st->axis, out) : x;
    case STEP_REDUCE_SCATTER:
        x = comm_node(t, st, "AllReduce", x, any);
        return x ? own_part(t, st, x, out) : NULL;
    default:
        return comm_node(t, st, "AllReduce", x, out);
    }
}

tsr_status tsr__dialect_emit(struct part *t, struct step *st)
{
    struct form *to = st->outputs[0];
    bool keeps = tsr__layout_has_device(to->layout, t->rank);
    tsr_value *x = form_root(st->inputs[0])->local[t->rank];
    tsr_status status = x ? chain(t, st, &x) : TSR_NOMEM;
    if (status != TSR_OK)
        return status;
    struct str name = keeps ? tsr__form_name(t, to) : tsr__part_fresh(t);
    tsr_value *y = name.p ? emit_one(t, st, x, name) : NULL;
    if (keeps)
        to->local[t->rank] = y;
    return y ? TSR_OK : TSR_NOMEM;
}

// ---- the end -----------------------------------------------------------------------------------

static bool is_read(const struct part *t, const tsr_value *v)
{
    for (size_t i = 0; i < tsr_graph_output_count(t->graph); i++)
        if (tsr_graph_output(t->graph, i) == v)
            return true;
    for (const tsr_node *n = tsr_node_next(tsr_value_producer(v)); n; n = tsr_node_next(n)) {
        tsr_value **captures;
        size_t n_captures = tsr__node_captures(n, &captures);
        for (size_t i = 0; i < tsr_node_input_count(n); i++)
            if (tsr_node_input(n, i) == v)
                return true;
        for (size_t i = 0; i < n_captures; i++)
            if (captures[i] == v)
                return true;
    }
    return false;
}

tsr_status tsr__dialect_outputs(struct part *t)
{
    tsr_status st = TSR_OK;
    tsr_dim unknown[TILE_MAX_RANK];
    for (int d = 0; d < TILE_MAX_RANK; d++)
        unknown[d] = (tsr_dim){-1, ""};
    for (size_t i = 0; i < t->comms.n && st == TSR_OK; i++) {
        tsr_value *v = tsr_node_output(t->comms.at[i], 0);
        if (is_read(t, v))
            continue;
        st = tsr_value_set_type(v, t->items.at[i]->dtype, t->items.at[i]->rank, unknown);
        if (st == TSR_OK)
            st = tsr_graph_add_output(t->graph, v);
    }
    return st;
}

static bool same(const tsr_node *a, const tsr_node *b)
{
    static const char *const names[] = {"axis", "group_size"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (tsr_attr_int(tsr_node_find_attr(a, names[i]), -1) !=
            tsr_attr_int(tsr_node_find_attr(b, names[i]), -1))
            return false;
    return str_eq(tsr__node_op_str(a), tsr__node_op_str(b));
}

// The proof before publishing: every rank has the same operators, in one order that its data keep.
tsr_status tsr__dialect_agree(struct plan *p, struct part *parts)
{
    for (int64_t r = 1; r < p->n_ranks; r++) {
        const struct part *t = &parts[r];
        bool ok = t->comms.n == parts[0].comms.n;
        for (size_t i = 0; ok && i < t->comms.n; i++)
            ok = same(t->comms.at[i], parts[0].comms.at[i]) &&
                 t->items.at[i] == parts[0].items.at[i];
        if (ok)
            continue;
        struct place at = PLACE_NONE;
        at.rank = r;
        tsr__diag(p->session, DIAG_partition_disagrees, &at, "please report this with the model",
                  "rank %lld: its communications differ from those of rank 0", (long long)r);
        return TSR_BUG;
    }
    return TSR_OK;
}
