// SPDX-License-Identifier: Apache-2.0
// collective.h - the table of collectives: names, attributes, traits and cost basis of each; and
// the table of the algorithms that run them.
//
// Each collective is one row of collectives.def. All modules refer to it by the index of its row
// and read names, attributes and traits from the row: topology computes costs, transport
// communicates, ops has the kernels, and partition writes the operators. Transport and topology ask
// tsr__algorithm which algorithm runs a collective.
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
// the node has the attribute `part`. The last one, comm_after, is a tensor of floats (float16 for
// the variant of float16) that is not read: the communication waits for it. Only weights that are
// converted in each run have it, because nothing else keeps a rank from converting all of them at
// the beginning of the run.
static inline size_t comm_token(int kind)
{
    return comm_has(kind, TRAIT_TAKES_SHAPE) ? 2 : 1;
}
static inline size_t comm_after(int kind)
{
    return comm_token(kind) + (comm_carries(kind, ATTRIBUTE_PART) ? 2 : 1);
}

// ---- algorithms: which one runs a collective, and which one is predicted

// How the members of a group reach each other.
enum comm_path {
    PATH_THREADS,  // threads of one process
    PATH_SHM,      // processes of one host, by shared memory
    PATH_HOSTS,    // shared memory inside hosts, messages between them
    PATH_MESSAGES, // messages between all members
    PATH_OWN,      // GPUs that access each other's memory
    PATH_NCCL,     // GPUs with an NCCL communicator
    PATH_COPIES,   // through host memory, of which GPUs have copies
    PATH_EXCHANGE, // any of these
};

// What decides about the algorithm; equal on all members. `bytes` is the size of the full tensor
// (enum comm_cost_basis). Fields of other paths are not read.
struct comm_shape {
    enum comm_path path;
    int members;
    size_t bytes;
    int hosts, most; // PATH_HOSTS: number of hosts, and members of the largest
    bool in_order;   // PATH_HOSTS: the members of each host follow each other in the group
    bool in_reach;   // PATH_SHM: all tensors are in the shared memory
    bool crowded;    // PATH_MESSAGES: ranks share cores
    bool one_gpu;    // PATH_OWN: all members are on one GPU
    bool ordered;    // PATH_NCCL: sums must be in group order
    bool folds; // PATH_NCCL, PATH_COPIES: a kernel of a GPU can fold the tensors of all members
    bool equal; // PATH_NCCL: the shards of all members have the same size
    bool all_reduces_only; // PATH_NCCL: the library has no other collective
    bool pinned;           // PATH_COPIES: all members are on GPUs of one process, see `pinned_sums`
};

#define MAILBOX_BYTES 4096        // memory of two ranks for small reductions
#define SHM_INLINE    (16u << 10) // data in the description of a call in shared memory
#define NET_FRAME     (64u << 10) // data in the first messages of a call: divided by the receivers,
#define NET_INLINE    (8u << 10)  // but at least this much to each
#define NET_STEP      (22u << 10) // data that a network sends in the time that one message takes
#define HEAD_MEMBERS  8           // of the largest group in which one member folds for all
#define PINNED_LEAST  (1u << 20)  // with less, synchronization costs more than GPUs save

// Returns the number of data bytes that the first message to each other member can have.
size_t tsr__frame_room(int members);

// The algorithms of each path, the preferred ones first: function, name, collective, condition on
// `shape`. The files of a path have a function of that name that runs the algorithm, and
// topology/schedules.c has the schedule of that name that predicts its time.
//
// Two ranks copy small tensors into their mailbox. Else each member folds a slice of all tensors.
#define THREADS_ALGORITHMS(ROW)                                                                    \
    ROW(THREADS, mailbox, "mailbox", ALL_REDUCE, fits_mailbox(shape))                              \
    ROW(THREADS, slices, "direct", ALL_REDUCE, true)
// In shared memory tensors of up to SHM_INLINE are folded by every member, with one
// synchronization. Larger ones must be in the memory, or are copied piece by piece.
#define SHM_ALGORITHMS(ROW)                                                                        \
    ROW(SHM, mailbox, "mailbox", ALL_REDUCE, fits_mailbox(shape))                                  \
    ROW(SHM, one_shot, "one shot", ALL_REDUCE, shape->bytes <= SHM_INLINE)                         \
    ROW(SHM, in_reach, "direct", ALL_REDUCE, shape->in_reach)                                      \
    ROW(SHM, pieces, "pieces", ALL_REDUCE, shape->members == 2)                                    \
    ROW(SHM, staged, "staged", ALL_REDUCE, true)
