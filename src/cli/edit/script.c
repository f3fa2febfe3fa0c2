// SPDX-License-Identifier: Apache-2.0
// script.c - applies the edits of a file.
//
// A line is an option and its value: `--shard mm:W={1,2}` or `--shard=mm:W={1,2}`. A plan document
// (plan --plan) contains such edits and is recognized by its first byte.
#include "cli/edit/edit.h"

#include <stdlib.h>
#include <string.h>

#define SCRIPT_MAX ((size_t)1 << 30) // bytes

char *edit_trim(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1]))
        text[--n] = 0;
    return text;
}

// Carries out one line of a script. The value is the rest of the line. " --cascade" at its end is
// the flag of --remove-config. Single quotes around the value are removed.
static void script_line(struct editor *editor, char *line)
{
    char *option = edit_trim(line);
    if (!*option || *option == '#')
        return;
    char *value = option + strcspn(option, " \t=");
    if (!*value) {
        edit_wrong(editor, EXIT_USAGE, "'%s' needs a value", option);
        return;
    }
    *value++ = 0;
    value = edit_trim(value);
    size_t n = strlen(value);
    bool cascade = n > 10 && !strcmp(value + n - 10, " --cascade");
    if (cascade) {
        value[n - 10] = 0;
        value = edit_trim(value);
        n = strlen(value);
    }
    if (n > 1 && value[0] == '\'' && value[n - 1] == '\'') {
        value[n - 1] = 0;
        value++;
    }
    edit_apply(editor, option, value, cascade);
}

static void run_lines(struct editor *editor, const char *text, size_t n)
{
    const char *end = text + n;
    for (editor->line = 1; text < end; editor->line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = stop ? (size_t)(stop - text) : (size_t)(end - text);
        size_t mark = cli_mark();
        char *line = cli_copy(text, length);
        if (memchr(line, 0, length))
            edit_wrong(editor, EXIT_USAGE, "the line contains a zero byte");
        else
            script_line(editor, line);
        cli_release(mark);
        text += length + (stop != NULL);
    }
}

static tsr_status read_edits(tsr_session *session, const char *path, const char **text, size_t *n)
{
    tsr_status status = tsr_session_read(session, path, SCRIPT_MAX, text, n);
    if (status != TSR_OK || !*n || (*text)[0] != '{')
        return status;
    status = tsr_plan_edits(session, path, text);
    *n = status == TSR_OK ? strlen(*text) : 0;
    return status;
}

void edit_run_script(struct editor *editor, const char *path)
{
    const char *text = NULL;
    size_t n = 0;
    tsr_status status = read_edits(tsr_model_session(editor->model), path, &text, &n);
    if (status != TSR_OK) {
        editor->code = EXIT_READ;
        return;
    }
    editor->script = path;
    run_lines(editor, text, n);
    editor->script = NULL;
}
