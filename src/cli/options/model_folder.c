// SPDX-License-Identifier: Apache-2.0
// model_folder.c - a generation folder where a command wants a model: its model is taken, and what the user did not say is
// filled in: inputs that fit together, or sizes of one step of decode.
//
// Called by main.c after the options are parsed and before the command runs, which then sees a
// model file as its argument and filled-in options as if the user had typed them. Two kinds of
// command: those with --inputs (run, verify, bench) get a file of inputs, 3 tokens after 5 that the
// cache holds; those with --dim alone (plan, partition, shapes, simulate, report) get the sizes of
// one step of decode, 1 token after 256. cli->folder still names the folder for commands that want
// more of it (generate, bench, partition --layout genai).
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS      3 // of the inputs that are made up, after PAST of them
#define PAST        5
#define DECODE_PAST 256 // tokens in the cache that plans are made for

// As if the user had given it. The text is kept until the end.
// The list of what was given had room for argc entries, so it grows here; `made` owns the texts.
static void give(struct cli *cli, const struct option *option, char *text)
{
    cli->given = cli_grow(cli->given, cli->n_given + 1, sizeof *cli->given);
    cli->made = cli_grow(cli->made, cli->n_made + 1, sizeof *cli->made);
    cli->given[cli->n_given++] = (struct given){option, text};
    cli->made[cli->n_made++] = text;
}

// The user has given --dim NAME=... for that name: it wins.
static bool has_dim(const struct cli *cli, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *value = cli->given[i].value;
        if (strcmp(cli->given[i].option->name, "--dim") == 0 && strncmp(value, name, n) == 0 &&
            value[n] == '=')
            return true;
    }
    return false;
}

static tsr_status give_sizes(struct cli *cli, tsr_folder *folder, const struct option *dim)
{
    const tsr_dim_size *sizes;
    size_t n;
    tsr_status status = tsr_folder_sizes(folder, 1, DECODE_PAST, &sizes, &n);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        if (has_dim(cli, sizes[i].name))
            continue;
        size_t bytes = strlen(sizes[i].name) + 24; // "=", digits, the end
        char *text = cli_alloc(bytes, 1);
        snprintf(text, bytes, "%s=%lld", sizes[i].name, (long long)sizes[i].size);
        give(cli, dim, text);
    }
    return TSR_OK;
}

// Writes a set of inputs that fit together into a temporary folder, which goes with the session.
static tsr_status give_inputs(struct cli *cli, tsr_folder *f, const struct option *inputs)
{
    const char *folder = NULL;
    tsr_tensors *set = NULL;
    tsr_status status = tsr_session_temporary(cli->session, cli_temporary(), &folder);
    if (status != TSR_OK)
        return status;
    size_t bytes = strlen(folder) + sizeof "/inputs.npz";
    char *path = cli_alloc(bytes, 1);
    snprintf(path, bytes, "%s/inputs.npz", folder);
    // Before the file is there, so that the text is owned if something fails below.
    give(cli, inputs, path);
    status = tsr_tensors_new(cli->session, &set);
    if (status == TSR_OK)
        status = tsr_folder_inputs(f, 1, TOKENS, PAST, set);
    if (status == TSR_OK)
        status = tsr_tensors_save(set, path);
    tsr_tensors_free(set);
    return status;
}

bool cli_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// A folder of exported files that has a model, but nothing that says how it generates, and is no partition: the model was meant.
static bool has_model_alone(const char *folder, char *path, size_t n)
{
    snprintf(path, n, "%s/manifest.json", folder);
    if (!cli_is_folder(folder) || access(path, F_OK) == 0)
        return false;
    snprintf(path, n, "%s/model.onnx", folder);
    return access(path, F_OK) == 0;
}

// Anything else that is no such folder is left alone: the command itself says what is wrong with it.
int cli_folder(struct cli *cli)
{
    char path[PATH_MAX];
    if (!cli->n_arguments)
        return 0;
    if (!tsr_folder_is(cli->arguments[0])) {
        if (!has_model_alone(cli->arguments[0], path, sizeof path))
            return 0;
        return cli_usage(cli,
                         "'%s' is a folder without genai_config.json or config.json; its model is "
                         "%s",
                         cli->arguments[0], path);
    }
    tsr_folder *folder;
    tsr_status status = tsr_folder_open(cli->session, cli->arguments[0], &folder);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    const struct option *inputs = cli_option(cli->command, "--inputs", strlen("--inputs"));
    const struct option *dim = cli_option(cli->command, "--dim", strlen("--dim"));
    cli->folder = cli->arguments[0];
    cli->arguments[0] = cli->folder_model =
        cli_copy(tsr_folder_model(folder), strlen(tsr_folder_model(folder)));
    if (inputs && !cli_value(cli, "--inputs"))
        status = give_inputs(cli, folder, inputs);
    else if (dim && !inputs)
        status = give_sizes(cli, folder, dim);
    tsr_folder_free(folder);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    return 0;
}

void cli_folder_end(struct cli *cli)
{
    for (size_t i = 0; i < cli->n_made; i++)
        free(cli->made[i]);
    free(cli->made);
    free(cli->folder_model);
}
