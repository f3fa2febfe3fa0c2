// SPDX-License-Identifier: Apache-2.0
// simulate_parts.c - what each device has to do, read off the graphs of a partition: nodes in order with their prices,
// communications by their numbers, and the bytes that are alive at a time.
//
// The nodes of bodies count once, where their node stands.
//
//     rank0.onnx: MatMul, then ai.tessera AllReduce with id 3 and group [0, 1], then Relu, on a device of 1e12 operations a
//     second: tasks {MatMul, 2 ms}, {AllReduce, communication 3, its group 0}, {Relu, 0.1 ms}. rank1.onnx has the same id: both
//     tasks point to one sim_comm, whose bytes are the larger of the two pieces, and which is priced when all ranks are read.
#include "verify/simulate.h"
#include "ir/ir.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "sharding/sharding.h"
#include "topology/topology.h"

#define DOMAIN "ai.tessera"
#define GAPS   4 // of what is alive, an arena loses such a part in gaps (docs/measured.md)

// What a Reshard carries, and the shape of what it moves.
struct moved_key {
    const int64_t *source, *target; // layouts as lists of numbers
    size_t n_source, n_target, elem;
    int64_t rank, shape[TILE_MAX_RANK];
};

// ---- communications ----------------------------------------------------------------------------

// The communication of that number; the operator is what it is called on the first device that has it.
static struct sim_comm *comm_of(struct sim *sim, int64_t id, struct str op)
{
    struct str key = tsr__arena_printf(sim->arena, "%lld", (long long)id);
    void **at = NULL;
    if (key.p)
        at = tsr__map_at(&sim->by_id, key);
    if (at && !*at) {
        struct sim_comm *comm = ARENA_NEW(sim->arena, struct sim_comm);
        struct sim_comm **listed = vec_push(sim->arena, &sim->comms);
        if (comm && listed) {
            *comm = (struct sim_comm){.id = id, .kind = tsr__collective_find(op), .from = -1};
            comm->op = tsr__arena_str(sim->arena, tsr__collective_plain(op)).p;
            *listed = *at = comm;
        }
    }
    if (at)
        return *at;
    return NULL;
}

// The number of the group among those of the communication, added if it is new; -1: no memory.
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

// What the busiest device takes in or gives out, from the layouts that a Reshard carries.
static int64_t count_moved(struct sim *sim, const struct moved_key *key)
{
    int64_t most = 0;
    struct arena arena;
    struct reshard *reshard = NULL;
    tsr__arena_init(&arena, sim->session);
    struct tile_layout *from = NULL;
    if (key->n_source)
        from = tsr__layout_decode(&arena, key->source, key->n_source);
    struct tile_layout *to = NULL;
    if (key->n_target)
        to = tsr__layout_decode(&arena, key->target, key->n_target);
    // A Reshard that names no source or no target counts nothing here.
    bool fits = from && to && key->rank == from->rank && key->rank == to->rank;
    if (fits &&
        tsr__reshard_plan(&arena, from, NULL, to, key->shape, key->elem, &reshard) == TSR_OK)
        for (int i = 0; i < reshard->n_steps; i++)
            most = sum_of(most, reshard->steps[i].received > reshard->steps[i].sent
                                    ? reshard->steps[i].received
                                    : reshard->steps[i].sent);
    tsr__arena_free(&arena);
    return most;
}

static void add_numbers(struct text *text, const int64_t *numbers, size_t n)
{
    if (n)
        tsr__text_add(text, (struct str){(const char *)numbers, n * sizeof *numbers});
}

// All members of a Reshard carry the same layouts, and layers repeat: each pair is worked out once for each shape.
static int64_t moved(struct sim *sim, const tsr_node *node, const struct shapes *shapes,
                     size_t elem)
{
    struct moved_key key = {.elem = elem};
    struct text text;
    key.n_source = tsr_attr_ints(tsr_node_find_attr(node, "source"), &key.source);
    key.n_target = tsr_attr_ints(tsr_node_find_attr(node, "target"), &key.target);
    key.rank = tsr__shapes_ints(shapes, tsr_node_input(node, 1), key.shape, TILE_MAX_RANK);
    int64_t head[] = {(int64_t)elem, key.rank, (int64_t)key.n_source, (int64_t)key.n_target};
    tsr__text_init(&text, sim->session);
    add_numbers(&text, head, TSR_COUNT(head));
    add_numbers(&text, key.shape, key.rank > 0 ? (size_t)key.rank : 0);
    add_numbers(&text, key.source, key.n_source);
    add_numbers(&text, key.target, key.n_target);
    struct str name = {text.p, text.n};
    int64_t *known = NULL;
    if (!text.failed)
        known = tsr__map_get(&sim->moved, name);
    int64_t most = known ? *known : count_moved(sim, &key);
    struct str kept = {NULL, 0};
    if (!known && !text.failed)
        kept = tsr__arena_str(sim->arena, name);
    void **at = NULL;
    if (kept.p)
        at = tsr__map_at(&sim->moved, kept);
    int64_t *fresh = NULL;
    if (at)
        fresh = ARENA_NEW(sim->arena, int64_t);
    if (fresh) {
        *fresh = most;
        *at = fresh;
    }
    tsr__text_free(&text);
    return most;
}

