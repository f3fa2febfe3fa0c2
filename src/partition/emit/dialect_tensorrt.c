// SPDX-License-Identifier: Apache-2.0
// dialect_tensorrt.c - communication as TensorRT 11 reads it: DistCollective of the empty domain, whose attribute says
// which collective it is, among all ranks or a group of them. It joins, cuts and exchanges along axis 0 and in parts of
// one size; other axes are brought there and back, and parts of unlike sizes are filled up and cut off again.
//
//     all_gather along axis 1 of [4,3] on rank 0 and [4,2] on rank 1:
//         Pad to [4,3] on both, DistCollective -> [8,3], Split -> two of [4,3], Slice the second to [4,2], Concat -> [4,5]
#include "dialect.h"

#define SMALLEST_OPSET 11 // Pad takes whole numbers, Slice takes inputs

// ---- what it can say ---------------------------------------------------------------------------

// The type in which values travel; TSR_UNDEFINED: TensorRT computes with no such numbers.
static tsr_dtype travels_as(tsr_dtype type)
{
    switch (type) {
    case TSR_FLOAT:
    case TSR_FLOAT16:
    case TSR_BFLOAT16:
    case TSR_INT32:
    case TSR_INT64:
        return type;
    case TSR_BOOL: // NCCL has none
        return TSR_INT32;
    default:
        return TSR_UNDEFINED;
    }
}

// Every member knows how many elements each has along the axis, and somebody has one.
static bool sizes_known(const struct device_group *group, const struct form *form, int axis)
{
    int64_t sum = 0;
    for (size_t i = 0; i < group->n; i++) {
        int64_t size = tsr__size_on(form, axis, group->devices[i]);
        if (size < 0)
            return false;
        sum += size;
    }
    return sum > 0;
}

// All who get something keep it: they must give a tensor of its sizes, which the operator passes over.
static bool receivers_keep(const struct step *st, size_t group)
{
    for (size_t i = 0; i < st->groups[group].n; i++) {
        int64_t rank = st->groups[group].devices[i];
        if (rank != st->roots[group] && !tsr__layout_has_device(st->outputs[0]->layout, rank))
            return false;
    }
    return true;
}

// The same for one group of the step.
static const char *why_not_group(struct draft *draft, const struct step *st, size_t group)
{
    const struct device_group *members = &st->groups[group];
    bool known = true;
    switch (st->kind) {
    case COMM_ALL_GATHER:
        known = sizes_known(members, st->inputs[0], st->axis);
        break;
    case COMM_REDUCE_SCATTER:
        known = sizes_known(members, st->outputs[0], st->axis);
        break;
    case COMM_ALL_TO_ALL:
        known = sizes_known(members, st->inputs[0], st->axis) &&
                sizes_known(members, st->outputs[0], st->split_axis);
        break;
    case COMM_BROADCAST:
    case COMM_SEND:
        known = tsr__shape_known(draft, st->outputs[0]->item);
        if (!receivers_keep(st, group))
            return "a member of its group keeps nothing of it";
        break;
    case COMM_RESHARD:
        known = st->outputs[0]->item->fixed;
        if (!tsr__owns_once(st->inputs[0]->layout) || !tsr__owns_once(st->outputs[0]->layout))
            return "a device owns several of its parts";
        break;
    default:
        break;
    }
    if (known)
        return NULL;
    return "the sizes of its parts are not known: give them with `tessera shapes --dim NAME=SIZE`";
}

static bool is_expressed(int kind)
{
    return comm_has(kind, TRAIT_FOLDS) || comm_has(kind, TRAIT_JOINS) || kind == COMM_BROADCAST ||
           kind == COMM_SEND || kind == COMM_RESHARD;
}

static bool has_no_elements(const struct item *it)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (it->dims[axis].value == 0)
            return true;
    return false;
}

static const char *why_not(struct draft *draft, const struct step *st)
{
    const struct item *it = st->outputs[0]->item;
    if (has_no_elements(it))
        return "it has no elements";
    if (!is_expressed(st->kind))
        return "an exchange that is none of TensorRT's collectives";
    if (draft->opset < SMALLEST_OPSET)
        return "the nodes around DistCollective need operator set 11 or later";
    if (it->rank < 0 || it->rank > TILE_MAX_RANK)
        return "its number of dimensions is not known, or too large";
    if (travels_as(it->dtype) == TSR_UNDEFINED)
        return "TensorRT does not compute with this element type";
    for (size_t group = 0; group < st->n_groups; group++) {
        const char *why = NULL;
        if (st->group_live[group] && st->groups[group].n > 1)
            why = why_not_group(draft, st, group);
        if (why)
            return why;
    }
    return NULL;
}

