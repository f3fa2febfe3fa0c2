// SPDX-License-Identifier: Apache-2.0
// gpu.h - GPUs without the CUDA toolkit: driver, streams, kernels and NCCL, found at run time.
//
// CUDA is not needed to build. The driver (libcuda) and NCCL are loaded by name; kernels are PTX,
// which the driver compiles. This module does not know ONNX or ranks.
//
// Functions return the driver's codes: 0 is success, tsr__gpu_words describes others. A child of a
// process that has used the driver cannot use it. So a process that will fork calls tsr__gpu_survey
// to look for GPUs: it does so in a child process.
#ifndef TSR_GPU_H
#define TSR_GPU_H

#include "base/base.h"

#define GPU_MAX_CARDS   64
#define GPU_MAX_MEMBERS 16 // most tensors that one reduction reads, and writes
#define GPU_ID_BYTES    16
#define GPU_EVENTS      4  // events of a seat that other seats can wait for
#define GPU_STEPS       25 // events of a seat for itself and other seats of its process

// ---- survey (cards.c) --------------------------------------------------------------------------

struct gpu_card {
    char name[96];
    int64_t memory, free; // bytes
    int major, minor;     // compute capability
    int units;            // multiprocessors
    int clock_khz;
    double bandwidth; // bytes per second; 0: unknown
};
struct gpu_survey {
    int n;            // GPUs that this process may use
    int driver;       // 13000: CUDA 13.0; 0: no driver
    bool stands_in;   // a stand-in for the driver, for tests
    char why[160];    // why there are no GPUs, or why the list ends early
    int nccl_version; // 23007: 2.30.7; 0: none
    struct gpu_card cards[GPU_MAX_CARDS];
};
// Library names; NULL: the defaults.
struct gpu_libraries {
    const char *driver, *nccl;
};
void tsr__gpu_survey(const struct gpu_libraries *libraries, struct gpu_survey *out);
// True if this process has started the driver (PyTorch does). Its children then cannot use GPUs.
// This call does not start it.
bool tsr__gpu_started(const struct gpu_libraries *libraries);

// ---- the driver (driver.c) ---------------------------------------------------------------------

// Functions of the driver. Does not change after opening; all ranks of a process share it.
struct gpu;
// Opens the driver. Returns NULL with the reason in `why`. Call it on the session's thread.
struct gpu *tsr__gpu_open(tsr_session *session, const struct gpu_libraries *libraries, char *why,
                          size_t n);
void tsr__gpu_close(tsr_session *session, struct gpu *gpu); // NULL is allowed
int tsr__gpu_count(const struct gpu *gpu);
bool tsr__gpu_stands_in(const struct gpu *gpu);
// Formats an error: "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)". Returns out.
const char *tsr__gpu_words(const struct gpu *gpu, int code, char *out, size_t n);

// ---- use of a GPU (seat.c) ---------------------------------------------------------------------

// One rank's use of one GPU: context, events, kernels, memory. Used by one thread at a time.
struct gpu_seat;
// Opens GPU number `card` (from 0). `exports`: other processes can open its events, if the driver
// supports that; such events are slower. Returns 0 and *out, or the driver's error code.
int tsr__seat_open(tsr_session *session, const struct gpu *gpu, int card, bool exports,
                   struct gpu_seat **out);
void tsr__seat_close(struct gpu_seat *seat);           // NULL is allowed; waits for the GPU
int tsr__seat_enter(const struct gpu_seat *seat);      // makes it the thread's current GPU
const char *tsr__seat_id(const struct gpu_seat *seat); // GPU_ID_BYTES; the same in all processes
void *tsr__seat_stream(const struct gpu_seat *seat);   // its own stream
void *tsr__seat_upwards(const struct gpu_seat *seat);  // a second one, for uploads
int tsr__seat_free_memory(const struct gpu_seat *seat, int64_t *available, int64_t *all);

