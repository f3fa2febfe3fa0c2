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

/* Reads a regular file of at most `limit` bytes as text with a NUL after it. The text is owned
 * by the session until the next call. Returns TSR_IO for a pipe, a device, a folder, a read
 * error, or a file that is too large. */
TSR_API tsr_status tsr_session_read(tsr_session *session, const char *path, size_t limit,
                                    const char **text, size_t *bytes);
/* Creates a folder for temporary files in `base` (NULL: /tmp). It is removed with the session,
 * or by tsr_session_sweep. */
TSR_API tsr_status tsr_session_temporary(tsr_session *session, const char *base, const char **path);
/* Removes all temporary files and folders of the session, and its incomplete outputs. For signal
 * handlers that end the process: makes system calls only. Afterwards the session can only be
 * freed. */
TSR_API void tsr_session_sweep(tsr_session *session);

/* ---- shardings ----------------------------------------------------------------------------- */

/* Returns TSR_USAGE (dim-unknown, dim-size) if the model has no dimension of a given name, or if
 * a size is less than 1. Calls that take sizes make the same check. */
TSR_API tsr_status tsr_model_check_dims(tsr_model *model, const tsr_dim_size *sizes, size_t n);
/* True if the configuration (NULL: the only one) was planned with a size for this dimension; size
 * may be NULL. */
TSR_API bool tsr_model_plan_size(const tsr_model *model, const char *config, const char *name,
                                 int64_t *size);

/* Returns the graph in which the last step of a path is searched: the main graph, a subgraph or the
 * body of a function, as in tsr_model_find_node. *last becomes the last step, a part of the text.
 * NULL: another step names no node, several nodes, or no subgraph. */
TSR_API tsr_graph *tsr_model_find_graph(const tsr_model *model, const char *text,
                                        const char **last);

/* ---- check, infer -------------------------------------------------------------------------- */

/* How an operator can be sharded: one row of the table of rules. Texts are never NULL. */
typedef struct tsr_rule {
    size_t size;
    const char *op, *domain; /* domain "" for ai.onnx */
    int64_t since;           /* first opset to which it applies */
    /* "[B~ m k],[B~ k n] -> [B* m n]; red k:sum"; if attributes change the rule, its usual form */
    const char *rule;
    const char *note;
    const char *whole; /* not empty: why it is never sharded */
    /* the row in words, one line per property; owned by the session until the next call */
    const char *words;
    bool bodies; /* control flow: the nodes of its bodies are sharded */
    /* why factors are not sharded (_: dimensions without a factor), in pairs: "t: each step
     * needs the one before; f c: ..."; owned like `words` */
    const char *stays;
} tsr_rule;
/* Returns row i of the table; false: there is no such row. Rows are ordered by operator, then by
 * domain and opset. */
TSR_API bool tsr_rule_at(tsr_session *session, size_t i, tsr_rule *out);

/* ---- plan ---------------------------------------------------------------------------------- */

typedef struct tsr_plan_side {
    const char *model, *sha256, *config; /* sha256 "": the model was not in a file */
    int64_t devices, cost;
    int64_t memory; /* bytes on the fullest device */
    const tsr_collective_count *collectives;
    size_t n_collectives;
} tsr_plan_side;
/* A node whose shardings differ; "": it has no sharding in this plan. */
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
/* Compares two documents of tsr_plan_save. The result is owned by the session until the next
 * call of this function or tsr_plan. */
TSR_API tsr_status tsr_plan_compare(tsr_session *session, const char *a, const char *b,
                                    tsr_plan_comparison *out);

/* ---- partition ----------------------------------------------------------------------------- */

/* Updates the manifest after another program, such as an optimizer, has changed rank files.
 * First checks that each rank file still has its inputs and outputs, with names, types and
 * sizes, and the same communication as the other ranks in the same order. Otherwise returns
 * TSR_INVALID with a diagnostic for each violation and writes nothing. *files lists the files
 * with new digests and is owned by the session until the next partition. */
TSR_API tsr_status tsr_partition_reseal(tsr_session *session, const char *folder,
                                        const char *const **files, size_t *n);

/* ---- run, verify --------------------------------------------------------------------------- */

/* Returns TSR_UNSUPPORTED (tensor-kind) if an input or output of the model is neither a tensor
 * nor a sequence of tensors: such a model can be sharded, but not run. */
