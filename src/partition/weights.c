// SPDX-License-Identifier: Apache-2.0
// weights.c - where constants lie, and writing them. A small constant stays in the rank file; a
// whole one that several ranks use is stored once in the common file; any other piece lies in its
// rank's file. The source is read once per batch of ranks in bounded blocks, and every rank takes
// its runs out of each block, so memory does not grow with the weights. The layout of the files is
// fixed before anything is written.
#include "internal.h"

#include <errno.h>
#include <unistd.h>

#define BLOCK_BYTES ((int64_t)4 << 20)
#define BATCH_RANKS 16 // data files open at a time: each has a buffer
#define LARGE_BYTES (64u << 10)
#define LARGE_ALIGN 4096
#define SMALL_ALIGN 64
#define INLINE_VECTOR                                                                              \
    (64 << 10) // integer vectors up to this size may be shapes: engines want those inside

// ---- runs: a piece of a tensor as stretches of its bytes ---------------------------------------

struct runs {
    const struct tile_piece *piece;
    int last;                      // dimension whose intervals are the runs; -1: one run
    int64_t inner;                 // elements below it
    int64_t stride[TILE_MAX_RANK]; // elements per step of each dimension
    int64_t at[TILE_MAX_RANK],
        in[TILE_MAX_RANK]; // index, and the interval it is in, of outer dimensions
    int64_t start, stop;   // the current run, in elements
    bool done;
};

static void runs_here(struct runs *r)
{
    int64_t base = 0;
    for (int d = 0; d < r->last; d++)
        base += r->at[d] * r->stride[d];
    if (r->last < 0) {
        r->start = 0;
        r->stop = r->inner;
        return;
    }
    const struct tile_interval *i = &r->piece->dims[r->last].at[r->in[r->last]];
    r->start = base + i->start * r->inner;
    r->stop = base + i->stop * r->inner;
}

static void runs_begin(struct runs *r, const struct tile_piece *piece, const int64_t *shape)
{
    *r = (struct runs){.piece = piece, .last = -1, .inner = 1};
    int64_t stride = 1;
    for (int d = piece->rank - 1; d >= 0; d--) {
        r->stride[d] = stride;
        if (r->last < 0 && piece->dims[d].size != shape[d])
            r->last = d;
        if (r->last < 0)
            r->inner *= shape[d];
        stride *= shape[d];
        r->done |= piece->dims[d].size == 0;
    }
    if (r->done)
        return;
    for (int d = 0; d < r->last; d++)
        r->at[d] = piece->dims[d].at[0].start;
    runs_here(r);
}

static void runs_next(struct runs *r)
{
    int d = r->last;
    if (d >= 0 && ++r->in[d] < r->piece->dims[d].n) {
        runs_here(r);
        return;
    }
    if (d >= 0)
        r->in[d] = 0;
    for (d--; d >= 0; d--) {
        if (++r->at[d] < r->piece->dims[d].at[r->in[d]].stop)
            break;
        if (++r->in[d] < r->piece->dims[d].n) {
            r->at[d] = r->piece->dims[d].at[r->in[d]].start;
            break;
        }
        r->in[d] = 0;
        r->at[d] = r->piece->dims[d].at[0].start;
    }
    r->done = d < 0;
    if (!r->done)
        runs_here(r);
}

// ---- placing -----------------------------------------------------------------------------------

static struct tile_piece *piece_of(struct plan *p, const struct form *f, int64_t rank)
{
    return tsr__layout_piece(p->arena, f->layout, f->item->shape,
                             tsr__layout_shard_of(f->layout, rank, 0));
}

static bool stays_inside(const struct item *it, int64_t bytes)
{
    bool integers = it->dtype == TSR_INT64 || it->dtype == TSR_INT32;
    return bytes <= INLINE_BYTES || (integers && it->rank <= 1 && bytes <= INLINE_VECTOR);
}

static uint64_t align_of(uint64_t bytes)
{
    return bytes >= LARGE_BYTES ? LARGE_ALIGN : SMALL_ALIGN;
}

static uint64_t reserve(uint64_t *end, uint64_t bytes)
{
    uint64_t align = align_of(bytes), at = (*end + align - 1) / align * align;
    *end = at + bytes;
    return at;
}

// Copies the elements of a piece out of the whole, for types of any number of bits (packed, lowest
// bits first).
static void copy_bits(struct runs *r, const unsigned char *whole, int bits, unsigned char *out)
{
    uint64_t to = 0;
    for (; !r->done; runs_next(r))
        for (uint64_t e = (uint64_t)r->start * (uint64_t)bits;
             e < (uint64_t)r->stop * (uint64_t)bits; e++, to++)
            if (whole[e / 8] >> (e % 8) & 1)
                out[to / 8] |= (unsigned char)(1u << (to % 8));
}

