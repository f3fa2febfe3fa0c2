// SPDX-License-Identifier: Apache-2.0
// expand.c - replaces nodes that cut what their operator takes statistics of (the axis of a softmax)
// by simpler nodes, so that the rest of the way knows plain rules alone.
//
// The flow says which nodes these are and how their values lie. They are replaced in a copy of the
// model; the layouts of the old node's inputs and outputs become shardings of the new nodes that read
// and make them, everything between follows. What the replacement is, the rules know.
#include "sharding/internal.h"

#define MAX_ROUNDS 32 // after that many tries the rest stays whole

static bool cuts_statistics(const struct node_flow *nf)
{
    const struct placement *p = &nf->place;
    for (int f = 0; p->rule && !p->rule->whole && f < p->rule->n_factors; f++)
        if (p->rule->factors[f].kind == FACTOR_STAT && p->cuts[f] > 1)
            return true;
    return false;
}

static bool any_cuts_statistics(const struct flow *f)
{
    for (size_t i = 0; i < f->n_nodes; i++)
        if (cuts_statistics(&f->nodes[i]))
            return true;
    return false;
}

static tsr_config *twin_config(tsr_model *copy, const tsr_model *m, const tsr_config *c)
{
    for (size_t i = 0; i < tsr_model_config_count(m) && i < tsr_model_config_count(copy); i++)
        if (tsr_model_config(m, i) == c)
            return tsr_model_config(copy, i);
    return NULL;
}

// ---- one node ----------------------------------------------------------------------------------

static tsr_status move_stage(const struct expanded *e, const tsr_node *old, const tsr_config *from,
                             tsr_config *to)
{
    const tsr_node_config *nc = tsr_node_find_config(old, from);
    int64_t stage;
    tsr_status st = TSR_OK;
    for (size_t i = 0; nc && tsr_node_config_stage(nc, &stage) && i < e->n_nodes && st == TSR_OK;
         i++)
        st = tsr_node_set_stage(e->nodes[i], to, stage);
    return st;
}

static tsr_status move_specs(const struct expanded *e, const struct node_flow *nf, tsr_config *c)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < e->n_reads && st == TSR_OK; i++)
        st = tsr__spec_write(e->reads[i].node, c, e->reads[i].value, nf->inputs[e->reads[i].of]);
    for (size_t i = 0; i < e->n_gives && st == TSR_OK; i++) {
        int k = e->gives[i].of;
        const struct tile_layout *l = nf->wanted[k] ? nf->wanted[k] : nf->outputs[k];
        st = tsr__spec_write(e->gives[i].node, c, e->gives[i].value, l);
    }
    return st;
}

// *n_made: how many nodes stand where one stood.
static tsr_status expand_node(struct arena *a, const struct flow *f, const struct node_flow *nf,
                              tsr_node *twin, tsr_config *c, size_t *n_made)
{
    struct expanded e = {0};
    tsr_status st =
        tsr__rule_expand(a, twin, nf->node, f->shapes, nf->place.rule, nf->place.cuts, &e);
    *n_made = e.n_nodes;
    if (st == TSR_OK)
        st = move_stage(&e, nf->node, f->config, c);
    return st == TSR_OK ? move_specs(&e, nf, c) : st;
}

// ---- all of them -------------------------------------------------------------------------------

struct rounds {
    struct arena *arena;
    tsr_model *made; // the last copy, or NULL
    bool *keep;      // nodes of the flow's model that cannot be replaced
};

// Of a copy that is being made: what each of its nodes stands for, in order.
struct origins {
    VEC(size_t) at;
};

static size_t origin_of(const struct flow *f, size_t i)
{
    return f->origin ? f->origin[i] : i;
}

static void add_origins(struct arena *a, struct origins *o, size_t origin, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t *slot = vec_push(a, &o->at);
        if (slot)
            *slot = origin;
    }
}

