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

static const struct str any = {0};

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
    struct str name = tsr__part_new_name(part);
    if (!bytes || !name.p)
        return NULL;
    uint32_t one = one_of(type);
    for (int64_t e = mixture->range.start; made->units && e < mixture->range.stop; e++)
        for (size_t i = 0; i < size; i++)
            bytes[(size_t)(e * made->dims[1] + e - mixture->range.start) * size + i] =
                (unsigned char)(one >> (8 * i));
    return tsr_graph_add_initializer(tsr_model_graph(part->model), name.p, type, (int)made->rank,
                                     made->dims, bytes, n * size);
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

static tsr_value *zero_of(struct part *part, tsr_dtype type)
{
    static const int64_t zero = 0;
    struct str name = tsr__part_new_name(part);
    if (!name.p)
        return NULL;
    return tsr_graph_add_initializer(tsr_model_graph(part->model), name.p, type, 0, NULL, &zero,
                                     (size_t)tsr_dtype_bits(type) / 8);
}

static tsr_value *number(struct part *part, float value)
{
    struct str name = tsr__part_new_name(part);
    if (!name.p)
        return NULL;
    return tsr_graph_add_initializer(tsr_model_graph(part->model), name.p, TSR_FLOAT, 0, NULL,
                                     &value, sizeof value);
}

// ---- weights of the local experts --------------------------------------------------------------

