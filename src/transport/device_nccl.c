// SPDX-License-Identifier: Apache-2.0
// device_nccl.c - groups that NCCL serves: its all-reduce, and messages in groups for everything else.
//
// NCCL's kernels wait on the GPU until all members have started theirs. The hosts have met just before (the cards), so all
// do; should one fail between, the communicators of this process are aborted.
#include "transport/device.h"

enum { STEP_TOGETHER = 4 };

static tsr_status nccl_code(const struct device_call *k, int code, const char *doing)
{
    if (code == 0)
        return TSR_OK;
    int rank = k->d->endpoint.rank;
    return tsr__trouble(k->why, TSR_PEER, rank, "%s '%s' (id %lld): NCCL on rank %d, %s: %s",
                        k->c->op, k->c->node, (long long)k->c->id, rank, doing,
                        tsr__nccl_words(k->d->gpu, code));
}

tsr_status tsr__nccl_way_open(struct device *d, struct device_group *g, uint64_t plan,
                              struct comm_trouble *why)
{
    struct comm_call c = {.plan = plan,
                          .kind = COMM_BROADCAST,
                          .op = "NCCL",
                          .node = "communicator",
                          .id = -4,
                          .group = g->group,
                          .n_group = g->n};
    struct device_call k = {d, &c, why, 0};
    while (g->group[k.self] != d->endpoint.rank)
        k.self++;
    struct nccl_id id = {{0}};
    if (k.self == 0) {
        tsr_status st = nccl_code(&k, tsr__nccl_id(d->gpu, &id), "its name");
        if (st != TSR_OK)
            return st;
    }
    tsr_status st = tsr__comm_broadcast(d->base, &c, (int)g->group[0], &id, sizeof id, why);
    if (st != TSR_OK)
        return st;
    return nccl_code(&k, tsr__nccl_join(d->seat, &id, g->n, k.self, &g->comm), "joining");
}

// Where slice i of the tensor begins, and how long it is, in bytes.
struct slice {
    size_t at, bytes;
};
static struct slice slice_of(const struct comm_call *c, int i)
{
    int64_t first, length;
    size_t unit = tsr__elem_bytes(c->type);
    tsr__slice(c->count, unit, c->n_group, i, &first, &length);
    return (struct slice){(size_t)first * unit, (size_t)length * unit};
}

// Memory and kernels that a call will need. A GPU may give or take no memory and load no kernel while another rank's kernel
// waits on it for this one, so they are had before the hosts meet.
tsr_status tsr__nccl_way_reserve(const struct device_call *k, const struct comm_exchange *x)
{
    const struct comm_call *c = k->c;
    void *scratch;
    size_t bytes = 0;
    if (x && x->folded)
        bytes = x->recv[0].bytes;
    else if (!x)
        bytes = slice_of(c, k->self).bytes;
    if (bytes == 0 || c->n_group > GPU_MAX_MEMBERS)
        return TSR_OK;
    tsr_status st = tsr__device_prepare(&k->d->endpoint, c, k->why);
    if (st != TSR_OK)
        return st;
    return tsr__device_code(
        k, tsr__seat_scratch(k->d->seat, 1, bytes * (size_t)c->n_group, c->stream, &scratch),
        "adding up");
}

// Where members share a GPU: nobody starts a kernel that waits while another still has its output to make.
static tsr_status together(const struct device_call *k)
{
    uint64_t words[GPU_MAX_MEMBERS];
    const struct comm_call *c = k->c;
    bool shared = false;
    for (int i = 1; i < c->n_group; i++)
        for (int j = 0; j < i; j++)
            shared = shared || memcmp(k->d->ranks[c->group[i]].gpu, k->d->ranks[c->group[j]].gpu,
                                      GPU_ID_BYTES) == 0;
    return shared ? tsr__device_words(k, STEP_TOGETHER, 0, words) : TSR_OK;
}

// ---- sums in group order -----------------------------------------------------------------------

// Each member gets its slice of all inputs, folds it in group order, and sends it to all: the same bits as anywhere else.
static tsr_status reduce_in_order(const struct device_call *k, void *comm, const void *in,
                                  void *out)
{
    const struct comm_call *c = k->c;
    struct device *d = k->d;
    struct nccl_part parts[GPU_MAX_MEMBERS] = {{0}};
    struct slice mine = slice_of(c, k->self);
    void *scratch = NULL;
    tsr_status st = tsr__device_code(
        k, tsr__seat_scratch(d->seat, 1, mine.bytes * (size_t)c->n_group, c->stream, &scratch),
        "adding up");
    if (st == TSR_OK)
        st = together(k);
    if (st != TSR_OK)
        return st;
    struct gpu_fold f = {.type = c->type,
                         .reduce = gpu_reduce_of(c->reduce),
                         .n_in = c->n_group,
                         .n_out = 1,
                         .out = {(char *)out + mine.at},
                         .count = (int64_t)(mine.bytes / tsr__elem_bytes(c->type))};
    for (int i = 0; i < c->n_group; i++) {
        struct slice theirs = slice_of(c, i);
        char *place = (char *)scratch + (size_t)i * mine.bytes;
        parts[i] =
            (struct nccl_part){(const char *)in + theirs.at, place, theirs.bytes, mine.bytes};
        f.in[i] = i == k->self ? (const char *)in + mine.at : place;
    }
    st = nccl_code(k, tsr__nccl_exchange(d->gpu, comm, parts, c->n_group, k->self, c->stream),
                   "exchanging slices");
    if (st == TSR_OK && f.count)
        st = tsr__device_code(k, tsr__seat_fold(d->seat, &f, c->stream), "adding up");
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < c->n_group; i++) {
        struct slice theirs = slice_of(c, i);
        parts[i] = (struct nccl_part){(const char *)out + mine.at, (char *)out + theirs.at,
                                      mine.bytes, theirs.bytes};
    }
    return nccl_code(k, tsr__nccl_exchange(d->gpu, comm, parts, c->n_group, k->self, c->stream),
                     "bringing slices together");
}

