// SPDX-License-Identifier: Apache-2.0
// wire.h - reads and writes the protobuf encoding of ONNX messages. Knows the schema, not graphs.
//
// Reading: a cursor over the body of a message returns one field at a time, without copying. A
// check of the complete file visits every known nested message once, so that reading a part later
// cannot fail. Writing: a rope refers to bytes that did not change and encodes only changed
// messages. Unknown fields are preserved.
#ifndef TSR_WIRE_H
#define TSR_WIRE_H

#include "base/base.h"

// ---- the schema (schema.c) ------------------------------------------------------------------

// clang-format off
// One per ONNX message; schema.c describes the fields of each.
enum wire_message {
    WIRE_MODEL, WIRE_GRAPH, WIRE_NODE, WIRE_ATTRIBUTE, WIRE_TENSOR, WIRE_SEGMENT,
    WIRE_SPARSE_TENSOR, WIRE_VALUE_INFO, WIRE_TYPE, WIRE_TYPE_TENSOR, WIRE_TYPE_SEQUENCE,
    WIRE_TYPE_MAP, WIRE_TYPE_OPAQUE, WIRE_TYPE_SPARSE_TENSOR, WIRE_TYPE_OPTIONAL, WIRE_SHAPE,
    WIRE_DIMENSION, WIRE_OPSET, WIRE_STRING_PAIR, WIRE_ANNOTATION, WIRE_TRAINING, WIRE_FUNCTION,
    WIRE_CONFIG, WIRE_NODE_CONFIG, WIRE_SPEC, WIRE_GROUP, WIRE_SHARDED_DIM, WIRE_SIMPLE_DIM,
    WIRE_SEQUENCE, WIRE_MAP, WIRE_OPTIONAL, WIRE_MESSAGE_COUNT
};

// KIND_INT: any type that is encoded as a varint.
enum wire_kind { KIND_INT, KIND_FLOAT, KIND_DOUBLE, KIND_BYTES, KIND_MESSAGE };
enum wire_inside { INSIDE_ANY, INSIDE_MESSAGE, INSIDE_PACKED };
enum wire_type {
    WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_GROUP_BEGIN = 3, WIRE_GROUP_END = 4,
    WIRE_I32 = 5
};
// clang-format on

struct wire_row {
    uint16_t number;
    uint8_t kind;    // enum wire_kind
    uint8_t message; // enum wire_message, for KIND_MESSAGE
    uint8_t check;   // contents of a length-delimited field: enum wire_inside
    const char *name;
};
// Returns NULL if the schema does not have this field.
const struct wire_row *tsr__wire_row(enum wire_message m, uint32_t number);
const char *tsr__wire_message_name(enum wire_message m); // "NodeProto"

// Field numbers: F_<message>_<field>
#include "wire/fields.h"

// ---- reading (read.c) -----------------------------------------------------------------------

struct wire_field {
    uint32_t number;
    uint32_t type;    // enum wire_type
    uint64_t integer; // VARINT, I32, I64 (raw bits); LEN: the length
    struct str bytes; // LEN: the payload; GROUP_BEGIN: the bytes between the tags; else empty
    struct str whole; // the complete field with its tag
};
struct wire_cursor {
    const unsigned char *p, *end;
    const char *wrong; // NULL, or the error at p
};
static inline struct wire_cursor wire_over(struct str body)
{
    const unsigned char *p = (const unsigned char *)(body.p ? body.p : "");
    return (struct wire_cursor){p, p + body.n, NULL};
}
// True if both parts of a field's head take one byte each: a tag of wire type 0 or 2 (not of field
// 0), then an integer or length. `two` has the tag in its low byte.
static inline bool wire_is_short(uint32_t two)
{
    return (two & 0x8085) == 0 && (two & 0x78) != 0;
}
bool tsr__wire_next_slow(struct wire_cursor *cursor, struct wire_field *out);
// Reads the next field. Returns false at the end and on errors; on errors cursor->wrong is set and
// cursor->p is the position of the error. The most frequent form, a tag and a length or value of
// one byte each, is decoded inline.
static inline bool tsr__wire_next(struct wire_cursor *cursor, struct wire_field *out)
{
    const unsigned char *p = cursor->p;
    size_t left = (size_t)(cursor->end - p);
    if (TSR_UNLIKELY(left < 2))
        return left && tsr__wire_next_slow(cursor, out);
    uint32_t two = p[0] | (uint32_t)p[1] << 8;
    if (TSR_LIKELY(wire_is_short(two))) {
        size_t n = two & WIRE_LEN ? two >> 8 : 0;
        if (TSR_LIKELY(n <= left - 2)) {
            const char *at = (const char *)p;
            *out =
                (struct wire_field){(two & 127) >> 3, two & 7, two >> 8, {at + 2, n}, {at, n + 2}};
            cursor->p = p + 2 + n;
            return true;
        }
    }
    return tsr__wire_next_slow(cursor, out);
}

// Reads the next length-delimited field with this number.
static inline bool tsr__wire_next_of(struct wire_cursor *cursor, uint32_t number,
                                     struct wire_field *out)
{
    while (tsr__wire_next(cursor, out))
        if (out->number == number && out->type == WIRE_LEN)
            return true;
    return false;
}

#define WIRE_MAX_DEPTH 100 // limit of nested messages, as in the common protobuf libraries

// Checks a message with all known nested messages. Reports the first error (wire-...) with its byte
// offset and returns TSR_MALFORMED. `file` and `start` (address of the first byte of the file) give
// the place; `depth` is the nesting level of the message.
tsr_status tsr__wire_check(tsr_session *session, struct str file, const char *start,
                           struct str body, enum wire_message m, int depth) TSR_MUST_USE;