static void larger(int64_t *at, int64_t than)
{
    if (than > *at)
        *at = than;
}

// The parts of a tensor along the axis do not lie on end: there is more than one row of them.
// [8, 6]: halves along axis 0 are rows 0..3 and 4..7, which lie on end; along axis 1 each row has a
// piece of both.
static bool unpacked(const tsr_node *node, const struct shapes *shapes)
{
    int64_t axis = tsr_attr_int(tsr_node_find_attr(node, "axis"), 0);
    struct shape shape = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    for (int dim = 0; dim < shape.rank; dim++)
        if (dim < axis && shape.dims[dim].value != 1)
            return true;
    return false;
}

// Pieces that do not lie on end are put together beside the tensor.
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

// The tensor that a communication brings: what goes in, or (of one that only takes) what comes out.
static const char *tensor_of(const tsr_node *node)
{
    const tsr_value *in = NULL;
    if (tsr_node_input_count(node))
        in = tsr_node_input(node, 0);
    const tsr_value *out = NULL;
    if (tsr_node_output_count(node))
        out = tsr_node_output(node, 0);
    if (in)
        return tsr_value_name(in);
    if (out)
        return tsr_value_name(out);
    return "";
}

// A communication as a task of the device, and what this member knows of it: how much it gives and
// gets. TSR_MALFORMED: no group, or members that are not there.
static tsr_status add_comm(struct sim *sim, struct sim_device *device, const tsr_node *node,
                           const struct shapes *shapes)
{
    const int64_t *members;
    size_t count = tsr_attr_ints(tsr_node_find_attr(node, "group"), &members);
    int64_t id = tsr_attr_int(tsr_node_find_attr(node, "id"), -1);
    bool sized = true, ignored = true;
    struct sim_comm *comm = comm_of(sim, id, str_of(tsr_node_op(node)));
    int g = -1;
    if (comm && count)
        g = group_of(sim, comm, members, count);
    struct sim_task *task = vec_push(sim->arena, &device->tasks);
    // A folder may have been written by anybody: `play` uses members as indices.
    for (size_t i = 0; i < count; i++)
        if (members[i] < 0 || members[i] >= sim->n)
            g = -1;
    if (g < 0 || !task)
        return sim->arena->failed ? TSR_NOMEM : TSR_MALFORMED;
    *task =
        (struct sim_task){.op = comm->op, .node = tsr_node_name(node), .comm = comm, .group = g};
    if (!comm->node)
        comm->node = tsr__arena_str(sim->arena, str_of(tensor_of(node))).p;
    const tsr_value *in = tsr_node_input(node, 0), *out = tsr_node_output(node, 0);
    int64_t given = 0;
    if (in)
        given = tsr__price_bytes(shapes, in, &sized);
    int64_t got = 0; // some get nothing
    if (out)
        got = tsr__price_bytes(shapes, out, &ignored);
    larger(&device->scratch, in && out ? scratch_of(comm, node, shapes, given, got) : 0);
    larger(&comm->most_in, given);
    larger(&comm->most_out, got);
    if (comm->kind == COMM_SEND)
        comm->from = tsr_attr_int(tsr_node_find_attr(node, "from"), -1);
    if (comm->kind == COMM_RESHARD) {
        int bits =
            tsr_dtype_bits((tsr_dtype)tsr_attr_int(tsr_node_find_attr(node, "elem_type"), 0));
        larger(&comm->moved, moved(sim, node, shapes, (size_t)(bits ? bits + 7 : 8) / 8));
        // Where the layouts tell nothing, what the member gets stands for what moves.
        larger(&comm->moved, comm->moved ? 0 : got);
    }
    sim->unsized += !sized;
    return TSR_OK;
}

