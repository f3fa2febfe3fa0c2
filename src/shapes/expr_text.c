// SPDX-License-Identifier: Apache-2.0
// expr_text.c - parses the texts that exporters give dimensions, and prints expressions so that
// they parse back as the same.
//
//   sum     := product { ("+" | "-") product }
//   product := power { ("*" | "//" | "/" | "%") power }
//   power   := atom { "**" number }
//   atom    := number | name | "-" atom | "(" sum ")" | function "(" sum {"," sum} ")"
//   function := "floor" | "Max" | ...
//
// Any other text is one symbol. Length and depth are bounded.
//
//   "2*seq + 1"              the sum of 2*seq and 1
//   "floor(seq/2)"           the same as "seq//2"
//   "floor(seq/2 - 1/2)"     the same as "(seq - 1)//2": "/" is exact, as in sympy
//   "batch size"             one symbol, with a space in its name
//   "((batch"                one symbol as well
//
// A sum inside an operation is printed in parentheses, "((past + 1)%3)"; arguments are not.
#include "shapes/expr.h"
#include "shapes/shapes.h"

#include <ctype.h>
#include <stdio.h>

// ---- reading -----------------------------------------------------------------------------------

#define MAX_NESTED 32 // most nested sums of a text

// A text that is being read.
struct size_text {
    struct size_reader *reader;
    struct str rest; // not read yet
    int depth;
};
// An exact quotient while a text is read. seq/2 - 1/2 is (seq - 1) over 2.
struct fraction {
    struct size_value top, bottom;
};

static struct fraction read_sum(struct size_text *text);

static struct fraction over_one(struct size_value value)
{
    return (struct fraction){value, {.known = true, .number = 1}};
}

static struct fraction not_read(void)
{
    return over_one((struct size_value){0});
}

static bool is_known(struct fraction fraction)
{
    return fraction.top.known && fraction.bottom.known;
}

static bool is_one(struct size_value value)
{
    return value.known && !value.made && value.number == 1;
}

static struct size_value combine(struct size_text *text, enum size_op op, struct size_value a,
                                 struct size_value b)
{
    if (!a.known || !b.known)
        return (struct size_value){0};
    if (op == SIZE_OP_MUL && is_one(a))
        return b;
    if ((op == SIZE_OP_MUL || op == SIZE_OP_DIV) && is_one(b))
        return a;
    return text->reader->combine(text->reader->data, op, a, b);
}

// Rounds down. A size that is no call of floor() is an integer, so nothing is lost.
static struct size_value rounded(struct size_text *text, struct fraction fraction)
{
    return combine(text, SIZE_OP_DIV, fraction.top, fraction.bottom);
}

static struct fraction multiply(struct size_text *text, struct fraction a, struct fraction b)
{
    return (struct fraction){combine(text, SIZE_OP_MUL, a.top, b.top),
                             combine(text, SIZE_OP_MUL, a.bottom, b.bottom)};
}

static struct fraction divide(struct size_text *text, struct fraction a, struct fraction b)
{
    return multiply(text, a, (struct fraction){b.bottom, b.top});
}

// Computes a + b or, with SIZE_OP_SUB, a - b.
static struct fraction add(struct size_text *text, enum size_op op, struct fraction a,
                           struct fraction b)
{
    if (a.bottom.made == b.bottom.made && a.bottom.number == b.bottom.number && is_known(b))
        return (struct fraction){combine(text, op, a.top, b.top), a.bottom};
    struct size_value left = combine(text, SIZE_OP_MUL, a.top, b.bottom),
                      right = combine(text, SIZE_OP_MUL, b.top, a.bottom);
    return (struct fraction){combine(text, op, left, right),
                             combine(text, SIZE_OP_MUL, a.bottom, b.bottom)};
}

// Drops the first n bytes of the rest.
static void drop(struct size_text *text, size_t n)
{
    text->rest = (struct str){text->rest.p + n, text->rest.n - n};
}

// Skips white space. If `sign` follows, skips it and returns true. Callers try longer signs first:
// "//" before "/".
static bool take(struct size_text *text, const char *sign)
{
    size_t n = strlen(sign);
    while (text->rest.n && isspace((unsigned char)text->rest.p[0]))
        drop(text, 1);
    if (text->rest.n < n || memcmp(text->rest.p, sign, n) != 0)
        return false;
    drop(text, n);
    return true;
}

static struct str word(struct size_text *text)
{
    take(text, ""); // white space
    struct str w = tsr__dim_word(text->rest);
    drop(text, w.n);
    return w;
}

// Returns the fraction if a closing parenthesis follows, else unknown.
static struct fraction closed(struct size_text *text, struct fraction fraction)
{
    return take(text, ")") ? fraction : not_read();
}

