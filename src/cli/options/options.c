// SPDX-License-Identifier: Apache-2.0
// options.c - what the commands share: option look-up, messages, exit codes, numbers for people.
//
// Four parts: the tables of commands and common options, with the look-up of what was given; what
// is said at the end of a command (findings, exit code, JSON); small texts and numbers for people;
// words of the command line that several commands read (sizes, shapes, inputs, run options).
// Readers of words say what is wrong with cli_usage and give EXIT_USAGE; 0 means that it was read.
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <strings.h>
#include <string.h>
#include <unistd.h>

// Read by main.c; --help is answered while parsing and never reaches a command.
const struct option cli_common[] = {
    {"--json", NULL, "one JSON document on stdout"},
    {"--quiet", NULL, "no remarks, nor a summary of what was written or run; errors excepted"},
    {"--verbose", NULL, "notes too"},
    {"--memory-limit", "SIZE",
     "what the command may allocate: 2GiB, ... (default: 7/8 of the machine's)"},
    {"--help", NULL, "this text"},
    END_OF_OPTIONS,
};

#define COMMAND(name) extern const struct command cmd_##name;
#include "cli/commands.def"
#undef COMMAND

const struct command *const cli_commands[] = {
#define COMMAND(name) &cmd_##name,
#include "cli/commands.def"
#undef COMMAND
    NULL,
};

// From the end: of an option that was given twice the last counts. Options that may be repeated
// (--dim, --shape, --map-device ...) are read by loops over cli->given instead.
const char *cli_value(const struct cli *cli, const char *name)
{
    for (size_t i = cli->n_given; i-- > 0;)
        if (!strcmp(cli->given[i].option->name, name))
            return cli->given[i].value;
    return NULL;
}

// An empty TMPDIR counts as none; the library takes /tmp then.
const char *cli_temporary(void)
{
    const char *folder = getenv("TMPDIR");
    return cli_text_or(folder, NULL);
}

bool cli_flag(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, name))
            return true;
    return false;
}

// The name need not end with a zero: "--json" of "--json=1" is compared by its length.
static const struct option *find_in(const struct option *table, const char *name, size_t n)
{
    for (const struct option *option = table; option && option->name; option++)
        if (strlen(option->name) == n && !memcmp(option->name, name, n))
            return option;
    return NULL;
}

const struct option *cli_option(const struct command *command, const char *name, size_t n)
{
    const struct option *option = find_in(command->options, name, n);
    if (!option)
        option = find_in(cli_common, name, n);
    return option;
}

// The message, the form of the command, and where to read more, on three lines.
void cli_print_excerpt(const char *format, va_list args)
{
    char text[600];
    int n = vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s%s", text, cli_text_if(n >= (int)sizeof text, " ..."));
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "tessera %s: ", cli->command->name);
    cli_print_excerpt(format, args);
    fprintf(stderr, "\nusage: tessera %s %s\n`tessera %s --help` says more\n", cli->command->name,
            cli->command->arguments, cli->command->name);
    va_end(args);
    return EXIT_USAGE;
}

// What scripts see; README and --help list the codes.
static int exit_code(tsr_status status)
{
    static const unsigned char codes[] = {
        [TSR_OK] = EXIT_DONE,
        [TSR_NOMEM] = EXIT_READ,
        [TSR_IO] = EXIT_READ,
        [TSR_WRITE] = EXIT_WRITE,
        [TSR_MALFORMED] = EXIT_READ,
        [TSR_INVALID] = EXIT_NO,
        [TSR_UNSUPPORTED] = EXIT_UNSUPPORTED,
        [TSR_INFEASIBLE] = EXIT_INFEASIBLE,
        [TSR_CANCELLED] = EXIT_INTERRUPTED,
        [TSR_ENGINE] = EXIT_ENGINE,
        [TSR_PEER] = EXIT_PEER,
        [TSR_DIFFERENT] = EXIT_NO,
        [TSR_USAGE] = EXIT_USAGE,
        [TSR_BUG] = EXIT_NO,
    };
    if ((size_t)status >= sizeof codes)
        return EXIT_NO;
    return codes[status];
}

