// SPDX-License-Identifier: Apache-2.0
// joint.c - two models of the same weights planned at once: prefill and decode.
//
// Each has its program; the two become one, with the costs of the second times the number of its runs, and with an edge
// for every weight that both have, which forbids that they lie differently. Devices hold both models at a time, so what
// only one has counts while the other runs too; what both have counts once, because it lies the same.
//
// A weight W, prefill once and decode 100 times. Ways to have W, and what each model takes with it, in ms:
//
//                  prefill   decode   prefill + 100 x decode
//     by rows           20       3        320
//     by columns        12       5        512
//
// Alone, prefill would take columns and decode rows, and W would lie there twice. The edge between the two nodes that read
// it allows (rows, rows) and (columns, columns) only; the first is the least. A cache that decode keeps while prefill
// runs is its own: a use of decode's variable in the rows of prefill, at all of its times.
#include "plan/edges.h"

#include <math.h>

#define COMPARED_BYTES ((size_t)1 << 10) // weights below are the same by name alone

struct joint {
    struct planner *planners[2];
    struct program program;
    uint32_t first[2]; // variables of each
    uint32_t first_limit[2];
    int64_t runs[2];
    int shift;                 // costs are halved so often, for sums to stay small enough
    struct map scaled, links;  // tables, made once
    const tsr_value **twin[2]; // by value id: the same weight in the other model
    size_t shared;
};

// ---- weights that both have --------------------------------------------------------------------

static bool same_form(const tsr_tensor *a, const tsr_tensor *b)
{
    int rank = tsr_tensor_rank(a);
    return tsr_tensor_dtype(a) == tsr_tensor_dtype(b) && rank == tsr_tensor_rank(b) &&
           memcmp(tsr_tensor_dims(a), tsr_tensor_dims(b), (size_t)rank * sizeof(int64_t)) == 0;
}

// Data outside of the files is not looked at.
static bool same_bytes(const tsr_tensor *a, const tsr_tensor *b)
{
    const void *x, *y;
    size_t n, m;
    if (tsr_tensor_bytes(a) < (int64_t)COMPARED_BYTES || tsr_tensor_is_external(a) ||
        tsr_tensor_is_external(b))
        return false;
    return tsr_tensor_data(a, &x, &n) == TSR_OK && tsr_tensor_data(b, &y, &m) == TSR_OK && n == m &&
           memcmp(x, y, n) == 0;
}

static bool is_weight(const struct planner *planner, const tsr_value *value)
{
    return planner->values[tsr__value_id(value)].constant && tsr_value_initializer(value);
}

static void pair(struct joint *joint, const tsr_value *a, const tsr_value *b)
{
    joint->twin[0][tsr__value_id(a)] = b;
    joint->twin[1][tsr__value_id(b)] = a;
    joint->shared++;
}

// A weight of the second model that is the same as one of the first and was not found by name.
static const tsr_value *equal_of(const struct joint *joint, const tsr_value *value)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[1]->model);
    for (size_t k = 0; k < tsr_graph_initializer_count(graph); k++) {
        const tsr_value *w = tsr_graph_initializer(graph, k);
        if (is_weight(joint->planners[1], w) && !joint->twin[1][tsr__value_id(w)] &&
            same_form(tsr_value_initializer(value), tsr_value_initializer(w)) &&
            same_bytes(tsr_value_initializer(value), tsr_value_initializer(w)))
            return w;
    }
    return NULL;
}

// The weights of the second model by name.
static void list_names(const struct joint *joint, struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[1]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        tsr_value *value = tsr_graph_initializer(graph, i);
        if (!is_weight(joint->planners[1], value))
            continue;
        void **at = tsr__map_at(names, tsr__value_str(value));
        if (at)
            *at = value;
    }
}

// Pairs the weights of the first model that have no twin yet: by name (names not NULL), or by their bytes.
static void pair_left(struct joint *joint, const struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i), *twin = NULL;
        if (!is_weight(joint->planners[0], value) || joint->twin[0][tsr__value_id(value)])
            continue;
        if (names)
            twin = tsr__map_get(names, tsr__value_str(value));
        else
            twin = equal_of(joint, value);
        if (twin && same_form(tsr_value_initializer(value), tsr_value_initializer(twin)))
            pair(joint, value, twin);
    }
}

