// SPDX-License-Identifier: Apache-2.0
// document_nodes.c - writes the nodes of a plan's document: the edits that shard each node, the
// shardings of its inputs and outputs, and the collectives that complete its results.
//
// A replay applies the edits. Inputs, outputs and reductions are for human readers. Sharding
// inference derives them from the edits, even for nodes without any.
//
//     Example: down = MatMul(r, w2) with the output y, k sharded over 2 devices:
//     "inputs": r {1,2:0,1}, w2 {2,1:0,1};  "outputs": y {1:0,1};
//     "reductions": AllReduce sum of y
#include "plan/write/write.h"

#include <stdlib.h>

struct node_writer {
    struct arena *arena; // data that lives as long as the document
    tsr_json *json;
    const struct flow *flow; // shardings after expansion of nodes; NULL: inference failed
    size_t at;               // first node of the expanded flow that is not written yet
};

// Reads the node index: "--shard "#12":..." and "--stage #12=..." give 12; -1: none.
static int64_t node_of(const char *line)
{
    const char *hash = line + strcspn(line, "#\n");
    return *hash != '#' ? -1 : strtoll(hash + 1, NULL, 10);
}

// Returns the shardings of the original model, without expanded nodes.
static const struct flow *given_flow(const struct flow *flow)
{
    return flow->before ? flow->before : flow;
}

static void add_tensor(struct node_writer *writer, const tsr_value *value,
                       const struct tile_layout *layout, bool in_parts)
{
    if (!value || !layout)
        return;
    tsr_json_begin(writer->json, NULL, '{');
    tsr_json_string(writer->json, "value", tsr_value_name(value));
    tsr_json_string(writer->json, "sharding", tsr__notation_print(writer->arena, layout).p);
    if (in_parts)
        tsr_json_bool(writer->json, "in_parts", true);
    tsr_json_end(writer->json);
}

static const struct tile_layout *output_layout(const struct node_flow *nf, size_t i)
{
    return nf->wanted && nf->wanted[i] ? nf->wanted[i] : nf->outputs[i];
}

static void add_tensors(struct node_writer *writer, const struct node_flow *nf)
{
    tsr_json_begin(writer->json, "inputs", '[');
    for (size_t i = 0; i < tsr_node_input_count(nf->node); i++)
        add_tensor(writer, tsr_node_input(nf->node, i), nf->inputs[i],
                   nf->pending && nf->pending[i]);
    tsr_json_end(writer->json);
    tsr_json_begin(writer->json, "outputs", '[');
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++)
        add_tensor(writer, tsr_node_output(nf->node, i), output_layout(nf, i), nf->delayed);
    tsr_json_end(writer->json);
}

// Returns the collective that combines partial results into the wanted layout.
static const char *collective_of(const struct tile_layout *made, const struct tile_layout *wanted)
{
    enum comm_kind kind = COMM_ALL_REDUCE;
    if (wanted->n_shards > made->n_shards)
        kind = COMM_REDUCE_SCATTER;
    else if (wanted != made && wanted->first[wanted->n_shards] == wanted->n_shards)
        kind = COMM_REDUCE;
    return tsr__collective((int)kind)->op;
}

static bool is_reduced(const struct node_flow *nf)
{
    for (size_t group = 0; group < nf->n_groups && !nf->delayed; group++)
        if (nf->groups[group].n > 1)
            return true;
    return false;
}

// Adds one reduction. `value` is the output of the original node to which it belongs.
static void add_reduction(struct node_writer *writer, const struct node_flow *nf, size_t i,
                          const char *value)
{
    static const char *const functions[] = {[COMBINE_SUM] = "sum",
                                            [COMBINE_MAX] = "max",
                                            [COMBINE_MIN] = "min",
                                            [COMBINE_PROD] = "prod"};
    tsr_json_begin(writer->json, NULL, '{');
    tsr_json_string(writer->json, "value", value);
    tsr_json_string(writer->json, "collective",
                    collective_of(nf->outputs[i], output_layout(nf, i)));
    tsr_json_string(writer->json, "function", functions[nf->combine]);
    tsr_json_begin(writer->json, "groups", '[');
    for (size_t group = 0; group < nf->n_groups; group++)
        tsr_json_ints(writer->json, NULL, nf->groups[group].devices, nf->groups[group].n);
    tsr_json_end(writer->json);
    tsr_json_end(writer->json);
}

