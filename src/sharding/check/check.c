// SPDX-License-Identifier: Apache-2.0
// check.c - tsr_check: reports every error in a model's annotations in one pass, each error once.
//
// It checks the configurations, then every node of every graph with its entries and specs, then the
// order of stages. examine.c checks each spec by itself. agree.c checks whether the specs of a node
// are consistent under the rule of its operator.
//
// Marks keep the check linear in the number of inputs, specs and entries. A mark is the number of
// the current node (or entry). of_node[value] == node_mark means "the value is an input or output
// of this node", and nothing has to be cleared between nodes.
//
//     Example: node 7 is the third annotated node, so node_mark is 3, and of_node of its inputs X,
//     W and its output Y becomes 3.
//     It has a spec of Z: of_node[Z] is 0 or an older mark, so the node does not use Z
//     (spec-value-unknown or shard-value).
//     It has two specs of X in one entry: at the second, of_spec[X] equals entry_mark (spec-twice).
#include "sharding/check/agree.h"
#include "sharding/layouts/examine.h"
#include "sharding/flow/flow.h"
#include "sharding/layouts/node_placement.h"

#define CANDIDATES_MAX  256 // limit of names that are searched for a "did you mean"
#define STAGE_WALKS_MAX 256 // limit of configurations whose stages are checked along the graph
#define SCRATCH_MAX     1048576
#define FLOW_NODES_MAX  20000 // limit of nodes times configurations whose flow is checked

// What the check of the nodes finds out about a declared configuration.
struct config_state {
    const tsr_config *config;
    uint32_t seen_at; // mark of the last node with an entry for it
    // of the main graph, with function calls inlined:
    int64_t last_stage;     // stage of the last node in file order; -1: none yet
    bool descends;          // a stage is smaller than the one before it
    const tsr_node *beyond; // first node whose stage is not a device index; NULL: none
};

struct check {
    tsr_model *model;
    tsr_model *inlined; // copy with function calls inlined; NULL: the model has no calls
    tsr_session *session;
    const char *only;     // the requested configuration; NULL: all
    struct arena arena;   // freed at the end of the check
    struct arena scratch; // freed repeatedly during the check
    struct map configs;   // name -> struct config_state, for declared configurations
    struct config_state *states;
    size_t n_states;
    uint32_t *of_node; // by value id: mark of the last node that has it as input or output
    uint32_t *of_spec; // by value id: mark of the last entry with a spec for it
    size_t n_ids;
    uint32_t node_mark, entry_mark;
    size_t errors; // errors in the session before this check
    bool annotated;
    bool calls;   // the model calls functions: operators are checked after inlining
    bool formal;  // also check inputs without specs, as the formalism requires
    bool remarks; // also report valid annotations that have no effect here
};

// Formats a hint only if the diagnostic will be kept.
#define HINT(c, ...)                                                                               \
    (tsr_finding_count((c)->session) < TSR_MAX_FINDINGS                                            \
         ? tsr__arena_printf(&(c)->scratch, __VA_ARGS__).p                                         \
         : NULL)

// Returns the place of a diagnostic about the model or, if `config` is not NULL, about a
// configuration.
static struct place place_model(const struct check *check, const tsr_config *config)
{
    struct place at = PLACE(.file = str_of(tsr_model_path(check->model)));
    if (config)
        at.configuration = str_of(tsr_config_name(config));
    return at;
}

// ---- configurations -----------------------------------------------------------------------------

// Returns a hint for the undeclared configuration `name`: the most similar declared name. NULL if
// the diagnostic would not be kept.
static const char *nearest_config(struct check *check, struct str name)
{
    struct str names[CANDIDATES_MAX] = {{0}};
    size_t n = size_min(check->n_states, CANDIDATES_MAX);
    for (size_t i = 0; i < n; i++)
        names[i] = str_of(tsr_config_name(check->states[i].config));
    struct str near = tsr__nearest(name, names, n);
    if (near.n)
        return HINT(check, "did you mean '" STR_FMT "'?", STR_ARG(near));
    if (n == 0)
        return "the model declares no configuration: add one, or remove the annotation";
    if (n == 1)
        return HINT(check, "the model declares '" STR_FMT "' only", STR_ARG(names[0]));
    return "name one that the model declares, or remove the annotation";
}

