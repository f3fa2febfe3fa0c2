// SPDX-License-Identifier: Apache-2.0
// local_shape.c - computes the local shape for nodes that get the shape of their sharded result as
// an input (Reshape, Expand, ConstantOfShape).
//
// Examples:
//     [8,6] for a result {2,1} is [4,6] on each rank
//     [n,6] becomes nodes that compute the rank's share of n
//     [0,-1] of a Reshape: 0 means "copy the size", -1 means "the remaining size". Both are
//         replaced by sizes if a shard may be empty, because -1 cannot be derived from 0 elements.
//         0 is also replaced if it would copy the size of a shard (see resolve_copies).
#include "internal.h"

// How the local size of each entry of the shape is computed. The arrays after `size` have the same
// numbers as lists, to be written as constants. `spare` is unit - 1; `last` is 1 if the shard has
// the last unit.
struct local_columns {
    struct local_size size[TILE_MAX_RANK];
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], scale[TILE_MAX_RANK], part[TILE_MAX_RANK],
        next[TILE_MAX_RANK], parts[TILE_MAX_RANK], last[TILE_MAX_RANK];
};

// Adds nodes that replace entries of `host` larger than `least` by those of `local`. Before opset
// 9, Where does not accept integers, so the nodes compute host + mask * (local - host). Example: [5
// 0] and [3 7] with least 0 give [5 0] + [1 0] * [-2 7] = [3 0].
static tsr_value *replace_larger(struct part *part, tsr_value *host, int64_t least,
                                 tsr_value *local)
{
    tsr_value *limit = tsr__part_number(part, least);
    if (part->draft->opset >= 9) {
        tsr_value *sized = NODE(part, "Greater", host, limit);
        return NODE(part, "Where", sized, local, host);
    }
    tsr_value *change = NODE(part, "Sub", local, host);
    change = NODE(part, "Mul", tsr__part_one_where_larger(part, host, limit), change);
    return NODE(part, "Add", host, change);
}

// Adds nodes that replace each entry of the shape `host`, a full size, by the local size (formula:
// see struct local_size). Entries up to `least` are unchanged. `least` is 0 if all entries are
// sizes. Otherwise it is 1, because 0 means "copy", -1 "the remaining size", and 1 may be
// broadcast.
static tsr_value *local_nodes(struct part *part, tsr_value *host,
                              const struct local_columns *columns, int64_t n, int64_t least)
{
    tsr_value *parts = tsr__part_ints(part, columns->parts, n),
              *unit = tsr__part_ints(part, columns->unit, n);
    tsr_value *value = NODE(part, "Add", host, tsr__part_ints(part, columns->spare, n));
    value = NODE(part, "Div", value, unit);
    tsr_value *a = NODE(part, "Mul", value, tsr__part_ints(part, columns->part, n));
    tsr_value *b = NODE(part, "Mul", value, tsr__part_ints(part, columns->next, n));
    a = NODE(part, "Div", a, parts);
    b = NODE(part, "Div", b, parts);
    tsr_value *local = NODE(part, "Sub", b, a);
    local = NODE(part, "Mul", local, tsr__part_ints(part, columns->scale, n));
    tsr_value *missing = NODE(part, "Mul", value, unit);
    missing = NODE(part, "Sub", missing, host);
    missing = NODE(part, "Mul", missing, tsr__part_ints(part, columns->last, n));
    local = NODE(part, "Sub", local, missing);
    return replace_larger(part, host, least, local);
}

// Returns the number of entries of a shape input, or the rank of the result if it is unknown. The
// entries describe the last dimensions of the result.
static int64_t host_entries(struct part *part, const tsr_value *source,
                            const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(part->draft->flow->shapes, source);
    if (shape.rank != 1 || shape.dims[0].value < 0 || shape.dims[0].value > layout->rank)
        return layout->rank;
    return shape.dims[0].value;
}

// Replaces entries 0 ("copy") of a constant shape by the sizes that they copy, because the local
// node would copy the size of a shard. Example: [1 4 6] with axis 1 sharded in 2 is reshaped by [2
// 0 3]. The result [2 4 3] is sharded along axis 0. Each device needs the shape [1 4 3], but 0
// would copy its local size 2. Returns false if one of these sizes is unknown.
static bool resolve_copies(const struct item *made, int64_t *known, int64_t n)
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

