// SPDX-License-Identifier: Apache-2.0
// save.c - saves a model: checks annotations, applies renames, and writes the fields of the model
// itself.
//
// Saving builds a rope (wire.h): references to unchanged bytes, and new bytes for changes. An
// unchanged model is one reference. The change flags stay set, so a model can be saved, changed and
// saved again.
//
// Steps:
//   1. Reject incomplete annotations.
//   2. Raise the IR version if there are annotations.
//   3. Mark everything that refers to a renamed object (renaming marks only the value's graph).
//   4. Write.
#include "ir/serde/write.h"

// ---- checks ---------------------------------------------------------------------------------

// Checks an annotation before it is saved. New annotations must be complete; those of a file are
// written back unchanged. A sharding of a value without a name is always an error.
static tsr_status check_entry(tsr_node *node, const tsr_node_config *nc)
{
    struct place at = tsr__place_node(node);
    tsr_session *session = node->graph->model->session;
    if (!nc->whole.n && (!nc->config || !nc->config->name.n))
        return tsr__fail(session, TSR_INVALID, DIAG_save_config, &at,
                         "make the annotation for a configuration of the model",
                         "the node has an annotation without a configuration");
    for (size_t i = 0; i < nc->n_specs; i++) {
        const tsr_spec *spec = nc->specs[i];
        if (nc->config)
            at.configuration = nc->config->name;
        if (!spec->whole.n && !spec->value)
            return tsr__fail(session, TSR_INVALID, DIAG_save_spec_value, &at,
                             "remove the sharding, or create it for an input or output of the node",
                             "a sharding of the node names no input or output");
        if (spec->value && !spec->value->name.n)
            return tsr__fail(session, TSR_INVALID, DIAG_save_value_name, &at,
                             "give the value a name with tsr_value_rename",
                             "a sharding of the node is for a value without a name");
    }
    return TSR_OK;
}

// Checks all annotations and reports every error. *any is set if the model has configurations or
// annotations.
static tsr_status check_annotations(tsr_model *model, bool *any)
{
    tsr_status st = TSR_OK;
    *any = model->configs.n > 0;
    if (!model->annotated)
        return TSR_OK;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        for (size_t i = 0; i < node->n_configs; i++) {
            *any = true;
            tsr_status now = check_entry(node, node->configs[i]);
            if (st == TSR_OK)
                st = now;
        }
    return st;
}

// ---- renames --------------------------------------------------------------------------------

// Marks nodes, specs and outputs that refer to a renamed value or configuration. If all nodes are
// in one graph that is written in place, write_graph.c marks them.
static void touch_renamed(tsr_model *model)
{
    bool later = !model->has_subgraphs && !model->functions.n && tsr__graph_in_place(model->graph);
    tsr_node *node = later ? NULL : tsr_model_next_node(model, NULL);
    for (; node; node = tsr_model_next_node(model, node))
        tsr__touch_renamed(node);
    // A subgraph may have an outer value as its output.
    for (tsr_graph *graph = model->graphs; graph; graph = graph->next)
        for (size_t i = 0; i < graph->outputs.n; i++)
            if (value_renamed(graph->outputs.at[i].value) && !(graph->flags & G_GONE))
                tsr__touch_graph(graph, G_OUTPUTS);
}

// ---- the model ------------------------------------------------------------------------------

// Writes a configuration. If it was read from a file, only its name can have changed.
static void emit_config(struct rope *rope, uint32_t number, void *data)
{
    const tsr_config *config = data;
    static const uint32_t managed[] = {F_CONFIG_NAME, F_CONFIG_NUM_DEVICES, F_CONFIG_DEVICE};
    PARTS(parts, rope->arena);
    tsr__part_text(&parts, F_CONFIG_NAME, config->name);
    if (!config->whole.n)
        tsr__part_int(&parts, F_CONFIG_NUM_DEVICES, config->devices);
    for (size_t i = 0; i < config->n_names && !config->whole.n; i++)
        tsr__part_text(&parts, F_CONFIG_DEVICE, config->names[i]);
    tsr__parts_write(rope, number, tsr__field_body(config->whole), managed, config->whole.n ? 1 : 3,
                     &parts);
}

// Writes an operator set. If it was read from a file, only its version can have changed.
static void emit_opset(struct rope *rope, uint32_t number, void *data)
{
    const struct opset *opset = data;
    static const uint32_t managed[] = {F_OPSET_VERSION, F_OPSET_DOMAIN};
    PARTS(parts, rope->arena);
    if (!opset->whole.n)
        tsr__part_text(&parts, F_OPSET_DOMAIN, opset->domain);
    tsr__part_int(&parts, F_OPSET_VERSION, opset->version);
    tsr__parts_write(rope, number, tsr__field_body(opset->whole), managed, opset->whole.n ? 1 : 2,
                     &parts);
}

