// SPDX-License-Identifier: Apache-2.0
// measured_model.c - runs a model on the ranks of a measured topology, and adds the measured times
// of its nodes to the topology, next to the predicted ones (topology/seen.c).
//
// First all ranks run the unsharded model at the same time. Then the model is planned for the
// topology as it is by now, sharded and run. This repeats until a plan occurs again: a plan based
// on measurements of other plans may be worse than predicted. Each round times a few runs, and a
// few more with the engine's profile, which has the time of each node (profile.c):
//
//     unsharded   A run takes 10 ms, its 100 nodes take 10.5 ms in the profile. So the profile
//                 costs 5 us per node, which are subtracted. Then the times of the nodes are scaled
//                 so that they add up to 10 ms.
//     sharded     The nodes of the slowest rank take 5.2 ms, its 8 collectives 0.3 ms, a run 6.3
//                 ms. So each synchronization loses (6.3 - 5.2 - 0.3) / 8 = 0.1 ms.
//
// If nodes are queued (on GPUs), a profile has only their launch times and is not used. All nodes
// are then scaled by the factor between measured and predicted time of the unsharded model.
#include "measure/internal.h"
#include "api/api.h"
#include "measure/profile.h"
#include "ir/ir.h"
#include "partition/partition.h"
#include "rules/rules.h"
#include "topology/topology.h"

#include <math.h>
#include <stdio.h>

#define RUN_SHARE      0.15 // of the measuring time, for the runs of each round
#define PROFILE_SHARE  0.05
#define PLANNED        4 // maximum number of rounds with a plan
#define FEW_PROCESSES  2 // memory placement differs between processes: the fastest is used
#define MOST_PROCESSES 5
// a process that needs more than this part of the best time is no improvement
#define SETTLED     0.97
#define LEAST_RUN   0.3  // seconds per process: a few runs do not show its best time
#define LEAST_TIMES 0.01 // least factor, for nodes that the engine has removed
#define CONFIG      "measured"

struct modelled {
    tsr_session *session;
    tsr_topology *topology;
    tsr_run_options run;
    double seconds;
    struct arena arena;
    struct scratch scratch;
    tsr_model *model;
    tsr_tensors *inputs;
    tsr_dim_size *sizes;
    size_t n_sizes;
    bool waits_only; // measure only the time lost at synchronization points
    bool queued;     // a device is a GPU, whose profile has only launch times
    double overhead; // overhead of the profile per node, in seconds
    uint64_t plans[PLANNED];
    int n_plans;
    bool settled; // the last plan equals an earlier one, so planning has converged
};

// One configuration of the model, and its measured times.
struct round {
    struct modelled *of;
    bool whole;             // every rank runs the unsharded model
    double took;            // seconds per run
    struct profile profile; // empty on GPUs, whose profiles have only launch times
};

// Nodes of one operator, type and size, on all ranks.
struct alike {
    const char *op, *type;
    struct profile_point point;
    double predicted, seen; // seconds, summed; predicted: without earlier measurements
};

// ---- measured times of nodes --------------------------------------------------------------------

static double sum_seen(const struct sim_device *device)
{
    double sum = 0;
    for (size_t i = 0; i < device->tasks.n; i++)
        sum += device->tasks.at[i].seen;
    return sum;
}

static void scale_seen(struct sim_device *device, double times)
{
    for (size_t i = 0; i < device->tasks.n; i++)
        device->tasks.at[i].seen *= times;
}

// Returns the predicted seconds of the task, without the corrections of earlier measurements.
static double predicted_time(const struct sim *sim, const struct sim_task *task)
{
    const struct topology_profile *seen =
        tsr__topology_profile(sim->topology, task->op, task->type);
    double predicted = (double)task->ps / 1e12;
    return seen ? predicted / tsr__profile_ratio(seen, task->work, task->bytes) : predicted;
}

