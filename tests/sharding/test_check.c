// SPDX-License-Identifier: Apache-2.0
// test_check.c - the checker: each mistake must give its error code, alone and at the right place;
// the corrected model must give none.
#include "common.h"
#include "../valgrind.h"

#include <stdio.h>

// ---- one mistake, one diagnostic ---------------------------------------------------------------

// Each case is built twice on y = Add(x, w) of shape 8 x 6 with 4 devices: with the mistake and
// without it. With it, the check must report this one diagnostic and nothing else; without it,
// nothing.

static tsr_spec *spec(struct small *s, const int64_t *devices, size_t n)
{
    tsr_spec *p = tsr_node_add_spec(s->node, s->config, s->x);
    assert_non_null(p);
    assert_int_equal(tsr_spec_set_devices(p, devices, n), TSR_OK);
    return p;
}

static void dim(tsr_spec *p, int64_t axis, int64_t shards)
{
    assert_int_equal(tsr_spec_add_dim(p, axis, NULL, &shards, 1), TSR_OK);
}

static void factors(tsr_spec *p, int64_t axis, const tsr_dim *sizes, const int64_t *shards,
                    size_t n)
{
    assert_int_equal(tsr_spec_add_dim(p, axis, sizes, shards, n), TSR_OK);
}

static void group(tsr_spec *p, int64_t key, const int64_t *members, size_t n)
{
    assert_int_equal(tsr_spec_add_group(p, key, members, n), TSR_OK);
}

static void no_shape(struct small *s)
{
    // a value of the same name without a type
    tsr_value *v = tsr_graph_add_input(s->graph, "untyped");
    assert_int_equal(tsr_node_replace_input(s->node, 0, v), TSR_OK);
    s->x = v;
}

#define SIZE(v)   ((tsr_dim){v, ""})
#define SYMBOL(t) ((tsr_dim){-1, t})
#define OPEN      ((tsr_dim){-1, ""})

