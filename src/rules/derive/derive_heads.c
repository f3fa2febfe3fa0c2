// SPDX-License-Identifier: Apache-2.0
// derive_heads.c - rules of the fused attention operators of com.microsoft. Letters as in
// derive_attention.c. Weights and biases that hold queries, keys and values one after the other are
// cut in each third (s h d); where the thirds differ, heads stay whole.
//
// MultiHeadAttention with 8 heads of q [2 6 64], k and v [2 7 64] and a bias [192]:
//
//   [b q (h d)],[b k (h d)],[b k (h v)],[(s h d)]? ... -> [b q (h v)] ...; attr num_heads=h
//   b 2, q 6, k 7, h 8, d 8, v 8, s 3
//
// Cut in 2 along h, device 0 has columns 0..31 of q, k and v, and of the bias 0..31, 64..95 and
// 128..159: its heads in each third. Its node says 4 heads.
//
// GroupQueryAttention with q, k and v in one tensor [2 6 96], 8 heads of 8 and 2 of keys: columns
// 0..63 are queries, 64..79 keys, 80..95 values. No factor is cut like that, so h has three
// windows; device 0 of 2 needs 0..31, 64..71 and 80..87.
#include "rules/derive/derive.h"

#define NO_HEADS "the number of heads is not known"

// The size of h; without it a projection's columns cannot be told apart.
static bool take_heads(struct derivation *derivation)
{
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (heads < 1) {
        tsr__derive_none(derivation, NO_HEADS);
        return false;
    }
    tsr__derive_size(derivation, STR("h"), (tsr_dim){heads, ""});
    return true;
}

static int64_t last_size(const struct derivation *derivation, size_t i)
{
    struct shape shape = tsr__derive_in(derivation, i);
    if (shape.rank < 1)
        return -1;
    return shape.dims[shape.rank - 1].value;
}

// The same if the input has that many dimensions; -1: it has not.
static int64_t last_size_if(const struct derivation *derivation, size_t i, int rank)
{
    if (tsr__derive_in(derivation, i).rank != rank)
        return -1;
    return last_size(derivation, i);
}

// Is input i's last size the batch of input 0?
static bool is_batch(const struct derivation *derivation, size_t i)
{
    struct shape x = tsr__derive_in(derivation, 0), shape = tsr__derive_in(derivation, i);
    return x.rank > 0 && shape.rank == 1 &&
           tsr__dim_equal(derivation->shapes->exprs, x.dims[0], shape.dims[0]);
}

// A mask over keys: for each sequence a length, a row or a matrix. False: it runs through the
// batch.
static bool add_key_mask(struct derivation *derivation, size_t i)
{
    static const char *const texts[] = {",[]?", ",[b]?", ",[b _]?", ",[b q~ _]?", ",[b _ _ _]?"};
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank == 1 && !is_batch(derivation, i)) {
        tsr__derive_add(derivation, ",[_]?");
        return false;
    }
    if (rank < 0 || rank >= (int)TSR_COUNT(texts))
        rank = 0;
    tsr__derive_add(derivation, "%s", texts[rank]);
    return true;
}

// Biases of the three projections, one after the other: three equal parts, or heads stay whole.
static bool add_bias(struct derivation *derivation, size_t i, int64_t hidden, int64_t hidden_v)
{
    bool even = !tsr__derive_has(derivation, i) ||
                (hidden > 0 && hidden == hidden_v && last_size(derivation, i) == 3 * hidden);
    if (!even) {
        tsr__derive_add(derivation, ",[_]?");
        return false;
    }
    if (tsr__derive_has(derivation, i))
        tsr__derive_size(derivation, STR("s"), (tsr_dim){3, ""});
    tsr__derive_add(derivation, ",[(s h d)]?");
    return true;
}

// ---- MultiHeadAttention ------------------------------------------------------------------------

struct multi {
    bool rows;  // rows of the query are free
    bool heads; // so are heads
    bool batch;
    bool own; // values have a head size of their own
};

