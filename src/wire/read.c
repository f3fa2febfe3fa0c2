// SPDX-License-Identifier: Apache-2.0
// read.c - protobuf bytes as fields: one at a time, or a whole message checked at once.
//
// What is refused is what the protobuf library of Python's onnx refuses, nothing more: tags are at
// most 5 bytes and 32 bits, lengths at most 5 bytes (longer only where more than 32 GiB need them),
// varints at most 10; a field with an unexpected wire type is an unknown field; messages and groups
// together nest 100 deep. Nothing is allocated, every length is held against the bytes that are
// left before it is used.
//
//     0a 03 61 62 63   field 1 (0a = 1 << 3 | 2, length-delimited), 3 bytes "abc"
//     10 ac 02         field 2 (10 = 2 << 3 | 0, varint), 300 = 0x2c + 2 * 128
//     0d 00 00 80 3f   field 1 (0d = 1 << 3 | 5, four bytes), the float 1.0
//
// Two ways through the same bytes: take_* decode any field and say what is wrong with it;
// usual_head decodes the form that nearly all fields have and gives up on any other. Files are
// mostly read by the second.
#include "wire/internal.h"

// What can be wrong; wrongs[] has the finding's code and words for each.
enum wrong { FINE, TRUNCATED, LENGTH, TAG, NUMBER, TYPE, VARINT, GROUP, DEPTH, PACKED };

static const struct {
    enum diag_code code;
    const char *text;
} wrongs[] = {
    [TRUNCATED] = {DIAG_wire_truncated, "the bytes end in the middle of a field"},
    [LENGTH] = {DIAG_wire_length, "a length reaches beyond the message that it stands in"},
    [TAG] = {DIAG_wire_tag, "a field's tag has more than 32 bits"},
    [NUMBER] = {DIAG_wire_tag, "a field has the number 0"},
    [TYPE] = {DIAG_wire_tag, "a field has a wire type that does not exist"},
    [VARINT] = {DIAG_wire_varint, "an integer takes more than 10 bytes"},
    [GROUP] = {DIAG_wire_group, "a group is not closed, or closed without having been opened"},
    [DEPTH] = {DIAG_wire_depth, "messages are nested more than 100 deep"},
    [PACKED] = {DIAG_wire_packed, "a packed list does not end where its last element ends"},
};

// Where a walk is; p is behind what was read last.
struct scan {
    const unsigned char *p, *end;
};

// Seven bits in each byte, lowest first; the high bit says that another byte follows.
static enum wrong take_varint(struct scan *scan, uint64_t *out)
{
    uint64_t v = 0;
    for (int i = 0; i < VARINT_MAX; i++) {
        if (scan->p == scan->end)
            return TRUNCATED;
        unsigned char b = *scan->p++;
        v |= (uint64_t)(b & 127) << (7 * i); // bits above 64 fall away, as in every implementation
        if (b < 128) {
            *out = v;
            return FINE;
        }
    }
    return VARINT;
}

// Number and wire type of a field: tag = number << 3 | type.
static enum wrong take_tag(struct scan *scan, uint32_t *number, uint32_t *type)
{
    const unsigned char *start = scan->p;
    uint64_t v = 0;
    enum wrong wrong = take_varint(scan, &v);
    if (wrong == VARINT || (wrong == FINE && (scan->p - start > TAG_MAX || v > UINT32_MAX)))
        return TAG;
    *number = (uint32_t)v >> 3;
    *type = (uint32_t)v & 7;
    return wrong;
}

// A length and as many bytes. Lengths below 32 GiB fit in 5 bytes; longer ones of these are
// refused, as protobuf does, which knows no lengths above 2 GiB at all.
static enum wrong take_bytes(struct scan *scan, struct str *out)
{
    const unsigned char *start = scan->p;
    uint64_t n = 0;
    enum wrong wrong = take_varint(scan, &n);
    if (wrong != FINE)
        return wrong == VARINT ? LENGTH : wrong;
    if ((scan->p - start > TAG_MAX && n >> 35 == 0) || n > (uint64_t)(scan->end - scan->p))
        return LENGTH;
    *out = (struct str){(const char *)scan->p, (size_t)n};
    scan->p += n;
    return FINE;
}

