// SPDX-License-Identifier: Apache-2.0
// words.c - describes a row of the table in words: what each factor allows, and what changes in the
// local node.
//
//   B, m and n: can be sharded, equally in every tensor that has it, without communication
//   k: can be sharded; each device has a partial result, combined by sum
#include "rules/internal.h"

static const char *const combines[] = {[COMBINE_SUM] = "sum",
                                       [COMBINE_MAX] = "max",
                                       [COMBINE_MIN] = "min",
                                       [COMBINE_PROD] = "product"};

// Returns the letters in the set: "B, m and n"; empty if there are none.
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

// Adds a line "LETTERS: what", or nothing if there are no letters.
static struct str add_line(struct arena *arena, struct str so_far, struct str letters,
                           const char *what)
{
    if (letters.n)
        return tsr__arena_printf(arena, STR_FMT STR_FMT ": %s\n", STR_ARG(so_far), STR_ARG(letters),
                                 what);
    return so_far;
}

// Roles of letters; ROLE_RED also depends on the combination.
enum role { ROLE_PASS, ROLE_WINDOW, ROLE_CREATED, ROLE_STAT, ROLE_UNSHARDED, ROLE_RED };

// True if a shard of the result needs a window of a dimension with this letter.
static bool has_window(const struct pattern *pattern, int letter)
{
    for (int i = 0; i < pattern->n_inputs; i++)
        for (int k = 0; k < pattern->inputs[i].n_dims; k++)
            if (pattern->inputs[i].dims[k].window &&
                pattern->inputs[i].dims[k].letters[0] == letter)
                return true;
    return false;
}

// Returns the role of a letter, which follows from its clause and its position.
static enum role role_of(const struct pattern *pattern, int i)
{
    const struct letter *letter = &pattern->letters[i];
    if (letter->kind == FACTOR_RED)
        return ROLE_RED;
    if (letter->kind == FACTOR_STAT)
        return ROLE_STAT;
    if (letter->kind == FACTOR_REP)
        return ROLE_UNSHARDED;
    if (has_window(pattern, i))
        return ROLE_WINDOW;
    return letter->in ? ROLE_PASS : ROLE_CREATED;
}

// Returns the letters of one role; for reductions, those with this combination.
static struct str group(struct arena *arena, const struct pattern *pattern, enum role role,
                        int combine)
{
    bool in[PATTERN_MAX_LETTERS];
    for (int i = 0; i < pattern->n_letters; i++)
        in[i] = role_of(pattern, i) == role &&
                (role != ROLE_RED || (int)pattern->letters[i].combine == combine);
    return list_letters(arena, pattern, in);
}

// Adds one line for each role: factors that cost nothing to shard first, then units.
static struct str describe_factors(struct arena *arena, const struct pattern *pattern,
                                   struct str text)
{
    text = add_line(arena, text, group(arena, pattern, ROLE_PASS, 0),
                    "can be sharded, equally in every tensor that has it, without communication");
    text = add_line(arena, text, group(arena, pattern, ROLE_WINDOW, 0),
                    "can be sharded if sizes are known; neighbours exchange windows of the input");
    text = add_line(arena, text, group(arena, pattern, ROLE_CREATED, 0),
                    "created by the operator; can be sharded");
    for (int c = COMBINE_SUM; c <= COMBINE_PROD; c++) {
        struct str what = tsr__arena_printf(
            arena, "can be sharded; each device has a partial result, combined by %s", combines[c]);
        text = add_line(arena, text, group(arena, pattern, ROLE_RED, c), what.p ? what.p : "");
    }
    text = add_line(arena, text, group(arena, pattern, ROLE_STAT, 0),
                    "can be sharded; the node is then replaced by simpler ones");
    for (int i = 0; i < pattern->n_letters; i++)
        if (pattern->letters[i].unit > 1)
            text = tsr__arena_printf(
                arena, STR_FMT STR_FMT ": shards are multiples of %lld elements\n", STR_ARG(text),
                STR_ARG(pattern->letters[i].name), (long long)pattern->letters[i].unit);
    return text;
}

// ---- factors that are not sharded ---------------------------------------------------------------

// Takes the next name from the list; empty at the end.
static struct str next_name(const char **names)
{
    while (**names == ' ')
        (*names)++;
    struct str name = {*names, strcspn(*names, " ")};
    *names += name.n;
    return name;
}

// True if the name means the factor. The name of a pack matches its members: S matches S0 and S1.
// Likewise "s" matches s0 and s1 that a derive function makes.
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

// Returns why the factor is not sharded: the first reason of the row that names it. Errors of
// partition quote this text.
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

