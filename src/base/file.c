// SPDX-License-Identifier: Apache-2.0
// file.c - reads regular files that the user named: maps them, or reads them into memory.
//
// tsr__file_map is for models and weights; objects point into the mapping. tsr__file_read is for
// small texts (scripts, manifests). Files that a model names are opened by open.c instead.
#include "base/internal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static tsr_status report_unreadable(tsr_session *session, enum diag_code code, const char *path,
                                    const char *hint, const char *why)
{
    const char *verb = code == DIAG_io_open ? "open" : "read";
    return tsr__fail(session, TSR_IO, code, &PLACE(.file = str_of(path)), hint,
                     "cannot %s '%s': %s", verb, path, why);
}

// Opens a regular file. Uses O_NONBLOCK, so that opening a pipe without a writer does not block
// before it is rejected.
static tsr_status open_regular(tsr_session *session, const char *path, int *fd_out, struct stat *st)
{
    int fd = -1;
    if (!fault_io(session, FAULT_READ))
        fd = tsr__fd_above(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0 || fstat(fd, st) != 0) {
        int error = errno;
        const char *hint = NULL;
        if (error == ENOENT)
            hint = "check the path; relative paths start in the current folder";
        if (fd >= 0)
            close(fd);
        return report_unreadable(session, DIAG_io_open, path, hint, strerror(error));
    }
    if (!S_ISREG(st->st_mode)) {
        const char *why = S_ISDIR(st->st_mode) ? "it is a folder" : "it is not a regular file";
        close(fd);
        return report_unreadable(session, DIAG_io_open, path, "give the path of a regular file",
                                 why);
    }
    *fd_out = fd;
    return TSR_OK;
}

// Reading a mapping fails with SIGBUS if the file shrinks meanwhile. Small files are therefore read
// into anonymous pages. Large files stay mapped, and the command handles the signal
// (cli/signals.c).
#define READ_MOST ((off_t)4 << 20)

// Returns the reason of a failed read. read_all returns ENODATA if the file is shorter than
// expected.
static const char *why_unread(int error)
{
    return error == ENODATA ? "the file became shorter while it was read" : strerror(error);
}