// Little-endian, byte by byte: no alignment is asked of the file.
static enum wrong take_fixed(struct scan *scan, int bytes, uint64_t *out)
{
    if (scan->end - scan->p < bytes)
        return TRUNCATED;
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)scan->p[i] << (8 * i);
    scan->p += bytes;
    *out = v;
    return FINE;
}

// Any value but a group.
static enum wrong take_plain(struct scan *scan, uint32_t type, uint64_t *integer, struct str *bytes)
{
    switch (type) {
    case WIRE_VARINT:
        return take_varint(scan, integer);
    case WIRE_I64:
        return take_fixed(scan, 8, integer);
    case WIRE_I32:
        return take_fixed(scan, 4, integer);
    case WIRE_LEN:
        return take_bytes(scan, bytes);
    default:
        return TYPE;
    }
}

// What follows the opening tag of a group, up to and with its closing tag. Groups are no part of
// the ONNX schema, so their fields have no meaning here: nesting is tracked by number alone,
// without recursion. (A field number 0 passes inside a group, as it does in the library that we
// follow.)
static enum wrong take_group(struct scan *scan, uint32_t number, int levels, struct str *inside)
{
    uint32_t open[WIRE_MAX_DEPTH];
    //
    // numbers of the groups that are open, outermost first; each closing tag must have the last one's
    int n = 0;
    if (levels < 1)
        return DEPTH;
    const char *start = (const char *)scan->p;
    open[n++] = number;
    while (n > 0) {
        const unsigned char *at = scan->p;
        uint32_t type = 0;
        if (at == scan->end)
            return GROUP;
        enum wrong wrong = take_tag(scan, &number, &type);
        if (wrong != FINE)
            return wrong;
        uint64_t integer;
        struct str bytes;
        if (type == WIRE_GROUP_BEGIN) {
            if (n >= levels)
                return DEPTH;
            open[n++] = number;
        } else if (type == WIRE_GROUP_END) {
            if (open[--n] != number)
                return GROUP;
            *inside = (struct str){start, (size_t)((const char *)at - start)};
        } else if ((wrong = take_plain(scan, type, &integer, &bytes)) != FINE) {
            return wrong;
        }
    }
    return FINE;
}

// One field of a message below which `levels` more may nest.
// *out has what was read so far, also where something is wrong.
static enum wrong take_field(struct scan *scan, int levels, struct wire_field *out)
{
    const char *start = (const char *)scan->p;
    *out = (struct wire_field){0};
    enum wrong wrong = take_tag(scan, &out->number, &out->type);
    if (wrong != FINE)
        return wrong;
    if (out->number == 0)
        return NUMBER;
    if (out->type == WIRE_GROUP_END)
        return GROUP;
    if (out->type == WIRE_GROUP_BEGIN)
        wrong = take_group(scan, out->number, levels, &out->bytes);
    else
        wrong = take_plain(scan, out->type, &out->integer, &out->bytes);
    if (out->type == WIRE_LEN)
        out->integer = out->bytes.n;
    out->whole = (struct str){start, (size_t)((const char *)scan->p - start)};
    return wrong;
}

// A field of the usual form at p, with `left` bytes to the end: a tag of one byte and a length of one or two.
// Gives the bytes of tag and length, 0 if it has another form, and the length.
static inline size_t usual_head(const unsigned char *p, size_t left, size_t *length)
{
    uint32_t two = p[0] | (uint32_t)p[1] << 8;
    size_t n = two >> 8;
    if (TSR_LIKELY(wire_is_short(two))) {
        *length = n;
        if (n <= left - 2)
            return 2;
        return 0;
    }
    if (!wire_is_short(two & 0x7fff) || left < 3 || p[2] >= 128)
        return 0;
    *length = n = (n & 127) | (size_t)p[2] << 7;
    if (n <= left - 3)
        return 3;
    return 0;
}

