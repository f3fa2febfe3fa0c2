// SPDX-License-Identifier: Apache-2.0
// solve.c - finds the placement of one node: how often each factor is cut, and which part each
// device works on.
//
// Layouts of the node's tensors are taken in one after the other. A cut of a dimension becomes a
// cut of the rule's factors that make it up, provided that the bounds coincide; where a layout cuts
// inside a factor (heads of a hidden size), the rule is refined: the factor becomes two everywhere.
// A device that disagrees with what is settled drops out; in the end every cell must have a device.
// Knows no specs.
#include "sharding/solve.h"

bool tsr__solve_init(struct solve *s, struct arena *a, struct arena *keep, const struct rule *r,
                     int64_t n_all)
{
    *s = (struct solve){.arena = a, .keep = keep, .rule = r, .n_all = n_all};
    s->cap = r->n_factors + SOLVE_SPARE;
    if (s->cap > RULE_MAX_FACTORS)
        s->cap = RULE_MAX_FACTORS;
    s->on = ARENA_ARRAY(a, bool, (size_t)n_all + 1);
    s->coords = ARENA_ARRAY(a, int64_t, (size_t)(n_all * s->cap) + 1);
    for (int i = 0; i < RULE_MAX_FACTORS; i++)
        s->cuts[i] = 1;
    for (int64_t d = 0; s->on && d < n_all; d++)
        s->on[d] = true;
    return !a->failed;
}

struct solve tsr__solve_copy(const struct solve *s)
{
    struct solve c = *s;
    c.on = ARENA_ARRAY(s->arena, bool, (size_t)s->n_all + 1);
    c.coords = ARENA_ARRAY(s->arena, int64_t, (size_t)(s->n_all * s->cap) + 1);
    if (c.on && c.coords) {
        memcpy(c.on, s->on, (size_t)s->n_all * sizeof(bool));
        memcpy(c.coords, s->coords, (size_t)(s->n_all * s->cap) * sizeof(int64_t));
    }
    return c;
}

static bool fail(struct solve *s, const char *why)
{
    s->wrong = why;
    return false;
}

static const struct rule_dim *dim_of(const struct solve *s, bool out, int i, int axis)
{
    return &(out ? s->rule->outputs : s->rule->inputs)[i].dims[axis];
}

static int64_t size_of(const struct solve *s, int f)
{
    return s->rule->factors[f].size.value;
}

// ---- refining ----------------------------------------------------------------------------------

// A dimension in which factor f is followed by its inner half g.
static bool refine_dim(struct arena *a, struct rule_dim *d, int f, int g)
{
    int *list = ARENA_ARRAY(a, int, (size_t)d->n + 1);
    int n = 0;
    if (!list)
        return false;
    bool found = false;
    for (int i = 0; i < d->n; i++)
        found = found || d->factors[i] == f;
    if (!found)
        return true;
    for (int i = 0; i < d->n; i++) {
        list[n++] = d->factors[i];
        if (d->factors[i] == f)
            list[n++] = g;
    }
    *d = (struct rule_dim){.factors = list, .n = n};
    return true;
}

static const struct rule_tensor *refine_tensors(struct arena *a, const struct rule_tensor *t, int n,
                                                int f, int g)
{
    struct rule_tensor *copy = ARENA_ARRAY(a, struct rule_tensor, (size_t)n + 1);
    for (int i = 0; copy && i < n; i++) {
        copy[i] = t[i];
        struct rule_dim *dims = ARENA_ARRAY(a, struct rule_dim, (size_t)t[i].rank + 1);
        for (int d = 0; dims && d < t[i].rank; d++) {
            dims[d] = t[i].dims[d];
            refine_dim(a, &dims[d], f, g);
        }
        copy[i].dims = dims;
    }
    return a->failed ? NULL : copy;
}

// Numbers that count factor f count its inner half too.
static const struct rule_list *refine_lists(struct arena *a, const struct rule *r, int f, int g)
{
    struct rule_list *lists = ARENA_ARRAY(a, struct rule_list, (size_t)r->n_lists + 1);
    for (int i = 0; lists && i < r->n_lists; i++) {
        int n = r->lists[i].n_puts;
        struct rule_put *puts = ARENA_ARRAY(a, struct rule_put, 2 * (size_t)n + 1);
        lists[i] = r->lists[i];
        lists[i].puts = puts;
        for (int k = 0; puts && k < n; k++) {
            puts[k] = r->lists[i].puts[k];
            if (puts[k].factor != f)
                continue;
            puts[lists[i].n_puts] = puts[k];
            puts[lists[i].n_puts++].factor = g;
        }
    }
    return lists;
}

