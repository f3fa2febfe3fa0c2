// SPDX-License-Identifier: Apache-2.0
// emit_route.c - writes a mixture of experts on a rank that has a shard of the experts.
//
// The operator selects among the experts that it has, so it cannot run on a shard as it is. The
// rank computes the weights of its experts first, then runs them on the tokens that selected one.
//
//     Example: 6 tokens of m numbers, 8 experts, 2 per token; the rank has experts 4..7:
//         weights [6 4]  the operator on zeros, with all 8 experts replaced by tiny ones: expert
//                        4 + j returns the unit vector j, experts 0..3 return zeros
//         tokens  [r]    rows of `weights` that are not all zero
//         y [r m]        the operator on these tokens with the rank's experts. Its router input is
//                        log(weight / largest weight), so its softmax returns weight / sum
//         result [6 m]   y times the sum of the weights; 0 for all other tokens
//
// The kernel itself makes the selection, so equal router outputs, normalization and sparse mixers
// give the same experts as in the unsharded model.
#include "internal.h"

#include <float.h>

#define TINY_SIZE    64          // sizes of the tiny experts are multiples of this, as CUDA needs
#define NOT_SELECTED (-30000.0F) // its exponential is 0; float16 can represent it

// A mixture of experts on one rank. `at` has the indices of the node's inputs with weights.
struct mixture {
    struct part *part;
    const struct step *st;
    const struct rule_rewrite *rewrite;
    const struct expert_inputs *at;
    int64_t count;              // number of all experts
    struct tile_interval range; // the rank's experts
    tsr_dtype type;             // of the tokens
};

// ---- constants ---------------------------------------------------------------------------------

// Returns the bits of the number 1 in a float type.
static uint32_t one_of(tsr_dtype type)
{
    switch (type) {
    case TSR_FLOAT16:
        return 0x3c00;
    case TSR_BFLOAT16:
        return 0x3f80;
    default:
        return 0x3f800000;
    }
}

// A constant of zeros. If `units` is set, the row of each expert of the rank is a unit vector:
// expert range.start + j has a 1 in column j.
struct tiny_constant {
    int64_t type, rank, dims[3], units;
};

static tsr_value *make_constant(const struct mixture *mixture, const struct tiny_constant *made)
{
    struct part *part = mixture->part;
    tsr_dtype type = (tsr_dtype)made->type;
    size_t size = (size_t)tsr_dtype_bits(type) / 8, n = 1;
    for (int64_t d = 0; d < made->rank; d++)
        n *= (size_t)made->dims[d];
    unsigned char *bytes = ARENA_ARRAY(part->draft->arena, unsigned char, n *size);
    if (!bytes)
        return NULL;
    uint32_t one = one_of(type);
    for (int64_t e = mixture->range.start; made->units && e < mixture->range.stop; e++)
        for (size_t i = 0; i < size; i++)
            bytes[(size_t)(e * made->dims[1] + e - mixture->range.start) * size + i] =
                (unsigned char)(one >> (8 * i));
    return tsr__part_constant(part, tsr_model_graph(part->model), type, (int)made->rank, made->dims,
                              bytes);
}

// Returns a constant of zeros or unit vectors (see tiny_constant). Equal constants are added once.
static tsr_value *constant(const struct mixture *mixture, tsr_dtype type, const int64_t *dims,
                           int rank, bool units)
{
    struct tiny_constant made = {.type = type, .rank = rank, .units = units};
    memcpy(made.dims, dims, (size_t)rank * sizeof *dims);
    // Lists of integers are stored in the same map (emit_util.c), with keys of a multiple of 8
    // bytes. One byte more makes this key different.
    struct {
        int64_t numbers[8];
        char end;
    } key = {.numbers = {made.type, made.rank, made.dims[0], made.dims[1], made.dims[2], made.units,
                         mixture->range.start, mixture->range.stop}};
    void **slot = tsr__map_at_copy(&mixture->part->constants,
                                   str_bytes(&key, sizeof key.numbers + sizeof key.end));
    if (slot && !*slot)
        *slot = make_constant(mixture, &made);
    return slot ? *slot : NULL;
}

static tsr_value *number(struct part *part, float value)
{
    return tsr__part_scalar(part, TSR_FLOAT, &value);
}

// ---- weights of the local experts --------------------------------------------------------------

