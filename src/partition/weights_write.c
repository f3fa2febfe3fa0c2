// SPDX-License-Identifier: Apache-2.0
// weights_write.c - constants from the source into the data files. Long stretches are copied inside the
// kernel; of short ones (columns) the source is read once per batch of ranks in bounded blocks, and
// every rank takes its pieces out of each block. So memory does not grow with the weights, and a source
// that is cut short meanwhile is an error. Digests are taken beside (base/follow.c).
#include "weights.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK_BYTES  ((int64_t)1 << 20)
#define BATCH_RANKS  16                  // data files open at a time: each has a buffer
#define COPY_LEAST   ((int64_t)16 << 10) // stretches from here on are copied inside the kernel
#define COPY_MOST    ((int64_t)64 << 20) // of one step, so that digests keep up
#define GATHER_LEAST 1024                // smaller pieces are put together here first
#define GATHER_MOST  256                 // pieces of one step

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

// ---- one constant ------------------------------------------------------------------------------

// One or more data files, open at the same time, ranks [first, first + n); the common file is n 0.
struct batch {
    struct plan *plan;
    struct part *parts;
    int64_t first, n;
    struct outfile files[BATCH_RANKS];
    bool open[BATCH_RANKS];
    size_t place[BATCH_RANKS]; // among those that are followed
    struct follow *follow;
    unsigned char *buffer;
};

// One rank's share of the form that is being written.
struct taker {
    struct batch *batch;
    int64_t file;
    struct runs runs;
};

static struct outfile *file_of(const struct taker *t)
{
    return &t->batch->files[t->file];
}

static void tell(const struct taker *t)
{
    struct batch *b = t->batch;
    if (b->follow)
        tsr__follow_ready(b->follow, b->place[t->file], tsr__out_reached(file_of(t)));
}

static void put(const struct taker *t, struct iovec *pieces, int *n)
{
    if (*n)
        tsr__out_gather(file_of(t), pieces, *n);
    *n = 0;
}

// Gives the taker what it wants of the block [at, at + n); elements of `bytes` bytes.
static void take_block(struct taker *t, const unsigned char *block, int64_t at, int64_t n,
                       int64_t bytes)
{
    struct runs *r = &t->runs;
    struct iovec pieces[GATHER_MOST];
    int n_pieces = 0;
    bool left = false;
    while (!left && !r->done && r->start * bytes < at + n) {
        int64_t from = r->start * bytes, to = r->stop * bytes;
        int64_t stop = to < at + n ? to : at + n;
        const unsigned char *start = block + (from - at);
        if (n_pieces == GATHER_MOST || stop - from < GATHER_LEAST)
            put(t, pieces, &n_pieces);
        if (stop - from < GATHER_LEAST)
            tsr__out_write(file_of(t), start, (size_t)(stop - from));
        else
            pieces[n_pieces++] = (struct iovec){(void *)start, (size_t)(stop - from)};
        left = to > at + n;
        if (left)
            r->start = (at + n) / bytes; // blocks are whole elements
        else
            tsr__runs_next(r);
    }
    put(t, pieces, &n_pieces);
    tell(t);
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
        for (size_t i = 0; i < n; i++) {
            take_block(&takers[i], data, at, length, bytes);
            if (file_of(&takers[i])->failed)
                return file_of(&takers[i])->status;
        }
        if (length <= 0)
            return TSR_BUG;
    }
    return TSR_OK;
}

// Long stretches, one taker after the other.
static tsr_status copy_runs(const struct source *s, struct taker *t, int64_t bytes)
{
    for (struct runs *r = &t->runs; !r->done; tsr__runs_next(r))
        for (int64_t at = r->start * bytes, end = r->stop * bytes; at < end; at += COPY_MOST) {
            int64_t n = end - at < COPY_MOST ? end - at : COPY_MOST;
            tsr__out_copy(file_of(t), s->fd, s->offset + (uint64_t)at, (uint64_t)n);
            tell(t);
            if (file_of(t)->failed)
                return file_of(t)->status;
        }
    return TSR_OK;
}

// Elements smaller than a byte: put together in a bounded buffer.
static void write_bits(const struct source *s, struct taker *t, int bits, unsigned char *buffer)
{
    uint64_t n = 0;
    struct runs *r = &t->runs;
    memset(buffer, 0, (size_t)BLOCK_BYTES);
    for (; !r->done; tsr__runs_next(r))
        for (uint64_t e = (uint64_t)r->start * (uint64_t)bits;
             e < (uint64_t)r->stop * (uint64_t)bits; e++) {
            if (s->memory[e / 8] >> (e % 8) & 1)
                buffer[n / 8] |= (unsigned char)(1u << (n % 8));
            if (++n == (uint64_t)BLOCK_BYTES * 8) {
                tsr__out_write(file_of(t), buffer, (size_t)BLOCK_BYTES);
                memset(buffer, 0, (size_t)BLOCK_BYTES);
                n = 0;
            }
        }
    tsr__out_write(file_of(t), buffer, (size_t)((n + 7) / 8));
    tell(t);
}

static bool long_runs(const struct taker *takers, size_t n, int64_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (!takers[i].runs.done &&
            (takers[i].runs.stop - takers[i].runs.start) * bytes < COPY_LEAST)
            return false;
    return true;
}

