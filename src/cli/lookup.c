// SPDX-License-Identifier: Apache-2.0
// lookup.c - finds nodes and values by the words of an edit.
//
// Exact names are looked up in sorted lists, so that a script of thousands of edits stays quick;
// globs and the "did you mean" look at every node.
#include "edit.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

char *edit_copy(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = 0;
    }
    return copy;
}

static int by_name(const void *a, const void *b)
{
    const struct name_entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    int64_t i = tsr_node_index(x->node), k = tsr_node_index(y->node);
    return order ? order : (i > k) - (i < k);
}

static void fill(struct editor *e)
{
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(e->model)); n; n = tsr_node_next(n)) {
        if (tsr_node_name(n)[0])
            e->names[e->n_names++] = (struct name_entry){tsr_node_name(n), n};
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i))
                e->outputs[e->n_outputs++] =
                    (struct name_entry){tsr_value_name(tsr_node_output(n, i)), n};
    }
    qsort(e->names, e->n_names, sizeof *e->names, by_name);
    qsort(e->outputs, e->n_outputs, sizeof *e->outputs, by_name);
}

bool edit_begin(struct editor *e, struct cli *c, tsr_model *m)
{
    size_t nodes = 0, outputs = 0;
    *e = (struct editor){.cli = c, .model = m};
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(m)); n; n = tsr_node_next(n)) {
        nodes++;
        outputs += tsr_node_output_count(n);
    }
    e->names = calloc(nodes + 1, sizeof *e->names);
    e->outputs = calloc(outputs + 1, sizeof *e->outputs);
    if (!e->names || !e->outputs)
        return false;
    fill(e);
    return true;
}

void edit_end(struct editor *e)
{
    free(e->names);
    free(e->outputs);
    free(e->found);
}

static void found(struct editor *e, tsr_node *n)
{
    if (e->n_found == e->cap_found) {
        size_t cap = e->cap_found ? 2 * e->cap_found : 16;
        tsr_node **grown = realloc(e->found, cap * sizeof *grown);
        if (!grown)
            return;
        e->found = grown;
        e->cap_found = cap;
    }
    e->found[e->n_found++] = n;
}

static void find_in(struct editor *e, const struct name_entry *list, size_t n, const char *name)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(list[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < n && !strcmp(list[low].name, name); low++)
        found(e, list[low].node);
}

static bool parse_index(const char *text, int64_t *out)
{
    char *end;
    if (text[0] != '#' || text[1] < '0' || text[1] > '9')
        return false;
    *out = strtoll(text + 1, &end, 10);
    return !*end;
}

// One step of a path inside a graph; the main graph has sorted lists, subgraphs are walked.
static void find_step(struct editor *e, const tsr_graph *g, const char *text, bool globs)
{
    int64_t index;
    bool main = g == tsr_model_graph(e->model);
    if (main)
        find_in(e, e->names, e->n_names, text);
    for (tsr_node *n = tsr_graph_first(g); n && !main; n = tsr_node_next(n))
        if (!strcmp(tsr_node_name(n), text))
            found(e, n);
    if (!e->n_found && main)
        find_in(e, e->outputs, e->n_outputs, text);
    for (tsr_node *n = tsr_graph_first(g); n && !main && !e->n_found; n = tsr_node_next(n))
        for (size_t i = 0; i < tsr_node_output_count(n); i++)
            if (tsr_node_output(n, i) && !strcmp(tsr_value_name(tsr_node_output(n, i)), text))
                found(e, n);
    if (!e->n_found && parse_index(text, &index))
        for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
            if (tsr_node_index(n) == index)
                found(e, n);
    if (!e->n_found && globs && strpbrk(text, "*?["))
        for (tsr_node *n = tsr_graph_first(g); n; n = tsr_node_next(n))
            if (tsr_node_name(n)[0] && !fnmatch(text, tsr_node_name(n), 0))
                found(e, n);
}

// The subgraph of n under that attribute, or NULL.
static tsr_graph *branch_of(const tsr_node *n, const char *name)
{
    tsr_attr *a = tsr_node_find_attr(n, name);
    return a && tsr_attr_graph_count(a) ? tsr_attr_graph(a, 0) : NULL;
}

// `outer > branch > inner`: the part before the first " > " names one node, the next its attribute.
static void find_path(struct editor *e, const tsr_graph *g, char *text, bool globs)
{
    for (char *arrow; (arrow = strstr(text, " > "));) {
        char *branch = arrow + 3, *next = strstr(branch, " > ");
        if (!next)
            return;
        *arrow = *next = 0;
        e->n_found = 0;
        find_step(e, g, text, false);
        g = e->n_found == 1 ? branch_of(e->found[0], branch) : NULL;
        e->n_found = 0;
        if (!g)
            return;
        text = next + 3;
    }
    find_step(e, g, text, globs);
}

// `function NAME > inner`: a node of the body of that function.
static void find_in_function(struct editor *e, char *text, bool globs)
{
    static const char word[] = "function ";
    char *arrow = strstr(text, " > ");
    if (strncmp(text, word, sizeof word - 1) != 0 || !arrow)
        return;
    *arrow = 0;
    for (size_t i = 0; i < tsr_model_function_count(e->model); i++) {
        const tsr_function *f = tsr_model_function(e->model, i);
        if (!strcmp(tsr_function_name(f), text + sizeof word - 1)) {
            find_path(e, tsr_function_graph(f), arrow + 3, globs);
            break;
        }
    }
    *arrow = ' ';
}

