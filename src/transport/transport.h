// SPDX-License-Identifier: Apache-2.0
// transport.h - moves bytes between the ranks of one job; the interface of all transports.
//
// Each rank has an endpoint. All members of a group make the same calls in the same order. Every
// call describes itself (struct comm_call), and the group compares the descriptions before it uses
// any data. Ranks that disagree get an error that names both, never wrong numbers and never a hang.
// Reductions fold in group order, so all ranks and all transports give the same bits. If a rank
// fails in a call, all others fail at once; if it fails between two calls, those that wait for it.
// A rank without a heartbeat is reported by the ranks that wait for it; a slow rank is waited for.
//
// An endpoint belongs to one thread at a time. Failures are returned in a struct comm_trouble, not
// as diagnostics, because the rank's thread may not use the session; the caller that runs the ranks
// makes the diagnostic. This module knows nothing of ONNX but the numbers of the element types.
#ifndef TSR_TRANSPORT_H
#define TSR_TRANSPORT_H

#include "base/base.h"
#include "collective/collective.h"

#define COMM_MAX_RANKS 65536
#define COMM_NOTES     16 // extra 64-bit words sent with a call: enough for a shape
#define COMM_GIFTS     16 // files that a rank may offer before rank 0 takes the first
#define COMM_NAME      48 // bytes of a node's name that are sent, terminator included

#define COMM_DEAD_S    5.0  // a process that has ended is reported after this time
#define COMM_STOPPED_S 15.0 // default of the longest wait for a rank without a heartbeat

// Where the buffers of a call are. COMM_PLAIN: in host memory on all members. In jobs with GPUs
// each member passes COMM_HOST (host memory) or COMM_DEVICE (GPU memory) for its own buffers,
// because the engine chooses where it places them.
enum comm_place { COMM_PLAIN, COMM_HOST, COMM_DEVICE };
enum comm_reduce { COMM_NONE, COMM_SUM, COMM_MAX, COMM_MIN, COMM_PROD, COMM_REDUCE_COUNT };

// Description of a call, compared by all members of the group. All fields but op, node, place and
// stream must be equal on all members.
struct comm_call {
    uint64_t plan;       // fingerprint of the partition
    int64_t id;          // number of this communication in the plan
    uint64_t run;        // number of earlier calls of this communication by this rank
    enum comm_kind kind; // a row of the table of collectives, or COMM_HANDSHAKE
    enum comm_reduce reduce;
    tsr_dtype type;       // element type of the data
    int64_t count;        // elements, if all members have the same number; else 0
    uint64_t detail;      // hash of everything else that must agree (axis, layouts)
    const int64_t *group; // ranks that take part, ascending, this one among them
    int n_group;
    uint64_t whole;        // a step of a call of a larger group: hash of that group; else 0
    const char *op, *node; // for error messages
    enum comm_place place;
    void *stream; // COMM_DEVICE: stream of the GPU on which the call enqueues its work
};

// Why a call failed. rank: the rank at fault, or -1. left: it failed between two calls.
struct comm_trouble {
    tsr_status status;
    int rank;
    bool left;
    char text[512];
};

// A buffer in host or GPU memory; `place` of the call says which.
struct comm_buffer {
    void *p;
    size_t bytes;
};

// The collective call->kind that an exchange is, for transports that have an algorithm of their own
// for it: the tensors instead of their parts.
struct comm_collective {
    const void *in; // of this member; broadcast: of the root alone
    void *out;      // all-gather, reductions; `arrived` may set it. reduce: of the root alone
    int root;       // broadcast, reduce: its index in the group
};

// What one member sends to and receives from each member of the group, in group order (its own
// entry is copied). `notes` are a few words to all others. `arrived`, if given, is called when all
// members have arrived and agree. It gets all notes and may set the receive buffers, whose sizes
// must be those that the others send. With `folded`, received data is folded in group order (type
// and reduce of the call) instead of stored. All members then send recv[0].bytes each to this one,
// and the transport provides the memory. `folded` may be the data that this member sends to itself.
struct comm_exchange {
    const struct comm_collective *collective; // the exchange is this one; NULL: only messages
    const struct comm_buffer *send;
    struct comm_buffer *recv;
    void *folded; // or NULL
    int64_t notes[COMM_NOTES];
    tsr_status (*arrived)(void *data, const int64_t (*notes)[COMM_NOTES], struct comm_trouble *why);
    void *data;
};

struct endpoint;

