// SPDX-License-Identifier: Apache-2.0
// part_manifest.c - fills the manifest: ports with their layouts, devices with their files,
// communications, replicated nodes, stages, states. publish.c adds the files as it writes them.
//
// Strings are not copied: they belong to the model and the rank graphs, which live until the
// manifest is written. Out of memory is checked once at the end, by draft_status.
#include "internal.h"

// Stores the ranks whose files have the input, and returns their number.
static size_t input_ranks(struct draft *draft, tsr_value *value, int64_t *ranks)
{
    struct item *it = tsr__item_of(draft, value);
    size_t n = 0;
    if (!it)
        return 0;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        if (it->first->local[rank])
            ranks[n++] = rank;
    return n;
}

// Returns the layout of a port (an input or output of the model): the one in draft->kept, if there
// is one. Otherwise the port is unsharded: an input on the ranks that have it, an output on rank 0.
static const struct tile_layout *port_layout(struct draft *draft, enum side side, tsr_value *value)
{
    const struct tile_layout *kept = draft->kept[tsr__value_id(value)];
    if (kept)
        return kept;
    int64_t *ranks = ARENA_ARRAY(draft->arena, int64_t, (size_t)draft->n_ranks);
    if (!ranks)
        return NULL;
    size_t n = 1; // outputs are on rank 0
    if (side == SIDE_INPUTS)
        n = input_ranks(draft, value, ranks);
    return tsr__layout_whole(draft->arena, tsr_value_rank(value), ranks, n);
}

// Returns the output that appends tokens to the cache `past`, in a buffer with spare capacity.
// NULL: `past` is not such a cache.
static const tsr_value *output_that_updates(const tsr_graph *graph, const tsr_value *past)
{
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *present = tsr_graph_output(graph, i);
        if (tsr_cache_has_room(past, present))
            return present;
    }
    return NULL;
}

static bool is_same_size(tsr_dim a, tsr_dim b)
{
    if (a.value >= 0)
        return a.value == b.value;
    return b.value < 0 && *a.symbol && strcmp(a.symbol, b.symbol) == 0;
}

// Finds an input that has as many elements along an axis as a run appends to the cache.
static void set_growth(const struct draft *draft, const tsr_value *past, const tsr_value *present,
                       struct manifest_port *port)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    struct cache_growth growth;
    if (!tsr__cache_grows(past, present, &growth))
        return;
    struct shape tokens = tsr__shapes_of(draft->flow->shapes, growth.tokens);
    int tokens_axis = tokens.rank - (tsr_value_rank(past) - growth.axis);
    if (tokens_axis < 0 || tokens.rank > tsr_value_rank(past))
        return;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        for (int axis = 0; axis < tsr_value_rank(input); axis++)
            if (!tsr_value_initializer(input) &&
                is_same_size(tokens.dims[tokens_axis], tsr_value_dim(input, axis))) {
                port->length_input = tsr_value_name(input);
                port->length_axis = axis;
                port->growing_axis = growth.axis;
                return;
            }
    }
}

static void set_cache(const struct draft *draft, const tsr_value *past, struct manifest_port *port)
{
    const tsr_value *next = tsr_cache_present(past);
    const tsr_value *present = output_that_updates(tsr_model_graph(draft->model), past);
    if (next)
        port->present = tsr_value_name(next);
    if (next && !present)
        set_growth(draft, past, next, port);
    if (!present)
        return;
    const tsr_value *length = tsr__cache_length(present, &port->length_axis);
    port->updated_by = tsr_value_name(present);
    port->slides = tsr__cache_slides(present);
    port->length_input = length ? tsr_value_name(length) : NULL;
}

static struct manifest_port *make_ports(struct draft *draft, enum side side, size_t *count)
{
    tsr_graph *graph = tsr_model_graph(draft->model);
    size_t n = side_count(graph, side);
    struct manifest_port *ports = ARENA_ARRAY(draft->arena, struct manifest_port, n + 1);
    *count = 0;
    if (!ports)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        tsr_value *value = side_at(graph, side, i);
        if (side == SIDE_INPUTS && tsr_value_initializer(value))
            continue;
        int rank = tsr_value_rank(value);
        const struct tile_layout *layout = port_layout(draft, side, value);
        tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, dims_capacity(rank));
        if (!layout || !dims)
            return NULL;
        for (int axis = 0; axis < rank; axis++)
            dims[axis] = tsr_value_dim(value, axis);
        ports[(*count)++] =
            (struct manifest_port){.name = tsr_value_name(value),
                                   .type = tsr_dtype_name(tsr_value_dtype(value)),
                                   .sharding = tsr__notation_print(draft->arena, layout).p,
                                   .kept = draft->kept[tsr__value_id(value)],
                                   .rank = rank,
                                   .dims = dims};
        if (side == SIDE_INPUTS)
            set_cache(draft, value, &ports[*count - 1]);
    }
    return ports;
}

