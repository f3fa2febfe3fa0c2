// SPDX-License-Identifier: Apache-2.0
// print_mesh.c - prints a layout over a mesh, S0,R@2x2 or ({0},{})@2x2, if a mesh describes it.
//
// The given mesh is tried first. A step along one of its axes must change the coordinate of one
// dimension, or of none (replication). Example: on a 2x2 mesh with row shards (0,1),(2,3), position
// 2, one step along axis 0, has the next row shard. So axis 0 shards rows and axis 1 replicates. If
// the given mesh does not fit, a mesh is derived from the layout: one axis per sharded dimension,
// and one for the replicas of a shard.
#include "sharding/notation/notation.h"

// A layout written over a mesh: the axes of each dimension, and the device at each position.
struct mesh_text {
    struct notation_mesh mesh;
    int axes[TILE_MAX_RANK][NOTATION_MAX_MESH]; // axes that shard each dimension, outermost first
    int n_axes[TILE_MAX_RANK];
    const int64_t *devices; // NULL: the device number is the position
    int64_t positions;
};

// Returns the number of shards of a dimension, or 0 if it is sharded and has several factors.
static int64_t plain_cuts(const struct tile_dim *dim)
{
    int64_t cuts = 1;
    for (int factor = 0; factor < dim->n; factor++)
        cuts *= dim->factors[factor].cuts;
    return dim->n > 1 && cuts > 1 ? 0 : cuts;
}

// False if the layout cannot be written over a mesh: the tensor is a scalar, or a sharded dimension
// has several factors or unequal shares.
static bool is_plain(const struct tile_layout *layout)
{
    for (int axis = 0; axis < layout->rank; axis++)
        if (!plain_cuts(&layout->dims[axis]))
            return false;
    return layout->rank > 0 && !tsr__layout_shared(layout);
}

// ---- over the mesh that is given ----------------------------------------------------------------

// Returns the shard of each of the devices 0 to devices - 1. Returns NULL if a device has no or
// several shards, if the layout has other devices, or if out of memory.
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
    return n == devices ? of : NULL;
}

// Inserts a mesh axis into the list of axes that shard a dimension, before axes with a smaller
// stride. One step along the axis adds `stride` to the shard index of the dimension.
static void put_axis(struct mesh_text *mesh_text, int dim, int axis, int64_t stride,
                     int64_t *strides)
{
    int at = mesh_text->n_axes[dim]++;
    strides[axis] = stride;
    while (at > 0 && strides[mesh_text->axes[dim][at - 1]] < stride) {
        mesh_text->axes[dim][at] = mesh_text->axes[dim][at - 1];
        at--;
    }
    mesh_text->axes[dim][at] = axis;
}

// Finds the dimension that a mesh axis shards, by comparing the shards at positions 0 and `step`,
// which is one step along the axis. Returns false if the shard index of several dimensions changes,
// or if one decreases.
static bool find_axis(struct mesh_text *mesh_text, const struct tile_layout *layout,
                      const int64_t *shard_of, int axis, int64_t step, int64_t *strides)
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
        put_axis(mesh_text, layout->loops[moved].dim, axis, to[moved] - from[moved], strides);
    return true;
}

// Returns the product of the sizes of the mesh axes that shard the dimension.
static int64_t cuts_found(const struct mesh_text *mesh_text, int dim)
{
    int64_t cuts = 1;
    for (int i = 0; i < mesh_text->n_axes[dim]; i++)
        cuts *= mesh_text->mesh.sizes[mesh_text->axes[dim][i]];
    return cuts;
}

