// SPDX-License-Identifier: Apache-2.0
// outfolder.c - output folders that appear complete or not at all.
//
//     Example: for the folder `parts` a sibling `.tessera-4711-...` is created, and files are
//     written to paths of tsr__outfolder_path. The commit checks the target again and renames the
//     sibling. If a folder exists that may be replaced, renameat2 exchanges both names in one step,
//     and the old files are removed under the temporary name.
#include "base/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_TRIES 100

// Returns the path of a name in the folder of `path`: "a/parts" and ".x" give "a/.x".
static char *sibling(tsr_session *session, const char *path, const char *name)
{
    size_t folder = (size_t)(path_name(path) - path), n = folder + strlen(name);
    char *copy = tsr__path_copy(session, path, folder);
    if (!copy)
        return NULL;
    char *longer = tsr__realloc(session, copy, folder + 1, n + 1);
    if (!longer) {
        tsr__free(session, copy, folder + 1);
        return NULL;
    }
    memcpy(longer + folder, name, n - folder + 1);
    return longer;
}

// The kind of the target. TARGET_FILES: only files and rank folders, so it may be replaced.
// TARGET_OTHER: not a folder, or a folder with other subfolders. TARGET_UNKNOWN: it could not be
// read, errno is set.
enum target { TARGET_ABSENT, TARGET_EMPTY, TARGET_FILES, TARGET_OTHER, TARGET_UNKNOWN };

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

// True for "rank0", "rank12". Output folders may contain such folders (genai/rank_folders.c), which
// contain only files.
static bool is_rank_name(const char *name)
{
    if (strncmp(name, "rank", 4) != 0 || !name[4])
        return false;
    return name[4 + strspn(name + 4, "0123456789")] == 0;
}

// True if the folder is named as a rank's and contains no folders.
static bool is_rank_folder(int folder, const char *name)
{
    struct stat st;
    bool of_files = true;
    if (!is_rank_name(name))
        return false;
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !dir)
        close(fd);
    if (!dir)
        return false;
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        if (!is_dots(entry->d_name))
            of_files &= fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                        !S_ISDIR(st.st_mode);
    closedir(dir);
    return of_files;
}

// Returns the kind of the target after one more entry; `so_far` is the kind without this entry. A
// subfolder that is not a rank's gives TARGET_OTHER, because Tessera creates no such folders.
static enum target classify_entry(int folder, const char *name, enum target so_far)
{
    struct stat st;
    if (is_dots(name))
        return so_far;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return TARGET_UNKNOWN;
    if (S_ISDIR(st.st_mode) && !is_rank_folder(folder, name))
        return TARGET_OTHER;
    return TARGET_FILES;
}

// Removes a replaced folder: its files and those of its rank folders. Other contents stay.
static void remove_replaced(const char *path)
{
    char inner[PATH_MAX];
    DIR *dir = opendir(path);
    const struct dirent *entry = dir ? readdir(dir) : NULL;
    while (entry) {
        int n = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (is_rank_name(entry->d_name) && n > 0 && (size_t)n < sizeof inner)
            tsr__folder_remove(inner);
        entry = readdir(dir);
    }
    if (dir)
        closedir(dir);
    tsr__folder_remove(path);
}

// Returns the kind of the target. Reads entries until one decides it.
static enum target classify_target(const char *path)
{
    struct stat st;
    enum target found = TARGET_EMPTY;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? TARGET_ABSENT : TARGET_UNKNOWN;
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOTDIR ? TARGET_OTHER : TARGET_UNKNOWN;
    while (found == TARGET_EMPTY || found == TARGET_FILES) {
        errno = 0;
        const struct dirent *dirent = readdir(dir);
        if (!dirent && errno)
            found = TARGET_UNKNOWN;
        if (!dirent)
            break;
        found = classify_entry(dirfd(dir), dirent->d_name, found);
    }
    int error = errno;
    closedir(dir);
    errno = error;
    return found;
}

