// SPDX-License-Identifier: Apache-2.0
// weights_write.c - copies constants to the data files. Long runs are copied by the operating
// system (copy_file_range). For short runs (columns) the source is read in blocks, once per batch
// of ranks, and each rank copies its runs from each block. So memory does not grow with the
// weights. If the source file becomes shorter meanwhile, that is an error. Digests are computed in
// parallel (base/follow.c).
//
// Examples:
//     W [1024,1024] float {2,1} on ranks 0 and 1: one run of 2 MiB per rank, copied at once
//     {1,2}: 1024 runs of 2 KiB per rank; the source is read in 4 blocks of 1 MiB,
//         and from each block both ranks copy 256 runs, which are written together
//     20 ranks: batches of 16 and 4, so W is read twice, not 20 times
#include "internal.h"

#define BLOCK_BYTES ((int64_t)1 << 20)
#define BATCH_RANKS 16                  // data files that are open at a time; each has a buffer
#define COPY_LEAST  ((int64_t)16 << 10) // shortest run that copy_file_range copies
// limit per call, so that the digest threads are not far behind
#define COPY_MOST    ((int64_t)64 << 20)
#define GATHER_LEAST 1024 // smaller pieces go through the buffer
#define GATHER_MOST  256  // limit of pieces per call

// The bytes of a constant, in a file or in memory.
struct source {
    tsr_session *session;
    struct str name;
    int fd;
    uint64_t offset;
    const unsigned char *memory; // if not NULL, the bytes are in memory
    int64_t bytes;
};

static tsr_status source_open(struct draft *draft, const struct item *it, struct source *out)
{
    const tsr_tensor *tensor = tsr_value_initializer(it->value);
    *out = (struct source){
        .session = draft->session, .name = it->name, .bytes = tsr_tensor_bytes(tensor)};
    uint64_t length;
    // packed elements are copied from memory bit by bit
    bool packed = tsr_dtype_bits(it->dtype) % 8 != 0;
    if (!packed && tsr__tensor_window(tensor, &out->fd, &out->offset, &length) &&
        length == (uint64_t)out->bytes)
        return TSR_OK;
    size_t n;
    return tsr_tensor_data(tensor, (const void **)&out->memory, &n);
}

static tsr_status source_read(const struct source *source, int64_t at, int64_t n,
                              unsigned char *out)
{
    const char *why =
        tsr__fd_read(source->session, source->fd, out, (size_t)n, source->offset + (uint64_t)at);
    if (!why)
        return TSR_OK;
    return tsr__fail(source->session, TSR_IO, DIAG_io_read, &PLACE(.value = source->name), NULL,
                     "cannot read the weight: %s", why);
}

// ---- one constant ------------------------------------------------------------------------------

// Data files that are open at the same time: those of ranks [first, first + n), or the common file
// if n is 0.
struct batch {
    struct draft *draft;
    struct part *parts;
    int64_t first, n;
    struct outfile files[BATCH_RANKS];
    bool open[BATCH_RANKS];
    size_t place[BATCH_RANKS]; // index in `follow`
    struct follow *follow;
    unsigned char *buffer;
};

// The runs of a constant that are still to be written to one file of the batch.
struct writer {
    struct batch *batch;
    int64_t file;
    struct runs runs;
};

static struct outfile *writer_file(const struct writer *writer)
{
    return &writer->batch->files[writer->file];
}

// Tells the thread that computes the digest of the file that it may read up to the current
// position.
static void advance_digest(const struct writer *writer)
{
    struct batch *batch = writer->batch;
    if (batch->follow)
        tsr__follow_ready(batch->follow, batch->place[writer->file],
                          tsr__out_flushed(writer_file(writer)));
}

static void flush_pieces(const struct writer *writer, const struct str *pieces, size_t *n)
{
    if (*n)
        tsr__out_gather(writer_file(writer), pieces, *n);
    *n = 0;
}

