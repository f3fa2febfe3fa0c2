// SPDX-License-Identifier: Apache-2.0
// edit.c - applies one edit to a model: configurations, shardings, stages.
//
// edit_apply is the whole language: options of `annotate` and lines of a script call it with the
// option and its value. Each edit looks up its nodes (lookup.c), calls the library, and notes
// success or the exit code in the editor; a wrong edit does not end the work, so that a script
// shows all its mistakes at once. cmd_annotate.c writes the model only if editor->code is still 0.
#include "cli/edit/edit.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MANY_WRONG 20 // lines of a script that are told

// Mistakes of a script are told with their lines, MANY_WRONG of them at most; the gravest decides about the exit code.
void edit_wrong(struct editor *editor, int code, const char *format, ...)
{
    va_list args;
    if (code > editor->code)
        editor->code = code;
    if (editor->script && editor->n_wrong++ >= MANY_WRONG) {
        if (editor->n_wrong == MANY_WRONG + 1)
            fprintf(stderr, "%s: ... and more; is it of another model?\n", editor->script);
        return;
    }
    va_start(args, format);
    if (editor->script)
        fprintf(stderr, "%s:%zu: ", editor->script, editor->line);
    else
        fprintf(stderr, "tessera annotate: ");
    cli_print_excerpt(format, args);
    fputc('\n', stderr);
    va_end(args);
}

// The library has added the finding; only the exit code is to be noted.
static void took(struct editor *editor, tsr_status status)
{
    if (status == TSR_OK)
        editor->n_applied++;
    else if (status == TSR_MALFORMED)
        editor->code = EXIT_USAGE;
    else if (status == TSR_NOMEM || status == TSR_IO)
        editor->code = EXIT_READ;
    else if (editor->code < EXIT_NO)
        editor->code = EXIT_NO;
}

// True: editor->config is set. A model with one configuration needs no --config.
static bool need_config(struct editor *editor)
{
    if (!editor->config && tsr_model_config_count(editor->model) == 1)
        editor->config = tsr_model_config(editor->model, 0);
    if (!editor->config)
        edit_wrong(editor, EXIT_USAGE,
                   "no configuration chosen: give --config NAME:COUNT to declare one, or --config "
                   "NAME, first");
    return editor->config != NULL;
}

// NAME:COUNT[=device,...]: where the colon before COUNT stands, or NULL.
static const char *declares(const char *text)
{
    for (const char *p = strchr(text, ':'); p; p = strchr(p + 1, ':')) {
        size_t digits = strspn(p + 1, "0123456789");
        if (digits && digits < 10 && (p[1 + digits] == 0 || p[1 + digits] == '='))
            return p;
    }
    return NULL;
}

// Splits "a,b,c" in place; the count.
static size_t split_names(char *text, const char **out, size_t cap)
{
    size_t n = 0;
    for (char *p = text; p && n < cap; n++) {
        out[n] = p;
        p = strchr(p, ',');
        if (p)
            *p++ = 0;
    }
    return n;
}

// `colon` stands before COUNT in `text`. "tp:2=cpu,gpu" -> name tp, 2 devices, names cpu and gpu.
// editor->config becomes the new configuration, which the edits that follow mean.
static void declare(struct editor *editor, const char *text, const char *colon)
{
    size_t length = strlen(text) + 1;
    char *copy = cli_copy(text, length - 1);
    const char **names = cli_alloc(length, sizeof *names);
    char *count = copy + (colon - text), *list = strchr(count, '=');
    *count++ = 0;
    if (list)
        *list++ = 0;
    size_t n = list && *list ? split_names(list, names, length) : 0;
    took(editor, tsr_model_add_config(editor->model, copy, strtoll(count, NULL, 10),
                                      n ? names : NULL, n, &editor->config));
    free(names);
    free(copy);
}

// A configuration that exists is chosen even where its name looks like a declaration ("a:2").
static void edit_config(struct editor *editor, const char *text)
{
    const char *colon = declares(text);
    tsr_config *known = tsr_model_find_config(editor->model, text);
    if (!known && colon) {
        declare(editor, text, colon);
    } else if (known) {
        editor->config = known;
    } else {
        edit_wrong(editor, EXIT_NO, "no configuration '%s'; NAME:COUNT declares one", text);
    }
}

