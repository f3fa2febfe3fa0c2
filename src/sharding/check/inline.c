// SPDX-License-Identifier: Apache-2.0
// inline.c - replaces calls of model-local functions by their bodies, so that later passes see
// operators only. If the body would mean something else in the caller, the call stays and runs
// unsharded. Also replaces large constants by initializers, which can be sharded.
//
// Each round replaces all calls in the main graph and its subgraphs, until none is left.
//     Example: function f calls g twice, and the main graph calls f once. Round 1 replaces the call
//     of f by two calls of g, round 2 replaces these by their bodies.
#include "sharding/layouts/examine.h"
#include "sharding/layouts/internal.h"

#define MAX_ROUNDS 64 // maximum depth of nested calls

// Functions that call others twice grow exponentially: 40 such functions take 2 KB in the file and
// expand to 10^12 nodes. So the number of expanded nodes is limited to NODES_LEAST plus NODES_TIMES
// for each node of the file, and at most NODES_MOST.
#define NODES_LEAST ((size_t)1 << 17)
#define NODES_TIMES 256 // per node in the file
#define NODES_MOST  ((size_t)1 << 22)

// How many nodes inlining may still create (`left`), and the initial limit (`all`). Nodes of a call
// with many specs count several times, because the specs are copied to them.
struct budget {
    size_t left, all;
};

// True if the node is in the body of a function, at any depth.
bool tsr__in_function(const tsr_model *model, const tsr_node *node)
{
    const tsr_graph *graph = tsr_node_graph(node);
    while (tsr_graph_owner(graph))
        graph = tsr_node_graph(tsr_graph_owner(graph));
    return graph != tsr_model_graph(model);
}

// True if the node is a function call that can be inlined. A call cannot be inlined if the body
// would mean something else in the caller, for example because of other operator sets.
bool tsr__is_inlinable(const tsr_node *node)
{
    const char *whole;
    return tsr__is_call(node, &whole) && !whole;
}

bool tsr__has_calls(const tsr_model *model)
{
    if (!tsr_model_function_count(model))
        return false;
    for (const tsr_node *node = tsr_model_next_node(model, NULL);
         node && !tsr__in_function(model, node); node = tsr_model_next_node(model, node))
        if (tsr__is_inlinable(node))
            return true;
    return false;
}

// True for a call in a subgraph of another call. Such a call is inlined after the outer one.
static bool is_in_call(const tsr_node *node)
{
    for (node = tsr_graph_owner(tsr_node_graph(node)); node;
         node = tsr_graph_owner(tsr_node_graph(node)))
        if (tsr__is_inlinable(node))
            return true;
    return false;
}

// Returns how many nodes inlining may create. Example: 1000 nodes in the file allow 2^17 + 256 000
// = 387 072 nodes. From 15 872 nodes on, the limit is 2^22.
static struct budget budget_of(const tsr_model *model)
{
    size_t n = tsr__model_node_ids(model);
    size_t all = n < NODES_MOST / NODES_TIMES ? NODES_LEAST + n * NODES_TIMES : NODES_MOST;
    if (all > NODES_MOST)
        all = NODES_MOST;
    return (struct budget){.left = all, .all = all};
}

// Returns the number of specs of a call. Each is copied to every node of the body that uses the
// value.
static size_t spec_count(const tsr_node *node)
{
    size_t count = 0;
    for (size_t i = 0; i < tsr_node_config_count(node); i++)
        count += tsr_node_config_spec_count(tsr_node_config_at(node, i));
    return count;
}

static tsr_status refuse_growth(const tsr_node *call, const struct budget *budget)
{
    return tsr__fail(tsr_model_session(tsr_graph_model(tsr_node_graph(call))), TSR_INVALID,
                     DIAG_functions_grow, PLACE_AT(tsr__place_node(call)),
                     "use fewer calls, or export the model with inlined functions",
                     "inlining the function calls gives more than %zu nodes", budget->all);
}

// Records that the nodes from id `first` on replace the call with id `call`, or the call that this
// one comes from.
static tsr_status add_origins(struct call_origins *origins, size_t call, size_t first, size_t last)
{
    uint32_t from = (uint32_t)call + 1;
    if (call < origins->at.n && origins->at.at[call])
        from = origins->at.at[call];
    while (origins->at.n < last)
        if (!vec_add(origins->arena, &origins->at, origins->at.n < first ? 0 : from))
            return TSR_NOMEM;
    return TSR_OK;
}

// Inlines one call and subtracts the new nodes from the budget. Nodes of a call with many specs
// count more, because the specs are copied to them.
static tsr_status inline_one(tsr_model *model, tsr_node *call, struct budget *budget,
                             struct call_origins *origins)
{
    size_t before = tsr__model_node_ids(model), weight = 1 + spec_count(call) / 8;
    size_t id = tsr__node_id(call);
    TRY(tsr__node_inline_any_opset(call));
    if (origins)
        TRY(add_origins(origins, id, before, tsr__model_node_ids(model)));
    size_t work = (tsr__model_node_ids(model) - before + 1) * weight;
    budget->left -= size_min(work, budget->left);
    return TSR_OK;
}

