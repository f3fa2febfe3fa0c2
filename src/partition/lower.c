// SPDX-License-Identifier: Apache-2.0
// lower.c - the cheapest way from one layout to another (sharding's reshard plan) as communication
// operators: slices, gathers, all-to-all, reductions in pieces or to one, broadcasts, messages.
//
// The plan names a step by its pattern; an operator does one exact thing. So every step is held
// against what the operator would give, piece by piece, before it is taken. Operators that divide an
// axis need no sizes, so symbolic ones are stood in for by sizes with every rest that there can be. A
// way that has no operator for one of its steps is not taken at all: the caller has Reshard.
#include "internal.h"

#include <stdlib.h>

#define MAX_LOWERED 4                  // steps of a plan
#define NOTED_RANK  14                 // dimensions that travel with a broadcast or message
#define MAX_PIECES  ((int64_t)1 << 12) // shards of a layout; more are resharded in one step

// One step of the way, ready to be planned.
struct lowered {
    enum step_kind kind;
    const struct tile_layout *to;
    struct device_group *groups; // ascending
    size_t n_groups;
    int axis, split_axis;
    int64_t unit;
    int64_t *roots; // by group
    bool same;      // nothing happens
};

struct lowering {
    struct plan *p;
    const struct item *item;
    struct arena arena; // of this question
    const int64_t *shape;
    const struct tile_layout *from, *to;
};

static struct tile_piece *piece_of(struct lowering *w, const struct tile_layout *l, int64_t device)
{
    int64_t shard = tsr__layout_shard_of(l, device, 0);
    return shard < 0 ? NULL : tsr__layout_piece(&w->arena, l, w->shape, shard);
}

static bool dim_equal(const struct tile_piece *a, const struct tile_piece *b, int d)
{
    return a->dims[d].n == b->dims[d].n &&
           memcmp(a->dims[d].at, b->dims[d].at, (size_t)a->dims[d].n * sizeof(*a->dims[d].at)) == 0;
}

static bool piece_equal(const struct tile_piece *a, const struct tile_piece *b, int but, int or)
{
    for (int d = 0; d < a->rank; d++)
        if (d != but && d != or &&!dim_equal(a, b, d))
            return false;
    return true;
}

static int64_t unit_start(int64_t length, int64_t unit, int64_t n, int64_t j)
{
    int64_t at = tsr__tile_start(length / unit + (length % unit != 0), n, j) * unit;
    return at < length ? at : length;
}

// Elements [from, to) of what the intervals of a keep are exactly those of b.
static bool is_stretch(const struct tile_piece *a, const struct tile_piece *b, int d, int64_t from,
                       int64_t to)
{
    int64_t before = 0, k = 0, at = 0;
    for (int64_t i = 0; i < a->dims[d].n; i++) {
        struct tile_interval x = a->dims[d].at[i];
        int64_t start = x.start + (from > before ? from - before : 0);
        int64_t stop = x.stop;
        before += x.stop - x.start;
        if (before > to)
            stop -= before - to;
        while (start < stop) { // b may have neighbours apart
            if (k == b->dims[d].n || b->dims[d].at[k].start + at != start)
                return false;
            int64_t left = b->dims[d].at[k].stop - start;
            int64_t n = left < stop - start ? left : stop - start;
            start += n;
            at += n;
            if (n == left)
                k++, at = 0;
        }
    }
    return k == b->dims[d].n && to - from == b->dims[d].size;
}

// The members' pieces one after the other are what `whole` has in that dimension.
static bool is_joined(struct lowering *w, const struct device_group *g, int d,
                      const struct tile_piece *whole)
{
    int64_t at = 0;
    for (size_t i = 0; i < g->n; i++) {
        struct tile_piece *x = piece_of(w, w->from, g->devices[i]);
        if (!x || !is_stretch(whole, x, d, at, at + x->dims[d].size))
            return false;
        at += x->dims[d].size;
    }
    return at == whole->dims[d].size;
}

// ---- what each operator would give -------------------------------------------------------------

static bool gathers(struct lowering *w, const struct device_group *g, int axis)
{
    for (size_t i = 0; i < g->n; i++) {
        struct tile_piece *x = piece_of(w, w->from, g->devices[i]);
        struct tile_piece *y = piece_of(w, w->to, g->devices[i]);
        if (!x || !y || !piece_equal(x, y, axis, axis) || !is_joined(w, g, axis, y))
            return false;
    }
    return true;
}

