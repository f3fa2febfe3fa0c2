// SPDX-License-Identifier: Apache-2.0
// generate.c - generates tokens with a sharded language model: one run over the prompt, then one
// run per token. The KV caches stay on their devices between runs (states of the job).
//
// If the ranks are processes of a launcher, each of them calls tsr_generate. Only rank 0 gets the
// logits. It chooses the token and broadcasts it, and the others run the next step with it.
//
// For a prompt of 3 tokens the runs are: ids [1,3], mask [1,3], caches of length 0; then ids [1,1],
// mask [1,4]; then [1,1], [1,5] ... If the model's operators accept caches with spare capacity,
// each cache is one fixed buffer for all tokens. Otherwise it grows, and is copied, with every
// token.
//
// chat, serve and tessera.Generator use the loop of onnxruntime-genai instead. With caches=ranks it
// moves no more between runs than this one. Without this one, `tessera generate` would need Python
// and onnxruntime-genai, and these would be lost: folders of Optimum, whose caches grow; states of
// convolutions that stay on the ranks; ranks of a launcher (the other loop would search on each of
// them); tests that compare the tokens of two loops.
#include "genai/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DEFAULT_TOKENS 64
#define CACHE_RANK     4 // [batch, heads, tokens, head size]
#define MAX_STATE_RANK 8
#define MAX_ROWS       4 // rows of positions, for example time, height and width

// An open model and its state between tokens. `inputs` and `outputs` belong to the last step;
// `capacity` is that of `logits`.
struct tsr_generator {
    tsr_folder *folder;
    tsr_session *session;
    tsr_generate_options options; // copied without `run`
    tsr_run_options run;
    struct temporary *work;   // folder of the rank files; NULL: the model is not sharded
    int64_t devices;          // number of ranks; 1: not sharded
    tsr_process_group *group; // ranks of a launcher; NULL: the model is not sharded
    tsr_job *job;
    tsr_tensors *inputs, *outputs;
    int64_t past;       // number of tokens in the caches
    int64_t cache_room; // capacity in tokens of fixed caches; 0: caches grow
    uint64_t random;
    struct sequence tokens; // all tokens so far, on the rank that has the logits
    float *logits;          // logits of the last token, `vocabulary` entries
    int64_t vocabulary, capacity;
    // predicted times in picoseconds, sharded and on one device; 0: nothing was planned
    int64_t predicted, one_device;
};

// ---- the job -----------------------------------------------------------------------------------

static size_t state_count(const tsr_folder *folder)
{
    return folder->caches.n + folder->states.n;
}

// Returns the caches first, then the other states.
static const struct cache *state_at(const tsr_folder *folder, size_t i)
{
    return i < folder->caches.n ? &folder->caches.at[i] : &folder->states.at[i - folder->caches.n];
}

// Returns "past_key_values.0.key=present.0.key" for every state, as in `tessera plan --state`.
static const char **state_texts(tsr_generator *generator)
{
    tsr_folder *folder = generator->folder;
    size_t n = state_count(folder);
    const char **texts = ARENA_ARRAY(&folder->arena, const char *, n + 1);
    if (!texts)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const struct cache *state = state_at(folder, i);
        texts[i] = tsr__arena_printf(&folder->arena, "%s=%s", state->past, state->present).p;
    }
    return folder->arena.failed ? NULL : texts;
}

// Opens the unsharded model. An unsharded model has no manifest that lists its states, so this
// function names them.
static tsr_status open_unsharded(tsr_generator *generator)
{
    tsr_folder *folder = generator->folder;
    tsr_status st = tsr_job_open_model(generator->session, folder->model_path, &generator->run,
                                       &generator->job);
    for (size_t i = 0; st == TSR_OK && i < state_count(folder); i++) {
        const struct cache *state = state_at(folder, i);
        st = tsr_job_add_state(generator->job, state->past, state->present);
    }
    return st;
}

// Partitions the planned model. Warnings are dropped: the planner chose the shardings, and the user
// cannot change them here.
static tsr_status partition_planned(tsr_model *model, const char *parts,
                                    const tsr_partition_options *options)
{
    tsr_session *session = tsr_model_session(model);
    struct diag_mark mark = tsr__diag_mark(session);
    tsr_status st = tsr_partition(model, parts, options, NULL);
    tsr__diag_back(session, &mark, true);
    return st;
}

