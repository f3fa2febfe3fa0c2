// SPDX-License-Identifier: Apache-2.0
// open.c - opens files by names from a model or manifest, but only inside the folder of that file.
//
// Absolute names and names with ".." are rejected. Then openat2 (Linux 5.6) resolves the name
// beneath the folder, which is safe even if a link is swapped at the same time. On older kernels
// every component is opened separately, without following links. If the name contains a link, the
// path of its target is found out first and then opened from the folder, without following links.
//
//     Example: the model /m/x.onnx names its data "w/a.bin". The folder /m is open; "w/a.bin" is
//     opened beneath it. A link w -> /etc leads out and is rejected (EXDEV). If /m/x.onnx is itself
//     a link to /store/blobs/17, as in content stores, files of /store/blobs are allowed as well.
#include "base/internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) // opening a FIFO must not block
#define OPEN_TRIES 100 // openat2 fails with EAGAIN during renames on the path

int tsr__fd_above(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, 3), error = errno;
    close(fd);
    errno = error;
    return above;
}

// Opens a file by openat2. The number of tries is bounded, because an attacker could rename
// forever.
static int open_kernel(int root, const char *name, bool links)
{
    for (int i = 0; i < OPEN_TRIES; i++) {
        int fd = tsr__kernel_open(root, name, OPEN_FLAGS, links);
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
            return fd;
    }
    return -1;
}

// True if the result of openat2 can be used; false if the kernel has no openat2 or a sandbox
// forbids it.
static bool is_answer(int fd)
{
    return fd >= 0 || (errno != ENOSYS && errno != EPERM);
}

static void close_keep_errno(int fd)
{
    int error = errno;
    close(fd);
    errno = error;
}

// Opens component by component: "a/b" opens a, then b beneath it. Links are rejected (ELOOP, or
// ENOTDIR for a link to a folder).
static int open_walking(int root, const char *name)
{
    char part[NAME_MAX + 1];
    int dir = root;
    for (;;) {
        size_t n = strcspn(name, "/");
        const char *rest = name + n + strspn(name + n, "/");
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
            break;
        }
        memcpy(part, name, n);
        part[n] = 0;
        if (n == 0)
            memcpy(part, ".", sizeof ".");
        if (strcmp(part, "..") == 0) {
            errno = EXDEV;
            break;
        }
        bool last = !name[n];
        int flags = last ? OPEN_FLAGS | O_NOFOLLOW : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        int fd = openat(dir, part, flags);
        if (dir != root)
            close_keep_errno(dir);
        if (fd < 0 || last)
            return fd;
        dir = fd;
        name = rest;
    }
    if (dir != root)
        close_keep_errno(dir);
    return -1;
}

// Finds the path of an open file. Returns false if it has none or the path is too long.
static bool path_of_fd(int fd, char out[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n <= 0 || n >= PATH_MAX - 1 || out[0] != '/')
        return false;
    out[n] = 0;
    return true;
}

// Opens a path that was already resolved. A link on it was created since then and is rejected.
static int open_no_links(int root, const char *name, bool use_kernel)
{
    if (!use_kernel)
        return open_walking(root, name);
    int fd = open_kernel(root, name, false);
    return is_answer(fd) ? fd : open_walking(root, name);
}

