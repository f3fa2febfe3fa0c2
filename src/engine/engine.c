// SPDX-License-Identifier: Apache-2.0
// engine.c - finds and opens ONNX Runtime at run time: any release from 1.17 on.
//
// There is one struct engine per session, created when it is first needed and freed with the
// session. Only what ONNX Runtime itself keeps per process is global: its environment
// (reference-counted) and the library, which is never unloaded.
#include "engine/engine.h"
#include "gpu/gpu.h"
#include "transport/transport.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#define OLDEST_MINOR 17
#define NEWEST_MINOR 60  // newest minor version among the names that are tried
#define ENV_TRIES    100 // together one second

static const char *const loader_names[] = {"libonnxruntime.so", "libonnxruntime.so.1"};

static const char hint_absent[] =
    "install it (pip install onnxruntime, or Debian's libonnxruntime) or give the path of the "
    "library: tsr_engine_open in C, TESSERA_ORT=/path/to/libonnxruntime.so for the command and "
    "Python";

// Loads ONNX Runtime. path NULL: tries the usual names, then names with a version, the newest
// first. Returns NULL if none could be opened; dlerror then refers to the last one.
static void *open_library(const char *path)
{
    // ONNX Runtime has threads and exit handlers, so it is never unloaded
    int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    if (path)
        return dlopen(path, flags);
    for (size_t i = 0; i < TSR_COUNT(loader_names); i++) {
        void *handle = dlopen(loader_names[i], flags);
        if (handle)
            return handle;
    }
    for (int minor = NEWEST_MINOR; minor >= OLDEST_MINOR; minor--) { // as Debian names it
        char name[32];
        snprintf(name, sizeof name, "libonnxruntime.so.1.%d", minor);
        void *handle = dlopen(name, flags);
        if (handle)
            return handle;
    }
    return NULL;
}

// Writes the path of the loaded library, for messages; its name if the loader does not provide the
// path.
static void library_path(void *handle, const char *path, char *out, size_t n)
{
    struct link_map *map = NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0])
        path = map->l_name;
    snprintf(out, n, "%s", path ? path : loader_names[0]);
}

// Returns the API base of a library. NULL: it is not ONNX Runtime.
static const OrtApiBase *base_of(void *handle)
{
    void *symbol = dlsym(handle, "OrtGetApiBase");
    const OrtApiBase *(*get_base)(void);
    if (!symbol)
        return NULL;
    memcpy(&get_base, &symbol, sizeof get_base); // ISO C has no cast from data to function
    return get_base();
}

// Opens the table of functions; adds a diagnostic on failure. Releases provide older tables on
// request: the newer table is requested only if the release has it (memory statistics), else the
// one of 1.17. All functions in use are in the older one, or are guarded by engine->minor.
static tsr_status open_api(tsr_session *session, const OrtApiBase *base, struct engine *engine)
{
    struct place at = PLACE(.file = str_of(engine->path));
    if (!base)
        return tsr__fail(session, TSR_ENGINE, DIAG_engine_absent, &at, hint_absent,
                         "this library is not ONNX Runtime");
    snprintf(engine->version, sizeof engine->version, "%s", base->GetVersionString());
    engine->minor = tsr__ort_minor(engine->version);
    engine->api = NULL;
    if (engine->minor >= ORT_API_STATS)
        engine->api = base->GetApi(ORT_API_STATS);
    else if (engine->minor >= OLDEST_MINOR)
        engine->api = base->GetApi(ORT_API);
    if (engine->api)
        return TSR_OK;
    return tsr__fail(
        session, TSR_ENGINE, DIAG_engine_version, &at, "use ONNX Runtime 1.17 or later",
        "ONNX Runtime %s is not supported: too old, or an unknown version", engine->version);
}

// Opens the environment of the process. ONNX Runtime refuses a new one while another thread
// releases the last reference ("Only one instance of LoggingManager"), which takes a moment with
// GPU providers. So this retries.
static OrtStatus *open_shared_env(struct engine *engine)
{
    const struct timespec nap = {.tv_nsec = 10000000};
    OrtStatus *st = NULL;
    for (int tries = 0; tries < ENV_TRIES; tries++) {
        st = engine->api->CreateEnv(ORT_LOG_FATAL, "tessera",
                                    &engine->env); // diagnostics report errors, not stderr
        if (!st || tries + 1 == ENV_TRIES)
            break;
        engine->api->ReleaseStatus(st);
        nanosleep(&nap, NULL);
    }
    return st;
}

static void close_env(struct engine *engine)
{
    if (engine->memory)
        engine->api->ReleaseMemoryInfo(engine->memory);
    if (engine->env)
        engine->api->ReleaseEnv(engine->env);
    engine->memory = NULL;
    engine->env = NULL;
}

