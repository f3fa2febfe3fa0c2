// SPDX-License-Identifier: Apache-2.0
// contest.h - a problem of the ASPLOS / EuroSys 2025 contest.
#ifndef TSR_BENCH_CONTEST_H
#define TSR_BENCH_CONTEST_H

#include "solver/solver.h"

struct ints {
    int64_t *at;
    size_t n;
};
struct contest {
    struct arena *arena;
    VEC(struct ints) intervals, costs, usages; // by node
    VEC(struct ints) ends, tables;             // by edge; equal tables are shared
    int64_t usage_limit;
    const char *problem; // error message, or NULL
};
// Streams the file (plain or gzipped): the text may be larger than memory.
bool contest_read(const char *path, struct arena *a, struct contest *out);
// Converts it to a program. Auxiliary nodes, for edges of three nodes and more, follow the nodes of
// the problem. False: see c->problem.
bool contest_program(struct contest *c, struct program *p);

#endif