const struct rule *tsr__rule_refine(struct arena *a, const struct rule *r, int f, int64_t inner)
{
    struct rule *c = ARENA_NEW(a, struct rule);
    int g = r->n_factors;
    struct rule_factor *factors = ARENA_ARRAY(a, struct rule_factor, (size_t)g + 1);
    if (!c || !factors)
        return NULL;
    *c = *r;
    memcpy(factors, r->factors, (size_t)g * sizeof(*factors));
    factors[g] = factors[f];
    factors[g].name = tsr__arena_printf(a, "%s_", factors[f].name).p;
    factors[g].size.value = inner;
    factors[f].size.value /= inner;
    c->factors = factors;
    c->n_factors = g + 1;
    c->inputs = refine_tensors(a, r->inputs, r->n_inputs, f, g);
    c->outputs = refine_tensors(a, r->outputs, r->n_outputs, f, g);
    c->lists = refine_lists(a, r, f, g);
    return a->failed ? NULL : c;
}

// What is rewritten depends on which part of its factor a device has.
static bool names_parts(enum rewrite_kind kind)
{
    static const enum rewrite_kind kinds[] = {REWRITE_ATTR,  REWRITE_LOOKUP, REWRITE_SCATTER,
                                              REWRITE_RANGE, REWRITE_WORD,   REWRITE_SHARE};
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (kinds[i] == kind)
            return true;
    return false;
}

bool tsr__rule_rewrites(const struct rule *r, int f)
{
    for (int i = 0; i < r->n_rewrites; i++)
        if (names_parts(r->rewrites[i].kind) && r->rewrites[i].factor == f)
            return true;
    for (int i = 0; i < r->n_windows; i++)
        if (r->windows[i].factor == f)
            return true;
    return false;
}

// Splits factor f, which may be cut already: the cut goes to the halves if it falls on their
// bounds.
static bool split(struct solve *s, int f, int64_t inner)
{
    int64_t size = size_of(s, f), outer = size / inner, cuts = s->cuts[f], low = 1;
    if (s->rule->n_factors >= s->cap || tsr__rule_rewrites(s->rule, f) ||
        s->rule->factors[f].unit != 1)
        return fail(s, "a factor cannot be cut inside");
    if (cuts > 1 && (size % cuts || outer % cuts)) {
        if (size % cuts || cuts % outer)
            return fail(s, "two cuts of one dimension do not have the same bounds");
        low = cuts / outer;
    }
    const struct rule *r = tsr__rule_refine(s->keep, s->rule, f, inner);
    if (!r)
        return fail(s, "out of memory");
    int g = r->n_factors - 1;
    s->rule = r;
    s->cuts[f] = cuts / low;
    s->cuts[g] = low;
    s->pinned[g] = s->pinned[f];
    s->seen[g] = s->seen[f];
    for (int64_t d = 0; d < s->n_all; d++) {
        int64_t *row = &s->coords[d * s->cap];
        row[g] = row[f] % low;
        row[f] /= low;
    }
    return true;
}

// ---- from a cut of a dimension to cuts of factors ----------------------------------------------

struct target {
    int factor;
    int64_t cuts, stride; // its coordinate is coordinate / stride % cuts
};
#define MAX_TARGETS 64

// Makes `at` (a product of inner sizes) a border between factors of the dimension.
static bool border(struct solve *s, bool out, int i, int axis, int64_t at)
{
    const struct rule_dim *d = dim_of(s, out, i, axis);
    int64_t below = 1;
    for (int k = d->n - 1; k >= 0 && below < at; k--) {
        int64_t above = below * size_of(s, d->factors[k]);
        if (above > at) {
            if (at % below || above % at)
                return fail(s, "a cut does not fall on the bounds of the dimension's factors");
            return split(s, d->factors[k], at / below);
        }
        below = above;
    }
    return below == at || fail(s, "a cut does not fall on the bounds of the dimension's factors");
}

