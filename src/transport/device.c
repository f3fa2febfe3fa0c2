// SPDX-License-Identifier: Apache-2.0
// device.c - endpoints of ranks that may be on GPUs: cards are exchanged, a way is chosen, the way works.
//
// Calls that are plain go to the endpoint below as they are. For others all members compare their fingerprints there and
// tell where their memory lies. If all of it is the host's, the endpoint below does the call. If all of it lies on GPUs
// that reach each other, ranks read and write each other's memory (own), or NCCL does it; else each brings its part to the
// host and the endpoint below does the call there. Nobody waits for a GPU except on that last way.
#include "transport/device.h"

#include <stdio.h>

enum { STEP_CARDS = 1, STEP_HOST = 2 };

static const char *const way_names[WAY_COUNT] = {"auto", "own", "nccl", "host"};

const char *tsr__way_name(enum comm_way way)
{
    return way_names[way];
}

bool tsr__way_of(const char *name, enum comm_way *out)
{
    for (int i = 0; i < WAY_COUNT; i++)
        if (strcmp(name, way_names[i]) == 0) {
            *out = (enum comm_way)i;
            return true;
        }
    return false;
}

// ---- what the ways share -----------------------------------------------------------------------

tsr_status tsr__device_code(const struct device_call *k, int code, const char *doing)
{
    if (code == 0)
        return TSR_OK;
    char words[160];
    int64_t available = 0, all = 0;
    int rank = k->d->endpoint.rank;
    tsr__gpu_words(k->d->gpu, code, words, sizeof words);
    if (code == 2 && k->d->seat && tsr__seat_free_memory(k->d->seat, &available, &all) == 0)
        return tsr__trouble(k->why, TSR_PEER, rank,
                            "%s '%s' (id %lld): GPU %d of rank %d has no memory left for %s: %lld "
                            "MiB of %lld MiB are free",
                            k->c->op, k->c->node, (long long)k->c->id, k->d->options.card, rank,
                            doing, (long long)(available >> 20), (long long)(all >> 20));
    return tsr__trouble(k->why, TSR_PEER, rank, "%s '%s' (id %lld): GPU %d of rank %d, %s: %s",
                        k->c->op, k->c->node, (long long)k->c->id, k->d->options.card, rank, doing,
                        words);
}

struct comm_call tsr__device_step(const struct comm_call *c, uint64_t step)
{
    struct comm_call d = *c;
    d.detail = tsr__hash64(&step, sizeof step, c->detail);
    d.place = COMM_PLAIN;
    return d;
}

tsr_status tsr__device_other_size(const struct device_call *k, int member, size_t expected)
{
    const struct comm_call *c = k->c;
    int rank = (int)c->group[member];
    return tsr__trouble(
        k->why, TSR_PEER, rank, "%s '%s' (id %lld): rank %d sends %llu bytes, rank %d expects %zu",
        c->op, c->node, (long long)c->id, rank, (unsigned long long)k->d->cards[member].bytes,
        k->d->endpoint.rank, expected);
}

tsr_status tsr__device_words(const struct device_call *k, uint64_t step, uint64_t mine,
                             uint64_t *theirs)
{
    struct device *d = k->d;
    struct comm_call c = tsr__device_step(k->c, step);
    struct comm_buffer *send = d->buffers, *recv = d->buffers + d->endpoint.size;
    for (int i = 0; i < c.n_group; i++) {
        send[i] = (struct comm_buffer){&mine, sizeof mine};
        recv[i] = (struct comm_buffer){&theirs[i], sizeof mine};
    }
    struct comm_exchange x = {.send = send, .recv = recv};
    return d->base->transport->exchange(d->base, &c, &x, k->why);
}

// ---- cards -------------------------------------------------------------------------------------

static bool same_process(const struct device *d, int64_t rank)
{
    return d->ranks[rank].process == d->mine.process && d->ranks[rank].host == d->mine.host;
}

static const struct device_group *group_of(const struct device *d, const struct comm_call *c)
{
    for (size_t i = 0; i < d->groups.n; i++) {
        const struct device_group *g = &d->groups.at[i];
        if (g->n == c->n_group && memcmp(g->group, c->group, (size_t)g->n * sizeof *g->group) == 0)
            return g;
    }
    return NULL;
}

