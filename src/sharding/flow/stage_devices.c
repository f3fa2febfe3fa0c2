// SPDX-License-Identifier: Apache-2.0
// stage_devices.c - finds the devices that each node may run on, from its pipeline stage.
//
// A stage runs on the devices that the specs of its nodes name. For stages without such specs:
// - If the configuration names its devices, stage k runs on device k of that list, whatever other
//   stages do. If a stage is beyond the list, the k-th stage in ascending order runs on device k
//   instead.
// - Otherwise these stages get, in ascending order, equal runs of the devices that no spec names.
// If there are fewer devices than stages, the last stages share the last device.
// A node without a stage runs with the latest stage that it depends on. A node that depends on no
// stage may run anywhere.
//
// Examples:
//     CPU,NPU,GPU,DSP, stages 0 and 3:           stage 0: CPU;     stage 3: DSP
//     the same, stage 0 has specs on 1 and 2:    stage 0: 1 and 2; stage 3: DSP
//     CPU,GPU, stages 1 and 2:                   stage 1: CPU;     stage 2: GPU
//     4 devices without names, stages 1 and 7:   stage 1: 0 and 1; stage 7: 2 and 3
#include "sharding/flow/flow.h"

#include <stdlib.h>

#define STAGES_MAX_CELLS ((size_t)1 << 24) // limit of stages times devices

// ---- devices ------------------------------------------------------------------------------------

// Marks a device. Ignores numbers out of range, which the checker reports.
static bool add_device(struct stages *stages, bool *on, int64_t device)
{
    if (device < 0 || device >= stages->n_all)
        return false;
    on[device] = true;
    return true;
}

// Marks the members of the group with this key. Returns false if the spec has no such group; the
// key is then a device number.
static bool add_group(struct stages *stages, bool *on, const tsr_spec *spec, int64_t key)
{
    for (size_t group = 0; group < tsr_spec_group_count(spec); group++) {
        const int64_t *members;
        size_t n;
        if (tsr_spec_group(spec, group, &members, &n) != key)
            continue;
        for (size_t i = 0; i < n; i++)
            add_device(stages, on, members[i]);
        return true;
    }
    return false;
}

// Marks the devices that a spec names. Returns true if it has a device list.
static bool add_spec(struct stages *stages, bool *on, const tsr_spec *spec)
{
    const int64_t *devices;
    size_t n = tsr_spec_devices(spec, &devices);
    for (size_t k = 0; k < n; k++)
        if (!add_group(stages, on, spec, devices[k]))
            add_device(stages, on, devices[k]);
    return n > 0;
}

// Marks the devices that the specs of a node and of the nodes in its bodies name. Returns true if a
// spec has a device list.
static bool add_specs(struct stages *stages, bool *on, const tsr_node *node,
                      const tsr_config *config)
{
    bool any = false;
    const tsr_node_config *nc = tsr_node_find_config(node, config);
    for (size_t i = 0; nc && i < tsr_node_config_spec_count(nc); i++)
        any |= add_spec(stages, on, tsr_node_config_spec(nc, i));
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        for (size_t k = 0; k < tsr_attr_graph_count(tsr_node_attr(node, i)); k++)
            for (const tsr_node *in = tsr_graph_first(tsr_attr_graph(tsr_node_attr(node, i), k));
                 in; in = tsr_node_next(in))
                any |= add_specs(stages, on, in, config);
    return any;
}

// Lists the devices that no spec of a stage names, ascending, and returns their number. If every
// device is named, lists all devices.
static size_t free_devices(const struct stages *stages, const bool *named, int64_t *out)
{
    size_t n = 0;
    for (int64_t d = 0; d < stages->n_all; d++) {
        bool taken = false;
        for (size_t k = 0; k < stages->n; k++)
            taken |= named[k] && stages->on[k][d];
        if (!taken)
            out[n++] = d;
    }
    if (n)
        return n;
    for (int64_t d = 0; d < stages->n_all; d++)
        out[d] = d;
    return (size_t)stages->n_all;
}

