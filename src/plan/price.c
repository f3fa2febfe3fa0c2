// SPDX-License-Identifier: Apache-2.0
// price.c - what it costs to bring a value from one layout to another: the steps of the resharding planner, each
// priced by the topology, and the copying that slices cost. Prices are kept by layouts and shape.
#include "plan/internal.h"

#define KEY_BYTES 1024

int64_t tsr__planner_move_time(const struct planner *p, double bytes)
{
    double ps = bytes / p->slowest.bandwidth * 1e12;
    return ps < (double)PLAN_NEVER ? (int64_t)ps : PLAN_NEVER;
}

int64_t tsr__planner_compute(const struct planner *p, double work, int rate, double bytes)
{
    return tsr__price_work(work, rate, bytes, &p->slowest);
}

int64_t tsr__planner_combine(struct planner *p, enum tsr_collective what,
                             const struct device_group *groups, size_t n, int64_t bytes)
{
    size_t size = n ? groups[0].n : 0, count = 0;
    int *devices = ARENA_ARRAY(&p->arena, int, n *size + 1);
    if (!devices)
        return PLAN_NEVER;
    for (size_t g = 0; g < n; g++)
        for (size_t i = 0; i < size && groups[g].n == size; i++)
            devices[count++] = (int)tsr__planner_device(p, groups[g].devices[i]);
    if (size < 2)
        return 0;
    struct topology_groups all = {(int)(count / size), (int)size, devices};
    return tsr__price_collective(p->topology, what, &all, bytes);
}

// Everybody with everybody, until the fullest device has its bytes.
static int64_t exchange_time(struct planner *p, int64_t bytes)
{
    struct device_group all = {p->all, (size_t)p->n};
    if (p->n < 2)
        return 0;
    double whole = (double)bytes * (double)(p->n * p->n) / (double)(p->n - 1);
    return tsr__planner_combine(p, TSR_ALL_TO_ALL, &all, 1,
                                whole < (double)PLAN_NEVER ? (int64_t)whole : PLAN_NEVER);
}

static int64_t step_time(struct planner *p, const struct reshard_step *s, int64_t before,
                         int64_t after)
{
    int64_t most = s->received > s->sent ? s->received : s->sent;
    switch (s->op) {
    case RESHARD_NOTHING:
        return 0;
    case RESHARD_SLICE:
        return tsr__planner_move_time(p, 2 * (double)after);
    case RESHARD_ALL_GATHER:
        return tsr__planner_combine(p, TSR_ALL_GATHER, s->groups, s->n_groups, after);
    case RESHARD_ALL_TO_ALL:
        return tsr__planner_combine(p, TSR_ALL_TO_ALL, s->groups, s->n_groups,
                                    before * (int64_t)(s->n_groups ? s->groups[0].n : 1));
    case RESHARD_REDUCE_SCATTER:
        return tsr__planner_combine(p, TSR_REDUCE_SCATTER, s->groups, s->n_groups, before);
    case RESHARD_ALL_REDUCE:
        return tsr__planner_combine(p, TSR_ALL_REDUCE, s->groups, s->n_groups, before);
    case RESHARD_REDUCE:
        return tsr__planner_combine(p, TSR_REDUCE, s->groups, s->n_groups, before);
    case RESHARD_BROADCAST:
        return tsr__planner_combine(p, TSR_BROADCAST, s->groups, s->n_groups, after);
    case RESHARD_PERMUTE:
    case RESHARD_SCATTER:
    case RESHARD_GATHER:
    case RESHARD_EXCHANGE:
        break;
    }
    return exchange_time(p, most);
}

// Everything that `to` needs is cut out of a whole copy that is there.
static bool only_slices(const struct tile_layout *from, const struct tile_layout *to)
{
    if (!tsr__layout_is_whole(from))
        return false;
    for (int64_t i = 0; i < to->first[to->n_shards]; i++)
        if (!tsr__layout_has_device(from, to->owners[i]))
            return false;
    return true;
}

static bool plan_move(struct planner *p, struct arena *a, uint32_t from, uint32_t to,
                      const struct plan_value *v, struct reshard **out)
{
    const struct tile_layout *x = p->layouts.at[from], *y = p->layouts.at[to];
    return tsr__reshard_plan(a, x, NULL, y, v->shape, (size_t)(v->bits + 7) / 8, out) == TSR_OK;
}

