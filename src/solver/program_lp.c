// SPDX-License-Identifier: Apache-2.0
// program_lp.c - writes a 0-1 program as a CPLEX LP file, for other solvers.
//
// It uses the local-polytope form. The variables s of a node's choices sum to 1. The variables e of
// an edge's pairs have row sums equal to the s of one end and column sums equal to the s of the
// other. Forbidden choices and pairs have no variable. If all s are integers then all e are, so
// only s is declared binary.
//
// Example: u costs {3, 5}, v {0, 1}, the edge is {0, 9; forbidden, 0}:
//   Minimize
//    cost: 3 s_0_0 + 5 s_0_1 + s_1_1 + 9 e_0_0_1
//   Subject To
//    one_0: s_0_0 + s_0_1 = 1
//    one_1: s_1_0 + s_1_1 = 1
//    r_0_0: e_0_0_0 + e_0_0_1 - s_0_0 = 0
//    r_0_1: e_0_1_1 - s_0_1 = 0
//    c_0_0: e_0_0_0 - s_1_0 = 0
//    c_0_1: e_0_0_1 + e_0_1_1 - s_1_1 = 0
#include "solver/solver.h"

#include <inttypes.h>

#define LINE 96 // columns after which a line is broken

struct lp {
    const struct program *program;
    struct text *out;
    size_t line; // start of the current line
    bool empty;  // no term written in this expression yet
    bool none;   // the variable `none` was written
};

// Writes the sign and the coefficient f (not if it is 1 or -1), after a line break if the line is
// long. The caller writes the variable.
static void write_factor(struct lp *lp, int64_t f)
{
    struct text *text = lp->out;
    if (text->n - lp->line > LINE) {
        tsr__text_add(text, STR("\n  "));
        lp->line = text->n;
    }
    if (f < 0)
        tsr__text_add(text, STR(" - "));
    else
        tsr__text_add(text, lp->empty ? STR(" ") : STR(" + "));
    if (f != 1 && f != -1)
        tsr__text_printf(text, "%" PRId64 " ", f < 0 ? -f : f);
    lp->empty = false;
}

static void choice_term(struct lp *lp, int64_t f, uint32_t node, uint32_t choice)
{
    write_factor(lp, f);
    tsr__text_printf(lp->out, "s_%u_%u", node, choice);
}

static void pair_term(struct lp *lp, int64_t f, uint32_t edge, uint32_t i, uint32_t j)
{
    write_factor(lp, f);
    tsr__text_printf(lp->out, "e_%u_%u_%u", edge, i, j);
}

static void begin_row(struct lp *lp)
{
    lp->line = lp->out->n;
    lp->empty = true;
}

// Writes the variable `none`, which is fixed to 0, in place of an empty expression. "none = 1" is
// then infeasible.
static void write_none(struct lp *lp)
{
    tsr__text_add(lp->out, STR(" none"));
    lp->none = true;
}

static bool allowed(const struct program *program, uint32_t node, uint32_t choice)
{
    return program->nodes.at[node].cost[choice] != COST_FORBIDDEN;
}

// True if the pair and both of its choices are allowed; only such pairs have a variable.
static bool pair_allowed(const struct program *program, const struct program_edge *edge, uint32_t i,
                         uint32_t j)
{
    return edge->cost[(size_t)i * program->nodes.at[edge->b].k + j] != COST_FORBIDDEN &&
           allowed(program, edge->a, i) && allowed(program, edge->b, j);
}

// Writes the objective. Terms with the coefficient 0 are left out.
static void write_objective(struct lp *lp)
{
    const struct program *program = lp->program;
    tsr__text_add(lp->out, STR("Minimize\n cost:"));
    begin_row(lp);
    for (uint32_t v = 0; v < program->nodes.n; v++)
        for (uint32_t i = 0; i < program->nodes.at[v].k; i++)
            if (allowed(program, v, i) && program->nodes.at[v].cost[i])
                choice_term(lp, program->nodes.at[v].cost[i], v, i);
    for (uint32_t k = 0; k < program->edges.n; k++) {
        const struct program_edge *edge = &program->edges.at[k];
        uint32_t kb = program->nodes.at[edge->b].k;
        for (uint32_t i = 0; i < program->nodes.at[edge->a].k; i++)
            for (uint32_t j = 0; j < kb; j++)
                if (pair_allowed(program, edge, i, j) && edge->cost[(size_t)i * kb + j])
                    pair_term(lp, edge->cost[(size_t)i * kb + j], k, i, j);
    }
    if (lp->empty)
        write_none(lp);
    tsr__text_add(lp->out, STR("\n"));
}

// Writes the names of a node and its choices. A line break in a name would end the comment, so it
// is replaced.
static void write_comment(struct lp *lp, uint32_t v)
{
    const struct program_node *node = &lp->program->nodes.at[v];
    if (node->name.n == 0 && !node->choices)
        return;
    tsr__text_printf(lp->out, "\\ node %u: ", v);
    tsr__text_add_safe(lp->out, node->name);
    uint32_t n_names = node->choices ? node->k : 0;
    for (uint32_t i = 0; i < n_names; i++) {
        tsr__text_printf(lp->out, i ? ", %u " : ": %u ", i);
        tsr__text_add_safe(lp->out, node->choices[i]);
    }
    tsr__text_add(lp->out, STR("\n"));
}

