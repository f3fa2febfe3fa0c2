// SPDX-License-Identifier: Apache-2.0
// publish.c - files and folders that appear whole or not at all.
//
// Everything is written under a temporary name beside its target and renamed when complete and on
// disk. Names of temporaries never come from a model; they are made exclusively and follow no link.
#include "base/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUT_BUFFER     ((size_t)1 << 20)
#define COPY_LEAST     ((uint64_t)64 << 10) // smaller pieces go through the buffer
#define COPY_MOST      ((uint64_t)1 << 30)  // of one call
#define NAME_TRIES     100
#define TEMPORARY_NAME 32

// ---- findings -----------------------------------------------------------------------------------

static const char *remedy(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "free space there or choose another place";
    case EACCES:
    case EPERM:
    case EROFS:
        return "choose a place that may be written";
    case ENOENT:
    case ENOTDIR:
        return "make the folder first";
    default:
        return NULL;
    }
}

static tsr_status refuse(tsr_session *s, const char *path, int error)
{
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr__diag(s, DIAG_io_write, &at, remedy(error), "cannot write '%s': %s", path, strerror(error));
    return TSR_WRITE;
}

static void fail(struct outfile *o, tsr_status status)
{
    o->failed = true;
    o->status = status;
}

static void fail_write(struct outfile *o, int error)
{
    fail(o, refuse(o->session, o->path, error));
}

// ---- names --------------------------------------------------------------------------------------

static char *copy_path(tsr_session *s, const char *path, size_t n)
{
    char *p = tsr__alloc(s, n + 1);
    if (p) {
        memcpy(p, path, n);
        p[n] = 0;
    }
    return p;
}

static void free_path(tsr_session *s, char **path)
{
    if (*path)
        tsr__free(s, *path, strlen(*path) + 1);
    *path = NULL;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void draw_name(char out[TEMPORARY_NAME])
{
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn)
        drawn = (uint64_t)getpid() << 32 ^ (uintptr_t)out; // exclusive creation finds a free one
    snprintf(out, TEMPORARY_NAME, ".tessera-%016llx", (unsigned long long)drawn);
}

// A path in the same folder as `path`, with another last name.
static char *sibling(tsr_session *s, const char *path, const char *name)
{
    size_t folder = (size_t)(base_name(path) - path), n = folder + strlen(name);
    char *p = copy_path(s, path, folder);
    char *q = p ? tsr__realloc(s, p, folder + 1, n + 1) : NULL;
    if (p && !q)
        tsr__free(s, p, folder + 1);
    if (q)
        memcpy(q + folder, name, n - folder + 1);
    return q;
}

