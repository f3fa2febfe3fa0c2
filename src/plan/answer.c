// SPDX-License-Identifier: Apache-2.0
// answer.c - what a chosen plan comes to: bytes on each device over time, and its communication.
//
// A value lies in the layout of its producer until its last reader has run or has got another one; a layout that
// readers want besides is there from the first of them to the last. Constants are stored in every layout that is
// wanted, once. It is never more than the rows of the program count (uses.c).
#include "plan/internal.h"

// A layout of a value, from time `begin` until before `end`.
struct form {
    uint32_t layout;
    size_t begin, end;
};
struct forms {
    struct form at[PLAN_MAX_CANDIDATES + 1];
    size_t n;
};

// A form that is what is wanted, or holds it on all devices that want it.
static struct form *find(struct planner *p, struct forms *f, uint32_t want,
                         const struct plan_value *v)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->at[i].layout == want ||
            (!v->constant && tsr__planner_price(p, f->at[i].layout, want, v) == 0))
            return &f->at[i];
    return NULL;
}

static size_t time_of(const struct planner *p, const struct reader *r)
{
    return PLAN_TIMES * (r->node == SIZE_MAX ? p->n_nodes : r->node);
}

static uint32_t choice_of(const struct planner *p, const struct reader *r)
{
    return r->node == SIZE_MAX ? 0 : p->nodes[r->node].choice;
}

static void extend(struct form *f, size_t end)
{
    f->end = f->end < end ? end : f->end;
}

// Layouts that readers want, in order; the first is where the value lies (PLAN_NO_LAYOUT: nowhere yet).
static bool forms_of(struct planner *p, const tsr_value *v, uint32_t first, size_t begin,
                     struct forms *out)
{
    struct arena a;
    const struct plan_value *value = &p->values[tsr__value_id(v)];
    tsr__arena_init(&a, p->session);
    struct readers r = tsr__planner_readers(p, &a, v);
    out->n = 0;
    if (first != PLAN_NO_LAYOUT)
        out->at[out->n++] = (struct form){first, begin, begin};
    for (size_t i = 0; i < r.n; i++) {
        uint32_t want = tsr__planner_wanted(p, &r.at[i], v, choice_of(p, &r.at[i]));
        size_t time = time_of(p, &r.at[i]);
        struct form *f = find(p, out, want, value);
        if (!f && first != PLAN_NO_LAYOUT)
            extend(&out->at[0], time + TIME_RUN);
        if (!f && out->n < PLAN_MAX_CANDIDATES) {
            f = &out->at[out->n++];
            *f = (struct form){want, time, time};
        }
        if (f)
            extend(f, time + TIME_COMBINE);
    }
    if (r.stays && first != PLAN_NO_LAYOUT)
        extend(&out->at[0], PLAN_TIMES * p->n_nodes);
    bool ok = !a.failed;
    tsr__arena_free(&a);
    return ok;
}

// ---- memory ------------------------------------------------------------------------------------

struct account {
    struct planner *p;
    struct arena *a;
    int64_t *all_time; // by device
    int64_t *change;   // by device and time
    size_t n_times;
    // Second walk: what lies on `device` at `time`; names belong to the model.
    tsr_plan_binding *top;
    size_t n_top, time;
    int64_t device;
};

static void add_form(struct account *m, const struct plan_value *v, const struct form *f,
                     bool all_time)
{
    for (int64_t d = 0; d < m->p->n; d++) {
        int64_t bytes = tsr__planner_held(m->p, m->a, f->layout, v, d);
        if (all_time) {
            m->all_time[d] += bytes;
            continue;
        }
        m->change[(size_t)d * m->n_times + f->begin] += bytes;
        m->change[(size_t)d * m->n_times + f->end] -= bytes;
    }
}

// Keeps the largest, in order; of equal ones the first.
static void rank_value(struct account *m, const tsr_value *v, int64_t bytes)
{
    size_t i = m->n_top;
    if (bytes <= 0)
        return;
    while (i > 0 && m->top[i - 1].bytes < bytes)
        i--;
    if (i == PLAN_MAX_BINDING)
        return;
    m->n_top += m->n_top < PLAN_MAX_BINDING;
    for (size_t k = m->n_top - 1; k > i; k--)
        m->top[k] = m->top[k - 1];
    m->top[i] = (tsr_plan_binding){tsr_value_name(v), bytes};
}

