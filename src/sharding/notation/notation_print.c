// SPDX-License-Identifier: Apache-2.0
// notation_print.c - prints a layout in the compact notation. notation.c reads the text as the same
// layout.
#include "sharding/sharding.h"

#define LISTED_MOST 64 // up to this number of tiles, owners 0, 1, 2, ... are printed too

// Prints one dimension. Examples: "1" is unsharded; "4" is four parts; "8/2*?" is two factors, one
// of 8 elements in 2 parts and one of unknown size.
static void print_dim(struct text *text, const struct tile_dim *dim)
{
    if (!tsr__dim_is_sharded(dim)) {
        tsr__text_add(text, STR("1"));
        return;
    }
    if (dim->n == 1) {
        tsr__text_printf(text, "%lld", (long long)dim->factors[0].cuts);
        return;
    }
    for (int factor = 0; factor < dim->n; factor++) {
        if (factor)
            tsr__text_add(text, STR("*"));
        if (dim->factors[factor].size)
            tsr__text_printf(text, "%lld", (long long)dim->factors[factor].size);
        else
            tsr__text_add(text, STR("?"));
        if (dim->factors[factor].cuts > 1)
            tsr__text_printf(text, "/%lld", (long long)dim->factors[factor].cuts);
    }
}

// Prints the owners of a shard: "3", "(0,1)", or "-1" if there is none.
static void print_owners(struct text *text, const struct tile_layout *layout, int64_t shard)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(layout, shard, &owners);
    // a replicated layout lists all owners without parentheses
    bool group = n > 1 && layout->n_shards > 1;
    if (!n)
        tsr__text_add(text, STR("-1"));
    if (group)
        tsr__text_add(text, STR("("));
    for (size_t i = 0; i < n; i++) {
        if (i)
            tsr__text_add(text, STR(","));
        tsr__text_printf(text, "%lld", (long long)owners[i]);
    }
    if (group)
        tsr__text_add(text, STR(")"));
}

// Prints the dimensions. "..." follows the first `front` dimensions; -1: no "..." is printed.
static void print_dims(struct text *text, const struct tile_layout *layout, int front)
{
    struct str between = STR("");
    for (int axis = 0; axis <= layout->rank; axis++) {
        if (axis == front) {
            tsr__text_add(text, between);
            tsr__text_add(text, STR("..."));
            between = STR(",");
        }
        if (axis == layout->rank)
            break;
        tsr__text_add(text, between);
        print_dim(text, &layout->dims[axis]);
        between = STR(",");
    }
    if (!between.n)
        tsr__text_add(text, STR("1")); // a scalar
}

// True if there are many tiles and device k owns tile k. The owner list is then left out, because a
// text without owners means the same. A spec of 20 bytes may have a million tiles; their list would
// take 7 MB.
static bool counts_up(const struct tile_layout *layout)
{
    if (layout->n_shards <= LISTED_MOST || layout->first[layout->n_shards] != layout->n_shards)
        return false;
    for (int64_t k = 0; k < layout->n_shards; k++)
        if (layout->first[k] != k || layout->owners[k] != k)
            return false;
    return true;
}

// Returns the text of a layout: dimensions, then the owners of each tile, as in {2,1:0,1}. Owners
// are left out if counts_up is true, as in {100,1}. Returns "" if out of memory; the arena has then
// failed.
static struct str print_tiles(struct arena *arena, const struct tile_layout *l, int front)
{
    struct tile_layout *o = tsr__layout_units(arena, l);
    if (!o)
        return STR("");
    struct text text = {.session = arena->session};
    tsr__text_add(&text, STR("{"));
    print_dims(&text, o, front);
    struct str between = STR(":");
    int64_t listed = counts_up(o) ? 0 : o->n_shards;
    for (int64_t k = 0; k < listed; k++) {
        tsr__text_add(&text, between);
        print_owners(&text, o, k);
        between = STR(",");
    }
    tsr__text_add(&text, STR("}"));
    struct str out = tsr__text_keep(&text, arena);
    return out.p ? out : STR("");
}

struct str tsr__notation_print(struct arena *arena, const struct tile_layout *layout)
{
    return print_tiles(arena, layout, -1);
}

struct str tsr__notation_print_open(struct arena *arena, const struct tile_layout *layout,
                                    int front)
{
    return print_tiles(arena, layout, front);
}
