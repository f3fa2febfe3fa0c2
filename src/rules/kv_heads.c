// SPDX-License-Identifier: Apache-2.0
// kv_heads.c - repeats the key and value heads of grouped attention. Then each device can store the
// cache of a head of its own, even if the model has fewer key heads than there are devices.
//
// Example: 4 query heads and 2 key heads, repeated twice for 4 devices. Query heads 0 and 1 used
// key head 0, query heads 2 and 3 used key head 1. Afterwards there are 4 key heads k0 k0 k1 k1,
// one for each query head. The attention is the same, and the caches have twice as many heads.
//
// Keys and values are repeated in the constants of their projection, if rules describe all nodes
// between the projection and the attention. Example: weights [64, (2 d)] of the heads k0 k1 become
// [64, (4 d)]. Otherwise a Gather of heads is inserted before the attention.
#include "rules/internal.h"

#include "tessera_cli.h"

#define CACHE_SCALES 12 // inputs 12 and 13: scales of a quantized cache of keys and of values
#define MAX_HEADS    65536
#define MAX_CHAIN    16 // most nodes between a projection and the attention

// A repetition along an axis: block i of the new axis is block index[i] of the old one.
struct blocks {
    int64_t *index;
    int64_t before, after; // number of blocks of the axis
};

struct repeat {
    struct arena *arena;
    tsr_model *model;
    tsr_graph *graph;
    const struct shapes *shapes;
    int64_t times;
    size_t made; // number of new values so far, used in their names
};

// Returns a new name; NULL: out of memory.
static const char *new_name(struct repeat *repeat)
{
    return tsr__arena_printf(repeat->arena, "ai.tessera.heads.%zu", repeat->made++).p;
}

// ---- constants ---------------------------------------------------------------------------------

static bool constant_fits(const tsr_tensor *tensor, int axis, const struct blocks *blocks)
{
    int64_t bytes = tsr_tensor_bytes(tensor);
    if (axis >= tsr_tensor_rank(tensor) || tsr_tensor_dims(tensor)[axis] % blocks->before)
        return false;
    int64_t outer = 1;
    for (int d = 0; d < axis; d++)
        outer *= tsr_tensor_dims(tensor)[d];
    return bytes > 0 && outer > 0 && bytes % (outer * blocks->before) == 0;
}

// Returns a constant with repeated blocks of the axis. NULL: out of memory, or the data cannot be
// read.
static tsr_value *repeat_constant(struct repeat *repeat, const tsr_tensor *tensor, int axis,
                                  const struct blocks *blocks)
{
    const char *bytes, *name = new_name(repeat);
    const void *data;
    size_t n, outer = 1;
    int rank = tsr_tensor_rank(tensor);
    int64_t *dims = ARENA_ARRAY(repeat->arena, int64_t, (size_t)rank + 1);
    if (!dims || !name || tsr_tensor_data(tensor, &data, &n) != TSR_OK)
        return NULL;
    bytes = data;
    for (int d = 0; d < rank; d++) {
        dims[d] = tsr_tensor_dims(tensor)[d];
        if (d < axis)
            outer *= (size_t)dims[d];
    }
    dims[axis] = dims[axis] / blocks->before * blocks->after;
    size_t block = n / outer / (size_t)blocks->before, row = block * (size_t)blocks->after;
    tsr_session *session = tsr_model_session(repeat->model);
    char *made = tsr__alloc(session, outer * row);
    if (!made)
        return NULL;
    for (size_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < blocks->after; i++)
            memcpy(made + o * row + (size_t)i * block,
                   bytes + (o * (size_t)blocks->before + (size_t)blocks->index[i]) * block, block);
    tsr_value *value = tsr_graph_add_initializer(repeat->graph, name, tsr_tensor_dtype(tensor),
                                                 rank, dims, made, outer * row);
    tsr__free(session, made, outer * row);
    return value;
}

// ---- nodes between projection and attention ----------------------------------------------------

// Returns the axis whose outermost factor is `factor`. *only is set if the axis has no other
// factor. Returns the rank if the factor is not the outermost of its axis, and -1 if no axis has
// it.
static int axis_of(const struct rule_tensor *tensor, int factor, bool *only)
{
    for (int d = 0; !tensor->absent && !tensor->host && d < tensor->rank; d++)
        for (int i = 0; i < tensor->dims[d].n; i++)
            if (tensor->dims[d].factors[i] == factor) {
                *only = i == 0 && tensor->dims[d].n == 1;
                return i == 0 ? d : tensor->rank;
            }
    return -1;
}

