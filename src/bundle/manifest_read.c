// SPDX-License-Identifier: Apache-2.0
// manifest_read.c - parses manifest.json, which is not trusted. Only the first error is reported.
// After it every helper does nothing, so the callers need no checks.
//
// A manifest of two ranks, shortened:
//     {"version": 1, "generator": "tessera 1.0.0",
//      "model": {"name": "m.onnx", "sha256": "6c13..."},
//      "configuration": "tp2", "plan": "670dd90694058451", "ranks": 2,
//      "devices": [{"rank": 0, "device": "", "file": "rank0.onnx",
//                   "data": ["rank0.data", "common.data"], "inputs": ["ids"],
//                   "outputs": ["logits", "ai.tessera.token.out"]}, {"rank": 1, ...}],
//      "inputs": [{"name": "ids", "type": "int64", "shape": ["batch", "seq"],
//                  "sharding": "{1,1:0,1}"}],
//      "outputs": [{"name": "logits", ..., "shape": ["batch", "seq", 512],
//                   "sharding": "{1,1,1:0}"}], "states": [],
//      "collectives": [{"id": 0, "op": "AllReduce", "type": "float32", "groups": [[0, 1]]}],
//      "replicated": [], "weights": [{"elements": 188763, "bytes": 755117}, {...}],
//      "files": {"rank0.onnx": "4b51...", ...}, "sizes": {"rank0.onnx": 332994, ...}}
//
// There are limits for the text (MANIFEST_MAX_BYTES), each list (MAX_ENTRIES), ranks, dimensions,
// groups and members. "files" and "sizes" must list the same files. "devices" and "weights" must
// have one entry per rank. All files, ports and ranks that an entry names must exist. Manifests of
// older releases lack states, stages, numbers of nodes, sizes, and inputs and outputs of a device:
// these are optional.
#include "bundle/bundle.h"

#include <jansson.h>
#include <stdlib.h>

#define MAX_ENTRIES 1000000 // limit of any list
#define MAX_RANK    64      // limit of dimensions of an input or output

// State of the reader. After a failure (also out of memory) it reads nothing more.
struct manifest_reader {
    tsr_session *session;
    struct arena *arena;
    struct str file;
    bool failed;
};

// Reports an error: the name of the field in quotes, followed by `what`.
static void report_error(struct manifest_reader *reader, const char *field, const char *what)
{
    bool known = reader->failed || reader->arena->failed; // an error was already reported
    reader->failed = true;
    if (known)
        return;
    tsr__diag(reader->session, DIAG_manifest_malformed, &PLACE(.file = reader->file),
              "partition the model again", "\"%s\" %s", field, what);
}

// Returns the member `key` of an object. Reports an error and returns NULL if it is missing or of
// another type. Also returns NULL after an earlier failure.
static const json_t *member(struct manifest_reader *reader, const json_t *object, const char *key,
                            json_type type)
{
    reader->failed |= reader->arena->failed;
    const json_t *value = reader->failed ? NULL : json_object_get(object, key);
    if (!reader->failed && !value)
        report_error(reader, key, "is missing");
    else if (value && json_typeof(value) != type) {
        report_error(reader, key, "has the wrong type");
        value = NULL;
    }
    return value;
}

// Returns a copy of a JSON string in the arena, or "" after a failure. Reports an error if the
// string contains a zero byte.
static const char *copy_text(struct manifest_reader *reader, const char *key, const json_t *value)
{
    if (!value || reader->failed)
        return "";
    struct str text = {json_string_value(value), json_string_length(value)};
    if (memchr(text.p, 0, text.n))
        report_error(reader, key, "contains a zero byte");
    const char *copy = reader->failed ? NULL : tsr__arena_str(reader->arena, text).p;
    reader->failed |= !copy;
    return copy ? copy : "";
}

static const char *text_member(struct manifest_reader *reader, const json_t *object,
                               const char *key)
{
    return copy_text(reader, key, member(reader, object, key, JSON_STRING));
}

// Returns a number that must be from `low` to `high`, or `low` after a failure.
static int64_t int_member(struct manifest_reader *reader, const json_t *object, const char *key,
                          int64_t low, int64_t high)
{
    const json_t *value = member(reader, object, key, JSON_INTEGER);
    int64_t i = value ? (int64_t)json_integer_value(value) : low;
    if (value && (i < low || i > high))
        report_error(reader, key, "is out of range");
    return reader->failed ? low : i;
}

