// SPDX-License-Identifier: Apache-2.0
// range_costs.c - computes time and memory of a range of nodes on a block of devices. A point is
// the result for one memory limit.
//
// A kind of block has one planner, whose candidates serve all ranges. A range is first solved
// without a limit. Only if the result does not fit, the range is solved again with the limit.
// Ranges with equal nodes share their points, so that repeated layers are solved once.
//
// Example: the time of a layer on a kind of block of two devices is needed for three limits:
//
//     limit 6 GiB    without a limit: 10 ms with 8 GiB, which is too much; with it: 12 ms, 5 GiB.
//                    The point (12 ms, 5 GiB) is the best for limits from 5 to 6 GiB.
//     limit 5.5 GiB  the same point, nothing is solved
//     limit 4 GiB    solved again: nothing fits. The point records this for limits up to 4 GiB.
//
// The next 23 layers have the same structure and use these points.
#include "plan/stages/stages.h"

#include <math.h>

#define HASTY_WORK UINT64_C(20000000) // cells that the solve of one range may visit
#define LEAST_NEAR 0.01               // accepted error of the least memory
#define KEY_BYTES  ((size_t)1 << 20)  // 1/64 of the largest key of a block

// ---- planners of blocks ------------------------------------------------------------------------

// Writes the rates of a device into the key. Numbers are written exactly (%a): devices of one kind
// have equal bits.
static void key_of_device(struct text *key, const tsr_topology_device *device)
{
    tsr__text_printf(key, "%a %a %a", device->flops, device->bandwidth, device->overhead);
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        tsr__text_printf(key, " %a", device->rates[i]);
    for (int i = 0; i < TSR_MOVE_COUNT; i++)
        tsr__text_printf(key, " %a %a", device->moves[i], device->cached[i]);
    tsr__text_printf(key, " %d %a", device->queued, device->unhidden);
    tsr__text_printf(key, ";");
}

// Builds the key of a block: speeds, and the time of a message between each pair of devices.
static bool key_of(struct staging *staging, const int64_t *devices, size_t n, struct text *key)
{
    tsr_topology *topology = staging->planner->machine.topology;
    key->max = KEY_BYTES * 64;
    // One byte (the latency) and one more size distinguish links.
    for (size_t i = 0; i < n; i++)
        key_of_device(key, &topology->device[devices[i]]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            int pair[2] = {(int)devices[i], (int)devices[k]};
            struct topology_groups two = {1, 2, pair};
            if (i != k)
                tsr__text_printf(key, "%lld %lld,",
                                 (long long)tsr__topology_cost(topology, TSR_SEND, &two, 1),
                                 (long long)tsr__topology_cost(topology, TSR_SEND, &two, 1 << 20));
        }
    return !key->failed;
}

// Creates the planner of a kind of block. It has no range until select_range sets one: node_at is
// -1 for all nodes.
static struct kind *kind_new(struct staging *staging, const int64_t *devices, size_t n)
{
    struct kind *kind = ARENA_NEW(&staging->planner->arena, struct kind);
    // freed with the others from now on
    if (!kind || !vec_add(&staging->planner->arena, &staging->all_kinds, kind))
        return NULL;
    if (!tsr__planner_fork(staging->planner, staging->staged, devices, n, &kind->planner))
        return NULL;
    tsr__map_init(&kind->links, &kind->planner.arena, 0);
    if (staging->other) {
        kind->other = tsr__stages_kind(staging->other, devices, n);
        if (!kind->other)
            return NULL;
    }
    kind->nodes = kind->planner.nodes;
    kind->planner.scope.staged_nodes = staging->staged;
    for (size_t i = 0; i < kind->planner.n_nodes; i++)
        kind->planner.node_at[tsr__node_id(kind->nodes[i].node)] = -1;
    return kind;
}

// Returns the kind with this key, and creates it if it is new. NULL: out of memory.
static struct kind *kind_of_key(struct staging *staging, struct str key, const int64_t *devices,
                                size_t n)
{
    void **at = tsr__map_at_copy(&staging->kinds, key);
    if (at && !*at)
        *at = kind_new(staging, devices, n);
    return at ? *at : NULL;
}

