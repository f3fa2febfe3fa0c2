// SPDX-License-Identifier: Apache-2.0
// sized.c - numbers for dimensions whose symbols the caller knows the sizes of. Knows no model: the same names mean
// the same sizes.
#include "rules/internal.h"

struct dim_sizes {
    struct exprs exprs;
};

struct dim_sizes *tsr__dim_sizes_new(struct arena *a, const tsr_size *sizes, size_t n)
{
    struct dim_sizes *s = ARENA_NEW(a, struct dim_sizes);
    if (!s)
        return NULL;
    tsr__exprs_init(&s->exprs, a);
    for (size_t i = 0; i < n; i++)
        if (!tsr__exprs_bind(&s->exprs, str_of(sizes[i].name), sizes[i].size))
            return NULL;
    return a->failed ? NULL : s;
}

int64_t tsr__dim_sizes_of(struct dim_sizes *s, tsr_dim d)
{
    if (d.value >= 0)
        return d.value;
    struct expr e = d.symbol && d.symbol[0] ? tsr__expr_of(&s->exprs, d) : (struct expr){0};
    return expr_is_number(e) && e.number >= 0 ? e.number : -1;
}
