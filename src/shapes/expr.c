// SPDX-License-Identifier: Apache-2.0
// expr.c - arithmetic of sizes and their normal form. A sum is a sorted list of terms, a term is a
// number times sorted atoms, and an atom is a symbol or an operation that is not a polynomial (a
// floor division, ...). Sums are unique in the pool. expr_text.c reads and prints them.
//
//   (a + 1)*(a - 1)    is a*a - 1: the terms a and -a cancel
//   (3*a + 5)//2       is a + 2 + (a + 1)//2: each term contributes its quotient; 3 = 1 * 2 + 1 and
//                      5 = 2 * 2 + 1, so a + 1 is left, a new atom under the division
//   (a*b)//(2*b)       is a//2: both sides are first divided by their gcd, b
//   (4*a + 3)%4        is 3
//   max(a, a + b)      is a + b: sizes are never negative, so the difference b has no negative term
//   a//b and b//a      are two different atoms
//   2**63 - 1 + 1      is not known: numbers never overflow
//
// All sizes are bounded: EXPR_MAX_TERMS terms, EXPR_MAX_ATOMS atoms in a term, EXPR_MAX_DEPTH
// nested operations, EXPR_MAX_POOL sums. Beyond that the result is "not known", which every
// operation propagates. Two expressions are equal if their pointers are.
#include "shapes/expr.h"

// A sum under construction.
struct sum {
    int n;
    struct term t[EXPR_MAX_TERMS];
};
// The expression of a size about which nothing is known.
static const struct expr unknown = {0};

void tsr__exprs_init(struct exprs *exprs, struct arena *arena)
{
    *exprs = (struct exprs){.arena = arena};
    tsr__map_init(&exprs->names, arena, 0);
    tsr__map_init(&exprs->made, arena, 0);
    tsr__map_init(&exprs->polys, arena, 0);
    tsr__map_init(&exprs->texts, arena, 0);
    tsr__map_init(&exprs->bound, arena, 0);
}

// Binds a symbol to a number. Bound symbols never become atoms, so they are stored separately.
bool tsr__exprs_bind(struct exprs *exprs, struct str symbol, int64_t size)
{
    struct bound *at = ARENA_NEW(exprs->arena, struct bound);
    symbol = tsr__arena_str(exprs->arena, symbol);
    if (!at || !symbol.p)
        return false;
    void **slot = tsr__map_at(&exprs->bound, symbol);
    if (!slot)
        return false;
    at->size = size;
    *slot = at;
    return true;
}

// True if the symbol was bound and occurs in the model. dim_names.c reports sizes that the caller
// gives for symbols that do not occur.
bool tsr__exprs_used(const struct exprs *exprs, struct str symbol)
{
    const struct bound *bound = tsr__map_get(&exprs->bound, symbol);
    return bound && bound->used;
}

// Returns the atom if the expression is a single atom, else NULL. The pointer is valid until the
// next atom is created.
struct atom *tsr__expr_sole_atom(const struct exprs *exprs, struct expr expr)
{
    if (!expr.poly || expr.poly->n != 1)
        return NULL;
    const struct term *term = &expr.poly->terms[0];
    return term->n != 1 || term->number != 1 ? NULL : &exprs->atoms.at[term->atoms[0]];
}

static int terms_of(struct expr expr)
{
    return expr.poly ? expr.poly->n : 0;
}

// True if all symbols of the atom are input sizes; both operands of an operation are checked.
static bool atom_rooted(const struct exprs *exprs, const struct atom *atom)
{
    if (atom->kind == ATOM_NAME)
        return atom->root;
    return tsr__expr_rooted(exprs, atom->a) && tsr__expr_rooted(exprs, atom->b);
}

// True if all symbols of the expression are sizes of the model's inputs; a number has no symbols.
bool tsr__expr_rooted(const struct exprs *exprs, struct expr expr)
{
    for (int i = 0; i < terms_of(expr); i++)
        for (int k = 0; k < expr.poly->terms[i].n; k++)
            if (!atom_rooted(exprs, &exprs->atoms.at[expr.poly->terms[i].atoms[k]]))
                return false;
    return expr.known;
}

