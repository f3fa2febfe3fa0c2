// SPDX-License-Identifier: Apache-2.0
// test_nomem.c - lets each allocation fail while a model is loaded, checked, planned and
// partitioned. Each step must return TSR_NOMEM with the error out-of-memory alone, or succeed
// without that memory.
//
// Usage: test_nomem [every=N] MODEL...
//
// Each allocation fails alone (of a plan, every fourth); some fail together with all later ones.
// every=N tries only every Nth of these.
#include "../valgrind.h"
#include "base/base.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "simulate/simulate.h"
#include "help.h"

#define ALLOCATION 0    // the kind of tsr__session_fault
#define MOST       4000 // allocations of one step; more mean an endless loop

static const char **models;
static int n_models;
static uint64_t every = 1; // try every Nth allocation
static int n_wrong;        // failures with another status or error

// The model with its plan, computed once.
static void *planned_bytes;
static size_t n_planned;
static tsr_session *keeper; // owns planned_bytes

struct step {
    const char *name;
    tsr_status (*work)(tsr_session *s, tsr_model *m);
    bool planned; // needs the model with its plan
    int apart;    // try every Nth allocation of this step; 0: all
};

static tsr_status copy_model(tsr_session *s, tsr_model *m)
{
    tsr_model *copy = NULL;
    (void)s;
    tsr_status st = tsr_model_clone(m, &copy);
    tsr_model_free(copy);
    return st;
}

static tsr_status save_and_load(tsr_session *s, tsr_model *m)
{
    void *bytes = NULL;
    size_t n = 0;
    tsr_status st = tsr_model_save_bytes(m, &bytes, &n);
    if (st != TSR_OK)
        return st;
    tsr_model *again = NULL;
    st = tsr_model_load_bytes(s, bytes, n, &again);
    tsr_model_free(again);
    tsr_bytes_free(s, bytes, n);
    return st;
}

static tsr_status check_all(tsr_session *s, tsr_model *m)
{
    (void)s;
    return tsr_check(m, NULL);
}

static tsr_status shapes(tsr_session *s, tsr_model *m)
{
    tsr_shapes_summary x = {.size = sizeof x};
    (void)s;
    return tsr_shapes(m, NULL, 0, &x);
}

static tsr_status infer(tsr_session *s, tsr_model *m)
{
    (void)s;
    return tsr_infer(m, NULL);
}

static tsr_status plan(tsr_session *s, tsr_model *m)
{
    tsr_plan_options o = {.size = sizeof o, .devices = 2};
    tsr_plan_result x = {0};
    (void)s;
    return tsr__plan(m, &o, &x);
}

static tsr_status partition(tsr_session *s, tsr_model *m)
{
    tsr_partition_options o = {.size = sizeof o, .dry_run = true};
    tsr_partition_result *x = NULL;
    (void)s;
    tsr_status st = tsr_partition(m, NULL, &o, &x);
    tsr_partition_result_free(x);
    return st;
}

static tsr_status simulate(tsr_session *s, tsr_model *m)
{
    tsr_simulation *x = NULL;
    (void)s;
    tsr_status st = tsr_simulate(m, NULL, &x);
    tsr_simulation_free(x);
    return st;
}

static tsr_status topology(tsr_session *s, tsr_model *m)
{
    tsr_topology *t = NULL;
    tsr_topology_price p;
    (void)m;
    tsr_status st = tsr_topology_parse(s, "{4, [[1,3],[0,2],[1,3],[0,2]]}", &t);
    if (st == TSR_OK)
        st = tsr_topology_cost(t, TSR_ALL_REDUCE, (const int[]){0, 1, 2, 3}, 4, 1024, &p);
    tsr_topology_free(t);
    return st;
}

static tsr_status random_shardings(tsr_session *s, tsr_model *m)
{
    tsr_config *c = NULL;
    (void)s;
    tsr_status st = tsr_model_add_config(m, "random", 2, NULL, 0, &c);
    return st != TSR_OK ? st : tsr_model_shard_random(m, c, 1, NULL, 0);
}

