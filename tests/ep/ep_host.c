// SPDX-License-Identifier: Apache-2.0
// ep_host.c - a program that uses the execution provider as applications do, to be run under
// sanitizers and valgrind: ep_host ONNXRUNTIME LIBRARY MODEL FOLDER
//
// The model has the input "x" and the output "y", both of 2 x 64 floats. The program prints "ok" if
// all sessions return the same numbers and every error is reported.
#include "ep/ort_ep.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENTS 128
#define THREADS  4
#define RUNS     5
#define OPENED   2

// Functions for applications that our header does not declare, by their position in OrtApi.
typedef void (*any_function)(void);
typedef OrtStatus *(*register_function)(OrtEnv *env, const char *name, const char *path);
typedef OrtStatus *(*unregister_function)(OrtEnv *env, const char *name);
typedef OrtStatus *(*devices_function)(const OrtEnv *env, const OrtEpDevice *const **out,
                                       size_t *n);
typedef OrtStatus *(*append_function)(OrtSessionOptions *options, OrtEnv *env,
                                      const OrtEpDevice *const *devices, size_t n_devices,
                                      const char *const *keys, const char *const *values, size_t n);
typedef const char *(*name_function)(const OrtEpDevice *device);
enum { REGISTER = 301, UNREGISTER = 302, DEVICES = 303, APPEND = 304, EP_NAME_OF = 312 };
#define CALL(type, position) ((type)((const any_function *)ort)[position])

static const OrtApi *ort;
static float expected[ELEMENTS];

static void fail(const char *text)
{
    fprintf(stderr, "ep_host: %s\n", text);
    exit(1);
}

static void check(OrtStatus *status)
{
    if (status)
        fail(ort->GetErrorMessage(status));
}

// Ends the program unless the call failed with a message that has this word.
static void must_fail(OrtStatus *status, const char *word)
{
    if (!status || !strstr(ort->GetErrorMessage(status), word))
        fail(status ? ort->GetErrorMessage(status) : "a call did not fail");
    ort->ReleaseStatus(status);
}

// `cache` is the folder of the option cache; NULL: none.
static OrtSessionOptions *make_options(OrtEnv *env, const char *devices, const char *cache)
{
    const char *const keys[] = {"devices", "strict", "cache"};
    const char *const values[] = {devices, "1", cache};
    const OrtEpDevice *const *all = NULL;
    OrtSessionOptions *options = NULL;
    size_t n = 0, at = 0;
    check(CALL(devices_function, DEVICES)(env, &all, &n));
    while (at < n &&
           strcmp(CALL(name_function, EP_NAME_OF)(all[at]), "TesseraExecutionProvider") != 0)
        at++;
    if (at == n)
        fail("the provider has no device");
    check(ort->CreateSessionOptions(&options));
    check(ort->SetIntraOpNumThreads(options, 1));
    check(CALL(append_function, APPEND)(options, env, &all[at], 1, keys, values, cache ? 3 : 2));
    return options;
}

static OrtSession *open_session(OrtEnv *env, const char *path, const char *context)
{
    OrtSession *session = NULL;
    OrtSessionOptions *options = make_options(env, "2", NULL);
    if (context) {
        check(ort->AddSessionConfigEntry(options, "ep.context_enable", "1"));
        check(ort->AddSessionConfigEntry(options, "ep.context_file_path", context));
    }
    check(ort->CreateSession(env, path, options, &session));
    ort->ReleaseSessionOptions(options);
    return session;
}

// Opens the model from memory, so that the provider must take the graph from ONNX Runtime.
static OrtSession *open_bytes(OrtEnv *env, const char *path)
{
    OrtSession *session = NULL;
    OrtSessionOptions *options = make_options(env, "2", NULL);
    FILE *file = fopen(path, "rb");
    size_t most = (size_t)1 << 20;
    void *bytes = malloc(most);
    if (!file || !bytes)
        fail("cannot read the model");
    size_t n = fread(bytes, 1, most, file);
    fclose(file);
    check(ort->CreateSessionFromArray(env, bytes, n, options, &session));
    free(bytes);
    ort->ReleaseSessionOptions(options);
    return session;
}

