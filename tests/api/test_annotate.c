// SPDX-License-Identifier: Apache-2.0
// test_annotate.c - behaviours 1 to 46 of onnx_ir's multi-device tests, one test each: writing and
// reading configurations and node entries, and the convenience functions. "Bettered" marks
// behaviour that deliberately differs from onnx_ir.
#include "help.h"

static struct bench *of(void **state)
{
    return *state;
}

static tsr_status cut(struct bench *b, tsr_value *v, tsr_config *c, int64_t axis, int64_t count)
{
    return tsr_node_shard(b->mm, v, c, axis, count, NULL, 0, -1);
}

static tsr_spec *only_spec(const tsr_node *n, const tsr_value *v)
{
    assert_null(tsr_node_sharding_of(n, v, 1));
    tsr_spec *p = tsr_node_sharding_of(n, v, 0);
    assert_non_null(p);
    return p;
}

static void devices_are(const tsr_spec *p, const int64_t *want, size_t n)
{
    const int64_t *got = NULL;
    assert_int_equal(tsr_spec_devices(p, &got), n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[i]);
}

static void test_01_configuration_survives_write_and_read(void **state)
{
    struct bench *b = of(state);
    const char *names[] = {"CPU", "CUDA:0"};
    assert_int_equal(tsr_model_add_config(b->m, "conf", 2, names, 2, NULL), TSR_OK);
    tsr_model *m = again(b, b->m);
    assert_int_equal(tsr_model_config_count(m), 1);
    const tsr_config *c = tsr_model_config(m, 0);
    assert_string_equal(tsr_config_name(c), "conf");
    assert_int_equal(tsr_config_devices(c), 2);
    assert_int_equal(tsr_config_device_name_count(c), 2);
    assert_string_equal(tsr_config_device_name(c, 0), "CPU");
    assert_string_equal(tsr_config_device_name(c, 1), "CUDA:0");
}

static void test_02_names_are_derived_from_the_objects(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "before", 2);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(0, 1), 3), TSR_OK);
    assert_int_equal(tsr_config_rename(c, "after"), TSR_OK);
    assert_int_equal(tsr_value_rename(b->w, "weight"), TSR_OK);
    // Expected bytes: id "after"; spec { "weight", devices 0 and 1, axis 0 of 1024 split in 2 };
    // stage 3.
    assert_true(
        holds(b, b->m,
              "0a05 6166746572 1217 0a06 776569676874 1000 1001 2209 0800 1205 088008 1802 1803"));
}

static void test_03_reading_binds_the_very_value(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("somewhere", "x"), file = msg_model(&entry, NULL);
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *n = node_at(m, 0);
    tsr_node_config *nc = tsr_node_config_at(n, 0);
    assert_ptr_equal(tsr_spec_value(tsr_node_config_spec(nc, 0)), tsr_node_input(n, 0));
    assert_string_equal(tsr_config_name(tsr_node_config_target(nc)), "somewhere");
    assert_int_equal(tsr_config_devices(tsr_node_config_target(nc)), 0);
}

static void test_04_unknown_tensor_is_kept(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("c", "nowhere"), conf = msg_config("c", 2);
    struct msg file = msg_model(&entry, &conf);
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *n = node_at(m, 0);
    tsr_value *v = tsr_spec_value(tsr_node_config_spec(tsr_node_config_at(n, 0), 0));
    assert_string_equal(tsr_value_name(v), "nowhere");
    assert_null(tsr_value_graph(v));
    assert_int_equal(tsr_node_set_stage(n, tsr_model_config(m, 0), 1),
                     TSR_OK); // change the entry, so that saving encodes it again
    tsr_model *m2 = again(b, m);
    tsr_node_config *nc = tsr_node_config_at(node_at(m2, 0), 0);
    assert_string_equal(tsr_value_name(tsr_spec_value(tsr_node_config_spec(nc, 0))), "nowhere");
}

