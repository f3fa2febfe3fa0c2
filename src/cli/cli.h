// SPDX-License-Identifier: Apache-2.0
// cli.h - what the commands share: the tables of commands and options, exit codes, printing.
//
// A command is one file cmd_NAME.c with one `struct command`. Options are rows; the parser hands
// them over in the order given, because edits are applied in order. Only this room prints, exits
// and reads the environment.
#ifndef TSR_CLI_H
#define TSR_CLI_H

#include "tessera_json.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    EXIT_DONE = 0,
    EXIT_NO = 1, // findings, differences, refused edits
    EXIT_USAGE = 2,
    EXIT_READ = 3, // cannot read the model or partition
    EXIT_INFEASIBLE = 4,
    EXIT_UNSUPPORTED = 5, // under --strict
    EXIT_PEER = 6,
    EXIT_ENGINE = 7,
    EXIT_WRITE = 8,
    EXIT_INTERRUPTED = 130
};

struct option {
    const char *name;  // with dashes: "--config", "-o"
    const char *value; // what its argument is called; NULL: a flag
    const char *help;
};
#define END_OF_OPTIONS                                                                             \
    {                                                                                              \
        NULL, NULL, NULL                                                                           \
    }
// Row of the commands that ask the rules; the file is read before the command begins.
#define RULES_OPTION                                                                               \
    {                                                                                              \
        "--rules", "FILE", "rows for operators of your own, as `tessera rules` prints them"        \
    }
// Rows of the commands that take inputs; cli_inputs reads them. Then those of all that execute something;
// cli_read_run_options reads them.
// clang-format off
#define INPUT_OPTIONS                                                                                     \
    {"--inputs", "SET", ".npz, .npy, .pb, a folder test_data_set_N, or random[:SEED] (default random:0)"},\
    {"--shape", "NAME:1x3x224x224", "size of a random input; without, open dimensions are as --dim or another --shape has them, else 128, or the largest smaller power of two at which the unsharded model runs"}
#define PLACE_OPTIONS                                                                      \
    {"--rank", "K", "this process is rank K of --ranks N; start the others likewise, on this host (shared memory)"}, \
    {"--ranks", "N", "number of such processes; without --rank: allow a partition of N ranks (default: at most 16 per core, 64 in all)"}, \
    {"--meet", "NAME", "by which they find each other (default: the path of the folder or model)"},       \
    {"--hosts", "a:4,b:4", "they are on these hosts, rank 0 on the first, and talk over UCX; gives --ranks too"}
#define RUN_OPTIONS                                                                                       \
    {"--transport", "NAME", "threads, shm (processes), mpi (messages only), ucx; default: what fits the launcher, else threads"}, \
    {"--port", "P", "ucx: where rank 0 listens (default: MASTER_PORT, else 29500)"},                      \
    {"--secret-file", "FILE", "ucx: shared secret of the ranks, needed between hosts (default: TESSERA_SECRET)"}, \
    {"--interface", "NAME|ADDRESS|NETWORK", "ucx: network interface between hosts, as eth0 or 10.1.0.0/16 (default: by the route to rank 0)"}, \
    {"--threads", "N", "threads of each rank (default: cores / ranks on this host, at least 1)"},         \
    {"--no-pin", NULL, "let ranks move between all cores; else each keeps to its share, if there are enough"}, \
    {"--timeout", "S", "longest wait for a rank without a heartbeat (default 15), and for ranks started by hand to join (default 300)"}, \
    {"--optimize", "0..3", "ONNX Runtime's optimisation level for each part"},                            \
    {"--ort-ops", "LIB", "your custom-operator library for ONNX Runtime"},                                \
    {"--map-device", "NPU=CPU", "run ranks whose device is NPU on CPU (also CUDA:0 and other providers)"}, \
    {"--provider-option", "KEY=VALUE", "for the execution provider of every rank that is not on the CPU"},  \
    {"--tf32", NULL, "GPUs multiply float32 with 10 bits of mantissa: faster, about 1e-3 apart"},           \
    {"--deterministic", NULL, "same bits each time, whichever way GPUs communicate"},                      \
    {"--gpu-way", "NAME", "how ranks on GPUs communicate: auto, own, nccl, host (default auto)"},          \
    {"--gpu-memory", "SIZE", "the most that the engine takes on each rank's GPU (default: its share of what is free)"},     \
    {"--trace", "FILE", "write what all ranks did, for Perfetto or chrome://tracing"},                     \
    {"--check-files", NULL, "read all digests of the partition first"}
