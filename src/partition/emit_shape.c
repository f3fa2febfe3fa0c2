// SPDX-License-Identifier: Apache-2.0
// emit_shape.c - sizes at run time. A symbol is read from the model input that has it as a plain
// dimension; an expression of symbols ("batch*seq", "past + 1") becomes a few nodes; a shape is
// their concatenation. Shapes stay global everywhere; only where a node is told the shape of its
// own cut result, local sizes are computed from it.
#include "internal.h"

#include <ctype.h>

#define EXPR_MAX_DEPTH 32
#define EXPR_MAX_TEXT  1024

// A dimension of an input gives a symbol its size; counted: it must be counted together first.
static void find_size(struct plan *p, const tsr_value *v, int axis, bool counted)
{
    struct str symbol = tsr__dim_symbol(v, axis);
    void **slot = symbol.n ? tsr__map_at(&p->sizes, symbol) : NULL;
    struct size_source *at = slot && !*slot ? ARENA_NEW(p->arena, struct size_source) : NULL;
    if (!at)
        return;
    *at = (struct size_source){v, axis, counted ? tsr__port_count(p, v) : NULL};
    *slot = at;
}

void tsr__plan_find_sizes(struct plan *p)
{
    tsr_graph *g = tsr_model_graph(p->model);
    tsr__map_init(&p->sizes, p->arena, 16);
    for (int counted = 0; counted < 2; counted++)
        for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
            const tsr_value *v = tsr_graph_input(g, i);
            for (int d = 0; d < tsr_value_rank(v) && !tsr_value_initializer(v); d++)
                if (tsr__port_readable(p, v, d) == !counted)
                    find_size(p, v, d, counted);
        }
}

// ---- expressions -------------------------------------------------------------------------------

// A walk over the text; with a part it makes nodes, without it only answers whether it could.
struct expr {
    struct plan *plan;
    struct part *part; // NULL: only asking
    const char *at, *end;
    int depth;
};
// What an expression is: not known (ok false), a number (value NULL), or an int64[1].
struct sized {
    bool ok;
    int64_t number;
    tsr_value *value;
    bool symbolic;
};

static struct sized read_sum(struct expr *e);

static void skip_space(struct expr *e)
{
    while (e->at < e->end && isspace((unsigned char)*e->at))
        e->at++;
}

static bool take(struct expr *e, const char *text)
{
    skip_space(e);
    size_t n = strlen(text);
    if ((size_t)(e->end - e->at) < n || memcmp(e->at, text, n) != 0)
        return false;
    e->at += n;
    return true;
}

// The size of a symbol in this part: Shape of the input, then its entry; made once.
static tsr_value *symbol_value(struct part *t, struct str symbol, const struct size_source *from)
{
    tsr_value *known = tsr__map_get(&t->sizes, symbol);
    if (known)
        return known;
    struct item *it = tsr__item_of(t->plan, from->input);
    tsr_value *counted = from->count ? form_root(from->count)->local[t->rank] : NULL;
    tsr_value *input = it && !counted ? tsr__part_input(t, it) : NULL;
    tsr_dtype from_type = it ? it->dtype : TSR_UNDEFINED;
    int64_t axis = from->axis;
    tsr_graph *here = t->graph;
    t->graph = tsr_model_graph(t->model); // where all bodies can see it
    tsr_value *shape = counted ? counted : tsr__part_sizes(t, input, from_type, (struct str){0});
    tsr_value *size =
        tsr__part_node(t, "Gather", (struct str){0}, 2, shape, tsr__part_ints(t, &axis, 1));
    t->graph = here;
    void **slot = size ? tsr__map_at(&t->sizes, symbol) : NULL;
    if (slot)
        *slot = size;
    return size;
}

static struct sized read_symbol(struct expr *e, struct str symbol)
{
    const struct size_source *from = tsr__map_get(&e->plan->sizes, symbol);
    if (!from)
        return (struct sized){0};
    tsr_value *v = e->part ? symbol_value(e->part, symbol, from) : NULL;
    return (struct sized){.ok = !e->part || v, .value = v, .symbolic = true};
}

