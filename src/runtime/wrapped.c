// SPDX-License-Identifier: Apache-2.0
// wrapped.c - a whole partition as one operator of a stock ONNX Runtime: `Partition` of the domain
// ai.tessera.run.
//
// A model written with --layout wrapped has this one node: the inputs and outputs of the model,
// preceded by a constant whose bytes are stored in a file of the partition. ONNX Runtime maps that
// file, so the constant's address leads to the folder, wherever it was moved to; a custom operator
// has no other way to find the path of its model. An attribute `folder` may name a folder below
// that one. Nothing outside of the model's folder is ever opened.
//
// The ranks are threads of this process, in sessions of the ONNX Runtime that runs the node; or, if
// the node's attribute `transport` is "shm", processes of a program that is started for them
// (served.h), in the same library of ONNX Runtime. They are opened by the first run, stay for the
// kernel's life, and are reopened after a failed run.
//
// A state (--state) stays with the ranks. The host gets a handle in its place: an empty tensor,
// whose shape has one dimension more than the state's and ends with the number of the run. It is
// fed to the next run like the state itself, so a loop that feeds `present` as `past` needs no
// change:
//
//   run 1 is given past [1,4,0,16] (an empty cache)   and gives present [0,0,0,0,1]
//   run 2 is given past [0,0,0,0,1]: continues        and gives present [0,0,0,0,2]
//   run 3 is given past [1,4,0,16]: starts again; [0,0,0,0,1] would be refused, as that state is
//     gone
#include "runtime/internal.h"
#include "runtime/runtime.h"
#include "runtime/served.h"
#include "transport/transport.h"
#include "bundle/bundle.h"

#include <limits.h>
#include <stdio.h>

#define VARIADIC   2 // of GetInputCharacteristic
#define ERROR_TEXT 2000

// The operator, as it is registered with one set of session options; never freed.
struct wrapped_op {
    OrtCustomOp ort; // first
    const OrtApiBase *base;
    OrtCustomOpDomain *domain;
};

// One kernel: a node of one session of the host.
struct wrapped {
    const OrtApi *api;
    const OrtApiBase *base;
    char below[PATH_MAX]; // attribute `folder`: relative to that of the mark; "": the same
    pthread_mutex_t lock; // a session of the host may be run by several threads
    tsr_session *session;
    bool processes; // the ranks are processes of their own, not threads of this one
    // One of them at most: ranks that are threads, or are served. Both NULL: to be opened.
    tsr_job *job;
    struct served *served;
    struct arena arena;
    struct bundle bundle; // open while there are ranks
    int64_t runs;         // that the kernel has made, of all its jobs
    bool has_states;      // the ranks hold the states that run number `runs` left
};

// ---- the folder --------------------------------------------------------------------------------

// The folder of the marker file that contains this address, "/a/b" of "/a/b/wrapped.id"; false: not
// in such a file.
static bool folder_of_mark(const void *address, char *out, size_t n)
{
    if (!tsr__file_at(address, out, n))
        return false;
    char *name = strrchr(out, '/');
    if (strcmp(name, "/" WRAPPED_MARK) != 0)
        return false;
    *name = 0;
    return true;
}

// ---- errors ------------------------------------------------------------------------------------

// What the session found, as the engine's status; the findings are forgotten.
static OrtStatus *failed(struct wrapped *wrapped, tsr_status status)
{
    char text[ERROR_TEXT];
    size_t at = (size_t)snprintf(text, sizeof text, "Tessera: %s", tsr_status_text(status));
    for (size_t i = 0; i < tsr_finding_count(wrapped->session); i++) {
        if (tsr_finding_value(wrapped->session, i).severity != TSR_ERROR || at >= sizeof text)
            continue;
        int added =
            snprintf(text + at, sizeof text - at, "\n%s", tsr_finding_text(wrapped->session, i));
        at += added > 0 ? (size_t)added : 0;
    }
    tsr_finding_clear(wrapped->session);
    return wrapped->api->CreateStatus(ORT_FAIL, text);
}

