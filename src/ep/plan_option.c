// SPDX-License-Identifier: Apache-2.0
// plan_option.c - the option `plan`, which takes the sharding of the model from a plan document
// (tessera plan --plan FILE) or from an annotated model.
//
// Each line of a document is an edit (sharding/annotate/edits.c), which names nodes by their index,
// and nodes of bodies by their path:
//     --config plan2:2=CPU:0,CPU:1
//     --shard "#12":"logits"={1,2:0,1}
//     --shard "#3 > then_branch > #0":"y"={2,1:0,1}
//     --stage #12=1
//     --delay #4
#include "ep/internal.h"

#include "sharding/sharding.h"
#include "tessera_cli.h"
#include "tessera_graph.h"

#define FIRST_BYTES ((size_t)1 << 30) // largest document in bytes

static tsr_status refuse_plan(const struct provider *provider, const char *hint, const char *text)
{
    return tsr__fail(provider->session, TSR_INVALID, DIAG_ep_option,
                     &PLACE(.file = str_of(provider->options.plan)), hint, "the option plan: %s",
                     text);
}

static tsr_status wrong_line(const struct provider *provider, struct arena *arena, struct str line)
{
    const char *text = tsr__arena_printf(arena, "cannot apply '" STR_FMT "'", STR_ARG(line)).p;
    return refuse_plan(provider,
                       "write an annotated model with `tessera annotate MODEL --script PLAN`",
                       text ? text : "out of memory");
}

// The model, and the nodes of its main graph by their index.
struct target {
    tsr_model *model;
    struct arena *arena;
    tsr_node **nodes;
    size_t n_nodes;
    tsr_config *config; // NULL: not declared yet
};

static bool open_target(struct target *target)
{
    const tsr_graph *graph = tsr_model_graph(target->model);
    target->n_nodes = tsr_graph_node_count(graph);
    target->nodes = ARENA_ARRAY(target->arena, tsr_node *, target->n_nodes + 1);
    if (!target->nodes)
        return false;
    for (tsr_node *node = tsr_model_next_node(target->model, NULL); node;
         node = tsr_model_next_node(target->model, node))
        if (tsr_node_graph(node) == graph && (size_t)tsr_node_index(node) < target->n_nodes)
            target->nodes[tsr_node_index(node)] = node;
    return true;
}

// Returns the node that the text names: by its index in the main graph ("#12"), or by its path if
// it is in a body ("#3 > then_branch > #0"). NULL: there is no such node.
static tsr_node *find_node(const struct target *target, struct str text)
{
    int64_t index = -1;
    if (text.n && text.p[0] == '#' && tsr__str_int((struct str){text.p + 1, text.n - 1}, &index))
        return index >= 0 && (size_t)index < target->n_nodes ? target->nodes[index] : NULL;
    const char *path = tsr__arena_str(target->arena, text).p;
    return path ? tsr_model_find_node(target->model, path) : NULL;
}

static tsr_value *value_of(const tsr_node *node, struct str name)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && str_is(name, tsr_value_name(tsr_node_input(node, i))))
            return tsr_node_input(node, i);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && str_is(name, tsr_value_name(tsr_node_output(node, i))))
            return tsr_node_output(node, i);
    return NULL;
}

// A value of a node, and a sharding of it.
struct shard_edit {
    tsr_node *node;
    tsr_value *value;
    const char *sharding;
};

// Reads a line such as `"#12":"logits"={1,2:0,1}`. The sharding follows the closing quote of the
// value's name.
static bool read_shard(const struct target *target, struct str text, struct shard_edit *out)
{
    static const char between[] = "\":\"";
    size_t start = 1, n = sizeof between - 1;
    while (start + n < text.n && memcmp(text.p + start, between, n) != 0)
        start++;
    size_t end = start + n;
    while (end + 1 < text.n && !(text.p[end] == '"' && text.p[end + 1] == '='))
        end++;
    if (text.n == 0 || text.p[0] != '"' || end + 2 >= text.n)
        return false;
    out->node = find_node(target, (struct str){text.p + 1, start - 1});
    if (!out->node)
        return false;
    out->value = value_of(out->node, (struct str){text.p + start + n, end - start - n});
    out->sharding =
        tsr__arena_str(target->arena, (struct str){text.p + end + 2, text.n - end - 2}).p;
    return out->value && out->sharding;
}

static bool apply_shard(const struct target *target, struct str text)
{
    struct shard_edit edit;
    return read_shard(target, text, &edit) &&
           tsr_node_shard_text(edit.node, edit.value, target->config, edit.sharding) == TSR_OK;
}

// Adds a line to an entry of the metadata.
static bool add_line(const struct target *target, const char *key, struct str line)
{
    const char *before = tsr_model_metadata(target->model, key);
    const char *lines = tsr__arena_printf(target->arena, "%s%s" STR_FMT, before ? before : "",
                                          before ? "\n" : "", STR_ARG(line))
                            .p;
    return line.p && lines && tsr_model_set_metadata(target->model, key, lines) == TSR_OK;
}

// Adds the line "CONFIG:VALUE=SHARDING" to the weights that runs convert.
static bool apply_store(const struct target *target, struct str text)
{
    struct shard_edit edit;
    return read_shard(target, text, &edit) &&
           add_line(target, META_STORED,
                    tsr__arena_printf(target->arena, "%s:%s=%s", tsr_config_name(target->config),
                                      tsr_value_name(edit.value), edit.sharding));
}

