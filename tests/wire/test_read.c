// SPDX-License-Identifier: Apache-2.0
// test_read.c - accepted and rejected messages with code and byte offset; reading single fields.
#include "help.h"

static tsr_status check(tsr_session *s, struct str body, enum wire_message m)
{
    return tsr__wire_check(s, STR("model.onnx"), body.p, body, m, 0);
}

// One row per case; no code: accepted. reference.py compares `wire` with Python's onnx on more
// cases.
static const struct {
    const char *name, *hex;
    enum wire_message message;
    const char *code;
    uint64_t offset;
} cases[] = {
    {"empty", "", WIRE_MODEL, NULL, 0},
    {"integer", "0800", WIRE_MODEL, NULL, 0},
    {"text", "1201 61", WIRE_MODEL, NULL, 0},
    {"text that is no UTF-8", "1202 fffe", WIRE_MODEL, NULL, 0},
    {"tag alone", "0800 08", WIRE_MODEL, "wire-truncated", 2},
    {"tag cut", "0800 88", WIRE_MODEL, "wire-truncated", 2},
    {"integer cut", "08 80", WIRE_MODEL, "wire-truncated", 0},
    {"length cut", "0800 12 80", WIRE_MODEL, "wire-truncated", 2},
    {"4 bytes cut", "0d 000000", WIRE_MODEL, "wire-truncated", 0},
    {"8 bytes cut", "09 00000000000000", WIRE_MODEL, "wire-truncated", 0},
    {"4 bytes of an unknown kind", "0d 00000000", WIRE_MODEL, NULL, 0},
    {"8 bytes of an unknown kind", "09 0000000000000000", WIRE_MODEL, NULL, 0},
    {"length past the end", "0800 1202 61", WIRE_MODEL, "wire-length", 2},
    {"length past the parent", "3a02 1202 6161", WIRE_MODEL, "wire-length", 2},
    {"length 2^31 - 1", "12 ffffffff07", WIRE_MODEL, "wire-length", 0},
    {"length 2^32 - 1", "12 ffffffff0f", WIRE_MODEL, "wire-length", 0},
    {"length 2^63", "12 80808080808080808001", WIRE_MODEL, "wire-length", 0},
    {"length 2^64 - 1", "12 ffffffffffffffffff01", WIRE_MODEL, "wire-length", 0},
    {"length of 11 bytes", "12 8080808080808080808000", WIRE_MODEL, "wire-length", 0},
    {"length of 5 bytes", "12 8080808000", WIRE_MODEL, NULL, 0},
    {"length of 6 bytes", "12 808080808000", WIRE_MODEL, "wire-length", 0},
    {"field 0", "0800 00 00", WIRE_MODEL, "wire-tag", 2},
    {"field 0 as text", "02 00", WIRE_MODEL, "wire-tag", 0},
    {"field 0, long tag", "8000 00", WIRE_MODEL, "wire-tag", 0},
    {"wire type 6", "16 00", WIRE_MODEL, "wire-tag", 0},
    {"wire type 7", "17 00", WIRE_MODEL, "wire-tag", 0},
    {"tag of 5 bytes", "8880808000 00", WIRE_MODEL, NULL, 0},
    {"tag of 6 bytes", "888080808000 00", WIRE_MODEL, "wire-tag", 0},
    {"tag of 11 bytes", "8880808080808080808000 00", WIRE_MODEL, "wire-tag", 0},
    {"largest field number", "f8ffffff0f 01", WIRE_MODEL, NULL, 0},
    {"tag above 32 bits", "8880808010 00", WIRE_MODEL, "wire-tag", 0},
    {"integer of 10 bytes", "08 ffffffffffffffffff01", WIRE_MODEL, NULL, 0},
    {"integer of 10 bytes, spare bits", "08 ffffffffffffffffff7f", WIRE_MODEL, NULL, 0},
    {"long zero", "08 80808080808080808000", WIRE_MODEL, NULL, 0},
    {"integer of 11 bytes", "0800 08 8080808080808080808000", WIRE_MODEL, "wire-varint", 2},
    {"group", "0b 0c", WIRE_MODEL, NULL, 0},
    {"group in a known message", "3a02 0b0c", WIRE_MODEL, NULL, 0},
    {"known message as a group", "3b 3c", WIRE_MODEL, NULL, 0},
    {"groups in a group", "f307 0b 0c f407", WIRE_MODEL, NULL, 0},
    {"group with all kinds", "f307 0801 120161 0d00000000 090000000000000000 f407", WIRE_MODEL,
     NULL, 0},
    {"field 0 in a group", "f307 0000 f407", WIRE_MODEL, NULL, 0},
    {"group not closed", "0800 0b", WIRE_MODEL, "wire-group", 2},
    {"group closed under another number", "0b 14", WIRE_MODEL, "wire-group", 0},
    {"group closed, not opened", "0800 0c", WIRE_MODEL, "wire-group", 2},
    {"group closed, not opened, below", "3a01 0c", WIRE_MODEL, "wire-group", 2},
    {"group with damage inside", "3b 0a 3c", WIRE_MODEL, "wire-length", 0},
    {"group with wire type 7 inside", "3b 0f 3c", WIRE_MODEL, "wire-tag", 0},
    {"known field of another kind", "3801 0a0161", WIRE_MODEL, NULL, 0},
    {"damage in a field of another kind", "0a03 ffffff", WIRE_MODEL, NULL, 0},
    {"reserved number", "1a01 ff", WIRE_GRAPH, NULL, 0},
    {"packed floats", "2208 0000000000000000", WIRE_TENSOR, NULL, 0},
    {"packed floats cut", "2205 0000000000", WIRE_TENSOR, "wire-packed", 0},
    {"packed doubles", "5208 0000000000000000", WIRE_TENSOR, NULL, 0},
    {"packed doubles cut", "5204 00000000", WIRE_TENSOR, "wire-packed", 0},
    {"packed integers, none", "0a00", WIRE_TENSOR, NULL, 0},
    {"packed integers", "0a03 018001", WIRE_TENSOR, NULL, 0},
    {"packed integers cut", "0a02 0180", WIRE_TENSOR, "wire-packed", 0},
    {"packed integers, 10 bytes", "0a0a ffffffffffffffffff7f", WIRE_TENSOR, NULL, 0},
    {"packed integers, 11 bytes", "0a0b ffffffffffffffffffff00", WIRE_TENSOR, "wire-packed", 0},
    {"packed after many short ones", "3a0a 00000000000000000080", WIRE_TENSOR, "wire-packed", 0},
    {"singular integer as bytes", "1201 80", WIRE_TENSOR, NULL, 0},
    {"sequence value with a damaged tensor", "1a02 0a05", WIRE_SEQUENCE, "wire-length", 2},
    {"map value", "1a0101 2a021001", WIRE_MAP, NULL, 0},
    {"optional value", "1001 1a021007", WIRE_OPTIONAL, NULL, 0},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct bytes b = from_hex(cases[i].hex);
        tsr_session *s = tsr_session_new(NULL);
        tsr_status st = check(s, view(&b), cases[i].message);
        if ((st != TSR_OK) != (cases[i].code != NULL))
            fail_msg("%s: status %d", cases[i].name, (int)st);
        if (cases[i].code) {
            assert_int_equal(st, TSR_MALFORMED);
            assert_finding(s, cases[i].code);
            if (tsr_finding_value(s, 0).offset != cases[i].offset)
                fail_msg("%s: offset %d", cases[i].name, (int)tsr_finding_value(s, 0).offset);
            assert_string_equal(tsr_finding_value(s, 0).file, "model.onnx");
        } else {
            assert_int_equal(tsr_finding_count(s), 0);
        }
        tsr_session_free(s);
        free(b.p);
    }
}