// Groups with several members on a host. What has no row here is sent as on PATH_MESSAGES. Sums
// along lanes need the members of each host one after the other. Without lanes, a scatter sends
// k (h - 1) / h tensors to a host of k members, along lanes one.
#define HOSTS_ALGORITHMS(ROW)                                                                      \
    ROW(HOSTS, first_ranks, "first ranks", ALL_REDUCE, prefers_first_ranks(shape))                 \
    ROW(HOSTS, lanes_reduce, "lanes", ALL_REDUCE, shape->in_order)                                 \
    ROW(HOSTS, lanes_scatter, "lanes", REDUCE_SCATTER, prefers_lanes(shape))                       \
    ROW(HOSTS, lanes_gather, "lanes", ALL_GATHER, true)
// Messages: on shared cores the first member folds small tensors for all, because there messages
// cost more than waiting. Small tensors are in the first messages. Of others each member folds a
// slice.
#define MESSAGES_ALGORITHMS(ROW)                                                                   \
    ROW(MESSAGES, at_head, "head", ALL_REDUCE, prefers_head(shape))                                \
    ROW(MESSAGES, one_shot, "one shot", ALL_REDUCE,                                                \
        shape->bytes <= tsr__frame_room(shape->members))                                           \
    ROW(MESSAGES, in_rounds, "direct", ALL_REDUCE, true)
#define OWN_ALGORITHMS(ROW)                                                                        \
    ROW(OWN, first_folds, "first folds", ALL_REDUCE, shape->one_gpu)                               \
    ROW(OWN, slices, "direct", ALL_REDUCE, true)
// NCCL's collectives, unless they would add in another order than asked for. Reductions that NCCL
// cannot run and no kernel can fold go through host memory.
#define NCCL_ALGORITHMS(ROW)                                                                       \
    ROW(NCCL, nccl_all_reduce, "NCCL", ALL_REDUCE, !shape->ordered)                                \
    ROW(NCCL, in_order, "direct", ALL_REDUCE, shape->folds)                                        \
    ROW(NCCL, over_host, "chunks", ALL_REDUCE, true)                                               \
    ROW(NCCL, nccl_all_gather, "NCCL", ALL_GATHER, has_nccl(shape) && shape->equal)                \
    ROW(NCCL, nccl_reduce_scatter, "NCCL", REDUCE_SCATTER,                                         \
        has_nccl(shape) && shape->equal && !shape->ordered)                                        \
    ROW(NCCL, nccl_broadcast, "NCCL", BROADCAST, has_nccl(shape))                                  \
    ROW(NCCL, nccl_reduce, "NCCL", REDUCE, has_nccl(shape) && !shape->ordered)
// Large sums of GPUs are folded by the GPUs, out of pinned host memory.
#define COPIES_ALGORITHMS(ROW)                                                                     \
    ROW(COPIES, pinned_sums, "pinned", ALL_REDUCE,                                                 \
        shape->pinned && shape->folds && shape->bytes >= PINNED_LEAST)                             \
    ROW(COPIES, chunks, "chunks", ALL_REDUCE, true)
// What no path above has an algorithm for: every member sends its part to every other one that
// needs it. `exchange` of each transport runs it.
#define EXCHANGE_ALGORITHMS(ROW)                                                                   \
    ROW(EXCHANGE, direct_gather, "direct", ALL_GATHER, true)                                       \
    ROW(EXCHANGE, direct_scatter, "direct", REDUCE_SCATTER, true)                                  \
    ROW(EXCHANGE, direct_all_to_all, "direct", ALL_TO_ALL, true)                                   \
    ROW(EXCHANGE, direct_broadcast, "direct", BROADCAST, true)                                     \
    ROW(EXCHANGE, direct_reduce, "direct", REDUCE, true)                                           \
    ROW(EXCHANGE, one_message, "message", SEND, true)
#define ALGORITHMS(ROW)                                                                            \
    THREADS_ALGORITHMS(ROW)                                                                        \
    SHM_ALGORITHMS(ROW)                                                                            \
    HOSTS_ALGORITHMS(ROW)                                                                          \
    MESSAGES_ALGORITHMS(ROW)                                                                       \
    OWN_ALGORITHMS(ROW)                                                                            \
    NCCL_ALGORITHMS(ROW)                                                                           \
    COPIES_ALGORITHMS(ROW)                                                                         \
    EXCHANGE_ALGORITHMS(ROW)

struct comm_algorithm {
    const char *name;
    enum comm_path path;
    enum comm_kind kind;
    bool (*applies)(const struct comm_shape *shape);
};
// Returns the algorithm that runs the collective: the first row that applies. NULL: a kind that is
// only an exchange, such as COMM_RESHARD.
const struct comm_algorithm *tsr__algorithm(enum comm_kind kind, const struct comm_shape *shape);
// True if groups of that path may use the row.
bool tsr__algorithm_serves(const struct comm_algorithm *algorithm, enum comm_path path);
// Returns row i of ALGORITHMS; NULL behind the last one.
const struct comm_algorithm *tsr__algorithm_at(size_t i);
// Returns the number of a row among those of its path: the place of its function in a table that
// the path makes of its rows.
int tsr__algorithm_place(const struct comm_algorithm *algorithm);

#endif
