// SPDX-License-Identifier: Apache-2.0
// write.c - ONNX bytes as a rope: spans of the old file where nothing changed, encoded chunks
// elsewhere.
//
// Encoded bytes go into chunks of the arena and become pieces of the rope; a piece that continues
// the last one in memory is joined to it. A nested message reserves one byte for its length; a
// longer length moves the content up where that lies in one chunk, or is put between two pieces.
// Knows fields, not messages.
#include "wire/internal.h"

// Chunks are as large as what was written so far, within these bounds.
#define FIRST_BYTES  ((size_t)1 << 10)
#define CHUNK_BYTES  ((size_t)4 << 20)
#define VIEW_BYTES   ((size_t)2 << 10)   // texts from here on are referred to, not copied
#define SMALL_BYTES  ((size_t)512)       // spans below are copied: a piece costs more than they do
#define SPLICE_BYTES ((size_t)64 << 10)  // messages from here on are not copied for a new name
#define COPY_BYTES   ((size_t)256 << 10) // spans of the map from here on are copied by the kernel

void tsr__rope_init(struct rope *r, struct arena *a)
{
    *r = (struct rope){.arena = a};
}

// Makes span the end of the pieces; the open run is closed before.
static void append(struct rope *r, const char *p, size_t n)
{
    struct str *last = r->pieces.n ? &r->pieces.at[r->pieces.n - 1] : NULL;
    if (last && last->p + last->n == p) {
        last->n += n;
    } else {
        struct str *piece = vec_push(r->arena, &r->pieces);
        if (!piece)
            return;
        *piece = (struct str){p, n};
    }
    r->bytes += n;
}

// Makes the open run a piece; the messages that were begun in it have their length there.
static void close_run(struct rope *r)
{
    if (r->run == r->at)
        return;
    append(r, r->run, (size_t)(r->at - r->run));
    r->run = r->at;
    for (size_t i = r->open.n; i-- > 0 && r->open.at[i].piece == SIZE_MAX;)
        r->open.at[i].piece = r->pieces.n - 1;
}

static bool new_chunk(struct rope *r, size_t n)
{
    uint64_t bytes = rope_size(r);
    bytes = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
    bytes = bytes > FIRST_BYTES ? bytes : FIRST_BYTES;
    bytes = bytes > n ? bytes : n;
    close_run(r);
    char *chunk = tsr__arena_raw(r->arena, (size_t)bytes);
    if (!chunk)
        return false;
    r->run = r->at = chunk;
    r->end = chunk + bytes;
    return true;
}

// Room for n encoded bytes at r->at, or false once memory has run out.
static inline bool room(struct rope *r, size_t n)
{
    return TSR_LIKELY((size_t)(r->end - r->at) >= n && r->at) || new_chunk(r, n);
}

void tsr__rope_copy(struct rope *r, struct str bytes)
{
    if (bytes.n == 0 || !room(r, bytes.n))
        return;
    memcpy(r->at, bytes.p, bytes.n);
    r->at += bytes.n;
}

void tsr__rope_view(struct rope *r, struct str span)
{
    if (span.n == 0)
        return;
    if (span.n < SMALL_BYTES && r->run != r->at) {
        tsr__rope_copy(r, span);
        return;
    }
    close_run(r);
    append(r, span.p, span.n);
}

static inline char *put_tag(char *p, uint32_t number, enum wire_type type)
{
    return varint_put(p, (uint64_t)number << 3 | type);
}

void tsr__rope_int(struct rope *r, uint32_t number, int64_t value)
{
    if (room(r, TAG_MAX + VARINT_MAX))
        r->at = varint_put(put_tag(r->at, number, WIRE_VARINT), (uint64_t)value);
}

void tsr__rope_float(struct rope *r, uint32_t number, float value)
{
    uint32_t bits;
    if (!room(r, TAG_MAX + sizeof bits))
        return;
    memcpy(&bits, &value, sizeof bits);
    char *p = put_tag(r->at, number, WIRE_I32);
    for (int i = 0; i < 4; i++)
        *p++ = (char)(unsigned char)(bits >> (8 * i));
    r->at = p;
}

void tsr__rope_bytes(struct rope *r, uint32_t number, struct str value)
{
    bool copy = value.n < VIEW_BYTES;
    if (!room(r, TAG_MAX + VARINT_MAX + (copy ? value.n : 0)))
        return;
    char *p = varint_put(put_tag(r->at, number, WIRE_LEN), value.n);
    if (copy && value.n) {
        memcpy(p, value.p, value.n);
        p += value.n;
    }
    r->at = p;
    if (!copy)
        tsr__rope_view(r, value);
}