tsr_status tsr__nccl_way_all_reduce(const struct device_call *k, void *comm, const void *in,
                                    void *out)
{
    const struct comm_call *c = k->c;
    struct device *d = k->d;
    bool ordered = d->ranks[c->group[0]].deterministic || !tsr__nccl_has(c->type);
    if (c->count == 0)
        return TSR_OK;
    if (ordered && c->n_group <= GPU_MAX_MEMBERS)
        return reduce_in_order(k, comm, in, out);
    if (ordered)
        return tsr__host_all_reduce(k, in, out);
    tsr_status st = together(k);
    if (st != TSR_OK)
        return st;
    struct gpu_fold f = {.type = c->type,
                         .reduce = gpu_reduce_of(c->reduce),
                         .in = {in},
                         .out = {out},
                         .count = c->count};
    return nccl_code(k, tsr__nccl_all_reduce(d->gpu, comm, &f, c->stream), "AllReduce");
}

// ---- messages ----------------------------------------------------------------------------------

static tsr_status fold_messages(const struct device_call *k, void *comm, struct comm_exchange *x,
                                struct nccl_part *parts)
{
    const struct comm_call *c = k->c;
    struct device *d = k->d;
    size_t bytes = x->recv[0].bytes;
    void *scratch = NULL;
    tsr_status st = tsr__device_code(
        k, tsr__seat_scratch(d->seat, 1, bytes * (size_t)c->n_group, c->stream, &scratch),
        "adding up");
    if (st == TSR_OK)
        st = together(k);
    if (st != TSR_OK)
        return st;
    struct gpu_fold f = {.type = c->type,
                         .reduce = gpu_reduce_of(c->reduce),
                         .n_in = c->n_group,
                         .n_out = 1,
                         .out = {x->folded},
                         .count = (int64_t)(bytes / tsr__elem_bytes(c->type))};
    for (int i = 0; i < c->n_group; i++) {
        char *place = (char *)scratch + (size_t)i * bytes;
        parts[i].recv = place;
        parts[i].recv_bytes = bytes;
        f.in[i] = i == k->self ? x->send[i].p : place;
    }
    st = nccl_code(k, tsr__nccl_exchange(d->gpu, comm, parts, c->n_group, k->self, c->stream),
                   "exchanging");
    if (st != TSR_OK || bytes == 0)
        return st;
    return tsr__device_code(k, tsr__seat_fold(d->seat, &f, c->stream), "adding up");
}

tsr_status tsr__nccl_way_exchange(const struct device_call *k, void *comm, struct comm_exchange *x)
{
    const struct comm_call *c = k->c;
    struct device *d = k->d;
    struct nccl_part parts[GPU_MAX_MEMBERS] = {{0}};
    if (c->n_group > GPU_MAX_MEMBERS)
        return tsr__host_exchange(k, x);
    for (int i = 0; i < c->n_group; i++) {
        size_t expected = x->recv[x->folded ? 0 : i].bytes;
        if (d->cards[i].bytes != expected)
            return tsr__device_other_size(k, i, expected);
        parts[i] = (struct nccl_part){x->send[i].p, x->recv[i].p, x->send[i].bytes, expected};
    }
    if (x->folded)
        return fold_messages(k, comm, x, parts);
    tsr_status st = nccl_code(
        k, tsr__nccl_exchange(d->gpu, comm, parts, c->n_group, k->self, c->stream), "exchanging");
    if (st != TSR_OK)
        return st;
    const struct comm_buffer *own = &x->send[k->self];
    return tsr__device_code(
        k, tsr__seat_copy(d->seat, x->recv[k->self].p, own->p, own->bytes, c->stream), "copying");
}

void tsr__nccl_way_abort(struct device *d)
{
    for (int rank = 0; d->ranks && rank < d->endpoint.size; rank++) {
        const struct rank_card *card = &d->ranks[rank];
        if (card->process != d->mine.process || card->host != d->mine.host || !card->on_gpu)
            continue;
        struct device *other = (struct device *)(uintptr_t)card->address;
        if (atomic_exchange(&other->aborted, true))
            continue;
        for (size_t i = 0; i < other->groups.n; i++)
            if (other->groups.at[i].comm)
                tsr__nccl_leave(other->gpu, other->groups.at[i].comm, true);
    }
}
