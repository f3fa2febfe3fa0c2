// SPDX-License-Identifier: Apache-2.0
// search.c - finds the best plan without pipeline stages for a list of models, and fills in the
// result of any plan.
//
// Experts' plans come first: tensor parallel on every device set (device_sets.c), sequence
// parallel, expert parallel and context parallel on all devices. They take milliseconds, so there
// is soon a result, and they show which sets are promising. Then up to 64 devices are planned at
// once, and after that the sets with all their candidates. More than 64 equal devices are planned
// only as copies of a set, and all at once only if no set fits.
//
//     Example: 16 devices, batch 8. All at once take 20 ms with a gap of 3 %. Of the sets, 8 copies
//     of 2 devices take 17 ms, 4 copies of 4 devices 16 ms, 2 copies of 8 devices 18 ms. The plan
//     is 4 copies of 4 devices.
#include "plan/search/search.h"

#define ONE_DEVICE    "one device" // name of an expert's plan
#define EXPERTS_MOST  64           // largest number of devices of an expert's plan
#define LONG_SEQUENCE 4096         // shortest sequence for which context parallelism is compared
// number of devices up to which the summary covers each device individually
#define SUMMED_MOST 64
// number of sets that are planned with all candidates, the most promising first
#define FULL_SETS     16
#define BEATEN_BY_ALL 1    // a time to beat, in picoseconds, for which no program is built
#define NEARLY        0.02 // a plan on fewer devices that is slower by less is named
#define ROUNDING      1e-6 // relative difference of cost and bound that is treated as 0

// ---- device sets -------------------------------------------------------------------------------

// Returns what a plan of `planner` is compared by. If the caller asks for the candidates, idle
// devices are no advantage: their candidates would be missing.
static struct plan_standing standing(const struct planner *planner, int64_t time, int64_t devices,
                                     const tsr_plan_options *options)
{
    if (options->explain || options->export_lp)
        devices = planner->machine.topology->n;
    return (struct plan_standing){
        .time = time, .hosts = tsr__planner_hosts(planner, devices), .devices = devices};
}

static struct plan_standing standing_of(const struct set_search *search,
                                        const struct set_plan *plan)
{
    const struct planner *planner = &plan->planners[0];
    struct plan_standing now =
        standing(planner, plan->time, plan->set.n * plan->set.copies, search->options);
    now.any = plan->result.feasible;
    now.fits = !planner->memory.exceeds;
    now.logical = plan->set.grid[0] > 0;
    return now;
}

static struct plan_standing standing_of_best(const struct set_search *search)
{
    return search->best ? standing_of(search, search->best) : (struct plan_standing){0};
}

// True for an expert plan. An equally good plan with all candidates replaces it, because --explain
// and the exported program show the candidates.
static bool is_expert(const struct set_plan *plan)
{
    return plan && plan->set.expert != EXPERT_NONE;
}

// Returns the cost of a plan that fits in memory; 0: there is none.
static int64_t fitting_cost(const struct set_plan *plan)
{
    return plan && plan->result.feasible && !plan->planners[0].memory.exceeds ? plan->cost : 0;
}

// Returns the least cost of a plan that fits in memory; 0: none does. The cost of an expert plan is
// raised by 1, so that an equally good plan with all candidates can replace it.
static int64_t cost_to_beat(const struct set_search *search)
{
    int64_t all = fitting_cost(search->at_once), best = fitting_cost(search->best);
    if (best)
        best += is_expert(search->best);
    return !all || (best && best < all) ? best : all;
}

// True if time is up, or if the caller cancelled and there is a plan already.
static bool is_over(const struct set_search *search)
{
    const struct planner *planner = search->models->planners[0];
    return tsr__budget_over(planner->budget) && (search->best || !tsr__cancelled(planner->session));
}

// Adds the time of a plan that fits to the list. False: out of memory.
static bool add_time(struct set_search *search, const struct set_plan *plan)
{
    struct device_time time = {plan->set.n * plan->set.copies, plan->time};
    return !fitting_cost(plan) ||
           vec_add(&search->models->planners[0]->arena, &search->times, time);
}

// Makes the plan the best one if it is better. Ends the other one, unless it is that of all devices
// at once: without any plan, it says what is needed.
static void keep_better(struct set_search *search, struct set_plan *plan)
{
    struct plan_standing now = standing_of(search, plan), best = standing_of_best(search);
    bool better = tsr__plan_is_better(&now, &best, 0);
    if (is_expert(search->best) && !is_expert(plan))
        better = now.any && !tsr__plan_is_better(&best, &now, 0);
    struct set_plan *worse = better ? search->best : plan;
    if (better)
        search->best = plan;
    if (worse && worse != search->at_once)
        tsr__set_plan_end(worse);
}

