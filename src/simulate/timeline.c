// SPDX-License-Identifier: Apache-2.0
// timeline.c - simulates a plan in time, for devices that need not exist. Each device runs its
// tasks one after the other, request by request (topology/player.c). Times of tasks are predicted
// as in the planner.
//
// Call order: tsr_simulate copies the model with numbers for all sizes (one block, if the plan
// is folded). `look` gets the parts from the partitioner; it reads them, predicts their times and
// plays them. sum_up makes the lists of the result.
#include "simulate/simulate.h"
#include "bundle/bundle.h"
#include "ir/ir.h"
#include "partition/partition.h"
#include "rules/rules.h"
#include "plan/plan.h"
#include "topology/topology.h"

#include <stdio.h>
#include <stdlib.h>

// One simulation. `kept` is the memory of its result.
struct run {
    struct sim sim;
    tsr_simulate_options options;
    tsr_topology *own; // created by this run and freed at its end
    struct arena *kept;
    VEC(tsr_span) spans;
    struct player player;
    struct sim_fold fold;
    const tsr_dim_size *given_sizes; // sizes of the caller, before those of one copy replaced them
    size_t n_given_sizes;
    int64_t devices; // devices of the configuration; only one copy of a block may be simulated
    tsr_simulation *result;
    tsr_simulation_view *out; // its contents
};

// ---- time --------------------------------------------------------------------------------------

// Adds the time of a task to the device. Overhead is separate; the rest counts as compute or memory
// time, whichever bounds the task.
static void count_compute(struct sim_device *device, const struct sim_task *task, double seconds)
{
    double overhead = (double)task->overhead / 1e12;
    device->compute += seconds;
    device->overhead += overhead;
    if (task->moves)
        device->moving += seconds - overhead;
    else
        device->arithmetic += seconds - overhead;
}

// Adds the time to the device's sums and lists a span. If the list is full, only the sums are
// updated. `step` has the request; times are in seconds.
static void span(struct run *run, const struct player_span *step, tsr_span_kind kind, double begin,
                 double end)
{
    struct sim_device *device = &run->sim.devices[step->device];
    const struct sim_task *task = &device->tasks.at[step->step];
    if (kind == TSR_SPAN_COMPUTE)
        count_compute(device, task, end - begin);
    else if (kind == TSR_SPAN_COMMUNICATION)
        device->communication += end - begin;
    else
        device->waiting += end - begin;
    if (end <= begin || run->spans.n >= SIM_MAX_SPANS)
        return;
    vec_add(run->kept, &run->spans,
            (tsr_span){kind, (int)step->device, (int)step->run, task->op, task->node,
                       task->comm ? task->comm->id : -1, begin, end});
}

// Called by the player for each step, which is the task with the same index.
static void observe(void *data, const struct player_span *step)
{
    struct run *run = data;
    double arrived = step->arrived / 1e12, begin = step->begin / 1e12, end = step->end / 1e12;
    if (run->sim.devices[step->device].tasks.at[step->step].comm) {
        span(run, step, TSR_SPAN_WAITING, arrived, begin);
        span(run, step, TSR_SPAN_COMMUNICATION, begin, end);
    } else {
        span(run, step, TSR_SPAN_COMPUTE, begin, end);
    }
}

// Plays all tasks. Reports a deadlock if devices still wait at the end.
static tsr_status play(struct run *run)
{
    struct player *player = &run->player;
    size_t requests = (size_t)run->out->facts.requests;
    if (!tsr__player_init(player, run->kept, run->sim.topology, run->sim.n, requests > 1))
        return TSR_NOMEM;
    player->observe = observe;
    player->data = run;
    if (!tsr__sim_steps(&run->sim, player) || !tsr__player_play(player, requests))
        return TSR_NOMEM;
    if (tsr__player_is_done(player))
        return TSR_OK;
    return tsr__fail(run->sim.session, TSR_INVALID, DIAG_partition_disagrees, NULL,
                     "run `tessera partition` again",
                     "deadlock: a device waits for a communication that no other device starts");
}

// ---- results -----------------------------------------------------------------------------------

static int time_order(double a, double b)
{
    return (a > b) - (a < b);
}

