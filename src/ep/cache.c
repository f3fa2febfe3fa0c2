// SPDX-License-Identifier: Apache-2.0
// cache.c - keeps partitions in a folder of the application (option `cache`), so that a later
// session neither plans nor partitions.
//
//     FOLDER/lock           held while an entry is looked up, added or removed
//     FOLDER/KEY/           a partition
//     FOLDER/KEY.use        sessions that use the entry hold a shared lock of this file
//
// KEY is the digest of everything that the partition depends on: the model with its data files, the
// options and the version of Tessera. The entries that were not used for the longest time are
// removed, unless a session uses them.
#include "ep/internal.h"
#include "ir/ir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera_graph.h"

#define CACHE_ENTRIES 16 // most entries that a folder keeps
#define KEY_CHARS     64
#define USE_SUFFIX    ".use"

static tsr_status cannot(const struct provider *provider, const char *path)
{
    return tsr__fail(provider->session, TSR_WRITE, DIAG_ep_option, &PLACE(.file = str_of(path)),
                     "give a folder that can be written, or none", "the cache cannot be used: %s",
                     strerror(errno));
}

// ---- the key -----------------------------------------------------------------------------------

// Hashes the text with its terminator, so that "ab" "c" and "a" "bc" differ.
static void add_text(struct sha256 *sha, const char *text)
{
    if (!text)
        text = "";
    tsr__sha256_add(sha, text, strlen(text) + 1);
}

static void add_options(struct sha256 *sha, const struct ep_options *options)
{
    const tsr_plan_options *plan = &options->plan_options;
    add_text(sha, tsr_version());
    add_text(sha, options->devices);
    add_text(sha, options->strict ? "strict" : NULL);           // it may change the plan
    add_text(sha, options->ranks_keep ? "caches=ranks" : NULL); // the ranks then return lengths
    tsr__sha256_add(sha, &plan->memory, sizeof plan->memory);
    for (size_t i = 0; i < plan->n_sizes; i++) {
        add_text(sha, plan->sizes[i].name);
        tsr__sha256_add(sha, &plan->sizes[i].size, sizeof plan->sizes[i].size);
    }
}

static tsr_status add_file(struct sha256 *sha, tsr_session *session, const char *path)
{
    char hex[KEY_CHARS + 1];
    struct sha256 own;
    tsr__sha256_init(&own);
    tsr_status st = tsr__sha256_file(session, path, &own);
    tsr__sha256_hex(&own, hex);
    add_text(sha, hex);
    return st;
}

// Returns the path of a file in the folder of another one.
static const char *path_beside(struct arena *arena, const char *other, struct str name)
{
    return tsr__arena_printf(arena, STR_FMT "/" STR_FMT, STR_ARG(tsr__path_folder(other)),
                             STR_ARG(name))
        .p;
}

// Hashes the model's data files. They are in the model's folder. If the model was written from the
// graph, they may be in the folder of the application's file.
static tsr_status add_data(struct sha256 *sha, tsr_model *model, const char *original,
                           struct arena *arena)
{
    const struct str *names = NULL;
    size_t n = 0;
    const char *own = tsr_model_path(model);
    tsr_status st = tsr__model_data_files(model, &names, &n);
    for (size_t i = 0; i < n && st == TSR_OK; i++) {
        const char *path = path_beside(arena, own, names[i]);
        if (path && access(path, R_OK) != 0)
            path = path_beside(arena, original, names[i]);
        st = path ? add_file(sha, arena->session, path) : TSR_NOMEM;
    }
    return st;
}

static tsr_status make_key(const struct provider *provider, const OrtGraph *graph, tsr_model *model,
                           struct arena *arena, char key[KEY_CHARS + 1])
{
    const struct ep_api *api = &provider->factory->api;
    const struct ep_options *options = &provider->options;
    const char *original = "";
    struct sha256 sha;
    tsr__sha256_init(&sha);
    add_options(&sha, options);
    tsr_status st =
        tsr__ep_report(provider->session, api, api->ort->Graph_GetModelPath(graph, &original));
    if (st == TSR_OK)
        st = add_file(&sha, provider->session, tsr_model_path(model));
    if (st == TSR_OK)
        st = add_data(&sha, model, original, arena);
    if (st == TSR_OK && options->plan)
        st = add_file(&sha, provider->session, options->plan);
    // Hash the topology if it is a file. Other topologies are part of the hashed options.
    if (st == TSR_OK && options->plan_options.topology && access(options->devices, R_OK) == 0)
        st = add_file(&sha, provider->session, options->devices);
    tsr__sha256_hex(&sha, key);
    return st;
}

