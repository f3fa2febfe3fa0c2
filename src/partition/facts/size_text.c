// SPDX-License-Identifier: Apache-2.0
// size_text.c - parses the sizes of a model: a number, a symbol ("batch") or an expression
// ("batch*seq", "past + 1"). A symbol is known if a dimension of a model input has that name. An
// expression is known if all its symbols are.
//
// One parser serves two callers. Planning asks whether every rank can compute a size. Emission
// passes callbacks that turn symbols and arithmetic into nodes (emit_shape.c).
//
//     Example: an input x has the dimensions [batch, seq]; "batch*(seq + 2)" calls
//         symbol(batch), symbol(seq), combine(+, seq, number(2)), combine(*, batch, that)
//     "2*3 + batch": 2*3 is computed here; then combine(+, number(6), symbol(batch))
//     "floor(h/2 - 1/2)": "/" is exact, as in sympy; h - 1 is divided by 2 when floor() ends
//     "other/2": no input has a dimension "other", so the size is not known
#include "partition/facts/facts.h"

#include <ctype.h>

#define EXPR_MAX_DEPTH 32
#define EXPR_MAX_TEXT  1024

// State of the parser.
struct expr {
    struct draft *draft;
    const struct size_maker *maker; // NULL: only check whether the size is known
    const char *at, *end;
    int depth;
};
// Result of an expression. If `ok` is false, the size is unknown. Otherwise it is `value`, an
// int64[1] that nodes compute, or `number` if `value` is NULL. If only known sizes are checked
// (`maker` is NULL), a symbolic size has neither. A fraction is this size divided by `bottom`.
struct size_result {
    bool ok;
    int64_t number;
    tsr_value *value;
    bool symbolic;  // the expression contains a symbol
    int64_t bottom; // 0: 1
};
static const struct size_result not_known = {0};

static struct size_result read_sum(struct expr *expr);

static void skip_space(struct expr *expr)
{
    while (expr->at < expr->end && isspace((unsigned char)*expr->at))
        expr->at++;
}

// Skips spaces. If `text` follows, skips it too and returns true.
static bool take(struct expr *expr, const char *text)
{
    skip_space(expr);
    size_t n = strlen(text);
    if ((size_t)(expr->end - expr->at) < n || memcmp(expr->at, text, n) != 0)
        return false;
    expr->at += n;
    return true;
}

static struct size_result read_symbol(struct expr *expr, struct str symbol)
{
    const struct size_source *from = tsr__map_get(&expr->draft->sizes, symbol);
    if (!from)
        return not_known;
    if (!expr->maker)
        return (struct size_result){.ok = true, .symbolic = true};
    tsr_value *value = expr->maker->symbol(expr->maker->data, symbol, from);
    return (struct size_result){.ok = value != NULL, .value = value, .symbolic = true};
}

// Computes `a op b`. Returns false (unknown) on overflow, on division by 0, and on division of
// negative numbers, which C and the operators of ONNX may round differently.
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
        *out = int64_max(a, b);
        return true;
    case ARITH_MIN:
        *out = int64_min(a, b);
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

static tsr_value *as_value(const struct size_maker *maker, const struct size_result *result)
{
    return result->value ? result->value : maker->number(maker->data, result->number);
}

