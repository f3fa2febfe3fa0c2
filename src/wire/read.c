// SPDX-License-Identifier: Apache-2.0
// read.c - reads protobuf fields one at a time, and checks complete messages.
//
// It rejects exactly what the protobuf library of Python's onnx rejects: tags of more than 5 bytes
// or 32 bits, lengths encoded in more than 5 bytes (unless their value is 32 GiB or more), varints
// of more than 10 bytes, and more than 100 nested messages and groups. A field with an unexpected
// wire type is an unknown field. Nothing is allocated, and every length is compared with the bytes
// that are left.
//
// Examples of fields:
//
//     0a 03 61 62 63   field 1 (0a = 1 << 3 | 2, length-delimited), 3 bytes "abc"
//     10 ac 02         field 2 (10 = 2 << 3 | 0, varint), 300 = 0x2c + 2 * 128
//     0d 00 00 80 3f   field 1 (0d = 1 << 3 | 5, four bytes), the float 1.0
//
// The functions take_* decode any field and return the error, if any. usual_head decodes the form
// that nearly all fields have, for speed.
#include "wire/internal.h"

// The errors of reading; wrongs[] has the code and message of each.
enum wrong { FINE, TRUNCATED, LENGTH, TAG, NUMBER, TYPE, VARINT, GROUP, DEPTH, PACKED };

static const struct {
    enum diag_code code;
    const char *text;
} wrongs[] = {
    [TRUNCATED] = {DIAG_wire_truncated, "the file is truncated: it ends in the middle of a field"},
    [LENGTH] =
        {DIAG_wire_length,
         "the file is truncated or corrupt: a field is longer than the message that contains it"},
    [TAG] = {DIAG_wire_tag, "the file is corrupt: a field tag has more than 32 bits"},
    [NUMBER] = {DIAG_wire_tag, "the file is corrupt: a field has the number 0"},
    [TYPE] = {DIAG_wire_tag, "the file is corrupt: a field has an unknown wire type"},
    [VARINT] = {DIAG_wire_varint, "the file is corrupt: an integer has more than 10 bytes"},
    [GROUP] = {DIAG_wire_group, "the file is corrupt: unbalanced protobuf groups"},
    [DEPTH] = {DIAG_wire_depth, "messages are nested more than 100 levels deep"},
    [PACKED] = {DIAG_wire_packed,
                "the file is corrupt: a packed list ends in the middle of an element"},
};

// [p, end) are the bytes that are not yet read.
struct scan {
    const unsigned char *p, *end;
};

// Reads a varint: seven bits per byte, lowest first; the high bit is set if another byte follows.
static enum wrong take_varint(struct scan *scan, uint64_t *out)
{
    uint64_t v = 0;
    for (int i = 0; i < VARINT_MAX; i++) {
        if (scan->p == scan->end)
            return TRUNCATED;
        unsigned char b = *scan->p++;
        v |= (uint64_t)(b & 127) << (7 * i); // bits above 64 are dropped
        if (b < 128) {
            *out = v;
            return FINE;
        }
    }
    return VARINT;
}

// Reads number and wire type of a field: tag = number << 3 | type.
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

// Reads a length and as many bytes. A length that is encoded in more than 5 bytes must be 32 GiB or
// more.
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

// Reads a little-endian number, not aligned.
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

// Reads any value except a group.
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

// Reads the rest of a group with its end tag. *inside becomes the bytes between the tags. ONNX has
// no groups, so only their nesting is checked, without recursion. The field number 0 is accepted
// inside groups, as in the protobuf library.
static enum wrong take_group(struct scan *scan, uint32_t number, int levels, struct str *inside)
{
    uint32_t open[WIRE_MAX_DEPTH]; // numbers of the open groups, outermost first
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

// Reads one field, in which at most `levels` groups may be nested. On errors *out is filled as far
// as possible.
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

// Decodes a field with a tag of one byte and a length of one or two bytes. Returns the size of tag
// and length, or 0 if the field has another form or more than `left` bytes. `left` is at least 2.
static inline size_t usual_head(const unsigned char *p, size_t left, size_t *length)
{
    uint32_t two = p[0] | (uint32_t)p[1] << 8;
    size_t n = two >> 8;
    if (TSR_LIKELY(wire_is_short(two))) {
        *length = n;
        return n <= left - 2 ? 2 : 0;
    }
    if (!wire_is_short(two & 0x7fff) || left < 3 || p[2] >= 128)
        return 0;
    *length = n = (n & 127) | (size_t)p[2] << 7;
    return n <= left - 3 ? 3 : 0;
}

// Reads all fields that the inline part in wire.h does not: lengths of two bytes, which are common,
// and rare forms. On errors cursor->p stays at the bad field.
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

// True if the bytes are complete varints of at most 10 bytes. Skips eight bytes at a time if all of
// them are below 128.
static bool varints_ok(const unsigned char *p, const unsigned char *end)
{
    int run = 0; // number of bytes with the high bit set
    while (p < end) {
        uint64_t eight;
        if (run == 0 && end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080u))) {
            p += 8;
            continue;
        }
        run = *p++ < 128 ? 0 : run + 1;
        if (run == VARINT_MAX)
            return false;
    }
    return run == 0;
}

