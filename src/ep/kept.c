// SPDX-License-Identifier: Apache-2.0
// kept.c - the option caches=ranks: caches stay with the ranks, and the application's buffers only
// identify them.
//
// The application binds one buffer as past and as present, as onnxruntime-genai does. The ranks
// keep their shards of it between runs (RUN_CACHE_SET of runtime.h), and the provider finds them by
// the addresses of the buffers. A run moves no cache. The lengths that the attention reads say
// which tokens count. The provider compares them with those of the last run. Example with one
// sequence:
//
//     run 1   6 new tokens, length 6     begins; the ranks have 6 tokens
//     run 2   1 new token, length 7      continues
//     run 3   2 new tokens, length 5     cuts back to 3 tokens, then appends 2
//     run 4   1 new token, length 9      an error: the ranks have 5 tokens, not 8
//     run 5   3 new tokens, length 3     begins again in the same buffers
//
// The lengths are values inside of the model. So the partition returns them as outputs, and the
// provider compares them after the run. A run that fails has written only behind the tokens that
// count, unless a cache is a sliding window.
//
// onnxruntime-genai skips one token if tokens are appended after an answer: it has not run the last
// token of the answer, and the attention reads what the buffer has in its place. So a length may
// be one too large. In a buffer that a new generator has filled with zeros this is zero, also if an
// old generator had the same buffer. After a cut it is an old token. To know which, the provider
// writes a mark to the buffer when a sequence begins. If the next sequence finds no mark, the
// ranks write zeros behind its tokens.
//
// The provider does not learn when the application frees a buffer. New buffers replace older ones
// that they overlap; others are dropped, the oldest first, when memory is needed.
#include "ep/internal.h"
#include "runtime/runtime.h"

#include "tessera_cli.h"
#include "tessera_graph.h"

#define KEPT_MARK 0x7465737365726121u // of a buffer that the application has not filled since

// Caches that the application uses together, such as those of one generator.
struct kept_set {
    struct kept_set *next;
    struct arena arena;
    int64_t id; // on the ranks
    size_t bytes;
    int64_t last_run;
    struct kept_buffer *buffers; // per state of the manifest
    int64_t n_sequences;
    // The application has filled the buffers again, and on the ranks tokens of an earlier sequence
    // are behind those that count.
    bool is_refilled;
    int64_t *used; // tokens on the ranks, per sequence; those of each struct kept_lengths follow
};

// ---- the model ---------------------------------------------------------------------------------

// Makes a value an output, so that the ranks return it. An input is read from the application.
static tsr_status return_value(tsr_graph *graph, const tsr_value *value)
{
    if (tsr_value_is_input(value) || tsr_value_is_output(value))
        return TSR_OK;
    return tsr_graph_add_output(graph, (tsr_value *)(uintptr_t)value);
}

static tsr_status add_lengths(tsr_model *model, const tsr_value *present, struct arena *arena,
                              struct kept_plan *plan)
{
    tsr_cache_lengths found;
    if (!tsr_cache_find_lengths(model, present, &found) || tsr_value_initializer(found.last) ||
        tsr_value_initializer(found.total))
        return tsr__fail(tsr_model_session(model), TSR_UNSUPPORTED, DIAG_ep_option,
                         &PLACE(.value = STR("caches")), "set caches=application",
                         "caches=ranks needs the lengths of the sequences, and those of the cache "
                         "'%s' cannot be found",
                         tsr_value_name(present));
    const char *last = tsr_value_name(found.last), *total = tsr_value_name(found.total);
    for (size_t i = 0; i < plan->lengths.n; i++)
        if (strcmp(plan->lengths.at[i].last, last) == 0 &&
            strcmp(plan->lengths.at[i].total, total) == 0)
            return TSR_OK;
    struct kept_lengths *added = vec_push(arena, &plan->lengths);
    if (!added)
        return TSR_NOMEM;
    *added = (struct kept_lengths){.last = tsr__arena_str(arena, str_of(last)).p,
                                   .total = tsr__arena_str(arena, str_of(total)).p,
                                   .tokens_axis = found.tokens_axis,
                                   .n_tokens = found.n_tokens};
    if (found.tokens)
        added->tokens = tsr__arena_str(arena, str_of(found.tokens)).p;
    TRY(return_value(tsr_model_graph(model), found.last));
    return return_value(tsr_model_graph(model), found.total);
}

