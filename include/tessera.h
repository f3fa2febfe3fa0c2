/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera.h - the interface of libtessera for applications, and its manual. Walking, editing and
 * annotating graphs is in tessera_graph.h.
 *
 * Tessera takes an ONNX model, picks or is given a sharding for every tensor, checks it, writes one
 * ordinary ONNX file per device and runs them together.
 *
 * The parts, in the order of the data flow:
 *   1 basics         status, session, memory, diagnostics
 *   2 models         load, save, clone
 *   3 types          element types, dimensions
 *   4 check, infer   diagnostics about annotations; completing them
 *   5 plan           a sharding for every node: the fastest that fits the memory
 *   6 partition      one ONNX file per device
 *   7 run, verify    ONNX Runtime on several ranks; sharded against unsharded
 *   8 topology       devices and the links between them
 *   9 simulate       predicted times on devices that need not exist; a report as one page
 *  10 folders        generation folders of onnxruntime-genai and Optimum
 *
 * Ownership. A session owns findings; a model owns everything reached from it (graphs, nodes, values,
 * configurations, texts). Pointers stay valid until tsr_model_free; removed objects stay readable until
 * then. Texts given to the library are copied. Texts returned are owned by their object, NUL-terminated,
 * and valid until the object changes or its model is freed. Functions with an `out` parameter write it
 * only on success.
 *
 * Failure. Functions that can fail return tsr_status; the first that knows the cause adds one finding to
 * the session, callers pass the status up. Queries return NULL, 0 or -1 where there is nothing. NULL
 * handles are a programming error unless a function says otherwise; another NULL that a call cannot do without is TSR_INVALID
 * (argument-invalid), or NULL, 0 or false where the call gives no status.
 *
 * Threads. One session and all that was made with it belong to one thread at a time; different sessions
 * do not meet (no mutable globals), and calls refuse handles of another (TSR_INVALID; tsr_report_side may have its own). tsr_run starts its own threads and joins them before it returns.
 *
 * ABI. Structs that callers fill start with `size`: set it to sizeof, zero the rest; fields are only
 * ever appended. Enumerators keep their numbers. Opaque structs may change. The soname changes with
 * the first number of the version from 1.0 on; before that, with the second.
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

/* ---- 1 basics -------------------------------------------------------------------------------- */

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0

/* "0.1.0": of the library that is loaded, not of this header. */
TSR_API const char *tsr_version(void);

typedef enum tsr_status {
    TSR_OK = 0,
    TSR_NOMEM = 1,     /* out of memory, or over the session's memory limit */
    TSR_IO = 2,        /* a file could not be read */
    TSR_WRITE = 3,     /* a file could not be written; nothing was left half-written */
    TSR_MALFORMED = 4, /* bytes that are not what they should be */
    /* a well-formed thing that may not be so: bad argument, refused edit, errors found */
    TSR_INVALID = 5,
    TSR_UNSUPPORTED = 6, /* right, but not done here */
    TSR_INFEASIBLE = 7,  /* nothing fits the limits */
    TSR_ENGINE = 8,      /* ONNX Runtime, a provider or a plug-in is absent, or refused the model */
    TSR_PEER = 9,        /* a rank or the network failed */
    TSR_DIFFERENT = 10,  /* verify: cut and whole differ */
    TSR_USAGE = 11,      /* wrong use: another number of ranks than the partition has */
    TSR_BUG = 12,        /* our mistake */
    TSR_CANCELLED = 13   /* tsr_session_cancel was called */
} tsr_status;

/* What the status means, in a few words; a static text, also for numbers that are none. */
TSR_API const char *tsr_status_text(tsr_status status);

typedef struct tsr_session tsr_session;

/* Allocates (old NULL), resizes, or frees (bytes 0). Returns NULL on failure; then old is untouched. */
typedef void *(*tsr_alloc_fn)(void *data, void *old, size_t old_bytes, size_t bytes);
typedef void (*tsr_progress_fn)(void *data, const char *what, uint64_t done, uint64_t total);

typedef struct tsr_session_options {
    size_t size;
    tsr_alloc_fn alloc; /* NULL: malloc */
    void *alloc_data;
    size_t memory_limit; /* bytes the session may hold at a time; 0: no limit */
    tsr_progress_fn progress;
    void *progress_data;
} tsr_session_options;

/* NULL options are the defaults. NULL on lack of memory. */
TSR_API tsr_session *tsr_session_new(const tsr_session_options *options);
/* After everything that was made with it. NULL is fine. */
TSR_API void tsr_session_free(tsr_session *session);

/* Asks the work that the session is doing, and all later work, to end soon: from another thread, or from a signal handler. A
 * plan gives the best that it has found; all else stops between two of its steps, leaves nothing half-written and returns
 * TSR_CANCELLED. on false takes it back. */
TSR_API void tsr_session_cancel(tsr_session *session, bool on);

typedef enum tsr_severity {
    TSR_ERROR = 0,
    TSR_WARNING = 1,
    TSR_NOTE = 2,
    TSR_SEVERITY_COUNT = 3
} tsr_severity;

#define TSR_MAX_FINDINGS 1000 /* further ones are counted, not kept */

/* One finding. Texts are never NULL (empty where absent); node_index, rank -1, axis INT64_MIN and
 * offset UINT64_MAX mean "not known". */
typedef struct tsr_finding {
    const char *code; /* kebab-case, stable */
    tsr_severity severity;
    const char *message, *hint;
    const char *file, *graph, *node, *op, *value, *configuration;
    uint64_t offset;
    int64_t node_index, axis, rank;
} tsr_finding;

/* Findings that are kept; and all of a severity, dropped ones included. */
TSR_API size_t tsr_finding_count(const tsr_session *session);
TSR_API size_t tsr_finding_total(const tsr_session *session, tsr_severity severity);
/* The i-th, below the count, in the order in which they were added. Its texts are the session's until cleared. */
TSR_API tsr_finding tsr_finding_at(const tsr_session *session, size_t i);
/* Forgets all findings and their counts. */
TSR_API void tsr_finding_clear(tsr_session *session);
/* The finding as people read it, lines with a newline each; owned by the session until cleared. */
TSR_API const char *tsr_finding_text(tsr_session *session, size_t i);

/* All codes that exist: code, title and explanation of the i-th; false past the end. */
TSR_API bool tsr_code_at(size_t i, const char **code, tsr_severity *severity, const char **title,
                         const char **explanation);

/* ---- 2 models -------------------------------------------------------------------------------- */

typedef struct tsr_model tsr_model;

/* Maps the file; strings and weights stay views into it. Every readable model can be loaded, valid or not. */
TSR_API tsr_status tsr_model_load(tsr_session *session, const char *path, tsr_model **out);
/* From memory that must outlive the model. Such a model has no folder, so no external data. */
TSR_API tsr_status tsr_model_load_bytes(tsr_session *session, const void *bytes, size_t n,
                                        tsr_model **out);
TSR_API void tsr_model_free(tsr_model *model); /* NULL is fine */
/* A deep copy whose references point into the copy (weights are shared views). */
TSR_API tsr_status tsr_model_clone(const tsr_model *model, tsr_model **out);