static void axis_range(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), wrong ? 2 : 1, 2);
}
static void axis_range_back(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), wrong ? -3 : -2, 2);
}
static void axis_scalar(struct small *s, bool wrong)
{
    if (wrong)
        assert_int_equal(tsr_value_set_type(s->x, TSR_FLOAT, 0, NULL), TSR_OK);
    dim(spec(s, I(0, 1), 2), 0, 2);
}
static void axis_twice(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(0, 1, 2, 3), 4);
    dim(p, 0, 2);
    dim(p, wrong ? -2 : -1, 2);
}
static void axis_twice_unknown(struct small *s, bool wrong)
{
    no_shape(s);
    tsr_spec *p = spec(s, I(0, 1, 2, 3), 4);
    dim(p, -2, 2);
    dim(p, wrong ? -2 : -1, 2);
}
static void axis_maybe_twice(struct small *s, bool wrong)
{
    no_shape(s);
    tsr_spec *p = spec(s, I(0, 1, 2, 3), 4);
    dim(p, wrong ? -1 : 0, 2);
    dim(p, 1, 2);
}
static void axis_order(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(0, 1, 2, 3), 4);
    dim(p, wrong ? 1 : 0, 2);
    dim(p, wrong ? 0 : 1, 2);
}
static void no_shards(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), 0, wrong ? 0 : 2);
}
static void negative_shards(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), 0, wrong ? -2 : 2);
}
static void more_shards_than_elements(struct small *s, bool wrong)
{
    set_shape(s->x, 2, wrong ? I(3, 6) : I(4, 6));
    dim(spec(s, I(0, 1, 2, 3), 4), 0, 4);
}
static void more_shards_than_factor(struct small *s, bool wrong)
{
    tsr_dim sizes[2] = {wrong ? SIZE(4) : SIZE(2), wrong ? SIZE(2) : SIZE(4)};
    factors(spec(s, I(0, 1, 2, 3), 4), 0, sizes, I(1, 4), 2);
}
static void dim_empty(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, NULL, I(2), wrong ? 0 : 1);
}
static void stated_size(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){wrong ? SIZE(10) : SIZE(8)}, I(2), 1);
}
static void stated_symbol(struct small *s, bool wrong)
{
    assert_int_equal(tsr_value_set_type(s->x, TSR_FLOAT, 2, (tsr_dim[]){SYMBOL("n"), SIZE(6)}),
                     TSR_OK);
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){wrong ? SYMBOL("m") : SYMBOL("n")}, I(2), 1);
}
static void symbol_for_number(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){wrong ? SYMBOL("n") : OPEN}, I(2), 1);
}
static void factor_product(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){SIZE(2), wrong ? SIZE(5) : SIZE(4)}, I(1, 2), 2);
}
static void factor_empty(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){SIZE(8), wrong ? SIZE(0) : SIZE(1)}, I(2, 1), 2);
}
static void factor_many(struct small *s, bool wrong)
{
    tsr_dim sizes[17];
    int64_t shards[17];
    for (int i = 0; i < 17; i++) {
        sizes[i] = SIZE(i == 0 ? 8 : 1);
        shards[i] = i == 0 ? 2 : 1;
    }
    factors(spec(s, I(0, 1), 2), 0, sizes, shards, wrong ? 17 : 16);
}
static void size_open(struct small *s, bool wrong)
{
    factors(spec(s, I(0, 1), 2), 0, (tsr_dim[]){wrong ? OPEN : SIZE(2), OPEN}, I(1, 2), 2);
}
static void short_unit(struct small *s,
                       bool wrong) // only a sharded inner factor must divide evenly
{
    tsr_spec *p = spec(s, I(0, 1), 2);
    factors(p, 0, (tsr_dim[]){wrong ? SIZE(3) : SIZE(2), wrong ? SIZE(2) : SIZE(5)},
            wrong ? I(1, 2) : I(2, 1), 2);
}
static void too_few_devices(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), wrong ? 1 : 2), 0, 2);
}
static void too_many_devices(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1, 2), wrong ? 3 : 2), 0, 2);
}
static void more_shards_than_devices(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1, 2, 3), wrong ? 0 : 4), 0, wrong ? 5 : 4);
}
static void devices_open(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), wrong ? 0 : 2), 0, 2);
}
static void says_nothing(struct small *s, bool wrong)
{
    spec(s, I(0), wrong ? 0 : 1);
}
static void large(struct small *s, bool wrong)
{
    tsr_dim many[2] = {SIZE(INT64_MAX), SIZE(INT64_MAX)};
    assert_int_equal(tsr_value_set_type(s->x, TSR_FLOAT, 2, many), TSR_OK);
    tsr_spec *p = spec(s, I(0, 1), 2);
    dim(p, 0, wrong ? INT64_MAX : 2);
    dim(p, 1, wrong ? INT64_MAX : 1);
}
static void device_range(struct small *s, bool wrong)
{
    dim(spec(s, I(0, wrong ? 4 : 3), 2), 0, 2);
}
static void device_negative(struct small *s, bool wrong)
{
    dim(spec(s, I(wrong ? -1 : 1, 0), 2), 0, 2);
}
static void device_in_group(struct small *s, bool wrong)
{
    group(spec(s, I(-1), 1), -1, I(0, wrong ? 7 : 3), 2);
}
static void device_in_unused_group(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(-1, -2), 2);
    group(p, -1, I(0), 1);
    group(p, -2, I(wrong ? 9 : 1), 1);
}
static void device_repeated(struct small *s, bool wrong)
{
    dim(spec(s, I(1, wrong ? 1 : 0), 2), 0, 2);
}
static void groups_overlap(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(-1, -2), 2);
    dim(p, 0, 2);
    group(p, -1, I(0, 1), 2);
    group(p, -2, wrong ? I(1, 2) : I(2, 3), 2);
}
static void key_twice(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(-1, -2), 2);
    dim(p, 0, 2);
    group(p, -1, I(0), 1);
    group(p, -2, I(1), 1);
    if (wrong)
        group(p, -1, I(2), 1);
}
static void empty_group(struct small *s, bool wrong)
{
    group(spec(s, I(-1), 1), -1, I(0), wrong ? 0 : 1);
}
static void member_twice(struct small *s, bool wrong)
{
    group(spec(s, I(-1), 1), -1, I(2, 1, wrong ? 2 : 0), 3);
}
static void unused_group(struct small *s, bool wrong)
{
    tsr_spec *p = spec(s, I(-1), 1);
    group(p, -1, I(0, 1), 2);
    if (wrong)
        group(p, -2, I(2, 3), 2);
}
static void key_is_device(struct small *s, bool wrong)
{
    group(spec(s, I(wrong ? 3 : 4), 1), wrong ? 3 : 4, I(0, 1), 2);
}
static void value_absent(struct small *s, bool wrong)
{
    tsr_spec *p = tsr_node_add_spec(s->node, s->config, wrong ? NULL : s->x);
    assert_int_equal(tsr_spec_set_devices(p, I(0), 1), TSR_OK);
}
static void value_of_another_node(struct small *s, bool wrong)
{
    tsr_value *other = tsr_graph_add_input(s->graph, "xx");
    tsr_spec *p = tsr_node_add_spec(s->node, s->config, wrong ? other : s->x);
    assert_int_equal(tsr_spec_set_devices(p, I(0), 1), TSR_OK);
}
static void spec_twice(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), 0, 2);
    tsr_spec *p = tsr_node_add_spec(s->node, s->config, wrong ? s->x : s->y);
    assert_int_equal(tsr_spec_set_devices(p, I(0, 1), 2), TSR_OK);
    dim(p, 1, 2);
}
static void stages_fall(struct small *s, bool wrong)
{
    tsr_value *in[1] = {s->y};
    const char *mid[1] = {"m"}, *out[1] = {"z"};
    tsr_node *between = tsr_graph_add_node(s->graph, "", "Relu", "between", in, 1, mid, 1);
    in[0] = tsr_node_output(between, 0);
    tsr_node *last = tsr_graph_add_node(s->graph, "", "Relu", "last", in, 1, out, 1);
    assert_int_equal(tsr_node_set_stage(s->node, s->config, 1), TSR_OK);
    assert_int_equal(tsr_node_set_stage(last, s->config, wrong ? 0 : 1), TSR_OK);
}
static void stages_of_two_lines(struct small *s,
                                bool wrong) // wrong: the stage decreases along the data flow
{
    tsr_value *in[1] = {wrong ? s->y : s->x};
    const char *out[1] = {"z"};
    tsr_node *other = tsr_graph_add_node(s->graph, "", "Relu", "other", in, 1, out, 1);
    assert_int_equal(tsr_node_set_stage(s->node, s->config, 7), TSR_OK);
    assert_int_equal(tsr_node_set_stage(other, s->config, 3), TSR_OK);
}
static void old_version(struct small *s, bool wrong)
{
    assert_int_equal(tsr_model_set_ir_version(s->model, wrong ? 10 : 11), TSR_OK);
}
static void removed_config(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 99), 2), 0, 2); // devices are not checked without a configuration
    if (!wrong)
        assert_int_equal(tsr_spec_set_devices(tsr_node_sharding_of(s->node, s->x, 0), I(0, 1), 2),
                         TSR_OK);
    else
        assert_int_equal(tsr_model_remove_config(s->model, s->config, false), TSR_OK);
}
static void foreign_config(struct small *s, bool wrong)
{
    dim(spec(s, I(0, 1), 2), 0, 2);
    tsr_config *again;
    if (!wrong)
        return;
    assert_int_equal(tsr_model_remove_config(s->model, s->config, false), TSR_OK);
    assert_int_equal(tsr_model_add_config(s->model, "c", 2, NULL, 0, &again), TSR_OK);
}
static void entry_absent(struct small *s, bool wrong)
{
    tsr_spec *p = tsr_node_add_spec(s->node, wrong ? NULL : s->config, s->x);
    assert_int_equal(tsr_spec_set_devices(p, I(0, wrong ? 99 : 1), 2), TSR_OK);
}

