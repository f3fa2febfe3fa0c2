// SPDX-License-Identifier: Apache-2.0
// test_hand.c - nobody does better by hand: random shardings of small models never simulate faster than what the planner
// calls the least.
//
//     api_test_hand             a sample, as the suite runs it
//     api_test_hand 200 60 1    models, shardings of each, first seed
#include "../valgrind.h"
#include "tessera.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLACK 1.001 // prices are rounded to picoseconds, node by node
#define COMPARED                                                                                   \
    4 // times as many models are planned and simulated alone, without shardings by hand

// Numbers that are the same on every machine.
struct dice {
    uint64_t state;
};

static int64_t pick(struct dice *dice, int64_t below)
{
    dice->state = dice->state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((dice->state >> 33) % (uint64_t)below);
}

static int64_t one_of(struct dice *dice, const int64_t *list, int64_t n)
{
    return list[pick(dice, n)];
}

// ---- small models ------------------------------------------------------------------------------

struct made {
    tsr_graph *graph;
    struct dice dice;
    tsr_value *value; // that the next node reads
    int64_t rows, columns;
    tsr_value *before; // of the same shape, for a sum; NULL: none
    int names;
};

static tsr_value *add_node(struct made *made, const char *op, tsr_value *a, tsr_value *b)
{
    char name[32];
    const char *output = name;
    tsr_value *inputs[2] = {a, b};
    snprintf(name, sizeof name, "v%d", made->names++);
    tsr_node *node = tsr_graph_add_node(made->graph, "", op, name, inputs, b ? 2 : 1, &output, 1);
    return node ? tsr_node_output(node, 0) : NULL;
}

static tsr_value *add_weight(struct made *made, int rank, int64_t rows, int64_t columns)
{
    char name[32];
    int64_t dims[2] = {rows, columns};
    const int64_t *shape = rank == 2 ? dims : dims + 1;
    size_t bytes = (size_t)(rank == 2 ? rows * columns : columns) * sizeof(float);
    float *zeros = calloc(1, bytes);
    snprintf(name, sizeof name, "w%d", made->names++);
    tsr_value *value =
        tsr_graph_add_initializer(made->graph, name, TSR_FLOAT, rank, shape, zeros, bytes);
    free(zeros);
    return value;
}

static void add_product(struct made *made)
{
    static const int64_t widths[] = {6, 16, 64, 256, 1024};
    int64_t columns = one_of(&made->dice, widths, 5);
    tsr_value *weight = add_weight(made, 2, made->columns, columns);
    made->before = columns == made->columns ? made->value : NULL;
    made->value = add_node(made, "MatMul", made->value, weight);
    made->columns = columns;
}

static void add_step(struct made *made)
{
    static const char *const plain[] = {"Relu", "Sigmoid", "Softmax", "Tanh", "Identity"};
    switch (pick(&made->dice, 8)) {
    case 0:
    case 1:
    case 2:
        add_product(made);
        return;
    case 3:
        made->value = add_node(made, "Transpose", made->value, NULL);
        int64_t rows = made->rows;
        made->rows = made->columns;
        made->columns = rows;
        made->before = NULL;
        return;
    case 4:
        made->value = add_node(made, "Add", made->value, add_weight(made, 1, 0, made->columns));
        return;
    case 5:
        if (made->before)
            made->value = add_node(made, "Add", made->value, made->before);
        return;
    default:
        made->value = add_node(made, plain[pick(&made->dice, 5)], made->value, NULL);
    }
}

