// SPDX-License-Identifier: Apache-2.0
// link_uses.c - the links and ports that the communications of a pipeline occupy, as in the
// simulator (simulate/shared_links.c).
//
//     Example: a message of 8 MB from device 0 to device 2 of a line 0-1-2 with 4 GB/s occupies
//     links 0-1 and 1-2 for 2 ms each.
#include "plan/stages/pipeline_events.h"
#include "topology/topology.h"

#define MOST_LINKS ((size_t)1 << 16) // larger topologies are timed without contention

bool tsr__link_recorder_init(struct link_recorder *recorder, struct planner *planner,
                             struct arena *arena, size_t stages)
{
    size_t links = planner->machine.topology->links.n;
    *recorder = (struct link_recorder){.planner = planner, .arena = arena};
    tsr__map_init(&recorder->moves, arena, 64);
    if (stages < 2 || links > MOST_LINKS)
        return true;
    recorder->load = ARENA_ARRAY(arena, double, links + 1);
    return recorder->load != NULL;
}

static void add_use(struct link_uses *uses, size_t link, double seconds)
{
    int64_t ps = whole_number(seconds * 1e12);
    for (size_t i = 0; i < uses->n; i++)
        if (uses->at[i].link == link) {
            uses->at[i].ps += ps;
            return;
        }
    uses->at[uses->n++] = (struct link_use){link, ps};
}

// Lists the links with a load, and their ports.
static struct link_uses list_uses(struct link_recorder *recorder)
{
    const tsr_topology *topology = recorder->planner->machine.topology;
    struct link_uses uses = {0};
    size_t used = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        used += recorder->load[i] > 0;
    uses.at = ARENA_ARRAY(recorder->arena, struct link_use, 3 * used + 1);
    for (size_t i = 0; i < topology->links.n && uses.at; i++) {
        const struct topology_link *link = &topology->links.at[i];
        double bytes = recorder->load[i];
        if (bytes <= 0)
            continue;
        add_use(&uses, i, bytes / link->bandwidth);
        if (link->out_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->out_port,
                    bytes / topology->ports.at[link->out_port].bandwidth);
        if (link->in_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->in_port + 1,
                    bytes / topology->ports.at[link->in_port].bandwidth);
    }
    return uses;
}

static void clear(struct link_recorder *recorder)
{
    memset(recorder->load, 0,
           recorder->planner->machine.topology->links.n * sizeof *recorder->load);
}

struct link_uses tsr__link_uses_move(struct link_recorder *recorder, uint32_t from, uint32_t to,
                                     const struct plan_value *value)
{
    struct link_uses none = {0};
    size_t n = 3 + (size_t)value->rank;
    int64_t key[3 + TILE_MAX_RANK] = {from, to, value->bits};
    if (!recorder->load)
        return none;
    memcpy(key + 3, value->shape, (n - 3) * sizeof *key);
    void **kept = tsr__map_at_copy(&recorder->moves, str_bytes(key, n * sizeof *key));
    struct link_uses *uses = kept ? *kept : NULL;
    if (uses || !kept)
        return uses ? *uses : none;
    uses = ARENA_NEW(recorder->arena, struct link_uses);
    if (!uses)
        return none;
    clear(recorder);
    tsr__resharding_load(recorder->planner, from, to, value, recorder->load);
    *uses = list_uses(recorder);
    *kept = uses;
    return *uses;
}

// Adds the load of a reduction in its groups; without groups, over all devices of the stage.
static void add_sum(struct link_recorder *recorder, enum tsr_collective what, uint32_t layout,
                    const struct plan_value *value, const struct stage *stage)
{
    struct planner *planner = recorder->planner;
    const struct parts *parts = planner->layouts.at[layout].parts;
    struct device_group all = {stage->devices, stage->n};
    planner->link_load = recorder->load;
    tsr__planner_combine(planner, what, parts ? parts->groups : &all, parts ? parts->n : 1,
                         tsr__planner_bytes(planner, layout, value));
    planner->link_load = NULL;
}

struct link_uses tsr__link_uses_sum(struct link_recorder *recorder, const struct plan_node *node,
                                    const struct stage *stage)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    enum comm_kind what = COMM_KIND_COUNT;
    if (candidate->reduction)
        what = tsr__collective_find(str_of(candidate->reduction));
    if (!recorder->load || (int)what >= TSR_COLLECTIVE_COUNT)
        return (struct link_uses){0};
    clear(recorder);
    for (size_t i = 0; i < tsr_node_output_count(node->node); i++) {
        const tsr_value *value = tsr_node_output(node->node, i);
        if (value && candidate->before && candidate->before[i] != PLAN_NO_LAYOUT)
            add_sum(recorder, (enum tsr_collective)what, candidate->before[i],
                    &recorder->planner->values[tsr__value_id(value)], stage);
    }
    return list_uses(recorder);
}
