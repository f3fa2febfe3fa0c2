// SPDX-License-Identifier: Apache-2.0
// reshard.c - from any layout to any other, by intersection of pieces: the complete fallback.
//
// Every rank owns at most one shard of the source and one of the target. Whoever wants part of a
// source shard that it does not have gets it from one of the shard's owners; which one follows from
// the layouts alone, so both sides know without a word. What moves between two ranks is packed in
// row-major order of the intersection. The moves depend on the shape and are kept until it changes.
// HaloExchange is the same with another target: each member's piece of the source, but of some
// axes the intervals that it asks for, which may overlap, or be none.
#include "ops/internal.h"

#include <stdio.h>

struct moves {
    int64_t shape[OPS_MAX_RANK];
    const struct tile_piece *have, *want; // of this rank, or NULL
    const struct tile_piece **send,
        **recv; // per member: its target piece, its source piece; NULL: nothing
    struct comm_buffer *out, *in;
    size_t out_bytes, in_bytes;
};
// What one member asks for along one axis.
struct asked {
    struct tile_interval *at; // ascending, none of them empty
    int64_t n, size;
};
struct reshard {
    struct tile_layout *source, *target; // target NULL: windows
    int64_t *axes;
    size_t n_axes;
    struct asked *asked; // by member and axis
    struct arena arena;  // of the moves
    struct moves *moves; // NULL: none made yet
};

// Bytes that an element takes in a message; of a text, its length goes first.
static size_t unit_of(const struct kernel *k)
{
    return k->call.type == TSR_STRING ? sizeof(int64_t) : tsr__elem_bytes(k->call.type);
}

// ---- creation ----------------------------------------------------------------------------------

static bool in_group(const struct kernel *k, int64_t rank)
{
    for (int i = 0; i < k->call.n_group; i++)
        if (k->call.group[i] == rank)
            return true;
    return false;
}

// Owners are in the group, and each has one shard.
static OrtStatus *check_layout(struct kernel *k, const char *name, const struct tile_layout *l,
                               bool source)
{
    for (int64_t s = 0; s < l->n_shards; s++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, s, &owners);
        if (n == 0 && source)
            return tsr__kernel_error(k, "'%s': nobody owns shard %lld", name, (long long)s);
        for (size_t i = 0; i < n; i++) {
            if (!in_group(k, owners[i]))
                return tsr__kernel_error(k, "'%s': owner %lld is not in the group", name,
                                         (long long)owners[i]);
            if (tsr__layout_shard_of(l, owners[i], 0) != s ||
                tsr__layout_shard_of(l, owners[i], s + 1) >= 0)
                return tsr__kernel_error(k, "'%s': rank %lld owns several shards", name,
                                         (long long)owners[i]);
        }
    }
    return NULL;
}

static OrtStatus *read_layout(struct kernel *k, const OrtKernelInfo *info, const char *name,
                              struct tile_layout **out)
{
    int64_t *v;
    size_t n;
    TRY(tsr__kernel_ints(k, info, name, &v, &n));
    *out = tsr__layout_decode(&k->arena, v, n);
    if (!*out)
        return tsr__kernel_error(k, "attribute '%s' is not a layout", name);
    k->call.detail = tsr__hash64(v, n * sizeof *v, k->call.detail);
    return check_layout(k, name, *out, out == &k->reshard->source);
}

OrtStatus *tsr__reshard_create(struct kernel *k, const OrtKernelInfo *info)
{
    k->reshard = ARENA_NEW(&k->arena, struct reshard);
    if (!k->reshard)
        return tsr__kernel_error(k, "out of memory");
    tsr__arena_init(&k->reshard->arena, k->ops->session);
    TRY(read_layout(k, info, "source", &k->reshard->source));
    TRY(read_layout(k, info, "target", &k->reshard->target));
    if (k->reshard->source->rank != k->reshard->target->rank)
        return tsr__kernel_error(k, "source and target differ in rank");
    return NULL;
}

static bool read_interval(const int64_t *v, int64_t before, struct asked *a)
{
    if (v[0] < before || v[1] < v[0])
        return false;
    if (v[1] > v[0]) {
        a->at[a->n++] = (struct tile_interval){v[0], v[1]};
        a->size += v[1] - v[0];
    }
    return true;
}

