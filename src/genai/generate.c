// SPDX-License-Identifier: Apache-2.0
// generate.c - tokens of a cut language model, one after the other: a run over the prompt, then a run for each token, the
// caches staying on their devices in between (a job's states).
//
// With 3 tokens of prompt the runs are: ids [1,3], mask [1,3], caches of length 0; then ids [1,1], mask [1,4]; then [1,1], [1,5] ...
#include "genai/internal.h"

#include <errno.h>
#include <limits.h>
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
    char work[PATH_MAX]; // temporary folder; "": none
    tsr_job *job;
    tsr_tensors *inputs, *outputs;
    int64_t past; // tokens in the caches
    uint64_t random;
    float *logits; // of the last token, `vocabulary` of them
    int64_t vocabulary, room;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- the job -----------------------------------------------------------------------------------

// "past_key_values.0.key=present.0.key" of every cache.
static const char **state_texts(struct generation *g)
{
    tsr_folder *f = g->folder;
    const char **texts = ARENA_ARRAY(&f->arena, const char *, f->caches.n + 1);
    if (!texts)
        return NULL;
    for (size_t i = 0; i < f->caches.n; i++)
        texts[i] =
            tsr__arena_printf(&f->arena, "%s=%s", f->caches.at[i].past, f->caches.at[i].present).p;
    return f->arena.failed ? NULL : texts;
}

static tsr_status open_whole(struct generation *g)
{
    tsr_folder *f = g->folder;
    tsr_status st = tsr_job_open_model(g->session, f->model_path, &g->options.run, &g->job);
    for (size_t i = 0; i < f->caches.n; i++) {
        if (st != TSR_OK)
            return st;
        st = tsr_job_keep(g->job, f->caches.at[i].past, f->caches.at[i].present);
    }
    return st;
}

static tsr_status make_work(struct generation *g)
{
    const char *base = g->options.work ? g->options.work : "/tmp";
    struct place at = PLACE_NONE;
    if ((size_t)snprintf(g->work, sizeof g->work, "%s/tessera-generate-XXXXXX", base) <
            sizeof g->work &&
        mkdtemp(g->work))
        return TSR_OK;
    g->work[0] = 0;
    at.file = str_of(base);
    tsr__diag(g->session, DIAG_io_write, &at, NULL, "no temporary folder can be made: %s",
              strerror(errno));
    return TSR_WRITE;
}

// Plans a step of decode, cuts the model into a temporary folder, and opens that.
static tsr_status open_cut(struct generation *g)
{
    tsr_folder *f = g->folder;
    const char **states = state_texts(g);
    const char *parts = NULL;
    tsr_model *m = NULL;
    tsr_plan_options plan = {.size = sizeof plan,
                             .devices = g->options.devices,
                             .state = states,
                             .n_state = f->caches.n};
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_partition_options cut = {.size = sizeof cut};
    if (!states)
        return TSR_NOMEM;
    tsr_status st = make_work(g);
    if (st == TSR_OK)
        parts = tsr__arena_printf(&f->arena, "%s/parts", g->work).p;
    if (st == TSR_OK && !parts)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__genai_sizes(f, 1, f->context > 2 ? f->context / 2 : 128, &plan.sizes,
                              &plan.n_sizes);
    if (st == TSR_OK)
        st = tsr_model_load(g->session, f->model_path, &m);
    if (st == TSR_OK)
        st = tsr_plan(m, &plan, &planned);
    cut.config = planned.config;
    if (st == TSR_OK)
        st = tsr_partition(m, parts, &cut, NULL);
    if (st == TSR_OK)
        st = tsr_job_open(g->session, parts, &g->options.run, &g->job);
    tsr_model_free(m);
    return st;
}

// ---- one step ----------------------------------------------------------------------------------

// A tensor [1, n] of whole numbers, in the type that the model wants; nothing where it has no such input.
static tsr_status put_numbers(struct generation *g, const char *name, const int64_t *numbers,
                              int64_t n)
{
    const tsr_value *v = tsr_graph_value(tsr_model_graph(g->folder->model), name);
    int64_t dims[2] = {1, n};
    if (!v || !tsr_value_is_input(v))
        return TSR_OK;
    if (tsr_value_dtype(v) == TSR_INT64)
        return tsr_tensors_put(g->inputs, name, TSR_INT64, 2, dims, numbers);
    tsr_status st = tsr_tensors_put(g->inputs, name, TSR_INT32, 2, dims, NULL);
    if (st != TSR_OK)
        return st;
    int64_t at = tsr_tensors_find(g->inputs, name);
    int32_t *to =
        (int32_t *)(uintptr_t)tsr_tensors_data(g->inputs, (size_t)at, NULL); // our own: just put
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)numbers[i];
    return TSR_OK;
}