// Gives nodes their predicted times, without a profile.
static void use_predictions(struct sim_device *device)
{
    for (size_t i = 0; i < device->tasks.n; i++)
        if (!device->tasks.at[i].comm)
            device->tasks.at[i].seen = (double)device->tasks.at[i].ps / 1e12;
}

// Computes the overhead of the profile per node. It is the time of all profiled nodes of the n
// ranks, minus n times the time of a run, divided by the number of nodes. Stays 0 if that is
// negative.
static void find_overhead(struct round *round, int64_t n)
{
    double sum = 0;
    const struct profile *profile = &round->profile;
    for (size_t i = 0; i < profile->nodes.n; i++)
        sum += profile->nodes.at[i].seconds;
    double more = sum - round->took * (double)n;
    if (more > 0 && profile->nodes.n)
        round->of->overhead = more / (double)profile->nodes.n;
}

// Sets the times of a rank's nodes from the profile; without a profile, to the predicted times. The
// time of engine nodes that have no graph node is distributed over all nodes, in proportion.
static void share_out(struct round *round, struct sim *sim, int rank)
{
    struct sim_device *device = &sim->devices[rank];
    if (!round->profile.nodes.n) {
        use_predictions(device);
        return;
    }
    double all = tsr__profile_share_out(&round->profile, sim, rank, round->of->overhead);
    double sum = sum_seen(device);
    if (sum > 0)
        scale_seen(device, all / sum);
}

// Scales the node times of every rank so that their sum is the measured time of the run.
static void fit_unsharded(const struct round *round, struct sim *sim)
{
    for (int64_t i = 0; i < sim->n; i++) {
        double sum = sum_seen(&sim->devices[i]);
        if (sum > 0)
            scale_seen(&sim->devices[i], round->took / sum);
    }
}

// Sums the seconds of a device's collectives, without waiting; *n is their number.
static double sum_collectives(const struct sim *sim, const struct sim_device *device, int *n)
{
    double sum = 0;
    *n = 0;
    for (size_t i = 0; i < device->tasks.n; i++) {
        const struct sim_comm *comm = device->tasks.at[i].comm;
        if (!comm || comm->ps <= 0)
            continue;
        sum += (double)comm->ps / 1e12 - sim->topology->wait;
        ++*n;
    }
    return sum;
}

// Scales the times of nodes to match the time of a run. If the run took longer than the nodes and
// collectives of its slowest rank, the difference is time lost at synchronization points. If it
// took less, the nodes are faster than in the profile.
static void fit_sharded(const struct round *round, struct sim *sim)
{
    const struct sim_device *slowest = &sim->devices[0];
    for (int64_t i = 1; i < sim->n; i++)
        if (sum_seen(&sim->devices[i]) > sum_seen(slowest))
            slowest = &sim->devices[i];
    int meetings = 0;
    double nodes = sum_seen(slowest), met = sum_collectives(sim, slowest, &meetings);
    double more = round->took - nodes - met, times = 1;
    if (more < 0 || !meetings)
        times = fmax(round->took - met, 0.1 * round->took) / nodes;
    if (nodes > 0)
        for (int64_t i = 0; i < sim->n; i++)
            scale_seen(&sim->devices[i], times);
    if (meetings)
        tsr__topology_set_wait(sim->topology, fmax(more, 0) / meetings);
}

// ---- points ------------------------------------------------------------------------------------

// Returns the entry for nodes that equal the task's node in operator, type, work and bytes; adds it
// if it is new. NULL: out of memory.
static struct alike *alike_of(struct sim *sim, struct map *known, const struct sim_task *task)
{
    struct str key =
        tsr__arena_printf(sim->arena, "%s %s %a %a", task->op, task->type, task->work, task->bytes);
    void **at = key.p ? tsr__map_at(known, key) : NULL;
    if (!at)
        return NULL;
    if (!*at) {
        struct alike *fresh = ARENA_NEW(sim->arena, struct alike);
        if (!fresh)
            return NULL;
        *fresh = (struct alike){
            .op = task->op, .type = task->type, .point = {task->work, task->bytes, 1}};
        *at = fresh;
    }
    return *at;
}

