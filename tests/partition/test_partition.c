// SPDX-License-Identifier: Apache-2.0
// test_partition.c - tsr_partition: rejected models, content of the folder, reproducible output,
// and failures that must leave no files.
#include "common.h"

#include <sys/stat.h>

static const tsr_dim batch_by_8[2] = {{-1, "batch"}, {8, ""}};
static const tsr_dim batch_by_6[2] = {{-1, "batch"}, {6, ""}};

// x [batch, 8] times w [8, 6], then Relu.
static tsr_node *simple_model(struct bench *b)
{
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, batch_by_8);
    tsr_node *mm = add_node(b, "MatMul", "mm", x, add_weight(b, "w", 8, 6), "h");
    tsr_node *relu = add_node(b, "Relu", "relu", tsr_node_output(mm, 0), NULL, "y");
    add_output(b, tsr_node_output(relu, 0), TSR_FLOAT, 2, batch_by_6);
    return mm;
}

// Partitions the model; b->result becomes the result.
static tsr_status partition(struct bench *b, const tsr_partition_options *o)
{
    tsr_partition_result_free(b->result);
    b->result = NULL;
    return tsr_partition(b->m, b->folder, o, &b->result);
}

static bool nothing_left(const struct bench *b)
{
    struct stat info;
    return stat(b->folder, &info) != 0 && rmdir(b->base) == 0 && mkdir(b->base, 0700) == 0;
}

// ---- rejected models ---------------------------------------------------------------------------

static void no_configuration(void **state)
{
    struct bench *b = *state;
    simple_model(b);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_INVALID);
    assert_true(found(b, "partition-no-configuration"));
    configure(b, 2);
    tsr_finding_clear(b->s);
    tsr_partition_options o = {.size = sizeof(o), .config = "other"};
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_INVALID);
    assert_int_equal(tsr_finding_count(b->s), 1);
    assert_non_null(strstr(tsr_finding_text(b->s, 0), "other"));
    assert_true(nothing_left(b));
}

static void several_configurations(void **state)
{
    struct bench *b = *state;
    simple_model(b);
    configure(b, 2);
    tsr_config *d;
    assert_int_equal(tsr_model_add_config(b->m, "d", 3, NULL, 0, &d), TSR_OK);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_INVALID);
    assert_true(found(b, "partition-several-configurations"));
    tsr_finding_clear(b->s);
    tsr_partition_options o = {.size = sizeof(o), .config = "d"};
    assert_int_equal(partition(b, &o), TSR_OK);
    assert_int_equal(b->result->facts.devices, 3);
}

static void annotations_with_errors(void **state)
{
    struct bench *b = *state;
    tsr_node *mm = simple_model(b);
    configure(b, 2);
    tsr_spec *p = tsr_node_add_spec(mm, b->c, tsr_node_input(mm, 1));
    int64_t devices[2] = {0, 7}, cuts = 2;
    assert_int_equal(tsr_spec_set_devices(p, devices, 2), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(p, 1, NULL, &cuts, 1), TSR_OK);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_INVALID);
    assert_true(found(b, "partition-refused"));
    assert_true(tsr_finding_total(b->s, TSR_ERROR) >= 2);
    assert_true(nothing_left(b));
}

// With `strict`, a node that cannot be sharded as annotated is an error; otherwise it runs
// replicated.
static void strict_wants_all_cut(void **state)
{
    struct bench *b = *state;
    static const tsr_dim places[] = {{2, ""}, {-1, "found"}};
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, batch_by_8);
    tsr_node *n = add_node(b, "NonZero", "find", x, NULL, "y"); // needs the unsharded x
    add_output(b, tsr_node_output(n, 0), TSR_INT64, 2, places);
    configure(b, 2);
    shard(b, n, x, "{1,2:0,1}");
    tsr_partition_options o = {.size = sizeof(o), .strict = true};
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_UNSUPPORTED);
    assert_true(found(b, "partition-strict"));
    assert_true(nothing_left(b));
    tsr_finding_clear(b->s);
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_replicated, 1);
    assert_string_equal(b->result->replicated[0].op, "NonZero");
    assert_int_equal(b->result->facts.cut_nodes, 0);
    tsr_partition_result *result = NULL;
    tsr_replicated replicated = TSR_REPLICATED_INIT;
    o.strict = false;
    o.dry_run = true;
    assert_int_equal(tsr_partition(b->m, NULL, &o, &result), TSR_OK);
    assert_int_equal(tsr_partition_result_replicated(result, 0, &replicated), TSR_OK);
    assert_string_equal(replicated.node, "find");
    assert_int_equal(tsr_partition_result_replicated(result, 1, &replicated), TSR_INVALID);
    tsr_partition_result_free(result);
}

