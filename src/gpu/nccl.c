// SPDX-License-Identifier: Apache-2.0
// nccl.c - NCCL's collectives, as far as they are used: all-reduce, and messages in groups.
#include "gpu/internal.h"

enum { NCCL_INT8 = 0, NCCL_NONE = -1 };

// NCCL's number of a type; bool is max and min of bytes, which are 0 and 1.
static int type_of(tsr_dtype type)
{
    switch (type) {
    case TSR_INT8:
        return 0;
    case TSR_UINT8:
        return 1;
    case TSR_INT32:
        return 2;
    case TSR_UINT32:
        return 3;
    case TSR_INT64:
        return 4;
    case TSR_UINT64:
        return 5;
    case TSR_FLOAT16:
        return 6;
    case TSR_FLOAT:
        return 7;
    case TSR_DOUBLE:
        return 8;
    case TSR_BFLOAT16:
        return 9;
    default:
        return NCCL_NONE;
    }
}

int tsr__nccl_version(const struct gpu *g)
{
    return g->nccl ? g->nccl_version : 0;
}

bool tsr__nccl_has(tsr_dtype type)
{
    return type_of(type) != NCCL_NONE;
}

int tsr__nccl_id(const struct gpu *g, struct nccl_id *out)
{
    return g->ncclGetUniqueId(out);
}

int tsr__nccl_join(const struct gpu_seat *seat, const struct nccl_id *id, int members, int self,
                   void **out)
{
    int code = tsr__seat_enter(seat);
    return code == 0 ? seat->gpu->ncclCommInitRank(out, members, *id, self) : code;
}

void tsr__nccl_leave(const struct gpu *g, void *comm, bool abort)
{
    if (!comm)
        return;
    if (abort)
        g->ncclCommAbort(comm);
    else
        g->ncclCommDestroy(comm);
}

int tsr__nccl_all_reduce(const struct gpu *g, void *comm, const struct gpu_fold *f, void *stream)
{
    static const int ops[GPU_REDUCE_COUNT] = {
        [GPU_SUM] = 0, [GPU_PROD] = 1, [GPU_MAX] = 2, [GPU_MIN] = 3};
    return g->ncclAllReduce(f->in[0], f->out[0], (size_t)f->count, type_of(f->type), ops[f->reduce],
                            comm, stream);
}

int tsr__nccl_exchange(const struct gpu *g, void *comm, const struct nccl_part *parts, int members,
                       int self, void *stream)
{
    int code = g->ncclGroupStart();
    if (code != 0)
        return code;
    for (int i = 0; i < members; i++) {
        const struct nccl_part *p = &parts[i];
        if (i == self)
            continue;
        if (p->send_bytes && code == 0)
            code = g->ncclSend(p->send, p->send_bytes, NCCL_INT8, i, comm, stream);
        if (p->recv_bytes && code == 0)
            code = g->ncclRecv(p->recv, p->recv_bytes, NCCL_INT8, i, comm, stream);
    }
    int ended = g->ncclGroupEnd();
    return code != 0 ? code : ended;
}

const char *tsr__nccl_words(const struct gpu *g, int code)
{
    const char *text = g->ncclGetErrorString ? g->ncclGetErrorString(code) : NULL;
    return text ? text : "an error without a name";
}
