// SPDX-License-Identifier: Apache-2.0
// solve_prune.h - a program without the choices that no better answer than the known one can have.
#ifndef TSR_SOLVER_SOLVE_PRUNE_H
#define TSR_SOLVER_SOLVE_PRUNE_H

#include "solve_dual.h"

// cost: of the known answer, in the core. *out views the program's tables and memory of the heap of
// dual->wide. False: too few choices can go, or out of memory.
bool tsr__prune(struct dual *dual, const struct program *program, int64_t cost,
                struct program *out);

#endif
