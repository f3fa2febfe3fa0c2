// SPDX-License-Identifier: Apache-2.0
// random.c - a random sharding of every node that its rule allows, the same for the same seed.
//
// Devices, some or all of them in any order, are laid out as a grid of up to three axes; each axis
// cuts one factor of the node's rule, or copies. Now and then a factor is split first, which gives
// strided shards, or the parts of one cut have unequally many copies. What that means for the inputs
// is written down; outputs are left open, said as they come, or asked for in some other layout. The
// solver has the last word, so that what is written is what the flow will do. Nodes of bodies are cut like those
// around them; now and then the nodes are two or three stages, each with devices of its own. Knows no costs.
#include "sharding/solve.h"

#include <stdlib.h>

#define GRID_AXES    3
#define ATTEMPTS     12 // at one node, before it is left as it is
#define DIVISORS_MAX 64

struct dice {
    struct arena *arena;  // of the model
    struct arena scratch; // of one node
    tsr_config *config;
    const struct shapes *shapes;
    struct dim_sizes *sizes;
    int64_t n_all;
    int64_t first, n; // devices of the stage: all, or a run of them
    bool inside;      // in a body, where symbols may mean something else
    uint64_t state;
};

// splitmix64
static uint64_t draw(struct dice *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int64_t below(struct dice *r, int64_t n)
{
    return n > 1 ? (int64_t)(draw(r) % (uint64_t)n) : 0;
}

static bool chance(struct dice *r, int percent)
{
    return below(r, 100) < percent;
}

// A divisor of n other than 1 and, if proper, n; 0: there is none.
static int64_t some_divisor(struct dice *r, int64_t n, bool proper)
{
    int64_t all[DIVISORS_MAX];
    int count = 0;
    for (int64_t d = 2; d < DIVISORS_MAX && d < n; d++)
        if (n % d == 0)
            all[count++] = d;
    if (!proper && n > 1)
        all[count++] = n;
    return count ? all[below(r, count)] : 0;
}

// ---- devices in a grid -------------------------------------------------------------------------

struct grid {
    int64_t *devices;
    int64_t n;
    int64_t axes[GRID_AXES];
    int n_axes;
    int64_t (*at)[GRID_AXES]; // where each device stands
    bool even;                // equally many devices at every place
};

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// Some devices: mostly all, mostly in order.
static bool draw_devices(struct dice *r, struct grid *g)
{
    g->devices = ARENA_ARRAY(&r->scratch, int64_t, (size_t)r->n_all);
    g->at = tsr__arena_array(&r->scratch, (size_t)r->n_all, sizeof(*g->at), _Alignof(int64_t));
    if (!g->devices || !g->at)
        return false;
    for (int64_t d = 0; d < r->n; d++) {
        int64_t k = below(r, d + 1);
        g->devices[d] = g->devices[k];
        g->devices[k] = r->first + d;
    }
    g->n = chance(r, 75) ? r->n : 1 + below(r, r->n);
    if (chance(r, 65))
        qsort(g->devices, (size_t)g->n, sizeof(*g->devices), by_number);
    return true;
}

static void place_evenly(struct dice *r, struct grid *g)
{
    int64_t rest = g->n;
    while (rest > 1 && g->n_axes < GRID_AXES) {
        int64_t d = some_divisor(r, rest, false);
        g->axes[g->n_axes++] = d;
        rest /= d;
    }
    for (int64_t i = 0; i < g->n; i++) {
        int64_t left = i;
        for (int a = 0; a < g->n_axes; a++) {
            g->at[i][a] = left % g->axes[a];
            left /= g->axes[a];
        }
    }
    g->even = true;
}

// One axis, and more devices than parts.
static void place_unevenly(struct dice *r, struct grid *g)
{
    int64_t parts = 2 + below(r, g->n - 2);
    g->axes[g->n_axes++] = parts;
    for (int64_t i = 0; i < g->n; i++)
        g->at[i][0] = i < parts ? i : below(r, parts);
    g->even = g->n == parts;
}

static bool draw_grid(struct dice *r, struct grid *g)
{
    *g = (struct grid){0};
    if (!draw_devices(r, g))
        return false;
    if (g->n > 2 && chance(r, 15))
        place_unevenly(r, g);
    else
        place_evenly(r, g);
    return true;
}

// ---- a placement -------------------------------------------------------------------------------

static int64_t size_of(struct dice *r, tsr_dim d)
{
    return r->inside ? d.value : tsr__dim_sizes_of(r->sizes, d);
}

static bool may_cut(struct dice *r, const struct rule_factor *f, const struct grid *g, int64_t cuts)
{
    bool sums =
        f->kind == FACTOR_RED || f->kind == FACTOR_STAT; // every part on equally many devices
    if (f->kind == FACTOR_REP || (sums && !g->even) || size_of(r, f->size) < cuts)
        return false;
    return f->kind != FACTOR_STAT || chance(r, 50); // these take many nodes to do
}

// A factor for each axis, or -1: copies. False: nothing is cut.
static bool draw_factors(struct dice *r, const struct rule *rule, const struct grid *g, int *factor)
{
    bool any = false;
    for (int a = 0; a < g->n_axes; a++) {
        int found[RULE_MAX_FACTORS], n = 0;
        factor[a] = -1;
        for (int f = 0; f < rule->n_factors; f++) {
            bool taken = false;
            for (int b = 0; b < a; b++)
                taken = taken || factor[b] == f;
            if (!taken && may_cut(r, &rule->factors[f], g, g->axes[a]))
                found[n++] = f;
        }
        if (n && (!chance(r, 10) || (!any && a == g->n_axes - 1)))
            factor[a] = found[below(r, n)];
        any = any || factor[a] >= 0;
    }
    return any;
}

struct seat {
    int64_t device;
    int64_t at;
};

static int by_device(const void *a, const void *b)
{
    const struct seat *x = a, *y = b;
    return (x->device > y->device) - (x->device < y->device);
}

static bool place(struct dice *r, const struct rule *rule, const struct grid *g, const int *factor,
                  struct placement *p)
{
    size_t n = (size_t)g->n, factors = (size_t)rule->n_factors;
    struct seat *seats = ARENA_ARRAY(&r->scratch, struct seat, n);
    *p = (struct placement){.rule = rule, .n_devices = n};
    p->cuts = ARENA_ARRAY(&r->scratch, int64_t, factors + 1);
    p->devices = ARENA_ARRAY(&r->scratch, int64_t, n);
    p->coords = ARENA_ARRAY(&r->scratch, int64_t, n * factors + 1);
    if (r->scratch.failed)
        return false;
    for (size_t i = 0; i < n; i++)
        seats[i] = (struct seat){g->devices[i], (int64_t)i};
    qsort(seats, n, sizeof(*seats), by_device);
    for (size_t f = 0; f < factors; f++)
        p->cuts[f] = 1;
    for (int a = 0; a < g->n_axes; a++)
        if (factor[a] >= 0)
            p->cuts[factor[a]] = g->axes[a];
    for (size_t i = 0; i < n; i++) {
        p->devices[i] = seats[i].device;
        for (int a = 0; a < g->n_axes; a++)
            if (factor[a] >= 0)
                p->coords[i * factors + (size_t)factor[a]] = g->at[seats[i].at][a];
    }
    return true;
}

// Now and then a factor is two: an inner one that is cut gives strided shards.
static const struct rule *perhaps_refined(struct dice *r, const struct rule *rule)
{
    if (!chance(r, 15) || rule->n_factors == 0 || rule->n_factors >= RULE_MAX_FACTORS - 1)
        return rule;
    int f = (int)below(r, rule->n_factors);
    const struct rule_factor *at = &rule->factors[f];
    int64_t inner = at->size.value > 3 ? some_divisor(r, at->size.value, true) : 0;
    if (!inner || at->unit != 1 || at->kind == FACTOR_REP || tsr__rule_rewrites(rule, f))
        return rule;
    const struct rule *finer = tsr__rule_refine(&r->scratch, rule, f, inner);
    return finer ? finer : rule;
}

// ---- what is written ---------------------------------------------------------------------------

struct choice {
    tsr_node *node;
    size_t n_in, n_out;
    struct tile_layout **in, **out; // NULL: nothing is said
};

static bool begin_choice(struct dice *r, tsr_node *n, struct choice *c)
{
    *c = (struct choice){n, tsr_node_input_count(n), tsr_node_output_count(n), NULL, NULL};
    c->in = ARENA_ARRAY(&r->scratch, struct tile_layout *, c->n_in + 1);
    c->out = ARENA_ARRAY(&r->scratch, struct tile_layout *, c->n_out + 1);
    return !r->scratch.failed;
}

// A value that the node reads twice has one sharding: if the readings differ it has none, and what is said
// of one reading is said of the other.
static void join_double(struct choice *c)
{
    for (size_t i = 0; i < c->n_in; i++) {
        for (size_t k = 0; k < c->n_in; k++) {
            if (i == k || !c->in[i] || tsr_node_input(c->node, i) != tsr_node_input(c->node, k))
                continue;
            if (!c->in[k])
                c->in[k] = c->in[i];
            else if (!tsr__layout_equal(c->in[i], c->in[k]))
                c->in[i] = c->in[k] = NULL;
        }
    }
}

// What the placement needs of each input: mostly all of it is said.
static bool say_inputs(struct dice *r, const struct placement *p, struct choice *c)
{
    bool all = chance(r, 80);
    for (size_t i = 0; i < c->n_in; i++) {
        const struct rule_tensor *t = &p->rule->inputs[i];
        if (!tsr_node_input(c->node, i) || t->absent || t->host || !(all || chance(r, 60)))
            continue;
        c->in[i] = tsr__placement_project(&r->scratch, p, t);
        if (!c->in[i])
            return false;
    }
    join_double(c);
    return true;
}

// What the solver makes of the inputs alone is what was meant, or something else that it can do.
static bool holds(struct dice *r, const struct rule *rule, const struct choice *c, bool *cut)
{
    struct solve s;
    if (!tsr__solve_init(&s, &r->scratch, &r->scratch, rule, r->n_all))
        return false;
    for (size_t i = 0; i < c->n_in; i++) {
        struct shape shape = {.rank = -1};
        if (!c->in[i])
            continue;
        shape = tsr__shapes_of(r->shapes, tsr_node_input(c->node, i));
        if (!tsr__solve_add(&s, false, (int)i, c->in[i], &shape, false, true))
            return false;
    }
    for (int f = 0; f < s.rule->n_factors; f++)
        *cut = *cut || s.cuts[f] > 1;
    return true;
}

// ---- any layout of a tensor --------------------------------------------------------------------

// A dimension cut by one axis: as a whole, or one of two factors of it.
static bool cut_dim(struct dice *r, tsr_dim size, int64_t cuts, struct tile_dim *d, int *factor)
{
    int64_t inner = size.value > 3 && chance(r, 20) ? some_divisor(r, size.value, true) : 0;
    d->factors = ARENA_ARRAY(&r->scratch, struct tile_factor, 2);
    if (!d->factors)
        return false;
    d->n = 1;
    *factor = 0;
    d->factors[0] = (struct tile_factor){0, cuts};
    if (!inner || (inner < cuts && size.value / inner < cuts))
        return true;
    *factor = inner >= cuts && (size.value / inner < cuts || chance(r, 60));
    d->n = 2;
    d->factors[0] = (struct tile_factor){size.value / inner, *factor ? 1 : cuts};
    d->factors[1] = (struct tile_factor){inner, *factor ? cuts : 1};
    return true;
}

static struct tile_layout *own(struct dice *r, const struct grid *g, struct tile_layout *l,
                               const int *axis_of)
{
    struct tile_owner *pairs = ARENA_ARRAY(&r->scratch, struct tile_owner, (size_t)g->n);
    if (!l || !pairs)
        return NULL;
    for (int64_t i = 0; i < g->n; i++) {
        int64_t shard = 0;
        for (int k = 0; k < l->n_loops; k++) {
            int a = axis_of[l->loops[k].dim];
            shard = shard * g->axes[a] + g->at[i][a];
        }
        pairs[i] = (struct tile_owner){shard, g->devices[i]};
    }
    return tsr__layout_own(&r->scratch, l, pairs, (size_t)g->n) ? l : NULL;
}

static struct tile_layout *any_layout(struct dice *r, const struct shape *shape)
{
    struct grid g;
    struct tile_dim dims[TILE_MAX_RANK] = {{0}};
    int axis_of[TILE_MAX_RANK], factor;
    if (!draw_grid(r, &g))
        return NULL;
    for (int a = 0; a < g.n_axes; a++) {
        int d = shape->rank ? (int)below(r, shape->rank) : -1;
        if (d < 0 || dims[d].n || size_of(r, shape->dims[d]) < g.axes[a] || chance(r, 15))
            continue;
        axis_of[d] = a;
        if (!cut_dim(r, shape->dims[d], g.axes[a], &dims[d], &factor))
            return NULL;
    }
    struct tile_layout *l = own(r, &g, tsr__layout_cut(&r->scratch, shape->rank, dims), axis_of);
    return l ? tsr__layout_canonical(&r->scratch, l, shape) : NULL;
}

static bool movable(const struct shape *s)
{
    return s->rank >= 0 && s->rank <= TILE_MAX_RANK && tsr_dtype_bits(s->dtype) >= 8;
}

// Outputs: left open, as they come, or in any other layout.
static bool say_outputs(struct dice *r, const struct placement *p, struct choice *c)
{
    for (size_t i = 0; i < c->n_out; i++) {
        const tsr_value *v = tsr_node_output(c->node, i);
        struct shape shape = {.rank = -1};
        int64_t roll = below(r, 100);
        if (v)
            shape = tsr__shapes_of(r->shapes, v);
        if (!movable(&shape) || roll < 40)
            continue;
        c->out[i] = roll < 75 ? tsr__placement_project(&r->scratch, p, &p->rule->outputs[i])
                              : any_layout(r, &shape);
        if (!c->out[i])
            return false;
    }
    return true;
}

// A node that is not cut: now and then it runs on some devices only.
static bool say_whole(struct dice *r, struct choice *c)
{
    struct grid g;
    if (!chance(r, 25))
        return true;
    if (!draw_grid(r, &g))
        return false;
    qsort(g.devices, (size_t)g.n, sizeof(*g.devices), by_number);
    for (size_t i = 0; i < c->n_out; i++) {
        const tsr_value *v = tsr_node_output(c->node, i);
        struct shape shape = {.rank = -1};
        if (v)
            shape = tsr__shapes_of(r->shapes, v);
        if (!movable(&shape))
            continue;
        c->out[i] = tsr__layout_whole(&r->scratch, shape.rank, g.devices, (size_t)g.n);
        if (!c->out[i])
            return false;
    }
    return true;
}

static tsr_status write_choice(struct dice *r, const struct choice *c)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < c->n_in && st == TSR_OK; i++)
        if (c->in[i])
            st = tsr__spec_write(c->node, r->config, tsr_node_input(c->node, i), c->in[i]);
    for (size_t i = 0; i < c->n_out && st == TSR_OK; i++)
        if (c->out[i])
            st = tsr__spec_write(c->node, r->config, tsr_node_output(c->node, i), c->out[i]);
    return st;
}