// Returns a list and its length. *n is 0 after a failure.
static const json_t *list_member(struct manifest_reader *reader, const json_t *object,
                                 const char *key, size_t *n)
{
    const json_t *value = member(reader, object, key, JSON_ARRAY);
    *n = value ? json_array_size(value) : 0;
    if (*n > MAX_ENTRIES) {
        report_error(reader, key, "has too many entries");
        *n = 0;
    }
    return value;
}

// Evaluates to NULL after a failure.
#define READER_ARRAY(reader, type, n)                                                              \
    ((reader)->failed ? NULL : ARENA_ARRAY((reader)->arena, type, n))

// Returns entry i of a list, which must be an object, or NULL after a failure. `key` is the name of
// the list, for the diagnostic.
static const json_t *entry(struct manifest_reader *reader, const json_t *list, const char *key,
                           size_t i)
{
    const json_t *value = reader->failed ? NULL : json_array_get(list, i);
    if (!reader->failed && !json_is_object(value)) {
        report_error(reader, key, "has an entry that is not an object");
        return NULL;
    }
    return value;
}

// ---- the files ---------------------------------------------------------------------------------

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_file *)a)->name, ((const struct manifest_file *)b)->name);
}

void tsr__manifest_sort(struct manifest_file *files, size_t n)
{
    qsort(files, n, sizeof(*files), by_name);
}

// True for exactly n lower-case hexadecimal digits.
static bool hex_ok(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

// Reads names, sizes and digests of the files. "files" has the digests and "sizes" the sizes, both
// by file name. Both must list the same files.
static void read_files(struct manifest_reader *reader, const json_t *root,
                       struct manifest *manifest)
{
    const json_t *files = member(reader, root, "files", JSON_OBJECT);
    const json_t *sizes = member(reader, root, "sizes", JSON_OBJECT);
    size_t n = files ? json_object_size(files) : 0;
    if (reader->failed)
        return;
    if (n > MAX_ENTRIES || json_object_size(sizes) != n) {
        report_error(reader, "sizes", "does not list the same files as \"files\"");
        return;
    }
    manifest->files = ARENA_ARRAY(reader->arena, struct manifest_file, n);
    const char *name;
    json_t *digest;
    json_object_foreach((json_t *)files, name, digest)
    {
        if (!manifest->files)
            return;
        if (!tsr__manifest_name_ok(str_of(name))) {
            report_error(reader, "files", "has a name that is not a plain file name");
            return;
        }
        if (!json_is_string(digest) || !hex_ok(json_string_value(digest), 64)) {
            report_error(reader, "files", "has a digest that is not a SHA-256");
            return;
        }
        struct manifest_file *file = &manifest->files[manifest->n_files++];
        file->name = tsr__arena_str(reader->arena, str_of(name)).p;
        file->bytes = (uint64_t)int_member(reader, sizes, name, 0, INT64_MAX);
        memcpy(file->sha256, json_string_value(digest), 65);
        if (!file->name || reader->failed) {
            reader->failed = true;
            return;
        }
    }
    tsr__manifest_sort(manifest->files, manifest->n_files);
}

// ---- other fields -------------------------------------------------------------------------------

static void read_model(struct manifest_reader *reader, const json_t *root,
                       struct manifest *manifest)
{
    manifest->generator = text_member(reader, root, "generator");
    manifest->configuration = text_member(reader, root, "configuration");
    const char *plan = text_member(reader, root, "plan");
    if (!reader->failed && !hex_ok(plan, 16))
        report_error(reader, "plan", "is not a fingerprint of 16 hex digits");
    if (!reader->failed)
        memcpy(manifest->plan, plan, 17);
    manifest->n_ranks = int_member(reader, root, "ranks", 1, MANIFEST_MAX_RANKS);
    if (!reader->failed && json_object_get(root, "nodes")) {
        manifest->nodes = int_member(reader, root, "nodes", 0, INT64_MAX);
        manifest->cut_nodes = int_member(reader, root, "cut_nodes", 0, manifest->nodes);
    }
    const json_t *model = member(reader, root, "model", JSON_OBJECT);
    manifest->model_name = text_member(reader, model, "name");
    manifest->model_sha256 = text_member(reader, model, "sha256");
}

// Reports an error if "files" does not list `name`, because every file that is opened later must be
// listed. Returns `name` in any case.
static const char *known_file(struct manifest_reader *reader, const struct manifest *manifest,
                              const char *field, const char *name)
{
    if (!reader->failed && !tsr__manifest_find(manifest, str_of(name)))
        report_error(reader, field, "names a file that \"files\" does not list");
    return name;
}

// Returns a list of strings, or NULL after a failure.
static const char **read_names(struct manifest_reader *reader, const json_t *entry, const char *key,
                               size_t *n)
{
    const json_t *list = list_member(reader, entry, key, n);
    const char **names = READER_ARRAY(reader, const char *, *n + 1);
    for (size_t i = 0; names && i < *n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_string(value)) {
            report_error(reader, key, "has an entry that is not a string");
            return NULL;
        }
        names[i] = copy_text(reader, key, value);
    }
    return names;
}

