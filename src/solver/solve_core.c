// SPDX-License-Identifier: Apache-2.0
// solve_core.c - the program as the solver changes it: making it, removing choices, going back.
#include "internal.h"

// ---- tables

struct table *tsr__table_new(struct core *c, uint32_t rows, uint32_t cols)
{
    size_t bytes = sizeof(struct table) + (size_t)rows * cols * sizeof(int64_t);
    struct table *t = tsr__heap_get(c->heap, 1, bytes);
    if (t)
        *t = (struct table){.refs = 1, .rows = rows, .cols = cols};
    return t;
}

void tsr__table_drop(struct core *c, struct table *t)
{
    if (t && --t->refs == 0)
        tsr__heap_free(c->heap, t);
}

// ---- rows

// Sum of the largest usages at every time; a time that can never be exceeded needs no row.
static bool keep_times(const struct core *c, const struct program_limit *l, uint8_t *kept)
{
    int64_t *most = HEAP_ARRAY(c->heap, int64_t, (size_t)l->n_times + 1);
    if (!most)
        return false;
    for (size_t i = 0; i < l->uses.n; i++) {
        const struct program_use *u = &l->uses.at[i];
        int64_t largest = 0;
        for (uint32_t j = 0; j < c->p->nodes.at[u->node].k; j++)
            if (u->usage[j] > largest)
                largest = u->usage[j];
        most[u->begin] += largest;
        most[u->end] -= largest;
    }
    tsr__program_times(l, kept);
    int64_t sum = 0;
    for (uint32_t t = 0; t < l->n_times; t++) {
        sum += most[t];
        kept[t] = kept[t] && sum > l->bound;
    }
    tsr__heap_free(c->heap, most);
    return true;
}

static void add_use(struct core *c, const struct program_use *u, uint32_t begin, uint32_t end)
{
    struct core_node *n = &c->nodes[u->node];
    int64_t *usage = HEAP_ARRAY(c->heap, int64_t, n->k);
    struct core_use *out = begin < end && usage ? list_push(c->heap, &n->uses) : NULL;
    if (!out)
        return;
    memcpy(usage, u->usage, n->k * sizeof(int64_t));
    *out = (struct core_use){begin, end, usage};
}

// Rows of one limit; `row` has the number of rows kept before each time.
static bool add_rows(struct core *c, uint32_t limit)
{
    const struct program_limit *l = &c->p->limits.at[limit];
    uint8_t *kept = HEAP_ARRAY(c->heap, uint8_t, l->n_times);
    uint32_t *row = HEAP_ARRAY(c->heap, uint32_t, (size_t)l->n_times + 1);
    if (!kept || !row || !keep_times(c, l, kept))
        return false;
    row[0] = c->n_rows;
    for (uint32_t t = 0; t < l->n_times; t++)
        row[t + 1] = row[t] + kept[t];
    uint32_t n = row[l->n_times];
    c->row_limit = tsr__heap_grow(c->heap, c->row_limit, (size_t)n + 1, sizeof(uint32_t));
    c->row_time = tsr__heap_grow(c->heap, c->row_time, (size_t)n + 1, sizeof(uint32_t));
    c->row_bound = tsr__heap_grow(c->heap, c->row_bound, (size_t)n + 1, sizeof(int64_t));
    if (c->heap->failed)
        return false;
    for (uint32_t t = 0; t < l->n_times; t++)
        if (kept[t]) {
            c->row_limit[row[t]] = limit;
            c->row_time[row[t]] = t;
            c->row_bound[row[t]] = l->bound;
        }
    for (size_t i = 0; i < l->uses.n; i++)
        add_use(c, &l->uses.at[i], row[l->uses.at[i].begin], row[l->uses.at[i].end]);
    c->n_rows = n;
    tsr__heap_free(c->heap, kept);
    tsr__heap_free(c->heap, row);
    return true;
}

// ---- nodes and edges

// Shifts a table so that its least entry is 0; all forbidden: the program is infeasible.
static void shift_table(struct core *c, int64_t *cell, size_t n)
{
    int64_t least = COST_FORBIDDEN;
    for (size_t i = 0; i < n; i++)
        least = cell[i] < least ? cell[i] : least;
    if (least == COST_FORBIDDEN)
        c->infeasible = true;
    else
        c->shift += least;
    for (size_t i = 0; i < n; i++)
        cell[i] = cell[i] == COST_FORBIDDEN ? NEVER : cell[i] - least;
}

static bool add_node(struct core *c, uint32_t v, uint32_t pin)
{
    const struct program_node *n = &c->p->nodes.at[v];
    struct core_node *out = &c->nodes[v];
    out->k = n->k;
    out->cost = HEAP_ARRAY(c->heap, int64_t, n->k);
    out->origin = HEAP_ARRAY(c->heap, uint32_t, n->k);
    if (!out->cost || !out->origin)
        return false;
    for (uint32_t i = 0; i < n->k; i++) {
        out->cost[i] = pin == NONE || pin == i ? n->cost[i] : COST_FORBIDDEN;
        out->origin[i] = i;
    }
    shift_table(c, out->cost, n->k);
    return true;
}