// Caches of no tokens yet, for the first run; later ones have those of the run before.
static tsr_status put_empty_caches(struct generation *g)
{
    tsr_folder *f = g->folder;
    const tsr_graph *graph = tsr_model_graph(f->model);
    for (size_t i = 0; i < f->caches.n; i++) {
        const tsr_value *v = tsr_graph_value(graph, f->caches.at[i].past);
        int64_t size = tsr_value_dim(v, 3).value;
        int64_t dims[4] = {1, tsr__genai_cache_heads(f), 0, size > 0 ? size : f->head_size};
        tsr_status st =
            tsr_tensors_put(g->inputs, f->caches.at[i].past, tsr_value_dtype(v), 4, dims, NULL);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

static tsr_status put_inputs(struct generation *g, const int64_t *ids, int64_t n)
{
    int64_t total = g->past + n;
    int64_t *numbers = tsr__alloc(g->session, (size_t)total * sizeof *numbers);
    if (!numbers)
        return TSR_NOMEM;
    for (int64_t i = 0; i < total; i++)
        numbers[i] = 1;
    tsr_status st = put_numbers(g, "input_ids", ids, n);
    if (st == TSR_OK)
        st = put_numbers(g, "attention_mask", numbers, total);
    for (int64_t i = 0; i < n; i++)
        numbers[i] = g->past + i;
    if (st == TSR_OK)
        st = put_numbers(g, "position_ids", numbers, n);
    tsr__free(g->session, numbers, (size_t)total * sizeof *numbers);
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

static tsr_status no_logits(struct generation *g)
{
    struct place at = PLACE_NONE;
    at.file = str_of(g->folder->model_path);
    at.value = str_of("logits");
    tsr__diag(g->session, DIAG_folder_malformed, &at,
              "a language model gives logits, [batch, tokens, vocabulary]",
              "the model gives no logits of a type that can be read");
    return TSR_UNSUPPORTED;
}

// The logits of the last token, as float32.
static tsr_status read_logits(struct generation *g)
{
    int64_t at = tsr_tensors_find(g->outputs, "logits");
    int rank = at < 0 ? 0 : tsr_tensors_rank(g->outputs, (size_t)at);
    if (rank < 1)
        return no_logits(g);
    const int64_t *dims = tsr_tensors_dims(g->outputs, (size_t)at);
    tsr_dtype type = tsr_tensors_dtype(g->outputs, (size_t)at);
    int64_t n = dims[rank - 1], rows = 1;
    for (int d = 0; d < rank - 1; d++)
        rows *= dims[d];
    if (n < 1 || rows < 1)
        return no_logits(g);
    if (n > g->room) {
        float *bigger = tsr__realloc(g->session, g->logits, (size_t)g->room * sizeof *bigger,
                                     (size_t)n * sizeof *bigger);
        if (!bigger)
            return TSR_NOMEM;
        g->logits = bigger;
        g->room = n;
    }
    const char *data = tsr_tensors_data(g->outputs, (size_t)at, NULL);
    const char *last = data + (rows - 1) * tsr_dtype_bytes(type, n);
    g->vocabulary = n;
    for (int64_t i = 0; i < n; i++) {
        if (type == TSR_FLOAT)
            g->logits[i] = ((const float *)(const void *)last)[i];
        else if (type == TSR_FLOAT16)
            g->logits[i] = from_half(((const uint16_t *)(const void *)last)[i]);
        else if (type == TSR_BFLOAT16)
            g->logits[i] = from_bfloat(((const uint16_t *)(const void *)last)[i]);
        else
            return no_logits(g);
    }
    return TSR_OK;
}

static tsr_status step(struct generation *g, const int64_t *ids, int64_t n)
{
    tsr_tensors_free(g->inputs);
    tsr_tensors_free(g->outputs);
    g->inputs = g->outputs = NULL;
    tsr_status st = tsr__cancel_check(g->session);
    if (st == TSR_OK)
        st = tsr_tensors_new(g->session, &g->inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(g->session, &g->outputs);
    if (st == TSR_OK && g->past == 0)
        st = put_empty_caches(g);
    if (st == TSR_OK)
        st = put_inputs(g, ids, n);
    if (st == TSR_OK)
        st = tsr_job_run(g->job, g->inputs, g->outputs);
    if (st == TSR_OK)
        st = read_logits(g);
    g->past += n;
    return st;
}

// ---- the next token ----------------------------------------------------------------------------

static int64_t most_likely(const struct generation *g)
{
    int64_t best = 0;
    for (int64_t i = 1; i < g->vocabulary; i++)
        if (g->logits[i] > g->logits[best])
            best = i;
    return best;
}

// A number in [0, 1); the same seed gives the same numbers everywhere (splitmix64).
static double draw(struct generation *g)
{
    uint64_t x = g->random += 0x9e3779b97f4a7c15u;
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
static tsr_status sample(struct generation *g, int64_t *out)
{
    size_t bytes = (size_t)g->vocabulary * sizeof(struct candidate);
    struct candidate *all = tsr__alloc(g->session, bytes);
    if (!all)
        return TSR_NOMEM;
    for (int64_t i = 0; i < g->vocabulary; i++)
        all[i] = (struct candidate){g->logits[i], i};
    qsort(all, (size_t)g->vocabulary, sizeof *all, by_logit);
    int64_t n = g->vocabulary;
    if (g->options.top_k > 0 && g->options.top_k < n)
        n = g->options.top_k;
    double total = 0, kept = 0, limit = g->options.top_p > 0 ? g->options.top_p : 1;
    for (int64_t i = 0; i < n; i++)
        total += exp((all[i].logit - all[0].logit) / g->options.temperature);
    int64_t chosen = 0;
    for (; chosen < n && kept < limit * total; chosen++)
        kept += exp((all[chosen].logit - all[0].logit) / g->options.temperature);
    double left = draw(g) * kept;
    for (n = chosen, chosen = 0; chosen < n - 1; chosen++) {
        left -= exp((all[chosen].logit - all[0].logit) / g->options.temperature);
        if (left < 0)
            break;
    }
    *out = all[chosen].token;
    tsr__free(g->session, all, bytes);
    return TSR_OK;
}

static bool ends_text(const tsr_folder *f, int64_t token)
{
    const json_t *model = json_object_get(f->config, "model");
    const json_t *end = json_object_get(model ? model : f->config, "eos_token_id");
    if (json_is_integer(end))
        return json_integer_value(end) == token;
    for (size_t i = 0; i < json_array_size(end); i++)
        if (json_integer_value(json_array_get(end, i)) == token)
            return true;
    return false;
}

// ---- all of it ---------------------------------------------------------------------------------

// Steps until the text ends, enough tokens were made, or the caller has enough.
static tsr_status go(struct generation *g, const int64_t *ids, size_t n, tsr_token_fn take,
                     void *data, tsr_generate_result *result)
{
    double began = now();
    int64_t token = 0, most = g->options.max_tokens > 0 ? g->options.max_tokens : DEFAULT_TOKENS;
    tsr_status st = step(g, ids, (int64_t)n);
    while (st == TSR_OK) {
        token = most_likely(g);
        if (g->options.temperature > 0)
            st = sample(g, &token);
        if (st != TSR_OK)
            return st;
        result->tokens++;
        if (result->tokens == 1)
            result->first_s = now() - began;
        result->seconds = now() - began;
        bool more = !take || take(data, token);
        if (!more || result->tokens >= most || ends_text(g->folder, token))
            return TSR_OK;
        st = step(g, &token, 1);
    }
    return st;
}

static void end(struct generation *g)
{
    tsr_tensors_free(g->inputs);
    tsr_tensors_free(g->outputs);
    tsr_job_close(g->job);
    tsr__free(g->session, g->logits, (size_t)g->room * sizeof *g->logits);
    if (!g->work[0])
        return;
    char parts[PATH_MAX + 8];
    snprintf(parts, sizeof parts, "%s/parts", g->work);
    tsr__folder_remove(parts);
    tsr__folder_remove(g->work);
}

tsr_status tsr_generate(tsr_folder *f, const int64_t *ids, size_t n,
                        const tsr_generate_options *options, tsr_token_fn take, void *data,
                        tsr_generate_result *result)
{
    struct generation g = {.folder = f, .session = f->session};
    tsr_generate_result found = {.size = sizeof found};
    if (options)
        memcpy(&g.options, options,
               options->size < sizeof g.options ? options->size : sizeof g.options);
    g.random = g.options.seed;
    tsr_status st = TSR_OK;
    if (n == 0) {
        struct place at = PLACE_NONE;
        at.file = str_of(f->path);
        tsr__diag(f->session, DIAG_folder_layout, &at, "give at least one token",
                  "there is no prompt");
        return TSR_INVALID;
    }
    st = g.options.devices > 1 ? open_cut(&g) : open_whole(&g);
    if (st == TSR_OK)
        st = go(&g, ids, n, take, data, &found);
    end(&g);
    if (result) {
        found.size = result->size;
        memcpy(result, &found, result->size < sizeof found ? result->size : sizeof found);
    }
    return st;
}
