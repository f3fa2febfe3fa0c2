// SPDX-License-Identifier: Apache-2.0
// test_shapes.c - tsr_shapes: inferred, kept and contradicted declarations; symbols with sizes;
// known elements; subgraphs, loops and functions. shapes.py compares all operators with Python's
// onnx.
#include "common.h"

#include <stdio.h>

static tsr_value *input(struct bench *b, const char *name, tsr_dtype type, int rank,
                        const tsr_dim *dims)
{
    tsr_value *v = tsr_graph_add_input(b->graph, name);
    assert_non_null(v);
    assert_int_equal(tsr_value_set_type(v, type, rank, dims), TSR_OK);
    return v;
}

static tsr_value *ints(struct bench *b, const char *name, int rank, int64_t n, const int64_t *v)
{
    return tsr_graph_add_initializer(b->graph, name, TSR_INT64, rank, &n, v, (size_t)n * 8);
}

static tsr_value *node(struct bench *b, const char *op, const char *out, tsr_value *x, tsr_value *y,
                       tsr_value *z)
{
    tsr_value *in[] = {x, y, z};
    tsr_node *n = tsr_graph_add_node(b->graph, "", op, out, in, z ? 3 : y ? 2 : x ? 1 : 0, &out, 1);
    assert_non_null(n);
    return tsr_node_output(n, 0);
}

// The shape that the value declares, as text.
static const char *declared(struct bench *b, const tsr_value *v)
{
    struct shape s = {tsr_value_dtype(v), tsr_value_rank(v), tsr__value_dims(v)};
    return tsr__shape_text(&b->arena, s).p;
}

static void find(struct bench *b)
{
    assert_int_equal(tsr_shapes(b->model, NULL, 0, NULL), TSR_OK);
}

static size_t count(const struct bench *b, const char *code)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(b->session); i++)
        n += strcmp(tsr_finding_value(b->session, i).code, code) == 0;
    return n;
}

#define DIM(name) ((tsr_dim){-1, name})
#define NUM(n)    ((tsr_dim){n, ""})

static void test_sizes_are_computed(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch"), DIM("seq"), NUM(8)};
    const int64_t two[] = {0, 1}, one[] = {1}, eight[] = {8}, minus[] = {-1};
    tsr_value *x = input(b, "x", TSR_FLOAT, 3, dims);
    tsr_value *shape = node(b, "Shape", "shape", x, NULL, NULL);
    tsr_value *head = node(b, "Gather", "head", shape, ints(b, "i", 1, 2, two), NULL);
    tsr_value *product = node(b, "ReduceProd", "product", head, NULL, NULL);
    tsr_value *target = node(b, "Concat", "target", product, ints(b, "w", 1, 1, eight), NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(target), "axis", 0), TSR_OK);
    tsr_value *flat = node(b, "Reshape", "flat", x, target, NULL);
    tsr_value *next = node(b, "Add", "next", product, ints(b, "one", 1, 1, one), NULL);
    tsr_value *made = node(b, "ConstantOfShape", "made", next, NULL, NULL);
    tsr_value *last = node(b, "Slice", "last", x, ints(b, "from", 1, 1, minus),
                           ints(b, "to", 1, 1, (const int64_t[]){INT64_MAX}));
    find(b);
    assert_string_equal(declared(b, shape), "int64[3]");
    assert_string_equal(declared(b, flat), "float32[batch*seq, 8]");
    assert_string_equal(declared(b, made), "float32[batch*seq + 1]");
    assert_string_equal(declared(b, last), "float32[min(batch, 1), seq, 8]");
    assert_int_equal(tsr_finding_count(b->session), 0);
}

