// SPDX-License-Identifier: Apache-2.0
// price.c - what collectives cost: the least over algorithms and orders of the ring, never below
// what must cross a cut.
//
// A schedule is heard once with one byte. Each step costs the longest way of its messages plus the
// time of its fullest link; summed over the steps that is a line in the bytes. Lines are kept by
// collective and groups.
#include "topology/internal.h"

#include <math.h>

// ---- hearing a schedule

struct meter {
    tsr_topology *t;
    bool near;    // groups are in the order of near_order
    double *load; // by link and port, in this step
    int *touched;
    size_t n_touched;
    double longest;           // latency of this step
    double latency, per_byte; // so far
    bool reduces, unreachable;
    int path[TOPOLOGY_MAX_HOPS];
};

// Bytes go through a link or a port in this step.
static void carry(struct meter *m, int shared, double bytes)
{
    if (shared < 0)
        return;
    if (m->load[shared] == 0)
        m->touched[m->n_touched++] = shared;
    m->load[shared] += bytes;
}

static void hear(void *data, int from, int to, double bytes)
{
    struct meter *m = data;
    double latency = 0;
    int n = tsr__topology_path(m->t, from, to, m->path, TOPOLOGY_MAX_HOPS);
    if (n < 0)
        m->unreachable = true;
    for (int i = 0; i < n; i++) {
        const struct topology_link *l = &m->t->links.at[m->path[i]];
        latency += l->latency;
        carry(m, m->path[i], bytes);
        carry(m, tsr__topology_out(m->t, l), bytes);
        carry(m, tsr__topology_in(m->t, l), bytes);
    }
    m->longest = latency > m->longest ? latency : m->longest;
}

static void end_step(void *data)
{
    struct meter *m = data;
    double fullest = 0;
    for (size_t i = 0; i < m->n_touched; i++) {
        int k = m->touched[i];
        double time = m->load[k] / tsr__topology_speed(m->t, k);
        fullest = time > fullest ? time : fullest;
        m->load[k] = 0;
    }
    m->n_touched = 0;
    m->latency += m->longest;
    m->per_byte += fullest;
    m->longest = 0;
}

// Pieces are folded block by block in the cache: each is read once, and what they come to is written.
static double fold_per_byte(const tsr_topology *t, enum tsr_collective what,
                            const struct topology_groups *g)
{
    double slowest = 0;
    if (what != TSR_ALL_REDUCE && what != TSR_REDUCE_SCATTER && what != TSR_REDUCE)
        return 0;
    for (int i = 0; i < g->count * g->size; i++) {
        double each = 1 / t->device[g->device[i]].bandwidth;
        slowest = each > slowest ? each : slowest;
    }
    return slowest * (g->size + 1) / g->size;
}

// ---- orders of a ring: as given, and from neighbour to nearest neighbour

static double distance(tsr_topology *t, int a, int b, int *path)
{
    double sum = 0;
    int n = tsr__topology_path(t, a, b, path, TOPOLOGY_MAX_HOPS);
    for (int i = 0; i < n; i++)
        sum += t->links.at[path[i]].latency + 65536 / t->links.at[path[i]].bandwidth;
    return n < 0 ? INFINITY : sum;
}

// Depth first along the nearest: a ring where there is one, else the tour of a tree, which uses each
// link of it once in each direction.
static void near_order(tsr_topology *t, const int *in, int n, int *out, int *path)
{
    memcpy(out, in, (size_t)n * sizeof *out);
    for (int k = 1; k < n; k++) {
        int best = k;
        double least = INFINITY;
        for (int j = k; j < n; j++) {
            double d = distance(t, out[k - 1], out[j], path);
            if (d < least)
                least = d, best = j;
        }
        int kept = out[best];
        for (int j = best; j > k; j--) // the rest keeps its order
            out[j] = out[j - 1];
        out[k] = kept;
    }
}

// ---- lines of one collective over groups

#define MAX_WAYS 32

struct priced {
    int n;
    struct topology_way way[MAX_WAYS];
};

static void keep_way(struct priced *p, const struct algorithm *a, const struct meter *m,
                     double fold)
{
    struct topology_way w = {a->name, m->latency, m->per_byte + fold, m->near};
    for (int i = 0; i < p->n; i++)
        if (p->way[i].latency <= w.latency && p->way[i].per_byte <= w.per_byte)
            return;
    if (p->n < MAX_WAYS)
        p->way[p->n++] = w;
}

