// SPDX-License-Identifier: Apache-2.0
// build.c - builds the 0-1 program of a model: a variable for each needed node, border of a body
// and shared copy, costs between them, and the memory of the devices over time.
//
// Before that, nodes offer layouts to their neighbours. A node offers layouts that its neighbours
// would not find by themselves (full heads, partial sums). It offers them to its readers, then back
// to the producers of its inputs, then forward once more.
//
// Call tsr__planner_list, tsr__planner_candidates and tsr__planner_program in this order. A range
// of a stage (stages/range_costs.c) builds many programs from the same candidates.
#include "plan/program/edges.h"

// ---- nodes -------------------------------------------------------------------------------------

static void add_constant(struct planner *planner, const tsr_value *value)
{
    vec_add(&planner->arena, &planner->ends.constants, value);
}

// Lists the initializers of a graph, and of the bodies of its nodes.
static void list_constants(struct planner *planner, const tsr_graph *graph)
{
    struct control control;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        if (!tsr_value_is_input(value))
            add_constant(planner, value);
    }
    for (const tsr_node *node = tsr_graph_first(graph); node && planner->body_outputs;
         node = tsr_node_next(node))
        for (int k = 0; tsr__control_of(node, &control) && k < control.n_bodies; k++)
            list_constants(planner, control.bodies[k]);
}

// Lists the values that are on the devices before the first node runs. Inputs that stay on the
// devices between runs are treated like constants.
static void list_ends(struct planner *planner, const tsr_graph *graph)
{
    planner->ends.given.n = planner->ends.constants.n = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (planner_stays(planner, value))
            add_constant(planner, value);
        else
            vec_add(&planner->arena, &planner->ends.given, value);
    }
    list_constants(planner, graph);
}

// True if an output of the model needs the entry at index i. Marks the values that it reads. All
// borders of a needed node are needed, because its bodies compute all their outputs.
static bool is_wanted(const struct planner *planner, size_t i, unsigned char *needed)
{
    const struct plan_node *node = &planner->nodes[i];
    if (!node->border)
        return tsr__node_needed(node->node, needed);
    if (planner->node_at[tsr__node_id(node->node)] < 0)
        return false;
    for (size_t k = 0; k < tsr__plan_reads(node); k++)
        if (tsr__plan_read(node, k))
            needed[tsr__value_id(tsr__plan_read(node, k))] = 1;
    return true;
}

// Fills in planner->nodes with all nodes, and node_at with the indices of the nodes that an output
// needs. A node comes after its bodies in the list, so it is decided before them. Lists the inputs
// and constants.
bool tsr__planner_list(struct planner *planner)
{
    if (planner->nodes)
        return true;
    tsr_graph *graph = tsr_model_graph(planner->model);
    unsigned char *needed =
        ARENA_ARRAY(&planner->arena, unsigned char, tsr__model_value_ids(planner->model) + 1);
    planner->node_at =
        ARENA_ARRAY(&planner->arena, int64_t, tsr__model_node_ids(planner->model) + 1);
    if (planner->arena.failed || !tsr__plan_flatten(planner))
        return false;
    for (uint32_t i = 0; i < tsr__model_node_ids(planner->model); i++)
        planner->node_at[i] = -1;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        needed[tsr__value_id(tsr_graph_output(graph, i))] = 1;
    for (size_t i = planner->n_nodes; i-- > 0;)
        if (is_wanted(planner, i, needed))
            planner->node_at[tsr__node_id(planner->nodes[i].node)] =
                (int64_t)(planner->nodes[i].border ? border_owner(planner->nodes[i].border, i) : i);
    list_ends(planner, graph);
    return !planner->arena.failed;
}

static bool is_needed(const struct planner *planner, size_t i)
{
    return planner->node_at[tsr__node_id(planner->nodes[i].node)] >= 0;
}

// ---- layouts of neighbours ----------------------------------------------------------------------

// True if some dimension has several factors, such as heads and elements. Shards then consist of
// full heads, or of the same heads of each row (rows and heads in one dimension). Such layouts must
// be offered to neighbours, which do not find them themselves.
static bool is_in_units(const struct tile_layout *layout)
{
    for (int d = 0; d < layout->rank; d++)
        if (layout->dims[d].n > 1)
            return true;
    return false;
}

