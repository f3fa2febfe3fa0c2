// SPDX-License-Identifier: Apache-2.0
// test_budget.c - planning that ends early: by its time limit, or by an interruption before or
// after the first plan exists. Also how plans share time and work: the linker replaces the clock and
// the calls that start and charge a budget by those below (meson.build).
#include "nets.h"
#include "plan/costs/planner.h"

#include <time.h>

#define LAYERS 6

// What the replaced calls record.
static struct {
    double step;            // time between two calls of the clock; 0: the system's clock
    double now;             // time of the counting clock
    struct budget *started; // the budget of the current plan
    double seconds;         // limit of that budget
    int starts;             // number of budgets
    uint64_t charged;       // work charged to the budgets that were started, not to parts of them
} seen;

double __real_tsr__now_s(void);
double __wrap_tsr__now_s(void);
double __wrap_tsr__now_s(void)
{
    if (!seen.step)
        return __real_tsr__now_s();
    seen.now += seen.step;
    return seen.now;
}

void __real_tsr__budget_start(struct budget *budget, tsr_session *session, double seconds);
void __wrap_tsr__budget_start(struct budget *budget, tsr_session *session, double seconds);
void __wrap_tsr__budget_start(struct budget *budget, tsr_session *session, double seconds)
{
    __real_tsr__budget_start(budget, session, seconds);
    seen.started = budget;
    seen.seconds = seconds;
    seen.starts++;
}

void __real_tsr__budget_spend(struct budget *budget, uint64_t work);
void __wrap_tsr__budget_spend(struct budget *budget, uint64_t work);
void __wrap_tsr__budget_spend(struct budget *budget, uint64_t work)
{
    __real_tsr__budget_spend(budget, work);
    for (const struct budget *b = budget; b; b = b->whole)
        if (b == seen.started)
            seen.charged += work;
}

// Layers with a residual sum each, and too little memory to make all of them fast.
static struct net *layers(void)
{
    struct net *t = net_new("4", 1e12, 1e11, 1e-6, 1e9);
    tsr_value *x = input(t, "x", DIMS(64, 128));
    for (int i = 0; i < LAYERS; i++) {
        tsr_value *w = weight(t, name_of(t, "w", i), DIMS(128, 512));
        tsr_value *h = node(t, "MatMul", x, w, name_of(t, "h", i));
        h = node(t, "Relu", h, NULL, name_of(t, "r", i));
        w = weight(t, name_of(t, "v", i), DIMS(512, 128));
        x = node(t, "Add", x, node(t, "MatMul", h, w, name_of(t, "m", i)), name_of(t, "y", i));
    }
    assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
    return t;
}

// Memory for which a plan exists, but not the fastest one.
static int64_t tight(struct net *t)
{
    t->o.memory = 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    return t->p.facts.needs_bytes + 300000;
}

struct interruption {
    tsr_session *session;
    int without_plan; // number of reports before the first plan
};

// Cancels at the first report of progress without a plan.
static void interrupt(void *data, const char *what, uint64_t done, uint64_t total)
{
    struct interruption *interruption = data;
    if (done >= total || !strstr(what, "no plan yet"))
        return;
    interruption->without_plan++;
    tsr_session_cancel(interruption->session, true);
}

static bool said(const struct net *t, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(t->session); i++)
        if (strcmp(tsr_finding_value(t->session, i).code, code) == 0)
            return true;
    return false;
}

// If planning is cancelled before there is a plan, that is reported and the model is unchanged.
static void nothing_yet_is_said(void **state)
{
    (void)state;
    struct net *t = layers();
    t->o.memory = tight(t);
    struct interruption interruption = {.session = t->session};
    t->session->progress_fn = interrupt;
    t->session->progress_data = &interruption;
    tsr_status st = tsr__plan(t->m, &t->o, &t->p);
    assert_true(interruption.without_plan > 0);
    assert_int_equal(st, TSR_CANCELLED);
    assert_true(said(t, "plan-time"));
    assert_int_equal(tsr_model_config_count(t->m), 0);
    t->session->progress_fn = NULL;
    tsr_session_cancel(t->session, false);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_false(t->p.facts.stopped);
    net_free(t);
}

static bool says(const struct net *t, const char *text)
{
    for (size_t i = 0; i < tsr_finding_count(t->session); i++)
        if (strstr(tsr_finding_text(t->session, i), text))
            return true;
    return false;
}

