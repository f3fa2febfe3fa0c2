// SPDX-License-Identifier: Apache-2.0
// lower.c - plans the operators that turn one layout into another as steps between forms. Which
// operators these are is decided by tsr__reshard_operators (sharding/reshard/operators.c), for
// `plan` and for `partition`.
#include "internal.h"

bool tsr__draft_operators(struct draft *draft, const struct form *from,
                          const struct tile_layout *want, struct reshard_operators *out)
{
    int64_t sizes[TILE_MAX_RANK];
    struct reshard_tensor tensor = tsr__item_tensor(draft, from->item, sizes);
    return tsr__reshard_operators(draft->arena, &tensor, from->layout, NULL, want, out) == TSR_OK;
}

// Returns the layout that a spec requests for this output of the node, if it differs from the one
// that the node produces; else NULL.
static const struct tile_layout *spec_layout(const struct node_flow *nf, const tsr_value *value)
{
    for (size_t i = 0; i < tsr_node_output_count(nf->node); i++)
        if (tsr_node_output(nf->node, i) == value)
            return nf->wanted[i];
    return NULL;
}

bool tsr__draft_sum(struct draft *draft, const struct form *from, const struct node_flow *nf,
                    struct reshard_operators *out)
{
    int64_t sizes[TILE_MAX_RANK];
    const tsr_value *value = from->item->value;
    struct reshard_tensor tensor = tsr__item_tensor(draft, from->item, sizes);
    struct partial pending = {nf->combine, nf->groups, nf->n_groups};
    const struct want *want = value ? &draft->wants[tsr__value_id(value)] : NULL;
    return tsr__reshard_sum(draft->arena, &tensor, from->layout, &pending,
                            value ? spec_layout(nf, value) : NULL,
                            want && !want->differ ? want->layout : NULL, out) == TSR_OK;
}

// Creates the step of an operator. Returns NULL if out of memory.
static struct step *operator_step(struct draft *draft, const struct reshard_operator *operator,
                                  struct form * from, struct form *to)
{
    int kind = operator->op == RESHARD_SLICE ? STEP_SLICE : operator->op;
    struct step *st = tsr__step_between(draft, kind, from, to);
    if (!tsr__step_set_groups(draft, st, operator->groups, operator->n_groups))
        return NULL;
    st->axis = operator->axis;
    st->split_axis = operator->split_axis;
    st->unit = operator->unit;
    st->shares = operator->shares;
    st->parts = operator->parts;
    st->roots = operator->roots;
    return st;
}

struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending,
                              const struct reshard_operators *operators)
{
    bool partial = pending != NULL;
    for (int i = 0; i < operators->n; i++) {
        const struct reshard_operator *operator= & operators->at[i];
        struct form *form = tsr__form_new(draft, from->item, operator->layout, FORM_MADE);
        if (!form)
            return NULL;
        // Forms are partial until the step that reduces the sum, so that no reader uses them.
        partial = partial && !comm_has(operator->op, TRAIT_REDUCES);
        form->partial = partial;
        if (operator->op == RESHARD_NOTHING) {
            form->same = from;
        } else {
            struct step *st = operator_step(draft, operator, from, form);
            if (!st)
                return NULL;
            st->flow = pending;
        }
        from = form;
    }
    return draft->arena->failed || !operators->n ? NULL : from;
}
