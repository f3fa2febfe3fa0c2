// SPDX-License-Identifier: Apache-2.0
// joint.c - two models of the same weights planned at once: prefill and decode.
//
// Each has its program; the two become one, with the costs of the second times the number of its runs, and with an edge
// for every weight that both have, which forbids that they lie differently. Devices hold both models at a time, so what
// only one has counts while the other runs too; what both have counts once, because it lies the same.
#include "plan/internal.h"

#include <math.h>

#define COMPARED_BYTES ((size_t)1 << 10) // weights below are the same by name alone

struct joint {
    struct planner *p[2];
    struct program program;
    uint32_t first[2]; // variables of each
    uint32_t first_limit[2];
    int64_t runs[2];
    int shift;                 // costs are halved so often, for sums to stay small enough
    struct map scaled, links;  // tables, made once
    const tsr_value **twin[2]; // by value id: the same weight in the other model
    size_t shared;
};

// ---- weights that both have --------------------------------------------------------------------

static bool same_form(const tsr_tensor *a, const tsr_tensor *b)
{
    int rank = tsr_tensor_rank(a);
    return tsr_tensor_dtype(a) == tsr_tensor_dtype(b) && rank == tsr_tensor_rank(b) &&
           memcmp(tsr_tensor_dims(a), tsr_tensor_dims(b), (size_t)rank * sizeof(int64_t)) == 0;
}

// Data outside of the files is not looked at.
static bool same_bytes(const tsr_tensor *a, const tsr_tensor *b)
{
    const void *x, *y;
    size_t n, m;
    if (tsr_tensor_bytes(a) < (int64_t)COMPARED_BYTES || tsr_tensor_is_external(a) ||
        tsr_tensor_is_external(b))
        return false;
    return tsr_tensor_data(a, &x, &n) == TSR_OK && tsr_tensor_data(b, &y, &m) == TSR_OK && n == m &&
           memcmp(x, y, n) == 0;
}

static bool is_weight(const struct planner *p, const tsr_value *v)
{
    return p->values[tsr__value_id(v)].constant && tsr_value_initializer(v);
}

static void pair(struct joint *j, const tsr_value *a, const tsr_value *b)
{
    j->twin[0][tsr__value_id(a)] = b;
    j->twin[1][tsr__value_id(b)] = a;
    j->shared++;
}

// A weight of the second model that is the same as one of the first and was not found by name.
static const tsr_value *equal_of(const struct joint *j, const tsr_value *v)
{
    const tsr_graph *g = tsr_model_graph(j->p[1]->model);
    for (size_t k = 0; k < tsr_graph_initializer_count(g); k++) {
        const tsr_value *w = tsr_graph_initializer(g, k);
        if (is_weight(j->p[1], w) && !j->twin[1][tsr__value_id(w)] &&
            same_form(tsr_value_initializer(v), tsr_value_initializer(w)) &&
            same_bytes(tsr_value_initializer(v), tsr_value_initializer(w)))
            return w;
    }
    return NULL;
}

// By name and form; what is left, by its bytes.
static bool pair_weights(struct joint *j)
{
    struct arena *a = &j->p[0]->arena;
    const tsr_graph *g[2] = {tsr_model_graph(j->p[0]->model), tsr_model_graph(j->p[1]->model)};
    size_t n[2] = {tsr_graph_initializer_count(g[0]), tsr_graph_initializer_count(g[1])};
    struct map names;
    tsr__map_init(&names, a, n[1]);
    for (int m = 0; m < 2; m++)
        j->twin[m] = ARENA_ARRAY(a, const tsr_value *, tsr__model_value_ids(j->p[m]->model) + 1);
    for (size_t i = 0; i < n[1] && !a->failed; i++) {
        tsr_value *v = tsr_graph_initializer(g[1], i);
        void **at = is_weight(j->p[1], v) ? tsr__map_at(&names, tsr__value_str(v)) : NULL;
        if (at)
            *at = v;
    }
    for (int by_bytes = 0; by_bytes < 2; by_bytes++)
        for (size_t i = 0; i < n[0] && !a->failed; i++) {
            const tsr_value *v = tsr_graph_initializer(g[0], i), *w = NULL;
            if (!is_weight(j->p[0], v) || j->twin[0][tsr__value_id(v)])
                continue;
            w = by_bytes ? equal_of(j, v) : tsr__map_get(&names, tsr__value_str(v));
            if (w && same_form(tsr_value_initializer(v), tsr_value_initializer(w)))
                pair(j, v, w);
        }
    return !a->failed;
}

