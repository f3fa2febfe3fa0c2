// SPDX-License-Identifier: Apache-2.0
// solve_tree.h - bucket elimination: the exact minimum of a sum of tables over a graph of small
// treewidth (dynamic programming over a tree decomposition).
//
// Nodes are eliminated in an order that keeps tables small. The bucket of node v holds the tables
// that contain v and no node eliminated before. Its message is the minimum of their sum over v: a
// table over the separator, the other nodes of these tables. It joins the bucket of the separator's
// first node. The pass up gives the minimum, the pass back an assignment, the pass down the minimum
// through every cell. The structure is built once; node costs may change between passes.
#ifndef TSR_SOLVER_SOLVE_TREE_H
#define TSR_SOLVER_SOLVE_TREE_H

#include "internal.h"

// Nodes that the tree conditions on (leaves out), and nodes that it should rather not condition on.
enum { TREE_FIXED = 1, TREE_FREE = 2 };

struct tree_edge {
    uint32_t a, b;
    const int64_t *cell; // k_a x k_b; may contain NEVER
};
struct tree_factor {
    const int64_t *cell;
    uint32_t child;  // bucket that sends this message, or NONE
    size_t own;      // stride of the bucket's node
    size_t *strides; // of the separator's nodes; 0: not in its scope
};
struct tree_bucket {
    uint32_t node, n_sep, n_factors, parent; // parent NONE: a root
    uint32_t *sep;                           // in order of elimination
    struct tree_factor *factors;
    size_t cells;     // of the message, row-major over sep
    int64_t *message; // minimum over the node and everything below
    int64_t *down;    // minimum over everything else, given the cell
};
struct tree {
    struct arena arena;
    uint32_t n, m; // nodes; buckets (fewer if nodes are conditioned on)
    const uint32_t *k;
    struct tree_bucket *buckets; // in order of elimination
    uint32_t *position;          // by node
    int64_t *acc;                // one entry per choice of the largest node
    uint32_t *at;                // current cell of a separator
    size_t *offset;              // by factor
    uint64_t cells;              // visited by one pass up
    uint64_t held;               // cells of all messages
    uint32_t most_k, most_sep;
};

// k, edges and cells are not copied. fixed: nodes to leave out with their edges, or NULL. With
// random, more nodes are added to fixed until the tables are small enough. False: out of memory
// (tree->arena.failed), or a table has more than max_cells, or all tables together have too many.
// The caller calls tsr__tree_free in either case.
bool tsr__tree_init(struct tree *tree, tsr_session *session, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random);
void tsr__tree_free(struct tree *tree);
// Returns the minimum; NEVER: nothing is allowed. unary: costs by node.
int64_t tsr__tree_up(struct tree *tree, int64_t *const *unary);
// After tsr__tree_up: an assignment of that cost.
void tsr__tree_back(struct tree *tree, int64_t *const *unary, uint32_t *choice);
// After tsr__tree_up: computes the down messages; false: out of memory.
bool tsr__tree_down(struct tree *tree, int64_t *const *unary);
// After tsr__tree_down: the least total for each choice of a node.
void tsr__tree_marginals(struct tree *tree, int64_t *const *unary, uint32_t node, int64_t *out);
// Iteration over the cells of a bucket. tree->offset has the offset of each factor: at the first
// cell, at the next one, at the cell of an assignment.
void tsr__tree_start(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_step(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_offsets(struct tree *tree, const struct tree_bucket *bucket, const uint32_t *choice);

#endif
