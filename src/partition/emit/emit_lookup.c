// SPDX-License-Identifier: Apache-2.0
// emit_lookup.c - writes nodes that look up or update rows by index if the rows of the table are
// sharded.
//
// If another rank has the row of an index, this rank looks up its row 0 instead, and the result is
// set to 0. The sum over the ranks then has every row, without rounding and in every type. For
// updates, such an index changes a spare row after the local rows, which is removed again.
//
//     Example: Gather(table [8,4], ids), rows 0..3 on rank 0 and 4..7 on rank 1, ids = [5 1]:
//         rank 0   local ids [0 1], here [no yes]    rows 0 and 1 -> [0, row 1]
//         rank 1   local ids [1 0], here [yes no]    rows 5 and 4 -> [row 5, 0]
//         AllReduce -> [row 5, row 1]
#include "internal.h"

static bool is_cut(const struct node_flow *nf, const struct rule_rewrite *rewrite)
{
    return (rewrite->kind == REWRITE_LOOKUP || rewrite->kind == REWRITE_SCATTER) &&
           nf->place.cuts[rewrite->factor] > 1;
}

// Returns REWRITE_LOOKUP or REWRITE_SCATTER if the node looks up or updates rows that are sharded.
// Returns REWRITE_SHAPE for other nodes.
static enum rewrite_kind lookup_kind(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; i < rule->n_rewrites; i++)
        if (is_cut(nf, &rule->rewrites[i]))
            return rule->rewrites[i].kind;
    return REWRITE_SHAPE;
}

static tsr_value *int64_scalar(struct part *part, int64_t v)
{
    return tsr__part_scalar(part, TSR_INT64, &v);
}

static tsr_value *joined(struct part *part, tsr_value *a, tsr_value *b, int64_t axis)
{
    return tsr__with_int(NODE(part, "Concat", a, b), "axis", axis);
}

// Adds a Squeeze or Unsqueeze (`op`). Its axes are an input from opset 13 on, before that an
// attribute.
static tsr_value *with_axes(struct part *part, const char *op, tsr_value *x, const int64_t *axes,
                            int n)
{
    if (part->draft->opset >= 13)
        return NODE(part, op, x, tsr__part_ints(part, axes, n));
    return tsr__with_ints(NODE(part, op, x), "axes", axes, n);
}

// ---- indices -----------------------------------------------------------------------------------

// A table whose rows are sharded, and which is looked up or updated by index.
struct table {
    struct part *part;
    int64_t size;              // rows of the full table
    struct tile_interval rows; // rows that this rank has
    int64_t elsewhere;         // local row that stands for all rows of other ranks
    tsr_value *here;           // mask of the indices of this rank, set by local_index
};

// Adds nodes that convert indices of the full table to indices of the local rows. Indices of other
// ranks' rows become table->elsewhere. Example: of 8 rows the rank has 4..7; [5 -1 2] becomes [1 3
// elsewhere], and table->here is [true true false].
static tsr_value *local_index(struct table *table, tsr_value *value)
{
    struct part *part = table->part;
    tsr_value *zero = int64_scalar(part, 0);
    tsr_value *from_end = NODE(part, "Add", value, int64_scalar(part, table->size));
    value = NODE(part, "Where", NODE(part, "Less", value, zero), from_end, value);
    value = NODE(part, "Sub", value, int64_scalar(part, table->rows.start));
    tsr_value *low = NODE(part, "Less", value, zero);
    int64_t n_rows = table->rows.stop - table->rows.start;
    tsr_value *high = NODE(part, "Less", value, int64_scalar(part, n_rows));
    table->here = NODE(part, "And", NODE(part, "Not", low), high);
    return NODE(part, "Where", table->here, value, int64_scalar(part, table->elsewhere));
}

// As local_index, for index vectors (the last dimension of x): converts only entry `element` of
// each vector.
static tsr_value *local_element(struct table *table, tsr_value *x, const struct item *it,
                                int element)
{
    struct part *part = table->part;
    int64_t axis = it->rank - 1, n = it->dims[axis].value;
    tsr_value *value = tsr__part_slice(part, x, axis, element, element + 1, NEW_NAME);
    if (!value)
        return NULL;
    value = local_index(table, value);
    if (value && element > 0)
        value = joined(part, tsr__part_slice(part, x, axis, 0, element, NEW_NAME), value, axis);
    if (value && element + 1 < n)
        value = joined(part, value, tsr__part_slice(part, x, axis, element + 1, n, NEW_NAME), axis);
    if (!value)
        return NULL;
    table->here = with_axes(part, "Squeeze", table->here, &axis, 1);
    return value;
}

