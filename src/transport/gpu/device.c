// SPDX-License-Identifier: Apache-2.0
// device.c - endpoints of ranks that may be on GPUs: exchanges cards, chooses a method, runs it.
//
// Plain calls go to the base endpoint (`base`), which knows no GPUs. For other calls all members
// first compare their descriptions over that endpoint and exchange where their buffers are. If all
// are in host memory, the base endpoint does the call. If all are on GPUs with peer access, ranks
// read and write each other's memory (own), or NCCL does it. Else each copies its part to host
// memory, and the base endpoint does the call there. Only in that last method may a rank's thread
// wait for a GPU.
//
// Locks: this file takes none. A rank's endpoint belongs to its thread; only device_fail is called
// from other threads, and device_nccl.c protects what it uses. Arrays of struct device are sized
// for the largest group and rewritten in each call.
#include "transport/gpu/device.h"

#include <stdio.h>

enum { STEP_CARDS = 1, STEP_HOST = 2 };

static const char *const method_names[METHOD_COUNT] = {"auto", "own", "nccl", "host"};

const char *tsr__gpu_method_name(enum gpu_method method)
{
    return method_names[method];
}

// ---- cards --------------------------------------------------------------------------------------

// Returns the announced group of a call. NULL: it was not announced, so it has no communicator.
static const struct device_group *group_of(const struct device *device,
                                           const struct comm_call *call)
{
    for (size_t i = 0; i < device->groups.n; i++) {
        const struct device_group *group = &device->groups.at[i];
        if (group->n == call->n_group &&
            memcmp(group->group, call->group, (size_t)group->n * sizeof *group->group) == 0)
            return group;
    }
    return NULL;
}

// Makes a handle of memory for a member in another process. Returns false if the driver cannot make
// it.
static bool export_to(struct device *device, const void *p, struct gpu_block *block,
                      uint64_t *offset)
{
    size_t at = 0;
    if (!p)
        return true;
    if (tsr__seat_export(device->seat, p, block, &at) != 0)
        return false;
    *offset = at;
    return true;
}

// Writes the `call_card` for member i. Returns false if the member cannot open this rank's memory.
// Handles are made only for other processes, because they cost a driver call.
static bool fill_card(const struct device_call *call, int i, const struct comm_buffer *send,
                      const void *out)
{
    struct device *device = call->device;
    struct call_card *card = &device->cards_out[i];
    int64_t rank = call->call->group[i];
    card->in = (uint64_t)(uintptr_t)send->p;
    card->out = (uint64_t)(uintptr_t)out;
    card->bytes = send->bytes;
    if (!on_device(call) || same_process(device, rank))
        return true;
    if (device->ranks[rank].host != device->mine.host)
        return false;
    return export_to(device, send->bytes ? send->p : NULL, &card->in_block, &card->in_offset) &&
           export_to(device, out, &card->out_block, &card->out_offset);
}

// Writes a `call_card` for each member. All cards of this rank have the same properties (place,
// reaches, has_nccl); addresses and sizes differ.
static void fill_cards(const struct device_call *call, const struct comm_buffer *send,
                       const void *out)
{
    struct device *device = call->device;
    const struct device_group *group = group_of(device, call->call);
    bool reaches = on_device(call);
    uint64_t most = 0;
    for (int i = 0; i < call->call->n_group; i++) {
        reaches =
            fill_card(call, i, &send[i], out) && reaches && device->reached[call->call->group[i]];
        most = send[i].bytes > most ? send[i].bytes : most;
    }
    for (int i = 0; i < call->call->n_group; i++) {
        struct call_card *card = &device->cards_out[i];
        card->place = (int32_t)call->call->place;
        card->reaches = reaches;
        card->has_nccl = group && group->comm;
        card->most_bytes = most;
        card->turn = device->turn;
    }
}

