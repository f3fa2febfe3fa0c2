/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera.h - the interface of libtessera for applications, and its manual. Functions that walk,
 * edit and annotate the graph of a model are in tessera_graph.h.
 *
 * Tessera runs one ONNX model across several devices. It picks a sharding for every tensor,
 * writes one ordinary ONNX file per device, runs them together in stock ONNX Runtime, and checks
 * the result against the unsharded model.
 *
 *   1 basics         status, session, memory, diagnostics
 *   2 models         load, save, clone
 *   3 types          element types, dimensions
 *   4 check, infer   diagnostics about shardings; completing them
 *   5 plan           the fastest sharding that fits in memory
 *   6 partition      one ONNX file per device
 *   7 tensors        sets of named tensors: inputs and outputs
 *   8 run            ONNX Runtime on several ranks, once or many times
 *   9 verify         compares the sharded with the unsharded model
 *  10 topology       devices and the links between them
 *  11 simulate       predicted times on devices that need not exist; a report as one page
 *  12 generation     folders of onnxruntime-genai and Optimum
 *
 * These rules hold for every function unless its comment says otherwise.
 *
 * Ownership. Handles that a function returns in `*out` belong to the caller, who releases them
 * with the function named ..._free, ..._close or ..._leave before the session is freed. All of
 * these accept NULL. A handle stays valid until it is released, whatever else is called.
 * Pointers read from a handle (texts, lists) belong to it and are valid until it changes or is
 * released. Texts and lists given to the library are copied.
 *
 * Errors. Functions that can fail return tsr_status and add one diagnostic to the session that
 * says what is wrong (tsr_finding_at). Results are written only with TSR_OK. Functions that
 * return a pointer, a number or a bool return NULL, 0, -1 or false where there is nothing. A
 * NULL session, a missing argument, an index out of range and a handle of another session are
 * TSR_INVALID. Other NULL handles are a programming error.
 *
 * Threads. A session and every handle made with it belong to one thread at a time. Different
 * sessions share nothing and can be used in parallel. Runs start their own threads and join
 * them.
 *
 * ABI. A struct that the caller allocates starts with `size`; its TSR_..._INIT sets the size and
 * zeroes the rest, which is the default. The library reads and writes at most `size` bytes. A
 * size smaller than that of the first version is TSR_INVALID. New fields are only appended.
 * Structs without `size` (tsr_dim, tsr_dim_size, tsr_group, tsr_plan_tensor,
 * tsr_plan_reduction) never change. Enumerators keep their numbers. Within one soname functions are never removed.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TSR_API __attribute__((visibility("default")))
#else
#define TSR_API
#endif

/* Initializer of a struct that starts with `size`; the other fields are zero. */
#ifdef __cplusplus
#define TSR_INIT(type)                                                                             \
    {                                                                                              \
        sizeof(type)                                                                               \
    }
#else
#define TSR_INIT(type)                                                                             \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

/* ---- 1 basics -------------------------------------------------------------------------------- */

#define TSR_VERSION_MAJOR 1
#define TSR_VERSION_MINOR 0
#define TSR_VERSION_PATCH 0

/* Returns the version of the loaded library, such as "1.0.0". Can be called from any thread. */
TSR_API const char *tsr_version(void);

typedef enum tsr_status {
    TSR_OK = 0,
    TSR_NOMEM = 1,       /* out of memory, or over the session's memory limit */
    TSR_IO = 2,          /* a file could not be read */
    TSR_WRITE = 3,       /* a file could not be written; no partial file is left */
    TSR_MALFORMED = 4,   /* the bytes or text are not in the expected format */
    TSR_INVALID = 5,     /* well-formed but not allowed: bad argument, refused edit, failed check */
    TSR_UNSUPPORTED = 6, /* valid, but not implemented */
    TSR_INFEASIBLE = 7,  /* no plan fits the limits */
    TSR_ENGINE = 8,      /* ONNX Runtime, a provider or a plug-in is missing or failed */
    TSR_PEER = 9,        /* another rank or the network failed */
    TSR_DIFFERENT = 10,  /* verify: the sharded model differs from the unsharded one */
    TSR_USAGE = 11,      /* wrong use, such as a number of ranks that does not fit the partition */
    TSR_BUG = 12,        /* internal error */
    TSR_CANCELLED = 13   /* stopped by tsr_session_cancel */
} tsr_status;

/* Returns a short static description of a status. Can be called from any thread. */
TSR_API const char *tsr_status_text(tsr_status status);

typedef struct tsr_session tsr_session;

/* Allocates (old NULL), resizes, or frees (bytes 0). Returns NULL on failure and leaves old as it
 * is. */
typedef void *(*tsr_alloc_fn)(void *data, void *old, size_t old_bytes, size_t bytes);
/* Reports progress of long calls: `done` of `total` steps of `what`. */
typedef void (*tsr_progress_fn)(void *data, const char *what, uint64_t done, uint64_t total);

typedef struct tsr_session_options {
    size_t size;
    tsr_alloc_fn alloc; /* NULL: malloc */
    void *alloc_data;
    size_t memory_limit; /* most bytes the session may hold at a time; 0: no limit */
    tsr_progress_fn progress;
    void *progress_data;
} tsr_session_options;
#define TSR_SESSION_OPTIONS_INIT TSR_INIT(tsr_session_options)

/* Creates a session. options NULL: the defaults. Returns NULL if there is no memory or the size of
 * the options is too small. */
TSR_API tsr_session *tsr_session_new(const tsr_session_options *options);
/* Releases the session. Release everything made with it first. */
TSR_API void tsr_session_free(tsr_session *session);

/* Asks the current and all later work of the session to stop soon. A plan then returns the best
 * solution found so far; other calls leave no partial files and return TSR_CANCELLED. `on` false
 * allows work again. Can be called from any thread and from a signal handler. */
TSR_API void tsr_session_cancel(tsr_session *session, bool on);

typedef enum tsr_severity {
    TSR_ERROR = 0,
    TSR_WARNING = 1,
    TSR_NOTE = 2,
    TSR_SEVERITY_COUNT = 3
} tsr_severity;

#define TSR_MAX_FINDINGS 1000 /* further diagnostics are counted but not stored */

/* One diagnostic. Texts are never NULL. Unknown fields are "", node_index and rank -1, axis
 * INT64_MIN, offset UINT64_MAX. */
typedef struct tsr_finding {
    size_t size;
    const char *code; /* stable, such as "dim-unknown" */
    tsr_severity severity;
    const char *message, *hint;
    const char *file, *graph, *node, *op, *value, *configuration;
    uint64_t offset; /* in the file */
    int64_t node_index, axis, rank;
} tsr_finding;
#define TSR_FINDING_INIT TSR_INIT(tsr_finding)

/* Returns the number of stored diagnostics. */
TSR_API size_t tsr_finding_count(const tsr_session *session);
/* Returns the number of diagnostics of a severity, including those that were not stored. */
TSR_API size_t tsr_finding_total(const tsr_session *session, tsr_severity severity);
/* Reads diagnostic i, oldest first. Its texts are valid until tsr_finding_clear. */
TSR_API tsr_status tsr_finding_at(const tsr_session *session, size_t i, tsr_finding *out);
/* Removes all diagnostics and resets the counts. */
TSR_API void tsr_finding_clear(tsr_session *session);
/* Returns diagnostic i as lines of text for a terminal, valid until tsr_finding_clear. */
TSR_API const char *tsr_finding_text(tsr_session *session, size_t i);

/* Lists all diagnostic codes: code, severity, title and explanation of the i-th. Returns false past
 * the end. Any pointer may be NULL. Can be called from any thread. */
TSR_API bool tsr_code_at(size_t i, const char **code, tsr_severity *severity, const char **title,
                         const char **explanation);

/* ---- 2 models -------------------------------------------------------------------------------- */

typedef struct tsr_model tsr_model;

