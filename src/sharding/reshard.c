// SPDX-License-Identifier: Apache-2.0
// reshard.c - the cheapest sequence of steps from one layout to another.
//
// A finished value needs one step as a rule: an exchange moves what is lacking and nothing else. More steps pay where a
// value is pending (cut before combining, combine in pieces, collect late), where few devices would have to give to many,
// and where a slice makes a collective of what is none. So the search tries a handful of layouts between: some axes as
// after and the rest as before; pieces cut among their owners; pending pieces combined in place, in parts, or on one.
#include "sharding/reshard.h"

#define MAX_STEPS   3
#define MAX_AXES    4  // that differ: all subsets of them are tried; of more, single ones
#define TRIED_AXES  8  // along which pieces are cut among their owners
#define MAX_BETWEEN 64 // layouts tried at one place
#define MAX_WORK    ((int64_t)1 << 25) // pairs of pieces looked at

struct cost {
    int64_t bytes;
    int exchanges, steps;
};
struct hop {
    const struct tile_layout *to;
    bool combines;
};
struct search {
    struct arena *arena;
    const struct partial *pending;
    const struct tile_layout *to;
    const int64_t *shape;
    size_t unit;
    int64_t work;
    struct hop path[MAX_STEPS], best[MAX_STEPS];
    int n_best; // -1: none yet
    struct cost best_cost;
    tsr_status status;
};
// Layouts to try between.
struct between {
    const struct tile_layout *at[MAX_BETWEEN];
    int n;
};

const char *tsr__reshard_op_name(enum reshard_op op)
{
    static const char *const names[] = {"nothing",        "slice",      "all-gather", "all-to-all",
                                        "reduce-scatter", "all-reduce", "reduce",     "permute",
                                        "broadcast",      "scatter",    "gather",     "exchange"};
    return names[op];
}

int64_t tsr__reshard_cost(const struct reshard_step *s)
{
    if (s->op <= RESHARD_SLICE)
        return 0;
    return (s->received > s->sent ? s->received : s->sent) + RESHARD_STEP_BYTES;
}

static bool cheaper(const struct cost *x, const struct cost *y)
{
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes;
    if (x->exchanges != y->exchanges)
        return x->exchanges < y->exchanges;
    return x->steps < y->steps;
}

// ---- layouts between ---------------------------------------------------------------------------

static void add(struct between *b, const struct tile_layout *l)
{
    if (l && b->n < MAX_BETWEEN)
        b->at[b->n++] = l;
}

static int64_t shard_of_parts(const struct side *from, const struct side *to, uint64_t axes,
                              int64_t k, int64_t j)
{
    int rank = from->l->rank;
    int64_t shard = 0;
    for (int d = 0; d < rank; d++) {
        bool new = axes >> d & 1;
        shard = shard * (new ? to : from)->n_parts[d] +
                (new ? to->part[j * rank + d] : from->part[k * rank + d]);
    }
    return shard;
}

// Those axes as after, the others as before, on devices that have one piece before and one after.
static struct tile_layout *mixed(const struct pairing *p, uint64_t axes)
{
    struct tile_dim dims[TILE_MAX_RANK];
    for (int d = 0; d < p->rank; d++)
        dims[d] = (axes >> d & 1 ? p->to.l : p->from.l)->dims[d];
    struct tile_layout *l = tsr__layout_cut(p->arena, p->rank, dims);
    struct tile_owner *pairs = ARENA_ARRAY(p->arena, struct tile_owner, p->n_devices + 1);
    size_t n = 0;
    if (!l || !pairs)
        return NULL;
    for (size_t t = 0; t < p->n_devices; t++) {
        if (side_count(&p->from, t) != 1 || side_count(&p->to, t) != 1)
            continue;
        int64_t k = p->from.shards[p->from.first[t]], j = p->to.shards[p->to.first[t]];
        pairs[n++] =
            (struct tile_owner){shard_of_parts(&p->from, &p->to, axes, k, j), p->devices[t]};
    }
    return n && tsr__layout_own(p->arena, l, pairs, n) ? l : NULL;
}

