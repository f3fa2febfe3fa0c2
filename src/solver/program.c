// SPDX-License-Identifier: Apache-2.0
// program.c - builds, checks and evaluates a 0-1 program. It does not solve it.
//
// Callers need not check whether a node, an edge or a limit was added. If the arena ran out of
// memory, tsr__program_check returns TSR_NOMEM, and all functions that solve or write a program
// call it first.
#include "solver/solver.h"

void tsr__program_init(struct program *program, struct arena *arena)
{
    memset(program, 0, sizeof(*program));
    program->arena = arena;
}

uint32_t tsr__program_node(struct program *program, struct str name, uint32_t k,
                           const int64_t *cost)
{
    if (!vec_add(program->arena, &program->nodes,
                 (struct program_node){.name = name, .k = k, .cost = cost}))
        return UINT32_MAX;
    return (uint32_t)(program->nodes.n - 1);
}

void tsr__program_choices(struct program *program, uint32_t node, const struct str *names)
{
    if (node < program->nodes.n)
        program->nodes.at[node].choices = names;
}

void tsr__program_edge(struct program *program, uint32_t a, uint32_t b, const int64_t *cost)
{
    vec_add(program->arena, &program->edges, (struct program_edge){a, b, cost});
}

uint32_t tsr__program_limit(struct program *program, struct str name, int64_t bound,
                            uint32_t n_times)
{
    struct program_limit *limit = vec_push(program->arena, &program->limits);
    if (!limit)
        return UINT32_MAX;
    limit->name = name;
    limit->bound = bound;
    limit->n_times = n_times;
    return (uint32_t)(program->limits.n - 1);
}

void tsr__program_use(struct program *program, uint32_t limit, uint32_t node, uint32_t begin,
                      uint32_t end, const int64_t *usage)
{
    if (limit >= program->limits.n)
        return; // the limit could not be added: out of memory
    vec_add(program->arena, &program->limits.at[limit].uses,
            (struct program_use){node, begin, end, usage});
}

// ---- copying with weights

// Key of the map of tables that were already copied with a weight.
struct weighted_table {
    const int64_t *table;
    size_t n;
    struct program_weight weight;
};

static int64_t weighted_cost(int64_t cost, struct program_weight weight)
{
    int64_t product;
    if (cost == COST_FORBIDDEN)
        return COST_FORBIDDEN;
    if (mul_ok(cost, weight.times, &product))
        return product / weight.over;
    return (int64_t)((double)cost * (double)weight.times / (double)weight.over);
}

// Returns the table with all costs weighted: `table` itself if the weight is 1, else a copy.
// `tables` has the copies made before. Returns NULL if out of memory.
static const int64_t *weighted_table(struct map *tables, const int64_t *table, size_t n,
                                     struct program_weight weight)
{
    if (weight.times == weight.over)
        return table;
    struct weighted_table key = {table, n, weight};
    void **slot = tsr__map_at_copy(tables, str_bytes(&key, sizeof key));
    if (!slot || *slot)
        return slot ? *slot : NULL;
    int64_t *copy = ARENA_ARRAY(tables->arena, int64_t, n + 1);
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = weighted_cost(table[i], weight);
    return *slot = copy;
}

static void add_limit(struct program *to, const struct program_limit *from, uint32_t first)
{
    uint32_t limit = tsr__program_limit(to, from->name, from->bound, from->n_times);
    for (size_t i = 0; i < from->uses.n; i++) {
        const struct program_use *use = &from->uses.at[i];
        tsr__program_use(to, limit, first + use->node, use->begin, use->end, use->usage);
    }
}

uint32_t tsr__program_add(struct program *to, const struct program *from,
                          program_weight_fn *weight_of, const void *context)
{
    uint32_t first = (uint32_t)to->nodes.n;
    struct map tables;
    tsr__map_init(&tables, to->arena, 0);
    for (uint32_t i = 0; i < from->nodes.n; i++) {
        const struct program_node *node = &from->nodes.at[i];
        const int64_t *cost =
            weighted_table(&tables, node->cost, node->k, weight_of(context, i, i));
        tsr__program_choices(to, tsr__program_node(to, node->name, node->k, cost), node->choices);
    }
    for (size_t i = 0; i < from->edges.n; i++) {
        const struct program_edge *edge = &from->edges.at[i];
        size_t n = (size_t)from->nodes.at[edge->a].k * from->nodes.at[edge->b].k;
        struct program_weight weight = weight_of(context, edge->a, edge->b);
        tsr__program_edge(to, first + edge->a, first + edge->b,
                          weighted_table(&tables, edge->cost, n, weight));
    }
    for (size_t i = 0; i < from->limits.n; i++)
        add_limit(to, &from->limits.at[i], first);
    return to->arena->failed ? UINT32_MAX : first;
}

// ---- checking

// Adds the largest absolute value of the table to *sum. Returns false if a number is out of range
// or *sum exceeds PROGRAM_MOST. Forbidden costs are skipped.
static bool table_ok(const int64_t *table, size_t n, bool usage, int64_t *sum)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t c = table[i];
        if (c == COST_FORBIDDEN && !usage)
            continue;
        if (c > PROGRAM_MOST || c < (usage ? 0 : -PROGRAM_MOST))
            return false;
        int64_t magnitude = c < 0 ? -c : c;
        most = int64_max(most, magnitude);
    }
    return add_ok(*sum, most, sum) && *sum <= PROGRAM_MOST;
}

