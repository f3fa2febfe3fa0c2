// SPDX-License-Identifier: Apache-2.0
// derive_attention.c - rules of the attention operators of ai.onnx. Heads are h for keys and
// values; each has g query heads. Both are free, and so is the batch b. Rows q of the query are
// free where no mask counts them; what a softmax runs over (k), and rows that a mask counts, may be
// cut where the node can be taken apart (expand_attention.c); what a recurrence runs over (t) and
// the inside of a head (d) stay whole, columns v of the values do not mix.
//
// Attention of q [2 6 64], k and v [2 7 16] with 8 query heads and 2 heads of keys:
//
//   [b q (h g d)],[b k (h d)],[b k (h v)] -> [b q (h g v)]     b 2, q 6, h 2, g 4, d 8, k 7, v 8
//
// Cut in 2 along h, a device has queries [2 6 32] and keys [2 7 8], and its node says 4 query heads
// and 1 head of keys: "attr q_num_heads=h", "attr kv_num_heads=h".
#include "rules/derive/derive.h"

#define NO_HEADS "the numbers of heads are not known, or do not fit"

// Numbers of heads from attributes: *kv of keys and values, *each of queries for one of them.
static bool heads_of(struct derivation *derivation, const char *queries, const char *keys,
                     int64_t *kv, int64_t *each)
{
    int64_t q = tsr__derive_int(derivation, queries, 0), k = tsr__derive_int(derivation, keys, 0);
    if (q < 1 || k < 1 || q % k) {
        tsr__derive_none(derivation, NO_HEADS);
        return false;
    }
    *kv = k;
    *each = q / k;
    return true;
}

void tsr__derive_heads(struct derivation *derivation, int64_t kv, int64_t each)
{
    tsr__derive_size(derivation, STR("h"), (tsr_dim){kv, ""});
    tsr__derive_size(derivation, STR("g"), (tsr_dim){each, ""});
}

// A mask or bias that broadcasts to [batch, query heads, q, k]. False: its heads are not known, so
// that heads must stay whole.
bool tsr__derive_mask(struct derivation *derivation, size_t i, const char *heads)
{
    struct shape shape = tsr__derive_in(derivation, i);
    bool known = true;
    tsr__derive_add(derivation, ",[");
    for (int k = 0; k < shape.rank; k++) {
        int from_end = shape.rank - k;
        int64_t size = shape.dims[k].value;
        if (from_end == 1 || from_end > 4)
            tsr__derive_add(derivation, "_ ");
        else if (from_end == 2)
            tsr__derive_add(derivation, "q~ ");
        else if (from_end == 4)
            tsr__derive_add(derivation, "b~ ");
        else if (size == 1)
            tsr__derive_add(derivation, "1 ");
        else if (size > 1)
            tsr__derive_add(derivation, "%s ", heads);
        else
            tsr__derive_add(derivation, "_ ");
        known = known && (from_end != 3 || size >= 0);
    }
    tsr__derive_add(derivation, "]?");
    return known;
}

// Attributes that leave the rows of the query alone.
static bool rows_are_free(const struct derivation *derivation)
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
    return tsr__derive_int(derivation, "is_causal", 0) == 0;
}

// A mask that the parts can be cut from: its rows and its heads are known, and it has a column for
// each key.
bool tsr__derive_mask_fits(const struct derivation *derivation, size_t i, int keys)
{
    struct shape m = tsr__derive_in(derivation, i), k = tsr__derive_in(derivation, 1);
    if (!tsr__derive_has(derivation, i))
        return true;
    if ((m.rank != 2 && m.rank != 4) || k.rank <= keys)
        return false;
    bool heads = m.rank == 2 || m.dims[1].value > 0;
    return heads && m.dims[m.rank - 2].value > 0 &&
           tsr__dim_equal(derivation->shapes->exprs, m.dims[m.rank - 1], k.dims[keys]);
}

// No cache, nothing but the result is asked for, and all sizes that the parts need are numbers.
static bool can_be_taken_apart(const struct derivation *derivation, bool flat)
{
    struct shape q = tsr__derive_in(derivation, 0), k = tsr__derive_in(derivation, 1),
                 v = tsr__derive_in(derivation, 2);
    const tsr_attr *soft = tsr__attr_of(derivation->shapes, derivation->node, "softcap");
    if (tsr__derive_has(derivation, 4) || tsr__derive_has(derivation, 5) ||
        tsr__derive_has(derivation, 6) || tsr_attr_float(soft, 0) != 0 ||
        tsr__attr_of(derivation->shapes, derivation->node, "softmax_precision"))
        return false;
    for (size_t i = 1; i < tsr_node_output_count(derivation->node); i++)
        if (tsr_node_output(derivation->node, i))
            return false;
    int last = 3, keys = 2; // dimensions of [b h k d], where they lie
    if (flat) {
        last = 2;
        keys = 1;
    }
    bool sizes = q.rank > last && v.rank > last && q.dims[last].value > 0 && v.dims[last].value > 0;
    sizes = sizes && (flat || (q.dims[1].value > 0 && k.rank == 4 && k.dims[1].value > 0));
    return sizes && tsr__derive_mask_fits(derivation, 3, keys);
}

