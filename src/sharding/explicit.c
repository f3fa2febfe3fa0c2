// SPDX-License-Identifier: Apache-2.0
// explicit.c - the placement of one node whose tensors are all told how to lie: what the flow would make of such
// specs, without a model that has them. For those who try shardings before they write them down.
#include "sharding/solve.h"

static size_t count_on(const struct solve *s)
{
    size_t n = 0;
    for (int64_t d = 0; d < s->n_all; d++)
        n += s->on[d];
    return n;
}

static bool take(struct solve *v, const tsr_node *n, const struct shapes *s, bool out, size_t i,
                 const struct tile_layout *l)
{
    const tsr_value *value = out ? tsr_node_output(n, i) : tsr_node_input(n, i);
    struct shape shape = tsr__shapes_of(s, value);
    return tsr__solve_add(v, out, (int)i, l, &shape, false, !out);
}

bool tsr__placement_explicit(struct arena *scratch, struct arena *a, const tsr_node *n,
                             const struct shapes *s, const struct rule *r, int64_t n_devices,
                             struct tile_layout *const *in, struct tile_layout *const *out,
                             bool intact, struct placement *p)
{
    struct solve v;
    bool explicit_in = false;
    if (!tsr__solve_init(&v, scratch, a, r, n_devices))
        return false;
    v.intact = intact;
    for (size_t i = 0; i < tsr_node_input_count(n); i++) {
        explicit_in = explicit_in || in[i];
        if (in[i] && !take(&v, n, s, false, i, in[i]))
            return false;
    }
    for (size_t i = 0; i < tsr_node_output_count(n); i++) {
        if (!out[i])
            continue;
        struct solve attempt = tsr__solve_copy(&v);
        if (scratch->failed)
            return false;
        if (take(&attempt, n, s, true, i, out[i]) &&
            (!explicit_in || count_on(&attempt) == count_on(&v)))
            v = attempt;
    }
    return !scratch->failed && tsr__solve_result(&v, a, p);
}

static bool take_spec(struct arena *a, const tsr_node *n, const tsr_spec *p, const struct shapes *s,
                      struct tile_layout **in, struct tile_layout **out)
{
    const tsr_value *v = tsr_spec_value(p);
    struct tile_layout *l = NULL;
    if (!v)
        return true;
    struct shape shape = tsr__shapes_of(s, v);
    if (tsr__spec_layout(a, p, &shape, false, &l) != TSR_OK)
        return false;
    if (l && !(l = tsr__layout_canonical(a, l, &shape)))
        return false;
    for (size_t i = 0; l && i < tsr_node_input_count(n); i++)
        if (tsr_node_input(n, i) == v)
            in[i] = l;
    for (size_t i = 0; l && i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i) == v)
            out[i] = l;
    return true;
}

bool tsr__node_specs(struct arena *a, const tsr_node *n, const tsr_config *c,
                     const struct shapes *s, struct tile_layout **in, struct tile_layout **out)
{
    for (size_t i = 0; i < tsr_node_config_count(n); i++) {
        const tsr_node_config *nc = tsr_node_config_at(n, i);
        for (size_t k = 0; tsr_node_config_config(nc) == c && k < tsr_node_config_spec_count(nc);
             k++)
            if (!take_spec(a, n, tsr_node_config_spec(nc, k), s, in, out))
                return false;
    }
    return true;
}
