// SPDX-License-Identifier: Apache-2.0
// rule.c - the rule of one node: the row's pattern, laid over the shapes that the node has.
//
// Packs get their lengths from the ranks, factors their sizes from the dimensions. Where it cannot
// be proved that a factor means the same in all tensors (two symbols that may or may not
// broadcast), it must stay whole; where the shapes do not fit the pattern at all, so must the node.
#include "rules/internal.h"

#define NOT_KNOWN   (-1)
#define KEPT_INPUTS 4

struct build {
    struct arena *arena;
    const tsr_node *node;
    const struct shapes *shapes;
    const struct pattern *p;
    const struct derivation *d;
    int length[PATTERN_MAX_LETTERS]; // of each pack
    int base[PATTERN_MAX_LETTERS];   // first factor of each letter
    struct rule_factor factors[RULE_MAX_FACTORS];
    bool doubtful[RULE_MAX_FACTORS]; // may broadcast or not, depending on sizes at run time
    bool open[RULE_MAX_FACTORS]; // an input that is not broadcast has it, and its size is not known
    bool fixed[RULE_MAX_FACTORS];     // an input that is not broadcast says its size
    bool strict[PATTERN_MAX_LETTERS]; // packs: an input that is not broadcast says the length
    int n_factors;
    const char *whole;
    bool expands;     // the operator can be replaced by simpler ones
    bool shapes_only; // only the inputs are looked at; names of factors are not needed
    struct shape kept[KEPT_INPUTS]; // of the first inputs, looked up once
    int n_kept;
};

static bool refuse(struct build *b, const char *why)
{
    if (!b->whole)
        b->whole = why;
    return false;
}

static const struct pattern_tensor *tensor_at(const struct pattern_tensor *list, int n, int i)
{
    if (i < n)
        return &list[i];
    return n && list[n - 1].variadic ? &list[n - 1] : NULL;
}

static const tsr_value *value_at(const tsr_node *n, bool out, int i)
{
    size_t count = out ? tsr_node_output_count(n) : tsr_node_input_count(n);
    if ((size_t)i >= count)
        return NULL;
    return out ? tsr_node_output(n, (size_t)i) : tsr_node_input(n, (size_t)i);
}

// The i-th tensor of one side: its pattern and its shape. Values that are not given have rank -1.
static struct shape shape_at(const struct build *b, bool out, int i)
{
    if (!out && i < b->n_kept)
        return b->kept[i];
    const tsr_value *v = value_at(b->node, out, i);
    return v ? tsr__shapes_piece(b->shapes, v) : (struct shape){.rank = NOT_KNOWN};
}

static int count_of(const struct build *b, bool out)
{
    return (int)(out ? tsr_node_output_count(b->node) : tsr_node_input_count(b->node));
}

static const struct pattern_tensor *pattern_at(const struct build *b, bool out, int i)
{
    return out ? tensor_at(b->p->outputs, b->p->n_outputs, i)
               : tensor_at(b->p->inputs, b->p->n_inputs, i);
}

static bool is_pack(const struct build *b, const struct pattern_dim *d)
{
    return d->n == 1 && b->p->letters[d->letters[0]].pack;
}

// Leading broadcast dimensions may be missing in a tensor without packs: [m~ n~] as [n~].
static int missing_dims(const struct build *b, const struct pattern_tensor *t, int rank)
{
    int missing = t->n_dims - rank;
    for (int i = 0; i < missing; i++)
        if (!t->dims[i].broadcast || is_pack(b, &t->dims[i]))
            return -1;
    return missing;
}

// ---- lengths of packs --------------------------------------------------------------------------

static bool fit_rank(struct build *b, const struct pattern_tensor *t, int rank)
{
    const struct pattern_dim *open = NULL;
    int fixed = 0;
    for (int i = 0; i < t->n_dims; i++) {
        const struct pattern_dim *d = &t->dims[i];
        if (!is_pack(b, d))
            fixed++;
        else if (!open && (b->length[d->letters[0]] == NOT_KNOWN || d->broadcast))
            open = d;
        else if (b->length[d->letters[0]] == NOT_KNOWN)
            return refuse(b, "the rule leaves the number of dimensions open");
        else
            fixed += b->length[d->letters[0]];
    }
    if (!open)
        return (rank == fixed || missing_dims(b, t, rank) > 0) ||
               refuse(b, "a tensor has another number of dimensions than the rule expects");
    int length = rank - fixed, *known = &b->length[open->letters[0]];
    if (length < 0)
        return refuse(b, "a tensor has fewer dimensions than the rule expects");
    if (!open->broadcast && *known != NOT_KNOWN && *known != length)
        return refuse(b, "tensors have different numbers of dimensions");
    *known = length > *known ? length : *known;
    b->strict[open->letters[0]] = b->strict[open->letters[0]] || !open->broadcast;
    return true;
}

