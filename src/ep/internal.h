// SPDX-License-Identifier: Apache-2.0
// internal.h - the execution provider (libtessera_ep.so): what its files share.
//
// One library may serve two copies of ONNX Runtime in a process (Python's onnxruntime and the one
// that onnxruntime-genai loads). Therefore no table of functions is global: a factory has the
// tables of the runtime that created it, and everything else refers to its factory.
#ifndef TSR_EP_INTERNAL_H
#define TSR_EP_INTERNAL_H

#include "ep/ort_ep.h"
#include "bundle/bundle.h"
#include "runtime/runtime.h"

#define EP_NAME            CONTEXT_SOURCE
#define EP_MAX_PATH        4096
#define CONTEXT_ATTRIBUTES 6 // number of attributes of an EPContext node
// Version of EPContext models; ONNX Runtime stores it in their metadata.
#define CONTEXT_VERSION "tessera-context-1"

// Functions of the ONNX Runtime that loaded the provider.
struct ep_api {
    const OrtApiBase *base;
    const OrtApi *ort;
    const OrtEpApi *ep;
    const OrtModelEditorApi *editor;
};

struct ep_factory {
    OrtEpFactory ort; // must be the first field
    struct ep_api api;
    const OrtLogger *logger;
    struct device_memory *memory; // memory of the GPUs that the factory offers; NULL: no GPUs
    // The registration and every provider hold one reference: sessions may outlive the
    // registration.
    atomic_int references;
};

// Options of the provider, read from the session's configuration (options.c).
struct ep_options {
    struct arena arena;  // owns the texts
    const char *devices; // NULL: the provider declines everything but EPContext models
    tsr_plan_options plan_options;
    VEC(tsr_dim_size) dims;
    const char *plan, *cache, *summary; // files and folders; NULL: none
    bool given;                         // the application has set options of the provider
    bool processes;                     // ranks are processes, not threads
    bool transport_given;
    int threads; // threads per rank; 0: cores / ranks
    // Hosts of the ranks, this one first; NULL: this one. The others have workers.
    const char *hosts, *secret, *rsh, *interface;
    int port; // of the workers; 0: the default
    bool strict;
    bool ranks_keep;          // caches stay with the ranks (kept.c)
    bool context;             // an EPContext model is written ...
    const char *context_path; // ... to this file; NULL: beside the model
};

#define EP_MAX_RUNS 64 // most concurrent runs of a session that can be terminated
// A run of the application's session that has not ended.
struct active_run {
    pthread_t thread;
    const OrtRunOptions *options;
};

// The provider of one session of the application.
struct provider {
    OrtEp ort; // must be the first field
    struct ep_factory *factory;
    const OrtLogger *logger;
    tsr_session *session;
    struct ep_options options;
    bool on_gpu; // the application has selected a GPU: inputs and outputs are in its memory
    tsr_status options_status; // result of reading the options; the diagnostics are in the session
    char reason[256];          // why the provider declines the graph; "": it accepts the graph
    bool compiled;             // Compile was called
    // The first run logs the reason. Before it, an unknown operator may still be a function, which
    // ONNX Runtime inlines.
    bool logs_at_run;
    pthread_mutex_t lock;
    // Protected by the lock. n_runs may exceed EP_MAX_RUNS; only n_listed of them are in `runs`.
    struct active_run runs[EP_MAX_RUNS];
    size_t n_runs, n_listed;
};

// Result of checking whether the provider can run all nodes of a graph.
struct claim {
    const struct ep_api *api;
    struct arena *arena;
    const OrtNode **nodes; // nodes of the graph
    size_t n_nodes;
    bool on_gpu;          // inputs and outputs are in GPU memory
    bool has_context;     // the graph has an EPContext node of this provider
    bool has_file;        // the model was loaded from a file
    bool has_unknown;     // an operator of an unknown domain: a function or a custom operator
    const OrtNode *known; // a node of the main graph with a known operator; NULL: none
    char reason[256];     // why the graph is declined; "": it is accepted
};

// Source of the model that is partitioned for a fused node.
enum model_route { ROUTE_FILE, ROUTE_GRAPH };

