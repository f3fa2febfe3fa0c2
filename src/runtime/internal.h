// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of runtime share: the engine, one rank at work, tensor sets.
#ifndef TSR_RUNTIME_INTERNAL_H
#define TSR_RUNTIME_INTERNAL_H

#include "runtime/runtime.h"
#include "ops/ops.h"

#include <pthread.h>

// What a session keeps for running: ONNX Runtime, opened once, and this process's place in an MPI job.
struct engine {
    const OrtApi *api;    // NULL: not opened yet
    struct endpoint *mpi; // NULL: not joined
    OrtEnv *env;          // ONNX Runtime keeps one per process and counts
    OrtMemoryInfo *memory;
    OrtAllocator *allocator; // ONNX Runtime's own
    int minor;
    bool primed; // our operators' domain is known to the process
    char version[32];
    char path[4096];
    // ONNX Runtime looks for a new operator domain and adds it in two steps: the first session alone.
    pthread_mutex_t first;
    bool domain_known; // under `first`
};

// The engine of the session, opened with the defaults if it is not yet.
tsr_status tsr__engine(tsr_session *s, struct engine **out);
// The same, perhaps not opened: for what else it holds. NULL: out of memory.
struct engine *tsr__engine_state(tsr_session *s);

// One rank: a model file, its session, its inputs and outputs. It works on a session of its own
// (findings, memory), because it may run on a thread of its own.
struct rank {
    struct engine *engine;
    struct endpoint *endpoint; // NULL: a whole model
    const char *path;
    const char *ort_ops;
    int optimize, threads;
    bool spin;
    const tsr_tensors *inputs;
    uint64_t plan;
    // made by the rank
    tsr_session *session;
    struct arena arena;
    struct ops *ops;
    OrtSession *ort;
    size_t n_inputs, n_outputs;
    const char **input_names, **output_names;
    OrtValue **ins, **outs;
    tsr_status status;
    bool told; // failed because another rank did
};

// Opens the model, meets the other ranks, runs once. The rank's status says how it went.
void tsr__rank_work(struct rank *r);
// Copies the results into outputs; on the thread of their session.
tsr_status tsr__rank_outputs(struct rank *r, tsr_session *s, tsr_tensors *outputs);
// Adds the rank's findings to s.
void tsr__rank_findings(const struct rank *r, tsr_session *s);
void tsr__rank_free(struct rank *r);

// A number of threads for each of `ranks` ranks that share `cores`.
int tsr__rank_threads(int cores, int ranks, int wanted);

// ---- a whole model (whole.c)

#define WHOLE_FOLDER "/tmp/tessera-run-XXXXXX"
struct whole {
    const char *path;                 // the file to give to the engine
    char folder[sizeof WHOLE_FOLDER]; // of the copy; "": none
    struct arena arena;
};
// Finds the file for an ONNX Runtime 1.minor: the one at path, or a copy that this release takes.
// To be closed in every case.
tsr_status tsr__whole_open(tsr_session *s, int minor, const char *path, struct whole *w);
void tsr__whole_close(struct whole *w);

// ---- tensors (tensors.c, npy.c, npz.c, sets.c) -------------------------------------------------

struct tensor {
    char *name;
    tsr_dtype type;
    int rank;
    int64_t *dims;
    void *data; // 64-byte aligned
    size_t bytes;
    size_t cap; // of the memory that holds all of this
};
struct tsr_tensors {
    tsr_session *session;
    struct tensor **at;
    size_t n, cap;
};
// A tensor of that name with room for its elements, not set.
tsr_status tsr__tensors_add(tsr_tensors *t, struct str name, tsr_dtype type, int rank,
                            const int64_t *dims, struct tensor **out);
tsr_status tsr__npy_read(tsr_tensors *t, struct str name, const char *file, struct str bytes);
tsr_status tsr__npz_read(tsr_tensors *t, const char *file);
// True if numpy has this type; else it is written as unsigned integers of the same bits.
bool tsr__npy_has(tsr_dtype type);
// The head of an .npy file for a tensor; at most 2 KiB.
size_t tsr__npy_head(const struct tensor *t, char *out, size_t cap);

#endif
