// SPDX-License-Identifier: Apache-2.0
// test_tensor.c - tensor constants of every element type and encoding, read as raw bytes; external
// data; and data that does not match its shape.
#include "../api/help.h"
#include "ir/ir.h"

#include <unistd.h>

static struct bench *of(void **state)
{
    return *state;
}

static struct msg tensor_head(int type, int64_t elements)
{
    struct msg t = {.n = 0};
    msg_int(&t, 1, elements);
    msg_int(&t, 2, type);
    msg_text(&t, 8, "t");
    return t;
}

static const tsr_tensor *tensor_of(struct bench *b, struct msg *file, const struct msg *t)
{
    struct msg graph = {.n = 0};
    file->n = 0;
    msg_msg(&graph, 5, t);
    msg_msg(file, 7, &graph);
    tsr_model *m = load(b, file->at, file->n);
    return tsr_value_initializer(tsr_graph_initializer(tsr_model_graph(m), 0));
}

static void gives(struct bench *b, const struct msg *t, const void *want, size_t n)
{
    struct msg file;
    const void *bytes = NULL;
    size_t k = 0;
    assert_int_equal(tsr_tensor_data(tensor_of(b, &file, t), &bytes, &k), TSR_OK);
    assert_int_equal(k, n);
    assert_memory_equal(bytes, want, n);
}

static void fails(struct bench *b, const struct msg *t, tsr_status st, const char *code)
{
    struct msg file;
    const void *bytes = NULL;
    size_t k = 0;
    const tsr_tensor *x = tensor_of(b, &file, t);
    assert_int_equal(tsr_tensor_data(x, &bytes, &k), st);
    assert_int_equal(tsr_tensor_data(x, &bytes, &k), st); // the second call reports no second error
    assert_int_equal(findings(b, NULL), 1);
    assert_string_equal(tsr_finding_value(b->s, 0).code, code);
    tsr_finding_clear(b->s);
}

static void test_raw(void **state)
{
    struct msg t = tensor_head(TSR_INT16, 2);
    msg_bytes(&t, 9, "\1\2\3\4", 4);
    gives(of(state), &t, "\1\2\3\4", 4);
}

static void test_floats(void **state)
{
    struct msg t = tensor_head(TSR_FLOAT, 2), mixed = tensor_head(TSR_FLOAT, 2);
    float v[2] = {1.5f, -2.0f};
    msg_bytes(&t, 4, v, 8);
    gives(of(state), &t, v, 8);
    msg_bytes(&mixed, 4, v, 4);
    msg_varint(&mixed, 4 << 3 | 5); // unpacked
    memcpy(mixed.at + mixed.n, &v[1], 4);
    mixed.n += 4;
    gives(of(state), &mixed, v, 8);
}

static void test_doubles_and_complex(void **state)
{
    double d[2] = {3.25, -1};
    struct msg t = tensor_head(TSR_DOUBLE, 2), c = tensor_head(TSR_COMPLEX128, 1),
               c64 = tensor_head(TSR_COMPLEX64, 1);
    float f[2] = {1, 2};
    msg_bytes(&t, 10, d, 16);
    gives(of(state), &t, d, 16);
    msg_bytes(&c, 10, d, 16);
    gives(of(state), &c, d, 16);
    msg_bytes(&c64, 4, f, 8);
    gives(of(state), &c64, f, 8);
}

static void test_integers(void **state)
{
    struct bench *b = of(state);
    struct msg t = tensor_head(TSR_INT64, 2), u = tensor_head(TSR_UINT32, 1),
               s = tensor_head(TSR_INT8, 3);
    int64_t v[2] = {-5, 1LL << 40};
    msg_int(&t, 7, v[0]);
    msg_int(&t, 7, v[1]);
    gives(b, &t, v, 16);
    msg_int(&u, 11, 4000000000LL);
    gives(b, &u, &(uint32_t){4000000000U}, 4);
    msg_int(&s, 5, -1);
    msg_bytes(&s, 5, "\1\2", 2); // packed
    gives(b, &s, "\377\1\2", 3);
    struct msg h = tensor_head(TSR_FLOAT16, 1), bool_ = tensor_head(TSR_BOOL, 2),
               u16 = tensor_head(TSR_UINT16, 1);
    msg_int(&h, 5, 0x3c00);
    gives(b, &h, "\0\74", 2);
    msg_bytes(&bool_, 5, "\1\0", 2);
    gives(b, &bool_, "\1\0", 2);
    msg_int(&u16, 5, 65535);
    gives(b, &u16, "\377\377", 2);
    struct msg i32 = tensor_head(TSR_INT32, 1), f8 = tensor_head(TSR_FLOAT8E4M3FN, 1),
               u64 = tensor_head(TSR_UINT64, 1);
    msg_int(&i32, 5, -2);
    gives(b, &i32, &(int32_t){-2}, 4);
    msg_int(&f8, 5, 0x38);
    gives(b, &f8, "\70", 1);
    msg_int(&u64, 11, -1);
    gives(b, &u64, &(uint64_t){UINT64_MAX}, 8);
}