// Distributes the n free devices over the stages whose specs name no devices, in consecutive groups
// of equal size if possible. Example: 5 devices for 2 stages give 2 and 3. If there are fewer
// devices than stages, the last stages share the last device.
static void distribute_devices(struct stages *stages, const bool *named, const int64_t *devices,
                               size_t n)
{
    int64_t unnamed = 0, at = 0, n_free = (int64_t)n;
    for (size_t k = 0; k < stages->n; k++)
        unnamed += !named[k];
    for (size_t k = 0; k < stages->n; k++) {
        if (named[k])
            continue;
        int64_t first = tsr__tile_start(n_free, unnamed, at);
        int64_t stop = tsr__tile_start(n_free, unnamed, at + 1);
        if (n_free < unnamed) {
            first = int64_min(at, n_free - 1);
            stop = first + 1;
        }
        for (int64_t i = first; i < stop; i++)
            stages->on[k][devices[i]] = true;
        at++;
    }
}

// Gives stage k device k. If a stage is beyond the named devices, the stages get them in order.
static void use_device_per_stage(struct stages *stages, const bool *named)
{
    bool beyond = stages->numbers[stages->n - 1] >= stages->n_all;
    for (size_t k = 0; k < stages->n; k++)
        if (!named[k])
            stages->on[k][beyond ? int64_min((int64_t)k, stages->n_all - 1) : stages->numbers[k]] =
                true;
}

// Finds the devices of the stages whose specs name none. Returns false if out of memory.
static bool default_devices(struct stages *stages, struct arena *arena, const tsr_config *config,
                            const bool *named)
{
    if (tsr_config_device_name_count(config)) {
        use_device_per_stage(stages, named);
        return true;
    }
    int64_t *devices = ARENA_ARRAY(arena, int64_t, (size_t)stages->n_all);
    if (!devices)
        return false;
    distribute_devices(stages, named, devices, free_devices(stages, named, devices));
    return true;
}

// ---- nodes --------------------------------------------------------------------------------------

// Returns the larger of `latest` and the stage index of the value. of_value has, by value id, the
// index of the latest stage that the value depends on, plus 1; 0: none.
static int later(int latest, const tsr_value *value, const int *of_value)
{
    if (value && of_value[tsr__value_id(value)] - 1 > latest)
        return of_value[tsr__value_id(value)] - 1;
    return latest;
}

// Returns the index of the latest stage that the inputs of the node and the outer values of its
// subgraphs depend on, or -1.
static int latest_of(const tsr_node *node, const int *of_value)
{
    tsr_value **captures;
    int latest = -1;
    size_t n_in = tsr_node_input_count(node), n_captures = tsr__node_captures(node, &captures);
    for (size_t i = 0; i < n_in; i++)
        latest = later(latest, tsr_node_input(node, i), of_value);
    for (size_t i = 0; i < n_captures; i++)
        latest = later(latest, captures[i], of_value);
    return latest;
}

// Returns the index of a stage in the sorted list. Example: of stages 0, 3 and 7, stage 3 has index
// 1.
static int stage_index(const struct stages *stages, int64_t number)
{
    const int64_t *at =
        bsearch(&number, stages->numbers, stages->n, sizeof(*stages->numbers), by_int64);
    return at ? (int)(at - stages->numbers) : -1;
}

// Assigns a stage index to every node, in graph order, and collects the devices that the specs of
// each stage name.
static bool follow_nodes(struct stages *stages, struct arena *arena, tsr_model *model,
                         const tsr_config *config)
{
    int *of_value = ARENA_ARRAY(arena, int, tsr__model_value_ids(model) + 1); // index plus 1
    bool *named = ARENA_ARRAY(arena, bool, stages->n + 1);
    if (!of_value || !named)
        return false;
    for (tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node)) {
        int64_t own = tsr__node_stage(node, config);
        int at = own >= 0 ? stage_index(stages, own) : latest_of(node, of_value);
        stages->of_node[tsr__node_id(node)] = (struct stage_of){at, own >= 0};
        if (own >= 0)
            named[at] |= add_specs(stages, stages->on[at], node, config);
        for (size_t k = 0; k < tsr_node_output_count(node); k++)
            if (tsr_node_output(node, k))
                of_value[tsr__value_id(tsr_node_output(node, k))] = at + 1;
    }
    return default_devices(stages, arena, config, named);
}

