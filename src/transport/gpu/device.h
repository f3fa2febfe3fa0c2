// SPDX-License-Identifier: Apache-2.0
// device.h - endpoints of ranks that may be on GPUs: what they know of each other, and one call.
//
// A call has two steps over the base endpoint. First all members exchange where their buffers are
// and what is possible with them (struct call_card); from the cards alone all members choose the
// same method. Then the method does its work.
//
// The method (choose in device.c) for ranks 0 and 1 of a group, if the user asked for none:
//   0 and 1 without GPUs                                   none: the base endpoint does the call
//   0 on a GPU, 1 without                                  host: 0 copies its part to pinned memory
//   0 and 1 on GPUs without peer access, no NCCL           host
//   0 and 1 on one GPU                                     own: such a group has no communicator
//   0 and 1 on two GPUs with peer access                   NCCL with a communicator, else own
// A method that the user asked for is used if possible: own needs peer access, NCCL a communicator.
#ifndef TSR_DEVICE_H
#define TSR_DEVICE_H

#include "gpu/gpu.h"
#include "transport/common/internal.h"

#include <pthread.h>
#include <stdatomic.h>

#define GIVEN_UP_BYTES 240

// Indexes of the events of a `gpu_seat` (gpu.h): one READY event, then N_DONE events from
// EVENT_DONE on.
enum { EVENT_READY = 0, EVENT_DONE = 1, N_DONE = GPU_EVENTS - 1 };

// Facts that every rank publishes at the start, such as its GPU and handles of its memory.
struct rank_card {
    uint64_t host;    // equal on ranks that can open each other's handles
    int64_t process;  // equal on ranks of one process
    uint64_t address; // address of its struct device in that process
    int32_t on_gpu, nccl, nccl_collectives;
    int32_t method, deterministic; // requested by the user
    char gpu[GPU_ID_BYTES];
    int32_t exports;        // its memory and events can be opened by others
    struct gpu_block probe; // a block of its memory, to test whether others can open it
    struct gpu_handle events[GPU_EVENTS];
};

// Facts that one member sends to another at the start of a call, such as the address of its data.
struct call_card {
    int32_t place;    // enum comm_place
    int32_t reaches;  // it can access the GPU memory of all members, and they can access its own
    int32_t has_nccl; // a communicator for this group
    uint64_t in,
        // addresses in its process: of the data that it sends to the reader, and of its result
        out;
    uint64_t turn;       // number of DONE events that it has recorded
    uint64_t bytes;      // sent to the reader
    uint64_t most_bytes; // size of the largest part that it sends
    struct gpu_block in_block, out_block;
    uint64_t in_offset, out_offset;
};

struct device_group {
    const int64_t *group;
    int n;
    void *comm; // NCCL communicator, or NULL
    enum gpu_method method;
};

struct device {
    struct endpoint endpoint; // first: an endpoint is its device
    struct endpoint *base;    // the base endpoint: transfers between host memories
    struct gpu_seat *seat;    // NULL: the rank has no GPU
    const struct gpu *gpu;
    struct device_options options;
    struct arena arena;
    struct rank_card mine, *ranks; // by rank; NULL before tsr__device_meet
    bool *reached;                 // by rank: its GPU memory can be read from here
    void *(*events)[GPU_EVENTS];   // by rank: as this process sees them
    void *probe;
    VEC(struct device_group) groups;
    uint64_t turn; // number of DONE events recorded so far, selects the next
    // A value of `turn`, for ranks of this process that wait for the last DONE event.
    atomic_uint_fast64_t announced;
    // For ranks of this process (device_leave.c). touching: this rank's thread enqueues work that
    // accesses others' memory. left: this rank has failed, and its memory may be freed.
    atomic_bool touching, left;
    // Protects the NCCL communicators, which failing ranks abort from their own threads. They abort
    // a communicator only while `inside` is false, or after a time limit (abort_rank).
    pthread_mutex_t nccl_lock;
    pthread_cond_t nccl_left;
    bool inside;  // this rank's thread is in a call of NCCL
    bool aborted; // no NCCL call may begin any more
    bool dropped; // the communicators are gone
    // device_watch.c: its thread and its data; nccl_lock protects all but the first two
    pthread_t watch;
    bool watched;
    bool unwatched;             // the thread is to end
    double waits_since;         // start of the current NCCL call; 0: none
    char waits_node[COMM_NAME]; // its node
    char given_up
        // why the communicators were aborted; "": they were not, or another rank failed
        [GIVEN_UP_BYTES];
    // Scratch memory of one call: one entry per member of the largest group.
    struct call_card *cards_out, *cards;
    struct comm_buffer *buffers; // three lists of them
    const void **from;
    void **to;
    uint64_t *words;
    struct nccl_part *parts;
};

