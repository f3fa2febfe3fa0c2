// SPDX-License-Identifier: Apache-2.0
// measured_topology.c - tsr_topology_measure: creates a topology from measurements.
//
// Numbers that were not measured (0) keep their defaults. Only rank 0 has numbers: on the other
// ranks of a launcher `ranks` is 0, and *out becomes NULL.
#include "measure/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "runtime/runtime.h"
#include "topology/topology.h"

#include <math.h>
#include <stdio.h>

static tsr_status begin(tsr_session *session, int n, tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "cpu:%d", n);
    return tsr_topology_parse(session, text, out);
}

// Finds the device names of run->device ("cuda:2@0"), owned by *named; *named NULL: no devices were
// given.
static tsr_status name_devices(tsr_session *session, tsr_measure_options *options,
                               const char **names, tsr_topology **named)
{
    const tsr_run_options *run = options->run;
    if (!run || !run->device)
        return TSR_OK;
    TRY(tsr__topology_real(session, run->device, run->gpu_driver, run->gpu_nccl, named));
    options->devices = tsr_topology_devices(*named);
    for (int i = 0; i < options->devices; i++)
        if (i < MEASURE_RANKS)
            names[i] = tsr_topology_device_at(*named, i)->name;
    return TSR_OK;
}

// Ranks exchange 4 MiB, which caches hold. So a link may be faster than memory, but not by more
// than this factor.
#define CACHE_FACTOR 8

static bool is_possible(const struct measured *measured)
{
    double memory = 0;
    for (int i = 0; i < measured->ranks; i++)
        memory += measured->rank[i].bandwidth;
    for (int i = 0; i < measured->ranks; i++)
        for (int k = i + 1; k < measured->ranks; k++)
            if (!(measured->latency[i][k] > 0) || !(measured->bandwidth[i][k] > 0) ||
                (memory > 0 && measured->bandwidth[i][k] > CACHE_FACTOR * memory))
                return false;
    for (int what = 0; what < MEASURE_KINDS; what++)
        for (int k = 0; measured->one_host && k < measured->n_groups; k++)
            for (int i = 0; i < MEASURE_POINTS; i++)
                if (!(measured->seconds[what][k][i] > 0))
                    return false;
    return !measured->unsteady;
}

#define MOST_DIFFERENCE 1.25 // of the times of the same work, on an idle machine
#define MOST_OTHERS     0.15

void tsr__measured_check(tsr_session *session, const struct measured *measured)
{
    static const char remedy[] = "run it again on an idle machine";
    if (!is_possible(measured))
        tsr__diag(session, DIAG_topology_measured, NULL, remedy,
                  "the measured speeds of links are not possible: other programs disturbed them");
    else if (measured->others > MOST_OTHERS)
        tsr__diag(
            session, DIAG_topology_measured, NULL, remedy,
            "other programs used %.0f %% of the time of this machine's cores, so the measured "
            "speeds are too low",
            100 * fmin(measured->others, 1));
    else if (measured->differ > MOST_DIFFERENCE)
        tsr__diag(session, DIAG_topology_measured, NULL, remedy,
                  "the same work took %.1f times as long a few seconds later: something else slows "
                  "this machine down at times, so the measured speeds may be too low",
                  measured->differ);
}

static void set_links(tsr_topology *topology, const struct measured *measured)
{
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link *link = &topology->links.at[i];
        if (measured->latency[link->from][link->to] > 0)
            link->latency = measured->latency[link->from][link->to];
        if (measured->bandwidth[link->from][link->to] > 0)
            link->bandwidth = measured->bandwidth[link->from][link->to];
    }
}

// Stores the times of collectives, which are measured only if all ranks are on one host. A linear
// fit needs two points.
static bool set_times(tsr_topology *topology, const struct measured *measured)
{
    if (!measured->one_host)
        return true;
    for (int what = 0; what < MEASURE_KINDS; what++)
        for (int k = 0; k < measured->n_groups; k++) {
            struct topology_times x = {.what = (enum tsr_collective)what,
                                       .size = measured->group[k]};
            for (int i = 0; i < MEASURE_POINTS; i++)
                if (measured->seconds[what][k][i] > 0) {
                    x.bytes[x.n] = measured->bytes[i];
                    x.seconds[x.n++] = measured->seconds[what][k][i];
                }
            if (x.n > 1 && !tsr__topology_add_times(topology, &x))
                return false;
        }
    return true;
}

// Stores correction factors for the sizes of the samples. Example: a transpose of 64 MiB by single
// elements takes 10.8 ms. The speed of its kind, measured with rows, predicts 4.8 ms: the factor is
// 2.25.
static bool set_sizes(tsr_topology *topology, const struct measured *measured)
{
    for (int i = 0; i < measured->n_sizes; i++) {
        const struct measured_size *size = &measured->size[i];
        struct node_kind kind = {.rate = size->rate, .move = size->move, .word = size->word};
        double price = (double)tsr__kind_cost(kind, size->type, size->work, size->bytes,
                                              &topology->device[0]) /
                       1e12;
        struct profile_point point = {size->work, size->bytes, size->seconds / price};
        if (price > 0 && !tsr__topology_add_kind_profile(topology, tsr__size_word(kind),
                                                         tsr_dtype_name(size->type), &point))
            return false;
    }
    return true;
}

