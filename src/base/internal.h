// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of base share, and what their tests reach into.
#ifndef TSR_BASE_INTERNAL_H
#define TSR_BASE_INTERNAL_H

#include "base/base.h"

#include <errno.h>

// tsr__fault for a call of the kernel: where it must fail, errno says so too.
static inline bool fault_io(tsr_session *session, enum fault_kind kind)
{
    if (!tsr__fault(session, kind))
        return false;
    errno = EIO;
    return true;
}

// From this size on, the default allocator maps pages itself, aligned for huge pages.
#define PAGES_BYTES ((size_t)2 << 20)

// The allocator of sessions that bring none. Memory of PAGES_BYTES and more comes zeroed, unless
// tsr__default_zeroes is false (sanitizers see only what malloc gives).
void *tsr__default_alloc(void *data, void *old, size_t old_bytes, size_t bytes);
extern const bool tsr__default_zeroes;

// Adds the out-of-memory finding, which needs no memory, unless it is there already.
void tsr__diag_nomem(tsr_session *session, size_t bytes);

// A character that would move the cursor, change colours, reorder the line or stay invisible.
bool tsr__is_unsafe(uint32_t c);

// A finite number, the same in every locale: the shortest text that reads back
// as the same double.
void tsr__double_text(double value, char out[32]);

// Opens name beneath the folder `root` for reading; -1 and errno, EXDEV where it would leave the
// folder. use_kernel false takes the way for kernels without openat2.
int tsr__open_beneath(int root, const char *name, bool use_kernel);
// Opens name of `folder` where links may lead from there, if the file they lead to is beneath
// `root`.
int tsr__open_through(int folder, const char *name, int root, bool use_kernel);
// Keeps 0, 1 and 2 free for what they are: a file that got one of these numbers gets another.
int tsr__fd_above(int fd);

// Paths of outputs (outfile.c): an owned copy of n bytes, NULL without memory; its last name; the
// folder that it is in, open, or -1; a fresh name for a temporary.
#define TEMPORARY_NAME   32
#define TEMPORARY_PREFIX ".tessera-" // then the process, "-" and something random
char *tsr__path_copy(tsr_session *session, const char *path, size_t n);
void tsr__path_free(tsr_session *session, char **path);
const char *tsr__path_name(const char *path);
int tsr__path_open_parent(const char *path);
void tsr__path_draw(char out[TEMPORARY_NAME]);
// Adds the finding io-write for that errno; TSR_WRITE.
tsr_status tsr__refuse_write(tsr_session *session, const char *path, int error);

// Puts the folder outfolder->temporary in the place of the one at outfolder->path and removes that one. use_kernel
// false takes the way for systems that cannot exchange two names in one step.
tsr_status tsr__outfolder_replace(struct outfolder *outfolder, bool use_kernel);

#endif
