// SPDX-License-Identifier: Apache-2.0
// nccl.c - the NCCL calls that are used: its collectives, and grouped send and receive.
//
// One member creates an id, which the user of this module sends to the others; all join with it.
// Sends and receives are grouped, so that no two members wait for each other.
#include "gpu/internal.h"

enum { NCCL_INT8 = 0, NCCL_NONE = -1 };

// Returns NCCL's number of a type. NCCL_NONE: NCCL cannot reduce it, for example bool and 16-bit
// integers.
static int type_of(tsr_dtype type)
{
    static const tsr_dtype types[] = {TSR_INT8,   TSR_UINT8,   TSR_INT32, TSR_UINT32, TSR_INT64,
                                      TSR_UINT64, TSR_FLOAT16, TSR_FLOAT, TSR_DOUBLE, TSR_BFLOAT16};
    for (int i = 0; i < (int)TSR_COUNT(types); i++)
        if (types[i] == type)
            return i;
    return NCCL_NONE;
}

int tsr__nccl_version(const struct gpu *gpu)
{
    return gpu->nccl ? gpu->nccl_version : 0;
}

bool tsr__nccl_has(tsr_dtype type)
{
    return type_of(type) != NCCL_NONE;
}

bool tsr__nccl_collectives(const struct gpu *gpu)
{
    return gpu->nccl && gpu->nccl_collectives;
}

int tsr__nccl_id(const struct gpu *gpu, struct nccl_id *out)
{
    return gpu->ncclGetUniqueId(out);
}

void tsr__nccl_leave(const struct gpu *gpu, void *comm, bool abort)
{
    if (!comm)
        return;
    if (abort)
        gpu->ncclCommAbort(comm);
    else
        gpu->ncclCommDestroy(comm);
}

// NCCL's numbers of the reductions.
static const int ops[GPU_REDUCE_COUNT] = {
    [GPU_SUM] = 0, [GPU_PROD] = 1, [GPU_MAX] = 2, [GPU_MIN] = 3};

int tsr__nccl_all_reduce(const struct gpu *gpu, void *comm, const struct gpu_fold *fold,
                         void *stream)
{
    return gpu->ncclAllReduce(fold->in[0], fold->out[0], (size_t)fold->count, type_of(fold->type),
                              ops[fold->reduce], comm, stream);
}

int tsr__nccl_reduce_scatter(const struct gpu *gpu, void *comm, const struct gpu_fold *fold,
                             void *stream)
{
    return gpu->ncclReduceScatter(fold->in[0], fold->out[0], (size_t)fold->count,
                                  type_of(fold->type), ops[fold->reduce], comm, stream);
}

int tsr__nccl_reduce(const struct gpu *gpu, void *comm, const struct gpu_fold *fold, int root,
                     void *stream)
{
    return gpu->ncclReduce(fold->in[0], fold->out[0], (size_t)fold->count, type_of(fold->type),
                           ops[fold->reduce], root, comm, stream);
}

int tsr__nccl_all_gather(const struct gpu *gpu, void *comm, const void *in, void *out, size_t bytes,
                         void *stream)
{
    return gpu->ncclAllGather(in, out, bytes, NCCL_INT8, comm, stream);
}

int tsr__nccl_broadcast(const struct gpu *gpu, void *comm, void *p, size_t bytes, int root,
                        void *stream)
{
    return gpu->ncclBroadcast(p, p, bytes, NCCL_INT8, root, comm, stream);
}

// Sends a part to each other member and receives one from it. The caller copies the part of `self`
// for itself. The group of calls is ended also after a failure; otherwise the next call would be
// part of it.
int tsr__nccl_exchange(const struct gpu *gpu, void *comm, const struct nccl_part *parts,
                       int members, int self, void *stream)
{
    int code = gpu->ncclGroupStart();
    if (code != 0)
        return code;
    for (int i = 0; i < members; i++) {
        const struct nccl_part *part = &parts[i];
        if (i == self)
            continue;
        if (part->send_bytes && code == 0)
            code = gpu->ncclSend(part->send, part->send_bytes, NCCL_INT8, i, comm, stream);
        if (part->recv_bytes && code == 0)
            code = gpu->ncclRecv(part->recv, part->recv_bytes, NCCL_INT8, i, comm, stream);
    }
    int ended = gpu->ncclGroupEnd();
    return code != 0 ? code : ended;
}

const char *tsr__nccl_words(const struct gpu *gpu, int code)
{
    const char *text = gpu->ncclGetErrorString ? gpu->ncclGetErrorString(code) : NULL;
    return text ? text : "unknown error";
}
