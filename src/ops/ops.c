// SPDX-License-Identifier: Apache-2.0
// ops.c - the table of kernels, and the registration of the operators.
//
// When ONNX Runtime loads a rank file, it calls kernel_create for each node, which checks the
// attributes. In a run it calls kernel_compute in the order of the tokens: a node's token input is
// the token output of the communication before it. So only one kernel of a rank runs at a time, and
// kernels can share scratch memory.
//
// A failure in a kernel is an OrtStatus for the engine; `ops->trouble` keeps the details. The other
// ranks are notified, because they wait for this one.
#include "ops/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static OrtStatus *infer_same(const OrtCustomOp *op, OrtShapeInferContext *context);

static const struct op_kernel kernels[COMM_KIND_COUNT] = {
    [COMM_ALL_REDUCE] = {.create = tsr__all_reduce_create,
                         .compute = tsr__all_reduce_compute,
                         .infer = infer_same},
    [COMM_ALL_GATHER] = {.create = tsr__all_gather_create, .compute = tsr__all_gather_compute},
    [COMM_RESHARD] = {.create = tsr__reshard_create, .compute = tsr__reshard_compute},
    [COMM_HALO] = {.create = tsr__halo_create, .compute = tsr__reshard_compute},
    [COMM_REDUCE_SCATTER] = {.create = tsr__reduce_scatter_create,
                             .compute = tsr__reduce_scatter_compute},
    [COMM_REDUCE] = {.create = tsr__reduce_create, .compute = tsr__reduce_compute},
    [COMM_ALL_TO_ALL] = {.create = tsr__all_to_all_create, .compute = tsr__all_to_all_compute},
    [COMM_BROADCAST] = {.create = tsr__broadcast_create, .compute = tsr__broadcast_compute},
    [COMM_SEND] = {.create = tsr__send_create,
                   .compute = tsr__send_compute,
                   .receive = tsr__recv_compute},
};

// ---- common attributes -------------------------------------------------------------------------

// Returns the value of a lower-case hex digit; -1 for other characters.
static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Reads the fingerprint of the partition, attribute `plan`: exactly 16 lower-case hex digits.
static bool read_plan(const char *text, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        int digit = hex_digit(text[i]);
        if (digit < 0 || n != 16)
            return false;
        v = v << 4 | (uint64_t)digit;
    }
    *out = v;
    return n == 16;
}

// Checks the group and finds this rank in it (kernel->self). A group without this rank means that
// the engine has loaded another rank's file.
static OrtStatus *check_group(struct kernel *kernel, const int64_t *group, size_t n)
{
    const struct endpoint *endpoint = kernel->ops->endpoint;
    if (n > (size_t)endpoint->size)
        return tsr__kernel_error(kernel, "the group has %zu members, but the job has only %d ranks",
                                 n, endpoint->size);
    kernel->self = -1;
    for (size_t i = 0; i < n; i++) {
        if (group[i] < 0 || group[i] >= endpoint->size)
            return tsr__kernel_error(kernel,
                                     "the group contains rank %lld, but the job has %d ranks",
                                     (long long)group[i], endpoint->size);
        if (i && group[i] <= group[i - 1])
            return tsr__kernel_error(kernel, "the ranks of the group are not in ascending order");
        if (group[i] == endpoint->rank)
            kernel->self = (int)i;
    }
    if (kernel->self < 0)
        return tsr__kernel_error(
            kernel, "rank %d is not in the group; this may be the file of another rank",
            endpoint->rank);
    return NULL;
}

// Reads the attributes that every operator has.
static OrtStatus *read_common(struct kernel *kernel, const OrtKernelInfo *info)
{
    char *plan;
    int64_t id, type, *group;
    size_t n;
    TRY(tsr__kernel_text(kernel, info, "plan", &plan));
    if (!read_plan(plan, &kernel->call.plan))
        return tsr__kernel_error(kernel, "attribute 'plan' is not 16 hex digits");
    TRY(tsr__kernel_int(kernel, info, "id", &id));
    TRY(tsr__kernel_int(kernel, info, "elem_type", &type));
    bool texts = type == TSR_STRING && comm_has(kernel->op->kind, TRAIT_STRINGS);
    if (type <= 0 || type >= TSR_DTYPE_COUNT || (!texts && !tsr__elem_bytes((tsr_dtype)type)))
        return tsr__kernel_error(kernel, "element type %lld cannot be transferred",
                                 (long long)type);
    if (kernel->op->only && kernel->op->only != (tsr_dtype)type)
        return tsr__kernel_error(kernel, "only %s elements are supported",
                                 tsr_dtype_name(kernel->op->only));
    if (texts && on_device(kernel))
        return tsr__kernel_error(
            kernel, "strings cannot be transferred between GPUs: run the rank on the CPU");
    TRY(tsr__kernel_ints(kernel, info, "group", &group, &n));
    TRY(check_group(kernel, group, n));
    kernel->call.id = id;
    kernel->call.type = (tsr_dtype)type;
    kernel->call.group = group;
    kernel->call.n_group = (int)n;
    return NULL;
}

