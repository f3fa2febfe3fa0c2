// SPDX-License-Identifier: Apache-2.0
// edit.c - applies one edit to a model: configurations, shardings, stages.
//
// Options of `annotate` and lines of a script call edit_apply with the option and its value. Each
// edit looks up its nodes (lookup.c) and calls the library. After an error the work goes on, so
// that all errors of a script are reported; the model is written only if editor->code is still 0.
#include "cli/edit/edit.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REPORTED 20 // errors of a script

void edit_wrong(struct editor *editor, int code, const char *format, ...)
{
    va_list args;
    if (code > editor->code)
        editor->code = code;
    if (editor->script && editor->n_wrong++ >= MAX_REPORTED) {
        if (editor->n_wrong == MAX_REPORTED + 1)
            fprintf(stderr, "%s: ... and more errors; the file may be for another model\n",
                    editor->script);
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

void edit_took(struct editor *editor, tsr_status status)
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

// Selects the only configuration of the model if none is selected yet. Returns false after a
// message if there is still none.
static bool need_config(struct editor *editor)
{
    if (!editor->config && tsr_model_config_count(editor->model) == 1)
        editor->config = tsr_model_config(editor->model, 0);
    if (!editor->config)
        edit_wrong(
            editor, EXIT_USAGE,
            "no configuration selected: use --config NAME:COUNT to declare one, or --config NAME");
    return editor->config != NULL;
}

// Returns the colon before COUNT in NAME:COUNT[=device,...], or NULL.
static const char *declares(const char *text)
{
    for (const char *p = strchr(text, ':'); p; p = strchr(p + 1, ':')) {
        size_t digits = strspn(p + 1, "0123456789");
        if (digits && digits < 10 && (p[1 + digits] == 0 || p[1 + digits] == '='))
            return p;
    }
    return NULL;
}

// Splits "a,b,c" in place; returns the number of names.
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

// Declares a configuration and selects it. "tp:2=cpu,gpu": configuration tp with 2 devices, cpu and
// gpu.
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
    edit_took(editor, tsr_model_add_config(editor->model, copy, strtoll(count, NULL, 10),
                                           n ? names : NULL, n, &editor->config));
}

// Declares or selects a configuration. An existing configuration is selected even if its name looks
// like a declaration ("a:2").
static void edit_config(struct editor *editor, const char *text)
{
    const char *colon = declares(text);
    tsr_config *known = tsr_model_find_config(editor->model, text);
    if (known)
        editor->config = known;
    else if (colon)
        declare(editor, text, colon);
    else
        edit_wrong(editor, EXIT_NO, "no configuration '%s'; NAME:COUNT declares one", text);
}

static void edit_remove_config(struct editor *editor, const char *name)
{
    tsr_config *config = tsr_model_find_config(editor->model, name);
    if (config && config == editor->config)
        editor->config = NULL;
    edit_took(editor, tsr_model_remove_config_named(editor->model, name, editor->cascade));
}

// Splits at the last '=', because no SHARDING contains one. Returns false after a message.
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

// Reads NODE:VALUE=SHARDING and finds the nodes. Returns false after a message.
static bool read_sharding(struct editor *editor, const char *text, char **value,
                          const char **sharding)
{
    size_t n;
    return need_config(editor) && at_equals(editor, text, "NODE:VALUE=SHARDING", &n, sharding) &&
           edit_find_target(editor, text, n, value);
}

// Shards a value. NODE may be a glob; each node has its own value of that name.
static void edit_shard(struct editor *editor, const char *text)
{
    const char *sharding;
    char *value = NULL;
    if (!read_sharding(editor, text, &value, &sharding))
        return;
    for (size_t i = 0; i < editor->n_found; i++)
        edit_took(editor,
                  tsr_node_shard_text(editor->found[i], edit_node_value(editor->found[i], value),
                                      editor->config, sharding));
}

// Removes the shardings of a value: in the selected configuration, or in all if editor->config is
// NULL.
static void edit_unshard(struct editor *editor, const char *text)
{
    char *value = NULL;
    if (!edit_find_target(editor, text, strlen(text), &value))
        return;
    for (size_t i = 0; i < editor->n_found; i++)
        edit_took(editor,
                  tsr_node_unshard(editor->found[i], edit_node_value(editor->found[i], value),
                                   editor->config));
}

// Sets the pipeline stage of nodes. `none` removes the stage. tsr_node_set_stage reports negative
// stages.
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
            edit_took(editor, none ? tsr_node_unset_stage(editor->found[i], editor->config)
                                   : tsr_node_set_stage(editor->found[i], editor->config, stage));
}