// Gives each `present` output the shape of its `past` input if caches are updated in place
// (allocated for the maximum number of tokens). The planner then counts one buffer for past and
// present, and the ranks allocate one.
static tsr_status declare_caches(const tsr_generator *generator, tsr_model *model)
{
    const tsr_folder *folder = generator->folder;
    const tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < folder->caches.n; i++) {
        const tsr_value *past = tsr_graph_value(graph, folder->caches.at[i].past);
        tsr_value *present = tsr_graph_value(graph, folder->caches.at[i].present);
        tsr_dim dims[CACHE_RANK];
        if (!generator->run.states_in_place || tsr_value_rank(past) != CACHE_RANK)
            continue;
        for (int axis = 0; axis < CACHE_RANK; axis++)
            dims[axis] = tsr_value_dim(past, axis);
        st = tsr_value_set_type(present, tsr_value_dtype(past), CACHE_RANK, dims);
    }
    return st;
}

// Plans a decode step with half-full caches (128 tokens if the context length is unknown) and
// writes the rank files. The job reads the states from the manifest.
static tsr_status plan_and_partition(tsr_generator *generator, tsr_model *model, const char *parts)
{
    tsr_folder *folder = generator->folder;
    tsr_plan_options plan = {.size = sizeof plan,
                             .devices = generator->devices,
                             .topology = generator->options.topology,
                             .state = state_texts(generator),
                             .n_state = state_count(folder)};
    tsr_plan_result *planned = NULL;
    tsr_partition_options partition = {.size = sizeof partition};
    if (!plan.state)
        return TSR_NOMEM;
    int64_t past = folder->context > 2 ? folder->context / 2 : 128;
    TRY(declare_caches(generator, model));
    TRY(tsr__genai_sizes(folder, model, 1, past, &plan.sizes, &plan.n_sizes));
    tsr_status st = tsr_plan(model, &plan, &planned);
    if (st == TSR_OK) {
        tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
        (void)tsr_plan_result_about(planned, &facts);
        partition.config = facts.config;
        generator->predicted = tsr__genai_run_time(&facts);
        generator->one_device = facts.one_device;
        // a topology with choices may use fewer devices
        generator->devices = (int64_t)facts.devices;
        st = partition_planned(model, parts, &partition);
    }
    tsr_plan_result_free(planned);
    return st;
}

// Partitions the model into a temporary folder and opens it.
static tsr_status open_sharded(tsr_generator *generator)
{
    tsr_folder *folder = generator->folder;
    tsr_model *model = NULL;
    TRY(tsr__temporary_folder(generator->session, generator->options.work, "generate",
                              &generator->work));
    const char *parts = tsr__arena_printf(&folder->arena, "%s/parts", generator->work->path).p;
    if (!parts)
        return TSR_NOMEM;
    TRY(tsr_model_load(generator->session, folder->model_path, &model));
    tsr_status st = plan_and_partition(generator, model, parts);
    tsr_model_free(model);
    if (st != TSR_OK)
        return st;
    st = tsr_job_open(generator->session, parts, &generator->run, &generator->job);
    // The ranks have loaded their files: remove them, so that a killed process leaves nothing.
    tsr__temporary_remove(generator->work);
    generator->work = NULL;
    return st;
}

// ---- one step ----------------------------------------------------------------------------------

// Returns the number of equal rows of an input: 1 for [batch, tokens], 3 for positions [3, batch,
// tokens], where text has the same positions in all rows. 0: another shape.
static int64_t row_count(const tsr_value *value)
{
    int rank = tsr_value_rank(value);
    int64_t rows = rank == 3 ? tsr_value_dim(value, 0).value : 1;
    if ((rank >= 0 && rank != 2 && rank != 3) || rows < 1 || rows > MAX_ROWS)
        return 0;
    return rows;
}