// Returns a list of integers, with -1 for entries that are not integers. Returns NULL if out of
// memory.
static int64_t *read_ints(struct manifest_reader *reader, const json_t *list, size_t n)
{
    int64_t *ints = ARENA_ARRAY(reader->arena, int64_t, n + 1);
    for (size_t i = 0; ints && i < n; i++) {
        const json_t *value = json_array_get(list, i);
        ints[i] = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    }
    return ints;
}

// True if the numbers ascend without duplicates, from 0 to end - 1.
static bool ascends(const int64_t *ints, size_t n, int64_t end)
{
    for (size_t i = 0; i < n; i++)
        if (ints[i] < 0 || ints[i] >= end || (i && ints[i] <= ints[i - 1]))
            return false;
    return true;
}

static void read_device_stages(struct manifest_reader *reader, const json_t *entry,
                               struct manifest_device *device)
{
    size_t n;
    if (reader->failed || !json_object_get(entry, "stages"))
        return;
    const json_t *list = list_member(reader, entry, "stages", &n);
    const int64_t *stages = read_ints(reader, list, n);
    if (!stages)
        return;
    if (!ascends(stages, n, INT64_MAX))
        report_error(reader, "stages", "is not an ascending list of stages");
    device->stages = stages;
    device->n_stages = n;
}

// Reads the entry of one rank. A rank has at most two data files: its own and the common one.
static void read_device(struct manifest_reader *reader, const json_t *entry,
                        const struct manifest *manifest, int64_t rank,
                        struct manifest_device *device)
{
    int_member(reader, entry, "rank", rank, rank); // the list is in rank order
    device->device = text_member(reader, entry, "device");
    device->file = known_file(reader, manifest, "file", text_member(reader, entry, "file"));
    read_device_stages(reader, entry, device);
    device->has_ports =
        !reader->failed && json_object_get(entry, "inputs") && json_object_get(entry, "outputs");
    if (device->has_ports) {
        device->inputs = read_names(reader, entry, "inputs", &device->n_inputs);
        device->outputs = read_names(reader, entry, "outputs", &device->n_outputs);
    }
    device->data = read_names(reader, entry, "data", &device->n_data);
    if (device->n_data > 2)
        report_error(reader, "data", "has too many entries");
    for (size_t i = 0; device->data && i < device->n_data; i++)
        known_file(reader, manifest, "data", device->data[i]);
}

// Reads the entries of all ranks. "weights" and "devices" are lists with one entry per rank.
static void read_devices(struct manifest_reader *reader, const json_t *root,
                         struct manifest *manifest)
{
    size_t n, n_weights;
    const json_t *list = list_member(reader, root, "devices", &n);
    const json_t *weights = list_member(reader, root, "weights", &n_weights);
    if (!reader->failed && (n != (size_t)manifest->n_ranks || n_weights != n))
        report_error(reader, "devices", "does not have one entry for each rank");
    manifest->devices = READER_ARRAY(reader, struct manifest_device, n);
    if (!manifest->devices)
        return;
    for (size_t i = 0; i < n; i++) {
        if (reader->failed)
            return;
        read_device(reader, entry(reader, list, "devices", i), manifest, (int64_t)i,
                    &manifest->devices[i]);
        const json_t *w = entry(reader, weights, "weights", i);
        manifest->devices[i].weights = int_member(reader, w, "elements", 0, INT64_MAX);
        manifest->devices[i].weight_bytes = int_member(reader, w, "bytes", 0, INT64_MAX);
    }
}

