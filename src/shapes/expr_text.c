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

#include <ctype.h>
#include <stdio.h>

struct reader {
    struct exprs *exprs;
    struct str text; // the unread rest
    int depth;
    int names; // number of names read so far
};
static const struct expr unknown = {0};
// An exact quotient while a text is read. seq/2 - 1/2 is (seq - 1) over 2.
struct fraction {
    struct expr top, bottom;
};

static struct fraction read_sum(struct reader *reader);

static struct fraction over_one(struct expr expr)
{
    return (struct fraction){expr, expr_number(1)};
}

static bool is_known(struct fraction fraction)
{
    return fraction.top.known && fraction.bottom.known;
}

// Rounds down. A size that is no call of floor() is an integer, so nothing is lost.
static struct expr rounded(struct reader *reader, struct fraction fraction)
{
    return tsr__expr_floor(reader->exprs, fraction.top, fraction.bottom);
}

static struct fraction multiply(struct reader *reader, struct fraction a, struct fraction b)
{
    return (struct fraction){tsr__expr_mul(reader->exprs, a.top, b.top),
                             tsr__expr_mul(reader->exprs, a.bottom, b.bottom)};
}

static struct fraction divide(struct reader *reader, struct fraction a, struct fraction b)
{
    return multiply(reader, a, (struct fraction){b.bottom, b.top});
}

// Computes a + b or, with tsr__expr_sub, a - b.
static struct fraction add(struct reader *reader,
                           struct expr (*of)(struct exprs *exprs, struct expr a, struct expr b),
                           struct fraction a, struct fraction b)
{
    if (expr_equal(a.bottom, b.bottom))
        return (struct fraction){of(reader->exprs, a.top, b.top), a.bottom};
    struct expr left = tsr__expr_mul(reader->exprs, a.top, b.bottom),
                right = tsr__expr_mul(reader->exprs, b.top, a.bottom);
    return (struct fraction){of(reader->exprs, left, right),
                             tsr__expr_mul(reader->exprs, a.bottom, b.bottom)};
}

// Skips white space.
static void skip(struct reader *reader)
{
    while (reader->text.n && isspace((unsigned char)reader->text.p[0]))
        reader->text = (struct str){reader->text.p + 1, reader->text.n - 1};
}

// Skips white space. If `sign` follows, skips it and returns true. Callers try longer signs first:
// "//" before "/".
static bool take(struct reader *reader, const char *sign)
{
    size_t n = strlen(sign);
    skip(reader);
    if (reader->text.n < n || memcmp(reader->text.p, sign, n) != 0)
        return false;
    reader->text = (struct str){reader->text.p + n, reader->text.n - n};
    return true;
}

static struct str word(struct reader *reader)
{
    skip(reader);
    struct str w = tsr__dim_word(reader->text);
    reader->text = (struct str){reader->text.p + w.n, reader->text.n - w.n};
    return w;
}

// Returns the fraction if a closing parenthesis follows, else unknown.
static struct fraction closed(struct reader *reader, struct fraction fraction)
{
    return take(reader, ")") ? fraction : over_one(unknown);
}

// Reads a call such as "max(n, 2*m, 7)", applied from left to right. floor() has one argument.
static struct fraction read_call(struct reader *reader, struct str name)
{
    static const struct {
        const char *name;
        struct expr (*of)(struct exprs *exprs, struct expr a, struct expr b);
    } calls[] = {{"max", tsr__expr_max},        {"Max", tsr__expr_max},
                 {"min", tsr__expr_min},        {"Min", tsr__expr_min},
                 {"FloorDiv", tsr__expr_floor}, {"Mod", tsr__expr_mod},
                 {"PythonMod", tsr__expr_mod},  {"floor", NULL}};
    for (size_t i = 0; i < TSR_COUNT(calls); i++) {
        if (!str_is(name, calls[i].name))
            continue;
        struct expr expr = rounded(reader, read_sum(reader));
        while (expr.known && calls[i].of && take(reader, ","))
            expr = calls[i].of(reader->exprs, expr, rounded(reader, read_sum(reader)));
        return closed(reader, over_one(expr));
    }
    return over_one(unknown);
}