static bool axis_differs(const struct pairing *p, int d)
{
    if (p->from.n_parts[d] != p->to.n_parts[d])
        return true;
    for (int64_t i = 0; i < p->from.n_parts[d]; i++)
        if (p->common[d][i * p->to.n_parts[d] + i] != p->from.parts[d][i].size ||
            p->from.parts[d][i].size != p->to.parts[d][i].size)
            return true;
    for (size_t t = 0; t < p->n_devices; t++)
        if (side_count(&p->from, t) == 1 && side_count(&p->to, t) == 1 &&
            p->from.part[p->from.shards[p->from.first[t]] * p->rank + d] !=
                p->to.part[p->to.shards[p->to.first[t]] * p->rank + d])
            return true;
    return false;
}

static void add_mixed(const struct pairing *p, struct between *b)
{
    int axes[TILE_MAX_RANK], n = 0;
    for (int d = 0; d < p->rank; d++)
        if (axis_differs(p, d))
            axes[n++] = d;
    uint64_t all = 0;
    for (int i = 0; i < n; i++)
        all |= (uint64_t)1 << axes[i];
    for (uint64_t some = 1; n <= MAX_AXES && some + 1 < (uint64_t)1 << n; some++) {
        uint64_t chosen = 0;
        for (int i = 0; i < n; i++)
            chosen |= (some >> i & 1) << axes[i];
        add(b, mixed(p, chosen));
    }
    for (int i = 0; i < n && n > MAX_AXES && i < TRIED_AXES; i++) {
        add(b, mixed(p, (uint64_t)1 << axes[i]));
        add(b, mixed(p, all & ~((uint64_t)1 << axes[i])));
    }
}

// The factors of a dimension with every part cut in n once more. False: no factors say that.
static bool cut_more(const struct tile_dim *d, int64_t size, int64_t n, struct tile_factor *out,
                     int *count)
{
    int64_t sizes[TILE_MAX_FACTORS], product = 1;
    bool cut = false;
    for (int f = 0; f < d->n; f++)
        cut |= d->factors[f].cuts > 1;
    *count = 1;
    out[0] = (struct tile_factor){0, n};
    if (!cut)
        return size >= n;
    if (d->n >= TILE_MAX_FACTORS || !tsr__dim_sizes(d, size, sizes))
        return false;
    for (int f = 0; f < d->n; f++) {
        out[f] = (struct tile_factor){sizes[f], d->factors[f].cuts};
        if (!mul_ok(product, sizes[f], &product))
            return false;
    }
    if (d->n == 1 && size % (sizes[0] = d->factors[0].cuts * n) == 0) {
        out[0] = (struct tile_factor){0, sizes[0]};
        return true;
    }
    struct tile_factor *last = &out[d->n - 1];
    int64_t inner = last->size / last->cuts;
    if (product != size || last->size % last->cuts || inner < n)
        return false;
    *count = d->n;
    if (last->cuts > 1) {
        last->size = last->cuts;
        out[(*count)++] = (struct tile_factor){inner, n};
    } else {
        last->cuts = n;
    }
    return true;
}

// Who gets part i of what shard k of the side holds: a list for each shard, each n long, NULL: nobody.
struct takers {
    size_t n, lists;
    const struct device_group **of; // lists, by shard
    size_t *first;                  // by shard
};

static struct tile_layout *spread(const struct pairing *p, const struct side *s, int axis,
                                  const int64_t *shape, const struct takers *w)
{
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_FACTORS + 1];
    memcpy(dims, s->l->dims, (size_t)p->rank * sizeof *dims);
    dims[axis].factors = factors;
    if (!cut_more(&s->l->dims[axis], shape[axis], (int64_t)w->n, factors, &dims[axis].n))
        return NULL;
    struct tile_layout *l = tsr__layout_cut(p->arena, p->rank, dims);
    struct tile_owner *pairs = ARENA_ARRAY(p->arena, struct tile_owner, w->lists * w->n + 1);
    size_t count = 0;
    for (int64_t k = 0; l && pairs && k < s->l->n_shards; k++)
        for (size_t g = w->first[k]; g < w->first[k + 1]; g++)
            for (size_t i = 0; i < w->n; i++) {
                int64_t shard = 0;
                for (int d = 0; d < p->rank; d++) {
                    int64_t more = d == axis ? (int64_t)w->n : 1;
                    shard = shard * s->n_parts[d] * more + s->part[k * p->rank + d] * more;
                    shard += d == axis ? (int64_t)i : 0;
                }
                pairs[count++] = (struct tile_owner){shard, w->of[g]->devices[i]};
            }
    return l && pairs && tsr__layout_own(p->arena, l, pairs, count) ? l : NULL;
}

