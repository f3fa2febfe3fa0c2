// SPDX-License-Identifier: Apache-2.0
// solve_region.c - large neighbourhood search: solves a small region exactly, with all other nodes
// fixed.
//
// A region is one ball of nodes: a node and its surroundings in the graph. Or it is several balls
// with nodes that use the same row, so that one ball can use what another frees. Consecutive rows
// between which no use of the region begins or ends form one span; of the slacks of its rows only
// the least matters. The region is eliminated exactly under Lagrange multipliers. If it exceeds
// spans, their multipliers are raised and it is eliminated again.
//
//     Example of spans, rows 0..9. The region's nodes use rows 2..5 and 4..7, so uses begin or end
//     at 2, 4, 6 and 8. The spans are rows 0-1, 2-3, 4-5, 6-7 and 8-9.
//     Rows 2 and 3 have a slack of 7 and 3, and the region itself uses 4 there now: it may use
//     3 + 4 = 7 in span 1. If the region's optimum uses 9 there, span 1 is exceeded by 2. Its
//     multiplier is raised (raise_multipliers) and the region is eliminated again, until it fits
//     or the number of tries is reached.
#include "solve.h"

#include <math.h>

#define MOVE_CELLS 20000
#define HUB_NODES  1200 // largest region around a hub
#define BRANCHES   12   // limit of neighbours of one node in a ball

// Allocates arrays that are large enough for a region of all nodes and one span (a range of rows,
// see the top of this file) per row.
bool tsr__region_init(struct region *region, const struct dense *dense, struct effort *effort,
                      uint64_t *random)
{
    struct heap *heap = dense->heap;
    *region = (struct region){.dense = dense,
                              .effort = effort,
                              .random = random,
                              .max_cells = MOVE_CELLS,
                              .center = NONE};
    region->x = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->row_slack = HEAP_ARRAY(heap, int64_t, (size_t)dense->n_rows + 1);
    region->weight = HEAP_ARRAY(heap, double, (size_t)dense->n + 1);
    region->nodes = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->place = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->k = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->choice = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->before = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    region->fixed = HEAP_ARRAY(heap, uint8_t, (size_t)dense->n + 1);
    region->whole = HEAP_ARRAY(heap, uint8_t, (size_t)dense->n + 1);
    region->option = HEAP_ARRAY(heap, uint32_t *, (size_t)dense->n + 1);
    region->base = HEAP_ARRAY(heap, int64_t *, (size_t)dense->n + 1);
    region->unary = HEAP_ARRAY(heap, int64_t *, (size_t)dense->n + 1);
    region->span = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n_rows + 1);
    region->span_slack = HEAP_ARRAY(heap, int64_t, (size_t)dense->n_rows + 2);
    region->own = HEAP_ARRAY(heap, int64_t, (size_t)dense->n_rows + 2);
    region->held = HEAP_ARRAY(heap, int64_t, (size_t)dense->n_rows + 2);
    region->multiplier = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 2);
    region->sum = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 3);
    if (heap->failed)
        return false;
    memset(region->place, 0xff, dense->n * sizeof(uint32_t));
    for (uint32_t v = 0; v < dense->n; v++)
        region->weight[v] = v + 1;
    return true;
}

// Starts with the solution x. It may violate rows, whose slack is then negative.
void tsr__region_start(struct region *region, const uint32_t *x, const double *lambda)
{
    const struct dense *dense = region->dense;
    memcpy(region->x, x, dense->n * sizeof(uint32_t));
    region->lambda = lambda;
    region->cost = tsr__dense_cost(dense, x);
    tsr__dense_load(dense, x, region->row_slack);
    for (uint32_t row = 0; row < dense->n_rows; row++)
        region->row_slack[row] = dense->bound[row] - region->row_slack[row];
}

// ---- drawing a region