static void test_small_types(void **state)
{
    struct bench *b = of(state);
    struct msg four = tensor_head(TSR_UINT4, 3), two = tensor_head(TSR_INT2, 5),
               six = tensor_head(TSR_FLOAT6E2M3, 5);
    msg_int(&four, 5, 0x21); // two elements per entry
    msg_int(&four, 5, 0x03);
    gives(b, &four, "\41\3", 2);
    msg_int(&two, 5, 0xe4);
    msg_int(&two, 5, 0x01);
    gives(b, &two, "\344\1", 2);
    for (int i = 1; i <= 5; i++) // one 6-bit element per entry
        msg_int(&six, 5, i);
    gives(b, &six, "\x81\x30\x10\x05", 4);
    struct msg raw = tensor_head(TSR_FLOAT6E3M2, 4);
    msg_bytes(&raw, 9, "\1\2\3", 3);
    gives(b, &raw, "\1\2\3", 3);
}

static void test_scalars_and_nothing(void **state)
{
    struct msg t = {.n = 0}, empty = tensor_head(TSR_FLOAT, 0);
    msg_int(&t, 2, TSR_UINT8);
    msg_bytes(&t, 9, "\7", 1);
    gives(of(state), &t, "\7", 1);
    gives(of(state), &empty, "", 0);
}

// The size of the data must match type and shape.
static void test_data_that_does_not_fit(void **state)
{
    struct bench *b = of(state);
    struct msg t = tensor_head(TSR_FLOAT, 2);
    fails(b, &t, TSR_MALFORMED, "tensor-size"); // no data at all
    msg_bytes(&t, 9, "1234567", 7);
    fails(b, &t, TSR_MALFORMED, "tensor-size");
    struct msg few = tensor_head(TSR_INT64, 3), many = tensor_head(TSR_INT8, 1),
               neg = tensor_head(TSR_INT8, -1);
    msg_int(&few, 7, 1);
    fails(b, &few, TSR_MALFORMED, "tensor-size");
    msg_bytes(&many, 5, "\1\2", 2);
    fails(b, &many, TSR_MALFORMED, "tensor-size");
    fails(b, &neg, TSR_MALFORMED, "tensor-size");
    struct msg huge = tensor_head(TSR_FLOAT, INT64_MAX);
    msg_int(&huge, 1, INT64_MAX);
    msg_bytes(&huge, 9, "1234", 4);
    fails(b, &huge, TSR_MALFORMED, "tensor-size");
    struct msg four = tensor_head(TSR_INT4, 5);
    msg_int(&four, 5, 1);
    fails(b, &four, TSR_MALFORMED, "tensor-size");
}

// Strings and unknown types cannot be read as raw bytes.
static void test_no_bytes(void **state)
{
    struct bench *b = of(state);
    struct msg text = tensor_head(TSR_STRING, 1), odd = tensor_head(99, 1);
    msg_text(&text, 6, "hello");
    fails(b, &text, TSR_UNSUPPORTED, "tensor-text");
    msg_bytes(&odd, 9, "1", 1);
    fails(b, &odd, TSR_UNSUPPORTED, "tensor-type");
}

static struct msg external(const char *location, const char *offset, const char *length)
{
    struct msg t = tensor_head(TSR_UINT8, 4), pair = {.n = 0};
    const char *keys[] = {"location", "offset", "length"}, *values[] = {location, offset, length};
    for (int i = 0; i < 3; i++) {
        if (!values[i])
            continue;
        pair.n = 0;
        msg_text(&pair, 1, keys[i]);
        msg_text(&pair, 2, values[i]);
        msg_msg(&t, 13, &pair);
    }
    msg_int(&t, 14, 1);
    return t;
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static tsr_model *load_file(struct bench *b, const char *folder, const struct msg *t)
{
    char path[300];
    struct msg graph = {.n = 0}, file = {.n = 0};
    msg_msg(&graph, 5, t);
    msg_msg(&file, 7, &graph);
    snprintf(path, sizeof(path), "%s/m.onnx", folder);
    write_file(path, file.at, file.n);
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_load(b->s, path, &m), TSR_OK);
    b->others[b->n_others++] = m;
    return m;
}

