// SPDX-License-Identifier: Apache-2.0
// plan_nodes.c - lists the nodes of a model as a configuration shards them: the shardings of all
// inputs and outputs, and the collectives that complete the outputs.
//
// Sharding inference derives them from the annotations, also for nodes that have none.
//
//     Example: down = MatMul(r, w2) with the output y, k sharded over 2 devices:
//     inputs r {1,2:0,1}, w2 {2,1:0,1}; outputs y {1:0,1}; reductions: AllReduce sum of y
#include "plan/write/write.h"

#include "tessera_graph.h"

struct tsr_plan_nodes {
    struct result_head head;
    const tsr_plan_node *at;
    size_t n;
};

struct lister {
    struct arena *arena;   // of the list
    struct arena *scratch; // of the flow
    const tsr_config *config;
    const struct flow *flow; // after expansion of nodes; NULL: inference failed
    size_t expanded;         // first node of this flow that was not visited yet
    VEC(tsr_plan_node) nodes;
};

static void add_tensor(struct arena *arena, const tsr_value *value,
                       const struct tile_layout *layout, bool in_parts, tsr_plan_tensor *list,
                       size_t *n)
{
    if (!value || !layout)
        return;
    list[(*n)++] = (tsr_plan_tensor){
        .value = tsr__arena_str(arena, tsr__value_str(value)).p,
        .sharding = tsr__notation_print(arena, layout).p,
        .in_parts = in_parts,
    };
}

static const struct tile_layout *output_layout(const struct node_flow *nf, size_t i)
{
    return nf->wanted && nf->wanted[i] ? nf->wanted[i] : nf->outputs[i];
}

static bool list_tensors(struct arena *arena, const struct node_flow *nf, tsr_plan_node *out)
{
    size_t n_in = tsr_node_input_count(nf->node), n_out = tsr_node_output_count(nf->node);
    tsr_plan_tensor *inputs = ARENA_ARRAY(arena, tsr_plan_tensor, n_in + 1);
    tsr_plan_tensor *outputs = ARENA_ARRAY(arena, tsr_plan_tensor, n_out + 1);
    if (!inputs || !outputs)
        return false;
    for (size_t i = 0; i < n_in; i++)
        add_tensor(arena, tsr_node_input(nf->node, i), nf->inputs[i], nf->pending && nf->pending[i],
                   inputs, &out->n_inputs);
    for (size_t i = 0; i < n_out; i++)
        add_tensor(arena, tsr_node_output(nf->node, i), output_layout(nf, i), nf->delayed, outputs,
                   &out->n_outputs);
    out->inputs = inputs;
    out->outputs = outputs;
    return !arena->failed;
}

// ---- reductions --------------------------------------------------------------------------------

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

static const tsr_group *groups_of(struct arena *arena, const struct node_flow *nf)
{
    tsr_group *groups = ARENA_ARRAY(arena, tsr_group, nf->n_groups + 1);
    for (size_t i = 0; groups && i < nf->n_groups; i++) {
        int64_t *devices = ARENA_ARRAY(arena, int64_t, nf->groups[i].n + 1);
        if (!devices)
            return NULL;
        memcpy(devices, nf->groups[i].devices, nf->groups[i].n * sizeof *devices);
        groups[i] = (tsr_group){devices, nf->groups[i].n};
    }
    return groups;
}

// A list of reductions of the node `given` of the model.
struct reductions {
    const tsr_node *given;
    VEC(tsr_plan_reduction) list;
};