// Inlines all calls that exist at the start of the round, except calls in subgraphs of other calls.
// *any is set if there was one.
static tsr_status inline_round(tsr_model *model, struct arena *arena, struct budget *budget,
                               struct call_origins *origins, bool *any)
{
    VEC(tsr_node *) calls = {0};
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        if (tsr__in_function(model, node))
            break; // nodes of functions come last
        if (!tsr__is_inlinable(node) || is_in_call(node))
            continue;
        vec_add(arena, &calls, node);
    }
    if (arena->failed)
        return TSR_NOMEM;
    for (size_t i = 0; i < calls.n; i++) {
        if (!budget->left)
            return refuse_growth(calls.at[i], budget);
        TRY(inline_one(model, calls.at[i], budget, origins));
    }
    *any = calls.n > 0;
    return TSR_OK;
}

// Inlines all function calls. Recursion is checked first, so the rounds end. Calls that are nested
// deeper than MAX_ROUNDS stay.
tsr_status tsr__inline_calls(tsr_model *model)
{
    return tsr__inline_calls_from(model, NULL);
}

tsr_status tsr__inline_calls_from(tsr_model *model, struct call_origins *origins)
{
    bool any = tsr__has_calls(model);
    if (!any)
        return TSR_OK;
    tsr_status status = tsr__check_recursion(model);
    if (status != TSR_OK)
        return status;
    struct budget budget = budget_of(model);
    struct arena arena = {.session = tsr_model_session(model)};
    for (int i = 0; i < MAX_ROUNDS; i++) {
        status = inline_round(model, &arena, &budget, origins, &any);
        if (status != TSR_OK || !any)
            break;
    }
    tsr__arena_free(&arena);
    return status;
}

// True if some call could not be inlined. The written model then keeps its function.
bool tsr__calls_left(const tsr_model *model)
{
    for (const tsr_node *node = tsr_model_next_node(model, NULL);
         node && tsr_model_function_count(model) && !tsr__in_function(model, node);
         node = tsr_model_next_node(model, node))
        if (tsr__node_function(node))
            return true;
    return false;
}

// ---- constants ----------------------------------------------------------------------------------

// Returns the tensor of a Constant node that tsr__lift_constants replaces, else NULL.
static const tsr_tensor *liftable(const tsr_model *model, const tsr_node *node)
{
    return tsr__in_function(model, node) ? NULL : tsr__node_weight(node);
}

bool tsr__has_liftable(const tsr_model *model)
{
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        if (liftable(model, node))
            return true;
    return false;
}

// A spec of a constant that is passed to the readers of the constant.
struct passed {
    tsr_config *config;
    tsr_value *value;
    const struct tile_layout *layout;
    tsr_status status;
};

// Gives a reader without any spec the layout of the constant, as the flow would.
static bool pass_to_reader(void *data, tsr_node *reader, size_t input)
{
    (void)input;
    struct passed *passed = data;
    const tsr_node_config *nc = tsr_node_find_config(reader, passed->config);
    if (!nc || !tsr_node_config_spec_count(nc))
        passed->status = tsr__spec_write(reader, passed->config, passed->value, passed->layout);
    return passed->status == TSR_OK;
}

// Initializers have no specs, so a spec of the constant is passed to its readers. A layout that is
// replicated on all devices needs no spec. Specs that describe no layout are dropped.
static tsr_status pass_specs(struct arena *arena, const tsr_node *node, const tsr_tensor *tensor)
{
    tsr_value *value = tsr_node_output(node, 0);
    struct shape shape = {.rank = tsr_tensor_rank(tensor)};
    tsr_dim *dims = ARENA_ARRAY(arena, tsr_dim, (size_t)shape.rank + 1);
    for (int axis = 0; dims && axis < shape.rank; axis++)
        dims[axis] = (tsr_dim){tsr_tensor_dims(tensor)[axis], ""};
    shape.dims = dims;
    for (size_t i = 0; dims && i < tsr_node_config_count(node); i++) {
        const tsr_node_config *nc = tsr_node_config_at(node, i);
        tsr_config *config = tsr_node_config_target(nc);
        const tsr_spec *spec = tsr__entry_spec(nc, value);
        struct tile_layout *layout = NULL;
        if (!config || !tsr__config_is_declared(config) || !spec ||
            tsr__spec_layout(arena, spec, &shape, true, &layout) != TSR_OK || !layout ||
            (tsr__layout_is_whole(layout) && layout->first[1] == tsr_config_devices(config)))
            continue;
        struct passed passed = {config, value, layout, TSR_OK};
        tsr_value_uses(value, pass_to_reader, &passed);
        TRY(passed.status);
    }
    return arena_status(arena);
}

tsr_status tsr__lift_constants(tsr_model *model)
{
    struct arena arena = {.session = tsr_model_session(model)};
    tsr_status status = TSR_OK;
    for (tsr_node *node = tsr_model_next_node(model, NULL), *next; node && status == TSR_OK;
         node = next) {
        next = tsr_model_next_node(model, node);
        const tsr_tensor *tensor = liftable(model, node);
        if (!tensor)
            continue;
        status = pass_specs(&arena, node, tensor);
        if (status == TSR_OK)
            status = tsr__node_to_initializer(node, tensor);
    }
    tsr__arena_free(&arena);
    return status;
}
