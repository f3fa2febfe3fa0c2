// SPDX-License-Identifier: Apache-2.0
// value_sizes.c - determines numeric sizes for every value. Costs need them, shardings do not.
//
// Symbols without a size are assumed to be ASSUMED_SIZE. Sizes that are known only at run time
// are assumed to be 1.
//
//     Example: X [batch, seq, 64] with --dim batch=4: shapes.model has [batch, seq, 64],
//     shapes.known [4, seq, 64], shapes.full [4, 128, 64].
#include "plan/costs/planner.h"

// Called for each reader of a constant. Raises the maximum in `data` to the extra bytes per byte
// that this reader needs.
static bool widen(void *data, tsr_node *node, size_t input)
{
    int *most = data, more = tsr__node_widens(node, input);
    if (more > *most)
        *most = more;
    return true;
}

// Returns the extra bytes in memory per byte of a 16-bit constant. Returns 0 if a device of the
// topology does not widen such constants.
static int wider_by(const struct planner *planner, const tsr_value *constant)
{
    const tsr_topology *topology = planner->machine.topology;
    int more = 0;
    for (int i = 0; i < topology->n; i++)
        if (!tsr__device_widens(&topology->device[i]))
            return 0;
    tsr_value_uses(constant, widen, &more);
    return more;
}

// True if a size of the value depends on the branch that an If takes.
static bool varies(const struct planner *planner, const tsr_value *value, const struct shape *own)
{
    const struct size_origins *origins = planner->shapes.origins;
    return origins && origins->sets &&
           tsr__size_varies(origins, origins->sets[tsr__value_id(value)], own->dims, own->rank);
}

// Returns the sizes with SIZE_OPEN or SIZE_UNKNOWN for those that the model leaves open. In a loop,
// a symbol may have another size in each iteration; without `symbols`, none has a known size.
// Returns `shape` if the model gives all sizes. NULL: out of memory.
static const int64_t *open_sizes(struct planner *planner, const struct shape *own,
                                 const int64_t *shape, int rank, bool symbols)
{
    bool open = own->rank != rank;
    int64_t *out;
    for (int d = 0; d < rank && !open; d++)
        open = own->dims[d].value < 0;
    if (!open)
        return shape;
    out = ARENA_ARRAY(&planner->arena, int64_t, (size_t)rank + 1);
    for (int d = 0; out && d < rank; d++) {
        tsr_dim dim = own->rank == rank ? own->dims[d] : (tsr_dim){-1, ""};
        bool known = symbols && tsr__dim_sizes_of(planner->shapes.by_symbol, dim) >= 0;
        out[d] = dim.value >= 0 ? dim.value : known ? SIZE_OPEN : SIZE_UNKNOWN;
    }
    return out;
}

// Fills in rank, sizes and type of a value; an unknown size becomes 1. sized: all sizes are known.
// `times`: how often a run computes the value.
static bool fill(struct planner *planner, const tsr_value *value, int64_t times)
{
    struct plan_value *out = &planner->values[tsr__value_id(value)];
    struct shape s = tsr__shapes_of(planner->shapes.full, value);
    const tsr_tensor *tensor = tsr_value_initializer(value);
    // A value of unknown rank, or of a rank above TILE_MAX_RANK, is treated as one element.
    int rank = s.rank < 0 || s.rank > TILE_MAX_RANK ? 0 : s.rank;
    int64_t *shape = ARENA_ARRAY(&planner->arena, int64_t, (size_t)rank + 1);
    if (!shape)
        return false;
    struct shape own = tsr__shapes_of(planner->shapes.model, value);
    out->sized = s.rank >= 0;
    for (int d = 0; d < rank; d++) {
        out->sized = out->sized && s.dims[d].value >= 0;
        shape[d] = s.dims[d].value >= 0 ? s.dims[d].value : 1;
    }
    out->rank = rank;
    out->shape = shape;
    out->open = open_sizes(planner, &own, shape, rank, times == 1 && !varies(planner, value, &own));
    if (!out->open)
        return false;
    out->bits = tsr_dtype_bits(s.dtype) ? tsr_dtype_bits(s.dtype) : 8;
    out->constant = tensor && !tsr_value_is_input(value);
    out->given = tsr_value_is_input(value) && !tsr_graph_owner(tsr_value_graph(value));
    out->times = times;
    if (out->constant && out->bits == 16)
        out->wider = wider_by(planner, value);
    return true;
}