// Each member gets its part of the axis of something that all have.
static bool divides(struct lowering *w, const struct device_group *g, int axis, int but,
                    int64_t unit)
{
    struct tile_piece *first = piece_of(w, w->from, g->devices[0]);
    for (size_t i = 0; first && i < g->n; i++) {
        struct tile_piece *x = piece_of(w, w->from, g->devices[i]);
        struct tile_piece *y = piece_of(w, w->to, g->devices[i]);
        int64_t n = (int64_t)g->n, size = first->dims[axis].size;
        if (!x || !y || !piece_equal(x, first, but, but) || !piece_equal(x, y, axis, but) ||
            !is_stretch(x, y, axis, unit_start(size, unit, n, (int64_t)i),
                        unit_start(size, unit, n, (int64_t)i + 1)))
            return false;
    }
    return first != NULL;
}

static bool turns(struct lowering *w, const struct device_group *g, int axis, int split,
                  int64_t unit)
{
    for (size_t i = 0; i < g->n; i++) {
        struct tile_piece *y = piece_of(w, w->to, g->devices[i]);
        if (!y || !is_joined(w, g, axis, y))
            return false;
    }
    return divides(w, g, split, axis, unit);
}

// What the root has, the getters get.
static bool hands_on(struct lowering *w, const struct device_group *g, int64_t root, bool all)
{
    struct tile_piece *x = piece_of(w, w->from, root);
    for (size_t i = 0; i < g->n; i++) {
        struct tile_piece *y = piece_of(w, w->to, g->devices[i]);
        if (!x || (all || g->devices[i] == root ? !y || !piece_equal(x, y, -1, -1) : y != NULL))
            return false;
    }
    return true;
}

// ---- a step ------------------------------------------------------------------------------------

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// Groups of the step in ascending order; what stood first is the root.
static bool take_groups(struct plan *p, const struct device_group *from, size_t n,
                        struct lowered *out)
{
    out->n_groups = n;
    out->groups = ARENA_ARRAY(p->arena, struct device_group, n + 1);
    out->roots = ARENA_ARRAY(p->arena, int64_t, n + 1);
    for (size_t g = 0; out->groups && out->roots && g < n; g++) {
        struct device_group *to = &out->groups[g];
        out->roots[g] = from[g].devices[0];
        to->n = from[g].n;
        to->devices = ARENA_ARRAY(p->arena, int64_t, to->n);
        if (!to->devices)
            return false;
        memcpy(to->devices, from[g].devices, to->n * sizeof(*to->devices));
        qsort(to->devices, to->n, sizeof(*to->devices), by_number);
    }
    return !p->arena->failed;
}

// Elements that stay together where the layout cuts that dimension: 1, or what stands inside the cut.
static int64_t unit_of(const struct tile_layout *l, int d)
{
    int64_t unit = 1;
    int cut = l->dims[d].n;
    for (int f = 0; f < l->dims[d].n; f++)
        if (l->dims[d].factors[f].cuts > 1)
            cut = f;
    for (int f = cut + 1; f < l->dims[d].n; f++)
        if (!mul_ok(unit, l->dims[d].factors[f].size, &unit) || unit < 1)
            return 1;
    return unit;
}

static bool all_groups(struct lowering *w, const struct lowered *s,
                       bool (*fits)(struct lowering *, const struct lowered *, size_t))
{
    for (size_t g = 0; g < s->n_groups; g++)
        if (!fits(w, s, g))
            return false;
    return s->n_groups > 0;
}

static bool fits_gather(struct lowering *w, const struct lowered *s, size_t g)
{
    return gathers(w, &s->groups[g], s->axis);
}

static bool fits_scatter(struct lowering *w, const struct lowered *s, size_t g)
{
    return divides(w, &s->groups[g], s->axis, s->axis, s->unit);
}

static bool fits_turn(struct lowering *w, const struct lowered *s, size_t g)
{
    return turns(w, &s->groups[g], s->axis, s->split_axis, s->unit);
}

static bool fits_reduce(struct lowering *w, const struct lowered *s, size_t g)
{
    return hands_on(w, &s->groups[g], s->roots[g], false);
}

