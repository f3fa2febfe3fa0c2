// SPDX-License-Identifier: Apache-2.0
// write.c - ropes: lists of references to an old file and of newly encoded bytes.
//
// Encoded bytes are written to chunks in the arena, which become pieces of the rope. A piece that
// continues the last one in memory is joined with it.
//
//     Example: a model of 1 GB, in which one node of 300 bytes got an attribute of 20 bytes,
//     becomes: [file: before the graph] [tag and new length of the graph] [file: up to the node]
//     [the node] [file: the rest]. Only the node and the length take memory.
//
// The length of a message precedes its contents but is known only at its end. tsr__rope_begin
// reserves one byte for it. If tsr__rope_end needs more, it moves the contents if they are in one
// chunk; otherwise it inserts a piece. Out of memory is recorded in the arena and not checked here.
#include "wire/internal.h"

// A new chunk is as large as all that was written so far, within bounds.
#define FIRST_BYTES  ((size_t)1 << 10)
#define CHUNK_BYTES  ((size_t)4 << 20)
#define VIEW_BYTES   ((size_t)2 << 10)   // longer strings are referred to, not copied
#define SMALL_BYTES  ((size_t)512)       // shorter spans are copied, because a piece costs more
#define SPLICE_BYTES ((size_t)64 << 10)  // longer messages are not copied to replace a name
#define COPY_BYTES   ((size_t)256 << 10) // longer spans of the file are copied by the kernel

void tsr__rope_init(struct rope *rope, struct arena *arena)
{
    *rope = (struct rope){.arena = arena};
}

// Appends n bytes at p to the pieces, or to the last piece if they follow it in memory. The bytes
// in [run, at) must be a piece already (close_run).
static void append(struct rope *rope, const char *p, size_t n)
{
    struct str *last = rope->pieces.n ? &rope->pieces.at[rope->pieces.n - 1] : NULL;
    if (last && last->p + last->n == p) {
        last->n += n;
    } else {
        if (!vec_add(rope->arena, &rope->pieces, (struct str){p, n}))
            return;
    }
    rope->bytes += n;
}

// Makes a piece of the bytes in [run, at), and sets `piece` of the marks that point to them.
static void close_run(struct rope *rope)
{
    if (rope->run == rope->at)
        return;
    append(rope, rope->run, (size_t)(rope->at - rope->run));
    rope->run = rope->at;
    for (size_t i = rope->open.n; i-- > 0 && rope->open.at[i].piece == SIZE_MAX;)
        rope->open.at[i].piece = rope->pieces.n - 1;
}

// Starts a new chunk of at least n bytes. The rest of the old chunk stays unused.
static bool new_chunk(struct rope *rope, size_t n)
{
    size_t bytes = size_max(size_min((size_t)rope_size(rope), CHUNK_BYTES), FIRST_BYTES);
    bytes = size_max(bytes, n);
    close_run(rope);
    char *chunk = tsr__arena_raw(rope->arena, bytes);
    if (!chunk)
        return false;
    rope->run = rope->at = chunk;
    rope->end = chunk + bytes;
    return true;
}

// Reserves n bytes at rope->at. Returns false if out of memory.
static inline bool reserve(struct rope *rope, size_t n)
{
    return TSR_LIKELY((size_t)(rope->end - rope->at) >= n && rope->at) || new_chunk(rope, n);
}

void tsr__rope_copy(struct rope *rope, struct str bytes)
{
    if (bytes.n == 0 || !reserve(rope, bytes.n))
        return;
    memcpy(rope->at, bytes.p, bytes.n);
    rope->at += bytes.n;
}

// Adds a span without copying it. Copies a short span if encoded bytes precede it, so that it is
// part of the same piece.
void tsr__rope_view(struct rope *rope, struct str span)
{
    if (span.n == 0)
        return;
    if (span.n < SMALL_BYTES && rope->run != rope->at) {
        tsr__rope_copy(rope, span);
        return;
    }
    close_run(rope);
    append(rope, span.p, span.n);
}

