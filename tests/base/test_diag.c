// SPDX-License-Identifier: Apache-2.0
// test_diag.c - diagnostics: order, limits, formatting, lack of memory; and the list of codes.
#include "scratch.h"

#include <ctype.h>

// A diagnostic must contain its complete place, and copies of the texts.
static void keeps_everything(void **state)
{
    struct scratch *t = *state;
    char node[] = "ffn/up";
    struct place at = PLACE_NONE;
    at.file = STR("mlp.onnx");
    at.graph = STR("main");
    at.node_index = 17;
    at.node = str_of(node);
    at.op = STR("MatMul");
    at.value = STR("hiden");
    at.axis = -1;
    at.configuration = STR("tp4");
    at.rank = 3;
    at.offset = 99;
    tsr__diag(t->s, DIAG_io_read, &at, "did you mean 'hidden'?", "sharding spec names '%s'",
              "hiden");
    memset(node, '!', sizeof node - 1); // it was copied
    tsr_finding f = tsr_finding_value(t->s, 0);
    assert_string_equal(f.code, "io-read");
    assert_int_equal(f.severity, TSR_ERROR);
    assert_string_equal(f.node, "ffn/up");
    assert_int_equal(f.axis, -1);
    assert_int_equal(f.node_index, 17);
    assert_int_equal(f.rank, 3);
    assert_true(f.offset == 99);
    assert_string_equal(
        tsr_finding_text(t->s, 0),
        "mlp.onnx: error[io-read]: sharding spec names 'hiden'\n"
        "  at main > #17 MatMul 'ffn/up', value 'hiden', axis -1, configuration 'tp4', "
        "rank 3, byte 99\n"
        "  help: did you mean 'hidden'?\n");
    assert_ptr_equal(tsr_finding_text(t->s, 0), tsr_finding_text(t->s, 0));
    assert_int_equal(tsr__diag_errors(t->s), 1);
}

// The text of a diagnostic contains only the parts of its place that are known.
static void says_what_is_known(void **state)
{
    struct scratch *t = *state;
    struct place at = PLACE_NONE;
    tsr__diag(t->s, DIAG_io_open, NULL, NULL, "bare");
    at.node = STR("n");
    tsr__diag(t->s, DIAG_io_open, &at, NULL, "one\ntwo");
    at = PLACE_NONE;
    at.axis = 0;
    tsr__diag(t->s, DIAG_io_open, &at, "", "axis");
    at = PLACE_NONE;
    at.graph = STR("main > then");
    at.node_index = 0;
    tsr__diag(t->s, DIAG_io_open, &at, NULL, "node");
    assert_string_equal(tsr_finding_text(t->s, 0), "error[io-open]: bare\n");
    assert_string_equal(tsr_finding_text(t->s, 1), "error[io-open]: one\n  two\n  at node 'n'\n");
    assert_string_equal(tsr_finding_text(t->s, 2), "error[io-open]: axis\n  at axis 0\n");
    assert_string_equal(tsr_finding_text(t->s, 3), "error[io-open]: node\n  at main > then > #0\n");
    assert_string_equal(tsr_finding_text(t->s, 4), "");
    assert_string_equal(tsr_finding_value(t->s, 4).code, "");
    assert_string_equal(tsr_finding_value(t->s, 0).hint, "");
    assert_int_equal(tsr_finding_value(t->s, 0).axis, INT64_MIN);
}

static void terminals_are_safe(void **state)
{
    struct scratch *t = *state;
    struct place at = PLACE_NONE;
    at.node = STR("a\x1b[2Jb\nc");
    tsr__diag(t->s, DIAG_io_open, &at, "h\xff", "m\x1b");
    assert_string_equal(tsr_finding_text(t->s, 0), "error[io-open]: m\\x1B\n"
                                                   "  at node 'a\\x1B[2Jb\\x0Ac'\n"
                                                   "  help: h\\xFF\n");
}