// A transport. All functions are called by the endpoint's thread alone, except `fail`, `alloc`,
// `release` and `held`.
struct transport {
    const char *name; // "threads", "mpi"
    // Folds `in` of all members in group order and stores the result in `out` of each. in == out is
    // allowed.
    tsr_status (*all_reduce)(struct endpoint *endpoint, const struct comm_call *call,
                             const void *in, void *out, struct comm_trouble *why);
    tsr_status (*exchange)(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_exchange *exchange, struct comm_trouble *why);
    // Ends the job: every rank that waits now or later gets this status and text. Later calls have
    // no effect.
    void (*fail)(struct endpoint *endpoint, tsr_status status, int rank, const char *text);
    // This rank has failed between two calls and makes no more: see tsr__comm_leave. NULL: as fail.
    void (*leave)(struct endpoint *endpoint, tsr_status status, int rank, const char *text);
    // True if the job has failed; *why gets the failure.
    bool (*failure)(struct endpoint *endpoint, struct comm_trouble *why);
    // Called when this rank leaves. Ranks that wait for it afterwards get an error.
    void (*close)(struct endpoint *endpoint);
    // Functions for memory that other ranks can access directly; may be called from any thread.
    // NULL: all memory is equally accessible.
    void *(*alloc)(struct endpoint *endpoint,
                   size_t bytes); // aligned to a cache line; NULL: out of memory
    bool (*release)(struct endpoint *endpoint, void *p); // false: not from this allocator
    size_t (*held)(struct endpoint *endpoint);           // bytes that this rank holds
    // Ranks as processes: see tsr__comm_give and the functions after it.
    tsr_status (*give)(struct endpoint *endpoint, const struct comm_call *call, int fd,
                       size_t bytes, struct comm_trouble *why);
    tsr_status (*settle)(struct endpoint *endpoint, const struct comm_call *call,
                         struct comm_trouble *why);
    tsr_status (*take)(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                       size_t *bytes, struct comm_trouble *why);
    // Returns how the group communicates, in one word; NULL: the transport's name.
    const char *(*method)(const struct endpoint *endpoint, const int64_t *group, int n);
};
struct endpoint {
    const struct transport *transport;
    int rank, size;
    int host_ranks, host_cores; // ranks of the job on this host, and the cores they share
    // If `timed` is set: seconds spent in calls, waiting included.
    bool timed;
    double comm_s;
    // Runs or ran the last call; NULL: a call without a row (tsr__algorithm).
    const struct comm_algorithm *algorithm;
};

struct comm_options {
    double timeout_s;    // longest wait for a rank without a heartbeat; 0: COMM_STOPPED_S
    const char *plugins; // folder to look for plug-ins in first, or NULL
    bool messages_only;  // MPI: no shared memory between ranks of one host
    int rank, ranks;     // ranks > 0: started by hand, one process each (env.c)
    const char *meet;    // rendezvous name of those ranks, or NULL
    const char *hosts;   // UCX: hosts of those ranks ("a:4,b:4"), or NULL: this host
    int port;            // UCX: port of rank 0; 0: from the launcher, or a default
    const char *secret;  // UCX: shared secret of the ranks; NULL: none, allowed on one host only
    // UCX, between hosts: name, address or network of an interface; NULL: by the route to rank 0
    const char *interface;
};

// ---- collectives --------------------------------------------------------------------------------

tsr_status tsr__comm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                const void *in, void *out, struct comm_trouble *why);
tsr_status tsr__comm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                              struct comm_exchange *exchange, struct comm_trouble *why);
// The calls below are built from exchanges. root and peer are ranks, not positions in the group.

// Reduces and scatters: `in` has one piece per member, in group order, of counts[i] elements. `out`
// gets the reduction of all members' pieces for this member (call->reduce, call->type). counts are
// equal on all members. `out` may be this member's own piece inside `in`.
tsr_status tsr__comm_reduce_scatter(struct endpoint *endpoint, const struct comm_call *call,
                                    const void *in, const int64_t *counts, void *out,
                                    struct comm_trouble *why);
// Reduces `in` of all members (call->count elements) to `out` of the root. Others may pass NULL as
// `out`.
tsr_status tsr__comm_reduce(struct endpoint *endpoint, const struct comm_call *call, int root,
                            const void *in, void *out, struct comm_trouble *why);
// Gathers: out gets the `bytes` bytes at `in` of all members, in group order.
tsr_status tsr__comm_all_gather(struct endpoint *endpoint, const struct comm_call *call,
                                const void *in, size_t bytes, void *out, struct comm_trouble *why);
