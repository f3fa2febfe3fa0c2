// SPDX-License-Identifier: Apache-2.0
// cli.h - what the commands share: tables of commands and options, exit codes, printing.
//
// A command is one file commands/cmd_NAME.c with one `struct command`. Each of its options is one
// row of a table. The parser, --help, the man page, shell completion and "did you mean" use this
// row. With INTO the row also names the struct member that receives the value. Only this module
// prints, exits and reads the environment.
#ifndef TSR_CLI_H
#define TSR_CLI_H

#include "tessera_json.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

enum {
    EXIT_DONE = 0,
    EXIT_NO = 1, // errors in the model, differences, refused edits
    EXIT_USAGE = 2,
    EXIT_READ = 3, // cannot read the model or partition
    EXIT_INFEASIBLE = 4,
    EXIT_UNSUPPORTED = 5, // under --strict
    EXIT_PEER = 6,
    EXIT_ENGINE = 7,
    EXIT_WRITE = 8,
    EXIT_INTERRUPTED = 130
};

// ---- streams (output/streams.c) ----------------------------------------------------------------

// All output goes through these streams, which escape control characters in names from files.
extern FILE *cli_stdout, *cli_stderr;
#undef stdout
#undef stderr
#undef printf // macros of some C libraries and compilers
#undef putchar
#define stdout      cli_stdout
#define stderr      cli_stderr
#define printf(...) fprintf(cli_stdout, __VA_ARGS__)
#define putchar(c)  fputc(c, cli_stdout)
void cli_streams(void); // opens them
// Changes the colour of text on a terminal: "31" red, "32" green, "33" yellow, "36" cyan, "" the
// usual one. Does nothing elsewhere, with the variable NO_COLOR, and with TERM=dumb.
void cli_color(FILE *stream, const char *color);

// ---- options -----------------------------------------------------------------------------------

enum option_kind {
    OPTION_BY_COMMAND, // the command reads it with cli_value or cli_flag
    OPTION_FLAG,       // bool
    OPTION_TEXT,       // const char *
    OPTION_NUMBER,     // double above 0
    OPTION_INT,        // int from min to max
    OPTION_INT64,
    OPTION_UINT64,
    OPTION_BYTES, // int64_t: 8GiB
    OPTION_ENUM   // an enumerator: the position of the value among the choices
};
enum option_target {
    OPTION_OWN, // the struct that the command passes to cli_fill
    OPTION_RUN, // tsr_run_options
    OPTION_PLAN // tsr_plan_options
};

// Rows leave out the members that they do not need.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
struct option {
    const char *name;  // with dashes: "--config", "-o"
    const char *value; // name of its argument; NULL: a flag
    const char *help;
    enum option_kind kind;
    enum option_target target;
    size_t offset;              // of the member in the target
    int64_t min, max;           // integers; max 0: no limit
    const char *const *choices; // texts and enumerators: the allowed ones, ends with NULL
};
#define END_OF_OPTIONS                                                                             \
    {                                                                                              \
        NULL, NULL, NULL                                                                           \
    }
#define OPTION_KIND_OF(type, member)                                                               \
    _Generic(&((type *)0)->member, bool *: OPTION_FLAG, const char **: OPTION_TEXT,                \
             double *: OPTION_NUMBER, int *: OPTION_INT, int64_t *: OPTION_INT64,                  \
             uint64_t *: OPTION_UINT64)
// The last initializers of an option row: the value is stored in this member.
#define INTO_AS(where, type, member, how)                                                          \
    .kind = (how), .target = (where), .offset = offsetof(type, member)
#define INTO(type, member)       INTO_AS(OPTION_OWN, type, member, OPTION_KIND_OF(type, member))
#define INTO_BYTES(type, member) INTO_AS(OPTION_OWN, type, member, OPTION_BYTES)
#define INTO_ENUM(type, member)  INTO_AS(OPTION_OWN, type, member, OPTION_ENUM)
#define TRANSPORTS                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        "", "threads", "shm", "mpi", "ucx", NULL                                                   \
    }