// ---- nodes -------------------------------------------------------------------------------------

static bool all_constant(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (value && !tsr_value_initializer(value))
            return false;
    }
    return true;
}

// What takes the time: the same node is priced on a device without overhead that computes at once, and on one that moves bytes at
// once; the larger of the two bounds it.
static void divide(struct sim_task *task, const tsr_node *node, const struct shapes *shapes,
                   const tsr_topology_device *device, struct arena *scratch)
{
    bool sized = true;
    tsr_topology_device moves = *device, computes = *device;
    int64_t overhead = (int64_t)(device->overhead * 1e12);
    moves.overhead = computes.overhead = 0;
    moves.flops = computes.bandwidth = 1e30;
    memset(moves.rates, 0, sizeof moves.rates);
    memset(computes.moves, 0, sizeof computes.moves);
    memset(computes.near, 0, sizeof computes.near);
    task->overhead = int64_min(overhead, task->ps);
    task->moves = tsr__price_node(scratch, node, shapes, &moves, &sized) >
                  tsr__price_node(scratch, node, shapes, &computes, &sized);
}

// A node is a communication (of our domain), nothing (all it reads is constant), or a task with a
// price on this device.
static tsr_status add_node(struct sim *sim, struct sim_device *sim_device, int64_t device,
                           const tsr_node *node, const struct shapes *shapes, struct arena *scratch)
{
    bool sized = true;
    if (strcmp(tsr_node_domain(node), DOMAIN) == 0)
        return add_comm(sim, sim_device, node, shapes);
    if (all_constant(node))
        return TSR_OK; // folded when the model is loaded
    struct sim_task *task = vec_push(sim->arena, &sim_device->tasks);
    if (!task)
        return TSR_NOMEM;
    *task = (struct sim_task){.op = tsr_node_op(node), .node = tsr__node_label(node)};
    task->ps = tsr__price_node(scratch, node, shapes, &sim->topology->device[device], &sized);
    sim->unsized += !sized;
    divide(task, node, shapes, &sim->topology->device[device], scratch);
    return TSR_OK;
}

// Nodes in the order of the graph, each followed by those of its bodies.
static tsr_status add_graph(struct sim *sim, struct sim_device *sim_device, int64_t device,
                            const tsr_graph *graph, const struct shapes *shapes,
                            struct arena *scratch)
{
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        tsr_status st = add_node(sim, sim_device, device, node, shapes, scratch);
        if (st != TSR_OK)
            return st;
        for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
            const tsr_attr *attr = tsr_node_attr(node, i);
            for (size_t k = 0; k < tsr_attr_graph_count(attr); k++) {
                st = add_graph(sim, sim_device, device, tsr_attr_graph(attr, k), shapes, scratch);
                if (st != TSR_OK)
                    return st;
            }
        }
    }
    return TSR_OK;
}

// ---- memory ------------------------------------------------------------------------------------

// Memory that one or several values have one after the other.
struct store {
    int64_t bytes, from, end; // nodes
};
// A value's store is found by its id; values that follow one another in place share one, whose end
// moves on.
struct stores {
    const tsr_model *model;
    const struct shapes *shapes;
    struct arena *arena;
    int64_t nodes;
    size_t *of; // by value id: its store plus 1; 0: none
    VEC(struct store) list;
};

// A use inside of a body counts where the node of the main graph stands.
static bool last_use(void *data, tsr_node *node, size_t input)
{
    int64_t *last = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    int64_t at = tsr_node_index(node);
    larger(last, at);
    return true;
}

// The last node that needs the value; outputs are needed after all of them.
static int64_t end_of(const struct stores *stores, const tsr_value *value, int64_t made)
{
    int64_t last = made;
    tsr_value_uses(value, last_use, &last);
    if (tsr_value_is_output(value))
        return stores->nodes;
    return last;
}

// Factors one after the other, without those of dimensions of one element.
static size_t in_order(const struct rule_tensor *tensor, struct shape shape, int *out)
{
    size_t n = 0;
    if (shape.rank != tensor->rank)
        return 0;
    for (int d = 0; d < tensor->rank; d++) {
        if (shape.dims[d].value == 1)
            continue;
        for (int k = 0; k < tensor->dims[d].n; k++)
            if (n < RULE_MAX_FACTORS)
                out[n++] = tensor->dims[d].factors[k];
    }
    return n;
}