// Sends send[i] to member i and receives recv[i] from it; sizes may differ and are checked.
tsr_status tsr__comm_all_to_all(struct endpoint *endpoint, const struct comm_call *call,
                                const struct comm_buffer *send, struct comm_buffer *recv,
                                struct comm_trouble *why);
// Copies p of the root to p of all others.
tsr_status tsr__comm_broadcast(struct endpoint *endpoint, const struct comm_call *call, int root,
                               void *p, size_t bytes, struct comm_trouble *why);
// The next two functions are calls of all ranks of the job; call->group is ignored.
// tsr__comm_tell_all is a broadcast. tsr__comm_share_all sends `bytes` bytes at `mine` to every
// rank, and stores those of rank i at all + i * bytes.
tsr_status tsr__comm_tell_all(struct endpoint *endpoint, const struct comm_call *call, int root,
                              void *p, size_t bytes, struct comm_trouble *why);
tsr_status tsr__comm_share_all(struct endpoint *endpoint, const struct comm_call *call,
                               const void *mine, size_t bytes, void *all, struct comm_trouble *why);
// Sends one message between two ranks; call->group is ignored. notes (COMM_NOTES words, or NULL)
// are sent with it, for example a shape. The receiver's `arrived` gets them and provides a buffer
// of exactly the size that is sent; NULL: into.p and into.bytes are set already. Both sides wait
// for each other.
tsr_status tsr__comm_send(struct endpoint *endpoint, const struct comm_call *call, int to,
                          const void *p, size_t bytes, const int64_t *notes,
                          struct comm_trouble *why);
struct comm_incoming {
    struct comm_buffer into;
    tsr_status (*arrived)(void *data, const int64_t *notes, struct comm_buffer *into,
                          struct comm_trouble *why);
    void *data;
};
tsr_status tsr__comm_recv(struct endpoint *endpoint, const struct comm_call *call, int from,
                          struct comm_incoming *in, struct comm_trouble *why);
// The next three functions send results to rank 0 outside of the collective calls; the ranks must
// be processes. A rank offers the first `bytes` of an unnamed file, which the endpoint then owns,
// and continues at once; at most COMM_GIFTS are pending. tsr__comm_settle waits until rank 0 or the
// network has the oldest one. Rank 0 takes a rank's files in the same order (call->run is compared)
// and closes them.
tsr_status tsr__comm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                          size_t bytes, struct comm_trouble *why);
tsr_status tsr__comm_settle(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why);
tsr_status tsr__comm_take(struct endpoint *endpoint, const struct comm_call *call, int from,
                          int *fd, size_t *bytes, struct comm_trouble *why);
// Synchronizes all ranks of the job, at the start of a run. Also checks that all ranks run the same
// plan.
tsr_status tsr__comm_barrier(struct endpoint *endpoint, uint64_t plan, const char *what,
                             struct comm_trouble *why);
void tsr__comm_fail(struct endpoint *endpoint, tsr_status status, const char *text);
// Reports that this rank has failed between two calls. Only ranks that wait for it fail, so that
// others can finish calls that this rank has finished. A rank that fails for this reason leaves,
// too. Example: rank 1 has run a model and cannot
// open the next one. Rank 0, which still collects results of the run, fails in its next call.
void tsr__comm_leave(struct endpoint *endpoint, tsr_status status, const char *text);
// True if a rank of the job has failed or left; *why gets the first failure that this rank knows.
bool tsr__comm_failure(struct endpoint *endpoint, struct comm_trouble *why);
// Returns how the tensors of a group with this rank are moved: "threads", "shm", "mpi"; between
// GPUs "own", "ipc" (own, between processes), "nccl" or "host". Valid after the first barrier.
const char *tsr__comm_method(const struct endpoint *endpoint, const int64_t *group, int n);
void tsr__comm_close(struct endpoint *endpoint); // NULL is allowed

// ---- ranks as threads of one process (threads.c) ------------------------------------------------

struct thread_job;
// Creates a job of n ranks, which owns the endpoints. NULL: out of memory (diagnostic added).
// Threads end with their process, so they need no heartbeat and no options.
struct thread_job *tsr__threads_new(tsr_session *session, int n);
struct endpoint *tsr__threads_endpoint(struct thread_job *job, int rank);
void tsr__threads_free(struct thread_job *job); // after all ranks have ended
// Returns the failure that ended the job, or NULL. Call it after all ranks have ended.
const struct comm_trouble *tsr__threads_trouble(const struct thread_job *job);

