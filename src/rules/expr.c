// SPDX-License-Identifier: Apache-2.0
// expr.c - sizes as products of a number and symbols: "seq*batch" equals "batch * seq", and
// "(batch*seq)//batch" is "seq". What is no product is one opaque symbol. Knows no tensors.
#include "rules/internal.h"

#include <ctype.h>

#define EXPR_MAX_DEPTH 16
#define EXPR_MAX_TEXT  256 // longer texts are atoms: work stays bounded

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

// Order of two texts that does not see spaces.
static int atom_cmp(struct str a, struct str b)
{
    size_t i = 0, j = 0;
    for (;;) {
        while (i < a.n && a.p[i] == ' ')
            i++;
        while (j < b.n && b.p[j] == ' ')
            j++;
        if (i == a.n || j == b.n)
            return (i < a.n) - (j < b.n);
        if (a.p[i] != b.p[j])
            return (unsigned char)a.p[i] < (unsigned char)b.p[j] ? -1 : 1;
        i++;
        j++;
    }
}

static bool add_atom(struct expr *e, struct str atom)
{
    if (e->n == EXPR_MAX_ATOMS)
        return false;
    int at = e->n++;
    for (; at > 0 && atom_cmp(e->atoms[at - 1], atom) > 0; at--)
        e->atoms[at] = e->atoms[at - 1];
    e->atoms[at] = atom;
    return true;
}

// Without spaces around, and without parentheses around the whole.
static struct str strip(struct str s)
{
    for (;;) {
        while (s.n && isspace((unsigned char)s.p[0]))
            s = (struct str){s.p + 1, s.n - 1};
        while (s.n && isspace((unsigned char)s.p[s.n - 1]))
            s.n--;
        if (s.n < 2 || s.p[0] != '(' || s.p[s.n - 1] != ')')
            return s;
        int depth = 0;
        for (size_t i = 0; i + 1 < s.n; i++) {
            depth += (s.p[i] == '(') - (s.p[i] == ')');
            if (depth == 0)
                return s; // the first parenthesis closes before the end
        }
        s = (struct str){s.p + 1, s.n - 2};
    }
}

// Length of the operand at the front: up to '*' or '/' outside parentheses. 0: this is no product.
static size_t operand(struct str s)
{
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        depth += (c == '(') - (c == ')');
        if (depth > 0)
            continue;
        if (c == '*' || c == '/')
            return i;
        if (c == '+' || c == '-' || c == '%' || c == ',')
            return 0;
    }
    return depth == 0 ? s.n : 0;
}

static bool opaque(struct expr *e, struct str s)
{
    *e = tsr__expr_number(1);
    return add_atom(e, s);
}

static bool parse(struct expr *e, struct str s, int depth);

static bool parse_operand(struct expr *e, struct str s, int depth)
{
    int64_t number;
    s = strip(s);
    if (tsr__str_int(s, &number) && number >= 0) {
        *e = tsr__expr_number(number);
        return true;
    }
    if (s.n && operand(s) == s.n)
        return opaque(e, s);
    return parse(e, s, depth + 1);
}

// operand { ("*" | "//") operand }, from the left; anything else is one atom.
static bool parse(struct expr *e, struct str s, int depth)
{
    struct str whole = s = strip(s);
    *e = tsr__expr_number(1);
    bool divide = false;
    if (depth > EXPR_MAX_DEPTH || !s.n)
        return s.n && opaque(e, whole);
    for (;;) {
        struct expr next;
        size_t n = operand(s);
        if (!n || !parse_operand(&next, (struct str){s.p, n}, depth))
            return opaque(e, whole);
        if (!(divide ? tsr__expr_div(e, &next) : tsr__expr_mul(e, &next)))
            return opaque(e, whole);
        s = (struct str){s.p + n, s.n - n};
        if (!s.n)
            return true;
        divide = s.p[0] == '/';
        size_t sign = divide ? 2 : 1;
        if ((divide && (s.n < 2 || s.p[1] != '/')) || (!divide && s.n > 1 && s.p[1] == '*'))
            return opaque(e, whole);
        s = (struct str){s.p + sign, s.n - sign};
    }
}

