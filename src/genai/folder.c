// SPDX-License-Identifier: Apache-2.0
// folder.c - opens a generation folder (a language model with genai_config.json or Optimum's
// config.json): finds the model, its KV caches, and consistent sizes of its inputs.
//
// A few numbers come from the configuration (heads, context length), and names that differ from the
// usual ones: {"inputs": {"input_ids": "tokens"}}. The graph decides which of them the model has.
// States without a name in the configuration are recognized, so that every exporter works: the next
// value of the input `past_key_values.0.key` is the output `present.0.key`, that of `past_0_k` is
// `present_0_k`.
//
// All texts of a tsr_folder are in its arena and live until it is freed. The model is loaded for
// its names, types and shapes; its weights stay in their files.
#include "genai/internal.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#define MAX_CONFIG (16u << 20)

// ---- the configuration -------------------------------------------------------------------------

// True if the folder contains the file. A path that is too long gives false.
static bool is_file(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return false;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool tsr_is_genai_folder(const char *path)
{
    if (is_file(path, GENAI_CONFIG))
        return true;
    return is_file(path, OPTIMUM_CONFIG) && is_file(path, "model.onnx");
}

// Returns the object with the decoder's keys. onnxruntime-genai has {"model": {"decoder": {...}}};
// Optimum has all keys at the top level.
static const json_t *decoder_of(const tsr_folder *folder)
{
    const json_t *model = json_object_get(folder->config, "model");
    const json_t *decoder = NULL;
    if (model)
        decoder = json_object_get(model, "decoder");
    return decoder ? decoder : folder->config;
}

// Returns a number of the configuration. Searches from the innermost object outwards. Numbers below
// 1 are treated as absent.
int64_t tsr__genai_number(const tsr_folder *folder, const char *key)
{
    const json_t *model = json_object_get(folder->config, "model");
    const json_t *places[] = {decoder_of(folder), model, folder->config};
    for (size_t i = 0; i < TSR_COUNT(places); i++) {
        const json_t *number = places[i] ? json_object_get(places[i], key) : NULL;
        if (json_is_integer(number) && json_integer_value(number) > 0)
            return json_integer_value(number);
    }
    return 0;
}

// Returns the name of an input or output of the decoder in the graph. The default is the key.
static const char *port_name(const tsr_folder *folder, const char *kind, const char *key)
{
    const json_t *name = json_object_get(json_object_get(decoder_of(folder), kind), key);
    return json_is_string(name) ? json_string_value(name) : key;
}

// Stores the names of the ports. They are valid as long as the configuration.
static void name_ports(tsr_folder *folder)
{
    folder->ids = port_name(folder, "inputs", "input_ids");
    folder->embeds = port_name(folder, "inputs", "inputs_embeds");
    folder->mask = port_name(folder, "inputs", "attention_mask");
    folder->positions = port_name(folder, "inputs", "position_ids");
    folder->logits = port_name(folder, "outputs", "logits");
}

static tsr_status report_malformed(tsr_folder *folder, const char *file, const char *what)
{
    return tsr__fail(
        folder->session, TSR_MALFORMED, DIAG_folder_malformed, &PLACE(.file = str_of(file)),
        "a generation folder has genai_config.json, or config.json and model.onnx", "%s", what);
}

// Refuses sizes that are too large for any model, because later products of them could overflow. A
// larger context length is reduced to INT32_MAX.
static tsr_status check_sizes(tsr_folder *folder, const char *path)
{
    const struct {
        const char *name;
        int64_t size;
    } sizes[] = {{"num_attention_heads", folder->heads},
                 {"num_key_value_heads", folder->kv_heads},
                 {"head_size", folder->head_size},
                 {"vocab_size", folder->vocabulary}};
    folder->context = int64_min(folder->context, INT32_MAX);
    for (size_t i = 0; i < TSR_COUNT(sizes); i++)
        if (sizes[i].size > INT32_MAX)
            return tsr__fail(folder->session, TSR_MALFORMED, DIAG_folder_malformed,
                             &PLACE(.file = str_of(path)),
                             "correct it: the largest size is 2147483647", "%s is %lld: too large",
                             sizes[i].name, (long long)sizes[i].size);
    return TSR_OK;
}

// Reads the configuration. Missing sizes are derived: key heads default to query heads, the head
// size to hidden_size / heads. 0: unknown.
static tsr_status read_config(tsr_folder *folder)
{
    const char *name = folder->is_genai ? GENAI_CONFIG : OPTIMUM_CONFIG;
    const char *path = tsr__arena_printf(&folder->arena, "%s/%s", folder->path, name).p;
    struct str text;
    json_error_t error;
    if (!path)
        return TSR_NOMEM;
    TRY(tsr__file_read(folder->session, &folder->arena, path, MAX_CONFIG, &text));
    // Invalid JSON leaves the configuration NULL; it is refused below, like JSON that is not an
    // object.
    tsr_status st = tsr__json_load(folder->session, text, 0, &error, &folder->config);
    if (st == TSR_NOMEM)
        return st;
    if (!json_is_object(folder->config))
        return report_malformed(folder, path, "not a JSON object");
    folder->heads = tsr__genai_number(folder, "num_attention_heads");
    folder->kv_heads = tsr__genai_number(folder, "num_key_value_heads");
    folder->head_size = tsr__genai_number(folder, "head_size");
    folder->context =
        tsr__genai_number(folder, folder->is_genai ? "context_length" : "max_position_embeddings");
    folder->vocabulary = tsr__genai_number(folder, "vocab_size");
    if (!folder->kv_heads)
        folder->kv_heads = folder->heads;
    if (!folder->head_size && folder->heads)
        folder->head_size = tsr__genai_number(folder, "hidden_size") / folder->heads;
    name_ports(folder);
    tsr__search_read(folder);
    return check_sizes(folder, path);
}

// Finds the model's file, which must be in the folder itself: its name has no slash.
static tsr_status find_model(tsr_folder *folder)
{
    if (json_object_get(decoder_of(folder), "pipeline"))
        return tsr__fail(folder->session, TSR_UNSUPPORTED, DIAG_folder_layout,
                         &PLACE(.file = str_of(folder->path)),
                         "use tessera.Generator, or give one of the models",
                         "the decoder is a pipeline of several models");
    const json_t *name = folder->is_genai ? json_object_get(decoder_of(folder), "filename") : NULL;
    const char *file = json_is_string(name) ? json_string_value(name) : "model.onnx";
    if (strchr(file, '/') || strcmp(file, "..") == 0)
        return report_malformed(folder, folder->path,
                                "the model file name must not contain a path");
    if (!folder->is_genai && !is_file(folder->path, file))
        return report_malformed(
            folder, folder->path,
            "no model.onnx; models of several files (encoder and decoder) are not "
            "supported here: use a class of Optimum with the execution provider");
    folder->model_path = tsr__arena_printf(&folder->arena, "%s/%s", folder->path, file).p;
    return folder->model_path ? TSR_OK : TSR_NOMEM;
}

// ---- caches ------------------------------------------------------------------------------------

// Returns the digits for which `format` gives the name; empty: it gives another name. Example:
// "k_%d_cache" gives "k_12_cache" for "12".
static struct str number_in(const char *name, const char *format)
{
    const char *at = strstr(format, "%d");
    size_t n = at ? (size_t)(at - format) : 0;
    if (!at || strncmp(name, format, n) != 0)
        return (struct str){"", 0};
    size_t digits = strspn(name + n, "0123456789");
    if (strcmp(name + n + digits, at + 2) != 0)
        return (struct str){"", 0};
    return (struct str){name + n, digits};
}

// Returns the present of an input that the configuration names; NULL: it does not name it, or out
// of memory. Example: {"inputs": {"past_key_names": "k_%d"}, "outputs": {"present_key_names":
// "new_k_%d"}}: the present of "k_3" is "new_k_3".
static const char *configured_present(tsr_folder *folder, const char *past)
{
    static const char *const keys[][2] = {{"past_key_names", "present_key_names"},
                                          {"past_value_names", "present_value_names"},
                                          {"past_conv_names", "present_conv_names"},
                                          {"past_recurrent_names", "present_recurrent_names"}};
    for (size_t i = 0; i < TSR_COUNT(keys); i++) {
        struct str number = number_in(past, port_name(folder, "inputs", keys[i][0]));
        const char *format = port_name(folder, "outputs", keys[i][1]), *at = strstr(format, "%d");
        if (number.n && at)
            return tsr__arena_printf(&folder->arena, "%.*s" STR_FMT "%s", (int)(at - format),
                                     format, STR_ARG(number), at + 2)
                .p;
    }
    return NULL;
}

static bool is_output(const tsr_graph *graph, const char *name)
{
    tsr_value *value = name ? tsr_graph_value(graph, name) : NULL;
    return value && tsr_value_is_output(value);
}

// Returns the output that becomes this input in the next step; NULL: the input is not a cache. The
// names of the configuration come first.
static const char *present_of(tsr_folder *folder, const tsr_graph *graph, const tsr_value *past)
{
    const char *configured = configured_present(folder, tsr_value_name(past));
    if (is_output(graph, configured))
        return configured;
    const tsr_value *present = tsr_cache_present(past);
    return present ? tsr_value_name(present) : NULL;
}

// Callback for the nodes that read a cache: looks only at the first one. Stores its window size if
// the node keeps only a window of the tokens.
static bool take_window(void *data, tsr_node *node, size_t input)
{
    (void)input;
    if (tsr_attr_int(tsr_node_find_attr(node, "sliding_window_cache"), 0))
        *(int64_t *)data = tsr_attr_int(tsr_node_find_attr(node, "local_window_size"), 0);
    return false;
}

// True for a KV cache [batch, heads, past, head size]. Its past can change between steps, or is a
// buffer with spare capacity. Other states have a fixed size.
static bool is_kv_cache(const tsr_value *past, const tsr_value *present)
{
    if (tsr_value_rank(past) != 4)
        return false;
    return tsr_value_dim(past, 2).value < 0 || tsr_cache_has_room(past, present);
}

// Lists the KV caches and the other states, in the order of the model's inputs.
static tsr_status find_states(tsr_folder *folder)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        const char *present = present_of(folder, graph, value);
        if (!present)
            continue;
        bool is_cache = is_kv_cache(value, tsr_graph_value(graph, present));
        struct cache *state = is_cache ? vec_push(&folder->arena, &folder->caches)
                                       : vec_push(&folder->arena, &folder->states);
        if (!state)
            return TSR_NOMEM;
        *state = (struct cache){.past = tsr_value_name(value), .present = present};
        if (is_cache)
            tsr_value_uses(value, take_window, &state->window);
        state->window = int64_min(int64_max(state->window, 0), INT32_MAX);
    }
    return arena_status(&folder->arena);
}