// Checks the number of devices of a configuration, and that the number of device names is the same.
static void check_config(struct check *check, const tsr_config *config)
{
    struct place at = place_model(check, config);
    int64_t devices = tsr_config_devices(config);
    size_t names = tsr_config_device_name_count(config);
    if (devices < 1) {
        const char *hint = "give a number of 1 or more";
        if (names)
            hint = HINT(check, "did you mean %zu, one for each name?", names);
        tsr__diag(check->session, DIAG_config_device_count, &at, hint,
                  "configuration '%s' has %lld devices", tsr_config_name(config),
                  (long long)devices);
    } else if (names && (uint64_t)devices != names)
        tsr__diag(check->session, DIAG_config_device_names, &at,
                  HINT(check, "give %lld name%s, or none", (long long)devices, plural(devices)),
                  "configuration '%s' has %lld device%s and %zu name%s", tsr_config_name(config),
                  (long long)devices, plural(devices), names, plural((int64_t)names));
}

static bool chosen(const struct check *check, const char *name)
{
    return !check->only || strcmp(check->only, name) == 0;
}

// Checks the declared configurations and indexes them by name. If a name is repeated, the index has
// the first one. Returns false if out of memory.
static bool check_configs(struct check *check)
{
    size_t n = tsr_model_config_count(check->model);
    check->states = ARENA_ARRAY(&check->arena, struct config_state, n + 1);
    tsr__map_init(&check->configs, &check->arena, n);
    if (!check->states)
        return false;
    for (size_t i = 0; i < n; i++) {
        const tsr_config *config = tsr_model_config(check->model, i);
        const char *name = tsr_config_name(config);
        struct config_state *state = &check->states[check->n_states];
        *state = (struct config_state){.config = config, .last_stage = -1};
        void **slot = tsr__map_at(&check->configs, str_of(name));
        if (!slot)
            return false;
        struct place at = place_model(check, config);
        if (!*slot) {
            *slot = state;
            check->n_states++;
        } else if (chosen(check, name)) {
            tsr__diag(check->session, DIAG_config_twice, &at, "rename one of them, or remove it",
                      "the model declares configuration '%s' more than once", name);
        }
        if (!name[0] && !check->only)
            tsr__diag(check->session, DIAG_config_name_empty, &at, "give it a name",
                      "configuration %zu of the model has no name", i);
        if (chosen(check, name))
            check_config(check, config);
    }
    check->annotated = n > 0;
    return !check->arena.failed;
}

// ---- specs --------------------------------------------------------------------------------------

// Returns a hint that names the input or output of the node whose name is most similar to the one
// in the spec.
static const char *nearest_value(struct check *check, const tsr_node *node, struct str name)
{
    struct str names[CANDIDATES_MAX] = {{0}};
    size_t count = 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && count < CANDIDATES_MAX)
            names[count++] = tsr__value_str(tsr_node_input(node, i));
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && count < CANDIDATES_MAX)
            names[count++] = tsr__value_str(tsr_node_output(node, i));
    struct str near = tsr__nearest(name, names, count);
    if (near.n)
        return HINT(check, "did you mean '" STR_FMT "'?", STR_ARG(near));
    return "name an input or output of the node, or remove the sharding";
}

// Reports an error and returns false if the spec's value is not an input or output of this node.
// Also reports a second spec of a value. A value without a graph (`home` is NULL) is a placeholder:
// the model has no tensor of that name.
static bool check_spec_value(struct check *check, const tsr_node *node, const tsr_config *config,
                             const tsr_value *value)
{
    struct place at = tsr__place_spec(node, config, NULL);
    if (!value || !tsr__value_str(value).n) {
        tsr__diag(check->session, DIAG_spec_no_value, &at, "name an input or output of the node",
                  "a sharding of the node names no tensor");
        return false;
    }
    uint32_t id = tsr__value_id(value);
    at.value = tsr__value_str(value);
    tsr_graph *home = tsr_value_graph(value);
    bool here = id < check->n_ids && (!home || tsr_graph_model(home) == check->model);
    if (!here || check->of_node[id] != check->node_mark) {
        if (!home)
            tsr__diag(check->session, DIAG_spec_value_unknown, &at,
                      nearest_value(check, node, at.value),
                      "the sharding is for '" STR_FMT "', but the model has no tensor of this name",
                      STR_ARG(at.value));
        else
            tsr__diag(check->session, DIAG_shard_value, &at, nearest_value(check, node, at.value),
                      "'" STR_FMT "' is not an input or output of the node", STR_ARG(at.value));
        return false;
    }
    if (check->of_spec[id] == check->entry_mark)
        tsr__diag(check->session, DIAG_spec_twice, &at, "keep one of them",
                  "the node has more than one sharding of '" STR_FMT "'", STR_ARG(at.value));
    check->of_spec[id] = check->entry_mark;
    return true;
}

