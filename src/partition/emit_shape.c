// SPDX-License-Identifier: Apache-2.0
// emit_shape.c - sizes at run time. A symbol is read from the model input that has it as a plain
// dimension; an expression of symbols ("batch*seq", "past + 1") becomes a few nodes; a shape is
// their concatenation. Shapes stay global everywhere; only for a node that takes the shape of its own cut
// result as an input (Reshape, Expand), the rank computes local sizes from the global ones.
#include "internal.h"

#include <ctype.h>

#define EXPR_MAX_DEPTH 32
#define EXPR_MAX_TEXT  1024

// A dimension of an input gives a symbol its size; counted: it must be counted together first.
static void find_size(struct plan *plan, const tsr_value *value, int axis, bool counted)
{
    struct str symbol = tsr__dim_symbol(value, axis);
    void **slot = symbol.n ? tsr__map_at(&plan->sizes, symbol) : NULL;
    struct size_source *at = slot && !*slot ? ARENA_NEW(plan->arena, struct size_source) : NULL;
    if (!at)
        return;
    *at = (struct size_source){value, axis, counted ? tsr__port_count(plan, value) : NULL};
    *slot = at;
}

void tsr__plan_find_sizes(struct plan *plan)
{
    tsr_graph *graph = tsr_model_graph(plan->model);
    tsr__map_init(&plan->sizes, plan->arena, 16);
    for (int counted = 0; counted < 2; counted++)
        for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
            const tsr_value *value = tsr_graph_input(graph, i);
            if (tsr_value_initializer(value))
                continue;
            for (int axis = 0; axis < tsr_value_rank(value); axis++)
                if (tsr__port_readable(plan, value, axis) == !counted)
                    find_size(plan, value, axis, counted);
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

static struct sized read_sum(struct expr *expr);

static void skip_space(struct expr *expr)
{
    while (expr->at < expr->end && isspace((unsigned char)*expr->at))
        expr->at++;
}

static bool take(struct expr *expr, const char *text)
{
    skip_space(expr);
    size_t n = strlen(text);
    if ((size_t)(expr->end - expr->at) < n || memcmp(expr->at, text, n) != 0)
        return false;
    expr->at += n;
    return true;
}

// The size of a symbol in this part: Shape of the input, then its entry; made once.
static tsr_value *symbol_value(struct part *part, struct str symbol, const struct size_source *from)
{
    tsr_value *known = tsr__map_get(&part->sizes, symbol);
    if (known)
        return known;
    struct item *it = tsr__item_of(part->plan, from->input);
    tsr_value *counted = from->count ? form_root(from->count)->local[part->rank] : NULL;
    tsr_value *input = it && !counted ? tsr__part_input(part, it) : NULL;
    tsr_dtype from_type = it ? it->dtype : TSR_UNDEFINED;
    int64_t axis = from->axis;
    tsr_graph *here = part->graph;
    part->graph = tsr_model_graph(part->model); // where all bodies can see it
    tsr_value *shape = counted ? counted : tsr__part_sizes(part, input, from_type, (struct str){0});
    tsr_value *size =
        tsr__part_node(part, "Gather", (struct str){0}, 2, shape, tsr__part_ints(part, &axis, 1));
    part->graph = here;
    void **slot = size ? tsr__map_at(&part->sizes, symbol) : NULL;
    if (slot)
        *slot = size;
    return size;
}

static struct sized read_symbol(struct expr *expr, struct str symbol)
{
    const struct size_source *from = tsr__map_get(&expr->plan->sizes, symbol);
    if (!from)
        return (struct sized){0};
    tsr_value *value = expr->part ? symbol_value(expr->part, symbol, from) : NULL;
    return (struct sized){.ok = !expr->part || value, .value = value, .symbolic = true};
}

// Arithmetic of sizes: computed here where both are known, by a node of that operator otherwise.
enum arith { ARITH_ADD, ARITH_SUB, ARITH_MUL, ARITH_DIV, ARITH_MOD, ARITH_MAX, ARITH_MIN };
static const char *const arith_ops[] = {
    [ARITH_ADD] = "Add", [ARITH_SUB] = "Sub", [ARITH_MUL] = "Mul",
    [ARITH_DIV] = "Div", [ARITH_MOD] = "Mod",
};
// 1 where a is larger than b, 0 elsewhere. Before opset 9 only floats are compared; doubles hold sizes exactly.
static tsr_value *one_where_larger(struct part *part, tsr_value *a, tsr_value *b)
{
    tsr_value *larger = tsr__part_node(part, "Greater", (struct str){0}, 2,
                                       tsr__part_cast(part, a, TSR_DOUBLE, (struct str){0}),
                                       tsr__part_cast(part, b, TSR_DOUBLE, (struct str){0}));
    return tsr__part_cast(part, larger, TSR_INT64, (struct str){0});
}

// What a exceeds b by where it does, 0 elsewhere: Max and Min are of floats before opset 12.
static tsr_value *excess(struct part *part, tsr_value *a, tsr_value *b)
{
    const struct str any = {0};
    tsr_value *gap = tsr__part_node(part, "Sub", any, 2, a, b);
    return tsr__part_node(part, "Mul", any, 2, one_where_larger(part, a, b), gap);
}

tsr_value *tsr__part_largest(struct part *part, struct str name, tsr_value *a, tsr_value *b)
{
    if (part->plan->opset >= 12)
        return tsr__part_node(part, "Max", name, 2, a, b);
    return tsr__part_node(part, "Add", name, 2, b, excess(part, a, b));
}

tsr_value *tsr__part_smallest(struct part *part, struct str name, tsr_value *a, tsr_value *b)
{
    if (part->plan->opset >= 12)
        return tsr__part_node(part, "Min", name, 2, a, b);
    return tsr__part_node(part, "Sub", name, 2, a, excess(part, a, b));
}

// Before opset 10 there is no remainder.
static tsr_value *remainder_of(struct part *part, tsr_value *a, tsr_value *b)
{
    struct str any = {0};
    if (part->plan->opset >= 10)
        return tsr__part_node(part, "Mod", any, 2, a, b);
    tsr_value *times = tsr__part_node(part, "Div", any, 2, a, b);
    return tsr__part_node(part, "Sub", any, 2, a, tsr__part_node(part, "Mul", any, 2, times, b));
}

static tsr_value *arith_node(struct part *part, enum arith op, tsr_value *a, tsr_value *b)
{
    if (op == ARITH_MAX)
        return tsr__part_largest(part, (struct str){0}, a, b);
    if (op == ARITH_MIN)
        return tsr__part_smallest(part, (struct str){0}, a, b);
    if (op == ARITH_MOD)
        return remainder_of(part, a, b);
    return tsr__part_node(part, arith_ops[op], (struct str){0}, 2, a, b);
}

static struct sized combine(struct expr *expr, enum arith op, struct sized a, struct sized b);

// max(a, b), FloorDiv(a, b) ...: the parenthesis is open.
static struct sized read_call(struct expr *expr, struct str name)
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
        struct sized left = read_sum(expr);
        while (left.ok && take(expr, ","))
            left = combine(expr, calls[i].op, left, read_sum(expr));
        return take(expr, ")") ? left : (struct sized){0};
    }
    return (struct sized){0};
}