// Device memory. `scratch` returns one of three blocks (0, 1, 2) of at least `bytes`, valid until
// the next call with the same block number. It waits for the stream before it replaces a block.
int tsr__seat_alloc(struct gpu_seat *seat, size_t bytes, void **out);
void tsr__seat_free(struct gpu_seat *seat, void *p);
int tsr__seat_scratch(struct gpu_seat *seat, int block, size_t bytes, void *stream, void **out);
// Returns pinned host memory: one block, which grows like scratch.
int tsr__seat_pinned(struct gpu_seat *seat, size_t bytes, void *stream, void **out);

// Operations on a stream; they run in the order of the calls.
int tsr__seat_down(const struct gpu_seat *seat, void *host, const void *device, size_t bytes,
                   void *stream);
int tsr__seat_up(const struct gpu_seat *seat, void *device, const void *host, size_t bytes,
                 void *stream);
int tsr__seat_copy(const struct gpu_seat *seat, void *to, const void *from, size_t bytes,
                   void *stream);
// The calling thread waits for the stream.
int tsr__seat_wait(const struct gpu_seat *seat, void *stream);
int tsr__seat_settle(const struct gpu_seat *seat); // waits for all work of this process on the GPU

// Rows of `width` bytes, `pitch` bytes apart.
struct gpu_rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, rows;
};
int tsr__seat_rows(struct gpu_seat *seat, const struct gpu_rows *rows, void *stream);

// Copies that one kernel makes together: a launch for each would take longer than the copy.
#define GPU_COPIES 128
struct gpu_copies {
    int n, started; // started: in earlier launches
    bool zeros;     // some copy writes zeros behind the copied bytes
    uint64_t to[GPU_COPIES], from[GPU_COPIES];
    uint32_t units[GPU_COPIES];  // of 16 bytes, written
    uint32_t copied[GPU_COPIES]; // the first units, which are copied; the others become zero
};
// Adds rows to the copies, and starts the copies if there are GPU_COPIES of them. Rows with gaps
// between them, or that are not in units of 16 bytes, are copied at once.
int tsr__seat_copies_add(struct gpu_seat *seat, struct gpu_copies *copies,
                         const struct gpu_rows *rows, void *stream);
// Adds a copy of the first `bytes` bytes; the rest, up to `all` bytes, becomes zero. Addresses and
// sizes must be multiples of 16.
int tsr__seat_copies_extend(struct gpu_seat *seat, struct gpu_copies *copies, void *to, size_t all,
                            const void *from, size_t bytes, void *stream);
// Starts the copies that were added. Uses the seat's pinned memory and scratch block 1.
int tsr__seat_copies_start(struct gpu_seat *seat, struct gpu_copies *copies, void *stream);

// Record, return and wait for events 0 .. GPU_EVENTS - 1.
int tsr__seat_record(const struct gpu_seat *seat, int event, void *stream);
void *tsr__seat_event(const struct gpu_seat *seat, int event); // for other seats of this process
int tsr__seat_await(const struct gpu_seat *seat, void *event, void *stream); // the stream waits
// Steps 0 .. GPU_STEPS - 1: `step` marks the current position of a stream; then a thread or another
// stream can wait for it.
int tsr__seat_step(const struct gpu_seat *seat, int step, void *stream);
int tsr__seat_step_wait(const struct gpu_seat *seat, int step);
int tsr__seat_step_await(const struct gpu_seat *seat, int step, void *stream);
void *tsr__seat_step_event(const struct gpu_seat *seat, int step); // for tsr__seat_await of others

// ---- access between seats ----------------------------------------------------------------------

#define GPU_HANDLE_BYTES 64
struct gpu_handle {
    char bytes[GPU_HANDLE_BYTES];
};
// Lets this seat's kernels access the memory of another GPU of this process. 0: they can now, or
// could already.
int tsr__seat_reach(struct gpu_seat *seat, const struct gpu_seat *other);
// A block of device memory that another process of this host can open. Memory that is freed and
// allocated again may have its old address and even its old handle, but never its old number.
struct gpu_block {
    struct gpu_handle handle;
    uint64_t base, number;
    int64_t process;
};
// Returns the block that contains p, and p's offset in it. Blocks smaller than GPU_OWN_PAGE share
// pages with other blocks and are refused, because another process could open only one of them.
#define GPU_OWN_PAGE ((size_t)2 << 20)
int tsr__seat_export(struct gpu_seat *seat, const void *p, struct gpu_block *out, size_t *offset);
// Returns the address of another process's block in this process. It stays open until the seat
// closes or the block is replaced.
int tsr__seat_import(struct gpu_seat *seat, const struct gpu_block *block, void **out);
int tsr__seat_export_event(const struct gpu_seat *seat, int event, struct gpu_handle *out);
int tsr__seat_import_event(struct gpu_seat *seat, const struct gpu_handle *handle, void **out);

