// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of this module: ranks, options, jobs, sharded inputs and
// outputs.
#ifndef TSR_RUNTIME_INTERNAL_H
#define TSR_RUNTIME_INTERNAL_H

#include "runtime/runtime.h"
#include "ops/ops.h"
#include "engine/engine.h"
#include "tensors/tensors.h"

#include <pthread.h>
#include <stdatomic.h>

#define RUN_SLOTS 16 // maximum number of pending runs of a rank

// The values of one run.
struct run_slot {
    OrtValue **ins, **outs; // NULL: no value, or kept as a state
    bool *kept;             // per input: comes from the previous run
};
// An OrtValue whose memory is a shard of a tensor of the caller, kept for later runs
// (kept_views.c).
struct kept_view {
    OrtValue *value;  // NULL: none
    const void *full; // data of the full tensor
    int device;       // 1 + its GPU; 0: host memory
    bool bound;       // the rank's binding has the value (gpus.c)
    tsr_dtype type;
    int rank;
    int64_t dims[RUN_MAX_RANK]; // of the full tensor
};
// An output that becomes an input of the next run and stays on its rank.
struct rank_state {
    size_t input, output;
    bool in_place;   // runs write the output over the input
    OrtValue *value; // NULL: no run yet
};
struct cache_set;

// One rank: a model file, the engine's session for it, its inputs and outputs. It has its own
// tsr_session for diagnostics and memory, because it may run on its own thread. The caller's thread
// binds inputs and takes outputs of run slots that the rank is not using.
struct rank {
    struct engine *engine;
    struct endpoint *endpoint; // NULL: an unsharded model
    const char *path;
    const char *ort_ops;
    int optimize, threads;
    bool float_products; // see tsr_run_options
    bool spin;
    uint64_t plan;
    const char *device;   // name of the rank's device, or NULL
    bool static_sizes;    // of a partition for fixed sizes
    int64_t weight_bytes; // bytes of weights in the rank file; 0: unknown
    bool has_caches;      // the model appends to caches, whose length changes between runs
    const tsr_run_options *options;
    const tsr_tensors *places;        // memory for outputs of the following runs; NULL: none
    const OrtRunOptions *run_options; // of the following runs; NULL: the defaults
    const struct gpu *gpu;            // the driver, if some rank of the job is on a GPU; else NULL
    const char *profile;           // file name prefix of ONNX Runtime's profile; NULL: not traced
    struct shared_weights *shared; // NULL: none
    bool unpacked;                 // ONNX Runtime uses the mapped weights, without packed copies
    bool packs_alone;              // shares no packed weights with other ranks
    bool container_refused;        // packs_alone because the engine refused to share them
    // the transport's endpoint, if `endpoint` is a device endpoint; else NULL (set by the rank)
    struct endpoint *base;
    struct gpu_seat *seat; // GPU context; NULL: the rank is not on a GPU
    int card;              // number of the GPU, if seat is set
    bool owns_seat;        // the rank closes the seat, not an endpoint
    char provider[64];     // execution provider without its suffix: "CPU"
    int64_t memory_limit;  // limit of the engine's GPU memory in bytes; 0: none
    OrtIoBinding *binding; // where inputs and outputs are, if seat is set
    OrtMemoryInfo *on_gpu;
    bool *stays;  // per output: stays on the GPU until it is taken
    bool waited;  // while inputs are bound: the GPU's default stream was waited for
    bool *placed; // per output: need not be returned; NULL: none
    tsr_session *session;
    struct arena arena;
    struct ops *ops;
    OrtSession *ort;
    size_t n_inputs, n_outputs;
    const char **input_names, **output_names;
    size_t next_input, next_output; // where the caller's thread begins to search the names
    struct wanted *wanted;          // per input: the type and shape that the model declares
    OrtValue **weights;             // views of shared weights
    size_t n_weights;
    struct run_slot run_slots[RUN_SLOTS];
    bool keeps_views; // the next run may use kept views, and replace them
    struct kept_view *input_views, *output_views;
    struct rank_state *states;
    size_t n_states;
    struct cache_set *cache_sets; // the first is that of the current run; NULL: none is selected
    tsr_status status;
    bool failed_by_peer; // another rank caused the failure
};