// Lists the different stage numbers of the main graph in ascending order, and returns how many
// there are.
static size_t distinct(struct arena *arena, tsr_model *model, const tsr_config *config,
                       int64_t **out)
{
    size_t n = 0, kept = 0, cap = tsr_graph_node_count(tsr_model_graph(model));
    int64_t *all = ARENA_ARRAY(arena, int64_t, cap + 1);
    for (tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node && all && n < cap;
         node = tsr_node_next(node)) {
        int64_t own = tsr__node_stage(node, config);
        if (own >= 0 && (n == 0 || all[n - 1] != own))
            all[n++] = own;
    }
    if (n)
        qsort(all, n, sizeof(*all), by_int64);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || all[kept - 1] != all[i])
            all[kept++] = all[i];
    *out = all;
    return kept;
}

static bool too_many(tsr_session *session, const tsr_config *config, size_t n)
{
    tsr__diag(session, DIAG_stages_many, &PLACE(.configuration = str_of(tsr_config_name(config))),
              "use fewer stages: give several nodes the same stage number",
              "too many pipeline stages: %zu stages times %lld devices exceed %zu", n,
              (long long)tsr_config_devices(config), STAGES_MAX_CELLS);
    return false;
}

// Finds the stages of the main graph only: nodes of bodies run where the outer node runs.
bool tsr__stages_find(struct arena *arena, tsr_model *model, const tsr_config *config,
                      struct stages *stages)
{
    *stages = (struct stages){.n_all = tsr_config_devices(config)};
    stages->n = distinct(arena, model, config, &stages->numbers);
    if (!stages->n || arena->failed)
        return !arena->failed;
    if (stages->n > STAGES_MAX_CELLS / (size_t)stages->n_all)
        return too_many(arena->session, config, stages->n);
    stages->on = ARENA_ARRAY(arena, bool *, stages->n);
    if (!stages->on)
        return false;
    for (size_t k = 0; k < stages->n; k++)
        stages->on[k] = ARENA_ARRAY(arena, bool, (size_t)stages->n_all + 1);
    stages->of_node = ARENA_ARRAY(arena, struct stage_of, tsr__model_node_ids(model) + 1);
    return !arena->failed && follow_nodes(stages, arena, model, config);
}

const bool *tsr__stages_devices(const struct stages *stages, const tsr_node *node,
                                bool explicit_specs)
{
    if (!stages->n)
        return NULL;
    struct stage_of at = stages->of_node[tsr__node_id(node)];
    return at.place < 0 || (explicit_specs && !at.own) ? NULL : stages->on[at.place];
}

bool tsr__stage_ignored(const struct stages *stages, const tsr_node *node, const tsr_config *config)
{
    int64_t own = tsr__node_stage(node, config), number = -1;
    const tsr_node *outer = node;
    while (tsr_graph_owner(tsr_node_graph(outer)))
        outer = tsr_graph_owner(tsr_node_graph(outer));
    if (own < 0 || outer == node)
        return false;
    int place = stages->n ? stages->of_node[tsr__node_id(outer)].place : -1;
    if (place >= 0)
        number = stages->numbers[place];
    return own != number;
}

size_t tsr__flow_stages(struct arena *arena, const struct flow *flow, const bool *const **on)
{
    struct stages stages = {0};
    if (!flow->staged || !tsr__stages_find(arena, flow->model, flow->config, &stages))
        return 0;
    *on = (const bool *const *)stages.on;
    return stages.n;
}
