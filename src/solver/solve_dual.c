// SPDX-License-Identifier: Apache-2.0
// solve_dual.c - computes a Lagrangian dual bound: sequential tree-reweighted message passing
// (TRW-S) for the tables, subgradient steps for the multipliers of the rows.
//
// Messages move cost between nodes and edges. Any messages and any multipliers >= 0 give a valid
// bound: the sum of the least entries of all nodes and edges after the messages, minus the
// multipliers times the bounds of the rows. No pass lowers the bound. A step raises the multipliers
// of rows that the choices with the least entries exceed, and lowers the others.
//
//     Example: a costs {0, 2}, b costs {1, 0}, the table is {0, 3; 3, 0} (rows: a), no rows.
//     Up: a sends to b, for each choice of b, the least of a's cost plus the table:
//         {min(0 + 0, 2 + 3), min(0 + 3, 2 + 0)} = {0, 2}
//     Down: b's sum is {1 + 0, 0 + 2} = {1, 2}. Its least entry, 1, goes to the bound, which leaves
//         {0, 1}. Without the message from a this is {0, -1}.
//         b sends to a {min(0 + 0, 3 - 1), min(3 + 0, 0 - 1)} = {0, -1}.
//         The least entry, -1, goes to the bound, and the message becomes {1, 0}.
//         a's sum is {0 + 1, 2 + 0}. Its least entry, 1, goes to the bound: 1 - 1 + 1 = 1.
//     The solution a = 0, b = 0 costs 1 too, so it is optimal.
//     With a row: a = 0 uses 10, the bound of the row is 6, its multiplier is 0.1. a = 0 becomes
//         more expensive by 1, and 0.6 is subtracted: the dual bound is 2 - 0.6 = 1.4.
//         The best solution that satisfies the row, a = 1, b = 1, costs 2.
#include "solve.h"

#include <math.h>

#define FAR 1e30 // forbidden: larger than any sum of costs

// Allocates one array with a cell for each choice of each node, and sets *n to its length. The
// result points to the part of each node.
static double **by_node(const struct dense *dense, uint64_t *n)
{
    double **rows = HEAP_ARRAY(dense->heap, double *, (size_t)dense->n + 1);
    *n = 0;
    for (uint32_t v = 0; v < dense->n; v++)
        *n += dense->k[v];
    double *cells = HEAP_ARRAY(dense->heap, double, *n + 1);
    if (!rows || !cells)
        return rows;
    for (uint32_t v = 0; v < dense->n; v++) {
        rows[v] = cells;
        cells += dense->k[v];
    }
    return rows;
}

// Copies the cost table of each edge as doubles; forbidden cells become FAR. Allocates the messages
// to both ends. Returns false if memory is exhausted.
static bool fill_edges(struct dual *dual)
{
    const struct dense *dense = dual->dense;
    for (uint32_t i = 0; i < dense->n_edges; i++) {
        const struct tree_edge *edge = &dense->edges[i];
        size_t cells = (size_t)dense->k[edge->a] * dense->k[edge->b];
        dual->table[i] = HEAP_ARRAY(dense->heap, double, cells);
        dual->to_a[i] = HEAP_ARRAY(dense->heap, double, dense->k[edge->a]);
        dual->to_b[i] = HEAP_ARRAY(dense->heap, double, dense->k[edge->b]);
        if (dense->heap->failed)
            return false;
        for (size_t c = 0; c < cells; c++)
            dual->table[i][c] = edge->cell[c] >= NEVER ? FAR : (double)edge->cell[c];
        dual->cells += 2 * cells + 32; // 32: overhead of calls and short loops
    }
    return true;
}

// Computes gamma of TRW-S. The edges are covered by chains that follow the node order. Example: a
// node with 3 later and 2 earlier neighbours is on 3 chains, and each chain gets 1/3 of the node's
// cost.
static void fill_gamma(struct dual *dual)
{
    const struct dense *dense = dual->dense;
    for (uint32_t v = 0; v < dense->n; v++) {
        uint32_t later = 0, earlier = 0;
        for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
            const struct tree_edge *edge = &dense->edges[dense->touch[t]];
            if ((edge->a == v ? edge->b : edge->a) > v)
                later++;
            else
                earlier++;
        }
        uint32_t most = later > earlier ? later : earlier;
        dual->gamma[v] = 1.0 / (most ? most : 1);
    }
}