size_t edit_find_nodes(struct editor *e, const char *text, size_t n, bool globs)
{
    char *copy = edit_copy(text, n);
    e->n_found = 0;
    if (copy)
        find_in_function(e, copy, globs);
    if (copy && !e->n_found) {
        find_step(e, tsr_model_graph(e->model), copy, globs);
        if (!e->n_found)
            find_path(e, tsr_model_graph(e->model), copy, globs);
    }
    free(copy);
    return e->n_found;
}

tsr_value *edit_node_value(const tsr_node *n, const char *name)
{
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        if (tsr_node_input(n, i) && !strcmp(tsr_value_name(tsr_node_input(n, i)), name))
            return tsr_node_input(n, i);
    for (size_t i = 0; i < tsr_node_output_count(n); i++)
        if (tsr_node_output(n, i) && !strcmp(tsr_value_name(tsr_node_output(n, i)), name))
            return tsr_node_output(n, i);
    return NULL;
}

// Keeps those of the found nodes that have the value; the count.
static size_t keep_with_value(struct editor *e, const char *value)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->n_found; i++)
        if (edit_node_value(e->found[i], value))
            e->found[kept++] = e->found[i];
    return e->n_found = kept;
}

static const char *nearest_node(const struct editor *e, const char *text)
{
    const char *best = NULL;
    size_t least = 1 + (strlen(text) + 2) / 3;
    for (size_t i = 0; i < e->n_names && i < 20000; i++) {
        size_t d = cli_distance(text, e->names[i].name);
        if (d < least) {
            least = d;
            best = e->names[i].name;
        }
    }
    return best;
}

static void values_text(const tsr_node *n, char *out, size_t cap)
{
    size_t k = 0, inputs = tsr_node_input_count(n), all = inputs + tsr_node_output_count(n);
    out[0] = 0;
    for (size_t i = 0; i < all && k < cap; i++) {
        tsr_value *v = i < inputs ? tsr_node_input(n, i) : tsr_node_output(n, i - inputs);
        if (v)
            k += (size_t)snprintf(out + k, cap - k, "%s'%s'", k ? ", " : "", tsr_value_name(v));
    }
}

// Nothing fits NODE:VALUE: says whether the node or the value is to blame.
static void blame(struct editor *e, const char *text, size_t n)
{
    char *copy = edit_copy(text, n), values[512];
    for (size_t i = n; copy && i-- > 0;) {
        if (text[i] != ':' || !edit_find_nodes(e, text, i, true))
            continue;
        values_text(e->found[0], values, sizeof values);
        edit_wrong(e, EXIT_NO, "node '%.*s' has no value '%.*s'; its values are %s", (int)i, text,
                   (int)(n - i - 1), text + i + 1, values);
        free(copy);
        return;
    }
    const char *colon = memrchr(text, ':', n);
    if (!colon) {
        edit_wrong(e, EXIT_USAGE, "'%.*s' is not NODE:VALUE", (int)n, text);
    } else if (copy) {
        copy[colon - text] = 0;
        const char *near = nearest_node(e, copy);
        edit_wrong(e, EXIT_NO, "no node '%s'%s%s%s", copy, near ? "; did you mean '" : "",
                   near ? near : "", near ? "'?" : "");
    }
    free(copy);
}

// "node":"value": the quotes settle where the names end. Returns false if it is not of that form.
static bool quoted_target(struct editor *e, const char *text, size_t n, char **value,
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
    *value = edit_copy(v, (size_t)(end - v));
    edit_find_nodes(e, text + 1, (size_t)(close - text - 1), true);
    *found_it = *value && keep_with_value(e, *value);
    if (!*found_it)
        edit_wrong(e, EXIT_NO, "no node %.*s with that value", (int)(close - text + 1), text);
    return true;
}

// How many splits of the text name nodes with that value; the last one that does stays in e->found.
static int try_splits(struct editor *e, const char *text, size_t n, bool globs, char **value,
                      size_t *at)
{
    int splits = 0;
    for (size_t i = 1; i + 1 < n; i++) {
        if (text[i] != ':' || !edit_find_nodes(e, text, i, globs))
            continue;
        char *v = edit_copy(text + i + 1, n - i - 1);
        if (v && keep_with_value(e, v)) {
            splits++;
            free(*value);
            *value = v;
            *at = i;
        } else {
            free(v);
        }
    }
    return splits;
}

bool edit_find_target(struct editor *e, const char *text, size_t n, char **value)
{
    bool ok = false;
    size_t at = 0;
    *value = NULL;
    if (quoted_target(e, text, n, value, &ok))
        return ok;
    int splits = try_splits(e, text, n, false, value, &at);
    bool globs = splits == 0;
    if (globs)
        splits = try_splits(e, text, n, true, value, &at);
    if (splits == 1) {
        edit_find_nodes(e, text, at, globs);
        keep_with_value(e, *value);
        return true;
    }
    if (splits > 1)
        edit_wrong(e, EXIT_NO,
                   "'%.*s' can be read in %d ways; write \"NODE\":\"VALUE\" with the quotes",
                   (int)n, text, splits);
    else
        blame(e, text, n);
    free(*value);
    *value = NULL;
    return false;
}
