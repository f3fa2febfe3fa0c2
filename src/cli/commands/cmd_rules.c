// SPDX-License-Identifier: Apache-2.0
// cmd_rules.c - how an operator may be cut, in words; alone, the list of all operators; or the
// whole table as Markdown, which docs/operators.md is made with.
//
// Four forms: `rules` lists a line for each row, `rules OP` explains the rows of one operator in
// words, `--summary` counts operators by domain, `--markdown` prints docs/operators.md. A row is an
// operator of a domain from an opset on; rows of one operator stand together, the oldest first.
// tsr_rule_at fills a row at a time; its `words` and `stays` are made anew by each call, its other
// texts are the table's own.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *domain_name(const tsr_rule *rule)
{
    return cli_domain(rule->domain);
}

// `whole` is null where the operator may be cut; else it is the reason why not.
static void print_json_rule(tsr_json *json, const tsr_rule *rule)
{
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "op", rule->op);
    tsr_json_string(json, "domain", rule->domain);
    tsr_json_int(json, "since", rule->since);
    tsr_json_string(json, "rule", rule->rule);
    tsr_json_string(json, "whole", cli_text_or(rule->whole, NULL));
    tsr_json_string(json, "note", rule->note);
    tsr_json_string(json, "stays", rule->stays);
    tsr_json_end(json);
}

// `words` has several lines, each indented below the operator.
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

// One line of the list: the rule, or why the operator stays whole.
static void print_line(const tsr_rule *rule)
{
    printf("%-28s %-14s %4lld  %s%s\n", rule->op, domain_name(rule), (long long)rule->since,
           cli_text_if(rule->whole[0], "whole: "), cli_text_or(rule->whole, rule->rule));
}

// A cell of a Markdown table: bars would end it.
static void print_cell(const char *text)
{
    for (; *text; text++)
        printf("%s%c", cli_text_if(*text == '|', "\\"), *text);
}

// One row of a table in Markdown. The rule stands in backquotes, where bars still end a cell.
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

// Rows of the table; operators, however many rows each has; operators of which some row may be cut.
struct counts {
    size_t rows, operators, cut;
};

// Operators, counted once each, of a domain (NULL: all); cut: with a rule by which they may be cut.
static struct counts count(tsr_session *session, const char *domain)
{
    struct counts n = {0};
    char last[128] = "";
    bool last_cut = false;
    tsr_rule rule = {.size = sizeof(rule)};
    for (size_t i = 0; tsr_rule_at(session, i, &rule); i++) {
        char key[128];
        if (domain && strcmp(domain, rule.domain) != 0)
            continue;
        snprintf(key, sizeof key, "%s:%s", rule.domain, rule.op);
        // The key differs from that of the row before: another operator begins.
        bool fresh = strcmp(key, last) != 0;
        n.rows++;
        n.operators += fresh;
        last_cut = last_cut && !fresh;
        if (!rule.whole[0] && !last_cut) {
            n.cut++;
            last_cut = true;
        }
        snprintf(last, sizeof last, "%s", key);
    }
    return n;
}

static void print_domain(tsr_session *session, const char *domain)
{
    tsr_rule rule = {.size = sizeof(rule)};
    struct counts n = count(session, domain);
    printf("\n## %s\n\n%zu operators, %zu of them can be sharded.\n\n", cli_domain(domain),
           n.operators, n.cut);
    printf("| operator | from opset | rule | note |\n|---|---|---|---|\n");
    for (size_t i = 0; tsr_rule_at(session, i, &rule); i++)
        if (strcmp(rule.domain, domain) == 0)
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

// Prints ai.onnx first, then the other domains in the order of the table.
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
        "| `attr`, `shape`, `size`, `sizes`, `once`, `look`, `scat`, `word`, `share` | what "
        "changes in "
        "the local node |\n";
    // Domains in the order in which the table first names them.
    const char *domains[32];
    size_t n = 0;
    tsr_rule rule = {.size = sizeof(rule)};
    printf("%s", head);
    for (size_t i = 0; tsr_rule_at(cli->session, i, &rule); i++) {
        size_t k = 0;
        while (k < n && strcmp(domains[k], rule.domain) != 0)
            k++;
        if (k == n && n < sizeof domains / sizeof *domains)
            domains[n++] = rule.domain;
    }
    for (size_t k = 0; k < n; k++) // the standard's own first
        if (!domains[k][0])
            print_domain(cli->session, domains[k]);
    for (size_t k = 0; k < n; k++)
        if (domains[k][0])
            print_domain(cli->session, domains[k]);
    print_reasons(cli->session);
    return EXIT_DONE;
}

// ---- the summary: what is covered -----------------------------------------------------------------

#define MAX_DOMAINS 32

// Of one domain: operators; those that may be cut; of these, those that are replaced by simpler
// nodes to be cut, and those whose bodies are cut inside; those that stay whole.
struct covered {
    const char *domain;
    size_t operators, cut, replaced, inside, whole;
};

// The newest row of an operator counts.
static void count_operator(struct covered *covered, const tsr_rule *rule)
{
    covered->operators++;
    covered->whole += rule->whole[0] != 0;
    covered->cut += !rule->whole[0];
    covered->replaced += !rule->whole[0] && strstr(rule->rule, "stat ");
    covered->inside += !rule->whole[0] && rule->bodies;
}

