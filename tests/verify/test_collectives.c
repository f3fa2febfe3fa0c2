// SPDX-License-Identifier: Apache-2.0
// test_collectives.c - checks the table of collectives: each row has names, a predicted time,
// kernels, a place in the simulation, and a matching line in docs/formats.md.
#include "collective/collective.h"
#include "ops/internal.h"
#include "topology/topology.h"
#include "simulate/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *formats; // path of docs/formats.md

static struct str named(const char *op, const char *ending, char *buffer, size_t bytes)
{
    snprintf(buffer, bytes, "%s%s", op, ending);
    return str_of(buffer);
}

// Each name must be found, with and without the ending for float16, and belong to one row only.
static void has_names(void **state)
{
    (void)state;
    char buffer[64];
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = tsr__collective(kind);
        assert_non_null(row->op);
        assert_non_null(row->word);
        assert_true(row->stamp > 2); // smaller values are nodes, slices and shapes
        assert_int_equal(tsr__collective_find(str_of(row->op)), kind);
        assert_int_equal(tsr__collective_find(named(row->op, "F16", buffer, sizeof buffer)), kind);
        assert_int_equal(!row->other_end, !row->both_ends);
        if (row->other_end)
            assert_int_equal(
                tsr__collective_find(named(row->other_end, "F16", buffer, sizeof buffer)), kind);
        for (int other = 0; other < kind; other++) {
            assert_string_not_equal(row->word, tsr__collective(other)->word);
            assert_int_not_equal(row->stamp, tsr__collective(other)->stamp);
        }
    }
    assert_int_equal(tsr__collective_find(str_of("AllReduceF32")), COMM_KIND_COUNT);
    assert_int_equal(tsr__collective_find(str_of("F16")), COMM_KIND_COUNT);
    assert_true(str_is(tsr__collective_plain(str_of("RecvF16")), "Send"));
    assert_true(str_is(tsr__collective_plain(str_of("OtherF16")), "Other"));
    assert_null(tsr_collective_name(TSR_COLLECTIVE_COUNT));
}

// Topology has costs for the collectives of tessera.h; each other row names the one that it costs
// like.
static void has_price(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *topology = NULL;
    int group[] = {0, 1, 2, 3};
    assert_int_equal(tsr_topology_parse(session, "ring:4", &topology), TSR_OK);
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = tsr__collective(kind);
        bool indirect =
            row->cost_basis == COST_OF_EXCHANGE || row->cost_basis == COST_OF_NEIGHBOURS;
        assert_int_equal(kind >= TSR_COLLECTIVE_COUNT, indirect);
        if (indirect)
            continue;
        tsr_topology_price price = {0};
        int members = kind == COMM_SEND ? 2 : 4;
        assert_int_equal(
            tsr_topology_cost(topology, (tsr_collective)kind, group, members, 1 << 20, &price),
            TSR_OK);
        assert_true(price.picoseconds > 0 && price.picoseconds < TOPOLOGY_NEVER);
        assert_true(price.bound > 0 && price.bound <= price.picoseconds);
        assert_string_equal(tsr_collective_name((tsr_collective)kind), row->word);
    }
    tsr_topology_free(topology);
    tsr_session_free(session);
}

// ---- kernels -----------------------------------------------------------------------------------

// A substitute for the engine that only records the registered operators.
static const struct op *registered[8 * COMM_KIND_COUNT];
static size_t n_registered;

static OrtStatus *new_domain(const char *name, OrtCustomOpDomain **out)
{
    static char domain;
    assert_string_equal(name, OPS_DOMAIN);
    *out = (OrtCustomOpDomain *)&domain;
    return NULL;
}

static OrtStatus *add_op(OrtCustomOpDomain *domain, const OrtCustomOp *op)
{
    (void)domain;
    assert_true(n_registered < TSR_COUNT(registered));
    registered[n_registered++] = (const struct op *)op;
    return NULL;
}

static OrtStatus *add_domain(OrtSessionOptions *options, OrtCustomOpDomain *domain)
{
    (void)options;
    (void)domain;
    return NULL;
}

static void release_domain(OrtCustomOpDomain *domain)
{
    (void)domain;
}

static size_t count_registered(const char *name, int kind)
{
    size_t n = 0;
    for (size_t i = 0; i < n_registered; i++) {
        const struct op *op = registered[i];
        if (strcmp(op->ort.GetName(&op->ort), name) != 0)
            continue;
        size_t inputs = op->ort.GetInputTypeCount(&op->ort), token = comm_token(kind);
        assert_int_equal(op->kind, kind);
        assert_int_equal(inputs, comm_after(kind) + 1);
        assert_int_equal(op->ort.GetInputCharacteristic(&op->ort, inputs - 1), inputs - 1 > token);
        for (size_t k = 0; k < inputs; k++)
            assert_int_equal(op->ort.GetInputMemoryType(&op->ort, k) == ORT_MEMORY_CPU_INPUT,
                             k > 0 && k != token && k != comm_after(kind));
        assert_true(op->create && op->compute);
        n++;
    }
    return n;
}

