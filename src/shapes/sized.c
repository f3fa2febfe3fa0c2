// SPDX-License-Identifier: Apache-2.0
// sized.c - computes dimensions from symbols whose sizes the caller knows. Equal names have equal
// sizes.
#include "shapes/infer.h"

struct dim_sizes {
    struct exprs exprs;
};

struct dim_sizes *tsr__dim_sizes_new(struct arena *arena, const tsr_dim_size *sizes, size_t n)
{
    struct dim_sizes *dim_sizes = ARENA_NEW(arena, struct dim_sizes);
    if (!dim_sizes)
        return NULL;
    tsr__exprs_init(&dim_sizes->exprs, arena);
    for (size_t i = 0; i < n; i++)
        if (!tsr__exprs_bind(&dim_sizes->exprs, str_of(sizes[i].name), sizes[i].size))
            return NULL;
    return arena->failed ? NULL : dim_sizes;
}

// Returns the size of a dimension: "batch*seq" with batch 2 and seq 128 is 256. -1 if a symbol has
// no size.
int64_t tsr__dim_sizes_of(struct dim_sizes *sizes, tsr_dim dim)
{
    if (dim.value >= 0)
        return dim.value;
    struct expr expr =
        dim.symbol && dim.symbol[0] ? tsr__expr_of(&sizes->exprs, dim) : (struct expr){0};
    return expr_is_number(expr) && expr.number >= 0 ? expr.number : -1;
}
