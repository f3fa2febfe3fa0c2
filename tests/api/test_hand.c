// SPDX-License-Identifier: Apache-2.0
// test_hand.c - checks that a plan that the planner calls optimal is at least as fast as random
// shardings of the same small model, and that plans agree with their simulation.
//
//     api_test_hand             a sample, as `make test` runs it
//     api_test_hand 200 60 1    number of models, shardings per model, first seed
#include "../valgrind.h"
#include "small_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLACK    1.001 // costs are rounded to picoseconds, node by node
#define COMPARED 4     // the check against simulations runs for this many times more models

// ---- planned and random shardings --------------------------------------------------------------

// Seconds of one simulated run; 0: the sharding is not possible.
static double simulated(tsr_model *model, const char *config, tsr_topology *topology)
{
    tsr_simulation *simulation = NULL;
    tsr_simulate_options options = {.size = sizeof options, .config = config, .topology = topology};
    if (tsr_simulate(model, &options, &simulation) != TSR_OK)
        return 0;
    double seconds = tsr_simulation_read(simulation)->facts.seconds;
    tsr_simulation_free(simulation);
    return seconds;
}

// For devices of different speed the planner tries only some device sets, so a random sharding may
// be faster there; for equal devices it must not be.
struct tally {
    int models, shardings, skipped, apart, experts;
    int faster[2]; // random shardings faster than the plan: equal devices, different devices
    double worst;  // ratio of planned and simulated time
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

// A random sharding with stages is compared with the best plan with stages: only stages leave
// outputs on the device that computes them, which may be faster.
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

// Seconds of the best plan with stages; 0: no plan.
static double best_staged(tsr_model *model, tsr_topology *topology)
{
    static const char name[] = "staged";
    tsr_plan_options options = {
        .size = sizeof options, .topology = topology, .stages = TSR_STAGES_AUTO, .config = name};
    tsr_config *before = tsr_model_find_config(model, name);
    if (!before && tsr_plan(model, &options, NULL) != TSR_OK)
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

// Plans of well-known strategies, which the planner compares itself with, must not be faster.
static void try_experts(const tsr_plan_result *result, const tsr_plan_facts *plan, bool uneven,
                        uint64_t seed, struct tally *tally)
{
    tsr_plan_expert expert = TSR_PLAN_EXPERT_INIT;
    for (size_t i = 0; i < plan->n_compared; i++) {
        if (tsr_plan_result_compared(result, i, &expert) != TSR_OK || !expert.fits)
            continue;
        tally->experts++;
        if (expert.milliseconds * SLACK >= plan->milliseconds)
            continue;
        tally->faster[uneven]++;
        printf("# seed %llu: %s %g ms, planned %g ms\n", (unsigned long long)seed, expert.name,
               expert.milliseconds, plan->milliseconds);
    }
}

// Planned and simulated time must agree within 3 %.
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
    tsr_plan_result *result = NULL;
    if (model && topology && tsr_plan(model, &options, &result) == TSR_OK) {
        tsr_plan_facts plan = TSR_PLAN_FACTS_INIT;
        (void)tsr_plan_result_about(result, &plan);
        double planned = simulated(model, plan.config, topology);
        double predicted = plan.milliseconds / 1e3;
        tally->models++;
        compare(predicted, planned, seed, tally);
        try_experts(result, &plan, !are_alike(topology), seed, tally);
        if (plan.optimal)
            try_hands(model, topology, planned, seed, shardings, tally);
        done = true;
    }
    tsr_plan_result_free(result);
    tsr_topology_free(topology);
    tsr_model_free(model);
    tsr_session_free(session);
    return done;
}

int main(int argc, char **argv)
{
    // Seeds that failed in the past: two models with a Softmax over sharded classes, which the
    // planner charged as one node (3 % and 9 % off); a replicated node that only the first, faster
    // device runs (4 % off); and one that this device does not run.
    static const uint64_t known[] = {3760, 5297, 585, 62};
    uint64_t models = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    uint64_t shardings = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    if (under_valgrind())
        models /= 15;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    struct tally tally = {0};
    bool all = true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        all = try_model(known[i], 0, &tally) && all;
    for (uint64_t i = 0; i < models; i++)
        all = try_model(first + i, shardings, &tally) && all;
    for (uint64_t i = 0; i < COMPARED * models; i++)
        all = try_model(first + models + i, 0, &tally) && all;
    printf("# %d models, %d shardings (%d could not be cut), %d experts' plans: %d faster, %d more "
           "on devices that differ; planned and "
           "simulated %d apart, at most %.4f\n",
           tally.models, tally.shardings, tally.skipped, tally.experts, tally.faster[0],
           tally.faster[1], tally.apart, tally.worst);
    bool tried = all && tally.shardings > 0 && tally.experts > 0,
         few = tally.faster[1] * 2000 <= tally.shardings;
    bool agree = tally.apart == 0;
    printf("%s 1 - every model was planned and tried\n", tried ? "ok" : "not ok");
    printf("%s 2 - no sharding by hand is faster\n", tally.faster[0] ? "not ok" : "ok");
    printf("%s 3 - few are where devices differ\n", few ? "ok" : "not ok");
    printf("%s 4 - planned and simulated agree\n", agree ? "ok" : "not ok");
    return tried && !tally.faster[0] && few && agree ? 0 : 1;
}
