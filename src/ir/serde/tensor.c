// SPDX-License-Identifier: Apache-2.0
// tensor.c - type and shape of constants, decoded on demand, and their sizes.
//
// Examples of sizes:
//
//     TensorProto {dims [2,3], data_type 1, raw_data of 24 bytes}: float, 6 elements, 24 bytes
//     {dims [3], data_type 22 (int4)}: 3 elements of 4 bits, 2 bytes
#include "ir/serde/serde.h"

static void decode_dims(tsr_tensor *tensor, struct str body, uint32_t number)
{
    size_t n = tsr__wire_ints(body, number, NULL, 0);
    tensor->dims = ARENA_ARRAY(&tensor->model->arena, int64_t, n);
    if (tensor->dims && n <= INT32_MAX)
        tensor->rank = (int)tsr__wire_ints(body, number, tensor->dims, n);
}

// Sets the element type of the values, and the dims of the full tensor.
static void decode_sparse(tsr_tensor *tensor)
{
    struct str values = tsr__wire_bytes(tensor->sparse, F_SPARSE_TENSOR_VALUES, NULL);
    int64_t type = 0;
    tsr__wire_int(values, F_TENSOR_DATA_TYPE, &type);
    tensor->type = (int32_t)type;
    decode_dims(tensor, tensor->sparse, F_SPARSE_TENSOR_DIMS);
}

// Decodes type, shape and location of a tensor. An unknown `type` is kept as in the file.
void tsr__tensor_decode(tsr_tensor *tensor)
{
    if (tensor->decoded)
        return;
    tensor->decoded = true;
    if (tensor->sparse.n) {
        decode_sparse(tensor);
        return;
    }
    int64_t type = 0, location = 0;
    tsr__wire_int(tensor->body, F_TENSOR_DATA_TYPE, &type);
    tsr__wire_int(tensor->body, F_TENSOR_DATA_LOCATION, &location);
    tensor->type = (int32_t)type;
    tensor->external = location == 1;
    tensor->raw = tsr__wire_bytes(tensor->body, F_TENSOR_RAW_DATA, &tensor->has_raw);
    decode_dims(tensor, tensor->body, F_TENSOR_DIMS);
}

static tsr_tensor *ready(const tsr_tensor *tensor)
{
    tsr__tensor_decode((tsr_tensor *)tensor);
    return (tsr_tensor *)tensor;
}

tsr_dtype tsr_tensor_dtype(const tsr_tensor *tensor)
{
    int32_t type = ready(tensor)->type;
    return type > 0 && type < TSR_DTYPE_COUNT ? (tsr_dtype)type : TSR_UNDEFINED;
}

int tsr_tensor_rank(const tsr_tensor *tensor)
{
    return ready(tensor)->rank;
}

const int64_t *tsr_tensor_dims(const tsr_tensor *tensor)
{
    return ready(tensor)->dims;
}

bool tsr_tensor_is_external(const tsr_tensor *tensor)
{
    return ready(tensor)->external;
}

// Returns the number of elements; -1 if a dimension is negative or the product overflows. A
// dimension of 0 makes it 0: [0, 2^40, 2^40] is an empty tensor.
int64_t tsr_tensor_elements(const tsr_tensor *tensor)
{
    int64_t n = 1;
    bool zero = false, over = false;
    for (int i = 0; i < ready(tensor)->rank; i++) {
        int64_t dim = tensor->dims[i];
        if (dim < 0)
            return -1;
        if (dim == 0)
            zero = true;
        else
            over = over || !mul_ok(n, dim, &n);
    }
    if (zero)
        return 0;
    return over ? -1 : n;
}

// Returns the number of bytes; -1 for an invalid shape, and for types without a fixed size, such as
// strings.
int64_t tsr_tensor_bytes(const tsr_tensor *tensor)
{
    int64_t n = tsr_tensor_elements(tensor);
    return n < 0 ? -1 : tsr_dtype_bytes(tsr_tensor_dtype(tensor), n);
}