static inline char *put_tag(char *p, uint32_t number, enum wire_type type)
{
    return varint_put(p, (uint64_t)number << 3 | type);
}

void tsr__rope_int(struct rope *rope, uint32_t number, int64_t value)
{
    if (reserve(rope, TAG_MAX + VARINT_MAX))
        rope->at = varint_put(put_tag(rope->at, number, WIRE_VARINT), (uint64_t)value);
}

void tsr__rope_float(struct rope *rope, uint32_t number, float value)
{
    uint32_t bits;
    if (!reserve(rope, TAG_MAX + sizeof bits))
        return;
    memcpy(&bits, &value, sizeof bits);
    char *p = put_tag(rope->at, number, WIRE_I32);
    for (int i = 0; i < 4; i++)
        *p++ = (char)(unsigned char)(bits >> (8 * i));
    rope->at = p;
}

void tsr__rope_bytes(struct rope *rope, uint32_t number, struct str value)
{
    bool copy = value.n < VIEW_BYTES;
    if (!reserve(rope, TAG_MAX + VARINT_MAX + (copy ? value.n : 0)))
        return;
    char *p = varint_put(put_tag(rope->at, number, WIRE_LEN), value.n);
    if (copy && value.n) {
        memcpy(p, value.p, value.n);
        p += value.n;
    }
    rope->at = p;
    if (!copy)
        tsr__rope_view(rope, value);
}

void tsr__rope_ints(struct rope *rope, uint32_t number, const int64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tsr__rope_int(rope, number, v[i]);
}

// ---- nested messages ---------------------------------------------------------------------------

// Begins a nested message. The mark is the nesting depth, because messages end in reverse order.
size_t tsr__rope_begin(struct rope *rope, uint32_t number)
{
    size_t mark = rope->open.n;
    struct rope_mark *rope_mark = NULL;
    if (reserve(rope, TAG_MAX + 1))
        rope_mark = vec_push(rope->arena, &rope->open);
    if (!rope_mark)
        return mark;
    char *slot = put_tag(rope->at, number, WIRE_LEN);
    *slot = 0;
    rope->at = slot + 1;
    *rope_mark = (struct rope_mark){SIZE_MAX, slot, rope_size(rope)};
    return mark;
}

// Splits the piece that contains the slot into three: the bytes before the slot, the length, and
// the bytes after the slot.
static void insert_length(struct rope *rope, const struct rope_mark *mark, uint64_t length)
{
    char *start = arena_get(rope->arena, VARINT_MAX, 1);
    struct str *spare = start ? vec_push(rope->arena, &rope->pieces) : NULL;
    if (spare)
        spare = vec_push(rope->arena, &rope->pieces);
    if (!spare)
        return;
    struct str *head = &rope->pieces.at[mark->piece];
    struct str rest = {mark->slot + 1, (size_t)(head->p + head->n - (mark->slot + 1))};
    size_t behind = rope->pieces.n - 2 - (mark->piece + 1);
    size_t gap = rest.n ? 2 : 1;
    memmove(head + 1 + gap, head + 1, behind * sizeof *head);
    head->n = (size_t)(mark->slot - head->p);
    head[1] = (struct str){start, (size_t)(varint_put(start, length) - start)};
    if (rest.n)
        head[2] = rest;
    else
        rope->pieces.n--;
    rope->bytes += head[1].n - 1;
}

// Writes the length of a nested message. One byte was reserved for it, which is enough for lengths
// up to 127. For a longer length the contents are moved, if they are in the current chunk and it
// has space. Otherwise the length is inserted as a piece of its own.
void tsr__rope_end(struct rope *rope, size_t mark)
{
    if (rope->arena->failed || mark >= rope->open.n)
        return;
    const struct rope_mark *rope_mark = &rope->open.at[mark];
    uint64_t length = rope_size(rope) - rope_mark->bytes;
    size_t extra = varint_size(length) - 1;
    if (extra == 0) {
        *rope_mark->slot = (char)length;
    } else {
        if (rope_mark->piece == SIZE_MAX && (size_t)(rope->end - rope->at) < extra)
            close_run(rope);
        if (rope_mark->piece == SIZE_MAX) {
            memmove(rope_mark->slot + 1 + extra, rope_mark->slot + 1, (size_t)length);
            varint_put(rope_mark->slot, length);
            rope->at += extra;
        } else {
            close_run(rope);
            insert_length(rope, rope_mark, length);
        }
    }
    rope->open.n = mark;
}

