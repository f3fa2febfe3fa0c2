// SPDX-License-Identifier: Apache-2.0
// register.c - libtessera_ops.so: the communication operators for a stock ONNX Runtime, in a
// process without Tessera: SessionOptions.register_custom_ops_library(path), then load a rank file.
//
// The rank of a session comes from the launcher (mpirun), or from the session's configuration
// entries `tessera.rank` and `tessera.size` if several ranks are threads of one process
// (`tessera.job` distinguishes jobs). A process has one place in an MPI job, so this file has
// global state, created at the first registration and never freed.
//
// Every registration creates operators for that session. Registration also succeeds without a rank;
// the creation of every kernel then fails with the reason.
#include "ops/ops.h"

#include <pthread.h>
#include <stdio.h>

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options,
                                                                    const OrtApiBase *base);

#define MAX_JOBS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// Protected by the lock. `mpi` is the endpoint of this process in the job of its launcher, with or
// without MPI. Thread jobs are never freed, because ONNX Runtime does not report the end of a
// session.
static struct process {
    tsr_session *session;
    struct endpoint *mpi;
    char mpi_error[256]; // not empty: joining the launcher's job failed
    struct thread_jobs {
        char name[64];
        int size;
        struct thread_job *job;
    } jobs[MAX_JOBS];
    int n_jobs;
} process;

// Reads an entry of the session options. Returns false if it is not set.
static bool entry(const OrtApi *api, const OrtSessionOptions *options, const char *key, char *out,
                  size_t n)
{
    int has = 0;
    OrtStatus *st = api->HasSessionConfigEntry(options, key, &has);
    if (!st && has)
        st = api->GetSessionConfigEntry(options, key, out, &n);
    if (st) {
        api->ReleaseStatus(st);
        return false;
    }
    return has;
}

// Reads a numeric entry. Returns false if it is not set or not a number.
static bool entry_int(const OrtApi *api, const OrtSessionOptions *options, const char *key,
                      int64_t *out)
{
    char text[32];
    return entry(api, options, key, text, sizeof text) && tsr__str_int(str_of(text), out);
}

static tsr_status join(const char *family)
{
    if (tsr__launcher_is_mpi(family))
        return tsr__mpi_open(process.session, family, NULL, &process.mpi);
    return tsr__env_open(process.session, NULL, &process.mpi);
}

// Joins the job of the launcher. This is tried once; later engine sessions get the first error.
static struct endpoint *join_mpi(const char *family, char *why, size_t n)
{
    if (!process.mpi && !process.mpi_error[0] && join(family) != TSR_OK) {
        size_t last = tsr_finding_count(process.session);
        snprintf(process.mpi_error, sizeof process.mpi_error, "%s",
                 last ? tsr_finding_value(process.session, last - 1).message
                      : "MPI does not start");
    }
    snprintf(why, n, "%s", process.mpi_error);
    return process.mpi;
}

// Joins the job of that name and size, created if necessary. A failed job is not joined again, so a
// program can create its sessions anew after a failure.
static struct endpoint *join_threads(const char *name, int64_t rank, int64_t size, char *why,
                                     size_t n)
{
    struct thread_jobs *jobs = NULL;
    for (int i = 0; i < process.n_jobs; i++)
        if (strcmp(process.jobs[i].name, name) == 0 && process.jobs[i].size == size &&
            !tsr__threads_trouble(process.jobs[i].job))
            jobs = &process.jobs[i];
    if (rank < 0 || size < 1 || size > 1024 || rank >= size ||
        (!jobs && process.n_jobs == MAX_JOBS)) {
        snprintf(why, n, "tessera.rank and tessera.size do not match, or there are too many jobs");
        return NULL;
    }
    if (!jobs) {
        struct thread_job *job = tsr__threads_new(process.session, (int)size);
        if (!job) {
            snprintf(why, n, "out of memory");
            return NULL;
        }
        jobs = &process.jobs[process.n_jobs++];
        snprintf(jobs->name, sizeof jobs->name, "%s", name);
        jobs->size = (int)size;
        jobs->job = job;
    }
    return tsr__threads_endpoint(jobs->job, (int)rank);
}

// Finds the endpoint of the engine's session with these options. Returns NULL with the reason in
// `why`.
static struct endpoint *find_place(const OrtApi *api, const OrtSessionOptions *options, char *why,
                                   size_t n)
{
    int64_t rank = 0, size = 1;
    int launched_rank, launched_size;
    const char *family;
    char name[64] = "";
    if (!process.session && !(process.session = tsr_session_new(NULL))) {
        snprintf(why, n, "out of memory");
        return NULL;
    }
    // Entries of the session take precedence over the launcher.
    bool configured = entry_int(api, options, "tessera.rank", &rank) &&
                      entry_int(api, options, "tessera.size", &size);
    entry(api, options, "tessera.job", name, sizeof name);
    if (configured)
        return join_threads(name, rank, size, why, n);
    if (tsr_launcher(&launched_rank, &launched_size, &family))
        return join_mpi(family, why, n);
    snprintf(why, n,
             "this process has no rank: start it with mpirun, or set the session's configuration "
             "entries tessera.rank and tessera.size");
    return NULL;
}

OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)
{
    int minor = tsr__ort_minor(base->GetVersionString());
    const OrtApi *api = base->GetApi(minor < ORT_API ? (uint32_t)minor : ORT_API);
    if (!api)
        return NULL; // cannot report an error
    if (minor < ORT_API)
        return api->CreateStatus(ORT_FAIL, "Tessera's operators need ONNX Runtime 1.17 or later");
    char why[256] = "";
    struct ops *ops; // never freed: the end of the session is not reported
    pthread_mutex_lock(&lock);
    struct endpoint *endpoint = find_place(api, options, why, sizeof why);
    pthread_mutex_unlock(&lock);
    return tsr__ops_add(api, minor, options, endpoint, why, &ops);
}