void tsr__rope_ints(struct rope *r, uint32_t number, const int64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsr__rope_int(r, number, v[i]);
}

void tsr__rope_packed(struct rope *r, uint32_t number, const int64_t *v, size_t n)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += varint_size((uint64_t)v[i]);
    if (!room(r, TAG_MAX + VARINT_MAX))
        return;
    r->at = varint_put(put_tag(r->at, number, WIRE_LEN), bytes);
    for (size_t i = 0; i < n && room(r, VARINT_MAX); i++)
        r->at = varint_put(r->at, (uint64_t)v[i]);
}

// ---- nested messages ---------------------------------------------------------------------------

size_t tsr__rope_begin(struct rope *r, uint32_t number)
{
    size_t mark = r->open.n;
    struct rope_mark *m = room(r, TAG_MAX + 1) ? vec_push(r->arena, &r->open) : NULL;
    if (!m)
        return mark;
    char *slot = put_tag(r->at, number, WIRE_LEN);
    *slot = 0;
    r->at = slot + 1;
    *m = (struct rope_mark){SIZE_MAX, slot, rope_size(r)};
    return mark;
}

// Puts the length between the piece that ends before the slot and the rest, which becomes its own piece.
static void insert_length(struct rope *r, const struct rope_mark *m, uint64_t length)
{
    char *start = arena_get(r->arena, VARINT_MAX, 1);
    struct str *spare = start ? vec_push(r->arena, &r->pieces) : NULL;
    spare = spare ? vec_push(r->arena, &r->pieces) : NULL;
    if (!spare)
        return;
    struct str *head = &r->pieces.at[m->piece];
    struct str rest = {m->slot + 1, (size_t)(head->p + head->n - (m->slot + 1))};
    size_t behind = r->pieces.n - 2 - (m->piece + 1);
    size_t gap = rest.n ? 2 : 1;
    memmove(head + 1 + gap, head + 1, behind * sizeof *head);
    head->n = (size_t)(m->slot - head->p);
    head[1] = (struct str){start, (size_t)(varint_put(start, length) - start)};
    if (rest.n)
        head[2] = rest;
    else
        r->pieces.n--;
    r->bytes += head[1].n - 1;
}

void tsr__rope_end(struct rope *r, size_t mark)
{
    if (r->arena->failed || mark >= r->open.n)
        return;
    const struct rope_mark *m = &r->open.at[mark];
    uint64_t length = rope_size(r) - m->bytes;
    size_t extra = varint_size(length) - 1;
    if (extra == 0) {
        *m->slot = (char)length;
    } else {
        if (m->piece == SIZE_MAX && (size_t)(r->end - r->at) < extra)
            close_run(r);
        if (m->piece == SIZE_MAX) {
            memmove(m->slot + 1 + extra, m->slot + 1, (size_t)length);
            varint_put(m->slot, length);
            r->at += extra;
        } else {
            close_run(r);
            insert_length(r, m, length);
        }
    }
    r->open.n = mark;
}

// ---- rewriting ---------------------------------------------------------------------------------

// The parts of one managed number while origin is walked. Members: the fields of that number in
// origin.
struct lane {
    uint32_t first, n; // its parts are order[first .. first + n)
    uint32_t next;     // parts before it are written
    uint32_t kept;     // first part from next on that is a span of origin (looked up lazily)
    uint32_t left;     // members of origin still to come
    bool moved;        // kept parts stand in another order than in origin
};

#define FEW_PARTS 64 // their order fits on the stack

struct rewrite {
    struct rope *rope;
    struct str origin;
    const struct wire_part *parts;
    uint32_t *order;  // indices of parts: by number, else as the caller has them
    struct str same;  // kept bytes that are not written yet
    uint32_t managed; // bit set of the numbers that have a lane
    uint32_t absent;  // of these, the ones that origin has no member of
    struct lane lanes[WIRE_MAX_NUMBER + 1]; // by number; only the managed ones are set
    uint32_t few[FEW_PARTS];
};

// True for a part that is a span of origin.
static bool is_kept(const struct rewrite *w, const struct wire_part *part)
{
    return !part->emit && !part->text &&
           (uintptr_t)part->span.p - (uintptr_t)w->origin.p < w->origin.n;
}