// clang-format on

// Row of the commands that write shardings; cli_label follows it.
#define LABELS_OPTION                                                                              \
    {                                                                                              \
        "--labels", NULL, "also as texts of the nodes, which Netron and other viewers show"        \
    }

// Rows of the commands that plan; cli_planning reads them.
// clang-format off
#define PLAN_OPTIONS                                                                                      \
    {"--devices", "N|TOPOLOGY|auto", "plan for so many devices, for a topology, or for as many of this machine's (auto:TOPOLOGY: of its) as are best"},    \
    {"--memory", "SIZE", "of each device: 8GiB, 500MB, or bytes (default: of the table or box)"},                    \
    {"--dim", "NAME=SIZE", "size of an open dimension: batch=2, or x.0=2 for axis 0 of x where it has no name (without: 128 is assumed, not sharded)"}, \
    {"--stages", "K|auto", "plan pipeline stages: so many, or as many as are best (default: none)"},      \
    {"--objective", "NAME", "of stages: latency (of one run, the default) or throughput (of many)"},      \
    {"--time", "S", "plan for at most so many seconds, then take the best so far (default: a budget of work)"}
// clang-format on

// One option as given.
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
    const struct option *options;           // besides --json, --quiet, --help
    int min_arguments, max_arguments;
    int (*run)(struct cli *cli);
};

// One call of the program, from main.c to the end. Commands read it; only main.c and model_folder.c
// write it.
struct cli {
    const struct command *command;
    tsr_session *session;
    struct given *given; // options in the order of the words
    size_t n_given;
    const char **arguments; // words that are neither options nor their values
    size_t n_arguments;
    bool json, quiet, verbose;
    bool told;           // the document of --json is on stdout, or stdout is another program's
    const char *program; // argv[0]
    // A generation folder stood where a model is wanted (model_folder.c):
    const char *folder; // as given, or NULL
    char *folder_model; // now the argument
    char **made;        // texts of options that were filled in
    size_t n_made;
};

// Labels the model if that was asked for, or brings the labels that it has up to date.
tsr_status cli_label(const struct cli *cli, tsr_model *model);

// Takes the model of a generation folder and fills in what the user did not say; 0, or a code after a message.
int cli_folder(struct cli *cli);
void cli_folder_end(struct cli *cli);
// `bench` of a generation folder (bench_folder.c): tokens per second, for so many seconds of each side.
int cli_bench_folder(struct cli *cli, double seconds);
// The Python beside the program (.venv of its folder or of the one above), else that of the active environment, else `python3`.
void cli_python(char *out, size_t cap);

extern const struct command *const cli_commands[]; // ends with NULL
extern const struct option cli_common[];           // options of every command

// Lets stdout and stderr show names of strangers as they are, escaped where they would steer the terminal (streams.c).
void cli_streams(void);
// What ends the command from outside removes the session's temporary files (signals.c). Called once; ended before the
// session is freed.
void cli_signals(tsr_session *session);
void cli_signals_end(void);
// Ends the command at once, as a signal would: the text on stderr, temporary files removed, this exit code.
_Noreturn void cli_die(const char *text, int code);
// What the session may hold, in bytes: --memory-limit, else most of what the machine or the control group has. EXIT_USAGE
// after a message, else 0.
int cli_memory_limit(const struct cli *cli, size_t *out);
// main.c: a session with the command's memory limit, and the rows of its --rules for it; an exit code, 0: done.
int cli_open_session(struct cli *cli, tsr_session_options *options);
int cli_read_rules(struct cli *cli);
// Memory of the command itself, to be freed with free: n zeroed elements; the same grown; a copy of n characters, ended with a zero.
// Where there is none, the command ends: one error, no temporary files, EXIT_READ. None of them returns NULL.
void *cli_alloc(size_t n, size_t bytes_each) __attribute__((returns_nonnull));
void *cli_grow(void *old, size_t n, size_t bytes_each) __attribute__((returns_nonnull));
char *cli_copy(const char *text, size_t n) __attribute__((returns_nonnull));
// Folder for temporary files: $TMPDIR, or NULL.
const char *cli_temporary(void);

