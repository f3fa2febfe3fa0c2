// SPDX-License-Identifier: Apache-2.0
// emit_guard.c - writes nodes whose kernel cannot run on empty tensors, on ranks whose shard may be
// empty. Example: the batch is sharded in 2 and is 1 at run time. The first device has an empty
// shard, and an empty GroupQueryAttention crashes the process (rules/empty.c).
//
// Such a node is put into an If. The other branch runs the node on small placeholder inputs and
// returns an empty tensor, or the neutral element if the node reduces.
//
//     Example: Attention of x [batch 6 8] on rank 0 of 2:
//         some = Cast(Gather(Shape(x), 0), bool)
//         y = If(some) { Attention(x) }
//             else { ConstantOfShape(sizes of Attention(zeros [1 6 8]), with 0 for the batch) }
//
// No guard is needed if the size is a number, because a node is never sharded into more parts than
// it has elements. The last shard needs none either: if there are any elements, it has one.
#include "internal.h"

#include <math.h>

#define SLICE_COMPUTED    10 // first opset whose Slice has computed bounds
#define CONSTANT_OF_SHAPE 9

// A factor of which this rank may have no elements ("open" below), and an input dimension that
// shows its local size at run time.
struct open_factor {
    int factor, input, axis;
};
struct guard {
    struct part *part;
    struct step *st;
    struct open_factor open[RULE_MAX_FACTORS];
    int n_open;
    bool reduces; // one of the open factors is reduced
    // By input of the node: the original value, if a copy replaced it; else NULL.
    tsr_value **own;
    tsr_node *if_node; // the If
    tsr_graph *outer;
};

// ---- which nodes need a guard -------------------------------------------------------------------

static bool dim_has(const struct rule_dim *dim, int factor)
{
    for (int i = 0; i < dim->n; i++)
        if (dim->factors[i] == factor)
            return true;
    return false;
}

// Returns how many of the open factors (those that may be empty on this rank) output i has. Reduced
// factors count for every output.
static int count_open(const struct guard *guard, size_t i)
{
    const struct rule *rule = guard->st->flow->place.rule;
    const struct rule_tensor *tensor = &rule->outputs[i];
    int n = 0;
    for (int k = 0; k < guard->n_open; k++) {
        bool has = rule->factors[guard->open[k].factor].kind == FACTOR_RED;
        for (int axis = 0; axis < tensor->rank; axis++)
            has |= dim_has(&tensor->dims[axis], guard->open[k].factor);
        n += has;
    }
    return n;
}

// True if every result has all open factors, so that it is empty, or a reduction of no elements, on
// an empty shard.
static bool all_results_empty(const struct guard *guard)
{
    for (size_t i = 0; i < guard->st->n_outputs; i++)
        if (guard->st->outputs[i] && count_open(guard, i) < guard->n_open)
            return false;
    return true;
}

// True if a result has some of the open factors, but not all. The result for the placeholders is
// then sliced.
static bool needs_slice(const struct guard *guard)
{
    for (size_t i = 0; i < guard->st->n_outputs; i++) {
        int open = guard->st->outputs[i] ? count_open(guard, i) : 0;
        if (open > 0 && open < guard->n_open)
            return true;
    }
    return false;
}

// Returns the local tensor of input i, or NULL if there is none or the input is replaced.
static tsr_value *local_input(const struct guard *guard, size_t i)
{
    const struct step *st = guard->st;
    if (i >= st->n_node_inputs || !st->inputs[i] ||
        tsr__input_replaced(guard->part->draft, st->flow, guard->part->rank, (int)i))
        return NULL;
    return form_root(st->inputs[i])->local[guard->part->rank];
}

// Adds the factor to the open ones, with an input dimension that contains the factor. Returns false
// if there is no such input.
static bool find_input(struct guard *guard, int factor)
{
    const struct rule *rule = guard->st->flow->place.rule;
    for (int i = 0; i < rule->n_inputs; i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        if (tensor->host || tensor->absent || !local_input(guard, (size_t)i))
            continue;
        for (int axis = 0; axis < tensor->rank; axis++)
            if (dim_has(&tensor->dims[axis], factor)) {
                guard->open[guard->n_open++] = (struct open_factor){factor, i, axis};
                return true;
            }
    }
    return false;
}