static const struct mistake {
    const char *code;
    tsr_severity severity;
    int64_t axis; // axis in the diagnostic, or DIAG_NO_AXIS
    void (*make)(struct small *s, bool wrong);
} MISTAKES[] = {
    {"shard-axis", TSR_ERROR, 2, axis_range},
    {"shard-axis", TSR_ERROR, -3, axis_range_back},
    {"shard-axis", TSR_ERROR, 0, axis_scalar},
    {"shard-axis-twice", TSR_ERROR, 0, axis_twice},
    {"shard-axis-twice", TSR_ERROR, -2, axis_twice_unknown},
    {"spec-axis-maybe-twice", TSR_WARNING, -1, axis_maybe_twice},
    {"spec-axis-order", TSR_NOTE, DIAG_NO_AXIS, axis_order},
    {"shard-count", TSR_ERROR, 0, no_shards},
    {"shard-count", TSR_ERROR, 0, negative_shards},
    {"shard-size", TSR_NOTE, 0, more_shards_than_elements},
    {"shard-size", TSR_NOTE, 0, more_shards_than_factor},
    {"spec-dim-empty", TSR_ERROR, 0, dim_empty},
    {"spec-size", TSR_ERROR, 0, stated_size},
    {"spec-symbol", TSR_WARNING, 0, stated_symbol},
    {"spec-symbol", TSR_WARNING, 0, symbol_for_number},
    {"spec-factors", TSR_ERROR, 0, factor_product},
    {"spec-factors", TSR_ERROR, 0, factor_empty},
    {"spec-factors", TSR_ERROR, 0, factor_many},
    {"spec-factors", TSR_ERROR, 0, short_unit},
    {"spec-size-open", TSR_ERROR, 0, size_open},
    {"spec-owners", TSR_ERROR, DIAG_NO_AXIS, too_few_devices},
    {"spec-owners", TSR_ERROR, DIAG_NO_AXIS, too_many_devices},
    {"spec-owners", TSR_ERROR, DIAG_NO_AXIS, more_shards_than_devices},
    {"spec-devices-open", TSR_NOTE, DIAG_NO_AXIS, devices_open},
    {"spec-empty", TSR_NOTE, DIAG_NO_AXIS, says_nothing},
    {"spec-large", TSR_ERROR, DIAG_NO_AXIS, large},
    {"shard-device", TSR_ERROR, DIAG_NO_AXIS, device_range},
    {"shard-device", TSR_ERROR, DIAG_NO_AXIS, device_negative},
    {"shard-device", TSR_ERROR, DIAG_NO_AXIS, device_in_group},
    {"shard-device", TSR_ERROR, DIAG_NO_AXIS, device_in_unused_group},
    {"device-twice", TSR_NOTE, DIAG_NO_AXIS, device_repeated},
    {"device-twice", TSR_NOTE, DIAG_NO_AXIS, groups_overlap},
    {"group-key-twice", TSR_ERROR, DIAG_NO_AXIS, key_twice},
    {"group-empty", TSR_ERROR, DIAG_NO_AXIS, empty_group},
    {"group-member-twice", TSR_ERROR, DIAG_NO_AXIS, member_twice},
    {"group-unused", TSR_WARNING, DIAG_NO_AXIS, unused_group},
    {"group-key-device", TSR_WARNING, DIAG_NO_AXIS, key_is_device},
    {"spec-no-value", TSR_ERROR, DIAG_NO_AXIS, value_absent},
    {"shard-value", TSR_ERROR, DIAG_NO_AXIS, value_of_another_node},
    {"spec-twice", TSR_ERROR, DIAG_NO_AXIS, spec_twice},
    {"stage-order", TSR_ERROR, DIAG_NO_AXIS, stages_fall},
    {"stage-order", TSR_ERROR, DIAG_NO_AXIS, stages_of_two_lines},
    {"annotation-ir-version", TSR_WARNING, DIAG_NO_AXIS, old_version},
    {"config-unknown", TSR_ERROR, DIAG_NO_AXIS, removed_config},
    {"config-foreign", TSR_ERROR, DIAG_NO_AXIS, foreign_config},
    {"annotation-no-config", TSR_ERROR, DIAG_NO_AXIS, entry_absent},
};