// Arithmetic of sizes: computed here where both are known, by a node of that operator otherwise.
enum arith { ARITH_ADD, ARITH_SUB, ARITH_MUL, ARITH_DIV, ARITH_MOD, ARITH_MAX, ARITH_MIN };
static const char *const arith_ops[] = {
    [ARITH_ADD] = "Add", [ARITH_SUB] = "Sub", [ARITH_MUL] = "Mul",
    [ARITH_DIV] = "Div", [ARITH_MOD] = "Mod",
};
// 1 where a is larger than b, 0 elsewhere. Before opset 9 only floats are compared; doubles hold sizes exactly.
static tsr_value *one_where_larger(struct part *t, tsr_value *a, tsr_value *b)
{
    tsr_value *larger = tsr__part_node(t, "Greater", (struct str){0}, 2,
                                       tsr__part_cast(t, a, TSR_DOUBLE, (struct str){0}),
                                       tsr__part_cast(t, b, TSR_DOUBLE, (struct str){0}));
    return tsr__part_cast(t, larger, TSR_INT64, (struct str){0});
}

// What a exceeds b by where it does, 0 elsewhere: Max and Min are of floats before opset 12.
static tsr_value *excess(struct part *t, tsr_value *a, tsr_value *b)
{
    const struct str any = {0};
    tsr_value *gap = tsr__part_node(t, "Sub", any, 2, a, b);
    return tsr__part_node(t, "Mul", any, 2, one_where_larger(t, a, b), gap);
}

tsr_value *tsr__part_largest(struct part *t, struct str name, tsr_value *a, tsr_value *b)
{
    if (t->plan->opset >= 12)
        return tsr__part_node(t, "Max", name, 2, a, b);
    return tsr__part_node(t, "Add", name, 2, b, excess(t, a, b));
}

tsr_value *tsr__part_smallest(struct part *t, struct str name, tsr_value *a, tsr_value *b)
{
    if (t->plan->opset >= 12)
        return tsr__part_node(t, "Min", name, 2, a, b);
    return tsr__part_node(t, "Sub", name, 2, a, excess(t, a, b));
}

// Before opset 10 there is no remainder.
static tsr_value *remainder_of(struct part *t, tsr_value *a, tsr_value *b)
{
    struct str any = {0};
    if (t->plan->opset >= 10)
        return tsr__part_node(t, "Mod", any, 2, a, b);
    tsr_value *times = tsr__part_node(t, "Div", any, 2, a, b);
    return tsr__part_node(t, "Sub", any, 2, a, tsr__part_node(t, "Mul", any, 2, times, b));
}

static tsr_value *arith_node(struct part *t, enum arith op, tsr_value *a, tsr_value *b)
{
    if (op == ARITH_MAX)
        return tsr__part_largest(t, (struct str){0}, a, b);
    if (op == ARITH_MIN)
        return tsr__part_smallest(t, (struct str){0}, a, b);
    if (op == ARITH_MOD)
        return remainder_of(t, a, b);
    return tsr__part_node(t, arith_ops[op], (struct str){0}, 2, a, b);
}

static struct sized combine(struct expr *e, enum arith op, struct sized a, struct sized b);

// max(a, b), FloorDiv(a, b) ...: the parenthesis is open.
static struct sized read_call(struct expr *e, struct str name)
{
    static const struct {
        const char *name;
        enum arith op;
    } calls[] = {{"max", ARITH_MAX},     {"Max", ARITH_MAX}, {"min", ARITH_MIN},
                 {"Min", ARITH_MIN},     {"Mod", ARITH_MOD}, {"PythonMod", ARITH_MOD},
                 {"FloorDiv", ARITH_DIV}};
    for (size_t i = 0; i < TSR_COUNT(calls); i++) {
        if (!str_is(name, calls[i].name))
            continue;
        struct sized left = read_sum(e);
        while (left.ok && take(e, ","))
            left = combine(e, calls[i].op, left, read_sum(e));
        return take(e, ")") ? left : (struct sized){0};
    }
    return (struct sized){0};
}

