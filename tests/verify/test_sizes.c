// SPDX-License-Identifier: Apache-2.0
// test_sizes.c - the table of samples for measurements states kind, operations and bytes of its
// nodes. They must equal what the cost model computes; otherwise measured times would be stored for
// a wrong size.
#include "ir/ir.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "measure/measure_rank.h"
#include "simulate/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

// Within 5 %, since a norm also reads its scale.
static void assert_near(double said, double priced)
{
    assert_true(fabs(said / priced - 1) < 0.05);
}

// Compares all nodes that are not constants.
static void compare_nodes(tsr_model *model, const struct sample *sample)
{
    struct arena arena;
    tsr_topology_device device = {.flops = 1e12, .bandwidth = 1e11};
    int nodes = 0;
    tsr__arena_init(&arena, tsr_model_session(model));
    struct shapes *shapes = tsr__shapes_new(&arena, model);
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(model)); node;
         node = tsr_node_next(node)) {
        if (tsr__node_reads_constants(node))
            continue;
        struct node_kind kind = tsr__node_kind(node, shapes);
        struct node_cost_result cost = tsr__node_cost(arena.session, node, shapes, NULL, &device);
        assert_int_equal(kind.rate, sample->node.rate);
        assert_int_equal(kind.move, sample->node.move);
        assert_string_equal(tsr__size_word(kind),
                            tsr__size_word((struct node_kind){sample->node.rate, sample->node.move,
                                                              sample->node.word}));
        assert_string_equal(cost.type, tsr_dtype_name(sample->type));
        assert_near(sample->node.work, cost.work);
        assert_near(sample->node.bytes + sample->node.fixed, cost.bytes);
        nodes++;
    }
    assert_int_equal(nodes, sample->node.nodes);
    tsr__arena_free(&arena);
}

static void samples_are_as_priced(void **state)
{
    (void)state;
    char folder[] = "/tmp/tessera-sizes-XXXXXX", path[MEASURE_PATH];
    assert_non_null(mkdtemp(folder));
    tsr_session *session = tsr_session_new(NULL);
    assert_int_equal(tsr__measure_write(session, folder, tsr__n_samples, 1), TSR_OK);
    int compared = 0;
    for (size_t i = 0; i < tsr__n_samples; i++) {
        const struct sample *sample = &tsr__samples[i];
        const tsr_dim_size rows = {"rows", sample->dims[0]};
        tsr_model *model = NULL;
        tsr__measure_path(folder, i, path);
        if (sample->node.nodes) {
            assert_int_equal(tsr_model_load(session, path, &model), TSR_OK);
            assert_int_equal(tsr_shapes(model, &rows, sample->grows > 1, NULL), TSR_OK);
            compare_nodes(model, sample);
            tsr_model_free(model);
            compared++;
        }
        assert_int_equal(unlink(path), 0);
    }
    assert_true(compared > 30);
    assert_int_equal(rmdir(folder), 0);
    tsr_session_free(session);
}

// Returns where the speed of a sample must be stored; NULL: it gives none.
static const double *speed_of(const tsr_topology_device *device, const struct sample *sample)
{
    switch (sample->as) {
    case AS_FLOPS:
        return &device->flops;
    case AS_RATE:
        return &device->rates[sample->index];
    case AS_BANDWIDTH:
        return &device->bandwidth;
    case AS_MOVE:
        return &device->moves[sample->index];
    case AS_NEAR:
        return &device->cached[sample->index];
    default:
        return NULL;
    }
}

// Every kind of work has a speed of its own: sample i takes i milliseconds, a node 1 microsecond.
static void speeds_are_kept_by_kind(void **state)
{
    (void)state;
    double seconds[MEASURE_SAMPLES] = {0};
    struct rank_results results = {0};
    struct measure_rank rank = {.matrices = 1, .out = &results};
    for (size_t i = 0; i < tsr__n_samples; i++) {
        const struct sample *sample = &tsr__samples[i];
        if (sample->as == AS_OVERHEAD_FEW)
            seconds[i] = MEASURE_FEW_NODES * 1e-6;
        else if (sample->as == AS_OVERHEAD_MANY)
            seconds[i] = MEASURE_MANY_NODES * 1e-6;
        else if (sample->on != ON_GPUS)
            seconds[i] = (double)i * 1e-3;
    }
    tsr__measure_summarize(&rank, seconds);
    assert_true(fabs(results.self.overhead * 1e6 - 1) < 1e-6);
    for (size_t i = 0; i < tsr__n_samples; i++) {
        const struct sample *sample = &tsr__samples[i];
        const double *speed = speed_of(&results.self, sample);
        if (sample->on == ON_GPUS)
            continue;
        if (speed)
            assert_true(fabs(*speed * seconds[i] / sample->work - 1) < 1e-6);
        if (sample->node.nodes)
            assert_true(fabs(results.node[i] * sample->node.nodes / seconds[i] - 1) < 1e-6);
    }
    assert_true(results.self.rates[TSR_RATE_CONVOLUTION] > 0);
    assert_true(results.self.rates[TSR_RATE_ATTENTION] > 0);
    assert_true(results.self.moves[TSR_MOVE_SOFTMAX] > 0);
    assert_true(results.self.moves[TSR_MOVE_CACHE] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_are_as_priced),
                                       cmocka_unit_test(speeds_are_kept_by_kind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
