// SPDX-License-Identifier: Apache-2.0
// store.c - the bytes to which objects point: the file of the model and its external data files.
//
// A store is reference-counted: a model, its clones and models with copied constants hold it. Its
// bytes do not move until the last holder drops it. Data files are mapped, or opened for copying,
// on demand.
#include "ir/serde/serde.h"

// A mapped range of a data file.
struct window {
    struct window *next;
    struct mapped_range map;
};
// A data file that is open for copying, by its name in the model.
struct opened {
    struct opened *next;
    struct str location;
    int fd;
};

struct store *tsr__store_new(tsr_session *session)
{
    struct store *store = tsr__alloc(session, sizeof(*store));
    if (!store)
        return NULL;
    *store = (struct store){.session = session, .refs = 1};
    tsr__arena_init(&store->arena, session);
    return store;
}

// Adds a reference to the store. Not atomic: all holders belong to one session, which one thread
// uses at a time.
struct store *tsr__store_hold(struct store *store)
{
    store->refs++;
    return store;
}

static void close_data_files(struct store *store)
{
    for (struct window *window = store->windows; window; window = window->next)
        tsr__fd_unmap(&window->map);
    for (struct opened *opened = store->opened; opened; opened = opened->next)
        tsr__fd_close(opened->fd);
}

void tsr__store_drop(struct store *store)
{
    if (!store || --store->refs)
        return;
    close_data_files(store);
    if (store->has_folder)
        tsr__folder_close(&store->folder);
    if (store->has_more_data)
        tsr__folder_close(&store->more_data);
    tsr__file_unmap(&store->file);
    tsr__arena_free(&store->arena);
    tsr__free(store->session, store, sizeof(*store));
}

// ---- data files -----------------------------------------------------------------------------

// Opens the folder of the model, in which data files are searched.
static tsr_status open_folder(struct store *store, const struct place *at)
{
    if (store->has_folder)
        return TSR_OK;
    if (!store->path)
        return tsr__fail(
            store->session, TSR_IO, DIAG_tensor_no_folder, at, "load the model from its file",
            "the data of the tensor is in a file, but the model was loaded from memory");
    tsr_status st = tsr__folder_of_file(store->session, store->path, &store->folder);
    store->has_folder = st == TSR_OK;
    return st;
}

tsr_status tsr__store_add_data(struct store *store, const char *file)
{
    if (store->has_more_data)
        tsr__folder_close(&store->more_data);
    tsr_status st = tsr__folder_of_file(store->session, file, &store->more_data);
    store->has_more_data = st == TSR_OK;
    return st;
}

// Finds the folder of a data file: that of the model or, if the file is not there and a second
// folder is set, `more_data`. Names are checked when the file is opened.
static tsr_status find_folder(struct store *store, struct str location, const struct place *at,
                              const struct folder **out)
{
    TRY(open_folder(store, at));
    bool here = !store->has_more_data || tsr__folder_has(&store->folder, location);
    *out = here ? &store->folder : &store->more_data;
    return TSR_OK;
}

// Maps a range of a data file. A tensor keeps the pointer, so it calls this once.
tsr_status tsr__store_map(struct store *store, const struct wire_external *external,
                          const struct place *at, const void **data)
{
    const struct folder *folder;
    TRY(find_folder(store, external->location, at, &folder));
    struct window *window = ARENA_NEW(&store->arena, struct window);
    if (!window)
        return TSR_NOMEM;
    TRY(tsr__external_map(store->session, folder, external, at, &window->map));
    window->next = store->windows;
    store->windows = window;
    *data = window->map.bytes.p;
    return TSR_OK;
}

// True if the open file has this name and contains the range.
static bool serves(const struct opened *opened, const struct wire_external *external)
{
    uint64_t size;
    return str_eq(opened->location, external->location) && tsr__fd_size(opened->fd, &size) &&
           external->offset <= size && external->length <= size - external->offset;
}

// Opens an external file. Reuses an open one, unless it was truncated since.
tsr_status tsr__store_open(struct store *store, const struct wire_external *external,
                           const struct place *at, int *out)
{
    const struct folder *folder;
    TRY(find_folder(store, external->location, at, &folder));
    for (const struct opened *known = store->opened; known; known = known->next)
        if (serves(known, external)) {
            *out = known->fd;
            return TSR_OK;
        }
    struct opened *opened = ARENA_NEW(&store->arena, struct opened);
    if (!opened)
        return TSR_NOMEM;
    uint64_t length = 0;
    int fd = -1;
    TRY(tsr__external_open(store->session, folder, external, at, &fd, &length));
    *opened = (struct opened){store->opened, tsr__arena_str(&store->arena, external->location), fd};
    store->opened = opened;
    *out = fd;
    return TSR_OK;
}
