// SPDX-License-Identifier: Apache-2.0
// test_reshard.c - the steps between two shardings, and their bytes. The elements that each device
// lacks are counted one by one. test_operators.c carries the operators out.
//
// Usage: test_reshard [PAIRS]    (default: 1,500 random pairs)
#include "common.h"

#include <stdio.h>

#define DEVICES 8

static long pairs = 1500;

// ---- random layouts ----------------------------------------------------------------------------

struct lot {
    struct bench *b;
    uint64_t seed;
    struct arena *arena;
    int rank;
    int64_t shape[4];
};

static uint64_t draw(struct lot *l, uint64_t n)
{
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return (l->seed >> 33) % n;
}

static void random_shape(struct lot *l)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 0};
    l->rank = (int)draw(l, 5);
    for (int d = 0; d < l->rank; d++)
        l->shape[d] = sizes[draw(l, draw(l, 20) ? 11 : 12)];
}

static void random_dim(struct lot *l, int64_t size, struct tile_dim *d, struct tile_factor *f,
                       int64_t *left)
{
    *d = (struct tile_dim){f, 0};
    int64_t most = size < *left ? size : *left;
    if (most < 2 || draw(l, 5) < 2)
        return;
    int64_t a = 2 + (int64_t)draw(l, 3);
    if (size % a == 0 && size / a > 1 && draw(l, 3) == 0) { // several factors: strided pieces
        int64_t b = size / a, outer = draw(l, 2) && a <= most ? a : 1;
        int64_t room = most / outer < b ? most / outer : b;
        int64_t inner = room > 1 ? 1 + (int64_t)draw(l, (uint64_t)room) : 1;
        f[0] = (struct tile_factor){.size = draw(l, 2) ? a : 0, .cuts = outer};
        f[1] = (struct tile_factor){.size = b, .cuts = inner};
        d->n = 2;
        *left /= outer * inner;
        return;
    }
    f[0] = (struct tile_factor){.size = 0, .cuts = 2 + (int64_t)draw(l, (uint64_t)most - 1)};
    d->n = 1;
    *left /= f[0].cuts;
}

static void shuffled(struct lot *l, int64_t *devices)
{
    bool ordered = draw(l, 2);
    for (int64_t i = 0; i < DEVICES; i++)
        devices[i] = i;
    for (size_t i = DEVICES - 1; i > 0 && !ordered; i--) {
        size_t k = draw(l, i + 1);
        int64_t swap = devices[i];
        devices[i] = devices[k];
        devices[k] = swap;
    }
}

// How owners are assigned: equal numbers per shard, adjacent or far apart; arbitrary; several
// shards per device.
enum owning { OWN_NEAR, OWN_FAR, OWN_ANY, OWN_REPEATED, OWN_KINDS };

static struct tile_layout *random_layout(struct lot *l, bool gaps)
{
    struct tile_dim dims[4];
    struct tile_factor factors[4][2];
    struct tile_owner pairs_[DEVICES * 64];
    int64_t left = draw(l, 4) ? DEVICES : 16, devices[DEVICES];
    size_t n = 0;
    for (int d = 0; d < l->rank; d++)
        random_dim(l, l->shape[d], &dims[d], factors[d], &left);
    struct tile_layout *x = tsr__layout_cut(l->arena, l->rank, dims);
    assert_non_null(x);
    enum owning kind = (enum owning)draw(l, OWN_KINDS);
    if (x->n_shards > DEVICES && kind < OWN_ANY)
        kind = OWN_REPEATED;
    shuffled(l, devices);
    int64_t copies = kind < OWN_ANY ? 1 + (int64_t)draw(l, (uint64_t)(DEVICES / x->n_shards)) : 1;
    for (int64_t k = 0; k < x->n_shards; k++) {
        if (gaps && draw(l, 12) == 0)
            continue;
        if (kind == OWN_ANY)
            copies = 1 + (int64_t)draw(l, 3);
        for (int64_t i = 0; i < copies; i++) {
            int64_t at = kind == OWN_NEAR  ? k * copies + i
                         : kind == OWN_FAR ? i * x->n_shards + k
                                           : (int64_t)draw(l, kind == OWN_ANY ? DEVICES : 3);
            pairs_[n++] = (struct tile_owner){k, devices[at]};
        }
    }
    assert_true(tsr__layout_own(l->arena, x, pairs_, n));
    return x;
}