// Adds the reductions of a node of the flow, which is `given` or a part of its expansion.
static bool add_reductions(struct arena *arena, const struct node_flow *nf, struct reductions *to)
{
    static const char *const functions[] = {[COMBINE_SUM] = "sum",
                                            [COMBINE_MAX] = "max",
                                            [COMBINE_MIN] = "min",
                                            [COMBINE_PROD] = "prod"};
    for (size_t i = 0; is_reduced(nf) && i < tsr_node_output_count(nf->node); i++) {
        const tsr_value *value = NULL;
        if (i < tsr_node_output_count(to->given))
            value = tsr_node_output(to->given, i);
        if (!tsr_node_output(nf->node, i) || !nf->outputs[i] || !value)
            continue;
        tsr_plan_reduction *reduction = vec_push(arena, &to->list);
        if (!reduction)
            return false;
        *reduction = (tsr_plan_reduction){
            .value = tsr__arena_str(arena, tsr__value_str(value)).p,
            .collective = collective_of(nf->outputs[i], output_layout(nf, i)),
            .function = functions[nf->combine],
            .groups = groups_of(arena, nf),
            .n_groups = nf->n_groups,
        };
    }
    return !arena->failed;
}

// Adds the reductions of node `index` of the main graph. Nodes of the expanded model are in the
// order of the original nodes.
static bool add_expanded(struct lister *lister, size_t index, struct reductions *to)
{
    const struct flow *flow = lister->flow;
    for (; lister->expanded < flow->n_nodes; lister->expanded++) {
        size_t origin = flow->before ? flow->origin[lister->expanded] : lister->expanded;
        if (origin > index)
            break;
        if (!add_reductions(lister->arena, &flow->nodes[lister->expanded], to))
            return false;
    }
    return true;
}

// ---- nodes -------------------------------------------------------------------------------------

// Returns the name of a node for edits: "mm", or "#3" for a node without a name.
static struct str name_of(struct lister *lister, struct str before, const tsr_node *node)
{
    const char *name = tsr_node_name(node);
    if (name[0])
        return tsr__arena_printf(lister->arena, STR_FMT "%s", STR_ARG(before), name);
    return tsr__arena_printf(lister->arena, STR_FMT "#%lld", STR_ARG(before),
                             (long long)tsr_node_index(node));
}

static tsr_status add_graph(struct lister *lister, const tsr_graph *graph,
                            const struct node_flow *flows, struct str before);

// Returns the nodes of a body in the flow of its node; NULL: the body is not sharded.
static const struct node_flow *body_flows(const struct node_flow *nf, const tsr_graph *graph)
{
    for (int k = 0; nf && nf->bodies && k < nf->control->n_bodies; k++)
        if (nf->bodies[k].graph == graph)
            return nf->bodies[k].nodes;
    return NULL;
}

static tsr_status add_bodies(struct lister *lister, const tsr_node *node,
                             const struct node_flow *nf, struct str path)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++) {
            const tsr_graph *graph = tsr_attr_graph(attr, k);
            struct str inner = tsr__arena_printf(lister->arena, STR_FMT " > %s > ", STR_ARG(path),
                                                 tsr_attr_name(attr));
            TRY(inner.p ? add_graph(lister, graph, body_flows(nf, graph), inner) : TSR_NOMEM);
        }
    }
    return TSR_OK;
}

// Adds a node. nf NULL: the body that it is in is not sharded.
static tsr_status add_node(struct lister *lister, const tsr_node *node, const struct node_flow *nf,
                           struct str path)
{
    struct arena *arena = lister->arena;
    struct reductions reductions = {.given = node};
    tsr_plan_node *out = vec_push(arena, &lister->nodes);
    if (!out || !path.p)
        return TSR_NOMEM;
    *out = (tsr_plan_node){
        .name = path.p,
        .op = tsr__arena_str(arena, str_of(tsr_node_op(node))).p,
        .index = tsr_node_index(node),
        .stage = tsr__node_stage(node, lister->config),
        .sharded = nf && tsr__flow_is_sharded(nf),
    };
    if (!nf)
        return arena_status(arena);
    bool is_main = tsr_node_graph(node) == tsr_model_graph(tsr_graph_model(tsr_node_graph(node)));
    bool added = is_main ? add_expanded(lister, (size_t)out->index, &reductions)
                         : add_reductions(arena, nf, &reductions);
    if (!added || !list_tensors(arena, nf, out))
        return TSR_NOMEM;
    out->reductions = reductions.list.at;
    out->n_reductions = reductions.list.n;
    return TSR_OK;
}

