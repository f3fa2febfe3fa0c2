// SPDX-License-Identifier: Apache-2.0
// reduce_wide.c - vectorized sum, maximum and minimum for common types, with the widest vectors of
// the processor.
//
// One pass: reads a few cache lines of every input, folds them in order, writes all outputs. Vector
// code gives the same bits: every element is folded as in reduce.c. With AVX-512, large outputs are
// written with non-temporal stores, as memcpy does. 16-bit floats are folded as float and rounded
// once.
#include "transport/common/internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINES 256 // bytes per step

// Vectors of 64 bytes with any alignment. Macros, because the calling convention of functions with
// vector arguments depends on the processor.
#define LANES(T, name)                                                                             \
    typedef T name __attribute__((vector_size(64)));                                               \
    typedef T name##_anywhere __attribute__((vector_size(64), aligned(1), may_alias))
LANES(float, f32);
LANES(double, f64);
LANES(int32_t, i32);
LANES(int64_t, i64);
LANES(uint32_t, u32);
LANES(uint64_t, u64);
#define LOAD(V, p) (*(const V##_anywhere *)(p))

// Selects x where the mask is set, else a. M: integers of the same width.
#define PICK(V, M, mask, x, a) ((V)(((M)(x) & (mask)) | ((M)(a) & ~(mask))))
#define ADD(V, M, a, x)        ((a) + (x))
#define MAX(V, M, a, x)        PICK(V, M, (M)((x) > (a)), x, a)
#define MIN(V, M, a, x)        PICK(V, M, (M)((x) < (a)), x, a)
// NaN takes precedence, as in reduce.c.
#define FMAX(V, M, a, x) PICK(V, M, (M)((x) > (a)) | ((M)((x) != (x)) & (M)((a) == (a))), x, a)
#define FMIN(V, M, a, x) PICK(V, M, (M)((x) < (a)) | ((M)((x) != (x)) & (M)((a) == (a))), x, a)