// Sets an integer input [1, n] or [rows, 1, n] in the type that the model expects. Does nothing if
// the model has no such input.
static tsr_status put_numbers(tsr_generator *generator, const char *name, const int64_t *numbers,
                              int64_t n)
{
    const tsr_value *value = tsr_graph_value(tsr_model_graph(generator->folder->model), name);
    if (!value || !tsr_value_is_input(value))
        return TSR_OK;
    int64_t rows = row_count(value), dims[3] = {rows, 1, n};
    int rank = tsr_value_rank(value) == 3 ? 3 : 2;
    tsr_dtype type = tsr_value_dtype(value) == TSR_INT64 ? TSR_INT64 : TSR_INT32;
    TRY(tsr_tensors_put(generator->inputs, name, type, rank, dims + 3 - rank, NULL));
    int64_t at = tsr_tensors_find(generator->inputs, name);
    void *to = (void *)(uintptr_t)tsr_tensors_data(generator->inputs, (size_t)at,
                                                   NULL); // owned by the set: just put
    for (int64_t i = 0; i < rows * n; i++) {
        if (type == TSR_INT64)
            ((int64_t *)to)[i] = numbers[i % n];
        else
            ((int32_t *)to)[i] = (int32_t)numbers[i % n];
    }
    return TSR_OK;
}

// True if all states are caches that can have spare capacity. The job has one option for all states
// (states_in_place), so all of them must allow it.
static bool caches_have_room(const tsr_folder *folder)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    for (size_t i = 0; i < folder->caches.n; i++)
        if (!tsr_cache_has_room(tsr_graph_value(graph, folder->caches.at[i].past),
                                tsr_graph_value(graph, folder->caches.at[i].present)))
            return false;
    return folder->caches.n > 0 && folder->states.n == 0;
}

// Returns the largest number of tokens that may follow a prompt of n tokens: max_tokens (default
// 64), limited by the context. The last token is not an input of another step. Example: a context
// of 128 and a prompt of 2 allow 127 tokens.
static int64_t most_tokens(const tsr_generator *generator, size_t n)
{
    int64_t most = DEFAULT_TOKENS, context = generator->folder->context;
    if (generator->options.max_tokens != 0)
        most = int64_max(generator->options.max_tokens, 0); // TSR_NO_TOKENS is negative
    if (context > 0)
        most = int64_min(most, context - (int64_t)n + 1);
    return most;
}

// Adds a state of zeros. `open` has the sizes of dimensions that the model does not fix.
static tsr_status put_zeros(tsr_generator *generator, const char *name, const int64_t *open)
{
    const tsr_value *value = tsr_graph_value(tsr_model_graph(generator->folder->model), name);
    int64_t dims[MAX_STATE_RANK];
    int rank = tsr_value_rank(value);
    for (int axis = 0; axis < rank; axis++) {
        int64_t size = tsr_value_dim(value, axis).value;
        dims[axis] = size >= 0 ? size : open[axis];
    }
    return tsr_tensors_put(generator->inputs, name, tsr_value_dtype(value), rank, dims, NULL);
}

