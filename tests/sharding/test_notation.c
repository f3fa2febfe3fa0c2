// SPDX-License-Identifier: Apache-2.0
// test_notation.c - the compact notation: the meaning of valid texts, errors of invalid texts, and
// parsing as the inverse of printing.
#include "common.h"
#include "notation_holds.h"
#include "sharding/layouts/internal.h"

// ---- valid texts -------------------------------------------------------------------------------

struct right {
    const char *text;
    int rank;
    const char *canonical;
};

static const struct right RIGHT[] = {
    {"{4,1:0,1,2,3}", 2, "{4,1:0,1,2,3}"},
    {"{1,4:0,1,2,3}", 2, "{1,4:0,1,2,3}"},
    {"{2,2:0,1,2,3}", 2, "{2,2:0,1,2,3}"},
    {"{2,1:(0,1),(2,3)}", 2, "{2,1:(0,1),(2,3)}"},
    {"{1:0,1,2,3}", 2, "{1,1:0,1,2,3}"},
    {"{1:3,2}", 3, "{1,1,1:2,3}"},
    {"{1:0}", 0, "{1:0}"},
    {"{1}", 0, "{1:0}"},
    {"{1:(0,1),2}", 1, "{1:0,1,2}"},
    {"S0,S1@2x2", 2, "{2,2:0,1,2,3}"},
    {"S0,R@2x2", 2, "{2,1:(0,1),(2,3)}"},
    {"S1,R@2x2", 2, "{2,1:(0,2),(1,3)}"},
    {"R,S01@2x2", 2, "{1,4:0,1,2,3}"},
    {"R,S10@2x2", 2, "{1,4:0,2,1,3}"},
    {"R,S10@2x3", 2, "{1,6:0,3,1,4,2,5}"},
    {"R,R@2x2", 2, "{1,1:0,1,2,3}"},
    {"{4,1:3,1,0,2}", 2, "{4,1:3,1,0,2}"},
    {"{4}", 2, "{1,4:0,1,2,3}"},
    {"{4}", -1, "{4:0,1,2,3}"},
    {"S1,S0@2x2", 2, "{2,2:0,2,1,3}"},
    {"S0,R@4x1", 2, "{4,1:0,1,2,3}"},
    {"S1,R@4x1", 2, "{1,1:0,1,2,3}"},
    {"S0,R@2x2:3,2,1,0", 2, "{2,1:(2,3),(0,1)}"},
    {"S0,R@2x2:4,5,7,6", 2, "{2,1:(4,5),(6,7)}"},
    {"S2,R,S0@2x3x4", 3, NULL},
    {"{3/2*4,1:0,1}", 2, "{3/2*4,1:0,1}"},
    {"{2*4/2,1:0,1}", 2, "{2*4/2,1:0,1}"},
    {"{?/2*16,1:0,1}", 2, "{?/2*16,1:0,1}"},
    {"{8/2,1}", 2, "{2,1:0,1}"},
    {"{4*16,1:0}", 2, "{1,1:0}"},
    {"{2/2*4/2,1:3,2,1,0}", 2, "{2/2*4/2,1:3,2,1,0}"},
    {"{2,1:0,-1}", 2, "{2,1:0,-1}"},
    {"{1:-1}", 1, "{1:-1}"},
    {"{2,1:0,0}", 2, "{2,1:0,0}"},
    {" { 2 , 1 : ( 0 , 1 ) , 2 } ", 2, "{2,1:(0,1),2}"},
    {" S0 , R @ 2 x 2 : 4 , 5 , 6 , 7 ", 2, "{2,1:(4,5),(6,7)}"},
    {"{2,1:0,2147483647}", 2, "{2,1:0,2147483647}"},
    {"S01,R@8x10", 2, "{80,1}"}, // long ascending device lists are omitted
    {"{10,8}", 2, "{10,8}"},
    {"S1,S0@8x10", 2, NULL},
};

