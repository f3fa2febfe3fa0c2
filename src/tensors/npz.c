// SPDX-License-Identifier: Apache-2.0
// npz.c - numpy's .npz: a zip archive with one .npy per tensor.
//
// Reading supports stored and deflated entries and the 64-bit extension; checksums are verified.
// Written archives have stored entries without dates, in the order of the set, so that equal
// tensors give equal files.
//
// The file has three parts. First, for each tensor, a local header, the name and the .npy. Then the
// directory, with an entry for each tensor that has the offset of its header. Then the end record,
// with the offset of the directory. Reading starts at the end.
#include "tensors/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#define END_BYTES     22
#define END64_BYTES   56
#define FIND64_BYTES  20
#define CENTRAL_BYTES 46
#define LOCAL_BYTES   30
#define MAX_MEMBERS   100000
#define MAX_RATIO     1040 // the best ratio of deflate
#define LIMIT32       0xFFFFFFFFu
#define DATE          0x21 // 1 January 1980

// Reads an n-byte little-endian number.
static uint64_t get(const char *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | (unsigned char)p[i];
    return v;
}

static tsr_status damaged(tsr_session *session, const char *file, struct str name, const char *what)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_tensor_file,
                     &PLACE(.file = str_of(file), .value = name), "write it again with numpy.savez",
                     "%s", what);
}

// ---- reading -----------------------------------------------------------------------------------

// An entry of the archive. packed and size: bytes compressed and uncompressed; at: offset of the
// local header; flags bit 0: encrypted.
struct member {
    struct str name;
    int method, flags;
    uint32_t crc;
    uint64_t packed, size, at;
    struct str bytes; // in the archive: compressed, or stored as they are
};

// Finds the central directory and its number of entries. Returns false if there is none.
static bool find_directory(struct str z, uint64_t *at, uint64_t *n)
{
    if (z.n < END_BYTES)
        return false;
    // A comment of up to 65535 bytes may follow the end record, so the record is searched for from
    // the end of the file.
    size_t least = z.n > END_BYTES + 65535 ? z.n - END_BYTES - 65535 : 0;
    size_t i = z.n - END_BYTES + 1;
    bool found = false;
    while (!found && i > least)
        found = memcmp(z.p + --i, "PK\5\6", 4) == 0;
    if (!found)
        return false;
    *n = get(z.p + i + 10, 2);
    *at = get(z.p + i + 16, 4);
    if ((*n != 0xFFFF && *at != LIMIT32) || i < FIND64_BYTES ||
        memcmp(z.p + i - FIND64_BYTES, "PK\6\7", 4) != 0)
        return true;
    uint64_t end = get(z.p + i - FIND64_BYTES + 8, 8);
    if (end > z.n || z.n - end < END64_BYTES || memcmp(z.p + end, "PK\6\6", 4) != 0)
        return false;
    *n = get(z.p + end + 32, 8);
    *at = get(z.p + end + 48, 8);
    return true;
}

// Reads the 64-bit extension. It has the uncompressed size, the compressed size and the offset, in
// this order, but only those whose 32-bit field is LIMIT32.
static bool read_wide(struct str field, struct member *member)
{
    uint64_t *wide[3] = {&member->size, &member->packed, &member->at};
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        if (*wide[i] != LIMIT32)
            continue;
        if (used + 8 > field.n)
            return false;
        *wide[i] = get(field.p + used, 8);
        used += 8;
    }
    return true;
}

// Reads the extra fields. Each has a number, a length and that many bytes; number 1 is the 64-bit
// extension.
static bool read_extra(struct str extra, struct member *member)
{
    while (extra.n >= 4) {
        size_t id = get(extra.p, 2), n = get(extra.p + 2, 2);
        if (n > extra.n - 4)
            return false;
        struct str field = {extra.p + 4, n};
        if (id == 1 && !read_wide(field, member))
            return false;
        extra = (struct str){field.p + n, extra.n - 4 - n};
    }
    return true;
}

