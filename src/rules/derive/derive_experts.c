// SPDX-License-Identifier: Apache-2.0
// derive_experts.c - rules of mixtures of experts. Tokens, experts e and the inner size i of all
// experts can be sharded. The second layer sums over i. If i is sharded, both halves of the first
// layer (gate and value) are sharded equally, and no block of packed weights is split.
//
// Example: 8 experts of 64 -> 256 -> 64 for tokens [6 64] and router outputs [6 8]:
//
//   [t m],[t r],[e i m],[e i]?,[e m i],[e m]?,... -> [t m]; rep m r; red e:sum i:sum; once 5; route
//     1 e
//   t 6, m 64, r 8, e 8, i 256
//
// Sharded in 2 along i, each device has 128 of the inner size of every expert. Sharded in 2 along
// e, each device has 4 experts and runs them on the tokens that selected one of them. In both cases
// the results are added.
#include "rules/derive/derive.h"

struct layers {
    int64_t inner; // size that the second layer reads
    int64_t rows;  // rows of the first layer for each element of the inner size
    bool together; // these rows are adjacent: (i f) instead of (f i)
};

// Reads the sizes of both layers. A first layer of 512 rows for an inner size of 256 has 2 rows for
// each element: gate and value. False: the sizes are unknown or do not divide.
static bool read_layers(const struct derivation *derivation, size_t first, int64_t inner,
                        struct layers *layers)
{
    struct shape w = tsr__derive_in(derivation, first);
    int64_t rows = w.rank == 3 ? w.dims[1].value : -1;
    layers->inner = inner;
    layers->together = tsr__derive_int(derivation, "swiglu_fusion", 0) == 1;
    layers->rows = inner > 0 && rows > 0 && rows % inner == 0 ? rows / inner : 0;
    return layers->rows > 0;
}

static bool in_batches(const struct derivation *derivation)
{
    return tsr__derive_in(derivation, 0).rank == 3;
}

// Adds tokens and router outputs. In the router's output, one dimension has the tokens of all
// batches.
static void add_tokens(struct derivation *derivation)
{
    tsr__rule_inputs(&derivation->rule,
                     in_batches(derivation) ? "[b t m],[(b t) r]" : "[t m],[t r]");
}

#define ROUTE_OPSET 13   // oldest opset for which local nodes are written (emit_route.c)
#define ROUTE_MOST  1024 // largest number of experts, which bounds the constants of local nodes

// Inputs of QMoE: scales of experts (global ones, of activations), and of blocks of activations.
enum { GLOBAL_SCALES = 15, BLOCK_SCALES = 19 };

// True if it is known for each input whether it has a row per expert. Weights have one, scales of
// experts have one if they have as many rows. The weights of MoE all have a place in its rule.
static bool rows_are_known(const struct derivation *derivation)
{
    for (size_t i = 2; i < BLOCK_SCALES; i++) {
        struct shape shape = tsr__derive_in(derivation, i);
        if (tsr__derive_has(derivation, i) &&
            (shape.rank < 0 || (i >= GLOBAL_SCALES && shape.rank > 0 && shape.dims[0].value < 0)))
            return false;
    }
    return true;
}

// True if experts can be sharded: their number, the size of a token and k are known, there are at
// most ROUTE_MOST experts, and the opset is at least ROUTE_OPSET.
static bool can_route(const struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0), w = tsr__derive_in(derivation, 2);
    int64_t k = tsr__derive_int(derivation, "k", 1);
    return tsr__onnx_opset(derivation->node) >= ROUTE_OPSET && x.rank >= 2 &&
           x.dims[x.rank - 1].value > 0 && w.rank == 3 && k >= 1 && k <= w.dims[0].value &&
           w.dims[0].value <= ROUTE_MOST && rows_are_known(derivation);
}

// Adds the result, and the clauses of tokens and experts.
static void end_tokens(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int experts = tsr__rule_find(rule, STR("e"));
    tsr__rule_outputs(rule, in_batches(derivation) ? "[b t m]" : "[t m]");
    tsr__rule_kind(rule, FACTOR_REP, "m r");
    if (!can_route(derivation)) {
        tsr__rule_kind_if(rule, experts >= 0, FACTOR_REP, "e");
        return;
    }
    tsr__rule_reduce(rule, experts, COMBINE_SUM);
    tsr__rule_rewrite(rule,
                      (struct rule_rewrite){.kind = REWRITE_ROUTE, .input = 1, .factor = experts});
}

