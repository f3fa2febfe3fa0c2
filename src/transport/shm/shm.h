// SPDX-License-Identifier: Apache-2.0
// shm.h - ranks of one host that are processes: the memory they share, and one rank's view of it.
//
// Everything in the segment is found by offsets, because processes may map it at different
// addresses. Words that change are atomic; each is written by one rank, but for the verdict on the
// job.
#ifndef TSR_SHM_H
#define TSR_SHM_H

#include "transport/common/internal.h"

#include <pthread.h>
#include <stdatomic.h>

#define SHM_LINE   64
#define SHM_CORES  1024
#define SHM_INLINE (16u << 10)  // all-reduce up to this: every member folds it whole, one meeting
#define SHM_CHUNK  (128u << 10) // of a stage
#define SHM_STAGES 4            // chunks of a rank's stage
#define SHM_PIECE  (64u << 10)  // of a sum of two ranks that does not lie in reach
#define SHM_RING   (256u << 10) // bytes under way from one rank to another, at most

enum shm_state { SHM_ABSENT, SHM_AT_WORK, SHM_GONE };

// From one rank to another. arrived: meetings of the two that this rank has come to, and which of
// its entries it showed at the last and the one before (2 bits); stamps of the last two, by number. departed: meetings
// after which it no longer reads what the other showed; on a line of its own, because hardly anybody looks. Bytes put into the ring to the other; taken from the ring
// that the other fills.
struct shm_pair {
    _Alignas(SHM_LINE) atomic_uint_fast64_t arrived;
    atomic_uint_fast64_t stamp[2];
    _Alignas(SHM_LINE) atomic_uint_fast64_t departed;
    _Alignas(SHM_LINE) atomic_uint_fast64_t put;
    _Alignas(SHM_LINE) atomic_uint_fast64_t taken;
    atomic_uint_fast64_t copied; // parts that were read where they lie
};
// Where two ranks with more than fits on their mailbox put it, piece by piece; two of them in turn, so that one piece is
// written while the other is read. Cells change hands like those of a mailbox.
struct shm_bench {
    _Alignas(SHM_LINE) char cells[2][2][SHM_PIECE];
};
// What goes from a rank to one other in an exchange. at: offset in the segment, 0: through the ring.
struct shm_part {
    uint64_t bytes, at;
};
// What a rank says about one call. A rank has two of these and uses them in turn, so that it may go
// on while others still read.
struct shm_entry {
    _Alignas(SHM_LINE) struct comm_header header; // its first 64 bytes are what is compared
    uint64_t in, out;                             // of an all-reduce: offsets, 0: out of reach
    uint64_t staged;                              // chunks that it had staged before
    _Alignas(SHM_LINE) char data[SHM_INLINE];
};
// A file that a rank holds for rank 0 (shm_give.c).
struct shm_gift {
    int fd;
    uint64_t bytes, run;
};
struct shm_slot {
    _Alignas(SHM_LINE) atomic_int state;
    atomic_int waiting_for; // rank, or -1
    atomic_int pid;
    atomic_int showing; // entry of the call it is in
    _Alignas(SHM_LINE) atomic_uint_fast64_t beat;
    _Alignas(SHM_LINE) atomic_uint_fast64_t staged; // chunks staged so far
    struct shm_entry entries[2];
    _Alignas(SHM_LINE) atomic_uint_fast64_t given; // files so far
    struct shm_gift gifts[COMM_GIFTS];
    _Alignas(SHM_LINE) atomic_uint_fast64_t gifts_taken; // by rank 0
};
struct shm_head {
    _Alignas(SHM_LINE) uint32_t magic, n;
    uint64_t bytes;
    atomic_int counted; // ranks whose cores are below (env.c)
    atomic_uint_fast64_t cores[SHM_CORES / 64];
    _Alignas(SHM_LINE) atomic_int failed; // 0; 1: being written; 2: trouble can be read
    struct comm_trouble trouble;
};

// Where things lie in a segment for n ranks.
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
    bool watched; // somebody else looks after the processes
};

#define SHM_STAGE   2
#define SHM_CLASSES 512 // of sizes, in shm_heap.c
// Who may still read what this rank has shown: the meeting with each rank of a list.
struct shm_readers {
    uint64_t *meeting; // [rank]
    int *list, n;
};
// Another rank, as this one has seen it so far.
struct shm_peer {
    uint64_t meetings;                 // with it, that this rank came to
    uint64_t seen;                     // that it came to
    unsigned entry;                    // which it showed at the last of them that both came to
    uint64_t put, taken, copied, gave; // like in shm_pair; gave: parts given where they lie
    uint64_t turns;                    // at the mailbox of both
    uint64_t gifts;                    // that rank 0 took from it
    uint64_t pieces[2];                // at either side of the pair buffer of both
    const char
        *part; // what it sends in this exchange, where it lies; NULL: it comes through the ring
    uint64_t beat;
    double silent_s, looked_s;
};

