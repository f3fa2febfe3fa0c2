// SPDX-License-Identifier: Apache-2.0
// caches.c - key/value caches that the ranks update in the application's buffer.
//
// A program that generates text may give one buffer of the maximal length as past and as present
// (onnxruntime-genai does). The shape of this buffer never changes, so the shape of the output is
// known before the run. The ranks then read and write their heads in the buffer itself. A cache
// that grows has another shape in every run (grow.c). If its new length is not known, its shards
// are copied.
//
//     Examples:
//     past [1,8,512,64], 9 tokens    written in place
//     past [1,8,512,64], ? tokens    copied; if the shape stayed, the next run writes in place
//     past [4,8,512,64], 9 tokens    heads of a rank are not contiguous: the 9 tokens are copied
//
// Behind the tokens the buffer keeps its contents. onnxruntime-genai reads one of them if tokens
// are appended after an answer.
#include "ep/internal.h"
#include "runtime/runtime.h"

#include "tessera_cli.h"

// True if the output updates the cache. Manifests of older releases list only caches with spare
// capacity; others are found by name.
static bool is_pair(const struct fused *fused, size_t input, size_t output)
{
    const struct manifest *manifest = &fused->manifest;
    const struct manifest_port *from =
        tsr__manifest_port(manifest->inputs, manifest->n_inputs, fused->inputs[input]);
    if (from && from->updated_by)
        return strcmp(from->updated_by, fused->outputs[output]) == 0;
    if (from && from->present)
        return strcmp(from->present, fused->outputs[output]) == 0;
    return tsr_cache_names_match(fused->inputs[input], fused->outputs[output]);
}

static struct cache_pair cache_pair(const struct fused *fused, size_t input, size_t output)
{
    const struct manifest *manifest = &fused->manifest;
    const char *present = fused->outputs[output];
    const struct manifest_port *from =
        tsr__manifest_port(manifest->inputs, manifest->n_inputs, fused->inputs[input]);
    const struct manifest_port *to =
        tsr__manifest_port(manifest->outputs, manifest->n_outputs, present);
    bool has_room = from && from->updated_by && strcmp(from->updated_by, present) == 0;
    return (struct cache_pair){.input = input,
                               .output = output,
                               .past = from,
                               .present = to,
                               .has_room = has_room,
                               .slides = has_room && from->slides,
                               .read_by_writer = tsr__shards_read_by_writer(from, to)};
}

tsr_status tsr__ep_caches_find(struct fused *fused)
{
    fused->caches = ARENA_ARRAY(&fused->arena, struct cache_pair, fused->n_outputs + 1);
    fused->used = ARENA_ARRAY(&fused->arena, struct used_length, fused->n_outputs + 1);
    fused->copies = ARENA_ARRAY(&fused->arena, struct cache_copy, fused->n_outputs + 1);
    if (!fused->caches || !fused->used || !fused->copies)
        return TSR_NOMEM;
    for (size_t output = 0; output < fused->n_outputs; output++)
        for (size_t input = 0; input < fused->n_inputs; input++)
            if (is_pair(fused, input, output)) {
                fused->caches[fused->n_caches++] = cache_pair(fused, input, output);
                break;
            }
    fused->can_grow = tsr__ep_caches_can_grow(fused);
    return TSR_OK;
}

static bool has_shape(const struct tensor *tensor, int rank, const int64_t *dims)
{
    return tensor->rank == rank &&
           (rank == 0 || memcmp(tensor->dims, dims, (size_t)rank * sizeof *dims) == 0);
}

// Sizes of named dimensions in this run. All caches have the same few names, and a search for one
// visits all inputs.
struct known_sizes {
    const char *symbols[4];
    int64_t sizes[4];
    int n;
};