// x is on device 1 only, y is needed on device 0.
static void from_one_to_zero(struct bench *b, tsr_dtype type)
{
    static const tsr_dim two[1] = {{2, ""}};
    tsr_value *x = add_input(b, "x", type, 1, two);
    tsr_node *n = add_node(b, "Identity", "id", x, NULL, "y");
    add_output(b, tsr_node_output(n, 0), type, 1, two);
    configure(b, 2);
    shard(b, n, x, "{1:1}");
}

// String tensors can be sent between ranks.
static void texts_travel(void **state)
{
    struct bench *b = *state;
    from_one_to_zero(b, TSR_STRING);
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives, 1);
    assert_string_equal(b->result->collectives[0].op, "Reshard");
}

// Returns how often a rank file has the operator.
static int count_in_rank(struct bench *b, int rank, const char *op)
{
    char path[160];
    int count = 0;
    tsr_model *model;
    snprintf(path, sizeof(path), "%s/rank%d.onnx", b->folder, rank);
    assert_int_equal(tsr_model_load(b->s, path, &model), TSR_OK);
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(model)); n; n = tsr_node_next(n))
        count += strcmp(tsr_node_op(n), op) == 0;
    tsr_model_free(model);
    return count;
}

// 4-bit tensors are sent as bytes: the sender and the receiver convert them.
static void half_bytes_travel_as_bytes(void **state)
{
    struct bench *b = *state;
    from_one_to_zero(b, TSR_INT4);
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives, 1);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(count_in_rank(b, rank, "Cast"), 1);
}

// 2-bit tensors cannot be sent, so the partition must be rejected.
static void quarter_bytes_do_not_travel(void **state)
{
    struct bench *b = *state;
    from_one_to_zero(b, TSR_INT2);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_UNSUPPORTED);
    assert_true(found(b, "partition-no-tensor"));
    assert_true(nothing_left(b));
}

// A value whose size is known only at run time can be resharded; its size is communicated first if
// needed.
static void sizes_that_nobody_knows(void **state)
{
    struct bench *b = *state;
    static const tsr_dim x_dims[1] = {{8, ""}}, y_dims[2] = {{1, ""}, {-1, ""}};
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 1, x_dims);
    tsr_node *nonzero = add_node(b, "NonZero", "nonzero", x, NULL, "i");
    tsr_node *neg = add_node(b, "Neg", "neg", tsr_node_output(nonzero, 0), NULL, "y");
    assert_int_equal(tsr_value_set_type(tsr_node_output(nonzero, 0), TSR_INT64, 2, y_dims), TSR_OK);
    add_output(b, tsr_node_output(neg, 0), TSR_INT64, 2, y_dims);
    configure(b, 2);
    // a gather concatenates in the order of ranks, so this order needs a general resharding
    shard(b, neg, tsr_node_output(nonzero, 0), "{1,2:1,0}");
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives,
                     2); // the sizes are summed, then the shards are sent
    assert_string_equal(b->result->collectives[0].op, "AllReduce");
    assert_string_equal(b->result->collectives[1].op, "Reshard");
    shard(b, neg, tsr_node_output(nonzero, 0), "{1,2:0,1}");
    tsr_partition_options again = {.size = sizeof(again), .force = true};
    assert_int_equal(partition(b, &again), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives, 1);
    assert_string_equal(b->result->collectives[0].op, "AllGather");
}

// A value of unknown rank can be broadcast, together with its shape.
static void ranks_that_nobody_knows(void **state)
{
    struct bench *b = *state;
    static const tsr_dim dims[1] = {{8, ""}};
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 1, dims);
    tsr_node *n = add_node(b, "Strange", "strange", x, NULL, "y"); // no rule, no shape
    tsr_value *y = tsr_node_output(n, 0);
    assert_int_equal(tsr_value_set_type(y, TSR_FLOAT, -1, NULL), TSR_OK);
    assert_int_equal(tsr_graph_add_output(b->g, y), TSR_OK);
    configure(b, 2);
    shard(b, n, x, "{1:1}"); // rank 0 returns the output: it is sent with its shape
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives, 1);
    assert_string_equal(b->result->collectives[0].op, "Broadcast");
}

