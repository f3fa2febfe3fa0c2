// SPDX-License-Identifier: Apache-2.0
// measure_links.c - times the transport: every pair of ranks, one after the other, then collectives
// over groups of each size, all groups at once.
//
// The first rank of a group chooses the number of repetitions after a trial and sends it to the
// others.
#include "measure/measure_rank.h"

#include <stdlib.h>

#define PING_BYTES   8
#define LINK_BYTES   ((size_t)4 << 20)
#define LEAST_TIMES  3
#define MOST_TIMES   400
#define SMALL_BYTES  ((int64_t)128 << 10)
#define CALLS_ON_END 8

const int64_t tsr__measure_bytes[MEASURE_POINTS] = {1 << 10, 16 << 10, 128 << 10,
                                                    1 << 20, 4 << 20,  16 << 20};

// Returns the 1/8 quantile. Example: of 16 times, the third smallest (index 2).
double tsr__measure_typical(double *times, size_t n)
{
    if (!n)
        return 0;
    qsort(times, n, sizeof *times, by_double);
    return times[n / 8];
}

static struct comm_call call_of(struct measure_rank *rank, const int64_t *group, int n,
                                enum comm_kind kind)
{
    return (struct comm_call){.plan = MEASURE_PLAN,
                              .id = rank->id,
                              .run = rank->calls++,
                              .kind = kind,
                              .type = TSR_FLOAT,
                              .group = group,
                              .n_group = n,
                              .op = "measure",
                              .node = "links"};
}

// Returns a call that transfers tensors, which are in the memory of the rank's device.
static struct comm_call tensor_call(struct measure_rank *rank, const int64_t *group, int n,
                                    enum comm_kind kind)
{
    struct comm_call call = call_of(rank, group, n, kind);
    tsr__measure_gpu_place(rank, &call);
    return call;
}

// Resets the call counter for a new group, so that all its members have the same count.
static void restart(struct measure_rank *rank, int64_t what)
{
    rank->id = -10 - what;
    rank->calls = 0;
}

// Computes the number of repetitions from the time of a trial. The first rank of the group computes
// it and sends it to the others.
static tsr_status choose_repetitions(struct measure_rank *rank, const int64_t *group, int n,
                                     double first, double seconds, int64_t *times,
                                     struct comm_trouble *why)
{
    *times = MOST_TIMES;
    if (first > 0 && seconds / first < MOST_TIMES)
        *times = (int64_t)(seconds / first);
    *times = int64_max(*times, LEAST_TIMES);
    struct comm_call call = call_of(rank, group, n, COMM_BROADCAST);
    call.type = TSR_UINT8;
    tsr_status st =
        tsr__comm_broadcast(rank->endpoint, &call, (int)group[0], times, sizeof *times, why);
    if (*times > MOST_TIMES) // the arrays hold no more
        *times = MOST_TIMES;
    return st;
}

// ---- pairs -------------------------------------------------------------------------------------

// Sends a message from the first rank of the pair to the second and back. *seconds is half of that
// time.
static tsr_status ping(struct measure_rank *rank, const int64_t *pair, void *p, size_t bytes,
                       double *seconds, struct comm_trouble *why)
{
    struct endpoint *endpoint = rank->endpoint;
    struct comm_incoming in = {.into = {.p = p, .bytes = bytes}};
    bool first = endpoint->rank == pair[0];
    int other = (int)pair[first];
    double began = tsr__now_s();
    for (int turn = 0; turn < 2; turn++) {
        struct comm_call call = tensor_call(rank, pair, 2, COMM_SEND);
        if ((turn == 0) == first)
            TRY(tsr__comm_send(endpoint, &call, other, p, bytes, NULL, why));
        else
            TRY(tsr__comm_recv(endpoint, &call, other, &in, why));
    }
    tsr_status st = tsr__measure_gpu_wait(rank, why);
    *seconds = (tsr__now_s() - began) / 2;
    return st;
}

static tsr_status time_pair(struct measure_rank *rank, const int64_t *pair, size_t bytes, void *p,
                            double seconds, double *out, struct comm_trouble *why)
{
    double times[MOST_TIMES], first = 0;
    int64_t n = 0;
    for (int i = 0; i < 2; i++) { // the first time buffers are new
        TRY(ping(rank, pair, p, bytes, &first, why));
    }
    TRY(choose_repetitions(rank, pair, 2, 2 * first, seconds, &n, why));
    for (int64_t i = 0; i < n; i++)
        TRY(ping(rank, pair, p, bytes, &times[i], why));
    *out = tsr__measure_typical(times, (size_t)n);
    return TSR_OK;
}

