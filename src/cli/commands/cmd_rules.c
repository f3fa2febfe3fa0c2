// SPDX-License-Identifier: Apache-2.0
// cmd_rules.c - how operators can be sharded: one operator in words, a list, totals, or Markdown.
//
// `--markdown` prints docs/operators.md. A row of the table is the rule of an operator from one
// opset version on; rows of one operator are consecutive, the oldest first. tsr_rule_at reuses the
// memory of `words` and `stays` in each call.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_DOMAINS 32

static const char *domain_name(const tsr_rule *rule)
{
    return cli_domain(rule->domain);
}

// `whole`: why the operator cannot be sharded, or null.
static const tsr_json_field rule_fields[] = {
    {JSON_FIELD(tsr_rule, "op", op)},       {JSON_FIELD(tsr_rule, "domain", domain)},
    {JSON_FIELD(tsr_rule, "since", since)}, {JSON_FIELD(tsr_rule, "rule", rule)},
    {JSON_FIELD(tsr_rule, "whole", whole)}, {JSON_FIELD(tsr_rule, "note", note)},
    {JSON_FIELD(tsr_rule, "stays", stays)}, {JSON_END},
};

static void print_json_rule(tsr_json *json, const tsr_rule *rule)
{
    tsr_rule row = *rule;
    row.whole = cli_text_or(rule->whole, NULL);
    tsr_json_record(json, NULL, rule_fields, &row);
}

