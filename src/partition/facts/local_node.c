// SPDX-License-Identifier: Apache-2.0
// local_node.c - in what the node of one device differs from the whole one, as questions: which inputs it does not read
// as the model has them, what windows it needs, which numbers replace its own. Planning asks so that nothing is brought
// which nobody reads, emission so that the node is written so. Makes no steps and no nodes.
//
//     Gemm(A, B, C) with K cut in 2, a sum in parts: C is added once, by the last part. Device 0 reads A and B only.
//     Reshape(X, [8,6]) with a result {2,1}: both devices have a constant [4,6] of their own in place of [8,6].
//     Shape(X), X cut: the sizes of the whole are put in its place, and no device reads X at all.
//     Conv with pads {1,1} and kernel 3 over 8 elements, cut in 2: device 0 needs elements 0..4 and pads {1,0}.
#include "partition/facts/facts.h"

// Position of the device in the placement, or -1.
int64_t tsr__place_index(const struct placement *place, int64_t device)
{
    for (size_t i = 0; i < place->n_devices; i++)
        if (place->devices[i] == device)
            return (int64_t)i;
    return -1;
}

// ---- sums in parts -----------------------------------------------------------------------------

// The first of each group adds what is not in parts.
static bool added_by_first(const struct node_flow *nf, int64_t device, int input)
{
    if (!nf->pending || nf->pending[input] || tsr__rule_sum(nf->node, (size_t)input) != SUM_ADDS)
        return false;
    for (size_t group = 0; group < nf->n_groups; group++)
        for (size_t i = 1; i < nf->groups[group].n; i++)
            if (nf->groups[group].devices[i] == device)
                return true;
    return false;
}

// Of a cut sum the last part adds: part i of k has the elements from i * n / k on, so that the last has some whenever there is
// one at all. Of n = 1 and k = 3 the parts are empty, empty, [0]. A Gemm of nothing would be wrong: ONNX Runtime leaves beta out there.
bool tsr__adds_elsewhere(const struct node_flow *nf, int64_t device, int input)
{
    if (added_by_first(nf, device, input))
        return true;
    const struct rule *rule = nf->place.rule;
    bool once = false;
    if (!rule)
        return false;
    for (int i = 0; i < rule->n_rewrites; i++)
        once |= rule->rewrites[i].kind == REWRITE_ADD_ONCE && rule->rewrites[i].index == input;
    int64_t at = tsr__place_index(&nf->place, device);
    if (!once || at < 0)
        return false;
    for (int factor = 0; factor < rule->n_factors; factor++)
        if (rule->factors[factor].kind == FACTOR_RED && nf->place.cuts[factor] > 1 &&
            nf->place.coords[at * rule->n_factors + factor] != nf->place.cuts[factor] - 1)
            return true;
    return false;
}

// ---- windows -----------------------------------------------------------------------------------

// Windows of a factor that is whole are the whole input: nothing is special about them.
bool tsr__window_cut(const struct node_flow *nf, int input)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return false;
    for (int i = 0; i < rule->n_windows; i++)
        if ((input < 0 || rule->windows[i].input == input) &&
            nf->place.cuts[rule->windows[i].factor] > 1)
            return true;
    return false;
}

// By the number of the device's part, whatever the sizes of the others.
struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window)
{
    const struct rule *rule = nf->place.rule;
    const struct rule_window *rule_window = &rule->windows[window];
    struct tile_units part = placement_units(&nf->place, place, rule_window->factor);
    return tsr__window_part(rule_window, part.of, part.first, part.stop);
}

// In all intervals of the rank together.
int64_t tsr__windows_size(const struct windows *windows, int64_t rank)
{
    int64_t n = 0;
    for (int64_t k = 0; k < windows->parts[rank].n; k++)
        n += windows->parts[rank].at[k].stop - windows->parts[rank].at[k].start;
    return n;
}

// What the local node gives beyond its part, at the ends of its windows (all rules with trims have one result).
bool tsr__trims(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return false;
    for (int i = 0; i < rule->n_trims; i++)
        if (nf->place.cuts[rule->windows[rule->trims[i].window].factor] > 1)
            return true;
    return false;
}

// ---- lists of numbers --------------------------------------------------------------------------

// A pooling that rounds up gets its pads as numbers also where it is whole, and then rounds down. Before opset 22 ONNX
// infers one window too many where the last would begin in the pads (of 9 elements, a kernel of 2 with stride 2 and a
// pad at either end makes 5 and not 6), and engines hold others against it and plan their memory by it.
static bool rounds_up(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    const tsr_attr *ceil = tsr_node_find_attr(nf->node, "ceil_mode");
    if (!ceil || tsr_attr_int(ceil, 0) == 0)
        return false;
    for (int i = 0; i < rule->n_lists; i++)
        if (rule->lists[i].input < 0 && !rule->lists[i].n &&
            strcmp(rule->lists[i].name, "ceil_mode") == 0)
            return true;
    return false;
}