// The factor of the dimension whose outer border is `at`, sizes of 1 left out.
static int factor_below(const struct solve *s, bool out, int i, int axis, int64_t at)
{
    const struct rule_dim *d = dim_of(s, out, i, axis);
    int64_t below = 1;
    for (int k = d->n - 1; k >= 0; k--) {
        int64_t above = below * size_of(s, d->factors[k]);
        if (above == at && above > below)
            return d->factors[k];
        below = above;
    }
    return -1;
}

// An even cut: leading factors are fully cut, then one into equal runs.
static int targets_even(struct solve *s, bool out, int i, int axis, int64_t at, int64_t cuts,
                        struct target *t)
{
    int n = 0;
    while (cuts > 1) {
        int f = factor_below(s, out, i, axis, at);
        int64_t size = f >= 0 ? size_of(s, f) : 0;
        if (n == MAX_TARGETS || size < 2 || (size % cuts && cuts % size)) {
            fail(s, "a cut does not fall on the bounds of the dimension's factors");
            return 0;
        }
        int64_t here = size % cuts == 0 ? cuts : size;
        t[n++] = (struct target){f, here, 1};
        cuts /= here;
        at /= size;
    }
    for (int k = n - 2; k >= 0; k--)
        t[k].stride = t[k + 1].stride * t[k + 1].cuts;
    return n;
}

// Sizes not known: only if layout and rule are made alike.
static int targets_alike(struct solve *s, const struct rule_dim *d, const struct tile_dim *l, int k,
                         struct target *t)
{
    bool alike = d->n == l->n;
    for (int i = 0; alike && d->n > 1 && i < d->n; i++) {
        int64_t size = size_of(s, d->factors[i]);
        alike = l->factors[i].size == (size > 0 ? size : 0);
    }
    if (!alike) {
        fail(s, "the sizes that would prove this cut are not known");
        return 0;
    }
    t[0] = (struct target){d->factors[k], l->factors[k].cuts, 1};
    return 1;
}

// Factor k of a layout's dimension as cuts of the rule's factors; the count, 0: not possible.
static int targets_of(struct solve *s, bool out, int i, int axis, const struct tile_dim *l, int k,
                      int64_t size, struct target *t)
{
    const struct rule_dim *d = dim_of(s, out, i, axis);
    int64_t sizes[TILE_MAX_FACTORS], below = 1, product = 1, cuts = l->factors[k].cuts;
    if (d->n == 0) {
        fail(s, "a dimension of size 1 is cut");
        return 0;
    }
    bool known = size > 0 && tsr__dim_sizes(l, size, sizes);
    for (int j = 0; j < d->n; j++)
        known = known && size_of(s, d->factors[j]) > 0 &&
                mul_ok(product, size_of(s, d->factors[j]), &product);
    if ((d->n == 1 && l->n == 1) || !known)
        return targets_alike(s, d, l, k, t);
    for (int j = k + 1; j < l->n; j++)
        below *= sizes[j];
    int64_t above = below * sizes[k];
    if (product != size && d->window)
        fail(s, "a window of a dimension is needed, which is cut in one piece only");
    if (product != size || !border(s, out, i, axis, above))
        return 0;
    if (sizes[k] % cuts == 0)
        return targets_even(s, out, i, axis, above, cuts, t);
    if (!border(s, out, i, axis, below))
        return 0;
    int f = factor_below(s, out, i, axis, above);
    if (f < 0 || size_of(s, f) != sizes[k]) {
        fail(s, "an uneven cut does not fall on the bounds of the dimension's factors");
        return 0;
    }
    t[0] = (struct target){f, cuts, 1};
    return 1;
}

// ---- taking a layout in ------------------------------------------------------------------------

static bool unit_fits(const struct rule_factor *f, int64_t cuts)
{
    if (f->unit == 1)
        return true;
    for (int64_t j = 1; j < cuts; j++)
        if (f->size.value < 0 || tsr__tile_start(f->size.value, cuts, j) % f->unit)
            return false;
    return true;
}