// ---- ranks as processes of one host (shm_job.c, shm_meet.c, shm_move.c) -------------------------

struct shm_job;
// Creates anonymous shared memory for a job of n ranks. *out must be freed even after a failure
// (diagnostic added). Forked processes inherit it; others get its descriptor.
tsr_status tsr__shm_new(tsr_session *session, int n, const struct comm_options *options,
                        struct shm_job **out);
// Maps the same memory in another process by its descriptor, which the job then owns.
tsr_status tsr__shm_map(tsr_session *session, int fd, int n, const struct comm_options *options,
                        struct shm_job **out);
int tsr__shm_fd(const struct shm_job *job);
void tsr__shm_free(tsr_session *session, struct shm_job *job);
// Opens the endpoint of one rank in the job. Session and job must outlive it.
tsr_status tsr__shm_endpoint(tsr_session *session, struct shm_job *job, int rank,
                             struct endpoint **out);
// For a process that supervises the processes of the ranks. tsr__shm_watched announces the
// supervisor; call it before the ranks start. tsr__shm_trouble returns true if the job has failed.
// tsr__shm_beat returns a rank's heartbeat counter. tsr__shm_lost reports a lost rank (what: "was
// killed by signal 9"), with the first rank that waits for it. If none waits yet, it reports
// nothing and returns false, unless `last` is set or the job has failed.
void tsr__shm_watched(struct shm_job *job);
bool tsr__shm_trouble(const struct shm_job *job, struct comm_trouble *why);
uint64_t tsr__shm_beat(const struct shm_job *job, int rank);
bool tsr__shm_lost(struct shm_job *job, int rank, const char *what, bool last);

// ---- ranks as processes (mpi.c, net.c) ----------------------------------------------------------

// Joins the MPI job that a launcher of that family started ("openmpi", "mpich"). Adds its own
// diagnostics: plugin-absent, mpi-failed.
tsr_status tsr__mpi_open(tsr_session *session, const char *family,
                         const struct comm_options *options, struct endpoint **out);

// Joins ranks on any hosts over UCX. They find each other over TCP, with the address from the
// options or the launcher (meet_place.c). Adds its own diagnostics: plugin-absent,
// transport-absent, rank-failed, ucx-failed.
tsr_status tsr__ucx_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out);

// True if the plug-in of a family ("ucx", "openmpi") is in that folder (NULL: none) or beside this
// library.
bool tsr__plugin_present(const char *family, const char *folder);
// Checks that the plug-in for UCX is there, before other hosts are contacted. Adds plugin-absent.
tsr_status tsr__plugin_need(tsr_session *session, const char *folder);

// Joins ranks of one host that a launcher started with environment variables alone ("torchrun",
// "slurm" without PMI), through shared memory (env.c). Adds its own diagnostics: transport-absent,
// rank-failed, shm-failed.
tsr_status tsr__env_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out);
// True if the ranks are all on this host, according to options and launcher.
bool tsr__env_one_host(const struct comm_options *options);

// True if ranks that a launcher of this family started (see tsr_launcher of tessera.h) communicate
// over MPI (launcher.c). Families without MPI: "torchrun", "leaderworkerset", and "slurm" on one
// host.
bool tsr__launcher_is_mpi(const char *family);

// ---- connections between a session and a worker (meet_line.c, meet_greet.c) ---------------------

#define LINE_BYTES     (64u << 10) // most data of a frame: while one is sent, the next is signed
#define LINE_STOPPED_S 15.0        // the kernel gives up a host that does not answer for so long
#define LINE_PORT      29500       // default port of workers

// Where a worker listens, and the secret that both sides must have.
struct line_place {
    const char *host;
    int port;
    const char *secret;
    const char *interface; // network interface by name, address or network; NULL: by the route
    double join_s;         // how long a session tries to connect
};
struct line_frame {
    uint32_t kind, rank, bytes;
};
// An authenticated connection between a session and a worker. One thread may send while another one
// receives.
struct line;
// Connects to a worker and proves the secret. `why` has the reason of a failure: TSR_USAGE for an
// invalid address, TSR_PEER if no worker accepts the connection.
tsr_status tsr__line_open(tsr_session *session, const struct line_place *place, struct line **out,
                          char *why, size_t n);
// Sends a frame of at most LINE_BYTES. False: the other side is gone.
bool tsr__line_send(struct line *line, uint32_t kind, uint32_t rank, const void *data,
                    size_t bytes);
