// SPDX-License-Identifier: Apache-2.0
// solve_reduce.c - reductions that keep an optimum and respect the limits.
//
// - Arc consistency: removes choices without an allowed partner at some neighbour.
// - Merging: a node whose choice is a function of a neighbour's choice merges into that neighbour.
// - Decomposition: an edge whose table is a sum of two vectors moves into the costs of its nodes.
// - Dominance (solve_dominance.c) and probing (solve_probe.c) remove choices.
// - Elimination: a node that uses nothing and has at most two neighbours is folded into them (R0,
//   RI and RII of the PBQP literature).
// - Rows: usage that all choices of a node have in common is subtracted from the bounds. Rows that
//   cannot be exceeded are dropped. Choices that exceed a bound by themselves are removed.
//
//     Example: u costs {3, 5}, v costs {0, 1}, the edge u-v is {0, 9; NEVER, 0} (rows: u), and v
//     uses nothing. v has one neighbour, so fold_leaf finds the best v for each choice of u:
//         u = 0: min(0 + 0, 1 + 9) = 0 by v = 0;   u = 1: min(0 + NEVER, 1 + 0) = 1 by v = 1
//     u then costs {3 + 0, 5 + 1} = {3, 6}, and the core records "u = 0 -> v = 0, u = 1 -> v = 1".
//     u has no edge left: fold_single takes u = 0 and adds 3 to the shift. tsr__core_expand reads
//     the steps in reverse order: u = 0, therefore v = 0. The cost is 3, the optimum.
//
//     With a limit of 10, u uses {6, 8} and v {2, 2}. trim_uses subtracts 2 from the bound for v,
//     which now uses nothing and can be eliminated. It subtracts 6 for u, which then uses {0, 2}
//     of the remaining 2.
#include "internal.h"

#define MERGE_GROWTH 4         // a merge may enlarge tables at most by this factor
#define MERGE_CELLS  (1 << 18) // if they get more cells than this
#define R2_CELLS     (1 << 24) // limit of the work of one RII elimination

#define PROBES  4    // largest number of rounds of probing
#define PROBING 0.02 // part of the effort that each round of probing may use

// Worklists. An edge may be listed twice; its flag `dirty` tells whether a visit is due. A node is
// listed at most once (`queued`).
struct queue {
    LIST(uint32_t) edges, nodes;
};

static void push_edge(struct core *core, struct queue *queue, uint32_t id)
{
    core->edges.at[id].dirty = true;
    uint32_t *slot = list_push(core->heap, &queue->edges);
    if (slot)
        *slot = id;
}

static void push_node(struct core *core, struct queue *queue, uint32_t v)
{
    if (core->nodes[v].queued || core->nodes[v].gone)
        return;
    uint32_t *slot = list_push(core->heap, &queue->nodes);
    if (slot) {
        *slot = v;
        core->nodes[v].queued = true;
    }
}

// Queues everything that depends on the choices of v, after v has lost some of them.
static void queue_neighbourhood(struct core *core, struct queue *queue, uint32_t v)
{
    push_node(core, queue, v);
    for (uint32_t i = 0; i < core->nodes[v].edges.n; i++) {
        uint32_t id = core->nodes[v].edges.at[i];
        push_edge(core, queue, id);
        push_node(core, queue, edge_other(&core->edges.at[id], v));
    }
}

static void detach(struct core *core, uint32_t v, uint32_t id)
{
    struct core_node *node = &core->nodes[v];
    for (uint32_t i = 0; i < node->edges.n; i++)
        if (node->edges.at[i] == id) {
            node->edges.at[i] = node->edges.at[--node->edges.n];
            return;
        }
}

static void drop_edge(struct core *core, uint32_t id)
{
    struct core_edge *edge = &core->edges.at[id];
    detach(core, edge->a, id);
    detach(core, edge->b, id);
    tsr__table_drop(core, edge->table);
    edge->table = NULL;
}

// Returns an edge between u and v other than `but`, or NONE.
static uint32_t find_edge(const struct core *core, uint32_t u, uint32_t v, uint32_t but)
{
    if (core->nodes[v].edges.n < core->nodes[u].edges.n) {
        uint32_t swap = u;
        u = v;
        v = swap;
    }
    for (uint32_t i = 0; i < core->nodes[u].edges.n; i++)
        if (core->nodes[u].edges.at[i] != but &&
            edge_other(&core->edges.at[core->nodes[u].edges.at[i]], u) == v)
            return core->nodes[u].edges.at[i];
    return NONE;
}

