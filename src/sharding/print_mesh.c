// SPDX-License-Identifier: Apache-2.0
// print_mesh.c - a layout as text over a mesh: S0,R@2x2 or ({0},{})@2x2, where some mesh makes it.
//
// First over the mesh that is given: a step along one of its axes changes the coordinate of one dimension, or of none (copies).
// On a 2x2 mesh with shards (0,1),(2,3) of rows, position 2 (axis 0 one further) has the next row shard: axis 0 cuts rows,
// axis 1 cuts nothing. Else over a mesh made of the cuts themselves, with the copies of a shard as one more axis.
#include "sharding/sharding.h"

// A layout seen as a mesh: the axes of each dimension, and the device at each position.
struct seen {
    struct notation_mesh mesh;
    int axes[TILE_MAX_RANK][NOTATION_MAX_MESH]; // that cut each dimension, outermost first
    int n_axes[TILE_MAX_RANK];
    const int64_t *devices; // NULL: its position
    int64_t positions;
};

// Cuts of a dimension, whose only factor may be cut; 0: it is made of several factors.
static int64_t plain_cuts(const struct tile_dim *d)
{
    int64_t cuts = 1;
    for (int f = 0; f < d->n; f++)
        cuts *= d->factors[f].cuts;
    return d->n > 1 && cuts > 1 ? 0 : cuts;
}

static bool is_plain(const struct tile_layout *l)
{
    for (int d = 0; d < l->rank; d++)
        if (!plain_cuts(&l->dims[d]))
            return false;
    return l->rank > 0;
}

// ---- over the mesh that is given -----------------------------------------------------------------

// By device, the only shard that it holds. NULL: a device has none or several, or there are others.
static int64_t *shards_by_device(struct arena *a, const struct tile_layout *l, int64_t devices)
{
    int64_t *of = ARENA_ARRAY(a, int64_t, (size_t)devices + 1), n = 0;
    if (!of)
        return NULL;
    for (int64_t d = 0; d < devices; d++)
        of[d] = -1;
    for (int64_t shard = 0; shard < l->n_shards; shard++) {
        for (int64_t i = l->first[shard]; i < l->first[shard + 1]; i++) {
            int64_t d = l->owners[i];
            if (d < 0 || d >= devices || of[d] >= 0)
                return NULL;
            of[d] = shard;
            n++;
        }
    }
    return n == devices ? of : NULL;
}

// Puts axis, one step along which moves a dimension by that many of its parts, before those that move it by less.
static void put_axis(struct seen *s, int dim, int axis, int64_t stride, int64_t *strides)
{
    int at = s->n_axes[dim]++;
    strides[axis] = stride;
    for (; at > 0 && strides[s->axes[dim][at - 1]] < stride; at--)
        s->axes[dim][at] = s->axes[dim][at - 1];
    s->axes[dim][at] = axis;
}

// What one step along an axis does: from shard 0's coordinates to those of position `step`.
static bool find_axis(struct seen *s, const struct tile_layout *l, const int64_t *shard_of,
                      int axis, int64_t step, int64_t *strides)
{
    int64_t from[TILE_MAX_LOOPS], to[TILE_MAX_LOOPS];
    tsr__layout_coords(l, shard_of[0], from);
    tsr__layout_coords(l, shard_of[step], to);
    int moved = -1;
    for (int i = 0; i < l->n_loops; i++) {
        if (from[i] == to[i])
            continue;
        if (moved >= 0 || to[i] < from[i])
            return false;
        moved = i;
    }
    if (moved >= 0)
        put_axis(s, l->loops[moved].dim, axis, to[moved] - from[moved], strides);
    return true;
}

// The shard that the axes give a position; as the reader of such texts counts it.
static int64_t shard_at(const struct seen *s, int rank, int64_t position)
{
    int64_t coords[NOTATION_MAX_MESH], shard = 0;
    for (int i = s->mesh.n - 1; i >= 0; i--) {
        coords[i] = position % s->mesh.sizes[i];
        position /= s->mesh.sizes[i];
    }
    for (int d = 0; d < rank; d++)
        for (int i = 0; i < s->n_axes[d]; i++)
            shard = shard * s->mesh.sizes[s->axes[d][i]] + coords[s->axes[d][i]];
    return shard;
}

static int64_t cuts_seen(const struct seen *s, int dim)
{
    int64_t cuts = 1;
    for (int i = 0; i < s->n_axes[dim]; i++)
        cuts *= s->mesh.sizes[s->axes[dim][i]];
    return cuts;
}

static bool over_given(struct arena *a, const struct tile_layout *l,
                       const struct notation_mesh *mesh, struct seen *s)
{
    int64_t strides[NOTATION_MAX_MESH] = {0}, step = 1;
    *s = (struct seen){.mesh = *mesh, .positions = 1};
    for (int i = 0; i < mesh->n; i++)
        s->positions *= mesh->sizes[i];
    const int64_t *shard_of = NULL;
    if (l->first[l->n_shards] == s->positions)
        shard_of = shards_by_device(a, l, s->positions);
    if (!shard_of)
        return false;
    for (int i = mesh->n - 1; i >= 0; i--) {
        if (mesh->sizes[i] > 1 && !find_axis(s, l, shard_of, i, step, strides))
            return false;
        step *= mesh->sizes[i];
    }
    for (int d = 0; d < l->rank; d++)
        if (cuts_seen(s, d) != plain_cuts(&l->dims[d]))
            return false;
    for (int64_t i = 0; i < s->positions; i++)
        if (shard_at(s, l->rank, i) != shard_of[i])
            return false;
    return true;
}

