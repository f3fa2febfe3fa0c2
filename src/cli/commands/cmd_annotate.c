// SPDX-License-Identifier: Apache-2.0
// cmd_annotate.c - writes configurations, shardings and stages by hand; all wrong edits are told,
// then nothing is written.
//
// Order: --dim is read, the model loaded, all edits applied in the order of the words (edit.c), and
// the model written if none was wrong. A script's line is an option and its value, `--shard
// mm:W={1,2}` or `--shard=mm:W={1,2}`; a plan's document (plan --plan) has the same edits inside
// and is recognised by its first byte.
#include "cli/edit/edit.h"

#include <stdlib.h>
#include <string.h>

#define SCRIPT_MAX ((size_t)1 << 30) // bytes; the document of a plan may be as large

static char *trim(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1]))
        text[--n] = 0;
    return text;
}

// One line of a script: the same words as on the command line, the rest of the line being the
// value.
// The value is the rest of the line, blanks included. " --cascade" at its end is the flag of
// --remove-config; quotes around the whole value, as a shell would want them, are taken off.
static void script_line(struct editor *editor, char *line)
{
    char *option = trim(line);
    if (!*option || *option == '#')
        return;
    char *value = option + strcspn(option, " \t=");
    if (!*value) {
        edit_wrong(editor, EXIT_USAGE, "'%s' has no value", option);
        return;
    }
    *value++ = 0;
    value = trim(value);
    size_t n = strlen(value);
    bool cascade = n > 10 && !strcmp(value + n - 10, " --cascade");
    if (cascade) {
        value[n - 10] = 0;
        value = trim(value);
        n = strlen(value);
    }
    if (n > 1 && value[0] == '\'' && value[n - 1] == '\'') {
        value[n - 1] = 0;
        value++;
    }
    edit_apply(editor, option, value, cascade);
}

// Every line of the text is an edit. The text is not ours to change, so each line is copied.
static void run_lines(struct editor *editor, const char *text, size_t n)
{
    const char *end = text + n;
    for (editor->line = 1; text < end; editor->line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = stop ? (size_t)(stop - text) : (size_t)(end - text);
        char *line = cli_copy(text, length);
        if (memchr(line, 0, length))
            edit_wrong(editor, EXIT_USAGE, "there is a zero byte in this line");
        else
            script_line(editor, line);
        free(line);
        text += length + (stop != NULL);
    }
}

// The edits of a script, or of a plan's document, which begins with a brace. The text is the
// session's.
static tsr_status read_edits(tsr_session *session, const char *path, const char **text, size_t *n)
{
    tsr_status status = tsr_session_read(session, path, SCRIPT_MAX, text, n);
    if (status != TSR_OK || !*n || (*text)[0] != '{')
        return status;
    status = tsr_plan_edits(session, path, text);
    if (status != TSR_OK)
        return status;
    *n = strlen(*text);
    return TSR_OK;
}

// Read whole before the first edit, so a file that cannot be read to its end changes nothing.
void edit_run_script(struct editor *editor, const char *path)
{
    const char *text = NULL;
    size_t n = 0;
    tsr_status status = read_edits(tsr_model_session(editor->model), path, &text, &n);
    if (status != TSR_OK) { // the finding says why
        editor->code = EXIT_READ;
        return;
    }
    editor->script = path;
    run_lines(editor, text, n);
    editor->script = NULL;
}

// --cascade belongs to the option before it. Options that are no edits have no value, or are named
// here.
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

// External data is copied first: where that fails, no model is written that would miss it.
static int finish(struct cli *cli, struct editor *editor, tsr_model *model, const char *out)
{
    if (editor->code) {
        cli_finish(cli, TSR_OK);
        cli_say(cli, "nothing was written\n");
        if (cli->json)
            return cli_print_written(cli, out, editor->code);
        return editor->code;
    }
    tsr_status status = TSR_OK;
    if (cli_flag(cli, "--copy-data"))
        status = tsr_model_copy_data(model, out);
    if (status == TSR_OK)
        status = cli_label(cli, model);
    if (status == TSR_OK)
        status = tsr_model_save(model, out);
    int code = cli_finish(cli, status);
    if (status == TSR_OK)
        cli_say(cli, "%s: %zu edit%s, written\n", out, editor->n_applied,
                cli_plural(editor->n_applied));
    return cli->json ? cli_print_written(cli, out, code) : code;
}

// All edits are tried before the model is written: one that is wrong leaves no file behind.
static int run(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    tsr_model *model = NULL;
    struct cli_dims dims;
    struct editor editor;
    if (!out)
        return cli_usage(cli, "where to? give -o OUT");
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
        edit_end(&editor);
    }
    tsr_model_free(model);
    cli_free_dims(&dims);
    return code;
}

static const struct option options[] = {
    {"-o", "OUT", "the model to write"},
    {"--config", "NAME[:N[=dev,...]]",
     "declare a configuration of N devices, or choose one, for the edits that follow"},
    {"--remove-config", "NAME", "take a configuration off the model"},
    {"--cascade", NULL, "after --remove-config: with every annotation that names it"},
    {"--shard", "NODE:VALUE=SHARDING",
     "cut a value at a node: {2,1:0,1}, {1:0,1}, {2,1:(0,1),(2,3)}, S0,R@2x2, SR, ({0},{1})@2x2"},
    {"--unshard", "NODE:VALUE", "take that away again"},
    {"--stage", "NODE=K", "pipeline stage of a node (`none` takes it away)"},
    {"--layers", "RULES|auto",
     "stages from ONNX Runtime's layer annotations (layer_ann): gpu(layers.); cpu(=head); auto: "
     "each "
     "annotation is one. Without --config one is declared, called layers"},
    {"--delay", "NODE", "a sum of a node that readers take in parts, if they can add them"},
    {"--tile", "VALUE=SHARDING", "cut a value at its producer and at all its consumers"},
    {"--topology", "FILE|NAME",
     "how the configuration's devices are linked: hosts:2x4, a JSON file ... (`none` takes it "
     "away)"},
    {"--random", "SEED", "a random valid sharding of every node; the same seed gives the same"},
    {"--dim", "NAME=SIZE",
     "for --random: the least size that an open dimension will have; without, it is not sharded"},
    {"--script", "FILE",
     "one edit per line, the same words; # begins a comment; or a plan of plan --plan"},
    {"--copy-data", NULL, "bring external data along into OUT's folder"},
    LABELS_OPTION,
    {"--no-labels", NULL, "take such texts away again"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_annotate = {
    .name = "annotate",
    .arguments = "MODEL [edits] -o OUT",
    .summary = "write configurations, shardings and stages by hand",
    .detail =
        "NODE is a name, a glob over names, one of the node's outputs, or #index; `outer > "
        "branch > inner` in subgraphs.\n"
        "SHARDING: cuts per dimension, then the device of each shard. {1,4:0,1,2,3} cuts "
        "columns in 4; (0,1) is a group\n"
        "that shares a shard; {1:0,1} duplicates; {4/2*16,1:0,1} cuts 4 heads of 16; "
        "S0,R@2x2 cuts over a mesh axis; ({0},{})@2x2 is the same. Without @ the mesh is that "
        "of the configuration's topology,\n"
        "or all its devices in a line: SR. {2,...} cuts the first dimension, whatever the "
        "rank.\n"
        "Without edits OUT has the bytes of MODEL.",
    .example = "tessera annotate tests/models/t5_tiny/model.onnx --config tp2:2 --shard "
               "'node_linear_4:val_140={1,2:0,1}' "
               "--shard 'node_linear_5:val_141={2,1:0,1}' -o cut.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
