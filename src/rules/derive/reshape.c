// SPDX-License-Identifier: Apache-2.0
// reshape.c - the rule of Reshape: which factors the old and the new shape share.
//
// Both shapes number the same elements in row-major order. So leading dimensions with equal
// products have the same leading index, and trailing ones the same trailing index. The shapes are
// divided into blocks where products from the left are known to be equal, then from the right. The
// middle is one block, whose products are equal because the totals are. Inside a block, the gcd of
// the two current dimensions is a shared factor; if it is 1, the rest of the block is not sharded.
// Sizes are products of numbers and symbols, so [seq*batch, 256] -> [batch, seq, 256] is [(f0 f1)
// f2] -> [f0 f1 f2].
//
//   [2 12 5] -> [2 4 3 5]   blocks 2 | 12 -> 4 3 | 5: "[f0 (f1 f2) f3],· -> [f0 f1 f2 f3]"
//   [6 4] -> [2 12]         one block: gcd(6, 2) = 2 is f0, which is all of the new 2;
//                           3 of the 6 is left, and gcd(3, 12) = 3 is f1;
//                           4 of the 12 is left, and gcd(4, 4) = 4 is f2:
//                           "[(f0 f1) f2],· -> [f0 (f1 f2)]", and each factor can be sharded
//   [4 6] -> [3 8]          one block: gcd(4, 3) = 1, so all four dimensions are separate factors,
//                           which are not sharded
#include "rules/derive/derive.h"

#define RESHAPE_MAX_RANK 32

#define RESHAPE_MAX_FACTORS (2 * RESHAPE_MAX_RANK)

// One of the two shapes, and the numbers of each dimension's factors.
struct shape_side {
    struct expr size[RESHAPE_MAX_RANK];
    int n;
    unsigned char factors[RESHAPE_MAX_RANK][RESHAPE_MAX_FACTORS];
    int count[RESHAPE_MAX_RANK];
};
struct factor_search {
    struct derivation *derivation;
    struct exprs *exprs;
    struct shape_side in, out;
    int n_factors;
    bool unsharded[RESHAPE_MAX_FACTORS]; // indexed by factor
};

// ---- the new shape -----------------------------------------------------------------------------

// The old and the new shape, as far as inputs and attributes give them.
struct reshape {
    struct exprs *exprs;
    struct expr in[RESHAPE_MAX_RANK], out[RESHAPE_MAX_RANK];
    int n_in, n_out;
    bool zero; // 0 in the target means size 0, not "copy the old size"
};

// Returns the size of the dimension that is -1: the old number of elements divided by the other
// sizes. Copied dimensions cancel, so their sizes may be unknown. If a size is 0, the result is
// unknown: [4 0 n] is [4 0 k] for every k.
static struct expr rest_of(const struct reshape *reshape, int open, const bool *copied)
{
    struct expr total = expr_number(1), taken = expr_number(1);
    for (int i = 0; i < reshape->n_in; i++)
        if (!copied[i])
            total = tsr__expr_mul(reshape->exprs, total, reshape->in[i]);
    for (int i = 0; i < reshape->n_out; i++)
        if (i != open && !copied[i])
            taken = tsr__expr_mul(reshape->exprs, taken, reshape->out[i]);
    return expr_is(taken, 0) ? (struct expr){0} : tsr__expr_exact(reshape->exprs, total, taken);
}

// Reads the elements of the target: a size, 0 (the old size, unless allowzero), or -1 (the rest).
static void read_entries(struct reshape *reshape, struct known_value t)
{
    bool copied[RESHAPE_MAX_RANK] = {false};
    int open = -1;
    for (int i = 0; i < reshape->n_out; i++) {
        struct expr expr = t.elements[i];
        reshape->out[i] = (struct expr){0};
        copied[i] = expr_is(expr, 0) && !reshape->zero && i < reshape->n_in;
        if (expr_is(expr, -1))
            open = i;
        else if (copied[i])
            reshape->out[i] = reshape->in[i];
        else
            reshape->out[i] = expr;
    }
    if (open >= 0)
        reshape->out[open] = rest_of(reshape, open, copied);
}

