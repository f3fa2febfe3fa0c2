// SPDX-License-Identifier: Apache-2.0
// emit_lookup.c - nodes that are addressed by values, of whose table each device has some rows.
//
// What is looked up elsewhere is looked up at row 0 and put to 0, so that the sum over the devices has every row from
// the one that has it. Exact in every type: all other summands are 0. What is changed elsewhere changes one more row, which
// is put behind those that are here and taken off again.
#include "internal.h"

static bool is_cut(const struct node_flow *nf, const struct rule_rewrite *w)
{
    return (w->kind == REWRITE_LOOKUP || w->kind == REWRITE_SCATTER) &&
           nf->place.cuts[w->factor] > 1;
}

static enum rewrite_kind addressed(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++)
        if (is_cut(nf, &rule->rewrites[i]))
            return rule->rewrites[i].kind;
    return REWRITE_SHAPE;
}

static tsr_value *scalar(struct part *t, tsr_dtype type, int64_t v)
{
    struct str name = tsr__part_fresh(t);
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8; // v is 0 unless the type is int64
    return name.p ? tsr_graph_add_initializer(tsr_model_graph(t->model), name.p, type, 0, NULL, &v,
                                              bytes)
                  : NULL;
}

// The rows of the factor that this rank has.
static struct tile_interval rows_here(const struct part *t, const struct node_flow *nf, int factor)
{
    const struct rule *rule = nf->place.rule;
    int64_t size = rule->factors[factor].size.value, n = nf->place.cuts[factor], at = 0;
    while (at < (int64_t)nf->place.n_devices && nf->place.devices[at] != t->rank)
        at++;
    int64_t part = nf->place.coords[at * rule->n_factors + factor];
    return (struct tile_interval){tsr__tile_start(size, n, part),
                                  tsr__tile_start(size, n, part + 1)};
}

static tsr_value *joined(struct part *t, tsr_value *a, tsr_value *b, int64_t axis)
{
    const struct str any = {0};
    tsr_value *y = tsr__part_node(t, "Concat", any, 2, a, b);
    return y && tsr_node_set_int(tsr_value_producer(y), "axis", axis) == TSR_OK ? y : NULL;
}

static tsr_value *with_axes(struct part *t, const char *op, tsr_value *x, const int64_t *axes,
                            int n)
{
    const struct str any = {0};
    if (t->plan->opset >= 13)
        return tsr__part_node(t, op, any, 2, x, tsr__part_ints(t, axes, n));
    tsr_value *y = tsr__part_node(t, op, any, 1, x);
    return y && tsr_node_set_ints(tsr_value_producer(y), "axes", axes, (size_t)n) == TSR_OK ? y
                                                                                            : NULL;
}

// ---- indices -----------------------------------------------------------------------------------

// Indices into the rows that this rank has, `elsewhere` for others; *here says which are meant.
static tsr_value *local_index(struct part *t, tsr_value *i, int64_t size, struct tile_interval rows,
                              int64_t elsewhere, tsr_value **here)
{
    const struct str any = {0};
    tsr_value *zero = scalar(t, TSR_INT64, 0);
    tsr_value *from_end = tsr__part_node(t, "Add", any, 2, i, scalar(t, TSR_INT64, size));
    i = tsr__part_node(t, "Where", any, 3, tsr__part_node(t, "Less", any, 2, i, zero), from_end, i);
    i = tsr__part_node(t, "Sub", any, 2, i, scalar(t, TSR_INT64, rows.start));
    tsr_value *low = tsr__part_node(t, "Less", any, 2, i, zero);
    tsr_value *high =
        tsr__part_node(t, "Less", any, 2, i, scalar(t, TSR_INT64, rows.stop - rows.start));
    *here = tsr__part_node(t, "And", any, 2, tsr__part_node(t, "Not", any, 1, low), high);
    return tsr__part_node(t, "Where", any, 3, *here, i, scalar(t, TSR_INT64, elsewhere));
}

