// SPDX-License-Identifier: Apache-2.0
// test_write.c - the rope (encoder output): golden encodings, nested lengths, joins, streaming,
// lack of memory.
#include "help.h"

#include <fcntl.h>
#include <unistd.h>

struct fixture {
    tsr_session *s;
    struct arena a;
    struct rope r;
};

static void setup(struct fixture *x)
{
    x->s = tsr_session_new(NULL);
    assert_non_null(x->s);
    tsr__arena_init(&x->a, x->s);
    tsr__rope_init(&x->r, &x->a);
}

static void teardown(struct fixture *x)
{
    tsr__arena_free(&x->a);
    tsr_session_free(x->s);
}

static void assert_rope(struct fixture *x, const char *hex)
{
    struct bytes wanted = from_hex(hex);
    assert_int_equal(rope_size(&x->r), wanted.n);
    assert_same(tsr__rope_flat(&x->r, &x->a), view(&wanted));
    free(wanted.p);
}

static void put_group(struct rope *r, int64_t key, const int64_t *members, size_t n)
{
    size_t at = tsr__rope_begin(r, F_SPEC_INDEX_TO_DEVICE_GROUP_MAP);
    tsr__rope_int(r, F_GROUP_KEY, key);
    tsr__rope_ints(r, F_GROUP_VALUE, members, n);
    tsr__rope_end(r, at);
}

static void put_dim(struct rope *r, int64_t axis, int64_t size, const char *symbol, int64_t shards)
{
    size_t dim = tsr__rope_begin(r, F_SPEC_SHARDED_DIM);
    tsr__rope_int(r, F_SHARDED_DIM_AXIS, axis);
    size_t simple = tsr__rope_begin(r, F_SHARDED_DIM_SIMPLE_SHARDING);
    if (symbol)
        tsr__rope_bytes(r, F_SIMPLE_DIM_DIM_PARAM, str_of(symbol));
    else
        tsr__rope_int(r, F_SIMPLE_DIM_DIM_VALUE, size);
    tsr__rope_int(r, F_SIMPLE_DIM_NUM_SHARDS, shards);
    tsr__rope_end(r, simple);
    tsr__rope_end(r, dim);
}

// The bytes that the protobuf library writes for the multi-device messages.
static void test_golden(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    tsr__rope_bytes(&x.r, F_SPEC_TENSOR_NAME, STR("W"));
    tsr__rope_ints(&x.r, F_SPEC_DEVICE, (const int64_t[]){-1, -2}, 2);
    put_group(&x.r, -1, (const int64_t[]){0, 1}, 2);
    put_group(&x.r, -2, (const int64_t[]){2, 3}, 2);
    put_dim(&x.r, 0, 1024, NULL, 2);
    assert_rope(&x, "0a0157 10ffffffffffffffffff01 10feffffffffffffffff01"
                    "1a0f08ffffffffffffffffff0110001001 1a0f08feffffffffffffffff0110021003"
                    "2209 0800 1205 088008 1802");
    tsr__rope_init(&x.r, &x.a);
    tsr__rope_bytes(&x.r, F_SPEC_TENSOR_NAME, STR("x"));
    tsr__rope_ints(&x.r, F_SPEC_DEVICE, (const int64_t[]){0, 1}, 2);
    put_dim(&x.r, -1, 0, "N", 2);
    assert_rope(&x, "0a0178 1000 1001 2212 08ffffffffffffffffff01 1205 12014e 1802");
    tsr__rope_init(&x.r, &x.a);
    tsr__rope_bytes(&x.r, F_NODE_CONFIG_CONFIGURATION_ID, STR("c"));
    tsr__rope_int(&x.r, F_NODE_CONFIG_PIPELINE_STAGE, 0);
    assert_rope(&x, "0a0163 1800");
    tsr__rope_init(&x.r, &x.a);
    tsr__rope_bytes(&x.r, F_CONFIG_NAME, STR("c"));
    tsr__rope_int(&x.r, F_CONFIG_NUM_DEVICES, 2);
    tsr__rope_bytes(&x.r, F_CONFIG_DEVICE, STR("CPU"));
    tsr__rope_bytes(&x.r, F_CONFIG_DEVICE, STR("GPU"));
    assert_rope(&x, "0a0163 1002 1a03435055 1a03475055");
    tsr__rope_init(&x.r, &x.a);
    size_t graph = tsr__rope_begin(&x.r, F_MODEL_GRAPH);
    size_t node = tsr__rope_begin(&x.r, F_GRAPH_NODE);
    tsr__rope_bytes(&x.r, F_NODE_OP_TYPE, STR("Relu"));
    size_t config = tsr__rope_begin(&x.r, F_NODE_DEVICE_CONFIGURATIONS);
    tsr__rope_bytes(&x.r, F_NODE_CONFIG_CONFIGURATION_ID, STR("c"));
    tsr__rope_end(&x.r, config);
    tsr__rope_end(&x.r, node);
    tsr__rope_end(&x.r, graph);
    config = tsr__rope_begin(&x.r, F_MODEL_CONFIGURATION);
    tsr__rope_bytes(&x.r, F_CONFIG_NAME, STR("c"));
    tsr__rope_int(&x.r, F_CONFIG_NUM_DEVICES, 2);
    tsr__rope_end(&x.r, config);
    assert_rope(&x, "3a0d 0a0b 220452656c75 52030a0163 d20105 0a01631002");
    assert_int_equal(x.r.pieces.n, 0); // everything is in one run
    tsr__rope_init(&x.r, &x.a);
    tsr__rope_float(&x.r, F_ATTRIBUTE_F, 1.5f);
    assert_rope(&x, "15 0000c03f");
    teardown(&x);
}