// Returns the size that the inputs have in dimensions of this name; -1: none has it, or sizes
// differ. Example: a branch does not read a past of length 1 where the name has the size 6.
static int64_t find_size(const struct manifest *manifest, const tsr_tensors *inputs,
                         const char *symbol)
{
    int64_t size = -1;
    for (size_t i = 0; i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        const struct tensor *given = tsr__tensors_get(inputs, port->name);
        for (int axis = 0; given && axis < port->rank; axis++) {
            const tsr_dim *dim = &port->dims[axis];
            if (given->rank != port->rank || dim->value >= 0 || !dim->symbol ||
                strcmp(dim->symbol, symbol) != 0)
                continue;
            if (size >= 0 && size != given->dims[axis])
                return -1;
            size = given->dims[axis];
        }
    }
    return size;
}

static int64_t size_of(const struct fused *fused, const tsr_tensors *inputs, const char *symbol,
                       struct known_sizes *known)
{
    if (!symbol)
        return -1;
    for (int i = 0; i < known->n; i++)
        if (strcmp(known->symbols[i], symbol) == 0)
            return known->sizes[i];
    int64_t size = find_size(&fused->manifest, inputs, symbol);
    if (known->n < (int)TSR_COUNT(known->sizes)) {
        known->symbols[known->n] = symbol;
        known->sizes[known->n++] = size;
    }
    return size;
}

// True if the output of this run has the shape of the cache. An attention with spare capacity
// returns its buffer unless it needs a longer one: with total_length 33 in the other inputs, a
// cache of length 32 must grow. If no input has the length, the last run must have kept it. *used
// is the axis of which only a part is needed, and its length; used->axis -1: none, or several. Of
// other caches the inputs must give every size: the length of one that a branch computes without
// its past may change, although the last run kept it.
static bool keeps_shape(const struct fused *fused, const struct cache_pair *cache,
                        const tsr_tensors *inputs, struct known_sizes *known,
                        struct used_length *used)
{
    int shorter = 0;
    const struct manifest_port *port = cache->present;
    int rank = port && port->rank == cache->rank ? port->rank : 0;
    if (!cache->has_room && rank == 0)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        int64_t size = port->dims[axis].value;
        if (size < 0)
            size = size_of(fused, inputs, port->dims[axis].symbol, known);
        if (size > cache->dims[axis] || (!cache->has_room && size < cache->dims[axis]))
            return false;
        if (size < 0 && !cache->steady && !cache->slides)
            return false;
        if (size < 0 || size == cache->dims[axis])
            continue;
        shorter++;
        used->axis = axis;
        used->used = size;
    }
    if (shorter != 1)
        used->axis = -1;
    return true;
}

// Registers the used part of a cache that cannot be updated in place, so that only this part is
// copied. This happens in a buffer for several sequences, in which the heads of a rank are not
// contiguous. Past and present are the same buffer, so the rest of it keeps its contents.
static void use_part(struct fused *fused, struct cache_pair *cache, const struct used_length *used)
{
    if (!cache->has_room || used->axis < 0 || tsr__job_on_gpu(fused->job))
        return;
    cache->partial = true;
    fused->used[fused->n_used] = *used;
    fused->used[fused->n_used++].input = fused->inputs[cache->input];
}

// True if the ranks can write their shards to a buffer of this shape. Checked once per shape and
// device, because the check computes the tiles of all ranks.
static bool can_place(const struct fused *fused, struct cache_pair *cache,
                      const struct tensor *wanted)
{
    if (!cache->checked || cache->device != wanted->device) {
        cache->in_place = tsr__job_can_place(fused->job, wanted);
        cache->device = wanted->device;
        cache->checked = true;
    }
    return cache->in_place;
}

// True if a rank could read the past after another rank has written the present. Past and present
// are one buffer, the ranks do not only append to it, and they read what others write. Examples: a
// state s + x that every rank computes would become s + 2 x; the full cache of a window, which
// drops its oldest token in each step, would drop one for every rank that has the head.
static bool is_read_late(const struct cache_pair *cache, const struct tensor *past,
                         const void *data)
{
    const void *read = past->device ? past->device_data : past->data;
    return data == read && (!cache->has_room || cache->slides) && !cache->read_by_writer;
}

