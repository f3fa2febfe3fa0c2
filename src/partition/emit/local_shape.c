// SPDX-License-Identifier: Apache-2.0
// local_shape.c - the local shape for nodes that get the shape of their sharded result as an input
// (Reshape, Expand, ConstantOfShape).
//
//     [8,6] for a result {2,1} is [4,6] on each rank
//     [n,6] becomes nodes that compute the rank's share of n
//     [0,-1]: the meant sizes are written instead if a shard may be empty (0 elements leave -1
//         undetermined), or if 0 ("copy") would copy the size of a shard. Example: [4 3] as
//         [1 0 -1] with the rows sharded; 0 means the 3, which is not sharded.
#include "internal.h"

struct local_columns {
    struct local_size size[TILE_MAX_RANK]; // and the same as lists, for nodes:
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], scale[TILE_MAX_RANK], part[TILE_MAX_RANK],
        next[TILE_MAX_RANK], parts[TILE_MAX_RANK], last[TILE_MAX_RANK];
};

// Entries of `host` that are larger than `least` become those of `local`. Before opset 9 there is
// no Where for integers: of [5 0] and [3 7], with least 0, host + [1 0] * (local - host) is [3 0].
static tsr_value *larger_replaced(struct part *part, tsr_value *host, int64_t least,
                                  tsr_value *local)
{
    const struct str any = {0};
    tsr_value *limit = tsr__part_ints(part, &least, 1);
    if (part->draft->opset >= 9) {
        tsr_value *sized = tsr__part_node(part, "Greater", any, 2, host, limit);
        return tsr__part_node(part, "Where", any, 3, sized, local, host);
    }
    tsr_value *change = tsr__part_node(part, "Sub", any, 2, local, host);
    change =
        tsr__part_node(part, "Mul", any, 2, tsr__part_one_where_larger(part, host, limit), change);
    return tsr__part_node(part, "Add", any, 2, host, change);
}

// local = (b - a) * scale - last * (F * unit - S) with F = (S + unit - 1) / unit, entry by entry.
// Entries up to `least` stay: 1 (0: copy, -1: the rest, 1: perhaps broadcast), or 0 if all entries
// are sizes.
static tsr_value *local_nodes(struct part *part, tsr_value *host,
                              const struct local_columns *columns, int64_t n, int64_t least)
{
    const struct str any = {0};
    tsr_value *parts = tsr__part_ints(part, columns->parts, n),
              *unit = tsr__part_ints(part, columns->unit, n);
    tsr_value *value =
        tsr__part_node(part, "Add", any, 2, host, tsr__part_ints(part, columns->spare, n));
    value = tsr__part_node(part, "Div", any, 2, value, unit);
    tsr_value *a =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, columns->part, n));
    tsr_value *b =
        tsr__part_node(part, "Mul", any, 2, value, tsr__part_ints(part, columns->next, n));
    a = tsr__part_node(part, "Div", any, 2, a, parts);
    b = tsr__part_node(part, "Div", any, 2, b, parts);
    tsr_value *local = tsr__part_node(part, "Sub", any, 2, b, a);
    local = tsr__part_node(part, "Mul", any, 2, local, tsr__part_ints(part, columns->scale, n));
    tsr_value *missing = tsr__part_node(part, "Mul", any, 2, value, unit);
    missing = tsr__part_node(part, "Sub", any, 2, missing, host);
    missing = tsr__part_node(part, "Mul", any, 2, missing, tsr__part_ints(part, columns->last, n));
    local = tsr__part_node(part, "Sub", any, 2, local, missing);
    return larger_replaced(part, host, least, local);
}

// The number of entries; they stand for the last dimensions of the tensor.
static int64_t host_entries(struct part *part, const tsr_value *source,
                            const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(part->draft->flow->shapes, source);
    if (shape.rank != 1 || shape.dims[0].value < 0 || shape.dims[0].value > layout->rank)
        return layout->rank;
    return shape.dims[0].value;
}

