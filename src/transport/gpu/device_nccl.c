// SPDX-License-Identifier: Apache-2.0
// device_nccl.c - groups that use NCCL: its collectives, where NCCL_ALGORITHMS (collective.h) has
// them, and grouped messages for everything else.
//
// NCCL kernels wait on the GPU until all members have started theirs. The members have just
// exchanged cards, so all will start theirs. If one fails in between, the communicators of this
// process are aborted.
#include "transport/gpu/device.h"

#include <time.h>

enum { STEP_TOGETHER = 4 };

static tsr_status nccl_code(const struct device_call *call, int code, const char *doing)
{
    if (code == 0)
        return TSR_OK;
    int rank = call->device->endpoint.rank;
    return tsr__trouble(call->why, TSR_PEER, rank, "%s '%s' (id %lld): NCCL on rank %d, %s: %s",
                        call->call->op, call->call->node, (long long)call->call->id, rank, doing,
                        tsr__nccl_words(call->device->gpu, code));
}

// ---- access to communicators --------------------------------------------------------------------
//
// A rank that fails aborts the communicators of all ranks of its process, because their kernels
// would wait for it forever. An aborted communicator is freed memory. So a rank's thread is inside
// of NCCL only between enter() and leave(). Another thread aborts a rank's communicators while that
// rank is outside. A rank that is inside aborts them itself when it leaves; the other thread does
// it after ABORT_PATIENCE_S.

#define ABORT_PATIENCE_S 2 // wait for a rank inside of NCCL, whose calls only start kernels

void tsr__nccl_init(struct device *device)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->nccl_lock, NULL);
    pthread_cond_init(&device->nccl_left, &attributes);
    pthread_condattr_destroy(&attributes);
}

// Closes or aborts all communicators of a rank, only once. Called with the lock held, by the rank
// itself or by a rank that aborts it.
static void drop_comms(struct device *device, bool abort)
{
    if (device->dropped)
        return;
    device->dropped = true;
    for (size_t i = 0; i < device->groups.n; i++)
        tsr__nccl_leave(device->gpu, device->groups.at[i].comm, abort);
}

// Marks this rank as inside an NCCL call. TSR_OK: the rank is inside, and leave() must follow.
// Otherwise the job has failed, and the base endpoint has the reason.
static tsr_status enter(const struct device_call *call)
{
    struct device *device = call->device;
    pthread_mutex_lock(&device->nccl_lock);
    bool aborted = device->aborted;
    device->inside = !aborted;
    pthread_mutex_unlock(&device->nccl_lock);
    if (!aborted)
        return TSR_OK;
    // The job has failed, so this returns the reason without waiting.
    TRY(tsr__device_words(call, STEP_TOGETHER, 0, device->words));
    return tsr__trouble(call->why, TSR_PEER, device->endpoint.rank,
                        "%s '%s' (id %lld): another rank has failed", call->call->op,
                        call->call->node, (long long)call->call->id);
}

static void leave(struct device *device)
{
    pthread_mutex_lock(&device->nccl_lock);
    device->inside = false;
    if (device->aborted)
        drop_comms(device, true);
    pthread_cond_broadcast(&device->nccl_left);
    pthread_mutex_unlock(&device->nccl_lock);
}

// Aborts the communicators of one rank of this process. Waits at most ABORT_PATIENCE_S until the
// rank is outside of NCCL. A rank that is still inside then waits for a failed rank, and NCCL
// requires that another thread aborts it. The rank does not use the communicators afterwards.
static void abort_rank(struct device *device)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ABORT_PATIENCE_S;
    pthread_mutex_lock(&device->nccl_lock);
    device->aborted = true;
    int waited = 0;
    while (device->inside && waited == 0)
        waited = pthread_cond_timedwait(&device->nccl_left, &device->nccl_lock, &until);
    drop_comms(device, true);
    pthread_mutex_unlock(&device->nccl_lock);
}