// ---- nodes -------------------------------------------------------------------------------------

// One try; *done: it holds and is in *c.
static bool try_node(struct dice *r, const struct rule *rule, struct choice *c, bool *done)
{
    struct grid g;
    struct placement p;
    int factor[GRID_AXES];
    bool cut = false;
    const struct rule *finer = perhaps_refined(r, rule);
    if (!begin_choice(r, c->node, c) || !draw_grid(r, &g))
        return false;
    if (!draw_factors(r, finer, &g, factor))
        return true;
    if (!place(r, finer, &g, factor, &p) || !say_inputs(r, &p, c))
        return false;
    if (!holds(r, rule, c, &cut) || !cut)
        return !r->scratch.failed;
    *done = true;
    return say_outputs(r, &p, c);
}

static bool choose(struct dice *r, tsr_node *n, struct choice *c)
{
    const struct rule *rule = tsr__rule_of(&r->scratch, n, r->shapes);
    bool done = false;
    if (!rule || !begin_choice(r, n, c))
        return false;
    bool stays = tsr__rule_stays(r->shapes, n) != NULL;
    for (int i = 0; i < ATTEMPTS && !rule->whole && !stays && !done; i++)
        if (!try_node(r, rule, c, &done))
            return false;
    return done || (begin_choice(r, n, c) && (stays || say_whole(r, c)));
}

