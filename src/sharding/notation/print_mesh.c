// SPDX-License-Identifier: Apache-2.0
// print_mesh.c - a layout as text over a mesh: S0,R@2x2 or ({0},{})@2x2, where some mesh makes it.
//
// First over the mesh that is given: a step along one of its axes changes the coordinate of one
// dimension, or of none (copies). On a 2x2 mesh with shards (0,1),(2,3) of rows, position 2 (axis 0
// one further) has the next row shard: axis 0 cuts rows, axis 1 cuts nothing. Else over a mesh made
// of the cuts themselves, with the copies of a shard as one more axis.
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
static int64_t plain_cuts(const struct tile_dim *dim)
{
    int64_t cuts = 1;
    for (int factor = 0; factor < dim->n; factor++)
        cuts *= dim->factors[factor].cuts;
    if (dim->n > 1 && cuts > 1)
        return 0;
    return cuts;
}

// No dimension is made of several factors, or cut in unequal parts, which mesh notation cannot say;
// a scalar has no letters.
static bool is_plain(const struct tile_layout *layout)
{
    for (int axis = 0; axis < layout->rank; axis++)
        if (!plain_cuts(&layout->dims[axis]))
            return false;
    return layout->rank > 0 && !tsr__layout_shared(layout);
}

// ---- over the mesh that is given ----------------------------------------------------------------

// By device, the only shard that it holds. NULL: a device has none or several, or there are others.
static int64_t *shards_by_device(struct arena *arena, const struct tile_layout *layout,
                                 int64_t devices)
{
    int64_t *of = ARENA_ARRAY(arena, int64_t, (size_t)devices + 1), n = 0;
    if (!of)
        return NULL;
    for (int64_t d = 0; d < devices; d++)
        of[d] = -1;
    for (int64_t shard = 0; shard < layout->n_shards; shard++) {
        for (int64_t i = layout->first[shard]; i < layout->first[shard + 1]; i++) {
            int64_t d = layout->owners[i];
            if (d < 0 || d >= devices || of[d] >= 0)
                return NULL;
            of[d] = shard;
            n++;
        }
    }
    if (n == devices)
        return of;
    return NULL;
}

// Puts axis, one step along which moves a dimension by that many of its parts, before those that
// move it by less.
static void put_axis(struct seen *seen, int dim, int axis, int64_t stride, int64_t *strides)
{
    int at = seen->n_axes[dim]++;
    strides[axis] = stride;
    while (at > 0 && strides[seen->axes[dim][at - 1]] < stride) {
        seen->axes[dim][at] = seen->axes[dim][at - 1];
        at--;
    }
    seen->axes[dim][at] = axis;
}

// What one step along an axis does: from shard 0's coordinates to those of position `step`.
static bool find_axis(struct seen *seen, const struct tile_layout *layout, const int64_t *shard_of,
                      int axis, int64_t step, int64_t *strides)
{
    int64_t from[TILE_MAX_LOOPS], to[TILE_MAX_LOOPS];
    tsr__layout_coords(layout, shard_of[0], from);
    tsr__layout_coords(layout, shard_of[step], to);
    int moved = -1;
    for (int i = 0; i < layout->n_loops; i++) {
        if (from[i] == to[i])
            continue;
        if (moved >= 0 || to[i] < from[i])
            return false;
        moved = i;
    }
    if (moved >= 0)
        put_axis(seen, layout->loops[moved].dim, axis, to[moved] - from[moved], strides);
    return true;
}

// The shard that the axes give a position; as the reader of such texts counts it.
static int64_t shard_at(const struct seen *seen, int rank, int64_t position)
{
    int64_t coords[NOTATION_MAX_MESH], shard = 0;
    for (int i = seen->mesh.n - 1; i >= 0; i--) {
        coords[i] = position % seen->mesh.sizes[i];
        position /= seen->mesh.sizes[i];
    }
    for (int axis = 0; axis < rank; axis++)
        for (int i = 0; i < seen->n_axes[axis]; i++)
            shard = shard * seen->mesh.sizes[seen->axes[axis][i]] + coords[seen->axes[axis][i]];
    return shard;
}

