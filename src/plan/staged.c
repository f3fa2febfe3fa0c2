// SPDX-License-Identifier: Apache-2.0
// staged.c - a plan in pipeline stages: finds the cuts and the stages, plans each stage's nodes on its devices, and says it
// all in the numbers of the whole topology, so that what writes and counts plans needs to know nothing of stages.
//
// Three stages on four devices, in line 3 2 1 0. Times in ms; a transfer is what a stage gets from the one before:
//
//     stage       0             1            2
//     devices     3             2            0 1
//     time        4             5            3
//     transfer    0             1            1             (stage 2 also brings the outputs to device 0: it has them)
//
// One run takes 4 + (1 + 5) + (1 + 3) = 14: the latency. Runs that follow one another come out at the pace of the stage that
// is busy longest, with what it takes in and hands over: stage 1 with 1 + 5 + 1 = 7, the period. If stage 2 read a value
// of stage 0 directly, stage 0 would wait until stage 1 is done too: 4 + 1 + 5 = 10.
#include "plan/stages.h"

// ---- from the devices of a block to those of the topology --------------------------------------

// The number that a layout of the stage's planner has in the planner of all: device i is stage->devices[i].
static uint32_t globally(struct planner *planner, const struct stage *stage, uint32_t layout)
{
    if (layout == PLAN_NO_LAYOUT)
        return layout;
    const struct tile_layout *tiles = stage->kind->planner.layouts.at[layout].tiles;
    struct tile_layout *copy = tsr__layout_copy(&planner->arena, tiles);
    size_t n = (size_t)tiles->first[tiles->n_shards], n_pairs = 0;
    struct tile_owner *pairs = ARENA_ARRAY(&planner->arena, struct tile_owner, n + 1);
    if (!copy || !pairs)
        return PLAN_NO_LAYOUT;
    for (int64_t shard = 0; shard < tiles->n_shards; shard++)
        for (int64_t i = tiles->first[shard]; i < tiles->first[shard + 1]; i++)
            pairs[n_pairs++] = (struct tile_owner){shard, stage->devices[tiles->owners[i]]};
    if (!tsr__layout_own(&planner->arena, copy, pairs, n_pairs))
        return PLAN_NO_LAYOUT;
    return tsr__planner_layout(planner, copy);
}

// The candidate that the stage's planner has, with layouts of the planner of all.
static bool map_candidate(struct planner *planner, const struct stage *stage,
                          const struct plan_node *node, size_t choice, struct candidate *candidate)
{
    size_t n_in = tsr_node_input_count(node->node), n_out = tsr_node_output_count(node->node);
    const struct candidate *from = &node->strategy->at.at[choice];
    *candidate = *from;
    candidate->in = ARENA_ARRAY(&planner->arena, uint32_t, n_in + 1);
    candidate->out = ARENA_ARRAY(&planner->arena, uint32_t, n_out + 1);
    candidate->before = ARENA_ARRAY(&planner->arena, uint32_t, n_out + 1);
    if (!candidate->in || !candidate->out || !candidate->before)
        return false;
    for (size_t i = 0; i < n_in; i++)
        candidate->in[i] = globally(planner, stage, from->in[i]);
    for (size_t i = 0; i < n_out; i++) {
        candidate->out[i] = globally(planner, stage, from->out[i]);
        candidate->before[i] = globally(planner, stage, from->before[i]);
    }
    return !planner->arena.failed;
}

// The chosen way of each node of the stage as its only one in the planner of all.
static bool take_stage(struct planner *planner, const struct stage *stage)
{
    const struct planner *own = &stage->kind->planner;
    for (size_t i = 0; i < own->n_nodes; i++) {
        const struct plan_node *node = &own->nodes[i];
        if (!node->strategy)
            continue;
        struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
        struct candidate *candidate = strategy ? vec_push(&planner->arena, &strategy->at) : NULL;
        if (!candidate || !map_candidate(planner, stage, node, node->choice, candidate))
            return false;
        strategy->node = node->node;
        strategy->rule = node->strategy->rule;
        strategy->whole = node->strategy->whole;
        struct plan_node *to = &planner->nodes[stage->kind->begin + i];
        to->strategy = strategy;
        to->choice = 0;
    }
    return true;
}

