// SPDX-License-Identifier: Apache-2.0
// test_layout.c - layouts: numbering, owners, equality, and the list of integers.
#include "common.h"

// A replicated layout lists each device once, in ascending order.
static void whole_has_all_owners_once(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = tsr__layout_whole(&b->arena, 3, (int64_t[]){3, 2, 3}, 3);
    assert_non_null(l);
    assert_true(tsr__layout_is_whole(l));
    assert_int_equal(l->n_shards, 1);
    const int64_t *owners;
    assert_int_equal(tsr__layout_owners(l, 0, &owners), 2);
    assert_int_equal(owners[0], 2);
    assert_int_equal(owners[1], 3);
    assert_true(tsr__layout_has_device(l, 2));
    assert_false(tsr__layout_has_device(l, 0));
}

static void shards_are_numbered_row_major(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l =
        simple(&b->arena, 3, (int64_t[]){3, 1, 2}, (int64_t[]){5, 4, 3, 2, 1, 0});
    assert_int_equal(l->n_shards, 6);
    assert_int_equal(l->n_loops, 2);
    int64_t coords[2];
    tsr__layout_coords(l, 5, coords);
    assert_int_equal(coords[0], 2);
    assert_int_equal(coords[1], 1);
    assert_int_equal(tsr__layout_shard_of(l, 4, 0), 1);
    assert_int_equal(tsr__layout_shard_of(l, 4, 2), -1);
    assert_int_equal(tsr__layout_shard_of(l, 9, 0), -1);
}

static void too_many_shards_are_refused(void **state)
{
    struct bench *b = *state;
    struct tile_factor f[2] = {{0, 1048576, 0}, {0, 2, 0}};
    struct tile_dim dims[2] = {{&f[0], 1}, {&f[1], 1}};
    assert_null(tsr__layout_cut(&b->arena, 2, dims));
    f[0].cuts = INT64_MAX;
    assert_null(tsr__layout_cut(&b->arena, 2, dims));
    f[0].cuts = 0;
    assert_null(tsr__layout_cut(&b->arena, 2, dims));
    assert_null(tsr__layout_cut(&b->arena, TILE_MAX_RANK + 1, dims));
    f[0].cuts = 524288;
    assert_non_null(tsr__layout_cut(&b->arena, 2, dims));
}

// {2,2} with loops 1 then 0 and devices 0 2 1 3 is {2,2:0,1,2,3}.
static void loop_order_does_not_matter(void **state)
{
    struct bench *b = *state;
    struct tile_layout *x = simple(&b->arena, 2, (int64_t[]){2, 2}, (int64_t[]){0, 1, 2, 3});
    struct tile_layout *y = simple(&b->arena, 2, (int64_t[]){2, 2}, (int64_t[]){0, 2, 1, 3});
    assert_false(tsr__layout_equal(x, y));
    y->loops[0] = (struct tile_loop){1, 0};
    y->loops[1] = (struct tile_loop){0, 0};
    assert_true(tsr__layout_equal(x, y));
    struct tile_layout *z = tsr__layout_ordered(&b->arena, y);
    assert_non_null(z);
    assert_int_equal(z->loops[0].dim, 0);
    const int64_t *owners;
    tsr__layout_owners(z, 1, &owners);
    assert_int_equal(owners[0], 1);
}

