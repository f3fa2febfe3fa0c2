// SPDX-License-Identifier: Apache-2.0
// test_local.c - layouts as seen from one device: slices, gathers and local sizes, compared with
// values computed by hand.
#include "common.h"
#include "sharding/reshard/reshard.h"

static struct tile_layout *layout(struct bench *b, const char *text, int rank)
{
    struct tile_layout *l = NULL;
    struct notation_error wrong = {0};
    int suppressed;
    if (tsr__notation_parse(&b->arena, str_of(text), rank, NULL, &l, &suppressed, &wrong) != TSR_OK)
        fail_msg("%s: %s", text, wrong.what);
    return l;
}

static bool local(struct bench *b, const int64_t *shape, const char *from, const char *to,
                  bool *identity)
{
    struct reshard_tensor tensor = {.rank = 2, .shape = shape, .bits = 32};
    return tsr__can_convert_locally(&b->arena, &tensor, layout(b, from, 2), layout(b, to, 2),
                                    identity);
}

static void what_a_device_holds_suffices(void **state)
{
    struct bench *b = *state;
    static const int64_t fixed[2] = {8, 6}, open[2] = {SIZE_OPEN, 6},
                         unknown[2] = {SIZE_UNKNOWN, 6};
    bool same;
    assert_true(local(b, fixed, "{1,1:(0,1)}", "{2,1:0,1}", &same) && !same);
    assert_true(local(b, open, "{1,1:(0,1)}", "{2,1:0,1}", &same) && !same);
    assert_true(local(b, open, "{1,1:(0,1)}", "{1,1:1}", &same) && same);
    assert_true(local(b, fixed, "{2,1:0,1}", "{4,1:0,(0,1),(0,1),1}", &same) ==
                false); // two shards need more
    assert_true(local(b, fixed, "{2,1:(0,1),(2,3)}", "{4,1:0,1,2,3}", &same) && !same);
    assert_true(local(b, open, "{2,1:(0,1),(2,3)}", "{4,1:0,1,2,3}", &same) && !same);
    assert_false(local(b, open, "{2,1:(0,1),(2,3)}", "{4,1:0,2,1,3}", &same));
    assert_false(local(b, unknown, "{2,1:(0,1),(2,3)}", "{4,1:0,1,2,3}", &same)); // not decidable
    assert_true(local(b, fixed, "{1,2:(0,1),(2,3)}", "{2,2:0,2,1,3}", &same) && !same);
    assert_false(local(b, fixed, "{2,1:0,1}", "{1,1:(0,1)}", &same));
    assert_false(local(b, fixed, "{1,1:0}", "{1,1:(0,1)}", &same));
    assert_true(local(b, fixed, "{1,1:0,1}", "{4*2/2,1:0,1}", &same) && !same); // strided
    assert_false(local(b, fixed, "{2,1:0,1}", "{2,1:1,0}", &same));
}

static void strided_parts_are_listed(void **state)
{
    struct bench *b = *state;
    static const int64_t fixed[2] = {8, 6};
    struct reshard_tensor tensor = {.rank = 2, .shape = fixed, .bits = 32};
    struct dim_slice c = tsr__dim_source(&b->arena, &tensor, layout(b, "{1,1:(0,1)}", 2),
                                         layout(b, "{2*4/2,1:0,1}", 2), 1, 0);
    assert_int_equal(c.source, DIM_STATIC);
    assert_int_equal(c.n, 2); // 2,3 and 6,7
    assert_int_equal(c.at[0].start, 2);
    assert_int_equal(c.at[1].stop, 8);
    c = tsr__dim_source(&b->arena, &tensor, layout(b, "{2/2*4,1:0,1}", 2),
                        layout(b, "{2,1:0,1}", 2), 1, 0);
    assert_int_equal(c.source, DIM_SAME);
}

