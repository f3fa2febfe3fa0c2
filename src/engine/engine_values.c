// SPDX-License-Identifier: Apache-2.0
// engine_values.c - converts tensors of a set to values of ONNX Runtime and back: numbers as views
// or copies, strings element by element, sequences as lists of both. ONNX Runtime accepts neither
// an optional without a value nor an empty sequence.
#include "engine/engine.h"
#include "gpu/gpu.h"

#include <stdio.h>

bool tsr__gpu_holds(const struct engine *engine, const OrtValue *v)
{
    const OrtMemoryInfo *info = NULL;
    int device = 0;
    OrtStatus *st = engine->api->GetTensorMemoryInfo(v, &info);
    if (st) {
        engine->api->ReleaseStatus(st);
        return false;
    }
    engine->api->MemoryInfoGetDeviceType(info, &device);
    return device == 1; // a GPU
}

int tsr__gpu_fetch(struct gpu_seat *seat, void *to, const void *from, size_t bytes)
{
    void *stream = tsr__seat_stream(seat);
    int code = tsr__seat_enter(seat);
    if (code == 0)
        code = tsr__seat_down(seat, to, from, bytes, stream);
    return code == 0 ? tsr__seat_wait(seat, stream) : code;
}

int tsr__gpu_copy_to(struct gpu_seat *seat, void *to, const void *from, size_t bytes, bool there)
{
    void *stream = tsr__seat_stream(seat);
    int code = tsr__seat_enter(seat);
    if (code != 0)
        return code;
    if (there)
        code = tsr__seat_copy(seat, to, from, bytes, stream);
    else
        code = tsr__seat_up(seat, to, from, bytes, stream);
    return code != 0 ? code : tsr__seat_wait(seat, stream);
}

// ONNX Runtime numbers element types up to 23 as ONNX does. From 24 on its numbers differ: this
// table has ONNX's types in ONNX Runtime's order (1.31).
static const int newer_types[] = {TSR_UINT2, TSR_INT2, TSR_FLOAT8E8M0};
#define FIRST_NEWER 24

tsr_dtype tsr__engine_dtype(int type)
{
    bool newer = type >= FIRST_NEWER && type < FIRST_NEWER + (int)TSR_COUNT(newer_types);
    return (tsr_dtype)(newer ? newer_types[type - FIRST_NEWER] : type);
}

static int to_engine(int type)
{
    for (int i = 0; i < (int)TSR_COUNT(newer_types); i++)
        if (newer_types[i] == type)
            return FIRST_NEWER + i;
    return type;
}

// ---- types of inputs ----------------------------------------------------------------------------

static OrtStatus *read_tensor_info(const OrtApi *api, const OrtTypeInfo *info, struct wanted *out)
{
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    int type = 0;
    TRY(api->CastTypeInfoToTensorInfo(info, &tensor));
    if (!tensor)
        return NULL;
    TRY(api->GetTensorElementType(tensor, &type));
    TRY(api->GetDimensionsCount(tensor, &out->rank));
    if (out->rank <= RUN_MAX_RANK)
        TRY(api->GetDimensions(tensor, out->dims, out->rank));
    out->type = (int)tsr__engine_dtype(type);
    return NULL;
}

// Reads a type: unwraps the optional, then the sequence, then reads the tensor type.
static OrtStatus *read_info(const OrtApi *api, OrtTypeInfo *info, struct wanted *out)
{
    int kind = 0;
    const OrtSequenceTypeInfo *sequence = NULL;
    const OrtOptionalTypeInfo *optional = NULL;
    OrtTypeInfo *inner = NULL;
    TRY(api->GetOnnxTypeFromTypeInfo(info, &kind));
    if (kind == ORT_OPTIONAL && !out->optional && !out->sequence) {
        TRY(api->CastTypeInfoToOptionalTypeInfo(info, &optional));
        TRY(api->GetOptionalContainedTypeInfo(optional, &inner));
        out->optional = true;
    } else if (kind == ORT_SEQUENCE && !out->sequence) {
        TRY(api->CastTypeInfoToSequenceTypeInfo(info, &sequence));
        TRY(api->GetSequenceElementType(sequence, &inner));
        out->sequence = true;
    } else {
        if (kind == ORT_TENSOR)
            return read_tensor_info(api, info, out);
        return NULL;
    }
    OrtStatus *st = read_info(api, inner, out);
    api->ReleaseTypeInfo(inner);
    return st;
}

