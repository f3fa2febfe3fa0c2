// SPDX-License-Identifier: Apache-2.0
// fronts.c - what a range of nodes takes on a block of devices: the front of (time, memory), a point at a time.
//
// A kind of block has one planner, whose candidates serve all ranges. A range without a limit is solved first; only if that
// does not fit it is solved again under the limit. Ranges that are alike (the same strategies, wired the same) share
// their points, so that layers which repeat are solved once.
#include "plan/stages.h"

#define HASTY_WORK UINT64_C(20000000) // cells for one of many ranges
#define KEY_BYTES  ((size_t)1 << 20)  // of a block

// ---- planners of blocks ------------------------------------------------------------------------

bool tsr__planner_fork(const struct planner *root, const unsigned char *staged,
                       const int64_t *devices, size_t n, struct planner *out)
{
    *out = (struct planner){.topology = root->topology, .n = (int64_t)n};
    tsr__planner_start(out, root->model);
    out->budget = root->budget;
    out->shapes = root->shapes;
    out->told = root->told;
    out->sized = root->sized;
    out->values = root->values;
    out->sums_done = true;
    out->stays = root->stays;
    for (size_t i = 0; i < root->states.n; i++) {
        struct state_pair *at = vec_push(&out->arena, &out->states);
        if (at)
            *at = root->states.at[i];
    }
    int64_t *list = ARENA_ARRAY(&out->arena, int64_t, n);
    if (!list)
        return false;
    memcpy(list, devices, n * sizeof *list);
    out->device = list;
    if (!tsr__planner_devices(out) || !tsr__planner_list(out))
        return false;
    for (size_t i = 0; staged && i < out->n_nodes; i++)
        if (!staged[tsr__node_id(out->nodes[i].node)])
            out->node_at[tsr__node_id(out->nodes[i].node)] = -1;
    return tsr__planner_candidates(out);
}

static void key_of_device(struct text *key, const tsr_topology_device *d)
{
    tsr__text_printf(key, "%a %a %a", d->flops, d->bandwidth, d->overhead);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        tsr__text_printf(key, " %a", d->rates[i]);
    tsr__text_printf(key, ";");
}

// Speeds, and what a message takes from each device to each other.
static bool key_of(struct staging *s, const int64_t *devices, size_t n, struct text *key)
{
    tsr_topology *t = s->p->topology;
    key->max = KEY_BYTES * 64;
    for (size_t i = 0; i < n; i++)
        key_of_device(key, &t->device[devices[i]]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            int pair[2] = {(int)devices[i], (int)devices[k]};
            struct topology_groups two = {1, 2, pair};
            if (i != k)
                tsr__text_printf(key, "%lld %lld,",
                                 (long long)tsr__topology_cost(t, TSR_SEND, &two, 0),
                                 (long long)tsr__topology_cost(t, TSR_SEND, &two, 1 << 20));
        }
    return !key->failed;
}

static struct kind *kind_new(struct staging *s, const int64_t *devices, size_t n)
{
    struct kind *k = ARENA_NEW(&s->p->arena, struct kind);
    struct kind **at = k ? vec_push(&s->p->arena, &s->all_kinds) : NULL;
    if (!at)
        return NULL;
    *at = k; // from now on freed with the others
    if (!tsr__planner_fork(s->p, s->staged, devices, n, &k->p))
        return NULL;
    k->nodes = k->p.nodes;
    k->p.outside = s->staged;
    for (size_t i = 0; i < k->p.n_nodes; i++)
        k->p.node_at[tsr__node_id(k->nodes[i].node)] = -1;
    return k;
}

struct kind *tsr__stages_kind(struct staging *s, const int64_t *devices, size_t n)
{
    struct text key;
    struct kind *k = NULL;
    tsr__text_init(&key, s->p->session);
    if (key_of(s, devices, n, &key)) {
        struct str text = {key.p, key.n};
        k = tsr__map_get(&s->kinds, text);
        if (!k) {
            void **at = tsr__map_at(&s->kinds, tsr__arena_str(&s->p->arena, text));
            k = at ? kind_new(s, devices, n) : NULL;
            if (at)
                *at = k;
        }
    }
    tsr__text_free(&key);
    return k;
}

void tsr__stages_free(struct staging *s)
{
    for (size_t i = 0; i < s->all_kinds.n; i++)
        tsr__planner_end(&s->all_kinds.at[i]->p);
}

// ---- ranges ------------------------------------------------------------------------------------

