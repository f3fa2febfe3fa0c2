// SPDX-License-Identifier: Apache-2.0
// solve_reduce.c - reductions that lose no optimum, limits included.
//
// Choices without an allowed partner leave (arc consistency). A node whose choice follows from a
// neighbour's merges into it. An edge that is a sum of two vectors moves into its nodes. A choice
// that another beats in cost and in every use leaves (solve_dominance.c). A node that uses
// nothing goes where it has at most two neighbours (R0, RI, RII). What all choices of a node use alike
// is taken off the bounds; rows that can no longer be exceeded are dropped; choices that alone use more
// than what is left of a row leave.
//
// Worked example: u costs {3, 5}, v costs {0, 1}, the edge u-v is {0, 9; NEVER, 0} (rows: u), and
// v uses nothing. v has one neighbour, so fold_leaf takes the best v for each choice of u:
//   u = 0: min(0 + 0, 1 + 9) = 0 by v = 0;   u = 1: min(0 + NEVER, 1 + 0) = 1 by v = 1.
// u then costs {3 + 0, 5 + 1} = {3, 6}, and the core records the step "u = 0 -> v = 0, u = 1 -> v
// = 1". u has no edge left: settle takes u = 0 and adds 3 to the shift. tsr__core_expand reads
// the steps backwards: u = 0, therefore v = 0; the cost is 3, which is the optimum of the
// program. With a limit of 10 on what u and v use, u using {6, 8} and v {2, 2}: trim_uses takes 2
// off the bound for v (v now uses nothing and can go) and 6 for u, so that u uses {0, 2} of the 2
// that are left.
#include "internal.h"

#include <stdlib.h>

#define MERGE_GROWTH 4         // a merge may make the tables of a hub so much larger ...
#define MERGE_CELLS  (1 << 18) // ... beyond this many cells
#define R2_CELLS     (1 << 24) // work that one elimination of a node of degree two may take

#define PROBES  4
#define PROBING 0.02 // of the effort, for each

// What is still to be looked at. An edge may stand in it twice: `dirty` tells whether it is still
// due. A node stands in it once: `queued`.
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

// The node has lost choices: all that touches it is to be looked at again.
static void touched(struct core *core, struct queue *queue, uint32_t v)
{
    push_node(core, queue, v);
    for (uint32_t i = 0; i < core->nodes[v].edges.n; i++) {
        uint32_t id = core->nodes[v].edges.at[i];
        push_edge(core, queue, id);
        push_node(core, queue, edge_other(&core->edges.at[id], v));
    }
}

// The order of a node's edges does not matter: the last one fills the hole.
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

// An edge between u and v other than `but`, or NONE.
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

// Adds table (rows: choices of u) to the edge between u and w; table is taken over.
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

// Steps are recorded in the order in which nodes go and read backwards: each one depends only on
// nodes that go later or stay.
static void record(struct core *core, struct core_step step)
{
    struct core_step *core_step = list_push(core->heap, &core->steps);
    if (core_step)
        *core_step = step;
}

// Callers record first how the node follows from others. It has no edges and no uses afterwards.
static void leave(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    while (node->edges.n && !core->heap->failed)
        drop_edge(core, node->edges.at[0]);
    for (uint32_t i = 0; i < node->uses.n; i++)
        tsr__heap_free(core->heap, node->uses.at[i].usage);
    node->uses.n = 0;
    node->gone = true;
}

// ---- arc consistency, over all choices at once

// Choice i of v has a partner over the edge that is not dead.
static bool supported(const struct core *core, const struct core_edge *edge, uint32_t v, uint32_t i,
                      uint8_t *const *dead)
{
    uint32_t w = edge_other(edge, v);
    for (uint32_t j = 0; j < core->nodes[w].k; j++)
        if (!dead[w][j] && edge_cost(edge, v, i, j) < NEVER)
            return true;
    return false;
}