// Handles of memory that a member in another process is to open; false: the driver gives none.
static bool export_to(struct device *d, const void *p, struct gpu_block *block, uint64_t *offset)
{
    size_t at = 0;
    if (!p)
        return true;
    if (tsr__seat_export(d->seat, p, block, &at) != 0)
        return false;
    *offset = at;
    return true;
}

// What member i alone is told; false: it cannot open this rank's memory. Handles are made for other processes alone: they
// cost a call of the driver.
static bool fill_card(const struct device_call *k, int i, const struct comm_buffer *send,
                      const void *out)
{
    struct device *d = k->d;
    struct call_card *card = &d->cards_out[i];
    int64_t rank = k->c->group[i];
    card->in = (uint64_t)(uintptr_t)send->p;
    card->out = (uint64_t)(uintptr_t)out;
    card->bytes = send->bytes;
    if (!on_device(k) || same_process(d, rank))
        return true;
    if (d->ranks[rank].host != d->mine.host)
        return false;
    return export_to(d, send->bytes ? send->p : NULL, &card->in_block, &card->in_offset) &&
           export_to(d, out, &card->out_block, &card->out_offset);
}

static void fill_cards(const struct device_call *k, const struct comm_buffer *send, const void *out)
{
    struct device *d = k->d;
    const struct device_group *group = group_of(d, k->c);
    bool reaches = on_device(k);
    uint64_t most = 0;
    for (int i = 0; i < k->c->n_group; i++) {
        reaches = fill_card(k, i, &send[i], out) && reaches && d->reached[k->c->group[i]];
        most = send[i].bytes > most ? send[i].bytes : most;
    }
    for (int i = 0; i < k->c->n_group; i++) {
        struct call_card *card = &d->cards_out[i];
        card->place = (int32_t)k->c->place;
        card->reaches = reaches;
        card->has_nccl = group && group->comm;
        card->most_bytes = most;
    }
}

// Exchanges cards; the caller's notes and its `arrived` go along. x NULL: an all-reduce.
static tsr_status exchange_cards(const struct device_call *k, struct comm_exchange *x)
{
    struct device *d = k->d;
    struct comm_call c = tsr__device_step(k->c, STEP_CARDS);
    struct comm_buffer *send = d->buffers, *recv = d->buffers + d->endpoint.size;
    for (int i = 0; i < c.n_group; i++) {
        send[i] = (struct comm_buffer){&d->cards_out[i], sizeof *d->cards_out};
        recv[i] = (struct comm_buffer){&d->cards[i], sizeof *d->cards};
    }
    struct comm_exchange cards = {.send = send, .recv = recv};
    if (x) {
        memcpy(cards.notes, x->notes, sizeof x->notes);
        cards.arrived = x->arrived;
        cards.data = x->data;
    }
    return d->base->transport->exchange(d->base, &c, &cards, k->why);
}

// ---- choosing ----------------------------------------------------------------------------------

// Whether two members of the group share a GPU.
static bool shares_gpu(const struct device *d, const int64_t *group, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(d->ranks[group[i]].gpu, d->ranks[group[j]].gpu, GPU_ID_BYTES) == 0)
                return true;
    return false;
}

// All members see the same cards, so all choose the same. WAY_AUTO: all memory is the host's.
static enum comm_way choose(const struct device_call *k)
{
    const struct device *d = k->d;
    int devices = 0, n = k->c->n_group;
    bool own = n <= GPU_MAX_MEMBERS, nccl = true;
    enum comm_way asked = (enum comm_way)d->ranks[k->c->group[0]].way;
    for (int i = 0; i < n; i++) {
        const struct call_card *card = &d->cards[i];
        devices += card->place == COMM_DEVICE;
        own = own && card->reaches;
        nccl = nccl && card->has_nccl;
    }
    if (devices == 0)
        return WAY_AUTO;
    if (devices < n || asked == WAY_HOST)
        return WAY_HOST;
    bool first_nccl = asked == WAY_NCCL || !own || !shares_gpu(d, k->c->group, n);
    if (nccl && asked != WAY_OWN && first_nccl)
        return WAY_NCCL;
    return own ? WAY_OWN : WAY_HOST;
}

