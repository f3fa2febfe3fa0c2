/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera_cli.h - what the `tessera` command, the Python package and the modules of the library
 * share and applications do not need.
 *
 * This header is not installed and no part of the ABI. libtessera.so exports these functions under
 * the symbol version TESSERA_PRIVATE (tools/symbols): they may change in every release, and
 * programs that use them must be of the same build as the library.
 */
#ifndef TESSERA_CLI_H
#define TESSERA_CLI_H

#include "tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- basics -------------------------------------------------------------------------------- */

/* The whole of a regular file of at most `limit` bytes as text, with a zero behind it; owned by the
 * session until the next call. A pipe, a device, a folder, a read error and a file that is too
 * large are TSR_IO. */
TSR_API tsr_status tsr_session_read(tsr_session *session, const char *path, size_t limit,
                                    const char **text, size_t *bytes);
/* A new folder for temporary files under base (NULL: /tmp). It goes with the session, or when
 * tsr_session_sweep is called. */
TSR_API tsr_status tsr_session_temporary(tsr_session *session, const char *base, const char **path);
/* Removes all temporary files and folders that the session has at this moment, outputs that are not
 * complete included. For signal handlers that end the process: it uses system calls alone. The
 * session can do no more than be freed afterwards. */
TSR_API void tsr_session_sweep(tsr_session *session);

/* ---- shardings ----------------------------------------------------------------------------- */

/* TSR_USAGE (dim-unknown, dim-size) if the model has no dimension of a name, or a size is less than
 * 1. Calls that take sizes check them likewise. */
TSR_API tsr_status tsr_model_check_dims(tsr_model *model, const tsr_dim_size *sizes, size_t n);

/* ---- check, infer -------------------------------------------------------------------------- */

/* How an operator may be cut: one row of the table of rules. Texts are never NULL. */
typedef struct tsr_rule {
    size_t size;
    const char *op, *domain; /* domain "" for ai.onnx */
    int64_t since;           /* first opset that it holds for */
    /* "[B~ m k],[B~ k n] -> [B* m n]; red k:sum"; the usual form where attributes decide */
    const char *rule;
    const char *note;
    const char *whole; /* not empty: never cut, and why */
    /* the row in words, a line for each thing; owned by the session until the next call */
    const char *words;
    bool bodies; /* control flow: the nodes of its bodies are cut */
    /* why factors that the rule keeps whole (_: dimensions that have none) are, in pairs: "t: each
     * step needs the one before; f c: ..."; owned as words are */
    const char *stays;
} tsr_rule;
/* The i-th row of the table; false past the end. Rows are ordered by operator, then by domain and
 * opset. */
TSR_API bool tsr_rule_at(tsr_session *session, size_t i, tsr_rule *out);

/* ---- plan ---------------------------------------------------------------------------------- */

typedef struct tsr_plan_side {
    const char *model, *sha256, *config; /* sha256 "": the model was in no file */
    int64_t devices, cost;
    int64_t memory; /* bytes on the fullest device */
    const tsr_collective_count *collectives;
    size_t n_collectives;
} tsr_plan_side;
/* A node whose shardings differ; "": it has none, and runs whole. */
typedef struct tsr_plan_difference {
    int64_t node_index;
    const char *node;
    const char *choice[2];
} tsr_plan_difference;
typedef struct tsr_plan_comparison {
    size_t size;
    bool same_model;
    tsr_plan_side side[2];
    const tsr_plan_difference *differences; /* in the order of the nodes */
    size_t n_differences;
} tsr_plan_comparison;
/* Two documents of tsr_plan_save side by side. Owned by the session until the next call of this or
 * tsr_plan. */
TSR_API tsr_status tsr_plan_compare(tsr_session *session, const char *a, const char *b,
                                    tsr_plan_comparison *out);

/* ---- partition ----------------------------------------------------------------------------- */

/* Takes rank files that others have changed (an optimiser, say) into the manifest again: their
 * digests and those of the data files that they name now are renewed, after it was proved that each
 * still has its inputs and outputs, by name, type and sizes, and all of its communications, in
 * their order, on the chain of tokens, as the other ranks have them; else TSR_INVALID, one finding
 * for each breach, and nothing is written. *files: those that were renewed, owned by the session
 * until the next partition. */
TSR_API tsr_status tsr_partition_reseal(tsr_session *session, const char *folder,
                                        const char *const **files, size_t *n);