static void test_05_symbolic_size_is_written_by_name(void **state)
{
    struct bench *b = of(state);
    tsr_dim dims[2] = {{-1, "N"}, {8, ""}};
    assert_int_equal(tsr_value_set_type(b->x, TSR_FLOAT, 2, dims), TSR_OK);
    shard(b, b->x, config(b, "c", 2), 0, 2);
    assert_true(holds(b, b->m, "2209 0800 1205 12014e 1802"));
}

// The API cannot create a value without a name, so the test loads one from a file.
static void test_06_value_without_a_name_is_not_saved(void **state)
{
    struct bench *b = of(state);
    struct msg model = {.n = 0}, graph = {.n = 0}, info = {.n = 0},
               node = msg_node("x", "y", "Relu", NULL);
    msg_msg(&graph, 1, &node);
    msg_msg(&graph, 11, &info);
    msg_int(&model, 1, 11);
    msg_msg(&model, 7, &graph);
    tsr_model *m = load(b, model.at, model.n);
    tsr_value *nameless = tsr_graph_input(tsr_model_graph(m), 0);
    assert_string_equal(tsr_value_name(nameless), "");
    tsr_config *c = NULL;
    assert_int_equal(tsr_model_add_config(m, "c", 2, NULL, 0, &c), TSR_OK);
    assert_non_null(tsr_node_add_spec(node_at(m, 0), c, nameless));
    void *bytes = NULL;
    size_t n = 0;
    refused(b, tsr_model_save_bytes(m, &bytes, &n), "save-value-name");
    assert_null(bytes);
}

static void test_07_add_takes_the_count_from_the_names(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = NULL;
    const char *names[] = {"CPU", "CUDA:0"};
    assert_int_equal(tsr_model_add_config(b->m, "conf", 0, names, 2, &c), TSR_OK);
    assert_int_equal(tsr_config_devices(c), 2);
    assert_int_equal(tsr_model_config_count(b->m), 1);
    assert_ptr_equal(tsr_model_config(b->m, 0), c);
    assert_ptr_equal(tsr_model_find_config(b->m, "conf"), c);
}

static void test_08_add_with_a_known_name(void **state)
{
    struct bench *b = of(state);
    config(b, "conf", 2);
    refused(b, tsr_model_add_config(b->m, "conf", 4, NULL, 0, NULL), "config-exists");
    assert_int_equal(tsr_model_config_count(b->m), 1);
}

static void test_09_shard_takes_the_size_from_the_shape(void **state)
{
    struct bench *b = of(state);
    shard(b, b->w, config(b, "c", 2), 0, 2);
    tsr_spec *p = only_spec(b->mm, b->w);
    assert_ptr_equal(tsr_spec_value(p), b->w);
    assert_int_equal(tsr_spec_dim_count(p), 1);
    assert_int_equal(tsr_spec_dim_axis(p, 0), 0);
    assert_int_equal(tsr_spec_dim_factor_count(p, 0), 1);
    tsr_dim size = {0, NULL};
    assert_int_equal(tsr_spec_dim_factor(p, 0, 0, &size), 2);
    assert_int_equal(size.value, 1024);
    assert_string_equal(size.symbol, "");
}

static void test_10_two_values_one_entry(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 0, 2);
    shard(b, b->x, c, 1, 2);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_int_equal(tsr_node_config_spec_count(tsr_node_config_at(b->mm, 0)), 2);
}

static void test_11_two_axes_one_spec(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 4);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(0, 1, 2, 3), -1), TSR_OK);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 1, 2, IDS(0, 1, 2, 3), -1), TSR_OK);
    tsr_spec *p = only_spec(b->mm, b->w);
    assert_int_equal(tsr_spec_dim_count(p), 2);
    assert_int_equal(tsr_spec_dim_axis(p, 0), 0);
    assert_int_equal(tsr_spec_dim_axis(p, 1), 1);
    devices_are(p, IDS(0, 1, 2, 3));
}