struct describing {
    struct staging *s;
    struct range *r;
    struct arena scratch;
    struct map seen; // values from outside: their number
    struct text key;
    size_t begin, end;
    VEC(const tsr_value *) in, out, leave;
    bool later;
};

static void number_outside(struct describing *d, const tsr_value *v, bool comes)
{
    uint32_t id = tsr__value_id(v);
    struct str name = {(const char *)&id, sizeof id};
    uintptr_t found = (uintptr_t)tsr__map_get(&d->seen, name);
    if (!found) {
        void **at = tsr__map_at(&d->seen, tsr__arena_str(&d->scratch, name));
        found = d->seen.n;
        if (at)
            *at = (void *)found;
        const tsr_value **in = comes ? vec_push(&d->s->p->arena, &d->in) : NULL;
        if (in)
            *in = v;
    }
    if (comes) {
        size_t at = (size_t)d->s->p->node_at[tsr__node_id(tsr_value_producer(v))];
        d->r->earliest = at < d->r->earliest ? at : d->r->earliest;
    }
    const struct plan_value *x = &d->s->p->values[id];
    tsr__text_printf(&d->key, "%c%zu ", x->constant ? 'c' : x->given ? 'i' : 'g', (size_t)found);
}

static void describe_value(struct describing *d, const tsr_value *v)
{
    const tsr_node *from = v ? tsr_value_producer(v) : NULL;
    int64_t at = from ? d->s->p->node_at[tsr__node_id(from)] : -1;
    bool staged = at >= 0 && d->s->staged[tsr__node_id(from)];
    if (!v) {
        tsr__text_printf(&d->key, "- ");
    } else if (!staged || (size_t)at < d->begin) {
        number_outside(d, v, staged);
    } else {
        size_t o = 0;
        while (o + 1 < tsr_node_output_count(from) && tsr_node_output(from, o) != v)
            o++;
        tsr__text_printf(&d->key, "%zu.%zu ", (size_t)at - d->begin, o);
    }
}

static bool is_read_later(void *data, tsr_node *n, size_t input)
{
    struct describing *d = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(n)))
        n = tsr_graph_owner(tsr_node_graph(n));
    int64_t at = d->s->p->node_at[tsr__node_id(n)];
    d->later = at >= 0 && (size_t)at >= d->end;
    return !d->later; // one is enough
}

static void describe_node(struct describing *d, const struct plan_node *n)
{
    tsr_value **captures;
    size_t n_in = tsr_node_input_count(n->node),
           n_all = n_in + tsr__node_captures(n->node, &captures);
    tsr__text_printf(&d->key, ";%u:", n->strategy->id);
    for (size_t i = 0; i < n_all; i++)
        describe_value(d, i < n_in ? tsr_node_input(n->node, i) : captures[i - n_in]);
    for (size_t o = 0; o < tsr_node_output_count(n->node); o++) {
        const tsr_value *v = tsr_node_output(n->node, o);
        tsr__text_printf(&d->key, ">");
        if (!v)
            continue;
        d->later = false;
        tsr_value_uses(v, is_read_later, d);
        const tsr_value **leave = d->later ? vec_push(&d->s->p->arena, &d->leave) : NULL;
        if (leave)
            *leave = v;
        tsr__text_printf(&d->key, "%s", d->later ? "l" : "");
        bool stays = d->s->p->stays && d->s->p->stays[tsr__value_id(v)];
        tsr__text_printf(&d->key, "%s", stays ? "s" : "");
        const tsr_value **out =
            tsr_value_is_output(v) && !stays ? vec_push(&d->s->p->arena, &d->out) : NULL;
        if (out) {
            *out = v;
            tsr__text_printf(&d->key, "o");
        }
    }
}

// The number of the structure that the key tells.
static uint32_t structure_of(struct staging *s, struct str key)
{
    char hex[65];
    struct sha256 h;
    tsr__sha256_init(&h);
    tsr__sha256_add(&h, key.p, key.n);
    tsr__sha256_hex(&h, hex);
    void **at = tsr__map_at(&s->structures, tsr__arena_str(&s->p->arena, (struct str){hex, 64}));
    if (at && !*at)
        *at = (void *)(uintptr_t)s->structures.n;
    return at ? (uint32_t)((uintptr_t)*at - 1) : 0;
}