// Exporters convert a size to a float before they count to it. A step that is no integer is not
// followed.
static void test_ranges_of_floats_have_sizes(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("seq")};
    const float numbers[] = {1, 2, 0.5F};
    tsr_value *step[3], *range[3], *x = input(b, "x", TSR_FLOAT, 1, dims);
    tsr_value *n = node(b, "Size", "n", x, NULL, NULL), *f = node(b, "Cast", "f", n, NULL, NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(f), "to", TSR_FLOAT), TSR_OK);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"one", "two", "half"}, *const out[] = {"a", "b", "c"};
        step[i] = tsr_graph_add_initializer(b->graph, names[i], TSR_FLOAT, 0, NULL, &numbers[i],
                                            sizeof numbers[i]);
        range[i] = node(b, "Range", out[i], step[0], f, step[i]);
    }
    find(b);
    assert_string_equal(declared(b, range[0]), "float32[max(seq - 1, 0)]");
    assert_string_equal(declared(b, range[1]), "float32[((max(seq - 1, 0) + 1)//2)]");
    assert_string_equal(declared(b, range[2]), "float32[?]");
}

// A step beyond the axis selects only the first element, also for the limits of the type.
static void test_long_steps_take_one_element(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {NUM(2), NUM(3), NUM(4)};
    const int64_t steps[] = {INT64_MAX, INT64_MAX - 1, 3, INT64_MIN, INT64_MIN + 1};
    tsr_value *x = input(b, "x", TSR_FLOAT, 3, dims);
    tsr_value *shape = node(b, "Shape", "shape", x, NULL, NULL);
    tsr_value *axes = ints(b, "axes", 1, 1, (const int64_t[]){0});
    tsr_value *from = ints(b, "from", 1, 1, (const int64_t[]){1});
    tsr_value *made[TSR_COUNT(steps)];
    for (size_t i = 0; i < TSR_COUNT(steps); i++) {
        char name[3][24];
        for (int k = 0; k < 3; k++)
            snprintf(name[k], sizeof name[k], "%c%zu", "esv"[k], i);
        const int64_t end = steps[i] < 0 ? INT64_MIN : INT64_MAX;
        tsr_value *in[] = {shape, from, ints(b, name[0], 1, 1, &end), axes,
                           ints(b, name[1], 1, 1, &steps[i])};
        const char *out = name[2];
        tsr_node *slice = tsr_graph_add_node(b->graph, "", "Slice", out, in, 5, &out, 1);
        assert_non_null(slice);
        snprintf(name[0], sizeof name[0], "made%zu", i);
        made[i] = node(b, "ConstantOfShape", name[0], tsr_node_output(slice, 0), NULL, NULL);
    }
    find(b);
    for (size_t i = 0; i < TSR_COUNT(steps); i++)
        assert_string_equal(declared(b, made[i]), "float32[3]");
}

// torch.onnx exports expand(batch, -1, 8) with Equal and Where, which replace -1 by 1. A size is
// never -1, so the batch stays.
static void test_sizes_are_not_negative(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch")}, one[] = {NUM(1), NUM(5), NUM(8)};
    const int64_t rest[] = {-1, 8}, minus[] = {-1}, ones[] = {1};
    tsr_value *x = input(b, "x", TSR_FLOAT, 1, dims), *y = input(b, "y", TSR_FLOAT, 3, one);
    tsr_value *shape = node(b, "Shape", "shape", x, NULL, NULL);
    tsr_value *asked = node(b, "Concat", "asked", shape, ints(b, "rest", 1, 2, rest), NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(asked), "axis", 0), TSR_OK);
    tsr_value *is_open = node(b, "Equal", "is_open", asked, ints(b, "minus", 1, 1, minus), NULL);
    tsr_value *sizes = node(b, "Where", "sizes", is_open, ints(b, "ones", 1, 1, ones), asked);
    tsr_value *wide = node(b, "Expand", "wide", y, sizes, NULL);
    tsr_value *small = node(b, "Less", "small", shape, ints(b, "zero", 1, 1, (int64_t[]){0}), NULL);
    tsr_value *picked = node(b, "Where", "picked", small, ints(b, "m", 1, 1, minus), shape);
    tsr_value *made = node(b, "ConstantOfShape", "made", picked, NULL, NULL);
    find(b);
    assert_string_equal(declared(b, wide), "float32[batch, 5, 8]");
    assert_string_equal(declared(b, made), "float32[batch]");
}