TSR_API tsr_status tsr_model_check_ports(const tsr_model *model);
/* Returns the cores of a rank. Ranks that are threads or children of this process get equal
 * shares of its cores if there are enough. Writes at most n core numbers to `cores` and returns
 * their number; 0: the rank is not bound to cores. *threads, if not NULL, becomes the default
 * number of threads of a rank. */
TSR_API int tsr_run_cores(int rank, int ranks, int *cores, int n, int *threads);

/* Sets *out if the engine saturates products of 8-bit numbers on this CPU (x86 without VNNI; see
 * `tessera explain engine-saturates`). Runs a small model in a temporary file in the folder
 * `work` (NULL: /tmp). */
TSR_API tsr_status tsr_engine_saturates(tsr_session *session, const char *work, bool *out);
/* Finds the provider for the name of a device: by kind ("GPU:1" -> "CUDA:1", "NPU" -> "QNN") or
 * as ONNX Runtime names its providers ("CPU"). Writes at most cap bytes. Returns false if the
 * ONNX Runtime of this session has no such provider, or if none is open. */
TSR_API bool tsr_engine_device(tsr_session *session, const char *name, char *out, size_t cap);

/* A group of ranks that communicate, and their method: "threads", "shm" (shared memory) or
 * "mpi"; on GPUs "own" (they read each other's memory), "ipc" (the same between processes),
 * "nccl" or "host" (in chunks through pinned memory). */
typedef struct tsr_rank_group {
    const int64_t *ranks;
    size_t n_ranks;
    const char *way;
} tsr_rank_group;
/* Properties of one rank of a run. */
typedef struct tsr_rank_facts {
    size_t size;
    const char *device, *provider; /* after map_devices: "CUDA:0"; ONNX Runtime's name: "CUDA" */
    int threads;
    /* in bytes. memory: peak use of its GPU, or of the host including its weights; 0: unknown
     * (ONNX Runtime before 1.23). memory_limit: of its GPU; 0: none */
    int64_t memory, memory_limit;
    const tsr_rank_group *groups;
    size_t n_groups;
} tsr_rank_facts;
/* For the last run of this session with the option `facts`: tsr_run_ranks returns the number of
 * ranks (0: no such run; under a launcher only rank 0 has it). tsr_run_rank returns the
 * properties of a rank, owned by the session until the next such run; false: there is no such
 * rank. */
TSR_API int tsr_run_ranks(const tsr_session *session);
TSR_API bool tsr_run_rank(tsr_session *session, int rank, tsr_rank_facts *out);

/* Joins the MPI job of the launcher that started this process, so that the other ranks are
 * informed if this one fails before its run. tsr_run does this itself. Without a launcher it
 * does nothing and returns TSR_OK. */
TSR_API tsr_status tsr_join(tsr_session *session, const tsr_run_options *options);

/* Returns rank and number of ranks of this process in an MPI job; false: no launcher started it. */
TSR_API bool tsr_launcher(int *rank, int *ranks, const char **family);
/* Returns rank and number of ranks of this process in a run with these options (NULL: none),
 * from the options or else from the launcher; false: all ranks run in this process. */
TSR_API bool tsr_run_place(const tsr_run_options *options, int *rank, int *ranks);

/* True if ranks can communicate over "threads", "openmpi", "mpich" or "ucx" on this machine: its
 * plug-in was found. */
TSR_API bool tsr_transport_available(const char *family);
/* Returns how to install the plug-in of "openmpi", "mpich" or "ucx", or what a plug-in that was
 * found needs. */
TSR_API const char *tsr_plugin_remedy(const char *family);
/* True if this library is part of the Python package of a wheel, which has other remedies than a
 * source tree: nothing can be rebuilt there. */
TSR_API bool tsr_in_wheel(void);

/* ---- workers ------------------------------------------------------------------------------- */

