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
// once. The period comes from several runs (find_period).
#include "plan/stages/stages.h"
#include "topology/topology.h"

// Time for which a communication occupies a link, or a port in one direction. Ports are numbered
// after the links.
struct link_use {
    size_t link;
    int64_t ps;
};
struct link_uses {
    struct link_use *at;
    size_t n;
};

// An event of a run: a node that runs on some devices, or a communication between them (`meets`). A
// communication starts when all its devices are ready, and ends for all at once.
struct event {
    const int64_t *devices; // numbers of the topology
    size_t n;
    int64_t ps;
    const int64_t *each; // by index in devices: their times, if they differ; else NULL
    bool meets;
    struct link_uses uses;
};
typedef VEC(struct event) event_list; // one run, in an order that all devices follow

// A recorder of link uses.
struct link_recorder {
    struct planner *planner;
    struct arena *arena;
    double *load;     // by link: bytes of the current communication; NULL: nothing is recorded
    struct map moves; // uses of reshardings, by layouts and value
};

// ---- links --------------------------------------------------------------------------------------

// The links and ports that the communications of a pipeline occupy, as in the simulator
// (simulate/shared_links.c).
//
//     Example: a message of 8 MB from device 0 to device 2 of a line 0-1-2 with 4 GB/s occupies
//     links 0-1 and 1-2 for 2 ms each.

#define MOST_LINKS ((size_t)1 << 16) // larger topologies are timed without contention

// Starts recording. Links are recorded only if there are several stages and not too many links.
// Returns false if out of memory.
static bool recorder_init(struct link_recorder *recorder, struct planner *planner,
                          struct arena *arena, size_t stages)
{
    size_t links = planner->machine.topology->links.n;
    *recorder = (struct link_recorder){.planner = planner, .arena = arena};
    tsr__map_init(&recorder->moves, arena, 64);
    if (stages < 2 || links > MOST_LINKS)
        return true;
    recorder->load = ARENA_ARRAY(arena, double, links + 1);
    return recorder->load != NULL;
}

static void add_use(struct link_uses *uses, size_t link, double seconds)
{
    int64_t ps = whole_number(seconds * 1e12);
    for (size_t i = 0; i < uses->n; i++)
        if (uses->at[i].link == link) {
            uses->at[i].ps += ps;
            return;
        }
    uses->at[uses->n++] = (struct link_use){link, ps};
}

// Lists the links with a load, and their ports.
static struct link_uses list_uses(struct link_recorder *recorder)
{
    const tsr_topology *topology = recorder->planner->machine.topology;
    struct link_uses uses = {0};
    size_t used = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        used += recorder->load[i] > 0;
    uses.at = ARENA_ARRAY(recorder->arena, struct link_use, 3 * used + 1);
    for (size_t i = 0; i < topology->links.n && uses.at; i++) {
        const struct topology_link *link = &topology->links.at[i];
        double bytes = recorder->load[i];
        if (bytes <= 0)
            continue;
        add_use(&uses, i, bytes / link->bandwidth);
        if (link->out_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->out_port,
                    bytes / topology->ports.at[link->out_port].bandwidth);
        if (link->in_port >= 0)
            add_use(&uses, topology->links.n + 2 * (size_t)link->in_port + 1,
                    bytes / topology->ports.at[link->in_port].bandwidth);
    }
    return uses;
}

static void clear(struct link_recorder *recorder)
{
    memset(recorder->load, 0,
           recorder->planner->machine.topology->links.n * sizeof *recorder->load);
}

static struct link_uses uses_of_move(struct link_recorder *recorder, uint32_t from, uint32_t to,
                                     const struct plan_value *value)
{
    struct link_uses none = {0};
    size_t n = 3 + (size_t)value->rank;
    int64_t key[3 + TILE_MAX_RANK] = {from, to, value->bits};
    if (!recorder->load)
        return none;
    memcpy(key + 3, value->shape, (n - 3) * sizeof *key);
    void **kept = tsr__map_at_copy(&recorder->moves, str_bytes(key, n * sizeof *key));
    struct link_uses *uses = kept ? *kept : NULL;
    if (uses || !kept)
        return uses ? *uses : none;
    uses = ARENA_NEW(recorder->arena, struct link_uses);
    if (!uses)
        return none;
    clear(recorder);
    tsr__resharding_load(recorder->planner, from, to, value, recorder->load);
    *uses = list_uses(recorder);
    *kept = uses;
    return *uses;
}

// Adds the load of a reduction in its groups; without groups, over all devices of the stage.
static void add_sum(struct link_recorder *recorder, enum tsr_collective what, uint32_t layout,
                    const struct plan_value *value, const struct stage *stage)
{
    struct planner *planner = recorder->planner;
    const struct parts *parts = planner->layouts.at[layout].parts;
    struct device_group all = {stage->devices, stage->n};
    planner->link_load = recorder->load;
    tsr__planner_combine(planner, what, parts ? parts->groups : &all, parts ? parts->n : 1,
                         tsr__planner_bytes(planner, layout, value));
    planner->link_load = NULL;
}

