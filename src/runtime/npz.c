// SPDX-License-Identifier: Apache-2.0
// npz.c - numpy's .npz: a zip archive with one .npy per tensor.
//
// Read: stored and deflated members, also with the 64-bit extension; checksums are checked. Written: stored,
// no dates, names in the order of the set, so that equal tensors give equal files.
#include "runtime/internal.h"

#include <stdio.h>
#include <zlib.h>

#define END_BYTES     22
#define END64_BYTES   56
#define FIND64_BYTES  20
#define CENTRAL_BYTES 46
#define LOCAL_BYTES   30
#define MAX_MEMBERS   100000
#define MAX_RATIO     1040 // deflate cannot do better
#define LIMIT32       0xFFFFFFFFu
#define DATE          0x21 // 1 January 1980

static uint64_t get(const char *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | (unsigned char)p[i];
    return v;
}

static tsr_status damaged(tsr_session *s, const char *file, struct str name, const char *what)
{
    struct place at = PLACE_NONE;
    at.file = str_of(file);
    at.value = name;
    tsr__diag(s, DIAG_tensor_file, &at, "write it again with numpy.savez", "%s", what);
    return TSR_MALFORMED;
}

// ---- reading -----------------------------------------------------------------------------------

struct member {
    struct str name;
    int method, flags;
    uint32_t crc;
    uint64_t packed, size, at;
};

