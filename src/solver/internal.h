// SPDX-License-Identifier: Apache-2.0
// internal.h - types and functions that the files of the solver share.
//
// The core is the program while it is being reduced: choices are removed, nodes are merged,
// parallel edges are added up. Costs are shifted so that none is negative; `shift` is the sum of
// the shifts. Forbidden costs are NEVER, and sums of costs (`plus`) saturate there. A row is one
// constraint: one limit at one time. Every reduction is recorded, so that a solution of the core
// can be expanded to a solution of the program.
#ifndef TSR_SOLVER_INTERNAL_H
#define TSR_SOLVER_INTERNAL_H

#include "solver/solver.h"

#define NEVER (INT64_MAX / 3) // the sum of two such numbers does not overflow
#define NONE  UINT32_MAX

// Lets the compiler vectorize inner loops of sums and minima. This is safe because all numbers are
// finite and every order gives the same result.
#if defined(__GNUC__) && !defined(__clang__)
#define HOT_LOOPS __attribute__((optimize("O3", "finite-math-only", "no-signed-zeros")))
#else
#define HOT_LOOPS
#endif
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) &&       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOT HOT_LOOPS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOT HOT_LOOPS
#endif

static inline int64_t plus(int64_t a, int64_t b)
{
    int64_t sum = a + b;
    return sum > NEVER ? NEVER : sum;
}

// ---- heap (solve_heap.c)

struct heap_block;
// Memory blocks from the session's allocator. tsr__heap_done frees all blocks that were not freed
// before. After a failed allocation all later ones fail too.
struct heap {
    tsr_session *session;
    struct heap_block *first;
    bool failed;
};
void tsr__heap_init(struct heap *heap, tsr_session *session);
void tsr__heap_done(struct heap *heap);
// Returns zeroed memory; NULL after a failure.
void *tsr__heap_get(struct heap *heap, size_t n, size_t size);
// Resizes a block; new bytes are not zeroed.
void *tsr__heap_grow(struct heap *heap, void *p, size_t n, size_t size);
void tsr__heap_free(struct heap *heap, void *p); // p may be NULL
#define HEAP_ARRAY(h, type, n) ((type *)tsr__heap_get(h, n, sizeof(type)))

// A growing array whose memory comes from a heap.
#define LIST(type)                                                                                 \
    struct {                                                                                       \
        type *at;                                                                                  \
        uint32_t n, cap;                                                                           \
    }
#define list_push(h, l)                                                                            \
    ((l)->n < (l)->cap || tsr__list_grow(h, (void **)&(l)->at, &(l)->cap, sizeof(*(l)->at))        \
         ? &(l)->at[(l)->n++]                                                                      \
         : NULL)
bool tsr__list_grow(struct heap *heap, void **at, uint32_t *cap, size_t size);
// Makes room for at least `wanted` entries, which may move in memory. New ones are not zeroed.
#define list_reserve(h, l, wanted)                                                                 \
    ((wanted) <= (l)->cap ||                                                                       \
     tsr__list_reserve(h, (void **)&(l)->at, &(l)->cap, wanted, sizeof(*(l)->at)))
bool tsr__list_reserve(struct heap *heap, void **at, uint32_t *cap, size_t n, size_t size);

// ---- effort

// The work of a solve in visited table cells (`work`) and its limits. A slice is the part of the
// effort that one method may use.
struct effort {
    uint64_t work, limit;
    const tsr_session *session; // checked for cancellation; may be NULL
    double start, seconds;      // seconds 0: no time limit
    uint64_t slice_work;        // end of the current slice; 0: no slice
    double slice_end;
};
// True if the full effort or its current slice is used up.
bool tsr__effort_over(const struct effort *effort);
// Starts a slice of the effort: `fraction` of the full effort. A fraction of 0 ends the slice.
void tsr__effort_slice(struct effort *effort, double fraction);
double tsr__effort_elapsed(const struct effort *effort);

