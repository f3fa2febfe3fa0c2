// SPDX-License-Identifier: Apache-2.0
// cmd_explain.c - what a finding's code means and what to do about it; alone, the list of all
// codes.
//
// The texts are those of src/base/diag.def, one row for each code that a finding may have.
#include "cli/cli.h"

#include <string.h>

static const char *const severities[] = {"error", "warning", "note"};

// Prints text wrapped at 96 columns, as paragraphs.
// Breaks at blanks; a word that is longer than the line stands on one of its own.
static void print_wrapped(const char *text)
{
    size_t column = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (column && column + 1 + n > 96) {
            putchar('\n');
            column = 0;
        }
        printf("%s%.*s", cli_text_if(column, " "), (int)n, p);
        column += n + (column > 0);
        p += n;
        p += strspn(p, " ");
    }
    putchar('\n');
}

// In the order of the table, which puts kindred codes together.
static int list_all(struct cli *cli)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json *json = cli_json_if(cli);
    if (json)
        tsr_json_begin(json, "codes", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (!json) {
            printf("%-28s %-8s %s\n", code, severities[severity], title);
            continue;
        }
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "code", code);
        tsr_json_string(json, "severity", severities[severity]);
        tsr_json_string(json, "title", title);
        tsr_json_end(json);
    }
    if (json)
        tsr_json_end(json);
    return cli_end(cli, json, EXIT_DONE);
}

// The code that was probably meant, or NULL.
static const char *near_code(const char *wanted)
{
    const char *names[512], *title, *explanation;
    tsr_severity severity;
    size_t n = 0;
    while (n < 512 && tsr_code_at(n, &names[n], &severity, &title, &explanation))
        n++;
    return tsr_nearest(wanted, names, n);
}

static int explain(struct cli *cli, const char *wanted)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (strcmp(code, wanted))
            continue;
        if (cli->json) {
            tsr_json *json = cli_json(cli);
            if (json) {
                tsr_json_string(json, "code", code);
                tsr_json_string(json, "severity", severities[severity]);
                tsr_json_string(json, "title", title);
                tsr_json_string(json, "explanation", explanation);
            }
            return cli_print_json(cli, json, EXIT_DONE);
        }
        printf("%s (%s): %s\n\n", code, severities[severity], title);
        print_wrapped(explanation);
        return EXIT_DONE;
    }
    fprintf(stderr, "tessera explain: no code '%s' (`tessera explain` lists them)%s\n", wanted,
            cli_did_you_mean(near_code(wanted)));
    return EXIT_NO;
}

static int run(struct cli *cli)
{
    if (cli->n_arguments)
        return explain(cli, cli->arguments[0]);
    return list_all(cli);
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
