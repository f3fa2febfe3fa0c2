// SPDX-License-Identifier: Apache-2.0
// solve_core.c - copies the program into the core, removes choices, expands solutions.
//
// Example of the shift: u costs {3, 5}, v costs {-2, 1}. In the core they cost {0, 2} and {0, 3},
// and the shift is 3 - 2 = 1. A solution that costs 2 in the core (u = 1, v = 0) costs 3 in the
// program (5 - 2).
#include "internal.h"

// ---- tables

// Creates a table of zeros. The caller owns the only reference. Returns NULL if out of memory.
struct table *tsr__table_new(struct core *core, uint32_t rows, uint32_t cols)
{
    size_t bytes = sizeof(struct table) + (size_t)rows * cols * sizeof(int64_t);
    struct table *table = tsr__heap_get(core->heap, 1, bytes);
    if (table)
        *table = (struct table){.refs = 1, .rows = rows, .cols = cols};
    return table;
}

void tsr__table_drop(struct core *core, struct table *table)
{
    if (table && --table->refs == 0)
        tsr__heap_free(core->heap, table);
}

// ---- rows

// Sets kept[t] for the times that need a row: tsr__program_times marks them, and the sum of the
// largest usages exceeds the bound. Returns false if out of memory.
static bool keep_times(const struct core *core, const struct program_limit *limit, uint8_t *kept)
{
    int64_t *most = HEAP_ARRAY(core->heap, int64_t, (size_t)limit->n_times + 1);
    if (!most)
        return false;
    for (size_t i = 0; i < limit->uses.n; i++) {
        const struct program_use *use = &limit->uses.at[i];
        int64_t largest = 0;
        for (uint32_t j = 0; j < core->program->nodes.at[use->node].k; j++)
            largest = int64_max(largest, use->usage[j]);
        most[use->begin] += largest;
        most[use->end] -= largest;
    }
    tsr__program_times(limit, kept);
    int64_t sum = 0;
    for (uint32_t t = 0; t < limit->n_times; t++) {
        sum += most[t];
        kept[t] = kept[t] && sum > limit->bound;
    }
    tsr__heap_free(core->heap, most);
    return true;
}

// Adds a use of rows. `begin` and `end` are rows of the core. A use without rows (begin == end) is
// left out.
static void add_use(struct core *core, const struct program_use *use, uint32_t begin, uint32_t end)
{
    struct core_node *node = &core->nodes[use->node];
    int64_t *usage = HEAP_ARRAY(core->heap, int64_t, node->k);
    struct core_use *out = begin < end && usage ? list_push(core->heap, &node->uses) : NULL;
    if (!out)
        return;
    memcpy(usage, use->usage, node->k * sizeof(int64_t));
    *out = (struct core_use){begin, end, usage};
}

// Adds the rows of one limit. row[t] is the number of rows before time t. Example: there are two
// rows so far, and of four times 0 and 3 are kept: row = {2, 3, 3, 3, 4}. A use with begin 1 and
// end 4 becomes a use of row 3. Returns false if out of memory.
static bool add_rows(struct core *core, uint32_t limit)
{
    const struct program_limit *program_limit = &core->program->limits.at[limit];
    uint8_t *kept = HEAP_ARRAY(core->heap, uint8_t, program_limit->n_times);
    uint32_t *row = HEAP_ARRAY(core->heap, uint32_t, (size_t)program_limit->n_times + 1);
    if (!kept || !row || !keep_times(core, program_limit, kept))
        return false;
    row[0] = core->n_rows;
    for (uint32_t t = 0; t < program_limit->n_times; t++)
        row[t + 1] = row[t] + kept[t];
    uint32_t n = row[program_limit->n_times];
    core->row_limit = tsr__heap_grow(core->heap, core->row_limit, (size_t)n + 1, sizeof(uint32_t));
    core->row_time = tsr__heap_grow(core->heap, core->row_time, (size_t)n + 1, sizeof(uint32_t));
    core->row_bound = tsr__heap_grow(core->heap, core->row_bound, (size_t)n + 1, sizeof(int64_t));
    if (core->heap->failed)
        return false;
    for (uint32_t t = 0; t < program_limit->n_times; t++)
        if (kept[t]) {
            core->row_limit[row[t]] = limit;
            core->row_time[row[t]] = t;
            core->row_bound[row[t]] = program_limit->bound;
        }
    for (size_t i = 0; i < program_limit->uses.n; i++)
        add_use(core, &program_limit->uses.at[i], row[program_limit->uses.at[i].begin],
                row[program_limit->uses.at[i].end]);
    core->n_rows = n;
    tsr__heap_free(core->heap, kept);
    tsr__heap_free(core->heap, row);
    return true;
}

// ---- nodes and edges

// Shifts a table so that its least entry is 0. The program is infeasible if all entries are
// forbidden.
static void shift_table(struct core *core, int64_t *cell, size_t n)
{
    int64_t least = COST_FORBIDDEN;
    for (size_t i = 0; i < n; i++)
        least = int64_min(least, cell[i]);
    if (least == COST_FORBIDDEN)
        core->infeasible = true;
    else
        core->shift += least;
    for (size_t i = 0; i < n; i++)
        cell[i] = cell[i] == COST_FORBIDDEN ? NEVER : cell[i] - least;
}