// True if the rank's part of the factor may be empty: the size is unknown, and it is not the last
// part.
static bool may_be_empty(const struct node_flow *nf, int64_t rank, int factor)
{
    const struct placement *place = &nf->place;
    if (place->cuts[factor] < 2 || place->rule->factors[factor].size.value >= 0)
        return false;
    int64_t at = tsr__place_index(place, rank);
    return at >= 0 &&
           place->coords[at * place->rule->n_factors + factor] != place->cuts[factor] - 1;
}

// True if the branch for empty shards can be written. All inputs and outputs must be tensors of
// known types. A reduction by minimum or maximum needs floats, because its neutral element is an
// infinity. If an open factor is reduced, every result must have all open factors. Slicing a result
// needs an opset in which Slice has computed bounds.
static bool can_replace(const struct guard *guard)
{
    const struct step *st = guard->st;
    enum combine combine = st->flow->combine;
    for (size_t i = 0; i < st->n_node_inputs; i++)
        if (st->inputs[i] && st->inputs[i]->item->dtype == TSR_UNDEFINED)
            return false;
    for (size_t i = 0; i < st->n_outputs; i++) {
        const struct form *form = st->outputs[i];
        if (!form)
            continue;
        bool extreme = guard->reduces && (combine == COMBINE_MAX || combine == COMBINE_MIN);
        bool floats = form->item->dtype == TSR_FLOAT || form->item->dtype == TSR_DOUBLE ||
                      form->item->dtype == TSR_FLOAT16;
        if (form->item->list || form->item->dtype == TSR_UNDEFINED || (extreme && !floats))
            return false;
    }
    if (needs_slice(guard) && guard->part->draft->opset < SLICE_COMPUTED)
        return false;
    return !guard->reduces || all_results_empty(guard);
}

// Finds the open factors: those that may be empty, although the kernel needs elements. Returns
// false if the node needs no guard, or if none can be written.
static bool find_open(struct guard *guard)
{
    const struct node_flow *nf = guard->st->flow;
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return false;
    for (int factor = 0; factor < rule->n_factors; factor++) {
        if (!may_be_empty(nf, guard->part->rank, factor) ||
            !tsr__rule_wants_some(nf->node, rule, guard->part->draft->flow->shapes, factor,
                                  tsr__part_on_cuda(guard->part)))
            continue;
        guard->reduces |= rule->factors[factor].kind == FACTOR_RED;
        if (!find_input(guard, factor))
            return false;
    }
    return guard->n_open > 0 && can_replace(guard);
}

// ---- sizes -------------------------------------------------------------------------------------

// Adds nodes that return the size of the input dimension that belongs to an open factor, as
// int64[1].
static tsr_value *local_size(struct guard *guard, const struct open_factor *open)
{
    int64_t axis = open->axis;
    tsr_value *x = local_input(guard, (size_t)open->input);
    tsr_dtype type = guard->st->inputs[open->input]->item->dtype;
    tsr_value *sizes = tsr__part_sizes(guard->part, x, type, NEW_NAME);
    return NODE(guard->part, "Gather", sizes, tsr__part_number(guard->part, axis));
}

// Adds nodes that return a bool: true if the rank has elements of all open factors.
static tsr_value *has_elements(struct guard *guard)
{
    tsr_value *product = local_size(guard, &guard->open[0]);
    for (int i = 1; i < guard->n_open; i++)
        product = NODE(guard->part, "Mul", product, local_size(guard, &guard->open[i]));
    return tsr__part_cast(guard->part, product, TSR_BOOL, NEW_NAME);
}

// Returns a float32 constant with `rank` dimensions of size 1.
static tsr_value *number_of_rank(struct part *part, float value, int rank)
{
    int64_t ones[RULE_MAX_RANK];
    for (int axis = 0; axis < rank; axis++)
        ones[axis] = 1;
    return tsr__part_constant(part, part->graph, TSR_FLOAT, rank, ones, &value);
}

