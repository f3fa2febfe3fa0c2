// SPDX-License-Identifier: Apache-2.0
// ops.c - the table of operators, and their registration with one session's options.
#include "ops/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static OrtStatus *infer_same(const OrtCustomOp *op, OrtShapeInferContext *context);

static const struct op_kind kinds[] = {
    {"AllReduce", "AllReduce", COMM_ALL_REDUCE, 2, TSR_UNDEFINED, true, tsr__all_reduce_create,
     tsr__all_reduce_compute, infer_same},
    {"AllReduceF16", "AllReduce", COMM_ALL_REDUCE, 2, TSR_FLOAT16, true, tsr__all_reduce_create,
     tsr__all_reduce_compute, infer_same},
    {"AllGather", "AllGather", COMM_ALL_GATHER, 2, TSR_UNDEFINED, false, tsr__all_gather_create,
     tsr__all_gather_compute, NULL},
    {"AllGatherF16", "AllGather", COMM_ALL_GATHER, 2, TSR_FLOAT16, false, tsr__all_gather_create,
     tsr__all_gather_compute, NULL},
    {"Reshard", "Reshard", COMM_RESHARD, 3, TSR_UNDEFINED, false, tsr__reshard_create,
     tsr__reshard_compute, NULL},
    {"ReshardF16", "Reshard", COMM_RESHARD, 3, TSR_FLOAT16, false, tsr__reshard_create,
     tsr__reshard_compute, NULL},
    {"HaloExchange", "HaloExchange", COMM_HALO, 3, TSR_UNDEFINED, false, tsr__halo_create,
     tsr__reshard_compute, NULL},
    {"HaloExchangeF16", "HaloExchange", COMM_HALO, 3, TSR_FLOAT16, false, tsr__halo_create,
     tsr__reshard_compute, NULL},
    {"ReduceScatter", "ReduceScatter", COMM_REDUCE_SCATTER, 2, TSR_UNDEFINED, false,
     tsr__reduce_scatter_create, tsr__reduce_scatter_compute, NULL},
    {"ReduceScatterF16", "ReduceScatter", COMM_REDUCE_SCATTER, 2, TSR_FLOAT16, false,
     tsr__reduce_scatter_create, tsr__reduce_scatter_compute, NULL},
    {"Reduce", "Reduce", COMM_REDUCE, 2, TSR_UNDEFINED, false, tsr__reduce_create,
     tsr__reduce_compute, NULL},
    {"ReduceF16", "Reduce", COMM_REDUCE, 2, TSR_FLOAT16, false, tsr__reduce_create,
     tsr__reduce_compute, NULL},
    {"AllToAll", "AllToAll", COMM_ALL_TO_ALL, 2, TSR_UNDEFINED, false, tsr__all_to_all_create,
     tsr__all_to_all_compute, NULL},
    {"AllToAllF16", "AllToAll", COMM_ALL_TO_ALL, 2, TSR_FLOAT16, false, tsr__all_to_all_create,
     tsr__all_to_all_compute, NULL},
    {"Broadcast", "Broadcast", COMM_BROADCAST, 2, TSR_UNDEFINED, false, tsr__broadcast_create,
     tsr__broadcast_compute, NULL},
    {"BroadcastF16", "Broadcast", COMM_BROADCAST, 2, TSR_FLOAT16, false, tsr__broadcast_create,
     tsr__broadcast_compute, NULL},
    {"Send", "Send", COMM_SEND, 2, TSR_UNDEFINED, false, tsr__send_create, tsr__send_compute, NULL},
    {"SendF16", "Send", COMM_SEND, 2, TSR_FLOAT16, false, tsr__send_create, tsr__send_compute,
     NULL},
    {"Recv", "Recv", COMM_SEND, 2, TSR_UNDEFINED, false, tsr__send_create, tsr__recv_compute, NULL},
    {"RecvF16", "Recv", COMM_SEND, 2, TSR_FLOAT16, false, tsr__send_create, tsr__recv_compute,
     NULL},
};

// ---- attributes that all have ------------------------------------------------------------------

