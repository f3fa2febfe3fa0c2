// SPDX-License-Identifier: Apache-2.0
// derive_attention.c - rules of the attention operators of ai.onnx.
//
// h: heads of keys and values; g: query heads for each of them; b: batch; q: rows of the query; k:
// keys; d: elements of a head; v: columns of the values; t: steps of a recurrence.
//
// h, g, b, v and q can be sharded. For causal rows q, keys before the first row become a cache.
// Sharding k, or causal rows that cannot have a cache, expands the node (expand_attention.c). d and
// t are not sharded.
//
// Attention of q [2 6 64], k and v [2 7 16] with 8 query heads and 2 heads of keys:
//
//   [b q (h g d)],[b k (h d)],[b k (h v)] -> [b q (h g v)]     b 2, q 6, h 2, g 4, d 8, k 7, v 8
//
// Sharded in 2 along h, a device has queries [2 6 32] and keys [2 7 8]. Its node has 4 query heads
// and 1 head of keys: "attr q_num_heads=h", "attr kv_num_heads=h".
#include "rules/derive/derive.h"

#define NO_HEADS "the numbers of heads are unknown, or do not fit"

bool tsr__derive_heads(struct derivation *derivation, const char *queries, const char *keys)
{
    int64_t q = tsr__derive_int(derivation, queries, 0), k = tsr__derive_int(derivation, keys, 0);
    if (q < 1 || k < 1 || q % k)
        return tsr__derive_none(derivation, NO_HEADS);
    tsr__derive_size(derivation, "h", k);
    tsr__derive_size(derivation, "g", q / k);
    return true;
}

// Returns dimension `from_end` of a mask, counted from its end (1: the last), in the notation of
// rules.
static const char *mask_dim(int from_end, int64_t size, const char *heads)
{
    if (from_end == 2)
        return "q~";
    if (from_end == 4)
        return "b~";
    if (from_end != 3 || size < 1)
        return "_";
    return size == 1 ? "1" : heads;
}

bool tsr__derive_mask(struct derivation *derivation, size_t i, const char *heads)
{
    struct shape shape = tsr__derive_in(derivation, i);
    tsr__rule_input(&derivation->rule);
    for (int k = 0; k < shape.rank; k++)
        tsr__rule_dims(&derivation->rule, mask_dim(shape.rank - k, shape.dims[k].value, heads));
    tsr__rule_optional(&derivation->rule);
    return shape.rank < 3 || shape.dims[shape.rank - 3].value >= 0;
}

// True if this rule supports all attributes of the node.
static bool knows_attributes(const struct derivation *derivation)
{
    static const char *const harmless[] = {"scale",       "softcap",   "softmax_precision",
                                           "q_num_heads", "is_causal", "qk_matmul_output_mode",
                                           "kv_num_heads"};
    for (size_t i = 0; i < tsr_node_attr_count(derivation->node); i++) {
        const char *name = tsr_attr_name(tsr_node_attr(derivation->node, i));
        bool known = false;
        for (size_t k = 0; k < TSR_COUNT(harmless); k++)
            known = known || strcmp(name, harmless[k]) == 0;
        if (!known)
            return false;
    }
    return true;
}

// True if rows of the query are independent: the attention is not causal, and this rule knows all
// its attributes.
static bool rows_are_free(const struct derivation *derivation)
{
    return knows_attributes(derivation) && tsr__derive_int(derivation, "is_causal", 0) == 0;
}

bool tsr__derive_outputs_end(const struct derivation *derivation, size_t first)
{
    for (size_t i = first; i < tsr_node_output_count(derivation->node); i++)
        if (tsr_node_output(derivation->node, i))
            return false;
    return true;
}