/* Options of a worker, which runs ranks for sessions of other hosts (`hosts` of tsr_run_options). */
typedef struct tsr_worker_options {
    size_t size;
    const char *host;      /* where it listens: an address or a name of this host */
    int port;              /* 0: any free one */
    const char *secret;    /* shared with the sessions */
    const char *interface; /* network interface between hosts; NULL: by the route */
    const char *cache;     /* folder for the files of sessions; created if it is not there */
    int64_t cache_bytes;   /* its limit */
    int64_t memory;        /* limit of the ranks of a session together in bytes; 0: none */
    int sessions;          /* served at a time */
    int most_ranks;        /* per session; 0: no limit */
    bool gpus;             /* sessions may use GPUs */
    bool check;            /* only check the options and that it can listen, then return */
    const char *plugins, *gpu_driver, *gpu_nccl; /* as in tsr_run_options */
    /* Called with the address of a session (NULL: the worker itself) and what it does. May be
     * called in child processes. */
    void (*log)(void *data, const char *from, const char *text);
    void *log_data;
} tsr_worker_options;
/* Waits for sessions and serves them until tsr_session_cancel is called. The engine should be open:
 * sessions with another version are refused. Starts processes, so call it in a program without
 * threads. */
TSR_API tsr_status tsr_worker(tsr_session *session, const tsr_worker_options *options);

/* Reads a list of hosts such as "a:4,b:4" or "a,[fd00::2]:2". Returns the number of their devices; 0:
 * not a valid list. topology, if not NULL, gets n bytes for tsr_topology_find: "hosts:2x4", or the
 * number of devices if hosts have different numbers. */
TSR_API int tsr_hosts_read(const char *list, char *topology, size_t n);
/* Reads the secret of a job, the first line of a file, into n bytes. */
TSR_API tsr_status tsr_secret_read(tsr_session *session, const char *file, char *out, size_t n);
/* Writes 64 random hexadecimal digits and a NUL. Returns false if the system has no random numbers. */
TSR_API bool tsr_random_digits(char out[65]);
/* Finds the address at which another host reaches this one: `own` if it is an address and not of
 * the loopback, else that of the route to the other host. A name of this host would not do: it
 * might lead to its loopback interface, or be unknown elsewhere. Returns false if there is no route
 * or n is too small. */
TSR_API bool tsr_own_address(const char *own, const char *other, char *out, size_t n);
/* Returns a port of this host that no program uses at this moment; 0: none. */
TSR_API int tsr_free_port(void);

/* ---- text ---------------------------------------------------------------------------------- */

/* Copies text so that it cannot change a terminal: control characters (except newline and tab),
 * marks that reorder a line and invalid UTF-8 become \\xNN. Writes at most cap bytes (16 or
 * more), complete characters only, and returns their number. *used becomes the number of bytes
 * that were read from text. An incomplete character at the end is not read unless `last` is
 * true. */
TSR_API size_t tsr_safe_text(const char *text, size_t n, bool last, char *out, size_t cap,
                             size_t *used);

/* Reads a number of bytes: "16GiB", "512 MB", "1000". Returns false for other texts, less than 1
 * and 2^62 or more: a sum of a few sizes must not overflow. */
TSR_API bool tsr_bytes_read(const char *text, int64_t *out);
/* Returns the candidate that is nearest to a misspelt word, for "did you mean"; NULL: none is
 * near. */
TSR_API const char *tsr_nearest(const char *word, const char *const *candidates, size_t n);

/* Writes one JSON document, indented and deterministic. After a failure (out of memory,
 * unbalanced calls) further calls are allowed, and there is no text. tsr_json_new returns NULL
 * if out of memory; all functions accept NULL. */
typedef struct tsr_json tsr_json;
TSR_API tsr_json *tsr_json_new(tsr_session *session);
TSR_API void tsr_json_free(tsr_json *json);
/* Begins an object ('{') or an array ('['). In arrays, key is NULL here and in the functions
 * below. */
TSR_API void tsr_json_begin(tsr_json *json, const char *key, char kind);
TSR_API void tsr_json_end(tsr_json *json);
/* A NULL value is written as null. */
TSR_API void tsr_json_string(tsr_json *json, const char *key, const char *value);
TSR_API void tsr_json_int(tsr_json *json, const char *key, int64_t value);
TSR_API void tsr_json_number(tsr_json *json, const char *key, double value); /* NaN: null */
TSR_API void tsr_json_bool(tsr_json *json, const char *key, bool value);
TSR_API void tsr_json_null(tsr_json *json, const char *key);
/* Adds an array of numbers; adds an object with the number of uses of each collective. */
TSR_API void tsr_json_ints(tsr_json *json, const char *key, const int64_t *values, size_t n);
TSR_API void tsr_json_collectives(tsr_json *json, const char *key,
                                  const tsr_collective_count *counts, size_t n);
