// SPDX-License-Identifier: Apache-2.0
// joint.c - two models of the same weights planned at once: prefill and decode.
//
// Each has its program; the two become one, with the costs of the second times the number of its runs, and with an edge
// for every weight that both have, which forbids that they lie differently. Devices hold both models at a time, so what
// only one has counts while the other runs too; what both have counts once, because it lies the same.
#include "plan/edges.h"

#include <math.h>

#define COMPARED_BYTES ((size_t)1 << 10) // weights below are the same by name alone

struct joint {
    struct planner *p[2];
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
    const tsr_graph *graph = tsr_model_graph(joint->p[1]->model);
    for (size_t k = 0; k < tsr_graph_initializer_count(graph); k++) {
        const tsr_value *w = tsr_graph_initializer(graph, k);
        if (is_weight(joint->p[1], w) && !joint->twin[1][tsr__value_id(w)] &&
            same_form(tsr_value_initializer(value), tsr_value_initializer(w)) &&
            same_bytes(tsr_value_initializer(value), tsr_value_initializer(w)))
            return w;
    }
    return NULL;
}

// By name and form; what is left, by its bytes.
static bool pair_weights(struct joint *joint)
{
    struct arena *arena = &joint->p[0]->arena;
    const tsr_graph *g[2] = {tsr_model_graph(joint->p[0]->model),
                             tsr_model_graph(joint->p[1]->model)};
    size_t n[2] = {tsr_graph_initializer_count(g[0]), tsr_graph_initializer_count(g[1])};
    struct map names;
    tsr__map_init(&names, arena, n[1]);
    for (int m = 0; m < 2; m++)
        joint->twin[m] =
            ARENA_ARRAY(arena, const tsr_value *, tsr__model_value_ids(joint->p[m]->model) + 1);
    for (size_t i = 0; i < n[1] && !arena->failed; i++) {
        tsr_value *value = tsr_graph_initializer(g[1], i);
        void **at =
            is_weight(joint->p[1], value) ? tsr__map_at(&names, tsr__value_str(value)) : NULL;
        if (at)
            *at = value;
    }
    for (int by_bytes = 0; by_bytes < 2; by_bytes++)
        for (size_t i = 0; i < n[0] && !arena->failed; i++) {
            const tsr_value *v = tsr_graph_initializer(g[0], i), *w = NULL;
            if (!is_weight(joint->p[0], v) || joint->twin[0][tsr__value_id(v)])
                continue;
            w = by_bytes ? equal_of(joint, v) : tsr__map_get(&names, tsr__value_str(v));
            if (w && same_form(tsr_value_initializer(v), tsr_value_initializer(w)))
                pair(joint, v, w);
        }
    return !arena->failed;
}

// ---- one program of two ------------------------------------------------------------------------