/* ---- run, verify --------------------------------------------------------------------------- */

/* TSR_UNSUPPORTED (tensor-kind) if an input or output of the model is no tensor and no sequence of
 * tensors: such a model can be sharded, but not run. */
TSR_API tsr_status tsr_model_check_ports(const tsr_model *model);
/* Ranks that are threads or children of this process keep to equal shares of the cores that it may
 * use, if there are enough. Writes at most n core numbers of one rank to `out` and returns
 * their number; 0: the rank is not bound to cores. *threads, if
 * not NULL: of each rank by default. */
TSR_API int tsr_run_cores(int rank, int ranks, int *cores, int n, int *threads);

/* *out: this engine loses digits of products of 8-bit numbers on this CPU (one of x86 without
 * VNNI), see `tessera explain engine-saturates`. Runs a small model, which is written below the
 * folder work (NULL: /tmp) and taken away. */
TSR_API tsr_status tsr_engine_saturates(tsr_session *session, const char *work, bool *out);
/* What a device of that name is on this machine: by kind ("GPU:1" -> "CUDA:1", "NPU" -> "QNN") or
 * as ONNX Runtime's provider is called ("CPU"). Fills at most cap bytes; false: the ONNX Runtime of
 * this session has nothing for it (or none is opened). */
TSR_API bool tsr_engine_device(tsr_session *session, const char *name, char *out, size_t cap);

/* Ranks that a rank communicates with, and how: "threads", "shm" (shared memory), "mpi"; where they
 * are on GPUs "own" (they read each other's memory), "ipc" (the same, between processes), "nccl",
 * or "host" (in chunks through pinned memory). */
typedef struct tsr_rank_group {
    const int64_t *ranks;
    size_t n_ranks;
    const char *way;
} tsr_rank_group;
/* What one rank of a run was. */
typedef struct tsr_rank_facts {
    size_t size;
    const char *device, *provider; /* after map_devices: "CUDA:0"; ONNX Runtime's: "CUDA" */
    int threads;
    /* bytes: taken at most, of its GPU or (with its weights) of the host, 0: not known (ONNX
     * Runtime before 1.23); limit of its GPU, 0: none */
    int64_t memory, memory_limit;
    const tsr_rank_group *groups;
    size_t n_groups;
} tsr_rank_facts;
/* Of the last run of this session with the option `facts`: its number of ranks (0: none; under a
 * launcher on all but rank 0), and what a rank was, owned by the session until the next such run;
 * false: there is no such rank. */
TSR_API int tsr_run_ranks(const tsr_session *session);
TSR_API bool tsr_run_rank(tsr_session *session, int rank, tsr_rank_facts *out);

/* Joins the MPI job that a launcher started this process in, so that the other ranks learn at once
 * if this one fails before it runs; tsr_run does it by itself. TSR_OK, and nothing done, where
 * there is no launcher. */
TSR_API tsr_status tsr_join(tsr_session *session, const tsr_run_options *options);

/* This process's place in an MPI job: false if it was not started by a launcher. */
TSR_API bool tsr_launcher(int *rank, int *ranks, const char **family);
/* This process's place in a run with these options (NULL: none): what they say, else what the
 * launcher says; false: it has none, and all ranks run here. */
TSR_API bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks);

/* Returns the tsr_transport of a name ("shm"); 0 for NULL, -1 for an unknown name. */
TSR_API int tsr_transport_named(const char *name);
/* Whether ranks can be run over "threads", "openmpi", "mpich" or "ucx" here (its plug-in is
 * present). */
TSR_API bool tsr_transport_available(const char *family);

/* ---- text ---------------------------------------------------------------------------------- */

/* Copies text so that a terminal shows it as it is: control characters (newline and tab excepted),
 * marks that reorder a line and broken UTF-8 become \\xNN. Fills at most cap bytes (16 or more),
 * whole characters only, and returns how many; *used: bytes of text that were taken. A character
 * that text ends in the middle of is not taken, unless this is the last of it. */
TSR_API size_t tsr_safe_text(const char *text, size_t n, bool last, char *out, size_t cap,
                             size_t *used);

/* The candidate that a misspelt word is nearest to, for "did you mean"; NULL: none is near. */
TSR_API const char *tsr_nearest(const char *word, const char *const *candidates, size_t n);