static const char *const meshes[] = {"2", "4", "2x2", "4x2", "2x2x2", "3x2", "8"};

// Layouts of a device mesh are parsed from their notation.
static struct tile_layout *random_mesh(struct lot *l, size_t mesh)
{
    char text[256];
    size_t at = 0;
    bool used[3] = {false};
    for (int d = 0; d < l->rank; d++) {
        char dim[48] = "R";
        size_t axes = (strlen(meshes[mesh]) + 1) / 2, axis = draw(l, axes);
        if (draw(l, 2) && !used[axis]) {
            used[axis] = true;
            snprintf(dim, sizeof dim, "S%zu", axis);
            size_t more = draw(l, axes);
            if (!used[more] && draw(l, 3) == 0) {
                used[more] = true;
                snprintf(dim, sizeof dim, "S%zu%zu", axis, more);
            }
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", d ? "," : "", dim);
    }
    snprintf(text + at, sizeof text - at, "@%s", meshes[mesh]);
    struct tile_layout *x = NULL;
    struct notation_error wrong;
    if (l->rank == 0 ||
        tsr__notation_parse(l->arena, str_of(text), l->rank, l->shape, &x, NULL, &wrong) != TSR_OK)
        return random_layout(l, false);
    int64_t sizes[TILE_MAX_FACTORS];
    for (int d = 0; d < l->rank; d++) // some layouts with empty shards
        if (!tsr__dim_sizes(&x->dims[d], l->shape[d], sizes) && draw(l, 4))
            return random_layout(l, false);
    return x;
}

// ---- bytes -------------------------------------------------------------------------------------

#define MOST_ELEMENTS 65536

static size_t element_count(const struct lot *l)
{
    size_t n = 1;
    for (int d = 0; d < l->rank; d++)
        n *= (size_t)l->shape[d];
    return n;
}

// Marks the elements that the device has of the layout.
static void mark(struct lot *l, const struct tile_layout *layout, int64_t device, bool *has)
{
    memset(has, 0, element_count(l));
    for (int64_t k = 0; k < layout->n_shards; k++) {
        const struct tile_piece *piece = tsr__layout_piece(l->arena, layout, l->shape, k);
        assert_non_null(piece);
        int64_t elements = tsr__piece_elements(piece);
        bool owns = false;
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            owns = owns || layout->owners[i] == device;
        for (int64_t e = 0; owns && e < elements; e++) {
            int64_t rest = e, id = 0, stride = 1;
            for (int d = l->rank - 1; d >= 0; d--) {
                int64_t at = rest % piece->dims[d].size, i = 0;
                rest /= piece->dims[d].size;
                while (at >= piece->dims[d].at[i].stop - piece->dims[d].at[i].start) {
                    at -= piece->dims[d].at[i].stop - piece->dims[d].at[i].start;
                    i++;
                }
                id += (piece->dims[d].at[i].start + at) * stride;
                stride *= l->shape[d];
            }
            has[id] = true;
        }
    }
}

// The bytes of a step must be those of the elements that devices lack before it.
static void check_step(struct lot *l, const tsr_step *step, const struct tile_layout *from,
                       const struct tile_layout *to)
{
    static bool has[MOST_ELEMENTS], needs[MOST_ELEMENTS];
    int64_t most = 0, total = 0;
    for (int64_t device = 0; device < DEVICES; device++) {
        int64_t lacks = 0;
        mark(l, from, device, has);
        mark(l, to, device, needs);
        for (size_t e = 0; e < element_count(l); e++)
            lacks += needs[e] && !has[e];
        most = lacks > most ? lacks : most;
        total += lacks;
    }
    assert_int_equal(step->received, 4 * most);
    assert_int_equal(step->total, 4 * total);
    assert_true(step->sent <= step->total && (step->sent > 0) == (total > 0));
}

static void one_pair(struct lot *l, size_t *steps, size_t *refused)
{
    random_shape(l);
    size_t mesh = draw(l, TSR_COUNT(meshes)),
           other = draw(l, 3) ? mesh : draw(l, TSR_COUNT(meshes));
    uint64_t kind = draw(l, 4); // layouts of a mesh: both, one, none
    bool gaps = draw(l, 25) == 0;
    const struct tile_layout *from = kind > 1 ? random_layout(l, gaps) : random_mesh(l, mesh);
    const struct tile_layout *to = kind % 3 ? random_layout(l, false) : random_mesh(l, other);
    struct reshard_request request = {.from = tsr__notation_print(l->arena, from).p,
                                      .to = tsr__notation_print(l->arena, to).p,
                                      .rank = l->rank,
                                      .type = TSR_FLOAT,
                                      .shape = l->shape};
    struct reshard_found out;
    tsr_status status = tsr__reshard_texts(&request, l->arena, &out);
    if (status != TSR_OK) {
        assert_int_equal(status, TSR_INVALID);
        assert_true(gaps && found(l->b->session, "reshard-source"));
        tsr_finding_clear(l->b->session);
        ++*refused;
        return;
    }
    const struct tile_layout *at = from;
    for (size_t i = 0; i < out.n; i++) {
        check_step(l, &out.steps[i], at, out.operators.at[i].layout);
        at = out.operators.at[i].layout;
    }
    steps[out.n]++;
}

static void test_random_pairs(void **state)
{
    struct bench *b = *state;
    size_t steps[RESHARD_MAX_STEPS + 1] = {0}, refused = 0;
    for (long i = 0; i < pairs; i++) {
        struct arena arena;
        tsr__arena_init(&arena, b->session);
        struct lot l = {.b = b, .seed = (uint64_t)i * 7919 + 22, .arena = &arena};
        one_pair(&l, steps, &refused);
        tsr__arena_free(&arena);
    }
    print_message("%ld pairs, %zu refused; 0, 1, 2 steps: %zu %zu %zu\n", pairs, refused, steps[0],
                  steps[1], steps[2]);
    assert_true(steps[0] > 0 && steps[1] > 0 && steps[2] > 0 && refused > 0);
}

// ---- known plans -------------------------------------------------------------------------------

// Expected steps: "op received total; ..." in bytes of float32.
static void expect(struct bench *b, const char *from, const char *to, const char *pending, int rank,
                   const int64_t *shape, const char *want)
{
    struct arena arena = {.session = b->session};
    struct reshard_request request = {from, to, pending, TSR_FLOAT, rank, shape, NULL};
    struct reshard_found found;
    size_t at = 0;
    char got[512] = "";
    assert_int_equal(tsr__reshard_texts(&request, &arena, &found), TSR_OK);
    size_t n = found.n;
    const tsr_step *steps = found.steps;
    for (size_t i = 0; i < n; i++) {
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%s", i ? "; " : "", steps[i].op);
        if (steps[i].axis >= 0)
            at += (size_t)snprintf(got + at, sizeof got - at, " %d", steps[i].axis);
        if (steps[i].to_axis >= 0)
            at += (size_t)snprintf(got + at, sizeof got - at, ">%d", steps[i].to_axis);
        at += (size_t)snprintf(got + at, sizeof got - at, " %lld %lld",
                               (long long)steps[i].received, (long long)steps[i].total);
    }
    assert_string_equal(got, want);
    if (n)
        assert_non_null(strchr(steps[n - 1].sharding, '{'));
    tsr__arena_free(&arena);
}

// The expected plan for each pair of layouts on one group of devices.
static void test_one_group(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600}; // V = 1,920,000 bytes
    expect(b, "{4,1:0,1,2,3}", "{4,1:0,1,2,3}", NULL, 2, s, "");
    expect(b, "{1,1:0,1,2,3}", "{4,1:0,1,2,3}", NULL, 2, s, "slice 0 0");
    expect(b, "{4,1:0,1,2,3}", "{1,1:0,1,2,3}", NULL, 2, s, "all-gather 0 1440000 5760000");
    expect(b, "{4,1:0,1,2,3}", "{1,4:0,1,2,3}", NULL, 2, s, "all-to-all 0>1 360000 1440000");
    expect(b, "{1,1:0,1,2,3}", "{1,1:0,1,2,3}", "sum", 2, s, "all-reduce 2880000 11520000");
    expect(b, "{1,1:0,1,2,3}", "{1,4:3,2,1,0}", "sum", 2, s,
           "all-reduce 2880000 11520000; slice 0 0");
    expect(b, "{1,1:0,1,2,3}", "{1,1:2}", "max", 2, s, "reduce 1920000 5760000");
    expect(b, "{1,1:0}", "{1,1:0,1,2,3}", NULL, 2, s, "broadcast 1920000 5760000");
    expect(b, "{1,1:0}", "{4,1:0,1,2,3}", NULL, 2, s, "exchange 480000 1440000");
    expect(b, "{4,1:0,1,2,3}", "{1,1:0}", NULL, 2, s, "exchange 1440000 1440000");
    expect(b, "{4,1:0,1,2,3}", "{4,1:1,2,3,0}", NULL, 2, s, "exchange 480000 1920000");
    expect(b, "{4,1:0,1,2,3}", "{2,1:(0,1),(2,3)}", NULL, 2, s, "all-gather 0 480000 1920000");
    expect(b, "{2,1:(0,1),(2,3)}", "{4,1:0,1,2,3}", NULL, 2, s, "slice 0 0");
    expect(b, "{4,1:0,1,2,3}", "{4/2*200/2,1:0,1,2,3}", NULL, 2, s, "exchange 240000 960000");
    expect(b, "{2,1:0,1}", "{1,2:2,3}", NULL, 2, s, "exchange 960000 1920000");
    expect(b, "{2,1:0,1}", "{2,1:2,3}", NULL, 2, s, "permute 960000 1920000");
}

