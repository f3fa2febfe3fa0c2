// SPDX-License-Identifier: Apache-2.0
// expand_einsum.c - an Einsum with a diagonal whose letter is sharded. Rows are sharded, columns
// are not. Elements off the diagonal become 0 and are summed along a new letter: "bii->bi" of x is
// "bia->bi" of Where(row = column, x, 0), where a is the new letter. This needs no communication.
#include "rules/expand/expand.h"

#include <ctype.h>
#include <limits.h>

#define MAX_EQUATION 1024

struct rewritten {
    struct str equation;
    char text[MAX_EQUATION];
    size_t n;
};

static void put(struct rewritten *rewritten, char c)
{
    if (rewritten->n < sizeof(rewritten->text))
        rewritten->text[rewritten->n++] = c;
}

static bool has_char(const char *text, size_t n, char c)
{
    return n && memchr(text, c, n) != NULL;
}

// Returns a letter that neither the old nor the new equation has; 0: none is left.
static char fresh_letter(const struct rewritten *rewritten)
{
    static const char all[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (const char *c = all; *c; c++)
        if (!has_char(rewritten->equation.p, rewritten->equation.n, *c) &&
            !has_char(rewritten->text, rewritten->n, *c))
            return *c;
    return 0;
}

// Replaces the elements off the diagonal of two axes by 0. The value has the shape of operand k.
static tsr_value *on_diagonal(struct expansion *expansion, tsr_value *value, int k, int row,
                              int column)
{
    tsr_value *rows = tsr__x_positions(expansion, (size_t)k, row);
    tsr_value *is = X_OP(expansion, "Equal", rows, tsr__x_positions(expansion, (size_t)k, column));
    tsr_value *zero = tsr__x_scalar(expansion, tsr__x_shape(expansion, (size_t)k).dtype, 0);
    return X_OP(expansion, "Where", is, value, zero);
}

// Rewrites one term and its operand: a repeated letter gets another name.
static tsr_value *rewrite_operand(struct expansion *expansion, struct rewritten *rewritten,
                                  struct str term, int k)
{
    int first[UCHAR_MAX + 1], axis = 0, letters = 0, rank = tsr__x_shape(expansion, (size_t)k).rank;
    tsr_value *value = tsr__x_in(expansion, (size_t)k);
    memset(first, -1, sizeof(first));
    for (size_t i = 0; i < term.n; i++)
        letters += isalpha((unsigned char)term.p[i]) != 0;
    for (size_t i = 0; i < term.n; i++) {
        unsigned char c = (unsigned char)term.p[i];
        if (c == '.') {
            put(rewritten, '.');
            axis += i == 0 || term.p[i - 1] != '.' ? rank - letters : 0;
        } else if (isalpha(c) && first[c] < 0) {
            put(rewritten, (char)c);
            first[c] = axis++;
        } else if (isalpha(c)) {
            value = on_diagonal(expansion, value, k, first[c], axis++);
            put(rewritten, fresh_letter(rewritten));
        }
    }
    return value;
}

// Writes the implied result: the letters that occur once, in byte order, after the ellipsis.
static void put_implied(struct rewritten *rewritten)
{
    if (has_char(rewritten->equation.p, rewritten->equation.n, '.'))
        for (int i = 0; i < 3; i++)
            put(rewritten, '.');
    for (int c = 'A'; c <= 'z'; c++) {
        int times = 0;
        for (size_t i = 0; i < rewritten->equation.n; i++)
            times += rewritten->equation.p[i] == c;
        if (isalpha(c) && times == 1)
            put(rewritten, (char)c);
    }
}

// Expands Einsum: "bii->bi" becomes "bia->bi" of the masked operand. Terms before "->" are
// rewritten; an implied result is written out.
void tsr__expand_einsum(struct expansion *expansion)
{
    struct rewritten w = {.n = 0};
    tsr_value *operands[RULE_MAX_RANK];
    int n = 0;
    w.equation.p = tsr_attr_string(tsr__attr_of(expansion->shapes, expansion->twin, "equation"),
                                   &w.equation.n);
    size_t at = 0, end = 0;
    while (end < w.equation.n && w.equation.p[end] != '-')
        end++;
    for (; at <= end && n < RULE_MAX_RANK; n++) {
        size_t stop = at;
        while (stop < end && w.equation.p[stop] != ',')
            stop++;
        if (n)
            put(&w, ',');
        operands[n] = rewrite_operand(expansion, &w, (struct str){w.equation.p + at, stop - at}, n);
        at = stop + 1;
    }
    for (size_t i = end; i < w.equation.n; i++)
        put(&w, w.equation.p[i]);
    if (end == w.equation.n) {
        put(&w, '-');
        put(&w, '>');
        put_implied(&w);
    }
    put(&w, 0);
    tsr_node *sum = tsr__x_node(expansion, "Einsum", n, operands);
    if (!sum || has_char(w.text, w.n - 1, 0) || w.n == sizeof(w.text) ||
        tsr_node_set_string(sum, "equation", w.text) != TSR_OK) {
        expansion->failed = true;
        return;
    }
    tsr__x_give(expansion, 0, tsr_node_output(sum, 0));
}
