// SPDX-License-Identifier: Apache-2.0
// shm.h - ranks of one host as processes: the shared memory segment, and one rank's view of it.
//
// Everything in the segment is addressed by offsets, because processes may map it at different
// addresses. Words that change are atomic. Each is written by one rank, except those of shm_head.
#ifndef TSR_SHM_H
#define TSR_SHM_H

#include "transport/common/internal.h"

#include <pthread.h>
#include <stdatomic.h>

#define SHM_LINE   64
#define SHM_CORES  1024
#define SHM_CHUNK  (128u << 10) // bytes of a chunk of a staging area
#define SHM_STAGES 4            // chunks in a rank's staging area
#define SHM_PIECE  (64u << 10)  // bytes of a piece in shm_pair_buffer
#define SHM_RING   (256u << 10) // most bytes in flight from one rank to another

enum shm_state { SHM_ABSENT, SHM_AT_WORK, SHM_GONE };

// State that one rank publishes for another.
struct shm_pair {
    // Number of calls with the other rank that this rank has entered, shifted left by 2. The lowest
    // 2 bits are the indexes of the entries that it used in the last two of these calls.
    _Alignas(SHM_LINE) atomic_uint_fast64_t arrived;
    atomic_uint_fast64_t stamp[2]; // stamps of the last two calls (tsr__mailbox_stamp)
    // Number of these calls that this rank has left: it no longer reads the other's entries. On its
    // own cache line, because it is rarely read.
    _Alignas(SHM_LINE) atomic_uint_fast64_t departed;
    _Alignas(SHM_LINE) atomic_uint_fast64_t put;   // bytes put into the ring to the other rank
    _Alignas(SHM_LINE) atomic_uint_fast64_t taken; // bytes taken from the ring of the other rank
    atomic_uint_fast64_t copied; // number of parts of the other rank that were read in place
};
// Buffers for data of two ranks that is too large for their mailbox, piece by piece. Two buffers
// are used in turn, so that one is written while the other is read. Ownership alternates as with a
// mailbox.
struct shm_pair_buffer {
    _Alignas(SHM_LINE) char cells[2][2][SHM_PIECE];
};
// What a rank sends to one other rank in an exchange. at: offset in the segment; 0: through the
// ring.
struct shm_part {
    uint64_t bytes, at;
};
// A rank's description of one call. A rank has two and uses them in turn, so that it may continue
// while others still read the old one.
struct shm_entry {
    _Alignas(SHM_LINE) struct comm_header header; // its first 64 bytes are compared
    uint64_t in, out; // offsets of the buffers of an all-reduce; 0: not in shared memory
    uint64_t staged;  // number of chunks that the rank had staged before this call
    _Alignas(SHM_LINE) char data[SHM_INLINE];
};
// A file that a rank offers to rank 0 (shm_give.c).
struct shm_gift {
    int fd;
    uint64_t bytes, run;
};
struct shm_slot {
    _Alignas(SHM_LINE) atomic_int state;
    atomic_int waiting_for; // rank, or -1
    atomic_int pid;
    atomic_int showing; // entry of its current call
    _Alignas(SHM_LINE) atomic_uint_fast64_t beat;
    _Alignas(SHM_LINE) atomic_uint_fast64_t staged; // chunks staged so far
    struct shm_entry entries[2];
    _Alignas(SHM_LINE) atomic_uint_fast64_t given; // files offered so far
    struct shm_gift gifts[COMM_GIFTS];
    _Alignas(SHM_LINE) atomic_uint_fast64_t gifts_taken; // files that rank 0 has taken
    _Alignas(SHM_LINE) atomic_bool left; // the rank has failed between two calls, for this reason
    struct comm_trouble why;
};
struct shm_head {
    _Alignas(SHM_LINE) uint32_t magic, n;
    uint64_t bytes;
    atomic_int counted; // ranks whose cores are below (env.c)
    atomic_uint_fast64_t cores[SHM_CORES / 64];
    _Alignas(SHM_LINE) atomic_int failed; // 0; 1: being written; 2: trouble can be read
    struct comm_trouble trouble;
};

