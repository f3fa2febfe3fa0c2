// SPDX-License-Identifier: Apache-2.0
// temporary.c - what exists only while a session works: temporary folders, and outputs under the names that they have
// before they are complete.
//
// Three ways lead to their end. The session removes them itself when it is done with them. A signal handler removes them
// with tsr_session_sweep, so their paths stand in slots of fixed size that need neither locks nor memory. And what a killed
// process left is removed by the next one that makes something of the same kind in the same folder: names carry
// the process's number, and the maker holds a lock (flock) that the kernel lets go when it dies.
//
// Example: process 4711 makes /tmp/tessera-verify-4711-x3Fq9z and is killed with SIGKILL. The next
// `verify` in /tmp reads the number from the name, sees that nobody holds the lock, that no process
// has the number, and that the folder is of the same user, and removes it. A process on another
// host that shares the folder is protected by its lock alone: its number means nothing here. Where
// a file system has no locks, nothing is taken for remains.
#include "base/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEPTH    4     // of folders in a temporary folder; ours have two
#define REMOVE_TRIES 1000  // other threads may still be writing while a signal is handled
#define QUIET_TRIES  3     // an interrupted call, an error of a network file system
#define SWEEP_MOST   10000 // entries of a folder that are looked at for remains
#define STRANGE_S    10    // unlocked remains of a number that is in use again are older than this

// ---- removing, also inside a signal handler ------------------------------------------------------

// As the kernel writes them for getdents64.
struct entry {
    uint64_t inode;
    int64_t next;
    unsigned short bytes;
    unsigned char kind;
    char name[];
};

static bool remove_tree(int parent, const char *name, int depth);

// Everything in an open folder goes. Uses system calls alone.
static void empty_folder(int fd, int depth)
{
    _Alignas(struct entry) char buffer[2048];
    for (;;) {
        long n = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
        // The end, or an error, which shows when the folder itself is removed. Names that are
        // removed while it is read may be skipped by some file systems: callers try again.
        if (n <= 0)
            return;
        for (long at = 0; at < n;) {
            const struct entry *entry = (const struct entry *)(buffer + at);
            at += entry->bytes;
            bool itself = entry->name[0] == '.' &&
                          (!entry->name[1] || (entry->name[1] == '.' && !entry->name[2]));
            if (!itself)
                (void)remove_tree(fd, entry->name, depth + 1);
        }
    }
}

// A file, a link (never what it leads to), or a folder with what is in it. True: it is gone.
// Deeper than MAX_DEPTH nothing of ours lies: a folder that deep is left, and so are those above
// it.
static bool remove_tree(int parent, const char *name, int depth)
{
    // A folder gives EISDIR (or EPERM) here and is emptied below.
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return true;
    if (depth > MAX_DEPTH)
        return false;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) { // else it may be empty
        empty_folder(fd, depth);
        close(fd);
    }
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

// Everything in a folder that is open already: neither memory nor another descriptor is needed for the files in it.
// Back to the beginning first: the descriptor may have been read before.
void tsr__folder_empty(int fd)
{
    if (fd > 0 && lseek(fd, 0, SEEK_SET) == 0)
        empty_folder(fd, 0);
}

bool tsr__folder_remove(const char *path)
{
    for (int i = 0; i < QUIET_TRIES; i++) {
        if (unlink(path) == 0 || errno == ENOENT)
            return true; // a link in place of a folder: what it leads to is not ours
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            // As if at the deepest level: only files go.
            empty_folder(fd, MAX_DEPTH); // folders in it stay, and with them this one
            close(fd);
        }
        if (rmdir(path) == 0 || errno == ENOENT)
            return true;
    }
    return false;
}

// Says nothing where it fails: the next process of the kind sweeps.
void tsr__tree_remove(const char *path)
{
    for (int i = 0; i < QUIET_TRIES; i++)
        if (remove_tree(AT_FDCWD, path, 0))
            return;
}

// For a signal handler: no memory, no locks, and errno as it was. A child that was forked from the maker has the
// same slots and must not remove what its parent uses; hence the owner.
void tsr_session_sweep(tsr_session *session)
{
    int error = errno;
    for (size_t i = 0; i < TSR_COUNT(session->temporaries); i++) {
        struct temporary *temporary = &session->temporaries[i];
        if (!atomic_load(&temporary->used) || temporary->owner != getpid())
            continue;
        for (int k = 0; k < REMOVE_TRIES; k++)
            if (remove_tree(AT_FDCWD, temporary->path, 0))
                break;
    }
    errno = error;
}

// ---- slots ---------------------------------------------------------------------------------------

// The path is complete before `used` says so: a signal handler that runs in between sees a free slot.
struct temporary *tsr__temporary_note(tsr_session *session, const char *path, int fd)
{
    size_t n = strlen(path);
    (void)flock(fd, LOCK_EX | LOCK_NB); // where locks do not work, remains stay
    if (n >= TEMPORARY_PATH)
        return NULL;
    for (size_t i = 0; i < TSR_COUNT(session->temporaries); i++) {
        struct temporary *temporary = &session->temporaries[i];
        if (atomic_load(&temporary->used))
            continue;
        memcpy(temporary->path, path, n + 1);
        temporary->owner = getpid();
        temporary->fd = -1;
        atomic_store(&temporary->used, true);
        return temporary;
    }
    return NULL;
}

