// SPDX-License-Identifier: Apache-2.0
// test_shares.c - unequal parts: both forms of a layout must have the same elements on each device.
#include "common.h"

#include <stdlib.h>

// Shares are reduced to lowest terms; equal ones are 0, too large ones do not fit.
static void units_are_the_least(void **state)
{
    bool fits;
    (void)state;
    assert_int_equal(tsr__shares_of((int64_t[]){6, 2}, 2, &fits), 1 << 3 | 1 << 4);
    assert_int_equal(tsr__shares_of((int64_t[]){3, 3, 3}, 3, &fits), 0);
    assert_true(fits);
    assert_int_equal(tsr__shares_of((int64_t[]){62, 1}, 2, &fits), 0);
    assert_false(fits);
    struct tile_units last = tsr__share_units(3, 1 << 3 | 1 << 4 | 1 << 6, 2);
    assert_true(last.first == 4 && last.stop == 6 && last.of == 6);
    assert_int_equal(tsr__share_start(10, 2, 24, 1), 7);
    assert_int_equal(tsr__share_size(10, 2, 24, 1), 3);
    assert_int_equal(tsr__share_size(9, 3, 0, 1), 3);
}

// Adjacent tiles of one device are merged to one unequal part.
static void tiles_of_a_device_are_one(void **state)
{
    struct bench *b = *state;
    const struct tile_layout *l =
        tsr__layout_runs(&b->arena, simple(&b->arena, 1, (int64_t[]){4}, (int64_t[]){0, 0, 0, 1}));
    assert_int_equal(l->n_shards, 2);
    assert_int_equal(l->dims[0].factors[0].shares, 24);
    assert_true(tsr__layout_shared(l));
    const struct tile_layout *other =
        tsr__layout_runs(&b->arena, simple(&b->arena, 1, (int64_t[]){2}, (int64_t[]){0, 1}));
    assert_false(tsr__layout_equal(l, other)); // halves
    // Tiles of a device that are not adjacent stay separate.
    struct tile_layout *apart = simple(&b->arena, 1, (int64_t[]){5}, (int64_t[]){0, 0, 1, 1, 0});
    assert_ptr_equal(tsr__layout_runs(&b->arena, apart), apart);
    struct tile_layout *corner = simple(&b->arena, 2, (int64_t[]){2, 2}, (int64_t[]){0, 0, 0, 1});
    assert_ptr_equal(tsr__layout_runs(&b->arena, corner), corner);
}

// Bounds of tsr__division_start, found by counting instead of dividing.
static int64_t counted_start(const struct tile_division *division, int64_t length, int64_t j)
{
    int64_t before = 0, all = 0, units = 0, bound = 0;
    for (int64_t i = 0; i < division->n; i++) {
        int64_t share = division->shares ? division->shares[i] : 1;
        before += i < j ? share : 0;
        all += share;
    }
    for (int64_t at = 0; at < length; at += division->unit)
        units++;
    while ((bound + 1) * all <= before * units)
        bound++;
    int64_t start = 0;
    for (int64_t unit = 0; unit < bound; unit++)
        start += start + division->unit < length ? division->unit : length - start;
    return start;
}

// Random divisions of an axis, compared with counting.
static void an_axis_is_divided(void **state)
{
    (void)state;
    struct tile_division two = {.unit = 1, .n = 2, .shares = (int64_t[]){3, 1}};
    assert_int_equal(tsr__division_start(&two, 10, 1), 7);
    for (int trial = 0; trial < 2000; trial++) {
        int64_t shares[5], sum = 0, length = rand() % 40;
        struct tile_division some = {.unit = 1 + rand() % 4, .n = 1 + rand() % 5};
        for (int64_t i = 0; i < some.n; i++)
            sum += shares[i] = rand() % 4;
        if (rand() % 4)
            some.shares = shares;
        assert_int_equal(tsr__division_holds(shares, (size_t)some.n, some.n), sum > 0);
        for (int64_t j = 0; j <= some.n && (sum || !some.shares); j++)
            assert_int_equal(tsr__division_start(&some, length, j),
                             counted_start(&some, length, j));
    }
    // the parts of halves are quarters, for every length
    for (int64_t length = 0; length < 40; length++)
        for (int64_t j = 0; j < 4; j++) {
            struct tile_division half = {.unit = 1 + j % 3, .n = 2, .part = {j / 2, j / 2 + 1, 2}};
            struct tile_division all = {.unit = half.unit, .n = 4};
            int64_t start = tsr__division_start(&all, length, j - j % 2);
            assert_int_equal(tsr__division_start(&half, length, j % 2),
                             tsr__division_start(&all, length, j) - start);
            assert_int_equal(tsr__division_start(&half, length, 2),
                             tsr__division_start(&all, length, j - j % 2 + 2) - start);
        }
    // invalid shares
    assert_false(tsr__division_holds((int64_t[]){1, 1}, 2, 3));
    assert_false(tsr__division_holds((int64_t[]){2, -1}, 2, 2));
    assert_false(tsr__division_holds((int64_t[]){INT64_MAX, 1}, 2, 2));
    struct tile_division large = {.unit = 1, .n = 2, .shares = (int64_t[]){INT64_MAX - 1, 1}};
    assert_int_equal(tsr__division_start(&large, INT64_MAX, 2), INT64_MAX);
}