// Reductions of two kinds at one node would not commute.
static bool combines(const struct solve *s, int f)
{
    const struct rule_factor *all = s->rule->factors;
    for (int g = 0; g < s->rule->n_factors; g++)
        if (all[f].kind == FACTOR_RED && all[g].kind == FACTOR_RED && s->cuts[g] > 1 &&
            all[f].combine != all[g].combine)
            return false;
    return true;
}

static bool may_cut(struct solve *s, const struct target *t)
{
    const struct rule_factor *f = &s->rule->factors[t->factor];
    if (f->kind == FACTOR_REP || (f->kind == FACTOR_STAT && (s->arriving || s->intact)))
        return fail(s, "a dimension is cut that this operator needs whole");
    if (s->pinned[t->factor] || (s->cuts[t->factor] > 1 && s->cuts[t->factor] != t->cuts))
        return fail(s, "the shardings of the node do not agree");
    if ((f->size.value >= 0 && t->cuts > f->size.value) || (f->least && t->cuts > f->least))
        return fail(s, "a dimension has fewer elements than shards");
    if (!combines(s, t->factor))
        return fail(s, "two reductions of different kinds are cut");
    return unit_fits(f, t->cuts) || fail(s, "a cut falls inside a unit that must stay together");
}

// shards: per device its only shard, or -1. Devices that are settled otherwise drop out.
static void settle(struct solve *s, const struct target *t, const struct tile_layout *l, int loop,
                   const int64_t *shards)
{
    bool fresh = s->cuts[t->factor] == 1;
    s->cuts[t->factor] = t->cuts;
    s->seen[t->factor] = true;
    for (int64_t d = 0; d < s->n_all; d++) {
        int64_t coords[TILE_MAX_RANK * TILE_MAX_FACTORS];
        if (!s->on[d])
            continue;
        tsr__layout_coords(l, shards[d], coords);
        int64_t part = coords[loop] / t->stride % t->cuts, *at = &s->coords[d * s->cap + t->factor];
        if (fresh)
            *at = part;
        else if (*at != part)
            s->on[d] = false;
    }
}

static bool add_loop(struct solve *s, bool out, int i, const struct tile_layout *l, int loop,
                     const struct shape *shape, const int64_t *shards)
{
    struct tile_loop at = l->loops[loop];
    struct target t[MAX_TARGETS];
    int64_t size = shape->rank > at.dim ? shape->dims[at.dim].value : -1;
    int n = targets_of(s, out, i, at.dim, &l->dims[at.dim], at.factor, size, t);
    for (int k = 0; k < n; k++)
        if (!may_cut(s, &t[k]))
            return false;
    for (int k = 0; k < n; k++)
        settle(s, &t[k], l, loop, shards);
    return n > 0 && tsr__solve_covers(s);
}

// The only shard of each device; others drop out.
static int64_t *only_shards(struct solve *s, const struct tile_layout *l)
{
    int64_t *shards = ARENA_ARRAY(s->arena, int64_t, (size_t)s->n_all + 1);
    if (!shards)
        return NULL;
    for (int64_t d = 0; d < s->n_all; d++)
        shards[d] = -1;
    for (int64_t k = 0; k < l->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, k, &owners);
        for (size_t i = 0; i < n; i++)
            if (owners[i] >= 0 && owners[i] < s->n_all)
                shards[owners[i]] = shards[owners[i]] == -1 ? k : -2;
    }
    for (int64_t d = 0; d < s->n_all; d++)
        s->on[d] = s->on[d] && shards[d] >= 0;
    return shards;
}

// An explicit layout says all about its tensor: what it does not cut is whole from now on, and
// nothing else may have been cut before.
static bool pin(struct solve *s, bool out, int i)
{
    const struct rule_tensor *t = &(out ? s->rule->outputs : s->rule->inputs)[i];
    for (int d = 0; d < t->rank; d++)
        for (int k = 0; k < t->dims[d].n; k++) {
            int f = t->dims[d].factors[k];
            if (s->cuts[f] > 1 && !s->seen[f])
                return fail(s, "the shardings of the node do not agree");
            s->pinned[f] = s->cuts[f] == 1;
        }
    return true;
}