static double largest(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = cost[i] != COST_FORBIDDEN && cost[i] > most ? cost[i] : most;
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
        const struct program *program = &joint->p[m]->program;
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

// The table times the runs of its model; equal tables stay one.
static const int64_t *scaled(struct joint *joint, int m, const int64_t *cost, size_t n)
{
    struct arena *arena = &joint->p[0]->arena;
    if (joint->runs[m] == 1 && !joint->shift)
        return cost;
    struct {
        const int64_t *cost;
        size_t n, model;
    } key = {cost, n, (size_t)m};
    struct str text = tsr__arena_str(arena, (struct str){(const char *)&key, sizeof key});
    void **at = text.p ? tsr__map_at(&joint->scaled, text) : NULL;
    if (!at || *at)
        return at ? *at : NULL;
    int64_t *t = ARENA_ARRAY(arena, int64_t, n + 1);
    for (size_t i = 0; t && i < n; i++)
        t[i] = cost[i] == COST_FORBIDDEN ? COST_FORBIDDEN
               : joint->shift
                   ? (int64_t)ldexp((double)cost[i] * (double)joint->runs[m], -joint->shift)
                   : cost[i] * joint->runs[m];
    *at = t;
    return t;
}

static bool add_program(struct joint *joint, int m)
{
    const struct program *program = &joint->p[m]->program;
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

// Two nodes may only take choices in which these inputs lie the same.
static bool link_readers(struct joint *joint, const struct reader *x, const struct reader *y)
{
    struct arena *arena = &joint->p[0]->arena;
    const struct strategy *s = strategy_of(joint->p[0], x), *t = strategy_of(joint->p[1], y);
    if (!s || !t)
        return true; // what a body reads is whole in any case
    uint32_t key[4] = {s->id, (uint32_t)x->slot, t->id, (uint32_t)y->slot};
    struct str text = tsr__arena_str(arena, (struct str){(const char *)key, sizeof key});
    void **at = text.p ? tsr__map_at(&joint->links, text) : NULL;
    int64_t *table = at ? *at : NULL;
    if (!table) {
        table = ARENA_ARRAY(arena, int64_t, s->at.n * t->at.n + 1);
        for (size_t i = 0; table && at && i < s->at.n; i++)
            for (size_t k = 0; k < t->at.n; k++) {
                uint32_t l = s->at.at[i].in[x->slot], r = t->at.at[k].in[y->slot];
                bool same = tsr__layout_equal(joint->p[0]->layouts.at[l].tiles,
                                              joint->p[1]->layouts.at[r].tiles);
                table[i * t->at.n + k] = same ? 0 : COST_FORBIDDEN;
            }
        if (!at || !table)
            return false;
        *at = table;
    }
    tsr__program_edge(&joint->program, joint->first[0] + joint->p[0]->nodes[x->node].var,
                      joint->first[1] + joint->p[1]->nodes[y->node].var, table);
    return !joint->program.arena->failed;
}

// Readers in their order; those that one model has more of go with the last of the other.
static bool link_weight(struct joint *joint, const tsr_value *value, const tsr_value *w)
{
    struct arena *arena = &joint->p[0]->arena;
    struct readers x = tsr__planner_readers(joint->p[0], arena, value);
    struct readers y = tsr__planner_readers(joint->p[1], arena, w);
    size_t n = x.n > y.n ? x.n : y.n;
    for (size_t i = 0; i < n && x.n && y.n; i++)
        if (!link_readers(joint, &x.at[i < x.n ? i : x.n - 1], &y.at[i < y.n ? i : y.n - 1]))
            return false;
    return !arena->failed;
}

static bool link_weights(struct joint *joint)
{
    const tsr_graph *graph = tsr_model_graph(joint->p[0]->model);
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_value *value = tsr_graph_initializer(graph, i),
                        *w = joint->twin[0][tsr__value_id(value)];
        if (w && !link_weight(joint, value, w))
            return false;
    }
    return true;
}

// What the first hands over lies as the other reads it.
static bool link_state(struct joint *joint, const tsr_value *present, const tsr_value *past)
{
    struct planner *p = joint->p[0], *q = joint->p[1];
    struct reader from;
    struct readers readers = tsr__planner_readers(q, &p->arena, past);
    const struct strategy *t = readers.n ? strategy_of(q, &readers.at[0]) : NULL;
    if (!t || !tsr__planner_made_by(p, present, &from))
        return !p->arena.failed;
    const struct strategy *s = p->nodes[from.node].strategy;
    int64_t *table = ARENA_ARRAY(&p->arena, int64_t, s->at.n * t->at.n + 1);
    for (size_t i = 0; table && i < s->at.n; i++)
        for (size_t k = 0; k < t->at.n; k++) {
            uint32_t out = s->at.at[i].out[from.slot], in = t->at.at[k].in[readers.at[0].slot];
            bool same = tsr__layout_equal(p->layouts.at[out].tiles, q->layouts.at[in].tiles);
            table[i * t->at.n + k] = same ? 0 : COST_FORBIDDEN;
        }
    if (table)
        tsr__program_edge(&joint->program, joint->first[0] + p->nodes[from.node].var,
                          joint->first[1] + q->nodes[readers.at[0].node].var, table);
    joint->twin[1][tsr__value_id(past)] = present;
    return table && !joint->program.arena->failed;
}

static bool link_states(struct joint *joint)
{
    const tsr_graph *graph = tsr_model_graph(joint->p[0]->model);
    for (size_t i = 0; i < joint->p[1]->ends.states.n; i++) {
        const struct state_pair *state_pair = &joint->p[1]->ends.states.at[i];
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

static bool read_before(const tsr_node *node, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(node, k) == tsr_node_input(node, i))
            return true;
    return false;
}

// Bytes of constants that the other model lacks, by choice of the node; NULL: none.
static int64_t *own_bytes(struct joint *joint, int m, const struct plan_node *node, size_t class)
{
    struct planner *planner = joint->p[m];
    int64_t *t = NULL;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *value = tsr_node_input(node->node, i);
        if (!value || !planner->values[tsr__value_id(value)].constant ||
            joint->twin[m][tsr__value_id(value)] || read_before(node->node, i))
            continue;
        t = t ? t : ARENA_ARRAY(&joint->p[0]->arena, int64_t, node->strategy->at.n + 1);
        for (size_t c = 0; t && c < node->strategy->at.n; c++)
            t[c] += tsr__planner_class_bytes(planner, class, node->strategy->at.at[c].in[i],
                                             &planner->values[tsr__value_id(value)]);
    }
    return t;
}

// They lie there while the other model runs.
static bool add_own(struct joint *joint, int m)
{
    const struct planner *planner = joint->p[m], *other = joint->p[1 - m];
    for (size_t c = 0; c < planner->memory.n_classes && c < other->memory.n_classes; c++)
        for (size_t i = 0; i < planner->n_nodes; i++) {
            const struct plan_node *node = &planner->nodes[i];
            int64_t *t = node->strategy ? own_bytes(joint, m, node, c) : NULL;
            if (t)
                tsr__program_use(&joint->program,
                                 joint->first_limit[1 - m] + other->memory.limits[c],
                                 joint->first[m] + node->var, 0, other->n_times, t);
        }
    return !joint->program.arena->failed && !joint->p[0]->arena.failed;
}

static bool build(struct joint *joint, int64_t memory)
{
    for (int m = 0; m < 2; m++)
        if (!tsr__planner_list(joint->p[m]) || !tsr__planner_candidates(joint->p[m]) ||
            !tsr__planner_program(joint->p[m], memory))
            return false;
    struct arena *arena = &joint->p[0]->arena;
    tsr__map_init(&joint->scaled, arena, 256);
    tsr__map_init(&joint->links, arena, 256);
    tsr__program_init(&joint->program, arena);
    choose_shift(joint);
    return pair_weights(joint) && add_program(joint, 0) && add_program(joint, 1) &&
           link_weights(joint) && link_states(joint) && add_own(joint, 0) && add_own(joint, 1);
}

// ---- the answer --------------------------------------------------------------------------------

static tsr_status write_part(struct joint *joint, int m, const uint32_t *choice, const char *config,
                             int64_t *peak, tsr_plan_part *out)
{
    struct planner *planner = joint->p[m];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    tsr_plan_summary told = {0};
    int64_t *memory = ARENA_ARRAY(arena, int64_t, (size_t)planner->machine.n);
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            planner->nodes[i].choice = choice[joint->first[m] + planner->nodes[i].var];
    if (!memory || !tsr__planner_memory(planner, memory, peak))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_config(planner, config);
    if (st == TSR_OK)
        st = tsr__planner_write(planner, planner->config);
    if (st == TSR_OK)
        st = tsr__planner_keep_topology(planner);
    if (st == TSR_OK)
        st = tsr__planner_keep_states(planner);
    if (st == TSR_OK)
        st = tsr__planner_tell(planner, NULL, &told);
    *out = (tsr_plan_part){.config = told.config,
                           .cost = tsr__program_cost(&planner->program, choice + joint->first[m]),
                           .memory = memory,
                           .collectives = told.collectives,
                           .n_collectives = told.n_collectives,
                           .nodes = told.nodes,
                           .cut_nodes = told.cut_nodes};
    return st;
}

static tsr_status tell(struct joint *joint, const struct program_result *result,
                       const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct arena *arena = &joint->p[0]->session->results[RESULT_PLAN];
    size_t n = (size_t)joint->p[0]->machine.n;
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, 2);
    int64_t *memory = ARENA_ARRAY(arena, int64_t, n);
    int64_t *peak = ARENA_ARRAY(arena, int64_t, 2 * n);
    tsr_status st = parts && memory && peak ? TSR_OK : TSR_NOMEM;
    for (int m = 0; m < 2 && st == TSR_OK; m++)
        st = write_part(joint, m, result->choice, options->config, peak + (size_t)m * n, &parts[m]);
    if (st != TSR_OK)
        return st;
    for (size_t device = 0; device < n; device++)
        peak[device] = peak[n + device] > peak[device] ? peak[n + device] : peak[device];
    for (size_t device = 0; device < n; device++)
        memory[device] = parts[0].memory[device] > parts[1].memory[device]
                             ? parts[0].memory[device]
                             : parts[1].memory[device];
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = n, .feasible = true};
    out->parts = parts;
    out->n_parts = 2;
    out->shared = joint->shared;
    out->memory = memory;
    out->peak = peak;
    out->config = parts[0].config;
    out->collectives = parts[0].collectives;
    out->n_collectives = parts[0].n_collectives;
    out->nodes = parts[0].nodes;
    out->cut_nodes = parts[0].cut_nodes;
    out->cost = parts[0].cost + joint->runs[1] * parts[1].cost;
    out->bound = result->bound << joint->shift;
    out->bound = out->bound < out->cost ? out->bound : out->cost;
    out->optimal = result->optimal;
    out->gap = result->optimal ? 0 : (double)(out->cost - out->bound) / (double)out->cost;
    return TSR_OK;
}