OrtStatus *tsr__engine_wanted(const struct engine *engine, const OrtSession *session, size_t i,
                              struct wanted *out)
{
    OrtTypeInfo *info = NULL;
    memset(out, 0, sizeof *out);
    TRY(engine->api->SessionGetInputTypeInfo(session, i, &info));
    OrtStatus *st = read_info(engine->api, info, out);
    engine->api->ReleaseTypeInfo(info);
    return st;
}

// ---- to ONNX Runtime ---------------------------------------------------------------------------

static OrtStatus *make_texts(const struct engine *engine, const struct tensor *tensor,
                             OrtValue **out)
{
    OrtValue *value = NULL;
    int64_t n = tsr__tensor_elements(tensor);
    TRY(engine->api->CreateTensorAsOrtValue(engine->allocator, tensor->dims, (size_t)tensor->rank,
                                            TSR_STRING, &value));
    for (int64_t i = 0; i < n; i++) {
        struct str text = tsr__tensor_text(tensor, i);
        char *to = NULL;
        OrtStatus *failed =
            engine->api->GetResizedStringTensorElementBuffer(value, (size_t)i, text.n, &to);
        if (failed) {
            engine->api->ReleaseValue(value);
            return failed;
        }
        if (text.n)
            memcpy(to, text.p, text.n);
    }
    *out = value;
    return NULL;
}

static OrtStatus *make_sequence(const struct engine *engine, struct arena *arena,
                                const tsr_tensors *list, OrtValue **out)
{
    OrtValue **values = ARENA_ARRAY(arena, OrtValue *, list->n + 1);
    if (!values)
        return engine->api->CreateStatus(ORT_FAIL, "out of memory");
    size_t made = 0;
    OrtStatus *failed = NULL;
    for (; made < list->n; made++) {
        failed = tsr__engine_value(engine, arena, list->at[made], &values[made]);
        if (failed)
            goto release_values;
    }
    // The sequence keeps its own references, so ours are released in every case, also after a
    // failure.
    failed = engine->api->CreateValue((const OrtValue *const *)values, made, ORT_SEQUENCE, out);
release_values:
    for (size_t i = 0; i < made; i++)
        engine->api->ReleaseValue(values[i]);
    return failed;
}

OrtStatus *tsr__engine_value(const struct engine *engine, struct arena *arena,
                             const struct tensor *tensor, OrtValue **out)
{
    bool no_tensor = tensor->rank < 0;
    if (no_tensor && !tensor->sequence)
        return NULL;
    if (no_tensor)
        return make_sequence(engine, arena, tensor->sequence, out);
    if (tensor->type == TSR_STRING)
        return make_texts(engine, tensor, out);
    return engine->api->CreateTensorWithDataAsOrtValue(engine->memory, tensor->data, tensor->bytes,
                                                       tensor->dims, (size_t)tensor->rank,
                                                       to_engine(tensor->type), out);
}

OrtStatus *tsr__engine_device_value(const struct engine *engine, const OrtMemoryInfo *info,
                                    const struct tensor *tensor, OrtValue **out)
{
    return engine->api->CreateTensorWithDataAsOrtValue(
        info, tensor->device_data, tensor->device_bytes, tensor->dims, (size_t)tensor->rank,
        to_engine(tensor->type), out);
}

OrtStatus *tsr__engine_new_value(const struct engine *engine, const struct tensor *shape,
                                 OrtValue **out)
{
    return engine->api->CreateTensorAsOrtValue(engine->allocator, shape->dims, (size_t)shape->rank,
                                               to_engine(shape->type), out);
}

OrtStatus *tsr__engine_own_value(const struct engine *engine, const struct tensor *tensor,
                                 OrtValue **out)
{
    OrtValue *value = NULL;
    void *data = NULL;
    TRY(tsr__engine_new_value(engine, tensor, &value));
    OrtStatus *failed = engine->api->GetTensorMutableData(value, &data);
    if (failed) {
        engine->api->ReleaseValue(value);
        return failed;
    }
    if (tensor->bytes)
        memcpy(data, tensor->data, tensor->bytes);
    *out = value;
    return NULL;
}