int64_t tsr__planner_steps_time(struct planner *p, const struct reshard *r, uint32_t from,
                                const struct plan_value *v)
{
    int64_t before = tsr__planner_bytes(p, from, v), ps = 0;
    for (int i = 0; i < r->n_steps && ps < PLAN_NEVER; i++) {
        uint32_t l = tsr__planner_layout(p, r->steps[i].layout);
        if (l == PLAN_NO_LAYOUT)
            return PLAN_NEVER;
        int64_t after = tsr__planner_bytes(p, l, v);
        ps += step_time(p, &r->steps[i], before, after);
        before = after;
    }
    return ps < PLAN_NEVER ? ps : PLAN_NEVER;
}

// Cut differently, yet the same for the sizes at hand: with others it would have to move, so it is exchanged in any case.
static bool is_chance(const struct reshard *r, const struct plan_value *v)
{
    return r->n_steps == 0 && !v->fixed;
}

static int64_t price(struct planner *p, uint32_t from, uint32_t to, const struct plan_value *v)
{
    struct arena a;
    struct reshard *r = NULL;
    int64_t ps = PLAN_NEVER;
    if (only_slices(p->layouts.at[from], p->layouts.at[to]))
        return tsr__layout_is_whole(p->layouts.at[to])
                   ? 0
                   : tsr__planner_move_time(p, 2 * (double)tsr__planner_bytes(p, to, v));
    tsr__arena_init(&a, p->session);
    if (plan_move(p, &a, from, to, v, &r))
        ps = is_chance(r, v) ? exchange_time(p, 1) : tsr__planner_steps_time(p, r, from, v);
    tsr__arena_free(&a);
    return ps;
}

static struct str key_of(char *buffer, uint32_t from, uint32_t to, const struct plan_value *v)
{
    size_t n = 0;
    int64_t head[4] = {from, to, v->bits * 2 + v->fixed, v->rank};
    memcpy(buffer, head, sizeof head);
    n = sizeof head;
    memcpy(buffer + n, v->shape, (size_t)v->rank * sizeof(int64_t));
    return (struct str){buffer, n + (size_t)v->rank * sizeof(int64_t)};
}

int64_t tsr__planner_price(struct planner *p, uint32_t from, uint32_t to,
                           const struct plan_value *v)
{
    char buffer[KEY_BYTES];
    if (from == to)
        return 0;
    if (p->parts.at[from] || p->parts.at[to])
        return PLAN_NEVER; // parts are combined by nodes
    if (p->layouts.at[from]->rank != v->rank || p->layouts.at[to]->rank != v->rank)
        return only_slices(p->layouts.at[from], p->layouts.at[to]) ? 0 : PLAN_NEVER;
    struct str key = key_of(buffer, from, to, v);
    int64_t *found = tsr__map_get(&p->prices, key);
    if (found)
        return *found;
    void **slot = tsr__map_at(&p->prices, tsr__arena_str(&p->arena, key));
    int64_t *at = ARENA_NEW(&p->arena, int64_t);
    if (!slot || !at)
        return PLAN_NEVER;
    *at = price(p, from, to, v);
    *slot = at;
    return *at;
}

static const char *operator_of(enum reshard_op op)
{
    switch (op) {
    case RESHARD_NOTHING:
    case RESHARD_SLICE:
        return NULL;
    case RESHARD_ALL_GATHER:
        return "AllGather";
    case RESHARD_ALL_TO_ALL:
        return "AllToAll";
    case RESHARD_BROADCAST:
        return "Broadcast";
    case RESHARD_REDUCE_SCATTER:
        return "ReduceScatter";
    case RESHARD_ALL_REDUCE:
        return "AllReduce";
    case RESHARD_REDUCE:
        return "Reduce";
    case RESHARD_PERMUTE:
    case RESHARD_SCATTER:
    case RESHARD_GATHER:
    case RESHARD_EXCHANGE:
        break;
    }
    return "Reshard";
}

void tsr__planner_steps(struct planner *p, uint32_t from, uint32_t to, const struct plan_value *v,
                        void (*count)(void *data, const char *op), void *data)
{
    struct arena a;
    struct reshard *r = NULL;
    if (from == to || p->layouts.at[from]->rank != v->rank ||
        only_slices(p->layouts.at[from], p->layouts.at[to]))
        return;
    tsr__arena_init(&a, p->session);
    if (plan_move(p, &a, from, to, v, &r) && is_chance(r, v))
        count(data, "Reshard");
    else if (r)
        for (int i = 0; i < r->n_steps; i++)
            if (operator_of(r->steps[i].op))
                count(data, operator_of(r->steps[i].op));
    tsr__arena_free(&a);
}
