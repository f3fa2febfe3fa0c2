// SPDX-License-Identifier: Apache-2.0
// derive_einsum.c - Einsum: the equation is the rule. Letters that the result lacks are summed; of one
// that an operand has twice (a diagonal) the rows may be cut (expand_einsum.c); the ellipsis is a pack. A size of 1 is stretched along a letter
// that stands more than once: "ab,ab->ab" of [n 6] and [1 6] gives [n 6].
#include "rules/derive.h"

#include <ctype.h>

#define LETTERS 52

struct equation {
    struct str text;     // what is left of it
    int times[LETTERS];  // how often each letter stands in all operands
    int seen[LETTERS];   // and in those that were read
    bool twice[LETTERS]; // in one operand
    bool square;         // sizes along each diagonal are the same
    bool out[LETTERS];
    bool dots, out_dots;
};

static int number_of(char c)
{
    return islower((unsigned char)c) ? c - 'a' : c - 'A' + 26;
}

// Capitals are packs in a rule, so they get another spelling.
static void add_letter(struct derivation *d, int i, const char *after)
{
    if (i < 26)
        tsr__derive_add(d, "%c%s", 'a' + i, after);
    else
        tsr__derive_add(d, "up%c%s", 'A' + i - 26, after);
}

static void skip(struct equation *e)
{
    while (e->text.n && e->text.p[0] == ' ')
        e->text = (struct str){e->text.p + 1, e->text.n - 1};
}

static bool take(struct equation *e, const char *word)
{
    size_t n = strlen(word);
    skip(e);
    if (e->text.n < n || memcmp(e->text.p, word, n) != 0)
        return false;
    e->text = (struct str){e->text.p + n, e->text.n - n};
    return true;
}

// The letter stands again in the term that is read: along the diagonal of its first axis and this one. Axes behind
// an ellipsis are counted from the end.
struct term_axes {
    int operand, axis;
    int first[LETTERS]; // 1 + axis
};

static tsr_dim size_along(const struct derivation *d, const struct term_axes *t, int axis)
{
    struct shape s = tsr__derive_in(d, (size_t)t->operand);
    return axis >= 0 && axis < s.rank ? s.dims[axis] : DIM_UNKNOWN;
}

static bool is_square(const struct derivation *d, const struct term_axes *t, int letter)
{
    tsr_dim rows = size_along(d, t, t->first[letter] - 1), columns = size_along(d, t, t->axis);
    return dim_known(rows) && tsr__dim_equal(d->shapes->exprs, rows, columns);
}

// Dimensions that the ellipsis of a term stands for.
static int dots_length(const struct derivation *d, struct str term, int operand)
{
    int letters = 0;
    for (size_t i = 0; i < term.n && term.p[i] != ',' && term.p[i] != '-'; i++)
        letters += isalpha((unsigned char)term.p[i]) != 0;
    return tsr__derive_in(d, (size_t)operand).rank - letters;
}

static void count_letters(struct equation *e)
{
    for (size_t i = 0; i < e->text.n && e->text.p[i] != '-'; i++)
        if (isalpha((unsigned char)e->text.p[i]))
            e->times[number_of(e->text.p[i])]++;
}

// A letter of a term. Where the rule is for cutting, one that stands again is any size: its rows are cut, not its
// columns; where it is for shapes, both say how large it is.
static void add_again(struct derivation *d, struct equation *e, const struct term_axes *t, int i)
{
    e->twice[i] = true;
    e->square = e->square && is_square(d, t, i);
    if (d->arena)
        tsr__derive_add(d, "_ ");
    else
        add_letter(d, i, "~ ");
}

// One term: letters and at most one ellipsis. out: the result's.
static bool read_term(struct derivation *d, struct equation *e, bool out, int operand)
{
    struct term_axes t = {.operand = operand};
    bool dots = false;
    int length = out ? 0 : dots_length(d, e->text, operand);
    tsr__derive_add(d, "[");
    for (skip(e); e->text.n; skip(e)) {
        if (!dots && take(e, "...")) {
            dots = true;
            t.axis += length;
            tsr__derive_add(d, out ? "Dots* " : "Dots~ ");
            continue;
        }
        if (!isalpha((unsigned char)e->text.p[0]))
            break;
        int i = number_of(e->text.p[0]);
        e->text = (struct str){e->text.p + 1, e->text.n - 1};
        if (out && (t.first[i] || !e->seen[i]))
            return false;
        e->out[i] = e->out[i] || out;
        e->seen[i] += !out;
        if (t.first[i])
            add_again(d, e, &t, i);
        else
            add_letter(d, i, !out && e->times[i] > 1 ? "~ " : " ");
        t.first[i] = t.first[i] ? t.first[i] : t.axis + 1;
        t.axis++;
    }
    *(out ? &e->out_dots : &e->dots) |= dots;
    tsr__derive_add(d, "]");
    return true;
}

// No arrow: the letters that stand once, in alphabetical order, after the ellipsis.
static void implied_output(struct derivation *d, struct equation *e)
{
    tsr__derive_add(d, e->dots ? "[Dots* " : "[");
    e->out_dots = e->dots;
    for (int k = 0; k < LETTERS; k++) {
        int i = k < 26 ? k + 26 : k - 26; // capitals first, as bytes are ordered
        if (e->seen[i] != 1)
            continue;
        e->out[i] = true;
        add_letter(d, i, " ");
    }
    tsr__derive_add(d, "]");
}

static bool read_equation(struct derivation *d, struct equation *e)
{
    size_t n = 0;
    count_letters(e);
    do {
        if (n++)
            tsr__derive_add(d, ",");
        if (!read_term(d, e, false, (int)n - 1))
            return false;
    } while (take(e, ","));
    tsr__derive_add(d, " -> ");
    if (take(e, "->")) {
        if (!read_term(d, e, true, 0))
            return false;
    } else {
        implied_output(d, e);
    }
    skip(e);
    return !e->text.n && n == tsr_node_input_count(d->node) && e->dots == e->out_dots;
}

void tsr__derive_einsum(struct derivation *d)
{
    struct equation e = {.square = true};
    e.text.p = tsr_attr_string(tsr__attr_of(d->shapes, d->node, "equation"), &e.text.n);
    if (!e.text.p || !read_equation(d, &e)) {
        tsr__derive_none(d, "the equation could not be read");
        return;
    }
    const char *diagonal = e.square ? tsr__derive_stat(d, 12, EXPAND_NUMBERS) : "rep";
    for (int i = 0; i < LETTERS; i++) {
        if (!e.seen[i] || (e.out[i] && !e.twice[i]))
            continue;
        if (e.twice[i])
            tsr__derive_add(d, "; %s ", diagonal);
        else
            tsr__derive_add(d, "; red ");
        add_letter(d, i, e.twice[i] ? "" : ":sum");
    }
}
