// SPDX-License-Identifier: Apache-2.0
// manifest_write.c - writes manifest.json. Keys have a fixed order, and there are no times or
// paths, so the same partition gives the same bytes. Absent fields are left out; only an
// unknown shape or size is null. docs/formats.md describes each field.
#include "bundle/bundle.h"
#include "tessera_json.h"

// Writes the layout as a list of integers (tile/encode.c).
static void write_layout(tsr_json *json, struct arena *arena, const struct tile_layout *layout)
{
    size_t n = tsr__layout_encode(layout, NULL, 0);
    int64_t *code = ARENA_ARRAY(arena, int64_t, n);
    if (!code)
        return;
    tsr__layout_encode(layout, code, n);
    tsr_json_ints(json, "layout", code, n);
}

// Writes the inputs or outputs. "shape" is null if the rank is unknown, else a list such as [null,
// "seq", 64]: unknown size, symbol, number.
static void write_ports(tsr_json *json, struct arena *arena, const char *key,
                        const struct manifest_port *ports, size_t n)
{
    tsr_json_begin(json, key, '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", ports[i].name);
        tsr_json_string(json, "type", ports[i].type);
        if (ports[i].rank < 0)
            tsr_json_null(json, "shape");
        else
            tsr_json_begin(json, "shape", '[');
        for (int k = 0; k < ports[i].rank; k++) {
            const tsr_dim *dim = &ports[i].dims[k];
            if (dim->value >= 0)
                tsr_json_int(json, NULL, dim->value);
            else if (dim->symbol && dim->symbol[0])
                tsr_json_string(json, NULL, dim->symbol);
            else
                tsr_json_null(json, NULL);
        }
        if (ports[i].rank >= 0)
            tsr_json_end(json);
        tsr_json_string(json, "sharding", ports[i].sharding);
        if (ports[i].kept)
            write_layout(json, arena, ports[i].kept);
        if (ports[i].present)
            tsr_json_string(json, "present", ports[i].present);
        if (ports[i].updated_by)
            tsr_json_string(json, "updated_by", ports[i].updated_by);
        if (ports[i].length_input) {
            tsr_json_string(json, "length_input", ports[i].length_input);
            tsr_json_int(json, "length_axis", ports[i].length_axis);
            if (!ports[i].updated_by)
                tsr_json_int(json, "growing_axis", ports[i].growing_axis);
        }
        if (ports[i].slides)
            tsr_json_bool(json, "slides", true);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static const tsr_json_field state_fields[] = {
    {JSON_FIELD(struct manifest_state, "input", input)},
    {JSON_FIELD(struct manifest_state, "output", output)},
    {JSON_FIELD(struct manifest_state, "in_place", in_place)},
    {JSON_END},
};
static const tsr_json_field device_fields[] = {
    {JSON_FIELD(struct manifest_device, "device", device)},
    {JSON_FIELD(struct manifest_device, "file", file)},
    {JSON_LIST(struct manifest_device, "data", data, n_data)},
    {JSON_END},
};
static const tsr_json_field port_name_fields[] = {
    {JSON_LIST(struct manifest_device, "inputs", inputs, n_inputs)},
    {JSON_LIST(struct manifest_device, "outputs", outputs, n_outputs)},
    {JSON_END},
};
static const tsr_json_field weight_fields[] = {
    {JSON_FIELD(struct manifest_device, "elements", weights)},
    {JSON_FIELD(struct manifest_device, "bytes", weight_bytes)},
    {JSON_END},
};
static const tsr_json_field replicated_fields[] = {
    {JSON_FIELD(struct manifest_replicated, "node", node)},
    {JSON_FIELD(struct manifest_replicated, "op", op)},
    {JSON_FIELD(struct manifest_replicated, "reason", reason)},
    {JSON_END},
};
static const tsr_json_field list_fields[] = {
    {JSON_RECORDS(struct manifest, "replicated", replicated, n_replicated, replicated_fields)},
    {JSON_RECORDS(struct manifest, "weights", devices, n_ranks, weight_fields)},
    {JSON_END},
};

// Writes the sizes of symbolic dimensions: "dims": {"batch": 2}. Older releases ignore them.
static void write_sizes(tsr_json *json, const struct manifest *manifest)
{
    if (manifest->n_sizes) {
        tsr_json_begin(json, "dims", '{');
        for (size_t i = 0; i < manifest->n_sizes; i++)
            tsr_json_int(json, manifest->sizes[i].name, manifest->sizes[i].size);
        tsr_json_end(json);
    }
    if (manifest->static_sizes)
        tsr_json_bool(json, "static", true);
}

// Writes devices in the order of the ranks.
static void write_devices(tsr_json *json, const struct manifest *manifest)
{
    tsr_json_begin(json, "devices", '[');
    for (int64_t r = 0; r < manifest->n_ranks; r++) {
        const struct manifest_device *device = &manifest->devices[r];
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "rank", r);
        tsr_json_fields(json, device_fields, device);
        if (device->n_stages)
            tsr_json_ints(json, "stages", device->stages, device->n_stages);
        if (device->has_ports)
            tsr_json_fields(json, port_name_fields, device);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static const tsr_json_field dimension_fields[] = {
    {JSON_FIELD(struct manifest_dimension, "input", input)},
    {JSON_FIELD(struct manifest_dimension, "axis", axis)},
    {JSON_END},
};

// Writes the lists of dimensions that must have equal sizes.
static void write_same(tsr_json *json, const struct manifest *manifest)
{
    tsr_json_begin(json, "same_sizes", '[');
    for (size_t i = 0; i < manifest->n_same; i++)
        tsr_json_records(json, NULL, dimension_fields, manifest->same[i].at, manifest->same[i].n,
                         sizeof *manifest->same[i].at);
    tsr_json_end(json);
}

// Writes communications in execution order.
static void write_collectives(tsr_json *json, const struct manifest *manifest)
{
    tsr_json_begin(json, "collectives", '[');
    for (size_t i = 0; i < manifest->n_collectives; i++) {
        const struct manifest_collective *collective = &manifest->collectives[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "id", collective->id);
        tsr_json_string(json, "op", collective->op);
        tsr_json_string(json, "type", collective->type);
        tsr_json_begin(json, "groups", '[');
        for (size_t g = 0; g < collective->n_groups; g++)
            tsr_json_ints(json, NULL, collective->groups[g].ranks, collective->groups[g].n);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes the fields from "replicated" to the end. "files" and "sizes" have the digest and size of
// each file by its name.
static void write_rest(tsr_json *json, const struct manifest *manifest)
{
    tsr_json_fields(json, list_fields, manifest);
    tsr_json_begin(json, "files", '{');
    for (size_t i = 0; i < manifest->n_files; i++)
        tsr_json_string(json, manifest->files[i].name, manifest->files[i].sha256);
    tsr_json_end(json);
    tsr_json_begin(json, "sizes", '{');
    for (size_t i = 0; i < manifest->n_files; i++)
        tsr_json_int(json, manifest->files[i].name, (int64_t)manifest->files[i].bytes);
    tsr_json_end(json);
}

const char *tsr__manifest_text(struct arena *arena, const struct manifest *manifest,
                               tsr_json **owner)
{
    tsr_json *json = tsr_json_new(arena->session);
    *owner = json;
    if (!json)
        return NULL;
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", TSR_JSON_SCHEMA "manifest");
    tsr_json_int(json, "version", MANIFEST_VERSION);
    tsr_json_string(json, "generator", manifest->generator);
    tsr_json_begin(json, "model", '{');
    tsr_json_string(json, "name", manifest->model_name);
    tsr_json_string(json, "sha256", manifest->model_sha256);
    tsr_json_end(json);
    tsr_json_string(json, "configuration", manifest->configuration);
    tsr_json_string(json, "plan", manifest->plan);
    tsr_json_int(json, "ranks", manifest->n_ranks);
    tsr_json_int(json, "nodes", manifest->nodes);
    tsr_json_int(json, "cut_nodes", manifest->cut_nodes);
    write_sizes(json, manifest);
    write_devices(json, manifest);
    write_ports(json, arena, "inputs", manifest->inputs, manifest->n_inputs);
    write_ports(json, arena, "outputs", manifest->outputs, manifest->n_outputs);
    tsr_json_records(json, "states", state_fields, manifest->states, manifest->n_states,
                     sizeof *manifest->states);
    if (manifest->has_same)
        write_same(json, manifest);
    write_collectives(json, manifest);
    write_rest(json, manifest);
    tsr_json_end(json);
    return arena->failed ? NULL : tsr_json_text(json);
}

tsr_status tsr__manifest_write(struct arena *arena, const char *path,
                               const struct manifest *manifest)
{
    tsr_json *json = NULL;
    const char *text = tsr__manifest_text(arena, manifest, &json);
    tsr_status st = text ? tsr_json_write(json, path) : TSR_NOMEM;
    tsr_json_free(json);
    return st;
}