// Replaces 0 ("copy") by the size that it means, since the local node would copy the size of a
// shard. Example: [4 0 2] of [2 4 4], sharded in two along axis 1, is [2 4 2] on each device, not
// [2 0 2]. False: some of these sizes are unknown.
static bool sizes_meant(const struct item *made, int64_t *known, int64_t n)
{
    bool all = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t d = made->rank - n + i;
        if (known[i] != 0 || d < 0)
            continue;
        if (made->dims[d].value >= 0)
            known[i] = made->dims[d].value;
        else
            all = false;
    }
    return all;
}

static void set_column(struct local_columns *columns, int64_t i, struct local_size size)
{
    columns->size[i] = size;
    columns->unit[i] = size.unit;
    columns->spare[i] = size.unit - 1;
    columns->scale[i] = size.scale;
    columns->part[i] = size.part.first;
    columns->next[i] = size.part.stop;
    columns->parts[i] = size.part.of;
    columns->last[i] = size.part.stop == size.part.of;
}

// How each entry becomes the local size of its dimension. False: the device has no shard.
static bool columns_of(struct part *part, const struct tile_layout *layout, int64_t n,
                       struct local_columns *columns, bool *any)
{
    int64_t coords[TILE_MAX_FACTORS];
    *any = false;
    for (int64_t i = 0; i < n; i++) {
        int axis = (int)(layout->rank - n + i);
        if (!tsr__device_coords(layout, part->rank, axis, coords))
            return false;
        struct local_size size = {1, 1, {0, 1, 1}};
        if (tsr__dim_is_sharded(&layout->dims[axis])) {
            size = tsr__local_size(&layout->dims[axis], coords);
            *any = true;
        }
        set_column(columns, i, size);
    }
    return true;
}

// True if a shard may be empty: the size is unknown, or there are more shards than units.
static bool may_be_empty(const struct tile_layout *layout, int axis, tsr_dim size)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_is_sharded(&layout->dims[axis]))
        return false;
    struct local_size local_size = tsr__local_size(&layout->dims[axis], coords);
    return size.value < 0 ||
           (size.value + local_size.unit - 1) / local_size.unit < local_size.part.of;
}

// ---- meaning of the entries ---------------------------------------------------------------------

bool tsr__shape_input_of(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite, struct shape_input *shape_in)
{
    *shape_in = (struct shape_input){.nf = nf, .output = rewrite->output, .open = rewrite->open};
    shape_in->copies =
        rewrite->open ||
        (rewrite->name && !tsr_attr_int(tsr_node_find_attr(nf->node, rewrite->name), 0));
    shape_in->source = tsr_node_input(nf->node, (size_t)rewrite->index);
    shape_in->layout = nf->outputs[rewrite->output];
    if (!shape_in->source || !shape_in->layout)
        return false;
    shape_in->made = tsr__item_of(draft, tsr_node_output(nf->node, (size_t)rewrite->output));
    return shape_in->made != NULL;
}

// Dimensions of the same factors in the same order, without windows, have equal local sizes.
static bool same_factors(const struct rule_dim *a, const struct rule_dim *b)
{
    if (a->n == 0 || a->n != b->n || a->window || b->window)
        return false;
    return memcmp(a->factors, b->factors, (size_t)a->n * sizeof(*a->factors)) == 0;
}

// The axis of input 0 with the same factors as this axis of the result, and so the same local size;
// or -1.
static int same_axis(const struct shape_input *shape_in, int axis)
{
    const struct rule *rule = shape_in->nf->place.rule;
    if (!rule || rule->n_inputs == 0 || rule->inputs[0].host || rule->inputs[0].absent)
        return -1;
    if (shape_in->output >= rule->n_outputs || axis >= rule->outputs[shape_in->output].rank)
        return -1;
    for (int i = 0; i < rule->inputs[0].rank; i++)
        if (same_factors(&rule->inputs[0].dims[i], &rule->outputs[shape_in->output].dims[axis]))
            return i;
    return -1;
}

