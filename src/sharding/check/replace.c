// SPDX-License-Identifier: Apache-2.0
// replace.c - replaces nodes that cut what their operator takes statistics of (the axis of a
// softmax) by simpler nodes, so that the rest of the way knows plain rules alone.
//
// The flow says which nodes these are and how their values lie. They are replaced in a copy of the
// model; the layouts of the old node's inputs and outputs become shardings of the new nodes that
// read and make them, everything between follows. What the replacement is, the rules know.
//
//     Softmax(x), x {1,2:0,1} along the axis of the softmax: ReduceMax, Sub, Exp, ReduceSum, Div
//       take its place;
//     those that read x get {1,2:0,1} for it, the one that makes the result gets {1,2:0,1} for that
// Rounds: a replacement may itself hold nodes that cut statistics, and what cannot be replaced is
// kept whole, which changes how others lie. So the flow runs again after each round, until no such
// node is left.
#include "sharding/layouts/internal.h"

#define MAX_ROUNDS 32 // after that many tries the rest stays whole

static bool cuts_statistics(const struct node_flow *nf)
{
    const struct placement *placement = &nf->place;
    if (!placement->rule || placement->rule->whole)
        return false;
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement->rule->factors[factor].kind == FACTOR_STAT && placement->cuts[factor] > 1)
            return true;
    return false;
}

static bool any_cuts_statistics(const struct flow *flow)
{
    for (size_t i = 0; i < flow->n_nodes; i++)
        if (cuts_statistics(&flow->nodes[i]))
            return true;
    return false;
}

// A clone has its configurations in the same order.
static tsr_config *twin_config(tsr_model *copy, const tsr_model *model, const tsr_config *config)
{
    size_t n = size_min(tsr_model_config_count(model), tsr_model_config_count(copy));
    for (size_t i = 0; i < n; i++)
        if (tsr_model_config(model, i) == config)
            return tsr_model_config(copy, i);
    return NULL;
}

// ---- one node ----------------------------------------------------------------------------------