// Adds states without tokens for the first run. Caches are empty tensors, or zeroed buffers if they
// have a fixed capacity. Later runs use the states that the previous run returned.
static tsr_status put_empty_states(tsr_generator *generator)
{
    static const int64_t ones[MAX_STATE_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    tsr_folder *folder = generator->folder;
    for (size_t i = 0; i < folder->caches.n; i++) {
        // If caches grow, cache_room is 0: an empty tensor.
        int64_t open[CACHE_RANK] = {1, tsr__genai_cache_heads(folder),
                                    int64_max(generator->cache_room, folder->caches.at[i].window),
                                    folder->head_size};
        TRY(put_zeros(generator, folder->caches.at[i].past, open));
    }
    for (size_t i = 0; i < folder->states.n; i++)
        TRY(put_zeros(generator, folder->states.at[i].past, ones));
    return TSR_OK;
}

// Sets the inputs for ids, mask and positions. Example: 2 ids after a past of 5: mask of 7 ones,
// positions 5 and 6.
static tsr_status put_inputs(tsr_generator *generator, const int64_t *ids, int64_t n)
{
    const tsr_folder *names = generator->folder;
    int64_t total = generator->past + n;
    int64_t *numbers = tsr__alloc(generator->session, (size_t)total * sizeof *numbers);
    if (!numbers)
        return TSR_NOMEM;
    for (int64_t i = 0; i < total; i++)
        numbers[i] = 1;
    tsr_status st = put_numbers(generator, names->ids, ids, n);
    if (st == TSR_OK)
        st = put_numbers(generator, names->mask, numbers, total);
    for (int64_t i = 0; i < n; i++)
        numbers[i] = generator->past + i;
    if (st == TSR_OK)
        st = put_numbers(generator, names->positions, numbers, n);
    tsr__free(generator->session, numbers, (size_t)total * sizeof *numbers);
    return st;
}

// Reports that the output logits is missing, empty, or not float32, float16 or bfloat16.
static tsr_status no_logits(tsr_generator *generator)
{
    return tsr__fail(
        generator->session, TSR_UNSUPPORTED, DIAG_folder_malformed,
        &PLACE(.file = str_of(generator->folder->model_path),
               .value = str_of(generator->folder->logits)),
        "use a language model with the output logits [batch, tokens, vocabulary]",
        "the model has no output logits of a supported type (float32, float16, bfloat16)");
}

// Reads the logits of the last token as float32.
static tsr_status read_logits(tsr_generator *generator)
{
    int64_t at = tsr_tensors_find(generator->outputs, generator->folder->logits);
    int rank = at >= 0 ? tsr_tensors_rank(generator->outputs, (size_t)at) : 0;
    if (rank < 1)
        return no_logits(generator);
    const int64_t *dims = tsr_tensors_dims(generator->outputs, (size_t)at);
    tsr_dtype type = tsr_tensors_dtype(generator->outputs, (size_t)at);
    int64_t n = dims[rank - 1], rows = 1;
    for (int d = 0; d < rank - 1; d++)
        rows *= dims[d];
    if (n < 1 || rows < 1)
        return no_logits(generator);
    if (n > generator->capacity) {
        float *bigger =
            tsr__realloc(generator->session, generator->logits,
                         (size_t)generator->capacity * sizeof *bigger, (size_t)n * sizeof *bigger);
        if (!bigger)
            return TSR_NOMEM;
        generator->logits = bigger;
        generator->capacity = n;
    }
    const char *data = tsr_tensors_data(generator->outputs, (size_t)at, NULL);
    // [1, 3, V] after a prompt of 3 tokens: the last row predicts the next token.
    const char *last = data + (rows - 1) * tsr_dtype_bytes(type, n);
    generator->vocabulary = n;
    for (int64_t i = 0; i < n; i++) {
        if (type == TSR_FLOAT)
            generator->logits[i] = ((const float *)(const void *)last)[i];
        else if (type == TSR_FLOAT16)
            generator->logits[i] = half_to_float(((const uint16_t *)(const void *)last)[i]);
        else if (type == TSR_BFLOAT16)
            generator->logits[i] = bfloat_to_float(((const uint16_t *)(const void *)last)[i]);
        else
            return no_logits(generator);
    }
    return TSR_OK;
}

// Runs one step, after freeing the tensors of the previous step. `past` advances even on failure,
// which does no harm: no step follows a failed one.
static tsr_status run_step(tsr_generator *generator, const int64_t *ids, int64_t n)
{
    tsr_tensors_free(generator->inputs);
    tsr_tensors_free(generator->outputs);
    generator->inputs = generator->outputs = NULL;
    tsr_status st = tsr__cancel_check(generator->session);
    if (st == TSR_OK)
        st = tsr_tensors_new(generator->session, &generator->inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(generator->session, &generator->outputs);
    if (st == TSR_OK && generator->past == 0)
        st = put_empty_states(generator);
    if (st == TSR_OK)
        st = put_inputs(generator, ids, n);
    if (st == TSR_OK)
        st = tsr_job_run(generator->job, generator->inputs, generator->outputs);
    generator->past += n;
    return st;
}

// ---- the next token ----------------------------------------------------------------------------

// Returns the token with the largest logit. The first of equal tokens wins, so that all devices and
// runs agree.
static int64_t most_likely(const tsr_generator *generator)
{
    int64_t best = 0;
    for (int64_t i = 1; i < generator->vocabulary; i++)
        if (generator->logits[i] > generator->logits[best])
            best = i;
    return best;
}

// Returns a number in [0, 1) (splitmix64: the same seed gives the same numbers everywhere).
static double random_unit(tsr_generator *generator)
{
    uint64_t x = generator->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

struct candidate {
    float logit;
    int64_t token;
};

// Orders by descending logit. Ties are ordered by token, because qsort is not stable.
static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

// Samples the next token from the top_k most likely ones (0: all), reduced to the fewest that
// together have probability top_p. The temperature scales the logits.
static tsr_status sample(tsr_generator *generator, int64_t *out)
{
    size_t bytes = (size_t)generator->vocabulary * sizeof(struct candidate);
    struct candidate *all = tsr__alloc(generator->session, bytes);
    if (!all)
        return TSR_NOMEM;
    for (int64_t i = 0; i < generator->vocabulary; i++)
        all[i] = (struct candidate){generator->logits[i], i};
    qsort(all, (size_t)generator->vocabulary, sizeof *all, by_logit);
    int64_t n = generator->vocabulary;
    if (generator->options.top_k > 0)
        n = int64_min(n, generator->options.top_k);
    double total = 0, kept = 0, limit = generator->options.top_p > 0 ? generator->options.top_p : 1;
    // Subtract the largest logit, so that exp does not overflow.
    for (int64_t i = 0; i < n; i++)
        total += exp((all[i].logit - all[0].logit) / generator->options.temperature);
    int64_t chosen = 0;
    // Keep the fewest most likely tokens that together have top_p; at least one.
    while (chosen < n && kept < limit * total) {
        kept += exp((all[chosen].logit - all[0].logit) / generator->options.temperature);
        chosen++;
    }
    // Inverse transform sampling.
    double left = random_unit(generator) * kept;
    for (n = chosen, chosen = 0; chosen < n - 1; chosen++) {
        left -= exp((all[chosen].logit - all[0].logit) / generator->options.temperature);
        if (left < 0)
            break;
    }
    *out = all[chosen].token;
    tsr__free(generator->session, all, bytes);
    return TSR_OK;
}

// True if the token ends the text. eos_token_id is a number or a list; without it no token does.
bool tsr__genai_ends_text(const tsr_folder *folder, int64_t token)
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

// The token after a step; `more`: another step follows. Rank 0 sends it to the other ranks.
struct next_token {
    int64_t token, more;
};

static tsr_status choose_token(tsr_generator *generator, int64_t *token)
{
    TRY(read_logits(generator));
    TRY(tsr__search_apply(generator->folder, &generator->tokens, generator->logits,
                          generator->vocabulary));
    *token = most_likely(generator);
    return generator->options.temperature > 0 ? sample(generator, token) : TSR_OK;
}

static tsr_status add_tokens(tsr_generator *generator, const int64_t *ids, size_t n)
{
    struct sequence *tokens = &generator->tokens;
    if (tokens->capacity - tokens->n < n) {
        size_t capacity = 2 * (tokens->n + n);
        int64_t *bigger =
            tsr__realloc(generator->session, tokens->at, tokens->capacity * sizeof *bigger,
                         capacity * sizeof *bigger);
        if (!bigger)
            return TSR_NOMEM;
        tokens->at = bigger;
        tokens->capacity = capacity;
    }
    memcpy(tokens->at + tokens->n, ids, n * sizeof *ids);
    tokens->n += n;
    return TSR_OK;
}

// Sets *next on all ranks. Rank 0 chooses the token and passes it to the callback.
static tsr_status find_next(tsr_generator *generator, tsr_token_fn take, void *data,
                            struct next_token *next)
{
    *next = (struct next_token){0};
    if (tsr_process_group_rank(generator->group) == 0) {
        TRY(choose_token(generator, &next->token));
        TRY(add_tokens(generator, &next->token, 1));
        bool ends =
            tsr__genai_ends_text(generator->folder, next->token) && !generator->options.past_end;
        next->more = (!take || take(data, next->token)) && !ends;
    }
    if (!generator->group)
        return TSR_OK;
    return tsr_process_group_broadcast(generator->group, next, sizeof *next, 0);
}

// ---- all of it ---------------------------------------------------------------------------------

// Runs steps until the end token, the limit of most_tokens, or until the callback stops the
// generation.
static tsr_status generate(tsr_generator *generator, const int64_t *ids, size_t n,
                           tsr_token_fn take, void *data, tsr_generate_result *result)
{
    double began = tsr__now_s();
    struct next_token next;
    int64_t most = most_tokens(generator, n);
    if (most == 0)
        return TSR_OK;
    tsr_status st = run_step(generator, ids, (int64_t)n);
    while (st == TSR_OK) {
        TRY(find_next(generator, take, data, &next));
        result->tokens++;
        // The time to the first token is reported separately.
        if (result->tokens == 1)
            result->first_s = tsr__now_s() - began;
        result->seconds = tsr__now_s() - began;
        if (!next.more || result->tokens >= most)
            return TSR_OK;
        st = run_step(generator, &next.token, 1);
    }
    return st;
}

void tsr_generator_close(tsr_generator *generator)
{
    if (!generator)
        return;
    tsr_session *session = generator->session;
    tsr_tensors_free(generator->inputs);
    tsr_tensors_free(generator->outputs);
    tsr_job_close(generator->job);
    tsr_process_group_leave(generator->group);
    tsr__free(session, generator->logits, (size_t)generator->capacity * sizeof *generator->logits);
    tsr__free(session, generator->tokens.at,
              generator->tokens.capacity * sizeof *generator->tokens.at);
    tsr__temporary_remove(generator->work);
    tsr__free(session, generator, sizeof *generator);
}

// Sets the number of devices from the topology, if there is one, else from the options. If a
// topology has one device, the model runs unsharded on it: the device name is copied, because the
// caller may free the topology.
static tsr_status take_devices(tsr_generator *generator)
{
    tsr_generate_options *own = &generator->options;
    generator->devices = own->devices > 1 ? own->devices : 1;
    if (!own->topology)
        return TSR_OK;
    generator->devices = tsr_topology_devices(own->topology);
    generator->run.device = NULL;
    if (generator->devices > 1)
        return TSR_OK;
    const char *name = tsr_topology_device_at(own->topology, 0)->name;
    if (!name || !name[0])
        return TSR_OK;
    generator->run.device = tsr__arena_printf(&generator->folder->arena, "%s", name).p;
    return generator->run.device ? TSR_OK : TSR_NOMEM;
}

static bool is_state(const tsr_folder *folder, const tsr_value *input)
{
    for (size_t i = 0; i < state_count(folder); i++)
        if (strcmp(state_at(folder, i)->past, tsr_value_name(input)) == 0)
            return tsr_value_rank(input) <= MAX_STATE_RANK;
    return false;
}

// True if put_numbers makes the input: ids, mask or positions.
static bool is_numbers(const tsr_folder *folder, const tsr_value *input)
{
    const char *const names[] = {folder->ids, folder->mask, folder->positions};
    tsr_dtype type = tsr_value_dtype(input);
    bool fits = (type == TSR_INT64 || type == TSR_INT32) && row_count(input) > 0;
    for (size_t i = 0; fits && i < TSR_COUNT(names); i++)
        if (strcmp(names[i], tsr_value_name(input)) == 0)
            return true;
    return false;
}

// Refuses models with inputs that this loop cannot make. Example: the decoder of a model for images
// and text has inputs_embeds, which another model computes. Also refuses models without states:
// each later step would see its own token only.
static tsr_status check_inputs(const tsr_folder *folder)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    if (state_count(folder) == 0)
        return tsr__fail(folder->session, TSR_UNSUPPORTED, DIAG_folder_inputs,
                         &PLACE(.file = str_of(folder->model_path)),
                         "use a decoder that was exported with its caches (Optimum: --task "
                         "text-generation-with-past)",
                         "the model has no inputs for KV caches");
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        if (tsr_value_initializer(input) || is_numbers(folder, input) || is_state(folder, input))
            continue;
        struct place at =
            PLACE(.file = str_of(folder->model_path), .value = str_of(tsr_value_name(input)));
        return tsr__fail(
            folder->session, TSR_UNSUPPORTED, DIAG_folder_inputs, &at,
            folder->is_genai
                ? "use tessera.Generator, or onnxruntime-genai with the execution provider"
                : "use a class of Optimum with the execution provider (docs/provider.md)",
            "generate does not support models with this input");
    }
    return TSR_OK;
}

tsr_status tsr_generator_open(tsr_folder *folder, const tsr_generate_options *options,
                              tsr_generator **out)
{
    if (!out)
        return tsr__missing(folder->session, "out");
    tsr_generator *generator = tsr__alloc(folder->session, sizeof *generator);
    if (!generator)
        return TSR_NOMEM;
    *generator = (tsr_generator){.folder = folder, .session = folder->session};
    tsr_generate_options *own = &generator->options;
    tsr_status st = OPTIONS_READ(folder->session, own, options, topology);
    if (st == TSR_OK)
        st = OPTIONS_READ(folder->session, &generator->run, own->run, most_ranks);
    own->run = NULL;
    if (st != TSR_OK)
        goto close_generator;
    if (own->temperature == 0 && (own->top_k > 0 || own->top_p > 0))
        own->temperature = 1; // top_k and top_p need sampling
    // The caller does not set this option: only the library knows which caches are fixed buffers.
    generator->run.states_in_place = caches_have_room(folder);
    generator->random = own->seed;
    st = check_inputs(folder);
    tsr__search_warn(folder);
    if (st == TSR_OK)
        st = take_devices(generator);
    if (st == TSR_OK && generator->devices > 1)
        st = tsr_process_group_join(generator->session, &generator->run, &generator->group);
    if (st == TSR_OK)
        st = generator->devices > 1 ? open_sharded(generator) : open_unsharded(generator);
    st = tsr_process_group_end(generator->group, st);
    if (st != TSR_OK)
        goto close_generator;
    own->topology = NULL; // owned by the caller and not needed any more
    *out = generator;
    return TSR_OK;
close_generator:
    tsr_generator_close(generator);
    return st;
}

static tsr_status refuse_empty(const tsr_folder *folder)
{
    return tsr__fail(folder->session, TSR_INVALID, DIAG_folder_layout,
                     &PLACE(.file = str_of(folder->path)), "give at least one token",
                     "the prompt is empty");
}

// Refuses an empty prompt, a prompt that is longer than the context, and ids outside the
// vocabulary. The engine would accept negative ids: an embedding counts them from its end.
static tsr_status check_tokens(tsr_folder *folder, const int64_t *ids, size_t n)
{
    int64_t most = folder->vocabulary; // 0: unknown
    struct place at = PLACE(.file = str_of(folder->path));
    if (n == 0)
        return refuse_empty(folder);
    if (!ids)
        return tsr__missing(folder->session, "ids");
    if (folder->context > 0 && n > (size_t)folder->context)
        return tsr__fail(folder->session, TSR_INVALID, DIAG_input_mismatch, &at,
                         "give fewer tokens", "the prompt has %zu tokens, the model's context %lld",
                         n, (long long)folder->context);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (most <= 0 || ids[i] < most))
            continue;
        return tsr__fail(folder->session, TSR_INVALID, DIAG_input_mismatch, &at,
                         "use the token ids of the tokenizer of this model",
                         "%lld is not a token id of the model", (long long)ids[i]);
    }
    return TSR_OK;
}

