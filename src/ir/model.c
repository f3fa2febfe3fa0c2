// SPDX-License-Identifier: Apache-2.0
// model.c - a model as a whole: loading, versions, operator sets, metadata, functions.
#include "ir/internal.h"

// ---- loading --------------------------------------------------------------------------------

static tsr_status finish_load(tsr_model *m, tsr_model **out)
{
    tsr_status st = tsr__serde_read(m);
    if (st != TSR_OK) {
        tsr_model_free(m);
        return st;
    }
    *out = m;
    return TSR_OK;
}

tsr_status tsr_model_load(tsr_session *s, const char *path, tsr_model **out)
{
    tsr_model *m = tsr__model_make(s);
    if (!m)
        return TSR_NOMEM;
    struct str kept = tsr__arena_str(&m->store->arena, str_of(path));
    tsr_status st = kept.p ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__file_map(s, path, &m->store->file);
    if (st != TSR_OK) {
        tsr_model_free(m);
        return st;
    }
    m->path = m->store->path = kept.p;
    m->store->bytes = m->store->file.bytes;
    return finish_load(m, out);
}

tsr_status tsr_model_load_bytes(tsr_session *s, const void *bytes, size_t n, tsr_model **out)
{
    tsr_model *m = tsr__model_make(s);
    if (!m)
        return TSR_NOMEM;
    m->store->bytes = (struct str){bytes, n};
    return finish_load(m, out);
}

tsr_status tsr_model_new(tsr_session *s, const char *graph_name, int64_t ir_version,
                         tsr_model **out)
{
    tsr_model *m = tsr__model_make(s);
    if (!m)
        return TSR_NOMEM;
    m->graph = tsr__graph_make(m, 0);
    m->producer = STR("");
    if (m->graph) {
        m->graph->name = tsr__keep(m, str_of(graph_name));
        m->graph->flags = G_NAME | G_TEXT;
    }
    m->ir_version = ir_version;
    m->has_ir_version = m->ir_changed = true;
    m->changed = m->devices_touched = true;
    m->opsets_changed = m->metadata_changed = m->configs_changed = true;
    if (model_status(m) != TSR_OK) {
        tsr_model_free(m);
        return TSR_NOMEM;
    }
    *out = m;
    return TSR_OK;
}

// ---- properties -----------------------------------------------------------------------------

tsr_session *tsr_model_session(const tsr_model *m)
{
    return m->session;
}
const char *tsr_model_path(const tsr_model *m)
{
    return m->path ? m->path : "";
}
int64_t tsr_model_ir_version(const tsr_model *m)
{
    return m->ir_version;
}
const char *tsr_model_producer(const tsr_model *m)
{
    return m->producer.p;
}
size_t tsr_model_opset_count(const tsr_model *m)
{
    return m->opsets.n;
}
tsr_graph *tsr_model_graph(const tsr_model *m)
{
    return m->graph;
}
size_t tsr_model_function_count(const tsr_model *m)
{
    return m->functions.n;
}
const char *tsr_function_name(const tsr_function *f)
{
    return f->name.p;
}
const char *tsr_function_domain(const tsr_function *f)
{
    return f->domain.p;
}
tsr_graph *tsr_function_graph(const tsr_function *f)
{
    return f->graph;
}

tsr_function *tsr_model_function(const tsr_model *m, size_t i)
{
    return i < m->functions.n ? m->functions.at[i] : NULL;
}

const char *tsr_model_opset_domain(const tsr_model *m, size_t i)
{
    return i < m->opsets.n ? m->opsets.at[i].domain.p : NULL;
}

int64_t tsr_model_opset_version(const tsr_model *m, size_t i)
{
    return i < m->opsets.n ? m->opsets.at[i].version : 0;
}

tsr_status tsr_model_set_ir_version(tsr_model *m, int64_t version)
{
    if (m->has_ir_version && m->ir_version == version)
        return TSR_OK;
    m->ir_version = version;
    m->has_ir_version = m->ir_changed = m->changed = true;
    return TSR_OK;
}

tsr_status tsr_model_set_opset(tsr_model *m, const char *domain, int64_t version)
{
    struct str name = str_of(domain);
    if (str_is(name, "ai.onnx"))
        name = STR("");
    struct opset *o = NULL;
    for (size_t i = 0; i < m->opsets.n && !o; i++)
        if (str_eq(m->opsets.at[i].domain, name))
            o = &m->opsets.at[i];
    if (o && o->version == version)
        return TSR_OK;
    if (!o) {
        o = vec_push(&m->arena, &m->opsets);
        if (!o)
            return TSR_NOMEM;
        o->domain = tsr__keep(m, name);
    }
    o->version = version;
    o->changed = m->opsets_changed = m->changed = true;
    m->n_edits++;
    return model_status(m);
}

// ---- metadata -------------------------------------------------------------------------------

static struct metadata *find_metadata(const tsr_model *m, const char *key)
{
    for (size_t i = 0; i < m->metadata.n; i++)
        if (str_is(m->metadata.at[i].key, key))
            return &m->metadata.at[i];
    return NULL;
}

const char *tsr_model_metadata(const tsr_model *m, const char *key)
{
    const struct metadata *e = find_metadata(m, key);
    return e ? e->value.p : NULL;
}

tsr_status tsr_model_set_metadata(tsr_model *m, const char *key, const char *value)
{
    struct metadata *e = find_metadata(m, key);
    if (!value && !e)
        return TSR_OK;
    if (value && e && str_is(e->value, value))
        return TSR_OK;
    m->metadata_changed = m->changed = true;
    if (!value) {
        size_t after = m->metadata.n - (size_t)(e - m->metadata.at) - 1;
        memmove(e, e + 1, after * sizeof(*e));
        m->metadata.n--;
        return TSR_OK;
    }
    if (!e) {
        e = vec_push(&m->arena, &m->metadata);
        if (!e)
            return TSR_NOMEM;
        *e = (struct metadata){.key = tsr__keep(m, str_of(key))};
    }
    e->value = tsr__keep(m, str_of(value));
    e->changed = true;
    return model_status(m);
}