// Reads the shape of an input or output. It is null if the rank is unknown, else a list of numbers,
// symbols and nulls.
static void read_shape(struct manifest_reader *reader, const json_t *entry,
                       struct manifest_port *port)
{
    const json_t *shape = reader->failed ? NULL : json_object_get(entry, "shape");
    port->rank = -1;
    if (!shape || json_is_null(shape))
        return;
    size_t n = json_array_size(shape);
    tsr_dim *dims = n <= MAX_RANK ? ARENA_ARRAY(reader->arena, tsr_dim, n + 1) : NULL;
    if (!json_is_array(shape) || !dims) {
        report_error(reader, "shape", "is not a list of at most 64 dimensions");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(shape, i);
        dims[i] = (tsr_dim){-1, ""};
        if (json_is_integer(value) && json_integer_value(value) >= 0)
            dims[i].value = (int64_t)json_integer_value(value);
        else if (json_is_string(value))
            dims[i].symbol = copy_text(reader, "shape", value);
        else if (!json_is_null(value))
            report_error(reader, "shape", "has an entry that is not a dimension");
    }
    port->rank = (int)n;
    port->dims = dims;
}

// Decodes a layout. Returns NULL if the list is not a layout. Entries that are not integers become
// -1 (read_ints), which the decoder rejects.
static struct tile_layout *decode_layout(struct manifest_reader *reader, const json_t *list)
{
    size_t n = json_array_size(list);
    const int64_t *code = n && n <= MAX_ENTRIES ? read_ints(reader, list, n) : NULL;
    return code ? tsr__layout_decode(reader->arena, code, n) : NULL;
}

// True if every owner of a shard is an existing rank, and every shard has an owner.
static bool is_over_ranks(const struct tile_layout *layout, int64_t n_ranks)
{
    if (layout->n_shards <= 0)
        return false;
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] < 0 || layout->owners[i] >= n_ranks ||
            tsr__layout_shard_of(layout, layout->owners[i], 0) < 0)
            return false;
    for (int64_t k = 0; k < layout->n_shards; k++)
        if (layout->first[k + 1] <= layout->first[k])
            return false;
    return true;
}

// Reads the layout of an input or output, a list of integers (tile/encode.c). Returns NULL if there
// is none, or after a failure.
static const struct tile_layout *read_layout(struct manifest_reader *reader, const json_t *entry,
                                             int64_t n_ranks)
{
    const json_t *list = reader->failed ? NULL : json_object_get(entry, "layout");
    if (!list)
        return NULL;
    struct tile_layout *layout = decode_layout(reader, list);
    if (layout && is_over_ranks(layout, n_ranks))
        return layout;
    report_error(reader, "layout", "is not a sharding over the ranks");
    return NULL;
}

static void read_states(struct manifest_reader *reader, const json_t *root,
                        struct manifest *manifest)
{
    size_t n = 0;
    const json_t *list = reader->failed || !json_object_get(root, "states")
                             ? NULL
                             : list_member(reader, root, "states", &n);
    manifest->states = READER_ARRAY(reader, struct manifest_state, n + 1);
    if (!manifest->states)
        return;
    for (size_t i = 0; i < n; i++) {
        if (reader->failed)
            return;
        const json_t *e = entry(reader, list, "states", i);
        struct manifest_state *state = &manifest->states[manifest->n_states++];
        state->input = text_member(reader, e, "input");
        state->output = text_member(reader, e, "output");
        state->in_place = json_is_true(json_object_get(e, "in_place")); // older releases lack it
        if (!reader->failed &&
            (!tsr__manifest_port(manifest->inputs, manifest->n_inputs, state->input) ||
             !tsr__manifest_port(manifest->outputs, manifest->n_outputs, state->output)))
            report_error(reader, "states", "names an input or output that the model does not have");
    }
}