/* Loads a model from a file, which stays mapped: weights are not copied. Models that break ONNX
 * rules can be loaded as well; tsr_check reports them. */
TSR_API tsr_status tsr_model_load(tsr_session *session, const char *path, tsr_model **out);
/* Loads a model from memory, which must outlive the model and its copies. Such a model has no
 * external data. */
TSR_API tsr_status tsr_model_load_bytes(tsr_session *session, const void *bytes, size_t n,
                                        tsr_model **out);
TSR_API void tsr_model_free(tsr_model *model);
/* Copies a model. The copy shares weights with the original, which may be freed first. */
TSR_API tsr_status tsr_model_clone(const tsr_model *model, tsr_model **out);

/* Writes the model to a file, completely or not at all. Unchanged parts keep their bytes. Raises
 * the IR version to 11 if this API has changed its shardings. TSR_WRITE: the file cannot be
 * written, or the model was loaded from it (output-is-input). TSR_INVALID: an annotation made
 * through this API has no configuration or no value, or a sharded value has no name. */
TSR_API tsr_status tsr_model_save(tsr_model *model, const char *path);
/* Serializes the model into memory, to be released with tsr_bytes_free. Errors as tsr_model_save.
 * */
TSR_API tsr_status tsr_model_save_bytes(tsr_model *model, void **bytes, size_t *n);
TSR_API void tsr_bytes_free(tsr_session *session, void *bytes, size_t n);

/* Copies the external data files of the model next to `path`, so that a model saved there finds
 * them. Replaces existing files. Does nothing if the folder is the model's own. */
TSR_API tsr_status tsr_model_copy_data(tsr_model *model, const char *path);

/* Returns the session of the model. */
TSR_API tsr_session *tsr_model_session(const tsr_model *model);
/* Returns the path the model was loaded from, "" if it was not loaded from a file. */
TSR_API const char *tsr_model_path(const tsr_model *model);

/* ---- 3 types --------------------------------------------------------------------------------- */

/* ONNX element types keep their ONNX numbers. */
typedef enum tsr_dtype {
    TSR_UNDEFINED = 0,
    TSR_FLOAT = 1,
    TSR_UINT8 = 2,
    TSR_INT8 = 3,
    TSR_UINT16 = 4,
    TSR_INT16 = 5,
    TSR_INT32 = 6,
    TSR_INT64 = 7,
    TSR_STRING = 8,
    TSR_BOOL = 9,
    TSR_FLOAT16 = 10,
    TSR_DOUBLE = 11,
    TSR_UINT32 = 12,
    TSR_UINT64 = 13,
    TSR_COMPLEX64 = 14,
    TSR_COMPLEX128 = 15,
    TSR_BFLOAT16 = 16,
    TSR_FLOAT8E4M3FN = 17,
    TSR_FLOAT8E4M3FNUZ = 18,
    TSR_FLOAT8E5M2 = 19,
    TSR_FLOAT8E5M2FNUZ = 20,
    TSR_UINT4 = 21,
    TSR_INT4 = 22,
    TSR_FLOAT4E2M1 = 23,
    TSR_FLOAT8E8M0 = 24,
    TSR_UINT2 = 25,
    TSR_INT2 = 26,
    TSR_FLOAT6E2M3 = 27,
    TSR_FLOAT6E3M2 = 28,
    TSR_DTYPE_COUNT = 29
} tsr_dtype;

/* Returns "float32", "int64", ... Can be called from any thread, as the next two. */
TSR_API const char *tsr_dtype_name(tsr_dtype type);
/* Returns the bits of one element; 0 for strings and unknown types. */
TSR_API int tsr_dtype_bits(tsr_dtype type);
/* Returns the bytes of n packed elements; -1 for strings, unknown types, n < 0 and overflow. */
TSR_API int64_t tsr_dtype_bytes(tsr_dtype type, int64_t n);

/* A dimension: a size (value >= 0), a symbolic one (value -1 and a symbol, which may be an
 * expression such as "past + 1"), or an unknown one (value -1 and symbol ""). */
typedef struct tsr_dim {
    int64_t value;
    const char *symbol;
} tsr_dim;

/* A size for a symbolic dimension: "batch" = 1. A dimension of an input that has no name is called
 * INPUT.AXIS: "x.0" = 1. Calls that take sizes return TSR_USAGE (dim-unknown, dim-size) if the
 * model has no such dimension or a size is less than 1. */
typedef struct tsr_dim_size {
    const char *name;
    int64_t size;
} tsr_dim_size;

/* Devices that communicate with each other. */
typedef struct tsr_group {
    const int64_t *devices;
    size_t n;
} tsr_group;

/* ---- 4 check, infer -------------------------------------------------------------------------- */

/* Adds sharding rules for custom operators, for all later calls of the session. One rule per line,
 * in the notation of `tessera rules`: "Twice my.ops 1 [A*] -> [A*]"; # starts a comment. Built-in
 * operators keep their rules. TSR_MALFORMED (rule-text): a line is not a rule; then none is added.
 * */
TSR_API tsr_status tsr_rules_add(tsr_session *session, const char *rows);
/* Adds the rules of a file. */
TSR_API tsr_status tsr_rules_read(tsr_session *session, const char *path);

typedef struct tsr_shapes_summary {
    size_t size;
    size_t values; /* outputs of nodes, including those in subgraphs */
    size_t typed;  /* values with a known element type */
    size_t ranked; /* values with a known number of dimensions */
    size_t fixed;  /* values whose dimensions are all numbers or expressions of symbols */
} tsr_shapes_summary;
#define TSR_SHAPES_SUMMARY_INIT TSR_INIT(tsr_shapes_summary)
/* Infers the types and shapes of all values and writes them into the model. Symbols named in
 * `sizes` become numbers. Declared types and shapes are completed, never replaced; a contradiction
 * is a warning (shape-contradiction). summary may be NULL. */
TSR_API tsr_status tsr_shapes(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                              tsr_shapes_summary *summary);

typedef struct tsr_check_options {
    size_t size;
    const char *config; /* device configuration; NULL: all */
    /* Apply the published formalism: an input without a sharding has that of its producer (model
     * inputs are unsharded), and inputs that then disagree are an error. Initializers are exempt.
     * */
    bool formalism;
} tsr_check_options;
#define TSR_CHECK_OPTIONS_INIT TSR_INIT(tsr_check_options)
/* Checks the shardings of the model and adds a diagnostic for each problem. Returns TSR_OK even if
 * there are errors: count them with tsr_finding_total. options NULL: the defaults. */
TSR_API tsr_status tsr_check(tsr_model *model, const tsr_check_options *options);

typedef struct tsr_infer_options {
    size_t size;
    const char *config; /* device configuration; NULL: the only one */
    /* Also propagate shardings backwards and sideways until nothing changes. Explicit shardings
     * win, then what the producer has, then other consumers, then the first consumer in node order.
     * A sharding that loses is a note (demand-dropped). */
    bool propagate;
    /* Apply the published formalism, as in tsr_check_options. Excludes `propagate`. */
    bool formalism;
} tsr_infer_options;
#define TSR_INFER_OPTIONS_INIT TSR_INIT(tsr_infer_options)
/* Completes a configuration: writes every sharding that follows from the explicit ones into the
 * model. Explicit shardings are never changed, and a second call changes nothing. options NULL: the
 * defaults. TSR_INVALID: the check of the model has errors, or the options contradict each other.
 * */
TSR_API tsr_status tsr_infer(tsr_model *model, const tsr_infer_options *options);

/* ---- 5 plan ---------------------------------------------------------------------------------- */

typedef struct tsr_topology tsr_topology; /* section 10 */
typedef struct tsr_tensors tsr_tensors;   /* section 7 */