// Makes a copy of the past to which the ranks write, in place of memory of their own. So the part
// of the buffer without tokens keeps its contents. In memory of the ranks it would not be
// initialized, and onnxruntime-genai reads it if tokens are appended after an answer. NULL: out of
// memory.
static void *copy_past(struct fused *fused, struct cache_pair *cache, const struct tensor *past,
                       void *data)
{
    cache->copy = tsr__alloc(fused->provider->session, past->bytes);
    if (!cache->copy)
        return NULL;
    memcpy(cache->copy, past->data, past->bytes);
    cache->to = data;
    cache->bytes = past->bytes;
    return cache->copy;
}

// Moves the copies to the outputs after a run.
static void end_copies(struct fused *fused, bool succeeded)
{
    for (size_t i = 0; i < fused->n_caches; i++) {
        struct cache_pair *cache = &fused->caches[i];
        if (!cache->copy)
            continue;
        if (succeeded)
            memcpy(cache->to, cache->copy, cache->bytes);
        tsr__free(fused->provider->session, cache->copy, cache->bytes);
        cache->copy = NULL;
        cache->steady = succeeded;
    }
}

// Returns where the ranks write a cache in this run: to the buffer of the output, or to a copy of
// the past. NULL: to memory of their own. `data` is the buffer of the output.
static void *place_of(struct fused *fused, struct cache_pair *cache, const struct tensor *past,
                      void *data)
{
    if ((cache->steady || !cache->slides) && !is_read_late(cache, past, data))
        return data;
    if (cache->slides && past->device == 0 && data == past->data)
        return copy_past(fused, cache, past, data);
    return NULL;
}

static tsr_status place_cache(struct fused *fused, OrtKernelContext *context,
                              struct cache_pair *cache, const struct tensor *past,
                              const struct used_length *used, tsr_tensors *places)
{
    const struct ep_api *api = &fused->provider->factory->api;
    struct tensor wanted = *past;
    OrtValue *value = NULL;
    void *data = NULL;
    wanted.name = (char *)(uintptr_t)fused->outputs[cache->output];
    bool in_place = can_place(fused, cache, &wanted);
    if (!in_place && (past->device || tsr_dtype_bits(past->type) < 8))
        return TSR_OK;
    OrtStatus *failed = api->ort->KernelContext_GetOutput(context, cache->output, past->dims,
                                                          (size_t)past->rank, &value);
    if (!failed && value)
        failed = api->ort->GetTensorMutableData(value, &data);
    TRY(tsr__ep_report(fused->provider->session, api, failed));
    if (!in_place && data == past->data)
        use_part(fused, cache, used);
    if (!in_place || !data || 1 + tsr__ep_value_gpu(api, value) != past->device)
        return TSR_OK;
    data = place_of(fused, cache, past, data);
    if (!data)
        return TSR_OK;
    return tsr__tensors_add_foreign(places, str_of(wanted.name), past->type, past->rank, past->dims,
                                    &(struct foreign){.data = data, .device = past->device});
}

static void set_shape(struct cache_pair *cache, int rank, const int64_t *dims)
{
    cache->checked = false;
    cache->rank = rank <= RUN_MAX_RANK ? rank : 0;
    memcpy(cache->dims, dims, (size_t)cache->rank * sizeof *dims);
}

// Sets the shape of a cache with spare capacity, which its output keeps, if the last run had
// another one.
static void begin_shape(struct cache_pair *cache, const struct tensor *past)
{
    if (!cache->has_room || has_shape(past, cache->rank, cache->dims))
        return;
    set_shape(cache, past->rank, past->dims);
    cache->steady = false;
}

bool tsr__ep_caches_give(struct fused *fused, const tsr_tensors *inputs, size_t output,
                         const struct tensor *tensor, void *data)
{
    struct known_sizes known = {.n = 0};
    struct used_length used = {.axis = -1};
    size_t i = 0;
    while (i < fused->n_caches && fused->caches[i].output != output)
        i++;
    struct cache_pair *cache = i < fused->n_caches ? &fused->caches[i] : NULL;
    const struct tensor *past =
        cache ? tsr__tensors_get(inputs, fused->inputs[cache->input]) : NULL;
    if (!past || !cache->has_room || cache->slides || past->device || past->data != data ||
        tsr_dtype_bits(past->type) < 8 || !has_shape(tensor, past->rank, past->dims))
        return false;
    begin_shape(cache, past);
    if (!keeps_shape(fused, cache, inputs, &known, &used) || used.axis < 0)
        return false;
    size_t rows = 1, row = tensor->bytes, token;
    for (int axis = 0; axis < used.axis; axis++)
        rows *= (size_t)tensor->dims[axis];
    row = rows ? row / rows : 0;
    token = row / (size_t)tensor->dims[used.axis];
    for (size_t k = 0; k < rows; k++)
        memcpy((char *)data + k * row, (const char *)tensor->data + k * row,
               (size_t)used.used * token);
    return true;
}