// Data for the callback of tsr__steps_visit.
struct collective_list {
    struct arena *arena;
    struct manifest *manifest;
};

// Adds the communication of a step, if there is one (st->id >= 0), to the manifest. Groups that no
// rank needs are left out, as in the graphs.
static void add_collective(void *data, const struct step *st)
{
    struct collective_list *list = data;
    if (st->id < 0)
        return;
    struct manifest_collective *collective =
        &list->manifest->collectives[list->manifest->n_collectives++];
    *collective = (struct manifest_collective){.id = st->id, .op = tsr__step_op(st)};
    collective->type = tsr_dtype_name(tsr__step_type(st));
    struct manifest_group *groups =
        ARENA_ARRAY(list->arena, struct manifest_group, st->n_groups + 1);
    if (!groups)
        return;
    for (size_t group = 0; group < st->n_groups; group++)
        if (st->group_live[group])
            groups[collective->n_groups++] =
                (struct manifest_group){st->groups[group].devices, st->groups[group].n};
    collective->groups = groups;
}

static void make_collectives(struct draft *draft, struct manifest *manifest)
{
    struct collective_list list = {draft->arena, manifest};
    manifest->collectives =
        ARENA_ARRAY(draft->arena, struct manifest_collective, (size_t)draft->n_comms + 1);
    if (manifest->collectives)
        tsr__steps_visit(&draft->steps, add_collective, &list);
}

static void add_replicated(void *data, const struct node_flow *nf)
{
    struct manifest *manifest = data;
    if (nf->replicated)
        manifest->replicated[manifest->n_replicated++] = (struct manifest_replicated){
            tsr_node_name(nf->node), tsr_node_op(nf->node), nf->replicated};
}

// Lists the nodes that are replicated although they have a sharding, with the reason.
static void make_replicated(struct draft *draft, struct manifest *manifest)
{
    manifest->replicated = ARENA_ARRAY(draft->arena, struct manifest_replicated,
                                       (size_t)tsr__model_node_ids(draft->model) + 1);
    if (manifest->replicated)
        tsr__flow_visit(draft->flow, add_replicated, manifest);
}

static void list_ports(struct draft *draft, const struct part *part, struct manifest_device *device)
{
    const tsr_graph *graph = tsr_model_graph(part->model);
    size_t n_inputs = tsr_graph_input_count(graph), n_outputs = tsr_graph_output_count(graph);
    device->inputs = ARENA_ARRAY(draft->arena, const char *, n_inputs + 1);
    device->outputs = ARENA_ARRAY(draft->arena, const char *, n_outputs + 1);
    if (!device->inputs || !device->outputs)
        return;
    for (size_t i = 0; i < n_inputs; i++)
        device->inputs[i] = tsr_value_name(tsr_graph_input(graph, i));
    for (size_t i = 0; i < n_outputs; i++)
        device->outputs[i] = tsr_value_name(tsr_graph_output(graph, i));
    device->n_inputs = n_inputs;
    device->n_outputs = n_outputs;
    device->has_ports = true;
}

// Fills the entry of a rank. Rank r runs on device r of the configuration.
static void make_device(struct draft *draft, const struct part *part, bool common,
                        struct manifest_device *device)
{
    const tsr_config *config = draft->flow->config;
    size_t r = (size_t)part->rank;
    device->device = "";
    if (r < tsr_config_device_name_count(config))
        device->device = tsr_config_device_name(config, r);
    device->file = tsr__arena_printf(draft->arena, "rank%zu.onnx", r).p;
    device->data = ARENA_ARRAY(draft->arena, const char *, 2);
    device->weights = part->weights;
    device->weight_bytes = part->weight_bytes;
    if (part->data_bytes && device->data)
        device->data[device->n_data++] = tsr__weights_file(draft, part->rank);
    if (common && device->data)
        device->data[device->n_data++] = tsr__weights_file(draft, draft->n_ranks);
    list_ports(draft, part, device);
}

