// SPDX-License-Identifier: Apache-2.0
// stage_pace.c - the pace of a line of stages: how its nodes run so that the stage that is busy longest is so for a short time.
//
// The program of a line (stage_line.c) has the least sum. It is solved again with weights: those of a stage that is busy longer
// than the others count more, and what crosses counts for both sides, since it holds up both. Each answer is played on the
// devices' clocks (stage_clock.c), and the one with the best pace is taken.
//
//     Two stages of 6 and 3 ms with 1 ms between them: the pace is 6 + 1 = 7. With weights 8 and 2 another cut of what crosses is
//     the least, with which the first takes 4 ms, the second 4 and what crosses 1: the sum is the same, and the pace is 5.
//
// No pace is below the least sum divided by the stages, nor below what each stage takes at least (stage_lines.c).
#include "plan/stages/stages.h"

#define ROUNDS 4 // solves of one line
#define FULL   8 // the largest weight; costs are divided by it

// The stages of both sides of what a variable tells: a node has one, a value that crosses has two.
struct sides {
    size_t from, to;
};
struct pacing {
    struct lining lining;
    struct sides *sides; // by variable of the program
    int64_t weight[STAGES_MOST];
    struct map tables; // with weights, by address and weight: tables that are shared stay so
    struct stage_clock clock;
};

// ---- weights -----------------------------------------------------------------------------------

#define NO_STAGE SIZE_MAX

// A variable of a value has the stages of those that it stands between; variables of nodes know theirs.
static void mark_between(struct pacing *pacing, const struct program *program)
{
    for (size_t e = 0; e < program->edges.n; e++) {
        struct sides *a = &pacing->sides[program->edges.at[e].a];
        struct sides *b = &pacing->sides[program->edges.at[e].b];
        if (b->from == NO_STAGE)
            b->from = a->from;
        if (a->to == NO_STAGE)
            a->to = b->to;
    }
    for (size_t i = 0; i < program->nodes.n; i++) {
        struct sides *side = &pacing->sides[i];
        if (side->from == NO_STAGE)
            side->from = side->to;
        if (side->to == NO_STAGE)
            side->to = side->from;
        if (side->from == NO_STAGE)
            *side = (struct sides){0, 0};
    }
}

static bool mark_variables(struct pacing *pacing)
{
    const struct staging *staging = pacing->lining.staging;
    const struct line *line = pacing->lining.line;
    const struct program *program = &staging->planner->program;
    pacing->sides = ARENA_ARRAY(&pacing->lining.scratch, struct sides, program->nodes.n + 1);
    if (!pacing->sides)
        return false;
    for (size_t i = 0; i < program->nodes.n; i++)
        pacing->sides[i] = (struct sides){NO_STAGE, NO_STAGE};
    for (size_t k = 0; k < line->n; k++)
        for (size_t i = staging->cut[line->at[k].begin]; i < staging->cut[line->at[k].end]; i++)
            if (staging->planner->nodes[i].strategy)
                pacing->sides[staging->planner->nodes[i].var] = (struct sides){k, k};
    mark_between(pacing, program);
    return true;
}

static int64_t weight_between(const struct pacing *pacing, size_t from, size_t to)
{
    if (from == to)
        return pacing->weight[from];
    return pacing->weight[from] + pacing->weight[to];
}

// The table with every cost as many times as the weight says. NULL: out of memory.
static const int64_t *weighted(struct pacing *pacing, const int64_t *table, size_t n,
                               int64_t weight)
{
    struct arena *arena = &pacing->lining.scratch;
    struct {
        const int64_t *table;
        int64_t n, weight;
    } key = {table, (int64_t)n, weight};
    void **kept = tsr__map_at_copy(&pacing->tables, str_bytes(&key, sizeof key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    int64_t *copy = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!copy)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        copy[i] = table[i];
        if (table[i] != COST_FORBIDDEN)
            copy[i] = table[i] * weight / FULL;
    }
    *kept = copy;
    return copy;
}