static void texts_mean_what_they_should(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < TSR_COUNT(RIGHT); i++) {
        struct tile_layout *l = NULL;
        struct notation_error wrong = {0};
        tsr_status status = tsr__notation_parse(&b->arena, str_of(RIGHT[i].text), RIGHT[i].rank,
                                                NULL, &l, NULL, &wrong);
        if (status != TSR_OK)
            fail_msg("%s: %s at %zu", RIGHT[i].text, wrong.what, wrong.at);
        assert_int_equal(l->rank, RIGHT[i].rank < 0 ? 1 : RIGHT[i].rank);
        if (RIGHT[i].canonical)
            assert_string_equal(tsr__notation_print(&b->arena, l).p, RIGHT[i].canonical);
        assert_true(notation_holds(b->session, RIGHT[i].text, strlen(RIGHT[i].text)));
    }
}

// Parsing returns the number of tiles without a device.
static void suppressed_tiles_are_counted(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = NULL;
    struct notation_error wrong;
    int n = 7;
    assert_int_equal(tsr__notation_parse(&b->arena, STR("{4:0,-1,-1,2}"), 1, NULL, &l, &n, &wrong),
                     TSR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(tsr__notation_parse(&b->arena, STR("{4}"), 1, NULL, &l, &n, &wrong), TSR_OK);
    assert_int_equal(n, 0);
}

// A layout with another loop order is printed with reordered devices.
static void another_loop_order_prints_in_dimension_order(void **state)
{
    struct bench *b = *state;
    struct tile_layout *l = NULL;
    struct notation_error wrong;
    assert_int_equal(
        tsr__notation_parse(&b->arena, STR("{2,3:0,1,2,3,4,5}"), 2, NULL, &l, NULL, &wrong),
        TSR_OK);
    struct tile_loop first = l->loops[0];
    l->loops[0] = l->loops[1];
    l->loops[1] = first;
    assert_string_equal(tsr__notation_print(&b->arena, l).p, "{2,3:0,2,4,1,3,5}");
}

// ---- invalid texts -----------------------------------------------------------------------------

struct wrong {
    const char *text;
    int rank;
    int64_t size; // of every dimension; -1: unknown
    tsr_status status;
    size_t at;
    const char *what;
};

static const struct wrong WRONG[] = {
    {"", 2, -1, TSR_MALFORMED, 0, "expected R (replicated) or S with the numbers of mesh axes"},
    {"2,1", 2, -1, TSR_MALFORMED, 0, "expected R (replicated) or S with the numbers of mesh axes"},
    {"{", 2, -1, TSR_MALFORMED, 1, "expected a number of shards"},
    {"{}", 2, -1, TSR_MALFORMED, 1, "expected a number of shards"},
    {"{-2,1:0,1}", 2, -1, TSR_MALFORMED, 1, "expected a number of shards"},
    {"{2,", 2, -1, TSR_MALFORMED, 3, "expected a number of shards"},
    {"{2,1", 2, -1, TSR_MALFORMED, 4, "expected , or : or }"},
    {"{2;1}", 2, -1, TSR_MALFORMED, 2, "expected , or : or }"},
    {"{2,1:", 2, -1, TSR_MALFORMED, 5, "expected a device number"},
    {"{2,1:}", 2, -1, TSR_MALFORMED, 5, "expected a device number"},
    {"{2,1:0,1", 2, -1, TSR_MALFORMED, 8, "expected , or }"},
    {"{2,1:0,1}x", 2, -1, TSR_MALFORMED, 9, "unexpected text after the sharding"},
    {"{2,1:0,-2}", 2, -1, TSR_MALFORMED, 7,
     "devices are numbered from 0; the only negative one is -1, which leaves a tile out"},
    {"{2,1:(0,-1),1}", 2, -1, TSR_MALFORMED, 8, "-1 is not allowed in a group"},
    {"{2,1:(0,1,2}", 2, -1, TSR_MALFORMED, 11, "expected , or ) in a group"},
    {"{2,1:(),1}", 2, -1, TSR_MALFORMED, 6, "expected a device number"},
    {"{4/*2}", 1, -1, TSR_MALFORMED, 3, "expected the number of shards after /"},
    {"{99999999999999999999}", 1, -1, TSR_MALFORMED, 1, "this number is too large"},
    {"{0,1}", 2, -1, TSR_INVALID, 1,
     "the number of shards of a dimension must be 1 or more, not 0"},
    {"{4/0*2}", 1, -1, TSR_INVALID, 3,
     "the number of shards of a dimension must be 1 or more, not 0"},
    {"{0*4/2}", 1, -1, TSR_INVALID, 1, "a factor must have 1 element or more"},
    {"{4/2*0}", 1, -1, TSR_INVALID, 5, "a factor must have 1 element or more"},
    {"{?/2*?}", 1, -1, TSR_INVALID, 5, "a dimension may contain one ? at most"},
    {"{9223372036854775807}", 1, -1, TSR_INVALID, 1,
     "9223372036854775807 shards are not supported; the limit is 1048576"},
    {"{1048576,2}", 2, -1, TSR_INVALID, 0,
     "the pattern has more than 1048576 tiles, which is not supported"},
    {"{2,1:0,1,2}", 2, -1, TSR_INVALID, 9,
     "the pattern has 2 tiles, but more owners are listed here"},
    {"{5,1:3,2,4,1}", 2, -1, TSR_INVALID, 4, "the pattern has 5 tiles but 4 owners"},
    {"{2,1:0,2147483648}", 2, -1, TSR_INVALID, 7, "this device number is too large"},
    {"{2,1:(1,0,1),2}", 2, -1, TSR_INVALID, 0, "device 1 is listed twice for the same tile"},
    {"{1:0,0}", 2, -1, TSR_INVALID, 0, "device 0 is listed twice for the same tile"},
    {"{2,2,2}", 2, -1, TSR_INVALID, 5, "the pattern has 3 entries, but the value has 2 dimensions"},
    {"{2}", 0, -1, TSR_INVALID, 1, "the pattern has 1 entry, but the value has 0 dimensions"},
    {"{5/5*1,1}", 2, 3, TSR_INVALID, 1,
     "the product of the factors is not 3, the size of dimension 0"},
    {"{1,2*5/2:0,1}", 2, 8, TSR_INVALID, 3,
     "the product of the factors is not 8, the size of dimension 1"},
    {"{6/2,1}", 2, 8, TSR_INVALID, 1,
     "the product of the factors is not 8, the size of dimension 0"},
    {"S", 1, -1, TSR_MALFORMED, 1, "the mesh is unknown: append its shape, such as @2x2"},
    {"S0", 1, -1, TSR_MALFORMED, 2, "the mesh is unknown: append its shape, such as @2x2"},
    {"S0,@2", 2, -1, TSR_MALFORMED, 3,
     "expected R (replicated) or S with the numbers of mesh axes"},
    {"S0@", 1, -1, TSR_MALFORMED, 3, "expected the size of a mesh axis"},
    {"S0@2x", 1, -1, TSR_MALFORMED, 5, "expected the size of a mesh axis"},
    {"S0@2;", 1, -1, TSR_MALFORMED, 4, "unexpected text after the sharding"},
    {"S0@2:0;1", 1, -1, TSR_MALFORMED, 6, "expected , or the end"},
    {"S0,S0@2", 2, -1, TSR_INVALID, 4, "mesh axis 0 is used twice"},
    {"S5,R@2x2", 2, -1, TSR_INVALID, 1, "the mesh has no axis 5; its axes are 0 to 1"},
    {"S02,R@2x2", 2, -1, TSR_INVALID, 2, "the mesh has no axis 2; its axes are 0 to 1"},
    {"S0,R@0x2", 2, -1, TSR_INVALID, 5, "a mesh axis must have 1 device or more"},
    {"S0,R@1048576x2", 2, -1, TSR_INVALID, 13,
     "the mesh has more than 1048576 devices, which is not supported"},
    {"S0@1x1x1x1x1x1x1x1x1x1x1", 1, -1, TSR_INVALID, 23, "a mesh has at most 10 axes"},
    {"S0,R@2x2:4,5,6", 2, -1, TSR_INVALID, 8, "the mesh has 4 positions but 3 devices"},
    {"S0,R@2x2:4,5,6,7,8", 2, -1, TSR_INVALID, 16,
     "the mesh has 4 positions, but more devices are listed here"},
    {"S0@2", 2, -1, TSR_INVALID, 0, "1 dimension is written, but the value has 2"},
    {"{1/1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1*1}", 1, -1, TSR_INVALID, 35,
     "a dimension has at most 16 factors"},
};

static void wrong_texts_say_what_and_where(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < TSR_COUNT(WRONG); i++) {
        const struct wrong *w = &WRONG[i];
        const int64_t sizes[3] = {w->size, w->size, w->size};
        struct tile_layout *l = NULL;
        struct notation_error e = {0};
        tsr_status status =
            tsr__notation_parse(&b->arena, str_of(w->text), w->rank, sizes, &l, NULL, &e);
        if (status != w->status || e.at != w->at || !e.what || strcmp(e.what, w->what) != 0)
            fail_msg("%s: %d, %s at %zu", w->text, (int)status, e.what ? e.what : "nothing", e.at);
        assert_null(l);
        assert_true(notation_holds(b->session, w->text, strlen(w->text)));
    }
}

