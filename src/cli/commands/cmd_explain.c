// SPDX-License-Identifier: Apache-2.0
// cmd_explain.c - explains a diagnostic code, or lists all. The texts are in src/base/diag.def.
#include "cli/cli.h"

#include <string.h>

static const char *const severities[] = {"error", "warning", "note"};

// A row of the table of codes.
struct code_row {
    const char *code, *title, *explanation;
    tsr_severity severity;
};
static bool code_at(size_t i, struct code_row *row)
{
    return tsr_code_at(i, &row->code, &row->severity, &row->title, &row->explanation);
}

static const tsr_json_field code_fields[] = {
    {JSON_FIELD(struct code_row, "code", code)},
    {JSON_NAME(struct code_row, "severity", severity, severities)},
    {JSON_FIELD(struct code_row, "title", title)},
    {JSON_END},
};

// Prints a text, wrapped at 96 columns.
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

static int list_all(struct cli *cli)
{
    struct code_row row;
    tsr_json *json = cli_json_if(cli);
    tsr_json_begin(json, "codes", '[');
    for (size_t i = 0; code_at(i, &row); i++) {
        if (cli->json)
            tsr_json_record(json, NULL, code_fields, &row);
        else
            printf("%-28s %-8s %s\n", row.code, severities[row.severity], row.title);
    }
    tsr_json_end(json);
    return cli->json ? cli_print_json(cli, json, EXIT_DONE) : EXIT_DONE;
}

static const char *near_code(const char *wanted)
{
    const char *names[512];
    struct code_row row;
    size_t n = 0;
    for (; n < 512 && code_at(n, &row); n++)
        names[n] = row.code;
    return tsr_nearest(wanted, names, n);
}

static int explain(struct cli *cli, const char *wanted)
{
    struct code_row row;
    size_t i = 0;
    bool found;
    while ((found = code_at(i, &row)) && strcmp(row.code, wanted) != 0)
        i++;
    if (!found) {
        fprintf(stderr, "tessera explain: unknown code '%s' (`tessera explain` lists all)%s\n",
                wanted, cli_did_you_mean(near_code(wanted)));
        return EXIT_NO;
    }
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        tsr_json_fields(json, code_fields, &row);
        tsr_json_string(json, "explanation", row.explanation);
        return cli_print_json(cli, json, EXIT_DONE);
    }
    printf("%s (%s): %s\n\n", row.code, severities[row.severity], row.title);
    print_wrapped(row.explanation);
    return EXIT_DONE;
}

static int run_explain(struct cli *cli)
{
    return cli->n_arguments ? explain(cli, cli->arguments[0]) : list_all(cli);
}

const struct command cmd_explain = {
    .name = "explain",
    .arguments = "[CODE]",
    .summary = "explain a diagnostic code, or list all codes",
    .example = "tessera explain io-open",
    .takes = {0, 1},
    .run = run_explain,
};