tsr_status tsr__ep_caches_place(struct fused *fused, OrtKernelContext *context, tsr_tensors *inputs,
                                tsr_tensors *places)
{
    struct known_sizes known = {.n = 0};
    fused->n_used = 0;
    TRY(tsr__ep_caches_grow(fused, context, inputs, places));
    TRY(tsr__ep_caches_extend(fused, context, inputs, places));
    for (size_t i = 0; i < fused->n_caches; i++) {
        struct cache_pair *cache = &fused->caches[i];
        struct used_length used = {.axis = -1};
        cache->partial = false;
        const struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
        if (cache->grown || !past)
            continue;
        begin_shape(cache, past);
        if ((!cache->steady && !cache->has_room) || !has_shape(past, cache->rank, cache->dims) ||
            !keeps_shape(fused, cache, inputs, &known, &used))
            continue;
        TRY(place_cache(fused, context, cache, past, &used, places));
    }
    return TSR_OK;
}

void tsr__ep_caches_full_shape(const struct fused *fused, size_t output, struct tensor *to)
{
    for (size_t i = 0; i < fused->n_caches; i++) {
        const struct cache_pair *cache = &fused->caches[i];
        if (cache->output == output && cache->partial && cache->rank == to->rank)
            memcpy(to->dims, cache->dims, (size_t)cache->rank * sizeof *to->dims);
    }
}

void tsr__ep_caches_returned(struct fused *fused, size_t output, const struct tensor *present)
{
    for (size_t i = 0; i < fused->n_caches; i++)
        if (fused->caches[i].output == output)
            set_shape(&fused->caches[i], present->rank, present->dims);
}

static int64_t bytes_of(const struct tensor *tensor)
{
    if (!tensor)
        return 0;
    return (int64_t)(tensor->device ? tensor->device_bytes : tensor->bytes);
}

int64_t tsr__ep_caches_copied(const struct fused *fused, const tsr_tensors *inputs,
                              const tsr_tensors *places, const tsr_tensors *outputs)
{
    int64_t sum = 0;
    for (size_t i = 0; i < fused->n_caches; i++) {
        const struct cache_pair *cache = &fused->caches[i];
        const char *name = fused->outputs[cache->output];
        const struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
        if (tsr__tensors_get(places, name)) {
            sum += cache->copy ? 2 * (int64_t)cache->bytes : 0;
            continue;
        }
        // Contiguous shards of the past are read in place by ranks of this process.
        if (fused->served || !cache->in_place)
            sum += bytes_of(past);
        sum += past && fused->placed[cache->output] ? bytes_of(past)
                                                    : bytes_of(tsr__tensors_get(outputs, name));
    }
    return sum;
}

void tsr__ep_caches_note(struct fused *fused, const tsr_tensors *inputs, const tsr_tensors *outputs)
{
    end_copies(fused, outputs);
    for (size_t i = 0; i < fused->n_caches; i++) {
        struct cache_pair *cache = &fused->caches[i];
        if (!outputs) {
            cache->steady = false;
            continue;
        }
        const struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
        const struct tensor *present = tsr__tensors_get(outputs, fused->outputs[cache->output]);
        if (!present && !fused->placed[cache->output])
            continue; // the ranks wrote this cache in place
        if (present)
            set_shape(cache, present->rank, present->dims);
        cache->steady = past && cache->rank > 0 && has_shape(past, cache->rank, cache->dims);
    }
}