// Every prefix of a message must be rejected, unless it ends between two fields of the outermost
// message.
static void test_every_prefix(void **state)
{
    (void)state;
    const char *hex = "080b 1a0161 3a0d 0a0b 220452656c75 52030a0163 d201 05 0a01631002";
    static const size_t whole[] = {0, 2, 5, 20, 28};
    struct bytes b = from_hex(hex);
    assert_int_equal(b.n, 28);
    for (size_t n = 0; n <= b.n; n++) {
        bool fits = false;
        for (size_t i = 0; i < TSR_COUNT(whole); i++)
            fits |= whole[i] == n;
        char *exact = malloc(n ? n : 1); // exact size: a sanitizer reports a read past the end
        assert_non_null(exact);
        memcpy(exact, b.p, n);
        tsr_session *s = tsr_session_new(NULL);
        tsr_status st = check(s, (struct str){exact, n}, WIRE_MODEL);
        assert_int_equal(st, fits ? TSR_OK : TSR_MALFORMED);
        assert_int_equal(tsr_finding_count(s), fits ? 0 : 1);
        if (!fits)
            assert_true(tsr_finding_value(s, 0).offset < n);
        tsr_session_free(s);
        free(exact);
    }
    free(b.p);
}

// Wraps b in field `number`, as one more level.
static void wrap(struct bytes *b, uint32_t number)
{
    struct bytes outer = {0};
    put_len(&outer, number, b->p, b->n);
    free(b->p);
    *b = outer;
}

