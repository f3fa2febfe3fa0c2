// SPDX-License-Identifier: Apache-2.0
// reduce_sum.c - sums of float32 in one pass: all inputs of a few cache lines are read, then all outputs written.
//
// This is the reduction that almost every cut model has, so it is written for the widest vectors that
// the processor has. Every element is still the sum of its inputs in their order: vectors change no bit.
// Outputs that are too large for the caches are written past them, as memcpy does.
#include "transport/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINES  256        // bytes of one step
#define STREAM (8u << 20) // bytes of one output from which on it is written past the caches

// Sixteen elements, and the same wherever they lie. Macros: functions that take vectors differ in how
// they are called from processor to processor.
typedef float lane __attribute__((vector_size(64)));
typedef float lane_anywhere __attribute__((vector_size(64), aligned(1), may_alias));
#define LOAD(p)     (*(const lane_anywhere *)(p))
#define STORE(p, v) (*(lane_anywhere *)(p) = (v))

// The same text for every kind of processor; WRITE writes 64 bytes.
#define SUM(name, target, WRITE)                                                                   \
    static target size_t name(const char *const *in, int n, char *const *out, int n_out,           \
                              size_t at, size_t end)                                               \
    {                                                                                              \
        for (; at + LINES <= end; at += LINES) {                                                   \
            lane a = LOAD(in[0] + at), b = LOAD(in[0] + at + 64);                                  \
            lane c = LOAD(in[0] + at + 128), d = LOAD(in[0] + at + 192);                           \
            for (int r = 1; r < n; r++) {                                                          \
                a += LOAD(in[r] + at);                                                             \
                b += LOAD(in[r] + at + 64);                                                        \
                c += LOAD(in[r] + at + 128);                                                       \
                d += LOAD(in[r] + at + 192);                                                       \
            }                                                                                      \
            for (int o = 0; o < n_out; o++) {                                                      \
                WRITE(out[o] + at, a);                                                             \
                WRITE(out[o] + at + 64, b);                                                        \
                WRITE(out[o] + at + 128, c);                                                       \
                WRITE(out[o] + at + 192, d);                                                       \
            }                                                                                      \
        }                                                                                          \
        return at;                                                                                 \
    }

SUM(sum_plain, , STORE)

#if defined(__x86_64__)
#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
SUM(sum_avx2, AVX2, STORE)
SUM(sum_avx512, AVX512, STORE)

#define PAST(p, v) _mm512_stream_ps((float *)(p), (__m512)(v))
SUM(sum_past, AVX512, PAST)

static bool lined_up(char *const *out, int n_out, size_t at)
{
    uintptr_t bits = 0;
    for (int o = 0; o < n_out; o++)
        bits |= (uintptr_t)(out[o] + at);
    return bits % 64 == 0;
}
#endif

size_t tsr__reduce_sum(const char *const *in, int n, char *const *out, int n_out, size_t at,
                       size_t end)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        if (end - at < STREAM / 2 || !lined_up(out, n_out, at))
            return sum_avx512(in, n, out, n_out, at, end);
        at = sum_past(in, n, out, n_out, at, end);
        _mm_sfence();
        return at;
    }
    if (__builtin_cpu_supports("avx2"))
        return sum_avx2(in, n, out, n_out, at, end);
#endif
    return sum_plain(in, n, out, n_out, at, end);
}