// The slot is free first, then the lock goes with the descriptor: a handler in between must not
// remove what has become an output.
void tsr__temporary_forget(struct temporary *temporary)
{
    if (!temporary)
        return;
    atomic_store(&temporary->used, false);
    if (temporary->fd > 0)
        close(temporary->fd);
    temporary->fd = -1;
}

void tsr__temporary_remove(struct temporary *temporary)
{
    if (!temporary || !atomic_load(&temporary->used))
        return;
    // A child of fork has a copy of the session; its end leaves the parent's files alone.
    if (temporary->owner == getpid()) {
        tsr__folder_empty(temporary->fd);
        tsr__tree_remove(temporary->path);
    }
    tsr__temporary_forget(temporary);
}

// ---- remains of processes that were killed -------------------------------------------------------

// "tessera-verify-4711-x3Fq9z" with the prefix "tessera-verify-" is of process 4711; 0: not such a name.
// Leading zeros, signs and numbers beyond a pid are no names of ours.
static long process_of(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0 || name[n] < '1' || name[n] > '9')
        return 0;
    long pid = strtol(name + n, &end, 10);
    if (*end == '-' && pid > 0 && pid < INT32_MAX)
        return pid;
    return 0;
}

// Nobody holds its lock, and its maker does not exist: it was killed. Where a process of that number exists (it may be
// another one, or the maker is just about to take the lock) the remains must also be old.
static bool is_dead(int folder, const char *name, long pid)
{
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool dead = fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) && flock(fd, LOCK_EX | LOCK_NB) == 0;
    bool exists = kill((pid_t)pid, 0) == 0 || errno != ESRCH;
    if (dead && exists)
        dead = pid != getpid() && time(NULL) - st.st_ctime > STRANGE_S;
    close(fd);
    return dead;
}

void tsr__temporary_sweep(int folder, const char *prefix)
{
    // A descriptor of its own: fdopendir takes it over, and the caller's position stays.
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0)
        return;
    DIR *dir = fdopendir(again); // which closes it
    if (!dir) {
        close(again);
        return;
    }
    for (int i = 0; i < SWEEP_MOST; i++) {
        const struct dirent *dirent = readdir(dir);
        if (!dirent)
            break;
        long pid = process_of(dirent->d_name, prefix);
        if (pid && is_dead(folder, dirent->d_name, pid))
            (void)remove_tree(folder, dirent->d_name, 0);
    }
    closedir(dir);
}

// ---- temporary folders ---------------------------------------------------------------------------

// One remedy for all causes: another folder.
static tsr_status refuse(tsr_session *session, const char *base, const char *why)
{
    struct place at = PLACE_NONE;
    at.file = str_of(base);
    tsr__diag(session, DIAG_io_write, &at, "set TMPDIR to a folder that can be written",
              "cannot make a temporary folder: %s", why);
    return TSR_WRITE;
}

static void sweep_base(const char *base, const char *prefix)
{
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    tsr__temporary_sweep(fd, prefix);
    close(fd);
}

// The folder is open, and so locked, from the moment that it has a slot until the slot is freed.
tsr_status tsr__temporary_folder(tsr_session *session, const char *base, const char *kind,
                                 struct temporary **out)
{
    char prefix[48], path[TEMPORARY_PATH];
    if (!base || !*base)
        base = "/tmp";
    snprintf(prefix, sizeof prefix, "tessera-%s-", kind);
    int n = snprintf(path, sizeof path, "%s/%s%d-XXXXXX", base, prefix, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof path)
        return refuse(session, base, strerror(ENAMETOOLONG));
    sweep_base(base, prefix);
    if (tsr__fault(session, FAULT_WRITE))
        return refuse(session, base, strerror(EIO));
    if (!mkdtemp(path))
        return refuse(session, base, strerror(errno));
    int fd = tsr__fd_above(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) {
        const char *why = strerror(errno);
        rmdir(path);
        return refuse(session, base, why);
    }
    // The slot takes the lock on fd; closing fd lets it go, so fd stays open with the slot.
    struct temporary *temporary = tsr__temporary_note(session, path, fd);
    if (!temporary) {
        rmdir(path);
        close(fd);
        return refuse(session, base, "too many at a time");
    }
    temporary->fd = fd;
    *out = temporary;
    return TSR_OK;
}

// It has no counterpart: the folder goes when the session is freed.
tsr_status tsr_session_temporary(tsr_session *session, const char *base, const char **path)
{
    struct temporary *temporary = NULL;
    if (!path)
        return tsr__missing(session, "path");
    tsr_status status = tsr__temporary_folder(session, base, "work", &temporary);
    if (status == TSR_OK)
        *path = temporary->path;
    return status;
}
