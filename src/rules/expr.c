// SPDX-License-Identifier: Apache-2.0
// expr.c - the arithmetic of sizes and their normal form. A sum is a sorted list of terms, a term a
// number times sorted atoms; an atom is a symbol or an operation that is no polynomial (a floor
// division, ...). Sums are kept once in the pool. Reading and printing: expr_text.c. Knows no
// tensors.
#include "rules/expr.h"

// A sum under construction.
struct sum {
    int n;
    struct term t[EXPR_MAX_TERMS];
};
static const struct expr unknown = {0};

void tsr__exprs_init(struct exprs *x, struct arena *a)
{
    *x = (struct exprs){.arena = a};
    tsr__map_init(&x->names, a, 0);
    tsr__map_init(&x->made, a, 0);
    tsr__map_init(&x->polys, a, 0);
    tsr__map_init(&x->texts, a, 0);
    tsr__map_init(&x->bound, a, 0);
}

bool tsr__exprs_bind(struct exprs *x, struct str symbol, int64_t size)
{
    struct bound *at = ARENA_NEW(x->arena, struct bound);
    symbol = tsr__arena_str(x->arena, symbol);
    void **slot = at && symbol.p ? tsr__map_at(&x->bound, symbol) : NULL;
    if (!slot)
        return false;
    at->size = size;
    *slot = at;
    return true;
}

bool tsr__exprs_used(const struct exprs *x, struct str symbol)
{
    const struct bound *b = tsr__map_get(&x->bound, symbol);
    return b && b->used;
}

void tsr__expr_root(struct exprs *x, tsr_dim d)
{
    struct expr e = tsr__expr_of(x, d);
    const struct term *t = e.poly && e.poly->n == 1 ? &e.poly->terms[0] : NULL;
    struct atom *a = t && t->n == 1 && t->number == 1 ? &x->atoms.at[t->atoms[0]] : NULL;
    if (a && a->kind == ATOM_NAME && str_is(a->name, d.symbol))
        a->root = true;
}

bool tsr__expr_rooted(const struct exprs *x, struct expr e)
{
    for (int i = 0; e.poly && i < e.poly->n; i++)
        for (int k = 0; k < e.poly->terms[i].n; k++) {
            const struct atom *a = &x->atoms.at[e.poly->terms[i].atoms[k]];
            if (a->kind == ATOM_NAME ? !a->root
                                     : !tsr__expr_rooted(x, a->a) || !tsr__expr_rooted(x, a->b))
                return false;
        }
    return e.known;
}

struct expr tsr__expr_hide(struct exprs *x, struct str name)
{
    struct expr e = tsr__expr_symbol(x, name);
    if (e.poly) {
        struct atom *made = &x->atoms.at[e.poly->terms[0].atoms[0]];
        made->root = made->hidden = true;
    }
    return e;
}

bool tsr__expr_hidden(const struct exprs *x, struct expr e)
{
    for (int i = 0; e.poly && i < e.poly->n; i++)
        for (int k = 0; k < e.poly->terms[i].n; k++) {
            const struct atom *a = &x->atoms.at[e.poly->terms[i].atoms[k]];
            bool inside =
                a->kind != ATOM_NAME && (tsr__expr_hidden(x, a->a) || tsr__expr_hidden(x, a->b));
            if (a->hidden || inside)
                return true;
        }
    return false;
}

// ---- sums --------------------------------------------------------------------------------------

// Order of the atoms of two terms; a constant term comes last.
static int term_cmp(const struct term *a, const struct term *b)
{
    for (int i = 0; i < a->n && i < b->n; i++)
        if (a->atoms[i] != b->atoms[i])
            return a->atoms[i] < b->atoms[i] ? -1 : 1;
    return (b->n > a->n) - (b->n < a->n);
}

