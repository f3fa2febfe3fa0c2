// SPDX-License-Identifier: Apache-2.0
// compare.c - compares two tensors. Sharding a contraction changes the order of a sum, so floats
// differ by a few units of their precision times the length of the sum. Values that do not depend
// on float arithmetic must be equal.
//
//     Example: expected {100, 2, -50}, got {100.001, 2, -50} in float32: max_abs 0.001, max_rel
//     0.001 / 100 = 1e-5, allowed 5e-5: ok. The difference is relative to the largest magnitude of
//     the tensor, not of the element: 2 and 2.001 would be accepted too, because a sum of large
//     terms may be small and still has their error.
#include "verify/verify.h"

#include <math.h>

// Returns the tolerance of a type. Types that are not listed (integers, booleans, strings) must be
// equal.
double tsr__tolerance(tsr_dtype type)
{
    switch (type) { // relative to the largest magnitude of the tensor; in units of the type's
                    // precision: about 4,500 for double, 400 for float32, 10 for 16 bits, 2 for 8
    case TSR_DOUBLE:
    case TSR_COMPLEX128:
        return 1e-12;
    case TSR_FLOAT:
    case TSR_COMPLEX64:
        return 5e-5;
    case TSR_FLOAT16:
        return 1e-2;
    case TSR_BFLOAT16:
        return 5e-2;
    case TSR_FLOAT8E4M3FN:
    case TSR_FLOAT8E4M3FNUZ:
    case TSR_FLOAT8E5M2:
    case TSR_FLOAT8E5M2FNUZ:
        return 0.25;
    default:
        return 0;
    }
}

double tsr__compare_allowed(tsr_dtype type, double tolerance)
{
    double own = tsr__tolerance(type);
    return tolerance > 0 && own > 0 ? tolerance : own;
}

// ---- one element as a double -------------------------------------------------------------------

// True if an 8-bit float is NaN. The FNUZ types have one NaN, 0x80. A NaN of E4M3FN has all bits
// set, except perhaps the sign. E5M2 follows IEEE: codes above that of infinity (124) are NaN.
static bool eighth_is_nan(uint8_t bits, bool e4, bool uz)
{
    if (uz)
        return bits == 0x80;
    return e4 ? (bits & 127) == 127 : (bits & 127) > 124;
}

// Converts an 8-bit float. The types differ in exponent bits, bias, whether there are infinities,
// and whether NaN is 0x80 alone.
static double eighth_value(tsr_dtype dtype, uint8_t bits)
{
    bool e4 = dtype == TSR_FLOAT8E4M3FN || dtype == TSR_FLOAT8E4M3FNUZ;
    bool uz = dtype == TSR_FLOAT8E4M3FNUZ || dtype == TSR_FLOAT8E5M2FNUZ;
    int width = 2, bias = 15 + uz;
    if (e4) {
        width = 3;
        bias = 7 + uz;
    }
    int exponent = (bits & 127) >> width, fraction = bits & ((1 << width) - 1);
    if (eighth_is_nan(bits, e4, uz))
        return NAN;
    double magnitude;
    if (!uz && !e4 && (bits & 127) == 124)
        magnitude = INFINITY;
    else if (exponent)
        magnitude = ldexp((1 << width) + fraction, exponent - bias - width);
    else
        magnitude = ldexp(fraction, 1 - bias - width);
    return bits >> 7 ? -magnitude : magnitude;
}

#define READ(type)                                                                                 \
    do {                                                                                           \
        type v;                                                                                    \
        memcpy(&v, (const char *)data + i * sizeof(v), sizeof(v));                                 \
        return (double)v;                                                                          \
    } while (0)

// Returns element i as a double; for complex numbers i counts real and imaginary parts. 64-bit
// integers above 2^53 are rounded: compare them with wide_gap.
double tsr__compare_element(tsr_dtype dtype, const void *data, size_t i)
{
    uint16_t half;
    switch (dtype) {
    case TSR_FLOAT:
    case TSR_COMPLEX64:
        READ(float);
    case TSR_DOUBLE:
    case TSR_COMPLEX128:
        READ(double);
    case TSR_FLOAT16:
    case TSR_BFLOAT16:
        memcpy(&half, (const char *)data + 2 * i, 2);
        if (dtype == TSR_FLOAT16)
            return (double)half_to_float(half);
        return (double)bfloat_to_float(half);
    case TSR_INT8:
        READ(int8_t);
    case TSR_BOOL:
    case TSR_UINT8:
        READ(uint8_t);
    case TSR_INT16:
        READ(int16_t);
    case TSR_UINT16:
        READ(uint16_t);
    case TSR_INT32:
        READ(int32_t);
    case TSR_UINT32:
        READ(uint32_t);
    case TSR_INT64:
        READ(int64_t);
    case TSR_UINT64:
        READ(uint64_t);
    default:
        return eighth_value(dtype, ((const uint8_t *)data)[i]);
    }
}