// Choices of w that lost their support at v die; true if any did.
static bool propagate(struct core *core, const struct core_edge *edge, uint32_t w,
                      uint8_t *const *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < core->nodes[w].k; i++)
        if (!dead[w][i] && !supported(core, edge, w, i, dead)) {
            dead[w][i] = 1;
            any = true;
        }
    core->effort->work += (size_t)edge->table->rows * edge->table->cols;
    return any;
}

// `dead` only grows, and a node comes into the queue again whenever one of its choices dies; so
// the loop ends, and then every choice that lives has a living partner over every edge. Only at
// the end do the dead choices leave their tables, all at once.
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

// v's uses become u's, read through the map: v uses {5, 7} and map is {1, 0, 1}: u's three
// choices use {7, 5, 7} more over the same rows.
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

// An edge of v becomes one of u, whose row i is v's row map[i].
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

// A hub of many choices that takes over a small node's edges repeats their rows: 1000 choices
// against 2 make a table 500 times as large.
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

// v follows from u: its choice is map[choice of u].
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
    leave(core, v);
    push_node(core, queue, u); // its other edges are as they were
}

// ---- one edge

// Allowed partners of every choice of v over the edge: how many (up to 2), and the last of them.
static bool partners(const struct core *core, const struct core_edge *edge, uint32_t v,
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

// dead: the choices without a partner; true if there are any.
static bool lacks(const uint8_t *count, uint32_t k, uint8_t *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < k; i++) {
        dead[i] = count[i] == 0;
        any |= dead[i];
    }
    return any;
}

// table = f(a) + g(b): both move into the nodes and the edge goes.
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
    // f(i) = table(i, 0), g(j) = table(0, j) - table(0, 0), lifted so that none is negative.
    int64_t least = 0;
    for (uint32_t j = 0; j < table->cols; j++)
        if (cell[j] - cell[0] < least)
            least = cell[j] - cell[0];
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

// Arrays that all visits share: count, dead and which have room for the most choices of any node.
struct scratch {
    uint8_t *count, *dead;
    uint32_t *which;
    struct dominance dominance;
};

