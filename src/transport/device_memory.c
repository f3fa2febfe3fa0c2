// SPDX-License-Identifier: Apache-2.0
// device_memory.c - what kernels do with their own GPU memory around a call: rows that are packed, scratch memory.
#include "transport/device.h"

tsr_status tsr__device_rows(struct endpoint *e, const struct comm_call *c,
                            const struct device_rows *r, struct comm_trouble *why)
{
    struct device_call k = {device_of(e), c, why, 0};
    struct gpu_rows rows = {.to = r->to,
                            .from = r->from,
                            .to_pitch = r->to_pitch,
                            .from_pitch = r->from_pitch,
                            .width = r->width,
                            .rows = r->rows};
    return tsr__device_code(&k, tsr__seat_rows(k.d->seat, &rows, c->stream), "copying");
}

tsr_status tsr__device_scratch(struct endpoint *e, const struct comm_call *c, int block,
                               size_t bytes, void **out, struct comm_trouble *why)
{
    struct device_call k = {device_of(e), c, why, 0};
    return tsr__device_code(&k, tsr__seat_scratch(k.d->seat, block, bytes, c->stream, out),
                            "what it sends");
}

tsr_status tsr__device_prepare(struct endpoint *e, const struct comm_call *c,
                               struct comm_trouble *why)
{
    struct device_call k = {device_of(e), c, why, 0};
    if (c->reduce == COMM_NONE)
        return TSR_OK;
    return tsr__device_code(&k, tsr__seat_prepare(k.d->seat, c->type, gpu_reduce_of(c->reduce)),
                            "compiling");
}

void *tsr__device_stand_in(struct endpoint *e)
{
    struct gpu_seat *seat = tsr__device_seat(e);
    return seat && tsr__gpu_stands_in(device_of(e)->gpu) ? tsr__seat_stream(seat) : NULL;
}

tsr_status tsr__device_wait(struct endpoint *e, const struct comm_call *c, struct comm_trouble *why)
{
    struct device_call k = {device_of(e), c, why, 0};
    return tsr__device_code(&k, tsr__seat_wait(k.d->seat, c->stream), "working");
}