// The entry that is -1 and follows from the others; -1: no such entry.
static int open_axis(struct draft *draft, const struct shape_input *shape_in)
{
    return (int)tsr__shapes_rest(draft->flow->shapes, shape_in->source);
}

// True if every entry can be computed: a known size, the local size of an input axis, or the rest.
static bool all_computable(struct draft *draft, const struct shape_input *shape_in)
{
    const struct item *made = shape_in->made;
    struct shape shape = tsr__shapes_of(draft->flow->shapes, shape_in->source);
    if (shape.rank != 1 || shape.dims[0].value != made->rank ||
        made->rank != shape_in->layout->rank)
        return false;
    if (made->rank > TILE_MAX_RANK)
        return false;
    int open = open_axis(draft, shape_in);
    for (int axis = 0; axis < made->rank; axis++)
        if (axis != open && !tsr__size_known(draft, &made->dims[axis]) &&
            same_axis(shape_in, axis) < 0)
            return false;
    return true;
}

static bool any_empty(const struct shape_input *shape_in)
{
    for (int axis = 0; axis < shape_in->made->rank; axis++)
        if (may_be_empty(shape_in->layout, axis, shape_in->made->dims[axis]))
            return true;
    return false;
}

bool tsr__shape_input_is_sizes(struct draft *draft, const struct shape_input *shape_in)
{
    return all_computable(draft, shape_in) && any_empty(shape_in);
}

// ---- entry by entry ----------------------------------------------------------------------------

static tsr_value *product_of(struct part *part, tsr_value **sizes, size_t n)
{
    const int64_t one = 1;
    if (n == 0)
        return tsr__part_ints(part, &one, 1);
    tsr_value *product = sizes[0];
    for (size_t i = 1; i < n; i++)
        product = tsr__part_node(part, "Mul", (struct str){0}, 2, product, sizes[i]);
    return product;
}

static tsr_value *size_here(struct part *part, tsr_value *shape, int64_t axis)
{
    return tsr__part_node(part, "Gather", (struct str){0}, 2, shape,
                          tsr__part_ints(part, &axis, 1));
}

// The size that remains for the open entry. Axes that both sides share are left out of both
// products, so that it is right for empty shards: of a local [0 12] as [0 4 -1] it is 12 / 4.
static tsr_value *rest_here(struct part *part, const struct shape_input *shape_in, tsr_value *shape,
                            tsr_value *const *entries, int open)
{
    const struct rule_tensor *input = &shape_in->nf->place.rule->inputs[0];
    tsr_value *here[RULE_MAX_RANK], *taken[TILE_MAX_RANK];
    bool shared[RULE_MAX_RANK] = {false};
    size_t n_here = 0, n_taken = 0;
    const int64_t one = 1;
    for (int axis = 0; axis < shape_in->made->rank; axis++) {
        if (axis == open)
            continue;
        int same = same_axis(shape_in, axis);
        if (same >= 0)
            shared[same] = true;
        else
            taken[n_taken++] = entries[axis];
    }
    for (int i = 0; i < input->rank; i++)
        if (!shared[i])
            here[n_here++] = size_here(part, shape, i);
    tsr_value *divisor = tsr__part_largest(part, (struct str){0}, product_of(part, taken, n_taken),
                                           tsr__part_ints(part, &one, 1));
    return tsr__part_node(part, "Div", (struct str){0}, 2, product_of(part, here, n_here), divisor);
}

