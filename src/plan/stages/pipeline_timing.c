// SPDX-License-Identifier: Apache-2.0
// pipeline_timing.c - predicts the times of a chosen pipeline. While stages are chosen, full values
// are charged for crossing; the partitioned model sends shards from their producer directly to each
// reader. Here every node runs with its candidate, and every device has its own clock.
//
//     Example: stage 0 (devices 0, 1) leaves halves of a value of 8 MiB, and stage 1 (device 2)
//     reads all of it. While stages are chosen, this is charged as a gather of 8 MiB on device 0
//     and a message of 8 MiB. Here it is two messages of 4 MiB.
//
// Devices synchronize only where they communicate, so a stage that waits for nothing starts at
// once. The period comes from several runs (pipeline_period.c).
#include "plan/stages/pipeline_events.h"

// The layouts that a value has so far, its producer's first.
struct value_forms {
    VEC(uint32_t) layouts;
    size_t stage; // stage of its producer; SIZE_MAX: replicated from the start
};
struct timing {
    struct staging *staging;
    struct planner *planner; // of all nodes: each has one candidate
    const struct pipeline *pipeline;
    struct arena arena;
    struct value_forms *forms; // by value id
    VEC(struct event) events;
    VEC(struct event) pending; // events of the current stage since its devices last synchronized
    struct link_recorder links;
    struct stage_clock *out;
};

static void add_event(struct timing *timing, struct event event)
{
    vec_add(&timing->arena, &timing->events, event);
}

// Appends the pending events, those of the stage since its devices last synchronized, to the list
// of events.
static void flush(struct timing *timing)
{
    for (size_t i = 0; i < timing->pending.n; i++)
        add_event(timing, timing->pending.at[i]);
    timing->pending.n = 0;
}

// Adds an event in the order in which the engine runs it. A stage receives as soon as the order of
// communication allows (simulate/simulate_order.c): before nodes that do not communicate. So the
// sender need not wait for these nodes.
static void add_in_order(struct timing *timing, struct event event, bool transfer)
{
    if (!event.meets && !transfer) {
        vec_add(&timing->arena, &timing->pending, event);
        return;
    }
    if (!transfer)
        flush(timing);
    add_event(timing, event);
}

// Returns an event of the marked devices.
static struct event event_of(struct timing *timing, const bool *takes, int64_t ps)
{
    struct event event = {.ps = ps};
    int64_t n = timing->planner->machine.n;
    int64_t *devices = ARENA_ARRAY(&timing->arena, int64_t, (size_t)n);
    if (!devices)
        return event;
    for (int64_t device = 0; device < n; device++)
        if (takes[device])
            devices[event.n++] = device;
    event.devices = devices;
    return event;
}

// ---- values ------------------------------------------------------------------------------------

// Returns the layouts of a value. The first is that of its producer, or replicated.
static struct value_forms *forms_of(struct timing *timing, const tsr_value *value)
{
    struct value_forms *forms = &timing->forms[tsr__value_id(value)];
    if (forms->layouts.n)
        return forms;
    int rank = timing->planner->values[tsr__value_id(value)].rank;
    if (!vec_add(&timing->arena, &forms->layouts, tsr__planner_replicated(timing->planner, rank)))
        return NULL;
    forms->stage = SIZE_MAX;
    return forms;
}

// True if every device that needs a part already has the full value and only slices it.
static bool is_there(const struct planner *planner, uint32_t from, uint32_t want)
{
    const struct tile_layout *has = planner->layouts.at[from].tiles,
                             *wanted = planner->layouts.at[want].tiles;
    for (int64_t i = 0; i < wanted->first[wanted->n_shards]; i++)
        if (!tsr__layout_has_device(has, wanted->owners[i]))
            return false;
    return tsr__layout_is_whole(has);
}

// Returns the layout from which the partitioner makes the wanted one (partition/steps/convert.c).
// It prefers a layout that needs no resharding, then one that can be sliced, then the first from
// which collectives lead to it, then the first of all.
static uint32_t source_of(struct timing *timing, const struct value_forms *forms, uint32_t want,
                          const struct plan_value *value)
{
    struct planner *planner = timing->planner;
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (tsr__resharding_time(planner, forms->layouts.at[i], want, value) == 0)
            return forms->layouts.at[i];
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (is_there(planner, forms->layouts.at[i], want))
            return forms->layouts.at[i];
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (tsr__planner_has_operators(planner, forms->layouts.at[i], want, value))
            return forms->layouts.at[i];
    return forms->layouts.at[0];
}

