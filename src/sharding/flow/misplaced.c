// SPDX-License-Identifier: Apache-2.0
// misplaced.c - reports annotations that have no effect: specs that place a tensor, without
// sharding it, where the node does not use it; stages and specs in bodies that run as a whole.
// flow.c reports shardings that are not followed.
//
// Examples, in the notation of notation.c, for Y = MatMul(X, W) on devices 0 to 2:
//     X {1,1:0,1} and W {1,1:1,2}:   the node runs on device 1, which has both: nothing to report
//     X {1,1:0}   and W {1,1:1}:     no device has both; the node runs on devices 0 and 1, so X
//                                    and W are needed where they are not placed
#include "sharding/flow/flow.h"

// The specs of a node: layouts by input and output; NULL: no spec.
struct specs {
    struct tile_layout *const *in, *const *out;
};

// True if the node reads the input only where its spec places it.
static bool is_read_there(const struct tile_layout *spec, const struct tile_layout *used)
{
    for (int64_t i = 0; i < used->first[used->n_shards]; i++)
        if (!tsr__layout_has_device(spec, used->owners[i]))
            return false;
    return true;
}

// True if the node uses input or output i as its spec says. Specs that shard the tensor are not
// checked here.
static bool is_followed(const struct node_flow *nf, const struct specs *specs, bool out, size_t i)
{
    const struct tile_layout *spec = out ? specs->out[i] : specs->in[i];
    if (!spec || !tsr__layout_is_whole(spec))
        return true;
    if (out)
        return tsr__layout_equal(spec, tsr__flow_result(nf, i));
    return is_read_there(spec, nf->inputs[i]);
}

// True if a device has all inputs that have a spec.
static bool any_common_device(const struct node_flow *nf, const struct specs *specs, int64_t n_all)
{
    for (int64_t d = 0; d < n_all; d++) {
        bool common = true;
        for (size_t i = 0; i < tsr_node_input_count(nf->node); i++)
            common = common && (!specs->in[i] || tsr__layout_has_device(specs->in[i], d));
        if (common)
            return true;
    }
    return false;
}

static const char *reason(const struct flow_work *work, const struct node_flow *nf,
                          const struct specs *specs)
{
    struct control control;
    if (!any_common_device(nf, specs, work->n_all))
        return "no device holds all inputs";
    if (tsr__control_of(nf->node, &control))
        return "its bodies have shardings for other devices";
    if (work->within)
        return "a node in a body runs on the devices of the node that has the body";
    return "the sequences of the node are stored on other devices";
}

static void report_misplaced(struct flow_work *work, const struct node_flow *nf,
                             const struct specs *specs, bool out, size_t i)
{
    const tsr_value *value = slot_value(nf->node, out, i);
    if (!(work->report & REPORT_UNSHARDED))
        return;
    struct place at = tsr__place_spec(nf->node, work->flow->config, value);
    struct str spec = tsr__notation_print(&work->scratch, out ? specs->out[i] : specs->in[i]);
    struct str used =
        tsr__notation_print(&work->scratch, out ? tsr__flow_result(nf, i) : nf->inputs[i]);
    tsr__diag(work->arena->session, DIAG_placement_ignored, &at,
              "place all inputs and outputs of the node on common devices, or remove this sharding",
              "the sharding places '" STR_FMT "' as " STR_FMT ", but the node uses it as " STR_FMT
              ": %s",
              STR_ARG(tsr__value_str(value)), STR_ARG(spec), STR_ARG(used), nf->replicated);
}

// ---- stages and bodies --------------------------------------------------------------------------

static const char *check_stage(struct flow_work *work, const tsr_node *node)
{
    if (!tsr__stage_ignored(&work->stages, node, work->flow->config))
        return NULL;
    const char *why = "a node in a body runs in the stage of the node that has the body";
    if (work->report & REPORT_UNSHARDED)
        tsr__diag(work->arena->session, DIAG_outside_stage,
                  PLACE_AT(tsr__place_spec(node, work->flow->config, NULL)),
                  "set the stage of the node of the main graph, and remove this one",
                  "the node runs outside of its stage: %s", why);
    return why;
}

// Checks a spec of a node in a body that runs unsharded on the devices of `outer`. Returns the
// reason if the spec is not followed, else NULL.
static const char *check_inner_spec(struct flow_work *work, const struct node_flow *outer,
                                    const tsr_node *node, const tsr_spec *spec)
{
    const tsr_value *value = tsr_spec_value(spec);
    struct tile_layout *layout = NULL;
    if (!value)
        return NULL;
    struct shape shape = tsr__shapes_element(work->flow->shapes, value);
    if (tsr__spec_canonical(&work->scratch, spec, &shape, true, &layout) != TSR_OK || !layout)
        return NULL;
    bool there = tsr__layout_is_whole(layout);
    for (size_t i = 0; i < outer->place.n_devices; i++)
        there = there && tsr__layout_has_device(layout, outer->place.devices[i]);
    if (there)
        return NULL;
    const char *why = "the body that contains it runs unsharded";
    if (work->report & REPORT_UNSHARDED)
        tsr__diag(work->arena->session, DIAG_not_cut_here,
                  PLACE_AT(tsr__place_spec(node, work->flow->config, value)),
                  "remove the sharding, or shard nodes of the main graph",
                  "the node has a sharding, but runs replicated on its devices: %s", why);
    return why;
}

// Checks the annotations in the bodies of a node whose bodies run unsharded. Returns the reason if
// one is not followed, else NULL.
static const char *check_bodies(struct flow_work *work, const struct node_flow *outer,
                                const tsr_node *node)
{
    const char *why = NULL, *one;
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        for (size_t k = 0; k < tsr_attr_graph_count(tsr_node_attr(node, i)); k++)
            for (const tsr_node *in = tsr_graph_first(tsr_attr_graph(tsr_node_attr(node, i), k));
                 in; in = tsr_node_next(in)) {
                const tsr_node_config *nc = tsr_node_find_config(in, work->flow->config);
                for (size_t s = 0; nc && s < tsr_node_config_spec_count(nc); s++)
                    if ((one = check_inner_spec(work, outer, in, tsr_node_config_spec(nc, s))))
                        why = one;
                if ((one = check_stage(work, in)) || (one = check_bodies(work, outer, in)))
                    why = one;
            }
    return why;
}

void tsr__flow_misplaced(struct flow_work *work, struct node_flow *nf,
                         struct tile_layout *const *in, struct tile_layout *const *out)
{
    struct specs specs = {in, out};
    size_t n_in = tsr_node_input_count(nf->node), n_out = tsr_node_output_count(nf->node);
    for (size_t k = 0; k < n_in + n_out && !nf->replicated; k++) {
        bool is_out = k >= n_in;
        size_t i = is_out ? k - n_in : k;
        if (is_followed(nf, &specs, is_out, i))
            continue;
        nf->replicated = reason(work, nf, &specs);
        report_misplaced(work, nf, &specs, is_out, i);
    }
    if (!nf->replicated && work->within)
        nf->replicated = check_stage(work, nf->node);
    if (!nf->replicated && !nf->bodies)
        nf->replicated = check_bodies(work, nf, nf->node);
}
