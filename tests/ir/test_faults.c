// SPDX-License-Identifier: Apache-2.0
// test_faults.c - every allocation, read and write of a load, a round of edits and a save is made to fail in turn.
// Nothing may crash or leak (the sanitizers watch), a failure is reported, and no half file is left.
#include "../api/help.h"

#include <unistd.h>

#define ROUNDS 4000

static char folder[] = "/tmp/tessera-test-XXXXXX";
static char source[300], target[300];

static bool edit(tsr_model *m)
{
    tsr_graph *g = tsr_model_graph(m);
    tsr_config *c = NULL;
    const char *names[] = {"CPU", "GPU"};
    tsr_node *n = tsr_graph_first(g);
    tsr_value *v = tsr_node_input(n, 0), *first = v;
    if (tsr_model_add_config(m, "c", 2, names, 2, &c) || tsr_node_set_stage(n, c, 1) ||
        tsr_node_shard(n, v, c, 0, 2, IDS(0, 1), 1) || tsr_value_rename(v, "renamed") ||
        tsr_node_set_ints(n, "axes", IDS(1, 2, 3)) || tsr_node_set_string(n, "mode", "linear"))
        return false;
    tsr_spec *p = tsr_node_add_spec(n, c, tsr_node_output(n, 0));
    if (!p || tsr_spec_add_group(p, -1, IDS(0, 1)) || tsr_spec_set_devices(p, IDS(-1)) ||
        tsr_spec_add_dim(p, 0, &(tsr_dim){-1, "N"}, (int64_t[]){1}, 1))
        return false;
    tsr_node *added =
        tsr_graph_add_node(g, "", "Neg", "new", &first, 1, (const char *[]){"new"}, 1);
    if (!added || tsr_graph_add_output(g, tsr_node_output(added, 0)) ||
        tsr_node_move_before(added, n) ||
        !tsr_graph_add_initializer(g, "k", TSR_FLOAT, 0, NULL, &(float){1}, 4) ||
        tsr_value_set_type(tsr_node_output(added, 0), TSR_FLOAT, 1, &(tsr_dim){-1, "N"}) ||
        tsr_model_set_metadata(m, "key", "value") || tsr_model_set_opset(m, "x", 2))
        return false;
    tsr_model *copy = NULL;
    bool ok = tsr_model_clone(m, &copy) == TSR_OK;
    for (tsr_node *k = ok ? tsr_model_next_node(copy, NULL) : NULL; k;
         k = tsr_model_next_node(copy, k)) {
        ok = ok && tsr_value_name(tsr_node_output(k, 0))[0] && tsr_node_attr_count(k) < 100;
        (void)tsr_value_rank(tsr_node_output(k, 0));
    }
    if (ok && tsr_model_function_count(copy))
        ok = tsr_node_inline(tsr_node_next(tsr_graph_first(tsr_model_graph(copy)))) == TSR_OK;
    tsr_model_free(copy);
    return ok;
}

static bool all_of_it(tsr_session *s)
{
    tsr_model *m = NULL;
    if (tsr_model_load(s, source, &m) != TSR_OK)
        return false;
    bool ok = edit(m) && tsr_model_save(m, target) == TSR_OK;
    tsr_model_free(m);
    return ok;
}

static void every(int kind, bool sticky)
{
    bool done = false;
    for (uint64_t n = 1; n < ROUNDS && !done; n++) {
        tsr_session *s = tsr_session_new(NULL);
        remove(target);
        tsr_session_fault(s, kind, n, sticky);
        done = all_of_it(s);
        tsr_session_fault(s, kind, 0, false);
        if (!done) {
            assert_true(tsr_finding_total(s, TSR_ERROR) > 0);
            assert_int_equal(access(target, F_OK), -1);
        } else {
            assert_int_equal(access(target, F_OK), 0);
        }
        tsr_session_free(s);
    }
    assert_true(done); // past the last one everything works
}

static void test_memory(void **state)
{
    (void)state;
    every(0, false);
}
static void test_memory_for_good(void **state)
{
    (void)state;
    every(0, true);
}
static void test_reads(void **state)
{
    (void)state;
    every(1, false);
}
static void test_writes(void **state)
{
    (void)state;
    every(2, false);
}

static void put(const struct msg *file)
{
    FILE *f = fopen(source, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file->at, 1, file->n, f), file->n);
    fclose(f);
}

static int prepare(void **state)
{
    (void)state;
    struct msg entry = msg_entry("c0", "a"), conf = msg_config("c0", 2);
    struct msg file = msg_function_model(&entry, &conf);
    if (!mkdtemp(folder))
        return 1;
    snprintf(source, sizeof(source), "%s/in.onnx", folder);
    snprintf(target, sizeof(target), "%s/out.onnx", folder);
    put(&file);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    remove(source);
    remove(target);
    return rmdir(folder); // fails if anything else was left
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_for_good),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_writes),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