static tsr_value *as_int64(struct part *part, tsr_value *x, tsr_dtype type)
{
    if (type == TSR_INT64)
        return x;
    return tsr__with_int(NODE(part, "Cast", x), "to", TSR_INT64);
}

// ---- around the node ----------------------------------------------------------------------------

static tsr_value *with_spare(struct part *part, tsr_value *x, int64_t axis)
{
    tsr_value *first = tsr__part_slice(part, x, axis, 0, 1, NEW_NAME);
    return first ? joined(part, x, first, axis) : NULL;
}

// Adds nodes that make the indices of one factor local. For updates, also appends the spare row to
// the table, inputs[0]. *here is the mask of indices whose rows this rank has, over all factors so
// far.
static tsr_status begin_factor(struct part *part, const struct step *st,
                               const struct rule_rewrite *rewrite, tsr_value **inputs,
                               tsr_value **here)
{
    const struct item *it = st->inputs[rewrite->input]->item;
    bool updates = rewrite->kind == REWRITE_SCATTER;
    struct table table = {.part = part, .rows = tsr__part_range(part, st->flow, rewrite->factor)};
    table.size = st->flow->place.rule->factors[rewrite->factor].size.value;
    if (updates)
        table.elsewhere = table.rows.stop - table.rows.start;
    tsr_value **x = &inputs[rewrite->input];
    if (!*here) // at later factors the indices are already int64
        *x = as_int64(part, *x, it->dtype);
    int element = updates ? rewrite->scatter.element : rewrite->lookup.element;
    if (element >= 0)
        *x = local_element(&table, *x, it, element);
    else
        *x = local_index(&table, *x);
    if (updates)
        inputs[0] = with_spare(part, inputs[0], rewrite->scatter.axis);
    *here = *here ? NODE(part, "And", *here, table.here) : table.here;
    if (!*x || !inputs[0] || !*here)
        return TSR_NOMEM;
    return TSR_OK;
}

// Adds nodes that convert the indices of a lookup or update to local ones; *here is the mask of
// indices whose rows this rank has. If several factors are sharded (GatherND), the rank has a row
// only if it has its part of each factor.
tsr_status tsr__lookup_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             tsr_value **here)
{
    const struct rule *rule = st->flow->place.rule;
    *here = NULL;
    if (!rule)
        return TSR_OK;
    for (int i = 0; i < rule->n_rewrites; i++) {
        if (!is_cut(st->flow, &rule->rewrites[i]))
            continue;
        TRY(begin_factor(part, st, &rule->rewrites[i], inputs, here));
    }
    return TSR_OK;
}

// Adds an Unsqueeze that appends `behind` dimensions of size 1 to the mask, which has `rank`
// dimensions.
static tsr_value *append_dims(struct part *part, tsr_value *mask, int rank, int behind)
{
    int64_t axes[RULE_MAX_RANK];
    for (int i = 0; i < behind; i++)
        axes[i] = rank + i;
    return behind ? with_axes(part, "Unsqueeze", mask, axes, behind) : mask;
}

// Removes the spare rows from the result.
static tsr_value *without_spares(struct part *part, const struct step *st, tsr_value *x,
                                 struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    struct row_names names = {.last = name};
    for (int i = 0; i < rule->n_rewrites; i++)
        names.left += is_cut(st->flow, &rule->rewrites[i]);
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        if (!is_cut(st->flow, rewrite))
            continue;
        struct tile_interval rows = tsr__part_range(part, st->flow, rewrite->factor);
        int64_t n_rows = rows.stop - rows.start;
        x = tsr__part_slice(part, x, rewrite->scatter.axis, 0, n_rows, next_name(&names));
    }
    return x;
}

tsr_status tsr__lookup_end(struct part *part, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    tsr_value *y = NULL;
    if (lookup_kind(st->flow) == REWRITE_SCATTER) {
        y = without_spares(part, st, found, name);
    } else {
        int i = 0;
        while (!is_cut(st->flow, &rule->rewrites[i]))
            i++;
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        const struct lookup_rewrite *lookup = &rewrite->lookup;
        int rank = st->inputs[rewrite->input]->item->rank - (lookup->element >= 0);
        y = NAMED_NODE(part, "Where", name, append_dims(part, here, rank, lookup->after), found,
                       tsr__part_zero(part, st->outputs[0]->item->dtype));
    }
    st->outputs[0]->local[part->rank] = y;
    return status_of_alloc(y);
}