// ---- one program of two ------------------------------------------------------------------------

static double largest(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = cost[i] != COST_FORBIDDEN && cost[i] > most ? cost[i] : most;
    return (double)most;
}

static size_t cells(const struct program *g, const struct program_edge *e)
{
    return (size_t)g->nodes.at[e->a].k * g->nodes.at[e->b].k;
}

// The sum of the largest costs must stay far below what can be counted.
static void choose_shift(struct joint *j)
{
    double sum = 0;
    for (int m = 0; m < 2; m++) {
        const struct program *g = &j->p[m]->program;
        for (size_t i = 0; i < g->nodes.n; i++)
            sum += largest(g->nodes.at[i].cost, g->nodes.at[i].k) * (double)j->runs[m];
        for (size_t i = 0; i < g->edges.n; i++)
            sum += largest(g->edges.at[i].cost, cells(g, &g->edges.at[i])) * (double)j->runs[m];
    }
    while (sum > (double)PROGRAM_MOST / 2) {
        sum /= 2;
        j->shift++;
    }
}

// The table times the runs of its model; equal tables stay one.
static const int64_t *scaled(struct joint *j, int m, const int64_t *cost, size_t n)
{
    struct arena *a = &j->p[0]->arena;
    if (j->runs[m] == 1 && !j->shift)
        return cost;
    struct {
        const int64_t *cost;
        size_t n, model;
    } key = {cost, n, (size_t)m};
    struct str text = tsr__arena_str(a, (struct str){(const char *)&key, sizeof key});
    void **at = text.p ? tsr__map_at(&j->scaled, text) : NULL;
    if (!at || *at)
        return at ? *at : NULL;
    int64_t *t = ARENA_ARRAY(a, int64_t, n + 1);
    for (size_t i = 0; t && i < n; i++)
        t[i] = cost[i] == COST_FORBIDDEN ? COST_FORBIDDEN
               : j->shift ? (int64_t)ldexp((double)cost[i] * (double)j->runs[m], -j->shift)
                          : cost[i] * j->runs[m];
    *at = t;
    return t;
}

static bool add_program(struct joint *j, int m)
{
    const struct program *g = &j->p[m]->program;
    struct program *to = &j->program;
    uint32_t first = j->first[m] = (uint32_t)to->nodes.n;
    j->first_limit[m] = (uint32_t)to->limits.n;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const struct program_node *n = &g->nodes.at[i];
        const int64_t *cost = scaled(j, m, n->cost, n->k);
        if (!cost)
            return false;
        uint32_t at = tsr__program_node(to, n->name, n->k, cost);
        if (n->choices)
            tsr__program_choices(to, at, n->choices);
    }
    for (size_t i = 0; i < g->edges.n; i++) {
        const struct program_edge *e = &g->edges.at[i];
        const int64_t *cost = scaled(j, m, e->cost, cells(g, e));
        if (!cost)
            return false;
        tsr__program_edge(to, first + e->a, first + e->b, cost);
    }
    for (size_t i = 0; i < g->limits.n; i++) {
        const struct program_limit *l = &g->limits.at[i];
        uint32_t at = tsr__program_limit(to, l->name, l->bound, l->n_times);
        for (size_t k = 0; k < l->uses.n; k++)
            tsr__program_use(to, at, first + l->uses.at[k].node, l->uses.at[k].begin,
                             l->uses.at[k].end, l->uses.at[k].usage);
    }
    return !to->arena->failed;
}

// ---- links -------------------------------------------------------------------------------------

static const struct strategy *strategy_of(const struct planner *p, const struct reader *r)
{
    return r->node == SIZE_MAX || r->captures ? NULL : p->nodes[r->node].strategy;
}