// The last value given for an option, or NULL; and whether a flag was given.
const char *cli_value(const struct cli *cli, const char *name);
bool cli_flag(const struct cli *cli, const char *name);
// Option row of a command by name (common ones included), or NULL.
const struct option *cli_option(const struct command *command, const char *name, size_t n);

// EXIT_WRITE after a message where a result would replace a file that is read, or another result; else 0.
int cli_guard(const struct cli *cli);
// The option or command that was probably meant, or NULL.
const char *cli_near_option(const struct command *command, const char *word);
const char *cli_near_command(const char *word);
// "; did you mean 'NEAR'?", or "" where near is NULL. Valid until the next call.
const char *cli_did_you_mean(const char *near);

// Prints a message on stderr, cut off after 600 bytes: words in it may come from a whole file.
void cli_print_excerpt(const char *format, va_list args) __attribute__((format(printf, 1, 0)));
// Says what is wrong with the call on stderr, with the way to the help; returns EXIT_USAGE.
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints findings on stderr (notes only with --verbose) and returns the exit code for the status.
int cli_finish(struct cli *cli, tsr_status status);
// Progress, results of writing and other remarks: stderr, not with --quiet or --json.
void cli_say(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints a finished JSON document and frees it; EXIT_WRITE if stdout is closed.
int cli_print_json(struct cli *cli, tsr_json *json, int code);
// Of commands whose result is a file: says that it was written, or the document that names it (null: it was not).
int cli_print_written(struct cli *cli, const char *path, int code);
// A document begun with its version.
tsr_json *cli_json(struct cli *cli);
// The same where the caller wants JSON; NULL: it does not. cli_end: prints it, if there is one, and gives the code back.
tsr_json *cli_json_if(struct cli *cli);
int cli_end(struct cli *cli, tsr_json *json, int code);
// The document of a command that ended without one.
int cli_tell(struct cli *cli, int code);

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

// 1536 -> "1.5 KiB". Buffers rotate: at most 4 results at a time.
const char *cli_bytes(int64_t bytes);
const char *cli_time(int64_t picoseconds); // "0.117 ms", "29.0 s"
// Pieces of a line: what stands between the parts of a list (nothing in front of the first), what stands there only if
// something holds, the s of a plural, a text that may be missing or empty, a domain's name.
const char *cli_between(size_t i, const char *separator);
const char *cli_text_if(bool holds, const char *text);
const char *cli_plural(size_t n);
const char *cli_text_or(const char *text, const char *otherwise);
const char *cli_domain(const char *domain);
const char *cli_count(int64_t n); // 1234567 -> "1,234,567"

// Opens ONNX Runtime: $TESSERA_ORT, the loader's path, the active Python, .venv and .deps beside the
// program or above it; never the working directory. TSR_ENGINE with one finding if there is none.
tsr_status cli_engine(struct cli *cli, const char **found, const char **version);
// The folder that this program lies in; false: it cannot be told.
bool cli_program_folder(char *out, size_t cap);
// Only root, the user or the program's owner can have put this file there.
bool cli_is_trusted(const char *path);
// The set of inputs that the command line asks for, with its shapes; NULL after a message: EXIT_USAGE. Says the seed of
// random ones. Valid until the next call.
const char *cli_inputs(struct cli *cli);
// Loads that set for the command's model or partition (folder), and the model; of a partition, the file of this rank. Rank 0
// prints sizes that were assumed.
tsr_status cli_load_inputs(struct cli *cli, const char *set, const tsr_run_options *options,
                           tsr_tensors *inputs, tsr_model **m, tsr_input_sizes *sizes);
// Prints the sizes of symbolic dimensions where some were assumed; adds them to a document (input_sizes.c).
void cli_say_sizes(const struct cli *cli, const tsr_input_sizes *sizes);
void cli_json_sizes(tsr_json *json, const tsr_input_sizes *sizes);
// Fills run options from the command line; EXIT_USAGE after a message, else 0.
int cli_read_run_options(struct cli *cli, tsr_run_options *options);
// --rank, --ranks, --meet, --hosts, --port and the secret (place.c).
int cli_read_place(struct cli *cli, tsr_run_options *options);
int cli_read_meeting(struct cli *cli, tsr_run_options *options); // --port and the secret alone
int cli_count_hosts(const char *list); // ranks of "a:4,b:4": 8; 0: it is no such list
char *cli_host_name(char *entry); // cuts the name out of an entry of such a list: "[::1]:4" -> ::1
int cli_hosts_wanted(struct cli *cli, const char *list); // the error for a list that is none
// "16GiB", "512 MB", "1000" (bytes) -> bytes; false: not a size.
bool cli_read_bytes(const char *text, int64_t *out);
// A topology as --devices and `topology` take it: a file, or what tsr_topology_parse reads.
tsr_status cli_topology(struct cli *cli, const char *text, tsr_topology **out);
// "7x4" -> sizes (room for CLI_MAX_RANK) and their number; -1: not a shape.
#define CLI_MAX_RANK 64
int cli_shape(const char *text, int64_t *shape);
// All --dim NAME=SIZE of the command; EXIT_USAGE after a message, else 0. Free in every case.
#define CLI_MAX_DIMS 256
struct cli_dims {
    tsr_dim_size at[CLI_MAX_DIMS];
    char *texts[CLI_MAX_DIMS];
    size_t n;
};
int cli_read_dims(struct cli *cli, struct cli_dims *dims);
int cli_read_dims_of(struct cli *cli, const char *option, struct cli_dims *dims);
void cli_free_dims(struct cli_dims *dims);
// TSR_USAGE with a diagnostic if the model lacks a --dim; the second loads the model, if there is any --dim.
tsr_status cli_check_dims(struct cli *cli, tsr_model *model);
tsr_status cli_check_dims_of_file(struct cli *cli, const char *path);
// Says which open dimensions of the inputs have no size, and what is assumed for them.
void cli_tell_dims(const struct cli *cli, const tsr_model *model, const tsr_dim_size *sizes,
                   size_t n);
// Reads the options of planning; EXIT_USAGE or another code after a message, else 0 and to be ended.
struct planning {
    tsr_plan_options options; // devices 0 and no topology: --devices was not given
    struct cli_dims dims;
};
int cli_planning(struct cli *cli, struct planning *planning);
void cli_planning_end(struct planning *planning);
// EXIT_USAGE after a message where the argument is a partition, cut already, and an option would plan or choose the cut; else 0.
int cli_refuse_planning(const struct cli *cli);
bool cli_is_folder(const char *path);
// What a plan predicts for its devices and for one alone, picoseconds; one_device 0: not known.
struct prediction {
    int64_t devices, cost, one_device;
    bool assumed; // the speeds of the devices are assumed
    double flops; // of the first of them
};
struct prediction cli_prediction(const tsr_plan_summary *summary);
// "on 4 assumed devices of 50 GFLOP/s; ...", for text that has predicted times; nothing where devices are known.
void cli_say_assumed(FILE *to, struct prediction prediction);
// Warns where ranks on the CPU of this host must share cores: times then say nothing about as many devices. Of a partition the
// number is the manifest's.
void cli_warn_ranks(const struct cli *cli, const tsr_topology *topology, int64_t ranks);
// A line where one device is as good, with both figures.
void cli_say_one_device(const struct cli *cli, struct prediction prediction);
// "cost", "one_device" and "assumed", as `plan` has them; one_device null where it is not known.
void cli_json_prediction(tsr_json *json, struct prediction prediction);
// --notation: how shardings are written; tiles where it is not given. False: no such notation.
bool cli_notation(const struct cli *cli, tsr_notation *out);
// "17" -> 17; false: not a whole number from 0 on.
bool cli_count_of(const char *text, uint64_t *out);
// This process plans: it is no rank of a job of several processes, or its first.
bool cli_plans(const tsr_run_options *options);
// This process's rank, by --rank or the launcher; 0 where it has none.
int cli_rank(const struct cli *cli);
// Parses --seconds, --timeout and the like: a positive number.
bool cli_number(const char *text, double *out);

#endif
