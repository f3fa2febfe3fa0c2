// SPDX-License-Identifier: Apache-2.0
// node_placement.c - finds the placement of one node: the number of parts of each factor, and the
// part that each device computes.
//
// The layouts of the node's tensors are added one after the other. A split of a dimension becomes a
// split of the rule's factors that make it up, if the bounds coincide. If a layout splits inside a
// factor (heads of a hidden size), the rule is refined: the factor becomes two everywhere. A device
// that contradicts the layouts so far is dropped. In the end every cell (combination of parts) must
// have a device. This file does not read specs. node_sums.c decides which device computes which
// part of a sum.
//
// Examples, in the notation of notation.c:
//     MatMul X [8,6] x W [6,4] on devices 0 to 3; factors m = 8, k = 6 (reduced), n = 4
//     X {2,2}:               m in 2, k in 2; device d computes part d / 2 of m and part d % 2 of k
//     W {2,1:(0,2),(1,3)}:   k in 2 again, and each device has the same part of k as in X: none is
//                            dropped
//     the placement:         m 2, k 2, n 1; four cells (m, k), one device for each; the sum over k
//                            is pending between devices 0 and 1 and between 2 and 3
//     W {2,1:(0,1),(2,3)}:   devices 1 and 2 have the other part of k and are dropped; two
//                            devices cannot compute four cells, so W is rejected
//     W {2,1:(0,1,2,3),(1,3)}:
//                            devices 1 and 3 own both parts of k, and one part agrees with X: with
//                            SOLVE_PARTS none is dropped
//     Relu of {4,1:0,1,0,1}: device 0 computes parts 0 and 2: it has two rows (SOLVE_PARTS)
//     a refined factor:      {4*16/2} of 64 elements is one half of each of 4 heads: the factor
//                            of 64 becomes two, 4 and 16, and 16 is split in 2
#include "sharding/layouts/node_placement.h"

// Replaces the rows of the table by n empty rows. Returns false if out of memory.
static bool make_rows(struct solve *solve, int64_t n)
{
    solve->n_rows = n;
    solve->on = ARENA_ARRAY(solve->arena, bool, (size_t)n + 1);
    solve->device = ARENA_ARRAY(solve->arena, int64_t, (size_t)n + 1);
    solve->coords = ARENA_ARRAY(solve->arena, int64_t, (size_t)(n * solve->cap) + 1);
    return !solve->arena->failed;
}

static void copy_row(struct solve *to, int64_t at, const struct solve *from, int64_t row)
{
    to->on[at] = from->on[row];
    to->device[at] = from->device[row];
    memcpy(&to->coords[at * to->cap], &from->coords[row * from->cap],
           (size_t)to->cap * sizeof(*to->coords));
}

// Starts with one row for each device and nothing sharded. Rows of `coords` have space for factors
// that refining the rule adds. Returns false if out of memory.
bool tsr__solve_init(struct solve *solve, struct arena *arena, struct arena *keep,
                     const struct rule *rule, int64_t n_all)
{
    *solve = (struct solve){.arena = arena, .keep = keep, .rule = rule, .n_all = n_all};
    solve->cap = rule->n_factors + SOLVE_SPARE;
    if (solve->cap > RULE_MAX_FACTORS)
        solve->cap = RULE_MAX_FACTORS;
    if (!make_rows(solve, n_all))
        return false;
    for (int i = 0; i < RULE_MAX_FACTORS; i++)
        solve->cuts[i] = 1;
    for (int64_t d = 0; d < n_all; d++) {
        solve->on[d] = true;
        solve->device[d] = d;
    }
    return true;
}

// Copies the state with its rows. The rule is not copied, because refining never changes a rule.
struct solve tsr__solve_copy(const struct solve *solve)
{
    struct solve c = *solve;
    if (make_rows(&c, solve->n_rows))
        for (int64_t row = 0; row < solve->n_rows; row++)
            copy_row(&c, row, solve, row);
    return c;
}

static bool fail(struct solve *solve, const char *why)
{
    solve->wrong = why;
    return false;
}

// Returns the factors of an axis of input or output i. The pointer becomes invalid when `split`
// replaces the rule.
static const struct rule_dim *dim_of(const struct solve *solve, bool out, int i, int axis)
{
    return &rule_slot(solve->rule, out, (size_t)i)->dims[axis];
}

static int64_t size_of(const struct solve *solve, int factor)
{
    return solve->rule->factors[factor].size.value;
}

// ---- refining ----------------------------------------------------------------------------------

// Inserts the new factor g after `factor` in a dimension, if the dimension has `factor`. Returns
// false if out of memory.
static bool refine_dim(struct arena *arena, struct rule_dim *dim, int factor, int g)
{
    int *list = ARENA_ARRAY(arena, int, (size_t)dim->n + 1);
    int n = 0;
    if (!list)
        return false;
    bool found = false;
    for (int i = 0; i < dim->n; i++)
        found = found || dim->factors[i] == factor;
    if (!found)
        return true;
    for (int i = 0; i < dim->n; i++) {
        list[n++] = dim->factors[i];
        if (dim->factors[i] == factor)
            list[n++] = g;
    }
    *dim = (struct rule_dim){.factors = list, .n = n};
    return true;
}

