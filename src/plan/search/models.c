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
#include "plan/search/models.h"

#include <math.h>

#define COMPARED_BYTES ((size_t)1 << 10) // weights below are the same by name alone

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

struct pairing {
    struct planner *const *planners; // two
    struct twins *twins;
};

static void pair(struct twins *twins, const tsr_value *a, const tsr_value *b)
{
    twins->of[0][tsr__value_id(a)] = b;
    twins->of[1][tsr__value_id(b)] = a;
    twins->n++;
}

// A weight of the second model that is the same as one of the first and was not found by name.
static const tsr_value *equal_of(const struct pairing *pairing, const tsr_value *value)
{
    const tsr_graph *graph = tsr_model_graph(pairing->planners[1]->model);
    for (size_t k = 0; k < tsr_graph_initializer_count(graph); k++) {
        const tsr_value *w = tsr_graph_initializer(graph, k);
        if (is_weight(pairing->planners[1], w) && !pairing->twins->of[1][tsr__value_id(w)] &&
            same_form(tsr_value_initializer(value), tsr_value_initializer(w)) &&
            same_bytes(tsr_value_initializer(value), tsr_value_initializer(w)))
            return w;
    }
    return NULL;
}

// The weights of the second model by name.
static void list_names(const struct pairing *pairing, struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(pairing->planners[1]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        tsr_value *value = tsr_graph_initializer(graph, i);
        if (!is_weight(pairing->planners[1], value))
            continue;
        void **at = tsr__map_at(names, tsr__value_str(value));
        if (at)
            *at = value;
    }
}

// Pairs the weights of the first model that have no twin yet: by name (names not NULL), or by their bytes.
static void pair_left(const struct pairing *pairing, const struct map *names)
{
    const tsr_graph *graph = tsr_model_graph(pairing->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i), *twin = NULL;
        if (!is_weight(pairing->planners[0], value) || pairing->twins->of[0][tsr__value_id(value)])
            continue;
        if (names)
            twin = tsr__map_get(names, tsr__value_str(value));
        else
            twin = equal_of(pairing, value);
        if (twin && same_form(tsr_value_initializer(value), tsr_value_initializer(twin)))
            pair(pairing->twins, value, twin);
    }
}

// Names first: comparing bytes of every weight with every other is left for those whose names
// differ.
bool tsr__joint_twins(struct planner *const planners[2], struct twins *out)
{
    struct arena *arena = &planners[0]->arena;
    const tsr_graph *second = tsr_model_graph(planners[1]->model);
    struct pairing pairing = {planners, out};
    struct map names;
    *out = (struct twins){.n = 0};
    tsr__map_init(&names, arena, tsr_graph_initializer_count(second));
    for (int m = 0; m < 2; m++) {
        uint32_t n_values = tsr__model_value_ids(planners[m]->model);
        out->of[m] = ARENA_ARRAY(arena, const tsr_value *, n_values + 1);
    }
    if (arena->failed)
        return false;
    list_names(&pairing, &names);
    if (arena->failed)
        return false;
    pair_left(&pairing, &names);
    pair_left(&pairing, NULL);
    return !arena->failed;
}

// ---- one program of two ------------------------------------------------------------------------