static struct sized read_atom(struct expr *e)
{
    if (take(e, "floor(") || take(e, "(")) { // sizes are integers: floor is what / does here
        struct sized inner = read_sum(e);
        return take(e, ")") ? inner : (struct sized){0};
    }
    skip_space(e);
    const char *start = e->at;
    while (e->at < e->end && (isalnum((unsigned char)*e->at) || *e->at == '_' || *e->at == '.'))
        e->at++;
    struct str word = {start, (size_t)(e->at - start)};
    struct sized number = {.ok = true};
    if (tsr__str_int(word, &number.number))
        return number;
    if (word.n && take(e, "("))
        return read_call(e, word);
    return word.n ? read_symbol(e, word) : (struct sized){0};
}

static tsr_value *as_value(struct part *t, const struct sized *s)
{
    return s->value ? s->value : tsr__part_ints(t, &s->number, 1);
}

static bool compute(enum arith op, int64_t a, int64_t b, int64_t *out)
{
    switch (op) {
    case ARITH_ADD:
        return add_ok(a, b, out);
    case ARITH_SUB:
        return !__builtin_sub_overflow(a, b, out);
    case ARITH_MUL:
        return mul_ok(a, b, out);
    case ARITH_MAX:
        *out = a > b ? a : b;
        return true;
    case ARITH_MIN:
        *out = a < b ? a : b;
        return true;
    case ARITH_DIV:
    case ARITH_MOD:
        break;
    }
    if (a < 0 || b <= 0)
        return false;
    *out = op == ARITH_DIV ? a / b : a % b;
    return true;
}

static struct sized combine(struct expr *e, enum arith op, struct sized a, struct sized b)
{
    struct sized out = {.ok = a.ok && b.ok, .symbolic = a.symbolic || b.symbolic};
    if (!out.ok)
        return out;
    if (!out.symbolic) {
        out.ok = compute(op, a.number, b.number, &out.number);
    } else if (e->part) {
        out.value = arith_node(e->part, op, as_value(e->part, &a), as_value(e->part, &b));
        out.ok = out.value != NULL;
    }
    return out;
}

static struct sized read_product(struct expr *e)
{
    struct sized left = read_atom(e);
    for (;;) {
        if (!left.ok)
            return left;
        if (take(e, "*"))
            left = combine(e, ARITH_MUL, left, read_atom(e));
        else if (take(e, "//") || take(e, "/"))
            left = combine(e, ARITH_DIV, left, read_atom(e));
        else if (take(e, "%"))
            left = combine(e, ARITH_MOD, left, read_atom(e));
        else
            return left;
    }
}

// The first product of a sum, which may have a minus before it: "-kernel + width + 1".
static struct sized read_first(struct expr *e)
{
    struct sized nothing = {.ok = true};
    return take(e, "-") ? combine(e, ARITH_SUB, nothing, read_product(e)) : read_product(e);
}

static struct sized read_sum(struct expr *e)
{
    struct sized left = {0};
    if (e->depth++ < EXPR_MAX_DEPTH)
        left = read_first(e);
    while (left.ok) {
        if (take(e, "+"))
            left = combine(e, ARITH_ADD, left, read_product(e));
        else if (take(e, "-"))
            left = combine(e, ARITH_SUB, left, read_product(e));
        else
            break;
    }
    e->depth--;
    return left;
}

// The size of one dimension; a symbol that an input has as it stands comes before any reading of
// it.
static struct sized size_of(struct plan *p, struct part *t, const tsr_dim *d)
{
    struct str text = str_of(d->symbol);
    struct expr e = {p, t, text.p, text.p ? text.p + text.n : NULL, 0};
    if (d->value >= 0)
        return (struct sized){.ok = true, .number = d->value};
    if (text.n == 0 || text.n > EXPR_MAX_TEXT)
        return (struct sized){0};
    if (tsr__map_get(&p->sizes, text))
        return read_symbol(&e, text);
    struct sized s = read_sum(&e);
    skip_space(&e);
    return e.at == e.end ? s : (struct sized){0};
}