// Sets devices, then links, then the mesh that the measured links form, then times of collectives
// and of kinds of work by size. names: device names by rank; NULL entries: not given.
static bool fill(tsr_topology *topology, const struct measured *measured, const char *const *names)
{
    for (int i = 0; i < measured->ranks; i++) {
        tsr_topology_device device = measured->rank[i];
        device.name = names[i];
        tsr_topology_set_device(topology, i, &device);
    }
    set_links(topology, measured);
    tsr__topology_recognise(topology);
    return set_times(topology, measured) && set_sizes(topology, measured);
}

// Refuses to measure a model under a launcher: this process cannot shard it for the launcher's
// ranks.
static tsr_status refuse_launched(tsr_session *session, const tsr_measure_options *options)
{
    int rank = 0;
    if (!options->model || !tsr__run_launched(session, options->run, &rank))
        return TSR_OK;
    return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL,
                     "start the command without the launcher, with --transport threads or shm",
                     "a model cannot be measured in ranks of a launcher (mpirun, srun ...)");
}

// True if the time lost at synchronization points can be measured. This needs half a second or
// more. It is not possible under a launcher, whose ranks cannot be made to run a model.
static bool measures_waits(tsr_session *session, const tsr_measure_options *options)
{
    int rank = 0;
    if (options->seconds > 0 && options->seconds < 0.5)
        return false;
    return !tsr__run_launched(session, options->run, &rank);
}

// Copies the caller's options, including the run options.
static tsr_status read_options(tsr_session *session, const tsr_measure_options *given,
                               tsr_measure_options *own, tsr_run_options *run)
{
    tsr_status st = OPTIONS_READ(session, own, given, inputs);
    if (st != TSR_OK || !own->run)
        return st;
    st = OPTIONS_READ(session, run, own->run, most_ranks);
    own->run = run;
    return st;
}

// Runs a model on ranks of this host, and stores the measured times of its nodes for later
// predictions.
tsr_status tsr_topology_add_profile(tsr_topology *topology, const tsr_measure_options *options)
{
    tsr_session *session = topology->session;
    tsr_measure_options own;
    tsr_run_options run;
    TRY(read_options(session, options, &own, &run));
    if (!own.model)
        return tsr__missing(session, "model");
    TRY(refuse_launched(session, &own));
    if (topology->n <= MEASURE_RANKS)
        return tsr__measure_model(topology, &own);
    return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL, "use at most 64 ranks",
                     "%d ranks are too many to measure a model on one host", topology->n);
}

// Measures this machine. struct measured is large (all pairs of ranks), so it is not on the stack.
static tsr_status measure(tsr_session *session, const tsr_measure_options *options,
                          tsr_topology **out)
{
    tsr_measure_options own;
    tsr_run_options run;
    const char *names[MEASURE_RANKS] = {NULL};
    tsr_topology *topology = NULL, *named = NULL;
    TRY(tsr__given(session, "out", out));
    TRY(read_options(session, options, &own, &run));
    TRY(refuse_launched(session, &own));
    struct measured *measured = tsr__alloc(session, sizeof *measured);
    if (!measured)
        return TSR_NOMEM;
    tsr_status st = TSR_OK;
    if (own.model)
        st = tsr__measure_model_open(session, &own); // reports errors in the model before measuring
    if (st != TSR_OK)
        goto free_measured;
    st = name_devices(session, &own, names, &named);
    if (st != TSR_OK)
        goto free_measured;
    st = tsr__measure(session, &own, named ? names : NULL, measured);
    if (st != TSR_OK)
        goto free_measured;
    if (measured->ranks > 0)
        st = begin(session, measured->ranks, &topology);
    tsr__measured_check(session, measured);
    if (topology && !fill(topology, measured, names))
        st = TSR_NOMEM;
    if (st == TSR_OK && topology && measures_waits(session, &own))
        st = tsr__measure_waits(topology, &own);
    if (st == TSR_OK && topology && own.model)
        st = tsr__measure_model(topology, &own);
    if (st == TSR_OK)
        *out = topology;
    else
        tsr_topology_free(topology);
free_measured:
    tsr_topology_free(named);
    tsr__free(session, measured, sizeof *measured);
    return st;
}

tsr_status tsr_topology_measure(tsr_session *session, const tsr_measure_options *options,
                                tsr_topology **out)
{
    if (!session)
        return TSR_INVALID;
    return tsr__run_end(session, options ? options->run : NULL, measure(session, options, out));
}