// Keys and values, each with its heads side by side or (of 4 dimensions) apart.
static void add_keys_and_values(struct derivation *derivation)
{
    static const char *const keys[] = {",[b k (h d)]", ",[b h k d]"};
    static const char *const values[] = {",[b k (h v)]", ",[b h k v]"};
    bool keys_apart = tsr__derive_in(derivation, 1).rank == 4,
         values_apart = tsr__derive_in(derivation, 2).rank == 4;
    tsr__derive_add(derivation, "%s%s", keys[keys_apart], values[values_apart]);
}

// Query, key and value in one of their forms: all packed in one, keys and values packed, or three.
static void add_three(struct derivation *derivation, struct multi *multi)
{
    if (tsr__derive_in(derivation, 0).rank == 5) {
        tsr__derive_add(derivation, "[b q h _ d],[]?,[]?");
        multi->rows = false;
    } else if (tsr__derive_in(derivation, 1).rank == 5) {
        tsr__derive_add(derivation, "[b q (h d)],[b k h _ d],[]?");
    } else {
        tsr__derive_add(derivation, "[b q (h d)]");
        add_keys_and_values(derivation);
        multi->own = true;
    }
}

// The letter of a head's result: v if values have a different head size.
static const char *head_of_values(bool own)
{
    if (own)
        return "v";
    return "d";
}

static void add_results(struct derivation *derivation, const struct multi *multi)
{
    const char *v = head_of_values(multi->own);
    tsr__derive_add(derivation, " -> [b q (h %s)],[b h _ d]?,[b h _ %s]?,[b h q _]?; rep d", v, v);
    tsr__derive_add(derivation, "%s%s%s; attr num_heads=h", text_if(!multi->rows, " q"),
                    text_if(!multi->heads, " h"), text_if(!multi->batch, " b"));
}

// Queries, keys and values apart, at most a bias on the scores: can be taken apart.
static bool multi_is_plain(const struct derivation *derivation)
{
    static const size_t others[] = {3, 4, 6, 7, 8, 9};
    for (size_t i = 0; i < TSR_COUNT(others); i++)
        if (tsr__derive_has(derivation, others[i]))
            return false;
    for (size_t i = 1; i < tsr_node_output_count(derivation->node); i++)
        if (tsr_node_output(derivation->node, i))
            return false;
    bool flat = true;
    for (size_t i = 0; i < 3; i++) {
        struct shape shape = tsr__derive_in(derivation, i);
        flat = flat && shape.rank == 3 && shape.dims[2].value > 0;
    }
    return flat && tsr__derive_int(derivation, "unidirectional", 0) == 0 &&
           tsr__derive_mask_fits(derivation, 5, 1);
}

// Rows of the query are free where no mask, cache or buffer counts them; heads where the bias is in
// even thirds; the batch where the mask has one row for each sequence.
void tsr__derive_multi_head(struct derivation *derivation)
{
    struct multi multi = {.rows = tsr__derive_int(derivation, "unidirectional", 0) == 0 &&
                                  !tsr__derive_has(derivation, 6) &&
                                  !tsr__derive_has(derivation, 9)};
    if (tsr__derive_rank(derivation, 0) < 0 || !take_heads(derivation))
        return;
    int rank = tsr__derive_in(derivation, 0).rank;
    if (rank != 3 && rank != 5) {
        tsr__derive_none(derivation, "the query has neither 3 nor 5 dimensions");
        return;
    }
    add_three(derivation, &multi);
    int64_t hidden_v = -1;
    if (multi.own)
        hidden_v = last_size_if(derivation, 2, 3);
    bool even = add_bias(derivation, 3, last_size_if(derivation, 0, 3), hidden_v);
    multi.batch = add_key_mask(derivation, 4);
    multi.heads = tsr__derive_mask(derivation, 5, "h") && even;
    tsr__derive_add(derivation, ",[b h p d]?,[b h p %s]?,·?,[b _ _]?", head_of_values(multi.own));
    add_results(derivation, &multi);
    // Caches, keys that lie by heads, and biases have values as large as keys.
    bool equal = tsr__derive_has(derivation, 3) || tsr__derive_has(derivation, 6) ||
                 tsr__derive_in(derivation, 2).rank == 4 ||
                 tsr_node_output_count(derivation->node) > 1;
    tsr__derive_add(derivation, "; rep p%s%s", text_if(even, " s"),
                    text_if(equal && multi.own, " v"));
    if (rank != 5)
        tsr__derive_add(
            derivation, "; %s k",
            tsr__derive_stat_if(multi_is_plain(derivation), derivation, 13, EXPAND_FLOATS));
}