static struct lane *lane_of(struct rewrite *w, uint32_t number)
{
    return number <= WIRE_MAX_NUMBER && w->managed >> number & 1 ? &w->lanes[number] : NULL;
}

static const struct wire_part *part_at(const struct rewrite *w, const struct lane *l, uint32_t i)
{
    return &w->parts[w->order[l->first + i]];
}

static void write_same(struct rewrite *w)
{
    tsr__rope_view(w->rope, w->same);
    w->same.n = 0;
}

// Bytes of origin that stay; those that adjoin are written together.
static void keep(struct rewrite *w, struct str span)
{
    if (w->same.n && w->same.p + w->same.n == span.p) {
        w->same.n += span.n;
        return;
    }
    write_same(w);
    w->same = span;
}

// Writes the parts of l before `end` that are not written yet.
static void write_until(struct rewrite *w, struct lane *l, uint32_t end)
{
    while (l->next < end) {
        const struct wire_part *part = part_at(w, l, l->next++);
        if (is_kept(w, part)) {
            keep(w, part->span);
            continue;
        }
        write_same(w);
        if (part->emit)
            part->emit(w->rope, part->data);
        else if (part->text)
            tsr__rope_bytes(w->rope, part->number, part->span);
        else
            tsr__rope_view(w->rope, part->span);
    }
}

// Sorts the parts into lanes and finds the lanes whose kept parts are out of order.
static void sort_parts(struct rewrite *w, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++)
        w->lanes[w->parts[i].number].n++;
    uint32_t first = 0;
    for (uint32_t bits = w->managed; bits; bits &= bits - 1) {
        struct lane *l = &w->lanes[__builtin_ctz(bits)];
        l->first = first;
        first += l->n;
        l->n = 0;
    }
    for (size_t i = 0; i < n_parts; i++) {
        struct lane *l = &w->lanes[w->parts[i].number];
        w->order[l->first + l->n++] = (uint32_t)i;
    }
    for (uint32_t bits = w->managed; bits; bits &= bits - 1) {
        struct lane *l = &w->lanes[__builtin_ctz(bits)];
        const char *before = NULL;
        for (uint32_t k = 0; k < l->n; k++) {
            const struct wire_part *part = part_at(w, l, k);
            if (!is_kept(w, part))
                continue;
            l->moved |= before && part->span.p <= before;
            before = part->span.p;
        }
    }
}

static void count_members(struct rewrite *w)
{
    struct wire_cursor c = wire_over(w->origin);
    struct wire_field f;
    w->absent = w->managed;
    while (tsr__wire_next(&c, &f)) {
        struct lane *l = lane_of(w, f.number);
        if (!l)
            continue;
        l->left++;
        w->absent &= ~((uint32_t)1 << f.number);
    }
}

// A member of a managed number, as it stands in origin.
static void rewrite_member(struct rewrite *w, struct lane *l, struct str whole)
{
    l->left--;
    if (l->moved || l->left == 0) {
        write_until(w, l, l->n);
        return;
    }
    if (l->kept < l->next)
        l->kept = l->next;
    while (l->kept < l->n && !is_kept(w, part_at(w, l, l->kept)))
        l->kept++;
    if (l->kept < l->n && part_at(w, l, l->kept)->span.p == whole.p)
        write_until(w, l, l->kept + 1);
    else if (l->next < l->kept)
        write_until(w, l,
                    l->next + 1); // gone from here, and something new waits: it takes the place
}

// Writes the numbers below `below` that origin has no member of.
static void write_absent(struct rewrite *w, uint32_t below)
{
    while (w->absent && (uint32_t)__builtin_ctz(w->absent) < below) {
        struct lane *l = &w->lanes[__builtin_ctz(w->absent)];
        write_until(w, l, l->n);
        w->absent &= w->absent - 1;
    }
}

void tsr__rope_rewrite(struct rope *r, struct str origin, const uint32_t *managed, size_t n_managed,
                       const struct wire_part *parts, size_t n_parts)
{
    struct rewrite w; // not initialised as a whole: this runs once for each changed node
    w.rope = r;
    w.origin = origin;
    w.parts = parts;
    w.managed = 0;
    w.same = (struct str){"", 0};
    w.order = n_parts <= FEW_PARTS ? w.few : ARENA_ARRAY(r->arena, uint32_t, n_parts);
    if (!w.order)
        return;
    for (size_t i = 0; i < n_managed; i++) {
        w.managed |= (uint32_t)1 << managed[i];
        w.lanes[managed[i]] = (struct lane){0};
    }
    sort_parts(&w, n_parts);
    count_members(&w);
    struct wire_cursor c = wire_over(origin);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        write_absent(&w, f.number);
        struct lane *l = lane_of(&w, f.number);
        if (l)
            rewrite_member(&w, l, f.whole);
        else
            keep(&w, f.whole);
    }
    write_absent(&w, UINT32_MAX);
    write_same(&w);
}