// Receives a frame into `data`, a buffer of LINE_BYTES. False: the connection has ended, the frame
// is not valid or too long, or the time is up.
bool tsr__line_receive(struct line *line, struct line_frame *frame, void *data, double until);
int tsr__line_fd(const struct line *line); // for poll
void tsr__line_stop(struct line *line);    // ends both directions; from any thread
void tsr__line_close(struct line *line);   // NULL is allowed

// A worker's listening socket. Connections that have not proved the secret delay no others.
struct line_door;
tsr_status tsr__door_open(tsr_session *session, const struct line_place *place,
                          struct line_door **out, char *why, size_t n);
// Waits at most wait_s for a session that proves the secret. *out is NULL if none came; `from` gets
// the address of the session.
tsr_status tsr__door_next(struct line_door *door, double wait_s, struct line **out, char *from,
                          size_t n);
int tsr__door_refused(const struct line_door *door); // connections with another secret so far
void tsr__door_close(struct line_door *door);        // NULL is allowed

// Derives a secret of 64 hexadecimal digits for one job from a shared secret and a public text.
void tsr__meet_derive(const char *secret, const char *text, char out[65]);

// ---- ranks on GPUs (device*.c) ------------------------------------------------------------------

// How a group of GPUs communicates. Own: ranks read each other's GPU memory. Host: through host
// memory, over the base endpoint (`base` of tsr__device_open).
enum gpu_method {
    METHOD_AUTO,
    METHOD_OWN,
    METHOD_NCCL,
    METHOD_HOST,
    METHOD_COUNT
};                                                        // same values as tsr_gpu_transport
const char *tsr__gpu_method_name(enum gpu_method method); // "own"; "auto" if not chosen yet

struct gpu;
struct gpu_seat;
struct device_options {
    const struct gpu *gpu; // NULL: this rank runs on CPUs, but others have GPUs
    int card;
    enum gpu_method method;
    bool deterministic; // sums are folded in group order by every method
    double join_s;      // longest wait for the members of an NCCL communicator; 0: DEVICE_JOIN_S
    // longest time between the start of an NCCL call and this rank's next call or tsr__device_rest;
    // 0: DEVICE_WATCH_S
    double watch_s;
};
#define DEVICE_JOIN_S  60.0
#define DEVICE_WATCH_S 120.0
// Opens an endpoint that also accepts buffers in GPU memory, on top of another endpoint, which must
// outlive it. Either all ranks of the job have one or none. The session is the rank's own.
tsr_status tsr__device_open(tsr_session *session, struct endpoint *base,
                            const struct device_options *options, struct endpoint **out,
                            struct comm_trouble *why);
// Announces that this rank will communicate with the group. Call it before tsr__device_meet.
void tsr__device_expect(struct endpoint *endpoint, const int64_t *group, int n);
// Exchanges the devices of all ranks and does the slow set-up: communicators, imported memory.
tsr_status tsr__device_meet(struct endpoint *endpoint, uint64_t plan, struct comm_trouble *why);
// Announces that the rank has ended a run and waits for nothing until its next call. TSR_PEER: NCCL
// was aborted meanwhile (device_watch.c), and the results of the run are invalid.
tsr_status tsr__device_rest(struct endpoint *endpoint, struct comm_trouble *why);
// Finds the number of ranks on this rank's GPU, including itself (0: the rank runs on CPUs). Also
// finds the bytes that were free there before any of them loaded. All ranks call it between opening
// and loading, and wait for each other.
struct device_share {
    int ranks;
    int64_t free;
};
tsr_status tsr__device_share(struct endpoint *endpoint, uint64_t plan, struct device_share *out,
                             struct comm_trouble *why);
void tsr__device_close(struct endpoint *endpoint); // NULL is allowed; the base stays open
// Returns the GPU seat of an endpoint of tsr__device_open; NULL: the rank runs on CPUs, or the
// endpoint is of another kind.
struct gpu_seat *tsr__device_seat(struct endpoint *endpoint);
bool tsr__device_is(const struct endpoint *endpoint);
// tsr__device_rows copies rows, tsr__device_scratch returns scratch memory, both on the rank's GPU.
// All work is enqueued on call->stream. block 0 or 1: two separate buffers.
struct device_rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, rows; // bytes; rows of `width`, pitch apart
};
tsr_status tsr__device_rows(struct endpoint *endpoint, const struct comm_call *call,
                            const struct device_rows *rows, struct comm_trouble *why);