// By name and form; what is left, by its bytes.
static bool pair_weights(struct joint *joint)
{
    struct arena *arena = &joint->planners[0]->arena;
    const tsr_graph *second = tsr_model_graph(joint->planners[1]->model);
    struct map names;
    tsr__map_init(&names, arena, tsr_graph_initializer_count(second));
    for (int m = 0; m < 2; m++) {
        uint32_t n_values = tsr__model_value_ids(joint->planners[m]->model);
        joint->twin[m] = ARENA_ARRAY(arena, const tsr_value *, n_values + 1);
    }
    if (arena->failed)
        return false;
    list_names(joint, &names);
    if (arena->failed)
        return false;
    pair_left(joint, &names);
    pair_left(joint, NULL);
    return !arena->failed;
}

// ---- one program of two ------------------------------------------------------------------------

static double largest(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (cost[i] != COST_FORBIDDEN)
            most = larger(most, cost[i]);
    return (double)most;
}

static size_t cells(const struct program *program, const struct program_edge *edge)
{
    return (size_t)program->nodes.at[edge->a].k * program->nodes.at[edge->b].k;
}

// The sum of the largest costs must stay far below what can be counted.
static void choose_shift(struct joint *joint)
{
    double sum = 0;
    for (int m = 0; m < 2; m++) {
        const struct program *program = &joint->planners[m]->program;
        for (size_t i = 0; i < program->nodes.n; i++)
            sum +=
                largest(program->nodes.at[i].cost, program->nodes.at[i].k) * (double)joint->runs[m];
        for (size_t i = 0; i < program->edges.n; i++)
            sum += largest(program->edges.at[i].cost, cells(program, &program->edges.at[i])) *
                   (double)joint->runs[m];
    }
    while (sum > (double)PROGRAM_MOST / 2) {
        sum /= 2;
        joint->shift++;
    }
}

// A cost times the runs of its model, halved as often as the sums need it.
static int64_t scaled_cost(const struct joint *joint, int m, int64_t cost)
{
    if (cost == COST_FORBIDDEN)
        return COST_FORBIDDEN;
    if (joint->shift)
        return (int64_t)ldexp((double)cost * (double)joint->runs[m], -joint->shift);
    return cost * joint->runs[m];
}

// The table times the runs of its model; equal tables stay one.
static const int64_t *scaled(struct joint *joint, int m, const int64_t *cost, size_t n)
{
    struct arena *arena = &joint->planners[0]->arena;
    if (joint->runs[m] == 1 && !joint->shift)
        return cost;
    struct {
        const int64_t *cost;
        size_t n, model;
    } key = {cost, n, (size_t)m};
    struct str text = tsr__arena_str(arena, (struct str){(const char *)&key, sizeof key});
    void **at = text.p ? tsr__map_at(&joint->scaled, text) : NULL;
    if (!at)
        return NULL;
    if (*at)
        return *at;
    int64_t *table = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!table)
        return NULL;
    for (size_t i = 0; i < n; i++)
        table[i] = scaled_cost(joint, m, cost[i]);
    *at = table;
    return table;
}

// Nodes, edges and limits of one model's program, its costs times its runs.
static bool add_program(struct joint *joint, int m)
{
    const struct program *program = &joint->planners[m]->program;
    struct program *to = &joint->program;
    uint32_t first = joint->first[m] = (uint32_t)to->nodes.n;
    joint->first_limit[m] = (uint32_t)to->limits.n;
    for (size_t i = 0; i < program->nodes.n; i++) {
        const struct program_node *node = &program->nodes.at[i];
        const int64_t *cost = scaled(joint, m, node->cost, node->k);
        if (!cost)
            return false;
        uint32_t at = tsr__program_node(to, node->name, node->k, cost);
        if (node->choices)
            tsr__program_choices(to, at, node->choices);
    }
    for (size_t i = 0; i < program->edges.n; i++) {
        const struct program_edge *edge = &program->edges.at[i];
        const int64_t *cost = scaled(joint, m, edge->cost, cells(program, edge));
        if (!cost)
            return false;
        tsr__program_edge(to, first + edge->a, first + edge->b, cost);
    }
    for (size_t i = 0; i < program->limits.n; i++) {
        const struct program_limit *limit = &program->limits.at[i];
        uint32_t at = tsr__program_limit(to, limit->name, limit->bound, limit->n_times);
        for (size_t k = 0; k < limit->uses.n; k++)
            tsr__program_use(to, at, first + limit->uses.at[k].node, limit->uses.at[k].begin,
                             limit->uses.at[k].end, limit->uses.at[k].usage);
    }
    return !to->arena->failed;
}