// Return the links that a resharding uses, and those of the reduction after a node on the devices
// of its stage. If memory runs out, they return no links, and the arena has failed.
static struct link_uses uses_of_sum(struct link_recorder *recorder, const struct plan_node *node,
                                    const struct stage *stage)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    enum comm_kind what = COMM_KIND_COUNT;
    if (candidate->reduction)
        what = tsr__collective_find(str_of(candidate->reduction));
    if (!recorder->load || (int)what >= TSR_COLLECTIVE_COUNT)
        return (struct link_uses){0};
    clear(recorder);
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        if (value && candidate->before && candidate->before[i] != PLAN_NO_LAYOUT)
            add_sum(recorder, (enum tsr_collective)what, candidate->before[i],
                    &recorder->planner->values[tsr__value_id(value)], stage);
    }
    return list_uses(recorder);
}

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
    event_list events;
    event_list pending; // events of the current stage since its devices last synchronized
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
        event.uses = uses_of_move(&timing->links, from, want, value);
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
    return vec_add(&timing->arena, &forms->layouts, want);
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
    size_t n_in = tsr__plan_reads(node), n_reads = tsr__plan_all_reads(node, &captures);
    const struct stage *stage = &timing->pipeline->at[k];
    for (size_t i = 0; i < n_reads; i++) {
        const tsr_value *value = plan_any_read(node, captures, i);
        if (!value || (i < n_in && !node->border && read_before(node->node, i)))
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
        event.uses = uses_of_sum(&timing->links, node, stage);
        add_in_order(timing, event, false);
    }
    timing->out->time[k] += candidate->compute + candidate->comm;
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
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

// Lists all events of one run, in graph order, without branches of If that are not taken.
static bool list_events(struct timing *timing)
{
    struct planner *planner = timing->planner;
    size_t k = 0;
    bool *unused;
    int64_t ps;
    if (!tsr__planner_unused(planner, &timing->arena, &unused, &ps))
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        while (k + 1 < timing->pipeline->n &&
               i >= timing->staging->cut[timing->pipeline->at[k].end]) {
            flush(timing);
            k++;
        }
        if (node->strategy) {
            if (!unused[i] && (!bring_inputs(timing, node, k) || !run_node(timing, node, k)))
                return false;
        } else if (planner->node_at[tsr__node_id(node->node)] >= 0) {
            run_common(timing, i);
        }
    }
    flush(timing);
    return bring_outputs(timing) && !timing->arena.failed && !planner->arena.failed;
}

// ---- consecutive runs ---------------------------------------------------------------------------

// The time between consecutive runs of a pipeline. A device starts its next run
// when it is done with the one before. Different stages work on different runs at the same time, so
// their communications may need the same link. A link serves them one after the other, in the order
// in which they begin. The simulator does the same (simulate/shared_links.c).
//
//     Example: stage 0 reduces for 5 ms over a network port, and stage 1 receives for 3 ms through
//     the same port. Each stage takes 6 ms in total, so the period is 6 ms without contention. The
//     port is occupied for 8 ms in each run: this is the period.

// An event of a device: the number of the event, and the index of the device in it.
struct turn {
    size_t event, index;
};
// The events of a device in one run. The device is at event `at` of run `run`.
struct queue {
    struct turn *turns;
    size_t n, at;
    size_t run;
    int64_t clock; // time at which the device is free
};
// A communication that waits for its devices: number of devices that have arrived, and the time at
// which the latest arrived.
struct meeting {
    size_t arrived;
    int64_t latest;
};
// The simulation of consecutive runs.
struct pace {
    const event_list *events;
    size_t runs;
    struct queue *queues;     // by device
    struct meeting *meetings; // by event
    VEC(size_t) ready;        // events whose devices have all arrived
    int64_t *ends;            // by run: end of its last event
    int64_t *free;            // by link and port: end of the last use
    size_t *by;               // by link and port: event of the last use, plus 1
    struct arena *arena;
};

// Lists the events of each device.
static bool fill_queues(struct pace *pace, size_t devices)
{
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t e = 0; e < pace->events->n; e++) {
            const struct event *event = &pace->events->at[e];
            for (size_t i = 0; i < event->n; i++) {
                struct queue *queue = &pace->queues[event->devices[i]];
                if (pass)
                    queue->turns[queue->n] = (struct turn){e, i};
                queue->n++;
            }
        }
        for (size_t d = 0; d < devices && !pass; d++) {
            struct queue *queue = &pace->queues[d];
            queue->turns = ARENA_ARRAY(pace->arena, struct turn, queue->n + 1);
            if (!queue->turns)
                return false;
            queue->n = 0;
        }
    }
    return true;
}