static tsr_status clear_node(tsr_node *n, const tsr_config *c)
{
    tsr_node_config *nc = tsr_node_find_config(n, c);
    tsr_status st = TSR_OK;
    while (nc && tsr_node_config_spec_count(nc) && st == TSR_OK)
        st = tsr_spec_remove(tsr_node_config_spec(nc, 0));
    return st;
}

static tsr_status shard_node(struct dice *r, tsr_node *n)
{
    struct choice c;
    tsr_status st = clear_node(n, r->config);
    tsr__arena_init(&r->scratch, r->arena->session);
    if (st == TSR_OK)
        st = choose(r, n, &c) ? write_choice(r, &c) : TSR_NOMEM;
    tsr__arena_free(&r->scratch);
    return st;
}

static tsr_status shard_graph(struct dice *r, tsr_graph *g);

static tsr_status shard_bodies(struct dice *r, tsr_node *n)
{
    struct control c;
    tsr_status st = TSR_OK;
    bool around = r->inside;
    if (!tsr__control_of(n, &c))
        return TSR_OK;
    r->inside = true;
    for (int k = 0; k < c.n_bodies && st == TSR_OK; k++)
        st = shard_graph(r, c.bodies[k]);
    r->inside = around;
    return st;
}

static tsr_status shard_graph(struct dice *r, tsr_graph *g)
{
    tsr_status st = TSR_OK;
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n)) {
        st = shard_node(r, n);
        if (st == TSR_OK)
            st = shard_bodies(r, n);
    }
    return st;
}