// Exchanges the cards (`call_card`) of a call, with notes and `arrived` of an exchange.
static tsr_status exchange_cards(const struct device_call *call)
{
    struct device *device = call->device;
    const struct comm_exchange *exchange = call->exchange;
    struct comm_call comm_call = tsr__device_step(call->call, STEP_CARDS);
    struct comm_buffer *send = device->buffers, *recv = device->buffers + device->endpoint.size;
    for (int i = 0; i < comm_call.n_group; i++) {
        send[i] = (struct comm_buffer){&device->cards_out[i], sizeof *device->cards_out};
        recv[i] = (struct comm_buffer){&device->cards[i], sizeof *device->cards};
    }
    struct comm_exchange cards = {.send = send, .recv = recv};
    if (exchange) {
        memcpy(cards.notes, exchange->notes, sizeof exchange->notes);
        cards.arrived = exchange->arrived;
        cards.data = exchange->data;
    }
    return device->base->transport->exchange(device->base, &comm_call, &cards, call->why);
}

// ---- choosing -----------------------------------------------------------------------------------

// Chooses the method for this call. All members see the same cards, so all choose the same method.
// METHOD_AUTO: all buffers are in host memory.
static enum gpu_method choose(const struct device_call *call)
{
    const struct device *device = call->device;
    int devices = 0, n = call->call->n_group;
    bool own = n <= GPU_MAX_MEMBERS, nccl = true;
    enum gpu_method asked = (enum gpu_method)device->ranks[call->call->group[0]].method;
    for (int i = 0; i < n; i++) {
        const struct call_card *card = &device->cards[i];
        devices += card->place == COMM_DEVICE;
        own = own && card->reaches;
        nccl = nccl && card->has_nccl;
    }
    if (devices == 0)
        return METHOD_AUTO;
    if (devices < n || asked == METHOD_HOST)
        return METHOD_HOST;
    // Ranks on one GPU are faster without NCCL, whose kernels would wait for each other on that
    // GPU.
    bool first_nccl =
        asked == METHOD_NCCL || !own || !tsr__device_shared(device, call->call->group, n);
    if (nccl && asked != METHOD_OWN && first_nccl)
        return METHOD_NCCL;
    return own ? METHOD_OWN : METHOD_HOST;
}

// Computes what decides about the algorithm and is known before the cards are exchanged.
static struct comm_shape shape_of(const struct device_call *call)
{
    const struct comm_call *comm_call = call->call;
    const struct rank_card *ranks = call->device->ranks;
    const int64_t *group = comm_call->group;
    struct comm_shape shape = {
        .path = PATH_NCCL,
        .members = comm_call->n_group,
        .bytes = (size_t)comm_call->count * tsr__elem_bytes(comm_call->type),
        .one_gpu = true,
        .ordered = ranks[group[0]].deterministic || !tsr__nccl_has(comm_call->type),
        .folds = comm_call->n_group <= GPU_MAX_MEMBERS && tsr__fold_has(comm_call->type),
        .equal = true,
        .pinned = true};
    for (int i = 0; i < shape.members; i++) {
        shape.one_gpu &= memcmp(ranks[group[i]].gpu, ranks[group[0]].gpu, GPU_ID_BYTES) == 0;
        shape.all_reduces_only |= !ranks[group[i]].nccl_collectives;
        if (call->exchange)
            shape.equal &= call->exchange->send[i].bytes == call->exchange->send[0].bytes;
    }
    return shape;
}

// Adds what follows from the cards and the method.
static void complete_shape(struct device_call *call, enum gpu_method method)
{
    static const enum comm_path paths[METHOD_COUNT] = {
        [METHOD_OWN] = PATH_OWN, [METHOD_NCCL] = PATH_NCCL, [METHOD_HOST] = PATH_COPIES};
    const struct call_card *cards = call->device->cards;
    call->shape.path = paths[method];
    for (int i = 0; i < call->call->n_group; i++) {
        call->shape.equal &= cards[i].bytes == cards[0].bytes;
        call->shape.pinned &= cards[i].place == COMM_DEVICE &&
                              device_here(call->device, call->call->group[i]) != NULL;
    }
}

