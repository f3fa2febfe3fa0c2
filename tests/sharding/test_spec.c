// SPDX-License-Identifier: Apache-2.0
// test_spec.c - specs read as layouts, layouts written as specs, shardings set as text, and tiles
// of a shape.
#include "common.h"

// ---- writing -----------------------------------------------------------------------------------

// The spec that a text gives on a value of shape 1024 x 4096: device list, groups, and (axis, size,
// shards) of each factor.
struct written {
    const char *text;
    int64_t devices[8];
    size_t n_devices;
    int64_t groups[4][5]; // key, members; -9 ends the list
    size_t n_groups;
    int64_t dims[4][3];
    size_t n_dims;
};
static const struct written WRITTEN[] = {
    {"{4,1:0,1,2,3}", {0, 1, 2, 3}, 4, {{0}}, 0, {{0, 1024, 4}}, 1},
    {"{1,4:0,1,2,3}", {0, 1, 2, 3}, 4, {{0}}, 0, {{1, 4096, 4}}, 1},
    {"{2,2:0,1,2,3}", {0, 1, 2, 3}, 4, {{0}}, 0, {{0, 1024, 2}, {1, 4096, 2}}, 2},
    {"{2,1:(0,1),(2,3)}", {-1, -2}, 2, {{-1, 0, 1, -9}, {-2, 2, 3, -9}}, 2, {{0, 1024, 2}}, 1},
    {"{2,1:(0,1),2}", {-1, 2}, 2, {{-1, 0, 1, -9}}, 1, {{0, 1024, 2}}, 1},
    {"{2,1:3,(0,1)}", {3, -1}, 2, {{-1, 0, 1, -9}}, 1, {{0, 1024, 2}}, 1},
    {"{1:0,1,2,3}", {-1}, 1, {{-1, 0, 1, 2, 3}}, 1, {{0}}, 0},
    {"{1:2}", {2}, 1, {{0}}, 0, {{0}}, 0},
    {"S0,S1@2x2", {0, 1, 2, 3}, 4, {{0}}, 0, {{0, 1024, 2}, {1, 4096, 2}}, 2},
    {"S1,R@2x2", {-1, -2}, 2, {{-1, 0, 2, -9}, {-2, 1, 3, -9}}, 2, {{0, 1024, 2}}, 1},
    {"R,S01@2x2", {0, 1, 2, 3}, 4, {{0}}, 0, {{1, 4096, 4}}, 1},
    {"R,R@2x2", {-1}, 1, {{-1, 0, 1, 2, 3}}, 1, {{0}}, 0},
    {"{4,1:3,1,0,2}", {3, 1, 0, 2}, 4, {{0}}, 0, {{0, 1024, 4}}, 1},
    {"{4}", {0, 1, 2, 3}, 4, {{0}}, 0, {{1, 4096, 4}}, 1},
    {"S1,S0@2x2", {0, 2, 1, 3}, 4, {{0}}, 0, {{0, 1024, 2}, {1, 4096, 2}}, 2},
    {"S0,R@4x1", {0, 1, 2, 3}, 4, {{0}}, 0, {{0, 1024, 4}}, 1},
    {"S0,R@2x2:3,2,1,0", {-1, -2}, 2, {{-1, 2, 3, -9}, {-2, 0, 1, -9}}, 2, {{0, 1024, 2}}, 1},
    {"{64/2*16,1:0,1}", {0, 1}, 2, {{0}}, 0, {{0, 64, 2}, {0, 16, 1}}, 2},
    {"{?/2*16,1:0,1}", {0, 1}, 2, {{0}}, 0, {{0, 64, 2}, {0, 16, 1}}, 2},
    {"{2*512/2,1:0,1}", {0, 1}, 2, {{0}}, 0, {{0, 2, 1}, {0, 512, 2}}, 2},
};