// Reads the entry at *at of the directory and advances *at.
static bool read_entry(struct str z, uint64_t *at, struct member *member)
{
    if (*at > z.n || z.n - *at < CENTRAL_BYTES || memcmp(z.p + *at, "PK\1\2", 4) != 0)
        return false;
    const char *p = z.p + *at;
    size_t name = get(p + 28, 2), extra = get(p + 30, 2), comment = get(p + 32, 2);
    if (name + extra + comment > z.n - *at - CENTRAL_BYTES)
        return false;
    *member = (struct member){.name = {p + CENTRAL_BYTES, name},
                              .flags = (int)get(p + 8, 2),
                              .method = (int)get(p + 10, 2),
                              .crc = (uint32_t)get(p + 16, 4),
                              .packed = get(p + 20, 4),
                              .size = get(p + 24, 4),
                              .at = get(p + 42, 4)};
    *at += CENTRAL_BYTES + name + extra + comment;
    return read_extra((struct str){p + CENTRAL_BYTES + name, extra}, member);
}

// Returns the name of the tensor: that of the entry without ".npy".
static struct str tensor_name(const struct member *member)
{
    struct str name = member->name;
    if (name.n > 4 && memcmp(name.p + name.n - 4, ".npy", 4) == 0)
        name.n -= 4;
    return name;
}

// Finds the bytes of an entry in the archive, which begin after its local header.
static bool find_bytes(struct str z, struct member *member)
{
    if (member->at > z.n || z.n - member->at < LOCAL_BYTES ||
        memcmp(z.p + member->at, "PK\3\4", 4) != 0)
        return false;
    const char *p = z.p + member->at;
    uint64_t start = member->at + LOCAL_BYTES + get(p + 26, 2) + get(p + 28, 2);
    if (start > z.n || member->packed > z.n - start)
        return false;
    member->bytes = (struct str){z.p + start, (size_t)member->packed};
    return true;
}

static bool unpack(struct str from, char *to, size_t n)
{
    z_stream z = {0};
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return false;
    int st = Z_OK;
    size_t in = 0, out = 0;
    // zlib has 32-bit counters, so input and output are passed in pieces of at most 1 GiB. More
    // than n bytes of output end in Z_BUF_ERROR, which is an error here.
    while (st == Z_OK) {
        size_t a = from.n - in < (1u << 30) ? from.n - in : 1u << 30;
        size_t b = n - out < (1u << 30) ? n - out : 1u << 30;
        z.next_in = (unsigned char *)(uintptr_t)(from.p + in);
        z.avail_in = (unsigned)a;
        z.next_out = (unsigned char *)to + out;
        z.avail_out = (unsigned)b;
        st = inflate(&z, Z_NO_FLUSH);
        in += a - z.avail_in;
        out += b - z.avail_out;
    }
    inflateEnd(&z);
    return st == Z_STREAM_END && out == n;
}

static uint32_t crc_of(uint32_t crc, const char *p, size_t n)
{
    return (uint32_t)crc32_z(crc, (const unsigned char *)p, n);
}

// Reads an entry of the archive. Stored entries are read in place. Compressed ones are decompressed
// into a buffer of the size that the archive states. A size that deflate cannot reach is refused
// first.
static tsr_status read_member(tsr_tensors *tensors, const char *file, const struct member *member)
{
    struct str bytes = member->bytes, name = tensor_name(member);
    if (member->method == 0 && member->size == member->packed)
        return crc_of(0, bytes.p, bytes.n) == member->crc
                   ? tsr__npy_read(tensors, name, file, bytes)
                   : damaged(tensors->session, file, name, "the checksum of an entry is wrong");
    if (member->method == 0 || member->size / MAX_RATIO > member->packed)
        return damaged(tensors->session, file, name,
                       "the sizes in the archive contradict each other");
    char *buffer = tsr__alloc(tensors->session, (size_t)member->size + 1);
    if (!buffer)
        return TSR_NOMEM;
    tsr_status st;
    if (unpack(bytes, buffer, (size_t)member->size) &&
        crc_of(0, buffer, (size_t)member->size) == member->crc)
        st = tsr__npy_read(tensors, name, file, (struct str){buffer, (size_t)member->size});
    else
        st =
            damaged(tensors->session, file, name, "an entry of the archive cannot be decompressed");
    tsr__free(tensors->session, buffer, (size_t)member->size + 1);
    return st;
}