// Returns the factor of an axis of output 0. Returns -1 if the axis does not have exactly one
// factor, if the kind of that factor is not FACTOR_PAR, or if the local node would differ by more
// than attributes.
static int factor_of(const struct rule *rule, int axis)
{
    if (rule->whole || rule->open || rule->n_outputs < 1 || axis >= rule->outputs[0].rank)
        return -1;
    const struct rule_dim *dim = &rule->outputs[0].dims[axis];
    if (dim->n != 1 || dim->window || rule->n_windows || rule->n_lists)
        return -1;
    for (int i = 0; i < rule->n_rewrites; i++)
        if (rule->rewrites[i].kind != REWRITE_ATTR && rule->rewrites[i].kind != REWRITE_ADD_ONCE)
            return -1;
    return rule->factors[dim->factors[0]].kind == FACTOR_PAR ? dim->factors[0] : -1;
}

static const tsr_node *only_producer(const tsr_value *value)
{
    const tsr_node *node = tsr_value_producer(value);
    if (!node || tsr_value_is_output(value) || tsr_value_use_count(value) != 1)
        return NULL;
    for (size_t i = 1; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            return NULL;
    return tsr_value_graph(value) == tsr_node_graph(node) ? node : NULL;
}

// True if repeat_value can repeat the blocks in the constants from which the value is computed.
static bool value_fits(struct repeat *repeat, const tsr_value *value, int axis,
                       const struct blocks *blocks, int depth)
{
    const tsr_tensor *constant = tsr_value_initializer(value);
    if (constant)
        return constant_fits(constant, axis, blocks);
    const tsr_node *node = only_producer(value);
    const struct rule *rule =
        (node && depth < MAX_CHAIN) ? tsr__rule_of(repeat->arena, node, repeat->shapes) : NULL;
    int factor = rule ? factor_of(rule, axis) : -1;
    if (factor < 0 || rule->factors[factor].size.value % blocks->before)
        return false;
    bool any = false;
    for (int i = 0; i < rule->n_inputs; i++) {
        bool only;
        int at = axis_of(&rule->inputs[i], factor, &only);
        const tsr_value *input = tsr_node_input(node, (size_t)i);
        if (at < 0)
            continue;
        if (at == rule->inputs[i].rank || (!only && !tsr_value_initializer(input)) ||
            !value_fits(repeat, input, at, blocks, depth + 1))
            return false;
        any = true;
    }
    return any;
}

static tsr_status scale_attributes(tsr_node *node, const struct rule *rule, int factor,
                                   const struct blocks *blocks)
{
    for (int i = 0; i < rule->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &rule->rewrites[i];
        if (rewrite->kind != REWRITE_ATTR || rewrite->factor != factor)
            continue;
        int64_t size = tsr_attr_int(tsr_node_find_attr(node, rewrite->attribute), 0);
        if (!mul_ok(size / blocks->before, blocks->after, &size))
            return TSR_INVALID;
        TRY(tsr_node_set_int(node, rewrite->attribute, size));
    }
    return TSR_OK;
}

// Multiplies the declared size of the axis by after / before. An unknown size, or one that would
// overflow, stays.
static tsr_status scale_axis(tsr_value *value, int axis, int64_t before, int64_t after)
{
    tsr_dim dims[RULE_MAX_RANK];
    int rank = tsr_value_rank(value);
    if (axis >= rank || rank > RULE_MAX_RANK || tsr_value_dim(value, axis).value < 0)
        return TSR_OK;
    for (int d = 0; d < rank; d++)
        dims[d] = tsr_value_dim(value, d);
    if (!mul_ok(dims[axis].value / before, after, &dims[axis].value))
        return TSR_OK;
    return tsr_value_set_type(value, tsr_value_dtype(value), rank, dims);
}

// Repeats blocks of the axis in the constants from which the value is computed. value_fits must be
// true. Returns the value, or the new constant if the value is one. NULL: an error.
static tsr_value *repeat_value(struct repeat *repeat, tsr_value *value, int axis,
                               const struct blocks *blocks)
{
    const tsr_tensor *constant = tsr_value_initializer(value);
    if (constant)
        return repeat_constant(repeat, constant, axis, blocks);
    tsr_node *node = tsr_value_producer(value);
    const struct rule *rule = tsr__rule_of(repeat->arena, node, repeat->shapes);
    int factor = rule ? factor_of(rule, axis) : -1;
    if (factor < 0)
        return NULL;
    for (int i = 0; i < rule->n_inputs; i++) {
        bool only;
        int at = axis_of(&rule->inputs[i], factor, &only);
        if (at < 0)
            continue;
        tsr_value *input = repeat_value(repeat, tsr_node_input(node, (size_t)i), at, blocks);
        if (!input || (input != tsr_node_input(node, (size_t)i) &&
                       tsr_node_replace_input(node, (size_t)i, input) != TSR_OK))
            return NULL;
    }
    if (scale_attributes(node, rule, factor, blocks) != TSR_OK ||
        scale_axis(value, axis, blocks->before, blocks->after) != TSR_OK)
        return NULL;
    return value;
}

// ---- the attention -----------------------------------------------------------------------------

static tsr_value *add_ints(struct repeat *repeat, const int64_t *numbers, int64_t n)
{
    const char *name = new_name(repeat);
    if (!name)
        return NULL;
    return tsr_graph_add_initializer(repeat->graph, name, TSR_INT64, 1, &n, numbers,
                                     (size_t)n * sizeof *numbers);
}

static tsr_value *add_before(struct repeat *repeat, tsr_node *before, const char *op, tsr_value *x,
                             tsr_value *y, int64_t axis)
{
    tsr_value *const inputs[] = {x, y};
    const char *name = new_name(repeat);
    if (!x || !y || !name)
        return NULL;
    tsr_node *node = tsr_graph_add_node(repeat->graph, "", op, name, inputs, 2, &name, 1);
    if (!node || (axis && tsr_node_set_int(node, "axis", axis) != TSR_OK) ||
        tsr_node_move_before(node, before) != TSR_OK)
        return NULL;
    return tsr_node_output(node, 0);
}

// Repeats heads of a value [batch, tokens, (heads d)] with three new nodes: Reshape to [0, 0,
// heads, -1], Gather, Reshape to [0, 0, -1].
static tsr_value *gather_heads(struct repeat *repeat, tsr_node *attention, tsr_value *value,
                               const struct blocks *blocks)
{
    const int64_t apart[] = {0, 0, blocks->before, -1}, together[] = {0, 0, -1};
    value = add_before(repeat, attention, "Reshape", value,
                       add_ints(repeat, apart, TSR_COUNT(apart)), 0);
    value = add_before(repeat, attention, "Gather", value,
                       add_ints(repeat, blocks->index, blocks->after), 2);
    return add_before(repeat, attention, "Reshape", value,
                      add_ints(repeat, together, TSR_COUNT(together)), 0);
}

// Repeats heads of an input [batch, tokens, (heads d)].
static tsr_status repeat_projected(struct repeat *repeat, tsr_node *node, size_t input,
                                   const struct blocks *blocks)
{
    tsr_value *value = tsr_node_input(node, input), *made;
    made = value_fits(repeat, value, 2, blocks, 0) ? repeat_value(repeat, value, 2, blocks)
                                                   : gather_heads(repeat, node, value, blocks);
    if (!made)
        return TSR_NOMEM;
    return made == value ? TSR_OK : tsr_node_replace_input(node, input, made);
}

// Appends the heads first .. first + heads - 1 to the index, each `times` times.
static void append_repeated(struct blocks *blocks, int64_t first, int64_t heads, int64_t times)
{
    for (int64_t i = 0; i < heads * times; i++)
        blocks->index[blocks->after++] = first + i / times;
    blocks->before += heads;
}

// Repeats keys and values, which are inputs 1 and 2 or follow the queries in input 0.
static tsr_status repeat_keys(struct repeat *repeat, tsr_node *node, int64_t queries, int64_t keys)
{
    struct blocks blocks = {0};
    blocks.index =
        ARENA_ARRAY(repeat->arena, int64_t, (size_t)(queries + 2 * keys * repeat->times));
    if (!blocks.index)
        return TSR_NOMEM;
    if (!tsr_node_input(node, 1)) {
        append_repeated(&blocks, 0, queries, 1);
        append_repeated(&blocks, queries, keys, repeat->times);
        append_repeated(&blocks, queries + keys, keys, repeat->times);
        return repeat_projected(repeat, node, 0, &blocks);
    }
    append_repeated(&blocks, 0, keys, repeat->times);
    tsr_status st = repeat_projected(repeat, node, 1, &blocks);
    return st == TSR_OK ? repeat_projected(repeat, node, 2, &blocks) : st;
}

static tsr_status unsupported(struct repeat *repeat, const tsr_node *node, const char *what)
{
    struct place at = tsr__place_node(node);
    return tsr__fail(tsr_model_session(repeat->model), TSR_UNSUPPORTED, DIAG_folder_layout, &at,
                     "use at most one device per key head",
                     "the key heads cannot be replicated: %s", what);
}

// Repeats the scales of a quantized cache, which have one entry per head or per element of a head.
// A single scale stays. Reports scales of another form, or that are not constant.
static tsr_status repeat_scales(struct repeat *repeat, tsr_node *node, int64_t keys)
{
    struct blocks blocks = {0};
    blocks.index = ARENA_ARRAY(repeat->arena, int64_t, (size_t)(keys * repeat->times));
    if (!blocks.index)
        return TSR_NOMEM;
    append_repeated(&blocks, 0, keys, repeat->times);
    for (size_t i = CACHE_SCALES; i < CACHE_SCALES + 2; i++) {
        tsr_value *scale = tsr_node_input(node, i), *made;
        const tsr_tensor *constant = scale ? tsr_value_initializer(scale) : NULL;
        if (!scale || (constant && tsr_tensor_elements(constant) == 1))
            continue;
        int axis = 0;
        while (constant && axis < tsr_tensor_rank(constant) && tsr_tensor_dims(constant)[axis] == 1)
            axis++;
        if (!constant)
            return unsupported(repeat, node, "the scales of its cache are not constants");
        if (!constant_fits(constant, axis, &blocks))
            return unsupported(repeat, node,
                               "the scales of its cache are not one per head or per element of "
                               "a head");
        made = repeat_constant(repeat, constant, axis, &blocks);
        if (!made || tsr_node_replace_input(node, i, made) != TSR_OK)
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Multiplies the declared number of heads of the node's caches [batch, heads, tokens, d]. Past
// caches must be inputs of the model.
static tsr_status scale_caches(struct repeat *repeat, tsr_node *node, const struct op_row *row)
{
    for (size_t i = 0; i < TSR_COUNT(row->caches); i++) {
        tsr_value *past = tsr_node_input(node, row->caches[i].past);
        tsr_value *present = tsr_node_output(node, row->caches[i].present);
        if (past && !tsr_value_is_input(past))
            return unsupported(repeat, node, "its cache is not an input of the model");
        if (past)
            TRY(scale_axis(past, 1, 1, repeat->times));
        if (present)
            TRY(scale_axis(present, 1, 1, repeat->times));
    }
    return TSR_OK;
}

static tsr_status repeat_heads(struct repeat *repeat, tsr_node *node, const struct op_row *row)
{
    int64_t queries = tsr_attr_int(tsr_node_find_attr(node, "num_heads"), 0),
            keys = tsr_attr_int(tsr_node_find_attr(node, "kv_num_heads"), 0), all;
    if (queries < 1 || keys < 1 || !mul_ok(keys, repeat->times, &all) || queries % all)
        return unsupported(repeat, node, "their number does not divide the number of query heads");
    if (queries > MAX_HEADS)
        return unsupported(repeat, node, "too many query heads");
    tsr_status st = scale_caches(repeat, node, row);
    if (st == TSR_OK)
        st = repeat_scales(repeat, node, keys);
    if (st == TSR_OK)
        st = repeat_keys(repeat, node, queries, keys);
    return st == TSR_OK ? tsr_node_set_int(node, "kv_num_heads", all) : st;
}

static bool is_grouped(const struct op_row *row)
{
    return row && row->derive == tsr__derive_group_query;
}

// Repeats the heads of all attention nodes. New nodes are inserted before the attention, so the
// loop does not visit them.
static tsr_status repeat_all(struct repeat *repeat)
{
    for (tsr_node *node = tsr_graph_first(repeat->graph); node; node = tsr_node_next(node)) {
        const struct op_row *row = tsr__row_of_node(node);
        if (is_grouped(row))
            TRY(repeat_heads(repeat, node, row));
    }
    return TSR_OK;
}

static bool find_grouped(void *data, tsr_node *node, size_t input)
{
    (void)input;
    *(bool *)data |= is_grouped(tsr__row_of_node(node));
    return true;
}

bool tsr_cache_is_grouped(const tsr_value *past)
{
    bool grouped = false;
    tsr_value_uses(past, find_grouped, &grouped);
    return grouped;
}

tsr_status tsr_repeat_kv_heads(tsr_model *model, int64_t times)
{
    struct arena arena = {.session = tsr_model_session(model)};
    struct repeat repeat = {
        .arena = &arena, .model = model, .graph = tsr_model_graph(model), .times = times};
    repeat.shapes = tsr__shapes_new(&arena, model);
    tsr_status st = repeat.shapes ? repeat_all(&repeat) : TSR_NOMEM;
    tsr__arena_free(&arena);
    return st;
}