// Layouts that differ only in unsharded factors are equal.
static void whole_factors_do_not_count(void **state)
{
    struct bench *b = *state;
    struct tile_factor one[3] = {{4, 2, 0}, {8, 1, 0}, {2, 1, 0}}, two[2] = {{0, 2, 0}, {16, 1, 0}},
                       other[2] = {{4, 1, 0}, {16, 2, 0}}, single[1] = {{64, 2, 0}};
    struct tile_dim d1 = {one, 3}, d2 = {two, 2}, d3 = {other, 2}, d4 = {single, 1};
    struct tile_owner pairs[2] = {{0, 0}, {1, 1}};
    struct tile_layout *l[4] = {
        tsr__layout_cut(&b->arena, 1, &d1), tsr__layout_cut(&b->arena, 1, &d2),
        tsr__layout_cut(&b->arena, 1, &d3), tsr__layout_cut(&b->arena, 1, &d4)};
    for (int i = 0; i < 4; i++)
        assert_true(tsr__layout_own(&b->arena, l[i], pairs, 2));
    assert_true(tsr__layout_equal(l[0], l[1]));
    assert_false(tsr__layout_equal(l[0], l[2]));
    assert_false(tsr__layout_equal(l[0], l[3]));
    struct tile_layout *w = tsr__layout_whole(&b->arena, 1, (int64_t[]){0}, 1);
    struct tile_factor cut1 = {7, 1, 0};
    struct tile_dim uncut = {&cut1, 1};
    struct tile_layout *u = tsr__layout_cut(&b->arena, 1, &uncut);
    assert_true(tsr__layout_own(&b->arena, u, pairs, 1));
    assert_true(tsr__layout_equal(w, u));
    assert_false(tsr__layout_equal(w, l[0]));
}

// Unsharded factors in front of a sharded one do not count either: 2 * 2 * 4/2 is 4 * 4/2. The second
// layout lists its loops in the other order, so that the loops of both must be matched.
static void whole_factors_in_front_do_not_count(void **state)
{
    struct bench *b = *state;
    struct tile_factor split[3] = {{2, 1, 0}, {2, 1, 0}, {4, 2, 0}},
                       one[2] = {{4, 1, 0}, {4, 2, 0}}, rows[1] = {{0, 2, 0}};
    struct tile_dim x[2] = {{split, 3}, {rows, 1}}, y[2] = {{one, 2}, {rows, 1}};
    struct tile_owner as_x[4] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}},
                      as_y[4] = {{0, 0}, {1, 2}, {2, 1}, {3, 3}};
    struct tile_layout *a = tsr__layout_cut(&b->arena, 2, x), *c = tsr__layout_cut(&b->arena, 2, y);
    assert_true(tsr__layout_own(&b->arena, a, as_x, 4) && tsr__layout_own(&b->arena, c, as_y, 4));
    assert_false(tsr__layout_equal(a, c));
    struct tile_loop first = c->loops[0];
    c->loops[0] = c->loops[1];
    c->loops[1] = first;
    assert_true(tsr__layout_equal(a, c) && tsr__layout_equal(c, a));
}

// Entries behind the last factor of a dimension are not read.
static void only_the_factors_count(void **state)
{
    struct tile_factor factors[2] = {{0, 2, 0}, {INT64_MAX, INT64_MAX, 0}};
    struct tile_dim dim = {factors, 1};
    int64_t sizes[TILE_MAX_FACTORS] = {0};
    (void)state;
    assert_true(tsr__dim_sizes(&dim, 8, sizes));
    assert_int_equal(sizes[0], 8);
}

// Of 12 elements, device 0 has 0 1 4 5 8 9 with {3*?/2}, and the even ones with {?*2/2}.
static void open_sizes_are_in_one_place(void **state)
{
    struct bench *b = *state;
    struct tile_factor rest_cut[2] = {{3, 1, 0}, {0, 2, 0}}, rest_whole[2] = {{0, 1, 0}, {2, 2, 0}},
                       given[2] = {{3, 1, 0}, {4, 2, 0}}, like_rest[2] = {{0, 1, 0}, {3, 2, 0}};
    struct tile_dim dims[4] = {{rest_cut, 2}, {rest_whole, 2}, {given, 2}, {like_rest, 2}};
    struct tile_owner pairs[2] = {{0, 0}, {1, 1}};
    struct tile_layout *l[4];
    for (int i = 0; i < 4; i++) {
        l[i] = tsr__layout_cut(&b->arena, 1, &dims[i]);
        assert_true(tsr__layout_own(&b->arena, l[i], pairs, 2));
    }
    assert_true(tsr__layout_equal(l[0], l[2])); // the open size is 4
    assert_true(tsr__layout_equal(l[2], l[0]));
    assert_false(tsr__layout_equal(l[0], l[1]));
    assert_false(tsr__layout_equal(l[1], l[0]));
    assert_false(tsr__layout_equal(l[0], l[3])); // the same only for 9 elements
    assert_false(tsr__layout_equal(l[1], l[2]));
}

