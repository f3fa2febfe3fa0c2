// SPDX-License-Identifier: Apache-2.0
// candidates.c - the ways to run a node, from the factors of its rule.
//
// The devices are seen as a line or as a grid of two axes; each axis cuts one factor or none. What the parts of a sum give is combined on all devices, or each keeps its share (reduce-scatter).
// Every candidate is laid before the solver of the flow, so that it means the same when it is read from the model
// again. Nodes that are alike share one list. Operators are not known here.
#include "plan/internal.h"

// A grid of devices: coordinate on axis i is device / stride % size.
struct grid {
    int n;
    int64_t size[PLAN_MAX_AXES], stride[PLAN_MAX_AXES];
};
// One candidate in the making.
struct making {
    struct planner *p;
    struct strategy *s;
    const tsr_node *node;
    struct arena *a; // gone afterwards
    struct placement place;
    struct tile_layout **in, **out; // by slot; NULL: absent
    size_t n_in, n_out;
    struct device_group *groups;
    size_t n_groups;
    enum combine combine;
};

static const tsr_value *slot(const tsr_node *n, bool out, size_t i)
{
    return out ? tsr_node_output(n, i) : tsr_node_input(n, i);
}

static const struct plan_value *value_at(const struct making *m, bool out, size_t i)
{
    return &m->p->values[tsr__value_id(slot(m->node, out, i))];
}

static bool steers(const struct making *m, bool out, size_t i)
{
    const struct rule *r = m->place.rule;
    return (int)i < (out ? r->n_outputs : r->n_inputs) && (out ? r->outputs : r->inputs)[i].host;
}

// ---- layouts of a placement --------------------------------------------------------------------

static bool project(struct making *m, const struct placement *q, struct tile_layout **in,
                    struct tile_layout **out)
{
    for (size_t i = 0; i < m->n_in + m->n_out; i++) {
        bool is_out = i >= m->n_in;
        size_t k = is_out ? i - m->n_in : i;
        if (!slot(m->node, is_out, k))
            continue;
        const struct rule_tensor *t = &(is_out ? q->rule->outputs : q->rule->inputs)[k];
        struct tile_layout *l = tsr__placement_project(m->a, q, t);
        if (!l)
            return false;
        *(is_out ? &out[k] : &in[k]) = l;
    }
    return true;
}

static bool same(struct tile_layout *const *x, struct tile_layout *const *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] && !tsr__layout_equal(x[i], y[i]))
            return false;
    return true;
}

// A value that is read twice has one sharding at the node.
static bool readings_agree(const struct making *m)
{
    for (size_t i = 0; i < m->n_in; i++)
        for (size_t k = 0; m->in[i] && k < i; k++)
            if (slot(m->node, false, k) == slot(m->node, false, i) &&
                !tsr__layout_equal(m->in[i], m->in[k]))
                return false;
    return true;
}

// What the flow would make of the specs; out: those that are to be written.
static bool comes_back(struct making *m, struct tile_layout *const *out)
{
    struct tile_layout **in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    struct tile_layout **got_in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    struct tile_layout **got = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    struct placement q;
    if (!in || !got_in || !got)
        return false;
    for (size_t i = 0; i < m->n_in; i++)
        in[i] = steers(m, false, i) ? NULL : m->in[i];
    return tsr__placement_explicit(m->a, m->a, m->node, m->p->shapes, m->s->rule, m->p->n, in, out,
                                   &q) &&
           project(m, &q, got_in, got) && same(in, got_in, m->n_in) && same(m->out, got, m->n_out);
}

// ---- costs -------------------------------------------------------------------------------------

static bool read_before(const struct making *m, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (slot(m->node, false, k) == slot(m->node, false, i))
            return true;
    return false;
}

