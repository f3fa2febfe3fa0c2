// SPDX-License-Identifier: Apache-2.0
// verify.h - compares sharded with unsharded runs. Other modules use tsr_verify of tessera.h.
#ifndef TSR_VERIFY_H
#define TSR_VERIFY_H

#include "base/base.h"

// Compares tensor k of `got` (-1: missing) with tensor i of `want`. tolerance 0: the default of the
// type (tsr__tolerance); INFINITY: compares type and shape only. Two NaNs are equal. Integers,
// booleans and strings must be equal, whatever the tolerance. max_rel is relative to the largest
// finite magnitude in `want`. max_abs and max_rel are NaN if there is no number: type or shape
// differs, or elements that are not numeric differ.
tsr_difference tsr__compare(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                            double tolerance);
// Returns the element (row-major index) with the largest difference; -1: none differs, or not
// numeric.
int64_t tsr__compare_worst(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k);
// The following functions also compare booleans, as 0 and 1.
//
// Returns how many numbers the tensor has (two for a complex element); 0: it is not numeric.
size_t tsr__compare_numbers(const tsr_tensors *tensors, size_t i);
// Returns the largest finite magnitude in the tensor; 0 if it is not numeric.
double tsr__compare_largest(const tsr_tensors *tensors, size_t i);
// Sets marks[e] for every number e that differs by more than `limit`. Does nothing if the numbers
// cannot be compared: not numeric, or another type or shape.
void tsr__compare_mark(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                       double limit, unsigned char *marks);
// Returns the largest accepted difference relative to the largest magnitude, for a tolerance as
// above.
double tsr__compare_allowed(tsr_dtype type, double tolerance);
// The difference of the numbers that are not marked.
struct rest {
    double max_abs;
    size_t count; // numbers that differ by more than the limit
};
// Compares the numbers that are not marked (NULL: all). Both results are 0 if the numbers cannot be
// compared.
struct rest tsr__compare_rest(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                              double limit, const unsigned char *marks);
// Returns element i as a double, for types of floats and integers of 8 bits and more.
double tsr__compare_element(tsr_dtype dtype, const void *data, size_t i);
// Returns the default tolerance of a type; 0: values must be equal.
double tsr__tolerance(tsr_dtype type);

#endif