bool tsr__shape_known(struct plan *p, const struct item *it)
{
    bool known = it->rank >= 0;
    for (int d = 0; d < it->rank && known; d++)
        known = size_of(p, NULL, &it->dims[d]).ok;
    return known;
}

tsr_value *tsr__part_shape(struct part *t, const struct item *it)
{
    if (it->fixed)
        return tsr__part_ints(t, it->shape, it->rank);
    tsr_value **sizes = ARENA_ARRAY(t->plan->arena, tsr_value *, (size_t)it->rank + 1);
    for (int d = 0; d < it->rank && sizes; d++) {
        struct sized s = size_of(t->plan, t, &it->dims[d]);
        sizes[d] = s.ok ? as_value(t, &s) : NULL;
        if (!sizes[d])
            return NULL;
    }
    struct str name = tsr__part_fresh(t);
    if (!name.p || !sizes)
        return NULL;
    const char *outputs[1] = {name.p};
    tsr_node *n =
        tsr_graph_add_node(t->graph, "", "Concat", name.p, sizes, (size_t)it->rank, outputs, 1);
    if (!n || tsr_node_set_int(n, "axis", 0) != TSR_OK)
        return NULL;
    return tsr_node_output(n, 0);
}

// ---- sizes as a node gives them ------------------------------------------------------------------

const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++) {
        const struct rule_rewrite *w = &rule->rewrites[i];
        bool sizes = w->kind == REWRITE_SIZES || w->kind == REWRITE_SIZE;
        if (sizes && nf->inputs[w->index] && !tsr__layout_is_whole(nf->inputs[w->index]))
            return w;
    }
    return NULL;
}

// Entries first .. last - 1 of the shape of an item.
static tsr_value *some_sizes(struct part *t, const struct item *it, int first, int last)
{
    int64_t at[TILE_MAX_RANK];
    if (first >= last)
        return tsr__part_empty(t, TSR_INT64);
    if (it->fixed)
        return tsr__part_ints(t, it->shape + first, last - first);
    tsr_value *shape = tsr__part_shape(t, it);
    if (first == 0 && last == it->rank)
        return shape;
    for (int i = first; i < last; i++)
        at[i - first] = i;
    return tsr__part_node(t, "Gather", (struct str){0}, 2, shape,
                          tsr__part_ints(t, at, last - first));
}

// One number, without dimensions.
static tsr_value *product_of(struct part *t, const struct item *it)
{
    if (it->fixed) {
        int64_t n = 1;
        struct str name = tsr__part_fresh(t);
        for (int i = 0; i < it->rank; i++)
            if (!mul_ok(n, it->shape[i], &n))
                return NULL;
        return name.p
                   ? tsr_graph_add_initializer(t->graph, name.p, TSR_INT64, 0, NULL, &n, sizeof(n))
                   : NULL;
    }
    tsr_value *v = tsr__part_node(t, "ReduceProd", (struct str){0}, 1, tsr__part_shape(t, it));
    return v && tsr_node_set_int(tsr_value_producer(v), "keepdims", 0) == TSR_OK ? v : NULL;
}

tsr_status tsr__emit_sizes(struct part *t, struct step *st, const struct rule_rewrite *w)
{
    struct plan *p = t->plan;
    const struct item *it = tsr__item_of(p, tsr_node_input(st->flow->node, (size_t)w->index));
    if (!it)
        return TSR_NOMEM;
    if (!tsr__shape_known(p, it) || w->last > it->rank || it->rank > TILE_MAX_RANK) {
        struct place at = tsr__place_node(st->flow->node);
        tsr__diag(p->session, DIAG_partition_no_tensor, &at, "keep the node's input whole",
                  "the node gives sizes of a tensor that is cut, and they cannot be computed from "
                  "the sizes of the model's inputs");
        return TSR_UNSUPPORTED;
    }
    tsr_value *v =
        w->kind == REWRITE_SIZE ? product_of(t, it) : some_sizes(t, it, w->first, w->last);
    st->outputs[w->output]->local[t->rank] = v;
    return v ? TSR_OK : TSR_NOMEM;
}