// Bytes and peaks of the stage's devices, at their places in lists of all devices.
static bool memory_of_stage(struct staging *staging, const struct stage *stage, int64_t *memory,
                            int64_t *peak)
{
    int64_t *bytes = ARENA_ARRAY(&staging->planner->arena, int64_t, stage->n);
    int64_t *most = ARENA_ARRAY(&staging->planner->arena, int64_t, stage->n);
    if (!bytes || !most || !tsr__planner_memory(&stage->kind->planner, bytes, most))
        return false;
    for (size_t device = 0; device < stage->n; device++) {
        memory[stage->devices[device]] = bytes[device];
        peak[stage->devices[device]] = most[device];
    }
    return true;
}

// ---- the answer --------------------------------------------------------------------------------

// The number that stage k in line has in the model.
static int64_t number_of(const struct staging *staging, size_t k)
{
    if (staging->n_hand)
        return staging->numbers[k];
    return (int64_t)k;
}

// Hand-made stages keep their numbers; others are numbered in line. A line of one stage needs no number.
static tsr_status set_stages(struct staging *staging, const struct line *line)
{
    if (line->n <= 1 && !staging->n_hand)
        return TSR_OK;
    for (size_t k = 0; k < line->n; k++)
        for (size_t i = staging->cut[line->at[k].begin]; i < staging->cut[line->at[k].end]; i++) {
            struct plan_node *node = &staging->planner->nodes[i];
            if (!node->strategy)
                continue;
            tsr_status st =
                tsr_node_set_stage(node->node, staging->planner->config, number_of(staging, k));
            if (st != TSR_OK)
                return st;
        }
    return TSR_OK;
}

// Devices, time, memory and nodes of one stage as the caller gets them.
static bool tell_stage(struct staging *staging, const struct stage *stage, const int64_t *memory,
                       tsr_plan_stage *out)
{
    struct arena *arena = &staging->planner->session->results[RESULT_PLAN];
    int64_t *devices = ARENA_ARRAY(arena, int64_t, stage->n);
    if (!devices)
        return false;
    memcpy(devices, stage->devices, stage->n * sizeof *devices);
    *out = (tsr_plan_stage){.devices = devices, .n_devices = stage->n, .first = -1, .last = -1};
    out->time = stage->point.time;
    out->transfer = stage->transfer;
    for (size_t i = 0; i < stage->n; i++)
        out->memory = larger(out->memory, memory[devices[i]]);
    for (size_t i = staging->cut[stage->begin]; i < staging->cut[stage->end]; i++) {
        if (!staging->planner->nodes[i].strategy)
            continue;
        if (out->nodes++ == 0)
            out->first = (int64_t)i;
        out->last = (int64_t)i;
    }
    return true;
}

// Time and transfers of the stages from `from` to `to`, both of them counted.
static int64_t sum_of(const tsr_plan_stage *at, size_t from, size_t to)
{
    int64_t sum = 0;
    for (size_t k = from; k <= to; k++)
        sum += at[k].time + at[k].transfer;
    return sum;
}

// The stage in line that a node belongs to.
static size_t stage_of(const struct staging *staging, const struct line *line, size_t node)
{
    size_t k = 0;
    while (k + 1 < line->n && staging->cut[line->at[k].end] <= node)
        k++;
    return k;
}

// The stage of device 0; that of the last if it has none to do.
static size_t first_device(const struct line *line)
{
    for (size_t k = 0; k < line->n; k++)
        for (size_t device = 0; device < line->at[k].n; device++)
            if (line->at[k].devices[device] == 0)
                return k;
    return line->n - 1;
}