// For each member, for each axis: a number of intervals, and their bounds.
static OrtStatus *read_windows(struct kernel *k, const int64_t *v, size_t n)
{
    struct reshard *r = k->reshard;
    size_t at = 0, count = (size_t)k->call.n_group * r->n_axes;
    r->asked = ARENA_ARRAY(&k->arena, struct asked, count);
    for (size_t i = 0; r->asked && i < count; i++) {
        int64_t many = at < n ? v[at++] : -1, before = 0;
        if (many < 0 || (uint64_t)many > (n - at) / 2)
            return tsr__kernel_error(k, "attribute 'windows' is not a list of intervals");
        r->asked[i].at = ARENA_ARRAY(&k->arena, struct tile_interval, (size_t)many + 1);
        for (int64_t j = 0; r->asked[i].at && j < many; j++, at += 2) {
            if (!read_interval(v + at, before, &r->asked[i]))
                return tsr__kernel_error(k, "attribute 'windows' has intervals that do not ascend");
            before = v[at + 1];
        }
    }
    if (k->arena.failed)
        return tsr__kernel_error(k, "out of memory");
    return at == n ? NULL : tsr__kernel_error(k, "attribute 'windows' is too long");
}

OrtStatus *tsr__halo_create(struct kernel *k, const OrtKernelInfo *info)
{
    int64_t *windows;
    size_t n;
    k->reshard = ARENA_NEW(&k->arena, struct reshard);
    if (!k->reshard)
        return tsr__kernel_error(k, "out of memory");
    struct reshard *r = k->reshard;
    tsr__arena_init(&r->arena, k->ops->session);
    TRY(read_layout(k, info, "source", &r->source));
    TRY(tsr__kernel_ints(k, info, "axes", &r->axes, &r->n_axes));
    for (size_t i = 0; i < r->n_axes; i++)
        if (r->axes[i] < 0 || r->axes[i] >= r->source->rank || (i && r->axes[i] <= r->axes[i - 1]))
            return tsr__kernel_error(k, "attribute 'axes' is no ascending list of axes");
    for (int i = 0; i < k->call.n_group; i++)
        if (!tsr__layout_has_device(r->source, k->call.group[i]))
            return tsr__kernel_error(k, "rank %lld owns nothing of the source",
                                     (long long)k->call.group[i]);
    TRY(tsr__kernel_ints(k, info, "windows", &windows, &n));
    k->call.detail = tsr__hash64(r->axes, r->n_axes * sizeof *r->axes, k->call.detail);
    k->call.detail = tsr__hash64(windows, n * sizeof *windows, k->call.detail);
    return read_windows(k, windows, n);
}

void tsr__reshard_free(struct kernel *k)
{
    if (k->reshard)
        tsr__arena_free(&k->reshard->arena);
}

// ---- moves -------------------------------------------------------------------------------------

static int64_t overlap_dim(const struct tile_interval *x, int64_t n, const struct tile_interval *y,
                           int64_t m)
{
    int64_t sum = 0;
    for (int64_t i = 0, j = 0; i < n && j < m;) {
        int64_t start = x[i].start > y[j].start ? x[i].start : y[j].start;
        int64_t stop = x[i].stop < y[j].stop ? x[i].stop : y[j].stop;
        sum += stop > start ? stop - start : 0;
        if (x[i].stop <= y[j].stop)
            i++;
        else
            j++;
    }
    return sum;
}

// Elements that two pieces have in common; never more than either has.
static int64_t overlap(const struct tile_piece *a, const struct tile_piece *b)
{
    int64_t n = 1;
    for (int d = 0; d < a->rank && n; d++)
        n *= overlap_dim(a->dims[d].at, a->dims[d].n, b->dims[d].at, b->dims[d].n);
    return n;
}

// Who of a source shard's owners sends to a rank that wants part of it; the rank itself if it is
// one.
static int64_t sender_of(const struct tile_layout *source, int64_t shard, int64_t rank)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(source, shard, &owners);
    for (size_t i = 0; i < n; i++)
        if (owners[i] == rank)
            return rank;
    return owners[(size_t)rank % n];
}

static const struct tile_piece *piece_of(struct reshard *r, const struct tile_layout *l,
                                         const int64_t *shape, int64_t rank, int64_t *shard)
{
    *shard = tsr__layout_shard_of(l, rank, 0);
    return *shard < 0 ? NULL : tsr__layout_piece(&r->arena, l, shape, *shard);
}