// Checks that the output folder may be written: the target is absent, an empty folder or, with
// `replace`, TARGET_FILES.
static tsr_status check_target(tsr_session *session, const char *path, bool replace)
{
    enum target found = classify_target(path);
    if (found == TARGET_UNKNOWN && errno == ENOMEM) {
        tsr__nomem(session, sizeof(struct dirent));
        return TSR_NOMEM;
    }
    if (found == TARGET_UNKNOWN)
        return tsr__refuse_write(session, path, errno);
    struct place at = PLACE(.file = str_of(path));
    if (found == TARGET_ABSENT || found == TARGET_EMPTY || (found == TARGET_FILES && replace))
        return TSR_OK;
    if (found == TARGET_OTHER)
        tsr__diag(session, DIAG_output_exists, &at, "choose another name",
                  "'%s' exists and is not replaced: only a folder that contains nothing but "
                  "files can be",
                  path);
    else
        tsr__diag(
            session, DIAG_output_exists, &at,
            "choose another name or remove it; `partition --force` replaces an older partition",
            "the output folder '%s' already exists", path);
    return TSR_WRITE;
}

// Removes temporary folders that earlier processes left beside the target. If the parent cannot be
// opened, make_sibling will report it.
static void sweep_parent(const struct outfolder *outfolder)
{
    int parent = tsr__path_open_parent(outfolder->path, O_RDONLY);
    if (parent < 0)
        return;
    tsr__temporary_sweep(parent, TEMPORARY_PREFIX);
    close(parent);
}

