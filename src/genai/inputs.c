// SPDX-License-Identifier: Apache-2.0
// inputs.c - inputs of a generation model that fit together: tokens of the vocabulary, a mask of ones over past and new
// tokens, positions that follow the past, caches of the past's length.
//
// 2 new tokens after 5: input_ids [1 2], attention_mask [1 7] of ones, position_ids {5, 6}, and
// caches of length 5.
#include "genai/internal.h"

#include <stdio.h>

// Text of a random set with the shapes of all inputs: "random:7,past_key_values.0.key:1x4x5x32,...".
static const char *random_set(tsr_folder *folder, uint64_t seed, const tsr_dim_size *sizes,
                              size_t n_sizes)
{
    const tsr_graph *graph = tsr_model_graph(folder->model);
    struct str text = tsr__arena_printf(&folder->arena, "random:%llu", (unsigned long long)seed);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (tsr_value_initializer(value) || tsr_value_rank(value) < 1)
            continue;
        text = tsr__arena_printf(&folder->arena, "%s,%s:", text.p, tsr_value_name(value));
        // Sizes of unnamed open dimensions are 1. The text is made anew with each dimension;
        // folders have few, and the arena goes with the folder.
        for (int d = 0; d < tsr_value_rank(value) && text.p; d++) {
            tsr_dim dim = tsr_value_dim(value, d);
            int64_t size = 1;
            if (dim.value >= 0)
                size = dim.value;
            for (size_t k = 0; k < n_sizes; k++)
                if (dim.value < 0 && strcmp(sizes[k].name, dim.symbol) == 0)
                    size = sizes[k].size;
            text = tsr__arena_printf(&folder->arena, "%s%s%lld", text.p, d ? "x" : "",
                                     (long long)size);
        }
    }
    return text.p;
}

// Replaces a tensor of whole numbers by first, first + step, ... (modulo the limit, if there is one).
// The tensor keeps its type and shape. first 3, step 31, limit 50: 3, 34, 15, 46, 27 ...
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
    // Zeros of the same shape first: the set then owns memory that may be written here.
    tsr_status st = tsr_tensors_put(tensors, name, type, rank, dims, NULL);
    if (st != TSR_OK)
        return st;
    void *data =
        (void *)(uintptr_t)tsr_tensors_data(tensors, (size_t)at, NULL); // our own: just put
    for (int64_t i = 0; i < n; i++) {
        int64_t number = first + step * i;
        if (limit)
            number = number % limit;
        if (type == TSR_INT64)
            ((int64_t *)data)[i] = number;
        else
            ((int32_t *)data)[i] = (int32_t)number;
    }
    return TSR_OK;
}

// Random numbers for caches and whatever else there is; then what must make sense replaces some of
// them. Tokens depend on the seed, so that two seeds are two prompts.
tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens, int64_t past,
                             tsr_tensors *to)
{
    const tsr_dim_size *sizes;
    size_t n_sizes;
    tsr_status st = tsr__genai_sizes(folder, tokens, past, &sizes, &n_sizes);
    if (st != TSR_OK)
        return st;
    const char *set = random_set(folder, seed, sizes, n_sizes);
    if (!set)
        return TSR_NOMEM;
    st = tsr_tensors_load(to, set, folder->model, false);
    if (st != TSR_OK)
        return st;
    st = count_up(to, "input_ids", (int64_t)(seed % 97) + 3, 31, folder->vocabulary);
    if (st != TSR_OK)
        return st;
    st = count_up(to, "attention_mask", 1, 0, 0);
    if (st != TSR_OK)
        return st;
    return count_up(to, "position_ids", past, 1, 0);
}