static double local_work(const struct making *m)
{
    int64_t sizes[RULE_MAX_FACTORS];
    const struct placement *q = &m->place;
    tsr__planner_sizes(m->p->sized, m->node, q->rule, sizes);
    for (int f = 0; f < q->rule->n_factors; f++)
        sizes[f] = sizes[f] < 0 ? 1 : (sizes[f] + q->cuts[f] - 1) / q->cuts[f];
    return tsr__rule_work(q->rule, sizes);
}

// Elements of a window that its part does not have, at worst.
static int64_t beyond(const struct rule_window *w, int64_t n)
{
    int64_t most = 0;
    for (int64_t j = 0; j < n; j++) {
        struct window_part q = tsr__window_part(w, n, j);
        int64_t own = tsr__tile_start(w->from, n, j + 1) - tsr__tile_start(w->from, n, j);
        most = q.stop - q.start - own > most ? q.stop - q.start - own : most;
    }
    return most;
}

// What neighbours give each other, and putting it to what is there.
static int64_t halo_time(struct making *m)
{
    const struct rule *r = m->place.rule;
    int64_t ps = 0;
    for (int i = 0; i < r->n_windows; i++) {
        const struct rule_window *w = &r->windows[i];
        int64_t n = m->place.cuts[w->factor], more = n > 1 ? beyond(w, n) : 0;
        if (more <= 0 || !m->in[w->input] || w->from <= 0)
            continue;
        const struct plan_value *v = value_at(m, false, (size_t)w->input);
        int64_t held = tsr__planner_bytes(m->p, tsr__planner_layout(m->p, m->in[w->input]), v);
        double bytes = (double)held * (double)more * (double)n / (double)w->from;
        struct device_group two = {m->p->all, 2};
        ps += tsr__planner_combine(m->p, TSR_SEND, &two, 1, (int64_t)bytes) +
              tsr__planner_move_time(m->p, 2 * ((double)held + bytes));
    }
    return ps;
}

static void cost(struct making *m, struct candidate *c)
{
    double outputs = 0, bytes = 0;
    for (size_t i = 0; i < m->n_out; i++)
        if (slot(m->node, true, i))
            outputs += (double)tsr__planner_bytes(m->p, tsr__planner_layout(m->p, m->out[i]),
                                                  value_at(m, true, i));
    for (size_t i = 0; i < m->n_in; i++) {
        if (c->in[i] == PLAN_NO_LAYOUT || read_before(m, i))
            continue;
        const struct plan_value *v = value_at(m, false, i);
        int64_t held = tsr__planner_bytes(m->p, c->in[i], v);
        double read = (double)held;
        if ((int)i < m->place.rule->n_inputs && tsr__rule_looks_up(m->place.rule, (int)i) &&
            read > outputs)
            read = outputs;
        bytes += steers(m, false, i) ? 0 : read;
        c->weights += v->constant ? held : 0;
    }
    c->compute = tsr__planner_compute(m->p, local_work(m), bytes + outputs);
}

// ---- one candidate -----------------------------------------------------------------------------

static struct str name_of(const struct making *m, const char *suffix)
{
    const struct placement *q = &m->place;
    struct str text = STR("");
    for (int f = 0; f < q->rule->n_factors; f++)
        if (q->cuts[f] > 1)
            text = tsr__arena_printf(&m->p->arena, STR_FMT "%s%s/%lld", STR_ARG(text),
                                     text.n ? " " : "", q->rule->factors[f].name,
                                     (long long)q->cuts[f]);
    if (!text.n)
        text = STR("whole");
    return suffix ? tsr__arena_printf(&m->p->arena, STR_FMT " > %s", STR_ARG(text), suffix) : text;
}

