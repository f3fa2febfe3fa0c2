// SPDX-License-Identifier: Apache-2.0
// model.c - loads models; reads and sets versions, operator sets, metadata, functions.
//
// Loading maps the file. The store keeps the mapping, and serde/read.c creates objects that point
// into it. After tsr_model_free only data that a clone shares is valid. Setting a property to its
// current value changes nothing, so that an unchanged model is saved with the same bytes.
#include "ir/internal.h"

// ---- loading --------------------------------------------------------------------------------

// Memory limit for the objects of a file, as a multiple of its size. An empty message has two bytes
// in the file, but takes hundreds as a function or graph. With the mapped file and the program, the
// process stays below 16 times the size of the file plus 64 MiB.
#define OBJECTS_TIMES 14
#define OBJECTS_LEAST ((size_t)40 << 20)

// Returns the memory limit for loading a file of `bytes` bytes. It includes the memory that the
// session already uses. Returns 0 (no limit) on overflow.
static size_t budget_of(const tsr_session *session, size_t bytes)
{
    size_t budget;
    if (__builtin_mul_overflow(bytes, OBJECTS_TIMES, &budget) ||
        __builtin_add_overflow(budget, OBJECTS_LEAST + session->memory_used, &budget))
        return 0;
    return budget;
}

// ---- detecting other file formats

// Other formats by their first bytes. Used only for files that are not valid models.
static const struct kind_row {
    size_t at; // offset of the bytes
    const char *bytes, *kind, *help;
} kind_rows[] = {
    {0, "GGUF", "a GGUF model (llama.cpp)", "export the model to ONNX"},
    {4, "ORTM", "a model in ORT format (ONNX Runtime)", "use the .onnx file that it was made from"},
    {4, "TFL3", "a TensorFlow Lite model", "convert it to ONNX, for example with tf2onnx"},
    {0, "PK\x03\x04", "a zip archive (PyTorch, Keras, .npz)",
     "unpack it, or export the model to ONNX: torch.onnx.export"},
    {0, "\x1f\x8b", "a file packed with gzip", "unpack it first: gunzip"},
    {0, "\x89HDF", "an HDF5 file (Keras)", "convert it to ONNX, for example with tf2onnx"},
    {0, "\x80\x02", "a Python pickle", "export the model to ONNX: torch.onnx.export"},
    {0, "\x80\x04", "a Python pickle", "export the model to ONNX: torch.onnx.export"},
    {0, "\x93NUMPY", "a NumPy array", "use the model file; arrays are passed with --inputs"},
    {8, "{\"", "a file of weights (safetensors)", "use the .onnx file of the model"},
    {0, "\x89PNG", "a picture (PNG)", "use the .onnx file of the model"},
    {0, "\xff\xd8\xff", "a picture (JPEG)", "use the .onnx file of the model"},
    {0, "%PDF", "a PDF document", "use the .onnx file of the model"},
    {0, "\177ELF", "a program or a library", "use the .onnx file of the model"},
    {0, "version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"},
    {0, "<", "an HTML or XML text", "download the file again: this is a web page"},
    {0, "{", "a JSON text", "use the .onnx file (protobuf)"},
    {0, "ir_version", "an ONNX model as text",
     "save it as protobuf: onnx.save(onnx.load(FILE, format=\"textproto\"), OUT)"},
};

static const struct kind_row text_row = {0, "", "a text file", "use the .onnx file of the model"};

// True if the first 64 bytes are printable, or all bytes of a file of 16 to 63 bytes. The first
// bytes of a valid model are not.
static bool is_text(struct str bytes)
{
    size_t n = bytes.n < 64 ? bytes.n : 64;
    for (size_t i = 0; i < n; i++)
        if ((bytes.p[i] < ' ' || bytes.p[i] > '~') && !memchr("\t\r\n", bytes.p[i], 3))
            return false;
    return n >= 16;
}

static const struct kind_row *kind_of(struct str bytes)
{
    for (size_t i = 0; i < TSR_COUNT(kind_rows); i++) {
        const struct kind_row *row = &kind_rows[i];
        size_t n = strlen(row->bytes);
        if (bytes.n >= row->at + n && memcmp(bytes.p + row->at, row->bytes, n) == 0)
            return row;
    }
    return is_text(bytes) ? &text_row : NULL;
}