// Adds an input "[e ROWS AFTER]"; rows and after are dimensions as text.
static void add_rows(struct rule_builder *rule, const char *rows, const char *after)
{
    tsr__rule_input(rule);
    tsr__rule_dims(rule, "e");
    tsr__rule_dims(rule, rows);
    tsr__rule_dims(rule, after);
}

// Derives the rule of MoE. With two halves in the first layer, its rows are (i f) or (f i), where f
// is 2.
void tsr__derive_experts(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct layers layers;
    struct shape second = tsr__derive_in(derivation, 4);
    if (tsr__derive_rank(derivation, 0) < 0)
        return;
    bool known = second.rank == 3 && read_layers(derivation, 2, second.dims[2].value, &layers);
    const char *inner = known ? "i" : "_", *rows = inner;
    if (known && layers.rows != 1)
        rows = layers.together ? "(i f)" : "(f i)";
    add_tokens(derivation);
    add_rows(rule, rows, "m");
    add_rows(rule, rows, "");
    tsr__rule_optional(rule);
    add_rows(rule, "m", inner);
    tsr__rule_inputs(rule, "[e m]?");
    add_rows(rule, inner, "m");
    tsr__rule_optional(rule);
    add_rows(rule, inner, "");
    tsr__rule_optional(rule);
    end_tokens(derivation);
    if (!known)
        return;
    tsr__rule_clauses(rule, "red i:sum; once 5");
    if (layers.rows > 1) {
        tsr__derive_size(derivation, "f", layers.rows);
        tsr__rule_kind(rule, FACTOR_REP, "f");
    }
}

// ---- packed weights ----------------------------------------------------------------------------

// How the inner size of packed weights is divided into units. The elements of a unit must be on one
// device in the second layer.
struct packed {
    struct layers layers;
    int64_t unit, bytes; // elements of a unit, and the bytes that they are packed into
    int64_t scales;      // number of scales of a unit; 0: one scale for a row
};

static int64_t bits_of(const struct derivation *derivation, const char *own)
{
    int64_t bits = tsr__derive_int(derivation, own, 0);
    return bits > 0 ? bits : tsr__derive_int(derivation, "expert_weight_bits", 4);
}

// True if zero points are packed along the rows of a first layer: a shard boundary would split a
// byte.
static bool points_by_row(const struct derivation *derivation, size_t i, int64_t bits)
{
    return tsr__derive_has(derivation, i) && bits < 8 && tsr__derive_in(derivation, i).rank != 3;
}

// Reads the packing. False: weights in this packing cannot be sharded. Example: 4 bits in blocks of
// 32 give units of 32 elements, 16 bytes, 1 scale. With zero points, of which two share a byte,
// units have 64 elements, 32 bytes, 2 scales.
static bool read_packed(const struct derivation *derivation, struct packed *packed)
{
    int64_t bits = bits_of(derivation, "fc2_expert_weight_bits"),
            block = tsr__derive_int(derivation, "block_size", 0);
    struct shape w = tsr__derive_in(derivation, 5);
    if (tsr__derive_attr(derivation, "quant_type") || (bits != 2 && bits != 4 && bits != 8) ||
        tsr__derive_int(derivation, "weights_prepacked", 0) > 0 || w.rank != 3 ||
        w.dims[2].value < 1 || w.dims[2].value > INT32_MAX || block < 0 || block > INT32_MAX ||
        points_by_row(derivation, 11, bits_of(derivation, "fc1_expert_weight_bits")) ||
        points_by_row(derivation, 13, bits_of(derivation, "fc3_expert_weight_bits")))
        return false;
    int64_t inner = w.dims[2].value * 8 / bits, per_byte = 8 / bits;
    if (block == 0) { // one scale for a row: only bytes must not be split
        packed->scales = 0;
        packed->unit = per_byte;
    } else {
        // `per_byte` zero points share a byte.
        packed->scales = tsr__derive_has(derivation, 12) ? per_byte : 1;
        packed->unit = block * packed->scales;
    }
    packed->bytes = packed->unit / per_byte;
    return inner % packed->unit == 0 && packed->unit % per_byte == 0 &&
           read_layers(derivation, 2, inner, &packed->layers);
}