/* Writes one JSON document, pretty-printed, deterministic. A document that has failed (no memory,
 * unbalanced) takes further calls and gives no text; tsr_json_new gives NULL where there is no
 * memory, and NULL is fine for all calls. */
typedef struct tsr_json tsr_json;
TSR_API tsr_json *tsr_json_new(tsr_session *session);
TSR_API void tsr_json_free(tsr_json *json);
/* Opens an object ('{') or an array ('['), until its end. key is NULL in arrays, here and below. */
TSR_API void tsr_json_begin(tsr_json *json, const char *key, char kind);
TSR_API void tsr_json_end(tsr_json *json);
/* A NULL value is null. */
TSR_API void tsr_json_string(tsr_json *json, const char *key, const char *value);
TSR_API void tsr_json_int(tsr_json *json, const char *key, int64_t value);
TSR_API void tsr_json_number(tsr_json *json, const char *key, double value); /* NaN: null */
TSR_API void tsr_json_bool(tsr_json *json, const char *key, bool value);
TSR_API void tsr_json_null(tsr_json *json, const char *key);
/* An array of numbers; and an object that has how often each collective is used. */
TSR_API void tsr_json_ints(tsr_json *json, const char *key, const int64_t *values, size_t n);
TSR_API void tsr_json_collectives(tsr_json *json, const char *key,
                                  const tsr_collective_count *counts, size_t n);
/* The whole text, NUL-terminated; NULL: out of memory or unbalanced. Valid until freed. */
TSR_API const char *tsr_json_text(tsr_json *json);
/* Writes the whole text to a file, whole or not at all. */
TSR_API tsr_status tsr_json_write(tsr_json *json, const char *path);
/* Adds the array of the session's findings under key, as `check --json` prints them. */
TSR_API void tsr_json_findings(tsr_json *json, const char *key);

/* ---- topology ------------------------------------------------------------------------------ */

/* Element types and kinds of work for which a device may have a separate rate. */
typedef enum tsr_rate {
    TSR_RATE_TF32 = 0, /* float32 rounded on the way into a product */
    TSR_RATE_FLOAT16 = 1,
    TSR_RATE_BFLOAT16 = 2,
    TSR_RATE_FLOAT8 = 3,
    TSR_RATE_INT8 = 4,
    TSR_RATE_INT4 = 5,
    TSR_RATE_FLOAT64 = 6,
    TSR_RATE_CONVOLUTION = 7, /* from here on kinds of work, in float32 */
    TSR_RATE_DEPTHWISE = 8,   /* convolutions of single channels */
    TSR_RATE_PACKED = 9,      /* products with weights of 4 bits */
    TSR_RATE_ATTENTION = 10,  /* fused */
    TSR_RATE_RECURRENCE = 11, /* LSTM, GRU */
    TSR_RATE_POOL = 12,
    TSR_RATE_TREES = 13,   /* tree ensembles: nodes that are visited; 0: flops / 350 */
    TSR_RATE_KERNELS = 14, /* kernel functions of support vector machines; 0: flops / 9 */
    TSR_RATE_COUNT = 15
} tsr_rate;

/* Ways in which nodes go through memory. */
typedef enum tsr_move {
    TSR_MOVE_STREAM = 0,  /* one element after the other: sums, masks */
    TSR_MOVE_WEIGHTS = 1, /* a matrix that few rows are multiplied with */
    TSR_MOVE_PACKED = 2,  /* the same in 4 bits */
    TSR_MOVE_CACHE = 3,   /* keys and values that few queries meet */
    TSR_MOVE_SOFTMAX = 4,
    TSR_MOVE_NORM = 5,
    TSR_MOVE_CURVE = 6, /* exponentials: much to do for each element */
    TSR_MOVE_TURN = 7,  /* other orders of the same elements */
    TSR_MOVE_REDUCE = 8,
    TSR_MOVE_COPY = 9,     /* parts taken out as they are; 0: as stream */
    TSR_MOVE_ERROR = 10,   /* error functions: Gelu; 0: as curve */
    TSR_MOVE_POOL = 11,    /* 0: as stream */
    TSR_MOVE_GROUPED = 12, /* caches that groups of query heads share; 0: as cache */
    TSR_MOVE_COUNT = 13
} tsr_move;