static void add_spread(const struct pairing *p, const struct side *s, const int64_t *shape,
                       const struct takers *w, struct between *b)
{
    for (int d = 0; w->n > 1 && d < p->rank && d < TRIED_AXES; d++)
        add(b, spread(p, s, d, shape, w));
}

static bool takers_new(const struct pairing *p, const struct side *s, size_t lists,
                       struct takers *w)
{
    *w = (struct takers){.of = ARENA_ARRAY(p->arena, const struct device_group *, lists + 1),
                         .first = ARENA_ARRAY(p->arena, size_t, (size_t)s->l->n_shards + 1)};
    return !p->arena->failed;
}

// Owners of each shard of the target, if they are equally many: it is cut among them, to be gathered.
static void add_spread_target(const struct pairing *p, const int64_t *shape, struct between *b)
{
    struct takers w;
    const struct tile_layout *l = p->to.l;
    if (!takers_new(p, &p->to, (size_t)l->n_shards, &w))
        return;
    for (int64_t k = 0; k < l->n_shards; k++) {
        struct device_group *g = ARENA_NEW(p->arena, struct device_group);
        w.first[k] = w.lists;
        size_t n = (size_t)(l->first[k + 1] - l->first[k]);
        if (!g || (n && w.n && n != w.n))
            return;
        *g = (struct device_group){l->owners + l->first[k], n};
        if (n) {
            w.n = n;
            w.of[w.lists++] = g;
        }
    }
    w.first[l->n_shards] = w.lists;
    add_spread(p, &p->to, shape, &w, b);
}

// Members of each group, if all are equally many: each combines a part.
static void add_spread_groups(const struct pairing *p, const int64_t *shape, struct between *b)
{
    struct takers w;
    const struct partial *q = p->pending;
    if (!takers_new(p, &p->from, (size_t)p->from.l->first[p->from.l->n_shards], &w))
        return;
    w.n = q->groups[0].n;
    for (size_t g = 0; g < q->n_groups; g++)
        if (q->groups[g].n != w.n)
            return;
    for (int64_t k = 0; k < p->from.l->n_shards; k++) {
        w.first[k] = w.lists;
        for (size_t g = 0; g < q->n_groups; g++)
            if (tsr__side_owns(&p->from, tsr__pairing_device(p, q->groups[g].devices[0]), k))
                w.of[w.lists++] = &q->groups[g];
    }
    w.first[p->from.l->n_shards] = w.lists;
    add_spread(p, &p->from, shape, &w, b);
}

// One member of each group gets all: one that keeps something, if there is one.
static struct tile_layout *on_roots(const struct pairing *p)
{
    struct tile_layout *l = tsr__layout_cut(p->arena, p->rank, p->from.l->dims);
    size_t n = (size_t)p->from.l->first[p->from.l->n_shards], count = 0;
    struct tile_owner *pairs = ARENA_ARRAY(p->arena, struct tile_owner, n + 1);
    for (size_t g = 0; l && pairs && g < p->pending->n_groups; g++) {
        const struct device_group *group = &p->pending->groups[g];
        size_t root = tsr__pairing_device(p, group->devices[0]);
        for (size_t i = 0; i < group->n && !side_count(&p->to, root); i++)
            if (side_count(&p->to, tsr__pairing_device(p, group->devices[i])))
                root = tsr__pairing_device(p, group->devices[i]);
        for (size_t i = p->from.first[root]; i < p->from.first[root + 1]; i++)
            pairs[count++] = (struct tile_owner){p->from.shards[i], p->devices[root]};
    }
    return l && pairs && tsr__layout_own(p->arena, l, pairs, count) ? l : NULL;
}