// More dimensions than layouts support: such tensors are not sharded.
static void more_dimensions_than_are_followed(void **state)
{
    struct bench *b = *state;
    int64_t sizes[70];
    tsr_dim dims[70];
    for (int i = 0; i < 70; i++) {
        sizes[i] = 1;
        dims[i] = (tsr_dim){1, ""};
    }
    const float one = 1;
    tsr_value *w = tsr_graph_add_initializer(b->g, "w", TSR_FLOAT, 70, sizes, &one, sizeof one);
    assert_non_null(w);
    tsr_node *add = add_node(b, "Add", "add", add_input(b, "x", TSR_FLOAT, 70, dims), w, "y");
    add_output(b, tsr_node_output(add, 0), TSR_FLOAT, 70, dims);
    configure(b, 2);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_OK);
}

static void existing_folders_stay(void **state)
{
    struct bench *b = *state;
    simple_model(b);
    configure(b, 2);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_WRITE);
    assert_true(found(b, "output-exists"));
    tsr_finding_clear(b->s);
    tsr_partition_options o = {.size = sizeof(o), .force = true};
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_OK);
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_OK);
}

// A model with a token input is a rank file, which cannot be partitioned again.
static void parts_are_not_cut_again(void **state)
{
    struct bench *b = *state;
    tsr_value *x = add_input(b, TOKEN_NAME, TSR_FLOAT, 2, batch_by_8);
    tsr_node *relu = add_node(b, "Relu", "relu", x, NULL, "y");
    add_output(b, tsr_node_output(relu, 0), TSR_FLOAT, 2, batch_by_8);
    configure(b, 2);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_INVALID);
    assert_true(found(b, "partition-refused"));
    assert_true(nothing_left(b));
}

// ---- content of the folder ---------------------------------------------------------------------

static void weights_are_really_cut(void **state)
{
    struct bench *b = *state;
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, (tsr_dim[]){{-1, "batch"}, {64, ""}});
    tsr_node *mm = add_node(b, "MatMul", "mm", x, add_weight(b, "w", 64, 96), "h");
    tsr_node *out =
        add_node(b, "MatMul", "out", tsr_node_output(mm, 0), add_weight(b, "v", 96, 32), "y");
    add_output(b, tsr_node_output(out, 0), TSR_FLOAT, 2, (tsr_dim[]){{-1, "batch"}, {32, ""}});
    configure(b, 4);
    shard(b, mm, tsr_node_input(mm, 1), "{1,4:0,1,2,3}");
    shard(b, out, tsr_node_input(out, 1), "{4,1:0,1,2,3}");
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.devices, 4);
    assert_int_equal(b->result->facts.nodes, 2);
    assert_int_equal(b->result->facts.cut_nodes, 2);
    assert_int_equal(b->result->facts.n_collectives, 1);
    assert_string_equal(b->result->collectives[0].op, "Reduce"); // only rank 0 has the result
    assert_int_equal(b->result->collectives[0].count, 1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(b->result->facts.weights[r], 64 * 24 + 24 * 32);
        assert_int_equal(b->result->facts.weight_bytes[r], b->result->facts.weights[r] * 4);
    }
    struct bundle got;
    assert_int_equal(tsr__bundle_open(b->s, &b->arena, b->folder, &got), TSR_OK);
    assert_int_equal(tsr__bundle_verify(&got, NULL, 0, true), TSR_OK);
    assert_int_equal(got.manifest.n_collectives, 1);
    assert_int_equal(got.manifest.collectives[0].groups[0].n, 4);
    assert_null(tsr__manifest_find(&got.manifest, STR("common.data")));
    tsr__bundle_close(&got);

    // Rank 2 has the columns 48 to 71 of w.
    char path[128];
    snprintf(path, sizeof(path), "%s/rank2.onnx", b->folder);
    tsr_model *part;
    assert_int_equal(tsr_model_load(b->s, path, &part), TSR_OK);
    assert_int_equal(tsr_model_ir_version(part), 8);
    assert_string_equal(tsr_model_metadata(part, "ai.tessera.rank"), "2");
    const tsr_tensor *w = tsr_value_initializer(tsr_graph_value(tsr_model_graph(part), "w"));
    assert_int_equal(tsr_tensor_dims(w)[0], 64);
    assert_int_equal(tsr_tensor_dims(w)[1], 24);
    assert_true(tsr_tensor_is_external(w));
    const float *data;
    size_t n;
    assert_int_equal(tsr_tensor_data(w, (const void **)&data, &n), TSR_OK);
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 24; k++)
            assert_true(data[i * 24 + k] == (float)(i * 96 + 48 + k));
    tsr_model_free(part);
}