static void test_several_axes(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600};
    expect(b, "S01,R@2x2", "S0,R@2x2", NULL, 2, s, "all-gather 0 480000 1920000");
    expect(b, "S0,S1@2x2", "S1,S0@2x2", NULL, 2, s, "exchange 480000 960000");
    expect(b, "S0,R@2x2", "R,S0@2x2", NULL, 2, s, "all-to-all 0>1 480000 1920000");
    expect(b, "S0,S1@2x2", "S01,R@2x2", NULL, 2, s, "all-to-all 1>0 240000 960000");
    expect(b, "S0,S1@2x2", "R,R@2x2", NULL, 2, s,
           "all-gather 0 480000 1920000; all-gather 1 960000 3840000");
    // [x] with a pending y: reduce-scattered first, gathered last
    expect(b, "S0,R@2x2", "R,R@2x2", "sum", 2, s,
           "reduce-scatter 480000 1920000; all-gather 0 1440000 5760000");
    expect(b, "R,R@2x2", "S0,R@2x2", "sum", 2, s,
           "reduce-scatter 1440000 5760000; all-gather 0 480000 1920000");
}

// Device 3 has everything: the largest message goes to the device that needs all of it.
static void test_largest_message(void **state)
{
    struct bench *b = *state;
    struct arena arena;
    const int64_t shape[] = {8, 6}, root = 3, all[] = {0, 1};
    struct reshard_exchange exchange;
    tsr__arena_init(&arena, b->session);
    struct tile_layout *from = tsr__layout_whole(&arena, 2, &root, 1);
    struct tile_layout *to = tsr__layout_whole(&arena, 2, all, 2);
    assert_int_equal(tsr__reshard_exchange(&arena, from, to, shape, 4, &exchange), TSR_OK);
    struct reshard_pair pair = exchange.largest;
    assert_true(pair.from == 3 && pair.to < 2 && pair.bytes == 192 && exchange.bytes == 192);
    tsr__arena_free(&arena);
}

