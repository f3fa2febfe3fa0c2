// SPDX-License-Identifier: Apache-2.0
// outfile.c - output files that appear complete or not at all.
//
//     Example: the output `dir/m.onnx` is created as `dir/.tessera-4711-9f3c...` (exclusively,
//     following no link), registered for signal handlers and locked. It is written through a buffer
//     of 1 MiB, or copied from other files inside the kernel. The commit flushes the buffer and
//     calls fsync, close, rename to `dir/m.onnx`, and fsync of the folder. After an abort or a
//     failure the temporary file is removed and an old m.onnx is unchanged.
#include "base/internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define OUT_BUFFER ((size_t)1 << 20)
#define COPY_LEAST ((uint64_t)64 << 10) // smaller pieces go through the buffer
#define COPY_MOST  ((int64_t)1 << 30)   // bytes per call
#define SYNC_LEAST ((uint64_t)64 << 20) // smaller files are always synced
#define NAME_TRIES 100

// ---- diagnostics -------------------------------------------------------------------------------

// Returns a hint for an errno of writing, or NULL.
static const char *hint_for(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "free space on the disk or choose another path";
    case EACCES:
    case EPERM:
    case EROFS:
        return "choose a path that is writable";
    case ENOENT:
    case ENOTDIR:
        return "create the folder first";
    default:
        return NULL;
    }
}

tsr_status tsr__refuse_write(tsr_session *session, const char *path, int error)
{
    return tsr__fail(session, TSR_WRITE, DIAG_io_write, &PLACE(.file = str_of(path)),
                     hint_for(error), "cannot write '%s': %s", path, strerror(error));
}

// Records the first failure. Later operations return early, so this is called once.
static void fail(struct outfile *outfile, tsr_status status)
{
    outfile->failed = true;
    outfile->status = status;
}

static void fail_write(struct outfile *outfile, int error)
{
    fail(outfile, tsr__refuse_write(outfile->session, outfile->path, error));
}

// ---- names -------------------------------------------------------------------------------------

char *tsr__path_copy(tsr_session *session, const char *path, size_t n)
{
    char *p = tsr__alloc(session, n + 1);
    if (p) {
        memcpy(p, path, n);
        p[n] = 0;
    }
    return p;
}

void tsr__path_free(tsr_session *session, char **path)
{
    if (*path)
        tsr__free(session, *path, strlen(*path) + 1);
    *path = NULL;
}

void tsr__path_draw(char out[TEMPORARY_NAME])
{
    uint64_t drawn = 0;
    if (!tsr__kernel_random(&drawn, sizeof drawn))
        drawn = (uint64_t)getpid() << 32 ^ (uintptr_t)out; // need not be secret
    snprintf(out, TEMPORARY_NAME, TEMPORARY_PREFIX "%d-%012llx", (int)getpid(),
             (unsigned long long)(drawn >> 16));
}