// A query of 3 dimensions has its heads in the last one: 8 query heads for 2 heads of keys are
// h = 2, g = 4. Where the node can be taken apart k is "stat", else "rep"; rows q that are not free
// go with k.
void tsr__derive_attention(struct derivation *derivation)
{
    static const struct {
        const char *inputs, *result;
    } forms[] = {{"[b (h g) q d],[b h k d],[b h k v]", "[b (h g) q v]"},
                 {"[b q (h g d)],[b k (h d)],[b k (h v)]", "[b q (h g v)]"}};
    int rank = tsr__derive_rank(derivation, 0);
    bool flat = rank == 3;
    int64_t kv, each;
    if (rank < 0)
        return;
    if (rank != 3 && rank != 4) {
        tsr__derive_none(derivation, "the query has neither 3 nor 4 dimensions");
        return;
    }
    if (flat && !heads_of(derivation, "q_num_heads", "kv_num_heads", &kv, &each))
        return;
    if (flat)
        tsr__derive_heads(derivation, kv, each);
    tsr__derive_add(derivation, "%s", forms[flat].inputs);
    bool heads = tsr__derive_mask(derivation, 3, "(h g)");
    tsr__derive_add(derivation,
                    ",[b h p d]?,[b h p v]?,[b]? -> %s,[b h _ d]?,[b h _ v]?,[b (h g) q _]?"
                    "; rep d p",
                    forms[flat].result);
    if (!heads)
        tsr__derive_add(derivation, " h g");
    const char *stat =
        tsr__derive_stat_if(can_be_taken_apart(derivation, flat), derivation, 23, EXPAND_FLOATS);
    tsr__derive_add(derivation, "; %s k%s", stat, text_if(!rows_are_free(derivation), " q"));
    if (flat)
        tsr__derive_add(derivation,
                        "; attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h");
}

// Nodes with subgraphs that change scores have no rule yet; the plain form is Attention's.
void tsr__derive_flex_attention(struct derivation *derivation)
{
    derivation->text = "[b (h g) q d],[b h k d],[b h k v] -> [b (h g) q v]; rep d k";
}

// ---- linear attention --------------------------------------------------------------------------

// One number for a head, or one for each of its d elements.
static bool add_decay(struct derivation *derivation, size_t i, int64_t heads)
{
    struct shape shape = tsr__derive_in(derivation, i);
    int64_t size = -1;
    if (shape.rank == 3)
        size = shape.dims[2].value;
    bool known = !tsr__derive_has(derivation, i) || size > 0;
    if (!known)
        tsr__derive_add(derivation, ",[b t _]?");
    else if (size == heads)
        tsr__derive_add(derivation, ",[b t h]?");
    else if (size == 1)
        tsr__derive_add(derivation, ",[b t 1]?");
    else
        tsr__derive_add(derivation, ",[b t (h d)]?");
    return known;
}

// The last dimension of an input with three of them; -1: not known.
static int64_t width_of(const struct derivation *derivation, size_t i)
{
    struct shape shape = tsr__derive_in(derivation, i);
    if (shape.rank != 3)
        return -1;
    return shape.dims[2].value;
}

// Each head of the values has its own key; the operator allows fewer keys, which several heads then
// share. Only the widths show that: queries of 24 = 8 heads * 3 with keys of 12 have 4 keys, with
// keys of 6 they have 2.
static bool has_key_for_each(const struct derivation *derivation, int64_t q, int64_t kv)
{
    int64_t queries = width_of(derivation, 0), keys = width_of(derivation, 1);
    return queries > 0 && keys > 0 && keys % kv == 0 && queries % q == 0 &&
           keys / kv == queries / q;
}

// Heads share keys or queries, so they stay together; batches and columns are free.
static void add_whole_heads(struct derivation *derivation, const char *heads, const char *window)
{
    tsr__derive_add(derivation, "[b t _],[b t _],[b t (h e)],[%sb h _ e]?,[b t _]?,[b t _]?",
                    window);
    tsr__derive_add(derivation, " -> [b t (%s e)],[%sb h _ e]; rep t %s", heads, window, heads);
}