static void price_order(struct meter *m, enum tsr_collective what, const struct topology_groups *g,
                        struct priced *p)
{
    for (size_t k = 0; k < tsr__n_algorithms; k++) {
        const struct algorithm *a = &tsr__algorithms[k];
        if (a->what != what)
            continue;
        m->latency = m->per_byte = m->longest = 0;
        m->unreachable = false;
        if (a->schedule(m->t, g, 1, &(struct listener){m, hear, end_step}) && !m->unreachable)
            keep_way(p, a, m, fold_per_byte(m->t, what, g));
    }
}

// Every group in the order that is near for it.
const int *tsr__near_groups(tsr_topology *t, const struct topology_groups *g, int *path)
{
    int *near = ARENA_ARRAY(&t->arena, int, (size_t)g->count *(size_t)g->size);
    for (int k = 0; near && k < g->count; k++)
        near_order(t, g->device + (size_t)k * (size_t)g->size, g->size,
                   near + (size_t)k * (size_t)g->size, path);
    return near;
}

static bool all_ways(tsr_topology *t, enum tsr_collective what, const struct topology_groups *g,
                     struct priced *p)
{
    struct meter m = {.t = t};
    size_t links = tsr__topology_shared(t) + 1;
    m.load = tsr__alloc(t->session, links * sizeof *m.load);
    m.touched = tsr__alloc(t->session, links * sizeof *m.touched);
    bool ok = m.load && m.touched;
    if (ok) {
        memset(m.load, 0, links * sizeof *m.load);
        price_order(&m, what, g, p);
        const int *near = g->size > 2 && g->size <= 256 ? tsr__near_groups(t, g, m.path) : NULL;
        if (near && what != TSR_BROADCAST && what != TSR_REDUCE && what != TSR_SEND &&
            memcmp(near, g->device, (size_t)g->count * (size_t)g->size * sizeof *near) != 0) {
            m.near = true;
            price_order(&m, what, &(struct topology_groups){g->count, g->size, near}, p);
        }
    }
    tsr__free(t->session, m.load, links * sizeof *m.load);
    tsr__free(t->session, m.touched, links * sizeof *m.touched);
    return ok;
}

static struct priced *priced(tsr_topology *t, enum tsr_collective what,
                             const struct topology_groups *g)
{
    size_t n = (size_t)g->count * (size_t)g->size;
    int *key = ARENA_ARRAY(&t->arena, int, n + 2);
    if (!key)
        return NULL;
    key[0] = (int)what;
    key[1] = g->size;
    memcpy(key + 2, g->device, n * sizeof *key);
    void **at = tsr__map_at(&t->priced, (struct str){(const char *)key, (n + 2) * sizeof *key});
    if (at && !*at) {
        struct priced *p = ARENA_NEW(&t->arena, struct priced);
        if (p && all_ways(t, what, g, p))
            *at = p;
    }
    return at ? *at : NULL;
}

// ---- times that were measured

const char *tsr__topology_collective(enum tsr_collective what)
{
    static const char *const names[TSR_COLLECTIVE_COUNT] = {
        "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce", "send"};
    return names[what];
}

bool tsr__topology_add_times(tsr_topology *t, const struct topology_times *times)
{
    struct topology_times *at = vec_push(&t->arena, &t->times);
    if (!at)
        return false;
    *at = *times;
    for (int i = 1; i < at->n; i++) // more bytes are never faster
        at->seconds[i] = at->seconds[i] > at->seconds[i - 1] ? at->seconds[i] : at->seconds[i - 1];
    t->text = STR("");
    return true;
}

static const struct topology_times *times_of(const tsr_topology *t, enum tsr_collective what,
                                             int size)
{
    for (size_t i = 0; i < t->times.n; i++)
        if (t->times.at[i].what == what && t->times.at[i].size == size)
            return &t->times.at[i];
    return NULL;
}

bool tsr__topology_measured(const tsr_topology *t, enum tsr_collective what, int size)
{
    return times_of(t, what, size) != NULL;
}

// On the line between its neighbours; beyond the last, along the last line.
static double measured_time(const struct topology_times *m, double bytes, struct topology_way *way)
{
    int k = 1;
    while (k + 1 < m->n && (double)m->bytes[k] < bytes)
        k++;
    double slope = (m->seconds[k] - m->seconds[k - 1]) / (double)(m->bytes[k] - m->bytes[k - 1]);
    double past = bytes - (double)m->bytes[k - 1];
    *way = (struct topology_way){"measured", m->seconds[k - 1] - slope * (double)m->bytes[k - 1],
                                 slope, false};
    return m->seconds[k - 1] + (past > 0 ? slope * past : 0);
}

