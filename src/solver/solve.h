// SPDX-License-Identifier: Apache-2.0
// solve.h - the methods that solve the reduced core, from exact elimination to local search. Each
// part uses only parts above it.
#ifndef TSR_SOLVER_SOLVE_H
#define TSR_SOLVER_SOLVE_H

#include "internal.h"

// ---- solve_tree.c ------------------------------------------------------------------------------

// Bucket elimination: the exact minimum of a sum of tables over a graph of small treewidth (dynamic
// programming over a tree decomposition).
//
// Nodes are eliminated in an order that keeps tables small. The bucket of node v holds all tables
// that contain v and no node that was eliminated before. Its message is the minimum of their sum
// over v. This is a table over the separator, the other nodes of these tables. The message joins
// the bucket of the separator's first node.
//
// The pass up gives the minimum, the pass back an assignment, the pass down the minimum through
// every cell. The structure is built once; node costs may change between passes.

// Marks of nodes. TREE_FIXED nodes are left out of the tree; TREE_FREE nodes only if there is no
// other way to limit the tables.
enum { TREE_FIXED = 1, TREE_FREE = 2 };

struct tree_edge {
    uint32_t a, b;
    const int64_t *cell; // k_a x k_b; may contain NEVER
};
struct tree_factor {
    const int64_t *cell;
    uint32_t child;  // bucket that sends this message, or NONE
    size_t own;      // stride of the bucket's node
    size_t *strides; // strides of the separator's nodes; 0: the table does not contain the node
};
struct tree_bucket {
    uint32_t node, n_sep, n_factors, parent; // parent NONE: a root
    uint32_t *sep;                           // in order of elimination
    struct tree_factor *factors;
    size_t cells;     // cells of the message, row-major over sep
    int64_t *message; // minimum over the node and its subtree
    int64_t *down;    // minimum over everything else, given the cell
};
struct tree {
    struct arena arena;
    uint32_t n, m; // number of nodes; number of buckets (without fixed nodes)
    const uint32_t *k;
    struct tree_bucket *buckets; // in order of elimination
    uint32_t *position;          // position of each node in the order
    int64_t *acc;                // one entry per choice of the largest node
    uint32_t *at;                // current cell of a separator
    size_t *offset;              // by factor
    uint64_t cells;              // number of cells that one pass up visits
    uint64_t held;               // number of cells of all messages
    uint32_t most_k, most_sep;
};

