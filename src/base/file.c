// SPDX-License-Identifier: Apache-2.0
// file.c - reading files that the user named: mapped, or whole into memory. Regular files only.
#include "base/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static tsr_status refuse(tsr_session *session, enum diag_code code, const char *path,
                         const char *hint, const char *why)
{
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr__diag(session, code, &at, hint, "cannot %s '%s': %s",
              code == DIAG_io_open ? "open" : "read", path, why);
    return TSR_IO;
}

static tsr_status open_regular(tsr_session *session, const char *path, int *fd_out, struct stat *st)
{
    int fd = -1;
    if (tsr__fault(session, FAULT_READ))
        errno = EIO;
    else
        fd = tsr__fd_above(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (fd < 0 || fstat(fd, st) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return refuse(session, DIAG_io_open, path,
                      error == ENOENT ? "check the path; it is taken from the current folder"
                                      : NULL,
                      strerror(error));
    }
    if (!S_ISREG(st->st_mode)) {
        close(fd);
        return refuse(session, DIAG_io_open, path, "give the path of a regular file",
                      S_ISDIR(st->st_mode) ? "it is a folder" : "it is not a regular file");
    }
    *fd_out = fd;
    return TSR_OK;
}

// A map of the file dies with SIGBUS where the file shrinks while it is used. What is small is read instead: into fresh pages, so
// that one function unmaps both. Large files stay mapped; the command handles the signal (cli/signals.c).
#define READ_MOST ((off_t)4 << 20)

static int read_at(int fd, char *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, p + done, n - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : ENODATA;
        done += (size_t)got;
    }
    return 0;
}

// The bytes of a file of at most READ_MOST; MAP_FAILED and errno, ENODATA where it became shorter.
static void *read_pages(int fd, size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return p;
    int error = read_at(fd, p, n);
    if (!error) {
        mprotect(p, n, PROT_READ);
        return p;
    }
    munmap(p, n);
    errno = error;
    return MAP_FAILED;
}

static void *file_pages(tsr_session *session, int fd, off_t bytes)
{
    if (tsr__fault(session, FAULT_READ)) {
        errno = EIO;
        return MAP_FAILED;
    }
    if (bytes <= READ_MOST)
        return read_pages(fd, (size_t)bytes);
    return mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
}

tsr_status tsr__file_map(tsr_session *session, const char *path, struct mapped *out)
{
    struct stat st;
    int fd;
    tsr_status status = open_regular(session, path, &fd, &st);
    if (status != TSR_OK)
        return status;
    void *p = NULL;
    if (st.st_size > 0) {
        p = file_pages(session, fd, st.st_size);
        if (p == MAP_FAILED) {
            status = refuse(session, DIAG_io_read, path, NULL,
                            errno == ENODATA ? "it became shorter meanwhile" : strerror(errno));
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

// Reads exactly n bytes; 0, or an errno, or -1 if the file ends before.
static int read_all(tsr_session *session, int fd, char *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got =
            tsr__fault(session, FAULT_READ) ? (errno = EIO, -1) : read(fd, p + done, n - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? errno : -1;
        done += (size_t)got;
    }
    return 0;
}

tsr_status tsr__file_read(tsr_session *session, struct arena *arena, const char *path, size_t limit,
                          struct str *out)
{
    struct stat st;
    int fd;
    tsr_status status = open_regular(session, path, &fd, &st);
    if (status != TSR_OK)
        return status;
    size_t n = (size_t)st.st_size;
    char *p = NULL;
    if ((uint64_t)st.st_size > limit)
        status = refuse(session, DIAG_io_read, path, NULL, "it is larger than such a file may be");
    else if (!(p = arena_get(arena, n + 1, 1)))
        status = TSR_NOMEM;
    int error = status == TSR_OK ? read_all(session, fd, p, n) : 0;
    if (error)
        status = refuse(session, DIAG_io_read, path, NULL,
                        error < 0 ? "it became shorter meanwhile" : strerror(error));
    close(fd);
    if (status == TSR_OK)
        *out = (struct str){p, n};
    return status;
}

tsr_status tsr_session_read(tsr_session *session, const char *path, size_t limit, const char **text,
                            size_t *bytes)
{
    struct str whole = {0};
    tsr__arena_free(&session->results[RESULT_TEXT]);
    tsr_status status =
        tsr__file_read(session, &session->results[RESULT_TEXT], path, limit, &whole);
    if (status != TSR_OK)
        return status;
    *text = whole.p;
    if (bytes)
        *bytes = whole.n;
    return TSR_OK;
}

bool tsr__same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

#define DIGEST_BYTES (256u << 10)

// By pread and not through the map: a file that is cut short meanwhile is an error, not a signal.
tsr_status tsr__sha256_file(tsr_session *session, const char *path, struct sha256 *sha256)
{
    struct mapped file;
    struct place at = PLACE_NONE;
    at.file = str_of(path);
    tsr_status st = tsr__file_map(session, path, &file);
    if (st != TSR_OK)
        return st;
    char *buffer = tsr__alloc(session, DIGEST_BYTES);
    st = buffer ? TSR_OK : TSR_NOMEM;
    for (size_t done = 0; done < file.bytes.n && st == TSR_OK;) {
        size_t left = file.bytes.n - done, want = left < DIGEST_BYTES ? left : DIGEST_BYTES;
        ssize_t got =
            tsr__fault(session, FAULT_READ) ? -1 : pread(file.fd, buffer, want, (off_t)done);
        if (got > 0) {
            tsr__sha256_add(sha256, buffer, (size_t)got);
            done += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            tsr__diag(session, DIAG_io_read, &at, NULL, "cannot read the model: %s",
                      got == 0 ? "it became shorter" : strerror(errno));
            st = TSR_IO;
        }
    }
    if (buffer)
        tsr__free(session, buffer, DIGEST_BYTES);
    tsr__file_unmap(&file);
    return st;
}