struct expr tsr__expr_number(int64_t v)
{
    return (struct expr){.known = true, .number = v};
}

struct expr tsr__expr_of(tsr_dim d)
{
    if (d.value >= 0)
        return tsr__expr_number(d.value);
    struct expr e = {0};
    struct str s = str_of(d.symbol);
    if (s.n)
        e.known = s.n > EXPR_MAX_TEXT ? opaque(&e, s) : parse(&e, s, 0);
    return e;
}

bool tsr__expr_is(const struct expr *e, int64_t v)
{
    return e->known && e->n == 0 && e->number == v;
}

bool tsr__expr_equal(const struct expr *a, const struct expr *b)
{
    if (!a->known || !b->known || a->number != b->number || a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (atom_cmp(a->atoms[i], b->atoms[i]))
            return false;
    return true;
}

bool tsr__expr_mul(struct expr *a, const struct expr *b)
{
    if (!a->known || !b->known || !mul_ok(a->number, b->number, &a->number))
        return false;
    for (int i = 0; i < b->n; i++)
        if (!add_atom(a, b->atoms[i]))
            return false;
    return true;
}

bool tsr__expr_div(struct expr *a, const struct expr *b)
{
    if (!a->known || !b->known || b->number == 0 || a->number % b->number)
        return false;
    struct expr r = tsr__expr_number(a->number / b->number);
    int j = 0;
    for (int i = 0; i < a->n; i++) {
        if (j < b->n && atom_cmp(a->atoms[i], b->atoms[j]) == 0)
            j++;
        else
            r.atoms[r.n++] = a->atoms[i];
    }
    if (j < b->n)
        return false;
    *a = r;
    return true;
}

struct expr tsr__expr_gcd(const struct expr *a, const struct expr *b)
{
    struct expr r = tsr__expr_number(1);
    if (!a->known || !b->known)
        return r;
    r.number = gcd(a->number, b->number);
    for (int i = 0, j = 0; i < a->n && j < b->n;) {
        int order = atom_cmp(a->atoms[i], b->atoms[j]);
        if (order == 0)
            r.atoms[r.n++] = a->atoms[i];
        i += order <= 0;
        j += order >= 0;
    }
    return r;
}

tsr_dim tsr__expr_dim(struct arena *a, const struct expr *e)
{
    if (!e->known)
        return DIM_UNKNOWN;
    if (!e->n)
        return (tsr_dim){.value = e->number, .symbol = ""};
    struct str s = e->number == 1 ? STR("") : tsr__arena_printf(a, "%lld", (long long)e->number);
    for (int i = 0; i < e->n; i++) {
        struct str atom = e->atoms[i];
        bool bare = operand(atom) == atom.n || e->n + (e->number != 1) == 1;
        s = tsr__arena_printf(a, bare ? STR_FMT "%s" STR_FMT : STR_FMT "%s(" STR_FMT ")",
                              STR_ARG(s), s.n ? "*" : "", STR_ARG(atom));
    }
    return s.p ? (tsr_dim){.value = -1, .symbol = s.p} : DIM_UNKNOWN;
}

tsr_dim tsr__dim_copy(struct arena *a, tsr_dim d)
{
    if (d.value >= 0 || !d.symbol || !d.symbol[0])
        return (tsr_dim){.value = d.value, .symbol = ""};
    struct str s = tsr__arena_str(a, str_of(d.symbol));
    return s.p ? (tsr_dim){.value = -1, .symbol = s.p} : DIM_UNKNOWN;
}

bool tsr__dim_equal(tsr_dim a, tsr_dim b)
{
    struct expr x = tsr__expr_of(a), y = tsr__expr_of(b);
    return tsr__expr_equal(&x, &y);
}
