// SPDX-License-Identifier: Apache-2.0
// simulate.c - one algorithm's schedule carried out message by message: the witness of the prices.
//
// A message leaves when its sender has all that earlier steps brought it and every link on its way is
// free; it holds each link for as long as its bytes take there. Nothing waits for the whole step, so
// this is finer than the line that price.c works out.
#include "topology/internal.h"

#include <math.h>

struct events {
    tsr_topology *t;
    double *free_at;        // by link
    double *ready, *coming; // by device: what it has so far; with what is on its way in this step
    double end, scale;
    bool unreachable;
    int path[TOPOLOGY_MAX_HOPS];
};

static void send(void *data, int from, int to, double bytes)
{
    struct events *e = data;
    double start = e->ready[from], latency = 0, slowest = 0;
    int n = tsr__topology_path(e->t, from, to, e->path, TOPOLOGY_MAX_HOPS);
    if (n < 0)
        e->unreachable = true;
    for (int i = 0; i < n; i++)
        if (e->free_at[e->path[i]] > start)
            start = e->free_at[e->path[i]];
    for (int i = 0; i < n; i++) {
        const struct topology_link *l = &e->t->links.at[e->path[i]];
        double time = bytes * e->scale / l->bandwidth;
        e->free_at[e->path[i]] = start + time;
        latency += l->latency;
        slowest = time > slowest ? time : slowest;
    }
    double arrives = start + latency + slowest;
    if (arrives > e->coming[to])
        e->coming[to] = arrives;
    if (arrives > e->end)
        e->end = arrives;
}

static void next_step(void *data)
{
    struct events *e = data;
    memcpy(e->ready, e->coming, (size_t)e->t->n * sizeof *e->ready);
}

static int64_t carry_out(struct events *e, const struct algorithm *a,
                         const struct topology_groups *g, int64_t bytes)
{
    e->scale = (double)bytes;
    if (!a->schedule(e->t, g, 1, &(struct listener){e, send, next_step}) || e->unreachable)
        return -1;
    return (int64_t)ceil(e->end * 1e12);
}

int64_t tsr__topology_simulate(tsr_topology *t, enum tsr_collective what, const char *algorithm,
                               const struct topology_groups *groups, int64_t bytes)
{
    struct events e = {.t = t};
    struct arena a;
    int64_t time = -1;
    tsr__arena_init(&a, t->session);
    e.free_at = ARENA_ARRAY(&a, double, t->links.n + 1);
    e.ready = ARENA_ARRAY(&a, double, (size_t)t->n);
    e.coming = ARENA_ARRAY(&a, double, (size_t)t->n);
    for (size_t k = 0; !a.failed && k < tsr__n_algorithms; k++)
        if (tsr__algorithms[k].what == what && str_is(str_of(algorithm), tsr__algorithms[k].name))
            time = carry_out(&e, &tsr__algorithms[k], groups, bytes);
    tsr__arena_free(&a);
    return time;
}
