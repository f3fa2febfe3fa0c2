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
    int64_t more;        // to be added to the times of `each`
};
// An operator of a resharding or reduction: the devices of each group synchronize, or every device
// slices for itself.
struct event {
    int op; // a collective, or RESHARD_SLICE: there is one group, of the devices that slice
    struct device_group *groups;
    size_t n_groups;
    int64_t ps;          // of one execution
    const int64_t *each; // of a slice: the time of each device, if they differ; else NULL
    uint32_t to;         // layout after it
    struct player_uses uses;
};
struct events {
    VEC(struct event) list;
};
// Which devices run a node, or need a value.
enum needed { ON_NONE, ON_FIRST, ON_ALL };
// Which devices need the nodes, by index.
struct needs {
    const struct planner *planner;
    unsigned char *nodes; // enum needed
    unsigned char value;  // of the value whose readers are visited
    bool cut;             // that value is sharded
};
struct timing {
    struct planner *planner; // of all nodes: each has its candidate
    const struct plan_range *ranges;
    size_t n_ranges;
    struct arena arena;
    struct value_forms *forms; // by value id
    struct player player;
    struct needs needs;
    uint64_t *common;            // by node that is in no range: bits of the ranges that need it
    bool *unused;                // nodes of branches that are not taken, by index
    bool counts_only;            // in such a branch: communication is counted, and not played
    struct map moves;            // struct events of reshardings, by layouts and value
    VEC(struct pending) pending; // of the current range since its devices last communicated
    struct played_plan *out;
};

// ---- operators ---------------------------------------------------------------------------------

static bool is_slice(const struct event *event)
{
    return event->op == RESHARD_SLICE;
}

// Counts a collective of the plan. Kinds beyond PLAN_MAX_OPS are ignored; no plan has that many.
static void count(struct played_plan *out, const char *op)
{
    size_t i = 0;
    while (i < out->n_counts && strcmp(out->counts[i].op, op) != 0)
        i++;
    if (i == PLAN_MAX_OPS)
        return;
    if (i == out->n_counts)
        out->counts[out->n_counts++] = (struct collective_count){op, 0};
    out->counts[i].count++;
}

// Copies the groups of an operator. A slice has one group, of all devices with the new layout.
static bool copy_groups(struct timing *timing, const struct planned_operator *planned,
                        struct event *event)
{
    const struct tile_layout *to = timing->planner->layouts.at[planned->to].tiles;
    const struct device_group slices = {to->owners, (size_t)to->first[to->n_shards]};
    const struct device_group *groups = is_slice(event) ? &slices : planned->operator->groups;
    event->n_groups = is_slice(event) ? 1 : planned->operator->n_groups;
    event->groups = ARENA_ARRAY(&timing->arena, struct device_group, event->n_groups + 1);
    for (size_t g = 0; event->groups && g < event->n_groups; g++) {
        int64_t *devices = ARENA_ARRAY(&timing->arena, int64_t, groups[g].n + 1);
        if (!devices)
            return false;
        memcpy(devices, groups[g].devices, groups[g].n * sizeof *devices);
        event->groups[g] = (struct device_group){devices, groups[g].n};
    }
    return event->groups != NULL;
}

// The list to which operators are added, and the bytes that they have put on the links.
struct recording {
    struct timing *timing;
    struct events *events;
    const struct plan_value *value;
};

static void record(void *data, const struct planned_operator *planned)
{
    struct recording *recording = data;
    struct timing *timing = recording->timing;
    struct event event = {.op = planned->operator->op, .ps = planned->ps, .to = planned->to};
    if (planned->operator->op == RESHARD_NOTHING)
        return;
    if (timing->planner->link_load) {
        event.uses = tsr__player_uses(&timing->player);
        (void)tsr__player_load(&timing->player); // of the next operator
    }
    if (is_slice(&event))
        event.each = tsr__slice_each(timing->planner, &timing->arena, planned->from, planned->to,
                                     recording->value);
    if (copy_groups(timing, planned, &event))
        vec_add(&timing->arena, &recording->events->list, event);
}

