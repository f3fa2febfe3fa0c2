// SPDX-License-Identifier: Apache-2.0
// choices.c - plans on the best number of devices of a topology with choices (topologies of some of
// its devices, see topology.h). Each choice is planned without writing it; then the best one is
// planned again and written.
//
// A larger number of devices must be faster by more than 1 %. Example: with 10 ms on 1 device, 6 ms
// on 2 and 5.98 ms on 4, the plan is for 2.
#include "plan/costs/planner.h"
#include "plan/plan_once.h"

#include <math.h>

#define WORTH 0.01 // part of the time that more devices must save

// The choices that were planned. `best` is a choice of the caller's topology. best_count.cost is 0
// until one was found.
struct choice_list {
    tsr_session *session;
    struct arena arena;
    const tsr_plan_options *options; // of the caller
    double end;                      // time at which planning must end; 0: no time limit
    VEC(tsr_plan_count) tried;
    tsr_topology *best;
    tsr_plan_count best_count;
};

// True if the plan fits in the limit of the caller or, without a limit, in the memory of each
// device.
static bool keeps_memory(const tsr_plan_result *plan, const tsr_topology *topology, int64_t limit)
{
    if (!plan->facts.feasible)
        return false;
    for (size_t i = 0; i < plan->facts.devices; i++)
        if (plan->facts.memory[i] > (limit > 0 ? limit : topology->device[i].memory))
            return false;
    return true;
}

static struct plan_standing standing_of(const tsr_plan_count *count)
{
    return (struct plan_standing){.any = count->cost > 0,
                                  .fits = count->fits,
                                  .time = count->cost,
                                  .devices = count->devices};
}

// Returns the options for one of the `left` plans that are left. They share the time that is left:
// a plan that ends early leaves its time to the others.
static tsr_plan_options options_for(const struct choice_list *list, tsr_topology *choice,
                                    size_t left)
{
    tsr_plan_options options = *list->options;
    options.topology = choice;
    if (list->end > 0) // 0 would mean no limit
        options.seconds = fmax((list->end - tsr__now_s()) / (double)left, 1e-3);
    return options;
}

// Returns the predicted time of one run of one model; with stages or two models, the cost.
static int64_t predicted_time(const tsr_plan_result *plan)
{
    if (plan->n_parts || plan->facts.n_stages)
        return plan->facts.cost;
    return (int64_t)(plan->facts.milliseconds * 1e9 + 0.5);
}

// Plans the choice without writing it, and records the result. Diagnostics of choices are
// discarded.
static tsr_status try_choice(struct choice_list *list, tsr_model *model, tsr_topology *choice,
                             size_t left)
{
    tsr_plan_options options = options_for(list, choice, left);
    tsr_plan_result plan = {0};
    options.export_lp = NULL;
    options.explain = NULL;
    struct diag_mark before = tsr__diag_mark(list->session);
    tsr_status status = tsr__plan_once(model, &options, false, &plan);
    // An infeasible choice is a valid result; any other failure ends the search.
    bool infeasible = status == TSR_INFEASIBLE;
    if (status != TSR_OK && !infeasible)
        return status;
    tsr__diag_back(list->session, &before, false);
    tsr_plan_count count = {.devices = choice->n,
                            .ranks = choice->shared_by > 0,
                            .undecided = infeasible && plan.facts.undecided};
    if (!infeasible) {
        count.cost = predicted_time(&plan);
        count.fits = keeps_memory(&plan, choice, options.memory);
    }
    if (!vec_add(&list->arena, &list->tried, count))
        return TSR_NOMEM;
    struct plan_standing now = standing_of(&count), best = standing_of(&list->best_count);
    if (tsr__plan_is_better(&now, &best, WORTH)) {
        list->best = choice;
        list->best_count = count;
    }
    return TSR_OK;
}

// Tries all choices. If the caller cancels, stops as soon as one choice has a plan.
static tsr_status try_all(struct choice_list *list, tsr_model *model)
{
    const tsr_topology *topology = list->options->topology;
    for (size_t i = 0; i < topology->choices.n; i++) {
        if (list->best && tsr__cancelled(list->session))
            return TSR_OK;
        // 1 more: the best choice is planned twice
        TRY(try_choice(list, model, topology->choices.at[i], topology->choices.n - i + 1));
    }
    return TSR_OK;
}