// Reads both shapes; n_in is -1 if the old rank is unknown. False: the new rank is unknown.
static bool read_reshape(struct reshape *reshape, const struct shapes *shapes, const tsr_node *node)
{
    const tsr_value *target = tsr_node_input(node, 1);
    struct shape from = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    reshape->exprs = shapes->exprs;
    reshape->zero = tsr_attr_int(tsr__attr_of(shapes, node, "allowzero"), 0) != 0;
    struct known_value t = tsr__value_known(shapes, target);
    int64_t rank = tsr__value_length(t, tsr__shapes_of(shapes, target));
    reshape->n_in = from.rank > RESHAPE_MAX_RANK ? -1 : from.rank;
    reshape->n_out = (int)rank;
    for (int i = 0; i < reshape->n_in; i++)
        reshape->in[i] = tsr__expr_of(reshape->exprs, from.dims[i]);
    if (rank < 0 || rank > RESHAPE_MAX_RANK)
        return false;
    if (!t.elements) {
        for (int i = 0; i < reshape->n_out; i++)
            reshape->out[i] = (struct expr){0};
        return true;
    }
    read_entries(reshape, t);
    if (reshape->n_in >= 0)
        return true;
    for (int i = 0; i < reshape->n_out; i++)
        if (expr_is(t.elements[i], -1) || expr_is(t.elements[i], 0))
            reshape->out[i] = (struct expr){0};
    return true;
}

// Computes the unknown dimension of the new shape from the others, if there is only one.
static void complete(struct reshape *reshape)
{
    static const bool none[RESHAPE_MAX_RANK];
    int open = -1;
    for (int i = 0; i < reshape->n_out; i++) {
        if (!reshape->out[i].known && open >= 0)
            return;
        open = reshape->out[i].known ? open : i;
    }
    if (open >= 0 && reshape->n_in >= 0)
        reshape->out[open] = rest_of(reshape, open, none);
}

// Infers the new shape. Sizes come from the target's elements, else from declarations. One size
// that is still unknown follows from the number of elements.
void tsr__infer_reshape(struct shape_job *job)
{
    struct reshape reshape;
    struct shape declared = tsr__shapes_of(job->shapes, tsr_node_output(job->node, 0));
    bool known = read_reshape(&reshape, job->shapes, job->node);
    if (!known && (declared.rank < 0 || declared.rank > RESHAPE_MAX_RANK))
        return;
    if (!known)
        reshape.n_out = declared.rank;
    for (int i = 0; i < reshape.n_out; i++) {
        if (!known)
            reshape.out[i] = (struct expr){0};
        if (!reshape.out[i].known && declared.rank == reshape.n_out)
            reshape.out[i] = tsr__expr_of(reshape.exprs, declared.dims[i]);
    }
    complete(&reshape);
    tsr_dim *dims = tsr__job_dims(job, reshape.n_out);
    if (!dims)
        return;
    for (int i = 0; i < reshape.n_out; i++)
        dims[i] = tsr__expr_dim(job->exprs, reshape.out[i]);
    tsr__job_set(job, 0, reshape.n_out, dims);
}

// Reads both shapes. Sizes of the result that inference found as numbers have precedence over the
// target's elements. False: a rank is unknown or too large.
static bool read_shapes(struct factor_search *search)
{
    struct reshape reshape;
    const struct shapes *shapes = search->derivation->shapes;
    const tsr_node *node = search->derivation->node;
    struct shape from = tsr__shapes_of(shapes, tsr_node_input(node, 0)),
                 to = tsr__shapes_of(shapes, tsr_node_output(node, 0));
    bool known = read_reshape(&reshape, shapes, node);
    if (!known)
        reshape.n_out = to.rank;
    if (from.rank < 0 || from.rank > RESHAPE_MAX_RANK || reshape.n_out < 0 ||
        reshape.n_out > RESHAPE_MAX_RANK)
        return false;
    search->in.n = from.rank;
    search->out.n = reshape.n_out;
    for (int i = 0; i < from.rank; i++)
        search->in.size[i] = tsr__expr_of(search->exprs, from.dims[i]);
    for (int i = 0; i < reshape.n_out; i++) {
        bool here = to.rank == reshape.n_out && dim_known(to.dims[i]);
        search->out.size[i] = known ? reshape.out[i] : (struct expr){0};
        if (here && (!search->out.size[i].known || to.dims[i].value >= 0))
            search->out.size[i] = tsr__expr_of(search->exprs, to.dims[i]);
    }
    return true;
}

