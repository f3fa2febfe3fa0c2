// SPDX-License-Identifier: Apache-2.0
// rule.c - makes the rule of one node: matches the pattern of its row with its shapes (fit.c), and
// replaces letters by factors.
//
// MatMul, "[B~ m k],[B~ k n] -> [B* m n]; red k:sum", of [2 3 4 5] and [5 6]:
//
//   factors   B0 = 2, B1 = 3, m = 4, k = 5, n = 6
//   rule      [B0 B1 m k],[k n] -> [B0 B1 m n]; k is reduced, the others pass through
//
// If the second input were [7 6], the node would not be sharded, and `whole` would be the reason.
#include "rules/derive/derive.h"
#include "rules/fit.h"

// ---- tensors, rewrites and windows --------------------------------------------------------------

// Visitor: stores the factors of a dimension; `data` is the list of the tensor's dimensions. The
// factors are copied, because they are valid only during the visit.
static bool map_dim(const struct fit_dim *dim)
{
    struct rule_dim *dims = dim->data;
    int *copy = ARENA_ARRAY(dim->fit->arena, int, (size_t)dim->n + 1);
    if (!copy)
        return false;
    memcpy(copy, dim->factors, (size_t)dim->n * sizeof(int));
    dims[dim->axis] =
        (struct rule_dim){.factors = copy, .n = dim->n, .window = dim->pattern->window};
    bool longer = dim->n != 1 || dim->fit->factors[copy[0]].size.value != 1;
    if (dim->pattern->broadcast && tsr__fit_here(dim).value == 1 && longer)
        dims[dim->axis] = (struct rule_dim){.broadcast = true}; // all devices read this one element
    return true;
}

// Makes tensor i of one side. Its rank stays FIT_UNKNOWN if neither its shape nor the pattern gives
// it.
static bool make_tensor(struct fit *fit, enum side side, int i, struct rule_tensor *tensor)
{
    const struct pattern_tensor *pattern = tsr__fit_pattern(fit, side, i);
    if (!value_at(fit->node, side, (size_t)i)) {
        tensor->absent = true;
        return true;
    }
    tensor->host = pattern->host;
    tensor->rank = tsr__fit_shape(fit, side, i).rank;
    // The dimensions of a control input do not matter, because it is not sharded.
    if (tensor->rank == FIT_UNKNOWN && tensor->host)
        tensor->rank = 0;
    if (tensor->rank == FIT_UNKNOWN)
        tensor->rank = tsr__fit_rank(fit, side, i);
    if (tensor->rank == FIT_UNKNOWN)
        return true;
    struct rule_dim *dims = ARENA_ARRAY(fit->arena, struct rule_dim, (size_t)tensor->rank + 1);
    tensor->dims = dims;
    return dims && (tensor->host || tsr__fit_each(fit, side, i, tensor->rank, map_dim, dims));
}

// Makes all tensors of one side; NULL: the pattern does not fit, or out of memory.
static const struct rule_tensor *make_side(struct fit *fit, enum side side)
{
    int count = (int)side_count(fit->node, side);
    struct rule_tensor *tensors = ARENA_ARRAY(fit->arena, struct rule_tensor, (size_t)count + 1);
    if (!tensors)
        return NULL;
    for (int i = 0; i < count; i++) {
        if (!make_tensor(fit, side, i, &tensors[i]))
            return NULL;
        if (tensors[i].rank < 0) { // a pack that no input has
            tsr__fit_refuse(fit,
                            "the number of dimensions of an output is unknown: declare its shape");
            return NULL;
        }
    }
    return tensors;
}

// Copies a text of the pattern into the rule's arena. NULL for NULL.
static const char *copy_text(struct fit *fit, const char *text)
{
    return text ? tsr__arena_str(fit->arena, str_of(text)).p : NULL;
}