static void assert_depth(struct bytes *b, enum wire_message m, bool fits)
{
    tsr_session *s = tsr_session_new(NULL);
    assert_int_equal(check(s, view(b), m), fits ? TSR_OK : TSR_MALFORMED);
    if (!fits)
        assert_finding(s, "wire-depth");
    tsr_session_free(s);
    free(b->p);
}

// A chain of n nested messages, whose field numbers repeat with the given period (innermost last).
static struct bytes chain(int n, const uint32_t *period, int n_period)
{
    struct bytes b = from_hex("");
    for (int i = n - 1; i >= 0; i--)
        wrap(&b, period[i % n_period]);
    return b;
}

// 99, 100 and 101 levels through every kind of recursion; the limit is 100.
static void test_depth_of_messages(void **state)
{
    (void)state;
    static const uint32_t graphs[] = {F_GRAPH_NODE, F_NODE_ATTRIBUTE, F_ATTRIBUTE_G};
    static const uint32_t lists[] = {F_GRAPH_NODE, F_NODE_ATTRIBUTE, F_ATTRIBUTE_GRAPHS};
    static const uint32_t sequences[] = {F_TYPE_SEQUENCE_TYPE, F_TYPE_SEQUENCE_ELEM_TYPE};
    static const uint32_t optionals[] = {F_TYPE_OPTIONAL_TYPE, F_TYPE_OPTIONAL_ELEM_TYPE};
    static const uint32_t maps[] = {F_TYPE_MAP_TYPE, F_TYPE_MAP_VALUE_TYPE};
    static const uint32_t values[] = {F_SEQUENCE_SEQUENCE_VALUES};
    for (int n = 99; n <= 101; n++) {
        bool fits = n <= WIRE_MAX_DEPTH;
        struct bytes b = chain(n, graphs, 3);
        assert_depth(&b, WIRE_GRAPH, fits);
        b = chain(n, lists, 3);
        assert_depth(&b, WIRE_GRAPH, fits);
        b = chain(n, sequences, 2);
        assert_depth(&b, WIRE_TYPE, fits);
        b = chain(n, optionals, 2);
        assert_depth(&b, WIRE_TYPE, fits);
        b = chain(n, maps, 2);
        assert_depth(&b, WIRE_TYPE, fits);
        b = chain(n, values, 1);
        assert_depth(&b, WIRE_SEQUENCE, fits);
        b = chain(n - 2, graphs, 3); // below training_info.algorithm of a model
        wrap(&b, F_TRAINING_ALGORITHM);
        wrap(&b, F_MODEL_TRAINING_INFO);
        assert_depth(&b, WIRE_MODEL, fits);
        static const uint32_t body[] = {F_NODE_ATTRIBUTE, F_ATTRIBUTE_G, F_GRAPH_NODE};
        b = chain(n - 2, body, 3); // below a node of a function
        wrap(&b, F_FUNCTION_NODE);
        wrap(&b, F_MODEL_FUNCTIONS);
        assert_depth(&b, WIRE_MODEL, fits);
    }
    struct bytes deep = {0};
    put(&deep, "", 0);
    uint64_t levels = 20000; // the lengths below are invalid, but the depth limit is reached first
    for (uint64_t i = 0; i < levels; i++) {
        put_tag(&deep, graphs[i % 3], WIRE_LEN);
        put_varint(&deep, 0x1fffff - 4 * i); // always 3 bytes
    }
    struct bytes padded = {0};
    put(&padded, deep.p, deep.n);
    padded.p = realloc(padded.p, 0x200010);
    // tag 1, value 8: valid fields up to the end
    memset(padded.p + padded.n, 0x08, 0x200010 - padded.n);
    padded.n = 4 + 0x1fffff;
    free(deep.p);
    assert_depth(&padded, WIRE_GRAPH, false);
}

