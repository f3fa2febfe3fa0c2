// SPDX-License-Identifier: Apache-2.0
// infer.c - completes annotations: writes the layouts that the flow computes as specs of every
// input and output that has none. Explicit specs do not change, so inferring twice has no effect.
// The model is checked first, without remarks, because the flow needs valid specs.
//
//     Example: Y = MatMul(X, W), Z = Relu(Y), and only X has a spec, {2,1:0,1}. This writes
//     W {1,1:0,1}, Y {2,1:0,1} at both nodes, and Z {2,1:0,1}.
#include "sharding/flow/flow.h"

struct writing {
    struct arena *arena;
    tsr_config *config;
    const struct shapes *shapes;
};

// True if the node needs the value in the same layout at all inputs. If the layouts differ, no spec
// is written, because a node has only one spec for a value.
static bool readings_agree(const struct node_flow *nf, const tsr_value *value,
                           const struct tile_layout *layout)
{
    struct slots slots = tsr__slots_of(nf->node, value);
    bool is_output;
    size_t i;
    while (tsr__slots_next(&slots, &is_output, &i))
        if (!is_output && !tsr__layout_equal(nf->inputs[i], layout))
            return false;
    return true;
}

// True if the layout can be written as a spec and read back. The checker would reject a spec whose
// factors do not multiply to a known size. If a factor has fewer elements than shards, readers would
// see fewer shards than the node has. Example 1: the dimension of a bias has 3 elements and two
// factors, the number of groups (3) and o, so o is 1. If o is only a symbol in the rule, a layout
// may still shard it in 3. Example 2: the state of a Scan has one row outside of the body. If the
// body declares no size, a spec inside may assume more rows.
static bool can_be_written(const struct writing *writing, const tsr_value *value,
                           const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(writing->shapes, value);
    int64_t sizes[TILE_MAX_FACTORS];
    if (shape.rank != layout->rank)
        return true;
    // If a device has several shards that can be merged, readers would see fewer shards than the
    // node needs.
    const struct tile_layout *read = tsr__layout_canonical(writing->arena, layout, &shape);
    if (read && !tsr__layout_equal(read, layout))
        return false;
    for (int axis = 0; axis < layout->rank; axis++) {
        const struct tile_dim *dim = &layout->dims[axis];
        int64_t size = shape.dims[axis].value;
        if (dim->n > 0 && size >= 0 && !tsr__dim_factor_sizes(dim, size, sizes))
            return false;
    }
    return true;
}

// True if the node has a spec in this configuration. A pipeline stage alone is not a spec.
static bool has_any_spec(const tsr_node *node, const tsr_config *config)
{
    const tsr_node_config *nc = tsr_node_find_config(node, config);
    return nc && tsr_node_config_spec_count(nc) > 0;
}

static tsr_status write_nodes(const struct writing *writing, tsr_graph *graph,
                              const struct node_flow *nodes, size_t count);

// Writes specs into the bodies of a node. Bodies that run unchanged have no flow, and nothing is
// written into them.
static tsr_status write_bodies(const struct writing *writing, const struct node_flow *nf)
{
    if (!nf->bodies)
        return TSR_OK;
    for (int k = 0; k < nf->control->n_bodies; k++) {
        const struct body_flow *flow = &nf->bodies[k];
        TRY(write_nodes(writing, flow->graph, flow->nodes, flow->n_nodes));
    }
    return TSR_OK;
}

// Writes the missing specs of a node. The spec of an output is the layout that its readers get.
static tsr_status write_node(const struct writing *writing, tsr_node *node,
                             const struct node_flow *nf)
{
    tsr_config *config = writing->config;
    if (tsr__node_weight(node))
        return TSR_OK; // stored as its readers need it, like an initializer
    TRY(write_bodies(writing, nf));
    // If the node cannot follow its specs, further specs would contradict them, except outputs that
    // its specs imply. If it has no rule, further specs could complete the set, and the node would
    // be sharded by them.
    bool unlike = (nf->ignores_specs || nf->replicated) && has_any_spec(node, config);
    for (size_t i = 0; i < tsr_node_input_count(node) && !unlike; i++) {
        tsr_value *value = tsr_node_input(node, i);
        // All uses of the value get the same spec.
        if (!value || tsr__earlier_reading(node, i) >= 0 || tsr__has_spec(node, config, value) ||
            !readings_agree(nf, value, nf->inputs[i]) ||
            !can_be_written(writing, value, nf->inputs[i]))
            continue;
        TRY(tsr__spec_write(node, config, value, nf->inputs[i]));
    }
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        tsr_value *value = tsr_node_output(node, i);
        if (!value || tsr__has_spec(node, config, value) || (unlike && !nf->implied))
            continue;
        const struct tile_layout *layout = tsr__flow_result(nf, i);
        if (!can_be_written(writing, value, layout))
            continue;
        TRY(tsr__spec_write(node, config, value, layout));
    }
    return TSR_OK;
}

