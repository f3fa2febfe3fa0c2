// SPDX-License-Identifier: Apache-2.0
// test_hand_stages.c - checks plans with pipeline stages of small models. They must agree with
// their simulation, and random stages must not be faster, neither in latency nor in period. Random
// stages: the chain of nodes is split at random places, each stage gets random devices and
// shardings.
//
//     api_test_hand_stages             a sample, as `make test` runs it
//     api_test_hand_stages 200 60 1    number of models, random stages per model, first seed
#include "../valgrind.h"
#include "small_models.h"

#include <stdio.h>
#include <stdlib.h>

#define SLACK      1.01 // the plan ignores which device has the larger part: at most 0.5 %
#define PACE_SLACK 1.02 // devices of a stage that finish early start the next run: at most 1.1 %
#define AGREE      1.03
#define MOST       4  // devices
#define RUNS       12 // consecutive runs: enough for a steady period

struct tally {
    int plans, hands, skipped;
    int apart[2];    // latency; period
    double worst[2]; // ratio of planned and simulated time
    int faster;      // random stages faster than a plan that is called optimal
    int below;       // random stages faster than the proved lower bound
    int slower;      // random stages with a shorter period than the plan
};

// ---- planned and simulated ---------------------------------------------------------------------

// Latency and period in seconds; 0: the sharding is not possible.
struct times {
    double run, period;
};

static struct times simulated(tsr_model *model, const char *config, tsr_topology *topology,
                              int requests)
{
    tsr_simulation *simulation = NULL;
    tsr_simulate_options options = {
        .size = sizeof options, .config = config, .topology = topology, .requests = requests};
    if (tsr_simulate(model, &options, &simulation) != TSR_OK)
        return (struct times){0};
    struct times times = {tsr_simulation_read(simulation)->facts.first,
                          tsr_simulation_read(simulation)->facts.period};
    tsr_simulation_free(simulation);
    return times;
}

static void compare(struct tally *tally, int what, double told, double seen, uint64_t seed)
{
    double ratio = told > seen ? told / seen : seen / told;
    if (ratio > tally->worst[what])
        tally->worst[what] = ratio;
    if (ratio <= AGREE)
        return;
    tally->apart[what]++;
    printf("# seed %llu: %s planned %g s, simulated %g s\n", (unsigned long long)seed,
           what ? "pace" : "one run", told, seen);
}

// ---- random stages -----------------------------------------------------------------------------

// The devices of each stage. Example: 4 devices in the order 2 0 3 1, split after 1 and 3: stage 0
// has device 2, stage 1 has devices 0 and 3.
struct deal {
    int order[MOST], begin[MOST + 1];
};

static struct deal deal_devices(struct dice *dice, int devices, int stages)
{
    struct deal deal = {{0}, {0}};
    for (int i = 0; i < devices; i++) {
        int k = (int)pick(dice, i + 1);
        deal.order[i] = deal.order[k];
        deal.order[k] = i;
    }
    // Each stage has at least one device; the rest is idle.
    int spare = devices - stages;
    for (int k = 0; k < stages; k++) {
        int more = (int)pick(dice, spare + 1);
        spare -= more;
        deal.begin[k + 1] = deal.begin[k] + 1 + more;
    }
    return deal;
}

// Makes the node's output replicated, or shards its rows or columns over the devices of the stage.
static bool shard_output(struct dice *dice, tsr_node *node, tsr_config *config,
                         const struct deal *deal, int stage)
{
    char text[64];
    int n = deal->begin[stage + 1] - deal->begin[stage], cut = (int)pick(dice, 3);
    int at = snprintf(text, sizeof text, "{%d,%d:", cut == 1 ? n : 1, cut == 2 ? n : 1);
    for (int i = 0; i < n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d", i ? "," : "",
                       deal->order[deal->begin[stage] + i]);
    snprintf(text + at, sizeof text - (size_t)at, "}");
    return tsr_node_set_stage(node, config, stage) == TSR_OK &&
           tsr_node_shard_text(node, tsr_node_output(node, 0), config, text) == TSR_OK;
}

// Chooses ascending node indices at which stages end; false: too few nodes.
static bool cut_chain(struct dice *dice, int nodes, int stages, int *ends)
{
    if (nodes < stages)
        return false;
    int begin = 0;
    for (int k = 0; k < stages; k++) {
        int left = nodes - begin - (stages - k);
        begin += 1 + (k + 1 < stages ? (int)pick(dice, left + 1) : left);
        ends[k] = begin;
    }
    return true;
}

// Times of random stages; 0: not possible.
static struct times try_hand(tsr_model *model, tsr_topology *topology, int stages, int runs,
                             struct dice *dice)
{
    int ends[MOST], at = 0, stage = 0;
    static const char name[] = "hand";
    tsr_config *config = NULL;
    tsr_graph *graph = tsr_model_graph(model);
    int devices = tsr_topology_devices(topology);
    struct deal deal = deal_devices(dice, devices, stages);
    if (!cut_chain(dice, (int)tsr_graph_node_count(graph), stages, ends) ||
        tsr_model_add_config(model, name, devices, NULL, 0, &config) != TSR_OK)
        return (struct times){0};
    struct times seconds = {0};
    bool told = true;
    for (tsr_node *node = tsr_graph_first(graph); node && told; node = tsr_node_next(node)) {
        if (at++ == ends[stage])
            stage++;
        told = shard_output(dice, node, config, &deal, stage);
    }
    if (told)
        seconds = simulated(model, name, topology, runs);
    if (tsr_model_remove_config(model, config, true) != TSR_OK)
        return (struct times){0};
    return seconds;
}

