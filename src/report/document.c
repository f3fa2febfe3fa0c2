// SPDX-License-Identifier: Apache-2.0
// document.c - the report as one JSON document: schemas/report-data.json, docs/formats.md.
//
// The document has numbers and names. Sentences, units and the order on the page are those of the
// script that draws it (page/). Nodes, tensors and communications of equal layers share a row, so a
// model of 100,000 nodes has a document of a few MB, and it is never in memory at once (page.c).
#include "report/plan_picture.h"
#include "topology/topology.h"

#define MAX_LINKS  600 // links of a topology that are listed one by one
#define LINK_KINDS 6   // measured machines may have many: the first six are listed

// ---- plan and simulation -----------------------------------------------------------------------

// Costs are in picoseconds, memory is in bytes.
static const tsr_json_field plan_fields[] = {
    {JSON_FIELD(tsr_plan_result, "cost", facts.cost)},
    {JSON_FIELD(tsr_plan_result, "bound", facts.bound)},
    {JSON_FIELD(tsr_plan_result, "optimal", facts.optimal)},
    {JSON_LIST(tsr_plan_result, "memory", facts.memory, facts.devices)},
    {JSON_LIST(tsr_plan_result, "collectives", collectives, facts.n_collectives)},
    {JSON_FIELD(tsr_plan_result, "nodes", facts.nodes)},
    {JSON_FIELD(tsr_plan_result, "cut_nodes", facts.cut_nodes)},
    {JSON_FIELD(tsr_plan_result, "milliseconds", facts.milliseconds)},
    {JSON_END},
};

