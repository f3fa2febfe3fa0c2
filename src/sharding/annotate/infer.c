// SPDX-License-Identifier: Apache-2.0
// infer.c - completes annotations: writes the layouts that the flow computes as specs of every
// input and output that has none. Explicit specs do not change, so inferring twice has no effect.
// The model is checked first, without remarks, because the flow needs valid specs.
//
// Only annotations change. The flow sees a copy in which function calls are inlined. The layouts in
// which the inlined nodes read the inputs of a call and give its outputs become specs of the call.
//
//     Example: Y = MatMul(X, W), Z = Relu(Y), and only X has a spec, {2,1:0,1}. This writes
//     W {1,1:0,1}, Y {2,1:0,1} at both nodes, and Z {2,1:0,1}.
#include "sharding/flow/flow.h"

// What the inlined nodes of a function call say about a value of the call.
struct call_value {
    tsr_value *value;  // of the given model
    tsr_value *inside; // the same in the copy; NULL: no node uses it
    struct tile_layout *layout;
    bool differ; // the nodes need different layouts
};
struct call {
    tsr_node *node; // of the given model
    struct call_value *in, *out;
};
// Layouts are computed in a copy of the model, in which calls of functions are inlined, and written
// into the given model.
struct writing {
    struct arena *arena;
    tsr_config *config;       // of the given model
    const tsr_config *inside; // the same of the copy
    const struct shapes *shapes;
    const struct flow *formal; // by the published formalism; NULL: by the rules of operators
    size_t n_ids;              // nodes of the copy before inlining
    tsr_node **given;          // by node id of the copy: the same node of the given model, or NULL
    struct call *calls;        // by node id of the copy; node NULL: no call
    struct call_origins origins;
    tsr_status status;
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
// factors do not multiply to a known size. If a factor has fewer elements than shards, readers
// would see fewer shards than the node has. Example 1: the dimension of a bias has 3 elements and
// two factors, the number of groups (3) and o, so o is 1. If o is only a symbol in the rule, a
// layout may still shard it in 3. Example 2: the state of a Scan has one row outside of the body.
// If the body declares no size, a spec inside may assume more rows.
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

// Returns the layout of an input for its spec. By the formalism it is that of its producer, even if
// the node needs fewer copies. Returns NULL if no layout can be written.
static const struct tile_layout *input_layout(const struct writing *writing,
                                              const struct node_flow *nf, size_t i)
{
    const tsr_value *value = tsr_node_input(nf->node, i);
    const struct tile_layout *layout = nf->inputs[i];
    if (writing->formal && tsr__inherits_spec(writing->formal, value))
        layout = writing->formal->values[tsr__value_id(value)];
    else if (!readings_agree(nf, value, layout))
        return NULL;
    return can_be_written(writing, value, layout) ? layout : NULL;
}

// Writes the missing specs of a node of the given model; nf belongs to the same node of the copy.
// The spec of an output is the layout that its readers get.
static tsr_status write_node(const struct writing *writing, tsr_node *node,
                             const struct node_flow *nf)
{
    tsr_config *config = writing->config;
    if (tsr__node_weight(node))
        return TSR_OK; // stored as its readers need it, like an initializer
    // If the node cannot follow its specs, further specs would contradict them, except outputs that
    // its specs imply. If it has no rule, further specs could complete the set, and the node would
    // be sharded by them.
    bool unlike = (nf->ignores_specs || nf->replicated) && has_any_spec(node, config);
    for (size_t i = 0; i < tsr_node_input_count(node) && !unlike; i++) {
        tsr_value *value = tsr_node_input(node, i);
        // All uses of the value get the same spec.
        if (!value || tsr__earlier_reading(node, i) >= 0 || tsr__has_spec(node, config, value))
            continue;
        const struct tile_layout *layout = input_layout(writing, nf, i);
        if (layout)
            TRY(tsr__spec_write(node, config, value, layout));
    }
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        tsr_value *value = tsr_node_output(node, i);
        if (!value || tsr__has_spec(node, config, value) || (unlike && !nf->implied))
            continue;
        const struct tile_layout *layout = tsr__flow_result(nf, i);
        if (!can_be_written(writing, tsr_node_output(nf->node, i), layout))
            continue;
        TRY(tsr__spec_write(node, config, value, layout));
    }
    return TSR_OK;
}

// ---- calls --------------------------------------------------------------------------------------

// Returns the call's value of that name, or NULL. Names outside of a function stay when its calls
// are inlined.
static struct call_value *value_of_call(struct call_value *values, size_t n, const tsr_value *value)
{
    for (size_t i = 0; i < n; i++)
        if (values[i].value && str_eq(tsr__value_str(values[i].value), tsr__value_str(value)))
            return &values[i];
    return NULL;
}

static void add_layout(struct call_value *of, tsr_value *inside, struct tile_layout *layout,
                       bool usable)
{
    if (!of)
        return;
    of->differ = of->differ || !usable || (of->layout && !tsr__layout_equal(of->layout, layout));
    of->inside = inside;
    of->layout = layout;
}

// Adds what a node of an inlined function says about the values of the call.
static void add_inlined(struct call *call, const struct node_flow *nf, const tsr_config *config)
{
    const tsr_node *node = nf->node;
    bool unlike = (nf->ignores_specs || nf->replicated) && has_any_spec(node, config);
    size_t n_in = tsr_node_input_count(call->node), n_out = tsr_node_output_count(call->node);
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        tsr_value *value = tsr_node_input(node, i);
        if (value)
            add_layout(value_of_call(call->in, n_in, value), value, nf->inputs[i], !unlike);
    }
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        tsr_value *value = tsr_node_output(node, i);
        if (value)
            add_layout(value_of_call(call->out, n_out, value), value, tsr__flow_result(nf, i),
                       !unlike || nf->implied);
    }
}