#define INTO_RUN_TRANSPORT                                                                         \
    INTO_AS(OPTION_RUN, tsr_run_options, transport, OPTION_ENUM), .choices = TRANSPORTS
#define INTO_RUN(member)                                                                           \
    INTO_AS(OPTION_RUN, tsr_run_options, member, OPTION_KIND_OF(tsr_run_options, member))
#define INTO_PLAN(member)                                                                          \
    INTO_AS(OPTION_PLAN, tsr_plan_options, member, OPTION_KIND_OF(tsr_plan_options, member))

// One option of the command line.
struct given {
    const struct option *option;
    const char *value; // NULL for flags
};

struct cli;
// One command: a constant of its file, listed in commands.def.
struct command {
    const char *name, *arguments, *summary; // arguments: "MODEL", "MODEL -o OUT"
    const char *detail;                     // more lines for --help, or NULL
    const char *example;                    // works as typed from the project's root
    const struct option *options;           // besides those of cli_common
    struct {
        int least, most;
    } takes; // number of arguments
    int (*run)(struct cli *cli);
    bool python; // implemented in Python: only a wheel has it, and it has no common options
};
const struct command *cli_command_at(size_t i); // NULL: there is none
extern const struct option cli_common[];        // options of every command
const struct option *cli_common_of(const struct command *command);

// One call of the program. Only main.c, model_folder.c and place.c write it.
struct cli {
    const struct command *command;
    tsr_session *session;
    struct given *given; // options in the given order: edits are applied in that order
    size_t n_given;
    const char **arguments; // the other words
    size_t n_arguments;
    bool json, quiet, verbose;
    bool printed_json;   // the --json document was printed, or stdout belongs to another program
    const char *program; // argv[0]
    // If the argument is a generation folder (model_folder.c):
    const char *folder; // as given, or NULL
    char **made;        // values of options that model_folder.c filled in
    size_t n_made;
};

// cli_value returns the last value given for an option, or NULL; cli_flag tells whether an option
// was given.
const char *cli_value(const struct cli *cli, const char *name);
bool cli_flag(const struct cli *cli, const char *name);
// Returns the first of the names (ends with NULL) that was given, or NULL.
const char *cli_first_given(const struct cli *cli, const char *const *names);
// Collects all values of a repeatable option; `list` has space for n_given. Returns their number.
size_t cli_values(const struct cli *cli, const char *name, const char **list);
// Stores the options whose rows have this target. Returns 0, or EXIT_USAGE after a message.
int cli_fill(const struct cli *cli, enum option_target target, void *to);
// Finds an option of a command by name, including common options; NULL: none.
const struct option *cli_option(const struct command *command, const char *name, size_t n);
// Prints a usage error and refers to --help. Returns EXIT_USAGE.
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Returns an explanation for an option (value NULL) or a value that only earlier versions had, or
// NULL.
const char *cli_removed(const char *option, const char *value);

// Parse values. Return false, or -1, if the text is not valid.
bool cli_number(const char *text, double *out);     // above 0
bool cli_count_of(const char *text, uint64_t *out); // "17"
#define CLI_MAX_RANK 64
int cli_shape(const char *text, int64_t *shape);             // "7x4" -> 2 and {7, 4}; "" -> 0
bool cli_notation(const struct cli *cli, tsr_notation *out); // --notation, default tiles

// Option rows that several commands share.
// clang-format off
#define RULES_OPTION                                                                               \
    {"--rules", "FILE", "rules for custom operators, in the format of `tessera rules`"}
#define LABELS_OPTION                                                                              \
    {"--labels", NULL, "also write shardings as node metadata, for Netron and other viewers"}
#define INPUT_OPTIONS                                                                              \
    {"--inputs", "SET",                                                                            \
     ".npz, .npy, .pb, a folder test_data_set_N, or random[:SEED] (default random:0)"},            \
    {"--shape", "NAME:1x3x224x224",                                                                \
     "shape of a random input (default: sizes of --dim or another --shape, else the first of " \
     "128, 64, 32 ... with which the unsharded model runs)"}