static struct sized read_atom(struct expr *expr)
{
    if (take(expr, "floor(") || take(expr, "(")) { // sizes are integers: floor is what / does here
        struct sized inner = read_sum(expr);
        return take(expr, ")") ? inner : (struct sized){0};
    }
    skip_space(expr);
    const char *start = expr->at;
    while (expr->at < expr->end &&
           (isalnum((unsigned char)*expr->at) || *expr->at == '_' || *expr->at == '.'))
        expr->at++;
    struct str word = {start, (size_t)(expr->at - start)};
    struct sized number = {.ok = true};
    if (tsr__str_int(word, &number.number))
        return number;
    if (word.n && take(expr, "("))
        return read_call(expr, word);
    return word.n ? read_symbol(expr, word) : (struct sized){0};
}

static tsr_value *as_value(struct part *part, const struct sized *sized)
{
    if (sized->value)
        return sized->value;
    return tsr__part_ints(part, &sized->number, 1);
}

// What the nodes would compute, now. False: it does not fit 64 bits, or it divides negative numbers, which C rounds
// otherwise than the nodes may; then the nodes do it at run time.
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

static struct sized combine(struct expr *expr, enum arith op, struct sized a, struct sized b)
{
    struct sized out = {.ok = a.ok && b.ok, .symbolic = a.symbolic || b.symbolic};
    if (!out.ok)
        return out;
    if (!out.symbolic) {
        out.ok = compute(op, a.number, b.number, &out.number);
    } else if (expr->part) {
        out.value = arith_node(expr->part, op, as_value(expr->part, &a), as_value(expr->part, &b));
        out.ok = out.value != NULL;
    }
    return out;
}