static struct str file_bytes(struct bench *b, const char *name)
{
    struct str path = tsr__arena_printf(&b->arena, "%s/%s", b->folder, name), bytes;
    assert_int_equal(tsr__file_read(b->s, &b->arena, path.p, 1 << 24, &bytes), TSR_OK);
    return bytes;
}

static void same_input_same_bytes(void **state)
{
    struct bench *b = *state;
    tsr_node *mm = simple_model(b);
    configure(b, 2);
    shard(b, mm, tsr_node_input(mm, 1), "{2,1:0,1}");
    tsr_partition_options o = {.size = sizeof(o), .force = true};
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_OK);
    struct str manifest = file_bytes(b, "manifest.json"), rank = file_bytes(b, "rank1.onnx");
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_OK);
    assert_true(str_eq(manifest, file_bytes(b, "manifest.json")));
    assert_true(str_eq(rank, file_bytes(b, "rank1.onnx")));
    shard(b, mm, tsr_node_input(mm, 1), "{1,2:0,1}"); // another plan must have another fingerprint
    assert_int_equal(tsr_partition(b->m, b->folder, &o, NULL), TSR_OK);
    const char *before = strstr(manifest.p, "\"plan\""),
               *after = strstr(file_bytes(b, "manifest.json").p, "\"plan\"");
    assert_memory_not_equal(before, after, strlen("\"plan\": \"0123456789abcdef\""));
}

// A rank without nodes gets a minimal model that only returns its token.
static void ranks_without_work_have_a_token(void **state)
{
    struct bench *b = *state;
    simple_model(b);
    configure(b, 3);
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_OK);
    char path[128];
    snprintf(path, sizeof(path), "%s/rank2.onnx", b->folder);
    tsr_model *part;
    assert_int_equal(tsr_model_load(b->s, path, &part), TSR_OK);
    tsr_graph *g = tsr_model_graph(part);
    assert_int_equal(tsr_graph_output_count(g), 1);
    assert_string_equal(tsr_value_name(tsr_graph_output(g, 0)), TOKEN_OUT);
    assert_int_equal(tsr_graph_node_count(g), 1);
    assert_int_equal(tsr_graph_initializer_count(g), 1); // no unused weight
    tsr_model_free(part);
}

// ---- failures ----------------------------------------------------------------------------------

// Lets the n-th operation of that kind fail. Returns false if there are fewer than n.
static bool cut_and_fail(struct bench *b, int kind, uint64_t n)
{
    tsr_finding_clear(b->s);
    tsr__session_fault(b->s, kind, n, false);
    tsr_status st = tsr_partition(b->m, b->folder, NULL, NULL);
    tsr__session_fault(b->s, kind, 0, false);
    struct stat info;
    if (st == TSR_OK) {
        assert_int_equal(stat(b->folder, &info), 0);
        tsr__folder_remove(b->folder);
    } else {
        assert_true(tsr_finding_total(b->s, TSR_ERROR) > 0);
    }
    if (!nothing_left(b))
        fail_msg("kind %d, number %llu left something behind", kind, (unsigned long long)n);
    return st != TSR_OK;
}

static void nothing_is_left_behind(void **state)
{
    struct bench *b = *state;
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, batch_by_8);
    tsr_node *mm = add_node(b, "MatMul", "mm", x, add_weight(b, "w", 8, 600), "y");
    add_output(b, tsr_node_output(mm, 0), TSR_FLOAT, 2, (tsr_dim[]){{-1, "batch"}, {600, ""}});
    configure(b, 2);
    shard(b, mm, tsr_node_input(mm, 1), "{1,2:0,1}");
    // There are thousands of allocations, so only some of them fail.
    for (int kind = 0; kind <= 2; kind++)
        for (uint64_t n = 1; cut_and_fail(b, kind, n);)
            n += 1 + n / 50;
}