// One decoding step: the cache may be stored in another order, but heads are separate.
void tsr__derive_masked_multi_head(struct derivation *derivation)
{
    struct multi multi = {.rows = false, .own = true};
    if (tsr__derive_rank(derivation, 0) < 0 || !take_heads(derivation))
        return;
    if (!tsr__derive_has(derivation, 1) || tsr__derive_in(derivation, 0).rank != 3) {
        tsr__derive_none(derivation, "queries, keys and values lie in one tensor");
        return;
    }
    tsr__derive_add(derivation, "[b q (h d)]");
    add_keys_and_values(derivation);
    multi.batch = add_key_mask(derivation, 3) &&
                  !tsr__derive_has(derivation, 8); // beams are rows of the batch
    multi.heads = tsr__derive_mask(derivation, 4, "h");
    tsr__derive_add(derivation, ",[b h p d]?,[b h p v]?,·?,·?,[_ _ _]?");
    bool even = add_bias(derivation, 10, last_size(derivation, 0), last_size_if(derivation, 2, 3));
    multi.heads = multi.heads && even;
    add_results(derivation, &multi);
    tsr__derive_add(derivation, "; rep k p v%s", text_if(even, " s"));
}

// ---- Attention with its projection -------------------------------------------------------------

// Weights [i (s h d)]: thirds of one size.
static bool even_thirds(const struct derivation *derivation, int64_t heads, size_t weights)
{
    const int64_t *sizes;
    size_t n = tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "qkv_hidden_sizes"),
                             &sizes);
    int64_t all = last_size(derivation, weights);
    bool even = all > 0 && all % 3 == 0 && (all / 3) % heads == 0;
    return even && (n == 0 || (n == 3 && sizes[0] == sizes[1] && sizes[1] == sizes[2]));
}

// What all three begin with: input, weights and bias of the projection. x: the dimensions of the
// input before the last.
static bool start_projected(struct derivation *derivation, const char *x)
{
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (!take_heads(derivation))
        return false;
    if (!even_thirds(derivation, heads, 1)) {
        tsr__derive_none(derivation,
                         "queries, keys and values have different sizes, or unknown ones");
        return false;
    }
    tsr__derive_size(derivation, STR("s"), (tsr_dim){3, ""});
    tsr__derive_add(derivation, "[%s i],[i (s h d)],[(s h d)]?", x);
    return true;
}

// The projection is inside, so that its rows i cannot be cut; positions matter to masks and caches.
void tsr__derive_projected_attention(struct derivation *derivation)
{
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "b q"))
        return;
    bool batch = add_key_mask(derivation, 3);
    tsr__derive_add(derivation, ",[_ b h p d]?");
    bool heads = tsr__derive_mask(derivation, 5, "h");
    tsr__derive_add(derivation,
                    ",·?,·?,·? -> [b q (h d)],[_ b h _ d]?; rep i s d p q%s%s; attr num_heads=h",
                    text_if(!heads, " h"), text_if(!batch, " b"));
    tsr__derive_add(derivation, "; attr qkv_hidden_sizes=h");
}

// The heads of a bias: one for all, one each, or unknown.
static const char *heads_of_bias(int64_t heads)
{
    if (heads == 1)
        return "1";
    if (heads > 1)
        return "h";
    return "_";
}

// A bias on the scores: [.. heads rows columns], or one for all heads where it has fewer
// dimensions.
static int64_t bias_heads(const struct derivation *derivation, size_t i)
{
    struct shape bias = tsr__derive_in(derivation, i);
    if (bias.rank == 4)
        return bias.dims[1].value;
    return 1;
}