typedef struct tsr_topology_device {
    const char *name;
    int64_t memory;   /* bytes */
    double flops;     /* float32 operations per second */
    double bandwidth; /* bytes of its memory per second */
    double overhead;  /* seconds that the engine takes for a node besides its work; 0: nothing */
    double rates[TSR_RATE_COUNT];  /* operations per second by type and kind; 0: as flops */
    double moves[TSR_MOVE_COUNT];  /* bytes per second by way; 0: as bandwidth */
    double cached[TSR_MOVE_COUNT]; /* the same of nodes with a MiB or two; 0: as moves */
    bool queued; /* nodes are handed over ahead: their overhead hides behind work */
    double
        unhidden; /* share of the shorter of arithmetic and memory traffic that the longer does not
                        hide; 0: a quarter */
} tsr_topology_device;

typedef enum tsr_collective {
    TSR_ALL_REDUCE = 0,
    TSR_REDUCE_SCATTER = 1,
    TSR_ALL_GATHER = 2,
    TSR_ALL_TO_ALL = 3,
    TSR_BROADCAST = 4, /* from the first of the group */
    TSR_REDUCE = 5,    /* to the first of the group */
    TSR_SEND = 6,      /* from the first of two to the second */
    TSR_COLLECTIVE_COUNT = 7
} tsr_collective;
TSR_API const char *tsr_collective_name(tsr_collective what); /* "all-reduce"; NULL: no such one */

/* The GPUs of this machine, from the CUDA driver. A child process asks it, so that this process may
 * still start ranks as processes. Libraries as in tsr_run_options. n 0: why says the reason.
 * Texts are the session's until the next call. */
typedef struct tsr_gpu {
    const char *name;
    int64_t memory, free; /* bytes */
    int major, minor;     /* compute capability */
} tsr_gpu;
typedef struct tsr_gpus {
    size_t size;
    int n;
    const tsr_gpu *gpus;
    int driver, nccl; /* 13000: CUDA 13.0; 23007: NCCL 2.30.7; 0: none */
    const char *why;
} tsr_gpus;
TSR_API tsr_status tsr_gpus_find(tsr_session *session, const char *driver, const char *nccl,
                                 tsr_gpus *out);
/* Devices of this machine by name: "cuda:4" (GPUs 0 to 3), "cuda:2@1" (two ranks that share GPU 1),
 * "CUDA:0,CUDA:0,CPU"; "auto": as many GPUs as are best, or ranks that divide the cores where there
 * is no GPU. Their memory is what is free; what ranks share is divided between them.
 * tsr_topology_is_real: the text is of that form. */
TSR_API bool tsr_topology_is_real(const char *text);
TSR_API const tsr_topology_device *tsr_topology_device_at(const tsr_topology *topology, int device);
/* Fields that are NULL or not positive stay as they are. */
TSR_API void tsr_topology_set_device(tsr_topology *topology, int device,
                                     const tsr_topology_device *d);
/* Of all links. */
TSR_API void tsr_topology_set_links(tsr_topology *topology, double latency, double bandwidth);
/* Of the links between hosts alone, where it is known which devices share a host: hosts:2x8, boxes.
 * False: it is not known. */
TSR_API bool tsr_topology_set_network(tsr_topology *topology, double latency, double bandwidth);
/* Name and source of the i-th box that tsr_topology_parse knows ("h100:8"); NULL past the end. */
TSR_API const char *tsr_topology_box(size_t i, const char **source);
TSR_API size_t tsr_topology_links(const tsr_topology *topology);
TSR_API bool tsr_topology_link_at(const tsr_topology *topology, size_t i, int *from, int *to,
                                  double *latency, double *bandwidth);
/* The i-th choice, owned by the topology; past the end the topology itself. */
TSR_API const tsr_topology *tsr_topology_choice(const tsr_topology *topology, size_t i);
/* Adds its fields to the object that is open in the document; tsr_topology_parse reads that object.
 * */
TSR_API void tsr_topology_add_json(const tsr_topology *topology, tsr_json *json);

/* Runs the model of the options on the ranks that the topology was measured for, and adds the times
 * of its nodes. */
TSR_API tsr_status tsr_topology_add_profile(tsr_topology *topology,
                                            const tsr_measure_options *options);

/* Sides of the grid, torus or hosts that its devices form, row by row, recognised where it is a
 * list: their number (0: none), and at most n of them. */
TSR_API int tsr_topology_grid(const tsr_topology *topology, int *sides, int n);