static void tell(const struct bench *b, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(b->session); i++)
        print_message("%s: %s: %s\n", code, tsr_finding_value(b->session, i).code,
                      tsr_finding_value(b->session, i).message);
}

static void each_mistake_has_one_finding(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < TSR_COUNT(MISTAKES); i++)
        for (int wrong = 0; wrong < 2; wrong++) {
            const struct mistake *m = &MISTAKES[i];
            struct small s = small_new(b, 2, I(8, 6));
            m->make(&s, wrong);
            assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
            if (tsr_finding_count(b->session) != (size_t)wrong) {
                tell(b, m->code);
                fail_msg("%s, %s: %zu findings", m->code, wrong ? "wrong" : "right",
                         tsr_finding_count(b->session));
            }
            if (wrong) {
                tsr_finding f = tsr_finding_value(b->session, 0);
                assert_string_equal(f.code, m->code);
                assert_int_equal(f.severity, m->severity);
                assert_int_equal(f.axis, m->axis);
                assert_true(f.message[0] && f.hint[0]);
                bool of_model = strcmp(m->code, "annotation-ir-version") == 0;
                assert_int_equal(f.node[0] != 0, !of_model);
            }
            tsr_finding_clear(b->session);
            tsr_model_free(s.model);
        }
}

static void findings_name_their_place(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    dim(spec(&s, I(0, 9), 2), 1, 2);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    tsr_finding f = tsr_finding_value(b->session, 0);
    assert_string_equal(f.node, "add");
    assert_string_equal(f.op, "Add");
    assert_int_equal(f.node_index, 0);
    assert_string_equal(f.value, "x");
    assert_string_equal(f.configuration, "c");
    assert_string_equal(f.message,
                        "the device list names device 9, but configuration 'c' has 4 devices");
    assert_string_equal(f.hint, "devices are 0 to 3; did you mean 3?");
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

static void stage_order_names_consumer_value_and_producer(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    stages_fall(&s, true);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    tsr_finding f = tsr_finding_value(b->session, 0);
    assert_string_equal(f.node, "last");
    assert_string_equal(f.value, "m");
    assert_string_equal(f.message,
                        "stage 0 needs 'm', which depends on node 'add' (#0 Add) of stage 1");
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

static void all_mistakes_of_one_spec_are_found_at_once(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    tsr_spec *p = spec(&s, I(0, 17, -1), 3);
    dim(p, 5, 2);
    dim(p, 0, 0);
    factors(p, 1, (tsr_dim[]){SIZE(7)}, I(3), 1);
    group(p, -1, I(1, 1, 8), 3);
    group(p, -4, NULL, 0);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    static const char *const codes[] = {"shard-axis",  "shard-count",        "spec-size",
                                        "group-empty", "group-member-twice", "shard-device",
                                        "group-unused"};
    for (size_t i = 0; i < TSR_COUNT(codes); i++)
        assert_true(found(b->session, codes[i]));
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 7);
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

// The check can be limited to one configuration, by name.
static void one_configuration_can_be_asked_for(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    tsr_config *d;
    assert_int_equal(tsr_model_add_config(s.model, "other", 2, NULL, 0, &d), TSR_OK);
    dim(spec(&s, I(0, 9), 2), 0, 2);
    assert_int_equal(tsr__check(s.model, "other"), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 0);
    assert_int_equal(tsr__check(s.model, "c"), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 1);
    tsr_finding_clear(b->session);
    assert_int_equal(tsr__check(s.model, "othr"), TSR_INVALID);
    assert_string_equal(tsr_finding_value(b->session, 0).code, "config-unknown");
    assert_string_equal(tsr_finding_value(b->session, 0).hint, "did you mean 'other'?");
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

// ---- mistakes that only a file can contain -----------------------------------------------------

// Builds models as bytes: protobuf fields, written by hand.

struct bytes {
    unsigned char at[2048];
    size_t n;
};
static void varint(struct bytes *b, uint64_t v)
{
    do {
        b->at[b->n++] = (unsigned char)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
}
static void put_int(struct bytes *b, unsigned field, int64_t v)
{
    varint(b, field << 3);
    varint(b, (uint64_t)v);
}
static void put_bytes(struct bytes *b, unsigned field, const void *p, size_t n)
{
    varint(b, field << 3 | 2);
    varint(b, n);
    memcpy(b->at + b->n, p, n);
    b->n += n;
}
static void put_text(struct bytes *b, unsigned field, const char *s)
{
    put_bytes(b, field, s, strlen(s));
}
static void put(struct bytes *b, unsigned field, const struct bytes *m)
{
    put_bytes(b, field, m->at, m->n);
}

struct file_config {
    const char *name; // NULL: absent
    int64_t devices;  // -1: absent
    int names;
};

// One Relu r: x -> y, with the given device configurations.
static struct bytes file(const struct file_config *configs, size_t n, const struct bytes *entries,
                         size_t n_entries)
{
    struct bytes model = {.n = 0}, graph = {.n = 0}, node = {.n = 0}, in = {.n = 0},
                 opset = {.n = 0};
    put_int(&model, 1, 11);
    put_text(&node, 1, "x");
    put_text(&node, 2, "y");
    put_text(&node, 3, "r");
    put_text(&node, 4, "Relu");
    for (size_t i = 0; i < n_entries; i++)
        put(&node, 10, &entries[i]);
    put(&graph, 1, &node);
    put_text(&graph, 2, "g");
    put_text(&in, 1, "x");
    put(&graph, 11, &in);
    put(&model, 7, &graph);
    put_int(&opset, 2, 18);
    put(&model, 8, &opset);
    for (size_t i = 0; i < n; i++) {
        struct bytes c = {.n = 0};
        if (configs[i].name)
            put_text(&c, 1, configs[i].name);
        if (configs[i].devices >= 0)
            put_int(&c, 2, configs[i].devices);
        for (int k = 0; k < configs[i].names; k++)
            put_text(&c, 3, "CPU");
        put(&model, 26, &c);
    }
    return model;
}

static struct bytes entry(const char *config, const char *tensor, const char *other, int64_t stage)
{
    struct bytes e = {.n = 0};
    if (config)
        put_text(&e, 1, config);
    for (int i = 0; i < 2; i++) {
        const char *t = i ? other : tensor;
        struct bytes s = {.n = 0};
        if (!t)
            continue;
        put_text(&s, 1, t);
        put_int(&s, 2, 0);
        put(&e, 2, &s);
    }
    if (stage > -9)
        put_int(&e, 3, stage);
    return e;
}

// Asserts the codes of all diagnostics of a file, separated by blanks.
static void codes_are(struct bench *b, const struct bytes *file, const char *want)
{
    tsr_model *m;
    char got[512] = "";
    size_t n = 0;
    assert_int_equal(tsr_model_load_bytes(b->session, file->at, file->n, &m), TSR_OK);
    assert_int_equal(tsr__check(m, NULL), TSR_OK);
    for (size_t i = 0; i < tsr_finding_count(b->session); i++)
        n += (size_t)snprintf(got + n, sizeof(got) - n, i ? " %s" : "%s",
                              tsr_finding_value(b->session, i).code);
    if (strcmp(got, want) != 0)
        tell(b, want);
    assert_string_equal(got, want);
    for (size_t i = 0; i < tsr_finding_count(b->session); i++)
        assert_true(tsr_finding_value(b->session, i).hint[0]);
    tsr_finding_clear(b->session);
    tsr_model_free(m);
}

static void configurations_of_files(void **state)
{
    struct bench *b = *state;
    static const struct {
        struct file_config at[2];
        size_t n;
        const char *codes;
    } cases[] = {
        {{{"c", 2, 0}, {"d", 2, 2}}, 2, ""},
        {{{"c", 2, 0}, {"c", 4, 0}}, 2, "config-twice"},
        {{{"", 2, 0}}, 1, "config-name-empty"},
        {{{NULL, 2, 0}}, 1, "config-name-empty"},
        {{{"c", 0, 0}}, 1, "config-device-count"},
        {{{"c", -1, 0}}, 1, "config-device-count"},
        {{{"c", 3, 2}}, 1, "config-device-names"},
        {{{"", 0, 0}, {"", 2, 3}},
         2,
         "config-name-empty config-device-count config-twice config-name-empty "
         "config-device-names"},
    };
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct bytes f = file(cases[i].at, cases[i].n, NULL, 0);
        codes_are(b, &f, cases[i].codes);
    }
}

static void annotations_of_files(void **state)
{
    struct bench *b = *state;
    static const struct file_config c[1] = {{"c", 2, 0}}, none[1] = {{"c", 0, 0}};
    struct bytes e[2], f;
    e[0] = entry("c", "x", "y", 0);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "");
    e[0] = entry("none", "x", NULL, 0); // the devices of an unknown configuration are not checked
    f = file(c, 1, e, 1);
    codes_are(b, &f, "config-unknown");
    e[0] = entry(NULL, "x", NULL, 0);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "annotation-no-config");
    e[0] = entry("", "x", NULL, 0);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "annotation-no-config");
    e[0] = entry("c", "x", NULL, 0);
    e[1] = entry("c", "y", NULL, 0);
    f = file(c, 1, e, 2);
    codes_are(b, &f, "annotation-twice");
    e[0] = entry("c", "q", "", -9);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "spec-value-unknown spec-no-value");
    e[0] = entry("c", "y", "y", -9);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "spec-twice");
    e[0] = entry("c", "x", NULL, -1);
    f = file(c, 1, e, 1);
    codes_are(b, &f, "stage-range");
    e[0] = entry("c", "x", NULL,
                 0); // no devices declared: one error for the configuration, not one per device
    f = file(none, 1, e, 1);
    codes_are(b, &f, "config-device-count");
    f = file(NULL, 0, e, 1);
    codes_are(b, &f, "config-unknown");
}