// Between a finished value and its target, or a pending one and it.
static void list_between(const struct search *s, const struct pairing *p, struct between *b)
{
    add_mixed(p, b);
    add_spread_target(p, s->shape, b);
    if (!p->pending)
        return;
    add(b, p->from.l);
    add(b, on_roots(p));
    add_spread_groups(p, s->shape, b);
}

// ---- search ------------------------------------------------------------------------------------

static int64_t largest_group(const struct partial *p)
{
    size_t n = 1;
    for (size_t g = 0; g < p->n_groups; g++)
        n = p->groups[g].n > n ? p->groups[g].n : n;
    return (int64_t)n;
}

// Lays two layouts over each other in an arena, and looks what the step between them costs.
static tsr_status pair(struct search *s, struct arena *a, const struct tile_layout *from,
                       bool pending, const struct tile_layout *to, struct pairing *p,
                       struct reshard_step *step)
{
    struct arena made;
    s->work += to->first[to->n_shards] * from->n_shards * (pending ? largest_group(s->pending) : 1);
    s->work += from->n_shards + to->n_shards;
    tsr_status status =
        tsr__pairing_new(a, from, pending ? s->pending : NULL, to, s->shape, s->unit, p);
    if (status != TSR_OK)
        return status;
    tsr__arena_init(&made, a->session);
    p->made = &made;
    p->brief = true;
    status = tsr__reshard_step(p, step);
    tsr__arena_free(&made);
    return status;
}

static struct cost after_step(const struct cost *c, const struct reshard_step *step)
{
    return (struct cost){c->bytes + tsr__reshard_cost(step),
                         c->exchanges + (step->op == RESHARD_EXCHANGE),
                         c->steps + (step->op != RESHARD_NOTHING)};
}

static void search(struct search *s, const struct tile_layout *from, bool pending, int depth,
                   const struct cost *so_far);

static void try_between(struct search *s, const struct tile_layout *from, bool pending,
                        bool combines, const struct tile_layout *to, int depth,
                        const struct cost *so_far)
{
    struct arena over;
    struct pairing p;
    struct reshard_step step;
    if (s->status != TSR_OK || s->work > MAX_WORK)
        return;
    tsr__arena_init(&over, s->arena->session);
    tsr_status status = pair(s, &over, from, combines, to, &p, &step);
    // groups stay what they are only if all members keep the same
    if (status == TSR_OK && pending && !combines)
        status = step.op != RESHARD_SLICE
                     ? TSR_INVALID
                     : tsr__pairing_new(&over, to, s->pending, to, s->shape, s->unit, &p);
    tsr__arena_free(&over);
    if (status == TSR_NOMEM)
        s->status = status;
    if (status != TSR_OK || step.op == RESHARD_NOTHING)
        return;
    struct cost c = after_step(so_far, &step);
    if (!cheaper(&c, &s->best_cost))
        return;
    s->path[depth] = (struct hop){to, combines};
    search(s, to, pending && !combines, depth + 1, &c);
}

static void search(struct search *s, const struct tile_layout *from, bool pending, int depth,
                   const struct cost *so_far)
{
    struct pairing p;
    struct reshard_step step;
    struct between b = {.n = 0};
    tsr_status status = pair(s, s->arena, from, pending, s->to, &p, &step);
    if (status != TSR_OK) {
        if (depth == 0 || status == TSR_NOMEM)
            s->status = status;
        return;
    }
    struct cost c = after_step(so_far, &step);
    s->path[depth] = (struct hop){s->to, pending};
    if (s->n_best < 0 || cheaper(&c, &s->best_cost)) {
        s->best_cost = c;
        s->n_best = depth + 1;
        memcpy(s->best, s->path, sizeof s->best);
    }
    // what a finished value lacks must come in any case
    bool best = !pending && step.op != RESHARD_EXCHANGE && step.sent <= step.received;
    if (best || depth + 1 == MAX_STEPS)
        return;
    list_between(s, &p, &b);
    for (int i = 0; i < b.n; i++) {
        try_between(s, from, pending, pending, b.at[i], depth, so_far);
        if (pending && b.at[i] != p.from.l)
            try_between(s, from, pending, false, b.at[i], depth, so_far);
    }
    if (s->arena->failed)
        s->status = TSR_NOMEM;
}

