// SPDX-License-Identifier: Apache-2.0
// build.c - the 0-1 program of a model: a variable for each node that is needed, one for each shared copy, prices
// between them, and the memory of a device over time.
#include "plan/internal.h"

// ---- nodes -------------------------------------------------------------------------------------

static bool mark_needed(const tsr_node *n, unsigned char *needed)
{
    bool any = false;
    for (size_t i = 0; i < tsr_node_output_count(n); i++) {
        const tsr_value *v = tsr_node_output(n, i);
        any = any || (v && needed[tsr__value_id(v)]);
    }
    tsr_value **captures;
    size_t n_captures = any ? tsr__node_captures(n, &captures) : 0;
    for (size_t i = 0; any && i < tsr_node_input_count(n); i++)
        if (tsr_node_input(n, i))
            needed[tsr__value_id(tsr_node_input(n, i))] = 1;
    for (size_t i = 0; i < n_captures; i++)
        needed[tsr__value_id(captures[i])] = 1;
    return any;
}

// Numbers the nodes; those that no output of the model needs are left out.
bool tsr__planner_list(struct planner *p)
{
    tsr_graph *g = tsr_model_graph(p->model);
    unsigned char *needed =
        ARENA_ARRAY(&p->arena, unsigned char, tsr__model_value_ids(p->model) + 1);
    p->n_nodes = tsr_graph_node_count(g);
    p->nodes = ARENA_ARRAY(&p->arena, struct plan_node, p->n_nodes + 1);
    p->node_at = ARENA_ARRAY(&p->arena, int64_t, tsr__model_node_ids(p->model) + 1);
    if (p->arena.failed)
        return false;
    for (uint32_t i = 0; i < tsr__model_node_ids(p->model); i++)
        p->node_at[i] = -1;
    size_t i = 0;
    for (tsr_node *n = tsr_graph_first(g); n && i < p->n_nodes; n = tsr_node_next(n))
        p->nodes[i++] = (struct plan_node){.node = n, .var = UINT32_MAX};
    for (size_t k = 0; k < tsr_graph_output_count(g); k++)
        needed[tsr__value_id(tsr_graph_output(g, k))] = 1;
    for (i = p->n_nodes; i-- > 0;)
        if (mark_needed(p->nodes[i].node, needed))
            p->node_at[tsr__node_id(p->nodes[i].node)] = (int64_t)i;
    for (size_t k = 0; k < tsr_graph_input_count(g); k++) {
        const tsr_value *v = tsr_graph_input(g, k);
        bool here = p->stays && p->stays[tsr__value_id(v)];
        const tsr_value **at =
            here ? vec_push(&p->arena, &p->constants) : vec_push(&p->arena, &p->given);
        if (at)
            *at = v;
    }
    for (size_t k = 0; k < tsr_graph_initializer_count(g); k++) {
        const tsr_value *v = tsr_graph_initializer(g, k);
        const tsr_value **at = tsr_value_is_input(v) ? NULL : vec_push(&p->arena, &p->constants);
        if (at)
            *at = v;
    }
    return !p->arena.failed;
}

static bool is_needed(const struct planner *p, size_t i)
{
    return p->node_at[tsr__node_id(p->nodes[i].node)] >= 0;
}

// ---- layouts that neighbours bring -------------------------------------------------------------

// Cut in units (heads, not elements): neighbours do not find such a cut by themselves.
static bool is_in_units(const struct tile_layout *l)
{
    bool found = false;
    for (int d = 0; d < l->rank; d++) {
        found = found || l->dims[d].n > 1;
        for (int f = 1; f < l->dims[d].n; f++)
            if (l->dims[d].factors[f].cuts > 1)
                return false;
    }
    return found;
}

static void offer(struct planner *p, size_t to, bool out, size_t slot, uint32_t layout)
{
    struct plan_node *n = &p->nodes[to];
    if (layout != PLAN_NO_LAYOUT && p->parts.at[layout]) {
        if (!out)
            tsr__planner_try_parts(p, n->strategy, n->node, slot, layout);
        return;
    }
    if (layout == PLAN_NO_LAYOUT)
        return;
    const struct tile_layout *l = p->layouts.at[layout];
    if (is_in_units(l) || (p->spread.at[layout] && l->n_shards > 1 && l->n_shards < p->n))
        (void)tsr__planner_try_layout(p, n->strategy, n->node, out, slot, layout);
}

static bool find_rules(struct planner *p)
{
    for (size_t i = 0; i < p->n_nodes; i++) {
        if (is_needed(p, i) &&
            !(p->nodes[i].rule = tsr__rule_of(&p->arena, p->nodes[i].node, p->shapes)))
            return false;
    }
    return true;
}

