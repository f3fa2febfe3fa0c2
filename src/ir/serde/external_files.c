// SPDX-License-Identifier: Apache-2.0
// external_files.c - copies the external data files of a model, and warns if they are missing.
//
// The file names are collected from the bytes of the model: initializers, sparse initializers,
// attributes, functions, training graphs. Files are never written outside the target folder.
// Nothing is done if the model stays in its folder or was loaded from memory.
#include "ir/serde/serde.h"

#include <errno.h>

struct walk {
    tsr_model *model;
    struct map seen; // locations that were already found
    VEC(struct str) locations;
    tsr_status status;
};

// Adds an external file to the list, once, because most tensors share one file.
static void add_location(struct walk *walk, struct str body)
{
    struct wire_external external;
    int64_t location = 0;
    if (!tsr__wire_int(body, F_TENSOR_DATA_LOCATION, &location) || location != 1)
        return;
    bool named;
    struct place at = PLACE(.file = str_of(walk->model->path),
                            .value = tsr__wire_bytes(body, F_TENSOR_NAME, &named));
    tsr_status status = tsr__external_parse(walk->model->session, body, &at, &external);
    if (status != TSR_OK) {
        walk->status = status;
        return;
    }
    void **slot = tsr__map_at(&walk->seen, external.location);
    if (!slot || *slot)
        return;
    *slot = walk;
    vec_add(&walk->model->arena, &walk->locations,
            tsr__arena_str(&walk->model->arena, external.location));
}

// Collects the external files that a message and its parts name. The file was checked when it was
// loaded, so the recursion depth is bounded.
static void walk_message(struct walk *walk, struct str body, enum wire_message message)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    if (message == WIRE_TENSOR)
        add_location(walk, body);
    while (tsr__wire_next(&cursor, &field)) {
        const struct wire_row *row = tsr__wire_row(message, field.number);
        if (row && row->kind == KIND_MESSAGE && field.type == WIRE_LEN)
            walk_message(walk, field.bytes, (enum wire_message)row->message);
    }
}

// Collects the external files that the loaded file names. Files that were added after loading
// (tsr__graph_add_external) are not included.
static tsr_status find_locations(tsr_model *model, struct walk *walk)
{
    *walk = (struct walk){.model = model};
    tsr__map_init(&walk->seen, &model->arena, 0);
    walk_message(walk, model->store->bytes, WIRE_MODEL);
    return model->arena.failed ? TSR_NOMEM : walk->status;
}

tsr_status tsr__model_data_files(tsr_model *model, const struct str **out, size_t *n)
{
    struct walk walk;
    TRY(find_locations(model, &walk));
    *out = walk.locations.at;
    *n = walk.locations.n;
    return TSR_OK;
}

// Reports an external file that is not copied.
static tsr_status refuse_external(tsr_model *model, struct str location, const char *why)
{
    return tsr__fail(model->session, TSR_WRITE, DIAG_io_write, &PLACE(.file = location),
                     "save the model with its data under plain file names first",
                     "external data is not copied: %s", why);
}

// Returns the folder of a path with its slash; empty for a bare name.
static struct str folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (struct str){path, (size_t)(slash - path) + 1} : STR("");
}

// Creates the folders in the path `full` after its first `base` bytes. Does not follow links, which
// might lead out of the target folder.
static tsr_status make_folders(tsr_model *model, struct str location, char *full, size_t base)
{
    for (char *p = full + base; (p = strchr(p, '/')); p++) {
        // "out/a/b/w.bin" with base 4: creates the folders out/a and out/a/b.
        *p = 0;
        bool ok = tsr__path_make_folder(full);
        *p = '/';
        if (!ok)
            return refuse_external(model, location, "a folder of its path cannot be created");
    }
    return TSR_OK;
}

// True if a component is ".." or empty (as in "/a" and "a//b"), or contains a NUL.
static bool leads_out(struct str location)
{
    for (size_t i = 0; i < location.n;) {
        const char *end = memchr(location.p + i, '/', location.n - i);
        size_t n = end ? (size_t)(end - location.p) - i : location.n - i;
        if (n == 0 || (n == 2 && !memcmp(location.p + i, "..", 2)))
            return true;
        i += n + 1;
    }
    return memchr(location.p, 0, location.n) != NULL;
}