// Strategies have the same numbers in all kinds: their nodes come in the same order.
static void describe(struct describing *d)
{
    struct staging *s = d->s;
    const struct kind *k = s->all_kinds.at[0];
    d->r->earliest = SIZE_MAX;
    tsr__arena_init(&d->scratch, s->p->session);
    tsr__map_init(&d->seen, &d->scratch, 64);
    tsr__text_init(&d->key, s->p->session);
    d->key.max = (size_t)1 << 30;
    for (size_t n = d->begin; n < d->end; n++)
        if (k->nodes[n].strategy)
            describe_node(d, &k->nodes[n]);
    d->r->structure = structure_of(s, (struct str){d->key.p, d->key.n});
    d->r->in = d->in.at;
    d->r->n_in = d->in.n;
    d->r->out = d->out.at;
    d->r->n_out = d->out.n;
    d->r->leave = d->leave.at;
    d->r->n_leave = d->leave.n;
    d->r->known = !d->key.failed && !d->scratch.failed && !s->p->arena.failed;
    tsr__text_free(&d->key);
    tsr__arena_free(&d->scratch);
}

const struct range *tsr__stages_range(struct staging *s, size_t i, size_t j)
{
    struct range *r = &s->ranges[i * (s->n_ranges + 1) + j];
    struct describing d = {.s = s, .r = r, .begin = s->cut[i], .end = s->cut[j]};
    if (!r->known)
        describe(&d);
    return r->known ? r : NULL;
}

// ---- points ------------------------------------------------------------------------------------

static bool is_given(const struct planner *p, const tsr_value *v)
{
    for (size_t i = 0; i < p->given.n; i++)
        if (p->given.at[i] == v)
            return true;
    return false;
}

// What nodes of the range read and no node of it makes, but for constants.
static void list_given(struct planner *p)
{
    p->given.n = 0;
    for (size_t i = 0; i < p->n_nodes; i++) {
        tsr_value **captures;
        const tsr_node *n = p->nodes[i].node;
        size_t n_in = tsr_node_input_count(n), n_all = n_in + tsr__node_captures(n, &captures);
        for (size_t k = 0; p->nodes[i].strategy && k < n_all; k++) {
            const tsr_value *v = k < n_in ? tsr_node_input(n, k) : captures[k - n_in];
            const tsr_node *from = v ? tsr_value_producer(v) : NULL;
            if (!v || p->values[tsr__value_id(v)].constant || is_given(p, v) ||
                (from && p->node_at[tsr__node_id(from)] >= 0))
                continue;
            const tsr_value **at = vec_push(&p->arena, &p->given);
            if (at)
                *at = v;
        }
    }
}

static void select_range(struct staging *s, struct kind *k, size_t i, size_t j)
{
    struct planner *p = &k->p;
    for (size_t n = k->begin; n < k->end; n++)
        p->node_at[tsr__node_id(k->nodes[n].node)] = -1;
    k->begin = s->cut[i];
    k->end = s->cut[j];
    p->nodes = &k->nodes[k->begin];
    p->n_nodes = k->end - k->begin;
    for (size_t n = 0; n < p->n_nodes; n++)
        if (p->nodes[n].strategy)
            p->node_at[tsr__node_id(p->nodes[n].node)] = (int64_t)n;
    list_given(p);
}

static int64_t peak_of(const struct program *g, const uint32_t *choice)
{
    int64_t most = 0;
    for (uint32_t l = 0; l < g->limits.n; l++) {
        int64_t peak = tsr__program_peak(g, l, choice, NULL);
        most = peak > most ? peak : most;
    }
    return most;
}

// Where some device has a limit every program has rows, so that memory is known.
static int64_t limit_of(const struct staging *s, int64_t memory)
{
    return s->limited && memory >= PLAN_NO_LIMIT ? PLAN_NO_LIMIT - 1 : memory;
}

// Without a limit first: often that fits.
static tsr_status solve_program(struct program *g, int64_t memory, uint64_t work, struct arena *a,
                                struct program_result *r, struct point *out)
{
    struct program_options o = {.work = work};
    size_t n_limits = g->limits.n;
    *out = (struct point){.limit = PLAN_NO_LIMIT};
    g->limits.n = 0;
    tsr_status st = tsr__program_solve(g, &o, a, r);
    g->limits.n = n_limits;
    if (st == TSR_OK && r->feasible)
        out->memory = peak_of(g, r->choice);
    if (st == TSR_OK && r->feasible && out->memory > memory) {
        out->limit = memory;
        st = tsr__program_solve(g, &o, a, r);
        if (st == TSR_OK && r->feasible)
            out->memory = peak_of(g, r->choice);
    }
    out->feasible = st == TSR_OK && r->feasible;
    out->time = out->feasible ? r->cost : 0;
    out->bound = out->feasible ? r->bound : 0;
    return st;
}