// ---- local sizes -------------------------------------------------------------------------------

struct local_columns {
    struct local_size size[TILE_MAX_RANK]; // and the same as lists, for nodes that compute it:
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], scale[TILE_MAX_RANK], part[TILE_MAX_RANK],
        next[TILE_MAX_RANK], parts[TILE_MAX_RANK], last[TILE_MAX_RANK];
};

// The entries of `host` that are larger than `least` become those of `local`. Before opset 9 whole numbers are not
// chosen: of [5 0] and [3 7], with least 0, host + [1 0] * (local - host) is [3 0].
static tsr_value *larger_replaced(struct part *t, tsr_value *host, int64_t least, tsr_value *local)
{
    const struct str any = {0};
    tsr_value *limit = tsr__part_ints(t, &least, 1);
    if (t->plan->opset >= 9) {
        tsr_value *sized = tsr__part_node(t, "Greater", any, 2, host, limit);
        return tsr__part_node(t, "Where", any, 3, sized, local, host);
    }
    tsr_value *change = tsr__part_node(t, "Sub", any, 2, local, host);
    change = tsr__part_node(t, "Mul", any, 2, one_where_larger(t, host, limit), change);
    return tsr__part_node(t, "Add", any, 2, host, change);
}

// local = (b - a) * scale - last * (F * unit - S) with F = (S + unit - 1) / unit, entry by entry;
// entries up to `least` stay: 1 (0: as the input, -1: what is left, 1: perhaps as the input), or 0 where all are sizes.
static tsr_value *local_nodes(struct part *t, tsr_value *host, const struct local_columns *c,
                              int64_t n, int64_t least)
{
    const struct str any = {0};
    tsr_value *parts = tsr__part_ints(t, c->parts, n), *unit = tsr__part_ints(t, c->unit, n);
    tsr_value *f = tsr__part_node(t, "Add", any, 2, host, tsr__part_ints(t, c->spare, n));
    f = tsr__part_node(t, "Div", any, 2, f, unit);
    tsr_value *a = tsr__part_node(t, "Mul", any, 2, f, tsr__part_ints(t, c->part, n));
    tsr_value *b = tsr__part_node(t, "Mul", any, 2, f, tsr__part_ints(t, c->next, n));
    a = tsr__part_node(t, "Div", any, 2, a, parts);
    b = tsr__part_node(t, "Div", any, 2, b, parts);
    tsr_value *local = tsr__part_node(t, "Sub", any, 2, b, a);
    local = tsr__part_node(t, "Mul", any, 2, local, tsr__part_ints(t, c->scale, n));
    tsr_value *missing = tsr__part_node(t, "Mul", any, 2, f, unit);
    missing = tsr__part_node(t, "Sub", any, 2, missing, host);
    missing = tsr__part_node(t, "Mul", any, 2, missing, tsr__part_ints(t, c->last, n));
    local = tsr__part_node(t, "Sub", any, 2, local, missing);
    return larger_replaced(t, host, least, local);
}

// Entries of the host value: they name the last dimensions of the tensor.
static int64_t host_entries(struct part *t, const tsr_value *source, const struct tile_layout *l)
{
    struct shape s = tsr__shapes_of(t->plan->flow->shapes, source);
    int64_t n = s.rank == 1 ? s.dims[0].value : -1;
    return n < 0 || n > l->rank ? l->rank : n;
}

