// SPDX-License-Identifier: Apache-2.0
// test_piece.c - bounds, intervals, pieces, and copying between any two layouts.
#include "common.h"

static void bounds_are_floors_without_overflow(void **state)
{
    (void)state;
    assert_int_equal(tsr__tile_start(7, 5, 0), 0);
    assert_int_equal(tsr__tile_start(7, 5, 1), 1);
    assert_int_equal(tsr__tile_start(7, 5, 3), 4);
    assert_int_equal(tsr__tile_start(7, 5, 5), 7);
    assert_int_equal(tsr__tile_start(INT64_MAX, 3, 3), INT64_MAX);
    assert_int_equal(tsr__tile_start(INT64_MAX, INT64_MAX, INT64_MAX - 1), INT64_MAX - 1);
    assert_int_equal(tsr__tile_start(INT64_MAX - 1, INT64_MAX, INT64_MAX - 1), INT64_MAX - 2);
    assert_int_equal(tsr__tile_start(0, 4, 4), 0);
    for (int64_t size = 0; size < 40; size++)
        for (int64_t n = 1; n < 12; n++)
            for (int64_t j = 0; j <= n; j++)
                assert_int_equal(tsr__tile_start(size, n, j), j * size / n);
}

// Asserts that device d has exactly the box [start, stop).
static void has_box(struct bench *b, const struct tile_layout *l, const int64_t *shape,
                    int64_t device, const int64_t *start, const int64_t *stop)
{
    int64_t k = tsr__layout_shard_of(l, device, 0);
    assert_true(k >= 0);
    assert_int_equal(tsr__layout_shard_of(l, device, k + 1), -1);
    struct tile_piece *p = tsr__layout_piece(&b->arena, l, shape, k);
    assert_non_null(p);
    for (int d = 0; d < l->rank; d++) {
        assert_int_equal(p->dims[d].n, 1);
        assert_int_equal(p->dims[d].at[0].start, start[d]);
        assert_int_equal(p->dims[d].at[0].stop, stop[d]);
        assert_int_equal(p->dims[d].size, stop[d] - start[d]);
    }
}

#define I(...)                                                                                     \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void published_tilings(void **state)
{
    struct bench *b = *state;
    struct arena *a = &b->arena;
    struct tile_layout *l = simple(a, 2, I(1, 4), I(0, 1, 2, 3));
    for (int64_t i = 0; i < 4; i++)
        has_box(b, l, I(1, 4), i, I(0, i), I(1, i + 1));
    l = simple(a, 2, I(5, 1), I(3, 2, 4, 1, 0));
    has_box(b, l, I(7, 4), 0, I(5, 0), I(7, 4));
    has_box(b, l, I(7, 4), 1, I(4, 0), I(5, 4));
    has_box(b, l, I(7, 4), 2, I(1, 0), I(2, 4));
    has_box(b, l, I(7, 4), 3, I(0, 0), I(1, 4));
    has_box(b, l, I(7, 4), 4, I(2, 0), I(4, 4));
    l = simple(a, 4, I(1, 3, 1, 1), I(2, 0, 3));
    has_box(b, l, I(4, 4, 2, 2), 0, I(0, 1, 0, 0), I(4, 2, 2, 2));
    has_box(b, l, I(4, 4, 2, 2), 2, I(0, 0, 0, 0), I(4, 1, 2, 2));
    has_box(b, l, I(4, 4, 2, 2), 3, I(0, 2, 0, 0), I(4, 4, 2, 2));
    l = tsr__layout_whole(a, 3, I(3, 2), 2);
    has_box(b, l, I(2, 4, 8), 2, I(0, 0, 0), I(2, 4, 8));
    has_box(b, l, I(2, 4, 8), 3, I(0, 0, 0), I(2, 4, 8));
    l = simple(a, 3, I(3, 2, 1), I(5, 4, 3, 2, 1, 0));
    for (int64_t x = 0; x < 3; x++)
        for (int64_t y = 0; y < 2; y++)
            has_box(b, l, I(3, 2, 5), 5 - (2 * x + y), I(x, y, 0), I(x + 1, y + 1, 5));
}

// The published formula takes the tile number modulo the pattern in every dimension, so it reaches
// only the diagonal. The row-major coordinate reaches all four tiles.
static void two_cuts_reach_every_tile(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = simple(&b->arena, 2, I(2, 2), I(0, 1, 2, 3));
    for (int64_t i = 0; i < 4; i++)
        has_box(b, l, I(2, 2), i, I(i / 2, i % 2), I(i / 2 + 1, i % 2 + 1));
}

// A tile without a device (-1) has no owner.
static void suppressed_tiles_have_no_owner(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = simple(&b->arena, 2, I(2, 1), I(0, -1));
    const int64_t *owners;
    assert_int_equal(tsr__layout_owners(l, 0, &owners), 1);
    assert_int_equal(tsr__layout_owners(l, 1, &owners), 0);
}