// ---- links -------------------------------------------------------------------------------------

static const struct strategy *strategy_of(const struct planner *planner,
                                          const struct reader *reader)
{
    if (reader->node == SIZE_MAX || reader->captures)
        return NULL;
    return planner->nodes[reader->node].strategy;
}

// One end of a link: how a node of a model has a value, by its choice.
struct link_end {
    const struct planner *planner;
    const struct strategy *strategy;
    enum slot_side side;
    size_t slot;
};

static const struct tile_layout *layout_of(const struct link_end *end, size_t choice)
{
    const struct candidate *candidate = &end->strategy->at.at[choice];
    uint32_t layout = candidate_layouts(candidate, end->side)[end->slot];
    return end->planner->layouts.at[layout].tiles;
}

// Which choices go together: those in which the value lies the same. NULL: out of memory.
static int64_t *link_table(struct arena *arena, const struct link_end *a, const struct link_end *b)
{
    size_t n_a = a->strategy->at.n, n_b = b->strategy->at.n;
    int64_t *table = ARENA_ARRAY(arena, int64_t, n_a * n_b + 1);
    if (!table)
        return NULL;
    for (size_t i = 0; i < n_a; i++)
        for (size_t k = 0; k < n_b; k++) {
            bool same = tsr__layout_equal(layout_of(a, i), layout_of(b, k));
            table[i * n_b + k] = same ? 0 : COST_FORBIDDEN;
        }
    return table;
}

// Two nodes may only take choices in which these inputs lie the same.
static bool link_readers(struct joint *joint, const struct reader *x, const struct reader *y)
{
    struct arena *arena = &joint->planners[0]->arena;
    struct link_end a = {joint->planners[0], strategy_of(joint->planners[0], x), SIDE_INPUT,
                         x->slot};
    struct link_end b = {joint->planners[1], strategy_of(joint->planners[1], y), SIDE_INPUT,
                         y->slot};
    if (!a.strategy || !b.strategy)
        return true; // what a body reads is whole in any case
    uint32_t key[4] = {a.strategy->id, (uint32_t)x->slot, b.strategy->id, (uint32_t)y->slot};
    struct str text = tsr__arena_str(arena, (struct str){(const char *)key, sizeof key});
    void **at = text.p ? tsr__map_at(&joint->links, text) : NULL;
    if (!at)
        return false;
    if (!*at)
        *at = link_table(arena, &a, &b);
    if (!*at)
        return false;
    tsr__program_edge(&joint->program, joint->first[0] + joint->planners[0]->nodes[x->node].var,
                      joint->first[1] + joint->planners[1]->nodes[y->node].var, *at);
    return !joint->program.arena->failed;
}

static const struct reader *reader_or_last(const struct readers *readers, size_t i)
{
    return &readers->at[i < readers->n ? i : readers->n - 1];
}

// Readers in their order; those that one model has more of go with the last of the other.
static bool link_weight(struct joint *joint, const tsr_value *value, const tsr_value *twin)
{
    struct arena *arena = &joint->planners[0]->arena;
    struct readers x = tsr__planner_readers(joint->planners[0], arena, value);
    struct readers y = tsr__planner_readers(joint->planners[1], arena, twin);
    size_t n = x.n > y.n ? x.n : y.n;
    if (!x.n || !y.n)
        return !arena->failed;
    for (size_t i = 0; i < n; i++)
        if (!link_readers(joint, reader_or_last(&x, i), reader_or_last(&y, i)))
            return false;
    return !arena->failed;
}

static bool link_weights(struct joint *joint)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_value *twin = joint->twin[0][tsr__value_id(value)];
        if (twin && !link_weight(joint, value, twin))
            return false;
    }
    return true;
}

