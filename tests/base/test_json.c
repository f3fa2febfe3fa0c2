// SPDX-License-Identifier: Apache-2.0
// test_json.c - the JSON writer: layout, escapes, misuse, diagnostics. jansson reads the results.
#include "scratch.h"

#include "tessera_json.h"

#include <jansson.h>
#include <math.h>

static void layout(void **state)
{
    struct scratch *t = *state;
    tsr_json *j = tsr_json_new(t->s);
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "name", "x");
    tsr_json_string(j, "absent", NULL);
    tsr_json_begin(j, "dims", '[');
    tsr_json_int(j, NULL, 1);
    tsr_json_int(j, NULL, INT64_MIN);
    tsr_json_string(j, NULL, "a, b");
    tsr_json_end(j);
    tsr_json_begin(j, "empty", '[');
    tsr_json_end(j);
    tsr_json_begin(j, "list", '[');
    tsr_json_begin(j, NULL, '{');
    tsr_json_end(j);
    tsr_json_begin(j, NULL, '{');
    tsr_json_bool(j, "yes", true);
    tsr_json_number(j, "nan", NAN);
    tsr_json_number(j, "inf", -INFINITY);
    tsr_json_number(j, "half", 0.5);
    tsr_json_end(j);
    tsr_json_end(j);
    tsr_json_end(j);
    assert_string_equal(tsr_json_text(j), "{\n"
                                          "  \"name\": \"x\",\n"
                                          "  \"absent\": null,\n"
                                          "  \"dims\": [1, -9223372036854775808, \"a, b\"],\n"
                                          "  \"empty\": [],\n"
                                          "  \"list\": [\n"
                                          "    {},\n"
                                          "    {\n"
                                          "      \"yes\": true,\n"
                                          "      \"nan\": null,\n"
                                          "      \"inf\": null,\n"
                                          "      \"half\": 0.5\n"
                                          "    }\n"
                                          "  ]\n"
                                          "}\n");
    assert_ptr_equal(tsr_json_text(j), tsr_json_text(j));
    tsr_json_free(j);
    assert_int_equal(t->s->memory_used, sizeof *t->s);
}

static void long_arrays_keep_their_lines(void **state)
{
    struct scratch *t = *state;
    tsr_json *j = tsr_json_new(t->s);
    tsr_json_begin(j, NULL, '[');
    for (int i = 0; i < 100; i++)
        tsr_json_int(j, NULL, i);
    tsr_json_end(j);
    assert_memory_equal(tsr_json_text(j), "[\n  0,\n  1,\n", 12);
    tsr_json_free(j);
}

static char *round_trip(tsr_session *s, const char *value)
{
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, value, value); // as key too
    tsr_json_end(j);
    json_error_t error;
    json_t *read = json_loads(tsr_json_text(j), 0, &error);
    if (!read)
        fail_msg("%s in %s", error.text, tsr_json_text(j));
    const char *key = json_object_iter_key(json_object_iter(read));
    char *copy = strdup(json_string_value(json_object_iter_value(json_object_iter(read))));
    assert_string_equal(key, copy);
    json_decref(read);
    tsr_json_free(j);
    return copy;
}

static void escapes(void **state)
{
    struct scratch *t = *state;
    const char *same[] = {"",
                          "plain",
                          "\"quoted\" \\ / ",
                          "tab\t nl\n cr\r bell\a esc\x1b del\x7f",
                          "\xc3\xbc \xe6\xbc\xa2 \xf0\x9f\x98\x80",
                          "\xe2\x80\xa8 \xe2\x80\xa9",
                          "</script>"};
    for (size_t i = 0; i < TSR_COUNT(same); i++) {
        char *back = round_trip(t->s, same[i]);
        assert_string_equal(back, same[i]);
        free(back);
    }
    char *broken = round_trip(t->s, "a\xff b\xc3 c\xed\xa0\x80 d");
    assert_string_equal(broken, "a\\xFF b\\xC3 c\\xED\\xA0\\x80 d");
    free(broken);
    unsigned seed = 3;
    for (int round = 0; round < 3000; round++) { // any bytes must give a valid document
        char bytes[20];
        for (size_t i = 0; i < sizeof bytes - 1; i++)
            bytes[i] = (char)((seed = seed * 1103515245 + 12345) >> 16 | 1);
        bytes[19] = 0;
        free(round_trip(t->s, bytes));
    }
}

static void numbers(void **state)
{
    struct scratch *t = *state;
    const double values[] = {0,      1,       -1,        0.1, 1e-300, 1.7976931348623157e308,
                             5e-324, 1.0 / 3, 12345678.9};
    tsr_json *j = tsr_json_new(t->s);
    tsr_json_begin(j, NULL, '[');
    for (size_t i = 0; i < TSR_COUNT(values); i++)
        tsr_json_number(j, NULL, values[i]);
    tsr_json_end(j);
    json_t *read = json_loads(tsr_json_text(j), 0, NULL);
    assert_non_null(read);
    for (size_t i = 0; i < TSR_COUNT(values); i++)
        assert_true(json_number_value(json_array_get(read, i)) == values[i]);
    json_decref(read);
    tsr_json_free(j);
}

