// SPDX-License-Identifier: Apache-2.0
// gpu.h - a GPU without its toolkit: the driver, streams, kernels and NCCL, all found at run time.
//
// Nothing of CUDA is needed to build. The driver (libcuda) and NCCL are opened by name; kernels are
// PTX text that the driver compiles for the GPU it finds. Knows no ONNX and no ranks.
//
// Numbers that functions return are the driver's: 0 is success, tsr__gpu_words says what another
// means. A child of a process that has used the driver cannot use it: whoever will fork asks
// tsr__gpu_survey, which looks in a process of its own, and opens nothing.
#ifndef TSR_GPU_H
#define TSR_GPU_H

#include "base/base.h"

#define GPU_MAX_CARDS   64
#define GPU_MAX_MEMBERS 16 // tensors that one fold reads, and writes
#define GPU_ID_BYTES    16
#define GPU_EVENTS      4  // of a seat, for other seats
#define GPU_STEPS       25 // of a seat, for itself and seats of its process

// ---- what there is (cards.c) -------------------------------------------------------------------

struct gpu_card {
    char name[96];
    int64_t memory, free; // bytes
    int major, minor;     // compute capability
    int units;            // multiprocessors
    int clock_khz;
    double bandwidth; // bytes per second of its memory; 0: not told
};
struct gpu_survey {
    int n;            // GPUs that this process may use
    int driver;       // 13000: CUDA 13.0; 0: no driver
    bool stands_in;   // a library that looks like the driver, for tests
    char why[160];    // n 0: the reason
    int nccl_version; // 23007: 2.30.7; 0: none
    struct gpu_card cards[GPU_MAX_CARDS];
};
// Library names; NULL: where the loader finds them.
struct gpu_libraries {
    const char *driver, *nccl;
};
void tsr__gpu_survey(const struct gpu_libraries *libraries, struct gpu_survey *out);
// Somebody in this process has started the driver (PyTorch does): its children cannot use GPUs then. Starts nothing.
bool tsr__gpu_started(const struct gpu_libraries *libraries);

// ---- the driver (driver.c) ---------------------------------------------------------------------

// The driver's functions. Not changed after it is opened: all ranks of a process share it.
struct gpu;
// NULL: `why` says the reason. The session's memory; by its thread.
struct gpu *tsr__gpu_open(tsr_session *session, const struct gpu_libraries *libraries, char *why,
                          size_t n);
void tsr__gpu_close(tsr_session *session, struct gpu *gpu); // NULL is fine
int tsr__gpu_count(const struct gpu *gpu);
bool tsr__gpu_stands_in(const struct gpu *gpu);
// "out of memory (CUDA_ERROR_OUT_OF_MEMORY)"; returns out.
const char *tsr__gpu_words(const struct gpu *gpu, int code, char *out, size_t n);

// ---- a place on a GPU (seat.c) -----------------------------------------------------------------

// One rank's place on one GPU: context, events, kernels, memory of its own. Belongs to one thread at a time.
struct gpu_seat;
// 0 and *out, or the driver's number. Card is counted from 0.
int tsr__seat_open(tsr_session *session, const struct gpu *gpu, int card, struct gpu_seat **out);
void tsr__seat_close(struct gpu_seat *seat);           // NULL is fine; waits for the GPU first
int tsr__seat_enter(const struct gpu_seat *seat);      // the calling thread works on this GPU
const char *tsr__seat_id(const struct gpu_seat *seat); // GPU_ID_BYTES: the same in all processes
void *tsr__seat_stream(const struct gpu_seat *seat);   // of its own
void *tsr__seat_upwards(const struct gpu_seat *seat);  // another, for what goes up meanwhile
int tsr__seat_free_memory(const struct gpu_seat *seat, int64_t *available, int64_t *all);

// Device memory. `scratch` hands out one of three blocks (0, 1, 2) of at least that size, which live
// until the next call with that number; the stream is waited for before a block is replaced.
int tsr__seat_alloc(struct gpu_seat *seat, size_t bytes, void **out);
void tsr__seat_free(struct gpu_seat *seat, void *p);
int tsr__seat_scratch(struct gpu_seat *seat, int block, size_t bytes, void *stream, void **out);
// Host memory that copies need not go around; one block, grown like scratch.
int tsr__seat_pinned(struct gpu_seat *seat, size_t bytes, void *stream, void **out);

// Work, put on a stream in order.
int tsr__seat_down(const struct gpu_seat *seat, void *host, const void *device, size_t bytes,
                   void *stream);
int tsr__seat_up(const struct gpu_seat *seat, void *device, const void *host, size_t bytes,
                 void *stream);
int tsr__seat_copy(const struct gpu_seat *seat, void *to, const void *from, size_t bytes,
                   void *stream);
int tsr__seat_wait(const struct gpu_seat *seat, void *stream); // the host waits for the stream
int tsr__seat_settle(const struct gpu_seat *seat); // and for all work of this process on the GPU