// Computes the weights for drawing nodes, as a running sum in which draw_node bisects. Example:
// slack {0, 6, 0} gives least = 6 / (2 * 3) = 1 and weight {1, 8, 9}: node 1 is drawn 7 times in 9.
void tsr__region_weigh(struct region *region, const struct dual *dual)
{
    const struct dense *dense = region->dense;
    double total = 0;
    tsr__dual_slack(dual, region->x, region->weight);
    for (uint32_t v = 0; v < dense->n; v++)
        total += region->weight[v];
    // a third of the weight is shared equally
    double least = total / (2.0 * dense->n) + 1e-9, sum = 0;
    for (uint32_t v = 0; v < dense->n; v++)
        region->weight[v] = sum += region->weight[v] + least;
}

static uint32_t draw_node(struct region *region)
{
    uint32_t low = 0, high = region->dense->n - 1;
    double at = random_unit(region->random) * region->weight[high];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (region->weight[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Adds a node to the region. Returns false if it is already in the region.
static bool add_region_node(struct region *region, uint32_t v)
{
    if (region->place[v] != NONE)
        return false;
    region->place[v] = region->n;
    region->nodes[region->n++] = v;
    return true;
}

// Adds up to `size` nodes around v, in breadth-first order with some randomness.
static void add_ball(struct region *region, uint32_t v, uint32_t size)
{
    const struct dense *dense = region->dense;
    uint32_t at = region->n, end = region->n + size;
    add_region_node(region, v);
    for (; at < region->n && region->n < end; at++) {
        // Takes one of the next four nodes of the queue, so that balls differ.
        uint32_t swap = at + (uint32_t)(random_next(region->random) %
                                        (region->n - at < 4 ? region->n - at : 4));
        uint32_t u = region->nodes[swap], n = dense->first[u + 1] - dense->first[u];
        region->nodes[swap] = region->nodes[at];
        region->place[region->nodes[swap]] = swap;
        region->nodes[at] = u;
        region->place[u] = at;
        uint32_t from = n > BRANCHES ? (uint32_t)(random_next(region->random) % n) : 0;
        for (uint32_t i = 0; i < n && i < BRANCHES && region->n < end; i++) {
            const struct tree_edge *edge =
                &dense->edges[dense->touch[dense->first[u] + (from + i) % n]];
            add_region_node(region, edge->a == u ? edge->b : edge->a);
        }
    }
}

static bool alive(const struct dense *dense, uint32_t v, uint32_t row)
{
    for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++)
        if (dense->uses[i].begin <= row && row < dense->uses[i].end)
            return true;
    return false;
}

// Draws a node outside the region that uses the row. Returns NONE if 40 tries find none.
static uint32_t draw_live(struct region *region, uint32_t row)
{
    for (int i = 0; i < 40; i++) {
        uint32_t v =
            i < 10 ? draw_node(region) : (uint32_t)(random_next(region->random) % region->dense->n);
        if (region->place[v] == NONE && alive(region->dense, v, row))
            return v;
    }
    return NONE;
}

// Adds a node with many of its neighbours, so that it may change together with them. The node is
// drawn as the end of a random edge, so hubs are likely.
static void draw_hub(struct region *region)
{
    const struct dense *dense = region->dense;
    const struct tree_edge *edge = &dense->edges[random_next(region->random) % dense->n_edges];
    uint32_t v = random_next(region->random) % 2 ? edge->a : edge->b;
    // of every four neighbours, about this number is added
    uint32_t keep = 1 + (uint32_t)(random_next(region->random) % 4);
    if (dense->first[v + 1] - dense->first[v] < 8)
        keep = 4;
    region->center = v;
    add_region_node(region, v);
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1] && region->n < HUB_NODES; t++) {
        edge = &dense->edges[dense->touch[t]];
        if (random_next(region->random) % 4 < keep)
            add_region_node(region, edge->a == v ? edge->b : edge->a);
    }
    for (uint32_t i = 1, n = region->n; i < n && region->n < HUB_NODES; i++)
        add_ball(region, region->nodes[1 + random_next(region->random) % (n - 1)], 2);
}

