// SPDX-License-Identifier: Apache-2.0
// reshard_kernel.c - Reshard, from any layout to any other, and HaloExchange.
//
// Every rank owns at most one shard of the source and one of the target. A rank that needs part of
// a source shard gets it from one of the shard's owners. The layouts alone determine which owner
// sends, so both sides know it without communication. Messages are packed in row-major order of the
// intersection. The transfers (struct moves) depend on the shape and are kept until it changes.
// HaloExchange has no target layout: each member gets its shard of the source, but along some axes
// its windows instead (attributes `axes` and `windows`). Windows of different members may overlap,
// and windows may be empty.
//
// Example: [8, 6] from {2, 1} to {1, 2} on ranks 0 and 1. Rank 0 has rows 0..3 and needs columns
// 0..2. It keeps [4, 3] of its shard; rank 1 sends it [4, 3] of rows 4..7 and gets columns 3..5 of
// rows 0..3.
#include "ops/internal.h"

// The transfers for one shape. Sizes of `out` and `in` are set once, addresses in each call
// (place_messages).
struct moves {
    int64_t shape[OPS_MAX_RANK];
    // this rank's piece of the source and of the target, or NULL
    const struct tile_piece *have, *want;
    // By member: the target piece to which this rank sends, the source piece from which it
    // receives; NULL: no transfer.
    const struct tile_piece **send, **recv;
    struct comm_buffer *out, *in;
    size_t out_bytes, in_bytes;
};
// The window of one member along one axis: the intervals that it needs.
struct asked {
    struct tile_interval *at; // ascending, not empty
    int64_t n, size;
};
// State of a Reshard or HaloExchange kernel. asked[member * n_axes + i] has the windows of a member
// along axes[i]. The moves are in `arena`, which is reset for each new shape.
struct reshard {
    struct tile_layout *source, *target; // target NULL: windows
    int64_t *axes;
    size_t n_axes;
    struct asked *asked;
    struct arena arena;  // for the moves
    struct moves *moves; // NULL: not computed yet
};

// Returns the bytes per element in a message. Strings send their lengths first, 8 bytes each.
static size_t unit_of(const struct kernel *kernel)
{
    if (kernel->call.type == TSR_STRING)
        return sizeof(int64_t);
    return tsr__elem_bytes(kernel->call.type);
}

// ---- creation ----------------------------------------------------------------------------------

static bool in_group(const struct kernel *kernel, int64_t rank)
{
    for (int i = 0; i < kernel->call.n_group; i++)
        if (kernel->call.group[i] == rank)
            return true;
    return false;
}

// Checks that all owners are in the group and that each has one shard. A source shard must have an
// owner. Returns NULL, or the error.
static OrtStatus *check_layout(struct kernel *kernel, const char *name,
                               const struct tile_layout *layout, bool source)
{
    for (int64_t s = 0; s < layout->n_shards; s++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, s, &owners);
        if (n == 0 && source)
            return tsr__kernel_error(kernel, "'%s': shard %lld has no owner", name, (long long)s);
        for (size_t i = 0; i < n; i++) {
            if (!in_group(kernel, owners[i]))
                return tsr__kernel_error(kernel, "'%s': owner %lld is not in the group", name,
                                         (long long)owners[i]);
            if (tsr__layout_shard_of(layout, owners[i], 0) != s ||
                tsr__layout_shard_of(layout, owners[i], s + 1) >= 0)
                return tsr__kernel_error(kernel, "'%s': rank %lld owns several shards", name,
                                         (long long)owners[i]);
        }
    }
    return NULL;
}

// Reads a layout. Its numbers are added to the fingerprint of the call (call.detail), because all
// members must have the same layout.
static OrtStatus *read_layout(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                              struct tile_layout **out)
{
    int64_t *v;
    size_t n;
    TRY(tsr__kernel_ints(kernel, info, name, &v, &n));
    *out = tsr__layout_decode(&kernel->arena, v, n);
    if (kernel->arena.failed)
        return tsr__kernel_error(kernel, "out of memory");
    if (!*out)
        return tsr__kernel_error(kernel, "attribute '%s' is not a valid layout", name);
    kernel->call.detail = tsr__hash64(v, n * sizeof *v, kernel->call.detail);
    return check_layout(kernel, name, *out, out == &kernel->reshard->source);
}

