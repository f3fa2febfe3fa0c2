// SPDX-License-Identifier: Apache-2.0
// shim.c - a preloaded library (LD_PRELOAD) that lets the n-th call of a kind fail, for torture.py.
//
// Calls of the C library are counted by kind (table `kinds`): memory, open, read, write, ... Only
// calls from the watched modules count (TORTURE_MODULES, parts of their file names), not those of
// an engine. Intercepted are all functions below that start with FAIL: malloc, open, read, write,
// fsync, rename, mmap, fork and similar ones, and system calls by number (openat2, getdents64).
//
//   TORTURE_STATE    a file of one page: counts of the calls, shared by all processes
//   TORTURE_KIND     the kind that fails, or `any` for every kind that accesses files
//   TORTURE_AT       number of the failing call of that kind, from 1; 0 only counts
//   TORTURE_HOW      an errno value, or: short (half of the bytes), torn (half of the bytes, then
//                    SIGKILL), kill (SIGKILL)
//   TORTURE_ALWAYS   1: all later calls fail too
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind {
    MEMORY,
    MAP,
    OPEN,
    READ,
    WRITE,
    SYNC,
    RENAME,
    MAKE,
    REMOVE,
    CLOSE,
    STAT,
    RESIZE,
    LOCK,
    START,
    KINDS
};
static const char *const kinds[KINDS] = {"memory", "map",    "open", "read",   "write",
                                         "sync",   "rename", "make", "remove", "close",
                                         "stat",   "resize", "lock", "start"};

// The page that all processes of a trial share. trial.py reads it as 64-bit numbers in this order.
struct state {
    uint64_t seen[KINDS]; // calls of each kind
    uint64_t any;         // calls of all kinds except MEMORY
    uint64_t struck;      // calls that failed on purpose
    uint64_t fd;          // descriptor of the first of them, plus 1
};
enum how { PASS, ERROR, SHORT };
#define ANY KINDS

static struct state own, *state = &own;
static int failing = -1, error_number;
static uint64_t at;
static int always, is_short, is_torn, is_kill;
static struct {
    uintptr_t from, to;
} watched[64];
static int n_watched;

// ---- start --------------------------------------------------------------------------------------

static int note_module(struct dl_phdr_info *info, size_t size, void *data)
{
    const char *words = data;
    char word[64];
    (void)size;
    const char *name = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/program";
    name = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, ":");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        p += n + (p[n] == ':');
        if (strncmp(name, word, strlen(word)) != 0)
            continue;
        for (int i = 0; i < info->dlpi_phnum && n_watched < 64; i++) {
            const ElfW(Phdr) *h = &info->dlpi_phdr[i];
            if (h->p_type != PT_LOAD || !(h->p_flags & PF_X))
                continue;
            watched[n_watched].from = info->dlpi_addr + h->p_vaddr;
            watched[n_watched++].to = info->dlpi_addr + h->p_vaddr + h->p_memsz;
        }
        break;
    }
    return 0;
}

static void read_kind(const char *word)
{
    for (int k = 0; word && k < KINDS; k++)
        if (strcmp(word, kinds[k]) == 0)
            failing = k;
    if (word && strcmp(word, "any") == 0)
        failing = ANY;
}

static void read_how(const char *word)
{
    is_short = word && strcmp(word, "short") == 0;
    is_torn = word && strcmp(word, "torn") == 0;
    is_kill = word && strcmp(word, "kill") == 0;
    error_number = word && !is_short && !is_torn && !is_kill ? (int)strtol(word, NULL, 10) : EIO;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TORTURE_STATE"), *modules = getenv("TORTURE_MODULES");
    const char *number = getenv("TORTURE_AT"), *sticky = getenv("TORTURE_ALWAYS");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *page =
            (void *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
        if (page != MAP_FAILED)
            state = page;
        syscall(SYS_close, fd);
    }
    dl_iterate_phdr(note_module, (void *)(modules ? modules : "program:libtessera"));
    read_how(getenv("TORTURE_HOW"));
    always = sticky && *sticky == '1';
    at = number ? strtoull(number, NULL, 10) : 0;
    read_kind(getenv("TORTURE_KIND"));
}

// ---- decision for each call
// ---------------------------------------------------------------------------

static int is_watched(const void *caller)
{
    uintptr_t p = (uintptr_t)caller;
    for (int i = 0; i < n_watched; i++)
        if (p >= watched[i].from && p < watched[i].to)
            return 1;
    return 0;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0); // arm64 has no SYS_pause
}

