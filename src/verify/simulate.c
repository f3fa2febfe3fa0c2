// SPDX-License-Identifier: Apache-2.0
// simulate.c - a timeline for devices that need not be there: each does its tasks one after the other, request by
// request; a communication begins when all of its group are there and ends for all of them at once.
//
// Prices are the planner's. A plan adds up the slowest device of every node; here devices wait for each other only where they
// talk, so this is never more than that for the same nodes.
#include "verify/simulate.h"
#include "bundle/bundle.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "topology/topology.h"

#include <stdio.h>
#include <stdlib.h>

struct run {
    struct sim sim;
    tsr_simulate_options options;
    tsr_topology *own; // to be freed
    struct arena *kept;
    VEC(tsr_span) spans;
    double *ends; // by request
    tsr_simulation *out;
};

// ---- time --------------------------------------------------------------------------------------

static void span(struct run *run, int64_t device, const struct sim_task *task, tsr_span_kind kind,
                 double begin, double end)
{
    struct sim_device *d = &run->sim.devices[device];
    if (kind == TSR_SPAN_COMPUTE)
        d->compute += end - begin;
    else if (kind == TSR_SPAN_COMMUNICATION)
        d->communication += end - begin;
    else
        d->waiting += end - begin;
    if (end <= begin || run->spans.n >= SIM_MAX_SPANS)
        return;
    tsr_span *s = vec_push(run->kept, &run->spans);
    if (s)
        *s = (tsr_span){kind,     (int)device, d->request,
                        task->op, task->node,  task->comm ? task->comm->id : -1,
                        begin,    end};
}

static void next_task(struct run *r, struct sim_device *d)
{
    if (++d->at < d->tasks.n)
        return;
    r->ends[d->request] = d->now > r->ends[d->request] ? d->now : r->ends[d->request];
    d->at = 0;
    d->request++;
}

// All members are there: it happens.
static void happen(struct run *run, const struct sim_comm *comm, struct sim_group *group)
{
    double end = group->latest + (double)comm->ps / 1e12;
    for (int i = 0; i < group->n; i++) {
        struct sim_device *device = &run->sim.devices[group->members[i]];
        const struct sim_task *task = &device->tasks.at[device->at];
        span(run, group->members[i], task, TSR_SPAN_WAITING, device->arrived, group->latest);
        span(run, group->members[i], task, TSR_SPAN_COMMUNICATION, group->latest, end);
        device->now = end;
        device->waits = false;
        next_task(run, device);
    }
    group->arrived = 0;
    group->latest = 0;
}

// Works until the device has to wait, or is done. False: it could do nothing.
static bool work(struct run *run, int64_t device)
{
    struct sim_device *d = &run->sim.devices[device];
    bool did = false;
    while (!d->waits && d->request < run->out->requests && d->tasks.n) {
        const struct sim_task *task = &d->tasks.at[d->at];
        did = true;
        if (!task->comm) {
            double end = d->now + (double)task->ps / 1e12;
            span(run, device, task, TSR_SPAN_COMPUTE, d->now, end);
            d->now = end;
            next_task(run, d);
            continue;
        }
        struct sim_group *group = &task->comm->groups.at[task->group];
        d->waits = true;
        d->arrived = d->now;
        group->latest = d->now > group->latest ? d->now : group->latest;
        if (++group->arrived == group->n)
            happen(run, task->comm, group);
    }
    return did;
}

static bool is_done(const struct run *r)
{
    for (int64_t i = 0; i < r->sim.n; i++)
        if (r->sim.devices[i].tasks.n && r->sim.devices[i].request < r->out->requests)
            return false;
    return true;
}

static tsr_status play(struct run *run)
{
    bool more = true;
    while (more) {
        more = false;
        for (int64_t i = 0; i < run->sim.n; i++)
            more |= work(run, i);
    }
    if (is_done(run))
        return TSR_OK;
    tsr__diag(run->sim.session, DIAG_partition_disagrees, NULL, "cut the model again",
              "devices wait for communications that others never come to");
    return TSR_INVALID;
}

// ---- results -----------------------------------------------------------------------------------