static void test_uneven(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {7, 5}, big[] = {0, 4};
    expect(b, "{3,1:0,1,2}", "{1,1:0,1,2}", NULL, 2, s, "all-gather 0 100 280");
    expect(b, "{3,1:0,1,2}", "{1,3:0,1,2}", NULL, 2, s, "all-to-all 0>1 40 92");
    expect(b, "{1,1:0,1,2}", "{3,1:0,1,2}", "sum", 2, s, "reduce-scatter 120 280");
    // an empty tensor on other devices
    expect(b, "{1,1:0,1}", "{1,2:2,3}", NULL, 2, big, "exchange 0 0");
    expect(b, "{1:0}", "{1:0,5}", NULL, 0, s, "broadcast 4 4"); // a scalar
}

// Finds no resharding of a value with these 2 dimensions.
static void refuse(struct bench *b, const char *from, const char *to, const char *pending,
                   tsr_dtype type, const int64_t *shape, tsr_status status)
{
    struct arena arena = {.session = b->session};
    struct reshard_request request = {from, to, pending, type, 2, shape, NULL};
    struct reshard_found found;
    assert_int_equal(tsr__reshard_texts(&request, &arena, &found), status);
    tsr__arena_free(&arena);
}

static void test_refused(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {8, 8}, huge[] = {INT64_MAX / 2, 8};
    refuse(b, "{2,1:0,-1}", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_INVALID);
    assert_true(found(b->session, "reshard-source"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:(0,1),(1,2)}", "{1,1:0}", "sum", TSR_FLOAT, s, TSR_INVALID);
    assert_true(found(b->session, "reshard-source"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:0,1}", "{1,1:0}", NULL, TSR_FLOAT, huge, TSR_UNSUPPORTED);
    assert_true(found(b->session, "tiles-many"));
    tsr_finding_clear(b->session);
    refuse(b, "{2,1:0,1}", "{1,1:0}", "mean", TSR_FLOAT, s, TSR_INVALID);
    refuse(b, "{x}", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_MALFORMED);
    refuse(b, "{2,1}", "{1,1:0}", NULL, TSR_INT4, s, TSR_UNSUPPORTED);
    refuse(b, "({0},{})", "{1,1:0}", NULL, TSR_FLOAT, s, TSR_MALFORMED); // over which mesh?
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 4);
    // one group of two tiles, and its members hold both
    expect(b, "{2,1:(0,1),(0,1)}", "{2,1:0,1}", "sum", 2, s, "all-reduce 256 512; slice 0 0");
}

// Each failing allocation must give an error status.
static void test_no_memory(void **state)
{
    struct bench *b = *state;
    const int64_t s[] = {800, 600};
    const struct notation_mesh mesh = {{2, 2}, 2, true};
    struct reshard_request request = {"R,R", "S0,R", "sum", TSR_FLOAT, 2, s, &mesh};
    tsr_status status = TSR_NOMEM;
    for (uint64_t at = 1; status == TSR_NOMEM && at < 1000; at++) {
        struct arena arena = {.session = b->session};
        struct reshard_found found;
        tsr__session_fault(b->session, 0, at, false);
        status = tsr__reshard_texts(&request, &arena, &found);
        tsr__session_fault(b->session, 0, 0, false);
        assert_true(status == TSR_OK || status == TSR_NOMEM);
        tsr__arena_free(&arena);
    }
    assert_int_equal(status, TSR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_group, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_several_axes, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_largest_message, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_uneven, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_refused, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_random_pairs, bench_setup, bench_teardown),
    };
    if (argc > 1)
        pairs = strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("reshard", tests, NULL, NULL);
}