// Where a run has the lengths of caches that stay with the ranks (kept.c): outputs of the ranks, or
// inputs of the model.
struct kept_lengths {
    const char *last;   // index of the last token of each sequence
    const char *total;  // tokens of the longest sequence, with padding
    const char *tokens; // the input whose size at tokens_axis is the number of new tokens
    int tokens_axis;
    int64_t n_tokens; // tokens NULL: this number
};
struct kept_plan {
    VEC(const char *) states; // "past=present"
    VEC(struct kept_lengths) lengths;
};
// A buffer of the application that identifies a cache.
struct kept_buffer {
    void *data;
    size_t bytes;
    int gpu; // that has the buffer; -1: in host memory
    struct value_shape shape;
};
struct kept_set;

// A partition on disk that is ready to run.
struct parts {
    const char *folder;
    struct temporary *temporary; // removed with the node; NULL: the folder stays
    bool processes;              // ranks are processes; an EPContext model may request that
    // path of the manifest as stored in the EPContext model; NULL: the model is not an EPContext
    // model
    const char *context;
    const char *config; // configuration given by the option `plan`; NULL: the planner chooses
    enum model_route route;
    bool cached;
    double predicted_ms;   // of one run; 0: not planned by this session
    struct kept_plan kept; // of the option caches=ranks
    int use; // descriptor whose lock protects a cached partition from removal; 0: none
};

// A cache: an input `past...` and the output `present...` that updates it.
struct cache_pair {
    size_t input, output;                       // indices among the node's inputs and outputs
    const struct manifest_port *past, *present; // in the manifest; NULL: not found
    bool has_room;                              // the model may use only a part of the cache
    bool slides;         // keeps a window of the tokens: its shape is fixed, and tokens move in it
    void *copy;          // in this run the ranks write to this copy of the past; NULL: they do not
    void *to;            // memory of the output, to which the copy is moved after the run
    size_t bytes;        // of the copy
    bool read_by_writer; // every rank reads only the shards that it writes
    bool partial;        // in this run the ranks get and return only the used part
    bool steady;         // the last run returned the shape of its input
    bool checked;        // in_place is known for this shape and device
    bool in_place;       // the ranks can write to the application's buffer
    bool grown;          // in this run the ranks write to the memory of the output (grow.c)
    const struct tensor *now; // the past of this run; NULL: none (grow.c)
    // The input of the model whose size at length_axis is the new length; NULL: not known.
    const char *length_input;
    int length_axis;
    int device; // of the buffer, as in struct tensor
    int rank;   // shape that the last run returned
    int64_t dims[RUN_MAX_RANK];
};

// A copy of a cache to longer memory: each row is copied, and zeros are written behind it.
struct cache_copy {
    void *to; // NULL: no copy
    const void *from;
    size_t rows, to_bytes, from_bytes; // bytes of a row; multiples of 16
    int64_t length;                    // new length of the cache, in tokens
};

// Identifies a version of a file.
struct file_stamp {
    uint64_t device, inode;
    int64_t seconds, nanoseconds;
};

// The node that ONNX Runtime runs in place of the claimed graph.
struct fused {
    OrtNodeComputeInfo ort; // must be the first field
    struct provider *provider;
    struct arena arena;
    struct parts parts;
    const char **inputs, **outputs; // names, in the order of the node
    size_t n_inputs, n_outputs;
    OrtSession *probe;        // of adapters.c; NULL: not opened yet
    pid_t process;            // process that created it; its ranks do not exist in a forked child
    struct manifest manifest; // manifest of the partition
    struct cache_pair *caches;
    struct cache_copy *copies; // of this run, one per cache
    size_t n_caches;
    bool can_grow;            // the new lengths of the caches are known before a run
    int copying;              // 1 + the GPU on which `copies` may be in progress; 0: none
    struct used_length *used; // used parts of caches in this run
    size_t n_used;
    // Per output: the last run asked the application for memory. Such an output that is not in the
    // set of outputs was written to that memory, or was not requested.
    bool *placed;
    pthread_mutex_t lock;      // held during a run: runs of one node do not overlap
    tsr_job *job;              // ranks that are threads; NULL: to be opened
    struct served *served;     // ranks that are processes; NULL: to be opened
    int64_t n_runs;            // number of runs that the ranks have made
    struct file_stamp summary; // the summary that the session has written (parts.c)
    double opened_s;           // seconds that opening took
    struct run_hosts hosts;
    int64_t copied; // bytes of caches that were copied in runs
    // Caches that stay with the ranks (kept.c). Per state of the manifest: its input and output
    // among those of the node, and its buffer in this run.
    bool keeps;
    size_t *kept_inputs, *kept_outputs;
    struct kept_buffer *kept_buffers;
    struct kept_set *kept_sets;    // the set of this run comes first
    struct kept_set *kept_dropped; // the ranks free them in the next run
    bool kept_is_new;              // the set of this run is new
    int64_t n_kept;                // number of sets so far
    bool has_states;               // the ranks keep the states of run n_runs
};