// Builds a message twice: with the rope, and directly with lengths known in advance.
static void build(struct rope *r, struct bytes *flat, unsigned *seed, int depth, struct str pool)
{
    int fields = 1 + rand_r(seed) % 4;
    for (int i = 0; i < fields; i++) {
        uint32_t number = 1 + (uint32_t)rand_r(seed) % 20;
        int kind = rand_r(seed) % (depth < 6 ? 4 : 3);
        size_t n = (size_t)rand_r(seed) % (rand_r(seed) % 8 ? 40 : 9000);
        struct str text = {pool.p + (size_t)rand_r(seed) % (pool.n - n), n};
        if (kind == 0) {
            int64_t v = (int64_t)((uint64_t)rand_r(seed) << (rand_r(seed) % 40));
            tsr__rope_int(r, number, v);
            put_tag(flat, number, WIRE_VARINT);
            put_varint(flat, (uint64_t)v);
        } else if (kind == 1) {
            tsr__rope_bytes(r, number, text);
            put_len(flat, number, text.p, text.n);
        } else if (kind == 2) {
            tsr__rope_view(r, text); // not a valid field, but the encoder must copy the bytes
            put(flat, text.p, text.n);
        } else {
            struct bytes inner = {0};
            put(&inner, "", 0);
            size_t mark = tsr__rope_begin(r, number);
            build(r, &inner, seed, depth + 1, pool);
            tsr__rope_end(r, mark);
            put_len(flat, number, inner.p, inner.n);
            free(inner.p);
        }
    }
}

// Random nested messages: the rope must give the bytes of the direct encoding.
static void test_random_nesting(void **state)
{
    (void)state;
    char *pool = malloc(20000);
    assert_non_null(pool);
    for (int i = 0; i < 20000; i++)
        pool[i] = (char)(i * 7 + i / 256);
    for (unsigned seed = 1; seed <= 300; seed++) {
        struct fixture x;
        setup(&x);
        struct bytes flat = from_hex("");
        unsigned dice = seed;
        for (int i = 0; i < 3; i++)
            build(&x.r, &flat, &dice, 0, (struct str){pool, 20000});
        assert_int_equal(x.r.open.n, 0);
        assert_int_equal(rope_size(&x.r), flat.n);
        assert_same(tsr__rope_flat(&x.r, &x.a), view(&flat));
        free(flat.p);
        teardown(&x);
    }
    free(pool);
}

// Lengths around each varint size, with the content in one chunk, in several chunks, and as a view.
static void test_length_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,     1,     126,   127,     128,     129,    16383,
                                   16384, 65000, 70000, 2097151, 2097152, 5000000};
    char *pool = malloc(5000000);
    assert_non_null(pool);
    memset(pool, 'x', 5000000);
    for (size_t i = 0; i < TSR_COUNT(sizes); i++) {
        for (int way = 0; way < 3; way++) {
            struct fixture x;
            setup(&x);
            struct bytes wanted = {0}, inner = {0};
            put_len(&inner, 5, pool, sizes[i]);
            put_len(&wanted, 7, inner.p, inner.n);
            put_len(&wanted, 1, "ab", 2);
            size_t mark = tsr__rope_begin(&x.r, 7);
            if (way == 0) {
                tsr__rope_bytes(&x.r, 5, (struct str){pool, sizes[i]});
            } else if (way == 1) {
                tsr__rope_copy(&x.r, view(&inner));
            } else {
                size_t bytes = tsr__rope_begin(&x.r, 5);
                for (size_t k = 0; k < sizes[i]; k += 1000)
                    tsr__rope_copy(&x.r,
                                   (struct str){pool, sizes[i] - k < 1000 ? sizes[i] - k : 1000});
                tsr__rope_end(&x.r, bytes);
            }
            tsr__rope_end(&x.r, mark);
            tsr__rope_bytes(&x.r, 1, STR("ab"));
            assert_same(tsr__rope_flat(&x.r, &x.a), view(&wanted));
            free(wanted.p);
            free(inner.p);
            teardown(&x);
        }
    }
    free(pool);
}

