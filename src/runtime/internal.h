// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of runtime share: the engine, one rank at work, tensor sets.
#ifndef TSR_RUNTIME_INTERNAL_H
#define TSR_RUNTIME_INTERNAL_H

#include "runtime/runtime.h"
#include "ops/ops.h"
#include "engine/engine.h"
#include "tensors/tensors.h"

#include <pthread.h>
#include <stdatomic.h>

#define RUN_SLOTS 16 // runs of one rank that may be asked for before the first is taken

// The values of one run.
struct run_slot {
    OrtValue **ins, **outs; // NULL: nothing, or kept as state
    bool *kept;             // per input: comes from the run before
};
// An output that becomes an input of the next run and does not leave its rank.
struct rank_state {
    size_t input, output;
    OrtValue *value; // NULL: nothing ran yet
};

// One rank: a model file, its session, its inputs and outputs. It has its own session for
// diagnostics and memory, because it may run on its own thread; the caller's thread binds inputs
// and takes outputs of run slots that the rank is not using.
struct rank {
    struct engine *engine;
    struct endpoint *endpoint; // NULL: a whole model
    const char *path;
    const char *ort_ops;
    int optimize, threads;
    bool float_products; // see tsr_run_options
    bool spin;
    uint64_t plan;
    const char *device;   // name of the rank's device, or NULL
    int64_t weight_bytes; // of its part; 0: not known
    const tsr_run_options *options;
    const OrtRunOptions *run_options; // of the next run; NULL: the defaults
    const struct gpu *gpu;            // some rank of the job is on a GPU: its driver; NULL: none is
    const char *profile;              // ONNX Runtime's profile starts so; NULL: not traced
    struct shared_weights *shared;    // NULL: none
    bool unpacked;                    // weights stay as they lie in their files
    bool packs_alone;                 // shares no packed weights with other ranks
    bool container_refused;           // packs_alone because the engine refused to share them
    // made by the rank
    struct endpoint *base; // below `endpoint` where ranks may be on GPUs; else NULL
    struct gpu_seat *seat; // this rank is on a GPU
    int card;              // with seat: its number
    bool owns_seat;        // it is no endpoint's
    char provider[64];     // ONNX Runtime's, without its ending: "CPU"
    int64_t memory_limit;  // bytes that the engine may take of its GPU; 0: no limit
    OrtIoBinding *binding; // with seat: where inputs and outputs are
    OrtMemoryInfo *on_gpu;
    bool *stays; // per output: it is left on the GPU until it is taken
    tsr_session *session;
    struct arena arena;
    struct ops *ops;
    OrtSession *ort;
    size_t n_inputs, n_outputs;
    const char **input_names, **output_names;
    struct wanted *wanted; // per input
    OrtValue **weights;    // views of the shared ones
    size_t n_weights;
    struct run_slot run_slots[RUN_SLOTS];
    struct rank_state *states;
    size_t n_states;
    tsr_status status;
    bool failed_by_peer; // because another rank did
};

// Opens the model and meets the other ranks. The rank's status says how it went, also after a run.
void tsr__rank_open(struct rank *rank);
void tsr__rank_run(struct rank *rank, size_t run_slot);
// all ranks; an unsharded model has none to wait for
void tsr__rank_meet(struct rank *rank, const char *what);
// Binds the inputs of a run slot; findings go to the session. pieces (or NULL): this rank's own of
// some of them. ran: a run was asked for before, so states have a value.
tsr_status tsr__rank_bind(struct rank *rank, size_t run_slot, const tsr_tensors *inputs,
                          const tsr_tensors *pieces, tsr_session *session, bool ran);
// Copies the results of a run slot into outputs; the second lets its values go too (outputs NULL:
// copies nothing).
tsr_status tsr__rank_copy(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs);
tsr_status tsr__rank_take(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs);
void tsr__rank_drop(struct rank *rank, size_t run_slot);
// Makes output `present` the input `past` of the next run. False: the rank has not both of them.
bool tsr__rank_keep(struct rank *rank, const char *past, const char *present);
// Adds the rank's findings to the session.
void tsr__rank_findings(const struct rank *rank, tsr_session *session);
void tsr__rank_free(struct rank *rank);

// ---- rank_session.c, engine_words.c

// Opens the rank's model in ONNX Runtime and reads what its inputs and outputs are.
tsr_status tsr__rank_load(struct rank *rank);
struct place tsr__rank_place(const struct rank *rank); // its file and number, for findings
// Takes ONNX Runtime's word, which is released, into a finding: TSR_ENGINE. status NULL: TSR_OK,
// nothing happened.
tsr_status tsr__engine_says(struct rank *rank, OrtStatus *status, enum diag_code code,
                            const char *hint, const char *what);