// Orders spans by device, then by time. The order is total, so that every sort gives the same list:
// glibc's qsort is stable only while it can allocate a copy.
static int by_time(const void *a, const void *b)
{
    const tsr_span *x = a, *y = b;
    if (x->device != y->device)
        return int64_order(x->device, y->device);
    if (x->begin != y->begin)
        return time_order(x->begin, y->begin);
    if (x->end != y->end)
        return time_order(x->end, y->end);
    if (x->request != y->request)
        return int64_order(x->request, y->request);
    if (x->id != y->id)
        return int64_order(x->id, y->id);
    int order = strcmp(x->node, y->node);
    return order ? order : strcmp(x->op, y->op);
}

static int by_comm_id(const void *a, const void *b)
{
    const tsr_simulated_comm *x = a, *y = b;
    return int64_order(x->id, y->id);
}

// Rounds to the nearest integer; INT64_MAX for numbers from 2^62 on.
static int64_t whole_bytes(double bytes)
{
    return bytes < 0x1p62 ? (int64_t)(bytes + 0.5) : INT64_MAX;
}

// Lists the communications, sorted by id because parts were read rank by rank.
static void list_comms(struct run *run)
{
    size_t n = run->sim.comms.n;
    tsr_simulated_comm *list = ARENA_ARRAY(run->kept, tsr_simulated_comm, n + 1);
    if (!list)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct sim_comm *comm = run->sim.comms.at[i];
        tsr_group *groups = ARENA_ARRAY(run->kept, tsr_group, comm->groups.n + 1);
        if (!groups)
            return;
        for (size_t g = 0; g < comm->groups.n; g++)
            groups[g] = (tsr_group){comm->groups.at[g].members, (size_t)comm->groups.at[g].n};
        list[i] = (tsr_simulated_comm){.id = comm->id,
                                       .op = comm->op,
                                       .value = comm->node,
                                       .groups = groups,
                                       .n_groups = comm->groups.n,
                                       .bytes = comm->bytes,
                                       .carried = whole_bytes(comm->carried),
                                       .seconds = (double)comm->ps / 1e12};
    }
    if (n)
        qsort(list, n, sizeof *list, by_comm_id);
    run->out->comms = list;
    run->out->n_comms = n;
}

// Lists the links that carried bytes. Links of a topology are sorted by their ends.
static void list_links(struct run *run)
{
    const tsr_topology *topology = run->sim.topology;
    VEC(tsr_simulated_link) list = {0};
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        double bytes = run->sim.by_link[i];
        if (bytes > 0)
            vec_add(run->kept, &list,
                    (tsr_simulated_link){link->from, link->to, whole_bytes(bytes),
                                         bytes / link->bandwidth});
    }
    run->out->links = list.at;
    run->out->n_links = list.n;
}

// Lists the results of n devices. If the plan was folded, all blocks get the results of the first.
// Devices in no block were idle.
static tsr_simulated_device *list_devices(struct run *run, size_t n)
{
    tsr_simulated_device *list = ARENA_ARRAY(run->kept, tsr_simulated_device, n + 1);
    size_t block = (size_t)run->sim.n;
    size_t used = run->fold.copies ? block * (size_t)run->fold.copies : block;
    double seconds = run->out->facts.seconds;
    if (!list)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        list[i] = (tsr_simulated_device){.idle = seconds};
        if (i >= used)
            continue;
        const struct sim_device *device = &run->sim.devices[i % block];
        double busy = device->compute + device->communication + device->waiting;
        list[i] = (tsr_simulated_device){.compute = device->compute,
                                         .communication = device->communication,
                                         .waiting = device->waiting,
                                         .idle = seconds > busy ? seconds - busy : 0,
                                         .weights = device->weights,
                                         .memory = device->memory,
                                         .peak = device->peak,
                                         .arithmetic = device->arithmetic,
                                         .moving = device->moving,
                                         .overhead = device->overhead};
    }
    return list;
}

// Computes the results. A device is idle while it neither computes nor communicates nor waits for a
// partner.
static tsr_status sum_up(struct run *run)
{
    tsr_simulation_view *simulation = run->out;
    tsr_simulation_facts *facts = &simulation->facts;
    facts->seconds = tsr__player_end(&run->player) / 1e12;
    facts->first = run->player.ends[0] / 1e12;
    facts->period = tsr__player_period(&run->player) / 1e12;
    size_t n = (size_t)(run->fold.copies ? run->devices : run->sim.n);
    simulation->device = list_devices(run, n);
    facts->devices = n;
    if (run->spans.n)
        qsort(run->spans.at, run->spans.n, sizeof *run->spans.at, by_time);
    simulation->spans = run->spans.at;
    simulation->n_spans = run->spans.n;
    facts->unsized = run->sim.unsized;
    list_comms(run);
    list_links(run);
    return arena_status(run->kept);
}