// Creates environment, memory info and allocator. On failure, adds a diagnostic and releases what
// was created: the caller then drops the table of functions.
static tsr_status open_env(tsr_session *session, struct engine *engine)
{
    OrtStatus *st = open_shared_env(engine);
    if (!st)
        st = engine->api->CreateCpuMemoryInfo(ORT_ARENA_ALLOCATOR, ORT_MEMORY_DEFAULT,
                                              &engine->memory);
    if (!st)
        st = engine->api->GetAllocatorWithDefaultOptions(&engine->allocator);
    if (!st)
        return TSR_OK;
    tsr__diag(session, DIAG_engine_absent, &PLACE(.file = str_of(engine->path)), hint_absent,
              "ONNX Runtime does not start: %s", engine->api->GetErrorMessage(st));
    engine->api->ReleaseStatus(st);
    close_env(engine);
    return TSR_ENGINE;
}

// Frees the engine. Order: the allocator before the endpoint whose memory it uses, the endpoint
// before the GPU driver, ONNX Runtime's environment after the sessions in it.
static void engine_free(tsr_session *session, void *engine)
{
    struct engine *e = engine;
    tsr__reach_end(e);
    tsr__comm_close(e->joined);
    tsr__gpu_close(session, e->gpu);
    tsr__arena_free(&e->facts_arena);
    close_env(e);
    tsr__free(session, e, sizeof *e);
}

// Returns the engine of a session, and creates it if necessary. Sessions that run no model need it
// too: it stores the endpoint to other ranks.
struct engine *tsr__engine_state(tsr_session *session)
{
    if (session->engine)
        return session->engine;
    struct engine *engine = tsr__alloc(session, sizeof *engine);
    if (!engine)
        return NULL;
    memset(engine, 0, sizeof *engine);
    tsr__arena_init(&engine->facts_arena, session);
    session->engine = engine;
    session->engine_free = engine_free;
    return engine;
}

static tsr_status engine_open(tsr_session *session, struct engine *engine, const char *path)
{
    void *handle = open_library(path);
    if (!handle) {
        const char *why = dlerror();
        return tsr__fail(session, TSR_ENGINE, DIAG_engine_absent, &PLACE(.file = str_of(path)),
                         hint_absent, "ONNX Runtime was not found: %s",
                         why ? why : "no such library");
    }
    library_path(handle, path, engine->path, sizeof engine->path);
    tsr_status st = open_api(session, base_of(handle), engine);
    if (st == TSR_OK)
        st = open_env(session, engine);
    if (st != TSR_OK)
        engine->api = NULL; // so that another library can be tried
    return st;
}

// Makes the session use the ONNX Runtime that loaded the execution provider (src/ep). The engine
// sessions of the ranks use the environment of the application.
tsr_status tsr__engine_adopt(tsr_session *session, const OrtApiBase *base)
{
    struct engine *engine = tsr__engine_state(session);
    if (!engine)
        return TSR_NOMEM;
    if (engine->api)
        return TSR_OK;
    snprintf(engine->path, sizeof engine->path, "%s", "(that of this process)");
    tsr_status st = open_api(session, base, engine);
    if (st == TSR_OK)
        st = open_env(session, engine);
    if (st != TSR_OK)
        engine->api = NULL;
    return st;
}

// Loads ONNX Runtime. The first call that succeeds decides which library is used; later calls
// ignore `path`.
tsr_status tsr_engine_open(tsr_session *session, const char *path, const char **found,
                           const char **version)
{
    if (!session)
        return TSR_INVALID;
    struct engine *engine = tsr__engine_state(session);
    if (!engine)
        return TSR_NOMEM;
    if (!engine->api)
        TRY(engine_open(session, engine, path));
    if (found)
        *found = engine->path;
    if (version)
        *version = engine->version;
    return TSR_OK;
}

tsr_status tsr__engine(tsr_session *session, struct engine **out)
{
    tsr_status st = tsr_engine_open(session, NULL, NULL, NULL);
    if (st == TSR_OK)
        *out = session->engine;
    return st;
}

// Returns the minor version of a release 1.x, else 0. Examples: "1.31.1" gives 31, "1.17.0-dev"
// gives 17, "2.0" gives 0.
int tsr__ort_minor(const char *version)
{
    int minor = 0;
    if (!version || strncmp(version, "1.", 2) != 0)
        return 0;
    for (const char *digit = version + 2; *digit >= '0' && *digit <= '9'; digit++) {
        minor = minor * 10 + (*digit - '0');
        if (minor >= 10000)
            break;
    }
    return minor;
}

// ---- quirks (quirks.def) ------------------------------------------------------------------------

static const struct {
    int first, last;
} versions[] = {
#define QUIRK(name, first, last, wrong, workaround, test) [QUIRK_##name] = {first, last},
#include "engine/quirks.def"
#undef QUIRK
};

bool tsr__quirk_applies(enum quirk quirk, int minor)
{
    return minor >= versions[quirk].first &&
           (!versions[quirk].last || minor <= versions[quirk].last);
}