// Writes the rows one_V: exactly one choice of each node.
static void write_choice_rows(struct lp *lp)
{
    const struct program *program = lp->program;
    for (uint32_t v = 0; v < program->nodes.n; v++) {
        write_comment(lp, v);
        tsr__text_printf(lp->out, " one_%u:", v);
        begin_row(lp);
        for (uint32_t i = 0; i < program->nodes.at[v].k; i++)
            if (allowed(program, v, i))
                choice_term(lp, 1, v, i);
        if (lp->empty)
            write_none(lp);
        tsr__text_add(lp->out, STR(" = 1\n"));
    }
}

// Writes row r_K_I for choice i of end a, or c_K_I for choice i of end b. The pairs with this
// choice sum to 1 if the choice is taken, else to 0.
static void write_edge_row(struct lp *lp, uint32_t k, bool of_a, uint32_t i)
{
    const struct program *program = lp->program;
    const struct program_edge *edge = &program->edges.at[k];
    uint32_t others = program->nodes.at[of_a ? edge->b : edge->a].k;
    tsr__text_printf(lp->out, " %c_%u_%u:", of_a ? 'r' : 'c', k, i);
    begin_row(lp);
    for (uint32_t j = 0; j < others; j++) {
        uint32_t a = of_a ? i : j;
        uint32_t b = of_a ? j : i;
        if (pair_allowed(program, edge, a, b))
            pair_term(lp, 1, k, a, b);
    }
    choice_term(lp, -1, of_a ? edge->a : edge->b, i);
    tsr__text_add(lp->out, STR(" = 0\n"));
}

static void write_edge_rows(struct lp *lp)
{
    const struct program *program = lp->program;
    for (uint32_t k = 0; k < program->edges.n; k++) {
        const struct program_edge *edge = &program->edges.at[k];
        for (uint32_t i = 0; i < program->nodes.at[edge->a].k; i++)
            if (allowed(program, edge->a, i))
                write_edge_row(lp, k, true, i);
        for (uint32_t j = 0; j < program->nodes.at[edge->b].k; j++)
            if (allowed(program, edge->b, j))
                write_edge_row(lp, k, false, j);
    }
}

// The usage of each choice at one time, summed over the uses of its node.
struct sums {
    size_t *first; // index of the first choice of each node; one more entry at the end
    int64_t *sum;
    uint8_t *kept;
};

// Writes the constraint of one limit at one time.
static void write_limit_row(struct lp *lp, uint32_t l, uint32_t t, const struct sums *sums)
{
    const struct program *program = lp->program;
    const struct program_limit *limit = &program->limits.at[l];
    memset(sums->sum, 0, sums->first[program->nodes.n] * sizeof(*sums->sum));
    for (size_t j = 0; j < limit->uses.n; j++) {
        const struct program_use *use = &limit->uses.at[j];
        if (t < use->begin || t >= use->end)
            continue;
        for (uint32_t i = 0; i < program->nodes.at[use->node].k; i++)
            sums->sum[sums->first[use->node] + i] += use->usage[i];
    }
    tsr__text_printf(lp->out, " m_%u_%u:", l, t);
    begin_row(lp);
    for (uint32_t v = 0; v < program->nodes.n; v++)
        for (uint32_t i = 0; i < program->nodes.at[v].k; i++)
            if (sums->sum[sums->first[v] + i] && allowed(program, v, i))
                choice_term(lp, sums->sum[sums->first[v] + i], v, i);
    if (lp->empty)
        write_none(lp);
    tsr__text_printf(lp->out, " <= %" PRId64 "\n", limit->bound);
}

// Writes the rows of all limits. A time needs a row only if its set of uses is not a subset of
// another time's set.
static tsr_status write_limit_rows(struct lp *lp)
{
    const struct program *program = lp->program;
    struct sums sums;
    struct arena arena = {.session = program->arena->session};
    sums.first = ARENA_ARRAY(&arena, size_t, program->nodes.n + 1);
    for (uint32_t v = 0; sums.first && v < program->nodes.n; v++)
        sums.first[v + 1] = sums.first[v] + program->nodes.at[v].k;
    sums.sum = sums.first ? ARENA_ARRAY(&arena, int64_t, sums.first[program->nodes.n] + 1) : NULL;
    for (uint32_t l = 0; !arena.failed && l < program->limits.n; l++) {
        sums.kept = ARENA_ARRAY(&arena, uint8_t, program->limits.at[l].n_times + 1);
        if (!sums.kept)
            break;
        tsr__program_times(&program->limits.at[l], sums.kept);
        for (uint32_t t = 0; t < program->limits.at[l].n_times; t++)
            if (sums.kept[t])
                write_limit_row(lp, l, t, &sums);
    }
    bool failed = arena.failed;
    tsr__arena_free(&arena);
    return failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr__program_lp(const struct program *program, struct text *out)
{
    TRY(tsr__program_check(program));
    struct lp lp = {.program = program, .out = out};
    write_objective(&lp);
    tsr__text_add(out, STR("Subject To\n"));
    write_choice_rows(&lp);
    write_edge_rows(&lp);
    TRY(write_limit_rows(&lp));
    if (lp.none)
        tsr__text_add(out, STR("Bounds\n none = 0\n"));
    tsr__text_add(out, STR("Binaries\n"));
    begin_row(&lp);
    for (uint32_t v = 0; v < program->nodes.n; v++)
        for (uint32_t i = 0; i < program->nodes.at[v].k; i++)
            if (allowed(program, v, i)) {
                lp.empty = true;
                choice_term(&lp, 1, v, i);
            }
    tsr__text_add(out, STR("\nEnd\n"));
    return text_status(out);
}