// Plans the set with this part of the budget, and keeps the plan if it is the best so far. *result
// describes the new plan; its choices may have been freed.
static tsr_status plan_set(struct set_search *search, const struct device_set *set,
                           struct budget part, int64_t beat, struct set_plan *result)
{
    struct set_plan *plan = ARENA_NEW(&search->models->planners[0]->arena, struct set_plan);
    if (!plan)
        return TSR_NOMEM;
    plan->set = *set;
    plan->budget = part;
    if (set->at_once)
        search->at_once = plan;
    tsr_status st = tsr__set_plan(search, plan, beat);
    *result = *plan;
    if (st == TSR_OK && !add_time(search, plan))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        keep_better(search, plan);
    else if (!set->at_once)
        tsr__set_plan_end(plan);
    return st;
}

// ---- experts' plans ----------------------------------------------------------------------------

static struct str devices_text(struct arena *arena, const struct device_set *set)
{
    if (set->devices[set->n - 1] == set->n - 1)
        return tsr__arena_printf(arena, "%lld devices", (long long)set->n);
    return tsr__arena_printf(arena, "%lld devices from %lld on", (long long)set->n,
                             (long long)set->devices[0]);
}

// Formats the name of a plan: "tensor parallel on 8 devices, data parallel in 4 copies"
const char *tsr__expert_name(const struct set_search *search, const struct device_set *set)
{
    static const char *const words[] = {[EXPERT_TENSOR] = "tensor parallel",
                                        [EXPERT_SEQUENCE] = "sequence parallel",
                                        [EXPERT_EXPERTS] = "experts spread",
                                        [EXPERT_CONTEXT] = "context parallel"};
    struct arena *arena = &search->models->planners[0]->arena;
    struct str devices = devices_text(arena, set);
    if (set->n == 1 && set->copies > 1)
        return tsr__arena_printf(arena, "data parallel on %lld devices", (long long)set->copies).p;
    if (set->n == 1 && tsr__planner_alike(search->models->planners[0]))
        return ONE_DEVICE;
    if (set->n == 1)
        return tsr__arena_printf(arena, "device %lld alone", (long long)set->devices[0]).p;
    if (set->copies > 1)
        return tsr__arena_printf(arena, "%s on " STR_FMT ", data parallel in %lld copies",
                                 words[set->expert], STR_ARG(devices), (long long)set->copies)
            .p;
    return tsr__arena_printf(arena, "%s on " STR_FMT, words[set->expert], STR_ARG(devices)).p;
}

// Makes the expert plan of the set, one of n, and records its time.
static tsr_status plan_expert(struct set_search *search, struct device_set *set, enum expert expert,
                              size_t n)
{
    struct set_plan plan;
    struct budget quick = tsr__budget_quick(search->models->planners[0]->budget, n);
    struct device_set template = *set;
    struct arena *arena = &search->models->planners[0]->arena;
    template.expert = expert;
    TRY(plan_set(search, &template, quick, 0, &plan));
    plan.compared.name = tsr__expert_name(search, &template);
    if (!tsr__compared_add(arena, &search->compared, plan.compared))
        return TSR_NOMEM;
    if (!plan.compared.fits)
        return TSR_OK;
    set->estimate = int64_min(set->estimate, plan.time);
    return TSR_OK;
}

static bool has_mixture(const struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].rule && tsr__rule_experts(planner->nodes[i].rule) >= 0)
            return true;
    return false;
}

// Returns the length of the sequence: the largest second dimension of an input, such as ids [batch,
// seq].
static int64_t sequence_length(const struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t longest = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        struct shape shape = tsr__shapes_of(planner->shapes.known, tsr_graph_input(graph, i));
        if (shape.rank >= 2)
            longest = int64_max(longest, shape.dims[1].value);
    }
    return longest;
}

// True if no more expert plans are made: time is up and some plan fits, or the session was
// cancelled. If time is up without a plan that fits, the search for one continues.
static bool has_enough(const struct set_search *search)
{
    const struct planner *planner = search->models->planners[0];
    struct plan_standing best = standing_of_best(search);
    return tsr__budget_over(planner->budget) &&
           ((best.any && best.fits) || tsr__cancelled(planner->session));
}