// Elements of the result lie as those of the input do: an engine puts it there if nobody reads the input afterwards, and
// where only the shape differs in any case.
static bool in_place(const struct stores *stores, const tsr_node *node, const struct rule *rule,
                     size_t input)
{
    int a[RULE_MAX_FACTORS], b[RULE_MAX_FACTORS];
    if ((int)input >= rule->n_inputs || rule->n_outputs < 1 || rule->inputs[input].host ||
        rule->inputs[input].absent || rule->n_windows || rule->n_lists)
        return false;
    // [2, 3, 4] to [6, 4] with the factors a b c in the same order: the elements lie the same. A
    // Transpose has another order.
    size_t k = in_order(&rule->inputs[input],
                        tsr__shapes_of(stores->shapes, tsr_node_input(node, input)), a);
    return k &&
           k == in_order(&rule->outputs[0],
                         tsr__shapes_of(stores->shapes, tsr_node_output(node, 0)), b) &&
           memcmp(a, b, k * sizeof *a) == 0;
}

static bool same_shape(const struct rule *rule, size_t input)
{
    return rule->inputs[input].rank == rule->outputs[0].rank;
}

// The store that the first output of the node takes over; 0: none.
static size_t taken_over(struct stores *stores, const tsr_node *node, int64_t bytes, int64_t at)
{
    const struct rule *rule = tsr__rule_of(stores->arena, node, stores->shapes);
    bool sized = true;
    if (!rule)
        return 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        size_t store = 0;
        if (value)
            store = stores->of[tsr__value_id(value)];
        if (store && in_place(stores, node, rule, i) &&
            tsr__price_bytes(stores->shapes, value, &sized) == bytes &&
            (!same_shape(rule, i) || end_of(stores, value, at) <= at))
            return store;
    }
    return 0;
}

// Only the first output may take over an input's memory, and no communication does.
static void add_output(struct stores *stores, const tsr_node *node, size_t i, int64_t at)
{
    const tsr_value *value = tsr_node_output(node, i);
    bool sized = true;
    int64_t bytes = tsr__price_bytes(stores->shapes, value, &sized),
            end = end_of(stores, value, at);
    size_t store = 0;
    if (i == 0 && strcmp(tsr_node_domain(node), DOMAIN) != 0)
        store = taken_over(stores, node, bytes, at);
    struct store *fresh = NULL;
    if (!store)
        fresh = vec_push(stores->arena, &stores->list);
    if (fresh) {
        *fresh = (struct store){bytes, at, end};
        store = stores->list.n;
    } else if (store && end > stores->list.at[store - 1].end) {
        stores->list.at[store - 1].end = end;
    }
    stores->of[tsr__value_id(value)] = store;
}

// The largest sum of stores that live at the same node, by changes at begin and end.
static int64_t most_at_once(struct stores *stores)
{
    int64_t now = 0, most = 0;
    int64_t *change = ARENA_ARRAY(stores->arena, int64_t, (size_t)stores->nodes + 2);
    int64_t largest =
        INT64_MAX / ((int64_t)stores->list.n + 1); // so that all together are a number
    if (!change)
        return 0;
    for (size_t i = 0; i < stores->list.n; i++) {
        int64_t bytes = stores->list.at[i].bytes < largest ? stores->list.at[i].bytes : largest;
        change[stores->list.at[i].from] += bytes;
        change[stores->list.at[i].end + 1] -= bytes;
    }
    for (int64_t i = 0; i <= stores->nodes; i++) {
        now += change[i];
        larger(&most, now);
    }
    return most;
}

// Values live from the node that makes them to the last that reads them: each in memory of its own as a plan counts them, then
// with what an engine puts in the same place.
static int64_t live_bytes(struct stores *stores, bool own)
{
    stores->list.n = 0;
    int64_t at = 0;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(stores->model)); node;
         node = tsr_node_next(node), at++) {
        if (all_constant(node))
            continue;
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            if (!tsr_node_output(node, i))
                continue;
            add_output(stores, node, i, at);
            // A plan counts each value apart: nothing may be taken over from this one.
            if (own)
                stores->of[tsr__value_id(tsr_node_output(node, i))] = 0;
        }
    }
    return most_at_once(stores);
}

