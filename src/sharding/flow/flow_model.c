// SPDX-License-Identifier: Apache-2.0
// flow_model.c - computes the flow of a model: visits the nodes of the main graph in order
// (flow.c), and repeats this if a list has the wrong layout.
//
// A list of tensors cannot be resharded between the devices of a stage. If a reader needs another
// layout, the list is marked (kept_whole), and the flow starts again with the producer of the list
// on all devices. Marks are never removed, so the repetitions end.
#include "sharding/flow/flow.h"
#include "sharding/layouts/node_placement.h"

// Sets the layout of a value to replicated on all devices. All such values of one rank have the
// same layout object, so that pointers can be compared.
static bool start_value(struct flow_work *work, const tsr_value *value)
{
    struct tile_layout *layout =
        tsr__flow_whole_all(work, tsr__shapes_element(work->flow->shapes, value).rank);
    work->flow->values[tsr__value_id(value)] = layout;
    return layout != NULL;
}

// Sets the layouts of model inputs and initializers, which are replicated on all devices.
static bool start_values(struct flow_work *work, const tsr_graph *graph)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (!start_value(work, tsr_graph_input(graph, i)))
            return false;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        if (!start_value(work, tsr_graph_initializer(graph, i)))
            return false;
    return true;
}

// Prepares a flow: arrays by value id, shapes, stages. Rejects more devices than node_placement.c
// supports. Values have no layouts yet.
bool tsr__flow_start(struct flow_work *work, struct arena *arena, tsr_model *model,
                     const tsr_config *config)
{
    size_t ids = tsr__model_value_ids(model);
    work->arena = work->base = arena;
    work->n_all = tsr_config_devices(config);
    if (work->n_all < 1 || work->n_all > SOLVE_MAX_DEVICES) {
        tsr__diag(arena->session, DIAG_config_too_large,
                  &PLACE(.configuration = str_of(tsr_config_name(config))), NULL,
                  "the configuration has %lld devices; 1 to %d are supported",
                  (long long)work->n_all, SOLVE_MAX_DEVICES);
        return false;
    }
    work->flow = ARENA_NEW(arena, struct flow);
    work->all = ARENA_ARRAY(arena, int64_t, (size_t)work->n_all);
    work->noted = ARENA_ARRAY(arena, struct flow_noted *, ids + 1);
    work->whole_all = ARENA_ARRAY(arena, struct tile_layout *, TILE_MAX_RANK + 1);
    if (arena->failed)
        return false;
    for (int64_t d = 0; d < work->n_all; d++)
        work->all[d] = d;
    work->flow->model = model;
    work->flow->config = config;
    work->flow->n_nodes = tsr_graph_node_count(tsr_model_graph(model));
    work->flow->nodes = ARENA_ARRAY(arena, struct node_flow, work->flow->n_nodes + 1);
    work->flow->values = ARENA_ARRAY(arena, struct tile_layout *, ids + 1);
    work->flow->shapes = tsr__model_shapes(model);
    arena->failed = arena->failed || !work->flow->shapes;
    if (arena->failed || !tsr__stages_find(arena, model, config, &work->stages))
        return false;
    work->flow->staged = work->stages.n > 0;
    return true;
}

// True if the model has lists of tensors.
static bool any_list(const struct flow_work *work)
{
    const tsr_graph *graph = tsr_model_graph(work->flow->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (tsr__shapes_is_list(work->flow->shapes, tsr_graph_input(graph, i)))
            return true;
    for (tsr_node *node = tsr_model_next_node(work->flow->model, NULL); node;
         node = tsr_model_next_node(work->flow->model, node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (tsr_node_output(node, i) &&
                tsr__shapes_is_list(work->flow->shapes, tsr_node_output(node, i)))
                return true;
    return false;
}

static bool forward(struct flow_work *work, int report, const bool *keep);

// Places all nodes. If the model has lists, first runs the flow without diagnostics until no
// further list is marked.
bool tsr__flow_forward(struct flow_work *work, int report, const bool *keep)
{
    size_t ids = tsr__model_value_ids(work->flow->model);
    if (!work->kept_whole && any_list(work)) {
        const tsr_graph *graph = tsr_model_graph(work->flow->model);
        work->kept_whole = ARENA_ARRAY(work->base, bool, ids + 1);
        if (!work->kept_whole)
            return false;
        // model outputs are returned unsharded
        for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
            tsr__flow_keep_list(work, tsr_graph_output(graph, i));
    }
    for (size_t i = 0; i < ids; i++) {
        work->keeps_more = false;
        if (!work->kept_whole || !forward(work, REPORT_NO_ERRORS, keep))
            break; // the last run reports the reason
        if (!work->keeps_more)
            break;
    }
    return forward(work, report, keep);
}

// Runs the flow once. Discards the results of earlier runs, except the marks of lists. Reshards at
// nodes in `keep` are always reported.
static bool forward(struct flow_work *work, int report, const bool *keep)
{
    tsr_graph *graph = tsr_model_graph(work->flow->model);
    tsr_node *node = tsr_graph_first(graph);
    memset(work->flow->values, 0,
           tsr__model_value_ids(work->flow->model) * sizeof(*work->flow->values));
    memset(work->flow->nodes, 0, work->flow->n_nodes * sizeof(*work->flow->nodes));
    if (!start_values(work, graph))
        return false;
    for (size_t i = 0; i < work->flow->n_nodes; i++) {
        if (!node)
            break;
        work->keep = keep && keep[i];
        work->report = report;
        if (work->keep)
            work->report |= REPORT_RESHARDS;
        if (!tsr__flow_node(work, node, &work->flow->nodes[i]))
            return false;
        node = tsr_node_next(node);
    }
    return !work->arena->failed && !work->base->failed;
}

static struct flow *run(struct arena *arena, tsr_model *model, const tsr_config *config, int report,
                        const bool *keep, struct flow_work work)
{
    bool ok = tsr__flow_start(&work, arena, model, config) &&
              tsr__flow_forward(&work, report, keep) && tsr__flow_delay(arena, work.flow) &&
              tsr__stored_layouts(arena, model, config, true, &work.flow->stored) != TSR_NOMEM;
    return ok ? work.flow : NULL;
}

struct flow *tsr__flow_new(struct arena *arena, tsr_model *model, const tsr_config *config)
{
    return run(arena, model, config, REPORT_UNSHARDED | REPORT_RESHARDS, NULL,
               (struct flow_work){.keep_empty = true});
}

struct flow *tsr__flow_run(struct arena *arena, tsr_model *model, const tsr_config *config,
                           bool quiet, const bool *keep)
{
    int report = quiet ? 0 : REPORT_UNSHARDED | REPORT_RESHARDS;
    return run(arena, model, config, report, keep, (struct flow_work){0});
}

struct flow *tsr__flow_formal(struct arena *arena, tsr_model *model, const tsr_config *config)
{
    return run(arena, model, config, REPORT_UNSHARDED, NULL,
               (struct flow_work){.formal = true, .keep_empty = true});
}
