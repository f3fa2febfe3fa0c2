// SPDX-License-Identifier: Apache-2.0
// draws.c - finds nodes that give another result each time they run. These nodes draw random
// numbers without a seed, directly or in a body or function. Only one device may run such a node;
// that device sends the result to the others. With a seed, all devices draw the same numbers. Also
// finds nodes that overwrite their inputs.
#include "rules/internal.h"

// Largest number of nodes of bodies and functions that are visited. The limit matters for nested
// functions: twenty levels that each call the next twice are a million calls. Beyond it a node is
// assumed to draw random numbers, which is safe but costs time.
#define MAX_NODES 4096

// True if the node has a seed. A negative integer means "no seed". A reference to an attribute of
// the call is treated as no seed, because the call may not have that attribute.
static bool has_seed(const tsr_node *node)
{
    const tsr_attr *seed = tsr_node_find_attr(node, "seed");
    return seed && !tsr__attr_ref(seed).n && tsr_attr_int(seed, 0) >= 0;
}

static bool draws_within(const tsr_node *node, int *left);

static bool graph_draws(const tsr_graph *graph, int *left)
{
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (--*left <= 0 || draws_within(node, left))
            return true;
    }
    return false;
}

// True if the node, its bodies or the function that it calls draw random numbers, or if *left, the
// number of nodes that may still be visited, reaches 0. The limit also ends the visit of functions
// that call each other, which are invalid.
static bool draws_within(const tsr_node *node, int *left)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (row && row->single && !has_seed(node) &&
        !(row->single_switch && tsr__node_input_is_off(node, (size_t)row->single_switch)))
        return true;
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            if (graph_draws(tsr_attr_graph(attr, k), left))
                return true;
    }
    const tsr_function *function = row ? NULL : tsr__node_function(node);
    return function && graph_draws(tsr_function_graph(function), left);
}

bool tsr__node_input_is_off(const tsr_node *node, size_t at)
{
    const tsr_value *flag = tsr_node_input(node, at);
    if (!flag)
        return true;
    const tsr_tensor *tensor = tsr__value_constant_tensor(flag);
    if (!tensor)
        tensor = tsr__node_constant(tsr_value_producer(flag));
    const void *bytes;
    size_t size;
    if (!tensor || tsr_tensor_dtype(tensor) != TSR_BOOL || tsr_tensor_elements(tensor) != 1)
        return false;
    if (!tsr__tensor_peek(tensor, &bytes, &size) || size != 1)
        return false;
    return *(const char *)bytes == 0;
}

bool tsr__node_draws(const tsr_node *node)
{
    int left = MAX_NODES;
    return draws_within(node, &left);
}

bool tsr__node_is_constant(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "Constant") && !tsr__node_domain_str(node).n;
}

// Constants below this size stay nodes: scalars, shapes and axes, which are not worth sharding.
#define LEAST_WEIGHT_BYTES 256

const tsr_tensor *tsr__node_weight(const tsr_node *node)
{
    if (tsr_node_output_count(node) != 1 || !tsr_node_output(node, 0))
        return NULL;
    const tsr_tensor *tensor = tsr__node_constant(node);
    if (!tensor || tsr_tensor_is_external(tensor))
        return tensor;
    return tsr_tensor_bytes(tensor) >= LEAST_WEIGHT_BYTES ? tensor : NULL;
}

bool tsr__node_is_identity(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "Identity") && !tsr__node_domain_str(node).n;
}

bool tsr__node_writes(const tsr_node *node, size_t i)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && i < 32 && (row->writes >> i & 1) && tsr_node_output_count(node) > 1;
}

tsr_dtype tsr__node_stash(const tsr_node *node)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (!row || !row->stash)
        return TSR_UNDEFINED;
    return (tsr_dtype)tsr_attr_int(tsr_node_find_attr(node, "stash_type"), TSR_FLOAT);
}
