// SPDX-License-Identifier: Apache-2.0
// derive_einsum.c - the rule of Einsum, which follows from its equation. Letters that the result
// lacks are summed. A letter that an operand has twice is a diagonal; sharding it expands the node
// (expand_einsum.c). The ellipsis is a pack. A size of 1 is broadcast along a letter that occurs
// more than once: "ab,ab->ab" of [n 6] and [1 6] gives [n 6].
//
//   "bij,bjk->bik"   [b~ i j~],[b~ j~ k] -> [b i k]; red j:sum
//   "bii->bi"        [b i _] -> [b i]; stat i
#include "rules/derive/derive.h"

#include <ctype.h>

#define LETTERS 52

// State of reading an equation from left to right. Letters are numbered a to z, then A to Z.
struct equation {
    struct str text;     // the unread rest of the equation
    int times[LETTERS];  // number of occurrences in all operands
    int seen[LETTERS];   // number of occurrences read so far
    bool twice[LETTERS]; // the letter occurs twice in one operand
    bool square;         // both sizes of each diagonal are equal
    bool out[LETTERS];   // the letter occurs in the result
    // `dots`: an operand has an ellipsis; `out_dots`: the result has one
    bool dots, out_dots;
};

// Returns the number of a letter, which must be ASCII.
static int number_of(char c)
{
    return islower((unsigned char)c) ? c - 'a' : c - 'A' + 26;
}

// Returns the index of the letter in the rule. Capitals are packs in a rule, so A becomes "upA".
static int rule_letter(struct derivation *derivation, int i)
{
    char name[] = {'u', 'p', (char)('A' + i - 26)};
    if (i >= 26)
        return tsr__rule_letter(&derivation->rule, (struct str){name, sizeof(name)});
    name[0] = (char)('a' + i);
    return tsr__rule_letter(&derivation->rule, (struct str){name, 1});
}