// Writes the plan and the experts' plans that it was compared with.
static void write_plan(const struct report *report)
{
    const tsr_plan_result *plan = report->plan;
    tsr_json *json = report->json;
    if (!plan)
        return;
    tsr_json_begin(json, "plan", '{');
    tsr_json_fields(json, plan_fields, plan);
    tsr_json_begin(json, "compared", '[');
    for (size_t i = 0; i < plan->facts.n_compared; i++) {
        const tsr_plan_expert *expert = &plan->compared[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", expert->name);
        if (expert->fits)
            tsr_json_number(json, "milliseconds", expert->milliseconds);
        else
            tsr_json_null(json, "milliseconds");
        tsr_json_string(json, "reason", expert->reason);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_end(json);
}

// Writes the memory limit and the pipeline stage of each device.
static void write_devices(const struct report *report)
{
    tsr_json *json = report->json;
    size_t n = report->simulation->facts.devices;
    tsr_json_begin(json, "limits", '[');
    for (size_t i = 0; i < n; i++)
        tsr_json_int(json, NULL, tsr__device_limit(report, i));
    tsr_json_end(json);
    if (report->stage_of)
        tsr_json_ints(json, "stages", report->stage_of, n);
}

// Draws the simulated spans on the timeline.
static void write_timeline(struct report *report)
{
    const tsr_simulation_view *simulation = report->simulation;
    struct lane_span *list = ARENA_ARRAY(report->arena, struct lane_span, simulation->n_spans + 1);
    if (!list)
        return;
    for (size_t i = 0; i < simulation->n_spans; i++)
        list[i] = (struct lane_span){simulation->spans[i].kind,  simulation->spans[i].device,
                                     simulation->spans[i].op,    simulation->spans[i].node,
                                     simulation->spans[i].begin, simulation->spans[i].end};
    struct lanes lanes = {list, simulation->n_spans, simulation->facts.devices,
                          simulation->facts.seconds};
    tsr__timeline_write(report, "predicted", &lanes);
}

static void write_simulation(struct report *report)
{
    tsr_json *json = report->json;
    const tsr_simulation_view *simulation = report->simulation;
    if (!simulation)
        return;
    struct verdict verdict = tsr__verdict_of(report);
    tsr__verdict_write(report, &verdict);
    tsr_json_begin(json, "simulation", '{');
    tsr_json_simulation(json, simulation);
    tsr_json_number(json, "device_flops", simulation->facts.device_flops);
    write_devices(report);
    tsr_json_end(json);
    tsr_json_int(json, "communications", (int64_t)simulation->n_comms);
    tsr_json_int(json, "link_bytes", tsr__carried_bytes(simulation));
    tsr__communication_write(report);
    tsr__links_write(report);
    tsr__operators_write(report);
    write_timeline(report);
}

// ---- topology ----------------------------------------------------------------------------------

static const tsr_json_field topology_fields[] = {
    {JSON_FIELD(tsr_topology_device, "name", name)},
    {JSON_FIELD(tsr_topology_device, "memory", memory)},
    {JSON_FIELD(tsr_topology_device, "flops", flops)},
    {JSON_FIELD(tsr_topology_device, "bandwidth", bandwidth)},
    {JSON_FIELD(tsr_topology_device, "overhead", overhead)},
    {JSON_END},
};
struct link {
    int from, to;
    double latency, bandwidth;
};
static const tsr_json_field link_fields[] = {
    {JSON_FIELD(struct link, "from", from)},
    {JSON_FIELD(struct link, "to", to)},
    {JSON_FIELD(struct link, "latency", latency)},
    {JSON_FIELD(struct link, "bandwidth", bandwidth)},
    {JSON_END},
};
struct link_kind {
    double latency, bandwidth;
    size_t count;
};
static const tsr_json_field kind_fields[] = {
    {JSON_FIELD(struct link_kind, "latency", latency)},
    {JSON_FIELD(struct link_kind, "bandwidth", bandwidth)},
    {JSON_FIELD(struct link_kind, "count", count)},
    {JSON_END},
};

static bool link_at(const tsr_topology *topology, size_t i, struct link *out)
{
    return tsr_topology_link_at(topology, i, &out->from, &out->to, &out->latency, &out->bandwidth);
}

// Writes the links, grouped by equal latency and bandwidth.
static void write_link_kinds(const struct report *report)
{
    struct link_kind kinds[LINK_KINDS] = {{0, 0, 0}};
    struct link link;
    size_t n = 0, others = 0;
    for (size_t i = 0; link_at(report->topology, i, &link); i++) {
        size_t k = 0;
        while (k < n && (kinds[k].latency != link.latency || kinds[k].bandwidth != link.bandwidth))
            k++;
        if (k == LINK_KINDS) {
            others++;
            continue;
        }
        n += k == n;
        kinds[k] = (struct link_kind){link.latency, link.bandwidth, kinds[k].count + 1};
    }
    tsr_json_records(report->json, "link_kinds", kind_fields, kinds, n, sizeof *kinds);
    tsr_json_int(report->json, "other_links", (int64_t)others);
}

// Writes devices and links; of many links only their kinds.
static void write_topology(const struct report *report)
{
    const tsr_topology *topology = report->topology;
    tsr_json *json = report->json;
    struct link link;
    if (!topology)
        return;
    tsr_json_begin(json, "topology", '{');
    tsr_json_begin(json, "devices", '[');
    for (int i = 0; i < tsr_topology_devices(topology); i++)
        tsr_json_record(json, NULL, topology_fields, tsr_topology_device_at(topology, i));
    tsr_json_end(json);
    if (tsr_topology_links(topology) <= MAX_LINKS) {
        tsr_json_begin(json, "links", '[');
        for (size_t i = 0; link_at(topology, i, &link); i++)
            tsr_json_record(json, NULL, link_fields, &link);
        tsr_json_end(json);
    }
    write_link_kinds(report);
    tsr_json_end(json);
}

// ---- the plan by layers ------------------------------------------------------------------------

// Writes the devices of a row as ranges: [[0, 3], [6, 7]].
static void write_ranges(tsr_json *json, const struct picture *picture,
                         const struct picture_row *row)
{
    tsr_json_begin(json, "devices", '[');
    for (int64_t device = 0; device < picture->devices; device++) {
        int64_t range[2] = {device, device};
        if (!row->has[device])
            continue;
        while (range[1] + 1 < picture->devices && row->has[range[1] + 1])
            range[1]++;
        tsr_json_ints(json, NULL, range, 2);
        device = range[1];
    }
    tsr_json_end(json);
}

// Writes the rows of nodes that show where weights are, and how they are sharded.
static void write_layers(struct report *report)
{
    static const char *const kinds[] = {
        [PICTURE_REPLICATED] = "replicated",
        [PICTURE_COLUMNS] = "columns",
        [PICTURE_ROWS] = "rows",
        [PICTURE_ENTRIES] = "entries",
        [PICTURE_EXPERTS] = "experts",
        [PICTURE_OTHER] = "other",
        [PICTURE_TOKENS] = "tokens",
    };
    tsr_json *json = report->json;
    struct picture picture;
    // If out of memory, the arena has failed, and nothing is written to a file.
    if (!tsr__picture_make(report->arena, report->model, report->config, report->sizes,
                           report->n_sizes, &picture))
        return;
    tsr_json_begin(json, "layers", '{');
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < picture.rows.n; i++) {
        const struct picture_row *row = picture.rows.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr__names_write(report, row->names.at, row->names.n);
        tsr_json_string(json, "kind", kinds[row->kind]);
        tsr_json_string(json, "sharding", row->words);
        if (row->stage >= 0)
            tsr_json_int(json, "stage", row->stage);
        write_ranges(json, &picture, row);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_int(json, "left_out", (int64_t)picture.left_out);
    tsr_json_end(json);
}

// ---- the document ------------------------------------------------------------------------------

static const tsr_json_field size_fields[] = {
    {JSON_FIELD(tsr_dim_size, "name", name)},
    {JSON_FIELD(tsr_dim_size, "size", size)},
    {JSON_END},
};

static void write_head(const struct report *report)
{
    const tsr_config *config = report->config;
    tsr_json *json = report->json;
    tsr_json_string(json, "$schema", TSR_JSON_SCHEMA "report-data");
    tsr_json_int(json, "version", 1);
    tsr_json_string(json, "release", tsr_version());
    tsr_json_string(json, "model", report->title);
    tsr_json_string(json, "configuration", config ? tsr_config_name(config) : NULL);
    tsr_json_int(json, "devices", config ? tsr_config_devices(config) : 0);
    tsr_json_int(json, "nodes", (int64_t)tsr_graph_node_count(tsr_model_graph(report->model)));
    tsr_json_records(json, "sizes", size_fields, report->sizes, report->n_sizes,
                     sizeof *report->sizes);
    tsr_json_string(json, "command", report->command);
}

static void write_measured(struct report *report)
{
    const struct measured *measured = &report->measured;
    if (!measured->lanes.devices)
        return;
    tsr__timeline_write(report, "measured", &measured->lanes);
    tsr_json_int(report->json, "measured_left_out", (int64_t)measured->left_out);
}

tsr_json *tsr__report_document(struct report *report, tsr__json_sink *sink, void *data)
{
    tsr_json *json = report->json = tsr_json_new(report->session);
    if (!json)
        return NULL;
    if (sink)
        tsr__json_stream(json, sink, data);
    tsr_json_begin(json, NULL, '{');
    write_head(report);
    write_plan(report);
    write_simulation(report);
    write_measured(report);
    write_layers(report);
    tsr__tensors_write(report);
    tsr__comparison_write(report);
    tsr__shardings_write(report);
    tsr_json_findings(json, "findings");
    write_topology(report);
    tsr_json_end(json);
    report->json = NULL;
    if (!report->arena->failed)
        return json;
    tsr_json_free(json);
    return NULL;
}