// Reads a call such as "max(n, 2*m, 7)", applied from left to right. floor() has one argument.
static struct fraction read_call(struct size_text *text, struct str name)
{
    static const struct {
        const char *name;
        enum size_op op;
    } calls[] = {{"max", SIZE_OP_MAX}, {"Max", SIZE_OP_MAX}, {"FloorDiv", SIZE_OP_DIV},
                 {"min", SIZE_OP_MIN}, {"Min", SIZE_OP_MIN}, {"PythonMod", SIZE_OP_MOD},
                 {"Mod", SIZE_OP_MOD}};
    if (str_is(name, "floor"))
        return closed(text, over_one(rounded(text, read_sum(text))));
    for (size_t i = 0; i < TSR_COUNT(calls); i++) {
        if (!str_is(name, calls[i].name))
            continue;
        struct size_value value = rounded(text, read_sum(text));
        while (value.known && take(text, ","))
            value = combine(text, calls[i].op, value, rounded(text, read_sum(text)));
        return closed(text, over_one(value));
    }
    return not_read();
}

// Reads a number, a name, a call, a sign, or a sum in parentheses. Text that starts with a digit
// and is no number is invalid.
static struct fraction read_atom(struct size_text *text)
{
    struct size_value number = {.known = true};
    if (take(text, "-"))
        return add(text, SIZE_OP_SUB, over_one(number), read_atom(text));
    if (take(text, "("))
        return closed(text, read_sum(text));
    struct str w = word(text);
    if (!w.n)
        return not_read();
    if (tsr__str_int(w, &number.number))
        return over_one(number);
    if (isdigit((unsigned char)w.p[0]))
        return not_read();
    if (take(text, "("))
        return read_call(text, w);
    text->reader->names++;
    return over_one(text->reader->symbol(text->reader->data, w));
}

// Reads a power: "n**3" is n*n*n. Exponents other than small numbers are invalid.
static struct fraction read_power(struct size_text *text)
{
    struct fraction power = read_atom(text), one = power;
    int64_t times;
    while (is_known(power) && take(text, "**")) {
        // A term cannot have more factors.
        if (!tsr__str_int(word(text), &times) || times < 1 || times > EXPR_MAX_ATOMS)
            return not_read();
        for (one = power; times > 1; times--)
            power = multiply(text, power, one);
    }
    return power;
}

static struct fraction read_product(struct size_text *text)
{
    struct fraction left = read_power(text);
    while (is_known(left)) {
        if (take(text, "*"))
            left = multiply(text, left, read_power(text));
        else if (take(text, "//"))
            left = over_one(rounded(text, divide(text, left, read_power(text))));
        else if (take(text, "/"))
            left = divide(text, left, read_power(text));
        else if (take(text, "%"))
            left = over_one(
                combine(text, SIZE_OP_MOD, rounded(text, left), rounded(text, read_power(text))));
        else
            break;
    }
    return left;
}

// Reads a sum. Also limits the depth, because all nested expressions pass here.
static struct fraction read_sum(struct size_text *text)
{
    // The depth is not decremented on failure: the text is invalid, and reading ends.
    if (text->depth++ >= MAX_NESTED)
        return not_read();
    struct fraction left = read_product(text);
    while (is_known(left)) {
        if (take(text, "+"))
            left = add(text, SIZE_OP_ADD, left, read_product(text));
        else if (take(text, "-"))
            left = add(text, SIZE_OP_SUB, left, read_product(text));
        else
            break;
    }
    text->depth--;
    return left;
}

struct size_value tsr__size_read(struct size_reader *reader, struct str text)
{
    struct size_text all = {.reader = reader, .rest = text};
    struct size_value value = rounded(&all, read_sum(&all));
    take(&all, ""); // white space
    return all.rest.n ? (struct size_value){0} : value;
}

// ---- texts of a pool ---------------------------------------------------------------------------

static struct size_value as_value(struct expr expr)
{
    return (struct size_value){expr.known, expr.number, expr.poly};
}

static struct size_value symbol(void *data, struct str name)
{
    return as_value(tsr__expr_symbol(data, name));
}

static struct size_value combine_exprs(void *data, enum size_op op, struct size_value a,
                                       struct size_value b)
{
    static struct expr (*const of[])(struct exprs * exprs, struct expr a, struct expr b) = {
        [SIZE_OP_ADD] = tsr__expr_add, [SIZE_OP_SUB] = tsr__expr_sub,
        [SIZE_OP_MUL] = tsr__expr_mul, [SIZE_OP_DIV] = tsr__expr_floor,
        [SIZE_OP_MOD] = tsr__expr_mod, [SIZE_OP_MAX] = tsr__expr_max,
        [SIZE_OP_MIN] = tsr__expr_min,
    };
    return as_value(of[op](data, (struct expr){a.known, a.number, a.made},
                           (struct expr){b.known, b.number, b.made}));
}

