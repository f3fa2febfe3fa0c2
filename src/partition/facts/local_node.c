// SPDX-License-Identifier: Apache-2.0
// local_node.c - computes how the node of one device differs from the model's node: inputs that it
// does not read, windows that it needs, attributes that change. Planning uses this to avoid
// transfers of inputs that no device reads; emission uses it to write the node.
//
// Examples:
//     Gemm(A, B, C), K sharded in 2: each device computes a partial sum. The last shard adds C,
//         so device 0 reads only A and B.
//     Reshape(X, [8,6]) with a result {2,1}: each device has its own constant [4,6].
//     Shape(X), X sharded: replaced by the sizes of the full tensor; no device reads X.
//     Conv with pads {1,1} and kernel 3 over 8 elements, sharded in 2: device 0 needs
//         elements 0..4 and pads {1,0}.
#include "partition/facts/facts.h"

int64_t tsr__place_index(const struct placement *place, int64_t device)
{
    for (size_t i = 0; i < place->n_devices; i++)
        if (place->devices[i] == device)
            return (int64_t)i;
    return -1;
}

// ---- partial sums -------------------------------------------------------------------------------

// True if the node adds partial sums, this input is not one of them, and the device is not the
// first of its group. Only the first device adds such an input.
static bool is_added_by_first(const struct node_flow *nf, int64_t device, int input)
{
    if (!nf->pending || nf->pending[input] || tsr__rule_sum(nf->node, (size_t)input) != SUM_ADDS)
        return false;
    for (size_t group = 0; group < nf->n_groups; group++)
        for (size_t i = 1; i < nf->groups[group].n; i++)
            if (nf->groups[group].devices[i] == device)
                return true;
    return false;
}

static bool has_factor(const struct rule_tensor *tensor, int factor)
{
    for (int d = 0; d < tensor->rank; d++)
        for (int k = 0; k < tensor->dims[d].n; k++)
            if (tensor->dims[d].factors[k] == factor)
                return true;
    return false;
}

// True if the device leaves out this input because another device adds it. Example: the input C of
// a Gemm whose summed factor is sharded. Each device computes a partial sum, and only the device
// with the last shard adds C. The last shard is never empty if another one has elements. This
// matters because ONNX Runtime leaves out C if the shard is empty (quirk gemm_of_empty). The input
// is not skipped if it has the sharded factor itself: every expert adds its own bias.
bool tsr__input_is_skipped(const struct node_flow *nf, int64_t device, int input)
{
    if (is_added_by_first(nf, device, input))
        return true;
    const struct rule *rule = nf->place.rule;
    bool once = false;
    if (!rule)
        return false;
    for (int i = 0; i < rule->n_rewrites; i++)
        once |= rule->rewrites[i].kind == REWRITE_ADD_ONCE && rule->rewrites[i].input == input;
    int64_t at = tsr__place_index(&nf->place, device);
    if (!once || at < 0)
        return false;
    for (int factor = 0; factor < rule->n_factors; factor++)
        if (rule->factors[factor].kind == FACTOR_RED && nf->place.cuts[factor] > 1 &&
            !has_factor(&rule->inputs[input], factor) &&
            nf->place.coords[at * rule->n_factors + factor] != nf->place.cuts[factor] - 1)
            return true;
    return false;
}

// ---- windows -----------------------------------------------------------------------------------

bool tsr__needs_windows(const struct node_flow *nf, int input)
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

struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window)
{
    const struct rule *rule = nf->place.rule;
    const struct rule_window *rule_window = &rule->windows[window];
    struct tile_units part = placement_units(&nf->place, place, rule_window->factor);
    return tsr__window_part(rule_window, part.of, part.first, part.stop);
}

int64_t tsr__windows_size(const struct windows *windows, int64_t rank)
{
    int64_t n = 0;
    for (int64_t k = 0; k < windows->parts[rank].n; k++)
        n += windows->parts[rank].at[k].stop - windows->parts[rank].at[k].start;
    return n;
}

// True if the local node returns more elements than its shard has.
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

// True for a pooling node with ceil_mode whose rule replaces it by explicit pads. The reason is
// that ONNX shape inference before opset 22 counts one output too many if the last window would
// start in the padding. Example: 9 elements, kernel 2, stride 2 and one pad at each end give 5
// outputs, not 6.
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

// True if lists of numbers (pads, split sizes) differ from the model's, because a factor that they
// describe or the factor of a window is sharded, or because explicit pads replace ceil_mode.
bool tsr__lists_apply(const struct node_flow *nf)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return false;
    if (rounds_up(nf))
        return true;
    for (int i = 0; i < rule->n_lists; i++)
        for (int k = 0; k < rule->lists[i].n_patches; k++)
            if (rule->lists[i].patches[k].factor >= 0 &&
                nf->place.cuts[rule->lists[i].patches[k].factor] > 1)
                return true;
    return tsr__needs_windows(nf, -1);
}

