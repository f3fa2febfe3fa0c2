// SPDX-License-Identifier: Apache-2.0
// shard.c - convenience functions: shard a value, set a stage. They report every invalid argument
// and change nothing if there is one.
//
//     Example: tsr_node_shard(matmul, W, tp, axis 1, count 2, devices {0,1}, stage -1), W of [8,6]:
//     the node gets an annotation for tp with a spec of W: devices {0,1}, axis 1 as one factor of
//     size 6 with 2 shards. A second call with axis 0: the spec has two axes and 4 shards, and
//     devices {0,1} as before.
//
// Whether the shards fit the devices and the operator is checked later (sharding/), because more
// calls may follow.
#include "ir/internal.h"

struct request {
    tsr_node *node;
    tsr_value *value;
    tsr_config *config;
    int64_t axis, count;
    const int64_t *devices;
    size_t n_devices;
    int64_t stage; // -1: not given
};

// Returns the place of all diagnostics of the call.
static struct place place_request(const struct request *request)
{
    return tsr__place_spec(request->node, request->config, request->value);
}

static tsr_session *session_of(const struct request *request)
{
    return request->node->graph->model->session;
}

// Checks the configuration of the request. The configuration must be declared: a placeholder has no
// number of devices.
static bool known_config(struct request *request)
{
    const tsr_model *model = request->node->graph->model;
    if (request->config && request->config->model == model && request->config->registered)
        return true;
    tsr__diag(session_of(request), DIAG_config_unknown, PLACE_AT(place_request(request)),
              "declare it with tsr_model_add_config",
              "the configuration is not declared by this model");
    return false;
}

static void check_node(struct request *request)
{
    if (!(request->node->flags & N_GONE))
        return;
    tsr__diag(session_of(request), DIAG_node_removed, PLACE_AT(place_request(request)),
              "do not use a node after removing it", "the node was removed from its graph");
}

static void check_value(struct request *request)
{
    if (request->value && tsr__node_has(request->node, request->value))
        return;
    struct place at = place_request(request);
    const char *hint = "name an input or output of the node";
    if (request->value)
        tsr__diag(session_of(request), DIAG_shard_value, &at, hint,
                  "'" STR_FMT "' is not an input or output of the node",
                  STR_ARG(request->value->name));
    else
        tsr__diag(session_of(request), DIAG_shard_value, &at, hint, "no value was given");
}

static bool check_stage_range(struct request *request)
{
    if (request->stage >= 0 && request->stage <= INT32_MAX)
        return true;
    tsr__diag(session_of(request), DIAG_stage_range, PLACE_AT(place_request(request)),
              "stages are counted from 0", "%lld is not a valid pipeline stage",
              (long long)request->stage);
    return false;
}

// Checks the pipeline stage of the request. -1 keeps the stage. To change an existing stage,
// tsr_node_set_stage must be used.
static void check_stage(struct request *request)
{
    if (request->stage == -1 || !check_stage_range(request))
        return;
    const tsr_node_config *nc = tsr_node_find_config(request->node, request->config);
    if (nc && nc->has_stage && nc->stage != request->stage)
        tsr__diag(session_of(request), DIAG_stage_conflict, PLACE_AT(place_request(request)),
                  "change it with tsr_node_set_stage first",
                  "the node is in stage %lld of this configuration, not %lld", (long long)nc->stage,
                  (long long)request->stage);
}

// Checks that every device is one of the configuration. Called only for known configurations.
static void check_devices(struct request *request)
{
    for (size_t i = 0; i < request->n_devices; i++) {
        if (request->devices[i] >= 0 && request->devices[i] < request->config->devices)
            continue;
        struct place at = place_request(request);
        at.rank = request->devices[i];
        tsr__diag(session_of(request), DIAG_shard_device, &at, NULL,
                  "device %lld is outside the configuration, which has devices 0 to %lld",
                  (long long)request->devices[i], (long long)request->config->devices - 1);
    }
}

// Converts a negative axis to a non-negative one, if the rank is known.
static int64_t normal_axis(int64_t axis, int rank)
{
    return axis < 0 && rank >= 0 ? axis + rank : axis;
}

static struct place place_axis(const struct request *request)
{
    struct place at = place_request(request);
    at.axis = request->axis;
    return at;
}

// Checks axis and number of shards of the request. Sets *size if the size of the axis is known.
static void check_axis(struct request *request, int rank, tsr_dim *size)
{
    *size = (tsr_dim){-1, ""};
    if (request->count < 1)
        tsr__diag(session_of(request), DIAG_shard_count, PLACE_AT(place_axis(request)), NULL,
                  "%lld is not a valid number of shards; it must be 1 or more",
                  (long long)request->count);
    if (rank < 0)
        return;
    if (request->axis < -rank || request->axis >= rank) {
        tsr__diag(session_of(request), DIAG_shard_axis, PLACE_AT(place_axis(request)), NULL,
                  "axis %lld does not exist: '" STR_FMT "' has rank %d", (long long)request->axis,
                  STR_ARG(request->value->name), rank);
        return;
    }
    *size = tsr_value_dim(request->value, (int)normal_axis(request->axis, rank));
}

