// SPDX-License-Identifier: Apache-2.0
// test_whole.c - which model file an engine gets: an old engine must never get IR version 11.
#include "runtime/job.h"

#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    tsr_session *session;
    char folder[32], path[64];
};

// y = relu(x) of that IR version, annotated if the version allows it.
static void setup(struct fixture *f, int64_t ir)
{
    tsr_model *m;
    tsr_config *c;
    const tsr_dim dims[] = {{4, ""}, {2, ""}};
    const char *outputs[] = {"y"};
    *f = (struct fixture){.session = tsr_session_new(NULL), .folder = "/tmp/tessera-test-XXXXXX"};
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof f->path, "%s/model.onnx", f->folder);
    assert_int_equal(tsr_model_new(f->session, "g", ir, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *x = tsr_graph_add_input(g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    tsr_node *n = tsr_graph_add_node(g, "", "Relu", "relu", &x, 1, outputs, 1);
    assert_int_equal(tsr_graph_add_output(g, tsr_node_output(n, 0)), TSR_OK);
    if (ir >= 11) {
        assert_int_equal(tsr_model_add_config(m, "two", 2, NULL, 0, &c), TSR_OK);
        assert_int_equal(tsr_node_shard_text(n, x, c, "{2,1}"), TSR_OK);
    }
    assert_int_equal(tsr_model_save(m, f->path), TSR_OK);
    tsr_model_free(m);
}

static void teardown(struct fixture *f)
{
    unlink(f->path);
    assert_int_equal(rmdir(f->folder), 0); // no file was left next to the model
    tsr_session_free(f->session);
}

static void own_file(int64_t ir, int minor)
{
    struct fixture f;
    struct unsharded_file w;
    setup(&f, ir);
    assert_int_equal(tsr__unsharded_open(f.session, minor, f.path, NULL, &w), TSR_OK);
    assert_string_equal(w.path, f.path);
    tsr__unsharded_close(&w);
    teardown(&f);
}

// Arguments: IR version of the model, minor version of the engine.
static void engines_that_know_it_get_the_file_itself(void **state)
{
    (void)state;
    own_file(11, 23);
    own_file(11, 31);
    own_file(10, 18);
    own_file(9, 17);
}

static void copy_for(int minor, int64_t ir)
{
    struct fixture f;
    struct unsharded_file w;
    tsr_model *m;
    struct stat info;
    setup(&f, 11);
    assert_int_equal(tsr__unsharded_open(f.session, minor, f.path, NULL, &w), TSR_OK);
    assert_string_not_equal(w.path, f.path);
    assert_int_equal(tsr_model_load(f.session, w.path, &m), TSR_OK);
    assert_int_equal(tsr_model_ir_version(m), ir);
    assert_int_equal(tsr_model_config_count(m), 0);
    assert_int_equal(tsr_node_config_count(tsr_graph_first(tsr_model_graph(m))), 0);
    assert_string_equal(tsr_node_op(tsr_graph_first(tsr_model_graph(m))), "Relu");
    tsr_model_free(m);
    char folder[TEMPORARY_PATH];
    snprintf(folder, sizeof folder, "%s", w.folder->path);
    assert_int_equal(stat(folder, &info), 0);
    tsr__unsharded_close(&w);
    assert_int_not_equal(stat(folder, &info), 0);
    teardown(&f);
}

static void old_engines_get_a_copy_without_annotations(void **state)
{
    (void)state;
    copy_for(22, 10);
    copy_for(18, 10);
    copy_for(17, 9);
}

static void what_cannot_be_read_or_written_is_told(void **state)
{
    (void)state;
    struct fixture f;
    struct unsharded_file w;
    setup(&f, 11);
    assert_int_equal(tsr__unsharded_open(f.session, 21, "/tmp/tessera-no-such.onnx", NULL, &w),
                     TSR_IO);
    tsr__unsharded_close(&w);
    assert_string_equal(tsr_finding_value(f.session, 0).code, "io-open");
    tsr_finding_clear(f.session);
    tsr__session_fault(f.session, FAULT_WRITE, 1, false);
    assert_int_equal(tsr__unsharded_open(f.session, 21, f.path, NULL, &w), TSR_WRITE);
    tsr__unsharded_close(&w);
    assert_string_equal(tsr_finding_value(f.session, 0).code, "io-write");
    teardown(&f);
}

// A kind of device selects the best provider for it; other names are not kinds.
static void kinds_of_devices(void **state)
{
    (void)state;
    static char cuda[] = "CUDAExecutionProvider", cpu[] = "CPUExecutionProvider",
                rocm[] = "ROCMExecutionProvider", qnn[] = "QNNExecutionProvider";
    char *const all[] = {rocm, cuda, qnn, cpu}, *const none[] = {cpu};
    assert_string_equal(tsr__kind_provider(STR("GPU"), all, 4), "CUDA");
    assert_string_equal(tsr__kind_provider(STR("gpu"), all, 1), "ROCM");
    assert_string_equal(tsr__kind_provider(STR("NPU"), all, 4), "QNN");
    assert_null(tsr__kind_provider(STR("GPU"), none, 1));
    assert_null(tsr__kind_provider(STR("CPU"), all, 4));
    assert_null(tsr__kind_provider(STR("GPUS"), all, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_of_devices),
        cmocka_unit_test(engines_that_know_it_get_the_file_itself),
        cmocka_unit_test(old_engines_get_a_copy_without_annotations),
        cmocka_unit_test(what_cannot_be_read_or_written_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
