// SPDX-License-Identifier: Apache-2.0
// notation_print.c - a layout as text in the compact notation; notation.c reads it again as the
// same layout.
#include "sharding/sharding.h"

#define LISTED_MOST 64 // tiles whose owners are written out even if they count up

// "1" is whole, "4" four parts of whatever size; several factors show their sizes: "8/2*?" are 8
// units, cut in two, of as many elements as the dimension leaves.
static void print_dim(struct text *text, const struct tile_dim *dim)
{
    bool cut = false;
    for (int factor = 0; factor < dim->n; factor++)
        cut |= dim->factors[factor].cuts > 1;
    if (!cut) {
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

// "3", "(0,1)", or "-1" for a tile without an owner.
static void print_owners(struct text *text, const struct tile_layout *layout, int64_t shard)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(layout, shard, &owners);
    bool group = n > 1 && layout->n_shards > 1; // of a whole layout all owners are listed plainly
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

// The entries of the dimensions, "..." standing behind the first `front` of them (-1: nowhere).
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

// More tiles than any reader counts, and tile k is device k's: what a text without owners means
// anyway. A spec of 20 bytes may have a million tiles; their list would be 7 MB for each of its
// readers.
static bool counts_up(const struct tile_layout *layout)
{
    if (layout->n_shards <= LISTED_MOST || layout->first[layout->n_shards] != layout->n_shards)
        return false;
    for (int64_t k = 0; k < layout->n_shards; k++)
        if (layout->first[k] != k || layout->owners[k] != k)
            return false;
    return true;
}

// {2,1:0,1}: the dimensions, then the owners of each tile in the order of the tiles; {100,1}: many
// tiles on devices 0 to 99. "" and a failed arena without memory.
static struct str print_tiles(struct arena *arena, const struct tile_layout *l, int front)
{
    struct tile_layout *o = tsr__layout_units(arena, l);
    if (!o)
        return STR("");
    struct text text;
    tsr__text_init(&text, arena->session);
    tsr__text_add(&text, STR("{"));
    print_dims(&text, o, front);
    struct str between = STR(":");
    int64_t listed = o->n_shards;
    if (counts_up(o))
        listed = 0;
    for (int64_t k = 0; k < listed; k++) {
        tsr__text_add(&text, between);
        print_owners(&text, o, k);
        between = STR(",");
    }
    tsr__text_add(&text, STR("}"));
    arena->failed |= text.failed;
    struct str out = tsr__arena_str(arena, (struct str){text.p, text.n});
    tsr__text_free(&text);
    if (out.p)
        return out;
    return STR("");
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
