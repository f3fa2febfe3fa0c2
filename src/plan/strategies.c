// SPDX-License-Identifier: Apache-2.0
// strategies.c - the candidates of a node: whole, on grids, as its neighbours have its values, or as it was annotated.
// Nodes that are alike share one list.
#include "plan/candidates.h"

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
    if (m->a->failed || !tsr__making_number(m, m->out, &c))
        return false;
    tsr__making_cost(m, &c);
    struct candidate *at = vec_push(&m->p->arena, &m->s->at);
    if (at)
        *at = c;
    return at != NULL;
}

static bool fill_strategy(struct planner *p, struct strategy *s, bool single)
{
    int64_t one = 1;
    struct arena scratch;
    tsr__arena_init(&scratch, p->session);
    struct making m = tsr__making(p, s, s->node, &scratch);
    m.place = (struct placement){.rule = s->rule, .cuts = &one};
    int64_t *ones = ARENA_ARRAY(&scratch, int64_t, (size_t)s->rule->n_factors + 1);
    for (int f = 0; ones && f < s->rule->n_factors; f++)
        ones[f] = 1;
    m.place.cuts = ones;
    bool ok = ones && take_whole(&m, single);
    tsr__arena_free(&scratch);
    if (!ok || s->whole)
        return ok;
    if (p->n > 1)
        tsr__making_grids(&m);
    m.rule = s->other;
    if (p->n > 1 && s->other)
        tsr__making_grids(&m);
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

static bool cuts_statistics(const struct placement *p)
{
    for (int f = 0; f < p->rule->n_factors; f++)
        if (p->rule->factors[f].kind == FACTOR_STAT && p->cuts[f] > 1)
            return true;
    return false;
}

// Keeps what conforms to the shardings of the node. Where the operator cannot be cut that way it runs whole.
static bool constrain(struct planner *p, struct strategy *s)
{
    struct arena a;
    tsr__arena_init(&a, p->session);
    struct making m = tsr__making(p, s, s->node, &a);
    struct tile_layout **in = ARENA_ARRAY(&a, struct tile_layout *, m.n_in + 1);
    struct tile_layout **out = ARENA_ARRAY(&a, struct tile_layout *, m.n_out + 1);
    bool ok = in && out && tsr__node_specs(&a, s->node, p->config, p->shapes, in, out);
    for (int k = 0; ok && !s->whole && k < 3; k++) {
        m.rule = k == 1 ? s->other : s->rule;
        m.stat = k == 2; // what the others do not find may cut statistics
        if (m.rule &&
            tsr__placement_explicit(&a, &a, s->node, p->shapes, m.rule, p->n, in, out, k < 2,
                                    &m.place) &&
            m.stat == cuts_statistics(&m.place))
            (void)tsr__making_take(&m);
    }
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
    tsr__text_printf(t, ";%d:%d:%zu:", (int)tsr__shapes_of(p->sized, v).dtype, value->constant,
                     first);
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
        tsr__text_printf(t, "#%d %d %d %lld %lld %lld %lld %lld %lld", w->input, w->dim, w->factor,
                         (long long)w->from, (long long)w->to, (long long)w->step,
                         (long long)w->shift, (long long)w->reach, (long long)w->per);
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

static bool gives_output(const tsr_node *n)
{
    const tsr_value *first = tsr_node_output_count(n) ? tsr_node_output(n, 0) : NULL;
    return first && tsr_value_is_output(first);
}

static struct strategy *strategy_new(struct planner *p, const struct plan_node *pn,
                                     const char *whole)
{
    const tsr_node *n = pn->node;
    const struct rule *r = pn->rule;
    struct strategy *s = ARENA_NEW(&p->arena, struct strategy);
    if (!s)
        return NULL;
    s->id = p->n_strategies++;
    s->node = n;
    s->rule = r;
    s->other = whole ? NULL : tsr__rule_other(&p->arena, n, p->shapes);
    s->count = tsr__node_count(n, p->sized);
    s->rate = tsr__node_rate(n, p->sized);
    s->delays = pn->delays;
    s->takes = pn->takes;
    s->gives = gives_output(n);
    s->whole = whole;
    tsr__map_init(&s->seen, &p->arena, 0);
    if (!fill_strategy(p, s, r->single))
        return NULL;
    s->given = is_annotated(p, n);
    return !s->given || constrain(p, s) ? s : NULL;
}

struct strategy *tsr__planner_strategy(struct planner *p, const struct plan_node *pn)
{
    struct text key;
    const tsr_node *n = pn->node;
    const struct rule *r = pn->rule;
    const char *whole = r->whole ? r->whole : tsr__rule_stays(p->shapes, n);
    tsr__text_init(&key, p->session);
    key_of(&key, p, n, r, whole);
    tsr__text_printf(&key, "%d%d%d%a", pn->delays, pn->takes, gives_output(n),
                     tsr__node_count(n, p->sized));
    if (is_annotated(p, n))
        tsr__text_printf(&key, "@%lld", (long long)tsr_node_index(n));
    struct strategy *s = NULL;
    if (!key.failed) {
        struct str text = {key.p, key.n};
        s = tsr__map_get(&p->strategies, text);
        if (!s) {
            void **at = tsr__map_at(&p->strategies, tsr__arena_str(&p->arena, text));
            s = at ? strategy_new(p, pn, whole) : NULL;
            if (at)
                *at = s;
        }
    }
    tsr__text_free(&key);
    return s;
}

static bool try_rule(struct making *m, const struct rule *r, bool out, size_t i, uint32_t layout)
{
    const struct planner *p = m->p;
    struct tile_layout **in = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    m->rule = r;
    if (!r || !in || !outs)
        return false;
    *(out ? &outs[i] : &in[i]) = tsr__layout_copy(m->a, p->layouts.at[layout]);
    return tsr__placement_explicit(m->a, m->a, m->node, p->shapes, r, p->n, in, outs, true,
                                   &m->place) &&
           tsr__making_take(m);
}

// False: it was tried before.
static bool is_first_try(struct planner *p, struct strategy *s, const uint32_t key[3])
{
    struct str text = {(const char *)key, 3 * sizeof *key};
    if (s->whole || s->given || tsr__map_get(&s->seen, text))
        return false;
    void **at = tsr__map_at(&s->seen, tsr__arena_str(&p->arena, text));
    if (at)
        *at = s;
    return at != NULL;
}

bool tsr__planner_try_layout(struct planner *p, struct strategy *s, const tsr_node *n, bool out,
                             size_t i, uint32_t layout)
{
    uint32_t key[3] = {out, (uint32_t)i, layout};
    struct arena scratch;
    if (!is_first_try(p, s, key))
        return false;
    tsr__arena_init(&scratch, p->session);
    struct making m = tsr__making(p, s, n, &scratch);
    m.spread = p->spread.at[layout];
    bool ok = try_rule(&m, s->rule, out, i, layout);
    ok = try_rule(&m, s->other, out, i, layout) || ok;
    tsr__arena_free(&scratch);
    return ok;
}

// ---- parts of sums -----------------------------------------------------------------------------

// Inputs that come in parts: those of the value, and with all every one that can and lies so.
static uint32_t *pending_of(struct making *m, const struct candidate *c, size_t i, uint32_t layout,
                            bool all)
{
    uint32_t *pending = ARENA_ARRAY(m->a, uint32_t, m->n_in + 1);
    for (size_t k = 0; pending && k < m->n_in; k++) {
        const tsr_value *v = slot(m->node, false, k);
        bool same = v == slot(m->node, false, i);
        bool can = all && v && c->in[k] == c->in[i] && !value_at(m, false, k)->constant &&
                   tsr__sum_fits(m->p->shapes, m->node, k) == SUM_ADDS;
        pending[k] = same || can ? layout : PLAN_NO_LAYOUT;
    }
    return pending;
}

static void try_parts(struct making *m, const uint32_t *in, const uint32_t *pending,
                      const struct parts *parts)
{
    struct planner *p = m->p;
    struct tile_layout **ins = ARENA_ARRAY(m->a, struct tile_layout *, m->n_in + 1);
    struct tile_layout **outs = ARENA_ARRAY(m->a, struct tile_layout *, m->n_out + 1);
    for (size_t k = 0; ins && k < m->n_in; k++)
        ins[k] = in[k] == PLAN_NO_LAYOUT ? NULL : tsr__layout_copy(m->a, p->layouts.at[in[k]]);
    m->pending = pending;
    if (ins && outs && pending &&
        tsr__placement_explicit(m->a, m->a, m->node, p->shapes, m->rule, p->n, ins, outs, true,
                                &m->place))
        (void)tsr__making_take_parts(m, parts);
}

void tsr__planner_try_parts(struct planner *p, struct strategy *s, const tsr_node *n, size_t i,
                            uint32_t layout)
{
    uint32_t key[3] = {2, (uint32_t)i, layout};
    const struct parts *parts = p->parts.at[layout];
    enum sum_way way = s->takes ? tsr__sum_fits(p->shapes, n, i) : SUM_STOPS;
    struct arena scratch;
    if (way == SUM_STOPS || !is_first_try(p, s, key))
        return;
    tsr__arena_init(&scratch, p->session);
    for (size_t c = 0, end = s->at.n; c < end; c++) {
        if (s->at.at[c].in[i] != parts->layout || s->at.at[c].reduction)
            continue;
        struct candidate x = s->at.at[c]; // the list may move
        struct making m = tsr__making(p, s, n, &scratch);
        try_parts(&m, x.in, pending_of(&m, &x, i, layout, false), parts);
        if (way == SUM_ADDS)
            try_parts(&m, x.in, pending_of(&m, &x, i, layout, true), parts);
    }
    p->arena.failed = p->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}