static void sizes_that_fit_are_accepted(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *text;
        int64_t size;
    } fits[] = {{"{5}", 7},      {"{5}", 5},      {"{2*4/2}", 8}, {"{3/2*4}", 12},
                {"{3/2*4}", 10}, {"{?/2*4}", 12}, {"{1}", 0},     {"{8/2}", 8}};
    for (size_t i = 0; i < TSR_COUNT(fits); i++) {
        struct tile_layout *l;
        struct notation_error wrong;
        assert_int_equal(tsr__notation_parse(&b->arena, str_of(fits[i].text), 1, &fits[i].size, &l,
                                             NULL, &wrong),
                         TSR_OK);
    }
}

// ---- parsing is the inverse of printing --------------------------------------------------------

static uint64_t seed = 11;

static int64_t pick(int64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)below);
}

static struct tile_layout *random_layout(struct arena *a)
{
    struct tile_dim dims[4];
    struct tile_factor factors[4][3];
    int rank = (int)pick(5);
    for (int d = 0; d < rank; d++) {
        dims[d] = (struct tile_dim){factors[d], (int)pick(4)};
        for (int f = 0; f < dims[d].n; f++) {
            int64_t cuts = 1 + pick(3);
            factors[d][f] = (struct tile_factor){.size = cuts + pick(9), .cuts = cuts};
        }
        if (dims[d].n && pick(3) == 0)
            factors[d][pick(dims[d].n)].size = 0;
    }
    struct tile_layout *l = tsr__layout_cut(a, rank, dims);
    assert_non_null(l);
    for (int i = l->n_loops - 1; i > 0; i--) {
        int j = (int)pick(i + 1);
        struct tile_loop t = l->loops[i];
        l->loops[i] = l->loops[j];
        l->loops[j] = t;
    }
    struct tile_owner *pairs = ARENA_ARRAY(a, struct tile_owner, (size_t)l->n_shards * 3 + 1);
    size_t n = 0;
    for (int64_t k = 0; k < l->n_shards; k++)
        for (int64_t i = pick(4); i > 0; i--)
            pairs[n++] = (struct tile_owner){k, pick(12)};
    assert_true(tsr__layout_own(a, l, pairs, n));
    return l;
}