static bool sum_add(struct sum *s, const struct term *t)
{
    int at = 0;
    while (at < s->n && term_cmp(&s->t[at], t) < 0)
        at++;
    if (at < s->n && term_cmp(&s->t[at], t) == 0) {
        if (!add_ok(s->t[at].number, t->number, &s->t[at].number))
            return false;
        if (s->t[at].number == 0) {
            s->n--;
            memmove(&s->t[at], &s->t[at + 1], (size_t)(s->n - at) * sizeof(*t));
        }
        return true;
    }
    if (t->number == 0)
        return true;
    if (s->n == EXPR_MAX_TERMS)
        return false;
    memmove(&s->t[at + 1], &s->t[at], (size_t)(s->n - at) * sizeof(*t));
    s->t[at] = *t;
    s->n++;
    return true;
}

static void sum_of(struct expr e, struct sum *s)
{
    s->n = 0;
    if (e.poly) {
        memcpy(s->t, e.poly->terms, (size_t)e.poly->n * sizeof(*s->t));
        s->n = e.poly->n;
    } else if (e.number) {
        s->t[s->n] = (struct term){.number = e.number};
        s->n = 1;
    }
}

// The sum in the pool. Terms are compared as bytes: unused atoms are zero.
static struct expr keep(struct exprs *x, const struct sum *s)
{
    if (s->n == 0 || (s->n == 1 && s->t[0].n == 0))
        return expr_number(s->n ? s->t[0].number : 0);
    for (int i = 0; i < s->n; i++)
        if (s->t[i].number == INT64_MIN)
            return unknown; // it has no negative
    size_t bytes = (size_t)s->n * sizeof(struct term);
    struct poly *p = tsr__map_get(&x->polys, (struct str){(const char *)s->t, bytes});
    if (p)
        return (struct expr){.known = true, .poly = p};
    if (x->polys.n >= EXPR_MAX_POOL)
        return unknown;
    p = arena_get(x->arena, sizeof(*p) + bytes, _Alignof(struct poly));
    if (!p)
        return unknown;
    p->n = s->n;
    memcpy(p->terms, s->t, bytes);
    void **slot = tsr__map_at(&x->polys, (struct str){(const char *)p->terms, bytes});
    if (!slot)
        return unknown;
    *slot = p;
    return (struct expr){.known = true, .poly = p};
}

static struct expr atom(struct exprs *x, uint32_t number)
{
    struct sum s = {.n = 1};
    s.t[0] = (struct term){.number = 1, .n = 1, .atoms = {number}};
    return keep(x, &s);
}

static struct expr new_atom(struct exprs *x, void **slot, struct atom what)
{
    if (!slot || x->atoms.n >= EXPR_MAX_POOL)
        return unknown;
    if (!*slot) {
        struct atom *at = vec_push(x->arena, &x->atoms);
        if (!at)
            return unknown;
        *at = what;
        *slot = (void *)(uintptr_t)x->atoms.n;
    }
    return atom(x, (uint32_t)((uintptr_t)*slot - 1));
}

struct expr tsr__expr_symbol(struct exprs *x, struct str name)
{
    struct bound *bound = tsr__map_get(&x->bound, name);
    if (bound) {
        bound->used = true;
        return expr_number(bound->size);
    }
    void *known = tsr__map_get(&x->names, name);
    if (known)
        return atom(x, (uint32_t)((uintptr_t)known - 1));
    name = tsr__arena_str(x->arena, name);
    if (!name.p)
        return unknown;
    return new_atom(x, tsr__map_at(&x->names, name),
                    (struct atom){.kind = ATOM_NAME, .name = name});
}

static int depth_of(const struct exprs *x, struct expr e)
{
    int depth = 0;
    for (int i = 0; e.poly && i < e.poly->n; i++)
        for (int k = 0; k < e.poly->terms[i].n; k++) {
            int d = x->atoms.at[e.poly->terms[i].atoms[k]].depth;
            depth = d > depth ? d : depth;
        }
    return depth;
}

