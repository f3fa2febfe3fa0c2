// SPDX-License-Identifier: Apache-2.0
// wire.c - fuzzes reading and writing of protobuf: check, read, encode, rewrite.
//
// The first byte selects the message type. Corrupt bytes must lead to one diagnostic with a
// position and be safe to read. Valid ones must keep their meaning when they are encoded and
// rewritten.
#include "fuzz.h"
#include "wire/wire.h"

// Reads every field, and known messages recursively, even corrupt ones.
static uint64_t walk(struct str body, enum wire_message m, int depth)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    uint64_t sum = 0;
    while (tsr__wire_next(&c, &f)) {
        const struct wire_row *row = tsr__wire_row(m, f.number);
        MUST(f.whole.p >= body.p && f.whole.p + f.whole.n <= body.p + body.n && f.whole.n >= 2);
        MUST(f.number > 0 || f.type == WIRE_GROUP_BEGIN);
        sum += f.integer + f.bytes.n;
        if (f.bytes.n)
            sum += (unsigned char)f.bytes.p[f.bytes.n - 1];
        if (row && row->kind == KIND_MESSAGE && f.type == WIRE_LEN && depth < WIRE_MAX_DEPTH)
            sum += walk(f.bytes, (enum wire_message)row->message, depth + 1);
    }
    MUST(c.wrong || c.p == c.end);
    return sum;
}

static void read_parts(struct arena *a, struct str body, uint32_t number)
{
    int64_t ints[8], value;
    bool present;
    tsr__wire_bytes(body, number, &present);
    tsr__wire_int(body, number, &value);
    tsr__wire_ints(body, number, ints, TSR_COUNT(ints));
    tsr__wire_merged(a, body, number, &present);
}

static void encode(struct rope *r, struct str body, enum wire_message m)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        const struct wire_row *row = tsr__wire_row(m, f.number);
        if (f.type == WIRE_VARINT) {
            tsr__rope_int(r, f.number, (int64_t)f.integer);
        } else if (f.type == WIRE_LEN && row && row->kind == KIND_MESSAGE) {
            size_t mark = tsr__rope_begin(r, f.number);
            encode(r, f.bytes, (enum wire_message)row->message);
            tsr__rope_end(r, mark);
        } else if (f.type == WIRE_LEN) {
            tsr__rope_bytes(r, f.number, f.bytes);
        } else {
            tsr__rope_view(r, f.whole);
        }
    }
}

// Rewrites body with parts that are kept, dropped, duplicated, swapped or new, by `dice`.
static void rewrite(struct rope *r, struct str body, enum wire_message m, uint64_t dice)
{
    uint32_t managed[WIRE_MAX_NUMBER];
    size_t n_managed = 0;
    for (uint32_t number = 1; number <= WIRE_MAX_NUMBER; number++)
        if (tsr__wire_row(m, number) && (dice == 0 || (dice >> (number % 32) & 1)))
            managed[n_managed++] = number;
    VEC(struct wire_part) parts = {0};
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        bool mine = false;
        for (size_t i = 0; i < n_managed; i++)
            mine |= managed[i] == f.number;
        if (!mine)
            continue;
        dice = dice ? dice * 6364136223846793005u + 1442695040888963407u : 0;
        unsigned what = dice >> 60;
        struct wire_part kept = {.number = f.number, .span = f.whole};
        struct wire_part fresh = {.number = f.number, .span = tsr__arena_str(r->arena, f.whole)};
        for (unsigned i = 0; i < (what == 1 ? 0u : what == 2 ? 2u : 1u); i++) {
            struct wire_part *part = vec_push(r->arena, &parts);
            MUST(part);
            *part = what == 3 ? fresh : kept;
        }
        if (what == 4 && parts.n > 1) {
            struct wire_part last = parts.at[parts.n - 1];
            parts.at[parts.n - 1] = parts.at[0];
            parts.at[0] = last;
        }
    }
    tsr__rope_rewrite(r, body, managed, n_managed, parts.at, parts.n);
    uint64_t bytes = 0;
    for (size_t i = 0; i < parts.n; i++)
        bytes += parts.at[i].span.n;
    c = wire_over(body);
    while (tsr__wire_next(&c, &f)) {
        bool mine = false;
        for (size_t i = 0; i < n_managed; i++)
            mine |= managed[i] == f.number;
        bytes += mine ? 0 : f.whole.n;
    }
    MUST(rope_size(r) == bytes);
}