// Counts a call and decides what happens to it. `pieces`: it transfers bytes, so that half of them
// is possible.
static enum how strike(enum kind k, const void *caller, int fd, int pieces)
{
    if (!is_watched(caller))
        return PASS;
    uint64_t n = __atomic_add_fetch(&state->seen[k], 1, __ATOMIC_RELAXED);
    uint64_t any = k == MEMORY ? 0 : __atomic_add_fetch(&state->any, 1, __ATOMIC_RELAXED);
    uint64_t number = failing == ANY ? any : n;
    if (at == 0 || number == 0 || (failing != (int)k && failing != ANY))
        return PASS;
    if (always ? number < at : number != at)
        return PASS;
    if (__atomic_fetch_add(&state->struck, 1, __ATOMIC_RELAXED) == 0)
        state->fd = (uint64_t)(fd + 1);
    if (is_kill || (is_torn && !pieces))
        die();
    if ((is_short || is_torn) && pieces)
        return SHORT;
    if (is_short)
        return PASS;
    errno = error_number;
    return ERROR;
}

#define CALLER __builtin_return_address(0)
#define REAL(name)                                                                                 \
    static __typeof__(&name) real;                                                                 \
    if (!real)                                                                                     \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
// Defines a function whose n-th call returns `bad` and sets errno.
#define FAIL(kind, fd, type, bad, name, parameters, arguments)                                     \
    type name parameters                                                                           \
    {                                                                                              \
        REAL(name);                                                                                \
        if (strike(kind, CALLER, fd, 0) == ERROR)                                                  \
            return bad;                                                                            \
        return real arguments;                                                                     \
    }
// Defines a function that transfers n bytes: the failing call may transfer half of them instead,
// and with `torn` the process then kills itself.
#define FAIL_MOVE(kind, fd, name, n, parameters, arguments)                                        \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        REAL(name);                                                                                \
        enum how how = strike(kind, CALLER, fd, 1);                                                \
        if (how == ERROR)                                                                          \
            return -1;                                                                             \
        if (how == SHORT)                                                                          \
            n = n > 1 ? n / 2 : n;                                                                 \
        ssize_t done = real arguments;                                                             \
        if (how == SHORT && is_torn)                                                               \
            die();                                                                                 \
        return done;                                                                               \
    }

// ---- memory -------------------------------------------------------------------------------------

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    return strike(MEMORY, CALLER, -1, 0) == ERROR ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return strike(MEMORY, CALLER, -1, 0) == ERROR ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return strike(MEMORY, CALLER, -1, 0) == ERROR ? NULL : __libc_realloc(p, n);
}

FAIL(MAP, fd, void *, MAP_FAILED, mmap, (void *p, size_t n, int may, int flags, int fd, off_t from),
     (p, n, may, flags, fd, from))
FAIL(MAP, fd, void *, MAP_FAILED, mmap64,
     (void *p, size_t n, int may, int flags, int fd, off64_t from), (p, n, may, flags, fd, from))

// ---- opening ------------------------------------------------------------------------------------

// The mode for a new file is the third or fourth argument; reading it if it is missing does no
// harm.
#define FAIL_OPEN(name, parameters, last, arguments)                                               \
    int name parameters                                                                            \
    {                                                                                              \
        REAL(name);                                                                                \
        va_list list;                                                                              \
        va_start(list, last);                                                                      \
        mode_t mode = (mode_t)va_arg(list, int);                                                   \
        va_end(list);                                                                              \
        if (strike(OPEN, CALLER, -1, 0) == ERROR)                                                  \
            return -1;                                                                             \
        return real arguments;                                                                     \
    }
FAIL_OPEN(open, (const char *path, int flags, ...), flags, (path, flags, mode))
FAIL_OPEN(open64, (const char *path, int flags, ...), flags, (path, flags, mode))
FAIL_OPEN(openat, (int folder, const char *path, int flags, ...), flags,
          (folder, path, flags, mode))
FAIL_OPEN(openat64, (int folder, const char *path, int flags, ...), flags,
          (folder, path, flags, mode))
int __openat64_2(int folder, const char *path, int flags);
int __open64_2(const char *path, int flags);
FAIL(OPEN, -1, int, -1, __openat64_2, (int folder, const char *path, int flags),
     (folder, path, flags))