static void test_12_device_lists_are_united(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 4);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, IDS(2, 0), -1), TSR_OK);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 1, 2, IDS(0, 3, 2, 1), -1), TSR_OK);
    devices_are(only_spec(b->mm, b->w), IDS(2, 0, 3, 1));
}

static void test_13_same_axis_twice(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 0, 2);
    refused(b, cut(b, b->w, c, 0, 2), "shard-axis-twice");
    assert_int_equal(tsr_spec_dim_count(only_spec(b->mm, b->w)), 1);
}

static void test_14_two_configurations_two_entries(void **state)
{
    struct bench *b = of(state);
    shard(b, b->w, config(b, "c", 2), 0, 2);
    shard(b, b->w, config(b, "d", 4), 0, 4);
    assert_int_equal(tsr_node_config_count(b->mm), 2);
    assert_non_null(tsr_node_sharding_of(b->mm, b->w, 1));
    assert_null(tsr_node_sharding_of(b->mm, b->w, 2));
}

static void test_15_value_of_another_node(void **state)
{
    struct bench *b = of(state);
    refused(b, cut(b, b->z, config(b, "c", 2), 0, 2), "shard-value");
    assert_int_equal(tsr_node_config_count(b->mm), 0);
}

static void test_16_negative_axis_is_stored_as_given(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, -1, 2, IDS(0, 1), -1), TSR_OK);
    tsr_spec *p = only_spec(b->mm, b->w);
    tsr_dim size;
    assert_int_equal(tsr_spec_dim_axis(p, 0), -1);
    assert_int_equal(tsr_spec_dim_factor(p, 0, 0, &size), 2);
    assert_int_equal(size.value, 4096);
    CONTENT(b, b->m);
}

static void test_17_negative_axis_is_the_same_axis(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 1, 2);
    refused(b, cut(b, b->w, c, -1, 2), "shard-axis-twice");
}

static void test_18_negative_axis_out_of_range(void **state)
{
    struct bench *b = of(state);
    refused(b, cut(b, b->w, config(b, "c", 2), -3, 2), "shard-axis");
}

static void test_19_other_stage_in_a_second_call(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, NULL, 0, 0), TSR_OK);
    refused(b, tsr_node_shard(b->mm, b->x, c, 0, 2, NULL, 0, 1), "stage-conflict");
    assert_null(tsr_node_sharding_of(b->mm, b->x, 0));
}

static void test_20_same_stage_twice(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(b->mm, b->w, c, 0, 2, NULL, 0, 1), TSR_OK);
    assert_int_equal(tsr_node_shard(b->mm, b->x, c, 0, 2, NULL, 0, 1), TSR_OK);
    int64_t stage = -1;
    assert_true(tsr_node_config_stage(tsr_node_config_at(b->mm, 0), &stage));
    assert_int_equal(stage, 1);
}

static void test_21_stage_alone_makes_an_entry(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_set_stage(b->mm, c, 0), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_int_equal(tsr_node_config_spec_count(tsr_node_config_at(b->mm, 0)), 0);
    CONTENT(b, b->m);
}