/* Writes path whole or not at all. What was not changed keeps its bytes; an untouched model is written as it
 * was read. Refuses to overwrite the file it was loaded from (finding output-is-input). Annotations need IR 11:
 * ir_version is raised where it is lower. A spec without value or a nameless value is refused only if it was
 * made here; what came from a file goes back as it came. */
TSR_API tsr_status tsr_model_save(tsr_model *model, const char *path);
/* The same into memory owned by the session; free with tsr_bytes_free. */
TSR_API tsr_status tsr_model_save_bytes(tsr_model *model, void **bytes, size_t *n);
TSR_API void tsr_bytes_free(tsr_session *session, void *bytes, size_t n);

/* Copies the external data files that the model names into the folder of path (existing ones are replaced whole), so
 * that a model saved there finds them. A folder that is the model's own needs nothing. */
TSR_API tsr_status tsr_model_copy_data(tsr_model *model, const char *path);

TSR_API tsr_session *tsr_model_session(const tsr_model *model);
TSR_API const char *tsr_model_path(const tsr_model *model); /* "" if not from a file */

/* ---- 3 types -------------------------------------------------------------------------------- */

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

TSR_API const char *tsr_dtype_name(tsr_dtype type); /* "float32", "int64", ... */
TSR_API int tsr_dtype_bits(tsr_dtype type);         /* bits of one element; 0: string or unknown */
/* Bytes of n elements packed as raw_data is; -1: overflow, string or unknown type. */
TSR_API int64_t tsr_dtype_bytes(tsr_dtype type, int64_t n);

/* One dimension: value >= 0, else named by symbol (an expression of the exporter, such as "past + 1"),
 * else unknown (value -1, symbol ""). */
typedef struct tsr_dim {
    int64_t value;
    const char *symbol;
} tsr_dim;

typedef struct tsr_group {
    const int64_t *devices;
    size_t n;
} tsr_group;

typedef struct tsr_topology tsr_topology; /* section 8 */

/* A size for an open dimension: "batch" = 1, or "x.0" = 1 where the model leaves it unnamed (tsr_value_dim_name). */
typedef struct tsr_dim_size {
    const char *name;
    int64_t size;
} tsr_dim_size;

/* ---- 4 check, infer ------------------------------------------------------------------------- */

/* Adds rows for operators of one's own, for everything that the session does from now on: a line each, as `tessera rules` prints
 * them: "Twice my.ops 1 [A*] -> [A*]"; # begins a comment. All or none are taken. An operator that has a rule keeps it.
 * TSR_MALFORMED: a line is no row (finding rule-text). Of the clauses red, rep, blk, gen, drop, shape, once and attr are known. */
TSR_API tsr_status tsr_rules_add(tsr_session *session, const char *rows);
/* The same from a file. */
TSR_API tsr_status tsr_rules_read(tsr_session *session, const char *path);

typedef struct tsr_shapes_summary {
    size_t size;
    size_t values; /* that nodes make, subgraphs included */
    size_t typed;  /* element type known */
    size_t ranked; /* number of dimensions known */
    size_t fixed;  /* all of them numbers or expressions of symbols */
} tsr_shapes_summary;
/* Finds types and shapes of all values of the main graph and its subgraphs and writes them into the model: value_info,
 * inputs and outputs. What is declared is completed, never replaced, except that symbols named in sizes become numbers
 * (names that the model lacks: error dim-unknown). A declaration that an operator contradicts stays and is a warning
 * (shape-contradiction). summary may be NULL. */
TSR_API tsr_status tsr_shapes(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                              tsr_shapes_summary *summary);

/* Adds every finding about the annotations; TSR_OK even if there are errors (count them). config NULL: all. */
TSR_API tsr_status tsr_check(tsr_model *model, const char *config);
/* The same by the published formalism. An input without a sharding is not brought to what the others demand: it is sharded as
 * its producer left it, or unsharded if it is an input of the model. Nodes without any sharding are checked too. Inputs
 * that then do not agree, or have no device in common, are an error. Initializers are exempt: each device stores what it needs.
 * So are unsharded values that another pipeline stage hands over. */
TSR_API tsr_status tsr_check_formalism(tsr_model *model, const char *config);
/* Completes one configuration (NULL: the only one): every layout that follows from the explicit specs becomes a spec of
 * its node. Explicit ones are never changed; the result passes tsr_check; a second call changes nothing. A model
 * whose check has errors is refused (TSR_INVALID). */
TSR_API tsr_status tsr_infer(tsr_model *model, const char *config);
/* The same; with propagate, shardings also go backwards and sideways until nothing changes: what a node needs of an input
 * becomes the sharding of the output that it reads, so that producers are cut too and other readers follow. Conflicts are
 * resolved in this order: explicit shardings (never overridden); what arrives at the producer; what other readers, model outputs
 * and subgraphs have in place; then the first reader in the order of the nodes. A need that is not met is a note
 * (demand-dropped). Model inputs stay whole, initializers follow their readers. */
TSR_API tsr_status tsr_infer_opts(tsr_model *model, const char *config, bool propagate);
/* tsr_infer by the published formalism: an input without a sharding gets that of its producer, whatever the other inputs
 * demand. A model in which tsr_check_formalism finds errors is refused (TSR_INVALID) and not changed. */
TSR_API tsr_status tsr_infer_formalism(tsr_model *model, const char *config);

/* ---- 5 plan --------------------------------------------------------------------------------- */

typedef struct tsr_collective_count {
    const char *op;
    size_t count; /* in the plan, not per rank */
} tsr_collective_count;
typedef enum tsr_objective {
    TSR_LATENCY,    /* one run, from its inputs to its outputs */
    TSR_THROUGHPUT, /* many runs, one behind the other: what the slowest stage takes for one */
} tsr_objective;
#define TSR_STAGES_AUTO (-1)
typedef struct tsr_plan_options {
    size_t size;
    int64_t devices;        /* so many, linked as on one host; unless there is a topology */
    tsr_topology *topology; /* NULL: none */
    /* Bytes on each device. 0: as the devices have it; where that is only the table's word (a number of devices, a generator) and
     * nothing fits, the plan may need more, with a warning. INT64_MAX: no limit. */
    int64_t memory;
    /* for open dimensions; one without a size is assumed to be 128 and is not sharded */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    /* of the configuration to make, or to complete; NULL: the only one of so many devices, else
     * planN */
    const char *config;
    const char *
        export_lp; /* file for the 0-1 program, or NULL; with stages one for each: "p.lp" becomes p.0.lp, p.1.lp */
    /* a node's name or one of its outputs: its candidates are told; or NULL */
    const char *explain;
    int64_t stages; /* pipeline stages: 0 none, K, or TSR_STAGES_AUTO: as many as are best */
    tsr_objective objective; /* what stages are chosen for */
    /* Another model of the same weights that runs on the same devices (decode beside prefill), or NULL: both are planned at once,
     * and a weight that both have lies the same in both. It may be loaded from the same file, with other sizes. */
    tsr_model *with;
    const tsr_dim_size *with_sizes;
    size_t n_with_sizes;
    int64_t steps; /* runs of `with` for each run of the model; 0: 1 */
    /* "past=present", as in tsr_partition_options: an output that is the input of the next run stays where it is made, and is read
     * there. Of a model planned with another, which has the state, outputs of those names stay cut and lie as that one reads them.
     * Written into the metadata, where tsr_partition finds it. */
    const char *const *state;
    size_t n_state;
    /* Stop after so many seconds with the best plan so far, its bound and its gap. 0: a budget that counts work and not seconds, so
     * that the same model gives the same plan on every machine. */
    double seconds;
} tsr_plan_options;

