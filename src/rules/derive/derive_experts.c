// SPDX-License-Identifier: Apache-2.0
// derive_experts.c - rules of mixtures of experts. Tokens can be sharded. The second layer sums
// over the inner size i of all experts, so it can be sharded too, if the first layer's halves (gate
// and value) are sharded equally and no block of packed weights is split. Experts can be sharded if
// the node can be expanded (expand_experts.c); otherwise not, since the operator chooses among
// those it sees.
//
// 8 experts of 64 -> 256 -> 64 for tokens [6 64] and router outputs [6 8]:
//
//   [t m],[t e],[e i m],[e i]?,[e m i],[e m]?,... -> [t m]; rep m; stat e; red i:sum; once 5
//   t 6, m 64, e 8, i 256
//
// Sharded in 2 along i, each device has 128 of the inner size of every expert, and the results are
// added. Sharded in 2 along e, the node is expanded, and each device has 4 experts.
#include "rules/derive/derive.h"

// How many rows of the first layer belong to one of the inner size, and whether they lie together.
struct layers {
    int64_t inner, rows;
    bool together; // (i f) instead of (f i)
};

// inner: what the second layer reads. A first layer of 512 rows for an inner size of 256 has 2 rows
// for each: gate and value.
static bool read_layers(const struct derivation *derivation, size_t first, int64_t inner,
                        struct layers *layers)
{
    struct shape w = tsr__derive_in(derivation, first);
    int64_t rows = -1;
    if (w.rank == 3)
        rows = w.dims[1].value;
    layers->inner = inner;
    layers->together = tsr__derive_int(derivation, "swiglu_fusion", 0) == 1;
    layers->rows = 0;
    if (inner > 0 && rows > 0 && rows % inner == 0)
        layers->rows = rows / inner;
    return layers->rows > 0;
}

// How tokens lie, what the router says of each, and which experts it chose: by rank of the input,
// one long row of tokens or batches of rows. The router knows no batches.
static const struct {
    const char *tokens, *router, *choice;
} forms[] = {{"[t m]", "[t e]", ",[t e]?"}, {"[b t m]", "[(b t) e]", ",[(b t) e]?"}};

static bool in_batches(const struct derivation *derivation)
{
    return tsr__derive_in(derivation, 0).rank == 3;
}

static void add_tokens(struct derivation *derivation)
{
    bool batches = in_batches(derivation);
    tsr__derive_add(derivation, "%s,%s", forms[batches].tokens, forms[batches].router);
}

static void end_tokens(struct derivation *derivation, const char *experts)
{
    tsr__derive_add(derivation, " -> %s; rep m; %s e", forms[in_batches(derivation)].tokens,
                    experts);
}

// Two layers without halves, and an activation that has a plain operator.
static bool can_be_taken_apart(const struct derivation *derivation)
{
    static const char *const known[] = {"relu", "silu", "identity"};
    struct shape w = tsr__derive_in(derivation, 2), v = tsr__derive_in(derivation, 4);
    size_t n = 0;
    bool plain =
        !tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, "activation_type"), &n);
    for (size_t i = 0; i < TSR_COUNT(known); i++)
        plain = plain || tsr__derive_text_is(derivation, "activation_type", known[i]);
    if (!plain || tsr__derive_has(derivation, 6) ||
        tsr__derive_int(derivation, "use_sparse_mixer", 0) || w.rank != 3 || v.rank != 3)
        return false;
    return w.dims[0].value > 0 && w.dims[2].value > 0 && w.dims[1].value > 0 &&
           w.dims[1].value == v.dims[2].value && tsr__derive_int(derivation, "k", 1) >= 1 &&
           tsr__derive_int(derivation, "k", 1) <= w.dims[0].value;
}

// How the rows of a first layer with two halves are written.
static const char *halves_of(const struct layers *layers, const char *together, const char *apart)
{
    if (layers->together)
        return together;
    return apart;
}

// 8 experts of 64 -> 256 -> 64 without halves: "[t m],[t e],[e i m],[e i]?,[e m i],[e m]?,..." with
// e 8, m 64, i 256. With two halves in the first layer its rows are (i f) or (f i), f 2.
void tsr__derive_experts(struct derivation *derivation)
{
    struct layers layers;
    struct shape second = tsr__derive_in(derivation, 4);
    if (tsr__derive_rank(derivation, 0) < 0)
        return;
    bool known = second.rank == 3 && read_layers(derivation, 2, second.dims[2].value, &layers);
    const char *inner = "_", *rows = "_";
    if (known)
        inner = rows = "i";
    if (known && layers.rows != 1)
        rows = halves_of(&layers, "(i f)", "(f i)");
    add_tokens(derivation);
    tsr__derive_add(derivation, ",[e %s m],[e %s]?,[e m %s],[e m]?,[e %s m]?,[e %s]?", rows, rows,
                    inner, inner, inner);
    end_tokens(derivation,
               tsr__derive_stat_if(can_be_taken_apart(derivation), derivation, 13, EXPAND_FLOATS));
    if (known)
        tsr__derive_add(derivation, "; red i:sum; once 5");
    if (known && layers.rows > 1) {
        tsr__derive_size(derivation, STR("f"), (tsr_dim){layers.rows, ""});
        tsr__derive_add(derivation, "; rep f");
    }
}

// ---- packed weights ----------------------------------------------------------------------------

// The inner size is made of units: as many elements as must stay together in the second layer.
struct packed {
    struct layers layers;
    int64_t unit, bytes; // elements of a unit, and bytes they are packed into
    int64_t scales;      // of a unit; 0: one scale for a row
};

