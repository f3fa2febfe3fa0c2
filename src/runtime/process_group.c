// SPDX-License-Identifier: Apache-2.0
// process_group.c - the processes of a job as a group, without a job: barrier and broadcast.
//
// For programs in which rank 0 plans and partitions, and the other ranks wait and then load:
//
//     tsr_process_group_join      all ranks
//     tsr_partition               rank 0
//     tsr_process_group_barrier   all ranks: the files are complete
//     tsr_job_open                all ranks, over the connections of the group
//
// The connections belong to the session (tsr__run_join), so jobs that are opened later use them.
#include "runtime/internal.h"
#include "runtime/spawn.h"

struct tsr_process_group {
    tsr_session *session;
    struct endpoint *endpoint; // NULL: a single process
    uint64_t broadcasts;       // number of broadcasts, the same on all ranks
};

tsr_status tsr_process_group_join(tsr_session *session, const tsr_run_options *options,
                                  tsr_process_group **out)
{
    if (!session)
        return TSR_INVALID;
    tsr_run_options run_options;
    struct endpoint *endpoint = NULL;
    if (!out)
        return tsr__missing(session, "out");
    TRY(tsr__run_options(session, options, &run_options));
    if (!tsr__run_spawns(session, &run_options)) // the job starts children, not this call
        TRY(tsr__run_join(session, &run_options, &endpoint));
    tsr_process_group *group = tsr__alloc(session, sizeof *group);
    if (!group)
        return tsr__run_end(session, &run_options, TSR_NOMEM);
    *group = (tsr_process_group){.session = session, .endpoint = endpoint};
    *out = group;
    return TSR_OK;
}

int tsr_process_group_rank(const tsr_process_group *group)
{
    return group && group->endpoint ? group->endpoint->rank : 0;
}

int tsr_process_group_size(const tsr_process_group *group)
{
    return group && group->endpoint ? group->endpoint->size : 1;
}

tsr_status tsr_process_group_barrier(tsr_process_group *group)
{
    struct comm_trouble why = {0};
    if (!group)
        return TSR_USAGE;
    if (!group->endpoint)
        return TSR_OK;
    if (tsr__comm_barrier(group->endpoint, 0, "tsr_process_group_barrier", &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(group->session, &why);
}

tsr_status tsr_process_group_broadcast(tsr_process_group *group, void *buffer, size_t bytes,
                                       int root)
{
    struct comm_trouble why = {0};
    if (!group)
        return TSR_USAGE;
    if (!buffer && bytes)
        return tsr__missing(group->session, "buffer");
    if (root < 0 || root >= tsr_process_group_size(group)) {
        tsr__run_refuse(group->session, DIAG_argument_invalid, NULL, "use a rank of the group",
                        "the root of a broadcast must be a rank of the group");
        return TSR_INVALID;
    }
    if (!group->endpoint)
        return TSR_OK;
    struct comm_call call = {.kind = COMM_BROADCAST,
                             .run = group->broadcasts++,
                             .type = TSR_UINT8,
                             .count = (int64_t)bytes,
                             .op = "Broadcast",
                             .node = "tsr_process_group_broadcast"};
    if (tsr__comm_tell_all(group->endpoint, &call, root, buffer, bytes, &why) == TSR_OK)
        return TSR_OK;
    return tsr__run_peer_failed(group->session, &why);
}

tsr_status tsr_process_group_end(tsr_process_group *group, tsr_status status)
{
    if (!group || !group->endpoint)
        return status;
    return tsr__run_end(group->session, NULL, status);
}

void tsr_process_group_leave(tsr_process_group *group)
{
    if (group)
        tsr__free(group->session, group, sizeof *group);
}