// Computes the size of the only unknown factor of a dimension. Example: a dimension of 768 with the
// factors heads (12) and d (unknown) gives d = 64. Two unknown factors stay unknown.
static void size_of_dim(const struct rule_dim *dim, int64_t whole, int64_t *sizes)
{
    int open = -1, n_open = 0;
    int64_t known = 1;
    for (int k = 0; k < dim->n; k++) {
        int64_t size = sizes[dim->factors[k]];
        if (size < 0) {
            open = dim->factors[k];
            n_open++;
        } else if (!mul_ok(known, size, &known)) {
            return;
        }
    }
    if (n_open == 1 && known > 0 && whole >= 0 && whole % known == 0)
        sizes[open] = whole / known;
}

// Finds the sizes of factors from the shape of one tensor.
static void sizes_of_tensor(const struct rule_tensor *tensor, const struct shape *shape,
                            int64_t *sizes)
{
    if (shape->rank != tensor->rank)
        return;
    for (int d = 0; d < tensor->rank; d++)
        if (!tensor->dims[d].window)
            size_of_dim(&tensor->dims[d], shape->dims[d].value, sizes);
}

// Finds the sizes of factors from all tensors of one side. Skips small control inputs (`host`) and
// absent tensors.
static void sizes_of_side(const struct shapes *shapes, const tsr_node *node,
                          const struct rule *rule, enum slot_side side, int64_t *sizes)
{
    int n = side == SIDE_OUTPUT ? rule->n_outputs : rule->n_inputs;
    for (int i = 0; i < n; i++) {
        const struct rule_tensor *tensor = rule_slot(rule, side, (size_t)i);
        const tsr_value *value = node_value(node, side, (size_t)i);
        if (!value || tensor->host || tensor->absent)
            continue;
        struct shape shape = tsr__shapes_of(shapes, value);
        sizes_of_tensor(tensor, &shape, sizes);
    }
}

// Finds the sizes of all factors. Makes two passes, because an output may determine a size that an
// input needs.
void tsr__planner_sizes(const struct shapes *shapes, const tsr_node *node, const struct rule *rule,
                        int64_t *sizes)
{
    for (int factor = 0; factor < rule->n_factors; factor++)
        sizes[factor] = rule->factors[factor].size.value;
    for (int round = 0; round < 2; round++) {
        sizes_of_side(shapes, node, rule, SIDE_INPUT, sizes);
        sizes_of_side(shapes, node, rule, SIDE_OUTPUT, sizes);
    }
}

static bool same_size(const tsr_dim *a, const tsr_dim *b)
{
    return a->value == b->value && (a->value >= 0 || (*a->symbol && !strcmp(a->symbol, b->symbol)));
}

// Marks the sizes of output i of an If in which its branches differ: no rank can compute them
// before the If.
static void size_result(struct planner *planner, const struct control *control, size_t i,
                        struct plan_value *value)
{
    const tsr_value *results[2] = {tsr_graph_output(control->bodies[0], i),
                                   tsr_graph_output(control->bodies[1], i)};
    struct shape own[2];
    for (int k = 0; k < 2; k++) {
        own[k] = tsr__shapes_of(planner->shapes.model, results[k]);
        if (own[k].rank != value->rank)
            return;
    }
    for (int d = 0; d < value->rank && value->open != value->shape; d++) {
        if (value->open[d] < 0 && !same_size(&own[0].dims[d], &own[1].dims[d]))
            ((int64_t *)value->open)[d] = SIZE_UNKNOWN; // made by `fill` for this value
    }
}