// Returns copies of all inputs or all outputs of a rule in which factor g follows `factor` wherever
// it occurs. Returns NULL if out of memory.
static const struct rule_tensor *
refine_tensors(struct arena *arena, const struct rule_tensor *tensor, int n, int factor, int g)
{
    struct rule_tensor *copy = ARENA_ARRAY(arena, struct rule_tensor, (size_t)n + 1);
    if (!copy)
        return NULL;
    for (int i = 0; i < n; i++) {
        copy[i] = tensor[i];
        struct rule_dim *dims = ARENA_ARRAY(arena, struct rule_dim, (size_t)tensor[i].rank + 1);
        if (!dims)
            return NULL;
        for (int axis = 0; axis < tensor[i].rank; axis++) {
            dims[axis] = tensor[i].dims[axis];
            refine_dim(arena, &dims[axis], factor, g);
        }
        copy[i].dims = dims;
    }
    return arena->failed ? NULL : copy;
}

// Returns copies of the rule's lists of numbers (pads, split sizes). Entries that depend on
// `factor` depend on the new factor g, too.
static const struct rule_list *refine_lists(struct arena *arena, const struct rule *rule,
                                            int factor, int g)
{
    struct rule_list *lists = ARENA_ARRAY(arena, struct rule_list, (size_t)rule->n_lists + 1);
    if (!lists)
        return NULL;
    for (int i = 0; i < rule->n_lists; i++) {
        int n = rule->lists[i].n_patches;
        struct rule_patch *puts = ARENA_ARRAY(arena, struct rule_patch, 2 * (size_t)n + 1);
        if (!puts)
            return NULL;
        lists[i] = rule->lists[i];
        lists[i].patches = puts;
        for (int k = 0; k < n; k++) {
            puts[k] = rule->lists[i].patches[k];
            if (puts[k].factor != factor)
                continue;
            puts[lists[i].n_patches] = puts[k];
            puts[lists[i].n_patches++].factor = g;
        }
    }
    return lists;
}

// Returns a copy of the rule in which a factor is split in two. Example: with `inner` 16, a factor
// of 64 becomes 4, and a new factor of 16 follows it in every dimension. If the size is unknown,
// that of the outer factor is unknown, too, and its last element may be incomplete.
const struct rule *tsr__rule_refine(struct arena *arena, const struct rule *r, int factor,
                                    int64_t inner)
{
    struct rule *c = ARENA_NEW(arena, struct rule);
    int g = r->n_factors;
    struct rule_factor *factors = ARENA_ARRAY(arena, struct rule_factor, (size_t)g + 1);
    if (!c || !factors)
        return NULL;
    *c = *r;
    memcpy(factors, r->factors, (size_t)g * sizeof(*factors));
    factors[g] = factors[factor];
    factors[g].name = tsr__arena_printf(arena, "%s_", factors[factor].name).p;
    factors[g].size = (tsr_dim){.value = inner, .symbol = ""};
    if (r->factors[factor].size.value >= 0)
        factors[factor].size.value /= inner;
    else
        factors[factor].size = (tsr_dim){.value = -1, .symbol = ""};
    c->factors = factors;
    c->n_factors = g + 1;
    c->inputs = refine_tensors(arena, r->inputs, r->n_inputs, factor, g);
    c->outputs = refine_tensors(arena, r->outputs, r->n_outputs, factor, g);
    c->lists = refine_lists(arena, r, factor, g);
    return arena->failed ? NULL : c;
}

// True if a rewrite of this kind depends on the part of its factor that a device has.
static bool names_parts(enum rewrite_kind kind)
{
    static const enum rewrite_kind kinds[] = {REWRITE_ATTR,  REWRITE_LOOKUP, REWRITE_SCATTER,
                                              REWRITE_RANGE, REWRITE_WORD,   REWRITE_SHARE,
                                              REWRITE_ROUTE, REWRITE_CAUSAL};
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (kinds[i] == kind)
            return true;
    return false;
}

bool tsr__rule_rewrites(const struct rule *rule, int factor)
{
    for (int i = 0; i < rule->n_rewrites; i++)
        if (names_parts(rule->rewrites[i].kind) && rule->rewrites[i].factor == factor)
            return true;
    for (int i = 0; i < rule->n_windows; i++)
        if (rule->windows[i].factor == factor)
            return true;
    return false;
}

// Splits a factor of the rule into an outer factor and an inner factor of size `inner`. If the
// factor is already sharded, each shard must be a shard of the two new factors. Returns false, with
// the reason, if this is not possible.
static bool split(struct solve *solve, int factor, int64_t inner)
{
    // Example: a factor of 64 in 8 shards is split at inner 16. The outer factor 4 gets 4 shards,
    // the inner factor 16 gets 2 (`low`). If 64 is in 2 shards, the outer factor gets 2, the inner
    // one 1.
    int64_t size = size_of(solve, factor), outer = size / inner, cuts = solve->cuts[factor],
            low = 1;
    if (solve->rule->n_factors >= solve->cap || tsr__rule_rewrites(solve->rule, factor) ||
        solve->rule->factors[factor].unit != 1)
        return fail(solve, "a factor that cannot be split is sharded in part");
    // Unequal shares stay in the outer factor. For shares of 3 units and 1 unit, its size must be a
    // multiple of 4.
    int64_t units = tsr__units_of(cuts, solve->shares[factor]);
    if (cuts > 1 && (size % units || outer % units)) {
        if (solve->shares[factor] || size % cuts || cuts % outer)
            return fail(solve, "two shardings of one dimension have different bounds");
        low = cuts / outer;
    }
    const struct rule *rule = tsr__rule_refine(solve->keep, solve->rule, factor, inner);
    if (!rule)
        return fail(solve, "out of memory");
    int g = rule->n_factors - 1;
    solve->rule = rule;
    solve->cuts[factor] = cuts / low;
    solve->cuts[g] = low;
    solve->shares[g] = 0;
    solve->pinned[g] = solve->pinned[factor];
    solve->shared[g] = solve->shared[factor];
    solve->seen[g] = solve->seen[factor];
    for (int64_t i = 0; i < solve->n_rows; i++) {
        int64_t *row = &solve->coords[i * solve->cap];
        row[g] = row[factor] % low;
        row[factor] /= low;
    }
    return true;
}

