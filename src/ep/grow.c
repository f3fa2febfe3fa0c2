// SPDX-License-Identifier: Apache-2.0
// grow.c - caches that get longer in every run.
//
// The application gives past [1,8,512,64] and gets present [1,8,513,64], which is other memory. The
// ranks write their heads of the present to that memory. This needs the length of the present
// before the run, from the size of an input (length_input in the manifest). Otherwise the ranks
// return new caches, which are copied. There are two kinds of caches:
//
// Attention that could append to spare capacity, in GPU memory. ONNX Runtime would copy each past
// to its present, and its kernels need more launches than for past and present in one buffer. So
// the provider copies all caches itself, with one launch, and writes zeros behind them, as ONNX
// Runtime does. The ranks get the memory of the present as past and as present, and append to it.
//
// Concat, and attention that always returns longer caches, in any memory. The node itself copies
// the past, so the ranks only get the memory of the present.
#include "ep/internal.h"
#include "runtime/runtime.h"

#define MOST_ROWS 1024 // most copies in a run: one for each head of each cache

// Caches have the shape [..., length, elements of a token].
static int length_axis(const struct manifest_port *past)
{
    return past->rank - 2;
}

static bool is_same_size(const tsr_dim *a, const tsr_dim *b)
{
    return a->value < 0 && b->value < 0 && a->symbol && b->symbol && *a->symbol &&
           strcmp(a->symbol, b->symbol) == 0;
}

// True if only lengths of caches have the name of this cache's length. Otherwise the runtime would
// refuse a cache that is longer than the other sizes of this name.
static bool has_own_name(const struct manifest *manifest, const struct manifest_port *past)
{
    const tsr_dim *length = &past->dims[length_axis(past)];
    for (size_t i = 0; i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        for (int axis = 0; axis < port->rank; axis++)
            if (is_same_size(&port->dims[axis], length) &&
                !(port->length_input && axis == length_axis(port)))
                return false;
    }
    return true;
}

bool tsr__ep_caches_can_grow(const struct fused *fused)
{
    const struct manifest *manifest = &fused->manifest;
    size_t updated = 0, known = 0;
    for (size_t i = 0; i < manifest->n_inputs; i++)
        updated += manifest->inputs[i].updated_by != NULL;
    for (size_t i = 0; i < fused->n_caches; i++) {
        struct cache_pair *cache = &fused->caches[i];
        const struct manifest_port *past = cache->past;
        if (!cache->has_room || !past || !past->length_input || past->rank < 3 ||
            past->dims[length_axis(past)].value >= 0 || !has_own_name(manifest, past))
            continue;
        cache->length_input = past->length_input;
        cache->length_axis = past->length_axis;
        known++;
    }
    // An attention node has two caches, and both must be in one buffer, or none.
    return known > 0 && known == updated;
}

// Sets the sizes of a copy, except the address to write. Returns false if the cache does not grow,
// or if its sizes are not multiples of 16 bytes.
static bool measure(const struct cache_pair *cache, const tsr_tensors *inputs,
                    const struct tensor *past, struct cache_copy *copy)
{
    const struct tensor *length = tsr__tensors_get(inputs, cache->length_input);
    int axis = past ? past->rank - 2 : 0;
    if (!past || past->rank < 3 || !past->device || !length || cache->length_axis >= length->rank ||
        tsr_dtype_bits(past->type) < 8)
        return false;
    int64_t token = past->dims[axis + 1] * tsr_dtype_bits(past->type) / 8;
    copy->length = length->dims[cache->length_axis];
    if (token <= 0 || token % 16 != 0 || token > INT32_MAX || past->dims[axis] <= 0 ||
        copy->length <= past->dims[axis] || copy->length > UINT32_MAX / token)
        return false;
    copy->from = past->device_data;
    copy->from_bytes = (size_t)(past->dims[axis] * token);
    copy->to_bytes = (size_t)(copy->length * token);
    copy->rows = past->device_bytes / copy->from_bytes;
    return copy->rows > 0 && (uintptr_t)copy->from % 16 == 0;
}

static bool overlap(const struct cache_copy *a, const struct cache_copy *b)
{
    uintptr_t to = (uintptr_t)a->to, from = (uintptr_t)b->from;
    return to < from + b->rows * b->from_bytes && from < to + a->rows * a->to_bytes;
}

// True if the cache is sharded as the one before it and has the same shape. Then the ranks can
// write both to the application's memory, or none. All caches of most models are alike.
static bool is_like_previous(const struct fused *fused, size_t i, const tsr_tensors *inputs,
                             const struct tensor *past)
{
    const struct cache_pair *cache = &fused->caches[i], *previous = i ? cache - 1 : NULL;
    if (!previous || !previous->length_input || !cache->present || !previous->present ||
        !cache->present->sharding || !previous->present->sharding ||
        strcmp(cache->present->sharding, previous->present->sharding) != 0)
        return false;
    const struct tensor *other = tsr__tensors_get(inputs, fused->inputs[previous->input]);
    return other->type == past->type && other->rank == past->rank &&
           fused->copies[i].length == fused->copies[i - 1].length &&
           memcmp(other->dims, past->dims, (size_t)past->rank * sizeof *past->dims) == 0;
}