// Returns a hidden symbol (a name of inference for an unnamed size), marked as a root, so that it
// has precedence over declared sizes.
struct expr tsr__expr_hide(struct exprs *exprs, struct str name)
{
    struct expr expr = tsr__expr_symbol(exprs, name);
    if (expr.poly) {
        struct atom *made = &exprs->atoms.at[expr.poly->terms[0].atoms[0]];
        made->root = made->hidden = true;
    }
    return expr;
}

// True if the expression is a hidden symbol, or an operation that contains one.
bool tsr__expr_hidden(const struct exprs *exprs, struct expr expr)
{
    for (int i = 0; i < terms_of(expr); i++)
        for (int k = 0; k < expr.poly->terms[i].n; k++) {
            const struct atom *a = &exprs->atoms.at[expr.poly->terms[i].atoms[k]];
            bool inside = a->kind != ATOM_NAME &&
                          (tsr__expr_hidden(exprs, a->a) || tsr__expr_hidden(exprs, a->b));
            if (a->hidden || inside)
                return true;
        }
    return false;
}

// ---- sums --------------------------------------------------------------------------------------

// Compares the atoms of two terms; a constant term comes last.
static int term_cmp(const struct term *a, const struct term *b)
{
    for (int i = 0; i < a->n && i < b->n; i++) {
        if (a->atoms[i] < b->atoms[i])
            return -1;
        if (a->atoms[i] > b->atoms[i])
            return 1;
    }
    return (b->n > a->n) - (b->n < a->n);
}

// Adds a term. Terms are sorted, each product of atoms occurs once, and no coefficient is 0: 2*n +
// 3*m and -2*n give 3*m. False: too many terms, or overflow.
static bool sum_add(struct sum *sum, const struct term *term)
{
    int at = 0;
    while (at < sum->n && term_cmp(&sum->t[at], term) < 0)
        at++;
    if (at < sum->n && term_cmp(&sum->t[at], term) == 0) {
        if (!add_ok(sum->t[at].number, term->number, &sum->t[at].number))
            return false;
        if (sum->t[at].number == 0) {
            sum->n--;
            memmove(&sum->t[at], &sum->t[at + 1], (size_t)(sum->n - at) * sizeof(*term));
        }
        return true;
    }
    if (term->number == 0)
        return true;
    if (sum->n == EXPR_MAX_TERMS)
        return false;
    memmove(&sum->t[at + 1], &sum->t[at], (size_t)(sum->n - at) * sizeof(*term));
    sum->t[at] = *term;
    sum->n++;
    return true;
}

// Converts an expression to a sum. A number is one term without atoms; 0 has no terms.
static void sum_of(struct expr expr, struct sum *sum)
{
    sum->n = 0;
    if (expr.poly) {
        memcpy(sum->t, expr.poly->terms, (size_t)expr.poly->n * sizeof(*sum->t));
        sum->n = expr.poly->n;
    } else if (expr.number) {
        sum->t[sum->n] = (struct term){.number = expr.number};
        sum->n = 1;
    }
}

// Returns the sum as an expression, and adds it to the pool if it is new. Terms are compared as
// bytes: unused atoms are zero. Unknown if the pool is full, or out of memory.
static struct expr keep(struct exprs *exprs, const struct sum *sum)
{
    if (sum->n == 0)
        return expr_number(0);
    // Numbers are not in the pool, but in the expression itself.
    if (sum->n == 1 && sum->t[0].n == 0)
        return expr_number(sum->t[0].number);
    for (int i = 0; i < sum->n; i++)
        if (sum->t[i].number == INT64_MIN)
            return unknown; // -INT64_MIN overflows
    size_t bytes = (size_t)sum->n * sizeof(struct term);
    struct poly *poly = tsr__map_get(&exprs->polys, str_bytes(sum->t, bytes));
    if (poly)
        return (struct expr){.known = true, .poly = poly};
    if (exprs->polys.n >= EXPR_MAX_POOL)
        return unknown;
    poly = arena_get(exprs->arena, sizeof(*poly) + bytes, _Alignof(struct poly));
    if (!poly)
        return unknown;
    poly->n = sum->n;
    memcpy(poly->terms, sum->t, bytes);
    if (!tsr__map_set(&exprs->polys, str_bytes(poly->terms, bytes), poly))
        return unknown;
    return (struct expr){.known = true, .poly = poly};
}

