// SPDX-License-Identifier: Apache-2.0
// solver.h - the 0-1 program behind the planner, and its exact solver.
//
// Nodes have k choices, each with a cost; pairs of nodes have a table of costs; limits bound the sum
// of what the chosen choices use, at every time of a time line. Wanted: one choice per node, least
// total cost. All numbers are int64, all results are the same on every machine: effort is counted in
// work (table cells visited), and seconds only stop what would take too long.
// This seam knows nothing of tensors, devices or shardings.
//
//     struct program p;
//     tsr__program_init(&p, arena);
//     uint32_t u = tsr__program_node(&p, STR("u"), 2, (int64_t[]){3, 5});   // tables are viewed
//     uint32_t v = tsr__program_node(&p, STR("v"), 2, (int64_t[]){0, 1});
//     tsr__program_edge(&p, u, v, (int64_t[]){0, 9, COST_FORBIDDEN, 0});     // k_u rows of k_v
//     uint32_t m = tsr__program_limit(&p, STR("memory of device 0"), 100, 1);
//     tsr__program_use(&p, m, u, 0, 1, (int64_t[]){64, 16});
//     struct program_result r;
//     tsr_status st = tsr__program_solve(&p, NULL, arena, &r);
#ifndef TSR_SOLVER_H
#define TSR_SOLVER_H

#include "base/base.h"

#define COST_FORBIDDEN INT64_MAX // of a choice or of a pair: never taken
// Magnitudes above this are refused (but for COST_FORBIDDEN), and so are programs whose sum of
// largest costs is: no sum can overflow.
#define PROGRAM_MOST        (INT64_MAX / 8)
#define PROGRAM_MAX_NODES   4000000
#define PROGRAM_MAX_CHOICES 65535

struct program_node {
    struct str name;
    uint32_t k;
    const int64_t *cost;       // k; may be negative; COST_FORBIDDEN
    const struct str *choices; // k names, or NULL
};
struct program_edge {    // several between the same two nodes add up
    uint32_t a, b;       // a != b
    const int64_t *cost; // k_a x k_b, row-major over a
};
struct program_use { // node uses usage[choice] from time begin until before end
    uint32_t node, begin, end;
    const int64_t *usage; // k, >= 0
};
// At every time 0 .. n_times - 1 the usages that cover it sum up to at most bound. A limit without
// time has n_times 1 and every use covers 0 .. 1. A node may have several uses in one limit.
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
// Names and tables are viewed, not copied: they live as long as the program, and equal tables may be
// shared (layers that repeat are found faster where they are). UINT32_MAX: out of memory.
uint32_t tsr__program_node(struct program *program, struct str name, uint32_t k,
                           const int64_t *cost);
void tsr__program_choices(struct program *program, uint32_t node,
                          const struct str *names); // k of them
void tsr__program_edge(struct program *program, uint32_t a, uint32_t b, const int64_t *cost);
uint32_t tsr__program_limit(struct program *program, struct str name, int64_t bound,
                            uint32_t n_times);
void tsr__program_use(struct program *program, uint32_t limit, uint32_t node, uint32_t begin,
                      uint32_t end, const int64_t *usage);
// A cost is multiplied by times / over and rounded toward 0. over is at least 1.
struct program_weight {
    int64_t times, over;
};
// Returns the weight for the edges between the nodes a and b, or for the node a if a == b.
typedef struct program_weight program_weight_fn(const void *context, uint32_t a, uint32_t b);
// Adds the nodes, edges and limits of `from` to `to`, with weighted costs. Limits and usages keep their
// values. Returns the number that the first node of `from` has in `to`; UINT32_MAX: out of memory.
uint32_t tsr__program_add(struct program *to, const struct program *from,
                          program_weight_fn *weight_of, const void *context);
// TSR_OK if indices, signs and magnitudes are right; TSR_NOMEM if the arena failed meanwhile; else
// TSR_INVALID. Adds no finding. All functions below check first and pass this on.
tsr_status tsr__program_check(const struct program *program) TSR_MUST_USE;

// Cost of an assignment (one choice per node); COST_FORBIDDEN where it takes what is not allowed.
int64_t tsr__program_cost(const struct program *program, const uint32_t *choice);
// Largest sum of usages of a limit over its times, and its (first) time if wanted.
int64_t tsr__program_peak(const struct program *program, uint32_t limit, const uint32_t *choice,
                          uint32_t *time);
// Marks (1) the times whose live sets are not contained in another's: the others need no look. At
// least one is marked. kept has n_times entries.
void tsr__program_times(const struct program_limit *limit, uint8_t *kept);

struct program_told { // what is known so far; costs without the shift are of the whole program
    double seconds;
    uint32_t nodes, edges, rows; // that are left after the reductions
    int64_t cost, bound;         // COST_FORBIDDEN: no answer yet
    const char *step;            // what has just ended
};
struct program_options {
    uint64_t work; // cells that may be visited; 0: 4e9 (some ten seconds)
    // (cancelling the session ends it too)
    double
        seconds; // stop after that much time all the same; 0: never. Makes results depend on luck
    double
        near; // of tsr__program_least: an answer will do that is above the least by this part of it
    // Called now and then, from one thread at a time; NULL: not at all.
    void (*tell)(void *context, const struct program_told *told);
    void *context;
};

struct program_binding { // a limit without which the answer would be cheaper
    uint32_t limit, time;
    int64_t used;
};
struct program_result {
    bool feasible;    // choice holds an answer
    bool optimal;     // cost == bound
    bool infeasible;  // proved: there is no answer
    uint32_t *choice; // one per node; NULL if none was found
    int64_t cost;     // of choice; COST_FORBIDDEN if none was found
    int64_t bound;    // proved: no answer costs less
    double gap;       // (cost - bound) / max(1, |cost|); 1 if none was found
    uint64_t work;
    struct program_binding *bindings; // full up to less than any spared use, or priced by the bound
    size_t n_bindings;
};
// NULL options are the defaults. Memory of the result from a. TSR_OK also where nothing was found
// (see the result); TSR_NOMEM; TSR_INVALID.
tsr_status tsr__program_solve(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_result *out) TSR_MUST_USE;

struct program_least {
    bool found;           // choice keeps every limit at `least`
    bool proved;          // and no smaller number would do
    int64_t least;        // largest peak of choice
    int64_t bound;        // proved: less is infeasible
    uint32_t limit, time; // where that peak is
    uint32_t *choice;
    uint64_t work;
};
// The smallest M such that the program would have an answer if every limit had the bound M; costs do
// not count, forbidden choices and pairs do. A program without limits has least 0. Options are of all
// that is done for it, not of each solve.
tsr_status tsr__program_least(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_least *out) TSR_MUST_USE;

struct program_marginal { // the best answer in which the node takes this choice
    bool feasible, optimal, infeasible;
    int64_t cost, bound; // as in program_result
};
// out has k entries. Without limits and on narrow graphs one pass answers for all choices; else the
// program is solved again for each, and options count for each.
tsr_status tsr__program_marginals(const struct program *program,
                                  const struct program_options *options, struct arena *arena,
                                  uint32_t node, struct program_marginal *out) TSR_MUST_USE;

// The program as a CPLEX LP file, without a constant: binaries s_NODE_CHOICE, continuous e_EDGE_A_B
// with row and column sums (local polytope), rows m_LIMIT_TIME for the times that no other time
// contains. Names are in comments. Solvers (cbc FILE.lp solve) find the optimum of the same program.
tsr_status tsr__program_lp(const struct program *program, struct text *out) TSR_MUST_USE;

#endif
