// SPDX-License-Identifier: Apache-2.0
// main.c - finds the command, parses its options by its table, runs it.
//
// run_parsed runs these steps; the first that returns a code other than 0 ends the program with it:
//   1. parse the options
//   2. open the session
//   3. install signal handlers that remove the session's temporary files
//   4. refuse outputs that would replace inputs (guard.c)
//   5. read --rules
//   6. open a generation folder (model_folder.c)
//   7. call the command
//
//   Example: tessera plan m.onnx --devices 4 -o out.onnx
//   command plan; arguments {m.onnx}; given {--devices 4}, {-o out.onnx}
//
// Options and arguments may be mixed; after `--` every word is an argument.
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Prints two columns: option and argument in 28 characters, then the help. tools/man parses these
// lines.
static void print_option(FILE *to, const struct option *option)
{
    char left[64];
    if (option->value)
        snprintf(left, sizeof left, "%s %s", option->name, option->value);
    else
        snprintf(left, sizeof left, "%s", option->name);
    if (strlen(left) > 28)
        fprintf(to, "  %s\n%32s%s\n", left, "", option->help);
    else
        fprintf(to, "  %-28s  %s\n", left, option->help);
}

static int help_command(const struct command *command)
{
    printf("%s: %s\n\nusage: tessera %s %s\n", command->name, command->summary, command->name,
           command->arguments);
    if (command->detail)
        printf("\n%s\n", command->detail);
    printf("\noptions:\n");
    for (const struct option *option = command->options; option && option->name; option++)
        print_option(stdout, option);
    for (const struct option *option = cli_common_of(command); option->name; option++)
        print_option(stdout, option);
    if (command->example)
        printf("\nexample:\n  %s\n", command->example);
    return EXIT_DONE;
}

// Prints the list of commands, on stdout for --help, on stderr for a call without a command, which
// is a usage error.
static int help_all(FILE *to)
{
    fprintf(
        to,
        "tessera %s: run one ONNX model across several devices\n\nusage: tessera COMMAND ...\n\n",
        tsr_version());
    for (size_t i = 0; cli_command_at(i); i++)
        fprintf(to, "  %-12s%s\n", cli_command_at(i)->name, cli_command_at(i)->summary);
    if (!tsr_in_wheel())
        fprintf(to, "\nThe Python package tessera-onnx adds chat and serve, and text for "
                    "generate.");
    fprintf(to, "\nSee `tessera COMMAND --help` for options and an example. Exit codes: 0 done, "
                "1 check failed,\n"
                "2 usage, 3 cannot read, 4 nothing fits, 5 unsupported, 6 a rank failed, 7 no "
                "engine, 8 cannot write.\n");
    return to == stderr ? EXIT_USAGE : EXIT_DONE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; cli_command_at(i); i++)
        if (!strcmp(cli_command_at(i)->name, name))
            return cli_command_at(i);
    return NULL;
}

// Parses argv[i] as an option. Returns the number of words that it takes, 1 or 2; 0 after a
// message.
static int take_option(struct cli *cli, char **argv, int i, int argc)
{
    const char *word = argv[i];
    // "--name=value" is split at the '='; "-o=x" is not an option.
    size_t n = word[1] == '-' ? strcspn(word, "=") : strlen(word);
    const struct option *option = cli_option(cli->command, word, n);
    const char *removed = option ? NULL : cli_removed(word, NULL);
    if (removed) {
        cli_usage(cli, "%.*s %s", (int)n, word, removed);
        return 0;
    }
    if (!option) {
        cli_usage(cli, "no option %s%s", word,
                  cli_did_you_mean(cli_near_option(cli->command, word)));
        return 0;
    }
    struct given *given = &cli->given[cli->n_given++];
    *given = (struct given){option, NULL};
    bool inside = word[n] == '='; // --name=value
    if (!option->value && inside) {
        cli_usage(cli, "%s takes no value", option->name);
        return 0;
    }
    if (!option->value)
        return 1;
    if (!inside && i + 1 >= argc) {
        cli_usage(cli, "%s needs a value: %s", option->name, option->value);
        return 0;
    }
    if (inside) {
        given->value = word + n + 1;
        return 1;
    }
    given->value = argv[i + 1];
    return 2;
}

// If `done`, the program ends with `code`: after --help, or after a usage error.
struct parsed {
    bool done;
    int code;
};

// Parses the command line. --help has priority over later mistakes: `tessera plan --help --nope`
// prints the help. A single "-" is an argument.
static struct parsed parse(struct cli *cli, int argc, char **argv)
{
    bool options = true;
    for (int i = 2; i < argc;) {
        if (options && !strcmp(argv[i], "--")) {
            options = false;
            i++;
        } else if (options && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            return (struct parsed){true, help_command(cli->command)};
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            int took = take_option(cli, argv, i, argc);
            if (!took)
                return (struct parsed){true, EXIT_USAGE};
            i += took;
        } else {
            cli->arguments[cli->n_arguments++] = argv[i++];
        }
    }
    int n = (int)cli->n_arguments;
    if (n < cli->command->takes.least)
        return (struct parsed){true,
                               cli_usage(cli, "missing argument: %s", cli->command->arguments)};
    if (n > cli->command->takes.most)
        return (struct parsed){true,
                               cli_usage(cli, "too many arguments: '%s'", cli->arguments[n - 1])};
    cli->json = cli_flag(cli, "--json");
    cli->quiet = cli_flag(cli, "--quiet");
    cli->verbose = cli_flag(cli, "--verbose");
    return (struct parsed){false, 0};
}