static tsr_status write_values(const struct writing *writing, tsr_node *node,
                               const struct call_value *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (values[i].layout && !values[i].differ &&
            !tsr__has_spec(node, writing->config, values[i].value) &&
            can_be_written(writing, values[i].inside, values[i].layout))
            TRY(tsr__spec_write(node, writing->config, values[i].value, values[i].layout));
    return TSR_OK;
}

static tsr_status write_calls(const struct writing *writing)
{
    for (size_t id = 0; id < writing->n_ids; id++) {
        const struct call *call = &writing->calls[id];
        if (!call->node)
            continue;
        TRY(write_values(writing, call->node, call->in, tsr_node_input_count(call->node)));
        TRY(write_values(writing, call->node, call->out, tsr_node_output_count(call->node)));
    }
    return TSR_OK;
}

// ---- the copy -----------------------------------------------------------------------------------

// Visitor of the flow of the copy: writes the specs of a node, or collects those of a call.
static void visit(void *data, const struct node_flow *nf)
{
    struct writing *writing = data;
    size_t id = tsr__node_id(nf->node);
    uint32_t origin = id < writing->origins.at.n ? writing->origins.at.at[id] : 0;
    if (origin)
        add_inlined(&writing->calls[origin - 1], nf, writing->inside);
    else if (id < writing->n_ids && writing->given[id] && writing->status == TSR_OK)
        writing->status = write_node(writing, writing->given[id], nf);
}

// Prepares the collection of layouts for a call.
static void note_call(struct writing *writing, struct call *call, tsr_node *node)
{
    size_t n_in = tsr_node_input_count(node), n_out = tsr_node_output_count(node);
    call->in = ARENA_ARRAY(writing->arena, struct call_value, n_in + 1);
    call->out = ARENA_ARRAY(writing->arena, struct call_value, n_out + 1);
    if (!call->in || !call->out)
        return;
    call->node = node;
    for (size_t i = 0; i < n_in; i++) // a value that the call reads twice is listed once
        if (tsr__earlier_reading(node, i) < 0)
            call->in[i].value = tsr_node_input(node, i);
    for (size_t i = 0; i < n_out; i++)
        call->out[i].value = tsr_node_output(node, i);
}

// Finds for each node of the copy the same node of the given model. Both have the same order.
static tsr_status match_nodes(struct writing *writing, tsr_model *model, const tsr_model *copy)
{
    writing->n_ids = tsr__model_node_ids(copy);
    writing->given = ARENA_ARRAY(writing->arena, tsr_node *, writing->n_ids + 1);
    writing->calls = ARENA_ARRAY(writing->arena, struct call, writing->n_ids + 1);
    if (!writing->given || !writing->calls)
        return TSR_NOMEM;
    tsr_node *node = tsr_model_next_node(model, NULL);
    for (tsr_node *twin = tsr_model_next_node(copy, NULL); twin && node;
         twin = tsr_model_next_node(copy, twin), node = tsr_model_next_node(model, node)) {
        writing->given[tsr__node_id(twin)] = node;
        if (!tsr__in_function(copy, twin) && tsr__is_inlinable(twin))
            note_call(writing, &writing->calls[tsr__node_id(twin)], node);
    }
    return arena_status(writing->arena);
}

typedef struct flow *make_flow(struct arena *arena, tsr_model *model, const tsr_config *config);

// Computes the layouts in the copy and writes them.
static tsr_status write_flow(struct writing *writing, tsr_model *copy, make_flow *make)
{
    size_t errors = tsr__diag_errors(writing->arena->session);
    const char *name = tsr_config_name(writing->config);
    TRY(tsr__model_sort(copy));
    TRY(make == tsr__flow_formal ? tsr__check_formalism(copy, name) : tsr__check(copy, name));
    if (tsr__diag_errors(writing->arena->session) > errors)
        return TSR_INVALID;
    TRY(tsr__inline_calls_from(copy, &writing->origins));
    writing->inside = tsr_model_find_config(copy, name);
    const struct flow *flow = make(writing->arena, copy, writing->inside);
    if (!flow)
        return writing->arena->failed ? TSR_NOMEM : TSR_INVALID;
    writing->shapes = flow->shapes;
    writing->formal = make == tsr__flow_formal ? flow : NULL;
    tsr__flow_visit(flow, visit, writing);
    TRY(writing->status);
    return write_calls(writing);
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

// Infers missing specs.
static tsr_status infer(tsr_model *model, const char *config, make_flow *make)
{
    tsr_config *c = tsr__config_choose(model, config);
    if (!c)
        return TSR_INVALID;
    struct arena arena = {.session = tsr_model_session(model)};
    struct writing writing = {.arena = &arena, .config = c, .origins.arena = &arena};
    tsr_model *copy = NULL;
    tsr_status status = tsr_model_clone(model, &copy);
    if (status == TSR_OK)
        status = match_nodes(&writing, model, copy);
    if (status == TSR_OK)
        status = write_flow(&writing, copy, make);
    tsr__arena_free(&arena);
    tsr_model_free(copy);
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
        return infer(model, given.config, tsr__flow_formal);
    return infer(model, given.config, given.propagate ? tsr__flow_propagated : tsr__flow_new);
}