typedef enum tsr_objective {
    TSR_LATENCY,    /* time of one run, from its inputs to its outputs */
    TSR_THROUGHPUT, /* time of the slowest stage: runs follow each other through the pipeline */
} tsr_objective;
#define TSR_STAGES_AUTO (-1)
typedef struct tsr_plan_options {
    size_t size;
    int64_t devices;        /* number of devices of one host; ignored if there is a topology */
    tsr_topology *topology; /* NULL: none */
    /* Bytes per device; INT64_MAX: no limit. 0: the memory of the devices. If that is only assumed
     * (a number of devices, or a text such as "ring:4") and nothing fits, the plan may use more,
     * with a warning. */
    int64_t memory;
    /* Sizes of symbolic dimensions. One without a size is assumed to be 128 and is not sharded. */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    /* Configuration to create or complete; NULL: the only one with that number of devices, else
     * planN. */
    const char *config;
    /* File for the 0-1 program of the plan, or NULL. */
    const char *export_lp;
    /* Node (by name or output) whose candidates are reported, or NULL. */
    const char *explain;
    /* Number of pipeline stages, or TSR_STAGES_AUTO. 0: none, unless one stage on each host beats
     * all plans without stages; 1: none. */
    int64_t stages;
    tsr_objective objective;
    /* Another model with the same weights on the same devices (decode beside prefill), or NULL.
     * Both are planned together, and shared weights get one sharding. It may be loaded from the
     * same file. */
    tsr_model *with;
    const tsr_dim_size *with_sizes;
    size_t n_with_sizes;
    int64_t steps; /* runs of `with` per run of the model; 0: 1 */
    /* "past=present": an output that is the input of the next run, and stays on its devices. Stored
     * in the metadata of the model, where tsr_partition finds it. */
    const char *const *state;
    size_t n_state;
    /* Stop after this time with the best plan so far. 0: a budget that counts work, not time, so
     * that the same model gives the same plan on every machine. */
    double seconds;
} tsr_plan_options;
#define TSR_PLAN_OPTIONS_INIT TSR_INIT(tsr_plan_options)

/* How often an operator communicates, counted once per communication, not per rank. */
typedef struct tsr_collective_count {
    size_t size;
    const char *op;
    size_t count;
} tsr_collective_count;
#define TSR_COLLECTIVE_COUNT_INIT TSR_INIT(tsr_collective_count)

/* A pipeline stage: consecutive nodes and the devices that share them. Times are in picoseconds. */
typedef struct tsr_plan_stage {
    size_t size;
    const int64_t *devices;
    size_t n_devices;
    size_t nodes;        /* number of nodes */
    int64_t first, last; /* their range in the graph */
    int64_t time;        /* of its nodes and of communication among its devices */
    int64_t transfer;    /* of values from other stages, and of outputs that go to device 0 */
    int64_t memory;      /* peak memory of its fullest device, bytes */
} tsr_plan_stage;
#define TSR_PLAN_STAGE_INIT TSR_INIT(tsr_plan_stage)

/* A value that takes memory on the fullest device of the plan that needs the least memory. */
typedef struct tsr_plan_binding {
    size_t size;
    const char *value;
    int64_t bytes;
} tsr_plan_binding;
#define TSR_PLAN_BINDING_INIT TSR_INIT(tsr_plan_binding)

/* The best plan for one number of devices, where the planner chooses the number ("auto"). */
typedef struct tsr_plan_count {
    size_t size;
    int64_t devices; /* or ranks, if faster devices run several ranks */
    bool ranks;      /* faster devices run several ranks */
    bool chosen;
    bool fits;      /* in their memory; if not, cost is 0 or that of a plan that needs more */
    int64_t cost;   /* as in tsr_plan_facts */
    bool undecided; /* no plan that fits was found in time, and none was proved to be impossible */
} tsr_plan_count;
#define TSR_PLAN_COUNT_INIT TSR_INIT(tsr_plan_count)

/* A plan that an expert would make by hand, and why it was not chosen. */
typedef struct tsr_plan_expert {
    size_t size;
    const char *name;        /* "tensor parallel on 8 devices" */
    bool fits;               /* in memory; if not, the times are 0 */
    bool undecided;          /* does not fit: no plan of this kind was found in time */
    double milliseconds;     /* predicted time of one run */
    double communication_ms; /* the part of it that is communication */
    int64_t needs_bytes;     /* does not fit: memory per device that would suffice; 0: unknown */
    const char *reason;      /* "slower by 12 %: 3.1 ms more communication" */
} tsr_plan_expert;
#define TSR_PLAN_EXPERT_INIT TSR_INIT(tsr_plan_expert)

/* The sharding of an input or output of a node. */
typedef struct tsr_plan_tensor {
    const char *value;
    const char *sharding; /* "{1,2:0,1}", as tsr_node_shard_text reads it */
    bool in_parts;        /* the devices have partial sums that are reduced later */
} tsr_plan_tensor;

/* A candidate of a node: how it can be sharded, and what that costs. Times are in picoseconds. */
typedef struct tsr_plan_choice {
    size_t size;
    const char *name; /* factors of its rule that are sharded: "m/4"; "whole": none */
    bool chosen;
    bool feasible;         /* false: no plan within the limits has it */
    bool undecided;        /* not feasible: no such plan was found in time */
    int64_t cost;          /* of the best plan with this candidate */
    int64_t compute;       /* of this node only */
    int64_t communication; /* after this node */
    int64_t weights;       /* bytes of constants on a device */
    const char *reduction; /* collective after the node, such as "AllReduce"; NULL: none */
    /* Shardings that the node needs for its inputs, and those of its outputs after the reduction.
     * Absent tensors are left out. */
    const tsr_plan_tensor *inputs, *outputs;
    size_t n_inputs, n_outputs;
} tsr_plan_choice;
#define TSR_PLAN_CHOICE_INIT TSR_INIT(tsr_plan_choice)

/* What a plan costs. Times are in picoseconds, memory in bytes. */
typedef struct tsr_plan_facts {
    size_t size;
    size_t devices; /* of the configuration: entries of `memory` and `peak` */
    bool feasible, optimal;
    bool undecided; /* not feasible: the search ended without a plan and without a proof */
    bool stopped;   /* by `seconds` or tsr_session_cancel */
    bool assumed;   /* the devices are assumed, see tsr_topology_is_assumed */
    const char *config;
    int64_t cost, bound; /* predicted time of one run; lower bound over all candidates */
    double gap;          /* (cost - bound) / cost */
    double solve_ms;
    double milliseconds;   /* predicted time of one run of the model */
    int64_t one_device;    /* predicted time on one device; 0: does not fit, or not known */
    const int64_t *memory; /* per device: peak memory of tensors */
    const int64_t *peak;   /* per device: peak memory of the process, with the engine's own */
    size_t nodes, cut_nodes;
    int64_t used_devices; /* devices that run nodes; the others are idle */
    int64_t copies;       /* groups of devices that do the same, each with a share of the batch */
    tsr_objective objective;
    int64_t latency, period; /* with stages: time of one run; time between runs */
    int64_t needs_bytes;     /* not feasible: memory per device that would suffice */
    int64_t fits_devices;    /* not feasible: number of devices that would suffice; 0: unknown */
    int64_t better_devices, better_cost; /* fewer devices, at most 2 % slower; 0: none found */
    size_t n_collectives, n_stages, n_bindings, n_counts;
    size_t n_compared;   /* experts' plans: those that fit, the fastest first, then the others */
    size_t n_choices;    /* candidates of the node that the option `explain` names */
    double device_flops; /* of the first device, float32 operations per second */
    /* weights that devices store sharded and convert in each run, because memory is short */
    size_t gathered_weights;
} tsr_plan_facts;
#define TSR_PLAN_FACTS_INIT TSR_INIT(tsr_plan_facts)

typedef struct tsr_plan_result tsr_plan_result;
/* Picks the sharding of every node that has the least predicted time and fits in memory, and writes
 * it into the model. Shardings that the configuration has already are kept. The same model gives
 * the same plan. Nodes are sorted, and calls of the model's functions are replaced by their bodies.
 * TSR_INFEASIBLE: no plan fits; the model has no new shardings. *out is set with TSR_OK and
 * TSR_INFEASIBLE; out may be NULL. */
