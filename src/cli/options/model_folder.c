// SPDX-License-Identifier: Apache-2.0
// model_folder.c - accepts a generation folder wherever a command takes a model.
//
// main.c calls cli_folder between parsing and the command. The argument becomes the model file of
// the folder, and missing options are filled in as if the user had given them. Commands with
// --inputs (run, verify, bench) get a file of inputs: 3 tokens with 5 in the cache. Commands with
// --dim only (plan, partition, shapes, simulate, report) get the sizes of one decode step: 1 token
// with 256 in the cache. cli->folder keeps the folder for commands that need it (generate, bench,
// partition --layout genai).
#include "cli/cli.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKENS      3 // of the generated inputs, with PAST tokens in the cache
#define PAST        5
#define DECODE_PAST 256 // tokens in the cache that plans assume

void cli_give(struct cli *cli, const struct option *option, char *text)
{
    cli->given = cli_grow(cli->given, cli->n_given + 1, sizeof *cli->given);
    cli->made = cli_grow(cli->made, cli->n_made + 1, sizeof *cli->made);
    cli->given[cli->n_given++] = (struct given){option, text};
    cli->made[cli->n_made++] = text;
}

// True if the user gave --dim NAME=...
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
        cli_give(cli, dim, text);
    }
    return TSR_OK;
}

// Writes inputs into a temporary folder, which is removed with the session, and gives them as
// --inputs.
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
    cli_give(cli, inputs, path);
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

static int is_model_name(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > strlen(".onnx") && strcmp(entry->d_name + n - strlen(".onnx"), ".onnx") == 0;
}

// Writes the models of a folder to `list`: "t5/decoder.onnx, t5/encoder.onnx". Paths that do not
// fit are left out. Returns false for a folder without models, and for a partition, also one that
// has lost its manifest.
static bool list_models(const char *folder, char *list, size_t size)
{
    struct dirent **entries;
    char path[PATH_MAX];
    if (!cli_is_folder(folder))
        return false;
    static const char *const of_partitions[] = {"manifest.json", "rank0.onnx"};
    for (size_t i = 0; i < sizeof of_partitions / sizeof *of_partitions; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, of_partitions[i]);
        if (access(path, F_OK) == 0)
            return false;
    }
    int n = scandir(folder, &entries, is_model_name, alphasort);
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        size_t length = strlen(folder) + strlen(entries[i]->d_name);
        if (used + length + sizeof ", /" <= size)
            used += (size_t)snprintf(list + used, size - used, "%s%s/%s", used ? ", " : "", folder,
                                     entries[i]->d_name);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return used > 0;
}

int cli_folder(struct cli *cli)
{
    char models[PATH_MAX] = "";
    if (!cli->n_arguments)
        return 0;
    if (!tsr_is_genai_folder(cli->arguments[0])) {
        bool takes_folders = strcmp(cli->command->name, "generate") == 0; // refuses others itself
        if (takes_folders || !list_models(cli->arguments[0], models, sizeof models))
            return 0;
        fprintf(stderr,
                "%s: error[io-open]: it is neither a model nor a partition, and not a generation "
                "folder (genai_config.json, or config.json and model.onnx)\n"
                "  help: give one of its models: %s\n",
                cli->arguments[0], models);
        return EXIT_READ;
    }
    tsr_folder *folder;
    tsr_status status = tsr_folder_open(cli->session, cli->arguments[0], &folder);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    const struct option *inputs = cli_option(cli->command, "--inputs", strlen("--inputs"));
    const struct option *dim = cli_option(cli->command, "--dim", strlen("--dim"));
    cli->folder = cli->arguments[0];
    cli->arguments[0] = cli_copy(tsr_folder_model(folder), strlen(tsr_folder_model(folder)));
    if (inputs && !cli_value(cli, "--inputs"))
        status = give_inputs(cli, folder, inputs);
    else if (dim && !inputs)
        status = give_sizes(cli, folder, dim);
    tsr_folder_free(folder);
    return status == TSR_OK ? 0 : cli_finish(cli, status);
}
