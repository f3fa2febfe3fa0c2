// SPDX-License-Identifier: Apache-2.0
// reshape.c - the rule of Reshape: which factors the old and the new shape share.
//
// Both shapes number the same elements in row-major order, so leading dimensions with equal
// products hold the same leading index, and trailing ones the same trailing index. First the shapes
// are taken apart into blocks at every place where the products from the left are provably equal,
// then from the right; what is left in the middle is one block, its products equal because the
// totals are. Inside a block the gcd of what is left of the two current dimensions is a shared
// factor; where it is 1 the sides go apart and the rest of the block stays whole. Sizes are
// products of numbers and symbols, so [seq*batch, 256] -> [batch, seq, 256] is found to be [(f0 f1)
// f2] -> [f0 f1 f2].
#include "rules/internal.h"

#define RESHAPE_MAX_RANK 32

struct side {
    struct expr size[RESHAPE_MAX_RANK];
    int n;
    struct str names[RESHAPE_MAX_RANK]; // factors of each dimension, as text
    int count[RESHAPE_MAX_RANK];
};
struct walk {
    struct derivation *d;
    struct side in, out;
    int n_factors;
    struct str rep; // names of factors that stay whole
};

static const tsr_value *slot(const tsr_node *n, bool out, size_t i)
{
    size_t count = out ? tsr_node_output_count(n) : tsr_node_input_count(n);
    if (i >= count)
        return NULL;
    return out ? tsr_node_output(n, i) : tsr_node_input(n, i);
}

// ---- the new shape
// -------------------------------------------------------------------------------------

// Size of the one dimension that is -1: what the others leave of the whole.
static struct expr rest_of(const struct walk *w, int open)
{
    struct expr total = tsr__expr_number(1), none = {0};
    for (int i = 0; i < w->in.n; i++)
        if (!tsr__expr_mul(&total, &w->in.size[i]))
            return none;
    for (int i = 0; i < w->out.n; i++)
        if (i != open && !tsr__expr_div(&total, &w->out.size[i]))
            return none;
    return total;
}

static bool read_target(struct walk *w)
{
    const tsr_value *target = slot(w->d->node, false, 1), *made = slot(w->d->node, true, 0);
    if (!target || !made)
        return false;
    struct known_value t = tsr__value_known(w->d->shapes, target);
    struct shape declared = tsr__shapes_of(w->d->shapes, made);
    struct shape of_target = tsr__shapes_of(w->d->shapes, target);
    bool zero = tsr_attr_int(tsr_node_find_attr(w->d->node, "allowzero"), 0) != 0;
    int open = -1;
    int64_t n = t.elements ? t.n : declared.rank;
    if (n < 0 && of_target.rank == 1)
        n = of_target.dims[0].value;
    if (n < 0 || n > RESHAPE_MAX_RANK)
        return false;
    w->out.n = (int)n;
    for (int i = 0; i < w->out.n; i++) {
        struct expr *size = &w->out.size[i];
        struct element e = t.elements ? t.elements[i] : (struct element){0};
        bool minus = e.known && tsr__expr_is(&e.value, -1);
        bool copy = e.known && tsr__expr_is(&e.value, 0) && !zero;
        if (e.known && !minus && !copy)
            *size = e.value;
        else if (copy && i < w->in.n)
            *size = w->in.size[i];
        else if (declared.rank == w->out.n)
            *size = tsr__expr_of(declared.dims[i]);
        if (minus)
            open = i;
    }
    if (open >= 0 && (!w->out.size[open].known || w->out.size[open].n)) {
        struct expr rest = rest_of(w, open);
        if (rest.known)
            w->out.size[open] = rest;
    }
    return true;
}

static bool read_shapes(struct walk *w)
{
    const tsr_value *data = slot(w->d->node, false, 0);
    struct shape s = data ? tsr__shapes_of(w->d->shapes, data) : (struct shape){.rank = -1};
    if (s.rank < 0 || s.rank > RESHAPE_MAX_RANK)
        return false;
    w->in.n = s.rank;
    for (int i = 0; i < s.rank; i++)
        w->in.size[i] = tsr__expr_of(s.dims[i]);
    return read_target(w);
}

// ---- factors
// ----------------------------------------------------------------------------------------------

static struct str new_factor(struct walk *w, const struct expr *size, bool whole)
{
    struct arena *a = w->d->arena;
    struct str name = tsr__arena_printf(a, "f%d", w->n_factors++);
    struct known_size *more = ARENA_ARRAY(a, struct known_size, (size_t)w->d->n_sizes + 1);
    if (!more)
        return name;
    if (w->d->n_sizes)
        memcpy(more, w->d->sizes, (size_t)w->d->n_sizes * sizeof(*more));
    more[w->d->n_sizes++] = (struct known_size){name, tsr__expr_dim(a, size)};
    w->d->sizes = more;
    if (whole)
        w->rep = tsr__arena_printf(a, STR_FMT " " STR_FMT, STR_ARG(w->rep), STR_ARG(name));
    return name;
}

static void give(struct walk *w, struct side *s, int dim, struct str name)
{
    s->names[dim] =
        tsr__arena_printf(w->d->arena, STR_FMT " " STR_FMT, STR_ARG(s->names[dim]), STR_ARG(name));
    s->count[dim]++;
}

static void give_whole(struct walk *w, struct side *s, int dim, const struct expr *size)
{
    if (!tsr__expr_is(size, 1))
        give(w, s, dim, new_factor(w, size, true));
}