// Product of the mesh axes that were found to cut the dimension.
static int64_t cuts_seen(const struct seen *seen, int dim)
{
    int64_t cuts = 1;
    for (int i = 0; i < seen->n_axes[dim]; i++)
        cuts *= seen->mesh.sizes[seen->axes[dim][i]];
    return cuts;
}

// Reads the mesh axes off the layout by one step along each: if position 0 has tile 0 and position
// 1 (one step along the last axis) tile 1 of dimension 1, the last axis cuts dimension 1. What the
// axes found say is then compared with every position; a layout that no choice of axes makes is
// refused by that.
static bool over_given(struct arena *arena, const struct tile_layout *layout,
                       const struct notation_mesh *mesh, struct seen *seen)
{
    int64_t strides[NOTATION_MAX_MESH] = {0}, step = 1;
    *seen = (struct seen){.mesh = *mesh, .positions = 1};
    for (int i = 0; i < mesh->n; i++)
        seen->positions *= mesh->sizes[i];
    const int64_t *shard_of = NULL;
    if (layout->first[layout->n_shards] == seen->positions)
        shard_of = shards_by_device(arena, layout, seen->positions);
    if (!shard_of)
        return false;
    for (int i = mesh->n - 1; i >= 0; i--) {
        if (mesh->sizes[i] > 1 && !find_axis(seen, layout, shard_of, i, step, strides))
            return false;
        step *= mesh->sizes[i];
    }
    for (int axis = 0; axis < layout->rank; axis++)
        if (cuts_seen(seen, axis) != plain_cuts(&layout->dims[axis]))
            return false;
    for (int64_t i = 0; i < seen->positions; i++)
        if (shard_at(seen, layout->rank, i) != shard_of[i])
            return false;
    return true;
}

// ---- over a mesh derived from the layout --------------------------------------------------------

// The cuts as axes, the copies of a shard as the last axis (or as the first: copies_first).
static bool over_cuts(struct arena *arena, const struct tile_layout *layout, bool copies_first,
                      struct seen *seen)
{
    int64_t copies = layout->first[1];
    // as many owners for every shard, or it is no mesh
    *seen = (struct seen){.positions = copies * layout->n_shards};
    for (int64_t shard = 0; shard < layout->n_shards; shard++)
        if (layout->first[shard + 1] - layout->first[shard] != copies || !copies)
            return false;
    if (copies > 1 && copies_first)
        seen->mesh.sizes[seen->mesh.n++] = copies;
    for (int axis = 0; axis < layout->rank; axis++) {
        int64_t cuts = plain_cuts(&layout->dims[axis]);
        if (cuts == 1)
            continue;
        if (seen->mesh.n + 1 >= NOTATION_MAX_MESH)
            return false;
        seen->axes[axis][seen->n_axes[axis]++] = seen->mesh.n;
        seen->mesh.sizes[seen->mesh.n++] = cuts;
    }
    if (seen->mesh.n == 0 || (copies > 1 && !copies_first))
        seen->mesh.sizes[seen->mesh.n++] = copies;
    int64_t *devices = ARENA_ARRAY(arena, int64_t, (size_t)seen->positions);
    if (!devices)
        return false;
    bool in_place = true;
    for (int64_t i = 0; i < seen->positions; i++) {
        int64_t shard = copies_first ? i % layout->n_shards : i / copies;
        int64_t copy = copies_first ? i / layout->n_shards : i % copies;
        devices[i] = layout->owners[layout->first[shard] + copy];
        in_place = in_place && devices[i] == i;
    }
    if (in_place)
        seen->devices = NULL;
    else
        seen->devices = devices;
    return true;
}

// ---- text ---------------------------------------------------------------------------------------

// "R", "S", "S0", "S01".
static void print_letter(struct text *text, const struct seen *seen, int dim)
{
    tsr__text_add(text, seen->n_axes[dim] ? STR("S") : STR("R"));
    if (seen->mesh.n == 1)
        return; // S alone: there is one axis only
    for (int i = 0; i < seen->n_axes[dim]; i++)
        tsr__text_printf(text, "%d", seen->axes[dim][i]);
}

