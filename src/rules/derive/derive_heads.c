// SPDX-License-Identifier: Apache-2.0
// derive_heads.c - rules of the fused attention operators of com.microsoft. Letters are those of
// derive_attention.c. Weights and biases for queries, keys and values that are concatenated are (s
// h d) with s = 3, and each third is sharded. If the thirds differ in size, heads are not sharded.
//
// MultiHeadAttention with 8 heads of q [2 6 64], k and v [2 7 64] and a bias [192]:
//
//   [b q (h d)],[b k (h d)],[b k (h v)],[(s h d)]? ... -> [b q (h v)] ...; attr num_heads=h
//   b 2, q 6, k 7, h 8, d 8, v 8, s 3
//
// Sharded in 2 along h, device 0 has columns 0..31 of q, k and v, and 0..31, 64..95 and 128..159 of
// the bias: its heads in each third. Its node has num_heads = 4.
//
// GroupQueryAttention with q, k and v in one tensor [2 6 96], 8 heads of 8 and 2 of keys: columns
// 0..63 are queries, 64..79 keys, 80..95 values. A shard of h needs a range of each, so h has three
// windows; device 0 of 2 needs 0..31, 64..71 and 80..87.
#include "rules/derive/derive.h"

#define NO_HEADS     "the number of heads is not known"
#define CAUSAL_OPSET 10 // oldest opset whose Slice has computed bounds (emit_causal.c)

// Sets the size of h, the number of heads. False: it is unknown, and the derivation has ended,
// because the columns of a projection cannot be assigned to heads.
static bool take_heads(struct derivation *derivation)
{
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (heads < 1)
        return tsr__derive_none(derivation, NO_HEADS);
    tsr__derive_size(derivation, "h", heads);
    return true;
}

static int64_t last_size(const struct derivation *derivation, size_t i)
{
    struct shape shape = tsr__derive_in(derivation, i);
    return shape.rank < 1 ? -1 : shape.dims[shape.rank - 1].value;
}

// Returns the last size of input i if it has that rank, else -1.
static int64_t last_size_if(const struct derivation *derivation, size_t i, int rank)
{
    return tsr__derive_in(derivation, i).rank == rank ? last_size(derivation, i) : -1;
}

// True if input i has one dimension, the batch of input 0.
static bool is_batch(const struct derivation *derivation, size_t i)
{
    struct shape x = tsr__derive_in(derivation, 0), shape = tsr__derive_in(derivation, i);
    return x.rank > 0 && shape.rank == 1 && same_size(derivation, x.dims[0], shape.dims[0]);
}

// Adds input i, a mask over keys: a length, a row or a matrix for each sequence. Returns false for
// one list that serves all sequences; the batch is not sharded then.
static bool add_key_mask(struct derivation *derivation, size_t i)
{
    static const char *const texts[] = {"[]?", "[b]?", "[b _]?", "[b q~ _]?", "[b _ _ _]?"};
    int rank = tsr__derive_in(derivation, i).rank;
    if (rank == 1 && !is_batch(derivation, i)) {
        tsr__rule_inputs(&derivation->rule, "[_]?");
        return false;
    }
    if (rank < 0 || rank >= (int)TSR_COUNT(texts))
        rank = 0;
    tsr__rule_inputs(&derivation->rule, texts[rank]);
    return true;
}

// Adds input i, the concatenated biases of the three projections. Returns false if the three differ
// in size, so that heads are not sharded.
static bool add_bias(struct derivation *derivation, size_t i, int64_t hidden, int64_t hidden_v)
{
    bool given = tsr__derive_has(derivation, i);
    bool even =
        !given || (hidden > 0 && hidden == hidden_v && last_size(derivation, i) == 3 * hidden);
    if (given && even)
        tsr__derive_size(derivation, "s", 3);
    tsr__rule_inputs(&derivation->rule, even ? "[(s h d)]?" : "[_]?");
    return even;
}

// ---- MultiHeadAttention ------------------------------------------------------------------------