static bool fits_broadcast(struct lowering *w, const struct lowered *s, size_t g)
{
    return hands_on(w, &s->groups[g], s->roots[g], true);
}

// Tries the axes of the result, each in single elements and in its units.
static bool find_scatter(struct lowering *w, struct lowered *s)
{
    for (s->axis = 0; s->axis < w->to->rank; s->axis++) {
        s->unit = 1;
        if (all_groups(w, s, fits_scatter))
            return true;
        s->unit = unit_of(w->to, s->axis);
        if (s->unit > 1 && all_groups(w, s, fits_scatter))
            return true;
    }
    return false;
}

static bool find_turn(struct lowering *w, struct lowered *s, int axis, int split)
{
    if (axis < 0 || split < 0)
        return false;
    s->axis = axis;
    s->split_axis = split;
    s->unit = 1;
    if (all_groups(w, s, fits_turn))
        return true;
    s->unit = unit_of(w->to, split);
    return s->unit > 1 && all_groups(w, s, fits_turn);
}

// Every move takes a whole piece from one to another, and nobody is in two of them.
static bool find_messages(struct lowering *w, const struct reshard_step *from, struct lowered *s)
{
    struct device_group *pairs = ARENA_ARRAY(w->p->arena, struct device_group, from->n_moves + 1);
    int64_t *ends = ARENA_ARRAY(w->p->arena, int64_t, 2 * from->n_moves + 1);
    for (size_t i = 0; pairs && ends && i < from->n_moves; i++) {
        ends[2 * i] = from->moves[i].from_device;
        ends[2 * i + 1] = from->moves[i].to_device;
        pairs[i] = (struct device_group){&ends[2 * i], 2};
        for (size_t k = 0; k < 2 * i; k++)
            if (ends[k] == ends[2 * i] || ends[k] == ends[2 * i + 1])
                return false;
    }
    if (w->p->arena->failed || !take_groups(w->p, pairs, from->n_moves, s))
        return false;
    for (size_t g = 0; g < s->n_groups; g++) {
        struct tile_piece *x = piece_of(w, w->from, ends[2 * g]);
        struct tile_piece *y = piece_of(w, w->to, ends[2 * g + 1]);
        if (!x || !y || !piece_equal(x, y, -1, -1) || tsr__layout_has_device(w->to, ends[2 * g]))
            return false;
    }
    return s->n_groups > 0;
}

// Who owns something afterwards and is in no group would get nothing.
static bool all_served(const struct lowering *w, const struct lowered *s)
{
    for (int64_t i = 0; i < w->to->first[w->to->n_shards]; i++) {
        bool served = false;
        for (size_t g = 0; g < s->n_groups && !served; g++)
            for (size_t k = 0; k < s->groups[g].n && !served; k++)
                served = s->groups[g].devices[k] == w->to->owners[i];
        if (!served)
            return false;
    }
    return true;
}

static bool lower_step(struct lowering *w, const struct reshard_step *from, struct lowered *s)
{
    s->to = from->layout;
    if (from->op == RESHARD_SLICE || from->op == RESHARD_NOTHING) {
        s->kind = STEP_SLICE;
        return tsr__local_ok(w->p, w->item, w->from, w->to, &s->same);
    }
    if (from->op != RESHARD_PERMUTE && !take_groups(w->p, from->groups, from->n_groups, s))
        return false;
    bool ok = false, small = w->to->rank <= NOTED_RANK;
    switch (from->op) {
    case RESHARD_ALL_GATHER:
        s->kind = STEP_GATHER;
        s->axis = from->axis;
        ok = from->axis >= 0 && all_groups(w, s, fits_gather);
        break;
    case RESHARD_ALL_TO_ALL:
        s->kind = STEP_ALL_TO_ALL;
        ok = find_turn(w, s, from->axis, from->to_axis) ||
             find_turn(w, s, from->to_axis, from->axis);
        break;
    case RESHARD_REDUCE_SCATTER:
        s->kind = STEP_REDUCE_SCATTER;
        ok = find_scatter(w, s);
        break;
    case RESHARD_ALL_REDUCE:
        s->kind = STEP_REDUCE;
        ok = tsr__layout_same(w->from, w->to);
        break;
    case RESHARD_REDUCE:
        s->kind = STEP_REDUCE_TO;
        ok = all_groups(w, s, fits_reduce);
        break;
    case RESHARD_BROADCAST:
        s->kind = STEP_BROADCAST;
        ok = small && all_groups(w, s, fits_broadcast);
        break;
    case RESHARD_PERMUTE:
        s->kind = STEP_SEND;
        ok = small && find_messages(w, from, s);
        break;
    default:
        break;
    }
    return ok && all_served(w, s);
}

