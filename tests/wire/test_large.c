// SPDX-License-Identifier: Apache-2.0
// test_large.c - files beyond 2 GiB, 4 GiB and 32 GiB, sparse so that they need no disk space.
// Systems of 32 bits must refuse them.
#include "help.h"

#include <fcntl.h>
#include <unistd.h>

// Tags and lengths of model { graph { initializer { raw_data } } }; computed from the inside out.
static struct bytes heads(uint64_t raw, uint64_t *total)
{
    struct bytes tensor = {0}, graph = {0}, model = {0};
    put_tag(&tensor, F_TENSOR_RAW_DATA, WIRE_LEN);
    put_varint(&tensor, raw);
    uint64_t n = tensor.n + raw;
    put_tag(&graph, F_GRAPH_INITIALIZER, WIRE_LEN);
    put_varint(&graph, n);
    n += graph.n;
    put_tag(&model, F_MODEL_GRAPH, WIRE_LEN);
    put_varint(&model, n);
    n += model.n;
    put(&model, graph.p, graph.n);
    put(&model, tensor.p, tensor.n);
    free(graph.p);
    free(tensor.p);
    *total = n;
    return model;
}

static void check_large(uint64_t raw)
{
    char path[] = "/tmp/tsr-wire-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    uint64_t total;
    struct bytes head = heads(raw, &total);
    assert_int_equal(write(fd, head.p, head.n), head.n);
    tsr_session *s = tsr_session_new(NULL);
    if (ftruncate(fd, (off_t)total) != 0) {
        print_message("left out: this file system has no files of %llu bytes\n",
                      (unsigned long long)total);
    } else if (total > PTRDIFF_MAX) {
        struct mapped map;
        assert_int_equal(tsr__file_map(s, path, &map), TSR_IO);
        assert_finding(s, "io-read");
    } else {
        struct mapped map;
        assert_int_equal(tsr__file_map(s, path, &map), TSR_OK);
        assert_int_equal(map.bytes.n, total);
        assert_int_equal(tsr__wire_check(s, STR("m"), map.bytes.p, map.bytes, WIRE_MODEL, 0),
                         TSR_OK);
        struct str graph = tsr__wire_bytes(map.bytes, F_MODEL_GRAPH, NULL);
        struct str tensor = tsr__wire_bytes(graph, F_GRAPH_INITIALIZER, NULL);
        struct str data = tsr__wire_bytes(tensor, F_TENSOR_RAW_DATA, NULL);
        assert_int_equal(data.n, raw);
        // Encoded again, the tags and lengths are the same and the data is not touched.
        struct arena a;
        struct rope r;
        tsr__arena_init(&a, s);
        tsr__rope_init(&r, &a);
        size_t outer = tsr__rope_begin(&r, F_MODEL_GRAPH);
        size_t inner = tsr__rope_begin(&r, F_GRAPH_INITIALIZER);
        tsr__rope_bytes(&r, F_TENSOR_RAW_DATA, data);
        tsr__rope_end(&r, inner);
        tsr__rope_end(&r, outer);
        assert_int_equal(rope_size(&r), total);
        size_t n = r.pieces.n;
        assert_ptr_equal(r.pieces.at[n - 1].p, data.p);
        struct bytes again = from_hex("");
        for (size_t i = 0; i + 1 < n; i++)
            put(&again, r.pieces.at[i].p, r.pieces.at[i].n);
        assert_same(view(&again), view(&head));
        free(again.p);
        tsr__arena_free(&a);
        struct str cut = {map.bytes.p, map.bytes.n - 1}; // one byte short
        assert_int_equal(tsr__wire_check(s, STR("m"), cut.p, cut, WIRE_MODEL, 0), TSR_MALFORMED);
        assert_finding(s, "wire-length");
        assert_int_equal(tsr_finding_value(s, 0).offset, 0);
        tsr__file_unmap(&map);
    }
    close(fd);
    unlink(path);
    free(head.p);
    tsr_session_free(s);
}

static void test_sizes(void **state)
{
    (void)state;
    check_large(((uint64_t)1 << 31) - 100);
    check_large((uint64_t)1 << 31);
    check_large(((uint64_t)1 << 32) + 1);
    check_large(((uint64_t)1 << 35) - 100);
    check_large(((uint64_t)1 << 35) + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