// ---- from a sharded dimension to sharded factors ------------------------------------------------

// A factor of the rule that a split of the layout shards.
struct target {
    int factor;
    int64_t cuts, stride; // the part of the factor is (coordinate of the split) / stride % cuts
    tile_shares shares;
    // The parts of the layout and their shares, if some are empty and `cuts` counts the others.
    int64_t stated;
    tile_shares stated_shares;
};
#define MAX_TARGETS 64

// Splits a factor, if necessary, so that the sizes of the innermost factors of the dimension
// multiply to `at`. There is then a border between factors at `at`. Example: a dimension of factors
// 8 and 6 (48 elements) has borders at 6 and 48. A border at 12 = 2 * 6 splits 8 into 4 and 2. A
// border at 9 is impossible, because 9 is not a multiple of 6. An outermost factor of unknown size
// is taken for a multiple of the border. Returns false, with the reason in solve->wrong, if the
// border is impossible.
static bool border(struct solve *solve, bool out, int i, int axis, int64_t at)
{
    const struct rule_dim *dim = dim_of(solve, out, i, axis);
    int64_t below = 1;
    for (int k = dim->n - 1; k >= 0; k--) {
        if (below >= at)
            break;
        int64_t size = size_of(solve, dim->factors[k]), above = below * size;
        if (size < 0 || above > at) {
            if (at % below || (size >= 0 && above % at))
                return fail(solve, "shard bounds do not match the factors of the dimension");
            return split(solve, dim->factors[k], at / below);
        }
        below = above;
    }
    return below == at || fail(solve, "shard bounds do not match the factors of the dimension");
}

// Returns the factor such that its size times the sizes of all factors inside of it is `at`.
// Ignores factors of size 1. Returns -1 if there is none.
static int factor_below(const struct solve *solve, bool out, int i, int axis, int64_t at)
{
    const struct rule_dim *dim = dim_of(solve, out, i, axis);
    int64_t below = 1;
    for (int k = dim->n - 1; k >= 0; k--) {
        int64_t above = below * size_of(solve, dim->factors[k]);
        if (above == at && above > below)
            return dim->factors[k];
        below = above;
    }
    return -1;
}

// Finds the factors that `cuts` equal shards split, and returns their number; 0: not possible. The
// outermost factors are split into single elements, the next one into equal ranges. Example:
// factors 4 and 16 in 8 shards: 4 is split in 4 and 16 in 2. Shard c has part c / 2 of the first
// factor and part c % 2 of the second, so the strides are 2 and 1.
static int targets_even(struct solve *solve, bool out, int i, int axis, int64_t at, int64_t cuts,
                        struct target *target)
{
    int n = 0;
    while (cuts > 1) {
        int factor = factor_below(solve, out, i, axis, at);
        int64_t size = factor >= 0 ? size_of(solve, factor) : 0;
        if (n == MAX_TARGETS || size < 2 || (size % cuts && cuts % size)) {
            fail(solve, "shard bounds do not match the factors of the dimension");
            return 0;
        }
        // Shards of this factor; the inner factors get the rest.
        int64_t here = size % cuts == 0 ? cuts : size;
        target[n++] = (struct target){factor, here, 1, 0, 0, 0};
        cuts /= here;
        at /= size;
    }
    for (int k = n - 2; k >= 0; k--)
        target[k].stride = target[k + 1].stride * target[k + 1].cuts;
    return n;
}

// Returns the size of the only factor of the dimension whose size the rule does not know; 0: the
// size of the dimension does not determine it. Example: a bias of 3 elements has the factors
// group (3) and o, which is a symbol in the shape of the weights. So o is 1 in this model.
static int64_t size_left(const struct solve *solve, const struct rule_dim *dim, int64_t size)
{
    int64_t known = 1;
    int n_unknown = 0;
    for (int i = 0; i < dim->n; i++)
        if (size_of(solve, dim->factors[i]) < 0)
            n_unknown++;
        else if (!mul_ok(known, size_of(solve, dim->factors[i]), &known))
            return 0;
    return n_unknown == 1 && size > 0 && known > 0 && size % known == 0 ? size / known : 0;
}

