// SPDX-License-Identifier: Apache-2.0
// transport.h - moves bytes between the ranks of one job, behind one seam.
//
// A rank holds an endpoint. All members of a group make the same calls in the same order; every
// call says what it is (struct comm_call), and the group compares that before any byte is trusted:
// ranks that disagree get an error that names both, never wrong numbers and never a hang.
// Reductions fold in group order, so all ranks and all transports give the same bits. A rank that
// fails takes the others with it at once; one that gives no sign of life is named by those who wait
// for it; one that is merely slow is waited for.
//
// An endpoint belongs to one thread at a time. Failures are told in a struct comm_trouble, not as
// findings, because the rank's thread may not touch the session; whoever runs the ranks makes the
// finding. This room knows no ONNX but the numbers of the element types.
#ifndef TSR_TRANSPORT_H
#define TSR_TRANSPORT_H

#include "base/base.h"
#include "collective/collective.h"

#define COMM_MAX_RANKS 65536
#define COMM_NOTES     16 // words that travel with a call: enough for the shape of a tensor
#define COMM_GIFTS     16 // files that a rank may have left for rank 0 at a time
#define COMM_NAME      48 // bytes of a node's name that travel, terminator included

#define COMM_DEAD_S    5.0  // a process that is gone is reported after this
#define COMM_STOPPED_S 15.0 // default of the longest wait for a rank without a heartbeat

// Where the memory of a call lies. COMM_PLAIN: on the host, and all members know it without a word. A kernel of a job
// that has GPUs says which, because an engine may put it on either side.
enum comm_place { COMM_PLAIN, COMM_HOST, COMM_DEVICE };
enum comm_reduce { COMM_NONE, COMM_SUM, COMM_MAX, COMM_MIN, COMM_PROD, COMM_REDUCE_COUNT };

// What a rank believes it is about to do with its group: the fingerprint. All but op, node, place and
// stream must be equal on all members.
struct comm_call {
    uint64_t plan;       // fingerprint of the partition
    int64_t id;          // number of this communication in the plan
    uint64_t run;        // how often this rank has made it before
    enum comm_kind kind; // a row of the table of collectives, or COMM_HANDSHAKE
    enum comm_reduce reduce;
    tsr_dtype type;       // element type that travels
    int64_t count;        // elements, where all have equally many; else 0
    uint64_t detail;      // hash of everything else that must agree (axis, layouts)
    const int64_t *group; // ranks that take part, ascending, this one among them
    int n_group;
    const char *op, *node; // for messages
    enum comm_place place;
    void *stream; // COMM_DEVICE: of the GPU; the call puts its work there and returns
};

// Why a call failed. rank is the one at fault, -1 where nobody can be named.
struct comm_trouble {
    tsr_status status;
    int rank;
    char text[512];
};

// A piece of memory, of the host or of the GPU: the call says which.
struct comm_buffer {
    void *p;
    size_t bytes;
};

// What one member sends to and gets from each member of the group, in the group's order (its own
// entry is copied). notes are a few words to all others; `arrived`, if given, is called once all
// are there and agree, with everybody's notes, and may then set the receive buffers (their sizes
// must be what the others send). With `folded`, what arrives is not kept but folded in group order
// (type and reduce of the call): all members then send this one equally many bytes, recv[0].bytes,
// and recv is scratch then. `folded` may be what this member sends itself.
struct comm_exchange {
    const struct comm_buffer *send;
    struct comm_buffer *recv;
    void *folded; // or NULL
    int64_t notes[COMM_NOTES];
    tsr_status (*arrived)(void *data, const int64_t (*notes)[COMM_NOTES], struct comm_trouble *why);
    void *data;
};

struct endpoint;

// The seam. All functions but `fail` are called by the endpoint's thread alone.
struct transport {
    const char *name; // "threads", "mpi"
    // out := elements of all members' in folded in group order; in == out is fine.
    tsr_status (*all_reduce)(struct endpoint *endpoint, const struct comm_call *call,
                             const void *in, void *out, struct comm_trouble *why);
    tsr_status (*exchange)(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_exchange *exchange, struct comm_trouble *why);
    // Ends the job: every rank that waits, or will, gets this status and text. The first one
    // counts.
    void (*fail)(struct endpoint *endpoint, tsr_status status, int rank, const char *text);
    // This rank takes part no more; whoever waits for it from now on is told so.
    void (*close)(struct endpoint *endpoint);
    // Memory that the other ranks can reach where it lies; by any thread. NULL: all memory is alike.
    void *(*alloc)(struct endpoint *endpoint,
                   size_t bytes);                        // on a cache line; NULL: there is no more
    bool (*release)(struct endpoint *endpoint, void *p); // false: it is none of that memory
    size_t (*held)(struct endpoint *endpoint);           // bytes of it that this rank keeps
    // Of ranks that are processes: tsr__comm_give and what follows it.
    tsr_status (*give)(struct endpoint *endpoint, const struct comm_call *call, int fd,
                       size_t bytes, struct comm_trouble *why);
    tsr_status (*settle)(struct endpoint *endpoint, const struct comm_call *call,
                         struct comm_trouble *why);
    tsr_status (*take)(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                       size_t *bytes, struct comm_trouble *why);
    // How that group communicates, in one word; NULL: as the name says.
    const char *(*way)(const struct endpoint *endpoint, const int64_t *group, int n);
};
struct endpoint {
    const struct transport *transport;
    int rank, size;
    int host_ranks, host_cores; // ranks of the job on this host, cores that they have together
    // Measured for whoever sets `timed`: seconds in calls, waiting for others included.
    bool timed;
    double comm_s;
};

