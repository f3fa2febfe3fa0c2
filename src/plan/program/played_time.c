// SPDX-License-Identifier: Apache-2.0
// played_time.c - the predicted time of a chosen plan: lists what its devices do and plays it
// (topology/player.c), with a clock for each device. The program of a plan charges each node and
// each resharding on all devices, and full values where stages meet; the partitioned model sends
// shards from their producer directly to each reader.
//
//     Example: range 0 (devices 0, 1) leaves halves of a value of 8 MiB, and range 1 (device 2)
//     reads all of it. While stages are chosen, this is charged as a gather of 8 MiB on device 0
//     and a message of 8 MiB. Here it is two messages of 4 MiB.
//
// Devices synchronize only where they communicate, so a range that waits for nothing starts at
// once.
#include "plan/program/program.h"
#include "topology/topology.h"

// The layouts that a value has so far, its producer's first.
struct value_forms {
    VEC(uint32_t) layouts;
    size_t range; // of its producer; SIZE_MAX: replicated from the start
};
// Work of a node, or a slice, that its devices do after the next transfers.
struct pending {
    const int64_t *devices;
    size_t n;
    int64_t ps;
    const int64_t *each; // by index in devices: their times, if they differ; else NULL
};
// Nodes that only the first device runs, by index.
struct first_only {
    const struct planner *planner;
    unsigned char *nodes;
    bool all; // all readers of a value are such nodes
};
struct timing {
    struct planner *planner; // of all nodes: each has its candidate
    const struct plan_range *ranges;
    size_t n_ranges;
    struct arena arena;
    struct value_forms *forms; // by value id
    struct player player;
    struct first_only first;
    struct map moves;            // links that reshardings use, by layouts and value
    VEC(struct pending) pending; // of the current range since its devices last communicated
    struct played_plan *out;
};

// ---- links -------------------------------------------------------------------------------------

// Returns the links that a resharding uses. If memory runs out, it returns none, and the arena has
// failed.
static struct player_uses uses_of_move(struct timing *timing, uint32_t from, uint32_t to,
                                       const struct plan_value *value)
{
    struct player_uses none = {0};
    size_t n = 3 + (size_t)value->rank;
    int64_t key[3 + TILE_MAX_RANK] = {from, to, value->bits};
    double *load = tsr__player_load(&timing->player);
    if (!load)
        return none;
    memcpy(key + 3, value->shape, (n - 3) * sizeof *key);
    void **kept = tsr__map_at_copy(&timing->moves, str_bytes(key, n * sizeof *key));
    struct player_uses *uses = kept ? *kept : NULL;
    if (uses || !kept)
        return uses ? *uses : none;
    uses = ARENA_NEW(&timing->arena, struct player_uses);
    if (!uses)
        return none;
    tsr__resharding_load(timing->planner, from, to, value, load);
    *uses = tsr__player_uses(&timing->player);
    *kept = uses;
    return *uses;
}

// Adds the load of a reduction in its groups; without groups, over all devices of the range.
static void add_sum(struct timing *timing, enum tsr_collective what, uint32_t layout,
                    const struct plan_value *value, const struct plan_range *range, double *load)
{
    struct planner *planner = timing->planner;
    const struct parts *parts = planner->layouts.at[layout].parts;
    struct device_group all = {range->devices, range->n};
    planner->link_load = load;
    tsr__planner_combine(planner, what, parts ? parts->groups : &all, parts ? parts->n : 1,
                         tsr__planner_bytes(planner, layout, value));
    planner->link_load = NULL;
}

// Returns the links that the reduction after a node uses.
static struct player_uses uses_of_sum(struct timing *timing, const struct plan_node *node,
                                      const struct plan_range *range)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    enum comm_kind what = COMM_KIND_COUNT;
    if (candidate->reduction)
        what = tsr__collective_find(str_of(candidate->reduction));
    double *load = tsr__player_load(&timing->player);
    if (!load || (int)what >= TSR_COLLECTIVE_COUNT)
        return (struct player_uses){0};
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        if (value && candidate->before && candidate->before[i] != PLAN_NO_LAYOUT)
            add_sum(timing, (enum tsr_collective)what, candidate->before[i],
                    &timing->planner->values[tsr__value_id(value)], range, load);
    }
    return tsr__player_uses(&timing->player);
}

// ---- steps -------------------------------------------------------------------------------------

static void add_work(struct timing *timing, const struct pending *work)
{
    for (size_t i = 0; i < work->n; i++)
        tsr__player_work(&timing->player, work->devices[i], work->each ? work->each[i] : work->ps);
}

// Adds the pending work, that of the range since its devices last communicated.
static void flush(struct timing *timing)
{
    for (size_t i = 0; i < timing->pending.n; i++)
        add_work(timing, &timing->pending.at[i]);
    timing->pending.n = 0;
}