// The limit counts groups like messages, also if they are mixed.
static void test_depth_of_groups(void **state)
{
    (void)state;
    static const uint32_t sequences[] = {F_TYPE_SEQUENCE_TYPE, F_TYPE_SEQUENCE_ELEM_TYPE};
    for (int groups = 0; groups <= 102; groups++) {
        for (int below = 0; below <= 100; below += below < 98 ? 49 : 1) {
            struct bytes b = from_hex("");
            for (int i = 0; i < groups; i++)
                put_tag(&b, 1000, WIRE_GROUP_BEGIN);
            for (int i = 0; i < groups; i++)
                put_tag(&b, 1000, WIRE_GROUP_END);
            for (int i = below - 1; i >= 0; i--)
                wrap(&b, sequences[i % 2]);
            assert_depth(&b, WIRE_TYPE, groups + below <= 100);
        }
    }
    struct bytes b = from_hex("");
    for (int i = 0; i < 1000000; i++)
        put(&b, "\x0b", 1);
    assert_depth(&b, WIRE_MODEL, false);
    b = from_hex("0b0a020b00 0c"); // text inside a group is not parsed
    assert_depth(&b, WIRE_MODEL, true);
}

// Errors must be found in nested messages of every type: here a wrong length at the end.
static void test_every_message_is_walked(void **state)
{
    (void)state;
    for (int m = 0; m < WIRE_MESSAGE_COUNT; m++) {
        for (uint32_t number = 1; number <= WIRE_MAX_NUMBER; number++) {
            const struct wire_row *row = tsr__wire_row((enum wire_message)m, number);
            struct bytes b = {0};
            put_len(&b, number, "\x0a\x7f", 2); // a message whose only field is too long
            tsr_session *s = tsr_session_new(NULL);
            bool message = row && row->kind == KIND_MESSAGE;
            tsr_status st = check(s, view(&b), (enum wire_message)m);
            if (message) {
                assert_int_equal(st, TSR_MALFORMED);
                assert_int_equal(tsr_finding_value(s, 0).offset, number < 16 ? 2 : 3);
            } else if (!row || row->check == INSIDE_ANY) {
                assert_int_equal(st, TSR_OK);
            }
            if (row)
                assert_int_equal(row->number, number);
            tsr_session_free(s);
            free(b.p);
        }
        assert_null(tsr__wire_row((enum wire_message)m, 0));
        assert_null(tsr__wire_row((enum wire_message)m, WIRE_MAX_NUMBER + 1));
        assert_true(tsr__wire_message_name((enum wire_message)m)[0] != 0);
    }
    assert_null(tsr__wire_row(WIRE_MESSAGE_COUNT, 1));
}