// Writes the elements of the shard that are in `block`, bytes [at, at + n) of the constant. A run
// of the writer is a range of contiguous elements. Elements have `bytes` bytes. Short parts are
// copied to the file's buffer, long ones are written directly.
static void write_block(struct writer *writer, const unsigned char *block, int64_t at, int64_t n,
                        int64_t bytes)
{
    struct runs *runs = &writer->runs;
    struct str pieces[GATHER_MOST];
    size_t n_pieces = 0;
    bool left = false;
    while (!left && !runs->done && runs->start * bytes < at + n) {
        int64_t from = runs->start * bytes, to = runs->stop * bytes;
        int64_t stop = int64_min(to, at + n);
        const unsigned char *start = block + (from - at);
        if (n_pieces == GATHER_MOST || stop - from < GATHER_LEAST)
            flush_pieces(writer, pieces, &n_pieces);
        if (stop - from < GATHER_LEAST)
            tsr__out_write(writer_file(writer), start, (size_t)(stop - from));
        else
            pieces[n_pieces++] = str_bytes(start, (size_t)(stop - from));
        left = to > at + n;
        if (left)
            runs->start = (at + n) / bytes; // a block consists of complete elements
        else
            tsr__runs_next(runs);
    }
    flush_pieces(writer, pieces, &n_pieces);
    advance_digest(writer);
}

// Returns the start of the next block, or INT64_MAX if all runs are written. Parts that no rank
// needs are not read.
static int64_t next_wanted(const struct writer *writers, size_t n, int64_t bytes)
{
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < n; i++)
        if (!writers[i].runs.done && writers[i].runs.start * bytes < first)
            first = writers[i].runs.start * bytes;
    return first;
}

// Reads the constant in blocks, and writes from each block what the n writers need. Each block
// starts at data that a writer needs.
static tsr_status write_blocks(const struct source *source, struct writer *writers, size_t n,
                               int64_t bytes, unsigned char *buffer)
{
    int64_t block = BLOCK_BYTES / bytes * bytes;
    for (int64_t at; (at = next_wanted(writers, n, bytes)) != INT64_MAX;) {
        int64_t length = int64_min(source->bytes - at, block);
        const unsigned char *data = buffer;
        if (source->memory)
            data = source->memory + at;
        else
            TRY(source_read(source, at, length, buffer));
        for (size_t i = 0; i < n; i++) {
            write_block(&writers[i], data, at, length, bytes);
            if (writer_file(&writers[i])->failed)
                return writer_file(&writers[i])->status;
        }
        if (length <= 0)
            return TSR_BUG;
    }
    return TSR_OK;
}

static tsr_status copy_runs(const struct source *source, struct writer *writer, int64_t bytes)
{
    for (struct runs *runs = &writer->runs; !runs->done; tsr__runs_next(runs))
        for (int64_t at = runs->start * bytes, end = runs->stop * bytes; at < end;
             at += COPY_MOST) {
            int64_t n = int64_min(end - at, COPY_MOST);
            tsr__out_copy(writer_file(writer), source->fd, source->offset + (uint64_t)at,
                          (uint64_t)n);
            advance_digest(writer);
            if (writer_file(writer)->failed)
                return writer_file(writer)->status;
        }
    return TSR_OK;
}

// Writes elements smaller than a byte, through a buffer of fixed size.
static void write_bits(const struct source *source, struct writer *writer, int bits,
                       unsigned char *buffer)
{
    uint64_t n = 0;
    struct runs *runs = &writer->runs;
    memset(buffer, 0, (size_t)BLOCK_BYTES);
    for (; !runs->done; tsr__runs_next(runs))
        for (uint64_t e = (uint64_t)runs->start * (uint64_t)bits;
             e < (uint64_t)runs->stop * (uint64_t)bits; e++) {
            if (source->memory[e / 8] >> (e % 8) & 1)
                buffer[n / 8] |= (unsigned char)(1u << (n % 8));
            if (++n == (uint64_t)BLOCK_BYTES * 8) {
                tsr__out_write(writer_file(writer), buffer, (size_t)BLOCK_BYTES);
                memset(buffer, 0, (size_t)BLOCK_BYTES);
                n = 0;
            }
        }
    tsr__out_write(writer_file(writer), buffer, (size_t)((n + 7) / 8));
    advance_digest(writer);
}

static bool long_runs(const struct writer *writers, size_t n, int64_t bytes)
{
    for (size_t i = 0; i < n; i++)
        if (!writers[i].runs.done &&
            (writers[i].runs.stop - writers[i].runs.start) * bytes < COPY_LEAST)
            return false;
    return true;
}