// Numbers of the layouts; outputs as given.
static bool number(struct making *m, struct tile_layout *const *out, struct candidate *c)
{
    c->in = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_in + 1);
    c->out = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_out + 1);
    c->before = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_out + 1);
    if (!c->in || !c->out || !c->before)
        return false;
    for (size_t i = 0; i < m->n_in; i++)
        c->in[i] = m->in[i] ? tsr__planner_layout(m->p, m->in[i]) : PLAN_NO_LAYOUT;
    for (size_t i = 0; i < m->n_out; i++) {
        c->out[i] = out[i] ? tsr__planner_layout(m->p, out[i]) : PLAN_NO_LAYOUT;
        c->before[i] =
            out[i] && m->n_groups ? tsr__planner_layout(m->p, m->out[i]) : PLAN_NO_LAYOUT;
    }
    return !m->p->arena.failed;
}

static bool is_new(const struct making *m, const struct candidate *c)
{
    for (size_t i = 0; i < m->s->at.n; i++) {
        const struct candidate *o = &m->s->at.at[i];
        if (memcmp(o->in, c->in, m->n_in * sizeof *c->in) == 0 &&
            memcmp(o->out, c->out, m->n_out * sizeof *c->out) == 0)
            return false;
    }
    return true;
}

static void add(struct making *m, struct tile_layout *const *out, enum tsr_collective what,
                const char *reduction, const char *suffix)
{
    struct candidate c = {.reduction = m->n_groups ? reduction : NULL};
    if (m->s->at.n >= PLAN_MAX_CANDIDATES || !number(m, out, &c) || !is_new(m, &c))
        return;
    cost(m, &c);
    for (size_t i = 0; i < m->n_out && m->n_groups; i++)
        if (m->out[i])
            c.comm +=
                tsr__planner_combine(m->p, what, m->groups, m->n_groups,
                                     tsr__planner_bytes(m->p, tsr__planner_layout(m->p, m->out[i]),
                                                        value_at(m, true, i)));
    int64_t halo = halo_time(m);
    c.comm += halo;
    c.halo = halo > 0;
    for (int f = 0; f < m->place.rule->n_factors; f++)
        c.cut = c.cut || m->place.cuts[f] > 1;
    c.name = name_of(m, suffix);
    struct candidate *slot_of = vec_push(&m->p->arena, &m->s->at);
    if (slot_of)
        *slot_of = c;
}

static bool unit_fits(const struct rule_factor *f, int64_t size, int64_t cuts)
{
    if (f->least > 0 && f->least < cuts)
        return false;
    for (int64_t j = 1; j < cuts && f->unit != 1; j++)
        if (tsr__tile_start(size, cuts, j) % f->unit)
            return false;
    return size >= cuts;
}

// The same, but each member of a group keeps a share along one factor of the only output.
static void add_scattered(struct making *m)
{
    struct placement q = m->place;
    int n = q.rule->n_factors;
    int64_t sizes[RULE_MAX_FACTORS], parts = (int64_t)m->groups[0].n;
    tsr__planner_sizes(m->p->told, m->node, q.rule, sizes);
    for (int f = 0; f < n; f++) {
        const struct rule_factor *factor = &q.rule->factors[f];
        if (factor->kind != FACTOR_PAR || m->place.cuts[f] > 1 ||
            !unit_fits(factor, sizes[f], parts))
            continue;
        q.cuts = ARENA_ARRAY(m->a, int64_t, (size_t)n + 1);
        q.coords = ARENA_ARRAY(m->a, int64_t, q.n_devices * (size_t)n + 1);
        struct tile_layout **out = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
        if (!q.cuts || !q.coords || !out)
            return;
        memcpy(q.cuts, m->place.cuts, (size_t)n * sizeof *q.cuts);
        memcpy(q.coords, m->place.coords, q.n_devices * (size_t)n * sizeof *q.coords);
        q.cuts[f] = parts;
        for (size_t g = 0; g < m->n_groups; g++)
            for (size_t i = 0; i < m->groups[g].n; i++)
                for (size_t d = 0; d < q.n_devices; d++)
                    if (q.devices[d] == m->groups[g].devices[i])
                        q.coords[d * (size_t)n + (size_t)f] = (int64_t)i;
        out[0] = tsr__placement_project(m->a, &q, &q.rule->outputs[0]);
        if (out[0] && !tsr__layout_equal(out[0], m->out[0]) && comes_back(m, out))
            add(m, out, TSR_REDUCE_SCATTER, "ReduceScatter", factor->name);
    }
}