// Adds a line for each reason, "f and c: not sharded: any tree may read any feature", then one for
// factors without a reason.
static struct str describe_unsharded(struct arena *arena, const struct op_row *row,
                                     const struct pattern *pattern, struct str text)
{
    bool left[PATTERN_MAX_LETTERS];
    for (int i = 0; i < pattern->n_letters; i++)
        left[i] = role_of(pattern, i) == ROLE_UNSHARDED;
    for (const struct stay *stay = row->stays; stay && stay->factors; stay++) {
        bool in[PATTERN_MAX_LETTERS];
        for (int i = 0; i < pattern->n_letters; i++) {
            in[i] = left[i] && tsr__row_stays(row, pattern->letters[i].name) == stay->why;
            left[i] = left[i] && !in[i];
        }
        struct str what = tsr__arena_printf(arena, "not sharded: %s", stay->why);
        text = add_line(arena, text, list_letters(arena, pattern, in), what.p ? what.p : "");
        // Dimensions without a letter have their own reason.
        if (strchr(stay->factors, '_'))
            text = add_line(arena, text, STR("dimensions _"), what.p ? what.p : "");
    }
    return add_line(arena, text, list_letters(arena, pattern, left), "not sharded");
}

// Returns the reasons as one text: "t: each step needs the one before; w: ...".
static const char *stays_text(struct arena *arena, const struct op_row *row)
{
    struct str text = STR("");
    for (const struct stay *stay = row->stays; stay && stay->factors; stay++)
        text = tsr__arena_printf(arena, STR_FMT "%s%s: %s", STR_ARG(text), text.n ? "; " : "",
                                 stay->factors, stay->why);
    return text_or_none(text.p);
}

// Adds one line for each change in the local node. Windows and lists are not in the table.
static struct str describe_rewrites(struct arena *arena, const struct pattern *pattern,
                                    struct str text)
{
    for (int i = 0; i < pattern->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &pattern->rewrites[i];
        if (rewrite->kind == REWRITE_SHAPE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: input %d contains the sizes of the shard\n",
                STR_ARG(text), rewrite->index);
        else if (rewrite->kind == REWRITE_ADD_ONCE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: only one device of a reduction adds input %d\n",
                STR_ARG(text), rewrite->index);
        else if (rewrite->kind == REWRITE_SIZES || rewrite->kind == REWRITE_SIZE)
            text = tsr__arena_printf(
                arena, STR_FMT "local node: replaced by sizes of the full tensor\n", STR_ARG(text));
        else if (rewrite->kind == REWRITE_LOOKUP)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: elements of input %d that address another "
                        "shard of " STR_FMT " give 0\n",
                STR_ARG(text), rewrite->index, STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_SCATTER)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: elements of input %d that address another "
                        "shard of " STR_FMT " are ignored\n",
                STR_ARG(text), rewrite->index, STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_RANGE)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: inputs %d and %d are the bounds of its shard of " STR_FMT "\n",
                STR_ARG(text), rewrite->index, rewrite->index + 1,
                STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_ROUTE)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: gets the tokens for which input %d selects an element of its "
                        "shard of " STR_FMT "\n",
                STR_ARG(text), rewrite->index, STR_ARG(pattern->letters[rewrite->factor].name));
        else if (rewrite->kind == REWRITE_WORD)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: attribute %s is the value for its shard of " STR_FMT " (%s)\n",
                STR_ARG(text), rewrite->name, STR_ARG(pattern->letters[rewrite->factor].name),
                rewrite->words);
        else if (rewrite->kind == REWRITE_ATTR || rewrite->kind == REWRITE_SHARE)
            text = tsr__arena_printf(
                arena,
                STR_FMT "local node: attribute %s has the value for its shard of " STR_FMT "\n",
                STR_ARG(text), rewrite->name, STR_ARG(pattern->letters[rewrite->factor].name));
    }
    return text;
}

// Describes factors, then changes in the local node, or why the row is not sharded.
static struct str words_of(struct arena *arena, const struct op_row *row)
{
    const char *wrong;
    struct str text = STR("");
    if (row->whole)
        text = tsr__arena_printf(arena, "not sharded: %s\n", row->whole);
    struct pattern *pattern =
        row->rule && !row->whole ? tsr__pattern_parse(arena, str_of(row->rule), &wrong) : NULL;
    if (pattern) {
        text = describe_factors(arena, pattern, text);
        text = describe_unsharded(arena, row, pattern, text);
        text = describe_rewrites(arena, pattern, text);
    }
    if (row->note)
        text = tsr__arena_printf(arena, STR_FMT "%s\n", STR_ARG(text), row->note);
    return text;
}

// Returns row i in words. Generated texts belong to the session; the next call frees them.
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