// Reads a text of numbers alone ("10", "2*3") as a name: ONNX stores numbers as numbers, and ONNX
// Runtime accepts any size for a name.
static struct expr read_number_name(struct exprs *exprs, struct str text)
{
    struct expr expr = tsr__expr_symbol(exprs, text);
    struct atom *atom = tsr__expr_sole_atom(exprs, expr);
    if (atom)
        atom->number_name = true;
    return expr;
}

// Reads the text of a dimension. A name that the caller has bound is read as that name, even if it
// looks like an expression ("a-b").
static struct expr read_text(struct exprs *exprs, struct str text)
{
    struct size_reader reader = {exprs, symbol, combine_exprs, 0};
    if (tsr__map_get(&exprs->bound, text) || text.n > EXPR_MAX_TEXT)
        return tsr__expr_symbol(exprs, text);
    struct size_value value = tsr__size_read(&reader, text);
    if (!value.known)
        return tsr__expr_symbol(exprs, text);
    if (!reader.names)
        return read_number_name(exprs, text);
    return (struct expr){true, value.number, value.made};
}

// Reads the text as this expression from now on. Returns false if out of memory.
static bool remember(struct exprs *exprs, struct str text, struct expr expr)
{
    struct expr *known = ARENA_NEW(exprs->arena, struct expr);
    void **slot = known ? tsr__map_at(&exprs->texts, text) : NULL;
    if (!slot)
        return false;
    *known = expr;
    *slot = known;
    return true;
}

// Returns the expression of a dimension. Each text is read once. The first spelling of an
// expression is also the one that is printed: "seq+past" stays as it was written.
struct expr tsr__expr_of(struct exprs *exprs, tsr_dim dim)
{
    if (dim.value >= 0)
        return expr_number(dim.value);
    struct str text = str_of(dim.symbol);
    if (!text.n)
        return EXPR_UNKNOWN;
    const struct expr *known = tsr__map_get(&exprs->texts, text);
    if (known)
        return *known;
    text = tsr__arena_str(exprs->arena, text);
    if (!text.p)
        return EXPR_UNKNOWN; // out of memory: the arena has failed
    struct expr expr = read_text(exprs, text);
    if (exprs->texts.n >= EXPR_MAX_POOL || !remember(exprs, text, expr))
        return expr;
    if (expr.poly && !expr.poly->text)
        ((struct poly *)expr.poly)->text = text.p; // the model's spelling is kept
    return expr;
}

// Marks a dimension of an input as a root. Only a symbol by itself is marked; for a dimension
// called "2*n", n is not.
void tsr__expr_root(struct exprs *exprs, tsr_dim dim)
{
    struct atom *atom = tsr__expr_sole_atom(exprs, tsr__expr_of(exprs, dim));
    if (atom && atom->kind == ATOM_NAME && str_is(atom->name, dim.symbol))
        atom->root = true;
}

// True if the text is read as one name inside an expression.
static bool is_one_word(struct str text)
{
    unsigned char first = text.n ? (unsigned char)text.p[0] : '0';
    return tsr__dim_word(text).n == text.n && !isdigit(first) && !isspace(first);
}

struct expr tsr__expr_input_size(struct exprs *exprs, struct str name)
{
    if (tsr__map_get(&exprs->bound, name))
        return tsr__expr_symbol(exprs, name);
    void *known = tsr__map_get(&exprs->names, name);
    if (known && exprs->atoms.at[(uintptr_t)known - 1].root)
        return EXPR_UNKNOWN;
    struct expr expr = tsr__expr_symbol(exprs, name);
    struct atom *atom = tsr__expr_sole_atom(exprs, expr);
    if (!atom)
        return EXPR_UNKNOWN;
    atom->root = true;
    atom->number_name = !is_one_word(name);
    // From now on this text is read as the symbol, even if it looks like "a - b.0".
    if (!remember(exprs, atom->name, expr))
        return EXPR_UNKNOWN;
    ((struct poly *)expr.poly)->text = atom->name.p;
    return expr;
}

// True if both are known and equal. Two unknown sizes are not.
bool tsr__dim_equal(struct exprs *exprs, tsr_dim a, tsr_dim b)
{
    if (a.value >= 0 && b.value >= 0)
        return a.value == b.value;
    if (!dim_known(a) || !dim_known(b))
        return false;
    return a.symbol == b.symbol || expr_equal(tsr__expr_of(exprs, a), tsr__expr_of(exprs, b));
}

// ---- printing ----------------------------------------------------------------------------------