// Creates a dual. Messages and multipliers start at 0, so the first bound is the sum of the least
// entries.
bool tsr__dual_init(struct dual *dual, const struct dense *dense)
{
    struct heap *heap = dense->heap;
    *dual = (struct dual){.dense = dense, .best = -INFINITY};
    dual->unary = by_node(dense, &dual->cells);
    dual->table = HEAP_ARRAY(heap, double *, (size_t)dense->n_edges + 1);
    dual->to_a = HEAP_ARRAY(heap, double *, (size_t)dense->n_edges + 1);
    dual->to_b = HEAP_ARRAY(heap, double *, (size_t)dense->n_edges + 1);
    dual->gamma = HEAP_ARRAY(heap, double, (size_t)dense->n + 1);
    dual->lambda = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 1);
    dual->best_lambda = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 1);
    dual->prefix = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 1);
    dual->sum = HEAP_ARRAY(heap, double, dense->most_k);
    dual->rest = HEAP_ARRAY(heap, double, dense->most_k);
    dual->argmin = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    if (heap->failed || !fill_edges(dual))
        return false;
    fill_gamma(dual);
    tsr__dual_apply_lambda(dual);
    return true;
}

// Computes unary = cost + multiplier * usage. A use of rows 2..4 adds prefix[5] - prefix[2] per
// unit.
void tsr__dual_apply_lambda(struct dual *dual)
{
    const struct dense *dense = dual->dense;
    dual->prefix[0] = 0;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        dual->prefix[row + 1] = dual->prefix[row] + dual->lambda[row];
    for (uint32_t v = 0; v < dense->n; v++) {
        double *out = dual->unary[v];
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            out[choice] = dense->cost[v][choice] >= NEVER ? FAR : (double)dense->cost[v][choice];
        for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++) {
            const struct dense_use *use = &dense->uses[i];
            double p = dual->prefix[use->end] - dual->prefix[use->begin];
            if (p <= 0)
                continue;
            for (uint32_t choice = 0; choice < dense->k[v]; choice++)
                out[choice] += p * (double)use->usage[choice];
        }
    }
}

// ---- passes

// Sums the messages to a node. sum[choice] becomes the cost of the choice plus all messages to v.
void tsr__dual_gather(const struct dual *dual, uint32_t v, double *sum)
{
    const struct dense *dense = dual->dense;
    uint32_t k = dense->k[v];
    memcpy(sum, dual->unary[v], k * sizeof(double));
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        uint32_t i = dense->touch[t];
        const double *m = dense->edges[i].a == v ? dual->to_a[i] : dual->to_b[i];
        for (uint32_t choice = 0; choice < k; choice++)
            sum[choice] += m[choice];
    }
}

// Subtracts the least entry of the message from all its entries, and returns that entry.
static double take_least(double *m, uint32_t k)
{
    double least = m[0];
    for (uint32_t choice = 1; choice < k; choice++)
        if (m[choice] < least)
            least = m[choice];
    for (uint32_t choice = 0; choice < k; choice++)
        m[choice] -= least;
    return least;
}

// Computes messages from the rows of a table to its columns (down) and from its columns to its rows
// (across).
HOT static void message_down(const double *table, const double *rest, uint32_t rows, uint32_t cols,
                             double *out)
{
    for (uint32_t j = 0; j < cols; j++)
        out[j] = 2 * FAR;
    for (uint32_t i = 0; i < rows; i++, table += cols) {
        double r = rest[i];
        for (uint32_t j = 0; j < cols; j++) {
            double x = r + table[j];
            out[j] = x < out[j] ? x : out[j];
        }
    }
}

HOT static void message_across(const double *table, const double *rest, uint32_t rows,
                               uint32_t cols, double *out)
{
    for (uint32_t i = 0; i < rows; i++, table += cols) {
        double least = 2 * FAR;
        for (uint32_t j = 0; j < cols; j++) {
            double x = rest[j] + table[j];
            least = x < least ? x : least;
        }
        out[i] = least;
    }
}

// Computes the message of v over edge i, subtracts its least entry, and returns that entry. Each
// chain through v gets an equal share (gamma) of the sum of v, minus the message that came over
// this edge.
static double send(struct dual *dual, uint32_t v, uint32_t i)
{
    const struct dense *dense = dual->dense;
    const struct tree_edge *edge = &dense->edges[i];
    bool row = edge->a == v;
    const double *back = row ? dual->to_a[i] : dual->to_b[i];
    for (uint32_t choice = 0; choice < dense->k[v]; choice++)
        dual->rest[choice] =
            dual->sum[choice] < FAR / 2 ? dual->gamma[v] * dual->sum[choice] - back[choice] : FAR;
    uint32_t ka = dense->k[edge->a], kb = dense->k[edge->b];
    if (row) {
        message_down(dual->table[i], dual->rest, ka, kb, dual->to_b[i]);
        return take_least(dual->to_b[i], kb);
    }
    message_across(dual->table[i], dual->rest, ka, kb, dual->to_a[i]);
    return take_least(dual->to_a[i], ka);
}