// Copies the rewrites of the pattern, except those of absent inputs.
static bool make_rewrites(struct fit *fit, struct rule *rule)
{
    struct rule_rewrite *rewrites =
        ARENA_ARRAY(fit->arena, struct rule_rewrite, (size_t)fit->pattern->n_rewrites + 1);
    if (!rewrites)
        return false;
    for (int i = 0; i < fit->pattern->n_rewrites; i++) {
        struct rule_rewrite rewrite = fit->pattern->rewrites[i];
        if (rewrite.input >= 0 && !tsr_node_input(fit->node, (size_t)rewrite.input))
            continue;
        rewrite.attribute = copy_text(fit, rewrite.attribute);
        if (rewrite.kind == REWRITE_WORD)
            rewrite.word.words = copy_text(fit, rewrite.word.words);
        if (rewrite.factor >= 0)
            rewrite.factor = fit->base[rewrite.factor];
        rewrites[rule->n_rewrites++] = rewrite;
    }
    rule->rewrites = rewrites;
    return true;
}

// Copies the patched lists to the rule's arena, because the rule outlives the pattern. Patches of
// the copy refer to factors instead of letters.
static const struct rule_list *copy_lists(struct fit *fit)
{
    struct rule_list *list =
        ARENA_ARRAY(fit->arena, struct rule_list, (size_t)fit->pattern->n_lists + 1);
    if (!list)
        return NULL;
    for (int i = 0; i < fit->pattern->n_lists; i++) {
        const struct rule_list *from = &fit->pattern->lists[i];
        int64_t *values = ARENA_ARRAY(fit->arena, int64_t, (size_t)from->n + 1);
        struct rule_patch *patches =
            ARENA_ARRAY(fit->arena, struct rule_patch, (size_t)from->n_patches + 1);
        if (!values || !patches)
            return NULL;
        if (from->n)
            memcpy(values, from->values, (size_t)from->n * sizeof(*values));
        if (from->n_patches)
            memcpy(patches, from->patches, (size_t)from->n_patches * sizeof(*patches));
        for (int k = 0; k < from->n_patches; k++)
            if (patches[k].factor >= 0)
                patches[k].factor = fit->base[patches[k].factor];
        list[i] = *from;
        list[i].name = copy_text(fit, from->name);
        list[i].values = values;
        list[i].patches = patches;
    }
    return list;
}

// Copies windows, the lists that they patch, and trims. Derive functions have computed their
// numbers from the sizes of this node.
static bool make_windows(struct fit *fit, struct rule *rule)
{
    struct rule_window *window =
        ARENA_ARRAY(fit->arena, struct rule_window, (size_t)fit->pattern->n_windows + 1);
    if (!window)
        return false;
    for (int i = 0; i < fit->pattern->n_windows; i++) {
        window[i] = fit->pattern->windows[i];
        window[i].factor = fit->base[window[i].factor];
    }
    rule->windows = window;
    rule->n_windows = fit->pattern->n_windows;
    rule->lists = copy_lists(fit);
    rule->n_lists = fit->pattern->n_lists;
    struct rule_trim *trim =
        ARENA_ARRAY(fit->arena, struct rule_trim, (size_t)fit->pattern->n_trims + 1);
    if (trim && fit->pattern->n_trims)
        memcpy(trim, fit->pattern->trims, (size_t)fit->pattern->n_trims * sizeof(*trim));
    rule->trims = trim;
    rule->n_trims = fit->pattern->n_trims;
    return trim && rule->lists;
}

// Copies the factors, with the row's reason for each that is not sharded.
static bool make_factors(struct fit *fit, const struct op_row *row, struct rule *rule)
{
    struct rule_factor *factors =
        ARENA_ARRAY(fit->arena, struct rule_factor, (size_t)fit->n_factors + 1);
    if (!factors)
        return false;
    memcpy(factors, fit->factors, (size_t)fit->n_factors * sizeof(*factors));
    for (int i = 0; i < fit->n_factors; i++)
        if (factors[i].kind == FACTOR_REP && factors[i].name)
            factors[i].why = tsr__row_stays(row, str_of(factors[i].name));
    rule->factors = factors;
    rule->n_factors = fit->n_factors;
    return true;
}