static const struct step steps[] = {
    {"clone", copy_model, false, 1},  {"save", save_and_load, false, 1},
    {"check", check_all, false, 1},   {"shapes", shapes, false, 1},
    {"topology", topology, false, 1}, {"random shardings", random_shardings, false, 1},
    {"plan", plan, false, 4},         {"check a plan", check_all, true, 1},
    {"infer", infer, true, 1},        {"partition", partition, true, 1},
    {"simulate", simulate, true, 1},
};
#define N_STEPS (sizeof steps / sizeof *steps)

// All errors must be out-of-memory.
static void look_at_findings(tsr_session *s, const char *what, uint64_t n)
{
    for (size_t i = 0; i < tsr_finding_count(s); i++) {
        tsr_finding f = tsr_finding_value(s, i);
        if (f.severity != TSR_ERROR || strcmp(f.code, "out-of-memory") == 0)
            continue;
        n_wrong++;
        print_error("%s, allocation %d: %s\n", what, (int)n, tsr_finding_text(s, i));
    }
}

// Runs a step with its n-th allocation failing. Returns false if the step succeeded: it makes fewer
// allocations, or this one was optional.
static bool fails_at(const struct step *step, const char *path, uint64_t n, bool sticky)
{
    char what[256];
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    snprintf(what, sizeof what, "%s of %s%s", step ? step->name : "load", path,
             sticky ? ", and all after it" : "");
    if (step && step->planned)
        assert_int_equal(tsr_model_load_bytes(s, planned_bytes, n_planned, &m), TSR_OK);
    else if (step)
        assert_int_equal(tsr_model_load(s, path, &m), TSR_OK);
    tsr_finding_clear(s);
    tsr__session_fault(s, ALLOCATION, n, sticky);
    tsr_status st = step ? step->work(s, m) : tsr_model_load(s, path, &m);
    tsr__session_fault(s, ALLOCATION, 0, false);
    bool done = st == TSR_OK;
    if (!done && (st != TSR_NOMEM || tsr_finding_count(s) == 0)) {
        n_wrong++;
        print_error("%s, allocation %d: status %d, %d findings\n", what, (int)n, (int)st,
                    (int)tsr_finding_count(s));
    }
    look_at_findings(s, what, n);
    tsr_model_free(m);
    tsr_session_free(s);
    return !done;
}

// Optional allocations (a hint, a cache) may fail without an error. So a step counts as finished
// only after three successes in a row.
static void sweep(const struct step *step, const char *path)
{
    for (int sticky = 0; sticky < 2; sticky++) {
        int without = 0, apart = step ? step->apart : 1;
        for (uint64_t n = 1; without < 3; n += every * (uint64_t)apart * (sticky ? 8 : 1)) {
            if (n >= MOST * every)
                fail_msg("more than %d allocations", MOST);
            without = fails_at(step, path, n, sticky) ? 0 : without + 1;
        }
    }
}

static void make_plan(const char *path)
{
    tsr_model *m = NULL;
    keeper = tsr_session_new(NULL);
    assert_int_equal(tsr_model_load(keeper, path, &m), TSR_OK);
    assert_int_equal(plan(keeper, m), TSR_OK);
    assert_int_equal(tsr_model_save_bytes(m, &planned_bytes, &n_planned), TSR_OK);
    tsr_model_free(m);
}

static void every_allocation(void **state)
{
    (void)state;
    for (int i = 0; i < n_models; i++) {
        make_plan(models[i]);
        sweep(NULL, models[i]);
        for (size_t k = 0; k < N_STEPS; k++)
            sweep(&steps[k], models[i]);
        tsr_bytes_free(keeper, planned_bytes, n_planned);
        tsr_session_free(keeper);
    }
    assert_int_equal(n_wrong, 0);
}

int main(int argc, char **argv)
{
    models = (const char **)argv + 1;
    n_models = argc - 1;
    if (n_models > 0 && strncmp(models[0], "every=", 6) == 0) {
        every = strtoull(models[0] + 6, NULL, 10);
        models++;
        n_models--;
    }
    if (under_valgrind())
        every *= 50;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