// Finds out which mesh axes shard which dimension, from one step along each axis, then compares all
// positions with the layout. Returns false if the mesh does not describe the layout.
static bool over_given(struct arena *arena, const struct tile_layout *layout,
                       const struct notation_mesh *mesh, struct mesh_text *mesh_text)
{
    int64_t strides[NOTATION_MAX_MESH] = {0}, step = 1;
    *mesh_text = (struct mesh_text){.mesh = *mesh, .positions = 1};
    for (int i = 0; i < mesh->n; i++)
        mesh_text->positions *= mesh->sizes[i];
    const int64_t *shard_of = NULL;
    if (layout->first[layout->n_shards] == mesh_text->positions)
        shard_of = shards_by_device(arena, layout, mesh_text->positions);
    if (!shard_of)
        return false;
    for (int i = mesh->n - 1; i >= 0; i--) {
        if (mesh->sizes[i] > 1 && !find_axis(mesh_text, layout, shard_of, i, step, strides))
            return false;
        step *= mesh->sizes[i];
    }
    for (int axis = 0; axis < layout->rank; axis++)
        if (cuts_found(mesh_text, axis) != plain_cuts(&layout->dims[axis]))
            return false;
    const struct mesh_text *found = mesh_text;
    for (int64_t i = 0; i < found->positions; i++)
        if (tsr__mesh_shard(mesh, layout->rank, found->axes, found->n_axes, i) != shard_of[i])
            return false;
    return true;
}

// ---- over a mesh derived from the layout --------------------------------------------------------

// Derives a mesh from the layout: one axis for each sharded dimension, and one for the replicas of
// a shard. The latter is the last axis, or the first if copies_first is set. Returns false if
// shards have different numbers of owners, if there are too many axes, or if out of memory.
static bool over_cuts(struct arena *arena, const struct tile_layout *layout, bool copies_first,
                      struct mesh_text *mesh_text)
{
    int64_t copies = layout->first[1];
    // every shard must have the same number of owners
    *mesh_text = (struct mesh_text){.positions = copies * layout->n_shards};
    for (int64_t shard = 0; shard < layout->n_shards; shard++)
        if (layout->first[shard + 1] - layout->first[shard] != copies || !copies)
            return false;
    if (copies > 1 && copies_first)
        mesh_text->mesh.sizes[mesh_text->mesh.n++] = copies;
    for (int axis = 0; axis < layout->rank; axis++) {
        int64_t cuts = plain_cuts(&layout->dims[axis]);
        if (cuts == 1)
            continue;
        if (mesh_text->mesh.n + 1 >= NOTATION_MAX_MESH)
            return false;
        mesh_text->axes[axis][mesh_text->n_axes[axis]++] = mesh_text->mesh.n;
        mesh_text->mesh.sizes[mesh_text->mesh.n++] = cuts;
    }
    if (mesh_text->mesh.n == 0 || (copies > 1 && !copies_first))
        mesh_text->mesh.sizes[mesh_text->mesh.n++] = copies;
    int64_t *devices = ARENA_ARRAY(arena, int64_t, (size_t)mesh_text->positions);
    if (!devices)
        return false;
    bool in_place = true;
    for (int64_t i = 0; i < mesh_text->positions; i++) {
        int64_t shard = copies_first ? i % layout->n_shards : i / copies;
        int64_t copy = copies_first ? i / layout->n_shards : i % copies;
        devices[i] = layout->owners[layout->first[shard] + copy];
        in_place = in_place && devices[i] == i;
    }
    mesh_text->devices = in_place ? NULL : devices;
    return true;
}

// ---- text ---------------------------------------------------------------------------------------

// Prints "R", "S", "S0" or "S01".
static void print_letter(struct text *text, const struct mesh_text *mesh_text, int dim)
{
    tsr__text_add(text, mesh_text->n_axes[dim] ? STR("S") : STR("R"));
    if (mesh_text->mesh.n == 1)
        return; // S alone, because there is only one axis
    for (int i = 0; i < mesh_text->n_axes[dim]; i++)
        tsr__text_printf(text, "%d", mesh_text->axes[dim][i]);
}

static void print_set(struct text *text, const struct mesh_text *mesh_text, int dim)
{
    tsr__text_add(text, STR("{"));
    for (int i = 0; i < mesh_text->n_axes[dim]; i++)
        tsr__text_printf(text, i ? ",%d" : "%d", mesh_text->axes[dim][i]);
    tsr__text_add(text, STR("}"));
}

