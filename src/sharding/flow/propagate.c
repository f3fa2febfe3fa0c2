// SPDX-License-Identifier: Apache-2.0
// propagate.c - propagates shardings backwards: the layout in which a node needs an input becomes a
// request to the producer, and so on towards the inputs of the model. Other readers of the value
// follow in the forward flow.
//
// A round is one forward flow (flow.c) and one backward pass over the nodes. Rounds end when a pass
// grants no request. Conflicts are resolved in this order:
// 1. Explicit shardings are never overridden: an output that has one gets no request.
// 2. A request that does not fit the layouts arriving at the producer is refused.
// 3. A request is refused if another reader (or model output, or subgraph) would have to reshard.
// 4. Of several requests for one value, the first in node order that can be granted wins.
// A request is a layout that shards something, and is granted exactly or not at all. Model inputs
// stay replicated and initializers follow their readers, so neither gets requests. Refused requests
// that matter are reported as notes. This pass uses no costs.
//
// Example, in the notation of notation.c:
//     Y = MatMul(X, W); Z = Add(Y, B); B {2,1} is explicit at the Add, X and W have no spec.
//     Forward: the Add is sharded by rows and needs Y as {2,1}, but Y is replicated on both
//     devices. Backward: Y gets the request {2,1}. The MatMul can grant it (m in 2 shards, X is
//     sliced without a transfer), and Y has no other reader: granted.
#include "sharding/flow/flow.h"

#define MAX_ROUNDS 64

// One use of a value: input `slot` of the node with index `node` in the main graph.
struct value_use {
    size_t node, slot;
};
// A refused request, which is not tried again.
struct refusal {
    const struct tile_layout *layout;
    // NOBODY if the producer cannot provide the layout; else the reader that prevents it
    size_t in_place;
    struct refusal *next;
};
#define NOBODY ((size_t)-1)
#define OUTPUT ((size_t)-2) // a model output, or a subgraph

struct propagate {
    struct flow_work work;
    struct arena *arena;       // for results
    struct arena trial;        // for one request
    tsr_node **nodes;          // in graph order
    size_t *first;             // by value id (and one more): index of its first reader
    struct value_use *readers; // in node order
    bool *fixed;               // by value id: has an explicit layout
    bool *bound; // by value id: the value is an output of the model, or a subgraph reads it
    struct refusal **refused; // by value id
    bool failed;
};

static uint32_t id_of(const tsr_value *value)
{
    return tsr__value_id(value);
}

// Returns a pointer to the layout of the value in the flow, which a trial can replace and restore.
static struct tile_layout **layout_slot(struct propagate *propagate, const tsr_value *value)
{
    return &propagate->work.flow->values[id_of(value)];
}

// ---- readers ------------------------------------------------------------------------------------

static void count_readers(struct propagate *propagate)
{
    for (size_t i = 0; i < propagate->work.flow->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_input_count(propagate->nodes[i]); k++)
            if (tsr_node_input(propagate->nodes[i], k))
                propagate->first[id_of(tsr_node_input(propagate->nodes[i], k)) + 1]++;
}

// Lists the readers of all values. Those of value v are readers[first[v]] to readers[first[v + 1] -
// 1].
static bool list_readers(struct propagate *propagate, size_t n_ids)
{
    count_readers(propagate);
    for (size_t i = 0; i < n_ids; i++)
        propagate->first[i + 1] += propagate->first[i];
    size_t *at = ARENA_ARRAY(propagate->arena, size_t, n_ids + 1);
    propagate->readers =
        ARENA_ARRAY(propagate->arena, struct value_use, propagate->first[n_ids] + 1);
    if (!at || !propagate->readers)
        return false;
    for (size_t i = 0; i < propagate->work.flow->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_input_count(propagate->nodes[i]); k++) {
            const tsr_value *value = tsr_node_input(propagate->nodes[i], k);
            if (value)
                propagate->readers[propagate->first[id_of(value)] + at[id_of(value)]++] =
                    (struct value_use){i, k};
        }
    return true;
}

// Marks outputs that have a spec (`fixed`), and values that a subgraph of the node reads (`bound`).
static void mark_fixed(struct propagate *propagate, const tsr_node *node)
{
    tsr_value **captures;
    size_t n_captures = tsr__node_captures(node, &captures);
    for (size_t k = 0; k < n_captures; k++)
        propagate->bound[id_of(captures[k])] = true;
    for (size_t k = 0; k < tsr_node_output_count(node); k++) {
        const tsr_value *value = tsr_node_output(node, k);
        if (value && tsr__has_spec(node, propagate->work.flow->config, value))
            propagate->fixed[id_of(value)] = true;
    }
}