// The same for one element of each row of indices: the others stay, and *here has one for a row.
static tsr_value *local_element(struct part *t, tsr_value *x, const struct item *it, int element,
                                int64_t size, struct tile_interval rows, int64_t elsewhere,
                                tsr_value **here)
{
    const struct str any = {0};
    int64_t axis = it->rank - 1, n = it->dims[axis].value;
    tsr_value *i = tsr__part_slice(t, x, axis, element, element + 1, any);
    i = i ? local_index(t, i, size, rows, elsewhere, here) : NULL;
    if (i && element > 0)
        i = joined(t, tsr__part_slice(t, x, axis, 0, element, any), i, axis);
    if (i && element + 1 < n)
        i = joined(t, i, tsr__part_slice(t, x, axis, element + 1, n, any), axis);
    *here = i ? with_axes(t, "Squeeze", *here, &axis, 1) : NULL;
    return i;
}

static tsr_value *as_int64(struct part *t, tsr_value *x, tsr_dtype type)
{
    const struct str any = {0};
    if (type == TSR_INT64)
        return x;
    x = tsr__part_node(t, "Cast", any, 1, x);
    return x && tsr_node_set_int(tsr_value_producer(x), "to", TSR_INT64) == TSR_OK ? x : NULL;
}

// ---- before and behind the node ----------------------------------------------------------------

// One more row, for what is meant for others.
static tsr_value *with_spare(struct part *t, tsr_value *x, int64_t axis)
{
    const struct str any = {0};
    tsr_value *first = tsr__part_slice(t, x, axis, 0, 1, any);
    return first ? joined(t, x, first, axis) : NULL;
}

tsr_status tsr__lookup_begin(struct part *t, const struct step *st, tsr_value **inputs,
                             tsr_value **here)
{
    const struct rule *rule = st->flow->place.rule;
    const struct str any = {0};
    *here = NULL;
    for (int i = 0; rule && i < rule->n_rewrites; i++) {
        const struct rule_rewrite *w = &rule->rewrites[i];
        if (!is_cut(st->flow, w))
            continue;
        const struct item *it = st->inputs[w->index]->item;
        struct tile_interval rows = rows_here(t, st->flow, w->factor);
        int64_t size = rule->factors[w->factor].size.value;
        int64_t elsewhere = w->kind == REWRITE_SCATTER ? rows.stop - rows.start : 0;
        tsr_value *mask, *x = inputs[w->index];
        if (!*here) // else it was cast already
            x = as_int64(t, x, it->dtype);
        x = w->first ? local_element(t, x, it, w->first - 1, size, rows, elsewhere, &mask)
                     : local_index(t, x, size, rows, elsewhere, &mask);
        inputs[w->index] = x;
        if (w->kind == REWRITE_SCATTER)
            inputs[0] = with_spare(t, inputs[0], w->last);
        *here = *here ? tsr__part_node(t, "And", any, 2, *here, mask) : mask;
        if (!x || !inputs[0] || !*here)
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// The mask with so many dimensions of size 1 behind it.
static tsr_value *stretched(struct part *t, tsr_value *mask, int rank, int behind)
{
    int64_t axes[RULE_MAX_RANK];
    for (int i = 0; i < behind; i++)
        axes[i] = rank + i;
    return behind ? with_axes(t, "Unsqueeze", mask, axes, behind) : mask;
}

static tsr_value *without_spares(struct part *t, const struct step *st, tsr_value *x,
                                 struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    const struct str any = {0};
    int left = 0;
    for (int i = 0; i < rule->n_rewrites; i++)
        left += is_cut(st->flow, &rule->rewrites[i]);
    for (int i = 0; i < rule->n_rewrites && x; i++) {
        const struct rule_rewrite *w = &rule->rewrites[i];
        if (!is_cut(st->flow, w))
            continue;
        struct tile_interval rows = rows_here(t, st->flow, w->factor);
        x = tsr__part_slice(t, x, w->last, 0, rows.stop - rows.start, --left ? any : name);
    }
    return x;
}

tsr_status tsr__lookup_end(struct part *t, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name)
{
    const struct rule *rule = st->flow->place.rule;
    tsr_value *y = NULL;
    if (addressed(st->flow) == REWRITE_SCATTER) {
        y = without_spares(t, st, found, name);
    } else {
        int i = 0;
        while (!is_cut(st->flow, &rule->rewrites[i]))
            i++;
        const struct rule_rewrite *w = &rule->rewrites[i];
        int rank = st->inputs[w->index]->item->rank - (w->first > 0);
        y = tsr__part_node(t, "Where", name, 3, stretched(t, here, rank, w->last), found,
                           scalar(t, st->outputs[0]->item->dtype, 0));
    }
    st->outputs[0]->local[t->rank] = y;
    return y ? TSR_OK : TSR_NOMEM;
}
