// SPDX-License-Identifier: Apache-2.0
// serde_save.c - saving a model: what may not be written, what renames touch, the model's own
// fields.
#include "ir/write.h"

// ---- refusals -------------------------------------------------------------------------------

// What was made here must be complete; what came from a file goes back as it came.
static tsr_status check_entry(tsr_node *n, const tsr_node_config *nc)
{
    struct place at = tsr__place_node(n);
    tsr_session *s = n->graph->model->session;
    if (!nc->whole.n && (!nc->config || !nc->config->name.n)) {
        tsr__diag(s, DIAG_save_config, &at, "make the annotation for a configuration of the model",
                  "the node has an annotation for no configuration");
        return TSR_INVALID;
    }
    for (size_t i = 0; i < nc->n_specs; i++) {
        const tsr_spec *p = nc->specs[i];
        if (nc->config)
            at.configuration = nc->config->name;
        if (!p->whole.n && !p->value) {
            tsr__diag(s, DIAG_save_spec_value, &at, "remove the sharding, or make it for a value",
                      "a sharding of the node has no value");
            return TSR_INVALID;
        }
        if (p->value && !p->value->name.n) {
            tsr__diag(s, DIAG_save_value_name, &at, "give the value a name with tsr_value_rename",
                      "a sharding of the node is for a value without a name");
            return TSR_INVALID;
        }
    }
    return TSR_OK;
}

static tsr_status check_annotations(tsr_model *m, bool *any)
{
    tsr_status st = TSR_OK;
    *any = m->configs.n > 0;
    if (!m->annotated)
        return TSR_OK;
    for (tsr_node *n = tsr_model_next_node(m, NULL); n; n = tsr_model_next_node(m, n))
        for (size_t i = 0; i < n->n_configs; i++) {
            *any = true;
            tsr_status now = check_entry(n, n->configs[i]);
            st = st == TSR_OK ? now : st;
        }
    return st;
}

// ---- renames --------------------------------------------------------------------------------

static bool renamed(const tsr_value *v)
{
    return v && (v->flags & V_RENAMED);
}

void tsr__touch_renamed(tsr_node *n)
{
    for (size_t i = 0; i < n->n_inputs; i++)
        if (renamed(n->inputs[i].value))
            tsr__touch_node(n, N_INPUTS);
    for (size_t i = 0; i < n->n_outputs; i++)
        if (renamed(n->outputs[i]))
            tsr__touch_node(n, N_OUTPUTS);
    for (size_t i = 0; i < n->n_configs; i++) {
        tsr_node_config *nc = n->configs[i];
        if (nc->config && nc->config->renamed) {
            nc->changed = true;
            tsr__touch_node(n, N_CONFIGS);
        }
        for (size_t k = 0; k < nc->n_specs; k++)
            if (renamed(nc->specs[k]->value))
                tsr__spec_touch(nc->specs[k], S_NAME);
    }
}

// Where all nodes are in one graph and are written in place, that is done on the way.
static void touch_renamed(tsr_model *m)
{
    bool later = !m->has_subgraphs && !m->functions.n && tsr__graph_in_place(m->graph);
    for (tsr_node *n = later ? NULL : tsr_model_next_node(m, NULL); n;
         n = tsr_model_next_node(m, n))
        tsr__touch_renamed(n);
    for (tsr_graph *g = m->graphs; g; g = g->next) // an outer value may be a subgraph's output
        for (size_t i = 0; i < g->outputs.n; i++)
            if (renamed(g->outputs.at[i].value) && !(g->flags & G_GONE))
                tsr__touch_graph(g, G_OUTPUTS);
}

// ---- the model ------------------------------------------------------------------------------

static void emit_config(struct rope *r, void *data)
{
    const tsr_config *c = data;
    static const uint32_t managed = F_CONFIG_NAME;
    PARTS(p, r->arena);
    if (c->whole.n) { // only its name can change
        tsr__part_text(&p, F_CONFIG_NAME, c->name);
        tsr__parts_write(r, F_MODEL_CONFIGURATION, tsr__field_body(c->whole), &managed, 1, &p);
        return;
    }
    size_t mark = tsr__rope_begin(r, F_MODEL_CONFIGURATION);
    tsr__rope_bytes(r, F_CONFIG_NAME, c->name);
    tsr__rope_int(r, F_CONFIG_NUM_DEVICES, c->devices);
    for (size_t i = 0; i < c->n_names; i++)
        tsr__rope_bytes(r, F_CONFIG_DEVICE, c->names[i]);
    tsr__rope_end(r, mark);
}

static void emit_opset(struct rope *r, void *data)
{
    const struct opset *o = data;
    static const uint32_t managed = F_OPSET_VERSION;
    PARTS(p, r->arena);
    tsr__part_int(&p, F_OPSET_VERSION, o->version);
    if (o->whole.n) {
        tsr__parts_write(r, F_MODEL_OPSET_IMPORT, tsr__field_body(o->whole), &managed, 1, &p);
        return;
    }
    size_t mark = tsr__rope_begin(r, F_MODEL_OPSET_IMPORT);
    tsr__rope_bytes(r, F_OPSET_DOMAIN, o->domain);
    tsr__rope_int(r, F_OPSET_VERSION, o->version);
    tsr__rope_end(r, mark);
}

static void emit_metadata(struct rope *r, void *data)
{
    const struct metadata *e = data;
    size_t mark = tsr__rope_begin(r, F_MODEL_METADATA_PROPS);
    tsr__rope_bytes(r, F_STRING_PAIR_KEY, e->key);
    tsr__rope_bytes(r, F_STRING_PAIR_VALUE, e->value);
    tsr__rope_end(r, mark);
}

