// SPDX-License-Identifier: Apache-2.0
// document_nodes.c - writes the nodes of a plan's document: the edits that shard each node, the
// shardings of its inputs and outputs, and the collectives that complete its results.
//
// A replay applies the edits. Inputs, outputs and reductions (plan_nodes.c) are for human readers.
#include "plan/write/write.h"

#include "tessera_json.h"

#include <stdlib.h>

// Reads the node index: "--shard "#12":..." and "--stage #12=..." give 12; -1: none.
static int64_t node_of(const char *line)
{
    const char *hash = line + strcspn(line, "#\n");
    return *hash != '#' ? -1 : strtoll(hash + 1, NULL, 10);
}

static void add_tensors(tsr_json *json, const char *key, const tsr_plan_tensor *tensors, size_t n)
{
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "value", tensors[i].value);
        tsr_json_string(json, "sharding", tensors[i].sharding);
        if (tensors[i].in_parts)
            tsr_json_bool(json, "in_parts", true);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static void add_reductions(tsr_json *json, const tsr_plan_node *node)
{
    tsr_json_begin(json, "reductions", '[');
    for (size_t i = 0; i < node->n_reductions; i++) {
        const tsr_plan_reduction *reduction = &node->reductions[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "value", reduction->value);
        tsr_json_string(json, "collective", reduction->collective);
        tsr_json_string(json, "function", reduction->function);
        tsr_json_begin(json, "groups", '[');
        for (size_t g = 0; g < reduction->n_groups; g++)
            tsr_json_ints(json, NULL, reduction->groups[g].devices, reduction->groups[g].n);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Adds the edits of a node. Lines without an index are added to the current node, so that none is
// lost.
static void add_edits(struct arena *arena, tsr_json *json, int64_t index, const char **edits)
{
    tsr_json_begin(json, "edits", '[');
    while (**edits && node_of(*edits) <= index)
        tsr_json_string(json, NULL, tsr__arena_str(arena, next_line(edits)).p);
    tsr_json_end(json);
}

static void add_node(struct arena *arena, tsr_json *json, const tsr_node *node,
                     const tsr_plan_node *planned, const char **edits)
{
    tsr_json_begin(json, NULL, '{');
    tsr_json_int(json, "index", planned->index);
    tsr_json_string(json, "name", tsr_node_name(node));
    tsr_json_string(json, "op", planned->op);
    add_edits(arena, json, planned->index, edits);
    if (planned->inputs) {
        add_tensors(json, "inputs", planned->inputs, planned->n_inputs);
        add_tensors(json, "outputs", planned->outputs, planned->n_outputs);
        add_reductions(json, planned);
    }
    tsr_json_end(json);
}

static tsr_status write_nodes(struct arena *arena, tsr_json *json, tsr_model *model,
                              const tsr_config *config)
{
    const char *edits = NULL;
    const tsr_plan_node *planned = NULL;
    size_t n = 0;
    TRY(tsr_config_edits(model, config, &edits));
    TRY(tsr__plan_nodes(arena, model, config, &planned, &n));
    tsr_json_string(json, "declares", tsr__arena_str(arena, next_line(&edits)).p);
    tsr_json_begin(json, "nodes", '[');
    // Both are in the order of the model: nodes of bodies follow their node.
    const tsr_graph *graph = tsr_model_graph(model);
    const tsr_node *node = tsr_model_next_node(model, NULL);
    for (size_t i = 0; i < n && node && !arena->failed; i++) {
        if (tsr_node_graph(node) == graph)
            add_node(arena, json, node, &planned[i], &edits);
        node = tsr_model_next_node(model, node);
    }
    tsr_json_end(json);
    return arena_status(arena);
}

tsr_status tsr__document_nodes(tsr_json *json, tsr_model *model, const char *config)
{
    struct arena arena = {.session = tsr_model_session(model)};
    tsr_status st = write_nodes(&arena, json, model, tsr_model_find_config(model, config));
    tsr__arena_free(&arena);
    return st;
}