// Opens the folder of the path: "." for "m.onnx", "/" for "/m.onnx".
int tsr__path_open_parent(const char *path, int flags)
{
    char folder[PATH_MAX];
    size_t n = (size_t)(path_name(path) - path);
    if (n >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(folder, path, n);
    folder[n] = 0;
    if (n == 0)
        memcpy(folder, ".", sizeof ".");
    return tsr__fd_above(open(folder, flags | O_DIRECTORY | O_CLOEXEC));
}

// ---- one file ----------------------------------------------------------------------------------

// True if the path is written directly: pipes and devices (-o /dev/null, /dev/stdout). Links in
// /dev and /proc are treated as devices.
static bool is_special(const char *path)
{
    struct stat st;
    bool system = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    if (system && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        return true;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

// True if the folder of the output is itself a temporary one.
static bool in_temporary(const struct outfile *outfile)
{
    const char *name = path_name(outfile->path);
    const char *found = strstr(outfile->path, "/" TEMPORARY_PREFIX);
    return found && found < name;
}

// Registers the file for removal, unless its folder is registered already, because slots are few.
static void note_temporary(struct outfile *outfile, const char *name)
{
    char path[TEMPORARY_PATH];
    int folder = (int)(path_name(outfile->path) - outfile->path);
    int n = snprintf(path, sizeof path, "%.*s%s", folder, outfile->path, name);
    if (n > 0 && (size_t)n < sizeof path && !in_temporary(outfile))
        outfile->note = tsr__temporary_note(outfile->session, path);
}

// Creates the temporary file. Returns -1 with errno set; errno is 0 if its name could not be
// allocated.
static int create_temporary(struct outfile *outfile)
{
    char name[TEMPORARY_NAME];
    // remove files that killed processes have left beside the target
    if (!in_temporary(outfile))
        tsr__temporary_sweep(outfile->dir_fd, TEMPORARY_PREFIX);
    for (int i = 0; i < NAME_TRIES; i++) {
        tsr__path_draw(name);
        int fd =
            openat(outfile->dir_fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return -1;
        if (!in_temporary(outfile) && !tsr__temporary_lock(outfile->dir_fd, name, fd)) {
            unlinkat(outfile->dir_fd, name, 0);
            close(fd);
            errno = EWOULDBLOCK; // in case this was the last try
            continue;
        }
        outfile->temporary = tsr__path_copy(outfile->session, name, strlen(name));
        if (!outfile->temporary) {
            unlinkat(outfile->dir_fd, name, 0);
            close(fd);
            errno = 0; // already reported
            return -1;
        }
        fd = tsr__fd_above(fd);
        note_temporary(outfile, name);
        return fd;
    }
    return -1;
}

// Opens the temporary file, or a pipe or device directly. A folder is rejected here, before
// anything is written.
static int open_target(struct outfile *outfile)
{
    struct stat st;
    if (fault_io(outfile->session, FAULT_WRITE))
        return -1;
    if (!*outfile->path) {
        errno = ENOENT;
        return -1;
    }
    if (is_special(outfile->path))
        return tsr__fd_above(open(outfile->path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
    outfile->dir_fd = tsr__path_open_parent(outfile->path, O_RDONLY);
    if (outfile->dir_fd < 0)
        return -1;
    const char *name = path_name(outfile->path);
    bool folder = !*name || (fstatat(outfile->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                             S_ISDIR(st.st_mode));
    if (folder) {
        errno = EISDIR;
        return -1;
    }
    return create_temporary(outfile);
}

// Closes and frees everything, and resets the struct, so that later commits and aborts do nothing.
static void release(struct outfile *outfile)
{
    tsr__temporary_forget(outfile->note);
    if (outfile->fd > 0)
        close(outfile->fd);
    if (outfile->dir_fd > 0)
        close(outfile->dir_fd);
    tsr__path_free(outfile->session, &outfile->temporary);
    tsr__path_free(outfile->session, &outfile->path);
    tsr__free(outfile->session, outfile->buffer, OUT_BUFFER);
    *outfile = (struct outfile){
        .session = outfile->session, .fd = -1, .dir_fd = -1, .failed = true, .status = TSR_USAGE};
}

// Opens an output file. Creating the temporary file is the last step that can fail.
tsr_status tsr__out_open(tsr_session *session, const char *path, struct outfile *out)
{
    struct outfile outfile = {.session = session, .fd = -1, .dir_fd = -1};
    tsr_status status = TSR_NOMEM;
    outfile.path = tsr__path_copy(session, path, strlen(path));
    if (!outfile.path)
        goto failed;
    outfile.buffer = tsr__alloc(session, OUT_BUFFER);
    if (!outfile.buffer)
        goto failed;
    outfile.fd = open_target(&outfile);
    if (outfile.fd < 0) {
        if (errno != 0)
            status = tsr__refuse_write(session, path, errno);
        goto failed;
    }
    *out = outfile;
    return TSR_OK;

failed:
    if (outfile.temporary)
        unlinkat(outfile.dir_fd, outfile.temporary, 0);
    release(&outfile);
    return status;
}

// Writes bytes to the file and continues after partial writes. Returns false if this or an earlier
// write failed.
static bool write_all(struct outfile *outfile, const char *p, size_t n)
{
    while (n > 0 && !outfile->failed) {
        ssize_t done = fault_io(outfile->session, FAULT_WRITE) ? -1 : write(outfile->fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail_write(outfile, errno);
            break;
        }
        p += done;
        n -= (size_t)done;
    }
    return !outfile->failed;
}

// Writes the buffer. It is empty afterwards, even after a failure.
static bool flush(struct outfile *outfile)
{
    size_t n = outfile->n;
    outfile->n = 0;
    return !outfile->failed && write_all(outfile, outfile->buffer, n);
}

// Adds bytes to the output. Flushes the buffer first if the data does not fit.
void tsr__out_write(struct outfile *outfile, const void *p, size_t n)
{
    if (outfile->failed || n == 0)
        return;
    if (outfile->digest)
        tsr__sha256_add(outfile->digest, p, n);
    outfile->offset += n;
    if (n > OUT_BUFFER - outfile->n && !flush(outfile))
        return;
    // the data is not smaller than the buffer, which is empty now
    if (n >= OUT_BUFFER) {
        write_all(outfile, p, n);
        return;
    }
    memcpy(outfile->buffer + outfile->n, p, n);
    outfile->n += n;
}

#define GATHER_MOST 256 // pieces per call; systems accept at least 1024

// Writes several pieces by writev. After a partial write, writes the rest of the interrupted piece
// alone and continues.
static void gather_all(struct outfile *outfile, const struct str *pieces, size_t n)
{
    while (n > 0 && !outfile->failed) {
        struct iovec iovec[GATHER_MOST];
        size_t count = size_min(n, GATHER_MOST);
        for (size_t i = 0; i < count; i++)
            iovec[i] = (struct iovec){(void *)(uintptr_t)pieces[i].p, pieces[i].n};
        ssize_t done = -1;
        if (!fault_io(outfile->session, FAULT_WRITE))
            done = writev(outfile->fd, iovec, (int)count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail_write(outfile, errno);
            return;
        }
        for (; n > 0 && (size_t)done >= pieces->n; pieces++, n--)
            done -= (ssize_t)pieces->n;
        if (n > 0 && done > 0) {
            write_all(outfile, pieces->p + done, pieces->n - (size_t)done);
            pieces++, n--;
        }
    }
}

void tsr__out_gather(struct outfile *outfile, const struct str *pieces, size_t n)
{
    if (outfile->failed || !flush(outfile))
        return;
    for (size_t i = 0; i < n; i++) {
        if (outfile->digest)
            tsr__sha256_add(outfile->digest, pieces[i].p, pieces[i].n);
        outfile->offset += pieces[i].n;
    }
    gather_all(outfile, pieces, n);
}

uint64_t tsr__out_flushed(const struct outfile *outfile)
{
    return outfile->offset - outfile->n;
}

// Reports a failed read of a source file; its name is looked up in /proc/self/fd.
static void fail_source(struct outfile *outfile, int fd, uint64_t at, const char *why)
{
    char link[64], name[PATH_MAX] = "its source";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n > 0)
        name[n] = 0;
    struct place place = PLACE(.file = str_of(name));
    place.offset = at;
    tsr__diag(outfile->session, DIAG_io_read, &place, NULL, "cannot read '%s' for '%s': %s", name,
              outfile->path, why);
    fail(outfile, TSR_IO);
}

// Returns the number of bytes that copy_file_range has copied; the caller copies the rest. The file
// system may share blocks instead of copying them.
static uint64_t copy_in_kernel(struct outfile *outfile, int fd, uint64_t offset, uint64_t length)
{
    uint64_t done = 0;
    if (!flush(outfile))
        return 0;
    while (done < length) {
        if (tsr__fault(outfile->session, FAULT_WRITE)) {
            fail_write(outfile, EIO);
            break;
        }
        size_t some = (size_t)int64_min((int64_t)(length - done), COPY_MOST);
        off_t from = (off_t)(offset + done);
        ssize_t n = tsr__kernel_copy(fd, &from, outfile->fd, some);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            fail_write(outfile, errno);
        if (n <= 0)
            break; // not supported, or an error that reading or writing will report
        done += (uint64_t)n;
    }
    return done;
}

// Copies large ranges inside the kernel, unless a digest is needed. The rest is read into the free
// part of the buffer.
void tsr__out_copy(struct outfile *outfile, int fd, uint64_t offset, uint64_t length)
{
    uint64_t end;
    if (outfile->failed || length == 0)
        return;
    if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX) {
        fail_source(outfile, fd, offset, "the file is shorter than expected");
        return;
    }
    uint64_t least = outfile->copy_least ? outfile->copy_least : COPY_LEAST;
    if (!outfile->digest && length >= least) {
        uint64_t done = copy_in_kernel(outfile, fd, offset, length);
        outfile->offset += done;
        offset += done;
    }
    while (offset < end && !outfile->failed) {
        if (outfile->n == OUT_BUFFER && !flush(outfile))
            return;
        size_t want =
            (size_t)int64_min((int64_t)(end - offset), (int64_t)(OUT_BUFFER - outfile->n));
        ssize_t n = -1;
        if (!fault_io(outfile->session, FAULT_READ))
            n = pread(fd, outfile->buffer + outfile->n, want, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            fail_source(outfile, fd, offset, strerror(errno));
            return;
        }
        if (n == 0) {
            fail_source(outfile, fd, offset, "the file is shorter than expected");
            return;
        }
        if (outfile->digest)
            tsr__sha256_add(outfile->digest, outfile->buffer + outfile->n, (size_t)n);
        outfile->n += (size_t)n;
        outfile->offset += (uint64_t)n;
        offset += (uint64_t)n;
    }
}

// True if the output must still be there after a power failure.
static bool is_durable(const struct outfile *outfile)
{
    return outfile->temporary && !tsr__is_temporary(outfile->session, outfile->path);
}

// True if the file must be synced before it is renamed. fsync makes the rename safe against a power
// failure. Small files and files that replace a target are always synced. Large new files are not,
// which doubles the speed. After a power failure the command can write them again.
static bool must_sync(const struct outfile *outfile)
{
    struct stat st;
    return is_durable(outfile) &&
           (outfile->offset <= SYNC_LEAST ||
            fstatat(outfile->dir_fd, path_name(outfile->path), &st, AT_SYMLINK_NOFOLLOW) == 0);
}

// Flushes, syncs, closes and renames the output file. After a failure it is only closed.
static void publish(struct outfile *outfile)
{
    flush(outfile);
    if (!outfile->failed && must_sync(outfile) &&
        (fault_io(outfile->session, FAULT_WRITE) || fsync(outfile->fd) != 0))
        fail_write(outfile, errno);
    int fd = outfile->fd;
    outfile->fd = -1;
    // Network file systems may report failed writes only here.
    if (close(fd) != 0 && !outfile->failed && errno != EINTR)
        fail_write(outfile, errno);
    if (outfile->failed || !outfile->temporary)
        return;
    if (fault_io(outfile->session, FAULT_WRITE) ||
        renameat(outfile->dir_fd, outfile->temporary, outfile->dir_fd, path_name(outfile->path)) !=
            0)
        fail_write(outfile, errno);
}

// Publishes the output file under its name. If the session has run out of memory, the output may be
// incomplete and is not published.
tsr_status tsr__out_commit(struct outfile *outfile)
{
    if (!outfile->path)
        return outfile->status;
    if (outfile->session->out_of_memory && !outfile->failed)
        fail(outfile, TSR_NOMEM);
    publish(outfile);
    if (outfile->failed) {
        tsr_status status = outfile->status;
        tsr__out_abort(outfile);
        return status;
    }
    if (is_durable(outfile))
        fsync(outfile->dir_fd); // not supported by every file system
    release(outfile);
    return TSR_OK;
}

void tsr__out_abort(struct outfile *outfile)
{
    if (!outfile->path)
        return;
    if (outfile->temporary)
        unlinkat(outfile->dir_fd, outfile->temporary, 0);
    release(outfile);
}
