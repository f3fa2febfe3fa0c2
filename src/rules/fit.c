// SPDX-License-Identifier: Apache-2.0
// fit.c - matches the pattern of a rule with the shapes of a node.
//
// Ranks give the lengths of packs, and dimensions give the sizes of factors. A factor that may
// differ between tensors (two symbols of which one may be broadcast) is not sharded. If the shapes
// do not fit the pattern, the node is not sharded.
//
// MatMul, "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", of [2 3 4 5] and [5 6]:
//
//   lengths   the first input has rank 4 = B + 2, so B has 2 dimensions; in the second it has none,
//             which is valid for a broadcast pack
//   factors   B0 = 2, B1 = 3, m = 4, k = 5 (both inputs agree), n = 6
//
// If the second input were [7 6], k would be 5 and 7: the pattern does not fit.
#include "rules/fit.h"

bool tsr__fit_refuse(struct fit *fit, const char *why)
{
    if (!fit->whole)
        fit->whole = why;
    return false;
}

// ---- tensors -----------------------------------------------------------------------------------

static int count_of(const struct fit *fit, enum side side)
{
    return (int)side_count(fit->node, side);
}

static const tsr_value *fit_value(const struct fit *fit, enum side side, int i)
{
    return value_at(fit->node, side, (size_t)i);
}

// Returns the pattern of tensor i. The last pattern of a side may repeat: "[A~]… -> [A*]".
static const struct pattern_tensor *tensor_at(const struct pattern_tensor *list, int n, int i)
{
    if (i < n)
        return &list[i];
    return n && list[n - 1].variadic ? &list[n - 1] : NULL;
}

const struct pattern_tensor *tsr__fit_pattern(const struct fit *fit, enum side side, int i)
{
    if (side == SIDE_OUT)
        return tensor_at(fit->pattern->outputs, fit->pattern->n_outputs, i);
    return tensor_at(fit->pattern->inputs, fit->pattern->n_inputs, i);
}

struct shape tsr__fit_shape(const struct fit *fit, enum side side, int i)
{
    if (side == SIDE_IN && i < fit->n_kept)
        return fit->kept[i];
    return tsr__shapes_element(fit->shapes, fit_value(fit, side, i));
}

static bool is_pack(const struct fit *fit, const struct pattern_dim *dim)
{
    return dim->n == 1 && fit->pattern->letters[dim->letters[0]].pack;
}

// Returns the number of dimensions that one dimension of the pattern matches.
static int length_of(const struct fit *fit, const struct pattern_dim *dim)
{
    return is_pack(fit, dim) ? fit->length[dim->letters[0]] : 1;
}

// True if input i is given, is not a small control input, and has an unknown rank.
static bool is_unread(const struct fit *fit, int i)
{
    return fit_value(fit, SIDE_IN, i) && !tsr__fit_pattern(fit, SIDE_IN, i)->host &&
           tsr__fit_shape(fit, SIDE_IN, i).rank == FIT_UNKNOWN;
}

// Returns the number of leading dimensions of the pattern that a tensor of this rank lacks. Only
// broadcast dimensions that are not packs may be missing: [m~ n~] given as [n~]. Negative: another
// dimension is missing, or the rank is larger than the pattern.
static int missing_dims(const struct fit *fit, const struct pattern_tensor *tensor, int rank)
{
    int missing = tensor->n_dims - rank;
    for (int i = 0; i < missing; i++)
        if (!tensor->dims[i].broadcast || is_pack(fit, &tensor->dims[i]))
            return -1;
    return missing;
}

// ---- lengths of packs --------------------------------------------------------------------------

// Finds the pack whose length this tensor decides: the first pack whose length is unknown or that
// broadcasts. *open is NULL if there is none. *fixed: number of the other dimensions. False: the
// length of a second pack is also unknown, so neither can be decided.
static bool open_pack(struct fit *fit, const struct pattern_tensor *tensor,
                      const struct pattern_dim **open, int *fixed)
{
    *open = NULL;
    *fixed = 0;
    for (int i = 0; i < tensor->n_dims; i++) {
        const struct pattern_dim *dim = &tensor->dims[i];
        int length = length_of(fit, dim);
        if (is_pack(fit, dim) && !*open && (length == FIT_UNKNOWN || dim->broadcast))
            *open = dim;
        else if (length == FIT_UNKNOWN)
            return tsr__fit_refuse(fit, "the rule leaves the number of dimensions open");
        else
            *fixed += length;
    }
    return true;
}