// The program of the line with weights; limits are those of the plain one. False: out of memory.
static bool make_weighted(struct pacing *pacing, const struct program *plain, struct program *out)
{
    const struct sides *sides = pacing->sides;
    tsr__program_init(out, &pacing->lining.scratch);
    for (size_t i = 0; i < plain->nodes.n; i++) {
        const struct program_node *node = &plain->nodes.at[i];
        int64_t weight = weight_between(pacing, sides[i].from, sides[i].to);
        const int64_t *cost = weighted(pacing, node->cost, node->k, weight);
        if (!cost || tsr__program_node(out, node->name, node->k, cost) == UINT32_MAX)
            return false;
    }
    for (size_t e = 0; e < plain->edges.n; e++) {
        const struct program_edge *edge = &plain->edges.at[e];
        size_t n = (size_t)plain->nodes.at[edge->a].k * plain->nodes.at[edge->b].k;
        int64_t weight = weight_between(pacing, sides[edge->a].from, sides[edge->b].to);
        const int64_t *cost = weighted(pacing, edge->cost, n, weight);
        if (!cost)
            return false;
        tsr__program_edge(out, edge->a, edge->b, cost);
    }
    out->limits.at = plain->limits.at;
    out->limits.n = plain->limits.n;
    return !pacing->lining.scratch.failed;
}

// The stage that is busy longest counts in full, and the others half as much as before. False: that is so already.
static bool shift_weights(struct pacing *pacing)
{
    size_t n = pacing->lining.line->n, busiest = 0;
    const struct stage_clock *clock = &pacing->clock;
    int64_t most = -1;
    bool shifts = false;
    for (size_t k = 0; k < n; k++) {
        int64_t busy = clock->time[k] + clock->transfer[k];
        if (k + 1 < n)
            busy += clock->transfer[k + 1];
        if (busy > most)
            busiest = k;
        most = int64_max(most, busy);
    }
    for (size_t k = 0; k < n; k++) {
        int64_t weight = k == busiest ? FULL : int64_max(pacing->weight[k] / 2, 1);
        shifts = shifts || weight != pacing->weight[k];
        pacing->weight[k] = weight;
    }
    return shifts;
}

// ---- answers -----------------------------------------------------------------------------------

// Plays the choices that the nodes have, and keeps them if their pace is the best so far. False: out of memory.
static bool play_choices(struct pacing *pacing, struct line_answer *best)
{
    struct staging *staging = pacing->lining.staging;
    struct planner *planner = staging->planner;
    if (!tsr__stages_play(staging, pacing->lining.line, &pacing->clock))
        return false;
    struct line_answer played = {.cost = int64_max(pacing->clock.period - staging->common, 0),
                                 .latency = pacing->clock.latency};
    if (best->feasible && !line_is_better(&played, best))
        return true;
    if (!best->choice)
        best->choice = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    if (!best->choice)
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++)
        best->choice[i] = planner->nodes[i].choice;
    best->feasible = true;
    best->cost = played.cost;
    best->latency = played.latency;
    return true;
}

// Solves the program and plays its answer. *bound: no answer of the program costs less; 0 where nothing was found.
static tsr_status solve_and_play(struct pacing *pacing, const struct program *program,
                                 struct line_answer *best, int64_t *bound)
{
    struct planner *planner = pacing->lining.staging->planner;
    struct program_options options = tsr__lining_options(&pacing->lining);
    struct program_result result = {0};
    *bound = 0;
    tsr_status st = tsr__program_solve(program, &options, &pacing->lining.scratch, &result);
    if (st != TSR_OK || !result.feasible)
        return st;
    *bound = result.bound;
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy)
            planner->nodes[i].choice = result.choice[planner->nodes[i].var];
    return play_choices(pacing, best) ? TSR_OK : TSR_NOMEM;
}

// The least sum first, which bounds the pace too; then with weights, until they change nothing.
static tsr_status solve_rounds(struct pacing *pacing, struct line_answer *best)
{
    struct staging *staging = pacing->lining.staging;
    const struct program *plain = &staging->planner->program;
    int64_t n = (int64_t)pacing->lining.line->n, bound = 0;
    tsr_status st = solve_and_play(pacing, plain, best, &bound);
    best->bound = int64_max(best->bound, bound / n);
    for (int round = 1; round < ROUNDS && n > 1 && bound > 0; round++) {
        struct program program;
        if (st != TSR_OK || best->cost <= best->bound || tsr__stages_over(staging) ||
            !shift_weights(pacing))
            break;
        if (!make_weighted(pacing, plain, &program))
            return TSR_NOMEM;
        st = solve_and_play(pacing, &program, best, &bound);
    }
    best->bound = int64_min(best->bound, best->cost);
    return st;
}

