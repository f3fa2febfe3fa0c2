// SPDX-License-Identifier: Apache-2.0
// dtype.c - names and sizes of the ONNX element types.
#include "base/base.h"

// Indexed by ONNX's type numbers. 0 bits: no fixed size. A bool is a byte, as ONNX stores it.
static const struct {
    const char *name;
    int bits;
} types[TSR_DTYPE_COUNT] = {
    [TSR_UNDEFINED] = {"undefined", 0},
    [TSR_FLOAT] = {"float32", 32},
    [TSR_UINT8] = {"uint8", 8},
    [TSR_INT8] = {"int8", 8},
    [TSR_UINT16] = {"uint16", 16},
    [TSR_INT16] = {"int16", 16},
    [TSR_INT32] = {"int32", 32},
    [TSR_INT64] = {"int64", 64},
    [TSR_STRING] = {"string", 0},
    [TSR_BOOL] = {"bool", 8},
    [TSR_FLOAT16] = {"float16", 16},
    [TSR_DOUBLE] = {"float64", 64},
    [TSR_UINT32] = {"uint32", 32},
    [TSR_UINT64] = {"uint64", 64},
    [TSR_COMPLEX64] = {"complex64", 64},
    [TSR_COMPLEX128] = {"complex128", 128},
    [TSR_BFLOAT16] = {"bfloat16", 16},
    [TSR_FLOAT8E4M3FN] = {"float8e4m3fn", 8},
    [TSR_FLOAT8E4M3FNUZ] = {"float8e4m3fnuz", 8},
    [TSR_FLOAT8E5M2] = {"float8e5m2", 8},
    [TSR_FLOAT8E5M2FNUZ] = {"float8e5m2fnuz", 8},
    [TSR_UINT4] = {"uint4", 4},
    [TSR_INT4] = {"int4", 4},
    [TSR_FLOAT4E2M1] = {"float4e2m1", 4},
    [TSR_FLOAT8E8M0] = {"float8e8m0", 8},
    [TSR_UINT2] = {"uint2", 2},
    [TSR_INT2] = {"int2", 2},
    [TSR_FLOAT6E2M3] = {"float6e2m3", 6},
    [TSR_FLOAT6E3M2] = {"float6e3m2", 6},
};

const char *tsr_dtype_name(tsr_dtype t)
{
    return (unsigned)t < TSR_DTYPE_COUNT ? types[t].name : "unknown";
}

tsr_dtype tsr__dtype_named(const char *name)
{
    for (int t = 1; name && t < TSR_DTYPE_COUNT; t++)
        if (strcmp(types[t].name, name) == 0)
            return (tsr_dtype)t;
    return TSR_UNDEFINED;
}

int tsr_dtype_bits(tsr_dtype t)
{
    return (unsigned)t < TSR_DTYPE_COUNT ? types[t].bits : 0;
}

// Returns the bytes of n elements; -1 for types without a fixed size, negative n and overflow.
// Example: five int4 take 3 bytes, and so do three float6 (18 bits).
int64_t tsr_dtype_bytes(tsr_dtype t, int64_t n)
{
    int64_t bits = tsr_dtype_bits(t), whole;
    if (!bits || n < 0)
        return -1;
    if (bits % 8 == 0) {
        return mul_ok(n, bits / 8, &whole) ? whole : -1;
    }
    // elements are packed from the low bits up; the last byte is padded
    return n / 8 * bits + (n % 8 * bits + 7) / 8;
}
