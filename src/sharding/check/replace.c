// SPDX-License-Identifier: Apache-2.0
// replace.c - replaces nodes that are sharded along an axis of statistics (such as the axis of a
// softmax) by simpler nodes, so that later passes need only plain rules.
//
// The flow finds these nodes and the layouts of their values. They are replaced in a copy of the
// model. The layouts of the old node's inputs and outputs become specs of the new nodes that read
// and produce them. The flow derives the layouts in between. The rules define the replacements.
//
//     Example: Softmax(x), with x {1,2:0,1} sharded along the softmax axis, becomes ReduceMax, Sub,
//     Exp, ReduceSum, Div. The nodes that read x get the spec {1,2:0,1} for x; Div gets {1,2:0,1}
//     for the result.
//
// A replacement may itself contain such nodes. A node that cannot be replaced stays unsharded,
// which changes the layouts of other nodes. So the flow runs again after each round, until no such
// node is left.
#include "sharding/layouts/internal.h"

#define MAX_ROUNDS 32 // after this number of rounds, the remaining nodes stay unsharded

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

// Returns the configuration of the copy that corresponds to `config`. Both models have their
// configurations in the same order. NULL: there is none.
static tsr_config *config_in_copy(tsr_model *copy, const tsr_model *model, const tsr_config *config)
{
    size_t n = size_min(tsr_model_config_count(model), tsr_model_config_count(copy));
    for (size_t i = 0; i < n; i++)
        if (tsr_model_config(model, i) == config)
            return tsr_model_config(copy, i);
    return NULL;
}

// ---- one node ----------------------------------------------------------------------------------

// Puts all new nodes into the stage of the node that they replace.
static tsr_status move_stage(const struct expanded *expanded, const tsr_node *old,
                             const tsr_config *from, tsr_config *to)
{
    const tsr_node_config *nc = tsr_node_find_config(old, from);
    int64_t stage;
    if (!nc || !tsr_node_config_stage(nc, &stage))
        return TSR_OK;
    for (size_t i = 0; i < expanded->n_nodes; i++)
        TRY(tsr_node_set_stage(expanded->nodes[i], to, stage));
    return TSR_OK;
}

// Writes specs for values that the expansion creates already sharded. Example: of a triangular mask
// of 8 rows, the first of two devices has rows 0 to 3 and the second 4 to 7.
static tsr_status place_values(struct arena *arena, const struct expanded *expanded,
                               const struct node_flow *nf, tsr_config *config)
{
    for (size_t i = 0; i < expanded->n_places; i++) {
        const struct expanded_place *place = &expanded->places[i];
        const struct tile_layout *layout =
            tsr__placement_project(arena, &nf->place, &place->tensor);
        if (!layout)
            return TSR_NOMEM;
        TRY(tsr__spec_write(place->node, config, place->value, layout));
    }
    return TSR_OK;
}

// Writes the layouts of the old node's inputs and outputs as specs of the new nodes that read and
// produce them. Outputs have the layouts that readers of the old node get.
static tsr_status move_specs(const struct expanded *expanded, const struct node_flow *nf,
                             tsr_config *config)
{
    for (size_t i = 0; i < expanded->n_reads; i++) {
        const struct expanded_slot *slot = &expanded->reads[i];
        TRY(tsr__spec_write(slot->node, config, slot->value, nf->inputs[slot->of]));
    }
    for (size_t i = 0; i < expanded->n_gives; i++) {
        const struct expanded_slot *slot = &expanded->gives[i];
        int k = slot->of;
        const struct tile_layout *layout = tsr__flow_result(nf, (size_t)k);
        TRY(tsr__spec_write(slot->node, config, slot->value, layout));
    }
    return TSR_OK;
}

// Replaces `twin`, the node of the copy that corresponds to nf->node, by several nodes. *n_made is
// their number.
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
    TRY(move_stage(&expanded, nf->node, flow->config, config));
    TRY(place_values(arena, &expanded, nf, config));
    return move_specs(&expanded, nf, config);
}

// ---- all nodes ----------------------------------------------------------------------------------

// State that is kept between rounds.
struct rounds {
    struct arena *arena;
    tsr_model *made; // the last copy, or NULL
    bool *keep;      // by index of the node in the flow: it cannot be replaced; NULL: none yet
};