static OrtStatus *read_text(struct kernel *k, const OrtKernelInfo *info, const char *name,
                            char **out)
{
    size_t n = 0;
    OrtStatus *st = k->api->KernelInfoGetAttribute_string(info, name, NULL, &n);
    if (st || n == 0 || n > 65536) {
        if (st)
            k->api->ReleaseStatus(st);
        return tsr__kernel_error(k, "attribute '%s' is absent or no text", name);
    }
    char *text = arena_get(&k->arena, n + 1, 1);
    if (!text)
        return tsr__kernel_error(k, "out of memory");
    TRY(k->api->KernelInfoGetAttribute_string(info, name, text, &n));
    *out = text;
    return NULL;
}

OrtStatus *tsr__kernel_ints(struct kernel *k, const OrtKernelInfo *info, const char *name,
                            int64_t **out, size_t *n)
{
    *n = 0;
    OrtStatus *st = k->api->KernelInfoGetAttributeArray_int64(info, name, NULL, n);
    if (st || *n == 0) {
        if (st)
            k->api->ReleaseStatus(st);
        return tsr__kernel_error(k, "attribute '%s' is absent, empty or no list of integers", name);
    }
    *out = ARENA_ARRAY(&k->arena, int64_t, *n);
    if (!*out)
        return tsr__kernel_error(k, "out of memory");
    return k->api->KernelInfoGetAttributeArray_int64(info, name, *out, n);
}

static OrtStatus *read_int(struct kernel *k, const OrtKernelInfo *info, const char *name,
                           int64_t *out)
{
    OrtStatus *st = k->api->KernelInfoGetAttribute_int64(info, name, out);
    if (!st)
        return NULL;
    k->api->ReleaseStatus(st);
    return tsr__kernel_error(k, "attribute '%s' is absent or no integer", name);
}

// The plan's fingerprint: exactly 16 hex digits.
static bool read_plan(const char *text, uint64_t *out)
{
    uint64_t v = 0;
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        int c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0 || n != 16)
            return false;
        v = v << 4 | (uint64_t)digit;
    }
    *out = v;
    return n == 16;
}

static OrtStatus *check_group(struct kernel *k, const int64_t *group, size_t n)
{
    const struct endpoint *e = k->ops->endpoint;
    if (n > (size_t)e->size)
        return tsr__kernel_error(k, "a group of %zu in a job of %d ranks", n, e->size);
    k->self = -1;
    for (size_t i = 0; i < n; i++) {
        if (group[i] < 0 || group[i] >= e->size)
            return tsr__kernel_error(k, "group names rank %lld, the job has %d ranks",
                                     (long long)group[i], e->size);
        if (i && group[i] <= group[i - 1])
            return tsr__kernel_error(k, "the group is not ascending");
        if (group[i] == e->rank)
            k->self = (int)i;
    }
    if (k->self < 0)
        return tsr__kernel_error(k, "rank %d is not in the group: is this another rank's file?",
                                 e->rank);
    return NULL;
}

static OrtStatus *read_common(struct kernel *k, const OrtKernelInfo *info)
{
    char *plan;
    int64_t id, type, *group;
    size_t n;
    TRY(read_text(k, info, "plan", &plan));
    if (!read_plan(plan, &k->call.plan))
        return tsr__kernel_error(k, "attribute 'plan' is not 16 hex digits");
    TRY(read_int(k, info, "id", &id));
    TRY(read_int(k, info, "elem_type", &type));
    bool texts =
        type == TSR_STRING && (k->kind->kind == COMM_ALL_GATHER || k->kind->kind == COMM_RESHARD);
    if (type <= 0 || type >= TSR_DTYPE_COUNT || (!texts && !tsr__elem_bytes((tsr_dtype)type)))
        return tsr__kernel_error(k, "element type %lld cannot travel", (long long)type);
    if (k->kind->only && k->kind->only != (tsr_dtype)type)
        return tsr__kernel_error(k, "is for %s only", tsr_dtype_name(k->kind->only));
    if (texts && on_device(k))
        return tsr__kernel_error(k, "texts cannot travel between GPUs: put their rank on the CPU");
    TRY(tsr__kernel_ints(k, info, "group", &group, &n));
    TRY(check_group(k, group, n));
    k->call.id = id;
    k->call.type = (tsr_dtype)type;
    k->call.group = group;
    k->call.n_group = (int)n;
    return NULL;
}