bool tsr__derive_causal(const struct derivation *derivation, size_t past, size_t mask)
{
    struct shape q = tsr__derive_in(derivation, 0), k = tsr__derive_in(derivation, 1),
                 v = tsr__derive_in(derivation, 2), m = tsr__derive_in(derivation, mask);
    int rank = q.rank;
    if ((rank != 3 && rank != 4) || k.rank != rank || v.rank != rank ||
        tsr__derive_has(derivation, past) || tsr__derive_has(derivation, past + 1) ||
        (tsr__derive_has(derivation, mask) && m.rank < 2) ||
        !tsr__derive_outputs_end(derivation, 1))
        return false;
    return k.dims[rank - 1].value > 0 && v.dims[rank - 1].value > 0 &&
           same_size(derivation, q.dims[rank - 2], k.dims[rank - 2]);
}

void tsr__derive_causal_rows(struct derivation *derivation, size_t past, size_t mask)
{
    int rows = tsr__rule_find(&derivation->rule, STR("q"));
    tsr__rule_rewrite(&derivation->rule, (struct rule_rewrite){.kind = REWRITE_CAUSAL,
                                                               .input = 1,
                                                               .factor = rows,
                                                               .causal.past = (int)past,
                                                               .causal.mask = (int)mask});
}

bool tsr__derive_mask_fits(const struct derivation *derivation, size_t i, int keys)
{
    struct shape m = tsr__derive_in(derivation, i), k = tsr__derive_in(derivation, 1);
    if (!tsr__derive_has(derivation, i))
        return true;
    if ((m.rank != 2 && m.rank != 4) || k.rank <= keys)
        return false;
    bool heads = m.rank == 2 || m.dims[1].value > 0;
    return heads && m.dims[m.rank - 2].value > 0 &&
           same_size(derivation, m.dims[m.rank - 1], k.dims[keys]);
}

// True if the node can be expanded: no inputs 4 to 6 (cache and lengths), no softcap or
// softmax_precision, one output, known sizes, and a mask that fits (tsr__derive_mask_fits). flat:
// heads are in the last dimension.
static bool can_expand(const struct derivation *derivation, bool flat)
{
    struct shape q = tsr__derive_in(derivation, 0), k = tsr__derive_in(derivation, 1),
                 v = tsr__derive_in(derivation, 2);
    const tsr_attr *soft = tsr__derive_attr(derivation, "softcap");
    if (tsr__derive_has(derivation, 4) || tsr__derive_has(derivation, 5) ||
        tsr__derive_has(derivation, 6) || tsr_attr_float(soft, 0) != 0 ||
        tsr__derive_attr(derivation, "softmax_precision"))
        return false;
    if (!tsr__derive_outputs_end(derivation, 1))
        return false;
    int last = flat ? 2 : 3, keys = flat ? 1 : 2; // axes of d and k in [b k (h d)] or [b h k d]
    bool sizes = q.rank > last && v.rank > last && q.dims[last].value > 0 && v.dims[last].value > 0;
    sizes = sizes && (flat || (q.dims[1].value > 0 && k.rank == 4 && k.dims[1].value > 0));
    return sizes && tsr__derive_mask_fits(derivation, 3, keys);
}

// Derives the rule of Attention. A query of 3 dimensions has its heads in the last one: 8 query
// heads for 2 key heads are h = 2, g = 4. Rows q that depend on each other are treated like k,
// unless a cache can replace the earlier rows (REWRITE_CAUSAL).
void tsr__derive_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    bool flat = rank == 3;
    if (rank < 0 || tsr__derive_none_if(derivation, rank != 3 && rank != 4,
                                        "the query has neither 3 nor 4 dimensions"))
        return;
    if (flat && !tsr__derive_heads(derivation, "q_num_heads", "kv_num_heads"))
        return;
    tsr__rule_inputs(rule, flat ? "[b q (h g d)],[b k (h d)],[b k (h v)]"
                                : "[b (h g) q d],[b h k d],[b h k v]");
    bool heads_known = tsr__derive_mask(derivation, 3, "(h g)");
    tsr__rule_inputs(rule, "[b h p d]?,[b h p v]?,[b]?");
    tsr__rule_outputs(rule, flat ? "[b q (h g v)]" : "[b (h g) q v]");
    tsr__rule_outputs(rule, "[b h _ d]?,[b h _ v]?,[b (h g) q _]?");
    tsr__rule_kind(rule, FACTOR_REP, heads_known ? "d p" : "d p h g");
    enum factor_kind stat = stat_if(can_expand(derivation, flat));
    bool cached = !rows_are_free(derivation) && knows_attributes(derivation) &&
                  !tsr__derive_has(derivation, 6) && tsr__derive_causal(derivation, 4, 3);
    tsr__rule_kind(rule, stat, cached || rows_are_free(derivation) ? "k" : "k q");
    if (cached)
        tsr__derive_causal_rows(derivation, 4, 3);
    if (flat)
        tsr__rule_clauses(rule, "attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h");
}

