// SPDX-License-Identifier: Apache-2.0
// test_seat.c - the seat of one rank on a GPU: memory, row copies, folds (reductions of several
// inputs), and messages for missing libraries. The GPU is a stand-in; GPU=1 in the environment uses
// a real one.
#include "gpu/gpu.h"
#include "transport/transport.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static struct gpu_libraries libraries;

struct fixture {
    tsr_session *session;
    struct gpu *gpu;
    struct gpu_seat *seat;
    void *stream;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char why[200] = "";
    f->session = tsr_session_new(NULL);
    f->gpu = tsr__gpu_open(f->session, &libraries, why, sizeof why);
    assert_string_equal(why, "");
    assert_int_equal(tsr__seat_open(f->session, f->gpu, 0, true, &f->seat), 0);
    f->stream = tsr__seat_stream(f->seat);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    tsr__seat_close(f->seat);
    tsr__gpu_close(f->session, f->gpu);
    tsr_session_free(f->session);
    free(f);
    return 0;
}

// Allocates device memory with these bytes.
static void *put(struct fixture *f, const void *p, size_t bytes)
{
    void *device = NULL;
    assert_int_equal(tsr__seat_alloc(f->seat, bytes, &device), 0);
    assert_int_equal(tsr__seat_up(f->seat, device, p, bytes, f->stream), 0);
    assert_int_equal(tsr__seat_wait(f->seat, f->stream), 0); // the caller may change p
    return device;
}

static void get(struct fixture *f, void *p, const void *device, size_t bytes)
{
    assert_int_equal(tsr__seat_down(f->seat, p, device, bytes, f->stream), 0);
    assert_int_equal(tsr__seat_wait(f->seat, f->stream), 0);
}

// ---- folds -------------------------------------------------------------------------------------

// Includes all special floats: zeros of both signs, infinities, subnormals, and differences at the
// limit of rounding. NaN has its own test, because its bits differ between processors.
static void fill(tsr_dtype type, unsigned char *p, size_t n, unsigned seed)
{
    static const float odd[] = {0.0F, -0.0F, 1.0F, -1.0F, 3.4e38F, 1e-40F, 65504.0F, 0.33333334F};
    for (size_t i = 0; i < n; i++) {
        unsigned r = (unsigned)rand_r(&seed);
        float v = r % 5 ? (float)(int)(r % 20001 - 10000) / 37.0F : odd[r / 5 % 8];
        double wide = (double)v * 1.0000001;
        uint16_t half = type == TSR_BFLOAT16 ? float_to_bfloat(v) : float_to_half(v);
        uint64_t whole = (uint64_t)r * 0x9E3779B97F4A7C15u;
        switch (type) {
        case TSR_FLOAT:
            memcpy(p + 4 * i, &v, 4);
            break;
        case TSR_DOUBLE:
            memcpy(p + 8 * i, &wide, 8);
            break;
        case TSR_FLOAT16:
        case TSR_BFLOAT16:
            memcpy(p + 2 * i, &half, 2);
            break;
        case TSR_BOOL:
            p[i] = r >> 3 & 1;
            break;
        default:
            memcpy(p + tsr__elem_bytes(type) * i, &whole, tsr__elem_bytes(type));
        }
    }
}

static bool is_nan(tsr_dtype type, const unsigned char *p)
{
    uint16_t half;
    float single;
    double wide;
    memcpy(&half, p, 2);
    if (type == TSR_FLOAT16)
        return (half & 0x7FFF) > 0x7C00;
    if (type == TSR_BFLOAT16)
        return (half & 0x7FFF) > 0x7F80;
    if (type == TSR_FLOAT) {
        memcpy(&single, p, 4);
        return isnan(single);
    }
    if (type == TSR_DOUBLE) {
        memcpy(&wide, p, 8);
        return isnan(wide);
    }
    return false;
}

// True if all bits are equal. Any NaN equals any NaN: the sign of infinity times 0 differs between
// CPU and GPU.
static bool alike(tsr_dtype type, const unsigned char *a, const unsigned char *b, size_t n)
{
    size_t bytes = tsr__elem_bytes(type);
    for (size_t i = 0; i < n * bytes; i += bytes)
        if (memcmp(a + i, b + i, bytes) != 0 && !(is_nan(type, a + i) && is_nan(type, b + i)))
            return false;
    return true;
}

#define MOST 4099 // elements: odd, so that no vector width divides it