OrtStatus *tsr__all_reduce_create(struct kernel *k, const OrtKernelInfo *info)
{
    static const char *const names[COMM_REDUCE_COUNT] = {"", "sum", "max", "min", "prod"};
    char *reduce;
    TRY(read_text(k, info, "reduce", &reduce));
    for (int r = COMM_SUM; r < COMM_REDUCE_COUNT; r++)
        if (strcmp(reduce, names[r]) == 0)
            k->call.reduce = (enum comm_reduce)r;
    if (k->call.reduce == COMM_NONE)
        return tsr__kernel_error(k, "attribute 'reduce' is not sum, max, min or prod");
    if (!tsr__reduce_ok(k->call.type, k->call.reduce))
        return tsr__kernel_error(k, "%s elements cannot be reduced", tsr_dtype_name(k->call.type));
    return NULL;
}

OrtStatus *tsr__all_gather_create(struct kernel *k, const OrtKernelInfo *info)
{
    TRY(read_int(k, info, "axis", &k->axis));
    if (k->axis < -OPS_MAX_RANK || k->axis >= OPS_MAX_RANK)
        return tsr__kernel_error(k, "axis %lld", (long long)k->axis);
    k->call.detail = tsr__hash64(&k->axis, sizeof k->axis, 0);
    return NULL;
}

// ---- what ONNX Runtime asks an operator --------------------------------------------------------

static const struct op *op_of(const OrtCustomOp *op)
{
    return (const struct op *)op;
}

static const char *get_name(const OrtCustomOp *op)
{
    return op_of(op)->kind->name;
}

static const char *get_provider(const OrtCustomOp *op)
{
    return op_of(op)->side == SIDE_CUDA ? "CUDAExecutionProvider" : NULL; // NULL: CPU
}

// A shape is read by the host, wherever the tensors are.
static int get_memory(const OrtCustomOp *op, size_t i)
{
    bool shape = i == 1 && op_of(op)->kind->inputs == 3;
    return shape ? ORT_MEMORY_CPU_INPUT : ORT_MEMORY_DEFAULT;
}

static int get_input_type(const OrtCustomOp *op, size_t i)
{
    return i == 0 ? (int)op_of(op)->kind->only : (int)TSR_INT64; // shape and token
}

static int get_output_type(const OrtCustomOp *op, size_t i)
{
    return i == 0 ? (int)op_of(op)->kind->only : (int)TSR_INT64;
}

static size_t get_inputs(const OrtCustomOp *op)
{
    return (size_t)op_of(op)->kind->inputs;
}

static size_t get_outputs(const OrtCustomOp *op)
{
    (void)op;
    return 2;
}

static int get_zero(const OrtCustomOp *op, size_t i)
{
    (void)op;
    (void)i;
    return 0; // required
}