// The next run opens the ranks anew, without states.
static void close_ranks(struct wrapped *wrapped)
{
    tsr_job_close(wrapped->job);
    tsr__served_close(wrapped->served);
    if (wrapped->job || wrapped->served)
        tsr__bundle_close(&wrapped->bundle);
    wrapped->job = NULL;
    wrapped->served = NULL;
    wrapped->has_states = false;
    tsr__arena_free(&wrapped->arena);
}

static tsr_status start_ranks(struct wrapped *wrapped, const char *path)
{
    tsr_run_options options = {.size = sizeof options, .transport = TSR_TRANSPORT_THREADS};
    if (!wrapped->processes)
        return tsr_job_open(wrapped->session, path, &options, &wrapped->job);
    return tsr__served_open(wrapped->session, path, wrapped->base, 0, &wrapped->served);
}

// The host's engine is needed in either case: it reads the inputs.
static tsr_status open_ranks(struct wrapped *wrapped, const char *folder)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s%s%s", folder, *wrapped->below ? "/" : "", wrapped->below);
    tsr_status st = tsr__engine_adopt(wrapped->session, wrapped->base);
    if (st != TSR_OK)
        return st;
    st = tsr__bundle_open(wrapped->session, &wrapped->arena, path, &wrapped->bundle);
    if (st != TSR_OK)
        return st;
    st = start_ranks(wrapped, path);
    if (st != TSR_OK)
        tsr__bundle_close(&wrapped->bundle);
    return st;
}

// ---- states ------------------------------------------------------------------------------------

static bool is_past(const struct manifest *manifest, const char *name)
{
    for (size_t i = 0; i < manifest->n_states; i++)
        if (strcmp(manifest->states[i].input, name) == 0)
            return true;
    return false;
}

static bool is_present(const struct manifest *manifest, const char *name)
{
    for (size_t i = 0; i < manifest->n_states; i++)
        if (strcmp(manifest->states[i].output, name) == 0)
            return true;
    return false;
}

static bool is_handle(const struct manifest_port *port, const struct tensor *tensor)
{
    if (tensor->rank != port->rank + 1)
        return false;
    for (int axis = 0; axis < port->rank; axis++)
        if (tensor->dims[axis] != 0)
            return false;
    return true;
}

static tsr_status check_handle(struct wrapped *wrapped, const struct manifest_port *port,
                               const struct tensor *handle)
{
    int64_t run = handle->dims[port->rank];
    if (wrapped->has_states && run == wrapped->runs)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.value = str_of(port->name);
    tsr__diag(wrapped->session, DIAG_state_gone, &at,
              "give what the last run of this session gave, or a tensor to begin anew",
              "the state after run %lld of this session is kept no longer", (long long)run);
    return TSR_INVALID;
}

// Of ranks that are processes a tensor that does not fit ends all of them, and ONNX Runtime has not
// compared the shapes of states (they have none in the wrapped model): so that is done here.
static tsr_status check_beginning(struct wrapped *wrapped, const struct manifest_port *port,
                                  const struct tensor *tensor)
{
    bool fits = port->rank < 0 || tensor->rank == port->rank;
    int known = 0;
    if (fits && port->rank > 0)
        known = port->rank;
    for (int axis = 0; axis < known; axis++) {
        int64_t wanted = port->dims[axis].value;
        fits &= wanted < 0 || wanted == tensor->dims[axis];
    }
    if (fits)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.value = str_of(port->name);
    tsr__diag(wrapped->session, DIAG_input_mismatch, &at, "give the shape that the model has",
              "the shape of this state is not the model's");
    return TSR_INVALID;
}

// Whether the ranks go on with a state that they have: its input is a handle. Else it is a tensor
// as any other.
static tsr_status goes_on(struct wrapped *wrapped, const struct manifest_port *port,
                          OrtValue *value, bool *out, OrtStatus **error)
{
    tsr_tensors *seen = NULL;
    tsr_status st = tsr_tensors_new(wrapped->session, &seen);
    if (st != TSR_OK)
        return st;
    st = tsr__engine_view(wrapped->session->engine, value, port->name, seen, error);
    // A handle is known by its shape alone: one dimension more than the port, all of them 0 but the
    // last.
    *out = st == TSR_OK && is_handle(port, seen->at[0]);
    if (*out)
        st = check_handle(wrapped, port, seen->at[0]);
    else if (st == TSR_OK && wrapped->served)
        st = check_beginning(wrapped, port, seen->at[0]);
    tsr_tensors_free(seen);
    return st;
}

