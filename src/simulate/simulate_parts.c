// SPDX-License-Identifier: Apache-2.0
// simulate_parts.c - reads the tasks of each device from the graphs of a partition: nodes in order
// with their predicted times, and communications by id.
//
// Nodes of bodies come in the place of the node that contains the body. The time of a loop counts
// as often as its body runs (tsr__control_trips), that of an If for its most expensive branch
// (simulate_branches.c). If the sizes decide which branch runs, only its nodes are read.
//
//     Example: rank0.onnx has MatMul, then ai.tessera AllReduce with id 3 and group [0, 1], then
//     Relu. The device computes 1e12 operations per second. Tasks: {MatMul, 2 ms}, {AllReduce,
//     communication 3, group 0}, {Relu, 0.1 ms}. rank1.onnx has the same id, so both tasks point to
//     one sim_comm. Its bytes are the larger of the two pieces, and its time is predicted after all
//     ranks are read.
#include "simulate/simulate.h"
#include "ir/ir.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#define DOMAIN "ai.tessera"

// Key of the cache of Reshards: their layouts and the shape of the value.
struct moved_key {
    const int64_t *source, *target; // layouts encoded as integers
    size_t n_source, n_target, elem;
    int64_t rank, shape[TILE_MAX_RANK];
};

// ---- communications ----------------------------------------------------------------------------

// Returns the communication with that id, and creates it if it is new. `op` is the communication's
// operator on the first device that takes part.
static struct sim_comm *comm_of(struct sim *sim, int64_t id, struct str op)
{
    void **at = tsr__map_at_copy(&sim->by_id, str_bytes(&id, sizeof id));
    if (at && !*at) {
        struct sim_comm *comm = ARENA_NEW(sim->arena, struct sim_comm);
        struct sim_comm **listed = vec_push(sim->arena, &sim->comms);
        if (comm && listed) {
            *comm = (struct sim_comm){.id = id, .kind = tsr__collective_find(op)};
            comm->op = tsr__arena_str(sim->arena, tsr__collective_plain(op)).p;
            *listed = *at = comm;
        }
    }
    return at ? *at : NULL;
}

// Returns the index of the group in the communication, and adds the group if it is new. -1: out of
// memory.
static int group_of(struct sim *sim, struct sim_comm *comm, const int64_t *members, size_t n)
{
    for (size_t i = 0; i < comm->groups.n; i++)
        if ((size_t)comm->groups.at[i].n == n &&
            memcmp(comm->groups.at[i].members, members, n * sizeof *members) == 0)
            return (int)i;
    struct sim_group *group = vec_push(sim->arena, &comm->groups);
    int64_t *copy = ARENA_ARRAY(sim->arena, int64_t, n + 1);
    if (!group || !copy)
        return -1;
    memcpy(copy, members, n * sizeof *copy);
    *group = (struct sim_group){.members = copy, .n = (int)n};
    return (int)comm->groups.n - 1;
}

// Computes the bytes from the layouts in the attributes of the Reshard.
static struct reshard_exchange count_moved(struct sim *sim, const struct moved_key *key)
{
    struct reshard_exchange moved = {0};
    struct arena arena = {.session = sim->session};
    struct tile_layout *from = NULL;
    if (key->n_source)
        from = tsr__layout_decode(&arena, key->source, key->n_source);
    struct tile_layout *to = NULL;
    if (key->n_target)
        to = tsr__layout_decode(&arena, key->target, key->n_target);
    // A Reshard without a source or target layout gives 0 bytes here.
    bool fits = from && to && key->rank == from->rank && key->rank == to->rank;
    if (fits && tsr__reshard_exchange(&arena, from, to, key->shape, key->elem, &moved) != TSR_OK)
        moved = (struct reshard_exchange){0};
    tsr__arena_free(&arena);
    return moved;
}

static void add_numbers(struct text *text, const int64_t *numbers, size_t n)
{
    if (n)
        tsr__text_add(text, (struct str){(const char *)numbers, n * sizeof *numbers});
}