// ---- over a mesh of its own ------------------------------------------------------------------------

// The cuts as axes, the copies of a shard as the last axis (or as the first: copies_first).
static bool over_cuts(struct arena *a, const struct tile_layout *l, bool copies_first,
                      struct seen *s)
{
    int64_t copies = l->first[1];
    *s = (struct seen){.positions = copies * l->n_shards};
    for (int64_t shard = 0; shard < l->n_shards; shard++)
        if (l->first[shard + 1] - l->first[shard] != copies || !copies)
            return false;
    if (copies > 1 && copies_first)
        s->mesh.sizes[s->mesh.n++] = copies;
    for (int d = 0; d < l->rank; d++) {
        int64_t cuts = plain_cuts(&l->dims[d]);
        if (cuts == 1)
            continue;
        if (s->mesh.n + 1 >= NOTATION_MAX_MESH)
            return false;
        s->axes[d][s->n_axes[d]++] = s->mesh.n;
        s->mesh.sizes[s->mesh.n++] = cuts;
    }
    if (s->mesh.n == 0 || (copies > 1 && !copies_first))
        s->mesh.sizes[s->mesh.n++] = copies;
    int64_t *devices = ARENA_ARRAY(a, int64_t, (size_t)s->positions);
    if (!devices)
        return false;
    bool in_place = true;
    for (int64_t i = 0; i < s->positions; i++) {
        int64_t shard = copies_first ? i % l->n_shards : i / copies;
        int64_t copy = copies_first ? i / l->n_shards : i % copies;
        devices[i] = l->owners[l->first[shard] + copy];
        in_place = in_place && devices[i] == i;
    }
    s->devices = in_place ? NULL : devices;
    return true;
}

// ---- text ------------------------------------------------------------------------------------------

static void print_letter(struct text *t, const struct seen *s, int dim)
{
    tsr__text_add(t, s->n_axes[dim] ? STR("S") : STR("R"));
    for (int i = 0; i < s->n_axes[dim] && s->mesh.n > 1; i++)
        tsr__text_printf(t, "%d", s->axes[dim][i]);
}

static void print_set(struct text *t, const struct seen *s, int dim)
{
    tsr__text_add(t, STR("{"));
    for (int i = 0; i < s->n_axes[dim]; i++)
        tsr__text_printf(t, i ? ",%d" : "%d", s->axes[dim][i]);
    tsr__text_add(t, STR("}"));
}

static struct str print_seen(struct arena *a, const struct seen *s, int rank, bool sets)
{
    struct text t;
    tsr__text_init(&t, a->session);
    tsr__text_add(&t, sets ? STR("(") : STR(""));
    for (int d = 0; d < rank; d++) {
        bool comma = d > 0 && (sets || s->mesh.n > 1);
        tsr__text_add(&t, comma ? STR(",") : STR(""));
        if (sets)
            print_set(&t, s, d);
        else
            print_letter(&t, s, d);
    }
    tsr__text_add(&t, sets ? STR(")") : STR(""));
    for (int i = 0; i < s->mesh.n; i++)
        tsr__text_printf(&t, "%c%lld", i ? 'x' : '@', (long long)s->mesh.sizes[i]);
    for (int64_t i = 0; s->devices && i < s->positions; i++)
        tsr__text_printf(&t, "%c%lld", i ? ',' : ':', (long long)s->devices[i]);
    a->failed |= t.failed;
    struct str out = tsr__arena_str(a, (struct str){t.p, t.n});
    tsr__text_free(&t);
    return out.p ? out : STR("");
}

// Fills *s with the mesh that shows the layout best. False: no mesh does.
static bool see(struct arena *a, const struct tile_layout *l, const struct notation_mesh *mesh,
                struct seen *s)
{
    struct seen other;
    if (!is_plain(l))
        return false;
    if (mesh && over_given(a, l, mesh, s))
        return true;
    if (!over_cuts(a, l, false, s))
        return false;
    if (s->devices && over_cuts(a, l, true, &other) && !other.devices)
        *s = other;
    return true;
}

struct str tsr__notation_print_mesh(struct arena *a, const struct tile_layout *l,
                                    const struct notation_mesh *mesh, enum notation_style style)
{
    struct seen s;
    struct tile_layout *o = tsr__layout_ordered(a, l);
    if (!o)
        return STR("");
    if (style == NOTATION_TILES || !see(a, o, mesh, &s))
        return a->failed ? STR("") : tsr__notation_print(a, o);
    return print_seen(a, &s, o->rank, style == NOTATION_SETS);
}