// Builds the rule. False: the pattern does not fit the node, or out of memory.
static bool build_rule(struct fit *fit, const struct op_row *row, struct rule *rule)
{
    if (!tsr__fit(fit))
        return false;
    rule->inputs = make_side(fit, SIDE_IN);
    if (!rule->inputs)
        return false;
    rule->n_inputs = (int)tsr_node_input_count(fit->node);
    rule->outputs = make_side(fit, SIDE_OUT);
    if (!rule->outputs)
        return false;
    rule->n_outputs = (int)tsr_node_output_count(fit->node);
    return make_rewrites(fit, rule) && make_windows(fit, rule) && make_factors(fit, row, rule);
}

// ---- nodes that are not sharded -----------------------------------------------------------------

// Makes a rule without tensors, for a node that is not sharded for the reason `why`. If the node
// draws random numbers without a seed, only one device may run it (`single`). node NULL: the nodes
// in its bodies decide that.
static const struct rule *unsharded_rule(struct arena *arena, const tsr_node *node, const char *why)
{
    struct rule *rule = ARENA_NEW(arena, struct rule);
    if (rule)
        *rule = (struct rule){.whole = why, .single = node && tsr__node_draws(node)};
    return rule;
}

// True if a size is known to be 0. empty.c handles sizes that become 0 in a run.
static bool is_empty(const struct shapes *shapes, const tsr_value *value)
{
    struct shape shape = tsr__shapes_of(shapes, value);
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i].value == 0)
            return true;
    return false;
}

// True if no output has an element.
static bool outputs_are_empty(const struct shapes *shapes, const tsr_node *node)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = value_at(node, SIDE_OUT, i);
        if (value && !is_empty(shapes, value))
            return false;
        n += value != NULL;
    }
    return n > 0;
}

// ---- the rule of a node ------------------------------------------------------------------------

// True if the operator has an expansion, for the opset and the element type of the node.
static bool can_expand(const struct derivation *derivation, const struct op_row *row)
{
    tsr_dtype t = tsr__derive_in(derivation, 0).dtype;
    bool is_number = t == TSR_INT32 || t == TSR_INT64;
    bool fits = row->expand.types == EXPAND_ANY || tsr__is_float(t) ||
                (is_number && row->expand.types == EXPAND_NUMBERS);
    return row->expand.build && fits && tsr__onnx_opset(derivation->node) >= row->expand.opset;
}

// Makes the rule of a node from a pattern. NULL: out of memory.
static const struct rule *instantiate(struct arena *arena, struct arena *scratch,
                                      struct derivation *derivation, const struct op_row *row)
{
    struct rule *rule = ARENA_NEW(arena, struct rule);
    struct fit *fit = ARENA_NEW(scratch, struct fit);
    const struct pattern *pattern = tsr__derivation_rule(derivation);
    if (!rule || !fit || scratch->failed)
        return NULL;
    if (!pattern)
        return unsharded_rule(arena, derivation->node, "the rule of this node could not be built");
    fit->arena = arena;
    fit->node = derivation->node;
    fit->shapes = derivation->shapes;
    fit->pattern = pattern;
    fit->derivation = derivation;
    fit->expands = can_expand(derivation, row);
    // If this fails, the unfinished `rule` stays in the arena.
    if (build_rule(fit, row, rule))
        return rule;
    return arena->failed ? NULL : unsharded_rule(arena, derivation->node, fit->whole);
}

