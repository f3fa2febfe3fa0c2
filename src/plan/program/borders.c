// SPDX-License-Identifier: Apache-2.0
// borders.c - candidates and edges of the borders of bodies, and of the nodes that have them
// (costs/bodies.c has the list of entries).
//
// A border can have every layout in which the nodes of the body read or make the value, if each
// device has one shard of it. Two kinds of edges are added to those of the values: both borders of
// a loop state choose the same layout, and bodies whose decisions are not exact are sharded only if
// the node broadcasts the decisions.
//
//     Example: a Loop on devices 0 and 1 carries h [8, 6]. Its body h' = Tanh(h) reads and makes h
//     replicated, as {2, 1} or as {1, 2}: three candidates for the borders of h and h'. The stacked
//     result [n, 8, 6] of a value with layout {2, 1} has layout {1, 2, 1}.
#include "plan/program/edges.h"

#define MOST_LAYOUTS 24 // candidates of a border

static const struct rule border_rule = {.whole = "a value at the border of a body"};

// ---- layouts -----------------------------------------------------------------------------------

// A border while its candidates are made.
struct border_maker {
    struct planner *planner;
    const struct plan_node *node;
    struct arena *arena;
    uint32_t inner[MOST_LAYOUTS], outer[MOST_LAYOUTS]; // layouts inside and outside, by candidate
    size_t n;
};

// Returns the values at a border: inside of body k, and outside (NULL: none).
static const tsr_value *inner_value(const struct plan_node *node, size_t k)
{
    return node->border->leaves ? tsr__plan_read(node, k) : tsr__plan_made(node, 0);
}
static const tsr_value *outer_value(const struct plan_node *node)
{
    return node->border->leaves ? tsr__plan_made(node, 0) : tsr__plan_read(node, 0);
}

// True if all values at the border can have the layout inside (`inner`) and outside.
static bool fits_all(const struct border_maker *maker, const struct plan_node *node,
                     const struct tile_layout *inner, const struct tile_layout *outer)
{
    const struct planner_machine *machine = &maker->planner->machine;
    const struct shapes *shapes = maker->planner->shapes.model;
    struct placement place = {.devices = machine->all, .n_devices = (size_t)machine->n};
    size_t n = node->border->leaves ? tsr__plan_reads(node) : 1;
    for (size_t k = 0; k < n; k++)
        if (!tsr__body_fits(shapes, &place, inner, inner_value(node, k)))
            return false;
    return !outer_value(node) || tsr__body_fits(shapes, &place, outer, outer_value(node));
}

// Returns the entry of the other border of a loop state.
static const struct plan_node *other_border(const struct planner *planner,
                                            const struct plan_node *node)
{
    const struct plan_border *border = node->border;
    const struct plan_bodies *bodies = border->bodies;
    size_t i = border_owner(border, (size_t)(node - planner->nodes));
    size_t numbers = (size_t)bodies->control.n_numbers, condition = bodies->control.condition;
    if (border->leaves)
        return &planner->nodes[enter_border(bodies, i, border->index - condition + numbers)];
    return &planner->nodes[leave_border(bodies, i, border->index - numbers + condition)];
}

// Adds a candidate with the layout inside, if all values can have it.
static void add_layout(struct border_maker *maker, uint32_t layout)
{
    const struct plan_node *node = maker->node;
    struct planner *planner = maker->planner;
    const tsr_value *outer = outer_value(node);
    if (layout == PLAN_NO_LAYOUT || maker->n == MOST_LAYOUTS || planner->layouts.at[layout].parts ||
        layout_listed(maker->inner, maker->n, layout))
        return;
    const struct tile_layout *tiles = planner->layouts.at[layout].tiles, *outside = tiles;
    int axis =
        outer ? tsr__border_axis(node->border, planner->values[tsr__value_id(outer)].rank) : -1;
    if (axis >= 0)
        outside = tsr__body_shifted(maker->arena, tiles, axis, 1);
    if (!outside || !fits_all(maker, node, tiles, outside) ||
        (tsr__border_is_state(node->border) &&
         !fits_all(maker, other_border(planner, node), tiles, outside)))
        return;
    maker->inner[maker->n] = layout;
    maker->outer[maker->n++] = tsr__planner_layout(planner, outside);
}