static void misuse_gives_no_text(void **state)
{
    struct scratch *t = *state;
    for (int wrong = 0; wrong < 9; wrong++) {
        tsr_json *j = tsr_json_new(t->s);
        if (wrong == 0) {
            tsr_json_begin(j, NULL, '{'); // never ended
        } else if (wrong == 1) {
            tsr_json_end(j);
        } else if (wrong == 2) {
            tsr_json_begin(j, NULL, '{');
            tsr_json_int(j, NULL, 1); // no key
            tsr_json_end(j);
        } else if (wrong == 3) {
            tsr_json_begin(j, NULL, '[');
            tsr_json_int(j, "key", 1);
            tsr_json_end(j);
        } else if (wrong == 4) {
            tsr_json_int(j, NULL, 1);
            tsr_json_int(j, NULL, 2); // a second document
        } else if (wrong == 5) {
            tsr_json_begin(j, NULL, '(');
            tsr_json_end(j);
        } else if (wrong == 6) {
            for (int i = 0; i < 1000; i++)
                tsr_json_begin(j, NULL, '[');
            for (int i = 0; i < 1000; i++)
                tsr_json_end(j);
        } else if (wrong == 7) {
            tsr_json_int(j, "key", 1); // outside an object
        }                              // 8: nothing at all
        assert_null(tsr_json_text(j));
        tsr_json_free(j);
    }
    assert_null(tsr_json_text(NULL));
    tsr_json_int(NULL, "a", 1);
    tsr_json_findings(NULL, "a");
    tsr_json_free(NULL);
}

static void findings(void **state)
{
    struct scratch *t = *state;
    struct place at = PLACE_NONE;
    tsr__diag(t->s, DIAG_io_open, &at, NULL, "bare");
    at = (struct place){STR("f.onnx"), 7, STR("main"), 3, STR("n\xff"), STR("Add"),
                        STR("v"),      0, STR("tp"),   2, STR("")};
    tsr__diag(t->s, DIAG_io_read, &at, "do this", "full");
    tsr_json *j = tsr_json_new(t->s);
    tsr_json_begin(j, NULL, '{');
    tsr_json_findings(j, "findings");
    tsr_json_end(j);
    assert_string_equal(
        tsr_json_text(j),
        "{\n  \"findings\": [\n    {\n"
        "      \"code\": \"io-open\",\n      \"severity\": \"error\",\n"
        "      \"message\": \"bare\",\n      \"hint\": null,\n      \"node\": null,\n"
        "      \"value\": null,\n      \"axis\": null,\n      \"configuration\": null,\n"
        "      \"file\": null,\n      \"offset\": null,\n      \"graph\": null,\n"
        "      \"op\": null,\n      \"node_index\": null,\n      \"rank\": null\n    },\n    {\n"
        "      \"code\": \"io-read\",\n      \"severity\": \"error\",\n"
        "      \"message\": \"full\",\n      \"hint\": \"do this\",\n"
        "      \"node\": \"n\\\\xFF\",\n      \"value\": \"v\",\n      \"axis\": 0,\n"
        "      \"configuration\": \"tp\",\n      \"file\": \"f.onnx\",\n      \"offset\": 7,\n"
        "      \"graph\": \"main\",\n      \"op\": \"Add\",\n      \"node_index\": 3,\n"
        "      \"rank\": 2\n    }\n  ]\n}\n");
    tsr_json_free(j);
}

static void no_memory(void **state)
{
    struct scratch *t = *state;
    tsr__diag(t->s, DIAG_io_open, NULL, NULL, "something");
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        tsr__session_fault(t->s, 0, n, false);
        tsr_json *j = tsr_json_new(t->s);
        tsr_json_begin(j, NULL, '{');
        tsr_json_findings(j, "findings");
        tsr_json_end(j);
        failed = t->s->fault_seen[0] >= n;
        assert_true((tsr_json_text(j) == NULL) == failed);
        tsr_json_free(j);
    }
}

// A record with every kind of field; conditional fields occur with and without a value.
struct leaf {
    int rank;
    const char *name;
};
struct tree {
    bool yes;
    int64_t big, unknown;
    size_t n_leaves, n_times;
    int axis, count;
    double seconds;
    const char *text;
    tsr_severity severity;
    const int64_t *sizes;
    const double *times;
    const struct leaf *leaves;
    struct leaf root;
};

// What a sink has received, and in how many pieces.
struct received {
    char text[1 << 20];
    size_t n, pieces, longest;
};

static void receive(void *data, const char *p, size_t n)
{
    struct received *received = data;
    assert_true(n <= sizeof received->text - received->n - 1);
    memcpy(received->text + received->n, p, n);
    received->n += n;
    received->pieces++;
    received->longest = n > received->longest ? n : received->longest;
}