// What member i wants.
static const struct tile_piece *wanted_by(struct kernel *k, const int64_t *shape, int i,
                                          int64_t *shard)
{
    struct reshard *r = k->reshard;
    int64_t rank = k->call.group[i];
    if (r->target)
        return piece_of(r, r->target, shape, rank, shard);
    *shard = tsr__layout_shard_of(r->source, rank, 0);
    struct tile_piece *p =
        *shard < 0 ? NULL : tsr__layout_piece(&r->arena, r->source, shape, *shard);
    for (size_t a = 0; p && a < r->n_axes; a++) {
        const struct asked *q = &r->asked[(size_t)i * r->n_axes + a];
        if (q->n && q->at[q->n - 1].stop > shape[r->axes[a]])
            return NULL;
        p->dims[r->axes[a]].at = q->at;
        p->dims[r->axes[a]].n = q->n;
        p->dims[r->axes[a]].size = q->size;
    }
    return p;
}

// What this rank sends to member i and gets from it.
static void plan_member(struct kernel *k, struct moves *m, int i, int64_t my_shard)
{
    struct reshard *r = k->reshard;
    int64_t me = k->ops->endpoint->rank, them = k->call.group[i], shard;
    size_t bytes = unit_of(k);
    const struct tile_piece *theirs = wanted_by(k, m->shape, i, &shard);
    if (theirs && m->have && them != me && sender_of(r->source, my_shard, them) == me) {
        m->out[i].bytes = (size_t)overlap(m->have, theirs) * bytes;
        m->send[i] = theirs;
        m->out_bytes += m->out[i].bytes;
    }
    const struct tile_piece *from = piece_of(r, r->source, m->shape, them, &shard);
    if (from && m->want && them != me && sender_of(r->source, shard, me) == them) {
        m->in[i].bytes = (size_t)overlap(m->want, from) * bytes;
        m->recv[i] = from;
        m->in_bytes += m->in[i].bytes;
    }
}

static struct moves *make_moves(struct kernel *k, const int64_t *shape)
{
    struct reshard *r = k->reshard;
    r->moves = NULL;
    tsr__arena_free(&r->arena);
    size_t n = (size_t)k->call.n_group;
    struct moves *m = ARENA_NEW(&r->arena, struct moves);
    if (!m)
        return NULL;
    if (r->source->rank) // a scalar has no sizes, and NULL is no array
        memcpy(m->shape, shape, (size_t)r->source->rank * sizeof *shape);
    m->send = ARENA_ARRAY(&r->arena, const struct tile_piece *, n);
    m->recv = ARENA_ARRAY(&r->arena, const struct tile_piece *, n);
    m->out = ARENA_ARRAY(&r->arena, struct comm_buffer, n);
    m->in = ARENA_ARRAY(&r->arena, struct comm_buffer, n);
    if (r->arena.failed)
        return NULL;
    int64_t have, want, me = k->ops->endpoint->rank;
    m->have = piece_of(r, r->source, shape, me, &have);
    m->want = wanted_by(k, shape, k->self, &want);
    if ((have >= 0 && !m->have) || (want >= 0 && !m->want))
        return NULL;
    for (int i = 0; i < k->call.n_group; i++)
        plan_member(k, m, i, have);
    return r->arena.failed ? NULL : (r->moves = m);
}

// ---- compute -----------------------------------------------------------------------------------

static OrtStatus *moves_for(struct kernel *k, const struct tensor_view *shape, struct moves **out)
{
    struct reshard *r = k->reshard;
    const int64_t *v = shape->data;
    int64_t n = 1;
    if (shape->rank != 1 || shape->dims[0] != r->source->rank)
        return tsr__kernel_error(k, "shape has %lld entries, the layouts have rank %d",
                                 (long long)shape->elements, r->source->rank);
    for (int d = 0; d < r->source->rank; d++)
        if (v[d] < 0 || !mul_ok(n, v[d], &n))
            return tsr__kernel_error(k, "a shape that no tensor has");
    if (!mul_ok(n, (int64_t)unit_of(k), &n))
        return tsr__kernel_error(k, "a tensor that is too large");
    *out = r->moves;
    size_t bytes = (size_t)r->source->rank * sizeof *v;
    if (*out && (bytes == 0 || memcmp((*out)->shape, v, bytes) == 0))
        return NULL;
    *out = make_moves(k, v);
    return *out ? NULL
                : tsr__kernel_error(k,
                                    "the layouts do not fit the shape: a dimension is smaller than "
                                    "its number of shards, or than what is asked of it");
}

