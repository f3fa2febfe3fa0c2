// SPDX-License-Identifier: Apache-2.0
// emit_node.c - writes the node of one rank: a copy of the model's node, changed by its rule.
//
// Inputs are rewritten before the node is copied, attributes afterwards. If another node must
// finish the result (the mask of a lookup, a trim), the copy's output gets a new name and the
// finishing node's output the real name. Examples:
//
//     Reshape(x, [8,6]) on rank 1, result sharded {2,1}: input 1 becomes [4,6]   rewrite_inputs
//     MultiHeadAttention with num_heads = 8, heads sharded in 2: num_heads = 4   rewrite_attributes
//     Conv with pads = {1,1}, width sharded in 2:
//         pads = {1,0} on rank 0, {0,1} on rank 1                           rewrite_list_attributes
//     Sum(x, b) of a partial sum x, on rank 1: Identity(x); rank 0 adds b             sum_parts
#include "internal.h"

// The node of one rank while it is being built.
struct local_copy {
    struct part *part;
    struct step *step;
    const struct node_flow *flow;
    const struct rule *rule; // NULL: the operator has no rule, so nothing is rewritten
    int64_t place;           // index of the rank in the placement; -1 if it is not in it
    tsr_value **inputs;      // first the local inputs, then the rewritten ones
    size_t n_inputs;
    struct str *outputs; // names of the outputs
    size_t n_outputs;
    tsr_node *node; // NULL until it is created
};

// ---- lists of numbers --------------------------------------------------------------------------

static bool lists_apply(const struct local_copy *copy)
{
    return copy->rule && copy->place >= 0 && tsr__lists_apply(copy->flow);
}

// Returns the numbers of a list of the rule (pads, split sizes) for this rank, or NULL if out of
// memory.
static int64_t *list_numbers(const struct local_copy *copy, const struct rule_list *list)
{
    int64_t *numbers = NULL;
    struct arena *arena = copy->part->draft->arena;
    if (tsr__window_numbers(arena, copy->flow, copy->place, list, &numbers) != TSR_OK)
        return NULL;
    return numbers;
}

// Replaces inputs that are lists of numbers by the lists for this rank. Example: starts and ends of
// a Slice.
static tsr_status rewrite_lists(struct local_copy *copy)
{
    if (!lists_apply(copy))
        return TSR_OK;
    for (int i = 0; i < copy->rule->n_lists; i++) {
        const struct rule_list *list = &copy->rule->lists[i];
        if (list->input < 0)
            continue;
        const int64_t *numbers = list_numbers(copy, list);
        if (!numbers)
            return TSR_NOMEM;
        copy->inputs[list->input] = tsr__part_ints(copy->part, numbers, list->n);
        if (!copy->inputs[list->input])
            return TSR_NOMEM;
        if (copy->n_inputs <= (size_t)list->input)
            copy->n_inputs = (size_t)list->input + 1;
    }
    return TSR_OK;
}

// Replaces the axes of a reduction by non-negative ones (tsr__reduction_axes), if they are an
// input.
static tsr_status rewrite_axes_input(const struct local_copy *copy)
{
    int64_t axes[RULE_MAX_RANK];
    const char *name = NULL;
    int n = tsr__reduction_axes(copy->part->draft, copy->flow, &name, axes);
    if (n == 0 || name)
        return TSR_OK;
    copy->inputs[1] = tsr__part_ints(copy->part, axes, n);
    return status_of_alloc(copy->inputs[1]);
}

// Sets an attribute that is a list of numbers to the list for this rank. If the rule's list is
// empty, removes the attribute. Example: ceil_mode, because explicit pads replace it.
static tsr_status rewrite_list_attribute(const struct local_copy *copy,
                                         const struct rule_list *list)
{
    if (list->n) {
        const int64_t *numbers = list_numbers(copy, list);
        if (!numbers)
            return TSR_NOMEM;
        return tsr_node_set_ints(copy->node, list->name, numbers, (size_t)list->n);
    }
    if (tsr_node_find_attr(copy->node, list->name))
        return tsr_node_remove_attr(copy->node, list->name);
    return TSR_OK;
}

static tsr_status rewrite_list_attributes(const struct local_copy *copy)
{
    if (!lists_apply(copy))
        return TSR_OK;
    for (int i = 0; i < copy->rule->n_lists; i++) {
        if (copy->rule->lists[i].input >= 0)
            continue;
        TRY(rewrite_list_attribute(copy, &copy->rule->lists[i]));
    }
    return TSR_OK;
}