static void wrong_names_get_the_nearest(void **state)
{
    struct bench *b = *state;
    static const struct file_config c[1] = {{"tensor4", 2, 0}};
    struct bytes e = entry("tensr4", NULL, NULL, 0), f = file(c, 1, &e, 1);
    tsr_model *m;
    assert_int_equal(tsr_model_load_bytes(b->session, f.at, f.n, &m), TSR_OK);
    assert_int_equal(tsr__check(m, NULL), TSR_OK);
    assert_string_equal(tsr_finding_value(b->session, 0).hint, "did you mean 'tensor4'?");
    tsr_finding_clear(b->session);
    tsr_model_free(m);
}

// ---- subgraphs, and worst cases ----------------------------------------------------------------

// Annotations in a subgraph and in a function must be checked. The nested messages are built as
// bytes.
static void subgraphs_and_functions_are_walked(void **state)
{
    struct bench *b = *state;
    struct bytes model = {.n = 0}, graph = {.n = 0}, outer = {.n = 0}, attr = {.n = 0},
                 inner = {.n = 0}, body = {.n = 0}, function = {.n = 0}, config = {.n = 0},
                 input = {.n = 0};
    struct bytes bad = entry("none", NULL, NULL, 0);
    put_text(&inner, 2, "then_out");
    put_text(&inner, 3, "inside");
    put_text(&inner, 4, "Constant");
    put(&inner, 10, &bad);
    put(&body, 1, &inner);
    put_text(&body, 2, "branch");
    put_text(&attr, 1, "then_branch");
    put(&attr, 6, &body);
    put_int(&attr, 20, 5);
    put_text(&outer, 1, "cond");
    put_text(&outer, 2, "y");
    put_text(&outer, 3, "if");
    put_text(&outer, 4, "If");
    put(&outer, 5, &attr);
    put(&graph, 1, &outer);
    put_text(&graph, 2, "g");
    put_text(&input, 1, "cond");
    put(&graph, 11, &input);
    inner.n = 0;
    put_text(&inner, 1, "a");
    put_text(&inner, 2, "b");
    put_text(&inner, 3, "infunction");
    put_text(&inner, 4, "Relu");
    put(&inner, 10, &bad);
    put_text(&function, 1, "F");
    put_text(&function, 4, "a");
    put_text(&function, 5, "b");
    put(&function, 7, &inner);
    put_text(&function, 10, "own");
    put_int(&model, 1, 11);
    put(&model, 7, &graph);
    put(&model, 25, &function);
    put_text(&config, 1, "c");
    put_int(&config, 2, 2);
    put(&model, 26, &config);
    tsr_model *m;
    assert_int_equal(tsr_model_load_bytes(b->session, model.at, model.n, &m), TSR_OK);
    assert_int_equal(tsr__check(m, NULL), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 2);
    assert_string_equal(tsr_finding_value(b->session, 0).node, "if > then_branch > inside");
    assert_string_equal(tsr_finding_value(b->session, 1).node, "function F > infunction");
    tsr_finding_clear(b->session);
    tsr_model_free(m);
}