// A pack that an input of unknown rank has may be longer than the inputs that are broadcast along it.
static bool packs_settled(struct build *b, const struct pattern_tensor *t)
{
    for (int i = 0; i < t->n_dims; i++) {
        int letter = is_pack(b, &t->dims[i]) ? t->dims[i].letters[0] : NOT_KNOWN;
        if (letter != NOT_KNOWN && b->length[letter] != NOT_KNOWN && !b->strict[letter])
            return refuse(b, "the shape of an input is not known");
    }
    return true;
}

static bool may_stretch(const struct pattern_tensor *t)
{
    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i].broadcast)
            return true;
    return false;
}

// Inputs first (strict ones before broadcast ones need no order: lengths only grow), outputs only
// for packs that no input has.
static bool fit_ranks(struct build *b)
{
    for (int i = 0; i < b->p->n_letters; i++) {
        b->length[i] = NOT_KNOWN;
        b->strict[i] = false;
    }
    for (int out = 0; out < (b->shapes_only ? 1 : 2); out++)
        for (int i = 0; i < count_of(b, out); i++) {
            const struct pattern_tensor *t = pattern_at(b, out, i);
            if (!value_at(b->node, out, i)) {
                if (!out && t && !t->optional)
                    return refuse(b, "an input is missing");
                continue;
            }
            if (!t)
                return refuse(b, out ? "more outputs than the rule has"
                                     : "more inputs than the rule has");
            int rank = shape_at(b, out, i).rank;
            if (t->host || (out && rank == NOT_KNOWN))
                continue;
            if (rank == NOT_KNOWN && b->shapes_only && !may_stretch(t))
                continue; // the others may say enough
            if (rank == NOT_KNOWN)
                return refuse(b, "the shape of an input is not known");
            if (rank > RULE_MAX_RANK)
                return refuse(b, "a tensor has more dimensions than are followed");
            if (!fit_rank(b, t, rank))
                return false;
        }
    for (int i = 0; i < count_of(b, false); i++) {
        const struct pattern_tensor *t = pattern_at(b, false, i);
        bool unread = value_at(b->node, false, i) && !t->host;
        if (unread && shape_at(b, false, i).rank == NOT_KNOWN && !packs_settled(b, t))
            return false;
    }
    return true;
}

// A strict pack must be as long as the longest: [A*],[A~] with a longer second input does not fit.
static bool check_strict(struct build *b)
{
    for (int i = 0; i < count_of(b, false); i++) {
        const struct pattern_tensor *t = pattern_at(b, false, i);
        int rank = shape_at(b, false, i).rank, want = 0;
        bool loose = false;
        if (!value_at(b->node, false, i) || t->host)
            continue;
        for (int k = 0; k < t->n_dims; k++) {
            loose = loose || t->dims[k].broadcast;
            want += is_pack(b, &t->dims[k]) ? b->length[t->dims[k].letters[0]] : 1;
        }
        if (!loose && rank != want && rank != NOT_KNOWN)
            return refuse(b, "tensors have different numbers of dimensions");
    }
    return true;
}

// ---- factors -----------------------------------------------------------------------------------

static bool make_factors(struct build *b)
{
    for (int i = 0; i < b->p->n_letters; i++) {
        const struct letter *l = &b->p->letters[i];
        int count = l->pack ? b->length[i] : 1;
        b->base[i] = b->n_factors;
        for (int k = 0; k < (count > 0 ? count : 0); k++) {
            if (b->n_factors == RULE_MAX_FACTORS)
                return refuse(b, "more factors than are followed");
            struct rule_factor *f = &b->factors[b->n_factors];
            struct str name = b->shapes_only ? STR("")
                              : l->pack
                                  ? tsr__arena_printf(b->arena, STR_FMT "%d", STR_ARG(l->name), k)
                                  : tsr__arena_str(b->arena, l->name);
            b->open[b->n_factors] = b->fixed[b->n_factors] = false;
            b->doubtful[b->n_factors++] = false;
            *f = (struct rule_factor){.name = name.p,
                                      .kind = l->kind,
                                      .combine = l->combine,
                                      .size = DIM_UNKNOWN,
                                      .unit = l->unit};
        }
    }
    return !b->arena->failed;
}