// Aborts the communicators of all ranks of this process, including this one, because their kernels
// wait for a failed rank. Ranks of other processes abort their own when they are notified.
void tsr__nccl_abort(struct device *device)
{
    for (int rank = 0; device->ranks && rank < device->endpoint.size; rank++) {
        struct device *other = device_here(device, rank);
        if (other)
            abort_rank(other);
    }
}

// Closes the communicators of this rank. The rank's thread has ended, so no call is active. Without
// a failure the communicators are destroyed normally.
void tsr__nccl_close(struct device *device)
{
    pthread_mutex_lock(&device->nccl_lock);
    drop_comms(device, false);
    pthread_mutex_unlock(&device->nccl_lock);
    pthread_cond_destroy(&device->nccl_left);
    pthread_mutex_destroy(&device->nccl_lock);
}

// Synchronizes the threads of the members around an NCCL call if members share a GPU. Before the
// call: no rank may start a waiting kernel while another must still allocate its output. After it:
// no rank may continue, perhaps to a kernel that must be loaded first, while another has not
// started its own. Allocating and loading may wait for all kernels on the GPU, while these kernels
// wait for the rank that allocates or loads: a deadlock.
static tsr_status together(const struct device_call *call)
{
    if (tsr__device_shared(call->device, call->call->group, call->call->n_group))
        return tsr__device_words(call, STEP_TOGETHER, 0, call->device->words);
    return TSR_OK;
}

// Called after NCCL has started this rank's kernel, or returned an error (code). From here on the
// watchdog measures the time to the rank's next call or the end of its run.
static tsr_status started(const struct device_call *call, int code, const char *doing)
{
    if (code != 0)
        return nccl_code(call, code, doing);
    tsr__watch_waits(call->device, call->call->node);
    return together(call);
}

static tsr_status exchange_parts(const struct device_call *call, const struct nccl_part *parts,
                                 const char *doing)
{
    const struct comm_call *comm_call = call->call;
    TRY(together(call));
    TRY(enter(call));
    int code = tsr__nccl_exchange(call->device->gpu, call->comm, parts, comm_call->n_group,
                                  call->self, comm_call->stream);
    leave(call->device);
    return started(call, code, doing);
}

// ---- opening communicators ----------------------------------------------------------------------

#define JOIN_LOOK_MS 50 // between two checks whether another rank of this process has failed

static bool is_aborted(struct device *device)
{
    pthread_mutex_lock(&device->nccl_lock);
    bool aborted = device->aborted;
    pthread_mutex_unlock(&device->nccl_lock);
    return aborted;
}

// Opens a communicator, with a deadline. Opening waits for all members, but a member that failed
// must not block the others forever. A failing rank of this process sets `aborted`; failures in
// other processes are found by the deadline.
static tsr_status join_in_time(const struct device_call *call, const struct nccl_id *id,
                               const struct device_group *group, void **comm)
{
    struct device *device = call->device;
    double join_s = device->options.join_s > 0 ? device->options.join_s : DEVICE_JOIN_S;
    double until = tsr__now_s() + join_s;
    struct nccl_joining *joining = tsr__nccl_join_start(device->seat, id, group->n, call->self);
    int rank = device->endpoint.rank;
    if (!joining)
        return tsr__trouble(call->why, TSR_NOMEM, rank, "rank %d could not start a thread", rank);
    while (!tsr__nccl_join_wait(joining, JOIN_LOOK_MS)) {
        bool aborted = is_aborted(device);
        if (!aborted && tsr__now_s() < until)
            continue;
        tsr__nccl_join_abandon(joining);
        if (aborted)
            return tsr__trouble(call->why, TSR_PEER, rank,
                                "NCCL on rank %d, connecting: another rank has failed", rank);
        return tsr__trouble(call->why, TSR_PEER, rank,
                            "NCCL on rank %d, connecting: not all of %d ranks connected within "
                            "%.0f s; --gpu-way own or host do not use NCCL",
                            rank, group->n, join_s);
    }
    return nccl_code(call, tsr__nccl_join_take(joining, comm), "joining");
}