static void print_rule(const tsr_rule *rule)
{
    printf("%s (%s, from opset %lld)\n", rule->op, domain_name(rule), (long long)rule->since);
    if (rule->rule[0])
        printf("  rule: %s\n", rule->rule);
    for (const char *p = rule->words; *p;) {
        size_t n = strcspn(p, "\n");
        printf("  %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

static void print_line(const tsr_rule *rule)
{
    printf("%-28s %-14s %4lld  %s%s\n", rule->op, domain_name(rule), (long long)rule->since,
           rule->whole[0] ? "replicated: " : "", cli_text_or(rule->whole, rule->rule));
}

// Prints a cell of a Markdown table. Bars are escaped, because they would end the cell.
static void print_cell(const char *text)
{
    for (; *text; text++)
        printf("%s%c", *text == '|' ? "\\" : "", *text);
}

static void print_row(const tsr_rule *rule)
{
    printf("| %s | %lld | ", rule->op, (long long)rule->since);
    if (rule->whole[0]) {
        printf("replicated: ");
        print_cell(rule->whole);
    } else {
        printf("`");
        print_cell(rule->rule);
        printf("`");
    }
    printf(" | ");
    print_cell(rule->note);
    printf(" |\n");
}

// Numbers of operators of one domain; of each operator, only the newest row counts:
//   cut       can be sharded
//   replaced  of these, after expansion into simpler nodes
//   inside    of these, by sharding the nodes of their bodies
//   whole     cannot be sharded
struct covered {
    const char *domain;
    size_t rows, operators, cut, replaced, inside, whole;
};
struct coverage {
    struct covered domains[MAX_DOMAINS], all; // ai.onnx first
    size_t n;
};

static void count_row(struct covered *covered, const tsr_rule *rule, bool newest)
{
    bool sharded = newest && !rule->whole[0];
    covered->rows++;
    covered->operators += newest;
    covered->whole += newest && rule->whole[0];
    covered->cut += sharded;
    covered->replaced += sharded && strstr(rule->rule, "stat ");
    covered->inside += sharded && rule->bodies;
}

// Finds or adds the entry of a domain; NULL: the list is full.
static struct covered *domain_at(struct coverage *coverage, const char *domain)
{
    size_t k = 0;
    while (k < coverage->n && strcmp(coverage->domains[k].domain, domain) != 0)
        k++;
    if (k == coverage->n && k < MAX_DOMAINS)
        coverage->domains[coverage->n++] = (struct covered){.domain = domain};
    return k < MAX_DOMAINS ? &coverage->domains[k] : NULL;
}

static struct coverage cover(tsr_session *session)
{
    struct coverage coverage = {0};
    tsr_rule rule = {.size = sizeof(rule)}, next = {.size = sizeof(next)};
    domain_at(&coverage, "");
    for (size_t i = 0; tsr_rule_at(session, i, &rule); i++) {
        struct covered *covered = domain_at(&coverage, rule.domain);
        tsr_rule now = rule;
        bool newest = !tsr_rule_at(session, i + 1, &next) || strcmp(next.op, now.op) != 0 ||
                      strcmp(next.domain, now.domain) != 0;
        if (covered)
            count_row(covered, &now, newest);
        count_row(&coverage.all, &now, newest);
    }
    return coverage;
}

static void print_domain(tsr_session *session, const struct covered *covered)
{
    tsr_rule rule = {.size = sizeof(rule)};
    printf("\n## %s\n\n%zu operators, %zu of them can be sharded.\n\n", cli_domain(covered->domain),
           covered->operators, covered->cut);
    printf("| operator | from opset | rule | note |\n|---|---|---|---|\n");
    for (size_t i = 0; tsr_rule_at(session, i, &rule); i++)
        if (strcmp(rule.domain, covered->domain) == 0)
            print_row(&rule);
}

// Lists operators and dimensions that are not sharded, with the reason.
static void print_reasons(tsr_session *session)
{
    tsr_rule rule = {.size = sizeof(rule)};
    printf("\n## What is not sharded, and why\n\n"
           "Factors have their names in the rule; `_` is a dimension without a factor.\n\n"
           "| operator | domain | from opset | factor: reason |\n|---|---|---|---|\n");
    for (size_t i = 0; tsr_rule_at(session, i, &rule); i++) {
        if (!rule.whole[0] && !rule.stays[0])
            continue;
        printf("| %s | %s | %lld | ", rule.op, domain_name(&rule), (long long)rule.since);
        if (rule.whole[0])
            printf("all: ");
        print_cell(cli_text_or(rule.whole, rule.stays));
        printf(" |\n");
    }
}

// Prints all rules as a page in Markdown: ai.onnx first, then the other domains in the order of the
// table.
static int print_markdown(struct cli *cli)
{
    static const char head[] =
        "# Operators and their rules\n\n"
        "Look up here how an operator can be sharded. `tessera rules OP` prints the same for one "
        "operator, and\n"
        "[rules.md](rules.md) explains rules with examples. `tessera rules --markdown` writes this "
        "page from\n"
        "the table in the source; do not edit it.\n\n"
        "In `[B~ m k],[B~ k n] -> [B* m n]; red k:sum` (MatMul), each pair of brackets is a tensor "
        "and lists\n"
        "the factors of its dimensions. The words after `;` say how factors behave.\n\n"
        "| notation | meaning |\n|---|---|\n"
        "| `m` | a factor: one index of the computation. On both sides of `->`: can be sharded |\n"
        "| `A` | any number of factors |\n"
        "| `(h d)` | one dimension that consists of two factors |\n"
        "| `~` | may be broadcast |\n"
        "| `^` | a shard of the result needs a window of this dimension; neighbours exchange it "
        "|\n"
        "| `_`, `1` | a dimension that is not sharded; a dimension of size 1 |\n"
        "| `·`, `?`, `…` | a small input that controls the operator; optional; repeated |\n"
        "| `red k:sum` | can be sharded; the result is a partial sum that needs a reduction |\n"
        "| `stat r` | can be sharded; the node is then replaced by simpler nodes |\n"
        "| `gen A` | a factor that the operator creates |\n"
        "| `rep k`, `sel k` | not sharded |\n"
        "| `drop t` | the result does not depend on it |\n"
        "| `attr`, `shape`, `size`, `sizes`, `once`, `look`, `scat`, `word`, `share`, `route` | "
        "what changes in the local node |\n";
    struct coverage coverage = cover(cli->session);
    printf("%s", head);
    for (size_t k = 0; k < coverage.n; k++)
        print_domain(cli->session, &coverage.domains[k]);
    print_reasons(cli->session);
    return EXIT_DONE;
}

// ---- totals ------------------------------------------------------------------------------------

static void print_covered(const char *name, const struct covered *covered)
{
    printf("%-26s %9zu %11zu %17zu %7zu %11zu\n", name, covered->operators, covered->cut,
           covered->replaced, covered->inside, covered->whole);
}

static int print_json_summary(struct cli *cli, struct coverage *coverage)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(struct covered, "domain", domain)},
        {JSON_FIELD(struct covered, "operators", operators)},
        {JSON_FIELD(struct covered, "cut", cut)},
        {JSON_FIELD(struct covered, "replaced", replaced)},
        {JSON_FIELD(struct covered, "inside", inside)},
        {JSON_FIELD(struct covered, "whole", whole)},
        {JSON_END},
    };
    tsr_json *json = cli_json(cli);
    coverage->domains[0].domain = cli_domain("");
    tsr_json_records(json, "domains", fields, coverage->domains, coverage->n,
                     sizeof *coverage->domains);
    return cli_print_json(cli, json, EXIT_DONE);
}

