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
    int64_t *ranks;            // 0, 1, ... size - 1
    uint64_t broadcasts;       // number of broadcasts, the same on all ranks
};

static int size_of(const struct endpoint *endpoint)
{
    if (endpoint)
        return endpoint->size;
    return 1;
}

static void free_group(tsr_process_group *group)
{
    size_t ranks = (size_t)size_of(group->endpoint);
    tsr__free(group->session, group->ranks, ranks * sizeof *group->ranks);
    tsr__free(group->session, group, sizeof *group);
}

static tsr_process_group *new_group(tsr_session *session, struct endpoint *endpoint)
{
    size_t ranks = (size_t)size_of(endpoint);
    tsr_process_group *group = tsr__alloc(session, sizeof *group);
    if (!group)
        return NULL;
    *group = (tsr_process_group){.session = session, .endpoint = endpoint};
    group->ranks = tsr__alloc(session, ranks * sizeof *group->ranks);
    if (!group->ranks) {
        tsr__free(session, group, sizeof *group);
        return NULL;
    }
    for (size_t i = 0; i < ranks; i++)
        group->ranks[i] = (int64_t)i;
    return group;
}

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
    tsr_process_group *group = new_group(session, endpoint);
    if (!group)
        return tsr__run_end(session, &run_options, TSR_NOMEM);
    *out = group;
    return TSR_OK;
}

int tsr_process_group_rank(const tsr_process_group *group)
{
    if (group && group->endpoint)
        return group->endpoint->rank;
    return 0;
}

int tsr_process_group_size(const tsr_process_group *group)
{
    if (group)
        return size_of(group->endpoint);
    return 1;
}

// Reports the failure of a call as that of the rank that caused it.
static tsr_status report(tsr_process_group *group, const struct comm_trouble *why)
{
    struct place at = PLACE_NONE;
    at.rank = why->rank;
    tsr__diag(group->session, DIAG_rank_failed, &at, "see the messages of that rank", "%s",
              why->text);
    if (why->status == TSR_OK)
        return TSR_PEER;
    return why->status;
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
    return report(group, &why);
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
                             .group = group->ranks,
                             .n_group = group->endpoint->size,
                             .op = "Broadcast",
                             .node = "tsr_process_group_broadcast"};
    if (tsr__comm_broadcast(group->endpoint, &call, root, buffer, bytes, &why) == TSR_OK)
        return TSR_OK;
    return report(group, &why);
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
        free_group(group);
}