// To be ended in any case. *late: there was no time for the program.
static tsr_status begin_pacing(struct pacing *pacing, struct staging *staging,
                               const struct line *line)
{
    *pacing = (struct pacing){0};
    if (!tsr__lining_begin(&pacing->lining, staging, line))
        return TSR_NOMEM;
    if (pacing->lining.late)
        return TSR_OK;
    tsr__map_init(&pacing->tables, &pacing->lining.scratch, 64);
    for (size_t k = 0; k < line->n; k++)
        pacing->weight[k] = FULL / 2;
    tsr__lining_show(&pacing->lining);
    return mark_variables(pacing) ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__pace_solve(struct staging *staging, const struct line *line, int64_t least,
                           struct line_answer *out)
{
    struct pacing pacing;
    out->bound = least;
    tsr_status st = begin_pacing(&pacing, staging, line);
    if (st == TSR_OK && !pacing.lining.late)
        st = solve_rounds(&pacing, out);
    tsr__lining_end(&pacing.lining);
    return st;
}

// What the stages choose by themselves becomes choices of the line, by place in the graph. False in *fits: one has no plan.
static tsr_status take_fronts(struct staging *staging, struct line *line, uint32_t *choice,
                              bool *fits)
{
    *fits = true;
    for (size_t k = 0; k < line->n && *fits; k++) {
        struct stage *stage = &line->at[k];
        tsr_status st = tsr__front_take(staging, stage->kind, stage->begin, stage->end,
                                        stage->memory, &stage->point);
        if (st != TSR_OK)
            return st;
        *fits = stage->point.feasible;
        for (size_t i = staging->cut[stage->begin]; i < staging->cut[stage->end]; i++)
            choice[i] = (uint32_t)stage->kind->nodes[i].choice;
    }
    return TSR_OK;
}

tsr_status tsr__pace_first(struct staging *staging, struct line *line, struct line_answer *out)
{
    struct pacing pacing;
    struct planner *planner = staging->planner;
    bool fits = false;
    uint32_t *choice = ARENA_ARRAY(&planner->arena, uint32_t, planner->n_nodes + 1);
    *out = (struct line_answer){0};
    if (!choice)
        return TSR_NOMEM;
    tsr_status st = take_fronts(staging, line, choice, &fits);
    if (st != TSR_OK || !fits)
        return st;
    st = begin_pacing(&pacing, staging, line);
    if (st != TSR_OK || pacing.lining.late)
        goto end;
    for (size_t i = 0; i < planner->n_nodes; i++)
        planner->nodes[i].choice = choice[i];
    st = TSR_NOMEM;
    if (play_choices(&pacing, out))
        st = solve_rounds(&pacing, out);
end:
    tsr__lining_end(&pacing.lining);
    return st;
}

// ---- why ---------------------------------------------------------------------------------------

// The pace with that way of the node; the program is as before afterwards.
static tsr_status pace_with(struct pacing *pacing, const struct plan_node *node, size_t way,
                            struct line_answer *out)
{
    int64_t bound;
    struct program *program = &pacing->lining.staging->planner->program;
    struct program_node *variable = &program->nodes.at[node->var];
    const int64_t *kept = variable->cost;
    int64_t *cost = ARENA_ARRAY(&pacing->lining.scratch, int64_t, variable->k + 1);
    *out = (struct line_answer){0};
    if (!cost)
        return TSR_NOMEM;
    for (size_t i = 0; i < variable->k; i++)
        cost[i] = i == way ? kept[i] : COST_FORBIDDEN;
    variable->cost = cost;
    tsr_status st = solve_and_play(pacing, program, out, &bound);
    variable->cost = kept;
    return st;
}

tsr_status tsr__pace_explain(struct staging *staging, const struct line *line, const char *name,
                             tsr_plan_summary *out)
{
    struct pacing pacing;
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    tsr_status st = begin_pacing(&pacing, staging, line);
    const struct plan_node *node = tsr__planner_find(staging->planner, name);
    for (size_t i = 0; i < out->n_choices && st == TSR_OK && node && !pacing.lining.late; i++) {
        struct line_answer answer = {0};
        if (!list[i].feasible)
            continue;
        if (!list[i].chosen)
            st = pace_with(&pacing, node, i, &answer);
        list[i].cost = out->cost;
        if (answer.feasible)
            list[i].cost = int64_max(answer.cost + staging->common, out->cost);
    }
    tsr__lining_end(&pacing.lining);
    return st;
}
