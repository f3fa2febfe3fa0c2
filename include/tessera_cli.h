/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera_cli.h - what the `tessera` command, the Python package and the modules of the library share
 * and applications do not need.
 *
 * This header is not installed and no part of the ABI. libtessera.so exports these functions under the
 * symbol version TESSERA_PRIVATE (tools/symbols): they may change in every release, and programs that
 * use them must be of the same build as the library.
 */
#ifndef TESSERA_CLI_H
#define TESSERA_CLI_H

#include "tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- basics -------------------------------------------------------------------------------- */

/* The whole of a regular file of at most `limit` bytes as text, with a zero behind it; owned by the session until the next call. A
 * pipe, a device, a folder, a read error and a file that is too large are TSR_IO. */
TSR_API tsr_status tsr_session_read(tsr_session *session, const char *path, size_t limit,
                                    const char **text, size_t *bytes);
/* A new folder for temporary files under base (NULL: /tmp). It goes with the session, or when tsr_session_sweep is called. */
TSR_API tsr_status tsr_session_temporary(tsr_session *session, const char *base, const char **path);
/* Removes all temporary files and folders that the session has at this moment, outputs that are not complete included. For
 * signal handlers that end the process: it uses system calls alone. The session can do no more than be freed afterwards. */
TSR_API void tsr_session_sweep(tsr_session *session);

/* ---- shardings ----------------------------------------------------------------------------- */

/* TSR_USAGE (dim-unknown, dim-size) if the model has no dimension of a name, or a size is less than 1. Calls that take sizes
 * check them likewise. */
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
    /* why factors that the rule keeps whole (_: dimensions that have none) are, in pairs: "t: each step needs the one
     * before; f c: ..."; owned as words are */
    const char *stays;
} tsr_rule;
/* The i-th row of the table; false past the end. Rows are ordered by operator, then by domain and opset. */
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
/* Two documents of tsr_plan_save side by side. Owned by the session until the next call of this or tsr_plan. */
TSR_API tsr_status tsr_plan_compare(tsr_session *session, const char *a, const char *b,
                                    tsr_plan_comparison *out);

/* ---- partition ----------------------------------------------------------------------------- */

/* Takes rank files that others have changed (an optimiser, say) into the manifest again: their digests and those of the data files
 * that they name now are renewed, after it was proved that each still has its inputs and outputs, by name, type and sizes, and all
 * of its communications, in their order, on the chain of tokens, as the other ranks have them; else TSR_INVALID, one finding for
 * each breach, and nothing is written. *files: those that were renewed, owned by the session until the next partition. */
TSR_API tsr_status tsr_partition_reseal(tsr_session *session, const char *folder,
                                        const char *const **files, size_t *n);

/* ---- run, verify --------------------------------------------------------------------------- */

/* TSR_UNSUPPORTED (tensor-kind) if an input or output of the model is no tensor and no sequence of tensors: such a model can be
 * sharded, but not run. */
TSR_API tsr_status tsr_model_check_ports(const tsr_model *model);
/* Ranks that are threads or children of this process keep to equal shares of the cores that it may use, if there are enough.
 * Says which are those of one rank of so many: fills at most n of their numbers, returns how many there are; 0: none, it runs
 * wherever the system puts it. *threads, if not NULL: of each rank by default. */
TSR_API int tsr_run_cores(int rank, int ranks, int *cores, int n, int *threads);

/* *out: this engine loses digits of products of 8-bit numbers on this CPU (one of x86 without VNNI), see
 * `tessera explain engine-saturates`. Runs a small model, which is written below the folder work (NULL: /tmp) and taken away. */
TSR_API tsr_status tsr_engine_saturates(tsr_session *session, const char *work, bool *out);
/* What a device of that name is on this machine: by kind ("GPU:1" -> "CUDA:1", "NPU" -> "QNN") or as ONNX Runtime's provider is
 * called ("CPU"). Fills at most cap bytes; false: the ONNX Runtime of this session has nothing for it (or none is opened). */
