// SPDX-License-Identifier: Apache-2.0
// tensor_sparse.c - converts sparse initializers to dense ones on demand. The file is not changed.
//
//     Example: values [1, 2], indices [1, 7], dims [6, 4] is a 6 x 4 tensor in which elements 1 and
//     7 (in row-major order) are 1 and 2. Indices may also be coordinates: [[0, 1], [1, 3]] is the
//     same.
#include "ir/serde/serde.h"

// Limits of the dense size, because a few bytes can describe any number of zeros.
#define DENSE_FREE   (64 << 20) // bytes
#define DENSE_FACTOR 256        // times the stored size

// Returns the `values` or `indices` of a sparse tensor as a tensor. Diagnostics name the sparse
// one.
tsr_tensor tsr__sparse_part(const tsr_tensor *tensor, uint32_t number)
{
    tsr_tensor part = {.model = tensor->model, .value = tensor->value, .store = tensor->store};
    part.body = tsr__wire_bytes(tensor->sparse, number, NULL);
    return part;
}

static tsr_status wrong(const tsr_tensor *tensor, const char *what)
{
    return tsr__fail(tensor->model->session, TSR_MALFORMED, DIAG_tensor_sparse,
                     PLACE_AT(tsr__place_value(tensor->value)),
                     "export the model with a dense weight", "%s", what);
}

// Returns index i of a sparse tensor. Indices in the file are not aligned.
static int64_t index_at(const char *indices, int64_t i)
{
    int64_t index;
    memcpy(&index, indices + (size_t)i * sizeof index, sizeof index);
    return index;
}

// Returns the number of the element that entry i of the indices selects. Coordinates out of range
// give -1; the caller checks other indices.
static int64_t element_of(const tsr_tensor *tensor, const char *indices, bool coordinates,
                          int64_t i)
{
    if (!coordinates)
        return index_at(indices, i);
    int64_t at = 0;
    for (int dim = 0; dim < tensor->rank; dim++) {
        int64_t index = index_at(indices, i * tensor->rank + dim);
        if (index < 0 || index >= tensor->dims[dim])
            return -1;
        at = at * tensor->dims[dim] + index;
    }
    return at;
}

// Writes the values of a sparse tensor to their places in the dense one. If an element is given
// twice, the last value is used.
static tsr_status scatter(const tsr_tensor *tensor, const tsr_tensor *values,
                          const tsr_tensor *indices, char *out, size_t entry)
{
    int64_t n = tsr_tensor_elements(values), all = tsr_tensor_elements(tensor);
    bool coordinates = tsr_tensor_rank(indices) == 2;
    int64_t each = coordinates ? tensor->rank : 1, needed = 0; // indices per value
    if (tsr_tensor_dtype(indices) != TSR_INT64 || !mul_ok(n, each, &needed) ||
        tsr_tensor_elements(indices) != needed)
        return wrong(tensor, "the sparse tensor does not have one index per value");
    for (int64_t i = 0; i < n; i++) {
        int64_t at = element_of(tensor, indices->data, coordinates, i);
        if (at < 0 || at >= all)
            return wrong(tensor, "an index of the sparse tensor is outside of its shape");
        memcpy(out + (size_t)at * entry, (const char *)values->data + (size_t)i * entry, entry);
    }
    return TSR_OK;
}

tsr_status tsr__sparse_fill(tsr_tensor *tensor, const tsr_tensor *values, const tsr_tensor *indices,
                            int64_t bytes)
{
    int bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
    if (bits < 8)
        return wrong(tensor, "the elements of the sparse tensor are smaller than a byte");
    if ((uint64_t)bytes > DENSE_FREE + (values->bytes + indices->bytes) * (uint64_t)DENSE_FACTOR)
        return wrong(tensor, "the sparse tensor is too large to be converted");
    // allocated in the store, because copies of the constant may outlive the model
    char *out = arena_get(&tensor->model->store->arena, (size_t)bytes, 16); // zeros
    if (!out)
        return TSR_NOMEM;
    tsr_status st = scatter(tensor, values, indices, out, (size_t)bits / 8);
    tensor->data = out;
    return st;
}