// Returns the bytes of a Reshard from the cache. All members have the same layouts, and layers
// repeat, so each pair of layouts is computed once per shape.
static struct reshard_exchange moved(struct sim *sim, const tsr_node *node,
                                     const struct shapes *shapes, size_t elem)
{
    struct moved_key key = {.elem = elem};
    key.n_source = tsr_attr_ints(tsr_node_find_attr(node, "source"), &key.source);
    key.n_target = tsr_attr_ints(tsr_node_find_attr(node, "target"), &key.target);
    key.rank = tsr__shapes_ints(shapes, tsr_node_input(node, 1), key.shape, TILE_MAX_RANK);
    int64_t head[] = {(int64_t)elem, key.rank, (int64_t)key.n_source, (int64_t)key.n_target};
    struct text text = {.session = sim->session};
    add_numbers(&text, head, TSR_COUNT(head));
    add_numbers(&text, key.shape, key.rank > 0 ? (size_t)key.rank : 0);
    add_numbers(&text, key.source, key.n_source);
    add_numbers(&text, key.target, key.n_target);
    struct str name = {text.p, text.n};
    struct reshard_exchange *known = text.failed ? NULL : tsr__map_get(&sim->moved, name);
    struct reshard_exchange bytes = known ? *known : count_moved(sim, &key);
    void **at = !known && !text.failed ? tsr__map_at_copy(&sim->moved, name) : NULL;
    struct reshard_exchange *fresh = at ? ARENA_NEW(sim->arena, struct reshard_exchange) : NULL;
    if (fresh) {
        *fresh = bytes;
        *at = fresh;
    }
    tsr__text_free(&text);
    return bytes;
}

// True if the shards along the axis are not contiguous. Example: halves of [8, 6] along axis 0 are
// rows 0..3 and 4..7, which are contiguous; along axis 1, each row has a piece of both.
static bool unpacked(const tsr_node *node, const struct shapes *shapes)
{
    int64_t axis = tsr_attr_int(tsr_node_find_attr(node, "axis"), 0);
    struct shape shape = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    for (int dim = 0; dim < shape.rank; dim++)
        if (dim < axis && shape.dims[dim].value != 1)
            return true;
    return false;
}

// Returns the extra bytes of a communication. Shards that are not contiguous need a packed copy
// beside the tensor.
static int64_t scratch_of(const struct sim_comm *comm, const tsr_node *node,
                          const struct shapes *shapes, int64_t given, int64_t got)
{
    if (comm->kind == COMM_KIND_COUNT)
        return 0;
    switch (tsr__collective((int)comm->kind)->scratch) {
    case SCRATCH_INPUT:
        return given;
    case SCRATCH_BOTH:
        return sum_of(given, got);
    case SCRATCH_UNPACKED_INPUT:
        if (unpacked(node, shapes))
            return given;
        return 0;
    case SCRATCH_UNPACKED_OUTPUT:
        if (unpacked(node, shapes))
            return got;
        return 0;
    case SCRATCH_NONE:
        break;
    }
    return 0;
}

// Returns the name of the communicated tensor: the input, or the output of a receive.
static const char *tensor_of(const tsr_node *node)
{
    const tsr_value *in = tsr_node_input_count(node) ? tsr_node_input(node, 0) : NULL;
    const tsr_value *out = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    if (in)
        return tsr_value_name(in);
    return out ? tsr_value_name(out) : "";
}

// True if the group lists the device, and only devices of the folder. The folder is not trusted:
// members are used as indices, and all of them must be waiting when a communication begins
// (topology/player.c).
static bool is_group_of(const struct sim *sim, int64_t device, const int64_t *members, size_t n)
{
    bool listed = false;
    if (n > (size_t)sim->n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (members[i] < 0 || members[i] >= sim->n)
            return false;
        listed |= members[i] == device;
    }
    return listed;
}

// Where the nodes that are read are: in the main graph, or in bodies.
struct reading {
    struct sim *sim;
    int64_t device;
    const struct shapes *shapes;
    struct arena *scratch;
    int64_t times;             // executions in one request
    struct sim_branch *branch; // NULL: in no branch
    unsigned char *from_sizes; // by value id: results of nodes that only compute sizes
};

// The windows of the members in a HaloExchange: attribute `windows` lists for each member and axis
// the number of intervals and their bounds.
struct window_list {
    const int64_t *at;
    size_t n;
};