// Returns how many numbers an element has whose differences are reported; 0: none (strings,
// booleans, types of less than 8 bits).
static size_t numbers_of(tsr_dtype t)
{
    if (t == TSR_COMPLEX64 || t == TSR_COMPLEX128)
        return 2;
    return tsr__tolerance(t) > 0 || (t >= TSR_UINT8 && t <= TSR_INT64) || t == TSR_UINT32 ||
           t == TSR_UINT64;
}

// ---- two tensors -------------------------------------------------------------------------------

// True if type, rank and all sizes are equal.
static bool same_kind(const tsr_tensors *a, size_t i, const tsr_tensors *b, size_t k)
{
    int rank = tsr_tensors_rank(a, i);
    if (tsr_tensors_dtype(a, i) != tsr_tensors_dtype(b, k) || rank != tsr_tensors_rank(b, k))
        return false;
    for (int d = 0; d < rank; d++)
        if (tsr_tensors_dims(a, i)[d] != tsr_tensors_dims(b, k)[d])
            return false;
    return true;
}

// Returns the difference of two 64-bit integers. It is computed before rounding: 2^53 and 2^53 + 1
// are the same double, but differ by 1.
static double wide_gap(tsr_dtype dtype, const void *want, const void *got, size_t i)
{
    uint64_t a, b;
    memcpy(&a, (const char *)want + i * sizeof(a), sizeof(a));
    memcpy(&b, (const char *)got + i * sizeof(b), sizeof(b));
    if (dtype == TSR_INT64) { // maps to unsigned integers in the same order
        a ^= (uint64_t)1 << 63;
        b ^= (uint64_t)1 << 63;
    }
    return (double)(a > b ? a - b : b - a);
}

// Returns the difference of element i: 0 for equal elements and for two NaNs; infinite if only one
// is NaN or infinite.
static double gap(tsr_dtype dtype, const void *want, const void *got, size_t i)
{
    if (dtype == TSR_INT64 || dtype == TSR_UINT64)
        return wide_gap(dtype, want, got, i);
    double a = tsr__compare_element(dtype, want, i), b = tsr__compare_element(dtype, got, i);
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    double d = fabs(a - b);
    return isnan(d) ? INFINITY : d;
}

// Computes max_abs and max_rel of n numbers, two per element for complex tensors.
static void measure(tsr_dtype dtype, const void *want, const void *got, size_t n,
                    tsr_difference *out)
{
    double largest = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        double a = tsr__compare_element(dtype, want, i), d = gap(dtype, want, got, i);
        if (d > most)
            most = d;
        if (isfinite(a) && fabs(a) > largest)
            largest = fabs(a);
    }
    out->max_abs = most;
    if (most == 0)
        out->max_rel = 0;
    else
        // If all expected elements are 0, NaN or infinite, any difference is infinite.
        out->max_rel = most / largest;
}

// Compares two sequences element by element and stores the largest differences in *out, which the
// caller has set to NaN. They stay NaN if the lengths differ, and become NaN if an element cannot
// be compared.
static void compare_sequences(const tsr_tensors *want, const tsr_tensors *got, double tolerance,
                              tsr_difference *out)
{
    size_t n = tsr_tensors_count(want);
    if (n != tsr_tensors_count(got))
        return;
    out->max_abs = out->max_rel = 0;
    out->ok = true;
    for (size_t e = 0; e < n; e++) {
        tsr_difference one = tsr__compare(want, e, got, (int64_t)e, tolerance);
        out->ok = out->ok && one.ok;
        if (!(one.max_abs <= out->max_abs))
            out->max_abs = one.max_abs;
        if (!(one.max_rel <= out->max_rel))
            out->max_rel = one.max_rel;
        if (one.max_abs != one.max_abs)
            return;
    }
}

