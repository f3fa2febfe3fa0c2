// SPDX-License-Identifier: Apache-2.0
// stage_clock.c - what a chosen line of stages takes as it will be cut. While stages are chosen, what crosses between them is
// priced whole; the cut model sends parts, from where the maker leaves them to where each reader wants them. Here every node
// runs as it was chosen, on the devices' own clocks, and each value goes straight to its readers.
//
//     Stage 0 (devices 0, 1) leaves 8 MiB in halves, stage 1 (device 2) reads it whole. Chosen with a gather of 8 MiB on device 0
//     and a message of 8 MiB; sent as two messages of 4 MiB, which is what counts here.
//
// Devices meet only where they tell one another something, so a stage that waits for nothing begins at once. The same events
// played for several runs give the pace: a device begins its next run when it is done with the one before.
#include "plan/stages/stages.h"

// Something that takes time on some devices. meets: it begins when all of them are there, and ends for all at once.
struct event {
    const int64_t *devices; // of the whole topology
    size_t n;
    int64_t ps;
    const int64_t *each; // by place in devices, where they differ; else NULL
    bool meets;
};
// The layouts in which a value lies so far, the maker's first.
struct value_forms {
    VEC(uint32_t) layouts;
    size_t stage; // of its maker; SIZE_MAX: it lies whole everywhere from the start
};
struct playing {
    struct staging *staging;
    struct planner *planner; // of all nodes: each has one way
    const struct line *line;
    struct arena arena;
    struct value_forms *forms; // by value id
    VEC(struct event) events;
    VEC(struct event) pending; // of the stage at hand, since its devices met last
    struct stage_clock *out;
};

static void add_event(struct playing *playing, struct event event)
{
    struct event *at = vec_push(&playing->arena, &playing->events);
    if (at)
        *at = event;
}

// What the devices of the stage did since they met last is in its place.
static void flush(struct playing *playing)
{
    for (size_t i = 0; i < playing->pending.n; i++)
        add_event(playing, playing->pending.at[i]);
    playing->pending.n = 0;
}

// The engine takes in what other stages give as soon as the order of the communications lets it (verify/simulate_order.c): before
// the nodes that need no communication of their own. So who gives it is not held up by them.
static void add_in_order(struct playing *playing, struct event event, bool transfer)
{
    if (!event.meets && !transfer) {
        struct event *at = vec_push(&playing->arena, &playing->pending);
        if (at)
            *at = event;
        return;
    }
    if (!transfer)
        flush(playing);
    add_event(playing, event);
}

// An event of the devices that are marked.
static struct event event_of(struct playing *playing, const bool *takes, int64_t ps)
{
    struct event event = {.ps = ps};
    int64_t n = playing->planner->machine.n;
    int64_t *devices = ARENA_ARRAY(&playing->arena, int64_t, (size_t)n);
    if (!devices)
        return event;
    for (int64_t device = 0; device < n; device++)
        if (takes[device])
            devices[event.n++] = device;
    event.devices = devices;
    return event;
}

// ---- values ------------------------------------------------------------------------------------

// How the value lies before anybody asks: as its maker leaves it, or whole on all devices.
static struct value_forms *forms_of(struct playing *playing, const tsr_value *value)
{
    struct value_forms *forms = &playing->forms[tsr__value_id(value)];
    if (forms->layouts.n)
        return forms;
    int rank = playing->planner->values[tsr__value_id(value)].rank;
    uint32_t *first = vec_push(&playing->arena, &forms->layouts);
    if (!first)
        return NULL;
    *first = tsr__planner_whole(playing->planner, rank);
    forms->stage = SIZE_MAX;
    return forms;
}

// Everybody who wants some of it has all of it: each cuts its part out by itself.
static bool is_there(const struct planner *planner, uint32_t from, uint32_t want)
{
    const struct tile_layout *has = planner->layouts.at[from].tiles,
                             *wanted = planner->layouts.at[want].tiles;
    for (int64_t i = 0; i < wanted->first[wanted->n_shards]; i++)
        if (!tsr__layout_has_device(has, wanted->owners[i]))
            return false;
    return tsr__layout_is_whole(has);
}