// Padding was taken out: t counts the tokens of all sequences, and stays whole.
void tsr__derive_packed_attention(struct derivation *derivation)
{
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "t"))
        return;
    tsr__derive_add(derivation, ",[_ _],[_]");
    int64_t heads = bias_heads(derivation, 5);
    tsr__derive_add(derivation, ",[_ %s _ _]? -> [t (h d)]; rep i s d t%s; attr num_heads=h",
                    heads_of_bias(heads), text_if(heads < 1, " h"));
    tsr__derive_add(derivation, "; attr qkv_hidden_sizes=h");
}

// A scale or zero point of the weights: one, or one for each column.
static void add_column_point(struct derivation *derivation, size_t i)
{
    int64_t n = last_size(derivation, i);
    if (n > 1)
        tsr__derive_add(derivation, ",[(s h d)]?");
    else if (n == 1)
        tsr__derive_add(derivation, ",[1]?");
    else
        tsr__derive_add(derivation, ",[]?");
}

// As the projected one, with scales and points: of the input one, of the weights one or one for
// each column.
void tsr__derive_quantized_attention(struct derivation *derivation)
{
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "b q"))
        return;
    add_single(derivation, 3, "");
    add_column_point(derivation, 4);
    bool batch = add_key_mask(derivation, 5);
    add_single(derivation, 6, "?");
    add_column_point(derivation, 7);
    tsr__derive_add(derivation, ",[_ b h p d]? -> [b q (h d)],[_ b h _ d]?; rep i s d p q%s",
                    text_if(!batch, " b"));
    tsr__derive_add(derivation, "; attr num_heads=h");
}

// ---- grouped queries ---------------------------------------------------------------------------

// h heads of keys, g queries for each: 8 for 2 are h 2, g 4.
static bool take_groups(struct derivation *derivation)
{
    int64_t q = tsr__derive_int(derivation, "num_heads", 0),
            kv = tsr__derive_int(derivation, "kv_num_heads", 0);
    if (q < 1 || kv < 1 || q % kv) {
        tsr__derive_none(derivation, NO_HEADS);
        return false;
    }
    tsr__derive_heads(derivation, kv, q / kv);
    return true;
}

// Scales of a quantised cache: one for all, or some for each head.
static void add_cache_scale(struct derivation *derivation, size_t i)
{
    struct shape shape = tsr__derive_in(derivation, i);
    tsr__derive_add(derivation, ",[");
    for (int k = 0; k < shape.rank; k++) {
        bool heads = (shape.rank == 4 && k == 1) || (shape.rank == 3 && k == 0);
        if (heads)
            tsr__derive_add(derivation, "h~ ");
        else
            tsr__derive_add(derivation, "_ ");
    }
    tsr__derive_add(derivation, "]?");
}

#define GROUP_ATTRS "; attr num_heads=h; attr num_heads=g; attr kv_num_heads=h"

// Queries, keys and values side by side, three parts of different sizes: elements of a head; 0: not
// known.
static int64_t packed_head(const struct derivation *derivation)
{
    int64_t all = tsr__derive_int(derivation, "num_heads", 0) +
                  2 * tsr__derive_int(derivation, "kv_num_heads", 0);
    int64_t size = last_size(derivation, 0);
    if (tsr__derive_in(derivation, 0).rank == 3 && size > 0 && size % all == 0)
        return size / all;
    return 0;
}

// Of each part the heads that belong together: 8 heads of 8 for 2 of keys have windows 0 + 32 j, 64
// + 8 j and 80 + 8 j.
static void add_packed_windows(struct derivation *derivation, int64_t each)
{
    int64_t kv = tsr__derive_int(derivation, "kv_num_heads", 0),
            q = tsr__derive_int(derivation, "num_heads", 0);
    int64_t wide = q / kv * each;
    const int64_t steps[] = {wide, each, each};
    const int64_t shifts[] = {0, q * each, (q + kv) * each};
    for (int i = 0; i < 3; i++)
        tsr__derive_add(derivation, "; win 0 2 h %lld %lld %lld %lld %lld",
                        (long long)last_size(derivation, 0), (long long)kv, (long long)steps[i],
                        (long long)shifts[i], (long long)steps[i]);
}