// True if a factor has more shards than the dimension has elements, or if the stated sizes do not
// multiply to the size of the dimension. Example: "4/2*16" means 64 elements, but the dimension has
// 32.
static bool dim_disagrees(const tsr_spec *spec, size_t dim, int64_t elements)
{
    int64_t product = 1;
    for (size_t k = 0; k < tsr_spec_dim_factor_count(spec, dim); k++) {
        tsr_dim stated;
        if (tsr_spec_dim_factor(spec, dim, k, &stated) > elements)
            return true;
        if (stated.value < 0)
            return false;
        if (stated.value > 0 && product > elements / stated.value)
            return true;
        product *= stated.value;
    }
    return product != elements;
}

// True if the spec names an axis that the shape does not have, or does not fit the size of an axis.
static bool disagrees(const tsr_spec *spec, const struct shape *shape)
{
    for (size_t i = 0; i < tsr_spec_dim_count(spec); i++) {
        int64_t axis = front_axis(tsr_spec_dim_axis(spec, i), shape->rank);
        if (axis == INT64_MIN)
            return true;
        if (shape->dims[axis].value >= 0 && dim_disagrees(spec, i, shape->dims[axis].value))
            return true;
    }
    return false;
}

// Returns the declared shape, or else the inferred one. If the spec does not fit the declared
// shape, the declaration may be wrong: an output may be declared as [1, 3] although the inputs give
// [10, 3]. Then the shape inferred from the inputs is used, as in the planner and in partition.
static struct shape shape_of(struct check *check, const tsr_value *value, const tsr_spec *spec)
{
    struct shape shape = tsr__declared_shape(&check->scratch, value);
    if (shape.rank >= 0 && !disagrees(spec, &shape))
        return shape;
    const struct shapes *shapes = tsr__model_shapes(check->model);
    return shapes ? tsr__shapes_element(shapes, value) : shape;
}

// Checks a spec. A spec of an unknown value is still examined, but without a shape.
static void check_spec(struct check *check, const tsr_node *node, const tsr_config *config,
                       int64_t devices, const tsr_spec *spec)
{
    const tsr_value *value = tsr_spec_value(spec);
    struct spec_scope sc = {
        .session = check->session,
        .arena = &check->scratch,
        .node = node,
        .config = "",
        .devices = devices,
        .remarks = true,
    };
    if (config)
        sc.config = tsr_config_name(config);
    struct shape shape = check_spec_value(check, node, config, value) ? shape_of(check, value, spec)
                                                                      : (struct shape){.rank = -1};
    tsr__spec_examine(&sc, spec, &shape);
}

// ---- entries ------------------------------------------------------------------------------------

// Returns the state of the declared configuration that has the name of `config`. Reports an error
// and returns NULL if there is none. Also reports an error if `config` is another object of that
// name.
static struct config_state *check_binding(struct check *check, const tsr_node *node,
                                          const tsr_config *config)
{
    struct place at = tsr__place_spec(node, config, NULL);
    const char *unbound = NULL;
    if (!config)
        unbound = "an annotation of the node has no configuration";
    else if (!tsr_config_name(config)[0])
        unbound = "an annotation of the node has a configuration with an empty name";
    if (unbound) {
        tsr__diag(check->session, DIAG_annotation_no_config, &at,
                  "name a configuration of the model, or remove the annotation", "%s", unbound);
        return NULL;
    }
    struct config_state *state = tsr__map_get(&check->configs, at.configuration);
    if (!state)
        tsr__diag(check->session, DIAG_config_unknown, &at, nearest_config(check, at.configuration),
                  "the model declares no configuration '%s'", tsr_config_name(config));
    else if (state->config != config && !tsr__config_is_declared(config))
        tsr__diag(check->session, DIAG_config_foreign, &at,
                  "make the annotation for the declared configuration",
                  "the annotation refers to a configuration '%s' that is not the declared one of "
                  "that name",
                  tsr_config_name(config));
    return state;
}