// Fails the job if the call failed. Other members may be waiting in the base endpoint or in an NCCL
// kernel: device_fail ends both kinds of waiting.
static tsr_status ended(const struct device_call *call, tsr_status st)
{
    if (st != TSR_OK) {
        call->device->endpoint.transport->fail(&call->device->endpoint, call->why->status,
                                               call->why->rank, call->why->text);
    }
    return st;
}

// Starts a call: records an event after the work that produces this rank's data, and exchanges
// cards (`call_card`).
static tsr_status begin(struct device_call *call, const struct comm_buffer *send)
{
    struct device *device = call->device;
    call->self = tsr__member_of(call->call->group, call->call->n_group, device->endpoint.rank);
    if (device->watched)
        tsr__watch_waits(device, NULL);
    tsr_status st = TSR_OK;
    if (on_device(call)) {
        st = tsr__device_code(call, tsr__seat_enter(device->seat), "creating a context");
        if (st == TSR_OK)
            st = tsr__device_code(call,
                                  tsr__seat_record(device->seat, EVENT_READY, call->call->stream),
                                  "creating an event");
    }
    const struct device_group *group = group_of(device, call->call);
    call->comm = group ? group->comm : NULL;
    call->shape = shape_of(call);
    // Must come before the exchange of cards: afterwards other ranks may already have a kernel on
    // this GPU that waits for this rank.
    if (st == TSR_OK && on_device(call) && call->comm)
        st = tsr__nccl_reserve(call);
    if (st != TSR_OK)
        return st;
    fill_cards(call, send, call->out);
    return exchange_cards(call);
}

// Runs a call whose cards were exchanged. METHOD_AUTO: all buffers are in host memory, and the base
// endpoint does the call. Another step in `detail` distinguishes it from the exchange of cards.
static tsr_status run_method(struct device_call *call)
{
    struct endpoint *base = call->device->base;
    enum gpu_method method = choose(call);
    complete_shape(call, method);
    if (method == METHOD_OWN)
        return ended(call, tsr__own_run(call));
    if (method == METHOD_NCCL)
        return ended(call, tsr__nccl_run(call));
    if (method == METHOD_HOST)
        return ended(call, tsr__host_run(call));
    struct comm_call below = tsr__device_step(call->call, STEP_HOST);
    if (call->exchange)
        return base->transport->exchange(base, &below, call->exchange, call->why);
    tsr_status st = base->transport->all_reduce(base, &below, call->in, call->out, call->why);
    call->device->endpoint.algorithm = base->algorithm;
    return st;
}

// Reduces tensors of all members, by the method that all support. After begin() all members know
// the cards and choose the same method.
static tsr_status device_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                    const void *in, void *out, struct comm_trouble *why)
{
    struct device *device = device_of(endpoint);
    if (call->place == COMM_PLAIN)
        return device->base->transport->all_reduce(device->base, call, in, out, why);
    struct device_call k = {.device = device, .call = call, .why = why, .in = in, .out = out};
    struct comm_buffer *send = device->buffers + 2 * endpoint->size;
    size_t bytes = (size_t)call->count * tsr__elem_bytes(call->type);
    for (int i = 0; i < call->n_group; i++)
        send[i] = (struct comm_buffer){(void *)in, bytes};
    tsr_status st = begin(&k, send);
    return st == TSR_OK ? run_method(&k) : ended(&k, st);
}

static tsr_status device_exchange(struct endpoint *endpoint, const struct comm_call *call,
                                  struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct device *device = device_of(endpoint);
    if (call->place == COMM_PLAIN)
        return device->base->transport->exchange(device->base, call, exchange, why);
    struct device_call k = {.device = device, .call = call, .why = why, .exchange = exchange};
    tsr_status st = begin(&k, exchange->send);
    exchange->arrived = NULL; // it has been called
    return st == TSR_OK ? run_method(&k) : ended(&k, st);
}

