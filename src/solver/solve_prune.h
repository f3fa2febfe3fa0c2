// SPDX-License-Identifier: Apache-2.0
// solve_prune.h - reduced-cost fixing: a smaller program without useless choices.
#ifndef TSR_SOLVER_SOLVE_PRUNE_H
#define TSR_SOLVER_SOLVE_PRUNE_H

#include "solve_dual.h"

// Builds a program without the choices that cannot be in a solution below `cost` (in the core).
// *out points to tables of `program` and to memory of dual->dense's heap. Returns false if too few
// choices can be removed or if out of memory.
bool tsr__prune(struct dual *dual, const struct program *program, int64_t cost,
                struct program *out);

#endif
