// SPDX-License-Identifier: Apache-2.0
// solve_prune.h - reduced-cost fixing.
#ifndef TSR_SOLVER_SOLVE_PRUNE_H
#define TSR_SOLVER_SOLVE_PRUNE_H

#include "solve_dual.h"

// Makes a program without the choices that cannot be in a solution below `cost` (in the core). *out
// views tables of `program` and memory of dual->dense's heap. False: too few can be removed, or out
// of memory.
bool tsr__prune(struct dual *dual, const struct program *program, int64_t cost,
                struct program *out);

#endif