// torch.onnx exports pad with a list of pairs, the last axis first. It becomes ONNX's list by
// Reshape to [4 2], Slice in reverse, and Transpose.
static void test_pads_of_torch_are_computed(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch"), NUM(16), NUM(16), NUM(24)};
    const int64_t pairs[] = {0, 0, 0, 1, 0, 3, 0, 0}, rows[] = {-1, 2}, all[] = {-1};
    tsr_value *x = input(b, "x", TSR_FLOAT, 4, dims);
    tsr_value *list = ints(b, "list", 1, 8, pairs);
    tsr_value *matrix = node(b, "Reshape", "matrix", list, ints(b, "rows", 1, 2, rows), NULL);
    tsr_value *in[] = {matrix, ints(b, "from", 1, 1, all),
                       ints(b, "to", 1, 1, (const int64_t[]){-INT64_MAX}),
                       ints(b, "axes", 1, 1, (const int64_t[]){0}), ints(b, "step", 1, 1, all)};
    const char *out = "reversed";
    tsr_node *slice = tsr_graph_add_node(b->graph, "", "Slice", out, in, 5, &out, 1);
    assert_non_null(slice);
    tsr_value *turned = node(b, "Transpose", "turned", tsr_node_output(slice, 0), NULL, NULL);
    tsr_value *pads = node(b, "Reshape", "pads", turned, ints(b, "all", 1, 1, all), NULL);
    tsr_value *padded = node(b, "Pad", "padded", x, pads, NULL);
    find(b);
    assert_string_equal(declared(b, padded), "float32[batch, 19, 17, 24]");
}

// Other sizes of an empty tensor may be huge. Their product must not overflow.
static void test_empty_matrices_are_turned(void **state)
{
    struct bench *b = *state;
    const int64_t sizes[] = {0, (int64_t)1 << 62, 4};
    tsr_value *empty = ints(b, "empty", 1, 0, sizes);
    tsr_value *matrix = node(b, "Reshape", "matrix", empty, ints(b, "sizes", 1, 3, sizes), NULL);
    tsr_value *turned = node(b, "Transpose", "turned", matrix, NULL, NULL);
    find(b);
    assert_string_equal(declared(b, turned), "int64[4, 4611686018427387904, 0]");
}

// More axes than known elements are stored for: no size of the output is known.
static void test_pads_of_many_axes_are_unknown(void **state)
{
    struct bench *b = *state;
    tsr_dim dims[70];
    for (size_t i = 0; i < TSR_COUNT(dims); i++)
        dims[i] = NUM(2);
    const tsr_dim pads[] = {NUM(140)};
    tsr_value *y = node(b, "Pad", "y", input(b, "x", TSR_FLOAT, TSR_COUNT(dims), dims),
                        input(b, "pads", TSR_INT64, 1, pads), NULL);
    find(b);
    assert_int_equal(tsr_value_rank(y), TSR_COUNT(dims));
    for (int i = 0; i < (int)TSR_COUNT(dims); i++)
        assert_int_equal(tsr_value_dim(y, i).value, -1);
}

// Before opset 7 an attribute aligns the second operand: [3 4] along axis 1 is not compared with m.
static void test_old_operators_have_the_shape_of_their_first_input(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {NUM(2), DIM("n"), NUM(4), DIM("m")}, small[] = {NUM(3), NUM(4)};
    assert_int_equal(tsr_model_set_opset(b->model, "", 6), TSR_OK);
    tsr_value *x = input(b, "x", TSR_FLOAT, 4, dims), *y = input(b, "y", TSR_FLOAT, 2, small);
    tsr_value *sum = node(b, "Add", "sum", x, y, NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(sum), "broadcast", 1), TSR_OK);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(sum), "axis", 1), TSR_OK);
    tsr_value *less = node(b, "Less", "less", x, y, NULL);
    find(b);
    assert_string_equal(declared(b, sum), "float32[2, n, 4, m]");
    assert_string_equal(declared(b, less), "bool[2, n, 4, m]");
}

