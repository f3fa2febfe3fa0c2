// SPDX-License-Identifier: Apache-2.0
// config_mesh.c - finds the device mesh of a configuration, for shardings such as SR. The mesh is
// stored in the model's metadata; without metadata it is one-dimensional.
//
// The planner stores the mesh of the topology as metadata of the model: "ai.tessera.mesh.tp" =
// "2x4" for a configuration tp. So S0,R without @ is read and printed over the same mesh. Invalid
// metadata is ignored; the checker does not report it.
#include "sharding/sharding.h"

// Reads "2x4" as mesh sizes whose product must be `devices`. Returns false if the text is not
// valid.
static bool read_sides(struct str text, int64_t devices, struct notation_mesh *mesh)
{
    int64_t all = 1;
    size_t at = 0;
    mesh->n = 0;
    while (at <= text.n) {
        size_t end = at;
        while (end < text.n && text.p[end] != 'x')
            end++;
        int64_t side;
        if (mesh->n == NOTATION_MAX_MESH ||
            !tsr__str_int((struct str){text.p + at, end - at}, &side))
            return false;
        if (side < 1 || !mul_ok(all, side, &all) || all > devices)
            return false;
        mesh->sizes[mesh->n++] = side;
        at = end + 1;
    }
    return all == devices;
}

// Finds the mesh of a configuration. Examples: 8 devices and the metadata "2x4" give the sizes
// {2,4}. Without metadata, or with "3x4", whose product is not 8, the sizes are {8}. If the number
// of devices is not supported, the mesh has no axes.
void tsr__config_mesh(struct arena *arena, const tsr_model *model, const tsr_config *config,
                      struct notation_mesh *mesh)
{
    int64_t devices = tsr_config_devices(config);
    mesh->n = 0;
    if (devices < 1 || devices > TILE_MAX_SHARDS)
        return;
    struct str key = tsr__arena_printf(arena, META_MESH "%s", tsr_config_name(config));
    const char *text = key.p ? tsr_model_metadata(model, key.p) : NULL;
    mesh->arranged = text && read_sides(str_of(text), devices, mesh);
    if (!mesh->arranged)
        *mesh = (struct notation_mesh){.sizes = {devices}, .n = 1};
}