static void every_layout_survives_print_and_parse(void **state)
{
    struct bench *b = *state;
    for (int trial = 0; trial < 3000; trial++) {
        struct tile_layout *l = random_layout(&b->arena), *back = NULL;
        struct notation_error wrong = {0};
        struct str text = tsr__notation_print(&b->arena, l);
        if (tsr__notation_parse(&b->arena, text, l->rank, NULL, &back, NULL, &wrong) != TSR_OK)
            fail_msg("%s: %s at %zu", text.p, wrong.what, wrong.at);
        if (!tsr__layout_equal(l, back) || !str_eq(text, tsr__notation_print(&b->arena, back)))
            fail_msg("%s is read as %s", text.p, tsr__notation_print(&b->arena, back).p);
        if (trial % 64 == 63) {
            tsr__arena_free(&b->arena);
            tsr__arena_init(&b->arena, b->session);
        }
    }
}

static void random_bytes_are_refused_or_inverse(void **state)
{
    struct bench *b = *state;
    static const char letters[] = "{{}:,,(()*/?-@x 0123456789SRR";
    char text[48];
    for (int trial = 0; trial < 20000; trial++) {
        size_t n = 0;
        if (trial % 2) { // a valid text with a few bytes changed
            const char *from = RIGHT[pick(TSR_COUNT(RIGHT))].text;
            n = strlen(from);
            memcpy(text, from, n);
            for (int64_t k = 1 + pick(3); k > 0; k--)
                text[pick((int64_t)n)] = letters[pick(sizeof(letters) - 1)];
        } else {
            for (int64_t length = pick(24); n < (size_t)length; n++)
                text[n] = letters[pick(sizeof(letters) - 1)];
        }
        if (!notation_holds(b->session, text, n))
            fail_msg("%.*s", (int)n, text);
    }
}