// The state is carried from one t to the next; its columns e do not mix.
void tsr__derive_linear_attention(struct derivation *derivation)
{
    int64_t kv = tsr__derive_int(derivation, "kv_num_heads", 0),
            q = tsr__derive_int(derivation, "q_num_heads", 0);
    bool windows = tsr__derive_int(derivation, "state_window", 0) > 0;
    const char *window = text_if(windows, "_ "); // a window of states in front of each
    if (q < 1 || kv < 1 || (q % kv && kv % q)) {
        tsr__derive_none(derivation, NO_HEADS);
        return;
    }
    if (q < kv) { // each query serves several keys
        tsr__derive_size(derivation, STR("h"), (tsr_dim){kv, ""});
        add_whole_heads(derivation, "h", window);
        return;
    }
    tsr__derive_heads(derivation, kv, q / kv);
    if (!has_key_for_each(derivation, q, kv)) {
        add_whole_heads(derivation, "h g", window);
        return;
    }
    tsr__derive_add(derivation, "[b t (h g d)],[b t (h d)],[b t (h e)],[%sb h d e]?", window);
    bool known = add_decay(derivation, 4, kv);
    known = add_decay(derivation, 5, kv) && known;
    tsr__derive_add(derivation, " -> [b t (h g e)],[%sb h d e]; rep t d%s", window,
                    text_if(!known, " h g"));
    tsr__derive_add(derivation, "; attr q_num_heads=h; attr q_num_heads=g; attr kv_num_heads=h");
}

// ---- rotary positions --------------------------------------------------------------------------

// Angles are looked up by position (whole tables), or given for each place.
static void add_angles(struct derivation *derivation, size_t i)
{
    if (tsr__derive_in(derivation, i).rank == 3)
        tsr__derive_add(derivation, ",[b~ t~ _]");
    else
        tsr__derive_add(derivation, ",[_ _]");
}

// What is turned, by its number of dimensions: heads side by side, or apart.
static const char *rotated(int rank)
{
    if (rank == 3)
        return "[b t (h d)]";
    return "[b h t d]";
}

// Positions of com.microsoft: a start for all, a place for each token, or three of them
// (MRotaryEmbedding).
static const char *positions_of(int rank)
{
    if (rank == 3)
        return "[_ b t]";
    if (rank == 2)
        return "[b t]";
    return "[_]";
}

// Each pair of elements of a head is turned by the angle of its position: heads and rows are free,
// the inside of a head (d) is not. [2 6 64] with 8 heads: "[b t (h d)],[_ _],[_ _],[b~ t~]? -> [b t
// (h d)]; rep d; attr num_heads=h", h 8, d 8.
void tsr__derive_rotary(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0);
    if (rank < 0)
        return;
    if (rank != 4 && (rank != 3 || heads < 1)) {
        tsr__derive_none(derivation, NO_HEADS);
        return;
    }
    const char *x = rotated(rank);
    if (rank == 3)
        tsr__derive_size(derivation, STR("h"), (tsr_dim){heads, ""});
    tsr__derive_add(derivation, "%s", x);
    add_angles(derivation, 1);
    add_angles(derivation, 2);
    tsr__derive_add(derivation, ",[b~ t~]? -> %s; rep d; attr num_heads=h", x);
}

// com.microsoft: positions come second, as one start for all or one for each place; without
// num_heads the angles tell the size of a head.
void tsr__derive_rotary_positions(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0), many = tsr__derive_rank(derivation, 1);
    struct shape angles = tsr__derive_in(derivation, 2);
    int64_t heads = tsr__derive_int(derivation, "num_heads", 0), half = 0;
    if (rank < 0 || many < 0)
        return;
    if (angles.rank == 2 && angles.dims[1].value > 0)
        half = angles.dims[1].value;
    if (rank != 4 && (rank != 3 || (heads < 1 && half < 1))) {
        tsr__derive_none(derivation, NO_HEADS);
        return;
    }
    const char *x = rotated(rank);
    if (rank == 3 && heads > 0)
        tsr__derive_size(derivation, STR("h"), (tsr_dim){heads, ""});
    else if (rank == 3)
        tsr__derive_size(derivation, STR("d"), (tsr_dim){2 * half, ""});
    tsr__derive_add(derivation, "%s,%s,[_ _],[_ _] -> %s; rep d%s; attr num_heads=h", x,
                    positions_of(many), x, text_if(many == 1, " t"));
}