// The entries of an archive, in its order.
struct directory {
    tsr_session *session;
    const char *file;
    struct str archive;
    struct member *members;
    size_t n;
};

static tsr_status read_directory(struct directory *directory, struct arena *arena)
{
    uint64_t at = 0, n = 0;
    if (!find_directory(directory->archive, &at, &n) || n > MAX_MEMBERS)
        return damaged(directory->session, directory->file, STR(""), "not an .npz file");
    directory->members = ARENA_ARRAY(arena, struct member, (size_t)n + 1);
    if (!directory->members)
        return TSR_NOMEM;
    for (uint64_t i = 0; i < n; i++) {
        struct member *member = &directory->members[directory->n++];
        if (!read_entry(directory->archive, &at, member))
            return damaged(directory->session, directory->file, STR(""),
                           "the directory of the archive is corrupt");
        if (!find_bytes(directory->archive, member) ||
            (member->method != 0 && member->method != 8) || member->flags & 1)
            return damaged(directory->session, directory->file, tensor_name(member),
                           "an entry of the archive is corrupt, encrypted or compressed with an "
                           "unknown method");
    }
    return TSR_OK;
}

// Refuses duplicate names; archives written by numpy have none.
static tsr_status refuse_repeated(const struct directory *directory, struct arena *arena)
{
    struct map names;
    tsr__map_init(&names, arena, directory->n);
    for (size_t i = 0; i < directory->n; i++) {
        struct member *member = &directory->members[i];
        void **slot = tsr__map_at(&names, tensor_name(member));
        if (!slot)
            return TSR_NOMEM;
        if (*slot)
            return damaged(directory->session, directory->file, tensor_name(member),
                           "the archive has two tensors of this name");
        *slot = member;
    }
    return TSR_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct member *const *x = a, *const *y = b;
    return ((*x)->at > (*y)->at) - ((*x)->at < (*y)->at);
}

// Refuses entries that share bytes. They could decompress to any multiple of the file, so that 100
// KB could fill the memory. Without shared bytes, all sizes together are at most MAX_RATIO times
// the file.
static tsr_status refuse_overlapping(const struct directory *directory, struct arena *arena)
{
    struct member **order = ARENA_ARRAY(arena, struct member *, directory->n + 1);
    if (!order)
        return TSR_NOMEM;
    for (size_t i = 0; i < directory->n; i++)
        order[i] = &directory->members[i];
    qsort(order, directory->n, sizeof *order, by_place);
    for (size_t i = 1; i < directory->n; i++) {
        const struct str *before = &order[i - 1]->bytes;
        if (directory->archive.p + order[i]->at < before->p + before->n)
            return damaged(directory->session, directory->file, tensor_name(order[i]),
                           "entries of the archive overlap");
    }
    return TSR_OK;
}

