// SPDX-License-Identifier: Apache-2.0
// cmd_explain.c - what a finding's code means and what to do about it; alone, the list of all
// codes.
#include "cli.h"

#include <string.h>

static const char *const severities[] = {"error", "warning", "note"};

// Prints text wrapped at 96 columns, as paragraphs.
static void print_wrapped(const char *text)
{
    size_t column = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (column && column + 1 + n > 96) {
            putchar('\n');
            column = 0;
        }
        printf("%s%.*s", column ? " " : "", (int)n, p);
        column += n + (column > 0);
        p += n;
        p += strspn(p, " ");
    }
    putchar('\n');
}

static int list_all(struct cli *c)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json *j = c->json ? cli_json(c) : NULL;
    if (j)
        tsr_json_begin(j, "codes", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (!j) {
            printf("%-28s %-8s %s\n", code, severities[severity], title);
            continue;
        }
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "code", code);
        tsr_json_string(j, "severity", severities[severity]);
        tsr_json_string(j, "title", title);
        tsr_json_end(j);
    }
    if (j)
        tsr_json_end(j);
    return j ? cli_print_json(c, j, EXIT_DONE) : EXIT_DONE;
}

static int explain(struct cli *c, const char *wanted)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (strcmp(code, wanted))
            continue;
        if (c->json) {
            tsr_json *j = cli_json(c);
            if (j) {
                tsr_json_string(j, "code", code);
                tsr_json_string(j, "severity", severities[severity]);
                tsr_json_string(j, "title", title);
                tsr_json_string(j, "explanation", explanation);
            }
            return cli_print_json(c, j, EXIT_DONE);
        }
        printf("%s (%s): %s\n\n", code, severities[severity], title);
        print_wrapped(explanation);
        return EXIT_DONE;
    }
    const char *near = NULL;
    size_t least = 1 + (strlen(wanted) + 2) / 3;
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        size_t d = cli_distance(wanted, code);
        near = d < least ? code : near;
        least = d < least ? d : least;
    }
    fprintf(stderr, "tessera explain: no code '%s'%s%s%s; `tessera explain` lists them\n", wanted,
            near ? ", did you mean " : "", near ? near : "", near ? "?" : "");
    return EXIT_NO;
}

static int run(struct cli *c)
{
    return c->n_arguments ? explain(c, c->arguments[0]) : list_all(c);
}

const struct command cmd_explain = {
    .name = "explain",
    .arguments = "[CODE]",
    .summary = "what a finding's code means; alone, all codes",
    .example = "tessera explain io-open",
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run,
};