// Draws the region: one time in eight around a hub, else one ball, or two to six smaller balls
// around nodes that use one row of the first node. Sizes are random, too.
static void draw_region(struct region *region)
{
    const struct dense *dense = region->dense;
    if (dense->n_edges && random_next(region->random) % 8 == 0) {
        draw_hub(region);
        return;
    }
    uint32_t v = draw_node(region), uses = dense->first_use[v + 1] - dense->first_use[v];
    uint32_t most = random_next(region->random) % 4 ? 60 : 300;
    uint32_t size = 4 + (uint32_t)(random_next(region->random) % most);
    if (random_next(region->random) % 16 == 0) // one time in 16 a size of any order of magnitude
        size = 4 + (uint32_t)exp(random_unit(region->random) * log((double)dense->n));
    if (!uses || size > 500 || random_next(region->random) % 3 == 0) {
        add_ball(region, v, size);
        return;
    }
    const struct dense_use *use =
        &dense->uses[dense->first_use[v] + random_next(region->random) % uses];
    uint32_t row = use->begin + (uint32_t)(random_next(region->random) % (use->end - use->begin));
    uint32_t balls = 2 + (uint32_t)(random_next(region->random) % 5);
    for (uint32_t i = 0; i < balls && v != NONE; i++, v = draw_live(region, row))
        add_ball(region, v, 1 + size / balls);
}

// ---- the region as a program

// Lists at most `few` choices: first the current one, then the best by the messages of the dual.
// Returns the number of listed choices.
static uint32_t best_options(const struct region *region, const struct dual *dual, uint32_t v,
                             uint32_t few, uint32_t *out)
{
    uint32_t n = 1;
    tsr__dual_gather(dual, v, dual->sum);
    out[0] = region->x[v];
    for (uint32_t choice = 0; choice < region->dense->k[v]; choice++) {
        if (choice == out[0] || (n == few && dual->sum[choice] >= dual->sum[out[n - 1]]))
            continue;
        uint32_t at = n < few ? n++ : n - 1;
        for (; at > 1 && dual->sum[choice] < dual->sum[out[at - 1]]; at--)
            out[at] = out[at - 1];
        out[at] = choice;
    }
    region->effort->work +=
        (region->dense->first[v + 1] - region->dense->first[v]) * (uint64_t)region->dense->k[v];
    return n;
}

// Lists the choices that each node may take: all (`whole`), or the best few. before[i] is the index
// of the current choice; with few choices it is 0, because best_options puts it first.
static bool fill_options(struct region *region, const struct dual *dual, uint32_t few)
{
    size_t n = 0;
    for (uint32_t i = 0; i < region->n; i++)
        n += region->dense->k[region->nodes[i]];
    region->options.n = 0;
    if (!list_reserve(region->dense->heap, &region->options, n))
        return false;
    uint32_t *at = region->options.at;
    for (uint32_t i = 0; i < region->n; i++) {
        uint32_t v = region->nodes[i], k = region->dense->k[v];
        region->option[i] = at;
        region->whole[i] = !few || k <= few || v == region->center;
        region->k[i] = region->whole[i] ? k : best_options(region, dual, v, few, at);
        region->before[i] = region->whole[i] ? region->x[v] : 0;
        for (uint32_t choice = 0; region->whole[i] && choice < k; choice++)
            at[choice] = choice;
        at += region->k[i];
    }
    return true;
}

// Returns the cells of an edge for the listed choices of its nodes.
static const int64_t *option_cells(struct region *region, const struct tree_edge *edge, uint32_t i,
                                   uint32_t j)
{
    if (region->whole[i] && region->whole[j])
        return edge->cell;
    int64_t *out = region->tables.at + region->tables.n, *at = out;
    for (uint32_t a = 0; a < region->k[i]; a++)
        for (uint32_t b = 0; b < region->k[j]; b++)
            *at++ = edge->cell[(size_t)region->option[i][a] * region->dense->k[edge->b] +
                               region->option[j][b]];
    region->tables.n += region->k[i] * region->k[j];
    return out;
}