tsr_value *tsr__part_local_size(struct part *part, tsr_value *whole, struct local_size size)
{
    struct local_columns columns;
    set_column(&columns, 0, size);
    return local_nodes(part, whole, &columns, 1, 0);
}

// Returns how the rank's size of a sharded axis follows from the full size. Coordinates are those
// of the rank's shard. A node that computes windows has their size. Example: windows of 3 of 12
// elements are units 0 to 2 of 12.
static struct local_size size_of_axis(const struct part *part, const struct shape_input *shape_in,
                                      int axis, const int64_t *coords)
{
    const struct windows *windows = shape_in->windows;
    if (!windows || windows->axes[0] != axis)
        return tsr__local_size(&shape_in->layout->dims[axis], coords);
    return (struct local_size){
        1, 1, {0, tsr__windows_size(windows, part->rank), shape_in->made->dims[axis].value}};
}

// Fills *columns for the n entries of a shape. *any is set if a dimension is sharded. Returns false
// if the rank has no shard.
static bool columns_of(struct part *part, const struct shape_input *shape_in, int64_t n,
                       struct local_columns *columns, bool *any)
{
    const struct tile_layout *layout = shape_in->layout;
    int64_t coords[TILE_MAX_FACTORS];
    *any = false;
    for (int64_t i = 0; i < n; i++) {
        int axis = (int)(layout->rank - n + i);
        if (!tsr__device_coords(layout, part->rank, axis, coords))
            return false;
        struct local_size size = {1, 1, {0, 1, 1}};
        if (tsr__dim_is_sharded(&layout->dims[axis])) {
            size = size_of_axis(part, shape_in, axis, coords);
            *any = true;
        }
        set_column(columns, i, size);
    }
    return true;
}

// True if a shard of the axis may be empty: the axis is sharded, and its size is unknown or there
// are fewer units than shares.
static bool may_be_empty(const struct tile_layout *layout, int axis, tsr_dim size)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_is_sharded(&layout->dims[axis]))
        return false;
    struct local_size local_size = tsr__local_size(&layout->dims[axis], coords);
    return size.value < 0 ||
           (size.value + local_size.unit - 1) / local_size.unit < local_size.part.of;
}

// ---- what the entries mean ----------------------------------------------------------------------

bool tsr__shape_input_of(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite, struct shape_input *shape_in)
{
    *shape_in = (struct shape_input){.nf = nf, .open = rewrite->shape.open};
    shape_in->copies =
        rewrite->shape.open ||
        (rewrite->attribute && !tsr_attr_int(tsr_node_find_attr(nf->node, rewrite->attribute), 0));
    shape_in->source = tsr_node_input(nf->node, (size_t)rewrite->input);
    shape_in->layout = nf->outputs[0];
    if (!shape_in->source || !shape_in->layout)
        return false;
    shape_in->made = tsr__item_of(draft, tsr_node_output(nf->node, 0));
    return shape_in->made != NULL;
}

// True if two dimensions have equal local sizes: the same factors in the same order, and no
// windows.
static bool same_factors(const struct rule_dim *a, const struct rule_dim *b)
{
    if (a->n == 0 || a->n != b->n || a->window || b->window)
        return false;
    return memcmp(a->factors, b->factors, (size_t)a->n * sizeof(*a->factors)) == 0;
}

// Returns the axis of input 0 with the same factors, and so the same local size, as this axis of
// the result. Returns -1 if there is none.
static int same_axis(const struct shape_input *shape_in, int axis)
{
    const struct rule *rule = shape_in->nf->place.rule;
    if (!rule || rule->n_inputs == 0 || rule->inputs[0].host || rule->inputs[0].absent)
        return -1;
    if (rule->n_outputs < 1 || axis >= rule->outputs[0].rank)
        return -1;
    for (int i = 0; i < rule->inputs[0].rank; i++)
        if (same_factors(&rule->inputs[0].dims[i], &rule->outputs[0].dims[axis]))
            return i;
    return -1;
}

// Returns the index of the entry that is -1 ("the remaining size") in the model's shape; -1: there
// is none.
static int open_axis(struct draft *draft, const struct shape_input *shape_in)
{
    return (int)tsr__shapes_rest(draft->flow->shapes, shape_in->source);
}

