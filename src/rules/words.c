// SPDX-License-Identifier: Apache-2.0
// words.c - a row of the table in words, for people: what each factor may do, what the local node
// has rewritten, what an operator without a rule lacks. Says nothing that the row does not say.
#include "rules/internal.h"

static const char *const combines[] = {[COMBINE_SUM] = "sum",
                                       [COMBINE_MAX] = "max",
                                       [COMBINE_MIN] = "min",
                                       [COMBINE_PROD] = "product"};

// Letters of one kind, "B, m and n"; nothing if there are none.
static struct str list_letters(struct arena *a, const struct pattern *p, const bool *in)
{
    struct str s = STR("");
    int total = 0, n = 0;
    for (int i = 0; i < p->n_letters; i++)
        total += in[i];
    for (int i = 0; i < p->n_letters; i++)
        if (in[i]) {
            const char *sign = n == 0 ? "" : n == total - 1 ? " and " : ", ";
            s = tsr__arena_printf(a, STR_FMT "%s" STR_FMT, STR_ARG(s), sign,
                                  STR_ARG(p->letters[i].name));
            n++;
        }
    return s;
}

static struct str say(struct arena *a, struct str so_far, struct str letters, const char *what)
{
    return letters.n ? tsr__arena_printf(a, STR_FMT STR_FMT ": %s\n", STR_ARG(so_far),
                                         STR_ARG(letters), what)
                     : so_far;
}

// What a letter may do; -1 - combine stands for a reduction.
enum role { ROLE_PASS, ROLE_WINDOW, ROLE_MADE, ROLE_STAT, ROLE_WHOLE, ROLE_RED };

// A part of the result needs a window of a dimension that the letter makes.
static bool has_window(const struct pattern *p, int letter)
{
    for (int i = 0; i < p->n_inputs; i++)
        for (int k = 0; k < p->inputs[i].n_dims; k++)
            if (p->inputs[i].dims[k].window && p->inputs[i].dims[k].letters[0] == letter)
                return true;
    return false;
}

static enum role role_of(const struct pattern *p, int i)
{
    const struct letter *l = &p->letters[i];
    if (l->kind == FACTOR_RED)
        return ROLE_RED;
    if (l->kind == FACTOR_STAT)
        return ROLE_STAT;
    if (l->kind == FACTOR_REP)
        return ROLE_WHOLE;
    if (has_window(p, i))
        return ROLE_WINDOW;
    return l->in ? ROLE_PASS : ROLE_MADE;
}

static struct str group(struct arena *a, const struct pattern *p, enum role role, int combine)
{
    bool in[PATTERN_MAX_LETTERS];
    for (int i = 0; i < p->n_letters; i++)
        in[i] =
            role_of(p, i) == role && (role != ROLE_RED || (int)p->letters[i].combine == combine);
    return list_letters(a, p, in);
}

static struct str say_factors(struct arena *a, const struct pattern *p, struct str s)
{
    s = say(a, s, group(a, p, ROLE_PASS, 0),
            "may be cut; every tensor that has it is cut alike, nothing is exchanged");
    s = say(
        a, s, group(a, p, ROLE_WINDOW, 0),
        "may be cut where sizes are known; neighbours exchange what a part needs of the others");
    s = say(a, s, group(a, p, ROLE_MADE, 0), "made by the operator; may be cut");
    for (int c = COMBINE_SUM; c <= COMBINE_PROD; c++) {
        struct str what = tsr__arena_printf(
            a, "may be cut; each device has a partial result, which are combined by %s",
            combines[c]);
        s = say(a, s, group(a, p, ROLE_RED, c), what.p ? what.p : "");
    }
    s = say(a, s, group(a, p, ROLE_STAT, 0),
            "may be cut; the node is then replaced by simpler ones that exchange what they need");
    s = say(a, s, group(a, p, ROLE_WHOLE, 0), "whole on every device");
    for (int i = 0; i < p->n_letters; i++)
        if (p->letters[i].unit > 1)
            s = tsr__arena_printf(a, STR_FMT STR_FMT ": cut only between units of %lld\n",
                                  STR_ARG(s), STR_ARG(p->letters[i].name),
                                  (long long)p->letters[i].unit);
    return s;
}