// Builds a tree. Does not copy k, edges and cells. `fixed` marks nodes to leave out with their
// edges, or is NULL. With `random`, more nodes are fixed until the tables are small enough. Returns
// false if out of memory (tree->arena.failed), if a table has more than max_cells, or if all tables
// together are too large. The caller calls tsr__tree_free in either case.
bool tsr__tree_init(struct tree *tree, tsr_session *session, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random);
void tsr__tree_free(struct tree *tree);
// Returns the minimum, or NEVER if nothing is allowed. `unary` has the costs by node.
int64_t tsr__tree_up(struct tree *tree, int64_t *const *unary);
// After tsr__tree_up: finds an assignment with the minimum cost.
void tsr__tree_back(struct tree *tree, int64_t *const *unary, uint32_t *choice);
// After tsr__tree_up: computes the down messages. Returns false if out of memory.
bool tsr__tree_down(struct tree *tree, int64_t *const *unary);
// After tsr__tree_down: computes the least total for each choice of a node.
void tsr__tree_marginals(struct tree *tree, int64_t *const *unary, uint32_t node, int64_t *out);
// Iterate over the cells of a bucket: tsr__tree_start sets tree->offset for the first cell,
// tsr__tree_step for the next one, tsr__tree_offsets for the cell of an assignment.
void tsr__tree_start(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_step(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_offsets(struct tree *tree, const struct tree_bucket *bucket, const uint32_t *choice);

// ---- solve_dense.c -----------------------------------------------------------------------------

// The reduced core with dense node numbers and compressed adjacency, for dual bound and search.

struct dense_use {
    uint32_t begin, end;
    const int64_t *usage;
};
struct dense {
    const struct core *core;
    struct heap *heap;
    uint32_t n, n_edges, n_rows;
    uint32_t most_k; // choices of the largest node, at least 1
    uint32_t *node;  // number in the core
    uint32_t *k;
    int64_t **cost;          // views of the core's costs
    struct tree_edge *edges; // a, b: dense numbers
    uint32_t *first, *touch; // edges of node v: touch[first[v]] .. touch[first[v + 1] - 1]
    uint32_t *first_use;     // uses of node v, in the same way
    struct dense_use *uses;
    const int64_t *bound;
    int64_t scale; // largest bound of a row, for the step size of multipliers
};
bool tsr__dense_init(struct dense *dense, const struct core *core, struct heap *heap);

// Returns the cost of an assignment, or NEVER if it is not allowed.
int64_t tsr__dense_cost(const struct dense *dense, const uint32_t *x);
// Sums the usages of each row.
void tsr__dense_load(const struct dense *dense, const uint32_t *x, int64_t *load);
// Returns the row that is violated most, or NONE.
uint32_t tsr__dense_worst(const struct dense *dense, const int64_t *load);
// Sets unary[v][choice] to the cost of the choice plus the multipliers times its usage, rounded
// down. prefix[row] is the sum of the multipliers before that row.
void tsr__dense_unary(const struct dense *dense, const double *prefix, int64_t *const *unary);

// ---- solve_dual.c, solve_exact.c ---------------------------------------------------------------

// Lower bounds by a Lagrangian dual: tree-reweighted message passing (TRW-S) for the tables,
// multipliers (lambda) for the rows.

struct dual {
    const struct dense *dense;
    double **unary;          // by node: cost plus multipliers times usage
    double **table;          // by edge; 1e30: forbidden
    double **to_a, **to_b;   // by edge: messages to its nodes
    double *gamma;           // by node: 1 / number of chains through the node (fill_gamma)
    double *lambda, *prefix; // by row
    double *sum, *rest;      // scratch: one entry per choice
    uint32_t *argmin;        // for each node, its best choice in the last pass down
    double bound;            // bound of the last pass down
    double best;             // largest bound so far
    double best_paid;        // for that bound: the multipliers times the bounds of the rows
    double *best_lambda;
    uint64_t cells; // number of cells that one pass visits
};
bool tsr__dual_init(struct dual *dual, const struct dense *dense);
// Sums the costs of a node's choices and all messages to it.
void tsr__dual_gather(const struct dual *dual, uint32_t v, double *sum);
void tsr__dual_apply_lambda(struct dual *dual); // updates unary after a change of lambda
void tsr__dual_pass(struct dual *dual);         // up and down; sets bound and argmin
// Repeats the last pass down in integers, without rounding errors (solve_exact.c). Returns 0, which
// is always a valid bound, if that is not possible.
int64_t tsr__dual_exact(const struct dual *dual);
// Rounds the messages to an assignment.
void tsr__dual_round(struct dual *dual, uint32_t *x);
// Distributes the difference between the cost of x and the bound over the nodes.
void tsr__dual_slack(const struct dual *dual, const uint32_t *x, double *slack);
// Must be called right after a pass. out[c] becomes a lower bound for all solutions in which v
// takes choice c.
void tsr__dual_through(const struct dual *dual, uint32_t v, double *out);
// Makes one subgradient step towards `target`. `load` is scratch memory with one entry per row.
void tsr__dual_step(struct dual *dual, double target, int64_t *load);

// ---- solve_front.c -----------------------------------------------------------------------------

// Exact elimination with constraint rows: every cell holds a Pareto front of cost and usage.

#define FRONT_ROWS 6 // limit of active rows

struct front {
    const struct dense *dense;
    struct tree *tree;         // tree of all nodes
    uint32_t rows[FRONT_ROWS]; // active from the start: all rows with a multiplier
    uint32_t n_rows;
    const double *lambda; // multipliers, by row
    struct effort *effort;
    uint64_t max_points;
};
enum front_end {
    FRONT_FOUND,  // x is optimal, with *cost < threshold
    FRONT_NONE,   // no solution costs less than threshold
    FRONT_OVER,   // effort or max_points was exceeded
    FRONT_FAILED, // out of memory
};
// Finds the best solution below the threshold. Activates further rows as needed.
enum front_end tsr__front(struct front *front, int64_t threshold, uint32_t *x, int64_t *cost);

// ---- solve_region.c ----------------------------------------------------------------------------

// Large neighbourhood search: solves a few nodes exactly while all others are fixed. The time of a
// move depends on the size of its region, not of the program.

struct region {
    const struct dense *dense;
    struct effort *effort;
    uint64_t *random;
    uint64_t max_cells;
    // the assignment from which moves start; it has no forbidden pairs
    uint32_t *x;
    int64_t cost;
    int64_t *row_slack;   // by row: slack (bound minus load)
    const double *lambda; // by row
    double *weight; // running sum of weights by node; a node is drawn in proportion to its weight
    // the region
    uint32_t center;               // the hub of the region (draw_hub), or NONE
    uint32_t n, *nodes, *place;    // place[v]: index in `nodes` of node v of `dense`
    uint32_t *k, *choice, *before; // by node of the region: indices into option[i]
    uint32_t **option;             // option[i]: choices that nodes[i] may take
    uint8_t *fixed, *whole;        // whole: the node may take all its choices, in order
    struct tree tree;
    LIST(struct tree_edge) edges;
    LIST(int64_t) cells, tables;
    LIST(uint32_t) options;
    int64_t **base, **unary;
    // spans: rows that are equal for the region
    uint32_t *span, n_spans;
    int64_t *span_slack, *own, *held; // by span: slack, current usage, previous usage
    double *multiplier, *sum;
};
bool tsr__region_init(struct region *region, const struct dense *dense, struct effort *effort,
                      uint64_t *random);
// Sets the assignment to start from, and the multipliers.
void tsr__region_start(struct region *region, const uint32_t *x, const double *lambda);
// Sets the weights for drawing regions, from the slack of x in the dual.
void tsr__region_weigh(struct region *region, const struct dual *dual);
// Draws a region and solves it with the multipliers times `factor`. `few` limits the choices per
// node to the best by the messages; 0: all. Applies the result if it satisfies the rows and costs
// at most `most`. Returns true if it changed something.
bool tsr__region_move(struct region *region, const struct dual *dual, uint32_t few, double factor,
                      int64_t most);
// Finds the best mixture of x and y: nodes where they differ take either choice. Applies it under
// the same conditions as tsr__region_move and returns true if it did.
bool tsr__region_fuse(struct region *region, const uint32_t *y, double factor, int64_t most);
// Makes moves until no row is violated. Returns false if it did not succeed.
bool tsr__region_repair(struct region *region, int tries);

// ---- solve_search.c, solve_dive.c --------------------------------------------------------------

// Primal heuristics: rounding the dual's messages and large neighbourhood search.

struct search {
    const struct dense *dense;
    struct effort *effort;
    struct dual dual;
    // the best solution so far
    bool found;
    uint32_t *best;
    int64_t best_cost;
    int64_t sure; // a bound computed in integers
    // state of adapt_reach, which sets the step size of the multipliers
    double reach, last;
    int since;
    uint64_t pass_work, repair_work; // effort used so far
    // state of the moves
    int64_t **unary; // by node and choice
    double *prefix;  // running sums of multipliers, by row
    int64_t *load;
    uint32_t *x, *y;
    uint64_t random;
    struct region region;
};
bool tsr__search_init(struct search *search, const struct dense *dense, struct effort *effort);
// Raises the bound and finds solutions meanwhile.
void tsr__search_climb(struct search *search, int passes);
// Improves the best solution, if there is one.
void tsr__search_polish(struct search *search, int rounds);
// Finds a first solution if climbing found none (solve_dive.c).
void tsr__search_dive(struct search *search);
// Repairs an assignment without forbidden pairs until it satisfies the rows, and offers it
// (tsr__search_offer). False: it was not repaired, or is not the best so far.
bool tsr__search_settle(struct search *search, uint32_t *x, int tries);
// Minimizes the relaxation exactly, for programs of small treewidth: sets bound, solution and load.
void tsr__search_exact(struct search *search, struct tree *tree, const double *lambda);
// Offers an assignment. Returns true if it satisfies all rows and is the best so far.
bool tsr__search_offer(struct search *search, const uint32_t *x);
// Returns the proved bound.
int64_t tsr__search_bound(const struct search *search);
// True if the best solution is proved optimal.
bool tsr__search_proved(const struct search *search);

#endif
