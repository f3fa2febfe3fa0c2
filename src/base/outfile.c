// SPDX-License-Identifier: Apache-2.0
// outfile.c - files that appear whole or not at all.
//
// Everything is written under a temporary name beside its target and renamed when complete and on
// disk. Names of temporaries never come from a model; they are made exclusively and follow no link.
//
// Life of an output `dir/m.onnx`: opened, it is `dir/.tessera-4711-9f3c...` (created exclusively,
// noted for signal handlers, locked); written through a buffer of 1 MiB, or copied from other files
// inside the kernel; committed: buffer flushed, fsync, close, rename over `dir/m.onnx`, fsync of
// the folder. Aborted, or failed at any step, the temporary file is removed and the old m.onnx
// stands as it was. Failure is sticky: after the first, writes do nothing and commit gives its
// status, so callers check once.
#include "base/internal.h"

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
#define COPY_MOST  ((int64_t)1 << 30)   // of one call
#define SYNC_LEAST ((uint64_t)64 << 20) // smaller files are always waited for
#define NAME_TRIES 100

// ---- findings ----------------------------------------------------------------------------------

// NULL: there is nothing better to say than the system's own words.
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

tsr_status tsr__refuse_write(tsr_session *session, const char *path, int error)
{
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr__diag(session, DIAG_io_write, &at, remedy(error), "cannot write '%s': %s", path,
              strerror(error));
    return TSR_WRITE;
}

// Only the first failure is recorded: later calls return before they could fail.
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

const char *tsr__path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash)
        return slash + 1;
    return path;
}

void tsr__path_draw(char out[TEMPORARY_NAME])
{
    uint64_t drawn = 0;
    // Without waiting for the pool of a machine that has just started.
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn)
        drawn = (uint64_t)getpid() << 32 ^ (uintptr_t)out; // exclusive creation finds a free one
    snprintf(out, TEMPORARY_NAME, TEMPORARY_PREFIX "%d-%012llx", (int)getpid(),
             (unsigned long long)(drawn >> 16));
}

// "m.onnx" is in "."; "/m.onnx" in "/", as the slash belongs to what is copied.
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
    if (n == 0)
        memcpy(folder, ".", sizeof ".");
    return tsr__fd_above(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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

// The folder of outfile->path is itself a temporary one: it goes as a whole.
static bool in_temporary(const struct outfile *outfile)
{
    const char *name = tsr__path_name(outfile->path);
    const char *found = strstr(outfile->path, "/" TEMPORARY_PREFIX);
    return found && found < name;
}

// Where the whole folder is temporary (a partition that is being written) its own note suffices:
// slots are few.
static void note_temporary(struct outfile *outfile, const char *name)
{
    char path[TEMPORARY_PATH];
    int folder = (int)(tsr__path_name(outfile->path) - outfile->path);
    int n = snprintf(path, sizeof path, "%.*s%s", folder, outfile->path, name);
    if (n > 0 && (size_t)n < sizeof path && !in_temporary(outfile))
        outfile->note = tsr__temporary_note(outfile->session, path);
}

// Makes the file under a name that nobody has; -1 and errno, which is 0 where the memory for its name was lacking.
static int create_temporary(struct outfile *outfile)
{
    char name[TEMPORARY_NAME];
    // Remains of killed processes beside the target go first, so that they do not gather.
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
            errno = EWOULDBLOCK; // if no other name has more luck
            continue;
        }
        outfile->temporary = tsr__path_copy(outfile->session, name, strlen(name));
        if (!outfile->temporary) {
            unlinkat(outfile->dir_fd, name, 0);
            close(fd);
            errno = 0; // the finding is there
            return -1;
        }
        fd = tsr__fd_above(fd);
        note_temporary(outfile, name);
        return fd;
    }
    return -1;
}