// Adds the table (rows: choices of u) to the edge between u and w, which is created if there is
// none. Takes ownership of the table.
static void add_table(struct core *core, struct queue *queue, uint32_t u, uint32_t w,
                      struct table *table)
{
    uint32_t id = find_edge(core, u, w, NONE);
    if (id == NONE) {
        id = core->edges.n;
        struct core_edge *edge = list_push(core->heap, &core->edges);
        uint32_t *at_u = list_push(core->heap, &core->nodes[u].edges);
        uint32_t *at_w = list_push(core->heap, &core->nodes[w].edges);
        if (!edge || !at_u || !at_w)
            return;
        *edge = (struct core_edge){u, w, table, true};
        *at_u = *at_w = id;
    } else {
        struct core_edge *edge = &core->edges.at[id];
        bool same = edge->a == u;
        for (uint32_t i = 0; i < table->rows; i++)
            for (uint32_t j = 0; j < table->cols; j++) {
                int64_t *cell = &table->cell[(size_t)i * table->cols + j];
                *cell = plus(*cell, edge_cost(edge, u, i, j));
            }
        tsr__table_drop(core, edge->table);
        edge->table = table;
        if (!same) {
            edge->a = u;
            edge->b = w;
        }
    }
    push_edge(core, queue, id);
}

// Records how the choice of an eliminated node follows from nodes that are eliminated later or
// stay.
static void record(struct core *core, struct core_step step)
{
    struct core_step *core_step = list_push(core->heap, &core->steps);
    if (core_step)
        *core_step = step;
}

// Removes the node with its edges and uses. The caller has already recorded its step.
static void eliminate(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    while (node->edges.n && !core->heap->failed)
        drop_edge(core, node->edges.at[0]);
    for (uint32_t i = 0; i < node->uses.n; i++)
        tsr__heap_free(core->heap, node->uses.at[i].usage);
    node->uses.n = 0;
    node->gone = true;
}

// ---- arc consistency

bool tsr__core_supported(const struct core *core, const struct core_edge *edge, uint32_t v,
                         uint32_t i, uint8_t *const *dead)
{
    uint32_t w = edge_other(edge, v);
    for (uint32_t j = 0; j < core->nodes[w].k; j++)
        if (!dead[w][j] && edge_cost(edge, v, i, j) < NEVER)
            return true;
    return false;
}

// Marks choices of w as dead that have no allowed partner over the edge. Returns true if there were
// any.
static bool propagate(struct core *core, const struct core_edge *edge, uint32_t w,
                      uint8_t *const *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < core->nodes[w].k; i++)
        if (!dead[w][i] && !tsr__core_supported(core, edge, w, i, dead)) {
            dead[w][i] = 1;
            any = true;
        }
    core->effort->work += (size_t)edge->table->rows * edge->table->cols;
    return any;
}

// Removes choices without a partner over some edge, by a worklist. The loop ends, because `dead`
// only grows. Then every remaining choice has a partner over every edge. Tables are changed once,
// at the end.
static void arc_consistency(struct core *core)
{
    struct queue queue = {0};
    uint8_t **dead = HEAP_ARRAY(core->heap, uint8_t *, (size_t)core->n_nodes + 1);
    for (uint32_t v = 0; dead && v < core->n_nodes && !core->heap->failed; v++) {
        dead[v] = HEAP_ARRAY(core->heap, uint8_t, core->nodes[v].k);
        for (uint32_t i = 0; dead[v] && i < core->nodes[v].k; i++)
            dead[v][i] = core->nodes[v].cost[i] >= NEVER;
        push_node(core, &queue, v);
    }
    for (uint32_t at = 0; at < queue.nodes.n; at++) {
        if (core->heap->failed)
            break;
        uint32_t v = queue.nodes.at[at];
        core->nodes[v].queued = false;
        for (uint32_t i = 0; i < core->nodes[v].edges.n; i++) {
            const struct core_edge *edge = &core->edges.at[core->nodes[v].edges.at[i]];
            if (propagate(core, edge, edge_other(edge, v), dead))
                push_node(core, &queue, edge_other(edge, v));
        }
    }
    for (uint32_t v = 0; v < core->n_nodes; v++) {
        if (core->heap->failed)
            break;
        tsr__core_remove(core, v, dead[v]);
        tsr__heap_free(core->heap, dead[v]);
    }
    tsr__heap_free(core->heap, dead);
    tsr__heap_free(core->heap, queue.nodes.at);
}