// The largest cost that is allowed.
static double largest(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (cost[i] != COST_FORBIDDEN)
            most = int64_max(most, cost[i]);
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
    struct arena *arena = joint->arena;
    if (joint->runs[m] == 1 && !joint->shift)
        return cost;
    struct {
        const int64_t *cost;
        size_t n, model;
    } key = {cost, n, (size_t)m};
    void **at = tsr__map_at_copy(&joint->scaled, str_bytes(&key, sizeof key));
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
    // Edges and uses name variables by number: those of the second model come after all of the
    // first.
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

// NULL: the caller or a body reads it, which has no choice.
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

// The two ends' table, made once for ends that are alike. NULL: out of memory.
static const int64_t *kept_table(struct joint *joint, const struct link_end *a,
                                 const struct link_end *b)
{
    uint32_t key[5] = {a->strategy->id, a->side, (uint32_t)a->slot, b->strategy->id,
                       (uint32_t)b->slot};
    void **at = tsr__map_at_copy(joint->links, str_bytes(key, sizeof key));
    if (at && !*at)
        *at = link_table(joint->link_arena, a, b);
    return at ? *at : NULL;
}

// Two nodes may only take choices in which these inputs lie the same.
static bool link_readers(struct joint *joint, const struct reader *x, const struct reader *y)
{
    struct link_end a = {joint->planners[0], strategy_of(joint->planners[0], x), SIDE_INPUT,
                         x->slot};
    struct link_end b = {joint->planners[1], strategy_of(joint->planners[1], y), SIDE_INPUT,
                         y->slot};
    if (!a.strategy || !b.strategy)
        return true; // what a body reads is whole in any case
    const int64_t *table = kept_table(joint, &a, &b);
    if (!table)
        return false;
    tsr__program_edge(&joint->program, joint->first[0] + joint->planners[0]->nodes[x->node].var,
                      joint->first[1] + joint->planners[1]->nodes[y->node].var, table);
    return !joint->program.arena->failed;
}

// Readers in their order; those that one model has more of go with the last of the other.
static bool link_weight(struct joint *joint, const tsr_value *value, const tsr_value *twin)
{
    struct arena *arena = joint->arena;
    struct readers x = tsr__planner_readers(joint->planners[0], arena, value);
    struct readers y = tsr__planner_readers(joint->planners[1], arena, twin);
    size_t n = x.n > y.n ? x.n : y.n;
    if (!x.n || !y.n)
        return !arena->failed;
    for (size_t i = 0; i < n; i++)
        if (!link_readers(joint, tsr__reader_or_last(&x, i), tsr__reader_or_last(&y, i)))
            return false;
    joint->linked[0][tsr__value_id(value)] = 1;
    joint->linked[1][tsr__value_id(twin)] = 1;
    return !arena->failed;
}

static bool link_weights(struct joint *joint)
{
    const tsr_graph *graph = tsr_model_graph(joint->planners[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i);
        const tsr_value *twin = joint->twins->of[0][tsr__value_id(value)];
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
    struct readers readers = tsr__planner_readers(second, joint->arena, past);
    const struct reader *to = readers.n ? &readers.at[0] : NULL;
    // A state that no node of the second model reads at an input, or that no node of the first
    // makes, needs no link.
    const struct strategy *strategy = to ? strategy_of(second, to) : NULL;
    if (!strategy || !tsr__planner_made_by(first, present, &from))
        return !joint->arena->failed;
    struct link_end made = {first, first->nodes[from.node].strategy, SIDE_OUTPUT, from.slot};
    struct link_end read = {second, strategy, SIDE_INPUT, to->slot};
    const int64_t *table = kept_table(joint, &made, &read);
    if (!table)
        return false;
    tsr__program_edge(&joint->program, joint->first[0] + first->nodes[from.node].var,
                      joint->first[1] + second->nodes[to->node].var, table);
    joint->linked[1][tsr__value_id(past)] = 1;
    return !joint->program.arena->failed;
}

const tsr_value *tsr__joint_handed(const struct planner *first, const struct state_pair *pair)
{
    const tsr_graph *graph = tsr_model_graph(first->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (str_eq(tsr__value_str(value), tsr__value_str(pair->present)))
            return value;
    }
    return NULL;
}

static bool link_states(struct joint *joint)
{
    for (size_t i = 0; i < joint->planners[1]->ends.states.n; i++) {
        const struct state_pair *pair = &joint->planners[1]->ends.states.at[i];
        const tsr_value *handed = tsr__joint_handed(joint->planners[0], pair);
        if (handed && !link_state(joint, handed, pair->past))
            return false;
    }
    return true;
}

bool tsr__joint_shared(struct planner *const planners[2], const struct twins *twins,
                       unsigned char *out[2])
{
    const struct planner_ends *ends = &planners[1]->ends;
    for (int m = 0; m < 2; m++) {
        uint32_t n_values = tsr__model_value_ids(planners[m]->model);
        out[m] = ARENA_ARRAY(&planners[0]->arena, unsigned char, n_values + 1);
        if (!out[m])
            return false;
        for (uint32_t id = 0; id < n_values; id++)
            out[m][id] = twins->of[m][id] != NULL;
    }
    for (size_t i = 0; i < ends->states.n; i++)
        if (tsr__joint_handed(planners[0], &ends->states.at[i]))
            out[1][tsr__value_id(ends->states.at[i].past)] = 1;
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
            joint->linked[m][tsr__value_id(value)] || read_before(node->node, i))
            continue;
        if (!bytes)
            bytes = ARENA_ARRAY(joint->arena, int64_t, n_choices + 1);
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
    return !joint->arena->failed;
}

bool tsr__joint_program(struct joint *joint)
{
    struct arena *arena = joint->arena = joint->planners[0]->work;
    for (int m = 0; m < 2; m++) {
        uint32_t n_values = tsr__model_value_ids(joint->planners[m]->model);
        joint->linked[m] = ARENA_ARRAY(arena, unsigned char, n_values + 1);
    }
    if (arena->failed)
        return false;
    tsr__map_init(&joint->scaled, arena, 256);
    tsr__program_init(&joint->program, arena);
    choose_shift(joint);
    return add_program(joint, 0) && add_program(joint, 1) && link_weights(joint) &&
           link_states(joint) && add_own(joint, 0) && add_own(joint, 1);
}

int64_t tsr__joint_time(int64_t first, int64_t runs, int64_t other)
{
    int64_t all;
    if (!mul_ok(runs, other, &all) || all >= PLAN_NEVER - first)
        return PLAN_NEVER;
    return first + all;
}

void tsr__joint_unscale(const struct joint *joint, tsr_plan_summary *out)
{
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->n_choices; i++)
        list[i].cost <<= joint->shift;
}
