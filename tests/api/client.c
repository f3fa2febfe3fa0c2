// SPDX-License-Identifier: Apache-2.0
// client.c - a program that uses only the installed headers and checks that the library respects
// the size of each struct. abi.py compiles it three times: with the headers of this version, with
// the baseline headers (an older client), and with headers in which every struct has one more field
// (a newer client). All three run with the library of this version and must print the same.
#include <tessera.h>
#include <tessera_graph.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed;

static void check(bool ok, const char *what)
{
    printf("%s - %s\n", ok ? "ok" : "not ok", what);
    failed += !ok;
}

// A struct followed by guard bytes, which the library must not write.
#define GUARDED(type, name)                                                                        \
    struct {                                                                                       \
        type value;                                                                                \
        unsigned char guard[64];                                                                   \
    } name;                                                                                        \
    memset(&name, 0, sizeof name);                                                                 \
    memset(name.guard, 0xA5, sizeof name.guard);                                                   \
    name.value.size = sizeof name.value

static bool guard_holds(const unsigned char *guard)
{
    for (int i = 0; i < 64; i++)
        if (guard[i] != 0xA5)
            return false;
    return true;
}

#ifdef TSR_GROWN // newer client: the library must leave fields that it does not know at zero
#define IS_GROWN_UNTOUCHED(name) ((name).value.tsr_grown == 0)
#else
#define IS_GROWN_UNTOUCHED(name) true
#endif