// An operation that is no sum of products. Atoms are never negative: see to it.
static struct expr operation(struct exprs *x, enum atom_kind kind, struct expr a, struct expr b)
{
    struct {
        int64_t kind, numbers[2];
        const struct poly *polys[2];
    } key = {(int64_t)kind, {a.number, b.number}, {a.poly, b.poly}};
    int left = depth_of(x, a), right = depth_of(x, b), depth = 1 + (left > right ? left : right);
    if (depth > EXPR_MAX_DEPTH)
        return unknown;
    struct str text = {(const char *)&key, sizeof(key)};
    void *known = tsr__map_get(&x->made, text);
    if (known)
        return atom(x, (uint32_t)((uintptr_t)known - 1));
    text = tsr__arena_str(x->arena, text);
    if (!text.p)
        return unknown;
    return new_atom(x, tsr__map_at(&x->made, text),
                    (struct atom){.kind = kind, .a = a, .b = b, .depth = depth});
}

// ---- arithmetic --------------------------------------------------------------------------------

bool tsr__expr_natural(struct expr e)
{
    if (!e.known || !e.poly)
        return e.known && e.number >= 0;
    for (int i = 0; i < e.poly->n; i++)
        if (e.poly->terms[i].number < 0)
            return false;
    return true;
}

static struct expr add_times(struct exprs *x, struct expr a, struct expr b, int64_t times)
{
    struct sum s, more;
    if (!a.known || !b.known)
        return unknown;
    sum_of(a, &s);
    sum_of(b, &more);
    for (int i = 0; i < more.n; i++)
        if (!mul_ok(more.t[i].number, times, &more.t[i].number) || !sum_add(&s, &more.t[i]))
            return unknown;
    return keep(x, &s);
}

struct expr tsr__expr_add(struct exprs *x, struct expr a, struct expr b)
{
    return add_times(x, a, b, 1);
}

struct expr tsr__expr_sub(struct exprs *x, struct expr a, struct expr b)
{
    return add_times(x, a, b, -1);
}

static bool term_mul(const struct term *a, const struct term *b, struct term *out)
{
    *out = (struct term){.n = a->n + b->n};
    if (out->n > EXPR_MAX_ATOMS || !mul_ok(a->number, b->number, &out->number))
        return false;
    for (int i = 0, j = 0; i + j < out->n;) {
        bool left = j == b->n || (i < a->n && a->atoms[i] <= b->atoms[j]);
        out->atoms[i + j] = left ? a->atoms[i] : b->atoms[j];
        i += left;
        j += !left;
    }
    return true;
}

struct expr tsr__expr_mul(struct exprs *x, struct expr a, struct expr b)
{
    struct sum s = {0}, p, q;
    struct term t;
    int64_t number;
    if (!a.known || !b.known)
        return unknown;
    if (!a.poly && !b.poly)
        return mul_ok(a.number, b.number, &number) ? expr_number(number) : unknown;
    sum_of(a, &p);
    sum_of(b, &q);
    for (int i = 0; i < p.n; i++)
        for (int j = 0; j < q.n; j++)
            if (!term_mul(&p.t[i], &q.t[j], &t) || !sum_add(&s, &t))
                return unknown;
    return keep(x, &s);
}

// t / by, if that leaves no rest.
static bool term_div(const struct term *t, const struct term *by, struct term *out)
{
    *out = (struct term){0};
    if (by->number == 0 || by->number == -1 || t->number % by->number)
        return false;
    out->number = t->number / by->number;
    int j = 0;
    for (int i = 0; i < t->n; i++) {
        if (j < by->n && t->atoms[i] == by->atoms[j])
            j++;
        else
            out->atoms[out->n++] = t->atoms[i];
    }
    return j == by->n;
}

// Takes multiples of b out of a until none is left; *q is their sum, *rest what stays.
static void divide(struct exprs *x, struct expr a, struct expr b, struct expr *q, struct expr *rest)
{
    struct sum divisor, left, one = {.n = 1};
    *q = expr_number(0);
    *rest = a;
    sum_of(b, &divisor);
    for (int turn = 0; turn < EXPR_MAX_TERMS && rest->known; turn++) {
        bool found = false;
        sum_of(*rest, &left);
        for (int i = 0; i < left.n && !found; i++)
            found = term_div(&left.t[i], &divisor.t[0], &one.t[0]);
        if (!found)
            return;
        struct expr times = keep(x, &one), taken = tsr__expr_mul(x, b, times);
        *q = tsr__expr_add(x, *q, times);
        *rest = tsr__expr_sub(x, *rest, taken);
    }
}