static void test_external(void **state)
{
    struct bench *b = of(state);
    char folder[] = "/tmp/tessera-test-XXXXXX", path[300];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/data.bin", folder);
    write_file(path, "abcdefgh", 8);
    struct msg t = external("data.bin", "2", "4"), open_end = external("data.bin", "4", NULL);
    struct msg beyond = external("data.bin", "6", "4"), wrong = external("data.bin", "0", "5");
    const void *bytes = NULL;
    size_t n = 0;
    int fd = -1;
    uint64_t offset = 0, length = 0;
    tsr_model *m = load_file(b, folder, &t);
    tsr_value *v = tsr_graph_initializer(tsr_model_graph(m), 0);
    const tsr_tensor *x = tsr_value_initializer(v);
    assert_true(tsr_tensor_is_external(x));
    assert_int_equal(tsr_tensor_data(x, &bytes, &n), TSR_OK);
    assert_memory_equal(bytes, "cdef", 4);
    assert_true(tsr__tensor_window(x, &fd, &offset, &length));
    assert_int_equal(offset, 2);
    assert_int_equal(length, 4);
    char got[4];
    assert_int_equal(pread(fd, got, 4, (off_t)offset), 4);
    assert_memory_equal(got, "cdef", 4);
    // A copy in another model contains the bytes and outlives the first model.
    tsr_model *other = NULL;
    assert_int_equal(tsr_model_new(b->s, "o", 8, &other), TSR_OK);
    tsr_value *w = NULL;
    assert_int_equal(tsr__graph_copy_initializer(tsr_model_graph(other), v, "copy", &w), TSR_OK);
    tsr_model_free(m);
    b->n_others--;
    b->others[b->n_others++] = other;
    assert_int_equal(tsr_tensor_data(tsr_value_initializer(w), &bytes, &n), TSR_OK);
    assert_memory_equal(bytes, "cdef", 4);
    tsr_model *m2 = again(b, other);
    x = tsr_value_initializer(tsr_graph_initializer(tsr_model_graph(m2), 0));
    assert_false(tsr_tensor_is_external(x));
    assert_int_equal(tsr_tensor_data(x, &bytes, &n), TSR_OK);
    assert_memory_equal(bytes, "cdef", 4);
    x = tsr_value_initializer(
        tsr_graph_initializer(tsr_model_graph(load_file(b, folder, &open_end)), 0));
    assert_int_equal(tsr_tensor_data(x, &bytes, &n), TSR_OK);
    assert_memory_equal(bytes, "efgh", 4);
    x = tsr_value_initializer(
        tsr_graph_initializer(tsr_model_graph(load_file(b, folder, &beyond)), 0));
    assert_int_equal(tsr_tensor_data(x, &bytes, &n), TSR_MALFORMED);
    assert_int_equal(findings(b, "external-window"), 1);
    assert_false(tsr__tensor_window(x, &fd, &offset, &length));
    assert_int_equal(findings(b, NULL), 1); // no second error
    x = tsr_value_initializer(
        tsr_graph_initializer(tsr_model_graph(load_file(b, folder, &wrong)), 0));
    assert_int_equal(tsr_tensor_data(x, &bytes, &n), TSR_MALFORMED);
    assert_int_equal(findings(b, "tensor-size"), 1);
    unlink(path);
    snprintf(path, sizeof(path), "%s/m.onnx", folder);
    unlink(path);
    rmdir(folder);
}

// External data of a model that was loaded from memory cannot be found.
static void test_external_needs_a_folder(void **state)
{
    struct msg t = external("data.bin", "0", "4");
    fails(of(state), &t, TSR_IO, "tensor-no-folder");
}

