// SPDX-License-Identifier: Apache-2.0
// main.c - finds the command, parses its options by its table, runs it.
//
// The way of a call: main finds the command by its word; run_command makes room for what was given;
// run_parsed parses by the command's table, opens the session, lets signals remove its temporary
// files, refuses results that would replace inputs (guard.c), reads --rules, opens a generation
// folder where a model is wanted (model_folder.c), and calls the command. Each of these steps gives
// an exit code, and the first that is not 0 is the answer of the program.
//
//   tessera plan m.onnx --devices 4 -o out.onnx
//   command plan; arguments {m.onnx}; given {--devices 4}, {-o out.onnx} in that order
//
// Options may stand before, between and behind arguments; behind `--` every word is an argument.
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Two columns: the option with its argument in 28 characters, then the help. docs/tessera.1 is made
// of these lines (tools/man), so their form is read by a program too.
static void print_option(FILE *to, const struct option *option)
{
    char left[64];
    if (option->value)
        snprintf(left, sizeof left, "%s %s", option->name, option->value);
    else
        snprintf(left, sizeof left, "%s", option->name);
    if (strlen(left) > 28) // the help stands on a line of its own
        fprintf(to, "  %s\n%32s%s\n", left, "", option->help);
    else
        fprintf(to, "  %-28s  %s\n", left, option->help);
}

// The command's own options come before the common ones, as a reader looks for the former.
static int help_command(const struct command *command)
{
    printf("%s: %s\n\nusage: tessera %s %s\n", command->name, command->summary, command->name,
           command->arguments);
    if (command->detail)
        printf("\n%s\n", command->detail);
    printf("\noptions:\n");
    for (const struct option *option = command->options; option && option->name; option++)
        print_option(stdout, option);
    for (const struct option *option = cli_common; option->name; option++)
        print_option(stdout, option);
    if (command->example)
        printf("\nexample:\n  %s\n", command->example);
    return EXIT_DONE;
}

// On stderr it is the answer to a call without a command, which is a mistake; on stdout it was
// asked for.
static int help_all(FILE *to)
{
    fprintf(to, "tessera %s: ONNX models on more than one device\n\nusage: tessera COMMAND ...\n\n",
            tsr_version());
    for (size_t i = 0; cli_commands[i]; i++)
        fprintf(to, "  %-12s%s\n", cli_commands[i]->name, cli_commands[i]->summary);
    fprintf(to, "\n`tessera COMMAND --help` shows its options and an example. Exit codes: 0 done, "
                "1 the answer is no,\n"
                "2 usage, 3 cannot read, 4 nothing fits, 5 unsupported, 6 a rank failed, 7 no "
                "engine, 8 cannot write.\n");
    if (to == stderr) // nobody asked for it
        return EXIT_USAGE;
    return EXIT_DONE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; cli_commands[i]; i++)
        if (!strcmp(cli_commands[i]->name, name))
            return cli_commands[i];
    return NULL;
}