// Adds a resharding. Devices that have the full value slice it; otherwise the devices that send and
// receive synchronize.
static bool add_move(struct timing *timing, uint32_t from, uint32_t want,
                     const struct plan_value *value, int64_t ps, bool transfer)
{
    struct planner *planner = timing->planner;
    bool *takes = ARENA_ARRAY(&timing->arena, bool, (size_t)planner->machine.n);
    if (!takes)
        return false;
    bool local = is_there(planner, from, want);
    if (!local && !tsr__resharding_devices(planner, from, want, value, takes))
        return false;
    const struct tile_layout *wanted = planner->layouts.at[want].tiles;
    for (int64_t i = 0; local && i < wanted->first[wanted->n_shards]; i++)
        takes[wanted->owners[i]] = true;
    struct event event = event_of(timing, takes, ps);
    event.meets = !local;
    if (!local)
        event.uses = tsr__link_uses_move(&timing->links, from, want, value);
    add_in_order(timing, event, transfer);
    return true;
}

// Reshards a value to the layout that stage k needs. From another stage this is a transfer.
static bool bring(struct timing *timing, const tsr_value *v, uint32_t want, size_t k)
{
    const struct plan_value *value = &timing->planner->values[tsr__value_id(v)];
    if (want == PLAN_NO_LAYOUT || value->constant)
        return true;
    struct value_forms *forms = forms_of(timing, v);
    if (!forms)
        return false;
    uint32_t from = source_of(timing, forms, want, value);
    int64_t ps = tsr__resharding_time(timing->planner, from, want, value);
    if (ps == 0)
        return true;
    bool transfer = forms->stage != SIZE_MAX && forms->stage != k;
    if (!add_move(timing, from, want, value, ps, transfer))
        return false;
    if (transfer)
        timing->out->transfer[k] += ps;
    else
        timing->out->time[k] += ps;
    uint32_t *form = vec_push(&timing->arena, &forms->layouts);
    if (form)
        *form = want;
    return form != NULL;
}

// ---- nodes -------------------------------------------------------------------------------------

// Returns the layout of the full value on the first n devices of a stage.
static uint32_t whole_on(struct timing *timing, const struct stage *stage, const tsr_value *value,
                         size_t n)
{
    int rank = timing->planner->values[tsr__value_id(value)].rank;
    return tsr__planner_replicated_on(timing->planner, rank, stage->devices, n);
}

// Reshards the inputs to the candidate's layouts. Subgraphs read full values on all devices of the
// stage.
static bool bring_inputs(struct timing *timing, const struct plan_node *node, size_t k)
{
    tsr_value **captures;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    size_t n_in = tsr_node_input_count(node->node),
           n_reads = tsr__reads_count(node->node, &captures);
    const struct stage *stage = &timing->pipeline->at[k];
    for (size_t i = 0; i < n_reads; i++) {
        const tsr_value *value = tsr__reads_at(node->node, captures, i);
        if (!value || (i < n_in && read_before(node->node, i)))
            continue;
        uint32_t want = i < n_in ? candidate->in[i] : whole_on(timing, stage, value, stage->n);
        if (!bring(timing, value, want, k))
            return false;
    }
    return true;
}

// Adds the events of a node on its devices, then of its reduction. Records the layouts of its
// outputs. Returns false if out of memory.
static bool run_node(struct timing *timing, const struct plan_node *node, size_t k)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    const struct stage *stage = &timing->pipeline->at[k];
    struct event event = {.devices = stage->devices, .n = stage->n, .ps = candidate->compute};
    if (candidate->each && candidate->n_each == stage->n)
        event.each = candidate->each;
    add_in_order(timing, event, false);
    if (candidate->comm > 0) {
        event = (struct event){
            .devices = stage->devices, .n = stage->n, .ps = candidate->comm, .meets = true};
        event.uses = tsr__link_uses_sum(&timing->links, node, stage);
        add_in_order(timing, event, false);
    }
    timing->out->time[k] += candidate->compute + candidate->comm;
    for (size_t i = 0; i < tsr_node_output_count(node->node); i++) {
        const tsr_value *value = tsr_node_output(node->node, i);
        if (!value)
            continue;
        struct value_forms *forms = &timing->forms[tsr__value_id(value)];
        if (!vec_add(&timing->arena, &forms->layouts, candidate->out[i]))
            return false;
        forms->stage = k;
    }
    return true;
}