// The tensor must be this rank's piece of the source.
static OrtStatus *check_input(struct kernel *k, const struct moves *m, const struct tensor_view *x)
{
    if (!m->have)
        return x->elements == 0 ? NULL
                                : tsr__kernel_error(k,
                                                    "rank %d owns nothing of the source, but gives "
                                                    "%lld elements",
                                                    k->ops->endpoint->rank, (long long)x->elements);
    bool same = x->rank == m->have->rank;
    for (int d = 0; same && d < x->rank; d++)
        same = x->dims[d] == m->have->dims[d].size;
    return same ? NULL : tsr__kernel_error(k, "the input is not this rank's piece of the source");
}

static OrtStatus *make_output(struct kernel *k, OrtKernelContext *context, const struct moves *m,
                              void **out)
{
    int64_t dims[OPS_MAX_RANK] = {0};
    int rank = 1; // nothing owned: an empty tensor
    if (m->want) {
        rank = m->want->rank;
        for (int d = 0; d < rank; d++)
            dims[d] = m->want->dims[d].size;
    }
    return tsr__kernel_output(k, context, 0, dims, rank, out);
}

// Messages lie one after the other: what goes out, then room for what comes in.
static OrtStatus *place_messages(struct kernel *k, struct moves *m)
{
    char *at;
    TRY(tsr__kernel_scratch(k, 0, m->out_bytes + m->in_bytes, &at));
    for (int i = 0; i < k->call.n_group; i++) {
        m->out[i].p = at;
        at += m->out[i].bytes;
    }
    for (int i = 0; i < k->call.n_group; i++) {
        m->in[i].p = at;
        at += m->in[i].bytes;
    }
    return NULL;
}

static OrtStatus *pack(struct kernel *k, struct moves *m, const void *data)
{
    TRY(place_messages(k, m));
    for (int i = 0; i < k->call.n_group; i++)
        if (m->out[i].bytes)
            TRY(tsr__kernel_pieces(k, m->have, data, m->send[i], m->out[i].p, TILE_PACKED_TO));
    return NULL;
}

// The same for the lengths of texts, which are the host's.
static OrtStatus *pack_lengths(struct kernel *k, struct moves *m, const int64_t *lengths)
{
    TRY(place_messages(k, m));
    for (int i = 0; i < k->call.n_group; i++)
        if (m->out[i].bytes)
            tsr__piece_pack(m->have, lengths, m->send[i], m->out[i].p, sizeof *lengths);
    return NULL;
}

// All members agree on the shape too. round tells two exchanges of one communication apart.
static tsr_status exchange(struct kernel *k, const struct moves *m, struct comm_exchange *e,
                           uint64_t round, struct comm_trouble *why)
{
    uint64_t detail = k->call.detail;
    k->call.detail =
        tsr__hash64(m->shape, (size_t)k->reshard->source->rank * sizeof *m->shape, detail + round);
    tsr_status st = tsr__comm_exchange(k->ops->endpoint, &k->call, e, why);
    k->call.detail = detail;
    return st;
}

// The characters of what goes to and comes from member i, whose lengths are in the messages already.
static OrtStatus *texts_of_member(struct kernel *k, const struct moves *m, int i, struct arena *a,
                                  const struct texts *t, struct comm_buffer *send,
                                  struct comm_buffer *recv)
{
    const int64_t *lengths = m->out[i].p;
    int64_t n = (int64_t)(m->out[i].bytes / sizeof *lengths);
    char **at = ARENA_ARRAY(a, char *, (size_t)n + 1);
    if (!at || !tsr__texts_total(lengths, n, &send->bytes))
        return tsr__kernel_error(k, "out of memory");
    if (n)
        tsr__piece_pack(m->have, t->at, m->send[i], at, sizeof *at);
    char *to = send->p = arena_get(a, send->bytes + 1, 1);
    for (int64_t j = 0; to && j < n; j++) {
        memcpy(to, at[j], (size_t)lengths[j]);
        to += lengths[j];
    }
    n = (int64_t)(m->in[i].bytes / sizeof *lengths);
    if (!tsr__texts_total(m->in[i].p, n, &recv->bytes))
        return tsr__kernel_error(k, "rank %lld sent lengths of no texts",
                                 (long long)k->call.group[i]);
    recv->p = arena_get(a, recv->bytes + 1, 1);
    return a->failed ? tsr__kernel_error(k, "out of memory") : NULL;
}

