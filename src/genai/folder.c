// SPDX-License-Identifier: Apache-2.0
// folder.c - opens a generation folder: finds its model, its caches, and the sizes that belong together.
//
// Little is taken from the configuration (numbers of heads, the context's length); names come from the graph, so that
// any exporter's do: an input `past_key_values.0.key` has its cache in the output `present.0.key`, `past_0_k` in `present_0_k`.
#include "genai/internal.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#define MAX_CONFIG (16u << 20)

// ---- the configuration -------------------------------------------------------------------------

static bool is_file(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return false;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool tsr_folder_is(const char *path)
{
    if (is_file(path, GENAI_CONFIG))
        return true;
    return is_file(path, OPTIMUM_CONFIG) && is_file(path, "model.onnx");
}

static const json_t *decoder_of(const tsr_folder *f)
{
    const json_t *model = json_object_get(f->config, "model");
    const json_t *decoder = model ? json_object_get(model, "decoder") : NULL;
    return decoder ? decoder : f->config;
}

int64_t tsr__genai_number(const tsr_folder *f, const char *key)
{
    const json_t *model = json_object_get(f->config, "model");
    const json_t *places[] = {decoder_of(f), model, f->config};
    for (size_t i = 0; i < TSR_COUNT(places); i++) {
        const json_t *number = places[i] ? json_object_get(places[i], key) : NULL;
        if (json_is_integer(number) && json_integer_value(number) > 0)
            return json_integer_value(number);
    }
    return 0;
}

static tsr_status refuse(tsr_folder *f, const char *file, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    tsr__diag(f->session, DIAG_folder_malformed, &at,
              "a generation folder has genai_config.json, or config.json and model.onnx", "%s",
              what);
    return TSR_MALFORMED;
}

static tsr_status read_config(tsr_folder *f)
{
    const char *name = f->is_genai ? GENAI_CONFIG : OPTIMUM_CONFIG;
    const char *path = tsr__arena_printf(&f->arena, "%s/%s", f->path, name).p;
    struct str text;
    json_error_t error;
    if (!path)
        return TSR_NOMEM;
    tsr_status st = tsr__file_read(f->session, &f->arena, path, MAX_CONFIG, &text);
    if (st != TSR_OK)
        return st;
    f->config = json_loadb(text.p ? text.p : "", text.n, 0, &error);
    if (!json_is_object(f->config))
        return refuse(f, path, "this is no JSON object");
    f->heads = tsr__genai_number(f, "num_attention_heads");
    f->kv_heads = tsr__genai_number(f, "num_key_value_heads");
    f->head_size = tsr__genai_number(f, "head_size");
    f->context = tsr__genai_number(f, f->is_genai ? "context_length" : "max_position_embeddings");
    f->vocabulary = tsr__genai_number(f, "vocab_size");
    if (!f->kv_heads)
        f->kv_heads = f->heads;
    if (!f->head_size && f->heads)
        f->head_size = tsr__genai_number(f, "hidden_size") / f->heads;
    return TSR_OK;
}

// The model's file inside the folder: a plain name, never a way out of it.
static tsr_status find_model(tsr_folder *f)
{
    const json_t *name = f->is_genai ? json_object_get(decoder_of(f), "filename") : NULL;
    const char *file = json_is_string(name) ? json_string_value(name) : "model.onnx";
    if (strchr(file, '/') || strcmp(file, "..") == 0)
        return refuse(f, f->path, "the model's file is not named plainly");
    f->model_path = tsr__arena_printf(&f->arena, "%s/%s", f->path, file).p;
    return f->model_path ? TSR_OK : TSR_NOMEM;
}

// ---- caches ------------------------------------------------------------------------------------

// The name with the first `from` in it replaced by `to`; NULL: it has none, or no memory.
static const char *renamed(tsr_folder *f, const char *name, const char *from, const char *to)
{
    const char *at = strstr(name, from);
    if (!at)
        return NULL;
    return tsr__arena_printf(&f->arena, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from))
        .p;
}

static bool is_output(const tsr_graph *g, const char *name)
{
    tsr_value *v = name ? tsr_graph_value(g, name) : NULL;
    return v && tsr_value_is_output(v);
}

static const char *present_of(tsr_folder *f, const tsr_graph *g, const char *past)
{
    static const char *const ways[][2] = {{"past_key_values", "present"},
                                          {"past_key_values", "present_key_values"},
                                          {"past", "present"}};
    for (size_t i = 0; i < TSR_COUNT(ways); i++) {
        const char *name = renamed(f, past, ways[i][0], ways[i][1]);
        if (is_output(g, name))
            return name;
    }
    return NULL;
}