// Returns the factor of the rule that is factor k of the layout, if the dimensions of both have the
// same factors. -1: they have not. Factors of one element in the rule are left out if the layout
// has fewer: they do not change the shards. A single factor is the full dimension.
static int factor_alike(const struct solve *solve, const struct rule_dim *dim,
                        const struct tile_dim *l, int k, int64_t size)
{
    int factors[RULE_MAX_FACTORS], n = 0;
    for (int i = 0; i < dim->n; i++)
        if (dim->n == l->n || size_of(solve, dim->factors[i]) != 1)
            factors[n++] = dim->factors[i];
    if (n == 0 && l->n == 1)
        factors[n++] = dim->factors[dim->n - 1]; // a dimension of one element
    if (n != l->n)
        return -1;
    for (int i = 0; n > 1 && i < n; i++) {
        int64_t own = size_of(solve, factors[i]), stated = l->factors[i].size;
        if (stated != int64_max(own, 0) && (own >= 0 || stated != size_left(solve, dim, size)))
            return -1;
    }
    return factors[k];
}

// Returns the product of the known sizes of factors 1 to n - 1; 0: a size is unknown, or the
// product is too large.
static int64_t unit_of_layout(const struct tile_dim *l)
{
    int64_t unit = 1;
    for (int i = 1; i < l->n; i++)
        if (l->factors[i].size < 1 || !mul_ok(unit, l->factors[i].size, &unit))
            return 0;
    return unit;
}

static int64_t unit_of_rule(const struct solve *solve, const struct rule_dim *dim)
{
    int64_t unit = 1;
    for (int i = 1; i < dim->n; i++)
        if (size_of(solve, dim->factors[i]) < 1 ||
            !mul_ok(unit, size_of(solve, dim->factors[i]), &unit))
            return 0;
    return unit;
}

// True if the dimension consists of an unknown number of units, in the layout and in the rule, and
// the layout shards the number of units or the units. Example: a Reshape merged [batch,16,64] to X
// [16*batch,64]. X then has {?/2*16,1} or {?*16/2,1}.
static bool has_open_units(const struct solve *solve, const struct rule_dim *dim,
                           const struct tile_dim *l)
{
    int64_t want = unit_of_layout(l), have = unit_of_rule(solve, dim);
    return want >= 2 && have >= 1 && want % have == 0 && size_of(solve, dim->factors[0]) < 0 &&
           !dim->window;
}

// Finds the factor that the number of units is in the rule: the first one. Splits it if the rule
// has smaller units. Returns 1; 0: not possible. Example: for a MatMul that reads X {?/2*16,1} the
// rows m become m and 16, and m is in 2 shards.
static int target_in_units(struct solve *solve, const struct rule_dim *dim,
                           const struct tile_dim *l, struct target *target)
{
    int factor = dim->factors[0];
    int64_t want = unit_of_layout(l), have = unit_of_rule(solve, dim);
    if (want > have && !split(solve, factor, want / have))
        return 0;
    target[0] = (struct target){factor, l->factors[0].cuts, 1, l->factors[0].shares, 0, 0};
    return 1;
}

// Finds the factor that unequal shares split: the one at the border `at` (factor_below). Its size
// must be a multiple of the units. Returns 1; 0: not possible. Example: 4096 elements are 32 heads
// of 128. Shares of 3 units and 1 unit are 24 and 8 heads.
static int target_shared(struct solve *solve, bool out, int i, int axis, int64_t at,
                         const struct tile_factor *cut, struct target *target)
{
    int factor = factor_below(solve, out, i, axis, at);
    if (factor < 0 || size_of(solve, factor) % tsr__units_of(cut->cuts, cut->shares)) {
        fail(solve, "bounds of unequal shards do not match the factors of the dimension");
        return 0;
    }
    target[0] = (struct target){factor, cut->cuts, 1, cut->shares, 0, 0};
    return 1;
}

// Finds the factors of the rule that factor k of the layout shards, if both have borders at the
// ends of that factor or can get them. `sizes` are those of the layout's factors. Returns their
// number; 0: not possible.
static int targets_at_borders(struct solve *solve, bool out, int i, int axis,
                              const struct tile_dim *l, int k, const int64_t *sizes,
                              struct target *target)
{
    int64_t below = 1, cuts = l->factors[k].cuts;
    tile_shares shares = l->factors[k].shares;
    for (int j = k + 1; j < l->n; j++)
        below *= sizes[j];
    int64_t above = below * sizes[k];
    if (!border(solve, out, i, axis, above))
        return 0;
    if (shares && sizes[k] % tsr__units_of(cuts, shares) == 0)
        return target_shared(solve, out, i, axis, above, &l->factors[k], target);
    if (!shares && sizes[k] % cuts == 0)
        return targets_even(solve, out, i, axis, above, cuts, target);
    if (!border(solve, out, i, axis, below))
        return 0;
    int factor = factor_below(solve, out, i, axis, above);
    if (factor < 0 || size_of(solve, factor) != sizes[k]) {
        fail(solve, "bounds of unequal shards do not match the factors of the dimension");
        return 0;
    }
    target[0] = (struct target){factor, cuts, 1, shares, 0, 0};
    return 1;
}

// Finds the factors of the rule that factor k of the layout's dimension `l` shards, for unknown
// sizes or a dimension of one factor. Layout and rule must have the same factors, or open units
// (has_open_units). Returns their number; 0: not possible.
static int targets_open(struct solve *solve, bool out, int i, int axis, const struct tile_dim *l,
                        int k, int64_t size, struct target *target)
{
    const struct rule_dim *dim = dim_of(solve, out, i, axis);
    int64_t sizes[TILE_MAX_FACTORS];
    int factor = factor_alike(solve, dim, l, k, size);
    if (factor >= 0) {
        target[0] = (struct target){factor, l->factors[k].cuts, 1, l->factors[k].shares, 0, 0};
        return 1;
    }
    if (!has_open_units(solve, dim, l)) {
        fail(solve, "the shard bounds cannot be checked because sizes are unknown");
        return 0;
    }
    if (k == 0)
        return target_in_units(solve, dim, l, target);
    for (int j = 0; j < l->n; j++)
        sizes[j] = l->factors[j].size;
    return targets_at_borders(solve, out, i, axis, l, k, sizes, target);
}

