// SPDX-License-Identifier: Apache-2.0
// derive_einsum.c - Einsum: the equation is the rule. Letters that the result lacks are summed; of
// one that an operand has twice (a diagonal) the rows may be cut (expand_einsum.c); the ellipsis is
// a pack. A size of 1 is stretched along a letter that stands more than once: "ab,ab->ab" of [n 6]
// and [1 6] gives [n 6].
//
//   "bij,bjk->bik"   [b i j],[b j k] -> [b i k]; j is summed over parts
//   "bii->bi"        [b i _] -> [b i]; stat i
#include "rules/derive/derive.h"

#include <ctype.h>

#define LETTERS 52

// Letters by number, a to z, then A to Z. The text is read once from left to right.
struct equation {
    struct str text;     // what is left of it
    int times[LETTERS];  // number of occurrences of each letter in all operands
    int seen[LETTERS];   // and in those that were read
    bool twice[LETTERS]; // in one operand
    bool square;         // sizes along each diagonal are the same
    bool out[LETTERS];
    bool dots, out_dots;
};

// c is a letter of ASCII: callers look first.
static int number_of(char c)
{
    if (islower((unsigned char)c))
        return c - 'a';
    return c - 'A' + 26;
}

// Capitals are packs in a rule, so they get another spelling.
static void add_letter(struct derivation *derivation, int i, const char *after)
{
    if (i < 26)
        tsr__derive_add(derivation, "%c%s", 'a' + i, after);
    else
        tsr__derive_add(derivation, "up%c%s", 'A' + i - 26, after);
}

static void skip(struct equation *equation)
{
    while (equation->text.n && equation->text.p[0] == ' ')
        equation->text = (struct str){equation->text.p + 1, equation->text.n - 1};
}

static bool take(struct equation *equation, const char *word)
{
    size_t n = strlen(word);
    skip(equation);
    if (equation->text.n < n || memcmp(equation->text.p, word, n) != 0)
        return false;
    equation->text = (struct str){equation->text.p + n, equation->text.n - n};
    return true;
}

// The letter stands again in the term that is read: along the diagonal of its first axis and this
// one. Axes behind an ellipsis are counted from the end.
struct term_axes {
    int operand, axis;
    int first[LETTERS]; // 1 + axis
};

// A negative axis: the ellipsis of an operand of unknown rank stands before it.
static tsr_dim size_along(const struct derivation *derivation, const struct term_axes *axes,
                          int axis)
{
    if (axis < 0)
        return DIM_UNKNOWN;
    return dim_at(tsr__derive_in(derivation, (size_t)axes->operand), axis);
}

// Sizes that are not known to be equal are not: a diagonal of [n m] is as long as the shorter of
// both.
static bool is_square(const struct derivation *derivation, const struct term_axes *axes, int letter)
{
    tsr_dim rows = size_along(derivation, axes, axes->first[letter] - 1),
            columns = size_along(derivation, axes, axes->axis);
    return dim_known(rows) && tsr__dim_equal(derivation->shapes->exprs, rows, columns);
}

// Number of dimensions of a term's ellipsis; negative if the rank is unknown.
static int dots_length(const struct derivation *derivation, struct str term, int operand)
{
    int letters = 0;
    for (size_t i = 0; i < term.n && term.p[i] != ',' && term.p[i] != '-'; i++)
        letters += isalpha((unsigned char)term.p[i]) != 0;
    return tsr__derive_in(derivation, (size_t)operand).rank - letters;
}

// Before anything is read: whether a letter stands more than once decides how it is written.
static void count_letters(struct equation *equation)
{
    for (size_t i = 0; i < equation->text.n && equation->text.p[i] != '-'; i++)
        if (isalpha((unsigned char)equation->text.p[i]))
            equation->times[number_of(equation->text.p[i])]++;
}

// A letter of a term. In a rule for sharding, a repeated letter matches any size: its rows are
// sharded, not its columns; in a rule for shapes, both give its size.
static void add_again(struct derivation *derivation, struct equation *equation,
                      const struct term_axes *axes, int i)
{
    equation->twice[i] = true;
    equation->square = equation->square && is_square(derivation, axes, i);
    if (derivation->arena)
        tsr__derive_add(derivation, "_ ");
    else
        add_letter(derivation, i, "~ ");
}

// The next letter of the text, which is taken from it; -1: another sign stands there, or nothing.
static int take_letter(struct equation *equation)
{
    skip(equation);
    if (!equation->text.n || !isalpha((unsigned char)equation->text.p[0]))
        return -1;
    int letter = number_of(equation->text.p[0]);
    equation->text = (struct str){equation->text.p + 1, equation->text.n - 1};
    return letter;
}