// Computes the messages of v to all later or all earlier neighbours. Adds the subtracted least
// entries to *bound unless it is NULL.
static void send_all(struct dual *dual, uint32_t v, bool later, double *bound)
{
    const struct dense *dense = dual->dense;
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        uint32_t i = dense->touch[t];
        uint32_t o = dense->edges[i].a == v ? dense->edges[i].b : dense->edges[i].a;
        if ((o > v) == later) {
            double least = send(dual, v, i);
            if (bound)
                *bound += least;
        }
    }
}

// Makes a pass up, which sends to later nodes, and a pass down, which sends to earlier ones. Only
// the pass down computes a bound: the least entry of each node and each message, minus the
// multipliers times the bounds of the rows.
void tsr__dual_pass(struct dual *dual)
{
    const struct dense *dense = dual->dense;
    for (uint32_t v = 0; v < dense->n; v++) {
        tsr__dual_gather(dual, v, dual->sum);
        send_all(dual, v, true, NULL);
    }
    double bound = 0;
    for (uint32_t v = dense->n; v-- > 0;) {
        tsr__dual_gather(dual, v, dual->sum);
        uint32_t best = 0;
        for (uint32_t choice = 1; choice < dense->k[v]; choice++)
            if (dual->sum[choice] < dual->sum[best])
                best = choice;
        dual->argmin[v] = best;
        bound += take_least(dual->sum, dense->k[v]);
        send_all(dual, v, false, &bound);
    }
    // The Lagrangian term is multiplier * (usage - bound).
    double paid = 0;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        paid += dual->lambda[row] * (double)dense->bound[row];
    bound -= paid;
    dual->bound = bound;
    if (bound > dual->best) {
        dual->best = bound;
        dual->best_paid = paid;
        memcpy(dual->best_lambda, dual->lambda, dense->n_rows * sizeof(double));
    }
}

// Rounds the messages to an assignment, node by node. For neighbours that are already decided it
// uses the entry of the table, for later ones the message.
void tsr__dual_round(struct dual *dual, uint32_t *x)
{
    const struct dense *dense = dual->dense;
    for (uint32_t v = 0; v < dense->n; v++) {
        memcpy(dual->sum, dual->unary[v], dense->k[v] * sizeof(double));
        for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
            uint32_t i = dense->touch[t];
            const struct tree_edge *edge = &dense->edges[i];
            bool row = edge->a == v;
            uint32_t other = row ? edge->b : edge->a, kb = dense->k[edge->b];
            // the costs of v's choices over this edge are `step` cells apart
            const double *cost = row ? dual->to_a[i] : dual->to_b[i];
            size_t step = 1;
            if (other < v && row) {
                cost = dual->table[i] + x[other];
                step = kb;
            } else if (other < v) {
                cost = dual->table[i] + (size_t)x[other] * kb;
            }
            for (uint32_t choice = 0; choice < dense->k[v]; choice++)
                dual->sum[choice] += cost[choice * step];
        }
        uint32_t best = 0;
        for (uint32_t choice = 1; choice < dense->k[v]; choice++)
            if (dual->sum[choice] < dual->sum[best])
                best = choice;
        x[v] = best;
    }
}

// Returns the difference between the entry of the edge for x and its least entry. The messages to
// both ends are subtracted from all entries.
static double edge_slack(const struct dual *dual, uint32_t i, const uint32_t *x)
{
    const struct tree_edge *edge = &dual->dense->edges[i];
    uint32_t ka = dual->dense->k[edge->a], kb = dual->dense->k[edge->b];
    double least = 2 * FAR;
    for (uint32_t a = 0; a < ka; a++)
        for (uint32_t b = 0; b < kb; b++) {
            double y = dual->table[i][(size_t)a * kb + b] - dual->to_a[i][a] - dual->to_b[i][b];
            if (y < least)
                least = y;
        }
    return dual->table[i][(size_t)x[edge->a] * kb + x[edge->b]] - dual->to_a[i][x[edge->a]] -
           dual->to_b[i][x[edge->b]] - least;
}

// Distributes the difference between the cost of x and the bound over the nodes where it arises. A
// node gets the difference between its entry and its least entry, and half of the same difference
// (edge_slack) of each of its edges. Regions are drawn where the result is large.
void tsr__dual_slack(const struct dual *dual, const uint32_t *x, double *slack)
{
    const struct dense *dense = dual->dense;
    for (uint32_t v = 0; v < dense->n; v++) {
        double least = 2 * FAR;
        tsr__dual_gather(dual, v, dual->sum);
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            if (dual->sum[choice] < least)
                least = dual->sum[choice];
        slack[v] = dual->sum[x[v]] - least;
    }
    for (uint32_t i = 0; i < dense->n_edges; i++) {
        double y = edge_slack(dual, i, x) / 2;
        slack[dense->edges[i].a] += y;
        slack[dense->edges[i].b] += y;
    }
}