// Checks the rank, and gives the rest of it to the pack that open_pack finds. Example: in [B~ m k]
// of rank 4, m and k are 2 dimensions, so B has 2. A broadcast pack may be shorter in this tensor
// than in others, so it only increases a known length; for any other pack, a known length must
// match.
static bool fit_rank(struct fit *fit, const struct pattern_tensor *tensor, int rank)
{
    const struct pattern_dim *open;
    int fixed;
    if (!open_pack(fit, tensor, &open, &fixed))
        return false;
    if (!open)
        return (rank == fixed || missing_dims(fit, tensor, rank) > 0) ||
               tsr__fit_refuse(fit,
                               "a tensor has another number of dimensions than the rule expects");
    int letter = open->letters[0], length = rank - fixed, known = fit->length[letter];
    if (length < 0)
        return tsr__fit_refuse(fit, "a tensor has fewer dimensions than the rule expects");
    if (!open->broadcast && known != FIT_UNKNOWN && known != length)
        return tsr__fit_refuse(fit, "tensors have different numbers of dimensions");
    fit->length[letter] = (int)int64_max(length, known);
    fit->strict[letter] = fit->strict[letter] || !open->broadcast;
    return true;
}

// Returns false if the tensor has a pack whose length is known only from broadcast inputs: an input
// of unknown rank may make it longer.
static bool packs_settled(struct fit *fit, const struct pattern_tensor *tensor)
{
    for (int i = 0; i < tensor->n_dims; i++) {
        if (!is_pack(fit, &tensor->dims[i]))
            continue;
        int letter = tensor->dims[i].letters[0];
        if (fit->length[letter] != FIT_UNKNOWN && !fit->strict[letter])
            return tsr__fit_refuse(
                fit, "the number of dimensions of an input is unknown: declare its shape");
    }
    return true;
}

static bool may_stretch(const struct pattern_tensor *tensor)
{
    for (int i = 0; i < tensor->n_dims; i++)
        if (tensor->dims[i].broadcast)
            return true;
    return false;
}

// Finds lengths of packs from tensor i. Outputs of unknown rank are skipped. If only shapes are
// needed, inputs of unknown rank that do not broadcast are also skipped: other inputs may give the
// lengths. False: the tensor does not fit.
static bool fit_tensor(struct fit *fit, enum side side, int i)
{
    static const char *const too_many[] = {
        [SIDE_IN] = "more inputs than the rule has", [SIDE_OUT] = "more outputs than the rule has"};
    const struct pattern_tensor *tensor = tsr__fit_pattern(fit, side, i);
    if (!fit_value(fit, side, i)) {
        if (side == SIDE_IN && tensor && !tensor->optional)
            return tsr__fit_refuse(fit, "an input is missing");
        return true;
    }
    if (!tensor)
        return tsr__fit_refuse(fit, too_many[side]);
    int rank = tsr__fit_shape(fit, side, i).rank;
    if (tensor->host || (side == SIDE_OUT && rank == FIT_UNKNOWN))
        return true;
    if (rank == FIT_UNKNOWN && fit->shapes_only && !may_stretch(tensor))
        return true;
    if (rank == FIT_UNKNOWN)
        return tsr__fit_refuse(
            fit, "the number of dimensions of an input is unknown: declare its shape");
    if (rank > RULE_MAX_RANK)
        return tsr__fit_refuse(fit, "a tensor has more dimensions than are supported");
    return fit_rank(fit, tensor, rank);
}

static bool fit_side(struct fit *fit, enum side side)
{
    for (int i = 0; i < count_of(fit, side); i++)
        if (!fit_tensor(fit, side, i))
            return false;
    return true;
}

