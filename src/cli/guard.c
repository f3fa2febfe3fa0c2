// SPDX-License-Identifier: Apache-2.0
// guard.c - what is wrong with a call before anything runs: a file that would be written over one that is read, or over
// another result; an option that is not there but near to one that is.
//
// Knows options by their names alone; what a command does with them is its own matter.
//
// Two questions of main.c. cli_guard: before the session reads a file, is a result named as an
// input (`plan m.onnx -o m.onnx`), or as another result (`plan m.onnx -o x --plan x`)? Files are
// compared by device and inode, so links and other spellings of a path are seen. cli_near_*: which
// word was meant?
#include "cli.h"

#include <string.h>
#include <sys/stat.h>

// The command's name: `--plan FILE` is written by `plan` and read by `report`.
static bool is(const struct cli *cli, const char *command)
{
    return !strcmp(cli->command->name, command);
}

// The option names a file that the command writes.
static bool writes(const struct cli *cli, const char *option)
{
    static const char *const names[] = {"-o", "--outputs", "--with-output", "--export-lp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], option))
            return true;
    return (!strcmp(option, "--plan") && is(cli, "plan")) ||
           (!strcmp(option, "--trace") && !is(cli, "report"));
}

// Both names lead to one regular file. Pipes and devices may be given twice.
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

// A pipe or device such as /dev/null, which loses nothing when it is written twice.
static bool is_special(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static int refuse(const struct cli *cli, const char *path, const char *what)
{
    fprintf(stderr, "tessera %s: '%s' is %s; nothing was written\n  help: give another name\n",
            cli->command->name, path, what);
    return EXIT_WRITE;
}

// The other options: what they read, and what they write too.
// `at`: the option that names a result. Of two results that do not exist yet only the names can be
// compared; the same option given twice is no conflict, for the last one counts.
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
            return refuse(cli, out, "named for two results");
        if (!also && same_file(out, value))
            return refuse(cli, out, "an input");
    }
    return 0;
}

int cli_guard(const struct cli *cli)
{
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *out = cli->given[i].value;
        if (!out || !writes(cli, cli->given[i].option->name))
            continue;
        for (size_t k = 0; k < cli->n_arguments; k++)
            if (same_file(out, cli->arguments[k]))
                return refuse(cli, out, "an input");
        int code = guard_options(cli, i);
        if (code)
            return code;
    }
    return 0;
}

// Edit distance of two words, for "did you mean"; those beyond 255 bytes are never near.
// Insertions, deletions and changes that make one word of the other: "plna" and "plan" are 2 apart.
size_t cli_distance(const char *a, const char *b)
{
    // One row of the table of distances: row[j] is how far the first i letters of a are from the
    // first j of b. `diagonal` keeps what stood one up and one to the left.
    size_t row[256], n = strlen(a), m = strlen(b);
    if (n > 255 || m > 255)
        return 1000;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t other = 1 + cli_fewer(row[j], row[j - 1]);
            row[j] = cli_fewer(change, other);
        }
    }
    return row[m];
}

// *least is the first distance that is too far, and becomes that of the option that is returned, so
// that a second table has to be nearer.
static const struct option *nearest_in(const struct option *table, const char *word, size_t *least)
{
    const struct option *best = NULL;
    for (const struct option *option = table; option && option->name; option++) {
        size_t d = cli_distance(word, option->name);
        if (d < *least) {
            *least = d;
            best = option;
        }
    }
    return best;
}

// Near is less than 1 + (n + 1) / 4 changes: one of "--jsn", three of "--memory-limt".
const char *cli_near_option(const struct command *command, const char *word)
{
    size_t least = 1 + (strlen(word) + 1) / 4;
    const struct option *own = nearest_in(command->options, word, &least);
    const struct option *common = nearest_in(cli_common, word, &least);
    if (common) // nearer than the best of its own
        return common->name;
    if (!own)
        return NULL;
    return own->name;
}

// More generous than for options, as commands are few: less than 1 + (n + 2) / 3 changes, so that
// "plna" (2 of at most 2) finds plan.
const char *cli_near_command(const char *word)
{
    const char *best = NULL;
    size_t least = 1 + (strlen(word) + 2) / 3;
    for (size_t i = 0; cli_commands[i]; i++) {
        size_t d = cli_distance(word, cli_commands[i]->name);
        if (d < least) {
            least = d;
            best = cli_commands[i]->name;
        }
    }
    return best;
}