TSR_API tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options,
                            tsr_plan_result **out);
/* As tsr_plan, with the sizes of symbolic dimensions taken from inputs. Sizes in the options win.
 * */
TSR_API tsr_status tsr_plan_for_inputs(tsr_model *model, const tsr_plan_options *options,
                                       const tsr_tensors *inputs, tsr_plan_result **out);
TSR_API void tsr_plan_result_free(tsr_plan_result *result);
TSR_API tsr_status tsr_plan_result_about(const tsr_plan_result *result, tsr_plan_facts *out);
/* Read element i; the facts have their number. Bindings exist only if the plan is not feasible. */
TSR_API tsr_status tsr_plan_result_collective(const tsr_plan_result *result, size_t i,
                                              tsr_collective_count *out);
TSR_API tsr_status tsr_plan_result_stage(const tsr_plan_result *result, size_t i,
                                         tsr_plan_stage *out);
TSR_API tsr_status tsr_plan_result_binding(const tsr_plan_result *result, size_t i,
                                           tsr_plan_binding *out);
TSR_API tsr_status tsr_plan_result_count(const tsr_plan_result *result, size_t i,
                                         tsr_plan_count *out);
TSR_API tsr_status tsr_plan_result_compared(const tsr_plan_result *result, size_t i,
                                            tsr_plan_expert *out);
TSR_API tsr_status tsr_plan_result_choice(const tsr_plan_result *result, size_t i,
                                          tsr_plan_choice *out);
/* Writes a plan as a JSON document (docs/formats.md): options, costs, digest of the model file, and
 * the shardings of each node. Takes the model and the options of tsr_plan, unchanged since then.
 * The same plan gives the same bytes. TSR_INVALID: the plan is not feasible, or the model does not
 * have its configuration. */
TSR_API tsr_status tsr_plan_save(tsr_model *model, const tsr_plan_options *options,
                                 const tsr_plan_result *result, const char *path);

/* A collective that completes an output of a node. */
typedef struct tsr_plan_reduction {
    const char *value;
    const char *collective;  /* "AllReduce", "ReduceScatter", "Reduce" */
    const char *function;    /* "sum", "max", "min", "prod" */
    const tsr_group *groups; /* that reduce at the same time */
    size_t n_groups;
} tsr_plan_reduction;
/* A node of a plan: the shardings of its inputs and outputs, also those that no annotation names.
 * Absent tensors, and tensors of unknown rank, are left out. */
typedef struct tsr_plan_node {
    size_t size;
    /* As edits name it: its name, "#3" if it has none, "outer > then_branch > inner" in a subgraph. */
    const char *name;
    const char *op;
    int64_t index; /* in its graph */
    int64_t stage; /* pipeline stage; -1: none */
    bool sharded;  /* the devices have less work than the whole node */
    const tsr_plan_tensor *inputs, *outputs;
    size_t n_inputs, n_outputs;
    const tsr_plan_reduction *reductions;
    size_t n_reductions;
} tsr_plan_node;
#define TSR_PLAN_NODE_INIT TSR_INIT(tsr_plan_node)
/* The nodes of a model as a configuration shards them, after tsr_plan or annotations by hand.
 * config NULL: the only one. Nodes of subgraphs follow their node. TSR_INVALID: the check of the
 * model has errors. The list does not follow later changes of the model. */
typedef struct tsr_plan_nodes tsr_plan_nodes;
TSR_API tsr_status tsr_plan_nodes_new(tsr_model *model, const char *config, tsr_plan_nodes **out);
TSR_API void tsr_plan_nodes_free(tsr_plan_nodes *nodes);
/* Returns the number of nodes; reads node i. */
TSR_API size_t tsr_plan_nodes_count(const tsr_plan_nodes *nodes);
TSR_API tsr_status tsr_plan_nodes_at(const tsr_plan_nodes *nodes, size_t i, tsr_plan_node *out);

/* ---- 6 partition ----------------------------------------------------------------------------- */

/* How ranks communicate. */
typedef enum tsr_transport {
    TSR_TRANSPORT_DEFAULT = 0, /* that of the launcher; without one, threads */
    TSR_TRANSPORT_THREADS = 1, /* ranks are threads of this process */
    TSR_TRANSPORT_SHM = 2,     /* ranks are child processes with shared memory */
    TSR_TRANSPORT_MPI = 3,
    TSR_TRANSPORT_UCX = 4
} tsr_transport;
typedef enum tsr_layout {
    TSR_LAYOUT_RANKS = 0, /* rank files and manifest */
    /* Also model.onnx, an EPContext model: any ONNX Runtime that has registered libtessera_ep.so
     * runs the partition. It returns handles in place of states (docs/provider.md). */
    TSR_LAYOUT_CONTEXT = 1
} tsr_layout;
typedef enum tsr_weights_format {
    TSR_WEIGHTS_DATA = 0, /* raw bytes */
    TSR_WEIGHTS_SAFETENSORS = 1
} tsr_weights_format;
typedef struct tsr_partition_options {
    size_t size;
    const char *config; /* NULL: the only one */
    bool force;         /* replace an existing folder */
    bool strict;        /* TSR_UNSUPPORTED if a node that should be sharded is replicated */
    /* Inputs and outputs that stay sharded in the rank files; one * matches any text. Also read
     * from the model's metadata ai.tessera.keep_cut, one name per line. */
    const char *const *keep_cut;
    size_t n_keep_cut;
    /* "past=present": an output that is the input of the next run, and stays on its devices; one *
     * on each side matches the same text. Also read from the metadata ai.tessera.state. */
    const char *const *state;
    size_t n_state;
    bool dry_run; /* do not write; folder may be NULL */
    tsr_layout layout;
    /* Outputs that every rank returns unsharded, not only rank 0. */
    const char *const *everywhere;
    size_t n_everywhere;
    tsr_weights_format weights; /* of the files with weights */
    /* Ranks of an EPContext model: THREADS of the process that loads it (default), or SHM. */
    tsr_transport transport;
    /* Sizes of symbolic dimensions, kept in the manifest; they win over those of the plan. */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    /* Fix all symbolic dimensions of the inputs to these sizes; TSR_INVALID if one has none. */
    bool static_sizes;
} tsr_partition_options;
#define TSR_PARTITION_OPTIONS_INIT TSR_INIT(tsr_partition_options)

/* A node that should be sharded but is replicated, and why. */
typedef struct tsr_replicated {
    size_t size;
    const char *node, *op, *reason;
} tsr_replicated;
#define TSR_REPLICATED_INIT TSR_INIT(tsr_replicated)

/* Figures of a partition. The lists have one entry per device. */
typedef struct tsr_partition_facts {
    size_t size;
    size_t devices;
    size_t nodes, cut_nodes;
    const int64_t *weight_bytes;
    const int64_t *weights;    /* number of elements */
    const int64_t *file_bytes; /* of its files, without common.data */
    int64_t common_bytes;      /* of common.data; 0: no such file */
    /* tsr_folder_partition: predicted picoseconds of one run, and on one device; 0: not known */
    int64_t predicted, one_device;
    size_t n_collectives, n_replicated;
    double device_flops; /* with `predicted`: speed of the first device; 0: not known */
} tsr_partition_facts;
#define TSR_PARTITION_FACTS_INIT TSR_INIT(tsr_partition_facts)

typedef struct tsr_partition_result tsr_partition_result;
/* Shards the annotated model and writes a folder, completely or not at all: rank files, their
 * weights, and the manifest. options NULL: the defaults; out may be NULL. TSR_INVALID: the
 * shardings have errors. TSR_UNSUPPORTED: something cannot be sharded as requested. TSR_WRITE: the
 * folder exists, or cannot be written. */
TSR_API tsr_status tsr_partition(tsr_model *model, const char *folder,
                                 const tsr_partition_options *options, tsr_partition_result **out);