/* A tensor of the explained node in one of its ways. */
typedef struct tsr_plan_tensor {
    const char *value;
    const char *sharding; /* "{1,2:0,1}", as --shard takes it */
    bool in_parts;        /* its devices hold parts of a sum that is taken later */
} tsr_plan_tensor;

/* One way to run the explained node. */
typedef struct tsr_plan_choice {
    const char *name;               /* the factors of its rule that are cut: "m/4", "whole" */
    bool chosen, feasible;          /* not feasible: no plan has it within the limits */
    int64_t cost;                   /* of the best plan in which the node runs so, picoseconds */
    int64_t compute, communication; /* of the node alone */
    int64_t weights;                /* bytes of constants on a device */
    /* As the node needs its inputs and gives its outputs, reductions done; absent ones are left out. */
    const tsr_plan_tensor *inputs, *outputs;
    size_t n_inputs, n_outputs;
    /* what follows the node: "AllReduce", "ReduceScatter" ...; NULL: nothing */
    const char *reduction;
} tsr_plan_choice;

/* A value and its bytes on the fullest device at the worst time of the plan that needs the least memory. */
typedef struct tsr_plan_binding {
    const char *value;
    int64_t bytes;
} tsr_plan_binding;

/* A pipeline stage: nodes that follow one another, and the devices that share them. */
typedef struct tsr_plan_stage {
    const int64_t *devices;
    size_t n_devices;
    size_t nodes;        /* that run in it */
    int64_t first, last; /* of them, by index in the graph */
    int64_t time;        /* picoseconds of its nodes and of communication among its devices */
    int64_t transfer;    /* of what other stages give it, and of outputs that go to device 0 */
    int64_t memory;      /* bytes on its fullest device at the worst time */
} tsr_plan_stage;

/* What one of two models that were planned together comes to. */
typedef struct tsr_plan_part {
    const char *config;
    int64_t cost;          /* picoseconds of one run */
    const int64_t *memory; /* bytes on each device at the worst time */
    const tsr_collective_count *collectives;
    size_t n_collectives;
    size_t nodes, cut_nodes;
} tsr_plan_part;

/* The best plan on so many devices. */
typedef struct tsr_plan_count {
    int64_t devices; /* or ranks, where faster devices have several */
    bool ranks;      /* they do */
    bool chosen;
    bool fits;    /* into their memory; else cost is 0, or that of a plan that needs more */
    int64_t cost; /* as that of the summary */
} tsr_plan_count;

/* Owned by the session until the next plan. */
typedef struct tsr_plan_summary {
    size_t size;
    size_t devices;
    bool feasible, optimal;
    /* picoseconds of one run: of the plan, and what no plan of these candidates is below */
    int64_t cost, bound;
    double gap;
    double solve_ms;
    const int64_t *memory; /* bytes on each device at the worst time */
    const tsr_collective_count *collectives;
    size_t n_collectives;
    int64_t needs_bytes; /* not feasible: the least memory on each device that would do */
    const char *config;
    size_t nodes, cut_nodes;
    const tsr_plan_choice *choices; /* of the explained node */
    size_t n_choices;
    /* not feasible: what fills the fullest device, largest first */
    const tsr_plan_binding *binding;
    size_t n_binding;
    /* picoseconds of one run on one of the devices; 0: it does not fit, or nodes are kept cut */
    int64_t one_device;
    tsr_objective objective;
    const tsr_plan_stage *stages; /* in line */
    size_t n_stages;              /* 0: none were asked for */
    int64_t latency, period; /* with stages: of one run; between runs that follow one another */
    /* Planned with another model: what each comes to, the other second; cost is that of one run of the first and `steps` of
     * the other, the rest is the first's. */
    const tsr_plan_part *parts;
    size_t n_parts;
    size_t shared; /* weights that both have */
    /* bytes that a device's process will have: memory, what arenas lose, the engine's own */
    const int64_t *peak;
    /* fewer devices that would be no slower, and the time then; 0: none were found */
    int64_t better_devices, better_cost;
    /* not feasible: so many devices of the same memory would do; 0: not known */
    int64_t fits_devices;
    /* predicted, of one run: of the model's own plan, without those of another */
    double milliseconds;
    int64_t used_devices; /* so many work, the others are idle */
    int64_t copies;       /* blocks of devices that do the same, each with a share of the batch */
    bool stopped;         /* by its seconds or by tsr_session_cancel, before the budget was spent */
    /* Of a topology with choices: what each of them would take. */
    const tsr_plan_count *tried;
    size_t n_tried;
    bool assumed;        /* as tsr_topology_is_assumed; true for a number of devices */
    double device_flops; /* of the first device, float32 operations per second */
    /* not feasible: the search ended before it found a plan or proved that there is none */
    bool undecided;
} tsr_plan_summary;

/* Chooses a sharding for every node, such that one run takes the least predicted time and each device has the memory, and
 * writes it into the model. Shardings that the model has in that configuration are kept. The time is arithmetic / speed + bytes touched / memory bandwidth of the
 * slowest device for each node, and the price of each communication on the topology. Deterministic.
 * TSR_INFEASIBLE: nothing fits the memory; the model is as it was, summary says what would do. */
TSR_API tsr_status tsr_plan(tsr_model *model, const tsr_plan_options *options,
                            tsr_plan_summary *summary);

/* Writes the plan that the model has just been given as a JSON document (docs/formats.md): options, summary, the digest of the file that it
 * was read from, and each node's shardings as edits. The same plan gives the same bytes. */
TSR_API tsr_status tsr_plan_save(tsr_model *model, const tsr_plan_options *options,
                                 const tsr_plan_summary *summary, const char *path);
/* The edits of such a document, as lines that `tessera annotate --script` takes. Owned by the session until the next call of this
 * or tsr_config_edits. */
TSR_API tsr_status tsr_plan_edits(tsr_session *session, const char *path, const char **out);

/* ---- 6 partition ---------------------------------------------------------------------------- */

typedef struct tsr_partition_options {
    size_t size;
    const char *config; /* NULL: the only one */
    bool force;         /* replace an existing folder */
    bool strict;        /* what would be replicated is an error (TSR_UNSUPPORTED) */
    /* Inputs and outputs that stay cut as the nodes have them, instead of whole; one * in a name stands for any text. Also read
     * from the model's metadata, ai.tessera.keep_cut (a name in each line). */
    const char *const *keep_cut;
    size_t n_keep_cut;
    /* "past=present": the output of a run that is the input of the next, and stays on its devices; one * on each side stands
     * for the same text. Also ai.tessera.state. */
    const char *const *state;
    size_t n_state;
    bool dry_run; /* all but writing: folder may be NULL */
    /* NULL: rank files and manifest alone. "wrapped": beside them model.onnx, whose one node runs the partition in any ONNX Runtime
     * that has registered libtessera_ops.so; inputs and outputs are tensors, and states are not kept (TSR_UNSUPPORTED else). */
    const char *layout;
    /* Outputs that every rank gives whole, not rank 0 alone: for processes that each go on by themselves. */
    const char *const *everywhere;
    size_t n_everywhere;
    const char *weights; /* NULL or "data": plain bytes; "safetensors": files that are that too */
    /* of "wrapped": who runs the ranks. NULL or "threads": threads of the program that loads model.onnx; "shm": processes of their
     * own, which the node starts and which end with the session. */
    const char *transport;
} tsr_partition_options;