static int64_t bytes_then(struct account *m, const struct plan_value *v, const struct form *f,
                          bool all_time)
{
    bool there = all_time || (f->begin <= m->time && m->time < f->end);
    return there ? tsr__planner_held(m->p, m->a, f->layout, v, m->device) : 0;
}

// before: as it lies until it is combined, or PLAN_NO_LAYOUT.
static bool add_value(struct account *m, const tsr_value *v, uint32_t first, uint32_t before,
                      size_t run)
{
    const struct plan_value *value = &m->p->values[tsr__value_id(v)];
    struct forms f;
    bool combined = before != PLAN_NO_LAYOUT;
    if (!forms_of(m->p, v, first, run + combined, &f))
        return false;
    if (combined)
        f.at[f.n++] = (struct form){before, run, run + 2};
    int64_t bytes = 0;
    for (size_t i = 0; i < f.n; i++) {
        bool all_time = value->constant || (i == 0 && value->given);
        if (m->top)
            bytes += bytes_then(m, value, &f.at[i], all_time);
        else
            add_form(m, value, &f.at[i], all_time);
    }
    if (m->top)
        rank_value(m, v, bytes);
    return true;
}

static bool add_values(struct account *m)
{
    struct planner *p = m->p;
    for (size_t i = 0; i < p->given.n; i++) {
        const tsr_value *v = p->given.at[i];
        if (!add_value(m, v, tsr__planner_whole(p, p->values[tsr__value_id(v)].rank),
                       PLAN_NO_LAYOUT, 0))
            return false;
    }
    for (size_t i = 0; i < p->constants.n; i++)
        if (!add_value(m, p->constants.at[i], PLAN_NO_LAYOUT, PLAN_NO_LAYOUT, 0))
            return false;
    for (size_t i = 0; i < p->n_nodes; i++) {
        const struct plan_node *n = &p->nodes[i];
        for (size_t o = 0; n->strategy && o < tsr_node_output_count(n->node); o++) {
            const struct candidate *c = &n->strategy->at.at[n->choice];
            if (tsr_node_output(n->node, o) && !add_value(m, tsr_node_output(n->node, o), c->out[o],
                                                          c->before[o], PLAN_TIMES * i + TIME_RUN))
                return false;
        }
    }
    return true;
}

static bool account(struct account *m, struct planner *p, struct arena *a)
{
    *m = (struct account){.p = p, .a = a, .n_times = PLAN_TIMES * (p->n_nodes + 2)};
    m->all_time = ARENA_ARRAY(a, int64_t, (size_t)p->n);
    m->change = ARENA_ARRAY(a, int64_t, (size_t)p->n * m->n_times);
    return !a->failed && add_values(m) && !a->failed;
}

static int64_t most_of(const struct account *m, int64_t device, size_t *time)
{
    int64_t now = 0, most = 0;
    for (size_t t = 0; t < m->n_times; t++) {
        now += m->change[(size_t)device * m->n_times + t];
        if (now > most) {
            most = now;
            *time = t;
        }
    }
    return m->all_time[device] + most;
}

bool tsr__planner_memory(struct planner *p, int64_t *bytes, int64_t *peak)
{
    struct arena a;
    struct account m;
    size_t time;
    tsr__arena_init(&a, p->session);
    bool ok = account(&m, p, &a);
    for (int64_t d = 0; ok && d < p->n; d++)
        bytes[d] = most_of(&m, d, &time);
    for (int64_t d = 0; ok && peak && d < p->n; d++)
        peak[d] = bytes[d] + PLAN_ENGINE_BYTES;
    tsr__arena_free(&a);
    return ok;
}

size_t tsr__planner_binding(struct planner *p, tsr_plan_binding *out)
{
    struct arena a;
    struct account m;
    tsr__arena_init(&a, p->session);
    bool ok = account(&m, p, &a);
    int64_t most = -1;
    for (int64_t d = 0; ok && d < p->n; d++) {
        size_t time = 0;
        int64_t bytes = most_of(&m, d, &time);
        if (bytes > most) {
            most = bytes;
            m.device = d;
            m.time = time;
        }
    }
    m.top = out;
    ok = ok && add_values(&m) && !a.failed;
    tsr__arena_free(&a);
    return ok ? m.n_top : 0;
}

