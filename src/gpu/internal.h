// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of gpu: the driver's functions, seats.
#ifndef TSR_GPU_INTERNAL_H
#define TSR_GPU_INTERNAL_H

#include "gpu/gpu.h"

typedef uint64_t device_address;

// Every driver function that is used, with its arguments.
#define GPU_FUNCTIONS(F)                                                                           \
    F(cuInit, (unsigned flags))                                                                    \
    F(cuDriverGetVersion, (int *out))                                                              \
    F(cuDeviceGetCount, (int *out))                                                                \
    F(cuDeviceGet, (int *out, int ordinal))                                                        \
    F(cuDeviceGetName, (char *out, int n, int device))                                             \
    F(cuDeviceGetUuid, (void *out, int device))                                                    \
    F(cuDeviceGetAttribute, (int *out, int attribute, int device))                                 \
    F(cuDevicePrimaryCtxRetain, (void **out, int device))                                          \
    F(cuDevicePrimaryCtxRelease_v2, (int device))                                                  \
    F(cuDeviceCanAccessPeer, (int *out, int device, int peer))                                     \
    F(cuCtxSetCurrent, (void *context))                                                            \
    F(cuCtxEnablePeerAccess, (void *context, unsigned flags))                                      \
    F(cuCtxSynchronize, (void))                                                                    \
    F(cuMemGetInfo_v2, (size_t * free, size_t * all))                                              \
    F(cuMemAlloc_v2, (device_address * out, size_t bytes))                                         \
    F(cuMemFree_v2, (device_address p))                                                            \
    F(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))                                  \
    F(cuMemFreeHost, (void *p))                                                                    \
    F(cuPointerGetAttribute, (void *out, int attribute, device_address p))                         \
    F(cuMemGetAddressRange_v2, (device_address * base, size_t * bytes, device_address p))          \
    F(cuMemcpyDtoHAsync_v2, (void *to, device_address from, size_t bytes, void *stream))           \
    F(cuMemcpyHtoDAsync_v2, (device_address to, const void *from, size_t bytes, void *stream))     \
    F(cuMemcpyDtoDAsync_v2, (device_address to, device_address from, size_t bytes, void *stream))  \
    F(cuStreamCreate, (void **out, unsigned flags))                                                \
    F(cuStreamDestroy_v2, (void *stream))                                                          \
    F(cuStreamSynchronize, (void *stream))                                                         \
    F(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                              \
    F(cuEventCreate, (void **out, unsigned flags))                                                 \
    F(cuEventDestroy_v2, (void *event))                                                            \
    F(cuEventRecord, (void *event, void *stream))                                                  \
    F(cuEventSynchronize, (void *event))                                                           \
    F(cuModuleLoadData, (void **out, const void *image))                                           \
    F(cuModuleUnload, (void *module))                                                              \
    F(cuModuleGetFunction, (void **out, void *module, const char *name))                           \
    F(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,          \
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,      \
                       void *stream, void **arguments, void **extra))                              \
    F(cuGetErrorName, (int code, const char **out))                                                \
    F(cuGetErrorString, (int code, const char **out))                                              \
    F(cuIpcGetMemHandle, (struct gpu_handle * out, device_address p))                              \
    F(cuIpcOpenMemHandle_v2, (device_address * out, struct gpu_handle handle, unsigned flags))     \
    F(cuIpcCloseMemHandle, (device_address p))                                                     \
    F(cuIpcGetEventHandle, (struct gpu_handle * out, void *event))                                 \
    F(cuIpcOpenEventHandle, (void **out, struct gpu_handle handle))

#define NCCL_FUNCTIONS(F)                                                                          \
    F(ncclGetVersion, (int *out))                                                                  \
    F(ncclGetUniqueId, (struct nccl_id * out))                                                     \
    F(ncclCommInitRank, (void **out, int members, struct nccl_id id, int self))                    \
    F(ncclCommDestroy, (void *comm))                                                               \
    F(ncclCommAbort, (void *comm))                                                                 \
    F(ncclAllReduce,                                                                               \
      (const void *in, void *out, size_t count, int type, int op, void *comm, void *stream))       \
    F(ncclSend, (const void *p, size_t count, int type, int peer, void *comm, void *stream))       \
    F(ncclRecv, (void *p, size_t count, int type, int peer, void *comm, void *stream))             \
    F(ncclGroupStart, (void))                                                                      \
    F(ncclGroupEnd, (void))