static tsr_status write_form(struct plan *p, struct form *f, struct taker *takers, size_t n,
                             unsigned char *buffer)
{
    struct source source;
    tsr_status st = source_open(p, f->item, &source);
    int bits = tsr_dtype_bits(f->item->dtype);
    if (st != TSR_OK)
        return st;
    if (bits % 8 == 0 && (source.memory || !long_runs(takers, n, bits / 8)))
        return write_blocks(&source, takers, n, bits / 8, buffer);
    for (size_t i = 0; i < n && st == TSR_OK; i++) {
        if (bits % 8)
            write_bits(&source, &takers[i], bits, buffer);
        else
            st = copy_runs(&source, &takers[i], bits / 8);
    }
    return st;
}

// ---- all of them -------------------------------------------------------------------------------

static void pad_to(struct outfile *o, uint64_t offset)
{
    static const char zeros[LARGE_ALIGN];
    if (o->offset < offset && offset - o->offset < sizeof(zeros))
        tsr__out_write(o, zeros, (size_t)(offset - o->offset));
}

static tsr_status batch_form(struct batch *b, struct form *f)
{
    struct taker takers[BATCH_RANKS];
    size_t n = 0;
    bool common = b->n == 0;
    for (int64_t i = 0; i < (common ? b->plan->n_ranks : b->n); i++) {
        int64_t rank = b->first + i;
        if (!f->stored[rank] || f->common != common)
            continue;
        struct tile_piece *piece = tsr__const_piece(b->plan, f, rank);
        if (!piece)
            return TSR_NOMEM;
        struct taker *t = &takers[n++];
        *t = (struct taker){.batch = b, .file = common ? 0 : i};
        tsr__runs_begin(&t->runs, piece, f->item->shape);
        pad_to(file_of(t), f->offset[common ? 0 : rank]);
        if (common)
            break; // once for all
    }
    return n ? write_form(b->plan, f, takers, n, b->buffer) : TSR_OK;
}

static tsr_status batch_open_file(struct batch *b, int64_t i, struct outfolder *o, const char *name)
{
    struct str path = tsr__outfolder_path(o, b->plan->arena, name);
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = tsr__out_open(b->plan->session, path.p, &b->files[i]);
    b->open[i] = st == TSR_OK;
    if (b->open[i])
        b->files[i].copy_least = COPY_LEAST;
    return st;
}

static tsr_status batch_open(struct batch *b, struct outfolder *o, bool any_common)
{
    tsr_status st = TSR_OK;
    int fds[BATCH_RANKS];
    size_t n = 0;
    if (b->n == 0 && any_common)
        st = batch_open_file(b, 0, o, MANIFEST_COMMON);
    for (int64_t i = 0; i < b->n && st == TSR_OK; i++) {
        struct str name =
            tsr__arena_printf(b->plan->arena, "rank%lld.data", (long long)(b->first + i));
        if (b->parts[b->first + i].data_bytes)
            st = name.p ? batch_open_file(b, i, o, name.p) : TSR_NOMEM;
    }
    for (int64_t i = 0; i < BATCH_RANKS && st == TSR_OK; i++)
        if (b->open[i]) {
            fds[n] = b->files[i].fd;
            b->place[i] = n++;
        }
    if (st == TSR_OK && n && !b->plan->undigested)
        st = tsr__follow_start(b->plan->session, fds, n, &b->follow);
    return st;
}

// What is left in the buffers goes into the files, so that the digests can be finished before they
// are closed.
static tsr_status batch_digest(struct batch *b)
{
    for (int64_t i = 0; i < BATCH_RANKS; i++)
        if (b->open[i]) {
            tsr__out_gather(&b->files[i], NULL, 0);
            tell(&(struct taker){.batch = b, .file = i});
            if (b->files[i].failed)
                return b->files[i].status;
        }
    return b->follow ? tsr__follow_finish(b->follow) : TSR_OK;
}

static tsr_status batch_close(struct batch *b, int64_t i, struct data_file *out)
{
    out->bytes = b->files[i].offset;
    if (b->follow)
        tsr__follow_digest(b->follow, b->place[i], out->sha256);
    tsr_status st = tsr__out_commit(&b->files[i]);
    b->open[i] = st != TSR_OK;
    return st;
}

static tsr_status batch_run(struct batch *b, struct outfolder *o, struct data_file *files,
                            bool any_common)
{
    tsr_status st = batch_open(b, o, any_common);
    for (struct form *f = b->plan->consts; f && st == TSR_OK; f = f->next_const) {
        st = tsr__cancel_check(b->plan->session);
        if (st == TSR_OK)
            st = batch_form(b, f);
    }
    if (st == TSR_OK)
        st = batch_digest(b);
    for (int64_t i = 0; i < BATCH_RANKS && st == TSR_OK; i++)
        if (b->open[i])
            st = batch_close(b, i, &files[b->n ? b->first + i : b->plan->n_ranks]);
    tsr__follow_free(b->follow);
    for (int64_t i = 0; i < BATCH_RANKS; i++)
        if (b->open[i])
            tsr__out_abort(&b->files[i]);
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