// ---- stages ------------------------------------------------------------------------------------

static bool has_stages(const tsr_graph *g, const tsr_config *c)
{
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        int64_t stage;
        const tsr_node_config *nc = tsr_node_find_config(n, c);
        if (nc && tsr_node_config_stage(nc, &stage))
            return true;
    }
    return false;
}

// The main graph in two or three runs of nodes, each on a run of the devices.
static tsr_status shard_stages(struct dice *r, tsr_graph *g)
{
    int64_t most = r->n_all < 3 ? r->n_all : 3, stages = 2 + below(r, most - 1);
    int64_t nodes = (int64_t)tsr_graph_node_count(g), at = 0, stage = 0;
    int64_t next = 1 + below(r, nodes - 1);
    tsr_status st = TSR_OK;
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n), at++) {
        if (at == next && stage + 1 < stages) {
            stage++;
            next = at + 1 + below(r, nodes - at);
        }
        r->first = tsr__tile_start(r->n_all, stages, stage);
        r->n = tsr__tile_start(r->n_all, stages, stage + 1) - r->first;
        st = tsr_node_set_stage(n, r->config, stage);
        if (st == TSR_OK)
            st = shard_node(r, n);
        if (st == TSR_OK)
            st = shard_bodies(r, n);
    }
    return st;
}

