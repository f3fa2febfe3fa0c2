// SPDX-License-Identifier: Apache-2.0
// local_shape.c - the shape of a cut result for a node that is told it as an input (Reshape, Expand, ConstantOfShape): local sizes in place of
// those of the whole.
//
//   [8,6] of a result {2,1} is [4,6] on either rank
//   [n,6] is a few nodes that compute the rank's share of n
//   [0,-1]: what each entry means is put in its place where a rank may have nothing of a size (0 elements leave -1 open), or where
//   0 ("as before") would take the size of a part: of [4 3] as [1 0 -1] with the rows cut, 0 means the 3 that is whole
#include "internal.h"

struct local_columns {
    struct local_size size[TILE_MAX_RANK]; // and the same as lists, for nodes that compute it:
    int64_t unit[TILE_MAX_RANK], spare[TILE_MAX_RANK], scale[TILE_MAX_RANK], part[TILE_MAX_RANK],
        next[TILE_MAX_RANK], parts[TILE_MAX_RANK], last[TILE_MAX_RANK];
};

// The entries of `host` that are larger than `least` become those of `local`. Before opset 9 whole numbers are not
// chosen: of [5 0] and [3 7], with least 0, host + [1 0] * (local - host) is [3 0].
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

// local = (b - a) * scale - last * (F * unit - S) with F = (S + unit - 1) / unit, entry by entry;
// entries up to `least` stay: 1 (0: as the input, -1: what is left, 1: perhaps as the input), or 0 where all are sizes.
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

// Entries of the host value: they name the last dimensions of the tensor.
static int64_t host_entries(struct part *part, const tsr_value *source,
                            const struct tile_layout *layout)
{
    struct shape shape = tsr__shapes_of(part->draft->flow->shapes, source);
    if (shape.rank != 1 || shape.dims[0].value < 0 || shape.dims[0].value > layout->rank)
        return layout->rank;
    return shape.dims[0].value;
}

// In a new shape 0 means "as before", and before the local node there is a part: the size that is meant is put in
// its place. [4 0 2] of [2 4 4], cut in two along its second axis, is [2 4 2] and not [2 0 2] on each device. False: a
// size that is meant is no number.
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

// The numbers of one size, in the form in which nodes compute with whole lists of them.
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

// How each entry of the host value becomes the local size of its dimension; false: the device has no part of layout.
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
        if (tsr__dim_cut(&layout->dims[axis])) {
            size = tsr__local_size(&layout->dims[axis], coords);
            *any = true;
        }
        set_column(columns, i, size);
    }
    return true;
}

// A device may have nothing of the dimension: its size is not known before the run, or there are more parts than units.
static bool may_be_empty(const struct tile_layout *layout, int axis, tsr_dim size)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_cut(&layout->dims[axis]))
        return false;
    struct local_size local_size = tsr__local_size(&layout->dims[axis], coords);
    return size.value < 0 ||
           (size.value + local_size.unit - 1) / local_size.unit < local_size.part.of;
}

// ---- what each entry means ---------------------------------------------------------------------

bool tsr__told_shape(struct draft *draft, const struct node_flow *nf,
                     const struct rule_rewrite *rewrite, struct told_shape *told)
{
    *told = (struct told_shape){.nf = nf, .output = rewrite->output, .open = rewrite->open};
    told->copies = rewrite->open ||
                   (rewrite->name && !tsr_attr_int(tsr_node_find_attr(nf->node, rewrite->name), 0));
    told->source = tsr_node_input(nf->node, (size_t)rewrite->index);
    told->layout = nf->outputs[rewrite->output];
    if (!told->source || !told->layout)
        return false;
    told->made = tsr__item_of(draft, tsr_node_output(nf->node, (size_t)rewrite->output));
    return told->made != NULL;
}

// Made of the same factors in the same order, with no window in between: cut alike, the local sizes are equal.
static bool same_factors(const struct rule_dim *a, const struct rule_dim *b)
{
    if (a->n == 0 || a->n != b->n || a->window || b->window)
        return false;
    return memcmp(a->factors, b->factors, (size_t)a->n * sizeof(*a->factors)) == 0;
}

// The axis of input 0 that has the same factors as that axis of the result, and so the same local size; -1: none.
static int same_axis(const struct told_shape *told, int axis)
{
    const struct rule *rule = told->nf->place.rule;
    if (!rule || rule->n_inputs == 0 || rule->inputs[0].host || rule->inputs[0].absent)
        return -1;
    if (told->output >= rule->n_outputs || axis >= rule->outputs[told->output].rank)
        return -1;
    for (int i = 0; i < rule->inputs[0].rank; i++)
        if (same_factors(&rule->inputs[0].dims[i], &rule->outputs[told->output].dims[axis]))
            return i;
    return -1;
}

// The one entry that is -1 and follows from all others; -1: there is none.
static int open_axis(struct draft *draft, const struct told_shape *told)
{
    return (int)tsr__shapes_rest(draft->flow->shapes, told->source);
}