static bool prepare_propagation(struct propagate *propagate)
{
    size_t n_ids = tsr__model_value_ids(propagate->work.flow->model), i = 0;
    tsr_graph *graph = tsr_model_graph(propagate->work.flow->model);
    propagate->nodes = ARENA_ARRAY(propagate->arena, tsr_node *, propagate->work.flow->n_nodes + 1);
    propagate->first = ARENA_ARRAY(propagate->arena, size_t, n_ids + 2);
    propagate->fixed = ARENA_ARRAY(propagate->arena, bool, n_ids + 1);
    propagate->bound = ARENA_ARRAY(propagate->arena, bool, n_ids + 1);
    propagate->refused = ARENA_ARRAY(propagate->arena, struct refusal *, n_ids + 1);
    propagate->work.requests = ARENA_ARRAY(propagate->arena, struct tile_layout *, n_ids + 1);
    if (propagate->arena->failed)
        return false;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (i == propagate->work.flow->n_nodes)
            break;
        propagate->nodes[i++] = node;
        mark_fixed(propagate, node);
    }
    for (size_t k = 0; k < tsr_graph_output_count(graph); k++)
        propagate->bound[id_of(tsr_graph_output(graph, k))] = true;
    return list_readers(propagate, n_ids);
}

// ---- one request --------------------------------------------------------------------------------

// Places node i with the current layouts and requests, without changing the flow. The result is in
// *nf. Returns false after a failure.
static bool try_node(struct propagate *propagate, size_t i, struct node_flow *nf)
{
    struct arena *arena = propagate->work.arena;
    *nf = (struct node_flow){0};
    propagate->work.arena = &propagate->trial;
    propagate->work.trial = true;
    propagate->work.report = 0;
    bool ok = tsr__flow_node(&propagate->work, propagate->nodes[i], nf);
    propagate->work.arena = arena;
    propagate->work.trial = false;
    propagate->failed = propagate->failed || !ok;
    return ok;
}

// Returns the first reader that did not need resharding before and needs it now, after the layout
// of the value has changed from `before`. OUTPUT: the caller of the model or a subgraph. NOBODY:
// none, or a failure.
static size_t first_disturbed(struct propagate *propagate, const tsr_value *value,
                              const struct tile_layout *before)
{
    uint32_t id = id_of(value);
    struct node_flow nf = {0};
    size_t tried = NOBODY;
    // the caller, or a body, reads the value replicated without resharding
    if (propagate->bound[id] && tsr__layout_is_whole(before))
        return OUTPUT;
    for (size_t k = propagate->first[id]; k < propagate->first[id + 1]; k++) {
        if (propagate->failed)
            break;
        struct value_use reader = propagate->readers[k];
        if (!tsr__flow_held(before, propagate->work.flow->nodes[reader.node].inputs[reader.slot]))
            continue;
        // a node that reads the value in two slots is tried once
        if (tried != reader.node && !try_node(propagate, reader.node, &nf))
            return NOBODY;
        tried = reader.node;
        if (!tsr__flow_held(*layout_slot(propagate, value), nf.inputs[reader.slot]))
            return reader.node;
    }
    return NOBODY;
}

// True if the trial `nf` of node i needs no resharding of an input that needs none in the current
// flow.
static bool inputs_undisturbed(struct propagate *propagate, size_t i, const struct node_flow *nf)
{
    for (size_t k = 0; k < tsr_node_input_count(propagate->nodes[i]); k++) {
        const tsr_value *value = tsr_node_input(propagate->nodes[i], k);
        if (value &&
            tsr__flow_held(*layout_slot(propagate, value),
                           propagate->work.flow->nodes[i].inputs[k]) &&
            !tsr__flow_held(*layout_slot(propagate, value), nf->inputs[k]))
            return false;
    }
    return true;
}

// True if the output layouts of the trial `nf` of node i cause no new resharding at a reader.
// Otherwise *who is that reader.
static bool outputs_undisturbed(struct propagate *propagate, size_t i, const struct node_flow *nf,
                                size_t *who)
{
    for (size_t k = 0; k < tsr_node_output_count(propagate->nodes[i]); k++) {
        const tsr_value *value = tsr_node_output(propagate->nodes[i], k);
        struct tile_layout *before = value ? *layout_slot(propagate, value) : NULL;
        struct tile_layout *after = tsr__flow_result(nf, k);
        if (!value || tsr__layout_equal(before, after))
            continue;
        *layout_slot(propagate, value) = after;
        *who = first_disturbed(propagate, value, before);
        *layout_slot(propagate, value) = before;
        if (*who != NOBODY || propagate->failed)
            return false;
    }
    return true;
}