// Reports a negative stage.
static void check_stage(const struct check *check, const tsr_node *node, const tsr_node_config *nc)
{
    int64_t stage;
    if (tsr_node_config_stage(nc, &stage) && stage < 0)
        tsr__diag(check->session, DIAG_stage_range,
                  PLACE_AT(tsr__place_spec(node, tsr_node_config_target(nc), NULL)),
                  "use a stage from 0 up", "the pipeline stage of the node is %lld",
                  (long long)stage);
}

// Returns the model that is checked against the rules of the operators.
static tsr_model *model_to_follow(const struct check *check)
{
    return check->inlined ? check->inlined : check->model;
}

// Checks the specs of a node against the rule of its operator. Sets scratch.failed if out of
// memory.
static void check_operator(struct check *check, const tsr_node *node, const tsr_node_config *nc)
{
    const struct shapes *shapes = tsr__model_shapes(model_to_follow(check));
    if (!shapes || !tsr__check_agreement(&check->scratch, shapes, node, nc))
        check->scratch.failed = true;
}

// Checks the annotation of a node for one configuration: stage and specs. Compares the specs with
// the rule of the operator only if they have no errors, because an invalid spec has no layout.
static void check_entry(struct check *check, const tsr_node *node, const tsr_node_config *nc)
{
    const tsr_config *config = tsr_node_config_target(nc);
    if (check->only && (!config || strcmp(tsr_config_name(config), check->only) != 0))
        return;
    struct config_state *state = check_binding(check, node, config);
    if (state && state->seen_at == check->node_mark)
        tsr__diag(check->session, DIAG_annotation_twice,
                  PLACE_AT(tsr__place_spec(node, config, NULL)), "merge them into one",
                  "the node has more than one annotation for configuration '%s'",
                  tsr_config_name(config));
    if (state)
        state->seen_at = check->node_mark;
    check_stage(check, node, nc);
    // Device numbers are checked only if the configuration is declared.
    int64_t devices = -1; // unknown
    if (state && tsr_config_devices(state->config) >= 1)
        devices = tsr_config_devices(state->config);
    size_t errors = tsr__diag_errors(check->session);
    check->entry_mark++;
    for (size_t i = 0; i < tsr_node_config_spec_count(nc); i++)
        check_spec(check, node, config, devices, tsr_node_config_spec(nc, i));
    if (state && tsr__diag_errors(check->session) == errors && tsr_node_config_spec_count(nc) &&
        !check->calls)
        check_operator(check, node, nc);
    if (check->scratch.bytes > SCRATCH_MAX) {
        tsr__arena_free(&check->scratch);
        tsr__arena_init(&check->scratch, check->session);
    }
}

// Checks the annotations of a node. Most nodes have none.
static void check_node(struct check *check, const tsr_node *node)
{
    if (tsr_node_config_count(node) == 0)
        return;
    check->annotated = true;
    check->node_mark++;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i))
            check->of_node[tsr__value_id(tsr_node_input(node, i))] = check->node_mark;
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            check->of_node[tsr__value_id(tsr_node_output(node, i))] = check->node_mark;
    for (size_t i = 0; i < tsr_node_config_count(node); i++)
        check_entry(check, node, tsr_node_config_at(node, i));
}

// ---- stages -------------------------------------------------------------------------------------

// Returns the stage of a node in a configuration, or -1.
static int64_t stage_of(const tsr_node *node, struct str config)
{
    int64_t stage;
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        const tsr_config *c = tsr_node_config_target(nc);
        if (c && str_is(config, tsr_config_name(c)) && tsr_node_config_stage(nc, &stage))
            return int64_max(stage, -1);
    }
    return -1;
}

// The latest stage that a value depends on, and the node of that stage.
struct reach {
    int64_t stage; // plus 1; 0: none
    const tsr_node *from;
};