// True if every entry of the local shape can be computed: from a known size, as the local size of
// an axis of input 0, or as the remaining size.
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
        if (axis != open && !tsr__size_known(draft, made, axis) && same_axis(shape_in, axis) < 0)
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
    if (n == 0)
        return tsr__part_number(part, 1);
    tsr_value *product = sizes[0];
    for (size_t i = 1; i < n; i++)
        product = NODE(part, "Mul", product, sizes[i]);
    return product;
}

static tsr_value *size_here(struct part *part, tsr_value *shape, int64_t axis)
{
    return NODE(part, "Gather", shape, tsr__part_number(part, axis));
}

// Adds nodes that compute the size of the entry -1: the product of the input's local sizes divided
// by the other entries. Axes that input and result have in common are left out of both products, so
// that the division is right for empty shards. Example: a local [0 12] with the shape [0 4 -1]
// gives 12 / 4.
static tsr_value *remaining_size(struct part *part, const struct shape_input *shape_in,
                                 tsr_value *shape, tsr_value *const *entries, int open)
{
    const struct rule_tensor *input = &shape_in->nf->place.rule->inputs[0];
    tsr_value *here[RULE_MAX_RANK], *taken[TILE_MAX_RANK];
    bool shared[RULE_MAX_RANK] = {false};
    size_t n_here = 0, n_taken = 0;
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
    tsr_value *divisor =
        tsr__part_largest(part, product_of(part, taken, n_taken), tsr__part_number(part, 1));
    return NODE(part, "Div", product_of(part, here, n_here), divisor);
}

// Returns an entry of the local shape: the rank's share of a known size, else the local size of the
// axis of input 0 with the same factors.
static tsr_value *local_entry(struct part *part, const struct shape_input *shape_in,
                              tsr_value *shape, int axis)
{
    const struct item *made = shape_in->made;
    const tsr_dim *dim = &made->dims[axis];
    int64_t coords[TILE_MAX_FACTORS];
    if (!tsr__size_known(part->draft, made, axis))
        return size_here(part, shape, same_axis(shape_in, axis));
    if (!tsr__dim_is_sharded(&shape_in->layout->dims[axis]))
        return tsr__part_size(part, made, axis);
    if (!tsr__device_coords(shape_in->layout, part->rank, axis, coords))
        return NULL;
    struct local_size size = size_of_axis(part, shape_in, axis, coords);
    if (dim->value >= 0) {
        int64_t local = tsr__local_size_of(&size, dim->value);
        return tsr__part_number(part, local);
    }
    struct local_columns columns;
    set_column(&columns, 0, size);
    return local_nodes(part, tsr__part_size(part, made, axis), &columns, 1, 0);
}

// Adds nodes that build the local shape entry by entry, for results with unknown sizes. An entry -1
// stays if no shard can be empty, because engines infer more from it.
static tsr_value *local_entries(struct part *part, const struct shape_input *shape_in,
                                tsr_value *data)
{
    int rank = shape_in->made->rank, open = open_axis(part->draft, shape_in);
    tsr_value *entries[TILE_MAX_RANK];
    struct item *from = tsr__item_of(part->draft, tsr_node_input(shape_in->nf->node, 0));
    struct str name = tsr__part_new_name(part);
    if (!from || !data || !name.p)
        return NULL;
    tsr_value *shape = tsr__part_sizes(part, data, from->dtype, NEW_NAME);
    if (!shape)
        return NULL;
    for (int axis = 0; axis < rank; axis++)
        if (axis != open)
            entries[axis] = local_entry(part, shape_in, shape, axis);
    if (open >= 0 && any_empty(shape_in))
        entries[open] = remaining_size(part, shape_in, shape, entries, open);
    else if (open >= 0)
        entries[open] = tsr__part_number(part, -1);
    return tsr__part_concat(part, entries, (size_t)rank, 0, name);
}

// Adds nodes that replace entry `rest`, a size r, by -1 if r is 0: they compute 2 r - max(r, 1).
// This is for shapes in which 0 means "copy".
static tsr_value *replace_zero_rest(struct part *part, tsr_value *sizes, int rest, int64_t rank)
{
    int64_t at[TILE_MAX_RANK] = {0};
    at[rest] = 1;
    tsr_value *largest = tsr__part_largest(part, sizes, tsr__part_number(part, 1));
    tsr_value *lacks = NODE(part, "Sub", largest, sizes); // 1 where the size is 0
    lacks = NODE(part, "Mul", lacks, tsr__part_ints(part, at, rank));
    return NODE(part, "Sub", sizes, lacks);
}