/* Returns the complete text, NUL-terminated; NULL: out of memory or unbalanced. Valid until the
 * document is freed. */
TSR_API const char *tsr_json_text(tsr_json *json);
/* Writes the text to a file, completely or not at all. */
TSR_API tsr_status tsr_json_write(tsr_json *json, const char *path);
/* Adds the diagnostics of the session as an array, as `check --json` prints them. */
TSR_API void tsr_json_findings(tsr_json *json, const char *key);
/* Adds them to the array that is open. */
TSR_API void tsr_json_finding_items(tsr_json *json);

/* ---- topology ------------------------------------------------------------------------------ */

/* Element types and kinds of work for which a device may have a separate rate. */
typedef enum tsr_rate {
    TSR_RATE_TF32 = 0, /* float32 products whose inputs are rounded to TF32 */
    TSR_RATE_FLOAT16 = 1,
    TSR_RATE_BFLOAT16 = 2,
    TSR_RATE_FLOAT8 = 3,
    TSR_RATE_INT8 = 4,
    TSR_RATE_INT4 = 5,
    TSR_RATE_FLOAT64 = 6,
    TSR_RATE_CONVOLUTION = 7, /* from here on kinds of work, in float32 */
    TSR_RATE_DEPTHWISE = 8,   /* convolutions of single channels */
    TSR_RATE_PACKED = 9,      /* products with weights of 4 bits */
    TSR_RATE_ATTENTION = 10,  /* fused attention */
    TSR_RATE_RECURRENCE = 11, /* LSTM, GRU */
    TSR_RATE_POOL = 12,
    TSR_RATE_TREES = 13,   /* visited nodes of tree ensembles per second; 0: flops / 350 */
    TSR_RATE_KERNELS = 14, /* support vector machines: kernel functions per second; 0: flops / 9 */
    TSR_RATE_COUNT = 15
} tsr_rate;

/* Access patterns of nodes. */
typedef enum tsr_move {
    TSR_MOVE_STREAM = 0,  /* one element after the other: sums, masks */
    TSR_MOVE_WEIGHTS = 1, /* a matrix that is multiplied with few rows */
    TSR_MOVE_PACKED = 2,  /* the same with weights of 4 bits */
    TSR_MOVE_CACHE = 3,   /* keys and values that few queries read */
    TSR_MOVE_SOFTMAX = 4,
    TSR_MOVE_NORM = 5,
    TSR_MOVE_CURVE = 6, /* exponentials: much work per element */
    TSR_MOVE_TURN = 7,  /* transposes */
    TSR_MOVE_REDUCE = 8,
    TSR_MOVE_COPY = 9,     /* slices; 0: as stream */
    TSR_MOVE_ERROR = 10,   /* error functions: Gelu; 0: as curve */
    TSR_MOVE_POOL = 11,    /* 0: as stream */
    TSR_MOVE_GROUPED = 12, /* caches that groups of query heads share; 0: as cache */
    TSR_MOVE_COUNT = 13
} tsr_move;

typedef struct tsr_topology_device {
    const char *name;
    int64_t memory;                /* bytes */
    double flops;                  /* float32 operations per second */
    double bandwidth;              /* bytes of its memory per second */
    double overhead;               /* seconds that the engine needs for a node besides its work */
    double rates[TSR_RATE_COUNT];  /* operations per second by type and kind of work; 0: as flops */
    double moves[TSR_MOVE_COUNT];  /* bytes per second by access pattern; 0: as bandwidth */
    double cached[TSR_MOVE_COUNT]; /* the same for nodes of about 2 MiB, which fit in caches; 0:
                                    * as moves */
    bool queued; /* nodes are queued ahead, so that their overhead is hidden behind work */
    /* A node takes the longer time of arithmetic and memory traffic, plus this share of the shorter
     * one; 0: a quarter. */
    double unhidden;
} tsr_topology_device;

typedef enum tsr_collective {
    TSR_ALL_REDUCE = 0,
    TSR_REDUCE_SCATTER = 1,
    TSR_ALL_GATHER = 2,
    TSR_ALL_TO_ALL = 3,
    TSR_BROADCAST = 4, /* from the first device of the group */
    TSR_REDUCE = 5,    /* to the first device of the group */
    TSR_SEND = 6,      /* from the first of two devices to the second */
    TSR_COLLECTIVE_COUNT = 7
} tsr_collective;
TSR_API const char *tsr_collective_name(tsr_collective what); /* "all-reduce"; NULL: unknown */