// The original node of each node of the copy, in order, while the copy is made.
struct origins {
    VEC(size_t) at;
};

// Returns the index of the node of the original model that node i of this flow is, or from which
// node i was expanded.
static size_t origin_of(const struct flow *flow, size_t i)
{
    return flow->origin ? flow->origin[i] : i;
}

static void add_origins(struct arena *arena, struct origins *origins, size_t origin, size_t n)
{
    for (size_t i = 0; i < n; i++)
        vec_add(arena, &origins->at, origin);
}

// Replaces all nodes of the copy that shard an axis of statistics. If a node cannot be replaced,
// returns an error, and *failed is its index.
static tsr_status expand_model(struct arena *arena, const struct flow *flow, tsr_model *copy,
                               tsr_config *config, struct origins *origins, size_t *failed)
{
    tsr_node *node = tsr_graph_first(tsr_model_graph(copy));
    for (size_t i = 0; i < flow->n_nodes; i++) {
        if (!node)
            break;
        tsr_node *next = tsr_node_next(node);
        // the new nodes come before `next` and are not visited in this round
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

// Runs the flow on the same model again. Node `failed` is marked as not replaceable and is then
// replicated where a replacement would be necessary. With `last`, all nodes are marked.
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

// Replaces all nodes that shard an axis of statistics, in a copy of the model, and returns the flow
// of the copy. If a node cannot be replaced, discards the copy and returns a flow of the same model
// in which this node is kept. Returns NULL after a failure.
static struct flow *next_round(struct rounds *rounds, struct flow *flow, bool last)
{
    tsr_model *copy;
    size_t failed = 0;
    struct origins origins = {0};
    if (!rounds->keep)
        rounds->keep = ARENA_ARRAY(rounds->arena, bool, flow->n_nodes + 1);
    if (!rounds->keep || tsr_model_clone(flow->model, &copy) != TSR_OK)
        return NULL;
    tsr_config *config = config_in_copy(copy, flow->model, flow->config);
    // the last round treats every node as not replaceable
    tsr_status st = TSR_UNSUPPORTED;
    if (config && !last)
        st = expand_model(rounds->arena, flow, copy, config, &origins, &failed);
    struct flow *next = NULL;
    if (st == TSR_OK) {
        tsr_model_free(rounds->made);
        rounds->made = copy;
        // the copy has other nodes
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
    next->before = flow->before; // the flow of the first round
    if (!next->before)
        next->before = flow;
    return next;
}

// Reports nodes that the first flow shards and the last one does not: nodes that cannot be
// replaced, and nodes whose replacement is partly unsharded. Example: the last Where of a OneHot of
// unknown depth.
static void report_unsharded(const struct flow *flow, tsr_session *session)
{
    const struct node_flow *said = NULL;
    for (size_t i = 0; i < flow->n_nodes; i++) {
        const struct node_flow *part = &flow->nodes[i];
        const struct node_flow *given = &flow->before->nodes[origin_of(flow, i)];
        if (!part->replicated || given->replicated || given == said)
            continue;
        said = given;
        tsr__diag(
            session, DIAG_not_cut_here, PLACE_AT(tsr__place_spec(given->node, flow->config, NULL)),
            "choose a sharding that the operator's rule allows (`tessera rules OP`), or remove it",
            "the node has a sharding, but it or a part of it (%s) runs replicated on its "
            "devices: %s",
            tsr_node_op(part->node), part->replicated);
    }
}

// Replaces nodes in rounds until no node shards an axis of statistics. The flows of all rounds stay
// in the arena. The caller frees *made, the last copy of the model, after the flow.
struct flow *tsr__flow_expand(struct arena *arena, struct flow *flow, tsr_model **made)
{
    struct rounds rounds = {.arena = arena};
    int round = 0;
    while (flow && any_cuts_statistics(flow))
        flow = next_round(&rounds, flow, round++ >= MAX_ROUNDS);
    if (flow && flow->before)
        report_unsharded(flow, arena->session);
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
    struct flow *flow = tsr__flow_run(arena, model, config, false, NULL);
    return flow ? tsr__flow_expand(arena, flow, made) : NULL;
}