static void test_22_stage_again_overwrites(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    int64_t stage = -1;
    assert_int_equal(tsr_node_set_stage(b->mm, c, 0), TSR_OK);
    assert_int_equal(tsr_node_set_stage(b->mm, c, 1), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_true(tsr_node_config_stage(tsr_node_config_at(b->mm, 0), &stage));
    assert_int_equal(stage, 1);
}

static void test_23_negative_stage(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    refused(b, tsr_node_set_stage(b->mm, c, -1), "stage-range");
    refused(b, tsr_node_set_stage(b->mm, c, (int64_t)INT32_MAX + 1), "stage-range");
    assert_int_equal(tsr_node_config_count(b->mm), 0);
}

static void test_24_stage_after_shard_same_entry(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 0, 2);
    assert_int_equal(tsr_node_set_stage(b->mm, c, 1), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_true(tsr_node_config_stage(tsr_node_config_at(b->mm, 0), NULL));
    only_spec(b->mm, b->w);
}

static void test_25_stage_survives_a_later_shard(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    int64_t stage = -1;
    assert_int_equal(tsr_node_set_stage(b->mm, c, 1), TSR_OK);
    shard(b, b->w, c, 0, 2);
    assert_true(tsr_node_config_stage(tsr_node_find_config(b->mm, c), &stage));
    assert_int_equal(stage, 1);
}

static void test_26_stages_of_two_configurations(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2), *d = config(b, "d", 2);
    int64_t first = -1, second = -1;
    assert_int_equal(tsr_node_set_stage(b->mm, c, 0), TSR_OK);
    assert_int_equal(tsr_node_set_stage(b->mm, d, 1), TSR_OK);
    assert_true(tsr_node_config_stage(tsr_node_find_config(b->mm, c), &first));
    assert_true(tsr_node_config_stage(tsr_node_find_config(b->mm, d), &second));
    assert_int_equal(first, 0);
    assert_int_equal(second, 1);
}

static void test_27_axis_and_count_out_of_range(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    refused(b, cut(b, b->w, c, 5, 2), "shard-axis");
    refused(b, cut(b, b->w, c, 0, 0), "shard-count");
    refused(b, cut(b, b->w, c, 0, -2), "shard-count");
}

static void test_28_renaming_is_seen_through_the_spec(void **state)
{
    struct bench *b = of(state);
    shard(b, b->w, config(b, "c", 2), 0, 2);
    assert_int_equal(tsr_value_rename(b->w, "weight"), TSR_OK);
    assert_string_equal(tsr_value_name(tsr_spec_value(only_spec(b->mm, b->w))), "weight");
    tsr_model *m = again(b, b->m);
    assert_non_null(
        tsr_node_sharding_of(node_at(m, 0), tsr_graph_value(tsr_model_graph(m), "weight"), 0));
}

static void test_29_no_value(void **state)
{
    struct bench *b = of(state);
    refused(b, cut(b, NULL, config(b, "c", 2), 0, 2), "shard-value");
}

static void test_30_value_without_a_shape(void **state)
{
    struct bench *b = of(state);
    tsr_value *in = tsr_graph_add_input(b->g, "shapeless");
    tsr_node *n = tsr_graph_add_node(b->g, "", "Relu", "r", &in, 1, (const char *[]){"out"}, 1);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_node_shard(n, in, c, 7, 2, NULL, 0, -1), TSR_OK);
    tsr_dim size;
    assert_int_equal(tsr_spec_dim_factor(only_spec(n, in), 0, 0, &size), 2);
    assert_int_equal(size.value, -1);
    assert_string_equal(size.symbol, "");
}

static void test_31_later_stage_fills_the_empty_one(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    int64_t stage = -1;
    shard(b, b->w, c, 0, 2);
    assert_false(tsr_node_config_stage(tsr_node_config_at(b->mm, 0), &stage));
    assert_int_equal(tsr_node_shard(b->mm, b->x, c, 0, 2, NULL, 0, 1), TSR_OK);
    assert_true(tsr_node_config_stage(tsr_node_config_at(b->mm, 0), &stage));
    assert_int_equal(stage, 1);
}

static void test_32_explicit_count_has_no_names(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 4);
    assert_int_equal(tsr_config_devices(c), 4);
    assert_int_equal(tsr_config_device_name_count(c), 0);
    assert_null(tsr_config_device_name(c, 0));
}

static void test_33_no_devices(void **state)
{
    struct bench *b = of(state);
    refused(b, tsr_model_add_config(b->m, "c", 0, NULL, 0, NULL), "config-device-count");
    refused(b, tsr_model_add_config(b->m, "c", -1, NULL, 0, NULL), "config-device-count");
    assert_int_equal(tsr_model_config_count(b->m), 0);
}

