// SPDX-License-Identifier: Apache-2.0
// expr_text.c - reads the texts that exporters give dimensions, and prints expressions so that they
// read back as the same.
//
//   sum     := product { ("+" | "-") product }
//   product := power { ("*" | "//" | "/" | "%") power }
//   power   := atom { "**" number }
//   atom    := number | name | "-" atom | "(" sum ")" | ("floor" | "Max" | ...) "(" sum {"," sum} ")"
//
// A text that is none of this is one symbol. Work is bounded by length and depth.
#include "rules/expr.h"

#include <ctype.h>
#include <stdio.h>

struct reader {
    struct exprs *x;
    struct str text; // what is left
    int depth;
};
static const struct expr unknown = {0};

static struct expr read_sum(struct reader *r);

static void skip(struct reader *r)
{
    while (r->text.n && isspace((unsigned char)r->text.p[0]))
        r->text = (struct str){r->text.p + 1, r->text.n - 1};
}

static bool take(struct reader *r, const char *sign)
{
    size_t n = strlen(sign);
    skip(r);
    if (r->text.n < n || memcmp(r->text.p, sign, n) != 0)
        return false;
    r->text = (struct str){r->text.p + n, r->text.n - n};
    return true;
}

static struct str word(struct reader *r)
{
    size_t n = 0;
    skip(r);
    while (n < r->text.n && (isalnum((unsigned char)r->text.p[n]) || strchr("_.:", r->text.p[n]) ||
                             (unsigned char)r->text.p[n] >= 0x80))
        n++;
    struct str w = {r->text.p, n};
    r->text = (struct str){r->text.p + n, r->text.n - n};
    return w;
}

static struct expr read_call(struct reader *r, struct str name)
{
    static const struct {
        const char *name;
        struct expr (*of)(struct exprs *x, struct expr a, struct expr b);
    } calls[] = {{"max", tsr__expr_max},        {"Max", tsr__expr_max},
                 {"min", tsr__expr_min},        {"Min", tsr__expr_min},
                 {"FloorDiv", tsr__expr_floor}, {"Mod", tsr__expr_mod},
                 {"PythonMod", tsr__expr_mod},  {"floor", NULL}};
    for (size_t i = 0; i < TSR_COUNT(calls); i++) {
        if (!str_is(name, calls[i].name))
            continue;
        struct expr e = read_sum(r);
        while (e.known && calls[i].of && take(r, ","))
            e = calls[i].of(r->x, e, read_sum(r));
        return take(r, ")") ? e : unknown;
    }
    return unknown;
}

static struct expr read_atom(struct reader *r)
{
    int64_t number;
    if (take(r, "-"))
        return tsr__expr_sub(r->x, expr_number(0), read_atom(r));
    if (take(r, "(")) {
        struct expr e = read_sum(r);
        return take(r, ")") ? e : unknown;
    }
    struct str w = word(r);
    if (!w.n)
        return unknown;
    if (tsr__str_int(w, &number))
        return expr_number(number);
    if (isdigit((unsigned char)w.p[0]))
        return unknown;
    return take(r, "(") ? read_call(r, w) : tsr__expr_symbol(r->x, w);
}

static struct expr read_power(struct reader *r)
{
    struct expr e = read_atom(r), one = e;
    int64_t times;
    while (e.known && take(r, "**")) {
        if (!tsr__str_int(word(r), &times) || times < 1 || times > EXPR_MAX_ATOMS)
            return unknown;
        for (one = e; times > 1; times--)
            e = tsr__expr_mul(r->x, e, one);
    }
    return e;
}

static struct expr read_product(struct reader *r)
{
    struct expr e = read_power(r);
    while (e.known) {
        if (take(r, "*"))
            e = tsr__expr_mul(r->x, e, read_power(r));
        else if (take(r, "//") || take(r, "/"))
            e = tsr__expr_floor(r->x, e, read_power(r));
        else if (take(r, "%"))
            e = tsr__expr_mod(r->x, e, read_power(r));
        else
            break;
    }
    return e;
}

static struct expr read_sum(struct reader *r)
{
    if (r->depth++ >= EXPR_MAX_DEPTH)
        return unknown;
    struct expr e = read_product(r);
    while (e.known) {
        if (take(r, "+"))
            e = tsr__expr_add(r->x, e, read_product(r));
        else if (take(r, "-"))
            e = tsr__expr_sub(r->x, e, read_product(r));
        else
            break;
    }
    r->depth--;
    return e;
}

static struct expr read_text(struct exprs *x, struct str text)
{
    struct reader r = {.x = x, .text = text};
    if (tsr__map_get(&x->bound, text))
        return tsr__expr_symbol(x, text);
    struct expr e = text.n <= EXPR_MAX_TEXT ? read_sum(&r) : unknown;
    skip(&r);
    return e.known && !r.text.n ? e : tsr__expr_symbol(x, text);
}