static tsr_status find_caches(tsr_folder *f)
{
    const tsr_graph *g = tsr_model_graph(f->model);
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        const char *present = present_of(f, g, tsr_value_name(v));
        if (!present || tsr_value_rank(v) != 4)
            continue;
        struct cache *cache = vec_push(&f->arena, &f->caches);
        if (!cache)
            return TSR_NOMEM;
        *cache = (struct cache){tsr_value_name(v), present};
    }
    return f->arena.failed ? TSR_NOMEM : TSR_OK;
}

int64_t tsr__genai_cache_heads(const tsr_folder *f)
{
    if (!f->caches.n)
        return 0;
    const tsr_graph *g = tsr_model_graph(f->model);
    tsr_dim heads = tsr_value_dim(tsr_graph_value(g, f->caches.at[0].past), 1);
    return heads.value > 0 ? heads.value : f->kv_heads;
}

// ---- sizes -------------------------------------------------------------------------------------

struct sizes {
    tsr_folder *folder;
    VEC(tsr_size) list;
};

// The name of that dimension gets this size, unless it is a number, an expression, or has one.
static void name_size(struct sizes *s, const tsr_value *v, int axis, int64_t size)
{
    if (!v || axis >= tsr_value_rank(v))
        return;
    tsr_dim dim = tsr_value_dim(v, axis);
    if (dim.value >= 0 || !dim.symbol[0] || strpbrk(dim.symbol, " +-*/()"))
        return;
    for (size_t i = 0; i < s->list.n; i++)
        if (strcmp(s->list.at[i].name, dim.symbol) == 0)
            return;
    tsr_size *entry = vec_push(&s->folder->arena, &s->list);
    if (entry)
        *entry = (tsr_size){dim.symbol, size};
}

tsr_status tsr__genai_sizes(tsr_folder *f, int64_t tokens, int64_t past, const tsr_size **out,
                            size_t *n)
{
    const tsr_graph *g = tsr_model_graph(f->model);
    struct sizes s = {.folder = f};
    const tsr_value *ids = tsr_graph_value(g, "input_ids");
    const tsr_value *mask = tsr_graph_value(g, "attention_mask");
    name_size(&s, ids, 0, 1);
    name_size(&s, ids, 1, tokens);
    name_size(&s, mask, 1, past + tokens);
    for (size_t i = 0; i < f->caches.n; i++) {
        const tsr_value *cache = tsr_graph_value(g, f->caches.at[i].past);
        name_size(&s, cache, 0, 1);
        name_size(&s, cache, 1, f->kv_heads);
        name_size(&s, cache, 2, past);
        name_size(&s, cache, 3, f->head_size);
        name_size(&s, tsr_graph_value(g, f->caches.at[i].present), 2, past + tokens);
    }
    *out = s.list.at;
    *n = s.list.n;
    return f->arena.failed ? TSR_NOMEM : TSR_OK;
}

// ---- the folder --------------------------------------------------------------------------------

void tsr_folder_free(tsr_folder *f)
{
    if (!f)
        return;
    tsr_session *s = f->session;
    tsr_model_free(f->model);
    json_decref(f->config);
    tsr__arena_free(&f->arena);
    tsr__free(s, f, sizeof *f);
}

tsr_status tsr_folder_open(tsr_session *s, const char *path, tsr_folder **out)
{
    tsr_folder *f = tsr__alloc(s, sizeof *f);
    if (!f)
        return TSR_NOMEM;
    *f = (tsr_folder){.session = s, .is_genai = is_file(path, GENAI_CONFIG)};
    tsr__arena_init(&f->arena, s);
    f->path = tsr__arena_str(&f->arena, str_of(path)).p;
    tsr_status st = f->path ? read_config(f) : TSR_NOMEM;
    if (st == TSR_OK)
        st = find_model(f);
    if (st == TSR_OK)
        st = tsr_model_load(s, f->model_path, &f->model);
    if (st == TSR_OK)
        st = find_caches(f);
    if (st != TSR_OK) {
        tsr_folder_free(f);
        return st;
    }
    *out = f;
    return TSR_OK;
}

const char *tsr_folder_model(const tsr_folder *f)
{
    return f->model_path;
}

bool tsr_folder_cache(const tsr_folder *f, size_t i, const char **past, const char **present)
{
    if (i >= f->caches.n)
        return false;
    *past = f->caches.at[i].past;
    *present = f->caches.at[i].present;
    return true;
}

tsr_status tsr_folder_sizes(tsr_folder *f, int64_t tokens, int64_t past, const tsr_size **out,
                            size_t *n)
{
    return tsr__genai_sizes(f, tokens, past, out, n);
}
