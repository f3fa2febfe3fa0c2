// SPDX-License-Identifier: Apache-2.0
// search.c - finds the best plan without pipeline stages, for a list of models, and sums it up.
//
// Up to 64 devices are planned at once first, and then as device sets (device_sets.c) where those
// may be better. More devices, if equal, are planned as copies of a set; all at once only if no
// set fits.
//
//     16 devices, batch 8: all at once 20 ms with a gap of 3 %. Sets: 8 copies of 2 devices take 17
//     ms, 4 copies of 4 devices 16 ms, 2 copies of 8 devices 18 ms. The plan is 4 copies.
#include "plan/search/search.h"

// ---- all devices at once -----------------------------------------------------------------------

// Costs of the joint program become picoseconds of all runs.
static void unscale(struct found_plan *found)
{
    struct program_result *result = &found->result;
    result->cost = tsr__models_time(found->models, found->run);
    result->bound = int64_min(tsr__models_unscaled(found->models, result->bound), result->cost);
    result->gap = 0;
    if (!result->optimal)
        result->gap = (double)(result->cost - result->bound) / (double)result->cost;
}

static tsr_status solve_at_once(struct found_plan *found, const tsr_plan_options *options)
{
    struct models *models = found->models;
    struct planner *planner = models->planners[0];
    if (!tsr__models_build(models, tsr__models_limit(models, options)))
        return TSR_NOMEM;
    tsr_status st = TSR_OK;
    if (options->export_lp && models->program)
        st = tsr__planner_export(planner->session, models->program, options->export_lp);
    if (st != TSR_OK)
        return st;
    st = tsr__planner_solve(planner, models->program, 0, &found->result);
    if (st != TSR_OK || !found->result.feasible)
        return st;
    tsr__models_take(models, found->result.choice);
    for (size_t m = 0; m < models->n; m++)
        found->run[m] = tsr__program_cost(&models->planners[m]->program,
                                          found->result.choice + models->first[m]);
    if (models->n > 1)
        unscale(found);
    return TSR_OK;
}

// ---- device sets -------------------------------------------------------------------------------

// A plan that fits in memory comes before one that does not, then the faster one. best NULL: the
// plan of all devices at once, if there is one.
static bool is_better(const struct set_search *search, const struct set_plan *plan,
                      const struct set_plan *best)
{
    const struct planner *other = best ? &best->planners[0] : search->models->planners[0];
    int64_t time = best ? best->time : search->all_time;
    bool exceeds = plan->planners[0].memory.exceeds;
    if (!plan->result.feasible)
        return false;
    if (!best && !search->all->feasible)
        return true;
    if (exceeds != other->memory.exceeds)
        return !exceeds;
    return plan->time < time;
}

// The cost of the best plan that fits in memory; 0: none does.
static int64_t cost_to_beat(const struct set_search *search, const struct set_plan *best)
{
    int64_t cost = 0;
    if (search->all->feasible && !search->models->planners[0]->memory.exceeds)
        cost = search->all->cost;
    if (best && !best->planners[0].memory.exceeds && (!cost || best->cost < cost))
        cost = best->cost;
    return cost;
}

// Time is up, or the caller cancels and there is a plan already.
static bool is_over(const struct set_search *search, const struct set_plan *best)
{
    const struct planner *planner = search->models->planners[0];
    bool any = search->all->feasible || best;
    return tsr__budget_over(planner->budget) && (any || !tsr__cancelled(planner->session));
}

// Lower bound over the sets planned so far.
struct set_bound {
    int64_t bound;
    double work; // of a planned set, on one device; 0: none was planned
    bool all;    // every set was planned
};

static void add_bound(struct set_bound *bound, const struct set_plan *plan)
{
    if (plan->result.infeasible)
        return;
    bound->bound = int64_min(bound->bound, plan->result.bound);
    bound->work = plan->work;
}

// Sets that were not planned divide the work of one device among all devices at best: 4 copies that
// take 8 s each on one device are 32 s of work, or 0.5 s on 64 devices.
static int64_t least_bound(const struct set_search *search, const struct set_bound *bound)
{
    double speeds = tsr__planner_speeds(search->models->planners[0]);
    if (bound->all || !(bound->work > 0))
        return bound->bound;
    return int64_min(bound->bound, (int64_t)(bound->work / speeds));
}

