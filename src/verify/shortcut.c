// SPDX-License-Identifier: Apache-2.0
// shortcut.c - detects differences that the engine causes. ONNX Runtime removes steps between two
// nodes that it considers redundant, such as a Cast to float16 before a Cast to an integer.
// Example: 0.99998 becomes 1 as a float16, but without the first Cast it becomes the integer 0. If
// the second Cast is on another device, the float16 is transferred, and the integer is 1.
//
// A value that is a model output is computed as the model says. So if sharded and unsharded runs
// agree when all values are outputs, such a shortcut caused the difference, not the sharding.
#include "verify/internal.h"
#include "rules/rules.h"

// Returns the output of a node with one input and one output, and the input in *from. NULL: the
// node has more or fewer.
static const tsr_value *single(const tsr_node *node, const tsr_value **from)
{
    if (tsr_node_input_count(node) != 1 || tsr_node_output_count(node) != 1)
        return NULL;
    *from = tsr_node_input(node, 0);
    return tsr_node_output(node, 0);
}

// Finds the first node that converts floats to integers after a node that made them narrower:
// float32 -> float16 -> uint8.
static const tsr_node *narrowed_before_integer(const tsr_model *model, const struct shapes *shapes)
{
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node)) {
        const tsr_value *between = NULL, *wide = NULL, *to = single(node, &between);
        if (!to || !between || !tsr_value_producer(between))
            continue;
        if (!single(tsr_value_producer(between), &wide) || !wide)
            continue;
        tsr_dtype narrow = tsr__shapes_element(shapes, between).dtype;
        tsr_dtype before = tsr__shapes_element(shapes, wide).dtype;
        if (tsr__is_float(narrow) && tsr__is_float(before) &&
            tsr_dtype_bits(before) > tsr_dtype_bits(narrow) &&
            !tsr__is_float(tsr__shapes_element(shapes, to).dtype))
            return node;
    }
    return NULL;
}

// True if an output of a second unsharded run differs from the first run. `unsharded`: all values
// of the second run.
static bool unsharded_changed(const struct work *work, const tsr_tensors *unsharded)
{
    for (size_t i = 0; i < tsr_tensors_count(work->unsharded); i++) {
        const char *name = tsr_tensors_name(work->unsharded, i);
        tsr_difference difference =
            tsr__compare(work->unsharded, i, unsharded, tsr_tensors_find(unsharded, name),
                         tsr__precision_of(work, name));
        if (!difference.ok)
            return true;
    }
    return false;
}

void tsr__verify_shortcut(struct work *work, const tsr_tensors *unsharded)
{
    struct place at = PLACE(.file = str_of(work->path));
    const struct shapes *shapes = tsr__model_shapes(work->model);
    const tsr_node *node = shapes ? narrowed_before_integer(work->model, shapes) : NULL;
    const char *who = unsharded_changed(work, unsharded) ? "the unsharded model" : "a rank file";
    if (node) {
        at = tsr__place_node(node);
        at.value = tsr__value_str(tsr_node_input(node, 0));
    }
    tsr__diag(work->session, DIAG_engine_shortcut, &at,
              "make the value between the two nodes an output of the model, or shard both nodes in "
              "the same way",
              "the outputs differ because ONNX Runtime removes a conversion in %s; without this "
              "optimization (all values as outputs) they agree, so the sharding is right",
              who);
}