struct comm_options {
    double timeout_s;    // longest wait for a rank without a heartbeat; 0: COMM_STOPPED_S
    const char *plugins; // folder to look for plug-ins in first, or NULL
    bool messages_only;  // MPI: no shared memory between ranks of one host
    int rank, ranks;     // ranks > 0: started by hand, one process each (env.c)
    const char *meet;    // the name by which those find each other, or NULL
    const char *hosts;   // UCX: "a:4,b:4" of those, or NULL: this host
    int port;            // UCX: where rank 0 listens; 0: what the launcher says, or a default
    const char *secret;  // UCX: shared secret of the ranks; NULL: none, and all are on this host
    // UCX, between hosts: name, address or network of an interface; NULL: by the route to rank 0
    const char *interface;
};

// ---- collectives -------------------------------------------------------------------------------

tsr_status tsr__comm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                const void *in, void *out, struct comm_trouble *why);
tsr_status tsr__comm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                              struct comm_exchange *exchange, struct comm_trouble *why);
// What follows is made of exchanges. Who is root or peer is a rank, not a place in the group.
// in: one piece for each member, one after the other in group order, of counts[i] elements; out :=
// the fold of all members' pieces for this one (call->reduce, call->type). counts are equal on all members.
// out may be this member's own piece inside in.
tsr_status tsr__comm_reduce_scatter(struct endpoint *endpoint, const struct comm_call *call,
                                    const void *in, const int64_t *counts, void *out,
                                    struct comm_trouble *why);
// out of root := fold of all members' in (call->count elements); others may give out NULL.
tsr_status tsr__comm_reduce(struct endpoint *endpoint, const struct comm_call *call, int root,
                            const void *in, void *out, struct comm_trouble *why);
// send[i] goes to member i, recv[i] comes from it; sizes may differ and are checked.
tsr_status tsr__comm_all_to_all(struct endpoint *endpoint, const struct comm_call *call,
                                const struct comm_buffer *send, struct comm_buffer *recv,
                                struct comm_trouble *why);
// p of root is copied to p of all others.
tsr_status tsr__comm_broadcast(struct endpoint *endpoint, const struct comm_call *call, int root,
                               void *p, size_t bytes, struct comm_trouble *why);
// One message between two ranks; call->group is not looked at. notes (COMM_NOTES words, or NULL) go
// along: a shape, say. The receiver's `arrived` is told them and gives the memory of exactly the
// size that comes; NULL: into.p and into.bytes are known before. Both sides wait for each other.
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
// Results go to rank 0 beside the calls, between ranks that are processes. A rank gives the first `bytes` of a file
// without a name, which belongs to the endpoint from then on, and goes on at once; at most COMM_GIFTS are under way.
// Settling waits until rank 0 has the one that was given first. Rank 0 takes what a rank gave in the same order (call->run is
// compared); the file is the caller's to close.
tsr_status tsr__comm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                          size_t bytes, struct comm_trouble *why);
tsr_status tsr__comm_settle(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why);
tsr_status tsr__comm_take(struct endpoint *endpoint, const struct comm_call *call, int from,
                          int *fd, size_t *bytes, struct comm_trouble *why);
// All ranks of the job meet under this plan: the start of a run, and the proof that they run the
// same thing.
tsr_status tsr__comm_barrier(struct endpoint *endpoint, uint64_t plan, const char *what,
                             struct comm_trouble *why);
void tsr__comm_fail(struct endpoint *endpoint, tsr_status status, const char *text);
// How the tensors of a group that this rank is in travel: "threads", "shm", "mpi"; where its ranks are on GPUs "own", "ipc" (own,
// between processes), "nccl" or "host". After the ranks have met.
const char *tsr__comm_way(const struct endpoint *endpoint, const int64_t *group, int n);
void tsr__comm_close(struct endpoint *endpoint); // NULL is fine

double tsr__now_s(void); // monotonic

// ---- ranks as threads of one process (threads.c) -----------------------------------------------

