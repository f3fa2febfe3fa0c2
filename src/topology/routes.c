// SPDX-License-Identifier: Apache-2.0
// routes.c - shortest routes through a topology.
//
// The metric is latency plus the time of a medium message; ties go to lower device numbers. The
// routes from one device form a tree, which is computed on first use: reading a topology of 4096
// devices computes none.
//
// Example: devices 0 1 2 3 in a ring of equal links. From 0 the tree is 0->1, 0->3 and 1->2: device
// 2 is as near over 3, but 1 is the lower number. `last` has a link for each device except 0; the
// path from 0 to 2 is read from its end: 1->2, then 0->1.
#include "topology/internal.h"

#include <math.h>

#define ROUTE_BYTES 65536.0

// Buffers, one entry per device.
struct topology_work {
    double *far;  // distance from the source
    int *queue;   // a heap of devices by (far, number), or a plain queue
    int *place;   // by device: index in the heap; -1: not in it yet
    int *hops;    // number of links from the source, or number of children
    int *through; // buffer of tsr__topology_spread
    double *latency, *message;
};

static struct topology_work *work_of(tsr_topology *topology)
{
    if (topology->work)
        return topology->work;
    size_t n = (size_t)topology->n;
    struct topology_work *work = ARENA_NEW(&topology->arena, struct topology_work);
    if (!work)
        return NULL;
    work->far = ARENA_ARRAY(&topology->arena, double, n);
    work->queue = ARENA_ARRAY(&topology->arena, int, n);
    work->place = ARENA_ARRAY(&topology->arena, int, n);
    work->hops = ARENA_ARRAY(&topology->arena, int, n);
    work->through = ARENA_ARRAY(&topology->arena, int, n);
    work->latency = ARENA_ARRAY(&topology->arena, double, n);
    work->message = ARENA_ARRAY(&topology->arena, double, n);
    if (!topology->arena.failed)
        topology->work = work;
    return topology->work;
}

// Drops all routing trees; their memory stays in the arena. Also sets `even`, which selects the
// algorithm for new trees.
void tsr__topology_reset_routes(tsr_topology *topology)
{
    memset(topology->route, 0, (size_t)topology->n * sizeof *topology->route);
    topology->even = true;
    for (size_t i = 1; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i], *before = link - 1;
        if (link->latency != before->latency || link->bandwidth != before->bandwidth)
            topology->even = false;
    }
}

// ---- reachability

// Links sorted by the device at one end: those of device d are order[first[d]] to order[first[d +
// 1] - 1].
struct ends {
    size_t *first, *order;
};

// Sorts the links by target (counting sort). Example: the links 0->1, 2->1 and 1->2 of 3 devices
// give first = 0 0 2 3 and order = 0 1 2.
static void sort_by_end(const tsr_topology *topology, struct ends *ends)
{
    size_t n = (size_t)topology->n;
    for (size_t i = 0; i < topology->links.n; i++)
        ends->first[topology->links.at[i].to + 1]++;
    for (size_t d = 0; d < n; d++)
        ends->first[d + 1] += ends->first[d];
    for (size_t i = topology->links.n; i-- > 0;)
        ends->order[--ends->first[topology->links.at[i].to + 1]] = i;
    for (size_t d = 0; d < n; d++) // undo the shift by one
        ends->first[d] = ends->first[d + 1];
    ends->first[n] = topology->links.n;
}

// Marks the devices that device 0 reaches or, if `into` is given, those that reach device 0.
static void mark_reached(const tsr_topology *topology, const struct ends *into, bool *reached,
                         int *queue)
{
    const size_t *first = into ? into->first : topology->first;
    int n_queue = 1;
    queue[0] = 0;
    reached[0] = true;
    for (int at = 0; at < n_queue; at++) {
        int device = queue[at];
        for (size_t k = first[device]; k < first[device + 1]; k++) {
            int next = into ? topology->links.at[into->order[k]].from : topology->links.at[k].to;
            if (reached[next])
                continue;
            reached[next] = true;
            queue[n_queue++] = next;
        }
    }
}