// Makes each kind of expert plan that applies on the set of all devices.
static tsr_status plan_experts_on_all(struct set_search *search, size_t n)
{
    const struct planner *planner = search->models->planners[0];
    struct device_set all = tsr__sets_all(search);
    static const enum expert experts[] = {EXPERT_TENSOR, EXPERT_SEQUENCE, EXPERT_EXPERTS,
                                          EXPERT_CONTEXT};
    all.context = sequence_length(planner);
    for (size_t i = 0; i < TSR_COUNT(experts); i++) {
        if (has_enough(search))
            break;
        if ((experts[i] == EXPERT_EXPERTS && !has_mixture(planner)) ||
            (experts[i] == EXPERT_CONTEXT && all.context < LONG_SEQUENCE))
            continue;
        TRY(plan_expert(search, &all, experts[i], n));
    }
    return TSR_OK;
}

// Makes expert plans of all sets but uneven ones, which are seldom the best. Small sets come first,
// because they take the least time. Sets that cannot be faster than an earlier expert plan are
// skipped. Then, for one model and at most EXPERTS_MOST devices, makes expert plans on all devices.
static tsr_status plan_experts(struct set_search *search)
{
    const struct planner *planner = search->models->planners[0];
    size_t n = search->n + EXPERT_CONTEXT; // one for each set, and each kind on all devices
    tsr_status st = TSR_OK;
    if (planner->machine.n < 2 || !tsr__sets_free(search->models))
        return TSR_OK;
    for (size_t i = 0; i < search->n && st == TSR_OK; i++) {
        struct device_set *set = &search->sets[i];
        int64_t beat = cost_to_beat(search);
        if (has_enough(search) || set->fixed_shares || set->uneven || (beat && set->least >= beat))
            continue;
        st = plan_expert(search, set, EXPERT_TENSOR, n);
    }
    if (st == TSR_OK && search->models->n == 1 && planner->machine.n <= EXPERTS_MOST)
        st = plan_experts_on_all(search, n);
    return st;
}

// ---- sets with all candidates ------------------------------------------------------------------

// Sorts the sets by their estimated time, the shortest first. There are few sets, so insertion sort
// is enough.
static void sort_sets(struct set_search *search)
{
    for (size_t i = 1; i < search->n; i++) {
        struct device_set set = search->sets[i];
        size_t k = i;
        for (; k > 0 && set.estimate < search->sets[k - 1].estimate; k--)
            search->sets[k] = search->sets[k - 1];
        search->sets[k] = set;
    }
}

// Returns the bound of a set that was planned. A logical grid must save PLAN_WORTH of the time of a
// plan without one, so what it saves less does not count.
static int64_t bound_of(const struct set_search *search, const struct device_set *set,
                        int64_t bound)
{
    bool plainer = search->best && search->best->set.grid[0] == 0 && set->grid[0] > 0;
    return plainer ? (int64_t)((double)bound * (1 + PLAN_WORTH)) : bound;
}

// Plans the sets from `first` on. *bound is a lower bound for all plans of these sets, even of
// those that were not planned.
static tsr_status plan_sets(struct set_search *search, size_t first, int64_t *bound)
{
    struct budget *budget = search->models->planners[0]->budget;
    size_t full = 0;
    for (size_t i = first; i < search->n; i++) {
        struct device_set *set = &search->sets[i];
        struct set_plan plan;
        int64_t beat = cost_to_beat(search);
        bool hopeless = beat && set->least >= beat;
        if (hopeless || full == FULL_SETS || is_over(search) || (set->only_bound && !beat)) {
            *bound = int64_min(*bound, set->least);
            continue;
        }
        struct budget part = tsr__budget_next(budget, i + 1 == search->n);
        TRY(plan_set(search, set, part, set->only_bound ? BEATEN_BY_ALL : beat, &plan));
        full += !set->only_bound;
        if (plan.result.feasible)
            set->estimate = int64_min(set->estimate, plan.time);
        if (!plan.result.infeasible)
            *bound = int64_min(*bound, bound_of(search, set, int64_max(plan.bound, set->least)));
    }
    return TSR_OK;
}

void tsr__plan_settle(struct program_result *result, int64_t bound)
{
    result->bound = int64_min(result->cost, bound);
    if ((double)(result->cost - result->bound) < ROUNDING * (double)result->cost)
        result->bound = result->cost;
    result->optimal = result->bound == result->cost;
    result->gap = (double)(result->cost - result->bound) / (double)int64_max(result->cost, 1);
}