static tsr_status read_archive(tsr_tensors *tensors, const char *file, struct str archive)
{
    struct directory directory = {tensors->session, file, archive, NULL, 0};
    struct arena arena = {.session = tensors->session};
    tsr_status st = read_directory(&directory, &arena);
    if (st == TSR_OK)
        st = refuse_repeated(&directory, &arena);
    if (st == TSR_OK)
        st = refuse_overlapping(&directory, &arena);
    for (size_t i = 0; st == TSR_OK && i < directory.n; i++)
        st = read_member(tensors, file, &directory.members[i]);
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr__npz_read(tsr_tensors *tensors, const char *file)
{
    struct mapped map;
    TRY(tsr__file_map(tensors->session, file, &map));
    tsr_status st = read_archive(tensors, file, map.bytes);
    tsr__file_unmap(&map);
    return st;
}

// ---- writing -----------------------------------------------------------------------------------

// The buffer collects the fields of one header; flush writes it before names and elements, which
// are written without a copy.
struct writer {
    struct outfile out;
    char buffer[128];
    size_t n;
};

static void put(struct writer *writer, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        writer->buffer[writer->n++] = (char)(v >> 8 * i & 255);
}

static void flush(struct writer *writer)
{
    tsr__out_write(&writer->out, writer->buffer, writer->n);
    writer->n = 0;
}

static uint64_t small(uint64_t v)
{
    return v < LIMIT32 ? v : LIMIT32;
}

// Writes the fields that local and central headers share, from the required version to the length
// of the extra field.
static void put_common(struct writer *writer, const struct member *member, size_t extra)
{
    put(writer, extra ? 45 : 20, 2);
    put(writer, 0x800, 2); // names are UTF-8
    put(writer, 0, 2);     // stored
    put(writer, 0, 2);
    put(writer, DATE, 2);
    put(writer, member->crc, 4);
    put(writer, small(member->size), 4);
    put(writer, small(member->size), 4);
    put(writer, member->name.n + 4, 2);
    put(writer, extra, 2);
}

static void write_member(struct writer *writer, const struct npy_image *image,
                         struct member *member)
{
    member->size = image->n_head + image->bytes;
    member->at = writer->out.offset;
    member->crc = crc_of(crc_of(0, image->head, image->n_head), image->data, image->bytes);
    size_t extra = member->size >= LIMIT32 ? 20 : 0;
    put(writer, 0x04034b50, 4);
    put_common(writer, member, extra);
    flush(writer);
    tsr__out_write(&writer->out, member->name.p, member->name.n);
    tsr__out_write(&writer->out, ".npy", 4);
    if (extra) {
        put(writer, 1, 2);
        put(writer, 16, 2);
        put(writer, member->size, 8);
        put(writer, member->size, 8);
        flush(writer);
    }
    tsr__out_write(&writer->out, image->head, image->n_head);
    tsr__out_write(&writer->out, image->data, image->bytes);
}

static void write_entry(struct writer *writer, const struct member *member)
{
    bool big = member->size >= LIMIT32, far = member->at >= LIMIT32;
    size_t extra = big ? 16 : 0; // both sizes
    if (far)
        extra += 8;
    put(writer, 0x02014b50, 4);
    put(writer, 45, 2);
    put_common(writer, member, extra ? extra + 4 : 0);
    put(writer, 0, 2 + 2 + 2); // comment, disk, attributes
    put(writer, 0, 4);
    put(writer, small(member->at), 4);
    flush(writer);
    tsr__out_write(&writer->out, member->name.p, member->name.n);
    tsr__out_write(&writer->out, ".npy", 4);
    if (!extra)
        return;
    put(writer, 1, 2);
    put(writer, extra, 2);
    if (big) {
        put(writer, member->size, 8);
        put(writer, member->size, 8);
    }
    if (far)
        put(writer, member->at, 8);
    flush(writer);
}

// Writes the end record. Archives of 4 GiB or 65535 entries need the 64-bit end record and its
// locator. The usual end record then has all ones in the fields that are too small.
static void write_end(struct writer *writer, uint64_t at, uint64_t n)
{
    uint64_t bytes = writer->out.offset - at, end = writer->out.offset;
    if (at >= LIMIT32 || n >= 0xFFFF || bytes >= LIMIT32) {
        put(writer, 0x06064b50, 4);
        put(writer, END64_BYTES - 12, 8);
        put(writer, 45, 2);
        put(writer, 45, 2);
        put(writer, 0, 4);
        put(writer, 0, 4);
        put(writer, n, 8);
        put(writer, n, 8);
        put(writer, bytes, 8);
        put(writer, at, 8);
        put(writer, 0x07064b50, 4);
        put(writer, 0, 4);
        put(writer, end, 8);
        put(writer, 1, 4);
        flush(writer);
    }
    put(writer, 0x06054b50, 4);
    put(writer, 0, 4);
    put(writer, n < 0xFFFF ? n : 0xFFFF, 2);
    put(writer, n < 0xFFFF ? n : 0xFFFF, 2);
    put(writer, small(bytes), 4);
    put(writer, small(at), 4);
    put(writer, 0, 2);
    flush(writer);
}

static void note_raw(const tsr_tensors *tensors, const struct tensor *x)
{
    struct place at = PLACE(.value = str_of(x->name));
    if (x->type != TSR_STRING && !tsr__npy_has(x->type))
        tsr__diag(tensors->session, DIAG_tensor_raw, &at, NULL,
                  "numpy has no type %s; its bits are written as unsigned integers",
                  tsr_dtype_name(x->type));
}

// The tensors that become entries of the archive.
struct leaves {
    const struct tensor **tensors;
    struct member *members;
    size_t n;
};

// Counts the tensors to be written. An optional without a value counts 0, a sequence its number of
// elements.
static size_t count_leaves(const tsr_tensors *tensors)
{
    size_t n = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        const struct tensor *x = tensors->at[i];
        if (x->sequence)
            n += x->sequence->n;
        else
            n += x->rank >= 0;
    }
    return n;
}