// ---- merging

// Adds the uses of v to u. Choice i of u has the usage of choice map[i] of v. Example: v uses {5,
// 7} and the map is {1, 0, 1}. The three choices of u use {7, 5, 7} more, over the same rows.
static void merge_uses(struct core *core, uint32_t u, uint32_t v, const uint32_t *map)
{
    struct core_node *to = &core->nodes[u], *from = &core->nodes[v];
    for (uint32_t i = 0; i < from->uses.n; i++) {
        const struct core_use *in = &from->uses.at[i];
        uint32_t j = 0;
        while (j < to->uses.n &&
               (to->uses.at[j].begin != in->begin || to->uses.at[j].end != in->end))
            j++;
        if (j == to->uses.n) {
            int64_t *usage = HEAP_ARRAY(core->heap, int64_t, to->k);
            struct core_use *fresh = usage ? list_push(core->heap, &to->uses) : NULL;
            if (!fresh)
                return;
            *fresh = (struct core_use){in->begin, in->end, usage};
        }
        for (uint32_t k = 0; k < to->k; k++)
            to->uses.at[j].usage[k] += in->usage[map[k]];
    }
}

// Turns an edge of v into an edge of u. Row i of its new table is row map[i] of the old one.
static void merge_edge(struct core *core, struct queue *queue, uint32_t u, uint32_t v, uint32_t id,
                       const uint32_t *map)
{
    const struct core_edge *edge = &core->edges.at[id];
    uint32_t w = edge_other(edge, v);
    struct table *table = tsr__table_new(core, core->nodes[u].k, core->nodes[w].k);
    if (!table)
        return;
    for (uint32_t i = 0; i < table->rows; i++)
        for (uint32_t j = 0; j < table->cols; j++)
            table->cell[(size_t)i * table->cols + j] = edge_cost(edge, v, map[i], j);
    core->effort->work += (size_t)table->rows * table->cols;
    add_table(core, queue, u, w, table);
    push_node(core, queue, w);
}

// True if merging v into u would enlarge the tables of v's edges too much. Example: u has 1000
// choices, v has 2. When u takes over the edges of v, their tables become 500 times as large.
static bool merge_grows(const struct core *core, uint32_t u, uint32_t v)
{
    size_t before = 0, after = 0;
    for (uint32_t i = 0; i < core->nodes[v].edges.n; i++) {
        const struct core_edge *edge = &core->edges.at[core->nodes[v].edges.at[i]];
        before += (size_t)edge->table->rows * edge->table->cols;
        after += (size_t)core->nodes[u].k * core->nodes[edge_other(edge, v)].k;
    }
    return after > MERGE_CELLS && after > MERGE_GROWTH * before;
}

// Merges v into u: the choice of v is map[choice of u].
static void merge(struct core *core, struct queue *queue, uint32_t u, uint32_t v, uint32_t id,
                  const uint32_t *map)
{
    struct core_node *to = &core->nodes[u], *from = &core->nodes[v];
    uint32_t *by_choice = HEAP_ARRAY(core->heap, uint32_t, core->program->nodes.at[u].k);
    if (!by_choice)
        return;
    for (uint32_t i = 0; i < to->k; i++) {
        to->cost[i] = plus(to->cost[i],
                           plus(from->cost[map[i]], edge_cost(&core->edges.at[id], u, i, map[i])));
        by_choice[to->origin[i]] = from->origin[map[i]];
    }
    record(core, (struct core_step){.node = v, .n = 1, .from = {u}, .by_choice = by_choice});
    drop_edge(core, id);
    merge_uses(core, u, v, map);
    for (uint32_t i = 0; i < from->edges.n && !core->heap->failed; i++)
        merge_edge(core, queue, u, v, from->edges.at[i], map);
    eliminate(core, v);
    push_node(core, queue, u); // the other edges of u have not changed
}

// ---- one edge