// One operator for each end of each row, for all element types and for float16.
static void has_kernels(void **state)
{
    (void)state;
    OrtApi api = {.CreateCustomOpDomain = new_domain,
                  .CustomOpDomain_Add = add_op,
                  .AddCustomOpDomain = add_domain,
                  .ReleaseCustomOpDomain = release_domain};
    struct ops *ops = NULL;
    char buffer[64];
    size_t n = 0;
    assert_null(tsr__ops_add(&api, 20, NULL, NULL, "only looked at", &ops));
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = tsr__collective(kind);
        const char *ends[2] = {row->op, row->other_end};
        for (int end = 0; end < 2; end++) {
            if (!ends[end])
                continue;
            assert_int_equal(count_registered(ends[end], kind), 1);
            assert_int_equal(
                count_registered(named(ends[end], "F16", buffer, sizeof buffer).p, kind), 1);
            n += 2;
        }
    }
    assert_int_equal(n, n_registered);
    tsr__ops_free(ops);
}

// ---- simulation --------------------------------------------------------------------------------

// Two devices that exchange a mebibyte: it must take time and load links.
static void is_simulated(void **state)
{
    (void)state;
    static const int64_t pair[] = {0, 1};
    struct arena arena;
    struct sim sim = {.session = tsr_session_new(NULL), .arena = &arena, .n = 2};
    assert_int_equal(tsr_topology_parse(sim.session, "ring:2", &sim.topology), TSR_OK);
    tsr__arena_init(&arena, sim.session);
    sim.by_link = ARENA_ARRAY(&arena, double, sim.topology->links.n + 1);
    sim.load = ARENA_ARRAY(&arena, double, sim.topology->links.n + 1);
    for (int kind = 0; kind <= COMM_KIND_COUNT; kind++) {
        struct sim_group group = {.members = pair, .n = 2, .from = 1};
        struct sim_comm comm = {.kind = (enum comm_kind)kind,
                                .times = 1,
                                .groups = {.at = &group, .n = 1},
                                .most_in = 1 << 20,
                                .most_out = 2 << 20,
                                .moved = 1 << 20};
        int64_t ps = tsr__sim_comm_cost(&sim, &comm);
        assert_true(ps > 0 && ps < TOPOLOGY_NEVER);
        assert_true(comm.bytes > 0 && comm.carried > 0);
    }
    tsr__arena_free(&arena);
    tsr_topology_free(sim.topology);
    tsr_session_free(sim.session);
}

// ---- documentation -----------------------------------------------------------------------------

// Finds the table row in the documentation that begins with that operator; false if there is none.
static bool documented(const char *op, char *line, int bytes)
{
    char start[64];
    snprintf(start, sizeof start, "| `%s`", op);
    FILE *file = fopen(formats, "r");
    assert_non_null(file);
    bool found = false;
    while (!found && fgets(line, bytes, file))
        found = strncmp(line, start, strlen(start)) == 0 && strstr(line, ", token");
    fclose(file);
    return found;
}

// Each row must be documented, with its inputs and exactly its attributes.
static void is_documented(void **state)
{
    (void)state;
    char line[4096], quoted[64];
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        const struct collective *row = tsr__collective(kind);
        assert_true(documented(row->op, line, sizeof line));
        const char *inputs = comm_has(kind, TRAIT_TAKES_SHAPE)    ? "| X, shape, token |"
                             : comm_carries(kind, ATTRIBUTE_PART) ? "| X, token, size (optional) |"
                                                                  : "| X, token |";
        char *attributes = strstr(line, inputs);
        assert_non_null(attributes);
        attributes += strlen(inputs);
        *strchr(attributes, '|') = 0;
        for (int k = 0; k < ATTRIBUTE_COUNT; k++) {
            const char *name = tsr__attribute_name((enum comm_attribute)k);
            snprintf(quoted, sizeof quoted, "`%s`", name);
            bool said = strstr(attributes, quoted) != NULL;
            assert_int_equal(said, comm_carries(kind, (enum comm_attribute)k));
        }
    }
}

int main(int argc, char **argv)
{
    formats = argc > 1 ? argv[1] : "docs/formats.md";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_names),     cmocka_unit_test(has_price),
        cmocka_unit_test(has_kernels),   cmocka_unit_test(is_simulated),
        cmocka_unit_test(is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