// Calls f for each dimension of tensor i that the pattern maps: the factors (count 0: size 1).
typedef bool (*dim_fn)(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                       const int *factors, int n, void *data);

static bool each_dim(struct build *b, bool out, int i, int rank, dim_fn f, void *data)
{
    const struct pattern_tensor *t = pattern_at(b, out, i);
    int missing = missing_dims(b, t, rank), total = 0, axis = 0;
    for (int k = 0; k < t->n_dims; k++)
        total += is_pack(b, &t->dims[k]) ? b->length[t->dims[k].letters[0]] : 1;
    for (int k = missing > 0 ? missing : 0; k < t->n_dims; k++) {
        const struct pattern_dim *d = &t->dims[k];
        int list[RULE_MAX_FACTORS], n = 0;
        if (is_pack(b, d)) {
            int length = b->length[d->letters[0]];
            int skip = d->broadcast && total > rank ? total - rank : 0; // aligned from the right
            for (int e = skip; e < length; e++) {
                int one = b->base[d->letters[0]] + e;
                if (!f(b, out, i, axis++, d, &one, 1, data))
                    return false;
            }
            continue;
        }
        for (; n < d->n && n < RULE_MAX_FACTORS; n++)
            list[n] = b->base[d->letters[n]];
        if (!f(b, out, i, axis++, d, list, n, data))
            return false;
    }
    return true;
}

// The rank that the pattern gives a tensor: for outputs whose shape is not declared.
// Dimensions of a tensor by its pattern; NOT_KNOWN if a pack has as many as nobody knows: [n c O*], O in no input.
static int pattern_rank(const struct build *b, bool out, int i)
{
    const struct pattern_tensor *t = pattern_at(b, out, i);
    int rank = 0;
    for (int k = 0; k < t->n_dims; k++) {
        int length = is_pack(b, &t->dims[k]) ? b->length[t->dims[k].letters[0]] : 1;
        if (length == NOT_KNOWN)
            return NOT_KNOWN;
        rank += length;
    }
    return rank;
}

// ---- sizes -------------------------------------------------------------------------------------

static tsr_dim dim_at(const struct build *b, bool out, int i, int axis)
{
    struct shape s = shape_at(b, out, i);
    return s.rank > axis ? s.dims[axis] : DIM_UNKNOWN;
}

// What two tensors say about one factor. Numbers win over symbols.
static bool join_size(struct build *b, int factor, tsr_dim d)
{
    tsr_dim *size = &b->factors[factor].size;
    if (!dim_known(d) || tsr__dim_equal(b->shapes->exprs, *size, d))
        return true;
    if (!dim_known(*size)) {
        *size = d;
        return true;
    }
    if (d.value >= 0 && size->value >= 0)
        return refuse(b, "the sizes of the tensors do not fit together");
    if (d.value >= 0)
        *size = d;
    return true;
}

static bool strict_size(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                        const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(b, out, i, axis);
    if (n == 0 && !d->any && here.value >= 0 && here.value != 1)
        return refuse(b, "a dimension that should be 1 is not");
    if (d->window && here.value >= 0) {
        int64_t *least = &b->factors[factors[0]].least;
        *least = *least == 0 || here.value < *least ? here.value : *least;
    }
    if (n != 1 || d->broadcast || d->window)
        return true;
    if (!out)
        *(dim_known(here) ? &b->fixed[factors[0]] : &b->open[factors[0]]) = true;
    return join_size(b, factors[0], here);
}

// Of an input whose rank is not known no size is: what is broadcast along its factors says nothing about them.
static void open_unread(struct build *b)
{
    for (int i = 0; i < count_of(b, false); i++) {
        const struct pattern_tensor *t = pattern_at(b, false, i);
        if (!value_at(b->node, false, i) || t->host || shape_at(b, false, i).rank != NOT_KNOWN)
            continue;
        for (int k = 0; k < t->n_dims; k++) {
            const struct pattern_dim *d = &t->dims[k];
            int length = d->n == 1 && is_pack(b, d) ? b->length[d->letters[0]] : 1;
            for (int e = 0; e < length && d->n == 1 && !d->broadcast && !d->window; e++)
                b->open[b->base[d->letters[0]] + e] = true;
        }
    }
}