TSR_API void tsr_partition_result_free(tsr_partition_result *result);
TSR_API tsr_status tsr_partition_result_about(const tsr_partition_result *result,
                                              tsr_partition_facts *out);
/* Read element i; the facts have their number. */
TSR_API tsr_status tsr_partition_result_collective(const tsr_partition_result *result, size_t i,
                                                   tsr_collective_count *out);
TSR_API tsr_status tsr_partition_result_replicated(const tsr_partition_result *result, size_t i,
                                                   tsr_replicated *out);

typedef struct tsr_manifest tsr_manifest;
typedef struct tsr_manifest_facts {
    size_t size;
    int ranks;
    size_t n_inputs, n_outputs, n_states;
    const char *generator, *model, *model_sha256, *configuration;
    const char *plan; /* fingerprint that all rank files carry, 16 hexadecimal digits */
    /* Sizes of symbolic dimensions for which the model was planned, the defaults of runs. */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    bool static_sizes; /* the rank files are for these sizes only */
} tsr_manifest_facts;
#define TSR_MANIFEST_FACTS_INIT TSR_INIT(tsr_manifest_facts)
/* An input or output of the unsharded model. */
typedef struct tsr_manifest_port {
    size_t size;
    const char *name, *type; /* type as tsr_dtype_name returns it */
    int rank;                /* number of dimensions; -1: not known */
    const tsr_dim *dims;
    const char *sharding; /* which ranks read or write which part; see tsr_tiling_new */
    bool kept;            /* the ranks have shards, not the full tensor */
} tsr_manifest_port;
#define TSR_MANIFEST_PORT_INIT TSR_INIT(tsr_manifest_port)
/* Reads the manifest of a partition folder; no other file is opened. */
TSR_API tsr_status tsr_manifest_open(tsr_session *session, const char *folder, tsr_manifest **out);
TSR_API void tsr_manifest_free(tsr_manifest *manifest);
TSR_API tsr_status tsr_manifest_about(const tsr_manifest *manifest, tsr_manifest_facts *out);
/* Read input or output i of the unsharded model. */
TSR_API tsr_status tsr_manifest_input(const tsr_manifest *manifest, size_t i,
                                      tsr_manifest_port *out);
TSR_API tsr_status tsr_manifest_output(const tsr_manifest *manifest, size_t i,
                                       tsr_manifest_port *out);

/* ---- 7 tensors ------------------------------------------------------------------------------- */

/* A set of named tensors. An entry may also be a sequence of tensors (rank -1 and a nested set)
 * or an empty optional (rank -1 and no set). */
TSR_API tsr_status tsr_tensors_new(tsr_session *session, tsr_tensors **out);
TSR_API void tsr_tensors_free(tsr_tensors *tensors);
TSR_API size_t tsr_tensors_count(const tsr_tensors *tensors);
/* Name, element type, number of dimensions and dimensions of tensor i. */
TSR_API const char *tsr_tensors_name(const tsr_tensors *tensors, size_t i);
TSR_API tsr_dtype tsr_tensors_dtype(const tsr_tensors *tensors, size_t i);
TSR_API int tsr_tensors_rank(const tsr_tensors *tensors, size_t i);
TSR_API const int64_t *tsr_tensors_dims(const tsr_tensors *tensors, size_t i);
/* Returns the elements of tensor i in row-major order; NULL for tensors in GPU memory. Strings: the
 * end offset of each (uint64_t, from the first character), then all characters. */
TSR_API const void *tsr_tensors_data(const tsr_tensors *tensors, size_t i, size_t *bytes);
/* Returns element k of string tensor i, without a final zero; NULL if it is not a string tensor. */
TSR_API const char *tsr_tensors_text(const tsr_tensors *tensors, size_t i, int64_t k,
                                     size_t *bytes);
/* Returns the elements of sequence i, or NULL if it is not a sequence. */
TSR_API const tsr_tensors *tsr_tensors_sequence(const tsr_tensors *tensors, size_t i);
/* Returns the index of a name, or -1. */
TSR_API int64_t tsr_tensors_find(const tsr_tensors *tensors, const char *name);
/* Adds or replaces a tensor and copies its elements (NULL: zeros). Not for strings. */
TSR_API tsr_status tsr_tensors_put(tsr_tensors *tensors, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const void *bytes);
/* As tsr_tensors_put without a copy. The bytes stay the caller's. They must be valid until the set
 * is released or the tensor replaced, and aligned as an array of the type. */
TSR_API tsr_status tsr_tensors_borrow(tsr_tensors *tensors, const char *name, tsr_dtype type,
                                      int rank, const int64_t *dims, const void *bytes);
/* Adds a DLManagedTensor of DLPack without a copy: contiguous, in host memory or in that of a CUDA
 * GPU, with its producer finished or on the default stream. With TSR_OK the set owns it and calls
 * its deleter. Only jobs whose ranks are threads of this process read tensors in GPU memory. */
TSR_API tsr_status tsr_tensors_from_dlpack(tsr_tensors *tensors, const char *name, void *managed);
/* Returns a DLManagedTensor with a copy of tensor i. The caller calls its deleter; it may outlive
 * the session. */
TSR_API tsr_status tsr_tensors_to_dlpack(const tsr_tensors *tensors, size_t i, void **managed);
/* Returns the GPU of tensor i and its address there (data may be NULL); -1: it is in host memory.
 * */
TSR_API int tsr_tensors_gpu(const tsr_tensors *tensors, size_t i, const void **data);
/* Adds or replaces a string tensor. bytes NULL: the strings end at a zero. */
TSR_API tsr_status tsr_tensors_put_texts(tsr_tensors *tensors, const char *name, int rank,
                                         const int64_t *dims, const char *const *texts,
                                         const size_t *bytes);
/* Adds an empty sequence of tensors of a type and returns the set for its elements, which belongs
 * to `tensors`. elements NULL: adds an empty optional. */
TSR_API tsr_status tsr_tensors_put_sequence(tsr_tensors *tensors, const char *name, tsr_dtype type,
                                            tsr_tensors **elements);
/* Reads SET into the tensors: a file .npz, .npy or .pb, a folder test_data_set_N (named as the
 * inputs or, with `outputs`, the outputs of the model), or
 * random[:SEED][,name:1x3x224x224,...][,batch=2,...][,*=64], with shapes from the model and open
 * dimensions as given, else as *, else 1. */
TSR_API tsr_status tsr_tensors_load(tsr_tensors *tensors, const char *set, const tsr_model *model,
                                    bool outputs);
/* Writes the tensors to PATH.npy (one tensor), to a folder of output_0.pb, ... (a path without a
 * dot in its last part, or with a final slash), else to an .npz, where elements of a sequence are
 * NAME.0, ... */
TSR_API tsr_status tsr_tensors_save(const tsr_tensors *tensors, const char *path);

/* ---- 8 run ----------------------------------------------------------------------------------- */