// Adds nodes that return a tensor of these sizes and this type, filled with one value.
static tsr_value *filled(struct part *part, tsr_value *sizes, int rank, tsr_dtype type, float value)
{
    tsr_value *full;
    if (part->draft->opset < CONSTANT_OF_SHAPE) {
        full = NODE(part, "Tile", number_of_rank(part, value, rank), sizes);
    } else {
        full = NODE(part, "ConstantOfShape", sizes);
        if (value != 0)
            full = NODE(part, "Add", full, number_of_rank(part, value, 0));
    }
    return !full || type == TSR_FLOAT ? full : tsr__part_cast(part, full, type, NEW_NAME);
}

// Returns the neutral element of the reduction.
static float neutral(enum combine combine)
{
    switch (combine) {
    case COMBINE_PROD:
        return 1;
    case COMBINE_MAX:
        return -INFINITY;
    case COMBINE_MIN:
        return INFINITY;
    case COMBINE_SUM:
        break;
    }
    return 0;
}

// ---- placeholder inputs -------------------------------------------------------------------------

// Returns the size of the rank's part of a factor, or 1 if the size is unknown.
static int64_t share_of(const struct guard *guard, int factor)
{
    const struct node_flow *nf = guard->st->flow;
    if (nf->place.rule->factors[factor].size.value < 0)
        return 1;
    struct tile_interval part = tsr__part_range(guard->part, nf, factor);
    return part.stop - part.start;
}

static int64_t least_of(const struct guard *guard, const struct rule_dim *dim)
{
    int64_t least = 1;
    for (int k = 0; k < dim->n; k++)
        least *= share_of(guard, dim->factors[k]);
    return least;
}

// Returns a constant with the smallest non-empty size of each dimension that has an open factor,
// and 0 for other dimensions. *any is set if there is one. Example: with 2 groups, the channels (g
// i) of a Conv have size 2 for i = 1.
static tsr_value *least_sizes(struct guard *guard, const struct rule_tensor *tensor, bool *any)
{
    int64_t least[RULE_MAX_RANK] = {0};
    *any = false;
    for (int axis = 0; axis < tensor->rank; axis++)
        for (int i = 0; i < guard->n_open; i++)
            if (dim_has(&tensor->dims[axis], guard->open[i].factor)) {
                least[axis] = least_of(guard, &tensor->dims[axis]);
                *any = true;
            }
    return tsr__part_ints(guard->part, least, tensor->rank);
}

// Returns the placeholder for input i: `zeros`, unless the kernel does not accept zeros there. Then
// each element is the number in another input, minus one.
static tsr_value *accepted_value(struct guard *guard, int i, tsr_value *zeros)
{
    int like = tsr__rule_substitute(guard->st->flow->node, i);
    if (like < 0)
        return zeros;
    tsr_value *number = local_input(guard, (size_t)like);
    if (!number)
        return zeros;
    tsr_dtype type = guard->st->inputs[i]->item->dtype;
    tsr_value *one = tsr__part_number(guard->part, 1);
    one = tsr__part_cast(guard->part, one, type, NEW_NAME);
    tsr_value *raised = NODE(guard->part, "Add", zeros, number);
    return NODE(guard->part, "Sub", raised, one);
}

// Sets *out to the placeholder for input i; NULL: the input has no open factor and needs none.
// Example: zeros of shape [1 6 8] for [0 6 8].
static tsr_status make_placeholder(struct guard *guard, int i, tsr_value **out)
{
    const struct rule_tensor *tensor = &guard->st->flow->place.rule->inputs[i];
    tsr_value *x = local_input(guard, (size_t)i);
    bool any = false;
    *out = NULL;
    if (!x || tensor->host || tensor->absent || tensor->rank == 0)
        return TSR_OK;
    tsr_value *least = least_sizes(guard, tensor, &any);
    if (!any)
        return TSR_OK;
    tsr_dtype type = guard->st->inputs[i]->item->dtype;
    tsr_value *sizes = tsr__part_sizes(guard->part, x, type, NEW_NAME);
    sizes = tsr__part_largest(guard->part, sizes, least);
    *out = accepted_value(guard, i, filled(guard->part, sizes, tensor->rank, type, 0));
    return status_of_alloc(*out);
}