// Adds the reductions of one node of the expanded model. The node is `given` or a part of its
// expansion.
static void add_reductions_of(struct node_writer *writer, const struct node_flow *nf,
                              const tsr_node *given)
{
    if (!is_reduced(nf))
        return;
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++) {
        const tsr_value *value = NULL;
        if (i < tsr_node_output_count(given))
            value = tsr_node_output(given, i);
        if (tsr_node_output(nf->node, i) && nf->outputs[i] && value)
            add_reduction(writer, nf, i, tsr_value_name(value));
    }
}

// Adds the reductions of a node. Nodes of the expanded model are in the order of the original
// nodes.
static void add_reductions(struct node_writer *writer, size_t index, const tsr_node *given)
{
    const struct flow *flow = writer->flow;
    tsr_json_begin(writer->json, "reductions", '[');
    for (; writer->at < flow->n_nodes; writer->at++) {
        size_t origin = flow->before ? flow->origin[writer->at] : writer->at;
        if (origin > index)
            break;
        add_reductions_of(writer, &flow->nodes[writer->at], given);
    }
    tsr_json_end(writer->json);
}

// Adds the edits of a node. Lines without an index are added to the current node, so that none is
// lost.
static void add_edits(struct node_writer *writer, int64_t index, const char **edits)
{
    tsr_json_begin(writer->json, "edits", '[');
    while (**edits && node_of(*edits) <= index)
        tsr_json_string(writer->json, NULL, tsr__arena_str(writer->arena, next_line(edits)).p);
    tsr_json_end(writer->json);
}

static void add_node(struct node_writer *writer, size_t index, const tsr_node *node,
                     const char **edits)
{
    tsr_json_begin(writer->json, NULL, '{');
    tsr_json_int(writer->json, "index", (int64_t)index);
    tsr_json_string(writer->json, "name", tsr_node_name(node));
    tsr_json_string(writer->json, "op", tsr_node_op(node));
    add_edits(writer, (int64_t)index, edits);
    if (writer->flow) {
        add_tensors(writer, &given_flow(writer->flow)->nodes[index]);
        add_reductions(writer, index, node);
    }
    tsr_json_end(writer->json);
}

// Infers the shardings of the model. The planner has reported problems already, so diagnostics are
// dropped.
static const struct flow *follow(struct arena *arena, tsr_model *model, const tsr_config *config,
                                 tsr_model **expanded)
{
    struct diag_mark mark = tsr__diag_mark(arena->session);
    const struct flow *flow = tsr__flow_expanded(arena, model, config, expanded);
    tsr__diag_back(arena->session, &mark, arena->failed);
    return flow;
}

tsr_status tsr__document_nodes(struct arena *arena, tsr_json *json, tsr_model *model,
                               const tsr_config *config)
{
    const char *edits = NULL;
    tsr_model *expanded = NULL;
    TRY(tsr_config_edits(model, config, &edits));
    struct node_writer writer = {.arena = arena, .json = json};
    writer.flow = follow(arena, model, config, &expanded);
    tsr_json_string(json, "declares", tsr__arena_str(arena, next_line(&edits)).p);
    tsr_json_begin(json, "nodes", '[');
    size_t index = 0;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node && !arena->failed;
         node = tsr_node_next(node))
        add_node(&writer, index++, node, &edits);
    tsr_json_end(json);
    tsr_model_free(expanded);
    return arena->failed ? TSR_NOMEM : TSR_OK;
}