// How long stage k is busy with one run: with what it takes in and hands over; longer where it waits for others, because it
// reads what an earlier stage than the one before made, or brings outputs to a device 0 that is not its neighbour's.
static int64_t busy_time(struct staging *staging, const struct line *line, const tsr_plan_stage *at,
                         size_t k)
{
    const struct range *range = tsr__stages_range(staging, line->at[k].begin, line->at[k].end);
    size_t gives = first_device(line);
    int64_t own = sum_of(at, k, k);
    if (k + 1 < line->n)
        own += at[k + 1].transfer;
    int64_t waiting = own;
    // It reads over the head of a stage in between: the maker waits until all stages before this
    // one are done with the run.
    if (range && range->n_in) {
        size_t from = stage_of(staging, line, range->earliest);
        if (from + 1 < k)
            waiting = sum_of(at, from, k - 1);
    }
    // Device 0 has an earlier stage and waits for the outputs: the stages from its own to this
    // one take one period together.
    if (range && range->n_out && gives < k)
        own = sum_of(at, gives, k);
    else if (range && range->n_out && gives > k + 1)
        own = sum_of(at, k, gives - 1);
    return larger(own, waiting);
}

// Between runs: the stage that is busy longest.
static int64_t period_of(struct staging *staging, const struct line *line, const tsr_plan_stage *at)
{
    int64_t most = 0;
    for (size_t k = 0; k < line->n; k++)
        most = larger(most, busy_time(staging, line, at, k));
    return most;
}

// Stages, latency and period of the summary. Nodes that run everywhere are part of both.
static bool tell(struct staging *staging, const struct line *line, tsr_plan_summary *out)
{
    struct arena *arena = &staging->planner->session->results[RESULT_PLAN];
    tsr_plan_stage *list = ARENA_ARRAY(arena, tsr_plan_stage, line->n);
    if (!list)
        return false;
    for (size_t k = 0; k < line->n; k++) {
        if (!tell_stage(staging, &line->at[k], out->memory, &list[k]))
            return false;
        out->latency += list[k].time + list[k].transfer;
    }
    out->latency += staging->common;
    out->period = period_of(staging, line, list) + staging->common;
    out->stages = list;
    out->n_stages = line->n;
    return true;
}