// What the first hands over lies as the other reads it.
static bool link_state(struct joint *joint, const tsr_value *present, const tsr_value *past)
{
    struct planner *first = joint->planners[0], *second = joint->planners[1];
    struct reader from;
    struct readers readers = tsr__planner_readers(second, &first->arena, past);
    const struct reader *to = readers.n ? &readers.at[0] : NULL;
    const struct strategy *strategy = to ? strategy_of(second, to) : NULL;
    if (!strategy || !tsr__planner_made_by(first, present, &from))
        return !first->arena.failed;
    struct link_end made = {first, first->nodes[from.node].strategy, SIDE_OUTPUT, from.slot};
    struct link_end read = {second, strategy, SIDE_INPUT, to->slot};
    int64_t *table = link_table(&first->arena, &made, &read);
    if (!table)
        return false;
    tsr__program_edge(&joint->program, joint->first[0] + first->nodes[from.node].var,
                      joint->first[1] + second->nodes[to->node].var, table);
    joint->twin[1][tsr__value_id(past)] = present;
    return !joint->program.arena->failed;
}

static bool link_states(struct joint *joint)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[0]->model);
    for (size_t i = 0; i < joint->planners[1]->ends.states.n; i++) {
        const struct state_pair *state_pair = &joint->planners[1]->ends.states.at[i];
        for (size_t k = 0; k < tsr_graph_output_count(graph); k++) {
            const tsr_value *value = tsr_graph_output(graph, k);
            if (str_eq(tsr__value_str(value), tsr__value_str(state_pair->present)) &&
                !link_state(joint, value, state_pair->past))
                return false;
        }
    }
    return true;
}

// ---- what only one of them has -----------------------------------------------------------------

// Bytes of constants that the other model lacks, by choice of the node; NULL: none.
static int64_t *own_bytes(struct joint *joint, int m, const struct plan_node *node, size_t class)
{
    struct planner *planner = joint->planners[m];
    size_t n_choices = node->strategy->at.n;
    int64_t *bytes = NULL;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *value = tsr_node_input(node->node, i);
        if (!value || !planner->values[tsr__value_id(value)].constant ||
            joint->twin[m][tsr__value_id(value)] || read_before(node->node, i))
            continue;
        if (!bytes)
            bytes = ARENA_ARRAY(&joint->planners[0]->arena, int64_t, n_choices + 1);
        if (!bytes)
            return NULL; // the arena has failed: add_own says so
        for (size_t c = 0; c < n_choices; c++)
            bytes[c] += tsr__planner_class_bytes(planner, class, node->strategy->at.at[c].in[i],
                                                 &planner->values[tsr__value_id(value)]);
    }
    return bytes;
}

// They lie there while the other model runs.
static bool add_own(struct joint *joint, int m)
{
    const struct planner *planner = joint->planners[m], *other = joint->planners[1 - m];
    size_t n_classes = planner->memory.n_classes;
    if (other->memory.n_classes < n_classes)
        n_classes = other->memory.n_classes;
    for (size_t c = 0; c < n_classes; c++)
        for (size_t i = 0; i < planner->n_nodes; i++) {
            const struct plan_node *node = &planner->nodes[i];
            int64_t *bytes = node->strategy ? own_bytes(joint, m, node, c) : NULL;
            if (bytes)
                tsr__program_use(&joint->program,
                                 joint->first_limit[1 - m] + other->memory.limits[c],
                                 joint->first[m] + node->var, 0, other->n_times, bytes);
        }
    return !joint->program.arena->failed && !joint->planners[0]->arena.failed;
}

static bool build(struct joint *joint, int64_t memory)
{
    for (int m = 0; m < 2; m++)
        if (!tsr__planner_list(joint->planners[m]) ||
            !tsr__planner_candidates(joint->planners[m]) ||
            !tsr__planner_program(joint->planners[m], memory))
            return false;
    struct arena *arena = &joint->planners[0]->arena;
    tsr__map_init(&joint->scaled, arena, 256);
    tsr__map_init(&joint->links, arena, 256);
    tsr__program_init(&joint->program, arena);
    choose_shift(joint);
    return pair_weights(joint) && add_program(joint, 0) && add_program(joint, 1) &&
           link_weights(joint) && link_states(joint) && add_own(joint, 0) && add_own(joint, 1);
}

// ---- the answer --------------------------------------------------------------------------------

