// SPDX-License-Identifier: Apache-2.0
// cmd_completion.c - completion scripts for bash, zsh and fish, from the tables of commands and
// options.
//
// Each shell has one function that prints the frame and one that prints an option.
#include "cli/cli.h"

#include <string.h>

static void each_option(const struct command *command,
                        void (*f)(const struct command *, const struct option *))
{
    for (const struct option *option = command->options; option && option->name; option++)
        f(command, option);
    for (const struct option *option = cli_common_of(command); option->name; option++)
        f(command, option);
}

static void word(const struct command *command, const struct option *option)
{
    (void)command;
    printf(" %s", option->name);
}

// Prints a script for bash. It completes options of the command, commands for the first word, and
// file names for other words.
static void bash(void)
{
    printf("_tessera() {\n    local words\n    case \"${COMP_WORDS[1]}\" in\n");
    for (size_t i = 0; cli_command_at(i); i++) {
        printf("    %s) words=\"", cli_command_at(i)->name);
        each_option(cli_command_at(i), word);
        printf("\" ;;\n");
    }
    printf("    esac\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    for (size_t i = 0; cli_command_at(i); i++)
        printf("%s ", cli_command_at(i)->name);
    printf("--help --version\"\n    elif [[ \"${COMP_WORDS[COMP_CWORD]}\" != -* ]]; then\n        "
           "words=\"\"\n    fi\n"
           "    COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n"
           "complete -o default -F _tessera tessera\n");
}

// Prints an option for zsh: '--name[help]' and, with a value, ':value:_files'. Characters that have
// a meaning for zsh's _arguments are escaped.
static void zsh_option(const struct command *command, const struct option *option)
{
    (void)command;
    printf(" '%s[", option->name);
    for (const char *p = option->help; *p; p++) {
        if (*p == '\'') // close the quotes, a quoted quote, open them again
            printf("'\\''");
        else
            printf(strchr("[]:\\", *p) ? "\\%c" : "%c", *p);
    }
    printf("]%s'", option->value ? ":value:_files" : "");
}

static void zsh(void)
{
    printf("#compdef tessera\n_tessera() {\n    if (( CURRENT == 2 )); then\n        local -a "
           "commands=(");
    for (size_t i = 0; cli_command_at(i); i++)
        printf(" '%s:%s'", cli_command_at(i)->name, cli_command_at(i)->summary);
    printf(
        " )\n        _describe command commands\n        return\n    fi\n    case $words[2] in\n");
    for (size_t i = 0; cli_command_at(i); i++) {
        printf("    %s) _arguments '*:file:_files'", cli_command_at(i)->name);
        each_option(cli_command_at(i), zsh_option);
        printf(" ;;\n");
    }
    printf("    esac\n}\ncompdef _tessera tessera\n");
}

// Prints an option for fish. -l: a long option; -s: a short one; -r: it needs a value.
static void fish_option(const struct command *command, const struct option *option)
{
    printf("complete -c tessera -n '__fish_seen_subcommand_from %s' ", command->name);
    if (option->name[1] == '-')
        printf("-l %s", option->name + 2);
    else
        printf("-s %s", option->name + 1);
    printf("%s -d \"%s\"\n", option->value ? " -r" : "", option->help);
}

static void fish(void)
{
    for (size_t i = 0; cli_command_at(i); i++) {
        printf("complete -c tessera -n __fish_use_subcommand -a %s -d \"%s\"\n",
               cli_command_at(i)->name, cli_command_at(i)->summary);
        each_option(cli_command_at(i), fish_option);
    }
}

static int run_completion(struct cli *cli)
{
    const char *shell = cli->arguments[0];
    if (cli->json)
        return cli_usage(cli, "a completion script is not JSON: remove --json");
    if (!strcmp(shell, "bash"))
        bash();
    else if (!strcmp(shell, "zsh"))
        zsh();
    else if (!strcmp(shell, "fish"))
        fish();
    else
        return cli_usage(cli, "unknown shell '%s': use bash, zsh or fish", shell);
    return EXIT_DONE;
}

const struct command cmd_completion = {
    .name = "completion",
    .arguments = "bash|zsh|fish",
    .summary = "print a completion script for a shell",
    .example = "tessera completion bash > tessera.bash",
    .takes = {1, 1},
    .run = run_completion,
};