static size_t outputs_of(const struct making *m)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n_out; i++)
        n += slot(m->node, true, i) != NULL;
    return n;
}

// Takes the placement of m as a candidate if it holds.
static bool take(struct making *m)
{
    size_t before = m->s->at.n;
    m->in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    m->out = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    m->n_groups = 0;
    if (!m->in || !m->out || !project(m, &m->place, m->in, m->out) || !readings_agree(m) ||
        !comes_back(m, m->out) ||
        !tsr__placement_groups(m->a, &m->place, &m->groups, &m->n_groups, &m->combine))
        return false;
    add(m, m->out, TSR_ALL_REDUCE, "AllReduce", NULL);
    if (m->n_groups && outputs_of(m) == 1 && m->out[0])
        add_scattered(m);
    return m->s->at.n > before;
}

// ---- grids -------------------------------------------------------------------------------------

static bool place_on(struct making *m, const struct grid *g, const int *factor)
{
    const struct rule *r = m->s->rule;
    size_t n = (size_t)r->n_factors;
    struct placement *q = &m->place;
    *q = (struct placement){.rule = r, .devices = m->p->all, .n_devices = (size_t)m->p->n};
    q->cuts = ARENA_ARRAY(m->a, int64_t, n + 1);
    q->coords = ARENA_ARRAY(m->a, int64_t, q->n_devices * n + 1);
    if (!q->cuts || !q->coords)
        return false;
    for (size_t f = 0; f < n; f++)
        q->cuts[f] = 1;
    for (int i = 0; i < g->n; i++) {
        if (factor[i] < 0)
            continue;
        for (size_t d = 0; d < q->n_devices; d++)
            q->coords[d * n + (size_t)factor[i]] =
                q->coords[d * n + (size_t)factor[i]] * g->size[i] +
                (int64_t)d / g->stride[i] % g->size[i];
        q->cuts[factor[i]] *= g->size[i];
    }
    return true;
}

static bool may_cut(const struct rule_factor *f, int64_t size, int64_t cuts)
{
    return (f->kind == FACTOR_PAR || f->kind == FACTOR_RED) && size > 1 && unit_fits(f, size, cuts);
}