// Reports as a note that the node, in `stage`, reads a value of a later stage. reach->stage is that
// stage plus 1.
static void report_return(struct check *check, const tsr_node *node, const tsr_config *config,
                          const tsr_value *value, int64_t stage, const struct reach *reach)
{
    struct place at = tsr__place_spec(node, config, NULL);
    at.value = tsr__value_str(value);
    tsr__diag(check->session, DIAG_stage_return, &at, NULL,
              "stage %lld reads '" STR_FMT "' of stage %lld: stages %lld to %lld do not overlap "
              "in consecutive runs",
              (long long)stage, STR_ARG(at.value), (long long)reach->stage - 1, (long long)stage,
              (long long)reach->stage - 1);
}

// Reports as an error that the node, in `stage`, reads a value of a later stage. reach->stage is
// that stage plus 1.
static void report_order(struct check *check, const tsr_node *node, const tsr_config *config,
                         const tsr_value *value, int64_t stage, const struct reach *reach)
{
    struct place at = tsr__place_spec(node, config, NULL), from = tsr__place_node(reach->from);
    at.value = tsr__value_str(value);
    tsr__diag(
        check->session, DIAG_stage_order, &at,
        HINT(check,
             "put this node into stage %lld or later, or the other into stage %lld or earlier",
             (long long)reach->stage - 1, (long long)stage),
        "stage %lld needs '" STR_FMT "', which depends on node '" STR_FMT "' (#%lld " STR_FMT
        ") of stage %lld",
        (long long)stage, STR_ARG(at.value), STR_ARG(from.node), (long long)from.node_index,
        STR_ARG(from.op), (long long)reach->stage - 1);
}

// Returns the latest stage that input i of the node depends on. Inputs are followed by the outer
// values that the subgraphs of the node read.
static const struct reach *reach_of(const struct reach *reach, const tsr_node *node,
                                    tsr_value *const *captures, size_t i)
{
    size_t n_in = tsr_node_input_count(node);
    const tsr_value *value = i < n_in ? tsr_node_input(node, i) : captures[i - n_in];
    return value ? &reach[tsr__value_id(value)] : NULL;
}

// Reports the node if it reads a value of a later stage. Returns true if this is a note. Stores in
// *latest what the outputs of the node depend on.
static bool check_order_of_stages(struct check *check, const tsr_node *node,
                                  const tsr_config *config, const struct reach *reach,
                                  struct reach *latest)
{
    tsr_value **captures;
    size_t n_in = tsr_node_input_count(node), n = n_in + tsr__node_captures(node, &captures);
    int64_t own = stage_of(node, str_of(tsr_config_name(config)));
    *latest = (struct reach){own + 1, node};
    for (size_t i = 0; i < n; i++) {
        // values that no node has produced yet have stage 0 and no producer
        const struct reach *r = reach_of(reach, node, captures, i);
        if (!r || r->stage <= latest->stage)
            continue;
        if (own < 0) {
            *latest = *r;
            continue;
        }
        const tsr_value *value = i < n_in ? tsr_node_input(node, i) : captures[i - n_in];
        if (tsr_config_device_name_count(config)) {
            report_return(check, node, config, value, own, r);
            return true;
        }
        report_order(check, node, config, value, own, r);
        return false; // one diagnostic per node
    }
    return false;
}

// Reports nodes that read a value of a later stage, directly or through nodes without a stage. This
// is an error. If the configuration has device names, it is a note, and only the first node is
// reported. Nodes of bodies run where the node with the body runs, so their stages do not count.
static void walk_stages(struct check *check, const tsr_config *config, struct reach *reach)
{
    const tsr_model *model = model_to_follow(check);
    memset(reach, 0, tsr__model_value_ids(model) * sizeof(*reach));
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node)) {
        struct reach latest;
        if (check_order_of_stages(check, node, config, reach, &latest))
            return;
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (tsr_node_output(node, i))
                reach[tsr__value_id(tsr_node_output(node, i))] = latest;
    }
}

// Records the stages of a node of the main graph in the states of its configurations.
static void record_stages(struct check *check, const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        const tsr_config *config = tsr_node_config_target(nc);
        int64_t stage;
        struct config_state *state = NULL;
        if (config && chosen(check, tsr_config_name(config)))
            state = tsr__map_get(&check->configs, str_of(tsr_config_name(config)));
        if (!state || !tsr_node_config_stage(nc, &stage) || stage < 0)
            continue;
        state->descends |= stage < state->last_stage;
        state->last_stage = stage;
        if (!state->beyond && stage >= tsr_config_devices(state->config))
            state->beyond = node;
    }
}