// Folds n inputs into two outputs, of which the second is also the second input, and compares with
// the fold on the host. skip: misalignment in bytes, so that the kernel handles single elements.
static void check_fold(struct fixture *f, tsr_dtype type, enum comm_reduce reduce, int n,
                       size_t skip)
{
    size_t bytes = tsr__elem_bytes(type) * MOST;
    unsigned char *host[GPU_MAX_MEMBERS] = {NULL}, *want = malloc(bytes), *got = malloc(bytes);
    const void *ins[GPU_MAX_MEMBERS];
    struct gpu_fold fold = {.type = type,
                            .reduce = (enum gpu_reduce)(reduce - COMM_SUM),
                            .n_in = n,
                            .n_out = n > 1 ? 2 : 1,
                            .count = MOST};
    char *device[GPU_MAX_MEMBERS + 1];
    for (int i = 0; i < n; i++) {
        host[i] = malloc(bytes + skip);
        fill(type, host[i] + skip, MOST, (unsigned)(i + 1));
        ins[i] = host[i] + skip;
        device[i] = put(f, host[i], bytes + skip);
        fold.in[i] = device[i] + skip;
    }
    device[n] = put(f, host[0], bytes + skip);
    fold.out[0] = device[n] + skip;
    fold.out[1] = n > 1 ? device[1] + skip : NULL;
    assert_int_equal(tsr__seat_fold(f->seat, &fold, f->stream), 0);
    tsr__reduce(type, reduce, ins, n, (void *const *)&want, 1, 0, MOST);
    for (int k = 0; k < fold.n_out; k++) {
        get(f, got, fold.out[k], bytes);
        if (!alike(type, got, want, MOST))
            fail_msg("%s, reduction %d of %d, %zu bytes off: not the host's bits",
                     tsr_dtype_name(type), (int)reduce, n, skip);
    }
    for (int i = 0; i <= n; i++)
        tsr__seat_free(f->seat, device[i]);
    for (int i = 0; i < n; i++)
        free(host[i]);
    free(want);
    free(got);
}

static void test_folds(void **state)
{
    struct fixture *f = *state;
    int folds = 0;
    for (int type = 0; type < TSR_DTYPE_COUNT; type++) {
        assert_int_equal(tsr__fold_has((tsr_dtype)type), tsr__reduce_ok((tsr_dtype)type, COMM_SUM));
        for (int reduce = COMM_SUM; reduce < COMM_REDUCE_COUNT; reduce++) {
            if (!tsr__fold_has((tsr_dtype)type))
                continue;
            check_fold(f, (tsr_dtype)type, (enum comm_reduce)reduce, 2, 0);
            check_fold(f, (tsr_dtype)type, (enum comm_reduce)reduce, 5, 8);
            folds++;
        }
    }
    check_fold(f, TSR_FLOAT, COMM_SUM, 1, 0);
    check_fold(f, TSR_FLOAT16, COMM_SUM, GPU_MAX_MEMBERS, 0);
    assert_int_equal(folds, 13 * 4);
}

// If one element is NaN, maximum, minimum and sum must be NaN, whichever rank has it.
static void test_nan(void **state)
{
    struct fixture *f = *state;
    float a[4] = {NAN, 1, 2, 3}, b[4] = {1, NAN, 5, -4}, got[4];
    void *x = put(f, a, sizeof a), *y = put(f, b, sizeof b);
    for (int reduce = GPU_SUM; reduce <= GPU_MIN; reduce++) {
        void *out = put(f, a, sizeof a);
        struct gpu_fold fold = {.type = TSR_FLOAT,
                                .reduce = (enum gpu_reduce)reduce,
                                .in = {x, y},
                                .out = {out},
                                .n_in = 2,
                                .n_out = 1,
                                .count = 4};
        assert_int_equal(tsr__seat_fold(f->seat, &fold, f->stream), 0);
        get(f, got, out, sizeof got);
        assert_true(isnan(got[0]) && isnan(got[1]) && !isnan(got[2]) && !isnan(got[3]));
        tsr__seat_free(f->seat, out);
    }
    tsr__seat_free(f->seat, x);
    tsr__seat_free(f->seat, y);
}

// ---- rows and memory ---------------------------------------------------------------------------