// The same for what it says after it has loaded, or run, the rank's model; the finding tells what
// helps.
tsr_status tsr__engine_loaded(struct rank *rank, OrtStatus *status);
tsr_status tsr__engine_ran(struct rank *rank, OrtStatus *status);

// ---- options of a run (run_options.c)

// What stands behind "NAME=" in the map for that device, or its own name.
struct str tsr__device_mapped(const char *device, const tsr_run_options *options);
// A number of threads for each of `ranks` ranks that share `cores`.
int tsr__rank_threads(int cores, int ranks, int wanted);

// Wrong use, with the one finding that says so.
tsr_status tsr__run_refuse(tsr_session *session, enum diag_code code, const char *file,
                           const char *hint, const char *text);

// The options of a run, whatever size the caller's struct has.
tsr_status tsr__run_options(tsr_session *session, const tsr_run_options *given,
                            tsr_run_options *out);

// ---- transports.c, processes.c

// This process's place among ranks that are processes, kept by the session; NULL where ranks are
// threads.
tsr_status tsr__run_join(tsr_session *session, const tsr_run_options *options,
                         struct endpoint **out);

struct manifest;
// TSR_USAGE for more ranks than this process may start (most_ranks of the options).
tsr_status tsr__run_may_start(tsr_session *session, const char *folder,
                              const struct manifest *manifest, const tsr_run_options *options);
// Whether a rank of the partition is on a GPU of CUDA's.
bool tsr__run_on_gpus(tsr_session *session, const struct manifest *manifest,
                      const tsr_run_options *options);
// Before the ranks are forked: refused where one of them needs a GPU that this process has used
// already.
tsr_status tsr__run_may_fork(tsr_session *session, const struct manifest *manifest,
                             const tsr_run_options *options);

// ---- jobs (job.c, job_common.c)

// This process's place among processes, or NULL; the endpoint of its i-th rank that runs here
// (NULL: none); fingerprint of the partition.
struct endpoint *tsr__job_place(const tsr_job *job);
struct endpoint *tsr__job_endpoint(const tsr_job *job, int i);
// The most that rank i of this process had of its GPU; 0: it is on none, or the engine does not
// tell.
int64_t tsr__job_gpu_memory(const tsr_job *job, int i);
// Bytes of the inputs that a job's only rank here reads where the caller has them; 0: it has
// several ranks, or none.
int64_t tsr__job_input_bytes(const tsr_job *job, const tsr_tensors *inputs);
uint64_t tsr__job_plan(const tsr_job *job);
// As tsr_job_open; without states, what the manifest says about them is left alone.
tsr_status tsr__job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out);

// ---- pieces (cut.c)

struct manifest;
struct manifest_port;
struct tile_layout;
// named.c: whole tensors have one size wherever the model's inputs have one name.
tsr_status tsr__named_check(const struct manifest *manifest, tsr_session *session,
                            const tsr_tensors *inputs) TSR_MUST_USE;
// Checks all that the manifest says about whole inputs, and that those which are needed are given.
enum inputs_needed { NEED_ALL, NEED_ALL_BUT_STATES, NEED_NONE };
tsr_status tsr__inputs_check(const struct manifest *manifest, tsr_session *session,
                             const tsr_tensors *inputs, enum inputs_needed needed) TSR_MUST_USE;
bool tsr__cut_any(const struct manifest_port *ports, size_t n); // of them are kept in pieces
int64_t tsr__cut_giver(const struct tile_layout *layout, int64_t shard);
// Puts the rank's pieces of those whole tensors that ranks have in pieces into a set.
tsr_status tsr__cut_inputs(const struct manifest *manifest, int64_t rank, const tsr_tensors *whole,
                           tsr_tensors *pieces);
// The output put together from what the ranks gave (sets: by rank).
tsr_status tsr__cut_join(const struct manifest_port *port, tsr_tensors *const *sets,
                         tsr_tensors *outputs);

// ---- a whole model (whole.c)

struct whole {
    const char *path;         // the file to give to the engine
    struct temporary *folder; // of the copy; NULL: none
    struct arena arena;
};
// Finds the file for an ONNX Runtime 1.minor: the one at path, or a copy that this release takes.
// The copy is made in a temporary folder under work. To be closed in every case.
tsr_status tsr__whole_open(tsr_session *session, int minor, const char *path, const char *work,
                           struct whole *whole);
void tsr__whole_close(struct whole *whole);

// ---- shared_weights.c

struct bundle;
struct manifest;
// The common weights of a partition whose ranks are threads of this process.
struct shared_weights {
    struct mapped common;
    OrtPrepackedWeightsContainer *packed;
};
tsr_status tsr__shared_open(tsr_session *session, const struct engine *engine,
                            const struct bundle *bundle, struct arena *arena,
                            struct shared_weights *out);
