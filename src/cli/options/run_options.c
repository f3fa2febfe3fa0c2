// SPDX-License-Identifier: Apache-2.0
// run_options.c - inputs and options of the commands that run a model.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *cli_temporary(void)
{
    return cli_text_or(getenv("TMPDIR"), NULL);
}

// Returns EXIT_USAGE after a message if --dim has no effect: on inputs of a file, for a partition.
static int check_dims_used(struct cli *cli, const char *inputs)
{
    if (!cli_flag(cli, "--dim") || !cli_is_folder(cli->arguments[0]))
        return 0;
    return cli_usage(cli, "--dim is for random inputs; '%s' has its own shapes", inputs);
}

// Returns the description of the inputs, or NULL after a message. Sizes are appended for random
// inputs: --inputs random:7, --shape x:2x3 and --dim batch=2 become "random:7,x:2x3,batch=2".
const char *cli_inputs(struct cli *cli)
{
    static char set[8192];
    const char *given = cli_value(cli, "--inputs");
    int64_t shape[CLI_MAX_RANK];
    bool random = !given || strncmp(given, "random", 6) == 0;
    if (!given || !strcmp(given, "random"))
        given = "random:0";
    bool fits = (size_t)snprintf(set, sizeof set, "%s", given) < sizeof set;
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *text = cli->given[i].value;
        if (random && strcmp(cli->given[i].option->name, "--dim") == 0)
            fits &= cli_append(set, sizeof set, ",%s", text);
        if (strcmp(cli->given[i].option->name, "--shape") != 0)
            continue;
        const char *colon = strrchr(text, ':');
        if (!random) {
            cli_usage(cli, "--shape is for random inputs; '%s' has its own shapes", given);
            return NULL;
        }
        if (!colon || colon == text || (colon[1] && cli_shape(colon + 1, shape) < 0)) {
            cli_usage(cli, "--shape needs NAME:2x3 (NAME: for a scalar), not '%s'", text);
            return NULL;
        }
        fits &= cli_append(set, sizeof set, ",%s", text);
    }
    if (!random && check_dims_used(cli, given))
        return NULL;
    if (!fits) {
        cli_usage(cli, "--inputs, --shape and --dim together are too long");
        return NULL;
    }
    return set;
}

void cli_print_seed(struct cli *cli, const char *set)
{
    static const char random[] = "random:";
    const char *seed = set + strlen(random);
    if (cli_rank(cli) == 0 && strncmp(set, random, strlen(random)) == 0)
        cli_print(cli, "random inputs, seed %.*s\n", (int)strcspn(seed, ","), seed);
}

// Reads or creates the inputs of a run. For a partition, the file of this rank declares the inputs,
// because hosts need not have each other's files. If the launcher has more ranks than the
// partition, rank 0's file is used, and the run reports the error.
tsr_status cli_load_inputs(struct cli *cli, const char *set, bool is_static,
                           const tsr_run_options *options, tsr_tensors *inputs, tsr_model **m,
                           tsr_input_sizes *sizes)
{
    char file[4096];
    bool folder = cli_is_folder(cli->arguments[0]);
    if (folder)
        snprintf(file, sizeof file, "%s/rank%d.onnx", cli->arguments[0], cli_rank(cli));
    else
        snprintf(file, sizeof file, "%s", cli->arguments[0]);
    if (folder && access(file, F_OK) != 0)
        snprintf(file, sizeof file, "%s/rank0.onnx", cli->arguments[0]);
    tsr_status status = tsr_model_load(cli->session, file, m);
    if (status == TSR_OK && !is_static)
        status = cli_check_dims(cli, *m);
    if (status == TSR_OK)
        status = tsr_model_check_ports(*m);
    if (status != TSR_OK)
        return status;
    status = tsr_inputs_load(inputs, set, *m, options, sizes);
    if (status != TSR_OK)
        return status;
    cli_print_seed(cli, set);
    if (!cli_value(cli, "--devices"))
        sizes->planned_size = 0; // nothing is planned
    if (cli_rank(cli) == 0)
        cli_print_sizes(cli, sizes);
    return TSR_OK;
}

// Stores all values of an option in `list` and checks that they are KEY=VALUE. `list` is static
// memory of the caller: options point to it until the run is over.
static int read_pairs(struct cli *cli, const char *name, bool empty_ok, const char **list,
                      size_t cap, size_t *n)
{
    const char **all = cli_alloc(cli->n_given, sizeof *all);
    int code = 0;
    *n = cli_values(cli, name, all);
    if (*n > cap)
        code = cli_usage(cli, "too many %s", name);
    for (size_t i = 0; i < *n && !code; i++) {
        const char *equals = strchr(all[i], '=');
        if (!equals || equals == all[i] || (!equals[1] && !empty_ok))
            code = cli_usage(cli, "%s needs %s, not '%s'", name,
                             cli_option(cli->command, name, strlen(name))->value, all[i]);
        list[i] = all[i];
    }
    return code;
}

static int read_lists(struct cli *cli, tsr_run_options *options)
{
    static const char *map[64], *provider[48];
    options->map_devices = map;
    options->provider_options = provider;
    int code = read_pairs(cli, "--map-device", false, map, 64, &options->n_map_devices);
    if (!code)
        code =
            read_pairs(cli, "--provider-option", true, provider, 48, &options->n_provider_options);
    return code;
}

// Reads the options of a run, from the command line and the environment. The library reads no
// environment variables itself.
int cli_read_run_options(struct cli *cli, tsr_run_options *options)
{
    const char *level = cli_value(cli, "--optimize");
    *options = (tsr_run_options){.size = sizeof *options,
                                 .plugins = getenv("TESSERA_PLUGINS"),
                                 .gpu_driver = getenv("TESSERA_CUDA"),
                                 .gpu_nccl = getenv("TESSERA_NCCL"),
                                 .work = cli_temporary()};
    int code = cli_fill(cli, OPTION_RUN, options);
    if (!code && level && (level[0] < '0' || level[0] > '3' || level[1]))
        code = cli_usage(cli, "--optimize needs 0, 1, 2 or 3, not '%s'", level);
    options->optimize = level ? level[0] - '0' + 1 : 0; // 0: not given
    if (!code)
        code = cli_read_place(cli, options);
    return code ? code : read_lists(cli, options);
}