// Writes a constant: bit by bit if its elements are smaller than a byte, by copy_file_range if its
// runs in a file are long, else block by block.
static tsr_status write_form(struct draft *draft, struct form *form, struct writer *writers,
                             size_t n, unsigned char *buffer)
{
    struct source source;
    int bits = tsr_dtype_bits(form->item->dtype);
    TRY(source_open(draft, form->item, &source));
    if (bits % 8 == 0 && (source.memory || !long_runs(writers, n, bits / 8)))
        return write_blocks(&source, writers, n, bits / 8, buffer);
    for (size_t i = 0; i < n; i++) {
        if (bits % 8)
            write_bits(&source, &writers[i], bits, buffer);
        else
            TRY(copy_runs(&source, &writers[i], bits / 8));
    }
    return TSR_OK;
}

// ---- all constants ------------------------------------------------------------------------------

// Writes zeros up to the assigned offset, which is less than LARGE_ALIGN bytes away.
static void pad_to(struct outfile *outfile, uint64_t offset)
{
    static const char zeros[LARGE_ALIGN];
    if (outfile->offset < offset && offset - outfile->offset < sizeof(zeros))
        tsr__out_write(outfile, zeros, (size_t)(offset - outfile->offset));
}

// Prepares writing the rank's part of a constant to file number `file` of the batch. Returns false
// if out of memory.
static bool start_writer(struct batch *batch, const struct form *form, int64_t rank, int64_t file,
                         uint64_t offset, struct writer *out)
{
    struct tile_piece *piece = tsr__const_piece(batch->draft, form, rank);
    if (!piece)
        return false;
    *out = (struct writer){.batch = batch, .file = file};
    tsr__runs_begin(&out->runs, piece, form->item->shape);
    pad_to(writer_file(out), offset);
    return true;
}

// Writes a constant of the common file.
static tsr_status common_form(struct batch *batch, struct form *form)
{
    struct writer writer;
    if (!form->common)
        return TSR_OK;
    int64_t rank = 0;
    while (rank < batch->draft->n_ranks && !form->stored[rank])
        rank++;
    if (rank == batch->draft->n_ranks)
        return TSR_OK;
    if (!start_writer(batch, form, rank, 0, form->offset[0], &writer))
        return TSR_NOMEM;
    return write_form(batch->draft, form, &writer, 1, batch->buffer);
}

// Writes a constant for all ranks of the batch at once, so that the source is read once.
static tsr_status batch_form(struct batch *batch, struct form *form)
{
    struct writer writers[BATCH_RANKS];
    size_t n = 0;
    if (form->common)
        return TSR_OK;
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t rank = batch->first + i;
        if (!form->stored[rank])
            continue;
        if (!start_writer(batch, form, rank, i, form->offset[rank], &writers[n++]))
            return TSR_NOMEM;
    }
    return n ? write_form(batch->draft, form, writers, n, batch->buffer) : TSR_OK;
}

// Opens a file of the batch. open[i] is set if files[i] must be committed or aborted.
static tsr_status batch_open_file(struct batch *batch, int64_t i, struct outfolder *outfolder,
                                  const char *name)
{
    struct str path = tsr__outfolder_path(outfolder, batch->draft->arena, name);
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = tsr__out_open(batch->draft->session, path.p, &batch->files[i]);
    batch->open[i] = st == TSR_OK;
    if (batch->open[i])
        batch->files[i].copy_least = COPY_LEAST;
    return st;
}

static tsr_status batch_open(struct batch *batch, struct outfolder *outfolder, bool any_common)
{
    int fds[BATCH_RANKS];
    size_t n = 0;
    if (batch->n == 0 && any_common)
        TRY(batch_open_file(batch, 0, outfolder,
                            tsr__weights_file(batch->draft, batch->draft->n_ranks)));
    for (int64_t i = 0; i < batch->n; i++) {
        const char *name = tsr__weights_file(batch->draft, batch->first + i);
        if (batch->parts[batch->first + i].data_bytes)
            TRY(name ? batch_open_file(batch, i, outfolder, name) : TSR_NOMEM);
    }
    for (int64_t i = 0; i < BATCH_RANKS; i++)
        if (batch->open[i]) {
            fds[n] = batch->files[i].fd;
            batch->place[i] = n++;
        }
    if (n == 0 || batch->draft->undigested)
        return TSR_OK;
    return tsr__follow_start(batch->draft->session, fds, n, &batch->follow);
}