// Without one of these, groups use the others.
#define NCCL_COLLECTIVES(F)                                                                        \
    F(ncclAllGather,                                                                               \
      (const void *in, void *out, size_t count, int type, void *comm, void *stream))               \
    F(ncclReduceScatter,                                                                           \
      (const void *in, void *out, size_t count, int type, int op, void *comm, void *stream))       \
    F(ncclBroadcast,                                                                               \
      (const void *in, void *out, size_t count, int type, int root, void *comm, void *stream))     \
    F(ncclReduce, (const void *in, void *out, size_t count, int type, int op, int root,            \
                   void *comm, void *stream))

#define GPU_FUNCTION(name, arguments) int(*name) arguments;
struct gpu {
    GPU_FUNCTIONS(GPU_FUNCTION)
    NCCL_FUNCTIONS(GPU_FUNCTION)
    NCCL_COLLECTIVES(GPU_FUNCTION)
    const char *(*ncclGetErrorString)(int code);
    void *driver, *nccl; // nccl NULL: not available
    int count, version, nccl_version;
    bool nccl_collectives; // all of NCCL_COLLECTIVES
    bool stands_in;
};
#undef GPU_FUNCTION

#define GPU_NO_ADDRESS 1 // CUDA_ERROR_INVALID_VALUE: for errors that this module detects itself

// Loads both libraries and starts the driver, but creates no context. Without NCCL, gpu->nccl is
// NULL. Returns false with the reason in `why` if the driver is missing or does not start.
bool tsr__gpu_load(const struct gpu_libraries *libraries, struct gpu *gpu, char *why, size_t n);

struct kernels {
    void *module, *wide, *single; // single: one element per thread
};
// A block of another process that is open here.
struct imported {
    struct gpu_block block;
    device_address at;
};
// What one rank uses on its GPU: context, stream, kernels and buffers.
struct gpu_seat {
    tsr_session *session;
    const struct gpu *gpu;
    int card, device;
    void *context, *stream, *upwards;
    char id[GPU_ID_BYTES];
    void *events[GPU_EVENTS];
    void *steps[GPU_STEPS]; // positions of copies between host and device
    struct kernels folds[TSR_DTYPE_COUNT][GPU_REDUCE_COUNT];
    void *rows_module, *rows[5]; // units of 1, 2, 4, 8, 16 bytes
    void *copies;                // of the same module
    struct {
        void *p;
        size_t bytes;
    } scratch[3], pinned;
    struct arena arena;
    VEC(struct imported) imported;
    VEC(void *) imported_events;
};

// ptx.c: the kernels of one reduction ("wide" and "single"), and those that copy rows ("rows1" ..
// "rows16") and several tensors ("copies").
void tsr__ptx_fold(struct text *text, tsr_dtype type, enum gpu_reduce reduce);
void tsr__ptx_rows(struct text *text);
// Arguments of the kernels; the PTX reads them at these offsets.
struct fold_arguments {
    uint64_t count; // 16-byte blocks, or elements
    uint32_t n_in, n_out;
    uint64_t in[GPU_MAX_MEMBERS], out[GPU_MAX_MEMBERS];
};
struct rows_arguments {
    uint64_t to, from, to_pitch, from_pitch;
    uint32_t per_row, n; // units per row, and in total
};
// Read by the kernel "copies", whose argument is the address of the list.
struct copies_list {
    uint64_t to[GPU_COPIES], from[GPU_COPIES];
    uint32_t units[GPU_COPIES], copied[GPU_COPIES];
};

#define GPU_BLOCK 256 // threads

static inline device_address address(const void *p)
{
    return (device_address)(uintptr_t)p;
}

#endif