static void check_rows(struct fixture *f, size_t width, size_t rows, size_t from_pitch,
                       size_t to_pitch, size_t skip)
{
    size_t from_bytes = skip + rows * from_pitch, to_bytes = skip + rows * to_pitch;
    unsigned char *host = malloc(from_bytes), *want = calloc(1, to_bytes), *got = malloc(to_bytes);
    for (size_t i = 0; i < from_bytes; i++)
        host[i] = (unsigned char)(i * 7 + i / 256);
    char *from = put(f, host, from_bytes), *to = put(f, want, to_bytes);
    for (size_t r = 0; r < rows; r++)
        memcpy(want + skip + r * to_pitch, host + skip + r * from_pitch, width);
    struct gpu_rows copy = {.to = to + skip,
                            .from = from + skip,
                            .to_pitch = to_pitch,
                            .from_pitch = from_pitch,
                            .width = width,
                            .rows = rows};
    assert_int_equal(tsr__seat_rows(f->seat, &copy, f->stream), 0);
    get(f, got, to, to_bytes);
    assert_memory_equal(got, want, to_bytes);
    tsr__seat_free(f->seat, from);
    tsr__seat_free(f->seat, to);
    free(host);
    free(want);
    free(got);
}

static void test_rows(void **state)
{
    struct fixture *f = *state;
    check_rows(f, 64, 5, 64, 64, 0);       // contiguous
    check_rows(f, 48, 33, 64, 48, 0);      // units of 16 bytes
    check_rows(f, 24, 1000, 40, 32, 0);    // of 8
    check_rows(f, 12, 77, 20, 16, 4);      // of 4
    check_rows(f, 6, 1025, 10, 8, 2);      // of 2
    check_rows(f, 3, 300, 7, 5, 1);        // of 1
    check_rows(f, 5000, 1, 9000, 7000, 3); // one row
}

// Copies of different lengths in one launch; those that units of 16 bytes cannot make; more than fit in one.
static void test_copies(void **state)
{
    enum { COPIES = 150, LONGEST = 70000 };
    struct fixture *f = *state;
    struct gpu_copies copies = {0};
    unsigned char *host = malloc(LONGEST), *got = malloc(LONGEST);
    char *from[COPIES], *to[COPIES];
    for (size_t i = 0; i < LONGEST; i++)
        host[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t i = 0; i < COPIES; i++) {
        size_t bytes = i % 10 == 3 ? 37 : i * 464 + 16; // 37: not in units
        from[i] = put(f, host, bytes);
        memset(got, 0, bytes);
        to[i] = put(f, got, bytes);
        struct gpu_rows rows = {.to = to[i], .from = from[i], .width = bytes, .rows = 1};
        assert_int_equal(tsr__seat_copies_add(f->seat, &copies, &rows, f->stream), 0);
    }
    assert_int_equal(tsr__seat_copies_start(f->seat, &copies, f->stream), 0);
    assert_int_equal(tsr__seat_copies_start(f->seat, &copies, f->stream), 0); // none are left
    for (size_t i = 0; i < COPIES; i++) {
        size_t bytes = i % 10 == 3 ? 37 : i * 464 + 16;
        get(f, got, to[i], bytes);
        assert_memory_equal(got, host, bytes);
        tsr__seat_free(f->seat, from[i]);
        tsr__seat_free(f->seat, to[i]);
    }
    free(host);
    free(got);
}

// Zeros are written behind a copy, also if there is only one.
static void test_copies_with_zeros(void **state)
{
    enum { COPIES = 140, ALL = 4800, BYTES = 3200 };
    struct fixture *f = *state;
    for (size_t n = 1; n <= COPIES; n += COPIES - 1) {
        struct gpu_copies copies = {0};
        unsigned char *host = malloc(n * ALL + 16), *got = malloc(n * ALL);
        memset(host, 7, n * ALL + 16);
        char *from = put(f, host, n * BYTES), *to = put(f, host, n * ALL + 16);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(tsr__seat_copies_extend(f->seat, &copies, to + i * ALL, ALL,
                                                     from + i * BYTES, BYTES, f->stream),
                             0);
        assert_int_equal(tsr__seat_copies_start(f->seat, &copies, f->stream), 0);
        get(f, got, to, n * ALL);
        for (size_t i = 0; i < n * ALL; i++)
            assert_int_equal(got[i], i % ALL < BYTES ? 7 : 0);
        get(f, got, to + n * ALL, 16);
        assert_int_equal(got[0], 7);
        tsr__seat_free(f->seat, from);
        tsr__seat_free(f->seat, to);
        free(host);
        free(got);
    }
}