// Measures the link of a pair. Latency is the one-way time of 8 bytes; bandwidth follows from the
// additional time of 4 MiB. If other programs disturb it, there may be no additional time; then it
// follows from the complete time. The first rank of the pair stores both.
static tsr_status link(struct measure_rank *rank, const int64_t *pair, void *p, double seconds,
                       struct comm_trouble *why)
{
    double small = 0, large = 0;
    restart(rank, pair[0] * MEASURE_RANKS + pair[1]);
    TRY(time_pair(rank, pair, PING_BYTES, p, seconds / 2, &small, why));
    tsr_status st = time_pair(rank, pair, LINK_BYTES, p, seconds / 2, &large, why);
    if (st != TSR_OK || rank->endpoint->rank != pair[0])
        return st;
    rank->out->latency[pair[1]] = small;
    rank->out->bandwidth[pair[1]] = LINK_BYTES / (large > small ? large - small : large);
    rank->out->unsteady = rank->out->unsteady || large <= small;
    return TSR_OK;
}

// Times one pair after the other, while the other ranks are idle.
static tsr_status all_links(struct measure_rank *rank, void *p, struct comm_trouble *why)
{
    struct endpoint *endpoint = rank->endpoint;
    int pairs = endpoint->size * (endpoint->size - 1) / 2, done = 0;
    for (int a = 0; a < endpoint->size; a++)
        for (int b = a + 1; b < endpoint->size; b++) {
            const int64_t pair[2] = {a, b};
            if (endpoint->rank == a || endpoint->rank == b)
                TRY(link(rank, pair, p, rank->seconds * SHARE_PAIRS / pairs, why));
            TRY(tsr__comm_barrier(endpoint, MEASURE_PLAN, "measured pair", why));
            if (endpoint->rank == 0)
                tsr__progress(rank->session, "links", (uint64_t)++done, (uint64_t)pairs);
        }
    return TSR_OK;
}

tsr_status tsr__measure_links(struct measure_rank *rank, struct comm_trouble *why)
{
    void *p = tsr__measure_alloc(rank, LINK_BYTES, why);
    if (!p)
        return why->status;
    tsr_status st = all_links(rank, p, why);
    tsr__measure_free(rank, p, LINK_BYTES);
    return st;
}

// ---- collectives -------------------------------------------------------------------------------

// A group for timing a collective; `self` is the index of this rank. in and out are 16 MiB each.
struct timed_group {
    int64_t members[MEASURE_RANKS];
    int n, self;
    struct comm_buffer send[MEASURE_RANKS], recv[MEASURE_RANKS];
    int64_t counts[MEASURE_RANKS];
    char *in, *out;
};

// Fills the group of this rank among groups of consecutive ranks: 0 1, 2 3, ...
static void group_of(const struct measure_rank *rank, int size, struct timed_group *timed_group)
{
    int first = rank->endpoint->rank / size * size;
    timed_group->n = size;
    timed_group->self = rank->endpoint->rank - first;
    for (int i = 0; i < size; i++)
        timed_group->members[i] = first + i;
}

// Each rank has 1/n of the bytes and sends 1/n of that to each rank.
static tsr_status to_all(struct measure_rank *rank, struct timed_group *timed_group, int64_t bytes,
                         struct comm_trouble *why)
{
    struct comm_call call =
        tensor_call(rank, timed_group->members, timed_group->n, COMM_ALL_TO_ALL);
    size_t n = (size_t)timed_group->n, piece = (size_t)bytes / n / n;
    for (int i = 0; i < timed_group->n; i++) {
        size_t at = (size_t)i * piece;
        timed_group->send[i] = (struct comm_buffer){.p = timed_group->in + at, .bytes = piece};
        timed_group->recv[i] =
            (struct comm_buffer){.p = timed_group->out + (size_t)i * piece, .bytes = piece};
    }
    return tsr__comm_all_to_all(rank->endpoint, &call, timed_group->send, timed_group->recv, why);
}

static tsr_status fold(struct measure_rank *rank, struct timed_group *timed_group, int64_t bytes,
                       enum tsr_collective what, struct comm_trouble *why)
{
    struct comm_call call =
        tensor_call(rank, timed_group->members, timed_group->n, (enum comm_kind)what);
    call.reduce = COMM_SUM;
    call.count = bytes / (int64_t)sizeof(float);
    if (what == TSR_ALL_REDUCE)
        return tsr__comm_all_reduce(rank->endpoint, &call, timed_group->in, timed_group->out, why);
    if (what == TSR_REDUCE)
        return tsr__comm_reduce(rank->endpoint, &call, (int)timed_group->members[0],
                                timed_group->in, timed_group->out, why);
    for (int i = 0; i < timed_group->n; i++)
        timed_group->counts[i] = call.count / timed_group->n;
    call.count = 0;
    return tsr__comm_reduce_scatter(rank->endpoint, &call, timed_group->in, timed_group->counts,
                                    timed_group->out, why);
}