// Returns the atom as an expression.
static struct expr atom(struct exprs *exprs, uint32_t number)
{
    struct sum sum = {.n = 1};
    sum.t[0] = (struct term){.number = 1, .n = 1, .atoms = {number}};
    return keep(exprs, &sum);
}

// Returns the expression of an atom, and adds the atom if its slot is empty. A slot holds the
// atom's number + 1, so that 0 means empty.
static struct expr new_atom(struct exprs *exprs, void **slot, struct atom what)
{
    if (!slot || exprs->atoms.n >= EXPR_MAX_POOL)
        return unknown;
    if (!*slot) {
        if (!vec_add(exprs->arena, &exprs->atoms, what))
            return unknown;
        *slot = (void *)(uintptr_t)exprs->atoms.n;
    }
    return atom(exprs, (uint32_t)((uintptr_t)*slot - 1));
}

// Returns the symbol as an expression: its number if it is bound, else the atom of its name.
struct expr tsr__expr_symbol(struct exprs *exprs, struct str name)
{
    struct bound *bound = tsr__map_get(&exprs->bound, name);
    if (bound) {
        bound->used = true;
        return expr_number(bound->size);
    }
    void *known = tsr__map_get(&exprs->names, name);
    if (known)
        return atom(exprs, (uint32_t)((uintptr_t)known - 1));
    name = tsr__arena_str(exprs->arena, name);
    if (!name.p)
        return unknown;
    return new_atom(exprs, tsr__map_at(&exprs->names, name),
                    (struct atom){.kind = ATOM_NAME, .name = name});
}

// Returns the nesting depth: symbols have 0, a//2 has 1, (a//2 + b)//3 has 2.
static int depth_of(const struct exprs *exprs, struct expr expr)
{
    int depth = 0;
    for (int i = 0; i < terms_of(expr); i++)
        for (int k = 0; k < expr.poly->terms[i].n; k++)
            depth = (int)int64_max(depth, exprs->atoms.at[expr.poly->terms[i].atoms[k]].depth);
    return depth;
}

// Makes an atom of an operation that is not a sum of products. Atoms are assumed not to be
// negative; callers check this.
static struct expr operation(struct exprs *exprs, enum atom_kind kind, struct expr a, struct expr b)
{
    // Key of the map, as bytes without padding, so that equal operands give the same atom.
    struct {
        int64_t kind, numbers[2];
        const struct poly *polys[2];
    } key = {(int64_t)kind, {a.number, b.number}, {a.poly, b.poly}};
    int depth = 1 + (int)int64_max(depth_of(exprs, a), depth_of(exprs, b));
    if (depth > EXPR_MAX_DEPTH)
        return unknown;
    void **slot = tsr__map_at_copy(&exprs->made, str_bytes(&key, sizeof key));
    if (slot && *slot)
        return atom(exprs, (uint32_t)((uintptr_t)*slot - 1));
    return new_atom(exprs, slot, (struct atom){.kind = kind, .a = a, .b = b, .depth = depth});
}

// ---- arithmetic --------------------------------------------------------------------------------

// True if the signs show that the expression is never negative: for a + b, not for a - b.
bool tsr__expr_natural(struct expr expr)
{
    if (!expr.known || !expr.poly)
        return expr.known && expr.number >= 0;
    for (int i = 0; i < expr.poly->n; i++)
        if (expr.poly->terms[i].number < 0)
            return false;
    return true;
}

// Returns a + times * b, term by term.
static struct expr add_times(struct exprs *exprs, struct expr a, struct expr b, int64_t times)
{
    struct sum sum, more;
    if (!a.known || !b.known)
        return unknown;
    sum_of(a, &sum);
    sum_of(b, &more);
    for (int i = 0; i < more.n; i++)
        if (!mul_ok(more.t[i].number, times, &more.t[i].number) || !sum_add(&sum, &more.t[i]))
            return unknown;
    return keep(exprs, &sum);
}

struct expr tsr__expr_add(struct exprs *exprs, struct expr a, struct expr b)
{
    return add_times(exprs, a, b, 1);
}

struct expr tsr__expr_sub(struct exprs *exprs, struct expr a, struct expr b)
{
    return add_times(exprs, a, b, -1);
}