// ---- random numbers, the same on every machine

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}
static inline double random_unit(uint64_t *state) // 0 <= result < 1
{
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

// ---- the core (solve_core.c, solve_reduce.c)

struct table { // reference-counted; read-only while shared
    uint32_t refs, rows, cols;
    uint32_t hash;
    int64_t cell[];
};
struct core_use { // usage of rows begin .. end - 1, one number per choice
    uint32_t begin, end;
    int64_t *usage;
};
struct core_edge {
    uint32_t a, b;
    struct table *table; // rows: choices of a; NULL: the edge was removed
    bool dirty;          // solve_reduce.c must visit the edge
};
struct core_node {
    uint32_t k;       // number of choices left; 0: the program is infeasible
    bool gone;        // merged or eliminated
    bool queued;      // the node is in a queue of solve_reduce.c
    int64_t *cost;    // k costs
    uint32_t *origin; // for each of the k choices, its index in the program
    LIST(uint32_t) edges;
    LIST(struct core_use) uses;
};
// Records how the choice of an eliminated node follows from n nodes that were eliminated later or
// are left. With n = 0 it is by_choice[0]. With n = 1 it is by_choice[choice of from[0]]. With n =
// 2, by_choice is a table, row-major over the choices of from[0]. Choices are indices of the
// program.
struct core_step {
    uint32_t node, n, from[2], stride;
    uint32_t *by_choice; // choices of `node`
};
struct core {
    const struct program *program;
    struct heap *heap;
    struct effort *effort;
    struct core_node *nodes; // all nodes of the program
    uint32_t n_nodes;
    LIST(struct core_edge) edges;
    LIST(struct core_step) steps;
    int64_t shift; // cost of the program = cost in the core + shift
    uint32_t n_rows;
    uint32_t *row_limit, *row_time;
    int64_t *row_bound;
    bool infeasible;
};

// Copies the program into the core. If `pinned` is not NONE, that node may only take the choice
// `pin`. False: out of memory.
bool tsr__core_init(struct core *core, const struct program *program, struct heap *heap,
                    struct effort *effort, uint32_t pinned, uint32_t pin);
void tsr__core_reduce(struct core *core);
struct edge_view { // one edge as seen from a node: entry j of choice c is at[c * k + j]
    const int64_t *at;
    uint32_t k; // number of choices of the other end
};
// solve_dominance.c: removes the dominated choices of node v; returns true if there were any.
// `buffers` are reused from node to node and must start zeroed. `dead` is scratch
// memory with one entry per choice.
struct dominance {
    LIST(int64_t) least, turned;
    LIST(struct edge_view) views;
};
bool tsr__core_dominate(struct core *core, uint32_t v, struct dominance *buffers, uint8_t *dead);
// True if choice i of v has an allowed partner over the edge that is not dead (by node and choice).
bool tsr__core_supported(const struct core *core, const struct core_edge *edge, uint32_t v,
                         uint32_t i, uint8_t *const *dead);
// Probing (solve_probe.c): removes choices whose consequences are infeasible, until the slice of
// effort is used up. Returns the number of removed choices and sets lost[v] for each node that lost
// some. `dead` is scratch memory with one entry per choice.
uint32_t tsr__core_probe(struct core *core, uint8_t *dead, uint8_t *lost);
// Completes `choice`, which is indexed by node. The caller has set the nodes that are left in the
// core; this adds the eliminated ones.
void tsr__core_expand(const struct core *core, uint32_t *choice);

void tsr__core_remove(struct core *core, uint32_t v, const uint8_t *dead);
void tsr__table_drop(struct core *core, struct table *table);
struct table *tsr__table_new(struct core *core, uint32_t rows, uint32_t cols);

static inline int64_t edge_cost(const struct core_edge *edge, uint32_t v, uint32_t choice,
                                uint32_t other)
{
    return edge->a == v ? edge->table->cell[(size_t)choice * edge->table->cols + other]
                        : edge->table->cell[(size_t)other * edge->table->cols + choice];
}
static inline uint32_t edge_other(const struct core_edge *edge, uint32_t v)
{
    return edge->a == v ? edge->b : edge->a;
}

#endif
