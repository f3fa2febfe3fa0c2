// SPDX-License-Identifier: Apache-2.0
// options.c - the tables of commands and common options, look-up of given options, and readers of
// their values.
//
// cli_fill stores values by the tables: `--threads 4` has the row {"--threads", "N", ...,
// INTO_RUN(threads), .min = 1, .max = 4096} and becomes options.threads = 4.
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// --help is handled by the parser and never reaches a command.
const struct option cli_common[] = {
    {"--json", NULL, "print one JSON document on stdout"},
    {"--quiet", NULL, "print errors only"},
    {"--verbose", NULL, "print notes too"},
    {"--memory-limit", "SIZE",
     "memory that the command may allocate: 2GiB (default: 7/8 of the machine)"},
    {"--help", NULL, "print this text"},
    END_OF_OPTIONS,
};

const struct option *cli_common_of(const struct command *command)
{
    size_t n = sizeof cli_common / sizeof *cli_common;
    return command->python ? &cli_common[n - 2] : cli_common; // --help is the last one
}

#define COMMAND(name) extern const struct command cmd_##name;
#include "cli/commands.def"
#undef COMMAND
extern const struct command cmd_chat, cmd_serve;

// Those of the Python package are the last.
static const struct command *const commands[] = {
#define COMMAND(name) &cmd_##name,
#include "cli/commands.def"
#undef COMMAND
    &cmd_chat, &cmd_serve, NULL};

const struct command *cli_command_at(size_t i)
{
    const struct command *command = commands[i];
    return command && command->python && !tsr_in_wheel() ? NULL : command;
}

// ---- look-up -----------------------------------------------------------------------------------

const char *cli_value(const struct cli *cli, const char *name)
{
    for (size_t i = cli->n_given; i-- > 0;)
        if (!strcmp(cli->given[i].option->name, name))
            return cli->given[i].value;
    return NULL;
}

bool cli_flag(const struct cli *cli, const char *name)
{
    for (size_t i = 0; i < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, name))
            return true;
    return false;
}

const char *cli_first_given(const struct cli *cli, const char *const *names)
{
    while (*names && !cli_flag(cli, *names))
        names++;
    return *names;
}

size_t cli_values(const struct cli *cli, const char *name, const char **list)
{
    size_t n = 0;
    for (size_t i = 0; i < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, name))
            list[n++] = cli->given[i].value;
    return n;
}

// Finds an option in a table. The name has n characters: "--json" of "--json=1".
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
    return option ? option : find_in(cli_common, name, n);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "tessera %s: ", cli->command->name);
    cli_print_excerpt(format, args);
    fprintf(stderr, "\nusage: tessera %s %s\nSee `tessera %s --help`.\n", cli->command->name,
            cli->command->arguments, cli->command->name);
    va_end(args);
    return EXIT_USAGE;
}

const char *cli_removed(const char *option, const char *value)
{
    static const struct {
        const char *option, *value, *message;
    } removed[] = {
        {"--layout", "wrapped",
         "was replaced by --layout context: register libtessera_ep.so instead of "
         "libtessera_ops.so"},
        {"--dialect", NULL, "was removed: rank files need ONNX Runtime with libtessera_ops.so"},
        {"--study", NULL, "was removed: compare machines with tessera advise"},
    };
    size_t n = strcspn(option, "=");
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        bool same = strlen(removed[i].option) == n && !strncmp(removed[i].option, option, n);
        if (same && !value == !removed[i].value && (!value || !strcmp(removed[i].value, value)))
            return removed[i].message;
    }
    return NULL;
}

// ---- values ------------------------------------------------------------------------------------

// Reads a number. The first character is checked because strtoull accepts " 7", "+7" and "-7".
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

bool cli_number(const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v <= 0)
        return false;
    *out = v;
    return true;
}