// Adds work or, with `uses`, a communication, in the order in which the engine runs them. A range
// receives as soon as the order of communication allows (simulate/simulate_order.c): before nodes
// that do not communicate. So the sender need not wait for these nodes.
static void add_in_order(struct timing *timing, const struct pending *work,
                         const struct player_uses *uses, bool transfer)
{
    if (!uses && !transfer) {
        vec_add(&timing->arena, &timing->pending, *work);
        return;
    }
    if (!transfer)
        flush(timing);
    if (!uses) {
        add_work(timing, work);
        return;
    }
    struct player *player = &timing->player;
    struct player_meeting meeting = {.devices = work->devices,
                                     .n = work->n,
                                     .ps = work->ps,
                                     .id = player->meetings.n,
                                     .uses = *uses};
    size_t number = tsr__player_meeting(player, &meeting);
    for (size_t i = 0; i < work->n; i++)
        tsr__player_join(player, work->devices[i], number);
}

// Returns work of the marked devices.
static struct pending work_of(struct timing *timing, const bool *takes, int64_t ps)
{
    struct pending work = {.ps = ps};
    int64_t n = timing->planner->machine.n;
    int64_t *devices = ARENA_ARRAY(&timing->arena, int64_t, (size_t)n);
    if (!devices)
        return work;
    for (int64_t device = 0; device < n; device++)
        if (takes[device])
            devices[work.n++] = device;
    work.devices = devices;
    return work;
}

// ---- nodes of the first device -----------------------------------------------------------------

// Called for each reader of a value: sets first->all to whether only the first device runs the
// reader. False, which ends the iteration: other devices run it, too.
static bool is_read_by_first(void *data, tsr_node *node, size_t input)
{
    struct first_only *first = data;
    int64_t reader = first->planner->node_at[tsr__node_id(node)];
    (void)input;
    first->all = reader >= 0 && first->nodes[reader];
    return first->all;
}

// True if only the first device runs the node. The node must be replicated on devices that include
// the first. Its results must be read only by such nodes, or be outputs of the model, which the
// first device returns. The partition drops the node on the other devices. Nodes with bodies, and
// nodes in bodies, run on all devices.
static bool is_first_only(struct first_only *first, size_t i)
{
    const struct plan_node *node = &first->planner->nodes[i];
    if (!node->strategy || node->bodies || !in_main_graph(node))
        return false;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    if (candidate->cut)
        return false;
    for (size_t o = 0; o < tsr_node_output_count(node->node); o++) {
        const tsr_value *value = tsr_node_output(node->node, o);
        if (!value)
            continue;
        first->all = !planner_stays(first->planner, value) && candidate->out[o] != PLAN_NO_LAYOUT &&
                     tsr__layout_has_device(first->planner->layouts.at[candidate->out[o]].tiles, 0);
        if (first->all)
            tsr_value_uses(value, is_read_by_first, first);
        if (!first->all)
            return false;
    }
    return true;
}

// Finds the nodes that only the first device runs. Goes backwards, because a node depends on its
// readers. Returns false if out of memory.
static bool find_first_only(const struct planner *planner, struct arena *arena,
                            struct first_only *out)
{
    *out = (struct first_only){.planner = planner};
    out->nodes = ARENA_ARRAY(arena, unsigned char, planner->n_nodes + 1);
    for (size_t i = planner->n_nodes; out->nodes && i-- > 0;)
        out->nodes[i] = is_first_only(out, i);
    return out->nodes != NULL;
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
    forms->range = SIZE_MAX;
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
    struct pending work = work_of(timing, takes, ps);
    struct player_uses uses = {0};
    if (!local)
        uses = uses_of_move(timing, from, want, value);
    add_in_order(timing, &work, local ? NULL : &uses, transfer);
    return true;
}

// Reshards a value to the layout that range k needs. From another range this is a transfer.
static bool bring(struct timing *timing, const tsr_value *v, uint32_t want, size_t k)
{
    const struct plan_value *value = &timing->planner->values[tsr__value_id(v)];
    if (want == PLAN_NO_LAYOUT || value->constant)
        return true;
    struct value_forms *forms = forms_of(timing, v);
    if (!forms)
        return false;
    uint32_t from = forms->layouts.at[tsr__resharding_source(timing->planner, forms->layouts.at,
                                                             forms->layouts.n, want, value)];
    int64_t ps = tsr__resharding_time(timing->planner, from, want, value);
    if (ps == 0)
        return true;
    bool transfer = forms->range != SIZE_MAX && forms->range != k;
    if (!add_move(timing, from, want, value, ps, transfer))
        return false;
    if (transfer)
        timing->out->transfer[k] += ps;
    else
        timing->out->time[k] += ps;
    return vec_add(&timing->arena, &forms->layouts, want);
}

// ---- nodes -------------------------------------------------------------------------------------

