// SPDX-License-Identifier: Apache-2.0
// temporary.c - temporary folders of a session, and outputs under their temporary names.
//
// Temporary files and folders are removed in one of three ways:
// - The session removes those that it no longer needs.
// - A signal handler removes them with tsr_session_sweep. So their paths are stored in slots of
//   fixed size that need neither locks nor memory.
// - The next process that creates something of the same kind in the same folder removes what a
//   killed process left behind (a sweep). Names contain the pid, and the owner holds a lock (flock)
//   that the kernel releases when the owner dies.
//
//     Example: process 4711 creates /tmp/tessera-verify-4711-x3Fq9z and is killed with SIGKILL. The
//     next `verify` in /tmp reads the pid from the name and takes the lock, so the owner is gone.
//     No process has this pid and the folder belongs to the same user: it is removed.
//
// A new folder exists for a moment before its owner has the lock. Two rules make that safe, also
// between hosts or containers that share the folder and do not see each other's pids:
// - a sweeper removes a folder only while it holds the lock;
// - an owner waits for a lock that a sweeper holds, then checks that the folder still exists.
// On file systems without locks nothing is swept.
#include "base/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEPTH    4 // nesting of folders in a temporary folder; this program creates two levels
#define REMOVE_TRIES 1000  // other threads may still write while a signal is handled
#define QUIET_TRIES  3     // a call may be interrupted, a network file system may fail
#define SWEEP_MOST   10000 // entries of a folder that are examined
#define STRANGE_S    10    // minimal age in seconds if another process has the pid now
#define LOCK_TRIES   200   // tries, 1 ms apart; sweepers hold locks for a few system calls
#define FOLDER_TRIES 10    // sweepers may remove new folders

// ---- removing, also inside a signal handler -----------------------------------------------------

static bool remove_tree(int parent, const char *name, int depth);

// Removes all contents of an open folder. Uses system calls only.
static void empty_folder(int fd, int depth)
{
    _Alignas(struct dirent) char buffer[2048];
    for (;;) {
        long n = tsr__kernel_entries(fd, (struct dirent *)buffer, sizeof buffer);
        // End of the folder, or an error, which appears again when the folder itself is removed.
        // Some file systems skip names during removal; callers try again.
        if (n <= 0)
            return;
        for (long at = 0; at < n;) {
            const struct dirent *entry = (const struct dirent *)(buffer + at);
            const char *name = entry->d_name;
            at += entry->d_reclen;
            bool itself = name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
            if (!itself)
                (void)remove_tree(fd, name, depth + 1);
        }
    }
}

// Removes a file, a link or a folder with its contents. True if it is gone. Folders deeper than
// MAX_DEPTH were not created by this program; they and their parents stay.
static bool remove_tree(int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return true;
    if (depth > MAX_DEPTH)
        return false;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) { // a folder that cannot be opened can still be removed if it is empty
        empty_folder(fd, depth);
        close(fd);
    }
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

// Removes all contents of an open folder. Rewinds the descriptor first, because it may have been
// read before.
void tsr__folder_empty(int fd)
{
    if (fd > 0 && lseek(fd, 0, SEEK_SET) == 0)
        empty_folder(fd, 0);
}

bool tsr__folder_remove(const char *path)
{
    for (int i = 0; i < QUIET_TRIES; i++) {
        if (unlink(path) == 0 || errno == ENOENT)
            return true; // also removes a link in place of the folder
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            empty_folder(fd, MAX_DEPTH); // at the deepest level only files are removed
            close(fd);
        }
        if (rmdir(path) == 0 || errno == ENOENT)
            return true;
    }
    return false;
}

// Removes a folder with its contents. Failures are not reported, because a later process removes
// what is left.
void tsr__tree_remove(const char *path)
{
    for (int i = 0; i < QUIET_TRIES; i++)
        if (remove_tree(AT_FDCWD, path, 0))
            return;
}

// Removes the temporary files of the session. Async-signal-safe; keeps errno. A forked child has
// the same slots but is not their owner, so it removes nothing.
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

// ---- locks --------------------------------------------------------------------------------------

// True if `name` in the folder `parent` is still the file that is open as fd.
static bool still_named(int parent, const char *name, int fd)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && fstatat(parent, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

bool tsr__temporary_lock(int parent, const char *name, int fd)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            break; // no locks on this file system, so no sweeper can have one either
        if (i == LOCK_TRIES)
            return false;
        nanosleep(&pause, NULL);
    }
    return still_named(parent, name, fd);
}

// ---- slots --------------------------------------------------------------------------------------

// Registers a path for removal. Sets `used` last, because a signal handler must see a complete
// path.
struct temporary *tsr__temporary_note(tsr_session *session, const char *path)
{
    size_t n = strlen(path);
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

// Unregisters a path. Frees the slot before it releases the lock, because a signal handler must not
// remove a file that has become an output.
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
    // A forked child has a copy of the session and must not remove its parent's files.
    if (temporary->owner == getpid()) {
        tsr__folder_empty(temporary->fd);
        tsr__tree_remove(temporary->path);
    }
    tsr__temporary_forget(temporary);
}