// Even with little time, the reported memory need is never 0.
static void needs_are_never_nothing(void **state)
{
    (void)state;
    static const int64_t stages[] = {0, 2, TSR_STAGES_AUTO};
    for (size_t i = 0; i < TSR_COUNT(stages); i++)
        for (double seconds = 1e-9; seconds < 1e-2; seconds *= 10) {
            struct net *t = layers();
            t->o.memory = 111;
            t->o.stages = stages[i];
            t->o.seconds = seconds;
            assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
            assert_false(says(t, " 0 bytes"));
            bool known = says(t, "is enough") || says(t, "is needed");
            assert_true(t->p.facts.needs_bytes > 0 ? known : says(t, "more time"));
            net_free(t);
        }
}

// With little time, the search for the needed memory ends early. What it says must still be true.
static void needs_are_not_overstated(void **state)
{
    (void)state;
    struct net *all = layers();
    all->o.memory = 111;
    assert_int_equal(tsr__plan(all->m, &all->o, &all->p), TSR_INFEASIBLE);
    assert_true(says(all, "is needed"));
    for (double seconds = 1e-9; seconds < 1; seconds *= 3) {
        struct net *t = layers();
        t->o.memory = 111;
        t->o.seconds = seconds;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
        int64_t needs = t->p.facts.needs_bytes;
        assert_true(!needs || needs >= 0.99 * (double)all->p.facts.needs_bytes);
        assert_true(!says(t, "is needed") || needs <= 1.01 * (double)all->p.facts.needs_bytes);
        for (size_t i = 0; needs && i < t->p.facts.n_compared; i++)
            assert_true(!t->p.compared[i].needs_bytes ||
                        strstr(t->p.compared[i].reason, "more than") ||
                        needs <= t->p.compared[i].needs_bytes);
        net_free(t);
    }
    net_free(all);
}

// Plans with a time limit in CPU time, for a plan of at most that cost. On a busy machine the limit
// is extended until the process had that time.
static tsr_status plan_in(struct net *t, double seconds, int64_t most)
{
    tsr_status st;
    double used;
    t->o.seconds = seconds;
    t->o.config = NULL; // a new one each time
    do {
        clock_t start = clock();
        st = tsr__plan(t->m, &t->o, &t->p);
        used = (double)(clock() - start) / CLOCKS_PER_SEC;
        t->o.seconds *= 2;
    } while (used < seconds && (st == TSR_INFEASIBLE || t->p.facts.cost > most));
    return st;
}

// With any time limit the plan keeps the memory limit, and its bound holds.
static void seconds_end_it(void **state)
{
    (void)state;
    struct net *t = layers();
    int64_t memory = tight(t);
    t->o.memory = memory;
    t->o.config = "long";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    int64_t best = t->p.facts.cost;
    for (double seconds = 1e-6; seconds < 1; seconds *= 100) {
        t->o.seconds = seconds;
        t->o.config = tsr__arena_printf(&t->arena, "for%g", seconds).p;
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        if (st == TSR_INFEASIBLE) {
            assert_true(said(t, "plan-time"));
            continue;
        }
        assert_int_equal(st, TSR_OK);
        for (size_t d = 0; d < t->p.facts.devices; d++)
            assert_true(t->p.facts.memory[d] <= memory);
        assert_true(t->p.facts.bound <= best && t->p.facts.cost >= t->p.facts.bound);
        assert_true(t->p.facts.optimal || t->p.facts.gap > 0);
        assert_true(t->p.facts.milliseconds * 1e9 > 0.999 * (double)t->p.facts.cost &&
                    t->p.facts.milliseconds * 1e9 < 1.001 * (double)t->p.facts.cost);
    }
    assert_int_equal(plan_in(t, 60, best), TSR_OK);
    assert_int_equal(t->p.facts.cost, best);
    net_free(t);
}

// If it is cancelled before it begins, the planner uses the first candidates of each node and
// reports that. Its bound must hold for all candidates.
static void ways_that_were_left_out_count(void **state)
{
    (void)state;
    struct net *t = layers();
    t->o.config = "all";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.optimal && !said(t, "plan-narrow"));
    int64_t best = t->p.facts.cost;
    tsr_session_cancel(t->session, true);
    t->o.config = "few";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(said(t, "plan-narrow"));
    assert_true(t->p.facts.stopped && !t->p.facts.optimal);
    assert_true(t->p.facts.bound <= best && t->p.facts.cost >= best);
    net_free(t);
}