// Returns the number of heads of the first cache; 0: no caches, or unknown. The graph takes
// precedence over the configuration.
int64_t tsr__genai_cache_heads(const tsr_folder *folder)
{
    if (!folder->caches.n)
        return 0;
    const tsr_graph *graph = tsr_model_graph(folder->model);
    tsr_dim heads = tsr_value_dim(tsr_graph_value(graph, folder->caches.at[0].past), 1);
    return heads.value > 0 ? heads.value : folder->kv_heads;
}

// ---- sizes -------------------------------------------------------------------------------------

// Sizes of named dimensions. The first size of a name is kept.
struct sizes {
    tsr_folder *folder;
    VEC(tsr_dim_size) list;
};

// Sets the size of a named dimension. Ignores numbers and expressions.
static void name_size(struct sizes *sizes, const tsr_value *value, int axis, int64_t size)
{
    if (!value || axis >= tsr_value_rank(value))
        return;
    const char *name = tsr_value_dim_name(value, axis);
    if (!name || strpbrk(tsr_value_dim(value, axis).symbol, " +-*/()"))
        return;
    for (size_t i = 0; i < sizes->list.n; i++)
        if (strcmp(sizes->list.at[i].name, name) == 0)
            return;
    vec_add(&sizes->folder->arena, &sizes->list, (tsr_dim_size){name, size});
}

