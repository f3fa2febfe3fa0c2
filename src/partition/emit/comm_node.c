// SPDX-License-Identifier: Apache-2.0
// comm_node.c - builds the node of a communication on one rank: operator, name and attributes. The
// token of the rank chains all its communications. The table of collectives lists the attributes of
// each.
//
//     Example: AllGather along axis 1 of a float16 on ranks 0 and 1, the third communication:
//         AllGatherF16 "AllGather_2" (x, token) -> (x/1, ai.tessera.token.2)
//         plan = the fingerprint, id = 2, group = [0, 1], elem_type = 10, axis = 1
#include "internal.h"

// Sets an attribute to the layout, encoded as a list of integers (tile/encode.c).
static tsr_status set_layout(struct draft *draft, tsr_node *node, const char *name,
                             const struct tile_layout *layout)
{
    size_t count = tsr__layout_encode(layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(draft->arena, int64_t, count + 1);
    if (!code)
        return TSR_NOMEM;
    tsr__layout_encode(layout, code, count);
    return tsr_node_set_ints(node, name, code, count);
}

static tsr_status set_axes(tsr_node *node, const struct windows *windows)
{
    int64_t axes[TILE_MAX_RANK];
    for (int k = 0; k < windows->n_axes; k++)
        axes[k] = windows->axes[k];
    return tsr_node_set_ints(node, tsr__attribute_name(ATTRIBUTE_AXES), axes,
                             (size_t)windows->n_axes);
}

// Sets the attribute with the windows: for each member and axis the number of intervals, then start
// and stop of each. Example: two members with the windows 0..4 and 3..7 along one axis give [1, 0,
// 5, 1, 3, 8].
static tsr_status set_windows(struct draft *draft, tsr_node *node, const struct step *st)
{
    const struct windows *windows = st->outputs[0]->windows;
    const struct device_group *group = &st->groups[0];
    VEC(int64_t) list = {0};
    for (size_t i = 0; i < group->n * (size_t)windows->n_axes; i++) {
        size_t axis = i % (size_t)windows->n_axes;
        const struct dim_slice *part =
            &windows->parts[group->devices[i / (size_t)windows->n_axes] * windows->n_axes +
                            (int64_t)axis];
        if (!vec_add(draft->arena, &list, part->n))
            return TSR_NOMEM;
        for (int64_t k = 0; k < part->n; k++) {
            vec_add(draft->arena, &list, part->at[k].start);
            vec_add(draft->arena, &list, part->at[k].stop);
        }
        if (draft->arena->failed)
            return TSR_NOMEM;
    }
    return tsr_node_set_ints(node, tsr__attribute_name(ATTRIBUTE_WINDOWS), list.at, list.n);
}

static tsr_status set_reduce(tsr_node *node, const struct step *st)
{
    static const char *const reduce[] = {[COMBINE_SUM] = "sum",
                                         [COMBINE_MAX] = "max",
                                         [COMBINE_MIN] = "min",
                                         [COMBINE_PROD] = "prod"};
    return tsr_node_set_string(node, tsr__attribute_name(ATTRIBUTE_REDUCE),
                               reduce[st->flow->combine]);
}

// Returns the receiver of a message: the member of the group that is not the root (sender).
static int64_t receiver(const struct step *st, size_t group)
{
    const int64_t *both = st->groups[group].devices;
    return both[both[0] == st->roots[group]];
}

static tsr_status set_one(struct draft *draft, tsr_node *node, const struct step *st, size_t group,
                          enum comm_attribute attribute)
{
    const char *name = tsr__attribute_name(attribute);
    switch (attribute) {
    case ATTRIBUTE_REDUCE:
        return set_reduce(node, st);
    case ATTRIBUTE_AXIS:
        return tsr_node_set_int(node, name, st->axis);
    case ATTRIBUTE_SPLIT_AXIS:
        return tsr_node_set_int(node, name, st->split_axis);
    case ATTRIBUTE_UNIT:
        return tsr_node_set_int(node, name, st->unit);
    case ATTRIBUTE_SHARES:
        if (!st->shares)
            return TSR_OK;
        return tsr_node_set_ints(node, name, st->shares[group], st->groups[group].n);
    case ATTRIBUTE_PART:
        if (!st->parts)
            return TSR_OK;
        return tsr_node_set_ints(
            node, name,
            (int64_t[]){st->parts[group].first, st->parts[group].stop, st->parts[group].of}, 3);
    case ATTRIBUTE_ROOT:
    case ATTRIBUTE_FROM:
        return tsr_node_set_int(node, name, st->roots[group]);
    case ATTRIBUTE_TO:
        return tsr_node_set_int(node, name, receiver(st, group));
    case ATTRIBUTE_SOURCE:
        return set_layout(draft, node, name, st->inputs[0]->layout);
    case ATTRIBUTE_TARGET:
        return set_layout(draft, node, name, st->outputs[0]->layout);
    case ATTRIBUTE_AXES:
        return set_axes(node, st->outputs[0]->windows);
    case ATTRIBUTE_WINDOWS:
        return set_windows(draft, node, st);
    case ATTRIBUTE_COUNT:
        break;
    }
    return TSR_OK;
}

static tsr_status own_attributes(struct draft *draft, tsr_node *node, const struct step *st,
                                 size_t group)
{
    for (int k = 0; k < ATTRIBUTE_COUNT; k++) {
        enum comm_attribute attribute = (enum comm_attribute)k;
        if (!comm_carries((int)tsr__step_collective(st), attribute))
            continue;
        TRY(set_one(draft, node, st, group, attribute));
    }
    return TSR_OK;
}

// Sets the attributes that all communications have, then those of this collective
// (collectives.def).
static tsr_status set_attributes(struct draft *draft, tsr_node *node, const struct step *st,
                                 size_t group)
{
    const struct device_group *device_group = &st->groups[group];
    TRY(tsr_node_set_string(node, "plan", draft->fingerprint));
    TRY(tsr_node_set_int(node, "id", st->id));
    TRY(tsr_node_set_ints(node, "group", device_group->devices, device_group->n));
    TRY(tsr_node_set_int(node, "elem_type", tsr__transfer_type(tsr__step_type(st))));
    return own_attributes(draft, node, st, group);
}

// Returns the name of the operator on this rank: the two ends of a message have different
// operators.
static const char *local_op(const struct part *part, const struct step *st, size_t group)
{
    const struct collective *row = tsr__collective((int)tsr__step_collective(st));
    return row->other_end && st->roots[group] != part->rank ? row->other_end : row->op;
}

// Adds the node of a communication. Output 1 becomes the new token of the rank, so the next
// communication waits for this one.
tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2])
{
    struct draft *draft = part->draft;
    const char *type = tsr__step_type(st) == TSR_FLOAT16 ? "F16" : "";
    struct str op = tsr__arena_printf(draft->arena, "%s%s", local_op(part, st, group), type);
    struct str label =
        tsr__arena_printf(draft->arena, "%s_%lld", local_op(part, st, group), (long long)st->id);
    if (draft->arena->failed)
        return NULL;
    tsr_node *node =
        tsr_graph_add_node(part->graph, COMM_DOMAIN, op.p, label.p, inputs, n_inputs, outputs, 2);
    if (!node || set_attributes(draft, node, st, group) != TSR_OK)
        return NULL;
    part->token = tsr_node_output(node, 1);
    return node;
}