typedef struct tsr_topology_price {
    int64_t picoseconds;
    int64_t bound;         /* no algorithm is faster */
    const char *algorithm; /* the one that is priced */
} tsr_topology_price;
/* What a collective over the devices of a group costs; bytes: of the whole tensor. */
TSR_API tsr_status tsr_topology_cost(tsr_topology *topology, tsr_collective what, const int *group,
                                     int n, int64_t bytes, tsr_topology_price *out);

/* ---- generation folders -------------------------------------------------------------------- */

/* True if one node alone reads the cache `past`, is given its used length, and returns it as
 * `present` with the same capacity: such a cache can be updated in place (states_in_place). */
TSR_API bool tsr_cache_has_room(const tsr_value *past, const tsr_value *present);
/* Repeats each key and value head of all grouped attention nodes `times` times: the model computes
 * the same, and its caches have that many more heads. TSR_UNSUPPORTED: the number of query heads is
 * no multiple of the new number of key heads; the model may be changed in part. */
TSR_API tsr_status tsr_repeat_kv_heads(tsr_model *model, int64_t times);
TSR_API int64_t tsr_folder_vocabulary(const tsr_folder *folder); /* how many tokens there are */
/* Sizes of the symbolic dimensions for `tokens` new tokens after `past` ones, in a batch of one.
 * Owned by the folder. */
TSR_API tsr_status tsr_folder_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                                    const tsr_dim_size **out, size_t *n);
/* Puts inputs of these sizes that fit together into a set: tokens of the vocabulary, a mask of
 * ones, random caches. */
TSR_API tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens,
                                     int64_t past, tsr_tensors *to);

/* ---- results as structs ---------------------------------------------------------------------- */

/* The oldest diagnostic is 0; i must be below tsr_finding_count. */
TSR_API tsr_finding tsr_finding_value(const tsr_session *session, size_t i);
TSR_API tsr_piece tsr_pieces_value(const tsr_pieces *pieces, size_t i);
/* tsr_check and tsr_infer with their options as arguments. */
TSR_API tsr_status tsr_check_config(tsr_model *model, const char *config);
TSR_API tsr_status tsr_check_formalism(tsr_model *model, const char *config);
TSR_API tsr_status tsr_infer_config(tsr_model *model, const char *config);
TSR_API tsr_status tsr_infer_opts(tsr_model *model, const char *config, bool propagate);
TSR_API tsr_status tsr_infer_formalism(tsr_model *model, const char *config);

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
    bool undecided;                 /* not feasible: no such plan was found in time */
    int64_t cost;                   /* of the best plan in which the node runs so, picoseconds */
    int64_t compute, communication; /* of the node alone */
    int64_t weights;                /* bytes of constants on a device */
    /* As the node needs its inputs and gives its outputs, reductions done; absent ones are left
     * out. */
    const tsr_plan_tensor *inputs, *outputs;
    size_t n_inputs, n_outputs;
    /* what follows the node: "AllReduce", "ReduceScatter" ...; NULL: nothing */
    const char *reduction;
} tsr_plan_choice;

/* What one of two models that were planned together comes to. */
typedef struct tsr_plan_part {
    const char *config;
    int64_t cost;          /* picoseconds of one run */
    const int64_t *memory; /* bytes on each device at the worst time */
    const tsr_collective_count *collectives;
    size_t n_collectives;
    size_t nodes, cut_nodes;
} tsr_plan_part;

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
    int64_t latency, period;      /* with stages: time of one run; time between consecutive runs */
    /* Planned with another model: what each comes to, the other second; cost is that of one run of
     * the first and `steps` of the other, the rest is the first's. */
    const tsr_plan_part *parts;
    size_t n_parts;
    size_t shared; /* weights that both have */
    /* bytes that a device's process will have: memory, what arenas lose, the engine's own */
    const int64_t *peak;
    /* fewer devices that would be no slower, and the time then; 0: none were found */
    int64_t better_devices, better_cost;
    /* not feasible: number of devices of the same memory that suffices; 0: not known */
    int64_t fits_devices;
    /* predicted, of one run: of the model's own plan, without those of another */
    double milliseconds;
    int64_t used_devices; /* number of devices with work; the others are idle */
    int64_t copies;       /* blocks of devices that do the same, each with a share of the batch */
    bool stopped;         /* by its seconds or by tsr_session_cancel, before the budget was spent */
    /* Of a topology with choices: what each of them would take. */
    const tsr_plan_count *tried;
    size_t n_tried;
    bool assumed;        /* as tsr_topology_is_assumed; true for a number of devices */
    double device_flops; /* of the first device, float32 operations per second */
    /* not feasible: the search ended before it found a plan or proved infeasibility */
    bool undecided;
    /* experts' plans that fit, the fastest first; none is faster than this plan */
    const tsr_plan_expert *compared;
    size_t n_compared;
    /* experts' plans that do not fit or were not found in time; they follow `compared` in memory */
    const tsr_plan_expert *rejected;
    size_t n_rejected;
} tsr_plan_summary;