// Warns if a device cannot be reached. Searches once in each direction from device 0, and names
// only the first such device. Returns false if out of memory.
bool tsr__topology_warn_unreachable(tsr_topology *topology)
{
    size_t n = (size_t)topology->n;
    struct arena scratch = {.session = topology->session};
    bool *there = ARENA_ARRAY(&scratch, bool, n), *back = ARENA_ARRAY(&scratch, bool, n);
    int *queue = ARENA_ARRAY(&scratch, int, n);
    struct ends into = {ARENA_ARRAY(&scratch, size_t, n + 1),
                        ARENA_ARRAY(&scratch, size_t, topology->links.n + 1)};
    bool ok = !scratch.failed;
    if (ok) {
        mark_reached(topology, NULL, there, queue);
        sort_by_end(topology, &into);
        mark_reached(topology, &into, back, queue);
    }
    for (int d = 1; ok && d < topology->n; d++) {
        if (there[d] && back[d])
            continue;
        int from = 0, to = d;
        if (there[d]) { // device 0 reaches it, but there is no route back
            from = d;
            to = 0;
        }
        tsr__diag(topology->session, DIAG_topology_unreachable, NULL,
                  "add links, or plan for the devices of one part",
                  "device %d cannot be reached from device %d", to, from);
        break;
    }
    tsr__arena_free(&scratch);
    return ok;
}

// ---- the routing tree of one device

// Finds routes by breadth-first search, for equal links. Of several predecessors the one with the
// lowest number is taken.
static void spread_evenly(const tsr_topology *topology, int from, struct topology_work *work,
                          int *last)
{
    int n_queue = 1;
    work->queue[0] = from;
    for (int i = 0; i < topology->n; i++)
        work->hops[i] = i == from ? 0 : INT32_MAX;
    for (int at = 0; at < n_queue; at++) {
        int device = work->queue[at];
        if (n_queue == topology->n && work->hops[device] == work->hops[work->queue[n_queue - 1]])
            return; // all devices are found
        for (size_t k = topology->first[device]; k < topology->first[device + 1]; k++) {
            int next = topology->links.at[k].to;
            if (work->hops[next] == INT32_MAX) {
                work->hops[next] = work->hops[device] + 1;
                work->queue[n_queue++] = next;
                last[next] = (int)k;
                // The lower number wins, so that routes are the same on every machine.
            } else if (work->hops[next] == work->hops[device] + 1 &&
                       device < topology->links.at[last[next]].from) {
                last[next] = (int)k;
            }
        }
    }
}

// True if device a is nearer than b, or equally near with a lower number.
static bool before(const struct topology_work *work, int a, int b)
{
    return work->far[a] < work->far[b] || (work->far[a] == work->far[b] && a < b);
}

static void put(struct topology_work *work, int slot, int device)
{
    work->queue[slot] = device;
    work->place[device] = slot;
}

// Moves a device up in the heap after its distance decreased.
static void rise(struct topology_work *work, int device)
{
    int slot = work->place[device];
    while (slot > 0 && before(work, device, work->queue[(slot - 1) / 2])) {
        put(work, slot, work->queue[(slot - 1) / 2]);
        slot = (slot - 1) / 2;
    }
    put(work, slot, device);
}

// Removes the nearest device from a heap of n.
static int take_nearest(struct topology_work *work, int n)
{
    int nearest = work->queue[0], device = work->queue[n - 1], slot = 0, rest = n - 1;
    for (int child = 1; child < rest; child = 2 * slot + 1) {
        if (child + 1 < rest && before(work, work->queue[child + 1], work->queue[child]))
            child++;
        if (!before(work, work->queue[child], device))
            break;
        put(work, slot, work->queue[child]);
        slot = child;
    }
    if (rest > 0)
        put(work, slot, device);
    return nearest;
}

