// SPDX-License-Identifier: Apache-2.0
// candidates.c - one way to run a node: a placement of its rule's factors on the devices becomes layouts and a price.
//
// What the parts of a sum give is combined on all devices, or each keeps its share (reduce-scatter), or it stays in
// parts for readers that can add them. Every candidate is laid before the solver of the flow, so that it means the same
// when it is read from the model again. Operators are not known here.
#include "plan/candidates.h"

struct making tsr__making(struct planner *p, struct strategy *s, const tsr_node *n, struct arena *a)
{
    return (struct making){.p = p,
                           .s = s,
                           .rule = s->rule,
                           .node = n,
                           .a = a,
                           .n_in = tsr_node_input_count(n),
                           .n_out = tsr_node_output_count(n)};
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
    return tsr__placement_explicit(m->a, m->a, m->node, m->p->shapes, m->rule, m->p->n, in, out,
                                   !m->stat, &q) &&
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
    int64_t sizes[RULE_MAX_FACTORS], local[RULE_MAX_FACTORS];
    const struct placement *q = &m->place;
    tsr__planner_sizes(m->p->sized, m->node, q->rule, sizes);
    for (int f = 0; f < q->rule->n_factors; f++) {
        sizes[f] = sizes[f] < 0 ? 1 : sizes[f];
        local[f] = (sizes[f] + q->cuts[f] - 1) / q->cuts[f];
    }
    return tsr__node_work(q->rule, m->s->count, sizes, local);
}

// Elements of a window that its part does not have, at worst.
static int64_t beyond(const struct rule_window *w, int64_t n)
{
    int64_t most = 0;
    for (int64_t j = 0; j < n; j++) {
        struct window_part q = tsr__window_part(w, n, j);
        int64_t begin = tsr__tile_start(w->from, n, j), end = tsr__tile_start(w->from, n, j + 1);
        begin = begin > q.start ? begin : q.start;
        end = end < q.stop ? end : q.stop;
        int64_t missing = q.stop - q.start - (end > begin ? end - begin : 0);
        most = missing > most ? missing : most;
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

void tsr__making_cost(struct making *m, struct candidate *c)
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
        double read = (double)held * tsr__rule_reads(m->place.rule, (int)i);
        if ((int)i < m->place.rule->n_inputs && tsr__rule_looks_up(m->place.rule, (int)i) &&
            read > outputs)
            read = outputs;
        bytes += steers(m, false, i) ? 0 : read;
        c->weights += v->constant ? held : 0;
    }
    c->compute = tsr__planner_compute(m->p, local_work(m), m->s->rate, bytes + outputs);
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
    if (m->pending)
        text = tsr__arena_printf(&m->p->arena, STR_FMT " of parts", STR_ARG(text));
    return suffix ? tsr__arena_printf(&m->p->arena, STR_FMT " > %s", STR_ARG(text), suffix) : text;
}

// Numbers of the layouts; outputs as given.
bool tsr__making_number(struct making *m, struct tile_layout *const *out, struct candidate *c)
{
    c->in = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_in + 1);
    c->out = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_out + 1);
    c->before = ARENA_ARRAY(&m->p->arena, uint32_t, m->n_out + 1);
    if (!c->in || !c->out || !c->before)
        return false;
    for (size_t i = 0; i < m->n_in; i++) {
        c->in[i] = m->in[i] ? tsr__planner_layout(m->p, m->in[i]) : PLAN_NO_LAYOUT;
        if (m->pending && m->pending[i] != PLAN_NO_LAYOUT)
            c->in[i] = m->pending[i];
    }
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

static void keep(struct making *m, struct candidate *c, const char *suffix)
{
    if (m->s->at.n >= PLAN_MAX_CANDIDATES || !is_new(m, c))
        return;
    tsr__making_cost(m, c);
    int64_t halo = halo_time(m);
    c->comm += halo;
    c->halo = halo > 0;
    for (int f = 0; f < m->place.rule->n_factors; f++)
        c->cut = c->cut || m->place.cuts[f] > 1;
    c->name = name_of(m, suffix);
    struct candidate *at = vec_push(&m->p->arena, &m->s->at);
    if (at)
        *at = *c;
    for (size_t i = 0; m->spread && i < m->n_in + m->n_out; i++) {
        uint32_t l = i < m->n_in ? c->in[i] : c->out[i - m->n_in];
        if (l != PLAN_NO_LAYOUT)
            m->p->spread.at[l] = true;
    }
}

