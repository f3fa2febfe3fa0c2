// SPDX-License-Identifier: Apache-2.0
// wire.h - protobuf bytes <-> ONNX messages. Knows the schema as a table of fields, knows no graph.
//
// Reading is a cursor over a message body that yields one field at a time as a view; a whole-file
// check walks every known nested message once (bounded depth, count, work) so that later, lazy
// readers of a part cannot fail. Writing is a rope: spans that did not change are referred to,
// never copied; only changed messages are encoded. Unknown fields stay where they were.
#ifndef TSR_WIRE_H
#define TSR_WIRE_H

#include "base/base.h"

// ---- the schema (schema.c) ------------------------------------------------------------------

// clang-format off
// One enumerator per ONNX message; the table gives kind and message type of every known field.
enum wire_message {
    WIRE_MODEL, WIRE_GRAPH, WIRE_NODE, WIRE_ATTRIBUTE, WIRE_TENSOR, WIRE_SEGMENT,
    WIRE_SPARSE_TENSOR, WIRE_VALUE_INFO, WIRE_TYPE, WIRE_TYPE_TENSOR, WIRE_TYPE_SEQUENCE,
    WIRE_TYPE_MAP, WIRE_TYPE_OPAQUE, WIRE_TYPE_SPARSE_TENSOR, WIRE_TYPE_OPTIONAL, WIRE_SHAPE,
    WIRE_DIMENSION, WIRE_OPSET, WIRE_STRING_PAIR, WIRE_ANNOTATION, WIRE_TRAINING, WIRE_FUNCTION,
    WIRE_CONFIG, WIRE_NODE_CONFIG, WIRE_SPEC, WIRE_GROUP, WIRE_SHARDED_DIM, WIRE_SIMPLE_DIM,
    WIRE_SEQUENCE, WIRE_MAP, WIRE_OPTIONAL, WIRE_MESSAGE_COUNT
};

// INT is any type that is a varint.
enum wire_kind { KIND_INT, KIND_FLOAT, KIND_DOUBLE, KIND_BYTES, KIND_MESSAGE };
enum wire_inside { INSIDE_ANY, INSIDE_MESSAGE, INSIDE_PACKED };
enum wire_type {
    WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_GROUP_BEGIN = 3, WIRE_GROUP_END = 4,
    WIRE_I32 = 5
};
// clang-format on

struct wire_row {
    uint16_t number;
    uint8_t kind;     // enum wire_kind
    uint8_t repeated; // 0 or 1
    uint8_t message;  // enum wire_message, for KIND_MESSAGE
    uint8_t check;    // what a length-delimited field of this row must be: enum wire_inside
    const char *name;
};
// Row of a field, or NULL if the schema does not know it.
const struct wire_row *tsr__wire_row(enum wire_message m, uint32_t number);
const char *tsr__wire_message_name(enum wire_message m); // as the schema calls it: "NodeProto"

// Field numbers: F_<message>_<field>, all of them.
#include "wire/fields.h"

// ---- reading (read.c) -----------------------------------------------------------------------

struct wire_field {
    uint32_t number;
    uint32_t type;    // enum wire_type
    uint64_t integer; // VARINT, I32, I64 (raw bits); LEN: the length
    struct str bytes; // LEN: the payload; GROUP_BEGIN: what is between the tags; else empty
    struct str whole; // tag and all, as it stands in the file
};
struct wire_cursor {
    const unsigned char *p, *end;
    const char *wrong; // NULL, or what was wrong at p
};
static inline struct wire_cursor wire_over(struct str body)
{
    const unsigned char *p = (const unsigned char *)(body.p ? body.p : "");
    return (struct wire_cursor){p, p + body.n, NULL};
}
// Two bytes (the first in the low half) that are a tag of one byte, not of field 0, and an integer or
// a length of one byte: wire types 0 and 2, no "more follows" in either.
static inline bool wire_is_short(uint32_t two)
{
    return (two & 0x8085) == 0 && (two & 0x78) != 0;
}
bool tsr__wire_next_slow(struct wire_cursor *cursor, struct wire_field *out);
// Next field; false at the end and on damage (then cursor->wrong says what, cursor->p where). The usual
// field, a tag and a length or value of one byte each, is decoded in place.
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

#define WIRE_MAX_DEPTH 100 // nested messages, as in the common protobuf libraries

// Checks the whole message with all known nested ones. `file` and `start` (first byte of the file
// in memory) place the finding. TSR_MALFORMED after exactly one finding (wire-...) with its byte
// offset.
tsr_status tsr__wire_check(tsr_session *session, struct str file, const char *start,
                           struct str body, enum wire_message m, int depth) TSR_MUST_USE;
// The same without a finding: for many small parts, with the check above for the one that is bad.
bool tsr__wire_sound(struct str body, enum wire_message m, int depth);