// Every entry can be put in place as a size: it is known here, it is the local size of an axis of the input, or it is the one
// that is left over.
static bool all_told(struct draft *draft, const struct told_shape *told)
{
    const struct item *made = told->made;
    struct shape shape = tsr__shapes_of(draft->flow->shapes, told->source);
    if (shape.rank != 1 || shape.dims[0].value != made->rank || made->rank != told->layout->rank)
        return false;
    if (made->rank > TILE_MAX_RANK)
        return false;
    int open = open_axis(draft, told);
    for (int axis = 0; axis < made->rank; axis++)
        if (axis != open && !tsr__size_known(draft, &made->dims[axis]) && same_axis(told, axis) < 0)
            return false;
    return true;
}

// Some rank may have nothing of the result, and 0 in its shape must mean 0.
static bool any_empty(const struct told_shape *told)
{
    for (int axis = 0; axis < told->made->rank; axis++)
        if (may_be_empty(told->layout, axis, told->made->dims[axis]))
            return true;
    return false;
}

bool tsr__shape_of_sizes(struct draft *draft, const struct told_shape *told)
{
    return all_told(draft, told) && any_empty(told);
}

// ---- entry by entry ----------------------------------------------------------------------------

// The product of some sizes, as int64[1]; of none it is 1.
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

// int64[1], of a shape that is there.
static tsr_value *size_here(struct part *part, tsr_value *shape, int64_t axis)
{
    return tsr__part_node(part, "Gather", (struct str){0}, 2, shape,
                          tsr__part_ints(part, &axis, 1));
}

