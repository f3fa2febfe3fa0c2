// SPDX-License-Identifier: Apache-2.0
// model.c - a model as a whole: loading, versions, operator sets, metadata, functions.
//
// Loading: the file is mapped, the store keeps the map, and serde/read.c makes objects that are
// views of it. Nothing of the model is valid after tsr_model_free but what a clone shares. Setting
// what holds already changes nothing, here as everywhere in this room, so that a model that was not
// really changed is saved with the same bytes.
#include "ir/internal.h"

// ---- loading --------------------------------------------------------------------------------

// Objects may take so many times the bytes they are read from, and some more: an empty message is two bytes in the
// file, and hundreds as a function or a graph. Together with the file and the program that stays below 16 times and 64 MiB.
#define OBJECTS_TIMES 14
#define OBJECTS_LEAST ((size_t)40 << 20)

// Counted from what the session has in use already. 0, which means no limit, where the product does
// not fit: no machine could hold such a file.
static size_t budget_of(const tsr_session *session, size_t bytes)
{
    size_t budget;
    if (__builtin_mul_overflow(bytes, OBJECTS_TIMES, &budget) ||
        __builtin_add_overflow(budget, OBJECTS_LEAST + session->memory_used, &budget))
        return 0;
    return budget;
}

// ---- files of other kinds

// Asked only where the bytes are no model, so that a kind is never in the way of one.
static const struct kind_row {
    size_t at; // where the bytes stand
    const char *bytes, *kind, *help;
} kind_rows[] = {
    {0, "GGUF", "a GGUF model (llama.cpp)", "export the model to ONNX"},
    {4, "TFL3", "a TensorFlow Lite model", "convert it to ONNX, for example with tf2onnx"},
    {0, "PK\x03\x04", "a zip archive (PyTorch, Keras, .npz)",
     "unpack it, or export the model to ONNX: torch.onnx.export"},
    {0, "\x1f\x8b", "a file packed with gzip", "unpack it first: gunzip"},
    {0, "\x89HDF", "an HDF5 file (Keras)", "convert it to ONNX, for example with tf2onnx"},
    {0, "\x80\x02", "a Python pickle", "export the model to ONNX: torch.onnx.export"},
    {0, "\x80\x04", "a Python pickle", "export the model to ONNX: torch.onnx.export"},
    {0, "\x93NUMPY", "a NumPy array", "give the model; arrays are given with --inputs"},
    {8, "{\"", "weights alone (safetensors)", "give the .onnx file that uses them"},
    {0, "version https://git-lfs", "a pointer of Git LFS, not the file",
     "fetch the file itself: git lfs pull"},
    {0, "<", "an HTML or XML text", "fetch the file again: the page stands in its place"},
    {0, "{", "a JSON text", "give the .onnx file (protobuf)"},
    {0, "ir_version", "an ONNX model as text",
     "save it as protobuf: onnx.save(onnx.load(FILE, format=\"textproto\"), OUT)"},
};

static const struct kind_row *kind_of(struct str bytes)
{
    for (size_t i = 0; i < TSR_COUNT(kind_rows); i++) {
        const struct kind_row *row = &kind_rows[i];
        size_t n = strlen(row->bytes);
        if (bytes.n >= row->at + n && memcmp(bytes.p + row->at, row->bytes, n) == 0)
            return row;
    }
    return NULL;
}

// What the file is, in the place of where its bytes cease to be a model.
static void name_kind(const tsr_model *model, const struct diag_mark *mark)
{
    const struct kind_row *row = kind_of(model->store->bytes);
    struct place at = PLACE_NONE;
    if (!row)
        return;
    tsr__diag_back(model->session, mark, false);
    if (model->path)
        at.file = str_of(model->path);
    tsr__diag(model->session, DIAG_model_kind, &at, row->help, "this is %s, and no ONNX file",
              row->kind);
}