// Sets the topology: the caller's, else the plan's, else n devices on one host. For a folded plan
// the default has one device more, to predict transfers between copies. Reports a topology with
// fewer than n devices.
static tsr_status choose_topology(struct run *run, int64_t n)
{
    char text[32];
    tsr_status st = TSR_OK;
    snprintf(text, sizeof text, "cpu:%lld", (long long)(run->fold.copies > 1 ? n + 1 : n));
    run->sim.topology = run->options.topology ? run->options.topology : run->own;
    if (!run->sim.topology) {
        st = tsr_topology_parse(run->sim.session, text, &run->own);
        run->sim.topology = run->own;
    }
    if (st != TSR_OK || tsr_topology_devices(run->sim.topology) >= n)
        return st;
    return tsr__fail(run->sim.session, TSR_INVALID, DIAG_topology_device, NULL,
                     "give a topology with more devices",
                     "device %lld is not in this topology, which has %d devices", (long long)n - 1,
                     tsr_topology_devices(run->sim.topology));
}

// Adds the last task of the first device: it collects the outputs of all copies.
static tsr_status add_gather(struct run *run)
{
    const struct sim_fold *fold = &run->fold;
    static const int64_t first[] = {0};
    int64_t ps = 0;
    for (size_t i = 0; i < fold->n_shared; i++)
        ps += tsr__gather_cost(run->sim.topology, fold->devices, fold->copies, fold->shared[i]);
    if (ps == 0)
        return TSR_OK;
    // A group with one member runs as soon as device 0 arrives.
    struct sim_comm *comm = ARENA_NEW(run->kept, struct sim_comm);
    struct sim_group *group = comm ? vec_push(run->kept, &comm->groups) : NULL;
    struct sim_task *task = group ? vec_push(run->kept, &run->sim.devices[0].tasks) : NULL;
    if (!task)
        return TSR_NOMEM;
    comm->id = -1;
    comm->kind = COMM_KIND_COUNT; // not a collective
    comm->times = 1;
    comm->ps = ps;
    *group = (struct sim_group){.members = first, .n = 1};
    *task = (struct sim_task){.op = "Gather", .node = "outputs of all copies", .comm = comm};
    return TSR_OK;
}

// Adds the first task of every device: it slices the share of its copy from the inputs.
static tsr_status add_slices(struct run *run)
{
    double bytes = 2 * (double)run->fold.cut_out;
    if (bytes <= 0)
        return TSR_OK;
    for (int64_t i = 0; i < run->sim.n; i++) {
        struct sim_device *device = &run->sim.devices[i];
        struct sim_task *last = vec_push(run->kept, &device->tasks), *tasks = device->tasks.at;
        if (!last)
            return TSR_NOMEM;
        memmove(tasks + 1, tasks, (device->tasks.n - 1) * sizeof *tasks);
        double seconds = bytes / run->sim.topology->device[i].bandwidth;
        tasks[0] = (struct sim_task){
            .op = "Slice", .node = "inputs of the copy", .ps = (int64_t)(seconds * 1e12)};
    }
    return TSR_OK;
}

// Reads the parts, predicts their times and simulates them. The partitioner calls this with the
// parts in memory; tsr_simulate_folder calls it with parts from files.
static tsr_status look(void *data, const struct partition_part *parts, int64_t n)
{
    struct run *run = data;
    TRY(choose_topology(run, n));
    run->out->facts.assumed = run->sim.topology->assumed;
    run->out->facts.device_flops = run->sim.topology->device[0].flops;
    TRY(tsr__sim_read(&run->sim, parts, n, run->options.sizes, run->options.n_sizes));
    if (run->fold.copies > 1) {
        TRY(add_slices(run));
        TRY(add_gather(run));
    }
    TRY(play(run));
    return sum_up(run);
}

// ---- start and end -----------------------------------------------------------------------------