// Copies the edges inside the region. The first pass finds them (each once, at its end a) and
// counts cells, so that the tables do not move while the second pass fills them.
static bool fill_edges(struct region *region)
{
    const struct dense *dense = region->dense;
    size_t cells = 0;
    region->edges.n = region->tables.n = 0;
    for (uint32_t i = 0; i < region->n; i++)
        for (uint32_t t = dense->first[region->nodes[i]]; t < dense->first[region->nodes[i] + 1];
             t++) {
            const struct tree_edge *edge = &dense->edges[dense->touch[t]];
            uint32_t j = region->place[edge->b];
            if (edge->a != region->nodes[i] || j == NONE)
                continue;
            struct tree_edge *out = list_push(dense->heap, &region->edges);
            if (!out)
                return false;
            *out = *edge;
            if (!region->whole[i] || !region->whole[j])
                cells += (size_t)region->k[i] * region->k[j];
        }
    if (!list_reserve(dense->heap, &region->tables, cells))
        return false;
    for (uint32_t i = 0; i < region->edges.n; i++) {
        struct tree_edge *tree_edge = &region->edges.at[i];
        uint32_t a = region->place[tree_edge->a], b = region->place[tree_edge->b];
        *tree_edge = (struct tree_edge){a, b, option_cells(region, tree_edge, a, b)};
    }
    region->effort->work += cells;
    return true;
}

// Computes the costs of a node plus those of its edges to nodes that are outside the region or
// fixed.
static void fill_base(struct region *region, uint32_t i)
{
    const struct dense *dense = region->dense;
    uint32_t v = region->nodes[i], k = region->k[i];
    int64_t *out = region->base[i];
    for (uint32_t choice = 0; choice < k; choice++)
        out[choice] = dense->cost[v][region->option[i][choice]];
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        const struct tree_edge *edge = &dense->edges[dense->touch[t]];
        uint32_t o = edge->a == v ? edge->b : edge->a, kb = dense->k[edge->b];
        if (region->place[o] != NONE && region->fixed[region->place[o]] != TREE_FIXED)
            continue;
        const int64_t *cell =
            edge->a == v ? edge->cell + region->x[o] : edge->cell + (size_t)region->x[o] * kb;
        size_t step = edge->a == v ? kb : 1;
        for (uint32_t choice = 0; choice < k; choice++)
            out[choice] = plus(out[choice], cell[region->option[i][choice] * step]);
    }
    region->effort->work += (dense->first[v + 1] - dense->first[v]) * (uint64_t)k;
}

// Copies the costs of choices. `base` has the costs without multipliers. `unary` has the costs with
// multipliers, n cells further on.
static bool fill_cells(struct region *region)
{
    size_t n = 0;
    for (uint32_t i = 0; i < region->n; i++)
        n += region->k[i];
    if (!list_reserve(region->dense->heap, &region->cells, 2 * n))
        return false;
    int64_t *at = region->cells.at;
    for (uint32_t i = 0; i < region->n; i++) {
        region->base[i] = at;
        region->unary[i] = at + n;
        at += region->k[i];
        region->choice[i] = region->before[i];
        if (region->fixed[i] != TREE_FIXED)
            fill_base(region, i);
    }
    return true;
}

// Returns the part of the total cost that the region can change.
static int64_t local_cost(const struct region *region, const uint32_t *choice)
{
    int64_t sum = 0;
    for (uint32_t i = 0; i < region->n; i++)
        if (region->fixed[i] != TREE_FIXED)
            sum = plus(sum, region->base[i][choice[i]]);
    for (uint32_t i = 0; i < region->edges.n; i++) {
        const struct tree_edge *edge = &region->edges.at[i];
        if (region->fixed[edge->a] != TREE_FIXED && region->fixed[edge->b] != TREE_FIXED)
            sum = plus(sum,
                       edge->cell[(size_t)choice[edge->a] * region->k[edge->b] + choice[edge->b]]);
    }
    return sum;
}