static void note_end(struct pace *pace, size_t run, int64_t end)
{
    pace->ends[run] = int64_max(pace->ends[run], end);
}

static void next_turn(struct queue *queue)
{
    if (++queue->at == queue->n) {
        queue->at = 0;
        queue->run++;
    }
}

// Runs the events of the device up to its next communication, where it waits for other devices.
static bool advance(struct pace *pace, struct queue *queue)
{
    while (queue->n && queue->run < pace->runs) {
        const struct turn *turn = &queue->turns[queue->at];
        const struct event *event = &pace->events->at[turn->event];
        if (event->meets) {
            struct meeting *meeting = &pace->meetings[turn->event];
            meeting->latest = int64_max(meeting->latest, queue->clock);
            if (++meeting->arrived < event->n)
                return true;
            return vec_add(pace->arena, &pace->ready, turn->event);
        }
        queue->clock += event->each ? event->each[turn->index] : event->ps;
        note_end(pace, queue->run, queue->clock);
        next_turn(queue);
    }
    return true;
}

// Returns the end of a communication. Only other communications delay it: its own time already
// includes that its groups share links.
static int64_t end_of(struct pace *pace, size_t e, int64_t begin)
{
    const struct event *event = &pace->events->at[e];
    int64_t end = begin + event->ps;
    for (size_t i = 0; i < event->uses.n; i++) {
        const struct link_use *use = &event->uses.at[i];
        int64_t *free = &pace->free[use->link], from = begin;
        bool others = pace->by[use->link] != e + 1;
        from = int64_max(from, *free);
        if (others)
            end = int64_max(end, from + use->ps);
        *free = int64_max(*free, from + use->ps);
        pace->by[use->link] = e + 1;
    }
    return end;
}

// Removes the communication that begins first from pace->ready, and returns its event.
static size_t take_first(struct pace *pace)
{
    size_t first = 0;
    for (size_t i = 1; i < pace->ready.n; i++)
        if (pace->meetings[pace->ready.at[i]].latest < pace->meetings[pace->ready.at[first]].latest)
            first = i;
    size_t e = pace->ready.at[first];
    pace->ready.at[first] = pace->ready.at[--pace->ready.n];
    return e;
}

static bool communicate(struct pace *pace, size_t e)
{
    const struct event *event = &pace->events->at[e];
    int64_t end = end_of(pace, e, pace->meetings[e].latest);
    pace->meetings[e] = (struct meeting){0};
    for (size_t i = 0; i < event->n; i++) {
        struct queue *queue = &pace->queues[event->devices[i]];
        queue->clock = end;
        note_end(pace, queue->run, end);
        next_turn(queue);
    }
    for (size_t i = 0; i < event->n; i++)
        if (!advance(pace, &pace->queues[event->devices[i]]))
            return false;
    return true;
}

// Simulates `runs` consecutive runs (at least 6). Sets *period to the time
// between the ends of two runs in the middle. Returns false if out of memory.
static bool find_period(const struct planner *planner, struct arena *arena,
                        const event_list *events, size_t runs, int64_t *period)
{
    const tsr_topology *topology = planner->machine.topology;
    size_t devices = (size_t)planner->machine.n;
    size_t links = topology->links.n + 2 * topology->ports.n;
    struct pace pace = {.events = events,
                        .runs = runs,
                        .queues = ARENA_ARRAY(arena, struct queue, devices + 1),
                        .meetings = ARENA_ARRAY(arena, struct meeting, events->n + 1),
                        .ends = ARENA_ARRAY(arena, int64_t, runs + 1),
                        .free = ARENA_ARRAY(arena, int64_t, links + 1),
                        .by = ARENA_ARRAY(arena, size_t, links + 1),
                        .arena = arena};
    if (arena->failed || !fill_queues(&pace, devices))
        return false;
    for (size_t d = 0; d < devices; d++)
        if (!advance(&pace, &pace.queues[d]))
            return false;
    while (pace.ready.n)
        if (!communicate(&pace, take_first(&pace)))
            return false;
    // The first third of the runs fills the pipeline. In the last third, fewer and fewer stages
    // share links.
    size_t first = runs / 3, last = 2 * runs / 3;
    *period = (pace.ends[last] - pace.ends[first]) / (int64_t)(last - first);
    return true;
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
    int64_t *clock = ARENA_ARRAY(&timing->arena, int64_t, (size_t)timing->planner->machine.n);
    if (!clock)
        return false;
    timing->out->latency = play(timing, clock);
    return find_period(timing->planner, &timing->arena, &timing->events,
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
    bool ok = timing.forms &&
              recorder_init(&timing.links, staging->planner, &timing.arena, pipeline->n) &&
              list_events(&timing) && play_runs(&timing);
    tsr__arena_free(&timing.arena);
    return ok;
}