// Takes argv[i] (and its value) as an option. Returns how many words it took, 0 after a message.
static int take_option(struct cli *cli, char **argv, int i, int argc)
{
    const char *word = argv[i];
    // "--name=value" is split at the sign; "-o" has no such form, so "-o=x" is no option.
    size_t n = strlen(word);
    if (word[1] == '-')
        n = strcspn(word, "=");
    const struct option *option = cli_option(cli->command, word, n);
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

// 0: parsed; else an exit code plus 1000.
// --help wins over every mistake that stands behind it, so that `tessera plan --nope --help` fails
// at --nope, but `tessera plan --help --nope` helps. A single "-" is an argument. Numbers of
// arguments are checked at the end, since any word may be one.
static int parse(struct cli *cli, int argc, char **argv)
{
    bool options = true;
    for (int i = 2; i < argc;) {
        if (options && !strcmp(argv[i], "--")) {
            options = false;
            i++;
        } else if (options && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            return 1000 + help_command(cli->command);
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            int took = take_option(cli, argv, i, argc);
            if (!took)
                return 1000 + EXIT_USAGE;
            i += took;
        } else {
            cli->arguments[cli->n_arguments++] = argv[i++];
        }
    }
    int n = (int)cli->n_arguments;
    if (n < cli->command->min_arguments)
        return 1000 + cli_usage(cli, "missing argument: %s", cli->command->arguments);
    if (n > cli->command->max_arguments)
        return 1000 + cli_usage(cli, "too many arguments: '%s'", cli->arguments[n - 1]);
    // Flags that every command has are looked up once; commands read the fields.
    cli->json = cli_flag(cli, "--json");
    cli->quiet = cli_flag(cli, "--quiet");
    cli->verbose = cli_flag(cli, "--verbose");
    return 0;
}

// One line on a terminal, gone when the work is done.
// The library calls it in the midst of its work; the line ends with the escape that clears the rest
// of it, and one with done == total clears all of it.
static void show_progress(void *data, const char *what, uint64_t done, uint64_t total)
{
    const struct cli *cli = data;
    char line[256] =
        "\r\x1b[K"; // written past stderr, which would show these bytes instead of doing them
    if (cli->quiet || cli->json)
        return;
    fflush(stderr);
    if (done < total)
        snprintf(line, sizeof line, "\r%.200s %llu of %llu\x1b[K", what, (unsigned long long)done,
                 (unsigned long long)total);
    ssize_t wrote = write(STDERR_FILENO, line, strlen(line));
    (void)wrote; // only a terminal gets this
}

// Files of --rules, before anything asks for a rule; 0, or the code of one that cannot be read.
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

// Also called by `report`, which needs a second session for the other of two plans.
int cli_open_session(struct cli *cli, tsr_session_options *options)
{
    int code = cli_memory_limit(cli, &options->memory_limit);
    if (code)
        return code;
    cli->session = tsr_session_new(options);
    if (!cli->session)
        cli_die("tessera: error[out-of-memory]: no session could be made\n", EXIT_READ);
    return 0;
}

// Parses the words, makes the session that the command works with, and runs it.
static int run_parsed(struct cli *cli, int argc, char **argv)
{
    tsr_session_options options = {.size = sizeof options, .progress_data = cli};
    if (isatty(STDERR_FILENO))
        options.progress = show_progress;
    int parsed = parse(cli, argc, argv);
    if (parsed)
        return parsed - 1000;
    int code = cli_open_session(cli, &options);
    if (code)
        return code;
    cli_signals(cli->session);
    // Before anything is read: a call that would destroy its own input does no work at all.
    code = cli_guard(cli);
    if (code)
        return code;
    code = cli_read_rules(cli);
    if (code)
        return code;
    code = cli_folder(cli);
    if (code)
        return code;
    return cli->command->run(cli);
}

// What was printed must have arrived: a script that reads half of an answer would take it for the whole. Only a result that was
// good until then changes its code.
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

// A mistake may stand in front of the word that asks for a document.
static bool asks_json(int argc, char **argv)
{
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

// What was given is at most one entry for each word, so argc bounds both lists. The order of the
// end matters: handlers must not sweep a session that is freed, and texts that model_folder.c made
// are values of options until the command is over.
static int run_command(struct cli *cli, int argc, char **argv)
{
    cli->given = cli_alloc((size_t)argc, sizeof *cli->given);
    cli->arguments = cli_alloc((size_t)argc, sizeof *cli->arguments);
    // stdout is flushed while the session lives: a closed pipe raises SIGPIPE here, and its handler
    // still removes the temporary files.
    int code = run_parsed(cli, argc, argv);
    if (code == EXIT_USAGE)
        cli->json = asks_json(argc, argv);
    code = end_output(cli_tell(cli, code));
    cli_signals_end();
    tsr_session_free(cli->session);
    cli_folder_end(cli);
    free(cli->arguments);
    free(cli->given);
    return code;
}

// `tessera help plan` and `tessera plan` find their command in the same way, one word later.
int main(int argc, char **argv)
{
    cli_streams();
    // ONNX Runtime reads it when it is loaded. Its telemetry would look up host names and write
    // $TMPDIR/.ses. A value that the user has set is kept.
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
    if (!cli.command) {
        fprintf(stderr, "tessera: no command '%s' (`tessera --help` lists them)%s\n", name,
                cli_did_you_mean(cli_near_command(name)));
        return EXIT_USAGE;
    }
    if (help)
        return end_output(help_command(cli.command));
    return run_command(&cli, argc, argv);
}