// An error in a constant of an attribute names the node.
static void test_place_of_an_attribute(void **state)
{
    struct bench *b = of(state);
    struct msg t = tensor_head(TSR_FLOAT, 2), a = {.n = 0}, graph = {.n = 0}, file = {.n = 0};
    struct msg node = msg_node("", "y", "Constant", NULL);
    msg_text(&a, 1, "value");
    msg_msg(&a, 5, &t);
    msg_int(&a, 20, TSR_ATTR_TENSOR);
    msg_text(&node, 3, "const");
    msg_msg(&node, 5, &a);
    msg_msg(&graph, 1, &node);
    msg_msg(&file, 7, &graph);
    tsr_model *m = load(b, file.at, file.n);
    const void *bytes = NULL;
    size_t n = 0;
    assert_int_equal(tsr_tensor_data(tsr_attr_tensor(tsr_node_attr(node_at(m, 0), 0)), &bytes, &n),
                     TSR_MALFORMED);
    assert_string_equal(tsr_finding_value(b->s, 0).node, "const");
    assert_int_equal(tsr_finding_value(b->s, 0).node_index, 0);
}

// Constants that are added through the API.
static void test_made_here(void **state)
{
    struct bench *b = of(state);
    float v[6] = {1, 2, 3, 4, 5, 6};
    int64_t dims[] = {2, 3};
    tsr_value *w = tsr_graph_add_initializer(b->g, "k", TSR_FLOAT, 2, dims, v, sizeof(v));
    assert_non_null(w);
    assert_int_equal(tsr_value_rank(w), 2);
    assert_int_equal(tsr_value_dim(w, 1).value, 3);
    tsr_value *one = tsr_graph_add_initializer(b->g, "one", TSR_INT64, 0, NULL, &(int64_t){7}, 8);
    assert_non_null(one);
    assert_null(tsr_graph_add_initializer(b->g, "bad", TSR_FLOAT, 2, dims, v, 5));
    refused(b, TSR_INVALID, "tensor-size");
    assert_null(tsr_graph_add_initializer(b->g, "bad", TSR_FLOAT, -1, NULL, v, 4));
    refused(b, TSR_INVALID, "argument-invalid");
    assert_null(tsr_graph_value(b->g, "bad"));
    assert_non_null(tsr__graph_add_external(b->g, "far", TSR_FLOAT, 2, dims, "w.bin", 4096, 24));
    tsr_model *m = again(b, b->m);
    tsr_graph *g = tsr_model_graph(m);
    const void *bytes = NULL;
    size_t n = 0;
    assert_int_equal(tsr_tensor_data(tsr_value_initializer(tsr_graph_value(g, "k")), &bytes, &n),
                     TSR_OK);
    assert_int_equal(n, sizeof(v));
    assert_memory_equal(bytes, v, n);
    assert_int_equal(tsr_tensor_data(tsr_value_initializer(tsr_graph_value(g, "one")), &bytes, &n),
                     TSR_OK);
    assert_int_equal(*(const unsigned char *)bytes, 7);
    const tsr_tensor *far = tsr_value_initializer(tsr_graph_value(g, "far"));
    assert_true(tsr_tensor_is_external(far));
    assert_int_equal(tsr_tensor_bytes(far), 24);
}

// ---- sparse tensors

static struct msg int64s(int64_t first, int64_t second, const int64_t *values)
{
    struct msg t = {.n = 0};
    msg_int(&t, 1, first);
    if (second)
        msg_int(&t, 1, second);
    msg_int(&t, 2, TSR_INT64);
    msg_bytes(&t, 9, values, (size_t)(first * (second ? second : 1)) * sizeof(*values));
    return t;
}

static const tsr_tensor *sparse_of(struct bench *b, struct msg *file, const struct msg *values,
                                   const struct msg *indices, int64_t rows, int64_t columns)
{
    struct msg sparse = {.n = 0}, graph = {.n = 0};
    file->n = 0;
    msg_msg(&sparse, 1, values);
    msg_msg(&sparse, 2, indices);
    msg_int(&sparse, 3, rows);
    msg_int(&sparse, 3, columns);
    msg_msg(&graph, 15, &sparse);
    msg_msg(file, 7, &graph);
    tsr_model *m = load(b, file->at, file->n);
    assert_int_equal(tsr_graph_initializer_count(tsr_model_graph(m)), 1);
    return tsr_value_initializer(tsr_graph_initializer(tsr_model_graph(m), 0));
}