// Sets `tiny` to the inputs of the node with tiny experts (see the top of this file). `inputs` has
// the local inputs of the real node.
static void fill_tiny(const struct mixture *mixture, tsr_value *const *inputs, tsr_value **tiny)
{
    const struct expert_inputs *at = mixture->at;
    struct part *part = mixture->part;
    int64_t n = mixture->range.stop - mixture->range.start, count = mixture->count;
    int64_t hidden = div_up(n, TINY_SIZE) * TINY_SIZE;
    bool packed = at->first_scales > 0;
    tsr_dtype weights = packed ? TSR_UINT8 : mixture->type;
    tsr_value *router = inputs[mixture->rewrite->input];
    tsr_value *sizes[2] = {tsr__part_slice(part, NODE(part, "Shape", router), 0, 0, 1, NEW_NAME),
                           tsr__part_number(part, hidden)};
    tiny[0] = NODE(part, "Expand", tsr__part_zero(part, mixture->type),
                   tsr__part_concat(part, sizes, 2, 0, NEW_NAME));
    tiny[mixture->rewrite->input] = router;
    tiny[at->first] = constant(mixture, weights, (int64_t[]){count, TINY_SIZE, hidden}, 3, false);
    tiny[at->second] = constant(mixture, weights, (int64_t[]){count, hidden, TINY_SIZE}, 3, false);
    tiny[at->bias] = constant(mixture, mixture->type, (int64_t[]){count, hidden}, 2, true);
    if (!packed)
        return;
    tiny[at->first_scales] =
        constant(mixture, mixture->type, (int64_t[]){count, TINY_SIZE}, 2, false);
    tiny[at->second_scales] =
        constant(mixture, mixture->type, (int64_t[]){count, hidden}, 2, false);
}

// True if the input has a column for each expert, as the router's output has.
static bool is_by_router(const struct mixture *mixture, size_t i)
{
    const struct rule *rule = mixture->st->flow->place.rule;
    const struct rule_tensor *router = &rule->inputs[mixture->rewrite->input];
    if (i >= (size_t)rule->n_inputs || rule->inputs[i].absent || rule->inputs[i].rank < 1)
        return false;
    const struct rule_dim *last = &rule->inputs[i].dims[rule->inputs[i].rank - 1];
    return last->n == 1 && last->factors[0] == router->dims[router->rank - 1].factors[0];
}

// Sets the attributes of the node with tiny experts: those that decide which experts are selected,
// as in the model, and those that its weights need.
static tsr_status set_tiny_attributes(const struct mixture *mixture, tsr_node *tiny)
{
    static const char *const same[] = {"k", "normalize_routing_weights", "use_sparse_mixer"};
    tsr_status status = tsr_node_set_string(tiny, "activation_type", "relu");
    for (size_t i = 0; i < TSR_COUNT(same) && status == TSR_OK; i++) {
        const tsr_attr *attr = tsr_node_find_attr(mixture->st->flow->node, same[i]);
        if (attr || i == 0)
            status = tsr_node_set_int(tiny, same[i], tsr_attr_int(attr, 1));
    }
    if (status == TSR_OK && mixture->at->first_scales > 0)
        status = tsr_node_set_int(tiny, "expert_weight_bits", 8);
    return status;
}

// Adds nodes that return the weights of the rank's experts, float32 with one row per token and one
// column per expert.
static tsr_value *local_weights(const struct mixture *mixture, tsr_value **inputs, size_t n_inputs)
{
    struct part *part = mixture->part;
    const tsr_node *node = mixture->st->flow->node;
    tsr_value **tiny = ARENA_ARRAY(part->draft->arena, tsr_value *, n_inputs + MORE_INPUTS);
    struct str name = tsr__part_new_name(part);
    if (!tiny || !name.p)
        return NULL;
    fill_tiny(mixture, inputs, tiny);
    size_t n = 0;
    for (size_t i = 0; i < n_inputs + MORE_INPUTS; i++) {
        if (i < n_inputs && i != (size_t)mixture->rewrite->input && is_by_router(mixture, i)) {
            tiny[i] = inputs[i];
            inputs[i] = NULL; // the weights of the local node are in its router input
        }
        n = tiny[i] ? i + 1 : n;
    }
    tsr_node *made = tsr_graph_add_node(part->graph, tsr_node_domain(node), tsr_node_op(node),
                                        name.p, tiny, n, &name.p, 1);
    if (!made || set_tiny_attributes(mixture, made) != TSR_OK)
        return NULL;
    int64_t experts = mixture->range.stop - mixture->range.start;
    tsr_value *weights = tsr_node_output(made, 0);
    if (experts % TINY_SIZE)
        weights = tsr__part_slice(part, weights, 1, 0, experts, NEW_NAME);
    if (mixture->type == TSR_FLOAT)
        return weights;
    return tsr__part_cast(part, weights, TSR_FLOAT, NEW_NAME);
}

// ---- around the node ---------------------------------------------------------------------------

static tsr_value *largest(struct part *part, tsr_value *x)
{
    static const int64_t axis = 1;
    if (part->draft->opset >= 18)
        return NODE(part, "ReduceMax", x, tsr__part_number(part, axis));
    return tsr__with_ints(NODE(part, "ReduceMax", x), "axes", &axis, 1);
}

// Adds nodes that return the router input of the local node: log(weight / largest weight) for each
// expert. If all weights are 0, the input is the same for all experts.
static tsr_value *local_router(const struct mixture *mixture, tsr_value *weights)
{
    struct part *part = mixture->part;
    tsr_value *divisor = largest(part, weights);
    if (tsr__part_on_cuda(part))
        divisor = NODE(part, "Max", divisor, number(part, FLT_MIN));
    tsr_value *share = NODE(part, "Div", weights, divisor);
    tsr_value *router = NODE(part, "Max", NODE(part, "Log", share), number(part, NOT_SELECTED));
    if (mixture->type == TSR_FLOAT)
        return router;
    return tsr__part_cast(part, router, mixture->type, NEW_NAME);
}