// Adds a line to a list in the metadata, unless the list contains it.
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
    return tsr_model_set_metadata(editor->model, key, all);
}

// Delays the reduction of a node's partial sum until after consumers that can work with partial
// sums. Adds the line "CONFIG:VALUE" to ai.tessera.delay, where VALUE is the node's first output.
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
        edit_took(editor, value ? add_line(editor, "ai.tessera.delay", line) : TSR_OK);
    }
}

// Stores a weight in another sharding than its readers need; runs convert it. Adds the line
// "CONFIG:VALUE=SHARDING" to ai.tessera.stored.
static void edit_store(struct editor *editor, const char *text)
{
    const char *sharding;
    char *value = NULL;
    if (!read_sharding(editor, text, &value, &sharding))
        return;
    for (size_t i = 0; i < editor->n_found; i++) {
        const char *config = tsr_config_name(editor->config);
        const char *name = tsr_value_name(edit_node_value(editor->found[i], value));
        size_t length = strlen(config) + strlen(name) + strlen(sharding) + 3;
        char *line = cli_alloc(length, 1);
        snprintf(line, length, "%s:%s=%s", config, name, sharding);
        edit_took(editor, add_line(editor, "ai.tessera.stored", line));
    }
}

struct tile_job {
    struct editor *editor;
    tsr_value *value;
    const char *sharding;
    tsr_node *last; // to skip a second use by the same node
};

static bool tile_use(void *data, tsr_node *node, size_t input)
{
    struct tile_job *job = data;
    (void)input;
    if (node != job->last)
        edit_took(job->editor,
                  tsr_node_shard_text(node, job->value, job->editor->config, job->sharding));
    job->last = node;
    return true;
}

// Shards a value at its producer, unless it is an input or a weight, and at all consumers.
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
            edit_took(editor, tsr_node_shard_text(tsr_value_producer(value), value, editor->config,
                                                  sharding));
        tsr_value_uses(value, tile_use, &job);
    }
}

static void edit_topology(struct editor *editor, const char *text)
{
    tsr_topology *topology = NULL;
    if (!need_config(editor))
        return;
    tsr_status status = strcmp(text, "none") ? cli_topology(editor->cli, text, &topology) : TSR_OK;
    if (status != TSR_OK) {
        edit_took(editor, status);
        editor->code = status == TSR_IO ? EXIT_READ : editor->code;
        return;
    }
    edit_took(editor, tsr_model_set_topology(editor->model, editor->config, topology));
    tsr_topology_free(topology);
}

static void edit_random(struct editor *editor, const char *text)
{
    uint64_t seed;
    if (!cli_count_of(text, &seed))
        edit_wrong(editor, EXIT_USAGE, "seed '%s' is not a number from 0 up", text);
    else if (need_config(editor))
        edit_took(editor, tsr_model_shard_random(editor->model, editor->config, seed, editor->sizes,
                                                 editor->n_sizes));
}

void edit_apply(struct editor *editor, const char *option, const char *value, bool cascade)
{
    static const struct {
        const char *option;
        void (*apply)(struct editor *editor, const char *value);
    } edits[] = {
        {"--config", edit_config}, {"--remove-config", edit_remove_config},
        {"--shard", edit_shard},   {"--unshard", edit_unshard},
        {"--stage", edit_stage},   {"--layers", edit_layers},
        {"--delay", edit_delay},   {"--tile", edit_tile},
        {"--random", edit_random}, {"--topology", edit_topology},
        {"--store", edit_store},
    };
    editor->cascade = cascade;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++)
        if (!strcmp(edits[i].option, option)) {
            edits[i].apply(editor, value);
            return;
        }
    edit_wrong(editor, EXIT_USAGE, "unknown edit '%s'", option);
}

// With --labels, writes labels that show the shardings; with --no-labels, removes them. Otherwise
// existing labels are updated, since they would show old shardings.
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