// Place of the central directory and its number of entries.
static bool find_directory(struct str z, uint64_t *at, uint64_t *n)
{
    if (z.n < END_BYTES)
        return false;
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

// The 64-bit extension: holds what does not fit, in this order.
static bool read_extra(struct str extra, struct member *m)
{
    uint64_t *wide[3] = {&m->size, &m->packed, &m->at};
    while (extra.n >= 4) {
        size_t id = get(extra.p, 2), n = get(extra.p + 2, 2);
        const char *p = extra.p + 4;
        if (n > extra.n - 4)
            return false;
        size_t used = 0;
        for (int i = 0; i < 3 && id == 1; i++) {
            if (*wide[i] != LIMIT32)
                continue;
            if (used + 8 > n)
                return false;
            *wide[i] = get(p + used, 8);
            used += 8;
        }
        extra = (struct str){p + n, extra.n - 4 - n};
    }
    return true;
}

// The entry at *at of the directory, which moves on.
static bool read_entry(struct str z, uint64_t *at, struct member *m)
{
    if (*at > z.n || z.n - *at < CENTRAL_BYTES || memcmp(z.p + *at, "PK\1\2", 4) != 0)
        return false;
    const char *p = z.p + *at;
    size_t name = get(p + 28, 2), extra = get(p + 30, 2), comment = get(p + 32, 2);
    if (name + extra + comment > z.n - *at - CENTRAL_BYTES)
        return false;
    *m = (struct member){.name = {p + CENTRAL_BYTES, name},
                         .flags = (int)get(p + 8, 2),
                         .method = (int)get(p + 10, 2),
                         .crc = (uint32_t)get(p + 16, 4),
                         .packed = get(p + 20, 4),
                         .size = get(p + 24, 4),
                         .at = get(p + 42, 4)};
    *at += CENTRAL_BYTES + name + extra + comment;
    return read_extra((struct str){p + CENTRAL_BYTES + name, extra}, m);
}

// The member's bytes as they lie in the archive.
static bool member_bytes(struct str z, const struct member *m, struct str *out)
{
    if (m->at > z.n || z.n - m->at < LOCAL_BYTES || memcmp(z.p + m->at, "PK\3\4", 4) != 0)
        return false;
    const char *p = z.p + m->at;
    uint64_t start = m->at + LOCAL_BYTES + get(p + 26, 2) + get(p + 28, 2);
    if (start > z.n || m->packed > z.n - start)
        return false;
    *out = (struct str){z.p + start, (size_t)m->packed};
    return true;
}

static bool unpack(struct str from, char *to, size_t n)
{
    z_stream z = {0};
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return false;
    int st = Z_OK;
    size_t in = 0, out = 0;
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

static tsr_status read_member(tsr_tensors *t, const char *file, struct str z,
                              const struct member *m)
{
    struct str bytes, name = m->name;
    if (name.n > 4 && memcmp(name.p + name.n - 4, ".npy", 4) == 0)
        name.n -= 4;
    if (!member_bytes(z, m, &bytes) || (m->method != 0 && m->method != 8) || m->flags & 1)
        return damaged(t->session, file, name,
                       "a member of the archive is damaged, encrypted or packed in an "
                       "unknown way");
    if (m->method == 0 && m->size == m->packed)
        return crc_of(0, bytes.p, bytes.n) == m->crc
                   ? tsr__npy_read(t, name, file, bytes)
                   : damaged(t->session, file, name, "the checksum of a member is wrong");
    if (m->method == 0 || m->size / MAX_RATIO > m->packed)
        return damaged(t->session, file, name, "sizes in the archive contradict each other");
    char *buffer = tsr__alloc(t->session, (size_t)m->size + 1);
    if (!buffer)
        return TSR_NOMEM;
    tsr_status st;
    if (unpack(bytes, buffer, (size_t)m->size) && crc_of(0, buffer, (size_t)m->size) == m->crc)
        st = tsr__npy_read(t, name, file, (struct str){buffer, (size_t)m->size});
    else
        st = damaged(t->session, file, name, "a member of the archive cannot be unpacked");
    tsr__free(t->session, buffer, (size_t)m->size + 1);
    return st;
}

tsr_status tsr__npz_read(tsr_tensors *t, const char *file)
{
    struct mapped map;
    tsr_status st = tsr__file_map(t->session, file, &map);
    if (st != TSR_OK)
        return st;
    uint64_t at = 0, n = 0;
    if (!find_directory(map.bytes, &at, &n) || n > MAX_MEMBERS)
        st = damaged(t->session, file, STR(""), "this is not an .npz file");
    for (uint64_t i = 0; i < n && st == TSR_OK; i++) {
        struct member m;
        if (!read_entry(map.bytes, &at, &m))
            st = damaged(t->session, file, STR(""), "the directory of the archive is damaged");
        else
            st = read_member(t, file, map.bytes, &m);
    }
    tsr__file_unmap(&map);
    return st;
}

// ---- writing -----------------------------------------------------------------------------------

struct writer {
    struct outfile out;
    char buffer[128];
    size_t n;
};

static void put(struct writer *w, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        w->buffer[w->n++] = (char)(v >> 8 * i & 255);
}

static void flush(struct writer *w)
{
    tsr__out_write(&w->out, w->buffer, w->n);
    w->n = 0;
}

static uint64_t small(uint64_t v)
{
    return v < LIMIT32 ? v : LIMIT32;
}

// What local and central headers have in common, from the version needed to the length of the extra field.
static void put_common(struct writer *w, const struct member *m, size_t extra)
{
    put(w, extra ? 45 : 20, 2);
    put(w, 0x800, 2); // names are UTF-8
    put(w, 0, 2);     // stored
    put(w, 0, 2);
    put(w, DATE, 2);
    put(w, m->crc, 4);
    put(w, small(m->size), 4);
    put(w, small(m->size), 4);
    put(w, m->name.n + 4, 2);
    put(w, extra, 2);
}

static void write_member(struct writer *w, const struct npy_image *x, struct member *m)
{
    m->size = x->n_head + x->bytes;
    m->at = w->out.offset;
    m->crc = crc_of(crc_of(0, x->head, x->n_head), x->data, x->bytes);
    size_t extra = m->size >= LIMIT32 ? 20 : 0;
    put(w, 0x04034b50, 4);
    put_common(w, m, extra);
    flush(w);
    tsr__out_write(&w->out, m->name.p, m->name.n);
    tsr__out_write(&w->out, ".npy", 4);
    if (extra) {
        put(w, 1, 2);
        put(w, 16, 2);
        put(w, m->size, 8);
        put(w, m->size, 8);
        flush(w);
    }
    tsr__out_write(&w->out, x->head, x->n_head);
    tsr__out_write(&w->out, x->data, x->bytes);
}

static void write_entry(struct writer *w, const struct member *m)
{
    bool big = m->size >= LIMIT32, far = m->at >= LIMIT32;
    size_t extra = (big ? 16 : 0) + (far ? 8 : 0);
    put(w, 0x02014b50, 4);
    put(w, 45, 2);
    put_common(w, m, extra ? extra + 4 : 0);
    put(w, 0, 2 + 2 + 2); // comment, disk, attributes
    put(w, 0, 4);
    put(w, small(m->at), 4);
    flush(w);
    tsr__out_write(&w->out, m->name.p, m->name.n);
    tsr__out_write(&w->out, ".npy", 4);
    if (!extra)
        return;
    put(w, 1, 2);
    put(w, extra, 2);
    if (big) {
        put(w, m->size, 8);
        put(w, m->size, 8);
    }
    if (far)
        put(w, m->at, 8);
    flush(w);
}

static void write_end(struct writer *w, uint64_t at, uint64_t n)
{
    uint64_t bytes = w->out.offset - at, end = w->out.offset;
    if (at >= LIMIT32 || n >= 0xFFFF || bytes >= LIMIT32) {
        put(w, 0x06064b50, 4);
        put(w, END64_BYTES - 12, 8);
        put(w, 45, 2);
        put(w, 45, 2);
        put(w, 0, 4);
        put(w, 0, 4);
        put(w, n, 8);
        put(w, n, 8);
        put(w, bytes, 8);
        put(w, at, 8);
        put(w, 0x07064b50, 4);
        put(w, 0, 4);
        put(w, end, 8);
        put(w, 1, 4);
        flush(w);
    }
    put(w, 0x06054b50, 4);
    put(w, 0, 4);
    put(w, n < 0xFFFF ? n : 0xFFFF, 2);
    put(w, n < 0xFFFF ? n : 0xFFFF, 2);
    put(w, small(bytes), 4);
    put(w, small(at), 4);
    put(w, 0, 2);
    flush(w);
}

static void note_raw(const tsr_tensors *t, const struct tensor *x)
{
    struct place at = PLACE_NONE;
    at.value = str_of(x->name);
    if (x->type != TSR_STRING && !tsr__npy_has(x->type))
        tsr__diag(t->session, DIAG_tensor_raw, &at, NULL, "%s is written as raw bits",
                  tsr_dtype_name(x->type));
}

// The tensors of a set, those of sequences too, as NAME.0, NAME.1, ...; an optional without a value is left out. With
// members NULL they are counted.
static size_t leaves(struct arena *a, const tsr_tensors *t, struct member *members,
                     const struct tensor **out)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct tensor *x = t->at[i];
        for (size_t k = 0; k < (x->sequence ? x->sequence->n : x->rank >= 0); k++, n++) {
            if (!members)
                continue;
            out[n] = x->sequence ? x->sequence->at[k] : x;
            members[n].name =
                x->sequence ? tsr__arena_printf(a, "%s.%zu", x->name, k) : str_of(x->name);
        }
    }
    return n;
}