static tsr_status begin(struct run *run, tsr_session *session, const tsr_simulate_options *given,
                        tsr_simulation **out)
{
    *run = (struct run){.options = {.size = sizeof run->options}};
    TRY(tsr__given(session, "out", out));
    TRY(OPTIONS_READ(session, &run->options, given, one_device));
    TRY(tsr__topology_owned(session, run->options.topology));
    int requests = run->options.requests > 0 ? run->options.requests : 1;
    if (requests > SIM_MAX_REQUESTS)
        return tsr__fail(session, TSR_USAGE, DIAG_run_options, NULL,
                         "simulate at most 100000 requests", "too many requests to simulate");
    run->result = tsr__result_new(session, sizeof *run->result);
    if (!run->result)
        return TSR_NOMEM;
    run->kept = run->result->head.memory;
    run->out = &run->result->view;
    run->out->facts.requests = requests;
    run->sim = (struct sim){.session = session, .arena = run->kept};
    return TSR_OK;
}

// Ends a simulation. *out is written only on success.
static tsr_status end(struct run *run, tsr_status st, tsr_simulation **out)
{
    tsr_topology_free(run->own);
    if (st == TSR_OK)
        *out = run->result;
    else
        tsr_simulation_free(run->result);
    return st;
}

// Copies the model, or takes the model of one block, and sets a number for every symbolic size.
static tsr_status with_sizes(struct run *run, tsr_model *model, tsr_model **out)
{
    tsr_topology *topology = run->options.topology ? run->options.topology : run->own;
    TRY(tsr__sim_fold(run->kept, model, &run->options, topology, &run->fold));
    // The devices, sizes and model of one copy replace those of the plan. The caller's sizes are
    // needed again for the time on one device.
    if (run->fold.model) {
        const tsr_config *config = run->options.config
                                       ? tsr_model_find_config(model, run->options.config)
                                       : tsr_model_config(model, 0);
        run->devices = tsr_config_devices(config);
        run->given_sizes = run->options.sizes;
        run->n_given_sizes = run->options.n_sizes;
        run->options.sizes = run->fold.sizes;
        run->options.n_sizes = run->fold.n_sizes;
        *out = run->fold.model;
        return TSR_OK;
    }
    return tsr_model_clone(model, out);
}

// Partitions and simulates the model, or one copy of it.
static tsr_status simulate_model(struct run *run, tsr_model *model, tsr_model **copy)
{
    if (!run->options.topology)
        TRY(tsr_model_topology(model, run->options.config, &run->own));
    if (!tsr__plan_sizes(run->kept, model, run->options.config, &run->options.sizes,
                         &run->options.n_sizes))
        return TSR_NOMEM;
    TRY(with_sizes(run, model, copy));
    struct partition_visitor visitor = {look, run, run->options.sizes, run->options.n_sizes};
    if (!tsr__plan_sizes_assume(run->kept, *copy, &visitor.sizes, &visitor.n_sizes))
        return TSR_NOMEM;
    return tsr__partition_visit(*copy, run->options.config, &visitor);
}

// ---- one device alone --------------------------------------------------------------------------

// Result of look_alone: time and memory of the model on one device.
struct alone {
    const struct run *run;
    struct sim sim;
    double seconds;
    int64_t memory;
};

// Reads the part of a plan for one device. A single device never waits, so its time is the sum of
// its tasks.
static tsr_status look_alone(void *data, const struct partition_part *parts, int64_t n)
{
    struct alone *alone = data;
    const tsr_simulate_options *options = &alone->run->options;
    int64_t ps = 0;
    TRY(tsr__sim_read(&alone->sim, parts, n, options->sizes, options->n_sizes));
    const struct sim_device *device = &alone->sim.devices[0];
    for (size_t i = 0; i < device->tasks.n; i++)
        ps = sum_of(ps, device->tasks.at[i].ps);
    alone->seconds = (double)ps / 1e12;
    alone->memory = device->memory;
    return TSR_OK;
}

// Returns a topology that has only the fastest device.
static tsr_status fastest_alone(const struct run *run, tsr_topology **out)
{
    const tsr_topology *all = run->sim.topology;
    TRY(tsr_topology_parse(run->sim.session, "cpu:1", out));
    (*out)->device[0] = all->device[0];
    for (int i = 1; i < all->n; i++)
        if (all->device[i].flops > (*out)->device[0].flops)
            (*out)->device[0] = all->device[i];
    (*out)->profiles = all->profiles; // the profiles outlive the new topology
    return TSR_OK;
}

