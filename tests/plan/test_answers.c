// SPDX-License-Identifier: Apache-2.0
// test_answers.c - planning problems with known answers, each against its closed form: meshes of two axes, slow and
// fast links, order of gathers, sums of two partial results, experts, grouped queries, shared masks.
#include "nets.h"
#include "topology/topology.h"

#define MANY  16
#define WORDS 48

static char names[MANY * WORDS][WORDS]; // texts live as long as the test
static int n_names;

static const char *word(const char *base, int i)
{
    char *out = names[n_names++ % (MANY * WORDS)];
    snprintf(out, WORDS, "%s%d", base, i);
    return out;
}

static size_t reductions(const struct net *t)
{
    return collectives(t, "AllReduce") + collectives(t, "ReduceScatter") + collectives(t, "Reduce");
}

// Arithmetic and memory cost next to nothing: communication decides.
static struct net *talking(const char *devices)
{
    return net_new(devices, 1e17, 1e16, 1e-9, 1e9);
}

static int64_t price(struct net *t, enum tsr_collective what, int64_t bytes)
{
    int devices[64];
    int n = tsr_topology_devices(t->topology);
    for (int i = 0; i < n; i++)
        devices[i] = i;
    struct topology_groups all = {1, n, devices};
    return tsr__topology_cost(t->topology, what, &all, bytes);
}

// ---- B14: a sum of two partial results is combined once ----------------------------------------

static tsr_value *branch(struct net *t, tsr_value *x, const char *name)
{
    tsr_value *h = node(t, "MatMul", x, weight(t, word(name, 1), DIMS(64, 256)), word(name, 2));
    h = node(t, "Relu", h, NULL, word(name, 3));
    return node(t, "MatMul", h, weight(t, word(name, 4), DIMS(256, 64)), word(name, 5));
}

static void sums_of_parts_take_one_reduction(void **state)
{
    (void)state;
    struct net *t = talking("4");
    tsr_value *x = input(t, "x", DIMS(16, 64));
    tsr_value *y = node(t, "Add", branch(t, x, "a"), branch(t, x, "b"), "s");
    y = node(t, "Relu", node(t, "Add", y, x, "r"), NULL, "y"); // x is added once
    t->o.memory = 4 * 64 * 256 + 40000;
    plan(t, y);
    assert_int_equal(reductions(t), 1);
    assert_in_range(t->p.cost - price(t, TSR_ALL_REDUCE, 16 * 64 * 4), 0, 100); // half of two
    net_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_parts_take_one_reduction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