FAIL(OPEN, -1, int, -1, __open64_2, (const char *path, int flags), (path, flags))
FAIL(OPEN, -1, FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
FAIL(OPEN, -1, FILE *, NULL, fopen64, (const char *path, const char *mode), (path, mode))
FAIL(OPEN, -1, DIR *, NULL, opendir, (const char *path), (path))
FAIL(OPEN, fd, DIR *, NULL, fdopendir, (int fd), (fd))

// System calls by number: openat2 opens, getdents64 reads.
long syscall(long number, ...)
{
    REAL(syscall);
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_openat2 && strike(OPEN, CALLER, -1, 0) == ERROR)
        return -1;
    if (number == SYS_getdents64 && strike(READ, CALLER, (int)a[0], 0) == ERROR)
        return -1;
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// ---- bytes --------------------------------------------------------------------------------------

FAIL_MOVE(READ, fd, read, n, (int fd, void *p, size_t n), (fd, p, n))
FAIL_MOVE(READ, fd, pread, n, (int fd, void *p, size_t n, off_t from), (fd, p, n, from))
FAIL_MOVE(READ, fd, pread64, n, (int fd, void *p, size_t n, off64_t from), (fd, p, n, from))
FAIL_MOVE(WRITE, fd, write, n, (int fd, const void *p, size_t n), (fd, p, n))
FAIL_MOVE(WRITE, out, copy_file_range, n,
          (int in, off64_t *from, int out, off64_t *to, size_t n, unsigned flags),
          (in, from, out, to, n, flags))
FAIL_MOVE(WRITE, fd, writev, n, (int fd, const struct iovec *v, int n), (fd, v, n))
FAIL(READ, -1, struct dirent *, NULL, readdir, (DIR * d), (d))
FAIL(READ, -1, struct dirent64 *, NULL, readdir64, (DIR * d), (d))
FAIL(SYNC, fd, int, -1, fsync, (int fd), (fd))
FAIL(SYNC, fd, int, -1, syncfs, (int fd), (fd))
FAIL(RESIZE, fd, int, -1, ftruncate, (int fd, off_t n), (fd, n))
FAIL(RESIZE, fd, int, -1, ftruncate64, (int fd, off64_t n), (fd, n))
FAIL(STAT, fd, off64_t, -1, lseek64, (int fd, off64_t to, int from), (fd, to, from))

// As in the kernel, the file is closed even after an error.
int close(int fd)
{
    REAL(close);
    enum how how = strike(CLOSE, CALLER, fd, 0);
    int code = real(fd);
    if (how != ERROR)
        return code;
    errno = error_number;
    return -1;
}

// ---- names --------------------------------------------------------------------------------------

FAIL(RENAME, -1, int, -1, rename, (const char *from, const char *to), (from, to))
FAIL(RENAME, -1, int, -1, renameat, (int a, const char *from, int b, const char *to),
     (a, from, b, to))
FAIL(RENAME, -1, int, -1, renameat2,
     (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
FAIL(RENAME, -1, int, -1, link, (const char *from, const char *to), (from, to))
FAIL(MAKE, -1, int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
FAIL(MAKE, -1, char *, NULL, mkdtemp, (char *path), (path))
FAIL(REMOVE, -1, int, -1, unlink, (const char *path), (path))
FAIL(REMOVE, -1, int, -1, unlinkat, (int folder, const char *path, int flags),
     (folder, path, flags))
FAIL(REMOVE, -1, int, -1, rmdir, (const char *path), (path))
FAIL(STAT, fd, int, -1, fstat64, (int fd, struct stat64 *out), (fd, out))
FAIL(STAT, -1, int, -1, stat64, (const char *path, struct stat64 *out), (path, out))
FAIL(STAT, -1, int, -1, lstat64, (const char *path, struct stat64 *out), (path, out))
FAIL(STAT, -1, int, -1, fstatat64, (int folder, const char *path, struct stat64 *out, int flags),
     (folder, path, out, flags))
FAIL(STAT, -1, ssize_t, -1, readlink, (const char *path, char *out, size_t n), (path, out, n))
FAIL(STAT, -1, int, -1, access, (const char *path, int may), (path, may))
FAIL(STAT, -1, char *, NULL, getcwd, (char *out, size_t n), (out, n))
char *__realpath_chk(const char *path, char *out, size_t n);
FAIL(STAT, -1, char *, NULL, __realpath_chk, (const char *path, char *out, size_t n),
     (path, out, n))
FAIL(LOCK, fd, int, -1, flock, (int fd, int operation), (fd, operation))

// ---- processes, threads, and their communication
// ----------------------------------------------------

FAIL(START, -1, pid_t, -1, fork, (void), ())
FAIL(START, -1, int, -1, pipe, (int out[2]), (out))
FAIL(START, -1, int, -1, socketpair, (int domain, int type, int protocol, int out[2]),
     (domain, type, protocol, out))
FAIL(START, -1, int, -1, memfd_create, (const char *name, unsigned flags), (name, flags))
FAIL(START, -1, int, error_number, pthread_create,
     (pthread_t * out, const pthread_attr_t *how, void *(*work)(void *), void *data),
     (out, how, work, data))