static void offer_forward(struct planner *p, size_t i)
{
    const tsr_node *n = p->nodes[i].node;
    for (size_t k = 0; k < tsr_node_input_count(n); k++) {
        const tsr_value *v = tsr_node_input(n, k);
        const tsr_node *from = v ? tsr_value_producer(v) : NULL;
        int64_t at = from ? p->node_at[tsr__node_id(from)] : -1;
        if (at < 0 || !p->nodes[at].strategy)
            continue;
        const struct strategy *s = p->nodes[at].strategy;
        for (size_t o = 0; o < tsr_node_output_count(from); o++)
            for (size_t c = 0; tsr_node_output(from, o) == v && c < s->at.n; c++)
                offer(p, i, false, k, s->at.at[c].out[o]);
    }
}

static void offer_backward(struct planner *p, size_t i)
{
    const tsr_node *n = p->nodes[i].node;
    for (size_t k = 0; k < tsr_node_input_count(n); k++) {
        const tsr_value *v = tsr_node_input(n, k);
        const tsr_node *from = v ? tsr_value_producer(v) : NULL;
        int64_t at = from ? p->node_at[tsr__node_id(from)] : -1;
        const struct strategy *s = p->nodes[i].strategy;
        if (at < 0)
            continue;
        for (size_t o = 0; o < tsr_node_output_count(from); o++)
            for (size_t c = 0; tsr_node_output(from, o) == v && c < s->at.n; c++)
                offer(p, (size_t)at, true, o, s->at.at[c].in[k]);
    }
}

bool tsr__planner_candidates(struct planner *p)
{
    if (!find_rules(p) || !tsr__planner_delays(p))
        return false;
    for (size_t i = 0; i < p->n_nodes; i++) {
        if (!is_needed(p, i))
            continue;
        p->nodes[i].strategy = tsr__planner_strategy(p, &p->nodes[i]);
        if (!p->nodes[i].strategy)
            return false;
        offer_forward(p, i);
    }
    for (size_t i = p->n_nodes; i-- > 0;)
        if (is_needed(p, i))
            offer_backward(p, i);
    for (size_t i = 0; i < p->n_nodes; i++)
        if (is_needed(p, i))
            offer_forward(p, i);
    return !p->arena.failed;
}

// ---- the program -------------------------------------------------------------------------------

// Costs and names of a strategy, shared by its nodes.
struct columns {
    int64_t *cost;
    struct str *names;
};

static struct columns *columns_of(struct planner *p, struct strategy *s)
{
    if (s->columns)
        return s->columns;
    struct columns *c = ARENA_NEW(&p->arena, struct columns);
    if (!c)
        return NULL;
    c->cost = ARENA_ARRAY(&p->arena, int64_t, s->at.n + 1);
    c->names = ARENA_ARRAY(&p->arena, struct str, s->at.n + 1);
    if (p->arena.failed)
        return NULL;
    for (size_t i = 0; i < s->at.n; i++) {
        const struct candidate *x = &s->at.at[i];
        int64_t cost = x->compute + x->comm;
        c->cost[i] = cost < PLAN_NEVER ? cost : COST_FORBIDDEN;
        c->names[i] = x->name;
    }
    s->columns = c;
    return c;
}

static bool add_nodes(struct planner *p)
{
    for (size_t i = 0; i < p->n_nodes; i++) {
        struct plan_node *n = &p->nodes[i];
        if (!n->strategy)
            continue;
        struct columns *c = columns_of(p, n->strategy);
        if (!c)
            return false;
        struct str name = tsr__node_str(n->node);
        if (!name.n && tsr_node_output_count(n->node) && tsr_node_output(n->node, 0))
            name = tsr__value_str(tsr_node_output(n->node, 0));
        n->var = tsr__program_node(&p->program, name, (uint32_t)n->strategy->at.n, c->cost);
        tsr__program_choices(&p->program, n->var, c->names);
    }
    return true;
}

static bool add_edges(struct planner *p)
{
    for (size_t i = 0; i < p->given.n; i++)
        if (!tsr__planner_given(p, p->given.at[i]))
            return false;
    for (size_t i = 0; i < p->n_nodes; i++)
        for (size_t o = 0; p->nodes[i].strategy && o < tsr_node_output_count(p->nodes[i].node); o++)
            if (tsr_node_output(p->nodes[i].node, o) && !tsr__planner_edges(p, i, o))
                return false;
    return true;
}

bool tsr__planner_program(struct planner *p, int64_t memory)
{
    p->n_times = (uint32_t)(PLAN_TIMES * p->n_nodes + PLAN_TIMES);
    tsr__program_init(&p->program, p->work);
    return tsr__planner_classes(p, memory) && tsr__planner_followed(p) && tsr__planner_limits(p) &&
           add_nodes(p) && add_edges(p) && tsr__planner_state_edges(p) && tsr__use_constants(p) &&
           !p->arena.failed && !p->work->failed;
}