// Writes nested lists: short ones, which are on one line, a long one, and texts.
static void write_lists(tsr_json *j)
{
    tsr_json_begin(j, NULL, '{');
    tsr_json_begin(j, "rows", '[');
    for (int i = 0; i < 4000; i++) {
        tsr_json_begin(j, NULL, '[');
        for (int k = 0; k < i % 30; k++)
            tsr_json_int(j, NULL, k);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_begin(j, "long", '[');
    for (int i = 0; i < 20000; i++)
        tsr_json_int(j, NULL, i);
    tsr_json_end(j);
    tsr_json_string(j, "end", "x");
    tsr_json_end(j);
}

// A sink must receive in pieces what a document without a sink has as its text.
static void streamed(void **state)
{
    static struct received received;
    struct scratch *t = *state;
    received = (struct received){.n = 0};
    tsr_json *kept = tsr_json_new(t->s), *j = tsr_json_new(t->s);
    tsr__json_stream(j, receive, &received);
    write_lists(kept);
    write_lists(j);
    assert_int_equal(tsr__json_finish(j), TSR_OK);
    received.text[received.n] = 0;
    assert_string_equal(received.text, tsr_json_text(kept));
    assert_true(received.pieces > 5);
    assert_true(received.longest < 100000);
    tsr_json_free(kept);
    tsr_json_free(j);
    tsr_json *open = tsr_json_new(t->s);
    tsr__json_stream(open, receive, &received);
    tsr_json_begin(open, NULL, '{');
    assert_int_equal(tsr__json_finish(open), TSR_NOMEM);
    tsr_json_free(open);
}

static void records(void **state)
{
    static const char *const severities[] = {"error", "warning", "note"};
    static const tsr_json_field leaf_fields[] = {
        {JSON_NEGATIVE_AS_NULL(struct leaf, "rank", rank)},
        {JSON_IF_KNOWN(struct leaf, "name", name)},
        {JSON_END},
    };
    static const tsr_json_field tree_fields[] = {
        {JSON_FIELD(struct tree, "yes", yes)},
        {JSON_FIELD(struct tree, "big", big)},
        {JSON_OR_NULL(struct tree, "unknown", unknown)},
        {JSON_IF_KNOWN(struct tree, "left_out", unknown)},
        {JSON_UNLESS_NEGATIVE(struct tree, "axis", axis)},
        {JSON_FIELD(struct tree, "seconds", seconds)},
        {JSON_MS(struct tree, "ms", seconds)},
        {JSON_FIELD(struct tree, "text", text)},
        {JSON_NAME(struct tree, "severity", severity, severities)},
        {JSON_LIST_OR_NULL(struct tree, "sizes", sizes, count)},
        {JSON_LIST(struct tree, "times", times, n_times)},
        {JSON_RECORD(struct tree, "root", root, leaf_fields)},
        {JSON_RECORDS(struct tree, "leaves", leaves, n_leaves, leaf_fields)},
        {JSON_RECORDS_IF_ANY(struct tree, "none", leaves, n_times, leaf_fields)},
        {JSON_END},
    };
    struct scratch *t = *state;
    const int64_t sizes[] = {3, 0};
    const struct leaf leaves[] = {{-1, "a"}, {0, NULL}};
    struct tree tree = {.yes = true,
                        .big = 1,
                        .axis = -1,
                        .count = 2,
                        .seconds = 0.5,
                        .severity = TSR_NOTE,
                        .sizes = sizes,
                        .leaves = leaves,
                        .n_leaves = 2};
    tsr_json *j = tsr_json_new(t->s);
    tsr_json_begin(j, NULL, '[');
    tsr_json_record(j, NULL, tree_fields, &tree);
    tsr_json_end(j);
    json_t *read = json_loads(tsr_json_text(j), 0, NULL);
    json_t *wanted = json_loads(
        "[{\"yes\": true, \"big\": 1, \"unknown\": null, \"seconds\": 0.5, \"ms\": 500, "
        "\"text\": null, \"severity\": \"note\", \"sizes\": [3, null], \"times\": [], "
        "\"root\": {\"rank\": 0}, \"leaves\": [{\"rank\": null, \"name\": \"a\"}, {\"rank\": 0}]}]",
        0, NULL);
    assert_non_null(wanted);
    char *text = json_dumps(read, 0), *other = json_dumps(wanted, 0);
    assert_string_equal(text, other);
    free(text);
    free(other);
    json_decref(read);
    json_decref(wanted);
    tsr_json_free(j);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        T(layout),
        T(long_arrays_keep_their_lines),
        T(escapes),
        T(numbers),
        T(misuse_gives_no_text),
        T(findings),
        T(no_memory),
        T(records),
        T(streamed),
    };
    return cmocka_run_group_tests_name("base json", tests, NULL, NULL);
}