// Plans the sets. *best: the best plan that can be written, if it beats all devices at once; else
// NULL.
static tsr_status plan_sets(struct set_search *search, struct set_plan **best,
                            struct set_bound *bound)
{
    *best = NULL;
    *bound = (struct set_bound){.bound = PLAN_NEVER, .all = true};
    for (size_t i = 0; i < search->n; i++) {
        if (is_over(search, *best)) {
            bound->all = false;
            return TSR_OK;
        }
        struct set_plan *plan = ARENA_NEW(&search->models->planners[0]->arena, struct set_plan);
        if (!plan)
            return TSR_NOMEM;
        plan->set = search->sets[i];
        tsr_status st = tsr__set_plan(search, plan, search->n - i, cost_to_beat(search, *best));
        if (st == TSR_OK)
            add_bound(bound, plan);
        if (st == TSR_OK && is_better(search, plan, *best) && tsr__set_is_writable(search, plan)) {
            struct set_plan *before = *best;
            *best = plan;
            plan = before;
        }
        if (plan)
            tsr__set_plan_end(plan);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Makes the plan of the set the result. Its planners live as long as those of all devices, whose
// nodes refer to their rules and names.
static tsr_status take_set(struct found_plan *found, const struct set_search *search,
                           struct set_plan *best, int64_t bound)
{
    struct program_result *all = &found->result;
    if (all->bound > 0 && !all->infeasible) // all devices at once were planned
        bound = int64_min(bound, all->bound);
    bound = int64_min(bound, best->cost);
    all->feasible = true;
    all->cost = best->cost;
    all->bound = bound;
    all->optimal = bound == best->cost;
    all->gap = (double)(best->cost - bound) / (double)int64_max(best->cost, 1);
    found->set = best;
    for (size_t m = 0; m < search->models->n; m++) {
        struct planner *planner = search->models->planners[m];
        // Nodes have devices of their own, like those of a stage: shardings are written even if
        // they are replicated.
        planner->scope.staged = true;
        planner->scope.one_stage = best->set.devices[0] != 0;
        planner->memory.exceeds = best->planners[m].memory.exceeds;
        planner->block = &best->planners[m];
        found->run[m] = best->run[m];
    }
    return tsr__set_expand(search, best) ? TSR_OK : TSR_NOMEM;
}

static tsr_status search_sets(struct found_plan *found, const tsr_plan_options *options)
{
    struct models *models = found->models;
    struct set_search *search = ARENA_NEW(&models->planners[0]->arena, struct set_search);
    struct set_plan *best = NULL;
    struct set_bound bound;
    if (!search)
        return TSR_NOMEM;
    *search = (struct set_search){.models = models, .options = options, .all = &found->result};
    if (found->result.feasible)
        search->all_time = found->result.cost - tsr__unlike_devices_correction(models->planners[0]);
    if (!tsr__sets_list(search))
        return TSR_NOMEM;
    tsr_status st = plan_sets(search, &best, &bound);
    if (st == TSR_OK && best)
        return take_set(found, search, best, least_bound(search, &bound));
    if (best)
        tsr__set_plan_end(best);
    return st;
}

// ---- the search --------------------------------------------------------------------------------

static tsr_status refuse_unlike(const struct planner *planner)
{
    tsr__diag(
        planner->session, DIAG_plan_devices, NULL,
        "use devices of the same kind, without kept shardings, stages, --explain or --export-lp",
        "%lld devices are too many to plan without copies of a device set",
        (long long)planner->machine.n);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_small(const struct planner *planner)
{
    tsr__diag(planner->session, DIAG_plan_devices, NULL, "give the devices more memory",
              "the model fits on no set of at most 64 of the %lld devices",
              (long long)planner->machine.n);
    return TSR_INFEASIBLE;
}

static tsr_status find(struct found_plan *found, const tsr_plan_options *options)
{
    struct models *models = found->models;
    const struct planner *planner = models->planners[0];
    bool only_sets = tsr__sets_only(models, options);
    bool many = planner->machine.n > PLAN_MAX_AT_ONCE;
    tsr_status st = TSR_OK;
    if (many && !only_sets)
        return refuse_unlike(planner);
    for (size_t m = 0; m < models->n && only_sets; m++)
        if (!tsr__planner_list(models->planners[m]))
            return TSR_NOMEM;
    if (!only_sets)
        st = solve_at_once(found, options);
    if (st != TSR_OK)
        return st;
    st = search_sets(found, options);
    if (st != TSR_OK || !only_sets || found->result.feasible || tsr__cancelled(planner->session))
        return st;
    if (many)
        return refuse_small(planner);
    return solve_at_once(found, options);
}

tsr_status tsr__search_find(struct models *models, const tsr_plan_options *options,
                            struct found_plan *out)
{
    const struct budget *budget = models->planners[0]->budget;
    *out = (struct found_plan){.models = models};
    tsr_status st = find(out, options);
    out->ms = 1e3 * (tsr__clock() - budget->begin);
    tsr__budget_clear_progress(budget);
    return st;
}

// ---- the summary -------------------------------------------------------------------------------

// True if candidates were left out for lack of time.
static bool is_narrow(const struct planner *planner)
{
    return planner->pace.ways > 0 || (planner->block && planner->block->pace.ways > 0);
}

// The set on which a plan runs, and the planners of its models.
struct chosen_set {
    struct device_set set;
    struct models models;
};

static void choose_set(const struct found_plan *found, struct chosen_set *out)
{
    const struct models *models = found->models;
    const struct planner_machine *machine = &models->planners[0]->machine;
    struct planner *planners[PLAN_MAX_MODELS] = {models->planners[0], models->planners[1]};
    out->set = (struct device_set){.devices = machine->all, .n = machine->n, .copies = 1};
    if (found->set) {
        out->set = found->set->set;
        for (size_t m = 0; m < models->n; m++)
            planners[m] = &found->set->planners[m];
    }
    tsr__models_with(models, planners, &out->models);
}

// Copies the memory of a set to all devices of all its copies.
static void spread(const struct device_set *set, const struct model_memory *from, int64_t inputs,
                   const struct model_memory *to)
{
    for (int64_t copy = 0; copy < set->copies; copy++)
        for (int64_t i = 0; i < set->n; i++) {
            int64_t device = copy * set->n + set->devices[i];
            to->memory[device] = from->memory[i] + inputs;
            to->peak[device] = from->peak[i] + inputs;
        }
}

// Memory of each model and of all together, on all devices.
static bool add_memory(const struct found_plan *found, struct chosen_set *chosen,
                       tsr_plan_part *parts, struct model_memory *all)
{
    struct planner *planner = found->models->planners[0];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    struct model_memory each[PLAN_MAX_MODELS];
    int64_t most_inputs = 0;
    for (size_t m = 0; m < found->models->n; m++) {
        struct model_memory spread_out;
        struct set_model model = {&chosen->set, found->models->planners[m],
                                  chosen->models.planners[m]};
        int64_t inputs = tsr__set_input_bytes(&model);
        if (!tsr__model_memory_init(&each[m], &planner->arena, (size_t)chosen->set.n) ||
            !tsr__models_memory(&chosen->models, m, &each[m]) ||
            !tsr__model_memory_init(&spread_out, arena, (size_t)planner->machine.n))
            return false;
        spread(&chosen->set, &each[m], inputs, &spread_out);
        parts[m].memory = spread_out.memory;
        most_inputs = int64_max(most_inputs, inputs);
    }
    if (!tsr__model_memory_init(all, arena, (size_t)planner->machine.n))
        return false;
    tsr__models_join_memory(&chosen->models, each, (size_t)chosen->set.n, &each[0]);
    spread(&chosen->set, &each[0], most_inputs, all);
    return true;
}

static tsr_status add_parts(const struct found_plan *found, struct chosen_set *chosen,
                            tsr_plan_part *parts)
{
    for (size_t m = 0; m < found->models->n; m++) {
        struct planner *planner = found->models->planners[m];
        struct set_model model = {&chosen->set, planner, chosen->models.planners[m]};
        struct collective_count counts[PLAN_MAX_OPS];
        size_t n = tsr__set_collectives(&model, counts);
        parts[m].cost = found->run[m];
        if (!tsr__planner_add_counts(planner, counts, n, &parts[m]))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

static void add_devices(const struct found_plan *found, const struct model_memory *memory,
                        tsr_plan_summary *out)
{
    struct planner *planner = found->models->planners[0];
    if (found->set) {
        out->copies = found->set->set.copies;
        out->used_devices = found->set->set.n * out->copies;
    } else if (found->models->n == 1) {
        out->copies = 1;
        out->used_devices = tsr__planner_used(planner, memory->memory, memory->peak);
    }
}

static tsr_status summarize(const struct found_plan *found, tsr_plan_summary *out)
{
    struct planner *planner = found->models->planners[0];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    const struct program_result *result = &found->result;
    struct chosen_set chosen;
    struct model_memory memory;
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, PLAN_MAX_MODELS);
    choose_set(found, &chosen);
    if (!parts || !add_memory(found, &chosen, parts, &memory))
        return TSR_NOMEM;
    tsr_status st = add_parts(found, &chosen, parts);
    if (st != TSR_OK)
        return st;
    *out = (tsr_plan_summary){
        .size = sizeof *out, .devices = (size_t)planner->machine.n, .feasible = true};
    out->optimal = result->optimal;
    out->gap = result->gap;
    out->cost = result->cost;
    out->bound = result->bound;
    out->solve_ms = found->ms;
    out->stopped = !result->optimal && (tsr__budget_over(planner->budget) || is_narrow(planner));
    out->memory = memory.memory;
    out->peak = memory.peak;
    add_devices(found, &memory, out);
    tsr__planner_copy_counts(parts, out);
    if (found->models->n == 1) {
        out->milliseconds = (double)(result->cost - tsr__unlike_devices_correction(planner)) / 1e9;
        return TSR_OK;
    }
    out->parts = parts;
    out->n_parts = found->models->n;
    out->shared = found->models->shared.n;
    return TSR_OK;
}

// Picoseconds of one run on the fastest device alone; 0: the model does not fit.
static tsr_status best_device(struct models *models, const tsr_plan_options *options, int64_t *time)
{
    struct planner *planner = models->planners[0];
    struct program_result none = {0};
    struct set_search *search = ARENA_NEW(&planner->arena, struct set_search);
    struct set_plan *plan = ARENA_NEW(&planner->arena, struct set_plan);
    int64_t best = 0;
    *time = 0;
    if (!search || !plan)
        return TSR_NOMEM;
    *search = (struct set_search){.models = models, .options = options, .all = &none};
    for (int64_t device = 1; device < planner->machine.n; device++)
        if (tsr__planner_speed(planner, device) > tsr__planner_speed(planner, best))
            best = device;
    plan->set = (struct device_set){.devices = &best, .n = 1, .copies = 1};
    tsr_status st = tsr__set_plan(search, plan, 1, 0);
    if (st == TSR_OK && plan->result.feasible && !plan->planners[0].memory.exceeds)
        *time = plan->cost;
    tsr__set_plan_end(plan);
    return st;
}

// Time on one device, and whether fewer devices would be as fast: only while there is time left.
static tsr_status compare_devices(struct found_plan *found, const tsr_plan_options *options,
                                  tsr_plan_summary *out)
{
    struct planner *planner = found->models->planners[0];
    bool over = tsr__budget_over(planner->budget);
    tsr_status st = TSR_OK;
    if (!found->set)
        out->one_device = tsr__planner_one_device(planner);
    if (!over && (found->set || !tsr__planner_alike(planner)))
        st = best_device(found->models, options, &out->one_device);
    if (st != TSR_OK || over || found->set || planner->memory.exceeds)
        return st;
    return tsr__plan_better(planner, options, out);
}

// Reports what the plan lacks: candidates that there was no time for, or memory that was only
// assumed.
static tsr_status report_lacks(const struct found_plan *found)
{
    struct planner *planner = found->models->planners[0];
    if (is_narrow(planner))
        tsr__build_report_narrow(planner);
    if (planner->memory.exceeds && !found->set)
        return tsr__plan_warn_memory(planner);
    return TSR_OK;
}

static tsr_status explain(struct models *models, const char *node, tsr_plan_summary *out)
{
    tsr_status st = tsr__planner_explain(models->planners[0], models->program, node, out);
    if (st == TSR_OK)
        tsr__models_unscale_choices(models, out);
    return st;
}

tsr_status tsr__search_take(struct found_plan *found, const tsr_plan_options *options, bool write,
                            tsr_plan_summary *out)
{
    struct models *models = found->models;
    tsr_status st = report_lacks(found);
    for (size_t m = 0; m < models->n && write && st == TSR_OK; m++)
        st = tsr__planner_write(models->planners[m], options->config);
    if (st != TSR_OK)
        return st;
    st = summarize(found, out);
    if (st != TSR_OK || !write)
        return st;
    if (models->n == 1)
        st = compare_devices(found, options, out);
    if (st != TSR_OK || !options->explain)
        return st;
    return explain(models, options->explain, out);
}