// ---- factors -----------------------------------------------------------------------------------

// Creates a factor of that size and returns its number; NO_LETTER: too many.
static int new_factor(struct factor_search *search, const struct expr *size, bool unsharded)
{
    if (search->n_factors == RESHAPE_MAX_FACTORS) {
        tsr__rule_fail(&search->derivation->rule, "too many factors");
        return NO_LETTER;
    }
    int factor = search->n_factors++;
    tsr__derive_numbered_size(search->derivation, 'f', factor, tsr__expr_dim(search->exprs, *size));
    search->unsharded[factor] = unsharded;
    return factor;
}

static void add_factor(struct shape_side *side, int dim, int factor)
{
    if (factor != NO_LETTER)
        side->factors[dim][side->count[dim]++] = (unsigned char)factor;
}

static void add_unsharded(struct factor_search *search, struct shape_side *side, int dim,
                          const struct expr *size)
{
    if (!expr_is(*size, 1))
        add_factor(side, dim, new_factor(search, size, true));
}

// Marks dimensions `from` to `to` - 1 as not sharded. `left` is the size of dimension `from` that
// has no factor yet.
static void leave_unsharded(struct factor_search *search, struct shape_side *side, int from, int to,
                            const struct expr *left)
{
    for (int i = from; i < to; i++)
        add_unsharded(search, side, i, i == from ? left : &side->size[i]);
}

// Finds the factors of a block that is dimension `dim` of one side and several dimensions of the
// other, such as [(f0 f1)] and [f0 f1]. The size of `dim` itself is not needed.
static void split_one(struct factor_search *search, struct shape_side *one, int dim,
                      struct shape_side *many, int from, int to)
{
    for (int i = from; i < to; i++) {
        if (expr_is(many->size[i], 1))
            continue;
        int factor = new_factor(search, &many->size[i], false);
        add_factor(one, dim, factor);
        add_factor(many, i, factor);
    }
}

static int skip_ones(const struct shape_side *side, int i, int to)
{
    while (i < to && expr_is(side->size[i], 1))
        i++;
    return i;
}

// Finds the factors of in[a..b) and out[c..d), which number the same elements.
static void find_in_block(struct factor_search *search, int a, int b, int c, int d)
{
    a = skip_ones(&search->in, a, b);
    c = skip_ones(&search->out, c, d);
    if (a == b || c == d) {
        leave_unsharded(search, &search->in, a, b, a < b ? &search->in.size[a] : NULL);
        leave_unsharded(search, &search->out, c, d, c < d ? &search->out.size[c] : NULL);
        return;
    }
    if (skip_ones(&search->in, a + 1, b) == b) {
        split_one(search, &search->in, a, &search->out, c, d);
        return;
    }
    if (skip_ones(&search->out, c + 1, d) == d) {
        split_one(search, &search->out, c, &search->in, a, b);
        return;
    }
    struct expr x = search->in.size[a], y = search->out.size[c];
    for (;;) {
        struct expr g = tsr__expr_gcd(search->exprs, x, y);
        if (!x.known || !y.known || expr_is(g, 1) || expr_is(g, 0))
            break;
        int factor = new_factor(search, &g, false);
        add_factor(&search->in, a, factor);
        add_factor(&search->out, c, factor);
        x = tsr__expr_exact(search->exprs, x, g);
        y = tsr__expr_exact(search->exprs, y, g);
        if (!x.known || !y.known)
            break;
        if (expr_is(x, 1))
            a = skip_ones(&search->in, a + 1, b);
        if (expr_is(y, 1))
            c = skip_ones(&search->out, c + 1, d);
        if (expr_is(x, 1) && a < b)
            x = search->in.size[a];
        if (expr_is(y, 1) && c < d)
            y = search->out.size[c];
        if (a == b || c == d)
            break;
    }
    leave_unsharded(search, &search->in, a, b, &x);
    leave_unsharded(search, &search->out, c, d, &y);
}

