// SPDX-License-Identifier: Apache-2.0
// internal.h - what the transports share: the header sent before data, comparing, waiting.
#ifndef TSR_TRANSPORT_INTERNAL_H
#define TSR_TRANSPORT_INTERNAL_H

#include "transport/transport.h"

#define HEADER_MAGIC                                                                               \
    0x31525354u // "TSR1" on a little-endian host; another byte order does not match

// A call as it is sent to the other members.
struct comm_header {
    uint32_t magic, kind, reduce, type;
    uint64_t plan;
    int64_t id;
    uint64_t run;
    int64_t count;
    uint64_t detail, group; // group: hash of its members
    int64_t notes[COMM_NOTES];
    uint64_t bytes; // bytes that this member sends to the reader (set per reader)
    char op[16], node[COMM_NAME];
};

// True if fd becomes readable before `until` (tsr__now_s).
bool tsr__wait_readable(int fd, double until);
// True if the process at the other end of a Unix socket has the same user.
bool tsr__same_user(int fd);

void tsr__header_of(const struct comm_call *call, const int64_t *notes, struct comm_header *out);
// Returns TSR_OK if both headers agree; otherwise describes how the two ranks differ.
tsr_status tsr__header_compare(const struct comm_header *mine, int my_rank,
                               const struct comm_header *theirs, int their_rank,
                               struct comm_trouble *why);
// Chooses the algorithm of a call and notes it in the endpoint. Returns its place among the rows of
// shape->path (tsr__algorithm_place); -1: that path has no row for it.
int tsr__comm_choose(struct endpoint *endpoint, enum comm_kind kind,
                     const struct comm_shape *shape);
// Ends the job for the reason of a failed call, or leaves it (tsr__comm_leave).
void tsr__comm_give_up(struct endpoint *endpoint, const struct comm_trouble *why);
// Fills `why` and returns the status, for `return tsr__trouble(...)`.
tsr_status tsr__trouble(struct comm_trouble *why, tsr_status status, int rank, const char *format,
                        ...) TSR_PRINTF(4, 5);
// Errors of a rank `me` that waits for another or gets a wrong number of bytes. `what`: what
// the other one did, such as "has ended". tsr__trouble_ring: the ranks wait for each other.
tsr_status tsr__trouble_waits(struct comm_trouble *why, const struct comm_call *call, int peer,
                              const char *what, int me);
tsr_status tsr__trouble_ring(struct comm_trouble *why, const struct comm_call *call, int me,
                             int peer, const char *op, const char *node, int64_t id);
tsr_status tsr__trouble_size(struct comm_trouble *why, const struct comm_call *call, int peer,
                             uint64_t sent, int me, size_t expected);
// Returns the index of a rank in a group of n ranks; -1: it is no member.
int tsr__member_of(const int64_t *group, int n, int rank);
// Copies text into a field of n bytes, truncated and terminated; keeps UTF-8 characters whole.
void tsr__name_copy(char *out, size_t n, const char *text);

// A wait that spins (or yields, if ranks share cores), then sleeps in short steps.
struct patience {
    unsigned rounds;
    double started_s, looked_s; // 0: not yet measured
};
// Waits one step. Returns true about every millisecond: then the caller checks for failures.
// `crowded`: ranks share cores, so it never spins.
bool tsr__patience(struct patience *patience, bool crowded);

#define RING_LOOKS 50 // a ring seen this often is a deadlock, not a snapshot of moving ranks
// True if a rank waits for one that waits for another, and so on back to this rank. waits_for:
// returns the rank for which a rank waits, -1: none. A rank whose peer has arrived, but which has
// not noticed it yet, does not wait.
bool tsr__in_ring(int rank, int ranks, int (*waits_for)(const void *job, int rank),
                  const void *job);

// Memory of two ranks for small reductions. In each call one rank writes one cell and reads the
// other; in the next call the cells are exchanged. So each rank writes the cell that it read last,
// which no other rank reads any more: a cache line moves once per call, and no rank waits before it
// writes. The stamp (tsr__mailbox_stamp) identifies the call.
struct mailbox {
    _Alignas(64) char cells[2][MAILBOX_BYTES];
};
// Returns the cell that the lower (`higher` false) or the higher rank writes in call number `turn`
// of the mailbox; the other rank reads it.
static inline char *mailbox_cell(struct mailbox *mailbox, bool higher, uint64_t turn)
{
    return mailbox->cells[(turn + higher) & 1];
}
// Returns the stamp of a call: a hash of its header and of `meeting`, the number of the call
// between the two ranks. It is never 0, which marks a call that does not use the mailbox.
uint64_t tsr__mailbox_stamp(const struct comm_header *header, uint64_t meeting);
// Describes how two ranks with different stamps differ.
tsr_status tsr__mailbox_differs(const struct comm_header *mine, int my_rank,
                                const struct comm_header *theirs, int their_rank,
                                struct comm_trouble *why);
// Folds this rank's `in` and the other rank's cell `theirs` into `out`, the lower rank first.
void tsr__mailbox_fold(const struct comm_call *call, const char *theirs, bool higher,
                       const void *in, void *out);

// tsr__reduce_wide folds from byte `at` on, as tsr__reduce does, with vector instructions. `level`
// is 0 (any processor) to tsr__reduce_level (the best of this processor). Returns the offset where
// it stopped, which is `at` if there is no vector code (reduce_wide.c). `large`: uses non-temporal
// stores if the processor has them.
int tsr__reduce_level(void);
size_t tsr__reduce_wide(int level, tsr_dtype type, enum comm_reduce op, const char *const *in,
                        int n, char *const *out, int n_out, size_t at, size_t end, bool large);

// A reduction in several steps, each of which folds the inputs of some members. The partial result
// between two steps has the type tsr__partial_type: float for 16-bit floats, so that they are
// rounded once, as tsr__reduce does. continues: in[0] is the partial result of the step before.
// last: `out` gets the result, else a partial one.
tsr_dtype tsr__partial_type(tsr_dtype type);
void tsr__reduce_step(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                      bool continues, bool last, void *out, int64_t count);

// Computes the elements [first, first + length) that member k of n folds: full cache lines, nearly
// equal shares.
void tsr__slice(int64_t count, size_t elem_bytes, int n, int k, int64_t *first, int64_t *length);

#endif
