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

#define EP_NAME            CONTEXT_SOURCE
#define EP_MAX_PATH        4096
#define CONTEXT_ATTRIBUTES 6 // of an EPContext node
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
    OrtEpFactory ort; // first
    struct ep_api api;
    const OrtLogger *logger;
    struct device_memory *memory; // of the GPUs that the factory offers; NULL: none
    // The registration and every provider hold one reference: sessions may outlive the
    // registration.
    atomic_int references;
};

// The options of the provider, as texts of the session's configuration say (options.c).
struct ep_options {
    struct arena arena;  // owns the texts
    const char *devices; // NULL: the provider declines everything but EPContext models
    tsr_plan_options plan_options;
    VEC(tsr_dim_size) dims;
    const char *plan, *cache, *summary; // files and folders; NULL: none
    bool processes;                     // ranks are processes, not threads
    bool transport_given;
    int threads; // per rank; 0: cores / ranks
    bool strict;
    bool context;             // an EPContext model is written ...
    const char *context_path; // ... to this file; NULL: beside the model
};

#define EP_MAX_RUNS 64 // that a session has at a time and that can be terminated
// A run of the application's session that has not ended.
struct active_run {
    pthread_t thread;
    const OrtRunOptions *options;
};

// The provider of one session of the application.
struct provider {
    OrtEp ort; // first
    struct ep_factory *factory;
    const OrtLogger *logger;
    tsr_session *session;
    struct ep_options options;
    bool on_gpu; // the session has selected a GPU: inputs and outputs are in its memory
    tsr_status options_status; // result of reading the options; the diagnostics are in the session
    char reason[256];          // why the graph cannot be taken; "": it can
    // The first run logs the reason: it was not known yet whether an operator is a function.
    bool logs_at_run;
    pthread_mutex_t lock;
    struct active_run runs[EP_MAX_RUNS]; // under the lock, also:
    size_t n_runs;                       // may be greater; the others are not listed
};

// Question about a graph: whether all of its nodes can be taken.
struct claim {
    const struct ep_api *api;
    struct arena *arena;
    const OrtNode **nodes; // of the graph
    size_t n_nodes;
    bool on_gpu;          // inputs and outputs are in GPU memory
    bool has_context;     // an EPContext node of this provider
    bool has_file;        // the model has one
    bool has_unknown;     // an operator of an unknown domain: a function or a custom operator
    const OrtNode *known; // a node of the main graph with a known operator; NULL: none
    char reason[256];     // why not; "": they can
};

// Where the partition of a fused node comes from.
enum model_route { ROUTE_FILE, ROUTE_GRAPH };

// A partition that is ready to run, in its folder.
struct parts {
    const char *folder;
    struct temporary *temporary; // removed with the node; NULL: the folder stays
    bool processes;              // an EPContext model requests processes as ranks by default
    const char *context;         // path of its manifest in an EPContext model; NULL: there is none
    const char *config;          // configuration of the option `plan`; NULL: to be chosen
    size_t devices, nodes, cut_nodes;
    enum model_route route;
    bool cached;
    int use; // > 0: descriptor that protects a cached partition from removal
};

// A cache: an input `past...` and the output `present...` that updates it.
struct cache_pair {
    size_t input, output; // of the node
    bool steady;          // the last run returned the shape that it was given, which was:
    int rank;
    int64_t dims[RUN_MAX_RANK];
};

// The node that ONNX Runtime runs in place of the claimed graph.
struct fused {
    OrtNodeComputeInfo ort; // first
    struct provider *provider;
    struct arena arena;
    struct parts parts;
    const char **inputs, **outputs; // names, in the order of the node
    size_t n_inputs, n_outputs;
    bool has_defaults;        // some input has a default value
    pid_t process;            // process that created it; its ranks do not exist in a forked child
    struct manifest manifest; // manifest of the partition
    struct cache_pair *caches;
    size_t n_caches;
    bool *placed;          // per output: the last run wrote it to GPU memory
    pthread_mutex_t lock;  // one run at a time
    tsr_job *job;          // ranks that are threads; NULL: to be opened
    struct served *served; // ranks that are processes; NULL: to be opened
};

// ---- factory.c
void tsr__ep_factory_release(struct ep_factory *factory);

// ---- device_memory.c
struct device_memory;
// Finds the GPUs. *out is NULL if there are none; to be freed.
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
// The GPU that a tensor is on; -1: host memory.
int tsr__ep_value_gpu(const struct ep_api *api, const OrtValue *value);
// Copies between host memory (device -1) and GPUs, and waits.
OrtStatus *tsr__ep_memory_copy(struct device_memory *memory, void *to, int to_gpu, const void *from,
                               int from_gpu, size_t bytes);
// Adds an input in GPU memory to the set: as it is if a rank of this process is on a GPU, else as a
// copy in host memory.
tsr_status tsr__ep_memory_input(struct fused *fused, const OrtValue *value, const char *name,
                                tsr_tensors *to, OrtStatus **failed) TSR_MUST_USE;
// Waits for the run. Outputs whose place is in GPU memory are written there; the set gets the others.
tsr_status tsr__ep_memory_wait(struct fused *fused, OrtKernelContext *context,
                               tsr_tensors *outputs) TSR_MUST_USE;

// ---- provider.c
OrtStatus *tsr__ep_provider_new(struct ep_factory *factory, const OrtSessionOptions *options,
                                const OrtLogger *logger, struct provider **out);