// Adjacent views must be joined to one piece.
static void test_views_join(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    static char file[1000];
    for (size_t i = 0; i < sizeof file; i++)
        file[i] = (char)i;
    for (size_t i = 0; i < sizeof file; i += 10)
        tsr__rope_view(&x.r, (struct str){file + i, 10});
    assert_int_equal(x.r.pieces.n, 1);
    assert_ptr_equal(x.r.pieces.at[0].p, file);
    assert_int_equal(x.r.pieces.at[0].n, sizeof file);
    tsr__rope_view(&x.r, (struct str){file, 100});
    tsr__rope_view(&x.r, (struct str){file + 100, 0});
    tsr__rope_view(&x.r, (struct str){file + 100, 3});
    assert_int_equal(x.r.pieces.n, 2);
    tsr__rope_int(&x.r, 1, 1);
    tsr__rope_int(&x.r, 1, 1);
    assert_int_equal(x.r.pieces.n, 2);
    assert_int_equal(rope_size(&x.r), 1107);
    teardown(&x);
}

// Writes a rope to a file: small pieces go through the buffer, large mapped pieces are copied from
// the descriptor.
static void test_stream(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    char folder[] = "/tmp/tsr-wire-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char from[64], to[64];
    snprintf(from, sizeof from, "%s/from", folder);
    snprintf(to, sizeof to, "%s/to", folder);
    size_t n = 3 << 20;
    char *data = malloc(n);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i * 131 + (i >> 12));
    FILE *file = fopen(from, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    fclose(file);
    struct mapped map;
    assert_int_equal(tsr__file_map(x.s, from, &map), TSR_OK);
    size_t mark = tsr__rope_begin(&x.r, 9);
    tsr__rope_view(&x.r, (struct str){map.bytes.p + 17, 2 << 20});
    tsr__rope_end(&x.r, mark);
    tsr__rope_bytes(&x.r, 1, STR("tail"));
    tsr__rope_view(&x.r, (struct str){map.bytes.p + n - 500, 500});
    tsr__rope_bytes(&x.r, 2, (struct str){data, 300000}); // large, and not part of the mapping
    struct outfile o;
    assert_int_equal(tsr__out_open(x.s, to, &o), TSR_OK);
    tsr__rope_write(&x.r, &o, map.bytes, map.fd);
    assert_int_equal(tsr__out_commit(&o), TSR_OK);
    struct str wanted = tsr__rope_flat(&x.r, &x.a), got;
    assert_int_equal(tsr__file_read(x.s, &x.a, to, 10 << 20, &got), TSR_OK);
    assert_same(got, wanted);
    tsr__file_unmap(&map);
    // a truncated source must give an error, not a signal
    assert_int_equal(truncate(from, 1000), 0);
    int fd = open(from, O_RDONLY);
    assert_int_equal(tsr__out_open(x.s, to, &o), TSR_OK);
    struct rope r;
    tsr__rope_init(&r, &x.a);
    tsr__rope_view(&r, (struct str){data, 2 << 20});
    tsr__rope_write(&r, &o, (struct str){data, n}, fd);
    assert_true(tsr__out_commit(&o) != TSR_OK);
    tsr__out_abort(&o);
    assert_int_equal(tsr_finding_count(x.s), 1);
    close(fd);
    unlink(from);
    unlink(to);
    assert_int_equal(rmdir(folder), 0);
    free(data);
    teardown(&x);
}

// Each allocation may fail: no crash, and an incomplete rope must not count as complete.
static void test_lack_of_memory(void **state)
{
    (void)state;
    char *pool = calloc(1, 20000);
    assert_non_null(pool);
    for (uint64_t nth = 1; nth < 60; nth++) {
        struct fixture x;
        setup(&x);
        tsr__session_fault(x.s, FAULT_ALLOC, nth, false);
        struct bytes flat = from_hex("");
        unsigned dice = 5;
        for (int i = 0; i < 20; i++)
            build(&x.r, &flat, &dice, 0, (struct str){pool, 20000});
        struct str got = tsr__rope_flat(&x.r, &x.a);
        if (x.a.failed)
            assert_int_equal(got.n, 0);
        else
            assert_same(got, view(&flat));
        free(flat.p);
        teardown(&x);
    }
    free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_random_nesting),
        cmocka_unit_test(test_length_sizes), cmocka_unit_test(test_views_join),
        cmocka_unit_test(test_stream),       cmocka_unit_test(test_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
