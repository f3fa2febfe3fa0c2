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

// Reads a file into new pages. Returns NULL, or why it failed.
static const char *read_pages(tsr_session *session, int fd, size_t n, void **out)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return strerror(errno);
    const char *why = tsr__fd_read(session, fd, p, n, 0);
    if (why) {
        munmap(p, n);
        return why;
    }
    tsr__kernel_protect(p, n);
    *out = p;
    return NULL;
}

// Reads or maps a file. Returns NULL, or why it failed.
static const char *file_pages(tsr_session *session, int fd, off_t bytes, struct str *out)
{
    struct mapped_range range = {0};
    void *p = NULL;
    const char *why = NULL;
    if (bytes > READ_MOST) {
        why = tsr__fd_map(session, fd, 0, (uint64_t)bytes, &range);
        *out = range.bytes;
    } else {
        if (bytes > 0)
            why = read_pages(session, fd, (size_t)bytes, &p);
        *out = (struct str){p, (size_t)bytes};
    }
    return why;
}

// Maps a file into memory. The descriptor stays open, because outfile.c copies from it without
// touching the mapping.
tsr_status tsr__file_map(tsr_session *session, const char *path, struct mapped *out)
{
    struct stat st;
    int fd;
    TRY(open_regular(session, path, &fd, &st));
    struct str bytes;
    const char *why = file_pages(session, fd, st.st_size, &bytes);
    if (why) {
        tsr_status status = report_unreadable(session, DIAG_io_read, path, NULL, why);
        close(fd);
        return status;
    }
    *out = (struct mapped){.bytes = bytes, .fd = fd};
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
    const char *why = tsr__fd_read(session, fd, p, n, 0);
    if (why)
        status = report_unreadable(session, DIAG_io_read, path, NULL, why);
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

// Adds the contents of a file to a digest.
tsr_status tsr__sha256_file(tsr_session *session, const char *path, struct sha256 *sha256)
{
    struct stat info;
    const char *why;
    int fd;
    TRY(open_regular(session, path, &fd, &info));
    tsr_status st = tsr__fd_digest(session, fd, (uint64_t)info.st_size, sha256, &why);
    if (st == TSR_IO)
        st = report_unreadable(session, DIAG_io_read, path, NULL, why);
    close(fd);
    return st;
}
