// SPDX-License-Identifier: Apache-2.0
// layers.c - pipeline stages from ONNX Runtime's layer annotations: `annotate --layers RULES`.
//
// Nodes have a text under `layer_ann` in their metadata (written by Olive). RULES assign devices to
// these texts, as the session option session.layer_assignment_settings does: "gpu(layers.);
// cpu(=head, embed)". A text without = is a prefix. Prefixes have priority over exact texts; else
// the first match counts. Each device becomes a stage, or several if the data flow needs them.
// Example: embed on the CPU, layers on the GPU and head on the CPU are stages 0, 1 and 2.
#include "cli/edit/edit.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define ANNOTATION "layer_ann"
#define MAX_STAGES 1024

// One pattern of a device: device(text) matches a prefix, device(=text) the full annotation.
struct rule {
    const char *device, *text; // in the copy of RULES
    bool exact;
};
// A node of the main graph with its stage.
struct placed {
    const tsr_node *node;
    long stage; // if no rule matches: the highest stage of its producers; -1: none
};
struct layers {
    struct editor *editor;
    struct rule *rules; // none: each annotation is a device
    size_t n_rules;
    struct placed *placed; // sorted by address
    size_t n_placed, n_matched;
    const char *devices[MAX_STAGES]; // of each stage
    long n_stages;
};

// ---- the rules ---------------------------------------------------------------------------------

// Adds a rule. Returns false if the text is empty.
static bool add_rule(struct layers *layers, const char *device, char *text)
{
    text = edit_trim(text);
    bool exact = text[0] == '=';
    if (!text[exact])
        return false;
    layers->rules = cli_grow(layers->rules, layers->n_rules + 1, sizeof *layers->rules);
    layers->rules[layers->n_rules++] = (struct rule){device, text + exact, exact};
    return true;
}

// Parses "gpu(a, =b)" in place. Returns false if it is invalid.
static bool read_device(struct layers *layers, char *text)
{
    char *open = strchr(text, '('), *close = strrchr(text, ')'), *left = NULL;
    if (!open || !close || close < open || *edit_trim(close + 1))
        return false;
    *open = *close = 0;
    const char *device = edit_trim(text);
    if (!*device)
        return false;
    for (char *word = strtok_r(open + 1, ",", &left); word; word = strtok_r(NULL, ",", &left))
        if (!add_rule(layers, device, word))
            return false;
    return true;
}

// Reads the rules. Returns false if they are invalid or if there are none. "auto" has none and is
// valid.
static bool read_rules(struct layers *layers, char *text)
{
    char *left = NULL;
    if (strcmp(text, "auto") == 0)
        return true;
    for (char *part = strtok_r(text, ";", &left); part; part = strtok_r(NULL, ";", &left))
        if (*edit_trim(part) && !read_device(layers, edit_trim(part)))
            return false;
    return layers->n_rules > 0;
}

// Returns the device of an annotation; NULL: no rule matches. Without rules (`auto`) the device is
// the annotation itself. With "gpu(layers.); cpu(=layers.9)" layers.9 is on gpu, since prefixes
// come first.
static const char *device_of(const struct layers *layers, const char *annotation)
{
    if (layers->n_rules == 0)
        return annotation;
    for (int exact = 0; exact < 2; exact++)
        for (size_t i = 0; i < layers->n_rules; i++) {
            const struct rule *rule = &layers->rules[i];
            size_t n = strlen(rule->text) + rule->exact; // exact: compares the end too
            if (rule->exact == exact && strncmp(annotation, rule->text, n) == 0)
                return rule->device;
        }
    return NULL;
}

// ---- stages ------------------------------------------------------------------------------------

static int by_node(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

// Returns the highest stage of the node's producers; -1: none.
static long least_stage(const struct layers *layers, const tsr_node *node)
{
    long least = -1;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        struct placed key = {value ? tsr_value_producer(value) : NULL, 0};
        const struct placed *producer =
            key.node ? bsearch(&key, layers->placed, layers->n_placed, sizeof key, by_node) : NULL;
        if (producer && producer->stage > least)
            least = producer->stage;
    }
    return least;
}

