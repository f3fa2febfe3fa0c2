// SPDX-License-Identifier: Apache-2.0
// engine.h - ONNX Runtime: its C interface (ort.h), loading it, and its values as tensors.
#ifndef TSR_ENGINE_H
#define TSR_ENGINE_H

#include "engine/ort.h"
#include "tensors/tensors.h"

#include <stdatomic.h>

struct endpoint;
struct gpu;
struct gpu_seat;

// Returns the minor number of a version text such as "1.31.1"; 0: invalid.
int tsr__ort_minor(const char *version);

// ---- quirks (quirks.def, engine.c) --------------------------------------------------------------

enum quirk {
#define QUIRK(name, first, last, wrong, workaround, test) QUIRK_##name,
#include "engine/quirks.def"
#undef QUIRK
};
// True if ONNX Runtime 1.minor has the quirk.
bool tsr__quirk_applies(enum quirk quirk, int minor);

// ---- loading ------------------------------------------------------------------------------------

// Memory for ONNX Runtime that other processes can access. info NULL: not registered.
struct shared_memory {
    OrtAllocator base;      // must be the first field
    OrtAllocator *ordinary; // ONNX Runtime's own allocator
    struct endpoint *endpoint;
    OrtMemoryInfo *info;
    atomic_bool running; // false while the engine's sessions are created
};

// What a tsr_session needs for runs: ONNX Runtime, loaded once, and the endpoint to other
// processes.
struct engine {
    const OrtApi *api;       // NULL: not open yet
    struct endpoint *joined; // endpoint to ranks that are processes; NULL: not joined yet
    OrtEnv *env;             // one per process, reference-counted by ONNX Runtime
    OrtMemoryInfo *memory;
    OrtAllocator *allocator;     // ONNX Runtime's own allocator
    struct shared_memory shared; // for ranks that are processes (reach.c)
    int minor;
    struct gpu *gpu;   // CUDA driver; NULL: not opened, or not available
    char gpu_why[200]; // not empty: why the driver is not available
    char version[32];
    char path[4096];
    struct arena facts_arena;
    struct str *facts; // properties of each rank of the last run, as written by rank_facts.c
    tsr_rank_facts *read_facts; // the same, once tsr_run_rank was called; NULL: not yet
    int n_facts;
};

// Uses an ONNX Runtime that the application has loaded, instead of opening one.
tsr_status tsr__engine_adopt(tsr_session *session, const OrtApiBase *base);
// Returns the engine of the session, with ONNX Runtime loaded from the default place if necessary.
tsr_status tsr__engine(tsr_session *session, struct engine **out);
// Returns the engine without loading ONNX Runtime, for its other fields. NULL: out of memory.
struct engine *tsr__engine_state(tsr_session *session);

// ---- reach.c
// Lets the engine's sessions allocate tensors of a run in memory that the other ranks can access;
// false: they use ordinary memory.
bool tsr__reach_share(struct engine *engine, struct endpoint *place);
void tsr__reach_running(struct engine *engine, bool running);
// Called after the engine's sessions are closed, before the endpoint is.
void tsr__reach_end(struct engine *engine);

// Type of an input: a tensor, or a sequence or optional of tensors; type 0: something else. Unknown
// sizes in dims are -1.
struct wanted {
    bool sequence, optional;
    int type;
    size_t rank;
    int64_t dims[RUN_MAX_RANK];
};

// ---- values (engine_values.c) -------------------------------------------------------------------

// Converts an element type of ONNX Runtime to ONNX's number.
tsr_dtype tsr__engine_dtype(int type);
// Type, shape and number of elements of a value that is a tensor. If it has more dimensions than a
// set supports, the type is TSR_UNDEFINED and dims are not set.
struct value_shape {
    tsr_dtype type;
    size_t rank, elements;
    int64_t dims[RUN_MAX_RANK];
};
OrtStatus *tsr__engine_shape(const OrtApi *api, const OrtValue *value, struct value_shape *out);
OrtStatus *tsr__engine_wanted(const struct engine *engine, const OrtSession *session, size_t i,
                              struct wanted *out);
// Creates a value over the tensor's GPU memory, which belongs to its producer; info describes that
// memory.
OrtStatus *tsr__engine_device_value(const struct engine *engine, const OrtMemoryInfo *info,
                                    const struct tensor *tensor, OrtValue **out);
// Creates a value over the tensor's memory (strings are copied). For an optional without a value,
// which ONNX Runtime does not accept, returns NULL and leaves *out unchanged.
OrtStatus *tsr__engine_value(const struct engine *engine, struct arena *arena,
                             const struct tensor *tensor, OrtValue **out);
// Creates a tensor of this type and shape in host memory, with uninitialized elements.
OrtStatus *tsr__engine_new_value(const struct engine *engine, const struct tensor *shape,
                                 OrtValue **out);
// As tsr__engine_value, but copies the data into memory that a run may overwrite; not for strings.
OrtStatus *tsr__engine_own_value(const struct engine *engine, const struct tensor *tensor,
                                 OrtValue **out);
// Copies a value into the set under that name. *failed: an error of ONNX Runtime, to be released by
// the caller. TSR_ENGINE without *failed: a kind of value that sets do not support.
tsr_status tsr__engine_take(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed);
// As tsr__engine_take, but numbers are not copied: v must live as long as the set.
tsr_status tsr__engine_view(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed);
// Copies a value into `place`, a tensor on the GPU of `seat` (a GPU context). A value on that GPU
// is copied directly, not through host memory. TSR_INVALID: another type or shape.
tsr_status tsr__engine_fill(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                            const struct tensor *place, OrtStatus **failed);
// As tsr__engine_take, for a tensor on the GPU of `seat`.
tsr_status tsr__engine_fetch(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                             const char *name, tsr_tensors *to, OrtStatus **failed);

// True if the value is in GPU memory.
bool tsr__gpu_holds(const struct engine *engine, const OrtValue *v);
// Copies to memory on the seat's GPU: from the same GPU if `there` is true, otherwise from host
// memory.
int tsr__gpu_copy_to(struct gpu_seat *seat, void *to, const void *from, size_t bytes, bool there);
int tsr__gpu_fetch(struct gpu_seat *seat, void *to, const void *from, size_t bytes);

#endif
