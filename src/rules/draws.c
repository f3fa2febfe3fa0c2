// SPDX-License-Identifier: Apache-2.0
// draws.c - which nodes give something else each time they run: those that draw random numbers
// without a seed, themselves or in a body or function of theirs. Only one device may run such a
// node; what it drew is sent to the others. A seed makes the same numbers on every device. Also
// which nodes write over what they read. Knows operators by their rows alone.
#include "rules/internal.h"

// Nodes of bodies and functions that are looked at. A function can call others twice each, twenty
// deep: what has more nodes than this counts as drawing, which costs time on several devices and is
// never wrong.
#define MAX_NODES 4096

// A negative seed means "no seed" in integer attributes; one that refers to an
// attribute of the calling node may be absent there.
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

// The node, then its bodies, then the function that it calls. Functions that call each other are no
// models; *left ends them too.
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

// A flag that is computed may be anything: only one that is absent or a constant counts.
bool tsr__node_input_is_off(const tsr_node *node, size_t at)
{
    const tsr_value *flag = tsr_node_input_count(node) > at ? tsr_node_input(node, at) : NULL;
    if (!flag)
        return true;
    const tsr_tensor *tensor = tsr__value_constant_tensor(flag);
    const tsr_node *maker = tsr_value_producer(flag);
    if (maker && tsr__node_is_constant(maker))
        tensor = tsr_attr_tensor(tsr_node_find_attr(maker, "value"));
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

bool tsr__node_writes(const tsr_node *node, size_t i)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && i < 32 && (row->writes >> i & 1) && tsr_node_output_count(node) > 1;
}
