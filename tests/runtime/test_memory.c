// SPDX-License-Identifier: Apache-2.0
// test_memory.c - lets each allocation of tensor sets and of a job's setup fail once: the result
// must be TSR_NOMEM, without leaks or incomplete results.
#include "runtime/internal.h"
#include "bundle/bundle.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <setjmp.h>
#include <cmocka.h>

#define MOST 500 // allocations of one piece of work; more mean an endless loop

// Does the work with the n-th allocation failing, n = 1, 2, ..., until all succeed.
static void torture(tsr_status (*work)(tsr_session *s, void *data), void *data)
{
    for (uint64_t n = 1; n < MOST; n++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr__session_fault(s, FAULT_ALLOC, n, false);
        tsr_status st = work(s, data);
        bool reached = s->fault_seen[FAULT_ALLOC] >= n;
        tsr__session_fault(s, FAULT_ALLOC, 0, false);
        if (reached)
            assert_int_equal(st, TSR_NOMEM);
        else
            assert_int_equal(st, TSR_OK);
        tsr_session_free(s);
        if (!reached)
            return;
    }
    fail_msg("more than %d allocations", MOST);
}

static tsr_status fill(tsr_session *s, tsr_tensors **out)
{
    static const float x[6] = {1, 2, 3, 4, 5, 6};
    int64_t dims[2] = {2, 3};
    char name[16];
    tsr_status st = tsr_tensors_new(s, out);
    for (int i = 0; i < 20 && st == TSR_OK; i++) {
        snprintf(name, sizeof name, "t%d", i % 18); // some names are put twice
        st = tsr_tensors_put(*out, name, TSR_FLOAT, 2, dims, i % 2 ? x : NULL);
    }
    return st;
}

static tsr_status put_work(tsr_session *s, void *data)
{
    (void)data;
    tsr_tensors *t = NULL;
    tsr_status st = fill(s, &t);
    if (st == TSR_OK)
        assert_int_equal(tsr_tensors_count(t), 18);
    tsr_tensors_free(t);
    return st;
}

static tsr_status borrow_work(tsr_session *s, void *data)
{
    static const float mine[3] = {1, 2, 3};
    int64_t dims[1] = {3};
    size_t bytes;
    tsr_tensors *t = NULL;
    (void)data;
    tsr_status st = tsr_tensors_new(s, &t);
    if (st == TSR_OK)
        st = tsr_tensors_borrow(t, "x", TSR_FLOAT, 1, dims, mine);
    if (st == TSR_OK) {
        assert_ptr_equal(tsr_tensors_data(t, 0, &bytes), mine);
        assert_int_equal(bytes, sizeof mine);
    }
    tsr_tensors_free(t);
    return st;
}

// Tensors that borrow the caller's memory.
static void borrowed_where_it_lies(void **state)
{
    (void)state;
    torture(borrow_work, NULL);
}

static tsr_status save_work(tsr_session *s, void *data)
{
    tsr_tensors *t = NULL;
    unlink(data);
    tsr_status st = fill(s, &t);
    if (st == TSR_OK)
        st = tsr_tensors_save(t, data);
    assert_int_equal(access(data, F_OK) == 0, st == TSR_OK); // complete or not at all
    tsr_tensors_free(t);
    return st;
}

static tsr_status load_work(tsr_session *s, void *data)
{
    tsr_tensors *t = NULL;
    tsr_status st = tsr_tensors_new(s, &t);
    if (st == TSR_OK)
        st = tsr_tensors_load(t, data, NULL, false);
    tsr_tensors_free(t);
    return st;
}

static tsr_status job_work(tsr_session *s, void *data)
{
    (void)data;
    struct thread_job *j = tsr__threads_new(s, 5);
    tsr__threads_free(j);
    return j ? TSR_OK : TSR_NOMEM;
}

static void test_put(void **state)
{
    (void)state;
    torture(put_work, NULL);
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/tessera-test-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/set.npz", folder);
    torture(save_work, file);
    torture(load_work, file);
    unlink(file);
    assert_int_equal(rmdir(folder), 0); // no temporary file remains
}

static void test_job(void **state)
{
    (void)state;
    torture(job_work, NULL);
}

// A session may have a memory limit: a set that exceeds it must be rejected.
static void test_limit(void **state)
{
    (void)state;
    tsr_session_options o = {.size = sizeof o, .memory_limit = 1 << 20};
    tsr_session *s = tsr_session_new(&o);
    tsr_tensors *t = NULL;
    int64_t big = 1 << 20;
    assert_int_equal(tsr_tensors_new(s, &t), TSR_OK);
    assert_int_equal(tsr_tensors_put(t, "x", TSR_FLOAT, 1, &big, NULL), TSR_NOMEM);
    assert_int_equal(tsr_tensors_count(t), 0);
    tsr_tensors_free(t);
    tsr_session_free(s);
}

// Weights that fill the memory of the machine are not copied for packing; small ones are.
static void test_large_weights(void **state)
{
    (void)state;
    int64_t memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    struct manifest_device devices[2] = {{.weight_bytes = memory / 6},
                                         {.weight_bytes = memory / 6}};
    struct manifest m = {.n_ranks = 2, .devices = devices};
    assert_true(tsr__weights_are_large(&m, -1));
    assert_false(tsr__weights_are_large(&m, 1));
    devices[0].weight_bytes = devices[1].weight_bytes = 0;
    assert_false(tsr__weights_are_large(&m, -1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borrowed_where_it_lies),
        cmocka_unit_test(test_large_weights),
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_job),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
