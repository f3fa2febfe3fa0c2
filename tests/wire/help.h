// SPDX-License-Identifier: Apache-2.0
// help.h - shared by the tests of wire: bytes from hex text, small messages, diagnostics.
#ifndef TSR_TESTS_WIRE_HELP_H
#define TSR_TESTS_WIRE_HELP_H

#include "wire/wire.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

// A growing message under construction; the bytes are freed by the test with free(b.p).
struct bytes {
    char *p;
    size_t n, cap;
};

static inline void put(struct bytes *b, const void *p, size_t n)
{
    if (!b->p || b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 16;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void put_varint(struct bytes *b, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        put(b, &(unsigned char){(unsigned char)(v | 128)}, 1);
    put(b, &(unsigned char){(unsigned char)v}, 1);
}

static inline void put_tag(struct bytes *b, uint32_t number, enum wire_type type)
{
    put_varint(b, (uint64_t)number << 3 | type);
}

static inline void put_len(struct bytes *b, uint32_t number, const void *p, size_t n)
{
    put_tag(b, number, WIRE_LEN);
    put_varint(b, n);
    put(b, p, n);
}

// "0a 0157 10" as bytes; blanks are skipped.
static inline struct bytes from_hex(const char *text)
{
    struct bytes b = {0};
    put(&b, "", 0);
    for (const char *p = text; *p; p++) {
        unsigned v;
        if (*p == ' ')
            continue;
        assert_int_equal(sscanf(p, "%2x", &v), 1);
        put(&b, &(unsigned char){(unsigned char)v}, 1);
        p++;
    }
    return b;
}

static inline struct str view(const struct bytes *b)
{
    return (struct str){b->p, b->n};
}

static inline void assert_same(struct str got, struct str wanted)
{
    assert_int_equal(got.n, wanted.n);
    if (wanted.n)
        assert_memory_equal(got.p, wanted.p, wanted.n);
}

// Asserts that there is exactly one diagnostic, with this code.
static inline void assert_finding(tsr_session *s, const char *code)
{
    assert_int_equal(tsr_finding_count(s), 1);
    assert_string_equal(tsr_finding_value(s, 0).code, code);
    assert_true(tsr_finding_value(s, 0).message[0] != 0);
}

#endif