// The share of a known size, else the local size of the input's axis.
static tsr_value *entry_here(struct part *part, const struct shape_input *shape_in,
                             tsr_value *shape, int axis)
{
    const tsr_dim *dim = &shape_in->made->dims[axis];
    int64_t coords[TILE_MAX_FACTORS];
    if (!tsr__size_known(part->draft, dim))
        return size_here(part, shape, same_axis(shape_in, axis));
    if (!tsr__dim_is_sharded(&shape_in->layout->dims[axis]))
        return tsr__part_size(part, dim);
    if (!tsr__device_coords(shape_in->layout, part->rank, axis, coords))
        return NULL;
    struct local_size size = tsr__local_size(&shape_in->layout->dims[axis], coords);
    if (dim->value >= 0) {
        int64_t local = tsr__local_size_of(&size, dim->value);
        return tsr__part_ints(part, &local, 1);
    }
    struct local_columns columns;
    set_column(&columns, 0, size);
    return local_nodes(part, tsr__part_size(part, dim), &columns, 1, 0);
}

// For shapes that are not fully known. An open entry stays -1 if every rank has elements: engines
// infer more from that.
static tsr_value *entries_here(struct part *part, const struct shape_input *shape_in,
                               tsr_value *data)
{
    int rank = shape_in->made->rank, open = open_axis(part->draft, shape_in);
    int64_t minus = -1;
    tsr_value *entries[TILE_MAX_RANK];
    struct item *from = tsr__item_of(part->draft, tsr_node_input(shape_in->nf->node, 0));
    struct str any = {0}, name = tsr__part_new_name(part);
    if (!from || !data || !name.p)
        return NULL;
    tsr_value *shape = tsr__part_sizes(part, data, from->dtype, any);
    if (!shape)
        return NULL;
    for (int axis = 0; axis < rank; axis++)
        if (axis != open)
            entries[axis] = entry_here(part, shape_in, shape, axis);
    if (open >= 0 && any_empty(shape_in))
        entries[open] = rest_here(part, shape_in, shape, entries, open);
    else if (open >= 0)
        entries[open] = tsr__part_ints(part, &minus, 1);
    return tsr__part_concat(part, entries, (size_t)rank, 0, name);
}

// Writes -1 instead of 0 in the open entry, and the size otherwise: 2 r - max(r, 1). A -1 beside a
// 0 would be refused.
static tsr_value *rest_left_open(struct part *part, tsr_value *sizes, int rest, int64_t rank)
{
    int64_t one = 1, at[TILE_MAX_RANK] = {0};
    struct str any = {0};
    at[rest] = 1;
    tsr_value *largest = tsr__part_largest(part, any, sizes, tsr__part_ints(part, &one, 1));
    tsr_value *lacks = tsr__part_node(part, "Sub", any, 2, largest, sizes); // 1 where it is 0
    lacks = tsr__part_node(part, "Mul", any, 2, lacks, tsr__part_ints(part, at, rank));
    return tsr__part_node(part, "Sub", any, 2, sizes, lacks);
}

// The shape for nodes where 0 means "copy". If copying gives the right size, 0 is written, which
// also holds for empty shards. Else one size that may be 0 is written as -1: a local [1 1 3 0 4]
// becomes [1 3 0 4] by [1 3 -1 4], which is [1 3 0 4] * [1 1 0 1] - [0 0 1 0].
static tsr_value *zero_left_open(struct part *part, const struct shape_input *shape_in,
                                 tsr_value *sizes)
{
    int64_t kept[TILE_MAX_RANK], left[TILE_MAX_RANK] = {0}, rank = shape_in->made->rank;
    int n_left = 0, n_copied = 0, last = -1, rest = open_axis(part->draft, shape_in);
    struct str any = {0};
    if (!shape_in->open || rank > TILE_MAX_RANK)
        return sizes;
    for (int axis = 0; axis < rank; axis++) {
        kept[axis] = 1;
        if (!may_be_empty(shape_in->layout, axis, shape_in->made->dims[axis]))
            continue;
        bool copied = same_axis(shape_in, axis) == axis;
        kept[axis] = !copied;
        n_copied += copied;
        n_left += !copied;
        if (!copied)
            last = axis;
    }
    if (n_left == 0 && rest >= 0 && any_empty(shape_in))
        sizes = rest_left_open(part, sizes, rest, rank);
    if (n_left == 1)
        kept[last] = 0;
    if (n_left == 1 || n_copied > 0)
        sizes = tsr__part_node(part, "Mul", any, 2, sizes, tsr__part_ints(part, kept, rank));
    if (n_left != 1)
        return sizes;
    left[last] = 1;
    return tsr__part_node(part, "Sub", any, 2, sizes, tsr__part_ints(part, left, rank));
}

