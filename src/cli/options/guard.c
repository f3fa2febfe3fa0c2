// SPDX-License-Identifier: Apache-2.0
// guard.c - checks of a command line before anything runs.
//
// cli_guard refuses an output file that is also an input (`plan m.onnx -o m.onnx`), another output
// (`plan m.onnx -o x --plan x`), or the standard output on which the command prints its result
// (`plan m.onnx -o /dev/stdout | ...`). Files are compared by device and inode, so links and
// different spellings of a path are recognized. cli_near_* return the option or command that was
// meant.
#include "cli/cli.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is(const struct cli *cli, const char *command)
{
    return !strcmp(cli->command->name, command);
}

// True if the option names a file that the command writes. `plan` writes --plan, `report` reads it.
static bool writes(const struct cli *cli, const char *option)
{
    static const char *const names[] = {"-o", "--outputs", "--with-output", "--export-lp",
                                        "--sarif-file"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], option))
            return true;
    return (!strcmp(option, "--plan") && is(cli, "plan")) ||
           (!strcmp(option, "--trace") && !is(cli, "report"));
}

// True if both paths are the same regular file. Pipes and devices may be given twice.
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

// True if the path exists and is not a regular file. Pipes and devices such as /dev/null may be
// written twice.
static bool is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

// True if the path is the standard output. /dev/null and other devices are not.
static bool is_stdout(const char *path)
{
    struct stat x, out;
    return stat(path, &x) == 0 && fstat(STDOUT_FILENO, &out) == 0 && x.st_dev == out.st_dev &&
           x.st_ino == out.st_ino && !S_ISCHR(x.st_mode);
}

// True if the command prints text on standard output, although it writes files.
static bool prints_text(const struct cli *cli)
{
    static const char *const always[] = {"bench", "verify", "simulate"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (is(cli, always[i]))
            return true;
    return cli->json || ((is(cli, "plan") || is(cli, "run")) && !cli->quiet);
}

static int refuse_output(const struct cli *cli, const char *path, const char *what,
                         const char *help)
{
    fprintf(stderr, "tessera %s: '%s' is %s; nothing was written\n  help: %s\n", cli->command->name,
            path, what, help);
    return EXIT_WRITE;
}

// Compares output `at` with the files of the other options. Outputs that do not exist yet are
// compared by name only. The same option given twice is no conflict: the last value is used.
static int guard_options(const struct cli *cli, size_t at)
{
    const char *out = cli->given[at].value;
    for (size_t k = 0; k < cli->n_given; k++) {
        const struct option *option = cli->given[k].option;
        const char *value = cli->given[k].value;
        if (option == cli->given[at].option || !value)
            continue;
        bool also = writes(cli, option->name);
        if (also && (same_file(out, value) || (!strcmp(out, value) && !is_special(out))))
            return refuse_output(cli, out, "used for two outputs", "use another name");
        if (!also && same_file(out, value))
            return refuse_output(cli, out, "an input", "use another name");
    }
    return 0;
}

int cli_guard(const struct cli *cli)
{
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *out = cli->given[i].value;
        if (!out || !writes(cli, cli->given[i].option->name))
            continue;
        if (is_stdout(out) && prints_text(cli))
            return refuse_output(cli, out, "standard output, where this command prints text",
                                 "write to a file; `plan` and `run` print no text with --quiet");
        for (size_t k = 0; k < cli->n_arguments; k++)
            if (same_file(out, cli->arguments[k]))
                return refuse_output(cli, out, "an input", "use another name");
        int code = guard_options(cli, i);
        if (code)
            return code;
    }
    return 0;
}

// Adds the names of an option table to the list; returns the new length.
static size_t add_options(const struct option *table, const char **names, size_t n, size_t cap)
{
    for (const struct option *option = table; option && option->name && n < cap; option++)
        names[n++] = option->name;
    return n;
}

const char *cli_near_option(const struct command *command, const char *word)
{
    const char *names[128];
    size_t n = add_options(command->options, names, 0, 128);
    return tsr_nearest(word, names, add_options(cli_common, names, n, 128));
}

const char *cli_near_command(const char *word)
{
    const char *names[64];
    size_t n = 0;
    for (; n < 64 && cli_command_at(n); n++)
        names[n] = cli_command_at(n)->name;
    return tsr_nearest(word, names, n);
}
