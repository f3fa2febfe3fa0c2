// SPDX-License-Identifier: Apache-2.0
// delays.c - where sums may stay in parts: only where two of them are added before anybody needs the sum, which then
// takes one communication in place of two. Elsewhere it gains nothing, and the candidates are spared.
#include "plan/internal.h"

struct delaying {
    struct planner *p;
    bool *can;    // by node: what it gives may be in parts, and its readers could take them
    bool *wanted; // by node: somebody adds it to another such value
    bool passes;  // all readers, so far
};

static int64_t producer_of(const struct planner *p, const tsr_value *v)
{
    const tsr_node *n = v ? tsr_value_producer(v) : NULL;
    return n ? p->node_at[tsr__node_id(n)] : -1;
}

static bool takes(void *data, tsr_node *n, size_t input)
{
    struct delaying *d = data;
    bool here = tsr_node_graph(n) == tsr_model_graph(d->p->model);
    d->passes = here && tsr__sum_fits(d->p->shapes, n, input) != SUM_STOPS;
    return d->passes;
}

static bool makes_sums(const struct rule *r)
{
    for (int f = 0; !r->whole && f < r->n_factors; f++)
        if (r->factors[f].kind == FACTOR_RED && r->factors[f].combine == COMBINE_SUM)
            return true;
    return false;
}

// The input comes from a node that can give parts, and the node can take them.
static bool passes_input(const struct delaying *d, const tsr_node *n, size_t i)
{
    int64_t from = producer_of(d->p, tsr_node_input(n, i));
    return from >= 0 && d->can[from] && tsr__sum_fits(d->p->shapes, n, i) != SUM_STOPS;
}

static bool can_give(struct delaying *d, size_t i)
{
    const struct plan_node *n = &d->p->nodes[i];
    const tsr_value *v = tsr_node_output_count(n->node) == 1 ? tsr_node_output(n->node, 0) : NULL;
    bool any = n->rule && makes_sums(n->rule);
    for (size_t k = 0; n->rule && !n->rule->whole && k < tsr_node_input_count(n->node) && !any; k++)
        any = passes_input(d, n->node, k);
    if (!v || !any || tsr_value_is_output(v))
        return false;
    d->passes = false;
    tsr_value_uses(v, takes, d);
    return d->passes;
}

// Two different inputs in parts are added here.
static bool merges(const struct delaying *d, const tsr_node *n)
{
    const tsr_value *first = NULL;
    for (size_t i = 0; i < tsr_node_input_count(n); i++) {
        const tsr_value *v = tsr_node_input(n, i);
        if (!v || tsr__sum_fits(d->p->shapes, n, i) != SUM_ADDS || !passes_input(d, n, i))
            continue;
        if (first && first != v)
            return true;
        first = v;
    }
    return false;
}

bool tsr__planner_delays(struct planner *p)
{
    struct delaying d = {.p = p};
    d.can = ARENA_ARRAY(&p->arena, bool, p->n_nodes + 1);
    d.wanted = ARENA_ARRAY(&p->arena, bool, p->n_nodes + 1);
    if (!d.can || !d.wanted || p->n < 2 || p->sums_done)
        return !p->arena.failed;
    for (size_t i = 0; i < p->n_nodes; i++)
        d.can[i] = p->nodes[i].rule && can_give(&d, i);
    for (size_t i = p->n_nodes; i-- > 0;) {
        struct plan_node *n = &p->nodes[i];
        n->delays = d.wanted[i] && d.can[i];
        if (!n->rule || !(n->delays || merges(&d, n->node)))
            continue;
        for (size_t k = 0; k < tsr_node_input_count(n->node); k++)
            if (passes_input(&d, n->node, k)) {
                d.wanted[producer_of(p, tsr_node_input(n->node, k))] = true;
                n->takes = true;
            }
    }
    return true;
}
