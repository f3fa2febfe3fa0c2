// SPDX-License-Identifier: Apache-2.0
// explicit.c - computes the placement of one node from given layouts, as the flow would if they
// were specs of the model. The planner uses it before it writes shardings, so that it predicts the
// cost of what the flow does later.
//
// All inputs must fit; outputs are used as far as they fit. Layouts that arrive without a spec, and
// requests of readers, are not used here.
#include "sharding/layouts/node_placement.h"

static bool take(struct solve *solve, const tsr_node *node, const struct shapes *shapes, bool out,
                 size_t i, const struct tile_layout *layout)
{
    const tsr_value *value = slot_value(node, out, i);
    struct shape shape = tsr__shapes_of(shapes, value);
    return tsr__solve_add(solve, out, (int)i, layout, &shape, false, !out);
}

// Finds the placement of a node from given layouts. The layout of an output is ignored if it does
// not fit. It is also ignored if it would drop a device although an input has a layout. The flow
// reshards such an output after the node. Returns false if the layout of an input does not fit, or
// if out of memory.
bool tsr__placement_explicit(struct arena *scratch, struct arena *arena, const tsr_node *node,
                             const struct shapes *shapes, const struct rule *rule,
                             int64_t n_devices, struct tile_layout *const *in,
                             struct tile_layout *const *out, bool intact,
                             struct placement *placement)
{
    struct solve v;
    bool explicit_in = false;
    if (!tsr__solve_init(&v, scratch, arena, rule, n_devices))
        return false;
    v.intact = intact;
    v.strict = v.filled = true;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        explicit_in = explicit_in || in[i];
        if (in[i] && !take(&v, node, shapes, false, i, in[i]))
            return false;
    }
    v.pinning = false;
    if (!tsr__solve_covers(&v)) // also the parts of sums
        return false;
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        if (!out[i])
            continue;
        struct solve attempt = tsr__solve_copy(&v);
        if (scratch->failed)
            return false;
        if (take(&attempt, node, shapes, true, i, out[i]) &&
            (!explicit_in || tsr__solve_devices(&attempt) == tsr__solve_devices(&v)))
            v = attempt;
    }
    return !scratch->failed && tsr__solve_result(&v, arena, placement);
}
