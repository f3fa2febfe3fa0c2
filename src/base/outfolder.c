// SPDX-License-Identifier: Apache-2.0
// outfolder.c - folders that appear whole or not at all.
//
// Made as a sibling of the target and renamed when complete. A folder that stands there already is
// exchanged in one step where the kernel can, and removed only when the new one is in place and on
// disk.
#include "base/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_TRIES 100

// A path in the same folder as `path`, with another last name.
static char *sibling(tsr_session *s, const char *path, const char *name)
{
    size_t folder = (size_t)(tsr__path_name(path) - path), n = folder + strlen(name);
    char *p = tsr__path_copy(s, path, folder);
    char *q = p ? tsr__realloc(s, p, folder + 1, n + 1) : NULL;
    if (p && !q)
        tsr__free(s, p, folder + 1);
    if (q)
        memcpy(q + folder, name, n - folder + 1);
    return q;
}

enum target { TARGET_ABSENT, TARGET_EMPTY, TARGET_FILES, TARGET_OTHER };

// What stands at path. Reads at most until the first entry that decides.
static enum target look_at(const char *path)
{
    struct stat st;
    enum target found = TARGET_EMPTY;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? TARGET_ABSENT : TARGET_OTHER;
    DIR *dir = opendir(path);
    if (!dir)
        return TARGET_OTHER;
    for (struct dirent *e; found != TARGET_OTHER && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        bool folder =
            fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(st.st_mode);
        found = folder ? TARGET_OTHER : TARGET_FILES;
    }
    closedir(dir);
    return found;
}

static tsr_status check_target(tsr_session *s, const char *path, bool replace)
{
    struct place at = PLACE_NONE;
    enum target found = look_at(path);
    at.file = str_of(path);
    if (found == TARGET_ABSENT || found == TARGET_EMPTY || (found == TARGET_FILES && replace))
        return TSR_OK;
    if (found == TARGET_OTHER)
        tsr__diag(s, DIAG_output_exists, &at, "choose another name",
                  "'%s' exists and is not a folder of files alone, so it is not replaced", path);
    else
        tsr__diag(s, DIAG_output_exists, &at,
                  "choose another name, or let it be replaced (--force)", "'%s' exists", path);
    return TSR_WRITE;
}

static void sweep_parent(const struct outfolder *o)
{
    int parent = tsr__path_open_parent(o->path);
    if (parent < 0)
        return;
    tsr__temporary_sweep(parent, TEMPORARY_PREFIX);
    close(parent);
}

// Folders that killed processes have left beside the target go first.
static tsr_status make_sibling(struct outfolder *o)
{
    char name[TEMPORARY_NAME];
    sweep_parent(o);
    for (int i = 0; i < NAME_TRIES; i++) {
        tsr__path_draw(name);
        o->temporary = sibling(o->session, o->path, name);
        if (!o->temporary)
            return TSR_NOMEM;
        if (tsr__fault(o->session, FAULT_WRITE))
            errno = EIO;
        else if (mkdir(o->temporary, 0777) == 0) {
            o->fd = tsr__fd_above(open(o->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            if (o->fd >= 0)
                o->note = tsr__temporary_note(o->session, o->temporary, o->fd);
            return TSR_OK;
        }
        int error = errno;
        tsr__path_free(o->session, &o->temporary);
        if (error != EEXIST)
            return tsr__refuse_write(o->session, o->path, error);
    }
    return tsr__refuse_write(o->session, o->path, EEXIST);
}

static void release_folder(struct outfolder *o)
{
    tsr__temporary_forget(o->note);
    o->note = NULL;
    if (o->fd > 0)
        close(o->fd);
    o->fd = -1;
    tsr__path_free(o->session, &o->temporary);
    tsr__path_free(o->session, &o->path);
}

tsr_status tsr__outfolder_open(tsr_session *s, const char *path, bool replace,
                               struct outfolder *out)
{
    struct outfolder o = {.session = s, .replace = replace};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--; // "parts/" is "parts"
    o.path = tsr__path_copy(s, path, n);
    if (!o.path)
        return TSR_NOMEM;
    const char *name = tsr__path_name(o.path);
    tsr_status status = TSR_OK;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        status = tsr__refuse_write(s, path, EINVAL);
    if (status == TSR_OK)
        status = check_target(s, o.path, replace);
    if (status == TSR_OK)
        status = make_sibling(&o);
    if (status != TSR_OK) {
        release_folder(&o);
        return status;
    }
    *out = o;
    return TSR_OK;
}

struct str tsr__outfolder_path(struct outfolder *o, struct arena *a, const char *name)
{
    return tsr__arena_printf(a, "%s/%s", o->temporary, name);
}

// One step after the other; on failure the old folder is put back.
static bool replace_by_steps(struct outfolder *o, const char *old)
{
    if (rename(o->path, old) != 0)
        return false;
    if (rename(o->temporary, o->path) == 0)
        return true;
    int error = errno;
    rename(old, o->path);
    errno = error;
    return false;
}

// Before the old folder goes, the new one is on disk, large files included.
static void sync_all(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    syncfs(fd);
    close(fd);
}

tsr_status tsr__outfolder_replace(struct outfolder *o, bool use_kernel)
{
    sync_all(o->temporary);
    if (use_kernel && renameat2(AT_FDCWD, o->temporary, AT_FDCWD, o->path, RENAME_EXCHANGE) == 0) {
        tsr__folder_remove(o->temporary); // now the old one
        return TSR_OK;
    }
    if (use_kernel && errno != ENOSYS && errno != EINVAL)
        return tsr__refuse_write(o->session, o->path, errno);
    char name[TEMPORARY_NAME];
    tsr__path_draw(name);
    char *old = sibling(o->session, o->path, name);
    if (!old)
        return TSR_NOMEM;
    tsr_status status =
        replace_by_steps(o, old) ? TSR_OK : tsr__refuse_write(o->session, o->path, errno);
    if (status == TSR_OK)
        tsr__folder_remove(old);
    tsr__path_free(o->session, &old);
    return status;
}

static tsr_status place_folder(struct outfolder *o)
{
    if (tsr__fault(o->session, FAULT_WRITE))
        return tsr__refuse_write(o->session, o->path, EIO);
    tsr_status status = check_target(o->session, o->path, o->replace); // others may have been here
    if (status != TSR_OK)
        return status;
    if (rename(o->temporary, o->path) == 0) // takes the place of nothing, or of an empty folder
        return TSR_OK;
    if (o->replace && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR))
        return tsr__outfolder_replace(o, true);
    return tsr__refuse_write(o->session, o->path, errno);
}

tsr_status tsr__outfolder_commit(struct outfolder *o)
{
    if (!o->path)
        return TSR_USAGE;
    tsr_status status = place_folder(o);
    if (status != TSR_OK) {
        tsr__outfolder_abort(o);
        return status;
    }
    int parent = tsr__path_open_parent(o->path);
    if (parent >= 0) {
        fsync(parent);
        close(parent);
    }
    release_folder(o);
    return TSR_OK;
}

void tsr__outfolder_abort(struct outfolder *o)
{
    if (!o->path)
        return;
    if (o->temporary)
        tsr__folder_remove(o->temporary);
    release_folder(o);
}

void tsr__folder_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0)
            close(fd);
        else if (errno == ELOOP || errno == ENOTDIR)
            unlink(path); // a link in place of a folder: what it leads to is not ours
        return;
    }
    for (struct dirent *e; (e = readdir(dir));)
        unlinkat(dirfd(dir), e->d_name, 0); // folders stay, and with them this one
    closedir(dir);
    rmdir(path);
}