static int print_summary(struct cli *cli)
{
    struct coverage coverage = cover(cli->session);
    if (cli->json)
        return print_json_summary(cli, &coverage);
    printf("%-26s %9s %11s %17s %7s %11s\n", "domain", "operators", "sharded", "by simpler nodes",
           "inside", "not sharded");
    for (size_t k = 0; k < coverage.n; k++)
        print_covered(cli_domain(coverage.domains[k].domain), &coverage.domains[k]);
    print_covered("all", &coverage.all);
    return EXIT_DONE;
}

static int print_all(struct cli *cli)
{
    tsr_rule rule = {.size = sizeof(rule)};
    tsr_json *json = cli_json_if(cli);
    tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_rule_at(cli->session, i, &rule); i++) {
        if (json)
            print_json_rule(json, &rule);
        else
            print_line(&rule);
    }
    tsr_json_end(json);
    struct covered all = cover(cli->session).all;
    cli_print(cli, "%zu rows for %zu operators, %zu of which can be sharded\n", all.rows,
              all.operators, all.cut);
    return cli_end(cli, json, EXIT_DONE);
}

static const char *near_operator(const struct cli *cli, const char *op)
{
    tsr_rule rule = {.size = sizeof rule};
    size_t n = 0;
    const char **names = cli_alloc(cover(cli->session).all.rows + 1, sizeof *names);
    for (; tsr_rule_at(cli->session, n, &rule); n++)
        names[n] = rule.op;
    return tsr_nearest(op, names, n);
}

// Prints the rules of an operator in all domains and versions. The case of the name does not
// matter.
static int print_operator(struct cli *cli, const char *op)
{
    tsr_rule rule = {.size = sizeof(rule)};
    size_t found = 0;
    tsr_json *json = cli_json_if(cli);
    tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_rule_at(cli->session, i, &rule); i++) {
        if (strcasecmp(rule.op, op) != 0)
            continue;
        if (json)
            print_json_rule(json, &rule);
        else
            print_rule(&rule);
        found++;
    }
    tsr_json_end(json);
    if (!found)
        fprintf(stderr,
                "tessera rules: no rule for '%s': its nodes are replicated on every device%s\n", op,
                cli_did_you_mean(near_operator(cli, op)));
    return cli_end(cli, json, found ? EXIT_DONE : EXIT_NO);
}

static int run_rules(struct cli *cli)
{
    bool markdown = cli_flag(cli, "--markdown");
    if (markdown && cli->json)
        return cli_usage(cli, "--markdown and --json exclude each other");
    if (markdown)
        return print_markdown(cli);
    if (cli_flag(cli, "--summary"))
        return print_summary(cli);
    return cli->n_arguments ? print_operator(cli, cli->arguments[0]) : print_all(cli);
}

static const struct option options[] = {
    {"--markdown", NULL, "print the table as Markdown"},
    {"--summary", NULL, "print the number of operators by domain"},
    END_OF_OPTIONS,
};

const struct command cmd_rules = {
    .name = "rules",
    .arguments = "[OP]",
    .summary = "explain how an operator can be sharded, or list all operators",
    .example = "tessera rules MatMul",
    .options = options,
    .takes = {0, 1},
    .run = run_rules,
};