// Two nodes may only take choices in which these inputs lie the same.
static bool link_readers(struct joint *j, const struct reader *x, const struct reader *y)
{
    struct arena *a = &j->p[0]->arena;
    const struct strategy *s = strategy_of(j->p[0], x), *t = strategy_of(j->p[1], y);
    if (!s || !t)
        return true; // what a body reads is whole in any case
    uint32_t key[4] = {s->id, (uint32_t)x->slot, t->id, (uint32_t)y->slot};
    struct str text = tsr__arena_str(a, (struct str){(const char *)key, sizeof key});
    void **at = text.p ? tsr__map_at(&j->links, text) : NULL;
    int64_t *table = at ? *at : NULL;
    if (!table) {
        table = ARENA_ARRAY(a, int64_t, s->at.n * t->at.n + 1);
        for (size_t i = 0; table && at && i < s->at.n; i++)
            for (size_t k = 0; k < t->at.n; k++) {
                uint32_t l = s->at.at[i].in[x->slot], r = t->at.at[k].in[y->slot];
                bool same = tsr__layout_equal(j->p[0]->layouts.at[l], j->p[1]->layouts.at[r]);
                table[i * t->at.n + k] = same ? 0 : COST_FORBIDDEN;
            }
        if (!at || !table)
            return false;
        *at = table;
    }
    tsr__program_edge(&j->program, j->first[0] + j->p[0]->nodes[x->node].var,
                      j->first[1] + j->p[1]->nodes[y->node].var, table);
    return !j->program.arena->failed;
}

// Readers in their order; those that one model has more of go with the last of the other.
static bool link_weight(struct joint *j, const tsr_value *v, const tsr_value *w)
{
    struct arena *a = &j->p[0]->arena;
    struct readers x = tsr__planner_readers(j->p[0], a, v);
    struct readers y = tsr__planner_readers(j->p[1], a, w);
    size_t n = x.n > y.n ? x.n : y.n;
    for (size_t i = 0; i < n && x.n && y.n; i++)
        if (!link_readers(j, &x.at[i < x.n ? i : x.n - 1], &y.at[i < y.n ? i : y.n - 1]))
            return false;
    return !a->failed;
}

static bool link_weights(struct joint *j)
{
    const tsr_graph *g = tsr_model_graph(j->p[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++) {
        const tsr_value *v = tsr_graph_initializer(g, i), *w = j->twin[0][tsr__value_id(v)];
        if (w && !link_weight(j, v, w))
            return false;
    }
    return true;
}

// What the first hands over lies as the other reads it.
static bool link_state(struct joint *j, const tsr_value *present, const tsr_value *past)
{
    struct planner *p = j->p[0], *q = j->p[1];
    struct reader from;
    struct readers r = tsr__planner_readers(q, &p->arena, past);
    const struct strategy *t = r.n ? strategy_of(q, &r.at[0]) : NULL;
    if (!t || !tsr__planner_made_by(p, present, &from))
        return !p->arena.failed;
    const struct strategy *s = p->nodes[from.node].strategy;
    int64_t *table = ARENA_ARRAY(&p->arena, int64_t, s->at.n * t->at.n + 1);
    for (size_t i = 0; table && i < s->at.n; i++)
        for (size_t k = 0; k < t->at.n; k++) {
            uint32_t out = s->at.at[i].out[from.slot], in = t->at.at[k].in[r.at[0].slot];
            bool same = tsr__layout_equal(p->layouts.at[out], q->layouts.at[in]);
            table[i * t->at.n + k] = same ? 0 : COST_FORBIDDEN;
        }
    if (table)
        tsr__program_edge(&j->program, j->first[0] + p->nodes[from.node].var,
                          j->first[1] + q->nodes[r.at[0].node].var, table);
    j->twin[1][tsr__value_id(past)] = present;
    return table && !j->program.arena->failed;
}

static bool link_states(struct joint *j)
{
    const tsr_graph *g = tsr_model_graph(j->p[0]->model);
    for (size_t i = 0; i < j->p[1]->states.n; i++) {
        const struct state_pair *x = &j->p[1]->states.at[i];
        for (size_t k = 0; k < tsr_graph_output_count(g); k++) {
            const tsr_value *v = tsr_graph_output(g, k);
            if (str_eq(tsr__value_str(v), tsr__value_str(x->present)) && !link_state(j, v, x->past))
                return false;
        }
    }
    return true;
}

// ---- what only one of them has -----------------------------------------------------------------

static bool read_before(const tsr_node *n, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(n, k) == tsr_node_input(n, i))
            return true;
    return false;
}