// Finds the factors of the rule that factor k of the layout's dimension `l` shards. Returns their
// number; 0: not possible.
static int targets_of(struct solve *solve, bool out, int i, int axis, const struct tile_dim *l,
                      int k, int64_t size, struct target *target)
{
    const struct rule_dim *dim = dim_of(solve, out, i, axis);
    int64_t sizes[TILE_MAX_FACTORS], product = 1;
    if (dim->n == 0) {
        solve->broadcast = dim->broadcast;
        fail(solve, size == 1 ? "a dimension of size 1 is sharded"
                              : "a dimension is sharded that the operator's rule does not shard");
        return 0;
    }
    // the layout fits the size, and the sizes of all factors of the rule are known
    bool known = size > 0 && tsr__dim_factor_sizes(l, size, sizes);
    for (int j = 0; j < dim->n; j++)
        known = known && size_of(solve, dim->factors[j]) > 0 &&
                mul_ok(product, size_of(solve, dim->factors[j]), &product);
    if ((dim->n == 1 && l->n == 1) || size == 1 || !known)
        return targets_open(solve, out, i, axis, l, k, size, target);
    if (product != size && dim->window)
        fail(solve, "a dimension that needs windows may only be sharded in contiguous shards");
    return product == size ? targets_at_borders(solve, out, i, axis, l, k, sizes, target) : 0;
}

// ---- adding a layout ----------------------------------------------------------------------------

// True if every shard starts at a multiple of the factor's unit. Units, such as blocks of packed
// weights, must not be split.
static bool unit_fits(const struct rule_factor *factor, const struct target *target)
{
    int64_t size = factor->size.value;
    if (factor->unit == 1)
        return true;
    for (int64_t j = 1; j < target->cuts; j++)
        if (size < 0 || tsr__share_start(size, target->cuts, target->shares, j) % factor->unit)
            return false;
    return true;
}

// False if sharding the factor would give the node two kinds of reductions, such as sum and
// maximum.
static bool combines(const struct solve *solve, int factor)
{
    const struct rule_factor *all = solve->rule->factors;
    for (int g = 0; g < solve->rule->n_factors; g++)
        if (all[factor].kind == FACTOR_RED && all[g].kind == FACTOR_RED && solve->cuts[g] > 1 &&
            all[factor].combine != all[g].combine)
            return false;
    return true;
}

static const char *why_whole(const struct rule_factor *factor)
{
    if (factor->why)
        return factor->why;
    return "a dimension is sharded that this operator needs unsharded";
}

// True if the factor may be sharded as `target` describes; otherwise sets the reason. Statistics
// (the axis of a softmax) are sharded only for explicit specs, because the node is then replaced by
// several nodes.
static bool may_cut(struct solve *solve, const struct target *target)
{
    const struct rule_factor *factor = &solve->rule->factors[target->factor];
    if (factor->kind == FACTOR_REP ||
        (factor->kind == FACTOR_STAT && (solve->arriving || solve->intact)))
        return fail(solve, why_whole(factor));
    bool composed = solve->pinning && solve->shared[target->factor];
    bool settled = (solve->pinned[target->factor] && !composed) || solve->cuts[target->factor] > 1;
    if (settled && (solve->cuts[target->factor] != target->cuts ||
                    solve->shares[target->factor] != target->shares))
        return fail(solve, "the shardings of the node contradict each other");
    int64_t units = tsr__units_of(target->cuts, target->shares);
    bool empty = factor->size.value >= 0 && units > factor->size.value;
    bool windows = factor->least && units > factor->least;
    if ((empty && solve->filled) || (windows && (solve->filled || solve->drop_empty)))
        return fail(solve, "a dimension has fewer elements than shards");
    if (!combines(solve, target->factor))
        return fail(solve, "two reductions of different kinds are sharded");
    return unit_fits(factor, target) ||
           fail(solve, "a shard bound is inside a unit that must not be split");
}

// If some parts of the target have no element of the factor, counts only the others. Layouts have
// no empty parts then if the size of their dimension is known (tsr__layout_filled), but a factor
// may have its size from another tensor, or be a window. Example: a signal of 8 elements in shards
// of 5, 1 and 2 has a single frame, which is in the last part.
static void leave_out_empty(const struct solve *solve, struct target *target)
{
    int64_t size = size_of(solve, target->factor), filled[TILE_MAX_UNITS], n = 0;
    tile_shares shares = target->shares;
    if (!solve->drop_empty || size < 0 || size >= tsr__units_of(target->cuts, shares))
        return;
    for (int64_t j = 0; shares && j < target->cuts; j++) {
        filled[n] = tsr__share_size(size, target->cuts, shares, j);
        n += filled[n] > 0;
    }
    if (shares && n == target->cuts)
        return;
    bool fits;
    target->stated = target->cuts;
    target->stated_shares = shares;
    target->cuts = int64_max(shares ? n : size, 1);
    target->shares = n > 1 ? tsr__shares_of(filled, n, &fits) : 0;
}

