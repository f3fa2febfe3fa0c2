// SPDX-License-Identifier: Apache-2.0
// words.c - a row of the table in words, for people: what each factor allows, what is rewritten in
// the local node, what an operator without a rule lacks.
//
//   B, m and n: can be sharded, equally in every tensor that has it, without communication
//   k: can be sharded; each device has a partial result, combined by sum
#include "rules/internal.h"

static const char *const combines[] = {[COMBINE_SUM] = "sum",
                                       [COMBINE_MAX] = "max",
                                       [COMBINE_MIN] = "min",
                                       [COMBINE_PROD] = "product"};

// Letters of one kind, "B, m and n"; empty if there are none.
static struct str list_letters(struct arena *arena, const struct pattern *pattern, const bool *in)
{
    struct str text = STR("");
    int total = 0, n = 0;
    for (int i = 0; i < pattern->n_letters; i++)
        total += in[i];
    for (int i = 0; i < pattern->n_letters; i++)
        if (in[i]) {
            const char *sign = n == total - 1 ? " and " : ", ";
            if (n == 0)
                sign = "";
            text = tsr__arena_printf(arena, STR_FMT "%s" STR_FMT, STR_ARG(text), sign,
                                     STR_ARG(pattern->letters[i].name));
            n++;
        }
    return text;
}

// Adds a line "LETTERS: what", or nothing where no letter has that role.
static struct str say(struct arena *arena, struct str so_far, struct str letters, const char *what)
{
    if (letters.n)
        return tsr__arena_printf(arena, STR_FMT STR_FMT ": %s\n", STR_ARG(so_far), STR_ARG(letters),
                                 what);
    return so_far;
}

// What a letter may do; with ROLE_RED goes how its parts are combined.
enum role { ROLE_PASS, ROLE_WINDOW, ROLE_MADE, ROLE_STAT, ROLE_WHOLE, ROLE_RED };

// A part of the result needs a window of a dimension that the letter makes.
static bool has_window(const struct pattern *pattern, int letter)
{
    for (int i = 0; i < pattern->n_inputs; i++)
        for (int k = 0; k < pattern->inputs[i].n_dims; k++)
            if (pattern->inputs[i].dims[k].window &&
                pattern->inputs[i].dims[k].letters[0] == letter)
                return true;
    return false;
}

// What a factor does, by where it stands and by its clause: the headings of the text.
static enum role role_of(const struct pattern *pattern, int i)
{
    const struct letter *letter = &pattern->letters[i];
    if (letter->kind == FACTOR_RED)
        return ROLE_RED;
    if (letter->kind == FACTOR_STAT)
        return ROLE_STAT;
    if (letter->kind == FACTOR_REP)
        return ROLE_WHOLE;
    if (has_window(pattern, i))
        return ROLE_WINDOW;
    return letter->in ? ROLE_PASS : ROLE_MADE;
}

// Letters of one role; of reductions those that combine so.
static struct str group(struct arena *arena, const struct pattern *pattern, enum role role,
                        int combine)
{
    bool in[PATTERN_MAX_LETTERS];
    for (int i = 0; i < pattern->n_letters; i++)
        in[i] = role_of(pattern, i) == role &&
                (role != ROLE_RED || (int)pattern->letters[i].combine == combine);
    return list_letters(arena, pattern, in);
}

// One line for each role that any letter has, in the order in which a reader asks: what may be
// cut for nothing first, what must stay whole last; then the units of letters that have them.
static struct str say_factors(struct arena *arena, const struct pattern *pattern, struct str text)
{
    text = say(arena, text, group(arena, pattern, ROLE_PASS, 0),
               "may be cut; every tensor that has it is cut alike, nothing is exchanged");
    text = say(
        arena, text, group(arena, pattern, ROLE_WINDOW, 0),
        "may be cut where sizes are known; neighbours exchange what a part needs of the others");
    text =
        say(arena, text, group(arena, pattern, ROLE_MADE, 0), "made by the operator; may be cut");
    for (int c = COMBINE_SUM; c <= COMBINE_PROD; c++) {
        struct str what = tsr__arena_printf(
            arena, "may be cut; each device has a partial result, which are combined by %s",
            combines[c]);
        text = say(arena, text, group(arena, pattern, ROLE_RED, c), what.p ? what.p : "");
    }
    text =
        say(arena, text, group(arena, pattern, ROLE_STAT, 0),
            "may be cut; the node is then replaced by simpler ones that exchange what they need");
    for (int i = 0; i < pattern->n_letters; i++)
        if (pattern->letters[i].unit > 1)
            text = tsr__arena_printf(arena, STR_FMT STR_FMT ": cut only between units of %lld\n",
                                     STR_ARG(text), STR_ARG(pattern->letters[i].name),
                                     (long long)pattern->letters[i].unit);
    return text;
}

// ---- what stays whole --------------------------------------------------------------------------

// The word at the front of a list of names, which is taken from it; empty at the end.
static struct str next_name(const char **names)
{
    while (**names == ' ')
        (*names)++;
    struct str name = {*names, strcspn(*names, " ")};
    *names += name.n;
    return name;
}

// A pack matches its members: S for S0 and S1; and a row with "s" means the s0, s1 of a node.
static bool names_factor(struct str name, struct str factor)
{
    if (str_eq(name, factor))
        return true;
    if (name.n != 1 || factor.n < 2 || (name.p[0] | 0x20) != (factor.p[0] | 0x20))
        return false;
    for (size_t i = 1; i < factor.n; i++)
        if (factor.p[i] < '0' || factor.p[i] > '9')
            return false;
    return true;
}