static bool fill_output(struct planner *planner, const tsr_node *node, size_t i, bool free,
                        int64_t times)
{
    const tsr_value *value = tsr_node_output(node, i);
    if (!fill(planner, value, times))
        return false;
    planner->values[tsr__value_id(value)].updated = tsr__node_updated_cache(node, i) != NULL;
    planner->values[tsr__value_id(value)].free = free;
    return true;
}

// `from_sizes` marks the results of nodes that compute sizes, by value id.
static bool fill_graph(struct planner *planner, const tsr_graph *graph, int64_t times,
                       unsigned char *from_sizes);

// Fills in the outputs of a node, and the values of its bodies if it is an If, Loop or Scan. Values
// of other subgraphs have no separate costs.
static bool fill_node(struct planner *planner, const tsr_node *node, int64_t times,
                      unsigned char *from_sizes)
{
    struct control control;
    bool free = tsr__node_computes_sizes(node, planner->shapes.full, from_sizes);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && !fill_output(planner, node, i, free, times))
            return false;
    if (!tsr__control_of(node, &control))
        return true;
    for (size_t i = 0; i < tsr_node_output_count(node) && control.n_bodies == 2; i++)
        if (tsr_node_output(node, i))
            size_result(planner, &control, i,
                        &planner->values[tsr__value_id(tsr_node_output(node, i))]);
    int64_t trips = tsr__control_trips(planner->shapes.full, node, &control);
    for (int k = 0; k < control.n_bodies; k++)
        if (!fill_graph(planner, control.bodies[k], mul_cap(times, trips), from_sizes))
            return false;
    return true;
}

// Fills in the values of a graph that runs `times` times.
static bool fill_graph(struct planner *planner, const tsr_graph *graph, int64_t times,
                       unsigned char *from_sizes)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (!fill(planner, tsr_graph_input(graph, i), times))
            return false;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        if (!fill(planner, tsr_graph_initializer(graph, i), times))
            return false;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (!fill_node(planner, node, times, from_sizes))
            return false;
    return true;
}

static bool fill_all(struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    unsigned char *from_sizes =
        ARENA_ARRAY(&planner->arena, unsigned char, tsr__model_value_ids(planner->model) + 1);
    if (!from_sizes || !fill_graph(planner, graph, 1, from_sizes))
        return false;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        planner->values[tsr__value_id(tsr_graph_output(graph, i))].returned = true;
    return true;
}

// ---- shapes ------------------------------------------------------------------------------------

// Rules of the model's nodes. Planners for some of the devices use those of the first planner of
// the model, which outlives them.
struct planner_rules {
    struct arena *arena;
    const struct rule **at; // by node id; NULL: not made yet
};

static bool start_reshardings(struct planner *planner)
{
    struct planner_reshardings *known = ARENA_NEW(&planner->arena, struct planner_reshardings);
    if (!known)
        return false;
    *known = (struct planner_reshardings){.arena = &planner->arena};
    tsr__map_init(&known->layouts, &planner->arena, 64);
    tsr__map_init(&known->devices, &planner->arena, 0);
    tsr__map_init(&known->known, &planner->arena, 1024);
    planner->shapes.reshardings = known;
    return true;
}

static bool find_rules(struct planner *planner, const struct planner *other)
{
    if (other) {
        planner->shapes.rules = other->shapes.rules;
        planner->shapes.reshardings = other->shapes.reshardings;
        return true;
    }
    planner->shapes.rules = ARENA_NEW(&planner->arena, struct planner_rules);
    const struct rule **at = ARENA_ARRAY(&planner->arena, const struct rule *,
                                         (size_t)tsr__model_node_ids(planner->model) + 1);
    if (planner->shapes.rules)
        *planner->shapes.rules = (struct planner_rules){&planner->arena, at};
    return planner->shapes.rules && at && start_reshardings(planner);
}