// Sets the sizes of positions [batch, tokens], or [3, batch, tokens] with one row for each of time,
// height and width.
static void name_positions(struct sizes *sizes, const tsr_value *positions, int64_t tokens)
{
    int rank = positions ? tsr_value_rank(positions) : 0;
    if (rank < 2)
        return;
    name_size(sizes, positions, rank - 2, 1);
    name_size(sizes, positions, rank - 1, tokens);
}

// Collects the sizes of named dimensions, in the folder's arena. Example: 1 token after 128 gives
// batch 1, sequence 1, mask length 129, past length 128, present length 129. A cache with a window
// has the window's length before and after. Dimensions that are expressions ("past + sequence") get
// no size.
tsr_status tsr__genai_sizes(tsr_folder *folder, const tsr_model *model, int64_t tokens,
                            int64_t past, const tsr_dim_size **out, size_t *n)
{
    const tsr_graph *graph = tsr_model_graph(model);
    struct sizes sizes = {.folder = folder};
    const tsr_value *mask = tsr_graph_value(graph, folder->mask);
    const char *const inputs[] = {folder->ids, folder->embeds};
    for (size_t i = 0; i < TSR_COUNT(inputs); i++) {
        name_size(&sizes, tsr_graph_value(graph, inputs[i]), 0, 1);
        name_size(&sizes, tsr_graph_value(graph, inputs[i]), 1, tokens);
    }
    name_size(&sizes, mask, 0, 1);
    name_size(&sizes, mask, 1, past + tokens);
    name_positions(&sizes, tsr_graph_value(graph, folder->positions), tokens);
    for (size_t i = 0; i < folder->caches.n; i++) {
        const struct cache *at = &folder->caches.at[i];
        const tsr_value *cache = tsr_graph_value(graph, at->past);
        name_size(&sizes, cache, 0, 1);
        name_size(&sizes, cache, 1, folder->kv_heads);
        name_size(&sizes, cache, 2, at->window ? at->window : past);
        name_size(&sizes, cache, 3, folder->head_size);
        name_size(&sizes, tsr_graph_value(graph, at->present), 2,
                  at->window ? at->window : past + tokens);
    }
    for (size_t i = 0; i < folder->states.n; i++)
        name_size(&sizes, tsr_graph_value(graph, folder->states.at[i].past), 0, 1);
    *out = sizes.list.at;
    *n = sizes.list.n;
    return arena_status(&folder->arena);
}