// Returns the first token if the list of tokens is empty, else the list.
static tsr_value *at_least_one(struct part *part, tsr_value *tokens)
{
    tsr_value *list[2] = {tokens, tsr__part_number(part, 0)};
    tsr_value *count =
        tsr__part_largest(part, NODE(part, "Shape", tokens), tsr__part_number(part, 1));
    return NODE(part, "Slice", tsr__part_concat(part, list, 2, 0, NEW_NAME),
                tsr__part_number(part, 0), count);
}

// Selects the tokens that use an expert of this rank, and replaces the node's inputs by the rows of
// these tokens. The CUDA kernel refuses 0 tokens (quirk moe_of_no_tokens). A rank on a GPU without
// such tokens runs its experts on zeros in place of the first token. The sum of the weights is 0,
// so the result is 0 as well.
static void select_tokens(const struct mixture *mixture, tsr_value **inputs, size_t n_inputs,
                          struct route *route)
{
    struct part *part = mixture->part;
    const struct rule *rule = mixture->st->flow->place.rule;
    const struct rule_dim *hidden = &rule->inputs[0].dims[rule->inputs[0].rank - 1];
    int64_t rows[] = {-1, rule->factors[hidden->factors[0]].size.value};
    tsr_value *weights = local_weights(mixture, inputs, n_inputs);
    tsr_value *sum = NODE(part, "ReduceSum", weights, tsr__part_number(part, 1));
    tsr_value *found = NODE(part, "NonZero", sum);
    route->tokens =
        NODE(part, "Reshape", found ? tsr__part_slice(part, found, 0, 0, 1, NEW_NAME) : NULL,
             tsr__part_number(part, -1));
    if (tsr__part_on_cuda(part) && route->tokens)
        route->tokens = at_least_one(part, route->tokens);
    route->all = inputs[0];
    if (rule->inputs[0].rank == 3)
        route->all = NODE(part, "Reshape", inputs[0], tsr__part_ints(part, rows, 2));
    route->sum = NODE(part, "Gather", sum, route->tokens);
    inputs[0] = NODE(part, "Gather", route->all, route->tokens);
    if (tsr__part_on_cuda(part))
        inputs[0] = NODE(part, "Where", tsr__part_cast(part, route->sum, TSR_BOOL, NEW_NAME),
                         inputs[0], tsr__part_zero(part, mixture->type));
    inputs[mixture->rewrite->input] =
        local_router(mixture, NODE(part, "Gather", weights, route->tokens));
}

tsr_status tsr__route_begin(struct part *part, const struct step *st, tsr_value **inputs,
                            struct route *route)
{
    const struct rule_rewrite *rewrite = tsr__sharded_rewrite(st->flow, REWRITE_ROUTE);
    *route = (struct route){0};
    if (!rewrite)
        return TSR_OK;
    struct mixture mixture = {.part = part,
                              .st = st,
                              .rewrite = rewrite,
                              .at = tsr__node_experts(st->flow->node),
                              .count = st->flow->place.rule->factors[rewrite->factor].size.value,
                              .range = tsr__part_range(part, st->flow, rewrite->factor),
                              .type = st->inputs[0]->item->dtype};
    route->given = inputs[0];
    route->experts = mixture.range.stop - mixture.range.start;
    select_tokens(&mixture, inputs, st->n_node_inputs, route);
    return status_of_alloc(inputs[0] && inputs[rewrite->input] ? route->sum : NULL);
}

tsr_status tsr__route_attributes(const struct route *route, tsr_node *node)
{
    int64_t k = tsr_attr_int(tsr_node_find_attr(node, "k"), 1);
    TRY(tsr_node_set_int(node, "k", int64_min(k, route->experts)));
    if (tsr_node_find_attr(node, "use_sparse_mixer"))
        TRY(tsr_node_remove_attr(node, "use_sparse_mixer"));
    return TSR_OK;
}

tsr_status tsr__route_end(struct part *part, struct step *st, const struct route *route,
                          tsr_value *made, struct str name)
{
    static const int64_t column[] = {-1, 1};
    tsr_dtype type = st->outputs[0]->item->dtype;
    bool flat = route->all == route->given;
    tsr_value *sum = route->sum;
    if (type != TSR_FLOAT)
        sum = tsr__part_cast(part, sum, type, NEW_NAME);
    tsr_value *zeros =
        NODE(part, "Expand", tsr__part_zero(part, type), NODE(part, "Shape", route->all));
    tsr_value *y = NAMED_NODE(part, "ScatterND", flat ? name : NEW_NAME, zeros,
                              NODE(part, "Reshape", route->tokens, tsr__part_ints(part, column, 2)),
                              NODE(part, "Mul", made, sum));
    if (!flat)
        y = NAMED_NODE(part, "Reshape", name, y, NODE(part, "Shape", route->given));
    st->outputs[0]->local[part->rank] = y;
    return status_of_alloc(y);
}
