// SPDX-License-Identifier: Apache-2.0
// reshard_time.c - tsr_reshard_time: the time of resharding without a model.
#include "plan/costs/planner.h"

static bool is_on(const struct planner *planner, const struct tile_layout *layout)
{
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] < 0 || layout->owners[i] >= planner->machine.n)
            return false;
    return true;
}

// Adds up the times of the steps of tsr_reshard_plan. It is an error if a layout has a device that
// the topology does not have.
static tsr_status time_of(struct planner *planner, const struct reshard_request *request,
                          int64_t *out)
{
    struct reshard *reshard = NULL;
    const struct tile_layout *first = NULL;
    TRY(tsr__reshard_texts(request, &planner->arena, &reshard, &first));
    bool fits = is_on(planner, first);
    for (int i = 0; i < reshard->n_steps; i++)
        fits = fits && is_on(planner, reshard->steps[i].layout);
    if (!fits)
        return tsr__fail(
            planner->session, TSR_INVALID, DIAG_sharding_misfit, NULL,
            "use devices of the topology",
            "the sharding names a device that the topology (%lld devices) does not have",
            (long long)planner->machine.n);
    struct plan_value value = {
        .rank = request->rank, .shape = request->shape, .bits = tsr_dtype_bits(request->type)};
    uint32_t from = tsr__planner_layout(planner, first);
    if (from == PLAN_NO_LAYOUT)
        return TSR_NOMEM;
    *out = tsr__planner_steps_time(planner, reshard, from, &value);
    return arena_status(&planner->arena);
}

// Computes the time of a resharding. Uses a planner without a model: only its devices, layouts and
// costs are needed.
tsr_status tsr_reshard_time(tsr_session *session, const char *from, const char *to,
                            const char *pending, tsr_dtype type, int rank, const int64_t *shape,
                            tsr_topology *topology, int64_t *out)
{
    struct reshard_request request = {from, to, pending, type, rank, shape};
    struct planner planner = {.session = session, .machine.topology = topology};
    if (rank > 0 && !shape)
        return tsr__missing(session, "shape");
    TRY(tsr__given(session, "out", out));
    TRY(tsr__topology_owned(session, topology));
    planner.machine.n = tsr_topology_devices(topology);
    tsr__arena_init(&planner.arena, session);
    tsr__map_init(&planner.cache.layouts, &planner.arena, 0);
    tsr_status st = tsr__planner_devices(&planner) ? time_of(&planner, &request, out) : TSR_NOMEM;
    tsr__arena_free(&planner.arena);
    return st;
}
