// SPDX-License-Identifier: Apache-2.0
// dialect_microsoft.c - communication as ONNX Runtime's own builds with NCCL know it: AllReduce, AllGather and AllToAll
// of com.microsoft, among all ranks, with parts of one size.
//
//     a = AllReduce(x), b = AllGather(u), and u is not made of a:
//         u' = Concat(nothing of a, u) is u again, but comes after a: b = AllGather(u')
#include "dialect.h"

#define DOMAIN "com.microsoft"

// ---- what they can say -------------------------------------------------------------------------

// One group of all ranks, in order.
static bool everybody(const struct draft *draft, const struct step *st)
{
    const struct device_group *group = &st->groups[0];
    for (size_t i = 0; i < group->n; i++)
        if (group->devices[i] != (int64_t)i)
            return false;
    return st->n_groups == 1 && (int64_t)group->n == draft->n_ranks;
}

// Sums of floats; what is only moved may also be whole numbers or truths.
static bool type_fits(const struct step *st, tsr_dtype type)
{
    if (type == TSR_FLOAT || type == TSR_FLOAT16 || type == TSR_DOUBLE)
        return true;
    return comm_has(st->kind, TRAIT_JOINS) && (type == TSR_INT64 || type == TSR_BOOL);
}

// Parts of 3 and 1 are meant to differ; others come out so.
static const char *why_uneven(const struct form *form)
{
    if (tsr__layout_shared(form->layout))
        return "its parts are unequal shares, and those of " DOMAIN
               " are equal: plan for devices that are alike (--devices N)";
    return "the parts have different sizes, or unknown ones";
}

// A gather of [4,6] pieces on ranks 0 and 1 is an AllGather; of [3,6] and [2,6] it is none, since its parts must be equal.
static const char *why_not(struct draft *draft, const struct step *st)
{
    bool reduces = comm_has(st->kind, TRAIT_FOLDS), joins = comm_has(st->kind, TRAIT_JOINS);
    const struct device_group *group = &st->groups[0];
    if (!reduces && !joins)
        return DOMAIN " has AllReduce, AllGather and AllToAll only";
    if (!everybody(draft, st))
        return "not all ranks take part, and " DOMAIN " knows no groups";
    if (reduces && st->flow->combine != COMBINE_SUM)
        return DOMAIN "'s AllReduce can only add";
    if (st->outputs[0]->item->rank < 0 || st->outputs[0]->item->rank > TILE_MAX_RANK)
        return "its number of dimensions is not known, or too large";
    if (!type_fits(st, st->outputs[0]->item->dtype))
        return "the operator of " DOMAIN " does not take this element type";
    if (joins && !tsr__group_even(group, st->inputs[0], st->axis))
        return why_uneven(st->inputs[0]);
    if (st->kind == COMM_ALL_TO_ALL && !tsr__group_even(group, st->outputs[0], st->split_axis))
        return why_uneven(st->outputs[0]);
    if (st->kind == COMM_REDUCE_SCATTER && tsr__size_on(st->outputs[0], st->axis, 0) < 0)
        return "the size of the axis that is cut is not known";
    return NULL;
}

static const char *why_loose(const struct draft *draft, const struct step *st)
{
    if (st->outputs[0]->item->rank < 1)
        return "a single number, which cannot be put behind the communication before";
    if (draft->opset < 14)
        return "it cannot be put behind the communication before it in this opset";
    return NULL;
}

// ---- nodes -------------------------------------------------------------------------------------

// x with nothing in front of it: no element of `before`, in the shape of x. Of x [4,6] and before [2,3]:
//     none = Reshape(before, [-1]) [6], Slice [0:0] -> [0], Reshape to [0,6]; Concat(none, x) along axis 0 is x [4,6]
// and cannot be computed before `before` is there.
static tsr_value *behind(struct part *part, tsr_value *x, tsr_dtype type,
                         const struct dialect_comm *before)
{
    static const int64_t all[1] = {-1}, zero[1] = {0}, one[1] = {1}, end[1] = {INT64_MAX};
    const struct str any = {0};
    tsr_value *none = tsr__part_node(part, "Reshape", any, 2, tsr_node_output(before->node, 0),
                                     tsr__part_ints(part, all, 1));
    tsr_value *at = tsr__part_ints(part, zero, 1);
    none = tsr__part_node(part, "Slice", any, 4, none, at, at, at);
    if (before->dtype != type)
        none = tsr__with_int(tsr__part_node(part, "Cast", any, 1, none), "to", type);
    tsr_value *shape = tsr__part_node(part, "Shape", any, 1, x);
    shape = tsr__part_node(part, "Slice", any, 4, shape, tsr__part_ints(part, one, 1),
                           tsr__part_ints(part, end, 1), at);
    shape = tsr__with_int(tsr__part_node(part, "Concat", any, 2, at, shape), "axis", 0);
    none = tsr__part_node(part, "Reshape", any, 2, none, shape);
    none = tsr__with_int(none, "allowzero", 1);
    return tsr__with_int(tsr__part_node(part, "Concat", any, 2, none, x), "axis", 0);
}

// The node itself, with the numbers that it has.
static tsr_value *collective(struct part *part, const struct dialect_call *call, const char *op,
                             tsr_value *x, struct str out)
{
    const struct item *it = call->step->outputs[0]->item;
    int kind = call->step->kind;
    const struct dialect_comm gives = {.item = it, .dtype = it->dtype, .rank = it->rank};
    tsr_node *node = tsr__dialect_node(part, call, op, x, gives, out);
    if (!node)
        return NULL;
    tsr_value *y = tsr_node_output(node, 0);
    if (comm_has(kind, TRAIT_JOINS))
        y = tsr__with_int(y, "group_size", part->draft->n_ranks);
    if (kind == COMM_ALL_GATHER)
        y = tsr__with_int(y, "axis", call->step->axis);
    return y;
}

// The dialect's AllToAll splits and joins along axis 0 only, so other axes are brought there and back.
static tsr_value *emit(struct part *part, const struct dialect_call *call, tsr_value *x,
                       struct str out)
{
    const struct str any = {0};
    const struct step *st = call->step;
    switch (st->kind) {
    case COMM_ALL_GATHER:
        return collective(part, call, "AllGather", x, out);
    case COMM_ALL_TO_ALL:
        if (st->split_axis != 0)
            x = tsr__part_turned(part, x, call->group->n, st->split_axis, 0, any);
        if (st->axis == 0)
            return collective(part, call, "AllToAll", x, out);
        x = collective(part, call, "AllToAll", x, any);
        return tsr__part_turned(part, x, call->group->n, 0, st->axis, out);
    case COMM_REDUCE_SCATTER:
        x = collective(part, call, "AllReduce", x, any);
        return tsr__part_own(part, call, st->axis, x, out);
    default:
        return collective(part, call, "AllReduce", x, out);
    }
}

const struct dialect tsr__dialect_microsoft = {DOMAIN, DOMAIN, why_not, why_loose, behind, emit};