// Sets the time of the copies of a set. On few devices, they are played as they are written, with
// the slices of inputs and the gathering of outputs.
static void play_copies(struct plan *found)
{
    struct planner *planner = found->models->planners[0];
    struct set_model model = {&found->set->set, planner, &found->set->planners[0]};
    if (found->models->n == 1 && model.set->copies > 1 && planner->machine.n <= SUMMED_MOST)
        found->time = tsr__planner_played(planner, found->time) + tsr__set_unplayed_time(&model);
}

// Returns the range of a set: all nodes. They run on specific devices, as in a stage, so shardings
// are written even for replicated nodes.
static struct planner_scope scope_of(struct set_plan *best)
{
    best->range = (struct plan_range){SIZE_MAX, (int64_t *)best->set.devices, (size_t)best->set.n};
    return (struct planner_scope){.staged = true, .ranges = &best->range, .n_ranges = 1};
}

// Makes the plan of the set the result.
static tsr_status take_set(struct plan *found, const struct set_search *search, int64_t bound)
{
    struct set_plan *best = search->best;
    found->result.feasible = true;
    found->result.cost = best->cost;
    found->time = best->time;
    found->compute = tsr__compared_compute_all(&best->models);
    tsr__plan_settle(&found->result, bound);
    found->set = best;
    found->exceeds = best->planners[0].memory.exceeds;
    for (size_t m = 0; m < search->models->n; m++) {
        if (!best->set.at_once)
            found->placed[m].scope = scope_of(best);
        found->run[m] = best->run[m];
    }
    if (!tsr__set_expand(search, best))
        return TSR_NOMEM;
    play_copies(found);
    return TSR_OK;
}

// ---- the search --------------------------------------------------------------------------------

static tsr_status refuse_unlike(const struct planner *planner)
{
    return tsr__fail(
        planner->session, TSR_UNSUPPORTED, DIAG_plan_devices, NULL,
        "use devices of the same kind, without kept shardings, stages, --explain or --export-lp",
        "%lld devices are too many to plan one by one, and a smaller plan cannot be repeated on "
        "them",
        (long long)planner->machine.n);
}

// Plans all devices at once. If sets are planned as well, this plan gets only a share of the
// budget.
static tsr_status plan_at_once(struct set_search *search, bool last)
{
    struct device_set all = tsr__sets_all(search);
    struct set_plan plan;
    all.at_once = true;
    return plan_set(search, &all, tsr__budget_next(search->models->planners[0]->budget, last), 0,
                    &plan);
}

static tsr_status find_best(struct set_search *search, int64_t *bound)
{
    bool only_sets = tsr__sets_only(search->models);
    if (!tsr__sets_list(search))
        return TSR_NOMEM;
    TRY(plan_experts(search));
    if (!only_sets)
        TRY(plan_at_once(search, search->n == 0));
    sort_sets(search);
    TRY(plan_sets(search, 0, bound));
    sort_sets(search);
    for (int sides = 2; sides <= PLAN_MAX_AXES; sides++) {
        size_t n = search->n;
        if (!tsr__sets_add_grids(search, sides))
            return TSR_NOMEM;
        TRY(plan_sets(search, n, bound));
    }
    return TSR_OK;
}

// Without a plan, returns what is known: the plan of all devices at once says what is needed.
static tsr_status take_none(struct plan *found, struct set_search *search, int64_t bound)
{
    struct planner *planner = search->models->planners[0];
    bool only_sets = tsr__sets_only(search->models), cancelled = tsr__cancelled(planner->session);
    found->undecided = only_sets && !cancelled && bound < PLAN_NEVER;
    tsr_plan_result none = {.facts.undecided = found->undecided};
    if (only_sets && !cancelled && planner->machine.n > PLAN_MAX_AT_ONCE)
        return tsr__plan_report_none(planner, search->options,
                                     "plan on a set of at most 64 devices", true, &none, false);
    if (only_sets && !cancelled)
        TRY(plan_at_once(search, true));
    found->set = search->best;
    if (found->set)
        return take_set(found, search, int64_min(bound, search->best->bound));
    found->result.infeasible = (search->at_once && search->at_once->result.infeasible) ||
                               tsr__sets_too_small(search); // proved, even if time is up
    found->result.bound = bound;                            // a pipeline may be the answer
    found->set = search->at_once;
    return TSR_OK;
}