/* The GPUs of this machine, from the CUDA driver. A child process opens the driver, so that this
 * process can still start ranks as processes. Libraries as in tsr_run_options. If n is 0, `why`
 * is the reason. Texts are owned by the session until the next call. */
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
/* True if the text names devices of this machine: "cuda:4" (GPUs 0 to 3), "cuda:2@1" (two ranks
 * that share GPU 1), "CUDA:0,CUDA:0,CPU", or "auto" (the best number of GPUs; without a GPU,
 * ranks that divide the cores). The memory of such a device is its free memory, divided among
 * the ranks that share it. */
TSR_API bool tsr_topology_is_real(const char *text);
TSR_API const tsr_topology_device *tsr_topology_device_at(const tsr_topology *topology, int device);
/* Sets the figures of a device. Fields that are NULL or not positive stay unchanged. */
TSR_API void tsr_topology_set_device(tsr_topology *topology, int device,
                                     const tsr_topology_device *d);
/* Sets latency and bandwidth of all links. */
TSR_API void tsr_topology_set_links(tsr_topology *topology, double latency, double bandwidth);
/* Sets latency and bandwidth of the links between hosts. Returns false if it is unknown which
 * devices share a host (known for hosts:2x8 and boxes). */
TSR_API bool tsr_topology_set_network(tsr_topology *topology, double latency, double bandwidth);
/* Returns name and source of box i of tsr_topology_parse ("h100:8"); NULL: there is no such box. */
TSR_API const char *tsr_topology_box(size_t i, const char **source);
/* Returns what the speeds rest on: "measured" (on real devices, or described in a file),
 * "published" (a box whose predictions docs/published.md compares with published measurements),
 * "data sheet" (other boxes), or "assumed" (defaults). */
TSR_API const char *tsr_topology_basis(const tsr_topology *topology);
TSR_API size_t tsr_topology_links(const tsr_topology *topology);
/* Returns the number of devices whose links are listed: all, or in a machine with very many hosts
 * those of the first hosts. The other hosts have the same links. */
TSR_API int tsr_topology_listed(const tsr_topology *topology);
TSR_API bool tsr_topology_link_at(const tsr_topology *topology, size_t i, int *from, int *to,
                                  double *latency, double *bandwidth);
/* If the planner chooses the number of devices ("auto"): returns the topology of its i-th choice,
 * owned by the topology. After the last choice returns the topology itself. */
TSR_API const tsr_topology *tsr_topology_choice(const tsr_topology *topology, size_t i);
/* Adds the fields of the topology to the open object of the document. tsr_topology_parse reads
 * such an object. */
TSR_API void tsr_topology_add_json(const tsr_topology *topology, tsr_json *json);

/* Runs the model of the options on the ranks for which the topology was measured, and adds the
 * measured times of its nodes. */
TSR_API tsr_status tsr_topology_add_profile(tsr_topology *topology,
                                            const tsr_measure_options *options);

/* Returns the number of sides of the grid, torus or hosts that the devices form in row-major
 * order (0: none), and writes at most n of them. Recognizes grids in lists of links too. */
TSR_API int tsr_topology_grid(const tsr_topology *topology, int *sides, int n);

typedef struct tsr_topology_price {
    int64_t picoseconds;
    int64_t bound;         /* no algorithm is faster */
    const char *algorithm; /* the algorithm that runs for this size */
} tsr_topology_price;
/* Predicts the time of a collective over the devices of a group. `bytes` is the size of the full
 * tensor. */
TSR_API tsr_status tsr_topology_cost(tsr_topology *topology, tsr_collective what, const int *group,
                                     int n, int64_t bytes, tsr_topology_price *out);

/* ---- generation folders -------------------------------------------------------------------- */

/* Returns the output that is the input `past` in the next run of a language model, found by name or
 * by the node that appends to it. NULL: the input is not a cache. */
TSR_API tsr_value *tsr_cache_present(const tsr_value *past);
/* True for names that exporters give to a cache: past_key_values.3.key and present.3.key. */
TSR_API bool tsr_cache_names_match(const char *past, const char *present);
/* True if only one node reads the cache `past`, has its used length as an input, and returns it
 * as `present` with the same capacity. Such a cache can be updated in place (states_in_place). */
