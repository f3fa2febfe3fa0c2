// SPDX-License-Identifier: Apache-2.0
// cache_buffers.c - finds caches with spare capacity. A node that gets the used length of a cache
// appends to the cache and returns the same memory. Example: a cache of [1,4,512,32] with 6 tokens
// stays in place for 506 steps. A cache without spare capacity would be copied to a longer one in
// each step.
#include "rules/internal.h"

struct readers {
    const tsr_node *node; // the last reader visited
    size_t input, count;
};

static bool count_reader(void *data, tsr_node *node, size_t input)
{
    struct readers *readers = data;
    readers->node = node;
    readers->input = input;
    readers->count++;
    return readers->count < 2;
}

// True if `present` can reuse the memory of `past`: the node that returns `present` appends to
// `past` and is its only reader. With another reader, the order of the nodes would decide whether
// that reader gets the appended data.
bool tsr_cache_has_room(const tsr_value *past, const tsr_value *present)
{
    struct readers readers = {0};
    tsr_value_uses(past, count_reader, &readers);
    if (readers.count != 1 || tsr_value_is_output(past) ||
        tsr_value_producer(present) != readers.node)
        return false;
    const struct op_row *row = tsr__row_of_node(readers.node);
    for (size_t i = 0; row && i < TSR_COUNT(row->caches); i++) {
        size_t output = row->caches[i].present;
        if (output && row->caches[i].past == readers.input &&
            tsr_node_output(readers.node, output) == present)
            return true;
    }
    return false;
}

bool tsr__is_cache_output(const tsr_node *node, size_t output)
{
    const struct op_row *row = tsr__row_of_node(node);
    for (size_t i = 0; row && output > 0 && i < TSR_COUNT(row->caches); i++)
        if (row->caches[i].present == output)
            return true;
    return false;
}

// True if both values are declared with the same type and sizes: equal numbers or names.
static bool same_sizes(const tsr_value *a, const tsr_value *b)
{
    int rank = tsr_value_rank(a);
    if (rank < 1 || rank != tsr_value_rank(b) || tsr_value_dtype(a) != tsr_value_dtype(b))
        return false;
    for (int axis = 0; axis < rank; axis++) {
        tsr_dim x = tsr_value_dim(a, axis), y = tsr_value_dim(b, axis);
        if (x.value != y.value || (x.value < 0 && (!*x.symbol || strcmp(x.symbol, y.symbol) != 0)))
            return false;
    }
    return true;
}

// True if the node updates this output, a cache, in place. The declared sizes decide, not those at
// run time: [1,4,past,32] and [1,4,total,32] are two buffers even if past and total are both 512.
bool tsr__node_updates_cache(const tsr_node *node, size_t output)
{
    const struct op_row *row = tsr__row_of_node(node);
    const tsr_value *present = tsr_node_output(node, output);
    for (size_t i = 0; row && present && i < TSR_COUNT(row->caches); i++) {
        size_t input = row->caches[i].past;
        if (!row->caches[i].present || row->caches[i].present != output ||
            input >= tsr_node_input_count(node) || !tsr_node_input(node, input))
            continue;
        const tsr_value *past = tsr_node_input(node, input);
        return tsr_value_is_input(past) && tsr_value_is_output(present) &&
               same_sizes(past, present) && tsr_cache_has_room(past, present);
    }
    return false;
}