// Ends the plans but the one that is kept, whose planners live as long as those of all devices: the
// nodes of these refer to its rules and names.
static void end_others(const struct set_search *search, struct set_plan *kept)
{
    if (search->best && search->best != kept)
        tsr__set_plan_end(search->best);
    if (search->at_once && search->at_once != kept)
        tsr__set_plan_end(search->at_once);
    for (size_t m = 0; kept && m < kept->n_open; m++)
        search->models->planners[m]->block = &kept->planners[m];
}

static tsr_status find(struct plan *found, const tsr_plan_options *options)
{
    struct models *models = found->models;
    struct planner *planner = models->planners[0];
    struct set_search *search = ARENA_NEW(&planner->arena, struct set_search);
    int64_t bound = PLAN_NEVER;
    if (!search)
        return TSR_NOMEM;
    if (planner->machine.n > PLAN_MAX_AT_ONCE && !tsr__sets_only(models))
        return refuse_unlike(planner);
    *search = (struct set_search){.models = models, .options = options, .dropped = PLAN_NEVER};
    tsr_status st = find_best(search, &bound);
    found->compared = search->compared;
    found->times = search->times;
    bound = int64_min(bound, search->dropped);
    if (search->at_once && !search->at_once->result.infeasible)
        bound = int64_min(bound, search->at_once->bound);
    if (st == TSR_OK)
        st = search->best ? take_set(found, search, bound) : take_none(found, search, bound);
    end_others(search, found->set);
    return st;
}

// Adds a node with one choice to the program of one copy. Its cost is the additional time that
// several copies need.
static bool add_copies_time(struct plan *found, struct program *program)
{
    int64_t *more = ARENA_NEW(program->arena, int64_t);
    if (!more)
        return false;
    *more = found->set->cost - tsr__program_cost(program, found->set->result.choice);
    if (*more == 0 || found->models->n > 1)
        return true;
    return tsr__program_node(program, STR("copies"), 1, more) != UINT32_MAX;
}

// Writes the program of the chosen plan. Without a plan, writes the program of all devices at once.
static tsr_status export(struct plan *found, const tsr_plan_options *options)
{
    tsr_session *session = found->models->planners[0]->session;
    struct program *program = found->set ? found->set->models.program : NULL;
    if (!options->export_lp || !program)
        return TSR_OK;
    if (found->result.feasible && !add_copies_time(found, program))
        return TSR_NOMEM;
    return tsr__planner_export(session, program, options->export_lp);
}

tsr_status tsr__search_find(struct models *models, const tsr_plan_options *options,
                            struct plan *out)
{
    const struct budget *budget = models->planners[0]->budget;
    if (!tsr__plan_start(out, models))
        return TSR_NOMEM;
    tsr_status st = find(out, options);
    out->ms = 1e3 * (tsr__now_s() - budget->begin);
    tsr__budget_clear_progress(budget);
    return st == TSR_OK ? export(out, options) : st;
}

// ---- plans that are compared -------------------------------------------------------------------

// Returns the planner's nodes without candidates. NULL: out of memory.
static struct plan_node *copy_nodes(struct planner *planner)
{
    if (!tsr__planner_list(planner))
        return NULL;
    struct plan_node *nodes = ARENA_ARRAY(&planner->arena, struct plan_node, planner->n_nodes + 1);
    for (size_t i = 0; nodes && i < planner->n_nodes; i++) {
        nodes[i] = planner->nodes[i];
        nodes[i].strategy = NULL;
        nodes[i].stored = NULL;
        nodes[i].choice = 0;
    }
    return nodes;
}

bool tsr__plan_start(struct plan *plan, struct models *models)
{
    *plan = (struct plan){.models = models};
    for (size_t m = 0; m < models->n; m++) {
        plan->placed[m].at = copy_nodes(models->planners[m]);
        if (!plan->placed[m].at)
            return false;
    }
    tsr__plan_place(plan);
    return true;
}

void tsr__plan_place(const struct plan *plan)
{
    for (size_t m = 0; m < plan->models->n; m++) {
        plan->models->planners[m]->nodes = plan->placed[m].at;
        plan->models->planners[m]->scope = plan->placed[m].scope;
    }
}

// ---- the result --------------------------------------------------------------------------------

// True if candidates were left out for lack of time.
static bool is_narrow(const struct plan *plan)
{
    return plan->set && plan->set->planners[0].pace.candidates > 0;
}