// Without an axis the result of Compress is a vector, even if the rank of the input is unknown.
static void test_selections_have_a_rank(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {NUM(2), DIM("n")}, flags[] = {NUM(3)};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims), *open = input(b, "open", TSR_FLOAT, -1, NULL);
    tsr_value *which = input(b, "which", TSR_BOOL, 1, flags);
    tsr_value *flat = node(b, "Compress", "flat", x, which, NULL);
    tsr_value *unknown = node(b, "Compress", "unknown", open, which, NULL);
    tsr_value *rows = node(b, "Compress", "rows", x, which, NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(rows), "axis", 0), TSR_OK);
    find(b);
    assert_string_equal(declared(b, flat), "float32[?]");
    assert_string_equal(declared(b, unknown), "float32[?]");
    assert_string_equal(declared(b, rows), "float32[?, n]");
}

static void test_declarations_are_completed_not_replaced(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch"), NUM(8)}, mine[] = {DIM("rows"), DIM("columns")};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    tsr_value *y = node(b, "Relu", "y", x, NULL, NULL);
    assert_int_equal(tsr_value_set_type(y, TSR_FLOAT, 2, mine), TSR_OK);
    tsr_shapes_summary sum = {.size = sizeof(sum)};
    assert_int_equal(tsr_shapes(b->model, NULL, 0, &sum), TSR_OK);
    // the name is kept, the number is inferred
    assert_string_equal(declared(b, y), "float32[rows, 8]");
    assert_int_equal(sum.values, 1);
    assert_int_equal(sum.fixed, 1);
    void *bytes;
    size_t n;
    assert_int_equal(tsr_model_save_bytes(b->model, &bytes, &n), TSR_OK);
    tsr_bytes_free(b->session, bytes, n);
}

static void test_contradictions_are_found(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {NUM(4), NUM(8)}, wrong[] = {NUM(4), NUM(9)};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    tsr_value *y = node(b, "Relu", "y", x, NULL, NULL), *z = node(b, "Cast", "z", x, NULL, NULL);
    tsr_value *w = node(b, "Neg", "w", x, NULL, NULL);
    assert_int_equal(tsr_node_set_int(tsr_value_producer(z), "to", TSR_INT64), TSR_OK);
    assert_int_equal(tsr_value_set_type(y, TSR_FLOAT, 2, wrong), TSR_OK);
    assert_int_equal(tsr_value_set_type(z, TSR_FLOAT, 2, dims), TSR_OK);
    assert_int_equal(tsr_value_set_type(w, TSR_FLOAT, 1, dims), TSR_OK);
    find(b);
    assert_int_equal(count(b, "shape-contradiction"), 3);
    assert_string_equal(tsr_finding_value(b->session, 0).value, "y");
    assert_string_equal(declared(b, y), "float32[4, 8]"); // the sizes of an actual run
    assert_string_equal(declared(b, z), "float32[4, 8]");
    assert_string_equal(declared(b, w), "float32[4, 8]");
}

// The symbol is named "10", so the first row of it has no printable size. The declared size ("10")
// must still be recognized as wrong.
static void test_names_of_numbers_are_followed(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("10"), NUM(6)};
    const int64_t zero[] = {0}, one[] = {1};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    tsr_value *y = node(b, "Slice", "y", x, ints(b, "from", 1, 1, zero), ints(b, "to", 1, 1, one));
    tsr_value *z = node(b, "Relu", "z", x, NULL, NULL);
    assert_int_equal(tsr_value_set_type(y, TSR_FLOAT, 2, dims), TSR_OK);
    struct shapes *shapes = tsr__shapes_new(&b->arena, b->model);
    assert_non_null(shapes);
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, y)).p, "float32[?, 6]");
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, z)).p, "float32[10, 6]");
}

// Shapes that were derived from a wrong declaration are wrong too. The Slice is declared with the
// size of its input, and so are its readers.
static void test_what_follows_from_a_wrong_size(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("n"), NUM(6)};
    const int64_t one[] = {1}, two[] = {2};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    tsr_value *y = node(b, "Slice", "y", x, ints(b, "from", 1, 1, one), ints(b, "to", 1, 1, two));
    tsr_value *z = node(b, "Add", "z", x, y, NULL), *w = node(b, "Relu", "w", z, NULL, NULL);
    tsr_value *same = node(b, "Relu", "same", x, NULL, NULL);
    tsr_value *const all[] = {y, z, w, same};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        assert_int_equal(tsr_value_set_type(all[i], TSR_FLOAT, 2, dims), TSR_OK);
    struct shapes *shapes = tsr__shapes_new(&b->arena, b->model);
    assert_non_null(shapes);
    static const char *const found[] = {"float32[max(min(n, 2) - min(n, 1), 0), 6]",
                                        "float32[?, 6]", "float32[?, 6]", "float32[n, 6]"};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, all[i])).p, found[i]);
}

