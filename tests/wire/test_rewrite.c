// SPDX-License-Identifier: Apache-2.0
// test_rewrite.c - rewrites a message from a file with some of its fields changed. All other bytes
// must stay the same.
//
// Cases are written as text: each field of the original message has a one-letter text, preceded by
// its field number. "1a 2b" is field 1 = "a", then field 2 = "b".
#include "help.h"

#define MAX_FIELDS 64

struct message {
    struct bytes bytes;
    uint32_t number[MAX_FIELDS];
    size_t start[MAX_FIELDS], size[MAX_FIELDS];
    char letter[MAX_FIELDS];
    size_t n;
};

static void parse(struct message *m, const char *text)
{
    *m = (struct message){.bytes = from_hex("")};
    for (const char *p = text; *p; p++) {
        if (*p == ' ')
            continue;
        uint32_t number = 0;
        for (; *p >= '0' && *p <= '9'; p++)
            number = number * 10 + (uint32_t)(*p - '0');
        m->number[m->n] = number;
        m->letter[m->n] = *p;
        m->start[m->n] = m->bytes.n;
        put_len(&m->bytes, number, p, 1);
        m->size[m->n] = m->bytes.n - m->start[m->n];
        m->n++;
    }
}

// The parts of `now`: a lower-case letter that the original has under that number refers to its
// bytes there; otherwise the part is new.
static size_t parts_of(const struct message *origin, const struct message *now,
                       struct wire_part *out)
{
    for (size_t i = 0; i < now->n; i++) {
        struct str span = {now->bytes.p + now->start[i], now->size[i]};
        for (size_t k = 0; k < origin->n; k++)
            if (origin->number[k] == now->number[i] && origin->letter[k] == now->letter[i])
                span = (struct str){origin->bytes.p + origin->start[k], origin->size[k]};
        out[i] = (struct wire_part){.number = now->number[i], .span = span};
    }
    return now->n;
}

struct fixture {
    tsr_session *s;
    struct arena a;
    struct rope r;
};

static void setup(struct fixture *x)
{
    x->s = tsr_session_new(NULL);
    tsr__arena_init(&x->a, x->s);
    tsr__rope_init(&x->r, &x->a);
}

static void teardown(struct fixture *x)
{
    tsr__arena_free(&x->a);
    tsr_session_free(x->s);
}

static const uint32_t managed[] = {2, 4, 5};

static const struct {
    const char *what, *origin, *now, *wanted;
} cases[] = {
    {"nothing", "", "", ""},
    {"unchanged", "1a 2b 2c 3d 4e 9f", "2b 2c 4e", "1a 2b 2c 3d 4e 9f"},
    {"all gone", "1a 2b 2c 3d 4e 9f", "", "1a 3d 9f"},
    {"one gone", "1a 2b 2c 3d 4e 9f", "2c 4e", "1a 2c 3d 4e 9f"},
    {"added behind the last", "1a 2b 2c 3d", "2b 2c 2X", "1a 2b 2c 2X 3d"},
    {"added in front", "1a 2b 2c 3d", "2X 2b 2c", "1a 2X 2b 2c 3d"},
    {"added between", "1a 2b 2c 3d", "2b 2X 2c", "1a 2b 2X 2c 3d"},
    {"replaced", "1a 2b 3d 2c 3e", "2b 2X", "1a 2b 3d 2X 3e"},
    {"replaced in the middle", "2a 3b 2c 3d 2e", "2a 2X 2e", "2a 3b 2X 3d 2e"},
    {"all replaced", "2a 3b 2c 3d 2e", "2X 2Y 2Z", "2X 3b 2Y 3d 2Z"},
    {"all replaced by fewer", "2a 3b 2c 3d 2e", "2X", "2X 3b 3d"},
    {"all replaced by more", "2a 3b 2c 3d", "2X 2Y 2Z", "2X 3b 2Y 2Z 3d"},
    {"gone and added", "2a 3b 2c 3d 2e", "2c 2X", "3b 2c 3d 2X"},
    {"reordered", "2a 3b 2c 3d 2e", "2e 2c 2a", "2e 2c 2a 3b 3d"},
    {"reordered, with a new one", "1z 2a 3b 2c 3d", "2c 2X 2a", "1z 2c 2X 2a 3b 3d"},
    {"twice the same", "2a 3b 2c", "2a 2a 2c", "2a 2a 2c 3b"},
    {"new number in its order", "1a 3b 9c", "2X", "1a 2X 3b 9c"},
    {"new numbers in their order", "1a 3b 9c", "5Z 4Y 2X", "1a 2X 3b 4Y 5Z 9c"},
    {"new numbers at the end", "1a", "5Z 4Y", "1a 4Y 5Z"},
    {"new numbers in front", "9a 1b", "4Y", "4Y 9a 1b"},
    {"into nothing", "", "5Z 2X 2W", "2X 2W 5Z"},
    {"singular twice, changed", "4a 3b 4c", "4X", "4X 3b"},
    {"singular twice, unchanged", "4a 3b 4c", "4a 4c", "4a 3b 4c"},
    {"singular twice, last kept", "4a 3b 4c", "4c", "3b 4c"},
    {"order of the file is not ascending", "9a 4b 2c 3d 2e", "2c 2X 4b", "9a 4b 2c 3d 2X"},
    {"unknown numbers in between", "1000a 2b 1000c 2d 1000e", "2b 2d 2X",
     "1000a 2b 1000c 2d 2X 1000e"},
    {"parts of several numbers mixed", "2a 4b 2c 5d", "5d 2c 4b", "4b 2c 5d"},
};

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct message origin, now, wanted;
        struct wire_part parts[MAX_FIELDS];
        struct fixture x;
        setup(&x);
        parse(&origin, cases[i].origin);
        parse(&now, cases[i].now);
        parse(&wanted, cases[i].wanted);
        size_t n = parts_of(&origin, &now, parts);
        tsr__rope_rewrite(&x.r, view(&origin.bytes), managed, TSR_COUNT(managed), parts, n);
        struct str got = tsr__rope_flat(&x.r, &x.a);
        if (!str_eq(got, view(&wanted.bytes)))
            fail_msg("%s", cases[i].what);
        free(origin.bytes.p);
        free(now.bytes.p);
        free(wanted.bytes.p);
        teardown(&x);
    }
}