// ---- rewriting ---------------------------------------------------------------------------------

// The parts of one managed number (see tsr__rope_rewrite) while origin is read from start to end.
// The members of a lane are the fields of origin with this number.
struct lane {
    uint32_t first, n; // its parts are order[first .. first + n)
    uint32_t next;     // first part that is not yet written
    uint32_t kept;     // first part from `next` on that is a field of origin (searched on demand)
    uint32_t left;     // number of members that are not yet read
    bool moved;        // the fields of origin are in another order than in origin
};

#define FEW_PARTS 64 // up to this number the order is on the stack

struct rewrite {
    struct rope *rope;
    struct str origin;
    const struct wire_part *parts;
    uint32_t *order;  // indices of parts, stably sorted by number
    struct str same;  // bytes of origin that are not yet written
    uint32_t managed; // bit set of the managed numbers
    uint32_t absent;  // bit set of managed numbers without members whose parts are not yet written
    struct lane lanes[WIRE_MAX_NUMBER + 1]; // by number; only the managed ones are set
    uint32_t few[FEW_PARTS];
};

// True if the part is an unchanged field of the original message, `rewrite->origin`.
static bool is_kept(const struct rewrite *rewrite, const struct wire_part *part)
{
    return !part->emit && !part->text &&
           (uintptr_t)part->span.p - (uintptr_t)rewrite->origin.p < rewrite->origin.n;
}

// Returns the lane (the parts with one field number); NULL if the number is not managed (written
// from objects). Numbers above WIRE_MAX_NUMBER are never managed.
static struct lane *lane_of(struct rewrite *rewrite, uint32_t number)
{
    if (number <= WIRE_MAX_NUMBER && rewrite->managed >> number & 1)
        return &rewrite->lanes[number];
    return NULL;
}

static const struct wire_part *part_at(const struct rewrite *rewrite, const struct lane *lane,
                                       uint32_t i)
{
    return &rewrite->parts[rewrite->order[lane->first + i]];
}

static void write_same(struct rewrite *rewrite)
{
    tsr__rope_view(rewrite->rope, rewrite->same);
    rewrite->same.n = 0;
}

// Adds a span of the original message (`rewrite->origin`) to `rewrite->same`, the bytes to write
// unchanged. Writes the old contents of `same` first if the span does not follow them directly.
static void keep(struct rewrite *rewrite, struct str span)
{
    if (rewrite->same.n && rewrite->same.p + rewrite->same.n == span.p) {
        rewrite->same.n += span.n;
        return;
    }
    write_same(rewrite);
    rewrite->same = span;
}

// Writes the parts before `end` that are not yet written.
static void write_until(struct rewrite *rewrite, struct lane *lane, uint32_t end)
{
    while (lane->next < end) {
        const struct wire_part *part = part_at(rewrite, lane, lane->next++);
        if (is_kept(rewrite, part)) {
            keep(rewrite, part->span);
            continue;
        }
        write_same(rewrite);
        if (part->emit)
            part->emit(rewrite->rope, part->number, part->data);
        else if (part->text)
            tsr__rope_bytes(rewrite->rope, part->number, part->span);
        else
            tsr__rope_view(rewrite->rope, part->span);
    }
}