// Intervals of dimensions with several factors.
static void intervals_of_products(void **state)
{
    (void)state;
    struct tile_interval at[8];
    struct tile_factor strided[2] = {{2, 1, 0}, {4, 2, 0}}, heads[2] = {{3, 2, 0}, {4, 1, 0}},
                       both[3] = {{2, 2, 0}, {2, 1, 0}, {6, 3, 0}};
    struct tile_dim d = {strided, 2};
    assert_int_equal(tsr__dim_intervals(&d, 8, I(0, 1), at, 8), 2);
    assert_int_equal(at[0].start, 2);
    assert_int_equal(at[0].stop, 4);
    assert_int_equal(at[1].start, 6);
    assert_int_equal(at[1].stop, 8);
    assert_int_equal(tsr__dim_intervals(&d, 10, I(0, 1), at, 8), -1);
    d = (struct tile_dim){heads, 2};
    assert_int_equal(tsr__dim_intervals(&d, 12, I(1, 0), at, 8), 1);
    assert_int_equal(at[0].start, 4);
    assert_int_equal(at[0].stop, 12);
    d = (struct tile_dim){both, 3};
    assert_int_equal(tsr__dim_intervals(&d, 24, I(1, 0, 2), NULL, 0), 2);
    assert_int_equal(tsr__dim_intervals(&d, 24, I(1, 0, 2), at, 1), 2);
    assert_int_equal(at[0].start, 16);
    assert_int_equal(tsr__dim_intervals(&d, 24, I(1, 0, 2), at, 8), 2);
    assert_int_equal(at[1].start, 22);
    assert_int_equal(at[1].stop, 24);
}

// If the size is not a multiple of the inner factor, only the last outer unit may be incomplete.
static void only_the_last_unit_may_be_short(void **state)
{
    (void)state;
    struct tile_interval at[2];
    struct tile_factor units[2] = {{3, 2, 0}, {4, 1, 0}}, open[2] = {{0, 2, 0}, {4, 1, 0}},
                       inner[2] = {{2, 1, 0}, {5, 2, 0}}, open_inner[2] = {{2, 1, 0}, {0, 2, 0}};
    struct tile_dim d = {units, 2};
    assert_int_equal(tsr__dim_intervals(&d, 10, I(1, 0), at, 2), 1);
    assert_int_equal(at[0].start, 4);
    assert_int_equal(at[0].stop, 10);
    assert_int_equal(tsr__dim_intervals(&d, 8, I(1, 0), at, 2), -1);
    assert_int_equal(tsr__dim_intervals(&d, 13, I(1, 0), at, 2), -1);
    d.factors = open;
    assert_int_equal(tsr__dim_intervals(&d, 10, I(1, 0), at, 2), 1);
    assert_int_equal(at[0].start, 4);
    assert_int_equal(at[0].stop, 10);
    assert_int_equal(tsr__dim_intervals(&d, 4, I(1, 0), at, 2), 1); // one unit for two parts
    assert_int_equal(at[0].start, 0);
    assert_int_equal(at[0].stop, 4);
    d.factors = inner;
    assert_int_equal(tsr__dim_intervals(&d, 8, I(0, 1), at, 2), -1);
    d.factors = open_inner;
    assert_int_equal(tsr__dim_intervals(&d, 9, I(0, 1), at, 2), -1);
    assert_int_equal(tsr__dim_intervals(&d, 8, I(0, 1), at, 2), 2);
}

static void small_and_huge_dimensions(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = simple(&b->arena, 1, I(5), NULL);
    // 3 elements in 5 parts: 0, 1, 0, 1, 1 of them
    assert_int_equal(tsr__piece_elements(tsr__layout_piece(&b->arena, l, I(3), 0)), 0);
    assert_int_equal(tsr__piece_elements(tsr__layout_piece(&b->arena, l, I(3), 1)), 1);
    assert_int_equal(tsr__piece_elements(tsr__layout_piece(&b->arena, l, I(0), 0)), 0);
    assert_non_null(tsr__layout_piece(&b->arena, l, I(5), 4));
    struct tile_piece *p = tsr__layout_piece(&b->arena, l, I(INT64_MAX), 4);
    assert_non_null(p);
    assert_int_equal(p->dims[0].at[0].stop, INT64_MAX);
    assert_null(tsr__layout_piece(&b->arena, l, I(8), 5));
    struct tile_layout *w = tsr__layout_whole(&b->arena, 2, I(0), 1);
    p = tsr__layout_piece(&b->arena, w, I(0, 7), 0);
    assert_non_null(p);
    assert_int_equal(tsr__piece_elements(p), 0);
    assert_int_equal(tsr__piece_copy(p, NULL, p, NULL, 4), 0);
    p = tsr__layout_piece(&b->arena, w, I(INT64_MAX, 2), 0);
    assert_int_equal(tsr__piece_elements(p), -1);
    // a stride that would make 2^61 intervals
    struct tile_factor f[2] = {{INT64_MAX / 4, 1, 0}, {2, 2, 0}};
    struct tile_dim d = {f, 2};
    struct tile_layout *many = tsr__layout_cut(&b->arena, 1, &d);
    assert_null(tsr__layout_piece(&b->arena, many, I(INT64_MAX / 4 * 2), 0));
    f[0].size = INT64_MAX;
    assert_int_equal(tsr__dim_intervals(&d, 8, I(0, 0), NULL, 0), -1);
}