static void check_written(const tsr_spec *p, const struct written *w)
{
    const int64_t *devices, *members;
    size_t n, at = 0;
    assert_int_equal(tsr_spec_devices(p, &devices), w->n_devices);
    assert_memory_equal(devices, w->devices, w->n_devices * sizeof(*devices));
    assert_int_equal(tsr_spec_group_count(p), w->n_groups);
    for (size_t g = 0; g < w->n_groups; g++) {
        assert_int_equal(tsr_spec_group(p, g, &members, &n), w->groups[g][0]);
        assert_true(n == 4 || w->groups[g][n + 1] == -9);
        assert_memory_equal(members, &w->groups[g][1], n * sizeof(*members));
    }
    for (size_t i = 0; i < tsr_spec_dim_count(p); i++)
        for (size_t k = 0; k < tsr_spec_dim_factor_count(p, i); k++, at++) {
            tsr_dim size;
            assert_true(at < w->n_dims);
            assert_int_equal(tsr_spec_dim_axis(p, i), w->dims[at][0]);
            assert_int_equal(tsr_spec_dim_factor(p, i, k, &size), w->dims[at][2]);
            assert_int_equal(size.value, w->dims[at][1]);
        }
    assert_int_equal(at, w->n_dims);
}

static void texts_become_specs_and_texts_again(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(1024, 4096));
    for (size_t i = 0; i < TSR_COUNT(WRITTEN); i++) {
        if (tsr_node_shard_text(s.node, s.x, s.config, WRITTEN[i].text) != TSR_OK)
            fail_msg("%s: %s", WRITTEN[i].text, tsr_finding_value(b->session, 0).message);
        tsr_spec *p = tsr_node_sharding_of(s.node, s.x, 0);
        assert_non_null(p);
        assert_null(tsr_node_sharding_of(s.node, s.x, 1)); // the previous one was replaced
        check_written(p, &WRITTEN[i]);
        const char *text = NULL;
        assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
        struct tile_layout *want, *got;
        struct notation_error wrong;
        assert_int_equal(
            tsr__notation_parse(&b->arena, str_of(WRITTEN[i].text), 2, NULL, &want, NULL, &wrong),
            TSR_OK);
        assert_int_equal(tsr__notation_parse(&b->arena, str_of(text), 2, NULL, &got, NULL, &wrong),
                         TSR_OK);
        assert_true(tsr__layout_equal(want, got));
        assert_string_equal(tsr__notation_print(&b->arena, got).p, text);
        assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
        assert_int_equal(tsr_finding_count(b->session), 0);
    }
    tsr_model_free(s.model);
}

// Symbolic and unknown sizes must be written as such.
static void symbols_are_written_as_symbols(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, -1, NULL);
    assert_int_equal(tsr_value_set_type(s.x, TSR_FLOAT, 2, (tsr_dim[]){{-1, "n"}, {-1, ""}}),
                     TSR_OK);
    assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, "{2,2}"), TSR_OK);
    tsr_spec *p = tsr_node_sharding_of(s.node, s.x, 0);
    tsr_dim size;
    tsr_spec_dim_factor(p, 0, 0, &size);
    assert_int_equal(size.value, -1);
    assert_string_equal(size.symbol, "n");
    tsr_spec_dim_factor(p, 1, 0, &size);
    assert_int_equal(size.value, -1);
    assert_string_equal(size.symbol, "");
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 0);
    // unknown rank: the entries belong to the last dimensions
    assert_int_equal(tsr_node_shard_text(s.node, s.w, s.config, "{1,2,1:0,1}"), TSR_OK);
    p = tsr_node_sharding_of(s.node, s.w, 0);
    assert_int_equal(tsr_spec_dim_axis(p, 0), -2);
    const char *text;
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    assert_string_equal(text, "{2,1:0,1}");
    tsr_model_free(s.model);
}