// Broadcast dimensions, after the strict ones: a number above 1 is the size. A symbol is the size
// if no other tensor disagrees; else nobody knows before the run whether it is 1.
//
// Gemm, [m k],[k n],[m~ n~] -> [m n], of [? 6], [6 8], [1 8]: m stays open, for the first input has it and the third
// may be stretched along it. Of [n 6], [6 8], [s 8]: m is n whatever s is, and doubtful: nobody knows whether s is 1.
static bool loose_number(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                         const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(b, out, i, axis);
    if (n != 1 || !d->broadcast || here.value < 0 || here.value == 1)
        return true;
    if (b->open[factors[0]] && !b->fixed[factors[0]])
        return true; // engines take a skip that is longer than what it is added to
    return join_size(b, factors[0], here);
}

static bool loose_symbol(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                         const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(b, out, i, axis);
    if (n != 1 || !d->broadcast || here.value >= 0)
        return true;
    int f = factors[0];
    tsr_dim *size = &b->factors[f].size;
    if (b->open[f] && !b->fixed[f]) {
        b->doubtful[f] = true;
        return true;
    }
    if (!dim_known(*size) && !b->doubtful[f]) {
        *size = here;
        b->doubtful[f] = !dim_known(here);
        return true;
    }
    if (size->value >= 0) {
        b->doubtful[f] = true;
        return true;
    }
    struct exprs *x = b->shapes->exprs;
    struct expr both = tsr__expr_broadcast(x, tsr__expr_of(x, *size), tsr__expr_of(x, here));
    b->doubtful[f] = b->doubtful[f] || !both.known;
    if (!b->fixed[f])
        *size = tsr__expr_dim(x, both);
    return true;
}

// A broadcast factor that nobody has above 1 is 1, if all who have it are known.
static bool loose_one(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                      const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(b, out, i, axis);
    if (n != 1 || !d->broadcast || here.value != 1)
        return true;
    int f = factors[0];
    tsr_dim *size = &b->factors[f].size;
    if (!dim_known(*size) && !b->doubtful[f] && !b->open[f])
        *size = here;
    return true;
}

// A product with one unknown factor gives its size.
static bool product_size(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                         const int *factors, int n, void *data)
{
    (void)d;
    (void)data;
    struct exprs *x = b->shapes->exprs;
    struct expr rest = n < 2 ? expr_number(0) : tsr__expr_of(x, dim_at(b, out, i, axis));
    int open = NOT_KNOWN;
    if (n < 2 || !rest.known)
        return true;
    for (int k = 0; k < n; k++) {
        struct expr e = tsr__expr_of(x, b->factors[factors[k]].size);
        if (!e.known && open != NOT_KNOWN)
            return true;
        if (!e.known) {
            open = factors[k];
            continue;
        }
        struct expr less = tsr__expr_exact(x, rest, e);
        if (!less.known)
            return rest.poly || e.poly || refuse(b, "the sizes of the tensors do not fit together");
        rest = less;
    }
    if (open != NOT_KNOWN)
        b->factors[open].size = tsr__expr_dim(x, rest);
    return true;
}

static bool sizes_of_side(struct build *b, bool out, dim_fn f)
{
    for (int i = 0; i < count_of(b, out); i++) {
        if (!value_at(b->node, out, i) || pattern_at(b, out, i)->host)
            continue;
        int rank = shape_at(b, out, i).rank;
        if (rank != NOT_KNOWN && !each_dim(b, out, i, rank, f, NULL))
            return false;
    }
    return true;
}

