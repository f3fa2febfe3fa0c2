// SPDX-License-Identifier: Apache-2.0
// worker.h - a worker: waits for sessions of other hosts and runs their ranks (tsr_worker of
// tessera_cli.h).
//
//   worker.c          listens and authenticates; starts a process for each session
//   worker_session.c  that process: receives the job and its files, starts the ranks
//   worker_cache.c    the files, by digest
#ifndef TSR_WORKER_H
#define TSR_WORKER_H

#include "runtime/remote.h"

#define SESSION_FOLDERS "tessera-worker-" // start of their names, in the cache

// Serves one session, in a process of its own. Returns when the session has ended.
tsr_status tsr__worker_serve(tsr_session *session, const tsr_worker_options *options,
                             struct line *line, const char *from);

// ---- the cache (worker_cache.c) -----------------------------------------------------------------

// Files by digest, in a folder of this user. A file is complete, or is not there: it is written
// under another name and renamed when its digest is right.
struct worker_cache {
    tsr_session *session;
    const char *path;
    int fd;       // of the folder
    int64_t most; // bytes
};
// Opens the folder and creates it if it is not there. Adds a diagnostic.
tsr_status tsr__cache_open(tsr_session *session, const char *path, int64_t most,
                           struct worker_cache *out) TSR_MUST_USE;
void tsr__cache_close(struct worker_cache *cache);
// Links the file of that digest to its name in a folder (a descriptor). False: it is not there.
bool tsr__cache_link(const struct worker_cache *cache, const struct remote_file *file, int folder);
// Removes files, the least recently used first, until `bytes` more fit. False: they do not fit.
bool tsr__cache_make_room(const struct worker_cache *cache, int64_t bytes);
// tsr__cache_create opens a file without a name, which the caller fills; -1: errno has the reason.
// tsr__cache_keep checks its digest and size and gives it its name. Otherwise it disappears.
int tsr__cache_create(const struct worker_cache *cache);
bool tsr__cache_keep(const struct worker_cache *cache, int fd, const struct remote_file *file,
                     struct sha256 *digest);

#endif