// All new nodes are in the stage of the one that they replace.
static tsr_status move_stage(const struct expanded *expanded, const tsr_node *old,
                             const tsr_config *from, tsr_config *to)
{
    const tsr_node_config *nc = tsr_node_find_config(old, from);
    int64_t stage;
    if (!nc || !tsr_node_config_stage(nc, &stage))
        return TSR_OK;
    for (size_t i = 0; i < expanded->n_nodes; i++) {
        tsr_status st = tsr_node_set_stage(expanded->nodes[i], to, stage);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Values that the expansion made and that lie in parts from the start: rows 0 .. 7 of a triangle
// over two devices are 0 .. 3 on the first and 4 .. 7 on the second.
static tsr_status place_values(struct arena *arena, const struct expanded *expanded,
                               const struct node_flow *nf, tsr_config *config)
{
    for (size_t i = 0; i < expanded->n_places; i++) {
        const struct expanded_place *place = &expanded->places[i];
        const struct tile_layout *layout =
            tsr__placement_project(arena, &nf->place, &place->tensor);
        if (!layout)
            return TSR_NOMEM;
        tsr_status st = tsr__spec_write(place->node, config, place->value, layout);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Results lie as readers of the old node saw them, wanted layouts included.
static tsr_status move_specs(const struct expanded *expanded, const struct node_flow *nf,
                             tsr_config *config)
{
    for (size_t i = 0; i < expanded->n_reads; i++) {
        const struct expanded_slot *slot = &expanded->reads[i];
        tsr_status st = tsr__spec_write(slot->node, config, slot->value, nf->inputs[slot->of]);
        if (st != TSR_OK)
            return st;
    }
    for (size_t i = 0; i < expanded->n_gives; i++) {
        const struct expanded_slot *slot = &expanded->gives[i];
        int k = slot->of;
        const struct tile_layout *layout = tsr__flow_result(nf, (size_t)k);
        tsr_status st = tsr__spec_write(slot->node, config, slot->value, layout);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// *n_made: how many nodes stand where one stood.
static tsr_status expand_node(struct arena *arena, const struct flow *flow,
                              const struct node_flow *nf, tsr_node *twin, tsr_config *config,
                              size_t *n_made)
{
    struct expanded expanded = {0};
    tsr_status st = tsr__rule_expand(arena, twin, nf->node, flow->shapes, nf->place.rule,
                                     nf->place.cuts, &expanded);
    *n_made = expanded.n_nodes;
    if (st != TSR_OK)
        return st;
    st = move_stage(&expanded, nf->node, flow->config, config);
    if (st != TSR_OK)
        return st;
    st = place_values(arena, &expanded, nf, config);
    if (st != TSR_OK)
        return st;
    return move_specs(&expanded, nf, config);
}

// ---- all of them -------------------------------------------------------------------------------

// What lives from one round to the next.
struct rounds {
    struct arena *arena;
    tsr_model *made; // the last copy, or NULL
    bool *keep;      // nodes of the flow's model that cannot be replaced
};

// While a copy is made: the original of each of its nodes, in order.
struct origins {
    VEC(size_t) at;
};

// The node of the original model that node i of this flow is, or is a part of.
static size_t origin_of(const struct flow *flow, size_t i)
{
    if (flow->origin)
        return flow->origin[i];
    return i;
}

static void add_origins(struct arena *arena, struct origins *origins, size_t origin, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t *slot = vec_push(arena, &origins->at);
        if (slot)
            *slot = origin;
    }
}

// *failed is the place of the node that could not be replaced.
static tsr_status expand_model(struct arena *arena, const struct flow *flow, tsr_model *copy,
                               tsr_config *config, struct origins *origins, size_t *failed)
{
    tsr_node *node = tsr_graph_first(tsr_model_graph(copy));
    for (size_t i = 0; i < flow->n_nodes; i++) {
        if (!node)
            break;
        tsr_node *next = tsr_node_next(node);
        // the new nodes come before `next`, and are not looked at in this round
        size_t n_made = 1;
        if (cuts_statistics(&flow->nodes[i])) {
            tsr_status st = expand_node(arena, flow, &flow->nodes[i], node, config, &n_made);
            *failed = i;
            if (st != TSR_OK)
                return st;
        }
        add_origins(arena, origins, origin_of(flow, i), n_made);
        node = next;
    }
    return arena_status(arena);
}

// The flow of the same model, in which the node that could not be replaced (last: none can be any
// more) is kept as it is.
static struct flow *kept_round(struct rounds *rounds, const struct flow *flow, size_t failed,
                               bool last)
{
    if (last)
        for (size_t i = 0; i < flow->n_nodes; i++)
            rounds->keep[i] = true;
    rounds->keep[failed] = true;
    struct flow *next = tsr__flow_run(rounds->arena, flow->model, flow->config, true, rounds->keep);
    if (next)
        next->origin = flow->origin;
    return next;
}

// The flow of a copy in which all such nodes are replaced; or, if one cannot be, of the same model
// with that node kept as it is. NULL: failed.
static struct flow *next_round(struct rounds *rounds, struct flow *flow, bool last)
{
    tsr_model *copy;
    size_t failed = 0;
    struct origins origins = {0};
    if (!rounds->keep)
        rounds->keep = ARENA_ARRAY(rounds->arena, bool, flow->n_nodes + 1);
    if (!rounds->keep || tsr_model_clone(flow->model, &copy) != TSR_OK)
        return NULL;
    tsr_config *config = twin_config(copy, flow->model, flow->config);
    // as if nothing could be replaced: so the last round keeps what is left
    tsr_status st = TSR_UNSUPPORTED;
    if (config && !last)
        st = expand_model(rounds->arena, flow, copy, config, &origins, &failed);
    struct flow *next = NULL;
    if (st == TSR_OK) {
        tsr_model_free(rounds->made);
        rounds->made = copy;
        // another model, with other nodes
        rounds->keep = NULL;
        next = tsr__flow_run(rounds->arena, copy, config, true, NULL);
        if (next)
            next->origin = origins.at.at;
    } else {
        tsr_model_free(copy);
        if (st != TSR_NOMEM)
            next = kept_round(rounds, flow, failed, last);
    }
    if (!next)
        return NULL;
    next->before = flow->before; // the first of all rounds
    if (!next->before)
        next->before = flow;
    return next;
}

// Whether a node runs whole is known once the last round is done: the first flow has reported its
// own nodes; this reports those that cannot be replaced, and those of which a part stays whole (the
// last Where of a OneHot of unknown depth).
static void say_uncut(const struct flow *flow, tsr_session *session)
{
    const struct node_flow *said = NULL;
    for (size_t i = 0; i < flow->n_nodes; i++) {
        const struct node_flow *part = &flow->nodes[i];
        const struct node_flow *given = &flow->before->nodes[origin_of(flow, i)];
        if (!part->replicated || given->replicated || given == said)
            continue;
        said = given;
        struct place at = tsr__place_node(given->node);
        at.configuration = str_of(tsr_config_name(flow->config));
        tsr__diag(
            session, DIAG_not_cut_here, &at,
            "choose a sharding that the operator's rule allows (tessera rules), or leave it out",
            "the node is annotated to be cut, but it or a part of it (%s) runs whole on each of "
            "its devices: %s",
            tsr_node_op(part->node), part->replicated);
    }
}

// Flows of all rounds stay in the arena; of the copies only the last stays. Freed by the caller
// after the flow is done with.
struct flow *tsr__flow_expand(struct arena *arena, struct flow *flow, tsr_model **made)
{
    struct rounds rounds = {.arena = arena};
    int round = 0;
    while (flow && any_cuts_statistics(flow))
        flow = next_round(&rounds, flow, round++ >= MAX_ROUNDS);
    if (flow && flow->before)
        say_uncut(flow, arena->session);
    if (!flow) {
        tsr_model_free(rounds.made);
        rounds.made = NULL;
    }
    *made = rounds.made;
    return flow;
}

struct flow *tsr__flow_expanded(struct arena *arena, tsr_model *model, const tsr_config *config,
                                tsr_model **made)
{
    *made = NULL;
    struct flow *flow = tsr__flow_new(arena, model, config);
    if (flow)
        return tsr__flow_expand(arena, flow, made);
    return NULL;
}