// Elements of a head in the cache: two of 4 bits share a byte, and then they are not counted.
static const char *head_in_cache(const struct derivation *derivation)
{
    if (tsr__derive_int(derivation, "kv_cache_bit_width", 0) == 4)
        return "_";
    return "d";
}

// Lengths of the sequences: one for each, or a row of one.
static const char *lengths_of(const struct derivation *derivation, size_t i)
{
    if (tsr__derive_in(derivation, i).rank == 2)
        return "[b _]";
    return "[b]";
}

// Queries, keys and values as three inputs, as one that is cut by windows (heads of `each`
// elements), or as one that is whole.
static void add_grouped(struct derivation *derivation, bool three, int64_t each)
{
    if (three)
        tsr__derive_add(derivation, "[b q (h g d)],[b k (h d)],[b k (h d)]");
    else if (each)
        tsr__derive_add(derivation, "[b q h^],[]?,[]?");
    else
        tsr__derive_add(derivation, "[b q _],[]?,[]?");
}

// A prompt takes its position from the first sequence alone.
void tsr__derive_group_query(struct derivation *derivation)
{
    struct shape x = tsr__derive_in(derivation, 0);
    bool batch = !tsr__derive_has(derivation, 9) || (x.rank == 3 && x.dims[1].value == 1);
    bool three = tsr__derive_has(derivation, 1) && tsr__derive_has(derivation, 2);
    if (tsr__derive_rank(derivation, 0) < 0 || !take_groups(derivation))
        return;
    int64_t each = 0;
    if (!three)
        each = packed_head(derivation);
    if (each)
        tsr__derive_size(derivation, STR("d"), (tsr_dim){each, ""});
    add_grouped(derivation, three, each);
    const char *size = head_in_cache(derivation);
    tsr__derive_add(derivation, ",[b h _ %s]?,[b h _ %s]?,%s,·,[_ _]?,[_ _]?,[b~ q~]?", size, size,
                    lengths_of(derivation, 5));
    bool heads = tsr__derive_mask(derivation, 10, "(h g)") && (three || each);
    tsr__derive_add(derivation, ",[(h g)]?");
    add_cache_scale(derivation, 12);
    add_cache_scale(derivation, 13);
    tsr__derive_add(derivation,
                    ",[_]?,[_]? -> [b q (h g d)],[b h _ %s]?,[b h _ %s]?,[b (h g) q _]?", size,
                    size);
    tsr__derive_add(derivation, "; rep d q%s%s%s%s" GROUP_ATTRS, text_if(three, " k"),
                    text_if(!heads, " h"), text_if(!heads || !three, " g"), text_if(!batch, " b"));
    if (heads && !three)
        add_packed_windows(derivation, each);
}

// Layouts of blocks are taken in turn by the heads: a cut must start a new turn. 8 heads for 4 of
// keys with 4 layouts: two heads of keys make a turn, so h is cut in multiples of 2 ("blk h/2").
void tsr__derive_sparse_attention(struct derivation *derivation)
{
    struct shape rows = tsr__derive_in(derivation, 5);
    int64_t q = tsr__derive_int(derivation, "num_heads", 0),
            kv = tsr__derive_int(derivation, "kv_num_heads", 0);
    bool three = tsr__derive_has(derivation, 1) && tsr__derive_has(derivation, 2);
    if (tsr__derive_rank(derivation, 0) < 0 || !take_groups(derivation))
        return;
    int64_t turn = q, unit = 1;
    if (rows.rank == 2 && rows.dims[0].value > 0)
        turn = rows.dims[0].value;
    while (unit < kv && unit * (q / kv) % turn)
        unit++;
    static const struct {
        const char *head, *whole; // in the result; what stays whole
    } forms[] = {{"e", " h"}, {"d", " k d"}};
    add_grouped(derivation, three, 0);
    tsr__derive_add(derivation,
                    ",[b h m e],[b h m e],[_ _],[_ _],·,[b],[_ _]?,[_ _]? -> "
                    "[b q (h g %s)],[b h m e],[b h m e]; rep q m e",
                    forms[three].head);
    tsr__derive_add(derivation, "%s%s", forms[three].whole, text_if(turn > 1 || !three, " g"));
    if (three && unit > 1 && unit < kv)
        tsr__derive_add(derivation, "; blk h/%lld", (long long)unit);
    else if (three && unit > 1)
        tsr__derive_add(derivation, "; rep h");
    tsr__derive_add(derivation, GROUP_ATTRS);
}