// As tsr__wire_check, without a diagnostic.
bool tsr__wire_sound(struct str body, enum wire_message m, int depth);

// Read single fields of checked messages. Fields of another wire type are ignored. If a field
// occurs several times, the last one is used, as in protobuf. An int32 is the low 32 bits.
struct str tsr__wire_bytes(struct str body, uint32_t number, bool *present); // {NULL, 0}: absent
bool tsr__wire_int(struct str body, uint32_t number, int64_t *out);          // false: absent
size_t tsr__wire_count(struct str body, uint32_t number); // number of length-delimited fields
// Reads repeated integers, packed or not. Returns their number and writes the first `cap` values;
// `out` may be NULL if cap is 0.
size_t tsr__wire_ints(struct str body, uint32_t number, int64_t *out, size_t cap);
// Returns the body of a singular message field. If it occurs several times, the bodies are
// concatenated in the arena, which is how protobuf merges them. `present` may be NULL.
struct str tsr__wire_merged(struct arena *arena, struct str body, uint32_t number, bool *present);

// ---- writing (write.c) ----------------------------------------------------------------------

// A nested message that is being written.
struct rope_mark {
    size_t piece;   // index of the piece that contains the slot; SIZE_MAX: the slot is in [run, at)
    char *slot;     // position of the length
    uint64_t bytes; // bytes before the contents
};
// A list of pieces: references to unchanged bytes, and newly encoded bytes. Pieces that are
// adjacent in memory are joined. After a failure of the arena the rope is unusable. [run, at) are
// encoded bytes that are not yet in a piece; [at, end) is free.
struct rope {
    struct arena *arena;
    VEC(struct str) pieces;
    uint64_t bytes; // bytes of all pieces
    char *run, *at, *end;
    VEC(struct rope_mark) open; // nested messages, outermost first
};
static inline uint64_t rope_size(const struct rope *rope)
{
    return rope->bytes + (uint64_t)(rope->at - rope->run);
}
void tsr__rope_init(struct rope *rope, struct arena *arena);
// Adds a reference to `span`, which must live as long as the rope. May copy a span of less than 512
// bytes instead.
void tsr__rope_view(struct rope *rope, struct str span);
void tsr__rope_copy(struct rope *rope, struct str bytes);
void tsr__rope_int(struct rope *rope, uint32_t number, int64_t value); // tag and varint
void tsr__rope_float(struct rope *rope, uint32_t number, float value);
// Writes a bytes field. Values of 2 KiB or more are not copied and must live as long as the rope.
void tsr__rope_bytes(struct rope *rope, uint32_t number, struct str value);
// Adds repeated integers, not packed.
void tsr__rope_ints(struct rope *rope, uint32_t number, const int64_t *v, size_t n);
// Write a nested message: size_t mark = tsr__rope_begin(...); fields; tsr__rope_end(rope, mark);
size_t tsr__rope_begin(struct rope *rope, uint32_t number);
void tsr__rope_end(struct rope *rope, size_t mark);

// Rewrites a message of a file. `managed` lists the field numbers that the caller writes from
// objects; `parts` are their new contents in order. All other fields of `origin` keep their place.
//
// For each managed number:
// - Fields of origin that are in `parts` (unchanged, with their tag) keep their place.
// - Other fields of origin with that number are dropped.
// - New parts take the place of dropped fields, else follow the part before them, else are inserted
//   by ascending field number.
// - If parts are reordered, all are written at the place of the first.
// If the parts equal the fields of origin, the result is a single reference to origin.
struct wire_part {
    uint32_t number;
    bool text;       // `span` is the value of a new string field, without tag and length
    struct str span; // otherwise a complete field with its tag
    // If not NULL, it is called to write a new field `number` with its tag; `span` is then empty.
    void (*emit)(struct rope *rope, uint32_t number, void *data);
    void *data;
};
void tsr__rope_rewrite(struct rope *rope, struct str origin, const uint32_t *managed,
                       size_t n_managed, const struct wire_part *parts, size_t n_parts);

// Writes the message `origin` of a file as a field `number`. Each splice replaces a complete field
// of origin (`old`) by a string field. The splices are in the order of origin.
struct wire_splice {
    struct str old;
    uint32_t number;
    struct str text; // p must not be NULL
};
void tsr__rope_splice(struct rope *rope, uint32_t number, struct str origin,
                      const struct wire_splice *splice, size_t n);

// Writes the rope to a file. `map` is the mapping of the file fd: large references into it are
// copied from fd inside the kernel. fd -1: there is no such file.
void tsr__rope_write(const struct rope *rope, struct outfile *outfile, struct str map, int fd);
// Returns the contents as one text, copied to the arena if there are several pieces. Returns {NULL,
// 0} if out of memory.
struct str tsr__rope_flat(const struct rope *rope, struct arena *arena);
void tsr__rope_read(const struct rope *rope, char *out); // copies rope_size(rope) bytes

// ---- external data (external.c) -------------------------------------------------------------

struct wire_external {
    struct str location;
    uint64_t offset, length;
    bool has_length;
};
// Reads TensorProto.external_data of a checked tensor body. Reports external-... if it is invalid.
tsr_status tsr__external_parse(tsr_session *session, struct str tensor, const struct place *at,
                               struct wire_external *out) TSR_MUST_USE;
// Opens the data file and checks that [offset, offset + length) is inside it.
tsr_status tsr__external_open(tsr_session *session, const struct folder *folder,
                              const struct wire_external *external, const struct place *at,
                              int *fd_out, uint64_t *length_out) TSR_MUST_USE;
// Maps the range for reading. tsr__fd_unmap ends it.
tsr_status tsr__external_map(tsr_session *session, const struct folder *folder,
                             const struct wire_external *external, const struct place *at,
                             struct mapped_range *out) TSR_MUST_USE;

#endif