// ---- OrtCustomOp functions ---------------------------------------------------------------------

// Returns our operator: `struct op` starts with the struct that ONNX Runtime passes.
static const struct op *op_of(const OrtCustomOp *op)
{
    return (const struct op *)op;
}

static const char *get_name(const OrtCustomOp *op)
{
    return op_of(op)->name;
}

static const char *get_provider(const OrtCustomOp *op)
{
    return op_of(op)->side == SIDE_CUDA ? "CUDAExecutionProvider" : NULL; // NULL: CPU
}

// Returns the type of memory of an input. Shapes and sizes are always in host memory.
static int get_memory(const OrtCustomOp *op, size_t i)
{
    enum comm_kind kind = op_of(op)->kind;
    bool size = i > 0 && i != comm_token((int)kind) && i != comm_after((int)kind);
    return size ? ORT_MEMORY_CPU_INPUT : ORT_MEMORY_DEFAULT;
}

// Returns the type of an input or output; 0: any type. The attribute elem_type names the type, and
// every run checks it.
static int get_type(const OrtCustomOp *op, size_t i)
{
    tsr_dtype only = op_of(op)->only;
    if (i == 0)
        return (int)only;
    if (i == comm_after((int)op_of(op)->kind)) // ONNX Runtime allows one input of any type
        return (int)(only ? only : TSR_FLOAT);
    return (int)TSR_INT64; // shape, token and size
}

static size_t get_inputs(const OrtCustomOp *op)
{
    return comm_after((int)op_of(op)->kind) + 1;
}

static size_t get_outputs(const OrtCustomOp *op)
{
    (void)op;
    return 2;
}

// Returns whether an input is required (0) or optional (1).
static int is_optional(const OrtCustomOp *op, size_t i)
{
    return i > comm_token(op_of(op)->kind);
}

static int get_zero(const OrtCustomOp *op, size_t i)
{
    (void)op;
    (void)i;
    return 0; // required
}

// Returns 1, for several callbacks: the minimum number of variadic values, "yes, homogeneous", and
// the first version.
static int get_one(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_end_version(const OrtCustomOp *op)
{
    (void)op;
    return INT32_MAX;
}

// Lists the outputs that may overwrite inputs: output 0 (the tensor) may overwrite input 0, output
// 1 (the token) input 1. One allocation holds both lists, so release_inplace frees only the first
// pointer.
static size_t get_inplace(int **inputs, int **outputs)
{
    int *pairs = malloc(4 * sizeof *pairs);
    if (!pairs)
        return 0;
    pairs[0] = pairs[2] = 0;
    pairs[1] = pairs[3] = 1;
    *inputs = pairs;
    *outputs = pairs + 2;
    return 2;
}

static void release_inplace(int *inputs, int *outputs)
{
    (void)outputs;
    free(inputs);
}

#define SHAPE_MAX_RANK 16

// Infers the input's type and shape for the output, and shape [1] for the token output. If the
// input's shape is not known completely, infers only the token.
static OrtStatus *infer_same(const OrtCustomOp *op, OrtShapeInferContext *context)
{
    const OrtApi *api = op_of(op)->ops->api;
    OrtTensorTypeAndShapeInfo *x = NULL, *token = NULL;
    int64_t one = 1;
    int64_t dims[SHAPE_MAX_RANK];
    size_t rank = 0;
    TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &x));
    TRY(api->GetDimensionsCount(x, &rank));
    // Rank 0 may mean an unknown shape. An unknown size is -1, which ONNX Runtime would treat as a
    // number.
    bool known = rank > 0 && rank <= SHAPE_MAX_RANK;
    if (known)
        TRY(api->GetDimensions(x, dims, rank));
    for (size_t i = 0; known && i < rank; i++)
        known = dims[i] >= 0;
    if (known)
        TRY(api->ShapeInferContext_SetOutputTypeShape(context, 0, x));
    TRY(api->CreateTensorTypeAndShapeInfo(&token));
    OrtStatus *st = api->SetTensorElementType(token, TSR_INT64);
    if (!st)
        st = api->SetDimensions(token, &one, 1);
    if (!st)
        st = api->ShapeInferContext_SetOutputTypeShape(context, 1, token);
    api->ReleaseTensorTypeAndShapeInfo(token);
    return st;
}