// ---- the way -----------------------------------------------------------------------------------

#define MAX_RESTS 1024 // sizes that are tried

// The size of a dimension all of whose factors are told as numbers; 0: a factor follows from the dimension.
static int64_t told_size(const struct tile_dim *t)
{
    int64_t size = t->n ? 1 : 0;
    for (int f = 0; f < t->n; f++)
        if (!mul_ok(size, t->factors[f].size, &size))
            return 0;
    return size;
}

// Sizes to plan with: symbolic ones divide in round 0 and leave a rest that is the round's number otherwise. What becomes of
// a rest repeats with the product of the cuts; *rounds is where all have been seen. False: too many.
static bool stand_in(const struct item *it, const struct tile_layout *from,
                     const struct tile_layout *to, int64_t round, int64_t *shape, int64_t *rounds)
{
    *rounds = 1;
    for (int d = 0; d < it->rank; d++) {
        shape[d] = it->dims[d].value;
        if (shape[d] >= 0)
            continue;
        int64_t size = 1, told = told_size(&from->dims[d]);
        shape[d] = told ? told : told_size(&to->dims[d]);
        if (shape[d])
            continue;
        for (int side = 0; side < 2; side++) {
            const struct tile_dim *t = &(side ? to : from)->dims[d];
            for (int f = 0; f < t->n; f++)
                if (!mul_ok(size, t->factors[f].size ? t->factors[f].size : t->factors[f].cuts,
                            &size) ||
                    size > MAX_RESTS)
                    return false;
            if (round && t->n > 1)
                return false; // a rest within units: not for a guess
        }
        shape[d] = 4 * size + round % size;
        *rounds = size > *rounds ? size : *rounds;
    }
    return true;
}

static int lower_way(struct lowering *w, const struct tile_layout *from,
                     const struct partial *pending, const struct tile_layout *to,
                     struct lowered *out)
{
    struct reshard *r = NULL;
    size_t bytes = (size_t)tsr_dtype_bits(tsr__carried(w->item->dtype)) / 8;
    if (tsr__reshard_plan(w->p->arena, from, pending, to, w->shape, bytes, &r) != TSR_OK || !r ||
        r->n_steps > MAX_LOWERED)
        return 0;
    w->from = from;
    for (int i = 0; i < r->n_steps; i++) {
        w->to = r->steps[i].layout;
        out[i] = (struct lowered){.unit = 1};
        if (!lower_step(w, &r->steps[i], &out[i]))
            return 0;
        w->from = w->to;
    }
    return r->n_steps;
}

static bool fits_message(struct lowering *w, const struct lowered *s, size_t g)
{
    const struct device_group *pair = &s->groups[g];
    int64_t other = pair->devices[pair->devices[0] == s->roots[g]];
    struct tile_piece *x = piece_of(w, w->from, s->roots[g]), *y = piece_of(w, w->to, other);
    return x && y && piece_equal(x, y, -1, -1);
}

// The operator of that step still does what it should, with other sizes.
static bool still_fits(struct lowering *w, const struct lowered *s)
{
    switch (s->kind) {
    case STEP_SLICE:
    case STEP_REDUCE:
        return true; // found without sizes
    case STEP_GATHER:
        return all_groups(w, s, fits_gather);
    case STEP_ALL_TO_ALL:
        return all_groups(w, s, fits_turn);
    case STEP_REDUCE_SCATTER:
        return all_groups(w, s, fits_scatter);
    case STEP_REDUCE_TO:
        return all_groups(w, s, fits_reduce);
    case STEP_BROADCAST:
        return all_groups(w, s, fits_broadcast);
    case STEP_SEND:
        return all_groups(w, s, fits_message);
    default:
        return false;
    }
}

