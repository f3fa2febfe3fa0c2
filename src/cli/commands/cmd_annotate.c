// SPDX-License-Identifier: Apache-2.0
// cmd_annotate.c - edits configurations, shardings and stages.
//
// Applies all edits in the given order (edit.c) and writes the model if all are valid.
#include "cli/edit/edit.h"

#include <stdlib.h>
#include <string.h>

// Carries out the edits of the command line. --cascade belongs to the option before it. All options
// with a value are edits, except -o, --dim and --rules.
static void run_edits(struct editor *editor, const struct cli *cli)
{
    for (size_t i = 0; i < cli->n_given; i++) {
        const char *name = cli->given[i].option->name;
        bool cascade = i + 1 < cli->n_given && !strcmp(cli->given[i + 1].option->name, "--cascade");
        if (!strcmp(name, "--script"))
            edit_run_script(editor, cli->given[i].value);
        else if (cli->given[i].value && strcmp(name, "-o") && strcmp(name, "--dim") &&
                 strcmp(name, "--rules"))
            edit_apply(editor, name, cli->given[i].value, cascade);
    }
}

// Writes the edited model. External data is copied first: if copying fails, the model is not
// written.
static int finish(struct cli *cli, struct editor *editor, tsr_model *model, const char *out)
{
    if (editor->code) {
        cli_finish(cli, TSR_OK);
        cli_print(cli, "nothing was written\n");
        return cli->json ? cli_print_written(cli, out, editor->code) : editor->code;
    }
    tsr_status status = cli_flag(cli, "--copy-data") ? tsr_model_copy_data(model, out) : TSR_OK;
    if (status == TSR_OK)
        status = cli_label(cli, model);
    if (status == TSR_OK)
        status = tsr_model_save(model, out);
    int code = cli_finish(cli, status);
    if (status == TSR_OK)
        cli_print(cli, "%s: %zu edit%s, written\n", out, editor->n_applied,
                  cli_plural(editor->n_applied));
    return cli->json ? cli_print_written(cli, out, code) : code;
}

static int run_annotate(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    tsr_model *model = NULL;
    struct cli_dims dims;
    struct editor editor;
    if (!out)
        return cli_usage(cli, "no output file given: use -o OUT");
    int code = cli_read_dims(cli, &dims);
    tsr_status status = code ? TSR_OK : tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK && model)
        status = cli_check_dims(cli, model);
    if (status != TSR_OK)
        code = cli_finish(cli, status);
    if (status == TSR_OK && model) {
        edit_begin(&editor, cli, model);
        editor.sizes = dims.at;
        editor.n_sizes = dims.n;
        run_edits(&editor, cli);
        code = finish(cli, &editor, model, out);
    }
    tsr_model_free(model);
    return code;
}

static const struct option options[] = {
    {"-o", "OUT", "write the model to this file"},
    {"--config", "NAME[:N[=dev,...]]",
     "declare a configuration of N devices, or select one, for the following edits"},
    {"--remove-config", "NAME", "remove a configuration"},
    {"--cascade", NULL, "after --remove-config: also remove all annotations that use it"},
    {"--shard", "NODE:VALUE=SHARDING",
     "shard a value at a node: {2,1:0,1}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2, SR, ({0},{1})@2x2"},
    {"--unshard", "NODE:VALUE", "remove the sharding of a value at a node"},
    {"--stage", "NODE=K", "set the pipeline stage of a node (`none` removes it)"},
    {"--layers", "RULES|auto",
     "set stages from ONNX Runtime's layer annotations (layer_ann): gpu(layers.); cpu(=head); "
     "auto: "
     "one stage per annotation. Declares the configuration `layers` unless --config is given"},
    {"--delay", "NODE", "keep the partial sums of a node if its consumers can add them"},
    {"--store", "NODE:VALUE=SHARDING",
     "store a weight in this sharding; each run converts it for its consumers"},
    {"--tile", "VALUE=SHARDING", "shard a value at its producer and all its consumers"},
    {"--topology", "FILE|NAME",
     "topology of the configuration: hosts:2x4, a JSON file, ... (`none` removes it)"},
    {"--random", "SEED", "set a random valid sharding of every node"},
    {"--dim", "NAME=SIZE",
     "for --random: minimum size of a symbolic dimension (default: it is not sharded)"},
    {"--script", "FILE",
     "read edits from a file, one per line (# starts a comment), or from a plan"},
    {"--copy-data", NULL, "copy external data to the folder of OUT"},
    LABELS_OPTION,
    {"--no-labels", NULL, "remove the metadata that --labels wrote"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_annotate = {
    .name = "annotate",
    .arguments = "MODEL [edits] -o OUT",
    .summary = "edit configurations, shardings and stages",
    .detail = "NODE is a name, a glob, one of the node's outputs, or #index; `outer > branch >\n"
              "inner` for subgraphs.\n"
              "SHARDING has the number of shards per dimension, then the device of each shard.\n"
              "{1,4:0,1,2,3} shards columns in 4; (0,1) is a group of devices with the same\n"
              "shard; {1:0,1} replicates; {4/2*16,1:0,1} shards 4 heads of 16; S0,R@2x2 shards\n"
              "over a mesh axis; ({0},{})@2x2 is the same. Without @ the mesh is the grid of\n"
              "the configuration's topology, or all its devices: SR. {2,...} shards the first\n"
              "dimension of any rank.\n"
              "Without edits OUT is a byte-exact copy of MODEL.",
    .example = "tessera annotate tests/models/t5_tiny/model.onnx --config tp2:2 --shard "
               "'node_linear_4:val_140={1,2:0,1}' "
               "--shard 'node_linear_5:val_141={2,1:0,1}' -o cut.onnx",
    .options = options,
    .takes = {1, 1},
    .run = run_annotate,
};
