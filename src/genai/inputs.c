// SPDX-License-Identifier: Apache-2.0
// inputs.c - consistent random inputs of a generation model: token ids within the vocabulary, a
// mask of ones, positions that continue the past, caches of the past's length.
//
// Example: 2 new tokens after 5 need input_ids of shape [1, 2], an attention_mask of shape [1, 7]
// with ones, the position_ids 5 and 6, and caches of length 5.
#include "genai/internal.h"

#include <stdio.h>

// Returns the size of a dimension that the model names but does not fix; 1 if it is not in `sizes`.
static int64_t open_size(const char *name, const tsr_dim_size *sizes, size_t n_sizes)
{
    for (size_t k = n_sizes; name && k > 0; k--)
        if (strcmp(sizes[k - 1].name, name) == 0)
            return sizes[k - 1].size;
    return 1;
}

// Appends the shape of an input to the text for tsr_tensors_load. Example: ",NAME:2x3".
static void add_shape(struct text *text, const tsr_value *value, const tsr_dim_size *sizes,
                      size_t n_sizes)
{
    tsr__text_printf(text, ",%s:", tsr_value_name(value));
    for (int d = 0; d < tsr_value_rank(value); d++) {
        tsr_dim dim = tsr_value_dim(value, d);
        int64_t size = dim.value;
        if (size < 0)
            size = open_size(tsr_value_dim_name(value, d), sizes, n_sizes);
        tsr__text_printf(text, "%s%lld", d ? "x" : "", (long long)size);
    }
}

// Writes the text for tsr_tensors_load that requests random inputs, with the shapes of all inputs
// except scalars and weights. Example: "random:7,past_key_values.0.key:1x4x5x32,...".
static tsr_status write_random_set(struct text *text, const tsr_model *model, uint64_t seed,
                                   const tsr_dim_size *sizes, size_t n_sizes)
{
    const tsr_graph *graph = tsr_model_graph(model);
    tsr__text_printf(text, "random:%llu", (unsigned long long)seed);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (!tsr_value_initializer(value) && tsr_value_rank(value) >= 1)
            add_shape(text, value, sizes, n_sizes);
    }
    return text_status(text);
}

// Replaces an int32 or int64 tensor by first, first + step, ... (modulo the limit, if any). Does
// nothing for other types. Example: first 3, step 31, limit 50: 3, 34, 15, 46, 27 ...
static tsr_status count_up(tsr_tensors *tensors, const char *name, int64_t first, int64_t step,
                           int64_t limit)
{
    int64_t at = tsr_tensors_find(tensors, name), n = 1, dims[8];
    if (at < 0)
        return TSR_OK; // the model has no such input
    int rank = tsr_tensors_rank(tensors, (size_t)at);
    tsr_dtype type = tsr_tensors_dtype(tensors, (size_t)at);
    if (rank > 8 || (type != TSR_INT64 && type != TSR_INT32))
        return TSR_OK;
    for (int d = 0; d < rank; d++)
        n *= dims[d] = tsr_tensors_dims(tensors, (size_t)at)[d];
    // Put zeros of the same shape first: the set then owns writable memory.
    TRY(tsr_tensors_put(tensors, name, type, rank, dims, NULL));
    void *data = (void *)(uintptr_t)tsr_tensors_data(tensors, (size_t)at, NULL);
    for (int64_t i = 0; i < n; i++) {
        int64_t number = limit ? (first + step * i) % limit : first + step * i;
        if (type == TSR_INT64)
            ((int64_t *)data)[i] = number;
        else
            ((int32_t *)data)[i] = (int32_t)number;
    }
    return TSR_OK;
}

// Makes random numbers for all inputs, then replaces ids, mask and positions. The ids depend on the
// seed.
tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens, int64_t past,
                             tsr_tensors *to)
{
    const tsr_dim_size *sizes;
    size_t n_sizes;
    TRY(tsr__genai_sizes(folder, folder->model, tokens, past, &sizes, &n_sizes));
    struct text set = {.session = tsr_model_session(folder->model)};
    tsr_status st = write_random_set(&set, folder->model, seed, sizes, n_sizes);
    if (st == TSR_OK)
        st = tsr_tensors_load(to, set.p, folder->model, false);
    tsr__text_free(&set);
    if (st != TSR_OK)
        return st;
    TRY(count_up(to, folder->ids, (int64_t)(seed % 97) + 3, 31, folder->vocabulary));
    TRY(count_up(to, folder->mask, 1, 0, 0));
    return count_up(to, folder->positions, past, 1, 0);
}