// ---- entries -----------------------------------------------------------------------------------

// Removes the entry with this .use file if no process has locked it (find_entry). Returns true if
// it was removed.
static bool remove_entry(struct arena *arena, const char *folder, const char *use)
{
    const char *path = tsr__arena_printf(arena, "%s/%s", folder, use).p;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    bool free_now = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (free_now) {
        const char *parts = tsr__arena_printf(arena, "%s/%.*s", folder, KEY_CHARS, use).p;
        if (parts)
            tsr__tree_remove(parts);
        unlink(path);
    }
    close(fd);
    return free_now;
}

static bool is_use(const char *name)
{
    return strlen(name) == KEY_CHARS + strlen(USE_SUFFIX) &&
           strspn(name, "0123456789abcdef") == KEY_CHARS && ends_with(name, USE_SUFFIX);
}

struct entry {
    char name[KEY_CHARS + sizeof USE_SUFFIX];
    struct timespec used;
};

static int by_use(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return int64_order(x->used.tv_nsec, y->used.tv_nsec);
}

// Removes the least recently used entries above the limit. The caller holds the lock of the folder.
static void limit_entries(struct arena *arena, const char *folder)
{
    VEC(struct entry) entries = {0};
    DIR *open_folder = opendir(folder);
    if (!open_folder)
        return;
    for (const struct dirent *at = readdir(open_folder); at; at = readdir(open_folder)) {
        struct stat facts;
        if (!is_use(at->d_name) || fstatat(dirfd(open_folder), at->d_name, &facts, 0) != 0)
            continue;
        struct entry *entry = vec_push(arena, &entries);
        if (!entry)
            break;
        memcpy(entry->name, at->d_name, sizeof entry->name);
        entry->used = facts.st_mtim;
    }
    closedir(open_folder);
    if (entries.n)
        qsort(entries.at, entries.n, sizeof *entries.at, by_use);
    size_t left = entries.n;
    for (size_t i = 0; i < entries.n && left > CACHE_ENTRIES; i++)
        left -= remove_entry(arena, folder, entries.at[i].name);
}

// True if only this user and root can write to a file or folder, which is no link. `closed`:
// it is in a folder that other users cannot enter, so its own mode does not matter.
static bool is_ours(const struct stat *facts, bool closed)
{
    bool right_kind = S_ISREG(facts->st_mode) || S_ISDIR(facts->st_mode);
    return right_kind && tsr__is_private(facts, closed ? 0 : S_IWOTH);
}