tsr_status tsr__device_scratch(struct endpoint *endpoint, const struct comm_call *call, int block,
                               size_t bytes, void **out, struct comm_trouble *why);
// Compiles the kernels that a call of this type and reduction needs.
tsr_status tsr__device_prepare(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_trouble *why);
// Returns the stream of the library that replaces the GPU driver in tests, or NULL if it is not
// used. With it, the engine computes on the CPU without streams, and kernels finish synchronously.
void *tsr__device_stand_in(struct endpoint *endpoint);
tsr_status tsr__device_wait(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why);
// Describes how this rank's i-th announced group communicates, after tsr__device_meet. Returns
// false if there is no such group.
struct device_group_info {
    const int64_t *group;
    int n;
    enum gpu_method method; // method of calls whose buffers are all in GPU memory
};
bool tsr__device_group_at(const struct endpoint *endpoint, size_t i, struct device_group_info *out);

// ---- cores (cores.c) ----------------------------------------------------------------------------

// Returns the number of cores that this process can use: its affinity mask, or fewer if a control
// group limits its time.
int tsr__cores(void);
// Lists the cores of share `part` of `parts`; writes at most cap numbers to out and returns the
// number of cores. Returns 0 if threads should not be bound: there is only one share, or there are
// more shares than cores. Example: 8 cores and 3 shares are 0 and 1, 2 to 4, 5 to 7, sorted by
// package.
int tsr__cores_share(int part, int parts, int *out, int cap);
// Binds the calling thread, and threads that it starts later, to such a share. Returns false if
// nothing was done.
bool tsr__cores_keep(int part, int parts);
// In a rank that Open MPI has bound by default to fewer cores than it will have threads (0:
// cores / ranks on this host): binds it to its share of the launcher's cores instead. Returns false
// if nothing was done.
bool tsr__cores_unbind(int threads);
// CPU time used so far, in seconds: of all programs on the cores of this process (busy; 0 if the
// system does not say), and of this process and its children that have ended (own).
struct cores_use {
    double at, busy, own;
    int cores;
};
struct cores_use tsr__cores_use(void);
// Returns the share of the cores' time that other programs used in between: 0 to 1.
double tsr__cores_others(const struct cores_use *before, const struct cores_use *after);
// For tests: returns the number of cores that control groups allow; 0: no limit. root: the folder
// of all control groups (/sys/fs/cgroup); groups: the content of /proc/self/cgroup.
int tsr__cores_quota(const char *root, const char *groups);
// Tells the processor that the calling loop polls memory (instruction `pause` or `yield`).
void tsr__relax(void);

// ---- arithmetic (reduce.c) ----------------------------------------------------------------------

// True if elements of that type can be reduced: floats of 16, 32, 64 bits, bfloat16, integers of 8
// to 64 bits, bool.
bool tsr__reduce_ok(tsr_dtype type, enum comm_reduce op);
size_t tsr__elem_bytes(tsr_dtype type); // bytes of an element; 0: not a type of whole bytes
// Folds in[0] .. in[n - 1] element by element, for `count` elements from `first` on, into each of
// n_out outputs. Every in[k] may be one of the outputs. Integers wrap around. float16 and bfloat16
// are accumulated in float and rounded once, to nearest even. max and min return NaN if there is
// one. For bool, sum and max are "or", prod and min are "and".
void tsr__reduce(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                 void *const *out, int n_out, int64_t first, int64_t count);
// As tsr__reduce, for a piece of `count` elements of an output of `count_of_all`: large outputs are
// written with non-temporal stores, even if the pieces are small.
void tsr__reduce_piece(tsr_dtype type, enum comm_reduce op, const void *const *in, int n, void *out,
                       int64_t count, int64_t count_of_all);

// Send and receive a packet over a Unix socket, with a descriptor (transport.c). fd -1: none. The
// receiver closes its *fd. False: the other side is gone, or the packet has another length; *fd may
// be set even then.
bool tsr__packet_send(int to, const void *p, size_t bytes, int fd);
bool tsr__packet_receive(int from, void *p, size_t bytes, int *fd);

// Finds the absolute path of the mapped file that contains this address (mapped.c). Returns false
// if there is none, or if the path does not fit.
bool tsr__file_at(const void *address, char *out, size_t n);
// Finds the folder of that file: "/usr/lib" for "/usr/lib/libtessera.so.1", "" for a file in the
// root.
bool tsr__folder_at(const void *address, char *out, size_t n);

#endif