// Sorts the parts into lanes and finds out which lanes are reordered.
static void sort_parts(struct rewrite *rewrite, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++)
        rewrite->lanes[rewrite->parts[i].number].n++;
    uint32_t first = 0;
    for (uint32_t bits = rewrite->managed; bits; bits &= bits - 1) {
        struct lane *lane = &rewrite->lanes[__builtin_ctz(bits)];
        lane->first = first;
        first += lane->n;
        lane->n = 0;
    }
    for (size_t i = 0; i < n_parts; i++) {
        struct lane *lane = &rewrite->lanes[rewrite->parts[i].number];
        rewrite->order[lane->first + lane->n++] = (uint32_t)i;
    }
    for (uint32_t bits = rewrite->managed; bits; bits &= bits - 1) {
        struct lane *lane = &rewrite->lanes[__builtin_ctz(bits)];
        const char *before = NULL;
        for (uint32_t k = 0; k < lane->n; k++) {
            const struct wire_part *part = part_at(rewrite, lane, k);
            if (!is_kept(rewrite, part))
                continue;
            lane->moved |= before && part->span.p <= before;
            before = part->span.p;
        }
    }
}

// Counts the fields of origin that belong to each lane, because at the place of the last one all
// remaining parts are written.
static void count_members(struct rewrite *rewrite)
{
    struct wire_cursor cursor = wire_over(rewrite->origin);
    struct wire_field field;
    rewrite->absent = rewrite->managed;
    while (tsr__wire_next(&cursor, &field)) {
        struct lane *lane = lane_of(rewrite, field.number);
        if (!lane)
            continue;
        lane->left++;
        rewrite->absent &= ~((uint32_t)1 << field.number);
    }
}

// Writes parts at the place of a field of origin. Example: origin has A B C, the parts are A, new,
// C. At A, A is written; at B, which is dropped, the new part; at C, C. With parts C, A (reordered)
// both are written at the place of A.
static void rewrite_member(struct rewrite *rewrite, struct lane *lane, struct str whole)
{
    lane->left--;
    if (lane->moved || lane->left == 0) {
        write_until(rewrite, lane, lane->n);
        return;
    }
    if (lane->kept < lane->next)
        lane->kept = lane->next;
    while (lane->kept < lane->n && !is_kept(rewrite, part_at(rewrite, lane, lane->kept)))
        lane->kept++;
    if (lane->kept < lane->n && part_at(rewrite, lane, lane->kept)->span.p == whole.p)
        write_until(rewrite, lane, lane->kept + 1);
    else if (lane->next < lane->kept)
        write_until(rewrite, lane, lane->next + 1); // a new part takes the place
}

// Writes the parts of managed numbers less than `below` that have no fields in origin.
static void write_absent(struct rewrite *rewrite, uint32_t below)
{
    while (rewrite->absent && (uint32_t)__builtin_ctz(rewrite->absent) < below) {
        struct lane *lane = &rewrite->lanes[__builtin_ctz(rewrite->absent)];
        write_until(rewrite, lane, lane->n);
        rewrite->absent &= rewrite->absent - 1;
    }
}

void tsr__rope_rewrite(struct rope *rope, struct str origin, const uint32_t *managed,
                       size_t n_managed, const struct wire_part *parts, size_t n_parts)
{
    // not zeroed, because it is large and this is called for each changed node
    struct rewrite rewrite;
    rewrite.rope = rope;
    rewrite.origin = origin;
    rewrite.parts = parts;
    rewrite.managed = 0;
    rewrite.same = (struct str){"", 0};
    if (n_parts <= FEW_PARTS)
        rewrite.order = rewrite.few;
    else
        rewrite.order = ARENA_ARRAY(rope->arena, uint32_t, n_parts);
    if (!rewrite.order)
        return;
    for (size_t i = 0; i < n_managed; i++) {
        rewrite.managed |= (uint32_t)1 << managed[i];
        rewrite.lanes[managed[i]] = (struct lane){0};
    }
    sort_parts(&rewrite, n_parts);
    count_members(&rewrite);
    struct wire_cursor cursor = wire_over(origin);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        write_absent(&rewrite, field.number);
        struct lane *lane = lane_of(&rewrite, field.number);
        if (lane)
            rewrite_member(&rewrite, lane, field.whole);
        else
            keep(&rewrite, field.whole);
    }
    write_absent(&rewrite, UINT32_MAX);
    write_same(&rewrite);
}

