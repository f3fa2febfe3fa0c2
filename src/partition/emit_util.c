// SPDX-License-Identifier: Apache-2.0
// emit_util.c - the small things a rank's graph is made of: names, integer constants, helper nodes.
#include "internal.h"

#include <stdarg.h>

struct str tsr__part_fresh(struct part *t)
{
    struct str name;
    do
        name = tsr__arena_printf(t->plan->arena, "ai.tessera.%lld", (long long)t->n_fresh++);
    while (name.p && tsr__map_get(&t->plan->names, name));
    return name;
}

// The form that carries the value's own name on this rank: what the graph takes in or gives out,
// else the first that is there and needs no reduction.
static struct form *plain_form(struct part *t, const struct item *it)
{
    struct form *plain = NULL;
    for (struct form *f = it->first; f; f = f->next) {
        if (f->kind == FORM_INPUT)
            return f;
        if (f->same || !f->live[t->rank])
            continue;
        if (!plain || (plain->partial && !f->partial))
            plain = f;
    }
    for (size_t i = 0; i < t->plan->outputs.n; i++) {
        struct form *f = t->plan->outputs.at[i];
        if (f->item == it && tsr__layout_has_device(f->layout, t->rank))
            return form_root(f);
    }
    return plain;
}

struct str tsr__form_name(struct part *t, struct form *f)
{
    struct item *it = f->item;
    if (plain_form(t, it) == form_root(f) && it->value)
        return it->name;
    if (!it->value)
        return tsr__part_fresh(t);
    struct str name;
    int k = f->index;
    do {
        name = tsr__arena_printf(t->plan->arena, STR_FMT "/%d", STR_ARG(it->name), k);
        k += 1000; // other forms of the value keep their numbers
    } while (name.p && tsr__map_get(&t->plan->names, name));
    return name;
}

tsr_value *tsr__part_ints(struct part *t, const int64_t *v, int64_t n)
{
    struct str key = {(const char *)v, (size_t)n * sizeof(*v)};
    tsr_value *known = n ? tsr__map_get(&t->constants, key) : NULL;
    if (known)
        return known;
    struct str name = tsr__part_fresh(t);
    if (!name.p)
        return NULL;
    tsr_value *made =
        tsr_graph_add_initializer(tsr_model_graph(t->model), name.p, TSR_INT64, 1, &n, v ? v : &n,
                                  key.n); // where all bodies can see it
    key = tsr__arena_str(t->plan->arena, key);
    void **slot = made && n && key.p ? tsr__map_at(&t->constants, key) : NULL;
    if (slot)
        *slot = made;
    return made;
}

tsr_value *tsr__part_empty(struct part *t, tsr_dtype type)
{
    static const int64_t none[1] = {0};
    struct str name = tsr__part_fresh(t);
    return name.p ? tsr_graph_add_initializer(t->graph, name.p, type, 1, none, none, 0) : NULL;
}

tsr_value *tsr__part_node(struct part *t, const char *op, struct str out, size_t n_inputs, ...)
{
    tsr_value *inputs[8];
    va_list args;
    va_start(args, n_inputs);
    bool all = n_inputs <= TSR_COUNT(inputs);
    for (size_t i = 0; i < n_inputs && all; i++)
        all = (inputs[i] = va_arg(args, tsr_value *)) != NULL;
    va_end(args);
    if (!out.p)
        out = tsr__part_fresh(t);
    if (!all || !out.p)
        return NULL;
    const char *outputs[1] = {out.p};
    tsr_node *n = tsr_graph_add_node(t->graph, "", op, out.p, inputs, n_inputs, outputs, 1);
    return n ? tsr_node_output(n, 0) : NULL;
}

// Two types of 4 bits, each into the type of 8 bits that holds all of its values: bytes alone travel between ranks.
tsr_dtype tsr__carried(tsr_dtype type)
{
    switch (type) {
    case TSR_INT4:
        return TSR_INT8;
    case TSR_UINT4:
        return TSR_UINT8;
    default:
        return type;
    }
}

tsr_value *tsr__part_cast(struct part *t, tsr_value *x, tsr_dtype to, struct str out)
{
    tsr_value *y = tsr__part_node(t, "Cast", out, 1, x);
    tsr_node *n = y ? tsr_value_producer(y) : NULL;
    if (!n || tsr_node_set_int(n, "to", to) != TSR_OK)
        return NULL;
    bool narrow_float = to >= TSR_FLOAT8E4M3FN && to <= TSR_FLOAT8E5M2FNUZ;
    if (narrow_float && tsr_node_set_int(n, "saturate", 0) != TSR_OK)
        return NULL; // infinity stays what it is
    return y;
}

tsr_value *tsr__part_sizes(struct part *t, tsr_value *x, tsr_dtype type, struct str out)
{
    if (tsr__carried(type) != type)
        x = tsr__part_cast(t, x, tsr__carried(type), (struct str){0});
    return tsr__part_node(t, "Shape", out, 1, x);
}

tsr_value *tsr__part_same(struct part *t, tsr_value *x, tsr_dtype type, struct str out)
{
    if (tsr__carried(type) == type)
        return tsr__part_node(t, "Identity", out, 1, x);
    x = tsr__part_cast(t, x, tsr__carried(type), (struct str){0});
    return tsr__part_cast(t, x, type, out);
}