// Returns the kind of a block of devices. The map has its own copy of the key.
struct kind *tsr__stages_kind(struct staging *staging, const int64_t *devices, size_t n)
{
    struct kind *kind = NULL;
    struct text key = {.session = staging->planner->session};
    if (key_of(staging, devices, n, &key))
        kind = kind_of_key(staging, (struct str){key.p, key.n}, devices, n);
    tsr__text_free(&key);
    return kind;
}

void tsr__stages_free(struct staging *staging)
{
    for (size_t i = 0; i < staging->all_kinds.n; i++)
        tsr__planner_end(&staging->all_kinds.at[i]->planner);
}

// ---- time --------------------------------------------------------------------------------------

bool tsr__stages_over(const struct staging *staging)
{
    return tsr__cancelled(staging->planner->session) ||
           (staging->end > 0 && tsr__now_s() >= staging->end);
}

// Returns options for a solve that is limited to HASTY_WORK and to the remaining time.
static struct program_options hasty_options(const struct staging *staging)
{
    struct program_options options = {.work = HASTY_WORK};
    if (staging->end > 0)
        options.seconds = fmax(staging->end - tsr__now_s(), 1e-3);
    return options;
}

// ---- points ------------------------------------------------------------------------------------

static bool is_given(const struct planner *planner, const tsr_value *value)
{
    for (size_t i = 0; i < planner->ends.given.n; i++)
        if (planner->ends.given.at[i] == value)
            return true;
    return false;
}

// True if the value must be added to ends.given: it is not a constant, the list does not have it
// yet, and no node of the range produces it.
static bool comes_from_outside(const struct planner *planner, const tsr_value *value)
{
    return !planner->values[tsr__value_id(value)].constant && !is_given(planner, value) &&
           tsr__planned_producer(planner, value) < 0;
}

// True if a node of another range produces the value.
static bool crosses(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = tsr_value_producer(value);
    return from && planner->scope.staged_nodes && planner->scope.staged_nodes[tsr__node_id(from)];
}

// Lists the values that nodes of the range read from outside, except constants. In an open range,
// values that cross its border are charged to neither side.
static void list_given(struct planner *planner)
{
    planner->ends.given.n = 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        tsr_value **captures;
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        size_t n_reads = tsr__plan_all_reads(node, &captures);
        for (size_t k = 0; k < n_reads; k++) {
            const tsr_value *value = plan_any_read(node, captures, k);
            if (!value || !comes_from_outside(planner, value))
                continue;
            if (planner->scope.open && crosses(planner, value))
                continue;
            vec_add(&planner->arena, &planner->ends.given, value);
        }
    }
}

// Restricts the planner of the kind to this range: sets its nodes, their indices, and the values
// from outside.
static void select_range(struct staging *staging, struct kind *kind, const struct stage *stage)
{
    struct planner *planner = &kind->planner;
    for (size_t n = kind->begin; n < kind->end; n++)
        planner->node_at[tsr__node_id(kind->nodes[n].node)] = -1;
    kind->begin = staging->cut[stage->begin];
    kind->end = staging->cut[stage->end];
    planner->nodes = &kind->nodes[kind->begin];
    planner->n_nodes = kind->end - kind->begin;
    for (size_t n = 0; n < planner->n_nodes; n++)
        if (planner->nodes[n].strategy)
            planner->node_at[tsr__node_id(planner->nodes[n].node)] = (int64_t)n;
    list_given(planner);
}

// Returns the bytes on the fullest device.
static int64_t peak_of(const struct program *program, const uint32_t *choice)
{
    int64_t most = 0;
    for (uint32_t l = 0; l < program->limits.n; l++)
        most = int64_max(most, tsr__program_peak(program, l, choice, NULL));
    return most;
}

// Returns the memory limit for the program. If any device has a limit, every program gets memory
// rows, so that its memory is known.
static int64_t limit_of(const struct staging *staging, int64_t memory)
{
    return staging->limited && memory >= PLAN_NO_LIMIT ? PLAN_NO_LIMIT - 1 : memory;
}

