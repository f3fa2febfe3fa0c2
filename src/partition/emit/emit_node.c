// SPDX-License-Identifier: Apache-2.0
// emit_node.c - a node on one rank: a copy of the model's node with what its rule says about the local one.
#include "internal.h"

// Numbers that the local node has in place of its own.
static tsr_status rewrite_lists(struct part *part, const struct node_flow *nf, tsr_value **inputs,
                                size_t *n_inputs)
{
    const struct rule *rule = nf->place.rule;
    int64_t at = tsr__place_index(&nf->place, part->rank), *numbers;
    if (at < 0 || !rule || !tsr__lists_apply(nf))
        return TSR_OK;
    for (int i = 0; i < rule->n_lists; i++) {
        const struct rule_list *list = &rule->lists[i];
        if (list->input < 0)
            continue;
        tsr_status st = tsr__window_numbers(part->plan->arena, nf, at, list, &numbers);
        if (st != TSR_OK)
            return st;
        inputs[list->input] = tsr__part_ints(part, numbers, list->n);
        if (!inputs[list->input])
            return TSR_NOMEM;
        *n_inputs = *n_inputs > (size_t)list->input ? *n_inputs : (size_t)list->input + 1;
    }
    return TSR_OK;
}

// Attributes that hold lists of numbers, such as pads: of {1,1}, rank 0 of 2 gets {1,0}. An attribute whose list
// the rule leaves empty is removed, such as ceil_mode: the numbers say what it said.
static tsr_status rewrite_list_attributes(struct part *part, const struct node_flow *nf,
                                          tsr_node *copy)
{
    const struct rule *rule = nf->place.rule;
    int64_t at = tsr__place_index(&nf->place, part->rank), *numbers;
    if (at < 0 || !rule || !tsr__lists_apply(nf))
        return TSR_OK;
    for (int i = 0; i < rule->n_lists; i++) {
        const struct rule_list *list = &rule->lists[i];
        tsr_status st = TSR_OK;
        if (list->input >= 0)
            continue;
        if (list->n)
            st = tsr__window_numbers(part->plan->arena, nf, at, list, &numbers);
        if (st != TSR_OK)
            return st;
        if (list->n)
            st = tsr_node_set_ints(copy, list->name, numbers, (size_t)list->n);
        else if (tsr_node_find_attr(copy, list->name))
            st = tsr_node_remove_attr(copy, list->name);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Part j of n of the n' = max(limit - start, 0) numbers from start on: from floor(j n' / n) to floor((j + 1) n' / n).
static tsr_status rewrite_range(struct part *t, const struct node_flow *nf,
                                const struct rule_rewrite *rewrite, tsr_value **inputs)
{
    const struct str any = {0};
    const struct rule *rule = nf->place.rule;
    int64_t at = tsr__place_index(&nf->place, t->rank), n = nf->place.cuts[rewrite->factor],
            zero = 0;
    if (at < 0 || n < 2)
        return TSR_OK;
    tsr_value *start = inputs[rewrite->index], *parts = tsr__part_ints(t, &n, 1), *bounds[2];
    tsr_value *count = tsr__part_node(t, "Sub", any, 2, inputs[rewrite->index + 1], start);
    count = tsr__part_largest(t, any, count, tsr__part_ints(t, &zero, 1));
    for (int i = 0; i < 2; i++) {
        int64_t part = nf->place.coords[at * rule->n_factors + rewrite->factor] + i;
        tsr_value *x = tsr__part_node(t, "Mul", any, 2, count, tsr__part_ints(t, &part, 1));
        x = tsr__part_node(t, "Div", any, 2, x, parts);
        x = tsr__part_node(t, "Add", any, 2, start, x);
        bounds[i] = tsr__part_node(t, "Reshape", any, 2, x, tsr__part_empty(t, TSR_INT64));
    }
    inputs[rewrite->index] = bounds[0];
    inputs[rewrite->index + 1] = bounds[1];
    return bounds[0] && bounds[1] ? TSR_OK : TSR_NOMEM;
}

// Inputs whose value says something about the whole tensor. A Reshape to [8,6] whose result is {2,1} gets [4,6]; a
// bias that another rank adds to a sum in parts is left out; the bounds of a Range become those of the rank's part.
static tsr_status rewrite_inputs(struct part *part, const struct step *st, tsr_value **inputs)
{
    const struct node_flow *nf = st->flow;
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return TSR_OK;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        if (rewrite->index < 0 || (size_t)rewrite->index >= st->n_node_inputs)
            continue;
        if (rewrite->kind == REWRITE_RANGE && rewrite_range(part, nf, rewrite, inputs) != TSR_OK)
            return TSR_NOMEM;
        if (rewrite->kind == REWRITE_ADD_ONCE &&
            tsr__adds_elsewhere(nf, part->rank, rewrite->index))
            inputs[rewrite->index] = NULL;
        struct told_shape told;
        if (rewrite->kind != REWRITE_SHAPE || !tsr__told_shape(part->plan, nf, rewrite, &told))
            continue;
        tsr_value **host = &inputs[rewrite->index];
        *host = tsr__part_local_shape(part, &told, *host, inputs[0]);
        if (!*host)
            return TSR_NOMEM;
    }
    return part->plan->arena->failed ? TSR_NOMEM : TSR_OK;
}

// A number that counts a factor counts the local part of it: whole / size * local. For an attribute that
// counts several factors, the rule has one rewrite for each.
static int64_t local_count(const struct rule_factor *factor, const struct local_size *part,
                           int64_t whole)
{
    if (factor->size.value > 0 && whole % factor->size.value == 0)
        return whole / factor->size.value * tsr__local_size_of(part, factor->size.value);
    return tsr__local_size_of(part, whole);
}

#define MAX_COUNTS 8

static tsr_status rewrite_attribute(tsr_node *copy, const tsr_attr *attr, const char *name,
                                    const struct rule_factor *factor, const struct local_size *part)
{
    const int64_t *whole;
    int64_t local[MAX_COUNTS];
    size_t n = tsr_attr_ints(attr, &whole);
    if (n > MAX_COUNTS)
        return TSR_BUG; // no operator counts a factor so often
    if (!n)
        return tsr_node_set_int(copy, name, local_count(factor, part, tsr_attr_int(attr, 0)));
    for (size_t i = 0; i < n; i++)
        local[i] = local_count(factor, part, whole[i]);
    return tsr_node_set_ints(copy, name, local, n);
}

// Word number `at` of those that one space separates; none: there are not so many.
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

// Texts and lists that say something of each element of a factor say it of the local ones: of the directions "forward"
// and "reverse" of a recurrent layer, the second of two devices has the second, and its activations.
static tsr_status rewrite_named(const struct part *t, const struct rule_rewrite *rewrite,
                                tsr_node *copy, tsr_attr *attr, int64_t size,
                                const struct local_size *part)
{
    int64_t start = tsr__tile_start(size, part->parts, part->part);
    int64_t stop = tsr__tile_start(size, part->parts, part->part + 1);
    if (rewrite->kind == REWRITE_SHARE) {
        int64_t each = tsr__attr_length(attr) / size;
        return tsr__attr_keep(attr, start * each, stop * each);
    }
    if (stop - start != 1)
        return TSR_OK;
    struct str text = tsr__arena_str(t->plan->arena, word_at(str_of(rewrite->words), start));
    if (text.p)
        return tsr_node_set_string(copy, rewrite->name, text.p);
    return TSR_NOMEM;
}

// [1 3 4] as [0 -1], cut in two: the first device makes [0 12] of nothing, and 0 must mean 0.
static tsr_status rewrite_zeros(const struct part *part, const struct node_flow *nf,
                                const struct rule_rewrite *rewrite, tsr_node *copy)
{
    struct told_shape told;
    if (!tsr__told_shape(part->plan, nf, rewrite, &told))
        return part->plan->arena->failed ? TSR_NOMEM : TSR_OK;
    if (!tsr__shape_of_sizes(part->plan, &told))
        return TSR_OK;
    return tsr_node_set_int(copy, rewrite->name, 1);
}

// The same for attributes: num_heads = 8 becomes 4 where the heads are cut in 2. A rank that is not in the
// placement (at < 0) has nothing to rewrite, nor has a factor that is not cut.
static tsr_status rewrite_attributes(const struct part *t, const struct step *st, tsr_node *copy)
{
    const struct node_flow *nf = st->flow;
    const struct rule *rule = nf->place.rule;
    int64_t at = tsr__place_index(&nf->place, t->rank);
    if (!rule || at < 0)
        return TSR_OK;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        if (rewrite->kind == REWRITE_SHAPE && rewrite->name) {
            tsr_status status = rewrite_zeros(t, nf, rewrite, copy);
            if (status != TSR_OK)
                return status;
        }
        bool named = rewrite->kind == REWRITE_WORD || rewrite->kind == REWRITE_SHARE;
        tsr_attr *attr =
            named || rewrite->kind == REWRITE_ATTR ? tsr_node_find_attr(copy, rewrite->name) : NULL;
        if (!attr || nf->place.cuts[rewrite->factor] < 2)
            continue;
        const struct rule_factor *factor = &rule->factors[rewrite->factor];
        struct local_size part = {1, 1, nf->place.coords[at * rule->n_factors + rewrite->factor],
                                  nf->place.cuts[rewrite->factor]};
        tsr_status status;
        if (named)
            status = rewrite_named(t, rewrite, copy, attr, factor->size.value, &part);
        else if (st->made && st->made_factor == rewrite->factor)
            status = tsr_node_set_int(copy, rewrite->name, tsr__windows_size(st->made, t->rank));
        else
            status = rewrite_attribute(copy, attr, rewrite->name, factor, &part);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

struct captured {
    const struct step *step;
    tsr_value **list;
    int64_t rank;
};

static tsr_value *find_captured(void *data, tsr_value *outer)
{
    const struct captured *captured = data;
    for (size_t i = captured->step->n_node_inputs; i < captured->step->n_inputs; i++)
        if (captured->list[i - captured->step->n_node_inputs] == outer && captured->step->inputs[i])
            return form_root(captured->step->inputs[i])->local[captured->rank];
    return NULL;
}

static bool has_graphs(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (tsr_attr_graph_count(tsr_node_attr(node, i)))
            return true;
    return false;
}

static tsr_node *copy_node(struct part *part, struct step *st, tsr_value **inputs, size_t n_inputs,
                           const struct str *outputs)
{
    const tsr_node *node = st->flow->node;
    while (n_inputs && !inputs[n_inputs - 1])
        n_inputs--;
    if (!has_graphs(node))
        return tsr__node_copy(part->graph, node, inputs, n_inputs, outputs, st->n_outputs);
    struct captured captured = {.step = st, .rank = part->rank};
    tsr__node_captures(node, &captured.list);
    return tsr__node_copy_deep(part->graph, node, inputs, n_inputs, outputs, st->n_outputs,
                               find_captured, &captured);
}

// A sum of parts without the inputs that another device adds; NULL: out of memory.
static tsr_node *sum_parts(struct part *part, struct step *st, tsr_value **inputs,
                           const struct str *outputs)
{
    size_t n = 0;
    for (size_t i = 0; i < st->n_node_inputs; i++)
        if (!tsr__adds_elsewhere(st->flow, part->rank, (int)i))
            inputs[n++] = inputs[i];
    if (n > 1 || n == st->n_node_inputs)
        return copy_node(part, st, inputs, n, outputs);
    tsr_value *y = tsr__part_node(part, "Identity", outputs[0], 1, inputs[0]);
    return y ? tsr_value_producer(y) : NULL;
}

// What the engine writes over must be nobody else's: inputs of a run are shared by ranks that are threads, and belong to the
// caller. Max of one tensor is a copy that no optimisation of ONNX Runtime takes out, as it does with Identity. Every other copy is
// a Min: two that are alike, of one value, would become one node.
static tsr_status copy_written(struct part *part, const struct step *st, tsr_value **inputs)
{
    for (size_t i = 0; i < st->n_node_inputs; i++) {
        if (!inputs[i] || !tsr__node_writes(st->flow->node, i))
            continue;
        const char *copies = i % 2 ? "Max" : "Min";
        inputs[i] = tsr__part_node(part, copies, (struct str){0}, 1, inputs[i]);
        if (!inputs[i])
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Where this device may have nothing of its input, a reduction's axes are counted from the front.
static tsr_status front_axes(struct part *part, const struct step *st, tsr_node *copy)
{
    const struct node_flow *nf = st->flow;
    if (st->n_node_inputs == 0 || !nf->inputs[0] || tsr__layout_is_whole(nf->inputs[0]))
        return TSR_OK;
    int64_t axes[RULE_MAX_RANK];
    const char *name = NULL;
    int n = tsr__rule_front_axes(nf->node, part->plan->flow->shapes, &name, axes);
    if (n == 0)
        return TSR_OK;
    if (!name) {
        tsr_value *list = tsr__part_ints(part, axes, n);
        return list ? tsr_node_replace_input(copy, 1, list) : TSR_NOMEM;
    }
    if (tsr_attr_kind_of(tsr_node_find_attr(copy, name)) == TSR_ATTR_INT)
        return tsr_node_set_int(copy, name, axes[0]);
    return tsr_node_set_ints(copy, name, axes, (size_t)n);
}

// Inputs are rewritten before the node is copied, attributes after. Where another node must finish the work (a
// lookup's mask, a trim), the copy gives a fresh name and that node the real one.
tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs)
{
    size_t n_inputs = st->n_node_inputs;
    tsr_value **inputs = ARENA_ARRAY(part->plan->arena, tsr_value *, n_inputs + RULE_MAX_RANK);
    if (!inputs)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_node_inputs; i++)
        inputs[i] = st->inputs[i] ? form_root(st->inputs[i])->local[part->rank] : NULL;
    tsr_status status = rewrite_inputs(part, st, inputs);
    if (status == TSR_OK)
        status = copy_written(part, st, inputs);
    if (status == TSR_OK)
        status = rewrite_lists(part, st->flow, inputs, &n_inputs);
    tsr_value *here = NULL;
    if (status == TSR_OK)
        status = tsr__lookup_begin(part, st, inputs, &here);
    if (status != TSR_OK)
        return status;
    struct str found = outputs[0];
    if (here || tsr__trims(st->flow))
        outputs[0] = tsr__part_fresh(part);
    tsr_node *copy = st->flow->pending ? sum_parts(part, st, inputs, outputs)
                                       : copy_node(part, st, inputs, n_inputs, outputs);
    if (!copy)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[part->rank] = tsr_node_output(copy, i);
    status = rewrite_list_attributes(part, st->flow, copy);
    if (status == TSR_OK)
        status = rewrite_attributes(part, st, copy);
    if (status == TSR_OK)
        status = front_axes(part, st, copy);
    if (status == TSR_OK && tsr__trims(st->flow))
        return tsr__emit_trim(part, st, tsr_node_output(copy, 0), found);
    if (status == TSR_OK && here)
        return tsr__lookup_end(part, st, here, tsr_node_output(copy, 0), found);
    return status;
}
