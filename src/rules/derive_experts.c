// SPDX-License-Identifier: Apache-2.0
// derive_experts.c - rules of mixtures of experts. Tokens are free. The inner size i of all experts
// is a sum that the second layer takes, so it may be cut too, where the first layer's halves (gate
// and value) are cut alike and no block of packed weights is cut through. Experts may be cut where
// the node can be taken apart (expand_experts.c); else they stay whole: the operator chooses among
// those it sees.
#include "rules/derive.h"

// How many rows of the first layer belong to one of the inner size, and whether they lie together.
struct layers {
    int64_t inner, rows;
    bool together; // (i f) instead of (f i)
};

static bool read_layers(const struct derivation *d, size_t first, int64_t inner, struct layers *l)
{
    struct shape w = tsr__derive_in(d, first);
    int64_t rows = w.rank == 3 ? w.dims[1].value : -1;
    l->inner = inner;
    l->together = tsr__derive_int(d, "swiglu_fusion", 0) == 1;
    l->rows = inner > 0 && rows > 0 && rows % inner == 0 ? rows / inner : 0;
    return l->rows > 0;
}

// Tokens, and what the router says of each.
static void add_tokens(struct derivation *d)
{
    tsr__derive_add(d, tsr__derive_in(d, 0).rank == 3 ? "[b t m],[(b t) e]" : "[t m],[t e]");
}

static void end_tokens(struct derivation *d, const char *experts)
{
    tsr__derive_add(
        d, tsr__derive_in(d, 0).rank == 3 ? " -> [b t m]; rep m; %s e" : " -> [t m]; rep m; %s e",
        experts);
}

// Two layers without halves, and an activation that has a plain operator.
static bool can_be_taken_apart(const struct derivation *d)
{
    static const char *const known[] = {"relu", "silu", "identity"};
    struct shape w = tsr__derive_in(d, 2), v = tsr__derive_in(d, 4);
    size_t n = 0;
    const char *text = tsr_attr_string(tsr__attr_of(d->shapes, d->node, "activation_type"), &n);
    bool plain = !text;
    for (size_t i = 0; i < TSR_COUNT(known); i++)
        plain = plain || str_is((struct str){text ? text : "", n}, known[i]);
    if (!plain || tsr__derive_has(d, 6) || tsr__derive_int(d, "use_sparse_mixer", 0) ||
        w.rank != 3 || v.rank != 3)
        return false;
    return w.dims[0].value > 0 && w.dims[2].value > 0 && w.dims[1].value > 0 &&
           w.dims[1].value == v.dims[2].value && tsr__derive_int(d, "k", 1) >= 1 &&
           tsr__derive_int(d, "k", 1) <= w.dims[0].value;
}

void tsr__derive_experts(struct derivation *d)
{
    struct layers l;
    struct shape second = tsr__derive_in(d, 4);
    if (tsr__derive_rank(d, 0) < 0)
        return;
    bool known = read_layers(d, 2, second.rank == 3 ? second.dims[2].value : -1, &l);
    const char *rows = !known ? "_" : l.rows == 1 ? "i" : l.together ? "(i f)" : "(f i)";
    add_tokens(d);
    tsr__derive_add(d, ",[e %s m],[e %s]?,[e m %s],[e m]?,[e %s m]?,[e %s]?", rows, rows,
                    known ? "i" : "_", known ? "i" : "_", known ? "i" : "_");
    end_tokens(d, can_be_taken_apart(d) ? tsr__derive_stat(d, 13, EXPAND_FLOATS) : "rep");
    if (known)
        tsr__derive_add(d, "; red i:sum; once 5");
    if (known && l.rows > 1) {
        tsr__derive_size(d, STR("f"), (tsr_dim){l.rows, ""});
        tsr__derive_add(d, "; rep f");
    }
}

// ---- packed weights ----------------------------------------------------------------------------

// The inner size is made of units: as many elements as must stay together in the second layer.
struct packed {
    struct layers layers;
    int64_t unit, bytes; // elements of a unit, and bytes they are packed into
    int64_t scales;      // of a unit; 0: one scale for a row
};

static int64_t bits_of(const struct derivation *d, const char *own)
{
    int64_t bits = tsr__derive_int(d, own, 0);
    return bits > 0 ? bits : tsr__derive_int(d, "expert_weight_bits", 4);
}

