// SPDX-License-Identifier: Apache-2.0
// size_text.c - sizes as the model writes them: a number, a symbol ("batch"), or an expression of symbols ("batch*seq",
// "past + 1"). A symbol is known if a dimension of a model input is written so; an expression, if all its symbols are.
//
// The text is walked once, and whoever walks says what comes of it. Planning only asks whether a size can be had on every
// rank; emission gives a maker, which turns symbols and arithmetic into nodes (emit_shape.c).
//
//     an input x has the dimensions [batch, seq]; "batch*(seq + 2)" is read so:
//         symbol(batch), symbol(seq), combine(+, seq, number(2)), combine(*, batch, that)
//     "2*3 + batch": 2*3 is 6 here and now; combine(+, number(6), symbol(batch))
//     "other/2": nothing has "other" as a dimension: not known, nothing is made
#include "partition/facts/facts.h"

#include <ctype.h>

#define EXPR_MAX_DEPTH 32
#define EXPR_MAX_TEXT  1024

// A walk over the text; with a maker it makes values, without it only answers whether it could.
struct expr {
    struct draft *draft;
    const struct size_maker *maker; // NULL: only asking
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
static const struct sized not_known = {0};

static struct sized read_sum(struct expr *expr);

static void skip_space(struct expr *expr)
{
    while (expr->at < expr->end && isspace((unsigned char)*expr->at))
        expr->at++;
}

// The text stands next, behind spaces: it is passed over.
static bool take(struct expr *expr, const char *text)
{
    skip_space(expr);
    size_t n = strlen(text);
    if ((size_t)(expr->end - expr->at) < n || memcmp(expr->at, text, n) != 0)
        return false;
    expr->at += n;
    return true;
}

// Known if an input has it as a plain dimension.
static struct sized read_symbol(struct expr *expr, struct str symbol)
{
    const struct size_source *from = tsr__map_get(&expr->draft->sizes, symbol);
    if (!from)
        return not_known;
    if (!expr->maker)
        return (struct sized){.ok = true, .symbolic = true};
    tsr_value *value = expr->maker->symbol(expr->maker->data, symbol, from);
    return (struct sized){.ok = value != NULL, .value = value, .symbolic = true};
}

// What the nodes would compute, now. False: it does not fit 64 bits, or it divides negative numbers, which C rounds
// otherwise than the nodes may: the size counts as not known then.
static bool compute(enum arith op, int64_t a, int64_t b, int64_t *out)
{
    bool divides = a >= 0 && b > 0;
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
        if (divides)
            *out = a / b;
        return divides;
    case ARITH_MOD:
        if (divides)
            *out = a % b;
        return divides;
    }
    return false;
}

static tsr_value *as_value(const struct size_maker *maker, const struct sized *sized)
{
    if (sized->value)
        return sized->value;
    return maker->number(maker->data, sized->number);
}

// Numbers are computed here and now; with a symbol it is the maker's work.
static struct sized combine(struct expr *expr, enum arith op, struct sized a, struct sized b)
{
    struct sized out = {.ok = a.ok && b.ok, .symbolic = a.symbolic || b.symbolic};
    if (!out.ok)
        return out;
    if (!out.symbolic) {
        out.ok = compute(op, a.number, b.number, &out.number);
    } else if (expr->maker) {
        tsr_value *left = as_value(expr->maker, &a), *right = as_value(expr->maker, &b);
        out.value = expr->maker->combine(expr->maker->data, op, left, right);
        out.ok = out.value != NULL;
    }
    return out;
}

// What stands in a parenthesis that must end here.
static struct sized closed(struct expr *expr, struct sized inner)
{
    if (take(expr, ")"))
        return inner;
    return not_known;
}

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
        return closed(expr, left);
    }
    return not_known;
}

// A number, a symbol, a call, or something in parentheses.
static struct sized read_atom(struct expr *expr)
{
    if (take(expr, "floor(") || take(expr, "(")) { // sizes are integers: floor is what / does here
        struct sized inner = read_sum(expr);
        return closed(expr, inner);
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
    if (word.n)
        return read_symbol(expr, word);
    return not_known;
}

// From left to right: "a*b/2" is (a*b)/2.
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

// Bounded in depth: the text is foreign.
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
// it. A text of numbers alone ("10", "-1") is a name all the same: ONNX writes numbers as numbers.
static struct sized size_of(struct draft *draft, const struct size_maker *maker, const tsr_dim *dim)
{
    struct str text = str_of(dim->symbol);
    if (dim->value >= 0)
        return (struct sized){.ok = true, .number = dim->value};
    if (text.n == 0 || text.n > EXPR_MAX_TEXT)
        return not_known;
    struct expr expr = {.draft = draft, .maker = maker, .at = text.p, .end = text.p + text.n};
    if (tsr__map_get(&draft->sizes, text))
        return read_symbol(&expr, text);
    struct sized sized = read_sum(&expr);
    skip_space(&expr);
    if (expr.at == expr.end && sized.symbolic)
        return sized;
    return not_known;
}

bool tsr__size_known(struct draft *draft, const tsr_dim *dim)
{
    return size_of(draft, NULL, dim).ok;
}

bool tsr__shape_known(struct draft *draft, const struct item *it)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (!tsr__size_known(draft, &it->dims[axis]))
            return false;
    return it->rank >= 0;
}

tsr_value *tsr__size_make(struct draft *draft, const struct size_maker *maker, const tsr_dim *dim)
{
    struct sized sized = size_of(draft, maker, dim);
    if (sized.ok)
        return as_value(maker, &sized);
    return NULL;
}