// Counts for every choice of v its allowed partners (up to 2) and stores the last of them in
// `which`. Returns true if every choice has exactly one.
static bool count_partners(const struct core *core, const struct core_edge *edge, uint32_t v,
                           uint8_t *count, uint32_t *which)
{
    uint32_t other = core->nodes[edge_other(edge, v)].k;
    bool function = true;
    for (uint32_t i = 0; i < core->nodes[v].k; i++) {
        count[i] = 0;
        for (uint32_t j = 0; j < other && count[i] < 2; j++)
            if (edge_cost(edge, v, i, j) < NEVER) {
                count[i]++;
                which[i] = j;
            }
        function &= count[i] == 1;
    }
    core->effort->work += (size_t)core->nodes[v].k * other;
    return function;
}

// Marks the choices without a partner as dead. Returns true if there are any.
static bool mark_unsupported(const uint8_t *count, uint32_t k, uint8_t *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < k; i++) {
        dead[i] = count[i] == 0;
        any |= dead[i];
    }
    return any;
}

// Removes an edge whose table is f(a) + g(b), and adds f and g to the costs of the nodes. Returns
// false if the table has no such form.
static bool decompose(struct core *core, struct queue *queue, uint32_t id)
{
    struct core_edge *edge = &core->edges.at[id];
    const struct table *table = edge->table;
    const int64_t *cell = table->cell;
    for (uint32_t i = 0; i < table->rows; i++)
        for (uint32_t j = 0; j < table->cols; j++) {
            int64_t x = cell[(size_t)i * table->cols + j];
            if (x >= NEVER || x - cell[j] != cell[(size_t)i * table->cols] - cell[0])
                return false;
        }
    uint32_t a = edge->a, b = edge->b;
    // f(i) = table(i, 0) + least, g(j) = table(0, j) - table(0, 0) - least: neither is negative.
    int64_t least = 0;
    for (uint32_t j = 0; j < table->cols; j++)
        least = int64_min(least, cell[j] - cell[0]);
    for (uint32_t i = 0; i < table->rows; i++)
        core->nodes[a].cost[i] =
            plus(core->nodes[a].cost[i], cell[(size_t)i * table->cols] + least);
    for (uint32_t j = 0; j < table->cols; j++)
        core->nodes[b].cost[j] = plus(core->nodes[b].cost[j], cell[j] - cell[0] - least);
    drop_edge(core, id);
    push_node(core, queue, a);
    push_node(core, queue, b);
    return true;
}

// Buffers for visits. Each is large enough for the node with the most choices.
struct scratch {
    uint8_t *count, *dead;
    uint32_t *which;
    struct dominance dominance;
};

// Applies the first possible reduction to an edge and queues what it affects. The edge may be gone
// afterwards.
static void visit_edge(struct core *core, struct queue *queue, uint32_t id, struct scratch *scratch)
{
    struct core_edge *edge = &core->edges.at[id];
    if (!edge->table || !edge->dirty)
        return;
    edge->dirty = false;
    for (int side = 0; side < 2; side++) {
        uint32_t v = side ? edge->b : edge->a, w = edge_other(edge, v);
        bool function = count_partners(core, edge, v, scratch->count, scratch->which);
        if (mark_unsupported(scratch->count, core->nodes[v].k, scratch->dead)) {
            tsr__core_remove(core, v, scratch->dead);
            queue_neighbourhood(core, queue, v);
            return;
        }
        if (function && !merge_grows(core, v, w)) {
            merge(core, queue, v, w, id, scratch->which);
            return;
        }
    }
    decompose(core, queue, id);
}

// ---- one node

// Subtracts the least usage of each use from the use itself and from the bounds of its rows. Drops
// uses that become 0.
static void trim_uses(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    for (uint32_t i = 0; i < node->uses.n;) {
        struct core_use *use = &node->uses.at[i];
        int64_t least = use->usage[0], most = use->usage[0];
        for (uint32_t k = 1; k < node->k; k++) {
            least = int64_min(least, use->usage[k]);
            most = int64_max(most, use->usage[k]);
        }
        for (uint32_t k = 0; k < node->k; k++)
            use->usage[k] -= least;
        if (least)
            for (uint32_t row = use->begin; row < use->end; row++)
                core->row_bound[row] -= least;
        if (most > least) {
            i++;
            continue;
        }
        tsr__heap_free(core->heap, use->usage);
        *use = node->uses.at[--node->uses.n];
    }
}