// Offsets in a segment for n ranks.
struct shm_layout {
    size_t slots, pairs, parts, stages, rings, mailboxes, pair_buffers, heaps, ring_bytes,
        heap_bytes, bytes;
};

struct shm_job {
    struct shm_layout at;
    char *base;
    int n, fd; // fd -1: inherited by fork alone
    double timeout_s;
    int host_ranks, host_cores;
    bool watched; // another process supervises the ranks' processes
};

#define SHM_STAGE   2
#define SHM_CLASSES 512 // number of size classes in shm_heap.c
// Ranks that may still read an entry or the staging area of this rank. meeting[rank]: number of the
// call with that rank in which this rank last wrote it.
struct shm_readers {
    uint64_t *meeting; // [rank]
    int *list, n;
};
// State of the communication with another rank, private to this rank.
struct shm_peer {
    uint64_t meetings;                 // calls with the other rank that this rank has entered
    uint64_t seen;                     // calls that the other rank has entered
    unsigned entry;                    // its entry in the last call that both entered
    uint64_t put, taken, copied, gave; // as in shm_pair; gave: parts provided in place
    uint64_t turns;                    // uses of the mailbox of both ranks
    uint64_t gifts;                    // files that rank 0 took from it
    uint64_t pieces[2];                // pieces sent through each buffer of shm_pair_buffer
    const char *part; // its data for this rank in this exchange; NULL: it comes through the ring
    uint64_t beat;
    double silent_s, looked_s;
};

struct block; // shm_heap.c
// A rank's part of the shared memory, in bytes. small, large: size of the two regions so far;
// waiting: bytes of free blocks; given: those whose pages were returned to the system; most: peak
// use; last: size of the last large block.
struct shm_heap {
    pthread_mutex_t lock;
    size_t small, large, waiting, given, most, last;
    struct block *free[SHM_CLASSES]; // by size
};

struct shm {
    struct endpoint endpoint; // must be first: endpoints are cast to this struct
    struct shm_job *job;
    struct shm_slot *slot;
    struct shm_peer *peers;
    struct shm_readers readers[3]; // readers of both entries, and of the staging buffer
    unsigned calls;
    int rings; // consecutive checks that found a deadlock
    int gone;  // consecutive checks that found that the awaited rank has ended
    bool crowded;
    uint64_t staged;
    uint64_t given, settled; // files offered to rank 0; of those, taken
    const void **ins;
    void **outs;
    size_t *sent, *got;
    int64_t (*notes)[COMM_NOTES];
    struct shm_heap heap;
    tsr_session *session;
    struct arena memory; // this struct and all that it points to
    pthread_t thread;
    bool has_thread, owns_job;
    bool stop; // protected by stop_lock
    pthread_mutex_t stop_lock;
    pthread_cond_t stopped; // CLOCK_MONOTONIC
    // Also called by tsr__shm_check: checks the network of a job on several hosts. NULL: one host.
    tsr_status (*also)(void *data, const struct comm_call *call, int peer,
                       struct comm_trouble *why);
    void *also_data;
};

static inline struct shm_head *shm_head(const struct shm_job *job)
{
    return (struct shm_head *)job->base;
}

static inline struct shm_slot *shm_slot(const struct shm_job *job, int rank)
{
    return (struct shm_slot *)(job->base + job->at.slots) + rank;
}

// Returns the state that `from` publishes for `to`.
static inline struct shm_pair *shm_pair(const struct shm_job *job, int from, int to)
{
    return (struct shm_pair *)(job->base + job->at.pairs) + (size_t)from * (size_t)job->n +
           (size_t)to;
}

static inline struct shm_part *shm_parts(const struct shm_job *job, int rank, int entry)
{
    size_t row = (size_t)rank * 2 + (size_t)entry;
    return (struct shm_part *)(job->base + job->at.parts) + row * (size_t)job->n;
}

static inline char *shm_stage(const struct shm_job *job, int rank, uint64_t chunk)
{
    size_t place = (size_t)rank * SHM_STAGES + (size_t)(chunk % SHM_STAGES);
    return job->base + job->at.stages + place * SHM_CHUNK;
}