// The form that the cut model brings the value from, as partition/steps/convert.c looks for it: one that is just what is wanted, one
// of which parts can be cut out, the first from which operators lead there, or simply the first.
static uint32_t source_of(struct playing *playing, const struct value_forms *forms, uint32_t want,
                          const struct plan_value *value)
{
    struct planner *planner = playing->planner;
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (tsr__planner_price(planner, forms->layouts.at[i], want, value) == 0)
            return forms->layouts.at[i];
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (is_there(planner, forms->layouts.at[i], want))
            return forms->layouts.at[i];
    for (size_t i = 0; i < forms->layouts.n; i++)
        if (tsr__planner_has_operators(planner, forms->layouts.at[i], want, value))
            return forms->layouts.at[i];
    return forms->layouts.at[0];
}

// Who has all of it cuts its part out by itself; else those who send and get something meet.
static bool add_move(struct playing *playing, uint32_t from, uint32_t want,
                     const struct plan_value *value, int64_t ps, bool transfer)
{
    struct planner *planner = playing->planner;
    bool *takes = ARENA_ARRAY(&playing->arena, bool, (size_t)planner->machine.n);
    if (!takes)
        return false;
    bool local = is_there(planner, from, want);
    if (!local && !tsr__planner_takers(planner, from, want, value, takes))
        return false;
    const struct tile_layout *wanted = planner->layouts.at[want].tiles;
    for (int64_t i = 0; local && i < wanted->first[wanted->n_shards]; i++)
        takes[wanted->owners[i]] = true;
    struct event event = event_of(playing, takes, ps);
    event.meets = !local;
    add_in_order(playing, event, transfer);
    return true;
}

// Brings a value to where stage k wants it. What a maker of another stage gives counts as a transfer.
static bool bring(struct playing *playing, const tsr_value *v, uint32_t want, size_t k)
{
    const struct plan_value *value = &playing->planner->values[tsr__value_id(v)];
    if (want == PLAN_NO_LAYOUT || value->constant)
        return true;
    struct value_forms *forms = forms_of(playing, v);
    if (!forms)
        return false;
    uint32_t from = source_of(playing, forms, want, value);
    int64_t ps = tsr__planner_price(playing->planner, from, want, value);
    if (ps == 0)
        return true;
    bool transfer = forms->stage != SIZE_MAX && forms->stage != k;
    if (!add_move(playing, from, want, value, ps, transfer))
        return false;
    if (transfer)
        playing->out->transfer[k] += ps;
    else
        playing->out->time[k] += ps;
    uint32_t *form = vec_push(&playing->arena, &forms->layouts);
    if (form)
        *form = want;
    return form != NULL;
}

// ---- nodes -------------------------------------------------------------------------------------

// The value whole on the first n devices of a stage.
static uint32_t whole_on(struct playing *playing, const struct stage *stage, const tsr_value *value,
                         size_t n)
{
    int rank = playing->planner->values[tsr__value_id(value)].rank;
    return tsr__planner_whole_on(playing->planner, rank, stage->devices, n);
}

// What the node reads, as it wants it; what its bodies read is whole on all devices of the stage.
static bool bring_inputs(struct playing *playing, const struct plan_node *node, size_t k)
{
    tsr_value **captures;
    const struct candidate *way = &node->strategy->at.at[node->choice];
    size_t n_in = tsr_node_input_count(node->node),
           n_reads = tsr__reads_count(node->node, &captures);
    const struct stage *stage = &playing->line->at[k];
    for (size_t i = 0; i < n_reads; i++) {
        const tsr_value *value = tsr__reads_at(node->node, captures, i);
        if (!value || (i < n_in && read_before(node->node, i)))
            continue;
        uint32_t want = i < n_in ? way->in[i] : whole_on(playing, stage, value, stage->n);
        if (!bring(playing, value, want, k))
            return false;
    }
    return true;
}