// Adds a node. If `pin` is NONE, it gets all choices of the program, otherwise only this one.
static bool add_core_node(struct core *core, uint32_t v, uint32_t pin)
{
    const struct program_node *node = &core->program->nodes.at[v];
    struct core_node *out = &core->nodes[v];
    out->k = node->k;
    out->cost = HEAP_ARRAY(core->heap, int64_t, node->k);
    out->origin = HEAP_ARRAY(core->heap, uint32_t, node->k);
    if (!out->cost || !out->origin)
        return false;
    for (uint32_t i = 0; i < node->k; i++) {
        out->cost[i] = pin == NONE || pin == i ? node->cost[i] : COST_FORBIDDEN;
        out->origin[i] = i;
    }
    shift_table(core, out->cost, node->k);
    return true;
}

// One entry of a cache of tables. Its index is a hash of `cost`, the address of the program's
// costs.
struct recent {
    const int64_t *cost;
    struct table *table;
    int64_t shift;
};
#define RECENT 4096

// Adds an edge. Edges with the same costs share one table, for example in repeated layers. The
// shift is added for each edge.
static bool add_edge(struct core *core, const struct program_edge *edge, struct recent *recent)
{
    uint32_t ka = core->program->nodes.at[edge->a].k, kb = core->program->nodes.at[edge->b].k;
    struct recent *r = &recent[((uintptr_t)edge->cost >> 4) % RECENT];
    if (r->cost == edge->cost && r->table->rows == ka && r->table->cols == kb) {
        r->table->refs++;
        core->shift += r->shift;
    } else {
        int64_t before = core->shift;
        struct table *table = tsr__table_new(core, ka, kb);
        if (!table)
            return false;
        memcpy(table->cell, edge->cost, (size_t)ka * kb * sizeof(int64_t));
        shift_table(core, table->cell, (size_t)ka * kb);
        *r = (struct recent){edge->cost, table, core->shift - before};
    }
    core->effort->work += (size_t)ka * kb;
    uint32_t id = core->edges.n;
    struct core_edge *out = list_push(core->heap, &core->edges);
    uint32_t *at_a = list_push(core->heap, &core->nodes[edge->a].edges);
    uint32_t *at_b = list_push(core->heap, &core->nodes[edge->b].edges);
    if (!out || !at_a || !at_b)
        return false;
    *out = (struct core_edge){edge->a, edge->b, r->table, true};
    *at_a = *at_b = id;
    return true;
}

bool tsr__core_init(struct core *core, const struct program *program, struct heap *heap,
                    struct effort *effort, uint32_t pinned, uint32_t pin)
{
    *core = (struct core){
        .program = program, .heap = heap, .effort = effort, .n_nodes = (uint32_t)program->nodes.n};
    core->nodes = HEAP_ARRAY(heap, struct core_node, program->nodes.n + 1);
    struct recent *recent = HEAP_ARRAY(heap, struct recent, RECENT);
    if (!core->nodes || !recent)
        return false;
    for (uint32_t v = 0; v < program->nodes.n; v++)
        if (!add_core_node(core, v, v == pinned ? pin : NONE))
            return false;
    for (size_t i = 0; i < program->edges.n; i++)
        if (!add_edge(core, &program->edges.at[i], recent))
            return false;
    tsr__heap_free(heap, recent);
    for (uint32_t l = 0; l < program->limits.n; l++)
        if (!add_rows(core, l))
            return false;
    return !heap->failed;
}

// ---- removing choices

// Replaces the edge's table by a smaller one without the removed rows or columns. The old table may
// be shared with other edges. `k` is the number of choices of v that remain.
static void remove_from_edge(struct core *core, struct core_edge *edge, uint32_t v,
                             const uint8_t *dead, uint32_t k)
{
    struct table *old = edge->table;
    bool rows = edge->a == v;
    struct table *table =
        rows ? tsr__table_new(core, k, old->cols) : tsr__table_new(core, old->rows, k);
    if (!table)
        return;
    int64_t *out = table->cell;
    for (uint32_t i = 0; i < old->rows; i++) {
        if (rows && dead[i])
            continue;
        const int64_t *in = old->cell + (size_t)i * old->cols;
        for (uint32_t j = 0; j < old->cols; j++)
            if (rows || !dead[j])
                *out++ = in[j];
    }
    core->effort->work += (size_t)old->rows * old->cols;
    tsr__table_drop(core, old);
    edge->table = table;
    edge->dirty = true;
}

// Removes the choices of v that `dead` marks. Costs, origins and usages are compacted in place.
void tsr__core_remove(struct core *core, uint32_t v, const uint8_t *dead)
{
    struct core_node *node = &core->nodes[v];
    uint32_t k = 0;
    for (uint32_t i = 0; i < node->k; i++) {
        if (dead[i])
            continue;
        node->cost[k] = node->cost[i];
        node->origin[k] = node->origin[i];
        for (uint32_t u = 0; u < node->uses.n; u++)
            node->uses.at[u].usage[k] = node->uses.at[u].usage[i];
        k++;
    }
    if (k == node->k)
        return;
    for (uint32_t i = 0; i < node->edges.n && !core->heap->failed; i++)
        remove_from_edge(core, &core->edges.at[node->edges.at[i]], v, dead, k);
    node->k = k;
    if (k == 0)
        core->infeasible = true;
}

// ---- expanding a solution

// Adds the choices of eliminated nodes. Goes through the steps in reverse order, because each step
// reads nodes that were eliminated after it.
void tsr__core_expand(const struct core *core, uint32_t *choice)
{
    for (uint32_t i = core->steps.n; i-- > 0;) {
        const struct core_step *step = &core->steps.at[i];
        size_t at = step->n > 0 ? choice[step->from[0]] : 0;
        if (step->n > 1)
            at = at * step->stride + choice[step->from[1]];
        choice[step->node] = step->by_choice[at];
    }
}
