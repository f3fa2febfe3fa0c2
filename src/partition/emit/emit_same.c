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

// True if tsr__part_source returns the full size, else that of the rank's shard.
static bool is_full(const struct size_source *at)
{
    return at->readable || at->count;
}

// Finds which part of an input's dimension the rank has. Returns false if it has no shard.
static bool part_here(const struct part *part, const struct size_source *at,
                      struct local_size *size)
{
    const struct tile_layout *layout = part->draft->kept[tsr__value_id(at->input)];
    int64_t coords[TILE_MAX_FACTORS];
    *size = (struct local_size){1, 1, {0, 1, 1}};
    if (!layout || at->axis >= layout->rank)
        return true;
    if (!tsr__device_coords(layout, part->rank, at->axis, coords))
        return false;
    if (tsr__dim_is_sharded(&layout->dims[at->axis]))
        *size = tsr__local_size(&layout->dims[at->axis], coords);
    return true;
}

static bool same_part(const struct local_size *a, const struct local_size *b)
{
    return a->unit == b->unit && a->scale == b->scale && a->part.first == b->part.first &&
           a->part.stop == b->part.stop && a->part.of == b->part.of;
}

// Returns the difference of two dimensions. If inputs are kept sharded, the difference of what the
// rank has of them. NULL: the rank cannot compare them.
static tsr_value *difference(struct part *part, struct size_source *at, struct size_source *leader)
{
    struct size_source *a = is_full(leader) ? at : leader, *b = is_full(leader) ? leader : at;
    struct local_size mine, theirs;
    bool convert = is_full(b) && !is_full(a);
    if (!is_full(a) && !part_here(part, a, &mine))
        return NULL;
    if (!is_full(b) && (!part_here(part, b, &theirs) || !same_part(&mine, &theirs)))
        return NULL;
    tsr_value *wanted = tsr__part_source(part, b);
    if (convert)
        wanted = tsr__part_local_size(part, wanted, mine);
    return NODE(part, "Sub", tsr__part_source(part, a), wanted);
}

// Stores the squares of the differences that must be 0. Returns their number.
static size_t differences(struct part *part, tsr_value **out)
{
    const struct draft *draft = part->draft;
    size_t n = 0;
    for (size_t i = 0; part->same.leader && i < draft->shared.n; i++) {
        struct size_source *at = draft->shared.at[i];
        struct size_source *leader = tsr__same_size(draft, &part->same, at);
        tsr_value *gap = leader != at ? difference(part, at, leader) : NULL;
        if (gap)
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
