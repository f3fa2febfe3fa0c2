// SPDX-License-Identifier: Apache-2.0
// generate.c - tokens of a cut language model, one after the other: a run over the prompt, then a run for each token, the
// caches staying on their devices in between (a job's states).
//
// With 3 tokens of prompt the runs are: ids [1,3], mask [1,3], caches of length 0; then ids [1,1], mask [1,4]; then [1,1], [1,5] ...
// Where the model's nodes take caches with room to spare, each is one buffer for all tokens that may come, which stays where it is;
// else it grows, and is copied, with every token.
#include "genai/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_TOKENS 64

struct generation {
    tsr_folder *folder;
    tsr_session *session;
    tsr_generate_options options;
    struct temporary *work; // folder of the parts; NULL: the model runs whole
    tsr_job *job;
    tsr_tensors *inputs, *outputs;
    int64_t past; // tokens in the caches
    int64_t
        cache_room; // tokens that there is room for in caches that stay where they are; 0: caches grow
    uint64_t random;
    float *logits; // of the last token, `vocabulary` of them
    int64_t vocabulary, room;
};

static double now(void)
{
    struct timespec timespec;
    clock_gettime(CLOCK_MONOTONIC, &timespec);
    return (double)timespec.tv_sec + 1e-9 * (double)timespec.tv_nsec;
}

// ---- the job -----------------------------------------------------------------------------------

// "past_key_values.0.key=present.0.key" of every cache.
static const char **state_texts(struct generation *generation)
{
    tsr_folder *folder = generation->folder;
    const char **texts = ARENA_ARRAY(&folder->arena, const char *, folder->caches.n + 1);
    if (!texts)
        return NULL;
    for (size_t i = 0; i < folder->caches.n; i++)
        texts[i] = tsr__arena_printf(&folder->arena, "%s=%s", folder->caches.at[i].past,
                                     folder->caches.at[i].present)
                       .p;
    return folder->arena.failed ? NULL : texts;
}

static tsr_status open_whole(struct generation *generation)
{
    tsr_folder *folder = generation->folder;
    tsr_status st = tsr_job_open_model(generation->session, folder->model_path,
                                       &generation->options.run, &generation->job);
    for (size_t i = 0; i < folder->caches.n; i++) {
        if (st != TSR_OK)
            return st;
        st = tsr_job_add_state(generation->job, folder->caches.at[i].past,
                               folder->caches.at[i].present);
    }
    return st;
}

// Plans a step of decode, cuts the model into a temporary folder, and opens that.
static tsr_status open_cut(struct generation *generation)
{
    tsr_folder *folder = generation->folder;
    const char **states = state_texts(generation);
    const char *parts = NULL;
    tsr_model *model = NULL;
    tsr_plan_options plan = {.size = sizeof plan,
                             .devices = generation->options.devices,
                             .state = states,
                             .n_state = folder->caches.n};
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_partition_options cut = {.size = sizeof cut};
    if (!states)
        return TSR_NOMEM;
    tsr_status st = tsr__temporary_folder(generation->session, generation->options.work, "generate",
                                          &generation->work);
    if (st == TSR_OK)
        parts = tsr__arena_printf(&folder->arena, "%s/parts", generation->work->path).p;
    if (st == TSR_OK && !parts)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__genai_sizes(folder, 1, folder->context > 2 ? folder->context / 2 : 128,
                              &plan.sizes, &plan.n_sizes);
    if (st == TSR_OK)
        st = tsr_model_load(generation->session, folder->model_path, &model);
    if (st == TSR_OK)
        st = tsr_plan(model, &plan, &planned);
    cut.config = planned.config;
    if (st == TSR_OK)
        st = tsr_partition(model, parts, &cut, NULL);
    if (st == TSR_OK)
        st = tsr_job_open(generation->session, parts, &generation->options.run, &generation->job);
    tsr_model_free(model);
    return st;
}

// ---- one step ----------------------------------------------------------------------------------

// A tensor [1, n] of whole numbers, in the type that the model wants; nothing where it has no such input.
static tsr_status put_numbers(struct generation *generation, const char *name,
                              const int64_t *numbers, int64_t n)
{
    const tsr_value *value = tsr_graph_value(tsr_model_graph(generation->folder->model), name);
    int64_t dims[2] = {1, n};
    if (!value || !tsr_value_is_input(value))
        return TSR_OK;
    if (tsr_value_dtype(value) == TSR_INT64)
        return tsr_tensors_put(generation->inputs, name, TSR_INT64, 2, dims, numbers);
    tsr_status st = tsr_tensors_put(generation->inputs, name, TSR_INT32, 2, dims, NULL);
    if (st != TSR_OK)
        return st;
    int64_t at = tsr_tensors_find(generation->inputs, name);
    int32_t *to = (int32_t *)(uintptr_t)tsr_tensors_data(generation->inputs, (size_t)at,
                                                         NULL); // our own: just put
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)numbers[i];
    return TSR_OK;
}

static bool caches_have_room(const tsr_folder *folder)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    for (size_t i = 0; i < folder->caches.n; i++)
        if (!tsr_cache_has_room(tsr_graph_value(graph, folder->caches.at[i].past),
                                tsr_graph_value(graph, folder->caches.at[i].present)))
            return false;
    return folder->caches.n > 0;
}