// ---- tokens of many sequences in one row -------------------------------------------------------

// t counts the tokens of all sequences and stays whole: other inputs say where a sequence ends.
void tsr__derive_packed_multi_head(struct derivation *derivation)
{
    static const char *const thirds[] = {" h",
                                         " s"}; // what a bias in even thirds, or none, leaves whole
    static const char *const forms[] = {"[t h _ d],[]?,[]?", "[t (h d)],[t (h d)],[t (h v)]"};
    int rank = tsr__derive_rank(derivation, 0);
    int64_t of_bias = bias_heads(derivation, 6);
    if (rank < 0 || !take_heads(derivation))
        return;
    bool own = rank == 2;
    tsr__derive_add(derivation, "%s", forms[own]);
    int64_t hidden = -1, hidden_v = -1;
    if (own) {
        hidden = last_size(derivation, 0);
        hidden_v = last_size(derivation, 2);
    }
    bool even = add_bias(derivation, 3, hidden, hidden_v);
    tsr__derive_add(derivation, ",[_ _],[_],[_ %s _ _]? -> [t (h %s)]; rep t d",
                    heads_of_bias(of_bias), head_of_values(own));
    tsr__derive_add(derivation, "%s%s%s; attr num_heads=h", thirds[even],
                    text_if(of_bias < 1 && even, " h"), text_if(own, " v"));
}

// Keys and values lie in pages of a cache that all sequences share: n pages of m tokens. A latent
// cache holds one tensor from which both are made, with v_head_size elements of a value.
void tsr__derive_paged_attention(struct derivation *derivation)
{
    bool latent = tsr__derive_text_is(derivation, "kv_cache_layout", "LATENT");
    bool three = tsr__derive_has(derivation, 1) && (latent || tsr__derive_has(derivation, 2));
    if (tsr__derive_rank(derivation, 0) < 0 || !take_groups(derivation))
        return;
    int64_t v = 0;
    if (latent)
        v = tsr__derive_int(derivation, "v_head_size", 0);
    int64_t all = tsr__derive_int(derivation, "num_heads", 0) +
                  2 * tsr__derive_int(derivation, "kv_num_heads", 0);
    bool own = v > 0 || (three && !latent); // values have a head size of their own
    if (v > 0)
        tsr__derive_size(derivation, STR("v"), (tsr_dim){v, ""});
    else if (!three && last_size(derivation, 0) > 0 && last_size(derivation, 0) % all == 0)
        tsr__derive_size(derivation, STR("d"), (tsr_dim){last_size(derivation, 0) / all, ""});
    static const char *const packed[] = {"[t _],[]?", "[t (h g d)],[t (h d)]"};
    static const char *const values[] = {",[]?", ",[t (h v)]"};
    tsr__derive_add(derivation, "%s%s", packed[three], values[three && !latent]);
    tsr__derive_add(derivation,
                    ",[n m h _],[n m h _]?,[_],[_],[_ _],[_ _]?,[_ _]?,[t]?,[(h g)]?,[_]?,[_]?");
    add_cache_scale(derivation, 14);
    add_cache_scale(derivation, 15);
    tsr__derive_add(derivation,
                    ",[_]? -> [t (h g %s)],[n m h _]?,[n m h _]?; rep t n m%s%s%s" GROUP_ATTRS,
                    head_of_values(own), text_if(three || !own, " d"), text_if(own, " v"),
                    text_if(!three, " h g"));
}