// Eliminates a node with one neighbour w (RI): its best choice depends only on w. Adds the minimum
// to the costs of w.
static void fold_leaf(struct core *core, struct queue *queue, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    uint32_t id = node->edges.at[0];
    const struct core_edge *edge = &core->edges.at[id];
    uint32_t w = edge_other(edge, v);
    uint32_t *by_choice = HEAP_ARRAY(core->heap, uint32_t, core->program->nodes.at[w].k);
    if (!by_choice)
        return;
    for (uint32_t i = 0; i < core->nodes[w].k; i++) {
        uint32_t best = 0;
        int64_t least = INT64_MAX;
        for (uint32_t j = 0; j < node->k; j++) {
            int64_t x = plus(node->cost[j], edge_cost(edge, v, j, i));
            if (x < least) {
                least = x;
                best = j;
            }
        }
        core->nodes[w].cost[i] = plus(core->nodes[w].cost[i], least);
        by_choice[core->nodes[w].origin[i]] = node->origin[best];
    }
    core->effort->work += (size_t)node->k * core->nodes[w].k;
    record(core, (struct core_step){.node = v, .n = 1, .from = {w}, .by_choice = by_choice});
    eliminate(core, v);
    push_node(core, queue, w);
}

// Eliminates a node with two neighbours a and b (RII). A table between them replaces v; its cells
// are the minima over v. Example: v costs {0, 4}, the edge to a {1, 0} and to b {2, 0} (by choice
// of v). The cell is min(0 + 1 + 2, 4 + 0 + 0) = 3, by v = 0.
static void fold_link(struct core *core, struct queue *queue, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    const struct core_edge *ea = &core->edges.at[node->edges.at[0]],
                           *eb = &core->edges.at[node->edges.at[1]];
    uint32_t a = edge_other(ea, v), b = edge_other(eb, v);
    uint32_t stride = core->program->nodes.at[b].k;
    uint32_t *by_choice =
        HEAP_ARRAY(core->heap, uint32_t, (size_t)core->program->nodes.at[a].k * stride);
    struct table *table = tsr__table_new(core, core->nodes[a].k, core->nodes[b].k);
    if (!by_choice || !table)
        return;
    for (uint32_t i = 0; i < table->rows; i++)
        for (uint32_t j = 0; j < table->cols; j++) {
            uint32_t best = 0;
            int64_t least = INT64_MAX;
            for (uint32_t k = 0; k < node->k; k++) {
                int64_t x = plus(node->cost[k], edge_cost(ea, v, k, i) + edge_cost(eb, v, k, j));
                if (x < least) {
                    least = x;
                    best = k;
                }
            }
            table->cell[(size_t)i * table->cols + j] = least;
            by_choice[(size_t)core->nodes[a].origin[i] * stride + core->nodes[b].origin[j]] =
                node->origin[best];
        }
    core->effort->work += (size_t)table->rows * table->cols * node->k;
    record(core, (struct core_step){
                     .node = v, .n = 2, .from = {a, b}, .stride = stride, .by_choice = by_choice});
    eliminate(core, v);
    add_table(core, queue, a, b, table);
    push_node(core, queue, a);
    push_node(core, queue, b);
}

// Eliminates a node without edges and uses (R0). The node takes its cheapest choice, whose cost is
// added to the shift.
static void fold_single(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    uint32_t best = 0;
    for (uint32_t i = 1; i < node->k; i++)
        if (node->cost[i] < node->cost[best])
            best = i;
    uint32_t *by_choice = HEAP_ARRAY(core->heap, uint32_t, 1);
    if (!by_choice)
        return;
    *by_choice = node->origin[best];
    core->shift += node->cost[best];
    record(core, (struct core_step){.node = v, .by_choice = by_choice});
    eliminate(core, v);
}

// Removes choices that sums of costs have made forbidden. Returns true if there were any.
static bool mark_forbidden(struct core *core, uint32_t v, uint8_t *dead)
{
    struct core_node *node = &core->nodes[v];
    bool any = false;
    for (uint32_t i = 0; i < node->k; i++) {
        dead[i] = node->cost[i] >= NEVER;
        any |= dead[i];
    }
    if (any)
        tsr__core_remove(core, v, dead);
    return any;
}