// After a failure the next call loads the kernels again.
static void test_kernels_that_fail_to_load(void **state)
{
    struct fixture *f = *state;
    static const char *const fails[] = {"cuModuleLoadData:1", "cuModuleGetFunction:1",
                                        "cuModuleGetFunction:2"};
    float x[5] = {1, 2, 3, 4, 5}, y[5] = {0};
    void *in = put(f, x, sizeof x), *out = put(f, y, sizeof y);
    for (size_t i = 0; !getenv("GPU") && i < TSR_COUNT(fails); i++) {
        struct gpu_fold fold = {
            .type = TSR_FLOAT, .reduce = (enum gpu_reduce)i, .n_in = 1, .n_out = 1, .count = 5};
        fold.in[0] = in;
        fold.out[0] = out;
        setenv("STANDIN_FAIL", fails[i], 1);
        assert_int_not_equal(tsr__seat_fold(f->seat, &fold, f->stream), 0);
        unsetenv("STANDIN_FAIL");
        assert_int_equal(tsr__seat_fold(f->seat, &fold, f->stream), 0);
        get(f, y, out, sizeof y);
        assert_memory_equal(x, y, sizeof x);
        memset(y, 0, sizeof y);
    }
    tsr__seat_free(f->seat, in);
    tsr__seat_free(f->seat, out);
}

static void test_scratch_grows(void **state)
{
    struct fixture *f = *state;
    void *small, *large, *again;
    assert_int_equal(tsr__seat_scratch(f->seat, 0, 100, f->stream, &small), 0);
    assert_int_equal(tsr__seat_scratch(f->seat, 0, 1 << 20, f->stream, &large), 0);
    assert_int_equal(tsr__seat_scratch(f->seat, 0, 500, f->stream, &again), 0);
    assert_ptr_equal(large, again);
    assert_int_equal(tsr__seat_pinned(f->seat, 1 << 16, f->stream, &small), 0);
    memset(small, 1, 1 << 16);
}

static void test_survey(void **state)
{
    (void)state;
    struct gpu_survey seen;
    tsr__gpu_survey(&libraries, &seen);
    assert_true(seen.n >= 1 && seen.driver > 0);
    assert_true(seen.cards[0].name[0] && seen.cards[0].memory > 0 && seen.cards[0].free > 0);
    struct gpu_libraries none = {.driver = "libthere-is-no-such-driver.so"};
    tsr__gpu_survey(&none, &seen);
    assert_int_equal(seen.n, 0);
    assert_non_null(strstr(seen.why, "libthere-is-no-such-driver.so"));
    struct gpu_libraries other = {.driver = "libz.so.1"};
    tsr__gpu_survey(&other, &seen);
    assert_int_equal(seen.n, 0);
    assert_non_null(strstr(seen.why, "cuInit"));
}

// PyTorch starts the driver on import. Then a child process cannot use it, so this process must
// query the GPUs itself.
static void test_survey_of_a_started_driver(void **state)
{
    (void)state;
    struct gpu_survey seen;
    tsr__gpu_survey(&libraries, &seen);
    assert_true(seen.n >= 1 && seen.cards[0].memory > 0);
}

// Other processes can open the events of a seat only if it was opened for that.
static void test_exported_events(void **state)
{
    struct fixture *f = *state;
    struct gpu_seat *local = NULL;
    struct gpu_handle handle;
    assert_int_equal(tsr__seat_open(f->session, f->gpu, 0, false, &local), 0);
    assert_int_equal(tsr__seat_export_event(f->seat, 0, &handle), 0);
    assert_int_not_equal(tsr__seat_export_event(local, 0, &handle), 0);
    tsr__seat_close(local);
}

static void test_words(void **state)
{
    struct fixture *f = *state;
    char words[128];
    assert_non_null(strstr(tsr__gpu_words(f->gpu, 2, words, sizeof words), "out of memory"));
    struct gpu_seat *none = NULL;
    assert_int_not_equal(tsr__seat_open(f->session, f->gpu, 63, true, &none), 0);
    assert_null(none);
}

int main(void)
{
    if (!getenv("GPU"))
        libraries = (struct gpu_libraries){.driver = STANDIN, .nccl = STANDIN};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_survey), // first, while no test has started the driver
        cmocka_unit_test_setup_teardown(test_folds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_nan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_copies_with_zeros, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kernels_that_fail_to_load, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_scratch_grows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_exported_events, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_words, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_survey_of_a_started_driver, set_up, tear_down),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