static bool packed_ok(const struct wire_row *row, struct str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.p;
    if (row->kind == KIND_FLOAT)
        return bytes.n % 4 == 0;
    return row->kind == KIND_DOUBLE ? bytes.n % 8 == 0 : varints_ok(p, p + bytes.n);
}

// The first error of a check.
struct damage {
    enum wrong wrong;
    const unsigned char *at;
    enum wire_message message;
};

// Records the error. Returns false, for use in return statements.
static bool damaged(struct damage *damage, enum wrong wrong, const unsigned char *at,
                    enum wire_message m)
{
    *damage = (struct damage){wrong, at, m};
    return false;
}

static bool walk(struct damage *damage, struct str body, enum wire_message m, int depth);

// Checks the contents of a known field that begins at `start`.
static bool walk_inside(struct damage *damage, const struct wire_row *row, struct str bytes,
                        const unsigned char *start, enum wire_message m, int depth)
{
    if (row->check == INSIDE_PACKED)
        return packed_ok(row, bytes) || damaged(damage, PACKED, start, m);
    if (depth >= WIRE_MAX_DEPTH)
        return damaged(damage, DEPTH, start, m);
    return walk(damage, bytes, (enum wire_message)row->message, depth + 1);
}

// Checks a field of any kind at p. Returns its end, or NULL. Accepts unknown fields, and known ones
// with another wire type.
static const unsigned char *check_field(struct damage *damage, const unsigned char *p,
                                        const unsigned char *end, enum wire_message message,
                                        int depth)
{
    struct scan scan = {p, end};
    struct wire_field field;
    enum wrong wrong = take_field(&scan, WIRE_MAX_DEPTH - depth, &field);
    const struct wire_row *row = wrong == FINE ? tsr__wire_row(message, field.number) : NULL;
    if (wrong != FINE)
        damaged(damage, wrong, p, message);
    else if (!row || !row->check || field.type != WIRE_LEN ||
             walk_inside(damage, row, field.bytes, p, message, depth))
        return scan.p;
    return NULL;
}

// Checks a message and all known nested messages. `depth` is the level of the message, at most
// WIRE_MAX_DEPTH. Visits every field of a file, so frequent encodings are recognized by their first
// two bytes.
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
            if (!(p = check_field(damage, p, end, message, depth)))
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

bool tsr__wire_sound(struct str body, enum wire_message m, int depth)
{
    struct damage damage;
    return body.n == 0 || (depth <= WIRE_MAX_DEPTH && walk(&damage, body, m, depth));
}

tsr_status tsr__wire_check(tsr_session *session, struct str file, const char *start,
                           struct str body, enum wire_message message, int depth)
{
    struct damage damage = {0};
    if (body.n == 0 || (depth <= WIRE_MAX_DEPTH && walk(&damage, body, message, depth)))
        return TSR_OK;
    if (damage.wrong == FINE)
        damaged(&damage, DEPTH, (const unsigned char *)body.p, message);
    struct place at = PLACE(.file = file);
    at.offset = (uint64_t)((const char *)damage.at - start);
    return tsr__fail(session, TSR_MALFORMED, wrongs[damage.wrong].code, &at,
                     "export the model again, or download the file again", "%s (in a %s)",
                     wrongs[damage.wrong].text, tsr__wire_message_name(damage.message));
}

// ---- reading checked messages ------------------------------------------------------------------

struct str tsr__wire_bytes(struct str body, uint32_t number, bool *present)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    struct str last = {0};
    bool found = false;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        last = field.bytes;
        found = true;
    }
    if (present)
        *present = found;
    return last;
}

// Finds an integer field. *out is unchanged if the field is absent, so it can hold the default.
// Returns true if it is present. If it is repeated, the last one counts.
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

size_t tsr__wire_count(struct str body, uint32_t number)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    size_t n = 0;
    while (tsr__wire_next_of(&cursor, number, &field))
        n++;
    return n;
}

// Appends the values of a packed list to `out`, which has n values. Returns the new number, which
// may exceed `cap`; values beyond `cap` are not stored.
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

// Returns a message field; several occurrences are merged. If there is one occurrence, the usual
// case, nothing is copied.
struct str tsr__wire_merged(struct arena *arena, struct str body, uint32_t number, bool *present)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    struct str only = {0};
    size_t count = 0, total = 0;
    while (tsr__wire_next_of(&cursor, number, &field)) {
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
    while (tsr__wire_next_of(&cursor, number, &field)) {
        memcpy(joined + at, field.bytes.p, field.bytes.n);
        at += field.bytes.n;
    }
    return (struct str){joined, total};
}