// Removes forbidden and dominated choices of a node, or else tries to eliminate the node. Nodes
// with uses are not eliminated, because the rows still depend on them. A node with two neighbours
// is eliminated only if that takes at most R2_CELLS sums.
static void visit_node(struct core *core, struct queue *queue, uint32_t v, struct scratch *scratch)
{
    struct core_node *node = &core->nodes[v];
    if (mark_forbidden(core, v, scratch->dead)) {
        queue_neighbourhood(core, queue, v);
        return;
    }
    trim_uses(core, v);
    if (tsr__core_dominate(core, v, &scratch->dominance, scratch->dead)) {
        queue_neighbourhood(core, queue, v);
        return; // it is queued again
    }
    if (node->uses.n)
        return;
    if (node->edges.n == 0)
        fold_single(core, v);
    else if (node->edges.n == 1)
        fold_leaf(core, queue, v);
    else if (node->edges.n == 2) {
        uint64_t cells = node->k;
        for (uint32_t i = 0; i < 2; i++)
            cells *= core->nodes[edge_other(&core->edges.at[node->edges.at[i]], v)].k;
        if (cells <= R2_CELLS)
            fold_link(core, queue, v);
    }
}

// ---- rows

struct sweep {     // by row
    int64_t *most; // sum of the largest usages
    uint8_t *mark; // flags: a use begins at this row; a use ends after it
    uint8_t *keep;
};
enum { BEGINS = 1, ENDS = 2 };

// Computes the largest usage of each row and marks where uses begin and end. Uses a difference
// array. Example: a use of at most 7 of rows 2..4 adds 7 at row 2 and -7 at row 5. Prefix sums then
// give the total of each row.
static bool sweep_init(struct core *core, struct sweep *sweep)
{
    size_t n = (size_t)core->n_rows + 1;
    sweep->most = HEAP_ARRAY(core->heap, int64_t, n);
    sweep->mark = HEAP_ARRAY(core->heap, uint8_t, n);
    sweep->keep = HEAP_ARRAY(core->heap, uint8_t, n);
    if (core->heap->failed)
        return false;
    for (uint32_t v = 0; v < core->n_nodes; v++)
        for (uint32_t i = 0; i < core->nodes[v].uses.n; i++) {
            const struct core_use *use = &core->nodes[v].uses.at[i];
            int64_t largest = 0;
            for (uint32_t k = 0; k < core->nodes[v].k; k++)
                largest = int64_max(largest, use->usage[k]);
            sweep->most[use->begin] += largest;
            sweep->most[use->end] -= largest;
            sweep->mark[use->begin] |= BEGINS;
            sweep->mark[use->end - 1] |= ENDS;
        }
    for (uint32_t row = 1; row < core->n_rows; row++)
        sweep->most[row] += sweep->most[row - 1];
    return true;
}

// Marks the rows to keep. A row is redundant if its uses are a subset of those of a kept neighbour
// and its bound is not smaller. `kept` is a stack of rows. between[i] has the events (uses that
// begin or end) between the kept rows i - 1 and i.
static void sweep_rows(struct core *core, struct sweep *sweep, uint32_t *kept, uint8_t *between)
{
    uint32_t n = 0;
    uint8_t since = 0;
    for (uint32_t row = 0; row < core->n_rows; row++) {
        since |= sweep->mark[row] & BEGINS;
        bool needed = sweep->most[row] > core->row_bound[row], covered = false;
        // No use has ended since the last kept row, so the uses of that row are a subset of this
        // row's. If the bound of this row is not larger, the last kept row is redundant.
        while (needed && n && !(since & ENDS) &&
               core->row_bound[kept[n - 1]] >= core->row_bound[row])
            since |= between[--n];
        // Conversely, if no use has begun since, this row is redundant.
        if (needed && n && !(since & BEGINS) &&
            core->row_bound[row] >= core->row_bound[kept[n - 1]])
            covered = true;
        if (needed && !covered) {
            kept[n] = row;
            between[n++] = since;
            since = 0;
        }
        since |= sweep->mark[row] & ENDS;
    }
    for (uint32_t i = 0; i < n; i++)
        sweep->keep[kept[i]] = 1;
}

// Removes the rows that are not kept and renumbers the others. fresh[row] becomes the number of
// kept rows before `row`. A negative bound makes the core infeasible.
static void renumber_rows(struct core *core, const uint8_t *keep, uint32_t *fresh)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < core->n_rows; row++) {
        if (core->row_bound[row] < 0)
            core->infeasible = true;
        fresh[row] = n;
        if (keep[row]) {
            core->row_limit[n] = core->row_limit[row];
            core->row_time[n] = core->row_time[row];
            core->row_bound[n++] = core->row_bound[row];
        }
    }
    fresh[core->n_rows] = n;
    core->n_rows = n;
}

