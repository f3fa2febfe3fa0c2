// SPDX-License-Identifier: Apache-2.0
// comparison.c - compares two plans: their figures, and the nodes with different shardings.
#include "report/internal.h"

#define MAX_ROWS 5000

// The figures of one plan.
struct side {
    double seconds, faster, communication, waiting;
    int64_t memory, link_bytes;
    size_t devices, communications;
};
static const tsr_json_field side_fields[] = {
    {JSON_FIELD(struct side, "devices", devices)},
    {JSON_FIELD(struct side, "first_s", seconds)},
    {JSON_FIELD(struct side, "faster", faster)},
    {JSON_FIELD(struct side, "memory", memory)},
    {JSON_FIELD(struct side, "communication", communication)},
    {JSON_FIELD(struct side, "waiting", waiting)},
    {JSON_FIELD(struct side, "communications", communications)},
    {JSON_FIELD(struct side, "link_bytes", link_bytes)},
    {JSON_END},
};

static struct side side_of(const struct report *report)
{
    const tsr_simulation_view *simulation = report->simulation;
    struct verdict verdict = tsr__verdict_of(report);
    return (struct side){.seconds = verdict.seconds,
                         .faster = verdict.faster,
                         .communication = verdict.communication,
                         .waiting = verdict.waiting,
                         .memory = verdict.memory,
                         .link_bytes = tsr__carried_bytes(simulation),
                         .devices = simulation->facts.devices,
                         .communications = simulation->n_comms};
}

// ---- nodes --------------------------------------------------------------------------------------

// A node of both plans with different shardings.
struct difference {
    const tsr_node *ours, *theirs;
};
struct differences {
    struct map rows; // by key: the first of equal differences in several layers
    VEC(struct difference) list;
    size_t n; // nodes that differ
    struct text ours, theirs, key;
};

// Returns the shardings of a node as text that is valid until `text` changes.
static struct str specs_of(const struct report *report, const tsr_node *node, bool folded,
                           struct text *text)
{
    text->n = 0;
    tsr__node_specs_key(report, node, folded, text);
    return (struct str){text->p, text->n};
}

// Adds two nodes of the same name to the list if their shardings differ. Of equal differences in
// several layers, the first is listed. Returns false if out of memory.
static bool compare(struct report *report, const struct report *other, const tsr_node *ours,
                    const tsr_node *theirs, struct differences *differences)
{
    struct text *key = &differences->key;
    if (str_eq(specs_of(report, ours, false, &differences->ours),
               specs_of(other, theirs, false, &differences->theirs)))
        return true;
    differences->n++;
    key->n = 0;
    tsr__text_printf(key, "%s", tsr__fold_name(report->arena, tsr__node_label(ours)).pattern);
    tsr__text_add(key, specs_of(report, ours, true, &differences->ours));
    tsr__text_add(key, specs_of(other, theirs, true, &differences->theirs));
    if (key->failed)
        return false;
    void **at = tsr__map_at_copy(&differences->rows, (struct str){key->p, key->n});
    if (!at)
        return false;
    if (*at || differences->list.n >= MAX_ROWS)
        return true;
    *at = (void *)ours;
    return vec_add(report->arena, &differences->list, (struct difference){ours, theirs});
}

// Finds the nodes that both models have, by name, with different shardings. Returns false if out of
// memory.
static bool find_differences(struct report *report, const struct report *other,
                             struct differences *out)
{
    struct map theirs;
    tsr__map_init(&theirs, report->arena, 256);
    tsr__map_init(&out->rows, report->arena, 64);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(other->model)); node;
         node = tsr_node_next(node))
        if (!tsr__map_set(&theirs, str_of(tsr__node_label(node)), node))
            return false;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(report->model)); node;
         node = tsr_node_next(node)) {
        const tsr_node *match = tsr__map_get(&theirs, str_of(tsr__node_label(node)));
        if (match && !compare(report, other, node, match, out))
            return false;
    }
    return !out->ours.failed && !out->theirs.failed;
}

static void write_side(const struct report *report, tsr_json *json, const char *key,
                       const tsr_node *node)
{
    tsr_json_begin(json, key, '{');
    tsr__node_specs_write(report, json, "inputs", node, false);
    tsr__node_specs_write(report, json, "outputs", node, true);
    tsr_json_end(json);
}

static void write_differences(struct report *report, const struct report *other)
{
    tsr_json *json = report->json;
    struct differences found = {.ours.session = report->session,
                                .theirs.session = report->session,
                                .key.session = report->session};
    report->arena->failed |= !find_differences(report, other, &found);
    tsr__text_free(&found.ours);
    tsr__text_free(&found.theirs);
    tsr__text_free(&found.key);
    tsr_json_int(json, "differing_nodes", (int64_t)found.n);
    tsr_json_begin(json, "differences", '[');
    for (size_t i = 0; i < found.list.n; i++) {
        const struct difference *difference = &found.list.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", tsr__node_label(difference->ours));
        write_side(report, json, "this", difference->ours);
        write_side(other, json, "other", difference->theirs);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes the comparison, which needs a simulation of both plans. `other` is a report of the other
// plan, of which only figures and shardings are used.
void tsr__comparison_write(struct report *report)
{
    const tsr_report_side *side = report->comparison;
    tsr_json *json = report->json;
    struct report other = *report;
    if (!side || !side->simulation || !report->simulation)
        return;
    other.model = side->model;
    other.session = tsr_model_session(side->model);
    other.simulation = tsr_simulation_read(side->simulation);
    other.topology = side->topology;
    other.plan = side->plan ? side->plan : NULL;
    other.config = tsr__report_config(side->model, side->config);
    struct side ours = side_of(report), theirs = side_of(&other);
    tsr_json_begin(json, "comparison", '{');
    tsr_json_string(json, "title", side->title ? side->title : "other plan");
    tsr_json_record(json, "this", side_fields, &ours);
    tsr_json_record(json, "other", side_fields, &theirs);
    write_differences(report, &other);
    tsr_json_end(json);
}
