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
#include "rules/derive.h"

#define RESHAPE_MAX_RANK 32

struct side {
    struct expr size[RESHAPE_MAX_RANK];
    int n;
    struct str names[RESHAPE_MAX_RANK]; // factors of each dimension, as text
    int count[RESHAPE_MAX_RANK];
};
struct walk {
    struct derivation *d;
    struct exprs *x;
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

// ---- the new shape -----------------------------------------------------------------------------

// What is reshaped into what, as far as inputs and attributes say.
struct reshape {
    const struct shapes *s;
    struct exprs *x;
    struct expr in[RESHAPE_MAX_RANK], out[RESHAPE_MAX_RANK];
    int n_in, n_out;
    bool zero; // in the target, 0 is a size and not "as before"
};

// Size of the one dimension that is -1: what the others leave of the whole. Dimensions that are
// copied need not be known for that.
static struct expr rest_of(const struct reshape *r, int open, const bool *copied)
{
    struct expr total = expr_number(1), taken = expr_number(1);
    for (int i = 0; i < r->n_in; i++)
        if (!copied[i])
            total = tsr__expr_mul(r->x, total, r->in[i]);
    for (int i = 0; i < r->n_out; i++)
        if (i != open && !copied[i])
            taken = tsr__expr_mul(r->x, taken, r->out[i]);
    return expr_is(taken, 0) ? taken : tsr__expr_exact(r->x, total, taken);
}

// The number of new dimensions; -1: not known.
static int64_t target_rank(const struct reshape *r, const tsr_value *target)
{
    struct known_value t = tsr__value_known(r->s, target);
    struct shape s = tsr__shapes_of(r->s, target);
    return t.elements ? t.n : s.rank == 1 ? s.dims[0].value : -1;
}

static void read_entries(struct reshape *r, struct known_value t)
{
    bool copied[RESHAPE_MAX_RANK] = {false};
    int open = -1;
    for (int i = 0; i < r->n_out; i++) {
        struct expr e = t.elements[i];
        r->out[i] = (struct expr){0};
        copied[i] = expr_is(e, 0) && !r->zero && i < r->n_in;
        if (expr_is(e, -1))
            open = i;
        else if (copied[i])
            r->out[i] = r->in[i];
        else
            r->out[i] = e;
    }
    if (open >= 0)
        r->out[open] = rest_of(r, open, copied);
}

// Both shapes; false: the number of dimensions of one is not known.
static bool read_reshape(struct reshape *r, const struct shapes *s, const tsr_node *n)
{
    const tsr_value *data = slot(n, false, 0), *target = slot(n, false, 1);
    struct shape from = data ? tsr__shapes_of(s, data) : (struct shape){.rank = -1};
    r->s = s;
    r->x = s->exprs;
    r->zero = tsr_attr_int(tsr__attr_of(s, n, "allowzero"), 0) != 0;
    int64_t rank = target ? target_rank(r, target) : -1;
    r->n_in = from.rank > RESHAPE_MAX_RANK ? -1 : from.rank;
    r->n_out = (int)rank;
    for (int i = 0; i < r->n_in; i++)
        r->in[i] = tsr__expr_of(r->x, from.dims[i]);
    if (rank < 0 || rank > RESHAPE_MAX_RANK)
        return false;
    struct known_value t = tsr__value_known(s, target);
    for (int i = 0; i < r->n_out && !t.elements; i++)
        r->out[i] = (struct expr){0};
    if (t.elements)
        read_entries(r, t);
    for (int i = 0; i < r->n_out && r->n_in < 0 && t.elements; i++)
        if (expr_is(t.elements[i], -1) || expr_is(t.elements[i], 0))
            r->out[i] = (struct expr){0};
    return true;
}

// One unknown dimension of the new shape is what the others leave.
static void complete(struct reshape *r)
{
    static const bool none[RESHAPE_MAX_RANK];
    int open = -1;
    for (int i = 0; i < r->n_out; i++) {
        if (!r->out[i].known && open >= 0)
            return;
        open = r->out[i].known ? open : i;
    }
    if (open >= 0 && r->n_in >= 0)
        r->out[open] = rest_of(r, open, none);
}

void tsr__find_reshape(struct shape_job *j)
{
    struct reshape r;
    const tsr_value *made = slot(j->n, true, 0);
    struct shape declared = made ? tsr__shapes_of(j->s, made) : (struct shape){.rank = -1};
    bool known = read_reshape(&r, j->s, j->n);
    if (!known && (declared.rank < 0 || declared.rank > RESHAPE_MAX_RANK))
        return;
    if (!known)
        r.n_out = declared.rank;
    for (int i = 0; i < r.n_out; i++) {
        if (!known)
            r.out[i] = (struct expr){0};
        if (!r.out[i].known && declared.rank == r.n_out)
            r.out[i] = tsr__expr_of(r.x, declared.dims[i]);
    }
    complete(&r);
    tsr_dim *dims = tsr__job_dims(j, r.n_out);
    for (int i = 0; dims && i < r.n_out; i++)
        dims[i] = tsr__expr_dim(j->x, r.out[i]);
    tsr__job_set(j, 0, r.n_out, dims);
}

// For the factors, the shapes that were found for the values come first.
static bool read_shapes(struct walk *w)
{
    struct reshape r;
    const tsr_value *data = slot(w->d->node, false, 0), *made = slot(w->d->node, true, 0);
    struct shape from = data ? tsr__shapes_of(w->d->shapes, data) : (struct shape){.rank = -1};
    struct shape to = made ? tsr__shapes_of(w->d->shapes, made) : (struct shape){.rank = -1};
    bool known = read_reshape(&r, w->d->shapes, w->d->node);
    if (!known)
        r.n_out = to.rank;
    if (from.rank < 0 || from.rank > RESHAPE_MAX_RANK || r.n_out < 0 || r.n_out > RESHAPE_MAX_RANK)
        return false;
    w->in.n = from.rank;
    w->out.n = r.n_out;
    for (int i = 0; i < from.rank; i++)
        w->in.size[i] = tsr__expr_of(w->x, from.dims[i]);
    for (int i = 0; i < r.n_out; i++) {
        bool here = to.rank == r.n_out && dim_known(to.dims[i]);
        w->out.size[i] = known ? r.out[i] : (struct expr){0};
        if (here && (!w->out.size[i].known || to.dims[i].value >= 0))
            w->out.size[i] = tsr__expr_of(w->x, to.dims[i]);
    }
    return true;
}

// ---- factors -----------------------------------------------------------------------------------

static struct str new_factor(struct walk *w, const struct expr *size, bool whole)
{
    struct arena *a = w->d->arena;
    struct str name = tsr__arena_printf(a, "f%d", w->n_factors++);
    tsr__derive_size(w->d, name, tsr__expr_dim(w->x, *size));
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
    if (!expr_is(*size, 1))
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
        if (expr_is(many->size[i], 1))
            continue;
        struct str name = new_factor(w, &many->size[i], false);
        give(w, one, dim, name);
        give(w, many, i, name);
    }
}

