// SPDX-License-Identifier: Apache-2.0
// bundle.c - opens the folder of a partition and checks that its files are unchanged. Files are
// opened only inside the folder and read in blocks of limited size.
//
//     out/manifest.json     ranks, ports, collectives, files
//     out/rank0.onnx        the graph of rank 0;  out/rank0.data: its own weights
//     out/common.data       weights that several ranks use
//
// tsr__bundle_open reads only the manifest. tsr__bundle_verify checks the files of the ranks that
// run here, so a host of a cluster needs no others.
#include "bundle/bundle.h"

#include <errno.h>

// Returns the path of the file `name` in the folder; p is NULL if out of memory.
struct str tsr__bundle_file_path(const struct bundle *bundle, struct arena *arena, const char *name)
{
    size_t n = strlen(bundle->path);
    const char *slash = n && bundle->path[n - 1] == '/' ? "" : "/";
    return tsr__arena_printf(arena, "%s%s%s", bundle->path, slash, name);
}

// Opens a partition and reads its manifest. The folder stays open until tsr__bundle_close.
tsr_status tsr__bundle_open(tsr_session *session, struct arena *arena, const char *path,
                            struct bundle *out)
{
    struct bundle bundle = {.session = session, .path = tsr__arena_str(arena, str_of(path)).p};
    if (!bundle.path)
        return TSR_NOMEM;
    TRY(tsr__folder_open(session, path, &bundle.folder));
    struct str file = tsr__bundle_file_path(&bundle, arena, MANIFEST_NAME), text;
    tsr_status st =
        file.p ? tsr__file_read(session, arena, file.p, MANIFEST_MAX_BYTES, &text) : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__manifest_parse(session, arena, file, text, &bundle.manifest);
    if (st == TSR_OK)
        *out = bundle;
    else
        tsr__folder_close(&bundle.folder);
    return st;
}

void tsr__bundle_close(struct bundle *bundle)
{
    tsr__folder_close(&bundle->folder);
}

// ---- checking files ----------------------------------------------------------------------------

// Computes the digest of the first `bytes` bytes of an open file. `at` is the place for
// diagnostics.
static tsr_status digest_of(const struct bundle *bundle, int fd, uint64_t bytes,
                            const struct place *at, char out[65])
{
    struct sha256 digest;
    const char *why;
    tsr__sha256_init(&digest);
    tsr_status st = tsr__fd_digest(bundle->session, fd, bytes, &digest, &why);
    if (st == TSR_IO)
        tsr__diag(bundle->session, DIAG_io_read, at, NULL, "cannot read: %s", why);
    tsr__sha256_hex(&digest, out);
    return st;
}

tsr_status tsr__bundle_digest(const struct bundle *bundle, struct manifest_file *file)
{
    int fd;
    struct place at = PLACE(.file = str_of(file->name));
    tsr_status st =
        tsr__folder_file(bundle->session, &bundle->folder, str_of(file->name), &at, &fd);
    if (st != TSR_OK)
        return st;
    if (tsr__fd_size(fd, &file->bytes)) {
        st = digest_of(bundle, fd, file->bytes, &at, file->sha256);
    } else {
        tsr__diag(bundle->session, DIAG_io_read, &at, NULL, "cannot read: %s", strerror(errno));
        st = TSR_IO;
    }
    tsr__fd_close(fd);
    return st;
}

// Compares the size of an open file with the manifest, then its digest. The digest of a large file
// is compared only with check_files, because this reads the complete file.
static tsr_status check_open_file(const struct bundle *bundle, const struct manifest_file *file,
                                  int fd, bool check_files, const struct place *at)
{
    uint64_t bytes = 0;
    if (!tsr__fd_size(fd, &bytes) || bytes != file->bytes)
        return tsr__fail(bundle->session, TSR_MALFORMED, DIAG_partition_file_size, at,
                         "copy the folder again, or partition the model again",
                         "%s has %llu bytes, but the manifest records %llu", file->name,
                         (unsigned long long)bytes, (unsigned long long)file->bytes);
    bool small = file->bytes <= MANIFEST_SMALL_BYTES;
    if ((!check_files && !small) || strcmp(file->sha256, NO_DIGEST) == 0)
        return TSR_OK;
    char digest[65];
    tsr_status st = digest_of(bundle, fd, file->bytes, at, digest);
    if (st != TSR_OK || strcmp(digest, file->sha256) == 0)
        return st;
    return tsr__fail(bundle->session, TSR_MALFORMED, DIAG_partition_file_changed, at,
                     "copy the folder again, or partition the model again",
                     "%s has changed: its SHA-256 differs from the manifest", file->name);
}

// Opens and checks a file of the partition, which the manifest lists.
static tsr_status check_file(const struct bundle *bundle, const char *name, bool check_files)
{
    struct place at = PLACE(.file = str_of(name));
    int fd;
    TRY(tsr__folder_file(bundle->session, &bundle->folder, str_of(name), &at, &fd));
    tsr_status st = check_open_file(bundle, tsr__manifest_find(&bundle->manifest, str_of(name)), fd,
                                    check_files, &at);
    tsr__fd_close(fd);
    return st;
}

// Checks the files of these ranks; NULL: of all ranks. Continues after a failure, so that one call
// reports every damaged file. Returns the first failure.
tsr_status tsr__bundle_verify(const struct bundle *bundle, const int64_t *ranks, size_t n_ranks,
                              bool check_files)
{
    const struct manifest *manifest = &bundle->manifest;
    size_t n = ranks ? n_ranks : (size_t)manifest->n_ranks;
    tsr_status first = TSR_OK;
    bool common_seen = false;
    for (size_t i = 0; i < n; i++) {
        int64_t rank = ranks ? ranks[i] : (int64_t)i;
        if (rank < 0 || rank >= manifest->n_ranks)
            return TSR_USAGE; // an error of the caller, not of the folder
        const struct manifest_device *device = &manifest->devices[rank];
        tsr_status st = check_file(bundle, device->file, check_files);
        if (first == TSR_OK)
            first = st;
        for (size_t k = 0; k < device->n_data; k++) {
            bool common = strcmp(device->data[k], MANIFEST_COMMON) == 0 ||
                          strcmp(device->data[k], MANIFEST_COMMON_SAFE) == 0;
            if (common && common_seen)
                continue; // checked once for all ranks
            common_seen |= common;
            st = check_file(bundle, device->data[k], check_files);
            if (first == TSR_OK)
                first = st;
        }
    }
    return first;
}