// True if node i can produce output `out` exactly in the requested layout, without new resharding
// of its inputs or at readers of its outputs. *who is the first reader with new resharding; NOBODY:
// none.
static bool fits(struct propagate *propagate, size_t i, size_t out, size_t *who)
{
    struct node_flow nf;
    const tsr_value *value = tsr_node_output(propagate->nodes[i], out);
    *who = NOBODY;
    return try_node(propagate, i, &nf) &&
           tsr__layout_equal(nf.outputs[out], propagate->work.requests[id_of(value)]) &&
           inputs_undisturbed(propagate, i, &nf) && outputs_undisturbed(propagate, i, &nf, who);
}

static const struct refusal *refusal_of(const struct propagate *propagate, uint32_t id,
                                        const struct tile_layout *layout)
{
    const struct refusal *refusal = propagate->refused[id];
    while (refusal && !tsr__layout_equal(refusal->layout, layout))
        refusal = refusal->next;
    return refusal;
}

// Removes the request for value `id` and records it as refused, with the reader that prevents it.
static void refuse_request(struct propagate *propagate, uint32_t id, size_t in_place)
{
    struct refusal *refusal = ARENA_NEW(propagate->arena, struct refusal);
    if (refusal) {
        *refusal = (struct refusal){propagate->work.requests[id], in_place, propagate->refused[id]};
        propagate->refused[id] = refusal;
    }
    propagate->failed = propagate->failed || !refusal;
    propagate->work.requests[id] = NULL;
}

// Tries to give output `out` of node i the layout `need`. First tests this in temporary memory; the
// node is placed again only if the request fits. Returns true if the output now has the layout.
static bool grant(struct propagate *propagate, size_t i, size_t out, const struct tile_layout *need)
{
    uint32_t id = id_of(tsr_node_output(propagate->nodes[i], out));
    size_t who;
    propagate->work.requests[id] = tsr__layout_copy(propagate->arena, need);
    propagate->failed = propagate->failed || !propagate->work.requests[id];
    if (propagate->failed)
        return false;
    tsr__arena_init(&propagate->trial, propagate->arena->session);
    bool ok = fits(propagate, i, out, &who);
    tsr__arena_free(&propagate->trial);
    if (!ok) {
        refuse_request(propagate, id, who);
        return false;
    }
    propagate->work.flow->nodes[i] = (struct node_flow){0};
    propagate->failed =
        !tsr__flow_node(&propagate->work, propagate->nodes[i], &propagate->work.flow->nodes[i]);
    return true;
}

// ---- rounds ------------------------------------------------------------------------------------

// For each output of node i without a spec, grants the first layout of a reader that can be
// granted. Skips layouts that are replicated, that the output already has, or that were refused.
// Returns true if one was granted.
static bool walk_node(struct propagate *propagate, size_t i)
{
    bool granted = false;
    for (size_t out = 0; out < tsr_node_output_count(propagate->nodes[i]); out++) {
        const tsr_value *value = tsr_node_output(propagate->nodes[i], out);
        if (!value || propagate->fixed[id_of(value)])
            continue;
        uint32_t id = id_of(value);
        for (size_t k = propagate->first[id];
             k < propagate->first[id + 1] && !propagate->work.requests[id] && !propagate->failed;
             k++) {
            const struct tile_layout *need = propagate->work.flow->nodes[propagate->readers[k].node]
                                                 .inputs[propagate->readers[k].slot];
            if (!tsr__layout_is_whole(need) &&
                !tsr__layout_equal(need, *layout_slot(propagate, value)) &&
                !refusal_of(propagate, id, need))
                granted = grant(propagate, i, out, need) || granted;
        }
    }
    return granted;
}

// Refuses requests that were granted, but that the last forward flow could not satisfy because
// layouts of inputs have changed.
static void drop_unmet(struct propagate *propagate)
{
    for (size_t i = 0; i < propagate->work.flow->n_nodes; i++)
        for (size_t k = 0; k < tsr_node_output_count(propagate->nodes[i]); k++) {
            const tsr_value *value = tsr_node_output(propagate->nodes[i], k);
            if (value && propagate->work.requests[id_of(value)] &&
                !tsr__layout_equal(*layout_slot(propagate, value),
                                   propagate->work.requests[id_of(value)]))
                refuse_request(propagate, id_of(value), NOBODY);
        }
}