static int past_ones(const struct side *s, int i, int to)
{
    while (i < to && expr_is(s->size[i], 1))
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
        struct expr g = tsr__expr_gcd(w->x, x, y);
        if (!x.known || !y.known || expr_is(g, 1) || expr_is(g, 0))
            break;
        struct str name = new_factor(w, &g, false);
        give(w, &w->in, a, name);
        give(w, &w->out, c, name);
        x = tsr__expr_exact(w->x, x, g);
        y = tsr__expr_exact(w->x, y, g);
        if (!x.known || !y.known)
            break;
        if (expr_is(x, 1))
            a = past_ones(&w->in, a + 1, b);
        if (expr_is(y, 1))
            c = past_ones(&w->out, c + 1, d);
        if (expr_is(x, 1) && a < b)
            x = w->in.size[a];
        if (expr_is(y, 1) && c < d)
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
        struct expr x = expr_number(1), y = expr_number(1);
        for (int k = 0; k < p; k++)
            x = tsr__expr_mul(w->x, x, w->in.size[from_right ? b - 1 - k : a + k]);
        if (!x.known)
            return false;
        for (int q = 0; y.known && q <= d - c; q++) {
            if (q)
                y = tsr__expr_mul(w->x, y, w->out.size[from_right ? d - q : c + q - 1]);
            if (p + q && expr_equal(x, y) && !expr_is(x, 0)) {
                *i = p;
                *j = q;
                return true;
            }
        }
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
    struct walk *w = d->arena ? ARENA_NEW(d->arena, struct walk) : NULL;
    if (!w) {
        tsr__derive_none(d, "out of memory");
        return;
    }
    w->d = d;
    w->x = d->shapes->exprs;
    if (!read_shapes(w)) {
        tsr__derive_none(d, "the old or the new shape is not known");
        return;
    }
    for (int i = 0; i < RESHAPE_MAX_RANK; i++)
        if ((i < w->in.n && expr_is_number(w->in.size[i]) && w->in.size[i].number <= 0) ||
            (i < w->out.n && expr_is_number(w->out.size[i]) && w->out.size[i].number <= 0)) {
            tsr__derive_none(d, "a dimension has no elements");
            return;
        }
    walk_all(w);
    struct str in = side_text(w, &w->in), out = side_text(w, &w->out);
    const char *zeros = tsr__onnx_opset(d->node) >= 14 ? " allowzero" : "";
    d->text = tsr__arena_printf(
                  d->arena, "[" STR_FMT "],· -> [" STR_FMT "]%s" STR_FMT "; shape 1%s", STR_ARG(in),
                  STR_ARG(out), w->rep.n ? "; rep" : "", STR_ARG(w->rep), zeros)
                  .p;
}