static int64_t bits_of(const struct derivation *derivation, const char *own)
{
    int64_t bits = tsr__derive_int(derivation, own, 0);
    if (bits > 0)
        return bits;
    return tsr__derive_int(derivation, "expert_weight_bits", 4);
}

// Zero points that are packed along the rows of a first layer: a cut would go through a byte.
static bool points_by_row(const struct derivation *derivation, size_t i, int64_t bits)
{
    return tsr__derive_has(derivation, i) && bits < 8 && tsr__derive_in(derivation, i).rank != 3;
}

// False: the packing is not one of those that can be cut. 4 bits in blocks of 32: a unit is 32
// elements, 16 bytes, 1 scale; with zero points, of which two share a byte, it is 64 elements, 32
// bytes, 2 scales.
static bool read_packed(const struct derivation *derivation, struct packed *packed)
{
    int64_t bits = bits_of(derivation, "fc2_expert_weight_bits"),
            block = tsr__derive_int(derivation, "block_size", 0);
    struct shape w = tsr__derive_in(derivation, 5);
    if (tsr__attr_of(derivation->shapes, derivation->node, "quant_type") ||
        (bits != 2 && bits != 4 && bits != 8) ||
        tsr__derive_int(derivation, "weights_prepacked", 0) > 0 || w.rank != 3 ||
        w.dims[2].value < 1 || w.dims[2].value > INT32_MAX || block < 0 || block > INT32_MAX ||
        points_by_row(derivation, 11, bits_of(derivation, "fc1_expert_weight_bits")) ||
        points_by_row(derivation, 13, bits_of(derivation, "fc3_expert_weight_bits")))
        return false;
    int64_t inner = w.dims[2].value * 8 / bits, per_byte = 8 / bits;
    if (block == 0) { // one scale for a row: only bytes must stay together
        packed->scales = 0;
        packed->unit = per_byte;
    } else {
        packed->scales = 1;
        if (tsr__derive_has(derivation, 12)) // this many zero points share a byte
            packed->scales = per_byte;
        packed->unit = block * packed->scales;
    }
    packed->bytes = packed->unit / per_byte;
    return inner % packed->unit == 0 && packed->unit % per_byte == 0 &&
           read_layers(derivation, 2, inner, &packed->layers);
}

// [e rows] with dimensions after it that stay whole; none: the input is not there.
static void add_rows(struct derivation *derivation, size_t i, const char *rows)
{
    int rank = tsr__derive_in(derivation, i).rank;
    tsr__derive_add(derivation, ",[e %s%s]?", rows, text_if(rank == 3, " _"));
}

static void add_units(struct derivation *derivation, size_t i, const char *units)
{
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank == 3)
        tsr__derive_add(derivation, ",[e m %s]?", units);
    else
        tsr__derive_add(derivation, ",[e _]?");
}

// Inputs that nothing is known of, whole in all their dimensions.
static void add_rest(struct derivation *derivation, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        int rank = tsr__derive_in(derivation, i).rank;
        tsr__derive_add(derivation, ",[");
        for (int k = 0; k < (int)clamped(rank, 0, DERIVE_MAX_RANK); k++)
            tsr__derive_add(derivation, "_ ");
        tsr__derive_add(derivation, "]?");
    }
}

static void add_choice(struct derivation *derivation)
{
    tsr__derive_add(derivation, "%s", forms[in_batches(derivation)].choice);
}

// 4 bits in blocks of 32 with zero points: two zero points share a byte, so a unit u is 2 blocks:
// z = 64 elements, y = 32 bytes, p = 2 scales. Only u is cut; a cut inside a unit would split a
// byte or a block. Without readable packing no weight is cut, only tokens are.
void tsr__derive_quantized_experts(struct derivation *derivation)
{
    struct packed packed;
    if (tsr__derive_rank(derivation, 0) < 0)
        return;
    add_tokens(derivation);
    if (!read_packed(derivation, &packed)) {
        add_rest(derivation, 2, 14);
        add_choice(derivation);
        add_rest(derivation, 15, 21);
        end_tokens(derivation, "rep");
        return;
    }
    bool twice = packed.layers.rows > 1;
    const char *rows = "(u z)", *scales = "u";
    if (twice)
        rows = halves_of(&packed.layers, "(u z f)", "(f u z)");
    if (packed.scales > 1)
        scales = "(u p)";
    for (size_t i = 2; i < 5; i++)
        add_rows(derivation, i, rows);
    tsr__derive_add(derivation, ",[e m (u y)]");
    add_units(derivation, 6, scales);
    tsr__derive_add(derivation, ",[e m]?");
    for (size_t i = 8; i < 11; i++)
        add_rows(derivation, i, "(u z)");
    add_rows(derivation, 11, rows);
    add_units(derivation, 12, "u");
    add_rows(derivation, 13, "(u z)");
    add_choice(derivation);
    add_rest(derivation, 15, 21);
    end_tokens(derivation, "rep");
    tsr__derive_add(derivation, "; red u:sum; rep z y%s%s; once 7", text_if(twice, " f"),
                    text_if(packed.scales > 1, " p"));
    tsr__derive_size(derivation, STR("z"), (tsr_dim){packed.unit, ""});
    tsr__derive_size(derivation, STR("y"), (tsr_dim){packed.bytes, ""});
    tsr__derive_size(derivation, STR("f"), (tsr_dim){packed.layers.rows, ""});
    tsr__derive_size(derivation, STR("p"), (tsr_dim){packed.scales, ""});
}