// Adds the layouts in which the nodes of the bodies make or read the value.
static void add_inside(struct border_maker *maker, const struct plan_node *node)
{
    struct planner *planner = maker->planner;
    for (size_t k = 0; node->border->leaves && k < tsr__plan_reads(node); k++) {
        struct reader made;
        if (!tsr__planner_made_by(planner, tsr__plan_read(node, k), &made))
            continue;
        const struct strategy *strategy = planner->nodes[made.node].strategy;
        for (size_t c = 0; c < strategy->at.n; c++)
            add_layout(maker, strategy->at.at[c].out[made.slot]);
    }
    if (node->border->leaves)
        return;
    struct readers readers = tsr__planner_readers(planner, maker->arena, tsr__plan_made(node, 0));
    for (size_t r = 0; r < readers.n; r++) {
        const struct reader *reader = &readers.at[r];
        const struct strategy *strategy =
            reader->node == SIZE_MAX ? NULL : planner->nodes[reader->node].strategy;
        for (size_t c = 0; strategy && !reader->captures && c < strategy->at.n; c++)
            add_layout(maker, strategy->at.at[c].in[reader->slot]);
    }
}

// True if the node reads the outer value of the border in two slots. Such a value stays replicated,
// because a node has one sharding of a value.
static bool is_read_twice(const struct plan_node *node)
{
    const tsr_value *outer = node->border->leaves ? NULL : outer_value(node);
    size_t n = 0;
    for (size_t i = 0; outer && i < tsr_node_input_count(node->node); i++)
        n += tsr_node_input(node->node, i) == outer;
    return n > 1;
}

// True if the value must be replicated inside and outside: an iteration number, a condition, a
// result that is not used, or a value that the node reads twice.
static bool is_fixed(const struct planner *planner, const struct plan_node *node)
{
    if (planner->machine.n < 2 || is_read_twice(node))
        return true;
    if (!tsr__border_is_state(node->border))
        return !outer_value(node);
    return is_read_twice(other_border(planner, node));
}

// Returns the layout inside that the model's shardings of the node require; NULL: none.
static struct tile_layout *given_layout(const struct border_maker *maker,
                                        const struct plan_node *node)
{
    struct planner *planner = maker->planner;
    const tsr_value *outer = outer_value(node);
    const tsr_node_config *nc =
        planner->config && outer ? tsr_node_find_config(node->node, planner->config) : NULL;
    const tsr_spec *spec = nc ? tsr__entry_spec(nc, outer) : NULL;
    struct tile_layout *layout = NULL;
    if (!spec)
        return NULL;
    struct shape shape = tsr__shapes_element(planner->shapes.model, outer);
    if (tsr__spec_layout(maker->arena, spec, &shape, true, &layout) != TSR_OK || !layout)
        return NULL;
    int axis = tsr__border_axis(node->border, layout->rank);
    return axis < 0 ? layout : tsr__body_shifted(maker->arena, layout, axis, -1);
}

// Adds the replicated candidate. Every value can be replicated, also a sequence, and also values at
// one border whose ranks differ or are unknown on one side. Each side gets its own rank.
static void add_replicated(struct border_maker *maker)
{
    struct planner *planner = maker->planner;
    const tsr_value *inner = inner_value(maker->node, 0), *outer = outer_value(maker->node);
    int rank = planner->values[tsr__value_id(inner)].rank;
    int outer_rank = outer ? planner->values[tsr__value_id(outer)].rank : rank;
    uint32_t inside = tsr__planner_replicated(planner, rank);
    uint32_t outside = tsr__planner_replicated(planner, outer_rank);
    if (inside == PLAN_NO_LAYOUT || outside == PLAN_NO_LAYOUT)
        return; // out of memory
    maker->inner[maker->n] = inside;
    maker->outer[maker->n++] = outside;
}