static int by_time(const void *a, const void *b)
{
    const tsr_span *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

// The period is the distance of the last two requests' ends: by then a pipeline is full. A device is idle
// while it neither computes, communicates nor waits for a partner.
static tsr_status sum_up(struct run *run)
{
    tsr_simulation *simulation = run->out;
    size_t n = (size_t)run->sim.n;
    tsr_simulated_device *list = ARENA_ARRAY(run->kept, tsr_simulated_device, n + 1);
    if (!list)
        return TSR_NOMEM;
    for (int i = 0; i < simulation->requests; i++)
        simulation->seconds =
            run->ends[i] > simulation->seconds ? run->ends[i] : simulation->seconds;
    simulation->first = run->ends[0];
    simulation->period = simulation->requests > 1 ? run->ends[simulation->requests - 1] -
                                                        run->ends[simulation->requests - 2]
                                                  : simulation->seconds;
    for (size_t i = 0; i < n; i++) {
        const struct sim_device *device = &run->sim.devices[i];
        double busy = device->compute + device->communication + device->waiting;
        list[i] = (tsr_simulated_device){
            .compute = device->compute,
            .communication = device->communication,
            .waiting = device->waiting,
            .idle = simulation->seconds > busy ? simulation->seconds - busy : 0,
            .weights = device->weights,
            .memory = device->memory,
            .peak = device->peak};
    }
    if (run->spans.n)
        qsort(run->spans.at, run->spans.n, sizeof *run->spans.at, by_time);
    simulation->devices = n;
    simulation->device = list;
    simulation->spans = run->spans.at;
    simulation->n_spans = run->spans.n;
    simulation->unsized = run->sim.unsized;
    return run->kept->failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status choose_topology(struct run *run, int64_t n)
{
    char text[32];
    tsr_status st = TSR_OK;
    snprintf(text, sizeof text, "cpu:%lld", (long long)n);
    run->sim.topology = run->options.topology ? run->options.topology : run->own;
    if (!run->sim.topology) {
        st = tsr_topology_parse(run->sim.session, text, &run->own);
        run->sim.topology = run->own;
    }
    if (st != TSR_OK || tsr_topology_devices(run->sim.topology) >= n)
        return st;
    tsr__diag(run->sim.session, DIAG_topology_device, NULL, "give a topology of as many devices",
              "device %lld is not one of the %d of this topology", (long long)n - 1,
              tsr_topology_devices(run->sim.topology));
    return TSR_INVALID;
}

static tsr_status look(void *data, const struct partition_part *parts, int64_t n)
{
    struct run *run = data;
    tsr_status st = choose_topology(run, n);
    if (st == TSR_OK)
        st = tsr__sim_read(&run->sim, parts, n, run->options.sizes, run->options.n_sizes);
    run->ends = ARENA_ARRAY(run->kept, double, (size_t)run->out->requests + 1);
    if (st == TSR_OK && !run->ends)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = play(run);
    return st == TSR_OK ? sum_up(run) : st;
}

// ---- start and end -----------------------------------------------------------------------------

static tsr_status begin(struct run *run, tsr_session *session, const tsr_simulate_options *given,
                        tsr_simulation *out)
{
    *run = (struct run){.options = {.size = sizeof run->options}, .out = out};
    if (given)
        memcpy(&run->options, given,
               given->size < sizeof run->options ? given->size : sizeof run->options);
    run->kept = &session->results[RESULT_SIMULATION];
    tsr__arena_free(run->kept);
    run->sim = (struct sim){.session = session, .arena = run->kept};
    *out = (tsr_simulation){.size = sizeof *out,
                            .requests = run->options.requests > 0 ? run->options.requests : 1};
    if (out->requests <= SIM_MAX_REQUESTS)
        return TSR_OK;
    tsr__diag(session, DIAG_run_options, NULL, "at most 100000", "too many requests to simulate");
    return TSR_USAGE;
}

static tsr_status end(struct run *r, tsr_status st, tsr_simulation *given)
{
    tsr_topology_free(r->own);
    if (st == TSR_OK) {
        size_t n = given->size && given->size < sizeof *r->out ? given->size : sizeof *r->out;
        r->out->size = n;
        memcpy(given, r->out, n);
    }
    return st;
}

// A copy in which every size is a number, so that all pieces have one.
static tsr_status with_sizes(struct run *r, tsr_model *m, tsr_model **out)
{
    tsr_size *all;
    size_t n;
    tsr_status st = tsr_model_clone(m, out);
    if (st == TSR_OK && !tsr__sim_sizes(r->kept, m, r->options.sizes, r->options.n_sizes, &all, &n))
        st = TSR_NOMEM;
    return st == TSR_OK ? tsr_shapes(*out, all, n, NULL) : st;
}

tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options, tsr_simulation *out)
{
    struct run run;
    tsr_simulation result;
    tsr_model *copy = NULL;
    tsr_session *session = tsr_model_session(model);
    struct diag_mark before = tsr__diag_mark(session);
    tsr_status st = begin(&run, session, options, &result);
    if (st == TSR_OK && !run.options.topology)
        st = tsr_model_topology(model, run.options.config, &run.own);
    if (st == TSR_OK && !tsr__plan_sizes(run.kept, model, run.options.config, &run.options.sizes,
                                         &run.options.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = with_sizes(&run, model, &copy);
    if (st == TSR_OK)
        st = tsr__partition_look(copy, run.options.config, &(struct partition_look){look, &run});
    tsr_model_free(copy);
    tsr__diag_back(session, &before, true); // the copy is not the caller's to correct
    return end(&run, st, out);
}

// Every part is loaded before the first is looked at, since a collective is known only when all its
// members are. The models are freed in every case.
tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                               const tsr_simulate_options *options, tsr_simulation *out)
{
    struct run run;
    struct bundle bundle;
    struct arena arena;
    tsr_simulation result;
    tsr_status st = begin(&run, session, options, &result);
    tsr__arena_init(&arena, session);
    if (st == TSR_OK)
        st = tsr__bundle_open(session, &arena, folder, &bundle);
    if (st != TSR_OK) {
        tsr__arena_free(&arena);
        return end(&run, st, out);
    }
    int64_t n = bundle.manifest.n_ranks;
    struct partition_part *parts = ARENA_ARRAY(&arena, struct partition_part, (size_t)n + 1);
    st = parts ? TSR_OK : TSR_NOMEM;
    for (int64_t i = 0; i < n && st == TSR_OK; i++) {
        struct str path = tsr__bundle_file_path(&bundle, &arena, bundle.manifest.devices[i].file);
        st = path.p ? tsr_model_load(session, path.p, &parts[i].model) : TSR_NOMEM;
        parts[i].weight_bytes = bundle.manifest.devices[i].weight_bytes;
    }
    if (st == TSR_OK)
        st = look(&run, parts, n);
    for (int64_t i = 0; i < n && parts; i++)
        tsr_model_free(parts[i].model);
    tsr__bundle_close(&bundle);
    tsr__arena_free(&arena);
    return end(&run, st, out);
}
