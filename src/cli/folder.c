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
static bool give(struct cli *c, const struct option *option, char *text)
{
    struct given *given = realloc(c->given, (c->n_given + 1) * sizeof *given);
    if (given)
        c->given = given;
    char **made = realloc(c->made, (c->n_made + 1) * sizeof *made);
    if (made)
        c->made = made;
    if (!given || !made || !text) {
        free(text);
        return false;
    }
    c->given[c->n_given++] = (struct given){option, text};
    c->made[c->n_made++] = text;
    return true;
}

static bool has_dim(const struct cli *c, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < c->n_given; i++) {
        const char *value = c->given[i].value;
        if (strcmp(c->given[i].option->name, "--dim") == 0 && strncmp(value, name, n) == 0 &&
            value[n] == '=')
            return true;
    }
    return false;
}

static tsr_status give_sizes(struct cli *c, tsr_folder *f, const struct option *dim)
{
    const tsr_size *sizes;
    size_t n;
    tsr_status status = tsr_folder_sizes(f, 1, DECODE_PAST, &sizes, &n);
    if (status != TSR_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        char *text = NULL;
        if (has_dim(c, sizes[i].name))
            continue;
        if (asprintf(&text, "%s=%lld", sizes[i].name, (long long)sizes[i].size) < 0 ||
            !give(c, dim, text))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Writes a set of inputs that fit together into a temporary file, which goes when the command ends.
static tsr_status give_inputs(struct cli *c, tsr_folder *f, const struct option *inputs)
{
    const char *folder = getenv("TMPDIR");
    tsr_tensors *set = NULL;
    char *path = NULL;
    if (asprintf(&path, "%s/tessera-inputs-%ld.npz", folder && *folder ? folder : "/tmp",
                 (long)getpid()) < 0)
        return TSR_NOMEM;
    tsr_status status = tsr_tensors_new(c->session, &set);
    if (status == TSR_OK)
        status = tsr_folder_inputs(f, 1, TOKENS, PAST, set);
    if (status == TSR_OK)
        status = tsr_tensors_save(set, path);
    tsr_tensors_free(set);
    if (status != TSR_OK || !give(c, inputs, path)) {
        if (status != TSR_OK)
            free(path);
        return status == TSR_OK ? TSR_NOMEM : status;
    }
    c->temporary = path;
    return TSR_OK;
}

int cli_folder(struct cli *c)
{
    if (!c->n_arguments || !tsr_folder_is(c->arguments[0]))
        return 0;
    tsr_folder *f;
    tsr_status status = tsr_folder_open(c->session, c->arguments[0], &f);
    if (status != TSR_OK)
        return cli_finish(c, status);
    const struct option *inputs = cli_option(c->command, "--inputs", strlen("--inputs"));
    const struct option *dim = cli_option(c->command, "--dim", strlen("--dim"));
    c->folder = c->arguments[0];
    char *model = strdup(tsr_folder_model(f));
    status = model ? TSR_OK : TSR_NOMEM;
    if (model)
        c->arguments[0] = c->folder_model = model;
    if (status == TSR_OK && inputs && !cli_value(c, "--inputs"))
        status = give_inputs(c, f, inputs);
    else if (status == TSR_OK && dim && !inputs)
        status = give_sizes(c, f, dim);
    tsr_folder_free(f);
    return status == TSR_OK ? 0 : cli_finish(c, status);
}

void cli_folder_end(struct cli *c)
{
    if (c->temporary)
        unlink(c->temporary);
    for (size_t i = 0; i < c->n_made; i++)
        free(c->made[i]);
    free(c->made);
    free(c->folder_model);
}