// tsr__rank_open opens the model and synchronizes with the other ranks; tsr__rank_run makes one
// run. Both store their result in rank->status.
void tsr__rank_open(struct rank *rank);
void tsr__rank_run(struct rank *rank, size_t run_slot);
// Synchronizes all ranks; returns at once for an unsharded model.
void tsr__rank_meet(struct rank *rank, const char *what);
// Binds the inputs of a run slot; diagnostics go to the session. pieces (or NULL): the rank's
// shards of some inputs. ran: a run was started before, so states have a value.
tsr_status tsr__rank_bind(struct rank *rank, size_t run_slot, const tsr_tensors *inputs,
                          const tsr_tensors *pieces, tsr_session *session, bool ran);
// tsr__rank_copy copies the results of a run slot into outputs. tsr__rank_take also frees the slot;
// if outputs is NULL, it copies nothing.
tsr_status tsr__rank_copy(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs);
tsr_status tsr__rank_take(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs);
void tsr__rank_drop(struct rank *rank, size_t run_slot);
// Returns the index of an output, or -1 if the rank does not have it. For the caller's thread.
int64_t tsr__rank_find_output(struct rank *rank, const char *name);
// True if the tensor is in memory of the rank's own GPU.
bool tsr__rank_has_on_gpu(const struct rank *rank, const struct tensor *tensor);
// Makes output `present` the input `past` of the next run. False: the rank does not have both, or
// out of memory.
bool tsr__rank_keep(struct rank *rank, const char *past, const char *present, bool in_place);
// Adds the rank's diagnostics to the session.
void tsr__rank_findings(const struct rank *rank, tsr_session *session);
struct shard_view;
// Binds an output of the run slot to memory of the caller: the rank's shard of `full`.
tsr_status tsr__rank_bind_output(struct rank *rank, size_t run_slot, const struct tensor *full,
                                 const struct shard_view *view, tsr_session *session);
// Binds the output to the value that an earlier run kept for the same tensor. False: there is none.
bool tsr__rank_bind_kept_output(struct rank *rank, size_t run_slot, const struct tensor *full);
// True if the rank has kept a view of its shard of this input.
bool tsr__rank_has_view(struct rank *rank, const struct tensor *full);
void tsr__rank_free(struct rank *rank);

// ---- cache_sets.c
// If the inputs select a set of caches (RUN_CACHE_SET), makes its caches the states of the rank.
struct manifest;
tsr_status tsr__cache_set_select(struct rank *rank, int64_t number, const struct manifest *manifest,
                                 tsr_session *session, const tsr_tensors *inputs) TSR_MUST_USE;
void tsr__cache_sets_free(struct rank *rank, tsr_session *session); // with the same session

// ---- kept_views.c
// Returns the kept value if it is a shard of this tensor; else NULL.
OrtValue *tsr__view_find(const struct rank *rank, const struct kept_view *view,
                         const struct tensor *full);
// Keeps `value`, a view of a shard of the tensor, if rank->keeps_views is set. A kept value is not
// owned by the run slot.
void tsr__view_keep(const struct rank *rank, struct kept_view *view, const struct tensor *full,
                    OrtValue *value);
void tsr__views_release(const struct rank *rank, struct kept_view *views, size_t n);

// ---- rank_session.c, engine_errors.c

// Opens the rank's model in ONNX Runtime and reads its inputs and outputs.
tsr_status tsr__rank_load(struct rank *rank);
// Returns file and number of the rank, for diagnostics.
struct place tsr__rank_place(const struct rank *rank);
// Converts an OrtStatus to a diagnostic, releases it and returns TSR_ENGINE. status NULL: returns
// TSR_OK.
tsr_status tsr__engine_failed(struct rank *rank, OrtStatus *status, enum diag_code code,
                              const char *hint, const char *what);
// Convert an error of loading or running the rank's model to a diagnostic, with a hint for known
// errors, and release it. The returned status depends on the cause.
tsr_status tsr__engine_loaded(struct rank *rank, OrtStatus *status);
tsr_status tsr__engine_ran(struct rank *rank, OrtStatus *status);