// Shape and Size of a sharded tensor return the full sizes without communication.
static void sizes_stay_global(void **state)
{
    struct bench *b = *state;
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 2, batch_by_8);
    tsr_node *mm = add_node(b, "MatMul", "mm", x, add_weight(b, "w", 8, 6), "h");
    tsr_node *shape = add_node(b, "Shape", "shape", tsr_node_output(mm, 0), NULL, "s");
    tsr_node *size = add_node(b, "Size", "size", tsr_node_output(mm, 0), NULL, "z");
    add_output(b, tsr_node_output(shape, 0), TSR_INT64, 1, (tsr_dim[]){{2, ""}});
    add_output(b, tsr_node_output(size, 0), TSR_INT64, 0, NULL);
    configure(b, 2);
    shard(b, mm, tsr_node_input(mm, 1), "{1,2:0,1}");
    assert_int_equal(partition(b, NULL), TSR_OK);
    assert_int_equal(b->result->facts.n_collectives, 0);
    assert_int_equal(b->result->facts.n_replicated, 0);
    char path[160];
    snprintf(path, sizeof(path), "%s/rank0.onnx", b->folder);
    tsr_model *rank;
    assert_int_equal(tsr_model_load(b->s, path, &rank), TSR_OK);
    for (tsr_node *n = tsr_graph_first(tsr_model_graph(rank)); n; n = tsr_node_next(n)) {
        assert_string_not_equal(tsr_node_op(n), "MatMul"); // its result is not needed
        assert_string_not_equal(tsr_node_op(n), "Size");
    }
    tsr_model_free(rank);
}

// Partitions r = relu(x), z = size(r) with two shards of r; returns how often rank 0 has the
// operator.
static int count_in_size(struct bench *b, const tsr_dim *dims, const char *op)
{
    tsr_value *x = add_input(b, "x", TSR_FLOAT, 3, dims);
    tsr_node *relu = add_node(b, "Relu", "relu", x, NULL, "r");
    tsr_node *size = add_node(b, "Size", "size", tsr_node_output(relu, 0), NULL, "z");
    add_output(b, tsr_node_output(size, 0), TSR_INT64, 0, NULL);
    configure(b, 2);
    shard(b, relu, x, "{2,1,1:0,1}");
    assert_int_equal(tsr_partition(b->m, b->folder, NULL, NULL), TSR_OK);
    return count_in_rank(b, 0, op);
}

// The number of elements is a constant unless it exceeds 64 bits; then the engine computes it.
static void sizes_beyond_64_bits(void **state)
{
    static const tsr_dim dims[] = {{(int64_t)1 << 40, ""}, {(int64_t)1 << 40, ""}, {4, ""}};
    assert_int_equal(count_in_size(*state, dims, "ReduceProd"), 1);
}

static void sizes_of_nothing(void **state)
{
    static const tsr_dim dims[] = {{(int64_t)1 << 40, ""}, {(int64_t)1 << 40, ""}, {0, ""}};
    assert_int_equal(count_in_size(*state, dims, "ReduceProd"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_configuration, setup, teardown),
        cmocka_unit_test_setup_teardown(several_configurations, setup, teardown),
        cmocka_unit_test_setup_teardown(annotations_with_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(strict_wants_all_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(texts_travel, setup, teardown),
        cmocka_unit_test_setup_teardown(half_bytes_travel_as_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(quarter_bytes_do_not_travel, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_that_nobody_knows, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_that_nobody_knows, setup, teardown),
        cmocka_unit_test_setup_teardown(more_dimensions_than_are_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(existing_folders_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(parts_are_not_cut_again, setup, teardown),
        cmocka_unit_test_setup_teardown(weights_are_really_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_stay_global, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_beyond_64_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(sizes_of_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(same_input_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(ranks_without_work_have_a_token, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_left_behind, setup, teardown),
    };
    return cmocka_run_group_tests_name("partition", tests, NULL, NULL);
}