// One model's share of the answer: the choices of its nodes, written into it, and what they come to.
static tsr_status write_part(struct joint *joint, int m, const uint32_t *choice, const char *config,
                             int64_t *peak, tsr_plan_part *out)
{
    struct planner *planner = joint->planners[m];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    tsr_plan_summary told = {0};
    const uint32_t *own = choice + joint->first[m];
    int64_t *memory = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
    tsr__planner_take(planner, own);
    if (!memory || !tsr__planner_memory(planner, memory, peak))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_write(planner, config);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_tell(planner, NULL, &told);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_part){.config = told.config,
                           .cost = tsr__program_cost(&planner->program, own),
                           .memory = memory,
                           .collectives = told.collectives,
                           .n_collectives = told.n_collectives,
                           .nodes = told.nodes,
                           .cut_nodes = told.cut_nodes};
    return TSR_OK;
}

// Numbers that the first model stands for are the summary's own; cost and bound are of both.
static void sum_up(const struct joint *joint, const struct program_result *result,
                   const tsr_plan_part *parts, tsr_plan_summary *out)
{
    out->parts = parts;
    out->n_parts = 2;
    out->shared = joint->shared;
    out->config = parts[0].config;
    out->collectives = parts[0].collectives;
    out->n_collectives = parts[0].n_collectives;
    out->nodes = parts[0].nodes;
    out->cut_nodes = parts[0].cut_nodes;
    out->cost = parts[0].cost + joint->runs[1] * parts[1].cost;
    out->bound = smaller(result->bound << joint->shift, out->cost);
    out->optimal = result->optimal;
    if (!result->optimal)
        out->gap = (double)(out->cost - out->bound) / (double)out->cost;
}

// Writes both models; what both hold on a device at a time is the larger of the two, since one of them runs.
static tsr_status tell(struct joint *joint, const struct program_result *result,
                       const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct arena *arena = &joint->planners[0]->session->results[RESULT_PLAN];
    size_t n = (size_t)joint->planners[0]->machine.n;
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, 2);
    int64_t *memory = ARENA_ARRAY(arena, int64_t, n);
    int64_t *peak = ARENA_ARRAY(arena, int64_t, 2 * n);
    if (!parts || !memory || !peak)
        return TSR_NOMEM;
    for (int m = 0; m < 2; m++) {
        tsr_status st =
            write_part(joint, m, result->choice, options->config, peak + (size_t)m * n, &parts[m]);
        if (st != TSR_OK)
            return st;
    }
    for (size_t device = 0; device < n; device++) {
        peak[device] = larger(peak[device], peak[n + device]);
        memory[device] = larger(parts[0].memory[device], parts[1].memory[device]);
    }
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = n, .feasible = true};
    out->memory = memory;
    out->peak = peak;
    sum_up(joint, result, parts, out);
    return TSR_OK;
}

// Says what each device would have to have: the least memory of a plan of both.
static tsr_status refuse(struct joint *joint, bool proved, tsr_plan_summary *out)
{
    struct planner *planner = joint->planners[0];
    struct program_least least = {0};
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->machine.n};
    struct program_options share = tsr__budget_share(planner->budget, 0.5);
    tsr_status st = tsr__program_least(&joint->program, &share, &planner->arena, &least);
    if (st != TSR_OK)
        return st;
    if (least.found)
        out->needs_bytes = least.least;
    return tsr__planner_say_none(planner, "plan of both models", proved, out->needs_bytes);
}

// Memory counts where the caller gave a number or a topology.
static int64_t memory_limit(const tsr_plan_options *options)
{
    if (options->memory > 0 || options->topology)
        return options->memory;
    return PLAN_NO_LIMIT;
}

static tsr_status solve(struct joint *joint, const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct planner *planner = joint->planners[0];
    struct program_result result = {0};
    tsr_status st = TSR_OK;
    if (options->export_lp)
        st = tsr__planner_export(planner->session, &joint->program, options->export_lp);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_solve(planner, &joint->program, &result);
    if (st != TSR_OK)
        return st;
    if (!result.feasible)
        return refuse(joint, result.infeasible, out);
    return tell(joint, &result, options, out);
}

tsr_status tsr__plan_joint(struct planner *planner, struct planner *with,
                           const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct joint joint = {.planners = {planner, with}, .runs = {1, larger(options->steps, 1)}};
    if (!build(&joint, memory_limit(options)))
        return TSR_NOMEM;
    tsr_status st = solve(&joint, options, out);
    tsr__budget_told(planner->budget);
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    if (st != TSR_OK || !options->explain)
        return st;
    return tsr__planner_explain(planner, &joint.program, options->explain, out);
}
