// SPDX-License-Identifier: Apache-2.0
// device_meet.c - the handshake of ranks before they run: they exchange their GPUs, find which
// memory peers can access, and create NCCL communicators for the groups that use them.
#include "transport/gpu/device.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

// Returns a number for this host. It is equal for all processes that can open each other's handles:
// same kernel and same process namespace.
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

// Fills this rank's `rank_card`. `exports` is false if the driver provides no handles: then only
// ranks of this process can access the memory.
static void describe_self(struct device *device)
{
    struct rank_card *card = &device->mine;
    size_t offset;
    card->host = host_id();
    card->process = getpid();
    card->address = (uint64_t)(uintptr_t)device;
    card->method = (int32_t)device->options.method;
    card->deterministic = device->options.deterministic;
    if (!device->seat)
        return;
    card->on_gpu = 1;
    card->nccl = tsr__nccl_version(device->gpu);
    card->nccl_collectives = tsr__nccl_collectives(device->gpu);
    memcpy(card->gpu, tsr__seat_id(device->seat), sizeof card->gpu);
    card->exports = tsr__seat_alloc(device->seat, GPU_OWN_PAGE, &device->probe) == 0 &&
                    tsr__seat_export(device->seat, device->probe, &card->probe, &offset) == 0;
    for (int i = 0; i < GPU_EVENTS; i++)
        card->exports =
            card->exports && tsr__seat_export_event(device->seat, i, &card->events[i]) == 0;
}

// Fails the job, because the other ranks wait in the exchange.
static tsr_status out_of_memory(struct endpoint *endpoint, struct comm_trouble *why)
{
    tsr__trouble(why, TSR_NOMEM, endpoint->rank, "rank %d is out of memory", endpoint->rank);
    endpoint->transport->fail(endpoint, why->status, why->rank, why->text);
    return why->status;
}

// Exchanges the cards (`rank_card`) of all ranks over the base endpoint.
static tsr_status exchange_rank_cards(struct device *device, uint64_t plan,
                                      struct comm_trouble *why)
{
    // All zeros until the cards have arrived, so that tsr__nccl_abort sees no other rank if this
    // one fails earlier.
    device->ranks = ARENA_ARRAY(&device->arena, struct rank_card, (size_t)device->endpoint.size);
    if (!device->ranks)
        return out_of_memory(&device->endpoint, why);
    struct comm_call call = {
        .plan = plan, .kind = COMM_HANDSHAKE, .op = "handshake", .node = "devices", .id = -3};
    return tsr__comm_share_all(device->base, &call, &device->mine, sizeof device->mine,
                               device->ranks, why);
}

// Counts the ranks on this rank's GPU. Every rank publishes its GPU; a rank on a CPU publishes
// zeros. Free memory is read first: no rank loads its model until all have published.
tsr_status tsr__device_share(struct endpoint *endpoint, uint64_t plan, struct device_share *out,
                             struct comm_trouble *why)
{
    struct device *device = device_of(endpoint);
    int64_t whole = 0;
    struct gpu_id {
        char bytes[GPU_ID_BYTES];
    } mine = {{0}}, *all = ARENA_ARRAY(&device->arena, struct gpu_id, (size_t)endpoint->size);
    *out = (struct device_share){0};
    if (!all)
        return out_of_memory(endpoint, why);
    if (device->seat) {
        memcpy(mine.bytes, tsr__seat_id(device->seat), sizeof mine.bytes);
        if (tsr__seat_enter(device->seat) != 0 ||
            tsr__seat_free_memory(device->seat, &out->free, &whole) != 0)
            out->free = 0;
    }
    struct comm_call call = {
        .plan = plan, .kind = COMM_HANDSHAKE, .op = "handshake", .node = "GPUs", .id = -5};
    tsr_status st = tsr__comm_share_all(device->base, &call, &mine, sizeof mine, all, why);
    if (st != TSR_OK || !device->seat)
        return st;
    for (int i = 0; i < endpoint->size; i++)
        out->ranks += memcmp(all[i].bytes, mine.bytes, sizeof mine.bytes) == 0;
    return TSR_OK;
}

// Opens the memory and events of a rank in another process; false: not possible.
static bool import_rank(struct device *device, int rank)
{
    const struct rank_card *card = &device->ranks[rank];
    void *probe;
    if (!card->exports || !device->mine.exports || card->host != device->mine.host)
        return false;
    if (tsr__seat_import(device->seat, &card->probe, &probe) != 0)
        return false;
    for (int i = 0; i < GPU_EVENTS; i++)
        if (tsr__seat_import_event(device->seat, &card->events[i], &device->events[rank][i]) != 0)
            return false;
    return true;
}