// Replaces the error of the parser by one that names the format of the file.
static void name_kind(const tsr_model *model, const struct diag_mark *mark)
{
    const struct kind_row *row = kind_of(model->store->bytes);
    struct place at = PLACE_NONE;
    if (!row)
        return;
    tsr__diag_back(model->session, mark, false);
    if (model->path)
        at.file = str_of(model->path);
    tsr__diag(model->session, DIAG_model_kind, &at, row->help, "not an ONNX file: looks like %s",
              row->kind);
}

// Reads the objects within the memory limit. Frees the model on failure.
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

// Loads a model from a file. The path is stored in the store, which lives as long as the folder of
// the file may be needed.
tsr_status tsr_model_load(tsr_session *session, const char *path, tsr_model **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "path", path));
    TRY(tsr__given(session, "out", out));
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
    tsr__diag(session, DIAG_model_empty, &PLACE(.file = kept), "download or export it again",
              "the file is empty");
    st = TSR_MALFORMED;
free_model:
    tsr_model_free(model);
    return st;
}

tsr_status tsr__model_add_data_folder(tsr_model *model, const char *file)
{
    return tsr__store_add_data(model->store, file);
}

// Loads a model from memory. The bytes are not copied and must stay valid until the model and its
// clones are freed. Without a path, external data cannot be read.
tsr_status tsr_model_load_bytes(tsr_session *session, const void *bytes, size_t n, tsr_model **out)
{
    if (!session)
        return TSR_INVALID;
    if (!bytes && n)
        return tsr__missing(session, "bytes");
    TRY(tsr__given(session, "out", out));
    tsr_model *model = tsr__model_make(session);
    if (!model)
        return TSR_NOMEM;
    model->store->bytes = (struct str){bytes, n};
    return finish_load(model, out);
}

// Creates a model with an empty graph. A new model has no bytes in a file, so everything is marked
// as changed.
tsr_status tsr_model_new(tsr_session *session, const char *graph_name, int64_t ir_version,
                         tsr_model **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "out", out));
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
    return model->path ? model->path : "";
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
    return i < model->functions.n ? model->functions.at[i] : NULL;
}

const char *tsr_model_opset_domain(const tsr_model *model, size_t i)
{
    return i < model->opsets.n ? model->opsets.at[i].domain.p : NULL;
}

int64_t tsr_model_opset_version(const tsr_model *model, size_t i)
{
    return i < model->opsets.n ? model->opsets.at[i].version : 0;
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
    return model->ir_version >= 11 ? TSR_OK : tsr_model_set_ir_version(model, 11);
}

// Indexes the opsets that were added since the last call. If a domain occurs twice, the last is
// used (opset_of).
static void index_opsets(tsr_model *model)
{
    if (model->n_opsets_indexed == 0)
        tsr__map_init(&model->opset_index, &model->arena, 0);
    for (; model->n_opsets_indexed < model->opsets.n; model->n_opsets_indexed++) {
        size_t i = model->n_opsets_indexed;
        if (!tsr__map_set(&model->opset_index, model->opsets.at[i].domain,
                          (void *)(uintptr_t)(i + 1)))
            return;
    }
}

// Returns the opset that the model imports for a domain, or NULL. `domain` is "" for ai.onnx.
static struct opset *find_opset(tsr_model *model, struct str domain)
{
    index_opsets(model);
    uintptr_t at = (uintptr_t)tsr__map_get(&model->opset_index, domain);
    return at ? &model->opsets.at[at - 1] : NULL;
}

// Sets the version of the opset of a domain, and adds the opset if it is missing. "ai.onnx" is the
// long name of the domain "". An entry of the file keeps its place in the list.
tsr_status tsr_model_set_opset(tsr_model *model, const char *domain, int64_t version)
{
    struct str name = plain_domain(str_of(domain));
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

// Finds a metadata entry by key, or returns NULL. If a file has two with the key, returns the
// first.
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
    return metadata ? metadata->value.p : NULL;
}

// Sets the value of a key. If `value` is NULL, removes the entry.
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

int64_t tsr__model_weight_bytes(const tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    int64_t all = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++) {
        const tsr_tensor *tensor = tsr_value_initializer(tsr_graph_initializer(graph, i));
        int64_t bits = tsr_dtype_bits(tsr_tensor_dtype(tensor));
        for (int d = 0; d < tsr_tensor_rank(tensor); d++)
            if (!mul_ok(bits, tsr_tensor_dims(tensor)[d], &bits))
                return INT64_MAX;
        if (!add_ok(all, bits / 8, &all))
            return INT64_MAX;
    }
    return all;
}