static void test_34_empty_name(void **state)
{
    struct bench *b = of(state);
    refused(b, tsr_model_add_config(b->m, "", 2, NULL, 0, NULL), "config-name-empty");
    refused(b, tsr_model_add_config(b->m, NULL, 2, NULL, 0, NULL), "config-name-empty");
}

static void test_35_count_and_names_differ(void **state)
{
    struct bench *b = of(state);
    const char *names[] = {"CPU", "GPU"};
    refused(b, tsr_model_add_config(b->m, "c", 4, names, 2, NULL), "config-device-names");
}

static void test_36_count_and_names_agree(void **state)
{
    struct bench *b = of(state);
    const char *names[] = {"CPU", "GPU"};
    assert_int_equal(tsr_model_add_config(b->m, "c", 2, names, 2, NULL), TSR_OK);
}

static void test_37_shard_with_a_negative_stage(void **state)
{
    struct bench *b = of(state); // -1 means "not given" here
    refused(b, tsr_node_shard(b->mm, b->w, config(b, "c", 2), 0, 2, NULL, 0, -2), "stage-range");
    assert_int_equal(tsr_node_config_count(b->mm), 0);
}

static void test_38_remove_by_object(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    assert_int_equal(tsr_model_remove_config(b->m, c, false), TSR_OK);
    assert_int_equal(tsr_model_config_count(b->m), 0);
    assert_string_equal(tsr_config_name(c), "c"); // a removed configuration stays readable
}

static void test_39_remove_by_name_keeps_the_others(void **state)
{
    struct bench *b = of(state);
    config(b, "c", 2);
    tsr_config *d = config(b, "d", 2);
    assert_int_equal(tsr_model_remove_config_named(b->m, "c", false), TSR_OK);
    assert_int_equal(tsr_model_config_count(b->m), 1);
    assert_ptr_equal(tsr_model_config(b->m, 0), d);
}

static void test_40_remove_without_cascade_is_found(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 0, 2);
    assert_int_equal(tsr_model_remove_config(b->m, c, false), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    REPORTS(b, b->m, "config-unknown");
}

static void test_41_cascade_by_name(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2);
    shard(b, b->w, c, 0, 2);
    assert_int_equal(tsr_node_set_stage(b->act, c, 1), TSR_OK);
    assert_int_equal(tsr_model_remove_config_named(b->m, "c", true), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 0);
    assert_int_equal(tsr_node_config_count(b->act), 0);
    CONTENT(b, b->m);
}

static void test_42_cascade_keeps_other_configurations(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "c", 2), *d = config(b, "d", 2);
    shard(b, b->w, c, 0, 2);
    shard(b, b->w, d, 0, 2);
    assert_int_equal(tsr_model_remove_config(b->m, c, true), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_ptr_equal(tsr_node_config_target(tsr_node_config_at(b->mm, 0)), d);
}

static void test_43_cascade_reaches_functions(void **state)
{
    struct bench *b = of(state);
    struct msg entry = msg_entry("c", "a"), conf = msg_config("c", 2);
    struct msg file = msg_function_model(&entry, &conf);
    tsr_model *m = load(b, file.at, file.n);
    tsr_node *inner = tsr_graph_first(tsr_function_graph(tsr_model_function(m, 0)));
    assert_int_equal(tsr_node_config_count(inner), 1);
    assert_int_equal(tsr_model_remove_config_named(m, "c", true), TSR_OK);
    assert_int_equal(tsr_node_config_count(inner), 0);
    tsr_model *m2 = again(b, m);
    assert_int_equal(tsr_model_config_count(m2), 0);
    inner = tsr_graph_first(tsr_function_graph(tsr_model_function(m2, 0)));
    assert_int_equal(tsr_node_config_count(inner), 0);
}