tsr_status tsr__ep_kept_plan(tsr_model *model, struct arena *arena, struct kept_plan *plan)
{
    tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *past = tsr_graph_input(graph, i), *present = tsr_cache_present(past);
        if (!present || !tsr_cache_has_room(past, present) || strpbrk(tsr_value_name(past), "*=\n"))
            continue;
        const char **state = vec_push(arena, &plan->states);
        if (!state)
            return TSR_NOMEM;
        *state = tsr__arena_printf(arena, "%s=%s", tsr_value_name(past), tsr_value_name(present)).p;
        TRY(add_lengths(model, present, arena, plan));
    }
    return arena_status(arena);
}

// ---- sets of caches ----------------------------------------------------------------------------

static void free_sets(struct fused *fused, struct kept_set **list)
{
    while (*list) {
        struct kept_set *set = *list;
        *list = set->next;
        tsr__arena_free(&set->arena);
        tsr__free(fused->provider->session, set, sizeof *set);
    }
}

void tsr__ep_kept_forget(struct fused *fused)
{
    free_sets(fused, &fused->kept_sets);
    free_sets(fused, &fused->kept_dropped);
}

// Moves a set to those that the ranks free in the next run.
static void drop_set(struct fused *fused, struct kept_set **at)
{
    struct kept_set *set = *at;
    *at = set->next;
    set->next = fused->kept_dropped;
    fused->kept_dropped = set;
}

// Drops the set that was not used for the longest time. The first one is that of this run, and
// stays. Returns its bytes; 0: there is none.
static size_t drop_oldest(struct fused *fused)
{
    struct kept_set **oldest = NULL;
    for (struct kept_set **at = &fused->kept_sets->next; *at; at = &(*at)->next)
        if (!oldest || (*at)->last_run < (*oldest)->last_run)
            oldest = at;
    size_t bytes = oldest ? (*oldest)->bytes : 0;
    if (oldest)
        drop_set(fused, oldest);
    return bytes;
}

static bool same_buffers(const struct fused *fused, const struct kept_set *set)
{
    for (size_t k = 0; k < fused->manifest.n_states; k++) {
        const struct kept_buffer *a = &set->buffers[k], *b = &fused->kept_buffers[k];
        if (a->data != b->data || a->shape.rank != b->shape.rank ||
            memcmp(a->shape.dims, b->shape.dims, a->shape.rank * sizeof *a->shape.dims) != 0)
            return false;
    }
    return true;
}

// True if a buffer of this run uses memory of the set. Then the application has freed the set.
static bool overlaps(const struct fused *fused, const struct kept_set *set)
{
    size_t n = fused->manifest.n_states;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            const struct kept_buffer *a = &set->buffers[i], *b = &fused->kept_buffers[k];
            uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
            if (x < y + b->bytes && y < x + a->bytes)
                return true;
        }
    return false;
}

static void drop_overlapping(struct fused *fused)
{
    struct kept_set **at = &fused->kept_sets;
    while (*at)
        if (overlaps(fused, *at))
            drop_set(fused, at);
        else
            at = &(*at)->next;
}

// Returns the bytes of a cache on all ranks together.
static size_t bytes_on_ranks(const struct fused *fused, size_t k)
{
    const struct manifest *manifest = &fused->manifest;
    const struct manifest_port *port =
        tsr__manifest_port(manifest->inputs, manifest->n_inputs, manifest->states[k].input);
    return tsr__shards_bytes(port, manifest->n_ranks, fused->kept_buffers[k].bytes);
}