static bool find_sizes(struct build *b)
{
    for (int i = 0; i < b->d->n_sizes; i++)
        for (int k = 0; k < b->p->n_letters; k++)
            if (str_eq(b->p->letters[k].name, b->d->sizes[i].letter))
                b->factors[b->base[k]].size = b->d->sizes[i].size;
    open_unread(b);
    bool ok = sizes_of_side(b, false, strict_size) && sizes_of_side(b, false, loose_number) &&
              sizes_of_side(b, false, loose_symbol) && sizes_of_side(b, false, loose_one) &&
              (b->shapes_only || sizes_of_side(b, true, strict_size)) &&
              sizes_of_side(b, false, product_size) &&
              (b->shapes_only || sizes_of_side(b, true, product_size));
    for (int i = 0; ok && i < b->p->n_rewrites; i++) { // bounds of a table must be numbers
        const struct rule_rewrite *w = &b->p->rewrites[i];
        bool table = w->kind == REWRITE_LOOKUP || w->kind == REWRITE_SCATTER;
        if (table && b->factors[b->base[w->factor]].size.value < 0)
            b->factors[b->base[w->factor]].kind = FACTOR_REP;
    }
    for (int i = 0; ok && i < b->n_factors; i++)
        if (b->doubtful[i] || (b->factors[i].kind == FACTOR_STAT && !b->expands))
            b->factors[i].kind = FACTOR_REP;
    return ok;
}

// ---- shapes alone ------------------------------------------------------------------------------

static tsr_dim size_of(const struct build *b, const int *factors, int n)
{
    struct exprs *x = b->shapes->exprs;
    struct expr e = expr_number(1);
    if (n == 1)
        return b->factors[factors[0]].size;
    for (int i = 0; i < n; i++)
        e = tsr__expr_mul(x, e, tsr__expr_of(x, b->factors[factors[i]].size));
    return tsr__expr_dim(x, e);
}

static bool read_size(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                      const int *factors, int n, void *data)
{
    (void)out;
    (void)i;
    ((tsr_dim *)data)[axis] = d->any ? DIM_UNKNOWN : size_of(b, factors, n);
    return true;
}

static void shape_by(struct shape_job *j, const struct pattern *p, const struct derivation *d)
{
    struct build b;
    b.arena = j->arena;
    b.node = j->n;
    b.shapes = j->s;
    b.p = p;
    b.d = d;
    b.n_factors = 0;
    b.whole = NULL;
    b.expands = false;
    b.shapes_only = true;
    for (b.n_kept = 0; b.n_kept < KEPT_INPUTS && b.n_kept < j->n_in; b.n_kept++)
        b.kept[b.n_kept] = tsr__job_in(j, b.n_kept);
    if (!fit_ranks(&b) || !check_strict(&b) || !make_factors(&b) || !find_sizes(&b))
        return;
    for (int i = 0; i < j->n_out; i++) {
        const struct pattern_tensor *t = pattern_at(&b, true, i);
        int rank = !t || t->host ? NOT_KNOWN : pattern_rank(&b, true, i);
        if (rank == NOT_KNOWN)
            continue;
        tsr_dim *dims = tsr__job_dims(j, rank);
        if (dims && each_dim(&b, true, i, rank, read_size, dims))
            tsr__job_set(j, i, rank, dims);
    }
}

// Two sizes of one broadcast dimension; false: they do not fit together.
static bool stretch_dim(struct exprs *x, tsr_dim *at, tsr_dim d)
{
    if (d.value == 1 || (at->value >= 0 && at->value != 1 && d.value < 0))
        return true;
    if (at->value == 1 || (d.value >= 0 && at->value < 0))
        *at = d;
    else if (at->value >= 0 && d.value >= 0)
        return at->value == d.value;
    else // unknown: nobody knows before the run which of them is 1
        *at = tsr__expr_dim(x, tsr__expr_broadcast(x, tsr__expr_of(x, *at), tsr__expr_of(x, d)));
    return true;
}

// What shape_by does for the most common rule of all, in one walk.
void tsr__find_stretched(struct shape_job *j)
{
    struct shape first = tsr__job_in(j, 0);
    int rank = first.rank;
    bool same = true;
    for (int i = 0; i < j->n_in; i++) {
        struct shape s = tsr__job_in(j, i);
        if (s.rank < 0)
            return;
        same = same && s.dims == first.dims && s.rank == first.rank;
        rank = s.rank > rank ? s.rank : rank;
    }
    tsr_dim *dims = same ? NULL : tsr__job_dims(j, rank);
    for (int d = 0; dims && d < rank; d++) {
        dims[d] = (tsr_dim){1, ""};
        for (int i = 0; i < j->n_in; i++) {
            struct shape s = tsr__job_in(j, i);
            int k = d - (rank - s.rank);
            if (k >= 0 && !stretch_dim(j->x, &dims[d], s.dims[k]))
                return;
        }
    }
    for (int i = 0; i < j->n_out; i++) {
        if (same)
            tsr__job_like(j, i, 0);
        else
            tsr__job_set(j, i, rank, dims);
    }
}

