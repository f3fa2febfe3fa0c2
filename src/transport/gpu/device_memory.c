// SPDX-License-Identifier: Apache-2.0
// device_memory.c - copies of rows, scratch memory and kernels on a rank's GPU, for code that
// prepares calls.
#include "transport/gpu/device.h"

tsr_status tsr__device_rows(struct endpoint *endpoint, const struct comm_call *call,
                            const struct device_rows *device_rows, struct comm_trouble *why)
{
    struct device_call k = {.device = device_of(endpoint), .call = call, .why = why};
    struct gpu_rows rows = {.to = device_rows->to,
                            .from = device_rows->from,
                            .to_pitch = device_rows->to_pitch,
                            .from_pitch = device_rows->from_pitch,
                            .width = device_rows->width,
                            .rows = device_rows->rows};
    return tsr__device_code(&k, tsr__seat_rows(k.device->seat, &rows, call->stream), "copying");
}

tsr_status tsr__device_scratch(struct endpoint *endpoint, const struct comm_call *call, int block,
                               size_t bytes, void **out, struct comm_trouble *why)
{
    struct device_call k = {.device = device_of(endpoint), .call = call, .why = why};
    return tsr__device_code(&k, tsr__seat_scratch(k.device->seat, block, bytes, call->stream, out),
                            "the data to send");
}

tsr_status tsr__device_prepare(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_trouble *why)
{
    struct device_call k = {.device = device_of(endpoint), .call = call, .why = why};
    if (call->reduce == COMM_NONE)
        return TSR_OK;
    return tsr__device_code(
        &k, tsr__seat_prepare(k.device->seat, call->type, gpu_reduce_of(call->reduce)),
        "compiling");
}

tsr_status tsr__device_wait(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why)
{
    struct device_call k = {.device = device_of(endpoint), .call = call, .why = why};
    return tsr__device_code(&k, tsr__seat_wait(k.device->seat, call->stream), "working");
}