// Adds nodes that adapt sizes for nodes in which 0 means "copy" and a size 0 cannot be written. An
// entry that may be 0 becomes 0 if copying gives the right size. Otherwise one such entry becomes
// -1. Example: the local [1 1 3 0 4] becomes [1 3 0 4] with the shape [1 3 -1 4], which is computed
// as [1 3 0 4] * [1 1 0 1] - [0 0 1 0].
static tsr_value *replace_zeros(struct part *part, const struct shape_input *shape_in,
                                tsr_value *sizes)
{
    int64_t kept[TILE_MAX_RANK], left[TILE_MAX_RANK] = {0}, rank = shape_in->made->rank;
    int n_left = 0, n_copied = 0, last = -1, rest = open_axis(part->draft, shape_in);
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
        sizes = replace_zero_rest(part, sizes, rest, rank);
    if (n_left == 1)
        kept[last] = 0;
    if (n_left == 1 || n_copied > 0)
        sizes = NODE(part, "Mul", sizes, tsr__part_ints(part, kept, rank));
    if (n_left != 1)
        return sizes;
    left[last] = 1;
    return NODE(part, "Sub", sizes, tsr__part_ints(part, left, rank));
}

static tsr_value *local_sizes(struct part *part, const struct shape_input *shape_in,
                              tsr_value *data, const struct local_columns *columns)
{
    const struct item *made = shape_in->made;
    if (!tsr__shape_known(part->draft, made))
        return replace_zeros(part, shape_in, local_entries(part, shape_in, data));
    tsr_value *whole = tsr__part_shape(part, made);
    return replace_zeros(part, shape_in, local_nodes(part, whole, columns, made->rank, 0));
}

// Adds nodes that compute the local shape from the full shape `host` at run time. Entries 0 and -1
// keep their meaning. If input 0 has the same shard at the same axis, and it may be empty, the
// entry becomes 0 ("copy"). Example: Shape(y) = [1 8 9 18] for a local input [0 8 162] becomes [0 8
// 9 18].
static tsr_value *sizes_from_full_shape(struct part *part, const struct shape_input *shape_in,
                                        tsr_value *host, const struct local_columns *columns,
                                        int64_t n)
{
    int64_t kept[TILE_MAX_RANK];
    bool any = false;
    // ConstantOfShape has no other input: nothing is copied or broadcast, so 1 is a size.
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
    return NODE(part, "Mul", sizes, tsr__part_ints(part, kept, n));
}

// Returns the local shape for a shape input. Example: a constant [8,6] for a result {2,1} becomes
// [4,6]. In a constant, entries 1 and -1 stay, and 0 becomes the size that it copies, if that is
// known. Other shapes are computed by nodes: from the sizes of the result if these are known, else
// from the full shape.
static tsr_value *local_shape(struct part *part, const struct shape_input *shape_in,
                              tsr_value *host, tsr_value *data)
{
    const struct shapes *shapes = part->draft->flow->shapes;
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(shapes, shape_in->source, known, TILE_MAX_RANK);
    bool constant = n >= 0 && n <= shape_in->layout->rank, any;
    if (!constant)
        n = host_entries(part, shape_in->source, shape_in->layout);
    struct local_columns columns;
    if (!columns_of(part, shape_in, n, &columns, &any))
        return NULL;
    if (!any)
        return host;
    if (tsr__shape_input_is_sizes(part->draft, shape_in))
        return local_sizes(part, shape_in, data, &columns);
    bool meant;
    if (constant)
        meant = resolve_copies(shape_in->made, known, n);
    else
        meant = !tsr__shapes_may_copy(shapes, shape_in->source);
    if (!meant && all_computable(part->draft, shape_in))
        return local_sizes(part, shape_in, data, &columns);
    if (!constant)
        return sizes_from_full_shape(part, shape_in, host, &columns, n);
    for (int64_t i = 0; i < n; i++)
        if (known[i] > 1)
            known[i] = tsr__local_size_of(&columns.size[i], known[i]);
    return tsr__part_ints(part, known, n);
}

tsr_value *tsr__part_local_shape(struct part *part, const struct shape_input *shape_in,
                                 tsr_value *host, tsr_value *data)
{
    tsr_value *sizes = local_shape(part, shape_in, host, data);
    if (sizes == host || (host && tsr_value_initializer(host)))
        return sizes;
    return tsr__part_computed(part, shape_in->made, sizes);
}