// Returns the operators of a resharding. NULL: there are none, or out of memory.
static struct events *events_of_move(struct timing *timing, uint32_t from, uint32_t to,
                                     const struct plan_value *value)
{
    size_t n = 4 + (size_t)value->rank;
    int64_t key[4 + 2 * TILE_MAX_RANK] = {from, to, value->bits, value->free};
    memcpy(key + 4, value->shape, (size_t)value->rank * sizeof *key);
    memcpy(key + n, value->open, (size_t)value->rank * sizeof *key);
    n += (size_t)value->rank;
    void **kept = tsr__map_at_copy(&timing->moves, str_bytes(key, n * sizeof *key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct recording recording = {timing, ARENA_NEW(&timing->arena, struct events), value};
    struct planner *planner = timing->planner;
    planner->link_load = tsr__player_load(&timing->player);
    bool found =
        recording.events && tsr__planner_operators(planner, from, to, value, record, &recording);
    planner->link_load = NULL;
    if (found)
        *kept = recording.events;
    return found ? recording.events : NULL;
}

// ---- steps -------------------------------------------------------------------------------------

static void add_work(struct timing *timing, const struct pending *work)
{
    for (size_t i = 0; i < work->n; i++) {
        int64_t ps = work->each ? int64_max(work->each[i] + work->more, 0) : work->ps;
        tsr__player_work(&timing->player, work->devices[i], ps);
    }
}

// Adds the pending work, that of the range since its devices last communicated.
static void flush(struct timing *timing)
{
    for (size_t i = 0; i < timing->pending.n; i++)
        add_work(timing, &timing->pending.at[i]);
    timing->pending.n = 0;
}

// Adds work in the order in which the engine runs it. A range receives as soon as the order of
// communication allows (simulate/simulate_order.c): before nodes that do not communicate. So the
// sender need not wait for these nodes.
static void add_in_order(struct timing *timing, const struct pending *work, bool transfer)
{
    if (transfer)
        add_work(timing, work);
    else
        vec_add(&timing->arena, &timing->pending, *work);
}

// Adds a meeting for each group of a communication. The first one occupies the links for all.
static void add_meetings(struct timing *timing, const struct event *event, int64_t ps)
{
    struct player *player = &timing->player;
    size_t id = player->meetings.n;
    for (size_t g = 0; g < event->n_groups; g++) {
        const struct device_group *group = &event->groups[g];
        struct player_meeting meeting = {
            .devices = group->devices, .n = group->n, .ps = ps, .id = id};
        if (g == 0)
            meeting.uses = event->uses;
        size_t number = tsr__player_meeting(player, &meeting);
        for (size_t i = 0; i < group->n; i++)
            tsr__player_join(player, group->devices[i], number);
    }
}

// Returns the times in which the devices execute a slice `times` times. NULL: they are equal.
static const int64_t *times_of(struct timing *timing, const struct event *event, int64_t times)
{
    if (!event->each || times == 1)
        return event->each;
    int64_t *each = ARENA_ARRAY(&timing->arena, int64_t, event->groups[0].n + 1);
    for (size_t i = 0; each && i < event->groups[0].n; i++)
        each[i] = times_ps(event->each[i], times);
    return each;
}

// Adds the operators, which a run executes `times` times, and counts them. Returns their time.
static int64_t add_events(struct timing *timing, const struct events *events, int64_t times,
                          bool transfer)
{
    int64_t sum = 0;
    for (size_t i = 0; i < events->list.n; i++) {
        const struct event *event = &events->list.at[i];
        int64_t ps = times_ps(event->ps, times);
        const struct device_group *group = event->groups;
        if (!is_slice(event))
            count(timing->out, tsr__collective(event->op)->op);
        if (timing->counts_only)
            continue;
        sum = int64_min(sum + ps, PLAN_NEVER);
        if (is_slice(event)) {
            add_in_order(timing,
                         &(struct pending){.devices = group->devices,
                                           .n = group->n,
                                           .ps = ps,
                                           .each = times_of(timing, event, times)},
                         transfer);
            continue;
        }
        if (!transfer)
            flush(timing);
        add_meetings(timing, event, ps);
    }
    return sum;
}

// ---- nodes that devices need --------------------------------------------------------------------

static bool is_cut(const struct planner *planner, const tsr_value *value)
{
    uint32_t layout = tsr__plan_layout(planner, value);
    return layout != PLAN_NO_LAYOUT && !tsr__layout_is_whole(planner->layouts.at[layout].tiles);
}

// True if the partition replaces the node by the sizes of its sharded input, which it then does not
// read.
static bool is_replaced(const struct plan_node *node, size_t input, bool cut)
{
    const struct rule_rewrite *sizes = tsr__rule_sizes(node->rule);
    return sizes && cut && sizes->input == (int)input;
}

// Called for each reader of a value: raises needs->value to the devices that need the value for it.
static bool add_reader(void *data, tsr_node *node, size_t input)
{
    struct needs *needs = data;
    int64_t reader = needs->planner->node_at[tsr__node_id(node)];
    unsigned char need = ON_ALL;
    if (reader >= 0 && is_replaced(&needs->planner->nodes[reader], input, needs->cut))
        need = ON_NONE;
    else if (reader >= 0)
        need = needs->nodes[reader];
    needs->value = need > needs->value ? need : needs->value;
    return needs->value < ON_ALL;
}

// Returns which devices need output o of a node. The first device returns the outputs of the model.
static enum needed output_needed(struct needs *needs, const struct candidate *candidate,
                                 const tsr_value *value, size_t o)
{
    const struct planner *planner = needs->planner;
    if (planner_stays(planner, value) || candidate->out[o] == PLAN_NO_LAYOUT)
        return ON_ALL;
    const struct tile_layout *layout = planner->layouts.at[candidate->out[o]].tiles;
    needs->cut = !tsr__layout_is_whole(layout);
    needs->value = tsr_value_is_output(value) ? ON_FIRST : ON_NONE;
    tsr_value_uses(value, add_reader, needs);
    bool first = !candidate->cut && tsr__layout_has_device(layout, 0);
    return needs->value == ON_FIRST && !first ? ON_ALL : needs->value;
}

// Returns which devices run the node: those that need its results. The partition drops it on the
// others. Nodes with bodies, and needed nodes in bodies, run on all devices.
static enum needed node_needed(struct needs *needs, size_t i)
{
    const struct plan_node *node = &needs->planner->nodes[i];
    enum needed most = ON_NONE;
    if (!node->strategy || node->bodies || (node->border && !in_main_graph(node)))
        return ON_ALL;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    for (size_t o = 0; o < tsr_node_output_count(node->node) && most < ON_ALL; o++) {
        const tsr_value *value = tsr_node_output(node->node, o);
        enum needed need = value ? output_needed(needs, candidate, value, o) : ON_NONE;
        most = need > most ? need : most;
    }
    return most == ON_FIRST && !in_main_graph(node) ? ON_ALL : most;
}

// Finds which devices run each node. Goes backwards, because a node depends on its readers. In a
// pipeline every stage may have a first device, so `staged` keeps nodes on all devices. Returns
// false if out of memory.
static bool find_needs(const struct planner *planner, struct arena *arena, bool staged,
                       struct needs *out)
{
    *out = (struct needs){.planner = planner};
    out->nodes = ARENA_ARRAY(arena, unsigned char, planner->n_nodes + 1);
    for (size_t i = planner->n_nodes; out->nodes && i-- > 0;) {
        enum needed need = node_needed(out, i);
        out->nodes[i] = (unsigned char)(staged && need == ON_FIRST ? ON_ALL : need);
    }
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

// Reshards a value to the layout that range k needs. From another range this is a transfer.
static bool bring(struct timing *timing, const tsr_value *v, uint32_t want, size_t k)
{
    const struct plan_value *value = &timing->planner->values[tsr__value_id(v)];
    if (want == PLAN_NO_LAYOUT)
        return true;
    struct value_forms *forms = forms_of(timing, v);
    if (!forms)
        return false;
    uint32_t from = forms->layouts.at[tsr__resharding_source(timing->planner, forms->layouts.at,
                                                             forms->layouts.n, want, value)];
    if (tsr__resharding_time(timing->planner, from, want, value) == 0)
        return true;
    if (from == PLAN_NO_LAYOUT)
        return false; // out of memory
    bool transfer = forms->range != SIZE_MAX && forms->range != k;
    const struct events *events = events_of_move(timing, from, want, value);
    if (!events)
        return false;
    *(transfer ? &timing->out->transfer[k] : &timing->out->time[k]) +=
        add_events(timing, events, value->times, transfer);
    for (size_t i = 0; i < events->list.n; i++) // later readers may use layouts between
        vec_add(&timing->arena, &forms->layouts, events->list.at[i].to);
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

// True if the value is made in a branch that is not taken.
static bool is_unmade(const struct timing *timing, const tsr_value *value)
{
    int64_t at = tsr__planned_producer(timing->planner, value);
    return at >= 0 && timing->unused[at];
}

// True if runs convert the value for input i of the node. Of a weight that they convert, lists the
// layout in which it is stored.
static bool is_converted(struct timing *timing, const struct plan_node *node, size_t i,
                         const tsr_value *value)
{
    struct value_forms *forms = &timing->forms[tsr__value_id(value)];
    if (!timing->planner->values[tsr__value_id(value)].constant)
        return true;
    if (!node->stored || i >= tsr__plan_reads(node) || node->stored[i] == PLAN_NO_LAYOUT)
        return false;
    if (!forms->layouts.n)
        vec_add(&timing->arena, &forms->layouts, node->stored[i]);
    forms->range = SIZE_MAX;
    return true;
}

// True if the node of the plan reads value i of its inputs and captures in a run.
static bool reads_in_run(struct timing *timing, const struct plan_node *node, size_t i,
                         const tsr_value *value)
{
    if (!value || (i < tsr__plan_reads(node) && !node->border && read_before(node->node, i)))
        return false;
    return i >= tsr__plan_reads(node) || !is_replaced(node, i, is_cut(timing->planner, value));
}

// Reshards the inputs to the candidate's layouts. Subgraphs read full values on all devices of the
// range. A branch that is not taken has its inputs, too: they are resharded outside of the If.
static bool bring_inputs(struct timing *timing, const struct plan_node *node, size_t k)
{
    tsr_value **captures;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    size_t n_in = tsr__plan_reads(node), n_reads = tsr__plan_all_reads(node, &captures);
    const struct plan_range *range = &timing->ranges[k];
    for (size_t i = 0; i < n_reads; i++) {
        const tsr_value *value = plan_any_read(node, captures, i);
        if (!reads_in_run(timing, node, i, value) || !is_converted(timing, node, i, value))
            continue;
        timing->counts_only = is_unmade(timing, value);
        uint32_t want = i < n_in ? candidate->in[i] : whole_on(timing, range, value, range->n);
        bool brought = bring(timing, value, want, k);
        timing->counts_only = false;
        if (!brought)
            return false;
    }
    return true;
}

// Adds a communication of all devices of the range.
static void add_common(struct timing *timing, const struct plan_range *range, int64_t ps)
{
    struct device_group all = {range->devices, range->n};
    struct event event = {.op = COMM_SEND, .groups = &all, .n_groups = 1};
    flush(timing);
    add_meetings(timing, &event, ps);
}

// Adds the reductions of a node's partial sums, and records the layouts of its outputs. Returns the
// time of the reductions.
static int64_t add_sums(struct timing *timing, const struct plan_node *node, size_t k)
{
    struct planner *planner = timing->planner;
    int64_t ps = 0;
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        const tsr_value *value = tsr__plan_made(node, i);
        if (!value)
            continue;
        struct events events = {0};
        struct recording recording = {timing, &events, &planner->values[tsr__value_id(value)]};
        struct value_forms *forms = &timing->forms[tsr__value_id(value)];
        planner->link_load = tsr__player_load(&timing->player);
        uint32_t after =
            tsr__plan_sum(planner, (size_t)(node - planner->nodes), i, record, &recording);
        planner->link_load = NULL;
        ps += add_events(timing, &events, planner->values[tsr__value_id(value)].times, false);
        vec_add(&timing->arena, &forms->layouts, after);
        forms->range = k;
    }
    return ps;
}

// True if the groups of the node's partial sums are known.
static bool has_sums(const struct planner *planner, const struct plan_node *node,
                     const struct candidate *candidate)
{
    for (size_t i = 0; i < tsr__plan_makes(node); i++)
        if (tsr__plan_made(node, i) && candidate->before[i] != PLAN_NO_LAYOUT &&
            planner->layouts.at[candidate->before[i]].parts)
            return true;
    return false;
}

// True if the node reads a result in another layout than its producer left it in, or after a
// reduction: communication or a slice comes between.
static bool is_apart(const struct timing *timing, const struct plan_node *node,
                     const struct candidate *candidate)
{
    const struct planner *planner = timing->planner;
    for (size_t i = 0; candidate->apart && i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        int64_t at = value ? tsr__planned_producer(planner, value) : -1;
        if (at < 0 || !planner->nodes[at].strategy)
            continue;
        const struct plan_node *producer = &planner->nodes[at];
        const struct candidate *made = &producer->strategy->at.at[producer->choice];
        if (tsr__plan_layout(planner, value) != candidate->in[i] || made->comm > made->halo)
            return true;
    }
    return false;
}

// On devices that run the node or a producer in an If, the node takes as long as apart from them.
static void use_guards(struct timing *timing, const struct candidate *candidate, const bool *guards,
                       struct pending *work)
{
    int64_t *each = ARENA_ARRAY(&timing->arena, int64_t, work->n + 1);
    for (size_t i = 0; each && i < work->n; i++) {
        bool apart = guards[work->devices[i]];
        const int64_t *known = apart ? candidate->each_apart : candidate->each;
        each[i] = apart ? candidate->apart : candidate->compute;
        if (known && candidate->n_each == work->n)
            each[i] = known[i];
        work->ps = int64_max(i ? work->ps : 0, each[i]);
    }
    work->each = each;
    work->more = 0;
}

// Returns the devices on which the node cannot be fused with a producer, because one of both is in
// an If. NULL: none.
static const bool *find_guards(struct timing *timing, const struct plan_node *node,
                               struct candidate *candidate)
{
    struct planner *planner = timing->planner;
    const bool *guards = NULL;
    if (candidate->apart)
        guards = tsr__candidate_guards(planner, node->strategy, candidate);
    for (size_t i = 0; candidate->apart && !guards && i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        int64_t at = value ? tsr__planned_producer(planner, value) : -1;
        const struct plan_node *producer = at < 0 ? NULL : &planner->nodes[at];
        if (producer && producer->strategy)
            guards = tsr__candidate_guards(planner, producer->strategy,
                                           &producer->strategy->at.at[producer->choice]);
    }
    return guards;
}

// Uses the times of the single devices. What the candidate has in addition to their longest, such
// as slices of windows, all of them have.
static void use_each(struct pending *work, const int64_t *each, size_t n)
{
    int64_t most = 0;
    if (!each || n != work->n)
        return;
    for (size_t i = 0; i < n; i++)
        most = int64_max(most, each[i]);
    work->each = each;
    work->more = work->ps - most;
}

// Adds the events of a node on its devices: halos, the node, its reductions.
static void run_node(struct timing *timing, const struct plan_node *node, size_t k)
{
    struct candidate *candidate = &node->strategy->at.at[node->choice];
    const struct plan_range *range = &timing->ranges[k];
    bool apart = is_apart(timing, node, candidate);
    struct pending work = {.devices = range->devices,
                           .n = range->n,
                           .ps = apart ? candidate->apart : candidate->compute};
    int64_t halo = 0,
            sums = 0; // sums without known groups, as between simpler nodes that replace it
    enum plan_windows windows = tsr__plan_windows(timing->planner, node);
    if (windows == WINDOWS_EXCHANGED) {
        halo = candidate->halo + candidate->free_halo;
        for (int i = 0; i < candidate->halos; i++)
            count(timing->out, tsr__collective(COMM_HALO)->op);
    }
    for (int i = 0; i < candidate->reductions; i++)
        count(timing->out, candidate->reduction);
    if (windows == WINDOWS_OF_FULL)
        work.ps -= candidate->crop;
    if (!has_sums(timing->planner, node, candidate))
        sums = candidate->comm - candidate->halo;
    use_each(&work, apart ? candidate->each_apart : candidate->each, candidate->n_each);
    const bool *guards = apart ? NULL : find_guards(timing, node, candidate);
    if (guards)
        use_guards(timing, candidate, guards, &work);
    if (timing->needs.nodes[node - timing->planner->nodes] == ON_FIRST)
        work.n = 1;
    if (!timing->counts_only) {
        if (halo > 0)
            add_common(timing, range, halo);
        add_in_order(timing, &work, false);
        if (sums > 0)
            add_common(timing, range, sums);
        timing->out->time[k] += work.ps + halo + sums;
    }
    timing->out->time[k] += add_sums(timing, node, k);
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

// Adds a node that is in no range. It runs on the devices of the ranges that need it.
static void run_common(struct timing *timing, size_t node, int64_t ps)
{
    for (size_t k = 0; k < timing->n_ranges; k++)
        if (timing->common[node] >> k & 1)
            add_work(timing, &(struct pending){.devices = timing->ranges[k].devices,
                                               .n = timing->ranges[k].n,
                                               .ps = ps});
}

// Adds the ranges that need node i to the nodes in no range that it reads.
static void pass_on(struct timing *timing, size_t i, uint64_t ranges)
{
    tsr_value **captures;
    const struct planner *planner = timing->planner;
    const struct plan_node *node = &planner->nodes[i];
    size_t n_reads = tsr__plan_all_reads(node, &captures);
    for (size_t r = 0; r < n_reads; r++) {
        const tsr_value *value = plan_any_read(node, captures, r);
        int64_t from = value ? tsr__planned_producer(planner, value) : -1;
        if (from >= 0 && reads_in_run(timing, node, r, value))
            timing->common[from] |= ranges;
    }
}

// Finds the ranges that need each node that is in no range. Goes backwards, because a node depends
// on its readers. All ranges compute outputs of the model.
static bool find_common(struct timing *timing)
{
    const struct planner *planner = timing->planner;
    size_t k = timing->n_ranges - 1;
    timing->common = ARENA_ARRAY(&timing->arena, uint64_t, planner->n_nodes + 1);
    if (!timing->common)
        return false;
    for (size_t i = planner->n_nodes; i-- > 0;) {
        const struct plan_node *node = &planner->nodes[i];
        while (k > 0 && i < timing->ranges[k - 1].end)
            k--;
        for (size_t o = 0; o < tsr_node_output_count(node->node) && !node->strategy; o++)
            if (tsr_node_output(node->node, o) &&
                tsr_value_is_output(tsr_node_output(node->node, o)))
                timing->common[i] = UINT64_MAX;
        if (node->strategy)
            timing->common[i] = timing->needs.nodes[i] == ON_NONE ? 0 : UINT64_C(1) << k;
        if (timing->common[i])
            pass_on(timing, i, timing->common[i]);
    }
    return true;
}

// The program adds up both branches of an If, so that both are planned well, but a run takes one.
bool tsr__planner_unused(struct planner *planner, struct arena *arena, bool **out)
{
    int64_t *cost = ARENA_ARRAY(arena, int64_t, planner->n_nodes + 1);
    bool *unused = *out = ARENA_ARRAY(arena, bool, planner->n_nodes + 1);
    if (!cost || !unused || !planner->body_outputs)
        return !arena->failed;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        cost[i] = candidate->compute + candidate->comm;
        for (size_t o = 0; o < tsr__plan_makes(node); o++)
            if (tsr__plan_made(node, o))
                cost[i] += tsr__planner_moved(planner, i, o);
    }
    (void)tsr__branches_sum(planner, cost, unused);
    return true;
}

// Lists all steps of one run, in graph order. Nodes of branches that are not taken do not run.
static bool list_steps(struct timing *timing, const int64_t *common)
{
    struct planner *planner = timing->planner;
    size_t k = 0;
    if (!tsr__planner_unused(planner, &timing->arena, &timing->unused))
        return false;
    if (common && !find_common(timing))
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        while (k + 1 < timing->n_ranges && i >= timing->ranges[k].end) {
            flush(timing);
            k++;
        }
        if (node->strategy && timing->needs.nodes[i] == ON_NONE)
            continue;
        if (node->strategy) {
            if (!bring_inputs(timing, node, k))
                return false;
            timing->counts_only = timing->unused[i];
            run_node(timing, node, k);
            timing->counts_only = false;
        } else if (common && planner->node_at[tsr__node_id(node->node)] >= 0) {
            run_common(timing, i, common[i]);
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
    out->n_counts = 0;
    tsr__arena_init(&timing.arena, planner->session);
    tsr__map_init(&timing.moves, &timing.arena, 64);
    timing.forms =
        ARENA_ARRAY(&timing.arena, struct value_forms, tsr__model_value_ids(planner->model) + 1);
    struct player *player = &timing.player;
    bool ok = timing.forms && find_needs(planner, &timing.arena, n > 1, &timing.needs) &&
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

int64_t tsr__planner_played(struct planner *planner, int64_t cost)
{
    if (planner->machine.topology->unsharded_penalty)
        return cost; // which has the penalties
    int64_t time = 0, transfer = 0;
    struct plan_range all = {planner->n_nodes, planner->machine.all, (size_t)planner->machine.n};
    struct played_plan played = {.time = &time, .transfer = &transfer};
    return tsr__plan_play(planner, &all, 1, NULL, &played) ? played.latency : cost;
}

size_t tsr__planner_collectives(struct planner *planner, struct collective_count *out)
{
    const struct planner_scope *scope = &planner->scope;
    bool limited = scope->n_ranges > 0;
    struct plan_range all = {planner->n_nodes, planner->machine.all, (size_t)planner->machine.n};
    size_t n = limited ? scope->n_ranges : 1;
    struct arena scratch = {.session = planner->session};
    struct played_plan played = {.time = ARENA_ARRAY(&scratch, int64_t, n),
                                 .transfer = ARENA_ARRAY(&scratch, int64_t, n)};
    bool ok = played.time && played.transfer &&
              tsr__plan_play(planner, limited ? scope->ranges : &all, n, NULL, &played);
    tsr__arena_free(&scratch);
    for (size_t i = 0; i < played.n_counts && ok; i++)
        out[i] = played.counts[i];
    return ok ? played.n_counts : 0;
}