// Adds nodes that return the number by which the size of dimension `axis` of the placeholder result
// is multiplied: 0 if the dimension is empty on this rank, else 1.
static tsr_value *size_multiplier(struct guard *guard, const struct rule_tensor *tensor, int axis)
{
    tsr_value *share = tsr__part_number(guard->part, 1);
    for (int i = 0; i < guard->n_open; i++) {
        if (!dim_has(&tensor->dims[axis], guard->open[i].factor))
            continue;
        tsr_value *here = local_size(guard, &guard->open[i]);
        here = tsr__part_smallest(guard->part, here, tsr__part_number(guard->part, 1));
        share = NODE(guard->part, "Mul", share, here);
    }
    return share;
}

// Adds nodes that return the sizes of `made`, with 0 for dimensions that are empty on this rank.
static tsr_value *local_result_sizes(struct guard *guard, const struct rule_tensor *tensor,
                                     tsr_value *made, tsr_dtype type)
{
    struct part *part = guard->part;
    tsr_value *shares[RULE_MAX_RANK];
    tsr_value *sizes = tsr__part_sizes(part, made, type, NEW_NAME);
    if (tensor->rank == 0)
        return sizes;
    for (int axis = 0; axis < tensor->rank; axis++)
        shares[axis] = size_multiplier(guard, tensor, axis);
    tsr_value *all = tsr__part_concat(part, shares, (size_t)tensor->rank, 0, NEW_NAME);
    return NODE(part, "Mul", sizes, all);
}

// Returns output i for an empty shard, given the placeholder result `made`. If the output has no
// open factor, this is `made`. If it has all, it is an empty tensor, or one of neutral elements.
// Otherwise it is a slice of `made`.
static tsr_value *local_result(struct guard *guard, size_t i, tsr_value *made)
{
    const struct step *st = guard->st;
    tsr_dtype type = st->outputs[i]->item->dtype;
    const struct rule_tensor *tensor = &st->flow->place.rule->outputs[i];
    int open = count_open(guard, i);
    if (open == 0)
        return made;
    tsr_value *sizes = local_result_sizes(guard, tensor, made, type);
    if (!sizes)
        return NULL;
    if (open == guard->n_open)
        return filled(guard->part, sizes, tensor->rank, type, neutral(st->flow->combine));
    int64_t starts[RULE_MAX_RANK] = {0};
    return NODE(guard->part, "Slice", made, tsr__part_ints(guard->part, starts, tensor->rank),
                sizes);
}

// Replaces inputs with open factors by placeholders. `own` gets the original inputs.
static tsr_status use_placeholders(struct guard *guard, tsr_value **own)
{
    struct step *st = guard->st;
    const struct rule *rule = st->flow->place.rule;
    tsr_value **made = ARENA_ARRAY(guard->part->draft->arena, tsr_value *, st->n_node_inputs + 1);
    if (!made)
        return TSR_NOMEM;
    for (int i = 0; i < rule->n_inputs; i++)
        TRY(make_placeholder(guard, i, &made[i]));
    for (int i = 0; i < rule->n_inputs; i++) {
        if (!made[i])
            continue;
        tsr_value **local = &form_root(st->inputs[i])->local[guard->part->rank];
        own[i] = *local;
        *local = made[i];
    }
    return TSR_OK;
}

// Undoes the replacement of inputs; `own` has the original values.
static void restore_inputs(const struct guard *guard, tsr_value *const *own)
{
    const struct step *st = guard->st;
    for (size_t i = st->n_node_inputs; i > 0; i--) // backwards, because one value may be two inputs
        if (own[i - 1])
            form_root(st->inputs[i - 1])->local[guard->part->rank] = own[i - 1];
}

// Adds the node with new output names, because names in a branch must differ from those outside.
// Its results are temporarily the local values of the step's outputs.
static tsr_status add_guarded_node(struct guard *guard)
{
    struct step *st = guard->st;
    struct str *names = ARENA_ARRAY(guard->part->draft->arena, struct str, st->n_outputs + 1);
    if (!names)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            names[i] = tsr__part_new_name(guard->part);
    return tsr__emit_plain(guard->part, st, names);
}