static void wrong_texts_change_nothing(void **state)
{
    struct bench *b = *state;
    static const struct {
        const char *text, *code;
        tsr_status status;
    } wrong[] = {
        {"{2,1:0,1", "sharding-text", TSR_MALFORMED},
        {"{2,1,1:0,1}", "sharding-misfit", TSR_INVALID},
        {"{2,1:0,1,2}", "sharding-misfit", TSR_INVALID},
        {"{2,1:0,9}", "shard-device", TSR_INVALID},
        {"{0,1:}", "sharding-misfit", TSR_INVALID},
        {"{2,1:0,-1}", "sharding-left-out", TSR_INVALID},
    };
    struct small s = small_new(b, 2, I(8, 6));
    assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, "{2,1:0,1}"), TSR_OK);
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        tsr_finding_clear(b->session);
        assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, wrong[i].text),
                         wrong[i].status);
        assert_int_equal(tsr_finding_count(b->session), 1);
        tsr_finding f = tsr_finding_value(b->session, 0);
        assert_string_equal(f.code, wrong[i].code);
        assert_string_equal(f.node, "add");
        assert_string_equal(f.value, "x");
        assert_string_equal(f.configuration, "c");
        assert_true(f.hint[0]);
        const char *text;
        assert_int_equal(tsr_spec_text(tsr_node_sharding_of(s.node, s.x, 0), &text), TSR_OK);
        assert_string_equal(text, "{2,1:0,1}");
    }
    tsr_finding_clear(b->session);
    tsr_value *other = tsr_graph_add_input(s.graph, "other");
    assert_int_equal(tsr_node_shard_text(s.node, other, s.config, "{2}"), TSR_INVALID);
    assert_true(found(b->session, "shard-value"));
    assert_int_equal(tsr_node_shard_text(s.node, s.x, NULL, "{2}"), TSR_INVALID);
    assert_true(found(b->session, "config-unknown"));
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

static void written_models_survive_the_file(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(1024, 4096));
    for (size_t i = 0; i < TSR_COUNT(WRITTEN); i++) {
        assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, WRITTEN[i].text), TSR_OK);
        void *bytes;
        size_t n;
        assert_int_equal(tsr_model_save_bytes(s.model, &bytes, &n), TSR_OK);
        tsr_model *back;
        assert_int_equal(tsr_model_load_bytes(b->session, bytes, n, &back), TSR_OK);
        tsr_node *node = tsr_graph_first(tsr_model_graph(back));
        tsr_spec *p = tsr_node_sharding_of(node, tsr_node_input(node, 0), 0);
        assert_non_null(p);
        check_written(p, &WRITTEN[i]);
        tsr_model_free(back);
        tsr_bytes_free(b->session, bytes, n);
    }
    tsr_model_free(s.model);
}

// ---- reading -----------------------------------------------------------------------------------

static const char *read_text(struct bench *b, const tsr_spec *p)
{
    const char *text = "refused";
    tsr_finding_clear(b->session);
    (void)tsr_spec_text(p, &text);
    return text;
}