// ---- exchanging texts --------------------------------------------------------------------------

// Bytes of a text field's tag and length, nearly always one each.
static inline size_t head_size(uint32_t number, size_t length)
{
    if (TSR_LIKELY(number < 16 && length < 128))
        return 2;
    return varint_size((uint64_t)number << 3) + varint_size(length);
}

static inline char *put_head(char *p, uint32_t number, size_t length)
{
    if (TSR_LIKELY(number < 16 && length < 128)) {
        p[0] = (char)(number << 3 | WIRE_LEN);
        p[1] = (char)length;
        return p + 2;
    }
    return varint_put(put_tag(p, number, WIRE_LEN), length);
}

static inline char *put_bytes(char *p, const char *from, size_t n)
{
    if (n)
        memcpy(p, from, n);
    return p + n;
}

void tsr__rope_splice(struct rope *r, uint32_t number, struct str origin,
                      const struct wire_splice *s, size_t n)
{
    uint64_t length = origin.n;
    for (size_t i = 0; i < n; i++)
        length += head_size(s[i].number, s[i].text.n) + s[i].text.n - s[i].old.n;
    if (length >= SPLICE_BYTES) { // rare, and too much to copy
        size_t mark = tsr__rope_begin(r, number);
        for (size_t i = 0; i <= n; i++) {
            const char *from = i ? s[i - 1].old.p + s[i - 1].old.n : origin.p;
            const char *to = i < n ? s[i].old.p : origin.p + origin.n;
            tsr__rope_view(r, (struct str){from, (size_t)(to - from)});
            if (i < n)
                tsr__rope_bytes(r, s[i].number, s[i].text);
        }
        tsr__rope_end(r, mark);
        return;
    }
    if (!room(r, TAG_MAX + VARINT_MAX + (size_t)length))
        return;
    char *p = varint_put(put_tag(r->at, number, WIRE_LEN), length);
    const char *from = origin.p;
    for (size_t i = 0; i < n; i++) {
        p = put_bytes(p, from, (size_t)(s[i].old.p - from));
        p = put_head(p, s[i].number, s[i].text.n);
        p = put_bytes(p, s[i].text.p, s[i].text.n);
        from = s[i].old.p + s[i].old.n;
    }
    r->at = put_bytes(p, from, (size_t)(origin.p + origin.n - from));
}

// ---- giving out --------------------------------------------------------------------------------

static struct str last_run(const struct rope *r)
{
    return (struct str){r->run, (size_t)(r->at - r->run)};
}

void tsr__rope_write(const struct rope *r, struct outfile *o, struct str map, int fd)
{
    for (size_t i = 0; i < r->pieces.n; i++) {
        struct str piece = r->pieces.at[i];
        uintptr_t offset = (uintptr_t)piece.p - (uintptr_t)map.p;
        if (fd >= 0 && piece.n >= COPY_BYTES && offset < map.n && piece.n <= map.n - offset)
            tsr__out_copy(o, fd, offset, piece.n);
        else
            tsr__out_write(o, piece.p, piece.n);
    }
    struct str run = last_run(r);
    if (run.n)
        tsr__out_write(o, run.p, run.n);
}

void tsr__rope_read(const struct rope *r, char *out)
{
    for (size_t i = 0; i < r->pieces.n; i++) {
        memcpy(out, r->pieces.at[i].p, r->pieces.at[i].n);
        out += r->pieces.at[i].n;
    }
    struct str run = last_run(r);
    if (run.n)
        memcpy(out, run.p, run.n);
}

struct str tsr__rope_flat(const struct rope *r, struct arena *a)
{
    struct str run = last_run(r);
    if (r->arena->failed)
        return (struct str){0};
    if (r->pieces.n == 0)
        return run;
    if (r->pieces.n == 1 && run.n == 0)
        return r->pieces.at[0];
    size_t n = (size_t)rope_size(r);
    char *p = arena_get(a, n + 1, 1);
    if (!p)
        return (struct str){0};
    tsr__rope_read(r, p);
    return (struct str){p, n};
}