static OrtStatus *run(OrtSession *session, int64_t rows, float *y)
{
    const char *const input = "x", *const output = "y";
    const int64_t shape[] = {rows, 64};
    float x[ELEMENTS];
    OrtMemoryInfo *memory = NULL;
    OrtValue *in = NULL, *out = NULL;
    void *data = NULL;
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = (float)(i % 7);
    check(ort->CreateCpuMemoryInfo(0, 0, &memory));
    check(ort->CreateTensorWithDataAsOrtValue(memory, x, (size_t)rows * 64 * sizeof *x, shape, 2,
                                              TSR_FLOAT, &in));
    OrtStatus *failed =
        ort->Run(session, NULL, &input, (const OrtValue *const *)&in, 1, &output, 1, &out);
    if (!failed) {
        check(ort->GetTensorMutableData(out, &data));
        memcpy(y, data, ELEMENTS * sizeof *y);
        ort->ReleaseValue(out);
    }
    ort->ReleaseValue(in);
    ort->ReleaseMemoryInfo(memory);
    return failed;
}

static void compare(OrtSession *session)
{
    float y[ELEMENTS];
    check(run(session, 2, y));
    for (int i = 0; i < ELEMENTS; i++)
        if (y[i] - expected[i] > 1e-3f || expected[i] - y[i] > 1e-3f)
            fail("a session returned other numbers");
}

static void *run_often(void *session)
{
    for (int i = 0; i < RUNS; i++)
        compare(session);
    return NULL;
}

// Runs the sessions at the same time, each in several threads.
static void run_together(OrtSession **sessions, int n)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run_often, sessions[i % n]) != 0)
            fail("cannot start a thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

struct opener {
    OrtEnv *env;
    const char *model;
    char cache[4096]; // empty: none
};

static void *open_often(void *data)
{
    const struct opener *opener = data;
    for (int i = 0; i < OPENED; i++) {
        OrtSession *session = NULL;
        OrtSessionOptions *options =
            make_options(opener->env, "2", opener->cache[0] ? opener->cache : NULL);
        check(ort->CreateSession(opener->env, opener->model, options, &session));
        ort->ReleaseSessionOptions(options);
        compare(session);
        ort->ReleaseSession(session);
    }
    return NULL;
}

// Opens, runs and releases sessions in several threads, which share a cache folder or have none.
static void open_together(OrtEnv *env, const char *model, const char *folder)
{
    pthread_t threads[THREADS];
    struct opener openers[2] = {{env, model, ""}, {env, model, ""}};
    snprintf(openers[1].cache, sizeof openers[1].cache, "%s/cache", folder);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, open_often, &openers[i > 0]) != 0)
            fail("cannot start a thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void plain_numbers(OrtEnv *env, const char *model)
{
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateSession(env, model, options, &session));
    check(run(session, 2, expected));
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
}

static void wrong_use(OrtEnv *env, const char *model, OrtSession *session)
{
    float y[ELEMENTS];
    OrtSession *none = NULL;
    OrtSessionOptions *options = make_options(env, "nonsense", NULL);
    must_fail(ort->CreateSession(env, model, options, &none), "ep-option");
    ort->ReleaseSessionOptions(options);
    must_fail(run(session, 1, y), "x"); // a wrong shape
    compare(session);
}

int main(int argc, char **argv)
{
    OrtEnv *env = NULL;
    OrtSession *sessions[3];
    char context[4096];
    void *engine = argc == 5 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const OrtApiBase *(*get_base)(void) = NULL;
    if (!engine)
        fail("usage: ep_host ONNXRUNTIME LIBRARY MODEL FOLDER");
    *(void **)&get_base = dlsym(engine, "OrtGetApiBase");
    ort = get_base()->GetApi(ORT_API_EP);
    snprintf(context, sizeof context, "%s/context.onnx", argv[4]);
    check(ort->CreateEnv(3, "ep_host", &env));
    plain_numbers(env, argv[3]);
    check(CALL(register_function, REGISTER)(env, "tessera", argv[2]));
    sessions[0] = open_session(env, argv[3], context);
    sessions[1] = open_bytes(env, argv[3]);
    sessions[2] = open_session(env, context, NULL);
    run_together(sessions, 3);
    open_together(env, argv[3], argv[4]);
    wrong_use(env, argv[3], sessions[0]);
    check(CALL(unregister_function, UNREGISTER)(env, "tessera"));
    run_together(sessions, 3); // sessions may outlive the registration
    for (int i = 0; i < 3; i++)
        ort->ReleaseSession(sessions[i]);
    check(CALL(register_function, REGISTER)(env, "again", argv[2]));
    sessions[0] = open_session(env, argv[3], NULL);
    compare(sessions[0]);
    ort->ReleaseSession(sessions[0]);
    check(CALL(unregister_function, UNREGISTER)(env, "again"));
    ort->ReleaseEnv(env);
    printf("ok\n");
    return 0;
}
