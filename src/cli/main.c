// SPDX-License-Identifier: Apache-2.0
// main.c - finds the command, parses its options by its table, runs it.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_option(FILE *to, const struct option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    fprintf(to, strlen(left) > 28 ? "  %s\n%32s%s\n" : "  %-28s%s%s\n", left, "  ", o->help);
}

static int help_command(const struct command *k)
{
    printf("%s: %s\n\nusage: tessera %s %s\n", k->name, k->summary, k->name, k->arguments);
    if (k->detail)
        printf("\n%s\n", k->detail);
    printf("\noptions:\n");
    for (const struct option *o = k->options; o && o->name; o++)
        print_option(stdout, o);
    for (const struct option *o = cli_common; o->name; o++)
        print_option(stdout, o);
    if (k->example)
        printf("\nexample:\n  %s\n", k->example);
    return EXIT_DONE;
}

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
    return to == stdout ? EXIT_DONE : EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; cli_commands[i]; i++)
        if (!strcmp(cli_commands[i]->name, name))
            return cli_commands[i];
    return NULL;
}

// Takes argv[i] (and its value) as an option. Returns how many words it took, 0 after a message.
static int take_option(struct cli *c, char **argv, int i, int argc)
{
    const char *word = argv[i];
    size_t n = strcspn(word, "=");
    const struct option *o = cli_option(c->command, word, word[1] == '-' ? n : strlen(word));
    if (!o) {
        const char *near = cli_near_option(c->command, word);
        cli_usage(c, "no option %s%s%s%s", word, near ? "; did you mean " : "", near ? near : "",
                  near ? "?" : "");
        return 0;
    }
    struct given *g = &c->given[c->n_given++];
    *g = (struct given){o, NULL};
    bool inside = word[1] == '-' && word[n] == '=';
    if (!o->value && inside) {
        cli_usage(c, "%s takes no value", o->name);
        return 0;
    }
    if (!o->value)
        return 1;
    if (!inside && i + 1 >= argc) {
        cli_usage(c, "%s needs a value: %s", o->name, o->value);
        return 0;
    }
    g->value = inside ? word + n + 1 : argv[i + 1];
    return inside ? 1 : 2;
}

// 0: parsed; else an exit code plus 1000.
static int parse(struct cli *c, int argc, char **argv)
{
    bool options = true;
    for (int i = 2; i < argc;) {
        if (options && !strcmp(argv[i], "--")) {
            options = false;
            i++;
        } else if (options && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            return 1000 + help_command(c->command);
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            int took = take_option(c, argv, i, argc);
            if (!took)
                return 1000 + EXIT_USAGE;
            i += took;
        } else {
            c->arguments[c->n_arguments++] = argv[i++];
        }
    }
    int n = (int)c->n_arguments;
    if (n < c->command->min_arguments)
        return 1000 + cli_usage(c, "missing argument: %s", c->command->arguments);
    if (n > c->command->max_arguments)
        return 1000 + cli_usage(c, "too many arguments: '%s'", c->arguments[n - 1]);
    c->json = cli_flag(c, "--json");
    c->quiet = cli_flag(c, "--quiet");
    c->verbose = cli_flag(c, "--verbose");
    return 0;
}

// One line on a terminal, gone when the work is done.
static void show_progress(void *data, const char *what, uint64_t done, uint64_t total)
{
    const struct cli *c = data;
    char line[256] =
        "\r\x1b[K"; // written past stderr, which would show these bytes instead of doing them
    if (c->quiet || c->json)
        return;
    fflush(stderr);
    if (done < total)
        snprintf(line, sizeof line, "\r%.200s %llu of %llu\x1b[K", what, (unsigned long long)done,
                 (unsigned long long)total);
    ssize_t wrote = write(STDERR_FILENO, line, strlen(line));
    (void)wrote; // only a terminal gets this
}

// Files of --rules, before anything asks for a rule; 0, or the code of one that cannot be read.
static int read_rules(struct cli *c)
{
    for (size_t i = 0; i < c->n_given; i++) {
        if (strcmp(c->given[i].option->name, "--rules") != 0)
            continue;
        tsr_status status = tsr_rules_read(c->session, c->given[i].value);
        if (status != TSR_OK)
            return cli_finish(c, status);
    }
    return 0;
}

// Parses the words, makes the session that the command works with, and runs it.
static int run_parsed(struct cli *c, int argc, char **argv)
{
    tsr_session_options options = {.size = sizeof options, .progress_data = c};
    if (isatty(STDERR_FILENO))
        options.progress = show_progress;
    int parsed = parse(c, argc, argv);
    if (parsed)
        return parsed - 1000;
    int code = cli_memory_limit(c, &options.memory_limit);
    if (code)
        return code;
    c->session = tsr_session_new(&options);
    if (!c->session) {
        fprintf(stderr, "tessera: out of memory\n");
        return EXIT_READ;
    }
    cli_signals(c->session);
    code = cli_guard(c);
    if (!code)
        code = read_rules(c);
    if (!code)
        code = cli_folder(c);
    return code ? code : c->command->run(c);
}

static int run_command(struct cli *c, int argc, char **argv)
{
    int code = EXIT_READ;
    c->given = calloc((size_t)argc, sizeof *c->given);
    c->arguments = calloc((size_t)argc, sizeof *c->arguments);
    if (c->given && c->arguments)
        code = run_parsed(c, argc, argv);
    else
        fprintf(stderr, "tessera: out of memory\n");
    if (fflush(stdout) != 0 && code == EXIT_DONE)
        code = EXIT_WRITE;
    cli_signals_end();
    tsr_session_free(c->session);
    cli_folder_end(c);
    free(c->arguments);
    free(c->given);
    return code;
}

int main(int argc, char **argv)
{
    cli_streams();
    if (argc < 2)
        return help_all(stderr);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
        (!strcmp(argv[1], "help") && argc == 2))
        return help_all(stdout);
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        printf("tessera %s\n", tsr_version());
        return EXIT_DONE;
    }
    bool help = !strcmp(argv[1], "help");
    struct cli c = {.command = find_command(argv[help ? 2 : 1]), .program = argv[0]};
    if (!c.command) {
        const char *near = cli_near_command(argv[help ? 2 : 1]);
        fprintf(stderr, "tessera: no command '%s'%s%s%s; `tessera --help` lists them\n",
                argv[help ? 2 : 1], near ? ", did you mean " : "", near ? near : "",
                near ? "?" : "");
        return EXIT_USAGE;
    }
    return help ? help_command(c.command) : run_command(&c, argc, argv);
}