// Which factors can be sharded, apart from the head size.
struct multi {
    bool rows; // rows of the query
    bool heads;
    bool batch;
    bool own_values; // the values have a separate head size v
};

// Adds keys and values; those of 4 dimensions have a separate dimension for heads.
static void add_keys_and_values(struct derivation *derivation)
{
    bool key_heads = tsr__derive_in(derivation, 1).rank == 4,
         value_heads = tsr__derive_in(derivation, 2).rank == 4;
    tsr__rule_inputs(&derivation->rule, key_heads ? "[b h k d]" : "[b k (h d)]");
    tsr__rule_inputs(&derivation->rule, value_heads ? "[b h k v]" : "[b k (h v)]");
}

// Adds query, key and value: all packed in one tensor, keys and values packed, or three tensors.
static void add_three(struct derivation *derivation, struct multi *multi)
{
    if (tsr__derive_in(derivation, 0).rank == 5) {
        tsr__rule_inputs(&derivation->rule, "[b q h _ d],[]?,[]?");
        multi->rows = false;
    } else if (tsr__derive_in(derivation, 1).rank == 5) {
        tsr__rule_inputs(&derivation->rule, "[b q (h d)],[b k h _ d],[]?");
    } else {
        tsr__rule_inputs(&derivation->rule, "[b q (h d)]");
        add_keys_and_values(derivation);
        multi->own_values = true;
    }
}

static void add_results(struct rule_builder *rule, const struct multi *multi)
{
    bool v = multi->own_values;
    tsr__rule_outputs(rule, v ? "[b q (h v)],[b h _ d]?,[b h _ v]?,[b h q _]?"
                              : "[b q (h d)],[b h _ d]?,[b h _ d]?,[b h q _]?");
    tsr__rule_kind(rule, FACTOR_REP, "d");
    tsr__rule_kind_if(rule, !multi->rows, FACTOR_REP, "q");
    tsr__rule_kind_if(rule, !multi->heads, FACTOR_REP, "h");
    tsr__rule_kind_if(rule, !multi->batch, FACTOR_REP, "b");
    tsr__rule_clauses(rule, "attr num_heads=h");
}

// True if the node can be expanded: three separate tensors, at most a bias on the scores.
static bool can_expand(const struct derivation *derivation)
{
    static const size_t others[] = {3, 4, 6, 7, 8, 9};
    for (size_t i = 0; i < TSR_COUNT(others); i++)
        if (tsr__derive_has(derivation, others[i]))
            return false;
    bool flat = tsr__derive_outputs_end(derivation, 1);
    for (size_t i = 0; i < 3; i++) {
        struct shape shape = tsr__derive_in(derivation, i);
        flat = flat && shape.rank == 3 && shape.dims[2].value > 0;
    }
    return flat && tsr__derive_int(derivation, "unidirectional", 0) == 0 &&
           tsr__derive_mask_fits(derivation, 5, 1);
}

// True if rows of a causal query can be sharded, with earlier keys in the cache. A bias prevents
// this: it is added to new keys only, so keys in the cache would lack it. A mask over keys also
// prevents it, because the mask has columns for all keys.
static bool causal_rows(const struct derivation *derivation)
{
    static const size_t others[] = {3, 4, 8, 9};
    for (size_t i = 0; i < TSR_COUNT(others); i++)
        if (tsr__derive_has(derivation, others[i]))
            return false;
    return tsr__onnx_opset(derivation->node) >= CAUSAL_OPSET &&
           tsr__derive_in(derivation, 0).rank == 3 &&
           last_size(derivation, 0) == last_size(derivation, 2) &&
           tsr__derive_causal(derivation, 6, 5);
}