// Different specs for the same sharding must give the same layout.
static void all_spellings_are_read(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    tsr_spec *p = tsr_node_add_spec(s.node, s.config, s.x);
    assert_string_equal(read_text(b, p), ""); // empty spec
    assert_int_equal(tsr_spec_set_devices(p, I(3, 1), 2), TSR_OK);
    // without dimensions, devices mean replicated
    assert_string_equal(read_text(b, p), "{1,1:1,3}");
    assert_int_equal(tsr_spec_add_dim(p, -1, NULL, I(2), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "{1,2:3,1}"); // axis counted from the end
    assert_int_equal(tsr_spec_remove(p), TSR_OK);

    p = tsr_node_add_spec(s.node, s.config, s.x); // list order is loop order
    assert_int_equal(tsr_spec_add_dim(p, 1, NULL, I(3), 1), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(p, 0, NULL, I(1), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "{1,3:0,1,2}"); // no devices: 0, 1, 2
    assert_int_equal(tsr_spec_remove(p), TSR_OK);
    p = tsr_node_add_spec(s.node, s.config, s.x);
    assert_int_equal(tsr_spec_add_dim(p, 1, NULL, I(2), 1), TSR_OK);
    assert_int_equal(tsr_spec_add_dim(p, 0, NULL, I(2), 1), TSR_OK);
    assert_int_equal(tsr_spec_set_devices(p, I(0, 1, 2, 3), 4), TSR_OK);
    assert_string_equal(read_text(b, p), "{2,2:0,2,1,3}");
    assert_int_equal(tsr_spec_remove(p), TSR_OK);

    p = tsr_node_add_spec(s.node, s.config, s.x); // groups of any key, several factors
    assert_int_equal(tsr_spec_add_dim(p, 0, (tsr_dim[]){{2, ""}, {-1, "k"}}, I(1, 2), 2), TSR_OK);
    assert_int_equal(tsr_spec_set_devices(p, I(7, 0), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(p, 7, I(0, 1), 2), TSR_OK);
    assert_int_equal(tsr_spec_add_group(p, 0, I(2, 3), 2), TSR_OK);
    assert_string_equal(read_text(b, p), "{2*?/2,1:(0,1),(2,3)}");
    assert_int_equal(tsr_spec_remove(p), TSR_OK);

    // adjacent unsharded factors of unknown size are merged
    p = tsr_node_add_spec(s.node, s.config, s.x);
    assert_int_equal(tsr_spec_add_dim(p, 0, NULL, I(1, 1, 2), 3), TSR_OK);
    assert_string_equal(read_text(b, p), "refused");
    assert_true(found(b->session, "spec-size-open"));
    assert_int_equal(tsr_spec_remove(p), TSR_OK);
    p = tsr_node_add_spec(s.node, s.config, s.x);
    assert_int_equal(
        tsr_spec_add_dim(p, 0, (tsr_dim[]){{-1, ""}, {-1, ""}, {4, ""}}, I(1, 1, 2), 3), TSR_OK);
    assert_string_equal(read_text(b, p), "{?*4/2,1:0,1}");
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

// Specs of values of unknown rank.
static void a_rank_that_is_not_known_is_told(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, -1, NULL);
    tsr_spec *p = tsr_node_add_spec(s.node, s.config, s.x);
    assert_int_equal(tsr_spec_add_dim(p, -1, NULL, I(2), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "{2:0,1}");
    assert_int_equal(tsr_spec_add_dim(p, 0, NULL, I(2), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "{2,...,2:0,2,1,3}");
    struct tile_layout *none = NULL;
    assert_int_equal(tsr__spec_layout(&b->arena, p, &(struct shape){.rank = -1}, false, &none),
                     TSR_INVALID);
    assert_true(found(b->session, "spec-rank-unknown"));
    set_shape(s.x, 2, I(8, 6));
    assert_string_equal(read_text(b, p), "{2,2:0,2,1,3}");
    assert_false(found(b->session, "spec-rank-unknown"));
    assert_int_equal(tsr_spec_remove(p), TSR_OK);
    p = tsr_node_add_spec(s.node, s.config, s.y);
    assert_int_equal(tsr_spec_add_dim(p, INT64_MAX, NULL, I(2), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "refused");
    assert_true(found(b->session, "spec-large"));
    assert_int_equal(tsr_spec_remove(p), TSR_OK);
    p = tsr_node_add_spec(s.node, s.config, s.y);
    assert_int_equal(tsr_spec_add_dim(p, INT64_MIN, NULL, I(2), 1), TSR_OK);
    assert_string_equal(read_text(b, p), "refused");
    assert_true(found(b->session, "spec-large"));
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

// ---- tiles -------------------------------------------------------------------------------------

static void tiles_are_listed_by_device(void **state)
{
    struct bench *b = *state;
    const tsr_box *box;
    size_t n;
    assert_int_equal(tsr_tiles(b->session, "{5,1:3,2,4,1,0}", 2, I(7, 4), 0, &box, &n), TSR_OK);
    assert_int_equal(n, 5);
    static const int64_t starts[5] = {5, 4, 1, 0, 2}, stops[5] = {7, 5, 2, 1, 4};
    for (int64_t d = 0; d < 5; d++) {
        assert_int_equal(box[d].device, d);
        assert_int_equal(box[d].start[0], starts[d]);
        assert_int_equal(box[d].stop[0], stops[d]);
        assert_int_equal(box[d].start[1], 0);
        assert_int_equal(box[d].stop[1], 4);
    }
    assert_int_equal(tsr_tiles(b->session, "{2*4/2,1:0,1}", 2, I(8, 6), 0, &box, &n), TSR_OK);
    assert_int_equal(n, 4);
    assert_int_equal(box[1].device, 0);
    assert_int_equal(box[1].start[0], 4);
    assert_int_equal(box[1].stop[0], 6);
    assert_int_equal(tsr_tiles(b->session, "{2,1:0,-1}", 2, I(2, 4), 0, &box, &n), TSR_OK);
    assert_int_equal(n, 1);
    assert_int_equal(tsr_tiles(b->session, "{1:0,3}", 0, NULL, 0, &box, &n), TSR_OK);
    assert_int_equal(n, 2);
    // fewer elements than shards: some tiles are empty
    assert_int_equal(tsr_tiles(b->session, "{3}", 1, I(2), 0, &box, &n), TSR_OK);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(box[i].start[0], i * 2 / 3);
        assert_int_equal(box[i].stop[0], (i + 1) * 2 / 3);
    }
    assert_int_equal(tsr_tiles(b->session, "{2/3*4,1:0,1,2}", 2, I(8, 0), 0, &box, &n), TSR_OK);
    assert_int_equal(n, 3);
    assert_int_equal(tsr_finding_count(b->session), 0);
}

static void wrong_tiles_are_refused(void **state)
{
    struct bench *b = *state;
    const tsr_box *box = NULL;
    size_t n = 0;
    assert_int_equal(tsr_tiles(b->session, "{2,1:0,1", 2, I(7, 4), 0, &box, &n), TSR_MALFORMED);
    assert_true(found(b->session, "sharding-text"));
    assert_int_equal(tsr_tiles(b->session, "{2*2/2,1}", 2, I(3, 4), 0, &box, &n), TSR_INVALID);
    assert_true(found(b->session, "sharding-misfit"));
    assert_int_equal(tsr_tiles(b->session, "{2,1:0,4}", 2, I(3, 4), 4, &box, &n), TSR_INVALID);
    assert_true(found(b->session, "shard-device"));
    assert_int_equal(tsr_tiles(b->session, "{1}", 1, I(-1), 0, &box, &n), TSR_INVALID);
    assert_false(found(b->session, "tiles-many"));
    assert_int_equal(tsr_tiles(b->session, "{10000000*2/2}", 1, I(20000000), 0, &box, &n),
                     TSR_INVALID);
    assert_true(found(b->session, "tiles-many"));
    assert_int_equal(tsr_tiles(b->session, "{1000000000000*2/2}", 1, I(2000000000000), 0, &box, &n),
                     TSR_INVALID);
    assert_null(box);
    tsr_finding_clear(b->session);
}

// Each allocation of each call fails once; the previous state must stay.
static void lack_of_memory_is_told(void **state)
{
    (void)state;
    for (uint64_t k = 1, failed = 1; failed; k++) {
        tsr_session *session = tsr_session_new(NULL);
        struct bench b = {.session = session};
        struct small s = small_new(&b, 2, I(8, 6));
        assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, "{2,1:0,1}"), TSR_OK);
        tsr__session_fault(session, 0, k, false);
        const tsr_box *box;
        const char *text = NULL;
        size_t n;
        tsr_status status[3] = {
            tsr_node_shard_text(s.node, s.x, s.config, "{2,2*3/3:(0,1),1,2,3,0,1}"),
            tsr_spec_text(tsr_node_sharding_of(s.node, s.x, 0), &text),
            tsr_tiles(session, "{2,2*3/3:(0,1),1,2,3,0,1}", 2, I(8, 6), 0, &box, &n),
        };
        failed = 0;
        for (int i = 0; i < 3; i++) {
            assert_true(status[i] == TSR_OK || status[i] == TSR_NOMEM);
            failed += status[i] == TSR_NOMEM;
        }
        assert_int_equal(found(session, "out-of-memory"), failed > 0);
        assert_null(tsr_node_sharding_of(s.node, s.x, 1));
        if (text)
            assert_string_equal(text,
                                status[0] == TSR_OK ? "{2,2*3/3:(0,1),1,2,3,0,1}" : "{2,1:0,1}");
        tsr__session_fault(session, 0, 0, false);
        tsr_model_free(s.model);
        tsr_session_free(session);
        assert_true(k < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_specs_and_texts_again),
        cmocka_unit_test(symbols_are_written_as_symbols),
        cmocka_unit_test(wrong_texts_change_nothing),
        cmocka_unit_test(written_models_survive_the_file),
        cmocka_unit_test(all_spellings_are_read),
        cmocka_unit_test(a_rank_that_is_not_known_is_told),
        cmocka_unit_test(tiles_are_listed_by_device),
        cmocka_unit_test(wrong_tiles_are_refused),
        cmocka_unit_test(lack_of_memory_is_told),
    };
    return cmocka_run_group_tests_name("specs", tests, bench_setup, bench_teardown);
}