static void scalars_move(void **state)
{
    struct bench *b = *state;
    struct tile_layout *w = tsr__layout_whole(&b->arena, 0, I(0, 1), 2);
    struct tile_piece *p = tsr__layout_piece(&b->arena, w, NULL, 0);
    int32_t from = 42, to = 0, message = 0;
    assert_int_equal(tsr__piece_elements(p), 1);
    assert_int_equal(tsr__piece_copy(p, &from, p, &to, 4), 1);
    assert_int_equal(to, 42);
    assert_int_equal(tsr__piece_pack(p, &from, p, &message, 4), 1);
    to = 0;
    assert_int_equal(tsr__piece_unpack(p, &to, p, &message, 4), 1);
    assert_int_equal(to, 42);
}

// Fills a piece by the definition: the value of an element is its row-major position in the tensor.
static void fill(const struct tile_piece *p, const int64_t *shape, int32_t *out)
{
    int64_t n = tsr__piece_elements(p);
    for (int64_t e = 0; e < n; e++) {
        int64_t rest = e, at = 0, stride = 1;
        for (int d = p->rank - 1; d >= 0; d--) {
            int64_t local = rest % p->dims[d].size;
            rest /= p->dims[d].size;
            int64_t i = 0;
            for (; local >= p->dims[d].at[i].stop - p->dims[d].at[i].start; i++)
                local -= p->dims[d].at[i].stop - p->dims[d].at[i].start;
            at += (p->dims[d].at[i].start + local) * stride;
            stride *= shape[d];
        }
        out[e] = (int32_t)at;
    }
}

static void check_move(struct bench *b, const struct tile_layout *from,
                       const struct tile_layout *to, const int64_t *shape)
{
    static int32_t src[4096], dst[4096], want[4096], other[4096], message[4096];
    for (int64_t t = 0; t < to->n_shards; t++) {
        struct tile_piece *target = tsr__layout_piece(&b->arena, to, shape, t);
        assert_non_null(target);
        int64_t total = 0, n = tsr__piece_elements(target);
        memset(dst, 0xff, sizeof(dst));
        memset(other, 0xff, sizeof(other));
        for (int64_t s = 0; s < from->n_shards; s++) {
            struct tile_piece *source = tsr__layout_piece(&b->arena, from, shape, s);
            fill(source, shape, src);
            int64_t moved = tsr__piece_copy(source, src, target, dst, sizeof(*src));
            assert_int_equal(tsr__piece_pack(source, src, target, message, sizeof(*src)), moved);
            assert_int_equal(tsr__piece_unpack(target, other, source, message, sizeof(*src)),
                             moved);
            for (int64_t i = 1; i < moved; i++)
                assert_true(message[i - 1] < message[i]); // row-major order
            total += moved;
        }
        fill(target, shape, want);
        assert_int_equal(total, n);
        assert_memory_equal(dst, want, (size_t)n * sizeof(*dst));
        assert_memory_equal(other, want, (size_t)n * sizeof(*dst));
    }
}

static void any_layout_becomes_any_other(void **state)
{
    struct bench *b = *state;
    uint64_t seed = 3;
    for (int trial = 0; trial < 300; trial++) {
        int64_t shape[3] = {1 + pick(&seed, 16), 1 + pick(&seed, 13), 1 + pick(&seed, 12)};
        struct tile_layout *from = random_layout(&b->arena, &seed, 3, shape, 4);
        struct tile_layout *to = random_layout(&b->arena, &seed, 3, shape, 4);
        check_move(b, from, to, shape);
        tsr__arena_free(&b->arena);
        tsr__arena_init(&b->arena, b->session);
    }
}