#define HOSTS_OPTIONS                                                                              \
    {"--hosts", "a:4,b:4",                                                                         \
     "devices of each host, this one first; the others have workers. Implies UCX",                 \
     INTO_RUN(hosts)},                                                                             \
    {"--rsh", "COMMAND",                                                                           \
     "with --hosts: remote shell that starts workers where there are none, such as \"ssh -x -o "   \
     "BatchMode=yes\"", INTO_RUN(rsh)}
#define PLACE_OPTIONS                                                                              \
    {"--rank", "K", "run as rank K of --ranks N or --hosts; start the other ranks the same way"},  \
    {"--ranks", "N",                                                                               \
     "number of ranks; without --rank: allow a partition of N ranks (default: at most 16 per "     \
     "core, 64 in all)"},                                                                          \
    {"--meet", "NAME", "name by which the ranks find each other (default: path of the argument)",  \
     INTO_RUN(meet)},                                                                              \
    HOSTS_OPTIONS
#define MEETING_OPTIONS                                                                            \
    {"--port", "P", "ucx: port of the workers, or of rank 0 (default: MASTER_PORT, else 29500)",   \
     INTO_RUN(port), .min = 1, .max = 65535},                                                      \
    {"--secret-file", "FILE",                                                                      \
     "ucx: file with the shared secret, required between hosts (default: TESSERA_SECRET)"},        \
    {"--interface", "NAME|ADDRESS|NETWORK",                                                        \
     "ucx: network interface: eth0, 10.1.0.7 or 10.1.0.0/16 (default: the route to rank 0)",       \
     INTO_RUN(network_interface)}
#define RUN_OPTIONS                                                                                \
    {"--transport", "NAME",                                                                        \
     "threads, shm (processes), mpi or ucx (default: as the launcher needs, else threads)",        \
     INTO_RUN_TRANSPORT},                                                                          \
    MEETING_OPTIONS,                                                                               \
    {"--threads", "N", "threads per rank (default: cores / ranks on this host, at least 1)",       \
     INTO_RUN(threads), .min = 1, .max = 4096},                                                    \
    {"--no-pin", NULL, "do not change the cores of ranks", INTO_RUN(no_pin)},                      \
    {"--timeout", "S",                                                                             \
     "seconds to wait for a rank without a heartbeat (default 15) and for ranks started by hand "  \
     "(default 300)", INTO_RUN(timeout_s)},                                                        \
    {"--optimize", "0..3", "ONNX Runtime's optimization level"},                                   \
    {"--ort-ops", "LIB", "custom operator library for ONNX Runtime", INTO_RUN(ort_ops)},           \
    {"--map-device", "NPU=CPU", "run ranks for device NPU on CPU (or CUDA:0, other providers)"},   \
    {"--provider-option", "KEY=VALUE", "option for the execution providers other than CPU"},       \
    {"--tf32", NULL, "use TF32 on GPUs: faster, relative error about 1e-3", INTO_RUN(tf32)},       \
    {"--deterministic", NULL, "bitwise reproducible results", INTO_RUN(deterministic)},            \
    {"--gpu-way", "NAME", "communication between GPUs: auto, own, nccl, host (default auto)",      \
     INTO_AS(OPTION_RUN, tsr_run_options, gpu_transport, OPTION_ENUM),                             \
     .choices = (const char *const[]){"auto", "own", "nccl", "host", NULL}},                       \
    {"--gpu-memory", "SIZE",                                                                       \
     "memory limit of the engine on each rank's GPU (default: its share of the free memory)",      \
     INTO_AS(OPTION_RUN, tsr_run_options, gpu_memory, OPTION_BYTES)},                              \
    {"--trace", "FILE", "write a trace of all ranks, for Perfetto or chrome://tracing",            \
     INTO_RUN(trace)},                                                                             \
    {"--check-files", NULL, "check the digests of all files of the partition first",               \
     INTO_RUN(check_files)}