// If the configuration has device names, stage k runs on device k of that list. Reports the first
// node whose stage has no such device: then all stages run on the devices in order.
static void note_stage_beyond(struct check *check, const struct config_state *state)
{
    size_t names = tsr_config_device_name_count(state->config);
    if (!names || !state->beyond)
        return;
    struct place at = tsr__place_spec(state->beyond, state->config, NULL);
    tsr__diag(check->session, DIAG_stage_beyond, &at,
              "to choose the device of a stage, use the index of its name as the stage, or name it "
              "in a sharding",
              "stage %lld is beyond the %zu device name%s of configuration '%s': the stages run on "
              "the devices in ascending order, the lowest one on device 0",
              (long long)stage_of(state->beyond, at.configuration), names, plural((int64_t)names),
              tsr_config_name(state->config));
}

// Checks that no node reads a value of a later stage. If stages never decrease in file order, this
// cannot happen, and the check is skipped. Returns false if out of memory.
static bool check_stages(struct check *check)
{
    struct reach *reach = NULL;
    size_t walks = 0;
    const tsr_model *model = model_to_follow(check);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node))
        record_stages(check, node);
    for (size_t i = 0; i < check->n_states; i++) {
        note_stage_beyond(check, &check->states[i]);
        if (!check->states[i].descends)
            continue;
        if (!reach)
            reach =
                ARENA_ARRAY(&check->arena, struct reach, tsr__model_value_ids(model) + (size_t)1);
        if (!reach)
            return false;
        if (walks++ == STAGE_WALKS_MAX) {
            tsr__diag(check->session, DIAG_stage_unchecked,
                      PLACE_AT(place_model(check, check->states[i].config)),
                      "check it with --config",
                      "the order of stages was checked in %d configurations, but not in this one "
                      "and the following ones",
                      STAGE_WALKS_MAX);
            break;
        }
        walk_stages(check, check->states[i].config, reach);
    }
    return true;
}

// ---- remarks on valid annotations ---------------------------------------------------------------

// True if any node has a sharding or a stage in the configuration.
static bool has_annotations(const struct check *check, const tsr_config *config)
{
    int64_t stage;
    const tsr_model *model = model_to_follow(check);
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        const tsr_node_config *nc = tsr_node_find_config(node, config);
        if (nc && (tsr_node_config_spec_count(nc) || tsr_node_config_stage(nc, &stage)))
            return true;
    }
    return false;
}

// Checks every node with the layouts that the flow gives its inputs (tsr__check_formal). Returns
// false if out of memory.
static bool check_formally(struct arena *arena, const struct flow *flow)
{
    for (size_t i = 0; i < flow->n_nodes; i++) {
        struct arena scratch = {.session = arena->session};
        bool ok = tsr__check_formal(&scratch, flow, flow->nodes[i].node);
        tsr__arena_free(&scratch);
        if (!ok)
            return false;
    }
    return true;
}

// Propagates the shardings of one configuration through the graph as partition does. With
// `remarks`, reports nodes that run unsharded despite their annotation, reshards, and repeated
// work. With `formal`, also checks the inputs without specs. Errors of the flow itself are not
// reported.
static void report_remarks(struct check *check, const tsr_config *config)
{
    tsr_model *model = model_to_follow(check), *made = NULL;
    struct arena arena = {.session = check->session};
    struct flow_work work = {.keep_empty = check->formal};
    int report = REPORT_NO_ERRORS;
    if (check->remarks)
        report |= REPORT_UNSHARDED | REPORT_RESHARDS | REPORT_REPEATED_WORK;
    bool ok = tsr__flow_start(&work, &arena, model, config) &&
              tsr__flow_forward(&work, report, NULL) &&
              (!check->remarks || tsr__flow_expand(&arena, work.flow, &made));
    if (ok && check->formal)
        ok = check_formally(&arena, work.flow);
    tsr_model_free(made);
    check->arena.failed = check->arena.failed || (!ok && arena.failed);
    tsr__arena_free(&arena);
}