// One call: an exchange, or an all-reduce from `in` to `out`.
struct device_call {
    struct device *device;
    const struct comm_call *call;
    struct comm_trouble *why;
    int self;
    const void *in;
    void *out;
    struct comm_exchange *exchange;
    void *comm;              // NCCL communicator of the group, or NULL
    struct comm_shape shape; // see tsr__device_choose
};

static inline struct device *device_of(struct endpoint *endpoint)
{
    return (struct device *)endpoint;
}
static inline bool on_device(const struct device_call *call)
{
    return call->call->place == COMM_DEVICE;
}
static inline bool same_process(const struct device *device, int64_t rank)
{
    return device->ranks[rank].process == device->mine.process &&
           device->ranks[rank].host == device->mine.host;
}
// Returns the device of a rank of this process, NULL for other ranks and those without a GPU.
static inline struct device *device_here(const struct device *device, int64_t rank)
{
    const struct rank_card *card = &device->ranks[rank];
    bool here = card->on_gpu && same_process(device, rank);
    return here ? (struct device *)(uintptr_t)card->address : NULL;
}
static inline enum gpu_reduce gpu_reduce_of(enum comm_reduce reduce)
{
    return (enum gpu_reduce)(reduce - COMM_SUM); // both enums have the same order
}
// Returns the description of a reduction of all members' parts to n_out results. The caller sets
// `in` and `out`.
static inline struct gpu_fold gpu_fold_of(const struct comm_call *call, int n_out, int64_t count)
{
    return (struct gpu_fold){.type = call->type,
                             .reduce = gpu_reduce_of(call->reduce),
                             .n_in = call->n_group,
                             .n_out = n_out,
                             .count = count};
}

// ---- device_call.c
// Returns TSR_OK for code 0; else an error with the GPU and the driver's text. doing: what the rank
// was doing, such as "copying".
tsr_status tsr__device_code(const struct device_call *call, int code, const char *doing);
// Returns the description of a further step of this call, for the base endpoint.
struct comm_call tsr__device_step(const struct comm_call *call, uint64_t step);
// Exchanges one word between all members.
tsr_status tsr__device_words(const struct device_call *call, uint64_t step, uint64_t mine,
                             uint64_t *theirs);
// Returns the algorithm of the call among those of call->shape.path, as tsr__comm_choose. -1: it is
// an exchange for which the path has none.
int tsr__device_choose(const struct device_call *call);
// Checks that all members send the number of bytes that this one expects, before any transfer.
tsr_status tsr__device_check_sizes(const struct device_call *call);
// True if two ranks of the group share a GPU.
bool tsr__device_shared(const struct device *device, const int64_t *group, int n);
tsr_status tsr__device_other_size(const struct device_call *call, int member, size_t expected);

// Returns the device of another member. NULL: the member is this rank, is not on a GPU, or is in
// another process.
struct device *tsr__device_neighbour(const struct device_call *call, int member);
// device_leave.c: between these two calls a rank may enqueue work that accesses other members'
// memory. tsr__device_touch returns false if a member has left; then nothing may be enqueued.
bool tsr__device_touch(const struct device_call *call);
void tsr__device_touched(const struct device_call *call);
// Ends a call in which other ranks access this rank's memory. After a failure (st), returns when no
// rank of this process accesses that memory any more.
tsr_status tsr__device_leave(const struct device_call *call, tsr_status st);
// device_own.c, device_nccl.c, device_host.c: run the call by one method.
tsr_status tsr__own_run(const struct device_call *call);
tsr_status tsr__nccl_run(const struct device_call *call);
tsr_status tsr__host_run(const struct device_call *call);
// device_own.c
// Ends a call in which members access each other's memory. Announces that this rank is done
// (touched false: it accessed nothing), and makes its stream wait until the others are done.
tsr_status tsr__own_finish(const struct device_call *call, bool touched);
// device_staged.c: the algorithm "pinned" of COPIES_ALGORITHMS
tsr_status tsr__staged_all_reduce(const struct device_call *call);
// device_host.c
tsr_status tsr__host_chunks(const struct device_call *call); // an all-reduce
tsr_status tsr__host_exchange(const struct device_call *call);
// device_nccl.c
tsr_status tsr__nccl_open(struct device *device, struct device_group *group, uint64_t plan,
                          struct comm_trouble *why);
tsr_status tsr__nccl_reserve(const struct device_call *call);
void tsr__nccl_init(struct device *device);
// Aborts NCCL for the ranks of this process, which would otherwise wait forever for a failed rank.
void tsr__nccl_abort(struct device *device);
// Closes the communicators of this rank, after its thread has ended.
void tsr__nccl_close(struct device *device);
// device_watch.c: tsr__watch_start starts the watchdog of a rank that has communicators;
// tsr__watch_waits announces the start of an NCCL call (node NULL: its end).
void tsr__watch_start(struct device *device);
void tsr__watch_end(struct device *device);
void tsr__watch_waits(struct device *device, const char *node);

#endif