// Conveniences for parts that were checked (they skip what does not fit the asked kind, as protobuf
// does). An int32 field is the low 32 bits of its integer:
struct str tsr__wire_bytes(struct str body, uint32_t number, bool *present); // last one wins
bool tsr__wire_int(struct str body, uint32_t number, int64_t *out); // last one wins; false: absent
// Repeated integers, packed or not or mixed: how many, and the first cap values (out may be NULL
// with cap 0).
size_t tsr__wire_ints(struct str body, uint32_t number, int64_t *out, size_t cap);
// A singular message: its body; if it stands there several times, their concatenation (= protobuf's
// merge), made in the arena. present may be NULL.
struct str tsr__wire_merged(struct arena *arena, struct str body, uint32_t number, bool *present);

// ---- writing (write.c) ----------------------------------------------------------------------

// A nested message that was begun: where its length stands, and the bytes before its content.
struct rope_mark {
    size_t piece; // that holds the slot; SIZE_MAX while it is in the open run
    char *slot;
    uint64_t bytes;
};
// A list of spans: views of unchanged bytes and encoded new ones. Adjacent spans join. Sticky
// failure.
// [run, at) are encoded bytes behind the last piece that are no piece yet; [at, end) is free.
struct rope {
    struct arena *arena;
    VEC(struct str) pieces;
    uint64_t bytes; // of the pieces
    char *run, *at, *end;
    VEC(struct rope_mark) open; // messages begun and not ended
};
static inline uint64_t rope_size(const struct rope *rope)
{
    return rope->bytes + (uint64_t)(rope->at - rope->run);
}
void tsr__rope_init(struct rope *rope, struct arena *arena);
// Refers to span, which must live as long as the rope (very short ones may be copied).
void tsr__rope_view(struct rope *rope, struct str span);
void tsr__rope_copy(struct rope *rope, struct str bytes);
void tsr__rope_int(struct rope *rope, uint32_t number, int64_t value); // tag and varint
void tsr__rope_float(struct rope *rope, uint32_t number, float value);
// Tag, length and a copy; a value of 2 KiB or more is referred to and must live as long as the
// rope.
void tsr__rope_bytes(struct rope *rope, uint32_t number, struct str value);
// Repeated integers: unpacked, as proto2 writes most of them, and packed.
void tsr__rope_ints(struct rope *rope, uint32_t number, const int64_t *v, size_t n);
void tsr__rope_packed(struct rope *rope, uint32_t number, const int64_t *v, size_t n);
// A nested message of unknown length: mark = begin; ... fields ...; end(mark).
size_t tsr__rope_begin(struct rope *rope, uint32_t number);
void tsr__rope_end(struct rope *rope, size_t mark);

// Rewriting a message that came from a file. The caller lists what the managed fields hold now;
// everything else of `origin` is kept in place and order. For each managed number, members that are
// spans of origin (whole, with tag) stay where they were, absent ones go, new ones take the place
// of absent ones, else come after the member they follow in `parts`, else where ascending order of
// numbers puts them. Reordered members are all written at the first one's place. Parts of one
// number stand in their order; every number in parts is managed. With parts equal to what origin
// holds, the result is origin as one span.
struct wire_part {
    uint32_t number;
    bool text; // span is the value of a new text field; tag and length are still to be written
    struct str span; // else a complete field with tag: a view into origin, or encoded elsewhere
    // Not NULL: a new field that this function writes (tag and all) when its turn comes; span is
    // empty then.
    void (*emit)(struct rope *rope, void *data);
    void *data;
};
void tsr__rope_rewrite(struct rope *rope, struct str origin, const uint32_t *managed,
                       size_t n_managed, const struct wire_part *parts, size_t n_parts);

// A message that came from a file with some of its texts exchanged, the rest as it was: one field of
// `number`, in one go because its length is known. `old` are whole fields of origin, in their order.
struct wire_splice {
    struct str old;
    uint32_t number;
    struct str text; // p is not NULL
};
void tsr__rope_splice(struct rope *rope, uint32_t number, struct str origin,
                      const struct wire_splice *splice, size_t n);

// Streams the rope out. Large spans that lie in [map, map+n) are copied from fd by offset, not
// through memory.
void tsr__rope_write(const struct rope *rope, struct outfile *outfile, struct str map, int fd);
struct str tsr__rope_flat(const struct rope *rope, struct arena *arena); // one piece of memory
void tsr__rope_read(const struct rope *rope, char *out);                 // rope_size(r) bytes

// ---- external data (external.c) -------------------------------------------------------------

struct wire_external {
    struct str location, checksum;
    uint64_t offset, length;
    bool has_length;
};
// Reads TensorProto.external_data of a checked tensor body; finding external-... with the reason if
// it is bad.
tsr_status tsr__external_parse(tsr_session *session, struct str tensor, const struct place *at,
                               struct wire_external *out) TSR_MUST_USE;
// Opens the file beneath the folder and checks that [offset, offset + length) lies in it.
tsr_status tsr__external_open(tsr_session *session, const struct folder *folder,
                              const struct wire_external *external, const struct place *at,
                              int *fd_out, uint64_t *length_out) TSR_MUST_USE;
// Maps the window read-only; unmap with the same base and size.
struct external_map {
    void *base;
    size_t size;
    struct str bytes;
};
tsr_status tsr__external_map(tsr_session *session, const struct folder *folder,
                             const struct wire_external *external, const struct place *at,
                             struct external_map *out) TSR_MUST_USE;
void tsr__external_unmap(struct external_map *map);

#endif