// What the inline part in wire.h leaves: lengths of two bytes, which are still common, and
// everything else. On damage cursor->p stays at the field that is wrong.
bool tsr__wire_next_slow(struct wire_cursor *cursor, struct wire_field *out)
{
    const unsigned char *p = cursor->p;
    size_t left = (size_t)(cursor->end - p), n, head;
    if (left >= 2 && (p[0] & 7) == WIRE_LEN && (head = usual_head(p, left, &n)) != 0) {
        struct str bytes = {(const char *)p + head, n}, whole = {(const char *)p, head + n};
        *out = (struct wire_field){p[0] >> 3, WIRE_LEN, n, bytes, whole};
        cursor->p = p + head + n;
        return true;
    }
    struct scan scan = {cursor->p, cursor->end};
    enum wrong wrong = take_field(&scan, WIRE_MAX_DEPTH, out);
    if (wrong != FINE) {
        cursor->wrong = wrongs[wrong].text;
        return false;
    }
    cursor->p = scan.p;
    return true;
}

// ---- the check ---------------------------------------------------------------------------------

// True if the bytes are whole varints of at most 10 bytes.
// Eight bytes at a time where none of them says "more follows": lists of small numbers are mostly that.
static bool varints_ok(const unsigned char *p, const unsigned char *end)
{
    int run = 0; // bytes so far that say "more follows"
    while (p < end) {
        uint64_t eight;
        if (run == 0 && end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u))) {
            p += 8;
            continue;
        }
        if (*p++ < 128)
            run = 0;
        else
            run = run + 1;
        if (run == VARINT_MAX)
            return false;
    }
    return run == 0;
}

// A packed list is the elements' bytes, one behind the other, without tags.
static bool packed_ok(const struct wire_row *row, struct str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.p;
    if (row->kind == KIND_FLOAT)
        return bytes.n % 4 == 0;
    if (row->kind == KIND_DOUBLE)
        return bytes.n % 8 == 0;
    return varints_ok(p, p + bytes.n);
}

// First damage that a walk met.
struct damage {
    enum wrong wrong;
    const unsigned char *at;
    enum wire_message message;
};

// Always false, so that a check can return it.
static bool damaged(struct damage *damage, enum wrong wrong, const unsigned char *at,
                    enum wire_message m)
{
    *damage = (struct damage){wrong, at, m};
    return false;
}

static bool walk(struct damage *damage, struct str body, enum wire_message m, int depth);

// What a known field holds.
// row->check is not INSIDE_ANY: a list or a message that must be whole. `start` is where the field
// begins.
static bool walk_inside(struct damage *damage, const struct wire_row *row, struct str bytes,
                        const unsigned char *start, enum wire_message m, int depth)
{
    if (row->check == INSIDE_PACKED)
        return packed_ok(row, bytes) || damaged(damage, PACKED, start, m);
    if (depth >= WIRE_MAX_DEPTH)
        return damaged(damage, DEPTH, start, m);
    return walk(damage, bytes, (enum wire_message)row->message, depth + 1);
}

// A field of any form at p; gives the end of it, or NULL.
// Unknown fields, and known ones with another wire type than theirs, are whole if their form is.
static const unsigned char *walk_slow(struct damage *damage, const unsigned char *p,
                                      const unsigned char *end, enum wire_message message,
                                      int depth)
{
    struct scan scan = {p, end};
    struct wire_field field;
    enum wrong wrong = take_field(&scan, WIRE_MAX_DEPTH - depth, &field);
    const struct wire_row *row = NULL;
    if (wrong == FINE)
        row = tsr__wire_row(message, field.number);
    if (wrong != FINE)
        damaged(damage, wrong, p, message);
    else if (!row || !row->check || field.type != WIRE_LEN ||
             walk_inside(damage, row, field.bytes, p, message, depth))
        return scan.p;
    return NULL;
}

// Walks a message and, by recursion, all known nested ones; depth is its own level, at most
// WIRE_MAX_DEPTH. This is a pass over every byte of structure before anything is built, so the usual fields
// are told apart by their first two bytes.
static bool walk(struct damage *damage, struct str body, enum wire_message message, int depth)
{
    const struct wire_row *rows = tsr__wire_rows[message];
    const unsigned char *p = (const unsigned char *)body.p, *end = p + body.n;
    while (p < end) {
        size_t left = (size_t)(end - p), n = 0, head = 0;
        if (TSR_LIKELY(left >= 2)) {
            if (wire_is_short(p[0] | (uint32_t)p[1] << 8) && !(p[0] & WIRE_LEN)) {
                p += 2; // an integer of one byte
                continue;
            }
            if ((p[0] & 7) == WIRE_LEN)
                head = usual_head(p, left, &n);
        }
        if (TSR_UNLIKELY(head == 0)) {
            if (!(p = walk_slow(damage, p, end, message, depth)))
                return false;
            continue;
        }
        const struct wire_row *row = &rows[p[0] >> 3];
        if (row->check != INSIDE_ANY &&
            !walk_inside(damage, row, (struct str){(const char *)p + head, n}, p, message, depth))
            return false;
        p += head + n;
    }
    return true;
}

