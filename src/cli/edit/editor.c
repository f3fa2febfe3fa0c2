// SPDX-License-Identifier: Apache-2.0
// editor.c - results of edits: errors and the exit code.
#include "cli/edit/edit.h"

#include <stdarg.h>

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