#define PLAN_OPTIONS                                                                               \
    {"--devices", "N|TOPOLOGY|auto",                                                               \
     "number of devices, a topology, or auto: the best number of this machine's devices "          \
     "(auto:TOPOLOGY: of that topology)"},                                                         \
    {"--memory", "SIZE", "memory per device: 8GiB, 500MB or bytes (default: all its memory)", \
     INTO_AS(OPTION_PLAN, tsr_plan_options, memory, OPTION_BYTES)},                                \
    {"--dim", "NAME=SIZE",                                                                         \
     "size of a symbolic dimension: batch=2, or x.0=2 for axis 0 of x if it has no name "          \
     "(default: 128, not sharded)"},                                                               \
    {"--stages", "K|auto",                                                                         \
     "number of pipeline stages, or the best number (default: none, or one per host if faster)"},  \
    {"--objective", "NAME", "with --stages: minimize latency (default) or maximize throughput"},   \
    {"--time", "S", "time limit of the planner in seconds (default: a fixed amount of work)",      \
     INTO_PLAN(seconds)}
// clang-format on

// Sizes of symbolic dimensions (options/dims.c).
#define CLI_MAX_DIMS 256
struct cli_dims {
    tsr_dim_size at[CLI_MAX_DIMS];
    size_t n;
};
// Reads all --dim NAME=SIZE. Returns 0, or EXIT_USAGE after a message.
int cli_read_dims(struct cli *cli, struct cli_dims *dims);
int cli_read_dims_of(struct cli *cli, const char *option, struct cli_dims *dims);
// Return TSR_USAGE with a diagnostic if the model has no dimension that --dim names. The second
// function loads the model.
tsr_status cli_check_dims(struct cli *cli, tsr_model *model);
tsr_status cli_check_dims_of_file(struct cli *cli, const char *path);
// For a partition with fixed sizes: sets *is_static and checks that --dim names its sizes only.
// Returns 0, or EXIT_USAGE after a message.
int cli_check_static(struct cli *cli, const struct cli_dims *dims, bool *is_static);
// Reports the symbolic dimensions of the inputs whose size is assumed, and the option that sets it.
void cli_report_dims(const struct cli *cli, const tsr_model *model, const tsr_dim_size *sizes,
                     size_t n, const char *option);

// Options of planning (options/planning.c). cli_planning returns 0, or an exit code after a
// message. cli_planning_end is needed only after 0.
struct planning {
    tsr_plan_options options; // devices 0 and no topology: --devices was not given
    struct cli_dims dims;
};
int cli_planning(struct cli *cli, struct planning *planning);
void cli_planning_end(struct planning *planning);
// Returns EXIT_USAGE after a message if the argument is a partition but an option is only for
// models; else 0.
int cli_refuse_planning(const struct cli *cli);
bool cli_is_folder(const char *path);
// Reads a topology as --devices and `topology` do: a file, or a text for tsr_topology_parse.
tsr_status cli_topology(struct cli *cli, const char *text, tsr_topology **out);

// Inputs and run options (options/run_options.c). cli_inputs returns the set of inputs as
// tsr_tensors_load reads it, such as "random:0,batch=2". The text is valid until the next call.
// NULL: after a message (EXIT_USAGE).
const char *cli_inputs(struct cli *cli);
// Prints the seed of random inputs. Called after the inputs were loaded, so that an error of the
// model is printed alone.
void cli_print_seed(struct cli *cli, const char *set);
// Loads the inputs for the command's model or partition, and the model; for a partition, the model
// of this rank. Rank 0 prints assumed sizes. is_static: --dim was checked by cli_check_static.
tsr_status cli_load_inputs(struct cli *cli, const char *set, bool is_static,
                           const tsr_run_options *options, tsr_tensors *inputs, tsr_model **m,
                           tsr_input_sizes *sizes);
int cli_read_run_options(struct cli *cli, tsr_run_options *options);
const char *cli_temporary(void); // $TMPDIR, or NULL