// Adds the transfer of outputs to the first device of their stage. States are not moved.
static bool bring_outputs(struct timing *timing)
{
    const tsr_graph *graph = tsr_model_graph(timing->planner->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        size_t k = timing->forms[tsr__value_id(value)].stage;
        bool made = timing->forms[tsr__value_id(value)].layouts.n > 0 && k != SIZE_MAX;
        if (!made || planner_stays(timing->planner, value))
            continue;
        if (!bring(timing, value, whole_on(timing, &timing->pipeline->at[k], value, 1), k))
            return false;
    }
    return true;
}

// Adds a node in no stage, which runs on all devices.
static void run_common(struct timing *timing, size_t node)
{
    const struct planner *planner = timing->planner;
    add_event(timing, (struct event){.devices = planner->machine.all,
                                     .n = (size_t)planner->machine.n,
                                     .ps = timing->staging->times[node]});
}

// Lists all events of one run, in graph order.
static bool list_events(struct timing *timing)
{
    const struct planner *planner = timing->planner;
    size_t k = 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        while (k + 1 < timing->pipeline->n &&
               i >= timing->staging->cut[timing->pipeline->at[k].end]) {
            flush(timing);
            k++;
        }
        if (node->strategy) {
            if (!bring_inputs(timing, node, k) || !run_node(timing, node, k))
                return false;
        } else if (planner->node_at[tsr__node_id(node->node)] >= 0) {
            run_common(timing, i);
        }
    }
    flush(timing);
    return bring_outputs(timing) && !timing->arena.failed && !planner->arena.failed;
}

// ---- clocks ------------------------------------------------------------------------------------

static void happen(const struct event *event, int64_t *clock)
{
    int64_t latest = 0;
    for (size_t i = 0; i < event->n; i++)
        latest = int64_max(latest, clock[event->devices[i]]);
    for (size_t i = 0; i < event->n; i++) {
        int64_t *now = &clock[event->devices[i]];
        if (event->meets)
            *now = latest + event->ps;
        else
            *now += event->each ? event->each[i] : event->ps;
    }
}

// Simulates one run. Returns the time at which its last device is done.
static int64_t play(const struct timing *timing, int64_t *clock)
{
    int64_t end = 0;
    for (size_t i = 0; i < timing->events.n; i++) {
        const struct event *event = &timing->events.at[i];
        happen(event, clock);
        for (size_t d = 0; d < event->n; d++)
            end = int64_max(end, clock[event->devices[d]]);
    }
    return end;
}

// Simulates one run, which gives the latency, and consecutive runs, which give the period.
static bool play_runs(struct timing *timing)
{
    struct event_list events = {timing->events.at, timing->events.n};
    int64_t *clock = ARENA_ARRAY(&timing->arena, int64_t, (size_t)timing->planner->machine.n);
    if (!clock)
        return false;
    timing->out->latency = play(timing, clock);
    return tsr__pipeline_period(timing->planner, &timing->arena, &events,
                                3 * timing->pipeline->n + 3, &timing->out->period);
}

bool tsr__pipeline_timing(struct staging *staging, const struct pipeline *pipeline,
                          struct stage_clock *out)
{
    struct timing timing = {
        .staging = staging, .planner = staging->planner, .pipeline = pipeline, .out = out};
    *out = (struct stage_clock){0};
    tsr__arena_init(&timing.arena, staging->planner->session);
    timing.forms = ARENA_ARRAY(&timing.arena, struct value_forms,
                               tsr__model_value_ids(staging->planner->model) + 1);
    bool ok =
        timing.forms &&
        tsr__link_recorder_init(&timing.links, staging->planner, &timing.arena, pipeline->n) &&
        list_events(&timing) && play_runs(&timing);
    tsr__arena_free(&timing.arena);
    return ok;
}