// Lists the layouts of a border: those that the model gives, or replicated and those of the nodes
// inside. *given: the model gives one.
static void list_layouts(struct border_maker *maker, bool *given)
{
    struct planner *planner = maker->planner;
    const struct plan_node *node = maker->node;
    bool state = tsr__border_is_state(node->border);
    struct tile_layout *layout = given_layout(maker, node);
    if (!layout && state)
        layout = given_layout(maker, other_border(planner, node));
    *given = layout != NULL;
    if (layout)
        add_layout(maker, tsr__planner_layout(planner, layout));
    if (maker->n)
        return;
    add_replicated(maker);
    if (is_fixed(planner, node) || *given)
        return;
    add_inside(maker, node);
    if (state)
        add_inside(maker, other_border(planner, node));
}

// ---- strategies --------------------------------------------------------------------------------

// Adds a candidate without cost that reads `n_in` values in the layout `in` and makes one in `out`.
static bool add_candidate(struct planner *planner, struct strategy *strategy, size_t n_in,
                          uint32_t in, uint32_t out)
{
    uint32_t *layouts = ARENA_ARRAY(&planner->arena, uint32_t, n_in + 2);
    struct candidate *candidate = vec_push(&planner->arena, &strategy->at);
    if (!layouts || !candidate)
        return false;
    for (size_t i = 0; i < n_in; i++)
        layouts[i] = in;
    layouts[n_in] = out;
    layouts[n_in + 1] = PLAN_NO_LAYOUT;
    const struct tile_layout *tiles = planner->layouts.at[out].tiles;
    *candidate = (struct candidate){.in = layouts,
                                    .out = layouts + n_in,
                                    .before = layouts + n_in + 1,
                                    .name = STR("whole"),
                                    .cut = !tsr__layout_is_whole(tiles)};
    if (candidate->cut)
        candidate->name = tsr__notation_print(&planner->arena, tiles);
    return true;
}

static struct strategy *strategy_new(struct planner *planner, const struct plan_node *node)
{
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    if (!strategy)
        return NULL;
    strategy->id = planner->cache.n_strategies++;
    strategy->node = node->node;
    strategy->times = node->times;
    strategy->rule = &border_rule;
    strategy->border = true;
    return strategy;
}

// Writes what the costs of a border depend on: times, types, sizes and layouts of its values.
static void write_key(const struct border_maker *maker, bool given, struct text *key)
{
    const struct plan_node *node = maker->node;
    const tsr_value *outer = outer_value(node);
    const tsr_value *values[] = {inner_value(node, 0), outer};
    int rank = outer ? maker->planner->values[tsr__value_id(outer)].rank : 0;
    int64_t head[] = {-1,
                      node->border->leaves,
                      given,
                      (int64_t)tsr__plan_reads(node),
                      node->times,
                      (int64_t)maker->n,
                      tsr__border_axis(node->border, rank)};
    tsr__text_add(key, str_bytes(head, sizeof head));
    for (size_t i = 0; i < TSR_COUNT(values); i++) {
        const struct plan_value *value =
            values[i] ? &maker->planner->values[tsr__value_id(values[i])] : NULL;
        int64_t about[] = {value ? value->rank : -1, value ? value->bits : 0,
                           value ? value->times : 0};
        tsr__text_add(key, str_bytes(about, sizeof about));
        if (value)
            tsr__text_add(key, str_bytes(value->shape, (size_t)value->rank * sizeof *value->shape));
    }
    tsr__text_add(key, str_bytes(maker->inner, maker->n * sizeof *maker->inner));
    tsr__text_add(key, str_bytes(maker->outer, maker->n * sizeof *maker->outer));
}

int64_t tsr__border_transposed(const struct planner *planner, const struct plan_node *node,
                               uint32_t layout)
{
    const tsr_value *outer = outer_value(node);
    const struct plan_value *value = outer ? &planner->values[tsr__value_id(outer)] : NULL;
    if (!value || tsr__border_axis(node->border, value->rank) < 1)
        return 0;
    struct work_kind kind = {.type = -1, .rate = -1, .move = TSR_MOVE_TURN};
    int64_t ps = tsr__work_cost((double)tsr__planner_elements(planner, layout, value), kind,
                                2 * (double)tsr__planner_bytes(planner, layout, value),
                                &planner->machine.slowest);
    return times_ps(ps, value->times);
}