// Takes the intervals of a member along an axis from the list. Returns the share of their elements
// that are in `shard`; 0 if the list is malformed.
static double next_share(struct window_list *list, struct tile_interval shard)
{
    int64_t many = list->n ? list->at[0] : -1, before = 0;
    double size = 0, own = 0;
    if (many < 0 || (uint64_t)many > (list->n - 1) / 2)
        return 0;
    const int64_t *bounds = list->at + 1;
    *list = (struct window_list){bounds + 2 * many, list->n - 1 - 2 * (size_t)many};
    for (int64_t k = 0; k < many; k++, bounds += 2) {
        if (bounds[0] < before || bounds[1] < bounds[0])
            return 0;
        before = bounds[1];
        int64_t first = int64_max(bounds[0], shard.start), stop = int64_min(before, shard.stop);
        size += (double)(bounds[1] - bounds[0]);
        own += (double)int64_max(stop - first, 0);
    }
    return size > 0 ? own / size : 1;
}

// Returns the share of a member's windows that are in its own shard.
static double own_windows(const tsr_node *node, const struct tile_layout *source,
                          const int64_t *shape, size_t member, int64_t device)
{
    struct window_list list = {0};
    const int64_t *axes;
    size_t n_axes = tsr_attr_ints(tsr_node_find_attr(node, "axes"), &axes);
    list.n = tsr_attr_ints(tsr_node_find_attr(node, "windows"), &list.at);
    double share = 1;
    for (size_t i = 0; i < (member + 1) * n_axes; i++) {
        int64_t axis = axes[i % n_axes], coords[TILE_MAX_FACTORS];
        struct tile_interval shard;
        if (axis < 0 || axis >= source->rank ||
            !tsr__device_coords(source, device, (int)axis, coords) ||
            tsr__dim_intervals(&source->dims[axis], shape[axis], coords, &shard, 1) != 1)
            return 0;
        double part = next_share(&list, shard);
        share *= i >= member * n_axes ? part : 1;
    }
    return share;
}

// Returns the bytes that the device receives from its neighbours in a HaloExchange, which returns
// `got` bytes.
static int64_t halo_bytes(const struct reading *reading, const tsr_node *node,
                          const int64_t *members, size_t n, int64_t got)
{
    const int64_t *source;
    int64_t shape[TILE_MAX_RANK];
    struct arena arena = {.session = reading->sim->session};
    size_t length = tsr_attr_ints(tsr_node_find_attr(node, "source"), &source), member = 0;
    struct tile_layout *from = length ? tsr__layout_decode(&arena, source, length) : NULL;
    double share = 0;
    while (member < n && members[member] != reading->device)
        member++;
    if (from && tsr__shapes_ints(reading->shapes, tsr_node_input(node, 1), shape, TILE_MAX_RANK) ==
                    from->rank)
        share = own_windows(node, from, shape, member, reading->device);
    tsr__arena_free(&arena);
    return (int64_t)((1 - share) * (double)got + 0.5);
}

