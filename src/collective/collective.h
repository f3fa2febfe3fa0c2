// SPDX-License-Identifier: Apache-2.0
// collective.h - the table of collectives: what each is called, what its operator carries, what it is priced by.
//
// One row each (collectives.def). Topology prices, transport moves, ops computes and partition writes by the row's index;
// whoever needs a name, an attribute or a trait reads it from the row. Moves nothing, prices nothing, knows no ONNX model.
#ifndef TSR_COLLECTIVE_H
#define TSR_COLLECTIVE_H

#include "base/base.h"

// The index of a row.
enum comm_kind {
#define PUBLIC_COLLECTIVE(name, ...) COMM_##name = TSR_##name,
#define COLLECTIVE(name, ...)        COMM_##name,
#include "collective/collectives.def"
#undef PUBLIC_COLLECTIVE
#undef COLLECTIVE
    COMM_KIND_COUNT,
    COMM_HANDSHAKE = COMM_KIND_COUNT, // has no row: ranks meet, and nothing is moved
};

// Attributes of some operators, in the order in which they are written; all operators have `plan`, `id`, `group` and
// `elem_type` besides.
enum comm_attribute {
    ATTRIBUTE_REDUCE,     // sum, max, min, prod
    ATTRIBUTE_AXIS,       // that becomes whole, or of a reduction cut
    ATTRIBUTE_SPLIT_AXIS, // that becomes cut
    ATTRIBUTE_UNIT,       // in which the axis is cut
    ATTRIBUTE_SHARES,     // of the members, in the axis that is cut; absent: all have as much
    ATTRIBUTE_ROOT,       // who has it, or gets it
    ATTRIBUTE_FROM,       // who sends
    ATTRIBUTE_TO,         // who receives
    ATTRIBUTE_SOURCE,     // layout before
    ATTRIBUTE_TARGET,     // layout after
    ATTRIBUTE_AXES,       // that have windows
    ATTRIBUTE_WINDOWS,    // of each member, along these axes
    ATTRIBUTE_COUNT
};

enum comm_trait {
    TRAIT_FOLDS = 1, // elements of all members are combined: pending values become finished
    TRAIT_JOINS = 2, // pieces of all members are joined along `axis`; their other sizes are equal
    TRAIT_TAKES_SHAPE = 4,     // the second input is the shape of the whole tensor
    TRAIT_TEXTS = 8,           // elements may be texts
    TRAIT_IN_PLACE = 16,       // the output may lie where the input lay
    TRAIT_MAY_LACK_INPUT = 32, // a member may have nothing to give: its input is empty
    TRAIT_ALL_KEEP = 64,       // every member keeps its output, also one that gets no elements
    TRAIT_COPIES_WITHIN = 128, // a group of one device still has its node, which copies
};

// The bytes by which a price is asked for.
enum comm_pricing {
    PRICED_BY_INPUT,      // of the largest member
    PRICED_BY_OUTPUT,     // of the largest member
    PRICED_BY_ALL_INPUTS, // of the largest member, times the members
    PRICED_AS_EXCHANGE,   // no collective of topology: everybody with everybody
    PRICED_AS_NEIGHBOURS, // no collective of topology: one message to a neighbour
};

// What of the whole tensor, of n members, each reads and writes in its own memory besides what topology counts.
enum comm_copies {
    COPIES_ALL,     // 1
    COPIES_OTHERS,  // (n - 1) / n: all but its own part
    COPIES_PAIRS,   // (n - 1) / n^2: of its own part all but what stays
    COPIES_NOTHING, // it is folded as it comes
};

// Memory that the operator needs beside its tensors.
enum comm_scratch {
    SCRATCH_NONE,
    SCRATCH_INPUT,           // as much as the input
    SCRATCH_BOTH,            // as much as input and output
    SCRATCH_UNPACKED_INPUT,  // as much as the input, unless the parts along `axis` lie on end
    SCRATCH_UNPACKED_OUTPUT, // as much as the output, likewise
};

struct collective {
    const char *op;        // the operator in a rank file: "AllReduce"; for float16 F16 follows
    const char *other_end; // NULL, or what stands on the rank that receives: "Recv"
    const char *both_ends; // NULL, or both, for messages: "Send or Recv"
    const char *word;      // in texts and JSON: "all-reduce"
    int stamp;             // in fingerprints of partitions: never changes, is never used again
    unsigned attributes;   // bit k: enum comm_attribute k
    unsigned traits;       // enum comm_trait
    enum comm_pricing priced_by;
    enum comm_copies copies;
    enum comm_scratch scratch;
};

// The row; kind is below COMM_KIND_COUNT.
const struct collective *tsr__collective(int kind);
// The row of an operator's name, as it stands in a rank file: "RecvF16" is that of Send. COMM_KIND_COUNT: no such operator.
enum comm_kind tsr__collective_find(struct str op);
// What the operator is called without its type and seen from the sender: "RecvF16" -> "Send"; an unknown name without F16.
struct str tsr__collective_plain(struct str op);
// The operator is that of float16 alone: "RecvF16".
bool tsr__collective_is_half(struct str op);
const char *tsr__attribute_name(enum comm_attribute attribute); // "split_axis"

// The kind, which may be a number beyond the table (a step that is no collective), is a collective with this trait.
static inline bool comm_has(int kind, enum comm_trait trait)
{
    return kind < COMM_KIND_COUNT && (tsr__collective(kind)->traits & (unsigned)trait);
}

// The operator of the kind carries this attribute.
static inline bool comm_carries(int kind, enum comm_attribute attribute)
{
    return tsr__collective(kind)->attributes >> attribute & 1;
}

#endif