// Binds mm to a removed configuration "c", and act to the declared configuration "c".
static tsr_config *two_of_one_name(struct bench *b)
{
    tsr_config *old = config(b, "c", 2);
    shard(b, b->w, old, 0, 2);
    assert_int_equal(tsr_model_remove_config(b->m, old, false), TSR_OK);
    tsr_config *c = config(b, "c", 2);
    assert_ptr_not_equal(c, old);
    assert_int_equal(tsr_node_set_stage(b->act, c, 0), TSR_OK);
    return c;
}

static void test_44_cascade_by_name_takes_foreign_objects(void **state)
{
    struct bench *b = of(state);
    two_of_one_name(b);
    assert_int_equal(tsr_model_remove_config_named(b->m, "c", true), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 0);
    assert_int_equal(tsr_node_config_count(b->act), 0);
}

static void test_45_cascade_by_object_keeps_foreign_objects(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = two_of_one_name(b);
    assert_int_equal(tsr_model_remove_config(b->m, c, true), TSR_OK);
    assert_int_equal(tsr_node_config_count(b->mm), 1);
    assert_int_equal(tsr_node_config_count(b->act), 0);
}

static void test_46_remove_what_is_not_there(void **state)
{
    struct bench *b = of(state);
    tsr_config *c = config(b, "conf", 2);
    refused(b, tsr_model_remove_config_named(b->m, "none", false), "config-unknown");
    assert_int_equal(tsr_model_remove_config(b->m, c, false), TSR_OK);
    refused(b, tsr_model_remove_config(b->m, c, false), "config-unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_01_configuration_survives_write_and_read),
        TEST(test_02_names_are_derived_from_the_objects),
        TEST(test_03_reading_binds_the_very_value),
        TEST(test_04_unknown_tensor_is_kept),
        TEST(test_05_symbolic_size_is_written_by_name),
        TEST(test_06_value_without_a_name_is_not_saved),
        TEST(test_07_add_takes_the_count_from_the_names),
        TEST(test_08_add_with_a_known_name),
        TEST(test_09_shard_takes_the_size_from_the_shape),
        TEST(test_10_two_values_one_entry),
        TEST(test_11_two_axes_one_spec),
        TEST(test_12_device_lists_are_united),
        TEST(test_13_same_axis_twice),
        TEST(test_14_two_configurations_two_entries),
        TEST(test_15_value_of_another_node),
        TEST(test_16_negative_axis_is_stored_as_given),
        TEST(test_17_negative_axis_is_the_same_axis),
        TEST(test_18_negative_axis_out_of_range),
        TEST(test_19_other_stage_in_a_second_call),
        TEST(test_20_same_stage_twice),
        TEST(test_21_stage_alone_makes_an_entry),
        TEST(test_22_stage_again_overwrites),
        TEST(test_23_negative_stage),
        TEST(test_24_stage_after_shard_same_entry),
        TEST(test_25_stage_survives_a_later_shard),
        TEST(test_26_stages_of_two_configurations),
        TEST(test_27_axis_and_count_out_of_range),
        TEST(test_28_renaming_is_seen_through_the_spec),
        TEST(test_29_no_value),
        TEST(test_30_value_without_a_shape),
        TEST(test_31_later_stage_fills_the_empty_one),
        TEST(test_32_explicit_count_has_no_names),
        TEST(test_33_no_devices),
        TEST(test_34_empty_name),
        TEST(test_35_count_and_names_differ),
        TEST(test_36_count_and_names_agree),
        TEST(test_37_shard_with_a_negative_stage),
        TEST(test_38_remove_by_object),
        TEST(test_39_remove_by_name_keeps_the_others),
        TEST(test_40_remove_without_cascade_is_found),
        TEST(test_41_cascade_by_name),
        TEST(test_42_cascade_keeps_other_configurations),
        TEST(test_43_cascade_reaches_functions),
        TEST(test_44_cascade_by_name_takes_foreign_objects),
        TEST(test_45_cascade_by_object_keeps_foreign_objects),
        TEST(test_46_remove_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