// ---- from ONNX Runtime -------------------------------------------------------------------------

static OrtStatus *read_shape(const OrtApi *api, const OrtTensorTypeAndShapeInfo *info,
                             struct value_shape *out)
{
    int type = 0;
    TRY(api->GetDimensionsCount(info, &out->rank));
    if (out->rank <= RUN_MAX_RANK) {
        TRY(api->GetDimensions(info, out->dims, out->rank));
        TRY(api->GetTensorElementType(info, &type));
    }
    out->type = tsr__engine_dtype(type);
    return api->GetTensorShapeElementCount(info, &out->elements);
}

OrtStatus *tsr__engine_shape(const OrtApi *api, const OrtValue *value, struct value_shape *out)
{
    OrtTensorTypeAndShapeInfo *info = NULL;
    out->type = TSR_UNDEFINED;
    TRY(api->GetTensorTypeAndShape(value, &info));
    OrtStatus *failed = read_shape(api, info, out);
    api->ReleaseTensorTypeAndShapeInfo(info);
    return failed;
}

// Reads the strings of a tensor into the arena. ONNX Runtime returns all characters and the start
// of each string. Example: "ab", "" and "c" are "abc" with the starts 0, 2 and 2.
static tsr_status read_texts(const struct engine *engine, struct arena *arena,
                             const OrtValue *value, size_t n, struct str **out, OrtStatus **failed)
{
    size_t bytes = 0;
    *failed = engine->api->GetStringTensorDataLength(value, &bytes);
    if (*failed)
        return TSR_ENGINE;
    char *chars = arena_get(arena, bytes + 1, 1);
    size_t *starts = ARENA_ARRAY(arena, size_t, n + 1);
    struct str *texts = ARENA_ARRAY(arena, struct str, n + 1);
    if (arena->failed)
        return TSR_NOMEM;
    if (n)
        *failed = engine->api->GetStringTensorContent(value, chars, bytes, starts, n);
    if (*failed)
        return TSR_ENGINE;
    starts[n] = bytes;
    for (size_t i = 0; i < n; i++)
        texts[i] = (struct str){chars + starts[i], starts[i + 1] - starts[i]};
    *out = texts;
    return TSR_OK;
}

static tsr_status take_texts(const struct engine *engine, const OrtValue *value, const char *name,
                             const struct value_shape *seen, tsr_tensors *to, OrtStatus **failed)
{
    struct str *texts = NULL;
    struct arena arena = {.session = to->session};
    tsr_status st = read_texts(engine, &arena, value, seen->elements, &texts, failed);
    if (st == TSR_OK)
        st = tsr__tensors_add_texts(to, str_of(name), (int)seen->rank, seen->dims, texts);
    tsr__arena_free(&arena);
    return st;
}

// Adds a tensor of numbers to a set: a copy of its bytes, or a view of them.
typedef tsr_status (*put_fn)(tsr_tensors *tensors, const char *name, tsr_dtype type, int rank,
                             const int64_t *dims, const void *bytes);

static tsr_status take_tensor(const struct engine *engine, OrtValue *v, const char *name,
                              tsr_tensors *to, put_fn put, OrtStatus **failed)
{
    struct value_shape x = {0};
    void *data = NULL;
    *failed = tsr__engine_shape(engine->api, v, &x);
    if (*failed)
        return TSR_ENGINE;
    if (x.type == TSR_STRING)
        return take_texts(engine, v, name, &x, to, failed);
    if (tsr_dtype_bits(x.type) == 0)
        return TSR_ENGINE;
    *failed = engine->api->GetTensorMutableData(v, &data);
    if (*failed)
        return TSR_ENGINE;
    return put(to, name, x.type, (int)x.rank, x.dims, data);
}