// depth: level of the message in its file, 0 for a ModelProto.
bool tsr__wire_sound(struct str body, enum wire_message m, int depth)
{
    struct damage damage;
    return body.n == 0 || (depth <= WIRE_MAX_DEPTH && walk(&damage, body, m, depth));
}

// One finding, for the first damage: what comes after it cannot be told.
tsr_status tsr__wire_check(tsr_session *session, struct str file, const char *start,
                           struct str body, enum wire_message message, int depth)
{
    struct damage damage = {0};
    if (body.n == 0 || (depth <= WIRE_MAX_DEPTH && walk(&damage, body, message, depth)))
        return TSR_OK;
    if (damage.wrong == FINE)
        damaged(&damage, DEPTH, (const unsigned char *)body.p, message);
    struct place at = PLACE_NONE;
    at.file = file;
    at.offset = (uint64_t)((const char *)damage.at - start);
    tsr__diag(session, wrongs[damage.wrong].code, &at,
              "export the model again, or fetch a fresh copy of the file", "%s (in a %s)",
              wrongs[damage.wrong].text, tsr__wire_message_name(damage.message));
    return TSR_MALFORMED;
}

// ---- reading parts that were checked -----------------------------------------------------------

// Walks the whole body, since the last field of the number counts; a view into it, {NULL, 0} if
// there is none.
struct str tsr__wire_bytes(struct str body, uint32_t number, bool *present)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    struct str last = {0};
    bool found = false;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_LEN)
            continue;
        last = field.bytes;
        found = true;
    }
    if (present)
        *present = found;
    return last;
}

// *out is left alone where the field is absent, so callers put the default there first.
bool tsr__wire_int(struct str body, uint32_t number, int64_t *out)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    bool found = false;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_VARINT)
            continue;
        *out = (int64_t)field.integer;
        found = true;
    }
    return found;
}

// Appends to the n that are there already; gives the new count, which may exceed cap.
static size_t unpack(struct str bytes, int64_t *out, size_t n, size_t cap)
{
    struct scan scan = {(const unsigned char *)bytes.p, (const unsigned char *)bytes.p + bytes.n};
    uint64_t v;
    while (scan.p < scan.end && take_varint(&scan, &v) == FINE) {
        if (n < cap)
            out[n] = (int64_t)v;
        n++;
    }
    return n;
}

// Called twice as a rule: with cap 0 for the count, then with room for all.
size_t tsr__wire_ints(struct str body, uint32_t number, int64_t *out, size_t cap)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    size_t n = 0;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number)
            continue;
        if (field.type == WIRE_LEN) {
            n = unpack(field.bytes, out, n, cap);
        } else if (field.type == WIRE_VARINT) {
            if (n < cap)
                out[n] = (int64_t)field.integer;
            n++;
        }
    }
    return n;
}

// Protobuf: a message field that is written twice is the two bodies one behind the other. One occurrence,
// the usual case, is returned as a view; several are joined in the arena.
struct str tsr__wire_merged(struct arena *arena, struct str body, uint32_t number, bool *present)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    struct str only = {0};
    size_t count = 0, total = 0;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_LEN)
            continue;
        only = field.bytes;
        total += field.bytes.n;
        count++;
    }
    if (present)
        *present = count > 0;
    if (count < 2)
        return only;
    char *joined = arena_get(arena, total + 1, 1);
    if (!joined)
        return (struct str){0};
    size_t at = 0;
    cursor = wire_over(body);
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_LEN)
            continue;
        memcpy(joined + at, field.bytes.p, field.bytes.n);
        at += field.bytes.n;
    }
    return (struct str){joined, total};
}