// ---- options of a run (run_options.c)

// Returns the device that the options map `device` to (NAME=DEVICE), or its own name.
struct str tsr__device_mapped(const char *device, const tsr_run_options *options);
// Returns the number of threads for each of `ranks` ranks that share `cores`: `wanted` if it is
// positive, else an equal share.
int tsr__rank_threads(int cores, int ranks, int wanted);

// Adds a diagnostic with this code, hint and text, and returns TSR_USAGE.
tsr_status tsr__run_refuse(tsr_session *session, enum diag_code code, const char *file,
                           const char *hint, const char *text);

// Copies and checks the options of a run. The caller's struct may have another size.
tsr_status tsr__run_options(tsr_session *session, const tsr_run_options *given,
                            tsr_run_options *out);

// ---- transports.c, run_checks.c

// Reports a failed communication as a failure of the rank that caused it. Returns the status of
// that rank; TSR_PEER if the transport has none.
tsr_status tsr__run_peer_failed(tsr_session *session, const struct comm_trouble *why);
// Joins the other ranks if ranks are processes. The session keeps the endpoint; *out is NULL if
// ranks are threads.
tsr_status tsr__run_join(tsr_session *session, const tsr_run_options *options,
                         struct endpoint **out);

struct manifest;
// Returns TSR_USAGE if the partition has more ranks than this process may start (most_ranks of the
// options).
tsr_status tsr__run_may_start(tsr_session *session, const char *folder,
                              const struct manifest *manifest, const tsr_run_options *options);
// True if a rank of the partition is on a CUDA GPU.
bool tsr__run_on_gpus(tsr_session *session, const struct manifest *manifest,
                      const tsr_run_options *options);
// Called before ranks are forked. Refuses if one of them needs a GPU that this process has already
// used.
tsr_status tsr__run_may_fork(tsr_session *session, const struct manifest *manifest,
                             const tsr_run_options *options);

// ---- jobs (job.c, job_common.c)

// tsr__job_place returns the endpoint of this process if ranks are processes, or NULL.
// tsr__job_endpoint returns that of the i-th rank in this process (NULL: none). tsr__job_plan
// returns the fingerprint of the partition.
struct endpoint *tsr__job_place(const tsr_job *job);
struct endpoint *tsr__job_endpoint(const tsr_job *job, int i);
// Returns the peak GPU memory of rank i of this process; 0: not on a GPU, or unknown.
int64_t tsr__job_gpu_memory(const tsr_job *job, int i);
// Returns the bytes of the inputs that the only rank of this process reads without a copy; 0 if the
// process has several ranks or none.
int64_t tsr__job_input_bytes(const tsr_job *job, const tsr_tensors *inputs);
uint64_t tsr__job_plan(const tsr_job *job);
// As tsr_job_open. If `states` is false, states that the manifest names are ordinary outputs.
tsr_status tsr__job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out);

// ---- sharded inputs and outputs (shards.c)

struct manifest;
struct manifest_port;
struct tile_layout;
// named.c: checks that dimensions of full inputs which sharded nodes need equal are equal. Others
// may differ although they have the same name; *differ (may be NULL) describes the first such
// dimension (`input` NULL: none).
struct named_difference {
    const char *input; // of the manifest
    int axis;
    char text[512];
};
tsr_status tsr__named_check(const struct manifest *manifest, tsr_session *session,
                            const tsr_tensors *inputs,
                            struct named_difference *differ) TSR_MUST_USE;
void tsr__named_report(tsr_session *session, const struct named_difference *differ,
                       const char *hint);
// Checks full inputs against the manifest, and that all needed ones are given.
enum inputs_needed { NEED_ALL, NEED_ALL_BUT_STATES, NEED_NONE };
tsr_status tsr__inputs_check(const struct manifest *manifest, tsr_session *session,
                             const tsr_tensors *inputs, enum inputs_needed needed) TSR_MUST_USE;
