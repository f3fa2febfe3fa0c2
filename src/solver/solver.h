// SPDX-License-Identifier: Apache-2.0
// solver.h - a 0-1 program (the planner's optimization problem) and its exact solver.
//
// Each node takes one of k choices, and each choice has a cost. An edge between two nodes adds a
// cost that depends on both choices. A limit bounds the sum of the choices' usages at every time of
// a sequence of times. The solver finds the assignment of least total cost that satisfies all
// limits. In the literature this is a weighted constraint satisfaction problem, or MAP inference in
// a pairwise Markov random field, with side constraints.
//
// All numbers are int64. Results are the same on every machine: effort is counted in table cells,
// and the clock only stops a solve if the caller sets a time limit. This module knows nothing of
// tensors, devices or shardings.
//
//     struct program p;
//     tsr__program_init(&p, arena);
//     uint32_t u = tsr__program_node(&p, STR("u"), 2, (int64_t[]){3, 5});   // no copies of tables
//     uint32_t v = tsr__program_node(&p, STR("v"), 2, (int64_t[]){0, 1});
//     tsr__program_edge(&p, u, v, (int64_t[]){0, 9, COST_FORBIDDEN, 0});     // k_u rows of k_v
//     uint32_t m = tsr__program_limit(&p, STR("memory of device 0"), 100, 1);
//     tsr__program_use(&p, m, u, 0, 1, (int64_t[]){64, 16});
//     struct program_result r;
//     tsr_status st = tsr__program_solve(&p, NULL, arena, &r);
#ifndef TSR_SOLVER_H
#define TSR_SOLVER_H

#include "base/base.h"

#define COST_FORBIDDEN INT64_MAX // cost of a choice or a pair that must not be taken
// Programs with costs of a larger absolute value, or whose largest costs sum to more, are rejected.
// So no sum can overflow.
#define PROGRAM_MOST        (INT64_MAX / 8)
#define PROGRAM_MAX_NODES   4000000
#define PROGRAM_MAX_CHOICES 65535

struct program_node {
    struct str name;
    uint32_t k;
    const int64_t *cost;       // by choice; may be negative or COST_FORBIDDEN
    const struct str *choices; // k names, or NULL
};
struct program_edge {    // edges between the same two nodes add up
    uint32_t a, b;       // a != b
    const int64_t *cost; // k_a x k_b, row-major over a
};
struct program_use { // the node uses usage[choice] at the times begin .. end - 1
    uint32_t node, begin, end;
    const int64_t *usage; // k numbers, >= 0
};
// At every time 0 .. n_times - 1, the sum of the usages that cover this time is at most `bound`. A
// limit that does not depend on time has n_times 1, and every use covers 0 .. 1. A node may have
// several uses.
struct program_limit {
    struct str name;
    int64_t bound;
    uint32_t n_times;
    VEC(struct program_use) uses;
};
struct program {
    struct arena *arena;
    VEC(struct program_node) nodes;
    VEC(struct program_edge) edges;
    VEC(struct program_limit) limits;
};

void tsr__program_init(struct program *program, struct arena *arena);
// Names and tables are not copied and must live as long as the program. Nodes and edges may share
// tables; edges that share one also share its copy in the solver. Returns UINT32_MAX if out of
// memory.
uint32_t tsr__program_node(struct program *program, struct str name, uint32_t k,
                           const int64_t *cost);
void tsr__program_choices(struct program *program, uint32_t node,
                          const struct str *names); // k of them
void tsr__program_edge(struct program *program, uint32_t a, uint32_t b, const int64_t *cost);
uint32_t tsr__program_limit(struct program *program, struct str name, int64_t bound,
                            uint32_t n_times);
void tsr__program_use(struct program *program, uint32_t limit, uint32_t node, uint32_t begin,
                      uint32_t end, const int64_t *usage);
// A cost is multiplied by times / over and rounded toward 0. `over` is at least 1.
struct program_weight {
    int64_t times, over;
};
// Returns the weight for the edges between the nodes a and b, or for the node a if a == b.
typedef struct program_weight program_weight_fn(const void *context, uint32_t a, uint32_t b);
// Adds the nodes, edges and limits of `from` to `to`, with weighted costs. Limits and usages keep
// their values. Returns the number that the first node of `from` has in `to`, or UINT32_MAX if out
// of memory.
uint32_t tsr__program_add(struct program *to, const struct program *from,
                          program_weight_fn *weight_of, const void *context);