static void emit_main_graph(struct rope *r, void *data)
{
    tsr__emit_graph(r, F_MODEL_GRAPH, data);
}

static void parts_of_lists(struct parts *p, tsr_model *m, uint32_t *managed, size_t *n)
{
    if (m->opsets_changed) {
        managed[(*n)++] = F_MODEL_OPSET_IMPORT;
        for (size_t i = 0; i < m->opsets.n; i++)
            if (m->opsets.at[i].whole.n && !m->opsets.at[i].changed)
                tsr__part(p, F_MODEL_OPSET_IMPORT, m->opsets.at[i].whole);
            else
                tsr__part_emit(p, F_MODEL_OPSET_IMPORT, emit_opset, &m->opsets.at[i]);
    }
    if (m->metadata_changed) {
        managed[(*n)++] = F_MODEL_METADATA_PROPS;
        for (size_t i = 0; i < m->metadata.n; i++)
            if (m->metadata.at[i].whole.n && !m->metadata.at[i].changed)
                tsr__part(p, F_MODEL_METADATA_PROPS, m->metadata.at[i].whole);
            else
                tsr__part_emit(p, F_MODEL_METADATA_PROPS, emit_metadata, &m->metadata.at[i]);
    }
    if (m->configs_changed) {
        managed[(*n)++] = F_MODEL_CONFIGURATION;
        for (size_t i = 0; i < m->configs.n; i++)
            if (m->configs.at[i]->whole.n && !m->configs.at[i]->renamed)
                tsr__part(p, F_MODEL_CONFIGURATION, m->configs.at[i]->whole);
            else
                tsr__part_emit(p, F_MODEL_CONFIGURATION, emit_config, m->configs.at[i]);
    }
}

static void parts_of_functions(struct parts *p, tsr_model *m)
{
    for (size_t i = 0; i < m->functions.n; i++) {
        tsr_function *f = m->functions.at[i];
        if (f->whole.n && !(f->graph->flags & G_CHANGED))
            tsr__part(p, F_MODEL_FUNCTIONS, f->whole);
        else
            tsr__part_emit(p, F_MODEL_FUNCTIONS, tsr__emit_function, f);
    }
}

static void build_model(struct rope *r, tsr_model *m)
{
    struct str origin = m->store->bytes;
    uint32_t managed[8];
    size_t n = 0;
    PARTS(p, r->arena);
    if (m->ir_changed)
        tsr__part_int(&p, managed[n++] = F_MODEL_IR_VERSION, m->ir_version);
    if (m->graph->flags & (G_CHANGED | G_NAME))
        tsr__part_emit(&p, managed[n++] = F_MODEL_GRAPH, emit_main_graph, m->graph);
    parts_of_lists(&p, m, managed, &n);
    if (m->renamed && tsr__parts_of_training(&p, m))
        managed[n++] = F_MODEL_TRAINING_INFO;
    managed[n++] = F_MODEL_FUNCTIONS;
    parts_of_functions(&p, m);
    tsr__rope_rewrite(r, origin, managed, n, p.at, p.n);
}

static tsr_status build(tsr_model *m, struct rope *r)
{
    if (model_status(m) != TSR_OK)
        return TSR_NOMEM;
    if (!m->changed) {
        tsr__rope_view(r, m->store->bytes);
        return r->arena->failed ? TSR_NOMEM : TSR_OK;
    }
    bool annotated = false;
    tsr_status st = check_annotations(m, &annotated);
    if (st != TSR_OK)
        return st;
    if (annotated && (m->devices_touched || m->ir_changed) && m->ir_version < 11)
        tsr_model_set_ir_version(m, 11);
    if (m->renamed)
        touch_renamed(m);
    build_model(r, m);
    return r->arena->failed || model_status(m) != TSR_OK ? TSR_NOMEM : TSR_OK;
}

tsr_status tsr_model_save(tsr_model *m, const char *path)
{
    tsr_session *s = m->session;
    if (m->path && tsr__same_file(m->path, path)) {
        struct place at = PLACE_NONE;
        at.file = str_of(path);
        tsr__diag(s, DIAG_output_is_input, &at, "give another output name",
                  "the model was loaded from this file");
        return TSR_WRITE;
    }
    struct arena scratch;
    tsr__arena_init(&scratch, s);
    struct rope r;
    tsr__rope_init(&r, &scratch);
    struct outfile out;
    tsr_status st = build(m, &r);
    if (st == TSR_OK)
        st = tsr__out_open(s, path, &out);
    if (st == TSR_OK) {
        tsr__rope_write(&r, &out, m->store->bytes, m->store->file.fd > 0 ? m->store->file.fd : -1);
        st = tsr__out_commit(&out);
        tsr__out_abort(&out);
    }
    tsr__arena_free(&scratch);
    if (st == TSR_OK)
        tsr__external_warn(m, path);
    return st;
}

tsr_status tsr_model_save_bytes(tsr_model *m, void **bytes, size_t *n)
{
    struct arena scratch;
    tsr__arena_init(&scratch, m->session);
    struct rope r;
    tsr__rope_init(&r, &scratch);
    tsr_status st = build(m, &r);
    char *out = NULL;
    if (st == TSR_OK) {
        out = tsr__alloc(m->session, rope_size(&r) ? rope_size(&r) : 1);
        if (!out)
            st = TSR_NOMEM;
    }
    if (st == TSR_OK) {
        tsr__rope_read(&r, out);
        *bytes = out;
        *n = rope_size(&r);
    }
    tsr__arena_free(&scratch);
    return st;
}

void tsr_bytes_free(tsr_session *s, void *bytes, size_t n)
{
    if (bytes)
        tsr__free(s, bytes, n ? n : 1);
}