void tsr__ep_provider_free(struct provider *provider);
// Converts an error of ONNX Runtime to a diagnostic and releases it: TSR_ENGINE. NULL: TSR_OK.
tsr_status tsr__ep_report(tsr_session *session, const struct ep_api *api, OrtStatus *status);
// The errors of the session as a status of ONNX Runtime; removes all diagnostics.
OrtStatus *tsr__ep_failed(const struct ep_api *api, tsr_session *session, tsr_status status);
void tsr__ep_log(const struct provider *provider, int level, const char *message);
// The options of the run that the calling thread computes; NULL: not known.
const OrtRunOptions *tsr__ep_run_options(struct provider *provider);

// ---- options.c
// To be freed in every case.
tsr_status tsr__ep_options_read(tsr_session *session, const struct ep_api *api,
                                const OrtSessionOptions *from, struct ep_options *out) TSR_MUST_USE;
void tsr__ep_options_free(struct ep_options *options);

// ---- claim.c
void tsr__ep_decline(struct claim *claim, const char *format, ...) TSR_PRINTF(2, 3);
// Checks inputs, outputs and nodes of a main graph; the first problem is the claim's reason.
OrtStatus *tsr__ep_check_graph(struct claim *claim, const OrtGraph *graph);

// ---- parts.c
// Plans and partitions the graph as the options of the provider say.
tsr_status tsr__ep_parts_make(struct provider *provider, const OrtGraph *graph, struct arena *arena,
                              struct parts *out) TSR_MUST_USE;
tsr_status tsr__ep_summary_write(const struct provider *provider, const struct parts *parts,
                                 double seconds) TSR_MUST_USE;

// Plans the model, unless it is annotated, and partitions it into the folder of the parts.
tsr_status tsr__ep_partition(const struct provider *provider, tsr_model *model,
                             struct parts *parts) TSR_MUST_USE;

// ---- plan_option.c
// Gives the model the sharding of the option `plan`; *name is its configuration. An annotated model
// replaces *model.
tsr_status tsr__ep_plan_option(struct provider *provider, const OrtGraph *graph, tsr_model **model,
                               struct arena *arena, const char **name) TSR_MUST_USE;

// ---- cache.c
// The partition of the model in the application's cache; it is added if necessary.
tsr_status tsr__ep_cache_parts(struct provider *provider, const OrtGraph *graph, tsr_model *model,
                               struct arena *arena, struct parts *out) TSR_MUST_USE;

// ---- context.c
// "a/b" of "a/b/c", "." of "c".
const char *tsr__ep_folder_of(struct arena *arena, const char *path);
// Whether the node refers to a partition of this provider.
OrtStatus *tsr__ep_is_context(const struct ep_api *api, const OrtNode *node, struct arena *arena,
                              bool *out);
// The partition that the node, the only one of its graph, refers to.
tsr_status tsr__ep_context_read(struct provider *provider, const OrtGraph *graph,
                                const OrtNode *node, struct arena *arena,
                                struct parts *out) TSR_MUST_USE;
// Sets the folder of the parts and their path in the EPContext model that is to be written.
tsr_status tsr__ep_context_folder(struct provider *provider, const OrtGraph *graph,
                                  struct arena *arena, struct parts *parts) TSR_MUST_USE;
// The node of the EPContext model; `node` is the fused one.
tsr_status tsr__ep_context_node(const struct fused *fused, const OrtNode *node,
                                OrtNode **out) TSR_MUST_USE;

// ---- inputs.c
tsr_status tsr__ep_inputs_read(struct fused *fused, OrtKernelContext *context,
                               tsr_tensors *to) TSR_MUST_USE;

// The size of a named dimension, as the inputs that are given have it; 1: none has it.
int64_t tsr__ep_size_of(const struct fused *fused, const tsr_tensors *given, const char *symbol);

// ---- caches.c
// Finds the caches among inputs and outputs of the node.
tsr_status tsr__ep_caches_find(struct fused *fused) TSR_MUST_USE;
// Adds a place for each cache that the ranks can update in the application's buffer.
tsr_status tsr__ep_caches_place(struct fused *fused, OrtKernelContext *context,
                                const tsr_tensors *inputs, tsr_tensors *places) TSR_MUST_USE;
// After a run: notes which caches kept their shape. outputs NULL: the run failed.
void tsr__ep_caches_note(struct fused *fused, const tsr_tensors *inputs,
                         const tsr_tensors *outputs);

// ---- fused.c
// The node in place of the graph; its ranks are open. *out is to be freed, also after an error.
tsr_status tsr__ep_fused_new(struct provider *provider, const OrtGraph *graph, const OrtNode *node,
                             struct fused **out) TSR_MUST_USE;
void tsr__ep_fused_free(struct fused *fused);

// ---- graph_model.c
// Writes the graph as a model file into the folder and loads it. For models that the application
// has only in memory, or whose weights it replaced. The folder must live as long as the model.
tsr_status tsr__ep_graph_load(tsr_session *session, const struct ep_api *api, const OrtGraph *graph,
                              const char *folder, tsr_model **out) TSR_MUST_USE;

// ---- graph_matches.c
// Whether the model, read from the graph's model path, has the inputs, outputs and weights of the
// graph. False if the application replaced weights.
tsr_status tsr__ep_graph_matches(tsr_session *session, const struct ep_api *api,
                                 const OrtGraph *graph, const tsr_model *model,
                                 bool *matches) TSR_MUST_USE;

#endif
