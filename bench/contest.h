// SPDX-License-Identifier: Apache-2.0
// contest.h - a problem of the ASPLOS / EuroSys 2025 contest, as it is read.
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
    VEC(struct ints) ends, tables;             // by edge; equal tables are one
    int64_t usage_limit;
    const char *problem; // what is wrong, or NULL
};
// Streams the file (plain or gzip'ed): the text, which may be larger than memory, is never held.
bool contest_read(const char *path, struct arena *a, struct contest *out);
// As a program; choices that an auxiliary node stands for (edges of three nodes and more) follow the
// nodes of the problem. False: out->problem says why.
bool contest_program(struct contest *c, struct program *p);

#endif
