// SPDX-License-Identifier: Apache-2.0
// engine.h - ONNX Runtime: its C interface (ort.h), loading it, and its values as tensors.
#ifndef TSR_ENGINE_H
#define TSR_ENGINE_H

#include "engine/ort.h"
#include "tensors/tensors.h"

#include <pthread.h>
#include <stdatomic.h>

struct endpoint;
struct gpu;
struct gpu_seat;

// Minor number of a version text such as "1.31.1"; 0: not understood.
int tsr__ort_minor(const char *version);

// ---- quirks (quirks.def, quirks.c) --------------------------------------------------------------

enum quirk {
#define QUIRK(name, first, last, wrong, workaround, test) QUIRK_##name,
#include "engine/quirks.def"
#undef QUIRK
};
// True if ONNX Runtime 1.minor has the quirk.
bool tsr__quirk_applies(enum quirk quirk, int minor);

// ---- loading ------------------------------------------------------------------------------------

// Memory for ONNX Runtime that other processes reach. info NULL: not registered.
struct shared_memory {
    OrtAllocator base;      // first
    OrtAllocator *ordinary; // ONNX Runtime's own
    struct endpoint *endpoint;
    OrtMemoryInfo *info;
    atomic_bool running; // else: sessions are being made
};

// What a session keeps for running: ONNX Runtime, opened once, and this process's place in an MPI
// job.
struct engine {
    const OrtApi *api;       // NULL: not opened yet
    struct endpoint *joined; // the other ranks, which are processes; NULL: not yet
    OrtEnv *env;             // ONNX Runtime keeps one per process and counts
    OrtMemoryInfo *memory;
    OrtAllocator *allocator;     // ONNX Runtime's own
    struct shared_memory shared; // of ranks that are processes (reach.c)
    int minor;
    bool primed;       // our operators' domain is known to the process
    struct gpu *gpu;   // CUDA's driver; NULL: not opened, or not here
    char gpu_why[200]; // it was looked for and is not here
    char version[32];
    char path[4096];
    struct arena facts_arena;
    struct str
        *facts; // of each rank of the last run that was to keep them, as rank_facts.c writes them
    int n_facts;
    // ONNX Runtime looks for a new operator domain and adds it in two steps: the first session
    // alone.
    pthread_mutex_t first;
    bool domain_known; // under `first`
};

// Uses an ONNX Runtime that the host has loaded, instead of opening one.
tsr_status tsr__engine_adopt(tsr_session *session, const OrtApiBase *base);
// The engine of the session, opened with the defaults if it is not yet.
tsr_status tsr__engine(tsr_session *session, struct engine **out);
// The same, perhaps not opened: for what else it holds. NULL: out of memory.
struct engine *tsr__engine_state(tsr_session *session);

// ---- reach.c
// Puts what sessions allocate while they run where the other ranks reach it; false: it stays where
// it is.
bool tsr__reach_share(struct engine *engine, struct endpoint *place);
void tsr__reach_running(struct engine *engine, bool running);
void tsr__reach_end(struct engine *engine); // after all sessions, before the endpoint

// What an input wants: a tensor, a sequence or an optional of one; type 0: something else. dims -1
// where open.
struct wanted {
    bool sequence, optional;
    int type;
    size_t rank;
    int64_t dims[RUN_MAX_RANK];
};

// ---- values (engine_values.c) -------------------------------------------------------------------

// ONNX's number of an element type of ONNX Runtime.
tsr_dtype tsr__engine_dtype(int type);
OrtStatus *tsr__engine_wanted(const struct engine *engine, const OrtSession *session, size_t i,
                              struct wanted *out);
// A value over GPU memory that a rank there shares with the producer of the tensor; info: of that
// memory.
OrtStatus *tsr__engine_device_value(const struct engine *engine, const OrtMemoryInfo *info,
                                    const struct tensor *tensor, OrtValue **out);
// A value over the tensor's memory (texts are copied). NULL and *out NULL: an optional without a
// value, which ONNX Runtime cannot be given.
OrtStatus *tsr__engine_value(const struct engine *engine, struct arena *arena,
                             const struct tensor *tensor, OrtValue **out);
// The same with separate memory, which a run may write; numbers only.
OrtStatus *tsr__engine_own_value(const struct engine *engine, const struct tensor *tensor,
                                 OrtValue **out);
// Copies a value into the set under that name. *failed: ONNX Runtime's word, to be released;
// TSR_ENGINE without one: a kind that no set holds.
tsr_status tsr__engine_take(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed);
// The same, but numbers are borrowed: v must live as long as the set.
tsr_status tsr__engine_view(const struct engine *engine, OrtValue *v, const char *name,
                            tsr_tensors *to, OrtStatus **failed);
// Writes a tensor to its place, on the GPU of that seat, without a way over the host where it lies
// there.
tsr_status tsr__engine_fill(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                            const struct tensor *place, OrtStatus **failed);
// As tsr__engine_take, of a tensor that lies on the GPU of that seat.
tsr_status tsr__engine_fetch(const struct engine *engine, struct gpu_seat *seat, OrtValue *v,
                             const char *name, tsr_tensors *to, OrtStatus **failed);

// Bytes of a value that lies on the rank's GPU, to the host.
bool tsr__gpu_holds(const struct engine *engine, const OrtValue *v);
// Copies to a place on the seat's GPU, from there or (there false) from the host.
int tsr__gpu_lay(struct gpu_seat *seat, void *to, const void *from, size_t bytes, bool there);
int tsr__gpu_fetch(struct gpu_seat *seat, void *to, const void *from, size_t bytes);

#endif