// Copies the model with one configuration of one device and no annotations. If the plan is folded,
// the copy has the full batch, not the share of one block.
static tsr_status make_whole(struct run *run, tsr_model *model, tsr_model *sized, tsr_model **out)
{
    tsr_config *made;
    tsr_status st = tsr__model_clone_bare(run->fold.model ? model : sized, out);
    if (st != TSR_OK)
        return st;
    if (run->fold.model) {
        run->options.sizes = run->given_sizes;
        run->options.n_sizes = run->n_given_sizes;
        const tsr_dim_size *sizes = run->given_sizes;
        size_t n = run->n_given_sizes;
        if (!tsr__plan_sizes_assume(run->kept, model, &sizes, &n))
            return TSR_NOMEM;
        st = tsr__shapes_declare(*out, sizes, n, NULL);
    }
    if (st != TSR_OK)
        return st;
    return tsr_model_add_config(*out, "one", 1, NULL, 0, &made);
}

// Simulates the model on the fastest device alone, as the reference for the speedup.
static tsr_status simulate_alone(struct run *run, tsr_model *model, tsr_model *sized)
{
    struct alone alone = {.run = run};
    tsr_topology *one = NULL;
    tsr_model *whole = NULL;
    struct arena arena = {.session = run->sim.session};
    tsr_status st = fastest_alone(run, &one);
    if (st != TSR_OK)
        goto free_all;
    st = make_whole(run, model, sized, &whole);
    if (st != TSR_OK)
        goto free_all;
    alone.sim = (struct sim){.session = run->sim.session, .arena = &arena, .topology = one};
    struct partition_visitor visitor = {.visit = look_alone, .data = &alone};
    st = tsr__partition_visit(whole, "one", &visitor);
    if (st != TSR_OK)
        goto free_all;
    run->out->facts.one_device_s = alone.seconds;
    run->out->facts.one_device_memory = alone.memory;
free_all:
    tsr_model_free(whole);
    tsr_topology_free(one);
    tsr__arena_free(&arena);
    return st;
}

// Simulates a plan in a copy of the model, which is not changed. Warnings about the copy are
// discarded, errors are kept.
tsr_status tsr_simulate(tsr_model *model, const tsr_simulate_options *options, tsr_simulation **out)
{
    struct run run;
    tsr_model *copy = NULL;
    tsr_session *session = tsr_model_session(model);
    struct diag_mark before = tsr__diag_mark(session);
    tsr_status st = begin(&run, session, options, out);
    if (st == TSR_OK)
        st = tsr__check_dims(&model, 1, run.options.sizes, run.options.n_sizes);
    if (st == TSR_OK)
        st = simulate_model(&run, model, &copy);
    if (st == TSR_OK && run.options.one_device)
        st = simulate_alone(&run, model, copy);
    tsr_model_free(copy);
    tsr__diag_back(session, &before, true); // the caller cannot fix the copy
    return end(&run, st, out);
}

// Simulates a folder. All parts are loaded before the first is read, because a collective is
// complete only when the parts of all its members are loaded. The models are freed in every case.
tsr_status tsr_simulate_folder(tsr_session *session, const char *folder,
                               const tsr_simulate_options *options, tsr_simulation **out)
{
    TRY(tsr__given(session, "folder", folder));
    struct run run;
    struct bundle bundle;
    tsr_status st = begin(&run, session, options, out);
    struct arena arena = {.session = session};
    if (st == TSR_OK)
        st = tsr__bundle_open(session, &arena, folder, &bundle);
    if (st != TSR_OK) {
        tsr__arena_free(&arena);
        return end(&run, st, out);
    }
    int64_t n = bundle.manifest.n_ranks;
    struct partition_part *parts = ARENA_ARRAY(&arena, struct partition_part, (size_t)n + 1);
    st = arena_status(&arena);
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

// ---- the result handle --------------------------------------------------------------------------

void tsr_simulation_free(tsr_simulation *simulation)
{
    tsr__result_free(simulation);
}

const tsr_simulation_view *tsr_simulation_read(const tsr_simulation *simulation)
{
    return simulation ? &simulation->view : NULL;
}

tsr_status tsr_simulation_about(const tsr_simulation *simulation, tsr_simulation_facts *out)
{
    return tsr__element_read(simulation->head.session,
                             SIZED_LIST(&simulation->view.facts, 1, one_device_memory), 0, out);
}

tsr_status tsr_simulation_device(const tsr_simulation *simulation, size_t i,
                                 tsr_simulated_device *out)
{
    const tsr_simulation_view *from = &simulation->view;
    return tsr__element_read(simulation->head.session,
                             SIZED_LIST(from->device, from->facts.devices, overhead), i, out);
}