// ---- linear attention --------------------------------------------------------------------------

// Adds input i, which has one number for all heads, for each head, or for each element d of each
// head. False: its size is unknown.
static bool add_decay(struct derivation *derivation, size_t i, int64_t heads)
{
    struct shape shape = tsr__derive_in(derivation, i);
    int64_t size = shape.rank == 3 ? shape.dims[2].value : -1;
    bool known = !tsr__derive_has(derivation, i) || size > 0;
    if (!known)
        tsr__rule_inputs(&derivation->rule, "[b t _]?");
    else if (size == heads)
        tsr__rule_inputs(&derivation->rule, "[b t h]?");
    else if (size == 1)
        tsr__rule_inputs(&derivation->rule, "[b t 1]?");
    else
        tsr__rule_inputs(&derivation->rule, "[b t (h d)]?");
    return known;
}

// Returns the last size of input i if it has three dimensions; -1: not known.
static int64_t width_of(const struct derivation *derivation, size_t i)
{
    struct shape shape = tsr__derive_in(derivation, i);
    return shape.rank == 3 ? shape.dims[2].value : -1;
}

// True if each of the kv heads of the values has its own key. The operator allows several heads to
// share a key, and only the widths show that. Example: 8 query heads of 3 elements (width 24) and 4
// heads of values. A key tensor of width 12 has 4 keys, one for each head; one of width 6 has 2.
static bool has_key_for_each(const struct derivation *derivation, int64_t q, int64_t kv)
{
    int64_t queries = width_of(derivation, 0), keys = width_of(derivation, 1);
    return queries > 0 && keys > 0 && keys % kv == 0 && queries % q == 0 &&
           keys / kv == queries / q;
}

// Returns the state tensor in the notation of rules: attribute state_window adds a leading
// dimension to it.
static const char *state(bool window, const char *with_window, const char *without)
{
    return window ? with_window : without;
}

// Builds the rule if heads share keys or queries. Heads are not sharded; batch b and columns e are.
static void build_shared_keys(struct rule_builder *rule, bool groups, bool window)
{
    tsr__rule_inputs(rule, "[b t _],[b t _],[b t (h e)]");
    tsr__rule_inputs(rule, state(window, "[_ b h _ e]?", "[b h _ e]?"));
    tsr__rule_inputs(rule, "[b t _]?,[b t _]?");
    tsr__rule_outputs(rule, groups ? "[b t (h g e)]" : "[b t (h e)]");
    tsr__rule_outputs(rule, state(window, "[_ b h _ e]", "[b h _ e]"));
    tsr__rule_kind(rule, FACTOR_REP, groups ? "t h g" : "t h");
}

