// SPDX-License-Identifier: Apache-2.0
// test_faults.c - lets each allocation, read and write fail while a model is loaded, edited and
// saved. There must be no crash and no leak (sanitizers check); failures must be reported; no
// incomplete file may remain.
#include "base/base.h"
#include "../api/help.h"

#include <sys/stat.h>
#include <unistd.h>

#define ROUNDS 4000

static char folder[] = "/tmp/tessera-test-XXXXXX";
static char source[300], target[300];
static char apart[300], away[300],
    saved_away[300]; // a model with data files, and a folder without them

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
        tsr__session_fault(s, kind, n, sticky);
        done = all_of_it(s);
        tsr__session_fault(s, kind, 0, false);
        if (!done) {
            assert_true(tsr_finding_total(s, TSR_ERROR) > 0);
            assert_int_equal(access(target, F_OK), -1);
        } else {
            assert_int_equal(access(target, F_OK), 0);
            assert_int_equal(tsr_finding_total(s, TSR_ERROR), 0);
        }
        tsr_session_free(s);
    }
    assert_true(done); // without any failure everything works
}

static void test_memory(void **state)
{
    (void)state;
    every(0, false);
}
// Like test_memory, but all later allocations fail too.
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

// A tensor with external data; location NULL: malformed, it has no location.
static struct msg external_tensor(const char *name, const char *location)
{
    struct msg tensor = {.n = 0}, entry = {.n = 0};
    msg_int(&tensor, 1, 4);
    msg_int(&tensor, 2, TSR_FLOAT);
    msg_text(&tensor, 8, name);
    msg_text(&entry, 1, "location");
    if (location) {
        msg_text(&entry, 2, location);
        msg_msg(&tensor, 13, &entry);
    }
    msg_int(&tensor, 14, 1);
    return tensor;
}

// A successful save must report one warning about missing data files and no error, neither about
// the tensor without a location nor about memory.
static void test_saved_without_its_data(void **state)
{
    (void)state;
    tsr_status st = TSR_NOMEM;
    for (uint64_t n = 1; n < ROUNDS && st != TSR_OK; n++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_model *m = NULL;
        tsr__session_fault(s, 0, n, false);
        st = tsr_model_load(s, apart, &m);
        if (st == TSR_OK)
            st = tsr_model_save(m, saved_away);
        tsr__session_fault(s, 0, 0, false);
        assert_int_equal(access(saved_away, F_OK), st == TSR_OK ? 0 : -1);
        assert_int_equal(tsr_finding_total(s, TSR_ERROR) > 0, st != TSR_OK);
        assert_int_equal(tsr_finding_total(s, TSR_WARNING), st == TSR_OK);
        tsr_model_free(m);
        tsr_session_free(s);
    }
    assert_int_equal(st, TSR_OK);
}

static void put(const char *path, const struct msg *file)
{
    FILE *f = fopen(path, "wb");
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
    put(source, &file);
    struct msg graph = {.n = 0}, lost = external_tensor("lost", NULL),
               kept = external_tensor("kept", "w.bin"), model = {.n = 0};
    msg_msg(&graph, 5, &lost);
    msg_msg(&graph, 5, &kept);
    msg_msg(&model, 7, &graph);
    snprintf(apart, sizeof(apart), "%s/apart.onnx", folder);
    snprintf(away, sizeof(away), "%s/away", folder);
    snprintf(saved_away, sizeof(saved_away), "%s/away/out.onnx", folder);
    put(apart, &model);
    return mkdir(away, 0777);
}

static int clean(void **state)
{
    (void)state;
    remove(source);
    remove(target);
    remove(apart);
    remove(saved_away);
    remove(away);
    return rmdir(folder); // fails if a file remains
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_for_good),
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_writes),
        cmocka_unit_test(test_saved_without_its_data),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
