// SPDX-License-Identifier: Apache-2.0
// device_meet.c - what ranks learn of each other once, before they run: who is on which GPU, whose memory can be reached,
// and communicators of NCCL for the groups that will use them.
#include "transport/device.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

// What is the same for all processes that can open each other's handles: the running kernel, and the names of processes.
static uint64_t host_id(void)
{
    char text[256] = "";
    size_t n = 0;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, text, 64);
        n = got > 0 ? (size_t)got : 0;
        close(fd);
    }
    ssize_t more = readlink("/proc/self/ns/pid", text + n, sizeof text - n);
    n += more > 0 ? (size_t)more : 0;
    return tsr__hash64(text, n, 0);
}

static void describe_self(struct device *d)
{
    struct rank_card *m = &d->mine;
    size_t offset;
    m->host = host_id();
    m->process = getpid();
    m->address = (uint64_t)(uintptr_t)d;
    m->way = (int32_t)d->options.way;
    m->deterministic = d->options.deterministic;
    if (!d->seat)
        return;
    m->on_gpu = 1;
    m->nccl = tsr__nccl_version(d->gpu);
    memcpy(m->gpu, tsr__seat_id(d->seat), sizeof m->gpu);
    m->exports = tsr__seat_alloc(d->seat, GPU_OWN_PAGE, &d->probe) == 0 &&
                 tsr__seat_export(d->seat, d->probe, &m->probe, &offset) == 0;
    for (int i = 0; i < GPU_EVENTS; i++)
        m->exports = m->exports && tsr__seat_export_event(d->seat, i, &m->events[i]) == 0;
}

static tsr_status tell_all(struct device *d, uint64_t plan, struct comm_trouble *why)
{
    int n = d->endpoint.size;
    d->ranks = ARENA_ARRAY(&d->arena, struct rank_card, (size_t)n);
    int64_t *group = ARENA_ARRAY(&d->arena, int64_t, (size_t)n);
    if (d->arena.failed)
        return tsr__trouble(why, TSR_NOMEM, d->endpoint.rank, "rank %d is out of memory",
                            d->endpoint.rank);
    struct comm_buffer *send = d->buffers, *recv = d->buffers + n;
    for (int i = 0; i < n; i++) {
        group[i] = i;
        send[i] = (struct comm_buffer){&d->mine, sizeof d->mine};
        recv[i] = (struct comm_buffer){&d->ranks[i], sizeof d->mine};
    }
    struct comm_call c = {.plan = plan,
                          .kind = COMM_HANDSHAKE,
                          .op = "handshake",
                          .node = "devices",
                          .id = -3,
                          .group = group,
                          .n_group = n};
    struct comm_exchange x = {.send = send, .recv = recv};
    return d->base->transport->exchange(d->base, &c, &x, why);
}

// Opens what a rank of another process has; false: it cannot be reached.
static bool import_rank(struct device *d, int rank)
{
    const struct rank_card *card = &d->ranks[rank];
    void *probe;
    if (!card->exports || !d->mine.exports || card->host != d->mine.host)
        return false;
    if (tsr__seat_import(d->seat, &card->probe, &probe) != 0)
        return false;
    for (int i = 0; i < GPU_EVENTS; i++)
        if (tsr__seat_import_event(d->seat, &card->events[i], &d->events[rank][i]) != 0)
            return false;
    return true;
}

static bool reach_rank(struct device *d, int rank)
{
    const struct rank_card *card = &d->ranks[rank];
    if (!d->seat || !card->on_gpu)
        return false;
    if (card->process != d->mine.process || card->host != d->mine.host)
        return import_rank(d, rank);
    const struct device *other = (const struct device *)(uintptr_t)card->address;
    for (int i = 0; i < GPU_EVENTS; i++)
        d->events[rank][i] = tsr__seat_event(other->seat, i);
    return tsr__seat_reach(d->seat, other->seat) == 0;
}

static bool shares_gpu(const struct device *d, const struct device_group *g)
{
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(d->ranks[g->group[i]].gpu, d->ranks[g->group[j]].gpu, GPU_ID_BYTES) == 0)
                return true;
    return false;
}

// From what all members know alike: NCCL serves groups that have a GPU for each member, or that were told to use it.
static bool wants_nccl(const struct device *d, const struct device_group *g)
{
    enum comm_way asked = (enum comm_way)d->ranks[g->group[0]].way;
    for (int i = 0; i < g->n; i++)
        if (!d->ranks[g->group[i]].on_gpu || !d->ranks[g->group[i]].nccl)
            return false;
    if (asked == WAY_NCCL)
        return true;
    return asked == WAY_AUTO && !shares_gpu(d, g);
}

static int compare_groups(const struct device_group *a, const struct device_group *b)
{
    for (int i = 0; i < a->n && i < b->n; i++)
        if (a->group[i] != b->group[i])
            return a->group[i] < b->group[i] ? -1 : 1;
    return a->n - b->n;
}

// In one order on all ranks: two that have several groups in common must not wait in different ones.
static void sort_groups(struct device *d)
{
    for (size_t i = 1; i < d->groups.n; i++)
        for (size_t k = i; k > 0; k--) {
            struct device_group *a = &d->groups.at[k - 1], *b = &d->groups.at[k];
            if (compare_groups(a, b) <= 0)
                break;
            struct device_group kept = *a;
            *a = *b;
            *b = kept;
        }
}

// What will be chosen for calls whose memory all lies on GPUs, as far as this rank can say it.
static enum comm_way expected_way(const struct device *d, const struct device_group *g)
{
    bool own = g->n <= GPU_MAX_MEMBERS, on_gpus = true;
    enum comm_way asked = (enum comm_way)d->ranks[g->group[0]].way;
    for (int i = 0; i < g->n; i++) {
        own = own && d->reached[g->group[i]];
        on_gpus = on_gpus && d->ranks[g->group[i]].on_gpu;
    }
    if (!on_gpus || asked == WAY_HOST)
        return WAY_HOST;
    if (g->comm)
        return WAY_NCCL;
    return own ? WAY_OWN : WAY_HOST;
}

tsr_status tsr__device_meet(struct endpoint *e, uint64_t plan, struct comm_trouble *why)
{
    if (!tsr__device_is(e))
        return TSR_OK;
    struct device *d = device_of(e);
    if (d->seat)
        tsr__seat_enter(d->seat);
    describe_self(d);
    tsr_status st = tell_all(d, plan, why);
    if (st != TSR_OK)
        return st;
    for (int rank = 0; rank < e->size; rank++)
        d->reached[rank] = reach_rank(d, rank);
    sort_groups(d);
    for (size_t i = 0; i < d->groups.n; i++) {
        struct device_group *g = &d->groups.at[i];
        if (wants_nccl(d, g)) {
            st = tsr__nccl_way_open(d, g, plan, why);
            if (st != TSR_OK)
                return st;
        }
        g->way = expected_way(d, g);
    }
    return TSR_OK;
}