static tsr_value *sizes_here(struct part *part, const struct shape_input *shape_in, tsr_value *data,
                             const struct local_columns *columns)
{
    const struct item *made = shape_in->made;
    if (!tsr__shape_known(part->draft, made))
        return zero_left_open(part, shape_in, entries_here(part, shape_in, data));
    tsr_value *whole = tsr__part_shape(part, made);
    return zero_left_open(part, shape_in, local_nodes(part, whole, columns, made->rank, 0));
}

// Local sizes computed from the full shape, for shapes that are not fully known; 0 and -1 keep
// their meaning. If the input has the same shard at the same axis, 0 ("copy") is written, which
// also holds for empty shards: Shape(y) = [1 8 9 18] for a local [0 8 162] becomes [0 8 9 18].
static tsr_value *host_here(struct part *part, const struct shape_input *shape_in, tsr_value *host,
                            const struct local_columns *columns, int64_t n)
{
    int64_t kept[TILE_MAX_RANK];
    bool any = false;
    // ConstantOfShape has no other input: nothing is copied or broadcast, and 1 is a size.
    int64_t least = tsr_node_input_count(shape_in->nf->node) > 1;
    tsr_value *sizes = local_nodes(part, host, columns, n, least);
    if (!shape_in->copies || n != shape_in->made->rank)
        return sizes;
    for (int axis = 0; axis < n; axis++) {
        bool copied = may_be_empty(shape_in->layout, axis, shape_in->made->dims[axis]) &&
                      same_axis(shape_in, axis) == axis;
        kept[axis] = !copied;
        any |= copied;
    }
    if (!any)
        return sizes;
    return tsr__part_node(part, "Mul", (struct str){0}, 2, sizes, tsr__part_ints(part, kept, n));
}

// Constant [8,6] for a result {2,1} becomes [4,6]. Entries 0, 1 and -1 stay: copy, broadcast, rest.
// A shape that is not constant is computed by nodes, from the sizes of the result if known, else
// from the full shape.
tsr_value *tsr__part_local_shape(struct part *part, const struct shape_input *shape_in,
                                 tsr_value *host, tsr_value *data)
{
    const struct shapes *shapes = part->draft->flow->shapes;
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(shapes, shape_in->source, known, TILE_MAX_RANK);
    bool constant = n >= 0 && n <= shape_in->layout->rank, any;
    if (!constant)
        n = host_entries(part, shape_in->source, shape_in->layout);
    struct local_columns columns;
    if (!columns_of(part, shape_in->layout, n, &columns, &any))
        return NULL;
    if (!any)
        return host;
    if (tsr__shape_input_is_sizes(part->draft, shape_in))
        return sizes_here(part, shape_in, data, &columns);
    bool meant;
    if (constant)
        meant = sizes_meant(shape_in->made, known, n);
    else
        meant = !tsr__shapes_may_copy(shapes, shape_in->source);
    if (!meant && all_computable(part->draft, shape_in))
        return sizes_here(part, shape_in, data, &columns);
    if (!constant)
        return host_here(part, shape_in, host, &columns, n);
    for (int64_t i = 0; i < n; i++)
        if (known[i] > 1)
            known[i] = tsr__local_size_of(&columns.size[i], known[i]);
    return tsr__part_ints(part, known, n);
}