TSR_API bool tsr_engine_device(tsr_session *session, const char *name, char *out, size_t cap);

/* Ranks that a rank communicates with, and how: "threads", "shm" (shared memory), "mpi"; where they are on GPUs "own" (they read each
 * other's memory), "ipc" (the same, between processes), "nccl", or "host" (in chunks through pinned memory). */
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
    /* bytes: taken at most, of its GPU or (with its weights) of the host, 0: not known (ONNX Runtime before 1.23); limit of its GPU, 0: none */
    int64_t memory, memory_limit;
    const tsr_rank_group *groups;
    size_t n_groups;
} tsr_rank_facts;
/* Of the last run of this session with the option `facts`: its number of ranks (0: none; under a launcher on all but rank 0), and
 * what a rank was, owned by the session until the next such run; false: there is no such rank. */
TSR_API int tsr_run_ranks(const tsr_session *session);
TSR_API bool tsr_run_rank(tsr_session *session, int rank, tsr_rank_facts *out);

/* Joins the MPI job that a launcher started this process in, so that the other ranks learn at once if this one fails
 * before it runs; tsr_run does it by itself. TSR_OK, and nothing done, where there is no launcher. */
TSR_API tsr_status tsr_join(tsr_session *session, const tsr_run_options *options);

/* This process's place in an MPI job: false if it was not started by a launcher. */
TSR_API bool tsr_launcher(int *rank, int *ranks, const char **family);
/* This process's place in a run with these options (NULL: none): what they say, else what the launcher says; false: it has none,
 * and all ranks run here. */
TSR_API bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks);

/* Whether ranks can be run over "threads", "openmpi", "mpich" or "ucx" here (its plug-in is present). */
TSR_API bool tsr_transport_available(const char *family);

/* ---- text ---------------------------------------------------------------------------------- */

/* Copies text so that a terminal shows it as it is: control characters (newline and tab excepted), marks that reorder a line and
 * broken UTF-8 become \\xNN. Fills at most cap bytes (16 or more), whole characters only, and returns how many; *used: bytes of text that were
 * taken. A character that text ends in the middle of is not taken, unless this is the last of it. */
TSR_API size_t tsr_safe_text(const char *text, size_t n, bool last, char *out, size_t cap,
                             size_t *used);

/* The candidate that a misspelt word is nearest to, for "did you mean"; NULL: none is near. */
TSR_API const char *tsr_nearest(const char *word, const char *const *candidates, size_t n);

/* Writes one JSON document, pretty-printed, deterministic. A document that has failed (no memory, unbalanced) takes further calls
 * and gives no text; tsr_json_new gives NULL where there is no memory, and NULL is fine for all calls. */
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

/* Element types, and kinds of work, of which a device may have a speed of its own. */
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
    TSR_MOVE_COPY = 9,   /* parts taken out as they are; 0: as stream */
    TSR_MOVE_ERROR = 10, /* error functions: Gelu; 0: as curve */
    TSR_MOVE_POOL = 11,  /* 0: as stream */
    TSR_MOVE_COUNT = 12
} tsr_move;