// Finds routes with Dijkstra's algorithm.
static void spread_by_cost(const tsr_topology *topology, int from, struct topology_work *work,
                           int *last)
{
    for (int i = 0; i < topology->n; i++) {
        work->far[i] = INFINITY;
        work->place[i] = -1;
    }
    work->far[from] = 0;
    put(work, 0, from);
    for (int n = 1; n > 0;) {
        int at = take_nearest(work, n--);
        for (size_t k = topology->first[at]; k < topology->first[at + 1]; k++) {
            const struct topology_link *link = &topology->links.at[k];
            double via = work->far[at] + link->latency + ROUTE_BYTES / link->bandwidth;
            if (via >= work->far[link->to])
                continue;
            work->far[link->to] = via;
            last[link->to] = (int)k;
            if (work->place[link->to] < 0)
                put(work, n++, link->to);
            rise(work, link->to);
        }
    }
}

// Computes the routing tree of the device on first use. False: out of memory.
static bool find_routes(tsr_topology *topology, int from)
{
    if (topology->route[from])
        return true;
    struct topology_work *work = work_of(topology);
    int *last = work ? ARENA_ARRAY(&topology->arena, int, (size_t)topology->n) : NULL;
    if (!last)
        return false;
    for (int i = 0; i < topology->n; i++)
        last[i] = -1;
    if (topology->even)
        spread_evenly(topology, from, work, last);
    else
        spread_by_cost(topology, from, work, last);
    topology->route[from] = last;
    return true;
}

// Lists the links of a route by following the tree from the target to the source.
int tsr__topology_path(tsr_topology *topology, int from, int to, int *links, int capacity)
{
    if (!find_routes(topology, from))
        return -2;
    int n = 0;
    for (int at = to; at != from;) {
        int k = topology->route[from][at];
        if (k < 0 || n == capacity)
            return -1;
        links[n++] = k;
        at = topology->links.at[k].from;
    }
    return n;
}

// ---- one message to each of many

// Lists the devices of the tree from the leaves to the root. The root is not included.
static int leaves_first(const tsr_topology *topology, const int *last, struct topology_work *work)
{
    int n = 0;
    memset(work->hops, 0, (size_t)topology->n * sizeof *work->hops); // number of children
    for (int d = 0; d < topology->n; d++)
        if (last[d] >= 0)
            work->hops[topology->links.at[last[d]].from]++;
    for (int d = 0; d < topology->n; d++)
        if (last[d] >= 0 && work->hops[d] == 0)
            work->queue[n++] = d;
    for (int at = 0; at < n; at++) {
        int parent = topology->links.at[last[work->queue[at]]].from;
        if (--work->hops[parent] == 0 && last[parent] >= 0)
            work->queue[n++] = parent;
    }
    return n;
}

// Computes loads and latencies of one message to each of many devices: messages are summed towards
// the root, latencies away from it. Each link is visited twice, regardless of the number of
// messages.
bool tsr__topology_spread(tsr_topology *topology, int from, const int *group,
                          struct topology_spread *out)
{
    if (!find_routes(topology, from))
        return false;
    struct topology_work *work = topology->work;
    const int *last = topology->route[from];
    for (int d = 0; d < topology->n; d++) {
        work->through[d] = d != from && group[d] == group[from];
        if (work->through[d] && last[d] < 0)
            return false;
    }
    int n = leaves_first(topology, last, work);
    work->through[from] = 0;
    work->latency[from] = work->message[from] = 0;
    // Leaves come first, so all messages behind a device have been added.
    for (int i = 0; i < n; i++) {
        int d = work->queue[i];
        work->through[topology->links.at[last[d]].from] += work->through[d];
    }
    // The root comes first, so the predecessor's latency is known.
    for (int i = n; i-- > 0;) {
        const struct topology_link *link = &topology->links.at[last[work->queue[i]]];
        work->latency[link->to] = work->latency[link->from] + link->latency;
        work->message[link->to] = fmax(work->message[link->from], link->message);
    }
    *out = (struct topology_spread){last, work->through, work->latency, work->message};
    return true;
}