struct expr tsr__expr_of(struct exprs *x, tsr_dim d)
{
    if (d.value >= 0)
        return expr_number(d.value);
    struct str text = str_of(d.symbol);
    if (!text.n)
        return unknown;
    struct expr *known = tsr__map_get(&x->texts, text);
    if (known)
        return *known;
    text = tsr__arena_str(x->arena, text);
    known = ARENA_NEW(x->arena, struct expr);
    void **slot =
        text.p && known && x->texts.n < EXPR_MAX_POOL ? tsr__map_at(&x->texts, text) : NULL;
    struct expr e = read_text(x, text);
    if (!slot)
        return e;
    *known = e;
    *slot = known;
    if (e.poly && !e.poly->text)
        ((struct poly *)e.poly)->text = text.p; // the spelling of the model is kept
    return e;
}

// ---- printing ----------------------------------------------------------------------------------

struct printer {
    struct exprs *x;
    char text[EXPR_MAX_TEXT + 1];
    size_t n;
    bool full;
    int depth;
};

static void put(struct printer *p, struct str s)
{
    p->full = p->full || s.n > EXPR_MAX_TEXT - p->n;
    if (p->full)
        return;
    memcpy(p->text + p->n, s.p, s.n);
    p->n += s.n;
}

static void put_number(struct printer *p, int64_t n)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%lld", (long long)n);
    put(p, (struct str){digits, (size_t)length});
}

static void print_sum(struct printer *p, struct expr e, bool bare);

static void print_atom(struct printer *p, uint32_t number)
{
    static const char *const signs[] = {
        [ATOM_DIV] = "//", [ATOM_MOD] = "%", [ATOM_MAX] = ", ", [ATOM_MIN] = ", "};
    const struct atom *a = &p->x->atoms.at[number];
    if (a->kind == ATOM_NAME) {
        put(p, a->name);
        return;
    }
    bool call = a->kind == ATOM_MAX || a->kind == ATOM_MIN;
    put(p, str_of(a->kind == ATOM_MAX ? "max(" : call ? "min(" : "("));
    print_sum(p, a->a, call);
    put(p, str_of(signs[a->kind]));
    print_sum(p, a->b, call);
    put(p, STR(")"));
}

static void print_term(struct printer *p, const struct term *t, bool first)
{
    int64_t n = t->number;
    put(p, str_of(first ? (n < 0 ? "-" : "") : n < 0 ? " - " : " + "));
    n = n < 0 ? -n : n;
    if (t->n == 0 || n != 1)
        put_number(p, n);
    for (int i = 0; i < t->n; i++) {
        if (i > 0 || n != 1)
            put(p, STR("*"));
        print_atom(p, t->atoms[i]);
    }
}

// bare: a sum needs no parentheses here.
static void print_sum(struct printer *p, struct expr e, bool bare)
{
    if (!e.poly) {
        put_number(p, e.number);
        return;
    }
    p->full = p->full || p->depth++ > EXPR_MAX_DEPTH;
    const struct term *only = &e.poly->terms[0];
    bare = bare || (e.poly->n == 1 && only->number == 1 && only->n == 1);
    put(p, str_of(bare ? "" : "("));
    for (int i = 0; i < e.poly->n && !p->full; i++)
        print_term(p, &e.poly->terms[i], i == 0);
    put(p, str_of(bare ? "" : ")"));
    p->depth--;
}

// What was printed is known to the reader, whatever its symbols look like.
static const char *print(struct exprs *x, struct expr e)
{
    struct printer p = {.x = x};
    print_sum(&p, e, true);
    if (p.full)
        return "";
    struct str text = tsr__arena_str(x->arena, (struct str){p.text, p.n});
    struct expr *known = ARENA_NEW(x->arena, struct expr);
    void **slot = text.p && known ? tsr__map_at(&x->texts, text) : NULL;
    if (slot && !*slot) {
        *known = e;
        *slot = known;
    }
    return text.p ? text.p : "";
}

tsr_dim tsr__expr_dim(struct exprs *x, struct expr e)
{
    if (!e.known || (!e.poly && e.number < 0))
        return DIM_UNKNOWN;
    if (!e.poly)
        return (tsr_dim){.value = e.number, .symbol = ""};
    struct poly *p = (struct poly *)e.poly; // the text is made when it is asked for
    if (!p->text)
        p->text = print(x, e);
    return p->text[0] ? (tsr_dim){.value = -1, .symbol = p->text} : DIM_UNKNOWN;
}