// Copies the list into the summary of the final plan.
static tsr_status copy_list(const struct choice_list *list, tsr_plan_result *plan)
{
    struct arena *arena = &list->session->results[RESULT_PLAN];
    tsr_plan_count *tried = ARENA_ARRAY(arena, tsr_plan_count, list->tried.n + 1);
    if (!tried)
        return TSR_NOMEM;
    const tsr_topology *topology = list->options->topology;
    for (size_t i = 0; i < list->tried.n; i++) {
        tried[i] = list->tried.at[i];
        tried[i].chosen = topology->choices.at[i] == list->best;
    }
    plan->counts = tried;
    plan->facts.n_counts = list->tried.n;
    return TSR_OK;
}

// Formats the list: "1: 12.3 ms, 2: 7.1 ms, 4 ranks: 6.2 ms, 4: does not fit in memory"
static struct str list_text(struct arena *arena, const tsr_plan_count *tried, size_t n)
{
    struct str text = STR("");
    for (size_t i = 0; i < n; i++) {
        const char *before = i ? ", " : "";
        const char *ranks = tried[i].ranks ? " ranks" : "";
        if (tried[i].fits)
            text =
                tsr__arena_printf(arena, STR_FMT "%s%lld%s: %.3g ms", STR_ARG(text), before,
                                  (long long)tried[i].devices, ranks, (double)tried[i].cost / 1e9);
        else
            text = tsr__arena_printf(
                arena, STR_FMT "%s%lld%s: %s", STR_ARG(text), before, (long long)tried[i].devices,
                ranks, tried[i].undecided ? "not found in time" : "does not fit in memory");
    }
    return text;
}

// Reports the chosen number of devices or ranks, and the predicted time of each number.
static void report_choice(struct choice_list *list, const tsr_plan_result *plan)
{
    struct str text_list = list_text(&list->arena, plan->counts, plan->facts.n_counts);
    const char *what = "using %zu of %d devices is fastest";
    if (list->best->shared_by)
        what = "using %zu ranks on %d devices is fastest, with more ranks on faster devices";
    struct str text =
        tsr__arena_printf(&list->arena, what, plan->facts.devices, list->options->topology->n);
    tsr__diag(list->session, DIAG_plan_count, NULL, "set the number with --devices N",
              STR_FMT "; predicted times: " STR_FMT, STR_ARG(text), STR_ARG(text_list));
}

// Plans all choices of the topology, then the best one again, so that its shardings, diagnostics
// and summary are those of an ordinary plan. The time limit is divided among these plans.
tsr_status tsr__plan_choices(tsr_model *model, const tsr_plan_options *given, tsr_plan_result *plan)
{
    struct choice_list list = {.session = tsr_model_session(model), .options = given};
    if (!given->topology || !given->topology->choices.n)
        return tsr__plan_once(model, given, true, plan);
    if (given->seconds > 0)
        list.end = tsr__now_s() + given->seconds;
    tsr__arena_init(&list.arena, list.session);
    tsr_status status = try_all(&list, model);
    if (status != TSR_OK)
        goto free_arena;
    if (!list.best) // no choice fits: report what the last one needs
        list.best = given->topology->choices.at[given->topology->choices.n - 1];
    tsr_plan_options options = options_for(&list, list.best, 1);
    status = tsr__plan_once(model, &options, true, plan);
    if (status != TSR_OK)
        goto free_arena;
    status = copy_list(&list, plan);
    if (status != TSR_OK)
        goto free_arena;
    report_choice(&list, plan);
free_arena:
    tsr__arena_free(&list.arena);
    return status;
}

const tsr_topology *tsr__plan_chosen(const tsr_topology *topology, const tsr_plan_result *plan)
{
    for (size_t i = 0; i < plan->facts.n_counts; i++)
        if (plan->counts[i].chosen)
            return tsr_topology_choice(topology, i);
    return topology;
}