// The entry of that domain, made if it is new; NULL: there are MAX_DOMAINS others.
static struct covered *domain_at(struct covered *list, size_t *n, const char *domain)
{
    size_t k = 0;
    while (k < *n && strcmp(list[k].domain, domain) != 0)
        k++;
    if (k == *n && *n < MAX_DOMAINS)
        list[(*n)++] = (struct covered){.domain = domain};
    if (k == MAX_DOMAINS)
        return NULL;
    return &list[k];
}

static void print_covered(const char *name, const struct covered *covered)
{
    printf("%-26s %9zu %11zu %17zu %7zu %11zu\n", name, covered->operators, covered->cut,
           covered->replaced, covered->inside, covered->whole);
}

static int print_json_summary(struct cli *cli, const struct covered *list, size_t n)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_DONE);
    tsr_json_begin(json, "domains", '[');
    for (size_t k = 0; k < n; k++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "domain", cli_domain(list[k].domain));
        tsr_json_int(json, "operators", (int64_t)list[k].operators);
        tsr_json_int(json, "cut", (int64_t)list[k].cut);
        tsr_json_int(json, "replaced", (int64_t)list[k].replaced);
        tsr_json_int(json, "inside", (int64_t)list[k].inside);
        tsr_json_int(json, "whole", (int64_t)list[k].whole);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    return cli_print_json(cli, json, EXIT_DONE);
}

// Only the newest row of an operator counts: rows of one operator stand together, the newest last.
static int print_summary(struct cli *cli)
{
    struct covered list[MAX_DOMAINS], all = {0};
    size_t n = 0;
    tsr_rule rule = {.size = sizeof(rule)}, next = {.size = sizeof(next)};
    domain_at(list, &n, ""); // the standard's own first
    for (size_t i = 0; tsr_rule_at(cli->session, i, &rule); i++) {
        struct covered *covered = domain_at(list, &n, rule.domain);
        tsr_rule now = rule; // its texts that are not the table's own go with the next
        if (tsr_rule_at(cli->session, i + 1, &next) && !strcmp(next.op, now.op) &&
            !strcmp(next.domain, now.domain))
            continue;
        if (covered)
            count_operator(covered, &now);
        count_operator(&all, &now);
    }
    if (cli->json)
        return print_json_summary(cli, list, n);
    printf("%-26s %9s %11s %17s %7s %11s\n", "domain", "operators", "may be cut",
           "by simpler nodes", "inside", "stay whole");
    for (size_t k = 0; k < n; k++)
        print_covered(cli_domain(list[k].domain), &list[k]);
    print_covered("all", &all);
    return EXIT_DONE;
}

// The count is a remark, on stderr, so that stdout is the list alone.
static int print_all(struct cli *cli)
{
    tsr_rule rule = {.size = sizeof(rule)};
    tsr_json *json = cli_json_if(cli);
    if (json)
        tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_rule_at(cli->session, i, &rule); i++) {
        if (json)
            print_json_rule(json, &rule);
        else
            print_line(&rule);
    }
    if (json)
        tsr_json_end(json);
    struct counts n = count(cli->session, NULL);
    cli_say(cli, "%zu rows for %zu operators, %zu of which may be cut\n", n.rows, n.operators,
            n.cut);
    return cli_end(cli, json, EXIT_DONE);
}

// The operator that was probably meant, or NULL. The names are the table's own and stay valid.
static const char *near_operator(const struct cli *cli, const char *op)
{
    tsr_rule rule = {.size = sizeof rule};
    size_t n = 0;
    const char **names = cli_alloc(count(cli->session, NULL).rows + 1, sizeof *names);
    for (; tsr_rule_at(cli->session, n, &rule); n++)
        names[n] = rule.op;
    const char *near = tsr_nearest(op, names, n);
    free(names);
    return near;
}

// An operator may have several rules, by domain and by the version since which it holds; all are
// shown.
static int print_operator(struct cli *cli, const char *op)
{
    tsr_rule rule = {.size = sizeof(rule)};
    size_t found = 0;
    tsr_json *json = cli_json_if(cli);
    if (json)
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
    if (json)
        tsr_json_end(json);
    if (!found)
        fprintf(stderr,
                "tessera rules: no rule for '%s': such a node is replicated on every device%s\n",
                op, cli_did_you_mean(near_operator(cli, op)));
    int code = EXIT_DONE;
    if (!found)
        code = EXIT_NO;
    return cli_end(cli, json, code);
}

// An operator's name is compared without regard to case: `rules matmul` works.
static int run(struct cli *cli)
{
    bool markdown = cli_flag(cli, "--markdown");
    if (markdown && cli->json)
        return cli_usage(cli, "--markdown and --json are two documents: give one");
    if (markdown)
        return print_markdown(cli);
    if (cli_flag(cli, "--summary"))
        return print_summary(cli);
    if (cli->n_arguments)
        return print_operator(cli, cli->arguments[0]);
    return print_all(cli);
}

static const struct option options[] = {
    {"--markdown", NULL, "the whole table as a Markdown document"},
    {"--summary", NULL, "how many operators are covered, and how"},
    END_OF_OPTIONS,
};

const struct command cmd_rules = {
    .name = "rules",
    .arguments = "[OP]",
    .summary = "how an operator may be cut; alone, all operators",
    .example = "tessera rules MatMul",
    .options = options,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run,
};
