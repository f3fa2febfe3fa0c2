// SPDX-License-Identifier: Apache-2.0
// device_call.c - what all GPU methods share: steps over the base endpoint, and error texts.
#include "transport/gpu/device.h"

// Converts an error code of the driver to a status, with a text in call->why. For code 2, "out of
// memory", the text states how much memory is free.
tsr_status tsr__device_code(const struct device_call *call, int code, const char *doing)
{
    if (code == 0)
        return TSR_OK;
    char words[160];
    int64_t available = 0, all = 0;
    int rank = call->device->endpoint.rank;
    tsr__gpu_words(call->device->gpu, code, words, sizeof words);
    if (code == 2 && call->device->seat &&
        tsr__seat_free_memory(call->device->seat, &available, &all) == 0)
        return tsr__trouble(call->why, TSR_PEER, rank,
                            "%s '%s' (id %lld): GPU %d of rank %d is out of memory for %s: %lld "
                            "MiB of %lld MiB are free",
                            call->call->op, call->call->node, (long long)call->call->id,
                            call->device->options.card, rank, doing, (long long)(available >> 20),
                            (long long)(all >> 20));
    return tsr__trouble(call->why, TSR_PEER, rank, "%s '%s' (id %lld): GPU %d of rank %d, %s: %s",
                        call->call->op, call->call->node, (long long)call->call->id,
                        call->device->options.card, rank, doing, words);
}

// Returns the call for one step over the base endpoint. The step becomes part of the detail, so
// that members at different steps of one call detect it.
struct comm_call tsr__device_step(const struct comm_call *call, uint64_t step)
{
    struct comm_call below = *call;
    below.detail = tsr__hash64(&step, sizeof step, call->detail);
    below.place = COMM_PLAIN;
    return below;
}

bool tsr__device_shared(const struct device *device, const int64_t *group, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(device->ranks[group[i]].gpu, device->ranks[group[j]].gpu, GPU_ID_BYTES) == 0)
                return true;
    return false;
}

int tsr__device_choose(const struct device_call *call)
{
    if (!call->exchange)
        return tsr__comm_choose(&call->device->endpoint, COMM_ALL_REDUCE, &call->shape);
    if (!call->exchange->collective)
        return -1;
    return tsr__comm_choose(&call->device->endpoint, call->call->kind, &call->shape);
}

tsr_status tsr__device_check_sizes(const struct device_call *call)
{
    for (int i = 0; i < call->call->n_group; i++) {
        size_t expected = call->exchange->recv[call->exchange->folded ? 0 : i].bytes;
        if (call->device->cards[i].bytes != expected)
            return tsr__device_other_size(call, i, expected);
    }
    return TSR_OK;
}

tsr_status tsr__device_other_size(const struct device_call *call, int member, size_t expected)
{
    return tsr__trouble_size(call->why, call->call, (int)call->call->group[member],
                             call->device->cards[member].bytes, call->device->endpoint.rank,
                             expected);
}

// Exchanges one word with every member; `theirs` has space for all. This is also a barrier: no
// member returns before all have reached this step.
tsr_status tsr__device_words(const struct device_call *call, uint64_t step, uint64_t mine,
                             uint64_t *theirs)
{
    struct device *device = call->device;
    struct comm_call comm_call = tsr__device_step(call->call, step);
    struct comm_buffer *send = device->buffers, *recv = device->buffers + device->endpoint.size;
    for (int i = 0; i < comm_call.n_group; i++) {
        send[i] = (struct comm_buffer){&mine, sizeof mine};
        recv[i] = (struct comm_buffer){&theirs[i], sizeof mine};
    }
    struct comm_exchange words = {.send = send, .recv = recv};
    return device->base->transport->exchange(device->base, &comm_call, &words, call->why);
}
