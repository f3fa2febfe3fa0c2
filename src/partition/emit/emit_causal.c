// SPDX-License-Identifier: Apache-2.0
// emit_causal.c - writes a causal attention on a rank that has some of the query's rows.
//
// Row i of the query may use keys 0 .. i. The rank has all keys and values. Those before its first
// row become the cache of the local node, and those after its last row are left out, so no mask is
// needed.
//
//     Example: 8 rows in 2 shards, rank 1: query rows 4..7, keys and values 4..7, cache 0..3
//
// A mask of the model already has only the local rows. Its columns after the rank's last row are
// left out.
#include "internal.h"

// Start and stop of the rank's rows, as int64[1] values of its graph.
struct row_range {
    tsr_value *start, *stop;
};

// Adds nodes that compute floor(n * first / of), where n is known only at run time.
static tsr_value *bound_of(struct part *part, tsr_value *n, int64_t first, int64_t of)
{
    tsr_value *product = NODE(part, "Mul", n, tsr__part_number(part, first));
    return NODE(part, "Div", product, tsr__part_number(part, of));
}

// Returns the rows of the rank, as constants or computed by nodes. The number of all rows is the
// size of `keys` along `axis`.
static struct row_range rows_of(struct part *part, const struct node_flow *nf, int factor,
                                tsr_value *keys, int64_t axis)
{
    int64_t place = tsr__place_index(&nf->place, part->rank);
    int64_t size = nf->place.rule->factors[factor].size.value;
    if (size >= 0) {
        struct tile_interval rows = placement_part(&nf->place, place, factor, size);
        return (struct row_range){tsr__part_number(part, rows.start),
                                  tsr__part_number(part, rows.stop)};
    }
    struct tile_units units = placement_units(&nf->place, place, factor);
    tsr_value *sizes = NODE(part, "Shape", keys);
    tsr_value *n = sizes ? tsr__part_slice(part, sizes, 0, axis, axis + 1, NEW_NAME) : NULL;
    struct row_range rows = {bound_of(part, n, units.first, units.of),
                             bound_of(part, n, units.stop, units.of)};
    // Without rows, the node runs on a placeholder (emit_guard.c), which needs one key.
    tsr_value *next = NODE(part, "Add", rows.start, tsr__part_number(part, 1));
    rows.stop = tsr__part_largest(part, rows.stop, next);
    return rows;
}

static tsr_value *slice(struct part *part, tsr_value *x, tsr_value *start, tsr_value *stop,
                        int64_t axis)
{
    return NODE(part, "Slice", x, start, stop, tsr__part_number(part, axis));
}

static int64_t local_size(const struct part *part, const struct node_flow *nf, int factor)
{
    struct tile_interval range = tsr__part_range(part, nf, factor);
    return range.stop - range.start;
}

// Adds nodes that turn keys or values [b s (h d)] into a cache [b h s d] (batch, sequence, heads,
// head size). Returns a tensor of four dimensions unchanged.
static tsr_value *as_cache(struct part *part, const struct node_flow *nf,
                           const struct rule_tensor *tensor, tsr_value *x)
{
    static const int64_t turned[] = {0, 2, 1, 3};
    int64_t shape[] = {0, 0, 1, 1};
    if (tensor->rank == 4)
        return x;
    const struct rule_dim *dim = &tensor->dims[2];
    for (int i = 0; i < dim->n; i++)
        shape[i + 1 < dim->n ? 2 : 3] *= local_size(part, nf, dim->factors[i]);
    x = NODE(part, "Reshape", x, tsr__part_ints(part, shape, 4));
    return tsr__with_ints(NODE(part, "Transpose", x), "perm", turned, 4);
}

// Adds a Reshape that states the size of the last dimension of x. ONNX shape inference loses this
// size after a Slice with computed bounds, and then infers an attention result of size 0.
static tsr_value *with_last_size(struct part *part, const struct node_flow *nf,
                                 const struct rule_tensor *tensor, tsr_value *x)
{
    int64_t shape[] = {0, 0, 0, 0};
    const struct rule_dim *dim = &tensor->dims[tensor->rank - 1];
    shape[tensor->rank - 1] = 1;
    for (int i = 0; i < dim->n; i++)
        shape[tensor->rank - 1] *= local_size(part, nf, dim->factors[i]);
    return NODE(part, "Reshape", x, tsr__part_ints(part, shape, tensor->rank));
}

tsr_status tsr__causal_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             size_t *n_inputs)
{
    const struct rule_rewrite *rewrite = tsr__sharded_rewrite(st->flow, REWRITE_CAUSAL);
    const struct node_flow *nf = st->flow;
    if (!rewrite)
        return TSR_OK;
    const struct rule_tensor *keys = &nf->place.rule->inputs[rewrite->input];
    int64_t axis = keys->rank - 2; // s in [b s (h d)] or [b h s d]
    tsr_value *none = tsr__part_number(part, 0);
    struct row_range rows = rows_of(part, nf, rewrite->factor, inputs[rewrite->input], axis);
    const struct causal_rewrite *causal = &rewrite->causal;
    bool made = true;
    for (int i = 0; i < 2; i++) { // keys, values
        tsr_value **x = &inputs[rewrite->input + i], **past = &inputs[causal->past + i];
        const struct rule_tensor *tensor = &nf->place.rule->inputs[rewrite->input + i];
        *past = as_cache(part, nf, tensor, slice(part, *x, none, rows.start, axis));
        *x = with_last_size(part, nf, tensor, slice(part, *x, rows.start, rows.stop, axis));
        made = made && *x && *past;
    }
    tsr_value **mask = &inputs[causal->mask];
    if (*mask) {
        *mask = slice(part, *mask, none, rows.stop, nf->place.rule->inputs[causal->mask].rank - 1);
        made = made && *mask;
    }
    if (*n_inputs < (size_t)causal->past + 2)
        *n_inputs = (size_t)causal->past + 2;
    return made ? TSR_OK : TSR_NOMEM;
}

bool tsr__is_causal_shard(const struct node_flow *nf)
{
    return tsr__sharded_rewrite(nf, REWRITE_CAUSAL) != NULL;
}