// A range that is being solved, with an arena for its program.
struct range_solve {
    const struct stage *stage;
    double until; // deadline of its program; 0: none
    bool late;    // the deadline passed
    bool open;    // crossing values are not charged
    struct arena scratch;
    struct models models; // models of this kind, with their common program
};

// Returns the solution as a point: the best plan for every limit between its memory and `limit`.
static struct point point_of(const struct range_solve *solve, const struct program_result *result,
                             int64_t limit)
{
    struct point point = {.limit = limit};
    const struct models *models = &solve->models;
    if (!result->feasible)
        return point;
    point.feasible = true;
    point.memory = peak_of(models->program, result->choice);
    point.time = tsr__models_cost(models, result->choice);
    point.bound = int64_min(tsr__models_unscaled(models, result->bound), point.time);
    return point;
}

// Solves the program first without a limit, because the result often fits. If it does not fit,
// solves the program again with the limit.
static tsr_status solve_program(struct range_solve *solve, struct program_options options,
                                struct program_result *result, struct point *out)
{
    struct program *program = solve->models.program;
    struct arena *arena = &solve->scratch;
    size_t n_limits = program->limits.n;
    program->limits.n = 0;
    tsr_status st = tsr__program_solve(program, &options, arena, result);
    program->limits.n = n_limits;
    if (st != TSR_OK)
        return st;
    *out = point_of(solve, result, PLAN_NO_LIMIT);
    if (!out->feasible || out->memory <= solve->stage->memory)
        return TSR_OK;
    TRY(tsr__program_solve(program, &options, arena, result));
    *out = point_of(solve, result, solve->stage->memory);
    return TSR_OK;
}

// Builds the program of one model's nodes in the range. Tables of an unfinished program are
// dropped.
static bool make_program(struct staging *staging, struct range_solve *solve, struct kind *kind)
{
    struct planner *planner = &kind->planner;
    planner->work = &solve->scratch;
    planner->pace = (struct planner_pace){.end = solve->until, .cancels = solve->until > 0};
    planner->scope.open = solve->open;
    select_range(staging, kind, solve->stage);
    bool made = tsr__planner_program(planner, limit_of(staging, solve->stage->memory));
    solve->late = solve->late || planner->pace.late;
    if (planner->pace.late)
        tsr__map_init(&planner->cache.tables, &planner->arena, 256);
    planner->pace = (struct planner_pace){0};
    return made;
}

// Builds the programs of a range. The caller must call end_range, also after a failure.
static tsr_status begin_range(struct staging *staging, struct range_solve *solve)
{
    struct kind *kind = solve->stage->kind;
    struct planner *planners[PLAN_MAX_MODELS] = {&kind->planner};
    if (kind->other)
        planners[1] = &kind->other->planner;
    tsr__models_with(staging->models, planners, &solve->models);
    solve->models.links = &kind->links;
    solve->models.link_arena = &kind->planner.arena;
    tsr__arena_init(&solve->scratch, kind->planner.session);
    if (!make_program(staging, solve, kind))
        return TSR_NOMEM;
    if (kind->other && !solve->late && !make_program(staging->other, solve, kind->other))
        return TSR_NOMEM;
    return !solve->late && !tsr__models_program(&solve->models) ? TSR_NOMEM : TSR_OK;
}

// Frees the program. Points and choices stay.
static void end_range(struct range_solve *solve)
{
    struct kind *kind = solve->stage->kind;
    kind->planner.work = &kind->planner.arena;
    kind->planner.scope.open = false;
    if (kind->other)
        kind->other->planner.work = &kind->other->planner.arena;
    tsr__arena_free(&solve->scratch);
}

// Returns the known points of ranges with the structure of the stage's range. NULL: out of memory.
static struct range_points *front_of(struct staging *staging, const struct stage *stage)
{
    struct kind *kind = stage->kind;
    const struct range *range = tsr__stages_range(staging, stage->begin, stage->end);
    if (!range)
        return NULL;
    uint32_t structure = range->structure;
    if (staging->other)
        structure = tsr__second_model_structure(staging, stage->begin, stage->end);
    if (structure == UINT32_MAX)
        return NULL;
    while (kind->fronts.n <= structure)
        if (!vec_add(&kind->planner.arena, &kind->fronts, NULL))
            return NULL;
    struct range_points **f = &kind->fronts.at[structure];
    if (!*f) {
        *f = ARENA_NEW(&kind->planner.arena, struct range_points);
        if (*f)
            (*f)->least = -1;
    }
    return *f;
}

