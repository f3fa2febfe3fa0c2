// SPDX-License-Identifier: Apache-2.0
// edit.h - the edit language of `annotate`: finding nodes and values by text, applying edits.
#ifndef TSR_CLI_EDIT_H
#define TSR_CLI_EDIT_H

#include "cli/cli.h"

// A node by its name.
struct name_entry {
    const char *name;
    tsr_node *node;
};

// Errors are reported with the place of the edit: "tessera annotate: ..." on the command line,
// "edits.txt:3: ..." in a script.
struct editor {
    struct cli *cli;
    tsr_model *model;
    tsr_config *config;       // selected for the following edits; NULL: none
    struct name_entry *names; // nodes of the main graph, sorted by name
    size_t n_names;
    tsr_node **found; // nodes of the last look-up
    size_t n_found, cap_found;
    const char *script;        // file name, or NULL: the command line
    size_t line;               // line number in the script, from 1
    bool cascade;              // --cascade of --remove-config: remove the annotations too
    int code;                  // worst exit code so far
    const tsr_dim_size *sizes; // of symbolic dimensions, for random shardings
    size_t n_sizes;
    size_t n_applied, n_wrong; // valid edits; errors of the script
};

void edit_begin(struct editor *editor, struct cli *cli, tsr_model *model);
// edit_wrong reports an error and sets the exit code (EXIT_NO or EXIT_USAGE). edit_took counts an
// edit, or sets the exit code of a status that the library has reported.
void edit_wrong(struct editor *editor, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void edit_took(struct editor *editor, tsr_status status);

// lookup.c: finds the nodes that the text names (name, one of the outputs, #index, glob, `outer >
// branch > inner`). Stores them in editor->found and returns their number.
size_t edit_find_nodes(struct editor *editor, const char *text, size_t n, bool globs);
// Splits NODE:VALUE at the colon between a known node and one of its values. On success
// editor->found has the nodes and *value the value's name; otherwise reports why.
bool edit_find_target(struct editor *editor, const char *text, size_t n, char **value);
// Finds a value by name among the node's inputs and outputs; NULL: none.
tsr_value *edit_node_value(const tsr_node *node, const char *name);

// layers.c: makes stages from ONNX Runtime's layer annotations. text: rules, or "auto".
void edit_layers(struct editor *editor, const char *text);
// Applies one edit. Reports errors and continues.
void edit_apply(struct editor *editor, const char *option, const char *value, bool cascade);
// script.c: removes blanks at both ends of the text, in place, and returns its first character.
char *edit_trim(char *text);
// Applies all edits of a file: one per line, or a plan document.
void edit_run_script(struct editor *editor, const char *path);

#endif