// Changes uses to the new row numbers and drops uses without rows.
static void move_uses(struct core *core, struct queue *queue, uint32_t v, const uint32_t *fresh)
{
    struct core_node *node = &core->nodes[v];
    for (uint32_t i = 0; i < node->uses.n;) {
        struct core_use *use = &node->uses.at[i];
        use->begin = fresh[use->begin];
        use->end = fresh[use->end];
        if (use->begin < use->end) {
            i++;
            continue;
        }
        tsr__heap_free(core->heap, use->usage);
        *use = node->uses.at[--node->uses.n];
        push_node(core, queue, v); // it may be eliminated now
    }
}

// Merges uses with the same rows.
static void join_uses(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    for (uint32_t i = 0; i < node->uses.n; i++)
        for (uint32_t j = i + 1; j < node->uses.n;) {
            struct core_use *a = &node->uses.at[i], *b = &node->uses.at[j];
            if (a->begin != b->begin || a->end != b->end) {
                j++;
                continue;
            }
            for (uint32_t k = 0; k < node->k; k++)
                a->usage[k] += b->usage[k];
            tsr__heap_free(core->heap, b->usage);
            *b = node->uses.at[--node->uses.n];
        }
}

// Drops redundant rows and renumbers the uses.
static void reduce_rows(struct core *core, struct queue *queue)
{
    struct sweep sweep;
    uint32_t *fresh = HEAP_ARRAY(core->heap, uint32_t, (size_t)core->n_rows + 1);
    uint32_t *kept = HEAP_ARRAY(core->heap, uint32_t, (size_t)core->n_rows + 1);
    uint8_t *between = HEAP_ARRAY(core->heap, uint8_t, (size_t)core->n_rows + 1);
    if (core->heap->failed || !sweep_init(core, &sweep))
        return;
    sweep_rows(core, &sweep, kept, between);
    renumber_rows(core, sweep.keep, fresh);
    for (uint32_t v = 0; v < core->n_nodes; v++)
        if (!core->nodes[v].gone) {
            move_uses(core, queue, v, fresh);
            join_uses(core, v);
        }
    tsr__heap_free(core->heap, sweep.most);
    tsr__heap_free(core->heap, sweep.mark);
    tsr__heap_free(core->heap, sweep.keep);
    tsr__heap_free(core->heap, fresh);
    tsr__heap_free(core->heap, kept);
    tsr__heap_free(core->heap, between);
}

// Marks the choices of v that violate a row by themselves. Returns true if there are any.
static bool mark_violating(struct core *core, uint32_t v, uint8_t *dead)
{
    const struct core_node *node = &core->nodes[v];
    bool any = false;
    memset(dead, 0, node->k);
    for (uint32_t i = 0; i < node->uses.n; i++) {
        const struct core_use *use = &node->uses.at[i];
        int64_t least = INT64_MAX;
        for (uint32_t row = use->begin; row < use->end; row++)
            least = int64_min(least, core->row_bound[row]);
        for (uint32_t k = 0; k < node->k; k++)
            dead[k] |= use->usage[k] > least;
        core->effort->work += node->k + (use->end - use->begin) / 8;
    }
    for (uint32_t k = 0; k < node->k; k++)
        any |= dead[k];
    return any;
}

static void remove_violating(struct core *core, struct queue *queue, struct scratch *scratch)
{
    for (uint32_t v = 0; v < core->n_nodes; v++) {
        if (core->infeasible || core->heap->failed)
            return;
        if (!core->nodes[v].gone && mark_violating(core, v, scratch->dead)) {
            tsr__core_remove(core, v, scratch->dead);
            queue_neighbourhood(core, queue, v);
        }
    }
}

// ---- the reduction loop

// True if the session is cancelled or if the rest of the effort should be left for the search.
static bool is_effort_spent(const struct core *core)
{
    const struct effort *effort = core->effort;
    if (effort->session && tsr__cancelled(effort->session))
        return true;
    return effort->work > effort->limit / 2 ||
           (effort->seconds > 0 && tsr__effort_elapsed(effort) > 0.7 * effort->seconds);
}

