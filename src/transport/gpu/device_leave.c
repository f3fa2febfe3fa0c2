// SPDX-License-Identifier: Apache-2.0
// device_leave.c - a rank that fails inside a call returns only when no other rank of its process
// accesses its memory any more.
#include "transport/gpu/device.h"

struct device *tsr__device_neighbour(const struct device_call *call, int member)
{
    return member == call->self ? NULL : device_here(call->device, call->call->group[member]);
}

bool tsr__device_touch(const struct device_call *call)
{
    atomic_store(&call->device->touching, true);
    for (int i = 0; i < call->call->n_group; i++) {
        struct device *other = tsr__device_neighbour(call, i);
        if (other && atomic_load(&other->left)) {
            tsr__device_touched(call);
            return false;
        }
    }
    return true;
}

void tsr__device_touched(const struct device_call *call)
{
    atomic_store(&call->device->touching, false);
}

// Leaves a call after a failure. Reports the failure first, so that ranks that wait for this one,
// in their threads or in NCCL kernels, continue. Then waits for every GPU on which a member could
// have enqueued work; errors of the driver are ignored.
tsr_status tsr__device_leave(const struct device_call *call, tsr_status st)
{
    struct device *device = call->device;
    if (st == TSR_OK)
        return TSR_OK;
    device->endpoint.transport->fail(&device->endpoint, call->why->status, call->why->rank,
                                     call->why->text);
    atomic_store(&device->left, true);
    for (int i = 0; i < call->call->n_group; i++) {
        struct device *other = tsr__device_neighbour(call, i);
        struct patience patience = {0};
        if (!other)
            continue;
        while (atomic_load(&other->touching))
            tsr__patience(&patience, true);
        tsr__seat_settle(other->seat);
    }
    tsr__seat_settle(device->seat);
    return st;
}