// `planned`: the plan's latency or period, whichever is its objective.
static void try_hands(tsr_model *model, tsr_topology *topology, const tsr_plan_facts *plan,
                      double planned, uint64_t seed, uint64_t hands, struct tally *tally)
{
    struct dice dice = {seed * 1000 + 7};
    bool paced = plan->objective == TSR_THROUGHPUT, slower = false;
    double slack = paced ? PACE_SLACK : SLACK;
    for (uint64_t i = 0; i < hands; i++) {
        struct times times =
            try_hand(model, topology, (int)plan->n_stages, paced ? RUNS : 1, &dice);
        double seconds = paced ? times.period : times.run;
        tally->hands += seconds > 0;
        tally->skipped += seconds <= 0;
        if (seconds <= 0 || seconds * slack >= planned)
            continue;
        double least = (double)plan->bound / 1e12;
        tally->faster += plan->optimal;
        tally->below += seconds * slack < least;
        slower = paced;
        printf("# seed %llu, %zu stages by hand: %g s, planned %g s (%s, not below %g)\n",
               (unsigned long long)seed, plan->n_stages, seconds, planned,
               plan->optimal ? "the least" : "not the least", least);
    }
    tally->slower += slower;
}

// ---- one model ---------------------------------------------------------------------------------

// stages 0: the planner chooses the number. Returns false if there is no plan or no simulation.
static bool try_stages(uint64_t seed, int64_t stages, tsr_objective objective, uint64_t hands,
                       struct tally *tally)
{
    bool done = true;
    tsr_session *session = tsr_session_new(NULL);
    tsr_model *model = make_model(session, seed);
    tsr_topology *topology = make_topology(session, seed);
    tsr_plan_options options = {.size = sizeof options,
                                .topology = topology,
                                .config = "planned",
                                .stages = stages,
                                .objective = objective};
    tsr_plan_result *result = NULL;
    bool fits = stages <= tsr_topology_devices(topology) &&
                stages <= (int64_t)tsr_graph_node_count(tsr_model_graph(model));
    if (!fits)
        goto free_model;
    done = tsr_plan(model, &options, &result) == TSR_OK;
    struct times seen = {0};
    if (done)
        seen = simulated(model, "planned", topology, RUNS);
    done = done && seen.run > 0;
    if (!done)
        goto free_model;
    tsr_plan_facts plan = TSR_PLAN_FACTS_INIT;
    (void)tsr_plan_result_about(result, &plan);
    tally->plans++;
    compare(tally, 0, plan.milliseconds / 1e3, seen.run, seed);
    if (plan.n_stages)
        compare(tally, 1, (double)plan.period / 1e12, seen.period, seed);
    if (plan.n_stages)
        try_hands(model, topology, &plan, objective == TSR_LATENCY ? seen.run : seen.period, seed,
                  hands, tally);
free_model:
    tsr_plan_result_free(result);
    tsr_topology_free(topology);
    tsr_model_free(model);
    tsr_session_free(session);
    return done;
}

int main(int argc, char **argv)
{
    static const int64_t stages[] = {2, 3, TSR_STAGES_AUTO};
    uint64_t models = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    uint64_t hands = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (under_valgrind())
        models /= 15;
    struct tally tally = {0};
    bool all = true;
    for (uint64_t i = 0; i < models; i++)
        for (size_t k = 0; k < sizeof stages / sizeof *stages; k++) {
            tsr_objective objective = (first + i + k) % 3 ? TSR_LATENCY : TSR_THROUGHPUT;
            all = try_stages(first + i, stages[k], objective, hands, &tally) && all;
        }
    printf(
        "# %d plans, %d stages by hand (%d could not be cut): %d faster than the least, %d below "
        "the bound, %d paces not the best; planned and simulated %d apart (at most %.4f), their "
        "paces %d (%.4f)\n",
        tally.plans, tally.hands, tally.skipped, tally.faster, tally.below, tally.slower,
        tally.apart[0], tally.worst[0], tally.apart[1], tally.worst[1]);
    bool tried = all && tally.plans > 0 && (hands == 0 || tally.hands > 0);
    bool few = tally.apart[1] * 50 <= tally.plans;
    printf("%s 1 - every model was planned and tried\n", tried ? "ok" : "not ok");
    printf("%s 2 - planned and simulated agree\n", tally.apart[0] ? "not ok" : "ok");
    printf("%s 3 - so do the paces of nearly all\n", few ? "ok" : "not ok");
    printf("%s 4 - no stages by hand are faster than the least\n", tally.faster ? "not ok" : "ok");
    printf("%s 5 - none are below the bound\n", tally.below ? "not ok" : "ok");
    bool paced = tally.slower * 100 <= tally.plans;
    printf("%s 6 - nearly no pace by hand is better\n", paced ? "ok" : "not ok");
    return tried && few && paced && !tally.apart[0] && !tally.faster && !tally.below ? 0 : 1;
}