static struct str say_rewrites(struct arena *a, const struct pattern *p, struct str s)
{
    for (int i = 0; i < p->n_rewrites; i++) {
        const struct rule_rewrite *w = &p->rewrites[i];
        if (w->kind == REWRITE_SHAPE)
            s = tsr__arena_printf(a, STR_FMT "local node: input %d holds local sizes\n", STR_ARG(s),
                                  w->index);
        else if (w->kind == REWRITE_ADD_ONCE)
            s = tsr__arena_printf(
                a, STR_FMT "local node: input %d is added on one device of a reduction only\n",
                STR_ARG(s), w->index);
        else if (w->kind == REWRITE_SIZES || w->kind == REWRITE_SIZE)
            s = tsr__arena_printf(a, STR_FMT "local node: replaced by sizes of the whole tensor\n",
                                  STR_ARG(s));
        else if (w->kind == REWRITE_LOOKUP)
            s = tsr__arena_printf(a,
                                  STR_FMT "local node: elements of input %d that address another "
                                          "part of " STR_FMT " give 0\n",
                                  STR_ARG(s), w->index, STR_ARG(p->letters[w->factor].name));
        else if (w->kind == REWRITE_SCATTER)
            s = tsr__arena_printf(a,
                                  STR_FMT "local node: elements of input %d that address another "
                                          "part of " STR_FMT " change nothing\n",
                                  STR_ARG(s), w->index, STR_ARG(p->letters[w->factor].name));
        else if (w->kind == REWRITE_RANGE)
            s = tsr__arena_printf(
                a, STR_FMT "local node: inputs %d and %d are those of its own " STR_FMT "\n",
                STR_ARG(s), w->index, w->index + 1, STR_ARG(p->letters[w->factor].name));
        else if (w->kind == REWRITE_WORD)
            s = tsr__arena_printf(
                a, STR_FMT "local node: attribute %s is the word for its own " STR_FMT " (%s)\n",
                STR_ARG(s), w->name, STR_ARG(p->letters[w->factor].name), w->words);
        else if (w->kind == REWRITE_ATTR || w->kind == REWRITE_SHARE)
            s = tsr__arena_printf(
                a, STR_FMT "local node: attribute %s is that of its own " STR_FMT "\n", STR_ARG(s),
                w->name, STR_ARG(p->letters[w->factor].name));
    }
    return s;
}

static struct str words_of(struct arena *a, const struct op_row *row)
{
    const char *wrong;
    struct str s = STR("");
    if (row->whole)
        s = tsr__arena_printf(a, "never cut: %s\n", row->whole);
    struct pattern *p =
        row->rule && !row->whole ? tsr__pattern_parse(a, str_of(row->rule), &wrong) : NULL;
    if (p) {
        s = say_factors(a, p, s);
        s = say_rewrites(a, p, s);
    }
    if (row->note)
        s = tsr__arena_printf(a, STR_FMT "%s\n", STR_ARG(s), row->note);
    return s;
}

bool tsr_rule_at(tsr_session *s, size_t i, tsr_rule *out)
{
    if (i >= tsr__op_table_count)
        return false;
    struct arena *a = &s->results[RESULT_RULES];
    const struct op_row *row = &tsr__op_table[i];
    tsr__arena_free(a);
    struct str words = words_of(a, row);
    tsr_rule r = {.op = row->op,
                  .domain = row->domain ? row->domain : "",
                  .since = row->since,
                  .rule = row->rule ? row->rule : "",
                  .note = row->note ? row->note : "",
                  .whole = row->whole ? row->whole : "",
                  .words = words.p ? words.p : "",
                  .bodies = row->bodies};
    size_t n = out->size < sizeof(r) ? out->size : sizeof(r);
    r.size = out->size;
    memcpy(out, &r, n);
    return true;
}