// ---- the endpoint -------------------------------------------------------------------------------

static void device_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct device *device = device_of(endpoint);
    device->base->transport->fail(device->base, status, rank, text);
    tsr__nccl_abort(device);
}

static void device_leave(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct comm_trouble why;
    tsr__trouble(&why, status, rank, "%s", text);
    why.left = true;
    tsr__comm_give_up(device_of(endpoint)->base, &why);
}

static bool device_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    return tsr__comm_failure(device_of(endpoint)->base, why);
}

// Closes the base endpoint. The rank leaves the job; tsr__device_close frees the struct later,
// after the engine's session of the rank.
static void device_close(struct endpoint *endpoint)
{
    struct device *device = device_of(endpoint);
    device->base->transport->close(device->base);
}

// Returns the method of a group. Example: with ranks 0 and 1 on GPU 0 and rank 2 on a CPU, {0, 1}
// use "own", or "ipc" between processes; {0, 2} use "host".
static const char *device_method(const struct endpoint *endpoint, const int64_t *group, int n)
{
    const struct device *device = (const struct device *)endpoint;
    struct comm_call call = {.group = group, .n_group = n};
    const struct device_group *known = group_of(device, &call);
    bool here = true, any_gpu = false;
    for (int i = 0; device->ranks && i < n; i++) {
        here = here && same_process(device, group[i]);
        any_gpu = any_gpu || device->ranks[group[i]].on_gpu;
    }
    if (!any_gpu || !known)
        return tsr__comm_method(device->base, group, n);
    if (known->method == METHOD_OWN && !here)
        return "ipc";
    return tsr__gpu_method_name(known->method);
}

static const struct transport device_transport = {
    .name = "gpu",
    .all_reduce = device_all_reduce,
    .exchange = device_exchange,
    .fail = device_fail,
    .leave = device_leave,
    .failure = device_failure,
    .close = device_close,
    .method = device_method,
};
bool tsr__device_is(const struct endpoint *endpoint)
{
    return endpoint && endpoint->transport == &device_transport;
}

struct gpu_seat *tsr__device_seat(struct endpoint *endpoint)
{
    if (tsr__device_is(endpoint))
        return device_of(endpoint)->seat;
    return NULL;
}

void *tsr__device_stand_in(struct endpoint *endpoint)
{
    struct gpu_seat *seat = tsr__device_seat(endpoint);
    if (seat && tsr__gpu_stands_in(device_of(endpoint)->gpu))
        return tsr__seat_stream(seat);
    return NULL;
}

static bool make_lists(struct device *device)
{
    size_t n = (size_t)device->endpoint.size;
    device->cards_out = ARENA_ARRAY(&device->arena, struct call_card, n);
    device->cards = ARENA_ARRAY(&device->arena, struct call_card, n);
    device->buffers = ARENA_ARRAY(&device->arena, struct comm_buffer, 3 * n);
    device->from = ARENA_ARRAY(&device->arena, const void *, n);
    device->to = ARENA_ARRAY(&device->arena, void *, n);
    device->words = ARENA_ARRAY(&device->arena, uint64_t, n);
    device->parts = ARENA_ARRAY(&device->arena, struct nccl_part, n);
    device->reached = ARENA_ARRAY(&device->arena, bool, n);
    device->events = (void *(*)[GPU_EVENTS])ARENA_ARRAY(&device->arena, void *, n *GPU_EVENTS);
    return !device->arena.failed;
}