tsr_status tsr__npz_save(const tsr_tensors *t, const char *path)
{
    struct writer w = {0};
    struct arena a;
    tsr__arena_init(&a, t->session);
    size_t n = leaves(&a, t, NULL, NULL);
    struct member *members = ARENA_ARRAY(&a, struct member, n + 1);
    const struct tensor **list = ARENA_ARRAY(&a, const struct tensor *, n + 1);
    struct npy_image *image = ARENA_NEW(&a, struct npy_image);
    if (!a.failed)
        leaves(&a, t, members, list);
    tsr_status st = a.failed ? TSR_NOMEM : tsr__out_open(t->session, path, &w.out);
    if (st != TSR_OK) {
        tsr__arena_free(&a);
        return st;
    }
    for (size_t i = 0; i < n && st == TSR_OK; i++) {
        note_raw(t, list[i]);
        st = tsr__npy_image(&a, list[i], image);
        if (st == TSR_OK)
            write_member(&w, image, &members[i]);
    }
    uint64_t directory = w.out.offset;
    for (size_t i = 0; i < n && st == TSR_OK; i++)
        write_entry(&w, &members[i]);
    write_end(&w, directory, n);
    if (st == TSR_OK)
        st = tsr__out_commit(&w.out);
    else
        tsr__out_abort(&w.out);
    tsr__arena_free(&a);
    return st;
}
