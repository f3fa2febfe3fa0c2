// SPDX-License-Identifier: Apache-2.0
// labels.c - writes the shardings of a node as metadata text for model viewers, which show metadata
// but not sharding fields. Labels are never read back; they are rewritten together with the
// shardings.
#include "sharding/layouts/internal.h"

// Followed by the name of the configuration. A node has one label per configuration for which it
// has an entry.
#define KEY "ai.tessera.sharding."

// True if the value is an output of the node. A spec names its value, but not whether it is an
// input or output.
static bool is_output(const tsr_node *node, const tsr_value *value)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) == value)
            return true;
    return false;
}

// Writes inputs or outputs: "x {2,1:0,1}, w {1:0,1}". Skips specs that cannot be printed, because
// labels are only for people.
static void write_specs(struct text *text, const tsr_node *node, const tsr_node_config *entry,
                        bool outputs)
{
    const char *between = "";
    for (size_t i = 0; i < tsr_node_config_spec_count(entry); i++) {
        const tsr_spec *spec = tsr_node_config_spec(entry, i);
        const tsr_value *value = tsr_spec_value(spec);
        const char *cut;
        if (!value || is_output(node, value) != outputs || tsr_spec_text(spec, &cut) != TSR_OK)
            continue;
        tsr__text_printf(text, "%s%s %s", between, tsr_value_name(value), cut);
        between = ", ";
    }
}

// Writes "x {2,1:0,1}, w {1:0,1} -> y {2,1:0,1}; stage 1".
static tsr_status write_label(tsr_node *node, const tsr_node_config *entry)
{
    const tsr_config *config = tsr_node_config_target(entry);
    tsr_model *model = tsr_graph_model(tsr_node_graph(node));
    struct text text, key;
    int64_t stage;
    if (!config)
        return TSR_OK;
    tsr__text_init(&text, tsr_model_session(model));
    tsr__text_init(&key, tsr_model_session(model));
    write_specs(&text, node, entry, false);
    tsr__text_add(&text, STR(" -> "));
    write_specs(&text, node, entry, true);
    if (tsr_node_config_stage(entry, &stage))
        tsr__text_printf(&text, "; stage %lld", (long long)stage);
    tsr__text_printf(&key, KEY "%s", tsr_config_name(config));
    tsr_status st = text.failed ? text_status(&text) : text_status(&key);
    if (st == TSR_OK)
        st = tsr_node_set_metadata(node, key.p, text.p);
    tsr__text_free(&key);
    tsr__text_free(&text);
    return st;
}

static bool is_label(const char *key)
{
    return strncmp(key, KEY, strlen(KEY)) == 0;
}

// True if the node has no entry for the label's configuration, or if no labels are wanted.
static bool is_stale(const tsr_node *node, const char *key, bool wanted)
{
    if (!is_label(key))
        return false;
    if (!wanted)
        return true;
    for (size_t i = 0; i < tsr_node_config_count(node); i++) {
        const tsr_config *config = tsr_node_config_target(tsr_node_config_at(node, i));
        if (config && strcmp(tsr_config_name(config), key + strlen(KEY)) == 0)
            return false;
    }
    return true;
}

// Removes outdated labels. Removing an entry of the metadata moves the later entries forward, so i
// stays the same.
static tsr_status remove_stale(tsr_node *node, bool wanted)
{
    const char *key, *value;
    for (size_t i = 0; tsr_node_metadata_at(node, i, &key, &value);) {
        if (!is_stale(node, key, wanted)) {
            i++;
            continue;
        }
        TRY(tsr_node_set_metadata(node, key, NULL));
    }
    return TSR_OK;
}

bool tsr_model_labelled(const tsr_model *model)
{
    const char *key, *value;
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        for (size_t i = 0; tsr_node_metadata_at(node, i, &key, &value); i++)
            if (is_label(key))
                return true;
    return false;
}

// Writes or removes the labels of all nodes, also in bodies and functions.
tsr_status tsr_model_label(tsr_model *model, bool wanted)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        TRY(remove_stale(node, wanted));
        if (!wanted)
            continue;
        for (size_t i = 0; i < tsr_node_config_count(node); i++)
            TRY(write_label(node, tsr_node_config_at(node, i)));
    }
    return TSR_OK;
}
