// SPDX-License-Identifier: Apache-2.0
// tensors.c - fuzzes tensor files: .npy, .npz, .pb. The first byte selects one. A tensor that was
// read must have as many bytes as its type and shape need, and be the same after saving and
// reading.
#include "fuzz.h"
#include "ir/ir.h"
#include "runtime/internal.h"

static void look_at(const tsr_tensors *t)
{
    for (size_t i = 0; i < tsr_tensors_count(t); i++) {
        size_t bytes = 0;
        const void *data = tsr_tensors_data(t, i, &bytes);
        int64_t elements = 1;
        if (tsr_tensors_rank(t, i) < 0 || tsr_tensors_dtype(t, i) == TSR_STRING)
            continue;
        for (int d = 0; d < tsr_tensors_rank(t, i); d++)
            MUST(mul_ok(elements, tsr_tensors_dims(t, i)[d], &elements));
        MUST((int64_t)bytes == tsr_dtype_bytes(tsr_tensors_dtype(t, i), elements));
        MUST(!bytes || data);
    }
}

static tsr_status read_pb(tsr_session *s, const uint8_t *data, size_t n, int wrapped)
{
    struct arena a;
    struct tensor_file f;
    tsr__arena_init(&a, s);
    tsr_status status = tsr__tensor_file_open(s, &a, fuzz_file(data, n), wrapped, &f);
    for (size_t i = 0; i < f.n && status == TSR_OK; i++) {
        const void *bytes;
        size_t size;
        (void)!tsr_tensor_data(f.at[i], &bytes, &size);
    }
    tsr__tensor_file_close(&f);
    tsr__arena_free(&a);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    int kind = data[0] % 6;
    tsr_session *s = fuzz_session(n);
    tsr_tensors *t;
    MUST(tsr_tensors_new(s, &t) == TSR_OK);
    tsr_status status;
    if (kind == 0)
        status = tsr__npy_read(t, STR("x"), "x.npy", (struct str){(const char *)data + 1, n - 1});
    else if (kind == 1)
        status = tsr__npz_read(t, fuzz_file(data + 1, n - 1));
    else
        status = read_pb(s, data + 1, n - 1, kind - 3);
    if (status == TSR_OK)
        look_at(t);
    tsr_tensors_free(t);
    fuzz_end(s, status);
    return 0;
}