static struct sized read_product(struct expr *expr)
{
    struct sized left = read_atom(expr);
    for (;;) {
        if (!left.ok)
            return left;
        if (take(expr, "*"))
            left = combine(expr, ARITH_MUL, left, read_atom(expr));
        else if (take(expr, "//") || take(expr, "/"))
            left = combine(expr, ARITH_DIV, left, read_atom(expr));
        else if (take(expr, "%"))
            left = combine(expr, ARITH_MOD, left, read_atom(expr));
        else
            return left;
    }
}

// The first product of a sum, which may have a minus before it: "-kernel + width + 1".
static struct sized read_first(struct expr *expr)
{
    struct sized nothing = {.ok = true};
    if (take(expr, "-"))
        return combine(expr, ARITH_SUB, nothing, read_product(expr));
    return read_product(expr);
}

static struct sized read_sum(struct expr *expr)
{
    struct sized left = {0};
    if (expr->depth++ < EXPR_MAX_DEPTH)
        left = read_first(expr);
    while (left.ok) {
        if (take(expr, "+"))
            left = combine(expr, ARITH_ADD, left, read_product(expr));
        else if (take(expr, "-"))
            left = combine(expr, ARITH_SUB, left, read_product(expr));
        else
            break;
    }
    expr->depth--;
    return left;
}

// The size of one dimension; a symbol that an input has as it stands comes before any reading of
// it.
static struct sized size_of(struct plan *plan, struct part *part, const tsr_dim *dim)
{
    struct str text = str_of(dim->symbol);
    struct expr expr = {plan, part, text.p, text.p ? text.p + text.n : NULL, 0};
    if (dim->value >= 0)
        return (struct sized){.ok = true, .number = dim->value};
    if (text.n == 0 || text.n > EXPR_MAX_TEXT)
        return (struct sized){0};
    if (tsr__map_get(&plan->sizes, text))
        return read_symbol(&expr, text);
    struct sized sized = read_sum(&expr);
    skip_space(&expr);
    return expr.at == expr.end ? sized : (struct sized){0};
}

bool tsr__shape_known(struct plan *plan, const struct item *it)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (!size_of(plan, NULL, &it->dims[axis]).ok)
            return false;
    return it->rank >= 0;
}

// The whole shape of a value as a tensor on this rank: a constant if all sizes are known, else a Concat of what is
// known of each: [n,6] is Concat(n as found at an input, 6).
tsr_value *tsr__part_shape(struct part *part, const struct item *it)
{
    if (it->fixed)
        return tsr__part_ints(part, it->shape, it->rank);
    tsr_value **sizes = ARENA_ARRAY(part->plan->arena, tsr_value *, (size_t)it->rank + 1);
    if (!sizes)
        return NULL;
    for (int axis = 0; axis < it->rank; axis++) {
        struct sized sized = size_of(part->plan, part, &it->dims[axis]);
        sizes[axis] = sized.ok ? as_value(part, &sized) : NULL;
        if (!sizes[axis])
            return NULL;
    }
    struct str name = tsr__part_fresh(part);
    if (!name.p)
        return NULL;
    const char *outputs[1] = {name.p};
    tsr_node *node =
        tsr_graph_add_node(part->graph, "", "Concat", name.p, sizes, (size_t)it->rank, outputs, 1);
    if (!node || tsr_node_set_int(node, "axis", 0) != TSR_OK)
        return NULL;
    return tsr_node_output(node, 0);
}

// ---- sizes as a node gives them ------------------------------------------------------------------

const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return NULL;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        bool sizes = rewrite->kind == REWRITE_SIZES || rewrite->kind == REWRITE_SIZE;
        if (sizes && nf->inputs[rewrite->index] &&
            !tsr__layout_is_whole(nf->inputs[rewrite->index]))
            return rewrite;
    }
    return NULL;
}

// Entries first .. last - 1 of the shape of an item.
static tsr_value *some_sizes(struct part *part, const struct item *it, int first, int last)
{
    int64_t at[TILE_MAX_RANK];
    if (first >= last)
        return tsr__part_empty(part, TSR_INT64);
    if (it->fixed)
        return tsr__part_ints(part, it->shape + first, last - first);
    tsr_value *shape = tsr__part_shape(part, it);
    if (first == 0 && last == it->rank)
        return shape;
    for (int i = first; i < last; i++)
        at[i - first] = i;
    return tsr__part_node(part, "Gather", (struct str){0}, 2, shape,
                          tsr__part_ints(part, at, last - first));
}