void tsr__shared_close(const struct engine *engine,
                       struct shared_weights *weights); // after all sessions
// Gives the session views of the common weights.
tsr_status tsr__weights_add(struct rank *rank, OrtSessionOptions *options, OrtStatus **failed);
// Whether the weights of a rank (-1: of all) are too large a part of the memory to be copied.
bool tsr__weights_are_large(const struct manifest *manifest, int64_t rank);

// ---- memory_use.c

struct memory_mark {
    int64_t own, shared, mapped; // bytes
};
// What this process has now; mapped: of files in that folder (NULL: none).
struct memory_mark tsr__memory_mark(const char *folder);
// Bytes that have come since; of memory that ranks share, those that this one has taken (place
// NULL: all that it touched).
int64_t tsr__memory_since(const struct memory_mark *before, const char *folder,
                          struct endpoint *place);
// Gives the memory back that loading took and freed; to be called when all sessions of a job are
// open.
void tsr__memory_settle(void);

// ---- gpus.c: ranks on GPUs

// The card that a device means, after the map of the options and by its kind; -1: no GPU of CUDA's.
int tsr__gpu_card(const struct engine *engine, const char *device, const tsr_run_options *options);
// True if the device of that name, after the map of the options, is a GPU of CUDA's.
bool tsr__gpu_named(tsr_session *session, const char *device, const tsr_run_options *options);
// Opens the driver for ranks of this process; NULL where it is not here: the provider will tell.
const struct gpu *tsr__gpu_driver(tsr_session *session, struct engine *engine,
                                  const tsr_run_options *options);
// The rank's place on its GPU, and the endpoint that knows GPUs; nothing where no rank of the job
// is on one.
tsr_status tsr__gpu_place(struct rank *rank);
// Limits the GPU memory of its engine: the user's limit, or its share of the free memory. All ranks
// of a job call it, before any of them loads.
tsr_status tsr__gpu_limit(struct rank *rank, struct comm_trouble *why);
tsr_status tsr__gpu_bind(struct rank *rank); // after its session was made
void tsr__gpu_leave(struct rank *rank);      // after its session has gone
OrtStatus *tsr__gpu_run(struct rank *rank, struct run_slot *run_slot);
// A child of this process could not use a GPU: it has started the driver itself.
tsr_status tsr__gpu_spoilt(tsr_session *session, const tsr_run_options *options);
// bench.c: the folder that the weights of a model or a partition are mapped from.
struct str tsr__folder_of(struct arena *arena, const char *path);

// ---- gather.c

// Identifies the exchange: the fingerprint of the partition, and its purpose ("trace").
struct gather_call {
    uint64_t plan;
    const char *what;
};
// What every process of the job says, on rank 0: *out has a text for each rank, in the arena; on
// other ranks empty ones. All ranks call it.
tsr_status tsr__gather(tsr_session *session, struct endpoint *endpoint,
                       const struct gather_call *about, struct str mine, struct arena *arena,
                       struct str **out);

// ---- rank_facts.c: what each rank was, for tsr_run_rank

struct message;
// Keeps what the ranks of a job were, with the session; after a run. weights: the folder that they
// lie in; before: as the memory was before the job was opened. Under a launcher all ranks call it,
// and rank 0 has it.
tsr_status tsr__facts_keep(tsr_job *job, const char *weights, const struct memory_mark *before);
void tsr__facts_put(const tsr_session *session, struct message *out); // those that are kept
tsr_status tsr__facts_take(tsr_session *session, struct message *in);

// ---- provider.c, trace.c

// A name by kind becomes that of the provider that serves it here: "GPU:1" -> "CUDA:1", in out.
// Other names, and kinds that nothing serves, stay as they are; so do all where the engine is NULL
// or not opened.
struct str tsr__device_resolved(const struct engine *engine, struct str name, char *out,
                                size_t cap);
// The best of these providers (full names) for a kind of device; NULL: none, or no kind.
const char *tsr__kind_provider(struct str kind, char *const *names, int n);
#define DEVICE_NAME 96 // bytes of such a name

// Gives the options the execution provider of the rank's device.
tsr_status tsr__provider_set(struct rank *rank, OrtSessionOptions *options);
// Adds what a traced rank did, as events with commas between them. Ends its tracing.
void tsr__trace_rank(struct rank *rank, struct text *text);
// Writes the trace; the endpoint not NULL: the texts of all processes, on rank 0.
tsr_status tsr__trace_write(tsr_session *session, struct endpoint *endpoint, uint64_t plan,
                            struct text *text, const char *path);

#endif