static int get_arity(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_start_version(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_end_version(const OrtCustomOp *op)
{
    (void)op;
    return INT32_MAX;
}

// X and token may be written over. Not given the operator, so it serves those alone that may.
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

static size_t get_none(int **inputs, int **outputs)
{
    *inputs = *outputs = NULL;
    return 0;
}

static void release_none(int *inputs, int *outputs)
{
    (void)inputs;
    (void)outputs;
}

#define SHAPE_MAX_RANK 16

static OrtStatus *infer_same(const OrtCustomOp *op, OrtShapeInferContext *context)
{
    const OrtApi *api = op_of(op)->ops->api;
    OrtTensorTypeAndShapeInfo *x = NULL, *token = NULL;
    int64_t one = 1;
    int64_t dims[SHAPE_MAX_RANK];
    size_t rank = 0;
    TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &x));
    TRY(api->GetDimensionsCount(x, &rank));
    // Rank 0 may mean that the shape is not known, and a size that is not known comes back as -1, which ONNX
    // Runtime would take for a number. Nothing is said then.
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

static void kernel_destroy(void *kernel)
{
    struct kernel *k = kernel;
    tsr_session *s = k->ops->session;
    if (k->reshard)
        tsr__reshard_free(k);
    tsr__arena_free(&k->arena);
    tsr__free(s, k, sizeof *k);
}

static OrtStatus *read_node_name(struct kernel *k, const OrtKernelInfo *info)
{
    size_t n = 0;
    k->call.node = "";
    TRY(k->api->KernelInfo_GetNodeName(info, NULL, &n));
    char *name = arena_get(&k->arena, n + 1, 1);
    if (!name)
        return tsr__kernel_error(k, "out of memory");
    TRY(k->api->KernelInfo_GetNodeName(info, name, &n));
    k->call.node = name;
    return NULL;
}

// Where ranks may be on GPUs: what takes long is done before the first run.
static OrtStatus *prepare(struct kernel *k)
{
    struct endpoint *e = k->ops->endpoint;
    struct comm_trouble why;
    if (!tsr__device_is(e))
        return NULL;
    tsr__device_expect(e, k->call.group, k->call.n_group);
    k->call.place = on_device(k) ? COMM_DEVICE : COMM_HOST;
    if (on_device(k) && tsr__device_prepare(e, &k->call, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return NULL;
}

static OrtStatus *kernel_create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                                void **out)
{
    struct ops *o = op_of(op)->ops;
    struct kernel *k = tsr__alloc(o->session, sizeof *k);
    if (!k)
        return api->CreateStatus(ORT_FAIL, "out of memory");
    memset(k, 0, sizeof *k);
    k->ops = o;
    k->api = api;
    k->kind = op_of(op)->kind;
    k->side = op_of(op)->side;
    k->call.kind = k->kind->kind;
    k->call.op = k->kind->plain;
    tsr__arena_init(&k->arena, o->session);
    OrtStatus *st = read_node_name(k, info);
    if (!st && !o->endpoint)
        st = tsr__kernel_error(k, "%s", o->why);
    if (!st)
        st = read_common(k, info);
    if (!st)
        st = k->kind->create(k, info);
    if (!st)
        st = prepare(k);
    if (st) {
        kernel_destroy(k);
        return st;
    }
    *out = k;
    return NULL;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note_event(struct kernel *k, uint64_t start_ns)
{
    struct ops *o = k->ops;
    struct ops_event *e =
        o->events.n < OPS_MAX_EVENTS ? vec_push(&o->events_arena, &o->events) : NULL;
    if (e)
        *e = (struct ops_event){.op = k->call.op,
                                .node = k->call.node,
                                .id = k->call.id,
                                .run = k->call.run,
                                .start_ns = start_ns,
                                .end_ns = now_ns(),
                                .first = k->call.group[0],
                                .n_group = k->call.n_group,
                                .type = k->call.type};
}

// The work of a kernel, on the stream that the engine gives. Where a library stands in for the driver there is none, and
// the engine goes on at once: the work is waited for.
static OrtStatus *compute(struct kernel *k, OrtKernelContext *context)
{
    struct comm_trouble why;
    if (k->side == SIDE_CUDA)
        TRY(k->api->KernelContext_GetGPUComputeStream(context, &k->call.stream));
    if (k->side == SIDE_STAND_IN)
        k->call.stream = tsr__device_stand_in(k->ops->endpoint);
    TRY(k->kind->compute(k, context));
    if (k->side == SIDE_STAND_IN && tsr__device_wait(k->ops->endpoint, &k->call, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return NULL;
}

static OrtStatus *kernel_compute(void *kernel, OrtKernelContext *context)
{
    struct kernel *k = kernel;
    if (atomic_flag_test_and_set(&k->ops->busy))
        return tsr__kernel_error(k, "two runs of one rank at a time");
    uint64_t start = k->ops->traced ? now_ns() : 0;
    OrtStatus *st = compute(k, context);
    if (start)
        note_event(k, start);
    if (st) // the others wait for this rank: tell them, whoever runs it
        tsr__comm_fail(k->ops->endpoint, TSR_INVALID, k->api->GetErrorMessage(st));
    k->call.run++;
    atomic_flag_clear(&k->ops->busy);
    return st;
}

// ---- registration ------------------------------------------------------------------------------

#define LIST_BYTES (2 * TSR_COUNT(kinds) * sizeof(struct op))

static void op_init(struct op *p, const struct op_kind *kind, struct ops *o, int minor,
                    enum op_side side)
{
    p->kind = kind;
    p->side = side;
    p->ops = o;
    p->ort = (OrtCustomOp){
        .version = (uint32_t)(minor < ORT_OP_VERSION ? minor : ORT_OP_VERSION),
        .GetName = get_name,
        .GetExecutionProviderType = get_provider,
        .GetInputType = get_input_type,
        .GetInputTypeCount = get_inputs,
        .GetOutputType = get_output_type,
        .GetOutputTypeCount = get_outputs,
        .KernelDestroy = kernel_destroy,
        .GetInputCharacteristic = get_zero,
        .GetOutputCharacteristic = get_zero,
        .GetInputMemoryType = get_memory,
        .GetVariadicInputMinArity = get_arity,
        .GetVariadicInputHomogeneity = get_arity,
        .GetVariadicOutputMinArity = get_arity,
        .GetVariadicOutputHomogeneity = get_arity,
        .CreateKernelV2 = kernel_create,
        .KernelComputeV2 = kernel_compute,
        .InferOutputShapeFn = kind->infer,
        .GetStartVersion = get_start_version,
        .GetEndVersion = get_end_version,
        .GetMayInplace = kind->inplace ? get_inplace : get_none,
        .ReleaseMayInplace = kind->inplace ? release_inplace : release_none,
        .GetAliasMap = get_none,
        .ReleaseAliasMap = release_none,
    };
}

static OrtStatus *add_side(struct ops *o, int minor, struct op *list, enum op_side side)
{
    for (size_t i = 0; i < TSR_COUNT(kinds); i++) {
        op_init(&list[i], &kinds[i], o, minor, side);
        TRY(o->api->CustomOpDomain_Add(o->domain, &list[i].ort));
    }
    return NULL;
}

// A rank on a GPU has every operator twice, and the engine picks the side that it puts the node on.
static OrtStatus *add_all(struct ops *o, int minor, OrtSessionOptions *options)
{
    struct gpu_seat *seat = o->endpoint ? tsr__device_seat(o->endpoint) : NULL;
    bool stands_in = seat && tsr__device_stand_in(o->endpoint);
    TRY(o->api->CreateCustomOpDomain(OPS_DOMAIN, &o->domain));
    TRY(add_side(o, minor, o->list, stands_in ? SIDE_STAND_IN : SIDE_HOST));
    if (seat && !stands_in)
        TRY(add_side(o, minor, o->list + TSR_COUNT(kinds), SIDE_CUDA));
    return o->api->AddCustomOpDomain(options, o->domain);
}

OrtStatus *tsr__ops_add(const OrtApi *api, int minor, OrtSessionOptions *options,
                        struct endpoint *e, const char *why, struct ops **out)
{
    tsr_session *s = tsr_session_new(NULL); // of its own: kernels live on the rank's thread
    struct ops *o = s ? tsr__alloc(s, sizeof *o) : NULL;
    struct op *list = o ? tsr__alloc(s, LIST_BYTES) : NULL;
    if (!list) {
        if (o)
            tsr__free(s, o, sizeof *o);
        tsr_session_free(s);
        return api->CreateStatus(ORT_FAIL, "out of memory");
    }
    memset(o, 0, sizeof *o);
    memset(list, 0, LIST_BYTES);
    atomic_flag_clear(&o->busy);
    o->session = s;
    o->api = api;
    o->endpoint = e;
    o->list = list;
    tsr__arena_init(&o->events_arena, s);
    snprintf(o->why, sizeof o->why, "%s", why ? why : "no transport");
    OrtStatus *st = add_all(o, minor, options);
    if (st)
        tsr__ops_free(o);
    else
        *out = o;
    return st;
}

void tsr__ops_free(struct ops *o)
{
    if (!o)
        return;
    tsr_session *s = o->session;
    tsr__arena_free(&o->events_arena);
    if (o->domain)
        o->api->ReleaseCustomOpDomain(o->domain);
    for (int i = 0; i < 2; i++)
        tsr__free(s, o->scratch[i].p, o->scratch[i].bytes);
    tsr__free(s, o->list, LIST_BYTES);
    tsr__free(s, o, sizeof *o);
    tsr_session_free(s);
}

void tsr__ops_trace(struct ops *o)
{
    o->traced = true;
}

const struct ops_event *tsr__ops_events(const struct ops *o, size_t *n)
{
    *n = o->events.n;
    return o->events.at;
}

const struct comm_trouble *tsr__ops_trouble(const struct ops *o)
{
    return o->trouble.status != TSR_OK ? &o->trouble : NULL;
}

int tsr__ort_minor(const char *version)
{
    const char *dot = version ? strchr(version, '.') : NULL;
    int minor = 0;
    for (const char *p = dot ? dot + 1 : ""; *p >= '0' && *p <= '9' && minor < 10000; p++)
        minor = minor * 10 + (*p - '0');
    return version && version[0] == '1' && dot == version + 1 ? minor : 0;
}
