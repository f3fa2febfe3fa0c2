// SPDX-License-Identifier: Apache-2.0
// relayout.c - lets the producer of a value compute the windows that a reader needs, so that
// nothing is transferred.
//
// Example of a reader: an attention node needs the queries, keys and values of its heads, which are
// not adjacent columns. If the columns come from constants (the weights of a projection), each rank
// stores the weights in the order that it needs, and the projection computes just these columns.
// This is possible if all readers need windows and each rank already has the other inputs of the
// producer.
//
//     Example: X [.,8] x W [8,12] -> Y [.,12], then Split in q, k, v of 4 columns; 2 heads, one
//     per rank
//         columns of Y:  q0 q0 q1 q1 k0 k0 k1 k1 v0 v0 v1 v1
//         rank 0 needs   0..1, 4..5, 8..9       rank 1 needs   2..3, 6..7, 10..11
//     With W {1,2}, rank 0 would have columns 0..5, send 2..3 and receive 8..9. Instead rank 0
//     stores columns 0 1 4 5 8 9 of W, [8,6], and its MatMul produces the windows that Split reads.
//     The same works through the Add of a bias before the Split, through a Reshape that keeps
//     these columns as one dimension, and up to MAX_DEPTH such nodes.
#include "internal.h"

#define MAX_DEPTH 8

// A node that is to compute windows: its flow in the new placement, the factor of the windows, and
// the number of nodes between it and the reader (`depth`).
struct window_producer {
    struct draft *draft;
    struct node_flow *flow;
    int factor;
    const struct windows *windows;
    int depth;
};

static struct form *relayout(struct draft *draft, struct item *it, const struct tile_layout *base,
                             const struct windows *windows, int depth);

// True for windows along one axis whose parts ascend and are not empty.
static bool is_simple(const struct windows *windows, const struct tile_layout *base)
{
    for (int64_t i = 0; windows->n_axes == 1 && i < base->first[base->n_shards]; i++) {
        const struct dim_slice *part = &windows->parts[base->owners[i] * windows->n_axes];
        for (int64_t k = 0; k < part->n; k++)
            if (k > 0 && part->at[k].start < part->at[k - 1].stop)
                return false;
        if (!part->n)
            return false;
    }
    return windows->n_axes == 1;
}

// Returns the windows along `axis`, with bounds multiplied by `unit`. This is for a dimension in
// which each index of the factor has `unit` elements. Returns NULL if out of memory.
static struct windows *scaled(struct draft *draft, const struct windows *windows, int axis,
                              int64_t unit)
{
    struct windows *out = ARENA_NEW(draft->arena, struct windows);
    struct dim_slice *parts =
        ARENA_ARRAY(draft->arena, struct dim_slice, (size_t)draft->n_ranks + 1);
    if (!out || !parts)
        return NULL;
    *out = (struct windows){.n_axes = 1, .axes = {axis}, .parts = parts};
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        int64_t n = windows->parts[rank].n;
        parts[rank].n = n;
        parts[rank].at = ARENA_ARRAY(draft->arena, struct tile_interval, (size_t)n + 1);
        for (int64_t k = 0; k < n && parts[rank].at; k++)
            parts[rank].at[k] = (struct tile_interval){windows->parts[rank].at[k].start * unit,
                                                       windows->parts[rank].at[k].stop * unit};
    }
    return draft->arena->failed ? NULL : out;
}

// ---- placement of the producer ------------------------------------------------------------------

static bool same_devices(struct draft *draft, const struct placement *place,
                         const struct tile_layout *base)
{
    int64_t *devices;
    size_t n = tsr__layout_devices(draft->arena, base, &devices);
    return n == place->n_devices && !draft->arena->failed &&
           memcmp(devices, place->devices, n * sizeof(*devices)) == 0;
}