// Adds an import of an operator set to the message of a model or a function.
static void put_opset(struct bytes *to, uint32_t field, const char *domain, int64_t version)
{
    struct bytes opset = {.n = 0};
    put_text(&opset, 1, domain);
    put_int(&opset, 2, version);
    put(to, field, &opset);
}

// Whether a call can be replaced by the body depends on the operator sets of both, also after they
// were asked for once. The body has ReduceMean, which changed between 17 and 18.
static void inlinable_after_other_opsets(void **state)
{
    struct bench *b = *state;
    struct bytes model = {.n = 0}, graph = {.n = 0}, call = {.n = 0}, inner = {.n = 0},
                 function = {.n = 0};
    static const struct {
        int64_t version;
        bool inlinable;
    } cases[] = {{17, true}, {18, false}, {13, true}, {18, false}, {17, true}};
    put_text(&call, 1, "x");
    put_text(&call, 2, "y");
    put_text(&call, 3, "call");
    put_text(&call, 4, "F");
    put_text(&call, 7, "own");
    put(&graph, 1, &call);
    put_text(&graph, 2, "g");
    put_text(&inner, 1, "a");
    put_text(&inner, 2, "b");
    put_text(&inner, 4, "ReduceMean");
    put_text(&function, 1, "F");
    put_text(&function, 4, "a");
    put_text(&function, 5, "b");
    put(&function, 7, &inner);
    put_opset(&function, 9, "", 17);
    put_text(&function, 10, "own");
    put_int(&model, 1, 11);
    put(&model, 7, &graph);
    put_opset(&model, 8, "", 17);
    put_opset(&model, 8, "own", 1);
    put(&model, 25, &function);
    tsr_model *m;
    assert_int_equal(tsr_model_load_bytes(b->session, model.at, model.n, &m), TSR_OK);
    const tsr_node *node = tsr_graph_first(tsr_model_graph(m));
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        assert_int_equal(tsr_model_set_opset(m, "", cases[i].version), TSR_OK);
        assert_int_equal(tsr__is_inlinable(node), cases[i].inlinable);
        assert_int_equal(tsr__has_calls(m), cases[i].inlinable);
    }
    tsr_model_free(m);
}