/* Counts of one partition, for reports. Owned by the session until the next partition. */
typedef struct tsr_replicated {
    const char *node, *op, *reason;
} tsr_replicated;
typedef struct tsr_partition_summary {
    size_t size;
    size_t devices;
    const int64_t *weight_bytes; /* per device */
    const int64_t *weights;      /* elements per device */
    const tsr_collective_count *collectives;
    size_t n_collectives;
    const tsr_replicated *replicated; /* meant to be cut and not */
    size_t n_replicated;
    size_t nodes, cut_nodes;
    /* per device: its files, written or to be written, without common.data */
    const int64_t *file_bytes;
    int64_t common_bytes; /* of common.data; 0: there is none */
    /* of a call that plans first (tsr_folder_partition): picoseconds of one run on the devices, and on one alone; 0: not known */
    int64_t predicted, one_device;
} tsr_partition_summary;

/* Cuts the annotated model and writes the folder, whole or not at all: rank files, files of their weights, the manifest.
 * options NULL: the defaults; summary may be NULL. TSR_INVALID: the annotations have errors;
 * TSR_UNSUPPORTED: something cannot be cut as it is asked to be; TSR_WRITE: the folder exists, or cannot be written. */
TSR_API tsr_status tsr_partition(tsr_model *model, const char *folder,
                                 const tsr_partition_options *options,
                                 tsr_partition_summary *summary);

/* What the manifest of a partition says. No other file is read; all texts and lists live as long as it does. */
typedef struct tsr_manifest tsr_manifest;
TSR_API tsr_status tsr_manifest_open(tsr_session *session, const char *folder, tsr_manifest **out);
TSR_API void tsr_manifest_free(tsr_manifest *manifest); /* NULL is fine */
typedef struct tsr_manifest_facts {
    size_t size; /* to be set by the caller, as in the structs below */
    int ranks;
    size_t n_inputs, n_outputs, n_states;
    const char *generator, *model, *model_sha256, *configuration;
    const char *plan; /* fingerprint that all ranks carry, 16 hex digits */
} tsr_manifest_facts;
TSR_API void tsr_manifest_about(const tsr_manifest *manifest, tsr_manifest_facts *out);
/* An input or output of the whole model. */
typedef struct tsr_manifest_port {
    size_t size;
    const char *name, *type; /* type as tsr_dtype_name has it */
    int rank;                /* dimensions; -1: not known */
    const tsr_dim *dims;
    /* which ranks take or give what: tsr_tiles says the pieces for a shape */
    const char *sharding;
    bool kept; /* they are pieces, not the whole value */
} tsr_manifest_port;
/* The i-th input, output, pair of states; false past the end. */
TSR_API bool tsr_manifest_input(const tsr_manifest *manifest, size_t i, tsr_manifest_port *out);
TSR_API bool tsr_manifest_output(const tsr_manifest *manifest, size_t i, tsr_manifest_port *out);
TSR_API bool tsr_manifest_state(const tsr_manifest *manifest, size_t i, const char **past,
                                const char **present);
typedef struct tsr_manifest_device {
    size_t size;
    const char *device, *file; /* its name ("": none), and its rank file */
    const char *const *data;   /* files that its weights lie in */
    size_t n_data;
    /* pipeline stages that it works in, from 0, ascending; none: the model has no stages */
    const int64_t *stages;
    size_t n_stages;
    int64_t weights, weight_bytes; /* elements and bytes */
    bool has_ports;                /* false: an older manifest, which does not list them */
    const char *const *inputs, *const *outputs; /* of its rank file, in order */
    size_t n_inputs, n_outputs;
} tsr_manifest_device;
TSR_API bool tsr_manifest_rank(const tsr_manifest *manifest, int rank, tsr_manifest_device *out);

/* ---- 7 run, verify -------------------------------------------------------------------------- */

/* A set of named tensors in memory: inputs, outputs, recorded data. A sequence of tensors is an entry too: rank -1, no data,
 * its elements a set of their own. So is an optional without a value: rank -1 and no elements either. */
typedef struct tsr_tensors tsr_tensors;
TSR_API tsr_status tsr_tensors_new(tsr_session *session, tsr_tensors **out);
TSR_API void tsr_tensors_free(tsr_tensors *tensors);
TSR_API size_t tsr_tensors_count(const tsr_tensors *tensors);
TSR_API const char *tsr_tensors_name(const tsr_tensors *tensors, size_t i);
TSR_API tsr_dtype tsr_tensors_dtype(const tsr_tensors *tensors, size_t i);
TSR_API int tsr_tensors_rank(const tsr_tensors *tensors, size_t i);
TSR_API const int64_t *tsr_tensors_dims(const tsr_tensors *tensors, size_t i);
/* Of texts: where each ends (uint64_t, counted from the first character), then all characters. */
TSR_API const void *tsr_tensors_data(const tsr_tensors *tensors, size_t i, size_t *bytes);
/* Element k of a tensor of texts (row-major), not terminated; NULL: no text. */
TSR_API const char *tsr_tensors_text(const tsr_tensors *tensors, size_t i, int64_t k,
                                     size_t *bytes);
TSR_API const tsr_tensors *tsr_tensors_sequence(const tsr_tensors *tensors,
                                                size_t i); /* its elements; NULL: no sequence */
TSR_API int64_t tsr_tensors_find(const tsr_tensors *tensors, const char *name); /* -1: absent */
/* Copies bytes (NULL: zeros) in; replaces a tensor of that name. Not for texts. */
TSR_API tsr_status tsr_tensors_put(tsr_tensors *tensors, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const void *bytes);
/* The same without a copy: the bytes stay the caller's and must live, where they are, until the set is freed or the tensor
 * replaced. Aligned as an array of the type is. */
TSR_API tsr_status tsr_tensors_borrow(tsr_tensors *tensors, const char *name, tsr_dtype type,
                                      int rank, const int64_t *dims, const void *bytes);
/* Takes a tensor of another library without a copy: managed is a DLManagedTensor of DLPack, contiguous, of the host or of a GPU of CUDA's (what
 * makes it has ended, or is on the default stream). It belongs to the set then, which calls its deleter; after a failure it is the
 * caller's. A GPU's serves jobs whose ranks are in this process: a rank there reads it in place, others get a copy. */