// ---- kernels -----------------------------------------------------------------------------------

// Frees a kernel, also a partly created one. ops->session outlives all kernels.
static void kernel_destroy(void *kernel)
{
    struct kernel *k = kernel;
    tsr_session *session = k->ops->session;
    if (k->reshard)
        tsr__reshard_free(k);
    tsr__arena_free(&k->arena);
    tsr__free(session, k, sizeof *k);
}

// Reads the name of the node. This comes first, because every later error names the node.
static OrtStatus *read_node_name(struct kernel *kernel, const OrtKernelInfo *info)
{
    size_t n = 0;
    kernel->call.node = "";
    TRY(kernel->api->KernelInfo_GetNodeName(info, NULL, &n));
    char *name = arena_get(&kernel->arena, n + 1, 1);
    if (!name)
        return tsr__kernel_error(kernel, "out of memory");
    TRY(kernel->api->KernelInfo_GetNodeName(info, name, &n));
    kernel->call.node = name;
    return NULL;
}

// Stores the group of a kernel, without duplicates. If out of memory, the group is not stored.
static void note_group(struct ops *ops, const int64_t *ranks, int n)
{
    size_t bytes = (size_t)n * sizeof *ranks;
    for (size_t i = 0; i < ops->groups.n; i++) {
        const struct ops_group *known = &ops->groups.at[i];
        if (known->n == n && memcmp(known->ranks, ranks, bytes) == 0)
            return;
    }
    int64_t *kept = ARENA_ARRAY(&ops->groups_arena, int64_t, (size_t)n);
    struct ops_group *group = kept ? vec_push(&ops->groups_arena, &ops->groups) : NULL;
    if (!group)
        return;
    memcpy(kept, ranks, bytes);
    *group = (struct ops_group){kept, n};
}