// What the others leave of the input's elements. Axes that both sides share are left out of both products, so that it is right where a rank has
// nothing of them: of a local [0 12] as [0 4 -1] it is 12 / 4.
static tsr_value *rest_here(struct part *part, const struct told_shape *told, tsr_value *shape,
                            tsr_value *const *entries, int open)
{
    const struct rule_tensor *input = &told->nf->place.rule->inputs[0];
    tsr_value *here[RULE_MAX_RANK], *taken[TILE_MAX_RANK];
    bool shared[RULE_MAX_RANK] = {false};
    size_t n_here = 0, n_taken = 0;
    const int64_t one = 1;
    for (int axis = 0; axis < told->made->rank; axis++) {
        if (axis == open)
            continue;
        int same = same_axis(told, axis);
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

// One entry: the rank's share of a size that is known, else the local size of the input's axis.
static tsr_value *entry_here(struct part *part, const struct told_shape *told, tsr_value *shape,
                             int axis)
{
    const tsr_dim *dim = &told->made->dims[axis];
    int64_t coords[TILE_MAX_FACTORS];
    if (!tsr__size_known(part->draft, dim))
        return size_here(part, shape, same_axis(told, axis));
    if (!tsr__dim_cut(&told->layout->dims[axis]))
        return tsr__part_size(part, dim);
    if (!tsr__device_coords(told->layout, part->rank, axis, coords))
        return NULL;
    struct local_size size = tsr__local_size(&told->layout->dims[axis], coords);
    if (dim->value >= 0) {
        int64_t local = tsr__local_size_of(&size, dim->value);
        return tsr__part_ints(part, &local, 1);
    }
    struct local_columns columns;
    set_column(&columns, 0, size);
    return local_nodes(part, tsr__part_size(part, dim), &columns, 1, 0);
}

// All entries, where not all sizes are known. The last dimension that is open stays -1 where every rank has elements: engines infer more from that.
static tsr_value *entries_here(struct part *part, const struct told_shape *told, tsr_value *data)
{
    int rank = told->made->rank, open = open_axis(part->draft, told);
    int64_t minus = -1;
    tsr_value *entries[TILE_MAX_RANK];
    struct item *from = tsr__item_of(part->draft, tsr_node_input(told->nf->node, 0));
    struct str any = {0}, name = tsr__part_fresh(part);
    if (!from || !data || !name.p)
        return NULL;
    tsr_value *shape = tsr__part_sizes(part, data, from->dtype, any);
    if (!shape)
        return NULL;
    for (int axis = 0; axis < rank; axis++)
        if (axis != open)
            entries[axis] = entry_here(part, told, shape, axis);
    if (open >= 0 && any_empty(told))
        entries[open] = rest_here(part, told, shape, entries, open);
    else if (open >= 0)
        entries[open] = tsr__part_ints(part, &minus, 1);
    for (int axis = 0; axis < rank; axis++)
        if (!entries[axis])
            return NULL;
    const char *outputs[1] = {name.p};
    tsr_node *node =
        tsr_graph_add_node(part->graph, "", "Concat", name.p, entries, (size_t)rank, outputs, 1);
    if (!node || tsr_node_set_int(node, "axis", 0) != TSR_OK)
        return NULL;
    return tsr_node_output(node, 0);
}

// Of the one entry that follows from the others, -1 in place of 0, and the size itself in place of others: 2 r - max(r, 1). A -1 that is
// not needed would be refused beside a 0.
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

// The shape for nodes that take 0 for "as before". Where that is the size, 0 is told, which is right for nothing, too; else one size that may
// be 0 is told as -1: of a local [1 1 3 0 4] the result [1 3 0 4] as [1 3 -1 4], which is [1 3 0 4] * [1 1 0 1] - [0 0 1 0].
static tsr_value *zero_left_open(struct part *part, const struct told_shape *told, tsr_value *sizes)
{
    int64_t kept[TILE_MAX_RANK], left[TILE_MAX_RANK] = {0}, rank = told->made->rank;
    int n_left = 0, n_copied = 0, last = -1, rest = open_axis(part->draft, told);
    struct str any = {0};
    if (!told->open || rank > TILE_MAX_RANK)
        return sizes;
    for (int axis = 0; axis < rank; axis++) {
        kept[axis] = 1;
        if (!may_be_empty(told->layout, axis, told->made->dims[axis]))
            continue;
        bool copied = same_axis(told, axis) == axis;
        kept[axis] = !copied;
        n_copied += copied;
        n_left += !copied;
        if (!copied)
            last = axis;
    }
    if (n_left == 0 && rest >= 0 && any_empty(told))
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

// The local shape as sizes alone.
static tsr_value *sizes_here(struct part *part, const struct told_shape *told, tsr_value *data,
                             const struct local_columns *columns)
{
    const struct item *made = told->made;
    if (!tsr__shape_known(part->draft, made))
        return zero_left_open(part, told, entries_here(part, told, data));
    tsr_value *whole = tsr__part_shape(part, made);
    return zero_left_open(part, told, local_nodes(part, whole, columns, made->rank, 0));
}

// The local sizes of a whole shape of which not everything is known, so that entries of 0 and -1 keep their meaning. Where the input has the
// same part at the same place, 0 is told, which is right for nothing, too: of Shape(y) = [1 8 9 18], as which a local [0 8 162] is
// wanted, it makes [0 8 9 18].
static tsr_value *host_here(struct part *part, const struct told_shape *told, tsr_value *host,
                            const struct local_columns *columns, int64_t n)
{
    int64_t kept[TILE_MAX_RANK];
    bool any = false;
    // A node without other inputs (ConstantOfShape) has nothing to copy or to broadcast: 1 is a size.
    int64_t least = tsr_node_input_count(told->nf->node) > 1;
    tsr_value *sizes = local_nodes(part, host, columns, n, least);
    if (!told->copies || n != told->made->rank)
        return sizes;
    for (int axis = 0; axis < n; axis++) {
        bool copied = may_be_empty(told->layout, axis, told->made->dims[axis]) &&
                      same_axis(told, axis) == axis;
        kept[axis] = !copied;
        any |= copied;
    }
    if (!any)
        return sizes;
    return tsr__part_node(part, "Mul", (struct str){0}, 2, sizes, tsr__part_ints(part, kept, n));
}

// The shape input of a node, for this rank: constant [8,6] for a result {2,1} becomes [4,6] on either rank.
// Entries 0, 1 and -1 stay: they copy, broadcast, or follow from the others. A shape that is no constant is
// computed by nodes, from the sizes of the result where those are known, else from the whole shape.
tsr_value *tsr__part_local_shape(struct part *part, const struct told_shape *told, tsr_value *host,
                                 tsr_value *data)
{
    const struct shapes *shapes = part->draft->flow->shapes;
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(shapes, told->source, known, TILE_MAX_RANK);
    bool constant = n >= 0 && n <= told->layout->rank, any;
    if (!constant)
        n = host_entries(part, told->source, told->layout);
    struct local_columns columns;
    if (!columns_of(part, told->layout, n, &columns, &any))
        return NULL;
    if (!any)
        return host;
    if (tsr__shape_of_sizes(part->draft, told))
        return sizes_here(part, told, data, &columns);
    bool meant;
    if (constant)
        meant = sizes_meant(told->made, known, n);
    else
        meant = !tsr__shapes_may_copy(shapes, told->source);
    if (!meant && all_told(part->draft, told))
        return sizes_here(part, told, data, &columns);
    if (!constant)
        return host_here(part, told, host, &columns, n);
    for (int64_t i = 0; i < n; i++)
        if (known[i] > 1)
            known[i] = tsr__local_size_of(&columns.size[i], known[i]);
    return tsr__part_ints(part, known, n);
}

tsr_value *tsr__part_local_sizes(struct part *part, const struct item *it,
                                 const struct tile_layout *layout)
{
    struct local_columns columns;
    bool any;
    tsr_value *whole = tsr__part_shape(part, it);
    if (!whole || !columns_of(part, layout, it->rank, &columns, &any))
        return NULL;
    if (any)
        return local_nodes(part, whole, &columns, it->rank, 0);
    return whole;
}
