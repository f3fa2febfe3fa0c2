// SPDX-License-Identifier: Apache-2.0
// lookup.c - finds nodes and values by the words of an edit.
//
// Exact names are looked up in sorted lists, so that scripts of thousands of edits are fast; globs
// and "did you mean" visit every node.
//
// A word is tried as the name of a node, as one of its outputs, as #index, and as a glob over
// names. The first kind with a match wins, so a node called `*` can be named. The result is in
// editor->found.
//
//   mm1                    the node of that name, or the node with output mm1
//   #3                     the fourth node of the graph
//   layer.*.mm             all nodes whose names match
//   if0 > then_branch > mm1    mm1 in the branch of node if0
//   function f > mm1       mm1 in the body of function f
#include "cli/edit/edit.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

// Compares two entries by name. Nodes of the same name are in graph order.
static int by_name(const void *a, const void *b)
{
    const struct name_entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    int64_t i = tsr_node_index(x->node), k = tsr_node_index(y->node);
    return order ? order : (i > k) - (i < k);
}

void edit_begin(struct editor *editor, struct cli *cli, tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    *editor = (struct editor){.cli = cli, .model = model, .cap_found = 16};
    editor->found = cli_alloc(editor->cap_found, sizeof *editor->found);
    editor->names = cli_alloc(tsr_graph_node_count(graph) + 1, sizeof *editor->names);
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (tsr_node_name(node)[0])
            editor->names[editor->n_names++] = (struct name_entry){tsr_node_name(node), node};
    qsort(editor->names, editor->n_names, sizeof *editor->names, by_name);
}

static void found(struct editor *editor, tsr_node *node)
{
    if (editor->n_found == editor->cap_found) {
        editor->cap_found *= 2;
        editor->found = cli_grow(editor->found, editor->cap_found, sizeof *editor->found);
    }
    editor->found[editor->n_found++] = node;
}

// Adds all nodes of a name, by binary search for the first one.
static void find_named(struct editor *editor, const char *name)
{
    size_t low = 0, high = editor->n_names;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(editor->names[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < editor->n_names && !strcmp(editor->names[low].name, name); low++)
        found(editor, editor->names[low].node);
}

static bool parse_index(const char *text, int64_t *out)
{
    char *end;
    if (text[0] != '#' || text[1] < '0' || text[1] > '9')
        return false;
    *out = strtoll(text + 1, &end, 10);
    return !*end;
}

static bool has_name(const tsr_node *node, const char *text)
{
    return !strcmp(tsr_node_name(node), text);
}

static bool has_index(const tsr_node *node, const char *text)
{
    int64_t index;
    return parse_index(text, &index) && tsr_node_index(node) == index;
}

static bool matches_glob(const tsr_node *node, const char *text)
{
    return tsr_node_name(node)[0] && !fnmatch(text, tsr_node_name(node), 0);
}

static void find_by(struct editor *editor, const tsr_graph *graph, const char *text,
                    bool (*fits)(const tsr_node *node, const char *text))
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (fits(node, text))
            found(editor, node);
}

// Adds the nodes that one step of a path names. The main graph has a sorted list of names;
// subgraphs are searched linearly.
static void find_step(struct editor *editor, const tsr_graph *graph, const char *text, bool globs)
{
    int64_t index;
    if (graph == tsr_model_graph(editor->model))
        find_named(editor, text);
    else
        find_by(editor, graph, text, has_name);
    const tsr_value *value = editor->n_found ? NULL : tsr_graph_value(graph, text);
    if (value && tsr_value_producer(value))
        found(editor, tsr_value_producer(value));
    if (!editor->n_found && parse_index(text, &index))
        find_by(editor, graph, text, has_index);
    if (!editor->n_found && globs && strpbrk(text, "*?["))
        find_by(editor, graph, text, matches_glob);
}

size_t edit_find_nodes(struct editor *editor, const char *text, size_t n, bool globs)
{
    char *copy = cli_copy(text, n);
    const char *last = copy;
    editor->n_found = 0;
    // First as one name: a node may be called "a > b".
    find_step(editor, tsr_model_graph(editor->model), copy, globs);
    if (editor->n_found)
        return editor->n_found;
    const tsr_graph *graph = tsr_model_find_graph(editor->model, copy, &last);
    if (graph && last != copy)
        find_step(editor, graph, last, globs);
    return editor->n_found;
}

tsr_value *edit_node_value(const tsr_node *node, const char *name)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !strcmp(tsr_value_name(tsr_node_input(node, i)), name))
            return tsr_node_input(node, i);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && !strcmp(tsr_value_name(tsr_node_output(node, i)), name))
            return tsr_node_output(node, i);
    return NULL;
}