// keep: the nodes get their choices.
static tsr_status solve_range(struct staging *s, struct kind *k, size_t i, size_t j, int64_t memory,
                              bool keep, struct point *out)
{
    struct arena scratch;
    struct program_result r = {0};
    struct planner *p = &k->p;
    tsr__arena_init(&scratch, p->session);
    p->work = &scratch;
    select_range(s, k, i, j);
    tsr_status st = tsr__planner_program(p, limit_of(s, memory)) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = solve_program(&p->program, memory, keep ? 0 : HASTY_WORK, &scratch, &r, out);
    for (size_t n = 0; keep && st == TSR_OK && out->feasible && n < p->n_nodes; n++)
        if (p->nodes[n].strategy)
            p->nodes[n].choice = r.choice[p->nodes[n].var];
    p->work = &p->arena;
    tsr__arena_free(&scratch);
    return st;
}

// The front of ranges of that structure. NULL: out of memory.
static struct front *front_of(struct staging *s, struct kind *k, size_t i, size_t j)
{
    const struct range *r = tsr__stages_range(s, i, j);
    while (r && k->fronts.n <= r->structure) {
        struct front **next = vec_push(&k->p.arena, &k->fronts);
        if (!next)
            return NULL;
    }
    if (!r)
        return NULL;
    struct front **f = &k->fronts.at[r->structure];
    if (!*f) {
        *f = ARENA_NEW(&k->p.arena, struct front);
        if (*f)
            (*f)->least = -1;
    }
    return *f;
}

// A point solves every limit between what it needs and that under which it is the best.
static const struct point *find_point(const struct front *f, int64_t memory)
{
    for (size_t i = 0; i < f->at.n; i++) {
        const struct point *q = &f->at.at[i];
        if (q->limit >= memory && (!q->feasible || q->memory <= memory))
            return q;
    }
    return NULL;
}

tsr_status tsr__front_at(struct staging *s, struct kind *k, size_t i, size_t j, int64_t memory,
                         struct point *out)
{
    struct front *f = front_of(s, k, i, j);
    const struct point *q = f ? find_point(f, memory) : NULL;
    if (q) {
        *out = *q;
        return TSR_OK;
    }
    tsr_status st = f ? solve_range(s, k, i, j, memory, false, out) : TSR_NOMEM;
    struct point *at = st == TSR_OK ? vec_push(&k->p.arena, &f->at) : NULL;
    if (at)
        *at = *out;
    return st == TSR_OK && !at ? TSR_NOMEM : st;
}

tsr_status tsr__front_take(struct staging *s, struct kind *k, size_t i, size_t j, int64_t memory,
                           struct point *out)
{
    return solve_range(s, k, i, j, memory, true, out);
}

tsr_status tsr__front_least(struct staging *s, struct kind *k, size_t i, size_t j, int64_t *out)
{
    struct front *f = front_of(s, k, i, j);
    struct program_options o = {.work = HASTY_WORK};
    struct program_least least = {0};
    struct arena scratch;
    if (!f)
        return TSR_NOMEM;
    *out = f->least;
    if (f->least >= 0)
        return TSR_OK;
    tsr__arena_init(&scratch, k->p.session);
    k->p.work = &scratch;
    select_range(s, k, i, j);
    tsr_status st = tsr__planner_program(&k->p, PLAN_NO_LIMIT - 1) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__program_least(&k->p.program, &o, &scratch, &least);
    k->p.work = &k->p.arena;
    tsr__arena_free(&scratch);
    *out = f->least = least.found ? least.least : INT64_MAX;
    return st;
}

tsr_status tsr__front_explain(struct staging *s, struct kind *k, size_t i, size_t j, int64_t memory,
                              const char *node, tsr_plan_summary *out)
{
    struct arena scratch;
    struct planner *p = &k->p;
    tsr__arena_init(&scratch, p->session);
    p->work = &scratch;
    select_range(s, k, i, j);
    tsr_status st = tsr__planner_program(p, limit_of(s, memory)) ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_explain(p, &p->program, node, out);
    p->work = &p->arena;
    tsr__arena_free(&scratch);
    return st;
}
