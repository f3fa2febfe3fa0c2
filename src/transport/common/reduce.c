// SPDX-License-Identifier: Apache-2.0
// reduce.c - folds elements of several ranks, in group order, in blocks that stay in the cache.
//
// The result of an element depends only on its inputs and their order, not on how the tensor was
// sliced. So all transports give the same bits. Blocks of fixed length let the compiler use
// vectors.
//
// Example: three ranks with 1e8, 1 and -1e8 as float32: (1e8 + 1) - 1e8 is 0 in this order, but 1
// in the order 1e8, -1e8, 1. So the order is always that of the group.
#include "transport/common/internal.h"

#define BLOCK 1024 // elements folded at a time
#define STEP  16   // elements of the innermost loop

// ---- one block: acc[i] := acc[i] op x[i] --------------------------------------------------------

#define FADD(a, x) ((a) + (x))
#define FMUL(a, x) ((a) * (x))
#define FMAX(a, x) ((x) > (a) || ((x) != (x) && (a) == (a)) ? (x) : (a))
#define FMIN(a, x) ((x) < (a) || ((x) != (x) && (a) == (a)) ? (x) : (a))
#define IADD(a, x) ((uint64_t)(a) + (uint64_t)(x)) // wraps, whatever the sign
#define IMUL(a, x) ((uint64_t)(a) * (uint64_t)(x))
#define IMAX(a, x) ((x) > (a) ? (x) : (a))
#define IMIN(a, x) ((x) < (a) ? (x) : (a))
#define OR(a, x)   ((a) | (x))
#define AND(a, x)  ((a) & (x))

#define LOOP(T, OP)                                                                                \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + STEP <= n; i += STEP)                                                           \
            for (size_t k = i; k < i + STEP; k++)                                                  \
                acc[k] = (T)OP(acc[k], x[k]);                                                      \
        for (; i < n; i++)                                                                         \
            acc[i] = (T)OP(acc[i], x[i]);                                                          \
    } while (0)

#define FOLD(name, T, ADD, MUL, MAX, MIN)                                                          \
    static void name(void *to, const void *from, size_t n, enum comm_reduce op)                    \
    {                                                                                              \
        T *restrict acc = to;                                                                      \
        const T *restrict x = from;                                                                \
        switch (op) {                                                                              \
        case COMM_MAX:                                                                             \
            LOOP(T, MAX);                                                                          \
            break;                                                                                 \
        case COMM_MIN:                                                                             \
            LOOP(T, MIN);                                                                          \
            break;                                                                                 \
        case COMM_PROD:                                                                            \
            LOOP(T, MUL);                                                                          \
            break;                                                                                 \
        default:                                                                                   \
            LOOP(T, ADD);                                                                          \
            break;                                                                                 \
        }                                                                                          \
    }
#define FOLD_FLOAT(name, T) FOLD(name, T, FADD, FMUL, FMAX, FMIN)
#define FOLD_INT(name, T)   FOLD(name, T, IADD, IMUL, IMAX, IMIN)

FOLD_FLOAT(fold_float, float)
FOLD_FLOAT(fold_double, double)
FOLD_INT(fold_int8, int8_t)
FOLD_INT(fold_uint8, uint8_t)
FOLD_INT(fold_int16, int16_t)
FOLD_INT(fold_uint16, uint16_t)
FOLD_INT(fold_int32, int32_t)
FOLD_INT(fold_uint32, uint32_t)
FOLD_INT(fold_int64, int64_t)
FOLD_INT(fold_uint64, uint64_t)
FOLD(fold_bool, uint8_t, OR, AND, OR, AND)

// ---- how a type is loaded, folded and stored ----------------------------------------------------

static void load_half(float *out, const void *from, size_t n)
{
    const uint16_t *x = from;
    for (size_t i = 0; i < n; i++)
        out[i] = half_to_float(x[i]);
}

static void store_half(void *to, const float *x, size_t n)
{
    uint16_t *out = to;
    for (size_t i = 0; i < n; i++)
        out[i] = float_to_half(x[i]);
}

static void load_bfloat(float *out, const void *from, size_t n)
{
    const uint16_t *x = from;
    for (size_t i = 0; i < n; i++)
        out[i] = bfloat_to_float(x[i]);
}

static void store_bfloat(void *to, const float *x, size_t n)
{
    uint16_t *out = to;
    for (size_t i = 0; i < n; i++)
        out[i] = float_to_bfloat(x[i]);
}

struct kernel {
    void (*fold)(void *acc, const void *x, size_t n, enum comm_reduce op);
    void (*load)(float *out, const void *from, size_t n); // NULL: folded in the stored type
    void (*store)(void *to, const float *x, size_t n);
};
// Types without a row cannot be reduced (tsr__reduce_ok).
static const struct kernel kernels[TSR_DTYPE_COUNT] = {
    [TSR_FLOAT] = {.fold = fold_float},
    [TSR_DOUBLE] = {.fold = fold_double},
    [TSR_INT8] = {.fold = fold_int8},
    [TSR_UINT8] = {.fold = fold_uint8},
    [TSR_INT16] = {.fold = fold_int16},
    [TSR_UINT16] = {.fold = fold_uint16},
    [TSR_INT32] = {.fold = fold_int32},
    [TSR_UINT32] = {.fold = fold_uint32},
    [TSR_INT64] = {.fold = fold_int64},
    [TSR_UINT64] = {.fold = fold_uint64},
    [TSR_BOOL] = {.fold = fold_bool},
    [TSR_FLOAT16] = {.fold = fold_float, .load = load_half, .store = store_half},
    [TSR_BFLOAT16] = {.fold = fold_float, .load = load_bfloat, .store = store_bfloat},
};