// The rest of a block, from the given places on, stays whole.
static void apart(struct walk *w, struct side *s, int from, int to, const struct expr *left)
{
    for (int i = from; i < to; i++)
        give_whole(w, s, i, i == from ? left : &s->size[i]);
}

// One dimension that is all of the others together: [(f0 f1)] against [f0 f1], whatever it is
// called.
static void split_one(struct walk *w, struct side *one, int dim, struct side *many, int from,
                      int to)
{
    for (int i = from; i < to; i++) {
        if (tsr__expr_is(&many->size[i], 1))
            continue;
        struct str name = new_factor(w, &many->size[i], false);
        give(w, one, dim, name);
        give(w, many, i, name);
    }
}

static int past_ones(const struct side *s, int i, int to)
{
    while (i < to && tsr__expr_is(&s->size[i], 1))
        i++;
    return i;
}

// in[a..b) and out[c..d) hold the same index.
static void walk_block(struct walk *w, int a, int b, int c, int d)
{
    a = past_ones(&w->in, a, b);
    c = past_ones(&w->out, c, d);
    if (a == b || c == d) {
        apart(w, &w->in, a, b, a < b ? &w->in.size[a] : NULL);
        apart(w, &w->out, c, d, c < d ? &w->out.size[c] : NULL);
        return;
    }
    if (past_ones(&w->in, a + 1, b) == b) {
        split_one(w, &w->in, a, &w->out, c, d);
        return;
    }
    if (past_ones(&w->out, c + 1, d) == d) {
        split_one(w, &w->out, c, &w->in, a, b);
        return;
    }
    struct expr x = w->in.size[a], y = w->out.size[c];
    for (;;) {
        struct expr g = tsr__expr_gcd(&x, &y);
        if (!x.known || !y.known || tsr__expr_is(&g, 1) || g.number == 0)
            break;
        struct str name = new_factor(w, &g, false);
        give(w, &w->in, a, name);
        give(w, &w->out, c, name);
        if (!tsr__expr_div(&x, &g) || !tsr__expr_div(&y, &g))
            break;
        if (tsr__expr_is(&x, 1))
            a = past_ones(&w->in, a + 1, b);
        if (tsr__expr_is(&y, 1))
            c = past_ones(&w->out, c + 1, d);
        if (tsr__expr_is(&x, 1) && a < b)
            x = w->in.size[a];
        if (tsr__expr_is(&y, 1) && c < d)
            y = w->out.size[c];
        if (a == b || c == d)
            break;
    }
    apart(w, &w->in, a, b, &x);
    apart(w, &w->out, c, d, &y);
}

// Grows both sides from one end until the products are provably equal. *i and *j are the numbers of
// dimensions taken (at least one in all); false: no such place.
static bool equal_block(const struct walk *w, int a, int b, int c, int d, bool from_right, int *i,
                        int *j)
{
    for (int p = 0; p <= b - a; p++) {
        struct expr x = tsr__expr_number(1);
        bool ok = true;
        for (int k = 0; k < p && ok; k++)
            ok = tsr__expr_mul(&x, &w->in.size[from_right ? b - 1 - k : a + k]);
        struct expr y = tsr__expr_number(1);
        for (int q = 0; ok && q <= d - c; q++) {
            if (q && !tsr__expr_mul(&y, &w->out.size[from_right ? d - q : c + q - 1]))
                break;
            if (p + q && tsr__expr_equal(&x, &y) && x.number) {
                *i = p;
                *j = q;
                return true;
            }
        }
        if (!ok)
            return false;
    }
    return false;
}

static void walk_all(struct walk *w)
{
    int a = 0, b = w->in.n, c = 0, d = w->out.n, i, j;
    while (equal_block(w, a, b, c, d, false, &i, &j)) {
        walk_block(w, a, a + i, c, c + j);
        a += i;
        c += j;
    }
    while (equal_block(w, a, b, c, d, true, &i, &j)) {
        walk_block(w, b - i, b, d - j, d);
        b -= i;
        d -= j;
    }
    walk_block(w, a, b, c, d);
}

static struct str side_text(struct walk *w, const struct side *s)
{
    struct str text = STR("");
    for (int i = 0; i < s->n; i++) {
        struct str names = s->count[i] ? s->names[i] : STR(" 1");
        text = s->count[i] > 1
                   ? tsr__arena_printf(w->d->arena, STR_FMT " (" STR_FMT ")", STR_ARG(text),
                                       STR_ARG(names))
                   : tsr__arena_printf(w->d->arena, STR_FMT STR_FMT, STR_ARG(text), STR_ARG(names));
    }
    return text;
}

void tsr__derive_reshape(struct derivation *d)
{
    struct walk *w = ARENA_NEW(d->arena, struct walk);
    if (!w)
        return;
    w->d = d;
    if (!read_shapes(w)) {
        d->whole = "the old or the new shape is not known";
        return;
    }
    for (int i = 0; i < RESHAPE_MAX_RANK; i++)
        if ((i < w->in.n && w->in.size[i].known && w->in.size[i].number == 0) ||
            (i < w->out.n && w->out.size[i].known && w->out.size[i].number <= 0)) {
            d->whole = "a dimension has no elements";
            return;
        }
    walk_all(w);
    struct str in = side_text(w, &w->in), out = side_text(w, &w->out);
    d->text = tsr__arena_printf(d->arena, "[" STR_FMT "],· -> [" STR_FMT "]%s" STR_FMT "; shape 1",
                                STR_ARG(in), STR_ARG(out), w->rep.n ? "; rep" : "", STR_ARG(w->rep))
                  .p;
}