// ---- the folder --------------------------------------------------------------------------------

// Frees the folder. Generators that use it must be freed first.
void tsr_folder_free(tsr_folder *folder)
{
    if (!folder)
        return;
    tsr_session *session = folder->session;
    tsr_model_free(folder->model);
    json_decref(folder->config);
    tsr__arena_free(&folder->arena);
    tsr__free(session, folder, sizeof *folder);
}

// Opens a folder. One with genai_config.json is read as onnxruntime-genai's, any other as
// Optimum's, because the keys differ.
tsr_status tsr_folder_open(tsr_session *session, const char *path, tsr_folder **out)
{
    if (!session)
        return TSR_INVALID;
    TRY(tsr__given(session, "path", path));
    TRY(tsr__given(session, "out", out));
    tsr_folder *folder = tsr__alloc(session, sizeof *folder);
    if (!folder)
        return TSR_NOMEM;
    *folder = (tsr_folder){.session = session, .is_genai = is_file(path, GENAI_CONFIG)};
    tsr__arena_init(&folder->arena, session);
    folder->path = tsr__arena_str(&folder->arena, str_of(path)).p;
    tsr_status st = folder->path ? read_config(folder) : TSR_NOMEM;
    if (st == TSR_OK)
        st = find_model(folder);
    if (st == TSR_OK)
        st = tsr_model_load(session, folder->model_path, &folder->model);
    if (st == TSR_OK)
        st = find_states(folder);
    if (st != TSR_OK) {
        tsr_folder_free(folder);
        return st;
    }
    *out = folder;
    return TSR_OK;
}

const char *tsr_folder_model(const tsr_folder *folder)
{
    return folder->model_path;
}

// Returns the vocabulary size of the configuration. The default is the size of the logits, else
// 256.
int64_t tsr_folder_vocabulary(const tsr_folder *folder)
{
    const tsr_value *logits = tsr_graph_value(tsr_model_graph(folder->model), folder->logits);
    int rank = logits ? tsr_value_rank(logits) : 0;
    if (folder->vocabulary > 0)
        return folder->vocabulary;
    return rank > 0 && tsr_value_dim(logits, rank - 1).value > 0
               ? tsr_value_dim(logits, rank - 1).value
               : 256;
}

tsr_status tsr_folder_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                            const tsr_dim_size **out, size_t *n)
{
    TRY(tsr__given(folder->session, "out", out));
    TRY(tsr__given(folder->session, "n", n));
    return tsr__genai_sizes(folder, folder->model, tokens, past, out, n);
}
