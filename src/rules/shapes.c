// SPDX-License-Identifier: Apache-2.0
// shapes.c - type and shape of every value: what the model declares, completed by the rules.
//
// One pass in node order. A declared number stays; a declared symbol gives way to a number that the
// rule finds; what neither knows stays open. Values that hold sizes are followed along (values.c).
#include "rules/internal.h"

// Found dimensions live in a rule that goes; declared ones stay.
static tsr_dim better(struct arena *a, tsr_dim declared, tsr_dim found)
{
    bool take = !dim_known(declared) || (declared.value < 0 && found.value >= 0);
    return take ? tsr__dim_copy(a, found) : declared;
}

static void read_declared(struct shapes *s, const tsr_value *v)
{
    struct shape *at = &s->at[tsr__value_id(v)];
    const tsr_tensor *t = tsr_value_initializer(v);
    at->dtype = tsr_value_dtype(v);
    at->rank = tsr_value_rank(v);
    if (t && (at->rank < 0 || at->dtype == TSR_UNDEFINED)) {
        at->dtype = tsr_tensor_dtype(t);
        at->rank = tsr_tensor_rank(t);
    }
    tsr_dim *dims = at->rank > 0 ? ARENA_ARRAY(s->arena, tsr_dim, (size_t)at->rank) : NULL;
    for (int i = 0; dims && i < at->rank; i++) {
        dims[i] = tsr_value_rank(v) == at->rank ? tsr_value_dim(v, i) : DIM_UNKNOWN;
        if (t && tsr_tensor_rank(t) == at->rank && !tsr_value_is_input(v))
            dims[i] = (tsr_dim){.value = tsr_tensor_dims(t)[i], .symbol = ""};
        if (!dims[i].symbol)
            dims[i].symbol = "";
    }
    at->dims = dims;
    if (t && !tsr_value_is_input(v))
        s->values[tsr__value_id(v)] = tsr__value_of_tensor(s->arena, t);
}

static void read_graph(struct shapes *s, const tsr_graph *g)
{
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        read_declared(s, tsr_graph_input(g, i));
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        read_declared(s, tsr_graph_initializer(g, i));
    for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n)) {
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i))
                read_declared(s, tsr_node_output(n, i));
        for (size_t i = 0; i < tsr_node_input_count(n); i++) {
            const tsr_value *v = tsr_node_input(n, i); // stand-ins have no other place
            if (v && s->at[tsr__value_id(v)].rank == -2)
                read_declared(s, v);
        }
    }
}

static tsr_dtype result_type(const struct shapes *s, const tsr_node *n)
{
    const struct op_row *row = tsr__row_of(n);
    size_t from = row && row->type == TYPE_AS_SECOND ? 1 : 0;
    if (!row)
        return TSR_UNDEFINED;
    if (row->type == TYPE_BOOL)
        return TSR_BOOL;
    if (row->type == TYPE_TO)
        return (tsr_dtype)tsr_attr_int(tsr_node_find_attr(n, "to"), TSR_UNDEFINED);
    const tsr_value *v = from < tsr_node_input_count(n) ? tsr_node_input(n, from) : NULL;
    return v ? tsr__shapes_of(s, v).dtype : TSR_UNDEFINED;
}

static tsr_dim product(struct arena *a, const struct rule *r, const struct rule_dim *d)
{
    struct expr e = tsr__expr_number(1);
    for (int i = 0; i < d->n; i++) {
        struct expr f = tsr__expr_of(r->factors[d->factors[i]].size);
        if (!tsr__expr_mul(&e, &f))
            return DIM_UNKNOWN;
    }
    return d->n == 1 ? r->factors[d->factors[0]].size : tsr__expr_dim(a, &e);
}

// What the rule says about output i is read off its factors.
static void complete(struct shapes *s, struct arena *scratch, const struct rule *r, int i,
                     const tsr_value *v)
{
    struct shape *at = &s->at[tsr__value_id(v)];
    const struct rule_tensor *t = &r->outputs[i];
    if (t->host || (at->rank >= 0 && at->rank != t->rank))
        return;
    tsr_dim *dims = ARENA_ARRAY(s->arena, tsr_dim, (size_t)t->rank + 1);
    if (!dims)
        return;
    for (int k = 0; k < t->rank; k++) {
        tsr_dim declared = at->rank >= 0 ? at->dims[k] : DIM_UNKNOWN;
        dims[k] = better(s->arena, declared, product(scratch, r, &t->dims[k]));
    }
    at->rank = t->rank;
    at->dims = dims;
}

static bool follow_node(struct shapes *s, struct arena *scratch, const tsr_node *n)
{
    const struct rule *r = tsr__rule_of(scratch, n, s);
    if (!r)
        return false;
    for (size_t i = 0; i < tsr_node_output_count(n); i++) {
        const tsr_value *v = tsr_node_output(n, i);
        if (!v)
            continue;
        struct shape *at = &s->at[tsr__value_id(v)];
        if (!r->whole)
            complete(s, scratch, r, (int)i, v);
        if (at->dtype == TSR_UNDEFINED && i == 0)
            at->dtype = result_type(s, n);
    }
    if (tsr_node_output_count(n) && tsr_node_output(n, 0))
        s->values[tsr__value_id(tsr_node_output(n, 0))] = tsr__value_follow(s, n);
    return !s->arena->failed;
}

struct shapes *tsr__shapes_new(struct arena *a, tsr_model *m)
{
    struct shapes *s = ARENA_NEW(a, struct shapes);
    if (!s)
        return NULL;
    s->arena = a;
    s->n = tsr__model_value_ids(m);
    s->at = ARENA_ARRAY(a, struct shape, (size_t)s->n + 1);
    s->values = ARENA_ARRAY(a, struct known_value, (size_t)s->n + 1);
    if (!s->at || !s->values)
        return NULL;
    for (uint32_t i = 0; i < s->n; i++)
        s->at[i].rank = -2; // not read yet
    tsr_graph *g = tsr_model_graph(m);
    if (g)
        read_graph(s, g);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->at[i].rank == -2)
            s->at[i].rank = -1;
    for (tsr_node *n = g ? tsr_graph_first(g) : NULL; n; n = tsr_node_next(n)) {
        struct arena scratch; // of one node
        tsr__arena_init(&scratch, a->session);
        bool ok = follow_node(s, &scratch, n);
        tsr__arena_free(&scratch);
        if (!ok)
            return NULL;
    }
    return a->failed ? NULL : s;
}

struct shape tsr__shapes_of(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    return id < s->n ? s->at[id] : (struct shape){.rank = -1};
}

struct known_value tsr__value_known(const struct shapes *s, const tsr_value *v)
{
    uint32_t id = tsr__value_id(v);
    return id < s->n ? s->values[id] : (struct known_value){0};
}

int64_t tsr__shapes_ints(const struct shapes *s, const tsr_value *v, int64_t *out, int64_t cap)
{
    struct known_value k = tsr__value_known(s, v);
    if (!k.elements || k.n > cap)
        return -1;
    for (int64_t i = 0; i < k.n; i++) {
        if (!k.elements[i].known || k.elements[i].value.n)
            return -1;
        out[i] = k.elements[i].value.number;
    }
    return k.n;
}
