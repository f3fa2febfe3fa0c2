// SPDX-License-Identifier: Apache-2.0
// worker_cache.c - the files that sessions have sent to a worker, by digest.
//
// A file's name is its SHA-256, so two sessions that run the same model share it, and a session can
// only reach files whose digest it knows. A file is written without a name (O_TMPFILE) and linked
// when its digest is right: an interrupted transfer leaves nothing behind. A job links the files
// that it needs into a folder of its own, so they stay while it runs, even if the cache drops them.
// The time of access orders the files; it is set here, because file systems may not keep it.
#include "bundle/bundle.h"
#include "runtime/worker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGEST_NAME 64 // characters

// A file of the cache.
struct cached {
    char name[DIGEST_NAME + 1];
    struct timespec used;
    int64_t bytes;
};

tsr_status tsr__cache_open(tsr_session *session, const char *path, int64_t most,
                           struct worker_cache *out)
{
    struct stat st;
    int fd = -1;
    *out = (struct worker_cache){.session = session, .path = path, .most = most, .fd = -1};
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return tsr__fail(session, TSR_IO, DIAG_io_open, &PLACE(.file = str_of(path)),
                         "name a folder with --cache whose parent exists",
                         "cannot open the folder of the cache: %s", strerror(errno));
    out->fd = fd;
    if (fstat(fd, &st) == 0 && tsr__is_private(&st, S_IWOTH))
        return TSR_OK;
    tsr__cache_close(out);
    return tsr__fail(session, TSR_IO, DIAG_io_open, &PLACE(.file = str_of(path)),
                     "use a folder of this user that no one else can write (chmod go-w)",
                     "other users can change the folder of the cache");
}

void tsr__cache_close(struct worker_cache *cache)
{
    if (cache->fd >= 0)
        close(cache->fd);
    cache->fd = -1;
}

bool tsr__cache_link(const struct worker_cache *cache, const struct remote_file *file, int folder)
{
    struct stat st;
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    if (fstatat(cache->fd, file->sha256, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        st.st_size != file->bytes)
        return false;
    (void)utimensat(cache->fd, file->sha256, now, AT_SYMLINK_NOFOLLOW);
    return linkat(cache->fd, file->sha256, folder, file->name.p, 0) == 0;
}

static bool is_digest(const char *name)
{
    return strspn(name, "0123456789abcdef") == DIGEST_NAME && !name[DIGEST_NAME];
}

static int by_use(const void *a, const void *b)
{
    const struct timespec *x = &((const struct cached *)a)->used,
                          *y = &((const struct cached *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

// Lists the files of the cache, the least recently used first.
static size_t list_cached(const struct worker_cache *cache, struct arena *arena,
                          struct cached **out, int64_t *bytes)
{
    VEC(struct cached) all = {0};
    int fd = openat(cache->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct stat st;
    *bytes = 0;
    while (folder && (entry = readdir(folder))) {
        if (!is_digest(entry->d_name) ||
            fstatat(cache->fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        struct cached *next = vec_push(arena, &all);
        if (!next)
            break;
        memcpy(next->name, entry->d_name, sizeof next->name);
        next->used = st.st_atim;
        next->bytes = (int64_t)st.st_size;
        *bytes += next->bytes;
    }
    if (folder)
        closedir(folder);
    else if (fd >= 0)
        close(fd);
    *out = all.at;
    if (all.n)
        qsort(all.at, all.n, sizeof *all.at, by_use);
    return all.n;
}

bool tsr__cache_make_room(const struct worker_cache *cache, int64_t bytes)
{
    struct arena arena = {.session = cache->session};
    struct cached *all = NULL;
    int64_t have = 0;
    size_t n = list_cached(cache, &arena, &all, &have);
    for (size_t i = 0; i < n && have > cache->most - bytes; i++) {
        if (unlinkat(cache->fd, all[i].name, 0) == 0)
            have -= all[i].bytes;
    }
    tsr__arena_free(&arena);
    return bytes <= cache->most;
}

int tsr__cache_create(const struct worker_cache *cache)
{
    return openat(cache->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

bool tsr__cache_keep(const struct worker_cache *cache, int fd, const struct remote_file *file,
                     struct sha256 *digest)
{
    char got[65], link[64];
    struct stat st;
    tsr__sha256_hex(digest, got);
    if (strcmp(got, file->sha256) != 0 || fstat(fd, &st) != 0 || st.st_size != file->bytes)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, link, cache->fd, file->sha256, AT_SYMLINK_FOLLOW) == 0 ||
           errno == EEXIST;
}