// One number, without dimensions.
static tsr_value *product_of(struct part *part, const struct item *it)
{
    if (it->fixed) {
        int64_t n = 1;
        struct str name = tsr__part_fresh(part);
        for (int i = 0; i < it->rank; i++)
            if (!mul_ok(n, it->shape[i], &n))
                return NULL;
        if (name.p)
            return tsr_graph_add_initializer(part->graph, name.p, TSR_INT64, 0, NULL, &n,
                                             sizeof(n));
        return NULL;
    }
    tsr_value *value =
        tsr__part_node(part, "ReduceProd", (struct str){0}, 1, tsr__part_shape(part, it));
    if (value && tsr_node_set_int(tsr_value_producer(value), "keepdims", 0) == TSR_OK)
        return value;
    return NULL;
}

tsr_status tsr__emit_sizes(struct part *part, struct step *st, const struct rule_rewrite *rewrite)
{
    struct plan *plan = part->plan;
    const struct item *it =
        tsr__item_of(plan, tsr_node_input(st->flow->node, (size_t)rewrite->index));
    if (!it)
        return TSR_NOMEM;
    if (!tsr__shape_known(plan, it) || rewrite->last > it->rank || it->rank > TILE_MAX_RANK) {
        struct place at = tsr__place_node(st->flow->node);
        tsr__diag(plan->session, DIAG_partition_no_tensor, &at, "keep the node's input whole",
                  "the node gives sizes of a tensor that is cut, and they cannot be computed from "
                  "the sizes of the model's inputs");
        return TSR_UNSUPPORTED;
    }
    tsr_value *value = rewrite->kind == REWRITE_SIZE
                           ? product_of(part, it)
                           : some_sizes(part, it, rewrite->first, rewrite->last);
    st->outputs[rewrite->output]->local[part->rank] = value;
    return value ? TSR_OK : TSR_NOMEM;
}

// ---- local sizes -------------------------------------------------------------------------------

struct local_columns {
    struct local_size size[TILE_MAX_RANK]; // and the same as lists, for nodes that compute it:
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], scale[TILE_MAX_RANK], part[TILE_MAX_RANK],
        next[TILE_MAX_RANK], parts[TILE_MAX_RANK], last[TILE_MAX_RANK];
};

// The entries of `host` that are larger than `least` become those of `local`. Before opset 9 whole numbers are not
// chosen: of [5 0] and [3 7], with least 0, host + [1 0] * (local - host) is [3 0].
static tsr_value *larger_replaced(struct part *part, tsr_value *host, int64_t least,
                                  tsr_value *local)
{
    const struct str any = {0};
    tsr_value *limit = tsr__part_ints(part, &least, 1);
    if (part->plan->opset >= 9) {
        tsr_value *sized = tsr__part_node(part, "Greater", any, 2, host, limit);
        return tsr__part_node(part, "Where", any, 3, sized, local, host);
    }
    tsr_value *change = tsr__part_node(part, "Sub", any, 2, local, host);
    change = tsr__part_node(part, "Mul", any, 2, one_where_larger(part, host, limit), change);
    return tsr__part_node(part, "Add", any, 2, host, change);
}

// local = (b - a) * scale - last * (F * unit - S) with F = (S + unit - 1) / unit, entry by entry;
// entries up to `least` stay: 1 (0: as the input, -1: what is left, 1: perhaps as the input), or 0 where all are sizes.
static tsr_value *local_nodes(struct part *part, tsr_value *host,
                              const struct local_columns *columns, int64_t n, int64_t least)
{
    const struct str any = {0};
    tsr_value *parts = tsr__part_ints(part, columns->parts, n),
              *unit = tsr__part_ints(part, columns->unit, n);
    tsr_value *value =
        tsr__part_node(part, "Add", any, 2, host, tsr__part_ints(part, columns->spare, n));
    value = tsr__part_node(part, "Div", any, 2, value, unit);
    tsr_value *a =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, columns->part, n));
    tsr_value *b =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, columns->next, n));
    a = tsr__part_node(part, "Div", any, 2, a, parts);
    b = tsr__part_node(part, "Div", any, 2, b, parts);
    tsr_value *local = tsr__part_node(part, "Sub", any, 2, b, a);
    local = tsr__part_node(part, "Mul", any, 2, local, tsr__part_ints(part, columns->scale, n));
    tsr_value *missing = tsr__part_node(part, "Mul", any, 2, value, unit);
    missing = tsr__part_node(part, "Sub", any, 2, missing, host);
    missing = tsr__part_node(part, "Mul", any, 2, missing, tsr__part_ints(part, columns->last, n));
    local = tsr__part_node(part, "Sub", any, 2, local, missing);
    return larger_replaced(part, host, least, local);
}