// Single numbers are made vectors, so everything can be put behind everything.
static const char *why_loose(const struct draft *draft, const struct step *st)
{
    (void)draft;
    (void)st;
    return NULL;
}

// ---- one after the other -----------------------------------------------------------------------

// A tensor of one 0. NULL: failed.
static tsr_value *zero_of(struct part *part, tsr_dtype type)
{
    static const int64_t one[1] = {1}, zero[1] = {0};
    struct str name = tsr__part_fresh(part);
    if (!name.p)
        return NULL;
    return tsr_graph_add_initializer(part->graph, name.p, type, 1, one, zero,
                                     (size_t)tsr_dtype_bits(type) / 8);
}

// x, chosen by an element of what the communication before it gave: where the absolute value of that element is below 0,
// which it never is, 0 would stand. Nothing without elements is put in front of x, as com.microsoft has it: a builder that
// knows all sizes may leave such a thing out, and the order with it.
static tsr_value *behind(struct part *part, tsr_value *x, tsr_dtype type,
                         const struct dialect_comm *before)
{
    static const int64_t all[1] = {-1};
    const struct str any = {0};
    tsr_value *one = tsr__part_node(part, "Reshape", any, 2, tsr_node_output(before->node, 0),
                                    tsr__part_ints(part, all, 1));
    if (!one)
        return NULL;
    one = tsr__part_slice(part, one, 0, 0, 1, any);
    one = tsr__part_cast(part, one, TSR_FLOAT, any); // of whole numbers the least has no opposite
    one = tsr__part_node(part, "Abs", any, 1, one);
    tsr_value *never = tsr__part_node(part, "Less", any, 2, one, zero_of(part, TSR_FLOAT));
    return tsr__part_node(part, "Where", any, 3, never, zero_of(part, type), x);
}

// ---- nodes -------------------------------------------------------------------------------------

// Which of the eight a node is, and how it combines.
struct operation {
    const char *name;    // collective_operation
    const char *combine; // reduce_op
};

// In the order of the enumeration.
static struct operation folding(const char *name, const struct step *st)
{
    static const char *const combine[] = {[COMBINE_SUM] = "sum",
                                          [COMBINE_MAX] = "max",
                                          [COMBINE_MIN] = "min",
                                          [COMBINE_PROD] = "prod"};
    return (struct operation){name, combine[st->flow->combine]};
}

static struct operation moving(const char *name)
{
    return (struct operation){name, "none"};
}

// All ranks in order: they need not be listed.
static bool everybody(const struct draft *draft, const struct device_group *group)
{
    for (size_t i = 0; i < group->n; i++)
        if (group->devices[i] != (int64_t)i)
            return false;
    return (int64_t)group->n == draft->n_ranks;
}

// root and groups are ranks of the one communicator that all ranks share; group_size is the length of groups, which is 0
// where all take part.
static tsr_status set_attributes(const struct draft *draft, const struct dialect_call *call,
                                 struct operation operation, tsr_node *node)
{
    size_t listed = 0;
    if (!everybody(draft, call->group))
        listed = call->group->n;
    tsr_status st = tsr_node_set_string(node, "collective_operation", operation.name);
    if (st != TSR_OK)
        return st;
    st = tsr_node_set_string(node, "reduce_op", operation.combine);
    if (st != TSR_OK)
        return st;
    st = tsr_node_set_int(node, "root", call->root);
    if (st != TSR_OK)
        return st;
    st = tsr_node_set_int(node, "nb_rank", (int64_t)call->group->n);
    if (st != TSR_OK)
        return st;
    st = tsr_node_set_int(node, "group_size", (int64_t)listed);
    if (st != TSR_OK)
        return st;
    return tsr_node_set_ints(node, "groups", call->group->devices, listed);
}

static tsr_value *collective(struct part *part, const struct dialect_call *call,
                             struct operation operation, tsr_value *x, struct str out)
{
    const struct item *it = call->step->outputs[0]->item;
    struct dialect_comm gives = {.item = it, .dtype = travels_as(it->dtype), .rank = it->rank};
    if (gives.rank == 0)
        gives.rank = 1;
    tsr_node *node = tsr__dialect_node(part, call, "DistCollective", x, gives, out);
    if (!node || set_attributes(part->draft, call, operation, node) != TSR_OK)
        return NULL;
    return tsr_node_output(node, 0);
}