// Returns the strategy with the listed layouts. Equal borders share one.
static struct strategy *strategy_of(struct border_maker *maker, bool given)
{
    struct planner *planner = maker->planner;
    const struct plan_node *node = maker->node;
    struct text key = {.session = planner->session};
    write_key(maker, given, &key);
    void **at = key.failed
                    ? NULL
                    : tsr__map_at_copy(&planner->cache.strategies, (struct str){key.p, key.n});
    tsr__text_free(&key);
    if (!at || *at)
        return at ? *at : NULL;
    struct strategy *strategy = strategy_new(planner, node);
    if (!strategy)
        return NULL;
    strategy->given = given;
    for (size_t i = 0; i < maker->n; i++) {
        uint32_t in = node->border->leaves ? maker->inner[i] : maker->outer[i];
        uint32_t out = node->border->leaves ? maker->outer[i] : maker->inner[i];
        if (!add_candidate(planner, strategy, tsr__plan_reads(node), in, out))
            return NULL;
        if (strategy->at.at[i].cut)
            strategy->at.at[i].compute = tsr__border_transposed(planner, node, maker->outer[i]);
    }
    *at = strategy;
    return strategy;
}

// Makes the strategy of a border. Both borders of a loop state get one strategy.
static bool fill_border(struct planner *planner, struct plan_node *node)
{
    struct arena scratch = {.session = planner->session};
    struct border_maker maker = {.planner = planner, .node = node, .arena = &scratch};
    bool given;
    list_layouts(&maker, &given);
    node->strategy = maker.n && !scratch.failed ? strategy_of(&maker, given) : NULL;
    if (tsr__border_is_state(node->border))
        planner->nodes[other_border(planner, node) - planner->nodes].strategy = node->strategy;
    tsr__arena_free(&scratch);
    return node->strategy != NULL;
}

// ---- decisions ---------------------------------------------------------------------------------

// Adds the time of broadcasting a decision to the candidate, unless all devices compute the same
// bits.
static void add_decision(struct planner *planner, const tsr_value *value,
                         struct candidate *candidate)
{
    struct device_group all = {planner->machine.all, (size_t)planner->machine.n};
    if (!value || tsr__control_exact(planner->shapes.model, value))
        return;
    const struct plan_value *decision = &planner->values[tsr__value_id(value)];
    int64_t ps = tsr__planner_combine(planner, TSR_BROADCAST, &all, 1, (decision->bits + 7) / 8);
    candidate->comm = int64_min(candidate->comm + times_ps(ps, decision->times), PLAN_NEVER);
    candidate->reduction = tsr__collective(COMM_BROADCAST)->op;
    candidate->reductions++;
}

// Makes the strategy of a node with bodies. It is replicated; a second candidate broadcasts the
// decisions, which sharded bodies need.
static bool fill_owner(struct planner *planner, struct plan_node *node)
{
    const struct control *control = &node->bodies->control;
    size_t n = tsr__plan_reads(node);
    struct work_kind kind =
        tsr__work_kind(node->node, planner->shapes.full, planner->machine.topology);
    int64_t compute = tsr__work_cost(0, kind, 0, &planner->machine.slowest);
    if (node->bodies->taken >= 0)
        compute = 0; // like a node that only computes sizes
    struct strategy *strategy = node->strategy = strategy_new(planner, node);
    if (!strategy)
        return false;
    strategy->rule = node->rule;
    strategy->whole = node->rule->whole;
    for (int c = 0; c < (node->bodies->exact || planner->machine.n < 2 ? 1 : 2); c++) {
        uint32_t scalar = tsr__planner_replicated(planner, 0);
        if (!add_candidate(planner, strategy, n, scalar, scalar))
            return false;
        struct candidate *candidate = &strategy->at.at[c];
        candidate->compute = times_ps(compute, node->times);
        for (size_t i = 0; i < n; i++) {
            const tsr_value *value = tsr__plan_read(node, i);
            candidate->in[i] = PLAN_NO_LAYOUT;
            if (!value)
                continue;
            candidate->in[i] =
                tsr__planner_replicated(planner, planner->values[tsr__value_id(value)].rank);
            if (c == 1)
                add_decision(planner, value, candidate);
        }
        if (c == 0)
            continue;
        candidate->name = STR("sharded bodies");
        if (control->condition)
            add_decision(planner, tsr_graph_output(control->bodies[0], 0), candidate);
    }
    return true;
}