// Diagnostics beyond the limit are counted, but not stored.
static void bounded_in_number(void **state)
{
    struct scratch *t = *state;
    for (int i = 0; i < TSR_MAX_FINDINGS + 234; i++)
        tsr__diag(t->s, DIAG_io_open, NULL, NULL, "number %d", i);
    assert_int_equal(tsr_finding_count(t->s), TSR_MAX_FINDINGS);
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), TSR_MAX_FINDINGS + 234);
    assert_int_equal(tsr_finding_total(t->s, TSR_NOTE), 0);
    assert_int_equal(t->s->n_dropped, 234);
    for (int i = 0; i < TSR_MAX_FINDINGS; i++) {
        char want[32];
        snprintf(want, sizeof want, "number %d", i);
        assert_string_equal(tsr_finding_value(t->s, (size_t)i).message, want);
    }
    assert_null(tsr__alloc(t->s, SIZE_MAX)); // out-of-memory is stored beyond the limit
    assert_string_equal(tsr_finding_value(t->s, TSR_MAX_FINDINGS).code, "out-of-memory");
    tsr_finding_clear(t->s);
    assert_int_equal(tsr_finding_count(t->s), 0);
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 0);
    tsr__diag(t->s, DIAG_io_open, NULL, NULL, "again");
    assert_string_equal(tsr_finding_value(t->s, 0).message, "again");
}

static void bounded_in_size(void **state)
{
    struct scratch *t = *state;
    size_t n = 1 << 20;
    char *name = malloc(n + 1);
    memset(name, 'x', n);
    name[n] = 0;
    memcpy(name + 4095, "\xc3\xbc", 2); // truncation must not split a character
    struct place at = PLACE_NONE;
    at.node = (struct str){name, n};
    tsr__diag(t->s, DIAG_io_open, &at, name, "%s", name);
    tsr_finding f = tsr_finding_value(t->s, 0);
    assert_int_equal(strlen(f.node), 4095 + 3);
    assert_string_equal(f.node + 4095, "...");
    assert_true(strlen(f.message) <= 16384);
    assert_true(strlen(f.hint) <= 16384 + 3);
    assert_non_null(strstr(tsr_finding_text(t->s, 0), "help: "));
    free(name);
}

// The n-th allocation fails: the diagnostic keeps its code, and out-of-memory is reported once.
static void without_memory(void **state)
{
    struct scratch *t = *state;
    struct place at = PLACE_NONE;
    at.node = STR("node");
    at.value = STR("value");
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        tsr_finding_clear(t->s);
        tsr__session_fault(t->s, 0, n, false);
        for (int i = 0; i < 40; i++)
            tsr__diag(t->s, DIAG_io_open, &at, "hint", "message %d", i);
        failed = t->s->fault_seen[0] >= n;
        tsr__session_fault(t->s, 0, 0, false);
        size_t nomem = 0;
        for (size_t i = 0; i < tsr_finding_count(t->s); i++) {
            tsr_finding f = tsr_finding_value(t->s, i);
            nomem += strcmp(f.code, "out-of-memory") == 0;
            assert_true(f.message[0] != 0);
            assert_true(tsr_finding_text(t->s, i)[0] != 0);
        }
        assert_int_equal(nomem, failed);
        assert_int_equal(tsr_finding_count(t->s) + t->s->n_dropped, 40 + failed);
        assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 40 + failed);
    }
    tsr_finding_clear(t->s);
}

// If all allocations fail, diagnostics keep their code and a general message.
static void no_memory_at_all(void **state)
{
    struct scratch *t = *state;
    tsr__session_fault(t->s, 0, 1, true);
    for (int i = 0; i < 40; i++)
        tsr__diag(t->s, DIAG_io_open, NULL, NULL, "message");
    assert_true(tsr_finding_count(t->s) >= 2);
    for (size_t i = 0; i < tsr_finding_count(t->s); i++)
        assert_true(tsr_finding_text(t->s, i)[0] != 0);
    assert_string_equal(tsr_finding_value(t->s, 0).code, "io-open");
    assert_string_equal(tsr_finding_value(t->s, 0).message, "a file cannot be opened");
    assert_string_equal(tsr_finding_value(t->s, 1).code, "out-of-memory");
    tsr__session_fault(t->s, 0, 0, false);
    tsr__diag(t->s, DIAG_io_open, NULL, NULL, "later");
    assert_string_equal(tsr_finding_value(t->s, tsr_finding_count(t->s) - 1).message, "later");
}