// Bytes of constants that the other model lacks, by choice of the node; NULL: none.
static int64_t *own_bytes(struct joint *j, int m, const struct plan_node *n, size_t class)
{
    struct planner *p = j->p[m];
    int64_t *t = NULL;
    for (size_t i = 0; i < tsr_node_input_count(n->node); i++) {
        const tsr_value *v = tsr_node_input(n->node, i);
        if (!v || !p->values[tsr__value_id(v)].constant || j->twin[m][tsr__value_id(v)] ||
            read_before(n->node, i))
            continue;
        t = t ? t : ARENA_ARRAY(&j->p[0]->arena, int64_t, n->strategy->at.n + 1);
        for (size_t c = 0; t && c < n->strategy->at.n; c++)
            t[c] += tsr__planner_class_bytes(p, class, n->strategy->at.at[c].in[i],
                                             &p->values[tsr__value_id(v)]);
    }
    return t;
}

// They lie there while the other model runs.
static bool add_own(struct joint *j, int m)
{
    const struct planner *p = j->p[m], *other = j->p[1 - m];
    for (size_t c = 0; c < p->n_classes && c < other->n_classes; c++)
        for (size_t i = 0; i < p->n_nodes; i++) {
            const struct plan_node *n = &p->nodes[i];
            int64_t *t = n->strategy ? own_bytes(j, m, n, c) : NULL;
            if (t)
                tsr__program_use(&j->program, j->first_limit[1 - m] + other->limits[c],
                                 j->first[m] + n->var, 0, other->n_times, t);
        }
    return !j->program.arena->failed && !j->p[0]->arena.failed;
}

static bool build(struct joint *j, int64_t memory)
{
    for (int m = 0; m < 2; m++)
        if (!tsr__planner_list(j->p[m]) || !tsr__planner_candidates(j->p[m]) ||
            !tsr__planner_program(j->p[m], memory))
            return false;
    struct arena *a = &j->p[0]->arena;
    tsr__map_init(&j->scaled, a, 256);
    tsr__map_init(&j->links, a, 256);
    tsr__program_init(&j->program, a);
    choose_shift(j);
    return pair_weights(j) && add_program(j, 0) && add_program(j, 1) && link_weights(j) &&
           link_states(j) && add_own(j, 0) && add_own(j, 1);
}

// ---- the answer --------------------------------------------------------------------------------

static tsr_status write_part(struct joint *j, int m, const uint32_t *choice, const char *config,
                             int64_t *peak, tsr_plan_part *out)
{
    struct planner *p = j->p[m];
    struct arena *a = &p->session->results[RESULT_PLAN];
    tsr_plan_summary told = {0};
    int64_t *memory = ARENA_ARRAY(a, int64_t, (size_t)p->n);
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].strategy)
            p->nodes[i].choice = choice[j->first[m] + p->nodes[i].var];
    if (!memory || !tsr__planner_memory(p, memory, peak))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_config(p, config);
    if (st == TSR_OK)
        st = tsr__planner_write(p, p->config);
    if (st == TSR_OK)
        st = tsr__planner_keep_topology(p);
    if (st == TSR_OK)
        st = tsr__planner_keep_states(p);
    if (st == TSR_OK)
        st = tsr__planner_tell(p, NULL, &told);
    *out = (tsr_plan_part){.config = told.config,
                           .cost = tsr__program_cost(&p->program, choice + j->first[m]),
                           .memory = memory,
                           .collectives = told.collectives,
                           .n_collectives = told.n_collectives,
                           .nodes = told.nodes,
                           .cut_nodes = told.cut_nodes};
    return st;
}

