// SPDX-License-Identifier: Apache-2.0
// simulate.c - one algorithm's schedule carried out packet by packet: the witness of the prices.
//
// A message leaves when its sender has all that earlier steps brought it, in packets; each packet waits
// at each link until that is free and holds it for as long as its bytes take. Nothing waits for a whole
// step to end, so this is finer than the line that price.c works out.
#include "topology/internal.h"

#include <math.h>

#define PACKETS 16

struct packet {
    double time; // when it is at the beginning of its next link
    double bytes;
    int from, to, hop;
};
struct events {
    tsr_topology *t;
    struct arena *arena;
    double *free_at;         // by link and port
    double *ready, *coming;  // by device: what it has so far; with what is on its way in this step
    VEC(struct packet) heap; // earliest first
    double end, scale;
    bool unreachable;
    int path[TOPOLOGY_MAX_HOPS];
};

static void swap(struct packet *a, struct packet *b)
{
    struct packet kept = *a;
    *a = *b;
    *b = kept;
}

static void push(struct events *e, struct packet p)
{
    struct packet *at = vec_push(e->arena, &e->heap);
    if (!at)
        return;
    *at = p;
    for (size_t i = e->heap.n - 1; i && e->heap.at[(i - 1) / 2].time > e->heap.at[i].time;
         i = (i - 1) / 2)
        swap(&e->heap.at[i], &e->heap.at[(i - 1) / 2]);
}

static struct packet pop(struct events *e)
{
    struct packet first = e->heap.at[0];
    e->heap.at[0] = e->heap.at[--e->heap.n];
    for (size_t i = 0, k; (k = 2 * i + 1) < e->heap.n; i = k) {
        if (k + 1 < e->heap.n && e->heap.at[k + 1].time < e->heap.at[k].time)
            k++;
        if (e->heap.at[i].time <= e->heap.at[k].time)
            break;
        swap(&e->heap.at[i], &e->heap.at[k]);
    }
    return first;
}

static void send(void *data, int from, int to, double bytes)
{
    struct events *e = data;
    if (tsr__topology_path(e->t, from, to, e->path, TOPOLOGY_MAX_HOPS) < 0)
        e->unreachable = true;
    else
        for (int k = 0; k < PACKETS; k++)
            push(e, (struct packet){e->ready[from], bytes * e->scale / PACKETS, from, to, 0});
}

static void travel(struct events *e, struct packet p)
{
    int n = tsr__topology_path(e->t, p.from, p.to, e->path, TOPOLOGY_MAX_HOPS);
    if (p.hop == n) {
        e->coming[p.to] = fmax(e->coming[p.to], p.time);
        e->end = fmax(e->end, p.time);
        return;
    }
    int k = e->path[n - 1 - p.hop]; // paths are listed from their end
    const struct topology_link *l = &e->t->links.at[k];
    int shared[3] = {tsr__topology_out(e->t, l), k, tsr__topology_in(e->t, l)};
    double start = p.time, end = 0;
    for (int i = 0; i < 3;
         i++) { // it enters each as soon as that is free and it has entered the one before
        if (shared[i] < 0)
            continue;
        start = fmax(start, e->free_at[shared[i]]);
        e->free_at[shared[i]] = start + p.bytes / tsr__topology_speed(e->t, shared[i]);
        end = fmax(end, e->free_at[shared[i]]);
    }
    p.time = end + l->latency;
    p.hop++;
    push(e, p);
}

static void step_ends(void *data)
{
    struct events *e = data;
    while (e->heap.n && !e->arena->failed)
        travel(e, pop(e));
    memcpy(e->ready, e->coming, (size_t)e->t->n * sizeof *e->ready);
}

static int64_t carry_out(struct events *e, const struct algorithm *a,
                         const struct topology_groups *g, int64_t bytes)
{
    e->scale = (double)bytes;
    if (!a->schedule(e->t, g, 1, &(struct listener){e, send, step_ends}) || e->unreachable)
        return -1;
    return e->arena->failed ? -1 : (int64_t)ceil(e->end * 1e12);
}

int64_t tsr__topology_simulate(tsr_topology *t, enum tsr_collective what, const char *algorithm,
                               const struct topology_groups *groups, int64_t bytes)
{
    struct arena a;
    struct events e = {.t = t, .arena = &a};
    int64_t time = -1;
    tsr__arena_init(&a, t->session);
    e.free_at = ARENA_ARRAY(&a, double, tsr__topology_shared(t) + 1);
    e.ready = ARENA_ARRAY(&a, double, (size_t)t->n);
    e.coming = ARENA_ARRAY(&a, double, (size_t)t->n);
    for (size_t k = 0; !a.failed && k < tsr__n_algorithms; k++)
        if (tsr__algorithms[k].what == what && str_is(str_of(algorithm), tsr__algorithms[k].name))
            time = carry_out(&e, &tsr__algorithms[k], groups, bytes);
    tsr__arena_free(&a);
    return time;
}