// A shard of a full tensor that is one contiguous range of its memory.
struct shard_view {
    void *data;
    size_t bytes;
    int device; // as of the full tensor
    int64_t dims[RUN_MAX_RANK];
};
// Finds the memory of a shard in the full tensor. Returns false if the tensor cannot be sharded,
// the shard is not contiguous or not aligned for a GPU, or memory runs out.
bool tsr__shards_view(struct arena *arena, const struct manifest_port *port, int64_t shard,
                      const struct tensor *full, struct shard_view *out);
bool tsr__shards_any(const struct manifest_port *ports,
                     size_t n); // true if the manifest lists the ranks of one of them
// Returns the rank from which the caller gets this shard: the first rank that has it.
int64_t tsr__shards_giver(const struct tile_layout *layout, int64_t shard);
// Puts the rank's shards of sharded inputs into a set.
struct gpu_inputs;
tsr_status tsr__shards_of_inputs(const struct manifest *manifest, int64_t rank,
                                 const tsr_tensors *full, struct gpu_inputs *gpu,
                                 tsr_tensors *pieces);
// Returns a `tile_piece` that covers the full tensor. NULL: out of memory.
struct tile_piece *tsr__shards_full_piece(struct arena *arena, const struct tensor *tensor);
// Adds the sizes of a shard to the shape of the full tensor; `shape` begins as zeros.
void tsr__shards_add_sizes(const struct tile_layout *layout, int64_t shard,
                           const struct tensor *tensor, int64_t *shape);
bool tsr__shards_fit(const struct tile_piece *piece, const struct tensor *tensor); // equal sizes
// Joins the shards of an output (sets: by rank).
tsr_status tsr__shards_join(const struct manifest_port *port, tsr_tensors *const *sets,
                            tsr_tensors *outputs);

// ---- shared_weights.c

struct bundle;
struct manifest;
// Weights of a partition that several ranks read, if ranks are threads of this process.
struct shared_weights {
    struct mapped common;
    OrtPrepackedWeightsContainer *packed;
};
tsr_status tsr__shared_open(tsr_session *session, const struct engine *engine,
                            const struct bundle *bundle, struct arena *arena,
                            struct shared_weights *out);
void tsr__shared_close(const struct engine *engine,
                       struct shared_weights *weights); // after all sessions were closed
// Adds views of the shared weights to the options of the engine's session.
tsr_status tsr__weights_add(struct rank *rank, OrtSessionOptions *options, OrtStatus **failed);
// True if the weights of a rank (-1: of all) are too large, compared with the memory, to be copied.
bool tsr__weights_are_large(const struct manifest *manifest, int64_t rank);

// ---- memory_use.c

struct memory_mark {
    int64_t own, shared, mapped; // bytes
};
// Returns the current memory of this process. `mapped`: bytes of mapped files in the folder (NULL:
// none).
struct memory_mark tsr__memory_mark(const char *folder);
// Returns the bytes that were added since `before`. Of memory that ranks share, counts what this
// rank allocated (place NULL: all that it touched).
int64_t tsr__memory_since(const struct memory_mark *before, const char *folder,
                          struct endpoint *place);
// Gives freed memory back to the system. Called when all models of a job are loaded, because
// loading frees much memory.
void tsr__memory_settle(void);

// ---- gpus.c: ranks on GPUs

// Returns the number of the GPU for a device name, after the options' device map is applied; -1:
// not a CUDA GPU.
int tsr__gpu_card(const struct engine *engine, const char *device, const tsr_run_options *options);
// True if the device of that name is a CUDA GPU, after the options' device map is applied.
bool tsr__gpu_named(tsr_session *session, const char *device, const tsr_run_options *options);
// Opens the GPU driver for ranks of this process. Returns NULL if there is none: the provider then
// reports the error.
const struct gpu *tsr__gpu_driver(tsr_session *session, struct engine *engine,
                                  const tsr_run_options *options);
