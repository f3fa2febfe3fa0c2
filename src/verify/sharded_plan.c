// SPDX-License-Identifier: Apache-2.0
// sharded_plan.c - makes a plan that shards as many nodes as possible, to verify a model for which
// one device would be faster.
//
// The devices of this plan charge an extra second for every unsharded node, so that the fastest
// plan shards every node that can be sharded. They have the names and the memory of the requested
// devices.
#include "verify/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "topology/topology.h"

#define UNSHARDED_PENALTY INT64_C(1000000000000) // picoseconds

// Creates a topology with as many devices as the plan is for. The names of its devices belong to
// options->topology, which must outlive the new topology.
static tsr_status make_topology(struct work *work, const tsr_plan_options *options,
                                tsr_topology **out)
{
    const tsr_topology *real = options->topology;
    long long n = real ? tsr_topology_devices(real) : (long long)options->devices;
    struct str text = tsr__arena_printf(&work->arena, "%lld", n);
    if (!text.p)
        return TSR_NOMEM;
    TRY(tsr_topology_parse(work->session, text.p, out));
    (*out)->unsharded_penalty = UNSHARDED_PENALTY;
    if (!real)
        return TSR_OK;
    (*out)->memory_assumed = real->memory_assumed;
    for (int i = 0; i < (*out)->n; i++) {
        (*out)->device[i].name = real->device[i].name;
        (*out)->device[i].memory = real->device[i].memory;
    }
    return TSR_OK;
}

tsr_status tsr__plan_sharded(struct work *work, tsr_model *model, tsr_plan_summary *summary)
{
    tsr_topology *topology = NULL;
    tsr_plan_options options = {.size = sizeof options};
    memcpy(&options, work->options->plan, size_min(work->options->plan->size, sizeof options));
    TRY(make_topology(work, &options, &topology));
    options.topology = topology;
    options.stages = 0;
    tsr_status st = tsr__plan_for(model, &options, work->inputs, summary);
    tsr_topology_free(topology);
    return st;
}

// ---- nothing can be sharded --------------------------------------------------------------------

// Returns why a node of the main graph cannot be sharded, for the first node with a reason; NULL:
// no node has one, so the tensors are too small.
static const char *first_reason(struct work *work, const tsr_node **node)
{
    const struct shapes *shapes = tsr__model_shapes(work->model);
    for (*node = tsr_graph_first(tsr_model_graph(work->model)); *node && shapes;
         *node = tsr_node_next(*node)) {
        const struct rule *rule = tsr__rule_of(&work->arena, *node, shapes);
        const char *why = rule ? rule->whole : NULL;
        if (!why)
            why = tsr__rule_immovable(shapes, *node);
        if (why && !tsr__node_is_constant(*node))
            return why;
    }
    return NULL;
}

tsr_status tsr__verify_unsharded(struct work *work, size_t devices)
{
    const tsr_node *node = NULL;
    const char *why = NULL;
    struct place at = PLACE(.file = str_of(work->path));
    if (devices > 1)
        why = first_reason(work, &node);
    if (why) {
        at = tsr__place_node(node);
        return tsr__fail(
            work->session, TSR_INVALID, DIAG_verify_unsharded, &at,
            "use --allow-unsharded to verify the unsharded model anyway",
            "no node of the model can be sharded across %zu devices, so there is nothing to "
            "verify; the first node: %s",
            devices, why);
    }
    why = "its tensors have no dimension that can be divided among the devices";
    if (devices < 2)
        why = "a plan for one device shards nothing";
    return tsr__fail(
        work->session, TSR_INVALID, DIAG_verify_unsharded, &at,
        "give larger sizes with --dim or --inputs, or use more devices; --allow-unsharded verifies "
        "the unsharded model anyway",
        "no node of the model is sharded across %zu device%s, so there is nothing to verify: %s",
        devices, devices == 1 ? "" : "s", why);
}