// Warnings of one code beyond the first few are counted, unless everything is asked for.
#define FEW 8
// How many earlier findings have the same code as the one at `at`; counting stops above FEW, for a
// model may have a thousand of them.
static size_t alike_before(const struct cli *cli, size_t at)
{
    size_t n = 0;
    const char *code = tsr_finding_at(cli->session, at).code;
    for (size_t i = 0; i < at && n <= FEW; i++)
        n += strcmp(tsr_finding_at(cli->session, i).code, code) == 0;
    return n;
}

// Notes are shown on request; the number of devices that --devices auto has taken was requested.
static bool is_shown(const struct cli *cli, const tsr_finding *finding)
{
    if (finding->severity == TSR_ERROR)
        return true;
    if (cli->quiet)
        return false;
    return finding->severity == TSR_WARNING || cli->verbose ||
           strcmp(finding->code, "plan-count") == 0;
}

// Called once by every command, at its end. Findings go to stderr, in the order in which they were
// found; the exit code follows from the status. A status without a finding (a cancelled plan,
// memory that was not there for the finding itself) gets a line of its own, so that no failure is
// silent.
int cli_finish(struct cli *cli, tsr_status status)
{
    size_t shown = 0, alike = 0;
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++) {
        tsr_finding finding = tsr_finding_at(cli->session, i);
        // Whatever came of it later: without that memory nothing that follows is an answer.
        if (strcmp(finding.code, "out-of-memory") == 0)
            status = TSR_NOMEM;
        if (!is_shown(cli, &finding))
            continue;
        shown++;
        if (finding.severity == TSR_WARNING && !cli->verbose && alike_before(cli, i) >= FEW)
            alike++;
        else
            fputs(tsr_finding_text(cli->session, i), stderr);
    }
    if (alike)
        fprintf(stderr, "... and %zu more warnings of the same kind (--verbose shows all)\n",
                alike);
    // The session keeps TSR_MAX_FINDINGS and counts all; what it dropped is told as a number.
    size_t all =
        tsr_finding_total(cli->session, TSR_ERROR) + tsr_finding_total(cli->session, TSR_WARNING);
    if (shown < all && !cli->quiet && tsr_finding_count(cli->session) >= TSR_MAX_FINDINGS)
        fprintf(stderr, "... and %zu more findings\n", all - shown);
    if (status != TSR_OK && !tsr_finding_total(cli->session, TSR_ERROR) && status != TSR_DIFFERENT)
        fprintf(stderr, "tessera %s: %s%s\n", cli->command->name,
                cli_text_if(status == TSR_NOMEM, "error[out-of-memory]: "),
                tsr_status_text(status));
    return exit_code(status);
}

void cli_say(const struct cli *cli, const char *format, ...)
{
    if (cli->quiet || cli->json)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

// Every document begins with `"version": 1`; the outermost object stays open for the caller's keys.
tsr_json *cli_json(struct cli *cli)
{
    tsr_json *json = tsr_json_new(cli->session);
    if (json) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "version", 1);
    }
    return json;
}

tsr_json *cli_json_if(struct cli *cli)
{
    if (!cli->json)
        return NULL;
    return cli_json(cli);
}

int cli_end(struct cli *cli, tsr_json *json, int code)
{
    if (!json)
        return code;
    return cli_print_json(cli, json, code);
}

// NULL as the document means that its memory was not there. The caller leaves the outermost object
// open, and it is closed here. Memory that failed in the middle shows in tsr_json_text alone.
int cli_print_json(struct cli *cli, tsr_json *json, int code)
{
    const char *text = NULL;
    cli->told = true;
    if (json) {
        tsr_json_end(json);
        text = tsr_json_text(json);
    }
    if (!text) {
        code = cli_finish(cli, TSR_NOMEM);
    } else if (fputs(text, stdout) < 0 || fputc('\n', stdout) < 0) {
        code = EXIT_WRITE;
    }
    tsr_json_free(json);
    return code;
}