// The largest number of parts: searching the parts for every unit would take half an hour.
static void many_parts_are_quick(void **state)
{
    struct bench *b = *state;
    struct tile_factor factor = {.cuts = 1 << 20};
    struct tile_layout *many = tsr__layout_cut(&b->arena, 1, &(struct tile_dim){&factor, 1});
    struct tile_owner *pairs = ARENA_ARRAY(&b->arena, struct tile_owner, (size_t)factor.cuts);
    assert_true(many && pairs);
    for (int64_t k = 0; k < factor.cuts; k++)
        pairs[k] = (struct tile_owner){k, k % 2};
    assert_true(tsr__layout_own(&b->arena, many, pairs, (size_t)factor.cuts));
    struct tile_layout *units = tsr__layout_units(&b->arena, many);
    assert_non_null(units);
    assert_true(tsr__layout_equal(many, units));
}

// Marks the elements of the device.
static void mark(struct arena *arena, const struct tile_layout *layout, const int64_t *shape,
                 int64_t device, char *marks)
{
    memset(marks, 0, (size_t)(shape[0] * shape[1]));
    for (int64_t k = tsr__layout_shard_of(layout, device, 0); k >= 0;
         k = tsr__layout_shard_of(layout, device, k + 1)) {
        struct tile_piece *piece = tsr__layout_piece(arena, layout, shape, k);
        assert_non_null(piece);
        for (int64_t i = 0; i < shape[0] * shape[1]; i++) {
            bool in[2] = {false, false};
            for (int d = 0; d < 2; d++)
                for (int64_t n = 0; n < piece->dims[d].n; n++) {
                    int64_t at = d ? i % shape[1] : i / shape[1];
                    in[d] |= at >= piece->dims[d].at[n].start && at < piece->dims[d].at[n].stop;
                }
            marks[i] |= in[0] && in[1];
        }
    }
}

// Random runs along both dimensions: the same elements in units, in parts, in units again, and
// after encoding and decoding.
static void both_forms_have_the_same(void **state)
{
    struct bench *b = *state;
    uint64_t seed = 5;
    int merged = 0;
    for (int trial = 0; trial < 400; trial++) {
        int64_t cuts[2] = {1 + pick(&seed, 7), 1 + pick(&seed, 5)}, devices[64], row = 0;
        int64_t shape[2] = {pick(&seed, 20), 1 + pick(&seed, 20)};
        int64_t ends_row =
            pick(&seed, cuts[1]); // columns before it belong to one device, the others to another
        for (int64_t i = 0; i < cuts[0]; i++) {
            row += i && pick(&seed, 3) == 0;
            for (int64_t j = 0; j < cuts[1]; j++)
                devices[i * cuts[1] + j] = 2 * row + (j > ends_row);
        }
        struct tile_layout *units = simple(&b->arena, 2, cuts, devices);
        const struct tile_layout *parts = tsr__layout_runs(&b->arena, units);
        struct tile_layout *again = tsr__layout_units(&b->arena, parts);
        int64_t code[256];
        size_t n = tsr__layout_encode(parts, code, 256);
        struct tile_layout *decoded = tsr__layout_decode(&b->arena, code, n);
        assert_non_null(again);
        assert_non_null(decoded);
        assert_true(tsr__layout_equal(decoded, parts));
        merged += tsr__layout_shared(parts);
        char marks[4][512];
        for (int64_t device = 0; device < 2 * (row + 1); device++) {
            const struct tile_layout *forms[4] = {units, parts, again, decoded};
            for (int i = 0; i < 4; i++) {
                mark(&b->arena, forms[i], shape, device, marks[i]);
                assert_memory_equal(marks[i], marks[0], (size_t)(shape[0] * shape[1]));
            }
            int64_t shard = tsr__layout_shard_of(parts, device, 0);
            if (shard >= 0)
                assert_int_equal(tsr__layout_shard_of(parts, device, shard + 1), -1);
        }
        tsr__arena_free(&b->arena);
        tsr__arena_init(&b->arena, b->session);
    }
    assert_true(merged > 100);
}

// Shares that are not in lowest terms are rejected: equal layouts would have different codes.
static void codes_of_shares(void **state)
{
    struct bench *b = *state;
    static const struct {
        int64_t cuts;
        bool good;
    } codes[] = {{-(1 << 3 | 1 << 4), true},
                 {-(1 << 4), false},
                 {-(1 << 2 | 1 << 4), false},
                 {-(1 << 6 | 1 << 8), false},
                 {-(1 << 3 | 1 << 4 | 1), false},
                 {0, false},
                 {INT64_MIN, false}};
    for (size_t i = 0; i < TSR_COUNT(codes); i++) {
        int64_t code[] = {1, 1, 0, codes[i].cuts, 1, 0, 0, 2, 1, 0, 1, 1};
        struct tile_layout *l = tsr__layout_decode(&b->arena, code, TSR_COUNT(code));
        assert_int_equal(l != NULL, codes[i].good);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_the_least),  cmocka_unit_test(tiles_of_a_device_are_one),
        cmocka_unit_test(many_parts_are_quick), cmocka_unit_test(both_forms_have_the_same),
        cmocka_unit_test(codes_of_shares),      cmocka_unit_test(an_axis_is_divided),
    };
    return cmocka_run_group_tests_name("tile shares", tests, bench_setup, bench_teardown);
}