// ---- one device --------------------------------------------------------------------------------

static const struct candidate *whole_of(const struct strategy *s, uint32_t *choice)
{
    for (size_t i = 0; i < s->at.n; i++)
        if (!s->at.at[i].cut) {
            *choice = (uint32_t)i;
            return &s->at.at[i];
        }
    return NULL;
}

static int64_t run_whole(struct planner *p, int64_t *bytes)
{
    int64_t time = 0, memory = p->n_classes ? 0 : PLAN_NO_LIMIT;
    for (size_t c = 0; c < p->n_classes; c++)
        memory = p->class_memory[c] > memory ? p->class_memory[c] : memory;
    for (size_t i = 0; i < p->n_nodes; i++) {
        struct plan_node *n = &p->nodes[i];
        const struct candidate *c = n->strategy ? whole_of(n->strategy, &n->choice) : NULL;
        if (n->strategy && (!c || !add_ok(time, c->compute, &time)))
            return 0;
    }
    return tsr__planner_memory(p, bytes, NULL) && bytes[0] <= memory ? time : 0;
}

int64_t tsr__planner_whole_time(const struct planner *p)
{
    int64_t time = 0;
    for (size_t i = 0; i < p->n_nodes; i++) {
        uint32_t choice;
        const struct candidate *c =
            p->nodes[i].strategy ? whole_of(p->nodes[i].strategy, &choice) : NULL;
        if (c && !add_ok(time, c->compute, &time))
            return 0;
    }
    return time;
}

int64_t tsr__planner_one_device(struct planner *p)
{
    uint32_t *kept = ARENA_ARRAY(&p->arena, uint32_t, p->n_nodes + 1);
    int64_t *bytes = ARENA_ARRAY(&p->arena, int64_t, (size_t)p->n);
    if (!kept || !bytes)
        return 0;
    for (size_t i = 0; i < p->n_nodes; i++)
        kept[i] = p->nodes[i].choice;
    int64_t time = run_whole(p, bytes);
    for (size_t i = 0; i < p->n_nodes; i++)
        p->nodes[i].choice = kept[i];
    return time;
}

// ---- communication -----------------------------------------------------------------------------

struct counts {
    struct collective_count *at;
    size_t n;
};

static void count(void *data, const char *op)
{
    struct counts *c = data;
    size_t i = 0;
    while (i < c->n && strcmp(c->at[i].op, op) != 0)
        i++;
    if (i == PLAN_MAX_OPS)
        return;
    if (i == c->n)
        c->at[c->n++] = (struct collective_count){op, 0};
    c->at[i].count++;
}

// Each layout comes from the nearest of those that are there.
static void count_value(struct planner *p, const tsr_value *v, uint32_t first, struct counts *c)
{
    const struct plan_value *value = &p->values[tsr__value_id(v)];
    struct forms f;
    if (!forms_of(p, v, first, 0, &f))
        return;
    for (size_t i = 1; i < f.n; i++) {
        size_t best = 0;
        for (size_t k = 1; k < i; k++)
            if (tsr__planner_price(p, f.at[k].layout, f.at[i].layout, value) <
                tsr__planner_price(p, f.at[best].layout, f.at[i].layout, value))
                best = k;
        tsr__planner_steps(p, f.at[best].layout, f.at[i].layout, value, count, c);
    }
}

size_t tsr__planner_collectives(struct planner *p, struct collective_count *out)
{
    struct counts c = {.at = out};
    for (size_t i = 0; i < p->n_nodes; i++) {
        const struct plan_node *n = &p->nodes[i];
        if (!n->strategy)
            continue;
        const struct candidate *x = &n->strategy->at.at[n->choice];
        if (x->halo)
            count(&c, "HaloExchange");
        for (int k = 0; k < x->reductions; k++)
            count(&c, x->reduction);
        for (size_t o = 0; o < tsr_node_output_count(n->node); o++) {
            if (!tsr_node_output(n->node, o))
                continue;
            if (x->reduction && !x->reductions)
                count(&c, x->reduction);
            count_value(p, tsr_node_output(n->node, o), x->out[o], &c);
        }
    }
    return c.n;
}