int64_t tsr__topology_way(tsr_topology *t, enum tsr_collective what,
                          const struct topology_groups *groups, int64_t bytes,
                          struct topology_way *way)
{
    *way = (struct topology_way){"nothing", 0, 0, false};
    if (groups->size < 2 || bytes <= 0)
        return 0;
    const struct topology_times *m = times_of(t, what, groups->size);
    const struct priced *p = m ? NULL : priced(t, what, groups);
    double least = m ? measured_time(m, (double)bytes, way) : INFINITY;
    for (int i = 0; p && i < p->n; i++) {
        double time = p->way[i].latency + p->way[i].per_byte * (double)bytes;
        if (time < least)
            least = time, *way = p->way[i];
    }
    return least * 1e12 < (double)TOPOLOGY_NEVER ? (int64_t)ceil(least * 1e12) : TOPOLOGY_NEVER;
}

int64_t tsr__topology_cost(tsr_topology *t, enum tsr_collective what,
                           const struct topology_groups *groups, int64_t bytes)
{
    struct topology_way way;
    return tsr__topology_way(t, what, groups, bytes, &way);
}

// ---- cuts

// Share of the bytes of one group that must cross a cut with s of its n devices on one side.
static double must_cross(enum tsr_collective what, double s, double n)
{
    switch (what) {
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
        return s / n; // outwards; the other side is seen with its own cut
    case TSR_ALL_TO_ALL:
        return s * (n - s) / (n * n);
    default:
        return 1;
    }
}

// Bytes per second that can leave the devices marked: over the links, or over the ports of those who send, if that is less.
static double cut_width(const tsr_topology *t, const bool *side)
{
    double links = 0, ports = 0;
    for (size_t i = 0; i < t->links.n; i++) {
        const struct topology_link *l = &t->links.at[i];
        if (!side[l->from] || side[l->to])
            continue;
        links += l->bandwidth;
        ports += l->out_port < 0 ? l->bandwidth : 0;
    }
    for (size_t i = 0; i < t->ports.n; i++)
        ports += side[t->ports.at[i].device] ? t->ports.at[i].bandwidth : 0;
    return ports < links ? ports : links;
}

// Bytes that must leave the devices marked, over what can leave them.
static double cut_time(tsr_topology *t, enum tsr_collective what, const struct topology_groups *g,
                       const bool *side)
{
    double width = cut_width(t, side), bytes = 0;
    for (int k = 0; k < g->count; k++) {
        const int *device = g->device + (size_t)k * (size_t)g->size;
        int s = 0;
        for (int i = 0; i < g->size; i++)
            s += side[device[i]];
        bool leaves = what == TSR_BROADCAST || what == TSR_SEND ? side[device[0]]
                      : what == TSR_REDUCE                      ? !side[device[0]]
                                                                : true;
        if (s && s < g->size && leaves)
            bytes += must_cross(what, s, g->size);
    }
    return bytes > 0 ? bytes / width : 0; // no way out: infinite
}

int64_t tsr__topology_bound(tsr_topology *t, enum tsr_collective what,
                            const struct topology_groups *groups, int64_t bytes)
{
    bool *side = tsr__alloc(t->session, (size_t)t->n);
    double worst = 0;
    if (!side || groups->size < 2) {
        tsr__free(t->session, side, (size_t)t->n);
        return 0;
    }
    for (int mode = 0; mode < 4; mode++) // one device, all but one, the first ones, the last ones
        for (int k = 0; k < t->n; k++) {
            for (int i = 0; i < t->n; i++)
                side[i] = mode == 0 ? i == k : mode == 1 ? i != k : mode == 2 ? i <= k : i > k;
            double time = cut_time(t, what, groups, side);
            worst = time > worst ? time : worst;
        }
    tsr__free(t->session, side, (size_t)t->n);
    double ps = worst * (double)bytes * 1e12;
    return ps < (double)TOPOLOGY_NEVER ? (int64_t)ps : TOPOLOGY_NEVER;
}

// ---- the public form

tsr_status tsr_topology_cost(tsr_topology *t, tsr_collective what, const int *group, int n,
                             int64_t bytes, tsr_topology_price *out)
{
    struct topology_groups g = {1, n, group};
    struct topology_way way;
    for (int i = 0; i < n; i++)
        if (group[i] < 0 || group[i] >= t->n) {
            tsr__diag(t->session, DIAG_topology_device, NULL, "count devices from 0",
                      "device %d is not one of the %d of this topology", group[i], t->n);
            return TSR_INVALID;
        }
    out->picoseconds = tsr__topology_way(t, what, &g, bytes, &way);
    out->bound = tsr__topology_bound(t, what, &g, bytes);
    if (tsr__topology_measured(t, what, n) && out->bound > out->picoseconds)
        out->bound = out->picoseconds; // links were measured one pair at a time
    out->algorithm = way.algorithm;
    return t->arena.failed ? TSR_NOMEM : TSR_OK;
}