TSR_API tsr_status tsr_tensors_from_dlpack(tsr_tensors *tensors, const char *name, void *managed);
/* A DLManagedTensor with a copy of tensor i, which may outlive set and session; whoever takes it calls its deleter. */
TSR_API tsr_status tsr_tensors_to_dlpack(const tsr_tensors *tensors, size_t i, void **managed);
/* Which GPU tensor i lies on, and where (data NULL: not wanted); -1: on the host. tsr_tensors_data has nothing of a GPU's. */
TSR_API int tsr_tensors_gpu(const tsr_tensors *tensors, size_t i, const void **data);
/* The same for texts; bytes NULL: they end at a zero. */
TSR_API tsr_status tsr_tensors_put_texts(tsr_tensors *tensors, const char *name, int rank,
                                         const int64_t *dims, const char *const *texts,
                                         const size_t *bytes);
/* An empty sequence of tensors of that type; its elements are put into *elements, which belongs to the tensors. elements NULL: an
 * optional without a value. */
TSR_API tsr_status tsr_tensors_put_sequence(tsr_tensors *tensors, const char *name, tsr_dtype type,
                                            tsr_tensors **elements);
/* Reads SET: .npz, .npy or .pb (one input), a folder test_data_set_N (names from the model's inputs, or outputs),
 * or random[:SEED][,name:1x3x224x224,...][,batch=2,...][,*=64] (shapes from the model; open dimensions are as given, else as *
 * says, else 1). See tsr_inputs_load. */
TSR_API tsr_status tsr_tensors_load(tsr_tensors *tensors, const char *set, const tsr_model *model,
                                    bool outputs);
/* Writes path.npy (one tensor), a folder of output_0.pb ... (path without a dot in its last part, or ending in a slash), else an
 * .npz, where the elements of a sequence are NAME.0, NAME.1, ... */
TSR_API tsr_status tsr_tensors_save(const tsr_tensors *tensors, const char *path);

typedef struct tsr_run_options {
    size_t size;
    /* threads, shm (processes), mpi, ucx; NULL: threads, or the launcher's */
    const char *transport;
    const char *ort_ops; /* the user's custom-operator library, or NULL */
    int optimize;        /* ONNX Runtime's level 0..3 plus 1; 0: default */
    int threads;         /* per rank; 0: max(1, cores / ranks on this host) */
    /* longest wait in seconds for a rank without a heartbeat (0: 15), and for ranks started by hand (rank, ranks) to join (0: 300) */
    double timeout_s;
    bool check_files;    /* read all digests first */
    const char *plugins; /* folder of the plug-ins of MPI and UCX; NULL: beside the library */
    /* "NPU=CPU": ranks whose device has that name run on another */
    const char *const *map_devices;
    size_t n_map_devices;
    /* where tsr_job_trace writes; tsr_run and tsr_run_model call it themselves */
    const char *trace;
    bool no_pin; /* ranks may be moved between all cores, see tsr_run_cores */
    /* products with weights of 4 bits are computed in float32, where the engine would turn the
     * other factor into 8 bits (ONNX Runtime does so at level 2 and above); tsr_verify sets it */
    bool float_products;
    int in_flight;      /* tsr_bench: runs under way at a time, 1 to 16; 0: 1 */
    const char *work;   /* folder for temporary files; NULL: /tmp */
    const char *device; /* of a whole model: "CUDA:0"; NULL: the CPU */
    /* "KEY=VALUE" for the provider of every rank that is not on the CPU */
    const char *const *provider_options;
    size_t n_provider_options;
    bool tf32; /* GPUs multiply float32 with 10 bits of mantissa: faster, and 1e-3 apart */
    /* sums are in the order of the ranks on every way: the same bits each time */
    bool deterministic;
    const char *gpu_way; /* how ranks on GPUs communicate: auto, own, nccl, host; NULL: auto */
    const char *gpu_driver, *gpu_nccl; /* libraries; NULL: libcuda.so.1 and libnccl.so.2 */
    /* bytes that the engine may take on each rank's GPU; 0: what is free there when the ranks start, divided between those that share it */
    int64_t gpu_memory;
    /* ranks > 0: this process is that rank of so many that nobody launched together; a launcher must say the same */
    int rank, ranks;
    /* name by which such ranks find each other, the same for all of a job; NULL: "" */
    const char *meet;
    /* what a run makes of a state is written where it was */
    bool states_in_place;
    bool facts; /* tsr_run and tsr_run_model keep what each rank was, for tsr_run_rank */
    /* with ranks, of the transport ucx: "a:4,b:4", the hosts of those ranks, rank 0's first; NULL: all
     * are on this one */
    const char *hosts;
    int port; /* ucx: where rank 0 listens; 0: what the launcher says, or 29500 */
    /* ucx: a text that all ranks of the job know and nobody else; NULL: none, and ranks meet on one
     * host only */
    const char *secret;
    /* ucx, between hosts: the network interface by name ("eth0"), address or network ("10.1.0.0/16");
     * NULL: the one that leads to rank 0. Ranks of one host use its loopback only. */
    const char *network_interface;
    /* ranks of a partition that this process may start as threads or children; 0: 16 for each core
     * of this host, at most 64; below 0: any number */
    int most_ranks;
} tsr_run_options;

/* Loads ONNX Runtime for the session from path, or (NULL) from where it is found; later calls are free. */
TSR_API tsr_status tsr_engine_open(tsr_session *session, const char *path, const char **found,
                                   const char **version);
/* Runs a whole model on one device. */
TSR_API tsr_status tsr_run_model(tsr_session *session, const char *path,
                                 const tsr_run_options *options, const tsr_tensors *inputs,
                                 tsr_tensors *outputs);
/* Runs a partition: all ranks as threads, or this process's rank under MPI (then rank 0 alone gets outputs). */
TSR_API tsr_status tsr_run(tsr_session *session, const char *folder, const tsr_run_options *options,
                           const tsr_tensors *inputs, tsr_tensors *outputs);

/* A partition or a model that is loaded once and run many times: all of its ranks as threads that wait for work, or this
 * process's rank under a launcher; with the transport shm, as children of this process that keep their state, and end with the
 * thread that opened them. It belongs to the session's thread. A run that fails ends the job: later calls give the same
 * failure. Inputs that do not fit are refused before anything has run, and the job goes on, except under a launcher: there
 * tsr_job_wait reports them, and the job ends. */
typedef struct tsr_job tsr_job;
TSR_API tsr_status tsr_job_open(tsr_session *session, const char *folder,
                                const tsr_run_options *options, tsr_job **out);
TSR_API tsr_status tsr_job_open_model(tsr_session *session, const char *path,
                                      const tsr_run_options *options, tsr_job **out);
TSR_API void tsr_job_close(tsr_job *job); /* NULL is fine; runs under way are finished first */
/* Ranks of the partition (1: a whole model); *here: those that run in this process, or as its children. */
TSR_API int tsr_job_ranks(const tsr_job *job, int *here);
/* Number of runs that were started and not yet waited for. */
TSR_API int tsr_job_under_way(const tsr_job *job);
TSR_API tsr_status tsr_job_run(tsr_job *job, const tsr_tensors *inputs, tsr_tensors *outputs);
/* The same in two steps, so that up to 16 runs are under way: each rank works on one at a time, in order, and begins the
 * next as soon as its own part is done. inputs must live, unchanged, until the run is waited for; runs are waited for in order. outputs
 * may be NULL; a tensor on a GPU that it holds under the name of an output is where that output is written, not the host. */