static tsr_status add_output(struct guard *guard, size_t i, bool empty)
{
    struct form *form = guard->st->outputs[i];
    tsr_value *value = form->local[guard->part->rank];
    if (empty)
        value = local_result(guard, i, value);
    if (!value)
        return TSR_NOMEM;
    TRY(tsr_graph_add_output(guard->part->graph, value));
    TRY(tsr__part_rank_known(guard->part, value, form));
    return empty ? TSR_OK : tsr__part_simulated(guard->part, value, form);
}

// Adds a branch of the If with the node. With `empty`, it is the branch for an empty shard: the
// node runs on placeholders, and local_result converts its results.
static tsr_status add_branch(struct guard *guard, const char *name, bool empty)
{
    struct step *st = guard->st;
    tsr_value **own = ARENA_ARRAY(guard->part->draft->arena, tsr_value *, st->n_node_inputs + 1);
    guard->part->graph = tsr__node_add_graph(guard->if_node, name, name);
    if (!own || !guard->part->graph)
        return TSR_NOMEM;
    if (empty)
        TRY(use_placeholders(guard, own));
    tsr_status status = add_guarded_node(guard);
    restore_inputs(guard, own);
    for (size_t i = 0; i < st->n_outputs && status == TSR_OK; i++)
        if (st->outputs[i])
            status = add_output(guard, i, empty);
    return status;
}

// ---- the If -------------------------------------------------------------------------------------

// Makes the branches read copies of the node's inputs, because engines mishandle some outer values
// that a branch reads. Example: ONNX Runtime moves a QuantizeLinear back through a Transpose to the
// value before both, although a branch reads that value (quirk quantize_moved_through_transpose).
// restore_inputs undoes this for other readers.
static tsr_status shield_inputs(struct guard *guard)
{
    const struct step *st = guard->st;
    guard->own = ARENA_ARRAY(guard->part->draft->arena, tsr_value *, st->n_node_inputs + 1);
    if (!guard->own)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_node_inputs; i++) {
        tsr_value *x = local_input(guard, i);
        if (!x || st->inputs[i]->layout->rank == 0)
            continue;
        guard->own[i] = x;
        if (tsr__value_is_quantized(st->inputs[i]->item->value))
            x = tsr__part_barrier(guard->part, x);
        else
            x = tsr__part_shielded(guard->part, x);
        if (!x)
            return TSR_NOMEM;
        form_root(st->inputs[i])->local[guard->part->rank] = x;
    }
    return TSR_OK;
}

static tsr_status add_if(struct guard *guard)
{
    struct step *st = guard->st;
    const char **names = ARENA_ARRAY(guard->part->draft->arena, const char *, st->n_outputs + 1);
    tsr_value *some = has_elements(guard);
    size_t n = 0;
    if (!names || !some)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            names[n++] = tsr__form_name(guard->part, st->outputs[i]).p;
    guard->if_node = tsr_graph_add_node(guard->part->graph, "", "If", tsr_node_name(st->flow->node),
                                        &some, 1, names, n);
    return status_of_alloc(guard->if_node);
}

static tsr_status build_if(struct guard *guard)
{
    TRY(shield_inputs(guard));
    TRY(add_if(guard));
    TRY(add_branch(guard, "then_branch", false));
    return add_branch(guard, "else_branch", true);
}

tsr_status tsr__emit_guarded(struct part *part, struct step *st, bool *guarded)
{
    struct guard guard = {.part = part, .st = st, .outer = part->graph};
    *guarded = find_open(&guard);
    if (!*guarded)
        return TSR_OK;
    tsr_status status = build_if(&guard);
    part->graph = guard.outer;
    if (status != TSR_OK)
        return status;
    restore_inputs(&guard, guard.own);
    size_t n = 0;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[part->rank] = tsr_node_output(guard.if_node, n++);
    TRY(tsr__part_keep_declared(part, st));
    // after the nodes for sizes that its branches read
    return tsr_node_move_before(guard.if_node, NULL);
}