// Derives the rule of MultiHeadAttention. Rows of the query can be sharded if they are neither
// causal nor use a cache (inputs 6 and 9), or if they are causal and can get a cache. Heads can be
// sharded if the bias has three equal parts, and the batch if the mask has one row for each
// sequence.
void tsr__derive_multi_head(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    bool causal = tsr__derive_int(derivation, "unidirectional", 0) != 0;
    bool cached = causal && causal_rows(derivation);
    struct multi multi = {.rows = cached || (!causal && !tsr__derive_has(derivation, 6) &&
                                             !tsr__derive_has(derivation, 9))};
    if (tsr__derive_rank(derivation, 0) < 0 || !take_heads(derivation))
        return;
    int rank = tsr__derive_in(derivation, 0).rank;
    if (tsr__derive_none_if(derivation, rank != 3 && rank != 5,
                            "the query has neither 3 nor 5 dimensions"))
        return;
    add_three(derivation, &multi);
    int64_t hidden_v = multi.own_values ? last_size_if(derivation, 2, 3) : -1;
    bool even = add_bias(derivation, 3, last_size_if(derivation, 0, 3), hidden_v);
    multi.batch = add_key_mask(derivation, 4);
    multi.heads = tsr__derive_mask(derivation, 5, "h") && even;
    tsr__rule_inputs(rule, multi.own_values ? "[b h p d]?,[b h p v]?" : "[b h p d]?,[b h p d]?");
    tsr__rule_inputs(rule, "·?,[b _ _]?");
    add_results(rule, &multi);
    // With caches, biases, or a separate dimension for heads, values have the size of keys, so v is
    // not sharded.
    bool equal = tsr__derive_has(derivation, 3) || tsr__derive_has(derivation, 6) ||
                 tsr__derive_in(derivation, 2).rank == 4 || cached ||
                 tsr_node_output_count(derivation->node) > 1;
    tsr__rule_kind(rule, FACTOR_REP, even ? "p s" : "p");
    tsr__rule_kind_if(rule, equal && multi.own_values, FACTOR_REP, "v");
    if (rank != 5)
        tsr__rule_kind(rule, stat_if(can_expand(derivation)), "k");
    if (cached)
        tsr__derive_causal_rows(derivation, 6, 5);
}

// Derives the rule of DecoderMaskedMultiHeadAttention: one decoding step. The elements of a head
// may be stored in another order in the cache, but heads stay separate.
void tsr__derive_masked_multi_head(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct multi multi = {.rows = false, .own_values = true};
    if (tsr__derive_rank(derivation, 0) < 0 || !take_heads(derivation))
        return;
    if (!tsr__derive_has(derivation, 1) || tsr__derive_in(derivation, 0).rank != 3) {
        tsr__derive_none(derivation, "queries, keys and values are in one tensor");
        return;
    }
    tsr__rule_inputs(rule, "[b q (h d)]");
    add_keys_and_values(derivation);
    multi.batch = add_key_mask(derivation, 3) &&
                  !tsr__derive_has(derivation, 8); // beams are rows of the batch
    multi.heads = tsr__derive_mask(derivation, 4, "h");
    tsr__rule_inputs(rule, "[b h p d]?,[b h p v]?,·?,·?,[_ _ _]?");
    bool even = add_bias(derivation, 10, last_size(derivation, 0), last_size_if(derivation, 2, 3));
    multi.heads = multi.heads && even;
    add_results(rule, &multi);
    tsr__rule_kind(rule, FACTOR_REP, even ? "k p v s" : "k p v");
}

// ---- Attention with its projection -------------------------------------------------------------

// True if the weights [i (s h d)], input 1, have three parts of equal size, each a multiple of the
// number of heads.
static bool even_thirds(const struct derivation *derivation, int64_t heads)
{
    const int64_t *sizes;
    size_t n = tsr__derive_list(derivation, "qkv_hidden_sizes", &sizes);
    int64_t all = last_size(derivation, 1);
    bool even = all > 0 && all % 3 == 0 && (all / 3) % heads == 0;
    return even && (n == 0 || (n == 3 && sizes[0] == sizes[1] && sizes[1] == sizes[2]));
}

// Adds input, weights and bias of the projection. `input` is "[b q i]" or "[t i]". False: sizes are
// unknown or not equal, and the derivation has ended.
static bool start_projected(struct derivation *derivation, const char *input)
{
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (!take_heads(derivation))
        return false;
    if (!even_thirds(derivation, heads))
        return tsr__derive_none(derivation,
                                "queries, keys and values have different or unknown sizes");
    tsr__derive_size(derivation, "s", 3);
    tsr__rule_inputs(&derivation->rule, input);
    tsr__rule_inputs(&derivation->rule, "[i (s h d)],[(s h d)]?");
    return true;
}