struct thread_job;
// A job of n ranks; endpoints belong to it. NULL: out of memory (finding added).
struct thread_job *tsr__threads_new(tsr_session *session, int n,
                                    const struct comm_options *options);
struct endpoint *tsr__threads_endpoint(struct thread_job *job, int rank);
void tsr__threads_free(struct thread_job *job); // after all ranks have ended
// What ended the job, or NULL. After all ranks have ended.
const struct comm_trouble *tsr__threads_trouble(const struct thread_job *job);

// ---- ranks as processes of one host (shm_job.c, shm_meet.c, shm_move.c) ------------------------

struct shm_job;
// Memory for a job of n ranks, without a name. *out is to be freed even after a failure (finding
// added). Processes that are forked afterwards have it; others are handed its descriptor.
tsr_status tsr__shm_new(tsr_session *session, int n, const struct comm_options *options,
                        struct shm_job **out);
// The same memory in another process, by its descriptor, which then belongs to the job.
tsr_status tsr__shm_map(tsr_session *session, int fd, int n, const struct comm_options *options,
                        struct shm_job **out);
int tsr__shm_fd(const struct shm_job *job);
void tsr__shm_free(tsr_session *session, struct shm_job *job);
// This process's rank in the job. The session must outlive the endpoint, the job too.
tsr_status tsr__shm_endpoint(tsr_session *session, struct shm_job *job, int rank,
                             struct endpoint **out);
// For a process that looks after the ranks' processes: it says so before they start; has the job
// failed; a rank's signs of life so far; a rank is lost (what: "was killed by signal 9").
// The text of that names who waits for it, and where: false if nobody does yet, and not `last`.
void tsr__shm_watched(struct shm_job *job);
bool tsr__shm_trouble(const struct shm_job *job, struct comm_trouble *why);
uint64_t tsr__shm_beat(const struct shm_job *job, int rank);
bool tsr__shm_lost(struct shm_job *job, int rank, const char *what, bool last);

// ---- ranks as processes (mpi.c, net.c) ---------------------------------------------------------

// Joins the MPI job that a launcher of that family started ("openmpi", "mpich"). Adds the finding
// itself: plugin-absent, mpi-failed.
tsr_status tsr__mpi_open(tsr_session *session, const char *family,
                         const struct comm_options *options, struct endpoint **out);

// Joins ranks of any hosts over UCX; they meet over TCP, where options or the launcher say (meet_place.c). Adds the finding itself:
// plugin-absent, transport-absent, rank-failed, ucx-failed.
tsr_status tsr__ucx_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out);

// Whether the plug-in of a family ("ucx", "openmpi") is in that folder (NULL: none), or beside this library.
bool tsr__plugin_present(const char *family, const char *folder);

// Joins ranks of one host that a launcher started with plain environment variables ("torchrun", "slurm" without PMI), through
// shared memory (env.c). Adds the finding itself: transport-absent, rank-failed, shm-failed.
tsr_status tsr__env_open(tsr_session *session, const struct comm_options *options,
                         struct endpoint **out);
// Whether such ranks are all on this host, as far as the options and the launcher say.
bool tsr__env_one_host(const struct comm_options *options);

// The launcher's word on this process (launcher.c): tsr_launcher of tessera.h. Families that are no
// MPI: "torchrun", and "slurm" on one host.
bool tsr__launcher_is_mpi(const char *family);

// ---- ranks on GPUs (device*.c) -----------------------------------------------------------------

// How a group communicates. Own: ranks read each other's GPU memory; host: through host memory, over the transport below.
enum comm_way { WAY_AUTO, WAY_OWN, WAY_NCCL, WAY_HOST, WAY_COUNT };
const char *tsr__way_name(enum comm_way way); // "own"; "auto" for what was not chosen yet
// "nccl" -> WAY_NCCL; false: no such way.
bool tsr__way_of(const char *name, enum comm_way *out);

struct gpu;
struct gpu_seat;
struct device_options {
    const struct gpu *gpu; // NULL: this rank is on the host, but others have GPUs
    int card;
    enum comm_way way;
    bool deterministic; // sums fold in group order on every way
    double join_s;      // longest wait for the members of a communicator of NCCL; 0: DEVICE_JOIN_S
    // longest wait of a rank that has started a call of NCCL until it comes to its next call, or rests; 0: DEVICE_WATCH_S
    double watch_s;
};
#define DEVICE_JOIN_S  60.0
#define DEVICE_WATCH_S 120.0
// An endpoint that also takes calls whose memory is a GPU's, over another endpoint, which must outlive it. All ranks of the
// job have one, or none. The session is the rank's own.
tsr_status tsr__device_open(tsr_session *session, struct endpoint *base,
                            const struct device_options *options, struct endpoint **out,
                            struct comm_trouble *why);