static void write_field(struct rope *r, uint32_t number, void *data)
{
    tsr__rope_bytes(r, number, str_of(data));
}

// New parts may be written by a callback or given as text.
static void test_emitted_part(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    struct message origin, wanted;
    char text[] = "X";
    parse(&origin, "1a 2b 2c 9d");
    parse(&wanted, "1a 2b 2X 2Y 9d");
    struct wire_part parts[] = {
        {.number = 2, .span = {origin.bytes.p + origin.start[1], origin.size[1]}},
        {.number = 2, .emit = write_field, .data = text},
        {.number = 2, .text = true, .span = STR("Y")},
    };
    tsr__rope_rewrite(&x.r, view(&origin.bytes), managed, TSR_COUNT(managed), parts, 3);
    assert_same(tsr__rope_flat(&x.r, &x.a), view(&wanted.bytes));
    free(origin.bytes.p);
    free(wanted.bytes.p);
    teardown(&x);
}

// Replaces texts in a message, small and large; the lengths must be updated correctly.
static void test_splice(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 127, 128, 5000, 16384, 70000, 300000};
    char *long_text = calloc(1, 300001);
    assert_non_null(long_text);
    memset(long_text, 'q', 300000);
    for (size_t i = 0; i < TSR_COUNT(sizes); i++) {
        struct fixture x;
        setup(&x);
        struct message origin;
        parse(&origin, "1a 2b 1c 9d");
        struct bytes body = {0}, wanted = {0};
        struct str text = {long_text, sizes[i]};
        put_len(&body, 1, "a", 1);
        put_len(&body, 2, text.p, text.n);
        put_len(&body, 1, "new", 3);
        put_len(&body, 9, "d", 1);
        put_len(&wanted, 5, body.p, body.n);
        put_len(&wanted, 5, origin.bytes.p, origin.bytes.n);
        const char *p = origin.bytes.p;
        struct wire_splice splices[] = {
            {{p + origin.start[1], origin.size[1]}, 2, text},
            {{p + origin.start[2], origin.size[2]}, 1, STR("new")},
        };
        tsr__rope_splice(&x.r, 5, view(&origin.bytes), splices, 2);
        tsr__rope_splice(&x.r, 5, view(&origin.bytes), NULL, 0);
        assert_same(tsr__rope_flat(&x.r, &x.a), view(&wanted));
        free(origin.bytes.p);
        free(body.p);
        free(wanted.p);
        teardown(&x);
    }
    free(long_text);
}

