// SPDX-License-Identifier: Apache-2.0
// compared.c - lists the experts' plans that the result was compared with, and why each of them
// lost.
//
//     Example: the plan takes 20 ms, 4 of them for communication. Tensor parallel on 8 devices
//     takes 22.4 ms, 7.1 of them for communication: "slower by 12 %: 3.1 ms more communication, 0.7
//     ms less computation".
#include "plan/search/search.h"

#include <stdlib.h>

#define NEED_WORK  UINT64_C(10000000) // cells that may be visited to find the needed memory
#define NEED_NEAR  0.01               // accepted error of the needed memory
#define SAME       1e-3               // relative difference of times that are called equal
#define MINOR_PART 0.1                // smaller parts of a difference are not named

// ---- recording ---------------------------------------------------------------------------------

bool tsr__compared_add(struct arena *arena, struct compared_list *list,
                       struct compared_plan compared)
{
    return vec_add(arena, list, compared);
}

static int64_t compute_time(struct planner *planner)
{
    struct arena arena = {.session = planner->session};
    bool *unused;
    int64_t sum = 0;
    bool ok = tsr__planner_unused(planner, &arena, &unused);
    for (size_t i = 0; ok && i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (node->strategy && !unused[i])
            sum += node->strategy->at.at[node->choice].compute;
    }
    tsr__arena_free(&arena);
    return sum;
}

int64_t tsr__compared_compute_all(const struct models *models)
{
    int64_t sum = 0;
    for (size_t m = 0; m < models->n; m++)
        sum += models->runs[m] * compute_time(models->planners[m]);
    return sum;
}

// Finds the memory per device that the set's plan needs. Also records whether this proves that the
// plan does not fit.
static tsr_status find_need(struct set_plan *plan, struct compared_plan *compared)
{
    struct planner *planner = &plan->planners[0];
    struct program_least least = {0};
    struct program_options options = tsr__budget_share(planner->budget, 1);
    options.work = options.work < NEED_WORK ? options.work : NEED_WORK;
    options.near = NEED_NEAR;
    TRY(tsr__program_least(plan->models.program, &options, &planner->arena, &least));
    tsr__budget_spend(planner->budget, least.work);
    if (least.found)
        compared->needs = least.least + plan->reserved;
    compared->proved = compared->proved || least.bound + plan->reserved > compared->limit;
    return TSR_OK;
}

tsr_status tsr__compared_record(struct set_plan *plan)
{
    struct compared_plan *compared = &plan->compared;
    const struct planner *planner = &plan->planners[0];
    *compared = (struct compared_plan){.fits = plan->result.feasible && !planner->memory.exceeds,
                                       .proved = plan->result.infeasible || plan->copies_exceed};
    if (compared->fits) {
        compared->time = plan->time;
        compared->compute = tsr__compared_compute_all(&plan->models);
        return TSR_OK;
    }
    compared->limit = tsr__plan_least_memory(planner) + plan->reserved;
    if (plan->copies_exceed || !plan->models.program || planner->pace.late)
        return TSR_OK;
    return find_need(plan, compared);
}

// ---- reasons -----------------------------------------------------------------------------------

// Formats a time with up to three digits: "3.1 ms", "870 us".
static struct str time_text(struct arena *arena, double ps)
{
    double ms = ps / 1e9;
    if (ms >= 1e3)
        return tsr__arena_printf(arena, "%.3g s", ms / 1e3);
    if (ms >= 1)
        return tsr__arena_printf(arena, "%.3g ms", ms);
    return tsr__arena_printf(arena, "%.3g us", ms * 1e3);
}

// Formats one part of a difference: "3.1 ms more communication". `by` is not 0.
static struct str part_text(struct arena *arena, double by, const char *what)
{
    struct str time = time_text(arena, by < 0 ? -by : by);
    return tsr__arena_printf(arena, STR_FMT " %s %s", STR_ARG(time), by < 0 ? "less" : "more",
                             what);
}