struct arena;
/* Contents of the result handles of tessera.h. The command reads `summary`, which has more than the
 * functions of tessera.h return. */
struct tsr_plan_result {
    tsr_session *session;
    struct arena *memory; /* owns the handle and all that it points to */
    tsr_plan_summary summary;
};
/* One row of the picture of a plan: nodes of several layers that are sharded in the same way. */
typedef struct tsr_picture_row {
    const char *nodes;    /* "layers.{0-31}/mlp/up" */
    const char *sharding; /* of their weights, in words: "columns over 8" */
    const char *devices;  /* that store a part: "0..7" */
    size_t count;         /* number of nodes */
    int64_t stage;        /* pipeline stage; -1: none */
} tsr_picture_row;
typedef struct tsr_picture {
    const tsr_picture_row *rows; /* in the order of the graph */
    size_t n;
    size_t left_out; /* number of nodes with small weights that are not listed */
} tsr_picture;
/* The nodes with the largest weights of a configuration. No rows for more than 1024 devices. Owned
 * by the session until the next plan. */
TSR_API tsr_status tsr_plan_picture(tsr_model *model, const char *config, const tsr_dim_size *sizes,
                                    size_t n_sizes, tsr_picture *out);
/* Writes the plan that the model has just been given as a JSON document (docs/formats.md): options,
 * summary, the digest of the file that it was read from, and each node's shardings as edits. The
 * same plan gives the same bytes. */
TSR_API tsr_status tsr_plan_save(tsr_model *model, const tsr_plan_options *options,
                                 const tsr_plan_summary *summary, const char *path);
/* The edits of such a document, as lines that `tessera annotate --script` takes. Owned by the
 * session until the next call of this or tsr_config_edits. */
TSR_API tsr_status tsr_plan_edits(tsr_session *session, const char *path, const char **out);

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
    int64_t common_bytes; /* of common.data; 0: no such file */
    /* of a call that plans first (tsr_folder_partition): picoseconds of one run on the devices, and
     * on one alone; 0: not known. And the assumed or known speed of the first device. */
    int64_t predicted, one_device;
    double device_flops;
} tsr_partition_summary;
struct tsr_partition_result {
    tsr_session *session;
    struct arena *memory; /* NULL: part of a tsr_verify_result */
    tsr_partition_summary summary;
};
/* Pair i of states of the partition; false past the end. */
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

/* The same with a set for each rank that runs here: what that rank's file takes in and gives, cut
 * or whole. */
TSR_API tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs);
TSR_API tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs);
/* Cuts an annotated model for a configuration (NULL: the only one) into a temporary folder under
 * work (NULL: /tmp), runs that, and removes it. summary may be NULL. Under a launcher every rank
 * calls it: rank 0 cuts, the others (whose model may have no annotations) read that folder, so work
 * must be one that all hosts see. */
TSR_API tsr_status tsr_run_annotated(tsr_model *model, const char *config, const char *work,
                                     const tsr_run_options *options, const tsr_tensors *inputs,
                                     tsr_tensors *outputs, tsr_partition_summary *summary);
/* What tsr_bench found. Times are those of one run from its start to its results, as rank 0 (or the
 * calling thread) sees them. */
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
    /* per rank: bytes of its process after the runs, mapped ones too; 0: not known. Owned as above
     * */
    const int64_t *memory;
    int64_t process_memory; /* of the calling process; 0: its ranks are processes of their own */
} tsr_bench_result;
/* Runs it again and again for that long, after some runs that do not count. Under a launcher every
 * rank calls it. */
TSR_API tsr_status tsr_bench(tsr_session *session, const char *path, const tsr_run_options *options,
                             const tsr_tensors *inputs, double seconds, tsr_bench_result *result);