// Reads the objects, within the budget of memory that their bytes allow. Frees the model if that fails.
static tsr_status finish_load(tsr_model *model, tsr_model **out)
{
    struct diag_mark mark = tsr__diag_mark(model->session);
    model->session->memory_budget = budget_of(model->session, model->store->bytes.n);
    tsr_status st = tsr__serde_read(model);
    model->session->memory_budget = 0;
    if (st == TSR_MALFORMED)
        name_kind(model, &mark);
    if (st != TSR_OK) {
        tsr_model_free(model);
        return st;
    }
    *out = model;
    return TSR_OK;
}

// The path is kept in the store, which lives as long as anything that may still need the folder of the file.
tsr_status tsr_model_load(tsr_session *session, const char *path, tsr_model **out)
{
    if (!path)
        return tsr__missing(session, "path");
    if (!out)
        return tsr__missing(session, "out");
    tsr_model *model = tsr__model_make(session);
    if (!model)
        return TSR_NOMEM;
    tsr_status st = TSR_NOMEM;
    struct str kept = tsr__arena_str(&model->store->arena, str_of(path));
    if (!kept.p)
        goto free_model;
    st = tsr__file_map(session, path, &model->store->file);
    if (st != TSR_OK)
        goto free_model;
    model->path = model->store->path = kept.p;
    model->store->bytes = model->store->file.bytes;
    if (model->store->bytes.n)
        return finish_load(model, out);
    struct place at = PLACE_NONE;
    at.file = kept;
    tsr__diag(session, DIAG_model_empty, &at, "fetch or export it again", "the file is empty");
    st = TSR_MALFORMED;
free_model:
    tsr_model_free(model);
    return st;
}

// The bytes are not copied: they must stay as they are until the model and all that shares its
// store are freed. Without a path there is no folder, so external data cannot be read.
tsr_status tsr_model_load_bytes(tsr_session *session, const void *bytes, size_t n, tsr_model **out)
{
    if (!bytes && n)
        return tsr__missing(session, "bytes");
    if (!out)
        return tsr__missing(session, "out");
    tsr_model *model = tsr__model_make(session);
    if (!model)
        return TSR_NOMEM;
    model->store->bytes = (struct str){bytes, n};
    return finish_load(model, out);
}

// There are no bytes to refer to, so everything counts as changed and is written from the objects.
tsr_status tsr_model_new(tsr_session *session, const char *graph_name, int64_t ir_version,
                         tsr_model **out)
{
    if (!out)
        return tsr__missing(session, "out");
    tsr_model *model = tsr__model_make(session);
    if (!model)
        return TSR_NOMEM;
    model->graph = tsr__graph_make(model, 0);
    model->producer = STR("");
    if (model->graph) {
        model->graph->name = tsr__keep(model, str_of(graph_name));
        model->graph->flags = G_NAME | G_TEXT;
    }
    model->ir_version = ir_version;
    model->has_ir_version = model->ir_changed = true;
    model->changed = model->devices_touched = true;
    model->opsets_changed = model->metadata_changed = model->configs_changed = true;
    if (model_status(model) != TSR_OK) {
        tsr_model_free(model);
        return TSR_NOMEM;
    }
    *out = model;
    return TSR_OK;
}

// ---- properties -----------------------------------------------------------------------------

tsr_session *tsr_model_session(const tsr_model *model)
{
    return model->session;
}
const char *tsr_model_path(const tsr_model *model)
{
    if (model->path)
        return model->path;
    return "";
}
int64_t tsr_model_ir_version(const tsr_model *model)
{
    return model->ir_version;
}
const char *tsr_model_producer(const tsr_model *model)
{
    return model->producer.p;
}
size_t tsr_model_opset_count(const tsr_model *model)
{
    return model->opsets.n;
}
tsr_graph *tsr_model_graph(const tsr_model *model)
{
    return model->graph;
}
size_t tsr_model_function_count(const tsr_model *model)
{
    return model->functions.n;
}
const char *tsr_function_name(const tsr_function *function)
{
    return function->name.p;
}
const char *tsr_function_domain(const tsr_function *function)
{
    return function->domain.p;
}
tsr_graph *tsr_function_graph(const tsr_function *function)
{
    return function->graph;
}

tsr_function *tsr_model_function(const tsr_model *model, size_t i)
{
    if (i < model->functions.n)
        return model->functions.at[i];
    return NULL;
}

