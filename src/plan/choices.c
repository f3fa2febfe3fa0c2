// SPDX-License-Identifier: Apache-2.0
// choices.c - as many of the devices as are best: the model is planned for each choice of a
// topology on a copy of it, and the best choice on the model itself.
//
// More devices are taken only where they are worth it: of 1 device 10 ms, 2 devices 6 ms, 4 devices
// 5.98 ms it is 2.
#include "plan/costs/planner.h"

#define WORTH 0.99 // of the time on fewer devices: more are not worth less

// `best` is a choice of the caller's topology; best_count.cost 0: none has been found yet.
struct counting {
    tsr_session *session;
    struct arena arena;
    const tsr_plan_options *options;
    VEC(tsr_plan_count) tried;
    tsr_topology *best;
    tsr_plan_count best_count;
};

// No device holds more than it has, as far as the plan tells.
static bool keeps_memory(const tsr_plan_summary *summary, const tsr_topology *topology,
                         int64_t limit)
{
    if (!summary->feasible)
        return false;
    for (size_t i = 0; i < summary->devices; i++)
        if (summary->memory[i] > (limit > 0 ? limit : topology->device[i].memory))
            return false;
    return true;
}

// What fits comes before what does not; then what is faster by more than a little.
static bool is_better(const tsr_plan_count *count, const tsr_plan_count *best)
{
    if (!best->cost)
        return count->cost > 0;
    if (count->fits != best->fits)
        return count->fits;
    return count->cost > 0 && (double)count->cost < WORTH * (double)best->cost;
}

// Plans the choice without writing it, and notes the result. Diagnostics of choices are discarded.
static tsr_status try_choice(struct counting *counting, tsr_model *model, tsr_topology *choice)
{
    tsr_plan_options options = *counting->options;
    tsr_plan_summary summary = {.size = sizeof summary};
    options.topology = choice;
    options.export_lp = NULL;
    options.explain = NULL;
    struct diag_mark before = tsr__diag_mark(counting->session);
    tsr_status status = tsr__plan_once(model, &options, false, &summary);
    // A choice that does not fit is a result, too; any other failure ends the search.
    bool infeasible = status == TSR_INFEASIBLE;
    if (status != TSR_OK && !infeasible)
        return status;
    tsr__diag_back(counting->session, &before, false);
    tsr_plan_count count = {.devices = choice->n, .ranks = choice->shared_by > 0};
    if (!infeasible) {
        count.cost = summary.cost;
        count.fits = keeps_memory(&summary, choice, options.memory);
    }
    tsr_plan_count *at = vec_push(&counting->arena, &counting->tried);
    if (!at)
        return TSR_NOMEM;
    *at = count;
    if (is_better(&count, &counting->best_count)) {
        counting->best = choice;
        counting->best_count = count;
    }
    return TSR_OK;
}

// All choices; after Ctrl-C no more of them.
static tsr_status try_all(struct counting *counting, tsr_model *model)
{
    const tsr_topology *topology = counting->options->topology;
    for (size_t i = 0; i < topology->choices.n; i++) {
        if (counting->best && tsr__cancelled(counting->session))
            return TSR_OK;
        tsr_status status = try_choice(counting, model, topology->choices.at[i]);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

// The list outlives the plans, whose results are freed one by one.
static tsr_status tell(const struct counting *counting, tsr_plan_summary *summary)
{
    struct arena *arena = &counting->session->results[RESULT_PLAN];
    tsr_plan_count *tried = ARENA_ARRAY(arena, tsr_plan_count, counting->tried.n + 1);
    if (!tried)
        return TSR_NOMEM;
    const tsr_topology *topology = counting->options->topology;
    for (size_t i = 0; i < counting->tried.n; i++) {
        tried[i] = counting->tried.at[i];
        tried[i].chosen = topology->choices.at[i] == counting->best;
    }
    summary->tried = tried;
    summary->n_tried = counting->tried.n;
    return TSR_OK;
}

// "1: 12.3 ms, 2: 7.1 ms, 4 ranks: 6.2 ms, 4: no memory"
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
            text = tsr__arena_printf(arena, STR_FMT "%s%lld%s: no memory", STR_ARG(text), before,
                                     (long long)tried[i].devices, ranks);
    }
    return text;
}

// Says how many were taken, and what each number of them would take.
static void say(struct counting *counting, const tsr_plan_summary *summary)
{
    struct str list = list_text(&counting->arena, summary->tried, summary->n_tried);
    const char *what = "of up to %d devices %zu are best";
    if (counting->best->shared_by)
        what = "on %d devices %zu ranks, more of them on faster ones, are best";
    else if (summary->devices == 1)
        what = "of up to %d devices %zu is best";
    struct str text =
        tsr__arena_printf(&counting->arena, what, counting->options->topology->n, summary->devices);
    tsr__diag(counting->session, DIAG_plan_count, NULL,
              "give --devices a number to have it otherwise",
              STR_FMT "; predicted time by their number: " STR_FMT, STR_ARG(text), STR_ARG(list));
}

// The seconds of the caller are shared out evenly. The chosen one is planned again on the model
// itself, so that its shardings, findings and summary are those of an ordinary plan.
tsr_status tsr__plan_choices(tsr_model *model, const tsr_plan_options *given,
                             tsr_plan_summary *summary)
{
    struct counting counting = {.session = tsr_model_session(model)};
    tsr_plan_options options = *given;
    if (!given->topology || !given->topology->choices.n)
        return tsr__plan_once(model, given, true, summary);
    size_t plans = given->topology->choices.n + 1; // the best is planned twice
    options.seconds = given->seconds / (double)plans;
    counting.options = &options;
    tsr__arena_init(&counting.arena, counting.session);
    tsr_status status = try_all(&counting, model);
    if (status != TSR_OK)
        goto free_arena;
    if (!counting.best) // nothing fits: the last of them is refused, with what it needs
        counting.best = given->topology->choices.at[given->topology->choices.n - 1];
    options.topology = counting.best;
    status = tsr__plan_once(model, &options, true, summary);
    if (status != TSR_OK)
        goto free_arena;
    options.topology = given->topology;
    status = tell(&counting, summary);
    if (status != TSR_OK)
        goto free_arena;
    say(&counting, summary);
free_arena:
    tsr__arena_free(&counting.arena);
    return status;
}

const tsr_topology *tsr__plan_chosen(const tsr_topology *topology, const tsr_plan_summary *summary)
{
    for (size_t i = 0; i < summary->n_tried; i++)
        if (summary->tried[i].chosen)
            return tsr_topology_choice(topology, i);
    return topology;
}