static void print_set(struct text *text, const struct seen *seen, int dim)
{
    tsr__text_add(text, STR("{"));
    for (int i = 0; i < seen->n_axes[dim]; i++)
        tsr__text_printf(text, i ? ",%d" : "%d", seen->axes[dim][i]);
    tsr__text_add(text, STR("}"));
}

// "@2x4" from 2 and 4: one character before the first number, another before the rest.
static void print_list(struct text *text, char first, char others, const int64_t *numbers,
                       int64_t n)
{
    char before = first;
    for (int64_t i = 0; i < n; i++) {
        tsr__text_printf(text, "%c%lld", before, (long long)numbers[i]);
        before = others;
    }
}

// Letters: SR@2 and S0,R@2x2 (a comma only where axes have numbers); sets: ({0},{})@2x2. Devices
// follow where they are not 0, 1, 2, ...: SR@2:4,5.
static struct str print_seen(struct arena *arena, const struct seen *seen, int rank, bool sets)
{
    struct text text;
    tsr__text_init(&text, arena->session);
    if (sets)
        tsr__text_add(&text, STR("("));
    for (int axis = 0; axis < rank; axis++) {
        if (axis > 0 && (sets || seen->mesh.n > 1))
            tsr__text_add(&text, STR(","));
        if (sets)
            print_set(&text, seen, axis);
        else
            print_letter(&text, seen, axis);
    }
    if (sets)
        tsr__text_add(&text, STR(")"));
    print_list(&text, '@', 'x', seen->mesh.sizes, seen->mesh.n);
    if (seen->devices)
        print_list(&text, ':', ',', seen->devices, seen->positions);
    arena->failed |= text.failed;
    struct str out = tsr__arena_str(arena, (struct str){text.p, text.n});
    tsr__text_free(&text);
    if (out.p)
        return out;
    return STR("");
}

// Every dimension has its axes in ascending order, so that a set of axes says the same as their
// list.
static bool axes_ascend(const struct seen *seen, int rank)
{
    for (int dim = 0; dim < rank; dim++)
        for (int i = 1; i < seen->n_axes[dim]; i++)
            if (seen->axes[dim][i] < seen->axes[dim][i - 1])
                return false;
    return true;
}

// Fills *seen with the mesh that shows the layout best. False: no mesh does.
//     {2,1:(0,1),(2,3)} without a mesh given: cuts first, copies last: S0,R@2x2, devices in order
//     {2,1:(0,2),(1,3)}: that order would need the list :0,2,1,3; with copies first it is S1,R@2x2
//       without a list
static bool see(struct arena *arena, const struct tile_layout *layout,
                const struct notation_mesh *mesh, bool sets, struct seen *seen)
{
    struct seen other;
    if (!is_plain(layout))
        return false;
    if (mesh && over_given(arena, layout, mesh, seen) && (!sets || axes_ascend(seen, layout->rank)))
        return true;
    if (!over_cuts(arena, layout, false, seen))
        return false;
    if (seen->devices && over_cuts(arena, layout, true, &other) && !other.devices)
        *seen = other;
    return true;
}

// As tiles; "" if what failed was the memory for a mesh.
static struct str print_plainly(struct arena *arena, const struct tile_layout *layout)
{
    if (arena->failed)
        return STR("");
    return tsr__notation_print(arena, layout);
}

struct str tsr__notation_print_mesh(struct arena *arena, const struct tile_layout *l,
                                    const struct notation_mesh *mesh, enum notation_style style)
{
    struct seen seen;
    struct tile_layout *o = tsr__layout_ordered(arena, l);
    bool sets = style == NOTATION_SETS;
    if (!o)
        return STR("");
    if (style == NOTATION_TILES || !see(arena, o, mesh, sets, &seen))
        return print_plainly(arena, o);
    return print_seen(arena, &seen, o->rank, sets);
}