// Replaces a part of the layout by its number among the parts with elements. Returns false if it is
// empty.
static bool is_filled(const struct solve *solve, const struct target *target, int64_t *part)
{
    int64_t size = size_of(solve, target->factor), cuts = target->stated, before = 0;
    if (!target->stated)
        return true;
    if (!target->stated_shares || size == 0)
        return tsr__part_filled(size, cuts, part);
    for (int64_t j = 0; j < *part; j++)
        before += tsr__share_size(size, cuts, target->stated_shares, j) > 0;
    bool filled = tsr__share_size(size, cuts, target->stated_shares, *part) > 0;
    *part = before;
    return filled;
}

// Applies one split of a layout to a factor. `shards` has the shard of each row of the table. The
// first layout that shards the factor gives every row its part. Later layouts drop the rows that
// have another part.
static void settle(struct solve *solve, const struct target *target,
                   const struct tile_layout *layout, int loop, const int64_t *shards)
{
    bool fresh = solve->cuts[target->factor] == 1;
    solve->cuts[target->factor] = target->cuts;
    solve->shares[target->factor] = target->shares;
    solve->seen[target->factor] = true;
    for (int64_t row = 0; row < solve->n_rows; row++) {
        int64_t coords[TILE_MAX_RANK * TILE_MAX_FACTORS];
        if (!solve->on[row])
            continue;
        tsr__layout_coords(layout, shards[row], coords);
        int64_t part = coords[loop] / target->stride,
                *at = &solve->coords[row * solve->cap + target->factor];
        part %= target->stated ? target->stated : target->cuts;
        if (!is_filled(solve, target, &part))
            solve->on[row] = false;
        if (fresh)
            *at = part;
        else if (*at != part)
            solve->on[row] = false;
    }
}

// Adds one loop (sharded factor) of a layout to the placement. Returns false, with the reason, if
// it does not fit.
static bool add_loop(struct solve *solve, bool out, int i, const struct tile_layout *layout,
                     int loop, const struct shape *shape, const int64_t *shards)
{
    struct tile_loop at = layout->loops[loop];
    struct target t[MAX_TARGETS];
    int64_t size = shape->rank > at.dim ? shape->dims[at.dim].value : -1;
    int n = targets_of(solve, out, i, at.dim, &layout->dims[at.dim], at.factor, size, t);
    for (int k = 0; k < n; k++)
        leave_out_empty(solve, &t[k]);
    for (int k = 0; k < n; k++)
        if (!may_cut(solve, &t[k]))
            return false;
    for (int k = 0; k < n; k++)
        settle(solve, &t[k], layout, loop, shards);
    return n > 0 && tsr__solve_covers(solve);
}

// The shards of each device: device d owns count[d] shards, from at[first[d]] on.
struct owned {
    int64_t *first, *count, *at;
};

// Finds the shards of each device. With SOLVE_ONE_PART, a device with several shards is treated as
// if it had none. Returns false if out of memory.
static bool find_owned(const struct solve *solve, const struct tile_layout *layout,
                       struct owned *owned)
{
    int64_t n_owners = layout->first[layout->n_shards];
    owned->first = ARENA_ARRAY(solve->arena, int64_t, (size_t)solve->n_all + 2);
    owned->count = ARENA_ARRAY(solve->arena, int64_t, (size_t)solve->n_all + 1);
    owned->at = ARENA_ARRAY(solve->arena, int64_t, (size_t)n_owners + 1);
    if (solve->arena->failed)
        return false;
    for (int64_t i = 0; i < n_owners; i++)
        if (layout->owners[i] >= 0 && layout->owners[i] < solve->n_all)
            owned->first[layout->owners[i] + 1]++;
    for (int64_t d = 0; d < solve->n_all; d++)
        owned->first[d + 1] += owned->first[d];
    for (int64_t k = 0; k < layout->n_shards; k++)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++) {
            int64_t d = layout->owners[i];
            if (d >= 0 && d < solve->n_all)
                owned->at[owned->first[d] + owned->count[d]++] = k;
        }
    for (int64_t d = 0; d < solve->n_all; d++)
        if (solve->mode == SOLVE_ONE_PART && owned->count[d] > 1)
            owned->count[d] = 0;
    return true;
}

// Repeats each row of the table for each shard that its device owns in the layout. Example: a row
// of a device with three shards becomes three rows. Devices without shards are dropped. Returns the
// shard of each row, or NULL if out of memory or if there are too many rows.
static int64_t *join_shards(struct solve *solve, const struct tile_layout *layout)
{
    struct solve before = *solve;
    struct owned owned;
    int64_t n = 0, at = 0;
    if (!find_owned(solve, layout, &owned))
        return NULL;
    for (int64_t row = 0; row < before.n_rows; row++)
        if (before.on[row])
            n += owned.count[before.device[row]];
    int64_t *shards = ARENA_ARRAY(solve->arena, int64_t, (size_t)n + 1);
    if (n > SOLVE_MAX_ROWS || !shards || !make_rows(solve, n))
        return NULL;
    for (int64_t row = 0; row < before.n_rows; row++) {
        int64_t d = before.device[row];
        for (int64_t k = 0; before.on[row] && k < owned.count[d]; k++) {
            copy_row(solve, at, &before, row);
            shards[at++] = owned.at[owned.first[d] + k];
        }
    }
    return shards;
}