// True if nodes and edges are valid and the cost of an assignment cannot overflow. An assignment
// takes one entry of each table, so the largest entries must sum to at most PROGRAM_MOST.
static bool costs_ok(const struct program *program)
{
    int64_t sum = 0;
    for (size_t i = 0; i < program->nodes.n; i++) {
        const struct program_node *node = &program->nodes.at[i];
        if (node->k == 0 || node->k > PROGRAM_MAX_CHOICES || !node->cost ||
            !table_ok(node->cost, node->k, false, &sum))
            return false;
    }
    for (size_t i = 0; i < program->edges.n; i++) {
        const struct program_edge *edge = &program->edges.at[i];
        if (edge->a >= program->nodes.n || edge->b >= program->nodes.n || edge->a == edge->b ||
            !edge->cost)
            return false;
        size_t cells = (size_t)program->nodes.at[edge->a].k * program->nodes.at[edge->b].k;
        if (!table_ok(edge->cost, cells, false, &sum))
            return false;
    }
    return true;
}

// True if the limits are valid and no sum of usages can overflow. Each limit is checked separately,
// because usages of different limits are never added.
static bool limits_ok(const struct program *program)
{
    for (size_t i = 0; i < program->limits.n; i++) {
        const struct program_limit *limit = &program->limits.at[i];
        int64_t sum = 0;
        if (limit->n_times == 0 || limit->bound > PROGRAM_MOST || limit->bound < -PROGRAM_MOST)
            return false;
        for (size_t j = 0; j < limit->uses.n; j++) {
            const struct program_use *use = &limit->uses.at[j];
            if (use->node >= program->nodes.n || use->begin > use->end ||
                use->end > limit->n_times || !use->usage ||
                !table_ok(use->usage, program->nodes.at[use->node].k, true, &sum))
                return false;
        }
    }
    return true;
}

tsr_status tsr__program_check(const struct program *program)
{
    if (program->arena->failed)
        return TSR_NOMEM;
    if (program->nodes.n > PROGRAM_MAX_NODES || program->edges.n > UINT32_MAX / 4 ||
        program->limits.n > UINT32_MAX / 4)
        return TSR_INVALID;
    return costs_ok(program) && limits_ok(program) ? TSR_OK : TSR_INVALID;
}

// ---- evaluating

// Keeps a time if it is the last time of some use and if some use has begun since the last kept
// time. Example: uses 0..2 and 1..3 (ends excluded) have their last times 1 and 2. Only 1 is kept:
// both uses cover it.
void tsr__program_times(const struct program_limit *limit, uint8_t *kept)
{
    enum { BEGINS = 1, LAST = 2 };
    memset(kept, 0, limit->n_times);
    for (size_t i = 0; i < limit->uses.n; i++) {
        const struct program_use *use = &limit->uses.at[i];
        if (use->begin < use->end) {
            kept[use->begin] |= BEGINS;
            kept[use->end - 1] |= LAST;
        }
    }
    bool grown = false, any = false; // grown: a use has begun since the last kept time
    for (uint32_t t = 0; t < limit->n_times; t++) {
        grown |= (kept[t] & BEGINS) != 0;
        bool keep = grown && (kept[t] & LAST);
        kept[t] = keep;
        any |= keep;
        grown &= !keep;
    }
    if (!any)
        kept[0] = 1; // the limit has no uses
}

int64_t tsr__program_cost(const struct program *program, const uint32_t *choice)
{
    int64_t sum = 0;
    for (size_t i = 0; i < program->nodes.n; i++) {
        int64_t c = program->nodes.at[i].cost[choice[i]];
        if (c == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        sum += c;
    }
    for (size_t i = 0; i < program->edges.n; i++) {
        const struct program_edge *edge = &program->edges.at[i];
        int64_t c =
            edge->cost[(size_t)choice[edge->a] * program->nodes.at[edge->b].k + choice[edge->b]];
        if (c == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        sum += c;
    }
    return sum;
}

// Finds the peak of a limit. Uses a difference array over time: a use of 5 at times 1..3 (end
// excluded) adds 5 at 1 and -5 at 3.
int64_t tsr__program_peak(const struct program *program, uint32_t limit, const uint32_t *choice,
                          uint32_t *time)
{
    const struct program_limit *program_limit = &program->limits.at[limit];
    size_t bytes = ((size_t)program_limit->n_times + 1) * sizeof(int64_t);
    int64_t *change = tsr__alloc(program->arena->session, bytes);
    if (!change)
        return INT64_MAX;
    memset(change, 0, bytes);
    for (size_t i = 0; i < program_limit->uses.n; i++) {
        const struct program_use *use = &program_limit->uses.at[i];
        change[use->begin] += use->usage[choice[use->node]];
        change[use->end] -= use->usage[choice[use->node]];
    }
    int64_t now = 0, peak = INT64_MIN;
    for (uint32_t t = 0; t < program_limit->n_times; t++) {
        now += change[t];
        if (now > peak) {
            peak = now;
            if (time)
                *time = t;
        }
    }
    tsr__free(program->arena->session, change, bytes);
    return peak;
}