// Runs one flow for each selected configuration that has annotations, until FLOW_NODES_MAX nodes
// are visited in all. The limit is for files with thousands of configurations: the first one is
// always checked.
static void check_flows(struct check *check)
{
    tsr_model *model = model_to_follow(check);
    size_t n = tsr_graph_node_count(tsr_model_graph(model)), visited = 0;
    for (size_t i = 0; i < check->n_states; i++) {
        const tsr_config *config = check->states[i].config;
        if (model != check->model) // a copy with inlined calls
            config = tsr_model_find_config(model, tsr_config_name(config));
        if (!chosen(check, tsr_config_name(config)) ||
            tsr_config_devices(config) > SOLVE_MAX_DEVICES || !has_annotations(check, config))
            continue;
        if (visited && visited + n > FLOW_NODES_MAX) {
            tsr__diag(check->session, DIAG_flow_unchecked, PLACE_AT(place_model(check, config)),
                      "name the configuration to check with --config",
                      "it was not checked how the shardings fit together in this configuration and "
                      "those after it: too many nodes and configurations");
            return;
        }
        visited += n;
        report_remarks(check, config);
        if (check->arena.failed)
            return;
    }
}

// ---- functions ----------------------------------------------------------------------------------

// Checks the specs of a model with function calls against the rules of the operators. Does so in a
// copy with all calls inlined, because the layouts in a function depend on the call. Returns false
// if out of memory.
static bool check_calls(struct check *check)
{
    if (tsr_model_clone(check->model, &check->inlined) != TSR_OK)
        return false;
    tsr_status status = tsr__inline_calls(check->inlined);
    if (status != TSR_OK)
        return status != TSR_NOMEM; // other failures are reported as diagnostics
    for (const tsr_node *node = tsr_model_next_node(check->inlined, NULL); node;
         node = tsr_model_next_node(check->inlined, node)) {
        if (tsr__in_function(check->inlined, node) || check->arena.failed)
            break;
        for (size_t i = 0; i < tsr_node_config_count(node); i++) {
            const tsr_node_config *nc = tsr_node_config_at(node, i);
            const tsr_config *config = tsr_node_config_target(nc);
            if (config && chosen(check, tsr_config_name(config)) &&
                tsr__config_is_declared(config) && tsr_node_config_spec_count(nc))
                check_operator(check, node, nc);
        }
    }
    return !check->arena.failed && !check->scratch.failed;
}

// ---- inputs and outputs of the model ------------------------------------------------------------

static void warn_no_tensor(const struct check *check, const tsr_value *value, const char *what)
{
    struct place at = place_model(check, NULL);
    at.value = tsr__value_str(value);
    if (tsr__value_is_no_tensor(value))
        tsr__diag(check->session, DIAG_port_type, &at, TSR_NO_TENSOR_HINT,
                  "this %s is neither a tensor nor a sequence of tensors: the model cannot be run",
                  what);
}

static void check_ports(const struct check *check)
{
    const tsr_graph *graph = tsr_model_graph(check->model);
    for (size_t i = 0; graph && i < tsr_graph_input_count(graph); i++)
        warn_no_tensor(check, tsr_graph_input(graph, i), "input");
    for (size_t i = 0; graph && i < tsr_graph_output_count(graph); i++)
        warn_no_tensor(check, tsr_graph_output(graph, i), "output");
}

// ---- order of the nodes -------------------------------------------------------------------------

// Checks that every value can be computed. Warns if the nodes are not sorted. Sets *sorted. The
// flow needs sorted nodes, so it is not followed in other models. Returns false if out of memory.
static bool check_order(const struct check *check, bool *sorted)
{
    const tsr_node *node;
    const tsr_value *value = NULL;
    tsr_status status = tsr__model_check_values(check->model);
    *sorted = status == TSR_OK;
    if (status != TSR_OK)
        return status != TSR_NOMEM;
    if (tsr__model_unsorted(check->model, &node, &value) != TSR_OK)
        return false;
    *sorted = !node;
    if (*sorted || !check->remarks)
        return true;
    struct place at = tsr__place_node(node);
    at.value = tsr__value_str(value);
    tsr__diag(check->session, DIAG_nodes_unsorted, &at,
              "sort the nodes; the files that plan and partition write are sorted",
              "this node reads a value that a later node computes, which ONNX does not allow; "
              "how the shardings fit together was not checked");
    return true;
}