// Finds the lengths of all packs. Broadcast inputs may come in any order, because they only
// increase lengths. Outputs give the lengths of packs that no input has; for other packs the
// outputs must agree with the inputs.
static bool fit_ranks(struct fit *fit)
{
    for (int i = 0; i < fit->pattern->n_letters; i++) {
        fit->length[i] = FIT_UNKNOWN;
        fit->strict[i] = false;
    }
    if (!fit_side(fit, SIDE_IN) || (!fit->shapes_only && !fit_side(fit, SIDE_OUT)))
        return false;
    for (int i = 0; i < count_of(fit, SIDE_IN); i++)
        if (is_unread(fit, i) && !packs_settled(fit, tsr__fit_pattern(fit, SIDE_IN, i)))
            return false;
    return true;
}

// Checks that a pack that does not broadcast has the full length: [A*],[A~] with a longer second
// input does not fit.
static bool check_strict(struct fit *fit)
{
    for (int i = 0; i < count_of(fit, SIDE_IN); i++) {
        const struct pattern_tensor *tensor = tsr__fit_pattern(fit, SIDE_IN, i);
        int rank = tsr__fit_shape(fit, SIDE_IN, i).rank, want = 0;
        if (!fit_value(fit, SIDE_IN, i) || tensor->host)
            continue;
        for (int k = 0; k < tensor->n_dims; k++)
            want += length_of(fit, &tensor->dims[k]);
        if (!may_stretch(tensor) && rank != want && rank != FIT_UNKNOWN)
            return tsr__fit_refuse(fit, "tensors have different numbers of dimensions");
    }
    return true;
}

int tsr__fit_rank(const struct fit *fit, enum side side, int i)
{
    const struct pattern_tensor *tensor = tsr__fit_pattern(fit, side, i);
    int rank = 0;
    for (int k = 0; k < tensor->n_dims; k++) {
        int length = length_of(fit, &tensor->dims[k]);
        if (length == FIT_UNKNOWN) // [n c O*] with O in no input
            return FIT_UNKNOWN;
        rank += length;
    }
    return rank;
}

// ---- factors -----------------------------------------------------------------------------------

// Returns the name of element k of a letter: A1 of a pack, m of a single letter. If only shapes are
// needed, factors have no names.
static struct str factor_name(struct fit *fit, const struct letter *letter, int k)
{
    if (fit->shapes_only)
        return STR("");
    if (letter->pack)
        return tsr__arena_printf(fit->arena, STR_FMT "%d", STR_ARG(letter->name), k);
    return tsr__arena_str(fit->arena, letter->name);
}

// Creates the factors. A letter is one factor; a pack of length 2 is two, A0 and A1. base[A] is the
// first of them.
static bool make_factors(struct fit *fit)
{
    for (int i = 0; i < fit->pattern->n_letters; i++) {
        const struct letter *letter = &fit->pattern->letters[i];
        int count = letter->pack ? fit->length[i] : 1;
        fit->base[i] = fit->n_factors;
        for (int k = 0; k < count; k++) {
            if (fit->n_factors == RULE_MAX_FACTORS)
                return tsr__fit_refuse(fit, "more factors than are supported");
            int factor = fit->n_factors++;
            fit->open[factor] = fit->fixed[factor] = fit->doubtful[factor] = false;
            fit->factors[factor] = (struct rule_factor){.name = factor_name(fit, letter, k).p,
                                                        .kind = letter->kind,
                                                        .combine = letter->combine,
                                                        .size = DIM_UNKNOWN,
                                                        .unit = letter->unit};
        }
    }
    return !fit->arena->failed;
}

// Visits the dimensions of a pack except the first `skip`, which the tensor does not have. Packs
// are aligned from the right: with [2 3 4] and [4], the first is A0 A1 A2, the second A2.
static bool each_of_pack(struct fit_dim *dim, int skip, fit_visit visit)
{
    int letter = dim->pattern->letters[0];
    for (int k = skip; k < dim->fit->length[letter]; k++) {
        int factor = dim->fit->base[letter] + k;
        dim->factors = &factor;
        dim->n = 1;
        if (!visit(dim))
            return false;
        dim->axis++;
    }
    return true;
}

