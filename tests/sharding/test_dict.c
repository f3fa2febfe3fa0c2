// SPDX-License-Identifier: Apache-2.0
// test_dict.c - tensor dictionaries: split a tensor into shards, look them up, join them again; the
// published tilings are test vectors.
#include "common.h"

static float numbers[4096];

static tsr_pieces *make(tsr_session *s, const char *sharding, int rank, const int64_t *shape)
{
    tsr_pieces *d = NULL;
    for (size_t i = 0; i < TSR_COUNT(numbers); i++)
        numbers[i] = (float)i;
    assert_int_equal(tsr_pieces_new(s, sharding, TSR_FLOAT, rank, shape, numbers, &d), TSR_OK);
    return d;
}

static void pieces_hold_what_the_tiling_says(void **state)
{
    struct bench *b = *state;
    tsr_pieces *d = make(b->session, "{5,1:3,2,4,1,0}", 2, I(7, 4));
    assert_int_equal(tsr_pieces_count(d), 5);
    // device 0 has the last tile: rows 5 and 6
    tsr_piece p = tsr_pieces_value(d, (size_t)tsr_pieces_find(d, 0, 0));
    assert_int_equal(p.tile, 4);
    assert_int_equal(p.dims[0], 2);
    assert_int_equal(p.dims[1], 4);
    assert_true(((float *)p.data)[0] == 20 && ((float *)p.data)[7] == 27);
    // tile 0 is on device 3
    assert_int_equal(tsr_pieces_value(d, (size_t)tsr_pieces_find_tile(d, 0, 0)).device, 3);
    assert_int_equal(tsr_pieces_find(d, 9, 0), -1);
    assert_int_equal(tsr_pieces_find(d, 0, 1), -1);
    tsr_pieces_free(d);
}

static void check_round(tsr_session *s, const char *sharding, int rank, const int64_t *shape,
                        size_t n)
{
    float whole[1024];
    tsr_pieces *d = make(s, sharding, rank, shape);
    assert_int_equal(tsr_pieces_join(d, whole), TSR_OK);
    assert_memory_equal(whole, numbers, n * sizeof *whole);
    tsr_pieces_free(d);
}

static void joined_is_what_was_cut(void **state)
{
    tsr_session *s = ((struct bench *)*state)->session;
    check_round(s, "{1,4}", 2, I(1, 4), 4);
    check_round(s, "{5,1:3,2,4,1,0}", 2, I(7, 4), 28);
    check_round(s, "{1,3,1,1:2,0,3}", 4, I(4, 4, 2, 2), 64);
    check_round(s, "{1:3,2}", 3, I(2, 4, 8), 64);
    check_round(s, "{3,2,1:5,4,3,2,1,0}", 3, I(3, 2, 5), 30);
    check_round(s, "{2*4/2,1:0,1}", 2, I(8, 6), 48);
    check_round(s, "S1,S0@2x2", 2, I(8, 6), 48);
    check_round(s, "{1:0}", 0, NULL, 1);
    check_round(s, "{4,1:0,0,1,1}", 2, I(8, 6), 48); // two tiles on a device
}

// A tile without a device (-1) is joined as zeros.
static void suppressed_tiles_are_zeros(void **state)
{
    tsr_session *s = ((struct bench *)*state)->session;
    float whole[8];
    tsr_pieces *d = make(s, "{2,1:0,-1}", 2, I(2, 4));
    assert_int_equal(tsr_pieces_count(d), 1);
    assert_int_equal(tsr_pieces_join(d, whole), TSR_OK);
    assert_true(whole[3] == 3 && whole[4] == 0 && whole[7] == 0);
    tsr_pieces_free(d);
}

// Replicas with different contents cannot be joined.
static void copies_that_differ_are_refused(void **state)
{
    tsr_session *s = ((struct bench *)*state)->session;
    float whole[8];
    tsr_pieces *d = make(s, "{1:0,1}", 2, I(2, 4));
    ((float *)tsr_pieces_value(d, 1).data)[5] = -1;
    assert_int_equal(tsr_pieces_join(d, whole), TSR_INVALID);
    assert_true(found(s, "pieces-differ"));
    tsr_pieces_free(d);
    tsr_finding_clear(s);
}

static void wrong_ones_are_refused(void **state)
{
    tsr_session *s = ((struct bench *)*state)->session;
    tsr_pieces *d = NULL;
    assert_int_equal(tsr_pieces_new(s, "{2,1", TSR_FLOAT, 2, I(2, 4), NULL, &d), TSR_MALFORMED);
    assert_int_equal(tsr_pieces_new(s, "{3}", TSR_FLOAT, 0, NULL, NULL, &d), TSR_INVALID);
    assert_int_equal(tsr_pieces_new(s, "{2,1}", TSR_INT4, 2, I(2, 4), NULL, &d), TSR_UNSUPPORTED);
    assert_int_equal(tsr_pieces_new(s, "{1:0}", TSR_FLOAT, 2, I(INT64_MAX, 4), NULL, &d),
                     TSR_INVALID);
    assert_int_equal(tsr_finding_total(s, TSR_ERROR), 4);
    assert_null(d);
    tsr_finding_clear(s);
}

static void memory_fails(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_pieces *d = NULL;
        tsr__session_fault(s, 0, n, true);
        tsr_status status = tsr_pieces_new(s, "{2,2}", TSR_FLOAT, 2, I(4, 4), numbers, &d);
        tsr__session_fault(s, 0, 0, false);
        tsr_pieces_free(d);
        tsr_session_free(s);
        if (status == TSR_OK)
            return;
        assert_int_equal(status, TSR_NOMEM);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(pieces_hold_what_the_tiling_says), TEST(joined_is_what_was_cut),
        TEST(suppressed_tiles_are_zeros),       TEST(copies_that_differ_are_refused),
        TEST(wrong_ones_are_refused),           TEST(memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