static int64_t cuts_of(const struct tile_layout *l, int d)
{
    int64_t n = 1;
    for (int f = 0; f < l->dims[d].n; f++)
        n *= l->dims[d].factors[f].cuts;
    return n;
}

// In between, no dimension whose size is not known is cut more often than at either end: it may have
// fewer elements than that.
static bool cuts_no_more(const struct item *it, const struct tile_layout *from,
                         const struct tile_layout *to, const struct tile_layout *between)
{
    for (int d = 0; d < it->rank; d++)
        if (it->dims[d].value < 0 && cuts_of(between, d) > cuts_of(from, d) &&
            cuts_of(between, d) > cuts_of(to, d))
            return false;
    return true;
}

// A way that was found for sizes that divide, with every rest that there can be.
static bool holds(struct lowering *w, int64_t *shape, const struct tile_layout *from,
                  const struct tile_layout *to, const struct lowered *way, int n)
{
    int64_t rounds = 2;
    for (int i = 0; i < n; i++)
        if (!cuts_no_more(w->item, from, to, way[i].to))
            return false;
    for (int64_t round = 1; round < rounds; round++) {
        if (!stand_in(w->item, from, to, round, shape, &rounds))
            return false;
        w->from = from;
        for (int i = 0; i < n; i++) {
            w->to = way[i].to;
            if (!still_fits(w, &way[i]))
                return false;
            w->from = w->to;
        }
        tsr__arena_free(&w->arena);
        tsr__arena_init(&w->arena, w->p->session);
    }
    return true;
}

static int find_way(struct plan *p, const struct item *it, const struct tile_layout *from,
                    const struct partial *pending, const struct tile_layout *to,
                    struct lowered *out)
{
    int64_t shape[TILE_MAX_RANK], rounds;
    struct lowering w = {.p = p, .item = it, .shape = shape};
    tsr__arena_init(&w.arena, p->session);
    bool known = stand_in(it, from, to, 0, shape, &rounds);
    int n = known ? lower_way(&w, from, pending, to, out) : 0;
    if (n && !it->fixed && !holds(&w, shape, from, to, out, n))
        n = 0;
    tsr__arena_free(&w.arena);
    return n;
}

static struct form *plan_way(struct plan *p, struct form *from, const struct node_flow *flow,
                             const struct lowered *way, int n)
{
    bool partial = flow != NULL;
    for (int i = 0; i < n && from; i++) {
        const struct lowered *s = &way[i];
        struct form *f = tsr__form_new(p, from->item, s->to, FORM_MADE);
        struct step *st = NULL;
        if (!f)
            return NULL;
        partial = partial && s->kind != STEP_REDUCE && s->kind != STEP_REDUCE_SCATTER &&
                  s->kind != STEP_REDUCE_TO;
        f->partial = partial;
        if (s->same) {
            f->same = from;
        } else {
            if (!(st = tsr__step_new(p, s->kind, s->kind == STEP_SLICE ? 2 : 1, 1)))
                return NULL;
            st->flow = flow;
            st->inputs[0] = from;
            st->outputs[0] = f;
            st->groups = s->groups;
            st->n_groups = s->n_groups;
            st->group_live = ARENA_ARRAY(p->arena, unsigned char, s->n_groups + 1);
            st->axis = s->axis;
            st->split_axis = s->split_axis;
            st->unit = s->unit;
            st->roots = s->roots;
        }
        from = f;
    }
    return p->arena->failed ? NULL : from;
}

struct form *tsr__plan_lower(struct plan *p, struct form *from, const struct node_flow *pending,
                             const struct tile_layout *want)
{
    struct lowered way[MAX_LOWERED];
    const struct item *it = from->item;
    bool once = tsr__owns_once(from->layout) && tsr__owns_once(want);
    if (!once || it->rank < 0 || it->rank > TILE_MAX_RANK || from->layout->rank != it->rank ||
        want->rank != it->rank || tsr_dtype_bits(tsr__carried(it->dtype)) < 8 ||
        from->layout->n_shards > MAX_PIECES || want->n_shards > MAX_PIECES)
        return NULL;
    struct partial partial = {0};
    if (pending)
        partial = (struct partial){pending->combine, pending->groups, pending->n_groups};
    int n = find_way(p, it, from->layout, pending ? &partial : NULL, want, way);
    return n ? plan_way(p, from, pending, way, n) : NULL;
}