TSR_API tsr_status tsr_job_start(tsr_job *job, const tsr_tensors *inputs);
TSR_API tsr_status tsr_job_wait(tsr_job *job, tsr_tensors *outputs);
/* The same with a set for each rank that runs here: what that rank's file takes in and gives, cut or whole. */
TSR_API tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs);
TSR_API tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs);
/* Before the first run: output `present` of each run becomes input `past` of the next, where it is, without a copy. It is then
 * no result; the first run must be given the input, a later one may be (that starts anew). */
TSR_API tsr_status tsr_job_add_state(tsr_job *job, const char *past, const char *present);
/* Writes what all ranks did so far to the file that the options named: one JSON document for Perfetto or chrome://tracing, a
 * process for each rank, the pieces of each communication tied together. Under a launcher all ranks call it and rank 0 writes. Once. */
TSR_API tsr_status tsr_job_trace(tsr_job *job);
/* Promise: where it gives TSR_OK, every rank of the job has collected every run that was started before it was called here: each
 * has run its part, its results are where tsr_job_wait finds them, and no message of those runs is under way. Runs need not have
 * been waited for. Where ranks are processes of their own, all of them call it, after the same number of runs, and none returns
 * before the last has called it; a rank that never does is told as one that failed (TSR_PEER). */
TSR_API tsr_status tsr_job_barrier(tsr_job *job);

/* Cuts an annotated model for a configuration (NULL: the only one) into a temporary folder under work (NULL: /tmp), runs that,
 * and removes it. summary may be NULL. Under a launcher every rank calls it: rank 0 cuts, the others (whose model may have no
 * annotations) read that folder, so work must be one that all hosts see. */
TSR_API tsr_status tsr_run_annotated(tsr_model *model, const char *config, const char *work,
                                     const tsr_run_options *options, const tsr_tensors *inputs,
                                     tsr_tensors *outputs, tsr_partition_summary *summary);
/* What tsr_bench found. Times are those of one run from its start to its results, as rank 0 (or the calling thread) sees them. */
typedef struct tsr_bench_result {
    size_t size; /* to be set by the caller */
    int ranks;
    size_t runs, warmups;
    double load_s; /* until the first run could begin */
    /* of all runs that count; where they overlap, from the first start to the last result */
    double seconds;
    double mean_s, min_s, p50_s, p90_s, p95_s, p99_s, max_s;
    /* per rank: its share of that time, with waiting; the session's until the next run */
    const double *communication;
    /* per rank: bytes of its process after the runs, mapped ones too; 0: not known. Owned as above */
    const int64_t *memory;
    int64_t process_memory; /* of the calling process; 0: its ranks are processes of their own */
} tsr_bench_result;
/* Runs it again and again for that long, after some runs that do not count. Under a launcher every rank calls it. */
TSR_API tsr_status tsr_bench(tsr_session *session, const char *path, const tsr_run_options *options,
                             const tsr_tensors *inputs, double seconds, tsr_bench_result *result);
/* The same for an annotated model, cut as tsr_run_annotated does. */
TSR_API tsr_status tsr_bench_annotated(tsr_model *model, const char *config, const char *work,
                                       const tsr_run_options *options, const tsr_tensors *inputs,
                                       double seconds, tsr_bench_result *result);

/* The processes of a job as a group, for programs that coordinate before a job is opened: rank 0 plans and partitions, the others
 * wait and then load (examples/rank0_partitions.c). It connects the processes as tsr_job_open does, by the launcher's variables or by
 * `rank` and `ranks` of the options, over the same transport. The connections stay with the session: a job that is opened
 * later with this session uses them, also after tsr_process_group_leave. Without a launcher and without `ranks`, or with the
 * transport threads, the group is this process alone, and the calls return at once.
 *
 * All ranks make the same calls in the same order. A rank that ends, fails or makes another call gives the others TSR_PEER or the
 * failing rank's status, with an error that names it; later calls and jobs of the session then fail as well. A rank that computes
 * is waited for. A group belongs to the session's thread; leave it before the session is freed. */
typedef struct tsr_process_group tsr_process_group;
TSR_API tsr_status tsr_process_group_join(tsr_session *session, const tsr_run_options *options,
                                          tsr_process_group **out);
TSR_API int tsr_process_group_rank(const tsr_process_group *group); /* of this process, from 0 */
TSR_API int tsr_process_group_size(const tsr_process_group *group);
/* Returns when all ranks have called it. */
TSR_API tsr_status tsr_process_group_barrier(tsr_process_group *group);
/* Copies `bytes` from the buffer of rank `root` to the buffers of all others. bytes and root must be equal on all ranks. */
TSR_API tsr_status tsr_process_group_broadcast(tsr_process_group *group, void *buffer, size_t bytes,
                                               int root);
/* Releases the handle without waiting for other ranks; NULL is fine. */
TSR_API void tsr_process_group_leave(tsr_process_group *group);

typedef struct tsr_difference {
    const char *name;
    /* relative to the largest magnitude of the whole output; NaN: no number */
    double max_abs, max_rel;
    bool ok;
} tsr_difference;
/* Where cut and whole part: the first value, in the order of the nodes, that is out of tolerance; NULL: not found. The rank is
 * one that has the element that differs most in its part (-1: not known). */
typedef struct tsr_first_difference {
    const char *value, *node, *op;
    int64_t node_index, rank;
    double max_rel;
} tsr_first_difference;
/* One random sharding. status: TSR_OK, TSR_DIFFERENT, or what kept it from being cut or run (findings say more). */
typedef struct tsr_trial {
    bool ok;
    int recorded;
    tsr_status status;
    tsr_partition_summary partition;
    const tsr_difference *outputs;
    size_t n_outputs;
    const char *sharding; /* the edits that repeat it, as tsr_config_edits writes them */
    tsr_first_difference first;
    /* TSR_UNSUPPORTED: why this sharding was refused, NULL otherwise. It counts neither as a success nor as a failure. */
    const char *refused;
} tsr_trial;
typedef struct tsr_verify_result {
    size_t size;
    bool ok;
    int recorded; /* 1 equal to the recorded outputs, 0 not, -1 none recorded */
    tsr_partition_summary partition;
    const tsr_difference *outputs; /* owned by the session until the next verify */
    size_t n_outputs;
    const tsr_trial *trials; /* of random shardings; then partition and outputs are empty */
    size_t n_trials;
    tsr_first_difference first;
    /* The planner would shard nothing (one device is predicted to be as fast), so the plan with the most sharded nodes was verified. */
    bool forced;
    int64_t open_size; /* as in tsr_input_sizes, also the following */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    size_t n_refused; /* trials that were refused */
    bool assumed;     /* with plan: as in tsr_plan_summary */
} tsr_verify_result;
typedef struct tsr_verify_options {
    size_t size;
    const char *config;
    const char *inputs; /* SET as in tsr_tensors_load; NULL: random */
    double tolerance;   /* max_rel; 0: 5e-5 for float32, by type otherwise */
    const char *work;   /* folder for temporary files; NULL: /tmp */
    tsr_run_options run;
    size_t random; /* that many random shardings instead of the model's own; 0: none */
    uint64_t seed; /* of the first; the others follow */
    /* for random shardings: in a new configuration of so many devices; 0: in config */
    int64_t devices;
    /* not NULL: plan first, for the inputs' sizes; config then names the plan */
    const tsr_plan_options *plan;
    /* the whole model runs on the CPU; else on the kind of device that the ranks have */
    bool reference_cpu;
    /* for random shardings: the names of the new configuration's devices; NULL: none */
    const tsr_topology *topology;
    /* with plan: a model of which nothing can be sharded is compared with itself; else TSR_INVALID */
    bool allow_unsharded;
} tsr_verify_options;
/* Sizes that symbolic dimensions have in a set of inputs. */
typedef struct tsr_input_sizes {
    size_t size;
    int64_t
        open_size; /* what random inputs got for open dimensions without a size; 0: there are none */
    const tsr_dim_size
        *sizes; /* of every symbol of the inputs; owned by the session until the next call */
    size_t n_sizes;
} tsr_input_sizes;
/* Loads inputs as tsr_tensors_load does, for a run. In random ones an open dimension without a size has that of the model's plan,
 * else 128 as tsr_plan assumes, or the largest smaller power of two at which the unsharded model runs: it is run to find out, on the
 * CPU, with run's custom operators and threads (NULL: none, the default). Sizes at which a run would be long are not tried. Under a
 * launcher all ranks call it after tsr_join. out may be NULL. */
