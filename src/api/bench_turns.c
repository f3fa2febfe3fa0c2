// SPDX-License-Identifier: Apache-2.0
// bench_turns.c - measures a partition and the unsharded model in turns, so that the load of the
// machine affects both.
//
//     unsharded, partition, unsharded, partition, unsharded, partition: each turn loads its model
//     and measures a third of the time. Three turns give three ratios, which show the spread.
//
// Only one of them is in memory at a time, and a model that cannot run unsharded is no error.
#include "api/api.h"
#include "ir/ir.h"
#include "runtime/runtime.h"
#include "tensors/tensors.h"

#include <stdlib.h>

#define TURNS 3

// The turns of one program.
struct turns {
    struct arena *arena;
    VEC(double) times;
    size_t warmups;
    double load_s, seconds;
    double typical[TURNS]; // time of a run in each turn
    tsr_bench_result last;
};

// Returns the time of a run: the median, or the time between results if runs overlap.
static double typical_time(const tsr_bench_result *result, int in_flight)
{
    if (in_flight > 1 && result->runs)
        return result->seconds / (double)result->runs;
    return result->p50_s;
}

static tsr_status measure_turn(struct turns *turns, int turn, const char *path,
                               const tsr_run_options *options, const tsr_tensors *inputs,
                               double seconds)
{
    tsr_bench_result *result = &turns->last;
    *result = (tsr_bench_result){.size = sizeof *result};
    TRY(tsr_bench(turns->arena->session, path, options, inputs, seconds / TURNS, result));
    for (size_t i = 0; i < result->runs; i++)
        vec_add(turns->arena, &turns->times, result->times[i]);
    turns->typical[turn] = typical_time(result, options->in_flight);
    turns->warmups += result->warmups;
    turns->seconds += result->seconds;
    if (turn == 0)
        turns->load_s = result->load_s;
    return arena_status(turns->arena);
}

// Returns the figures of all turns. Communication and memory are those of the last one.
static tsr_bench_result sum_of_turns(struct turns *turns)
{
    tsr_bench_result result = turns->last;
    tsr__bench_times(turns->times.at, turns->times.n, &result);
    result.times = NULL;
    result.warmups = turns->warmups;
    result.load_s = turns->load_s;
    result.seconds = turns->seconds;
    return result;
}

const char *tsr__unsharded_device(const tsr_model *model, const char *name)
{
    const tsr_config *config = name ? tsr_model_find_config(model, name) : NULL;
    if (!config && tsr_model_config_count(model) == 1)
        config = tsr_model_config(model, 0);
    if (!config)
        return NULL;
    for (size_t i = 0; i < tsr_config_device_name_count(config); i++) {
        const char *device = tsr_config_device_name(config, i);
        if (device && device[0] && tsr__device_number(str_of(device), "CPU") < 0)
            return device;
    }
    return NULL;
}

// Returns the options of the unsharded runs. They get as many threads as the ranks of this process
// together, by default all cores.
static tsr_run_options unsharded_options(const tsr_model *model, const char *config,
                                         const tsr_run_options *options, bool launched)
{
    tsr_run_options run = *options;
    const tsr_config *of = config ? tsr_model_find_config(model, config) : NULL;
    if (launched)
        run.transport = TSR_TRANSPORT_THREADS;
    run.rank = run.ranks = 0;
    run.hosts = run.trace = NULL;
    run.gpu_memory = 0;
    run.facts = run.check_files = false;
    run.device = tsr__unsharded_device(model, config);
    if (run.threads > 0 && !launched && of)
        run.threads *= (int)tsr_config_devices(of);
    return run;
}

// True if the weights of the model are smaller than half of the memory that the session may use.
// Otherwise the system could end this process.
static bool may_fit(const tsr_model *model)
{
    size_t limit = tsr_model_session(model)->memory_limit;
    return limit == 0 || (uint64_t)tsr__model_weight_bytes(model) < limit / 2;
}

// Runs the unsharded model for a turn. A failure is reported in the baseline, and no further turn
// is tried; only a cancelled or failed session ends the measurement.
static tsr_status unsharded_turn(struct turns *turns, int turn, const tsr_model *model,
                                 const tsr_run_options *options, const tsr_tensors *inputs,
                                 double seconds, tsr_bench_baseline *baseline)
{
    tsr_session *session = tsr_model_session(model);
    struct diag_mark mark = tsr__diag_mark(session);
    if (!baseline->measured)
        return TSR_OK;
    tsr_status st = measure_turn(turns, turn, tsr_model_path(model), options, inputs, seconds);
    if (st == TSR_OK || st == TSR_CANCELLED || st == TSR_NOMEM)
        return st;
    tsr__diag_back(session, &mark, false);
    baseline->measured = false;
    baseline->why = tsr_status_text(st);
    return TSR_OK;
}

// Sets the speedups: the time of an unsharded run by that of a sharded one.
static void compare(struct turns *sharded, struct turns *unsharded, tsr_bench_baseline *baseline)
{
    double ratios[TURNS];
    for (int i = 0; i < TURNS; i++)
        ratios[i] = sharded->typical[i] > 0 ? unsharded->typical[i] / sharded->typical[i] : 0;
    qsort(ratios, TURNS, sizeof *ratios, by_double);
    baseline->speedup = ratios[TURNS / 2];
    baseline->least_speedup = ratios[0];
    baseline->most_speedup = ratios[TURNS - 1];
    baseline->result = sum_of_turns(unsharded);
}

tsr_status tsr__bench_turns(const tsr_model *model, const char *config, const char *parts,
                            const tsr_run_options *options, const tsr_tensors *inputs,
                            double seconds, tsr_bench_result *result, tsr_bench_baseline *baseline)
{
    int rank = 0;
    struct arena arena = {.session = tsr_model_session(model)};
    struct turns sharded = {.arena = &arena}, unsharded = {.arena = &arena};
    bool launched = tsr__run_launched(arena.session, options, &rank);
    tsr_run_options alone = unsharded_options(model, config, options, launched);
    tsr_status st = TSR_OK;
    const uint64_t steps = 2 * TURNS;
    baseline->measured = rank == 0 && may_fit(model);
    baseline->why = rank == 0 ? "its weights may not fit in the memory of this machine" : "";
    baseline->threads = alone.threads;
    for (int turn = 0; turn < TURNS && st == TSR_OK; turn++) {
        uint64_t step = 2 * (uint64_t)turn;
        if (baseline->measured)
            tsr__progress_step(arena.session, "unsharded, turn", step, steps);
        st = unsharded_turn(&unsharded, turn, model, &alone, inputs, seconds, baseline);
        tsr__progress_step(arena.session, "sharded, turn", step + 1, steps);
        if (st == TSR_OK)
            st = measure_turn(&sharded, turn, parts, options, inputs, seconds);
    }
    tsr__progress_step(arena.session, "turns", steps, steps);
    if (st == TSR_OK)
        *result = sum_of_turns(&sharded);
    if (st == TSR_OK && baseline->measured)
        compare(&sharded, &unsharded, baseline);
    tsr__arena_free(&arena);
    return st;
}
