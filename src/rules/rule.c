// SPDX-License-Identifier: Apache-2.0
// rule.c - the rule of one node: the row's pattern, laid over the shapes that the node has.
//
// Packs get their lengths from the ranks, factors their sizes from the dimensions. Where it cannot
// be proved that a factor means the same in all tensors (two symbols that may or may not
// broadcast), it must stay whole; where the shapes do not fit the pattern at all, so must the node.
//
// MatMul, "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", of [2 3 4 5] and [5 6]:
//
//   lengths   the first input has rank 4 = B + 2, so B has 2 dimensions; in the second it has none,
//             which a broadcast pack may
//   factors   B0 = 2, B1 = 3, m = 4, k = 5 (both inputs agree), n = 6
//   rule      [B0 B1 m k],[k n] -> [B0 B1 m n]; k is reduced, the others pass through
//
// Were the second input [7 6], k would be 5 and 7: the node stays whole, and the rule says why.
#include "rules/internal.h"

#define NOT_KNOWN   (-1)
#define KEPT_INPUTS 4

struct build {
    struct arena *arena;
    const tsr_node *node;
    const struct shapes *shapes;
    const struct pattern *pattern;
    const struct derivation *derivation;
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

static bool refuse(struct build *build, const char *why)
{
    if (!build->whole)
        build->whole = why;
    return false;
}

static const struct pattern_tensor *tensor_at(const struct pattern_tensor *list, int n, int i)
{
    if (i < n)
        return &list[i];
    return n && list[n - 1].variadic ? &list[n - 1] : NULL;
}

static const tsr_value *value_at(const tsr_node *node, bool out, int i)
{
    size_t count = out ? tsr_node_output_count(node) : tsr_node_input_count(node);
    if ((size_t)i >= count)
        return NULL;
    if (out)
        return tsr_node_output(node, (size_t)i);
    return tsr_node_input(node, (size_t)i);
}

// The i-th tensor of one side: its pattern and its shape. Values that are not given have rank -1.
static struct shape shape_at(const struct build *build, bool out, int i)
{
    if (!out && i < build->n_kept)
        return build->kept[i];
    const tsr_value *value = value_at(build->node, out, i);
    return value ? tsr__shapes_element(build->shapes, value) : (struct shape){.rank = NOT_KNOWN};
}

static int count_of(const struct build *build, bool out)
{
    return (int)(out ? tsr_node_output_count(build->node) : tsr_node_input_count(build->node));
}

static const struct pattern_tensor *pattern_at(const struct build *build, bool out, int i)
{
    if (out)
        return tensor_at(build->pattern->outputs, build->pattern->n_outputs, i);
    return tensor_at(build->pattern->inputs, build->pattern->n_inputs, i);
}

static bool is_pack(const struct build *build, const struct pattern_dim *dim)
{
    return dim->n == 1 && build->pattern->letters[dim->letters[0]].pack;
}

// Leading broadcast dimensions may be missing in a tensor without packs: [m~ n~] as [n~].
static int missing_dims(const struct build *build, const struct pattern_tensor *tensor, int rank)
{
    int missing = tensor->n_dims - rank;
    for (int i = 0; i < missing; i++)
        if (!tensor->dims[i].broadcast || is_pack(build, &tensor->dims[i]))
            return -1;
    return missing;
}

// ---- lengths of packs --------------------------------------------------------------------------

// At most one pack of a tensor may be open; it gets what the others leave of the rank. [B~ m k] of
// rank 4: m and k are 2, so B has 2 dimensions. A broadcast pack may be shorter here than elsewhere
// and only lengthens what is known; any other fixes its length.
static bool fit_rank(struct build *build, const struct pattern_tensor *tensor, int rank)
{
    const struct pattern_dim *open = NULL;
    int fixed = 0;
    for (int i = 0; i < tensor->n_dims; i++) {
        const struct pattern_dim *dim = &tensor->dims[i];
        if (!is_pack(build, dim))
            fixed++;
        else if (!open && (build->length[dim->letters[0]] == NOT_KNOWN || dim->broadcast))
            open = dim;
        else if (build->length[dim->letters[0]] == NOT_KNOWN)
            return refuse(build, "the rule leaves the number of dimensions open");
        else
            fixed += build->length[dim->letters[0]];
    }
    if (!open)
        return (rank == fixed || missing_dims(build, tensor, rank) > 0) ||
               refuse(build, "a tensor has another number of dimensions than the rule expects");
    int length = rank - fixed, *known = &build->length[open->letters[0]];
    if (length < 0)
        return refuse(build, "a tensor has fewer dimensions than the rule expects");
    if (!open->broadcast && *known != NOT_KNOWN && *known != length)
        return refuse(build, "tensors have different numbers of dimensions");
    *known = length > *known ? length : *known;
    build->strict[open->letters[0]] = build->strict[open->letters[0]] || !open->broadcast;
    return true;
}

// A pack that an input of unknown rank has may be longer than the inputs that are broadcast along it.
static bool packs_settled(struct build *build, const struct pattern_tensor *tensor)
{
    for (int i = 0; i < tensor->n_dims; i++) {
        int letter = is_pack(build, &tensor->dims[i]) ? tensor->dims[i].letters[0] : NOT_KNOWN;
        if (letter != NOT_KNOWN && build->length[letter] != NOT_KNOWN && !build->strict[letter])
            return refuse(build, "the shape of an input is not known");
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

// Inputs first (strict ones before broadcast ones need no order: lengths only grow), outputs only
// for packs that no input has.
static bool fit_ranks(struct build *build)
{
    for (int i = 0; i < build->pattern->n_letters; i++) {
        build->length[i] = NOT_KNOWN;
        build->strict[i] = false;
    }
    for (int out = 0; out < (build->shapes_only ? 1 : 2); out++)
        for (int i = 0; i < count_of(build, out); i++) {
            const struct pattern_tensor *tensor = pattern_at(build, out, i);
            if (!value_at(build->node, out, i)) {
                if (!out && tensor && !tensor->optional)
                    return refuse(build, "an input is missing");
                continue;
            }
            if (!tensor)
                return refuse(build, out ? "more outputs than the rule has"
                                         : "more inputs than the rule has");
            int rank = shape_at(build, out, i).rank;
            if (tensor->host || (out && rank == NOT_KNOWN))
                continue;
            if (rank == NOT_KNOWN && build->shapes_only && !may_stretch(tensor))
                continue; // the others may say enough
            if (rank == NOT_KNOWN)
                return refuse(build, "the shape of an input is not known");
            if (rank > RULE_MAX_RANK)
                return refuse(build, "a tensor has more dimensions than are followed");
            if (!fit_rank(build, tensor, rank))
                return false;
        }
    for (int i = 0; i < count_of(build, false); i++) {
        const struct pattern_tensor *tensor = pattern_at(build, false, i);
        bool unread = value_at(build->node, false, i) && !tensor->host;
        if (unread && shape_at(build, false, i).rank == NOT_KNOWN && !packs_settled(build, tensor))
            return false;
    }
    return true;
}

// A strict pack must be as long as the longest: [A*],[A~] with a longer second input does not fit.
static bool check_strict(struct build *build)
{
    for (int i = 0; i < count_of(build, false); i++) {
        const struct pattern_tensor *tensor = pattern_at(build, false, i);
        int rank = shape_at(build, false, i).rank, want = 0;
        bool loose = false;
        if (!value_at(build->node, false, i) || tensor->host)
            continue;
        for (int k = 0; k < tensor->n_dims; k++) {
            loose = loose || tensor->dims[k].broadcast;
            want +=
                is_pack(build, &tensor->dims[k]) ? build->length[tensor->dims[k].letters[0]] : 1;
        }
        if (!loose && rank != want && rank != NOT_KNOWN)
            return refuse(build, "tensors have different numbers of dimensions");
    }
    return true;
}

// ---- factors -----------------------------------------------------------------------------------

// A letter is one factor, a pack of length 2 is two: A becomes A0 and A1, base[A] their first.
// Sizes come later. Where only shapes are wanted, nobody reads the names, so there are none.
static bool make_factors(struct build *build)
{
    for (int i = 0; i < build->pattern->n_letters; i++) {
        const struct letter *letter = &build->pattern->letters[i];
        int count = letter->pack ? build->length[i] : 1;
        build->base[i] = build->n_factors;
        for (int k = 0; k < (count > 0 ? count : 0); k++) {
            if (build->n_factors == RULE_MAX_FACTORS)
                return refuse(build, "more factors than are followed");
            struct rule_factor *factor = &build->factors[build->n_factors];
            struct str name = STR("");
            if (!build->shapes_only && letter->pack)
                name = tsr__arena_printf(build->arena, STR_FMT "%d", STR_ARG(letter->name), k);
            else if (!build->shapes_only)
                name = tsr__arena_str(build->arena, letter->name);
            build->open[build->n_factors] = build->fixed[build->n_factors] = false;
            build->doubtful[build->n_factors++] = false;
            *factor = (struct rule_factor){.name = name.p,
                                           .kind = letter->kind,
                                           .combine = letter->combine,
                                           .size = DIM_UNKNOWN,
                                           .unit = letter->unit};
        }
    }
    return !build->arena->failed;
}

// Calls f for each dimension of tensor i that the pattern maps: the factors (count 0: size 1).
typedef bool (*dim_fn)(struct build *build, bool out, int i, int axis,
                       const struct pattern_dim *dim, const int *factors, int n, void *data);

static bool each_dim(struct build *build, bool out, int i, int rank, dim_fn f, void *data)
{
    const struct pattern_tensor *tensor = pattern_at(build, out, i);
    int missing = missing_dims(build, tensor, rank), total = 0, axis = 0;
    for (int k = 0; k < tensor->n_dims; k++)
        total += is_pack(build, &tensor->dims[k]) ? build->length[tensor->dims[k].letters[0]] : 1;
    for (int k = missing > 0 ? missing : 0; k < tensor->n_dims; k++) {
        const struct pattern_dim *dim = &tensor->dims[k];
        int list[RULE_MAX_FACTORS], n = 0;
        if (is_pack(build, dim)) {
            int length = build->length[dim->letters[0]];
            int skip = dim->broadcast && total > rank ? total - rank : 0; // aligned from the right
            for (int e = skip; e < length; e++) {
                int one = build->base[dim->letters[0]] + e;
                if (!f(build, out, i, axis++, dim, &one, 1, data))
                    return false;
            }
            continue;
        }
        for (; n < dim->n && n < RULE_MAX_FACTORS; n++)
            list[n] = build->base[dim->letters[n]];
        if (!f(build, out, i, axis++, dim, list, n, data))
            return false;
    }
    return true;
}

// The rank that the pattern gives a tensor: for outputs whose shape is not declared.
// Dimensions of a tensor by its pattern; NOT_KNOWN if a pack has as many as nobody knows: [n c O*], O in no input.
static int pattern_rank(const struct build *build, bool out, int i)
{
    const struct pattern_tensor *tensor = pattern_at(build, out, i);
    int rank = 0;
    for (int k = 0; k < tensor->n_dims; k++) {
        int length =
            is_pack(build, &tensor->dims[k]) ? build->length[tensor->dims[k].letters[0]] : 1;
        if (length == NOT_KNOWN)
            return NOT_KNOWN;
        rank += length;
    }
    return rank;
}

// ---- sizes -------------------------------------------------------------------------------------

static tsr_dim dim_at(const struct build *build, bool out, int i, int axis)
{
    struct shape shape = shape_at(build, out, i);
    return shape.rank > axis ? shape.dims[axis] : DIM_UNKNOWN;
}

// What two tensors say about one factor. Numbers win over symbols.
static bool join_size(struct build *build, int factor, tsr_dim dim)
{
    tsr_dim *size = &build->factors[factor].size;
    if (!dim_known(dim) || tsr__dim_equal(build->shapes->exprs, *size, dim))
        return true;
    if (!dim_known(*size)) {
        *size = dim;
        return true;
    }
    if (dim.value >= 0 && size->value >= 0)
        return refuse(build, "the sizes of the tensors do not fit together");
    if (dim.value >= 0)
        *size = dim;
    return true;
}

static bool strict_size(struct build *build, bool out, int i, int axis,
                        const struct pattern_dim *dim, const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(build, out, i, axis);
    if (n == 0 && !dim->any && here.value >= 0 && here.value != 1)
        return refuse(build, "a dimension that should be 1 is not");
    if (dim->window && here.value >= 0) {
        int64_t *least = &build->factors[factors[0]].least;
        *least = *least == 0 || here.value < *least ? here.value : *least;
    }
    if (n != 1 || dim->broadcast || dim->window)
        return true;
    if (!out)
        *(dim_known(here) ? &build->fixed[factors[0]] : &build->open[factors[0]]) = true;
    return join_size(build, factors[0], here);
}

// Of an input whose rank is not known no size is: what is broadcast along its factors says nothing about them.
static void open_unread(struct build *build)
{
    for (int i = 0; i < count_of(build, false); i++) {
        const struct pattern_tensor *tensor = pattern_at(build, false, i);
        if (!value_at(build->node, false, i) || tensor->host ||
            shape_at(build, false, i).rank != NOT_KNOWN)
            continue;
        for (int k = 0; k < tensor->n_dims; k++) {
            const struct pattern_dim *dim = &tensor->dims[k];
            int length = dim->n == 1 && is_pack(build, dim) ? build->length[dim->letters[0]] : 1;
            if (dim->n != 1 || dim->broadcast || dim->window)
                continue;
            for (int e = 0; e < length; e++)
                build->open[build->base[dim->letters[0]] + e] = true;
        }
    }
}

// Broadcast dimensions, after the strict ones: a number above 1 is the size. A symbol is the size
// if no other tensor disagrees; else nobody knows before the run whether it is 1.
//
// Gemm, [m k],[k n],[m~ n~] -> [m n], of [? 6], [6 8], [1 8]: m stays open, for the first input has it and the third
// may be stretched along it. Of [n 6], [6 8], [s 8]: m is n whatever s is, and doubtful: nobody knows whether s is 1.
static bool loose_number(struct build *build, bool out, int i, int axis,
                         const struct pattern_dim *dim, const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(build, out, i, axis);
    if (n != 1 || !dim->broadcast || here.value < 0 || here.value == 1)
        return true;
    if (build->open[factors[0]] && !build->fixed[factors[0]])
        return true; // engines take a skip that is longer than what it is added to
    return join_size(build, factors[0], here);
}

// The second half of what loose_number says: symbols, after the numbers. A symbol beside a size
// that is a number is doubtful, for it may be 1 when the model runs.
static bool loose_symbol(struct build *build, bool out, int i, int axis,
                         const struct pattern_dim *dim, const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(build, out, i, axis);
    if (n != 1 || !dim->broadcast || here.value >= 0)
        return true;
    int factor = factors[0];
    tsr_dim *size = &build->factors[factor].size;
    if (build->open[factor] && !build->fixed[factor]) {
        build->doubtful[factor] = true;
        return true;
    }
    if (!dim_known(*size) && !build->doubtful[factor]) {
        *size = here;
        build->doubtful[factor] = !dim_known(here);
        return true;
    }
    if (size->value >= 0) {
        build->doubtful[factor] = true;
        return true;
    }
    struct exprs *exprs = build->shapes->exprs;
    struct expr both =
        tsr__expr_broadcast(exprs, tsr__expr_of(exprs, *size), tsr__expr_of(exprs, here));
    build->doubtful[factor] = build->doubtful[factor] || !both.known;
    if (!build->fixed[factor])
        *size = tsr__expr_dim(exprs, both);
    return true;
}

// A broadcast factor that nobody has above 1 is 1, if all who have it are known.
static bool loose_one(struct build *build, bool out, int i, int axis, const struct pattern_dim *dim,
                      const int *factors, int n, void *data)
{
    (void)data;
    tsr_dim here = dim_at(build, out, i, axis);
    if (n != 1 || !dim->broadcast || here.value != 1)
        return true;
    int factor = factors[0];
    tsr_dim *size = &build->factors[factor].size;
    if (!dim_known(*size) && !build->doubtful[factor] && !build->open[factor])
        *size = here;
    return true;
}

// A product with one unknown factor gives its size.
static bool product_size(struct build *build, bool out, int i, int axis,
                         const struct pattern_dim *dim, const int *factors, int n, void *data)
{
    (void)dim;
    (void)data;
    struct exprs *exprs = build->shapes->exprs;
    struct expr rest = n < 2 ? expr_number(0) : tsr__expr_of(exprs, dim_at(build, out, i, axis));
    int open = NOT_KNOWN;
    if (n < 2 || !rest.known)
        return true;
    for (int k = 0; k < n; k++) {
        struct expr expr = tsr__expr_of(exprs, build->factors[factors[k]].size);
        if (!expr.known && open != NOT_KNOWN)
            return true;
        if (!expr.known) {
            open = factors[k];
            continue;
        }
        struct expr less = tsr__expr_exact(exprs, rest, expr);
        if (!less.known)
            return rest.poly || expr.poly ||
                   refuse(build, "the sizes of the tensors do not fit together");
        rest = less;
    }
    if (open != NOT_KNOWN)
        build->factors[open].size = tsr__expr_dim(exprs, rest);
    return true;
}

static bool sizes_of_side(struct build *build, bool out, dim_fn f)
{
    for (int i = 0; i < count_of(build, out); i++) {
        if (!value_at(build->node, out, i) || pattern_at(build, out, i)->host)
            continue;
        int rank = shape_at(build, out, i).rank;
        if (rank != NOT_KNOWN && !each_dim(build, out, i, rank, f, NULL))
            return false;
    }
    return true;
}

static bool find_sizes(struct build *build)
{
    for (int i = 0; i < build->derivation->n_sizes; i++)
        for (int k = 0; k < build->pattern->n_letters; k++)
            if (str_eq(build->pattern->letters[k].name, build->derivation->sizes[i].letter))
                build->factors[build->base[k]].size = build->derivation->sizes[i].size;
    open_unread(build);
    bool ok = sizes_of_side(build, false, strict_size) &&
              sizes_of_side(build, false, loose_number) &&
              sizes_of_side(build, false, loose_symbol) && sizes_of_side(build, false, loose_one) &&
              (build->shapes_only || sizes_of_side(build, true, strict_size)) &&
              sizes_of_side(build, false, product_size) &&
              (build->shapes_only || sizes_of_side(build, true, product_size));
    if (!ok)
        return false;
    for (int i = 0; i < build->pattern->n_rewrites; i++) { // bounds of a table must be numbers
        const struct rule_rewrite *rewrite = &build->pattern->rewrites[i];
        bool table = rewrite->kind == REWRITE_LOOKUP || rewrite->kind == REWRITE_SCATTER;
        if (table && build->factors[build->base[rewrite->factor]].size.value < 0)
            build->factors[build->base[rewrite->factor]].kind = FACTOR_REP;
    }
    for (int i = 0; i < build->n_factors; i++)
        if (build->doubtful[i] || (build->factors[i].kind == FACTOR_STAT && !build->expands))
            build->factors[i].kind = FACTOR_REP;
    return true;
}

// ---- shapes alone ------------------------------------------------------------------------------

static tsr_dim size_of(const struct build *build, const int *factors, int n)
{
    struct exprs *exprs = build->shapes->exprs;
    struct expr expr = expr_number(1);
    if (n == 1)
        return build->factors[factors[0]].size;
    for (int i = 0; i < n; i++)
        expr = tsr__expr_mul(exprs, expr, tsr__expr_of(exprs, build->factors[factors[i]].size));
    return tsr__expr_dim(exprs, expr);
}

static bool read_size(struct build *build, bool out, int i, int axis, const struct pattern_dim *dim,
                      const int *factors, int n, void *data)
{
    (void)out;
    (void)i;
    ((tsr_dim *)data)[axis] = dim->any ? DIM_UNKNOWN : size_of(build, factors, n);
    return true;
}

// Shapes of results: the pattern, laid over the inputs alone, gives the factors their sizes, and the
// results are read off. `build` is large and is not cleared: only the fields that are read are set.
static void shape_by(struct shape_job *job, const struct pattern *pattern,
                     const struct derivation *derivation)
{
    struct build build;
    build.arena = job->arena;
    build.node = job->node;
    build.shapes = job->shapes;
    build.pattern = pattern;
    build.derivation = derivation;
    build.n_factors = 0;
    build.whole = NULL;
    build.expands = false;
    build.shapes_only = true;
    build.n_kept = (int)clamped(job->n_in, 0, KEPT_INPUTS);
    for (int i = 0; i < build.n_kept; i++)
        build.kept[i] = tsr__job_in(job, i);
    if (!fit_ranks(&build) || !check_strict(&build) || !make_factors(&build) || !find_sizes(&build))
        return;
    for (int i = 0; i < job->n_out; i++) {
        const struct pattern_tensor *tensor = pattern_at(&build, true, i);
        int rank = !tensor || tensor->host ? NOT_KNOWN : pattern_rank(&build, true, i);
        if (rank == NOT_KNOWN)
            continue;
        tsr_dim *dims = tsr__job_dims(job, rank);
        if (dims && each_dim(&build, true, i, rank, read_size, dims))
            tsr__job_set(job, i, rank, dims);
    }
}

// Two sizes of one broadcast dimension; false: they do not fit together.
static bool stretch_dim(struct exprs *exprs, tsr_dim *at, tsr_dim dim)
{
    if (dim.value == 1 || (at->value >= 0 && at->value != 1 && dim.value < 0))
        return true;
    if (at->value == 1 || (dim.value >= 0 && at->value < 0))
        *at = dim;
    else if (at->value >= 0 && dim.value >= 0)
        return at->value == dim.value;
    else // unknown: nobody knows before the run which of them is 1
        *at = tsr__expr_dim(
            exprs, tsr__expr_broadcast(exprs, tsr__expr_of(exprs, *at), tsr__expr_of(exprs, dim)));
    return true;
}

// What shape_by does for the most common rule of all, in one walk.
void tsr__infer_stretched(struct shape_job *job)
{
    struct shape first = tsr__job_in(job, 0);
    int rank = first.rank;
    bool same = true;
    for (int i = 0; i < job->n_in; i++) {
        struct shape shape = tsr__job_in(job, i);
        if (shape.rank < 0)
            return;
        same = same && shape.dims == first.dims && shape.rank == first.rank;
        rank = shape.rank > rank ? shape.rank : rank;
    }
    tsr_dim *dims = same ? NULL : tsr__job_dims(job, rank);
    for (int d = 0; dims && d < rank; d++) {
        dims[d] = (tsr_dim){1, ""};
        for (int i = 0; i < job->n_in; i++) {
            struct shape shape = tsr__job_in(job, i);
            int k = d - (rank - shape.rank);
            if (k >= 0 && !stretch_dim(job->exprs, &dims[d], shape.dims[k]))
                return;
        }
    }
    for (int i = 0; i < job->n_out; i++) {
        if (same)
            tsr__job_like(job, i, 0);
        else
            tsr__job_set(job, i, rank, dims);
    }
}

void tsr__job_letters(struct shape_job *job)
{
    const char *text = job->row->rule;
    struct derivation derivation; // large: not cleared
    derivation.n_sizes = 0;
    if (job->row->derive) {
        derivation.arena = NULL;
        derivation.node = job->node;
        derivation.shapes = job->shapes;
        derivation.text = text;
        derivation.whole = NULL;
        derivation.n = 0;
        job->row->derive(&derivation);
        text = derivation.text;
    }
    const struct pattern *pattern = text ? tsr__pattern_of(job->shapes, text) : NULL;
    if (!pattern)
        return;
    if (pattern->same)
        for (int i = 0; i < job->n_out; i++)
            tsr__job_like(job, i, 0);
    if (pattern->stretch)
        tsr__infer_stretched(job);
    else if (!pattern->same)
        shape_by(job, pattern, &derivation);
}

// ---- the instance ------------------------------------------------------------------------------

static bool map_dim(struct build *build, bool out, int i, int axis, const struct pattern_dim *dim,
                    const int *factors, int n, void *data)
{
    struct rule_dim *dims = data;
    bool one = dim->broadcast && dim_at(build, out, i, axis).value == 1;
    int *copy = ARENA_ARRAY(build->arena, int, (size_t)n + 1);
    if (!copy)
        return false;
    memcpy(copy, factors, (size_t)n * sizeof(int));
    dims[axis] = (struct rule_dim){.factors = copy, .n = one ? 0 : n, .window = dim->window};
    return true;
}

static bool make_tensor(struct build *build, bool out, int i, struct rule_tensor *tensor)
{
    const struct pattern_tensor *pattern_tensor = pattern_at(build, out, i);
    if (!value_at(build->node, out, i)) {
        tensor->absent = true;
        return true;
    }
    int rank = shape_at(build, out, i).rank;
    tensor->host = pattern_tensor->host;
    if (rank == NOT_KNOWN)
        rank = pattern_tensor->host ? 0 : pattern_rank(build, out, i);
    tensor->rank = rank;
    if (rank == NOT_KNOWN)
        return true; // the caller refuses
    struct rule_dim *dims = ARENA_ARRAY(build->arena, struct rule_dim, (size_t)rank + 1);
    tensor->dims = dims;
    return dims && (tensor->host || each_dim(build, out, i, rank, map_dim, dims));
}

static bool make_side(struct build *build, bool out, const struct rule_tensor **list, int *n)
{
    int count = count_of(build, out);
    struct rule_tensor *tensor = ARENA_ARRAY(build->arena, struct rule_tensor, (size_t)count + 1);
    if (!tensor)
        return false;
    for (int i = 0; i < count; i++) {
        if (!make_tensor(build, out, i, &tensor[i]))
            return false;
        if (tensor[i].rank < 0) // dimensions that only this one has
            return refuse(build, "the shape of an output is not known");
    }
    *list = tensor;
    *n = count;
    return true;
}

// The pattern's rewrites with factors for letters; those of an input that is left out are dropped.
static bool make_rewrites(struct build *build, struct rule *rule)
{
    struct rule_rewrite *rewrite =
        ARENA_ARRAY(build->arena, struct rule_rewrite, (size_t)build->pattern->n_rewrites + 1);
    if (!rewrite)
        return false;
    for (int i = 0; i < build->pattern->n_rewrites; i++) {
        rewrite[rule->n_rewrites] = build->pattern->rewrites[i];
        if (rewrite[rule->n_rewrites].name)
            rewrite[rule->n_rewrites].name =
                tsr__arena_str(build->arena, str_of(rewrite[rule->n_rewrites].name)).p;
        if (rewrite[rule->n_rewrites].words)
            rewrite[rule->n_rewrites].words =
                tsr__arena_str(build->arena, str_of(rewrite[rule->n_rewrites].words)).p;
        if (rewrite[rule->n_rewrites].factor >= 0)
            rewrite[rule->n_rewrites].factor = build->base[rewrite[rule->n_rewrites].factor];
        if (rewrite[rule->n_rewrites].index < 0 ||
            value_at(build->node, false, rewrite[rule->n_rewrites].index))
            rule->n_rewrites++; // not for an input that is left out
    }
    rule->rewrites = rewrite;
    return true;
}

// The rule outlives the pattern, so everything is copied into the rule's arena. Patches name
// letters; from here on they name factors.
static const struct rule_list *copy_lists(struct build *build)
{
    struct rule_list *list =
        ARENA_ARRAY(build->arena, struct rule_list, (size_t)build->pattern->n_lists + 1);
    if (!list)
        return NULL;
    for (int i = 0; i < build->pattern->n_lists; i++) {
        const struct rule_list *from = &build->pattern->lists[i];
        int64_t *values = ARENA_ARRAY(build->arena, int64_t, (size_t)from->n + 1);
        struct rule_patch *puts =
            ARENA_ARRAY(build->arena, struct rule_patch, (size_t)from->n_puts + 1);
        if (!values || !puts)
            return NULL;
        if (from->n)
            memcpy(values, from->values, (size_t)from->n * sizeof(*values));
        if (from->n_puts)
            memcpy(puts, from->puts, (size_t)from->n_puts * sizeof(*puts));
        for (int k = 0; k < from->n_puts; k++)
            if (puts[k].factor >= 0)
                puts[k].factor = build->base[puts[k].factor];
        list[i] = *from;
        list[i].name = from->name ? tsr__arena_str(build->arena, str_of(from->name)).p : NULL;
        list[i].values = values;
        list[i].puts = puts;
    }
    return list;
}

static bool make_windows(struct build *build, struct rule *rule)
{
    struct rule_window *window =
        ARENA_ARRAY(build->arena, struct rule_window, (size_t)build->pattern->n_windows + 1);
    if (!window)
        return false;
    for (int i = 0; i < build->pattern->n_windows; i++) {
        window[i] = build->pattern->windows[i];
        window[i].factor = build->base[window[i].factor];
    }
    rule->windows = window;
    rule->n_windows = build->pattern->n_windows;
    rule->lists = copy_lists(build);
    rule->n_lists = build->pattern->n_lists;
    struct rule_trim *trim =
        ARENA_ARRAY(build->arena, struct rule_trim, (size_t)build->pattern->n_trims + 1);
    if (trim && build->pattern->n_trims)
        memcpy(trim, build->pattern->trims, (size_t)build->pattern->n_trims * sizeof(*trim));
    rule->trims = trim;
    rule->n_trims = build->pattern->n_trims;
    return trim && rule->lists;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

// Elements i whose place i * per lies in the window. They reach from (first) - (reach - 1 + shift) on.
static struct window_part spread_part(const struct rule_window *window, struct window_part part)
{
    int64_t low = part.a * window->step + window->shift,
            high = (part.b - 1) * window->step + window->shift + window->reach - 1;
    int64_t start = -floor_div(-low, window->per), stop = floor_div(high, window->per) + 1;
    part.start = clamped(start, 0, window->from);
    part.stop = clamped(stop, part.start, window->from);
    part.before = part.a + window->shift + window->reach - 1 - part.start * window->per;
    part.after = (part.stop - part.start - 1) * window->per + window->reach - part.before -
                 (part.b - part.a);
    return part;
}

// Parts of `to` elements are as equal as they can be: 10 in 3 are 0..2, 3..5, 6..9. What the window
// needs beyond either end does not exist, and is counted in `before` and `after`.
struct window_part tsr__window_part(const struct rule_window *window, int64_t n, int64_t j)
{
    struct window_part part = {.a = j * window->to / n, .b = (j + 1) * window->to / n};
    if (window->per)
        return spread_part(window, part);
    bool forwards = window->step > 0;
    int64_t first = forwards ? part.a : part.b - 1;
    int64_t last = forwards ? part.b - 1 : part.a;
    int64_t start = first * window->step + window->shift,
            stop = last * window->step + window->shift + window->reach;
    int64_t low = start < 0 ? 0 : start;
    int64_t high = stop > window->from ? window->from : stop;
    int64_t outside = start < 0 ? -start : 0;
    part.before = outside < stop - start ? outside : stop - start;
    part.start = low > window->from ? window->from : low;
    part.stop = high < part.start ? part.start : high;
    part.after = stop - start - part.before - (part.stop - part.start);
    return part;
}

static bool build_rule(struct build *build, const struct op_row *row, struct rule *rule)
{
    if (!fit_ranks(build) || !check_strict(build) || !make_factors(build) || !find_sizes(build) ||
        !make_side(build, false, &rule->inputs, &rule->n_inputs) ||
        !make_side(build, true, &rule->outputs, &rule->n_outputs) || !make_rewrites(build, rule) ||
        !make_windows(build, rule))
        return false;
    struct rule_factor *factor =
        ARENA_ARRAY(build->arena, struct rule_factor, (size_t)build->n_factors + 1);
    if (!factor)
        return false;
    memcpy(factor, build->factors, (size_t)build->n_factors * sizeof(*factor));
    for (int i = 0; i < build->n_factors; i++)
        if (factor[i].kind == FACTOR_REP && factor[i].name)
            factor[i].why = tsr__row_stays(row, str_of(factor[i].name));
    rule->factors = factor;
    rule->n_factors = build->n_factors;
    return true;
}

static const struct rule *whole_rule(struct arena *arena, const char *why)
{
    struct rule *rule = ARENA_NEW(arena, struct rule);
    if (rule)
        rule->whole = why;
    return rule;
}

static const struct rule *open_rule(struct arena *arena)
{
    struct rule *rule = ARENA_NEW(arena, struct rule);
    if (rule) {
        rule->whole = "there is no rule for this operator (of this opset): give all its tensors "
                      "shardings, or a rule (--rules)";
        rule->open = true;
    }
    return rule;
}

// The same of a node that may draw random numbers; those with a seed are the same everywhere.
static const struct rule *single_rule(struct arena *arena, const tsr_node *node, const char *why)
{
    struct rule *rule = ARENA_NEW(arena, struct rule);
    if (rule) {
        rule->whole = why;
        rule->single = tsr__node_draws(node);
    }
    return rule;
}

static bool has_subgraphs(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (tsr_attr_graph_count(tsr_node_attr(node, i)))
            return true;
    return false;
}

// Patterns of the table are parsed once for all nodes; a text whose letters have sizes of this node
// is parsed for it alone, in scratch memory. NULL only when memory is full.
static const struct rule *instantiate(struct arena *arena, struct arena *scratch,
                                      const struct derivation *derivation, const struct op_row *row)
{
    const char *wrong;
    struct rule *rule = ARENA_NEW(arena, struct rule);
    struct build *build = ARENA_NEW(scratch, struct build);
    const struct pattern *pattern = NULL;
    if (derivation->text && !derivation->n_sizes)
        pattern = tsr__pattern_of(derivation->shapes, derivation->text);
    if (derivation->text && !pattern)
        pattern = tsr__pattern_parse(scratch, str_of(derivation->text), &wrong);
    if (!rule || !build || scratch->failed)
        return NULL;
    if (!pattern)
        return whole_rule(arena, "the rule of this node could not be built");
    build->arena = arena;
    build->node = derivation->node;
    build->shapes = derivation->shapes;
    build->pattern = pattern;
    build->derivation = derivation;
    build->expands = row->expand;
    if (build_rule(build, row, rule))
        return rule;
    return arena->failed ? NULL : whole_rule(arena, build->whole);
}

// The rule that a derive function makes of the row.
static const struct rule *derived(struct arena *arena, const tsr_node *node,
                                  const struct shapes *shapes, const struct op_row *row,
                                  derive_fn derive)
{
    // Derivation, parsed text and work table are large and gone after this: not in the caller's arena.
    struct arena scratch;
    tsr__arena_init(&scratch, arena->session);
    struct derivation derivation; // large: not cleared
    derivation.arena = &scratch;
    derivation.node = node;
    derivation.shapes = shapes;
    derivation.text = row->rule;
    derivation.whole = NULL;
    derivation.n_sizes = 0;
    derivation.n = 0;
    if (derive)
        derive(&derivation);
    const struct rule *rule = derivation.whole ? single_rule(arena, node, derivation.whole)
                                               : instantiate(arena, &scratch, &derivation, row);
    tsr__arena_free(&scratch);
    return rule;
}

const struct rule *tsr__rule_strided(struct arena *arena, const tsr_node *node,
                                     const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    const struct rule *rule =
        row && row->other ? derived(arena, node, shapes, row, row->other) : NULL;
    return rule && !rule->whole ? rule : NULL;
}

const struct rule *tsr__rule_of(struct arena *arena, const tsr_node *node,
                                const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    struct control control;
    static const char uncut[] = "nothing in its bodies can be cut";
    if (tsr__control_of(node, &control)) // what draws in its bodies does so on one of its devices
        return whole_rule(arena, uncut);
    if (has_subgraphs(node) || (row && row->bodies))
        return single_rule(arena, node, uncut);
    const char *why = NULL;
    if (!row && tsr__is_call(node, &why))
        return single_rule(arena, node, why ? why : "calls in calls are too deep");
    if (!row)
        return open_rule(arena);
    if (row->whole)
        return single_rule(arena, node, row->whole);
    return derived(arena, node, shapes, row, row->derive);
}

const char *tsr__rule_immovable(const struct shapes *shapes, const tsr_node *node)
{
    for (int out = 0; out < 2; out++)
        for (int i = 0; i < (int)(out ? tsr_node_output_count(node) : tsr_node_input_count(node));
             i++) {
            const tsr_value *value = value_at(node, out, i);
            if (!value || (!out && tsr__value_constant_tensor(value)))
                continue;
            tsr_dtype t = tsr__shapes_element(shapes, value).dtype;
            if (t == TSR_FLOAT8E8M0) // seen with 1.31: no operator of our own may take it
                return "ONNX Runtime gives no float8e8m0 to operators that move values";
            if (t != TSR_UNDEFINED && t != TSR_STRING && tsr_dtype_bits(t) < 8)
                return "elements of less than a byte are not moved between devices";
        }
    return NULL;
}