OrtStatus *tsr__reshard_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    kernel->reshard = ARENA_NEW(&kernel->arena, struct reshard);
    if (!kernel->reshard)
        return tsr__kernel_error(kernel, "out of memory");
    tsr__arena_init(&kernel->reshard->arena, kernel->ops->session);
    TRY(read_layout(kernel, info, tsr__attribute_name(ATTRIBUTE_SOURCE), &kernel->reshard->source));
    TRY(read_layout(kernel, info, tsr__attribute_name(ATTRIBUTE_TARGET), &kernel->reshard->target));
    if (kernel->reshard->source->rank != kernel->reshard->target->rank)
        return tsr__kernel_error(kernel, "source and target layouts differ in rank");
    return NULL;
}

// Reads an interval; empty ones are dropped. before: end of the previous interval. Returns false if
// the bounds do not ascend.
static bool read_interval(const int64_t *v, int64_t before, struct asked *asked)
{
    if (v[0] < before || v[1] < v[0])
        return false;
    if (v[1] > v[0]) {
        asked->at[asked->n++] = (struct tile_interval){v[0], v[1]};
        asked->size += v[1] - v[0];
    }
    return true;
}

// Reads the intervals that members need: for each member and axis, the number of intervals and
// their bounds.
static OrtStatus *read_windows(struct kernel *kernel, const int64_t *v, size_t n)
{
    struct reshard *reshard = kernel->reshard;
    size_t at = 0, count = (size_t)kernel->call.n_group * reshard->n_axes;
    reshard->asked = ARENA_ARRAY(&kernel->arena, struct asked, count + 1);
    if (!reshard->asked)
        return tsr__kernel_error(kernel, "out of memory");
    for (size_t i = 0; i < count; i++) {
        int64_t many = at < n ? v[at++] : -1, before = 0;
        if (many < 0 || (uint64_t)many > (n - at) / 2)
            return tsr__kernel_error(kernel, "attribute 'windows' is not a list of intervals");
        reshard->asked[i].at = ARENA_ARRAY(&kernel->arena, struct tile_interval, (size_t)many + 1);
        if (!reshard->asked[i].at)
            return tsr__kernel_error(kernel, "out of memory");
        for (int64_t j = 0; j < many; j++, at += 2) {
            if (!read_interval(v + at, before, &reshard->asked[i]))
                return tsr__kernel_error(kernel,
                                         "attribute 'windows' has intervals that do not ascend");
            before = v[at + 1];
        }
    }
    if (at == n)
        return NULL;
    return tsr__kernel_error(kernel, "attribute 'windows' is too long");
}

// Creates a HaloExchange kernel. Axes and windows of all members go into `detail`, which the
// members of a call compare. So ranks with different files fail instead of waiting for data.
OrtStatus *tsr__halo_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    int64_t *windows;
    size_t n;
    kernel->reshard = ARENA_NEW(&kernel->arena, struct reshard);
    if (!kernel->reshard)
        return tsr__kernel_error(kernel, "out of memory");
    struct reshard *reshard = kernel->reshard;
    tsr__arena_init(&reshard->arena, kernel->ops->session);
    TRY(read_layout(kernel, info, tsr__attribute_name(ATTRIBUTE_SOURCE), &reshard->source));
    TRY(tsr__kernel_ints(kernel, info, tsr__attribute_name(ATTRIBUTE_AXES), &reshard->axes,
                         &reshard->n_axes));
    for (size_t i = 0; i < reshard->n_axes; i++)
        if (reshard->axes[i] < 0 || reshard->axes[i] >= reshard->source->rank ||
            (i && reshard->axes[i] <= reshard->axes[i - 1]))
            return tsr__kernel_error(kernel, "attribute 'axes' is not an ascending list of axes");
    for (int i = 0; i < kernel->call.n_group; i++)
        if (!tsr__layout_has_device(reshard->source, kernel->call.group[i]))
            return tsr__kernel_error(kernel, "rank %lld has no shard of the source",
                                     (long long)kernel->call.group[i]);
    TRY(tsr__kernel_ints(kernel, info, tsr__attribute_name(ATTRIBUTE_WINDOWS), &windows, &n));
    kernel->call.detail =
        tsr__hash64(reshard->axes, reshard->n_axes * sizeof *reshard->axes, kernel->call.detail);
    kernel->call.detail = tsr__hash64(windows, n * sizeof *windows, kernel->call.detail);
    return read_windows(kernel, windows, n);
}