// Measures all copies. Returns false if a cache does not grow, or if a rank cannot write its shard
// to the application's memory.
static bool measure_all(const struct fused *fused, const tsr_tensors *inputs, int *device)
{
    size_t rows = 0;
    int64_t dims[RUN_MAX_RANK];
    for (size_t i = 0; i < fused->n_caches; i++) {
        const struct cache_pair *cache = &fused->caches[i];
        struct cache_copy *copy = &fused->copies[i];
        const struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
        if (!cache->length_input)
            continue;
        if (!measure(cache, inputs, past, copy) || past->rank > RUN_MAX_RANK ||
            (*device && past->device != *device))
            return false;
        *device = past->device;
        rows += copy->rows;
        if (is_like_previous(fused, i, inputs, past))
            continue;
        struct tensor wanted = *past;
        memcpy(dims, past->dims, (size_t)past->rank * sizeof *dims);
        dims[past->rank - 2] = copy->length;
        wanted.dims = dims;
        wanted.name = (char *)(uintptr_t)fused->outputs[cache->output];
        if (!tsr__job_can_place(fused->job, &wanted))
            return false;
    }
    return rows > 0 && rows <= MOST_ROWS;
}

// Gets the application's memory for the presents. *fits becomes false if an output is not
// requested, or if its memory is on another device or overlaps a past.
static OrtStatus *get_memory(const struct fused *fused, OrtKernelContext *context,
                             const tsr_tensors *inputs, int device, bool *fits)
{
    const struct ep_api *api = &fused->provider->factory->api;
    int64_t dims[RUN_MAX_RANK];
    *fits = true;
    for (size_t i = 0; i < fused->n_caches && *fits; i++) {
        const struct cache_pair *cache = &fused->caches[i];
        struct cache_copy *copy = &fused->copies[i];
        OrtValue *value = NULL;
        if (!cache->length_input)
            continue;
        const struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
        memcpy(dims, past->dims, (size_t)past->rank * sizeof *dims);
        dims[past->rank - 2] = copy->length;
        copy->to = NULL;
        TRY(api->ort->KernelContext_GetOutput(context, cache->output, dims, (size_t)past->rank,
                                              &value));
        if (value)
            TRY(api->ort->GetTensorMutableData(value, &copy->to));
        *fits = copy->to && (uintptr_t)copy->to % 16 == 0 &&
                1 + tsr__ep_value_gpu(api, value) == device;
    }
    for (size_t i = 0; i < fused->n_caches && *fits; i++)
        for (size_t k = 0; k < fused->n_caches && *fits; k++)
            if (fused->caches[i].length_input && fused->caches[k].length_input)
                *fits = !overlap(&fused->copies[i], &fused->copies[k]);
    return NULL;
}

// Makes the memory of the present the past of this run, and its place.
static tsr_status use_present(const struct fused *fused, size_t i, tsr_tensors *inputs,
                              tsr_tensors *places)
{
    const struct cache_pair *cache = &fused->caches[i];
    const struct cache_copy *copy = &fused->copies[i];
    struct tensor *past = tsr__tensors_get(inputs, fused->inputs[cache->input]);
    past->dims[past->rank - 2] = copy->length;
    past->device_data = copy->to;
    past->device_bytes = copy->rows * copy->to_bytes;
    return tsr__tensors_add_foreign(places, str_of(fused->outputs[cache->output]), past->type,
                                    past->rank, past->dims,
                                    &(struct foreign){.data = copy->to, .device = past->device});
}

tsr_status tsr__ep_caches_grow(struct fused *fused, OrtKernelContext *context, tsr_tensors *inputs,
                               tsr_tensors *places)
{
    const struct ep_api *api = &fused->provider->factory->api;
    int device = 0;
    bool fits = fused->can_grow && measure_all(fused, inputs, &device);
    for (size_t i = 0; i < fused->n_caches; i++)
        fused->caches[i].grown = false;
    if (!fits)
        return TSR_OK;
    OrtStatus *failed = get_memory(fused, context, inputs, device, &fits);
    if (!failed && fits) {
        fused->copying = device;
        failed = tsr__ep_memory_extend(fused->provider->factory->memory, device - 1, fused->copies,
                                       fused->n_caches);
    }
    tsr_status st = tsr__ep_report(fused->provider->session, api, failed);
    for (size_t i = 0; i < fused->n_caches && st == TSR_OK && fits; i++) {
        struct cache_pair *cache = &fused->caches[i];
        if (!cache->length_input)
            continue;
        cache->grown = true;
        cache->steady = false;
        st = use_present(fused, i, inputs, places);
    }
    return st;
}

// ---- caches that the model itself makes longer -------------------------------------------------

static size_t bytes_of(const struct tensor *tensor)
{
    return tensor->device ? tensor->device_bytes : tensor->bytes;
}