// Extends both sides from one end until the products are known to be equal. *i and *j are the
// numbers of dimensions of the block; one of them may be 0. False: there is no such block.
static bool equal_block(const struct factor_search *search, int a, int b, int c, int d,
                        bool from_right, int *i, int *j)
{
    for (int p = 0; p <= b - a; p++) {
        struct expr x = expr_number(1), y = expr_number(1);
        for (int k = 0; k < p; k++)
            x = tsr__expr_mul(search->exprs, x, search->in.size[from_right ? b - 1 - k : a + k]);
        if (!x.known)
            return false;
        for (int q = 0; q <= d - c; q++) {
            if (q)
                y = tsr__expr_mul(search->exprs, y,
                                  search->out.size[from_right ? d - q : c + q - 1]);
            if (!y.known)
                break;
            if (p + q && expr_equal(x, y) && !expr_is(x, 0)) {
                *i = p;
                *j = q;
                return true;
            }
        }
    }
    return false;
}

// Finds blocks from the left, then from the right; the rest between them is one block.
static void find_factors(struct factor_search *search)
{
    int a = 0, b = search->in.n, c = 0, d = search->out.n, i, j;
    while (equal_block(search, a, b, c, d, false, &i, &j)) {
        find_in_block(search, a, a + i, c, c + j);
        a += i;
        c += j;
    }
    while (equal_block(search, a, b, c, d, true, &i, &j)) {
        find_in_block(search, b - i, b, d - j, d);
        b -= i;
        d -= j;
    }
    find_in_block(search, a, b, c, d);
}

// Adds the factors of each dimension: "f0 (f1 f2) 1".
static void add_side(struct rule_builder *rule, const struct shape_side *side)
{
    for (int i = 0; i < side->n; i++) {
        int letters[RESHAPE_MAX_FACTORS];
        for (int k = 0; k < side->count[i]; k++)
            letters[k] = tsr__rule_numbered(rule, 'f', side->factors[i][k]);
        tsr__rule_product(rule, letters, side->count[i]);
    }
}

static void build_rule(struct factor_search *search)
{
    struct rule_builder *rule = &search->derivation->rule;
    tsr__rule_input(rule);
    add_side(rule, &search->in);
    tsr__rule_inputs(rule, "·");
    tsr__rule_output(rule);
    add_side(rule, &search->out);
    for (int i = 0; i < search->n_factors; i++)
        if (search->unsharded[i])
            tsr__rule_kind_of(rule, FACTOR_REP, tsr__rule_numbered(rule, 'f', i));
    bool allowzero = tsr__onnx_opset(search->derivation->node) >= 14;
    tsr__rule_clauses(rule, allowzero ? "shape 1 allowzero" : "shape 1 open");
}

// Derives the rule of Reshape. With a size of 0 every product is 0, so equal products prove
// nothing, and there are no factors.
void tsr__derive_reshape(struct derivation *derivation)
{
    struct factor_search *search = ARENA_NEW(derivation->arena, struct factor_search); // large
    if (!search) {
        tsr__derive_none(derivation, "out of memory");
        return;
    }
    search->derivation = derivation;
    search->exprs = derivation->shapes->exprs;
    if (!read_shapes(search)) {
        tsr__derive_none(derivation,
                         "the number of dimensions of the input or output is unknown: declare it");
        return;
    }
    for (int i = 0; i < RESHAPE_MAX_RANK; i++)
        if ((i < search->in.n && expr_is_number(search->in.size[i]) &&
             search->in.size[i].number <= 0) ||
            (i < search->out.n && expr_is_number(search->out.size[i]) &&
             search->out.size[i].number <= 0)) {
            tsr__derive_none(derivation, "a dimension has no elements");
            return;
        }
    find_factors(search);
    build_rule(search);
}