// Multiplies two terms: 2*a*c times 3*b is 6*a*b*c. Merges both lists of atoms, which are sorted.
// False: too many atoms, or overflow.
static bool term_mul(const struct term *a, const struct term *b, struct term *out)
{
    *out = (struct term){.n = a->n + b->n};
    if (out->n > EXPR_MAX_ATOMS || !mul_ok(a->number, b->number, &out->number))
        return false;
    for (int i = 0, j = 0; i + j < out->n;) {
        bool left = j == b->n || (i < a->n && a->atoms[i] <= b->atoms[j]);
        if (left) {
            out->atoms[i + j] = a->atoms[i];
            i++;
        } else {
            out->atoms[i + j] = b->atoms[j];
            j++;
        }
    }
    return true;
}

// Multiplies every term with every term: (a + 1) * (a - 1) adds up a*a, -a, a and -1.
struct expr tsr__expr_mul(struct exprs *exprs, struct expr a, struct expr b)
{
    struct sum sum = {0}, p, q;
    struct term term;
    int64_t number;
    if (!a.known || !b.known)
        return unknown;
    if (!a.poly && !b.poly) {
        if (!mul_ok(a.number, b.number, &number))
            return unknown;
        return expr_number(number);
    }
    sum_of(a, &p);
    sum_of(b, &q);
    for (int i = 0; i < p.n; i++)
        for (int j = 0; j < q.n; j++)
            if (!term_mul(&p.t[i], &q.t[j], &term) || !sum_add(&sum, &term))
                return unknown;
    return keep(exprs, &sum);
}

// Sets *out to term / by. False: there is a remainder.
static bool term_div(const struct term *term, const struct term *by, struct term *out)
{
    *out = (struct term){0};
    if (by->number == 0 || by->number == -1 || term->number % by->number)
        return false;
    out->number = term->number / by->number;
    // Both lists are sorted, so one pass removes the atoms of the divisor. 6*a*b by 2*b is 3*a.
    int j = 0;
    for (int i = 0; i < term->n; i++) {
        if (j < by->n && term->atoms[i] == by->atoms[j])
            j++;
        else
            out->atoms[out->n++] = term->atoms[i];
    }
    return j == by->n;
}

// Divides a by b with a remainder: *expr is the quotient, *rest the remainder. Each step finds a
// term of the rest that the first term of b divides, and subtracts that multiple of b.
static void divide(struct exprs *exprs, struct expr a, struct expr b, struct expr *expr,
                   struct expr *rest)
{
    struct sum divisor, left, one = {.n = 1};
    *expr = expr_number(0);
    *rest = a;
    sum_of(b, &divisor);
    for (int turn = 0; turn < EXPR_MAX_TERMS; turn++) {
        int i = 0;
        if (!rest->known)
            return;
        sum_of(*rest, &left);
        while (i < left.n && !term_div(&left.t[i], &divisor.t[0], &one.t[0]))
            i++;
        if (i == left.n)
            return;
        struct expr times = keep(exprs, &one), taken = tsr__expr_mul(exprs, b, times);
        *expr = tsr__expr_add(exprs, *expr, times);
        *rest = tsr__expr_sub(exprs, *rest, taken);
    }
}

// Returns the exact quotient: 6*n*m by 2*n is 3*m; n + 1 by 2 is unknown. -1 is excluded: INT64_MIN
// / -1 overflows.
struct expr tsr__expr_exact(struct exprs *exprs, struct expr a, struct expr b)
{
    struct expr q, rest;
    if (!a.known || !b.known || expr_is(b, 0))
        return unknown;
    if (expr_equal(a, b))
        return expr_number(1);
    if (!a.poly && !b.poly) {
        if (b.number == -1 || a.number % b.number)
            return unknown;
        return expr_number(a.number / b.number);
    }
    divide(exprs, a, b, &q, &rest);
    return expr_is(rest, 0) ? q : unknown;
}