void tsr__job_letters(struct shape_job *j)
{
    const char *text = j->row->rule;
    struct derivation d; // large: not cleared
    d.n_sizes = 0;
    if (j->row->derive) {
        d.arena = NULL;
        d.node = j->n;
        d.shapes = j->s;
        d.text = text;
        d.whole = NULL;
        d.n = 0;
        j->row->derive(&d);
        text = d.text;
    }
    const struct pattern *p = text ? tsr__pattern_of(j->s, text) : NULL;
    for (int i = 0; p && p->same && i < j->n_out; i++)
        tsr__job_like(j, i, 0);
    if (p && p->stretch)
        tsr__find_stretched(j);
    else if (p && !p->same)
        shape_by(j, p, &d);
}

// ---- the instance ------------------------------------------------------------------------------

static bool map_dim(struct build *b, bool out, int i, int axis, const struct pattern_dim *d,
                    const int *factors, int n, void *data)
{
    struct rule_dim *dims = data;
    bool one = d->broadcast && dim_at(b, out, i, axis).value == 1;
    int *copy = ARENA_ARRAY(b->arena, int, (size_t)n + 1);
    if (!copy)
        return false;
    memcpy(copy, factors, (size_t)n * sizeof(int));
    dims[axis] = (struct rule_dim){.factors = copy, .n = one ? 0 : n, .window = d->window};
    return true;
}

static bool make_tensor(struct build *b, bool out, int i, struct rule_tensor *t)
{
    const struct pattern_tensor *p = pattern_at(b, out, i);
    if (!value_at(b->node, out, i)) {
        t->absent = true;
        return true;
    }
    int rank = shape_at(b, out, i).rank;
    t->host = p->host;
    if (rank == NOT_KNOWN)
        rank = p->host ? 0 : pattern_rank(b, out, i);
    t->rank = rank;
    if (rank == NOT_KNOWN)
        return true; // the caller refuses
    struct rule_dim *dims = ARENA_ARRAY(b->arena, struct rule_dim, (size_t)rank + 1);
    t->dims = dims;
    return dims && (t->host || each_dim(b, out, i, rank, map_dim, dims));
}

static bool make_side(struct build *b, bool out, const struct rule_tensor **list, int *n)
{
    int count = count_of(b, out);
    struct rule_tensor *t = ARENA_ARRAY(b->arena, struct rule_tensor, (size_t)count + 1);
    for (int i = 0; t && i < count; i++)
        if (!make_tensor(b, out, i, &t[i]))
            return false;
        else if (t[i].rank < 0) // dimensions that only this one has
            return refuse(b, "the shape of an output is not known");
    *list = t;
    *n = count;
    return t != NULL;
}

static bool make_rewrites(struct build *b, struct rule *r)
{
    struct rule_rewrite *w =
        ARENA_ARRAY(b->arena, struct rule_rewrite, (size_t)b->p->n_rewrites + 1);
    for (int i = 0; w && i < b->p->n_rewrites; i++) {
        w[r->n_rewrites] = b->p->rewrites[i];
        if (w[r->n_rewrites].name)
            w[r->n_rewrites].name = tsr__arena_str(b->arena, str_of(w[r->n_rewrites].name)).p;
        if (w[r->n_rewrites].words)
            w[r->n_rewrites].words = tsr__arena_str(b->arena, str_of(w[r->n_rewrites].words)).p;
        if (w[r->n_rewrites].factor >= 0)
            w[r->n_rewrites].factor = b->base[w[r->n_rewrites].factor];
        if (w[r->n_rewrites].index < 0 || value_at(b->node, false, w[r->n_rewrites].index))
            r->n_rewrites++; // not for an input that is left out
    }
    r->rewrites = w;
    return w != NULL;
}