static void add_letter(struct derivation *derivation, int i, bool broadcast)
{
    struct pattern_dim *dim = tsr__rule_empty_dim(&derivation->rule);
    tsr__rule_dim_letter(&derivation->rule, dim, rule_letter(derivation, i));
    if (dim)
        dim->broadcast = broadcast;
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

// The term that is being read, and the axis of each letter's first occurrence in it.
struct term_axes {
    int operand, axis;
    int first[LETTERS]; // 1 + axis; 0: not read yet
};

// Returns the size of the term's operand along an axis. A negative axis, which follows the ellipsis
// of an operand of unknown rank, has an unknown size.
static tsr_dim size_along(const struct derivation *derivation, const struct term_axes *axes,
                          int axis)
{
    if (axis < 0)
        return DIM_UNKNOWN;
    return dim_at(tsr__derive_in(derivation, (size_t)axes->operand), axis);
}

// True if both sizes of a diagonal are known to be equal. A diagonal of [n m] has the length of the
// shorter side.
static bool is_square(const struct derivation *derivation, const struct term_axes *axes, int letter)
{
    tsr_dim rows = size_along(derivation, axes, axes->first[letter] - 1),
            columns = size_along(derivation, axes, axes->axis);
    return dim_known(rows) && same_size(derivation, rows, columns);
}

// Returns the number of dimensions of a term's ellipsis; negative if the rank is unknown.
static int dots_length(const struct derivation *derivation, struct str term, int operand)
{
    int letters = 0;
    for (size_t i = 0; i < term.n && term.p[i] != ',' && term.p[i] != '-'; i++)
        letters += isalpha((unsigned char)term.p[i]) != 0;
    return tsr__derive_in(derivation, (size_t)operand).rank - letters;
}

// Counts occurrences before the terms are read: a letter that occurs more than once may be
// broadcast.
static void count_letters(struct equation *equation)
{
    for (size_t i = 0; i < equation->text.n && equation->text.p[i] != '-'; i++)
        if (isalpha((unsigned char)equation->text.p[i]))
            equation->times[number_of(equation->text.p[i])]++;
}

// Adds a letter that the term already has: a diagonal. In a rule for sharding, rows are sharded and
// columns match any size. In a rule for shapes, rows and columns both give the size.
static void add_again(struct derivation *derivation, struct equation *equation,
                      const struct term_axes *axes, int i)
{
    equation->twice[i] = true;
    equation->square = equation->square && is_square(derivation, axes, i);
    if (derivation->shapes_only)
        add_letter(derivation, i, true);
    else
        tsr__rule_any(&derivation->rule, 1);
}

// Takes the next letter from the text; -1: there is none.
static int take_letter(struct equation *equation)
{
    skip(equation);
    if (!equation->text.n || !isalpha((unsigned char)equation->text.p[0]))
        return -1;
    int letter = number_of(equation->text.p[0]);
    equation->text = (struct str){equation->text.p + 1, equation->text.n - 1};
    return letter;
}

// Reads the term of an operand: letters and at most one ellipsis.
static void read_operand(struct derivation *derivation, struct equation *equation, int operand)
{
    struct term_axes axes = {.operand = operand};
    bool dots = false;
    int length = dots_length(derivation, equation->text, operand);
    tsr__rule_input(&derivation->rule);
    for (;;) {
        if (!dots && take(equation, "...")) {
            dots = true;
            axes.axis += length;
            tsr__rule_dims(&derivation->rule, "Dots~");
            continue;
        }
        int letter = take_letter(equation);
        if (letter < 0)
            break;
        equation->seen[letter]++;
        if (axes.first[letter])
            add_again(derivation, equation, &axes, letter);
        else
            add_letter(derivation, letter, equation->times[letter] > 1);
        if (!axes.first[letter])
            axes.first[letter] = axes.axis + 1;
        axes.axis++;
    }
    equation->dots |= dots;
}

// Reads the term of the result. False: a letter occurs in it twice, or in no operand.
static bool read_result(struct derivation *derivation, struct equation *equation)
{
    for (;;) {
        if (!equation->out_dots && take(equation, "...")) {
            equation->out_dots = true;
            tsr__rule_dims(&derivation->rule, "Dots*");
            continue;
        }
        int letter = take_letter(equation);
        if (letter < 0)
            break;
        if (equation->out[letter] || !equation->seen[letter])
            return false;
        equation->out[letter] = true;
        add_letter(derivation, letter, false);
    }
    return true;
}

// Adds the result of an equation without an arrow: the letters that occur once, in alphabetical
// order, after the ellipsis.
static void implied_output(struct derivation *derivation, struct equation *equation)
{
    if (equation->dots)
        tsr__rule_dims(&derivation->rule, "Dots*");
    equation->out_dots = equation->dots;
    for (int k = 0; k < LETTERS; k++) {
        int i = (k + 26) % LETTERS; // capitals first, as bytes are ordered
        if (equation->seen[i] != 1)
            continue;
        equation->out[i] = true;
        add_letter(derivation, i, false);
    }
}

// Reads the terms of the operands, one for each input, then that of the result. False: the equation
// is invalid or does not fit the inputs.
static bool read_equation(struct derivation *derivation, struct equation *equation)
{
    size_t n = 0;
    count_letters(equation);
    do
        read_operand(derivation, equation, (int)n++);
    while (take(equation, ","));
    tsr__rule_output(&derivation->rule);
    if (take(equation, "->")) {
        if (!read_result(derivation, equation))
            return false;
    } else {
        implied_output(derivation, equation);
    }
    skip(equation);
    // The ellipsis must be on both sides, or on none.
    return !equation->text.n && n == tsr_node_input_count(derivation->node) &&
           equation->dots == equation->out_dots;
}

// Derives the rule of Einsum. Letters of the result pass through, unless they are diagonals.
void tsr__derive_einsum(struct derivation *derivation)
{
    struct equation equation = {.square = true};
    equation.text.p = tsr_attr_string(tsr__derive_attr(derivation, "equation"), &equation.text.n);
    if (!equation.text.p || !read_equation(derivation, &equation)) {
        tsr__derive_none(derivation, "the equation could not be read");
        return;
    }
    enum factor_kind diagonal = stat_if(equation.square);
    for (int i = 0; i < LETTERS; i++) {
        if (!equation.seen[i] || (equation.out[i] && !equation.twice[i]))
            continue;
        int letter = rule_letter(derivation, i);
        if (!equation.twice[i])
            tsr__rule_reduce(&derivation->rule, letter, COMBINE_SUM);
        else
            tsr__rule_kind_of(&derivation->rule, diagonal, letter);
    }
}