// Runs one forward flow and, unless `last`, one backward pass. Returns true if the backward pass
// granted a request.
static bool round_trip(struct propagate *propagate, bool last)
{
    bool granted = false;
    if (!tsr__flow_forward(&propagate->work, 0, NULL)) {
        propagate->failed = true;
        return false;
    }
    drop_unmet(propagate);
    if (last)
        return false;
    for (size_t i = propagate->work.flow->n_nodes; i > 0; i--)
        if (!propagate->failed)
            granted = walk_node(propagate, i - 1) || granted;
    return granted;
}

// ---- notes -------------------------------------------------------------------------------------

// Returns why the request of a reader was refused, or NULL if no note is needed. A note is needed
// if the value must be resharded, or if another reader needs its present layout.
static const char *reason(struct propagate *propagate, const tsr_value *value,
                          const struct tile_layout *need)
{
    const struct refusal *refusal = refusal_of(propagate, id_of(value), need);
    bool moves = !tsr__flow_held(*layout_slot(propagate, value), need);
    if (refusal && refusal->in_place == OUTPUT)
        return "a model output or a subgraph needs it unsharded";
    if (refusal && refusal->in_place != NOBODY)
        return tsr__arena_printf(propagate->arena, "node #%zu uses the current sharding",
                                 refusal->in_place)
            .p;
    if (refusal && moves)
        return "the producer could compute this sharding only by resharding its inputs";
    return moves && propagate->work.requests[id_of(value)] ? "another node has priority" : NULL;
}

static void note(struct propagate *propagate, const tsr_value *value,
                 const struct value_use *reader)
{
    const struct tile_layout *need = propagate->work.flow->nodes[reader->node].inputs[reader->slot];
    if (tsr__layout_is_whole(need) || tsr__layout_equal(need, *layout_slot(propagate, value)))
        return;
    const char *why = reason(propagate, value, need);
    struct flow_noted *noted = why ? ARENA_NEW(propagate->arena, struct flow_noted) : NULL;
    if (!noted)
        return;
    *noted = (struct flow_noted){tsr__layout_copy(propagate->arena, need),
                                 propagate->work.noted[id_of(value)]};
    if (!noted->layout)
        return;
    propagate->work.noted[id_of(value)] = noted; // so that the flow does not report it again
    struct place at =
        tsr__place_spec(propagate->nodes[reader->node], propagate->work.flow->config, value);
    struct str from = tsr__notation_print(propagate->arena, *layout_slot(propagate, value));
    struct str to = tsr__notation_print(propagate->arena, need);
    tsr__diag(propagate->arena->session, DIAG_demand_dropped, &at,
              "to choose the sharding, shard the output of the producer explicitly",
              "the node needs the value as " STR_FMT ", but the value is sharded as " STR_FMT
              ": %s",
              STR_ARG(to), STR_ARG(from), why);
}

// Reports refused requests. Called after the last round, because a value may get the layout in a
// later round.
static void note_all(struct propagate *propagate)
{
    for (size_t i = 0; i < propagate->work.flow->n_nodes; i++)
        for (size_t out = 0; out < tsr_node_output_count(propagate->nodes[i]); out++) {
            const tsr_value *value = tsr_node_output(propagate->nodes[i], out);
            if (!value || propagate->fixed[id_of(value)])
                continue;
            for (size_t k = propagate->first[id_of(value)]; k < propagate->first[id_of(value) + 1];
                 k++)
                note(propagate, value, &propagate->readers[k]);
        }
}

// Repeats rounds until one grants nothing, but at most MAX_ROUNDS times. Then reports refused
// requests.
static void settle(struct propagate *propagate)
{
    bool more = true;
    for (int i = 0; more; i++) {
        if (propagate->failed)
            return;
        struct arena round; // for the results of one round
        tsr__arena_init(&round, propagate->arena->session);
        propagate->work.arena = &round;
        more = round_trip(propagate, i == MAX_ROUNDS);
        if (!more && !propagate->failed)
            note_all(propagate);
        propagate->work.arena = propagate->arena;
        tsr__arena_free(&round);
    }
}

struct flow *tsr__flow_propagated(struct arena *arena, tsr_model *model, const tsr_config *config)
{
    struct propagate propagate = {.arena = arena, .work.keep_empty = true};
    if (!tsr__flow_start(&propagate.work, arena, model, config) || !prepare_propagation(&propagate))
        return NULL;
    settle(&propagate);
    if (!propagate.failed &&
        tsr__flow_forward(&propagate.work, REPORT_UNSHARDED | REPORT_RESHARDS, NULL))
        return propagate.work.flow;
    return NULL;
}