// Sets `wanted` to the present of this run, without memory. Returns false if the past is missing or
// if the new length is not known.
static bool describe_present(const struct fused *fused, const struct cache_pair *cache,
                             const tsr_tensors *inputs, int64_t *dims, struct tensor *wanted)
{
    const struct tensor *past = cache->now;
    const struct manifest_port *port = cache->past;
    if (!past || past->rank < 1 || past->rank > RUN_MAX_RANK || tsr_dtype_bits(past->type) < 8 ||
        !port || port->updated_by || !port->length_input || port->growing_axis >= past->rank)
        return false;
    const struct tensor *tokens = tsr__tensors_get(inputs, port->length_input);
    if (!tokens || port->length_axis >= tokens->rank)
        return false;
    memcpy(dims, past->dims, (size_t)past->rank * sizeof *dims);
    int64_t more = tokens->dims[port->length_axis];
    if (more <= 0 || more > INT64_MAX - dims[port->growing_axis])
        return false;
    dims[port->growing_axis] += more;
    *wanted = (struct tensor){.name = (char *)(uintptr_t)fused->outputs[cache->output],
                              .type = past->type,
                              .rank = past->rank,
                              .dims = dims,
                              .device = past->device};
    return true;
}

// Gets the application's memory for a present. Returns NULL in *data if the output is not
// requested, or if its memory is on another device or overlaps a cache that the ranks read.
static OrtStatus *get_output(const struct fused *fused, OrtKernelContext *context,
                             const struct cache_pair *cache, const struct tensor *wanted,
                             void **data)
{
    const struct ep_api *api = &fused->provider->factory->api;
    OrtValue *value = NULL;
    size_t bytes = 0;
    *data = NULL;
    TRY(api->ort->KernelContext_GetOutput(context, cache->output, wanted->dims,
                                          (size_t)wanted->rank, &value));
    if (!value || 1 + tsr__ep_value_gpu(api, value) != wanted->device)
        return NULL;
    TRY(api->ort->GetTensorMutableData(value, data));
    TRY(api->ort->GetTensorSizeInBytes(value, &bytes));
    for (size_t i = 0; i < fused->n_caches && *data; i++) {
        const struct tensor *past = fused->caches[i].now;
        if (!past)
            continue;
        uintptr_t to = (uintptr_t)*data;
        uintptr_t from = (uintptr_t)(past->device ? past->device_data : past->data);
        if (to < from + bytes_of(past) && from < to + bytes)
            *data = NULL;
    }
    return NULL;
}

// True if the ranks can write the present to the application's memory. `last` is the cache that was
// checked before, with the result `fits`; its present had the shape `before`. Most caches of a
// model are alike, and the check computes the tiles of all ranks.
static bool can_extend(const struct fused *fused, const struct cache_pair *cache,
                       const struct cache_pair *last, const struct tensor *before,
                       const struct tensor *wanted, bool fits)
{
    if (last && last->present && cache->present && last->present->sharding &&
        cache->present->sharding &&
        strcmp(last->present->sharding, cache->present->sharding) == 0 &&
        before->type == wanted->type && before->device == wanted->device &&
        before->rank == wanted->rank &&
        memcmp(before->dims, wanted->dims, (size_t)wanted->rank * sizeof *wanted->dims) == 0)
        return fits;
    return tsr__job_can_place(fused->job, wanted);
}

tsr_status tsr__ep_caches_extend(struct fused *fused, OrtKernelContext *context,
                                 const tsr_tensors *inputs, tsr_tensors *places)
{
    const struct ep_api *api = &fused->provider->factory->api;
    int64_t dims[2][RUN_MAX_RANK];
    struct tensor shapes[2] = {0};
    const struct cache_pair *last = NULL;
    bool fits = false;
    int turn = 0;
    for (size_t i = 0; i < fused->n_caches; i++)
        fused->caches[i].now = tsr__tensors_get(inputs, fused->inputs[fused->caches[i].input]);
    for (size_t i = 0; i < fused->n_caches; i++) {
        struct cache_pair *cache = &fused->caches[i];
        struct tensor *wanted = &shapes[turn];
        void *data = NULL;
        if (cache->grown || !describe_present(fused, cache, inputs, dims[turn], wanted))
            continue;
        fits = can_extend(fused, cache, last, &shapes[1 - turn], wanted, fits);
        last = cache;
        turn = 1 - turn;
        if (!fits)
            continue;
        TRY(tsr__ep_report(fused->provider->session, api,
                           get_output(fused, context, cache, wanted, &data)));
        if (!data)
            continue;
        cache->grown = true;
        cache->steady = false;
        TRY(tsr__tensors_add_foreign(places, str_of(wanted->name), wanted->type, wanted->rank,
                                     wanted->dims,
                                     &(struct foreign){.data = data, .device = wanted->device}));
    }
    return TSR_OK;
}

// ---- the end of the copies ---------------------------------------------------------------------

tsr_status tsr__ep_caches_settle(void *data)
{
    struct fused *fused = data;
    const struct ep_factory *factory = fused->provider->factory;
    int device = fused->copying;
    fused->copying = 0;
    if (device == 0)
        return TSR_OK;
    return tsr__ep_report(fused->provider->session, &factory->api,
                          tsr__ep_memory_settle(factory->memory, device - 1));
}