// Frees the moves. Everything else is in the kernel's arena.
void tsr__reshard_free(struct kernel *kernel)
{
    if (kernel->reshard)
        tsr__arena_free(&kernel->reshard->arena);
}

// ---- moves -------------------------------------------------------------------------------------

// Returns the number of elements that two ascending lists of intervals have in common. Example:
// [0,4) and [6,8) share 3 elements with [2,7): two of the first interval, one of the second.
static int64_t overlap_dim(const struct tile_piece *a, const struct tile_piece *b, int axis)
{
    int64_t sum = 0, i = 0, j = 0;
    while (i < a->dims[axis].n && j < b->dims[axis].n) {
        const struct tile_interval *x = &a->dims[axis].at[i], *y = &b->dims[axis].at[j];
        int64_t start = x->start > y->start ? x->start : y->start;
        int64_t stop = x->stop < y->stop ? x->stop : y->stop;
        if (stop > start)
            sum += stop - start;
        if (x->stop <= y->stop)
            i++;
        else
            j++;
    }
    return sum;
}

// Returns the number of elements that two pieces have in common.
static int64_t overlap(const struct tile_piece *a, const struct tile_piece *b)
{
    int64_t n = 1;
    for (int axis = 0; axis < a->rank; axis++)
        n *= overlap_dim(a, b, axis);
    return n;
}

// Returns the owner of a source shard that sends to the rank; the rank itself if it is an owner.
static int64_t sender_of(const struct tile_layout *source, int64_t shard, int64_t rank)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(source, shard, &owners);
    for (size_t i = 0; i < n; i++)
        if (owners[i] == rank)
            return rank;
    // Different ranks ask different owners, so that no owner sends everything.
    return owners[(size_t)rank % n];
}

// Returns the piece of a rank. NULL with *shard < 0: the rank has none. NULL with *shard >= 0: the
// layout does not fit the shape, or out of memory.
static const struct tile_piece *piece_of(struct reshard *reshard, const struct tile_layout *layout,
                                         const int64_t *shape, int64_t rank, int64_t *shard)
{
    *shard = tsr__layout_shard_of(layout, rank, 0);
    return *shard < 0 ? NULL : tsr__layout_piece(&reshard->arena, layout, shape, *shard);
}

static const struct tile_piece *wanted_by(struct kernel *kernel, const int64_t *shape, int i,
                                          int64_t *shard)
{
    struct reshard *reshard = kernel->reshard;
    int64_t rank = kernel->call.group[i];
    if (reshard->target)
        return piece_of(reshard, reshard->target, shape, rank, shard);
    *shard = tsr__layout_shard_of(reshard->source, rank, 0);
    struct tile_piece *piece =
        *shard < 0 ? NULL : tsr__layout_piece(&reshard->arena, reshard->source, shape, *shard);
    if (!piece)
        return NULL;
    for (size_t a = 0; a < reshard->n_axes; a++) {
        const struct asked *asked = &reshard->asked[(size_t)i * reshard->n_axes + a];
        // The windows are for another size: make_moves refuses the shape.
        if (asked->n && asked->at[asked->n - 1].stop > shape[reshard->axes[a]])
            return NULL;
        piece->dims[reshard->axes[a]].at = asked->at;
        piece->dims[reshard->axes[a]].n = asked->n;
        piece->dims[reshard->axes[a]].size = asked->size;
    }
    return piece;
}

static void plan_member(struct kernel *kernel, struct moves *moves, int i, int64_t my_shard)
{
    struct reshard *reshard = kernel->reshard;
    int64_t me = kernel->ops->endpoint->rank, them = kernel->call.group[i], shard;
    size_t bytes = unit_of(kernel);
    const struct tile_piece *theirs = wanted_by(kernel, moves->shape, i, &shard);
    // A member receives a source shard from one of the shard's owners. Sender and receiver compute
    // the same owner.
    if (theirs && moves->have && them != me && sender_of(reshard->source, my_shard, them) == me) {
        moves->out[i].bytes = (size_t)overlap(moves->have, theirs) * bytes;
        moves->send[i] = theirs;
        moves->out_bytes += moves->out[i].bytes;
    }
    const struct tile_piece *from = piece_of(reshard, reshard->source, moves->shape, them, &shard);
    if (from && moves->want && them != me && sender_of(reshard->source, shard, me) == them) {
        moves->in[i].bytes = (size_t)overlap(moves->want, from) * bytes;
        moves->recv[i] = from;
        moves->in_bytes += moves->in[i].bytes;
    }
}