// Entries of the host value: they name the last dimensions of the tensor.
static int64_t host_entries(struct part *part, const tsr_value *source,
                            const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(part->plan->flow->shapes, source);
    int64_t n = shape.rank == 1 ? shape.dims[0].value : -1;
    return n < 0 || n > layout->rank ? layout->rank : n;
}

bool tsr__shape_constant(struct plan *plan, const tsr_value *source,
                         const struct tile_layout *layout)
{
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(plan->flow->shapes, source, known, TILE_MAX_RANK);
    if (n > layout->rank)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (tsr__dim_cut(&layout->dims[layout->rank - n + i]))
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

// How each entry of the host value becomes the local size of its dimension; false: the device has no part of layout.
static bool columns_of(struct part *part, const struct tile_layout *layout, int64_t n,
                       struct local_columns *columns, bool *any)
{
    int64_t coords[TILE_MAX_FACTORS];
    *any = false;
    for (int64_t i = 0; i < n; i++) {
        int axis = (int)(layout->rank - n + i);
        if (!tsr__device_coords(layout, part->rank, axis, coords))
            return false;
        struct local_size size = {1, 1, 0, 1};
        if (tsr__dim_cut(&layout->dims[axis])) {
            size = tsr__local_size(&layout->dims[axis], coords);
            *any = true;
        }
        columns->size[i] = size;
        columns->unit[i] = size.unit;
        columns->spare[i] = size.unit - 1;
        columns->scale[i] = size.scale;
        columns->part[i] = size.part;
        columns->next[i] = size.part + 1;
        columns->parts[i] = size.parts;
        columns->last[i] = size.part == size.parts - 1;
    }
    return true;
}

// A device may have nothing of the dimension: its size is not known before the run, or there are more parts than units.
static bool may_be_empty(const struct tile_layout *layout, int axis, tsr_dim size)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_cut(&layout->dims[axis]))
        return false;
    struct local_size local_size = tsr__local_size(&layout->dims[axis], coords);
    return size.value < 0 ||
           (size.value + local_size.unit - 1) / local_size.unit < local_size.parts;
}

bool tsr__shape_of_sizes(struct plan *plan, const tsr_value *source, const struct item *made,
                         const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(plan->flow->shapes, source);
    bool all = shape.rank == 1 && shape.dims[0].value == made->rank && made->rank == layout->rank;
    if (!all || made->rank > TILE_MAX_RANK || !tsr__shape_known(plan, made))
        return false;
    for (int axis = 0; axis < made->rank; axis++)
        if (may_be_empty(layout, axis, made->dims[axis]))
            return true;
    return false;
}

// The shape input of a node, for this rank: constant [8,6] for a result {2,1} becomes [4,6] on either rank.
// Entries 0, 1 and -1 stay: they copy, broadcast, or follow from the others. A shape that is no constant is
// computed by nodes, from the sizes of the result where those are known, else from the whole shape.
tsr_value *tsr__part_local_shape(struct part *part, const tsr_value *source, tsr_value *host,
                                 const struct item *made, const struct tile_layout *layout)
{
    const struct shapes *shapes = part->plan->flow->shapes;
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(shapes, source, known, TILE_MAX_RANK);
    bool constant = n >= 0 && n <= layout->rank, any;
    if (!constant)
        n = host_entries(part, source, layout);
    struct local_columns columns;
    if (!columns_of(part, layout, n, &columns, &any))
        return NULL;
    if (!any)
        return host;
    if (tsr__shape_of_sizes(part->plan, source, made, layout))
        return local_nodes(part, tsr__part_shape(part, made), &columns, made->rank, 0);
    bool meant = constant ? sizes_meant(made, known, n) : !tsr__shapes_may_copy(shapes, source);
    if (!meant && n == made->rank && tsr__shape_known(part->plan, made))
        return local_nodes(part, tsr__part_shape(part, made), &columns, n, 0);
    if (!constant)
        return local_nodes(part, host, &columns, n, 1);
    for (int64_t i = 0; i < n; i++)
        if (known[i] > 1)
            known[i] = tsr__local_size_of(&columns.size[i], known[i]);
    return tsr__part_ints(part, known, n);
}

tsr_value *tsr__part_local_sizes(struct part *part, const struct item *it,
                                 const struct tile_layout *layout)
{
    struct local_columns columns;
    bool any;
    tsr_value *whole = tsr__part_shape(part, it);
    if (!whole || !columns_of(part, layout, it->rank, &columns, &any))
        return NULL;
    return any ? local_nodes(part, whole, &columns, it->rank, 0) : whole;
}