static void test_symbols_get_sizes(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch"), DIM("past + 1")};
    const tsr_dim_size sizes[] = {{"batch", 2}, {"past", 6}};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims), *y = node(b, "Relu", "y", x, NULL, NULL);
    assert_int_equal(tsr_shapes(b->model, sizes, 2, NULL), TSR_OK);
    assert_string_equal(declared(b, x), "float32[2, 7]");
    assert_string_equal(declared(b, y), "float32[2, 7]");
}

// A rejected call must not change the model.
static void test_wrong_sizes_are_refused(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("batch"), DIM("past + 1")};
    const tsr_dim_size wrong[] = {{"batchh", 2}, {"batch", 0}, {"batch", -2}, {"past + 1", 3}};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    node(b, "Relu", "y", x, NULL, NULL);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(tsr_shapes(b->model, &wrong[i], 1, NULL), TSR_USAGE);
    assert_string_equal(tsr_finding_value(b->session, 0).hint, "did you mean 'batch'?");
    assert_int_equal(count(b, "dim-unknown"), 1);
    assert_int_equal(count(b, "dim-size"), 2);
    assert_string_equal(declared(b, x), "float32[batch, past + 1]");
    assert_int_equal(tsr_shapes(b->model, &wrong[3], 1, NULL),
                     TSR_OK); // the complete text is also a name
}

// Unnamed sizes of inputs are called INPUT.AXIS, unless the model uses that name for another size.
// The names are not written into the model.
static void test_unnamed_sizes_have_names(void **state)
{
    struct bench *b = *state;
    const tsr_dim open[] = {DIM(""), {6, ""}}, taken[] = {DIM("z.0"), {6, ""}};
    const tsr_dim_size size = {"x.0", 5};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, open), *z = input(b, "z", TSR_FLOAT, 2, open);
    tsr_value *other = input(b, "other", TSR_FLOAT, 2, taken),
              *odd = input(b, "a-b", TSR_FLOAT, 2, open);
    tsr_value *y = node(b, "Concat", "y", x, x, NULL), *w = node(b, "Relu", "w", z, NULL, NULL);
    tsr_value *v = node(b, "Relu", "v", odd, NULL, NULL);
    tsr_node_set_int(tsr_value_producer(y), "axis", 0);
    assert_string_equal(tsr_value_dim_name(x, 0), "x.0");
    assert_null(tsr_value_dim_name(x, 1));
    assert_null(tsr_value_dim_name(x, 2));
    assert_null(tsr_value_dim_name(y, 0));
    assert_string_equal(tsr_value_dim_name(other, 0), "z.0");
    struct shapes *shapes = tsr__shapes_new(&b->arena, b->model);
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, y)).p,
                        "float32[2*x.0, 6]");
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, w)).p, "float32[?, 6]");
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(shapes, v)).p,
                        "float32[a-b.0, 6]");
    assert_int_equal(tsr_shapes(b->model, NULL, 0, NULL), TSR_OK);
    assert_string_equal(declared(b, y), "float32[?, 6]");
    assert_int_equal(tsr_shapes(b->model, &size, 1, NULL), TSR_OK);
    assert_string_equal(declared(b, x), "float32[5, 6]");
    assert_string_equal(declared(b, y), "float32[10, 6]");
}