// The last value of a field wins, lists may mix packed and unpacked, repeated messages are merged.
static void test_readers(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    struct arena a;
    tsr__arena_init(&a, s);
    struct bytes b = from_hex("0801 0d00000000 0803 1201 61 1202 6262 2a00");
    int64_t v = 0;
    bool present = false;
    assert_true(tsr__wire_int(view(&b), 1, &v));
    assert_int_equal(v, 3);
    assert_false(tsr__wire_int(view(&b), 2, &v));
    assert_same(tsr__wire_bytes(view(&b), 2, &present), STR("bb"));
    assert_true(present);
    assert_same(tsr__wire_bytes(view(&b), 5, &present), STR(""));
    assert_true(present);
    tsr__wire_bytes(view(&b), 1, &present);
    assert_false(present);
    assert_same(tsr__wire_merged(&a, view(&b), 2, &present), STR("abb"));
    assert_same(tsr__wire_merged(&a, view(&b), 5, NULL), STR(""));
    tsr__wire_merged(&a, view(&b), 9, &present);
    assert_false(present);
    free(b.p);
    b = from_hex("0801 0a03 02ac02 08ffffffffffffffffff01 0a00 0d00000000");
    int64_t ints[4] = {0};
    assert_int_equal(tsr__wire_ints(view(&b), 1, NULL, 0), 4);
    assert_int_equal(tsr__wire_ints(view(&b), 1, ints, 4), 4);
    assert_int_equal(ints[0], 1);
    assert_int_equal(ints[1], 2);
    assert_int_equal(ints[2], 300);
    assert_int_equal(ints[3], -1);
    ints[2] = 7;
    assert_int_equal(tsr__wire_ints(view(&b), 1, ints, 2), 4);
    assert_int_equal(ints[2], 7);
    free(b.p);
    tsr__arena_free(&a);
    tsr_session_free(s);
}

// Iterates over fields of all wire types; stops at the first error.
static void test_cursor(void **state)
{
    (void)state;
    struct bytes b = from_hex("0801 0d01020304 090102030405060708 1b 0801 1c a20601 61 1205 61");
    struct wire_cursor c = wire_over(view(&b));
    struct wire_field f;
    assert_true(tsr__wire_next(&c, &f) && f.type == WIRE_VARINT && f.integer == 1);
    assert_true(tsr__wire_next(&c, &f) && f.type == WIRE_I32 && f.integer == 0x04030201);
    assert_true(tsr__wire_next(&c, &f) && f.type == WIRE_I64);
    assert_true(f.integer == 0x0807060504030201);
    assert_true(tsr__wire_next(&c, &f) && f.type == WIRE_GROUP_BEGIN && f.number == 3);
    assert_int_equal(f.bytes.n, 2);
    assert_int_equal(f.whole.n, 4);
    assert_true(tsr__wire_next(&c, &f) && f.number == 100 && f.integer == 1);
    assert_same(f.bytes, STR("a"));
    assert_null(c.wrong);
    assert_false(tsr__wire_next(&c, &f));
    assert_non_null(c.wrong);
    assert_int_equal((const char *)c.p - b.p, b.n - 3);
    free(b.p);
    c = wire_over((struct str){0});
    assert_false(tsr__wire_next(&c, &f));
    assert_null(c.wrong);
}

// Checking must not allocate memory, whatever a length field claims.
static void test_no_memory(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    struct bytes b = {0};
    for (int i = 0; i < 50000; i++) // empty nodes, which need 98 times their size in other readers
        put(&b, "\x0a\x00", 2);
    wrap(&b, F_MODEL_GRAPH);
    size_t before = s->memory_used;
    assert_int_equal(check(s, view(&b), WIRE_MODEL), TSR_OK);
    assert_int_equal(s->memory_peak, before);
    tsr__session_fault(s, FAULT_ALLOC, 1, true);
    assert_int_equal(check(s, view(&b), WIRE_MODEL), TSR_OK);
    tsr_session_free(s);
    free(b.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_depth_of_messages),
        cmocka_unit_test(test_depth_of_groups),
        cmocka_unit_test(test_every_message_is_walked),
        cmocka_unit_test(test_readers),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