const char *tsr_model_opset_domain(const tsr_model *model, size_t i)
{
    if (i < model->opsets.n)
        return model->opsets.at[i].domain.p;
    return NULL;
}

int64_t tsr_model_opset_version(const tsr_model *model, size_t i)
{
    if (i < model->opsets.n)
        return model->opsets.at[i].version;
    return 0;
}

tsr_status tsr_model_set_ir_version(tsr_model *model, int64_t version)
{
    if (model->has_ir_version && model->ir_version == version)
        return TSR_OK;
    model->ir_version = version;
    model->has_ir_version = model->ir_changed = model->changed = true;
    return TSR_OK;
}

tsr_status tsr__model_allow_configs(tsr_model *model)
{
    if (model->ir_version >= 11)
        return TSR_OK;
    return tsr_model_set_ir_version(model, 11);
}

// Adds the opsets to the index that came since it was used last. Of one domain twice, the first.
static void index_opsets(tsr_model *model)
{
    if (model->n_opsets_indexed == 0)
        tsr__map_init(&model->opset_index, &model->arena, 0);
    for (; model->n_opsets_indexed < model->opsets.n; model->n_opsets_indexed++) {
        size_t i = model->n_opsets_indexed;
        void **at = tsr__map_at(&model->opset_index, model->opsets.at[i].domain);
        if (!at)
            return;
        if (!*at)
            *at = (void *)(uintptr_t)(i + 1);
    }
}

// The first of a domain; `domain` is "" for ai.onnx. NULL: there is none, or out of memory.
static struct opset *find_opset(tsr_model *model, struct str domain)
{
    index_opsets(model);
    uintptr_t at = (uintptr_t)tsr__map_get(&model->opset_index, domain);
    return at ? &model->opsets.at[at - 1] : NULL;
}

// "ai.onnx" is the long name of the domain "". An entry of the file keeps its place in the list, and its
// bytes but for the version. Counts as an edit: an operator may mean something else in another version.
tsr_status tsr_model_set_opset(tsr_model *model, const char *domain, int64_t version)
{
    struct str name = str_of(domain);
    if (str_is(name, "ai.onnx"))
        name = STR("");
    struct opset *opset = find_opset(model, name);
    if (opset && opset->version == version)
        return TSR_OK;
    if (!opset) {
        opset = model->arena.failed ? NULL : vec_push(&model->arena, &model->opsets);
        if (!opset)
            return TSR_NOMEM;
        opset->domain = tsr__keep(model, name);
    }
    opset->version = version;
    opset->changed = model->opsets_changed = model->changed = true;
    model->n_edits++;
    return model_status(model);
}

// ---- metadata -------------------------------------------------------------------------------

// Of two entries with one key, which a file may have, the first.
static struct metadata *find_metadata(const tsr_model *model, const char *key)
{
    for (size_t i = 0; i < model->metadata.n; i++)
        if (str_is(model->metadata.at[i].key, key))
            return &model->metadata.at[i];
    return NULL;
}

const char *tsr_model_metadata(const tsr_model *model, const char *key)
{
    const struct metadata *metadata = find_metadata(model, key);
    if (metadata)
        return metadata->value.p;
    return NULL;
}

// value == NULL removes the entry. Setting what is there already leaves the model unchanged, so that it
// is saved as it was read.
tsr_status tsr_model_set_metadata(tsr_model *model, const char *key, const char *value)
{
    struct metadata *entry = find_metadata(model, key);
    if (!value && !entry)
        return TSR_OK;
    if (value && entry && str_is(entry->value, value))
        return TSR_OK;
    model->metadata_changed = model->changed = true;
    if (!value) {
        size_t after = model->metadata.n - (size_t)(entry - model->metadata.at) - 1;
        memmove(entry, entry + 1, after * sizeof(*entry));
        model->metadata.n--;
        return TSR_OK;
    }
    if (!entry) {
        entry = vec_push(&model->arena, &model->metadata);
        if (!entry)
            return TSR_NOMEM;
        *entry = (struct metadata){.key = tsr__keep(model, str_of(key))};
    }
    entry->value = tsr__keep(model, str_of(value));
    entry->changed = true;
    return model_status(model);
}