struct printer {
    struct exprs *exprs;
    char text[EXPR_MAX_TEXT + 1];
    size_t n;
    bool full;
    int depth;
};

// Appends text. If it does not fit, `full` is set.
static void put(struct printer *printer, struct str text)
{
    printer->full = printer->full || text.n > EXPR_MAX_TEXT - printer->n;
    if (printer->full)
        return;
    memcpy(printer->text + printer->n, text.p, text.n);
    printer->n += text.n;
}

static void put_number(struct printer *printer, int64_t n)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%lld", (long long)n);
    put(printer, (struct str){digits, (size_t)length});
}

static void print_sum(struct printer *printer, struct expr expr, bool bare);

// Prints "n", "(n//2)" or "max(n, 4)".
static void print_atom(struct printer *printer, uint32_t number)
{
    static const struct {
        const char *before, *between;
        bool call; // its arguments need no parentheses
    } forms[] = {[ATOM_DIV] = {"(", "//", false},
                 [ATOM_MOD] = {"(", "%", false},
                 [ATOM_MAX] = {"max(", ", ", true},
                 [ATOM_MIN] = {"min(", ", ", true}};
    const struct atom *atom = &printer->exprs->atoms.at[number];
    if (atom->kind == ATOM_NAME) {
        // In "10 + n" the name 10 would be read as a number. It is marked as hidden, and the size
        // becomes unknown in the end.
        static const char mark[] = {HIDDEN_MARK, 0};
        if (atom->number_name)
            put(printer, str_of(mark));
        put(printer, atom->name);
        return;
    }
    bool call = forms[atom->kind].call;
    put(printer, str_of(forms[atom->kind].before));
    print_sum(printer, atom->a, call);
    put(printer, str_of(forms[atom->kind].between));
    print_sum(printer, atom->b, call);
    put(printer, STR(")"));
}

// Prints "2*n", " - n" or " + 3".
static void print_term(struct printer *printer, const struct term *term, bool first)
{
    static const char *const signs[2][2] = {{" + ", " - "},
                                            {"", "-"}}; // signs of later terms, sign of the first
    int64_t n = term->number;
    put(printer, str_of(signs[first][n < 0]));
    // No term has INT64_MIN: keep in expr.c rejects it.
    if (n < 0)
        n = -n;
    if (term->n == 0 || n != 1)
        put_number(printer, n);
    for (int i = 0; i < term->n; i++) {
        if (i > 0 || n != 1)
            put(printer, STR("*"));
        print_atom(printer, term->atoms[i]);
    }
}

// Prints a sum. bare: without parentheses.
static void print_sum(struct printer *printer, struct expr expr, bool bare)
{
    if (!expr.poly) {
        put_number(printer, expr.number);
        return;
    }
    printer->full = printer->full || printer->depth++ > EXPR_MAX_DEPTH;
    const struct term *only = &expr.poly->terms[0];
    bare = bare || (expr.poly->n == 1 && only->number == 1 && only->n == 1);
    if (!bare)
        put(printer, STR("("));
    for (int i = 0; i < expr.poly->n; i++) {
        if (printer->full)
            break;
        print_term(printer, &expr.poly->terms[i], i == 0);
    }
    if (!bare)
        put(printer, STR(")"));
    printer->depth--;
}

// Prints an expression and records the text, so that it reads back as the same expression, even if
// symbols look like operators or numbers.
static const char *print(struct exprs *exprs, struct expr expr)
{
    struct printer printer = {.exprs = exprs};
    print_sum(&printer, expr, true);
    if (printer.full)
        return "";
    struct str text = tsr__arena_str(exprs->arena, (struct str){printer.text, printer.n});
    if (!text.p)
        return "";
    // A symbol with a sign in its name ("a-b") would otherwise be read as an expression.
    if (!tsr__map_get(&exprs->texts, text))
        remember(exprs, text, expr);
    return text.p;
}

// Returns the expression as a dimension. A negative size is invalid. The text is printed at the
// first call and stored.
tsr_dim tsr__expr_dim(struct exprs *exprs, struct expr expr)
{
    if (!expr.known || (!expr.poly && expr.number < 0))
        return DIM_UNKNOWN;
    if (!expr.poly)
        return (tsr_dim){.value = expr.number, .symbol = ""};
    struct poly *poly = (struct poly *)expr.poly; // the text is stored in the pool
    if (!poly->text)
        poly->text = print(exprs, expr);
    bool hidden = strchr(poly->text, HIDDEN_MARK) != NULL;
    if (!poly->text[0] || (hidden && !exprs->hides)) // too long, or hidden
        return DIM_UNKNOWN;
    exprs->hidden = exprs->hidden || hidden;
    return (tsr_dim){.value = -1, .symbol = poly->text};
}
