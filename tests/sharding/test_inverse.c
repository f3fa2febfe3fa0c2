// SPDX-License-Identifier: Apache-2.0
// test_inverse.c - a printed spec that is parsed again must be the same sharding, in every notation
// and whatever is known about its value: its sizes, only its rank, only an inferred rank, or
// nothing.
#include "common.h"

static uint64_t seed = 5;

static int64_t pick(int64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)below);
}

#define SIDE    24 // elements of every dimension
#define DEVICES 64

enum known { SIZES, RANK, INFERRED, NOTHING, KNOWN_COUNT };

// y = Neg(h), h = Relu(x): h is sharded at `node`. Its shape is declared or inferred from x.
struct chain {
    tsr_model *model;
    tsr_node *node;
    tsr_value *value;
    tsr_config *config;
};

static struct chain chain_new(struct bench *b, enum known known, int rank)
{
    struct chain c = {0};
    tsr_dim dims[8];
    for (int d = 0; d < rank; d++)
        dims[d] = known == RANK ? (tsr_dim){-1, ""} : (tsr_dim){SIDE, ""};
    assert_int_equal(tsr_model_new(b->session, "g", 11, &c.model), TSR_OK);
    assert_int_equal(tsr_model_set_opset(c.model, "", 18), TSR_OK);
    tsr_graph *g = tsr_model_graph(c.model);
    tsr_value *x = tsr_graph_add_input(g, "x");
    const char *h = "h", *y = "y";
    c.value = tsr_node_output(tsr_graph_add_node(g, "", "Relu", "a", &x, 1, &h, 1), 0);
    c.node = tsr_graph_add_node(g, "", "Neg", "b", &c.value, 1, &y, 1);
    if (known == INFERRED)
        assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, rank, dims), TSR_OK);
    if (known == SIZES || known == RANK)
        assert_int_equal(tsr_value_set_type(c.value, TSR_FLOAT, rank, dims), TSR_OK);
    assert_int_equal(tsr_model_add_config(c.model, "c", DEVICES, NULL, 0, &c.config), TSR_OK);
    return c;
}

// One or two factors of an axis with product SIDE; one size may be omitted. Returns the shards.
static int64_t add_random_dim(tsr_spec *p, int64_t axis)
{
    static const int64_t outer[] = {2, 3, 4, 6};
    int64_t size = outer[pick(4)], cuts[2] = {1 + pick(3), 1};
    if (pick(2)) {
        assert_int_equal(tsr_spec_add_dim(p, axis, NULL, cuts, 1), TSR_OK);
        return cuts[0];
    }
    tsr_dim sizes[2] = {{size, ""}, {SIDE / size, ""}};
    cuts[0] = 1 + pick(2);
    cuts[1] = 1 + pick(2);
    if (pick(3) == 0)
        sizes[pick(2)] = (tsr_dim){-1, ""};
    assert_int_equal(tsr_spec_add_dim(p, axis, sizes, cuts, 2), TSR_OK);
    return cuts[0] * cuts[1];
}

// Adds devices or groups for that many shards.
static void add_random_owners(tsr_spec *p, int64_t shards)
{
    int64_t list[256], members[3], key = 0;
    for (int64_t k = 0; k < shards; k++) {
        list[k] = pick(DEVICES);
        if (pick(3))
            continue;
        int64_t first = pick(DEVICES / 4), n = 1 + pick(3);
        for (int64_t i = 0; i < n; i++)
            members[i] = first + 3 * i;
        list[k] = --key;
        assert_int_equal(tsr_spec_add_group(p, key, members, (size_t)n), TSR_OK);
    }
    assert_int_equal(tsr_spec_set_devices(p, list, (size_t)shards), TSR_OK);
}