bool tsr__reduce_ok(tsr_dtype type, enum comm_reduce op)
{
    return (unsigned)type < TSR_DTYPE_COUNT && kernels[type].fold && op > COMM_NONE &&
           op < COMM_REDUCE_COUNT;
}

size_t tsr__elem_bytes(tsr_dtype type)
{
    int bits = tsr_dtype_bits(type);
    return bits > 0 && bits % 8 == 0 ? (size_t)bits / 8 : 0;
}

// Folds n <= BLOCK elements at byte offset `at` of every input into acc, in the element type of the
// inputs.
static void fold_block(const struct kernel *kernel, enum comm_reduce op, const void *const *in,
                       int n_in, size_t at, size_t bytes, size_t n, void *acc)
{
    if (!kernel->load) {
        memcpy(acc, (const char *)in[0] + at, n * bytes);
        for (int r = 1; r < n_in; r++)
            kernel->fold(acc, (const char *)in[r] + at, n, op);
        return;
    }
    float sum[BLOCK], x[BLOCK];
    kernel->load(sum, (const char *)in[0] + at, n);
    for (int r = 1; r < n_in; r++) {
        kernel->load(x, (const char *)in[r] + at, n);
        kernel->fold(sum, x, n, op);
    }
    kernel->store(acc, sum, n);
}

// Folds in blocks. This is a separate function, because its stack frame is large and small sums do
// not need it.
static __attribute__((noinline)) void fold_blocks(const struct kernel *kernel, enum comm_reduce op,
                                                  const void *const *in, int n, void *const *out,
                                                  int n_out, size_t bytes, int64_t first,
                                                  int64_t count)
{
    uint64_t acc[BLOCK]; // the widest element has 8 bytes
    for (int64_t i = first; i < first + count; i += BLOCK) {
        size_t m = (size_t)(first + count - i < BLOCK ? first + count - i : BLOCK);
        size_t at = (size_t)i * bytes;
        fold_block(kernel, op, in, n, at, bytes, m, acc);
        for (int o = 0; o < n_out; o++)
            memcpy((char *)out[o] + at, acc, m * bytes);
    }
}

// Sizes from which non-temporal stores are faster, found by measurement: of a slice, and of an
// output that is written in pieces.
#define LARGE_SLICE  ((size_t)4 << 20)
#define LARGE_OUTPUT ((size_t)16 << 20)

// Reduces a range of elements. Vector code handles the start; the rest, and types without vector
// code, go through blocks. in and out may overlap: each step reads all its inputs before it writes.
static void reduce(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                   void *const *out, int n_out, int64_t first, int64_t count, bool large)
{
    size_t bytes = tsr__elem_bytes(type);
    size_t from = (size_t)first * bytes, end = from + (size_t)count * bytes;
    size_t done = tsr__reduce_wide(tsr__reduce_level(), type, op, (const char *const *)in, n,
                                   (char *const *)out, n_out, from, end, large);
    first += (int64_t)((done - from) / bytes);
    count -= (int64_t)((done - from) / bytes);
    if (count > 0)
        fold_blocks(&kernels[type], op, in, n, out, n_out, bytes, first, count);
}

void tsr__reduce(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                 void *const *out, int n_out, int64_t first, int64_t count)
{
    bool large = (size_t)count * tsr__elem_bytes(type) >= LARGE_SLICE;
    reduce(type, op, in, n, out, n_out, first, count, large);
}

void tsr__reduce_piece(tsr_dtype type, enum comm_reduce op, const void *const *in, int n, void *out,
                       int64_t count, int64_t count_of_all)
{
    bool large = (size_t)count_of_all * tsr__elem_bytes(type) >= LARGE_OUTPUT;
    reduce(type, op, in, n, &out, 1, 0, count, large);
}

tsr_dtype tsr__partial_type(tsr_dtype type)
{
    return kernels[type].load ? TSR_FLOAT : type;
}

// Folds n elements from element `at` on as floats, for types that are not folded in their own type.
static void step_block(const struct kernel *kernel, enum comm_reduce op, const void *const *in,
                       int n_in, bool continues, bool last, void *out, size_t at, size_t n)
{
    float sum[BLOCK], x[BLOCK];
    if (continues)
        memcpy(sum, (const float *)in[0] + at, n * sizeof *sum);
    else
        kernel->load(sum, (const uint16_t *)in[0] + at, n);
    for (int r = 1; r < n_in; r++) {
        kernel->load(x, (const uint16_t *)in[r] + at, n);
        kernel->fold(sum, x, n, op);
    }
    if (last)
        kernel->store((uint16_t *)out + at, sum, n);
    else
        memcpy((float *)out + at, sum, n * sizeof *sum);
}

void tsr__reduce_step(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                      bool continues, bool last, void *out, int64_t count)
{
    if (!kernels[type].load) {
        tsr__reduce(type, op, in, n, &out, 1, 0, count);
        return;
    }
    for (int64_t i = 0; i < count; i += BLOCK)
        step_block(&kernels[type], op, in, n, continues, last, out, (size_t)i,
                   (size_t)(count - i < BLOCK ? count - i : BLOCK));
}
