// SPDX-License-Identifier: Apache-2.0
// subsets.c - makes topologies of some devices of a given one; `--devices auto` plans on the best
// of them.
//
// The fastest devices come first, and equal ones in the order of their numbers, so that those of a
// host stay together. Example: devices 0 to 3 have the speeds 1 4 4 2. The fastest one is {1}, the
// fastest two are {1, 2}, three are {1, 2, 3}.
#include "topology/internal.h"

#include <stdlib.h>

// every number of devices up to this is tried; above it, powers of two and all devices
#define EACH_UP_TO 8

// ---- some of the devices -----------------------------------------------------------------------

static void copy_devices(tsr_topology *to, const tsr_topology *from, const int *devices)
{
    for (int i = 0; i < to->n; i++) {
        to->device[i] = from->device[devices[i]];
        to->device[i].name = tsr__arena_str(&to->arena, str_of(to->device[i].name)).p;
    }
    to->memory_assumed = from->memory_assumed;
    to->basis = from->basis;
    to->assumed = from->assumed;
}

// Copies a port on first use and returns its new number; -1: none, or out of memory.
static int copy_port(tsr_topology *to, const tsr_topology *from, int port, const int *place,
                     int *made)
{
    if (port < 0)
        return -1;
    const struct topology_port *old = &from->ports.at[port];
    if (made[port] < 0 && tsr__topology_port(to, place[old->device], old->bandwidth))
        made[port] = (int)to->ports.n - 1;
    return made[port];
}

// Copies links whose ends are both in the subset. place: new device number by old one, or -1.
static void copy_links(tsr_topology *to, const tsr_topology *from, const int *place, int *made)
{
    for (size_t i = 0; i < from->links.n; i++) {
        const struct topology_link *link = &from->links.at[i];
        if (place[link->from] < 0 || place[link->to] < 0)
            continue;
        struct topology_link *copy = tsr__topology_link(to, place[link->from], place[link->to],
                                                        link->latency, link->bandwidth);
        if (!copy)
            return;
        copy->start = link->start;
        copy->message = link->message;
        copy->out_port = copy_port(to, from, link->out_port, place, made);
        copy->in_port = copy_port(to, from, link->in_port, place, made);
    }
}

// Copies the measured times of collectives that fit the smaller number of devices.
static void copy_times(tsr_topology *to, const tsr_topology *from)
{
    for (size_t i = 0; i < from->times.n; i++)
        if (from->times.at[i].size <= to->n)
            vec_add(&to->arena, &to->times, from->times.at[i]);
}

// Copies the host size, and the window if the subset is larger than the window. Such a subset
// consists of full hosts.
static void copy_window(tsr_topology *to, const tsr_topology *from)
{
    to->host = from->host;
    if (!from->window || to->n <= from->window)
        return;
    to->window = from->window;
    to->n_grid = from->n_grid;
    memcpy(to->grid, from->grid, sizeof to->grid);
    to->grid[0] = to->n / from->host;
}

// Creates a topology of the listed devices (ascending). Detects grids again, because a part of a
// torus is not a torus.
static tsr_status copy_subset(const tsr_topology *from, const int *devices, int n,
                              tsr_topology **out)
{
    tsr_topology *to = tsr__topology_new(from->session, n);
    if (!to)
        return TSR_NOMEM;
    int *place = ARENA_ARRAY(&to->arena, int, (size_t)from->n);
    int *made = ARENA_ARRAY(&to->arena, int, from->ports.n + 1);
    if (!place || !made) {
        tsr_topology_free(to);
        return TSR_NOMEM;
    }
    for (int i = 0; i < from->n; i++)
        place[i] = -1;
    for (int i = 0; i < n; i++)
        place[devices[i]] = i;
    for (size_t i = 0; i < from->ports.n; i++)
        made[i] = -1;
    copy_devices(to, from, devices);
    copy_links(to, from, place, made);
    copy_times(to, from);
    copy_window(to, from);
    return tsr__topology_finish_copy(to, from, out);
}

// ---- which ones --------------------------------------------------------------------------------

struct ranked {
    double speed;
    int device;
};

static int by_speed(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->speed != y->speed)
        return x->speed > y->speed ? -1 : 1;
    return (x->device > y->device) - (x->device < y->device);
}

static int by_number(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

// Adds the n fastest devices as a choice. order: all devices, fastest first.
static tsr_status add_fastest(tsr_topology *topology, const struct ranked *order, int n, int *list)
{
    tsr_topology *choice = NULL;
    for (int i = 0; i < n; i++)
        list[i] = order[i].device;
    qsort(list, (size_t)n, sizeof *list, by_number);
    TRY(copy_subset(topology, list, n, &choice));
    return tsr__topology_add_choice(topology, choice);
}

// Returns the next number of devices to try. The numbers are 1 2 3 ... for up to 8 devices, and for
// example 1 2 4 8 12 for 12 devices.
static int next_count(const tsr_topology *topology, int n)
{
    if (topology->n <= EACH_UP_TO)
        return n + 1;
    return n < topology->n && 2 * n > topology->n ? topology->n : 2 * n;
}

// Adds the choices, unless there are some already. Choices that are larger than the window
// (`topology->window`) consist of full hosts.
tsr_status tsr__topology_choose(tsr_topology *topology)
{
    if (topology->choices.n)
        return TSR_OK;
    struct ranked *order = ARENA_ARRAY(&topology->arena, struct ranked, (size_t)topology->n);
    int *list = ARENA_ARRAY(&topology->arena, int, (size_t)topology->n);
    if (!order || !list)
        return TSR_NOMEM;
    for (int i = 0; i < topology->n; i++)
        order[i] = (struct ranked){topology->device[i].flops, i};
    qsort(order, (size_t)topology->n, sizeof *order, by_speed);
    for (int n = 1; n <= topology->n; n = next_count(topology, n)) {
        bool parts_hosts = n > topology->window && topology->host && n % topology->host;
        if (topology->window && parts_hosts)
            continue;
        TRY(add_fastest(topology, order, n, list));
    }
    return tsr__topology_add_shares(topology);
}

tsr_status tsr__topology_chosen(tsr_topology *topology, tsr_topology **out)
{
    return tsr__topology_hand_over(topology, tsr__topology_choose(topology), out);
}

const tsr_topology *tsr_topology_choice(const tsr_topology *topology, size_t i)
{
    return i < topology->choices.n ? topology->choices.at[i] : topology;
}