// Adds input i "[e ROWS]", or "[e ROWS _]" if it has three dimensions.
static void add_packed_rows(struct derivation *derivation, size_t i, const char *rows)
{
    add_rows(&derivation->rule, rows, tsr__derive_in(derivation, i).rank == 3 ? "_" : "");
    tsr__rule_optional(&derivation->rule);
}

// Adds input i "[e m UNITS]", or "[e _]" if it does not have three dimensions.
static void add_units(struct derivation *derivation, size_t i, const char *units)
{
    bool units_apart = tsr__derive_in(derivation, i).rank == 3;
    add_rows(&derivation->rule, units_apart ? "m" : "_", units_apart ? units : "");
    tsr__rule_optional(&derivation->rule);
}

// Adds the inputs `from` to `to` - 1. Only their first dimension can be sharded, and only if its
// size is the number of experts. Weights of unknown size have that many, or the kernel refuses
// them.
static void add_rest(struct derivation *derivation, size_t from, size_t to)
{
    struct shape w = tsr__derive_in(derivation, 2);
    int64_t experts = w.rank == 3 ? w.dims[0].value : -1;
    for (size_t i = from; i < to; i++) {
        struct shape shape = tsr__derive_in(derivation, i);
        int rank = (int)clamped(shape.rank, 0, DERIVE_MAX_RANK);
        bool by_expert =
            rank > 0 && experts > 0 &&
            (shape.dims[0].value == experts || (i < GLOBAL_SCALES && shape.dims[0].value < 0));
        tsr__rule_input(&derivation->rule);
        if (by_expert)
            tsr__rule_dims(&derivation->rule, "e");
        tsr__rule_any(&derivation->rule, rank - by_expert);
        tsr__rule_optional(&derivation->rule);
    }
}

// Adds router weights, global scales and scales of activations. Scales of blocks of activations are
// not sharded.
static void add_later(struct derivation *derivation)
{
    tsr__rule_inputs(&derivation->rule, in_batches(derivation) ? "[(b t) r]?" : "[t r]?");
    add_rest(derivation, GLOBAL_SCALES, BLOCK_SCALES);
    for (size_t i = BLOCK_SCALES; i < BLOCK_SCALES + 2; i++) {
        tsr__rule_input(&derivation->rule);
        tsr__rule_any(&derivation->rule,
                      (int)clamped(tsr__derive_in(derivation, i).rank, 0, DERIVE_MAX_RANK));
        tsr__rule_optional(&derivation->rule);
    }
}

// Builds the rule for weights of unknown packing: only tokens and experts can be sharded.
static void unknown_packing(struct derivation *derivation)
{
    add_rest(derivation, 2, 14);
    add_later(derivation);
    end_tokens(derivation);
}

// Derives the rule of QMoE. Example: 4 bits in blocks of 32 with zero points. Two zero points share
// a byte, so a unit u is 2 blocks: z = 64 elements, y = 32 bytes, p = 2 scales. Only u is sharded,
// so no byte or block is split.
void tsr__derive_quantized_experts(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct packed packed;
    if (tsr__derive_rank(derivation, 0) < 0)
        return;
    add_tokens(derivation);
    if (!read_packed(derivation, &packed)) {
        unknown_packing(derivation);
        return;
    }
    bool halves = packed.layers.rows > 1, groups = packed.scales > 1;
    const char *rows = "(u z)";
    if (halves)
        rows = packed.layers.together ? "(u z f)" : "(f u z)";
    for (size_t i = 2; i < 5; i++)
        add_packed_rows(derivation, i, rows);
    tsr__rule_inputs(rule, "[e m (u y)]");
    add_units(derivation, 6, groups ? "(u p)" : "u");
    tsr__rule_inputs(rule, "[e m]?");
    for (size_t i = 8; i < 11; i++)
        add_packed_rows(derivation, i, "(u z)");
    add_packed_rows(derivation, 11, rows);
    add_units(derivation, 12, "u");
    add_packed_rows(derivation, 13, "(u z)");
    add_later(derivation);
    end_tokens(derivation);
    tsr__rule_clauses(rule, "red u:sum; rep z y; once 7");
    tsr__rule_kind_if(rule, halves, FACTOR_REP, "f");
    tsr__rule_kind_if(rule, groups, FACTOR_REP, "p");
    tsr__derive_size(derivation, "z", packed.unit);
    tsr__derive_size(derivation, "y", packed.bytes);
    tsr__derive_size(derivation, "f", packed.layers.rows);
    tsr__derive_size(derivation, "p", packed.scales);
}