static void random_layouts_survive_copy_order_and_code(void **state)
{
    struct bench *b = *state;
    uint64_t seed = 1;
    for (int trial = 0; trial < 500; trial++) {
        int64_t shape[4] = {1 + pick(&seed, 12), 1 + pick(&seed, 12), 1 + pick(&seed, 6), 8};
        struct tile_layout *l = random_layout(&b->arena, &seed, 4, shape, 5);
        assert_true(tsr__layout_equal(l, tsr__layout_copy(&b->arena, l)));
        struct tile_layout *o = tsr__layout_ordered(&b->arena, l);
        assert_true(tsr__layout_equal(l, o));
        assert_true(tsr__layout_equal(o, l));
        int64_t code[4096];
        size_t n = tsr__layout_encode(l, code, 4096);
        assert_true(n <= 4096);
        assert_int_equal(tsr__layout_encode(l, NULL, 0), n);
        struct tile_layout *d = tsr__layout_decode(&b->arena, code, n);
        assert_non_null(d);
        int64_t again[4096];
        assert_int_equal(tsr__layout_encode(d, again, 4096), n);
        assert_memory_equal(code, again, n * sizeof(*code));
        assert_null(tsr__layout_decode(&b->arena, code, n - 1));
        code[n] = 0;
        assert_null(tsr__layout_decode(&b->arena, code, n + 1));
        if (trial % 32 == 31) {
            tsr__arena_free(&b->arena);
            tsr__arena_init(&b->arena, b->session);
        }
    }
}

static void wrong_codes_are_refused(void **state)
{
    struct bench *b = *state;
    // rank 2: dim 0 with 2 shards, dim 1 unsharded; one loop; two shards on devices 0 and 1
    const int64_t good[] = {2, 1, 8, 2, 0, 1, 0, 0, 2, 1, 0, 1, 1};
    const size_t n = TSR_COUNT(good);
    assert_non_null(tsr__layout_decode(&b->arena, good, n));
    static const struct {
        size_t at;
        int64_t value;
    } wrong[] = {{0, -1},        {0, 65},      {0, 3}, {1, 17}, {1, -1},  {2, -4}, {3, 0},
                 {3, INT64_MAX}, {3, 3},       {5, 0}, {5, 2},  {6, 1},   {6, 2},  {7, 1},
                 {8, 1},         {8, 1000000}, {9, 2}, {9, 0},  {10, -1}, {9, -1}, {9, INT64_MAX}};
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        int64_t code[TSR_COUNT(good)];
        memcpy(code, good, sizeof(good));
        code[wrong[i].at] = wrong[i].value;
        assert_null(tsr__layout_decode(&b->arena, code, n));
    }
    for (size_t i = 0; i < n; i++)
        assert_null(tsr__layout_decode(&b->arena, good, i));
    // owners must ascend
    const int64_t twice[] = {0, 0, 1, 2, 4, 4}, up[] = {0, 0, 1, 2, 4, 5};
    assert_null(tsr__layout_decode(&b->arena, twice, 6));
    assert_non_null(tsr__layout_decode(&b->arena, up, 6));
    // two factors without a size
    const int64_t open[] = {1, 2, 0, 1, 0, 1, 0, 1, 0};
    assert_null(tsr__layout_decode(&b->arena, open, TSR_COUNT(open)));
}