static bool start_common(struct planner *planner)
{
    struct planner_common *common = ARENA_NEW(&planner->arena, struct planner_common);
    const struct equal_node **equal = ARENA_ARRAY(&planner->arena, const struct equal_node *,
                                                  (size_t)tsr__model_node_ids(planner->model) + 1);
    if (!common || !equal)
        return false;
    *common = (struct planner_common){.arena = &planner->arena, .equal = equal};
    tsr__map_init(&common->equal_by_key, &planner->arena, 256);
    tsr__map_init(&common->trial.tried, &planner->arena, 0);
    planner->shapes.common = common;
    planner->trial = &common->trial;
    return true;
}

static bool find_shapes(struct planner *planner, const tsr_dim_size *sizes, size_t n)
{
    struct planner_shapes *shapes = &planner->shapes;
    shapes->sizes = sizes;
    shapes->n_sizes = n;
    if (!tsr__plan_sizes_assume(&planner->arena, planner->model, &shapes->sizes, &shapes->n_sizes))
        return false;
    int64_t opset = tsr__graph_opset(tsr_model_graph(planner->model), STR(""));
    shapes->constant_bounds = opset > 0 && opset < 10;
    shapes->model = tsr__model_shapes(planner->model);
    shapes->known = tsr__model_shapes_for(planner->model, sizes, n);
    shapes->full = tsr__model_shapes_assumed(planner->model, shapes->sizes, shapes->n_sizes);
    shapes->by_symbol = tsr__dim_sizes_new(&planner->arena, shapes->sizes, shapes->n_sizes);
    return shapes->model && shapes->known && shapes->full && shapes->by_symbol;
}

const struct rule *tsr__planner_rule(const struct planner *planner, const tsr_node *node)
{
    const struct rule **at = &planner->shapes.rules->at[tsr__node_id(node)];
    if (!*at)
        *at = tsr__rule_of(planner->shapes.rules->arena, node, planner->shapes.model);
    return *at;
}

static const struct rule *rule_of(void *data, const tsr_node *node)
{
    return tsr__planner_rule(data, node);
}

// Finds from which inputs the sizes of values come, if a node has branches.
static bool find_origins(struct planner *planner, const struct planner *other)
{
    struct control control;
    bool branches = false;
    if (other)
        planner->shapes.origins = other->shapes.origins;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    for (const tsr_node *node = tsr_graph_first(graph); node && !branches;
         node = tsr_node_next(node))
        branches = tsr__control_of(node, &control);
    if (other || !branches)
        return true;
    struct size_origins *origins = ARENA_NEW(&planner->arena, struct size_origins);
    if (!origins)
        return false;
    *origins = (struct size_origins){.arena = &planner->arena, .shapes = planner->shapes.model};
    tsr__size_origins_find(origins, planner->model,
                           &(struct size_origins_source){planner, rule_of, NULL});
    planner->shapes.origins = origins;
    return !planner->arena.failed;
}

bool tsr__planner_values(struct planner *planner, const tsr_dim_size *sizes, size_t n,
                         const struct planner *other)
{
    static const int64_t scalar[1] = {1};
    size_t ids = tsr__model_value_ids(planner->model);
    planner->values = ARENA_ARRAY(&planner->arena, struct plan_value, ids + 1);
    for (size_t id = 0; planner->values && id <= ids; id++)
        planner->values[id].shape = planner->values[id].open = scalar; // of values in subgraphs
    return planner->values && find_rules(planner, other) && start_common(planner) &&
           find_shapes(planner, sizes, n) && find_origins(planner, other) && fill_all(planner);
}

int64_t tsr__value_bytes(const struct planner *planner, const tsr_value *value)
{
    const struct plan_value *plan_value = &planner->values[tsr__value_id(value)];
    int64_t n = plan_value->bits;
    for (int d = 0; d < plan_value->rank; d++)
        if (!mul_ok(n, plan_value->shape[d], &n))
            return PLAN_NEVER;
    return int64_min(n / 8, PLAN_NEVER);
}