// Generates tokens for a prompt. Every prompt starts with empty caches.
static tsr_status run_prompt(tsr_generator *generator, const int64_t *ids, size_t n,
                             tsr_token_fn take, void *data, tsr_generate_result *result)
{
    tsr_generate_result found = {.size = sizeof found,
                                 .predicted = generator->predicted,
                                 .one_device = generator->one_device,
                                 .devices = generator->devices};
    TRY(check_tokens(generator->folder, ids, n));
    if (result)
        TRY(RESULT_CHECK(generator->session, result, devices));
    generator->past = 0;
    generator->tokens.n = 0;
    TRY(add_tokens(generator, ids, n));
    generator->cache_room = 0;
    if (generator->run.states_in_place)
        generator->cache_room = (int64_t)n + most_tokens(generator, n);
    tsr_status st = generate(generator, ids, n, take, data, &found);
    if (st == TSR_OK && result)
        tsr__result_write(result, &found, sizeof found);
    return st;
}

// If this rank fails between two runs, the other ranks wait for it and must be told.
tsr_status tsr_generator_run(tsr_generator *generator, const int64_t *ids, size_t n,
                             tsr_token_fn take, void *data, tsr_generate_result *result)
{
    return tsr_process_group_end(generator->group,
                                 run_prompt(generator, ids, n, take, data, result));
}

tsr_status tsr_generate(tsr_folder *folder, const int64_t *ids, size_t n,
                        const tsr_generate_options *options, tsr_token_fn take, void *data,
                        tsr_generate_result *result)
{
    tsr_generator *generator = NULL;
    TRY(check_tokens(folder, ids, n));
    TRY(tsr_generator_open(folder, options, &generator));
    tsr_status st = tsr_generator_run(generator, ids, n, take, data, result);
    if (st == TSR_OK && generator->run.trace)
        st = tsr_job_trace(generator->job);
    tsr_generator_close(generator);
    return st;
}