// Returns the layout of the full value on the first n devices of a range.
static uint32_t whole_on(struct timing *timing, const struct plan_range *range,
                         const tsr_value *value, size_t n)
{
    int rank = timing->planner->values[tsr__value_id(value)].rank;
    return tsr__planner_replicated_on(timing->planner, rank, range->devices, n);
}

// Reshards the inputs to the candidate's layouts. Subgraphs read full values on all devices of the
// range.
static bool bring_inputs(struct timing *timing, const struct plan_node *node, size_t k)
{
    tsr_value **captures;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    size_t n_in = tsr__plan_reads(node), n_reads = tsr__plan_all_reads(node, &captures);
    const struct plan_range *range = &timing->ranges[k];
    for (size_t i = 0; i < n_reads; i++) {
        const tsr_value *value = plan_any_read(node, captures, i);
        if (!value || (i < n_in && !node->border && read_before(node->node, i)))
            continue;
        uint32_t want = i < n_in ? candidate->in[i] : whole_on(timing, range, value, range->n);
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
    const struct plan_range *range = &timing->ranges[k];
    struct pending work = {.devices = range->devices, .n = range->n, .ps = candidate->compute};
    if (candidate->each && candidate->n_each == range->n)
        work.each = candidate->each;
    if (timing->first.nodes && timing->first.nodes[node - timing->planner->nodes])
        work.n = 1;
    add_in_order(timing, &work, NULL, false);
    if (candidate->comm > 0) {
        struct player_uses uses = uses_of_sum(timing, node, range);
        work = (struct pending){range->devices, range->n, candidate->comm, NULL};
        add_in_order(timing, &work, &uses, false);
    }
    timing->out->time[k] += candidate->compute + candidate->comm;
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        if (!value)
            continue;
        struct value_forms *forms = &timing->forms[tsr__value_id(value)];
        if (!vec_add(&timing->arena, &forms->layouts, candidate->out[i]))
            return false;
        forms->range = k;
    }
    return true;
}

// Adds the transfer of outputs to the first device of their range. States are not moved.
static bool bring_outputs(struct timing *timing)
{
    const tsr_graph *graph = tsr_model_graph(timing->planner->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        size_t k = timing->forms[tsr__value_id(value)].range;
        bool made = timing->forms[tsr__value_id(value)].layouts.n > 0 && k != SIZE_MAX;
        if (!made || planner_stays(timing->planner, value))
            continue;
        if (!bring(timing, value, whole_on(timing, &timing->ranges[k], value, 1), k))
            return false;
    }
    return true;
}

// Adds a node in no range, which runs on all devices.
static void run_common(struct timing *timing, int64_t ps)
{
    const struct planner_machine *machine = &timing->planner->machine;
    add_work(timing, &(struct pending){.devices = machine->all, .n = (size_t)machine->n, .ps = ps});
}

// Lists all steps of one run, in graph order, without branches of If that are not taken.
static bool list_steps(struct timing *timing, const int64_t *common)
{
    struct planner *planner = timing->planner;
    size_t k = 0;
    bool *unused;
    int64_t ps;
    if (!tsr__planner_unused(planner, &timing->arena, &unused, &ps))
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        while (k + 1 < timing->n_ranges && i >= timing->ranges[k].end) {
            flush(timing);
            k++;
        }
        if (node->strategy) {
            if (!unused[i] && (!bring_inputs(timing, node, k) || !run_node(timing, node, k)))
                return false;
        } else if (planner->node_at[tsr__node_id(node->node)] >= 0) {
            run_common(timing, common ? common[i] : 0);
        }
    }
    flush(timing);
    return bring_outputs(timing) && !timing->arena.failed && !planner->arena.failed;
}

// ---- the plan -----------------------------------------------------------------------------------

bool tsr__plan_play(struct planner *planner, const struct plan_range *ranges, size_t n,
                    const int64_t *common, struct played_plan *out)
{
    struct timing timing = {.planner = planner, .ranges = ranges, .n_ranges = n, .out = out};
    tsr__arena_init(&timing.arena, planner->session);
    tsr__map_init(&timing.moves, &timing.arena, 64);
    timing.forms =
        ARENA_ARRAY(&timing.arena, struct value_forms, tsr__model_value_ids(planner->model) + 1);
    struct player *player = &timing.player;
    // In a pipeline every stage may have a first device.
    bool ok = timing.forms && (n > 1 || find_first_only(planner, &timing.arena, &timing.first)) &&
              tsr__player_init(player, &timing.arena, planner->machine.topology, planner->machine.n,
                               n > 1) &&
              list_steps(&timing, common) && tsr__player_play(player, 1);
    if (ok)
        out->latency = out->period = whole_number(tsr__player_end(player));
    // A pipeline has n runs in its ranges at the same time.
    if (ok && n > 1) {
        ok = tsr__player_play(player, 3 * n + 3);
        out->period = whole_number(tsr__player_period(player));
    }
    tsr__arena_free(&timing.arena);
    return ok;
}