// ---- the plan ----------------------------------------------------------------------------------

static tsr_status refuse(struct arena *a, tsr_status status, bool pending)
{
    if (status == TSR_UNSUPPORTED)
        tsr__diag(a->session, DIAG_tiles_many, NULL, "ask for a smaller shape, or fewer tiles",
                  "there are too many tiles, or too many bytes, to plan the way between them");
    else if (status == TSR_INVALID && pending)
        tsr__diag(a->session, DIAG_reshard_source, NULL,
                  "give every tile of the source an owner, and members of a group the same tiles",
                  "no group of devices holds all parts of what the target needs");
    else if (status == TSR_INVALID)
        tsr__diag(a->session, DIAG_reshard_source, NULL, "give every tile of the source an owner",
                  "no device of the source holds some of what the target needs");
    return status;
}

// All sums of bytes stay in range.
static bool in_range(const struct tile_layout *from, const struct tile_layout *to,
                     const int64_t *shape, size_t unit)
{
    int64_t n = 16 * (int64_t)unit;
    for (int d = 0; d < from->rank; d++)
        if (shape[d] && !mul_ok(n, shape[d], &n))
            return false;
    return mul_ok(n, from->first[from->n_shards] + 1, &n) &&
           mul_ok(n, to->first[to->n_shards] + 1, &n);
}

static tsr_status make_steps(struct arena *a, const struct search *s,
                             const struct tile_layout *from, struct reshard *out)
{
    struct pairing p;
    tsr_status status = tsr__pairing_new(a, from, s->pending, s->to, s->shape, s->unit, &p);
    if (status == TSR_OK)
        status = tsr__reshard_step(&p, &out->direct);
    for (int i = 0; i < s->n_best && status == TSR_OK; i++) {
        const struct partial *pending = s->best[i].combines ? s->pending : NULL;
        status = tsr__pairing_new(a, from, pending, s->best[i].to, s->shape, s->unit, &p);
        if (status == TSR_OK)
            status = tsr__reshard_step(&p, &out->steps[out->n_steps]);
        from = p.to.l;
        if (status == TSR_OK && out->steps[out->n_steps].op != RESHARD_NOTHING)
            out->n_steps++;
    }
    return status;
}

static bool all_single(const struct partial *p)
{
    for (size_t g = 0; g < p->n_groups; g++)
        if (p->groups[g].n > 1)
            return false;
    return true;
}

tsr_status tsr__reshard_plan(struct arena *a, const struct tile_layout *from,
                             const struct partial *pending, const struct tile_layout *to,
                             const int64_t *shape, size_t elem_bytes, struct reshard **out)
{
    struct arena scratch;
    struct reshard *r = ARENA_NEW(a, struct reshard);
    struct cost none = {0};
    if (!r || !(r->steps = ARENA_ARRAY(a, struct reshard_step, MAX_STEPS)))
        return TSR_NOMEM;
    if (from->rank != to->rank || !in_range(from, to, shape, elem_bytes))
        return refuse(a, from->rank == to->rank ? TSR_UNSUPPORTED : TSR_INVALID, false);
    tsr__arena_init(&scratch, a->session);
    struct search s = {.arena = &scratch,
                       .pending = pending && !all_single(pending) ? pending : NULL,
                       .to = to,
                       .shape = shape,
                       .unit = elem_bytes,
                       .n_best = -1};
    search(&s, from, s.pending != NULL, 0, &none);
    tsr_status status = s.status;
    if (status == TSR_OK)
        status = make_steps(a, &s, from, r);
    else
        (void)refuse(a, status, s.pending != NULL);
    tsr__arena_free(&scratch);
    if (status == TSR_OK)
        *out = r;
    return status;
}