static void add(struct making *m, struct tile_layout *const *out, enum tsr_collective what,
                const char *reduction, const char *suffix)
{
    struct candidate c = {.reduction = m->n_groups ? reduction : NULL};
    if (!tsr__making_number(m, out, &c))
        return;
    for (size_t i = 0; i < m->n_out && m->n_groups; i++)
        if (m->out[i])
            c.comm +=
                tsr__planner_combine(m->p, what, m->groups, m->n_groups,
                                     tsr__planner_bytes(m->p, tsr__planner_layout(m->p, m->out[i]),
                                                        value_at(m, true, i)));
    keep(m, &c, suffix);
}

// The same, and the sum stays in parts.
static void add_parts(struct making *m)
{
    struct candidate c = {0};
    if (m->combine != COMBINE_SUM || !tsr__making_number(m, m->out, &c) ||
        !tsr__groups_share(m->groups, m->n_groups, m->out[0]))
        return;
    c.before[0] = PLAN_NO_LAYOUT;
    c.out[0] = tsr__planner_parts(m->p, c.out[0], m->groups, m->n_groups);
    if (c.out[0] != PLAN_NO_LAYOUT)
        keep(m, &c, "parts");
}

bool tsr__unit_fits(const struct rule_factor *f, int64_t size, int64_t cuts)
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
            !tsr__unit_fits(factor, sizes[f], parts))
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

// Statistics over a cut factor are combined twice: a greatest and a sum, a mean and a variance; a number for each row.
// The simpler nodes pass over the values several times.
#define STAT_SUMS   2
#define STAT_PASSES 4
static void add_stat(struct making *m)
{
    struct candidate c = {.reduction = "AllReduce", .reductions = STAT_SUMS};
    struct device_group all = {m->p->all, (size_t)m->p->n};
    int64_t sizes[RULE_MAX_FACTORS], rows = 0;
    if (m->n_groups || !m->out[0] || !tsr__making_expands(m) || !tsr__making_number(m, m->out, &c))
        return;
    tsr__planner_sizes(m->p->sized, m->node, m->rule, sizes);
    for (int f = 0; f < m->rule->n_factors; f++)
        if (m->rule->factors[f].kind == FACTOR_STAT && m->place.cuts[f] > 1 && sizes[f] > 0)
            rows = tsr__planner_bytes(m->p, tsr__planner_layout(m->p, m->in[0]),
                                      value_at(m, false, 0)) *
                   m->place.cuts[f] / sizes[f];
    c.comm = STAT_SUMS * tsr__planner_combine(m->p, TSR_ALL_REDUCE, &all, 1, rows);
    size_t before = m->s->at.n;
    keep(m, &c, NULL);
    if (m->s->at.n > before)
        m->s->at.at[before].compute *= STAT_PASSES;
}

// A sum that only the caller reads goes to the device that gives it, not to all.
static void add_rooted(struct making *m)
{
    struct tile_layout **out = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    const struct tile_layout *whole = m->out[0];
    if (!out || m->n_groups != 1 || !tsr__layout_is_whole(whole) ||
        m->groups[0].devices[0] != m->p->all[0])
        return;
    out[0] = tsr__layout_whole(m->a, whole->rank, m->p->all, 1);
    if (out[0] && comes_back(m, out))
        add(m, out, TSR_REDUCE, "Reduce", "first device");
}

// All ways to combine, or not.
static void add_all(struct making *m)
{
    if (m->stat) {
        add_stat(m);
        return;
    }
    bool one = outputs_of(m) == 1 && m->out[0];
    add(m, m->out, TSR_ALL_REDUCE, "AllReduce", NULL);
    if (m->n_groups && one)
        add_scattered(m);
    if (m->n_groups && one && m->s->gives)
        add_rooted(m);
    if (m->n_groups && one && m->s->delays)
        add_parts(m);
}

// Layouts by the placement of m, which must come back from them.
static bool lay_out(struct making *m)
{
    m->in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    m->out = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    m->n_groups = 0;
    return m->in && m->out && project(m, &m->place, m->in, m->out) && readings_agree(m) &&
           comes_back(m, m->out) &&
           tsr__placement_groups(m->a, &m->place, &m->groups, &m->n_groups, &m->combine);
}

bool tsr__making_take(struct making *m)
{
    size_t before = m->s->at.n;
    if (lay_out(m))
        add_all(m);
    return m->s->at.n > before;
}

bool tsr__making_take_parts(struct making *m, const struct parts *parts)
{
    size_t before = m->s->at.n;
    if (!lay_out(m) || m->n_groups || outputs_of(m) != 1 || !m->out[0] ||
        !tsr__groups_share(parts->groups, parts->n, m->out[0]))
        return false;
    m->groups = (struct device_group *)parts->groups;
    m->n_groups = parts->n;
    m->combine = COMBINE_SUM;
    add_all(m);
    return m->s->at.n > before;
}