static tsr_status tell(struct joint *j, const struct program_result *r, const tsr_plan_options *o,
                       tsr_plan_summary *out)
{
    struct arena *a = &j->p[0]->session->results[RESULT_PLAN];
    size_t n = (size_t)j->p[0]->n;
    tsr_plan_part *parts = ARENA_ARRAY(a, tsr_plan_part, 2);
    int64_t *memory = ARENA_ARRAY(a, int64_t, n);
    int64_t *peak = ARENA_ARRAY(a, int64_t, 2 * n);
    tsr_status st = parts && memory && peak ? TSR_OK : TSR_NOMEM;
    for (int m = 0; m < 2 && st == TSR_OK; m++)
        st = write_part(j, m, r->choice, o->config, peak + (size_t)m * n, &parts[m]);
    if (st != TSR_OK)
        return st;
    for (size_t d = 0; d < n; d++)
        peak[d] = peak[n + d] > peak[d] ? peak[n + d] : peak[d];
    for (size_t d = 0; d < n; d++)
        memory[d] =
            parts[0].memory[d] > parts[1].memory[d] ? parts[0].memory[d] : parts[1].memory[d];
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = n, .feasible = true};
    out->parts = parts;
    out->n_parts = 2;
    out->shared = j->shared;
    out->memory = memory;
    out->peak = peak;
    out->config = parts[0].config;
    out->collectives = parts[0].collectives;
    out->n_collectives = parts[0].n_collectives;
    out->nodes = parts[0].nodes;
    out->cut_nodes = parts[0].cut_nodes;
    out->cost = parts[0].cost + j->runs[1] * parts[1].cost;
    out->bound = r->bound << j->shift;
    out->bound = out->bound < out->cost ? out->bound : out->cost;
    out->optimal = r->optimal;
    out->gap = r->optimal ? 0 : (double)(out->cost - out->bound) / (double)out->cost;
    return TSR_OK;
}

static tsr_status refuse(struct joint *j, bool proved, tsr_plan_summary *out)
{
    struct planner *p = j->p[0];
    struct program_least least = {0};
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)p->n};
    struct program_options share = tsr__budget_share(p->budget, 0.5);
    tsr_status st = tsr__program_least(&j->program, &share, &p->arena, &least);
    if (st != TSR_OK)
        return st;
    out->needs_bytes = least.found ? least.least : 0;
    struct str need = tsr__bytes_text(&p->arena, out->needs_bytes);
    struct str hint = tsr__arena_printf(
        &p->arena, "give each device " STR_FMT " (--memory %lld), or use more devices",
        STR_ARG(need), (long long)out->needs_bytes);
    if (!need.p || !hint.p)
        return TSR_NOMEM;
    tsr__diag(p->session, proved ? DIAG_plan_infeasible : DIAG_plan_time, NULL, hint.p,
              "no plan of both models %s the memory of the devices; " STR_FMT " on each would do",
              proved ? "fits into" : "was found in time that fits into", STR_ARG(need));
    return tsr__cancelled(p->session) ? TSR_CANCELLED : TSR_INFEASIBLE;
}

tsr_status tsr__plan_joint(struct planner *p, struct planner *with, const tsr_plan_options *o,
                           tsr_plan_summary *out)
{
    struct program_result r = {0};
    struct joint j = {.p = {p, with}, .runs = {1, o->steps > 0 ? o->steps : 1}};
    if (!build(&j, o->memory > 0 || o->topology ? o->memory : PLAN_NO_LIMIT))
        return TSR_NOMEM;
    tsr_status st =
        o->export_lp ? tsr__planner_export(p->session, &j.program, o->export_lp) : TSR_OK;
    if (st == TSR_OK)
        st = tsr__planner_solve(p, &j.program, &r);
    if (st == TSR_OK)
        st = r.feasible ? tell(&j, &r, o, out) : refuse(&j, r.infeasible, out);
    tsr__budget_told(p->budget);
    out->solve_ms = 1e3 * (tsr__clock() - p->budget->begin);
    return st == TSR_OK && o->explain ? tsr__planner_explain(p, &j.program, o->explain, out) : st;
}
