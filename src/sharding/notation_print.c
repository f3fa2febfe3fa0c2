// SPDX-License-Identifier: Apache-2.0
// notation_print.c - a layout as text in the compact notation; notation.c reads it again as the same layout.
#include "sharding/sharding.h"

static void print_dim(struct text *t, const struct tile_dim *d)
{
    bool cut = false;
    for (int f = 0; f < d->n; f++)
        cut |= d->factors[f].cuts > 1;
    if (!cut || d->n == 1) {
        tsr__text_printf(t, "%lld", cut ? (long long)d->factors[0].cuts : 1ll);
        return;
    }
    for (int f = 0; f < d->n; f++) {
        tsr__text_add(t, f ? STR("*") : STR(""));
        if (d->factors[f].size)
            tsr__text_printf(t, "%lld", (long long)d->factors[f].size);
        else
            tsr__text_add(t, STR("?"));
        if (d->factors[f].cuts > 1)
            tsr__text_printf(t, "/%lld", (long long)d->factors[f].cuts);
    }
}

static void print_owners(struct text *t, const struct tile_layout *l, int64_t shard)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(l, shard, &owners);
    bool group = n > 1 && l->n_shards > 1; // of a whole layout all owners are listed plainly
    tsr__text_add(t, group ? STR("(") : n ? STR("") : STR("-1"));
    for (size_t i = 0; i < n; i++)
        tsr__text_printf(t, i ? ",%lld" : "%lld", (long long)owners[i]);
    tsr__text_add(t, group ? STR(")") : STR(""));
}

// The entries of the dimensions, "..." standing behind the first `front` of them (-1: nowhere).
static void print_dims(struct text *t, const struct tile_layout *l, int front)
{
    bool any = false;
    for (int d = 0; d <= l->rank; d++) {
        if (d == front) {
            tsr__text_add(t, any ? STR(",...") : STR("..."));
            any = true;
        }
        if (d == l->rank)
            break;
        tsr__text_add(t, any ? STR(",") : STR(""));
        print_dim(t, &l->dims[d]);
        any = true;
    }
    if (!any)
        tsr__text_add(t, STR("1")); // a scalar
}

static struct str print_tiles(struct arena *a, const struct tile_layout *l, int front)
{
    struct tile_layout *o = tsr__layout_ordered(a, l);
    if (!o)
        return STR("");
    struct text t;
    tsr__text_init(&t, a->session);
    tsr__text_add(&t, STR("{"));
    print_dims(&t, o, front);
    for (int64_t k = 0; k < o->n_shards; k++) {
        tsr__text_add(&t, k ? STR(",") : STR(":"));
        print_owners(&t, o, k);
    }
    tsr__text_add(&t, STR("}"));
    a->failed |= t.failed;
    struct str out = tsr__arena_str(a, (struct str){t.p, t.n});
    tsr__text_free(&t);
    return out.p ? out : STR("");
}

struct str tsr__notation_print(struct arena *a, const struct tile_layout *l)
{
    return print_tiles(a, l, -1);
}

struct str tsr__notation_print_open(struct arena *a, const struct tile_layout *l, int front)
{
    return print_tiles(a, l, front);
}