#define WRITE(V, p, v)                                                                             \
    do {                                                                                           \
        if (past)                                                                                  \
            STREAM_OUT(p, v);                                                                      \
        else                                                                                       \
            *(V##_anywhere *)(p) = (v);                                                            \
    } while (0)

// One body for every type, operation and processor. past: write with non-temporal stores.
#define PASS(name, target, V, M, OP)                                                               \
    static target size_t name(const char *const *in, int n, char *const *out, int n_out,           \
                              size_t at, size_t end, bool past)                                    \
    {                                                                                              \
        for (; at + LINES <= end; at += LINES) {                                                   \
            V a = LOAD(V, in[0] + at), b = LOAD(V, in[0] + at + 64);                               \
            V c = LOAD(V, in[0] + at + 128), d = LOAD(V, in[0] + at + 192);                        \
            for (int r = 1; r < n; r++) {                                                          \
                V x = LOAD(V, in[r] + at), y = LOAD(V, in[r] + at + 64);                           \
                V z = LOAD(V, in[r] + at + 128), w = LOAD(V, in[r] + at + 192);                    \
                a = OP(V, M, a, x);                                                                \
                b = OP(V, M, b, y);                                                                \
                c = OP(V, M, c, z);                                                                \
                d = OP(V, M, d, w);                                                                \
            }                                                                                      \
            for (int o = 0; o < n_out; o++) {                                                      \
                WRITE(V, out[o] + at, a);                                                          \
                WRITE(V, out[o] + at + 64, b);                                                     \
                WRITE(V, out[o] + at + 128, c);                                                    \
                WRITE(V, out[o] + at + 192, d);                                                    \
            }                                                                                      \
        }                                                                                          \
        return at;                                                                                 \
    }

typedef size_t pass(const char *const *in, int n, char *const *out, int n_out, size_t at,
                    size_t end, bool past);

// All types and operations for one processor; products and small integers are left to reduce.c.
#define PASSES(kind, target)                                                                       \
    PASS(sum_f32_##kind, target, f32, i32, ADD)                                                    \
    PASS(max_f32_##kind, target, f32, i32, FMAX)                                                   \
    PASS(min_f32_##kind, target, f32, i32, FMIN)                                                   \
    PASS(sum_f64_##kind, target, f64, i64, ADD)                                                    \
    PASS(max_f64_##kind, target, f64, i64, FMAX)                                                   \
    PASS(min_f64_##kind, target, f64, i64, FMIN)                                                   \
    PASS(sum_u32_##kind, target, u32, i32, ADD)                                                    \
    PASS(max_i32_##kind, target, i32, i32, MAX)                                                    \
    PASS(min_i32_##kind, target, i32, i32, MIN)                                                    \
    PASS(sum_u64_##kind, target, u64, i64, ADD)                                                    \
    PASS(max_i64_##kind, target, i64, i64, MAX)                                                    \
    PASS(min_i64_##kind, target, i64, i64, MIN)                                                    \
    static pass *const passes_##kind[TSR_DTYPE_COUNT][COMM_REDUCE_COUNT] = {                       \
        [TSR_FLOAT] = {[COMM_SUM] = sum_f32_##kind,                                                \
                       [COMM_MAX] = max_f32_##kind,                                                \
                       [COMM_MIN] = min_f32_##kind},                                               \
        [TSR_DOUBLE] = {[COMM_SUM] = sum_f64_##kind,                                               \
                        [COMM_MAX] = max_f64_##kind,                                               \
                        [COMM_MIN] = min_f64_##kind},                                              \
        [TSR_INT32] = {[COMM_SUM] = sum_u32_##kind,                                                \
                       [COMM_MAX] = max_i32_##kind,                                                \
                       [COMM_MIN] = min_i32_##kind},                                               \
        [TSR_INT64] = {[COMM_SUM] = sum_u64_##kind,                                                \
                       [COMM_MAX] = max_i64_##kind,                                                \
                       [COMM_MIN] = min_i64_##kind},                                               \
        [TSR_UINT32] = {[COMM_SUM] = sum_u32_##kind},                                              \
        [TSR_UINT64] = {[COMM_SUM] = sum_u64_##kind},                                              \
    };

#define STREAM_OUT(p, v) (void)0
PASSES(plain, )
#if defined(__x86_64__)
#define AVX2   __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
PASSES(avx2, AVX2)
#undef STREAM_OUT
#define STREAM_OUT(p, v) _mm512_stream_si512((void *)(p), (__m512i)(v))
PASSES(avx512, AVX512)
#endif

// ---- sixteen-bit floats -------------------------------------------------------------------------

#if defined(__x86_64__)
#define F16C __attribute__((target("avx2,f16c")))
typedef int32_t m8 __attribute__((vector_size(32)));

static inline F16C __m256 from_half(const char *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline F16C __m256 from_bfloat(const char *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// Returns the lower halves of 8 words, whose upper halves must be 0.
static inline F16C __m128i narrow(__m256i u)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1));
}

// Replaces every NaN of x in `bits` by the NaN with the bits `which`, with the sign of x. Usually x
// has no NaN, which one test shows.
static inline F16C __m128i one_nan(__m128i bits, __m256 x, int which)
{
    __m256i mask = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    if (_mm256_testz_si256(mask, mask))
        return bits;
    __m128i sign = _mm_slli_epi16(narrow(_mm256_srli_epi32(_mm256_castps_si256(x), 31)), 15);
    __m128i nan = _mm_or_si128(sign, _mm_set1_epi16((short)which));
    return _mm_blendv_epi8(
        bits, nan,
        _mm_packs_epi32(_mm256_castsi256_si128(mask), _mm256_extracti128_si256(mask, 1)));
}

static inline F16C __m128i to_half(__m256 x)
{
    return one_nan(_mm256_cvtps_ph(x, 0), x, 0x7E00);
}

static inline F16C __m128i to_bfloat(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return one_nan(narrow(_mm256_srli_epi32(u, 16)), x, 0x7FC0);
}

// Converts sixteen float16 numbers.
static inline AVX512 __m512 from_half_16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline AVX512 __m512 from_bfloat_16(const char *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// Returns the lower halves of sixteen words, with NaNs replaced as by one_nan.
static inline AVX512 __m256i one_nan_16(__m512i words, __m512 x, int which)
{
    __mmask16 mask = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    if (mask == 0)
        return _mm512_cvtepi32_epi16(words);
    __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(_mm512_castps_si512(x), 31), 15);
    words = _mm512_mask_or_epi32(words, mask, sign, _mm512_set1_epi32(which));
    return _mm512_cvtepi32_epi16(words);
}

static inline AVX512 __m256i to_half_16(__m512 x)
{
    __m256i bits = _mm512_cvtps_ph(x, 0);
    if (_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) == 0)
        return bits;
    return one_nan_16(_mm512_cvtepu16_epi32(bits), x, 0x7E00);
}

static inline AVX512 __m256i to_bfloat_16(__m512 x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return one_nan_16(_mm512_srli_epi32(u, 16), x, 0x7FC0);
}

// V: a vector of floats, M: integers of the same width, H: the same numbers with 16 bits, as
// stored.
#define PASS16(name, target, V, M, H, FROM, TO, OP)                                                \
    static target size_t name(const char *const *in, int n, char *const *out, int n_out,           \
                              size_t at, size_t end, bool past)                                    \
    {                                                                                              \
        (void)past;                                                                                \
        for (; at + 4 * sizeof(H) <= end; at += 4 * sizeof(H)) {                                   \
            V a = FROM(in[0] + at), b = FROM(in[0] + at + sizeof(H));                              \
            V c = FROM(in[0] + at + 2 * sizeof(H)), d = FROM(in[0] + at + 3 * sizeof(H));          \
            for (int r = 1; r < n; r++) {                                                          \
                V x = FROM(in[r] + at), y = FROM(in[r] + at + sizeof(H));                          \
                V z = FROM(in[r] + at + 2 * sizeof(H)), w = FROM(in[r] + at + 3 * sizeof(H));      \
                a = OP(V, M, a, x);                                                                \
                b = OP(V, M, b, y);                                                                \
                c = OP(V, M, c, z);                                                                \
                d = OP(V, M, d, w);                                                                \
            }                                                                                      \
            H h = TO(a), i = TO(b), j = TO(c), k = TO(d);                                          \
            for (int o = 0; o < n_out; o++) {                                                      \
                memcpy(out[o] + at, &h, sizeof(H));                                                \
                memcpy(out[o] + at + sizeof(H), &i, sizeof(H));                                    \
                memcpy(out[o] + at + 2 * sizeof(H), &j, sizeof(H));                                \
                memcpy(out[o] + at + 3 * sizeof(H), &k, sizeof(H));                                \
            }                                                                                      \
        }                                                                                          \
        return at;                                                                                 \
    }
#define PASSES16(kind, target, V, M, H, half, bfloat)                                              \
    PASS16(sum_half_##kind, target, V, M, H, from_##half, to_##half, ADD)                          \
    PASS16(max_half_##kind, target, V, M, H, from_##half, to_##half, FMAX)                         \
    PASS16(min_half_##kind, target, V, M, H, from_##half, to_##half, FMIN)                         \
    PASS16(sum_bfloat_##kind, target, V, M, H, from_##bfloat, to_##bfloat, ADD)                    \
    PASS16(max_bfloat_##kind, target, V, M, H, from_##bfloat, to_##bfloat, FMAX)                   \
    PASS16(min_bfloat_##kind, target, V, M, H, from_##bfloat, to_##bfloat, FMIN)                   \
    static pass *const passes16_##kind[TSR_DTYPE_COUNT][COMM_REDUCE_COUNT] = {                     \
        [TSR_FLOAT16] = {[COMM_SUM] = sum_half_##kind,                                             \
                         [COMM_MAX] = max_half_##kind,                                             \
                         [COMM_MIN] = min_half_##kind},                                            \
        [TSR_BFLOAT16] = {[COMM_SUM] = sum_bfloat_##kind,                                          \
                          [COMM_MAX] = max_bfloat_##kind,                                          \
                          [COMM_MIN] = min_bfloat_##kind},                                         \
    };
PASSES16(avx2, F16C, __m256, m8, __m128i, half, bfloat)
PASSES16(avx512, AVX512, __m512, i32, __m256i, half_16, bfloat_16)
#endif

// ---- choosing the vector code -------------------------------------------------------------------

int tsr__reduce_level(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return 2;
    if (__builtin_cpu_supports("avx2")) // implies F16C
        return 1;
#endif
    return 0;
}

// Returns the vector code for a type and operation. NULL: there is none.
static pass *pass_of(int level, tsr_dtype type, enum comm_reduce op)
{
#if defined(__x86_64__)
    if (level == 2)
        return passes16_avx512[type][op] ? passes16_avx512[type][op] : passes_avx512[type][op];
    if (level == 1)
        return passes16_avx2[type][op] ? passes16_avx2[type][op] : passes_avx2[type][op];
#endif
    (void)level;
    return passes_plain[type][op];
}

// True if a cache line begins at offset `at` of every output: non-temporal stores need full lines.
static bool lined_up(char *const *out, int n_out, size_t at)
{
    uintptr_t bits = 0;
    for (int o = 0; o < n_out; o++)
        bits |= (uintptr_t)(out[o] + at);
    return bits % 64 == 0;
}

// Folds with vector instructions. Up to LINES - 1 bytes at the end are left to the caller. The
// fence makes non-temporal stores visible before the ranks synchronize.
size_t tsr__reduce_wide(int level, tsr_dtype type, enum comm_reduce op, const char *const *in,
                        int n, char *const *out, int n_out, size_t at, size_t end, bool large)
{
    pass *f = pass_of(level, type, op);
    if (!f)
        return at;
    bool past = level == 2 && large && lined_up(out, n_out, at);
    at = f(in, n, out, n_out, at, end, past);
#if defined(__x86_64__)
    if (past)
        _mm_sfence();
#endif
    return at;
}