// Visits the dimensions of a tensor, except those that it lacks. Example: if [m~ n~] has rank 1,
// only n is visited, at axis 0. If B stands for 2 dimensions and [B~ m k] has rank 3, B0 is
// skipped, and B1, m, k are axes 0, 1, 2.
bool tsr__fit_each(struct fit *fit, enum side side, int i, int rank, fit_visit visit, void *data)
{
    const struct pattern_tensor *tensor = tsr__fit_pattern(fit, side, i);
    struct fit_dim dim = {.fit = fit, .side = side, .tensor = i, .data = data};
    int total = 0;
    for (int k = 0; k < tensor->n_dims; k++)
        total += length_of(fit, &tensor->dims[k]);
    for (int k = (int)int64_max(missing_dims(fit, tensor, rank), 0); k < tensor->n_dims; k++) {
        dim.pattern = &tensor->dims[k];
        if (is_pack(fit, dim.pattern)) {
            int skip = dim.pattern->broadcast ? (int)int64_max(total - rank, 0) : 0;
            if (!each_of_pack(&dim, skip, visit))
                return false;
            continue;
        }
        int factors[RULE_MAX_FACTORS], n = (int)int64_min(dim.pattern->n, RULE_MAX_FACTORS);
        for (int factor = 0; factor < n; factor++)
            factors[factor] = fit->base[dim.pattern->letters[factor]];
        dim.factors = factors;
        dim.n = n;
        if (!visit(&dim))
            return false;
        dim.axis++;
    }
    return true;
}

// ---- sizes -------------------------------------------------------------------------------------

tsr_dim tsr__fit_here(const struct fit_dim *dim)
{
    return dim_at(tsr__fit_shape(dim->fit, dim->side, dim->tensor), dim->axis);
}

// Merges the sizes that two tensors give one factor. Numbers have precedence over symbols. False:
// two numbers differ.
static bool join_size(struct fit *fit, int factor, tsr_dim dim)
{
    tsr_dim *size = &fit->factors[factor].size;
    if (!dim_known(dim) || tsr__dim_equal(fit->shapes->exprs, *size, dim))
        return true;
    if (!dim_known(*size)) {
        *size = dim;
        return true;
    }
    if (dim.value >= 0 && size->value >= 0)
        return tsr__fit_refuse(fit, "the sizes of the tensors do not fit together");
    if (dim.value >= 0)
        *size = dim;
    return true;
}

// Visitor: a dimension with one factor that is neither broadcast nor a window gives the size of the
// factor. A window only lowers `least`. A dimension without factors must be 1, unless it is "_".
static bool strict_size(const struct fit_dim *dim)
{
    struct fit *fit = dim->fit;
    tsr_dim here = tsr__fit_here(dim);
    if (dim->n == 0 && !dim->pattern->any && here.value >= 0 && here.value != 1)
        return tsr__fit_refuse(fit, "a dimension is not 1, but the rule requires 1");
    if (dim->pattern->window && here.value >= 0) {
        int64_t *least = &fit->factors[dim->factors[0]].least;
        if (*least == 0 || here.value < *least)
            *least = here.value;
    }
    if (dim->n != 1 || dim->pattern->broadcast || dim->pattern->window)
        return true;
    if (dim->side == SIDE_IN && dim_known(here))
        fit->fixed[dim->factors[0]] = true;
    else if (dim->side == SIDE_IN)
        fit->open[dim->factors[0]] = true;
    return join_size(fit, dim->factors[0], here);
}

// Marks the factors of inputs of unknown rank as `open`: their sizes must not be taken from inputs
// that broadcast.
static void open_unread(struct fit *fit)
{
    for (int i = 0; i < count_of(fit, SIDE_IN); i++) {
        if (!is_unread(fit, i))
            continue;
        const struct pattern_tensor *tensor = tsr__fit_pattern(fit, SIDE_IN, i);
        for (int k = 0; k < tensor->n_dims; k++) {
            const struct pattern_dim *dim = &tensor->dims[k];
            if (dim->n != 1 || dim->broadcast || dim->window)
                continue;
            for (int e = 0; e < length_of(fit, dim); e++)
                fit->open[fit->base[dim->letters[0]] + e] = true;
        }
    }
}