// 32 devices and a batch, so that copies of smaller sets are possible. Sets that were not planned
// in time may be faster than the result, so the bound must be below the best of them.
static void bounds_hold_for_what_was_not_planned(void **state)
{
    (void)state;
    tsr_dim_size size = {"rows", 64};
    tsr_dim dims[] = {{-1, "rows"}, {128, ""}};
    struct net *t = net_new("hosts:4x8", 1e12, 1e11, 1e-6, 1e9);
    tsr_value *x = tsr_graph_add_input(t->g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    for (int i = 0; i < 3; i++) {
        tsr_value *w = weight(t, name_of(t, "w", i), DIMS(128, 128));
        x = node(t, "Relu", node(t, "MatMul", x, w, name_of(t, "h", i)), NULL, name_of(t, "r", i));
    }
    assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
    t->o.sizes = &size;
    t->o.n_sizes = 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    int64_t best = t->p.facts.cost;
    for (double seconds = 1e-4; seconds < 1; seconds *= 1.5) {
        t->o.seconds = seconds;
        t->o.config = tsr__arena_printf(&t->arena, "for%g", seconds).p;
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        assert_true(st == TSR_OK ? t->p.facts.bound <= best : said(t, "plan-time"));
    }
    net_free(t);
}

// Stages that were not planned in time count too: with any time limit, no plan is below the bound.
static void stages_end_in_time(void **state)
{
    (void)state;
    struct net *t = layers();
    t->o.stages = TSR_STAGES_AUTO;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_false(t->p.facts.stopped);
    int64_t best = t->p.facts.cost;
    int stopped = 0;
    for (double seconds = 1e-4; seconds < 1; seconds *= 2) {
        t->o.seconds = seconds;
        t->o.config = tsr__arena_printf(&t->arena, "for%g", seconds).p;
        if (tsr__plan(t->m, &t->o, &t->p) == TSR_OK) {
            assert_true(t->p.facts.bound <= best && t->p.facts.cost >= best);
            stopped += t->p.facts.stopped;
        } else {
            assert_true(said(t, "plan-time"));
            stopped++;
        }
    }
    assert_true(stopped > 0);
    net_free(t);
}

// 16 devices and layers that all differ: ranges of layers on device blocks take seconds. Stages of
// one device, and all devices as one stage, are planned first, so a pipeline with any number of
// stages is found much earlier.
static void some_stages_are_found_at_once(void **state)
{
    (void)state;
    static const int64_t stages[] = {2, 5, 16, TSR_STAGES_AUTO};
    for (size_t k = 0; k < TSR_COUNT(stages); k++) {
        struct net *t = net_new("hosts:2x8", 1e12, 1e11, 1e-6, 1e9);
        tsr_value *x = input(t, "x", DIMS(64, 100));
        for (int64_t i = 0; i < 60; i++) {
            tsr_value *w = weight(t, name_of(t, "w", (int)i), DIMS(100 + i, 101 + i));
            x = node(t, "MatMul", x, w, name_of(t, "h", (int)i));
        }
        assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
        t->o.stages = stages[k];
        assert_int_equal(plan_in(t, 0.5, INT64_MAX), TSR_OK);
        assert_true(t->p.facts.feasible);
        net_free(t);
    }
}

// Without a memory limit, 16 GiB are assumed: a plan that needs more gives a warning. A given limit
// is kept.
static void memory_that_is_assumed(void **state)
{
    (void)state;
    tsr_dim_size size = {"rows", (int64_t)1 << 24};
    tsr_dim dims[] = {{-1, "rows"}, {1024, ""}};
    struct net *t = net_new("2", 1e12, 1e11, 1e-6, 1e9);
    tsr_value *x = tsr_graph_add_input(t->g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "Relu", x, NULL, "y")), TSR_OK);
    t->o = (tsr_plan_options){.size = sizeof t->o, .devices = 2, .sizes = &size, .n_sizes = 1};
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(said(t, "plan-memory") && t->p.facts.memory[0] > (int64_t)16 << 30);
    t->o.memory = (int64_t)16 << 30;
    t->o.config = "kept";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    net_free(t);
}