// Computes what this rank sends to and receives from each member, and frees the old moves. Returns
// NULL if out of memory (reshard->arena has failed) or if the layouts do not fit the shape.
static struct moves *make_moves(struct kernel *kernel, const int64_t *shape)
{
    struct reshard *reshard = kernel->reshard;
    reshard->moves = NULL;
    tsr__arena_free(&reshard->arena);
    size_t n = (size_t)kernel->call.n_group;
    struct moves *moves = ARENA_NEW(&reshard->arena, struct moves);
    if (!moves)
        return NULL;
    if (reshard->source->rank) // a scalar has no sizes
        memcpy(moves->shape, shape, (size_t)reshard->source->rank * sizeof *shape);
    moves->send = ARENA_ARRAY(&reshard->arena, const struct tile_piece *, n);
    moves->recv = ARENA_ARRAY(&reshard->arena, const struct tile_piece *, n);
    moves->out = ARENA_ARRAY(&reshard->arena, struct comm_buffer, n);
    moves->in = ARENA_ARRAY(&reshard->arena, struct comm_buffer, n);
    if (reshard->arena.failed)
        return NULL;
    int64_t have, want, me = kernel->ops->endpoint->rank;
    moves->have = piece_of(reshard, reshard->source, shape, me, &have);
    moves->want = wanted_by(kernel, shape, kernel->self, &want);
    if ((have >= 0 && !moves->have) || (want >= 0 && !moves->want))
        return NULL;
    for (int i = 0; i < kernel->call.n_group; i++)
        plan_member(kernel, moves, i, have);
    return reshard->arena.failed ? NULL : (reshard->moves = moves);
}

// ---- compute -----------------------------------------------------------------------------------

// Returns the moves for a shape. They are kept while the shape is the same, as in a decoder.
static OrtStatus *moves_for(struct kernel *kernel, const struct tensor_view *shape,
                            struct moves **out)
{
    struct reshard *reshard = kernel->reshard;
    const int64_t *v = shape->data;
    int64_t n = 1;
    if (shape->rank != 1 || shape->dims[0] != reshard->source->rank)
        return tsr__kernel_error(kernel,
                                 "input 'shape' has %lld entries, but the layouts have rank %d",
                                 (long long)shape->elements, reshard->source->rank);
    for (int axis = 0; axis < reshard->source->rank; axis++)
        if (v[axis] < 0 || !mul_ok(n, v[axis], &n))
            return tsr__kernel_error(kernel, "a tensor has an invalid shape");
    if (!mul_ok(n, (int64_t)unit_of(kernel), &n))
        return tsr__kernel_error(kernel, "a tensor is too large");
    // Scalars (bytes 0) have only one shape.
    *out = reshard->moves;
    size_t bytes = (size_t)reshard->source->rank * sizeof *v;
    if (*out && (bytes == 0 || memcmp((*out)->shape, v, bytes) == 0))
        return NULL;
    *out = make_moves(kernel, v);
    if (*out)
        return NULL;
    if (reshard->arena.failed)
        return tsr__kernel_error(kernel, "out of memory");
    return tsr__kernel_error(kernel, "the layouts do not fit the shape: a dimension is smaller "
                                     "than its number of shards or its windows");
}

// True if the tensor has the shape of the piece.
static bool is_piece(const struct tensor_view *view, const struct tile_piece *piece)
{
    if (view->rank != piece->rank)
        return false;
    for (int axis = 0; axis < view->rank; axis++)
        if (view->dims[axis] != piece->dims[axis].size)
            return false;
    return true;
}

static OrtStatus *check_input(struct kernel *kernel, const struct moves *moves,
                              const struct tensor_view *view)
{
    if (!moves->have && view->elements == 0)
        return NULL;
    if (!moves->have)
        return tsr__kernel_error(
            kernel, "rank %d has no shard of the source, but its input has %lld elements",
            kernel->ops->endpoint->rank, (long long)view->elements);
    if (is_piece(view, moves->have))
        return NULL;
    return tsr__kernel_error(kernel, "the input is not this rank's piece of the source");
}

static OrtStatus *make_output(struct kernel *kernel, OrtKernelContext *context,
                              const struct moves *moves, void **out)
{
    int64_t dims[OPS_MAX_RANK] = {0};
    int rank = 1; // no shard: an empty tensor
    if (moves->want) {
        rank = moves->want->rank;
        for (int axis = 0; axis < rank; axis++)
            dims[axis] = moves->want->dims[axis].size;
    }
    return tsr__kernel_output(kernel, context, 0, dims, rank, out);
}