// Visitor for broadcast dimensions, which runs after strict_size: a number other than 1 is the
// factor's size.
static bool loose_number(const struct fit_dim *dim)
{
    struct fit *fit = dim->fit;
    tsr_dim here = tsr__fit_here(dim);
    if (dim->n != 1 || !dim->pattern->broadcast || here.value < 0 || here.value == 1)
        return true;
    if (fit->open[dim->factors[0]] && !fit->fixed[dim->factors[0]])
        return true; // e.g. SkipLayerNormalization: a skip may be longer than the input
    return join_size(fit, dim->factors[0], here);
}

// Visitor for broadcast symbols, which runs after loose_number. If the factor has no size yet, it
// gets the symbol. If the size is a number, the factor becomes doubtful, because the symbol may be
// 1 at run time. Two symbols are merged, and the factor is doubtful if they cannot be.
static bool loose_symbol(const struct fit_dim *dim)
{
    struct fit *fit = dim->fit;
    tsr_dim here = tsr__fit_here(dim);
    if (dim->n != 1 || !dim->pattern->broadcast || here.value >= 0)
        return true;
    int factor = dim->factors[0];
    tsr_dim *size = &fit->factors[factor].size;
    if (fit->open[factor] && !fit->fixed[factor]) {
        fit->doubtful[factor] = true;
        return true;
    }
    if (!dim_known(*size) && !fit->doubtful[factor]) {
        *size = here;
        fit->doubtful[factor] = !dim_known(here);
        return true;
    }
    if (size->value >= 0) {
        fit->doubtful[factor] = true;
        return true;
    }
    struct exprs *exprs = fit->shapes->exprs;
    struct expr both =
        tsr__expr_broadcast(exprs, tsr__expr_of(exprs, *size), tsr__expr_of(exprs, here));
    fit->doubtful[factor] = fit->doubtful[factor] || !both.known;
    if (!fit->fixed[factor])
        *size = tsr__expr_dim(exprs, both);
    return true;
}

// Visitor: a broadcast factor is 1 if the sizes of all inputs that have it are known and none is
// larger than 1.
static bool loose_one(const struct fit_dim *dim)
{
    struct fit *fit = dim->fit;
    tsr_dim here = tsr__fit_here(dim);
    if (dim->n != 1 || !dim->pattern->broadcast || here.value != 1)
        return true;
    int factor = dim->factors[0];
    tsr_dim *size = &fit->factors[factor].size;
    if (!dim_known(*size) && !fit->doubtful[factor] && !fit->open[factor])
        *size = here;
    return true;
}

// Visitor for products of factors. The size of a product gives that of one unknown factor: (h d) =
// 64 with h = 8 gives d = 8. If all sizes are numbers, they must match: 24 is not (n a) with n = 6
// and a = 2. Symbols that do not match are accepted: a scale [1] for channels `c` may be a single
// scale for all channels.
static bool product_size(const struct fit_dim *dim)
{
    struct fit *fit = dim->fit;
    struct exprs *exprs = fit->shapes->exprs;
    static const char unfit[] = "the sizes of the tensors do not fit together";
    if (dim->n < 2)
        return true;
    struct expr rest = tsr__expr_of(exprs, tsr__fit_here(dim));
    if (!rest.known)
        return true;
    int open = FIT_UNKNOWN;
    for (int k = 0; k < dim->n; k++) {
        struct expr size = tsr__expr_of(exprs, fit->factors[dim->factors[k]].size);
        if (!size.known && open != FIT_UNKNOWN)
            return true;
        if (!size.known) {
            open = dim->factors[k];
            continue;
        }
        if (!rest.poly && rest.number == 0 && !size.poly && size.number == 0)
            return true; // the other factors may have any size
        struct expr less = tsr__expr_exact(exprs, rest, size);
        if (!less.known)
            return rest.poly || size.poly || tsr__fit_refuse(fit, unfit);
        rest = less;
    }
    if (open != FIT_UNKNOWN)
        fit->factors[open].size = tsr__expr_dim(exprs, rest);
    else if (!rest.poly && rest.number != 1)
        return tsr__fit_refuse(fit, unfit);
    return true;
}