// The chosen one is forgotten first; an edit behind it must choose another.
static void edit_remove_config(struct editor *editor, const char *name, bool cascade)
{
    tsr_config *config = tsr_model_find_config(editor->model, name);
    if (config && config == editor->config)
        editor->config = NULL;
    took(editor, tsr_model_remove_config_named(editor->model, name, cascade));
}

// Splits at the last '=', which no SHARDING contains; false after a message.
static bool at_equals(struct editor *editor, const char *text, const char *form, size_t *n,
                      const char **right)
{
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || !equals[1]) {
        edit_wrong(editor, EXIT_USAGE, "'%s' is not %s", text, form);
        return false;
    }
    *n = (size_t)(equals - text);
    *right = equals + 1;
    return true;
}

// NODE:VALUE may name many nodes by a glob; each has its own value of that name.
static void edit_shard(struct editor *editor, const char *text)
{
    size_t n;
    const char *sharding;
    char *value = NULL;
    if (!need_config(editor) || !at_equals(editor, text, "NODE:VALUE=SHARDING", &n, &sharding) ||
        !edit_find_target(editor, text, n, &value))
        return;
    for (size_t i = 0; i < editor->n_found; i++)
        took(editor, tsr_node_shard_text(editor->found[i], edit_node_value(editor->found[i], value),
                                         editor->config, sharding));
    free(value);
}

// Without a chosen configuration editor->config is NULL, which stands for all of them.
static void edit_unshard(struct editor *editor, const char *text)
{
    char *value = NULL;
    if (!edit_find_target(editor, text, strlen(text), &value))
        return;
    for (size_t i = 0; i < editor->n_found; i++)
        took(editor, tsr_node_unshard(editor->found[i], edit_node_value(editor->found[i], value),
                                      editor->config));
    free(value);
}

// `none` takes a stage away; numbers below 0 pass here and are the checker's to judge.
static void edit_stage(struct editor *editor, const char *text)
{
    size_t n;
    const char *number;
    char *end;
    if (!need_config(editor) || !at_equals(editor, text, "NODE=STAGE", &n, &number))
        return;
    long long stage = strtoll(number, &end, 10);
    bool none = !strcmp(number, "none");
    if (!none && (end == number || *end || stage > INT32_MAX || stage < INT32_MIN))
        edit_wrong(editor, EXIT_USAGE, "stage '%s' is not a number (or `none`)", number);
    else if (!edit_find_nodes(editor, text, n, true))
        edit_wrong(editor, EXIT_NO, "no node '%.*s'", (int)n, text);
    else
        for (size_t i = 0; i < editor->n_found; i++)
            took(editor, none ? tsr_node_unset_stage(editor->found[i], editor->config)
                              : tsr_node_set_stage(editor->found[i], editor->config, stage));
}

// Adds a line to the metadata, unless it is there.
// The metadata is a list, one entry in each line.
static tsr_status add_line(struct editor *editor, const char *key, const char *line)
{
    const char *text = tsr_model_metadata(editor->model, key);
    size_t n = strlen(line), had = text ? strlen(text) : 0;
    for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n')
        if (strcspn(p, "\n") == n && strncmp(p, line, n) == 0)
            return TSR_OK;
    char *all = cli_alloc(had + n + 2, 1);
    if (had)
        snprintf(all, had + n + 2, "%s\n%s", text, line);
    else
        snprintf(all, had + n + 2, "%s", line);
    tsr_status status = tsr_model_set_metadata(editor->model, key, all);
    free(all);
    return status;
}

// The sum that a node gives stays in parts for readers that can add them.
// A line "CONFIG:VALUE" under ai.tessera.delay, which sharding/delay.c reads; VALUE is the node's
// first output. A node without outputs counts as done.
static void edit_delay(struct editor *editor, const char *text)
{
    if (!need_config(editor))
        return;
    if (!edit_find_nodes(editor, text, strlen(text), true))
        edit_wrong(editor, EXIT_NO, "no node '%s'", text);
    for (size_t i = 0; i < editor->n_found; i++) {
        const tsr_value *value =
            tsr_node_output_count(editor->found[i]) ? tsr_node_output(editor->found[i], 0) : NULL;
        const char *config = tsr_config_name(editor->config),
                   *name = value ? tsr_value_name(value) : "";
        size_t n = strlen(config) + strlen(name) + 2;
        char *line = cli_alloc(n, 1);
        snprintf(line, n, "%s:%s", config, name);
        took(editor, value ? add_line(editor, "ai.tessera.delay", line) : TSR_OK);
        free(line);
    }
}