static void gathers(void **state)
{
    struct bench *b = *state;
    struct device_group *g;
    size_t n;
    const struct loop_axis rows = {0, 2, 0}, columns = {1, 2, 0};
    const struct tile_layout *l =
        tsr__gathered_layout(&b->arena, layout(b, "{2,1:0,1}", 2), rows, &g, &n);
    assert_non_null(l);
    assert_true(tsr__layout_same(l, layout(b, "{1,1:0,1}", 2)));
    assert_int_equal(n, 1);
    assert_int_equal(g[0].n, 2);
    l = tsr__gathered_layout(&b->arena, layout(b, "{2,2:0,1,2,3}", 2), columns, &g,
                             &n); // columns of a mesh
    assert_true(tsr__layout_same(l, layout(b, "{2,1:(0,1),(2,3)}", 2)));
    assert_int_equal(n, 2);
    assert_int_equal(g[1].devices[0], 2);
    l = tsr__gathered_layout(&b->arena, layout(b, "{2,2:0,1,2,3}", 2), rows, &g, &n); // rows
    assert_true(tsr__layout_same(l, layout(b, "{1,2:(0,2),(1,3)}", 2)));
    assert_int_equal(g[0].devices[1], 2);
    l = tsr__gathered_layout(&b->arena, layout(b, "{2,1:(0,1),(2,3)}", 2), rows, &g,
                             &n); // replicas gather in parallel groups
    assert_true(tsr__layout_same(l, layout(b, "{1,1:0,1,2,3}", 2)));
    assert_int_equal(n, 2);
    assert_int_equal(g[1].devices[0], 1);
    // wrong order of ranks
    assert_null(tsr__gathered_layout(&b->arena, layout(b, "{2,1:1,0}", 2), rows, &g, &n));
    assert_null(
        tsr__gathered_layout(&b->arena, layout(b, "{2*4/2,1:0,1}", 2), rows, &g, &n)); // strided
    assert_null(tsr__gathered_layout(&b->arena, layout(b, "{2,1:(0,1),2}", 2), rows, &g,
                                     &n)); // unequal numbers of replicas
    // half of an axis: adjacent rows, or rows at equal distances
    l = tsr__gathered_layout(&b->arena, layout(b, "{4,1:0,1,2,3}", 2), rows, &g, &n);
    assert_true(tsr__layout_same(l, layout(b, "{2,1:(0,1),(2,3)}", 2)));
    assert_int_equal(g[1].devices[0], 2);
    l = tsr__gathered_layout(&b->arena, layout(b, "{4,1:0,1,2,3}", 2), (struct loop_axis){0, 2, 10},
                             &g, &n);
    assert_true(tsr__layout_same(l, layout(b, "{2*5/2,1:(0,2),(1,3)}", 2)));
    assert_int_equal(g[1].devices[0], 1);
    assert_null(tsr__gathered_layout(&b->arena, layout(b, "{4,1:0,1,2,3}", 2),
                                     (struct loop_axis){0, 2, 9}, &g, &n)); // rows of other sizes
}

// The formula for local sizes in the graphs must equal the sum of the intervals, for every small
// case.
static void local_sizes(void **state)
{
    static const struct {
        int n;
        struct tile_factor f[2];
    } dims[] = {{1, {{0, 2, 0}}},
                {1, {{0, 3, 0}}},
                {2, {{0, 2, 0}, {4, 1, 0}}},
                {2, {{0, 3, 0}, {2, 1, 0}}},
                {2, {{2, 1, 0}, {0, 2, 0}}},
                {2, {{2, 2, 0}, {0, 2, 0}}},
                {1, {{0, 2, 1 << 3 | 1 << 4}}}, // shares of 3 units and 1 unit
                {2, {{0, 3, 1 << 2 | 1 << 3 | 1 << 6}, {2, 1, 0}}},
                {2, {{4, 2, 1 << 1 | 1 << 4}, {0, 2, 1 << 1 | 1 << 3}}}};
    int tried = 0;
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(dims); i++) {
        struct tile_factor f[2] = {dims[i].f[0], dims[i].f[1]};
        struct tile_dim d = {f, dims[i].n};
        for (int64_t k = 0; k < 60 * 3 * 3; k++) {
            int64_t size = 1 + k / 9, coords[TILE_MAX_FACTORS] = {k / 3 % 3, k % 3}, sum = 0;
            struct tile_interval at[64];
            if (coords[0] >= f[0].cuts || coords[1] >= (d.n > 1 ? f[1].cuts : 1))
                continue;
            int64_t n = tsr__dim_intervals(&d, size, coords, at, 64);
            for (int64_t j = 0; j < n; j++)
                sum += at[j].stop - at[j].start;
            struct local_size l = tsr__local_size(&d, coords);
            if (n >= 0)
                assert_int_equal(tsr__local_size_of(&l, size), sum);
            tried += n >= 0;
        }
    }
    assert_true(tried > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_device_holds_suffices, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(strided_parts_are_listed, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(gathers, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(local_sizes, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests_name("sharding local", tests, NULL, NULL);
}