static tsr_status join(const struct device_call *call, const struct nccl_id *id,
                       struct device_group *group)
{
    struct device *device = call->device;
    void *comm = NULL;
    pthread_mutex_lock(&device->nccl_lock);
    device->inside = true;
    pthread_mutex_unlock(&device->nccl_lock);
    tsr_status st = join_in_time(call, id, group, &comm);
    pthread_mutex_lock(&device->nccl_lock);
    // Another rank failed while this one connected. Abort the new communicator here, because no
    // other rank knows it.
    bool late = device->dropped; // the other communicators of this rank were already aborted
    group->comm = late ? NULL : comm;
    pthread_mutex_unlock(&device->nccl_lock);
    if (late)
        tsr__nccl_leave(device->gpu, comm, true);
    leave(device);
    return st;
}

// Opens the communicator of a group. The first member of the group creates the unique id of the
// communicator and broadcasts it over the base endpoint. Then all members connect.
tsr_status tsr__nccl_open(struct device *device, struct device_group *group, uint64_t plan,
                          struct comm_trouble *why)
{
    struct comm_call call = {.plan = plan,
                             .kind = COMM_BROADCAST,
                             .op = "NCCL",
                             .node = "communicator",
                             .id = -4,
                             .group = group->group,
                             .n_group = group->n};
    struct device_call k = {.device = device,
                            .call = &call,
                            .why = why,
                            .self = tsr__member_of(group->group, group->n, device->endpoint.rank)};
    struct nccl_id id = {{0}};
    if (k.self == 0)
        TRY(nccl_code(&k, tsr__nccl_id(device->gpu, &id), "creating the unique id"));
    TRY(tsr__comm_broadcast(device->base, &call, (int)group->group[0], &id, sizeof id, why));
    return join(&k, &id, group);
}

// Start and length of slice i of the tensor, in bytes.
struct slice {
    size_t at, bytes;
};
// Returns the slice of member i. Slices are the same as on CPUs (tsr__slice), so that sums are
// computed in the same order.
static struct slice slice_of(const struct comm_call *call, int i)
{
    int64_t first, length;
    size_t unit = tsr__elem_bytes(call->type);
    tsr__slice(call->count, unit, call->n_group, i, &first, &length);
    return (struct slice){(size_t)first * unit, (size_t)length * unit};
}

// Reserves memory and kernels for a call, before the members synchronize. While a kernel of another
// rank waits on the GPU for this one, memory cannot be allocated or freed and no kernel can be
// loaded.
tsr_status tsr__nccl_reserve(const struct device_call *call)
{
    const struct comm_call *comm_call = call->call;
    const struct comm_exchange *exchange = call->exchange;
    void *scratch;
    size_t bytes = 0;
    if (!exchange)
        bytes = slice_of(comm_call, call->self).bytes;
    else if (exchange->folded && tsr__device_choose(call) < 0)
        bytes = exchange->recv[0].bytes;
    if (bytes == 0 || comm_call->n_group > GPU_MAX_MEMBERS)
        return TSR_OK;
    TRY(tsr__device_prepare(&call->device->endpoint, comm_call, call->why));
    return tsr__device_code(call,
                            tsr__seat_scratch(call->device->seat, 1,
                                              bytes * (size_t)comm_call->n_group, comm_call->stream,
                                              &scratch),
                            "reducing");
}

// ---- reductions in group order ------------------------------------------------------------------

