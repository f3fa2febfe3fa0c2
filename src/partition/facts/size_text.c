// SPDX-License-Identifier: Apache-2.0
// size_text.c - parses the sizes of a model: a number, a symbol ("batch") or an expression
// ("batch*seq", "past + 1"). A symbol is known if a dimension of a model input has that name. An
// expression is known if all its symbols are.
//
// tsr__size_read parses the text (shapes). Planning asks whether every rank can compute a size.
// Emission passes callbacks that turn symbols and arithmetic into nodes (emit_shape.c).
//
//     Example: an input x has the dimensions [batch, seq]; "batch*(seq + 2)" calls
//         symbol(batch), symbol(seq), combine(+, seq, number(2)), combine(*, batch, that)
//     "2*3 + batch": 2*3 is computed here; then combine(+, number(6), symbol(batch))
//     "floor(h/2 - 1/2)": "/" is exact, as in sympy; h - 1 is divided by 2 when floor() ends
//     "other/2": no input has a dimension "other", so the size is not known
#include "partition/facts/facts.h"

#define MAX_TEXT 1024

// The size that is being computed: of an axis of an item.
struct size_job {
    struct draft *draft;
    const struct item *item;
    int axis;
    const struct size_maker *maker; // NULL: only check whether the size is known
};
static const struct size_value not_known = {0};

// Returns a value that nodes compute; NULL: the callback failed.
static struct size_value made(const void *value)
{
    return (struct size_value){.known = value != NULL, .made = value};
}

static struct size_value read_symbol(void *data, struct str symbol)
{
    const struct size_job *job = data;
    struct size_source *from = tsr__map_get(&job->draft->sizes, symbol);
    const uint64_t *origins;
    if (!from || !job->maker)
        return made(from); // the source marks the size as symbolic
    from = tsr__size_source(job->draft, job->item, job->axis, from, &origins);
    return made(job->maker->symbol(job->maker->data, from, origins));
}

// Computes `a op b`. Returns false (unknown) on overflow, on division by 0, and on division of
// negative numbers, which C and the operators of ONNX may round differently.
static bool compute(enum size_op op, int64_t a, int64_t b, int64_t *out)
{
    bool divides = a >= 0 && b > 0;
    switch (op) {
    case SIZE_OP_ADD:
        return add_ok(a, b, out);
    case SIZE_OP_SUB:
        return !__builtin_sub_overflow(a, b, out);
    case SIZE_OP_MUL:
        return mul_ok(a, b, out);
    case SIZE_OP_MAX:
        *out = int64_max(a, b);
        return true;
    case SIZE_OP_MIN:
        *out = int64_min(a, b);
        return true;
    case SIZE_OP_DIV:
        if (divides)
            *out = a / b;
        return divides;
    case SIZE_OP_MOD:
        if (divides)
            *out = a % b;
        return divides;
    }
    return false;
}

static tsr_value *as_value(const struct size_maker *maker, struct size_value size)
{
    return size.made ? (tsr_value *)size.made : maker->number(maker->data, size.number);
}

static struct size_value combine(void *data, enum size_op op, struct size_value a,
                                 struct size_value b)
{
    const struct size_job *job = data;
    struct size_value out = {.known = true};
    if (!a.made && !b.made) {
        out.known = compute(op, a.number, b.number, &out.number);
        return out;
    }
    if ((op == SIZE_OP_DIV || op == SIZE_OP_MOD) && !b.made && b.number <= 0)
        return not_known;
    if (!job->maker)
        return made(a.made ? a.made : b.made);
    tsr_value *left = as_value(job->maker, a), *right = as_value(job->maker, b);
    return made(job->maker->combine(job->maker->data, op, left, right));
}

// Computes a size. Its text may be a symbol or an expression. A text without a symbol, such as
// "10", is unknown, because ONNX stores numbers as numbers.
static struct size_value size_of(struct draft *draft, const struct size_maker *maker,
                                 const struct item *it, int axis)
{
    struct size_job job = {draft, it, axis, maker};
    struct size_reader reader = {&job, read_symbol, combine, 0};
    const tsr_dim *dim = &it->dims[axis];
    struct str text = str_of(dim->symbol);
    if (dim->value >= 0)
        return (struct size_value){.known = true, .number = dim->value};
    if (text.n > MAX_TEXT)
        return not_known;
    if (tsr__map_get(&draft->sizes, text))
        return read_symbol(&job, text);
    struct size_value size = tsr__size_read(&reader, text);
    return reader.names ? size : not_known;
}

bool tsr__size_known(struct draft *draft, const struct item *it, int axis)
{
    return size_of(draft, NULL, it, axis).known;
}

bool tsr__shape_known(struct draft *draft, const struct item *it)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (!tsr__size_known(draft, it, axis))
            return false;
    return it->rank >= 0;
}

tsr_value *tsr__size_make(struct draft *draft, const struct size_maker *maker,
                          const struct item *it, int axis)
{
    struct size_value size = size_of(draft, maker, it, axis);
    return size.known ? as_value(maker, size) : NULL;
}