bool tsr__is_temporary(const tsr_session *session, const char *path)
{
    for (size_t i = 0; i < TSR_COUNT(session->temporaries); i++) {
        const struct temporary *temporary = &session->temporaries[i];
        size_t n = strlen(temporary->path);
        // Only folders have a descriptor; outputs that will be renamed have none.
        if (atomic_load(&temporary->used) && temporary->fd >= 0 &&
            strncmp(path, temporary->path, n) == 0 && path[n] == '/')
            return true;
    }
    return false;
}

// ---- sweeping -----------------------------------------------------------------------------------

// Returns 4711 for "tessera-verify-4711-x3Fq9z" and the prefix "tessera-verify-"; 0 for other
// names.
static long process_of(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0 || name[n] < '1' || name[n] > '9')
        return 0;
    long pid = strtol(name + n, &end, 10);
    return *end == '-' && pid > 0 && pid < INT32_MAX ? pid : 0;
}

// True if the process that created the file or folder was killed; the caller then holds the lock.
// If a process with this pid exists, the file must also be old. That process may be a new one with
// the same pid, or the creator just before it takes the lock.
static bool is_abandoned(int fd, long pid)
{
    struct stat st;
    bool ours = fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode));
    if (!ours || flock(fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    bool exists = kill((pid_t)pid, 0) == 0 || errno != ESRCH;
    return !exists || (pid != getpid() && time(NULL) - st.st_ctime > STRANGE_S);
}

// Removes an abandoned file or folder. Holds the lock until the removal is complete; see the rules
// at the top.
static void sweep_entry(int folder, const char *name, long pid)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (is_abandoned(fd, pid) && still_named(folder, name, fd))
        (void)remove_tree(folder, name, 0);
    close(fd);
}

void tsr__temporary_sweep(int folder, const char *prefix)
{
    // fdopendir closes its descriptor later, so pass a duplicate
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (again < 0)
        return;
    DIR *dir = fdopendir(again);
    if (!dir) {
        close(again);
        return;
    }
    for (int i = 0; i < SWEEP_MOST; i++) {
        const struct dirent *dirent = readdir(dir);
        if (!dirent)
            break;
        long pid = process_of(dirent->d_name, prefix);
        if (pid)
            sweep_entry(folder, dirent->d_name, pid);
    }
    closedir(dir);
}

// ---- temporary folders --------------------------------------------------------------------------

static tsr_status report_no_temporary(tsr_session *session, const char *base, const char *why)
{
    return tsr__fail(session, TSR_WRITE, DIAG_io_write, &PLACE(.file = str_of(base)),
                     "set TMPDIR to a folder that can be written",
                     "cannot create a temporary folder: %s", why);
}

static void sweep_base(const char *base, const char *prefix)
{
    int fd = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    tsr__temporary_sweep(fd, prefix);
    close(fd);
}

// Creates a folder as mkdtemp does, opens and locks it. Returns the descriptor, or -1 with errno.
// If a sweeper removes the folder before it is locked, tries another name.
static int make_locked(const char *pattern, char path[TEMPORARY_PATH])
{
    for (int i = 0; i < FOLDER_TRIES; i++) {
        memcpy(path, pattern, strlen(pattern) + 1);
        if (!mkdtemp(path))
            return -1;
        int fd = tsr__fd_above(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (fd < 0 && errno != ENOENT) {
            int error = errno;
            rmdir(path);
            errno = error;
            return -1;
        }
        if (fd >= 0 && tsr__temporary_lock(AT_FDCWD, path, fd))
            return fd;
        rmdir(path);
        if (fd >= 0)
            close(fd);
    }
    errno = EWOULDBLOCK;
    return -1;
}

// Creates a temporary folder. The folder stays open, because its descriptor holds the lock.
tsr_status tsr__temporary_folder(tsr_session *session, const char *base, const char *kind,
                                 struct temporary **out)
{
    char prefix[48], pattern[TEMPORARY_PATH], path[TEMPORARY_PATH];
    if (!base || !*base)
        base = "/tmp";
    snprintf(prefix, sizeof prefix, "tessera-%s-", kind);
    int n = snprintf(pattern, sizeof pattern, "%s/%s%d-XXXXXX", base, prefix, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof pattern)
        return report_no_temporary(session, base, strerror(ENAMETOOLONG));
    sweep_base(base, prefix);
    if (tsr__fault(session, FAULT_WRITE))
        return report_no_temporary(session, base, strerror(EIO));
    int fd = make_locked(pattern, path);
    if (fd < 0)
        return report_no_temporary(session, base, strerror(errno));
    struct temporary *temporary = tsr__temporary_note(session, path);
    if (!temporary) {
        rmdir(path);
        close(fd);
        return report_no_temporary(session, base, "too many temporary folders at the same time");
    }
    temporary->fd = fd;
    *out = temporary;
    return TSR_OK;
}

// Creates a temporary folder for the caller. The folder is removed when the session is freed.
tsr_status tsr_session_temporary(tsr_session *session, const char *base, const char **path)
{
    struct temporary *temporary = NULL;
    TRY(tsr__given(session, "path", path));
    tsr_status status = tsr__temporary_folder(session, base, "work", &temporary);
    if (status == TSR_OK)
        *path = temporary->path;
    return status;
}
