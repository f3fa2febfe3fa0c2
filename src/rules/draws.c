// SPDX-License-Identifier: Apache-2.0
// draws.c - which nodes give something else each time they run: those that draw random numbers without a seed,
// themselves or in a body or function of theirs. Only one device may run such a node; what it drew is sent to the
// others. A seed makes the same numbers on every device. Also which nodes write over what they read. Knows operators by their rows alone.
#include "rules/internal.h"

// Nodes of bodies and functions that are looked at. A function can call others twice each, twenty deep: what has
// more nodes than this counts as drawing, which costs time on several devices and is never wrong.
#define MAX_NODES 4096

// A negative seed is how integer attributes say that there is none; one that stands for an attribute of the calling
// node may be absent there.
static bool has_seed(const tsr_node *n)
{
    const tsr_attr *seed = tsr_node_find_attr(n, "seed");
    return seed && !tsr__attr_ref(seed).n && tsr_attr_int(seed, 0) >= 0;
}

static bool draws_within(const tsr_node *n, int *left);

static bool graph_draws(const tsr_graph *g, int *left)
{
    for (const tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        if (--*left <= 0 || draws_within(n, left))
            return true;
    }
    return false;
}

// The node, then its bodies, then the function that it calls. Functions that call each other are no models; *left
// ends them too.
static bool draws_within(const tsr_node *n, int *left)
{
    const struct op_row *row = tsr__row_of_node(n);
    if (row && row->single && !has_seed(n) &&
        !(row->single_switch && tsr__node_input_is_off(n, (size_t)row->single_switch)))
        return true;
    for (size_t i = 0; i < tsr_node_attr_count(n); i++) {
        const tsr_attr *a = tsr_node_attr(n, i);
        for (size_t k = 0; k < tsr_attr_graph_count(a); k++)
            if (graph_draws(tsr_attr_graph(a, k), left))
                return true;
    }
    const tsr_function *f = row ? NULL : tsr__node_function(n);
    return f && graph_draws(tsr_function_graph(f), left);
}

bool tsr__node_input_is_off(const tsr_node *n, size_t at)
{
    const tsr_value *flag = tsr_node_input_count(n) > at ? tsr_node_input(n, at) : NULL;
    if (!flag)
        return true;
    const tsr_tensor *t = tsr__value_constant_tensor(flag);
    const tsr_node *maker = tsr_value_producer(flag);
    if (maker && str_is(tsr__node_op_str(maker), "Constant") && !tsr__node_domain_str(maker).n)
        t = tsr_attr_tensor(tsr_node_find_attr(maker, "value"));
    const void *bytes;
    size_t size;
    if (!t || tsr_tensor_dtype(t) != TSR_BOOL || tsr_tensor_elements(t) != 1)
        return false;
    if (tsr_tensor_data(t, &bytes, &size) != TSR_OK || size != 1)
        return false;
    return *(const char *)bytes == 0;
}

bool tsr__node_draws(const tsr_node *n)
{
    int left = MAX_NODES;
    return draws_within(n, &left);
}

bool tsr__node_writes(const tsr_node *n, size_t i)
{
    const struct op_row *row = tsr__row_of_node(n);
    return row && i < 32 && (row->writes >> i & 1) && tsr_node_output_count(n) > 1;
}