// Takes one grid with one factor (or -1) for each axis.
static void try_grid(struct making *m, struct grid g, const int *factor)
{
    struct arena scratch;
    int64_t stride = 1;
    for (int i = g.n; i-- > 0; stride *= g.size[i])
        g.stride[i] = stride;
    tsr__arena_init(&scratch, m->p->session);
    m->a = &scratch;
    if (place_on(m, &g, factor))
        (void)take(m);
    m->p->arena.failed = m->p->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Cuts of factor f in d parts, and of another in the rest, along the other axis.
static void try_pairs(struct making *m, int f, int64_t d, const int64_t *sizes)
{
    struct grid g = {.n = 2, .size = {d, m->p->n / d}};
    try_grid(m, g, (int[]){f, -1});
    for (int h = 0; h < m->s->rule->n_factors; h++)
        if (h != f && may_cut(&m->s->rule->factors[h], sizes[h], g.size[1]))
            try_grid(m, g, (int[]){f, h});
}

// On the grid that the devices form: a factor for each axis, or none.
static void try_wired(struct making *m, const int64_t *sizes)
{
    const tsr_topology *t = m->p->topology;
    struct grid g = {.n = 2, .size = {t->grid[0], m->p->n / t->grid[0]}};
    for (int f = -1; f < m->s->rule->n_factors; f++)
        for (int h = -1; h < m->s->rule->n_factors; h++) {
            bool fits = f != h &&
                        (f < 0 || may_cut(&m->s->rule->factors[f], sizes[f], g.size[0])) &&
                        (h < 0 || may_cut(&m->s->rule->factors[h], sizes[h], g.size[1]));
            if (fits)
                try_grid(m, g, (int[]){f, h});
        }
}

// Every factor alone over all devices; those that are too small for that as often as they can be, with the other
// devices idle or at another factor.
static void try_grids(struct making *m, const int64_t *sizes)
{
    struct grid line = {.n = 1, .size = {m->p->n}};
    for (int f = 0; f < m->s->rule->n_factors; f++) {
        const struct rule_factor *factor = &m->s->rule->factors[f];
        if (may_cut(factor, sizes[f], m->p->n)) {
            try_grid(m, line, &f);
            continue;
        }
        for (int64_t d = m->p->n - 1; d > 1; d--)
            if (m->p->n % d == 0 && may_cut(factor, sizes[f], d)) {
                try_pairs(m, f, d, sizes);
                break;
            }
    }
    if (!m->p->device && m->p->topology->n_grid > 1 && m->p->topology->grid[0] > 1 &&
        m->p->n % m->p->topology->grid[0] == 0 && m->p->n > m->p->topology->grid[0])
        try_wired(m, sizes);
}

// ---- whole nodes -------------------------------------------------------------------------------

// Whole on all devices, or on the first where each run gives something else.
static bool take_whole(struct making *m, bool single)
{
    struct candidate c = {.name = single ? STR("first device") : STR("whole")};
    m->in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    m->out = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    for (size_t i = 0; m->in && m->out && i < m->n_in + m->n_out; i++) {
        bool out = i >= m->n_in;
        size_t k = out ? i - m->n_in : i;
        if (!slot(m->node, out, k))
            continue;
        struct tile_layout *l = tsr__layout_whole(m->a, value_at(m, out, k)->rank, m->p->all,
                                                  single ? 1 : (size_t)m->p->n);
        *(out ? &m->out[k] : &m->in[k]) = l;
    }
    if (m->a->failed || !number(m, m->out, &c))
        return false;
    cost(m, &c);
    struct candidate *at = vec_push(&m->p->arena, &m->s->at);
    if (at)
        *at = c;
    return at != NULL;
}

static bool fill_strategy(struct planner *p, struct strategy *s, bool single)
{
    int64_t sizes[RULE_MAX_FACTORS], one = 1;
    struct arena scratch;
    struct making m = {.p = p, .s = s, .node = s->node};
    m.n_in = tsr_node_input_count(s->node);
    m.n_out = tsr_node_output_count(s->node);
    tsr__arena_init(&scratch, p->session);
    m.a = &scratch;
    m.place = (struct placement){.rule = s->rule, .cuts = &one};
    int64_t *ones = ARENA_ARRAY(&scratch, int64_t, (size_t)s->rule->n_factors + 1);
    for (int f = 0; ones && f < s->rule->n_factors; f++)
        ones[f] = 1;
    m.place.cuts = ones;
    bool ok = ones && take_whole(&m, single);
    tsr__arena_free(&scratch);
    if (!ok || s->whole)
        return ok;
    tsr__planner_sizes(p->told, s->node, s->rule, sizes);
    if (p->n > 1)
        try_grids(&m, sizes);
    return !p->arena.failed;
}

// ---- shardings that were given -----------------------------------------------------------------

static bool is_annotated(const struct planner *p, const tsr_node *n)
{
    for (size_t i = 0; p->config && i < tsr_node_config_count(n); i++) {
        const tsr_node_config *nc = tsr_node_config_at(n, i);
        if (tsr_node_config_config(nc) == p->config && tsr_node_config_spec_count(nc))
            return true;
    }
    return false;
}

// The candidate as the given shardings have it: false if it needs an input otherwise. Outputs that are wanted otherwise
// are moved by the node itself.
static bool conform(struct making *m, struct candidate *c)
{
    for (size_t i = 0; i < m->n_in; i++)
        if (m->in[i] && c->in[i] != tsr__planner_layout(m->p, m->in[i]))
            return false;
    for (size_t i = 0; i < m->n_out; i++) {
        if (!m->out[i] || c->out[i] == PLAN_NO_LAYOUT)
            continue;
        uint32_t wanted = tsr__planner_layout(m->p, m->out[i]);
        if (c->out[i] == wanted)
            continue;
        c->comm += tsr__planner_price(m->p, c->out[i], wanted, value_at(m, true, i));
        if (c->before[i] == PLAN_NO_LAYOUT)
            c->before[i] = c->out[i];
        c->out[i] = wanted;
    }
    return true;
}

// Keeps what conforms to the shardings of the node. Where the operator cannot be cut that way it runs whole.
static bool constrain(struct planner *p, struct strategy *s)
{
    struct arena a;
    struct making m = {.p = p, .s = s, .node = s->node, .a = &a};
    m.n_in = tsr_node_input_count(s->node);
    m.n_out = tsr_node_output_count(s->node);
    tsr__arena_init(&a, p->session);
    struct tile_layout **in = ARENA_ARRAY(&a, struct tile_layout *, m.n_in + 1);
    struct tile_layout **out = ARENA_ARRAY(&a, struct tile_layout *, m.n_out + 1);
    bool ok = in && out && tsr__node_specs(&a, s->node, p->config, p->shapes, in, out);
    if (ok && !s->whole &&
        tsr__placement_explicit(&a, &a, s->node, p->shapes, s->rule, p->n, in, out, &m.place))
        (void)take(&m);
    m.in = in;
    m.out = out;
    size_t kept = 0;
    for (size_t i = 0; ok && i < s->at.n; i++)
        if (conform(&m, &s->at.at[i]))
            s->at.at[kept++] = s->at.at[i];
    if (kept)
        s->at.n = kept;
    else
        s->at.n = s->at.n ? 1 : 0; // whole
    ok = ok && !a.failed;
    tsr__arena_free(&a);
    return ok;
}

// ---- nodes that are alike ----------------------------------------------------------------------

static void key_tensor(struct text *t, const struct rule_tensor *r)
{
    tsr__text_printf(t, "|%d%d%d", r->host, r->absent, r->rank);
    for (int d = 0; d < r->rank && !r->host; d++) {
        tsr__text_printf(t, ",");
        for (int k = 0; k < r->dims[d].n; k++)
            tsr__text_printf(t, "%d ", r->dims[d].factors[k]);
    }
}

static void key_value(struct text *t, const struct planner *p, const tsr_node *n, bool out,
                      size_t i)
{
    const tsr_value *v = slot(n, out, i);
    size_t first = i;
    if (!v) {
        tsr__text_printf(t, ";-");
        return;
    }
    for (size_t k = 0; k < i && !out && first == i; k++)
        first = slot(n, false, k) == v ? k : first;
    const struct plan_value *value = &p->values[tsr__value_id(v)];
    tsr__text_printf(t, ";%d:%d:%zu:", value->bits, value->constant, first);
    for (int d = 0; d < value->rank; d++)
        tsr__text_printf(t, "%lld,", (long long)value->shape[d]);
}

static void key_of(struct text *t, const struct planner *p, const tsr_node *n, const struct rule *r,
                   const char *whole)
{
    tsr__text_printf(t, "%d%d.", whole != NULL, r->single);
    for (int f = 0; f < r->n_factors && !whole; f++) {
        const struct rule_factor *x = &r->factors[f];
        tsr__text_printf(t, "%d %d %lld %s %lld;", (int)x->kind, (int)x->combine,
                         (long long)x->size.value, x->size.symbol ? x->size.symbol : "",
                         (long long)x->unit);
    }
    for (int i = 0; i < r->n_rewrites && !whole; i++)
        tsr__text_printf(t, "/%d %d %d", (int)r->rewrites[i].kind, r->rewrites[i].index,
                         r->rewrites[i].factor);
    for (int i = 0; i < r->n_windows && !whole; i++) {
        const struct rule_window *w = &r->windows[i];
        tsr__text_printf(t, "#%d %d %d %lld %lld %lld %lld %lld", w->input, w->dim, w->factor,
                         (long long)w->from, (long long)w->to, (long long)w->step,
                         (long long)w->shift, (long long)w->reach);
    }
    for (int i = 0; i < r->n_inputs && !whole; i++)
        key_tensor(t, &r->inputs[i]);
    for (int i = 0; i < r->n_outputs && !whole; i++)
        key_tensor(t, &r->outputs[i]);
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        key_value(t, p, n, false, i);
    tsr__text_printf(t, ">");
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        key_value(t, p, n, true, i);
}

static struct strategy *strategy_new(struct planner *p, const tsr_node *n, const struct rule *r,
                                     const char *whole)
{
    struct strategy *s = ARENA_NEW(&p->arena, struct strategy);
    if (!s)
        return NULL;
    s->id = p->n_strategies++;
    s->node = n;
    s->rule = r;
    s->whole = whole;
    tsr__map_init(&s->seen, &p->arena, 0);
    if (!fill_strategy(p, s, r->single))
        return NULL;
    s->given = is_annotated(p, n);
    return !s->given || constrain(p, s) ? s : NULL;
}

struct strategy *tsr__planner_strategy(struct planner *p, const tsr_node *n)
{
    struct text key;
    const struct rule *r = tsr__rule_of(&p->arena, n, p->shapes);
    if (!r)
        return NULL;
    const char *whole = r->whole ? r->whole : tsr__rule_stays(p->shapes, n);
    tsr__text_init(&key, p->session);
    key_of(&key, p, n, r, whole);
    if (is_annotated(p, n))
        tsr__text_printf(&key, "@%lld", (long long)tsr_node_index(n));
    struct strategy *s = NULL;
    if (!key.failed) {
        struct str text = {key.p, key.n};
        s = tsr__map_get(&p->strategies, text);
        if (!s) {
            void **at = tsr__map_at(&p->strategies, tsr__arena_str(&p->arena, text));
            s = at ? strategy_new(p, n, r, whole) : NULL;
            if (at)
                *at = s;
        }
    }
    tsr__text_free(&key);
    return s;
}

bool tsr__planner_try_layout(struct planner *p, struct strategy *s, const tsr_node *n, bool out,
                             size_t i, uint32_t layout)
{
    uint32_t key[3] = {out, (uint32_t)i, layout};
    struct str text = {(const char *)key, sizeof key};
    if (s->whole || s->given || tsr__map_get(&s->seen, text))
        return false;
    void **at = tsr__map_at(&s->seen, tsr__arena_str(&p->arena, text));
    if (!at)
        return false;
    *at = s;
    struct arena scratch;
    tsr__arena_init(&scratch, p->session);
    struct making m = {.p = p, .s = s, .node = n, .a = &scratch};
    m.n_in = tsr_node_input_count(n);
    m.n_out = tsr_node_output_count(n);
    struct tile_layout **in = ARENA_ARRAY(&scratch, struct tile_layout *, m.n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(&scratch, struct tile_layout *, m.n_out + 1);
    bool ok = in && outs;
    if (ok) {
        *(out ? &outs[i] : &in[i]) = tsr__layout_copy(&scratch, p->layouts.at[layout]);
        ok = tsr__placement_explicit(&scratch, &scratch, n, p->shapes, s->rule, p->n, in, outs,
                                     &m.place) &&
             take(&m);
    }
    tsr__arena_free(&scratch);
    return ok;
}