static const struct rule_list *copy_lists(struct build *b)
{
    struct rule_list *l = ARENA_ARRAY(b->arena, struct rule_list, (size_t)b->p->n_lists + 1);
    for (int i = 0; l && i < b->p->n_lists; i++) {
        const struct rule_list *from = &b->p->lists[i];
        int64_t *values = ARENA_ARRAY(b->arena, int64_t, (size_t)from->n + 1);
        struct rule_put *puts = ARENA_ARRAY(b->arena, struct rule_put, (size_t)from->n_puts + 1);
        if (!values || !puts)
            return NULL;
        if (from->n)
            memcpy(values, from->values, (size_t)from->n * sizeof(*values));
        if (from->n_puts)
            memcpy(puts, from->puts, (size_t)from->n_puts * sizeof(*puts));
        for (int k = 0; k < from->n_puts; k++)
            if (puts[k].factor >= 0)
                puts[k].factor = b->base[puts[k].factor];
        l[i] = *from;
        l[i].name = from->name ? tsr__arena_str(b->arena, str_of(from->name)).p : NULL;
        l[i].values = values;
        l[i].puts = puts;
    }
    return l;
}

static bool make_windows(struct build *b, struct rule *r)
{
    struct rule_window *w = ARENA_ARRAY(b->arena, struct rule_window, (size_t)b->p->n_windows + 1);
    for (int i = 0; w && i < b->p->n_windows; i++) {
        w[i] = b->p->windows[i];
        w[i].factor = b->base[w[i].factor];
    }
    r->windows = w;
    r->n_windows = b->p->n_windows;
    r->lists = copy_lists(b);
    r->n_lists = b->p->n_lists;
    struct rule_trim *t = ARENA_ARRAY(b->arena, struct rule_trim, (size_t)b->p->n_trims + 1);
    if (t && b->p->n_trims)
        memcpy(t, b->p->trims, (size_t)b->p->n_trims * sizeof(*t));
    r->trims = t;
    r->n_trims = b->p->n_trims;
    return w && t && r->lists;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

// Elements i whose place i * per lies in the window. They reach from (first) - (reach - 1 + shift) on.
static struct window_part spread_part(const struct rule_window *w, struct window_part p)
{
    int64_t low = p.a * w->step + w->shift, high = (p.b - 1) * w->step + w->shift + w->reach - 1;
    int64_t start = -floor_div(-low, w->per), stop = floor_div(high, w->per) + 1;
    p.start = start < 0 ? 0 : start > w->from ? w->from : start;
    p.stop = stop > w->from ? w->from : stop < p.start ? p.start : stop;
    p.before = p.a + w->shift + w->reach - 1 - p.start * w->per;
    p.after = (p.stop - p.start - 1) * w->per + w->reach - p.before - (p.b - p.a);
    return p;
}

struct window_part tsr__window_part(const struct rule_window *w, int64_t n, int64_t j)
{
    struct window_part p = {.a = j * w->to / n, .b = (j + 1) * w->to / n};
    if (w->per)
        return spread_part(w, p);
    int64_t first = w->step > 0 ? p.a : p.b - 1, last = w->step > 0 ? p.b - 1 : p.a;
    int64_t start = first * w->step + w->shift, stop = last * w->step + w->shift + w->reach;
    int64_t low = start < 0 ? 0 : start, high = stop > w->from ? w->from : stop;
    int64_t outside = start < 0 ? -start : 0;
    p.before = outside < stop - start ? outside : stop - start;
    p.start = low > w->from ? w->from : low;
    p.stop = high < p.start ? p.start : high;
    p.after = stop - start - p.before - (p.stop - p.start);
    return p;
}

static bool build_rule(struct build *b, struct rule *r)
{
    if (!fit_ranks(b) || !check_strict(b) || !make_factors(b) || !find_sizes(b) ||
        !make_side(b, false, &r->inputs, &r->n_inputs) ||
        !make_side(b, true, &r->outputs, &r->n_outputs) || !make_rewrites(b, r) ||
        !make_windows(b, r))
        return false;
    struct rule_factor *f = ARENA_ARRAY(b->arena, struct rule_factor, (size_t)b->n_factors + 1);
    if (!f)
        return false;
    memcpy(f, b->factors, (size_t)b->n_factors * sizeof(*f));
    r->factors = f;
    r->n_factors = b->n_factors;
    return true;
}

static const struct rule *whole_rule(struct arena *a, const char *why)
{
    struct rule *r = ARENA_NEW(a, struct rule);
    if (r)
        r->whole = why;
    return r;
}

static const struct rule *open_rule(struct arena *a)
{
    struct rule *r = ARENA_NEW(a, struct rule);
    if (r) {
        r->whole = "there is no rule for this operator (of this opset): give all its tensors "
                   "shardings, or a rule (--rules)";
        r->open = true;
    }
    return r;
}

// The same of a node that may draw random numbers; those with a seed are the same everywhere.
static const struct rule *single_rule(struct arena *a, const tsr_node *n, const char *why)
{
    struct rule *r = ARENA_NEW(a, struct rule);
    if (r) {
        r->whole = why;
        r->single = tsr__node_draws(n);
    }
    return r;
}

static bool has_subgraphs(const tsr_node *n)
{
    for (size_t i = 0; i < tsr_node_attr_count(n); i++)
        if (tsr_attr_graph_count(tsr_node_attr(n, i)))
            return true;
    return false;
}

static const struct rule *instantiate(struct arena *a, struct arena *scratch,
                                      const struct derivation *d, bool expands)
{
    const char *wrong;
    struct rule *r = ARENA_NEW(a, struct rule);
    struct build *b = ARENA_NEW(scratch, struct build);
    const struct pattern *p = NULL;
    if (d->text && !d->n_sizes)
        p = tsr__pattern_of(d->shapes, d->text);
    if (d->text && !p)
        p = tsr__pattern_parse(scratch, str_of(d->text), &wrong);
    if (!r || !b || scratch->failed)
        return NULL;
    if (!p)
        return whole_rule(a, "the rule of this node could not be built");
    b->arena = a;
    b->node = d->node;
    b->shapes = d->shapes;
    b->p = p;
    b->d = d;
    b->expands = expands;
    if (build_rule(b, r))
        return r;
    return a->failed ? NULL : whole_rule(a, b->whole);
}

// The rule that a derive function makes of the row.
static const struct rule *derived(struct arena *a, const tsr_node *n, const struct shapes *s,
                                  const struct op_row *row, derive_fn derive)
{
    // Derivation, parsed text and work table are large and gone after this: not in the caller's arena.
    struct arena scratch;
    tsr__arena_init(&scratch, a->session);
    struct derivation d; // large: not cleared
    d.arena = &scratch;
    d.node = n;
    d.shapes = s;
    d.text = row->rule;
    d.whole = NULL;
    d.n_sizes = 0;
    d.n = 0;
    if (derive)
        derive(&d);
    const struct rule *r =
        d.whole ? single_rule(a, n, d.whole) : instantiate(a, &scratch, &d, row->expand);
    tsr__arena_free(&scratch);
    return r;
}

const struct rule *tsr__rule_other(struct arena *a, const tsr_node *n, const struct shapes *s)
{
    const struct op_row *row = tsr__row_of(s, n);
    const struct rule *r = row && row->other ? derived(a, n, s, row, row->other) : NULL;
    return r && !r->whole ? r : NULL;
}

const struct rule *tsr__rule_of(struct arena *a, const tsr_node *n, const struct shapes *s)
{
    const struct op_row *row = tsr__row_of(s, n);
    struct control control;
    static const char uncut[] = "nothing in its bodies can be cut";
    if (tsr__control_of(n, &control)) // what draws in its bodies does so on one of its devices
        return whole_rule(a, uncut);
    if (has_subgraphs(n) || (row && row->bodies))
        return single_rule(a, n, uncut);
    const char *why = NULL;
    if (!row && tsr__is_call(n, &why))
        return single_rule(a, n, why ? why : "calls in calls are too deep");
    if (!row)
        return open_rule(a);
    if (row->whole)
        return single_rule(a, n, row->whole);
    return derived(a, n, s, row, row->derive);
}

const char *tsr__rule_stays(const struct shapes *s, const tsr_node *n)
{
    for (int out = 0; out < 2; out++)
        for (int i = 0; i < (int)(out ? tsr_node_output_count(n) : tsr_node_input_count(n)); i++) {
            const tsr_value *v = value_at(n, out, i);
            if (!v || (!out && tsr__value_constant_tensor(v)))
                continue;
            tsr_dtype t = tsr__shapes_piece(s, v).dtype;
            if (t == TSR_FLOAT8E8M0) // seen with 1.31: no operator of our own may take it
                return "ONNX Runtime gives no float8e8m0 to operators that move values";
            if (t != TSR_UNDEFINED && t != TSR_STRING && tsr_dtype_bits(t) < 8)
                return "elements of less than a byte are not moved between devices";
        }
    return NULL;
}