// ---- stored weights -----------------------------------------------------------------------------

// Checks the layouts in which files have weights, of each selected configuration. Returns false if
// out of memory.
static bool check_stored(struct check *check)
{
    struct tile_layout **stored;
    for (size_t i = 0; i < check->n_states; i++) {
        const tsr_config *config = check->states[i].config;
        if (chosen(check, tsr_config_name(config)) &&
            tsr__stored_layouts(&check->scratch, check->model, config, false, &stored) == TSR_NOMEM)
            return false;
    }
    return true;
}

// ---- the complete check -------------------------------------------------------------------------

// Checks configurations, then specs and nodes, then function calls, stages, and the flow. Calls and
// the flow are checked only if there was no error: both need layouts, and invalid specs have none.
// Returns false if out of memory.
static bool check_model(struct check *check)
{
    check->n_ids = tsr__model_value_ids(check->model);
    check->of_node = ARENA_ARRAY(&check->arena, uint32_t, check->n_ids + 1);
    check->of_spec = ARENA_ARRAY(&check->arena, uint32_t, check->n_ids + 1);
    check->calls = tsr__has_calls(check->model);
    if (!check->of_node || !check->of_spec || !check_configs(check))
        return false;
    if (tsr__check_recursion(check->model) == TSR_NOMEM)
        return false;
    for (const tsr_node *node = tsr_model_next_node(check->model, NULL); node;
         node = tsr_model_next_node(check->model, node))
        check_node(check, node);
    if (check->annotated && tsr_model_ir_version(check->model) < 11)
        tsr__diag(check->session, DIAG_annotation_ir_version, PLACE_AT(place_model(check, NULL)),
                  "raise ir_version to 11", "the model has annotations and IR version %lld",
                  (long long)tsr_model_ir_version(check->model));
    if (check->remarks)
        check_ports(check);
    bool sorted = true;
    if (!check_order(check, &sorted) || check->arena.failed || check->scratch.failed)
        return false;
    if (check->calls && tsr__diag_errors(check->session) == check->errors && !check_calls(check))
        return false;
    if (!check_stored(check) || !check_stages(check) || check->arena.failed)
        return false;
    if (sorted && (check->remarks || check->formal) &&
        tsr__diag_errors(check->session) == check->errors)
        check_flows(check);
    return !check->arena.failed;
}

// Runs the check. Returns TSR_OK even if it reports errors. Returns another status only if the
// requested configuration does not exist or if out of memory.
static tsr_status check_as(tsr_model *model, struct check check)
{
    const char *config = check.only;
    check.model = model;
    check.session = tsr_model_session(model);
    check.errors = tsr__diag_errors(check.session);
    bool ran_out_before = check.session->out_of_memory;
    tsr__arena_init(&check.arena, check.session);
    tsr__arena_init(&check.scratch, check.session);
    tsr_status status = TSR_OK;
    if (config && !tsr_model_find_config(model, config)) {
        bool known = check_configs(&check);
        struct place at = place_model(&check, NULL);
        at.configuration = str_of(config);
        const char *hint = known ? nearest_config(&check, at.configuration) : NULL;
        tsr__diag(check.session, DIAG_config_unknown, &at, hint,
                  "the model declares no configuration '%s'", config);
        status = TSR_INVALID;
    } else if (!check_model(&check)) {
        status = TSR_NOMEM;
    }
    if (check.session->out_of_memory && !ran_out_before)
        status = TSR_NOMEM; // the check is incomplete
    tsr__arena_free(&check.scratch);
    tsr__arena_free(&check.arena);
    tsr_model_free(check.inlined);
    return status;
}

tsr_status tsr_check(tsr_model *model, const tsr_check_options *options)
{
    tsr_check_options given;
    TRY(OPTIONS_READ(tsr_model_session(model), &given, options, formalism));
    return check_as(
        model, (struct check){.only = given.config, .remarks = true, .formal = given.formalism});
}

tsr_status tsr__check(tsr_model *model, const char *config)
{
    return check_as(model, (struct check){.only = config});
}

tsr_status tsr__check_formalism(tsr_model *model, const char *config)
{
    return check_as(model, (struct check){.only = config, .formal = true});
}