// Returns TSR_OK if indices, signs and magnitudes are valid, TSR_NOMEM if the arena has failed,
// else TSR_INVALID. Adds no diagnostic. The functions that solve or write the program call it
// first.
tsr_status tsr__program_check(const struct program *program) TSR_MUST_USE;

// Returns the cost of an assignment (one choice per node), or COST_FORBIDDEN if it is not allowed.
int64_t tsr__program_cost(const struct program *program, const uint32_t *choice);
// Returns the largest sum of usages over the times of a limit, or INT64_MAX if out of memory. If
// `time` is not NULL, *time is the first time with that sum.
int64_t tsr__program_peak(const struct program *program, uint32_t limit, const uint32_t *choice,
                          uint32_t *time);
// Marks with 1 the times that need a constraint. A time needs none if its uses are a subset of
// those of a marked time. At least one is marked. `kept` has n_times entries.
void tsr__program_times(const struct program_limit *limit, uint8_t *kept);

struct program_progress {
    double seconds;
    uint32_t nodes, edges, rows; // remaining after the reductions
    int64_t cost, bound;         // cost COST_FORBIDDEN: no solution yet
    const char *step;            // the step that has just ended
};
struct program_options {
    uint64_t work;  // table cells that may be visited; 0: 4e9 (about ten seconds)
    double seconds; // time limit; 0: none. With a limit, results depend on the machine's speed
    double near;    // for tsr__program_least: accepted relative distance from the least bound
    void (*progress)(void *context, const struct program_progress *progress); // NULL: not called
    void *context;
};

struct program_binding { // a limit that makes the solution more expensive
    uint32_t limit, time;
    int64_t used;
};
struct program_result {
    bool feasible;    // `choice` is a solution
    bool optimal;     // cost == bound
    bool infeasible;  // it is proved that there is no solution
    uint32_t *choice; // by node; NULL: no solution found
    int64_t cost;     // COST_FORBIDDEN: no solution found
    int64_t bound;    // proved: no solution costs less
    double gap;       // (cost - bound) / max(1, |cost|); 1: no solution found
    uint64_t work;
    struct program_binding *bindings; // rows that are full, or whose multiplier is large
    size_t n_bindings;
};
// Solves the program. If `options` is NULL, defaults apply. The result is allocated from `arena`.
// Also returns TSR_OK if no solution was found. Cancelling the session ends the solve early.
tsr_status tsr__program_solve(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_result *out) TSR_MUST_USE;

struct program_least {
    bool found;           // `choice` satisfies every limit if its bound is `least`
    bool proved;          // no smaller number is feasible
    int64_t least;        // largest peak of `choice`
    int64_t bound;        // proved: less is infeasible
    uint32_t limit, time; // limit and time of that peak
    uint32_t *choice;
    uint64_t work;
};
// Finds the smallest M such that the program is feasible if every limit has the bound M. Costs are
// ignored except for COST_FORBIDDEN. Without limits the result is 0. The options apply to the full
// call.
tsr_status tsr__program_least(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_least *out) TSR_MUST_USE;

struct program_marginal { // the best solution in which the node takes this choice
    bool feasible, optimal, infeasible;
    int64_t cost, bound; // as in program_result
};
// Computes one marginal per choice of the node. Without limits and with small treewidth, one pass
// gives all of them. Otherwise the program is solved once per choice, each time with these options.
tsr_status tsr__program_marginals(const struct program *program,
                                  const struct program_options *options, struct arena *arena,
                                  uint32_t node, struct program_marginal *out) TSR_MUST_USE;

// Writes the program as a CPLEX LP file without a constant term: binary variables s_NODE_CHOICE,
// continuous variables e_EDGE_A_B with row and column sums (local polytope), rows m_LIMIT_TIME.
// Names are in comments. `cbc FILE.lp solve` finds the optimum of the same program.
tsr_status tsr__program_lp(const struct program *program, struct text *out) TSR_MUST_USE;

#endif
