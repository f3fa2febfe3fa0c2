// SPDX-License-Identifier: Apache-2.0
// shard.c - the convenience calls: cut a value, set a stage. They check everything first and then
// change everything or nothing; every mistake of a call gets its own finding.
#include "ir/internal.h"

struct request {
    tsr_node *node;
    tsr_value *value;
    tsr_config *config;
    int64_t axis, count;
    const int64_t *devices;
    size_t n_devices;
    int64_t stage; // -1: not given
    size_t wrong;  // findings so far
};

static struct place place_request(const struct request *q)
{
    struct place at = tsr__place_node(q->node);
    if (q->value)
        at.value = q->value->name;
    if (q->config)
        at.configuration = q->config->name;
    return at;
}

static tsr_session *session_of(const struct request *q)
{
    return q->node->graph->model->session;
}

static bool known_config(struct request *q)
{
    const tsr_model *m = q->node->graph->model;
    if (q->config && q->config->model == m && q->config->registered)
        return true;
    struct place at = place_request(q);
    tsr__diag(session_of(q), DIAG_config_unknown, &at, "declare it with tsr_model_add_config",
              "the configuration is not declared by this model");
    q->wrong++;
    return false;
}

static void check_node(struct request *q)
{
    if (!(q->node->flags & N_GONE))
        return;
    struct place at = place_request(q);
    tsr__diag(session_of(q), DIAG_node_removed, &at, NULL, "the node is no longer in its graph");
    q->wrong++;
}

static void check_value(struct request *q)
{
    if (q->value && tsr__node_has(q->node, q->value))
        return;
    struct place at = place_request(q);
    tsr__diag(session_of(q), DIAG_shard_value, &at, "name an input or output of the node",
              q->value ? "'" STR_FMT "' is no input or output of the node"
                       : "no value was given" STR_FMT,
              STR_ARG(q->value ? q->value->name : STR("")));
    q->wrong++;
}

static void check_stage(struct request *q)
{
    if (q->stage < -1 || q->stage > INT32_MAX) {
        struct place at = place_request(q);
        tsr__diag(session_of(q), DIAG_stage_range, &at, "stages are counted from 0",
                  "%lld is no pipeline stage", (long long)q->stage);
        q->wrong++;
        return;
    }
    const tsr_node_config *nc = tsr_node_find_config(q->node, q->config);
    if (q->stage >= 0 && nc && nc->has_stage && nc->stage != q->stage) {
        struct place at = place_request(q);
        tsr__diag(session_of(q), DIAG_stage_conflict, &at,
                  "change it with tsr_node_set_stage first",
                  "the node is in stage %lld of this configuration, not %lld", (long long)nc->stage,
                  (long long)q->stage);
        q->wrong++;
    }
}

static void check_devices(struct request *q)
{
    for (size_t i = 0; i < q->n_devices; i++) {
        if (q->devices[i] >= 0 && q->devices[i] < q->config->devices)
            continue;
        struct place at = place_request(q);
        at.rank = q->devices[i];
        tsr__diag(session_of(q), DIAG_shard_device, &at, NULL,
                  "device %lld is outside the configuration, which has devices 0 to %lld",
                  (long long)q->devices[i], (long long)q->config->devices - 1);
        q->wrong++;
    }
}

static int64_t normal_axis(int64_t axis, int rank)
{
    return axis < 0 && rank >= 0 ? axis + rank : axis;
}

static struct place place_axis(const struct request *q)
{
    struct place at = place_request(q);
    at.axis = q->axis;
    return at;
}

