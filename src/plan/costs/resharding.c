// SPDX-License-Identifier: Apache-2.0
// resharding.c - the steps from one sharding of a tensor to another, and their predicted time,
// without a model.
#include "plan/costs/planner.h"

#include "tessera_graph.h"

struct tsr_resharding {
    struct result_head head;
    const tsr_step *steps;
    size_t n;
    int64_t time; // picoseconds; -1: not predicted
};

static bool is_on(const struct planner *planner, const struct tile_layout *layout)
{
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] < 0 || layout->owners[i] >= planner->machine.n)
            return false;
    return true;
}

// Adds up the times of the operators. It is an error if a layout has a device that the topology
// does not have.
static tsr_status time_of(struct planner *planner, const struct reshard_request *request,
                          const struct reshard_found *found, int64_t *out)
{
    bool fits = is_on(planner, found->from);
    for (int i = 0; i < found->operators.n; i++)
        fits = fits && is_on(planner, found->operators.at[i].layout);
    if (!fits)
        return tsr__fail(
            planner->session, TSR_INVALID, DIAG_sharding_misfit, NULL,
            "use devices of the topology",
            "the sharding names a device that the topology (%lld devices) does not have",
            (long long)planner->machine.n);
    static const int64_t scalar[1] = {1};
    struct plan_value value = {.rank = request->rank,
                               .shape = request->rank ? request->shape : scalar,
                               .bits = tsr_dtype_bits(request->type)};
    uint32_t from = tsr__planner_layout(planner, found->from);
    if (from == PLAN_NO_LAYOUT)
        return TSR_NOMEM;
    *out = tsr__planner_operators_time(planner, &found->operators, from, &value);
    return arena_status(&planner->arena);
}

// Computes the time. Uses a planner without a model: only its devices, layouts and costs are
// needed.
static tsr_status predict(tsr_session *session, tsr_topology *topology,
                          const struct reshard_request *request, const struct reshard_found *found,
                          int64_t *out)
{
    struct planner planner = {.session = session, .machine.topology = topology};
    planner.machine.n = tsr_topology_devices(topology);
    tsr__arena_init(&planner.arena, session);
    tsr__map_init(&planner.cache.layouts, &planner.arena, 0);
    tsr_status st = TSR_NOMEM;
    if (tsr__planner_devices(&planner))
        st = time_of(&planner, request, found, out);
    tsr__arena_free(&planner.arena);
    return st;
}

// Returns the mesh of shardings without @: the grid of the topology, or all devices, whose
// arrangement then follows from the shardings.
static struct notation_mesh mesh_of(const tsr_topology *topology)
{
    int sides[NOTATION_MAX_MESH];
    struct notation_mesh mesh = {.sizes = {tsr_topology_devices(topology)}, .n = 1};
    int n = tsr_topology_grid(topology, sides, NOTATION_MAX_MESH);
    if (n > 0 && n <= NOTATION_MAX_MESH) {
        mesh.n = n;
        mesh.arranged = true;
        for (int i = 0; i < n; i++)
            mesh.sizes[i] = sides[i];
    }
    return mesh;
}

static tsr_status find(struct arena *kept, struct reshard_request *request, tsr_topology *topology,
                       tsr_resharding *out)
{
    struct reshard_found found;
    struct notation_mesh mesh;
    out->time = -1;
    if (topology) {
        mesh = mesh_of(topology);
        request->mesh = &mesh;
    }
    TRY(tsr__reshard_texts(request, kept, &found));
    out->steps = found.steps;
    out->n = found.n;
    if (topology)
        TRY(predict(kept->session, topology, request, &found, &out->time));
    return TSR_OK;
}

tsr_status tsr_resharding_new(tsr_session *session, const char *from, const char *to, int rank,
                              const int64_t *shape, const tsr_reshard_options *given,
                              tsr_resharding **out)
{
    tsr_reshard_options options;
    tsr_resharding found;
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "from", from));
    TRY(tsr__given(session, "to", to));
    if (rank > 0)
        TRY(tsr__given(session, "shape", shape));
    TRY(tsr__given(session, "out", out));
    TRY(OPTIONS_READ(session, &options, given, topology));
    if (options.topology)
        TRY(tsr__topology_owned(session, options.topology));
    struct reshard_request request = {.from = from,
                                      .to = to,
                                      .pending = options.pending,
                                      .type = options.type ? options.type : TSR_FLOAT,
                                      .rank = rank,
                                      .shape = shape};
    struct arena *kept = &session->results[RESULT_CONNECT];
    tsr__arena_free(kept);
    tsr__arena_init(kept, session);
    TRY(find(kept, &request, options.topology, &found));
    tsr_resharding *resharding = tsr__result_take(session, RESULT_CONNECT, sizeof *resharding);
    if (!resharding)
        return TSR_NOMEM;
    found.head = resharding->head;
    *resharding = found;
    *out = resharding;
    return TSR_OK;
}

void tsr_resharding_free(tsr_resharding *resharding)
{
    tsr__result_free(resharding);
}

int64_t tsr_resharding_time(const tsr_resharding *resharding)
{
    return resharding->time;
}

size_t tsr_resharding_count(const tsr_resharding *resharding)
{
    return resharding->n;
}

tsr_status tsr_resharding_step(const tsr_resharding *resharding, size_t i, tsr_step *out)
{
    return tsr__element_read(resharding->head.session,
                             SIZED_LIST(resharding->steps, resharding->n, n_groups), i, out);
}