// Adds the changed lists of the model: opsets, metadata, configurations. A changed list is written
// entry by entry; unchanged entries are references to the file. Other lists keep their place.
static void parts_of_lists(struct part_list *parts, tsr_model *model, uint32_t *managed, size_t *n)
{
    if (model->opsets_changed) {
        managed[(*n)++] = F_MODEL_OPSET_IMPORT;
        for (size_t i = 0; i < model->opsets.n; i++)
            tsr__part_or_emit(parts, F_MODEL_OPSET_IMPORT, model->opsets.at[i].whole,
                              model->opsets.at[i].changed, emit_opset, &model->opsets.at[i]);
    }
    if (model->metadata_changed) {
        managed[(*n)++] = F_MODEL_METADATA_PROPS;
        tsr__parts_of_metadata(parts, F_MODEL_METADATA_PROPS, model->metadata.at,
                               model->metadata.n);
    }
    if (model->configs_changed) {
        managed[(*n)++] = F_MODEL_CONFIGURATION;
        for (size_t i = 0; i < model->configs.n; i++)
            tsr__part_or_emit(parts, F_MODEL_CONFIGURATION, model->configs.at[i]->whole,
                              model->configs.at[i]->renamed, emit_config, model->configs.at[i]);
    }
}

static void parts_of_functions(struct part_list *parts, tsr_model *model)
{
    for (size_t i = 0; i < model->functions.n; i++) {
        tsr_function *function = model->functions.at[i];
        tsr__part_or_emit(parts, F_MODEL_FUNCTIONS, function->whole,
                          function->graph->flags & G_CHANGED, tsr__emit_function, function);
    }
}

// Collects the parts of a changed model. The order of the fields in the file is kept
// (tsr__rope_rewrite).
static void build_model(struct rope *rope, tsr_model *model)
{
    struct str origin = model->store->bytes;
    uint32_t managed[8];
    size_t n = 0;
    PARTS(parts, rope->arena);
    if (model->ir_changed)
        tsr__part_int(&parts, managed[n++] = F_MODEL_IR_VERSION, model->ir_version);
    if (model->graph->flags & (G_CHANGED | G_NAME))
        tsr__part_emit(&parts, managed[n++] = F_MODEL_GRAPH, tsr__emit_graph, model->graph);
    parts_of_lists(&parts, model, managed, &n);
    managed[n++] = F_MODEL_FUNCTIONS;
    parts_of_functions(&parts, model);
    tsr__rope_rewrite(rope, origin, managed, n, parts.at, parts.n);
}

// Collects the bytes of the model. The rope refers to bytes and names of the model, which must not
// change until the rope is written.
static tsr_status build(tsr_model *model, struct rope *rope)
{
    if (model_status(model) != TSR_OK)
        return TSR_NOMEM;
    if (!model->changed) {
        tsr__rope_view(rope, model->store->bytes);
        return arena_status(rope->arena);
    }
    bool annotated = false;
    TRY(check_annotations(model, &annotated));
    if (annotated && (model->devices_touched || model->ir_changed))
        TRY(tsr__model_allow_configs(model));
    if (model->renamed)
        touch_renamed(model);
    build_model(rope, model);
    if (rope->arena->failed || model_status(model) != TSR_OK)
        return TSR_NOMEM;
    return TSR_OK;
}

// Writes the model to a file. Unchanged bytes are copied from the file from which the model was
// loaded, so `path` must be another file.
tsr_status tsr_model_save(tsr_model *model, const char *path)
{
    TRY(tsr__given(model->session, "path", path));
    tsr_session *session = model->session;
    if (model->path && tsr__same_file(model->path, path))
        return tsr__fail(session, TSR_WRITE, DIAG_output_is_input, &PLACE(.file = str_of(path)),
                         "choose another output name", "the model was loaded from this file");
    struct arena scratch = {.session = session};
    struct rope rope;
    tsr__rope_init(&rope, &scratch);
    tsr_status st = build(model, &rope);
    if (st != TSR_OK)
        goto free_scratch;
    struct outfile out;
    st = tsr__out_open(session, path, &out);
    if (st != TSR_OK)
        goto free_scratch;
    int source = model->store->file.fd > 0 ? model->store->file.fd : -1;
    tsr__rope_write(&rope, &out, model->store->bytes, source);
    // Warn before the commit: nothing may fail after it.
    struct diag_mark before = tsr__diag_mark(session);
    tsr__external_warn(model, path);
    st = tsr__out_commit(&out);
    if (st != TSR_OK)
        tsr__diag_back(session, &before, true); // drop the warning
free_scratch:
    tsr__arena_free(&scratch);
    return st;
}

// Writes the model to new memory. *bytes and *n are unchanged after a failure.
tsr_status tsr_model_save_bytes(tsr_model *model, void **bytes, size_t *n)
{
    TRY(tsr__given(model->session, "bytes", bytes));
    TRY(tsr__given(model->session, "n", n));
    struct arena scratch = {.session = model->session};
    struct rope rope;
    tsr__rope_init(&rope, &scratch);
    tsr_status st = build(model, &rope);
    char *out = st == TSR_OK ? tsr__alloc(model->session, rope_size(&rope)) : NULL;
    if (out) {
        tsr__rope_read(&rope, out);
        *bytes = out;
        *n = rope_size(&rope);
    } else if (st == TSR_OK) {
        st = TSR_NOMEM;
    }
    tsr__arena_free(&scratch);
    return st;
}

void tsr_bytes_free(tsr_session *session, void *bytes, size_t n)
{
    if (!session)
        return;
    tsr__free(session, bytes, n);
}