// ---- bounds for single choices
//
// A pass down moves the least entry of each node and edge to the bound. The remaining entries are
// >= 0 (the reduced costs). A solution with a given choice costs at least the bound plus the
// reduced cost of that choice.

// Computes the reduced costs of v, before its earlier edges get their shares.
static void reduced_costs(const struct dual *dual, uint32_t v, double *out)
{
    tsr__dual_gather(dual, v, out);
    take_least(out, dual->dense->k[v]);
}

// Returns the reduced cost of one entry of an edge, or 2 * FAR if it is forbidden. `later` is the
// reduced cost at the later end, of which the edge has got a share.
static double reduced_entry(const struct dual *dual, uint32_t i, uint32_t a, uint32_t b,
                            double later)
{
    const struct tree_edge *edge = &dual->dense->edges[i];
    double share = dual->gamma[edge->a > edge->b ? edge->a : edge->b];
    double cost = dual->table[i][(size_t)a * dual->dense->k[edge->b] + b];
    double to_a = dual->to_a[i][a], to_b = dual->to_b[i][b];
    if (fmax(fmax(cost, later), fmax(to_a, to_b)) >= FAR / 2)
        return 2 * FAR;
    return cost - to_a - to_b + share * later;
}

// Computes the least reduced cost of an edge for each choice of its end v, minus the least of
// these. `left` has the reduced costs of the later end.
static void reduce_edge(const struct dual *dual, uint32_t i, uint32_t v, const double *left,
                        double *out)
{
    const struct tree_edge *edge = &dual->dense->edges[i];
    uint32_t ka = dual->dense->k[edge->a], kb = dual->dense->k[edge->b];
    bool a_is_later = edge->a > edge->b;
    for (uint32_t choice = 0; choice < dual->dense->k[v]; choice++)
        out[choice] = 2 * FAR;
    for (uint32_t a = 0; a < ka; a++)
        for (uint32_t b = 0; b < kb; b++) {
            double y = reduced_entry(dual, i, a, b, left[a_is_later ? a : b]);
            double *least = &out[edge->a == v ? a : b];
            *least = y < *least ? y : *least;
        }
    take_least(out, dual->dense->k[v]);
}

// Returns the share of the reduced costs of v that is left after its earlier edges got theirs.
static double kept_share(const struct dual *dual, uint32_t v)
{
    const struct dense *dense = dual->dense;
    uint32_t earlier = 0;
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        const struct tree_edge *edge = &dense->edges[dense->touch[t]];
        earlier += (edge->a == v ? edge->b : edge->a) < v;
    }
    return 1 - dual->gamma[v] * earlier;
}

void tsr__dual_through(const struct dual *dual, uint32_t v, double *out)
{
    const struct dense *dense = dual->dense;
    double share = kept_share(dual, v), *left = dual->sum, *through = dual->rest;
    reduced_costs(dual, v, out);
    for (uint32_t choice = 0; choice < dense->k[v]; choice++)
        out[choice] = dual->bound + share * out[choice];
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        uint32_t i = dense->touch[t], a = dense->edges[i].a, b = dense->edges[i].b;
        reduced_costs(dual, a > b ? a : b, left);
        reduce_edge(dual, i, v, left, through);
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            out[choice] += through[choice];
    }
}

// Makes a subgradient step. Example: if the least entries use 12 of a row with bound 10, its
// multiplier grows by 2 * alpha. If they use 7, it falls by 3 * alpha, but not below 0. alpha is
// chosen so that the bound would reach the target if it were linear (Polyak's rule).
void tsr__dual_step(struct dual *dual, double target, int64_t *load)
{
    const struct dense *dense = dual->dense;
    double norm = 0;
    tsr__dense_load(dense, dual->argmin, load);
    for (uint32_t row = 0; row < dense->n_rows; row++) {
        // A row that is satisfied and has multiplier 0 does not change: leave it out of the norm.
        double g = (double)(load[row] - dense->bound[row]);
        if (g > 0 || dual->lambda[row] > 0)
            norm += g * g;
    }
    if (norm <= 0)
        return;
    double alpha = (target - dual->bound) / norm;
    for (uint32_t row = 0; row < dense->n_rows; row++) {
        dual->lambda[row] += alpha * (double)(load[row] - dense->bound[row]);
        if (dual->lambda[row] < 0)
            dual->lambda[row] = 0;
    }
    tsr__dual_apply_lambda(dual);
}