// Reserves scratch memory for outgoing messages, then for incoming ones. This is done in each call,
// because other kernels use the same memory.
static OrtStatus *place_messages(struct kernel *kernel, struct moves *moves)
{
    char *at;
    TRY(tsr__kernel_scratch(kernel, 0, moves->out_bytes + moves->in_bytes, &at));
    for (int i = 0; i < kernel->call.n_group; i++) {
        moves->out[i].p = at;
        at += moves->out[i].bytes;
    }
    for (int i = 0; i < kernel->call.n_group; i++) {
        moves->in[i].p = at;
        at += moves->in[i].bytes;
    }
    return NULL;
}

static OrtStatus *pack(struct kernel *kernel, struct moves *moves, const void *data)
{
    TRY(place_messages(kernel, moves));
    for (int i = 0; i < kernel->call.n_group; i++)
        if (moves->out[i].bytes)
            TRY(tsr__kernel_pieces(kernel, moves->have, data, moves->send[i], moves->out[i].p,
                                   TILE_PACKED_TO));
    return NULL;
}

// Packs the lengths of strings, in host memory.
static OrtStatus *pack_lengths(struct kernel *kernel, struct moves *moves, const int64_t *lengths)
{
    TRY(place_messages(kernel, moves));
    for (int i = 0; i < kernel->call.n_group; i++)
        if (moves->out[i].bytes)
            tsr__piece_pack(moves->have, lengths, moves->send[i], moves->out[i].p, sizeof *lengths);
    return NULL;
}

// Exchanges the messages. The members also compare the shape. `round` distinguishes two exchanges
// of one communication.
static tsr_status exchange(struct kernel *kernel, const struct moves *moves,
                           struct comm_exchange *comm_exchange, uint64_t round,
                           struct comm_trouble *why)
{
    uint64_t detail = kernel->call.detail;
    // Restored below: the kernel needs the detail of the node again.
    kernel->call.detail = tsr__hash64(
        moves->shape, (size_t)kernel->reshard->source->rank * sizeof *moves->shape, detail + round);
    tsr_status st = tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, comm_exchange, why);
    kernel->call.detail = detail;
    return st;
}