// Ranks and hosts (options/place.c).
int cli_read_place(struct cli *cli, tsr_run_options *options);
int cli_read_meeting(struct cli *cli, tsr_run_options *options); // --interface and the secret
// True if this process starts the ranks of its host, and those of other hosts are in workers:
// --hosts without --rank, and no launcher.
bool cli_in_workers(const struct cli *cli);
const char *cli_hosts_topology(const char *list); // the topology of a list: "hosts:2x4"
int cli_count_hosts(const char *list); // number of ranks of "a:4,b:4"; 0: not a list of hosts
char *cli_host_name(char *entry);      // cuts an entry off after its name: "[::1]:4" -> ::1
int cli_hosts_wanted(struct cli *cli, const char *list); // reports an invalid list
bool cli_plans(const tsr_run_options *options); // this process plans: it is the only one, or rank 0
int cli_rank(const struct cli *cli);            // by --rank or the launcher, default 0

// ---- before and after a command ----------------------------------------------------------------

// Returns EXIT_WRITE after a message if an output is also an input or another output; else 0.
int cli_guard(const struct cli *cli);
const char *cli_near_option(const struct command *command, const char *word); // or NULL
const char *cli_near_command(const char *word);
// Opens a generation folder and fills in options for it (model_folder.c). Returns 0, or an exit
// code after a message.
int cli_folder(struct cli *cli);
// Adds an option as if the user had given it; the text is freed at the end.
void cli_give(struct cli *cli, const struct option *option, char *text);
int cli_bench_folder(struct cli *cli, double seconds); // `bench` of a generation folder
// Labels the model if --labels is given, removes labels if --no-labels is, else updates existing
// ones.
tsr_status cli_label(const struct cli *cli, tsr_model *model);
// Opens a session with the command's memory limit; cli_read_rules adds the rules of --rules to it.
// Both return 0 or an exit code.
int cli_open_session(struct cli *cli, tsr_session_options *options);
int cli_read_rules(struct cli *cli);
// Finds the memory limit of the session: --memory-limit, else 7/8 of the memory of the machine or
// control group.
int cli_memory_limit(const struct cli *cli, size_t *out);
// Memory of the command itself, which is freed at its end. cli_alloc returns n zeroed elements,
// cli_grow a larger copy of an array (new elements are zeroed only if `old` is NULL), cli_copy a
// copy of n characters. They never return NULL: if memory runs out, the command ends with
// EXIT_READ.
void *cli_alloc(size_t n, size_t bytes_each) __attribute__((returns_nonnull));
void *cli_grow(void *old, size_t n, size_t bytes_each) __attribute__((returns_nonnull));
char *cli_copy(const char *text, size_t n) __attribute__((returns_nonnull));
// cli_release frees the memory that was allocated after the call of cli_mark; mark 0: all memory.
size_t cli_mark(void);
void cli_release(size_t mark);
// Signals that end the command remove the session's temporary files (signals.c).
void cli_signals(tsr_session *session);
void cli_signals_end(void);
// Ends the command at once: prints the text, removes temporary files.
_Noreturn void cli_die(const char *text, int code);

// Loads ONNX Runtime (find_engine.c). Returns TSR_ENGINE with one diagnostic if it is not found.
tsr_status cli_engine(struct cli *cli, const char **found, const char **version);
bool cli_program_folder(char *out, size_t cap);
bool cli_is_trusted(const char *path); // owned by root, the user or the program's owner
// Finds Python: in TESSERA_PYTHON, which the wheel's command sets, of .venv beside or above the
// program, else of the active environment, else `python3`.
void cli_python(char *out, size_t cap);

// ---- output (output/messages.c) ----------------------------------------------------------------

