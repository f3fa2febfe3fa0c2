// SPDX-License-Identifier: Apache-2.0
// collective.h - the table of collectives: names, attributes, traits and cost basis of each.
//
// Each collective is one row of collectives.def. All modules refer to it by the index of its row
// and read names, attributes and traits from the row: topology computes costs, transport
// communicates, ops has the kernels, and partition writes the operators.
#ifndef TSR_COLLECTIVE_H
#define TSR_COLLECTIVE_H

#include "base/base.h"

enum comm_kind {
#define PUBLIC_COLLECTIVE(name, ...) COMM_##name = TSR_##name,
#define COLLECTIVE(name, ...)        COMM_##name,
#include "collective/collectives.def"
#undef PUBLIC_COLLECTIVE
#undef COLLECTIVE
    COMM_KIND_COUNT,
    COMM_HANDSHAKE = COMM_KIND_COUNT, // has no row: ranks synchronize without data
};

// Attributes of operators, in the order in which they are written. All operators also have `plan`,
// `id`, `group` and `elem_type`.
enum comm_attribute {
    ATTRIBUTE_REDUCE,     // sum, max, min, prod
    ATTRIBUTE_AXIS,       // axis that is gathered, or scattered by a reduction
    ATTRIBUTE_SPLIT_AXIS, // axis that becomes sharded
    ATTRIBUTE_UNIT,       // block size of the sharded axis
    ATTRIBUTE_SHARES,     // share of each member of the sharded axis; absent: equal shares
    ATTRIBUTE_PART,       // units first to stop of the full axis, which the members divide
    ATTRIBUTE_ROOT,       // source or destination
    ATTRIBUTE_FROM,       // sender
    ATTRIBUTE_TO,         // receiver
    ATTRIBUTE_SOURCE,     // layout before
    ATTRIBUTE_TARGET,     // layout after
    ATTRIBUTE_AXES,       // axes with windows
    ATTRIBUTE_WINDOWS,    // windows of each member along these axes
    ATTRIBUTE_COUNT
};

enum comm_trait {
    TRAIT_REDUCES = 1,         // reduces: partial results become final results
    TRAIT_JOINS = 2,           // concatenates along `axis`; the other sizes are equal
    TRAIT_TAKES_SHAPE = 4,     // the second input is the shape of the full tensor
    TRAIT_STRINGS = 8,         // elements may be strings
    TRAIT_IN_PLACE = 16,       // the output may use the memory of the input
    TRAIT_MAY_LACK_INPUT = 32, // a member may have an empty input
    TRAIT_ALL_KEEP = 64,       // every member has an output, which may be empty
    TRAIT_COPIES_WITHIN = 128, // a group of one device still needs the operator, which copies
};

// Which bytes determine the cost.
enum comm_cost_basis {
    COST_BY_INPUT,      // largest input of a member
    COST_BY_OUTPUT,     // largest output of a member
    COST_BY_ALL_INPUTS, // largest input of a member, times the number of members
    COST_OF_EXCHANGE,   // messages between all pairs
    COST_OF_NEIGHBOURS, // one message to a neighbour
};

// The part of the full tensor that each of n members copies in its own memory, in addition to the
// transfers that topology counts.
enum comm_copies {
    COPIES_ALL,     // 1, the full tensor
    COPIES_OTHERS,  // (n - 1) / n: everything but its own part
    COPIES_PAIRS,   // (n - 1) / n^2: its own part, except the share that stays
    COPIES_NOTHING, // nothing: reduced while it is received
};

// Temporary memory that the operator needs.
enum comm_scratch {
    SCRATCH_NONE,
    SCRATCH_INPUT,           // size of the input
    SCRATCH_BOTH,            // size of input and output
    SCRATCH_UNPACKED_INPUT,  // size of the input, unless the parts along `axis` are contiguous
    SCRATCH_UNPACKED_OUTPUT, // size of the output, unless the parts along `axis` are contiguous
};

// A group that spans hosts.
struct group_shape {
    int members, hosts;
    bool in_order; // the members of each host follow each other in the group
};
// The algorithms of groups of CPUs that span hosts, the preferred ones first: function, name,
// collective, a condition on the group (`struct group_shape shape`), and the size of the tensor:
// SMALL (the tensors of a host fit into one message), LARGE, or ANY_SIZE.
// transport/net/by_hosts.c runs them, and topology/schedules.c has their predicted times; both have
// functions of these names. Sums along lanes need the members of each host one after the other.
// Without lanes, a scatter sends k (h - 1) / h tensors to a host of k members, along lanes one.
#define HOSTS_ALGORITHMS(ROW)                                                                      \
    ROW(first_ranks, "first ranks", ALL_REDUCE, true, SMALL)                                       \
    ROW(lanes_reduce, "lanes", ALL_REDUCE, shape.in_order, ANY_SIZE)                               \
    ROW(lanes_scatter, "lanes", REDUCE_SCATTER,                                                    \
        shape.in_order &&shape.members *(shape.hosts - 1) > shape.hosts * shape.hosts, LARGE)      \
    ROW(lanes_gather, "lanes", ALL_GATHER, true, ANY_SIZE)

struct collective {
    const char *op;        // operator in rank files: "AllReduce", for float16 "AllReduceF16"
    const char *other_end; // operator of the receiver: "Recv"; NULL: the same
    const char *both_ends; // for messages: "Send or Recv"; NULL: the same
    const char *word;      // name in messages and JSON: "all-reduce"
    int stamp;             // number in fingerprints of partitions; never changed or reused
    unsigned attributes;   // bit k: enum comm_attribute k
    unsigned traits;       // enum comm_trait
    enum comm_cost_basis cost_basis;
    enum comm_copies copies;
    enum comm_scratch scratch;
};

// Returns the row of a collective. `kind` must be below COMM_KIND_COUNT.
const struct collective *tsr__collective(int kind);
// Finds an operator of a rank file: "RecvF16" is COMM_SEND. Returns COMM_KIND_COUNT if it is
// unknown.
enum comm_kind tsr__collective_find(struct str op);
// Returns the name of the operator without its element type, and of the sender instead of the
// receiver: "RecvF16" gives "Send". Unknown names lose only F16.
struct str tsr__collective_plain(struct str op);
// True for the float16 variant: "RecvF16".
bool tsr__collective_is_half(struct str op);
const char *tsr__attribute_name(enum comm_attribute attribute); // "split_axis"

// True if the collective has the trait. False for a `kind` beyond the table: steps of a resharding
// that are not collectives (enum reshard_op) have such numbers.
static inline bool comm_has(int kind, enum comm_trait trait)
{
    return kind < COMM_KIND_COUNT && (tsr__collective(kind)->traits & (unsigned)trait);
}

static inline bool comm_carries(int kind, enum comm_attribute attribute)
{
    return tsr__collective(kind)->attributes >> attribute & 1;
}

// Returns the index of the token, the input that orders the communications of a rank. Before it are
// the tensor and the shape, if the operator takes one. After it is the size of the full axis, if
// the node has the attribute `part`.
static inline size_t comm_token(int kind)
{
    return comm_has(kind, TRAIT_TAKES_SHAPE) ? 2 : 1;
}

#endif