TSR_API tsr_status tsr_inputs_load(tsr_tensors *inputs, const char *set, const tsr_model *model,
                                   const tsr_run_options *run, tsr_input_sizes *out);
/* Plans a model for the sizes that the inputs have; those of the options come first. */
TSR_API tsr_status tsr_plan_for(tsr_model *model, const tsr_plan_options *options,
                                const tsr_tensors *inputs, tsr_plan_summary *summary);
/* Cuts, runs cut and whole, compares. TSR_DIFFERENT if out of tolerance; result is filled then too. With random shardings the
 * whole run is shared, a trial that fails does not end the others, the first failure's status is returned, and the result is
 * filled whenever there were trials. */
TSR_API tsr_status tsr_verify(tsr_session *session, const char *model,
                              const tsr_verify_options *options, tsr_verify_result *result);

/* ---- 8 topology ----------------------------------------------------------------------------- */

/* Devices with memory and speed, links with latency and bandwidth. Numbers that are not given are those of one
 * host (tessera topology show 2 prints them). */

/* From text: "4" and "cpu:4" and "full:4" (every device linked with every other), "ring:4", "star:4@1" (device 1 in the centre), "tree:2x3"
 * (2 children, 3 below each), "torus:3x3x3", "grid:2x4", "hosts:2x8" (8 devices on each of 2 hosts), "hosts:2x2x4" (racks, hosts, devices), a box
 * of published numbers "h100:8" or several "hosts:2xh100:8", an adjacency list "{4, [[1],[2],[3],[0]]}", or a JSON document. "auto:" before any of these:
 * as many devices as are best. What is odd in a list (a device that lists itself, a link one way only) is a warning. TSR_MALFORMED: none. */
TSR_API tsr_status tsr_topology_parse(tsr_session *session, const char *text, tsr_topology **out);
/* The devices that a user's text means, as --devices takes it: one of this machine ("cuda:4", "auto"), what tsr_topology_parse reads, a JSON
 * file, or a planned model (.onnx; TSR_INVALID: it has no topology). "auto:" before any of these: as many as are best. */
TSR_API tsr_status tsr_topology_find(tsr_session *session, const char *text, const char *driver,
                                     const char *nccl, tsr_topology **out);
TSR_API void tsr_topology_free(tsr_topology *topology); /* NULL is fine */
TSR_API int tsr_topology_devices(const tsr_topology *topology);
/* The speeds are assumed: those of the manual's table or of a data sheet (a number of devices, generators, boxes), not of devices that
 * were measured, found on this machine, or described in a file. */
TSR_API bool tsr_topology_is_assumed(const tsr_topology *topology);

typedef struct tsr_measure_options {
    size_t size;
    int devices;    /* so many ranks on this host; 0: one for each core, or the launcher's */
    double seconds; /* about so long; 0: 5 */
    const tsr_run_options *run; /* transport, threads, timeout; NULL: as for a run */
    const char *model;  /* run too, whole and cut: its nodes cost what they took; NULL: none */
    const char *inputs; /* of it: SET as in tsr_tensors_load; NULL: random */
} tsr_measure_options;
/* The devices that ranks are here, as ONNX Runtime and the transport reach them: arithmetic, memory, what a node costs besides, links, and, where all are on one host, how
 * long each collective takes, all ranks at work. Under a launcher every rank calls it; *out is NULL on all but rank 0. tsr_topology_see runs the model of the options on the ranks that a topology was measured for, and adds what its nodes took. */
TSR_API tsr_status tsr_topology_measure(tsr_session *session, const tsr_measure_options *options,
                                        tsr_topology **out);

/* The topology of a configuration (NULL: the only one), which tsr_plan and tsr_model_set_topology keep with the model (metadata ai.tessera.topology.NAME).
 * *out NULL: it has none. TSR_INVALID: it has another number of devices than the configuration (finding topology-misfit). */
TSR_API tsr_status tsr_model_topology(tsr_model *model, const char *config, tsr_topology **out);

/* ---- 9 simulate, report --------------------------------------------------------------------- */