// The node on its devices, and then what it gives put together.
static bool run_node(struct playing *playing, const struct plan_node *node, size_t k)
{
    const struct candidate *way = &node->strategy->at.at[node->choice];
    const struct stage *stage = &playing->line->at[k];
    struct event event = {.devices = stage->devices, .n = stage->n, .ps = way->compute};
    if (way->each && way->n_each == stage->n)
        event.each = way->each;
    add_in_order(playing, event, false);
    if (way->comm > 0) {
        event = (struct event){stage->devices, stage->n, way->comm, NULL, true};
        add_in_order(playing, event, false);
    }
    playing->out->time[k] += way->compute + way->comm;
    for (size_t i = 0; i < tsr_node_output_count(node->node); i++) {
        const tsr_value *value = tsr_node_output(node->node, i);
        if (!value)
            continue;
        struct value_forms *forms = &playing->forms[tsr__value_id(value)];
        uint32_t *first = vec_push(&playing->arena, &forms->layouts);
        if (!first)
            return false;
        *first = way->out[i];
        forms->stage = k;
    }
    return true;
}

// Outputs go to the first device of the stage that makes them; what stays on its devices goes nowhere.
static bool bring_outputs(struct playing *playing)
{
    const tsr_graph *graph = tsr_model_graph(playing->planner->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        size_t k = playing->forms[tsr__value_id(value)].stage;
        bool made = playing->forms[tsr__value_id(value)].layouts.n > 0 && k != SIZE_MAX;
        if (!made || planner_stays(playing->planner, value))
            continue;
        if (!bring(playing, value, whole_on(playing, &playing->line->at[k], value, 1), k))
            return false;
    }
    return true;
}

// A node that is in no stage runs on all devices.
static void run_common(struct playing *playing, size_t node)
{
    const struct planner *planner = playing->planner;
    add_event(playing, (struct event){.devices = planner->machine.all,
                                      .n = (size_t)planner->machine.n,
                                      .ps = playing->staging->times[node]});
}

// All events of one run, in the order of the graph.
static bool list_events(struct playing *playing)
{
    const struct planner *planner = playing->planner;
    size_t k = 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        while (k + 1 < playing->line->n && i >= playing->staging->cut[playing->line->at[k].end]) {
            flush(playing);
            k++;
        }
        if (node->strategy) {
            if (!bring_inputs(playing, node, k) || !run_node(playing, node, k))
                return false;
        } else if (planner->node_at[tsr__node_id(node->node)] >= 0) {
            run_common(playing, i);
        }
    }
    flush(playing);
    return bring_outputs(playing) && !playing->arena.failed && !planner->arena.failed;
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

// One run more on the clocks; when its last device is done.
static int64_t play(const struct playing *playing, int64_t *clock)
{
    int64_t end = 0;
    for (size_t i = 0; i < playing->events.n; i++) {
        const struct event *event = &playing->events.at[i];
        happen(event, clock);
        for (size_t d = 0; d < event->n; d++)
            end = int64_max(end, clock[event->devices[d]]);
    }
    return end;
}

// The first run tells the latency; when as many runs as there are stages are under way, the distance of two ends is the pace.
static bool play_runs(struct playing *playing)
{
    int64_t *clock = ARENA_ARRAY(&playing->arena, int64_t, (size_t)playing->planner->machine.n);
    if (!clock)
        return false;
    int64_t before = play(playing, clock), last = before;
    playing->out->latency = before;
    for (size_t run = 0; run < 2 * playing->line->n + 2; run++) {
        before = last;
        last = play(playing, clock);
    }
    playing->out->period = last - before;
    return true;
}

bool tsr__stages_play(struct staging *staging, const struct line *line, struct stage_clock *out)
{
    struct playing playing = {
        .staging = staging, .planner = staging->planner, .line = line, .out = out};
    *out = (struct stage_clock){0};
    tsr__arena_init(&playing.arena, staging->planner->session);
    playing.forms = ARENA_ARRAY(&playing.arena, struct value_forms,
                                tsr__model_value_ids(staging->planner->model) + 1);
    bool ok = playing.forms && list_events(&playing) && play_runs(&playing);
    tsr__arena_free(&playing.arena);
    return ok;
}
