// SPDX-License-Identifier: Apache-2.0
// packets.c - simulates a schedule packet by packet, to check the predicted times.
//
// A message is sent in packets when its sender has everything from earlier steps. Each packet waits
// at each link until it is free, and occupies it while its bytes pass. Packets do not wait for a
// step to end, so this is finer than the linear model of collective_time.c.
//
// Example: a message over two links that take 1 ns per packet. Its 16 packets are on the second
// link while others are on the first: the last one arrives after 17 ns and two latencies, not after
// 32 ns.
#include "packets.h"

#include <math.h>

#define PACKETS 16

struct packet {
    double time; // arrival at its next link
    double bytes;
    int from, to, hop;
};
struct events {
    tsr_topology *topology;
    struct arena *arena;
    double *free_at;         // by link and port
    double *ready, *coming;  // by device: end of received data, before and with this step
    VEC(struct packet) heap; // earliest first
    double *posted;          // by device: message costs of this step so far
    double end, scale, start;
    bool unreachable;
    int path[TOPOLOGY_MAX_HOPS];
};

static void swap(struct packet *a, struct packet *b)
{
    struct packet kept = *a;
    *a = *b;
    *b = kept;
}

static void push(struct events *events, struct packet packet)
{
    struct packet *at = vec_push(events->arena, &events->heap);
    if (!at)
        return;
    *at = packet;
    for (size_t i = events->heap.n - 1;
         i && events->heap.at[(i - 1) / 2].time > events->heap.at[i].time; i = (i - 1) / 2)
        swap(&events->heap.at[i], &events->heap.at[(i - 1) / 2]);
}

static struct packet pop(struct events *events)
{
    struct packet first = events->heap.at[0];
    events->heap.at[0] = events->heap.at[--events->heap.n];
    for (size_t i = 0, k; (k = 2 * i + 1) < events->heap.n; i = k) {
        if (k + 1 < events->heap.n && events->heap.at[k + 1].time < events->heap.at[k].time)
            k++;
        if (events->heap.at[i].time <= events->heap.at[k].time)
            break;
        swap(&events->heap.at[i], &events->heap.at[k]);
    }
    return first;
}

// The route is looked up at every hop. A device posts its messages one after the other.
static void send(void *data, int from, int to, double bytes)
{
    struct events *events = data;
    double message = 0;
    int n = tsr__topology_path(events->topology, from, to, events->path, TOPOLOGY_MAX_HOPS);
    for (int i = 0; i < n; i++) {
        const struct topology_link *link = &events->topology->links.at[events->path[i]];
        message = fmax(message, link->message);
        events->start = fmax(events->start, link->start);
    }
    events->posted[from] += message;
    if (n < 0)
        events->unreachable = true;
    else
        for (int k = 0; k < PACKETS; k++)
            push(events, (struct packet){events->ready[from] + events->posted[from],
                                         bytes * events->scale / PACKETS, from, to, 0});
}

// One hop of one packet, or its arrival. It occupies out-port, link and in-port while its bytes
// pass; it leaves when the slowest of them is done, and arrives a latency later.
static void travel(struct events *events, struct packet packet)
{
    int n = tsr__topology_path(events->topology, packet.from, packet.to, events->path,
                               TOPOLOGY_MAX_HOPS);
    if (packet.hop == n) {
        events->coming[packet.to] = fmax(events->coming[packet.to], packet.time);
        events->end = fmax(events->end, packet.time);
        return;
    }
    int k = events->path[n - 1 - packet.hop]; // paths start at their end
    const struct topology_link *link = &events->topology->links.at[k];
    int shared[3] = {tsr__topology_out(events->topology, link), k,
                     tsr__topology_in(events->topology, link)};
    double start = packet.time, end = 0;
    for (int i = 0; i < 3; i++) {
        if (shared[i] < 0)
            continue;
        start = fmax(start, events->free_at[shared[i]]);
        events->free_at[shared[i]] =
            start + packet.bytes / tsr__topology_speed(events->topology, shared[i]);
        end = fmax(end, events->free_at[shared[i]]);
    }
    packet.time = end + link->latency;
    packet.hop++;
    push(events, packet);
}

static void step_ends(void *data, int times)
{
    struct events *events = data;
    (void)times; // 1 for listeners without `exchange`
    while (events->heap.n && !events->arena->failed)
        travel(events, pop(events));
    // Only what has arrived by the end of a step may be forwarded in the next one.
    memcpy(events->ready, events->coming, (size_t)events->topology->n * sizeof *events->ready);
    memset(events->posted, 0, (size_t)events->topology->n * sizeof *events->posted);
}

static int64_t carry_out(struct events *events, const struct comm_algorithm *algorithm, int which,
                         const struct topology_groups *groups, int64_t bytes)
{
    const struct schedules *schedules = tsr__schedules(algorithm);
    struct groups_by_hosts parts;
    struct listener to = {events, send, step_ends, NULL};
    struct schedule run = {events->topology, groups, &parts, 1, &to};
    // Schedules run with one byte; a message has its share times `scale`.
    events->scale = (double)bytes;
    tsr__topology_shape(events->topology, groups, events->arena, &parts);
    if (!schedules->at[which] || !schedules->at[which](&run) || events->unreachable ||
        events->arena->failed)
        return -1;
    return (int64_t)ceil((events->start + events->end) * 1e12);
}

int64_t packets_time(tsr_topology *topology, const struct comm_algorithm *algorithm, int which,
                     const struct topology_groups *groups, int64_t bytes)
{
    struct arena arena;
    struct events events = {.topology = topology, .arena = &arena};
    int64_t time = -1;
    tsr__arena_init(&arena, topology->session);
    events.free_at = ARENA_ARRAY(&arena, double, tsr__topology_shared(topology) + 1);
    events.ready = ARENA_ARRAY(&arena, double, (size_t)topology->n);
    events.coming = ARENA_ARRAY(&arena, double, (size_t)topology->n);
    events.posted = ARENA_ARRAY(&arena, double, (size_t)topology->n);
    if (!arena.failed)
        time = carry_out(&events, algorithm, which, groups, bytes);
    tsr__arena_free(&arena);
    return time;
}