static void test_sparse(void **state)
{
    struct msg values = tensor_head(TSR_INT16, 2), file;
    msg_bytes(&values, 9, "\1\2\3\4", 4);
    struct msg row_by_row = int64s(2, 0, (const int64_t[]){1, 5});
    struct msg coordinates = int64s(2, 2, (const int64_t[]){0, 1, 1, 2});
    const struct msg *forms[] = {&row_by_row, &coordinates};
    for (int i = 0; i < 2; i++) {
        const tsr_tensor *t = sparse_of(of(state), &file, &values, forms[i], 2, 3);
        const void *bytes = NULL;
        size_t n = 0;
        assert_int_equal(tsr_tensor_dtype(t), TSR_INT16);
        assert_int_equal(tsr_tensor_rank(t), 2);
        assert_int_equal(tsr_tensor_dims(t)[1], 3);
        assert_int_equal(tsr_tensor_data(t, &bytes, &n), TSR_OK);
        assert_int_equal(n, 12);
        assert_memory_equal(bytes, "\0\0\1\2\0\0\0\0\0\0\3\4", 12);
    }
}

static void test_sparse_copy_outlives_its_model(void **state)
{
    (void)state;
    tsr_session_options options = {.size = sizeof options, .alloc = overwriting};
    struct bench b = {.s = tsr_session_new(&options)};
    struct msg values = tensor_head(TSR_INT16, 2), file;
    msg_bytes(&values, 9, "\1\2\3\4", 4);
    struct msg indices = int64s(2, 0, (const int64_t[]){1, 5});
    (void)sparse_of(&b, &file, &values, &indices, 2, 3);
    tsr_model *other = NULL;
    assert_int_equal(tsr_model_new(b.s, "o", 8, &other), TSR_OK);
    const tsr_value *from = tsr_graph_initializer(tsr_model_graph(b.others[0]), 0);
    tsr_value *copy = NULL;
    tsr_graph *to = tsr_model_graph(other);
    assert_int_equal(tsr__graph_copy_initializer(to, from, "copy", &copy), TSR_OK);
    tsr_model_free(b.others[0]);
    const void *bytes = NULL;
    size_t n = 0;
    assert_int_equal(tsr_tensor_data(tsr_value_initializer(copy), &bytes, &n), TSR_OK);
    assert_int_equal(n, 12);
    assert_memory_equal(bytes, "\0\0\1\2\0\0\0\0\0\0\3\4", 12);
    tsr_model_free(other);
    tsr_session_free(b.s);
}

static void test_sparse_that_does_not_fit(void **state)
{
    struct msg values = tensor_head(TSR_INT16, 2), nibbles = tensor_head(TSR_INT4, 2), file;
    msg_bytes(&values, 9, "\1\2\3\4", 4);
    msg_bytes(&nibbles, 9, "\1", 1);
    struct msg good = int64s(2, 0, (const int64_t[]){1, 5});
    struct msg few = int64s(1, 0, (const int64_t[]){1});
    struct msg beyond = int64s(2, 0, (const int64_t[]){1, 6});
    struct msg negative = int64s(2, 0, (const int64_t[]){-1, 5});
    struct msg outside = int64s(2, 2, (const int64_t[]){0, 3, 1, 0});
    const struct {
        const struct msg *values, *indices;
        int64_t rows;
    } wrong[] = {{&values, &few, 2},       {&values, &beyond, 2}, {&values, &negative, 2},
                 {&values, &outside, 2},   {&nibbles, &good, 2},  {&values, &values, 2},
                 {&values, &good, 1 << 30}}; // 20 bytes that describe 6 GiB of zeros
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        const void *bytes = NULL;
        size_t n = 0;
        const tsr_tensor *t =
            sparse_of(of(state), &file, wrong[i].values, wrong[i].indices, wrong[i].rows, 3);
        assert_int_equal(tsr_tensor_data(t, &bytes, &n), TSR_MALFORMED);
        assert_int_equal(findings(of(state), NULL), 1);
        assert_string_equal(tsr_finding_value(of(state)->s, 0).code, "tensor-sparse");
        tsr_finding_clear(of(state)->s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_raw),
        TEST(test_floats),
        TEST(test_doubles_and_complex),
        TEST(test_integers),
        TEST(test_small_types),
        TEST(test_scalars_and_nothing),
        TEST(test_data_that_does_not_fit),
        TEST(test_no_bytes),
        TEST(test_external),
        TEST(test_external_needs_a_folder),
        TEST(test_place_of_an_attribute),
        TEST(test_made_here),
        TEST(test_sparse),
        cmocka_unit_test(test_sparse_copy_outlives_its_model),
        TEST(test_sparse_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