// ---- reductions (fold.c, ptx.c) ----------------------------------------------------------------

enum gpu_reduce { GPU_SUM, GPU_MAX, GPU_MIN, GPU_PROD, GPU_REDUCE_COUNT };
// A reduction on the GPU, with the same result as on the CPU (tsr__reduce): operands are folded in
// the given order. float16 and bfloat16 are computed in float32 and rounded once. Integers wrap
// around. max and min return NaN if an operand is NaN. Inputs may also be outputs.
struct gpu_fold {
    tsr_dtype type;
    enum gpu_reduce reduce;
    const void *in[GPU_MAX_MEMBERS];
    void *out[GPU_MAX_MEMBERS];
    int n_in, n_out;
    int64_t count; // elements
};
bool tsr__fold_has(tsr_dtype type);
// Compiles the kernels in advance, so that no rank compiles while others wait.
int tsr__seat_prepare(struct gpu_seat *seat, tsr_dtype type, enum gpu_reduce reduce);
int tsr__seat_fold(struct gpu_seat *seat, const struct gpu_fold *fold, void *stream);

// ---- NCCL (nccl.c) -----------------------------------------------------------------------------

#define NCCL_ID_BYTES 128
struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};
// Returns the version of NCCL: 23007 is 2.30.7. 0: NCCL was not found.
int tsr__nccl_version(const struct gpu *gpu);
bool tsr__nccl_has(tsr_dtype type); // true: NCCL can reduce the type
// True if NCCL has the collectives below, besides all-reduce and messages.
bool tsr__nccl_collectives(const struct gpu *gpu);
int tsr__nccl_id(const struct gpu *gpu, struct nccl_id *out);
// Joining a communicator waits for all members, so it runs on a separate thread (nccl_join.c).
// `start` returns NULL if no thread could be started. `wait` returns true when joining has ended;
// then `take` returns 0 and *out, or NCCL's error code. `abandon` leaves the thread behind: if
// joining completes later, the thread aborts the communicator.
struct nccl_joining;
struct nccl_joining *tsr__nccl_join_start(const struct gpu_seat *seat, const struct nccl_id *id,
                                          int members, int self);
bool tsr__nccl_join_wait(struct nccl_joining *joining, int ms);
int tsr__nccl_join_take(struct nccl_joining *joining, void **out);
void tsr__nccl_join_abandon(struct nccl_joining *joining);
void tsr__nccl_leave(const struct gpu *gpu, void *comm, bool abort);
// Reductions read fold->in[0] and write fold->out[0], with fold->count elements of the result:
// a reduce-scatter reads as many for each member. root: index of the member that gets the result.
int tsr__nccl_all_reduce(const struct gpu *gpu, void *comm, const struct gpu_fold *fold,
                         void *stream);
int tsr__nccl_reduce_scatter(const struct gpu *gpu, void *comm, const struct gpu_fold *fold,
                             void *stream);
int tsr__nccl_reduce(const struct gpu *gpu, void *comm, const struct gpu_fold *fold, int root,
                     void *stream);
int tsr__nccl_all_gather(const struct gpu *gpu, void *comm, const void *in, void *out, size_t bytes,
                         void *stream);
// Copies p of the root to p of all others.
int tsr__nccl_broadcast(const struct gpu *gpu, void *comm, void *p, size_t bytes, int root,
                        void *stream);
// One message to and one from each other member, concurrently; length 0: no message.
struct nccl_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
};
int tsr__nccl_exchange(const struct gpu *gpu, void *comm, const struct nccl_part *parts,
                       int members, int self, void *stream);
const char *tsr__nccl_words(const struct gpu *gpu, int code);

#endif