// The set on which a plan runs, and the planners of its models.
struct chosen_set {
    struct device_set set;
    struct models models;
};

static void choose_set(const struct plan *found, struct chosen_set *out)
{
    const struct models *models = found->models;
    const struct planner_machine *machine = &models->planners[0]->machine;
    struct planner *planners[PLAN_MAX_MODELS] = {models->planners[0], models->planners[1]};
    out->set = (struct device_set){.devices = machine->all, .n = machine->n, .copies = 1};
    // On few devices, copies are summed up as they are written, including the gathering of outputs.
    if (found->set && (found->set->set.copies == 1 || machine->n > SUMMED_MOST)) {
        out->set = found->set->set;
        for (size_t m = 0; m < models->n; m++)
            planners[m] = &found->set->planners[m];
    }
    tsr__models_with(models, planners, &out->models);
}

// Copies the memory of a set to all devices of all its copies, and adds `inputs` bytes to each.
static void spread(const struct device_set *set, const struct model_memory *from, int64_t inputs,
                   const struct model_memory *to)
{
    for (int64_t copy = 0; copy < set->copies; copy++)
        for (int64_t i = 0; i < set->n; i++) {
            int64_t device = copy * set->n + set->devices[i];
            to->memory[device] = from->memory[i] + inputs;
            to->peak[device] = from->peak[i] + inputs;
            to->own[device] = from->own[i];
        }
}

bool tsr__plan_add_memory(struct plan *plan, const struct device_set *set,
                          const struct models *block)
{
    for (size_t m = 0; m < block->n; m++) {
        struct planner *planner = plan->models->planners[m];
        struct arena *arena = &planner->session->results[RESULT_PLAN];
        struct set_model model = {set, planner, block->planners[m]};
        struct model_memory own;
        if (!plan->memory[m].memory &&
            !tsr__model_memory_init(&plan->memory[m], arena, (size_t)planner->machine.n))
            return false;
        if (!tsr__model_memory_init(&own, &planner->arena, (size_t)set->n) ||
            !tsr__models_memory(block, m, &own))
            return false;
        spread(set, &own, tsr__set_more_bytes(&model), &plan->memory[m]);
    }
    return true;
}

// Clears the memory of the devices that are not in the set: they store nothing, not even inputs.
static void clear_idle(const struct plan *found, const struct model_memory *memory)
{
    const struct planner_machine *machine = &found->models->planners[0]->machine;
    for (int64_t device = 0; found->set && device < machine->n; device++) {
        const struct device_set *set = &found->set->set;
        bool used = false;
        for (int64_t i = 0; i < set->n && !used; i++) {
            int64_t copy = (device - set->devices[i]) / set->n;
            used = copy >= 0 && copy < set->copies && set->devices[i] + copy * set->n == device;
        }
        if (!used)
            memory->memory[device] = memory->peak[device] = 0;
    }
}