// What came from member i goes to its places in out.
static OrtStatus *place_texts(struct kernel *k, const struct moves *m, int i, struct arena *a,
                              const struct comm_buffer *recv, struct texts *out)
{
    int64_t n = (int64_t)(m->in[i].bytes / sizeof(int64_t));
    char **at = ARENA_ARRAY(a, char *, (size_t)n + 1);
    if (!at)
        return tsr__kernel_error(k, "out of memory");
    if (n == 0)
        return NULL;
    tsr__texts_place(m->in[i].p, n, recv->p, at);
    tsr__piece_unpack(m->want, out->lengths, m->recv[i], m->in[i].p, sizeof(int64_t));
    tsr__piece_unpack(m->want, out->at, m->recv[i], at, sizeof *at);
    return NULL;
}

static OrtStatus *write_texts(struct kernel *k, OrtKernelContext *context, const struct moves *m,
                              const struct texts *out)
{
    int64_t dims[OPS_MAX_RANK] = {0};
    for (int d = 0; m->want && d < m->want->rank; d++)
        dims[d] = m->want->dims[d].size;
    return tsr__texts_write(k, context, dims, m->want ? m->want->rank : 1, out);
}

static OrtStatus *reshard_texts(struct kernel *k, OrtKernelContext *context, struct arena *a)
{
    struct tensor_view x, shape;
    struct moves *m;
    struct texts t, out;
    TRY(tsr__texts_read(k, context, a, &x, &t));
    TRY(tsr__kernel_input(k, context, 1, TSR_INT64, &shape));
    TRY(moves_for(k, &shape, &m));
    TRY(check_input(k, m, &x));
    size_t n = m->want ? (size_t)tsr__piece_elements(m->want) : 0,
           members = (size_t)k->call.n_group;
    out.lengths = ARENA_ARRAY(a, int64_t, n + 1);
    out.at = ARENA_ARRAY(a, char *, n + 1);
    struct comm_buffer *send = ARENA_ARRAY(a, struct comm_buffer, members);
    struct comm_buffer *recv = ARENA_ARRAY(a, struct comm_buffer, members);
    if (a->failed)
        return tsr__kernel_error(k, "out of memory");
    TRY(pack_lengths(k, m, t.lengths));
    struct comm_exchange lengths = {.send = m->out, .recv = m->in},
                         chars = {.send = send, .recv = recv};
    struct comm_trouble why;
    if (exchange(k, m, &lengths, 0, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    for (size_t i = 0; i < members; i++)
        TRY(texts_of_member(k, m, (int)i, a, &t, &send[i], &recv[i]));
    if (exchange(k, m, &chars, 1, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    if (m->have && m->want) {
        tsr__piece_copy(m->have, t.lengths, m->want, out.lengths, sizeof *out.lengths);
        tsr__piece_copy(m->have, t.at, m->want, out.at, sizeof *out.at);
    }
    for (size_t i = 0; i < members; i++)
        TRY(place_texts(k, m, (int)i, a, &recv[i], &out));
    TRY(write_texts(k, context, m, &out));
    return tsr__pass_token(k, context);
}

OrtStatus *tsr__reshard_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x, shape;
    struct moves *m;
    void *out;
    if (k->call.type == TSR_STRING) {
        struct arena a;
        tsr__arena_init(&a, k->ops->session);
        OrtStatus *done = reshard_texts(k, context, &a);
        tsr__arena_free(&a);
        return done;
    }
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    TRY(tsr__kernel_input(k, context, 1, TSR_INT64, &shape));
    TRY(moves_for(k, &shape, &m));
    TRY(check_input(k, m, &x));
    TRY(make_output(k, context, m, &out));
    TRY(pack(k, m, x.data));
    struct comm_exchange e = {.send = m->out, .recv = m->in};
    struct comm_trouble why;
    if (exchange(k, m, &e, 0, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    if (m->have && m->want)
        TRY(tsr__kernel_pieces(k, m->have, x.data, m->want, out, TILE_NOT_PACKED));
    for (int i = 0; i < k->call.n_group; i++)
        if (m->in[i].bytes)
            TRY(tsr__kernel_pieces(k, m->recv[i], m->in[i].p, m->want, out, TILE_PACKED_FROM));
    return tsr__pass_token(k, context);
}