// Derives the rule of com.microsoft Attention. The node contains the projection, so the size i over
// which it sums is not sharded. Nor are rows q, because masks and caches depend on positions.
void tsr__derive_projected_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "[b q i]"))
        return;
    bool batch = add_key_mask(derivation, 3);
    tsr__rule_inputs(rule, "[_ b h p d]?");
    bool heads = tsr__derive_mask(derivation, 5, "h");
    tsr__rule_inputs(rule, "·?,·?,·?");
    tsr__rule_outputs(rule, "[b q (h d)],[_ b h _ d]?");
    tsr__rule_kind(rule, FACTOR_REP, "i s d p q");
    tsr__rule_kind_if(rule, !heads, FACTOR_REP, "h");
    tsr__rule_kind_if(rule, !batch, FACTOR_REP, "b");
    tsr__rule_clauses(rule, "attr num_heads=h; attr qkv_hidden_sizes=h");
}

// Returns the number of heads of a bias on the scores, [.. heads rows columns]. A bias with fewer
// dimensions applies to all heads.
static int64_t bias_heads(const struct derivation *derivation, size_t i)
{
    struct shape bias = tsr__derive_in(derivation, i);
    return bias.rank == 4 ? bias.dims[1].value : 1;
}

// Adds a bias on the scores with that number of heads.
static void add_score_bias(struct rule_builder *rule, int64_t heads)
{
    if (heads == 1)
        tsr__rule_inputs(rule, "[_ 1 _ _]?");
    else
        tsr__rule_inputs(rule, heads > 1 ? "[_ h _ _]?" : "[_ _ _ _]?");
}

// Derives the rule of PackedAttention. There is no padding: t counts the tokens of all sequences,
// and is not sharded.
void tsr__derive_packed_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "[t i]"))
        return;
    int64_t heads = bias_heads(derivation, 5);
    tsr__rule_inputs(rule, "[_ _],[_]");
    add_score_bias(rule, heads);
    tsr__rule_outputs(rule, "[t (h d)]");
    tsr__rule_kind(rule, FACTOR_REP, heads < 1 ? "i s d t h" : "i s d t");
    tsr__rule_clauses(rule, "attr num_heads=h; attr qkv_hidden_sizes=h");
}

// Adds input i, a scale or zero point of the weights: one, or one for each column.
static void add_column_point(struct derivation *derivation, size_t i)
{
    int64_t n = last_size(derivation, i);
    if (n > 1)
        tsr__rule_inputs(&derivation->rule, "[(s h d)]?");
    else
        tsr__rule_inputs(&derivation->rule, n == 1 ? "[1]?" : "[]?");
}

// Derives the rule of QAttention: Attention with scales and zero points.
void tsr__derive_quantized_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    if (tsr__derive_rank(derivation, 1) < 0 || !start_projected(derivation, "[b q i]"))
        return;
    add_single(derivation, 3);
    add_column_point(derivation, 4);
    bool batch = add_key_mask(derivation, 5);
    add_single(derivation, 6);
    tsr__rule_optional(rule);
    add_column_point(derivation, 7);
    tsr__rule_inputs(rule, "[_ b h p d]?");
    tsr__rule_outputs(rule, "[b q (h d)],[_ b h _ d]?");
    tsr__rule_kind(rule, FACTOR_REP, batch ? "i s d p q" : "i s d p q b");
    tsr__rule_clauses(rule, "attr num_heads=h");
}

// ---- grouped queries ---------------------------------------------------------------------------

