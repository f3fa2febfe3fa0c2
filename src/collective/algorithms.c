// SPDX-License-Identifier: Apache-2.0
// algorithms.c - which algorithm runs a collective: the rows of ALGORITHMS and their conditions.
//
// The transports run the row that this file returns, and topology predicts the time of the same
// row. What both must know, such as thresholds, is in the row.
#include "collective/collective.h"

size_t tsr__frame_room(int members)
{
    size_t others = members > 1 ? (size_t)members - 1 : 1;
    size_t share = NET_FRAME / others / 64 * 64;
    return share > NET_INLINE ? share : NET_INLINE;
}

static bool fits_mailbox(const struct comm_shape *shape)
{
    return shape->members == 2 && shape->bytes > 0 && shape->bytes <= MAILBOX_BYTES;
}

// True if the tensors of a host fit into the first message between two hosts.
static bool fits_first_ranks(const struct comm_shape *shape)
{
    return shape->bytes <= tsr__frame_room(shape->hosts) / (size_t)shape->most;
}

// True if a sum should go through the first ranks. They send the tensors of their host to all other
// hosts in one step; lanes send less, in a chain over the hosts and back. So lanes are faster from
// the size on whose additional bytes take as long as the additional steps.
static bool prefers_first_ranks(const struct comm_shape *shape)
{
    size_t sent = shape->bytes * (size_t)shape->most * (size_t)(shape->hosts - 1);
    size_t steps = 2 * (size_t)shape->hosts - 3;
    return fits_first_ranks(shape) && (!shape->in_order || sent <= steps * NET_STEP);
}

static bool prefers_lanes(const struct comm_shape *shape)
{
    bool sends_less = shape->members * (shape->hosts - 1) > shape->hosts * shape->hosts;
    return shape->in_order && sends_less && !fits_first_ranks(shape);
}

// Four members then need 6 messages instead of 12. With many members the head would be the
// bottleneck.
static bool prefers_head(const struct comm_shape *shape)
{
    return shape->crowded && shape->members > 2 && shape->members <= HEAD_MEMBERS &&
           shape->bytes <= NET_FRAME;
}

static bool has_nccl(const struct comm_shape *shape)
{
    return !shape->all_reduces_only;
}

#define ROW(path, function, name, what, condition)                                                 \
    static bool path##_##function(const struct comm_shape *shape)                                  \
    {                                                                                              \
        (void)shape;                                                                               \
        return condition;                                                                          \
    }
ALGORITHMS(ROW)
#undef ROW

static const struct comm_algorithm algorithms[] = {
#define ROW(path, function, name, what, condition)                                                 \
    {name, PATH_##path, COMM_##what, path##_##function},
    ALGORITHMS(ROW)
#undef ROW
};

bool tsr__algorithm_serves(const struct comm_algorithm *algorithm, enum comm_path path)
{
    bool by_messages = algorithm->path == PATH_MESSAGES && path == PATH_HOSTS;
    return algorithm->path == path || algorithm->path == PATH_EXCHANGE || by_messages;
}

const struct comm_algorithm *tsr__algorithm(enum comm_kind kind, const struct comm_shape *shape)
{
    for (size_t i = 0; i < TSR_COUNT(algorithms); i++)
        if (algorithms[i].kind == kind && tsr__algorithm_serves(&algorithms[i], shape->path) &&
            algorithms[i].applies(shape))
            return &algorithms[i];
    return NULL;
}

const struct comm_algorithm *tsr__algorithm_at(size_t i)
{
    return i < TSR_COUNT(algorithms) ? &algorithms[i] : NULL;
}

int tsr__algorithm_place(const struct comm_algorithm *algorithm)
{
    int place = 0;
    while (algorithm - place > algorithms && algorithm[-place - 1].path == algorithm->path)
        place++;
    return place;
}