static inline char *shm_ring(const struct shm_job *job, int from, int to)
{
    return job->base + job->at.rings +
           ((size_t)from * (size_t)job->n + (size_t)to) * job->at.ring_bytes;
}

// Returns the index of what two ranks share, in either order: the lower rank is the row, the higher
// the column.
static inline size_t shm_pair_place(const struct shm_job *job, int a, int b)
{
    size_t lower = (size_t)(a < b ? a : b);
    size_t higher = (size_t)(a < b ? b : a);
    return lower * (size_t)job->n + higher;
}

static inline struct mailbox *shm_mailbox(const struct shm_job *job, int a, int b)
{
    return (struct mailbox *)(job->base + job->at.mailboxes) + shm_pair_place(job, a, b);
}

static inline struct shm_pair_buffer *shm_pair_buffer(const struct shm_job *job, int a, int b)
{
    return (struct shm_pair_buffer *)(job->base + job->at.pair_buffers) + shm_pair_place(job, a, b);
}

// ---- shm_job.c
void tsr__shm_fail(struct shm_job *job, tsr_status status, int rank, const char *text);
tsr_status tsr__shm_failure(const struct shm_job *job, struct comm_trouble *why);
// Returns why the rank has left; TSR_OK: it has not.
tsr_status tsr__shm_left(const struct shm_job *job, int rank, struct comm_trouble *why);

// ---- shm_meet.c
// tsr__shm_begin writes this rank's entry for a call. tsr__shm_meet publishes it to the group and
// waits until all members have arrived and agree.
tsr_status tsr__shm_begin(struct shm *me, const struct comm_call *call, const int64_t *notes,
                          struct shm_entry **out, struct comm_trouble *why);
tsr_status tsr__shm_meet(struct shm *me, const struct comm_call *call, struct comm_trouble *why);
// As tsr__shm_meet, for two members that use their mailbox.
tsr_status tsr__shm_meet_in_mailbox(struct shm *me, const struct comm_call *call, int peer,
                                    struct comm_trouble *why);
// Synchronizes all members inside a call.
tsr_status tsr__shm_sync(struct shm *me, const struct comm_call *call, struct comm_trouble *why);
// Returns the entry that a member published in this rank's last call with it.
const struct shm_entry *tsr__shm_entry(const struct shm *me, int rank);
// Announces that this rank no longer reads the members' entries. They may still read its own.
void tsr__shm_depart(struct shm *me, const struct comm_call *call);
// Waits until no rank reads an entry (what: 0 or 1) or the staging area (SHM_STAGE) any more.
tsr_status tsr__shm_released(struct shm *me, const struct comm_call *call, int what,
                             struct comm_trouble *why);
// Checks once whether the job has failed, or the peer for which this rank waits has ended or
// stopped.
tsr_status tsr__shm_check(struct shm *me, const struct comm_call *call, int peer,
                          struct comm_trouble *why);
// Waits until a word of another rank, shifted right by `shift` bits, is at least `wanted`. *seen
// gets the word, not shifted.
tsr_status tsr__shm_await(struct shm *me, const struct comm_call *call, int peer,
                          const atomic_uint_fast64_t *word, unsigned shift, uint64_t wanted,
                          uint64_t *seen, struct comm_trouble *why);
tsr_status tsr__shm_give_up(struct shm *me, struct comm_trouble *why);

// ---- shm_heap.c
void *tsr__shm_alloc(struct endpoint *endpoint, size_t bytes);
bool tsr__shm_release(struct endpoint *endpoint, void *p);
size_t tsr__shm_held(struct endpoint *endpoint);

// ---- shm_give.c: see tsr__comm_give and the functions after it
tsr_status tsr__shm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why);
tsr_status tsr__shm_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why);
tsr_status tsr__shm_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why);
void tsr__shm_drop_gifts(struct shm *me); // closes files that rank 0 did not take

// ---- shm_move.c
tsr_status tsr__shm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why);
tsr_status tsr__shm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                             struct comm_exchange *exchange, struct comm_trouble *why);

#endif