// Adds input i, the scales of a quantized cache: a single scale, or one or more per head. `flat` is
// the dimension of a list of scales, in the notation of rules.
static void add_cache_scale(struct derivation *derivation, size_t i, const char *flat)
{
    struct shape shape = tsr__derive_in(derivation, i);
    tsr__rule_input(&derivation->rule);
    if (shape.rank == 1 && shape.dims[0].value > 1) {
        tsr__rule_dims(&derivation->rule, flat);
        tsr__rule_optional(&derivation->rule);
        return;
    }
    for (int k = 0; k < shape.rank; k++) {
        bool heads = (shape.rank == 4 && k == 1) || (shape.rank == 3 && k == 0);
        tsr__rule_dims(&derivation->rule, heads ? "h~" : "_");
    }
    tsr__rule_optional(&derivation->rule);
}

#define GROUP_ATTRS "attr num_heads=h; attr num_heads=g; attr kv_num_heads=h"

// Returns the head size of an input with concatenated queries, keys and values; 0: not known.
static int64_t packed_head(const struct derivation *derivation)
{
    int64_t all = tsr__derive_int(derivation, "num_heads", 0) +
                  2 * tsr__derive_int(derivation, "kv_num_heads", 0);
    int64_t size = last_size(derivation, 0);
    if (tsr__derive_in(derivation, 0).rank == 3 && size > 0 && size % all == 0)
        return size / all;
    return 0;
}

// Adds the windows of queries, keys and values in one concatenated input. Example: with 8 query
// heads and 2 key heads of 8 elements, the windows of key head j start at 0 + 32 j, 64 + 8 j and
// 80 + 8 j.
static void add_packed_windows(struct derivation *derivation, int64_t head)
{
    int64_t kv = tsr__derive_int(derivation, "kv_num_heads", 0),
            q = tsr__derive_int(derivation, "num_heads", 0);
    const int64_t steps[] = {q / kv * head, head, head};
    const int64_t shifts[] = {0, q * head, (q + kv) * head};
    for (int i = 0; i < 3; i++)
        tsr__rule_window(&derivation->rule,
                         (struct rule_window){.dim = 2,
                                              .factor = tsr__rule_find(&derivation->rule, STR("h")),
                                              .from = last_size(derivation, 0),
                                              .to = kv,
                                              .step = steps[i],
                                              .shift = shifts[i],
                                              .reach = steps[i]});
}

// Adds queries, keys and values. They are three inputs, or one input that is sharded by windows if
// the size of a head is known.
static void add_grouped(struct rule_builder *rule, bool three, int64_t head)
{
    if (three)
        tsr__rule_inputs(rule, "[b q (h g d)],[b k (h d)],[b k (h d)]");
    else
        tsr__rule_inputs(rule, head ? "[b q h^],[]?,[]?" : "[b q _],[]?,[]?");
}

// True if a prompt can be expanded for sharded rows (expand_group_query.c): three inputs, no cache,
// and none of the features that MultiHeadAttention lacks.
static bool prompt_expands(const struct derivation *derivation)
{
    static const char *const defaults[] = {"smooth_softmax", "qk_output"};
    struct shape q = tsr__derive_in(derivation, 0), k = tsr__derive_in(derivation, 1);
    const tsr_attr *soft = tsr__derive_attr(derivation, "softcap");
    for (size_t i = 3; i < tsr_node_input_count(derivation->node); i++)
        if (tsr__derive_has(derivation, i) && (i < 5 || i > 9))
            return false;
    for (size_t i = 0; i < TSR_COUNT(defaults); i++)
        if (tsr__derive_int(derivation, defaults[i], 0) != 0)
            return false;
    return tsr__derive_outputs_end(derivation, 3) && q.rank == 3 && k.rank == 3 &&
           q.dims[2].value > 0 && k.dims[2].value > 0 && tsr__derive_in(derivation, 5).rank >= 1 &&
           tsr_attr_float(soft, 0) == 0 &&
           tsr__derive_int(derivation, "local_window_size", -1) == -1 &&
           (!tsr__derive_int(derivation, "do_rotary", 0) || last_size(derivation, 7) > 0) &&
           same_size(derivation, q.dims[1], k.dims[1]);
}