// Reads dimensions of inputs that must have equal sizes.
static void read_dimensions(struct manifest_reader *reader, const json_t *list,
                            const struct manifest *manifest, struct manifest_same *same)
{
    size_t n = json_array_size(list);
    same->at = READER_ARRAY(reader, struct manifest_dimension, n + 1);
    for (size_t i = 0; same->at && i < n && !reader->failed; i++) {
        const json_t *e = entry(reader, list, "same_sizes", i);
        struct manifest_dimension *at = &same->at[same->n++];
        at->input = text_member(reader, e, "input");
        at->axis = (int)int_member(reader, e, "axis", 0, MAX_RANK - 1);
        const struct manifest_port *port =
            reader->failed ? NULL
                           : tsr__manifest_port(manifest->inputs, manifest->n_inputs, at->input);
        if (!reader->failed && (!port || at->axis >= port->rank))
            report_error(reader, "same_sizes", "names a dimension that the model does not have");
    }
}

static void read_same(struct manifest_reader *reader, const json_t *root, struct manifest *manifest)
{
    size_t n = 0;
    if (reader->failed || !json_object_get(root, "same_sizes"))
        return;
    const json_t *list = list_member(reader, root, "same_sizes", &n);
    manifest->same = READER_ARRAY(reader, struct manifest_same, n + 1);
    manifest->has_same = true;
    for (size_t i = 0; manifest->same && i < n && !reader->failed; i++) {
        const json_t *inner = json_array_get(list, i);
        if (json_is_array(inner))
            read_dimensions(reader, inner, manifest, &manifest->same[manifest->n_same++]);
        else
            report_error(reader, "same_sizes", "is not a list of lists");
    }
}

// Reads the input that has the length of a cache, or the number of elements that it grows by.
static void read_length(struct manifest_reader *reader, const json_t *entry,
                        const struct manifest *manifest, struct manifest_port *port)
{
    if (!json_object_get(entry, "length_input"))
        return;
    port->length_input = text_member(reader, entry, "length_input");
    port->length_axis = (int)int_member(reader, entry, "length_axis", 0, MAX_RANK - 1);
    if (!port->updated_by)
        port->growing_axis = (int)int_member(reader, entry, "growing_axis", 0, MAX_RANK - 1);
    if (!reader->failed &&
        !tsr__manifest_port(manifest->inputs, manifest->n_inputs, port->length_input))
        report_error(reader, "length_input", "names an input that the model does not have");
}

// Returns the name of an output; NULL: the entry does not have this key.
static const char *read_output(struct manifest_reader *reader, const json_t *entry, const char *key,
                               const struct manifest *manifest)
{
    if (!json_object_get(entry, key))
        return NULL;
    const char *output = text_member(reader, entry, key);
    if (!reader->failed && !tsr__manifest_port(manifest->outputs, manifest->n_outputs, output))
        report_error(reader, key, "names an output that the model does not have");
    return output;
}

// Reads which outputs update caches. Manifests of older releases do not contain this.
static void read_caches(struct manifest_reader *reader, const json_t *root,
                        struct manifest *manifest)
{
    const json_t *list = reader->failed ? NULL : json_object_get(root, "inputs");
    for (size_t i = 0; list && i < manifest->n_inputs && !reader->failed; i++) {
        const json_t *e = json_array_get(list, i);
        struct manifest_port *port = &manifest->inputs[i];
        port->present = read_output(reader, e, "present", manifest);
        port->updated_by = read_output(reader, e, "updated_by", manifest);
        port->slides = json_is_true(json_object_get(e, "slides"));
        if (port->present || port->updated_by)
            read_length(reader, e, manifest, port);
    }
}

// Reads the inputs or outputs. `key` is "inputs" or "outputs".
static struct manifest_port *read_ports(struct manifest_reader *reader, const json_t *root,
                                        const char *key, int64_t n_ranks, size_t *n)
{
    const json_t *list = list_member(reader, root, key, n);
    struct manifest_port *ports = READER_ARRAY(reader, struct manifest_port, *n + 1);
    if (!ports)
        return NULL;
    for (size_t i = 0; i < *n; i++) {
        if (reader->failed)
            return ports;
        const json_t *e = entry(reader, list, key, i);
        ports[i].name = text_member(reader, e, "name");
        ports[i].type = text_member(reader, e, "type");
        ports[i].sharding = text_member(reader, e, "sharding");
        ports[i].kept = read_layout(reader, e, n_ranks);
        read_shape(reader, e, &ports[i]);
    }
    return ports;
}