// True if a dimension is sharded in units and its size is unknown, or if units are sharded.
static bool has_open_or_sharded_units(const struct tile_layout *layout)
{
    for (int d = 0; d < layout->rank; d++) {
        const struct tile_dim *dim = &layout->dims[d];
        if (dim->n > 1 && dim->factors[0].size == 0)
            return true;
        for (int factor = 1; factor < dim->n; factor++)
            if (dim->factors[factor].cuts > 1)
                return true;
    }
    return false;
}

// True if offering the layout is worth the time. Units of an unknown number, and sharded units, are
// offered only to readers, and only if each device has another shard: the node also has a candidate
// with equal parts of all elements, which costs the same. So they save only reshards, and all of
// them would slow the solver. Example: a norm of each head reads rows and heads as one dimension,
// of which each device has some heads of each row.
static bool is_worth_offering(const struct planner *planner, enum slot_side side,
                              const struct tile_layout *layout)
{
    return !has_open_or_sharded_units(layout) ||
           (side == SIDE_INPUT && layout->n_shards == planner->machine.n);
}

// Offers a layout to a tensor of a node, if the node would not find the layout itself. Readers may
// take partial sums; producers are not offered any.
static void offer(struct planner *planner, size_t to, enum slot_side side, size_t slot,
                  uint32_t layout)
{
    struct plan_node *node = &planner->nodes[to];
    if (layout == PLAN_NO_LAYOUT || tsr__planner_late(planner))
        return;
    const struct numbered_layout *offered = &planner->layouts.at[layout];
    if (offered->parts) {
        if (side == SIDE_INPUT)
            tsr__planner_try_parts(planner, node->strategy, node->node, slot, layout);
        return;
    }
    bool spread = offered->spread && offered->tiles->n_shards > 1 &&
                  offered->tiles->n_shards < planner->machine.n;
    if ((spread || is_in_units(offered->tiles)) && is_worth_offering(planner, side, offered->tiles))
        (void)tsr__planner_try_layout(planner, node->strategy, node->node, side, slot, layout);
}

bool tsr__planner_rules(struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        struct plan_node *node = &planner->nodes[i];
        if (!is_needed(planner, i) || node->border || node->rule)
            continue;
        node->rule = tsr__planner_rule(planner, node->node);
        if (!node->rule)
            return false;
    }
    return true;
}

// A connection between two nodes: `output` of the node `maker` is `input` of the node `reader`.
struct wire {
    size_t reader, input;
    size_t maker, output;
};

// Offers layouts of the producer to the reader (SIDE_INPUT), or of the reader to the producer
// (SIDE_OUTPUT). If both nodes share one strategy, its list of candidates may grow meanwhile.
static void offer_to(struct planner *planner, const struct wire *wire, enum slot_side side)
{
    bool forward = side == SIDE_INPUT;
    const struct strategy *from = planner->nodes[forward ? wire->maker : wire->reader].strategy;
    for (size_t c = 0; from && c < from->at.n; c++)
        if (forward)
            offer(planner, wire->reader, side, wire->input, from->at.at[c].out[wire->output]);
        else
            offer(planner, wire->maker, side, wire->output, from->at.at[c].in[wire->input]);
}

// Calls offer_to for all inputs of a node that planned nodes produce. Borders are offered nothing:
// they take their layouts from both sides afterwards.
static void offer_along(struct planner *planner, size_t reader, enum slot_side side)
{
    const struct plan_node *node = &planner->nodes[reader];
    for (size_t k = 0; k < tsr_node_input_count(node->node); k++) {
        const tsr_value *value = tsr_node_input(node->node, k);
        int64_t maker = tsr__planned_producer(planner, value);
        if (maker >= 0 && !planner->nodes[maker].border)
            offer_to(planner,
                     &(struct wire){reader, k, (size_t)maker,
                                    tsr__plan_made_slot(&planner->nodes[maker], value)},
                     side);
    }
}

// True if the entry is a node that is sharded by its rule, not a border or a node with bodies.
static bool is_plain(const struct planner *planner, size_t i)
{
    return is_needed(planner, i) && !planner->nodes[i].border && !planner->nodes[i].bodies;
}