static tsr_status copy_file(tsr_model *model, int fd, const char *full)
{
    struct outfile file;
    uint64_t size;
    if (!tsr__fd_size(fd, &size))
        return tsr__fail(model->session, TSR_IO, DIAG_io_read, &PLACE(.file = str_of(full)), NULL,
                         "the data for '%s' cannot be read: %s", full, strerror(errno));
    TRY(tsr__out_open(model->session, full, &file));
    tsr__out_copy(&file, fd, 0, size);
    return tsr__out_commit(&file);
}

// Copies one external file. tsr__folder_file stays inside the source folder; leads_out and
// make_folders ensure that the target is inside the target folder.
static tsr_status copy_one(tsr_model *model, const struct folder *from, struct str location,
                           struct str to)
{
    int fd;
    if (leads_out(location))
        return refuse_external(model, location, "its name leads out of the folder");
    struct str full =
        tsr__arena_printf(&model->arena, STR_FMT STR_FMT, STR_ARG(to), STR_ARG(location));
    if (!full.p)
        return TSR_NOMEM;
    struct place at = PLACE(.file = str_of(model->path));
    TRY(tsr__folder_file(model->session, from, location, &at, &fd));
    tsr_status status = make_folders(model, location, (char *)full.p, to.n);
    if (status == TSR_OK)
        status = copy_file(model, fd, full.p);
    tsr__fd_close(fd);
    return status;
}

static bool same_folder(tsr_model *model, const char *path)
{
    struct str a = tsr__arena_printf(&model->arena, STR_FMT ".", STR_ARG(folder_of(model->path)));
    struct str b = tsr__arena_printf(&model->arena, STR_FMT ".", STR_ARG(folder_of(path)));
    return a.p && b.p && tsr__same_file(a.p, b.p);
}

// Copies the external files of a model to the folder of its new path. `path` is the new path of the
// model. Stops at the first error.
tsr_status tsr_model_copy_data(tsr_model *model, const char *path)
{
    TRY(tsr__given(model->session, "path", path));
    struct walk walk;
    struct folder from;
    if (!model->path || !model->path[0] || same_folder(model, path))
        return TSR_OK;
    tsr_status status = find_locations(model, &walk);
    if (status != TSR_OK || !walk.locations.n)
        return status;
    TRY(tsr__folder_of_file(model->session, model->path, &from));
    for (size_t i = 0; i < walk.locations.n; i++) {
        status = copy_one(model, &from, walk.locations.at[i], folder_of(path));
        if (status != TSR_OK)
            break;
    }
    tsr__folder_close(&from);
    return status;
}

// Finds the external files. Ignores tensors with invalid external data: they are reported when they
// are read.
static tsr_status find_readable(tsr_model *model, struct walk *walk)
{
    struct diag_mark before = tsr__diag_mark(model->session);
    tsr_status status = find_locations(model, walk);
    if (status == TSR_NOMEM)
        return TSR_NOMEM;
    if (status != TSR_OK)
        tsr__diag_back(model->session, &before, false);
    return TSR_OK;
}

// Warns if a data file is missing in the folder of the saved model. Out of memory is reported by
// the commit.
void tsr__external_warn(tsr_model *model, const char *path)
{
    struct walk walk;
    struct path_facts facts;
    if (!model->path || !model->path[0] || same_folder(model, path))
        return;
    if (find_readable(model, &walk) != TSR_OK)
        return;
    for (size_t i = 0; i < walk.locations.n; i++) {
        struct str to = folder_of(path), location = walk.locations.at[i];
        struct str full =
            tsr__arena_printf(&model->arena, STR_FMT STR_FMT, STR_ARG(to), STR_ARG(location));
        if (!full.p || leads_out(location) || tsr__path_facts(full.p, &facts))
            continue;
        tsr__diag(model->session, DIAG_external_elsewhere, &PLACE(.file = str_of(path)),
                  "copy the file to the folder of the model, or use `annotate --copy-data`",
                  "the data file \"" STR_FMT "\" is not in the folder of the model",
                  STR_ARG(location));
    }
}