// Reads a number, a name, a call, a sign, or a sum in parentheses. Text that starts with a digit
// and is no number is invalid.
static struct fraction read_atom(struct reader *reader)
{
    int64_t number;
    if (take(reader, "-"))
        return multiply(reader, over_one(expr_number(-1)), read_atom(reader));
    if (take(reader, "("))
        return closed(reader, read_sum(reader));
    struct str w = word(reader);
    if (!w.n)
        return over_one(unknown);
    if (tsr__str_int(w, &number))
        return over_one(expr_number(number));
    if (isdigit((unsigned char)w.p[0]))
        return over_one(unknown);
    if (take(reader, "("))
        return read_call(reader, w);
    reader->names++;
    return over_one(tsr__expr_symbol(reader->exprs, w));
}

// Reads a power: "n**3" is n*n*n. Exponents other than small numbers are invalid.
static struct fraction read_power(struct reader *reader)
{
    struct fraction power = read_atom(reader), one = power;
    int64_t times;
    while (is_known(power) && take(reader, "**")) {
        // A term cannot have more factors.
        if (!tsr__str_int(word(reader), &times) || times < 1 || times > EXPR_MAX_ATOMS)
            return over_one(unknown);
        for (one = power; times > 1; times--)
            power = multiply(reader, power, one);
    }
    return power;
}

// Reads a product.
static struct fraction read_product(struct reader *reader)
{
    struct fraction left = read_power(reader);
    while (is_known(left)) {
        if (take(reader, "*"))
            left = multiply(reader, left, read_power(reader));
        else if (take(reader, "//"))
            left = over_one(rounded(reader, divide(reader, left, read_power(reader))));
        else if (take(reader, "/"))
            left = divide(reader, left, read_power(reader));
        else if (take(reader, "%"))
            left = over_one(tsr__expr_mod(reader->exprs, rounded(reader, left),
                                          rounded(reader, read_power(reader))));
        else
            break;
    }
    return left;
}

// Reads a sum. Also limits the depth, because all nested expressions pass here.
static struct fraction read_sum(struct reader *reader)
{
    // The depth is not decremented on failure: the text is invalid, and reading ends.
    if (reader->depth++ >= EXPR_MAX_DEPTH)
        return over_one(unknown);
    struct fraction left = read_product(reader);
    while (is_known(left)) {
        if (take(reader, "+"))
            left = add(reader, tsr__expr_add, left, read_product(reader));
        else if (take(reader, "-"))
            left = add(reader, tsr__expr_sub, left, read_product(reader));
        else
            break;
    }
    reader->depth--;
    return left;
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
    struct reader reader = {.exprs = exprs, .text = text};
    if (tsr__map_get(&exprs->bound, text))
        return tsr__expr_symbol(exprs, text);
    if (text.n > EXPR_MAX_TEXT)
        return tsr__expr_symbol(exprs, text);
    struct expr expr = rounded(&reader, read_sum(&reader));
    skip(&reader);
    if (!expr.known || reader.text.n)
        return tsr__expr_symbol(exprs, text);
    return reader.names ? expr : read_number_name(exprs, text);
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
        return unknown;
    const struct expr *known = tsr__map_get(&exprs->texts, text);
    if (known)
        return *known;
    text = tsr__arena_str(exprs->arena, text);
    if (!text.p)
        return unknown; // out of memory: the arena has failed
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
    struct reader reader = {.text = text};
    struct str first = word(&reader);
    return first.n == text.n && text.n && !isdigit((unsigned char)text.p[0]);
}

struct expr tsr__expr_input_size(struct exprs *exprs, struct str name)
{
    if (tsr__map_get(&exprs->bound, name))
        return tsr__expr_symbol(exprs, name);
    void *known = tsr__map_get(&exprs->names, name);
    if (known && exprs->atoms.at[(uintptr_t)known - 1].root)
        return unknown;
    struct expr expr = tsr__expr_symbol(exprs, name);
    struct atom *atom = tsr__expr_sole_atom(exprs, expr);
    if (!atom)
        return unknown;
    atom->root = true;
    atom->number_name = !is_one_word(name);
    // From now on this text is read as the symbol, even if it looks like "a - b.0".
    if (!remember(exprs, atom->name, expr))
        return unknown;
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