// Fields of unknown types and groups must be kept. An unchanged message must be one byte range of
// the original.
static void test_unknown_fields_stay(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    struct bytes b =
        from_hex("1b 0801 1c 0d01020304 120161 2801 8a7d 0161 090102030405060708 120162 1001");
    struct wire_part parts[4];
    size_t n = 0;
    struct wire_cursor c = wire_over(view(&b));
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        if (f.number == 2 || f.number == 5)
            parts[n++] = (struct wire_part){.number = f.number, .span = f.whole};
    assert_null(c.wrong);
    assert_int_equal(n, 4);
    tsr__rope_rewrite(&x.r, view(&b), managed, TSR_COUNT(managed), parts, n);
    assert_int_equal(x.r.pieces.n, 1);
    assert_ptr_equal(x.r.pieces.at[0].p, b.p);
    assert_int_equal(rope_size(&x.r), b.n);
    free(b.p);
    teardown(&x);
}

// Many members: the time must be linear; quadratic time would take minutes for 200,000.
static void test_many(void **state)
{
    (void)state;
    enum { MANY = 200000 };
    struct bytes b = from_hex(""), fresh = {0};
    struct wire_part *parts = calloc(MANY, sizeof *parts);
    assert_non_null(parts);
    for (int i = 0; i < MANY; i++)
        put_len(&b, 2, "abcdef", 6);
    put_len(&fresh, 2, "ABCDEF", 6);
    for (int replaced = 0; replaced < 3; replaced++) {
        struct fixture x;
        setup(&x);
        for (int i = 0; i < MANY; i++) {
            bool keep = replaced == 0 || (replaced == 1 && i % 2);
            struct str span = keep ? (struct str){b.p + i * 8, 8} : view(&fresh);
            parts[i] = (struct wire_part){.number = 2, .span = span};
        }
        tsr__rope_rewrite(&x.r, view(&b), managed, TSR_COUNT(managed), parts, MANY);
        assert_int_equal(rope_size(&x.r), b.n);
        struct str got = tsr__rope_flat(&x.r, &x.a);
        for (int i = 0; i < MANY; i++)
            assert_true(got.p[i * 8 + 2] == (parts[i].span.p == fresh.p ? 'A' : 'a'));
        teardown(&x);
    }
    free(parts);
    free(b.p);
    free(fresh.p);
}

// Random messages, compared with a simple model of the rule: other fields keep their order, and so
// do the members.
static void test_random(void **state)
{
    (void)state;
    unsigned dice = 7;
    for (int round = 0; round < 5000; round++) {
        char origin_text[256] = "", now_text[256] = "";
        for (int i = 0, n = rand_r(&dice) % 12, at = 0; i < n; i++)
            at += snprintf(origin_text + at, 8, "%d%c ", 1 + rand_r(&dice) % 6, 'a' + i);
        for (int i = 0, n = rand_r(&dice) % 12, at = 0; i < n; i++) {
            static const int numbers[] = {2, 4, 5};
            char letter = (char)((rand_r(&dice) % 2 ? 'a' : 'A') + rand_r(&dice) % 12);
            at += snprintf(now_text + at, 8, "%d%c ", numbers[rand_r(&dice) % 3], letter);
        }
        struct message origin, now;
        struct wire_part parts[MAX_FIELDS];
        struct fixture x;
        setup(&x);
        parse(&origin, origin_text);
        parse(&now, now_text);
        size_t n = parts_of(&origin, &now, parts);
        tsr__rope_rewrite(&x.r, view(&origin.bytes), managed, TSR_COUNT(managed), parts, n);
        struct str got = tsr__rope_flat(&x.r, &x.a);
        size_t next_other = 0, next[8] = {0}, fields = 0;
        struct wire_cursor c = wire_over(got);
        struct wire_field f;
        while (tsr__wire_next(&c, &f)) {
            bool mine = f.number == 2 || f.number == 4 || f.number == 5;
            const struct message *from = mine ? &now : &origin;
            size_t *at = mine ? &next[f.number] : &next_other;
            while (*at < from->n && (mine ? from->number[*at] != f.number
                                          : from->number[*at] == 2 || from->number[*at] == 4 ||
                                                from->number[*at] == 5))
                ++*at;
            assert_true(*at < from->n);
            assert_int_equal(f.number, from->number[*at]);
            assert_true(f.bytes.p[0] == from->letter[*at]);
            ++*at;
            fields++;
        }
        size_t wanted = now.n;
        for (size_t i = 0; i < origin.n; i++)
            wanted += origin.number[i] != 2 && origin.number[i] != 4 && origin.number[i] != 5;
        assert_int_equal(fields, wanted);
        free(origin.bytes.p);
        free(now.bytes.p);
        teardown(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),  cmocka_unit_test(test_emitted_part),
        cmocka_unit_test(test_splice), cmocka_unit_test(test_unknown_fields_stay),
        cmocka_unit_test(test_many),   cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