TSR_API bool tsr_cache_has_room(const tsr_value *past, const tsr_value *present);
/* Where the attention that returns a cache reads how many tokens it has. */
typedef struct tsr_cache_lengths {
    const tsr_value *last;  /* index of the last token of each sequence after the run */
    const tsr_value *total; /* tokens of the longest sequence after the run, with padding */
    const char *tokens;     /* the input whose size at tokens_axis is the number of new tokens; */
    int tokens_axis;
    int64_t n_tokens; /* NULL: it is always this number */
} tsr_cache_lengths;
/* Returns false if the node that returns `present` does not read such lengths. */
TSR_API bool tsr_cache_find_lengths(tsr_model *model, const tsr_value *present,
                                    tsr_cache_lengths *out);
/* True if a grouped attention node, which has fewer key heads than query heads, reads the cache. */
TSR_API bool tsr_cache_is_grouped(const tsr_value *past);
/* Repeats each key and value head of all grouped attention nodes `times` times. The model
 * computes the same, and its caches have `times` as many heads. TSR_UNSUPPORTED: the number of
 * query heads is not a multiple of the new number of key heads; the model may be partly changed. */
TSR_API tsr_status tsr_repeat_kv_heads(tsr_model *model, int64_t times);
TSR_API int64_t tsr_folder_vocabulary(const tsr_folder *folder); /* number of tokens */
/* Returns the sizes of the symbolic dimensions for `tokens` new tokens after `past` tokens, with
 * a batch of one. Owned by the folder. */
TSR_API tsr_status tsr_folder_sizes(tsr_folder *folder, int64_t tokens, int64_t past,
                                    const tsr_dim_size **out, size_t *n);
/* Adds inputs of these sizes to a set: tokens of the vocabulary, a mask of ones, random caches. */
TSR_API tsr_status tsr_folder_inputs(tsr_folder *folder, uint64_t seed, int64_t tokens,
                                     int64_t past, tsr_tensors *to);

/* ---- results as structs ---------------------------------------------------------------------- */

/* Returns diagnostic i; the oldest is 0. i must be below tsr_finding_count. */
TSR_API tsr_finding tsr_finding_value(const tsr_session *session, size_t i);
TSR_API tsr_piece tsr_pieces_value(const tsr_pieces *pieces, size_t i);

/* Figures of one of two models that were planned together. */
typedef struct tsr_plan_part {
    const char *config;
    int64_t cost;          /* picoseconds of one run */
    const int64_t *memory; /* peak bytes on each device */
    const tsr_collective_count *collectives;
    size_t n_collectives;
    size_t nodes, cut_nodes;
} tsr_plan_part;

/* Returns the figures of two models that were planned together, the second model last, and the
 * number of weights that both have; they belong to the result. *n 0: one model was planned. */
TSR_API const tsr_plan_part *tsr_plan_result_parts(const tsr_plan_result *result, size_t *n,
                                                   size_t *shared);
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
/* As tsr_plan, with these sizes too; sizes in the options win. */
TSR_API tsr_status tsr_plan_for_sizes(tsr_model *model, const tsr_plan_options *options,
                                      const tsr_dim_size *sizes, size_t n, tsr_plan_result **out);
/* Lists the nodes with the largest weights of a configuration. There are no rows for more than
 * 1024 devices. Owned by the session until the next plan. */
TSR_API tsr_status tsr_plan_picture(tsr_model *model, const char *config, const tsr_dim_size *sizes,
                                    size_t n_sizes, tsr_picture *out);
/* Returns the edits of a document of tsr_plan_save, as lines for `tessera annotate --script`. Owned by the
 * session until the next call of this function or tsr_config_edits. */
TSR_API tsr_status tsr_plan_edits(tsr_session *session, const char *path, const char **out);

/* Adds predicted times and the speed of the first device, as tsr_partition_facts has them, for a
 * call that plans first. */
TSR_API void tsr_partition_result_predict(tsr_partition_result *result, int64_t predicted,
                                          int64_t one_device, double device_flops);
/* Start and collect a run with one set for each rank of this process: inputs and outputs of its
 * rank file, sharded or full. */
TSR_API tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs);
TSR_API tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs);
/* Partitions an annotated model for a configuration (NULL: the only one) in a temporary folder
 * in `work` (NULL: /tmp), runs the partition, and removes it. Under a launcher every rank calls
 * it: rank 0 partitions, and the others (whose model may have no annotations) read its folder, so
 * all hosts must see `work`. */
