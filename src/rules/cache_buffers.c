// SPDX-License-Identifier: Apache-2.0
// cache_buffers.c - finds caches with spare capacity. A node that gets the used length of a cache
// appends to it and returns the same memory. Example: a cache of [1,4,512,32] with 6 tokens stays
// in place for 506 steps. A cache without spare capacity would be copied to a longer one in each
// step.
#include "rules/internal.h"

struct readers {
    const tsr_node *node; // the last one visited
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

// True if `present` can reuse the memory of `past`. The cache must have no other reader: the order
// of the nodes would decide whether that reader gets the appended data.
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

static bool same_sizes(const struct shape *a, const struct shape *b)
{
    if (a->rank < 1 || a->rank != b->rank || a->dtype != b->dtype)
        return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d].value < 0 || a->dims[d].value != b->dims[d].value)
            return false;
    return true;
}

// True if the node writes only the new tokens of a cache: the cache is an input and an output of
// the graph with the same size, so both are one buffer.
bool tsr__node_updates_cache(const tsr_node *node, size_t output, const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of_node(node);
    const tsr_value *present = tsr_node_output(node, output);
    for (size_t i = 0; row && present && i < TSR_COUNT(row->caches); i++) {
        size_t input = row->caches[i].past;
        if (!row->caches[i].present || row->caches[i].present != output ||
            input >= tsr_node_input_count(node) || !tsr_node_input(node, input))
            continue;
        const tsr_value *past = tsr_node_input(node, input);
        struct shape before = tsr__shapes_of(shapes, past), after = tsr__shapes_of(shapes, present);
        return tsr_value_is_input(past) && tsr_value_is_output(present) &&
               same_sizes(&before, &after) && tsr_cache_has_room(past, present);
    }
    return false;
}
