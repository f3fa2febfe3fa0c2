// SPDX-License-Identifier: Apache-2.0
// declare.c - tsr_shapes: writes the types and shapes that were found into the model. Bodies of
// functions are left as they are: one body serves calls of many shapes.
#include "rules/internal.h"

static bool all_known(struct shape s)
{
    for (int i = 0; i < s.rank; i++)
        if (!dim_known(s.dims[i]))
            return false;
    return s.rank >= 0;
}

// A declared name stays unless a number was found.
static tsr_status declare(struct shapes *s, tsr_value *v)
{
    struct value_info found = tsr__info_of(s, v);
    int rank = found.shape.rank, declared = tsr_value_rank(v);
    if (found.form != VALUE_TENSOR || found.shape.dtype == TSR_UNDEFINED ||
        tsr__value_is_other(v) || tsr_value_initializer(v))
        return TSR_OK;
    const tsr_dim *dims = found.shape.dims;
    tsr_dim *kept = NULL;
    for (int i = 0; i < rank && declared == rank; i++) {
        tsr_dim own = tsr_value_dim(v, i);
        if (own.value >= 0 || !dim_known(own) || dims[i].value >= 0 || own.symbol == dims[i].symbol)
            continue;
        if (!kept) {
            kept = ARENA_ARRAY(s->arena, tsr_dim, (size_t)rank);
            if (!kept)
                return TSR_NOMEM;
            memcpy(kept, dims, (size_t)rank * sizeof(*kept));
        }
        kept[i] = own;
    }
    return tsr_value_set_type(v, found.shape.dtype, rank, kept ? kept : dims);
}

static void count(const struct shapes *s, const tsr_value *v, tsr_shapes_summary *sum)
{
    struct value_info i = tsr__info_of(s, v);
    sum->values++;
    sum->typed += i.shape.dtype != TSR_UNDEFINED;
    sum->ranked += i.shape.rank >= 0;
    sum->fixed += all_known(i.shape);
}

static tsr_status declare_graph(struct shapes *s, const tsr_graph *g, tsr_shapes_summary *sum)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < tsr_graph_input_count(g) && st == TSR_OK; i++)
        st = declare(s, tsr_graph_input(g, i));
    for (tsr_node *n = tsr_graph_first(g); n && st == TSR_OK; n = tsr_node_next(n)) {
        for (size_t i = 0; i < tsr_node_output_count(n) && st == TSR_OK; i++) {
            tsr_value *v = tsr_node_output(n, i);
            if (!v)
                continue;
            count(s, v, sum);
            st = declare(s, v);
        }
        for (size_t i = 0; i < tsr_node_attr_count(n) && st == TSR_OK; i++) {
            const tsr_attr *a = tsr_node_attr(n, i);
            for (size_t k = 0; k < tsr_attr_graph_count(a) && st == TSR_OK; k++)
                st = declare_graph(s, tsr_attr_graph(a, k), sum);
        }
    }
    return st;
}

static tsr_status check_sizes(tsr_session *s, const tsr_size *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (sizes[i].size < 0 || !sizes[i].name || !sizes[i].name[0]) {
            struct place at = PLACE_NONE;
            tsr__diag(s, DIAG_dim_negative, &at, NULL, "'%s' cannot be %lld",
                      sizes[i].name ? sizes[i].name : "", (long long)sizes[i].size);
            return TSR_INVALID;
        }
    return TSR_OK;
}

static void note_unused(const struct shapes *s, const tsr_size *sizes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct place at = PLACE_NONE;
        if (!tsr__exprs_used(s->exprs, str_of(sizes[i].name)))
            tsr__diag(s->arena->session, DIAG_dim_unknown, &at, NULL,
                      "no dimension of the model is called '%s'", sizes[i].name);
    }
}

tsr_status tsr_shapes(tsr_model *m, const tsr_size *sizes, size_t n, tsr_shapes_summary *summary)
{
    struct arena a;
    tsr_shapes_summary sum = {.size = sizeof(sum)};
    tsr_status st = check_sizes(tsr_model_session(m), sizes, n);
    if (st != TSR_OK)
        return st;
    tsr__arena_init(&a, tsr_model_session(m));
    struct shapes *s = tsr__shapes_bound(&a, m, sizes, n, true);
    st = s ? TSR_OK : TSR_NOMEM;
    if (s)
        note_unused(s, sizes, n);
    if (s && tsr_model_graph(m))
        st = declare_graph(s, tsr_model_graph(m), &sum);
    tsr__arena_free(&a);
    if (st == TSR_OK && summary)
        memcpy((char *)summary + sizeof(size_t), (char *)&sum + sizeof(size_t),
               (summary->size < sizeof(sum) ? summary->size : sizeof(sum)) - sizeof(size_t));
    return st;
}