// Two nodes read a weight of 16 KiB, which may be stored in three layouts. With little memory one
// of them must be chosen, though the constant is small.
static void shared_constants_in_little_memory(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e11, 1e-6, 1e9);
    tsr_value *x = input(t, "x", DIMS(4, 64));
    tsr_value *w1 = weight(t, "w1", DIMS(64, 128)), *w2 = weight(t, "w2", DIMS(128, 32));
    tsr_value *h = node(t, "MatMul", x, w1, "h");
    tsr_value *y = node(t, "MatMul", h, w2, "y"),
              *z = node(t, "MatMul", node(t, "Relu", h, NULL, "r"), w2, "z");
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "Add", y, z, "sum")), TSR_OK);
    t->o.memory = 30000; // half of both weights: 24,576
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.memory[0] <= t->o.memory);
    net_free(t);
}

// Callers of the library may pass sizes that the command line rejects.
static void negative_sizes_are_refused(void **state)
{
    (void)state;
    tsr_dim_size size = {"rows", -4};
    tsr_dim dims[] = {{-1, "rows"}, {64, ""}};
    struct net *t = net_new("2", 1e12, 1e11, 1e-6, 1e9);
    tsr_value *x = tsr_graph_add_input(t->g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "Relu", x, NULL, "y")), TSR_OK);
    t->o.sizes = &size;
    t->o.n_sizes = 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_USAGE);
    assert_true(said(t, "dim-size"));
    t->o.n_sizes = 0;
    t->o.memory = -5;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    t->o.memory = 0;
    t->o.seconds = -1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    net_free(t);
}

// With an automatic number of stages, a plan without stages is found first, with a part of the
// budget. Its work is charged to the budget, as it is without stages. The plan on one device, with
// which a pipeline is compared, adds little.
static void parts_are_charged(void **state)
{
    (void)state;
    static const int64_t stages[] = {1, TSR_STAGES_AUTO};
    uint64_t charged[2];
    for (size_t i = 0; i < TSR_COUNT(stages); i++) {
        struct net *t = layers();
        t->o.stages = stages[i];
        seen.charged = 0;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        charged[i] = seen.charged;
        net_free(t);
    }
    assert_true(charged[0] > 0);
    assert_in_range(charged[1], charged[0], charged[0] + charged[0] / 100);
}

// Choices of a topology share the time limit. Plans that end early leave their time to the others,
// so the last plan gets almost all of it.
static void choices_share_the_time_that_is_left(void **state)
{
    (void)state;
    struct net *t = layers();
    assert_int_equal(tsr__topology_choose(t->topology), TSR_OK);
    size_t choices = t->topology->choices.n;
    assert_true(choices > 1);
    t->o.seconds = 1000;
    seen.step = 1e-6;
    seen.starts = 0;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    seen.step = 0;
    assert_int_equal(seen.starts, choices + 1); // the best choice is planned twice
    assert_true(seen.seconds > 900 && seen.seconds <= 1000);
    net_free(t);
}

// A limit that is used up ends the search: with a slow clock, all plans together take little more
// than the limit.
static void choices_end_together(void **state)
{
    (void)state;
    struct net *t = layers();
    assert_int_equal(tsr__topology_choose(t->topology), TSR_OK);
    t->o.memory = tight(t);
    t->o.seconds = 1000;
    seen.step = 10;
    double start = seen.now;
    tsr_status st = tsr__plan(t->m, &t->o, &t->p);
    double used = seen.now - start;
    seen.step = 0;
    assert_true(st == TSR_OK || said(t, "plan-time"));
    assert_true(used < 3000);
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_yet_is_said),
        cmocka_unit_test(negative_sizes_are_refused),
        cmocka_unit_test(needs_are_never_nothing),
        cmocka_unit_test(needs_are_not_overstated),
        cmocka_unit_test(seconds_end_it),
        cmocka_unit_test(ways_that_were_left_out_count),
        cmocka_unit_test(bounds_hold_for_what_was_not_planned),
        cmocka_unit_test(stages_end_in_time),
        cmocka_unit_test(some_stages_are_found_at_once),
        cmocka_unit_test(memory_that_is_assumed),
        cmocka_unit_test(shared_constants_in_little_memory),
        cmocka_unit_test(parts_are_charged),
        cmocka_unit_test(choices_share_the_time_that_is_left),
        cmocka_unit_test(choices_end_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