// Flushes the buffers and waits for the digest threads.
static tsr_status batch_digest(struct batch *batch)
{
    for (int64_t i = 0; i < BATCH_RANKS; i++)
        if (batch->open[i]) {
            tsr__out_gather(&batch->files[i], NULL, 0);
            advance_digest(&(struct writer){.batch = batch, .file = i});
            if (batch->files[i].failed)
                return batch->files[i].status;
        }
    return batch->follow ? tsr__follow_finish(batch->follow) : TSR_OK;
}

static tsr_status batch_close(struct batch *batch, int64_t i, struct data_file *out)
{
    out->bytes = batch->files[i].offset;
    memcpy(out->sha256, NO_DIGEST, sizeof out->sha256);
    if (batch->follow)
        tsr__follow_digest(batch->follow, batch->place[i], out->sha256);
    tsr_status st = tsr__out_commit(&batch->files[i]);
    batch->open[i] = st != TSR_OK;
    return st;
}

static tsr_status batch_headers(struct batch *batch)
{
    struct draft *draft = batch->draft;
    for (int64_t i = 0; i < BATCH_RANKS && draft->safetensors; i++) {
        unsigned char *header;
        if (!batch->open[i])
            continue;
        int64_t rank = batch->n ? batch->first + i : draft->n_ranks;
        TRY(tsr__safetensors_header(draft, rank, &header));
        tsr__out_write(&batch->files[i], header, (size_t)draft->safetensors);
    }
    return TSR_OK;
}

static tsr_status batch_write(struct batch *batch, struct outfolder *outfolder,
                              struct data_file *files, bool any_common)
{
    TRY(batch_open(batch, outfolder, any_common));
    TRY(batch_headers(batch));
    for (struct form *form = batch->draft->consts; form; form = form->next_const) {
        TRY(tsr__cancel_check(batch->draft->session));
        TRY(batch->n ? batch_form(batch, form) : common_form(batch, form));
    }
    TRY(batch_digest(batch));
    struct data_file *first = &files[batch->draft->n_ranks]; // the common file
    if (batch->n)
        first = &files[batch->first];
    for (int64_t i = 0; i < BATCH_RANKS; i++) {
        if (!batch->open[i])
            continue;
        TRY(batch_close(batch, i, &first[i]));
    }
    return TSR_OK;
}

// Writes the files of a batch. Removes files that are still open after a failure.
static tsr_status batch_run(struct batch *batch, struct outfolder *outfolder,
                            struct data_file *files, bool any_common)
{
    tsr_status st = batch_write(batch, outfolder, files, any_common);
    tsr__follow_free(batch->follow);
    for (int64_t i = 0; i < BATCH_RANKS; i++)
        if (batch->open[i])
            tsr__out_abort(&batch->files[i]);
    return st;
}

// Writes the data files: the common file first, then the ranks in batches.
tsr_status tsr__weights_write(struct draft *draft, struct part *parts, struct outfolder *outfolder,
                              struct data_file *files)
{
    struct batch *batch = ARENA_NEW(draft->arena, struct batch);
    unsigned char *buffer = tsr__alloc(draft->session, (size_t)BLOCK_BYTES);
    bool any_common = false;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        any_common |= parts[rank].uses_common;
    tsr_status st = TSR_NOMEM;
    int64_t first = 0, n = 0; // no ranks: the batch is the common file
    if (!batch || !buffer)
        goto free_buffer;
    do {
        *batch = (struct batch){
            .draft = draft, .parts = parts, .first = first, .n = n, .buffer = buffer};
        st = batch_run(batch, outfolder, files, any_common);
        if (st != TSR_OK)
            goto free_buffer;
        first += n;
        tsr__progress(draft->session, "weights", (uint64_t)first, (uint64_t)draft->n_ranks);
        n = int64_min(draft->n_ranks - first, BATCH_RANKS);
    } while (n > 0);
free_buffer:
    if (buffer)
        tsr__free(draft->session, buffer, (size_t)BLOCK_BYTES);
    return st;
}