// Opens the rank's GPU and the device endpoint. Does nothing if no rank of the job is on a GPU.
tsr_status tsr__gpu_place(struct rank *rank);
// Limits the GPU memory of the rank's engine: the user's limit, or its share of the free memory.
// All ranks of a job call it, before any of them loads its model.
tsr_status tsr__gpu_limit(struct rank *rank, struct comm_trouble *why);
tsr_status tsr__gpu_bind(struct rank *rank); // after the engine's session was created
void tsr__gpu_leave(struct rank *rank);      // after the engine's session was closed
OrtStatus *tsr__gpu_run(struct rank *rank, struct run_slot *run_slot);
// Refuses to fork child processes that need a GPU if this process has started the GPU driver.
// Otherwise returns TSR_OK.
tsr_status tsr__gpu_refuse_fork(tsr_session *session, const tsr_run_options *options);

// ---- gpu_tensors.c

struct gpu_buffer;
// Context for taking a rank's shards of inputs.
struct gpu_inputs {
    struct rank *rank;              // the rank that gets the shards
    struct gpu_seat *any;           // GPU context of any rank in this process; NULL: none
    struct gpu_buffer **buffers;    // the rank's list of buffers
    struct arena *arena;            // of the list of buffers
    bool copying;                   // copies are queued
    const struct used_length *used; // inputs with spare capacity
    size_t n_used;
};
// A shard of an input: the input, the index ranges of all of it and of the shard, and the shard's
// shape.
struct gpu_shard {
    const struct tensor *full;
    const struct tile_piece *all, *piece;
    const int64_t *dims;
};
// Adds the shard to the set: on the rank's GPU if the tensor is there, else in host memory.
tsr_status tsr__gpu_shard(struct gpu_inputs *gpu, const struct gpu_shard *shard,
                          tsr_tensors *pieces);
tsr_status tsr__gpu_shards_wait(const struct gpu_inputs *gpu, tsr_session *session);
void tsr__gpu_buffers_reuse(struct gpu_buffer *buffers); // call it only if no run is pending
void tsr__gpu_buffers_free(struct gpu_buffer *buffers, struct gpu_seat *seat);
// Writes outputs to the destinations that job->places sets, and marks them, so that ranks do not
// return them again.
tsr_status tsr__job_place_outputs(tsr_job *job, size_t run_slot);

// bench.c: returns the folder from which the weights of a model or a partition are mapped.
struct str tsr__folder_of(struct arena *arena, const char *path);

// ---- gather.c

// Identifies the exchange: the fingerprint of the partition, and the purpose ("trace").
struct gather_call {
    uint64_t plan;
    const char *what;
};
// Gathers a text of every process of the job on rank 0. *out has a text per rank, in the arena; on
// other ranks all are empty. All ranks call it.
tsr_status tsr__gather(tsr_session *session, struct endpoint *endpoint,
                       const struct gather_call *about, struct str mine, struct arena *arena,
                       struct str **out);

// ---- rank_facts.c: properties of each rank, for tsr_run_rank

struct message;
// Stores the properties of the ranks of a job in the session, after a run. weights: the folder of
// the weights; before: the memory before the job was opened. Under a launcher all ranks call it,
// and rank 0 gets the result.
tsr_status tsr__facts_keep(tsr_job *job, const char *weights, const struct memory_mark *before);
void tsr__facts_put(const tsr_session *session, struct message *out); // writes what is stored
tsr_status tsr__facts_take(tsr_session *session, struct message *in);

// ---- provider.c, trace.c

// Replaces a kind of device by the provider that serves it on this machine, in `out`. Example:
// "GPU:1" becomes "CUDA:1". Other names, and kinds without a provider, are unchanged; so are all
// names if the engine is NULL or not open.
struct str tsr__device_resolved(const struct engine *engine, struct str name, char *out,
                                size_t cap);
// Returns the best of these providers (full names) for a kind of device; NULL: none, or not a kind.
const char *tsr__kind_provider(struct str kind, char *const *names, int n);
#define DEVICE_NAME 96 // size of such a name

// Adds the execution provider of the rank's device to the session options.
tsr_status tsr__provider_set(struct rank *rank, OrtSessionOptions *options);
// Ends the tracing of a rank and adds its events, separated by commas.
void tsr__trace_rank(struct rank *rank, struct text *text);
// Writes the trace. If endpoint is not NULL, gathers the texts of all processes on rank 0.
tsr_status tsr__trace_write(tsr_session *session, struct endpoint *endpoint, uint64_t plan,
                            struct text *text, const char *path);

#endif