int cli_shape(const char *text, int64_t *shape)
{
    int rank = 0;
    if (!*text)
        return 0; // a scalar
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

bool cli_notation(const struct cli *cli, tsr_notation *out)
{
    static const char *const names[] = {
        [TSR_NOTATION_TILES] = "tiles",
        [TSR_NOTATION_MESH] = "mesh",
        [TSR_NOTATION_SETS] = "sets",
    };
    const char *given = cli_value(cli, "--notation");
    *out = TSR_NOTATION_TILES;
    for (size_t i = 0; given && i < sizeof names / sizeof *names; i++)
        if (strcmp(given, names[i]) == 0) {
            *out = (tsr_notation)i;
            return true;
        }
    return !given;
}

// ---- values into structs -----------------------------------------------------------------------

static int fill_integer(const struct cli *cli, const struct given *given, void *to)
{
    const struct option *option = given->option;
    uint64_t n = 0, most = (uint64_t)option->max;
    if (!most && option->kind == OPTION_INT)
        most = INT32_MAX;
    else if (!most)
        most = option->kind == OPTION_INT64 ? INT64_MAX : UINT64_MAX;
    if (!cli_count_of(given->value, &n) || n < (uint64_t)option->min || n > most) {
        if (option->max)
            return cli_usage(cli, "%s needs a number from %lld to %lld, not '%s'", option->name,
                             (long long)option->min, (long long)option->max, given->value);
        return cli_usage(cli, "%s needs a number from %lld up, not '%s'", option->name,
                         (long long)option->min, given->value);
    }
    if (option->kind == OPTION_INT)
        *(int *)to = (int)n;
    else
        *(uint64_t *)to = n; // or int64_t
    return 0;
}

// Reports an unknown choice: "--gpu-way needs auto, own, nccl or host, not 'x'". Empty entries of
// the list are not printed.
static int refuse_choice(const struct cli *cli, const struct given *given)
{
    char list[256] = "";
    const char *removed = cli_removed(given->option->name, given->value);
    if (removed)
        return cli_usage(cli, "%s %s %s", given->option->name, given->value, removed);
    for (const char *const *choice = given->option->choices; *choice; choice++) {
        const char *before = choice[1] ? ", " : " or ";
        if (**choice)
            cli_append(list, sizeof list, "%s%s", *list ? before : "", *choice);
    }
    return cli_usage(cli, "%s needs %s, not '%s'", given->option->name, list, given->value);
}

static int fill_text(const struct cli *cli, const struct given *given, void *to)
{
    const char *const *choice = given->option->choices;
    while (choice && *choice && strcmp(*choice, given->value) != 0)
        choice++;
    if (choice && !*choice)
        return refuse_choice(cli, given);
    *(const char **)to = given->value;
    return 0;
}

// Stores the index of a choice. An empty entry reserves an index of the enumeration that has no
// name.
static int fill_enum(const struct cli *cli, const struct given *given, void *to)
{
    const char *const *choices = given->option->choices;
    int i = 0;
    while (choices[i] && (!choices[i][0] || strcmp(choices[i], given->value) != 0))
        i++;
    if (!choices[i])
        return refuse_choice(cli, given);
    *(int *)to = i; // an enumeration has the size of an int
    return 0;
}

static int fill_one(const struct cli *cli, const struct given *given, void *to)
{
    const char *name = given->option->name;
    switch (given->option->kind) {
    case OPTION_BY_COMMAND:
        return 0;
    case OPTION_FLAG:
        *(bool *)to = true;
        return 0;
    case OPTION_TEXT:
        return fill_text(cli, given, to);
    case OPTION_ENUM:
        return fill_enum(cli, given, to);
    case OPTION_NUMBER:
        if (!cli_number(given->value, to))
            return cli_usage(cli, "%s needs a positive number, not '%s'", name, given->value);
        return 0;
    case OPTION_BYTES:
        if (!tsr_bytes_read(given->value, to))
            return cli_usage(cli, "%s needs a size such as 8GiB, not '%s'", name, given->value);
        return 0;
    default:
        return fill_integer(cli, given, to);
    }
}

int cli_fill(const struct cli *cli, enum option_target target, void *to)
{
    int code = 0;
    for (size_t i = 0; i < cli->n_given && !code; i++)
        if (cli->given[i].option->target == target)
            code = fill_one(cli, &cli->given[i], (char *)to + cli->given[i].option->offset);
    return code;
}