// Fails the job if the call did.
static tsr_status ended(const struct device_call *k, tsr_status st)
{
    if (st != TSR_OK) {
        k->d->endpoint.transport->fail(&k->d->endpoint, k->why->status, k->why->rank, k->why->text);
    }
    return st;
}

// The start of every call: this rank's stream is marked as having made what it sends, and cards go round.
static tsr_status begin(struct device_call *k, const struct comm_buffer *send, const void *out,
                        struct comm_exchange *x)
{
    struct device *d = k->d;
    while (k->c->group[k->self] != d->endpoint.rank)
        k->self++;
    tsr_status st = TSR_OK;
    if (on_device(k)) {
        st = tsr__device_code(k, tsr__seat_enter(d->seat), "its context");
        if (st == TSR_OK)
            st = tsr__device_code(k, tsr__seat_record(d->seat, EVENT_READY, k->c->stream),
                                  "an event");
    }
    const struct device_group *group = group_of(d, k->c);
    if (st == TSR_OK && on_device(k) && group && group->comm)
        st = tsr__nccl_way_reserve(k, x);
    if (st != TSR_OK)
        return st;
    fill_cards(k, send, out);
    return exchange_cards(k, x);
}

static tsr_status device_all_reduce(struct endpoint *e, const struct comm_call *c, const void *in,
                                    void *out, struct comm_trouble *why)
{
    struct device *d = device_of(e);
    if (c->place == COMM_PLAIN)
        return d->base->transport->all_reduce(d->base, c, in, out, why);
    struct device_call k = {d, c, why, 0};
    struct comm_buffer *send = d->buffers + 2 * e->size;
    size_t bytes = (size_t)c->count * tsr__elem_bytes(c->type);
    for (int i = 0; i < c->n_group; i++)
        send[i] = (struct comm_buffer){(void *)in, bytes};
    tsr_status st = begin(&k, send, out, NULL);
    if (st != TSR_OK)
        return ended(&k, st);
    switch (choose(&k)) {
    case WAY_OWN:
        return ended(&k, tsr__own_all_reduce(&k, in, out));
    case WAY_NCCL:
        return ended(&k, tsr__nccl_way_all_reduce(&k, group_of(d, c)->comm, in, out));
    case WAY_HOST:
        return ended(&k, tsr__host_all_reduce(&k, in, out));
    default:
        break;
    }
    struct comm_call below = tsr__device_step(c, STEP_HOST);
    return d->base->transport->all_reduce(d->base, &below, in, out, why);
}

static tsr_status device_exchange(struct endpoint *e, const struct comm_call *c,
                                  struct comm_exchange *x, struct comm_trouble *why)
{
    struct device *d = device_of(e);
    if (c->place == COMM_PLAIN)
        return d->base->transport->exchange(d->base, c, x, why);
    struct device_call k = {d, c, why, 0};
    tsr_status st = begin(&k, x->send, NULL, x);
    if (st != TSR_OK)
        return ended(&k, st);
    x->arrived = NULL; // it has been told
    switch (choose(&k)) {
    case WAY_OWN:
        return ended(&k, tsr__own_exchange(&k, x));
    case WAY_NCCL:
        return ended(&k, tsr__nccl_way_exchange(&k, group_of(d, c)->comm, x));
    case WAY_HOST:
        return ended(&k, tsr__host_exchange(&k, x));
    default:
        break;
    }
    struct comm_call below = tsr__device_step(c, STEP_HOST);
    return d->base->transport->exchange(d->base, &below, x, why);
}

// ---- the endpoint ------------------------------------------------------------------------------

static void device_fail(struct endpoint *e, tsr_status status, int rank, const char *text)
{
    struct device *d = device_of(e);
    d->base->transport->fail(d->base, status, rank, text);
    tsr__nccl_way_abort(d);
}