/* The same for an annotated model, cut as tsr_run_annotated does. */
TSR_API tsr_status tsr_bench_annotated(tsr_model *model, const char *config, const char *work,
                                       const tsr_run_options *options, const tsr_tensors *inputs,
                                       double seconds, tsr_bench_result *result);

/* One random sharding. status: TSR_OK, TSR_DIFFERENT, or what kept it from being cut or run
 * (findings say more). */
typedef struct tsr_trial {
    bool ok;
    int recorded;
    tsr_status status;
    tsr_partition_summary partition;
    const tsr_difference *outputs;
    size_t n_outputs;
    const char *sharding; /* the edits that repeat it, as tsr_config_edits writes them */
    tsr_first_difference first;
    /* TSR_UNSUPPORTED: why this sharding was refused, NULL otherwise. It counts neither as a
     * success nor as a failure. */
    const char *refused;
} tsr_trial;
typedef struct tsr_verify_summary {
    size_t size;
    bool ok;
    int recorded; /* 1 equal to the recorded outputs, 0 not, -1 none recorded */
    tsr_partition_summary partition;
    const tsr_difference *outputs; /* owned by the session until the next verify */
    size_t n_outputs;
    const tsr_trial *trials; /* of random shardings; then partition and outputs are empty */
    size_t n_trials;
    tsr_first_difference first;
    /* The planner would shard nothing (one device is predicted to be as fast), so the plan with the
     * most sharded nodes was verified. */
    bool forced;
    int64_t open_size; /* as in tsr_input_sizes, also the following */
    const tsr_dim_size *sizes;
    size_t n_sizes;
    size_t n_refused; /* trials that were refused */
    bool assumed;     /* with plan: as in tsr_plan_summary */
} tsr_verify_summary;
struct tsr_verify_result {
    tsr_session *session;
    struct arena *memory;
    tsr_verify_summary summary;
    struct tsr_partition_result *partitions; /* of the model's own sharding, then of each trial */
};
/* Sizes that symbolic dimensions have in a set of inputs. */
typedef struct tsr_input_sizes {
    size_t size;
    int64_t open_size; /* of open dimensions in random inputs; 0: no open dimensions */
    const tsr_dim_size
        *sizes; /* of every symbol of the inputs; owned by the session until the next call */
    size_t n_sizes;
} tsr_input_sizes;
/* Loads inputs as tsr_tensors_load does, for a run. In random ones an open dimension without a size
 * has that of the model's plan, else 128 as tsr_plan assumes, or the largest smaller power of two
 * at which the unsharded model runs: it is run to find out, on the CPU, with run's custom operators
 * and threads (NULL: none, the default). Sizes at which a run would be long are not tried. Under a
 * launcher all ranks call it after tsr_join. out may be NULL. */
TSR_API tsr_status tsr_inputs_load(tsr_tensors *inputs, const char *set, const tsr_model *model,
                                   const tsr_run_options *run, tsr_input_sizes *out);

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
typedef struct tsr_group {
    const int64_t *devices;
    size_t n;
} tsr_group;
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
/* Owned by the session until the next simulation. */
typedef struct tsr_simulation_summary {
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
    /* Asked for: the whole model on the fastest of the devices alone, its memory as above whether
     * it has that or not; else 0. */
    double one_device_s;
    int64_t one_device_memory;
    bool assumed; /* as in tsr_plan_summary, also the following */
    double device_flops;
} tsr_simulation_summary;
struct tsr_simulation {
    tsr_session *session;
    struct arena *memory;
    tsr_simulation_summary summary;
};
/* The same of a partition. */
TSR_API tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                                       const tsr_simulate_options *options, tsr_simulation **out);

/* Writes it for Perfetto or chrome://tracing: a process for each device, the pieces of each
 * communication tied together. */
TSR_API tsr_status tsr_simulation_trace(const tsr_simulation *simulation, const char *path);
/* Another plan to compare with the first: its model, which belongs to another session, and its
 * figures. */