static bool same_row(const struct solve *solve, int64_t a, int64_t b)
{
    return solve->on[b] && solve->device[a] == solve->device[b] &&
           memcmp(&solve->coords[a * solve->cap], &solve->coords[b * solve->cap],
                  (size_t)solve->rule->n_factors * sizeof(*solve->coords)) == 0;
}

// Drops rows that equal another row of the same device. They occur if a split of the layout was
// left out.
static void drop_repeats(struct solve *solve)
{
    for (int64_t row = 0; row < solve->n_rows; row++)
        for (int64_t k = row - 1;
             k >= 0 && solve->on[row] && solve->device[k] == solve->device[row]; k--)
            solve->on[row] = !same_row(solve, row, k);
}

int64_t tsr__solve_devices(const struct solve *solve)
{
    int64_t n = 0, last = -1;
    for (int64_t row = 0; row < solve->n_rows; row++)
        if (solve->on[row] && solve->device[row] != last) {
            last = solve->device[row];
            n++;
        }
    return n;
}

// Pins the factors of the tensor whose explicit layout was just added: later layouts must not shard
// them differently. A sharded axis is not split further. Example: an axis of 6 = 2 * 3 elements is
// in 2 shards; its factor 3 stays unsharded, even if another layout of the node shards it. With
// `strict`, an unsharded axis stays unsharded, and an earlier layout must not have sharded it.
// Otherwise another input may shard it. Example: A {2,1:(0,1),2} and B
// {1,2:(0,2),(1,2)} of Add. A device then computes the intersection of its shards of A and B.
// Returns false, with the reason in solve->wrong, if an earlier layout contradicts this one.
static bool pin(struct solve *solve, bool out, int i)
{
    const struct rule_tensor *tensor = rule_slot(solve->rule, out, (size_t)i);
    for (int axis = 0; axis < tensor->rank; axis++)
        for (int k = 0; k < tensor->dims[axis].n; k++) {
            int factor = tensor->dims[axis].factors[k];
            bool reduced = solve->rule->factors[factor].kind == FACTOR_RED;
            bool composes = !solve->strict && !(reduced && solve->strict_sums);
            bool cut_before = solve->cuts[factor] > 1 && !solve->seen[factor];
            if (cut_before && !composes)
                return fail(solve, "the shardings of the node contradict each other");
            solve->shared[factor] = composes && !solve->seen[factor] &&
                                    (solve->shared[factor] || !solve->pinned[factor]);
            solve->pinned[factor] = true;
        }
    return true;
}

// Adds the layout of input or output i to the placement. A tensor cannot be sharded if the node
// reads it in host memory, or if its rank differs from the rule's.
bool tsr__solve_add(struct solve *solve, bool out, int i, const struct tile_layout *layout,
                    const struct shape *shape, bool each_loop, bool to_pin)
{
    const struct rule_tensor *tensor = rule_slot(solve->rule, out, (size_t)i);
    int64_t *shards = join_shards(solve, layout);
    if (!shards)
        return fail(solve, solve->arena->failed ? "out of memory" : "a device has too many shards");
    memset(solve->seen, 0, sizeof(solve->seen));
    solve->arriving = each_loop;
    solve->pinning = to_pin;
    if (!tsr__solve_covers(solve))
        return false;
    if ((tensor->host || tensor->rank != layout->rank) && layout->n_shards > 1)
        return each_loop || fail(solve, "an input that controls the node is sharded");
    for (int loop = 0; loop < layout->n_loops; loop++) {
        struct solve attempt = tsr__solve_copy(solve);
        if (solve->arena->failed)
            return fail(solve, "out of memory");
        if (add_loop(&attempt, out, i, layout, loop, shape, shards))
            *solve = attempt;
        else if (!each_loop) {
            solve->broadcast = attempt.broadcast;
            return fail(solve, attempt.wrong);
        }
    }
    drop_repeats(solve);
    // While inputs are added, tsr__solve_even has not yet chosen the devices of each part.
    if (!to_pin && !each_loop && !tsr__solve_one_sum(solve))
        return false;
    return !to_pin || tensor->host || pin(solve, out, i);
}

// ---- results ------------------------------------------------------------------------------------

// True if the layouts of n tensors can be written as specs. A sharded dimension of several factors
// can be written only if at most one of their sizes is unknown.
static bool writable(struct solve *solve, const struct rule_tensor *tensor, int n)
{
    for (int i = 0; i < n; i++)
        for (int axis = 0; axis < tensor[i].rank; axis++) {
            const struct rule_dim *dim = &tensor[i].dims[axis];
            int open = 0, cut = 0;
            for (int k = 0; k < dim->n; k++) {
                open += size_of(solve, dim->factors[k]) < 0;
                cut += solve->cuts[dim->factors[k]] > 1;
            }
            if (cut && ((open > 1 && dim->n > 1) || dim->n > TILE_MAX_FACTORS))
                return fail(solve, "the sharding needs sizes that are unknown");
        }
    return true;
}