struct expr tsr__expr_exact(struct exprs *x, struct expr a, struct expr b)
{
    struct expr q, rest;
    if (!a.known || !b.known || expr_is(b, 0))
        return unknown;
    if (expr_equal(a, b))
        return expr_number(1);
    if (!a.poly && !b.poly)
        return b.number != -1 && a.number % b.number == 0 ? expr_number(a.number / b.number)
                                                          : unknown;
    divide(x, a, b, &q, &rest);
    return expr_is(rest, 0) ? q : unknown;
}

// a = q * b + rest for a number b: every term gives what it holds of b.
static void divide_number(struct exprs *x, struct expr a, int64_t b, struct expr *q,
                          struct expr *rest)
{
    struct sum all, quotient = {0}, left = {0};
    sum_of(a, &all);
    for (int i = 0; i < all.n; i++) {
        struct term t = all.t[i], r = all.t[i];
        int64_t whole = t.number / b - (t.number % b < 0);
        t.number = whole;
        r.number -= whole * b;
        if (t.number)
            sum_add(&quotient, &t);
        if (r.number)
            sum_add(&left, &r);
    }
    *q = keep(x, &quotient);
    *rest = keep(x, &left);
}

struct expr tsr__expr_floor(struct exprs *x, struct expr a, struct expr b)
{
    struct expr exact = tsr__expr_exact(x, a, b), q = unknown, rest = unknown;
    if (exact.known || !a.known || !tsr__expr_natural(b) || expr_is(b, 0))
        return exact;
    struct expr g = tsr__expr_gcd(x, a, b);
    if (!expr_is(g, 1) && !expr_is(g, 0)) {
        struct expr less = tsr__expr_exact(x, a, g), by = tsr__expr_exact(x, b, g);
        a = less.known && by.known ? less : a;
        b = less.known && by.known ? by : b;
    }
    if (expr_is_number(b)) {
        divide_number(x, a, b.number, &q, &rest); // rest: terms of 0 .. b - 1 each
        if (expr_is_number(rest))
            return q;
    } else {
        divide(x, a, b, &q, &rest);
    }
    bool split = tsr__expr_natural(rest) && q.known;
    struct expr tail = operation(x, ATOM_DIV, split ? rest : a, b);
    return split ? tsr__expr_add(x, q, tail) : tail;
}

// Below zero, quotients towards zero and downwards part ways: only numbers are followed there.
struct expr tsr__expr_div(struct exprs *x, struct expr a, struct expr b)
{
    if (expr_is_number(a) && expr_is_number(b))
        return b.number == 0 || b.number == -1 ? tsr__expr_mul(x, a, b)
                                               : expr_number(a.number / b.number);
    if (!tsr__expr_natural(a) || !tsr__expr_natural(b))
        return tsr__expr_exact(x, a, b);
    return tsr__expr_floor(x, a, b);
}

struct expr tsr__expr_mod(struct exprs *x, struct expr a, struct expr b)
{
    struct expr q, rest;
    if (!a.known || !b.known || expr_is(b, 0))
        return unknown;
    if (!a.poly && !b.poly) {
        int64_t r = b.number == -1 ? 0 : a.number % b.number;
        return expr_number(r && (r < 0) != (b.number < 0) ? r + b.number : r);
    }
    if (!tsr__expr_natural(a) || !tsr__expr_natural(b))
        return unknown;
    if (expr_is_number(b))
        divide_number(x, a, b.number, &q, &rest);
    else
        divide(x, a, b, &q, &rest);
    if (expr_is(rest, 0) || (expr_is_number(rest) && expr_is_number(b)))
        return rest;
    return operation(x, ATOM_MOD, tsr__expr_natural(rest) ? rest : a, b);
}

