// SPDX-License-Identifier: Apache-2.0
// shardings.c - the shardings of every node. Nodes of several layers with the same operator, stage
// and shardings share a row.
#include "report/internal.h"

#define MAX_ROWS 20000

// Returns the node's annotation for the configuration of the report; NULL: none.
static const tsr_node_config *node_entry(const struct report *report, const tsr_node *node)
{
    return report->config ? tsr_node_find_config(node, report->config) : NULL;
}

// A sharding of one input or output of a node.
struct node_spec {
    const char *value, *sharding;
    bool output;
};

// Stores sharding i of an annotation. Returns false if it is not valid.
static bool spec_at(const tsr_node_config *entry, size_t i, const tsr_node *node,
                    struct node_spec *out)
{
    const tsr_spec *spec = tsr_node_config_spec(entry, i);
    const tsr_value *value = tsr_spec_value(spec);
    if (!value || tsr_spec_text(spec, &out->sharding) != TSR_OK)
        return false;
    out->value = tsr_value_name(value);
    out->output = tsr_value_producer(value) == node;
    return true;
}

void tsr__node_specs_write(const struct report *report, tsr_json *json, const char *key,
                           const tsr_node *node, bool outputs)
{
    const tsr_node_config *entry = node_entry(report, node);
    struct node_spec spec;
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; entry && i < tsr_node_config_spec_count(entry); i++) {
        if (!spec_at(entry, i, node, &spec) || spec.output != outputs)
            continue;
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "value", spec.value);
        tsr_json_string(json, "sharding", spec.sharding);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Adds the shardings of a node as a key. Example: "layers.0/x {2,1}" and "layers.7/x {2,1}" have
// the same key if it is folded.
void tsr__node_specs_key(const struct report *report, const tsr_node *node, bool folded,
                         struct text *out)
{
    const tsr_node_config *entry = node_entry(report, node);
    struct node_spec spec;
    for (size_t i = 0; entry && i < tsr_node_config_spec_count(entry); i++) {
        if (!spec_at(entry, i, node, &spec))
            continue;
        if (folded)
            spec.value = tsr__fold_name(report->arena, spec.value).pattern;
        tsr__text_printf(out, "\n%s %s %d", spec.value, spec.sharding, spec.output);
    }
}

// ---- rows --------------------------------------------------------------------------------------

// Nodes with the same operator, stage and shardings, whose names differ only in numbers.
struct node_row {
    const tsr_node *first;
    int64_t stage; // -1: none
    VEC(struct folded) names;
    VEC(int64_t) indices;
};
typedef VEC(struct node_row *) node_rows;

// Adds a node to its row, which is created on first use. Nodes share a row if they have the same
// `key`: name pattern, operator, stage and shardings. Returns false if out of memory.
static bool add_node_row(struct report *report, struct map *seen, node_rows *rows, struct text *key,
                         const tsr_node *node)
{
    struct arena *arena = report->arena;
    struct folded name = tsr__fold_name(arena, tsr__node_label(node));
    int64_t stage = report->config ? tsr__node_stage(node, report->config) : -1;
    key->n = 0;
    tsr__text_printf(key, "%s\n%s\n%lld", name.pattern, tsr_node_op(node), (long long)stage);
    tsr__node_specs_key(report, node, true, key);
    void **at = key->failed ? NULL : tsr__map_at_copy(seen, (struct str){key->p, key->n});
    if (!at)
        return false;
    struct node_row *row = *at;
    if (!row) {
        row = *at = ARENA_NEW(arena, struct node_row);
        if (!row || !vec_add(arena, rows, row))
            return false;
        *row = (struct node_row){.first = node, .stage = stage};
    }
    return vec_add(arena, &row->names, name) &&
           vec_add(arena, &row->indices, (int64_t)tsr_node_index(node));
}

static void write_row(struct report *report, const struct node_row *row)
{
    tsr_json *json = report->json;
    tsr_json_begin(json, NULL, '{');
    tsr_json_int(json, "index", (int64_t)tsr_node_index(row->first));
    tsr__names_write(report, row->names.at, row->names.n);
    tsr_json_string(json, "op", tsr_node_op(row->first));
    if (row->stage >= 0)
        tsr_json_int(json, "stage", row->stage);
    tsr__node_specs_write(report, json, "inputs", row->first, false);
    tsr__node_specs_write(report, json, "outputs", row->first, true);
    if (row->names.n > 1) {
        tsr__members_write(report, row->names.at, row->names.n);
        tsr_json_ints(json, "indices", row->indices.at, row->indices.n);
    }
    tsr_json_end(json);
}

// Writes the nodes in the order of the model. Grouped nodes have one row, at the place of the first
// one. After MAX_ROWS rows, "left_out" says how many more there are.
void tsr__shardings_write(struct report *report)
{
    tsr_json *json = report->json;
    struct map seen;
    struct text key = {.session = report->session};
    node_rows rows = {0};
    bool complete = true;
    tsr__map_init(&seen, report->arena, 256);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(report->model)); node && complete;
         node = tsr_node_next(node))
        complete = add_node_row(report, &seen, &rows, &key, node);
    report->arena->failed |= !complete;
    tsr__text_free(&key);
    tsr_json_begin(json, "shardings", '{');
    tsr_json_begin(json, "rows", '[');
    for (size_t i = 0; i < size_min(rows.n, MAX_ROWS); i++)
        write_row(report, rows.at[i]);
    tsr_json_end(json);
    tsr_json_int(json, "left_out", (int64_t)(rows.n - size_min(rows.n, MAX_ROWS)));
    tsr_json_end(json);
}