// Formats both differences in time, the larger one first. Omits a second one that is much smaller.
// Example: "3.1 ms more communication, 0.7 ms less computation".
static struct str parts_text(struct arena *arena, double communication, double compute)
{
    const char *words[2] = {"communication", "computation"};
    double by[2] = {communication, compute};
    size_t first = by[1] > by[0], second = 1 - first;
    double less = by[second] < 0 ? -by[second] : by[second];
    struct str text = part_text(arena, by[first], words[first]);
    if (less < MINOR_PART * by[first])
        return text;
    struct str rest = part_text(arena, by[second], words[second]);
    return tsr__arena_printf(arena, STR_FMT ", " STR_FMT, STR_ARG(text), STR_ARG(rest));
}

static struct str slower_text(struct arena *arena, const struct compared_plan *compared,
                              const struct plan *plan)
{
    double slower = (double)(compared->time - plan->time);
    double compute = (double)(compared->compute - plan->compute);
    double percent = 100 * slower / (double)int64_max(plan->time, 1);
    if (slower < SAME * (double)plan->time)
        return STR("as fast as the plan");
    if (!plan->compute || !compared->compute)
        return tsr__arena_printf(arena, "slower by %.3g %%", percent);
    struct str parts = parts_text(arena, slower - compute, compute);
    return tsr__arena_printf(arena, "slower by %.3g %%: " STR_FMT, percent, STR_ARG(parts));
}

static struct str unfit_text(struct arena *arena, const struct compared_plan *compared)
{
    if (!compared->proved)
        return STR("no plan that fits in memory was found in time");
    struct str limit = tsr__plan_bytes_text(arena, compared->limit);
    if (!compared->needs)
        return tsr__arena_printf(arena, "does not fit in " STR_FMT " per device", STR_ARG(limit));
    struct str needs = tsr__plan_bytes_text(arena, compared->needs);
    return tsr__arena_printf(arena, "needs %s" STR_FMT " per device, the limit is " STR_FMT,
                             compared->weights_only ? "more than " : "", STR_ARG(needs),
                             STR_ARG(limit));
}

// ---- the list of the summary -------------------------------------------------------------------

// Compares two plans for sorting: plans that fit come first, the fastest at the top.
static int in_order(const void *a, const void *b)
{
    const struct compared_plan *x = a, *y = b;
    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_plan_expert expert_of(struct arena *arena, const struct compared_plan *compared,
                                 const struct plan *plan)
{
    tsr_plan_expert expert = {.size = sizeof expert,
                              .name = tsr__arena_str(arena, str_of(compared->name)).p,
                              .fits = compared->fits,
                              .undecided = !compared->fits && !compared->proved,
                              .milliseconds = (double)compared->time / 1e9,
                              .communication_ms =
                                  (double)int64_max(compared->time - compared->compute, 0) / 1e9,
                              .needs_bytes = compared->needs};
    if (compared->fits)
        expert.reason = slower_text(arena, compared, plan).p;
    else
        expert.reason = unfit_text(arena, compared).p;
    return expert;
}

tsr_status tsr__compared_write(const struct plan *plan, tsr_plan_result *out)
{
    struct arena *arena = &plan->models->planners[0]->session->results[RESULT_PLAN];
    const struct compared_list *list = &plan->compared;
    struct compared_plan *sorted = ARENA_ARRAY(arena, struct compared_plan, list->n + 1);
    tsr_plan_expert *experts = ARENA_ARRAY(arena, tsr_plan_expert, list->n + 1);
    if (!sorted || !experts)
        return TSR_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        sorted[i] = list->at[i];
        sorted[i].order = i;
    }
    qsort(sorted, list->n, sizeof *sorted, in_order);
    for (size_t i = 0; i < list->n; i++)
        experts[i] = expert_of(arena, &sorted[i], plan);
    out->compared = experts;
    out->facts.n_compared = list->n;
    return arena->failed ? TSR_NOMEM : TSR_OK;
}