// The first reason that names the factor. Where a partition cannot cut a node it quotes this text.
const char *tsr__row_stays(const struct op_row *row, struct str factor)
{
    for (const struct stay *stay = row->stays; stay && stay->factors; stay++) {
        const char *names = stay->factors;
        for (struct str name = next_name(&names); name.n; name = next_name(&names))
            if (names_factor(name, factor))
                return stay->why;
    }
    return NULL;
}

// "f and c: whole on every device: any tree may ask for any feature": a line for each reason, then
// what has none.
static struct str say_stays(struct arena *arena, const struct op_row *row,
                            const struct pattern *pattern, struct str text)
{
    bool left[PATTERN_MAX_LETTERS];
    for (int i = 0; i < pattern->n_letters; i++)
        left[i] = role_of(pattern, i) == ROLE_WHOLE;
    for (const struct stay *stay = row->stays; stay && stay->factors; stay++) {
        bool in[PATTERN_MAX_LETTERS];
        for (int i = 0; i < pattern->n_letters; i++) {
            in[i] = left[i] && tsr__row_stays(row, pattern->letters[i].name) == stay->why;
            left[i] = left[i] && !in[i];
        }
        struct str what = tsr__arena_printf(arena, "whole on every device: %s", stay->why);
        text = say(arena, text, list_letters(arena, pattern, in), what.p ? what.p : "");
        // Dimensions without a letter have a reason of their own.
        if (strchr(stay->factors, '_'))
            text = say(arena, text, STR("dimensions _"), what.p ? what.p : "");
    }
    return say(arena, text, list_letters(arena, pattern, left), "whole on every device");
}

// The reasons as one text: "t: each step needs the one before; w: ...".
static const char *stays_text(struct arena *arena, const struct op_row *row)
{
    struct str text = STR("");
    for (const struct stay *stay = row->stays; stay && stay->factors; stay++)
        text = tsr__arena_printf(arena, STR_FMT "%s%s: %s", STR_ARG(text), text.n ? "; " : "",
                                 stay->factors, stay->why);
    return text_or_none(text.p);
}

// One line for each way in which the node of a device differs from the node of the model.
// Only what rows of the table use; windows and lists are made by derive functions and not shown.
static struct str say_rewrites(struct arena *arena, const struct pattern *pattern, struct str text)
{
    for (int i = 0; i < pattern->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &pattern->rewrites[i];
        if (rewrite->kind == REWRITE_SHAPE)
            text = tsr__arena_printf(arena, STR_FMT "local node: input %d holds local sizes\n",
                                     STR_ARG(text), rewrite->index);
        else if (rewrite->kind == REWRITE_ADD_ONCE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: input %d is added on one device of a reduction only\n",
                STR_ARG(text), rewrite->index);
        else if (rewrite->kind == REWRITE_SIZES || rewrite->kind == REWRITE_SIZE)
            text = tsr__arena_printf(arena,
                                     STR_FMT "local node: replaced by sizes of the whole tensor\n",
                                     STR_ARG(text));
        else if (rewrite->kind == REWRITE_LOOKUP)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: elements of input %d that address another "
                        "part of " STR_FMT " give 0\n",
                STR_ARG(text), rewrite->index, STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_SCATTER)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: elements of input %d that address another "
                        "part of " STR_FMT " change nothing\n",
                STR_ARG(text), rewrite->index, STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_RANGE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: inputs %d and %d are those of its own " STR_FMT "\n",
                STR_ARG(text), rewrite->index, rewrite->index + 1,
                STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_WORD)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: attribute %s is the word for its own " STR_FMT " (%s)\n",
                STR_ARG(text), rewrite->name, STR_ARG(pattern->letters[rewrite->factor].name),
                rewrite->words);
        else if (rewrite->kind == REWRITE_ATTR || rewrite->kind == REWRITE_SHARE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: attribute %s is that of its own " STR_FMT "\n",
                STR_ARG(text), rewrite->name, STR_ARG(pattern->letters[rewrite->factor].name));
    }
    return text;
}

// What each kind of factor may do, a line each, then what is rewritten; a row that stays whole says
// why.
static struct str words_of(struct arena *arena, const struct op_row *row)
{
    const char *wrong;
    struct str text = STR("");
    if (row->whole)
        text = tsr__arena_printf(arena, "never cut: %s\n", row->whole);
    // Parsed anew: the table holds texts.
    struct pattern *pattern =
        row->rule && !row->whole ? tsr__pattern_parse(arena, str_of(row->rule), &wrong) : NULL;
    if (pattern) {
        text = say_factors(arena, pattern, text);
        text = say_stays(arena, row, pattern, text);
        text = say_rewrites(arena, pattern, text);
    }
    if (row->note)
        text = tsr__arena_printf(arena, STR_FMT "%s\n", STR_ARG(text), row->note);
    return text;
}

// Texts that are generated from the row belong to the session and are freed by the next call.
bool tsr_rule_at(tsr_session *session, size_t i, tsr_rule *out)
{
    const struct op_row *row = tsr__row_at(i);
    if (!row || !out)
        return false;
    struct arena *arena = &session->results[RESULT_RULES];
    tsr__arena_free(arena);
    struct str words = words_of(arena, row);
    tsr_rule rule = {.op = row->op,
                     .domain = text_or_none(row->domain),
                     .since = row->since,
                     .rule = text_or_none(row->rule),
                     .note = text_or_none(row->note),
                     .whole = text_or_none(row->whole),
                     .words = text_or_none(words.p),
                     .stays = stays_text(arena, row),
                     .bodies = row->bodies};
    size_t n = out->size < sizeof(rule) ? out->size : sizeof(rule);
    rule.size = out->size;
    memcpy(out, &rule, n);
    return true;
}