static tsr_status add_graph(struct lister *lister, const tsr_graph *graph,
                            const struct node_flow *flows, struct str before)
{
    size_t i = 0;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node), i++) {
        const struct node_flow *nf = flows ? &flows[i] : NULL;
        struct str path = name_of(lister, before, node);
        TRY(add_node(lister, node, nf, path));
        TRY(add_bodies(lister, node, nf, path));
    }
    return TSR_OK;
}

tsr_status tsr__plan_nodes(struct arena *arena, tsr_model *model, const tsr_config *config,
                           const tsr_plan_node **out, size_t *n)
{
    struct arena scratch = {.session = arena->session};
    struct lister lister = {.arena = arena, .scratch = &scratch, .config = config};
    tsr_model *expanded = NULL;
    // The model was checked before, so notes and warnings of this flow are dropped.
    struct diag_mark mark = tsr__diag_mark(arena->session);
    lister.flow = tsr__flow_expanded(&scratch, model, config, &expanded);
    tsr__diag_back(arena->session, &mark, scratch.failed);
    const struct flow *given = lister.flow;
    if (given && given->before)
        given = given->before;
    tsr_status st = scratch.failed ? TSR_NOMEM : TSR_OK;
    if (st == TSR_OK)
        st = add_graph(&lister, tsr_model_graph(model), given ? given->nodes : NULL, STR(""));
    *out = lister.nodes.at;
    *n = lister.nodes.n;
    tsr_model_free(expanded);
    tsr__arena_free(&scratch);
    return st;
}

// ---- the public interface ----------------------------------------------------------------------

// Lists the nodes of a model that has no calls of functions.
static tsr_status list_model(struct arena *kept, tsr_model *model, const char *config,
                             tsr_plan_nodes *out)
{
    size_t errors = tsr__diag_errors(kept->session);
    const tsr_config *chosen = tsr__config_choose(model, config);
    if (!chosen)
        return TSR_INVALID;
    TRY(tsr__check(model, tsr_config_name(chosen)));
    if (tsr__diag_errors(kept->session) > errors)
        return TSR_INVALID;
    return tsr__plan_nodes(kept, model, chosen, &out->at, &out->n);
}

// As list_model, also for a model with calls: shardings of a node in a function differ per call, so
// calls are replaced by their bodies, in a copy.
static tsr_status list_any(struct arena *kept, tsr_model *model, const char *config,
                           tsr_plan_nodes *out)
{
    tsr_model *copy = NULL;
    if (!tsr__has_calls(model))
        return list_model(kept, model, config, out);
    TRY(tsr_model_clone(model, &copy));
    tsr_status st = tsr__inline_calls(copy);
    if (st == TSR_OK)
        st = list_model(kept, copy, config, out);
    tsr_model_free(copy);
    return st;
}

tsr_status tsr_plan_nodes_new(tsr_model *model, const char *config, tsr_plan_nodes **out)
{
    tsr_session *session = tsr_model_session(model);
    tsr_plan_nodes found = {.n = 0};
    TRY(tsr__given(session, "out", out));
    struct arena *kept = &session->results[RESULT_NODES];
    tsr__arena_free(kept);
    tsr__arena_init(kept, session);
    TRY(list_any(kept, model, config, &found));
    tsr_plan_nodes *nodes = tsr__result_take(session, RESULT_NODES, sizeof *nodes);
    if (!nodes)
        return TSR_NOMEM;
    nodes->at = found.at;
    nodes->n = found.n;
    *out = nodes;
    return TSR_OK;
}

void tsr_plan_nodes_free(tsr_plan_nodes *nodes)
{
    tsr__result_free(nodes);
}

size_t tsr_plan_nodes_count(const tsr_plan_nodes *nodes)
{
    return nodes->n;
}

tsr_status tsr_plan_nodes_at(const tsr_plan_nodes *nodes, size_t i, tsr_plan_node *out)
{
    return tsr__element_read(nodes->head.session, SIZED_LIST(nodes->at, nodes->n, n_reductions), i,
                             out);
}