// ---- factory.c
void tsr__ep_factory_release(struct ep_factory *factory);

// ---- device_memory.c
struct device_memory;
// Finds the GPUs. The caller frees *out, which is NULL if there are none.
OrtStatus *tsr__ep_memory_new(const struct ep_api *api, struct device_memory **out);
void tsr__ep_memory_free(struct device_memory *memory); // NULL is allowed
// Adds a device for each GPU to the list of those that the factory supports.
OrtStatus *tsr__ep_memory_devices(struct ep_factory *factory,
                                  const OrtHardwareDevice *const *hardware, size_t n_hardware,
                                  OrtEpDevice **out, size_t most, size_t *n);
OrtStatus *tsr__ep_memory_allocator(struct device_memory *memory, const OrtMemoryInfo *info,
                                    OrtAllocator **out);
void tsr__ep_memory_release(OrtAllocator *allocator);
OrtStatus *tsr__ep_memory_transfer(struct device_memory *memory, OrtDataTransferImpl **out);
// Returns the GPU whose memory holds the tensor; -1: host memory.
int tsr__ep_value_gpu(const struct ep_api *api, const OrtValue *value);
// Copies between host memory (device -1) and GPUs, and waits for the copy.
OrtStatus *tsr__ep_memory_copy(struct device_memory *memory, void *to, int to_gpu, const void *from,
                               int from_gpu, size_t bytes);
// Starts to copy caches to longer memory on one GPU. tsr__ep_memory_settle waits for the copies.
OrtStatus *tsr__ep_memory_extend(struct device_memory *memory, int gpu,
                                 const struct cache_copy *copies, size_t n);
OrtStatus *tsr__ep_memory_settle(struct device_memory *memory, int gpu);
// Adds an input in GPU memory to the set. If a rank of this process is on a GPU, the input is not
// copied; else it is copied to host memory.
tsr_status tsr__ep_memory_input(struct fused *fused, const OrtValue *value, const char *name,
                                tsr_tensors *to, OrtStatus **failed) TSR_MUST_USE;
// Waits for the run. Outputs are written to the application's memory if it is on the device of the
// ranks; the others are added to the set.
tsr_status tsr__ep_memory_wait(struct fused *fused, OrtKernelContext *context,
                               tsr_tensors *outputs) TSR_MUST_USE;

// ---- adapters.c
// True if the options of a run have LoRA adapters, whose tensors are inputs of the model.
bool tsr__ep_has_adapters(struct fused *fused, const OrtRunOptions *options);
void tsr__ep_adapters_close(struct fused *fused);

// ---- provider.c
OrtStatus *tsr__ep_provider_new(struct ep_factory *factory, const OrtSessionOptions *options,
                                const OrtLogger *logger, struct provider **out);
void tsr__ep_provider_free(struct provider *provider);
// Converts an error of ONNX Runtime to a diagnostic, releases it and returns TSR_ENGINE. Returns
// TSR_OK for NULL.
tsr_status tsr__ep_report(tsr_session *session, const struct ep_api *api, OrtStatus *status);
// Returns the session's errors as a status of ONNX Runtime, and removes all diagnostics.
OrtStatus *tsr__ep_failed(const struct ep_api *api, tsr_session *session, tsr_status status);
void tsr__ep_log(const struct provider *provider, int level, const char *message);
// Returns the options of the run that the calling thread computes; NULL: unknown.
const OrtRunOptions *tsr__ep_run_options(struct provider *provider);

// ---- options.c
// Reads the options. The caller frees them, also after an error.
tsr_status tsr__ep_options_read(tsr_session *session, const struct ep_api *api,
                                const OrtSessionOptions *from, struct ep_options *out) TSR_MUST_USE;
void tsr__ep_options_free(struct ep_options *options);