static tsr_status open_gpu(struct device *device, tsr_session *session, bool has_processes,
                           struct comm_trouble *why)
{
    char words[160];
    int card = device->options.card, rank = device->endpoint.rank;
    int code = tsr__seat_open(session, device->gpu, card, has_processes, &device->seat);
    if (code == 0)
        return TSR_OK;
    tsr__gpu_words(device->gpu, code, words, sizeof words);
    return tsr__trouble(why, TSR_PEER, rank, "GPU %d of rank %d cannot be opened: %s", card, rank,
                        words);
}

// Opens the endpoint of a rank that may be on a GPU. The endpoint forwards calls to `base`, except
// those in which a GPU takes part.
tsr_status tsr__device_open(tsr_session *session, struct endpoint *base,
                            const struct device_options *options, struct endpoint **out,
                            struct comm_trouble *why)
{
    struct arena arena = {.session = session};
    struct device *device = ARENA_NEW(&arena, struct device);
    if (!device)
        return tsr__trouble(why, TSR_NOMEM, base->rank, "rank %d is out of memory", base->rank);
    device->arena = arena;
    device->endpoint = *base;
    device->endpoint.transport = &device_transport;
    device->base = base;
    device->options = *options;
    device->gpu = options->gpu;
    tsr__nccl_init(device);
    bool has_processes = strcmp(base->transport->name, "threads") != 0;
    tsr_status st = TSR_OK;
    if (!make_lists(device))
        st = tsr__trouble(why, TSR_NOMEM, base->rank, "rank %d is out of memory", base->rank);
    else if (options->gpu)
        st = open_gpu(device, session, has_processes, why);
    if (st == TSR_OK)
        *out = &device->endpoint;
    else
        tsr__device_close(&device->endpoint);
    return st;
}

void tsr__device_expect(struct endpoint *endpoint, const int64_t *group, int n)
{
    if (!tsr__device_is(endpoint))
        return;
    struct device *device = device_of(endpoint);
    struct comm_call call = {.group = group, .n_group = n};
    if (n < 2 || group_of(device, &call))
        return;
    int64_t *kept = ARENA_ARRAY(&device->arena, int64_t, (size_t)n);
    struct device_group *device_group = kept ? vec_push(&device->arena, &device->groups) : NULL;
    if (!device_group)
        return; // that group has no NCCL communicator
    memcpy(kept, group, (size_t)n * sizeof *kept);
    *device_group = (struct device_group){.group = kept, .n = n};
}

bool tsr__device_group_at(const struct endpoint *endpoint, size_t i, struct device_group_info *out)
{
    if (!tsr__device_is(endpoint))
        return false;
    const struct device *device = (const struct device *)endpoint;
    if (i >= device->groups.n)
        return false;
    const struct device_group *group = &device->groups.at[i];
    *out = (struct device_group_info){group->group, group->n, group->method};
    return true;
}

// Closes the endpoint. Stops the watchdog first: its thread would abort what is closed next.
void tsr__device_close(struct endpoint *endpoint)
{
    if (!endpoint)
        return;
    struct device *device = device_of(endpoint);
    tsr__watch_end(device);
    tsr__nccl_close(device);
    if (device->seat) {
        tsr__seat_enter(device->seat);
        tsr__seat_free(device->seat, device->probe);
    }
    tsr__seat_close(device->seat);
    struct arena arena = device->arena; // the device itself is in it
    tsr__arena_free(&arena);
}

tsr_status tsr__device_rest(struct endpoint *endpoint, struct comm_trouble *why)
{
    char text[GIVEN_UP_BYTES];
    if (!tsr__device_is(endpoint) || !device_of(endpoint)->watched)
        return TSR_OK;
    struct device *device = device_of(endpoint);
    tsr__watch_waits(device, NULL);
    pthread_mutex_lock(&device->nccl_lock);
    memcpy(text, device->given_up, sizeof text);
    pthread_mutex_unlock(&device->nccl_lock);
    if (!text[0])
        return TSR_OK;
    return tsr__trouble(why, TSR_PEER, endpoint->rank, "%s", text);
}