static void device_close(struct endpoint *e)
{
    struct device *d = device_of(e);
    d->base->transport->close(d->base);
}

static const struct transport device_transport = {
    .name = "gpu",
    .all_reduce = device_all_reduce,
    .exchange = device_exchange,
    .fail = device_fail,
    .close = device_close,
};
bool tsr__device_is(const struct endpoint *e)
{
    return e && e->transport == &device_transport;
}

struct gpu_seat *tsr__device_seat(struct endpoint *e)
{
    return tsr__device_is(e) ? device_of(e)->seat : NULL;
}

static bool make_lists(struct device *d)
{
    size_t n = (size_t)d->endpoint.size;
    d->cards_out = ARENA_ARRAY(&d->arena, struct call_card, n);
    d->cards = ARENA_ARRAY(&d->arena, struct call_card, n);
    d->buffers = ARENA_ARRAY(&d->arena, struct comm_buffer, 3 * n);
    d->from = ARENA_ARRAY(&d->arena, const void *, n);
    d->to = ARENA_ARRAY(&d->arena, void *, n);
    d->reached = ARENA_ARRAY(&d->arena, bool, n);
    d->events = (void *(*)[GPU_EVENTS])ARENA_ARRAY(&d->arena, void *, n *GPU_EVENTS);
    return !d->arena.failed;
}

tsr_status tsr__device_open(tsr_session *s, struct endpoint *base, const struct device_options *o,
                            struct endpoint **out, struct comm_trouble *why)
{
    struct arena a;
    tsr__arena_init(&a, s);
    struct device *d = ARENA_NEW(&a, struct device);
    if (!d)
        return tsr__trouble(why, TSR_NOMEM, base->rank, "rank %d is out of memory", base->rank);
    d->arena = a;
    d->endpoint = *base;
    d->endpoint.transport = &device_transport;
    d->base = base;
    d->options = *o;
    d->gpu = o->gpu;
    struct device_call k = {d, &(struct comm_call){.op = "opening", .node = "GPU"}, why, 0};
    tsr_status st = TSR_OK;
    if (!make_lists(d))
        st = tsr__trouble(why, TSR_NOMEM, base->rank, "rank %d is out of memory", base->rank);
    else if (o->gpu)
        st = tsr__device_code(&k, tsr__seat_open(s, o->gpu, o->card, &d->seat), "opening it");
    if (st == TSR_OK)
        *out = &d->endpoint;
    else
        tsr__device_close(&d->endpoint);
    return st;
}

void tsr__device_expect(struct endpoint *e, const int64_t *group, int n)
{
    if (!tsr__device_is(e))
        return;
    struct device *d = device_of(e);
    struct comm_call c = {.group = group, .n_group = n};
    if (n < 2 || group_of(d, &c))
        return;
    int64_t *kept = ARENA_ARRAY(&d->arena, int64_t, (size_t)n);
    struct device_group *g = kept ? vec_push(&d->arena, &d->groups) : NULL;
    if (!g)
        return; // that group does without a communicator of NCCL
    memcpy(kept, group, (size_t)n * sizeof *kept);
    *g = (struct device_group){.group = kept, .n = n};
}

bool tsr__device_group_at(const struct endpoint *e, size_t i, struct device_group_info *out)
{
    if (!tsr__device_is(e))
        return false;
    const struct device *d = (const struct device *)e;
    if (i >= d->groups.n)
        return false;
    const struct device_group *g = &d->groups.at[i];
    *out = (struct device_group_info){g->group, g->n, g->way};
    return true;
}

void tsr__device_close(struct endpoint *e)
{
    if (!e)
        return;
    struct device *d = device_of(e);
    for (size_t i = 0; i < d->groups.n; i++)
        if (!atomic_load(&d->aborted)) // else they are gone
            tsr__nccl_leave(d->gpu, d->groups.at[i].comm, false);
    if (d->seat) {
        tsr__seat_enter(d->seat);
        tsr__seat_free(d->seat, d->probe);
    }
    tsr__seat_close(d->seat);
    struct arena a = d->arena; // it holds the device itself
    tsr__arena_free(&a);
}