tsr_status tsr_model_shard_random(tsr_model *m, tsr_config *c, uint64_t seed, const tsr_size *sizes,
                                  size_t n)
{
    if (!tsr__config_is_of(c, m))
        return TSR_INVALID;
    struct arena a;
    struct dice r = {.arena = &a, .config = c, .n_all = tsr_config_devices(c), .state = seed};
    tsr__arena_init(&a, tsr_model_session(m));
    tsr_status st = TSR_OK;
    if (r.n_all < 1 || r.n_all > SOLVE_MAX_DEVICES) {
        struct place at = PLACE_NONE;
        at.configuration = str_of(tsr_config_name(c));
        tsr__diag(a.session, DIAG_config_too_large, &at, NULL,
                  "the configuration has %lld devices; 1 to %d can be followed", (long long)r.n_all,
                  SOLVE_MAX_DEVICES);
        st = TSR_INVALID;
    } else {
        r.shapes = tsr__shapes_new(&a, m);
        r.sizes = r.shapes ? tsr__dim_sizes_new(&a, sizes, n) : NULL;
        st = r.sizes ? TSR_OK : TSR_NOMEM;
    }
    tsr_graph *g = tsr_model_graph(m);
    r.n = r.n_all;
    bool stages = r.n_all > 1 && tsr_graph_node_count(g) > 2 && chance(&r, 20) && !has_stages(g, c);
    if (st == TSR_OK)
        st = stages ? shard_stages(&r, g) : shard_graph(&r, g);
    tsr__arena_free(&a);
    return st;
}