// Decoding random integers must fail, or give a layout that encodes to the same number of integers.
static void random_numbers_never_hurt(void **state)
{
    struct bench *b = *state;
    uint64_t seed = 7;
    int64_t code[24];
    for (int trial = 0; trial < 20000; trial++) {
        size_t n = (size_t)pick(&seed, 24);
        for (size_t i = 0; i < n; i++)
            code[i] = pick(&seed, 50) ? pick(&seed, 4) : INT64_MIN + pick(&seed, 3);
        struct tile_layout *l = tsr__layout_decode(&b->arena, code, n);
        if (l)
            assert_int_equal(tsr__layout_encode(l, NULL, 0), n);
        if (trial % 1000 == 0) {
            tsr__arena_free(&b->arena);
            tsr__arena_init(&b->arena, b->session);
        }
    }
}

// tsr__layout_once is the inverse of tsr__layout_repeat, and fails if a device differs.
static void copies_come_back(void **state)
{
    struct bench *b = *state;
    uint64_t seed = 11;
    const int64_t shape[3] = {8, 6, 12};
    for (int trial = 0; trial < 500; trial++) {
        struct tile_layout *block = random_layout(&b->arena, &seed, 3, shape, 5);
        struct tile_repeat repeat = {1 + pick(&seed, 6), 5, NULL};
        int dim = (int)pick(&seed, 4) - 1;
        struct tile_layout *all = tsr__layout_repeat(&b->arena, block, &repeat, dim);
        assert_non_null(all);
        assert_int_equal(all->first[all->n_shards], repeat.copies * block->first[block->n_shards]);
        struct tile_layout *once = tsr__layout_once(&b->arena, all, &repeat, dim);
        assert_non_null(once);
        assert_true(tsr__layout_equal(once, block));
        int64_t *last = &all->owners[all->first[all->n_shards] - 1];
        *last = *last == 4 ? 3 : 4;
        if (repeat.copies > 1)
            assert_null(tsr__layout_once(&b->arena, all, &repeat, dim));
        tsr__arena_free(&b->arena);
        tsr__arena_init(&b->arena, b->session);
    }
}

// {1,2:0,1} on 3 copies of 2 devices, with and without sharing dimension 0 among the copies.
static void copies_share_a_dimension(void **state)
{
    struct bench *b = *state;
    struct tile_layout *block = simple(&b->arena, 2, (int64_t[]){1, 2}, (int64_t[]){0, 1});
    struct tile_repeat repeat = {3, 2, NULL};
    struct tile_layout *shared = tsr__layout_repeat(&b->arena, block, &repeat, 0);
    assert_true(tsr__layout_equal(shared, simple(&b->arena, 2, (int64_t[]){3, 2}, NULL)));
    struct tile_layout *each = tsr__layout_repeat(&b->arena, block, &repeat, -1);
    const int64_t *owners;
    assert_int_equal(tsr__layout_owners(each, 1, &owners), 3);
    assert_true(owners[0] == 1 && owners[1] == 3 && owners[2] == 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_has_all_owners_once),
        cmocka_unit_test(shards_are_numbered_row_major),
        cmocka_unit_test(too_many_shards_are_refused),
        cmocka_unit_test(loop_order_does_not_matter),
        cmocka_unit_test(whole_factors_do_not_count),
        cmocka_unit_test(whole_factors_in_front_do_not_count),
        cmocka_unit_test(only_the_factors_count),
        cmocka_unit_test(open_sizes_are_in_one_place),
        cmocka_unit_test(random_layouts_survive_copy_order_and_code),
        cmocka_unit_test(copies_come_back),
        cmocka_unit_test(copies_share_a_dimension),
        cmocka_unit_test(wrong_codes_are_refused),
        cmocka_unit_test(random_numbers_never_hurt),
    };
    return cmocka_run_group_tests_name("tile layouts", tests, bench_setup, bench_teardown);
}