typedef enum tsr_span_kind {
    TSR_SPAN_COMPUTE = 0,
    TSR_SPAN_COMMUNICATION = 1,
    TSR_SPAN_WAITING = 2 /* for the others of a communication */
} tsr_span_kind;
/* What one device does for some time. */
typedef struct tsr_span {
    tsr_span_kind kind;
    int device, request;
    const char *op, *node; /* node: its name, or its first output */
    int64_t id;            /* of a communication in the plan; else -1 */
    double begin, end;     /* seconds */
} tsr_span;
typedef struct tsr_simulated_device {
    double compute, communication, waiting; /* seconds, of all requests */
    double idle;                            /* what is left of the whole time */
    int64_t weights;                        /* bytes of constants */
    int64_t memory;                         /* bytes at the worst time, constants included */
    int64_t peak;                           /* as in tsr_plan_summary */
    /* Seconds of compute by what they are spent on: nodes that arithmetic bounds, nodes that the bandwidth of memory bounds,
     * and what the engine takes for each node besides. */
    double arithmetic, moving, overhead;
} tsr_simulated_device;
/* One communication of the plan, in one request. */
typedef struct tsr_simulated_comm {
    int64_t id;              /* as in tsr_span */
    const char *op, *value;  /* value: the tensor, as the rank that has it first calls it */
    const tsr_group *groups; /* that do it side by side */
    size_t n_groups;
    /* of the tensor over one group: what an AllGather ends with and a sum begins with */
    int64_t bytes;
    int64_t carried; /* over all links, once for each link on the way */
    double seconds;
} tsr_simulated_comm;
/* A link and what it carries in one request. */
typedef struct tsr_simulated_link {
    int from, to;
    int64_t bytes;
    double seconds; /* bytes over its bandwidth */
} tsr_simulated_link;
typedef struct tsr_simulate_options {
    size_t size;
    const char *config;        /* NULL: the only one of the model */
    tsr_topology *topology;    /* NULL: that of the plan, else so many devices of one host */
    const tsr_dim_size *sizes; /* of symbolic dimensions; one that has none counts 128 */
    size_t n_sizes;
    /* runs that follow one another, each as soon as a device is done with its part of the one
     * before; 0: 1 */
    int requests;
    bool one_device; /* also what one device alone would take */
} tsr_simulate_options;
/* Owned by the session until the next simulation. */
typedef struct tsr_simulation {
    size_t size;
    size_t devices;
    int requests;
    double seconds; /* until the last request is done */
    double first;   /* until the first is */
    double period;  /* between the ends of the last two; of one request: seconds */
    const tsr_simulated_device *device;
    /* by device, in order of time; at most a million are kept. Of more than 64 devices that are
     * copies of * one block, those of the first copy */
    const tsr_span *spans;
    size_t n_spans;
    size_t unsized;                  /* nodes of which a size was not known and counted 1 */
    const tsr_simulated_comm *comms; /* by id */
    size_t n_comms;
    const tsr_simulated_link *links; /* those that carry something, by their ends */
    size_t n_links;
    /* Asked for: the whole model on the fastest of the devices alone, its memory as above whether it has that or not; else 0. */
    double one_device_s;
    int64_t one_device_memory;
    bool assumed; /* as in tsr_plan_summary, also the following */
    double device_flops;
} tsr_simulation;
/* What a run would take on devices that need not be there: the model is cut, and what each device then does is priced as the planner
 * prices it: nodes by arithmetic, bytes and overhead, communication once all of its group are there. */
TSR_API tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options,
                                tsr_simulation *out);
/* The same of a partition. */
TSR_API tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                                       const tsr_simulate_options *options, tsr_simulation *out);

/* Another plan that is set beside the first: its model, which belongs to a session of its own, and its numbers. */
typedef struct tsr_report_side {
    tsr_model *model;
    const char *title;  /* NULL: the model's file */
    const char *config; /* NULL: the only one */
    const tsr_topology *topology;
    const tsr_plan_summary *plan; /* NULL: not known */
    const tsr_simulation *simulation;
} tsr_report_side;
typedef struct tsr_report_options {
    size_t size;
    const char *title;            /* NULL: the model's file */
    const char *config;           /* NULL: the only one of the model, or none */
    const tsr_topology *topology; /* NULL: not shown */
    const tsr_plan_summary *plan; /* NULL: not shown; the same for what follows */
    const tsr_simulation *simulation;
    const char *trace;         /* a trace of tsr_job_trace, to be set beside it */
    const tsr_dim_size *sizes; /* of symbolic dimensions, besides those of the plan */
    size_t n_sizes;
    int64_t memory;      /* the limit of each device; 0: what the topology's devices have */
    const char *command; /* that makes this page again; NULL: not shown */
    const tsr_report_side *beside; /* another plan, NULL: none */
    /* NULL or "html": the page. "model-explorer": microseconds of each node (or with "model-explorer-cuts" how its output is cut) as a
     * file that Model Explorer loads as node data; needs the simulation. */
    const char *format;
} tsr_report_options;
/* One HTML page that needs nothing besides itself: the verdict, memory against the limit, where time goes, the timeline, every
 * communication and the load of every link, how tensors are cut, the shardings with layers folded, the session's findings. */
TSR_API tsr_status tsr_report(tsr_model *model, const tsr_report_options *options,
                              const char *path);

/* ---- 10 generation folders ------------------------------------------------------------------ */

/* A language model with its tokenizer and a configuration: genai_config.json, or Optimum's config.json and model.onnx. */
typedef struct tsr_folder tsr_folder;
TSR_API bool tsr_folder_is(const char *path); /* whether the path is such a folder */
TSR_API tsr_status tsr_folder_open(tsr_session *session, const char *path, tsr_folder **out);
TSR_API void tsr_folder_free(tsr_folder *folder);               /* NULL is fine */
TSR_API const char *tsr_folder_model(const tsr_folder *folder); /* path of its model */

typedef struct tsr_folder_options {
    size_t size;
    int64_t devices;
    bool force; /* replace what is there */
    /* folder of libtessera_ops.so and the MPI plug-ins; NULL: beside the library */
    const char *plugins;
    tsr_topology *topology; /* a folder for each of its devices; NULL: `devices` equal ones */
} tsr_folder_options;
/* Writes out/rank0 ...: a generation folder for each device, which a stock onnxruntime-genai loads in as many processes. Heads are cut
 * alike, every rank gives the logits. Needs genai_config.json, and as many heads of keys as devices (TSR_UNSUPPORTED else). */
TSR_API tsr_status tsr_folder_partition(tsr_folder *folder, const char *out,
                                        const tsr_folder_options *options,
                                        tsr_partition_summary *summary);

#define TSR_NO_TOKENS (-1)
typedef struct tsr_generate_options {
    size_t size;
    int64_t devices; /* 0 or 1: whole */
    int64_t
        max_tokens; /* most new tokens; 0: 64; TSR_NO_TOKENS: none, the prompt is only checked */
    /* sampling temperature; 0: 1 if top_k or top_p is set, else the most likely token is taken */
    double temperature;
    int64_t top_k;    /* sample from the top_k most likely tokens; 0: from all */
    double top_p;     /* nucleus sampling threshold; 0: none */
    uint64_t seed;    /* the same seed, the same tokens */
    const char *work; /* folder for temporary files; NULL: /tmp */
    tsr_run_options run;
    bool past_end;          /* goes on behind the configuration's end token, for measuring */
    tsr_topology *topology; /* that the model is cut for; NULL: `devices` equal ones */
} tsr_generate_options;
typedef struct tsr_generate_result {
    size_t size;
    int64_t tokens; /* that were made */
    double first_s; /* until the first of them */
    double seconds; /* until the last */
    /* what the plan says of one token, picoseconds: on the devices, and on one alone; 0: not planned, or one has no room */
    int64_t predicted, one_device;
    int64_t devices; /* that it was cut for: of a topology with choices, what the plan took */
} tsr_generate_result;
typedef bool (*tsr_token_fn)(void *data, int64_t token); /* takes each token; false: enough */
/* Continues a prompt, the model planned and cut, until the end token, which is given out too. take and result may be NULL. */
TSR_API tsr_status tsr_generate(tsr_folder *folder, const int64_t *ids, size_t n,
                                const tsr_generate_options *options, tsr_token_fn take, void *data,
                                tsr_generate_result *result);
/* The same for one prompt after the other, loaded once. The folder and the texts of the options must outlive it. */
typedef struct tsr_generator tsr_generator;
TSR_API tsr_status tsr_generator_open(tsr_folder *folder, const tsr_generate_options *options,
                                      tsr_generator **out);
TSR_API tsr_status tsr_generator_run(tsr_generator *generator, const int64_t *ids, size_t n,
                                     tsr_token_fn take, void *data, tsr_generate_result *result);
TSR_API void tsr_generator_close(tsr_generator *generator); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
