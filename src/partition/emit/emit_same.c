// SPDX-License-Identifier: Apache-2.0
// emit_same.c - checks in a body that dimensions of inputs which the body needs equal are equal.
//
// The runtime checks the dimensions of the main graph before a run (manifest, "same_sizes").
// Whether a body runs is known only in the run, so the body checks its own: a branch that is not
// taken may get inputs of any size.
//
//     Example: a.0 and b.0 must be equal in a branch that returns y:
//         d = Sub(a.0, b.0);  z = Gather([0], Mul(d, d)), which fails unless d is 0
//         y' = Reshape(y, Add(Shape(y), z)), so that no engine drops the check
#include "internal.h"

#define RESHAPE_TO_INPUT 5 // first opset in which Reshape has the shape as an input

struct same_sizes *tsr__part_same_sizes(struct part *part)
{
    bool in_body = part->graph != tsr_model_graph(part->model);
    return in_body && part->draft->opset >= RESHAPE_TO_INPUT ? &part->same : &part->draft->same;
}

// Stores the squares of the differences that must be 0. Returns their number.
static size_t differences(struct part *part, tsr_value **out)
{
    const struct draft *draft = part->draft;
    size_t n = 0;
    for (size_t i = 0; part->same.leader && i < draft->shared.n; i++) {
        struct size_source *at = draft->shared.at[i];
        struct size_source *leader = tsr__same_size(draft, &part->same, at);
        if (leader == at)
            continue;
        tsr_value *gap =
            NODE(part, "Sub", tsr__part_source(part, at), tsr__part_source(part, leader));
        out[n++] = NODE(part, "Mul", gap, gap);
    }
    return n;
}

tsr_value *tsr__part_check_sizes(struct part *part, tsr_value *value, tsr_dtype type)
{
    struct draft *draft = part->draft;
    tsr_value **gaps = ARENA_ARRAY(draft->arena, tsr_value *, draft->shared.n + 1);
    size_t n = gaps ? differences(part, gaps) : 0;
    if (n == 0)
        return gaps ? value : NULL;
    struct str name =
        tsr__arena_printf(draft->arena, SAME_SIZES_NODE STR_FMT, STR_ARG(tsr__part_new_name(part)));
    tsr_value *zeros = NAMED_NODE(part, "Gather", name, tsr__part_number(part, 0),
                                  tsr__part_concat(part, gaps, n, 0, NEW_NAME));
    tsr_value *zero = NODE(part, "Gather", zeros, tsr__part_number(part, 0));
    tsr_value *shape = tsr__part_sizes(part, value, type, NEW_NAME);
    return NODE(part, "Reshape", value, NODE(part, "Add", shape, zero));
}
