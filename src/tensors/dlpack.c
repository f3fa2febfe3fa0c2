// SPDX-License-Identifier: Apache-2.0
// dlpack.c - imports tensors of other libraries without a copy, and exports copies of tensors, as
// DLPack's managed tensors.
//
// The structs below are the ABI of DLPack 0.8 (without a version field), which does not change any
// more. An imported tensor stays where it is, in host memory or on a GPU. Its deleter is called
// when the set frees it.
#include "tensors/tensors.h"

#include <stdlib.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};
struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    struct dl_type type;
    int64_t *shape, *strides; // in elements; strides NULL: row-major
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self); // may be NULL
};
_Static_assert(sizeof(struct dl_managed) == 64, "as DLPack has it on machines of 64 bits");

static const struct type_row {
    tsr_dtype type;
    uint8_t code, bits;
} types[] = {
    {TSR_FLOAT, DL_FLOAT, 32},
    {TSR_FLOAT16, DL_FLOAT, 16},
    {TSR_DOUBLE, DL_FLOAT, 64},
    {TSR_BFLOAT16, DL_BFLOAT, 16},
    {TSR_BOOL, DL_BOOL, 8},
    {TSR_INT8, DL_INT, 8},
    {TSR_INT16, DL_INT, 16},
    {TSR_INT32, DL_INT, 32},
    {TSR_INT64, DL_INT, 64},
    {TSR_UINT8, DL_UINT, 8},
    {TSR_UINT16, DL_UINT, 16},
    {TSR_UINT32, DL_UINT, 32},
    {TSR_UINT64, DL_UINT, 64},
    {TSR_COMPLEX64, DL_COMPLEX, 64},
    {TSR_COMPLEX128, DL_COMPLEX, 128},
};

static tsr_dtype type_of(const struct dl_type *type)
{
    for (size_t i = 0; i < TSR_COUNT(types); i++)
        if (types[i].code == type->code && types[i].bits == type->bits && type->lanes == 1)
            return types[i].type;
    return TSR_UNDEFINED;
}

// True for row-major order. Example: 2 x 3 has strides 3, 1. Axes with one element may have any
// stride.
static bool contiguous(const struct dl_tensor *tensor)
{
    int64_t expected = 1;
    if (!tensor->strides)
        return true;
    for (int axis = tensor->ndim - 1; axis >= 0; axis--) {
        if (tensor->shape[axis] == 0)
            return true;
        if (tensor->shape[axis] != 1 && tensor->strides[axis] != expected)
            return false;
        if (!mul_ok(expected, tensor->shape[axis], &expected))
            return false;
    }
    return true;
}

// ---- import -------------------------------------------------------------------------------------

static tsr_status refuse_dlpack(tsr_tensors *tensors, const char *name, const char *what)
{
    return tsr__fail(tensors->session, TSR_UNSUPPORTED, DIAG_tensor_kind,
                     &PLACE(.value = str_of(name)), "give a contiguous array in host memory",
                     "the DLPack tensor cannot be used: %s", what);
}

static void release_managed(void *owner)
{
    struct dl_managed *managed = owner;
    if (managed->deleter)
        managed->deleter(managed);
}

// Adds a tensor of another library to the set without copying it. If the tensor is refused, the
// caller still owns it. Otherwise its deleter is called once, when the set frees it.
tsr_status tsr_tensors_from_dlpack(tsr_tensors *tensors, const char *name, void *managed)
{
    TRY(tsr__given(tensors->session, "managed", managed));
    struct dl_managed *given = managed;
    const struct dl_tensor *tensor = &given->tensor;
    bool on_gpu = tensor->device_type == DL_CUDA;
    tsr_dtype type = type_of(&tensor->type);
    if (!on_gpu && tensor->device_type != DL_CPU && tensor->device_type != DL_CUDA_HOST)
        return refuse_dlpack(tensors, name, "it is neither in host memory nor on a CUDA GPU");
    if (on_gpu && (tensor->device_id < 0 || tensor->device_id >= TENSOR_MAX_CARD))
        return refuse_dlpack(tensors, name, "its GPU number is invalid");
    if (type == TSR_UNDEFINED)
        return refuse_dlpack(tensors, name, "its element type is not supported");
    if (tensor->ndim < 0 || tensor->ndim > RUN_MAX_RANK || !contiguous(tensor))
        return refuse_dlpack(tensors, name, "it is not contiguous");
    struct foreign foreign = {.data = (char *)tensor->data + tensor->byte_offset,
                              .release = release_managed,
                              .owner = given};
    if (on_gpu)
        foreign.device = 1 + tensor->device_id;
    return tsr__tensors_add_foreign(tensors, str_of(name), type, tensor->ndim, tensor->shape,
                                    &foreign);
}

// ---- export -------------------------------------------------------------------------------------

static void free_managed(struct dl_managed *managed)
{
    free(managed->context);
}

// Copies tensor i of the set for another library. The copy is one separate block of memory, so it
// may outlive the session, and any thread may free it.
tsr_status tsr_tensors_to_dlpack(const tsr_tensors *tensors, size_t i, void **out)
{
    TRY(tsr__given(tensors->session, "out", out));
    if (i >= tensors->n || tensors->at[i]->rank < 0)
        return TSR_INVALID;
    const struct tensor *tensor = tensors->at[i];
    TRY(tsr__tensor_on_host(tensors->session, tensor));
    struct dl_type type = {.lanes = 1};
    for (size_t k = 0; k < TSR_COUNT(types); k++)
        if (types[k].type == tensor->type) {
            type.code = types[k].code;
            type.bits = types[k].bits;
        }
    if (!type.bits)
        return tsr__fail(tensors->session, TSR_UNSUPPORTED, DIAG_tensor_kind,
                         &PLACE(.value = str_of(tensor->name)), NULL,
                         "DLPack does not support elements of type %s",
                         tsr_dtype_name(tensor->type));
    size_t head =
        (sizeof(struct dl_managed) + (size_t)tensor->rank * sizeof(int64_t) + 63) / 64 * 64;
    char *block = aligned_alloc(64, head + (tensor->bytes + 63) / 64 * 64 + 64);
    if (!block)
        return TSR_NOMEM;
    struct dl_managed *managed = (struct dl_managed *)block;
    int64_t *shape = (int64_t *)(block + sizeof *managed);
    for (int axis = 0; axis < tensor->rank; axis++)
        shape[axis] = tensor->dims[axis];
    if (tensor->bytes)
        memcpy(block + head, tensor->data, tensor->bytes);
    *managed = (struct dl_managed){.context = block, .deleter = free_managed};
    managed->tensor = (struct dl_tensor){.data = block + head,
                                         .device_type = DL_CPU,
                                         .ndim = tensor->rank,
                                         .type = type,
                                         .shape = shape};
    *out = managed;
    return TSR_OK;
}