// Makes the strategies of all nodes with bodies and of their borders. Inner bodies come first, so
// that the borders of outer ones can take over their layouts.
bool tsr__border_strategies(struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes && planner->body_outputs; i++) {
        struct plan_node *node = &planner->nodes[i];
        const struct plan_bodies *bodies = node->bodies;
        if (!bodies || planner->node_at[tsr__node_id(node->node)] < 0)
            continue;
        if (!fill_owner(planner, node))
            return false;
        for (size_t k = 0; k < bodies->n_leave; k++)
            if (!fill_border(planner, &planner->nodes[leave_border(bodies, i, k)]))
                return false;
        for (size_t k = 0; k < bodies->n_enter; k++) {
            struct plan_node *enter = &planner->nodes[enter_border(bodies, i, k)];
            if (!enter->strategy && !fill_border(planner, enter))
                return false;
        }
    }
    return true;
}

// ---- edges -------------------------------------------------------------------------------------

// Returns a table that forbids all pairs of choices but equal ones.
static int64_t *equal_table(struct planner *planner, size_t k)
{
    uint32_t key[2] = {TABLE_EQUAL, (uint32_t)k};
    void **kept = tsr__planner_cached(planner, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    int64_t *table = ARENA_ARRAY(&planner->arena, int64_t, k * k + 1);
    for (size_t i = 0; table && i < k * k; i++)
        table[i] = i % (k + 1) ? COST_FORBIDDEN : 0;
    *kept = table;
    return table;
}

// Both borders of a loop state have the same layout.
static bool tie_states(struct planner *planner, const struct plan_bodies *bodies, size_t i)
{
    for (size_t k = 0; k < bodies->n_enter; k++) {
        const struct plan_node *enter = &planner->nodes[enter_border(bodies, i, k)];
        size_t n = enter->strategy ? enter->strategy->at.n : 0;
        if (!tsr__border_is_state(enter->border) || n < 2)
            continue;
        int64_t *table = equal_table(planner, n);
        if (!table)
            return false;
        tsr__program_edge(&planner->program, enter->var, other_border(planner, enter)->var, table);
    }
    return true;
}

// Returns a table that forbids sharded candidates if the owner has its first candidate.
static int64_t *unsharded_table(struct planner *planner, const struct strategy *strategy)
{
    uint32_t key[2] = {TABLE_BODIES, strategy->id};
    void **kept = tsr__planner_cached(planner, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    int64_t *table = ARENA_ARRAY(&planner->arena, int64_t, 2 * strategy->at.n + 1);
    for (size_t c = 0; table && c < strategy->at.n; c++)
        table[c] = strategy->at.at[c].cut ? COST_FORBIDDEN : 0;
    *kept = table;
    return table;
}

bool tsr__bodies_edges(struct planner *planner, size_t owner)
{
    const struct plan_node *node = &planner->nodes[owner];
    if (!tie_states(planner, node->bodies, owner))
        return false;
    for (size_t i = bodies_begin(node->bodies, owner); i < owner && node->strategy->at.n > 1; i++) {
        const struct strategy *strategy = planner->nodes[i].strategy;
        if (!strategy || strategy->at.n < 2)
            continue;
        int64_t *table = unsharded_table(planner, strategy);
        if (!table)
            return false;
        tsr__program_edge(&planner->program, node->var, planner->nodes[i].var, table);
    }
    return true;
}