// What is natural has no negative term; the greatest of two is also natural if one of them is: max(n - 4, 0).
static struct expr one_of(struct exprs *x, enum atom_kind kind, struct expr a, struct expr b)
{
    struct expr more = tsr__expr_sub(x, a, b), less = tsr__expr_sub(x, b, a);
    if (tsr__expr_natural(more))
        return kind == ATOM_MAX ? a : b;
    if (tsr__expr_natural(less))
        return kind == ATOM_MAX ? b : a;
    bool first = tsr__expr_natural(a), second = tsr__expr_natural(b);
    bool natural = (first && second) || (kind == ATOM_MAX && (first || second));
    if (!natural || !a.known || !b.known)
        return unknown;
    bool swap = a.poly && b.poly && a.poly->terms[0].atoms[0] > b.poly->terms[0].atoms[0];
    return operation(x, kind, swap || !a.poly ? b : a, swap || !a.poly ? a : b);
}

struct expr tsr__expr_max(struct exprs *x, struct expr a, struct expr b)
{
    return one_of(x, ATOM_MAX, a, b);
}

struct expr tsr__expr_min(struct exprs *x, struct expr a, struct expr b)
{
    return one_of(x, ATOM_MIN, a, b);
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a < 0 ? -a : a;
}

static struct term common(const struct term *a, const struct term *b)
{
    struct term r = {.number = gcd(a->number, b->number)};
    for (int i = 0, j = 0; i < a->n && j < b->n;) {
        if (a->atoms[i] == b->atoms[j])
            r.atoms[r.n++] = a->atoms[i];
        uint32_t left = a->atoms[i], right = b->atoms[j];
        i += left <= right;
        j += right <= left;
    }
    return r;
}

struct expr tsr__expr_gcd(struct exprs *x, struct expr a, struct expr b)
{
    struct sum p, q, one = {.n = 1};
    if (!a.known || !b.known || expr_is(a, INT64_MIN) || expr_is(b, INT64_MIN))
        return expr_number(1);
    if (!a.poly && !b.poly)
        return expr_number(gcd(a.number, b.number));
    if (a.poly && tsr__expr_exact(x, b, a).known)
        return a;
    if (b.poly && tsr__expr_exact(x, a, b).known)
        return b;
    sum_of(a, &p);
    sum_of(b, &q);
    if (p.n == 0 || q.n == 0)
        return p.n ? a : b;
    one.t[0] = p.t[0];
    for (int i = 1; i < p.n; i++)
        one.t[0] = common(&one.t[0], &p.t[i]);
    for (int i = 0; i < q.n; i++)
        one.t[0] = common(&one.t[0], &q.t[i]);
    struct expr r = keep(x, &one);
    return r.known ? r : expr_number(1);
}

// e is min(of, n) for a number n > 1, or max(of, 1): with `of` itself it fits only if both are `of`.
static bool clips(const struct exprs *x, struct expr e, struct expr of)
{
    const struct term *t = e.poly && e.poly->n == 1 ? &e.poly->terms[0] : NULL;
    const struct atom *a = t && t->n == 1 && t->number == 1 ? &x->atoms.at[t->atoms[0]] : NULL;
    if (!a || !expr_equal(a->a, of) || !expr_is_number(a->b))
        return false; // operations have the number second
    return a->kind == ATOM_MIN ? a->b.number > 1 : a->kind == ATOM_MAX && a->b.number == 1;
}

struct expr tsr__expr_broadcast(struct exprs *x, struct expr a, struct expr b)
{
    if (expr_equal(a, b) || expr_is_number(a) || clips(x, b, a))
        return a;
    return expr_is_number(b) || clips(x, a, b) ? b : unknown;
}

bool tsr__dim_equal(struct exprs *x, tsr_dim a, tsr_dim b)
{
    if (a.value >= 0 && b.value >= 0)
        return a.value == b.value;
    if (!dim_known(a) || !dim_known(b))
        return false;
    return a.symbol == b.symbol || expr_equal(tsr__expr_of(x, a), tsr__expr_of(x, b));
}