// Reads a group of ranks, which must ascend.
static void read_group(struct manifest_reader *reader, const json_t *list, int64_t n_ranks,
                       struct manifest_group *group)
{
    group->n = json_array_size(list);
    if (json_is_array(list) && group->n && group->n <= (size_t)n_ranks)
        group->ranks = read_ints(reader, list, group->n);
    if (!group->ranks)
        report_error(reader, "groups", "has an entry that is not a list of ranks");
    else if (!ascends(group->ranks, group->n, n_ranks))
        report_error(reader, "groups", "has ranks that do not exist or do not ascend");
}

// Reads the collectives. Entry i must have id i. A collective must not have more groups than ranks.
static void read_collectives(struct manifest_reader *reader, const json_t *root,
                             struct manifest *manifest)
{
    size_t n;
    const json_t *list = list_member(reader, root, "collectives", &n);
    manifest->collectives = READER_ARRAY(reader, struct manifest_collective, n + 1);
    if (!manifest->collectives)
        return;
    for (size_t i = 0; i < n; i++) {
        if (reader->failed)
            return;
        const json_t *e = entry(reader, list, "collectives", i);
        struct manifest_collective *collective = &manifest->collectives[manifest->n_collectives++];
        collective->id = int_member(reader, e, "id", (int64_t)i, (int64_t)i);
        collective->op = text_member(reader, e, "op");
        collective->type = text_member(reader, e, "type");
        const json_t *groups = list_member(reader, e, "groups", &collective->n_groups);
        if (collective->n_groups > (size_t)manifest->n_ranks)
            report_error(reader, "groups", "has more groups than ranks");
        struct manifest_group *group =
            READER_ARRAY(reader, struct manifest_group, collective->n_groups + 1);
        collective->groups = group;
        if (reader->failed || !group)
            return;
        for (size_t k = 0; k < collective->n_groups; k++)
            read_group(reader, json_array_get(groups, k), manifest->n_ranks, &group[k]);
    }
}

// Reads the nodes that are replicated although they have a sharding. This list is for people;
// nothing depends on it.
static void read_replicated(struct manifest_reader *reader, const json_t *root,
                            struct manifest *manifest)
{
    const json_t *list = list_member(reader, root, "replicated", &manifest->n_replicated);
    manifest->replicated =
        READER_ARRAY(reader, struct manifest_replicated, manifest->n_replicated + 1);
    if (reader->failed || !manifest->replicated)
        return;
    for (size_t i = 0; i < manifest->n_replicated; i++) {
        const json_t *e = entry(reader, list, "replicated", i);
        manifest->replicated[i].node = text_member(reader, e, "node");
        manifest->replicated[i].op = text_member(reader, e, "op");
        manifest->replicated[i].reason = text_member(reader, e, "reason");
    }
}

// Reads the sizes for which the model was planned, which are optional.
static void read_sizes(struct manifest_reader *reader, const json_t *root,
                       struct manifest *manifest)
{
    const char *name;
    json_t *value;
    const bool present = !reader->failed && json_object_get(root, "dims");
    json_t *dims = present ? (json_t *)member(reader, root, "dims", JSON_OBJECT) : NULL;
    size_t n = dims ? json_object_size(dims) : 0;
    if (n > MAX_ENTRIES)
        report_error(reader, "dims", "has too many entries");
    tsr_dim_size *sizes = READER_ARRAY(reader, tsr_dim_size, n + 1);
    manifest->static_sizes = json_is_true(json_object_get(root, "static"));
    if (!sizes)
        return;
    json_object_foreach(dims, name, value)
    {
        int64_t size = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
        if (size < 0)
            report_error(reader, "dims", "has a size that is not a number from 0 on");
        sizes[manifest->n_sizes].name = tsr__arena_str(reader->arena, str_of(name)).p;
        sizes[manifest->n_sizes++].size = size;
    }
    manifest->sizes = sizes;
    for (size_t i = 0; i < manifest->n_inputs; i++)
        manifest->inputs[i].fixed = manifest->static_sizes;
}