// Replacing strings in place must give the same result as rewriting them.
static void splice_field(struct arena *a, struct str body, enum wire_message m, uint32_t number)
{
    const struct wire_row *row = tsr__wire_row(m, number);
    struct wire_splice splices[8];
    struct wire_part parts[8];
    size_t n = 0;
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    if (!row || row->kind != KIND_BYTES)
        return;
    while (tsr__wire_next(&c, &f)) {
        if (f.number != number)
            continue;
        if (f.type != WIRE_LEN || n == TSR_COUNT(splices))
            return;
        splices[n] = (struct wire_splice){f.whole, number, STR("exchanged")};
        parts[n++] = (struct wire_part){.number = number, .text = true, .span = STR("exchanged")};
    }
    struct rope one, other;
    tsr__rope_init(&one, a);
    tsr__rope_init(&other, a);
    tsr__rope_splice(&one, 7, body, splices, n);
    size_t mark = tsr__rope_begin(&other, 7);
    tsr__rope_rewrite(&other, body, &number, 1, parts, n);
    tsr__rope_end(&other, mark);
    MUST(str_eq(tsr__rope_flat(&one, a), tsr__rope_flat(&other, a)));
}

static void good(tsr_session *s, struct arena *a, struct str body, enum wire_message m,
                 uint64_t dice)
{
    struct rope r, again;
    tsr__rope_init(&r, a);
    encode(&r, body, m);
    struct str encoded = tsr__rope_flat(&r, a);
    MUST(tsr__wire_check(s, STR("encoded"), encoded.p, encoded, m, 0) == TSR_OK);
    MUST(walk(encoded, m, 0) == walk(body, m, 0) || encoded.n < body.n);
    tsr__rope_init(&again, a);
    encode(&again, encoded, m);
    MUST(str_eq(tsr__rope_flat(&again, a), encoded));
    tsr__rope_init(&r, a);
    rewrite(&r, body, m, 0);
    MUST(str_eq(tsr__rope_flat(&r, a), body));
    splice_field(a, body, m, 1 + dice % 8);
    tsr__rope_init(&r, a);
    rewrite(&r, body, m, dice | 1);
    struct str rewritten = tsr__rope_flat(&r, a);
    MUST(tsr__wire_check(s, STR("rewritten"), rewritten.p, rewritten, m, 0) == TSR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    enum wire_message m = (enum wire_message)(data[0] % WIRE_MESSAGE_COUNT);
    struct str body = {(const char *)data + 1, n - 1};
    tsr_session *s = tsr_session_new(NULL);
    struct arena a;
    tsr__arena_init(&a, s);
    tsr_status st = tsr__wire_check(s, STR("input"), body.p, body, m, 0);
    walk(body, m, 0);
    read_parts(&a, body, body.n ? (unsigned char)body.p[body.n - 1] % 16 : 1);
    if (st == TSR_OK) {
        MUST(tsr_finding_count(s) == 0);
        good(s, &a, body, m, tsr__hash64(body.p, body.n, data[0]));
    } else {
        MUST(st == TSR_MALFORMED && tsr_finding_count(s) == 1);
        MUST(tsr_finding_value(s, 0).offset < body.n);
    }
    struct place at = PLACE_NONE;
    struct wire_external e;
    if (m == WIRE_TENSOR && st == TSR_OK && tsr__external_parse(s, body, &at, &e) == TSR_OK)
        MUST(e.location.n > 0 && e.offset <= INT64_MAX && e.length <= INT64_MAX);
    tsr__arena_free(&a);
    tsr_session_free(s);
    return 0;
}