// Derives the rule of LinearAttention. The state is carried from one step t to the next; its
// columns e are independent.
void tsr__derive_linear_attention(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t kv = tsr__derive_int(derivation, "kv_num_heads", 0),
            q = tsr__derive_int(derivation, "q_num_heads", 0);
    bool window = tsr__derive_int(derivation, "state_window", 0) > 0;
    if (tsr__derive_none_if(derivation, q < 1 || kv < 1 || (q % kv && kv % q), NO_HEADS))
        return;
    if (q < kv) { // each query serves several keys
        tsr__derive_size(derivation, "h", kv);
        build_shared_keys(rule, false, window);
        return;
    }
    tsr__derive_heads(derivation, "q_num_heads", "kv_num_heads");
    if (!has_key_for_each(derivation, q, kv)) {
        build_shared_keys(rule, true, window);
        return;
    }
    tsr__rule_inputs(rule, "[b t (h g d)],[b t (h d)],[b t (h e)]");
    tsr__rule_inputs(rule, state(window, "[_ b h d e]?", "[b h d e]?"));
    bool known = add_decay(derivation, 4, kv);
    known = add_decay(derivation, 5, kv) && known;
    tsr__rule_outputs(rule, "[b t (h g e)]");
    tsr__rule_outputs(rule, state(window, "[_ b h d e]", "[b h d e]"));
    tsr__rule_kind(rule, FACTOR_REP, known ? "t d" : "t d h g");
    tsr__rule_clauses(rule, "attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h");
}

// ---- rotary positions --------------------------------------------------------------------------

// Adds input i: a table of angles that positions address, or angles for each position.
static void add_angles(struct derivation *derivation, size_t i)
{
    bool given = tsr__derive_in(derivation, i).rank == 3;
    tsr__rule_inputs(&derivation->rule, given ? "[b~ t~ _]" : "[_ _]");
}

// Returns the rotated tensor in the notation of rules, with heads in the last dimension or in a
// separate one.
static const char *rotated(int rank)
{
    return rank == 3 ? "[b t (h d)]" : "[b h t d]";
}

// Returns the input `position_ids` of com.microsoft's rotary embeddings in the notation of rules.
// It has one start for all sequences, one position for each token, or three for each token
// (MRotaryEmbedding).
static const char *positions_of(int rank)
{
    if (rank == 3)
        return "[_ b t]";
    return rank == 2 ? "[b t]" : "[_]";
}

// Derives the rule of RotaryEmbedding. Each pair of elements of a head is rotated by the angle of
// its position: heads and rows can be sharded, the elements d of a head cannot. Example: [2 6 64]
// with 8 heads has the rule "[b t (h d)],[_ _],[_ _], [b~ t~]? -> [b t (h d)]; rep d; attr
// num_heads=h", where h is 8 and d is 8.
void tsr__derive_rotary(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0);
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (rank < 0 ||
        tsr__derive_none_if(derivation, rank != 4 && (rank != 3 || heads < 1), NO_HEADS))
        return;
    if (rank == 3)
        tsr__derive_size(derivation, "h", heads);
    tsr__rule_inputs(rule, rotated(rank));
    add_angles(derivation, 1);
    add_angles(derivation, 2);
    tsr__rule_inputs(rule, "[b~ t~]?");
    tsr__rule_outputs(rule, rotated(rank));
    tsr__rule_clauses(rule, "rep d; attr num_heads=h");
}

// Derives the rule of com.microsoft RotaryEmbedding, whose second input is the positions. Without
// num_heads, a head has twice the width of the angles.
void tsr__derive_rotary_positions(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int rank = tsr__derive_rank(derivation, 0), positions = tsr__derive_rank(derivation, 1);
    struct shape angles = tsr__derive_in(derivation, 2);
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0), half = 0;
    if (rank < 0 || positions < 0)
        return;
    if (angles.rank == 2 && angles.dims[1].value > 0)
        half = angles.dims[1].value;
    if (tsr__derive_none_if(derivation, rank != 4 && (rank != 3 || (heads < 1 && half < 1)),
                            NO_HEADS))
        return;
    if (rank == 3 && heads > 0)
        tsr__derive_size(derivation, "h", heads);
    else if (rank == 3)
        tsr__derive_size(derivation, "d", 2 * half);
    tsr__rule_inputs(rule, rotated(rank));
    tsr__rule_inputs(rule, positions_of(positions));
    tsr__rule_inputs(rule, "[_ _],[_ _]");
    tsr__rule_outputs(rule, rotated(rank));
    tsr__rule_kind(rule, FACTOR_REP, positions == 1 ? "d t" : "d");
    tsr__rule_clauses(rule, "attr num_heads=h");
}