static int open_folder_of(const char *path)
{
    char folder[PATH_MAX];
    size_t n = (size_t)(base_name(path) - path);
    if (n >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(folder, path, n);
    folder[n] = 0;
    return tsr__fd_above(open(n ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// ---- one file -----------------------------------------------------------------------------------

// Pipes and devices (-o /dev/null, /dev/stdout) cannot be replaced and are written to as they are.
// A link in /dev or /proc is one of these too, wherever it leads.
static bool is_special(const char *path)
{
    struct stat st;
    bool system = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    if (system && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return true;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static int create_temporary(struct outfile *o)
{
    char name[TEMPORARY_NAME];
    for (int i = 0; i < NAME_TRIES; i++) {
        draw_name(name);
        int fd =
            openat(o->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return -1;
        o->temporary = copy_path(o->session, name, strlen(name));
        if (!o->temporary) {
            unlinkat(o->dir_fd, name, 0);
            close(fd);
            errno = 0; // the finding is there
            return -1;
        }
        return tsr__fd_above(fd);
    }
    return -1;
}

static int open_target(struct outfile *o)
{
    struct stat st;
    if (tsr__fault(o->session, FAULT_WRITE)) {
        errno = EIO;
        return -1;
    }
    if (!*o->path) {
        errno = ENOENT;
        return -1;
    }
    if (is_special(o->path))
        return tsr__fd_above(open(o->path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
    o->dir_fd = open_folder_of(o->path);
    if (o->dir_fd < 0)
        return -1;
    const char *name = base_name(o->path);
    bool folder =
        !*name || (fstatat(o->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode));
    if (folder) {
        errno = EISDIR;
        return -1;
    }
    return create_temporary(o);
}

static void release(struct outfile *o)
{
    if (o->fd > 0)
        close(o->fd);
    if (o->dir_fd > 0)
        close(o->dir_fd);
    free_path(o->session, &o->temporary);
    free_path(o->session, &o->path);
    tsr__free(o->session, o->buffer, OUT_BUFFER);
    *o = (struct outfile){
        .session = o->session, .fd = -1, .dir_fd = -1, .failed = true, .status = TSR_USAGE};
}

tsr_status tsr__out_open(tsr_session *s, const char *path, struct outfile *out)
{
    struct outfile o = {.session = s, .fd = -1, .dir_fd = -1};
    tsr_status status = TSR_NOMEM;
    o.path = copy_path(s, path, strlen(path));
    o.buffer = o.path ? tsr__alloc(s, OUT_BUFFER) : NULL;
    if (!o.buffer)
        goto failed;
    o.fd = open_target(&o);
    if (o.fd < 0) {
        status = errno == 0 ? TSR_NOMEM : refuse(s, path, errno);
        goto failed;
    }
    *out = o;
    return TSR_OK;

failed:
    if (o.temporary)
        unlinkat(o.dir_fd, o.temporary, 0);
    release(&o);
    return status;
}

static bool write_all(struct outfile *o, const char *p, size_t n)
{
    while (n > 0 && !o->failed) {
        ssize_t done = tsr__fault(o->session, FAULT_WRITE) ? (errno = EIO, -1) : write(o->fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail_write(o, errno);
            break;
        }
        p += done;
        n -= (size_t)done;
    }
    return !o->failed;
}

static bool flush(struct outfile *o)
{
    size_t n = o->n;
    o->n = 0;
    return !o->failed && write_all(o, o->buffer, n);
}

void tsr__out_write(struct outfile *o, const void *p, size_t n)
{
    if (o->failed || n == 0)
        return;
    if (o->digest)
        tsr__sha256_add(o->digest, p, n);
    o->offset += n;
    if (n > OUT_BUFFER - o->n && !flush(o))
        return;
    if (n >= OUT_BUFFER) {
        write_all(o, p, n);
        return;
    }
    memcpy(o->buffer + o->n, p, n);
    o->n += n;
}

static void fail_source(struct outfile *o, int fd, uint64_t at, const char *why)
{
    char link[64], name[PATH_MAX] = "its source";
    struct place place = PLACE_NONE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n > 0)
        name[n] = 0;
    place.file = str_of(name);
    place.offset = at;
    tsr__diag(o->session, DIAG_io_read, &place, NULL, "cannot read '%s' for '%s': %s", name,
              o->path, why);
    fail(o, TSR_IO);
}

// Inside the kernel as far as it goes; what it did not take is left to the caller.
static uint64_t copy_in_kernel(struct outfile *o, int fd, uint64_t offset, uint64_t length)
{
    uint64_t done = 0;
    if (!flush(o))
        return 0;
    while (done < length) {
        if (tsr__fault(o->session, FAULT_WRITE)) {
            fail_write(o, EIO);
            break;
        }
        uint64_t left = length - done;
        off_t from = (off_t)(offset + done);
        ssize_t n = copy_file_range(fd, &from, o->fd, NULL, left < COPY_MOST ? left : COPY_MOST, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            fail_write(o, errno);
        if (n <= 0)
            break; // other systems, other files: reading and writing decides what is wrong
        done += (uint64_t)n;
    }
    return done;
}

void tsr__out_copy(struct outfile *o, int fd, uint64_t offset, uint64_t length)
{
    uint64_t end;
    if (o->failed || length == 0)
        return;
    if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX) {
        fail_source(o, fd, offset, "it is shorter than was said");
        return;
    }
    if (!o->digest && length >= COPY_LEAST) {
        uint64_t done = copy_in_kernel(o, fd, offset, length);
        o->offset += done;
        offset += done;
    }
    while (offset < end && !o->failed) {
        if (o->n == OUT_BUFFER && !flush(o))
            return;
        size_t room = OUT_BUFFER - o->n, want = end - offset < room ? (size_t)(end - offset) : room;
        ssize_t n = tsr__fault(o->session, FAULT_READ)
                        ? (errno = EIO, -1)
                        : pread(fd, o->buffer + o->n, want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fail_source(o, fd, offset, n < 0 ? strerror(errno) : "it ends early");
            return;
        }
        if (o->digest)
            tsr__sha256_add(o->digest, o->buffer + o->n, (size_t)n);
        o->n += (size_t)n;
        o->offset += (uint64_t)n;
        offset += (uint64_t)n;
    }
}

void tsr__out_pad(struct outfile *o, size_t align)
{
    static const char zeros[4096];
    size_t left = align ? (size_t)((align - o->offset % align) % align) : 0;
    while (left > 0 && !o->failed) {
        size_t n = left < sizeof zeros ? left : sizeof zeros;
        tsr__out_write(o, zeros, n);
        left -= n;
    }
}

tsr_status tsr__out_commit(struct outfile *o)
{
    if (!o->path)
        return o->status;
    flush(o);
    // Pipes and devices know no fsync; for files it is what makes the rename safe.
    if (!o->failed && o->temporary &&
        (tsr__fault(o->session, FAULT_WRITE) ? (errno = EIO, true) : fsync(o->fd) != 0))
        fail_write(o, errno);
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) != 0 && !o->failed && errno != EINTR)
        fail_write(o, errno);
    if (!o->failed && o->temporary &&
        (tsr__fault(o->session, FAULT_WRITE)
             ? (errno = EIO, true)
             : renameat(o->dir_fd, o->temporary, o->dir_fd, base_name(o->path)) != 0))
        fail_write(o, errno);
    tsr_status status = o->failed ? o->status : TSR_OK;
    if (o->failed) {
        tsr__out_abort(o);
        return status;
    }
    if (o->temporary)
        fsync(o->dir_fd); // the file is in place; not every file system can do this
    release(o);
    return TSR_OK;
}

void tsr__out_abort(struct outfile *o)
{
    if (!o->path)
        return;
    if (o->temporary)
        unlinkat(o->dir_fd, o->temporary, 0);
    release(o);
}

// ---- a folder -----------------------------------------------------------------------------------

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
        tsr__diag(s, DIAG_output_exists, &at, "choose another name, or ask for it to be replaced",
                  "'%s' exists", path);
    return TSR_WRITE;
}

static tsr_status make_sibling(struct outfolder *o)
{
    char name[TEMPORARY_NAME];
    for (int i = 0; i < NAME_TRIES; i++) {
        draw_name(name);
        o->temporary = sibling(o->session, o->path, name);
        if (!o->temporary)
            return TSR_NOMEM;
        if (tsr__fault(o->session, FAULT_WRITE))
            errno = EIO;
        else if (mkdir(o->temporary, 0777) == 0)
            return TSR_OK;
        int error = errno;
        free_path(o->session, &o->temporary);
        if (error != EEXIST)
            return refuse(o->session, o->path, error);
    }
    return refuse(o->session, o->path, EEXIST);
}

static void release_folder(struct outfolder *o)
{
    free_path(o->session, &o->temporary);
    free_path(o->session, &o->path);
}

tsr_status tsr__outfolder_open(tsr_session *s, const char *path, bool replace,
                               struct outfolder *out)
{
    struct outfolder o = {.session = s, .replace = replace};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--; // "parts/" is "parts"
    o.path = copy_path(s, path, n);
    if (!o.path)
        return TSR_NOMEM;
    const char *name = base_name(o.path);
    tsr_status status = TSR_OK;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        status = refuse(s, path, EINVAL);
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

static void sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd); // as far as the file system can
    close(fd);
}

// Puts the new folder in the place of the old one, which goes to `old`; in two steps where the
// kernel or the file system cannot exchange.
static bool replace_by_steps(struct outfolder *o, const char *old)
{
    if (rename(o->path, old) != 0)
        return false;
    if (rename(o->temporary, o->path) == 0)
        return true;
    int error = errno;
    rename(old, o->path); // back, as far as possible
    errno = error;
    return false;
}

static tsr_status replace_folder(struct outfolder *o)
{
    if (renameat2(AT_FDCWD, o->temporary, AT_FDCWD, o->path, RENAME_EXCHANGE) == 0) {
        tsr__folder_remove(o->temporary); // now the old one
        return TSR_OK;
    }
    if (errno != ENOSYS && errno != EINVAL)
        return refuse(o->session, o->path, errno);
    char name[TEMPORARY_NAME];
    draw_name(name);
    char *old = sibling(o->session, o->path, name);
    if (!old)
        return TSR_NOMEM;
    tsr_status status = replace_by_steps(o, old) ? TSR_OK : refuse(o->session, o->path, errno);
    if (status == TSR_OK)
        tsr__folder_remove(old);
    free_path(o->session, &old);
    return status;
}

static tsr_status place_folder(struct outfolder *o)
{
    if (tsr__fault(o->session, FAULT_WRITE))
        return refuse(o->session, o->path, EIO);
    sync_folder(o->temporary);
    tsr_status status = check_target(o->session, o->path, o->replace); // others may have been here
    if (status != TSR_OK)
        return status;
    if (rename(o->temporary, o->path) == 0) // takes the place of nothing, or of an empty folder
        return TSR_OK;
    if (o->replace && (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR))
        return replace_folder(o);
    return refuse(o->session, o->path, errno);
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
    int parent = open_folder_of(o->path);
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