// Shards some of the axes in any order, each counted from either end.
static tsr_spec *random_spec(struct chain *c, int rank)
{
    int order[4] = {0, 1, 2, 3};
    int64_t shards = 1;
    tsr_spec *p = tsr_node_add_spec(c->node, c->config, c->value);
    for (int i = rank - 1; i > 0; i--) {
        int j = (int)pick(i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int i = 0; i < rank; i++)
        if (pick(2))
            shards *= add_random_dim(p, pick(2) ? order[i] : order[i] - rank);
    add_random_owners(p, shards);
    return p;
}

static struct tile_layout *layout_of(struct arena *a, const tsr_spec *p, int rank)
{
    tsr_dim dims[8];
    for (int d = 0; d < rank; d++)
        dims[d] = (tsr_dim){SIDE, ""};
    struct shape shape = {TSR_FLOAT, rank, dims};
    struct tile_layout *l = NULL;
    assert_int_equal(tsr__spec_layout(a, p, &shape, false, &l), TSR_OK);
    return l;
}

static void printed_and_read_again(void **state)
{
    struct bench *b = *state;
    size_t counts[3] = {0}; // texts with "...", with @, with neither
    for (int trial = 0; trial < 4000; trial++) {
        enum known known = (enum known)(trial % KNOWN_COUNT);
        int rank = 1 + (int)pick(4);
        struct chain one = chain_new(b, known, rank), two = chain_new(b, known, rank);
        tsr_spec *p = random_spec(&one, rank);
        struct arena a;
        tsr__arena_init(&a, b->session);
        for (tsr_notation n = TSR_NOTATION_TILES; n <= TSR_NOTATION_SETS; n++) {
            const char *text = NULL;
            assert_int_equal(tsr_spec_text_as(p, n, &text), TSR_OK);
            if (tsr_node_shard_text(two.node, two.value, two.config, text) != TSR_OK)
                fail_msg("%s: %s", text, tsr_finding_value(b->session, 0).message);
            const tsr_spec *back = tsr_node_sharding_of(two.node, two.value, 0);
            if (!tsr__layout_equal(layout_of(&a, p, rank), layout_of(&a, back, rank)))
                fail_msg("trial %d: %s is read as another sharding", trial, text);
            counts[strstr(text, "...") ? 0 : strchr(text, '@') ? 1 : 2]++;
        }
        tsr__arena_free(&a);
        tsr_model_free(one.model);
        tsr_model_free(two.model);
    }
    for (size_t i = 0; i < TSR_COUNT(counts); i++)
        assert_true(counts[i] > 100);
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 0);
}

// Strings of the published documents and their meaning here, on 4 devices in a line or a 2 x 2
// mesh.
static void strings_of_meshes(void **state)
{
    static const struct {
        const char *mesh, *text, *tiles, *letters, *sets;
    } cases[] = {
        {NULL, "SR", "{4,1:0,1,2,3}", "SR@4", "({0},{})@4"},
        {NULL, "RS", "{1,4:0,1,2,3}", "RS@4", "({},{0})@4"},
        {NULL, "RR", "{1,1:0,1,2,3}", "RR@4", "({},{})@4"},
        {NULL, "({0},{})", "{4,1:0,1,2,3}", "SR@4", "({0},{})@4"},
        {NULL, "({0,1},{})@2x2", "{4,1:0,1,2,3}", "SR@4", "({0},{})@4"},
        {"2x2", "({0,1},{})", "{4,1:0,1,2,3}", "S01,R@2x2", "({0,1},{})@2x2"},
        {"2x2", "({1,0},{})", "{4,1:0,1,2,3}", "S01,R@2x2", "({0,1},{})@2x2"},
        {"2x2", "({},{1,0})", "{1,4:0,1,2,3}", "R,S01@2x2", "({},{0,1})@2x2"},
        {"2x2", "(S^{1,0}, R)", "{4,1:0,1,2,3}", "S01,R@2x2", "({0,1},{})@2x2"},
        {"2x2", "S10,R", "{4,1:0,2,1,3}", "S10,R@2x2", "({0},{})@4:0,2,1,3"}, // not a set of axes
        {"2x2", "({0}, {1})", "{2,2:0,1,2,3}", "S0,S1@2x2", "({0},{1})@2x2"},
        {"2x2", "({1}, {0})", "{2,2:0,2,1,3}", "S1,S0@2x2", "({1},{0})@2x2"},
        {"2x2", "({}, {0,1})", "{1,4:0,1,2,3}", "R,S01@2x2", "({},{0,1})@2x2"},
        {"2x2", "(S^{0,1}, R)", "{4,1:0,1,2,3}", "S01,R@2x2", "({0,1},{})@2x2"},
        {"2x2", "(S^0, S^1)", "{2,2:0,1,2,3}", "S0,S1@2x2", "({0},{1})@2x2"},
        {"2x2", "S1R", "{2,1:(0,2),(1,3)}", "S1,R@2x2", "({1},{})@2x2"},
        {"2x2", "S0...", "{2,1:(0,1),(2,3)}", "S0,R@2x2", "({0},{})@2x2"},
        {"2x2", "{2,1:3,1}", "{2,1:3,1}", "SR@2:3,1", "({0},{})@2:3,1"},
        {"2x2", "{2,1:(0,1),2}", "{2,1:(0,1),2}", "{2,1:(0,1),2}", "{2,1:(0,1),2}"},
        {"2x3", "SR", "{4,1:0,1,2,3}", "SR@4", "({0},{})@4"}, // another number of devices: a line
    };
    struct bench *b = *state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct small s = small_new(b, 2, I(8, 8));
        assert_int_equal(tsr_model_set_metadata(s.model, META_MESH "c", cases[i].mesh), TSR_OK);
        if (tsr_node_shard_text(s.node, s.x, s.config, cases[i].text) != TSR_OK)
            fail_msg("%s: %s", cases[i].text, tsr_finding_value(b->session, 0).message);
        const tsr_spec *p = tsr_node_sharding_of(s.node, s.x, 0);
        const char *want[] = {cases[i].tiles, cases[i].letters, cases[i].sets}, *text = NULL;
        for (size_t k = 0; k < TSR_COUNT(want); k++) {
            assert_int_equal(tsr_spec_text_as(p, (tsr_notation)k, &text), TSR_OK);
            assert_string_equal(text, want[k]);
        }
        tsr_model_free(s.model);
    }
}