// Writes the specs of all nodes. nodes[i] is the i-th node of the graph.
static tsr_status write_nodes(const struct writing *writing, tsr_graph *graph,
                              const struct node_flow *nodes, size_t count)
{
    tsr_node *node = tsr_graph_first(graph);
    for (size_t i = 0; i < count; i++) {
        if (!node)
            return TSR_OK;
        TRY(write_node(writing, node, &nodes[i]));
        node = tsr_node_next(node);
    }
    return TSR_OK;
}

typedef struct flow *make_flow(struct arena *arena, tsr_model *model, const tsr_config *config);

static tsr_status write_flow(struct arena *arena, tsr_model *model, tsr_config *config,
                             make_flow *make)
{
    const struct flow *flow = make(arena, model, config);
    if (!flow && arena->failed)
        return TSR_NOMEM;
    if (!flow)
        return TSR_INVALID;
    struct writing writing = {arena, config, flow->shapes};
    return write_nodes(&writing, tsr_model_graph(model), flow->nodes, flow->n_nodes);
}

tsr_config *tsr__config_choose(tsr_model *model, const char *name)
{
    struct place at = PLACE_NONE;
    size_t n = tsr_model_config_count(model);
    tsr_config *config = NULL;
    if (name)
        config = tsr_model_find_config(model, name);
    else if (n == 1)
        config = tsr_model_config(model, 0);
    if (config)
        return config;
    if (name) {
        at.configuration = str_of(name);
        tsr__diag(tsr_model_session(model), DIAG_config_unknown, &at,
                  "name one that the model declares",
                  "the model declares no device configuration '%s'", name);
    } else {
        const char *hint = "declare one with --config, and shard some value";
        if (n)
            hint = "name one of them";
        tsr__diag(tsr_model_session(model), DIAG_config_choice, &at, hint,
                  "the model declares %zu device configurations", n);
    }
    return NULL;
}

// Infers missing specs. Inlines function calls in the model itself, because specs of a node in a
// function would apply to all calls of the function.
static tsr_status infer(tsr_model *model, const char *config, make_flow *make)
{
    tsr_session *session = tsr_model_session(model);
    tsr_config *c = tsr__config_choose(model, config);
    if (!c)
        return TSR_INVALID;
    size_t errors = tsr__diag_errors(session);
    TRY(tsr__model_sort(model));
    TRY(make == tsr__flow_formal ? tsr__check_formalism(model, tsr_config_name(c))
                                 : tsr__check(model, tsr_config_name(c)));
    if (tsr__diag_errors(session) > errors)
        return TSR_INVALID;
    TRY(tsr__inline_calls(model));
    struct arena arena = {.session = session};
    tsr_status status = write_flow(&arena, model, c, make);
    tsr__arena_free(&arena);
    return status;
}

tsr_status tsr_infer(tsr_model *model, const tsr_infer_options *options)
{
    tsr_infer_options given;
    TRY(OPTIONS_READ(tsr_model_session(model), &given, options, formalism));
    if (given.formalism && given.propagate)
        return tsr__fail(tsr_model_session(model), TSR_INVALID, DIAG_argument_invalid, NULL,
                         "set one of them", "--propagate and --formalism exclude each other");
    if (given.formalism)
        return tsr_infer_formalism(model, given.config);
    return tsr_infer_opts(model, given.config, given.propagate);
}

tsr_status tsr_infer_config(tsr_model *model, const char *config)
{
    return infer(model, config, tsr__flow_new);
}

tsr_status tsr_infer_opts(tsr_model *model, const char *config, bool propagate)
{
    if (propagate)
        return infer(model, config, tsr__flow_propagated);
    return infer(model, config, tsr__flow_new);
}

tsr_status tsr_infer_formalism(tsr_model *model, const char *config)
{
    return infer(model, config, tsr__flow_formal);
}