// Reports an axis that the spec already shards. If the rank is unknown, -1 and 1 are treated as
// different axes.
static void check_twice(struct request *request, int rank)
{
    const tsr_node_config *nc = tsr_node_find_config(request->node, request->config);
    const tsr_spec *spec = nc ? tsr__entry_spec(nc, request->value) : NULL;
    if (!spec)
        return;
    for (size_t i = 0; i < spec->dims.n; i++) {
        if (normal_axis(spec->dims.at[i].axis, rank) != normal_axis(request->axis, rank))
            continue;
        struct place at = place_axis(request);
        tsr__diag(session_of(request), DIAG_shard_axis_twice, &at,
                  "remove the sharding with tsr_node_unshard first",
                  "'" STR_FMT "' is already sharded along axis %lld", STR_ARG(request->value->name),
                  (long long)spec->dims.at[i].axis);
        return;
    }
}

static bool has_device(const tsr_spec *spec, int64_t device)
{
    for (size_t i = 0; i < spec->devices.n; i++)
        if (spec->devices.at[i] == device)
            return true;
    return false;
}

// Appends the devices that the spec does not have; the order of the list assigns shards to devices.
// The list may be shared with other specs (tsr__keep_devices). Its capacity equals its length, so
// vec_push copies it or extends it behind its end, and the other specs do not change.
static tsr_status unite_devices(tsr_spec *spec, const int64_t *devices, size_t n)
{
    struct arena *arena = &spec->entry->node->graph->model->arena;
    for (size_t i = 0; i < n; i++) {
        if (has_device(spec, devices[i]))
            continue;
        if (!vec_add(arena, &spec->devices, devices[i]))
            return TSR_NOMEM;
    }
    if (n)
        tsr__spec_touch(spec, S_DEVICES);
    return TSR_OK;
}

static void store_stage(tsr_node_config *nc, int64_t stage)
{
    if (nc->has_stage && nc->stage == stage)
        return;
    nc->has_stage = true;
    nc->stage = stage;
    nc->changed = true;
    tsr__touch_node(nc->node, N_CONFIGS);
}

// Shards a value along an axis. Runs every check first, so that all errors are reported. The axis
// is added to the existing spec of the value, or to a new one.
tsr_status tsr_node_shard(tsr_node *node, tsr_value *value, tsr_config *config, int64_t axis,
                          int64_t count, const int64_t *devices, size_t n_devices, int64_t stage)
{
    if (!devices)
        n_devices = 0;
    struct request request = {node, value, config, axis, count, devices, n_devices, stage};
    tsr_model *model = node->graph->model;
    tsr_dim size = {-1, ""};
    size_t errors = tsr__diag_errors(model->session);
    check_node(&request);
    check_value(&request);
    bool known = known_config(&request);
    check_stage(&request);
    if (known)
        check_devices(&request);
    if (value) {
        int rank = tsr_value_rank(value);
        check_axis(&request, rank, &size);
        check_twice(&request, rank);
    }
    TRY(model_status(model));
    if (tsr__diag_errors(model->session) > errors)
        return TSR_INVALID;
    tsr_node_config *nc = tsr_node_find_config(node, config);
    tsr_spec *spec = nc ? tsr__entry_spec(nc, value) : NULL;
    if (!spec)
        spec = tsr_node_add_spec(node, config, value);
    if (!spec)
        return TSR_NOMEM;
    model->devices_touched = true;
    TRY(tsr_spec_add_dim(spec, axis, &size, &count, 1));
    TRY(unite_devices(spec, request.devices, request.n_devices));
    if (stage >= 0)
        store_stage(spec->entry, stage);
    return TSR_OK;
}

// Sets the pipeline stage of a node. Unlike tsr_node_shard, this may change the stage.
tsr_status tsr_node_set_stage(tsr_node *node, tsr_config *config, int64_t stage)
{
    struct request request = {.node = node, .config = config, .stage = stage};
    size_t errors = tsr__diag_errors(session_of(&request));
    check_node(&request);
    known_config(&request);
    check_stage_range(&request);
    TRY(model_status(node->graph->model));
    if (tsr__diag_errors(session_of(&request)) > errors)
        return TSR_INVALID;
    tsr_node_config *nc = tsr_node_find_config(node, config);
    if (!nc)
        nc = tsr__node_config_make(node, config);
    if (!nc)
        return TSR_NOMEM;
    store_stage(nc, stage);
    node->graph->model->devices_touched = true;
    return model_status(node->graph->model);
}
