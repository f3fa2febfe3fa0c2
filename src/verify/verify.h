// SPDX-License-Identifier: Apache-2.0
// verify.h - cut against whole: partition, run both ways, compare. Other rooms use tsr_verify of
// tessera.h.
#ifndef TSR_VERIFY_H
#define TSR_VERIFY_H

#include "base/base.h"

// Compares tensor i of got with tensor k of want (k -1: absent). tolerance 0: by type, see the
// table in compare.c; INFINITY: kind and shape alone. Equal NaNs are equal; integers, booleans and
// texts must be the same. max_rel is relative to the largest finite magnitude in want; both are NaN
// where there is no number to give (shape or type differs, no numbers).
tsr_difference tsr__compare(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                            double tolerance);
// The element (row-major) that differs most, or -1: none does, or there are no numbers to compare.
int64_t tsr__compare_worst(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k);
// The tolerance that a type has by default; 0: must be the same.
double tsr__tolerance(tsr_dtype type);

#endif