// Drops old sets until the new set fits: into the limit `memory`, and into the memory of the host.
static void make_room(struct fused *fused, const struct kept_set *set)
{
    int64_t limit = fused->provider->options.plan_options.memory, room = INT64_MAX;
    const struct manifest *manifest = &fused->manifest;
    if (limit > 0 && mul_ok(limit, manifest->n_ranks, &room)) {
        for (int64_t r = 0; r < manifest->n_ranks; r++)
            room -= manifest->devices[r].weight_bytes;
        for (const struct kept_set *other = set->next; other; other = other->next)
            room -= (int64_t)other->bytes;
    }
    int64_t available = tsr__memory_available();
    if (available > 0 && !(fused->job && tsr__job_on_gpu(fused->job)))
        room = int64_min(room, available);
    for (size_t freed = 1; freed && (int64_t)set->bytes > room; room += (int64_t)freed)
        freed = drop_oldest(fused);
}

static tsr_status new_set(struct fused *fused)
{
    tsr_session *session = fused->provider->session;
    struct kept_set *set = tsr__alloc(session, sizeof *set);
    size_t n = fused->manifest.n_states;
    if (!set)
        return TSR_NOMEM;
    *set = (struct kept_set){.next = fused->kept_sets, .id = fused->n_kept++};
    tsr__arena_init(&set->arena, session);
    fused->kept_sets = set;
    set->buffers = ARENA_ARRAY(&set->arena, struct kept_buffer, n);
    if (!set->buffers)
        return TSR_NOMEM;
    memcpy(set->buffers, fused->kept_buffers, n * sizeof *set->buffers);
    for (size_t k = 0; k < n; k++)
        set->bytes += bytes_on_ranks(fused, k);
    make_room(fused, set);
    return TSR_OK;
}

// Makes the set of this run's buffers the first one.
static tsr_status find_set(struct fused *fused)
{
    struct kept_set **at = &fused->kept_sets;
    while (*at && !same_buffers(fused, *at))
        at = &(*at)->next;
    struct kept_set *set = *at;
    fused->kept_is_new = !set;
    if (!set) {
        drop_overlapping(fused);
        return new_set(fused);
    }
    *at = set->next;
    set->next = fused->kept_sets;
    fused->kept_sets = set;
    return TSR_OK;
}

// ---- before a run ------------------------------------------------------------------------------

static tsr_status refuse_buffers(const struct fused *fused, const char *past, const char *present)
{
    return tsr__fail(fused->provider->session, TSR_USAGE, DIAG_ep_option,
                     &PLACE(.value = STR("caches")),
                     "bind one buffer as both, as onnxruntime-genai does without beams, or set "
                     "caches=application",
                     "caches=ranks needs caches whose past and present are one buffer, but '%s' "
                     "and '%s' are not",
                     past, present);
}

// Reads address and shape of the buffer of a state. *is_one is false if the application has not
// bound the same buffer as present.
static OrtStatus *read_buffer(const struct fused *fused, OrtKernelContext *context, size_t k,
                              struct kept_buffer *out, bool *is_one)
{
    const OrtApi *ort = fused->provider->factory->api.ort;
    const OrtValue *past = NULL;
    OrtValue *present = NULL;
    void *data = NULL;
    *is_one = false;
    TRY(ort->KernelContext_GetInput(context, fused->kept_inputs[k], &past));
    TRY(tsr__engine_shape(ort, past, &out->shape));
    TRY(ort->GetTensorMutableData((OrtValue *)(uintptr_t)past, &out->data));
    TRY(ort->GetTensorSizeInBytes(past, &out->bytes));
    out->gpu = tsr__ep_value_gpu(&fused->provider->factory->api, past);
    // An output that is bound with another shape is an error of ONNX Runtime, and another buffer.
    OrtStatus *other = ort->KernelContext_GetOutput(context, fused->kept_outputs[k],
                                                    out->shape.dims, out->shape.rank, &present);
    if (!other && present)
        other = ort->GetTensorMutableData(present, &data);
    if (other)
        ort->ReleaseStatus(other);
    *is_one = !other && data && data == out->data && out->bytes > 0;
    return NULL;
}