// ---- spans

#define FOR_USES(g, i, u)                                                                          \
    for (const struct dense_use *                                                                  \
             u = (g)->dense->uses + (g)->dense->first_use[(g)->nodes[i]],                          \
            *u##_end = (g)->dense->uses + (g)->dense->first_use[(g)->nodes[i] + 1];                \
         u < u##_end; u++)

// Computes the usage of spans. own[s] becomes the usage of span s by these choices, computed with a
// difference array.
static void use_spans(struct region *region, const uint32_t *choice, int64_t *own)
{
    memset(own, 0, ((size_t)region->n_spans + 1) * sizeof(int64_t));
    for (uint32_t i = 0; i < region->n; i++) {
        if (region->fixed[i] == TREE_FIXED)
            continue;
        FOR_USES(region, i, use)
        {
            int64_t usage = use->usage[region->option[i][choice[i]]];
            own[region->span[use->begin]] += usage;
            own[region->span[use->end]] -= usage;
        }
    }
    for (uint32_t s = 1; s <= region->n_spans; s++)
        own[s] += own[s - 1];
}

static void clear_span(struct region *region, uint32_t s)
{
    region->span_slack[s] = INT64_MAX;
    region->multiplier[s] = 0;
}

// Divides the rows into spans. `span` first marks where uses begin or end, then holds the span of
// each row. The slack of a span is the least slack of its rows plus the usage of the region itself.
static void find_spans(struct region *region, double factor)
{
    const struct dense *dense = region->dense;
    memset(region->span, 0, ((size_t)dense->n_rows + 1) * sizeof(uint32_t));
    for (uint32_t i = 0; i < region->n; i++) {
        if (region->fixed[i] == TREE_FIXED)
            continue;
        FOR_USES(region, i, use)
        region->span[use->begin] = region->span[use->end] = 1;
    }
    region->n_spans = 0;
    clear_span(region, 0);
    for (uint32_t row = 0; row < dense->n_rows; row++) {
        if (region->span[row])
            clear_span(region, ++region->n_spans);
        uint32_t n = region->span[row] = region->n_spans;
        region->span_slack[n] = int64_min(region->span_slack[n], region->row_slack[row]);
        region->multiplier[n] += region->lambda[row] * factor;
    }
    // Uses that end after the last row end at an extra span of unlimited slack and multiplier 0.
    if (region->span[dense->n_rows])
        clear_span(region, ++region->n_spans);
    region->span[dense->n_rows] = region->n_spans;
    use_spans(region, region->before, region->held);
    for (uint32_t s = 0; s <= region->n_spans; s++)
        if (region->span_slack[s] != INT64_MAX)
            region->span_slack[s] += region->held[s];
    region->effort->work += dense->n_rows;
}

// Returns by how much the usage exceeds the slack, summed over the spans (groups of rows, see the
// head of the file).
static double excess(const struct region *region, const int64_t *own)
{
    double sum = 0;
    for (uint32_t s = 0; s <= region->n_spans; s++)
        if (own[s] > region->span_slack[s])
            sum += (double)(own[s] - region->span_slack[s]);
    return sum;
}

// Adds the multipliers to the costs. sum[s] is the sum of the multipliers before span s. A use of
// spans 1..2 adds sum[3] - sum[1] per unit.
static void apply_multipliers(struct region *region)
{
    region->sum[0] = 0;
    for (uint32_t s = 0; s <= region->n_spans; s++)
        region->sum[s + 1] = region->sum[s] + region->multiplier[s];
    for (uint32_t i = 0; i < region->n; i++) {
        if (region->fixed[i] == TREE_FIXED)
            continue;
        int64_t *out = region->unary[i];
        uint32_t k = region->k[i];
        memcpy(out, region->base[i], k * sizeof(int64_t));
        FOR_USES(region, i, use)
        {
            double p = region->sum[region->span[use->end]] - region->sum[region->span[use->begin]];
            if (p <= 0)
                continue;
            for (uint32_t choice = 0; choice < k; choice++) {
                double x = p * (double)use->usage[region->option[i][choice]];
                out[choice] = plus(out[choice], x < (double)NEVER ? (int64_t)x : NEVER);
            }
        }
    }
}

// Raises the multipliers of spans whose slack the usage (region->own) exceeds.
static void raise_multipliers(struct region *region, double step)
{
    double most = 0;
    for (uint32_t s = 0; s <= region->n_spans; s++)
        most = fmax(most, region->multiplier[s]);
    for (uint32_t s = 0; s <= region->n_spans; s++)
        if (region->own[s] > region->span_slack[s])
            region->multiplier[s] = region->multiplier[s] * 1.5 + most * 0.02 + step;
}

// ---- moves

static void empty_region(struct region *region)
{
    for (uint32_t i = 0; i < region->n; i++)
        region->place[region->nodes[i]] = NONE;
    region->n = 0;
    region->center = NONE;
}

// Builds the region's tree, costs and spans. Nodes that would make the treewidth too large stay
// fixed.
static bool prepare_region(struct region *region, double factor)
{
    memset(region->fixed, 0, region->n);
    if (region->center != NONE)
        region->fixed[region->place[region->center]] = TREE_FREE;
    if (!fill_edges(region))
        return false;
    if (!tsr__tree_init(&region->tree, region->dense->heap->session, region->n, region->k,
                        region->edges.at, region->edges.n, region->max_cells, region->fixed,
                        region->random) ||
        !fill_cells(region)) {
        tsr__tree_free(&region->tree);
        return false;
    }
    find_spans(region, factor);
    region->effort->work += 100 * (uint64_t)(region->n + region->edges.n);
    return true;
}

// Solves the region under the current multipliers: stores the choices in `choice` and their usage
// in `own`. Returns false if every combination of the listed choices is forbidden.
static bool solve_region(struct region *region)
{
    apply_multipliers(region);
    int64_t least = tsr__tree_up(&region->tree, region->unary);
    region->effort->work += region->tree.cells + 2 * region->n_spans + 100 * (uint64_t)region->n;
    if (least >= NEVER)
        return false;
    tsr__tree_back(&region->tree, region->unary, region->choice);
    use_spans(region, region->choice, region->own);
    return true;
}

static bool has_changed(const struct region *region)
{
    return memcmp(region->choice, region->before, region->n * sizeof(uint32_t)) != 0;
}

// Applies the move to the assignment and updates the slack of the rows.
static void apply_move(struct region *region, int64_t cost)
{
    const struct dense *dense = region->dense;
    for (uint32_t i = 0; i < region->n; i++)
        region->x[region->nodes[i]] = region->option[i][region->choice[i]];
    for (uint32_t row = 0; row < dense->n_rows; row++)
        region->row_slack[row] -= region->own[region->span[row]] - region->held[region->span[row]];
    region->cost = cost;
    region->effort->work += dense->n_rows / 4;
}

// Returns the first increase of a multiplier: 0.2 % of the region's cost divided by the largest
// usage of a span.
static double first_step(const struct region *region, int64_t cost)
{
    int64_t most = 1;
    for (uint32_t s = 0; s <= region->n_spans; s++)
        if (region->held[s] > most)
            most = region->held[s];
    return 0.002 * ((double)cost + 1) / (double)most;
}

// Solves the region with growing multipliers, at most `tries` times, until the solution satisfies
// the rows or changes nothing. Applies the solution if it costs at most `most`. Returns true if it
// was applied.
static bool improve(struct region *region, double factor, int64_t most, int tries)
{
    bool taken = false;
    if (!prepare_region(region, factor))
        return false;
    int64_t before = local_cost(region, region->before);
    double step = first_step(region, before);
    for (int i = 0; i < tries; i++) {
        if (!solve_region(region) || !has_changed(region))
            break;
        if (excess(region, region->own) > 0) {
            raise_multipliers(region, step);
            continue;
        }
        int64_t cost = region->cost - before + local_cost(region, region->choice);
        taken = cost <= most;
        if (taken)
            apply_move(region, cost);
        break;
    }
    tsr__tree_free(&region->tree);
    return taken;
}

bool tsr__region_move(struct region *region, const struct dual *dual, uint32_t few, double factor,
                      int64_t most)
{
    draw_region(region);
    // Large regions with all choices would have too large a treewidth.
    uint32_t large = region->center == NONE ? 300 : 50;
    if (region->n > large && (!few || few > 4))
        few = 3;
    bool taken = fill_options(region, dual, few) && improve(region, factor, most, 6);
    empty_region(region);
    return taken;
}

// Combines two solutions. Each node where x and y differ has two choices, that of x first. All
// other nodes are fixed.
bool tsr__region_fuse(struct region *region, const uint32_t *y, double factor, int64_t most)
{
    const struct dense *dense = region->dense;
    for (uint32_t v = 0; v < dense->n; v++)
        if (y[v] != region->x[v])
            add_region_node(region, v);
    region->options.n = 0;
    bool taken = region->n && list_reserve(dense->heap, &region->options, 2 * (size_t)region->n);
    for (uint32_t i = 0; taken && i < region->n; i++) {
        region->option[i] = region->options.at + 2 * (size_t)i;
        region->option[i][0] = region->x[region->nodes[i]];
        region->option[i][1] = y[region->nodes[i]];
        region->k[i] = 2;
        region->whole[i] = 0;
        region->before[i] = 0;
    }
    taken = taken && improve(region, factor, most, 12);
    empty_region(region);
    return taken;
}

// ---- repair

// Returns the row that is violated most, or NONE.
static uint32_t worst_row(const struct region *region)
{
    uint32_t worst = NONE;
    for (uint32_t row = 0; row < region->dense->n_rows; row++)
        if (region->row_slack[row] < 0 &&
            (worst == NONE || region->row_slack[row] < region->row_slack[worst]))
            worst = row;
    return worst;
}

// Solves the region with growing multipliers until the violation decreases, and applies that
// solution. Returns false if 12 solves do not succeed, or if every combination of choices is
// forbidden.
static bool reduce_violation(struct region *region)
{
    double old = excess(region, region->held);
    int64_t before = local_cost(region, region->before);
    double step = first_step(region, before);
    for (int i = 0; i < 12; i++) {
        if (!solve_region(region))
            return false;
        if (excess(region, region->own) < old) {
            apply_move(region, region->cost - before + local_cost(region, region->choice));
            return true;
        }
        for (uint32_t s = 0; s <= region->n_spans; s++)
            if (region->own[s] > region->span_slack[s])
                region->multiplier[s] = region->multiplier[s] * 2 + step;
    }
    return false;
}

// Repairs violated rows. Each try selects the neighbourhoods (balls) of nodes that use the most
// violated row, and solves this region with higher multipliers of the violated rows. Stops after
// `tries` or when the effort is used up. True if all rows are satisfied.
bool tsr__region_repair(struct region *region, int tries)
{
    for (int i = 0; i < tries; i++) {
        if (tsr__effort_over(region->effort))
            break;
        uint32_t row = worst_row(region);
        if (row == NONE)
            return true;
        uint32_t balls = 1 + (uint32_t)(random_next(region->random) % 8);
        uint32_t size = 1 + (uint32_t)(random_next(region->random) % 24);
        for (uint32_t v = draw_live(region, row); balls-- && v != NONE; v = draw_live(region, row))
            add_ball(region, v, size);
        if (region->n && fill_options(region, NULL, 0) && prepare_region(region, 1)) {
            reduce_violation(region);
            tsr__tree_free(&region->tree);
        }
        empty_region(region);
    }
    return worst_row(region) == NONE;
}