// Number of common elements of two parts, by their intervals.
static int64_t shared_by_intervals(struct arena *a, const struct tile_digits *x,
                                   const struct tile_digits *y)
{
    struct tile_interval *in_x = ARENA_ARRAY(a, struct tile_interval, (size_t)x->count + 1);
    struct tile_interval *in_y = ARENA_ARRAY(a, struct tile_interval, (size_t)y->count + 1);
    int64_t n = 0;
    tsr__digits_intervals(x, in_x, x->count);
    tsr__digits_intervals(y, in_y, y->count);
    for (int64_t i = 0; i < x->count; i++)
        for (int64_t k = 0; k < y->count; k++)
            n += int64_max(0, int64_min(in_x[i].stop, in_y[k].stop) -
                                  int64_max(in_x[i].start, in_y[k].start));
    return n;
}

// Random factors of a dimension, with random numbers of shards.
static struct tile_dim random_dim(struct arena *a, uint64_t *seed, int64_t size, int64_t *coords)
{
    struct tile_dim dim = {ARENA_ARRAY(a, struct tile_factor, TILE_MAX_FACTORS), 0};
    while (size > 1 && dim.n < TILE_MAX_FACTORS - 1) {
        int64_t factor = 2 + pick(seed, 5);
        if (size % factor)
            continue;
        int64_t cuts = 1 + pick(seed, factor);
        coords[dim.n] = pick(seed, cuts);
        dim.factors[dim.n++] = (struct tile_factor){.size = factor, .cuts = cuts};
        size /= factor;
    }
    if (size > 1)
        dim.factors[dim.n++] = (struct tile_factor){.size = size, .cuts = 1};
    return dim;
}

static void overlaps_equal_those_of_intervals(void **state)
{
    struct bench *b = *state;
    static const int64_t sizes[] = {1, 2, 12, 30, 64, 120, 144, 360, 512, 1440};
    uint64_t seed = 11;
    for (int i = 0; i < 3000; i++) {
        int64_t size = sizes[(size_t)i % TSR_COUNT(sizes)];
        int64_t at_x[TILE_MAX_FACTORS] = {0}, at_y[TILE_MAX_FACTORS] = {0};
        struct tile_dim dim_x = random_dim(&b->arena, &seed, size, at_x);
        struct tile_dim dim_y = random_dim(&b->arena, &seed, size, at_y);
        struct tile_digits x, y;
        assert_true(tsr__dim_digits(&dim_x, size, at_x, &x));
        assert_true(tsr__dim_digits(&dim_y, size, at_y, &y));
        assert_int_equal(tsr__digits_overlap(&b->arena, &x, &y),
                         shared_by_intervals(&b->arena, &x, &y));
        tsr__arena_free(&b->arena);
        tsr__arena_init(&b->arena, b->session);
    }
}

// An incomplete last unit, and 2^60 intervals.
static void overlaps_of_short_units_and_of_huge_dimensions(void **state)
{
    struct bench *b = *state;
    struct tile_factor short_last[] = {{.size = 0, .cuts = 3}, {.size = 4, .cuts = 1}};
    struct tile_factor halves[] = {{.size = 0, .cuts = 2}};
    struct tile_factor odd[] = {{.size = 0, .cuts = 1}, {.size = 2, .cuts = 2}};
    struct tile_dim dim_x = {short_last, 2}, dim_y = {halves, 1}, dim_odd = {odd, 2};
    struct tile_digits x, y;
    for (int64_t size = 9; size < 60; size++)
        for (int64_t i = 0; i < 6; i++) {
            assert_true(tsr__dim_digits(&dim_x, size, (int64_t[]){i % 3, 0}, &x));
            assert_true(tsr__dim_digits(&dim_y, size, (int64_t[]){i / 3}, &y));
            assert_int_equal(tsr__digits_overlap(&b->arena, &x, &y),
                             shared_by_intervals(&b->arena, &x, &y));
        }
    int64_t huge = (int64_t)1 << 61;
    assert_true(tsr__dim_digits(&dim_odd, huge, (int64_t[]){0, 1}, &x));
    assert_true(tsr__dim_digits(&dim_y, huge, (int64_t[]){1}, &y));
    assert_int_equal(tsr__digits_overlap(&b->arena, &x, &y), huge / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_floors_without_overflow),
        cmocka_unit_test(published_tilings),
        cmocka_unit_test(two_cuts_reach_every_tile),
        cmocka_unit_test(suppressed_tiles_have_no_owner),
        cmocka_unit_test(intervals_of_products),
        cmocka_unit_test(only_the_last_unit_may_be_short),
        cmocka_unit_test(small_and_huge_dimensions),
        cmocka_unit_test(scalars_move),
        cmocka_unit_test(any_layout_becomes_any_other),
        cmocka_unit_test(overlaps_equal_those_of_intervals),
        cmocka_unit_test(overlaps_of_short_units_and_of_huge_dimensions),
    };
    return cmocka_run_group_tests_name("tile pieces", tests, bench_setup, bench_teardown);
}