static int64_t most_tokens(const struct generation *generation)
{
    if (generation->options.max_tokens > 0)
        return generation->options.max_tokens;
    return DEFAULT_TOKENS;
}

// Caches of no tokens yet, for the first run; later ones have those of the run before.
static tsr_status put_empty_caches(struct generation *generation)
{
    tsr_folder *folder = generation->folder;
    const tsr_graph *graph = tsr_model_graph(folder->model);
    for (size_t i = 0; i < folder->caches.n; i++) {
        const tsr_value *value = tsr_graph_value(graph, folder->caches.at[i].past);
        int64_t size = tsr_value_dim(value, 3).value;
        int64_t dims[4] = {1, tsr__genai_cache_heads(folder), generation->cache_room,
                           size > 0 ? size : folder->head_size};
        tsr_status st = tsr_tensors_put(generation->inputs, folder->caches.at[i].past,
                                        tsr_value_dtype(value), 4, dims, NULL);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

static tsr_status put_inputs(struct generation *generation, const int64_t *ids, int64_t n)
{
    int64_t total = generation->past + n;
    int64_t *numbers = tsr__alloc(generation->session, (size_t)total * sizeof *numbers);
    if (!numbers)
        return TSR_NOMEM;
    for (int64_t i = 0; i < total; i++)
        numbers[i] = 1;
    tsr_status st = put_numbers(generation, "input_ids", ids, n);
    if (st == TSR_OK)
        st = put_numbers(generation, "attention_mask", numbers, total);
    for (int64_t i = 0; i < n; i++)
        numbers[i] = generation->past + i;
    if (st == TSR_OK)
        st = put_numbers(generation, "position_ids", numbers, n);
    tsr__free(generation->session, numbers, (size_t)total * sizeof *numbers);
    return st;
}

static float from_half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

static float from_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float out;
    memcpy(&out, &wide, sizeof out);
    return out;
}

static tsr_status no_logits(struct generation *generation)
{
    struct place at = PLACE_NONE;
    at.file = str_of(generation->folder->model_path);
    at.value = str_of("logits");
    tsr__diag(generation->session, DIAG_folder_malformed, &at,
              "a language model gives logits, [batch, tokens, vocabulary]",
              "the model gives no logits of a type that can be read");
    return TSR_UNSUPPORTED;
}

// The logits of the last token, as float32.
static tsr_status read_logits(struct generation *generation)
{
    int64_t at = tsr_tensors_find(generation->outputs, "logits");
    int rank = at < 0 ? 0 : tsr_tensors_rank(generation->outputs, (size_t)at);
    if (rank < 1)
        return no_logits(generation);
    const int64_t *dims = tsr_tensors_dims(generation->outputs, (size_t)at);
    tsr_dtype type = tsr_tensors_dtype(generation->outputs, (size_t)at);
    int64_t n = dims[rank - 1], rows = 1;
    for (int d = 0; d < rank - 1; d++)
        rows *= dims[d];
    if (n < 1 || rows < 1)
        return no_logits(generation);
    if (n > generation->room) {
        float *bigger =
            tsr__realloc(generation->session, generation->logits,
                         (size_t)generation->room * sizeof *bigger, (size_t)n * sizeof *bigger);
        if (!bigger)
            return TSR_NOMEM;
        generation->logits = bigger;
        generation->room = n;
    }
    const char *data = tsr_tensors_data(generation->outputs, (size_t)at, NULL);
    const char *last = data + (rows - 1) * tsr_dtype_bytes(type, n);
    generation->vocabulary = n;
    for (int64_t i = 0; i < n; i++) {
        if (type == TSR_FLOAT)
            generation->logits[i] = ((const float *)(const void *)last)[i];
        else if (type == TSR_FLOAT16)
            generation->logits[i] = from_half(((const uint16_t *)(const void *)last)[i]);
        else if (type == TSR_BFLOAT16)
            generation->logits[i] = from_bfloat(((const uint16_t *)(const void *)last)[i]);
        else
            return no_logits(generation);
    }
    return TSR_OK;
}

static tsr_status step(struct generation *generation, const int64_t *ids, int64_t n)
{
    tsr_tensors_free(generation->inputs);
    tsr_tensors_free(generation->outputs);
    generation->inputs = generation->outputs = NULL;
    tsr_status st = tsr__cancel_check(generation->session);
    if (st == TSR_OK)
        st = tsr_tensors_new(generation->session, &generation->inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(generation->session, &generation->outputs);
    if (st == TSR_OK && generation->past == 0)
        st = put_empty_caches(generation);
    if (st == TSR_OK)
        st = put_inputs(generation, ids, n);
    if (st == TSR_OK)
        st = tsr_job_run(generation->job, generation->inputs, generation->outputs);
    if (st == TSR_OK)
        st = read_logits(generation);
    generation->past += n;
    return st;
}

// ---- the next token ----------------------------------------------------------------------------

static int64_t most_likely(const struct generation *generation)
{
    int64_t best = 0;
    for (int64_t i = 1; i < generation->vocabulary; i++)
        if (generation->logits[i] > generation->logits[best])
            best = i;
    return best;
}

// A number in [0, 1); the same seed gives the same numbers everywhere (splitmix64).
static double draw(struct generation *generation)
{
    uint64_t x = generation->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

struct candidate {
    float logit;
    int64_t token;
};

static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

// Draws among the top_k most likely tokens that together have top_p of the probability, at that temperature.
static tsr_status sample(struct generation *generation, int64_t *out)
{
    size_t bytes = (size_t)generation->vocabulary * sizeof(struct candidate);
    struct candidate *all = tsr__alloc(generation->session, bytes);
    if (!all)
        return TSR_NOMEM;
    for (int64_t i = 0; i < generation->vocabulary; i++)
        all[i] = (struct candidate){generation->logits[i], i};
    qsort(all, (size_t)generation->vocabulary, sizeof *all, by_logit);
    int64_t n = generation->vocabulary;
    if (generation->options.top_k > 0 && generation->options.top_k < n)
        n = generation->options.top_k;
    double total = 0, kept = 0,
           limit = generation->options.top_p > 0 ? generation->options.top_p : 1;
    for (int64_t i = 0; i < n; i++)
        total += exp((all[i].logit - all[0].logit) / generation->options.temperature);
    int64_t chosen = 0;
    while (chosen < n && kept < limit * total) {
        kept += exp((all[chosen].logit - all[0].logit) / generation->options.temperature);
        chosen++;
    }
    double left = draw(generation) * kept;
    for (n = chosen, chosen = 0; chosen < n - 1; chosen++) {
        left -= exp((all[chosen].logit - all[0].logit) / generation->options.temperature);
        if (left < 0)
            break;
    }
    *out = all[chosen].token;
    tsr__free(generation->session, all, bytes);
    return TSR_OK;
}

static bool ends_text(const tsr_folder *folder, int64_t token)
{
    const json_t *model = json_object_get(folder->config, "model");
    const json_t *end = json_object_get(model ? model : folder->config, "eos_token_id");
    if (json_is_integer(end))
        return json_integer_value(end) == token;
    for (size_t i = 0; i < json_array_size(end); i++)
        if (json_integer_value(json_array_get(end, i)) == token)
            return true;
    return false;
}

// ---- all of it ---------------------------------------------------------------------------------

// Steps until the text ends, enough tokens were made, or the caller has enough.
static tsr_status go(struct generation *generation, const int64_t *ids, size_t n, tsr_token_fn take,
                     void *data, tsr_generate_result *result)
{
    double began = now();
    int64_t token = 0, most = most_tokens(generation);
    tsr_status st = step(generation, ids, (int64_t)n);
    while (st == TSR_OK) {
        token = most_likely(generation);
        if (generation->options.temperature > 0)
            st = sample(generation, &token);
        if (st != TSR_OK)
            return st;
        result->tokens++;
        if (result->tokens == 1)
            result->first_s = now() - began;
        result->seconds = now() - began;
        bool more = !take || take(data, token);
        if (!more || result->tokens >= most || ends_text(generation->folder, token))
            return TSR_OK;
        st = step(generation, &token, 1);
    }
    return st;
}

static void end(struct generation *generation)
{
    tsr_tensors_free(generation->inputs);
    tsr_tensors_free(generation->outputs);
    tsr_job_close(generation->job);
    tsr__free(generation->session, generation->logits,
              (size_t)generation->room * sizeof *generation->logits);
    tsr__temporary_remove(generation->work);
}

// Callers built against an older header have shorter structs: only `size` bytes are read from the
// options and written to the result. What was counted is given even where the run failed.
tsr_status tsr_generate(tsr_folder *folder, const int64_t *ids, size_t n,
                        const tsr_generate_options *options, tsr_token_fn take, void *data,
                        tsr_generate_result *result)
{
    struct generation generation = {.folder = folder, .session = folder->session};
    tsr_generate_result found = {.size = sizeof found};
    if (options)
        memcpy(&generation.options, options,
               options->size < sizeof generation.options ? options->size
                                                         : sizeof generation.options);
    generation.random = generation.options.seed;
    tsr_status st = TSR_OK;
    if (n == 0) {
        struct place at = PLACE_NONE;
        at.file = str_of(folder->path);
        tsr__diag(folder->session, DIAG_folder_layout, &at, "give at least one token",
                  "there is no prompt");
        return TSR_INVALID;
    }
    generation.options.run.size = sizeof generation.options.run;
    if (caches_have_room(folder)) {
        generation.cache_room = (int64_t)n + most_tokens(&generation);
        generation.options.run.states_in_place = true;
    }
    st = generation.options.devices > 1 ? open_cut(&generation) : open_whole(&generation);
    if (st == TSR_OK)
        st = go(&generation, ids, n, take, data, &found);
    if (st == TSR_OK && generation.options.run.trace)
        st = tsr_job_trace(generation.job);
    end(&generation);
    if (result) {
        found.size = result->size;
        memcpy(result, &found, result->size < sizeof found ? result->size : sizeof found);
    }
    return st;
}