// `memory` is comparable with a plan's; `peak` is what the process will show: with scratch, gaps
// and the engine's own.
static tsr_status find_memory(struct sim_device *device, const tsr_model *model,
                              const struct shapes *shapes, struct arena *scratch)
{
    const tsr_graph *graph = tsr_model_graph(model);
    struct stores stores = {model, shapes, scratch, (int64_t)tsr_graph_node_count(graph),
                            NULL,  {0}};
    int64_t inputs = 0;
    bool sized = true;
    stores.of = ARENA_ARRAY(scratch, size_t, tsr__model_value_ids(model) + 1);
    if (!stores.of)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        inputs = sum_of(inputs, tsr__price_bytes(shapes, tsr_graph_input(graph, i), &sized));
    int64_t kept = sum_of(device->weights, inputs);
    device->memory = sum_of(kept, live_bytes(&stores, true));
    int64_t live = live_bytes(&stores, false);
    device->peak = sum_of(sum_of(kept, device->scratch), sum_of(live, live / GAPS));
    device->peak = sum_of(device->peak, PLAN_ENGINE_BYTES);
    return arena_status(scratch);
}

// ---- all of it ---------------------------------------------------------------------------------

// The sizes that the caller gave, and PLAN_USUAL_SIZE for every symbol of an input that got none.
bool tsr__sim_sizes(struct arena *arena, const tsr_model *model, const tsr_dim_size *sizes,
                    size_t n, tsr_dim_size **out, size_t *n_out)
{
    const tsr_graph *graph = tsr_model_graph(model);
    VEC(tsr_dim_size) all = {0};
    for (size_t i = 0; i < n; i++) {
        tsr_dim_size *at = vec_push(arena, &all);
        if (at)
            *at = sizes[i];
    }
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        for (int axis = 0; axis < tsr_value_rank(value); axis++) {
            tsr_dim dim = tsr_value_dim(value, axis);
            bool known = dim.value >= 0 || !dim.symbol || !dim.symbol[0];
            for (size_t k = 0; k < all.n && !known; k++)
                known = strcmp(all.at[k].name, dim.symbol) == 0;
            tsr_dim_size *at = NULL;
            if (!known)
                at = vec_push(arena, &all);
            if (at)
                *at = (tsr_dim_size){dim.symbol, PLAN_USUAL_SIZE};
        }
    }
    *out = all.at;
    *n_out = all.n;
    return !arena->failed;
}

// One rank's graph: shapes, tasks, memory. The model may be freed afterwards.
static tsr_status read_part(struct sim *sim, int64_t device, const struct partition_part *part,
                            const tsr_dim_size *sizes, size_t n_sizes)
{
    struct arena scratch;
    struct sim_device *sim_device = &sim->devices[device];
    tsr_dim_size *all;
    size_t n;
    tsr__arena_init(&scratch, sim->session);
    sim_device->weights = part->weight_bytes;
    struct shapes *shapes = NULL;
    if (tsr__sim_sizes(&scratch, part->model, sizes, n_sizes, &all, &n))
        shapes = tsr__shapes_bound(&scratch, part->model, all, n, false);
    tsr_status st = TSR_NOMEM;
    if (shapes)
        st = TSR_OK;
    if (st == TSR_OK)
        st = add_graph(sim, sim_device, device, tsr_model_graph(part->model), shapes, &scratch);
    if (st == TSR_OK)
        st = find_memory(sim_device, part->model, shapes, &scratch);
    // Names outlive the models.
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

// Communications are priced when all parts are read: only then are all groups of each known.
tsr_status tsr__sim_read(struct sim *sim, const struct partition_part *parts, int64_t n,
                         const tsr_dim_size *sizes, size_t n_sizes)
{
    tsr_status st;
    sim->n = n;
    sim->devices = ARENA_ARRAY(sim->arena, struct sim_device, (size_t)n);
    sim->by_link = ARENA_ARRAY(sim->arena, double, sim->topology->links.n + 1);
    tsr__map_init(&sim->by_id, sim->arena, 64);
    tsr__map_init(&sim->moved, sim->arena, 64);
    if (!sim->devices || !sim->by_link)
        return TSR_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        st = read_part(sim, i, &parts[i], sizes, n_sizes);
        if (st == TSR_MALFORMED) {
            tsr__diag(sim->session, DIAG_partition_disagrees, NULL, "cut the model again",
                      "a communication names no group, or devices that are not there");
            return TSR_INVALID;
        }
        if (st != TSR_OK)
            return sim->arena->failed ? TSR_NOMEM : st;
    }
    for (size_t i = 0; i < sim->comms.n; i++) {
        struct sim_comm *comm = sim->comms.at[i];
        comm->ps = tsr__sim_price(sim, comm);
    }
    return arena_status(sim->arena);
}