struct tile_job {
    struct editor *editor;
    tsr_value *value;
    const char *sharding;
    tsr_node *last; // a node that reads the value twice gets one spec
};

// Called for each use of the value, in the order in which the nodes were read, so two uses by one
// node follow each other. False would end the walk.
static bool tile_use(void *data, tsr_node *node, size_t input)
{
    struct tile_job *job = data;
    (void)input;
    if (node != job->last)
        took(job->editor,
             tsr_node_shard_text(node, job->value, job->editor->config, job->sharding));
    job->last = node;
    return true;
}

// By the value's name: producer and all readers get the same spec. Inputs of the
// model and weights have no producer.
static void edit_tile(struct editor *editor, const char *text)
{
    size_t n;
    const char *sharding;
    if (!need_config(editor) || !at_equals(editor, text, "VALUE=SHARDING", &n, &sharding))
        return;
    char *name = cli_copy(text, n);
    tsr_value *value = tsr_graph_value(tsr_model_graph(editor->model), name);
    if (!value) {
        edit_wrong(editor, EXIT_NO, "no value '%s'", name);
    } else {
        struct tile_job job = {editor, value, sharding, NULL};
        if (tsr_value_producer(value))
            took(editor,
                 tsr_node_shard_text(tsr_value_producer(value), value, editor->config, sharding));
        tsr_value_uses(value, tile_use, &job);
    }
    free(name);
}

// The model takes a copy as text; the object is freed here.
static void edit_topology(struct editor *editor, const char *text)
{
    tsr_topology *topology = NULL;
    if (!need_config(editor))
        return;
    tsr_status status = strcmp(text, "none") ? cli_topology(editor->cli, text, &topology) : TSR_OK;
    if (status != TSR_OK) {
        took(editor, status);
        editor->code = status == TSR_IO ? EXIT_READ : editor->code;
        return;
    }
    took(editor, tsr_model_set_topology(editor->model, editor->config, topology));
    tsr_topology_free(topology);
}

static void edit_random(struct editor *editor, const char *text)
{
    uint64_t seed;
    if (!cli_count_of(text, &seed))
        edit_wrong(editor, EXIT_USAGE, "seed '%s' is not a number from 0 on", text);
    else if (need_config(editor))
        took(editor, tsr_model_shard_random(editor->model, editor->config, seed, editor->sizes,
                                            editor->n_sizes));
}

// The options of `annotate` and the lines of a script come through here alike.
void edit_apply(struct editor *editor, const char *option, const char *value, bool cascade)
{
    if (!strcmp(option, "--config"))
        edit_config(editor, value);
    // A script may hold any word; the command line cannot, for the parser has refused it.
    else if (!strcmp(option, "--remove-config"))
        edit_remove_config(editor, value, cascade);
    else if (!strcmp(option, "--shard"))
        edit_shard(editor, value);
    else if (!strcmp(option, "--unshard"))
        edit_unshard(editor, value);
    else if (!strcmp(option, "--stage"))
        edit_stage(editor, value);
    else if (!strcmp(option, "--layers"))
        edit_layers(editor, value);
    else if (!strcmp(option, "--delay"))
        edit_delay(editor, value);
    else if (!strcmp(option, "--tile"))
        edit_tile(editor, value);
    else if (!strcmp(option, "--topology"))
        edit_topology(editor, value);
    else if (!strcmp(option, "--random"))
        edit_random(editor, value);
    else
        edit_wrong(editor, EXIT_USAGE, "no edit '%s'", option);
}

// --no-labels is an option of `annotate` alone. A model that has labels and gets new shardings
// would show the old ones, so labels that exist are always made anew.
tsr_status cli_label(const struct cli *cli, tsr_model *model)
{
    if (cli_flag(cli, "--labels"))
        return tsr_model_label(model, true);
    if (cli_option(cli->command, "--no-labels", strlen("--no-labels")) &&
        cli_flag(cli, "--no-labels"))
        return tsr_model_label(model, false);
    if (tsr_model_labelled(model))
        return tsr_model_label(model, true);
    return TSR_OK;
}
