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

static void span(struct run *r, int64_t device, const struct sim_task *t, tsr_span_kind kind,
                 double begin, double end)
{
    struct sim_device *d = &r->sim.devices[device];
    *(kind == TSR_SPAN_COMPUTE         ? &d->compute
      : kind == TSR_SPAN_COMMUNICATION ? &d->communication
                                       : &d->waiting) += end - begin;
    if (end <= begin || r->spans.n >= SIM_MAX_SPANS)
        return;
    tsr_span *s = vec_push(r->kept, &r->spans);
    if (s)
        *s = (tsr_span){kind,  (int)device, d->request, t->op, t->node, t->comm ? t->comm->id : -1,
                        begin, end};
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
static void happen(struct run *r, const struct sim_comm *c, struct sim_group *g)
{
    double end = g->latest + (double)c->ps / 1e12;
    for (int i = 0; i < g->n; i++) {
        struct sim_device *d = &r->sim.devices[g->members[i]];
        const struct sim_task *t = &d->tasks.at[d->at];
        span(r, g->members[i], t, TSR_SPAN_WAITING, d->arrived, g->latest);
        span(r, g->members[i], t, TSR_SPAN_COMMUNICATION, g->latest, end);
        d->now = end;
        d->waits = false;
        next_task(r, d);
    }
    g->arrived = 0;
    g->latest = 0;
}

// Works until the device has to wait, or is done. False: it could do nothing.
static bool work(struct run *r, int64_t device)
{
    struct sim_device *d = &r->sim.devices[device];
    bool did = false;
    while (!d->waits && d->request < r->out->requests && d->tasks.n) {
        const struct sim_task *t = &d->tasks.at[d->at];
        did = true;
        if (!t->comm) {
            double end = d->now + (double)t->ps / 1e12;
            span(r, device, t, TSR_SPAN_COMPUTE, d->now, end);
            d->now = end;
            next_task(r, d);
            continue;
        }
        struct sim_group *g = &t->comm->groups.at[t->group];
        d->waits = true;
        d->arrived = d->now;
        g->latest = d->now > g->latest ? d->now : g->latest;
        if (++g->arrived == g->n)
            happen(r, t->comm, g);
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

static tsr_status play(struct run *r)
{
    bool more = true;
    while (more) {
        more = false;
        for (int64_t i = 0; i < r->sim.n; i++)
            more |= work(r, i);
    }
    if (is_done(r))
        return TSR_OK;
    tsr__diag(r->sim.session, DIAG_partition_disagrees, NULL, "cut the model again",
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

static tsr_status sum_up(struct run *r)
{
    tsr_simulation *o = r->out;
    size_t n = (size_t)r->sim.n;
    tsr_simulated_device *list = ARENA_ARRAY(r->kept, tsr_simulated_device, n + 1);
    if (!list)
        return TSR_NOMEM;
    for (int i = 0; i < o->requests; i++)
        o->seconds = r->ends[i] > o->seconds ? r->ends[i] : o->seconds;
    o->first = r->ends[0];
    o->period = o->requests > 1 ? r->ends[o->requests - 1] - r->ends[o->requests - 2] : o->seconds;
    for (size_t i = 0; i < n; i++) {
        const struct sim_device *d = &r->sim.devices[i];
        double busy = d->compute + d->communication + d->waiting;
        list[i] = (tsr_simulated_device){.compute = d->compute,
                                         .communication = d->communication,
                                         .waiting = d->waiting,
                                         .idle = o->seconds > busy ? o->seconds - busy : 0,
                                         .weights = d->weights,
                                         .memory = d->memory,
                                         .peak = d->peak};
    }
    if (r->spans.n)
        qsort(r->spans.at, r->spans.n, sizeof *r->spans.at, by_time);
    o->devices = n;
    o->device = list;
    o->spans = r->spans.at;
    o->n_spans = r->spans.n;
    o->unsized = r->sim.unsized;
    return r->kept->failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status choose_topology(struct run *r, int64_t n)
{
    char text[32];
    tsr_status st = TSR_OK;
    snprintf(text, sizeof text, "cpu:%lld", (long long)n);
    r->sim.topology = r->options.topology ? r->options.topology : r->own;
    if (!r->sim.topology) {
        st = tsr_topology_parse(r->sim.session, text, &r->own);
        r->sim.topology = r->own;
    }
    if (st != TSR_OK || tsr_topology_devices(r->sim.topology) >= n)
        return st;
    tsr__diag(r->sim.session, DIAG_topology_device, NULL, "give a topology of as many devices",
              "device %lld is not one of the %d of this topology", (long long)n - 1,
              tsr_topology_devices(r->sim.topology));
    return TSR_INVALID;
}

static tsr_status look(void *data, const struct partition_part *parts, int64_t n)
{
    struct run *r = data;
    tsr_status st = choose_topology(r, n);
    if (st == TSR_OK)
        st = tsr__sim_read(&r->sim, parts, n, r->options.sizes, r->options.n_sizes);
    r->ends = ARENA_ARRAY(r->kept, double, (size_t)r->out->requests + 1);
    if (st == TSR_OK && !r->ends)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = play(r);
    return st == TSR_OK ? sum_up(r) : st;
}

// ---- start and end -----------------------------------------------------------------------------

static tsr_status begin(struct run *r, tsr_session *s, const tsr_simulate_options *given,
                        tsr_simulation *out)
{
    *r = (struct run){.options = {.size = sizeof r->options}, .out = out};
    if (given)
        memcpy(&r->options, given,
               given->size < sizeof r->options ? given->size : sizeof r->options);
    r->kept = &s->results[RESULT_SIMULATION];
    tsr__arena_free(r->kept);
    r->sim = (struct sim){.session = s, .arena = r->kept};
    *out = (tsr_simulation){.size = sizeof *out,
                            .requests = r->options.requests > 0 ? r->options.requests : 1};
    if (out->requests <= SIM_MAX_REQUESTS)
        return TSR_OK;
    tsr__diag(s, DIAG_run_options, NULL, "at most 100000", "too many requests to simulate");
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

tsr_status tsr_simulate(tsr_model *m, const tsr_simulate_options *options, tsr_simulation *out)
{
    struct run r;
    tsr_simulation result;
    tsr_model *copy = NULL;
    tsr_session *s = tsr_model_session(m);
    struct diag_mark before = tsr__diag_mark(s);
    tsr_status st = begin(&r, s, options, &result);
    if (st == TSR_OK && !r.options.topology)
        st = tsr_model_topology(m, r.options.config, &r.own);
    if (st == TSR_OK &&
        !tsr__plan_sizes(r.kept, m, r.options.config, &r.options.sizes, &r.options.n_sizes))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = with_sizes(&r, m, &copy);
    if (st == TSR_OK)
        st = tsr__partition_look(copy, r.options.config, &(struct partition_look){look, &r});
    tsr_model_free(copy);
    tsr__diag_back(s, &before, true); // the copy is not the caller's to correct
    return end(&r, st, out);
}

tsr_status tsr_simulate_folder(tsr_session *s, const char *folder,
                               const tsr_simulate_options *options, tsr_simulation *out)
{
    struct run r;
    struct bundle b;
    struct arena a;
    tsr_simulation result;
    tsr_status st = begin(&r, s, options, &result);
    tsr__arena_init(&a, s);
    if (st == TSR_OK)
        st = tsr__bundle_open(s, &a, folder, &b);
    if (st != TSR_OK) {
        tsr__arena_free(&a);
        return end(&r, st, out);
    }
    int64_t n = b.manifest.n_ranks;
    struct partition_part *parts = ARENA_ARRAY(&a, struct partition_part, (size_t)n + 1);
    st = parts ? TSR_OK : TSR_NOMEM;
    for (int64_t i = 0; i < n && st == TSR_OK; i++) {
        struct str path = tsr__bundle_file_path(&b, &a, b.manifest.devices[i].file);
        st = path.p ? tsr_model_load(s, path.p, &parts[i].model) : TSR_NOMEM;
        parts[i].weight_bytes = b.manifest.devices[i].weight_bytes;
    }
    if (st == TSR_OK)
        st = look(&r, parts, n);
    for (int64_t i = 0; i < n && parts; i++)
        tsr_model_free(parts[i].model);
    tsr__bundle_close(&b);
    tsr__arena_free(&a);
    return end(&r, st, out);
}