// Reduces by messages, in a fixed order. Each member receives its slice of all inputs, folds it in
// group order, and sends the result to all. This gives the same bits as the other methods.
static tsr_status in_order(const struct device_call *call)
{
    const struct comm_call *comm_call = call->call;
    const char *in = call->in;
    char *out = call->out;
    struct device *device = call->device;
    struct nccl_part *parts = device->parts;
    struct slice mine = slice_of(comm_call, call->self);
    void *scratch = NULL;
    TRY(tsr__device_code(call,
                         tsr__seat_scratch(device->seat, 1, mine.bytes * (size_t)comm_call->n_group,
                                           comm_call->stream, &scratch),
                         "reducing"));
    struct gpu_fold fold =
        gpu_fold_of(comm_call, 1, (int64_t)(mine.bytes / tsr__elem_bytes(comm_call->type)));
    fold.out[0] = out + mine.at;
    for (int i = 0; i < comm_call->n_group; i++) {
        struct slice theirs = slice_of(comm_call, i);
        char *place = (char *)scratch + (size_t)i * mine.bytes;
        parts[i] = (struct nccl_part){in + theirs.at, place, theirs.bytes, mine.bytes};
        fold.in[i] = i == call->self ? in + mine.at : place;
    }
    TRY(exchange_parts(call, parts, "exchanging slices"));
    if (fold.count)
        TRY(tsr__device_code(call, tsr__seat_fold(device->seat, &fold, comm_call->stream),
                             "reducing"));
    for (int i = 0; i < comm_call->n_group; i++) {
        struct slice theirs = slice_of(comm_call, i);
        parts[i] = (struct nccl_part){out + mine.at, out + theirs.at, mine.bytes, theirs.bytes};
    }
    return exchange_parts(call, parts, "gathering slices");
}

// Sums of types or in an order that NCCL does not have, of more members than a kernel can fold.
static tsr_status over_host(const struct device_call *call)
{
    return tsr__host_chunks(call);
}

// ---- NCCL's collectives -------------------------------------------------------------------------

// Enters NCCL for one of its collectives. TSR_OK: the call follows, then end_collective.
static tsr_status begin_collective(const struct device_call *call)
{
    TRY(together(call));
    return enter(call);
}

static tsr_status end_collective(const struct device_call *call, int code, const char *doing)
{
    leave(call->device);
    return started(call, code, doing);
}

// Returns a reduction to `count` elements per member. NCCL does not specify the order of additions.
static struct gpu_fold reduction_of(const struct device_call *call, const void *in, void *out,
                                    int64_t count)
{
    return (struct gpu_fold){.type = call->call->type,
                             .reduce = gpu_reduce_of(call->call->reduce),
                             .in = {in},
                             .out = {out},
                             .count = count};
}

static tsr_status nccl_all_reduce(const struct device_call *call)
{
    struct gpu_fold fold = reduction_of(call, call->in, call->out, call->call->count);
    if (fold.count == 0)
        return TSR_OK;
    TRY(begin_collective(call));
    int code = tsr__nccl_all_reduce(call->device->gpu, call->comm, &fold, call->call->stream);
    return end_collective(call, code, "AllReduce");
}

static tsr_status nccl_reduce_scatter(const struct device_call *call)
{
    const struct comm_exchange *exchange = call->exchange;
    int64_t count = (int64_t)(exchange->recv[0].bytes / tsr__elem_bytes(call->call->type));
    struct gpu_fold fold =
        reduction_of(call, exchange->collective->in, exchange->collective->out, count);
    if (count == 0)
        return TSR_OK;
    TRY(begin_collective(call));
    int code = tsr__nccl_reduce_scatter(call->device->gpu, call->comm, &fold, call->call->stream);
    return end_collective(call, code, "ReduceScatter");
}

static tsr_status nccl_reduce(const struct device_call *call)
{
    const struct comm_collective *collective = call->exchange->collective;
    struct gpu_fold fold = reduction_of(call, collective->in, collective->out, call->call->count);
    if (fold.count == 0)
        return TSR_OK;
    TRY(begin_collective(call));
    int code = tsr__nccl_reduce(call->device->gpu, call->comm, &fold, collective->root,
                                call->call->stream);
    return end_collective(call, code, "Reduce");
}

static tsr_status nccl_all_gather(const struct device_call *call)
{
    const struct comm_collective *collective = call->exchange->collective;
    size_t bytes = call->exchange->recv[0].bytes;
    if (bytes == 0)
        return TSR_OK;
    TRY(begin_collective(call));
    int code = tsr__nccl_all_gather(call->device->gpu, call->comm, collective->in, collective->out,
                                    bytes, call->call->stream);
    return end_collective(call, code, "AllGather");
}