// Keeps the found nodes that have the value; returns their number.
static size_t keep_with_value(struct editor *editor, const char *value)
{
    size_t kept = 0;
    for (size_t i = 0; i < editor->n_found; i++)
        if (edit_node_value(editor->found[i], value))
            editor->found[kept++] = editor->found[i];
    return editor->n_found = kept;
}

// Returns the name of a node that is most similar to the text, or NULL. Compares at most 20000
// names.
static const char *nearest_node(const struct editor *editor, const char *text)
{
    size_t n = size_min(editor->n_names, 20000);
    const char **names = cli_alloc(n + 1, sizeof *names);
    for (size_t i = 0; i < n; i++)
        names[i] = editor->names[i].name;
    return tsr_nearest(text, names, n);
}

// Writes the names of a node's values: "'x', 'W', 'y'", inputs first, cut off at `cap`.
static void values_text(const tsr_node *node, char *out, size_t cap)
{
    size_t inputs = tsr_node_input_count(node), all = inputs + tsr_node_output_count(node);
    out[0] = 0;
    for (size_t i = 0; i < all; i++) {
        tsr_value *value = i < inputs ? tsr_node_input(node, i) : tsr_node_output(node, i - inputs);
        if (value)
            cli_append(out, cap, "%s'%s'", *out ? ", " : "", tsr_value_name(value));
    }
}

// Reports that a target was not found. If a part before a colon names a node, the value is wrong,
// otherwise the node.
static void report_missing(struct editor *editor, const char *text, size_t n)
{
    char *copy = cli_copy(text, n), values[512];
    for (size_t i = n; i-- > 0;) {
        if (text[i] != ':' || !edit_find_nodes(editor, text, i, true))
            continue;
        values_text(editor->found[0], values, sizeof values);
        edit_wrong(editor, EXIT_NO, "node '%.*s' has no value '%.*s'; its values are %s", (int)i,
                   text, (int)(n - i - 1), text + i + 1, values);
        return;
    }
    const char *colon = memrchr(text, ':', n);
    if (!colon) {
        edit_wrong(editor, EXIT_USAGE, "'%.*s' is not NODE:VALUE", (int)n, text);
    } else {
        copy[colon - text] = 0;
        const char *near = nearest_node(editor, copy);
        edit_wrong(editor, EXIT_NO, "no node '%s'%s", copy, cli_did_you_mean(near));
    }
}

// Parses "node":"value" with quotes. Returns false if the text has no quotes; *found_it is false if
// an error was reported.
static bool quoted_target(struct editor *editor, const char *text, size_t n, char **value,
                          bool *found_it)
{
    const char *close = n && text[0] == '"' ? memchr(text + 1, '"', n - 1) : NULL;
    if (!close || close + 1 >= text + n || close[1] != ':')
        return false;
    const char *v = close + 2, *end = text + n;
    if (v < end && *v == '"' && end[-1] == '"' && end - v >= 2) {
        v++;
        end--;
    }
    *value = cli_copy(v, (size_t)(end - v));
    edit_find_nodes(editor, text + 1, (size_t)(close - text - 1), true);
    *found_it = keep_with_value(editor, *value) > 0;
    if (!*found_it)
        edit_wrong(editor, EXIT_NO, "no node %.*s with that value", (int)(close - text + 1), text);
    return true;
}

// Returns the number of colons that split the text into nodes and their value. *value and *at are
// the value and the position of the last such colon.
static int try_splits(struct editor *editor, const char *text, size_t n, bool globs, char **value,
                      size_t *at)
{
    int splits = 0;
    for (size_t i = 1; i + 1 < n; i++) {
        if (text[i] != ':' || !edit_find_nodes(editor, text, i, globs))
            continue;
        char *v = cli_copy(text + i + 1, n - i - 1);
        if (!keep_with_value(editor, v))
            continue;
        splits++;
        *value = v;
        *at = i;
    }
    return splits;
}

// Finds nodes and their value. "a:b:c" may be node a with value b:c, or node a:b with value c.
// Every colon is tried, with exact names before globs; exactly one split must match.
bool edit_find_target(struct editor *editor, const char *text, size_t n, char **value)
{
    bool ok = false;
    size_t at = 0;
    *value = NULL;
    if (quoted_target(editor, text, n, value, &ok))
        return ok;
    int splits = try_splits(editor, text, n, false, value, &at);
    bool globs = splits == 0;
    if (globs)
        splits = try_splits(editor, text, n, true, value, &at);
    if (splits == 1) {
        edit_find_nodes(editor, text, at, globs); // later colons have overwritten the result
        keep_with_value(editor, *value);
        return true;
    }
    if (splits > 1)
        edit_wrong(editor, EXIT_NO,
                   "'%.*s' is ambiguous (%d readings); write \"NODE\":\"VALUE\" with the quotes",
                   (int)n, text, splits);
    else
        report_missing(editor, text, n);
    return false;
}