// Opens `name` of `folder` if its target, after following links, is beneath `root`. Looks up the
// target with O_PATH, checks that it is beneath root, and opens it again without following links.
// If the target was replaced in between, the last step fails.
static int open_through(int folder, const char *name, int root, bool use_kernel)
{
    char target[PATH_MAX], home[PATH_MAX];
    int found = openat(folder, name, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    bool known = path_of_fd(found, target) && path_of_fd(root, home);
    close(found);
    errno = EXDEV;
    if (!known)
        return -1;
    size_t n = strlen(home);
    if (n == 1)
        n = 0; // home is "/"
    // A slash must follow: "/store2/x" is not in "/store".
    if (strncmp(target, home, n) != 0 || target[n] != '/')
        return -1;
    return open_no_links(root, target + n + 1, use_kernel);
}

// Opens a file beneath root. ELOOP and ENOTDIR may come from links that stay beneath root. Such
// links are allowed, so open_through tries again.
int tsr__open_beneath(int root, const char *name, bool use_kernel)
{
    if (use_kernel) {
        int found = open_kernel(root, name, true);
        if (is_answer(found))
            return found;
    }
    int fd = open_walking(root, name);
    if (fd >= 0 || (errno != ELOOP && errno != ENOTDIR))
        return fd;
    return open_through(root, name, root, false);
}

// ---- folders -----------------------------------------------------------------------------------

// Reports that a file cannot be opened, with the text of errno.
static tsr_status refuse_open(tsr_session *session, const char *path, const char *hint)
{
    return tsr__fail(session, TSR_IO, DIAG_io_open, &PLACE(.file = str_of(path)), hint,
                     "cannot open '%s': %s", path, strerror(errno));
}

tsr_status tsr__folder_open(tsr_session *session, const char *path, struct folder *out)
{
    int fd = -1;
    if (!fault_io(session, FAULT_READ))
        fd = tsr__fd_above(open(path, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return refuse_open(session, path, "give the path of a readable folder");
    *out = (struct folder){.fd = fd, .real_fd = -1};
    return TSR_OK;
}

tsr_status tsr__folder_of_file(tsr_session *session, const char *file, struct folder *out)
{
    char real[PATH_MAX];
    struct stat st;
    int fd = fault_io(session, FAULT_READ) ? -1 : tsr__path_open_parent(file, O_PATH);
    if (fd < 0)
        return refuse_open(session, file, NULL);
    *out = (struct folder){.fd = fd, .real_fd = -1};
    // Content stores (such as that of Hugging Face) keep a model and its data as links into one
    // folder. Files of that folder are allowed, too.
    if (lstat(file, &st) == 0 && S_ISLNK(st.st_mode) && realpath(file, real))
        out->real_fd = tsr__path_open_parent(real, O_PATH);
    return TSR_OK;
}

void tsr__folder_close(struct folder *folder)
{
    if (folder->fd > 0)
        close(folder->fd);
    if (folder->real_fd > 0)
        close(folder->real_fd);
    *folder = (struct folder){.fd = -1, .real_fd = -1};
}

bool tsr__folder_has(const struct folder *folder, struct str name)
{
    char path[NAME_MAX + 1];
    if (name.n >= sizeof path)
        return false;
    snprintf(path, sizeof path, STR_FMT, STR_ARG(name));
    return faccessat(folder->fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// ---- files beneath them ------------------------------------------------------------------------

// Returns NULL, or why the name is rejected.
static const char *name_problem(struct str name)
{
    if (name.n == 0)
        return "is empty";
    if (memchr(name.p, 0, name.n))
        return "holds a NUL byte";
    if (name.n >= PATH_MAX)
        return "is too long";
    if (name.p[0] == '/')
        return "is absolute";
    for (size_t i = 0; i < name.n;) {
        const char *slash = memchr(name.p + i, '/', name.n - i);
        size_t n = (slash ? (size_t)(slash - name.p) : name.n) - i;
        if (n == 2 && name.p[i] == '.' && name.p[i + 1] == '.')
            return "has a '..' in it";
        i += n + 1;
    }
    return NULL;
}

// Opens a file in the model's folder. If the model's path is a link, the file may also be in the
// folder of the link's target (the real file). That folder is tried if the file is a link that
// leads out of the model's folder (EXDEV), or is not in the model's folder (ENOENT).
static int open_allowed(const struct folder *folder, const char *name)
{
    int fd = tsr__open_beneath(folder->fd, name, true);
    if (fd >= 0 || folder->real_fd <= 0)
        return fd;
    if (errno == EXDEV)
        return open_through(folder->fd, name, folder->real_fd, true);
    if (errno == ENOENT)
        return tsr__open_beneath(folder->real_fd, name, true);
    return fd;
}

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode))
        return "is a folder";
    if (S_ISFIFO(mode))
        return "is a pipe";
    return S_ISSOCK(mode) ? "is a socket" : "is a device";
}

static const char stay_inside[] = "files that a model names must be in the folder of the model";

// Reports errno for a name that could not be opened.
static tsr_status refuse_name(tsr_session *session, const struct place *at, const char *path)
{
    const char *hint = NULL, *why = NULL;
    int error = errno;
    if (error == EXDEV)
        why = "is a link that leads outside its folder";
    if (error == ELOOP)
        why = "is a link that cannot be followed";
    if (why)
        return tsr__fail(session, TSR_IO, DIAG_path_outside, at, stay_inside, "'%s' %s", path, why);
    if (error == ENOENT)
        hint = "copy the file to the folder of the file that names it";
    return tsr__fail(session, TSR_IO, DIAG_io_open, at, hint, "cannot open '%s': %s", path,
                     strerror(error));
}

// Checks the name, opens it beneath the folder, then checks the type of the file.
tsr_status tsr__folder_file(tsr_session *session, const struct folder *folder, struct str name,
                            const struct place *at, int *fd_out)
{
    char path[PATH_MAX];
    struct stat st;
    const char *fault = name_problem(name);
    if (fault)
        return tsr__fail(session, TSR_IO, DIAG_path_outside, at, stay_inside,
                         "the file name '" STR_FMT "' %s", STR_ARG(name), fault);
    memcpy(path, name.p, name.n);
    path[name.n] = 0;
    int fd = fault_io(session, FAULT_READ) ? -1 : tsr__fd_above(open_allowed(folder, path));
    if (fd < 0)
        return refuse_name(session, at, path);
    if (fstat(fd, &st) != 0) {
        (void)refuse_name(session, at, path);
        close(fd);
        return TSR_IO;
    }
    if (!S_ISREG(st.st_mode)) {
        tsr__diag(session, DIAG_io_open, at, "only regular files are read",
                  "cannot open '%s': it %s", path, kind_of(st.st_mode));
        close(fd);
        return TSR_IO;
    }
    fcntl(fd, F_SETFL, O_RDONLY); // clear O_NONBLOCK
    *fd_out = fd;
    return TSR_OK;
}