// Reads the complete manifest. Checks the version first, because newer manifests may have other
// fields.
static tsr_status read_root(struct manifest_reader *reader, const json_t *root,
                            struct manifest *manifest)
{
    struct place at = PLACE(.file = reader->file);
    int64_t version = int_member(reader, root, "version", 1, INT64_MAX);
    if (!reader->failed && version > MANIFEST_VERSION)
        return tsr__fail(reader->session, TSR_UNSUPPORTED, DIAG_manifest_version, &at,
                         "use the release of tessera that wrote it, or a newer one",
                         "the manifest has version %lld; this release supports versions up to %d",
                         (long long)version, MANIFEST_VERSION);
    read_model(reader, root, manifest);
    read_files(reader, root, manifest);
    read_devices(reader, root, manifest);
    manifest->inputs = read_ports(reader, root, "inputs", manifest->n_ranks, &manifest->n_inputs);
    manifest->outputs =
        read_ports(reader, root, "outputs", manifest->n_ranks, &manifest->n_outputs);
    read_states(reader, root, manifest);
    read_caches(reader, root, manifest);
    read_sizes(reader, root, manifest);
    read_same(reader, root, manifest);
    read_collectives(reader, root, manifest);
    read_replicated(reader, root, manifest);
    if (reader->arena->failed)
        return TSR_NOMEM;
    return reader->failed ? TSR_MALFORMED : TSR_OK;
}

// Reports that the file is not a JSON object. `offset` is the byte at which parsing stopped.
static tsr_status report_no_object(tsr_session *session, struct str file, uint64_t offset,
                                   const char *text)
{
    struct place at = PLACE(.file = file);
    at.offset = offset;
    return tsr__fail(session, TSR_MALFORMED, DIAG_manifest_malformed, &at,
                     "partition the model again", "%s", text);
}

// Parses a manifest. *out is written only on success. Its strings are in the arena.
tsr_status tsr__manifest_parse(tsr_session *session, struct arena *arena, struct str file,
                               struct str text, struct manifest *out)
{
    json_error_t error;
    json_t *root = NULL;
    tsr_status st = tsr__json_load(session, text, JSON_REJECT_DUPLICATES, &error, &root);
    if (st == TSR_NOMEM)
        return st;
    if (!root)
        // The parser's message quotes the content, which may be private if this is no manifest.
        return report_no_object(session, file, (uint64_t)error.position,
                                "the manifest is not a valid JSON document");
    if (!json_is_object(root)) {
        json_decref(root);
        return report_no_object(session, file, 0, "the manifest is not a JSON object");
    }
    struct manifest_reader reader = {session, arena, file, false};
    struct manifest manifest = {0};
    st = read_root(&reader, root, &manifest);
    json_decref(root);
    if (st == TSR_OK)
        *out = manifest;
    return st;
}

// True for a plain file name. Backslashes are not allowed either, because they are separators on
// other systems.
bool tsr__manifest_name_ok(struct str name)
{
    if (name.n == 0 || name.n > 255 || str_is(name, ".") || str_is(name, ".."))
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] == '/' || name.p[i] == '\\' || (unsigned char)name.p[i] < 0x20 ||
            name.p[i] == 0x7f)
            return false;
    return true;
}

const struct manifest_file *tsr__manifest_find(const struct manifest *manifest, struct str name)
{
    size_t low = 0, high = manifest->n_files;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = tsr__str_cmp(str_of(manifest->files[middle].name), name);
        if (order == 0)
            return &manifest->files[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct manifest_port *tsr__manifest_port(const struct manifest_port *ports, size_t n,
                                               const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(ports[i].name, name) == 0)
            return &ports[i];
    return NULL;
}

tsr_status tsr__manifest_port_fits(tsr_session *session, const struct manifest_port *port, int rank,
                                   const int64_t *dims)
{
    const char *hint = "give a tensor of the shape that the model declares";
    if (port->fixed)
        hint = STATIC_SIZES_HINT;
    struct place at = PLACE(.value = str_of(port->name));
    if (port->rank <= 0)
        return TSR_OK; // rank 0 also means that the model declares no shape
    if (rank != port->rank)
        return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch, &at, hint,
                         "has %d dimensions, the model expects %d", rank, port->rank);
    for (int d = 0; d < rank; d++)
        if (port->dims[d].value >= 0 && port->dims[d].value != dims[d])
            return tsr__fail(session, TSR_INVALID, DIAG_input_mismatch, &at, hint,
                             "dimension %d is %lld, the model expects %lld", d, (long long)dims[d],
                             (long long)port->dims[d].value);
    return TSR_OK;
}

const struct manifest_file *tsr__manifest_common(const struct manifest *manifest)
{
    const struct manifest_file *file = tsr__manifest_find(manifest, STR(MANIFEST_COMMON));
    return file ? file : tsr__manifest_find(manifest, STR(MANIFEST_COMMON_SAFE));
}