static void make_stages(struct draft *draft, struct manifest *manifest)
{
    const bool *const *on;
    size_t n_stages = tsr__flow_stages(draft->arena, draft->flow, &on);
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        struct manifest_device *device = &manifest->devices[rank];
        int64_t *stages = ARENA_ARRAY(draft->arena, int64_t, n_stages + 1);
        if (!stages)
            return;
        device->stages = stages;
        for (size_t k = 0; k < n_stages; k++)
            if (on[k][rank])
                stages[device->n_stages++] = (int64_t)k;
    }
}

static void make_states(struct draft *draft, struct manifest *manifest)
{
    manifest->states = ARENA_ARRAY(draft->arena, struct manifest_state, draft->states.n + 1);
    if (!manifest->states)
        return;
    for (size_t i = 0; i < draft->states.n; i++)
        manifest->states[manifest->n_states++] = (struct manifest_state){
            tsr_value_name(draft->states.at[i].past), tsr_value_name(draft->states.at[i].present),
            draft->states.at[i].in_place};
}

// Lists the dimensions of inputs that sharded nodes of the main graph need equal.
static void make_same(struct draft *draft, struct manifest *manifest)
{
    size_t n = draft->shared.n, *members = ARENA_ARRAY(draft->arena, size_t, n + 1);
    manifest->same = ARENA_ARRAY(draft->arena, struct manifest_same, n + 1);
    manifest->has_same = true;
    if (!manifest->same || !members)
        return;
    for (size_t i = 0; i < n; i++)
        members[tsr__same_size(draft, &draft->same, draft->shared.at[i])->bit]++;
    for (size_t i = 0; i < n; i++) {
        struct manifest_same *same = &manifest->same[manifest->n_same];
        same->at = members[i] > 1 ? ARENA_ARRAY(draft->arena, struct manifest_dimension, members[i])
                                  : NULL;
        manifest->n_same += same->at != NULL;
        for (size_t k = i; same->at && k < n; k++) {
            const struct size_source *at = draft->shared.at[k];
            if (tsr__same_size(draft, &draft->same, draft->shared.at[k])->bit == (int64_t)i)
                same->at[same->n++] =
                    (struct manifest_dimension){tsr_value_name(at->input), at->axis};
        }
    }
}

// Counts the nodes, also those of bodies, and those that are sharded. Nodes that Tessera added by
// expanding others are not counted.
static void count_nodes(const struct draft *draft, struct manifest *manifest)
{
    const struct flow *flow = draft->flow->before ? draft->flow->before : draft->flow;
    manifest->nodes = (int64_t)tsr__control_node_count(tsr_model_graph(flow->model));
    manifest->cut_nodes = (int64_t)tsr__flow_sharded_count(draft->arena, flow);
}

// Fills the manifest except its list of files. The list has space for a rank file and a data file
// per rank, one file of common data, and one EPContext model.
tsr_status tsr__parts_manifest(struct draft *draft, const struct part *parts,
                               struct manifest *manifest)
{
    *manifest = (struct manifest){.model_name = path_name(tsr_model_path(draft->model)),
                                  .model_sha256 = draft->model_sha256};
    manifest->generator = tsr__arena_printf(draft->arena, "tessera %s", tsr_version()).p;
    manifest->configuration = tsr_config_name(draft->flow->config);
    memcpy(manifest->plan, draft->fingerprint, sizeof(manifest->plan));
    manifest->n_ranks = draft->n_ranks;
    manifest->sizes = draft->plan_sizes;
    manifest->n_sizes = draft->n_plan_sizes;
    manifest->static_sizes = draft->static_sizes;
    manifest->inputs = make_ports(draft, SIDE_INPUTS, &manifest->n_inputs);
    manifest->outputs = make_ports(draft, SIDE_OUTPUTS, &manifest->n_outputs);
    make_states(draft, manifest);
    make_same(draft, manifest);
    make_collectives(draft, manifest);
    make_replicated(draft, manifest);
    count_nodes(draft, manifest);
    manifest->devices = ARENA_ARRAY(draft->arena, struct manifest_device, (size_t)draft->n_ranks);
    manifest->files =
        ARENA_ARRAY(draft->arena, struct manifest_file, 2 * (size_t)draft->n_ranks + 2);
    if (!manifest->devices)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        make_device(draft, &parts[rank], parts[rank].uses_common, &manifest->devices[rank]);
    make_stages(draft, manifest);
    return draft_status(draft);
}