static tsr_status read_buffers(struct fused *fused, OrtKernelContext *context)
{
    const struct manifest *manifest = &fused->manifest;
    if (manifest->n_states == 0) // such as caches that grow by Concat
        return refuse_buffers(fused, fused->inputs[fused->caches[0].input],
                              fused->outputs[fused->caches[0].output]);
    for (size_t k = 0; k < manifest->n_states; k++) {
        bool is_one = false;
        TRY(tsr__ep_report(fused->provider->session, &fused->provider->factory->api,
                           read_buffer(fused, context, k, &fused->kept_buffers[k], &is_one)));
        if (!is_one)
            return refuse_buffers(fused, manifest->states[k].input, manifest->states[k].output);
    }
    return TSR_OK;
}

// Adds the list that tells the ranks which caches to use and to free.
static tsr_status add_order(struct fused *fused, tsr_tensors *inputs)
{
    struct tensor *order = NULL;
    const struct kept_set *set = fused->kept_sets;
    int64_t n_clear = set->is_refilled ? set->n_sequences : 0, n = 3 + n_clear;
    for (const struct kept_set *old = fused->kept_dropped; old; old = old->next)
        n++;
    for (size_t k = 0; k < fused->manifest.n_states; k++)
        n += 1 + (int64_t)set->buffers[k].shape.rank;
    TRY(tsr__tensors_add(inputs, STR(RUN_CACHE_SET), TSR_INT64, 1, &n, &order));
    int64_t *to = order->data, *count = to + 1;
    *to = set->id;
    *count = 0;
    to += 2;
    for (const struct kept_set *old = fused->kept_dropped; old; old = old->next, ++*count)
        *to++ = old->id;
    *to++ = n_clear;
    for (int64_t b = 0; b < n_clear; b++)
        *to++ = set->used[b];
    for (size_t k = 0; k < fused->manifest.n_states; k++) {
        const struct value_shape *shape = &set->buffers[k].shape;
        *to++ = (int64_t)shape->rank;
        memcpy(to, shape->dims, shape->rank * sizeof *to);
        to += shape->rank;
    }
    return TSR_OK;
}

tsr_status tsr__ep_kept_begin(struct fused *fused, OrtKernelContext *context, tsr_tensors *inputs)
{
    fused->kept_is_new = false;
    if (!fused->keeps || fused->n_caches == 0)
        return TSR_OK;
    TRY(read_buffers(fused, context));
    TRY(find_set(fused));
    return add_order(fused, inputs);
}

bool tsr__ep_kept_retry(struct fused *fused, tsr_tensors *inputs)
{
    if (!fused->keeps || !fused->job || !fused->kept_sets || !drop_oldest(fused))
        return false;
    tsr_finding_clear(fused->provider->session);
    return add_order(fused, inputs) == TSR_OK;
}

// ---- after a run -------------------------------------------------------------------------------

// Reads integers that the ranks returned, or that the application gave.
static tsr_status read_numbers(const struct fused *fused, const char *name,
                               const tsr_tensors *inputs, const tsr_tensors *outputs,
                               struct arena *arena, int64_t **out, int64_t *n)
{
    const struct ep_factory *factory = fused->provider->factory;
    const struct tensor *from = tsr__tensors_get(outputs, name);
    if (!from)
        from = tsr__tensors_get(inputs, name);
    if (!from || (from->type != TSR_INT32 && from->type != TSR_INT64))
        return tsr__fail(arena->session, TSR_BUG, DIAG_ep_option, &PLACE(.value = STR("caches")),
                         NULL, "the ranks did not return the lengths '%s'", name);
    *n = tsr__tensor_elements(from);
    const void *data = from->data;
    *out = ARENA_ARRAY(arena, int64_t, (size_t)*n + 1);
    if (from->device) {
        void *copy = tsr__arena_raw(arena, from->device_bytes + 1);
        if (!copy)
            return TSR_NOMEM;
        TRY(tsr__ep_report(arena->session, &factory->api,
                           tsr__ep_memory_copy(factory->memory, copy, -1, from->device_data,
                                               from->device - 1, from->device_bytes)));
        data = copy;
    }
    for (int64_t i = 0; *out && i < *n; i++)
        (*out)[i] =
            from->type == TSR_INT64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
    return arena_status(arena);
}

