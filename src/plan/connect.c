// SPDX-License-Identifier: Apache-2.0
// connect.c - the time of the way from one sharding to another, without a model: tsr_connect's steps on a topology.
#include "plan/internal.h"

static bool is_on(const struct planner *p, const struct tile_layout *l)
{
    for (int64_t i = 0; i < l->first[l->n_shards]; i++)
        if (l->owners[i] < 0 || l->owners[i] >= p->n)
            return false;
    return true;
}

static tsr_status time_of(struct planner *p, const struct connecting *c, int64_t *out)
{
    struct reshard *r = NULL;
    const struct tile_layout *first = NULL;
    tsr_status st = tsr__connect(c, &p->arena, &r, &first);
    if (st != TSR_OK)
        return st;
    bool fits = is_on(p, first);
    for (int i = 0; i < r->n_steps; i++)
        fits = fits && is_on(p, r->steps[i].layout);
    if (!fits) {
        tsr__diag(p->session, DIAG_sharding_misfit, NULL, "name devices of the topology",
                  "the topology has %lld devices, and the sharding names others", (long long)p->n);
        return TSR_INVALID;
    }
    struct plan_value v = {.rank = c->rank, .shape = c->shape, .bits = tsr_dtype_bits(c->type)};
    uint32_t from = tsr__planner_layout(p, first);
    *out = from == PLAN_NO_LAYOUT ? 0 : tsr__planner_steps_time(p, r, from, &v);
    return p->arena.failed ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_connect_time(tsr_session *s, const char *from, const char *to, const char *pending,
                            tsr_dtype type, int rank, const int64_t *shape, tsr_topology *topology,
                            int64_t *out)
{
    struct connecting c = {from, to, pending, type, rank, shape};
    struct planner p = {.session = s, .topology = topology};
    p.n = tsr_topology_devices(topology);
    tsr__arena_init(&p.arena, s);
    tsr__map_init(&p.layout_ids, &p.arena, 0);
    tsr_status st = tsr__planner_devices(&p) ? time_of(&p, &c, out) : TSR_NOMEM;
    tsr__arena_free(&p.arena);
    return st;
}