// The numbers differ only where a factor that they speak of is cut, or a window is.
bool tsr__lists_apply(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return false;
    if (rounds_up(nf))
        return true;
    for (int i = 0; i < rule->n_lists; i++)
        for (int k = 0; k < rule->lists[i].n_puts; k++)
            if (rule->lists[i].puts[k].factor >= 0 &&
                nf->place.cuts[rule->lists[i].puts[k].factor] > 1)
                return true;
    return tsr__window_cut(nf, -1);
}

// A number that counts a factor, for the local part of it: of 8 heads of 2 devices, 4.
static int64_t share_of(const struct node_flow *nf, int64_t place, int factor, int64_t whole)
{
    const struct rule *rule = nf->place.rule;
    int64_t size = rule->factors[factor].size.value;
    struct local_size part = {1, 1, placement_units(&nf->place, place, factor)};
    if (size > 0)
        return whole / size * tsr__local_size_of(&part, size);
    return whole;
}

// The number that stands in the list for this part: pads before or after, how many there are, how far they reach.
static int64_t patched(const struct rule_patch *put, const struct window_part *part)
{
    switch (put->what) {
    case PATCH_BEFORE:
        return part->before;
    case PATCH_AFTER:
        return part->after;
    case PATCH_SIZE:
        return part->b - part->a;
    case PATCH_SPAN:
        return (part->stop - part->start) * put->value;
    default:
        return put->value;
    }
}

// The rule's numbers with those put in that depend on the part: of pads {1,1}, rank 0 of 2 gets {1,0}.
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out)
{
    *out = ARENA_ARRAY(arena, int64_t, (size_t)list->n + 1);
    if (!*out)
        return TSR_NOMEM;
    if (list->n)
        memcpy(*out, list->values, (size_t)list->n * sizeof(**out));
    for (int i = 0; i < list->n_puts; i++) {
        const struct rule_patch *put = &list->puts[i];
        if (put->what == PATCH_LOCAL_COUNT) {
            (*out)[put->at] = share_of(nf, place, put->factor, (*out)[put->at]);
            continue;
        }
        if (nf->place.cuts[nf->place.rule->windows[put->window].factor] < 2)
            continue;
        struct window_part window_part = tsr__window_at(nf, place, put->window);
        (*out)[put->at] = patched(put, &window_part);
    }
    return TSR_OK;
}

// ---- inputs that are not read ------------------------------------------------------------------

// Shape and Size, and whatever else the table marks so.
const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return NULL;
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        bool sizes = rewrite->kind == REWRITE_SIZES || rewrite->kind == REWRITE_SIZE;
        if (sizes && nf->inputs[rewrite->index] &&
            !tsr__layout_is_whole(nf->inputs[rewrite->index]))
            return rewrite;
    }
    return NULL;
}

// The host value is a constant that every device of the layout has as a constant of its own (local_shape.c).
static bool is_shape_constant(struct draft *draft, const tsr_value *source,
                              const struct tile_layout *layout)
{
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(draft->flow->shapes, source, known, TILE_MAX_RANK);
    if (n > layout->rank)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (tsr__dim_cut(&layout->dims[layout->rank - n + i]))
            return true;
    return false;
}

// A rewrite puts something else in the place of that input.
static bool is_rewritten(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite)
{
    const tsr_value *value = tsr_node_input(nf->node, (size_t)rewrite->index);
    if (!value)
        return false;
    if (rewrite->kind == REWRITE_SHAPE && nf->outputs[rewrite->output] &&
        is_shape_constant(draft, value, nf->outputs[rewrite->output]))
        return true;
    return rewrite == tsr__gives_sizes(nf);
}

// Where a device may have nothing of its input, a reduction's axes are counted from the front: engines misread others then.
int tsr__front_axes(const struct draft *draft, const struct node_flow *nf, const char **name,
                    int64_t *axes)
{
    if (tsr_node_input_count(nf->node) == 0 || !nf->inputs[0] ||
        tsr__layout_is_whole(nf->inputs[0]))
        return 0;
    return tsr__rule_front_axes(nf->node, draft->flow->shapes, name, axes);
}

// Axes that are an input, the second, and are written anew.
static bool fronts_input(const struct draft *draft, const struct node_flow *nf, int input)
{
    int64_t axes[RULE_MAX_RANK];
    const char *name = NULL;
    return input == 1 && tsr__front_axes(draft, nf, &name, axes) > 0 && !name;
}

// Whoever asks need not bring the input to that device.
bool tsr__input_replaced(struct draft *draft, const struct node_flow *nf, int64_t device, int input)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return tsr__adds_elsewhere(nf, device, input);
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].index == input && is_rewritten(draft, nf, &rule->rewrites[i]))
            return true;
    for (int i = 0; i < rule->n_lists; i++)
        if (rule->lists[i].input == input && tsr__lists_apply(nf))
            return true;
    if (fronts_input(draft, nf, input))
        return true;
    return tsr__adds_elsewhere(nf, device, input);
}