static int64_t new_tokens(const struct kept_lengths *lengths, const tsr_tensors *inputs)
{
    const struct tensor *tokens =
        lengths->tokens ? tsr__tensors_get(inputs, lengths->tokens) : NULL;
    return tokens && lengths->tokens_axis < tokens->rank ? tokens->dims[lengths->tokens_axis]
                                                         : lengths->n_tokens;
}

static tsr_status refuse_length(const struct fused *fused, int64_t sequence, int64_t read,
                                int64_t used)
{
    return tsr__fail(fused->provider->session, TSR_USAGE, DIAG_ep_option,
                     &PLACE(.value = STR("caches")),
                     "begin the sequence again in these buffers, or set caches=application. Caches "
                     "on the ranks end with a failed run, when other buffers use their memory, and "
                     "when memory is needed",
                     "caches=ranks: the attention reads %lld tokens of sequence %lld before the "
                     "new ones, and the ranks have %lld in these buffers",
                     (long long)read, (long long)sequence, (long long)used);
}

// Returns the number of tokens for which the buffers have space: the least length of those that are
// [batch, heads, tokens, head size] and no window.
static int64_t capacity_of(const struct fused *fused)
{
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < fused->n_caches; i++)
        for (size_t k = 0; k < fused->manifest.n_states; k++) {
            const struct value_shape *shape = &fused->kept_buffers[k].shape;
            if (fused->kept_inputs[k] == fused->caches[i].input && !fused->caches[i].slides &&
                shape->rank == 4)
                least = int64_min(least, shape->dims[2]);
        }
    return least;
}

// True if the first buffer of this run has the mark of its set. Writes it if not: the application
// does not read the buffer.
static bool find_mark(const struct fused *fused)
{
    const struct ep_factory *factory = fused->provider->factory;
    const struct kept_buffer *buffer = &fused->kept_buffers[0];
    uint64_t mark[2] = {KEPT_MARK ^ (uintptr_t)fused, (uint64_t)fused->kept_sets->id}, found[2];
    if (buffer->bytes < sizeof mark)
        return false;
    OrtStatus *failed = NULL;
    if (buffer->gpu < 0)
        memcpy(found, buffer->data, sizeof found);
    else
        failed = tsr__ep_memory_copy(factory->memory, found, -1, buffer->data, buffer->gpu,
                                     sizeof found);
    bool is_marked = !failed && memcmp(found, mark, sizeof mark) == 0;
    if (buffer->gpu < 0)
        memcpy(buffer->data, mark, sizeof mark);
    else if (!failed && !is_marked)
        failed =
            tsr__ep_memory_copy(factory->memory, buffer->data, buffer->gpu, mark, -1, sizeof mark);
    factory->api.ort->ReleaseStatus(failed); // NULL is allowed
    return is_marked;
}

// Compares the lengths that the attention has read with those that the ranks had, and sets them.
static tsr_status check_lengths(const struct fused *fused, size_t i, const tsr_tensors *inputs,
                                const tsr_tensors *outputs, struct arena *arena)
{
    const struct kept_plan *plan = &fused->parts.kept;
    const struct kept_lengths *lengths = &plan->lengths.at[i];
    struct kept_set *set = fused->kept_sets;
    int64_t *last = NULL, *total = NULL, n = 0, n_total = 0;
    TRY(read_numbers(fused, lengths->last, inputs, outputs, arena, &last, &n));
    TRY(read_numbers(fused, lengths->total, inputs, outputs, arena, &total, &n_total));
    if (n != set->n_sequences) {
        set->n_sequences = n;
        set->used = ARENA_ARRAY(&set->arena, int64_t, plan->lengths.n * (size_t)n + 1);
        if (!set->used)
            return TSR_NOMEM;
    }
    int64_t tokens = new_tokens(lengths, inputs), *used = set->used + i * (size_t)n;
    bool begins = n_total > 0 && total[0] == tokens;
    for (int64_t b = 0; b < n && n_total > 0 && !begins; b++)
        if (last[b] + 1 - tokens > used[b] + (used[b] > 0)) // see the head of the file
            return refuse_length(fused, b, last[b] + 1 - tokens, used[b]);
    if (i == 0)
        set->is_refilled = begins && !find_mark(fused) && !fused->kept_is_new;
    for (int64_t b = 0; b < n; b++)
        used[b] = last[b] + 1;
    return TSR_OK;
}