// Both ends are looked at in turn; after any change the edge may be another one or gone, so the
// visit ends there, and the queue brings back whatever is left to do.
static void visit_edge(struct core *core, struct queue *queue, uint32_t id, struct scratch *scratch)
{
    struct core_edge *edge = &core->edges.at[id];
    if (!edge->table || !edge->dirty)
        return;
    edge->dirty = false;
    for (int side = 0; side < 2; side++) {
        uint32_t v = side ? edge->b : edge->a, w = edge_other(edge, v);
        bool function = partners(core, edge, v, scratch->count, scratch->which);
        if (lacks(scratch->count, core->nodes[v].k, scratch->dead)) {
            tsr__core_remove(core, v, scratch->dead);
            touched(core, queue, v);
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

// Least usage of each use goes off the bounds; uses that are nothing else go.
static void trim_uses(struct core *core, uint32_t v)
{
    struct core_node *node = &core->nodes[v];
    for (uint32_t i = 0; i < node->uses.n;) {
        struct core_use *use = &node->uses.at[i];
        int64_t least = use->usage[0], most = use->usage[0];
        for (uint32_t k = 1; k < node->k; k++) {
            if (use->usage[k] < least)
                least = use->usage[k];
            if (use->usage[k] > most)
                most = use->usage[k];
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

// RI: v has one neighbour w, so v's best choice depends on w's alone. w's costs take it up (see
// the example at the head of this file) and v goes.
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
    leave(core, v);
    push_node(core, queue, w);
}

// RII: v has two neighbours, a and b. For each pair of their choices the best choice of v is
// known, so that a table between a and b replaces v: where v costs {0, 4}, the edge to a {1, 0}
// and the edge to b {2, 0} (by v's choice), the cell is min(0 + 1 + 2, 4 + 0 + 0) = 3, by v = 0.
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
    leave(core, v);
    add_table(core, queue, a, b, table);
    push_node(core, queue, a);
    push_node(core, queue, b);
}

// R0: a node without edges and uses takes its cheapest choice; the shift carries the cost.
static void settle(struct core *core, uint32_t v)
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
    leave(core, v);
}

// Sums may have made choices forbidden.
static bool forbidden(struct core *core, uint32_t v, uint8_t *dead)
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

// Nodes that still use something of a row may not be folded away: the row would lose sight of
// them.
static void visit_node(struct core *core, struct queue *queue, uint32_t v, struct scratch *scratch)
{
    struct core_node *node = &core->nodes[v];
    if (forbidden(core, v, scratch->dead)) {
        touched(core, queue, v);
        return;
    }
    trim_uses(core, v);
    if (tsr__core_dominate(core, v, &scratch->dominance, scratch->dead)) {
        touched(core, queue, v);
        return; // comes again
    }
    if (node->uses.n)
        return;
    if (node->edges.n == 0)
        settle(core, v);
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
    uint8_t *mark; // whether a use begins here, whether one ends after it
    uint8_t *keep;
};
enum { BEGINS = 1, ENDS = 2 };

// Sums over rows are made by differences: a use of rows 2..4 by at most 7 adds 7 at row 2 and
// takes it off at row 5; one pass of prefix sums then gives each row its total.
static bool sweep_init(struct core *core, struct sweep *sweep)
{
    size_t n = (size_t)core->n_rows + 1;
    sweep->most = HEAP_ARRAY(core->heap, int64_t, n);
    sweep->mark = HEAP_ARRAY(core->heap, uint8_t, n);
    sweep->keep = HEAP_ARRAY(core->heap, uint8_t, n);
    if (core->heap->failed)
        return false;
    for (uint32_t v = 0; v < core->n_nodes; v++)
        for (uint32_t i = 0; i < core->nodes[v].uses.n; i++) { // nodes that are gone have none
            const struct core_use *use = &core->nodes[v].uses.at[i];
            int64_t largest = 0;
            for (uint32_t k = 0; k < core->nodes[v].k; k++)
                if (use->usage[k] > largest)
                    largest = use->usage[k];
            sweep->most[use->begin] += largest;
            sweep->most[use->end] -= largest;
            sweep->mark[use->begin] |= BEGINS;
            sweep->mark[use->end - 1] |= ENDS;
        }
    for (uint32_t row = 1; row < core->n_rows; row++)
        sweep->most[row] += sweep->most[row - 1];
    return true;
}

// Marks the rows to keep. `kept` is a stack of rows; `between` of each: what happened between the
// one before it and itself. A row whose live set is part of a kept neighbour's with no larger bound
// follows from that.
static void sweep_rows(struct core *core, struct sweep *sweep, uint32_t *kept, uint8_t *between)
{
    uint32_t n = 0;
    uint8_t since = 0;
    for (uint32_t row = 0; row < core->n_rows; row++) {
        since |= sweep->mark[row] & BEGINS;
        bool needed = sweep->most[row] > core->row_bound[row], covered = false;
        // No use has ended since the kept row below: whatever lives there lives here too. With no
        // larger bound here that row follows from this one, and leaves the stack.
        while (needed && n && !(since & ENDS) &&
               core->row_bound[kept[n - 1]] >= core->row_bound[row])
            since |= between[--n];
        // The other way round: nothing has begun since, so this row follows from the kept one.
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

// Numbers the kept rows anew; fresh[row]: kept rows before row.
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

// Uses that cover no kept row go.
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
        push_node(core, queue, v); // may be eliminated now
    }
}

// Uses with the same rows become one.
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

// Uses begin and end at rows; when rows go, both ends move to the number of kept rows before
// them.
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

// Choices of v that would break a row by themselves.
static bool breaks(struct core *core, uint32_t v, uint8_t *dead)
{
    const struct core_node *node = &core->nodes[v];
    bool any = false;
    memset(dead, 0, node->k);
    for (uint32_t i = 0; i < node->uses.n; i++) {
        const struct core_use *use = &node->uses.at[i];
        int64_t least = INT64_MAX;
        for (uint32_t row = use->begin; row < use->end; row++)
            if (core->row_bound[row] < least)
                least = core->row_bound[row];
        for (uint32_t k = 0; k < node->k; k++)
            dead[k] |= use->usage[k] > least;
        core->effort->work += node->k + (use->end - use->begin) / 8;
    }
    for (uint32_t k = 0; k < node->k; k++)
        any |= dead[k];
    return any;
}

// Removes choices that use more of a row than is left of it.
static void strike_full(struct core *core, struct queue *queue, struct scratch *scratch)
{
    for (uint32_t v = 0; v < core->n_nodes; v++) {
        if (core->infeasible || core->heap->failed)
            return;
        if (!core->nodes[v].gone && breaks(core, v, scratch->dead)) {
            tsr__core_remove(core, v, scratch->dead);
            touched(core, queue, v);
        }
    }
}

// ---- all

// Some of the time is left for the search: what is not reduced by then stays as it is.
static bool enough(const struct core *core)
{
    const struct effort *effort = core->effort;
    if (effort->session && tsr__cancelled(effort->session))
        return true;
    return effort->work > effort->limit / 2 ||
           (effort->seconds > 0 && tsr__effort_elapsed(effort) > 0.7 * effort->seconds);
}

// Edges before nodes: they are cheap to look at and often make nodes smaller. Every 256 visits
// the effort is looked at; when enough is spent, both queues are emptied and what is left stays
// as it is.
static void drain(struct core *core, struct queue *queue, struct scratch *scratch)
{
    for (uint32_t i = 1; !core->infeasible; i++) {
        if (core->heap->failed)
            break;
        if (i % 256 == 0 && enough(core)) {
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

// Edges between the same two nodes become one.
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

// Choices that cannot be, found by trying; true if there were any.
static bool probe(struct core *core, struct queue *queue, struct scratch *scratch)
{
    uint8_t *lost = HEAP_ARRAY(core->heap, uint8_t, (size_t)core->n_nodes + 1);
    if (!lost || core->n_rows == 0)
        return false;
    tsr__effort_slice(core->effort, PROBING);
    bool any = tsr__core_probe(core, scratch->dead, lost) > 0;
    tsr__effort_slice(core->effort, 0);
    for (uint32_t v = 0; v < core->n_nodes; v++) // lost: none where nothing was removed
        if (lost[v])
            touched(core, queue, v);
    tsr__heap_free(core->heap, lost);
    return any;
}

// A round drains the queues and then looks at the rows, whose loss may make nodes foldable again.
// Only when a round changes nothing is it worth to probe, at most PROBES times.
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
        touched(core, &queue, v);
    }
    do {
        drain(core, &queue, &scratch);
        uint32_t rows = core->n_rows;
        if (!core->infeasible && !core->heap->failed)
            reduce_rows(core, &queue);
        if (!core->infeasible && !core->heap->failed)
            strike_full(core, &queue, &scratch);
        if (rows != core->n_rows || queue.nodes.n || core->infeasible || core->heap->failed)
            continue;
        if (probes++ == PROBES || !probe(core, &queue, &scratch))
            break;
    } while (!core->infeasible && !core->heap->failed);
    // Where the effort did not last, choices may be left that nothing supports.
    if (!core->infeasible && !core->heap->failed && enough(core))
        arc_consistency(core);
    tsr__heap_free(core->heap, queue.edges.at);
    tsr__heap_free(core->heap, queue.nodes.at);
    tsr__heap_free(core->heap, scratch.count);
    tsr__heap_free(core->heap, scratch.dead);
    tsr__heap_free(core->heap, scratch.which);
    tsr__dominance_free(core, &scratch.dominance);
}