// Visits all dimensions of all tensors of one side whose ranks are known.
static bool sizes_of_side(struct fit *fit, enum side side, fit_visit visit)
{
    for (int i = 0; i < count_of(fit, side); i++) {
        if (!fit_value(fit, side, i) || tsr__fit_pattern(fit, side, i)->host)
            continue;
        int rank = tsr__fit_shape(fit, side, i).rank;
        if (rank != FIT_UNKNOWN && !tsr__fit_each(fit, side, i, rank, visit, NULL))
            return false;
    }
    return true;
}

// Finds the sizes of factors from tensors. Dimensions that cannot be broadcast come first, because
// their sizes are sure. Products are last, because they need the other factors. Outputs are checked
// unless their shapes are being inferred.
static bool sizes_of_tensors(struct fit *fit)
{
    static const fit_visit inputs_first[] = {strict_size, loose_number, loose_symbol, loose_one};
    for (size_t i = 0; i < TSR_COUNT(inputs_first); i++)
        if (!sizes_of_side(fit, SIDE_IN, inputs_first[i]))
            return false;
    if (!fit->shapes_only && !sizes_of_side(fit, SIDE_OUT, strict_size))
        return false;
    if (!sizes_of_side(fit, SIDE_IN, product_size))
        return false;
    return fit->shapes_only || sizes_of_side(fit, SIDE_OUT, product_size);
}

// Finds the sizes of all factors: first those that the derivation knows, then those of the tensors.
// Three kinds of factors are not sharded: those that may be 1 at run time (`doubtful`), indexed
// factors of unknown size, and `stat` factors if the operator has no expansion.
static bool find_sizes(struct fit *fit)
{
    for (int i = 0; i < fit->derivation->n_sizes; i++)
        for (int k = 0; k < fit->pattern->n_letters; k++)
            if (str_eq(fit->pattern->letters[k].name, fit->derivation->sizes[i].letter))
                fit->factors[fit->base[k]].size = fit->derivation->sizes[i].size;
    open_unread(fit);
    if (!sizes_of_tensors(fit))
        return false;
    for (int i = 0; i < fit->pattern->n_rewrites; i++) { // bounds of a table must be known
        const struct rule_rewrite *rewrite = &fit->pattern->rewrites[i];
        bool table = rewrite->kind == REWRITE_LOOKUP || rewrite->kind == REWRITE_SCATTER ||
                     rewrite->kind == REWRITE_ROUTE;
        if (table && fit->factors[fit->base[rewrite->factor]].size.value < 0)
            fit->factors[fit->base[rewrite->factor]].kind = FACTOR_REP;
    }
    for (int i = 0; i < fit->n_factors; i++)
        if (fit->doubtful[i] || (fit->factors[i].kind == FACTOR_STAT && !fit->expands))
            fit->factors[i].kind = FACTOR_REP;
    return true;
}

// Returns the product of the sizes of the factors. Without factors the size is 1. A single factor
// keeps its symbol unchanged.
tsr_dim tsr__fit_size(const struct fit *fit, const int *factors, int n)
{
    struct exprs *exprs = fit->shapes->exprs;
    struct expr expr = expr_number(1);
    if (n == 1)
        return fit->factors[factors[0]].size;
    for (int i = 0; i < n; i++)
        expr = tsr__expr_mul(exprs, expr, tsr__expr_of(exprs, fit->factors[factors[i]].size));
    return tsr__expr_dim(exprs, expr);
}

bool tsr__fit(struct fit *fit)
{
    return fit_ranks(fit) && check_strict(fit) && make_factors(fit) && find_sizes(fit);
}