struct block; // shm_heap.c
// A rank's part of the shared memory, in bytes: of small and of large blocks so far; of those, free; of those, without pages;
// most in use at a time; the last of the large blocks.
struct shm_heap {
    pthread_mutex_t lock;
    size_t small, large, waiting, given, most, last;
    struct block *free[SHM_CLASSES]; // by size
};

struct shm {
    struct endpoint endpoint; // first
    struct shm_job *job;
    struct shm_slot *slot;
    struct shm_peer *peers;
    struct shm_readers readers[3]; // of both entries, and of the stage
    unsigned calls;
    int rings; // looks in a row that saw a ring of ranks that wait for each other
    int gone;  // looks in a row that saw that the rank waited for has ended
    bool crowded;
    uint64_t staged;
    uint64_t given, settled; // files left for rank 0; of those, taken
    const void **ins;
    void **outs;
    size_t *sent, *got;
    int64_t (*notes)[COMM_NOTES];
    struct shm_heap heap;
    tsr_session *session;
    pthread_t thread;
    bool has_thread, owns_job;
    bool stop; // under stop_lock, as is its telling
    pthread_mutex_t stop_lock;
    pthread_cond_t stopped; // CLOCK_MONOTONIC
    // Looks elsewhere too while this rank waits (job over hosts), or NULL.
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

// The words that `from` writes for `to`.
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

// Of what two ranks have together, in whatever order they are named: row the lower, column the higher.
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

static inline struct shm_bench *shm_bench(const struct shm_job *job, int a, int b)
{
    return (struct shm_bench *)(job->base + job->at.pair_buffers) + shm_pair_place(job, a, b);
}

// ---- shm_job.c
void tsr__shm_fail(struct shm_job *job, tsr_status status, int rank, const char *text);
tsr_status tsr__shm_told(const struct shm_job *job, struct comm_trouble *why);

// ---- shm_meet.c
// Shows this rank's entry to the group (made with tsr__shm_begin) and waits until all members have
// come and say the same.
tsr_status tsr__shm_begin(struct shm *me, const struct comm_call *call, const int64_t *notes,
                          struct shm_entry **out, struct comm_trouble *why);
tsr_status tsr__shm_meet(struct shm *me, const struct comm_call *call, struct comm_trouble *why);
// The same for two members that have put what they bring onto their mailbox.
tsr_status tsr__shm_meet_at_desk(struct shm *me, const struct comm_call *call, int peer,
                                 struct comm_trouble *why);
// All members come to this point of the call.
tsr_status tsr__shm_sync(struct shm *me, const struct comm_call *call, struct comm_trouble *why);
// The entry that a member showed at this rank's last meeting with it.
const struct shm_entry *tsr__shm_entry(const struct shm *me, int rank);
// This rank no longer reads what the members showed; they may still read what it did.
void tsr__shm_depart(struct shm *me, const struct comm_call *call);
// Waits until nobody reads what was shown: entry 0 or 1, or SHM_STAGE.
tsr_status tsr__shm_released(struct shm *me, const struct comm_call *call, int what,
                             struct comm_trouble *why);
// One look around while waiting for a rank.
tsr_status tsr__shm_look(struct shm *me, const struct comm_call *call, int peer,
                         struct comm_trouble *why);
// Waits until a word of another rank, shifted, is at least `wanted`; *seen is what it is then.
tsr_status tsr__shm_await(struct shm *me, const struct comm_call *call, int peer,
                          const atomic_uint_fast64_t *word, unsigned shift, uint64_t wanted,
                          uint64_t *seen, struct comm_trouble *why);
tsr_status tsr__shm_give_up(struct shm *me, struct comm_trouble *why);

// ---- shm_heap.c
void *tsr__shm_alloc(struct endpoint *endpoint, size_t bytes);
bool tsr__shm_release(struct endpoint *endpoint, void *p);
size_t tsr__shm_held(struct endpoint *endpoint);

// ---- shm_give.c: as tsr__comm_give and those behind it
tsr_status tsr__shm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why);
tsr_status tsr__shm_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why);
tsr_status tsr__shm_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why);
void tsr__shm_drop_gifts(struct shm *me); // that nobody took

// ---- shm_move.c
tsr_status tsr__shm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why);
tsr_status tsr__shm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                             struct comm_exchange *exchange, struct comm_trouble *why);

#endif