// A chain of 2 to 7 nodes with sums of what came before.
static tsr_model *make_model(tsr_session *session, uint64_t seed)
{
    static const int64_t sizes[] = {1, 3, 8, 32, 128, 512, 2048};
    tsr_model *model = NULL;
    if (tsr_model_new(session, "g", 11, &model) != TSR_OK ||
        tsr_model_set_opset(model, "", 18) != TSR_OK)
        return NULL;
    struct made made = {.graph = tsr_model_graph(model), .dice = {seed * 2 + 1}};
    made.rows = one_of(&made.dice, sizes, 7);
    made.columns = one_of(&made.dice, sizes, 6);
    tsr_dim dims[2] = {{made.rows, ""}, {made.columns, ""}};
    made.value = tsr_graph_add_input(made.graph, "x");
    if (!made.value || tsr_value_set_type(made.value, TSR_FLOAT, 2, dims) != TSR_OK)
        return NULL;
    add_product(&made);
    for (int64_t steps = 1 + pick(&made.dice, 6); steps > 0 && made.value; steps--)
        add_step(&made);
    if (!made.value || tsr_graph_add_output(made.graph, made.value) != TSR_OK)
        return NULL;
    return model;
}

static tsr_topology *make_topology(tsr_session *session, uint64_t seed)
{
    static const char *const texts[] = {"2", "3", "4", "ring:4", "grid:2x2", "hosts:2x2"};
    static const double speeds[] = {1e10, 1e11, 1e12, 1e13}, links[] = {1e8, 1e9, 1e10, 1e11};
    static const double factors[] = {1, 1, 0.5, 0.3, 0.25};
    struct dice dice = {seed * 2 + 1};
    tsr_topology *topology = NULL;
    if (tsr_topology_parse(session, texts[pick(&dice, 6)], &topology) != TSR_OK)
        return NULL;
    double flops = speeds[pick(&dice, 4)], bandwidth = speeds[pick(&dice, 3)];
    bool uneven = pick(&dice, 4) == 0;
    for (int i = 0; i < tsr_topology_devices(topology); i++) {
        double factor = uneven ? factors[pick(&dice, 5)] : 1;
        tsr_topology_device device = {.flops = flops * factor, .bandwidth = bandwidth * factor};
        tsr_topology_set_device(topology, i, &device);
    }
    tsr_topology_set_links(topology, pick(&dice, 2) ? 1e-6 : 1e-8, links[pick(&dice, 4)]);
    return topology;
}

// ---- planned, and by hand ----------------------------------------------------------------------

// Seconds of one run; 0: it cannot be cut so.
static double simulated(tsr_model *model, const char *config, tsr_topology *topology)
{
    tsr_simulation simulation = {.size = sizeof simulation};
    tsr_simulate_options options = {.size = sizeof options, .config = config, .topology = topology};
    return tsr_simulate(model, &options, &simulation) == TSR_OK ? simulation.seconds : 0;
}

// Devices that differ: plans look at some sets of them alone, and their message says which. All else is complete.
struct tally {
    int models, shardings, skipped, apart;
    int faster[2]; // of devices that are alike, and that are not
    double worst;  // planned by simulated, or the other way
};

static void tell_faster(const tsr_model *model, const tsr_config *config, double hand,
                        double planned, uint64_t seed, uint64_t trial)
{
    const char *edits = "";
    tsr_model *shown = (tsr_model *)(uintptr_t)model;
    if (tsr_config_edits(shown, config, &edits) != TSR_OK)
        edits = "";
    printf("# seed %llu sharding %llu: by hand %g s, planned %g s (%.4f)\n%s\n",
           (unsigned long long)seed, (unsigned long long)trial, hand, planned, hand / planned,
           edits);
}

static bool are_alike(const tsr_topology *topology)
{
    double flops = tsr_topology_device_at(topology, 0)->flops;
    for (int i = 1; i < tsr_topology_devices(topology); i++)
        if (tsr_topology_device_at(topology, i)->flops != flops)
            return false;
    return true;
}

// Stages by hand are compared with stages that are planned: only these leave outputs where they are made.
static bool has_stages(tsr_model *model, const tsr_config *config)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        int64_t stage;
        const tsr_node_config *said = tsr_node_find_config(node, config);
        if (said && tsr_node_config_stage(said, &stage))
            return true;
    }
    return false;
}