static OrtStatus *give_handle(struct wrapped *wrapped, OrtKernelContext *context, size_t i)
{
    int64_t dims[RUN_MAX_RANK + 1] = {0};
    int rank = wrapped->bundle.manifest.outputs[i].rank;
    OrtValue *value = NULL;
    if (rank < 0 || rank > RUN_MAX_RANK)
        return wrapped->api->CreateStatus(ORT_FAIL, "Tessera: a state of unknown rank");
    dims[rank] = wrapped->runs;
    return wrapped->api->KernelContext_GetOutput(context, i, dims, (size_t)rank + 1, &value);
}

// ---- a run -------------------------------------------------------------------------------------

// Input i of the model, which stands behind the mark; a state that goes on is left out, so that the
// job keeps it.
static tsr_status read_input(struct wrapped *wrapped, OrtKernelContext *context, size_t i,
                             tsr_tensors *to, OrtStatus **error)
{
    const struct manifest *manifest = &wrapped->bundle.manifest;
    const struct manifest_port *port = &manifest->inputs[i];
    const OrtValue *given = NULL;
    bool kept = false;
    *error = wrapped->api->KernelContext_GetInput(context, i + 1, &given);
    if (*error)
        return TSR_ENGINE;
    OrtValue *value = (OrtValue *)(uintptr_t)given;
    if (is_past(manifest, port->name)) {
        tsr_status st = goes_on(wrapped, port, value, &kept, error);
        if (st != TSR_OK || kept)
            return st;
    }
    return tsr__engine_view(wrapped->session->engine, value, port->name, to, error);
}