static void add_leaf(struct leaves *leaves, struct str name, const struct tensor *x)
{
    leaves->members[leaves->n].name = name;
    leaves->tensors[leaves->n++] = x;
}

// Lists the tensors of a set, those of a sequence NAME as NAME.0, NAME.1, ...
static tsr_status find_leaves(struct arena *arena, const tsr_tensors *tensors, struct leaves *out)
{
    size_t most = count_leaves(tensors);
    out->members = ARENA_ARRAY(arena, struct member, most + 1);
    out->tensors = ARENA_ARRAY(arena, const struct tensor *, most + 1);
    if (arena->failed)
        return TSR_NOMEM;
    for (size_t i = 0; i < tensors->n; i++) {
        const struct tensor *x = tensors->at[i];
        size_t elements = x->sequence ? x->sequence->n : 0;
        if (x->rank >= 0)
            add_leaf(out, str_of(x->name), x);
        for (size_t k = 0; k < elements; k++)
            add_leaf(out, tsr__arena_printf(arena, "%s.%zu", x->name, k), x->sequence->at[k]);
    }
    return arena->failed ? TSR_NOMEM : TSR_OK;
}

// Writes the tensors first, then the directory with their offsets.
static tsr_status write_archive(struct writer *writer, struct arena *arena,
                                const tsr_tensors *tensors, const struct leaves *leaves)
{
    struct npy_image *image = ARENA_NEW(arena, struct npy_image);
    if (!image)
        return TSR_NOMEM;
    for (size_t i = 0; i < leaves->n; i++) {
        note_raw(tensors, leaves->tensors[i]);
        TRY(tsr__npy_image(arena, leaves->tensors[i], image));
        write_member(writer, image, &leaves->members[i]);
    }
    uint64_t directory = writer->out.offset;
    for (size_t i = 0; i < leaves->n; i++)
        write_entry(writer, &leaves->members[i]);
    write_end(writer, directory, leaves->n);
    return TSR_OK;
}

// Writes a set of tensors as .npz. The file appears under its name only when it is complete
// (tsr__out_commit).
tsr_status tsr__npz_save(const tsr_tensors *tensors, const char *path)
{
    struct writer writer = {0};
    struct leaves leaves = {0};
    struct arena arena = {.session = tensors->session};
    tsr_status st = find_leaves(&arena, tensors, &leaves);
    if (st == TSR_OK)
        st = tsr__out_open(tensors->session, path, &writer.out);
    if (st == TSR_OK) {
        st = write_archive(&writer, &arena, tensors, &leaves);
        if (st == TSR_OK)
            st = tsr__out_commit(&writer.out);
        else
            tsr__out_abort(&writer.out);
    }
    tsr__arena_free(&arena);
    return st;
}