// ---- inputs ------------------------------------------------------------------------------------

static struct tile_units part_of(const struct local_copy *copy, int factor)
{
    return placement_units(&copy->flow->place, copy->place, factor);
}

// Replaces start and limit of a Range by those of the rank's part. A Range has m = max(limit -
// start, 0) numbers. If the rank has units a to b - 1 of n units, its part begins at number a * m /
// n and ends before number b * m / n, both rounded down.
static tsr_status rewrite_range(struct local_copy *copy, const struct rule_rewrite *rewrite)
{
    struct part *part = copy->part;
    tsr_value **start = &copy->inputs[rewrite->input], **limit = start + 1, *bounds[2];
    if (copy->place < 0 || copy->flow->place.cuts[rewrite->factor] < 2)
        return TSR_OK;
    struct tile_units units = part_of(copy, rewrite->factor);
    int64_t ends[2] = {units.first, units.stop};
    tsr_value *parts = tsr__part_number(part, units.of);
    tsr_value *count = NODE(part, "Sub", *limit, *start);
    count = tsr__part_largest(part, count, tsr__part_number(part, 0));
    for (int i = 0; i < 2; i++) {
        tsr_value *end = tsr__part_number(part, ends[i]);
        tsr_value *x = NODE(part, "Mul", count, end);
        x = NODE(part, "Div", x, parts);
        x = NODE(part, "Add", *start, x);
        bounds[i] = NODE(part, "Reshape", x, tsr__part_empty(part, TSR_INT64));
    }
    *start = bounds[0];
    *limit = bounds[1];
    return *start && *limit ? TSR_OK : TSR_NOMEM;
}

static tsr_status rewrite_shape(struct local_copy *copy, const struct rule_rewrite *rewrite)
{
    struct draft *draft = copy->part->draft;
    struct shape_input shape;
    if (!tsr__shape_input_of(draft, copy->flow, rewrite, &shape))
        return draft_status(draft);
    shape.windows = copy->step->made;
    tsr_value **host = &copy->inputs[rewrite->input];
    *host = tsr__part_local_shape(copy->part, &shape, *host, copy->inputs[0]);
    return status_of_alloc(*host);
}

// Leaves out an input that another rank adds.
static tsr_status rewrite_once(struct local_copy *copy, const struct rule_rewrite *rewrite)
{
    if (tsr__input_is_skipped(copy->flow, copy->part->rank, rewrite->input))
        copy->inputs[rewrite->input] = NULL;
    return TSR_OK;
}

// Rewrites inputs that describe the full tensor. Examples: Reshape to [8,6] with result {2,1} gets
// [4,6]; a bias that another rank adds is left out; the bounds of a Range become those of the
// shard. Other kinds add nodes around the local node (emit_lookup.c, emit_route.c, emit_causal.c)
// or replace it (emit_shape.c).
static tsr_status rewrite_inputs(struct local_copy *copy)
{
    static tsr_status (*const emit[])(struct local_copy *, const struct rule_rewrite *) = {
        [REWRITE_SHAPE] = rewrite_shape,
        [REWRITE_ADD_ONCE] = rewrite_once,
        [REWRITE_RANGE] = rewrite_range,
    };
    if (!copy->rule)
        return TSR_OK;
    for (int i = 0; i < copy->rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &copy->rule->rewrites[i];
        if (rewrite->input < 0 || (size_t)rewrite->input >= copy->step->n_node_inputs)
            continue;
        if (rewrite->kind < TSR_COUNT(emit) && emit[rewrite->kind])
            TRY(emit[rewrite->kind](copy, rewrite));
    }
    return TSR_OK;
}

