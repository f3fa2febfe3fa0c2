// SPDX-License-Identifier: Apache-2.0
// user_rules.c - rows that a user adds for custom operators, in the notation that `tessera rules`
// prints:
//
//   OPERATOR DOMAIN SINCE RULE        Twice  my.ops  1  [A*] -> [A*]
//   OPERATOR DOMAIN SINCE whole: WHY
//
// One row per line; # starts a comment. The rows belong to a session and cannot replace rows of the
// table. The text is not trusted, and only clauses that need no other code are accepted.
#include "rules/internal.h"

#define MAX_ROWS 1024
#define MAX_TEXT ((size_t)1 << 20) // largest text in bytes

struct user_row {
    struct op_row row;
    struct user_row *next;
};

// Takes the first word, up to a blank or tab, from *line.
static struct str first_word(struct str *line)
{
    size_t at = 0, end;
    while (at < line->n && (line->p[at] == ' ' || line->p[at] == '\t'))
        at++;
    for (end = at; end < line->n && line->p[end] != ' ' && line->p[end] != '\t';)
        end++;
    struct str word = {line->p + at, end - at};
    *line = (struct str){line->p + end, line->n - end};
    return word;
}

static struct str trimmed(struct str text)
{
    while (text.n && strchr(" \t\r", text.p[0]))
        text = (struct str){text.p + 1, text.n - 1};
    while (text.n && strchr(" \t\r", text.p[text.n - 1]))
        text.n--;
    return text;
}

// Returns why users may not write this rule, although it is valid; NULL: they may write it.
static const char *reserved_clause(const struct pattern *pattern)
{
    static const char why[] =
        "only red, rep, blk, gen, drop, shape, once and attr are allowed for custom operators";
    if (pattern->n_windows || pattern->n_lists || pattern->n_trims)
        return why;
    for (int i = 0; i < pattern->n_rewrites; i++) {
        enum rewrite_kind kind = pattern->rewrites[i].kind;
        if (kind != REWRITE_SHAPE && kind != REWRITE_ADD_ONCE && kind != REWRITE_ATTR)
            return why;
    }
    for (int i = 0; i < pattern->n_letters; i++)
        if (pattern->letters[i].kind == FACTOR_STAT)
            return why;
    return NULL;
}

// Returns the error in the text of a rule, so that it can be reported with its line; NULL: none.
static const char *check_rule(tsr_session *session, struct str text)
{
    const char *wrong = NULL;
    struct arena scratch = {.session = session};
    const struct pattern *pattern = tsr__pattern_parse(&scratch, text, &wrong);
    if (pattern)
        wrong = reserved_clause(pattern);
    else if (!wrong)
        wrong = "the rule cannot be read";
    tsr__arena_free(&scratch);
    return wrong;
}

// Returns the newest row of the user that is not above the opset, as in the table.
static const struct op_row *find_user(const tsr_session *session, struct str op, struct str domain,
                                      int64_t opset)
{
    const struct op_row *found = NULL;
    for (const struct user_row *row = session->user_rules; row; row = row->next) {
        bool same =
            str_is(op, row->row.op) && str_is(domain, row->row.domain ? row->row.domain : "");
        if (same && row->row.since <= opset && (!found || row->row.since > found->since))
            found = &row->row;
    }
    return found;
}

// Returns the row of an operator. Users cannot add rows for an operator of the table (read_row), so
// the order of the search does not matter. Opset 0: the model does not import the domain. ONNX
// Runtime runs such a model with the newest version of every domain except ai.onnx.
const struct op_row *tsr__row_find(const tsr_session *session, struct str op, struct str domain,
                                   int64_t opset)
{
    if (opset == 0 && domain.n)
        opset = INT64_MAX;
    const struct op_row *own = find_user(session, op, domain, opset);
    return own ? own : tsr__row_in_table(op, domain, opset);
}

const struct op_row *tsr__row_of_node(const tsr_node *node)
{
    return tsr__row_find(tsr_model_session(tsr_graph_model(tsr_node_graph(node))),
                         tsr__node_op_str(node), tsr__node_domain_str(node), tsr__node_opset(node));
}

// Reads one line into *row, whose texts are in the arena. Returns the error, or NULL.
static const char *read_row(tsr_session *session, struct arena *arena, struct str line,
                            struct op_row *row)
{
    struct str op = first_word(&line), domain = first_word(&line), since = first_word(&line);
    struct str text = trimmed(line);
    *row = (struct op_row){0};
    if (!text.n)
        return "expected OPERATOR DOMAIN SINCE RULE";
    if (!tsr__str_int(since, &row->since) || row->since < 1)
        return "expected the first opset, 1 or more, before the rule";
    if (str_is(domain, "ai.onnx"))
        domain = STR("");
    // Rows of the table are tested, so users cannot replace them for any opset.
    if (tsr__row_in_table(op, domain, INT64_MAX))
        return "there is a rule for this operator already";
    row->op = tsr__arena_str(arena, op).p;
    row->domain = tsr__arena_str(arena, domain).p;
    bool whole = text.n > 6 && memcmp(text.p, "whole:", 6) == 0;
    if (whole)
        text = trimmed((struct str){text.p + 6, text.n - 6});
    const char *wrong = whole ? NULL : check_rule(session, text);
    const char *kept = tsr__arena_str(arena, text).p;
    if (whole)
        row->whole = kept;
    else
        row->rule = kept;
    return wrong;
}

// Reports an error with its line. Reading stops at the first error.
static tsr_status wrong_line(tsr_session *session, const char *file, size_t line, const char *what)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_rule_text, &PLACE(.file = str_of(file)),
                     "write rows as `tessera rules` prints them: Twice my.ops 1 [A*] -> [A*]",
                     "line %zu: %s", line, what);
}

// Adds the rows of a rule file: all or none.
static tsr_status add_rows(tsr_session *session, const char *file, struct str text)
{
    struct arena *arena = &session->results[RESULT_USER_RULES];
    struct user_row *rows = session->user_rules;
    size_t n = 0, number = 1;
    if (text.n > MAX_TEXT)
        return wrong_line(session, file, 1, "the text is too long");
    for (size_t at = 0; at < text.n; number++) {
        const char *end = memchr(text.p + at, '\n', text.n - at);
        size_t length = end ? (size_t)(end - text.p) - at : text.n - at;
        struct str line = trimmed((struct str){text.p + at, length});
        at += length + 1;
        if (!line.n || line.p[0] == '#')
            continue;
        if (n++ == MAX_ROWS)
            return wrong_line(session, file, number, "there are too many rows");
        struct user_row *row = ARENA_NEW(arena, struct user_row);
        if (!row)
            return TSR_NOMEM;
        const char *wrong = read_row(session, arena, line, &row->row);
        if (arena->failed)
            return TSR_NOMEM;
        if (wrong)
            return wrong_line(session, file, number, wrong);
        row->next = rows;
        rows = row;
    }
    session->user_rules = rows;
    return TSR_OK;
}

tsr_status tsr_rules_add(tsr_session *session, const char *rows)
{
    return session ? add_rows(session, "", str_of(rows)) : TSR_INVALID;
}

// Reads rules from a file. The rows hold copies of its text.
tsr_status tsr_rules_read(tsr_session *session, const char *path)
{
    if (!session)
        return TSR_INVALID;
    struct str text;
    struct arena scratch = {.session = session};
    tsr_status status = tsr__file_read(session, &scratch, path, MAX_TEXT, &text);
    if (status == TSR_OK)
        status = add_rows(session, path, text);
    tsr__arena_free(&scratch);
    return status;
}