// Whoever asked for JSON gets one document whatever came: {"version": 1, "exit": 3, "findings": [...]}. Ranks that are not the
// first leave it to that one. A mistake on the command line comes before there is a session.
int cli_tell(struct cli *cli, int code)
{
    if (!cli->json || cli->told || cli_rank(cli) > 0)
        return code;
    if (!cli->session) {
        printf("{\n  \"version\": 1,\n  \"exit\": %d,\n  \"findings\": []\n}\n", code);
        return code;
    }
    tsr_json *json = cli_json(cli);
    if (json) {
        tsr_json_int(json, "exit", code);
        tsr_json_findings(json, "findings");
    }
    return cli_print_json(cli, json, code);
}

// With --json a failure is a document too: {"written": null, "findings": [...]}.
int cli_print_written(struct cli *cli, const char *path, int code)
{
    tsr_json *json = cli_json_if(cli);
    if (!cli->json) {
        if (code == EXIT_DONE)
            cli_say(cli, "%s: written\n", path);
        return code;
    }
    if (json && code == EXIT_DONE)
        tsr_json_string(json, "written", path);
    else if (json)
        tsr_json_null(json, "written");
    if (json)
        tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

const char *cli_between(size_t i, const char *separator)
{
    return cli_text_if(i > 0, separator);
}

const char *cli_text_if(bool holds, const char *text)
{
    if (!holds)
        return "";
    return text;
}

const char *cli_plural(size_t n)
{
    return cli_text_if(n != 1, "s");
}

const char *cli_text_or(const char *text, const char *otherwise)
{
    if (!text || !text[0])
        return otherwise;
    return text;
}

const char *cli_did_you_mean(const char *near)
{
    static char text[256];
    if (!near)
        return "";
    snprintf(text, sizeof text, "; did you mean '%s'?", near);
    return text;
}

const char *cli_domain(const char *domain)
{
    return cli_text_or(domain, "ai.onnx");
}

// One of four buffers in turn: a printf may call cli_bytes, cli_time and cli_count four times in
// all.
static char *scratch(void)
{
    static char buffers[4][48];
    static int next;
    next = (next + 1) % 4;
    return buffers[next];
}

// "512 B", "1.5 KiB", "139 GiB"; four results live at a time.
const char *cli_bytes(int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *out = scratch();
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 5) {
        v /= 1024;
        u++;
    }
    // Three digits suffice: 1.5 KiB, 99.9 KiB, 100 KiB.
    if (u && v < 100)
        snprintf(out, 48, "%.1f %s", v, units[u]);
    else
        snprintf(out, 48, "%.0f %s", v, units[u]);
    return out;
}

// Below a second in milliseconds with three decimals; above, two decimals up to 100 s, then none.
const char *cli_time(int64_t picoseconds)
{
    char *out = scratch();
    double s = (double)picoseconds / 1e12;
    if (s < 1)
        snprintf(out, 48, "%.3f ms", s * 1e3);
    else
        snprintf(out, 48, "%.*f s", 2 * (s < 100), s);
    return out;
}

// A comma before each group of three digits from the right; the sign gets none behind it.
const char *cli_count(int64_t n)
{
    char digits[24], *out = scratch();
    int length = snprintf(digits, sizeof digits, "%lld", (long long)n), k = 0;
    for (int i = 0; i < length; i++) {
        out[k++] = digits[i];
        int left = length - i - 1;
        if (left && left % 3 == 0 && digits[i] != '-')
            out[k++] = ',';
    }
    out[k] = 0;
    return out;
}

// strtoull takes " 7", "+7" and "-7", too; the first character is checked because of them.
bool cli_count_of(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || end == text || *end || text[0] < '0' || text[0] > '9')
        return false;
    *out = n;
    return true;
}

bool cli_notation(const struct cli *cli, tsr_notation *out)
{
    static const char *const names[] = {
        [TSR_NOTATION_TILES] = "tiles",
        [TSR_NOTATION_MESH] = "mesh",
        [TSR_NOTATION_SETS] = "sets",
    };
    const char *given = cli_value(cli, "--notation");
    *out = TSR_NOTATION_TILES;
    if (!given)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(given, names[i]) == 0) {
            *out = (tsr_notation)i;
            return true;
        }
    }
    return false;
}

// isfinite refuses "nan" and "inf", which strtod reads.
bool cli_number(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v <= 0)
        return false;
    *out = v;
    return true;
}

