// SPDX-License-Identifier: Apache-2.0
// explorer.c - node data for Model Explorer, which shows it over its drawing of the model: for each
// node, named by one of its outputs, the time on its slowest device or the sharding of its output.
//
// Examples:
//     microseconds of the nodes that produce h and y:
//         {"results": {"h": {"value": 12.5}, "y": {"value": 3.1}}, "gradient": [...]}
//     shardings of h and y:
//         {"results": {"h": {"value": "{2,1:0,1}"}, "y": {"value": "whole"}}}
#include "report/internal.h"

// Fills `times`, by node name, with the microseconds that the first request takes at the node on
// its slowest device. Returns false if out of memory.
static bool longest_times(struct report *report, struct map *times)
{
    const tsr_simulation_view *simulation = report->simulation;
    tsr__map_init(times, report->arena, 256);
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        if (span->kind != TSR_SPAN_COMPUTE || span->request > 0)
            continue;
        void **at = tsr__map_at(times, str_of(span->node));
        if (at && !*at)
            *at = ARENA_NEW(report->arena, double);
        if (!at || !*at)
            return false;
        double *longest = *at, microseconds = (span->end - span->begin) * 1e6;
        *longest = double_max(microseconds, *longest);
    }
    return true;
}

static const tsr_value *first_output(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            return tsr_node_output(node, i);
    return NULL;
}

// Writes the colours for the smallest and the largest value.
static void add_gradient(tsr_json *json)
{
    static const char *const colours[] = {"#f6f5f1", "#e2703a"};
    tsr_json_begin(json, "gradient", '[');
    for (int stop = 0; stop < 2; stop++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "stop", stop);
        tsr_json_string(json, "bgColor", colours[stop]);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes one node: its time, or its sharding if `times` is NULL. Leaves out nodes without an output
// or a time.
static void write_node(tsr_json *json, const struct report *report, const tsr_node *node,
                       const struct map *times)
{
    const tsr_value *output = first_output(node);
    const double *time = times ? tsr__map_get(times, str_of(tsr__node_label(node))) : NULL;
    if (!output || (times && !time))
        return;
    tsr_json_begin(json, tsr_value_name(output), '{');
    const char *sharding = tsr__tensor_sharding(report, output);
    if (times)
        tsr_json_number(json, "value", *time);
    else
        tsr_json_string(json, "value", sharding[0] ? sharding : "whole");
    tsr_json_end(json);
}

tsr_status tsr__explorer_write(struct report *report, bool cuts, const char *path)
{
    struct map times;
    tsr_json *json = tsr_json_new(report->session);
    if (!json || !report->simulation || !longest_times(report, &times)) {
        tsr_json_free(json);
        return TSR_NOMEM;
    }
    // The copy has implied shardings filled in.
    const tsr_model *model = report->sized ? report->sized : report->model;
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "results", '{');
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node))
        write_node(json, report, node, cuts ? NULL : &times);
    tsr_json_end(json);
    if (!cuts)
        add_gradient(json);
    tsr_json_end(json);
    tsr_status st = tsr_json_write(json, path);
    tsr_json_free(json);
    return st;
}