TSR_API tsr_status tsr_run_annotated(tsr_model *model, const char *config, const char *work,
                                     const tsr_run_options *options, const tsr_tensors *inputs,
                                     tsr_tensors *outputs);
/* Results of tsr_bench. Times are those of one run from its start to its results, as measured by
 * rank 0 or the calling thread. */
typedef struct tsr_bench_result {
    size_t size; /* set by the caller */
    int ranks;
    size_t runs, warmups;
    double load_s; /* until the first run can begin */
    /* of all measured runs; if runs overlap, from the first start to the last result */
    double seconds;
    double mean_s, min_s, p50_s, p90_s, p95_s, p99_s, max_s;
    /* per rank: share of that time in communication, including waiting; owned by the session
     * until the next run */
    const double *communication;
    /* per rank: bytes of its process after the runs, including mapped files; 0: unknown. Owned
     * like `communication` */
    const int64_t *memory;
    int64_t process_memory; /* of the calling process; 0: the ranks are other processes */
    const double *times;    /* seconds of each run, ascending; owned like `communication` */
} tsr_bench_result;
/* The unsharded model, measured in turns with its partition. */
typedef struct tsr_bench_baseline {
    bool measured;
    const char *why; /* it was not measured; a constant */
    int threads;     /* 0: one for each core */
    tsr_bench_result result;
    /* time of an unsharded run by that of a sharded run: the median of the turns, the least and
     * the greatest */
    double speedup, least_speedup, most_speedup;
} tsr_bench_baseline;
/* Runs a partition or model repeatedly for `seconds`, after some runs that are not measured.
 * Under a launcher every rank calls it. */
TSR_API tsr_status tsr_bench(tsr_session *session, const char *path, const tsr_run_options *options,
                             const tsr_tensors *inputs, double seconds, tsr_bench_result *result);
/* The same for an annotated model, which is partitioned as by tsr_run_annotated. baseline not NULL:
 * also measures the unsharded model, for as many seconds. */
TSR_API tsr_status tsr_bench_annotated(tsr_model *model, const char *config, const char *work,
                                       const tsr_run_options *options, const tsr_tensors *inputs,
                                       double seconds, tsr_bench_result *result,
                                       tsr_bench_baseline *baseline);

/* Sizes that symbolic dimensions have in a set of inputs. */
typedef struct tsr_input_sizes {
    size_t size;
    int64_t open_size; /* of open dimensions in random inputs; 0: no open dimensions */
    const tsr_dim_size
        *sizes; /* of every symbol of the inputs; owned by the session until the next call */
    size_t n_sizes;
    /* Those of them that the caller gave, for a plan; the planner assumes the others. */
    const tsr_dim_size *given;
    size_t n_given;
    int64_t planned_size; /* size that a plan assumes for open dimensions; 0: no open dimensions */
} tsr_input_sizes;
/* Loads inputs as tsr_tensors_load does, for a run. In random inputs, an open dimension without
 * a size gets the size of the model's plan, which a partition keeps in its manifest. Without one it
 * gets 128, as tsr_plan assumes, or the largest smaller power of two with which the unsharded model
 * (for a rank file: the partition) runs. To find it, the model is run on the CPU with the custom
 * operators and threads of `run` (NULL: none, the default). Sizes for which a run would take long
 * are not tried. Under a launcher all ranks call it after tsr_join. out may be NULL. */
TSR_API tsr_status tsr_inputs_load(tsr_tensors *inputs, const char *set, const tsr_model *model,
                                   const tsr_run_options *run, tsr_input_sizes *out);

