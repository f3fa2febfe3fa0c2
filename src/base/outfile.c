// SPDX-License-Identifier: Apache-2.0
// outfile.c - files that appear whole or not at all.
//
// Everything is written under a temporary name beside its target and renamed when complete and on
// disk. Names of temporaries never come from a model; they are made exclusively and follow no link.
#include "base/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define OUT_BUFFER ((size_t)1 << 20)
#define COPY_LEAST ((uint64_t)64 << 10) // smaller pieces go through the buffer
#define COPY_MOST  ((uint64_t)1 << 30)  // of one call
#define SYNC_LEAST ((uint64_t)64 << 20) // smaller files are always waited for
#define NAME_TRIES 100

// ---- findings ----------------------------------------------------------------------------------

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

tsr_status tsr__refuse_write(tsr_session *s, const char *path, int error)
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
    fail(o, tsr__refuse_write(o->session, o->path, error));
}

// ---- names -------------------------------------------------------------------------------------

char *tsr__path_copy(tsr_session *s, const char *path, size_t n)
{
    char *p = tsr__alloc(s, n + 1);
    if (p) {
        memcpy(p, path, n);
        p[n] = 0;
    }
    return p;
}

void tsr__path_free(tsr_session *s, char **path)
{
    if (*path)
        tsr__free(s, *path, strlen(*path) + 1);
    *path = NULL;
}

const char *tsr__path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void tsr__path_draw(char out[TEMPORARY_NAME])
{
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn)
        drawn = (uint64_t)getpid() << 32 ^ (uintptr_t)out; // exclusive creation finds a free one
    snprintf(out, TEMPORARY_NAME, TEMPORARY_PREFIX "%d-%012llx", (int)getpid(),
             (unsigned long long)(drawn >> 16));
}

int tsr__path_open_parent(const char *path)
{
    char folder[PATH_MAX];
    size_t n = (size_t)(tsr__path_name(path) - path);
    if (n >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(folder, path, n);
    folder[n] = 0;
    return tsr__fd_above(open(n ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// ---- one file ----------------------------------------------------------------------------------

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

// The folder of o->path is itself a temporary one: it goes as a whole.
static bool in_temporary(const struct outfile *o)
{
    const char *name = tsr__path_name(o->path);
    const char *found = strstr(o->path, "/" TEMPORARY_PREFIX);
    return found && found < name;
}

static void note_temporary(struct outfile *o, const char *name, int fd)
{
    char path[TEMPORARY_PATH];
    int folder = (int)(tsr__path_name(o->path) - o->path);
    int n = snprintf(path, sizeof path, "%.*s%s", folder, o->path, name);
    if (n > 0 && (size_t)n < sizeof path && !in_temporary(o))
        o->note = tsr__temporary_note(o->session, path, fd);
}

static int create_temporary(struct outfile *o)
{
    char name[TEMPORARY_NAME];
    if (!in_temporary(o))
        tsr__temporary_sweep(o->dir_fd, TEMPORARY_PREFIX);
    for (int i = 0; i < NAME_TRIES; i++) {
        tsr__path_draw(name);
        int fd = openat(o->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return -1;
        o->temporary = tsr__path_copy(o->session, name, strlen(name));
        if (!o->temporary) {
            unlinkat(o->dir_fd, name, 0);
            close(fd);
            errno = 0; // the finding is there
            return -1;
        }
        fd = tsr__fd_above(fd);
        note_temporary(o, name, fd);
        return fd;
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
    o->dir_fd = tsr__path_open_parent(o->path);
    if (o->dir_fd < 0)
        return -1;
    const char *name = tsr__path_name(o->path);
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
    tsr__temporary_forget(o->note);
    if (o->fd > 0)
        close(o->fd);
    if (o->dir_fd > 0)
        close(o->dir_fd);
    tsr__path_free(o->session, &o->temporary);
    tsr__path_free(o->session, &o->path);
    tsr__free(o->session, o->buffer, OUT_BUFFER);
    *o = (struct outfile){
        .session = o->session, .fd = -1, .dir_fd = -1, .failed = true, .status = TSR_USAGE};
}

tsr_status tsr__out_open(tsr_session *s, const char *path, struct outfile *out)
{
    struct outfile o = {.session = s, .fd = -1, .dir_fd = -1};
    tsr_status status = TSR_NOMEM;
    o.path = tsr__path_copy(s, path, strlen(path));
    o.buffer = o.path ? tsr__alloc(s, OUT_BUFFER) : NULL;
    if (!o.buffer)
        goto failed;
    o.fd = open_target(&o);
    if (o.fd < 0) {
        status = errno == 0 ? TSR_NOMEM : tsr__refuse_write(s, path, errno);
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

#define GATHER_MOST 1024 // pieces of one call: what Linux takes

// Writes n pieces, of which a call may take only some: what is left of the first goes by write.
static void gather_all(struct outfile *o, const struct iovec *v, int n)
{
    while (n > 0 && !o->failed) {
        ssize_t done = tsr__fault(o->session, FAULT_WRITE)
                           ? (errno = EIO, -1)
                           : writev(o->fd, v, n < GATHER_MOST ? n : GATHER_MOST);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail_write(o, errno);
            return;
        }
        for (; n > 0 && (size_t)done >= v->iov_len; v++, n--)
            done -= (ssize_t)v->iov_len;
        if (n > 0 && done > 0) {
            write_all(o, (const char *)v->iov_base + done, v->iov_len - (size_t)done);
            v++, n--;
        }
    }
}

void tsr__out_gather(struct outfile *o, const struct iovec *pieces, int n)
{
    if (o->failed || !flush(o))
        return;
    for (int i = 0; i < n; i++) {
        if (o->digest)
            tsr__sha256_add(o->digest, pieces[i].iov_base, pieces[i].iov_len);
        o->offset += pieces[i].iov_len;
    }
    gather_all(o, pieces, n);
}

uint64_t tsr__out_reached(const struct outfile *o)
{
    return o->offset - o->n;
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
    if (!o->digest && length >= (o->copy_least ? o->copy_least : COPY_LEAST)) {
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

// Waiting for the disk is what makes a rename safe against a power cut: always where there is
// something to lose, an existing target. A large new file is left to the system, which doubles the
// speed; what it was made from is still there. Pipes and devices know no such thing.
static bool must_sync(const struct outfile *o)
{
    struct stat st;
    return o->temporary && (o->offset <= SYNC_LEAST || fstatat(o->dir_fd, tsr__path_name(o->path),
                                                               &st, AT_SYMLINK_NOFOLLOW) == 0);
}

tsr_status tsr__out_commit(struct outfile *o)
{
    if (!o->path)
        return o->status;
    flush(o);
    if (!o->failed && must_sync(o) &&
        (tsr__fault(o->session, FAULT_WRITE) ? (errno = EIO, true) : fsync(o->fd) != 0))
        fail_write(o, errno);
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) != 0 && !o->failed && errno != EINTR)
        fail_write(o, errno);
    if (!o->failed && o->temporary &&
        (tsr__fault(o->session, FAULT_WRITE)
             ? (errno = EIO, true)
             : renameat(o->dir_fd, o->temporary, o->dir_fd, tsr__path_name(o->path)) != 0))
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