// Plans the nodes of every stage once more, with choices.
static tsr_status take_line(struct staging *staging, struct line *line, int64_t *memory,
                            int64_t *peak)
{
    for (size_t k = 0; k < line->n; k++) {
        struct stage *stage = &line->at[k];
        tsr_status st = tsr__front_take(staging, stage->kind, stage->begin, stage->end,
                                        stage->memory, &stage->point);
        if (st != TSR_OK)
            return st;
        if (!take_stage(staging->planner, stage) || !memory_of_stage(staging, stage, memory, peak))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// What is proved: the same search over what no plan of a range is below.
static tsr_status prove(struct staging *staging, const tsr_plan_options *options,
                        tsr_plan_summary *out)
{
    struct line line;
    tsr_status st = tsr__stages_search(staging, options, MEASURE_BOUND, &line);
    if (st != TSR_OK)
        return st;
    out->objective = options->objective;
    out->cost = out->latency;
    int64_t proved = line.sum;
    if (options->objective == TSR_THROUGHPUT) {
        out->cost = out->period;
        proved = line.most;
    }
    out->bound = smaller(proved + staging->common, out->cost);
    out->optimal = out->bound == out->cost;
    out->gap = (double)(out->cost - out->bound) / (double)larger(out->cost, 1);
    return TSR_OK;
}

// Time of the whole range on device 0 alone; stays 0 where it does not fit.
static tsr_status one_device(struct staging *staging, tsr_plan_summary *out)
{
    struct point point = {0};
    int64_t first = 0, memory = staging->memory;
    if (memory == 0)
        memory = staging->planner->machine.topology->device[0].memory;
    if (memory <= 0)
        memory = PLAN_NO_LIMIT;
    struct kind *kind = tsr__stages_kind(staging, &first, 1);
    if (!kind)
        return TSR_NOMEM;
    tsr_status st = tsr__front_at(staging, kind, 0, staging->n_ranges, memory, &point);
    if (point.feasible)
        out->one_device = point.time + staging->common;
    return st;
}

// What the whole plan costs if a stage takes so long.
static int64_t cost_with(struct staging *staging, const struct line *line,
                         const tsr_plan_summary *summary, size_t stage, int64_t time)
{
    tsr_plan_stage at[STAGES_MOST];
    for (size_t k = 0; k < summary->n_stages; k++)
        at[k] = summary->stages[k];
    at[stage].time = time;
    if (summary->objective == TSR_THROUGHPUT)
        return staging->common + period_of(staging, line, at);
    return staging->common + sum_of(at, 0, summary->n_stages - 1);
}

// The planner of a stage counts its devices from 0: the shardings once more, by the devices of the whole.
static tsr_status name_devices(struct planner *planner, const struct stage *stage, const char *name,
                               tsr_plan_summary *out)
{
    const struct plan_node *node = tsr__planner_find(&stage->kind->planner, name);
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->n_choices; i++) {
        struct candidate candidate;
        if (!map_candidate(planner, stage, node, i, &candidate) ||
            !tsr__choice_tensors(planner, node->node, &candidate, &list[i]))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// A node that is in no stage: every device runs it whole, and there is no other way.
static tsr_status explain_common(const struct staging *staging, const struct plan_node *node,
                                 tsr_plan_summary *out)
{
    struct arena *arena = &staging->planner->session->results[RESULT_PLAN];
    tsr_plan_choice *only = ARENA_NEW(arena, tsr_plan_choice);
    if (!only)
        return TSR_NOMEM;
    *only = (tsr_plan_choice){.name = "whole, in every stage",
                              .chosen = true,
                              .feasible = true,
                              .cost = out->cost,
                              .compute = staging->times[node - staging->planner->nodes]};
    out->choices = only;
    out->n_choices = 1;
    return TSR_OK;
}

// The stages stay as they are; in one of them the node runs otherwise.
static tsr_status explain(struct staging *staging, const struct line *line, const char *name,
                          tsr_plan_summary *out)
{
    const struct plan_node *node = tsr__planner_find(staging->planner, name);
    size_t k = 0;
    if (node) {
        k = stage_of(staging, line, (size_t)(node - staging->planner->nodes));
    } else {
        const struct plan_node *common =
            tsr__planner_find_common(staging->planner, staging->staged, name);
        if (common)
            return explain_common(staging, common, out);
    }
    const struct stage *stage = &line->at[k];
    tsr_status st = tsr__front_explain(staging, stage->kind, stage->begin, stage->end,
                                       stage->memory, name, out);
    if (st != TSR_OK)
        return st;
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->n_choices; i++)
        list[i].cost = list[i].feasible ? cost_with(staging, line, out, k, list[i].cost) : 0;
    return name_devices(staging->planner, stage, name, out);
}

// ---- why not -----------------------------------------------------------------------------------

// Nothing fits: the same search over memory says what the fullest device of the best line would
// need.
static tsr_status refuse(struct staging *staging, const tsr_plan_options *options,
                         tsr_plan_summary *out)
{
    struct line line;
    tsr_status st = tsr__stages_search(staging, options, MEASURE_MEMORY, &line);
    if (st != TSR_OK)
        return st;
    if (line.n)
        out->needs_bytes = line.most;
    struct planner *planner = staging->planner;
    bool proved = !tsr__budget_over(planner->budget);
    return tsr__planner_say_none(planner, "plan in stages", proved, out->needs_bytes);
}

// More stages than devices, ranges or STAGES_MOST are refused; "auto" (0 or less) never is.
static tsr_status check_number(const struct staging *staging, int64_t stages)
{
    int64_t most = smaller(staging->planner->machine.n, (int64_t)staging->n_ranges);
    most = smaller(most, STAGES_MOST);
    if (stages <= most)
        return TSR_OK;
    tsr__diag(staging->planner->session, DIAG_plan_stages, NULL,
              "ask for fewer stages, or for auto",
              "%lld stages; on %lld devices this model can have %lld", (long long)stages,
              (long long)staging->planner->machine.n, (long long)most);
    return TSR_INVALID;
}

// Choices of all nodes, and what they come to.
static tsr_status take_plan(struct staging *staging, const tsr_plan_options *options,
                            struct line *line, tsr_plan_summary *out)
{
    struct arena *arena = &staging->planner->session->results[RESULT_PLAN];
    int64_t *memory = ARENA_ARRAY(arena, int64_t, (size_t)staging->planner->machine.n);
    int64_t *peak = ARENA_ARRAY(arena, int64_t, (size_t)staging->planner->machine.n);
    if (!memory || !peak)
        return TSR_NOMEM;
    tsr_status st = take_line(staging, line, memory, peak);
    if (st != TSR_OK)
        return st;
    out->memory = memory;
    out->peak = peak;
    out->feasible = true;
    if (!tell(staging, line, out))
        return TSR_NOMEM;
    st = prove(staging, options, out);
    if (st != TSR_OK)
        return st;
    return one_device(staging, out);
}

// "plan.lp" of stage 2 is "plan.2.lp"; a name without an ending gets the number behind it.
static struct str numbered_path(struct arena *arena, const char *path, size_t stage)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    if (!dot || (slash && dot < slash))
        return tsr__arena_printf(arena, "%s.%zu", path, stage);
    return tsr__arena_printf(arena, "%.*s.%zu%s", (int)(dot - path), path, stage, dot);
}

// Each stage is a program of its own: one file for each.
static tsr_status export_stages(struct staging *staging, const struct line *line, const char *path)
{
    for (size_t k = 0; k < line->n; k++) {
        const struct stage *stage = &line->at[k];
        struct str name = numbered_path(&staging->planner->arena, path, k);
        if (!name.p)
            return TSR_NOMEM;
        tsr_status st = tsr__front_export(staging, stage->kind, stage->begin, stage->end,
                                          stage->memory, name.p);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// The plan as shardings, stages and metadata of the model.
static tsr_status write_staged(struct staging *staging, const char *config, const struct line *line)
{
    struct planner *planner = staging->planner;
    tsr_status st = tsr__planner_write(planner, config);
    if (st != TSR_OK)
        return st;
    return set_stages(staging, line);
}

// Where the graph may be cut, and the best line of stages; line->n 0: none fits.
static tsr_status find_stages(struct staging *staging, const tsr_plan_options *options,
                              struct line *line)
{
    if (!tsr__stages_cuts(staging))
        return TSR_NOMEM;
    tsr_status st = check_number(staging, options->stages);
    if (st != TSR_OK)
        return st;
    return tsr__stages_search(staging, options, MEASURE_TIME, line);
}

// Finds the stages, plans their nodes, writes the plan into the model, and sums it up.
static tsr_status staged(struct staging *staging, const tsr_plan_options *given,
                         tsr_plan_summary *out)
{
    struct line line;
    struct planner *planner = staging->planner;
    tsr_plan_options options = *given;
    tsr_status st = tsr__stages_by_hand(staging, given->stages);
    if (st != TSR_OK)
        return st;
    if (staging->n_hand)
        options.stages = (int64_t)staging->n_hand;
    st = find_stages(staging, &options, &line);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_summary){.size = sizeof *out, .devices = (size_t)planner->machine.n};
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    if (!line.n)
        return refuse(staging, &options, out);
    st = take_plan(staging, &options, &line, out);
    out->solve_ms = 1e3 * (tsr__clock() - planner->budget->begin);
    if (st != TSR_OK)
        return st;
    if (options.export_lp)
        st = export_stages(staging, &line, options.export_lp);
    if (st != TSR_OK)
        return st;
    st = write_staged(staging, options.config, &line);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_tell(planner, NULL, out);
    if (st != TSR_OK || !options.explain)
        return st;
    return explain(staging, &line, options.explain, out);
}

// The memory that each device may use: as the caller says; else as the topology says, if the caller gave one; else any.
static int64_t memory_limit(const tsr_plan_options *options)
{
    if (options->memory > 0 || options->topology)
        return options->memory;
    return -1;
}

// `limited` decides whether programs get rows at all: without a limit on any device memory is not
// followed.
tsr_status tsr__plan_stages(struct planner *planner, const tsr_plan_options *options,
                            tsr_plan_summary *out)
{
    struct staging staging = {.planner = planner, .memory = memory_limit(options)};
    for (int64_t device = 0; device < planner->machine.n; device++)
        staging.limited =
            staging.limited || staging.memory > 0 ||
            (staging.memory == 0 && planner->machine.topology->device[device].memory > 0);
    if (!tsr__planner_list(planner))
        return TSR_NOMEM;
    tsr__map_init(&staging.structures, &planner->arena, 256);
    tsr__map_init(&staging.kinds, &planner->arena, 64);
    planner->scope.staged = true;
    tsr_status st = staged(&staging, options, out);
    tsr__stages_free(&staging);
    return st;
}