static tsr_status once(struct measure_rank *rank, struct timed_group *timed_group, int64_t bytes,
                       enum tsr_collective what, struct comm_trouble *why)
{
    if (what == TSR_ALL_TO_ALL)
        return to_all(rank, timed_group, bytes, why);
    if (what != TSR_BROADCAST && what != TSR_ALL_GATHER)
        return fold(rank, timed_group, bytes, what, why);
    struct comm_call call =
        tensor_call(rank, timed_group->members, timed_group->n, (enum comm_kind)what);
    if (what == TSR_ALL_GATHER)
        return tsr__comm_all_gather(rank->endpoint, &call, timed_group->in,
                                    (size_t)bytes / (size_t)timed_group->n, timed_group->out, why);
    return tsr__comm_broadcast(rank->endpoint, &call, (int)timed_group->members[0], timed_group->in,
                               (size_t)bytes, why);
}

// Measures the time of a call. For small tensors this is the mean of several calls: for a rank that
// arrives late, a single call would seem to take no time.
static tsr_status time_calls(struct measure_rank *rank, struct timed_group *timed_group,
                             int64_t bytes, enum tsr_collective what, double *seconds,
                             struct comm_trouble *why)
{
    int n = bytes <= SMALL_BYTES ? CALLS_ON_END : 1;
    double began = tsr__now_s();
    for (int i = 0; i < n; i++)
        TRY(once(rank, timed_group, bytes, what, why));
    tsr_status st = tsr__measure_gpu_wait(rank, why);
    *seconds = (tsr__now_s() - began) / n;
    return st;
}

// Times a collective of a group. The barrier includes all ranks, so that all groups start at the
// same time, as in a run.
static tsr_status time_group(struct measure_rank *rank, struct timed_group *timed_group,
                             int64_t bytes, enum tsr_collective what, double seconds, double *out,
                             struct comm_trouble *why)
{
    double times[MOST_TIMES], first = 0;
    int64_t n = 0;
    TRY(tsr__comm_barrier(rank->endpoint, MEASURE_PLAN, "measured collective", why));
    for (int i = 0; i < 2; i++) { // the first time buffers are new
        TRY(time_calls(rank, timed_group, bytes, what, &first, why));
    }
    if (bytes <= SMALL_BYTES)
        first *= CALLS_ON_END;
    TRY(choose_repetitions(rank, timed_group->members, timed_group->n, first, seconds, &n, why));
    for (int64_t i = 0; i < n; i++)
        TRY(time_calls(rank, timed_group, bytes, what, &times[i], why));
    *out = tsr__measure_typical(times, (size_t)n);
    return TSR_OK;
}

static tsr_status time_groups(struct measure_rank *rank, struct timed_group *timed_group, int k,
                              struct comm_trouble *why)
{
    double each = rank->seconds * SHARE_ALL / (MEASURE_KINDS * MEASURE_POINTS * rank->n_groups);
    restart(rank, MEASURE_RANKS * MEASURE_RANKS + k);
    group_of(rank, rank->group[k], timed_group);
    for (int what = 0; what < MEASURE_KINDS; what++) {
        for (int i = 0; i < MEASURE_POINTS; i++) {
            TRY(time_group(rank, timed_group, tsr__measure_bytes[i], (enum tsr_collective)what,
                           each, &rank->out->seconds[what][k][i], why));
        }
        if (rank->endpoint->rank == 0)
            tsr__progress(rank->session, "collectives", (uint64_t)(k * MEASURE_KINDS + what + 1),
                          (uint64_t)(rank->n_groups * MEASURE_KINDS));
    }
    return TSR_OK;
}

tsr_status tsr__measure_collectives(struct measure_rank *rank, struct comm_trouble *why)
{
    size_t most = (size_t)tsr__measure_bytes[MEASURE_POINTS - 1];
    struct timed_group *timed_group = tsr__alloc(rank->session, sizeof *timed_group);
    char *memory = tsr__measure_alloc(rank, 2 * most, why);
    tsr_status st = memory ? TSR_NOMEM : why->status;
    if (!timed_group || !memory)
        goto free_memory;
    st = TSR_OK; // a single rank has no group
    *timed_group = (struct timed_group){.in = memory, .out = memory + most};
    for (int k = 0; k < rank->n_groups; k++) {
        st = time_groups(rank, timed_group, k, why);
        if (st != TSR_OK)
            break;
    }
free_memory:
    tsr__measure_free(rank, memory, 2 * most);
    tsr__free(rank->session, timed_group, sizeof *timed_group);
    return st;
}