// "8GiB", "500MB", "1048576": units of 1024 and of 1000; false: something else.
bool cli_read_bytes(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},        {"TB", 1e12}};
    char *end;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v) || v <= 0)
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        // Below 2^62, so that sums of a few such sizes stay within 64 bits.
        if (strcasecmp(end, units[i].name) == 0 && v * units[i].bytes < 0x1p62) {
            *out = (int64_t)(v * units[i].bytes);
            return true;
        }
    return false;
}

// "8x6": the rank; -1: no such thing.
// strtoll alone would take a sign or blanks before each size; they are refused.
int cli_shape(const char *text, int64_t *shape)
{
    int rank = 0;
    for (const char *p = text;; p++) {
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < 0 || rank == CLI_MAX_RANK || *p == '+' || *p == ' ')
            return -1;
        shape[rank++] = v;
        if (!*end)
            return rank;
        if (*end != 'x')
            return -1;
        p = end;
    }
}

// --inputs random:7, --shape x:2x3 and --dim batch=2 become one set, "random:7,x:2x3,batch=2"; without --inputs it is
// random:0.
const char *cli_inputs(struct cli *cli)
{
    // Valid until the next call: a command asks once.
    static char set[8192];
    const char *given = cli_value(cli, "--inputs");
    int64_t shape[CLI_MAX_RANK];
    bool random = !given || strncmp(given, "random", 6) == 0;
    if (!given)
        given = "random:0";
    size_t n = (size_t)snprintf(set, sizeof set, "%s", given);
    if (!strcmp(set, "random"))
        n = (size_t)snprintf(set, sizeof set, "random:0");
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *text = cli->given[i].value;
        if (random && strcmp(cli->given[i].option->name, "--dim") == 0 && n < sizeof set)
            n += (size_t)snprintf(set + n, sizeof set - n, ",%s", text);
        if (strcmp(cli->given[i].option->name, "--shape") != 0)
            continue;
        const char *colon = strrchr(text, ':');
        if (!random || !colon || colon == text || (colon[1] && cli_shape(colon + 1, shape) < 0)) {
            if (random)
                cli_usage(cli, "--shape wants NAME:2x3 (NAME: for a scalar), not '%s'", text);
            else
                cli_usage(cli, "--shape is for random inputs; '%s' has shapes of its own", given);
            return NULL;
        }
        if (n < sizeof set)
            n += (size_t)snprintf(set + n, sizeof set - n, ",%s", text);
    }
    if (n >= sizeof set) {
        cli_usage(cli, "the set of inputs is too long");
        return NULL;
    }
    // The seed is told by one rank, or it would stand there once for each.
    if (random && cli_rank(cli) == 0 && strncmp(set, "random:", 7) == 0)
        cli_say(cli, "random inputs, seed %.*s\n", (int)strcspn(set + 7, ","), set + 7);
    return set;
}

// Ranks on other hosts need not have each other's files; where the launcher's ranks are not those of the partition, rank
// 0 stands for all, until the run refuses them.
tsr_status cli_load_inputs(struct cli *cli, const char *set, const tsr_run_options *options,
                           tsr_tensors *inputs, tsr_model **m, tsr_input_sizes *sizes)
{
    char file[4096];
    bool folder = cli_is_folder(cli->arguments[0]);
    if (folder)
        snprintf(file, sizeof file, "%s/rank%d.onnx", cli->arguments[0], cli_rank(cli));
    else
        snprintf(file, sizeof file, "%s", cli->arguments[0]);
    if (folder && access(file, F_OK) != 0)
        snprintf(file, sizeof file, "%s/rank0.onnx", cli->arguments[0]);
    tsr_status status = tsr_model_load(cli->session, file, m);
    if (status == TSR_OK && !folder)
        status = cli_check_dims(cli, *m);
    if (status == TSR_OK)
        status = tsr_model_check_ports(*m);
    if (status != TSR_OK)
        return status;
    status = tsr_inputs_load(inputs, set, *m, options, sizes);
    if (status == TSR_OK && cli_rank(cli) == 0)
        cli_say_sizes(cli, sizes);
    return status;
}