// What is written to: a temporary file beside the target, or a pipe or device itself. A folder is refused here, where
// the rename at the end would fail too late.
static int open_target(struct outfile *outfile)
{
    struct stat st;
    if (fault_io(outfile->session, FAULT_WRITE))
        return -1;
    // An empty name would be the folder itself.
    if (!*outfile->path) {
        errno = ENOENT;
        return -1;
    }
    if (is_special(outfile->path))
        return tsr__fd_above(open(outfile->path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
    outfile->dir_fd = tsr__path_open_parent(outfile->path);
    if (outfile->dir_fd < 0)
        return -1;
    const char *name = tsr__path_name(outfile->path);
    bool folder = !*name || (fstatat(outfile->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                             S_ISDIR(st.st_mode));
    if (folder) {
        errno = EISDIR;
        return -1;
    }
    return create_temporary(outfile);
}

// After it the struct holds nothing, and commit and abort on it are harmless.
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

// Nothing that can fail comes after the temporary file exists, so a caller has either a file to commit or abort, or none.
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

// A write may take a part; the rest follows. False: failed, now or before.
static bool write_all(struct outfile *outfile, const char *p, size_t n)
{
    while (n > 0 && !outfile->failed) {
        ssize_t done = -1;
        if (!fault_io(outfile->session, FAULT_WRITE))
            done = write(outfile->fd, p, n);
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

// The buffer is empty afterwards, also where it could not be written.
static bool flush(struct outfile *outfile)
{
    size_t n = outfile->n;
    outfile->n = 0;
    return !outfile->failed && write_all(outfile, outfile->buffer, n);
}

// Invariant: what is in the buffer follows what is in the file. So the buffer goes first where a piece does not fit.
void tsr__out_write(struct outfile *outfile, const void *p, size_t n)
{
    if (outfile->failed || n == 0)
        return;
    if (outfile->digest)
        tsr__sha256_add(outfile->digest, p, n);
    outfile->offset += n;
    if (n > OUT_BUFFER - outfile->n && !flush(outfile))
        return;
    // Too large for the buffer, which is empty here: straight from the caller's memory.
    if (n >= OUT_BUFFER) {
        write_all(outfile, p, n);
        return;
    }
    memcpy(outfile->buffer + outfile->n, p, n);
    outfile->n += n;
}

#define GATHER_MOST 1024 // pieces of one call: what Linux takes

// Writes n pieces, of which a call may take only some: what is left of the first goes by write.
static void gather_all(struct outfile *outfile, const struct iovec *iovec, int n)
{
    while (n > 0 && !outfile->failed) {
        ssize_t done = -1;
        if (!fault_io(outfile->session, FAULT_WRITE))
            done = writev(outfile->fd, iovec, (int)int64_min(n, GATHER_MOST));
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            fail_write(outfile, errno);
            return;
        }
        for (; n > 0 && (size_t)done >= iovec->iov_len; iovec++, n--)
            done -= (ssize_t)iovec->iov_len;
        if (n > 0 && done > 0) {
            write_all(outfile, (const char *)iovec->iov_base + done, iovec->iov_len - (size_t)done);
            iovec++, n--;
        }
    }
}

// The buffer first, to keep the order; then all pieces with as few calls as the kernel takes.
void tsr__out_gather(struct outfile *outfile, const struct iovec *pieces, int n)
{
    if (outfile->failed || !flush(outfile))
        return;
    for (int i = 0; i < n; i++) {
        if (outfile->digest)
            tsr__sha256_add(outfile->digest, pieces[i].iov_base, pieces[i].iov_len);
        outfile->offset += pieces[i].iov_len;
    }
    gather_all(outfile, pieces, n);
}

// What another descriptor of the file may read already (follow.c).
uint64_t tsr__out_reached(const struct outfile *outfile)
{
    return outfile->offset - outfile->n;
}

// The finding names the file that was read, which only its descriptor knows here.
static void fail_source(struct outfile *outfile, int fd, uint64_t at, const char *why)
{
    char link[64], name[PATH_MAX] = "its source";
    struct place place = PLACE_NONE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n > 0)
        name[n] = 0;
    place.file = str_of(name);
    place.offset = at;
    tsr__diag(outfile->session, DIAG_io_read, &place, NULL, "cannot read '%s' for '%s': %s", name,
              outfile->path, why);
    fail(outfile, TSR_IO);
}

// Inside the kernel as far as it goes; what it did not take is left to the caller.
// Blocks are shared or moved by the file system where it can; in any case the bytes never come
// here.
static uint64_t copy_in_kernel(struct outfile *outfile, int fd, uint64_t offset, uint64_t length)
{
    uint64_t done = 0;
    if (!flush(outfile))
        return 0;
    while (done < length) {
        // Tests let this fail as a disk would.
        if (tsr__fault(outfile->session, FAULT_WRITE)) {
            fail_write(outfile, EIO);
            break;
        }
        size_t some = (size_t)int64_min((int64_t)(length - done), COPY_MOST);
        off_t from = (off_t)(offset + done);
        ssize_t n = copy_file_range(fd, &from, outfile->fd, NULL, some, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            fail_write(outfile, errno);
        if (n <= 0)
            break; // other systems, other files: reading and writing decides what is wrong
        done += (uint64_t)n;
    }
    return done;
}

// Large pieces first go inside the kernel; what that leaves, or all of it where a digest must see the bytes, goes through
// the buffer: read straight into its free part, which is flushed when full.
void tsr__out_copy(struct outfile *outfile, int fd, uint64_t offset, uint64_t length)
{
    uint64_t end;
    if (outfile->failed || length == 0)
        return;
    if (__builtin_add_overflow(offset, length, &end) || end > INT64_MAX) {
        fail_source(outfile, fd, offset, "it is shorter than was said");
        return;
    }
    uint64_t least = COPY_LEAST;
    if (outfile->copy_least)
        least = outfile->copy_least;
    if (!outfile->digest && length >= least) {
        uint64_t done = copy_in_kernel(outfile, fd, offset, length);
        outfile->offset += done;
        offset += done;
    }
    // What is left, block by block through the buffer; n is between 1 and `want`.
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
            fail_source(outfile, fd, offset, "it ends early");
            return;
        }
        if (outfile->digest)
            tsr__sha256_add(outfile->digest, outfile->buffer + outfile->n, (size_t)n);
        outfile->n += (size_t)n;
        outfile->offset += (uint64_t)n;
        offset += (uint64_t)n;
    }
}

// From offset 10 with align 8 six zeros are written; at a multiple of it none; align 0: none.
void tsr__out_pad(struct outfile *outfile, size_t align)
{
    static const char zeros[4096];
    size_t left = 0;
    if (align)
        left = (size_t)((align - outfile->offset % align) % align);
    while (left > 0 && !outfile->failed) {
        size_t n = size_min(left, sizeof zeros);
        tsr__out_write(outfile, zeros, n);
        left -= n;
    }
}

// Waiting for the disk is what makes a rename safe against a power cut: always where there is
// something to lose, an existing target. A large new file is left to the system, which doubles the
// speed; what it was made from is still there. Pipes and devices know no such thing.
static bool must_sync(const struct outfile *outfile)
{
    struct stat st;
    return outfile->temporary &&
           (outfile->offset <= SYNC_LEAST ||
            fstatat(outfile->dir_fd, tsr__path_name(outfile->path), &st, AT_SYMLINK_NOFOLLOW) == 0);
}

// Flushes, syncs and closes the file, then gives it its name; each step only if nothing has failed before.
static void publish(struct outfile *outfile)
{
    flush(outfile);
    if (!outfile->failed && must_sync(outfile) &&
        (fault_io(outfile->session, FAULT_WRITE) || fsync(outfile->fd) != 0))
        fail_write(outfile, errno);
    int fd = outfile->fd;
    outfile->fd = -1;
    // A network file system may tell only here that a write was lost.
    if (close(fd) != 0 && !outfile->failed && errno != EINTR)
        fail_write(outfile, errno);
    if (outfile->failed || !outfile->temporary)
        return;
    if (fault_io(outfile->session, FAULT_WRITE) ||
        renameat(outfile->dir_fd, outfile->temporary, outfile->dir_fd,
                 tsr__path_name(outfile->path)) != 0)
        fail_write(outfile, errno);
}

// A session that has run out of memory publishes nothing: what was built may lack a part.
tsr_status tsr__out_commit(struct outfile *outfile)
{
    if (!outfile->path)
        return outfile->status;
    if (outfile->session->out_of_memory && !outfile->failed)
        fail(outfile, TSR_NOMEM); // what could not be had is missing in it
    publish(outfile);
    if (outfile->failed) {
        tsr_status status = outfile->status;
        tsr__out_abort(outfile);
        return status;
    }
    if (outfile->temporary)
        fsync(outfile->dir_fd); // the file is in place; not every file system can do this
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