// Builds a placement that shards the factors of the result as the layout `base` does, and no other
// factors. Returns false if this is not possible or if out of memory.
static bool place_like(struct draft *draft, const struct rule *rule, const struct tile_layout *base,
                       const int64_t *devices, size_t n_devices, struct placement *out)
{
    size_t n = (size_t)rule->n_factors;
    *out = (struct placement){.rule = rule, .n_devices = n_devices};
    out->devices = ARENA_ARRAY(draft->arena, int64_t, n_devices + 1);
    out->cuts = ARENA_ARRAY(draft->arena, int64_t, n + 1);
    out->shares = ARENA_ARRAY(draft->arena, tile_shares, n + 1);
    out->coords = ARENA_ARRAY(draft->arena, int64_t, n * n_devices + 1);
    if (draft->arena->failed || base->rank != rule->outputs[0].rank)
        return false;
    memcpy(out->devices, devices, n_devices * sizeof(*devices));
    for (size_t f = 0; f < n; f++)
        out->cuts[f] = 1;
    for (int axis = 0; axis < base->rank; axis++) {
        const struct rule_dim *dim = &rule->outputs[0].dims[axis];
        if (!tsr__dim_is_sharded(&base->dims[axis]))
            continue;
        if (dim->n != 1 || base->dims[axis].n != 1 || out->cuts[dim->factors[0]] != 1 ||
            rule->factors[dim->factors[0]].kind != FACTOR_PAR)
            return false;
        out->cuts[dim->factors[0]] = base->dims[axis].factors[0].cuts;
        out->shares[dim->factors[0]] = base->dims[axis].factors[0].shares;
        for (size_t i = 0; i < n_devices; i++) {
            int64_t coords[TILE_MAX_FACTORS];
            if (!tsr__device_coords(base, devices[i], axis, coords))
                return false;
            out->coords[i * n + (size_t)dim->factors[0]] = coords[0];
        }
    }
    return true;
}

// Returns the axis of the tensor whose outermost factor is `factor`, and sets *unit to the product
// of its other factors. Returns -1 if no axis has the factor. Returns -2 if the factor is not the
// outermost, occurs twice, or if a size is unknown.
static int find_factor(const struct rule *rule, const struct rule_tensor *tensor, int factor,
                       int64_t *unit)
{
    int found = -1;
    *unit = 1;
    for (int axis = 0; axis < tensor->rank; axis++)
        for (int k = 0; k < tensor->dims[axis].n; k++) {
            if (tensor->dims[axis].factors[k] != factor)
                continue;
            if (found != -1 || k > 0)
                return -2;
            found = axis;
        }
    for (int k = 1; found >= 0 && k < tensor->dims[found].n; k++) {
        int64_t size = rule->factors[tensor->dims[found].factors[k]].size.value;
        if (size < 1 || !mul_ok(*unit, size, unit))
            return -2;
    }
    return found;
}

// ---- inputs of the producer ---------------------------------------------------------------------

// As tsr__draft_convert_local, with steps in the scope of the value.
static struct form *convert_without_transfer(struct draft *draft, struct item *it,
                                             const struct tile_layout *want)
{
    struct scope *here = draft->scope;
    tsr__scope_enter(draft, it->scope);
    struct form *form = tsr__draft_convert_local(draft, it, want);
    tsr__scope_enter(draft, here);
    return form;
}

static struct form *const_windows(struct draft *draft, struct item *it,
                                  const struct tile_layout *layout, struct windows *windows)
{
    if (!it->fixed || tsr_dtype_bits(it->dtype) == 0)
        return NULL;
    struct form *form = tsr__form_new(draft, it, layout, FORM_CONST);
    if (form) {
        form->windows = windows;
        // its elements differ from those of the layout, so no other node may use it
        form->partial = true;
    }
    return form;
}

// Returns the form in which the producer reads one input, or NULL if it needs communication. An
// input without the factor of the windows is converted locally. A constant with this factor is
// stored as windows. Any other value must itself be produced as windows.
static struct form *producer_input(const struct window_producer *window_producer, int input,
                                   const tsr_value *value)
{
    struct draft *draft = window_producer->draft;
    const struct placement *place = &window_producer->flow->place;
    const struct rule_tensor *tensor = &place->rule->inputs[input];
    struct item *it = tsr__item_of(draft, value);
    int64_t unit;
    int axis = -1;
    if (!it)
        return NULL;
    struct tile_layout *layout;
    if (tensor->host) {
        layout = tsr__layout_whole(draft->arena, it->rank, place->devices, place->n_devices);
    } else {
        axis = find_factor(place->rule, tensor, window_producer->factor, &unit);
        if (axis == -2)
            return NULL;
        layout = tsr__placement_project(draft->arena, place, tensor);
    }
    if (!layout)
        return NULL;
    if (axis < 0)
        return convert_without_transfer(draft, it, layout);
    struct windows *own = scaled(draft, window_producer->windows, axis, unit);
    if (!own)
        return NULL;
    if (it->first && it->first->kind == FORM_CONST)
        return const_windows(draft, it, layout, own);
    return relayout(draft, it, layout, own, window_producer->depth + 1);
}

// ---- the producer -------------------------------------------------------------------------------