static tsr_status add_parts(const struct plan *found, const struct chosen_set *chosen,
                            tsr_plan_part *parts)
{
    for (size_t m = 0; m < found->models->n; m++) {
        struct planner *planner = found->models->planners[m];
        struct set_model model = {&chosen->set, planner, chosen->models.planners[m]};
        struct collective_count counts[PLAN_MAX_OPS];
        size_t n = tsr__set_collectives(&model, counts);
        parts[m].cost = found->run[m];
        parts[m].memory = found->memory[m].memory;
        if (!tsr__planner_add_counts(planner, counts, n, &parts[m]))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Returns the number of devices that the plan is made for; some of them may be idle.
static int64_t planned_devices(const struct plan *plan)
{
    const struct planner_scope *scope = &plan->placed[0].scope;
    int64_t n = 0;
    if (plan->set)
        return plan->set->set.n * plan->set->set.copies;
    for (size_t k = 0; k < scope->n_ranges; k++)
        n += (int64_t)scope->ranges[k].n;
    return n ? n : plan->models->planners[0]->machine.n;
}

struct plan_standing tsr__plan_standing(const struct plan *plan, const tsr_plan_options *options)
{
    struct plan_standing now =
        standing(plan->models->planners[0], plan->time, planned_devices(plan), options);
    now.any = plan->result.feasible;
    now.fits = !plan->exceeds;
    return now;
}

// Counts the devices that run nodes, and clears the memory of the others.
static void add_devices(const struct plan *plan, const struct model_memory *memory,
                        tsr_plan_facts *facts)
{
    facts->copies = plan->set ? plan->set->set.copies : 1;
    facts->used_devices = planned_devices(plan);
    if (plan->set && !plan->set->set.at_once)
        clear_idle(plan, memory);
    else if (plan->models->n == 1)
        facts->used_devices =
            tsr__planner_used(plan->models->planners[0], memory->memory, memory->peak);
}

// Returns the index of the node, or of the node of the main graph that contains it.
static int64_t index_in_main(const tsr_node *node)
{
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    return tsr_node_index(node);
}

// Describes one range of a pipeline: devices, memory and nodes.
static bool describe_range(const struct plan *plan, size_t k, tsr_plan_stage *out)
{
    const struct planner *planner = plan->models->planners[0];
    const struct plan_range *range = &planner->scope.ranges[k];
    int64_t *devices = ARENA_ARRAY(&planner->session->results[RESULT_PLAN], int64_t, range->n);
    if (!devices)
        return false;
    memcpy(devices, range->devices, range->n * sizeof *devices);
    *out = (tsr_plan_stage){.devices = devices,
                            .n_devices = range->n,
                            .first = -1,
                            .last = -1,
                            .time = plan->played[0].time[k],
                            .transfer = plan->played[0].transfer[k]};
    for (size_t i = 0; i < range->n; i++)
        out->memory = int64_max(out->memory, plan->memory[0].memory[devices[i]]);
    for (size_t i = k ? range[-1].end : 0; i < range->end; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy || node->border)
            continue;
        if (out->nodes++ == 0)
            out->first = index_in_main(node->node);
        out->last = index_in_main(node->node);
    }
    return true;
}

// Adds the stages of a pipeline.
static bool add_stages(const struct plan *plan, tsr_plan_result *out)
{
    const struct planner *planner = plan->models->planners[0];
    size_t n = planner->scope.n_ranges;
    tsr_plan_stage *list = ARENA_ARRAY(&planner->session->results[RESULT_PLAN], tsr_plan_stage, n);
    for (size_t k = 0; k < n; k++)
        if (!list || !describe_range(plan, k, &list[k]))
            return false;
    out->stages = list;
    out->facts.n_stages = n;
    out->facts.latency = plan->played[0].latency;
    out->facts.period = plan->played[0].period;
    return true;
}

// Returns the predicted time of one run of the first model.
static int64_t run_time(const struct plan *plan)
{
    if (plan->models->n > 1 || plan_is_staged(plan))
        return plan->run[0];
    return plan->time;
}

static tsr_status summarize(struct plan *plan, tsr_plan_result *out)
{
    struct planner *planner = plan->models->planners[0];
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    const struct program_result *result = &plan->result;
    struct chosen_set chosen;
    struct model_memory all;
    tsr_plan_part *parts = ARENA_ARRAY(arena, tsr_plan_part, PLAN_MAX_MODELS);
    choose_set(plan, &chosen);
    if (!parts || !tsr__model_memory_init(&all, arena, (size_t)planner->machine.n) ||
        (!plan_is_staged(plan) && !tsr__plan_add_memory(plan, &chosen.set, &chosen.models)))
        return TSR_NOMEM;
    tsr__models_join_memory(plan->models, plan->memory, (size_t)planner->machine.n, &all);
    TRY(add_parts(plan, &chosen, parts));
    *out = (tsr_plan_result){.facts = {.devices = (size_t)planner->machine.n,
                                       .feasible = true,
                                       .optimal = result->optimal,
                                       .gap = result->gap,
                                       .cost = result->cost,
                                       .bound = result->bound,
                                       .solve_ms = plan->ms,
                                       .memory = all.memory,
                                       .peak = all.peak}};
    out->facts.stopped =
        !result->optimal && (plan->hasty || is_narrow(plan) || tsr__budget_over(planner->budget));
    out->facts.milliseconds = (double)run_time(plan) / 1e9;
    out->facts.gathered_weights = tsr__planner_gathered(planner);
    add_devices(plan, &all, &out->facts);
    tsr__planner_copy_counts(parts, out);
    if (plan_is_staged(plan) && !add_stages(plan, out))
        return TSR_NOMEM;
    if (plan->models->n == 1)
        return TSR_OK;
    out->parts = parts;
    out->n_parts = plan->models->n;
    out->shared = plan->models->shared.n;
    return TSR_OK;
}

// Finds the picoseconds of one run on the fastest device alone; 0: the model does not fit.
static tsr_status best_device(struct models *models, const tsr_plan_options *options, int64_t *time)
{
    struct planner *planner = models->planners[0];
    struct set_search *search = ARENA_NEW(&planner->arena, struct set_search);
    struct set_plan *plan = ARENA_NEW(&planner->arena, struct set_plan);
    int64_t best = 0;
    *time = 0;
    if (!search || !plan)
        return TSR_NOMEM;
    *search = (struct set_search){.models = models, .options = options};
    for (int64_t device = 1; device < planner->machine.n; device++)
        if (tsr__planner_speed(planner, device) > tsr__planner_speed(planner, best))
            best = device;
    plan->set = (struct device_set){.devices = &best, .n = 1, .copies = 1};
    plan->budget = tsr__budget_next(planner->budget, true);
    tsr_status st = tsr__set_plan(search, plan, 0);
    if (st == TSR_OK && plan->result.feasible && !plan->planners[0].memory.exceeds)
        *time = plan->cost;
    tsr__set_plan_end(plan);
    return st;
}

// Sets better_devices to the smallest number of devices on which a plan is slower by less than
// NEARLY, if it is smaller than that of the plan.
static void name_fewer(const struct plan *found, tsr_plan_result *out)
{
    int64_t least = out->facts.used_devices;
    double time = (double)found->time;
    for (size_t i = 0; i < found->times.n; i++) {
        const struct device_time *other = &found->times.at[i];
        bool fewer = other->devices < least || (other->devices == out->facts.better_devices &&
                                                other->time < out->facts.better_cost);
        if (!fewer || (double)other->time > (1 + NEARLY) * time)
            continue;
        out->facts.better_devices = least = other->devices;
        out->facts.better_cost = other->time;
    }
}

// Finds the time on one device, if there is time left, and whether fewer devices would be as fast.
static tsr_status compare_devices(struct plan *found, const tsr_plan_options *options,
                                  tsr_plan_result *out)
{
    struct planner *planner = found->models->planners[0];
    bool over = tsr__budget_over(planner->budget);
    tsr_status st = TSR_OK;
    bool at_once = found->set && found->set->set.at_once && found->models->n == 1;
    if (at_once)
        out->facts.one_device = tsr__planner_one_device(&found->set->planners[0]);
    if (!over && (!at_once || !tsr__planner_alike(planner)))
        st = best_device(found->models, options, &out->facts.one_device);
    bool listed = false;
    for (size_t i = 0; i < found->compared.n; i++)
        listed = listed || strcmp(found->compared.at[i].name, ONE_DEVICE) == 0;
    struct compared_plan one = {.name = ONE_DEVICE,
                                .fits = true,
                                .time = out->facts.one_device,
                                .compute = out->facts.one_device};
    if (st == TSR_OK && out->facts.one_device > 0 && !listed &&
        !tsr__compared_add(&planner->arena, &found->compared, one))
        return TSR_NOMEM;
    if (st == TSR_OK)
        name_fewer(found, out);
    return st;
}

// Warns if candidates were skipped for lack of time, and if the plan exceeds the assumed memory.
static tsr_status report_lacks(const struct plan *found)
{
    struct planner *planner = found->models->planners[0];
    if (is_narrow(found))
        tsr__build_report_narrow(planner);
    return found->exceeds ? tsr__plan_warn_memory(&found->set->planners[0]) : TSR_OK;
}

tsr_status tsr__plan_explain(const struct models *models, int64_t more, const char *node,
                             tsr_plan_result *out)
{
    TRY(tsr__planner_explain(models->planners[0], models->program, node, out));
    tsr_plan_choice *list = (tsr_plan_choice *)out->choices;
    for (size_t i = 0; i < out->facts.n_choices; i++)
        if (list[i].feasible)
            list[i].cost = tsr__models_unscaled(models, list[i].cost) + more;
    return TSR_OK;
}

tsr_status tsr__plan_take(struct plan *plan, const tsr_plan_options *options, bool write,
                          tsr_plan_result *out)
{
    tsr__plan_place(plan);
    TRY(report_lacks(plan));
    for (size_t m = 0; m < plan->models->n && write; m++)
        TRY(tsr__planner_write(plan->models->planners[m], options->config));
    TRY(summarize(plan, out));
    if (write)
        TRY(compare_devices(plan, options, out));
    if (plan_is_staged(plan))
        out->facts.objective = options->objective;
    return tsr__compared_write(plan, out);
}
