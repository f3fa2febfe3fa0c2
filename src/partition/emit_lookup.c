// SPDX-License-Identifier: Apache-2.0
// emit_lookup.c - a lookup in a table of which each device has some rows: what is asked of others is
// looked up at row 0 and put to 0, so that the sum over the devices has every row from the one that
// has it. Exact in every type: all other summands are 0.
#include "internal.h"

const struct rule_rewrite *tsr__lookup_cut(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == REWRITE_LOOKUP &&
            nf->place.cuts[rule->rewrites[i].factor] > 1)
            return &rule->rewrites[i];
    return NULL;
}

static tsr_value *scalar(struct part *t, tsr_dtype type, int64_t v)
{
    struct str name = tsr__part_fresh(t);
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8; // v is 0 unless the type is int64
    return name.p ? tsr_graph_add_initializer(tsr_model_graph(t->model), name.p, type, 0, NULL, &v,
                                              bytes)
                  : NULL;
}

// Indices into the rows that this rank has; *here says which of them are meant.
static tsr_value *local_indices(struct part *t, const struct node_flow *nf,
                                const struct rule_rewrite *w, tsr_value *indices, tsr_dtype type,
                                tsr_value **here)
{
    const struct str any = {0};
    const struct rule *rule = nf->place.rule;
    int64_t size = rule->factors[w->factor].size.value, n = nf->place.cuts[w->factor], at = 0;
    while (at < (int64_t)nf->place.n_devices && nf->place.devices[at] != t->rank)
        at++;
    int64_t part = nf->place.coords[at * rule->n_factors + w->factor];
    int64_t start = tsr__tile_start(size, n, part), stop = tsr__tile_start(size, n, part + 1);
    tsr_value *i = indices, *zero = scalar(t, TSR_INT64, 0);
    if (type != TSR_INT64) {
        i = tsr__part_node(t, "Cast", any, 1, i);
        if (!i || tsr_node_set_int(tsr_value_producer(i), "to", TSR_INT64) != TSR_OK)
            return NULL;
    }
    tsr_value *from_end = tsr__part_node(t, "Add", any, 2, i, scalar(t, TSR_INT64, size));
    i = tsr__part_node(t, "Where", any, 3, tsr__part_node(t, "Less", any, 2, i, zero), from_end, i);
    i = tsr__part_node(t, "Sub", any, 2, i, scalar(t, TSR_INT64, start));
    tsr_value *low = tsr__part_node(t, "Less", any, 2, i, zero);
    tsr_value *high = tsr__part_node(t, "Less", any, 2, i, scalar(t, TSR_INT64, stop - start));
    *here = tsr__part_node(t, "And", any, 2, tsr__part_node(t, "Not", any, 1, low), high);
    return tsr__part_node(t, "Where", any, 3, *here, i, zero);
}

tsr_status tsr__lookup_begin(struct part *t, const struct step *st, tsr_value **inputs,
                             tsr_value **here)
{
    const struct rule_rewrite *w = tsr__lookup_cut(st->flow);
    *here = NULL;
    if (!w)
        return TSR_OK;
    inputs[w->index] =
        local_indices(t, st->flow, w, inputs[w->index], st->inputs[w->index]->item->dtype, here);
    return inputs[w->index] && *here ? TSR_OK : TSR_NOMEM;
}

// The mask with so many dimensions of size 1 behind it.
static tsr_value *stretched(struct part *t, tsr_value *mask, int rank, int behind)
{
    int64_t axes[RULE_MAX_RANK];
    const struct str any = {0};
    for (int i = 0; i < behind; i++)
        axes[i] = rank + i;
    if (!behind)
        return mask;
    if (t->plan->opset >= 13)
        return tsr__part_node(t, "Unsqueeze", any, 2, mask, tsr__part_ints(t, axes, behind));
    tsr_value *y = tsr__part_node(t, "Unsqueeze", any, 1, mask);
    return y && tsr_node_set_ints(tsr_value_producer(y), "axes", axes, (size_t)behind) == TSR_OK
               ? y
               : NULL;
}

tsr_status tsr__lookup_end(struct part *t, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name)
{
    const struct rule_rewrite *w = tsr__lookup_cut(st->flow);
    tsr_value *mask = stretched(t, here, st->inputs[w->index]->item->rank, w->last);
    tsr_value *y =
        tsr__part_node(t, "Where", name, 3, mask, found, scalar(t, st->outputs[0]->item->dtype, 0));
    st->outputs[0]->local[t->rank] = y;
    return y ? TSR_OK : TSR_NOMEM;
}