// The size of the axis where it is known; adds findings for a bad axis or count.
static void check_axis(struct request *q, int rank, tsr_dim *size)
{
    *size = (tsr_dim){-1, ""};
    if (q->count < 1) {
        struct place at = place_axis(q);
        tsr__diag(session_of(q), DIAG_shard_count, &at, NULL, "%lld is no number of shards",
                  (long long)q->count);
        q->wrong++;
    }
    if (rank < 0)
        return;
    if (q->axis < -rank || q->axis >= rank) {
        struct place at = place_axis(q);
        tsr__diag(session_of(q), DIAG_shard_axis, &at, NULL,
                  "axis %lld of '" STR_FMT "', which has rank %d", (long long)q->axis,
                  STR_ARG(q->value->name), rank);
        q->wrong++;
        return;
    }
    *size = tsr_value_dim(q->value, (int)normal_axis(q->axis, rank));
    if (size->value >= 0 && q->count > size->value) {
        struct place at = place_axis(q);
        tsr__diag(session_of(q), DIAG_shard_size, &at, "use fewer shards, or another axis",
                  "axis %lld has %lld elements and cannot be cut into %lld shards",
                  (long long)q->axis, (long long)size->value, (long long)q->count);
        q->wrong++;
    }
}

static void check_twice(struct request *q, int rank)
{
    const tsr_node_config *nc = tsr_node_find_config(q->node, q->config);
    const tsr_spec *p = nc ? tsr__entry_spec(nc, q->value) : NULL;
    for (size_t i = 0; p && i < p->dims.n; i++) {
        if (normal_axis(p->dims.at[i].axis, rank) != normal_axis(q->axis, rank))
            continue;
        struct place at = place_axis(q);
        tsr__diag(session_of(q), DIAG_shard_axis_twice, &at,
                  "remove the sharding with tsr_node_unshard to cut it differently",
                  "'" STR_FMT "' is cut along axis %lld already", STR_ARG(q->value->name),
                  (long long)p->dims.at[i].axis);
        q->wrong++;
        return;
    }
}

static tsr_status unite_devices(tsr_spec *p, const int64_t *devices, size_t n)
{
    struct arena *a = &p->entry->node->graph->model->arena;
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < p->devices.n && !known; k++)
            known = p->devices.at[k] == devices[i];
        int64_t *slot = known ? NULL : vec_push(a, &p->devices);
        if (slot)
            *slot = devices[i];
        else if (!known)
            return TSR_NOMEM;
    }
    if (n)
        tsr__spec_touch(p, S_DEVICES);
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

tsr_status tsr_node_shard(tsr_node *n, tsr_value *v, tsr_config *c, int64_t axis, int64_t count,
                          const int64_t *devices, size_t n_devices, int64_t stage)
{
    struct request q = {n, v, c, axis, count, devices, devices ? n_devices : 0, stage, 0};
    tsr_model *m = n->graph->model;
    tsr_dim size = {-1, ""};
    check_node(&q);
    check_value(&q);
    bool known = known_config(&q);
    check_stage(&q);
    if (known)
        check_devices(&q);
    if (v) {
        int rank = tsr_value_rank(v);
        check_axis(&q, rank, &size);
        check_twice(&q, rank);
    }
    if (q.wrong)
        return TSR_INVALID;
    tsr_node_config *nc = tsr_node_find_config(n, c);
    tsr_spec *p = nc ? tsr__entry_spec(nc, v) : NULL;
    if (!p)
        p = tsr_node_add_spec(n, c, v);
    if (!p)
        return TSR_NOMEM;
    tsr_status st = tsr_spec_add_dim(p, axis, &size, &count, 1);
    if (st == TSR_OK)
        st = unite_devices(p, q.devices, q.n_devices);
    if (st == TSR_OK && stage >= 0)
        store_stage(p->entry, stage);
    m->devices_touched = true;
    return st;
}

tsr_status tsr_node_set_stage(tsr_node *n, tsr_config *c, int64_t stage)
{
    struct request q = {.node = n, .config = c, .stage = stage};
    check_node(&q);
    bool known = known_config(&q);
    if (stage < 0 || stage > INT32_MAX) {
        struct place at = place_request(&q);
        tsr__diag(session_of(&q), DIAG_stage_range, &at, "stages are counted from 0",
                  "%lld is no pipeline stage", (long long)stage);
        q.wrong++;
    }
    if (!known || q.wrong)
        return TSR_INVALID;
    tsr_node_config *nc = tsr_node_find_config(n, c);
    if (!nc)
        nc = tsr__node_config_make(n, c);
    if (!nc)
        return TSR_NOMEM;
    store_stage(nc, stage);
    n->graph->model->devices_touched = true;
    return model_status(n->graph->model);
}