// The term of an operand: letters and at most one ellipsis. A letter that stands anywhere else too
// may be stretched.
static void read_operand(struct derivation *derivation, struct equation *equation, int operand)
{
    struct term_axes axes = {.operand = operand};
    bool dots = false;
    int length = dots_length(derivation, equation->text, operand);
    tsr__derive_add(derivation, "[");
    for (;;) {
        if (!dots && take(equation, "...")) {
            dots = true;
            axes.axis += length;
            tsr__derive_add(derivation, "Dots~ ");
            continue;
        }
        int letter = take_letter(equation);
        if (letter < 0)
            break;
        equation->seen[letter]++;
        // In this order: again in this operand, in another one too, or nowhere else.
        if (axes.first[letter])
            add_again(derivation, equation, &axes, letter);
        else if (equation->times[letter] > 1)
            add_letter(derivation, letter, "~ ");
        else
            add_letter(derivation, letter, " ");
        if (!axes.first[letter])
            axes.first[letter] = axes.axis + 1;
        axes.axis++;
    }
    equation->dots |= dots;
    tsr__derive_add(derivation, "]");
}

// The result's term. False: a letter occurs in it twice, or in no operand.
static bool read_result(struct derivation *derivation, struct equation *equation)
{
    tsr__derive_add(derivation, "[");
    for (;;) {
        if (!equation->out_dots && take(equation, "...")) {
            equation->out_dots = true;
            tsr__derive_add(derivation, "Dots* ");
            continue;
        }
        int letter = take_letter(equation);
        if (letter < 0)
            break;
        if (equation->out[letter] || !equation->seen[letter])
            return false;
        equation->out[letter] = true;
        add_letter(derivation, letter, " ");
    }
    tsr__derive_add(derivation, "]");
    return true;
}

// No arrow: the letters that stand once, in alphabetical order, after the ellipsis.
static void implied_output(struct derivation *derivation, struct equation *equation)
{
    tsr__derive_add(derivation, "[%s", text_if(equation->dots, "Dots* "));
    equation->out_dots = equation->dots;
    for (int k = 0; k < LETTERS; k++) {
        int i = (k + 26) % LETTERS; // capitals first, as bytes are ordered
        if (equation->seen[i] != 1)
            continue;
        equation->out[i] = true;
        add_letter(derivation, i, " ");
    }
    tsr__derive_add(derivation, "]");
}

// Terms of operands, one for each input of the node, then the result's; without an arrow the
// standard says what it is.
static bool read_equation(struct derivation *derivation, struct equation *equation)
{
    size_t n = 0;
    count_letters(equation);
    do {
        if (n++)
            tsr__derive_add(derivation, ",");
        read_operand(derivation, equation, (int)n - 1);
    } while (take(equation, ","));
    tsr__derive_add(derivation, " -> ");
    if (take(equation, "->")) {
        if (!read_result(derivation, equation))
            return false;
    } else {
        implied_output(derivation, equation);
    }
    skip(equation);
    // All of the text was read, each input has a term, and the ellipsis stands on both sides or on
    // none.
    return !equation->text.n && n == tsr_node_input_count(derivation->node) &&
           equation->dots == equation->out_dots;
}

// "bij,bjk->bik": [b~ i j~],[b~ j~ k] -> [b i k]; red j:sum. Letters that stand in both operands
// may be 1 in one of them.
void tsr__derive_einsum(struct derivation *derivation)
{
    struct equation equation = {.square = true};
    equation.text.p = tsr_attr_string(
        tsr__attr_of(derivation->shapes, derivation->node, "equation"), &equation.text.n);
    if (!equation.text.p || !read_equation(derivation, &equation)) {
        tsr__derive_none(derivation, "the equation could not be read");
        return;
    }
    const char *diagonal = tsr__derive_stat_if(equation.square, derivation, 12, EXPAND_NUMBERS);
    for (int i = 0; i < LETTERS; i++) {
        // Letters of the result pass through, unless one is a diagonal.
        if (!equation.seen[i] || (equation.out[i] && !equation.twice[i]))
            continue;
        if (equation.twice[i]) {
            tsr__derive_add(derivation, "; %s ", diagonal);
            add_letter(derivation, i, "");
        } else {
            tsr__derive_add(derivation, "; red ");
            add_letter(derivation, i, ":sum");
        }
    }
}