// Derives the rule of GroupQueryAttention. For a prompt, ONNX Runtime uses the position of the
// first sequence of the batch for all sequences. So the batch is sharded only if there is one token
// (decoding) or no input of positions. A head in the cache may have another size than d, because
// elements of 4 bits share a byte. This size may also be symbolic, as in models of
// onnxruntime-genai's builder.
void tsr__derive_group_query(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct shape x = tsr__derive_in(derivation, 0);
    bool batch = !tsr__derive_has(derivation, 9) || (x.rank == 3 && x.dims[1].value == 1);
    bool three = tsr__derive_has(derivation, 1) && tsr__derive_has(derivation, 2);
    if (tsr__derive_rank(derivation, 0) < 0 ||
        !tsr__derive_heads(derivation, "num_heads", "kv_num_heads"))
        return;
    int64_t head = three ? 0 : packed_head(derivation);
    if (head)
        tsr__derive_size(derivation, "d", head);
    add_grouped(rule, three, head);
    tsr__rule_inputs(rule, "[b h _ _]?,[b h _ _]?");
    tsr__rule_inputs(rule, tsr__derive_in(derivation, 5).rank == 2 ? "[b _]" : "[b]");
    tsr__rule_inputs(rule, "·,[_ _]?,[_ _]?,[b~ q~]?");
    bool heads = tsr__derive_mask(derivation, 10, "(h g)") && (three || head);
    tsr__rule_inputs(rule, "[(h g)]?");
    add_cache_scale(derivation, 12, heads ? "(h d)" : "_");
    add_cache_scale(derivation, 13, heads ? "(h d)" : "_");
    tsr__rule_inputs(rule, "[_]?,[_]?");
    tsr__rule_outputs(rule, "[b q (h g d)],[b h _ _]?,[b h _ _]?,[b (h g) q _]?");
    tsr__rule_kind(rule, FACTOR_REP, three ? "d k" : "d");
    tsr__rule_kind(rule, stat_if(three && prompt_expands(derivation)), "q");
    tsr__rule_kind_if(rule, !heads, FACTOR_REP, "h");
    tsr__rule_kind_if(rule, !heads || !three, FACTOR_REP, "g");
    tsr__rule_kind_if(rule, !batch, FACTOR_REP, "b");
    tsr__rule_clauses(rule, GROUP_ATTRS);
    if (heads && !three)
        add_packed_windows(derivation, head);
}

// Returns the number of key heads after which block layouts repeat. A shard of the heads must start
// with the first layout. Example: 8 query heads, 4 key heads (2 query heads each) and 4 layouts.
// Two key heads make one cycle, so h is sharded in multiples of 2.
static int64_t heads_per_cycle(const struct derivation *derivation, int64_t layouts)
{
    int64_t q = tsr__derive_int(derivation, "num_heads", 0),
            kv = tsr__derive_int(derivation, "kv_num_heads", 0), unit = 1;
    while (unit < kv && unit * (q / kv) % layouts)
        unit++;
    return unit;
}

void tsr__derive_sparse_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    struct shape rows = tsr__derive_in(derivation, 5);
    int64_t kv = tsr__derive_int(derivation, "kv_num_heads", 0),
            layouts = tsr__derive_int(derivation, "num_heads", 0);
    bool three = tsr__derive_has(derivation, 1) && tsr__derive_has(derivation, 2);
    if (tsr__derive_rank(derivation, 0) < 0 ||
        !tsr__derive_heads(derivation, "num_heads", "kv_num_heads"))
        return;
    if (rows.rank == 2 && rows.dims[0].value > 0)
        layouts = rows.dims[0].value;
    int64_t unit = heads_per_cycle(derivation, layouts);
    add_grouped(rule, three, 0);
    tsr__rule_inputs(rule, "[b h m e],[b h m e],[_ _],[_ _],·,[b],[_ _]?,[_ _]?");
    tsr__rule_outputs(rule, three ? "[b q (h g d)]" : "[b q (h g e)]");
    tsr__rule_outputs(rule, "[b h m e],[b h m e]");
    tsr__rule_kind(rule, FACTOR_REP, three ? "q m e k d" : "q m e h");
    tsr__rule_kind_if(rule, layouts > 1 || !three, FACTOR_REP, "g");
    struct letter *heads = NULL;
    if (three && unit > 1)
        heads = tsr__rule_clause(rule, tsr__rule_find(rule, STR("h")));
    if (heads && unit < kv)
        heads->unit = unit;
    else if (heads)
        heads->kind = FACTOR_REP;
    tsr__rule_clauses(rule, GROUP_ATTRS);
}