// The root broadcasts out of the tensor itself, the others receive into their buffer for the root's
// message.
static tsr_status nccl_broadcast(const struct device_call *call)
{
    int root = call->exchange->collective->root;
    struct comm_buffer to = call->exchange->recv[root];
    if (root == call->self) {
        to.p = (void *)call->exchange->collective->in;
        to.bytes = (size_t)call->device->cards_out[root].most_bytes;
    }
    if (to.bytes == 0)
        return TSR_OK;
    TRY(begin_collective(call));
    int code = tsr__nccl_broadcast(call->device->gpu, call->comm, to.p, to.bytes, root,
                                   call->call->stream);
    return end_collective(call, code, "Broadcast");
}

// ---- messages -----------------------------------------------------------------------------------

// Receives all parts in scratch memory, part i at i * bytes, and folds them in group order. The
// member's own part is read in place.
static tsr_status fold_messages(const struct device_call *call, struct nccl_part *parts)
{
    const struct comm_call *comm_call = call->call;
    const struct comm_exchange *exchange = call->exchange;
    struct device *device = call->device;
    size_t bytes = exchange->recv[0].bytes;
    void *scratch = NULL;
    TRY(tsr__device_code(call,
                         tsr__seat_scratch(device->seat, 1, bytes * (size_t)comm_call->n_group,
                                           comm_call->stream, &scratch),
                         "reducing"));
    struct gpu_fold fold =
        gpu_fold_of(comm_call, 1, (int64_t)(bytes / tsr__elem_bytes(comm_call->type)));
    fold.out[0] = exchange->folded;
    for (int i = 0; i < comm_call->n_group; i++) {
        char *place = (char *)scratch + (size_t)i * bytes;
        parts[i].recv = place;
        parts[i].recv_bytes = bytes;
        fold.in[i] = i == call->self ? exchange->send[i].p : place;
    }
    tsr_status st = exchange_parts(call, parts, "exchanging");
    if (st != TSR_OK || bytes == 0)
        return st;
    return tsr__device_code(call, tsr__seat_fold(device->seat, &fold, comm_call->stream),
                            "reducing");
}

// Exchanges parts over NCCL. Reductions of more members than a kernel can fold go through host
// memory.
static tsr_status exchange_messages(const struct device_call *call)
{
    const struct comm_exchange *exchange = call->exchange;
    struct device *device = call->device;
    struct nccl_part *parts = device->parts;
    if (exchange->folded && call->call->n_group > GPU_MAX_MEMBERS)
        return tsr__host_exchange(call);
    for (int i = 0; i < call->call->n_group; i++)
        parts[i] =
            (struct nccl_part){exchange->send[i].p, exchange->recv[i].p, exchange->send[i].bytes,
                               exchange->recv[exchange->folded ? 0 : i].bytes};
    if (exchange->folded)
        return fold_messages(call, parts);
    TRY(exchange_parts(call, parts, "exchanging"));
    const struct comm_buffer *own = &exchange->send[call->self];
    return tsr__device_code(call,
                            tsr__seat_copy(device->seat, exchange->recv[call->self].p, own->p,
                                           own->bytes, call->call->stream),
                            "copying");
}

// Runs a call over NCCL. Sizes are compared before any transfer, so that a member that sends
// another size is reported; otherwise the others would wait.
tsr_status tsr__nccl_run(const struct device_call *call)
{
    static tsr_status (*const run[])(const struct device_call *) = {
#define ROW(path, function, name, what, condition) function,
        NCCL_ALGORITHMS(ROW)
#undef ROW
    };
    if (call->exchange)
        TRY(tsr__device_check_sizes(call));
    int place = tsr__device_choose(call);
    return place < 0 ? exchange_messages(call) : run[place](call);
}