// Empties the queues. Visits edges before nodes, because edges are cheap and often shrink nodes.
// Checks the effort every 256 visits, and drops what is queued when the reductions have used their
// part of it.
static void drain(struct core *core, struct queue *queue, struct scratch *scratch)
{
    for (uint32_t i = 1; !core->infeasible; i++) {
        if (core->heap->failed)
            break;
        if (i % 256 == 0 && is_effort_spent(core)) {
            while (queue->nodes.n)
                core->nodes[queue->nodes.at[--queue->nodes.n]].queued = false;
            queue->edges.n = 0;
            break;
        }
        if (queue->edges.n) {
            visit_edge(core, queue, queue->edges.at[--queue->edges.n], scratch);
        } else if (queue->nodes.n) {
            uint32_t v = queue->nodes.at[--queue->nodes.n];
            core->nodes[v].queued = false;
            if (!core->nodes[v].gone)
                visit_node(core, queue, v, scratch);
        } else {
            break;
        }
    }
}

// Merges parallel edges.
static void join_edges(struct core *core, struct queue *queue)
{
    for (uint32_t id = 0; id < core->edges.n; id++) {
        if (core->heap->failed)
            break;
        struct core_edge edge = core->edges.at[id];
        if (!edge.table || find_edge(core, edge.a, edge.b, id) == NONE)
            continue;
        struct table *table = tsr__table_new(core, edge.table->rows, edge.table->cols);
        if (!table)
            return;
        memcpy(table->cell, edge.table->cell, (size_t)table->rows * table->cols * sizeof(int64_t));
        drop_edge(core, id);
        add_table(core, queue, edge.a, edge.b, table);
    }
}

// Runs one round of probing. Returns true if it removed choices.
static bool probe(struct core *core, struct queue *queue, struct scratch *scratch)
{
    uint8_t *lost = HEAP_ARRAY(core->heap, uint8_t, (size_t)core->n_nodes + 1);
    if (!lost || core->n_rows == 0)
        return false;
    tsr__effort_slice(core->effort, PROBING);
    bool any = tsr__core_probe(core, scratch->dead, lost) > 0;
    tsr__effort_slice(core->effort, 0);
    for (uint32_t v = 0; v < core->n_nodes; v++)
        if (lost[v])
            queue_neighbourhood(core, queue, v);
    tsr__heap_free(core->heap, lost);
    return any;
}

// Reduces the program. Each round empties the queues and then reduces the rows, after which more
// nodes may be eliminated. Probes only when a round changes nothing, at most PROBES times.
void tsr__core_reduce(struct core *core)
{
    struct queue queue = {0};
    uint32_t k = 1;
    int probes = 0;
    for (uint32_t v = 0; v < core->n_nodes; v++)
        if (core->nodes[v].k > k)
            k = core->nodes[v].k;
    struct scratch scratch = {.count = HEAP_ARRAY(core->heap, uint8_t, k),
                              .dead = HEAP_ARRAY(core->heap, uint8_t, k),
                              .which = HEAP_ARRAY(core->heap, uint32_t, k)};
    arc_consistency(core);
    if (core->infeasible || core->heap->failed)
        return;
    join_edges(core, &queue);
    for (uint32_t v = 0; v < core->n_nodes; v++) {
        trim_uses(core, v);
        queue_neighbourhood(core, &queue, v);
    }
    do {
        drain(core, &queue, &scratch);
        uint32_t rows = core->n_rows;
        if (!core->infeasible && !core->heap->failed)
            reduce_rows(core, &queue);
        if (!core->infeasible && !core->heap->failed)
            remove_violating(core, &queue, &scratch);
        if (rows != core->n_rows || queue.nodes.n || core->infeasible || core->heap->failed)
            continue;
        if (probes++ == PROBES || !probe(core, &queue, &scratch))
            break;
    } while (!core->infeasible && !core->heap->failed);
    // If the effort was used up, choices without support may be left.
    if (!core->infeasible && !core->heap->failed && is_effort_spent(core))
        arc_consistency(core);
    tsr__heap_free(core->heap, queue.edges.at);
    tsr__heap_free(core->heap, queue.nodes.at);
    tsr__heap_free(core->heap, scratch.count);
    tsr__heap_free(core->heap, scratch.dead);
    tsr__heap_free(core->heap, scratch.which);
    tsr__heap_free(core->heap, scratch.dominance.least.at);
    tsr__heap_free(core->heap, scratch.dominance.turned.at);
    tsr__heap_free(core->heap, scratch.dominance.views.at);
}
