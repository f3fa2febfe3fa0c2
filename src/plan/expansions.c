// SPDX-License-Identifier: Apache-2.0
// expansions.c - whether a node that cuts what its operator takes statistics of can be replaced by simpler nodes: it is
// tried in a copy of the model, which is thrown away. Once for nodes that are alike.
#include "plan/candidates.h"

static bool make_copy(struct planner *p)
{
    if (p->copy)
        return true;
    p->twins = ARENA_ARRAY(&p->arena, tsr_node *, p->n_nodes + 1);
    if (!p->twins || tsr_model_clone(p->model, &p->copy) != TSR_OK)
        return false;
    size_t i = 0;
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(p->copy)); n && i < p->n_nodes;
         n = tsr_node_next(n))
        p->twins[i++] = n;
    return i == p->n_nodes;
}

static bool try_it(struct making *m)
{
    struct planner *p = m->p;
    struct expanded e = {0};
    int64_t at = p->node_at[tsr__node_id(m->node)];
    if (at < 0 || !make_copy(p) || !p->twins[at])
        return false;
    tsr_node *twin = p->twins[at];
    p->twins[at] = NULL;
    return tsr__rule_expand(m->a, twin, m->node, p->shapes, m->place.rule, m->place.cuts, &e) ==
           TSR_OK;
}

bool tsr__making_expands(struct making *m)
{
    if (!m->s->asked)
        m->s->expands = try_it(m);
    m->s->asked = true;
    return m->s->expands;
}