typedef enum tsr_span_kind {
    TSR_SPAN_COMPUTE = 0,
    TSR_SPAN_COMMUNICATION = 1,
    TSR_SPAN_WAITING = 2 /* for other members of a communication */
} tsr_span_kind;
/* An activity of one device. */
typedef struct tsr_span {
    tsr_span_kind kind;
    int device, request;
    const char *op, *node; /* node: its name, or its first output */
    int64_t id;            /* number of a communication in the plan; else -1 */
    double begin, end;     /* seconds */
} tsr_span;
/* One communication of the plan, in one request. */
typedef struct tsr_simulated_comm {
    int64_t id;              /* as in tsr_span */
    const char *op, *value;  /* value: name of the tensor on the first rank that has it */
    const tsr_group *groups; /* groups that communicate at the same time */
    size_t n_groups;
    /* bytes of the full tensor of a group: the result of an AllGather, the input of a reduction */
    int64_t bytes;
    int64_t carried; /* bytes over all links, counted once for each link of the route */
    double seconds;
} tsr_simulated_comm;
/* A link and its load in one request. */
typedef struct tsr_simulated_link {
    int from, to;
    int64_t bytes;
    double seconds; /* bytes divided by its bandwidth */
} tsr_simulated_link;
/* A simulation with all its lists, which belong to the handle. */
typedef struct tsr_simulation_view {
    tsr_simulation_facts facts;
    const tsr_simulated_device *device;
    /* by device, then by time; at most a million. For more than 64 devices that are copies of
     * one block: only those of the first copy */
    const tsr_span *spans;
    size_t n_spans;
    const tsr_simulated_comm *comms; /* by id */
    size_t n_comms;
    const tsr_simulated_link *links; /* links with a load, sorted by their ends */
    size_t n_links;
} tsr_simulation_view;
TSR_API const tsr_simulation_view *tsr_simulation_read(const tsr_simulation *simulation);
/* As tsr_simulate, for the folder of a partition. */
TSR_API tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                                       const tsr_simulate_options *options, tsr_simulation **out);

/* Writes the simulation for Perfetto or chrome://tracing: one process per device; flows connect
 * the spans of each communication. */
TSR_API tsr_status tsr_simulation_trace(const tsr_simulation *simulation, const char *path);
/* Another plan to compare with the first: its model, which belongs to another session, and its
 * results. */
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
    const tsr_plan_result *plan;  /* NULL: not shown; the same for the following fields */
    const tsr_simulation *simulation;
    const char *trace;         /* a trace of tsr_job_trace, to compare with the simulation */
    const tsr_dim_size *sizes; /* of symbolic dimensions, in addition to those of the plan */
    size_t n_sizes;
    int64_t memory;                /* memory limit per device; 0: that of the topology's devices */
    const char *command;           /* command that creates this page; NULL: not shown */
    const tsr_report_side *beside; /* another plan, NULL: none */
    /* NULL or "html": the page. "json": the document that the page shows. "model-explorer":
     * microseconds of each node as node data for Model Explorer. "model-explorer-cuts": the
     * sharding of each node's output instead. Both need the simulation. */
    const char *format;
} tsr_report_input;
TSR_API tsr_status tsr_report_page(tsr_model *model, const tsr_report_input *options,
                                   const char *path);
/* As format "json", in memory. To be freed with tsr_json_free. */
TSR_API tsr_status tsr_report_json(tsr_model *model, const tsr_report_input *options,
                                   tsr_json **out);

/* ---- shardings ------------------------------------------------------------------------------- */

/* Lists the tiles of a sharded shape. They are owned by the session until the next call. devices
 * 0: the number of devices in the text. */
TSR_API tsr_status tsr_tiles(tsr_session *session, const char *text, int rank, const int64_t *shape,
                             int64_t devices, const tsr_box **out, size_t *n);
/* Writes the shardings of each node into its metadata (ai.tessera.sharding.NAME for
 * configuration NAME), where viewers such as Netron show them. Removes outdated labels, or all
 * of them if `wanted` is false. Tessera does not read labels. */
TSR_API tsr_status tsr_model_label(tsr_model *model, bool wanted);
TSR_API bool tsr_model_labelled(const tsr_model *model); /* some node has a label */
/* Replaces the annotations of the configuration by a random valid sharding of every node that
 * can be sharded, also in bodies: one or several factors, uneven and strided shards, groups,
 * devices in any order, outputs in other layouts, sometimes stages. The same seed gives the same
 * shardings. A dimension has at most as many shards as elements. Symbolic dimensions are sharded
 * only if `sizes` gives their minimum size. */
TSR_API tsr_status tsr_model_shard_random(tsr_model *model, tsr_config *config, uint64_t seed,
                                          const tsr_dim_size *sizes, size_t n);
/* Returns the annotations of the configuration, as lines for `tessera annotate --script`. Owned
 * by the session until the next call. */
TSR_API tsr_status tsr_config_edits(tsr_model *model, const tsr_config *config, const char **out);

#ifdef __cplusplus
}
#endif
#endif
