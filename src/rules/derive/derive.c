// SPDX-License-Identifier: Apache-2.0
// derive.c - rules that depend on attributes or ranks. Each function writes the rule's text for one
// node; the parser does the rest. Reshape has a separate file.
//
//   MatMul of [2 4 5] and [5]      [B* m k],[k] -> [B* m]; red k:sum
//   Gemm, transB 1                 [m k],[n k],[m~ n~]? -> [m n]; red k:sum; once 2
//   Transpose, perm 0 2 1          [d0 d1 d2] -> [d0 d2 d1]
//
// Letters only mean equality; sizes are found when the text is matched with the node's shapes
// (fit.c). A text may also have clauses: `red` factors are reduced, `rep` ones are never sharded,
// sharding a `stat` one replaces the node, `attr` ones are counted by an attribute, `win` ones need
// a window of an input (rule_text.c has them all).
#include "rules/internal.h"

struct shape tsr__derive_in(const struct derivation *derivation, size_t i)
{
    return tsr__shapes_element(derivation->shapes, input_at(derivation->node, i));
}

void tsr__derive_none(struct derivation *derivation, const char *why)
{
    derivation->whole = why;
    derivation->text = NULL;
}

void tsr__derive_size(struct derivation *derivation, struct str letter, tsr_dim size)
{
    if (derivation->n_sizes < RULE_MAX_FACTORS)
        derivation->sizes[derivation->n_sizes++] = (struct known_size){letter, size};
}

// Rules are built for every node of a model, and printf would be half of the work: what they are
// made of (%s %d %c %lld) is put down by hand.
static size_t put(char *at, size_t room, const char *p, size_t n)
{
    if (n < room)
        room = n;
    memcpy(at, p, room);
    return n;
}

// Digits from the end; the least number has no positive twin, so the work is done without sign.
static size_t put_number(char *at, size_t room, int64_t v)
{
    char digits[24], *end = digits + sizeof(digits), *p = end;
    uint64_t left = (uint64_t)v;
    if (v < 0)
        left = -left;
    do
        *--p = (char)('0' + left % 10);
    while (left /= 10);
    if (v < 0)
        *--p = '-';
    return put(at, room, p, (size_t)(end - p));
}

// The number of characters that the text has, or `room` where it does not fit: what was put down
// then is not read.
static size_t format_to(char *at, size_t room, const char *format, va_list args)
{
    size_t n = 0;
    while (*format && n < room) {
        const char *s;
        char c;
        size_t plain = strcspn(format, "%");
        n += put(at + n, room - n, format, plain);
        format += plain;
        if (!*format || n >= room)
            break;
        switch (*++format) {
        case 's':
            s = va_arg(args, const char *);
            n += put(at + n, room - n, s, strlen(s));
            break;
        case 'c':
            c = (char)va_arg(args, int);
            n += put(at + n, room - n, &c, 1);
            break;
        case 'd':
            n += put_number(at + n, room - n, va_arg(args, int));
            break;
        case 'l': // %lld
            format += 2;
            n += put_number(at + n, room - n, va_arg(args, long long));
            break;
        default:
            return room; // not understood: as if it did not fit
        }
        format++;
    }
    return n;
}

// A text that has begun and was given up (tsr__derive_none) takes nothing more, and its reason
// stays.
void tsr__derive_add(struct derivation *derivation, const char *format, ...)
{
    if (derivation->n && !derivation->text)
        return;
    size_t room = DERIVE_MAX_TEXT - derivation->n - 1;
    va_list args;
    va_start(args, format);
    size_t n = format_to(derivation->buffer + derivation->n, room, format, args);
    va_end(args);
    if (n >= room) {
        derivation->n = DERIVE_MAX_TEXT - 1;
        tsr__derive_none(derivation, "the node has more dimensions than are followed");
        return;
    }
    derivation->n += n;
    derivation->buffer[derivation->n] = 0;
    derivation->text = derivation->buffer;
}

// numpy's matmul: an operand of one dimension has no m or no n.
void tsr__derive_matmul(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 1).rank == 1;
    if (a && b)
        derivation->text = "[k],[k] -> []; red k:sum";
    else if (a)
        derivation->text = "[k],[B* k n] -> [B* n]; red k:sum";
    else if (b)
        derivation->text = "[B* m k],[k] -> [B* m]; red k:sum";
}

// Texts by transA and transB: both operands may be stored transposed.
void tsr__derive_gemm(struct derivation *derivation)
{
    static const char *const texts[2][2] = {{"[m k],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
                                             "[m k],[n k],[m~ n~]? -> [m n]; red k:sum; once 2"},
                                            {"[k m],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
                                             "[k m],[n k],[m~ n~]? -> [m n]; red k:sum; once 2"}};
    static const char *const old[2][2] = {
        {"[m k],[k n],[m~ n~] -> [m n]; rep k", "[m k],[n k],[m~ n~] -> [m n]; rep k"},
        {"[k m],[k n],[m~ n~] -> [m n]; rep k", "[k m],[n k],[m~ n~] -> [m n]; rep k"}};
    bool a = tsr_attr_int(tsr__attr_of(derivation->shapes, derivation->node, "transA"), 0) != 0;
    bool b = tsr_attr_int(tsr__attr_of(derivation->shapes, derivation->node, "transB"), 0) != 0;
    derivation->text = texts[a][b];
    // Before opset 11 the summand cannot be left out, so the sum over k is not cut.
    if (tsr__node_opset(derivation->node) < 11)
        derivation->text = old[a][b];
}

// Training draws random numbers; only the inference form is element-wise. With a seed it stays
// whole too: the numbers of a part are not a part of the numbers.
void tsr__derive_dropout(struct derivation *derivation)
{
    if (!tsr__node_input_is_off(derivation->node, 2))
        derivation->whole = "training_mode is not known to be false";
}

// perm [0 2 1] gives "[d0 d1 d2] -> [d0 d2 d1]". Without perm the order is reversed.
void tsr__derive_transpose(struct derivation *derivation)
{
    int rank = tsr__derive_in(derivation, 0).rank;
    const int64_t *perm;
    size_t n = tsr_attr_ints(tsr__attr_of(derivation->shapes, derivation->node, "perm"), &perm);
    if (rank < 0 || rank > RULE_MAX_FACTORS) {
        tsr__derive_none(derivation, "the shape of an input is not known");
        return;
    }
    if (n && n != (size_t)rank) {
        tsr__derive_none(derivation, "perm does not fit the number of dimensions");
        return;
    }
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < rank; i++)
        tsr__derive_add(derivation, "d%d ", i);
    tsr__derive_add(derivation, "] -> [");
    for (int i = 0; i < rank; i++) {
        int64_t from = rank - 1 - i;
        if (n)
            from = perm[i];
        if (from < 0 || from >= rank) {
            tsr__derive_none(derivation, "perm names a dimension that is not there");
            return;
        }
        tsr__derive_add(derivation, "d%d ", (int)from);
    }
    tsr__derive_add(derivation, "]");
}