typedef struct tsr_topology_device {
    const char *name;
    int64_t memory;   /* bytes */
    double flops;     /* float32 operations per second */
    double bandwidth; /* bytes of its memory per second */
    double overhead;  /* seconds that the engine takes for a node besides its work; 0: nothing */
    double rates[TSR_RATE_COUNT]; /* operations per second by type and kind; 0: as flops */
    double moves[TSR_MOVE_COUNT]; /* bytes per second by way; 0: as bandwidth */
    double near[TSR_MOVE_COUNT];  /* the same of nodes with a MiB or two; 0: as moves */
    bool queued; /* nodes are handed over ahead: their overhead hides behind work */
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

/* The GPUs of this machine, as CUDA's driver has them; a process of its own looks, so that this one may still start ranks as
 * processes. Libraries as in tsr_run_options. n 0: why says the reason. Texts are the session's until the next call. */
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
/* Devices of this machine by name: "cuda:4" (GPUs 0 to 3), "cuda:2@1" (two ranks that share GPU 1), "CUDA:0,CUDA:0,CPU";
 * "auto": as many GPUs as are best, or ranks that divide the cores where there is no GPU. Their
 * memory is what is free; what ranks share is divided between them. tsr_topology_is_real: the text is of that form. */
TSR_API bool tsr_topology_is_real(const char *text);
TSR_API const tsr_topology_device *tsr_topology_device_at(const tsr_topology *topology, int device);
/* Fields that are NULL or not positive stay as they are. */
TSR_API void tsr_topology_set_device(tsr_topology *topology, int device,
                                     const tsr_topology_device *d);
/* Of all links. */
TSR_API void tsr_topology_set_links(tsr_topology *topology, double latency, double bandwidth);
/* Of the links between hosts alone, where it is known which devices share a host: hosts:2x8, boxes. False: it is not known. */
TSR_API bool tsr_topology_set_network(tsr_topology *topology, double latency, double bandwidth);
/* Name and source of the i-th box that tsr_topology_parse knows ("h100:8"); NULL past the end. */
TSR_API const char *tsr_topology_box(size_t i, const char **source);
TSR_API size_t tsr_topology_links(const tsr_topology *topology);
TSR_API bool tsr_topology_link_at(const tsr_topology *topology, size_t i, int *from, int *to,
                                  double *latency, double *bandwidth);
/* The i-th choice, owned by the topology; past the end the topology itself. */
TSR_API const tsr_topology *tsr_topology_choice(const tsr_topology *topology, size_t i);
/* Adds its fields to the object that is open in the document; tsr_topology_parse reads that object. */
TSR_API void tsr_topology_add_json(const tsr_topology *topology, tsr_json *json);

/* Runs the model of the options on the ranks that the topology was measured for, and adds the times of its nodes. */
TSR_API tsr_status tsr_topology_see(tsr_topology *topology, const tsr_measure_options *options);

/* Sides of the grid, torus or hosts that its devices form, row by row, recognised where it is a list: their number (0: none), and at most n of them. */
TSR_API int tsr_topology_grid(const tsr_topology *topology, int *sides, int n);

typedef struct tsr_topology_price {
    int64_t picoseconds;
    int64_t bound;         /* no algorithm is faster */
    const char *algorithm; /* the one that is priced */
} tsr_topology_price;
/* What a collective over the devices of a group costs; bytes: of the whole tensor. */
TSR_API tsr_status tsr_topology_cost(tsr_topology *topology, tsr_collective what, const int *group,
                                     int n, int64_t bytes, tsr_topology_price *out);

/* ---- simulate, report ---------------------------------------------------------------------- */

/* Writes it for Perfetto or chrome://tracing: a process for each device, the pieces of each communication tied together. */
TSR_API tsr_status tsr_simulation_trace(tsr_session *session, const tsr_simulation *simulation,
                                        const char *path);

/* ---- generation folders -------------------------------------------------------------------- */

/* True if one node alone reads the cache `past`, is given its used length, and returns it as `present`
 * with the same capacity: such a cache can be updated in place (states_in_place). */
TSR_API bool tsr_cache_has_room(const tsr_value *past, const tsr_value *present);
TSR_API int64_t tsr_folder_vocabulary(const tsr_folder *folder); /* how many tokens there are */
/* Sizes of the symbolic dimensions for so many new tokens after so many past ones, in a batch of one. Owned by the folder. */
TSR_API tsr_status tsr_folder_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                                    const tsr_dim_size **out, size_t *n);
/* Puts inputs of these sizes that fit together into a set: tokens of the vocabulary, a mask of ones, random caches. */
TSR_API tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens,
                                     int64_t past, tsr_tensors *to);

#ifdef __cplusplus
}
#endif
#endif