typedef struct tsr_report_side {
    tsr_model *model;
    const char *title;  /* NULL: the model's file */
    const char *config; /* NULL: the only one */
    const tsr_topology *topology;
    const tsr_plan_result *plan; /* NULL: not known */
    const tsr_simulation *simulation;
} tsr_report_side;
typedef struct tsr_report_input {
    size_t size;
    const char *title;            /* NULL: the model's file */
    const char *config;           /* NULL: the only one of the model, or none */
    const tsr_topology *topology; /* NULL: not shown */
    const tsr_plan_result *plan;  /* NULL: not shown; the same for what follows */
    const tsr_simulation *simulation;
    const char *trace;         /* a trace of tsr_job_trace, to be set beside it */
    const tsr_dim_size *sizes; /* of symbolic dimensions, besides those of the plan */
    size_t n_sizes;
    int64_t memory;      /* the limit of each device; 0: what the topology's devices have */
    const char *command; /* that makes this page again; NULL: not shown */
    const tsr_report_side *beside; /* another plan, NULL: none */
    /* NULL or "html": the page. "model-explorer": microseconds of each node (or with
     * "model-explorer-cuts" how its output is cut) as a file that Model Explorer loads as node
     * data; needs the simulation. */
    const char *format;
} tsr_report_input;
TSR_API tsr_status tsr_report_page(tsr_model *model, const tsr_report_input *options,
                                   const char *path);

/* ---- shardings ------------------------------------------------------------------------------- */

/* What a sharding does to a shape; boxes are owned by the session until the next call. devices 0:
 * the number that the text names. */
TSR_API tsr_status tsr_tiles(tsr_session *session, const char *text, int rank, const int64_t *shape,
                             int64_t devices, const tsr_box **out, size_t *n);
/* One step of a resharding. Bytes are exact, for uneven and strided pieces too: what must arrive,
 * not what a protocol adds. */
typedef struct tsr_step {
    /* slice, all-gather, all-to-all, reduce-scatter, all-reduce, reduce, permute, broadcast,
     * scatter, gather, exchange */
    const char *op;
    /* along which is gathered (-1: several, or none); all-to-all: cut before, cut after */
    int axis, to_axis;
    int64_t received;     /* the most bytes that one device takes in */
    int64_t sent;         /* the most that one gives out */
    int64_t total;        /* taken in by all together */
    const char *sharding; /* after the step */
    /* that work side by side; of reduce, broadcast, scatter, gather the centre comes first */
    const tsr_group *groups;
    size_t n_groups;
} tsr_step;
/* The cheapest steps from one sharding of a tensor to another, in the compact notation; none if
 * nothing is to be done. pending: NULL, or "sum", "max", "min", "prod": the owners of each tile
 * hold parts of it that are still to be combined. An exchange of overlaps is always possible, so no
 * pair is refused, unless the target needs a tile that no device of the source holds (finding
 * reshard-source). Elements must take whole bytes. Steps are owned by the session until the next
 * call. */
TSR_API tsr_status tsr_reshard_plan(tsr_session *session, const char *from, const char *to,
                                    const char *pending, tsr_dtype type, int rank,
                                    const int64_t *shape, const tsr_step **out, size_t *n);
/* Predicted time of these steps, in picoseconds, on a topology whose devices 0 .. n-1 hold the
 * tensor. */
TSR_API tsr_status tsr_reshard_time(tsr_session *session, const char *from, const char *to,
                                    const char *pending, tsr_dtype type, int rank,
                                    const int64_t *shape, tsr_topology *topology, int64_t *out);

/* Writes the shardings of each node into its metadata, too (ai.tessera.sharding.NAME of
 * configuration NAME), where viewers such as Netron show it; removes stale labels, or (wanted
 * false) all of them. Labels are for people: nothing reads them. */
TSR_API tsr_status tsr_model_label(tsr_model *model, bool wanted);
TSR_API bool tsr_model_labelled(const tsr_model *model); /* some node has a label */
/* Gives every node that can be sharded, in bodies too, a random valid sharding and replaces its
 * annotations under the configuration: one or several factors, uneven and strided shards, groups,
 * devices in any order, outputs in other layouts; sometimes stages. The same seed gives the
 * same shardings. A dimension is cut in at most as many parts as it has elements: symbolic ones
 * only where sizes (the least that they will have) say how many. */
TSR_API tsr_status tsr_model_shard_random(tsr_model *model, tsr_config *config, uint64_t seed,
                                          const tsr_dim_size *sizes, size_t n);
/* What the nodes say under the configuration, as lines that `tessera annotate --script` takes.
 * Owned by the session until the next call. */
TSR_API tsr_status tsr_config_edits(tsr_model *model, const tsr_config *config, const char **out);

#ifdef __cplusplus
}
#endif
#endif