// Prints numbers, with `first` before the first one and `others` before each other one. Example:
// "@2x4" for 2 and 4.
static void print_list(struct text *text, char first, char others, const int64_t *numbers,
                       int64_t n)
{
    char before = first;
    for (int64_t i = 0; i < n; i++) {
        tsr__text_printf(text, "%c%lld", before, (long long)numbers[i]);
        before = others;
    }
}

// Prints letters, as in SR@2 and S0,R@2x2, or with `sets` sets of axes, as in ({0},{})@2x2. Devices
// follow if they are not 0, 1, 2, ..., as in SR@2:4,5.
static struct str print_mesh_text(struct arena *arena, const struct mesh_text *mesh_text, int rank,
                                  bool sets)
{
    struct text text = {.session = arena->session};
    if (sets)
        tsr__text_add(&text, STR("("));
    for (int axis = 0; axis < rank; axis++) {
        if (axis > 0 && (sets || mesh_text->mesh.n > 1))
            tsr__text_add(&text, STR(","));
        if (sets)
            print_set(&text, mesh_text, axis);
        else
            print_letter(&text, mesh_text, axis);
    }
    if (sets)
        tsr__text_add(&text, STR(")"));
    print_list(&text, '@', 'x', mesh_text->mesh.sizes, mesh_text->mesh.n);
    if (mesh_text->devices)
        print_list(&text, ':', ',', mesh_text->devices, mesh_text->positions);
    struct str out = tsr__text_keep(&text, arena);
    return out.p ? out : STR("");
}

// True if the axes of every dimension ascend, so that a set of axes means the same as their list.
static bool axes_ascend(const struct mesh_text *mesh_text, int rank)
{
    for (int dim = 0; dim < rank; dim++)
        for (int i = 1; i < mesh_text->n_axes[dim]; i++)
            if (mesh_text->axes[dim][i] < mesh_text->axes[dim][i - 1])
                return false;
    return true;
}

// Finds a mesh for the layout: the given one if it fits, else a derived one. Returns false if no
// mesh describes the layout. In a derived mesh the replicas are the last axis, unless only the
// other order needs no device list. Example: {2,1:(0,1),(2,3)} is S0,R@2x2. {2,1:(0,2),(1,3)} would
// be S0,R@2x2:0,2,1,3; with replicas as the first axis it is S1,R@2x2.
static bool find_mesh(struct arena *arena, const struct tile_layout *layout,
                      const struct notation_mesh *mesh, bool sets, struct mesh_text *mesh_text)
{
    struct mesh_text other;
    if (!is_plain(layout))
        return false;
    if (mesh && over_given(arena, layout, mesh, mesh_text) &&
        (!sets || axes_ascend(mesh_text, layout->rank)))
        return true;
    if (!over_cuts(arena, layout, false, mesh_text))
        return false;
    if (mesh_text->devices && over_cuts(arena, layout, true, &other) && !other.devices)
        *mesh_text = other;
    return true;
}

// Returns the layout in the tile notation; "" if out of memory.
static struct str print_as_tiles(struct arena *arena, const struct tile_layout *layout)
{
    return arena->failed ? STR("") : tsr__notation_print(arena, layout);
}

struct str tsr__notation_print_mesh(struct arena *arena, const struct tile_layout *l,
                                    const struct notation_mesh *mesh, enum notation_style style)
{
    struct mesh_text mesh_text;
    struct tile_layout *o = tsr__layout_ordered(arena, l);
    bool sets = style == NOTATION_SETS;
    if (!o)
        return STR("");
    if (style == NOTATION_TILES || !find_mesh(arena, o, mesh, sets, &mesh_text))
        return print_as_tiles(arena, o);
    return print_mesh_text(arena, &mesh_text, o->rank, sets);
}