// ---- tokens of many sequences in one dimension -------------------------------------------------

// Derives the rule of PackedMultiHeadAttention. t counts the tokens of all sequences and is not
// sharded: other inputs hold the ends of sequences.
void tsr__derive_packed_multi_head(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int64_t of_bias = bias_heads(derivation, 6);
    if (rank < 0 || !take_heads(derivation))
        return;
    bool three = rank == 2; // three separate tensors, with a head size v for values
    tsr__rule_inputs(rule, three ? "[t (h d)],[t (h d)],[t (h v)]" : "[t h _ d],[]?,[]?");
    bool even = add_bias(derivation, 3, three ? last_size(derivation, 0) : -1,
                         three ? last_size(derivation, 2) : -1);
    tsr__rule_inputs(rule, "[_ _],[_]");
    add_score_bias(rule, of_bias);
    tsr__rule_outputs(rule, three ? "[t (h v)]" : "[t (h d)]");
    tsr__rule_kind(rule, FACTOR_REP, even ? "t d s" : "t d h");
    tsr__rule_kind_if(rule, of_bias < 1 && even, FACTOR_REP, "h");
    tsr__rule_kind_if(rule, three, FACTOR_REP, "v");
    tsr__rule_clauses(rule, "attr num_heads=h");
}

// Derives the rule of PagedAttention. Keys and values are stored in pages of a cache that all
// sequences share: n pages of m tokens. A latent cache has one tensor for both, with v_head_size
// elements per value.
void tsr__derive_paged_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    bool latent = tsr__derive_text_is(derivation, "kv_cache_layout", "LATENT");
    bool three = tsr__derive_has(derivation, 1) && (latent || tsr__derive_has(derivation, 2));
    if (tsr__derive_rank(derivation, 0) < 0 ||
        !tsr__derive_heads(derivation, "num_heads", "kv_num_heads"))
        return;
    int64_t v = latent ? tsr__derive_int(derivation, "v_head_size", 0) : 0;
    int64_t all = tsr__derive_int(derivation, "num_heads", 0) +
                  2 * tsr__derive_int(derivation, "kv_num_heads", 0);
    bool own_values = v > 0 || (three && !latent);
    if (v > 0)
        tsr__derive_size(derivation, "v", v);
    else if (!three && last_size(derivation, 0) > 0 && last_size(derivation, 0) % all == 0)
        tsr__derive_size(derivation, "d", last_size(derivation, 0) / all);
    tsr__rule_inputs(rule, three ? "[t (h g d)],[t (h d)]" : "[t _],[]?");
    tsr__rule_inputs(rule, three && !latent ? "[t (h v)]" : "[]?");
    tsr__rule_inputs(rule, "[n m h _],[n m h _]?,[_],[_],[_ _],[_ _]?,[_ _]?,[t]?,[(h g)]?");
    tsr__rule_inputs(rule, "[_]?,[_]?");
    add_cache_scale(derivation, 14, "_");
    add_cache_scale(derivation, 15, "_");
    tsr__rule_inputs(rule, "[_]?");
    tsr__rule_outputs(rule, own_values ? "[t (h g v)]" : "[t (h g d)]");
    tsr__rule_outputs(rule, "[n m h _]?,[n m h _]?");
    tsr__rule_kind(rule, FACTOR_REP, "t n m");
    tsr__rule_kind_if(rule, three || !own_values, FACTOR_REP, "d");
    tsr__rule_kind_if(rule, own_values, FACTOR_REP, "v");
    tsr__rule_kind_if(rule, !three, FACTOR_REP, "h g");
    tsr__rule_clauses(rule, GROUP_ATTRS);
}