// *failed is the place of the node that could not be replaced.
static tsr_status expand_model(struct arena *a, const struct flow *f, tsr_model *copy,
                               tsr_config *c, struct origins *origins, size_t *failed)
{
    tsr_node *n = tsr_graph_first(tsr_model_graph(copy));
    for (size_t i = 0; i < f->n_nodes && n; i++) {
        tsr_node *next = tsr_node_next(n);
        size_t n_made = 1;
        if (cuts_statistics(&f->nodes[i])) {
            tsr_status st = expand_node(a, f, &f->nodes[i], n, c, &n_made);
            *failed = i;
            if (st != TSR_OK)
                return st;
        }
        add_origins(a, origins, origin_of(f, i), n_made);
        n = next;
    }
    return a->failed ? TSR_NOMEM : TSR_OK;
}

// The flow of the same model, in which the node that could not be replaced (last: none can be any more) is kept as it is.
static struct flow *kept_round(struct rounds *r, const struct flow *f, size_t failed, bool last)
{
    for (size_t i = 0; last && i < f->n_nodes; i++)
        r->keep[i] = true;
    r->keep[failed] = true;
    struct flow *next = tsr__flow_run(r->arena, f->model, f->config, true, r->keep);
    if (next)
        next->origin = f->origin;
    return next;
}

// The flow of a copy in which all such nodes are replaced; or, if one cannot be, of the same model
// with that node kept as it is. NULL: failed.
static struct flow *next_round(struct rounds *r, struct flow *f, bool last)
{
    tsr_model *copy;
    size_t failed = 0;
    struct origins origins = {0};
    if (!r->keep)
        r->keep = ARENA_ARRAY(r->arena, bool, f->n_nodes + 1);
    if (!r->keep || tsr_model_clone(f->model, &copy) != TSR_OK)
        return NULL;
    tsr_config *c = twin_config(copy, f->model, f->config);
    tsr_status st = TSR_UNSUPPORTED;
    if (c && !last)
        st = expand_model(r->arena, f, copy, c, &origins, &failed);
    struct flow *next = NULL;
    if (st == TSR_OK) {
        tsr_model_free(r->made);
        r->made = copy;
        r->keep = NULL;
        next = tsr__flow_run(r->arena, copy, c, true, NULL);
        if (next)
            next->origin = origins.at.at;
    } else {
        tsr_model_free(copy);
        if (st != TSR_NOMEM)
            next = kept_round(r, f, failed, last);
    }
    if (next)
        next->before = f->before ? f->before : f;
    return next;
}

// Whether a node runs whole is known once the last round is done: the first flow has told of its own nodes, here are those
// that cannot be replaced, and those of which a part stays whole (the last Where of a OneHot of unknown depth).
static void say_uncut(const struct flow *f, tsr_session *session)
{
    const struct node_flow *said = NULL;
    for (size_t i = 0; i < f->n_nodes; i++) {
        const struct node_flow *part = &f->nodes[i];
        const struct node_flow *given = &f->before->nodes[origin_of(f, i)];
        if (!part->replicated || given->replicated || given == said)
            continue;
        said = given;
        struct place at = tsr__place_node(given->node);
        at.configuration = str_of(tsr_config_name(f->config));
        tsr__diag(
            session, DIAG_not_cut_here, &at,
            "choose a sharding that the operator's rule allows (tessera rules), or leave it out",
            "the node is annotated to be cut, but it or a part of it (%s) runs whole on each of "
            "its devices: %s",
            tsr_node_op(part->node), part->replicated);
    }
}

struct flow *tsr__flow_expand(struct arena *a, struct flow *f, tsr_model **made)
{
    struct rounds r = {.arena = a};
    for (int i = 0; f && any_cuts_statistics(f); i++)
        f = next_round(&r, f, i >= MAX_ROUNDS);
    if (f && f->before)
        say_uncut(f, a->session);
    if (!f) {
        tsr_model_free(r.made);
        r.made = NULL;
    }
    *made = r.made;
    return f;
}

struct flow *tsr__flow_expanded(struct arena *a, tsr_model *m, const tsr_config *c,
                                tsr_model **made)
{
    *made = NULL;
    struct flow *f = tsr__flow_new(a, m, c);
    return f ? tsr__flow_expand(a, f, made) : NULL;
}
