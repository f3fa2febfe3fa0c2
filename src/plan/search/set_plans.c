// SPDX-License-Identifier: Apache-2.0
// set_plans.c - plans all models on one device set, and writes that plan in terms of all devices.
//
// A tensor that holds the batch in one dimension is sharded there once more, outermost, over the
// copies. Any other tensor is replicated in every copy.
//
//     Example: 64 copies of 2 devices. X is [64, 512]; the set has [1, 512] with sharding {1, 2} on
//     devices 0 1. On all devices X has {64, 2} on devices 0 .. 127: copy 5 (devices 10 and 11)
//     stores row 5. W is [512, 512] in the set too. Its sharding {1, 2} on 0 1 is repeated on 2 3,
//     4 5 ...
#include "plan/search/device_sets.h"

// ---- planning ----------------------------------------------------------------------------------

static struct set_model set_model(const struct set_search *search, struct set_plan *plan, size_t m)
{
    return (struct set_model){&plan->set, search->models->planners[m], &plan->planners[m]};
}

void tsr__set_plan_end(struct set_plan *plan)
{
    while (plan->n_open > 0)
        tsr__planner_end(&plan->planners[--plan->n_open]);
}

// Returns the caller's sizes, with one copy's share of the batch.
static const tsr_dim_size *divide_batch(const struct set_search *search, size_t m, int64_t copies)
{
    struct dim_sizes all = tsr__sets_sizes(search, m);
    tsr_dim_size *sizes = ARENA_ARRAY(&search->models->planners[m]->arena, tsr_dim_size, all.n + 1);
    if (!sizes)
        return NULL;
    for (size_t i = 0; i < all.n; i++) {
        sizes[i] = all.at[i];
        if (strcmp(sizes[i].name, search->batch[m].symbol) == 0)
            sizes[i].size /= copies;
    }
    return sizes;
}

// Gives the planner of model m the values of one copy, and its states.
static tsr_status divide_values(const struct set_search *search, size_t m, int64_t copies,
                                struct planner *planner)
{
    const tsr_plan_options *options = search->options;
    const tsr_dim_size *sizes = divide_batch(search, m, copies);
    if (!sizes || !tsr__planner_values(planner, sizes, tsr__sets_sizes(search, m).n,
                                       search->models->planners[m]))
        return TSR_NOMEM;
    if (m + 1 < search->models->n)
        return TSR_OK; // states belong to the last model
    return tsr__planner_states(planner, options->state, options->n_state);
}

static tsr_status open_planner(const struct set_search *search, struct set_plan *plan, size_t m)
{
    const struct planner *all = search->models->planners[m];
    struct planner *planner = &plan->planners[m];
    plan->n_open = m + 1;
    if (!tsr__planner_open(all, plan->set.devices, (size_t)plan->set.n, planner))
        return TSR_NOMEM;
    planner->budget = &plan->budget;
    if (plan->set.at_once)
        planner->config = all->config;
    planner->memory.may_exceed = all->memory.may_exceed;
    planner->machine.fixed_shares = plan->set.fixed_shares;
    planner->machine.only_shares = plan->set.shares;
    memcpy(planner->machine.grid, plan->set.grid, sizeof planner->machine.grid);
    planner->machine.expert = plan->set.expert;
    planner->machine.context = plan->set.context;
    if (plan->set.copies == 1)
        return tsr__planner_share(all, planner) ? TSR_OK : TSR_NOMEM;
    return divide_values(search, m, plan->set.copies, planner);
}

static tsr_status open_planners(const struct set_search *search, struct set_plan *plan)
{
    size_t n = search->models->n;
    for (size_t m = 0; m < n; m++)
        TRY(open_planner(search, plan, m));
    for (size_t m = 0; m + 1 < n && plan->set.copies > 1; m++)
        if (!tsr__planner_hands_over(&plan->planners[m], &plan->planners[n - 1]))
            return TSR_NOMEM;
    return TSR_OK;
}