static tsr_status refuse(struct joint *joint, bool proved, tsr_plan_summary *out)
{
    struct planner *planner = joint->p[0];
    struct program_least least = {0};
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->machine.n};
    struct program_options share = tsr__budget_share(planner->budget, 0.5);
    tsr_status st = tsr__program_least(&joint->program, &share, &planner->arena, &least);
    if (st != TSR_OK)
        return st;
    out->needs_bytes = least.found ? least.least : 0;
    struct str need = tsr__bytes_text(&planner->arena, out->needs_bytes);
    struct str hint = tsr__arena_printf(
        &planner->arena, "give each device " STR_FMT " (--memory %lld), or use more devices",
        STR_ARG(need), (long long)out->needs_bytes);
    if (!need.p || !hint.p)
        return TSR_NOMEM;
    tsr__diag(planner->session, proved ? DIAG_plan_infeasible : DIAG_plan_time, NULL, hint.p,
              "no plan of both models %s the memory of the devices; " STR_FMT " on each would do",
              proved ? "fits into" : "was found in time that fits into", STR_ARG(need));
    if (tsr__cancelled(planner->session))
        return TSR_CANCELLED;
    return TSR_INFEASIBLE;
}

tsr_status tsr__plan_joint(struct planner *planner, struct planner *with,
                           const tsr_plan_options *options, tsr_plan_summary *out)
{
    struct program_result result = {0};
    struct joint joint = {.p = {planner, with},
                          .runs = {1, options->steps > 0 ? options->steps : 1}};
    if (!build(&joint, options->memory > 0 || options->topology ? options->memory : PLAN_NO_LIMIT))
        return TSR_NOMEM;
    tsr_status st = options->export_lp
                        ? tsr__planner_export(planner->session, &joint.program, options->export_lp)
                        : TSR_OK;
    if (st == TSR_OK)
        st = tsr__planner_solve(planner, &joint.program, &result);
    if (st == TSR_OK)
        st = result.feasible ? tell(&joint, &result, options, out)
                             : refuse(&joint, result.infeasible, out);
    tsr__budget_told(planner->budget);
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    if (st == TSR_OK && options->explain)
        return tsr__planner_explain(planner, &joint.program, options->explain, out);
    return st;
}
