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
// that reader gets the appended data. The engine copies what a body reads and returns, so both are
// values of the main graph.
bool tsr_cache_has_room(const tsr_value *past, const tsr_value *present)
{
    struct readers readers = {0};
    const tsr_graph *graph = tsr_value_graph(past);
    tsr_value_uses(past, count_reader, &readers);
    if (readers.count != 1 || tsr_value_is_output(past) || tsr_graph_owner(graph) ||
        tsr_value_graph(present) != graph || tsr_value_producer(present) != readers.node)
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

// Returns the input that the node updates in place as this output. The declared sizes decide, not
// those at run time: [1,4,past,32] and [1,4,total,32] are two buffers even if past and total are
// both 512.
const tsr_value *tsr__node_updated_cache(const tsr_node *node, size_t output)
{
    const struct op_row *row = tsr__row_of_node(node);
    const tsr_value *present = tsr_node_output(node, output);
    for (size_t i = 0; row && present && i < TSR_COUNT(row->caches); i++) {
        size_t input = row->caches[i].past;
        if (!row->caches[i].present || row->caches[i].present != output ||
            input >= tsr_node_input_count(node) || !tsr_node_input(node, input))
            continue;
        const tsr_value *past = tsr_node_input(node, input);
        bool updated = tsr_value_is_input(past) && tsr_value_is_output(present) &&
                       same_sizes(past, present) && tsr_cache_has_room(past, present);
        return updated ? past : NULL;
    }
    return NULL;
}

// ---- the length of a cache ----------------------------------------------------------------------

// Reads a constant with one integer.
static bool read_integer(const tsr_value *value, int64_t *out)
{
    const tsr_tensor *tensor = tsr__value_constant_tensor(value);
    const void *bytes = NULL;
    size_t size = 0;
    int32_t narrow;
    if (!tensor)
        tensor = tsr__node_constant(tsr_value_producer(value));
    if (!tensor || tsr_tensor_elements(tensor) != 1 ||
        tsr_tensor_data(tensor, &bytes, &size) != TSR_OK)
        return false;
    if (tsr_tensor_dtype(tensor) == TSR_INT64 && size == sizeof *out) {
        memcpy(out, bytes, sizeof *out);
        return true;
    }
    if (tsr_tensor_dtype(tensor) != TSR_INT32 || size != sizeof narrow)
        return false;
    memcpy(&narrow, bytes, sizeof narrow);
    *out = narrow;
    return true;
}

static bool is_op(const tsr_node *node, const char *op)
{
    return node && tsr__row_of_node(node) && !*tsr_node_domain(node) &&
           strcmp(tsr_node_op(node), op) == 0;
}

// True if the node returns the integer of its input 0.
static bool keeps_integer(const tsr_node *node)
{
    if (is_op(node, "Cast")) {
        int64_t to = tsr_attr_int(tsr_node_find_attr(node, "to"), 0);
        return to == TSR_INT32 || to == TSR_INT64;
    }
    return is_op(node, "Identity") || is_op(node, "Squeeze") || is_op(node, "Unsqueeze") ||
           is_op(node, "Reshape");
}

#define MOST_STEPS 8 // nodes between the size of an input and the node that reads it

// Finds the size of an input from which the integer `value` is computed. Example: for
// Cast(Gather(Shape(attention_mask), 1)), *axis becomes 1 and the result is attention_mask. NULL:
// it is computed in another way.
static const tsr_value *find_size(const tsr_value *value, int *axis)
{
    int64_t index = 0;
    const tsr_node *node = value ? tsr_value_producer(value) : NULL;
    for (int i = 0; i < MOST_STEPS && keeps_integer(node) && tsr_node_input(node, 0); i++)
        node = tsr_value_producer(tsr_node_input(node, 0));
    if (!is_op(node, "Gather") || tsr_attr_int(tsr_node_find_attr(node, "axis"), 0) != 0 ||
        !tsr_node_input(node, 0) || !tsr_node_input(node, 1) ||
        !read_integer(tsr_node_input(node, 1), &index))
        return NULL;
    const tsr_node *shape = tsr_value_producer(tsr_node_input(node, 0));
    const tsr_value *input =
        is_op(shape, "Shape") && tsr_node_attr_count(shape) == 0 ? tsr_node_input(shape, 0) : NULL;
    if (!input || !tsr_value_is_input(input) || tsr_value_initializer(input))
        return NULL;
    index += index < 0 ? tsr_value_rank(input) : 0;
    *axis = (int)index;
    return index >= 0 && index < tsr_value_rank(input) ? input : NULL;
}

// Finds the size of an input that always equals the size of axis 1 of the queries, which is the
// number of new tokens. Returns false if there is none.
static bool find_new_tokens(tsr_model *model, const tsr_value *queries, tsr_cache_lengths *out)
{
    const tsr_graph *graph = tsr_model_graph(model);
    const struct shapes *shapes = tsr__model_shapes(model);
    struct shape tokens = {.rank = -1};
    if (shapes && queries)
        tokens = tsr__shapes_of(shapes, queries);
    if (tokens.rank < 2)
        return false;
    out->n_tokens = tokens.dims[1].value;
    for (size_t i = 0; out->n_tokens < 0 && i < tsr_graph_input_count(graph); i++) {
        const tsr_value *input = tsr_graph_input(graph, i);
        struct shape shape = tsr__shapes_of(shapes, input);
        for (int axis = 0; axis < shape.rank && !tsr_value_initializer(input); axis++)
            if (shape.dims[axis].value < 0 && *shape.dims[axis].symbol &&
                strcmp(shape.dims[axis].symbol, tokens.dims[1].symbol) == 0) {
                out->tokens = tsr_value_name(input);
                out->tokens_axis = axis;
                return true;
            }
    }
    return out->n_tokens >= 0;
}

bool tsr_cache_find_lengths(tsr_model *model, const tsr_value *present, tsr_cache_lengths *out)
{
    const tsr_node *node = tsr_value_producer(present);
    const struct op_row *row = node ? tsr__row_of_node(node) : NULL;
    if (!row || !row->cache_last || !row->cache_length ||
        tsr_node_input_count(node) <= row->cache_length)
        return false;
    *out = (tsr_cache_lengths){.last = tsr_node_input(node, row->cache_last),
                               .total = tsr_node_input(node, row->cache_length)};
    return out->last && out->total && find_new_tokens(model, tsr_node_input(node, 0), out);
}

bool tsr__cache_slides(const tsr_value *present)
{
    const tsr_node *node = tsr_value_producer(present);
    return node && tsr_attr_int(tsr_node_find_attr(node, "sliding_window_cache"), 0);
}

const tsr_value *tsr__cache_length(const tsr_value *present, int *axis)
{
    const tsr_node *node = tsr_value_producer(present);
    const struct op_row *row = node ? tsr__row_of_node(node) : NULL;
    // A cache of a sliding window keeps its length.
    if (!row || !row->cache_length || row->cache_length >= tsr_node_input_count(node) ||
        tsr__cache_slides(present))
        return NULL;
    return find_size(tsr_node_input(node, row->cache_length), axis);
}

// Callback for the readers of a mask: stops at one that reads single elements.
static bool sums_or_measures(void *data, tsr_node *node, size_t input)
{
    bool *summed = data;
    if (is_op(node, "Shape"))
        return true;
    *summed = input == 0 && is_op(node, "ReduceSum");
    return *summed;
}

bool tsr__is_length_mask(const tsr_value *input)
{
    bool summed = false;
    if (tsr_value_dtype(input) == TSR_INT64)
        tsr_value_uses(input, sums_or_measures, &summed);
    return summed;
}