// Stores the group of the kernel. For a rank on a GPU, also prepares the communication, which
// would otherwise slow down the first run.
static OrtStatus *prepare(struct kernel *kernel)
{
    struct endpoint *endpoint = kernel->ops->endpoint;
    struct comm_trouble why;
    note_group(kernel->ops, kernel->call.group, kernel->call.n_group);
    if (!tsr__device_is(endpoint))
        return NULL;
    // When all kernels exist, tsr__device_meet opens a communicator for each group.
    tsr__device_expect(endpoint, kernel->call.group, kernel->call.n_group);
    kernel->call.place = on_device(kernel) ? COMM_DEVICE : COMM_HOST;
    if (on_device(kernel) && tsr__device_prepare(endpoint, &kernel->call, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return NULL;
}

// Creates the kernel of a node. Called once per node of an engine's session. Partly created kernels
// can be destroyed, because their memory starts as zeros.
static OrtStatus *kernel_create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                                void **out)
{
    struct ops *ops = op_of(op)->ops;
    struct kernel *kernel = tsr__alloc(ops->session, sizeof *kernel);
    if (!kernel)
        return api->CreateStatus(ORT_FAIL, "out of memory");
    memset(kernel, 0, sizeof *kernel);
    kernel->ops = ops;
    kernel->api = api;
    kernel->op = op_of(op);
    kernel->side = op_of(op)->side;
    kernel->call.kind = kernel->op->kind;
    kernel->call.op = kernel->op->plain;
    tsr__arena_init(&kernel->arena, ops->session);
    // The order matters: the name is used in errors.
    OrtStatus *st = read_node_name(kernel, info);
    if (!st && !ops->endpoint)
        st = tsr__kernel_error(kernel, "%s", ops->why);
    if (!st)
        st = read_common(kernel, info);
    if (!st)
        st = kernel->op->create(kernel, info);
    if (!st)
        st = prepare(kernel);
    if (st) {
        kernel_destroy(kernel);
        return st;
    }
    *out = kernel;
    return NULL;
}

// Returns the time by the clock of ONNX Runtime's profile, so that trace.c can combine both.
static uint64_t now_ns(void)
{
    struct timespec timespec;
    clock_gettime(CLOCK_REALTIME, &timespec);
    return (uint64_t)timespec.tv_sec * 1000000000u + (uint64_t)timespec.tv_nsec;
}

// Records when a kernel ran. Events beyond the limit, or out of memory, are dropped.
static void note_event(struct kernel *kernel, uint64_t start_ns)
{
    struct ops *ops = kernel->ops;
    struct ops_event *event =
        ops->events.n < OPS_MAX_EVENTS ? vec_push(&ops->events_arena, &ops->events) : NULL;
    if (event)
        *event = (struct ops_event){.op = kernel->call.op,
                                    .node = kernel->call.node,
                                    .id = kernel->call.id,
                                    .run = kernel->call.run,
                                    .start_ns = start_ns,
                                    .end_ns = now_ns(),
                                    .first = kernel->call.group[0],
                                    .n_group = kernel->call.n_group,
                                    .type = kernel->call.type};
}

// Runs a kernel; on a GPU, on the engine's stream. With a stand-in for the driver (in tests) the
// engine has no stream, so this function waits for the work.
static OrtStatus *compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct comm_trouble why;
    if (kernel->side == SIDE_CUDA)
        TRY(kernel->api->KernelContext_GetGPUComputeStream(context, &kernel->call.stream));
    if (kernel->side == SIDE_STAND_IN)
        kernel->call.stream = tsr__device_stand_in(kernel->ops->endpoint);
    TRY(kernel->op->compute(kernel, context));
    if (kernel->side == SIDE_STAND_IN &&
        tsr__device_wait(kernel->ops->endpoint, &kernel->call, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return NULL;
}

static OrtStatus *kernel_compute(void *kernel, OrtKernelContext *context)
{
    struct kernel *k = kernel;
    // Two threads that run one engine session would mix the calls of two runs.
    if (atomic_flag_test_and_set(&k->ops->busy))
        return tsr__kernel_error(k, "two runs of one rank at the same time");
    uint64_t start = k->ops->traced ? now_ns() : 0;
    OrtStatus *st = compute(k, context);
    if (start)
        note_event(k, start);
    if (st) // notify the other ranks, which wait for this one
        tsr__comm_fail(k->ops->endpoint, TSR_INVALID, k->api->GetErrorMessage(st));
    // Counted also after a failure: all members compare the number of calls.
    k->call.run++;
    atomic_flag_clear(&k->ops->busy);
    return st;
}

// ---- registration ------------------------------------------------------------------------------

// Operators for one kind of memory: per collective two ends (such as Send and Recv), each for all
// types and for float16.
#define SIDE_OPS   (4 * COMM_KIND_COUNT)
#define LIST_BYTES (2 * SIDE_OPS * sizeof(struct op))

// Fills in the functions that ONNX Runtime calls. `version` is at most the version of the engine,
// which uses only functions that exist in `version`.
static void op_init(struct op *op, int minor)
{
    op->ort = (OrtCustomOp){
        .version = (uint32_t)(minor < ORT_OP_VERSION ? minor : ORT_OP_VERSION),
        .GetName = get_name,
        .GetExecutionProviderType = get_provider,
        .GetInputType = get_type,
        .GetInputTypeCount = get_inputs,
        .GetOutputType = get_type,
        .GetOutputTypeCount = get_outputs,
        .KernelDestroy = kernel_destroy,
        .GetInputCharacteristic = is_optional,
        .GetOutputCharacteristic = get_zero,
        .GetInputMemoryType = get_memory,
        .GetVariadicInputMinArity = get_one,
        .GetVariadicInputHomogeneity = get_one,
        .GetVariadicOutputMinArity = get_one,
        .GetVariadicOutputHomogeneity = get_one,
        .CreateKernelV2 = kernel_create,
        .KernelComputeV2 = kernel_compute,
        .InferOutputShapeFn = kernels[op->kind].infer,
        .GetStartVersion = get_one,
        .GetEndVersion = get_end_version,
    };
    if (comm_has(op->kind, TRAIT_IN_PLACE)) {
        op->ort.GetMayInplace = get_inplace;
        op->ort.ReleaseMayInplace = release_inplace;
    }
}

// Adds one end of a collective, for all types and for float16 ("SendF16").
static OrtStatus *add_end(struct ops *ops, int minor, struct op *two, const struct op *end)
{
    for (int k = 0; k < 2; k++) {
        two[k] = *end;
        two[k].only = k ? TSR_FLOAT16 : TSR_UNDEFINED;
        snprintf(two[k].name, sizeof two[k].name, "%s%s", end->plain, k ? "F16" : "");
        op_init(&two[k], minor);
        TRY(ops->api->CustomOpDomain_Add(ops->domain, &two[k].ort));
    }
    return NULL;
}

// Adds the operators for one kind of memory. `list` has 4 entries per collective: one for all types
// and one for float16, then the same two for the receiving end.
static OrtStatus *add_side(struct ops *ops, int minor, struct op *list, enum op_side side)
{
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = tsr__collective(kind);
        struct op end = {.kind = (enum comm_kind)kind, .ops = ops, .side = side};
        end.plain = row->op;
        end.create = kernels[kind].create;
        end.compute = kernels[kind].compute;
        TRY(add_end(ops, minor, &list[4 * kind], &end));
        if (!row->other_end)
            continue;
        end.plain = row->other_end;
        end.compute = kernels[kind].receive;
        TRY(add_end(ops, minor, &list[4 * kind + 2], &end));
    }
    return NULL;
}

// Adds all operators. A rank on a GPU has every operator twice, for host and for GPU memory; the
// engine picks one when it places the node. With a stand-in for the driver (in tests), every
// operator exists once.
static OrtStatus *add_all(struct ops *ops, int minor, OrtSessionOptions *options)
{
    struct gpu_seat *seat = ops->endpoint ? tsr__device_seat(ops->endpoint) : NULL;
    bool stands_in = seat && tsr__device_stand_in(ops->endpoint);
    TRY(ops->api->CreateCustomOpDomain(OPS_DOMAIN, &ops->domain));
    TRY(add_side(ops, minor, ops->list, stands_in ? SIDE_STAND_IN : SIDE_HOST));
    if (seat && !stands_in)
        TRY(add_side(ops, minor, ops->list + SIDE_OPS, SIDE_CUDA));
    return ops->api->AddCustomOpDomain(options, ops->domain);
}

OrtStatus *tsr__ops_add(const OrtApi *api, int minor, OrtSessionOptions *options,
                        struct endpoint *endpoint, const char *why, struct ops **out)
{
    // its own session: kernels run on the rank's thread
    tsr_session *session = tsr_session_new(NULL);
    struct ops *ops = session ? tsr__alloc(session, sizeof *ops) : NULL;
    struct op *list = ops ? tsr__alloc(session, LIST_BYTES) : NULL;
    if (!list) {
        if (ops)
            tsr__free(session, ops, sizeof *ops);
        tsr_session_free(session);
        return api->CreateStatus(ORT_FAIL, "out of memory");
    }
    memset(ops, 0, sizeof *ops);
    memset(list, 0, LIST_BYTES);
    atomic_flag_clear(&ops->busy);
    ops->session = session;
    ops->api = api;
    ops->endpoint = endpoint;
    ops->list = list;
    tsr__arena_init(&ops->events_arena, session);
    tsr__arena_init(&ops->groups_arena, session);
    snprintf(ops->why, sizeof ops->why, "%s", why ? why : "the transport is not open");
    OrtStatus *st = add_all(ops, minor, options);
    if (st)
        tsr__ops_free(ops);
    else
        *out = ops;
    return st;
}

// Frees the operators. Call it after the engine's session has been released, which uses the
// kernels.
void tsr__ops_free(struct ops *ops)
{
    if (!ops)
        return;
    tsr_session *session = ops->session;
    tsr__arena_free(&ops->events_arena);
    tsr__arena_free(&ops->groups_arena);
    if (ops->domain)
        ops->api->ReleaseCustomOpDomain(ops->domain);
    for (int i = 0; i < 2; i++)
        tsr__free(session, ops->scratch[i].p, ops->scratch[i].bytes);
    tsr__free(session, ops->list, LIST_BYTES);
    tsr__free(session, ops, sizeof *ops);
    tsr_session_free(session);
}

void tsr__ops_trace(struct ops *ops)
{
    ops->traced = true;
}

const struct ops_event *tsr__ops_events(const struct ops *ops, size_t *n)
{
    *n = ops->events.n;
    return ops->events.at;
}

bool tsr__ops_group_at(const struct ops *ops, size_t i, struct ops_group *out)
{
    if (i >= ops->groups.n)
        return false;
    *out = ops->groups.at[i];
    return true;
}

const struct comm_trouble *tsr__ops_trouble(const struct ops *ops)
{
    return ops->trouble.status == TSR_OK ? NULL : &ops->trouble;
}