// Creates the strategies in graph order and offers the layouts of each node to its readers. Then
// offers layouts backward, and forward again: a layout that an early node got from a late one may
// suit readers in between. At last, borders of bodies get the layouts of their neighbours.
bool tsr__planner_candidates(struct planner *planner)
{
    if (!tsr__planner_rules(planner) || !tsr__partial_sums_mark(planner) ||
        !tsr__planner_shares(planner))
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!is_plain(planner, i))
            continue;
        planner->nodes[i].strategy = tsr__planner_strategy(planner, &planner->nodes[i]);
        if (!planner->nodes[i].strategy)
            return false;
        // Producers come before their readers, so their candidates are complete.
        offer_along(planner, i, SIDE_INPUT);
    }
    for (size_t i = planner->n_nodes; i-- > 0;)
        if (is_plain(planner, i))
            offer_along(planner, i, SIDE_OUTPUT);
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (is_plain(planner, i))
            offer_along(planner, i, SIDE_INPUT);
    return tsr__border_strategies(planner) && !planner->arena.failed;
}

// ---- the program -------------------------------------------------------------------------------

// Costs and names of the candidates of a strategy, shared by its nodes.
struct columns {
    int64_t *cost;
    struct str *names;
};

// Returns costs and names of the strategy's candidates, which are created once. So equal nodes
// share tables, and the solver recognizes these by their address. NULL: out of memory.
static struct columns *columns_of(struct planner *planner, struct strategy *strategy)
{
    if (strategy->columns)
        return strategy->columns;
    struct columns *columns = ARENA_NEW(&planner->arena, struct columns);
    if (!columns)
        return NULL;
    columns->cost = ARENA_ARRAY(&planner->arena, int64_t, strategy->at.n + 1);
    columns->names = ARENA_ARRAY(&planner->arena, struct str, strategy->at.n + 1);
    if (planner->arena.failed)
        return NULL;
    for (size_t i = 0; i < strategy->at.n; i++) {
        const struct candidate *candidate = &strategy->at.at[i];
        int64_t penalty = candidate->cut ? 0 : planner->machine.topology->unsharded_penalty;
        if (strategy->border) // only nodes should be sharded
            penalty = 0;
        columns->cost[i] = program_cost_of(candidate->compute + candidate->comm + penalty);
        columns->names[i] = candidate->name;
    }
    strategy->columns = columns;
    return columns;
}

// Returns the name of an entry's variable: that of the node, of its first output or of the value at
// the border.
static struct str entry_name(const struct plan_node *node)
{
    struct str name = node->border ? STR("") : tsr__node_str(node->node);
    if (node->border && node->border->leaves)
        return tsr__value_str(tsr__plan_read(node, 0));
    if (node->border)
        return tsr__value_str(tsr__plan_made(node, 0));
    if (!name.n && tsr_node_output_count(node->node) && tsr_node_output(node->node, 0))
        return tsr__value_str(tsr_node_output(node->node, 0));
    return name;
}

// Adds a variable for each needed node and border.
static bool add_nodes(struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        struct columns *columns = columns_of(planner, node->strategy);
        if (!columns)
            return false;
        node->var = tsr__program_node(&planner->program, entry_name(node),
                                      (uint32_t)node->strategy->at.n, columns->cost);
        tsr__program_choices(&planner->program, node->var, columns->names);
    }
    return true;
}

// Adds the edges: of the inputs first, then of the outputs of each node.
static bool add_edges(struct planner *planner)
{
    for (size_t i = 0; i < planner->ends.given.n; i++)
        if (!tsr__planner_given(planner, planner->ends.given.at[i]))
            return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        for (size_t o = 0; o < tsr__plan_makes(node); o++)
            if (tsr__plan_made(node, o) && !tsr__planner_edges(planner, i, o))
                return false;
        if (node->bodies && !tsr__bodies_edges(planner, i))
            return false;
    }
    return true;
}

// Builds the program. Adds the memory limits first, one for each class of devices with equal
// memory, because all values add their bytes to them. Adds constants last, because they need the
// variables of the nodes that read them.
bool tsr__planner_program(struct planner *planner, int64_t memory)
{
    planner->n_times = (uint32_t)(PLAN_TIMES * planner->n_nodes + PLAN_TIMES);
    planner->memory.asked = memory;
    planner->memory.gathered.n = 0;
    tsr__program_init(&planner->program, planner->work);
    return tsr__planner_classes(planner, memory) && tsr__planner_followed(planner) &&
           tsr__planner_limits(planner) && add_nodes(planner) && add_edges(planner) &&
           tsr__planner_state_edges(planner) && tsr__use_constants(planner) &&
           !planner->arena.failed && !planner->work->failed;
}

bool tsr__planner_rebuild(struct planner *planner, bool gathers)
{
    planner->memory.gathers = gathers;
    return tsr__planner_program(planner, planner->memory.asked);
}