// ---- parts of unlike sizes ---------------------------------------------------------------------

static int64_t largest_part(const struct dialect_call *call)
{
    int64_t largest = 0;
    for (size_t i = 0; i < call->group->n; i++) {
        int64_t size =
            tsr__size_on(call->step->inputs[0], call->step->axis, call->group->devices[i]);
        if (size > largest)
            largest = size;
    }
    return largest;
}

// With so many elements behind those that the rank has along each axis.
static tsr_value *filled_up(struct part *part, const struct dialect_call *call, tsr_value *x,
                            const int64_t *more)
{
    int64_t pads[2 * TILE_MAX_RANK] = {0}, sum = 0;
    int rank = call->step->inputs[0]->item->rank;
    for (int axis = 0; axis < rank; axis++) {
        pads[rank + axis] = more[axis];
        sum += more[axis];
    }
    if (sum == 0)
        return x;
    return tsr__part_node(part, "Pad", (struct str){0}, 2, x,
                          tsr__part_ints(part, pads, 2 * (int64_t)rank));
}

// One after the other along axis 0 lie parts that were filled up: each loses what it was filled with, and they are joined
// along the axis.
static tsr_value *joined(struct part *part, const struct dialect_call *call, tsr_value *x,
                         int64_t largest, struct str out)
{
    struct draft *draft = part->draft;
    size_t n = call->group->n;
    int axis = call->step->axis;
    tsr_value **parts = ARENA_ARRAY(draft->arena, tsr_value *, n);
    if (!x || !parts)
        return NULL;
    tsr_node *split = tsr__part_split(part, x, n, 0);
    if (!split)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        int64_t size = tsr__size_on(call->step->inputs[0], axis, call->group->devices[i]);
        parts[i] = tsr_node_output(split, i);
        if (size < largest)
            parts[i] = tsr__part_slice(part, parts[i], axis, 0, size, (struct str){0});
        if (!parts[i])
            return NULL;
    }
    return tsr__part_joined(part, parts, n, axis, out);
}

// ---- the collectives ---------------------------------------------------------------------------

static tsr_value *gather(struct part *part, const struct dialect_call *call, tsr_value *x,
                         struct str out)
{
    const struct operation operation = moving("all_gather");
    const struct step *st = call->step;
    const struct str any = {0};
    if (!tsr__group_even(call->group, st->inputs[0], st->axis)) {
        int64_t more[TILE_MAX_RANK] = {0}, largest = largest_part(call);
        more[st->axis] = largest - tsr__size_on(st->inputs[0], st->axis, part->rank);
        x = filled_up(part, call, x, more);
        return joined(part, call, collective(part, call, operation, x, any), largest, out);
    }
    if (st->axis == 0)
        return collective(part, call, operation, x, out);
    x = collective(part, call, operation, x, any);
    return tsr__part_turned(part, x, call->group->n, 0, st->axis, out);
}

// Parts of unlike sizes are cut from the whole result.
static tsr_value *reduce_scatter(struct part *part, const struct dialect_call *call, tsr_value *x,
                                 struct str out)
{
    const struct step *st = call->step;
    const struct str any = {0};
    if (!tsr__group_even(call->group, st->outputs[0], st->axis)) {
        x = collective(part, call, folding("all_reduce", st), x, any);
        return tsr__part_own(part, call, st->axis, x, out);
    }
    if (st->axis != 0)
        x = tsr__part_turned(part, x, call->group->n, st->axis, 0, any);
    return collective(part, call, folding("reduce_scatter", st), x, out);
}

// Parts of unlike sizes: all get everything, and each keeps what it wants.
static tsr_value *all_to_all(struct part *part, const struct dialect_call *call, tsr_value *x,
                             struct str out)
{
    const struct step *st = call->step;
    const struct str any = {0};
    if (!tsr__group_even(call->group, st->inputs[0], st->axis) ||
        !tsr__group_even(call->group, st->outputs[0], st->split_axis)) {
        x = gather(part, call, x, any);
        return tsr__part_own(part, call, st->split_axis, x, out);
    }
    if (st->split_axis != 0)
        x = tsr__part_turned(part, x, call->group->n, st->split_axis, 0, any);
    if (st->axis == 0)
        return collective(part, call, moving("all_to_all"), x, out);
    x = collective(part, call, moving("all_to_all"), x, any);
    return tsr__part_turned(part, x, call->group->n, 0, st->axis, out);
}