// Returns the local value of a number that counts elements of a factor. Example: 8 heads on 2
// devices become 4.
static int64_t share_of(const struct node_flow *nf, int64_t place, int factor, int64_t whole)
{
    const struct rule *rule = nf->place.rule;
    int64_t size = rule->factors[factor].size.value;
    struct local_size part = {1, 1, placement_units(&nf->place, place, factor)};
    return size > 0 ? whole / size * tsr__local_size_of(&part, size) : whole;
}

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

// Sets *out to a list of the rule (pads, split sizes) for the device with index `place` in the
// placement. Example: of the pads {1,1}, the first of two devices gets {1,0}.
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out)
{
    *out = ARENA_ARRAY(arena, int64_t, (size_t)list->n + 1);
    if (!*out)
        return TSR_NOMEM;
    if (list->n)
        memcpy(*out, list->values, (size_t)list->n * sizeof(**out));
    for (int i = 0; i < list->n_patches; i++) {
        const struct rule_patch *put = &list->patches[i];
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

// ---- replaced inputs ----------------------------------------------------------------------------

const struct rule_rewrite *tsr__sharded_rewrite(const struct node_flow *nf, enum rewrite_kind kind)
{
    const struct rule *rule = nf->place.rule;
    for (int i = 0; rule && i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind == kind && nf->place.cuts[rule->rewrites[i].factor] > 1)
            return &rule->rewrites[i];
    return NULL;
}

const struct rule_rewrite *tsr__sizes_rewrite(const struct node_flow *nf)
{
    const struct rule_rewrite *rewrite = tsr__rule_sizes(nf->place.rule);
    const struct tile_layout *input = rewrite ? nf->inputs[rewrite->input] : NULL;
    return input && !tsr__layout_is_whole(input) ? rewrite : NULL;
}

// True if `source` is a known shape and `layout` shards one of its dimensions. Every device then
// has its own constant (local_shape.c).
static bool is_shape_constant(struct draft *draft, const tsr_value *source,
                              const struct tile_layout *layout)
{
    int64_t known[TILE_MAX_RANK];
    int64_t n = tsr__shapes_ints(draft->flow->shapes, source, known, TILE_MAX_RANK);
    if (n > layout->rank)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (tsr__dim_is_sharded(&layout->dims[layout->rank - n + i]))
            return true;
    return false;
}

// True if the rewrite replaces the input that it names (rewrite->input).
static bool is_rewritten(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite)
{
    const tsr_value *value = tsr_node_input(nf->node, (size_t)rewrite->input);
    if (!value)
        return false;
    if (rewrite->kind == REWRITE_SHAPE && nf->outputs[0] &&
        is_shape_constant(draft, value, nf->outputs[0]))
        return true;
    return rewrite == tsr__sizes_rewrite(nf);
}

// Stores the axes of a reduction whose input is sharded, and returns their number; 0 for other
// nodes. The axes are non-negative, because engines misread negative axes of an empty tensor.
int tsr__reduction_axes(const struct draft *draft, const struct node_flow *nf, const char **name,
                        int64_t *axes)
{
    if (tsr_node_input_count(nf->node) == 0 || !nf->inputs[0] ||
        tsr__layout_is_whole(nf->inputs[0]))
        return 0;
    return tsr__rule_front_axes(nf->node, draft->flow->shapes, name, axes);
}

// True if the input is the axes input of a reduction and the local node gets other axes
// (tsr__reduction_axes). `name` is set if the axes are an attribute.
static bool replaces_axes_input(const struct draft *draft, const struct node_flow *nf, int input)
{
    int64_t axes[RULE_MAX_RANK];
    const char *name = NULL;
    return input == 1 && tsr__reduction_axes(draft, nf, &name, axes) > 0 && !name;
}

bool tsr__input_replaced(struct draft *draft, const struct node_flow *nf, int64_t device, int input)
{
    const struct rule *rule = nf->place.rule;
    if (!rule)
        return tsr__input_is_skipped(nf, device, input);
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].input == input && is_rewritten(draft, nf, &rule->rewrites[i]))
            return true;
    for (int i = 0; i < rule->n_lists; i++)
        if (rule->lists[i].input == input && tsr__lists_apply(nf))
            return true;
    if (replaces_axes_input(draft, nf, input))
        return true;
    return tsr__input_is_skipped(nf, device, input);
}