// Every --map-device, in the order given.
// The list is static because options point to it until the run is over, and a command runs once.
static int read_map(struct cli *cli, tsr_run_options *options)
{
    static const char *map[64];
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *text = cli->given[i].value;
        if (strcmp(cli->given[i].option->name, "--map-device") != 0)
            continue;
        const char *equals = strchr(text, '=');
        if (!equals || equals == text || !equals[1])
            return cli_usage(cli, "--map-device wants NAME=DEVICE, not '%s'", text);
        if (options->n_map_devices == sizeof map / sizeof *map)
            return cli_usage(cli, "too many --map-device");
        map[options->n_map_devices++] = text;
    }
    options->map_devices = map;
    return 0;
}

// Every --provider-option, in the order given.
// All --provider-option KEY=VALUE, in the order given; VALUE may be empty.
static int read_provider_options(struct cli *cli, tsr_run_options *options)
{
    static const char *list[48];
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *text = cli->given[i].value;
        if (strcmp(cli->given[i].option->name, "--provider-option") != 0)
            continue;
        const char *equals = strchr(text, '=');
        if (!equals || equals == text)
            return cli_usage(cli, "--provider-option wants KEY=VALUE, not '%s'", text);
        if (options->n_provider_options == sizeof list / sizeof *list)
            return cli_usage(cli, "too many --provider-option");
        list[options->n_provider_options++] = text;
    }
    options->provider_options = list;
    return 0;
}

// Where the driver and NCCL are is told to the library here: it reads no environment itself.
static int read_gpu_options(struct cli *cli, tsr_run_options *options)
{
    static const char *const ways[] = {"auto", "own", "nccl", "host"};
    const char *memory = cli_value(cli, "--gpu-memory");
    bool known = false;
    options->tf32 = cli_flag(cli, "--tf32");
    options->deterministic = cli_flag(cli, "--deterministic");
    options->gpu_way = cli_value(cli, "--gpu-way");
    options->gpu_driver = getenv("TESSERA_CUDA");
    options->gpu_nccl = getenv("TESSERA_NCCL");
    for (size_t i = 0; options->gpu_way && i < sizeof ways / sizeof *ways; i++)
        known = known || strcmp(options->gpu_way, ways[i]) == 0;
    if (options->gpu_way && !known)
        return cli_usage(cli, "--gpu-way is auto, own, nccl or host, not '%s'", options->gpu_way);
    if (memory && !cli_read_bytes(memory, &options->gpu_memory))
        return cli_usage(cli, "--gpu-memory wants a size such as 8GiB, not '%s'", memory);
    return read_provider_options(cli, options);
}

// Optimize is kept as 1..4, so that 0 means: not given.
int cli_read_run_options(struct cli *cli, tsr_run_options *options)
{
    const char *text;
    double v = 0;
    *options = (tsr_run_options){.size = sizeof *options};
    options->transport = cli_value(cli, "--transport");
    options->ort_ops = cli_value(cli, "--ort-ops");
    options->check_files = cli_flag(cli, "--check-files");
    options->no_pin = cli_flag(cli, "--no-pin");
    options->plugins = getenv("TESSERA_PLUGINS");
    options->trace = cli_value(cli, "--trace");
    options->work = cli_temporary();
    int code = read_gpu_options(cli, options);
    if (!code)
        code = cli_read_place(cli, options);
    if (code)
        return code;
    if ((text = cli_value(cli, "--timeout"))) {
        if (!cli_number(text, &options->timeout_s))
            return cli_usage(cli, "--timeout wants seconds, not '%s'", text);
    }
    if ((text = cli_value(cli, "--threads"))) {
        if (!cli_number(text, &v) || v > 4096 || v != (int)v)
            return cli_usage(cli, "--threads wants a whole number, not '%s'", text);
        options->threads = (int)v;
    }
    if ((text = cli_value(cli, "--optimize"))) {
        if (text[0] < '0' || text[0] > '3' || text[1])
            return cli_usage(cli, "--optimize wants 0, 1, 2 or 3, not '%s'", text);
        options->optimize = text[0] - '0' + 1;
    }
    return read_map(cli, options);
}