// What is none of the eight: all get everything, and each keeps what it wants. A member that has nothing gives zeros.
static tsr_value *reshard(struct part *part, const struct dialect_call *call, tsr_value *x,
                          struct str out)
{
    const struct form *from = call->step->inputs[0];
    int64_t box[TILE_MAX_RANK] = {0}, more[TILE_MAX_RANK] = {0};
    tsr__reshard_box(call->step, box);
    if (tsr__layout_has_device(from->layout, part->rank)) {
        for (int axis = 0; axis < from->item->rank; axis++)
            more[axis] = box[axis] - tsr__size_on(from, axis, part->rank);
        x = filled_up(part, call, x, more);
    } else {
        x = tsr__part_node(part, "Expand", (struct str){0}, 2,
                           zero_of(part, travels_as(from->item->dtype)),
                           tsr__part_ints(part, box, from->item->rank));
    }
    x = collective(part, call, moving("all_gather"), x, (struct str){0});
    return tsr__part_resharded(part, call, x, box, out);
}

// A message is a broadcast among two.
static tsr_value *emit_kind(struct part *part, const struct dialect_call *call, tsr_value *x,
                            struct str out)
{
    switch (call->step->kind) {
    case COMM_ALL_GATHER:
        return gather(part, call, x, out);
    case COMM_REDUCE_SCATTER:
        return reduce_scatter(part, call, x, out);
    case COMM_ALL_TO_ALL:
        return all_to_all(part, call, x, out);
    case COMM_RESHARD:
        return reshard(part, call, x, out);
    case COMM_REDUCE:
        return collective(part, call, folding("reduce", call->step), x, out);
    case COMM_ALL_REDUCE:
        return collective(part, call, folding("all_reduce", call->step), x, out);
    default:
        return collective(part, call, moving("broadcast"), x, out);
    }
}

// What a member gives that gets something: a tensor of its sizes, since the operator gives what it takes.
static tsr_value *stand_in(struct part *part, const struct dialect_call *call, tsr_dtype type)
{
    static const int64_t one[1] = {1};
    const struct form *to = call->step->outputs[0];
    tsr_value *sizes;
    if (to->item->rank == 0)
        sizes = tsr__part_ints(part, one, 1);
    else
        sizes = tsr__part_local_sizes(part, to->item, to->layout);
    return tsr__part_node(part, "Expand", (struct str){0}, 2, zero_of(part, type), sizes);
}

// What the member gives, in the type in which it travels, with at least one dimension.
static tsr_value *given(struct part *part, const struct dialect_call *call, tsr_value *x)
{
    static const int64_t one[1] = {1};
    const struct item *it = call->step->outputs[0]->item;
    tsr_dtype type = travels_as(it->dtype);
    bool from_one = call->step->kind == COMM_BROADCAST || call->step->kind == COMM_SEND;
    if (from_one && call->root != part->rank)
        return stand_in(part, call, type);
    if (x && type != it->dtype)
        x = tsr__part_cast(part, x, type, (struct str){0});
    if (it->rank != 0 || !x)
        return x;
    return tsr__part_node(part, "Reshape", (struct str){0}, 2, x, tsr__part_ints(part, one, 1));
}

// Truths travel as whole numbers and single numbers as vectors; they are made again behind it.
static tsr_value *emit(struct part *part, const struct dialect_call *call, tsr_value *x,
                       struct str out)
{
    const struct item *it = call->step->outputs[0]->item;
    struct row_names names = {.last = out, .left = 1};
    bool cast = travels_as(it->dtype) != it->dtype;
    if (cast)
        names.left++;
    if (it->rank == 0)
        names.left++;
    x = emit_kind(part, call, given(part, call, x), next_name(&names));
    if (it->rank == 0)
        x = tsr__part_node(part, "Reshape", next_name(&names), 2, x, tsr__part_ints(part, NULL, 0));
    if (cast && x)
        x = tsr__part_cast(part, x, it->dtype, next_name(&names));
    return x;
}

const struct dialect tsr__dialect_tensorrt = {"tensorrt", "", why_not, why_loose, behind, emit};