// The inputs of the node behind the mark, under the names that the manifest has, in its order.
static tsr_status read_inputs(struct wrapped *wrapped, OrtKernelContext *context, tsr_tensors *to,
                              OrtStatus **error)
{
    for (size_t i = 0; i < wrapped->bundle.manifest.n_inputs; i++) {
        tsr_status st = read_input(wrapped, context, i, to, error);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

static OrtStatus *give_texts(struct wrapped *wrapped, const struct tensor *tensor, OrtValue *to)
{
    for (int64_t i = 0; i < tsr__tensor_elements(tensor); i++) {
        struct str text = tsr__tensor_text(tensor, i);
        char *at = NULL;
        TRY(wrapped->api->GetResizedStringTensorElementBuffer(to, (size_t)i, text.n, &at));
        if (text.n)
            memcpy(at, text.p, text.n);
    }
    return NULL;
}

static OrtStatus *give_output(struct wrapped *wrapped, OrtKernelContext *context, size_t i,
                              const struct tensor *tensor)
{
    OrtValue *value = NULL;
    void *data = NULL;
    if (tensor->rank < 0)
        return wrapped->api->CreateStatus(ORT_FAIL, "Tessera: an output that is no tensor");
    TRY(wrapped->api->KernelContext_GetOutput(context, i, tensor->dims, (size_t)tensor->rank,
                                              &value));
    if (!value)
        return NULL; // not requested
    if (tensor->type == TSR_STRING)
        return give_texts(wrapped, tensor, value);
    TRY(wrapped->api->GetTensorMutableData(value, &data));
    if (tensor->bytes)
        memcpy(data, tensor->data, tensor->bytes);
    return NULL;
}

static OrtStatus *give_outputs(struct wrapped *wrapped, OrtKernelContext *context,
                               const tsr_tensors *outputs)
{
    const struct manifest *manifest = &wrapped->bundle.manifest;
    for (size_t i = 0; i < manifest->n_outputs; i++) {
        if (is_present(manifest, manifest->outputs[i].name)) {
            TRY(give_handle(wrapped, context, i));
            continue;
        }
        int64_t at = tsr_tensors_find(outputs, manifest->outputs[i].name);
        if (at < 0)
            return wrapped->api->CreateStatus(ORT_FAIL,
                                              "Tessera: the partition did not give an output");
        TRY(give_output(wrapped, context, i, outputs->at[at]));
    }
    return NULL;
}

// Opens the ranks if they are not open.
static OrtStatus *ensure_ranks(struct wrapped *wrapped, OrtKernelContext *context)
{
    const OrtValue *mark = NULL;
    void *address = NULL;
    char folder[PATH_MAX];
    if (wrapped->job || wrapped->served)
        return NULL;
    TRY(wrapped->api->KernelContext_GetInput(context, 0, &mark));
    TRY(wrapped->api->GetTensorMutableData((OrtValue *)(uintptr_t)mark, &address));
    if (!folder_of_mark(address, folder, sizeof folder))
        return wrapped->api->CreateStatus(
            ORT_FAIL,
            "Tessera: the partition of this wrapped model is not known. Open model.onnx by its "
            "path, in the folder that tessera partition wrote");
    tsr_status st = open_ranks(wrapped, folder);
    return st == TSR_OK ? NULL : failed(wrapped, st);
}

// Inputs that do not fit end nothing: the ranks and their states stay. A failed run may have ended
// the ranks, and one whose results could not be returned has left states without handles; then they
// are closed.
static OrtStatus *run_with(struct wrapped *wrapped, OrtKernelContext *context, tsr_tensors *inputs,
                           tsr_tensors *outputs)
{
    OrtStatus *error = NULL;
    tsr_status st = read_inputs(wrapped, context, inputs, &error);
    if (error)
        return error;
    if (st == TSR_OK && wrapped->job)
        st = tsr_job_start(wrapped->job, inputs);
    if (st != TSR_OK)
        return failed(wrapped, st);
    // From here until the results are with the host, no handle is valid.
    wrapped->has_states = false;
    if (wrapped->job)
        st = tsr_job_wait(wrapped->job, outputs);
    else
        st = tsr__served_run(wrapped->served, inputs, outputs);
    wrapped->runs++;
    error = st == TSR_OK ? give_outputs(wrapped, context, outputs) : failed(wrapped, st);
    wrapped->has_states = !error;
    if (error)
        close_ranks(wrapped);
    return error;
}

static OrtStatus *run_once(struct wrapped *wrapped, OrtKernelContext *context)
{
    TRY(ensure_ranks(wrapped, context));
    tsr_tensors *inputs = NULL, *outputs = NULL;
    OrtStatus *error = NULL;
    tsr_status st = tsr_tensors_new(wrapped->session, &inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(wrapped->session, &outputs);
    error = st == TSR_OK ? run_with(wrapped, context, inputs, outputs) : failed(wrapped, st);
    tsr_tensors_free(outputs);
    tsr_tensors_free(inputs);
    tsr_finding_clear(wrapped->session);
    return error;
}

// One run at a time: states belong to the order of runs.
static OrtStatus *compute(void *kernel, OrtKernelContext *context)
{
    struct wrapped *wrapped = kernel;
    pthread_mutex_lock(&wrapped->lock);
    OrtStatus *st = run_once(wrapped, context);
    pthread_mutex_unlock(&wrapped->lock);
    return st;
}

// ---- the kernel --------------------------------------------------------------------------------

// A text of the node; "" where it has none.
static void read_attribute(const OrtApi *api, const OrtKernelInfo *info, const char *name,
                           char *out, size_t n)
{
    OrtStatus *st = api->KernelInfoGetAttribute_string(info, name, out, &n);
    if (!st)
        return;
    out[0] = 0;
    api->ReleaseStatus(st);
}

static void destroy(void *kernel)
{
    struct wrapped *wrapped = kernel;
    tsr_session *session = wrapped->session;
    close_ranks(wrapped);
    pthread_mutex_destroy(&wrapped->lock);
    tsr__free(session, wrapped, sizeof *wrapped);
    tsr_session_free(session);
}

// True if a relative path cannot lead out of the folder that it starts from.
static bool is_below(const char *path)
{
    if (*path == '/')
        return false;
    for (const char *at = path; *at; at += strcspn(at, "/") + (at[strcspn(at, "/")] == '/'))
        if (strcspn(at, "/") == 2 && at[0] == '.' && at[1] == '.')
            return false;
    return true;
}

static OrtStatus *create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                         void **out)
{
    tsr_session *session = tsr_session_new(NULL);
    struct wrapped *wrapped = session ? tsr__alloc(session, sizeof *wrapped) : NULL;
    if (!wrapped) {
        tsr_session_free(session);
        return api->CreateStatus(ORT_FAIL, "out of memory");
    }
    *wrapped = (struct wrapped){
        .api = api, .base = ((const struct wrapped_op *)op)->base, .session = session, .job = NULL};
    pthread_mutex_init(&wrapped->lock, NULL);
    tsr__arena_init(&wrapped->arena, session);
    char transport[16];
    read_attribute(api, info, "folder", wrapped->below, sizeof wrapped->below);
    read_attribute(api, info, "transport", transport, sizeof transport);
    wrapped->processes = strcmp(transport, "shm") == 0;
    if (!is_below(wrapped->below)) {
        destroy(wrapped);
        return api->CreateStatus(ORT_FAIL,
                                 "Tessera: a wrapped model must not name a folder by an absolute "
                                 "path or with '..'; write it again with tessera partition "
                                 "--layout wrapped");
    }
    *out = wrapped;
    return NULL;
}

// ---- what ONNX Runtime asks about the operator -------------------------------------------------

static const char *get_name(const OrtCustomOp *op)
{
    (void)op;
    return WRAPPED_OP;
}

static const char *get_provider(const OrtCustomOp *op)
{
    (void)op;
    return NULL; // the CPU's: what the ranks run on is their own affair
}

static int get_any_type(const OrtCustomOp *op, size_t i)
{
    (void)op, (void)i;
    return 0;
}

static size_t get_one(const OrtCustomOp *op)
{
    (void)op;
    return 1; // variadic: one entry for all
}

static int get_variadic(const OrtCustomOp *op, size_t i)
{
    (void)op, (void)i;
    return VARIADIC;
}

static int get_arity(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_mixed(const OrtCustomOp *op)
{
    (void)op;
    return 0; // types may differ
}

static int get_start(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_end(const OrtCustomOp *op)
{
    (void)op;
    return INT_MAX;
}

static size_t get_none(int **inputs, int **outputs)
{
    *inputs = *outputs = NULL;
    return 0;
}

static void release_none(int *inputs, int *outputs)
{
    (void)inputs, (void)outputs;
}

static const OrtCustomOp questions = {
    .GetName = get_name,
    .GetExecutionProviderType = get_provider,
    .GetInputType = get_any_type,
    .GetInputTypeCount = get_one,
    .GetOutputType = get_any_type,
    .GetOutputTypeCount = get_one,
    .KernelDestroy = destroy,
    .GetInputCharacteristic = get_variadic,
    .GetOutputCharacteristic = get_variadic,
    .GetInputMemoryType = get_any_type,
    .GetVariadicInputMinArity = get_arity,
    .GetVariadicInputHomogeneity = get_mixed,
    .GetVariadicOutputMinArity = get_arity,
    .GetVariadicOutputHomogeneity = get_mixed,
    .CreateKernelV2 = create,
    .KernelComputeV2 = compute,
    .GetStartVersion = get_start,
    .GetEndVersion = get_end,
    .GetMayInplace = get_none,
    .ReleaseMayInplace = release_none,
    .GetAliasMap = get_none,
    .ReleaseAliasMap = release_none,
};

OrtStatus *tsr__wrapped_add(const OrtApiBase *base, OrtSessionOptions *options)
{
    int minor = tsr__ort_minor(base->GetVersionString());
    const OrtApi *api = base->GetApi(ORT_API);
    tsr_session *session = tsr_session_new(
        NULL); // lives as long as the process: the end of the host's session is not known
    struct wrapped_op *op = session ? tsr__alloc(session, sizeof *op) : NULL;
    if (!op) {
        tsr_session_free(session);
        return api->CreateStatus(ORT_FAIL, "out of memory");
    }
    *op = (struct wrapped_op){.ort = questions, .base = base};
    op->ort.version = (uint32_t)(minor < ORT_OP_VERSION ? minor : ORT_OP_VERSION);
    TRY(api->CreateCustomOpDomain(WRAPPED_DOMAIN, &op->domain));
    TRY(api->CustomOpDomain_Add(op->domain, &op->ort));
    return api->AddCustomOpDomain(options, op->domain);
}