// Computes the costs of the chosen plan, including the additional time of copies.
static void add_costs(const struct set_search *search, const struct models *models,
                      struct set_plan *plan)
{
    int64_t waiting = 0;
    for (size_t m = 0; m < models->n; m++) {
        struct set_model model = set_model(search, plan, m);
        int64_t cost =
            tsr__program_cost(&plan->planners[m].program, plan->result.choice + models->first[m]);
        plan->run[m] = cost + tsr__set_copies_time(&model);
        waiting += models->runs[m] * (cost - tsr__planner_played(&plan->planners[m], cost));
    }
    plan->cost = tsr__models_time(models, plan->run);
    plan->time = plan->cost - waiting;
}

// Computes the lower bound of the set. Includes costs that are the same for all its plans and that
// the program omits.
static void add_bound(const struct set_search *search, const struct models *models,
                      struct set_plan *plan)
{
    plan->bound = tsr__models_unscaled(models, plan->result.bound);
    for (size_t m = 0; m < models->n; m++) {
        struct set_model model = set_model(search, plan, m);
        plan->bound += models->runs[m] * tsr__set_least_time(&model);
    }
}

static tsr_status solve_set(struct set_search *search, struct set_plan *plan, int64_t beat)
{
    struct planner *planners[PLAN_MAX_MODELS] = {&plan->planners[0], &plan->planners[1]};
    struct models *models = &plan->models;
    TRY(open_planners(search, plan));
    tsr__models_with(search->models, planners, models);
    if (models->n == 1)
        planners[0]->pace.beat = beat;
    int64_t limit = tsr__models_limit(models, search->options), reserved = 0;
    if (limit > 0 && models->n == 1 && plan->set.copies > 1) {
        struct set_model model = set_model(search, plan, 0);
        reserved = int64_min(tsr__set_input_bytes(&model), limit - 1);
    }
    plan->reserved = reserved;
    if (!tsr__models_build(models, limit > 0 ? limit - reserved : limit))
        return TSR_NOMEM;
    TRY(tsr__planner_solve(planners[0], models->program, beat >> models->shift, &plan->result));
    if (plan->result.feasible) {
        tsr__models_take(models, plan->result.choice);
        add_costs(search, models, plan);
        struct set_model model = set_model(search, plan, 0);
        plan->result.feasible = models->n > 1 || tsr__set_fits(&model, reserved);
        plan->copies_exceed = !plan->result.feasible;
    }
    add_bound(search, models, plan);
    return TSR_OK;
}

tsr_status tsr__set_plan(struct set_search *search, struct set_plan *plan, int64_t beat)
{
    struct budget *all = search->models->planners[0]->budget;
    if (plan->set.expert && !search->best)
        plan->budget.end = 0; // ignore the time limit: there must be a result
    tsr_status st = solve_set(search, plan, beat);
    if (st == TSR_OK && plan->set.expert)
        st = tsr__compared_record(plan);
    for (size_t m = 0; m < plan->n_open; m++)
        plan->planners[m].budget = all;
    return st;
}

// ---- in terms of all devices -------------------------------------------------------------------

// One model of a set while its layouts are translated to all devices.
struct expansion {
    struct set_model model;
    struct map layouts; // numbers in the planner of all devices, by number in the set and batch dim
    struct map strategies; // those of the planner of all devices, by strategy and choice in the set
    bool unsharded;        // every copy computes the full node
};

// Returns the number of a repeated layout in the planner of all devices; PLAN_NO_LAYOUT: out of
// memory. Results are cached, because there are few different layouts and each lists every device.
static uint32_t expand_layout(struct expansion *expansion, uint32_t layout, int dim)
{
    const struct device_set *set = expansion->model.set;
    struct planner *planner = expansion->model.all;
    int64_t key[2] = {layout, dim};
    struct str name = str_bytes(key, sizeof key);
    uint32_t *known = tsr__map_get(&expansion->layouts, name);
    if (known)
        return *known;
    struct tile_repeat repeat = {set->copies, set->n, set->devices};
    uint32_t *number = ARENA_NEW(&planner->arena, uint32_t);
    void **at = tsr__map_at_copy(&expansion->layouts, name);
    if (!number || !at)
        return PLAN_NO_LAYOUT;
    *number = tsr__layout_translate(planner, expansion->model.part, layout, &repeat, dim);
    *at = number;
    return *number;
}