// Calls `call` with a valid size, which must succeed and write only inside the struct. Then calls
// it with two sizes that are too small, which must fail.
#define READ(name, call)                                                                           \
    do {                                                                                           \
        check((call) == TSR_OK && guard_holds(name.guard) && IS_GROWN_UNTOUCHED(name) &&           \
                  name.value.size == sizeof name.value,                                            \
              #call);                                                                              \
        name.value.size = 0;                                                                       \
        check((call) == TSR_INVALID, "size 0: " #call);                                            \
        name.value.size = sizeof(size_t);                                                          \
        check((call) == TSR_INVALID && guard_holds(name.guard), "size 8: " #call);                 \
        name.value.size = sizeof name.value;                                                       \
    } while (0)

// y = MatMul(x, w), for two devices.
static tsr_model *make_model(tsr_session *session)
{
    static float weights[8 * 16];
    tsr_model *model = NULL;
    const tsr_dim x_dims[] = {{4, ""}, {8, ""}};
    const int64_t w_dims[] = {8, 16};
    const char *const outputs[] = {"y"};
    if (tsr_model_new(session, "client", 11, &model) != TSR_OK)
        exit(2);
    tsr_graph *graph = tsr_model_graph(model);
    tsr_value *x = tsr_graph_add_input(graph, "x");
    tsr_value *w =
        tsr_graph_add_initializer(graph, "w", TSR_FLOAT, 2, w_dims, weights, sizeof weights);
    tsr_value *inputs[] = {x, w};
    tsr_node *node = tsr_graph_add_node(graph, "", "MatMul", "mm", inputs, 2, outputs, 1);
    if (!node || tsr_model_set_opset(model, "", 20) != TSR_OK ||
        tsr_value_set_type(x, TSR_FLOAT, 2, x_dims) != TSR_OK ||
        tsr_graph_add_output(graph, tsr_node_output(node, 0)) != TSR_OK)
        exit(2);
    return model;
}

static void read_plan(tsr_model *model, const tsr_plan_options *options)
{
    tsr_plan_result *first = NULL, *second = NULL;
    tsr_model *other = make_model(tsr_model_session(model));
    check(tsr_plan(model, options, &first) == TSR_OK && first, "tsr_plan");
    GUARDED(tsr_plan_facts, facts);
    READ(facts, tsr_plan_result_about(first, &facts.value));
    check(facts.value.devices == 2 && facts.value.feasible && facts.value.nodes == 1,
          "facts of the plan");
    int64_t cost = facts.value.cost;
    check(tsr_plan(other, options, &second) == TSR_OK, "a second plan");
    tsr_model_free(other);
    check(tsr_plan_result_about(first, &facts.value) == TSR_OK && facts.value.cost == cost &&
              facts.value.config && facts.value.memory[0] > 0,
          "the first result is as it was");
    GUARDED(tsr_collective_count, count);
    check(tsr_plan_result_collective(first, facts.value.n_collectives, &count.value) == TSR_INVALID,
          "an index out of range");
    if (facts.value.n_collectives)
        READ(count, tsr_plan_result_collective(first, 0, &count.value));
    tsr_plan_result_free(second);
    tsr_plan_result_free(first);
    tsr_plan_result_free(NULL);
}

static void refuse_plan(tsr_model *model, tsr_plan_options options)
{
    tsr_plan_result *result = NULL;
    options.size = 0;
    check(tsr_plan(model, &options, &result) == TSR_INVALID && !result, "options of size 0");
    options.size = sizeof options;
    options.memory = 16;
    check(tsr_plan(model, &options, &result) == TSR_INFEASIBLE && result, "an infeasible plan");
    GUARDED(tsr_plan_facts, facts);
    check(tsr_plan_result_about(result, &facts.value) == TSR_OK && !facts.value.feasible &&
              facts.value.needs_bytes > 16,
          "what it needs");
    GUARDED(tsr_plan_binding, binding);
    if (facts.value.n_bindings)
        READ(binding, tsr_plan_result_binding(result, 0, &binding.value));
    tsr_plan_result_free(result);
}

static void read_partition(tsr_model *model)
{
    tsr_partition_result *result = NULL;
    tsr_partition_options options = TSR_PARTITION_OPTIONS_INIT;
    options.dry_run = true;
    check(tsr_partition(model, NULL, &options, &result) == TSR_OK, "tsr_partition");
    GUARDED(tsr_partition_facts, facts);
    READ(facts, tsr_partition_result_about(result, &facts.value));
    check(facts.value.devices == 2 && facts.value.weight_bytes[0] >= 0, "facts of the partition");
    tsr_partition_result_free(result);
}

static void read_simulation(tsr_model *model)
{
    tsr_simulation *simulation = NULL;
    tsr_simulate_options options = TSR_SIMULATE_OPTIONS_INIT;
    options.requests = 2;
    check(tsr_simulate(model, &options, &simulation) == TSR_OK, "tsr_simulate");
    GUARDED(tsr_simulation_facts, facts);
    READ(facts, tsr_simulation_about(simulation, &facts.value));
    check(facts.value.devices == 2 && facts.value.requests == 2 && facts.value.seconds > 0,
          "facts of the simulation");
    GUARDED(tsr_simulated_device, device);
    READ(device, tsr_simulation_device(simulation, 1, &device.value));
    tsr_simulation_free(simulation);
}

static void read_shardings(tsr_session *session)
{
    tsr_tiling *tiling = NULL;
    tsr_pieces *pieces = NULL;
    tsr_topology *topology = NULL;
    const int64_t shape[] = {4, 2};
    check(tsr_tiling_new(session, "{2,1:0,1}", 2, shape, 0, &tiling) == TSR_OK, "tsr_tiling_new");
    GUARDED(tsr_box, box);
    READ(box, tsr_tiling_box(tiling, 1, &box.value));
    check(tsr_tiling_count(tiling) == 2 && box.value.device == 1 && box.value.start[0] == 2 &&
              box.value.stop[0] == 4,
          "the box of device 1");
    tsr_tiling_free(tiling);
    check(tsr_pieces_new(session, "{2,1:0,1}", TSR_FLOAT, 2, shape, NULL, &pieces) == TSR_OK,
          "tsr_pieces_new");
    GUARDED(tsr_piece, piece);
    READ(piece, tsr_pieces_at(pieces, 0, &piece.value));
    check(piece.value.bytes == 16 && piece.value.dims[0] == 2, "the first piece");
    tsr_pieces_free(pieces);
    check(tsr_topology_parse(session, "ring:4", &topology) == TSR_OK, "tsr_topology_parse");
    GUARDED(tsr_device_facts, device);
    READ(device, tsr_topology_device_facts(topology, 3, &device.value));
    check(device.value.memory > 0 && tsr_topology_is_assumed(topology), "a device");
    tsr_topology_free(topology);
}

static void check_model(tsr_session *session, tsr_model *model)
{
    tsr_check_options check_options = TSR_CHECK_OPTIONS_INIT;
    tsr_infer_options infer_options = TSR_INFER_OPTIONS_INIT;
    GUARDED(tsr_shapes_summary, shapes);
    READ(shapes, tsr_shapes(model, NULL, 0, &shapes.value));
    check(tsr_check(model, NULL) == TSR_OK && tsr_check(model, &check_options) == TSR_OK,
          "tsr_check");
    infer_options.propagate = infer_options.formalism = true;
    check(tsr_infer(model, &infer_options) == TSR_INVALID, "options that exclude each other");
    GUARDED(tsr_finding, finding);
    READ(finding, tsr_finding_at(session, tsr_finding_count(session) - 1, &finding.value));
    check(strcmp(finding.value.code, "argument-invalid") == 0, "the code of a diagnostic");
}

// A NULL session is an error, not a crash.
static void use_no_session(void)
{
    tsr_model *model = NULL;
    tsr_tensors *tensors = NULL;
    tsr_topology *topology = NULL;
    tsr_job *job = NULL;
    GUARDED(tsr_finding, finding);
    check(tsr_model_load(NULL, "x", &model) == TSR_INVALID, "tsr_model_load without a session");
    check(tsr_tensors_new(NULL, &tensors) == TSR_INVALID, "tsr_tensors_new without a session");
    check(tsr_topology_parse(NULL, "4", &topology) == TSR_INVALID,
          "tsr_topology_parse without a session");
    check(tsr_job_open(NULL, "x", NULL, &job) == TSR_INVALID, "tsr_job_open without a session");
    check(tsr_verify(NULL, "x", NULL, NULL) == TSR_INVALID, "tsr_verify without a session");
    check(tsr_finding_count(NULL) == 0, "no diagnostics without a session");
    check(tsr_finding_at(NULL, 0, &finding.value) == TSR_INVALID,
          "no diagnostic without a session");
    tsr_session_free(NULL);
}

int main(void)
{
    tsr_session_options small = TSR_SESSION_OPTIONS_INIT;
    tsr_plan_options options = TSR_PLAN_OPTIONS_INIT;
    small.size = 0;
    check(!tsr_session_new(&small), "session options of size 0");
    tsr_session *session = tsr_session_new(NULL);
    tsr_model *model = make_model(session), *planned = make_model(session);
    options.devices = 2;
    check_model(session, model);
    refuse_plan(model, options);
    read_plan(planned, &options);
    read_partition(planned);
    read_simulation(planned);
    read_shardings(session);
    use_no_session();
    tsr_model_free(planned);
    tsr_model_free(model);
    tsr_session_free(session);
    return failed != 0;
}