// Rows of `width` bytes, pitch bytes apart.
struct gpu_rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, rows;
};
int tsr__seat_rows(struct gpu_seat *seat, const struct gpu_rows *rows, void *stream);

// Events: number i of GPU_EVENTS.
int tsr__seat_record(const struct gpu_seat *seat, int event, void *stream);
void *tsr__seat_event(const struct gpu_seat *seat, int event); // for other seats of this process
int tsr__seat_await(const struct gpu_seat *seat, void *event, void *stream); // the stream waits
// Steps of copies: number i of GPU_STEPS is where the stream is now; the host waits for it; a stream waits for it.
int tsr__seat_step(const struct gpu_seat *seat, int step, void *stream);
int tsr__seat_step_wait(const struct gpu_seat *seat, int step);
int tsr__seat_step_await(const struct gpu_seat *seat, int step, void *stream);
void *tsr__seat_step_event(const struct gpu_seat *seat, int step); // for tsr__seat_await of others

// ---- between seats -----------------------------------------------------------------------------

#define GPU_HANDLE_BYTES 64
struct gpu_handle {
    char bytes[GPU_HANDLE_BYTES];
};
// Lets this seat's kernels reach the memory of another GPU of this process; 0 also where they can already.
int tsr__seat_reach(struct gpu_seat *seat, const struct gpu_seat *other);
// A block of device memory for another process of this host. Memory that is freed and allocated again may have its old
// place and even its old handle, but never its old number.
struct gpu_block {
    struct gpu_handle handle;
    uint64_t base, number;
    int64_t process;
};
// The block that p lies in, and p's distance from its start. Blocks of less than GPU_OWN_PAGE share pages of the driver's with
// others and are refused: another process can open only one of them.
#define GPU_OWN_PAGE ((size_t)2 << 20)
int tsr__seat_export(struct gpu_seat *seat, const void *p, struct gpu_block *out, size_t *offset);
// Where this process sees a block of another one; it stays open until the seat closes, or another has come to its place.
int tsr__seat_import(struct gpu_seat *seat, const struct gpu_block *block, void **out);
int tsr__seat_export_event(const struct gpu_seat *seat, int event, struct gpu_handle *out);
int tsr__seat_import_event(struct gpu_seat *seat, const struct gpu_handle *handle, void **out);

// ---- folding (fold.c, ptx.c) -------------------------------------------------------------------

enum gpu_reduce { GPU_SUM, GPU_MAX, GPU_MIN, GPU_PROD, GPU_REDUCE_COUNT };
// As a transport folds on a host: in the order given, float16 and bfloat16 in float32 and rounded
// once, integers wrap around, NaN wins. All of in may be among out.
struct gpu_fold {
    tsr_dtype type;
    enum gpu_reduce reduce;
    const void *in[GPU_MAX_MEMBERS];
    void *out[GPU_MAX_MEMBERS];
    int n_in, n_out;
    int64_t count; // elements
};
bool tsr__fold_has(tsr_dtype type);
// Compiles the kernels of that fold, so that nothing is loaded while others wait on the GPU.
int tsr__seat_prepare(struct gpu_seat *seat, tsr_dtype type, enum gpu_reduce reduce);
int tsr__seat_fold(struct gpu_seat *seat, const struct gpu_fold *fold, void *stream);

// ---- NCCL (nccl.c) -----------------------------------------------------------------------------

#define NCCL_ID_BYTES 128
struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};
// Version such as 23007 (2.30.7); 0: NCCL was not found.
int tsr__nccl_version(const struct gpu *gpu);
bool tsr__nccl_has(tsr_dtype type); // elements that it can add up
int tsr__nccl_id(const struct gpu *gpu, struct nccl_id *out);
// Joining waits until all members do, for ever if one does not come: it runs on a thread of its own (nccl_join.c). NULL: no thread
// could be started. Then, until true: waits so long and says whether it is done. A join that is done is taken (0 and *out, or
// NCCL's number); one that is given up is left behind, and the communicator aborted should it still come.
struct nccl_joining;
struct nccl_joining *tsr__nccl_join_start(const struct gpu_seat *seat, const struct nccl_id *id,
                                          int members, int self);
bool tsr__nccl_join_wait(struct nccl_joining *joining, int ms);
int tsr__nccl_join_take(struct nccl_joining *joining, void **out);
void tsr__nccl_join_abandon(struct nccl_joining *joining);
void tsr__nccl_leave(const struct gpu *gpu, void *comm, bool abort);
int tsr__nccl_all_reduce(const struct gpu *gpu, void *comm, const struct gpu_fold *fold,
                         void *stream);
// One message to each member and from each, at the same time; lengths 0: none.
struct nccl_part {
    const void *send;
    void *recv;
    size_t send_bytes, recv_bytes;
};
int tsr__nccl_exchange(const struct gpu *gpu, void *comm, const struct nccl_part *parts,
                       int members, int self, void *stream);
const char *tsr__nccl_words(const struct gpu *gpu, int code);

#endif