/* How ranks on GPUs communicate. */
typedef enum tsr_gpu_transport {
    TSR_GPU_TRANSPORT_AUTO = 0,
    TSR_GPU_TRANSPORT_OWN = 1, /* ranks read each other's memory */
    TSR_GPU_TRANSPORT_NCCL = 2,
    TSR_GPU_TRANSPORT_HOST = 3 /* through pinned host memory */
} tsr_gpu_transport;
typedef struct tsr_run_options {
    size_t size;
    tsr_transport transport;
    const char *ort_ops; /* library of custom operators, or NULL */
    int optimize;        /* ONNX Runtime's optimization level 0..3, plus 1; 0: the default */
    int threads;         /* per rank; 0: max(1, cores / ranks on this host) */
    /* Longest wait in seconds for a rank without a heartbeat (0: 15), and for ranks started by hand
     * to join (0: 300). */
    double timeout_s;
    bool check_files;    /* verify all digests first */
    const char *plugins; /* folder of the MPI and UCX plug-ins; NULL: that of the library */
    /* "NPU=CPU": ranks of the first device run on the second. */
    const char *const *map_devices;
    size_t n_map_devices;
    const char *trace; /* file for tsr_job_trace; tsr_run and tsr_run_model write it themselves */
    bool no_pin;       /* do not change the cores of ranks */
    /* Compute products with 4-bit weights in float32. ONNX Runtime otherwise quantizes the other
     * factor to 8 bits at level 2 and above. tsr_verify sets it. */
    bool float_products;
    int in_flight;      /* benchmarks: runs under way at a time, 1 to 16; 0: 1 */
    const char *work;   /* folder for temporary files; NULL: /tmp */
    const char *device; /* of an unsharded model: "CUDA:0"; NULL: the CPU */
    /* "KEY=VALUE" for the execution provider of every rank that is not on the CPU. */
    const char *const *provider_options;
    size_t n_provider_options;
    bool tf32;          /* GPUs may multiply float32 in TF32: faster, relative error 1e-3 */
    bool deterministic; /* reduce in the order of the ranks: the same bits in every run */
    tsr_gpu_transport gpu_transport;   /* between ranks on GPUs */
    const char *gpu_driver, *gpu_nccl; /* libraries; NULL: libcuda.so.1 and libnccl.so.2 */
    /* Bytes that ONNX Runtime may allocate on the GPU of each rank; 0: the free memory at the
     * start, divided among the ranks that share it. */
    int64_t gpu_memory;
    /* ranks > 0: this process was started by hand as `rank` of `ranks`; must match the launcher's
     * values if there is one. */
    int rank, ranks;
    /* Name by which such ranks find each other, equal in all processes of a job; NULL: "". */
    const char *meet;
    /* Update all states in place, not only those that the model declares with equal sizes. */
    bool states_in_place;
    bool facts; /* keep what each rank used, for reports of the command */
    /* "a:4,b:4": the hosts and their numbers of ranks; NULL: this host. With `ranks`, over ucx, that
     * of rank 0 is first. Without, this host is first, and workers have the ranks of the others
     * (tsr_worker of tessera_cli.h). */
    const char *hosts;
    int port; /* ucx: port of rank 0 (0: that of the launcher, or 29500); or that of the workers */
    /* ucx: a secret shared by the ranks of the job; NULL: none, and the ranks must be on one host.
     * */
    const char *secret;
    /* ucx between hosts: network interface by name ("eth0"), address or network ("10.1.0.0/16");
     * NULL: the one that reaches rank 0. */
    const char *network_interface;
    /* Most ranks that this process starts; 0: 16 per core, at most 64; negative: no limit. */
    int most_ranks;
    /* Remote shell for hosts that have no worker, such as "ssh -o BatchMode=yes": it starts one for
     * this session. NULL: workers must be waiting. */
    const char *rsh;
} tsr_run_options;
#define TSR_RUN_OPTIONS_INIT TSR_INIT(tsr_run_options)

/* Loads ONNX Runtime for the session from `path`, or (NULL) from the usual places. Returns the path
 * and version that were found; either pointer may be NULL. Later calls do nothing. */
TSR_API tsr_status tsr_engine_open(tsr_session *session, const char *path, const char **found,
                                   const char **version);
/* Runs an unsharded model on one device and adds its outputs to `outputs`. options NULL: the
 * defaults. */
TSR_API tsr_status tsr_run_model(tsr_session *session, const char *path,
                                 const tsr_run_options *options, const tsr_tensors *inputs,
                                 tsr_tensors *outputs);
/* Runs a partition folder: all ranks, or this process's rank under a launcher. There only rank 0
 * gets the outputs. options NULL: the defaults. */
TSR_API tsr_status tsr_run(tsr_session *session, const char *folder, const tsr_run_options *options,
                           const tsr_tensors *inputs, tsr_tensors *outputs);

/* A partition or model that is loaded once and run many times. A run that fails ends the job: later
 * calls return the same error. Inputs that do not fit are refused before anything runs and do not
 * end it, except under a launcher. With the transport shm the ranks are children that end with the
 * thread that opened the job. */
typedef struct tsr_job tsr_job;
TSR_API tsr_status tsr_job_open(tsr_session *session, const char *folder,
                                const tsr_run_options *options, tsr_job **out);
TSR_API tsr_status tsr_job_open_model(tsr_session *session, const char *path,
                                      const tsr_run_options *options, tsr_job **out);
/* Finishes the runs under way and releases the job. */
TSR_API void tsr_job_close(tsr_job *job);
/* Returns the number of ranks; *here: ranks in this process or its children. here may be NULL. */
TSR_API int tsr_job_ranks(const tsr_job *job, int *here);
/* Returns the number of runs that were started and not waited for. */
TSR_API int tsr_job_under_way(const tsr_job *job);
/* Runs once: tsr_job_start and tsr_job_wait. */
TSR_API tsr_status tsr_job_run(tsr_job *job, const tsr_tensors *inputs, tsr_tensors *outputs);
/* Starts a run. Up to 16 can be under way; each rank works on one at a time. The inputs must stay
 * valid and unchanged until the run is waited for. */
TSR_API tsr_status tsr_job_start(tsr_job *job, const tsr_tensors *inputs);
/* Waits for the oldest run and adds its outputs to `outputs`, which may be NULL. A GPU tensor that
 * the set holds under the name of an output receives that output in place. */
TSR_API tsr_status tsr_job_wait(tsr_job *job, tsr_tensors *outputs);
/* Declares a state before the first run: output `present` of each run becomes input `past` of the
 * next without a copy, and is no longer returned. The first run needs the input; later runs may
 * give it to start again. */
TSR_API tsr_status tsr_job_add_state(tsr_job *job, const char *past, const char *present);
/* Writes the trace of all runs so far to the file named in the options: JSON for Perfetto or
 * chrome://tracing. Can be called once. Under a launcher all ranks call it and rank 0 writes. */
TSR_API tsr_status tsr_job_trace(tsr_job *job);
/* Waits until every rank has finished every run started so far, without collecting results. Under a
 * launcher all ranks call it after the same number of runs; a rank that does not is TSR_PEER. */
TSR_API tsr_status tsr_job_barrier(tsr_job *job);

/* The processes of a job as a group, to coordinate before a job is opened: rank 0 plans and
 * partitions, the others wait and then load (examples/rank0_partitions.c). The processes are found
 * as by tsr_job_open, and the connections stay with the session, where later jobs use them. Without
 * a launcher and without `ranks` in the options, and with the transport threads, the group is this
 * process alone. All ranks make the same calls in the same order. If one ends, fails or makes
 * another call, the others get TSR_PEER or its status, and later calls and jobs of the session
 * fail. */
typedef struct tsr_process_group tsr_process_group;
TSR_API tsr_status tsr_process_group_join(tsr_session *session, const tsr_run_options *options,
                                          tsr_process_group **out);
/* Return the rank of this process, from 0, and the number of ranks. */
TSR_API int tsr_process_group_rank(const tsr_process_group *group);
TSR_API int tsr_process_group_size(const tsr_process_group *group);
/* Returns when all ranks have called it. */
TSR_API tsr_status tsr_process_group_barrier(tsr_process_group *group);
/* Copies `bytes` from the buffer of rank `root` to all others; bytes and root are equal on all
 * ranks. */
TSR_API tsr_status tsr_process_group_broadcast(tsr_process_group *group, void *buffer, size_t bytes,
                                               int root);
/* Reports a failure of this rank outside of these calls to the other ranks, which would wait for it:
 * their calls return `status`, with the last diagnostic of this session. Returns the status, or that
 * of another rank that failed before. Does nothing for TSR_OK. */
TSR_API tsr_status tsr_process_group_end(tsr_process_group *group, tsr_status status);
/* Releases the handle without waiting for other ranks. */
TSR_API void tsr_process_group_leave(tsr_process_group *group);

/* ---- 9 verify -------------------------------------------------------------------------------- */