bool tsr__shape_constant(struct plan *p, const tsr_value *source, const struct tile_layout *l)
{
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(p->flow->shapes, source, known, TILE_MAX_RANK);
    for (int64_t i = 0; n <= l->rank && i < n; i++)
        if (tsr__dim_cut(&l->dims[l->rank - n + i]))
            return true;
    return false;
}

// In a new shape 0 means "as before", and before the local node there is a part: the size that is meant is put in
// its place. [4 0 2] of [2 4 4], cut in two along its second axis, is [2 4 2] and not [2 0 2] on each device. False: a
// size that is meant is no number.
static bool sizes_meant(const struct item *made, int64_t *known, int64_t n)
{
    bool all = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t d = made->rank - n + i;
        if (known[i] != 0 || d < 0)
            continue;
        if (made->dims[d].value >= 0)
            known[i] = made->dims[d].value;
        else
            all = false;
    }
    return all;
}

// How each entry of the host value becomes the local size of its dimension; false: the device has no part of l.
static bool columns_of(struct part *t, const struct tile_layout *l, int64_t n,
                       struct local_columns *c, bool *any)
{
    int64_t coords[TILE_MAX_FACTORS];
    *any = false;
    for (int64_t i = 0; i < n; i++) {
        int d = (int)(l->rank - n + i);
        if (!tsr__device_coords(l, t->rank, d, coords))
            return false;
        struct local_size s = {1, 1, 0, 1};
        if (tsr__dim_cut(&l->dims[d])) {
            s = tsr__local_size(&l->dims[d], coords);
            *any = true;
        }
        c->size[i] = s;
        c->unit[i] = s.unit;
        c->spare[i] = s.unit - 1;
        c->scale[i] = s.scale;
        c->part[i] = s.part;
        c->next[i] = s.part + 1;
        c->parts[i] = s.parts;
        c->last[i] = s.part == s.parts - 1;
    }
    return true;
}

// A device may have nothing of the dimension: its size is not known before the run, or there are more parts than units.
static bool may_be_empty(const struct tile_layout *l, int d, tsr_dim size)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_cut(&l->dims[d]))
        return false;
    struct local_size s = tsr__local_size(&l->dims[d], coords);
    return size.value < 0 || (size.value + s.unit - 1) / s.unit < s.parts;
}

bool tsr__shape_of_sizes(struct plan *p, const tsr_value *source, const struct item *made,
                         const struct tile_layout *l)
{
    struct shape s = tsr__shapes_of(p->flow->shapes, source);
    bool all = s.rank == 1 && s.dims[0].value == made->rank && made->rank == l->rank;
    if (!all || made->rank > TILE_MAX_RANK || !tsr__shape_known(p, made))
        return false;
    for (int d = 0; d < made->rank; d++)
        if (may_be_empty(l, d, made->dims[d]))
            return true;
    return false;
}

tsr_value *tsr__part_local_shape(struct part *t, const tsr_value *source, tsr_value *host,
                                 const struct item *made, const struct tile_layout *l)
{
    const struct shapes *shapes = t->plan->flow->shapes;
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(shapes, source, known, TILE_MAX_RANK);
    bool constant = n >= 0 && n <= l->rank, any;
    if (!constant)
        n = host_entries(t, source, l);
    struct local_columns c;
    if (!columns_of(t, l, n, &c, &any))
        return NULL;
    if (!any)
        return host;
    if (tsr__shape_of_sizes(t->plan, source, made, l))
        return local_nodes(t, tsr__part_shape(t, made), &c, made->rank, 0);
    bool meant = constant ? sizes_meant(made, known, n) : !tsr__shapes_may_copy(shapes, source);
    if (!meant && n == made->rank && tsr__shape_known(t->plan, made))
        return local_nodes(t, tsr__part_shape(t, made), &c, n, 0);
    for (int64_t i = 0; i < n && constant; i++)
        if (known[i] > 1)
            known[i] = tsr__local_size_of(&c.size[i], known[i]);
    return constant ? tsr__part_ints(t, known, n) : local_nodes(t, host, &c, n, 1);
}