// True if the layouts of all tensors can be written as specs. The result depends only on the rule
// and the shard counts, so it is cached: most added layouts change neither.
static bool all_writable(struct solve *solve)
{
    if (solve->written == solve->rule &&
        memcmp(solve->written_cuts, solve->cuts, sizeof solve->cuts) == 0)
        return true;
    if (!writable(solve, solve->rule->inputs, solve->rule->n_inputs) ||
        !writable(solve, solve->rule->outputs, solve->rule->n_outputs))
        return false;
    solve->written = solve->rule;
    memcpy(solve->written_cuts, solve->cuts, sizeof solve->cuts);
    return true;
}

// True if every cell (combination of parts) has a device. Example: with m and k in 2 shards on four
// devices, each cell has one device; without device 3, cell (1,1) has none. While layouts of inputs
// are added, parts of a sum may be on different numbers of devices; tsr__solve_even drops
// devices later.
bool tsr__solve_covers(struct solve *solve)
{
    int64_t cells = 1, n_on = 0;
    for (int64_t row = 0; row < solve->n_rows; row++)
        n_on += solve->on[row];
    if (!n_on)
        return fail(solve, "no device holds all inputs");
    for (int factor = 0; factor < solve->rule->n_factors; factor++)
        if (!mul_ok(cells, solve->cuts[factor], &cells) || cells > n_on)
            return fail(solve, "no device has the shards that the operator combines");
    int64_t *count = tsr__solve_count(solve, cells);
    if (!count)
        return fail(solve, "out of memory");
    for (int64_t c = 0; c < cells; c++)
        if (!count[c])
            return fail(solve, "no device has the shards that the operator combines");
    bool executed = solve->mode != SOLVE_VALID && !solve->pinning && !solve->arriving;
    if (executed && !tsr__solve_sums_are_even(solve, count))
        return fail(solve, "partial sums are on unequal numbers of devices");
    return all_writable(solve);
}

// Stores the placement in *out. Each row of its coordinates has one entry per factor of the rule.
// The rule may be in solve->keep, which must live as long as the placement. Returns false if out of
// memory.
bool tsr__solve_result(const struct solve *solve, struct arena *arena, struct placement *out)
{
    size_t n = 0, factors = (size_t)solve->rule->n_factors;
    for (int64_t row = 0; row < solve->n_rows; row++)
        n += solve->on[row];
    *out = (struct placement){.rule = solve->rule, .n_devices = n};
    out->cuts = ARENA_ARRAY(arena, int64_t, factors + 1);
    out->shares = ARENA_ARRAY(arena, tile_shares, factors + 1);
    out->devices = ARENA_ARRAY(arena, int64_t, n + 1);
    out->coords = ARENA_ARRAY(arena, int64_t, n * factors + 1);
    if (arena->failed)
        return false;
    memcpy(out->cuts, solve->cuts, factors * sizeof(int64_t));
    memcpy(out->shares, solve->shares, factors * sizeof(tile_shares));
    size_t at = 0;
    for (int64_t row = 0; row < solve->n_rows; row++)
        if (solve->on[row]) {
            memcpy(&out->coords[at * factors], &solve->coords[row * solve->cap],
                   factors * sizeof(int64_t));
            out->devices[at++] = solve->device[row];
        }
    return true;
}

// ---- turns -------------------------------------------------------------------------------------

// True if every shard is one contiguous range of each dimension, so that shards can be
// concatenated.
static bool is_joinable(const struct tile_layout *layout)
{
    for (int axis = 0; axis < layout->rank; axis++)
        for (int k = 1; k < layout->dims[axis].n; k++)
            if (layout->dims[axis].factors[k].cuts > 1)
                return false;
    return true;
}

static bool needs_windows(const struct solve *solve)
{
    for (int i = 0; i < solve->rule->n_windows; i++)
        if (solve->cuts[solve->rule->windows[i].factor] > 1)
            return true;
    return false;
}

// True for a pooling node with ceil_mode. Engines may infer a wrong size for its output and then
// refuse to concatenate it with received shards.
static bool rounds_up(const tsr_node *node)
{
    const tsr_attr *ceil = tsr_node_find_attr(node, "ceil_mode");
    return ceil && tsr_attr_int(ceil, 0) != 0;
}

// True if the turns give a device all of the output that it owns: either one shard per turn, which
// can be concatenated, or in each turn a part of the same sum.
static bool turns_give(const struct solve *solve, const struct placement *placement,
                       const struct tile_layout *layout)
{
    int64_t owners = layout->first[layout->n_shards];
    if (tsr__solve_reduces(solve) && owners == tsr__solve_devices(solve))
        return true;
    return is_joinable(layout) && owners == (int64_t)placement->n_devices;
}

bool tsr__solve_turns_fit(struct solve *solve, const tsr_node *node, const struct shapes *shapes)
{
    struct placement placement;
    if (!tsr__solve_result(solve, solve->arena, &placement))
        return fail(solve, "out of memory");
    if (!tsr__placement_has_turns(&placement))
        return true;
    if (needs_windows(solve))
        return fail(solve, "a device has several shards, and the operator needs windows of them");
    if (rounds_up(node))
        return fail(solve, "a device has several shards, and the operator rounds sizes up");
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (!value)
            continue;
        const struct tile_layout *layout =
            tsr__placement_project(solve->arena, &placement, &placement.rule->outputs[i]);
        if (!layout || tsr__shapes_is_list(shapes, value) || !turns_give(solve, &placement, layout))
            return fail(solve, "a device has several shards, whose results cannot be concatenated");
    }
    return true;
}