// Adds a communication as a task of the device, and updates its bytes with those that this member
// sends and receives. TSR_MALFORMED: see is_group_of.
static tsr_status add_comm(const struct reading *reading, const tsr_node *node)
{
    struct sim *sim = reading->sim;
    struct sim_device *device = &sim->devices[reading->device];
    const struct shapes *shapes = reading->shapes;
    const int64_t *members;
    size_t count = tsr_attr_ints(tsr_node_find_attr(node, "group"), &members);
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    bool sized = true, ignored = true;
    if (!is_group_of(sim, reading->device, members, count))
        return TSR_MALFORMED;
    struct sim_comm *comm = comm_of(sim, id, str_of(tsr_node_op(node)));
    int g = comm ? group_of(sim, comm, members, count) : -1;
    struct sim_task *task = vec_push(sim->arena, &device->tasks);
    if (g < 0 || !task)
        return TSR_NOMEM;
    *task = (struct sim_task){.branch = reading->branch,
                              .op = comm->op,
                              .node = tsr_node_name(node),
                              .comm = comm,
                              .group = g};
    comm->times = int64_max(comm->times, reading->times);
    tsr__sim_join(comm, reading->branch);
    if (!comm->node)
        comm->node = tsr__arena_str(sim->arena, str_of(tensor_of(node))).p;
    const tsr_value *in = tsr_node_input(node, 0), *out = tsr_node_output(node, 0);
    int64_t given = in ? tsr__sized_bytes(shapes, in, &sized) : 0;
    int64_t got = 0; // 0 for members that receive nothing
    if (out)
        got = tsr__sized_bytes(shapes, out, &ignored);
    raise_to(&device->scratch, in && out ? scratch_of(comm, node, shapes, given, got) : 0);
    raise_to(&comm->most_in, given);
    raise_to(&comm->most_out, got);
    if (tsr_node_find_attr(node, tsr__attribute_name(ATTRIBUTE_SHARES)))
        comm->shares = true;
    if (comm->kind == COMM_HALO)
        raise_to(&comm->moved, halo_bytes(reading, node, members, count, got));
    if (comm->kind == COMM_SEND)
        comm->groups.at[g].from = tsr_attr_int(tsr_node_find_attr(node, "from"), -1);
    if (comm->kind == COMM_RESHARD) {
        int bits =
            tsr_dtype_bits((tsr_dtype)tsr_attr_int(tsr_node_find_attr(node, "elem_type"), 0));
        struct reshard_exchange bytes = moved(sim, node, shapes, (size_t)(bits ? bits + 7 : 8) / 8);
        raise_to(&comm->moved, bytes.bytes);
        comm->pair[0] = bytes.largest.from;
        comm->pair[1] = bytes.largest.to;
        comm->pair_bytes = bytes.largest.bytes;
        // Without layouts, assume that the member moves the bytes that it receives.
        raise_to(&comm->moved, comm->moved ? 0 : got);
    }
    sim->unsized += !sized;
    return TSR_OK;
}

// ---- nodes -------------------------------------------------------------------------------------

// Adds a communication (an operator of the domain ai.tessera) or a compute task. A node whose
// inputs are all constants, or that only computes sizes, adds nothing.
static tsr_status add_node(const struct reading *reading, const tsr_node *node)
{
    struct sim *sim = reading->sim;
    const tsr_topology_device *device = &sim->topology->device[reading->device];
    if (strcmp(tsr_node_domain(node), DOMAIN) == 0)
        return add_comm(reading, node);
    if (tsr__node_computes_sizes(node, reading->shapes, reading->from_sizes) ||
        tsr__node_reads_constants(node))
        return TSR_OK; // computed when the model is loaded
    struct sim_task *task = vec_push(sim->arena, &sim->devices[reading->device].tasks);
    if (!task)
        return TSR_NOMEM;
    struct node_cost_result cost =
        tsr__node_cost(sim->session, node, reading->shapes, sim->topology, device);
    int64_t overhead = int64_min((int64_t)(device->overhead * 1e12), cost.ps);
    *task = (struct sim_task){.branch = reading->branch,
                              .op = tsr_node_op(node),
                              .node = tsr__node_label(node),
                              .from = node,
                              .ps = mul_cap(cost.ps, reading->times),
                              .overhead = mul_cap(overhead, reading->times),
                              .moves = cost.moves,
                              .work = cost.work * (double)reading->times,
                              .bytes = cost.bytes * (double)reading->times,
                              .type = cost.type};
    sim->unsized += !cost.sized;
    return TSR_OK;
}

static tsr_status add_graph(const struct reading *reading, const tsr_graph *graph);

// Adds the nodes of the node's bodies.
static tsr_status add_bodies(const struct reading *reading, const tsr_node *node,
                             const struct control *control)
{
    struct reading inside = *reading;
    struct sim_branch *branches = NULL;
    inside.times = mul_cap(reading->times, tsr__control_trips(reading->shapes, node, control));
    if (control->n_bodies > 1) {
        branches = tsr__sim_branches(reading->sim->arena, reading->branch);
        if (!branches)
            return TSR_NOMEM;
    }
    for (int k = 0; k < control->n_bodies; k++) {
        if (branches)
            inside.branch = &branches[k];
        TRY(add_graph(&inside, control->bodies[k]));
    }
    return TSR_OK;
}