// Creates, opens and locks the temporary folder. Returns 0 or an errno; on EEXIST try another name.
static int make_locked(struct outfolder *outfolder)
{
    if (fault_io(outfolder->session, FAULT_WRITE) || mkdir(outfolder->temporary, 0777) != 0)
        return errno;
    int fd = tsr__fd_above(open(outfolder->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int error = errno;
    if (fd >= 0 && tsr__temporary_lock(AT_FDCWD, outfolder->temporary, fd)) {
        outfolder->fd = fd;
        return 0;
    }
    rmdir(outfolder->temporary);
    bool swept = fd >= 0 || error == ENOENT;
    if (fd >= 0)
        close(fd);
    return swept ? EEXIST : error;
}

static tsr_status make_sibling(struct outfolder *outfolder)
{
    char name[TEMPORARY_NAME];
    sweep_parent(outfolder);
    for (int i = 0; i < NAME_TRIES; i++) {
        tsr__path_draw(name);
        outfolder->temporary = sibling(outfolder->session, outfolder->path, name);
        if (!outfolder->temporary)
            return TSR_NOMEM;
        int error = make_locked(outfolder);
        if (!error) {
            outfolder->note = tsr__temporary_note(outfolder->session, outfolder->temporary);
            return TSR_OK;
        }
        tsr__path_free(outfolder->session, &outfolder->temporary);
        if (error != EEXIST)
            return tsr__refuse_write(outfolder->session, outfolder->path, error);
    }
    return tsr__refuse_write(outfolder->session, outfolder->path, EEXIST);
}

static void release_folder(struct outfolder *outfolder)
{
    tsr__temporary_forget(outfolder->note);
    outfolder->note = NULL;
    if (outfolder->fd > 0)
        close(outfolder->fd);
    outfolder->fd = -1;
    tsr__path_free(outfolder->session, &outfolder->temporary);
    tsr__path_free(outfolder->session, &outfolder->path);
}

// Creates a temporary folder beside the target. "." and "/" have no sibling and are rejected.
tsr_status tsr__outfolder_open(tsr_session *session, const char *path, bool replace,
                               struct outfolder *out)
{
    struct outfolder outfolder = {.session = session, .replace = replace};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--; // "parts/" is "parts"
    outfolder.path = tsr__path_copy(session, path, n);
    if (!outfolder.path)
        return TSR_NOMEM;
    const char *name = path_name(outfolder.path);
    tsr_status status;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        status = tsr__refuse_write(session, path, EINVAL);
        goto release;
    }
    status = check_target(session, outfolder.path, replace);
    if (status != TSR_OK)
        goto release;
    status = make_sibling(&outfolder);
    if (status != TSR_OK)
        goto release;
    *out = outfolder;
    return TSR_OK;

release:
    release_folder(&outfolder);
    return status;
}

struct str tsr__outfolder_path(struct outfolder *outfolder, struct arena *arena, const char *name)
{
    return tsr__arena_printf(arena, "%s/%s", outfolder->temporary, name);
}

// Replaces the target by two renames, for file systems without RENAME_EXCHANGE. A crash between the
// two leaves the old folder as `old`. After a failure (false, with errno) the old folder is in its
// place again.
static bool replace_by_steps(struct outfolder *outfolder, const char *old)
{
    if (rename(outfolder->path, old) != 0)
        return false;
    if (rename(outfolder->temporary, outfolder->path) == 0)
        return true;
    int error = errno;
    rename(old, outfolder->path);
    errno = error;
    return false;
}

// Writes the new folder to disk. This must be complete before the old folder is removed.
static void sync_all(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    tsr__kernel_sync(fd);
    close(fd);
}

// Replaces the target by the new folder. With RENAME_EXCHANGE the target name always refers to a
// complete folder. Without it, the old folder is renamed first.
tsr_status tsr__outfolder_replace(struct outfolder *outfolder, bool use_kernel)
{
    sync_all(outfolder->temporary);
    if (use_kernel && tsr__kernel_exchange(outfolder->temporary, outfolder->path) == 0) {
        remove_replaced(outfolder->temporary); // after the exchange it is the old folder
        return TSR_OK;
    }
    if (use_kernel && errno != ENOSYS && errno != EINVAL)
        return tsr__refuse_write(outfolder->session, outfolder->path, errno);
    // Give the old folder a name that no sweep removes, in case the process is killed between the
    // steps.
    char name[TEMPORARY_NAME], kept[TEMPORARY_NAME + 4];
    tsr__path_draw(name);
    snprintf(kept, sizeof kept, TEMPORARY_PREFIX "old-%s", name + strlen(TEMPORARY_PREFIX));
    char *old = sibling(outfolder->session, outfolder->path, kept);
    if (!old)
        return TSR_NOMEM;
    tsr_status status = TSR_OK;
    if (!replace_by_steps(outfolder, old))
        status = tsr__refuse_write(outfolder->session, outfolder->path, errno);
    if (status == TSR_OK)
        remove_replaced(old);
    tsr__path_free(outfolder->session, &old);
    return status;
}

// Renames the new folder to the target. rename succeeds if the target is absent or an empty folder.
// Otherwise the target is replaced, if outfolder->replace is set.
static tsr_status place_folder(struct outfolder *outfolder)
{
    if (outfolder->session->out_of_memory)
        return TSR_NOMEM; // the contents may be incomplete
    if (tsr__fault(outfolder->session, FAULT_WRITE))
        return tsr__refuse_write(outfolder->session, outfolder->path, EIO);
    // Another process may have created the target meanwhile.
    TRY(check_target(outfolder->session, outfolder->path, outfolder->replace));
    if (rename(outfolder->temporary, outfolder->path) == 0)
        return TSR_OK;
    if (outfolder->replace && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR))
        return tsr__outfolder_replace(outfolder, true);
    return tsr__refuse_write(outfolder->session, outfolder->path, errno);
}

// Publishes the folder under its name. A failure of fsync is ignored, because the folder is already
// in place.
tsr_status tsr__outfolder_commit(struct outfolder *outfolder)
{
    if (!outfolder->path)
        return TSR_USAGE;
    tsr_status status = place_folder(outfolder);
    if (status != TSR_OK) {
        tsr__outfolder_abort(outfolder);
        return status;
    }
    int parent = -1;
    if (!tsr__is_temporary(outfolder->session, outfolder->path))
        parent = tsr__path_open_parent(outfolder->path, O_RDONLY);
    if (parent >= 0) {
        fsync(parent);
        close(parent);
    }
    release_folder(outfolder);
    return TSR_OK;
}

// Removes the temporary folder. It is emptied through its descriptor first, which needs no memory.
void tsr__outfolder_abort(struct outfolder *outfolder)
{
    if (!outfolder->path)
        return;
    if (outfolder->temporary) {
        tsr__folder_empty(outfolder->fd);
        tsr__tree_remove(outfolder->temporary);
    }
    release_folder(outfolder);
}
