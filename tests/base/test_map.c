// SPDX-License-Identifier: Apache-2.0
// test_map.c - maps compared with a list: growth, expected sizes, unusual keys; and the stable hash
// compared with published values.
#include "scratch.h"

static void stress(void **state)
{
    struct scratch *t = *state;
    enum { N = 110000 };
    for (int presized = 0; presized < 2; presized++) {
        struct arena a;
        struct map m;
        tsr__arena_init(&a, t->s);
        tsr__map_init(&m, &a, presized ? N : 0);
        struct str *names = ARENA_ARRAY(&a, struct str, N);
        size_t cap = m.cap;
        for (size_t i = 0; i < N; i++) {
            names[i] = tsr__arena_printf(&a, "/model/layers.%zu/attn/MatMul_output_%zu", i / 7, i);
            assert_null(tsr__map_get(&m, names[i]));
            void **slot = tsr__map_at(&m, names[i]);
            assert_non_null(slot);
            assert_null(*slot);
            *slot = &names[i];
        }
        if (presized)
            assert_int_equal(m.cap, cap); // did not grow
        assert_int_equal(m.n, N);
        for (size_t i = 0; i < N; i++) {
            assert_ptr_equal(tsr__map_get(&m, names[i]), &names[i]);
            assert_ptr_equal(*tsr__map_at(&m, names[i]), &names[i]);
        }
        assert_int_equal(m.n, N);
        assert_null(tsr__map_get(&m, STR("/model/layers.0/attn/MatMul_output")));
        tsr__arena_free(&a);
    }
}

// Keys are prefixes of one text, so that they differ only in length; all lengths up to 300.
static void every_length(void **state)
{
    struct scratch *t = *state;
    static char text[300];
    struct arena a;
    struct map m;
    tsr__arena_init(&a, t->s);
    tsr__map_init(&m, &a, 3);
    for (int zeros = 0; zeros < 2; zeros++) {
        memset(text, zeros ? 0 : 'a', sizeof text);
        for (size_t n = zeros; n < sizeof text; n++)
            *tsr__map_at(&m, tsr__arena_str(&a, (struct str){text, n})) = &text[n];
        for (size_t n = zeros; n < sizeof text; n++)
            assert_ptr_equal(tsr__map_get(&m, (struct str){text, n}), &text[n]);
    }
    assert_int_equal(m.n, 599);
    tsr__arena_free(&a);
}

static void odd_keys(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    struct map m;
    int x, y;
    tsr__arena_init(&a, t->s);
    tsr__map_init(&m, &a, 0);
    assert_null(tsr__map_get(&m, STR("a"))); // empty map
    *tsr__map_at(&m, (struct str){NULL, 0}) = &x;
    assert_ptr_equal(tsr__map_get(&m, STR("")), &x);
    *tsr__map_at(&m, STR("a\0b")) = &y;
    assert_ptr_equal(tsr__map_get(&m, STR("a\0b")), &y);
    assert_null(tsr__map_get(&m, STR("a\0c")));
    assert_null(*tsr__map_at(&m, STR("made, not filled")));
    assert_null(tsr__map_get(&m, STR("made, not filled")));
    assert_int_equal(m.n, 3);
    assert_int_equal(sizeof(struct map_slot), 8 + 2 * sizeof(void *));
    tsr__arena_free(&a);
}

static void no_memory(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    struct map m;
    tsr__arena_init(&a, t->s);
    tsr__session_fault(t->s, 0, 1, true);
    tsr__map_init(&m, &a, 1000);
    assert_null(tsr__map_at(&m, STR("a")));
    assert_null(tsr__map_get(&m, STR("a")));
    tsr__session_fault(t->s, 0, 0, false);
    assert_finding(t->s, "out-of-memory");
    tsr__arena_free(&a);
}

static void stable_hash(void **state)
{
    (void)state;
    // Published values of XXH64.
    assert_true(tsr__hash64("", 0, 0) == 0xEF46DB3751D8E999u);
    assert_true(tsr__hash64("a", 1, 0) == 0xD24EC4F1A98C6E5Bu);
    assert_true(tsr__hash64("abc", 3, 0) == 0x44BC2CF5AD770999u);
    const char *nobody = "Nobody inspects the spammish repetition";
    assert_true(tsr__hash64(nobody, strlen(nobody), 0) == 0xFBCEA83C8A378BF1u);
    assert_true(tsr__hash64("asdf", 4, 0) == 0x415872F599CEA71Eu);
    const char *call = "Call me Ishmael. Some years ago--never mind how long precisely-";
    assert_true(tsr__hash64(call, strlen(call), 0) == 0x02A2E85470D6FD96u);
    assert_true(tsr__hash64(nobody, strlen(nobody), 1) != tsr__hash64(nobody, strlen(nobody), 0));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {T(stress), T(every_length), T(odd_keys), T(no_memory),
                                       T(stable_hash)};
    return cmocka_run_group_tests_name("base map", tests, NULL, NULL);
}