// Zero points that are packed along the rows of a first layer: a cut would go through a byte.
static bool points_by_row(const struct derivation *d, size_t i, int64_t bits)
{
    return tsr__derive_has(d, i) && bits < 8 && tsr__derive_in(d, i).rank != 3;
}

static bool read_packed(const struct derivation *d, struct packed *p)
{
    int64_t bits = bits_of(d, "fc2_expert_weight_bits"),
            block = tsr__derive_int(d, "block_size", 0);
    struct shape w = tsr__derive_in(d, 5);
    if (tsr__attr_of(d->shapes, d->node, "quant_type") || (bits != 2 && bits != 4 && bits != 8) ||
        tsr__derive_int(d, "weights_prepacked", 0) > 0 || w.rank != 3 || w.dims[2].value < 1 ||
        w.dims[2].value > INT32_MAX || block < 0 || block > INT32_MAX ||
        points_by_row(d, 11, bits_of(d, "fc1_expert_weight_bits")) ||
        points_by_row(d, 13, bits_of(d, "fc3_expert_weight_bits")))
        return false;
    int64_t inner = w.dims[2].value * 8 / bits, per_byte = 8 / bits;
    p->scales = block == 0 ? 0 : tsr__derive_has(d, 12) ? per_byte : 1;
    p->unit = block == 0 ? per_byte : block * p->scales;
    p->bytes = p->unit / per_byte;
    return inner % p->unit == 0 && p->unit % per_byte == 0 && read_layers(d, 2, inner, &p->layers);
}

// [e rows] with dimensions after it that stay whole; none: the input is not there.
static void add_rows(struct derivation *d, size_t i, const char *rows)
{
    int rank = tsr__derive_in(d, i).rank;
    tsr__derive_add(d, rank == 3 ? ",[e %s _]?" : ",[e %s]?", rows);
}

static void add_units(struct derivation *d, size_t i, const char *units)
{
    int rank = tsr__derive_in(d, i).rank;
    tsr__derive_add(d, ",[e %s%s]?", rank == 3 ? "m " : "_", rank == 3 ? units : "");
}

static void add_rest(struct derivation *d, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        int rank = tsr__derive_in(d, i).rank;
        tsr__derive_add(d, ",[");
        for (int k = 0; k < rank && k < DERIVE_MAX_RANK; k++)
            tsr__derive_add(d, "_ ");
        tsr__derive_add(d, "]?");
    }
}

static void add_choice(struct derivation *d)
{
    tsr__derive_add(d, tsr__derive_in(d, 0).rank == 3 ? ",[(b t) e]?" : ",[t e]?");
}

void tsr__derive_quantized_experts(struct derivation *d)
{
    struct packed p;
    if (tsr__derive_rank(d, 0) < 0)
        return;
    add_tokens(d);
    if (!read_packed(d, &p)) {
        add_rest(d, 2, 14);
        add_choice(d);
        add_rest(d, 15, 21);
        end_tokens(d, "rep");
        return;
    }
    bool twice = p.layers.rows > 1;
    const char *rows = !twice ? "(u z)" : p.layers.together ? "(u z f)" : "(f u z)";
    for (size_t i = 2; i < 5; i++)
        add_rows(d, i, rows);
    tsr__derive_add(d, ",[e m (u y)]");
    add_units(d, 6, p.scales > 1 ? "(u p)" : "u");
    tsr__derive_add(d, ",[e m]?");
    for (size_t i = 8; i < 11; i++)
        add_rows(d, i, "(u z)");
    add_rows(d, 11, rows);
    add_units(d, 12, "u");
    add_rows(d, 13, "(u z)");
    add_choice(d);
    add_rest(d, 15, 21);
    end_tokens(d, "rep");
    tsr__derive_add(d, "; red u:sum; rep z y%s%s; once 7", twice ? " f" : "",
                    p.scales > 1 ? " p" : "");
    tsr__derive_size(d, STR("z"), (tsr_dim){p.unit, ""});
    tsr__derive_size(d, STR("y"), (tsr_dim){p.bytes, ""});
    tsr__derive_size(d, STR("f"), (tsr_dim){p.layers.rows, ""});
    tsr__derive_size(d, STR("p"), (tsr_dim){p.scales, ""});
}
