// SPDX-License-Identifier: Apache-2.0
// words.c - describes a row of the table in words: what each factor allows, and what changes in the
// local node.
//
//   B, m and n: can be sharded, equally in every tensor that has it, without communication
//   k: can be sharded; each device has a partial result, combined by sum
#include "rules/internal.h"

// Adds a line "B, m and n: what" for the letters in the set, or nothing if there are none.
static void add_line(struct text *text, const struct pattern *pattern, const bool *in,
                     const char *what)
{
    int total = 0, n = 0;
    for (int i = 0; i < pattern->n_letters; i++)
        total += in[i];
    for (int i = 0; i < pattern->n_letters; i++) {
        if (!in[i])
            continue;
        if (n)
            tsr__text_add(text, n == total - 1 ? STR(" and ") : STR(", "));
        tsr__text_add(text, pattern->letters[i].name);
        n++;
    }
    if (total)
        tsr__text_printf(text, ": %s\n", what);
}

// Roles of letters. Letters of ROLE_RED have one line for each way to combine partial results.
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

// Adds a line for the letters of one role; for reductions, those with this combination.
static void add_role(struct text *text, const struct pattern *pattern, enum role role, int combine,
                     const char *what)
{
    bool in[PATTERN_MAX_LETTERS];
    for (int i = 0; i < pattern->n_letters; i++)
        in[i] = role_of(pattern, i) == role &&
                (role != ROLE_RED || (int)pattern->letters[i].combine == combine);
    add_line(text, pattern, in, what);
}

// Adds one line for each role except ROLE_UNSHARDED, cheapest first, then one for each factor whose
// shards must have a multiple of some number of elements.
static void describe_factors(struct text *text, const struct pattern *pattern)
{
    static const char *const reduced[] = {
        [COMBINE_SUM] = "can be sharded; each device has a partial result, combined by sum",
        [COMBINE_MAX] = "can be sharded; each device has a partial result, combined by max",
        [COMBINE_MIN] = "can be sharded; each device has a partial result, combined by min",
        [COMBINE_PROD] = "can be sharded; each device has a partial result, combined by product"};
    add_role(text, pattern, ROLE_PASS, 0,
             "can be sharded, equally in every tensor that has it, without communication");
    add_role(text, pattern, ROLE_WINDOW, 0,
             "can be sharded if sizes are known; neighbours exchange windows of the input");
    add_role(text, pattern, ROLE_CREATED, 0, "created by the operator; can be sharded");
    for (int c = COMBINE_SUM; c <= COMBINE_PROD; c++)
        add_role(text, pattern, ROLE_RED, c, reduced[c]);
    add_role(text, pattern, ROLE_STAT, 0,
             "can be sharded; the node is then replaced by simpler ones");
    for (int i = 0; i < pattern->n_letters; i++)
        if (pattern->letters[i].unit > 1)
            tsr__text_printf(text, STR_FMT ": shards are multiples of %lld elements\n",
                             STR_ARG(pattern->letters[i].name),
                             (long long)pattern->letters[i].unit);
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
// `tessera partition` quote this text.
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
static void describe_unsharded(struct text *text, struct arena *arena, const struct op_row *row,
                               const struct pattern *pattern)
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
        const char *what = tsr__arena_printf(arena, "not sharded: %s", stay->why).p;
        add_line(text, pattern, in, text_or_none(what));
        // Dimensions without a letter have their own reason.
        if (strchr(stay->factors, '_'))
            tsr__text_printf(text, "dimensions _: not sharded: %s\n", stay->why);
    }
    add_line(text, pattern, left, "not sharded");
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

// Adds one line for each change in the local node. Texts of rows have no windows and lists.
static void describe_rewrites(struct text *text, const struct pattern *pattern)
{
    for (int i = 0; i < pattern->n_rewrites; i++) {
        const struct rule_rewrite *rewrite = &pattern->rewrites[i];
        enum rewrite_kind kind = rewrite->kind;
        const char *factor = rewrite->factor < 0 ? "" : pattern->letters[rewrite->factor].name.p;
        int input = rewrite->input;
        tsr__text_add(text, STR("local node: "));
        if (kind == REWRITE_SHAPE)
            tsr__text_printf(text, "input %d contains the sizes of the shard\n", input);
        else if (kind == REWRITE_ADD_ONCE)
            tsr__text_printf(text, "only one device of a reduction adds input %d\n", input);
        else if (kind == REWRITE_SIZES || kind == REWRITE_SIZE)
            tsr__text_printf(text, "replaced by sizes of the full tensor\n");
        else if (kind == REWRITE_LOOKUP || kind == REWRITE_SCATTER)
            tsr__text_printf(text, "elements of input %d that address another shard of %s %s\n",
                             input, factor, kind == REWRITE_LOOKUP ? "give 0" : "are ignored");
        else if (kind == REWRITE_RANGE)
            tsr__text_printf(text, "inputs %d and %d are the bounds of its shard of %s\n", input,
                             input + 1, factor);
        else if (kind == REWRITE_ROUTE)
            tsr__text_printf(text,
                             "gets the tokens for which input %d selects an element of its shard "
                             "of %s\n",
                             input, factor);
        else if (kind == REWRITE_WORD)
            tsr__text_printf(text, "attribute %s is the value for its shard of %s (%s)\n",
                             rewrite->attribute, factor, rewrite->word.words);
        else if (kind == REWRITE_ATTR || kind == REWRITE_SHARE)
            tsr__text_printf(text, "attribute %s has the value for its shard of %s\n",
                             rewrite->attribute, factor);
    }
}

// Describes factors, then changes in the local node, or why the row is not sharded.
static struct str words_of(struct arena *arena, const struct op_row *row)
{
    const char *wrong;
    struct text text = {.session = arena->session};
    if (row->whole)
        tsr__text_printf(&text, "not sharded: %s\n", row->whole);
    struct pattern *pattern =
        row->rule && !row->whole ? tsr__pattern_parse(arena, str_of(row->rule), &wrong) : NULL;
    if (pattern) {
        describe_factors(&text, pattern);
        describe_unsharded(&text, arena, row, pattern);
        describe_rewrites(&text, pattern);
    }
    if (row->note)
        tsr__text_printf(&text, "%s\n", row->note);
    return tsr__text_keep(&text, arena);
}

// Describes row i of the operator tables in *out. False: there is no such row. Generated texts
// belong to the session; the next call frees them.
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