// Intermediate values rarely declare a shape, so the checker must infer it.
static void shapes_that_are_not_declared_are_inferred(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(8, 6));
    tsr_value *in[1] = {s.y};
    const char *mid[1] = {"m"}, *out[1] = {"z"};
    tsr_node *relu = tsr_graph_add_node(s.graph, "", "Relu", "relu", in, 1, mid, 1);
    in[0] = tsr_node_output(relu, 0);
    tsr_node *last = tsr_graph_add_node(s.graph, "", "Relu", "last", in, 1, out, 1);
    assert_int_equal(tsr_value_rank(in[0]), -1);
    tsr_spec *p = tsr_node_add_spec(last, s.config, in[0]);
    assert_int_equal(tsr_spec_set_devices(p, I(0, 1), 2), TSR_OK);
    dim(p, 2, 2);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 1);
    assert_string_equal(tsr_finding_value(b->session, 0).code, "shard-axis");
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
}

// Takes well under a second. A check in quadratic time would end at the time limit of the program.
static void a_hundred_thousand_nodes_are_checked(void **state)
{
    struct bench *b = *state;
    if (much_slower())
        skip();
    tsr_model *m;
    tsr_config *c;
    assert_int_equal(tsr_model_new(b->session, "g", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "c", 4, NULL, 0, &c), TSR_OK);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *v = tsr_graph_add_input(g, "x");
    for (int i = 0; i < 100000; i++) {
        char name[24];
        const char *out[1] = {name};
        snprintf(name, sizeof(name), "v%d", i);
        tsr_node *n = tsr_graph_add_node(g, "", "Relu", name, &v, 1, out, 1);
        assert_non_null(n);
        if (i == 0)
            set_shape(v, 2, I(8, 6));
        assert_int_equal(tsr_node_shard(n, v, c, 0, 2, I(0, 1), 2, 99999 - i), TSR_OK);
        v = tsr_node_output(n, 0);
        if (i % 2)
            set_shape(v, 2, I(8, 6));
    }
    assert_int_equal(tsr__check(m, NULL), TSR_OK);
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 99999);
    assert_int_equal(tsr_finding_count(b->session), TSR_MAX_FINDINGS);
    tsr_finding_clear(b->session);
    tsr_model_free(m);
}

// One node with very many inputs, specs, devices and groups, which must take linear time.
static void one_node_with_everything_is_linear(void **state)
{
    struct bench *b = *state;
    if (much_slower())
        skip();
    enum { MANY = 20000 };
    struct small s = small_new(b, 2, I(8, 6));
    int64_t *big = calloc(1000001, sizeof(*big));
    tsr_value **in = calloc(MANY, sizeof(*in));
    assert_true(big && in);
    for (int64_t i = 0; i <= 1000000; i++)
        big[i] = i;
    for (int i = 0; i < MANY; i++) {
        char name[24];
        snprintf(name, sizeof(name), "in%d", i);
        in[i] = tsr_graph_add_input(s.graph, name);
    }
    const char *out[1] = {"z"};
    tsr_node *n = tsr_graph_add_node(s.graph, "", "Sum", "sum", in, MANY, out, 1);
    for (int i = 0; i < 2000;
         i++) // their device lists are reported once; more diagnostics are only counted
        assert_int_equal(
            tsr_spec_set_devices(tsr_node_add_spec(n, s.config, in[MANY - 1 - i]), I(0), 1),
            TSR_OK);
    tsr_spec *p = spec(&s, big, 1000001); // a million devices, 4 declared
    dim(p, 0, INT64_MAX);
    dim(p, 1, INT64_MAX);
    for (int i = 0; i < 2000; i++)
        group(p, -1 - i % 3, big, 500);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    assert_true(found(b->session, "shard-size"));
    assert_true(tsr_finding_total(b->session, TSR_ERROR) > 1000000);
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
    free(big);
    free(in);
}