typedef struct tsr_verify_options {
    size_t size;
    const char *config;         /* NULL: the only one */
    const char *inputs;         /* SET as in tsr_tensors_load; NULL: random */
    double tolerance;           /* largest max_rel; 0: by type, 5e-5 for float32 */
    const char *work;           /* folder for temporary files; NULL: /tmp */
    const tsr_run_options *run; /* NULL: the defaults */
    size_t random;              /* number of random shardings to try instead; 0: none */
    uint64_t seed;              /* of the first random sharding */
    int64_t devices;            /* random: devices of a new configuration; 0: that of config */
    /* Plan first, for the sizes of the inputs, into `config`; NULL: use the shardings of the model.
     * */
    const tsr_plan_options *plan;
    bool reference_cpu; /* run the unsharded model on the CPU; else on the ranks' kind of device */
    const tsr_topology *topology; /* random: names of the new configuration's devices; NULL: none */
    bool allow_unsharded;         /* plan: TSR_OK, not TSR_INVALID, if nothing can be sharded */
} tsr_verify_options;
#define TSR_VERIFY_OPTIONS_INIT TSR_INIT(tsr_verify_options)

/* The difference of one output. */
typedef struct tsr_difference {
    size_t size;
    const char *name;
    double max_abs, max_rel; /* max_rel: relative to the largest magnitude; NaN: not a number */
    bool ok;                 /* within tolerance */
} tsr_difference;
#define TSR_DIFFERENCE_INIT TSR_INIT(tsr_difference)
/* The first value, in node order, that is out of tolerance. value is NULL if all are within. */
typedef struct tsr_first_difference {
    size_t size;
    const char *value, *node, *op;
    int64_t node_index;
    int64_t rank; /* a rank that has the element with the largest difference; -1: not known */
    double max_rel;
} tsr_first_difference;
#define TSR_FIRST_DIFFERENCE_INIT TSR_INIT(tsr_first_difference)
/* One random sharding that was tried. */
typedef struct tsr_verify_trial {
    size_t size;
    bool ok;
    int recorded;         /* as in tsr_verify_facts */
    tsr_status status;    /* TSR_OK, TSR_DIFFERENT, or why it did not run */
    const char *sharding; /* the edits that repeat it, as `tessera annotate --script` reads them */
    const char
        *refused; /* TSR_UNSUPPORTED: why; such a trial counts neither as success nor as failure */
    size_t n_outputs;
} tsr_verify_trial;
#define TSR_VERIFY_TRIAL_INIT TSR_INIT(tsr_verify_trial)
typedef struct tsr_verify_facts {
    size_t size;
    bool ok;
    int recorded;      /* 1: equal to the recorded outputs, 0: different, -1: none were recorded */
    bool forced;       /* the best plan shards nothing, so another plan was verified */
    bool assumed;      /* plan: the devices are assumed */
    int64_t open_size; /* size given to open dimensions of random inputs; 0: no open ones */
    size_t n_outputs, n_trials, n_refused;
    const tsr_dim_size *sizes; /* of the symbolic dimensions of the inputs */
    size_t n_sizes;
    int64_t planned_size; /* plan: size that it assumes for open dimensions; 0: no open ones */
} tsr_verify_facts;
#define TSR_VERIFY_FACTS_INIT TSR_INIT(tsr_verify_facts)

typedef struct tsr_verify_result tsr_verify_result;
/* Shards a model, runs it sharded and unsharded with the same inputs, and compares. options NULL:
 * the defaults. TSR_DIFFERENT: an output is out of tolerance. With random shardings a failed trial
 * does not end the others, and the status is that of the first failure. *out is set with TSR_OK,
 * with TSR_DIFFERENT, and whenever there were trials; out may be NULL. */
TSR_API tsr_status tsr_verify(tsr_session *session, const char *model,
                              const tsr_verify_options *options, tsr_verify_result **out);
TSR_API void tsr_verify_result_free(tsr_verify_result *result);
TSR_API tsr_status tsr_verify_result_about(const tsr_verify_result *result, tsr_verify_facts *out);
#define TSR_NO_TRIAL SIZE_MAX
/* Reads random trial `trial`. */
TSR_API tsr_status tsr_verify_result_trial(const tsr_verify_result *result, size_t trial,
                                           tsr_verify_trial *out);
/* Reads output i of a trial; TSR_NO_TRIAL: of the model's own sharding, as in the next two. */
TSR_API tsr_status tsr_verify_result_output(const tsr_verify_result *result, size_t trial, size_t i,
                                            tsr_difference *out);
/* Reads the first difference of a trial. */
TSR_API tsr_status tsr_verify_result_first(const tsr_verify_result *result, size_t trial,
                                           tsr_first_difference *out);
/* Returns the partition of a trial, which belongs to the result; NULL: there is no such trial. */
TSR_API const tsr_partition_result *tsr_verify_result_partition(const tsr_verify_result *result,
                                                                size_t trial);

/* ---- 10 topology ----------------------------------------------------------------------------- */

/* Creates the topology that a user's text names, as --devices takes it:
 *   devices of this machine: "cuda:4", "cuda:2@1" (two ranks on GPU 1), "CUDA:0,CPU", "auto"
 *   what tsr_topology_parse reads
 *   a JSON file, or a planned model (.onnx; TSR_INVALID if it has no topology)
 * "auto:" before any of these lets the planner choose the number of devices. driver and nccl are
 * the libraries gpu_driver and gpu_nccl of tsr_run_options; NULL: the defaults. */
TSR_API tsr_status tsr_topology_find(tsr_session *session, const char *text, const char *driver,
                                     const char *nccl, tsr_topology **out);
/* Creates a topology from text: "4", "cpu:4" or "full:4" (all linked), "ring:4", "star:4@1" (centre
 * 1), "tree:2x3" (2 children with 3 each), "torus:3x3x3", "grid:2x4", "hosts:2x8" (2 hosts of 8),
 * "hosts:2x2x4" (racks, hosts, devices), a box with published figures "h100:8" or "hosts:2xh100:8",
 * an adjacency list "{4, [[1],[2],[3],[0]]}", or a JSON document. Odd lists are a warning.
 * TSR_MALFORMED: the text has another form. */
TSR_API tsr_status tsr_topology_parse(tsr_session *session, const char *text, tsr_topology **out);
TSR_API void tsr_topology_free(tsr_topology *topology);
/* Returns the number of devices. */
TSR_API int tsr_topology_devices(const tsr_topology *topology);
/* Returns true if the speeds are assumed, from a table or data sheet: for a number of devices, a
 * text such as "ring:4", and a box. False: measured, found on this machine, or described in a
 * file. */
TSR_API bool tsr_topology_is_assumed(const tsr_topology *topology);

typedef struct tsr_device_facts {
    size_t size;
    const char *name;
    int64_t memory;   /* bytes */
    double flops;     /* float32 operations per second */
    double bandwidth; /* of its memory, bytes per second */
    double overhead;  /* seconds per node besides its work */
} tsr_device_facts;
#define TSR_DEVICE_FACTS_INIT TSR_INIT(tsr_device_facts)
/* Reads device i. */
TSR_API tsr_status tsr_topology_device_facts(const tsr_topology *topology, int i,
                                             tsr_device_facts *out);

typedef struct tsr_measure_options {
    size_t size;
    int devices;                /* ranks on this host; 0: one per core, or the launcher's */
    double seconds;             /* approximate duration; 0: 5 */
    const tsr_run_options *run; /* transport, threads, timeout; NULL: the defaults */
    const char *model;          /* model whose nodes are measured as well; NULL: none */
    const char *inputs;         /* of the model: SET as in tsr_tensors_load; NULL: random */
} tsr_measure_options;
#define TSR_MEASURE_OPTIONS_INIT TSR_INIT(tsr_measure_options)
/* Measures the devices of this machine and the links between them, as ONNX Runtime and the
 * transport reach them. options NULL: the defaults. Under a launcher every rank calls it, and *out
 * is NULL on all but rank 0. */