// Reads at most n bytes at offset `at` and adds their number to *done. Returns 0 or an errno,
// ENODATA at the end of the file.
static int read_some(int fd, char *p, size_t n, uint64_t at, uint64_t *done)
{
    ssize_t got;
    do {
        got = pread(fd, p, n, (off_t)at);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno;
    *done += (uint64_t)got;
    return got ? 0 : ENODATA;
}

// Reads the first n bytes. Returns 0 or an errno. Does not move the position of the descriptor.
static int read_all(tsr_session *session, int fd, char *p, size_t n)
{
    for (uint64_t done = 0; done < n;) {
        if (fault_io(session, FAULT_READ))
            return errno;
        int error = read_some(fd, p + done, n - (size_t)done, done, &done);
        if (error)
            return error;
    }
    return 0;
}

// Reads a file into new pages. Returns MAP_FAILED and sets errno on failure.
static void *read_pages(tsr_session *session, int fd, size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return p;
    int error = read_all(session, fd, p, n);
    if (!error) {
        tsr__kernel_protect(p, n);
        return p;
    }
    munmap(p, n);
    errno = error;
    return MAP_FAILED;
}

// Returns the contents of a file, read or mapped; MAP_FAILED with errno on failure. `bytes` is not
// 0.
static void *file_pages(tsr_session *session, int fd, off_t bytes)
{
    if (bytes > PTRDIFF_MAX) { // more than this process can address
        errno = EFBIG;
        return MAP_FAILED;
    }
    if (bytes <= READ_MOST)
        return read_pages(session, fd, (size_t)bytes);
    if (fault_io(session, FAULT_READ))
        return MAP_FAILED;
    return mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
}

// Maps a file into memory. The descriptor stays open, because outfile.c copies from it without
// touching the mapping.
tsr_status tsr__file_map(tsr_session *session, const char *path, struct mapped *out)
{
    struct stat st;
    int fd;
    TRY(open_regular(session, path, &fd, &st));
    void *p = NULL;
    if (st.st_size > 0) {
        p = file_pages(session, fd, st.st_size);
        if (p == MAP_FAILED) {
            tsr_status status =
                report_unreadable(session, DIAG_io_read, path, NULL, why_unread(errno));
            close(fd);
            return status;
        }
    }
    *out = (struct mapped){.bytes = {p, (size_t)st.st_size}, .fd = fd};
    return TSR_OK;
}

void tsr__file_unmap(struct mapped *mapped)
{
    if (mapped->bytes.p)
        munmap((void *)(uintptr_t)mapped->bytes.p, mapped->bytes.n);
    if (mapped->fd > 0)
        close(mapped->fd);
    *mapped = (struct mapped){.fd = -1};
}

// Reads a file of limited size. *out is unchanged after a failure.
tsr_status tsr__file_read(tsr_session *session, struct arena *arena, const char *path, size_t limit,
                          struct str *out)
{
    struct stat st;
    int fd;
    tsr_status status = open_regular(session, path, &fd, &st);
    if (status != TSR_OK)
        return status;
    size_t n = (size_t)st.st_size;
    if ((uint64_t)st.st_size > limit) {
        status = report_unreadable(session, DIAG_io_read, path, NULL, "the file is too large");
        goto close_file;
    }
    char *p = arena_get(arena, n + 1, 1); // zeroed, so that the text ends in a NUL
    if (!p) {
        status = TSR_NOMEM;
        goto close_file;
    }
    int error = read_all(session, fd, p, n);
    if (error)
        status = report_unreadable(session, DIAG_io_read, path, NULL, why_unread(error));
    else
        *out = (struct str){p, n};
close_file:
    close(fd);
    return status;
}

// Reads a file. The session owns the text until the next call.
tsr_status tsr_session_read(tsr_session *session, const char *path, size_t limit, const char **text,
                            size_t *bytes)
{
    struct str whole = {0};
    TRY(tsr__given(session, "text", text));
    tsr__arena_free(&session->results[RESULT_TEXT]);
    TRY(tsr__file_read(session, &session->results[RESULT_TEXT], path, limit, &whole));
    *text = whole.p;
    if (bytes)
        *bytes = whole.n;
    return TSR_OK;
}

// Compares device and inode; false if one of the files does not exist.
bool tsr__same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

#define DIGEST_BYTES (256u << 10)

// Adds the contents of a file to a digest. Returns 0 or an errno.
static int digest_file(tsr_session *session, int fd, uint64_t n, char *buffer,
                       struct sha256 *sha256)
{
    for (uint64_t done = 0, before = 0; done < n; before = done) {
        if (fault_io(session, FAULT_READ))
            return errno;
        int error = read_some(fd, buffer, (size_t)int64_min((int64_t)(n - done), DIGEST_BYTES),
                              done, &done);
        if (error)
            return error;
        tsr__sha256_add(sha256, buffer, (size_t)(done - before));
    }
    return 0;
}

// Adds the contents of a file to a digest. Uses pread, so that a file that shrinks meanwhile is
// an error, not a signal.
tsr_status tsr__sha256_file(tsr_session *session, const char *path, struct sha256 *sha256)
{
    struct stat info;
    int fd;
    TRY(open_regular(session, path, &fd, &info));
    char *buffer = tsr__alloc(session, DIGEST_BYTES);
    tsr_status st = buffer ? TSR_OK : TSR_NOMEM;
    int error = 0;
    if (buffer)
        error = digest_file(session, fd, (uint64_t)info.st_size, buffer, sha256);
    if (error)
        st = report_unreadable(session, DIAG_io_read, path, NULL, why_unread(error));
    tsr__free(session, buffer, DIGEST_BYTES);
    close(fd);
    return st;
}