// ---- replacing strings -------------------------------------------------------------------------

// Returns the size of the tag and length of a string field, nearly always one byte each.
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

// Copies bytes and returns the end. `from` may be NULL if n is 0.
static inline char *put_bytes(char *p, const char *from, size_t n)
{
    if (n)
        memcpy(p, from, n);
    return p + n;
}

// Writes a message with some of its texts replaced. Renaming changes a few names in most nodes of a
// model, so each node is copied in one pass.
void tsr__rope_splice(struct rope *rope, uint32_t number, struct str origin,
                      const struct wire_splice *splice, size_t n)
{
    uint64_t length = origin.n;
    for (size_t i = 0; i < n; i++)
        length +=
            head_size(splice[i].number, splice[i].text.n) + splice[i].text.n - splice[i].old.n;
    if (length >= SPLICE_BYTES) { // rare
        size_t mark = tsr__rope_begin(rope, number);
        for (size_t i = 0; i <= n; i++) {
            const char *from = i ? splice[i - 1].old.p + splice[i - 1].old.n : origin.p;
            const char *to = i < n ? splice[i].old.p : origin.p + origin.n;
            tsr__rope_view(rope, (struct str){from, (size_t)(to - from)});
            if (i < n)
                tsr__rope_bytes(rope, splice[i].number, splice[i].text);
        }
        tsr__rope_end(rope, mark);
        return;
    }
    if (!reserve(rope, TAG_MAX + VARINT_MAX + (size_t)length))
        return;
    char *p = varint_put(put_tag(rope->at, number, WIRE_LEN), length);
    const char *from = origin.p;
    for (size_t i = 0; i < n; i++) {
        p = put_bytes(p, from, (size_t)(splice[i].old.p - from));
        p = put_head(p, splice[i].number, splice[i].text.n);
        p = put_bytes(p, splice[i].text.p, splice[i].text.n);
        from = splice[i].old.p + splice[i].old.n;
    }
    rope->at = put_bytes(p, from, (size_t)(origin.p + origin.n - from));
}

// ---- output ------------------------------------------------------------------------------------

static struct str last_run(const struct rope *rope)
{
    return (struct str){rope->run, (size_t)(rope->at - rope->run)};
}

void tsr__rope_write(const struct rope *rope, struct outfile *outfile, struct str map, int fd)
{
    for (size_t i = 0; i < rope->pieces.n; i++) {
        struct str piece = rope->pieces.at[i];
        uintptr_t offset = (uintptr_t)piece.p - (uintptr_t)map.p;
        if (fd >= 0 && piece.n >= COPY_BYTES && offset < map.n && piece.n <= map.n - offset)
            tsr__out_copy(outfile, fd, offset, piece.n);
        else
            tsr__out_write(outfile, piece.p, piece.n);
    }
    struct str run = last_run(rope);
    if (run.n)
        tsr__out_write(outfile, run.p, run.n);
}

void tsr__rope_read(const struct rope *rope, char *out)
{
    for (size_t i = 0; i < rope->pieces.n; i++) {
        memcpy(out, rope->pieces.at[i].p, rope->pieces.at[i].n);
        out += rope->pieces.at[i].n;
    }
    struct str run = last_run(rope);
    if (run.n)
        memcpy(out, run.p, run.n);
}

struct str tsr__rope_flat(const struct rope *rope, struct arena *arena)
{
    struct str run = last_run(rope);
    if (rope->arena->failed)
        return (struct str){0};
    if (rope->pieces.n == 0)
        return run;
    if (rope->pieces.n == 1 && run.n == 0)
        return rope->pieces.at[0];
    size_t n = (size_t)rope_size(rope);
    char *p = arena_get(arena, n + 1, 1);
    if (!p)
        return (struct str){0};
    tsr__rope_read(rope, p);
    return (struct str){p, n};
}