// Adds a point (measured time divided by predicted time) for each kind of node to the topology. All
// predicted times are computed first, because the points change them.
static tsr_status add_points(struct sim *sim)
{
    struct map known;
    VEC(struct alike *) list = {0};
    tsr__map_init(&known, sim->arena, 64);
    for (int64_t i = 0; i < sim->n; i++)
        for (size_t k = 0; k < sim->devices[i].tasks.n; k++) {
            const struct sim_task *task = &sim->devices[i].tasks.at[k];
            if (task->comm || task->ps <= 0)
                continue;
            struct alike *alike = alike_of(sim, &known, task);
            if (!alike)
                return TSR_NOMEM;
            if (alike->predicted == 0 && !vec_add(sim->arena, &list, alike))
                return TSR_NOMEM;
            alike->predicted += predicted_time(sim, task);
            alike->seen += task->seen;
        }
    for (size_t i = 0; i < list.n; i++) {
        struct alike *alike = list.at[i];
        alike->point.times = fmax(alike->seen / alike->predicted, LEAST_TIMES);
        if (!tsr__topology_add_profile(sim->topology, alike->op, alike->type, &alike->point))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Fits the measured times to the rank graphs and adds them to the topology. tsr__partition_visit
// calls it with the rank graphs.
static tsr_status use_parts(void *data, const struct partition_part *parts, int64_t n)
{
    struct round *round = data;
    struct modelled *of = round->of;
    struct sim sim = {.session = of->session, .arena = &of->arena, .topology = of->topology};
    TRY(tsr__sim_read(&sim, parts, n, of->sizes, of->n_sizes));
    if (round->whole)
        find_overhead(round, n);
    for (int rank = 0; rank < (int)n; rank++)
        share_out(round, &sim, rank);
    if (round->whole)
        fit_unsharded(round, &sim);
    else
        fit_sharded(round, &sim);
    return of->waits_only ? TSR_OK : add_points(&sim);
}

// ---- runs --------------------------------------------------------------------------------------

// Finds the fastest run of a few processes, until one more is hardly faster. Example: 3.1 ms, then
// 2.7 ms; 2.65 ms ends the search. If time is short, two processes are used.
static tsr_status find_best(struct round *round, const char *folder)
{
    struct modelled *of = round->of;
    tsr_bench_result result = {.size = sizeof result};
    double seconds = RUN_SHARE / FEW_PROCESSES * of->seconds;
    if (of->seconds >= 1)
        seconds = fmax(seconds, LEAST_RUN);
    round->took = INFINITY;
    for (int i = 0; i < MOST_PROCESSES; i++) {
        TRY(tsr_bench(of->session, folder, &of->run, of->inputs, seconds, &result));
        bool faster = result.min_s < SETTLED * round->took;
        round->took = fmin(round->took, result.min_s);
        if (i + 1 >= FEW_PROCESSES && (!faster || of->seconds < 1))
            break;
    }
    return TSR_OK;
}

// Times some runs, then a few more with the profiler on.
static tsr_status time_runs(struct round *round, const char *folder)
{
    struct modelled *of = round->of;
    tsr_run_options run = of->run;
    tsr_bench_result result = {.size = sizeof result};
    TRY(find_best(round, folder));
    if (of->queued)
        return TSR_OK;
    struct str trace = tsr__arena_printf(&of->arena, "%s/trace.json", of->scratch.folder);
    if (!trace.p)
        return TSR_NOMEM;
    run.trace = trace.p;
    struct diag_mark before = tsr__diag_mark(of->session);
    tsr_status st =
        tsr_bench(of->session, folder, &run, of->inputs, PROFILE_SHARE * of->seconds, &result);
    tsr__diag_back(of->session, &before, true); // the limit of the trace does not matter here
    if (st != TSR_OK)
        return st;
    return tsr__profile_read(of->session, &of->arena, trace.p, &round->profile);
}

// Partitions a copy of the model in which all dimensions have sizes, to get its rank graphs.
static tsr_status partition_copy(struct round *round, tsr_model *model)
{
    struct modelled *of = round->of;
    tsr_model *copy = NULL;
    const tsr_dim_size *all = of->sizes;
    size_t n = of->n_sizes;
    TRY(tsr_model_clone(model, &copy));
    tsr_status st = TSR_NOMEM;
    if (tsr__plan_sizes_assume(&of->arena, model, &all, &n))
        st = tsr__shapes_declare(copy, all, n, NULL);
    if (st == TSR_OK)
        st = tsr__partition_visit(copy, CONFIG,
                                  &(struct partition_visitor){.visit = use_parts, .data = round});
    tsr_model_free(copy);
    return st;
}

static tsr_status run_round(struct round *round, tsr_model *model, int number)
{
    struct modelled *of = round->of;
    tsr_partition_options cut = {.size = sizeof cut, .config = CONFIG};
    struct str folder = tsr__arena_printf(&of->arena, "%s%d", of->scratch.parts, number);
    if (!folder.p)
        return TSR_NOMEM;
    TRY(tsr_partition(model, folder.p, &cut, NULL));
    TRY(time_runs(round, folder.p));
    return partition_copy(round, model);
}

// Adds a configuration without annotations: every device runs all nodes.
static tsr_status add_config(const struct modelled *of, tsr_model *model)
{
    tsr_config *made;
    TRY(tsr__model_allow_configs(model));
    const char *names[MEASURE_RANKS];
    for (int i = 0; i < of->topology->n; i++)
        names[i] = of->topology->device[i].name;
    return tsr_model_add_config(model, CONFIG, of->topology->n, names, (size_t)of->topology->n,
                                &made);
}

// Creates a topology with the same device names, but so slow (1 MFLOP/s) that the planner shards
// every node.
static tsr_status slow_devices(const struct modelled *of, tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "full:%d", of->topology->n);
    TRY(tsr_topology_parse(of->session, text, out));
    for (int i = 0; i < of->topology->n; i++)
        tsr_topology_set_device(*out, i,
                                &(tsr_topology_device){.name = of->topology->device[i].name,
                                                       .memory = of->topology->device[i].memory,
                                                       .flops = 1e6});
    return TSR_OK;
}

static tsr_status plan_for(const struct modelled *of, tsr_model *model)
{
    tsr_topology *slow = NULL;
    tsr_plan_options plan = {.size = sizeof plan, .topology = of->topology, .config = CONFIG};
    tsr_status st = TSR_OK;
    if (of->waits_only) {
        st = slow_devices(of, &slow);
        plan.topology = slow;
    }
    if (st == TSR_OK)
        st = tsr_plan_for_sizes(model, &plan, of->sizes, of->n_sizes, NULL);
    tsr_topology_free(slow);
    return st;
}

// Sets *out if the plan was run before; otherwise records it.
static tsr_status is_known(struct modelled *of, tsr_model *model, bool *out)
{
    const char *edits;
    *out = false;
    TRY(tsr_config_edits(model, tsr_model_find_config(model, CONFIG), &edits));
    uint64_t plan = tsr__hash64(edits, strlen(edits), 0);
    for (int i = 0; i < of->n_plans; i++)
        *out = *out || of->plans[i] == plan;
    if (!*out)
        of->plans[of->n_plans++] = plan;
    return TSR_OK;
}

// Plans, runs and times once. number 0: unsharded on every rank.
static tsr_status one_round(struct modelled *of, int number)
{
    struct round round = {.of = of, .whole = number == 0};
    tsr_model *model = NULL;
    tsr_status st = tsr__model_clone_bare(of->model, &model);
    if (st != TSR_OK)
        return st;
    if (round.whole) {
        st = add_config(of, model);
    } else {
        st = plan_for(of, model);
        if (st == TSR_OK)
            st = is_known(of, model, &of->settled);
    }
    if (st == TSR_OK && !of->settled)
        st = run_round(&round, model, number);
    tsr_model_free(model);
    return st;
}

// ---- entry points -------------------------------------------------------------------------------

static tsr_status open_inputs(tsr_session *session, const char *set, const tsr_model *model,
                              tsr_tensors **inputs)
{
    TRY(tsr_tensors_new(session, inputs));
    return tsr_tensors_load(*inputs, set, model, false);
}

// Loads the model and its inputs. The caller frees both, also after a failure.
static tsr_status open_model(tsr_session *session, const tsr_measure_options *options,
                             tsr_model **model, tsr_tensors **inputs)
{
    const char *set = options->inputs ? options->inputs : "random:0";
    TRY(tsr_model_load(session, options->model, model));
    return open_inputs(session, set, *model, inputs);
}

tsr_status tsr__measure_model_open(tsr_session *session, const tsr_measure_options *options)
{
    tsr_model *model = NULL;
    tsr_tensors *inputs = NULL;
    struct diag_mark before = tsr__diag_mark(session);
    tsr_status st = open_model(session, options, &model, &inputs);
    tsr_tensors_free(inputs);
    tsr_model_free(model);
    if (st == TSR_OK)
        tsr__diag_back(session, &before, true); // the warnings will be repeated
    return st;
}

// Opens the model and its inputs, and creates a temporary folder.
static tsr_status begin(struct modelled *of, const tsr_measure_options *options)
{
    tsr_status st;
    if (of->waits_only) {
        st = tsr__measure_waits_model(of->session, &of->model);
        if (st == TSR_OK)
            st = open_inputs(of->session, "random:0", of->model, &of->inputs);
    } else {
        st = open_model(of->session, options, &of->model, &of->inputs);
    }
    if (st != TSR_OK)
        return st;
    if (!tsr__input_sizes(&of->arena, of->model, of->inputs, &of->sizes, &of->n_sizes))
        return TSR_NOMEM;
    return tsr__scratch_open(of->session, &of->arena, of->run.work, &of->scratch);
}

// Prepares the run options. Ranks of a partition have their own devices, so the device of the
// options is removed.
static void prepare(struct modelled *of, const tsr_measure_options *options)
{
    of->run = (tsr_run_options){.size = sizeof of->run};
    if (options->run)
        of->run = *options->run;
    of->run.device = NULL;
    of->seconds = options->seconds > 0 ? options->seconds : MEASURE_SECONDS;
    for (int i = 0; i < of->topology->n; i++)
        of->queued = of->queued || of->topology->device[i].queued;
}

// Runs the rounds up to number `last`.
static tsr_status measure(struct modelled *of, const tsr_measure_options *options, int last)
{
    prepare(of, options);
    tsr__arena_init(&of->arena, of->session);
    tsr_status st = begin(of, options);
    for (int number = 0; number <= last; number++) {
        if (st != TSR_OK || of->settled)
            break;
        st = one_round(of, number);
        tsr__progress(of->session, "model", (uint64_t)number + 1, (uint64_t)last + 1);
    }
    tsr__scratch_close(&of->scratch);
    tsr_tensors_free(of->inputs);
    tsr_model_free(of->model);
    tsr__arena_free(&of->arena);
    return st;
}

tsr_status tsr__measure_model(tsr_topology *topology, const tsr_measure_options *options)
{
    struct modelled of = {.session = topology->session, .topology = topology};
    return measure(&of, options, topology->n > 1 ? PLANNED : 0);
}

tsr_status tsr__measure_waits(tsr_topology *topology, const tsr_measure_options *options)
{
    struct modelled of = {.session = topology->session, .topology = topology, .waits_only = true};
    for (int i = 0; i < topology->n; i++)
        if (topology->device[i].queued)
            return TSR_OK;
    return topology->n < 2 ? TSR_OK : measure(&of, options, 1);
}