TSR_API tsr_status tsr_topology_measure(tsr_session *session, const tsr_measure_options *options,
                                        tsr_topology **out);

/* Returns the topology that tsr_plan stored with a configuration of the model (NULL: the only one).
 * *out is NULL if it has none. TSR_INVALID (topology-misfit): the number of devices differs. */
TSR_API tsr_status tsr_model_topology(tsr_model *model, const char *config, tsr_topology **out);

/* ---- 11 simulate, report --------------------------------------------------------------------- */

typedef struct tsr_simulate_options {
    size_t size;
    const char *config;        /* NULL: the only one of the model */
    tsr_topology *topology;    /* NULL: that of the plan, else devices of one host */
    const tsr_dim_size *sizes; /* of symbolic dimensions; 128 if not given */
    size_t n_sizes;
    int requests;    /* runs that follow each other through the devices; 0: 1 */
    bool one_device; /* also predict the time on one device */
} tsr_simulate_options;
#define TSR_SIMULATE_OPTIONS_INIT TSR_INIT(tsr_simulate_options)

/* Predicted use of a device. Times are in seconds, over all requests; memory in bytes. */
typedef struct tsr_simulated_device {
    size_t size;
    double compute, communication, waiting, idle;
    int64_t weights; /* bytes of constants */
    int64_t memory;  /* peak memory of tensors, constants included */
    int64_t peak;    /* peak memory of the process */
    /* Parts of `compute`: compute-bound nodes, bandwidth-bound nodes, overhead of the engine. */
    double arithmetic, moving, overhead;
} tsr_simulated_device;
#define TSR_SIMULATED_DEVICE_INIT TSR_INIT(tsr_simulated_device)

typedef struct tsr_simulation_facts {
    size_t size;
    size_t devices;
    int requests;
    double seconds; /* until the last request ends */
    double first;   /* until the first request ends */
    double period;  /* between the ends of the last two requests; one request: seconds */
    size_t unsized; /* nodes with an unknown size, counted as 1 */
    bool assumed;   /* the devices are assumed */
    double device_flops;
    double one_device_s; /* on the fastest device alone; 0: not asked for */
    int64_t one_device_memory;
} tsr_simulation_facts;
#define TSR_SIMULATION_FACTS_INIT TSR_INIT(tsr_simulation_facts)

typedef struct tsr_simulation tsr_simulation;
/* Predicts the run of an annotated model on devices that need not exist, with the cost model of the
 * planner. options NULL: the defaults. */
TSR_API tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options,
                                tsr_simulation **out);
TSR_API void tsr_simulation_free(tsr_simulation *simulation);
TSR_API tsr_status tsr_simulation_about(const tsr_simulation *simulation,
                                        tsr_simulation_facts *out);
TSR_API tsr_status tsr_simulation_device(const tsr_simulation *simulation, size_t i,
                                         tsr_simulated_device *out);

typedef struct tsr_report_options {
    size_t size;
    const char *title;            /* NULL: the file of the model */
    const char *config;           /* NULL: the only one of the model, or none */
    const tsr_topology *topology; /* NULL: not shown, as the next three */
    const tsr_plan_result *plan;
    const tsr_simulation *simulation;
    const char *trace;         /* file of tsr_job_trace, shown next to the simulation */
    const tsr_dim_size *sizes; /* of symbolic dimensions, besides those of the plan */
    size_t n_sizes;
    int64_t memory;      /* limit of each device; 0: that of the topology */
    const char *command; /* command line that writes the page again; NULL: not shown */
} tsr_report_options;
#define TSR_REPORT_OPTIONS_INIT TSR_INIT(tsr_report_options)
/* Writes one HTML page that needs no other file: verdict, memory, time, communication, shardings,
 * timeline, and the diagnostics of the session. options NULL: the defaults. */
TSR_API tsr_status tsr_report(tsr_model *model, const tsr_report_options *options,
                              const char *path);

/* ---- 12 generation --------------------------------------------------------------------------- */

/* A folder with a language model, its tokenizer and configuration: genai_config.json of
 * onnxruntime-genai, or config.json and model.onnx of Optimum. */
typedef struct tsr_folder tsr_folder;
/* Returns true if the path is such a folder. */
TSR_API bool tsr_is_genai_folder(const char *path);
TSR_API tsr_status tsr_folder_open(tsr_session *session, const char *path, tsr_folder **out);
TSR_API void tsr_folder_free(tsr_folder *folder);
/* Returns the path of its model. */
TSR_API const char *tsr_folder_model(const tsr_folder *folder);

typedef struct tsr_folder_options {
    size_t size;
    int64_t devices;
    bool force; /* replace an existing folder */
    const char
        *plugins; /* folder of libtessera_ops.so and the plug-ins; NULL: that of the library */
    tsr_topology *topology; /* NULL: `devices` equal devices */
} tsr_folder_options;
#define TSR_FOLDER_OPTIONS_INIT TSR_INIT(tsr_folder_options)
/* Writes out/rank0, ...: one generation folder per device, which a stock onnxruntime-genai loads in
 * one process each. Every rank returns the logits. Needs genai_config.json. result may be NULL.
 * TSR_UNSUPPORTED: the model has fewer key heads than devices. */
TSR_API tsr_status tsr_folder_partition(tsr_folder *folder, const char *out,
                                        const tsr_folder_options *options,
                                        tsr_partition_result **result);

#define TSR_NO_TOKENS (-1)
typedef struct tsr_generate_options {
    size_t size;
    int64_t devices;    /* 0 or 1: unsharded */
    int64_t max_tokens; /* most new tokens; 0: 64; TSR_NO_TOKENS: none, only check the prompt */
    /* Sampling temperature; 0: 1 if top_k or top_p is set, else greedy decoding. */
    double temperature;
    int64_t top_k;              /* sample from the k most likely tokens; 0: from all */
    double top_p;               /* nucleus sampling threshold; 0: none */
    uint64_t seed;              /* random seed for sampling */
    const char *work;           /* folder for temporary files; NULL: /tmp */
    const tsr_run_options *run; /* NULL: the defaults */
    bool past_end;              /* continue after the end token, for benchmarks */
    tsr_topology *topology;     /* NULL: `devices` equal devices */
} tsr_generate_options;
#define TSR_GENERATE_OPTIONS_INIT TSR_INIT(tsr_generate_options)
typedef struct tsr_generate_result {
    size_t size;
    int64_t tokens; /* number of new tokens */
    double first_s; /* seconds until the first token */
    double seconds; /* until the last */
    /* Predicted picoseconds per token on the devices, and on one; 0: not planned, or does not fit.
     * */
    int64_t predicted, one_device;
    int64_t devices; /* that the plan uses */
} tsr_generate_result;
#define TSR_GENERATE_RESULT_INIT TSR_INIT(tsr_generate_result)
typedef bool (*tsr_token_fn)(void *data, int64_t token); /* gets each token; false: stop */
/* Plans, shards and runs the model to continue a prompt of n tokens until the end token, which is
 * passed on too. `take` is called in the calling thread. options NULL: the defaults; take and
 * result may be NULL. Under a launcher every rank calls it, and `take` is called on rank 0 only. */
TSR_API tsr_status tsr_generate(tsr_folder *folder, const int64_t *ids, size_t n,
                                const tsr_generate_options *options, tsr_token_fn take, void *data,
                                tsr_generate_result *result);
/* As tsr_generate for several prompts, with the model loaded once. The folder and the texts in the
 * options must outlive the generator. */
typedef struct tsr_generator tsr_generator;
TSR_API tsr_status tsr_generator_open(tsr_folder *folder, const tsr_generate_options *options,
                                      tsr_generator **out);
TSR_API tsr_status tsr_generator_run(tsr_generator *generator, const int64_t *ids, size_t n,
                                     tsr_token_fn take, void *data, tsr_generate_result *result);
TSR_API void tsr_generator_close(tsr_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