// Copies element i of a sequence, named by its number, and releases the engine's value.
static tsr_status take_element(const struct engine *engine, OrtValue *sequence, size_t i,
                               tsr_tensors *list, OrtStatus **failed)
{
    const OrtApi *api = engine->api;
    OrtValue *element = NULL;
    int is_tensor = 0;
    char label[24];
    snprintf(label, sizeof label, "%zu", i);
    *failed = api->GetValue(sequence, (int)i, engine->allocator, &element);
    if (*failed)
        return TSR_ENGINE;
    tsr_status st = TSR_ENGINE;
    *failed = api->IsTensor(element, &is_tensor);
    if (!*failed && is_tensor)
        st = take_tensor(engine, element, label, list, tsr_tensors_put, failed);
    api->ReleaseValue(element);
    return st;
}

// Copies a sequence from the engine. Elements are named "0", "1", ...
static tsr_status take_sequence(const struct engine *engine, OrtValue *value, const char *name,
                                tsr_tensors *to, OrtStatus **failed)
{
    size_t n = 0;
    tsr_tensors *list;
    *failed = engine->api->GetValueCount(value, &n);
    if (*failed)
        return TSR_ENGINE;
    TRY(tsr__tensors_add_other(to, str_of(name), TSR_UNDEFINED, &list));
    for (size_t i = 0; i < n; i++)
        TRY(take_element(engine, value, i, list, failed));
    if (n)
        to->at[tsr_tensors_find(to, name)]->type = list->at[0]->type;
    return TSR_OK;
}

static tsr_status take(const struct engine *engine, OrtValue *v, const char *name, tsr_tensors *to,
                       put_fn put, OrtStatus **failed)
{
    int kind = 0, has = 0;
    *failed = NULL;
    if (v)
        *failed = engine->api->HasValue(v, &has);
    if (*failed)
        return TSR_ENGINE;
    // v NULL (an output that the run did not produce) is treated as an optional without a value.
    if (!has)
        return tsr__tensors_add_other(to, str_of(name), TSR_UNDEFINED, NULL);
    *failed = engine->api->GetValueType(v, &kind);
    if (*failed)
        return TSR_ENGINE;
    if (kind == ORT_SEQUENCE)
        return take_sequence(engine, v, name, to, failed);
    return kind == ORT_TENSOR ? take_tensor(engine, v, name, to, put, failed) : TSR_ENGINE;
}

tsr_status tsr__engine_take(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed)
{
    return take(engine, v, name, to, tsr_tensors_put, failed);
}

tsr_status tsr__engine_view(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed)
{
    return take(engine, v, name, to, tsr_tensors_borrow, failed);
}

// Copies a value to the caller's tensor. The destination must have the type and shape of the value;
// otherwise returns TSR_INVALID and writes nothing.
tsr_status tsr__engine_fill(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                            const struct tensor *place, OrtStatus **failed)
{
    struct value_shape x = {0};
    void *data = NULL;
    *failed = tsr__engine_shape(engine->api, v, &x);
    if (!*failed)
        *failed = engine->api->GetTensorMutableData(v, &data);
    if (*failed)
        return TSR_ENGINE;
    if (x.type != place->type || (int)x.rank != place->rank)
        return TSR_INVALID;
    if (x.rank && memcmp(x.dims, place->dims, x.rank * sizeof *x.dims) != 0)
        return TSR_INVALID;
    int code = tsr__gpu_copy_to(seat, place->device_data, data, place->device_bytes,
                                tsr__gpu_holds(engine, v));
    if (code == 0)
        return TSR_OK;
    *failed = engine->api->CreateStatus(ORT_FAIL, "the tensor could not be copied to the GPU");
    return TSR_ENGINE;
}

tsr_status tsr__engine_fetch(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                             const char *name, tsr_tensors *to, OrtStatus **failed)
{
    struct value_shape x = {0};
    struct tensor *tensor = NULL;
    void *data = NULL;
    *failed = tsr__engine_shape(engine->api, v, &x);
    if (!*failed)
        *failed = engine->api->GetTensorMutableData(v, &data);
    if (*failed)
        return TSR_ENGINE;
    tsr_status st = tsr__tensors_add(to, str_of(name), x.type, (int)x.rank, x.dims, &tensor);
    if (st != TSR_OK || tsr__gpu_fetch(seat, tensor->data, data, tensor->bytes) == 0)
        return st;
    *failed = engine->api->CreateStatus(ORT_FAIL, "the tensor could not be copied from the GPU");
    return TSR_ENGINE;
}