// Adds the nodes in graph order, each followed by the nodes of its bodies or other subgraphs.
static tsr_status add_graph(const struct reading *reading, const tsr_graph *graph)
{
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        struct control control;
        bool bodies = tsr__control_of(node, &control);
        int taken = bodies ? tsr__control_taken(reading->shapes, node, &control) : -1;
        if (taken >= 0) {
            TRY(add_graph(reading, control.bodies[taken]));
            continue;
        }
        TRY(add_node(reading, node));
        if (bodies) {
            TRY(add_bodies(reading, node, &control));
            continue;
        }
        for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
            const tsr_attr *attr = tsr_node_attr(node, i);
            for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
                TRY(add_graph(reading, tsr_attr_graph(attr, k)));
        }
    }
    return TSR_OK;
}

// ---- all parts ----------------------------------------------------------------------------------

// Reads the graph of one rank: shapes, tasks, memory. The model may be freed afterwards.
static tsr_status read_part(struct sim *sim, int64_t device, const struct partition_part *part,
                            const tsr_dim_size *sizes, size_t n_sizes)
{
    struct sim_device *sim_device = &sim->devices[device];
    struct arena scratch = {.session = sim->session};
    sim_device->weights = part->weight_bytes;
    const char *name = sim->topology->device[device].name;
    sim_device->widens = tsr__device_widens(&sim->topology->device[device]);
    sim_device->is_gpu = tsr__device_is_cuda(str_of(name));
    struct shapes *shapes = NULL;
    if (tsr__plan_sizes_assume(&scratch, part->model, &sizes, &n_sizes))
        shapes = tsr__shapes_assumed(&scratch, part->model, sizes, n_sizes);
    tsr_status st = TSR_NOMEM;
    struct reading reading = {
        .sim = sim, .device = device, .shapes = shapes, .scratch = &scratch, .times = 1};
    reading.from_sizes =
        ARENA_ARRAY(&scratch, unsigned char, tsr__model_value_ids(part->model) + 1);
    if (shapes && reading.from_sizes)
        st = TSR_OK;
    if (st == TSR_OK)
        st = add_graph(&reading, tsr_model_graph(part->model));
    if (st == TSR_OK)
        st = tsr__sim_memory(sim_device, part->model, shapes, &scratch);
    // Copies the names, which must outlive the models.
    for (size_t i = 0; i < sim_device->tasks.n && st == TSR_OK; i++) {
        struct sim_task *task = &sim_device->tasks.at[i];
        task->op = tsr__arena_str(sim->arena, str_of(task->op)).p;
        task->node = tsr__arena_str(sim->arena, str_of(task->node)).p;
    }
    if (st == TSR_OK && scratch.failed)
        st = TSR_NOMEM;
    tsr__arena_free(&scratch);
    return st;
}

// Predicts the times of all communications, when all their groups are known, and the bytes on the
// links.
static void predict_comms(struct sim *sim)
{
    memset(sim->by_link, 0, sim->topology->links.n * sizeof *sim->by_link);
    for (size_t i = 0; i < sim->comms.n; i++)
        sim->comms.at[i]->ps = tsr__sim_comm_cost(sim, sim->comms.at[i]);
}

// Reads all parts.
tsr_status tsr__sim_read(struct sim *sim, const struct partition_part *parts, int64_t n,
                         const tsr_dim_size *sizes, size_t n_sizes)
{
    tsr_status st;
    sim->n = n;
    sim->devices = ARENA_ARRAY(sim->arena, struct sim_device, (size_t)n);
    sim->by_link = ARENA_ARRAY(sim->arena, double, sim->topology->links.n + 1);
    sim->load = ARENA_ARRAY(sim->arena, double, sim->topology->links.n + 1);
    tsr__map_init(&sim->by_id, sim->arena, 64);
    tsr__map_init(&sim->moved, sim->arena, 64);
    if (!sim->devices || !sim->by_link || !sim->load)
        return TSR_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        st = read_part(sim, i, &parts[i], sizes, n_sizes);
        if (st == TSR_MALFORMED)
            return tsr__fail(
                sim->session, TSR_INVALID, DIAG_partition_disagrees, NULL,
                "run `tessera partition` again",
                "rank %lld: the group of a communication node must contain this rank, and "
                "only ranks of the partition",
                (long long)i);
        if (st != TSR_OK)
            return sim->arena->failed ? TSR_NOMEM : st;
    }
    predict_comms(sim);
    if (tsr__sim_choose(sim))
        predict_comms(sim); // without the communications of other branches
    return arena_status(sim->arena);
}