#ifdef __EMSCRIPTEN__
// The page reads these lines (src/web/worker.js), also with --json.
#define FOR_PAGE      true
#define END_OF_STATUS "\n"
#else
#define FOR_PAGE      false
#define END_OF_STATUS "\x1b[K"
#endif

// Shows one line on a terminal and clears it when the work is done. The escape that clears the rest
// of the line is written with write(2): stderr would print it as text.
static void show_progress(void *data, const char *what, uint64_t done, uint64_t total)
{
    const struct cli *cli = data;
    char line[256] = "\r" END_OF_STATUS;
    if (cli->quiet || (cli->json && !FOR_PAGE))
        return;
    fflush(stderr);
    if (done < total)
        snprintf(line, sizeof line, "\r%.200s %llu/%llu" END_OF_STATUS, what,
                 (unsigned long long)done, (unsigned long long)total);
    ssize_t wrote = write(STDERR_FILENO, line, strlen(line));
    (void)wrote;
}

int cli_read_rules(struct cli *cli)
{
    for (size_t i = 0; i < cli->n_given; i++) {
        if (strcmp(cli->given[i].option->name, "--rules") != 0)
            continue;
        tsr_status status = tsr_rules_read(cli->session, cli->given[i].value);
        if (status != TSR_OK)
            return cli_finish(cli, status);
    }
    return 0;
}

// Opens the session of a command. `report` also calls this, for the session of the plan to compare
// with.
int cli_open_session(struct cli *cli, tsr_session_options *options)
{
    int code = cli_memory_limit(cli, &options->memory_limit);
    if (code)
        return code;
    cli->session = tsr_session_new(options);
    if (!cli->session)
        cli_die("tessera: error[out-of-memory]: cannot create a session\n", EXIT_READ);
    return 0;
}

static int run_parsed(struct cli *cli, int argc, char **argv)
{
    tsr_session_options options = {.size = sizeof options, .progress_data = cli};
    if (isatty(STDERR_FILENO))
        options.progress = show_progress;
    struct parsed parsed = parse(cli, argc, argv);
    if (parsed.done)
        return parsed.code;
    int code = cli_open_session(cli, &options);
    if (code)
        return code;
    cli_signals(cli->session);
    code = cli_guard(cli);
    if (!code)
        code = cli_read_rules(cli);
    if (!code)
        code = cli_folder(cli);
    return code ? code : cli->command->run(cli);
}

// Reports output that could not be written completely, so that a script does not use the part that
// was written. Changes only the exit code of a successful command.
static int end_output(int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (code != EXIT_DONE)
        return code;
    int why = errno;
    fprintf(stderr, "tessera: error[io-write]: cannot write to stdout");
    if (why)
        fprintf(stderr, ": %s", strerror(why));
    fprintf(stderr, "\n");
    return EXIT_WRITE;
}

// True if --json is given. After a usage error it may be among the words that were not parsed.
static bool asks_json(int argc, char **argv)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

// Prints a JSON document if the command has printed none: with --json every command prints one.
// Example: {"$schema": ..., "version": 1, "exit": 3, "findings": [...]}. If the command line cannot
// be parsed there is no session, and "findings" is empty. If ranks are processes, only rank 0
// prints.
static int print_missing_json(struct cli *cli, int code)
{
    if (!cli->json || cli->printed_json || cli_rank(cli) > 0)
        return code;
    if (!cli->session) {
        printf("{\n  \"$schema\": \"" TSR_JSON_SCHEMA "%s\",\n  \"version\": 1,\n"
               "  \"exit\": %d,\n  \"findings\": []\n}\n",
               cli->command->name, code);
        return code;
    }
    tsr_json *json = cli_json(cli);
    tsr_json_int(json, "exit", code);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

// Parses the command line and runs the command. Each word makes at most one entry, so argc bounds
// both lists. Signal handlers are removed before the session is freed.
static int run_command(struct cli *cli, int argc, char **argv)
{
    cli->given = cli_alloc((size_t)argc, sizeof *cli->given);
    cli->arguments = cli_alloc((size_t)argc, sizeof *cli->arguments);
    int code = run_parsed(cli, argc, argv);
    if (code == EXIT_USAGE)
        cli->json = asks_json(argc, argv);
    // Flush before the session is freed: a closed pipe raises SIGPIPE, whose handler removes the
    // temporary files.
    code = end_output(print_missing_json(cli, code));
    cli_signals_end();
    tsr_session_free(cli->session);
    cli_release(0);
    return code;
}

// Reports an unknown command. Two more commands need onnxruntime-genai and are part of the Python
// package.
static int unknown_command(const char *name)
{
    if (!strcmp(name, "chat") || !strcmp(name, "serve"))
        fprintf(stderr,
                "tessera: '%s' is a command of the Python package: pip install tessera-onnx\n",
                name);
    else
        fprintf(stderr, "tessera: unknown command '%s' (`tessera --help` lists all)%s\n", name,
                cli_did_you_mean(cli_near_command(name)));
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    cli_streams();
    // ONNX Runtime's telemetry would look up host names and write $TMPDIR/.ses.
    setenv("ORT_DISABLE_TELEMETRY", "1", 0);
    if (argc < 2)
        return help_all(stderr);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        (!strcmp(argv[1], "help") && argc == 2))
        return end_output(help_all(stdout));
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("tessera %s\n", tsr_version());
        return end_output(EXIT_DONE);
    }
    bool help = !strcmp(argv[1], "help");
    const char *name = argv[1 + help];
    struct cli cli = {.command = find_command(name), .program = argv[0]};
    if (!cli.command)
        return unknown_command(name);
    return help ? end_output(help_command(cli.command)) : run_command(&cli, argc, argv);
}