// One large device group that many shards refer to.
static void owners_are_bounded(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(65536, 6));
    tsr_config *many;
    int64_t *list = calloc(65536, sizeof(*list));
    assert_non_null(list);
    assert_int_equal(tsr_model_add_config(s.model, "many", 65536, NULL, 0, &many), TSR_OK);
    tsr_spec *p = tsr_node_add_spec(s.node, many, s.x);
    for (int64_t i = 0; i < 65536; i++)
        list[i] = i;
    group(p, -1, list, 65536);
    for (int64_t i = 0; i < 65536; i++)
        list[i] = -1;
    assert_int_equal(tsr_spec_set_devices(p, list, 65536), TSR_OK);
    dim(p, 0, 65536);
    assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
    assert_int_equal(tsr_finding_count(b->session), 1);
    assert_string_equal(tsr_finding_value(b->session, 0).code, "spec-large");
    struct tile_layout *l = NULL;
    struct shape shape = {.rank = 2, .dims = (tsr_dim[]){SIZE(65536), SIZE(6)}};
    assert_int_equal(tsr__spec_layout(&b->arena, p, &shape, true, &l), TSR_INVALID);
    assert_int_equal(tsr_finding_count(b->session), 1); // no second diagnostic
    tsr_finding_clear(b->session);
    tsr_model_free(s.model);
    free(list);
}

static void very_many_configurations_are_bounded(void **state)
{
    struct bench *b = *state;
    for (int many = 256; many < 258; many++) {
        struct small s = small_new(b, 2, I(8, 6));
        tsr_value *in[1] = {s.x};
        const char *out[1] = {"z"};
        tsr_node *other = tsr_graph_add_node(s.graph, "", "Relu", "other", in, 1, out, 1);
        for (int i = 0; i < many; i++) {
            char name[24];
            tsr_config *c;
            snprintf(name, sizeof(name), "many%d", i);
            assert_int_equal(tsr_model_add_config(s.model, name, 2, NULL, 0, &c), TSR_OK);
            assert_int_equal(tsr_node_set_stage(s.node, c, 1), TSR_OK);
            assert_int_equal(tsr_node_set_stage(other, c, 0), TSR_OK);
        }
        assert_int_equal(tsr__check(s.model, NULL), TSR_OK);
        assert_int_equal(found(b->session, "stage-unchecked"), many > 256);
        tsr_finding_clear(b->session);
        tsr_model_free(s.model);
    }
}

// Each allocation of the check fails once.
static void lack_of_memory_is_told(void **state)
{
    (void)state;
    for (uint64_t k = 1, failed = 1; failed; k++) {
        tsr_session *session = tsr_session_new(NULL);
        struct bench b = {.session = session};
        struct small s = small_new(&b, 2, I(8, 6));
        stages_of_two_lines(&s, true);
        tsr_spec *p = spec(&s, I(-1, -2, 9), 3);
        dim(p, 0, 2);
        dim(p, 1, 2);
        group(p, -1, I(0, 1, 1), 3);
        tsr__session_fault(session, 0, k, false);
        tsr_status status = tsr__check(s.model, NULL);
        assert_true(status == TSR_OK || status == TSR_NOMEM);
        failed = found(session, "out-of-memory");
        assert_true(status == TSR_OK || failed);
        tsr__session_fault(session, 0, 0, false);
        tsr_model_free(s.model);
        tsr_session_free(session);
        assert_true(k < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_mistake_has_one_finding),
        cmocka_unit_test(findings_name_their_place),
        cmocka_unit_test(stage_order_names_consumer_value_and_producer),
        cmocka_unit_test(all_mistakes_of_one_spec_are_found_at_once),
        cmocka_unit_test(one_configuration_can_be_asked_for),
        cmocka_unit_test(configurations_of_files),
        cmocka_unit_test(annotations_of_files),
        cmocka_unit_test(wrong_names_get_the_nearest),
        cmocka_unit_test(subgraphs_and_functions_are_walked),
        cmocka_unit_test(inlinable_after_other_opsets),
        cmocka_unit_test(shapes_that_are_not_declared_are_inferred),
        cmocka_unit_test(a_hundred_thousand_nodes_are_checked),
        cmocka_unit_test(one_node_with_everything_is_linear),
        cmocka_unit_test(owners_are_bounded),
        cmocka_unit_test(very_many_configurations_are_bounded),
        cmocka_unit_test(lack_of_memory_is_told),
    };
    return cmocka_run_group_tests_name("check", tests, bench_setup, bench_teardown);
}