// Opens the events of another rank. Returns true if this rank can access its GPU memory. In the
// same process the other rank's struct is read directly: it lives until all ranks have ended.
static bool reach_rank(struct device *device, int rank)
{
    if (!device->seat || !device->ranks[rank].on_gpu)
        return false;
    const struct device *other = device_here(device, rank);
    if (!other)
        return import_rank(device, rank);
    for (int i = 0; i < GPU_EVENTS; i++)
        device->events[rank][i] = tsr__seat_event(other->seat, i);
    return tsr__seat_reach(device->seat, other->seat) == 0;
}

// True if the group uses NCCL. All members must be on GPUs with NCCL. NCCL must have been
// requested; or no method was requested, and no two members share a GPU. All members must decide
// the same, or one would wait in NCCL for another. So only the cards and the request of the first
// member are used.
static bool wants_nccl(const struct device *device, const struct device_group *group)
{
    enum gpu_method asked = (enum gpu_method)device->ranks[group->group[0]].method;
    for (int i = 0; i < group->n; i++)
        if (!device->ranks[group->group[i]].on_gpu || !device->ranks[group->group[i]].nccl)
            return false;
    if (asked == METHOD_NCCL)
        return true;
    return asked == METHOD_AUTO && !tsr__device_shared(device, group->group, group->n);
}

static int compare_groups(const struct device_group *a, const struct device_group *b)
{
    int shorter = a->n < b->n ? a->n : b->n;
    for (int i = 0; i < shorter; i++)
        if (a->group[i] != b->group[i])
            return a->group[i] < b->group[i] ? -1 : 1;
    return a->n - b->n;
}

// Sorts the groups of this rank. All ranks use the same order: two ranks with several common groups
// must not wait in different groups.
static void sort_groups(struct device *device)
{
    for (size_t i = 1; i < device->groups.n; i++)
        for (size_t k = i; k > 0; k--) {
            struct device_group *a = &device->groups.at[k - 1], *b = &device->groups.at[k];
            if (compare_groups(a, b) <= 0)
                break;
            struct device_group kept = *a;
            *a = *b;
            *b = kept;
        }
}

// Returns the method that calls with all buffers on GPUs will use, as far as this rank knows. For
// reports only: a call with buffers in host memory uses METHOD_HOST or the base endpoint.
static enum gpu_method expected_method(const struct device *device,
                                       const struct device_group *group)
{
    bool own = group->n <= GPU_MAX_MEMBERS, on_gpus = true;
    enum gpu_method asked = (enum gpu_method)device->ranks[group->group[0]].method;
    for (int i = 0; i < group->n; i++) {
        own = own && device->reached[group->group[i]];
        on_gpus = on_gpus && device->ranks[group->group[i]].on_gpu;
    }
    if (!on_gpus || asked == METHOD_HOST)
        return METHOD_HOST;
    if (group->comm)
        return METHOD_NCCL;
    return own ? METHOD_OWN : METHOD_HOST;
}

// Connects the devices of all ranks: sorts groups, exchanges cards, then tests peer access. NCCL
// opens communicators in the sorted order, which is the same on all ranks, so that no two ranks
// wait in different groups.
tsr_status tsr__device_meet(struct endpoint *endpoint, uint64_t plan, struct comm_trouble *why)
{
    if (!tsr__device_is(endpoint))
        return TSR_OK;
    struct device *device = device_of(endpoint);
    if (device->seat)
        tsr__seat_enter(device->seat);
    describe_self(device);
    sort_groups(device); // before others know this device: they read its groups if they fail
    TRY(exchange_rank_cards(device, plan, why));
    for (int rank = 0; rank < endpoint->size; rank++)
        device->reached[rank] = reach_rank(device, rank);
    for (size_t i = 0; i < device->groups.n; i++) {
        struct device_group *group = &device->groups.at[i];
        if (wants_nccl(device, group)) {
            tsr_status st = tsr__nccl_open(device, group, plan, why);
            if (st != TSR_OK) { // other ranks may wait for this one inside of NCCL
                endpoint->transport->fail(endpoint, why->status, why->rank, why->text);
                return st;
            }
        }
        group->method = expected_method(device, group);
    }
    tsr__watch_start(device);
    return TSR_OK;
}