static void copy_piece(struct runs *r, const unsigned char *whole, int bits, unsigned char *out)
{
    if (bits % 8) {
        copy_bits(r, whole, bits, out);
        return;
    }
    size_t bytes = (size_t)bits / 8;
    for (; !r->done; runs_next(r)) {
        size_t n = (size_t)(r->stop - r->start) * bytes;
        memcpy(out, whole + (size_t)r->start * bytes, n);
        out += n;
    }
}

static tsr_value *add_inside(struct part *t, struct form *f, const struct tile_piece *piece,
                             const int64_t *dims, int64_t bytes, struct str name)
{
    struct item *it = f->item;
    if (tsr__layout_is_whole(f->layout))
        return tsr__graph_copy_initializer(t->graph, it->value, name.p);
    const void *whole;
    size_t n;
    unsigned char *local = ARENA_ARRAY(t->plan->arena, unsigned char, (size_t)bytes + 1);
    t->plan->status = tsr_tensor_data(tsr_value_initializer(it->value), &whole, &n);
    if (!local || t->plan->status != TSR_OK)
        return NULL;
    struct runs r;
    runs_begin(&r, piece, it->shape);
    copy_piece(&r, whole, tsr_dtype_bits(it->dtype), local);
    return tsr_graph_add_initializer(t->graph, name.p, it->dtype, it->rank, dims, local,
                                     (size_t)bytes);
}

static tsr_value *add_outside(struct part *t, struct form *f, const int64_t *dims, int64_t bytes,
                              struct str name)
{
    struct item *it = f->item;
    struct str own = tsr__arena_printf(t->plan->arena, "rank%lld.data", (long long)t->rank);
    uint64_t at =
        f->common ? f->offset[0] : (f->offset[t->rank] = reserve(&t->data_bytes, (uint64_t)bytes));
    f->stored[t->rank] = 1;
    t->uses_common |= f->common;
    if (!own.p)
        return NULL;
    return tsr__graph_add_external(t->graph, name.p, it->dtype, it->rank, dims,
                                   f->common ? MANIFEST_COMMON : own.p, at, (uint64_t)bytes);
}

// Strings and other constants without a fixed size per element: as they stand.
static tsr_status place_odd(struct part *t, struct form *f)
{
    struct str name = tsr__form_name(t, f);
    int64_t n = tsr_tensor_elements(tsr_value_initializer(f->item->value));
    t->weights += n > 0 ? n : 0;
    f->local[t->rank] =
        name.p ? tsr__graph_copy_initializer(t->graph, f->item->value, name.p) : NULL;
    return f->local[t->rank] ? TSR_OK : TSR_NOMEM;
}

static tsr_status place_on(struct part *t, struct form *f)
{
    struct item *it = f->item;
    if (!it->fixed || tsr_dtype_bits(it->dtype) == 0)
        return place_odd(t, f);
    struct tile_piece *piece = piece_of(t->plan, f, t->rank);
    int64_t elements = piece ? tsr__piece_elements(piece) : -1, bytes = -1, dims[TILE_MAX_RANK];
    if (elements >= 0)
        bytes = tsr_dtype_bytes(it->dtype, elements);
    if (bytes < 0)
        return TSR_INVALID;
    for (int d = 0; d < it->rank; d++)
        dims[d] = piece->dims[d].size;
    struct str name = tsr__form_name(t, f);
    if (!name.p)
        return TSR_NOMEM;
    tsr_value *v = stays_inside(it, bytes) ? add_inside(t, f, piece, dims, bytes, name)
                                           : add_outside(t, f, dims, bytes, name);
    f->local[t->rank] = v;
    t->weights += elements;
    t->weight_bytes += bytes;
    return v ? TSR_OK : plan_status(t->plan) == TSR_OK ? TSR_NOMEM : plan_status(t->plan);
}

tsr_status tsr__weights_place(struct plan *p, struct part *parts, uint64_t *common_bytes)
{
    *common_bytes = 0;
    for (struct form *f = p->consts; f; f = f->next_const) {
        int64_t users = 0;
        for (int64_t r = 0; r < p->n_ranks; r++)
            users += f->live[r];
        int64_t bytes = tsr_tensor_bytes(tsr_value_initializer(f->item->value));
        f->common = users > 1 && tsr__layout_is_whole(f->layout);
        if (f->common && f->item->fixed && bytes > 0 && !stays_inside(f->item, bytes))
            f->offset[0] = reserve(common_bytes, (uint64_t)bytes);
        for (int64_t r = 0; r < p->n_ranks; r++) {
            tsr_status st = f->live[r] ? place_on(&parts[r], f) : TSR_OK;
            if (st != TSR_OK)
                return st;
        }
    }
    return TSR_OK;
}

// ---- writing -----------------------------------------------------------------------------------