// Finds a file of the entry that other users could have written. Returns its name, in the arena;
// NULL: there is none. An entry that does not exist has no files.
static const char *foreign_file(struct arena *arena, const char *entry, bool closed)
{
    struct stat facts;
    DIR *folder = opendir(entry);
    const char *found = NULL;
    if (lstat(entry, &facts) == 0 && !is_ours(&facts, closed))
        found = entry;
    for (const struct dirent *at = folder ? readdir(folder) : NULL; at && !found;
         at = readdir(folder))
        if (strcmp(at->d_name, "..") != 0 &&
            fstatat(dirfd(folder), at->d_name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
            !is_ours(&facts, closed))
            found = tsr__arena_printf(arena, "%s/%s", entry, at->d_name).p;
    if (folder)
        closedir(folder);
    return found;
}

static tsr_status refuse_foreign(const struct provider *provider, const char *path,
                                 const char *what)
{
    return tsr__fail(provider->session, TSR_INVALID, DIAG_ep_option, &PLACE(.file = str_of(path)),
                     "give a folder of your own with mode 700 that no one else has written to",
                     "the cache cannot be used: other users can write to this %s, or have "
                     "written it",
                     what);
}

// Refuses an entry that other users could have written: the key is computed from public data, so
// they could put other results into it.
static tsr_status check_entry(const struct provider *provider, struct arena *arena,
                              const char *entry, const char *use)
{
    struct stat facts;
    if (stat(provider->options.cache, &facts) != 0)
        return cannot(provider, provider->options.cache);
    bool closed = tsr__is_private(&facts, S_IRWXO);
    const char *foreign = foreign_file(arena, entry, closed);
    if (!foreign && lstat(use, &facts) == 0 && !is_ours(&facts, closed))
        foreign = use;
    return foreign ? refuse_foreign(provider, foreign, "entry") : TSR_OK;
}

// True if the entry is complete; parts->use then holds a shared lock, so that no other process
// removes the entry.
static bool find_entry(struct provider *provider, struct arena *arena, const char *use,
                       struct parts *parts)
{
    struct bundle bundle;
    struct diag_mark mark = tsr__diag_mark(provider->session);
    int fd = open(use, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool right = flock(fd, LOCK_SH) == 0 &&
                 tsr__bundle_open(provider->session, arena, parts->folder, &bundle) == TSR_OK;
    if (right) {
        right = tsr__bundle_verify(&bundle, NULL, 0, false) == TSR_OK;
        tsr__bundle_close(&bundle);
    }
    tsr__diag_back(provider->session, &mark, false); // a damaged entry is written again
    if (!right) {
        close(fd);
        return false;
    }
    futimens(fd, NULL);
    parts->use = fd;
    return true;
}

static tsr_status add_entry(struct provider *provider, struct arena *arena, const char *use,
                            struct parts *parts)
{
    struct outfile out;
    TRY(tsr__out_open(provider->session, use, &out));
    tsr_status st = tsr__out_commit(&out);
    if (st != TSR_OK || find_entry(provider, arena, use, parts))
        return st;
    return tsr__fail(provider->session, TSR_WRITE, DIAG_ep_option,
                     &PLACE(.file = str_of(parts->folder)),
                     "check that no other program changes the folder, or use no cache",
                     "the cache cannot be used: files that were just written cannot be read back");
}

static tsr_status find_or_make(struct provider *provider, tsr_model *model, struct arena *arena,
                               const char *key, struct parts *out)
{
    const char *folder = provider->options.cache;
    const char *use = tsr__arena_printf(arena, "%s/%s" USE_SUFFIX, folder, key).p;
    out->folder = tsr__arena_printf(arena, "%s/%s", folder, key).p;
    if (!use || !out->folder)
        return TSR_NOMEM;
    TRY(check_entry(provider, arena, out->folder, use));
    out->cached = find_entry(provider, arena, use, out);
    if (out->cached)
        return TSR_OK;
    tsr_status st = tsr__ep_partition(provider, model, out);
    if (st == TSR_OK) // the umask of the process may let others write
        st = check_entry(provider, arena, out->folder, use);
    if (st == TSR_OK)
        st = add_entry(provider, arena, use, out);
    if (st == TSR_OK)
        limit_entries(arena, folder);
    return st;
}

// Makes the folder. Refuses a folder that other users can write to.
static tsr_status open_folder(const struct provider *provider, const char *folder)
{
    struct stat facts;
    if ((mkdir(folder, 0700) != 0 && errno != EEXIST) || stat(folder, &facts) != 0)
        return cannot(provider, folder);
    return is_ours(&facts, false) ? TSR_OK : refuse_foreign(provider, folder, "folder");
}

tsr_status tsr__ep_cache_parts(struct provider *provider, const OrtGraph *graph, tsr_model *model,
                               struct arena *arena, struct parts *out)
{
    const char *folder = provider->options.cache;
    const char *lock = tsr__arena_printf(arena, "%s/lock", folder).p;
    char key[KEY_CHARS + 1];
    if (!lock)
        return TSR_NOMEM;
    TRY(make_key(provider, graph, model, arena, key));
    TRY(open_folder(provider, folder));
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cannot(provider, lock);
    tsr_status st = flock(fd, LOCK_EX) == 0 ? TSR_OK : cannot(provider, lock);
    if (st == TSR_OK)
        st = find_or_make(provider, model, arena, key, out);
    close(fd); // this also releases the lock
    return st;
}