// Shapes that cannot be inferred must stay unknown, without an error.
static void test_what_is_not_known_is_not_guessed(void **state)
{
    struct bench *b = *state;
    const tsr_dim a[] = {DIM("a")}, c[] = {DIM("c")}, one[] = {NUM(2)};
    tsr_value *x = input(b, "x", TSR_FLOAT, 1, a), *y = input(b, "y", TSR_FLOAT, 1, c);
    tsr_value *sum = node(b, "Add", "sum", x, y, NULL);
    tsr_value *target = input(b, "target", TSR_INT64, 1, one);
    tsr_value *flat = node(b, "Reshape", "flat", x, target, NULL);
    tsr_value *odd = tsr_node_output(
        tsr_graph_add_node(b->graph, "own", "Thing", "t", &x, 1, (const char *[]){"odd"}, 1), 0);
    find(b);
    assert_string_equal(declared(b, sum), "float32[?]");
    assert_string_equal(declared(b, flat), "float32[?, ?]");
    assert_string_equal(declared(b, odd), "");
    assert_int_equal(tsr_finding_count(b->session), 0);
}

// Every operator with missing or random inputs and attributes: any result, but no crash.
static unsigned draw(unsigned *seed, unsigned below)
{
    *seed = *seed * 1103515245u + 12345u;
    return (*seed >> 16) % below;
}

static void set_attributes(tsr_node *n, unsigned *seed)
{
    static const char *const names[] = {"axis",
                                        "axes",
                                        "to",
                                        "perm",
                                        "pads",
                                        "strides",
                                        "dilations",
                                        "kernel_shape",
                                        "blocksize",
                                        "hidden_size",
                                        "num_outputs",
                                        "k",
                                        "group",
                                        "block_size",
                                        "batch_dims",
                                        "output_shape",
                                        "q_num_heads",
                                        "kv_num_heads",
                                        "split",
                                        "starts",
                                        "ends",
                                        "num_heads",
                                        "time_axis",
                                        "batch_axis",
                                        "shape",
                                        "pooled_shape",
                                        "sample_size",
                                        "keepdims",
                                        "output_height",
                                        "num_scan_inputs",
                                        "num_groups",
                                        "output_padding",
                                        "allowzero",
                                        "ceil_mode",
                                        "K",
                                        "N",
                                        "bits",
                                        "ngram_indexes",
                                        "start",
                                        "end",
                                        "exclusive",
                                        "onesided"};
    static const int64_t numbers[] = {0, 1, 2, 3, -1, -2, 4, INT64_MAX, INT64_MIN, 1 << 20};
    int64_t list[6];
    for (unsigned i = draw(seed, 12); i > 0; i--) {
        const char *name = names[draw(seed, TSR_COUNT(names))];
        unsigned n_list = draw(seed, 6);
        for (unsigned k = 0; k < n_list; k++)
            list[k] = numbers[draw(seed, draw(seed, 4) ? 3 : TSR_COUNT(numbers))];
        if (draw(seed, 2))
            assert_int_equal(tsr_node_set_ints(n, name, list, n_list), TSR_OK);
        else
            assert_int_equal(tsr_node_set_int(n, name, numbers[draw(seed, TSR_COUNT(numbers))]),
                             TSR_OK);
    }
}

static void be_brave(struct bench *b, unsigned seed)
{
    const struct op_row *row;
    for (size_t i = 0; (row = tsr__row_at(i)); i++)
        assert_int_equal(
            tsr_model_set_opset(b->model, text_or_none(row->domain), 100 + (int64_t)seed % 2),
            TSR_OK);
    const tsr_dim dims[] = {NUM(0), DIM("s"), NUM(3), NUM(2), NUM(4), NUM(5)};
    tsr_value *values[8] = {NULL};
    for (int i = 0; i < 6; i++) {
        char name[8];
        int rank = (int)draw(&seed, 6) - 1;
        snprintf(name, sizeof(name), "x%d", i);
        values[i] = input(b, name, draw(&seed, 3) ? TSR_FLOAT : TSR_INT64, rank,
                          rank > 0 ? dims + draw(&seed, 2) : NULL);
    }
    const int64_t odd[] = {INT64_MIN, -1, 0, INT64_MAX};
    values[6] = ints(b, "c", 1, 4, odd);
    char output[32];
    int made = 0;
    for (size_t i = 0; (row = tsr__row_at(i)); i++)
        for (size_t n = 0; n < 8; n++) {
            tsr_value *in[8];
            const char *outputs[4] = {output};
            for (size_t k = 0; k < n; k++)
                in[k] = values[draw(&seed, 8)];
            snprintf(output, sizeof(output), "o%d", made++);
            tsr_node *at = tsr_graph_add_node(b->graph, text_or_none(row->domain), row->op, output,
                                              in, n, outputs, 1 + n % 4);
            assert_non_null(at);
            set_attributes(at, &seed);
        }
    find(b);
    const struct shapes *s = tsr__shapes_new(&b->arena, b->model);
    assert_non_null(s);
    for (tsr_node *n = tsr_graph_first(b->graph); n; n = tsr_node_next(n))
        assert_non_null(tsr__rule_of(&b->arena, n, s));
}