// The program's tables are often shared: the last one that was made of each is found by its address.
struct recent {
    const int64_t *cost;
    struct table *table;
    int64_t shift;
};
#define RECENT 4096

static bool add_edge(struct core *c, const struct program_edge *e, struct recent *recent)
{
    uint32_t ka = c->p->nodes.at[e->a].k, kb = c->p->nodes.at[e->b].k;
    struct recent *r = &recent[((uintptr_t)e->cost >> 4) % RECENT];
    if (r->cost == e->cost && r->table->rows == ka && r->table->cols == kb) {
        r->table->refs++;
        c->shift += r->shift;
    } else {
        int64_t before = c->shift;
        struct table *t = tsr__table_new(c, ka, kb);
        if (!t)
            return false;
        memcpy(t->cell, e->cost, (size_t)ka * kb * sizeof(int64_t));
        shift_table(c, t->cell, (size_t)ka * kb);
        *r = (struct recent){e->cost, t, c->shift - before};
    }
    c->effort->work += (size_t)ka * kb;
    uint32_t id = c->edges.n;
    struct core_edge *out = list_push(c->heap, &c->edges);
    uint32_t *at_a = list_push(c->heap, &c->nodes[e->a].edges);
    uint32_t *at_b = list_push(c->heap, &c->nodes[e->b].edges);
    if (!out || !at_a || !at_b)
        return false;
    *out = (struct core_edge){e->a, e->b, r->table, true};
    *at_a = *at_b = id;
    return true;
}

bool tsr__core_init(struct core *c, const struct program *p, struct heap *h, struct effort *e,
                    uint32_t pinned, uint32_t pin)
{
    *c = (struct core){.p = p, .heap = h, .effort = e, .n_nodes = (uint32_t)p->nodes.n};
    c->nodes = HEAP_ARRAY(h, struct core_node, p->nodes.n + 1);
    struct recent *recent = HEAP_ARRAY(h, struct recent, RECENT);
    if (!c->nodes || !recent)
        return false;
    for (uint32_t v = 0; v < p->nodes.n; v++)
        if (!add_node(c, v, v == pinned ? pin : NONE))
            return false;
    for (size_t i = 0; i < p->edges.n; i++)
        if (!add_edge(c, &p->edges.at[i], recent))
            return false;
    tsr__heap_free(h, recent);
    for (uint32_t l = 0; l < p->limits.n; l++)
        if (!add_rows(c, l))
            return false;
    return !h->failed;
}

// ---- removing choices

static void remove_from_edge(struct core *c, struct core_edge *e, uint32_t v, const uint8_t *dead,
                             uint32_t k)
{
    struct table *old = e->table;
    bool rows = e->a == v;
    struct table *t = tsr__table_new(c, rows ? k : old->rows, rows ? old->cols : k);
    if (!t)
        return;
    int64_t *out = t->cell;
    for (uint32_t i = 0; i < old->rows; i++) {
        if (rows && dead[i])
            continue;
        const int64_t *in = old->cell + (size_t)i * old->cols;
        for (uint32_t j = 0; j < old->cols; j++)
            if (rows || !dead[j])
                *out++ = in[j];
    }
    c->effort->work += (size_t)old->rows * old->cols;
    tsr__table_drop(c, old);
    e->table = t;
    e->dirty = true;
}

void tsr__core_remove(struct core *c, uint32_t v, const uint8_t *dead)
{
    struct core_node *n = &c->nodes[v];
    uint32_t k = 0;
    for (uint32_t i = 0; i < n->k; i++) {
        if (dead[i])
            continue;
        n->cost[k] = n->cost[i];
        n->origin[k] = n->origin[i];
        for (uint32_t u = 0; u < n->uses.n; u++)
            n->uses.at[u].usage[k] = n->uses.at[u].usage[i];
        k++;
    }
    if (k == n->k)
        return;
    for (uint32_t i = 0; i < n->edges.n && !c->heap->failed; i++)
        remove_from_edge(c, &c->edges.at[n->edges.at[i]], v, dead, k);
    n->k = k;
    if (k == 0)
        c->infeasible = true;
}

// ---- going back

void tsr__core_expand(const struct core *c, uint32_t *choice)
{
    for (uint32_t i = c->steps.n; i-- > 0;) {
        const struct core_step *s = &c->steps.at[i];
        size_t at = s->n > 0 ? choice[s->from[0]] : 0;
        if (s->n > 1)
            at = at * s->stride + choice[s->from[1]];
        choice[s->node] = s->by_choice[at];
    }
}
