// SPDX-License-Identifier: Apache-2.0
// folder.c - a generation folder where a command wants a model: its model is taken, and what the user did not say is
// filled in: inputs that fit together, or sizes of one step of decode.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKENS      3 // of the inputs that are made up, after PAST of them
#define PAST        5
#define DECODE_PAST 256

// As if the user had given it. The text is kept until the end.
static bool give(struct cli *cli, const struct option *option, char *text)
{
    struct given *given = realloc(cli->given, (cli->n_given + 1) * sizeof *given);
    if (given)
        cli->given = given;
    char **made = realloc(cli->made, (cli->n_made + 1) * sizeof *made);
    if (made)
        cli->made = made;
    if (!given || !made || !text) {
        free(text);
        return false;
    }
    cli->given[cli->n_given++] = (struct given){option, text};
    cli->made[cli->n_made++] = text;
    return true;
}

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
    const tsr_size *sizes;
    size_t n;
    tsr_status status = tsr_folder_sizes(folder, 1, DECODE_PAST, &sizes, &n);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        char *text = NULL;
        if (has_dim(cli, sizes[i].name))
            continue;
        if (asprintf(&text, "%s=%lld", sizes[i].name, (long long)sizes[i].size) < 0 ||
            !give(cli, dim, text))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Writes a set of inputs that fit together into a temporary file, which goes when the command ends.
static tsr_status give_inputs(struct cli *cli, tsr_folder *f, const struct option *inputs)
{
    const char *folder = getenv("TMPDIR");
    tsr_tensors *set = NULL;
    char *path = NULL;
    if (asprintf(&path, "%s/tessera-inputs-%ld.npz", folder && *folder ? folder : "/tmp",
                 (long)getpid()) < 0)
        return TSR_NOMEM;
    tsr_status status = tsr_tensors_new(cli->session, &set);
    if (status == TSR_OK)
        status = tsr_folder_inputs(f, 1, TOKENS, PAST, set);
    if (status == TSR_OK)
        status = tsr_tensors_save(set, path);
    tsr_tensors_free(set);
    if (status != TSR_OK || !give(cli, inputs, path)) {
        if (status != TSR_OK)
            free(path);
        return status == TSR_OK ? TSR_NOMEM : status;
    }
    cli->temporary = path;
    return TSR_OK;
}

int cli_folder(struct cli *cli)
{
    if (!cli->n_arguments || !tsr_folder_is(cli->arguments[0]))
        return 0;
    tsr_folder *folder;
    tsr_status status = tsr_folder_open(cli->session, cli->arguments[0], &folder);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    const struct option *inputs = cli_option(cli->command, "--inputs", strlen("--inputs"));
    const struct option *dim = cli_option(cli->command, "--dim", strlen("--dim"));
    cli->folder = cli->arguments[0];
    char *model = strdup(tsr_folder_model(folder));
    status = model ? TSR_OK : TSR_NOMEM;
    if (model)
        cli->arguments[0] = cli->folder_model = model;
    if (status == TSR_OK && inputs && !cli_value(cli, "--inputs"))
        status = give_inputs(cli, folder, inputs);
    else if (status == TSR_OK && dim && !inputs)
        status = give_sizes(cli, folder, dim);
    tsr_folder_free(folder);
    return status == TSR_OK ? 0 : cli_finish(cli, status);
}

void cli_folder_end(struct cli *cli)
{
    if (cli->temporary)
        unlink(cli->temporary);
    for (size_t i = 0; i < cli->n_made; i++)
        free(cli->made[i]);
    free(cli->made);
    free(cli->folder_model);
}