// Prints diagnostics on stderr (notes only with --verbose) and returns the exit code.
int cli_finish(struct cli *cli, tsr_status status);
// Prints a diagnostic of the session, with a colour for its severity.
void cli_print_finding(const struct cli *cli, size_t i, FILE *to);
// Prints progress and other remarks to stderr, unless --quiet or --json is given.
void cli_print(const struct cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Prints an error on stderr, at most 600 bytes of it, because it may quote a file.
void cli_print_excerpt(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
// cli_json starts a JSON document with its version and the schema of the command, cli_json_of with
// schemas/NAME.json. They return NULL if out of memory, which all tsr_json calls accept.
tsr_json *cli_json(struct cli *cli);
tsr_json *cli_json_of(struct cli *cli, const char *name);
tsr_json *cli_json_if(struct cli *cli); // NULL without --json
// Closes, prints and frees a document. Returns `code`, EXIT_READ if out of memory, or EXIT_WRITE if
// stdout is closed.
int cli_print_json(struct cli *cli, tsr_json *json, int code);
// As cli_print_json, for a document that is complete.
int cli_print_document(struct cli *cli, tsr_json *json, int code);
int cli_end(struct cli *cli, tsr_json *json, int code); // the same, but json may be NULL
// Reads the n elements of a list of a result into an array of the command's memory, with a function
// of tessera.h that reads element i:
//     READ_LIST(stages, facts.n_stages, tsr_plan_result_stage, plan);
#define READ_LIST(to, n, read, ...)                                                                \
    do {                                                                                           \
        (to) = cli_alloc((n) + 1, sizeof *(to));                                                   \
        for (size_t at_ = 0; at_ < (n); at_++) {                                                   \
            (to)[at_].size = sizeof *(to);                                                         \
            (void)read(__VA_ARGS__, at_, &(to)[at_]);                                              \
        }                                                                                          \
    } while (0)

// For commands whose result is a file: prints that it was written; in JSON its path, or null.
int cli_print_written(struct cli *cli, const char *path, int code);

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool cli_ends_with(const char *text, const char *end);
double cli_now_s(void); // monotonic time
// Texts for people. cli_bytes, cli_time and cli_count use 4 buffers in turn, so a text is valid
// during the next three calls.
const char *cli_bytes(int64_t bytes);                             // 1536 -> "1.5 KiB"
const char *cli_time(int64_t picoseconds);                        // "0.117 ms", "29.00 s"
const char *cli_count(int64_t n);                                 // 1234567 -> "1,234,567"
const char *cli_plural(size_t n);                                 // "s", or "" for 1
const char *cli_text_or(const char *text, const char *otherwise); // if text is NULL or ""
const char *cli_domain(const char *domain);                       // "" -> "ai.onnx"
const char *cli_did_you_mean(const char *near); // "; did you mean 'NEAR'?", or "" for NULL
// Appends to a text in a buffer of cap bytes; truncates it there. False: it was truncated.
bool cli_append(char *text, size_t cap, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Sizes of symbolic dimensions in the inputs (output/summary.c).
void cli_print_sizes(const struct cli *cli, const tsr_input_sizes *sizes);
void cli_json_sizes(tsr_json *json, const tsr_input_sizes *sizes);

// Predicted times of a plan, on its devices and on one of them, in picoseconds; 0: unknown.
struct prediction {
    int64_t devices, cost, one_device;
    bool assumed; // the speeds of the devices are assumed
    double flops; // of the first device
};
tsr_plan_facts cli_plan_facts(const tsr_plan_result *plan);
struct prediction cli_prediction(const tsr_plan_facts *plan);
// cli_print_assumed prints only if the speeds of the devices are assumed, cli_print_one_device only
// if one device is predicted to be as fast.
void cli_print_assumed(FILE *to, struct prediction prediction);
void cli_print_one_device(const struct cli *cli, struct prediction prediction);
void cli_json_prediction(tsr_json *json, struct prediction prediction);
// Warns if ranks on the CPU share cores. ranks 0: the number in the manifest of the argument.
void cli_warn_ranks(const struct cli *cli, const tsr_topology *topology, int64_t ranks);
// Returns the number of ranks in the manifest of the argument; 0: the argument is a model, or the
// manifest cannot be read.
int cli_partition_ranks(const struct cli *cli);

#endif
