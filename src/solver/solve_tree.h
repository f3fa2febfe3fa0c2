// SPDX-License-Identifier: Apache-2.0
// solve_tree.h - bucket elimination: the exact minimum of a sum of tables over a narrow graph.
//
// Nodes are eliminated in an order of small tables. The bucket of node v holds the tables that have v
// and none eliminated before; its message, a table over the separator (the other nodes of these
// tables), is the minimum over v of their sum and joins the bucket of the separator's first node. One
// pass up gives the minimum, one pass back an assignment, one pass down the minimum through every
// cell. The structure is made once; node costs may change from pass to pass.
#ifndef TSR_SOLVER_SOLVE_TREE_H
#define TSR_SOLVER_SOLVE_TREE_H

#include "internal.h"

// Nodes that a tree conditions on; those that it should rather not.
enum { TREE_FIXED = 1, TREE_FREE = 2 };

struct tree_edge {
    uint32_t a, b;
    const int64_t *cell; // k_a x k_b; NEVER
};
struct tree_factor {
    const int64_t *cell;
    uint32_t child;  // bucket whose message this is, or NONE
    size_t own;      // stride of the bucket's node
    size_t *strides; // of the separator's nodes; 0: not in its scope
};
struct tree_bucket {
    uint32_t node, n_sep, n_factors, parent; // parent NONE: a root
    uint32_t *sep;                           // first eliminated first
    struct tree_factor *factors;
    size_t cells;     // of the message, row-major over sep
    int64_t *message; // minimum over what is below and the node
    int64_t *down;    // minimum over all else, given the cell
};
struct tree {
    struct arena arena;
    uint32_t n, m; // nodes; buckets: fewer where some are conditioned on
    const uint32_t *k;
    struct tree_bucket *buckets; // in order of elimination
    uint32_t *position;          // by node
    int64_t *acc;                // one entry per choice of the widest node
    uint32_t *at;                // cell of a separator, while walking over it
    size_t *offset;              // by factor
    uint64_t cells;              // of one pass up: messages times choices
    uint64_t held;               // of the messages
    uint32_t most_k, most_sep;
};

// k, edges and cells are viewed. False: out of memory, or a table would have more than max_cells, or
// all together too many
// (then tree->arena.failed is false). The tree is freed in either case by tsr__tree_free. fixed: nodes
// that are left out, with their edges; NULL: none. With random, nodes are added to fixed until the
// rest is narrow enough.
bool tsr__tree_init(struct tree *tree, tsr_session *session, uint32_t n, const uint32_t *k,
                    const struct tree_edge *edges, size_t n_edges, uint64_t max_cells,
                    uint8_t *fixed, uint64_t *random);
void tsr__tree_free(struct tree *tree);
// The minimum; NEVER: nothing is allowed. unary: per node its costs.
int64_t tsr__tree_up(struct tree *tree, int64_t *const *unary);
// After up: an assignment of that cost.
void tsr__tree_back(struct tree *tree, int64_t *const *unary, uint32_t *choice);
// After up: the down messages; false: out of memory.
bool tsr__tree_down(struct tree *tree, int64_t *const *unary);
// After down: least total for each choice of a node.
void tsr__tree_marginals(struct tree *tree, int64_t *const *unary, uint32_t node, int64_t *out);
// Walking over the cells of a bucket: tree->offset has the offset of each factor at the first cell, at
// the next one, at the cell of an assignment.
void tsr__tree_start(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_step(struct tree *tree, const struct tree_bucket *bucket);
void tsr__tree_offsets(struct tree *tree, const struct tree_bucket *bucket, const uint32_t *choice);

#endif