// Copies inputs that the kernel overwrites (quirk written_statistics), because they belong to the
// caller and may be shared by ranks. The copy is a Max or Min of one tensor, because ONNX Runtime
// removes Identity. Adjacent inputs get different operators, because equal nodes are merged.
static tsr_status copy_written(struct local_copy *copy)
{
    for (size_t i = 0; i < copy->step->n_node_inputs; i++) {
        if (!copy->inputs[i] || !tsr__node_writes(copy->flow->node, i))
            continue;
        const char *copies = i % 2 ? "Max" : "Min";
        copy->inputs[i] = NODE(copy->part, copies, copy->inputs[i]);
        if (!copy->inputs[i])
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Inserts copies before a node that ONNX Runtime would merge or move (tsr__node_copies). Each copy
// reads the one before, because equal nodes are merged, too.
static tsr_status copy_input(struct local_copy *copy)
{
    for (size_t n = tsr__node_copies(copy->flow->node); n > 0; n--) {
        copy->inputs[0] = tsr__part_barrier(copy->part, copy->inputs[0]);
        if (!copy->inputs[0])
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Returns bits of the axes for which the engine infers another size of the result than its kernel
// returns (quirk misread_windows). If such an axis is sharded, the local node has other attributes,
// which it reads right.
static unsigned misread_axes(const struct local_copy *copy)
{
    const struct step *st = copy->step;
    unsigned axes = 0;
    if (lists_apply(copy) || copy->part->draft->opset < 9) // Compress needs opset 9
        return 0;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            axes |=
                tsr__shapes_misread(copy->part->draft->flow->shapes, st->outputs[i]->item->value);
    return axes;
}

// Hides sizes of input 0 from the engine if it would infer wrong sizes from them, which it believes
// when it folds constants and plans memory. Unknown sizes need not be hidden.
static tsr_status hide_sizes(struct local_copy *copy)
{
    struct part *part = copy->part;
    tsr_dim dims[TILE_MAX_RANK];
    unsigned axes = misread_axes(copy);
    if (!axes || !tsr__part_dims_here(part, copy->step->inputs[0], dims))
        return TSR_OK;
    for (int axis = 0; axis < copy->step->inputs[0]->item->rank; axis++) {
        if (!(axes >> axis & 1) || dims[axis].value < 1)
            continue;
        copy->inputs[0] = tsr__part_concealed(part, copy->inputs[0], axis, dims[axis].value);
        if (!copy->inputs[0])
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Declares the sizes of the results that hide_sizes keeps from being inferred.
static tsr_status declare_sizes(const struct local_copy *copy)
{
    const struct step *st = copy->step;
    if (!misread_axes(copy))
        return TSR_OK;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            TRY(tsr__part_sizes_known(copy->part, tsr_node_output(copy->node, i), st->outputs[i]));
    return TSR_OK;
}

// ---- attributes --------------------------------------------------------------------------------

// Returns the local value of a number that counts elements of the factor: the value divided by the
// size of the factor, times its local size.
static int64_t local_count(const struct rule_factor *factor, const struct local_size *part,
                           int64_t whole)
{
    if (factor->size.value > 0 && whole % factor->size.value == 0)
        return whole / factor->size.value * tsr__local_size_of(part, factor->size.value);
    return tsr__local_size_of(part, whole);
}

#define MAX_COUNTS 8

// Sets an attribute, a number or a short list that counts elements of the factor, to its local
// value.
static tsr_status rewrite_counts(tsr_node *node, const tsr_attr *attr, const char *name,
                                 const struct rule_factor *factor, const struct local_size *part)
{
    const int64_t *whole;
    int64_t local[MAX_COUNTS];
    size_t n = tsr_attr_ints(attr, &whole);
    if (n > MAX_COUNTS)
        return TSR_BUG; // no operator has that many
    if (!n)
        return tsr_node_set_int(node, name, local_count(factor, part, tsr_attr_int(attr, 0)));
    for (size_t i = 0; i < n; i++)
        local[i] = local_count(factor, part, whole[i]);
    return tsr_node_set_ints(node, name, local, n);
}

// Returns word number `at` of a text; empty if there are fewer. Words are separated by one space.
static struct str word_at(struct str words, int64_t at)
{
    while (at > 0 && words.n) {
        at -= words.p[0] == ' ';
        words = (struct str){words.p + 1, words.n - 1};
    }
    size_t n = 0;
    while (n < words.n && words.p[n] != ' ')
        n++;
    return (struct str){words.p, n};
}

// An attribute that depends on a sharded factor, and the rank's part of the factor.
struct local_attr {
    const struct local_copy *copy;
    const struct rule_rewrite *rewrite;
    tsr_attr *attr;
    struct local_size part;
};

// Returns the elements of the factor that the rank has.
static struct tile_interval elements_of(const struct local_attr *local)
{
    int64_t size = local->copy->rule->factors[local->rewrite->factor].size.value;
    const struct tile_units *units = &local->part.part;
    return (struct tile_interval){tsr__tile_start(size, units->of, units->first),
                                  tsr__tile_start(size, units->of, units->stop)};
}

// Keeps the entries of the rank's part, in a list with entries for each element of the factor.
static tsr_status rewrite_share(const struct local_attr *local)
{
    struct tile_interval own = elements_of(local);
    int64_t size = local->copy->rule->factors[local->rewrite->factor].size.value;
    int64_t each = tsr__attr_length(local->attr) / size;
    return tsr__attr_keep(local->attr, own.start * each, own.stop * each);
}

// Sets the word of the only element that the rank has. Example: a recurrent layer has the
// directions "forward" and "reverse"; the second of two devices gets "reverse".
static tsr_status rewrite_word(const struct local_attr *local)
{
    const struct local_copy *copy = local->copy;
    struct tile_interval own = elements_of(local);
    if (own.stop - own.start != 1)
        return TSR_OK;
    struct str word = word_at(str_of(local->rewrite->word.words), own.start);
    struct str text = tsr__arena_str(copy->part->draft->arena, word);
    if (!text.p)
        return TSR_NOMEM;
    return tsr_node_set_string(copy->node, local->rewrite->attribute, text.p);
}

// Sets the local size of the factor. Example: num_heads = 8 becomes 4 if the heads are sharded in
// 2.
static tsr_status rewrite_size(const struct local_attr *local)
{
    const struct local_copy *copy = local->copy;
    const struct step *st = copy->step;
    const char *name = local->rewrite->attribute;
    int factor = local->rewrite->factor;
    if (st->made && st->made_factor == factor)
        return tsr_node_set_int(copy->node, name, tsr__windows_size(st->made, copy->part->rank));
    return rewrite_counts(copy->node, local->attr, name, &copy->rule->factors[factor],
                          &local->part);
}

// Sets allowzero. Example: [1 3 4] is reshaped to [0 -1] and sharded in two. The first device
// reshapes an empty shard to [0 12]. Its Reshape needs allowzero = 1, so that 0 is a size.
static tsr_status rewrite_zeros(const struct local_copy *copy, const struct rule_rewrite *rewrite)
{
    struct draft *draft = copy->part->draft;
    struct shape_input shape;
    if (!tsr__shape_input_of(draft, copy->flow, rewrite, &shape))
        return draft_status(draft);
    if (!tsr__shape_input_is_sizes(draft, &shape))
        return TSR_OK;
    return tsr_node_set_int(copy->node, rewrite->attribute, 1);
}

// Replaces the attribute of a rewrite, if the node has it and the factor is sharded.
static tsr_status rewrite_attribute(const struct local_copy *copy,
                                    const struct rule_rewrite *rewrite)
{
    static tsr_status (*const emit[])(const struct local_attr *) = {
        [REWRITE_ATTR] = rewrite_size,
        [REWRITE_WORD] = rewrite_word,
        [REWRITE_SHARE] = rewrite_share,
    };
    if (rewrite->kind == REWRITE_SHAPE)
        return rewrite_zeros(copy, rewrite);
    tsr_attr *attr = tsr_node_find_attr(copy->node, rewrite->attribute);
    if (!attr || copy->flow->place.cuts[rewrite->factor] < 2)
        return TSR_OK;
    return emit[rewrite->kind](
        &(struct local_attr){copy, rewrite, attr, {1, 1, part_of(copy, rewrite->factor)}});
}

// Replaces attributes that depend on sharded factors.
static tsr_status rewrite_attributes(const struct local_copy *copy)
{
    if (!copy->rule || copy->place < 0)
        return TSR_OK;
    for (int i = 0; i < copy->rule->n_rewrites; i++)
        if (copy->rule->rewrites[i].attribute)
            TRY(rewrite_attribute(copy, &copy->rule->rewrites[i]));
    return TSR_OK;
}

// Replaces the axes of a reduction by non-negative ones (tsr__reduction_axes), if they are an
// attribute.
static tsr_status rewrite_axes_attribute(const struct local_copy *copy)
{
    int64_t axes[RULE_MAX_RANK];
    const char *name = NULL;
    int n = tsr__reduction_axes(copy->part->draft, copy->flow, &name, axes);
    if (n == 0 || !name)
        return TSR_OK;
    if (tsr_attr_kind_of(tsr_node_find_attr(copy->node, name)) == TSR_ATTR_INT)
        return tsr_node_set_int(copy->node, name, axes[0]);
    return tsr_node_set_ints(copy->node, name, axes, (size_t)n);
}

// ---- the copy ----------------------------------------------------------------------------------

struct captured {
    const struct step *step;
    tsr_value **list;
    int64_t rank;
};

// Callback of tsr__node_copy_deep: returns the rank's tensor of an outer value that a subgraph
// reads. NULL: the step has no such input.
static tsr_value *find_captured(void *data, tsr_value *outer)
{
    const struct captured *captured = data;
    for (size_t i = captured->step->n_node_inputs; i < captured->step->n_inputs; i++)
        if (captured->list[i - captured->step->n_node_inputs] == outer && captured->step->inputs[i])
            return form_root(captured->step->inputs[i])->local[captured->rank];
    return NULL;
}

// Declares the ranks of a node's inputs, because engines reject a Scan of a value of unknown rank
// (quirk scan_without_rank). Example: the result of an operator that ONNX defines by a function.
static tsr_status ranks_for_bodies(struct part *part, const struct step *st)
{
    for (size_t i = 0; i < st->n_node_inputs; i++) {
        struct form *form = st->inputs[i];
        if (!form || form->item->list || form->item->rank < 0)
            continue;
        tsr_value *local = local_of(part, form);
        if (!local || tsr_value_rank(local) >= 0 || !tsr_value_producer(local))
            continue;
        TRY(tsr__part_rank_known(part, local, form));
    }
    return TSR_OK;
}

// True if the model has an empty name for this input.
static bool written_empty(const tsr_node *node, size_t input)
{
    return input < tsr_node_input_count(node) && !tsr_node_input(node, input);
}

// Copies the node with n_inputs inputs. Drops trailing inputs that only this rank lacks. Trailing
// inputs that the model leaves out are kept as empty names: ONNX Runtime rejects a Loop(3, "")
// without its second input (quirk loop_of_one_input).
//
// Removes unused nodes from copied bodies, as from the main graph. The plan does not count them,
// but the engine would run them.
static tsr_node *copy_node(const struct local_copy *copy, size_t n_inputs)
{
    struct step *st = copy->step;
    const tsr_node *node = st->flow->node;
    tsr_graph *graph = copy->part->graph;
    while (n_inputs && !copy->inputs[n_inputs - 1] && !written_empty(node, n_inputs - 1))
        n_inputs--;
    if (!tsr__node_has_graphs(node))
        return tsr__node_copy(graph, node, copy->inputs, n_inputs, copy->outputs, copy->n_outputs);
    if (ranks_for_bodies(copy->part, st) != TSR_OK)
        return NULL;
    struct captured captured = {.step = st, .rank = copy->part->rank};
    tsr__node_captures(node, &captured.list);
    tsr_node *made = tsr__node_copy_deep(graph, node, copy->inputs, n_inputs, copy->outputs,
                                         st->n_outputs, find_captured, &captured);
    const struct shapes *shapes = copy->part->draft->flow->shapes;
    if (!made || tsr__control_declare(shapes, node, made) != TSR_OK)
        return NULL;
    return tsr__node_remove_unused(made) == TSR_OK ? made : NULL;
}

static tsr_node *add_identity(const struct local_copy *copy)
{
    tsr_value *same = NAMED_NODE(copy->part, "Identity", copy->outputs[0], copy->inputs[0]);
    return same ? tsr_value_producer(same) : NULL;
}

// Copies a node that adds partial sums, without the inputs that only another device adds. If only
// one of several inputs is left, adds an Identity instead. Returns NULL if out of memory.
static tsr_node *sum_parts(const struct local_copy *copy)
{
    size_t n = 0, all = copy->step->n_node_inputs;
    for (size_t i = 0; i < all; i++)
        if (!tsr__input_is_skipped(copy->flow, copy->part->rank, (int)i))
            copy->inputs[n++] = copy->inputs[i];
    if (n > 1 || n == all)
        return copy_node(copy, n);
    return add_identity(copy);
}

// True for an OptionalGetElement that reads a tensor: it returns its input. ONNX Runtime refuses
// some of these nodes on CUDA (quirk optional_over_its_input).
static bool passes_tensor(const struct local_copy *copy)
{
    const struct step *st = copy->step;
    return tsr__node_opens_optional(st->flow->node) && copy->n_inputs == 1 && copy->inputs[0] &&
           st->inputs[0] && !st->inputs[0]->item->list;
}

static tsr_status make_node(struct local_copy *copy)
{
    struct step *st = copy->step;
    if (!copy->part->draft->visitor) {
        tsr_status loaded = tsr__node_load_constants(st->flow->node);
        if (loaded != TSR_OK)
            return loaded;
    }
    if (passes_tensor(copy))
        copy->node = add_identity(copy);
    else
        copy->node = copy->flow->pending ? sum_parts(copy) : copy_node(copy, copy->n_inputs);
    if (!copy->node)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[copy->part->rank] = tsr_node_output(copy->node, i);
    TRY(declare_sizes(copy));
    TRY(rewrite_list_attributes(copy));
    TRY(rewrite_attributes(copy));
    return rewrite_axes_attribute(copy);
}

// Sets the inputs of the local node. For a lookup or update of sharded rows, *here is the mask of
// local indices (emit_lookup.c), else NULL.
static tsr_status make_inputs(struct local_copy *copy, tsr_value **here)
{
    const struct step *st = copy->step;
    copy->n_inputs = st->n_node_inputs;
    copy->inputs = ARENA_ARRAY(copy->part->draft->arena, tsr_value *, copy->n_inputs + MORE_INPUTS);
    if (!copy->inputs)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_node_inputs; i++)
        if (st->inputs[i])
            copy->inputs[i] = form_root(st->inputs[i])->local[copy->part->rank];
    TRY(rewrite_inputs(copy));
    TRY(copy_written(copy));
    TRY(copy_input(copy));
    TRY(hide_sizes(copy));
    TRY(rewrite_lists(copy));
    TRY(rewrite_axes_input(copy));
    return tsr__lookup_begin(copy->part, st, copy->inputs, here);
}

// Adds a Where that reads input 0 and the result, and always selects the result. So the kernel
// cannot reuse the memory of input 0 for the result (quirk moe_over_its_input). Needs opset 9.
static tsr_status keep_first_input(const struct local_copy *copy, struct str name)
{
    static const unsigned char no = 0;
    struct part *part = copy->part;
    tsr_value *never = tsr__part_scalar(part, TSR_BOOL, &no);
    tsr_value *kept =
        NAMED_NODE(part, "Where", name, never, copy->inputs[0], tsr_node_output(copy->node, 0));
    copy->step->outputs[0]->local[part->rank] = kept;
    return status_of_alloc(kept);
}

// Sets the attributes of the local mixture of experts, and adds the nodes after it
// (tsr__route_end).
static tsr_status end_route(const struct local_copy *copy, const struct route *route,
                            struct str name)
{
    struct step *st = copy->step;
    int64_t rank = copy->part->rank;
    TRY(tsr__route_attributes(route, copy->node));
    if (tsr__node_rereads(st->flow->node))
        TRY(keep_first_input(copy, tsr__part_new_name(copy->part)));
    return tsr__route_end(copy->part, st, route, st->outputs[0]->local[rank], name);
}

tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs)
{
    struct local_copy copy = {.part = part,
                              .step = st,
                              .flow = st->flow,
                              .rule = st->flow->place.rule,
                              .place = tsr__place_index(&st->flow->place, part->rank),
                              .outputs = outputs,
                              .n_outputs = st->n_outputs};
    tsr_value *here = NULL;
    TRY(make_inputs(&copy, &here));
    TRY(tsr__causal_begin(part, st, copy.inputs, &copy.n_inputs));
    struct route route;
    TRY(tsr__route_begin(part, st, copy.inputs, &route));
    struct str name = outputs[0], with_cache[3] = {outputs[0]};
    if (tsr__is_causal_shard(st->flow)) {
        with_cache[1] = tsr__part_new_name(part);
        with_cache[2] = tsr__part_new_name(part);
        copy.outputs = with_cache;
        copy.n_outputs = TSR_COUNT(with_cache);
    }
    bool trims = tsr__trims(st->flow);
    bool rereads = tsr__node_rereads(st->flow->node) && part->draft->opset >= 9;
    if (here || trims || rereads || route.tokens)
        outputs[0] = tsr__part_new_name(part);
    TRY(make_node(&copy));
    if (route.tokens)
        return end_route(&copy, &route, name);
    if (trims)
        return tsr__emit_trim(part, st, tsr_node_output(copy.node, 0), name);
    if (rereads)
        return keep_first_input(&copy, name);
    return here ? tsr__lookup_end(part, st, here, tsr_node_output(copy.node, 0), name) : TSR_OK;
}