// Seconds of the best plan with stages; 0: there is none.
static double best_staged(tsr_model *model, tsr_topology *topology)
{
    static const char name[] = "staged";
    tsr_plan_options options = {
        .size = sizeof options, .topology = topology, .stages = TSR_STAGES_AUTO, .config = name};
    tsr_plan_summary plan = {.size = sizeof plan};
    tsr_config *before = tsr_model_find_config(model, name);
    if (!before && tsr_plan(model, &options, &plan) != TSR_OK)
        return 0;
    return simulated(model, name, topology);
}

static void try_hands(tsr_model *model, tsr_topology *topology, double planned, uint64_t seed,
                      uint64_t shardings, struct tally *tally)
{
    tsr_config *config = NULL;
    int devices = tsr_topology_devices(topology);
    bool uneven = !are_alike(topology);
    if (tsr_model_add_config(model, "hand", devices, NULL, 0, &config) != TSR_OK)
        return;
    for (uint64_t trial = 0; trial < shardings; trial++) {
        double seconds = 0;
        if (tsr_model_shard_random(model, config, seed * 1000 + trial, NULL, 0) == TSR_OK)
            seconds = simulated(model, "hand", topology);
        tally->shardings += seconds > 0;
        tally->skipped += seconds <= 0;
        if (seconds <= 0 || seconds * SLACK >= planned)
            continue;
        if (has_stages(model, config) && seconds * SLACK >= best_staged(model, topology))
            continue;
        tally->faster[uneven]++;
        tell_faster(model, config, seconds, planned, seed, trial);
    }
}

// A plan and its simulation give the same number, within 3 %.
static void compare(double told, double planned, uint64_t seed, struct tally *tally)
{
    double ratio = planned > told ? planned / told : told / planned;
    tally->worst = ratio > tally->worst ? ratio : tally->worst;
    if (ratio <= 1.03)
        return;
    tally->apart++;
    printf("# seed %llu: planned %g s, simulated %g s\n", (unsigned long long)seed, told, planned);
}

static bool try_model(uint64_t seed, uint64_t shardings, struct tally *tally)
{
    bool done = false;
    tsr_session *session = tsr_session_new(NULL);
    tsr_model *model = make_model(session, seed);
    tsr_topology *topology = make_topology(session, seed);
    tsr_plan_options options = {.size = sizeof options, .topology = topology};
    tsr_plan_summary plan = {.size = sizeof plan};
    if (model && topology && tsr_plan(model, &options, &plan) == TSR_OK) {
        char config[64];
        snprintf(config, sizeof config, "%s", plan.config);
        double planned = simulated(model, config, topology), told = plan.milliseconds / 1e3;
        tally->models++;
        compare(told, planned, seed, tally);
        if (plan.optimal)
            try_hands(model, topology, planned, seed, shardings, tally);
        done = true;
    }
    tsr_topology_free(topology);
    tsr_model_free(model);
    tsr_session_free(session);
    return done;
}

int main(int argc, char **argv)
{
    uint64_t models = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    uint64_t shardings = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    if (under_valgrind())
        models /= 15;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    struct tally tally = {0};
    bool all = true;
    for (uint64_t i = 0; i < models; i++)
        all = try_model(first + i, shardings, &tally) && all;
    for (uint64_t i = 0; i < COMPARED * models; i++)
        all = try_model(first + models + i, 0, &tally) && all;
    printf("# %d models, %d shardings (%d could not be cut): %d faster, %d more on devices that "
           "differ; planned and "
           "simulated %d apart, at most %.4f\n",
           tally.models, tally.shardings, tally.skipped, tally.faster[0], tally.faster[1],
           tally.apart, tally.worst);
    bool tried = all && tally.shardings > 0, few = tally.faster[1] * 2000 <= tally.shardings;
    bool agree = tally.apart == 0;
    printf("%s 1 - every model was planned and tried\n", tried ? "ok" : "not ok");
    printf("%s 2 - no sharding by hand is faster\n", tally.faster[0] ? "not ok" : "ok");
    printf("%s 3 - few are where devices differ\n", few ? "ok" : "not ok");
    printf("%s 4 - planned and simulated agree\n", agree ? "ok" : "not ok");
    return tried && !tally.faster[0] && few && agree ? 0 : 1;
}
