// SPDX-License-Identifier: Apache-2.0
// forced.c - a topology with which the planner shards every node that can be sharded, although one
// device would be faster.
#include "internal.h"

#include <stdio.h>

#define UNSHARDED_PENALTY INT64_C(1000000000000) // picoseconds: more than any node saves

tsr_status tsr__topology_forced(tsr_session *session, const tsr_topology *real, int64_t devices,
                                tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "%lld",
             real ? (long long)tsr_topology_devices(real) : (long long)devices);
    TRY(tsr_topology_parse(session, text, out));
    (*out)->unsharded_penalty = UNSHARDED_PENALTY;
    if (!real)
        return TSR_OK;
    (*out)->memory_assumed = real->memory_assumed;
    (*out)->basis = real->basis;
    for (int i = 0; i < (*out)->n; i++) {
        (*out)->device[i].name = real->device[i].name;
        (*out)->device[i].memory = real->device[i].memory;
    }
    return TSR_OK;
}