static uint32_t expand_value(void *context, const tsr_value *value, uint32_t layout)
{
    struct expansion *expansion = context;
    int dim = BATCH_NOWHERE;
    if (!expansion->unsharded && value)
        dim = tsr__set_batch_dim(&expansion->model, value);
    return expand_layout(expansion, layout, dim);
}

// True if one of the n tensors is sharded.
static bool has_sharded(const struct planner *planner, const uint32_t *layouts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] != PLAN_NO_LAYOUT &&
            !tsr__layout_is_whole(planner->layouts.at[layouts[i]].tiles))
            return true;
    return false;
}

// Returns the groups in which the copies combine an output: the devices of a group of the block, or
// a single device, together with those of the other copies. NULL: out of memory.
static struct device_group *groups_over_copies(const struct device_set *set, struct arena *arena,
                                               const struct parts *parts, size_t *n)
{
    size_t copies = (size_t)set->copies;
    *n = parts ? parts->n : (size_t)set->n;
    struct device_group *groups = ARENA_ARRAY(arena, struct device_group, *n + 1);
    for (size_t g = 0; groups && g < *n; g++) {
        const int64_t one = (int64_t)g;
        struct device_group from = parts ? parts->groups[g] : (struct device_group){NULL, 1};
        int64_t *devices = ARENA_ARRAY(arena, int64_t, copies * from.n);
        if (!devices)
            return NULL;
        for (size_t i = 0; i < copies * from.n; i++)
            devices[i] = (int64_t)(i / from.n) * set->n +
                         set->devices[from.devices ? from.devices[i % from.n] : one];
        groups[g] = (struct device_group){devices, copies * from.n};
    }
    return groups;
}

// Makes the outputs for which the node reduces over the batch partial sums of the copies.
static bool add_sums(const struct expansion *expansion, const struct plan_node *node,
                     struct candidate *only)
{
    const struct set_model *model = &expansion->model;
    const struct candidate *own = &node->strategy->at.at[node->choice];
    if (expansion->unsharded || node->border || model->set->copies < 2 ||
        model->all->machine.n > EXACT_MOST)
        return true;
    for (size_t i = 0; i < tsr__plan_makes(node); i++) {
        if (only->out[i] == PLAN_NO_LAYOUT || !tsr__set_reduces_batch(model, node, i))
            continue;
        size_t n;
        uint32_t before = only->before[i] == PLAN_NO_LAYOUT ? only->out[i] : only->before[i];
        const struct parts *parts =
            own->before[i] == PLAN_NO_LAYOUT ? NULL : model->part->layouts.at[own->before[i]].parts;
        struct device_group *groups = groups_over_copies(model->set, &model->all->arena, parts, &n);
        if (model->all->layouts.at[before].parts)
            before = model->all->layouts.at[before].parts->layout;
        only->before[i] =
            groups ? tsr__planner_parts(model->all, before, groups, n) : PLAN_NO_LAYOUT;
        if (only->before[i] == PLAN_NO_LAYOUT)
            return false;
    }
    return true;
}

// Repeats the times of the devices of a set for every copy. NULL: they are not known, or out of
// memory.
static const int64_t *repeated(const struct expansion *expansion, const int64_t *each)
{
    const struct device_set *set = expansion->model.set;
    struct planner *planner = expansion->model.all;
    if (!each)
        return NULL;
    int64_t *all = ARENA_ARRAY(&planner->arena, int64_t, (size_t)planner->machine.n);
    for (int64_t copy = 0; all && copy < set->copies; copy++)
        for (int64_t i = 0; i < set->n; i++)
            all[copy * set->n + set->devices[i]] = each[i];
    return all;
}