// Makes the rule of a node with the derive function `derive`; NULL: from the row's text.
static const struct rule *derived(struct arena *arena, const tsr_node *node,
                                  const struct shapes *shapes, const struct op_row *row,
                                  derive_fn derive)
{
    // The derivation is large and not needed afterwards, so it is not in the caller's arena.
    struct arena scratch = {.session = arena->session};
    struct derivation derivation; // large: not cleared
    tsr__derivation_start(&derivation, &scratch, node, shapes, row->rule);
    if (derive)
        derive(&derivation);
    const struct rule *rule = derivation.whole ? unsharded_rule(arena, node, derivation.whole)
                                               : instantiate(arena, &scratch, &derivation, row);
    tsr__arena_free(&scratch);
    return rule;
}

const struct rule *tsr__rule_strided(struct arena *arena, const tsr_node *node,
                                     const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    if (!row || !row->other)
        return NULL;
    const struct rule *rule = derived(arena, node, shapes, row, row->other);
    return !rule || rule->whole ? NULL : rule;
}

// Makes the rule of a node. Checks in this order: control flow (bodies are sharded, not the node),
// other nodes with bodies, calls of functions without a row, unknown operators, rows that are not
// sharded, and the row's rule.
const struct rule *tsr__rule_of_any_size(struct arena *arena, const tsr_node *node,
                                         const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of(shapes, node);
    struct control control;
    static const char unsharded_bodies[] = "none of the nodes in its bodies is sharded",
                      unsharded_graphs[] = "the nodes in its subgraphs are not sharded",
                      unknown_operator[] = "there is no rule for this operator (of this opset): "
                                           "give all its tensors shardings, or a rule (--rules)";
    // No node is given, because random nodes in the bodies decide on their own which devices run
    // them.
    if (tsr__control_of(node, &control))
        return unsharded_rule(arena, NULL, unsharded_bodies);
    if (tsr__node_has_graphs(node) || (row && row->bodies))
        return unsharded_rule(arena, node, unsharded_graphs);
    const char *why = NULL;
    if (!row && tsr__is_call(node, &why)) {
        if (!why)
            why = "function calls are nested too deeply";
        return unsharded_rule(arena, node, why);
    }
    if (!row) {
        struct rule *rule = ARENA_NEW(arena, struct rule);
        if (rule)
            *rule = (struct rule){.whole = unknown_operator, .open = true};
        return rule;
    }
    if (row->whole)
        return unsharded_rule(arena, node, row->whole);
    return derived(arena, node, shapes, row, row->derive);
}

const struct rule *tsr__rule_of(struct arena *arena, const tsr_node *node,
                                const struct shapes *shapes)
{
    const struct rule *rule = tsr__rule_of_any_size(arena, node, shapes);
    if (!rule || rule->whole || !outputs_are_empty(shapes, node))
        return rule;
    struct rule *unsharded = ARENA_NEW(arena, struct rule);
    if (unsharded)
        *unsharded = (struct rule){.whole = "its results have no elements", .empty = true};
    return unsharded;
}

// ---- what cannot be moved ----------------------------------------------------------------------

// Returns why values of this type cannot be sliced or sent; NULL: they can. Strings are sent as
// lengths and characters.
static const char *type_immovable(tsr_dtype type)
{
    if (type == TSR_UNDEFINED)
        return "the element type of one of its values is unknown; declare it in value_info";
    if (type == TSR_FLOAT8E8M0) // ONNX Runtime 1.31 does not pass it to custom operators
        return "ONNX Runtime does not pass float8e8m0 to custom operators, so the values cannot be "
               "transferred";
    if (type != TSR_STRING && tsr_dtype_bits(type) < 8)
        return "elements of less than a byte are not moved between devices";
    return NULL;
}

const char *tsr__rule_immovable(const struct shapes *shapes, const tsr_node *node)
{
    for (enum side side = SIDE_IN; side <= SIDE_OUT; side++)
        for (size_t i = 0; i < side_count(node, side); i++) {
            const tsr_value *value = value_at(node, side, i);
            if (!value || (side == SIDE_IN && tsr__value_constant_tensor(value)))
                continue;
            const char *why = type_immovable(tsr__shapes_element(shapes, value).dtype);
            if (why)
                return why;
        }
    return NULL;
}