static void lack_of_memory_is_told(void **state)
{
    (void)state;
    for (uint64_t k = 1; k < 4; k++) {
        tsr_session *s = tsr_session_new(NULL);
        struct arena a;
        struct tile_layout *l = NULL;
        struct notation_error wrong = {0};
        tsr__arena_init(&a, s);
        tsr__session_fault(s, 0, k, true);
        tsr_status status = tsr__notation_parse(&a, STR("{65536,2}"), 2, NULL, &l, NULL, &wrong);
        assert_int_equal(status, TSR_NOMEM);
        assert_non_null(wrong.what);
        tsr__session_fault(s, 0, 0, false);
        tsr__arena_free(&a);
        tsr_session_free(s);
    }
}

// One dimension in parts of the given numbers of units, one part per device.
static struct tile_layout *in_units(struct arena *arena, const int64_t *units,
                                    const int64_t *devices, size_t n)
{
    bool fits;
    struct tile_factor factor = {.cuts = (int64_t)n};
    factor.shares = tsr__shares_of(units, (int64_t)n, &fits);
    struct tile_dim dim = {&factor, 1};
    struct tile_owner pairs[8];
    for (size_t i = 0; i < n; i++)
        pairs[i] = (struct tile_owner){(int64_t)i, devices[i]};
    struct tile_layout *layout = tsr__layout_cut(arena, 1, &dim);
    assert_true(layout && tsr__layout_own(arena, layout, pairs, n));
    return layout;
}

// Adjacent unequal parts on one device must be merged, as they are when their spec is read.
static void unequal_parts_merge(void **state)
{
    static const struct {
        int64_t units[4], devices[4];
        size_t n;
        const char *text;
    } cases[] = {
        {{2, 1, 1, 2}, {0, 0, 1, 1}, 4, "{2:0,1}"}, {{3, 1}, {0, 0}, 2, "{1:0}"},
        {{2, 1, 1}, {0, 0, 1}, 3, "{4:0,0,0,1}"},   {{2, 1, 1}, {0, 1, 2}, 3, "{4:0,0,1,2}"},
        {{2, 1, 1}, {0, 1, 0}, 3, "{4:0,0,1,0}"},
    };
    struct bench *b = *state;
    tsr_dim dim = {24, ""};
    struct shape shape = {.rank = 1, .dims = &dim, .dtype = TSR_FLOAT};
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct tile_layout *given =
            in_units(&b->arena, cases[i].units, cases[i].devices, cases[i].n);
        struct tile_layout *canonical = tsr__layout_canonical(&b->arena, given, &shape);
        assert_non_null(canonical);
        assert_string_equal(tsr__notation_print(&b->arena, canonical).p, cases[i].text);
        assert_true(
            tsr__layout_equal(canonical, tsr__layout_canonical(&b->arena, canonical, &shape)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unequal_parts_merge),
        cmocka_unit_test(texts_mean_what_they_should),
        cmocka_unit_test(suppressed_tiles_are_counted),
        cmocka_unit_test(another_loop_order_prints_in_dimension_order),
        cmocka_unit_test(wrong_texts_say_what_and_where),
        cmocka_unit_test(sizes_that_fit_are_accepted),
        cmocka_unit_test(every_layout_survives_print_and_parse),
        cmocka_unit_test(random_bytes_are_refused_or_inverse),
        cmocka_unit_test(lack_of_memory_is_told),
    };
    return cmocka_run_group_tests_name("notation", tests, bench_setup, bench_teardown);
}