// True if the model says how the node is sharded. Plans say it for every node, and count on the
// work that their shardings give to each device.
static bool is_annotated(const struct draft *draft, const tsr_node *node)
{
    const tsr_node_config *config = tsr_node_find_config(node, draft->flow->config);
    return config && tsr_node_config_spec_count(config) > 0;
}

// Returns a placement of the node (struct node_flow) in which its result is sharded as `base`, on
// the same devices as before. Returns NULL if this is not possible, or if the model shards the
// result in another way.
static struct node_flow *producer_flow(struct draft *draft, const tsr_node *node,
                                       const struct tile_layout *base)
{
    const struct node_flow *own = draft->flows[tsr__node_id(node)];
    if (!own || own->bodies || tsr__placement_has_turns(&own->place) || !own->outputs[0] ||
        (is_annotated(draft, node) && !tsr__layout_same(own->outputs[0], base)))
        return NULL;
    const struct rule *rule = tsr__rule_of(draft->arena, node, draft->flow->shapes);
    struct node_flow *nf = ARENA_NEW(draft->arena, struct node_flow);
    if (!rule || !nf || rule->whole || tsr_node_output_count(node) != 1 ||
        !same_devices(draft, &own->place, base) || !tsr__owns_once(base) ||
        !place_like(draft, rule, base, own->place.devices, own->place.n_devices, &nf->place))
        return NULL;
    nf->node = node;
    nf->outputs = ARENA_ARRAY(draft->arena, struct tile_layout *, 1);
    if (nf->outputs)
        nf->outputs[0] = tsr__placement_project(draft->arena, &nf->place, &rule->outputs[0]);
    nf->inputs = ARENA_ARRAY(draft->arena, struct tile_layout *, tsr_node_input_count(node) + 1);
    return draft->arena->failed ? NULL : nf;
}

static struct form *producer_step(const struct window_producer *window_producer, struct item *it,
                                  const struct tile_layout *base, struct form **inputs)
{
    struct draft *draft = window_producer->draft;
    size_t n = tsr_node_input_count(window_producer->flow->node);
    struct windows *windows =
        scaled(draft, window_producer->windows, window_producer->windows->axes[0], 1);
    struct form *form = tsr__form_new(draft, it, base, FORM_MADE);
    if (!form || !windows)
        return NULL;
    struct step *st = tsr__step_new(draft, STEP_NODE, n, 1);
    if (!st)
        return NULL;
    form->windows = windows;
    form->partial = true;
    memcpy(st->inputs, inputs, n * sizeof(*inputs));
    st->outputs[0] = form;
    st->n_node_inputs = n;
    st->flow = window_producer->flow;
    st->made = windows;
    st->made_factor = window_producer->factor;
    return form;
}

// True if all readers of the value need windows (depth 0). A value further up, which the copied
// producer reads, must have no other reader.
static bool all_windowed(const struct want *want, int depth)
{
    return depth ? want->readers == 1 : want->readers == want->windowed;
}

static struct form *relayout(struct draft *draft, struct item *it, const struct tile_layout *base,
                             const struct windows *windows, int depth)
{
    const tsr_node *node = item_producer(it);
    if (!node || depth > MAX_DEPTH || !all_windowed(&draft->wants[tsr__value_id(it->value)], depth))
        return NULL;
    struct window_producer window_producer = {.draft = draft, .windows = windows, .depth = depth};
    window_producer.flow = producer_flow(draft, node, base);
    if (!window_producer.flow)
        return NULL;
    const struct rule *rule = window_producer.flow->place.rule;
    const struct rule_dim *dim = &rule->outputs[0].dims[windows->axes[0]];
    if (dim->n != 1 || !tsr__rule_selects(rule, dim->factors[0]))
        return NULL;
    window_producer.factor = dim->factors[0];
    size_t n_in = tsr_node_input_count(node);
    struct form **inputs = ARENA_ARRAY(draft->arena, struct form *, n_in + 1);
    bool any = false;
    if (!inputs)
        return NULL;
    for (size_t i = 0; i < n_in; i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (!value)
            continue;
        inputs[i] = producer_input(&window_producer, (int)i, value);
        if (!inputs[i])
            return NULL;
        any |= inputs[i]->windows != NULL;
    }
    return any ? producer_step(&window_producer, it, base, inputs) : NULL;
}

struct form *tsr__draft_relayout(struct draft *draft, struct item *it,
                                 const struct tile_layout *base, const struct windows *windows)
{
    return is_simple(windows, base) ? relayout(draft, it, base, windows, 0) : NULL;
}