// The bytes of a constant: a window of a file, or memory.
struct source {
    tsr_session *session;
    struct str name;
    int fd;
    uint64_t offset;
    const unsigned char *memory; // not NULL: here
    int64_t bytes;
};

static tsr_status source_open(struct plan *p, const struct item *it, struct source *out)
{
    const tsr_tensor *t = tsr_value_initializer(it->value);
    *out = (struct source){.session = p->session, .name = it->name, .bytes = tsr_tensor_bytes(t)};
    uint64_t length;
    bool packed =
        tsr_dtype_bits(it->dtype) % 8 != 0; // such pieces are taken bit by bit from memory
    if (!packed && tsr__tensor_window(t, &out->fd, &out->offset, &length) &&
        length == (uint64_t)out->bytes)
        return TSR_OK;
    size_t n;
    return tsr_tensor_data(t, (const void **)&out->memory, &n);
}

static tsr_status source_read(const struct source *s, int64_t at, int64_t n, unsigned char *out)
{
    struct place place = PLACE_NONE;
    place.value = s->name;
    for (int64_t done = 0; done < n;) {
        off_t from = (off_t)(s->offset + (uint64_t)(at + done));
        ssize_t got = tsr__fault(s->session, FAULT_READ)
                          ? (errno = EIO, -1)
                          : pread(s->fd, out + done, (size_t)(n - done), from);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            tsr__diag(s->session, DIAG_io_read, &place, NULL, "cannot read the weight: %s",
                      got < 0 ? strerror(errno) : "its file became shorter");
            return TSR_IO;
        }
        done += got;
    }
    return TSR_OK;
}

// One rank's share of the form that is being written.
struct taker {
    struct outfile *file;
    struct runs runs;
};

// Gives the taker what it wants of the block [at, at + n); elements of `bytes` bytes.
static void take_block(struct taker *t, const unsigned char *block, int64_t at, int64_t n,
                       int64_t bytes)
{
    struct runs *r = &t->runs;
    while (!r->done && r->start * bytes < at + n) {
        int64_t from = r->start * bytes, to = r->stop * bytes;
        int64_t stop = to < at + n ? to : at + n;
        tsr__out_write(t->file, block + (from - at), (size_t)(stop - from));
        if (to > at + n) {
            r->start = (at + n) / bytes; // blocks are whole elements
            return;
        }
        runs_next(r);
    }
}

static int64_t next_wanted(const struct taker *takers, size_t n, int64_t bytes)
{
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < n; i++)
        if (!takers[i].runs.done && takers[i].runs.start * bytes < first)
            first = takers[i].runs.start * bytes;
    return first;
}

static tsr_status write_blocks(const struct source *s, struct taker *takers, size_t n,
                               int64_t bytes, unsigned char *buffer)
{
    int64_t block = BLOCK_BYTES / bytes * bytes;
    for (int64_t at; (at = next_wanted(takers, n, bytes)) != INT64_MAX;) {
        int64_t length = s->bytes - at < block ? s->bytes - at : block;
        const unsigned char *data = s->memory ? s->memory + at : buffer;
        tsr_status st = s->memory ? TSR_OK : source_read(s, at, length, buffer);
        if (st != TSR_OK)
            return st;
        for (size_t i = 0; i < n; i++)
            take_block(&takers[i], data, at, length, bytes);
        if (length <= 0)
            return TSR_BUG;
    }
    return TSR_OK;
}

// Elements smaller than a byte: put together in a bounded buffer.
static void write_bits(const struct source *s, struct taker *t, int bits, unsigned char *buffer)
{
    uint64_t n = 0;
    struct runs *r = &t->runs;
    memset(buffer, 0, (size_t)BLOCK_BYTES);
    for (; !r->done; runs_next(r))
        for (uint64_t e = (uint64_t)r->start * (uint64_t)bits;
             e < (uint64_t)r->stop * (uint64_t)bits; e++) {
            if (s->memory[e / 8] >> (e % 8) & 1)
                buffer[n / 8] |= (unsigned char)(1u << (n % 8));
            if (++n == (uint64_t)BLOCK_BYTES * 8) {
                tsr__out_write(t->file, buffer, (size_t)BLOCK_BYTES);
                memset(buffer, 0, (size_t)BLOCK_BYTES);
                n = 0;
            }
        }
    tsr__out_write(t->file, buffer, (size_t)((n + 7) / 8));
}

static tsr_status write_form(struct plan *p, struct form *f, struct taker *takers, size_t n,
                             unsigned char *buffer)
{
    struct source source;
    tsr_status st = source_open(p, f->item, &source);
    int bits = tsr_dtype_bits(f->item->dtype);
    if (st != TSR_OK)
        return st;
    if (bits % 8 == 0)
        return write_blocks(&source, takers, n, bits / 8, buffer);
    for (size_t i = 0; i < n; i++)
        write_bits(&source, &takers[i], bits, buffer);
    return TSR_OK;
}