// Repeats the times of the single devices for every copy. They are not known for a node that every
// copy computes in full.
static bool repeat_times(const struct expansion *expansion, struct candidate *only)
{
    struct planner *planner = expansion->model.all;
    bool known = !expansion->unsharded && only->n_each == (size_t)expansion->model.set->n &&
                 planner->machine.n <= EXACT_MOST;
    only->each = repeated(expansion, known ? only->each : NULL);
    only->each_apart = repeated(expansion, known ? only->each_apart : NULL);
    only->n_each = (size_t)planner->machine.n;
    return !planner->arena.failed;
}

// Makes the chosen candidate of a node its only one in the planner of all devices.
static bool expand_chosen(struct expansion *expansion, size_t i)
{
    const struct plan_node *node = &expansion->model.part->nodes[i];
    struct planner *planner = expansion->model.all;
    // On many devices, nodes are written as divided even if each copy will compute all of them. The
    // simulation then recognizes that all copies are equal, and simulates only one.
    bool many = planner->machine.n > EXACT_MOST;
    expansion->unsharded =
        expansion->model.set->copies > 1 &&
        (node->strategy->whole != NULL ||
         ((!many || node->border) && !tsr__set_divides(&expansion->model, node)));
    struct candidate *only = tsr__candidate_only(planner, i, node);
    if (!only || !tsr__candidate_translate(planner, node, &node->strategy->at.at[node->choice],
                                           expand_value, expansion, only))
        return false;
    if (!repeat_times(expansion, only) || !add_sums(expansion, node, only))
        return false;
    if (expansion->unsharded)
        only->compute = tsr__set_full_time(&expansion->model, node);
    // A sum that is scattered has a sharded result, and its node may be unsharded.
    if (expansion->model.set->copies > 1 && !expansion->unsharded)
        only->cut = only->cut || has_sharded(planner, only->in, tsr__plan_reads(node)) ||
                    has_sharded(planner, only->out, tsr__plan_makes(node));
    return true;
}

// As expand_chosen, but equal nodes share the result. Borders do not: their bodies differ.
static bool expand_shared(struct expansion *expansion, size_t i)
{
    const struct plan_node *node = &expansion->model.part->nodes[i];
    struct plan_node *to = &expansion->model.all->nodes[i];
    uintptr_t key[2] = {(uintptr_t)node->strategy, node->choice};
    if (node->border || node->bodies)
        return expand_chosen(expansion, i);
    void **at = tsr__map_at_copy(&expansion->strategies, str_bytes(key, sizeof key));
    if (!at || (!*at && !expand_chosen(expansion, i)))
        return false;
    if (*at) {
        to->strategy = *at;
        to->choice = 0;
    }
    *at = to->strategy;
    return true;
}

// Expands a node. Of equal nodes, each may store its weights in other layouts.
static bool expand_node(struct expansion *expansion, size_t i)
{
    const struct plan_node *node = &expansion->model.part->nodes[i];
    return !node->strategy ||
           (expand_shared(expansion, i) &&
            tsr__stored_translate(expansion->model.all, i, node, expand_value, expansion));
}

bool tsr__set_expand(const struct set_search *search, struct set_plan *plan)
{
    for (size_t m = 0; m < search->models->n; m++) {
        struct expansion expansion = {.model = set_model(search, plan, m)};
        struct planner *planner = expansion.model.all;
        tsr__map_init(&expansion.layouts, &planner->arena, 64);
        tsr__map_init(&expansion.strategies, &planner->arena, 64);
        if (!tsr__planner_list(planner))
            return false;
        for (size_t i = 0; i < planner->n_nodes; i++)
            if (!expand_node(&expansion, i))
                return false;
    }
    return true;
}

size_t tsr__set_collectives(const struct set_model *model, struct collective_count *out)
{
    const char *op = tsr__collective(COMM_ALL_REDUCE)->op;
    size_t n = tsr__planner_collectives(model->part, out), i = 0, sums = tsr__set_sums(model);
    while (i < n && strcmp(out[i].op, op) != 0)
        i++;
    if (sums == 0 || i == PLAN_MAX_OPS)
        return n;
    if (i == n)
        out[n++] = (struct collective_count){.op = op};
    out[i].count += sums;
    return n;
}