// Finds a = expr * b + rest for a number b. Each term is divided separately.
static void divide_number(struct exprs *exprs, struct expr a, int64_t b, struct expr *expr,
                          struct expr *rest)
{
    struct sum all, quotient = {0}, left = {0};
    sum_of(a, &all);
    for (int i = 0; i < all.n; i++) {
        struct term term = all.t[i], r = all.t[i];
        // Round down, so that the rest is never negative: -3 by 2 is -2, rest 1.
        r.number %= b;
        term.number /= b;
        if (r.number < 0) {
            r.number += b;
            term.number--;
        }
        if (term.number)
            sum_add(&quotient, &term);
        if (r.number)
            sum_add(&left, &r);
    }
    *expr = keep(exprs, &quotient);
    *rest = keep(exprs, &left);
}

// Returns the floor division. Tries exact division, then divides both sides by their gcd, then
// divides with a remainder. (a*b + 3*b)//(2*b) is (a + 3)//2, which is (a + 1)//2 + 1.
struct expr tsr__expr_floor(struct exprs *exprs, struct expr a, struct expr b)
{
    struct expr exact = tsr__expr_exact(exprs, a, b), q = unknown, rest = unknown;
    if (exact.known || !a.known || !tsr__expr_natural(b) || expr_is(b, 0))
        return exact;
    struct expr g = tsr__expr_gcd(exprs, a, b);
    if (!expr_is(g, 1) && !expr_is(g, 0)) {
        struct expr less = tsr__expr_exact(exprs, a, g), by = tsr__expr_exact(exprs, b, g);
        if (less.known && by.known) {
            a = less;
            b = by;
        }
    }
    if (expr_is_number(b)) {
        divide_number(exprs, a, b.number, &q, &rest); // coefficients of rest are 0 .. b - 1
        if (expr_is_number(rest))
            return q;
    } else {
        divide(exprs, a, b, &q, &rest);
    }
    // If the remainder has a negative term, the quotient could be q - 1: keep the operation as it
    // is. (n - 1)//m is -1 for n = 0, so it is no atom.
    if (!tsr__expr_natural(rest) || !q.known)
        return tsr__expr_natural(a) ? operation(exprs, ATOM_DIV, a, b) : unknown;
    return tsr__expr_add(exprs, q, operation(exprs, ATOM_DIV, rest, b));
}

// Returns the division rounded towards zero. If an operand may be negative, this differs from floor
// division, and only numbers and exact quotients are supported.
struct expr tsr__expr_div(struct exprs *exprs, struct expr a, struct expr b)
{
    if (expr_is_number(a) && expr_is_number(b)) {
        if (b.number == 0)
            return unknown;
        if (b.number == -1) // INT64_MIN / -1 overflows
            return tsr__expr_mul(exprs, a, b);
        return expr_number(a.number / b.number);
    }
    if (!tsr__expr_natural(a) || !tsr__expr_natural(b))
        return tsr__expr_exact(exprs, a, b);
    return tsr__expr_floor(exprs, a, b);
}

// Returns the remainder with the sign of b: -7 and 3 give 2, 7 and -3 give -2.
static int64_t remainder_of(int64_t a, int64_t b)
{
    if (b == -1) // INT64_MIN % -1 overflows
        return 0;
    int64_t rest = a % b;
    if (rest && (rest < 0) != (b < 0))
        rest += b;
    return rest;
}

// Returns the remainder: (4*n + 3) % 4 is 3; n % 4 cannot be simplified and becomes an atom.
// Unknown if an operand may be negative, unless both are numbers.
struct expr tsr__expr_mod(struct exprs *exprs, struct expr a, struct expr b)
{
    struct expr q, rest;
    if (!a.known || !b.known || expr_is(b, 0))
        return unknown;
    if (!a.poly && !b.poly)
        return expr_number(remainder_of(a.number, b.number));
    if (!tsr__expr_natural(a) || !tsr__expr_natural(b))
        return unknown;
    if (expr_is_number(b))
        divide_number(exprs, a, b.number, &q, &rest);
    else
        divide(exprs, a, b, &q, &rest);
    if (expr_is(rest, 0) || (expr_is_number(rest) && expr_is_number(b)))
        return rest;
    if (!tsr__expr_natural(rest))
        rest = a;
    return operation(exprs, ATOM_MOD, rest, b);
}

// Returns the maximum or minimum of two expressions whose order is known.
static struct expr of_ordered(enum atom_kind kind, struct expr larger, struct expr smaller)
{
    return kind == ATOM_MAX ? larger : smaller;
}