// ---- claim.c
void tsr__ep_decline(struct claim *claim, const char *format, ...) TSR_PRINTF(2, 3);
// Checks inputs, outputs and nodes of a main graph. claim->reason describes the first problem.
OrtStatus *tsr__ep_check_graph(struct claim *claim, const OrtGraph *graph);

// ---- parts.c
// Plans and partitions the graph with the options of the provider.
tsr_status tsr__ep_parts_make(struct provider *provider, const OrtGraph *graph, struct arena *arena,
                              struct parts *out) TSR_MUST_USE;
tsr_status tsr__ep_summary_write(struct fused *fused) TSR_MUST_USE;
// Writes the summary again when the session ends, unless the file was replaced or removed.
void tsr__ep_summary_end(struct fused *fused);

// Plans the model, unless it is annotated, and partitions it into the folder of the parts.
tsr_status tsr__ep_partition(const struct provider *provider, tsr_model *model,
                             struct parts *parts) TSR_MUST_USE;

// ---- decode_plan.c
// Plans the model. A model with caches is planned for one decode step, with caches that stay on
// their devices. `forced`: if that shards nothing, shards every node that can be sharded. *out must
// be NULL before, and the caller frees it, also after a failure.
tsr_status tsr__ep_plan(tsr_model *model, const tsr_plan_options *given, bool forced,
                        tsr_plan_result **out) TSR_MUST_USE;

// ---- plan_option.c
// Applies the sharding of the option `plan` to the model and returns its configuration in *name. If
// the option names an annotated model, that model replaces *model.
tsr_status tsr__ep_plan_option(struct provider *provider, const OrtGraph *graph, tsr_model **model,
                               struct arena *arena, const char **name) TSR_MUST_USE;

// ---- cache.c
// Returns the partition from the application's cache. If it is missing, creates it there first.
tsr_status tsr__ep_cache_parts(struct provider *provider, const OrtGraph *graph, tsr_model *model,
                               struct arena *arena, struct parts *out) TSR_MUST_USE;

// ---- context.c
// Sets *out to whether the node refers to a partition of this provider.
OrtStatus *tsr__ep_is_context(const struct ep_api *api, const OrtNode *node, struct arena *arena,
                              bool *out);
// Reads the partition that the graph's only node refers to.
tsr_status tsr__ep_context_read(struct provider *provider, const OrtGraph *graph,
                                const OrtNode *node, struct arena *arena,
                                struct parts *out) TSR_MUST_USE;
// Sets the folder of the parts and their path in the EPContext model that is to be written.
tsr_status tsr__ep_context_folder(struct provider *provider, const OrtGraph *graph,
                                  struct arena *arena, struct parts *parts) TSR_MUST_USE;
// Creates the node of the EPContext model. `node` is the fused node.
tsr_status tsr__ep_context_node(const struct fused *fused, const OrtNode *node,
                                OrtNode **out) TSR_MUST_USE;

// ---- inputs.c
tsr_status tsr__ep_inputs_read(struct fused *fused, OrtKernelContext *context,
                               tsr_tensors *to) TSR_MUST_USE;

// ---- states.c
bool tsr__ep_is_past(const struct fused *fused, const char *name);    // input of a state
bool tsr__ep_is_present(const struct fused *fused, const char *name); // output of a state
// Sets *kept if the value is the handle of a state that the ranks store. Otherwise the value must
// have the shape that the model declares for the state.
tsr_status tsr__ep_state_read(struct fused *fused, const OrtValue *value, const char *name,
                              bool *kept) TSR_MUST_USE;
// Returns the handle of a state to the application.
OrtStatus *tsr__ep_state_give(const struct fused *fused, OrtKernelContext *context, size_t output);

// ---- caches.c
// Finds the caches among inputs and outputs of the node.
tsr_status tsr__ep_caches_find(struct fused *fused) TSR_MUST_USE;
// For each cache that kept its shape: adds the application's buffer to `places` if the ranks can
// update it in place. Otherwise lists the used part in fused->used, so that only this part is
// copied.
tsr_status tsr__ep_caches_place(struct fused *fused, OrtKernelContext *context, tsr_tensors *inputs,
                                tsr_tensors *places) TSR_MUST_USE;