// Returns the first stage of the device that is not below `least`, or a new stage; -1: too many
// stages. Data must not return to an earlier stage. Example: after embed (cpu, stage 0) and layer
// (gpu, stage 1), the head (cpu) gets the new stage 2.
static long stage_of(struct layers *layers, const char *device, long least)
{
    for (long stage = least < 0 ? 0 : least; stage < layers->n_stages; stage++)
        if (strcmp(layers->devices[stage], device) == 0)
            return stage;
    if (layers->n_stages == MAX_STAGES)
        return -1;
    layers->devices[layers->n_stages] = device;
    return layers->n_stages++;
}

// Finds the stage of every node. Returns false if there would be more than MAX_STAGES. Nodes for
// which no rule matches get no stage. But a node that reads an output of such a node must not be in
// an earlier stage than the producers of that node's inputs.
static bool place(struct layers *layers)
{
    const tsr_graph *graph = tsr_model_graph(layers->editor->model);
    size_t n = 0;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        layers->placed[n++] = (struct placed){node, -1};
    qsort(layers->placed, n, sizeof *layers->placed, by_node);
    layers->n_placed = n;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        const char *annotation = tsr_node_metadata(node, ANNOTATION);
        const char *device = annotation ? device_of(layers, annotation) : NULL;
        struct placed key = {node, 0};
        struct placed *own = bsearch(&key, layers->placed, n, sizeof key, by_node);
        own->stage = least_stage(layers, node);
        if (!device)
            continue;
        own->stage = stage_of(layers, device, own->stage);
        layers->n_matched++;
        if (own->stage < 0)
            return false;
    }
    return true;
}

// Declares the configuration: one device per stage, with the names of the rules in capitals, or
// without names for `auto`.
static tsr_config *make_config(const struct layers *layers)
{
    tsr_config *config = NULL;
    char *names[MAX_STAGES] = {NULL};
    size_t n = layers->n_rules ? (size_t)layers->n_stages : 0;
    for (size_t i = 0; i < n; i++) {
        names[i] = cli_copy(layers->devices[i], strlen(layers->devices[i]));
        for (char *at = names[i]; *at; at++)
            *at = (char)toupper((unsigned char)*at);
    }
    tsr_status st = tsr_model_add_config(layers->editor->model, "layers", layers->n_stages,
                                         (const char *const *)names, n, &config);
    return st == TSR_OK ? config : NULL;
}

static void write_stages(struct layers *layers)
{
    struct editor *editor = layers->editor;
    if (!editor->config)
        editor->config = make_config(layers);
    if (!editor->config) {
        edit_wrong(editor, EXIT_NO, "the configuration 'layers' cannot be declared");
        return;
    }
    tsr_graph *graph = tsr_model_graph(editor->model);
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        const char *annotation = tsr_node_metadata(node, ANNOTATION);
        struct placed key = {node, 0};
        const struct placed *own =
            bsearch(&key, layers->placed, layers->n_placed, sizeof key, by_node);
        if (annotation && device_of(layers, annotation) &&
            tsr_node_set_stage(node, editor->config, own->stage) != TSR_OK)
            edit_wrong(editor, EXIT_NO, "cannot set the stage of a node");
    }
    editor->n_applied++; // --layers counts as one edit
}

void edit_layers(struct editor *editor, const char *text)
{
    struct layers *layers = cli_alloc(1, sizeof *layers);
    char *rules = cli_copy(text, strlen(text));
    size_t n = 0;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(editor->model)); node;
         node = tsr_node_next(node))
        n++;
    *layers = (struct layers){.editor = editor};
    layers->placed = cli_alloc(n + 1, sizeof *layers->placed);
    if (!read_rules(layers, rules))
        edit_wrong(editor, EXIT_USAGE,
                   "'%s' is neither `auto` nor rules such as gpu(layers.); cpu(=head)", text);
    else if (!place(layers))
        edit_wrong(editor, EXIT_NO, "more than %d stages", MAX_STAGES);
    else if (!layers->n_matched)
        edit_wrong(editor, EXIT_NO, "no node has a matching '" ANNOTATION "' annotation");
    else
        write_stages(layers);
}
