// SPDX-License-Identifier: Apache-2.0
// collective.c - the table of collectives, and functions that search it.
//
// collectives.def is included twice: in collective.h for the indices, here for the fields.
#include "collective/collective.h"

#define HAS(attribute) (1u << ATTRIBUTE_##attribute)

static const struct collective collectives[COMM_KIND_COUNT] = {
#define PUBLIC_COLLECTIVE(name, ...) [COMM_##name] = {__VA_ARGS__},
#define COLLECTIVE                   PUBLIC_COLLECTIVE
#include "collective/collectives.def"
};

static const char *const attribute_names[ATTRIBUTE_COUNT] = {[ATTRIBUTE_REDUCE] = "reduce",
                                                             [ATTRIBUTE_AXIS] = "axis",
                                                             [ATTRIBUTE_SPLIT_AXIS] = "split_axis",
                                                             [ATTRIBUTE_UNIT] = "unit",
                                                             [ATTRIBUTE_SHARES] = "shares",
                                                             [ATTRIBUTE_PART] = "part",
                                                             [ATTRIBUTE_ROOT] = "root",
                                                             [ATTRIBUTE_FROM] = "from",
                                                             [ATTRIBUTE_TO] = "to",
                                                             [ATTRIBUTE_SOURCE] = "source",
                                                             [ATTRIBUTE_TARGET] = "target",
                                                             [ATTRIBUTE_AXES] = "axes",
                                                             [ATTRIBUTE_WINDOWS] = "windows"};

// Returns a row of the table. Does not check `kind`: it comes from the enumeration, and transport.c
// checks kinds that other ranks send.
const struct collective *tsr__collective(int kind)
{
    return &collectives[kind];
}

const char *tsr__attribute_name(enum comm_attribute attribute)
{
    return attribute_names[attribute];
}

static const char half[] = "F16";

bool tsr__collective_is_half(struct str op)
{
    size_t n = sizeof half - 1;
    return op.n > n && memcmp(op.p + op.n - n, half, n) == 0;
}

static struct str without_type(struct str op)
{
    if (tsr__collective_is_half(op))
        op.n -= sizeof half - 1;
    return op;
}

enum comm_kind tsr__collective_find(struct str op)
{
    struct str plain = without_type(op);
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = &collectives[kind];
        if (str_is(plain, row->op) || (row->other_end && str_is(plain, row->other_end)))
            return (enum comm_kind)kind;
    }
    return COMM_KIND_COUNT;
}

struct str tsr__collective_plain(struct str op)
{
    enum comm_kind kind = tsr__collective_find(op);
    return kind == COMM_KIND_COUNT ? without_type(op) : str_of(collectives[kind].op);
}

// Returns the name of a public collective. Public kinds are the first rows of the table.
const char *tsr_collective_name(tsr_collective what)
{
    return (int)what < 0 || what >= TSR_COLLECTIVE_COUNT ? NULL : collectives[what].word;
}