// Stores the shape of a cache output that is written to memory of the application.
void tsr__ep_caches_returned(struct fused *fused, size_t output, const struct tensor *present);
// Sets the shape of the application's buffer if the output is the used part of a cache.
void tsr__ep_caches_full_shape(const struct fused *fused, size_t output, struct tensor *to);
// If the output is a cache with spare capacity, and its past is the same buffer: copies only its
// tokens to `data`, so that the rest keeps its contents. Returns false for other outputs.
bool tsr__ep_caches_give(struct fused *fused, const tsr_tensors *inputs, size_t output,
                         const struct tensor *tensor, void *data);
// Returns the bytes of caches that a run has copied.
int64_t tsr__ep_caches_copied(const struct fused *fused, const tsr_tensors *inputs,
                              const tsr_tensors *places, const tsr_tensors *outputs);
// Records after a run which caches kept their shape. outputs NULL: the run failed.
void tsr__ep_caches_note(struct fused *fused, const tsr_tensors *inputs,
                         const tsr_tensors *outputs);

// ---- kept.c: the option caches=ranks
// Lists the caches that the ranks can keep, and makes their lengths outputs of the model.
tsr_status tsr__ep_kept_plan(tsr_model *model, struct arena *arena,
                             struct kept_plan *plan) TSR_MUST_USE;
// Finds the caches among the inputs and outputs of the node.
tsr_status tsr__ep_kept_open(struct fused *fused) TSR_MUST_USE;
// Finds the caches that belong to the buffers of this run, and adds the input that selects them.
// TSR_USAGE: past and present are not one buffer.
tsr_status tsr__ep_kept_begin(struct fused *fused, OrtKernelContext *context,
                              tsr_tensors *inputs) TSR_MUST_USE;
// After a run that could not start because memory ran out: drops the oldest caches. Returns false
// if there are none.
bool tsr__ep_kept_retry(struct fused *fused, tsr_tensors *inputs);
// Reports that the tokens of a failed run do not fit into the buffers, if that is so. The error of
// ONNX Runtime is about shapes in a rank.
void tsr__ep_kept_failed(const struct fused *fused, const tsr_tensors *inputs);
// Compares the lengths after a run. outputs NULL: the run failed.
tsr_status tsr__ep_kept_end(struct fused *fused, const tsr_tensors *inputs,
                            const tsr_tensors *outputs) TSR_MUST_USE;
void tsr__ep_kept_forget(struct fused *fused); // the ranks have ended

// ---- grow.c
// Finds the inputs that have the new lengths of the caches. False: they are not known for all.
bool tsr__ep_caches_can_grow(const struct fused *fused);
// If all caches on a GPU grow in this run: starts to copy them to the application's memory for the
// outputs, which becomes input and place of the run.
tsr_status tsr__ep_caches_grow(struct fused *fused, OrtKernelContext *context, tsr_tensors *inputs,
                               tsr_tensors *places) TSR_MUST_USE;
// Makes the application's memory the place of caches that the model itself makes longer.
tsr_status tsr__ep_caches_extend(struct fused *fused, OrtKernelContext *context,
                                 const tsr_tensors *inputs, tsr_tensors *places) TSR_MUST_USE;
// Waits for the copies of tsr__ep_caches_grow, if any. data: the struct fused
tsr_status tsr__ep_caches_settle(void *data) TSR_MUST_USE;

// ---- fused.c
// Creates the node that replaces the graph, and starts its ranks. The caller frees *out, also after
// an error.
tsr_status tsr__ep_fused_new(struct provider *provider, const OrtGraph *graph, const OrtNode *node,
                             struct fused **out) TSR_MUST_USE;
void tsr__ep_fused_free(struct fused *fused);

// ---- graph_model.c
// Writes the graph as a model file into the folder and loads it. For models that the application
// has only in memory, or whose weights it replaced. The folder must live as long as the model.
tsr_status tsr__ep_graph_load(tsr_session *session, const struct ep_api *api, const OrtGraph *graph,
                              const char *folder, tsr_model **out) TSR_MUST_USE;

// ---- graph_matches.c
// Sets *matches if the model file has the inputs, outputs and weights of the graph. They differ if
// the application replaced weights.
tsr_status tsr__ep_graph_matches(tsr_session *session, const struct ep_api *api,
                                 const OrtGraph *graph, const tsr_model *model,
                                 bool *matches) TSR_MUST_USE;

#endif