// True if a run that is refused afterwards may have changed tokens that count.
static bool slides(const struct fused *fused)
{
    bool found = false;
    for (size_t i = 0; i < fused->n_caches; i++)
        found = found || fused->caches[i].slides;
    return found;
}

void tsr__ep_kept_failed(const struct fused *fused, const tsr_tensors *inputs)
{
    const struct kept_set *set = fused->kept_sets;
    const struct kept_plan *plan = &fused->parts.kept;
    int64_t capacity = capacity_of(fused), longest = 0;
    if (!fused->keeps || !set)
        return;
    for (size_t i = 0; i < plan->lengths.n; i++) {
        int64_t tokens = new_tokens(&plan->lengths.at[i], inputs);
        longest = int64_max(longest, tokens);
        for (int64_t b = 0; b < set->n_sequences; b++)
            longest =
                int64_max(longest, set->used[i * (size_t)set->n_sequences + (size_t)b] + tokens);
    }
    if (longest > capacity)
        tsr__diag(fused->provider->session, DIAG_ep_option, &PLACE(.value = STR("caches")),
                  "bind longer buffers, or set caches=application and bind no outputs, so that the "
                  "caches grow",
                  "caches=ranks: %lld tokens do not fit into buffers for %lld", (long long)longest,
                  (long long)capacity);
}

tsr_status tsr__ep_kept_end(struct fused *fused, const tsr_tensors *inputs,
                            const tsr_tensors *outputs)
{
    if (!fused->keeps || !fused->kept_sets)
        return TSR_OK;
    if (!outputs) { // the run failed; if the ranks have ended, there are no sets
        if (fused->kept_is_new)
            drop_set(fused, &fused->kept_sets);
        return TSR_OK;
    }
    free_sets(fused, &fused->kept_dropped);
    fused->kept_sets->last_run = fused->n_runs;
    struct arena arena = {.session = fused->provider->session};
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < fused->parts.kept.lengths.n && st == TSR_OK; i++)
        st = check_lengths(fused, i, inputs, outputs, &arena);
    tsr__arena_free(&arena);
    if (st != TSR_OK && (fused->kept_is_new || slides(fused)))
        drop_set(fused, &fused->kept_sets);
    return st;
}

// ---- opening -----------------------------------------------------------------------------------

static size_t index_of(const char *const *names, size_t n, const char *name)
{
    size_t i = 0;
    while (i < n && strcmp(names[i], name) != 0)
        i++;
    return i;
}

tsr_status tsr__ep_kept_open(struct fused *fused)
{
    const struct manifest *manifest = &fused->manifest;
    size_t n = manifest->n_states;
    if (!fused->provider->options.ranks_keep)
        return TSR_OK;
    fused->keeps = true;
    fused->kept_inputs = ARENA_ARRAY(&fused->arena, size_t, n + 1);
    fused->kept_outputs = ARENA_ARRAY(&fused->arena, size_t, n + 1);
    fused->kept_buffers = ARENA_ARRAY(&fused->arena, struct kept_buffer, n + 1);
    TRY(arena_status(&fused->arena));
    for (size_t k = 0; k < n; k++) {
        size_t input = index_of(fused->inputs, fused->n_inputs, manifest->states[k].input);
        size_t output = index_of(fused->outputs, fused->n_outputs, manifest->states[k].output);
        if (input == fused->n_inputs || output == fused->n_outputs)
            return refuse_buffers(fused, manifest->states[k].input, manifest->states[k].output);
        fused->kept_inputs[k] = input;
        fused->kept_outputs[k] = output;
    }
    return TSR_OK;
}