// Packs the characters for member i, and reserves memory for the characters that member i sends.
// The lengths were exchanged before.
static OrtStatus *texts_of_member(struct kernel *kernel, const struct moves *moves, int i,
                                  struct arena *arena, const struct texts *texts,
                                  struct comm_buffer *send, struct comm_buffer *recv)
{
    const int64_t *lengths = moves->out[i].p;
    int64_t n = (int64_t)(moves->out[i].bytes / sizeof *lengths);
    char **at = ARENA_ARRAY(arena, char *, (size_t)n + 1);
    if (!at || !tsr__texts_total(lengths, n, &send->bytes))
        return tsr__kernel_error(kernel, "out of memory");
    // Pointers are packed like numbers, in the order of the lengths.
    if (n)
        tsr__piece_pack(moves->have, texts->at, moves->send[i], at, sizeof *at);
    char *to = send->p = arena_get(arena, send->bytes + 1, 1);
    if (!to)
        return tsr__kernel_error(kernel, "out of memory");
    for (int64_t j = 0; j < n; j++) {
        memcpy(to, at[j], (size_t)lengths[j]);
        to += lengths[j];
    }
    n = (int64_t)(moves->in[i].bytes / sizeof *lengths);
    if (!tsr__texts_total(moves->in[i].p, n, &recv->bytes))
        return tsr__kernel_error(kernel, "rank %lld sent invalid string lengths",
                                 (long long)kernel->call.group[i]);
    recv->p = arena_get(arena, recv->bytes + 1, 1);
    if (arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    return NULL;
}

// Sets the strings received from member i in the output. `out` points into recv.
static OrtStatus *place_texts(struct kernel *kernel, const struct moves *moves, int i,
                              struct arena *arena, const struct comm_buffer *recv,
                              struct texts *out)
{
    int64_t n = (int64_t)(moves->in[i].bytes / sizeof(int64_t));
    char **at = ARENA_ARRAY(arena, char *, (size_t)n + 1);
    if (!at)
        return tsr__kernel_error(kernel, "out of memory");
    if (n == 0)
        return NULL;
    tsr__texts_place(moves->in[i].p, n, recv->p, at);
    tsr__piece_unpack(moves->want, out->lengths, moves->recv[i], moves->in[i].p, sizeof(int64_t));
    tsr__piece_unpack(moves->want, out->at, moves->recv[i], at, sizeof *at);
    return NULL;
}

static OrtStatus *write_texts(struct kernel *kernel, OrtKernelContext *context,
                              const struct moves *moves, const struct texts *out)
{
    int64_t dims[OPS_MAX_RANK] = {0};
    if (!moves->want) // an empty tensor
        return tsr__texts_write(kernel, context, dims, 1, out);
    for (int axis = 0; axis < moves->want->rank; axis++)
        dims[axis] = moves->want->dims[axis].size;
    return tsr__texts_write(kernel, context, dims, moves->want->rank, out);
}

// Reshards strings, in two exchanges: the lengths, then all characters. The lengths tell receivers
// the number of bytes.
static OrtStatus *reshard_texts(struct kernel *kernel, OrtKernelContext *context,
                                struct arena *arena)
{
    struct tensor_view x, shape;
    struct moves *moves;
    struct texts texts, out;
    TRY(tsr__texts_read(kernel, context, arena, &x, &texts));
    TRY(tsr__kernel_input(kernel, context, 1, TSR_INT64, &shape));
    TRY(moves_for(kernel, &shape, &moves));
    TRY(check_input(kernel, moves, &x));
    size_t n = moves->want ? (size_t)tsr__piece_elements(moves->want) : 0,
           members = (size_t)kernel->call.n_group;
    out.lengths = ARENA_ARRAY(arena, int64_t, n + 1);
    out.at = ARENA_ARRAY(arena, char *, n + 1);
    struct comm_buffer *send = ARENA_ARRAY(arena, struct comm_buffer, members);
    struct comm_buffer *recv = ARENA_ARRAY(arena, struct comm_buffer, members);
    if (arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    TRY(pack_lengths(kernel, moves, texts.lengths));
    struct comm_exchange lengths = {.send = moves->out, .recv = moves->in},
                         chars = {.send = send, .recv = recv};
    struct comm_trouble why;
    if (exchange(kernel, moves, &lengths, 0, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    for (size_t i = 0; i < members; i++)
        TRY(texts_of_member(kernel, moves, (int)i, arena, &texts, &send[i], &recv[i]));
    if (exchange(kernel, moves, &chars, 1, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    if (moves->have && moves->want) {
        tsr__piece_copy(moves->have, texts.lengths, moves->want, out.lengths, sizeof *out.lengths);
        tsr__piece_copy(moves->have, texts.at, moves->want, out.at, sizeof *out.at);
    }
    for (size_t i = 0; i < members; i++)
        TRY(place_texts(kernel, moves, (int)i, arena, &recv[i], &out));
    TRY(write_texts(kernel, context, moves, &out));
    return tsr__pass_token(kernel, context);
}

// Runs Reshard or HaloExchange: copies local elements; packs, exchanges and unpacks the others.
OrtStatus *tsr__reshard_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x, shape;
    struct moves *moves;
    void *out;
    if (kernel->call.type == TSR_STRING) {
        struct arena arena = {.session = kernel->ops->session};
        OrtStatus *done = reshard_texts(kernel, context, &arena);
        tsr__arena_free(&arena);
        return done;
    }
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    TRY(tsr__kernel_input(kernel, context, 1, TSR_INT64, &shape));
    TRY(moves_for(kernel, &shape, &moves));
    TRY(check_input(kernel, moves, &x));
    TRY(make_output(kernel, context, moves, &out));
    TRY(pack(kernel, moves, x.data));
    struct comm_exchange comm_exchange = {.send = moves->out, .recv = moves->in};
    struct comm_trouble why;
    if (exchange(kernel, moves, &comm_exchange, 0, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    if (moves->have && moves->want)
        TRY(tsr__kernel_pieces(kernel, moves->have, x.data, moves->want, out, TILE_NOT_PACKED));
    for (int i = 0; i < kernel->call.n_group; i++)
        if (moves->in[i].bytes)
            TRY(tsr__kernel_pieces(kernel, moves->recv[i], moves->in[i].p, moves->want, out,
                                   TILE_PACKED_FROM));
    return tsr__pass_token(kernel, context);
}