static void wrong_mesh_strings_are_told(void **state)
{
    static const struct {
        const char *text, *what;
        tsr_status status;
    } cases[] = {
        {"SS", "mesh axis 0 is used twice", TSR_INVALID},
        {"SR@2x2", "S without a number needs a mesh of one axis", TSR_INVALID},
        {"({0,1},{2})", "the mesh has no axis 1", TSR_INVALID},
        {"({0},{}", "expected , or ) after a dimension", TSR_MALFORMED},
        {"({0,},{})", "expected the number of a mesh axis", TSR_MALFORMED},
        {"({0;1},{})", "expected , or } after an axis", TSR_MALFORMED},
        {"S^,R", "expected the number of a mesh axis after ^", TSR_MALFORMED},
        {"SRR", "3 dimensions are written, but the value has 2", TSR_INVALID},
        {"{2,...,...:0,1}", "a sharding may contain ... only once", TSR_MALFORMED},
        {"{2,..:0,1}", "expected '...' (three dots) for the unsharded dimensions", TSR_MALFORMED},
        {"{2,1,...,1:0,1}", "the pattern has 3 entries", TSR_INVALID},
    };
    struct bench *b = *state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        struct small s = small_new(b, 2, I(8, 8));
        assert_int_equal(tsr_node_shard_text(s.node, s.x, s.config, cases[i].text),
                         cases[i].status);
        assert_non_null(strstr(tsr_finding_value(b->session, 0).message, cases[i].what));
        tsr_finding_clear(b->session);
        tsr_model_free(s.model);
    }
}

// Ranks that printing caches with a model must be updated after an edit.
static void ranks_follow_edits(void **state)
{
    struct bench *b = *state;
    struct chain c = chain_new(b, INFERRED, 3);
    const char *text = NULL;
    assert_int_equal(tsr_node_shard_text(c.node, c.value, c.config, "{2,...:0,1}"), TSR_OK);
    const tsr_spec *p = tsr_node_sharding_of(c.node, c.value, 0);
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    assert_string_equal(text, "{2,1,1:0,1}");
    tsr_value *x = tsr_graph_input(tsr_model_graph(c.model), 0);
    set_shape(x, 2, I(4, 4));
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    assert_string_equal(text, "{2,1:0,1}");
    tsr_model_free(c.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed_and_read_again),
        cmocka_unit_test(strings_of_meshes),
        cmocka_unit_test(wrong_mesh_strings_are_told),
        cmocka_unit_test(ranks_follow_edits),
    };
    return cmocka_run_group_tests_name("inverse", tests, bench_setup, bench_teardown);
}