// Compares two tensors, from cheap to expensive checks: type and shape, equal bytes, then element
// by element. Two sequences are compared by compare_sequences.
tsr_difference tsr__compare(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                            double tolerance)
{
    tsr_difference out = {.name = tsr_tensors_name(want, i), .max_abs = NAN, .max_rel = NAN};
    const tsr_tensors *a_list = tsr_tensors_sequence(want, i);
    const tsr_tensors *b_list = k >= 0 ? tsr_tensors_sequence(got, (size_t)k) : NULL;
    if (a_list && b_list) {
        compare_sequences(a_list, b_list, tolerance, &out);
        return out;
    }
    if (k >= 0 && !a_list && !b_list && tsr_tensors_rank(want, i) < 0 &&
        tsr_tensors_rank(got, (size_t)k) < 0) { // both are optionals without a value
        out.max_abs = out.max_rel = 0;
        out.ok = true;
        return out;
    }
    if (k < 0 || a_list || b_list || !same_kind(want, i, got, (size_t)k))
        return out;
    tsr_dtype dtype = tsr_tensors_dtype(want, i);
    size_t bytes, other, per = numbers_of(dtype);
    const void *a = tsr_tensors_data(want, i, &bytes),
               *b = tsr_tensors_data(got, (size_t)k, &other);
    if (bytes == other && (bytes == 0 || memcmp(a, b, bytes) == 0)) {
        out.max_abs = out.max_rel = 0;
        out.ok = true;
        return out;
    }
    // Random numbers: only type and shape are checked. Differences are measured anyway.
    if (bytes == other && isinf(tolerance))
        out.ok = true;
    if (bytes != other || per == 0)
        return out;
    size_t n = bytes / ((size_t)tsr_dtype_bits(dtype) / 8) * per;
    measure(dtype, a, b, n, &out);
    out.ok = out.ok || out.max_abs == 0 || out.max_rel <= tsr__compare_allowed(dtype, tolerance);
    return out;
}

// Two numeric tensors of the same type and shape; n is 0 if they are not. Booleans are the numbers
// 0 and 1.
struct pair {
    tsr_dtype dtype;
    const void *want, *got;
    size_t n, per; // n: numbers to compare, `per` of them for each element
};

static struct pair pair_of(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k)
{
    struct pair pair = {.dtype = tsr_tensors_dtype(want, i)};
    size_t bytes, other;
    pair.per = pair.dtype == TSR_BOOL ? 1 : numbers_of(pair.dtype);
    if (k < 0 || !pair.per || !same_kind(want, i, got, (size_t)k))
        return pair;
    pair.want = tsr_tensors_data(want, i, &bytes);
    pair.got = tsr_tensors_data(got, (size_t)k, &other);
    if (bytes == other)
        pair.n = bytes / ((size_t)tsr_dtype_bits(pair.dtype) / 8) * pair.per;
    return pair;
}

// Returns the index of the element with the largest difference (of either part, for complex
// numbers); -1: no element differs, or the tensors cannot be compared.
int64_t tsr__compare_worst(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k)
{
    struct pair pair = pair_of(want, i, got, k);
    double most = 0;
    size_t at = 0;
    for (size_t e = 0; e < pair.n; e++) {
        double d = gap(pair.dtype, pair.want, pair.got, e);
        if (d > most) {
            most = d;
            at = e;
        }
    }
    return most > 0 ? (int64_t)(at / pair.per) : -1;
}

size_t tsr__compare_numbers(const tsr_tensors *tensors, size_t i)
{
    return pair_of(tensors, i, tensors, (int64_t)i).n;
}

double tsr__compare_largest(const tsr_tensors *tensors, size_t i)
{
    struct pair pair = pair_of(tensors, i, tensors, (int64_t)i);
    double largest = 0;
    for (size_t e = 0; e < pair.n; e++) {
        double x = fabs(tsr__compare_element(pair.dtype, pair.want, e));
        if (isfinite(x) && x > largest)
            largest = x;
    }
    return largest;
}

void tsr__compare_mark(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                       double limit, unsigned char *marks)
{
    struct pair pair = pair_of(want, i, got, k);
    for (size_t e = 0; e < pair.n; e++)
        if (gap(pair.dtype, pair.want, pair.got, e) > limit)
            marks[e] = 1;
}

struct rest tsr__compare_rest(const tsr_tensors *want, size_t i, const tsr_tensors *got, int64_t k,
                              double limit, const unsigned char *marks)
{
    struct pair pair = pair_of(want, i, got, k);
    struct rest rest = {0};
    for (size_t e = 0; e < pair.n; e++) {
        double d = marks && marks[e] ? 0 : gap(pair.dtype, pair.want, pair.got, e);
        rest.count += d > limit;
        if (d > rest.max_abs)
            rest.max_abs = d;
    }
    return rest;
}
