// SPDX-License-Identifier: Apache-2.0
// solve_tree.h - bucket elimination: the exact minimum of a sum of tables over a graph of small
// treewidth (dynamic programming over a tree decomposition).
//
// Nodes are eliminated in an order that keeps tables small. The bucket of node v holds all tables
// that contain v and no node that was eliminated before. Its message is the minimum of their sum
// over v. This is a table over the separator, the other nodes of these tables. The message joins
// the bucket of the separator's first node.
//
// The pass up gives the minimum, the pass back an assignment, the pass down the minimum through
// every cell. The structure is built once; node costs may change between passes.
#ifndef TSR_SOLVER_SOLVE_TREE_H
#define TSR_SOLVER_SOLVE_TREE_H

#include "internal.h"

// Marks of nodes: TREE_FIXED nodes are left out of the tree; TREE_FREE nodes are fixed only if
// nothing else helps.
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

// Does not copy k, edges and cells. `fixed` marks nodes to leave out with their edges, or is NULL.
// With `random`, more nodes are fixed until the tables are small enough. Returns false if out of
// memory (tree->arena.failed), if a table has more than max_cells, or if all tables together are
// too large. The caller calls tsr__tree_free in either case.
bool tsr__tree_init(struct tree *tree, tsr_session *session, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random);
void tsr__tree_free(struct tree *tree);
// Returns the minimum, or NEVER if nothing is allowed. `unary` has the costs by node.
int64_t tsr__tree_up(struct tree *tree, int64_t *const *unary);
// After tsr__tree_up: finds an assignment of that cost.
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

#endif
