// SPDX-License-Identifier: Apache-2.0
// edit.c - applies one edit to a model: configurations, shardings, stages.
#include "edit.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MANY_WRONG 20 // lines of a script that are told

void edit_wrong(struct editor *e, int code, const char *format, ...)
{
    va_list args;
    if (code > e->code)
        e->code = code;
    if (e->script && e->n_wrong++ >= MANY_WRONG) {
        if (e->n_wrong == MANY_WRONG + 1)
            fprintf(stderr, "%s: ... and more; is it of another model?\n", e->script);
        return;
    }
    va_start(args, format);
    if (e->script)
        fprintf(stderr, "%s:%zu: ", e->script, e->line);
    else
        fprintf(stderr, "tessera annotate: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

// The library has added the finding; only the exit code is to be noted.
static void took(struct editor *e, tsr_status status)
{
    if (status == TSR_OK)
        e->n_applied++;
    else if (status == TSR_MALFORMED)
        e->code = EXIT_USAGE;
    else if (e->code < EXIT_NO)
        e->code = EXIT_NO;
}

static bool need_config(struct editor *e)
{
    if (!e->config && tsr_model_config_count(e->model) == 1)
        e->config = tsr_model_config(e->model, 0);
    if (!e->config)
        edit_wrong(e, EXIT_USAGE,
                   "no configuration chosen: give --config NAME:COUNT to declare one, or --config "
                   "NAME, first");
    return e->config != NULL;
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

static void declare(struct editor *e, const char *text, const char *colon)
{
    size_t length = strlen(text) + 1;
    char *copy = edit_copy(text, length - 1);
    const char **names = calloc(length, sizeof *names);
    if (copy && names) {
        char *count = copy + (colon - text), *list = strchr(count, '=');
        *count++ = 0;
        if (list)
            *list++ = 0;
        size_t n = list && *list ? split_names(list, names, length) : 0;
        took(e, tsr_model_add_config(e->model, copy, strtoll(count, NULL, 10), n ? names : NULL, n,
                                     &e->config));
    }
    free(names);
    free(copy);
}

static void edit_config(struct editor *e, const char *text)
{
    const char *colon = declares(text);
    tsr_config *known = tsr_model_find_config(e->model, text);
    if (!known && colon) {
        declare(e, text, colon);
    } else if (known) {
        e->config = known;
    } else {
        edit_wrong(e, EXIT_NO, "no configuration '%s'; NAME:COUNT declares one", text);
    }
}

static void edit_remove_config(struct editor *e, const char *name, bool cascade)
{
    tsr_config *c = tsr_model_find_config(e->model, name);
    if (c && c == e->config)
        e->config = NULL;
    took(e, tsr_model_remove_config_named(e->model, name, cascade));
}

// Splits at the last '=', which no SHARDING contains; false after a message.
static bool at_equals(struct editor *e, const char *text, const char *form, size_t *n,
                      const char **right)
{
    const char *equals = strrchr(text, '=');
    if (!equals || equals == text || !equals[1]) {
        edit_wrong(e, EXIT_USAGE, "'%s' is not %s", text, form);
        return false;
    }
    *n = (size_t)(equals - text);
    *right = equals + 1;
    return true;
}

static void edit_shard(struct editor *e, const char *text)
{
    size_t n;
    const char *sharding;
    char *value = NULL;
    if (!need_config(e) || !at_equals(e, text, "NODE:VALUE=SHARDING", &n, &sharding) ||
        !edit_find_target(e, text, n, &value))
        return;
    for (size_t i = 0; i < e->n_found; i++)
        took(e, tsr_node_shard_text(e->found[i], edit_node_value(e->found[i], value), e->config,
                                    sharding));
    free(value);
}

static void edit_unshard(struct editor *e, const char *text)
{
    char *value = NULL;
    if (!edit_find_target(e, text, strlen(text), &value))
        return;
    for (size_t i = 0; i < e->n_found; i++)
        took(e, tsr_node_unshard(e->found[i], edit_node_value(e->found[i], value), e->config));
    free(value);
}

static void edit_stage(struct editor *e, const char *text)
{
    size_t n;
    const char *number;
    char *end;
    if (!need_config(e) || !at_equals(e, text, "NODE=STAGE", &n, &number))
        return;
    long long stage = strtoll(number, &end, 10);
    bool none = !strcmp(number, "none");
    if (!none && (end == number || *end || stage > INT32_MAX || stage < INT32_MIN))
        edit_wrong(e, EXIT_USAGE, "stage '%s' is not a number (or `none`)", number);
    else if (!edit_find_nodes(e, text, n, true))
        edit_wrong(e, EXIT_NO, "no node '%.*s'", (int)n, text);
    else
        for (size_t i = 0; i < e->n_found; i++)
            took(e, none ? tsr_node_unset_stage(e->found[i], e->config)
                         : tsr_node_set_stage(e->found[i], e->config, stage));
}

// Adds a line to the metadata, unless it is there.
static tsr_status add_line(struct editor *e, const char *key, const char *line)
{
    const char *text = tsr_model_metadata(e->model, key);
    size_t n = strlen(line), had = text ? strlen(text) : 0;
    for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n')
        if (strcspn(p, "\n") == n && strncmp(p, line, n) == 0)
            return TSR_OK;
    char *all = malloc(had + n + 2);
    if (!all)
        return TSR_NOMEM;
    snprintf(all, had + n + 2, "%s%s%s", had ? text : "", had ? "\n" : "", line);
    tsr_status status = tsr_model_set_metadata(e->model, key, all);
    free(all);
    return status;
}

// The sum that a node gives stays in parts for readers that can add them.
static void edit_delay(struct editor *e, const char *text)
{
    if (!need_config(e))
        return;
    if (!edit_find_nodes(e, text, strlen(text), true))
        edit_wrong(e, EXIT_NO, "no node '%s'", text);
    for (size_t i = 0; i < e->n_found; i++) {
        const tsr_value *v =
            tsr_node_output_count(e->found[i]) ? tsr_node_output(e->found[i], 0) : NULL;
        const char *config = tsr_config_name(e->config), *name = v ? tsr_value_name(v) : "";
        size_t n = strlen(config) + strlen(name) + 2;
        char *line = malloc(n);
        if (line)
            snprintf(line, n, "%s:%s", config, name);
        took(e, !line ? TSR_NOMEM : v ? add_line(e, "ai.tessera.delay", line) : TSR_OK);
        free(line);
    }
}

struct tile_job {
    struct editor *e;
    tsr_value *value;
    const char *sharding;
    tsr_node *last; // a node that reads the value twice gets one spec
};

static bool tile_use(void *data, tsr_node *n, size_t input)
{
    struct tile_job *job = data;
    (void)input;
    if (n != job->last)
        took(job->e, tsr_node_shard_text(n, job->value, job->e->config, job->sharding));
    job->last = n;
    return true;
}

static void edit_tile(struct editor *e, const char *text)
{
    size_t n;
    const char *sharding;
    if (!need_config(e) || !at_equals(e, text, "VALUE=SHARDING", &n, &sharding))
        return;
    char *name = edit_copy(text, n);
    tsr_value *v = name ? tsr_graph_value(tsr_model_graph(e->model), name) : NULL;
    if (!v) {
        edit_wrong(e, EXIT_NO, "no value '%s'", name ? name : "");
    } else {
        struct tile_job job = {e, v, sharding, NULL};
        if (tsr_value_producer(v))
            took(e, tsr_node_shard_text(tsr_value_producer(v), v, e->config, sharding));
        tsr_value_uses(v, tile_use, &job);
    }
    free(name);
}

static void edit_topology(struct editor *e, const char *text)
{
    tsr_topology *t = NULL;
    if (!need_config(e))
        return;
    tsr_status status = strcmp(text, "none") ? cli_topology(e->cli, text, &t) : TSR_OK;
    if (status != TSR_OK) {
        took(e, status);
        e->code = status == TSR_IO ? EXIT_READ : e->code;
        return;
    }
    took(e, tsr_model_set_topology(e->model, e->config, t));
    tsr_topology_free(t);
}

static void edit_random(struct editor *e, const char *text)
{
    uint64_t seed;
    if (!cli_count_of(text, &seed))
        edit_wrong(e, EXIT_USAGE, "seed '%s' is not a number from 0 on", text);
    else if (need_config(e))
        took(e, tsr_model_shard_random(e->model, e->config, seed, e->sizes, e->n_sizes));
}

void edit_apply(struct editor *e, const char *option, const char *value, bool cascade)
{
    if (!strcmp(option, "--config"))
        edit_config(e, value);
    else if (!strcmp(option, "--remove-config"))
        edit_remove_config(e, value, cascade);
    else if (!strcmp(option, "--shard"))
        edit_shard(e, value);
    else if (!strcmp(option, "--unshard"))
        edit_unshard(e, value);
    else if (!strcmp(option, "--stage"))
        edit_stage(e, value);
    else if (!strcmp(option, "--delay"))
        edit_delay(e, value);
    else if (!strcmp(option, "--tile"))
        edit_tile(e, value);
    else if (!strcmp(option, "--topology"))
        edit_topology(e, value);
    else if (!strcmp(option, "--random"))
        edit_random(e, value);
    else
        edit_wrong(e, EXIT_USAGE, "no edit '%s'", option);
}
