// SPDX-License-Identifier: Apache-2.0
// internal.h - declarations that the files of base and their tests share.
#ifndef TSR_BASE_INTERNAL_H
#define TSR_BASE_INTERNAL_H

#include "base/base.h"

#include <errno.h>
#include <sys/types.h>

// As tsr__fault, for a system call: also sets errno.
static inline bool fault_io(tsr_session *session, enum fault_kind kind)
{
    if (!tsr__fault(session, kind))
        return false;
    errno = EIO;
    return true;
}

// from this size on the default allocator maps pages, aligned for huge pages
#define PAGES_BYTES ((size_t)2 << 20)

// The default allocator. Memory of PAGES_BYTES and more is zeroed if tsr__default_zeroes is set
// (not with sanitizers, which check only malloc).
void *tsr__default_alloc(void *data, void *old, size_t old_bytes, size_t bytes);
extern const bool tsr__default_zeroes;

// Adds the out-of-memory error unless the session has one. Allocates nothing (arena.c).
void tsr__nomem(tsr_session *session, size_t bytes);

// True for characters that are not safe to print: control characters, invisible ones, and those
// that change the text direction.
bool tsr__is_unsafe(uint32_t c);

// Writes the shortest text that reads back as the same double, independent of the locale.
void tsr__double_text(double value, char out[32]);

// Opens `name` beneath the folder `root` for reading. On failure returns -1 and sets errno, to
// EXDEV if the name leads out of the folder. If use_kernel is false, it works as on kernels without
// openat2.
int tsr__open_beneath(int root, const char *name, bool use_kernel);
// Moves a descriptor that is 0, 1 or 2 to a higher number.
int tsr__fd_above(int fd);

// Calls that only Linux has (kernel.c). They fail with ENOSYS where the system has none.
struct dirent;
// openat2: opens a name beneath the folder `root`; links: follows links that stay beneath it.
int tsr__kernel_open(int root, const char *name, int flags, bool links);
// Exchanges two names in one step.
int tsr__kernel_exchange(const char *a, const char *b);
// Reads entries of an open folder, each of d_reclen bytes. Uses a system call only. Returns the
// bytes read, 0 at the end, -1 on failure.
long tsr__kernel_entries(int fd, struct dirent *entries, size_t bytes);
// Copies at most n bytes from *at of one file to the position of another one. May copy fewer.
ssize_t tsr__kernel_copy(int from, off_t *at, int to, size_t n);
// Writes the file system of the file to disk; elsewhere only the file.
int tsr__kernel_sync(int fd);
// Draws n random bytes, different ones in each call. False: the system has none.
bool tsr__kernel_random(void *out, size_t n);
// Sixteen random bytes. On Linux they are the same in each call of a process, and cost no system
// call; in a browser they cost one of JavaScript for each byte. False: the system has none.
bool tsr__kernel_secret(uint64_t out[2]);
// Makes mapped pages read-only, where memory has protection.
void tsr__kernel_protect(void *p, size_t n);
size_t tsr__kernel_cores(void); // that this process may use

// Paths of outputs (outfile.c). tsr__path_copy returns a copy of n bytes (NULL: out of memory).
// tsr__path_open_parent opens the parent folder (-1:
// failed, with errno). tsr__path_draw makes a random name for a temporary file.
#define TEMPORARY_NAME   32
#define TEMPORARY_PREFIX ".tessera-" // followed by the pid, "-" and a random number
char *tsr__path_copy(tsr_session *session, const char *path, size_t n);
void tsr__path_free(tsr_session *session, char **path);
int tsr__path_open_parent(const char *path, int flags);
void tsr__path_draw(char out[TEMPORARY_NAME]);
// Reports io-write with this errno. Returns TSR_WRITE.
tsr_status tsr__refuse_write(tsr_session *session, const char *path, int error);

// Replaces the folder at outfolder->path by the temporary one. If use_kernel is false, it works as
// on systems that cannot exchange two names in one step.
tsr_status tsr__outfolder_replace(struct outfolder *outfolder, bool use_kernel);

#endif