// Sets `tiny` to the inputs of the node with tiny experts (see the top of this file). `inputs` has
// the local inputs of the real node.
static void fill_tiny(const struct mixture *mixture, tsr_value *const *inputs, tsr_value **tiny)
{
    const struct expert_inputs *at = mixture->at;
    struct part *part = mixture->part;
    int64_t n = mixture->range.stop - mixture->range.start, count = mixture->count;
    int64_t hidden = div_up(n, TINY_SIZE) * TINY_SIZE, zero = 0;
    bool packed = at->first_scales > 0;
    tsr_dtype weights = packed ? TSR_UINT8 : mixture->type;
    tsr_value *router = inputs[mixture->rewrite->index];
    tsr_value *sizes[2] = {
        tsr__part_slice(part, tsr__part_node(part, "Shape", any, 1, router), 0, 0, 1, any),
        tsr__part_ints(part, &hidden, 1)};
    tiny[0] = tsr__part_node(part, "Expand", any, 2, zero_of(part, mixture->type),
                             tsr__part_concat(part, sizes, 2, zero, any));
    tiny[mixture->rewrite->index] = router;
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
    const struct rule_tensor *router = &rule->inputs[mixture->rewrite->index];
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
    tsr_value **tiny = ARENA_ARRAY(part->draft->arena, tsr_value *, n_inputs + 8);
    struct str name = tsr__part_new_name(part);
    if (!tiny || !name.p)
        return NULL;
    fill_tiny(mixture, inputs, tiny);
    size_t n = 0;
    for (size_t i = 0; i < n_inputs + 8; i++) {
        if (i < n_inputs && i != (size_t)mixture->rewrite->index && is_by_router(mixture, i)) {
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
        weights = tsr__part_slice(part, weights, 1, 0, experts, any);
    if (mixture->type == TSR_FLOAT)
        return weights;
    return tsr__part_cast(part, weights, TSR_FLOAT, any);
}

// ---- around the node ---------------------------------------------------------------------------

static tsr_value *largest(struct part *part, tsr_value *x)
{
    static const int64_t axis = 1;
    if (part->draft->opset >= 18)
        return tsr__part_node(part, "ReduceMax", any, 2, x, tsr__part_ints(part, &axis, 1));
    return tsr__with_ints(tsr__part_node(part, "ReduceMax", any, 1, x), "axes", &axis, 1);
}

// Adds nodes that return the router input of the local node: log(weight / largest weight) for each
// expert. If all weights are 0, the input is the same for all experts.
static tsr_value *local_router(const struct mixture *mixture, tsr_value *weights)
{
    struct part *part = mixture->part;
    tsr_value *divisor = largest(part, weights);
    if (tsr__part_on_cuda(part))
        divisor = tsr__part_node(part, "Max", any, 2, divisor, number(part, FLT_MIN));
    tsr_value *share = tsr__part_node(part, "Div", any, 2, weights, divisor);
    tsr_value *router =
        tsr__part_node(part, "Max", any, 2, tsr__part_node(part, "Log", any, 1, share),
                       number(part, NOT_SELECTED));
    if (mixture->type == TSR_FLOAT)
        return router;
    return tsr__part_cast(part, router, mixture->type, any);
}

// Returns the first token if the list of tokens is empty, else the list.
static tsr_value *at_least_one(struct part *part, tsr_value *tokens)
{
    static const int64_t zero = 0, one = 1;
    tsr_value *list[2] = {tokens, tsr__part_ints(part, &zero, 1)};
    tsr_value *count = tsr__part_largest(part, any, tsr__part_node(part, "Shape", any, 1, tokens),
                                         tsr__part_ints(part, &one, 1));
    return tsr__part_node(part, "Slice", any, 3, tsr__part_concat(part, list, 2, 0, any),
                          tsr__part_ints(part, &zero, 1), count);
}

// Selects the tokens that use an expert of this rank, and replaces the node's inputs by the rows of
// these tokens. The CUDA kernel refuses 0 tokens (quirk moe_of_no_tokens). A rank on a GPU without
// such tokens runs its experts on zeros in place of the first token. The sum of the weights is 0,
// so the result is 0 as well.
static void select_tokens(const struct mixture *mixture, tsr_value **inputs, size_t n_inputs,
                          struct route *route)
{
    static const int64_t axis = 1, flat = -1;
    struct part *part = mixture->part;
    const struct rule *rule = mixture->st->flow->place.rule;
    const struct rule_dim *hidden = &rule->inputs[0].dims[rule->inputs[0].rank - 1];
    int64_t rows[] = {-1, rule->factors[hidden->factors[0]].size.value};
    tsr_value *weights = local_weights(mixture, inputs, n_inputs);
    tsr_value *sum =
        tsr__part_node(part, "ReduceSum", any, 2, weights, tsr__part_ints(part, &axis, 1));
    tsr_value *found = tsr__part_node(part, "NonZero", any, 1, sum);
    route->tokens = tsr__part_node(part, "Reshape", any, 2,
                                   found ? tsr__part_slice(part, found, 0, 0, 1, any) : NULL,
                                   tsr__part_ints(part, &flat, 1));
    if (tsr__part_on_cuda(part) && route->tokens)
        route->tokens = at_least_one(part, route->tokens);
    route->all = inputs[0];
    if (rule->inputs[0].rank == 3)
        route->all =
            tsr__part_node(part, "Reshape", any, 2, inputs[0], tsr__part_ints(part, rows, 2));
    route->sum = tsr__part_node(part, "Gather", any, 2, sum, route->tokens);
    inputs[0] = tsr__part_node(part, "Gather", any, 2, route->all, route->tokens);
    if (tsr__part_on_cuda(part))
        inputs[0] =
            tsr__part_node(part, "Where", any, 3, tsr__part_cast(part, route->sum, TSR_BOOL, any),
                           inputs[0], zero_of(part, mixture->type));
    inputs[mixture->rewrite->index] =
        local_router(mixture, tsr__part_node(part, "Gather", any, 2, weights, route->tokens));
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
    return status_of_alloc(inputs[0] && inputs[rewrite->index] ? route->sum : NULL);
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
        sum = tsr__part_cast(part, sum, type, any);
    tsr_value *zeros = tsr__part_node(part, "Expand", any, 2, zero_of(part, type),
                                      tsr__part_node(part, "Shape", any, 1, route->all));
    tsr_value *y = tsr__part_node(
        part, "ScatterND", flat ? name : any, 3, zeros,
        tsr__part_node(part, "Reshape", any, 2, route->tokens, tsr__part_ints(part, column, 2)),
        tsr__part_node(part, "Mul", any, 2, made, sum));
    if (!flat)
        y = tsr__part_node(part, "Reshape", name, 2, y,
                           tsr__part_node(part, "Shape", any, 1, route->given));
    st->outputs[0]->local[part->rank] = y;
    return status_of_alloc(y);
}