// Shape inference of random nodes of all operators must not crash.
static void test_no_operator_is_brave(void **state)
{
    for (unsigned seed = 1; seed < 40; seed++) {
        void *fresh = NULL;
        setup(&fresh);
        be_brave(fresh, seed * 2654435761u);
        teardown(&fresh);
    }
    (void)state;
}

// ---- shapes that are kept with the model --------------------------------------------------------

// The kept shape of a value of that name, which must be the one of a new inference.
static const char *kept(struct bench *b, const char *name)
{
    const tsr_value *v = tsr_graph_value(b->graph, name);
    const struct shapes *shapes = tsr__model_shapes(b->model);
    assert_non_null(shapes);
    assert_ptr_equal(tsr__model_shapes(b->model), shapes);
    const char *text = tsr__shape_text(&b->arena, tsr__shapes_of(shapes, v)).p;
    struct shapes *fresh = tsr__shapes_new(&b->arena, b->model);
    assert_non_null(fresh);
    assert_string_equal(text, tsr__shape_text(&b->arena, tsr__shapes_of(fresh, v)).p);
    return text;
}

static tsr_node *maker(struct bench *b, const char *name)
{
    return tsr_value_producer(tsr_graph_value(b->graph, name));
}

// Edits by which a shape changes; each uses the shapes before and after it.
static void test_kept_shapes_follow_edits(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM(""), NUM(8)}, four[] = {NUM(4), NUM(8)};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    node(b, "Transpose", "t", x, NULL, NULL);
    assert_string_equal(kept(b, "t"), "float32[8, x.0]");
    assert_int_equal(tsr_value_rename(x, "z"), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[8, z.0]");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, four), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[8, 4]");
    assert_int_equal(tsr_node_set_ints(maker(b, "t"), "perm", (const int64_t[]){0, 1}, 2), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[4, 8]");
    assert_int_equal(tsr_node_remove_attr(maker(b, "t"), "perm"), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[8, 4]");
    tsr_value *w = tsr_graph_add_initializer(b->graph, "w", TSR_FLOAT, 1, (const int64_t[]){2},
                                             (const float[]){1, 2}, 8);
    assert_string_equal(kept(b, "w"), "float32[2]");
    assert_int_equal(tsr_node_replace_input(maker(b, "t"), 0, w), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[2]");
    assert_int_equal(tsr_value_replace_uses(w, x, false), TSR_OK);
    assert_string_equal(kept(b, "t"), "float32[8, 4]");
    tsr_value *in[] = {x, x}, *f = node(b, "Flatten", "f", x, NULL, NULL);
    assert_string_equal(kept(b, "f"), "float32[4, 8]");
    assert_int_equal(tsr_node_set_int(maker(b, "f"), "axis", 0), TSR_OK);
    assert_string_equal(kept(b, "f"), "float32[1, 32]");
    tsr_node *e = tsr_graph_add_node(b->graph, "", "Einsum", "e", in, 2, (const char *[]){"e"}, 1);
    assert_int_equal(tsr_node_set_string(e, "equation", "ij,ij->i"), TSR_OK);
    assert_string_equal(kept(b, "e"), "float32[4]");
    assert_int_equal(tsr_node_set_string(e, "equation", "ij,ij->j"), TSR_OK);
    assert_string_equal(kept(b, "e"), "float32[8]");
    node(b, "Relu", "r", f, NULL, NULL);
    assert_string_equal(kept(b, "r"), "float32[1, 32]");
    assert_int_equal(tsr_node_move_before(maker(b, "r"), maker(b, "f")), TSR_OK);
    kept(b, "r"); // read before it is computed
    assert_int_equal(tsr_node_remove(maker(b, "r")), TSR_OK);
    kept(b, "f");
    tsr_node *s =
        tsr_graph_add_node(b->graph, "", "Split", "s", &x, 1, (const char *[]){"s0", "s1"}, 2);
    assert_non_null(s);
    assert_int_equal(tsr_model_set_opset(b->model, "", 13), TSR_OK);
    assert_string_equal(kept(b, "s0"), "float32[2, 8]");
    assert_int_equal(tsr_node_resize_outputs(s, 4), TSR_OK);
    assert_string_equal(kept(b, "s0"), "float32[1, 8]");
    node(b, "ReduceSum", "u", x, ints(b, "axes", 1, 1, (const int64_t[]){0}), NULL);
    assert_string_equal(kept(b, "u"), "float32[1, 8]");
    assert_int_equal(tsr_model_set_opset(b->model, "", 11), TSR_OK);
    kept(b, "u"); // the axes are an attribute in this version
}

// Sizes, rules of users and the IR version are other states of the same graph.
static void test_kept_shapes_have_their_options(void **state)
{
    struct bench *b = *state;
    const tsr_dim dims[] = {DIM("n"), DIM("m")};
    const tsr_dim_size one[] = {{"n", 2}}, two[] = {{"n", 2}, {"m", 3}};
    tsr_value *x = input(b, "x", TSR_FLOAT, 2, dims);
    tsr_node *n = tsr_graph_add_node(b->graph, "my", "Mine", "y", &x, 1, (const char *[]){"y"}, 1);
    assert_int_equal(tsr_model_set_opset(b->model, "my", 1), TSR_OK);
    const struct shapes *none = tsr__model_shapes(b->model);
    const struct shapes *first = tsr__model_shapes_for(b->model, one, 1);
    const struct shapes *all = tsr__model_shapes_for(b->model, two, 2);
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(none, x)).p, "float32[n, m]");
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(first, x)).p, "float32[2, m]");
    assert_string_equal(tsr__shape_text(&b->arena, tsr__shapes_of(all, x)).p, "float32[2, 3]");
    const tsr_dim_size again[] = {{"n", 2}};
    assert_ptr_equal(tsr__model_shapes_for(b->model, again, 1), first);
    assert_ptr_equal(tsr__model_shapes(b->model), none);
    tsr__model_forget_shapes(b->model, one, 1);
    assert_ptr_equal(tsr__model_shapes_for(b->model, again, 1), first);
    assert_ptr_equal(tsr__model_shapes(b->model), none);
    tsr__model_forget_shapes(b->model, two, 2); // also the shapes for `one`
    assert_ptr_equal(tsr__model_derived(b->model)->next, NULL);
    assert_int_equal(tsr__shapes_of(none, tsr_node_output(n, 0)).rank, -1);
    assert_int_equal(tsr_rules_add(b->session, "Mine my 1 [A*] -> [A*]"), TSR_OK);
    assert_string_equal(kept(b, "y"), "float32[n, m]");
    const struct shapes *ruled = tsr__model_shapes(b->model);
    assert_int_equal(tsr_model_set_ir_version(b->model, 11), TSR_OK);
    assert_ptr_equal(tsr__model_shapes(b->model), ruled);
    assert_int_equal(tsr_model_set_ir_version(b->model, 3), TSR_OK);
    assert_ptr_not_equal(tsr__model_shapes(b->model), ruled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sizes_are_computed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_steps_take_one_element, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ranges_of_floats_have_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes_are_not_negative, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pads_of_torch_are_computed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_empty_matrices_are_turned, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pads_of_many_axes_are_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_operators_have_the_shape_of_their_first_input,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_selections_have_a_rank, setup, teardown),
        cmocka_unit_test_setup_teardown(test_declarations_are_completed_not_replaced, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_contradictions_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_of_numbers_are_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_follows_from_a_wrong_size, setup, teardown),
        cmocka_unit_test_setup_teardown(test_symbols_get_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_sizes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unnamed_sizes_have_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_known_is_not_guessed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_operator_is_brave, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kept_shapes_follow_edits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kept_shapes_have_their_options, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