// Returns the point for a memory limit. A point is valid for every limit between its memory and its
// own limit.
static const struct point *find_point(const struct point *points, size_t n, int64_t memory)
{
    for (size_t i = 0; i < n; i++) {
        const struct point *point = &points[i];
        if (point->limit >= memory && (!point->feasible || point->memory <= memory))
            return point;
    }
    return NULL;
}

// Solves a range with little effort. *late is set if there was no time; nothing is known then.
static tsr_status solve_range(struct staging *staging, struct range_solve *solve, bool *late,
                              struct point *out)
{
    struct program_result result = {0};
    *late = tsr__stages_over(staging);
    if (*late)
        return TSR_OK;
    solve->until = staging->end;
    tsr_status st = begin_range(staging, solve);
    *late = solve->late;
    if (st == TSR_OK && !solve->late) {
        st = solve_program(solve, hasty_options(staging), &result, out);
        *late = !out->feasible && !result.infeasible && tsr__stages_over(staging);
    }
    end_range(solve);
    return st;
}

// Solves a range that has no point yet. *late is set if there was no time; the range is then
// treated as not fitting.
static tsr_status solve_new(struct staging *staging, struct range_solve *solve, bool *late,
                            struct point *out)
{
    tsr_status st = solve_range(staging, solve, late, out);
    if (*late) {
        staging->hasty = true;
        *out = (struct point){0};
    }
    return st;
}

// Uses a point of another limit, or solves the range and keeps the point.
tsr_status tsr__range_time(struct staging *staging, const struct stage *stage, bool open,
                           struct point *out)
{
    struct range_solve solve = {.stage = stage, .open = open};
    struct range_points *front = front_of(staging, stage);
    bool late = false;
    if (!front)
        return TSR_NOMEM;
    point_list *known = open ? &front->open : &front->at;
    const struct point *point = find_point(known->at, known->n, stage->memory);
    if (point) {
        *out = *point;
        return TSR_OK;
    }
    tsr_status st = solve_new(staging, &solve, &late, out);
    if (st != TSR_OK || late)
        return st;
    return vec_add(&stage->kind->planner.arena, known, *out) ? TSR_OK : TSR_NOMEM;
}

void tsr__range_choose(struct staging *staging, const struct stage *stage, const uint32_t *choice)
{
    struct kind *kind = stage->kind;
    select_range(staging, kind, stage);
    for (size_t n = kind->begin; n < kind->end; n++)
        if (kind->nodes[n].strategy)
            tsr__planner_choose(&kind->planner, &kind->nodes[n], choice[n]);
}

// Finds the least memory of the range, with a program that has memory rows but no effective limit.
tsr_status tsr__range_memory(struct staging *staging, const struct stage *stage, int64_t *out)
{
    struct stage unlimited = *stage;
    unlimited.memory = PLAN_NO_LIMIT - 1;
    struct range_solve solve = {.stage = &unlimited};
    struct program_options options = hasty_options(staging);
    struct program_least least = {0};
    struct range_points *front = front_of(staging, stage);
    options.near = LEAST_NEAR;
    if (!front)
        return TSR_NOMEM;
    *out = front->least;
    if (front->least >= 0)
        return TSR_OK;
    solve.until = staging->end;
    solve.late = tsr__stages_over(staging);
    if (solve.late) {
        staging->hasty = true;
        *out = INT64_MAX;
        return TSR_OK;
    }
    tsr_status st = begin_range(staging, &solve);
    if (st == TSR_OK && !solve.late)
        st = tsr__program_least(solve.models.program, &options, &solve.scratch, &least);
    end_range(&solve);
    *out = INT64_MAX;
    if (least.found)
        *out = least.least;
    else if (solve.late || tsr__stages_over(staging))
        staging->hasty = true;
    if (least.found || !staging->hasty)
        front->least = *out;
    return st;
}