// Rewinding removes diagnostics even if memory ran out meanwhile, except out-of-memory itself.
static void goes_back_without_memory(void **state)
{
    struct scratch *t = *state;
    tsr__diag(t->s, DIAG_reshard_implied, NULL, NULL, "before");
    struct diag_mark mark = tsr__diag_mark(t->s);
    tsr__diag(t->s, DIAG_io_read, NULL, NULL, "tried");
    assert_null(tsr__alloc(t->s, SIZE_MAX));
    tsr__diag(t->s, DIAG_io_read, NULL, NULL, "tried again");
    tsr__diag_back(t->s, &mark, false);
    assert_int_equal(tsr_finding_count(t->s), 2);
    assert_string_equal(tsr_finding_value(t->s, 1).code, "out-of-memory");
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 1);
    assert_int_equal(t->s->n_dropped, 0);
    tsr_finding_clear(t->s);
}

// Rewinding to a mark removes the later diagnostics; errors can be kept.
static void goes_back(void **state)
{
    struct scratch *t = *state;
    tsr__diag(t->s, DIAG_io_open, NULL, NULL, "before");
    struct diag_mark mark = tsr__diag_mark(t->s);
    for (int i = 0; i < TSR_MAX_FINDINGS; i++)
        tsr__diag(t->s, i == 5 ? DIAG_io_read : DIAG_reshard_implied, NULL, NULL, "since");
    tsr__diag_back(t->s, &mark, true);
    assert_int_equal(tsr_finding_count(t->s), 2);
    assert_string_equal(tsr_finding_value(t->s, 1).code, "io-read");
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 2);
    assert_int_equal(tsr_finding_total(t->s, TSR_NOTE), 0);
    tsr__diag_back(t->s, &mark, false);
    assert_int_equal(tsr_finding_count(t->s), 1);
    assert_int_equal(tsr_finding_total(t->s, TSR_ERROR), 1);
    tsr__diag(t->s, DIAG_io_read, NULL, NULL, "after");
    assert_string_equal(tsr_finding_value(t->s, 1).message, "after");
}

// Every code must be unique and have a title and an explanation.
static void all_codes_are_explained(void **state)
{
    (void)state;
    const char *code, *title, *explanation, *other;
    tsr_severity severity;
    size_t n = 0;
    for (; tsr_code_at(n, &code, &severity, &title, &explanation); n++) {
        for (const char *c = code; *c; c++)
            assert_true(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '-');
        assert_true(severity == TSR_ERROR || severity == TSR_WARNING || severity == TSR_NOTE);
        if (!title[0] || strlen(explanation) < 20 || explanation[strlen(explanation) - 1] != '.')
            fail_msg("%s: title or explanation is incomplete", code);
        if (title[strlen(title) - 1] == '.')
            fail_msg("%s: a title has no full stop", code);
        for (size_t i = 0; i < n; i++) {
            assert_true(tsr_code_at(i, &other, NULL, NULL, NULL));
            assert_string_not_equal(code, other);
        }
    }
    assert_int_equal(n, DIAG_COUNT);
    assert_true(tsr_code_at(DIAG_path_outside, &code, NULL, NULL, NULL));
    assert_string_equal(code, "path-outside");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        T(keeps_everything),         T(says_what_is_known),      T(terminals_are_safe),
        T(bounded_in_number),        T(bounded_in_size),         T(without_memory),
        T(no_memory_at_all),         T(all_codes_are_explained), T(goes_back),
        T(goes_back_without_memory),
    };
    return cmocka_run_group_tests_name("base diag", tests, NULL, NULL);
}