// Tells that this rank will communicate with that group; before the meeting.
void tsr__device_expect(struct endpoint *endpoint, const int64_t *group, int n);
// All ranks tell each other where they are, and what takes long is made: communicators, imports.
tsr_status tsr__device_meet(struct endpoint *endpoint, uint64_t plan, struct comm_trouble *why);
// The rank has ended a run, and waits for nobody until its next call. TSR_PEER: NCCL was given up meanwhile (device_watch.c), and what the
// run has made is not right.
tsr_status tsr__device_rest(struct endpoint *endpoint, struct comm_trouble *why);
// How many ranks of the job are on this rank's GPU, itself included (0: it is on the host), and the bytes that are free there before one
// of them has loaded anything: all ranks call it between opening and loading, and wait for each other.
struct device_share {
    int ranks;
    int64_t free;
};
tsr_status tsr__device_share(struct endpoint *endpoint, uint64_t plan, struct device_share *out,
                             struct comm_trouble *why);
void tsr__device_close(struct endpoint *endpoint); // NULL is fine; the base stays
// The place on a GPU of such an endpoint; NULL: on the host, or another kind of endpoint.
struct gpu_seat *tsr__device_seat(struct endpoint *endpoint);
bool tsr__device_is(const struct endpoint *endpoint);
// Memory and copies for whoever makes such calls, on the rank's GPU; all work goes on the stream. block 0 or 1: one each.
struct device_rows {
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, rows; // bytes; rows of `width`, pitch apart
};
tsr_status tsr__device_rows(struct endpoint *endpoint, const struct comm_call *call,
                            const struct device_rows *rows, struct comm_trouble *why);
tsr_status tsr__device_scratch(struct endpoint *endpoint, const struct comm_call *call, int block,
                               size_t bytes, void **out, struct comm_trouble *why);
// Compiles what a call of that type and reduction will need.
tsr_status tsr__device_prepare(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_trouble *why);
// A library stands in for the driver: the engine computes on the host and knows no streams, so that a kernel ends when its work
// is done. The stream for it, or NULL.
void *tsr__device_stand_in(struct endpoint *endpoint);
tsr_status tsr__device_wait(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why);
// After the meeting: how this rank's i-th expected group communicates; false: there is none.
struct device_group_info {
    const int64_t *group;
    int n;
    enum comm_way way; // of calls whose memory all lies on GPUs
};
bool tsr__device_group_at(const struct endpoint *endpoint, size_t i, struct device_group_info *out);

// ---- cores (cores.c) ---------------------------------------------------------------------------

// Cores that this process can keep busy: those it may run on, or fewer where a control group allows less time.
int tsr__cores(void);
// That many of those it may run on are part `part` of `parts`; their numbers go to out, at most cap of them. 0: there is
// one part only, or there are more parts than cores; whoever would keep to them is better left alone.
int tsr__cores_share(int part, int parts, int *out, int cap);
// Keeps the calling thread, and those that it starts from now on, to such a share; false: nothing was done.
bool tsr__cores_keep(int part, int parts);
// For tests: cores that the control groups of a process allow (/proc/self/cgroup), seen from that root; 0: no limit.
int tsr__cores_quota(const char *root, const char *groups);

// ---- arithmetic (reduce.c) ---------------------------------------------------------------------

// True if elements of that type can be reduced: floats of 16, 32, 64 bits, bfloat16, integers of 8
// to 64 bits, bool.
bool tsr__reduce_ok(tsr_dtype type, enum comm_reduce op);
size_t
tsr__elem_bytes(tsr_dtype type); // of types that can be reduced, and other whole-byte ones; 0: none
// out[m][i] := fold of in[0][first + i] .. in[n - 1][first + i], for count elements from `first`
// on; written to each of n_out outputs. Every in[k] may be one of the outputs. Integers wrap
// around; float16 and bfloat16 are accumulated in float and rounded once, to nearest even; max and
// min give NaN if there is one; bool: sum and max are "or", prod and min are "and".
void tsr__reduce(tsr_dtype type, enum comm_reduce op, const void *const *in, int n,
                 void *const *out, int n_out, int64_t first, int64_t count);
// The same for a piece of `count` elements of an output of `count_of_all`: large outputs are written
// past the caches, however small the pieces are.
void tsr__reduce_piece(tsr_dtype type, enum comm_reduce op, const void *const *in, int n, void *out,
                       int64_t count, int64_t count_of_all);
// To nearest even; one NaN.
uint16_t tsr__float_to_half(float f);
uint16_t tsr__float_to_bfloat(float f);

// The absolute path of the mapped file that holds this address (mapped.c); false: it lies in none, or the path does not fit.
bool tsr__file_at(const void *address, char *out, size_t n);
// The folder of that file: "/usr/lib" of "/usr/lib/libtessera.so.0.1", "" of a file in the root.
bool tsr__folder_at(const void *address, char *out, size_t n);

#endif