// Returns the position of the last `c` in the text, or the length of the text.
static size_t last_of(struct str text, char c)
{
    for (size_t i = text.n; i > 0; i--)
        if (text.p[i - 1] == c)
            return i - 1;
    return text.n;
}

static bool apply_stage(const struct target *target, struct str text)
{
    int64_t stage = 0;
    size_t at = last_of(text, '=');
    tsr_node *node = find_node(target, (struct str){text.p, at});
    return node && at < text.n &&
           tsr__str_int((struct str){text.p + at + 1, text.n - at - 1}, &stage) &&
           tsr_node_set_stage(node, target->config, stage) == TSR_OK;
}

// Adds the line "CONFIG:VALUE" of the node's first output to the delayed sums.
static bool apply_delay(const struct target *target, struct str text)
{
    const tsr_node *node = find_node(target, text);
    const tsr_value *value = node ? tsr_node_output(node, 0) : NULL;
    return value &&
           add_line(target, META_DELAY,
                    tsr__arena_printf(target->arena, "%s:%s", tsr_config_name(target->config),
                                      tsr_value_name(value)));
}

// Applies a line such as "plan2:2" or "plan2:2=CPU:0,CPU:1": a name, a number of devices, and their
// names.
static bool apply_config(struct target *target, struct str text)
{
    size_t equals = 0;
    while (equals < text.n && text.p[equals] != '=')
        equals++;
    size_t at = last_of((struct str){text.p, equals}, ':'), n = 0;
    int64_t devices = 0;
    const char *name = tsr__arena_str(target->arena, (struct str){text.p, at}).p;
    if (at < 1 || at >= equals || !name ||
        !tsr__str_int((struct str){text.p + at + 1, equals - at - 1}, &devices) || devices < 1)
        return false;
    const char **names = ARENA_ARRAY(target->arena, const char *, (size_t)devices);
    for (size_t i = equals; names && i < text.n && n < (size_t)devices; n++) {
        size_t length = strcspn(text.p + i + 1, ",\n");
        names[n] = tsr__arena_str(target->arena, (struct str){text.p + i + 1, length}).p;
        i += length + 1;
    }
    return names && !target->arena->failed &&
           tsr_model_add_config(target->model, name, devices, names, n, &target->config) == TSR_OK;
}

static bool starts_with(struct str *line, const char *word)
{
    size_t n = strlen(word);
    if (line->n < n || memcmp(line->p, word, n) != 0)
        return false;
    *line = (struct str){line->p + n, line->n - n};
    return true;
}

static bool apply_line(struct target *target, struct str line)
{
    if (line.n == 0)
        return true;
    if (starts_with(&line, "--config "))
        return apply_config(target, line);
    if (target->config && starts_with(&line, "--shard "))
        return apply_shard(target, line);
    if (target->config && starts_with(&line, "--delay "))
        return apply_delay(target, line);
    if (target->config && starts_with(&line, "--store "))
        return apply_store(target, line);
    return target->config && starts_with(&line, "--stage ") && apply_stage(target, line);
}

static tsr_status apply_document(struct provider *provider, tsr_model *model, struct arena *arena,
                                 const char **name)
{
    const char *text = NULL;
    struct target target = {.model = model, .arena = arena};
    if (!open_target(&target))
        return TSR_NOMEM;
    tsr_status st = tsr_plan_edits(provider->session, provider->options.plan, &text);
    while (st == TSR_OK && *text) {
        struct str line = {text, strcspn(text, "\n")};
        if (!apply_line(&target, line))
            st = wrong_line(provider, arena, line);
        text += line.n + (text[line.n] == '\n');
    }
    if (st == TSR_OK && !target.config)
        st = refuse_plan(provider, "give a plan document, or an annotated model",
                         "it has no sharding");
    if (st == TSR_OK)
        *name = tsr_config_name(target.config);
    return st;
}

// Replaces the model by the annotated model, if that matches the session's graph and has exactly
// one configuration.
static tsr_status take_annotated(struct provider *provider, const OrtGraph *graph,
                                 tsr_model **model, const char **name)
{
    tsr_model *annotated = NULL;
    bool matches = false;
    tsr_status st = tsr_model_load(provider->session, provider->options.plan, &annotated);
    if (st == TSR_OK)
        st = tsr__ep_graph_matches(provider->session, &provider->factory->api, graph, annotated,
                                   &matches);
    if (st == TSR_OK && !matches)
        st = refuse_plan(provider, "annotate the model that the session loads",
                         "it is another model");
    if (st == TSR_OK && tsr_model_config_count(annotated) != 1)
        st = refuse_plan(provider, "give a model with one configuration",
                         "the model has no configuration, or several");
    if (st != TSR_OK) {
        tsr_model_free(annotated);
        return st;
    }
    tsr_model_free(*model);
    *model = annotated;
    *name = tsr_config_name(tsr_model_config(annotated, 0));
    return TSR_OK;
}

tsr_status tsr__ep_plan_option(struct provider *provider, const OrtGraph *graph, tsr_model **model,
                               struct arena *arena, const char **name)
{
    const char *text = NULL;
    size_t n = 0;
    TRY(tsr_session_read(provider->session, provider->options.plan, FIRST_BYTES, &text, &n));
    if (n && text[0] == '{')
        return apply_document(provider, *model, arena, name);
    return take_annotated(provider, graph, model, name);
}