static void pad_to(struct outfile *o, uint64_t offset)
{
    static const char zeros[LARGE_ALIGN];
    if (o->offset < offset && offset - o->offset < sizeof(zeros))
        tsr__out_write(o, zeros, (size_t)(offset - o->offset));
}

// One or more data files, open at the same time, ranks [first, first + n); the common file is n 0.
struct batch {
    struct plan *plan;
    struct part *parts;
    int64_t first, n;
    struct outfile files[BATCH_RANKS];
    struct sha256 digests[BATCH_RANKS];
    bool open[BATCH_RANKS];
    unsigned char *buffer;
};

static tsr_status batch_form(struct batch *b, struct form *f)
{
    struct taker takers[BATCH_RANKS];
    size_t n = 0;
    bool common = b->n == 0;
    for (int64_t i = 0; i < (common ? b->plan->n_ranks : b->n); i++) {
        int64_t rank = b->first + i;
        if (!f->stored[rank] || f->common != common)
            continue;
        struct tile_piece *piece = piece_of(b->plan, f, rank);
        if (!piece)
            return TSR_NOMEM;
        struct taker *t = &takers[n++];
        t->file = &b->files[common ? 0 : i];
        runs_begin(&t->runs, piece, f->item->shape);
        pad_to(t->file, f->offset[common ? 0 : rank]);
        if (common)
            break; // once for all
    }
    return n ? write_form(b->plan, f, takers, n, b->buffer) : TSR_OK;
}

static tsr_status batch_open(struct batch *b, int64_t i, struct outfolder *o, const char *name)
{
    struct str path = tsr__outfolder_path(o, b->plan->arena, name);
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = tsr__out_open(b->plan->session, path.p, &b->files[i]);
    b->open[i] = st == TSR_OK;
    if (b->open[i]) {
        tsr__sha256_init(&b->digests[i]);
        b->files[i].digest = &b->digests[i];
    }
    return st;
}

static tsr_status batch_close(struct batch *b, int64_t i, struct data_file *out)
{
    if (!b->open[i])
        return TSR_OK;
    out->bytes = b->files[i].offset;
    tsr_status st = tsr__out_commit(&b->files[i]);
    tsr__out_abort(&b->files[i]);
    tsr__sha256_hex(&b->digests[i], out->sha256);
    b->open[i] = false;
    return st;
}

static tsr_status batch_run(struct batch *b, struct outfolder *o, struct data_file *files,
                            bool any_common)
{
    tsr_status st = TSR_OK;
    if (b->n == 0 && any_common)
        st = batch_open(b, 0, o, MANIFEST_COMMON);
    for (int64_t i = 0; i < b->n && st == TSR_OK; i++) {
        struct str name =
            tsr__arena_printf(b->plan->arena, "rank%lld.data", (long long)(b->first + i));
        if (b->parts[b->first + i].data_bytes)
            st = name.p ? batch_open(b, i, o, name.p) : TSR_NOMEM;
    }
    for (struct form *f = b->plan->consts; f && st == TSR_OK; f = f->next_const)
        st = batch_form(b, f);
    for (int64_t i = 0; i < (b->n ? b->n : 1); i++) {
        if (st == TSR_OK)
            st = batch_close(b, i, &files[b->n ? b->first + i : b->plan->n_ranks]);
        else if (b->open[i])
            tsr__out_abort(&b->files[i]);
    }
    return st;
}

tsr_status tsr__weights_write(struct plan *p, struct part *parts, struct outfolder *o,
                              struct data_file *files)
{
    struct batch *b = ARENA_NEW(p->arena, struct batch);
    unsigned char *buffer = tsr__alloc(p->session, (size_t)BLOCK_BYTES);
    bool any_common = false;
    for (int64_t r = 0; r < p->n_ranks; r++)
        any_common |= parts[r].uses_common;
    tsr_status st = b && buffer ? TSR_OK : TSR_NOMEM;
    for (int64_t first = -1;
         first < p->n_ranks && st == TSR_OK;) { // the common file, then the ranks
        int64_t left = p->n_ranks - first, n = first < 0            ? 0
                                               : left < BATCH_RANKS ? left
                                                                    : BATCH_RANKS;
        *b = (struct batch){
            .plan = p, .parts = parts, .first = first < 0 ? 0 : first, .n = n, .buffer = buffer};
        st = batch_run(b, o, files, any_common);
        first = first < 0 ? 0 : first + n;
        tsr__progress(p->session, "weights", (uint64_t)first, (uint64_t)p->n_ranks);
    }
    if (buffer)
        tsr__free(p->session, buffer, (size_t)BLOCK_BYTES);
    return st;
}