bool tsr__solve_add(struct solve *s, bool out, int i, const struct tile_layout *l,
                    const struct shape *shape, bool each_loop, bool to_pin)
{
    const struct rule_tensor *t = &(out ? s->rule->outputs : s->rule->inputs)[i];
    int64_t *shards = only_shards(s, l);
    if (!shards)
        return fail(s, "out of memory");
    memset(s->seen, 0, sizeof(s->seen));
    s->arriving = each_loop;
    if (!tsr__solve_covers(s))
        return false;
    if ((t->host || t->rank != l->rank) && l->n_shards > 1)
        return each_loop || fail(s, "a value that steers the node is cut");
    for (int loop = 0; loop < l->n_loops; loop++) {
        struct solve attempt = tsr__solve_copy(s);
        if (s->arena->failed)
            return fail(s, "out of memory");
        if (add_loop(&attempt, out, i, l, loop, shape, shards))
            *s = attempt;
        else if (!each_loop)
            return fail(s, attempt.wrong);
    }
    return !to_pin || t->host || pin(s, out, i);
}

// ---- the end -----------------------------------------------------------------------------------

// A dimension of several factors can be written down if at most one size is not known.
static bool writable(struct solve *s, const struct rule_tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < t[i].rank; d++) {
            const struct rule_dim *dim = &t[i].dims[d];
            int open = 0, cut = 0;
            for (int k = 0; k < dim->n; k++) {
                open += size_of(s, dim->factors[k]) < 0;
                cut += s->cuts[dim->factors[k]] > 1;
            }
            if (cut && ((open > 1 && dim->n > 1) || dim->n > TILE_MAX_FACTORS))
                return fail(s, "a cut would need sizes that are not known");
        }
    return true;
}

static int64_t cell_of(const struct solve *s, const int64_t *row, bool reduced)
{
    int64_t cell = 0;
    for (int f = 0; f < s->rule->n_factors; f++)
        cell = cell * s->cuts[f] + (reduced || s->rule->factors[f].kind != FACTOR_RED ? row[f] : 0);
    return cell;
}

bool tsr__solve_covers(struct solve *s)
{
    int64_t cells = 1, n_on = 0;
    for (int64_t d = 0; d < s->n_all; d++)
        n_on += s->on[d];
    if (!n_on)
        return fail(s, "no device holds all inputs");
    for (int f = 0; f < s->rule->n_factors; f++)
        if (!mul_ok(cells, s->cuts[f], &cells) || cells > n_on)
            return fail(s, "no device holds the parts that belong together");
    int64_t *count = ARENA_ARRAY(s->arena, int64_t, (size_t)cells + 1);
    if (!count)
        return fail(s, "out of memory");
    for (int64_t d = 0; d < s->n_all; d++)
        if (s->on[d])
            count[cell_of(s, &s->coords[d * s->cap], true)]++;
    for (int64_t d = 0; d < s->n_all; d++) {
        const int64_t *row = &s->coords[d * s->cap];
        if (s->on[d] && count[cell_of(s, row, true)] != count[cell_of(s, row, false)])
            return fail(s, "parts of a sum lie on unequal numbers of devices");
    }
    for (int64_t c = 0; c < cells; c++)
        if (!count[c])
            return fail(s, "no device holds the parts that belong together");
    return writable(s, s->rule->inputs, s->rule->n_inputs) &&
           writable(s, s->rule->outputs, s->rule->n_outputs);
}

bool tsr__solve_result(const struct solve *s, struct arena *a, struct placement *out)
{
    size_t n = 0, factors = (size_t)s->rule->n_factors;
    for (int64_t d = 0; d < s->n_all; d++)
        n += s->on[d];
    *out = (struct placement){.rule = s->rule, .n_devices = n};
    out->cuts = ARENA_ARRAY(a, int64_t, factors + 1);
    out->devices = ARENA_ARRAY(a, int64_t, n + 1);
    out->coords = ARENA_ARRAY(a, int64_t, n * factors + 1);
    if (a->failed)
        return false;
    memcpy(out->cuts, s->cuts, factors * sizeof(int64_t));
    size_t at = 0;
    for (int64_t d = 0; d < s->n_all; d++)
        if (s->on[d]) {
            memcpy(&out->coords[at * factors], &s->coords[d * s->cap], factors * sizeof(int64_t));
            out->devices[at++] = d;
        }
    return true;
}
