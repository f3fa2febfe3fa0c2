// SPDX-License-Identifier: Apache-2.0
// emit_shape.c - sizes at run time. A symbol is read from the model input that has it as a plain
// dimension; an expression of symbols ("batch*seq", "past + 1") becomes a few nodes; a shape is
// their concatenation. Shapes stay global everywhere but in local_shape.c.
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
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b)
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
    return tsr__part_node(part, "Mul", any, 2, tsr__part_one_where_larger(part, a, b), gap);
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

bool tsr__size_known(struct plan *plan, const tsr_dim *dim)
{
    return size_of(plan, NULL, dim).ok;
}

tsr_value *tsr__part_size(struct part *part, const tsr_dim *dim)
{
    struct sized sized = size_of(part->plan, part, dim);
    return sized.ok ? as_value(part, &sized) : NULL;
}

bool tsr__shape_known(struct plan *plan, const struct item *it)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (!tsr__size_known(plan, &it->dims[axis]))
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
        sizes[axis] = tsr__part_size(part, &it->dims[axis]);
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