static struct size_result combine(struct expr *expr, enum arith op, struct size_result a,
                                  struct size_result b)
{
    struct size_result out = {.ok = a.ok && b.ok, .symbolic = a.symbolic || b.symbolic};
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

static struct size_result number_of(int64_t number)
{
    return (struct size_result){.ok = true, .number = number};
}

static int64_t bottom_of(struct size_result size)
{
    return size.bottom ? size.bottom : 1;
}

// Rounds a fraction down to an integer.
static struct size_result rounded(struct expr *expr, struct size_result size)
{
    int64_t bottom = bottom_of(size);
    size.bottom = 0;
    return bottom == 1 ? size : combine(expr, ARITH_DIV, size, number_of(bottom));
}

// Multiplies numerator and denominator, so that two fractions have the same denominator.
static struct size_result scaled(struct expr *expr, struct size_result size, int64_t times)
{
    return times == 1 ? size : combine(expr, ARITH_MUL, size, number_of(times));
}

// Adds, subtracts or multiplies fractions.
static struct size_result combine_fractions(struct expr *expr, enum arith op, struct size_result a,
                                            struct size_result b)
{
    int64_t left = bottom_of(a), right = bottom_of(b), bottom = left;
    bool same = op != ARITH_MUL && left == right;
    if (!a.ok || !b.ok || (!same && !mul_ok(left, right, &bottom)))
        return not_known;
    a.bottom = b.bottom = 0;
    if (op != ARITH_MUL && !same) {
        a = scaled(expr, a, right);
        b = scaled(expr, b, left);
    }
    struct size_result out = combine(expr, op, a, b);
    out.bottom = bottom;
    return out;
}

// Divides without rounding if the divisor is a number.
static struct size_result quotient(struct expr *expr, struct size_result a, struct size_result b)
{
    if (!a.ok || !b.ok || b.symbolic)
        return combine(expr, ARITH_DIV, rounded(expr, a), rounded(expr, b));
    struct size_result out = scaled(expr, a, bottom_of(b));
    if (b.number <= 0 || !mul_ok(bottom_of(a), b.number, &out.bottom))
        return not_known;
    return out;
}

// Returns `inner` if a closing parenthesis follows, else unknown.
static struct size_result closed(struct expr *expr, struct size_result inner)
{
    return take(expr, ")") ? inner : not_known;
}

// Reads the arguments of max(a, b), FloorDiv(a, b) and others, after the opening parenthesis.
static struct size_result read_call(struct expr *expr, struct str name)
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
        struct size_result left = rounded(expr, read_sum(expr));
        while (left.ok && take(expr, ","))
            left = combine(expr, calls[i].op, left, rounded(expr, read_sum(expr)));
        return closed(expr, left);
    }
    return not_known;
}

static struct size_result read_atom(struct expr *expr)
{
    if (take(expr, "floor("))
        return closed(expr, rounded(expr, read_sum(expr)));
    if (take(expr, "("))
        return closed(expr, read_sum(expr));
    skip_space(expr);
    struct str word = tsr__dim_word((struct str){expr->at, (size_t)(expr->end - expr->at)});
    expr->at += word.n;
    struct size_result number = {.ok = true};
    if (tsr__str_int(word, &number.number))
        return number;
    if (word.n && take(expr, "("))
        return read_call(expr, word);
    return word.n ? read_symbol(expr, word) : not_known;
}

// Reads a product. Operators apply from left to right: "a*b/2" is (a*b)/2.
static struct size_result read_product(struct expr *expr)
{
    struct size_result left = read_atom(expr);
    for (;;) {
        if (!left.ok)
            return left;
        if (take(expr, "*"))
            left = combine_fractions(expr, ARITH_MUL, left, read_atom(expr));
        else if (take(expr, "//"))
            left = rounded(expr, quotient(expr, left, read_atom(expr)));
        else if (take(expr, "/"))
            left = quotient(expr, left, read_atom(expr));
        else if (take(expr, "%"))
            left = combine(expr, ARITH_MOD, rounded(expr, left), rounded(expr, read_atom(expr)));
        else
            return left;
    }
}

// Reads the first product, which may have a minus sign: "-kernel + width + 1".
static struct size_result read_first(struct expr *expr)
{
    struct size_result nothing = {.ok = true};
    if (take(expr, "-"))
        return combine_fractions(expr, ARITH_SUB, nothing, read_product(expr));
    return read_product(expr);
}

// Reads a sum. The nesting depth is limited because the text comes from an untrusted file.
static struct size_result read_sum(struct expr *expr)
{
    struct size_result left = {0};
    if (expr->depth++ < EXPR_MAX_DEPTH)
        left = read_first(expr);
    while (left.ok) {
        if (take(expr, "+"))
            left = combine_fractions(expr, ARITH_ADD, left, read_product(expr));
        else if (take(expr, "-"))
            left = combine_fractions(expr, ARITH_SUB, left, read_product(expr));
        else
            break;
    }
    expr->depth--;
    return left;
}

// Computes a size. Its text may be a symbol or an expression. A text without a symbol, such as
// "10", is unknown, because ONNX stores numbers as numbers.
static struct size_result size_of(struct draft *draft, const struct size_maker *maker,
                                  const tsr_dim *dim)
{
    struct str text = str_of(dim->symbol);
    if (dim->value >= 0)
        return (struct size_result){.ok = true, .number = dim->value};
    if (text.n == 0 || text.n > EXPR_MAX_TEXT)
        return not_known;
    struct expr expr = {.draft = draft, .maker = maker, .at = text.p, .end = text.p + text.n};
    if (tsr__map_get(&draft->sizes, text))
        return read_symbol(&expr, text);
    struct size_result result = rounded(&expr, read_sum(&expr));
    skip_space(&expr);
    return expr.at == expr.end && result.symbolic ? result : not_known;
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
    struct size_result result = size_of(draft, maker, dim);
    return result.ok ? as_value(maker, &result) : NULL;
}