// Returns the maximum or minimum. If the order is unknown, the operation becomes an atom, provided
// that it cannot be negative: a maximum needs one operand that is never negative, as in max(n - 4,
// 0), a minimum needs two.
static struct expr one_of(struct exprs *exprs, enum atom_kind kind, struct expr a, struct expr b)
{
    bool more = tsr__expr_natural(tsr__expr_sub(exprs, a, b)),
         less = tsr__expr_natural(tsr__expr_sub(exprs, b, a));
    if (more)
        return of_ordered(kind, a, b);
    if (less)
        return of_ordered(kind, b, a);
    bool first = tsr__expr_natural(a), second = tsr__expr_natural(b);
    bool natural = (first && second) || (kind == ATOM_MAX && (first || second));
    if (!natural || !a.known || !b.known)
        return unknown;
    // Operands are ordered, so that max(a, b) and max(b, a) are one atom; a number is second.
    bool swap = a.poly && b.poly && a.poly->terms[0].atoms[0] > b.poly->terms[0].atoms[0];
    return swap || !a.poly ? operation(exprs, kind, b, a) : operation(exprs, kind, a, b);
}

struct expr tsr__expr_max(struct exprs *exprs, struct expr a, struct expr b)
{
    return one_of(exprs, ATOM_MAX, a, b);
}

struct expr tsr__expr_min(struct exprs *exprs, struct expr a, struct expr b)
{
    return one_of(exprs, ATOM_MIN, a, b);
}

// Returns the common factor of two terms: 4*a*b and 6*b*c give 2*b. Both lists of atoms are sorted,
// so one pass finds the common ones.
static struct term common(const struct term *a, const struct term *b)
{
    struct term r = {.number = common_divisor(a->number, b->number)};
    for (int i = 0, j = 0; i < a->n && j < b->n;) {
        if (a->atoms[i] == b->atoms[j])
            r.atoms[r.n++] = a->atoms[i];
        uint32_t left = a->atoms[i], right = b->atoms[j];
        i += left <= right;
        j += right <= left;
    }
    return r;
}

// Returns a common divisor: a factor of every term, or one of the operands if it divides the other.
// Example: 2*n for 6*n*m + 4*n and 8*n. Returns 1 if there is none.
struct expr tsr__expr_gcd(struct exprs *exprs, struct expr a, struct expr b)
{
    struct sum p, q, one = {.n = 1};
    if (!a.known || !b.known || expr_is(a, INT64_MIN) || expr_is(b, INT64_MIN))
        return expr_number(1);
    if (!a.poly && !b.poly)
        return expr_number(common_divisor(a.number, b.number));
    if (a.poly && tsr__expr_exact(exprs, b, a).known)
        return a;
    if (b.poly && tsr__expr_exact(exprs, a, b).known)
        return b;
    sum_of(a, &p);
    sum_of(b, &q);
    if (q.n == 0)
        return a;
    if (p.n == 0)
        return b;
    one.t[0] = p.t[0];
    for (int i = 1; i < p.n; i++)
        one.t[0] = common(&one.t[0], &p.t[i]);
    for (int i = 0; i < q.n; i++)
        one.t[0] = common(&one.t[0], &q.t[i]);
    struct expr divisor = keep(exprs, &one);
    return divisor.known ? divisor : expr_number(1);
}

// True if the expression is min(of, n) for a number n > 1, or max(of, 1): it broadcasts with `of`
// only if both are equal.
static bool clips(const struct exprs *exprs, struct expr expr, struct expr of)
{
    const struct atom *a = tsr__expr_sole_atom(exprs, expr);
    if (!a || !expr_equal(a->a, of) || !expr_is_number(a->b))
        return false; // the second operand is the number
    if (a->kind == ATOM_MIN)
        return a->b.number > 1;
    return a->kind == ATOM_MAX && a->b.number == 1;
}

// Returns the size to which two sizes broadcast, neither of which is 1 (callers check that). A
// number has precedence over a symbol: the symbol must be that number or 1 for the model to run.
struct expr tsr__expr_broadcast(struct exprs *exprs, struct expr a, struct expr b)
{
    if (expr_equal(a, b) || expr_is_number(a) || clips(exprs, b, a))
        return a;
    return expr_is_number(b) || clips(exprs, a, b) ? b : unknown;
}
